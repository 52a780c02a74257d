//! `underpass bench --bursts`: a scenario without a clock, for a program that counts instructions
//! (`scripts/instructions`).
//!
//! Clocks on a machine that others use too differ by a third from run to run; the instructions of a packet do
//! not differ at all. What is counted is what happens inside [`counted`], which has a name for callgrind's
//! `--toggle-collect`: neither the start of the program, whose threads and hash seeds differ, nor the check.

use anyhow::{Context, bail};
use underpass_engine::buffer::Pool;
use underpass_engine::worker::Burst;

use super::scenario::Scenario;
use super::{FLOOR, checked, ip6_packets, measure};

/// Sends so many bursts of 64 packets through a scenario, or through the generator and the sink alone.
///
/// # Errors
/// No scenario, or several, are meant; a packet does not come out as it must.
pub fn run(names: &[String], scenarios: &[Scenario], bursts: u64) -> anyhow::Result<()> {
    let [name] = names else { bail!("--bursts takes one scenario") };
    if name == FLOOR {
        let mut generator = ip6_packets()?;
        let (mut pool, mut burst) = (Pool::new(measure::BUFFERS), Burst::new());
        return counted(&mut || measure::floor(&mut pool, &mut generator, &mut burst, bursts).map(drop));
    }
    let scenario = scenarios.iter().find(|scenario| scenario.name == *name);
    let scenario =
        scenario.with_context(|| format!("{name} is no scenario that bursts can be sent through"))?;
    let (mut line, _router) = checked(scenario)?;
    counted(&mut || line.path(bursts).map(drop))
}

/// Does it. Never part of its caller: a profiler knows by this name what to count.
#[inline(never)]
fn counted(what: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    // Something is left to do behind it: a call at the very end would become a jump, which has no return.
    std::hint::black_box(what())
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    /// What `scripts/instructions.sh` counts can be sent.
    #[test]
    fn the_scenarios_of_the_gate_run() {
        let script = include_str!("../../../../scripts/instructions.sh");
        let list =
            script.lines().find_map(|line| line.strip_prefix("scenarios=(")?.strip_suffix(')')).unwrap();
        let scenarios = all();
        let names: Vec<_> = list.split(' ').chain([FLOOR]).map(str::to_owned).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            run(&[name], &scenarios, 4).unwrap();
        }
    }

    #[test]
    fn one_scenario_is_needed() {
        let scenarios = all();
        for names in [vec![], vec!["ip4".to_owned(), "ip6".to_owned()], vec!["counters".to_owned()]] {
            assert!(run(&names, &scenarios, 1).is_err(), "{names:?}");
        }
    }
}
