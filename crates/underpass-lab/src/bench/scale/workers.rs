//! What two workers carry beside one: each a thread on a core of its own, with packets of its own.

use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Context, bail};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use underpass_port::memory::Generator;

use super::super::measure::Line;
use super::super::{all, clock, configure};

/// The scenarios that are measured.
const SCENARIOS: [&str; 2] = ["ip6", "srv6-end-dx2"];
/// Rounds, in each of which each worker runs alone and both run together; and how long such a turn takes, about, in
/// nanoseconds.
const ROUNDS: usize = 301;
const TURN: f64 = 1e6;

/// One scenario.
#[derive(Debug, Serialize)]
pub struct Pair {
    pub scenario: &'static str,
    /// Millions of packets a second, of the generator and the path: one worker, the mean of the two alone.
    pub one: f64,
    /// Both at once, together.
    pub two: f64,
    /// The median over the rounds.
    pub ratio: f64,
    /// Rounds in which no other program had one of the cores; all, if there were too few.
    pub rounds: usize,
}

/// What a worker did in a round: packets a tick alone and together with the other, and whether the cores were its own.
#[derive(Clone, Copy)]
struct Turn {
    alone: f64,
    together: f64,
    undisturbed: bool,
}

/// Measures the scenarios on this core and another one; none where there is no other.
///
/// # Errors
/// A packet does not come out.
pub fn measure(core: usize, ticks_per_nanosecond: f64) -> anyhow::Result<Vec<Pair>> {
    let Some(other) = other_core(core)? else {
        eprintln!("two workers need two cores: left out");
        return Ok(Vec::new());
    };
    SCENARIOS.into_iter().map(|name| pair(name, [core, other], ticks_per_nanosecond).context(name)).collect()
}

/// Before this thread was kept on `core` it could run on others: the last of them.
fn other_core(core: usize) -> anyhow::Result<Option<usize>> {
    // The first thread may run where the program was started.
    let allowed = thread::spawn(move || -> nix::Result<CpuSet> {
        let mut every = CpuSet::new();
        for core in 0..thread::available_parallelism().map_or(1, usize::from).max(core + 1) {
            every.set(core)?;
        }
        nix::sched::sched_setaffinity(Pid::from_raw(0), &every)?;
        sched_getaffinity(Pid::from_raw(0))
    });
    let Ok(allowed) = allowed.join() else { bail!("a thread panicked") };
    let allowed = allowed?;
    Ok((0..CpuSet::count()).rev().find(|other| *other != core && allowed.is_set(*other) == Ok(true)))
}

fn pair(name: &'static str, cores: [usize; 2], ticks: f64) -> anyhow::Result<Pair> {
    eprintln!("{name} by two workers …");
    let scenario = all().into_iter().find(|scenario| scenario.name == name).context("no such scenario")?;
    let load = (scenario.load)();
    let configured = configure(&scenario, &load.routes, 2)?;
    let barrier = Barrier::new(2);
    let half = load.templates.len() / 2;
    let parts = load.templates.chunks(half).zip(cores).zip(configured.readers);
    let turns = thread::scope(|scope| {
        let threads: Vec<_> = parts
            .enumerate()
            .map(|(number, ((templates, core), reader))| {
                let (tables, barrier) = (Arc::clone(&configured.tables), &barrier);
                scope.spawn(move || -> anyhow::Result<Vec<Turn>> {
                    clock::pin_to(core)?;
                    let mut line: Line<true> = Line::new(tables, reader, Generator::new(templates, None));
                    let bursts = line.bursts(ticks, TURN);
                    rounds(&mut line, bursts, number == 0, barrier)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(turns) => turns,
            Err(_) => bail!("a worker panicked"),
        });
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let [first, second] = &turns[..] else { bail!("two workers are measured") };
    let mut both: Vec<(Turn, Turn)> = first.iter().copied().zip(second.iter().copied()).collect();
    let quiet: Vec<_> =
        both.iter().copied().filter(|(one, other)| one.undisturbed && other.undisturbed).collect();
    if quiet.len() >= ROUNDS / 10 {
        both = quiet;
    }
    let mpps = |of: fn(&(Turn, Turn)) -> f64| 1000.0 * ticks * median(both.iter().map(of));
    Ok(Pair {
        scenario: name,
        one: mpps(|(one, other)| (one.alone + other.alone) / 2.0),
        two: mpps(|(one, other)| one.together + other.together),
        ratio: median(
            both.iter().map(|(one, other)| 2.0 * (one.together + other.together) / (one.alone + other.alone)),
        ),
        rounds: both.len(),
    })
}

/// Each worker runs alone, then both. Both come to each barrier, whatever happens.
fn rounds(
    line: &mut Line<true>,
    bursts: anyhow::Result<u64>,
    first: bool,
    barrier: &Barrier,
) -> anyhow::Result<Vec<Turn>> {
    let mut turns = Vec::with_capacity(ROUNDS);
    let mut failed = None;
    let count = *bursts.as_ref().unwrap_or(&1);
    for _ in 0..ROUNDS {
        let mut rates = [0.0; 2];
        let before = clock::preemptions()?;
        for turn in 0..3 {
            barrier.wait();
            let mine = turn == 2 || (turn == 0) == first;
            if mine && failed.is_none() {
                match line.path(count) {
                    Ok(ticks) => rates[usize::from(turn == 2)] = count as f64 * 64.0 / ticks as f64,
                    Err(error) => failed = Some(error),
                }
            }
        }
        let undisturbed = clock::preemptions()? == before;
        turns.push(Turn { alone: rates[0], together: rates[1], undisturbed });
    }
    bursts?;
    match failed {
        Some(error) => Err(error),
        None => Ok(turns),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
