//! How a scenario is timed: rounds of the whole path, each beside a round of the generator and the sink
//! alone, on one core.

use std::sync::Arc;

use anyhow::{bail, ensure};
use underpass_engine::buffer::{BURST, Pool, PortId};
use underpass_engine::counters::Counters;
use underpass_engine::drops::DropReason;
use underpass_engine::tables::{Reader, Tables};
use underpass_engine::worker::{Burst, Worker};
use underpass_port::memory::Generator;

use super::clock::{self, Pace};

/// Buffers of a worker: those of the bursts under way, some for what it makes itself and for what waits; so many that
/// they fill a huge page, as those of a worker beside a kernel do.
pub const BUFFERS: usize = 16 * BURST;

/// Rounds of a scenario, and how long one takes, about, in nanoseconds: shorter than the time for which
/// the kernel leaves a core to a thread, so that most are not interrupted even on a busy machine.
const ROUNDS: usize = 301;
const ROUND: f64 = 1e6;

/// How often a round is repeated, at most, if the kernel gave the core to another thread meanwhile.
const REPEATS: usize = 20;

/// Ports of every scenario: packets come in by the first and leave by the second.
pub const IN: PortId = PortId(0);
pub const OUT: PortId = PortId(1);

/// A worker that counts behaviours, or does not.
pub trait Carry {
    /// Carries a burst to its verdicts.
    fn carry(&mut self, port: PortId, burst: &mut Burst, now: u64);

    /// Sends what is due.
    fn catch_up(&mut self, now: u64);
}

impl Carry for Worker {
    fn carry(&mut self, port: PortId, burst: &mut Burst, now: u64) {
        self.process(port, burst, now, None);
    }

    fn catch_up(&mut self, now: u64) {
        self.advance(now, None);
    }
}

impl Carry for Worker<false> {
    fn carry(&mut self, port: PortId, burst: &mut Burst, now: u64) {
        self.process(port, burst, now);
    }

    fn catch_up(&mut self, now: u64) {
        self.advance(now);
    }
}

/// A generator, a worker and a sink, on this thread.
pub struct Line<const COUNT: bool> {
    worker: Worker<COUNT>,
    input: PortId,
    generator: Generator,
    burst: Burst,
    now: u64,
    counters: Arc<Counters>,
}

/// What a scenario took, in ticks for each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Packets that were timed.
    pub packets: u64,
    /// The generator and the sink.
    pub floor: f64,
    /// The path alone.
    pub path: f64,
    /// How the core ran meanwhile, where that can be told: in the middle.
    pub pace: Option<Pace>,
}

impl<const COUNT: bool> Line<COUNT>
where
    Worker<COUNT>: Carry,
{
    /// A worker over these tables.
    pub fn new(tables: Arc<Tables>, reader: Reader, generator: Generator) -> Self {
        let counters = Arc::clone(reader.counters());
        let worker = Worker::new(tables, reader, Pool::new(BUFFERS));
        Self { worker, input: IN, generator, burst: Burst::new(), now: 0, counters }
    }

    /// What makes the packets.
    pub fn generator(&mut self) -> &mut Generator {
        &mut self.generator
    }

    /// Sends other packets from now on, into this port.
    pub fn take_from(&mut self, generator: Generator, input: PortId) {
        (self.generator, self.input) = (generator, input);
    }

    /// Exchanges generators and packet memory, so that lines can be compared that differ in nothing else.
    pub fn exchange_packets<const OTHER: bool>(&mut self, other: &mut Line<OTHER>) {
        std::mem::swap(self.worker.pool(), other.worker.pool());
        std::mem::swap(&mut self.generator, &mut other.generator);
        std::mem::swap(&mut self.burst, &mut other.burst);
    }

    /// Sends as many packets as are expected, and compares every byte of what comes out.
    ///
    /// # Errors
    /// Which packet is missing, or differs where.
    pub fn check(&mut self, expected: &[Vec<u8>]) -> anyhow::Result<()> {
        self.check_each(expected, |_| {})
    }

    /// The same where packets of a burst may overtake others of it.
    ///
    /// # Errors
    /// As [`Line::check`]; the number is that of the sorted packets of its burst.
    pub fn check_bursts(&mut self, expected: &[Vec<u8>]) -> anyhow::Result<()> {
        self.check_each(expected, |burst| burst.sort_unstable())
    }

    fn check_each(
        &mut self,
        expected: &[Vec<u8>],
        arrange: impl Fn(&mut Vec<Vec<u8>>),
    ) -> anyhow::Result<()> {
        self.generator.rewind();
        for (number, expected) in expected.chunks(BURST).enumerate() {
            self.step(expected.len())?;
            ensure!(self.worker.sent(self.input).count() == 0, "packets went back by the port they came in");
            let (mut sent, mut expected) = (Vec::new(), expected.to_vec());
            self.take_sent(&mut sent);
            ensure!(
                sent.len() == expected.len(),
                "of a burst of {} packets, {} came out{}",
                expected.len(),
                sent.len(),
                self.drops()
            );
            arrange(&mut sent);
            arrange(&mut expected);
            for (index, (sent, expected)) in sent.iter().zip(&expected).enumerate() {
                if sent != expected {
                    let number = number * BURST + index + 1;
                    bail!("packet {number} is wrong {}", difference(expected, sent));
                }
            }
        }
        self.generator.rewind();
        Ok(())
    }

    /// The same where packets wait on their way: all come out in the end, in any order, some at once and some later.
    ///
    /// # Errors
    /// Which packet is missing, or that all or none has waited.
    pub fn check_waiting(&mut self, expected: &[Vec<u8>]) -> anyhow::Result<()> {
        self.generator.rewind();
        let (mut waited, mut found) = (0, Vec::new());
        for expected in expected.chunks(BURST) {
            let before = self.worker.queued();
            self.step(expected.len())?;
            waited += self.worker.queued().saturating_sub(before);
            self.take_sent(&mut found);
        }
        ensure!((1..expected.len()).contains(&waited), "{waited} of {} packets wait", expected.len());
        while let Some(due) = self.worker.deadline() {
            self.now = self.now.max(due);
            self.worker.catch_up(due);
            self.take_sent(&mut found);
        }
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        found.sort_unstable();
        ensure!(found.len() == expected.len(), "{} packets came out{}", found.len(), self.drops());
        if let Some((expected, found)) =
            expected.iter().zip(&found).find(|(expected, found)| expected != found)
        {
            bail!("a packet is wrong {}", difference(expected, found));
        }
        self.generator.rewind();
        Ok(())
    }

    fn take_sent(&mut self, found: &mut Vec<Vec<u8>>) {
        let (pool, sent) = self.worker.pool_and_sent(OUT);
        for packet in sent {
            found.push(packet.bytes().to_vec());
            pool.give(packet);
        }
    }

    /// Why packets did not come out.
    fn drops(&self) -> String {
        let reasons = DropReason::ALL.iter().filter(|reason| self.counters.dropped(**reason) > 0);
        reasons.map(|reason| format!(", {} {}", self.counters.dropped(*reason), reason.name())).collect()
    }

    /// Takes a burst from the generator and carries it through the worker.
    #[inline]
    fn step(&mut self, count: usize) -> anyhow::Result<()> {
        let Self { worker, input, generator, burst, now, .. } = self;
        generator
            .receive(worker.pool(), count, |packet| burst.push(packet))
            .map_err(|_| anyhow::anyhow!("a packet is longer than a buffer"))?;
        // Time passes as it does at 6.4 million packets a second.
        *now += 10_000;
        worker.carry(*input, burst, *now);
        Ok(())
    }

    /// Sends so many bursts through the path; returns the ticks that it took.
    ///
    /// # Errors
    /// A packet did not come out.
    pub fn path(&mut self, bursts: u64) -> anyhow::Result<u64> {
        // What waits as it begins; as much may wait when it ends.
        let mut sent = -(self.worker.queued() as i64);
        let start = clock::ticks();
        for _ in 0..bursts {
            self.step(BURST)?;
            sent += self.worker.discard_sent(OUT) as i64;
        }
        let ticks = clock::ticks() - start;
        sent += self.worker.queued() as i64;
        let packets = (bursts * BURST as u64) as i64;
        ensure!(sent == packets, "of {packets} packets, {sent} came out{}", self.drops());
        Ok(ticks)
    }

    /// The same without the worker.
    ///
    /// # Errors
    /// A packet does not fit in a buffer.
    pub fn floor(&mut self, bursts: u64) -> anyhow::Result<u64> {
        floor(self.worker.pool(), &mut self.generator, &mut self.burst, bursts)
    }

    /// Times the path and the floor in turn.
    ///
    /// # Errors
    /// As [`Line::path`].
    pub fn measure(&mut self, ticks_per_nanosecond: f64) -> anyhow::Result<Cost> {
        let bursts = self.bursts(ticks_per_nanosecond, ROUND)?;
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            let floor = undisturbed(|| self.floor(bursts))?;
            let path = undisturbed(|| self.path(bursts))?;
            rounds.push(floor, path);
        }
        Ok(rounds.cost(bursts * BURST as u64))
    }

    /// How many bursts the path carries in so many nanoseconds, once it is warm.
    ///
    /// # Errors
    /// As [`Line::path`].
    pub fn bursts(&mut self, ticks_per_nanosecond: f64, nanoseconds: f64) -> anyhow::Result<u64> {
        const WARM: u64 = 8192;
        self.path(WARM)?;
        let ticks = self.path(WARM)? as f64 / WARM as f64;
        Ok((nanoseconds * ticks_per_nanosecond / ticks).max(1.0) as u64)
    }
}

/// What rounds of the floor and of the path took, and how the core ran before and after each.
#[derive(Default)]
pub struct Rounds {
    rounds: Vec<Round>,
}

#[derive(Clone, Copy)]
struct Round {
    floor: u64,
    path: u64,
    before: Option<Pace>,
    after: Option<Pace>,
}

impl Rounds {
    /// One of the floor and one of the path have just been timed.
    pub fn push(&mut self, floor: u64, path: u64) {
        let before = self.rounds.last().and_then(|round| round.after);
        self.rounds.push(Round { floor, path, before, after: clock::pace() });
    }

    /// What a packet took of so many in a round: the medians of the rounds before and after which the core was not shared;
    /// of all if these are fewer than a tenth.
    pub fn cost(self, packets: u64) -> Cost {
        let shared = |round: &&Round| [round.before, round.after].iter().flatten().any(Pace::shared);
        let alone: Vec<Round> = self.rounds.iter().filter(|round| !shared(round)).copied().collect();
        let rounds = if alone.len() * 10 >= self.rounds.len() { alone } else { self.rounds };
        let middle = |ticks: fn(&Round) -> u64| {
            median(&mut rounds.iter().map(ticks).collect::<Vec<_>>()) as f64 / packets as f64
        };
        let floor = middle(|round| round.floor);
        Cost {
            packets: packets * rounds.len() as u64,
            floor,
            path: middle(|round| round.path) - floor,
            pace: Pace::middle(rounds.iter().filter_map(|round| round.after).collect()),
        }
    }
}

/// Times a round that had the core to itself; one that had not if the machine is too busy for any.
///
/// # Errors
/// Those of the round.
pub fn undisturbed(mut round: impl FnMut() -> anyhow::Result<u64>) -> anyhow::Result<u64> {
    let mut repeats = 0;
    loop {
        let before = clock::preemptions()?;
        let ticks = round()?;
        if clock::preemptions()? == before || repeats == REPEATS {
            return Ok(ticks);
        }
        repeats += 1;
    }
}

/// The generator and the sink alone.
///
/// # Errors
/// A packet does not fit in a buffer.
pub fn floor(
    pool: &mut Pool,
    generator: &mut Generator,
    burst: &mut Burst,
    bursts: u64,
) -> anyhow::Result<u64> {
    let start = clock::ticks();
    for _ in 0..bursts {
        generator
            .receive(pool, BURST, |packet| burst.push(packet))
            .map_err(|_| anyhow::anyhow!("a packet is longer than a buffer"))?;
        // Or the compiler could see that nobody reads what was copied.
        std::hint::black_box(&mut *burst);
        burst.drain(..).for_each(|packet| pool.give(packet));
    }
    Ok(clock::ticks() - start)
}

/// Times the generator and the sink without a worker anywhere.
///
/// # Errors
/// A packet does not fit in a buffer.
pub fn floor_alone(generator: &mut Generator, ticks_per_nanosecond: f64) -> anyhow::Result<Cost> {
    const WARM: u64 = 8192;
    let (mut pool, mut burst) = (Pool::new(BUFFERS), Burst::new());
    let warm = floor(&mut pool, generator, &mut burst, WARM)? as f64 / WARM as f64;
    let bursts = (ROUND * ticks_per_nanosecond / warm).max(1.0) as u64;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let ticks = undisturbed(|| floor(&mut pool, generator, &mut burst, bursts))?;
        rounds.push(ticks, ticks);
    }
    Ok(rounds.cost(bursts * BURST as u64))
}

/// Times the sink: a burst of buffers that the pool gives and takes back.
///
/// # Errors
/// The pool is empty.
pub fn sink_alone(ticks_per_nanosecond: f64) -> anyhow::Result<Cost> {
    let (mut pool, mut burst) = (Pool::new(BUFFERS), Burst::new());
    let mut sink = |bursts: u64| {
        let start = clock::ticks();
        for _ in 0..bursts {
            for _ in 0..BURST {
                burst.push(pool.take().ok_or_else(|| anyhow::anyhow!("the pool is empty"))?);
            }
            std::hint::black_box(&mut burst);
            burst.drain(..).for_each(|packet| pool.give(packet));
        }
        Ok(clock::ticks() - start)
    };
    let warm = sink(8192)? as f64 / 8192.0;
    let bursts = (ROUND * ticks_per_nanosecond / warm).max(1.0) as u64;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        rounds.push(0, undisturbed(|| sink(bursts))?);
    }
    Ok(rounds.cost(bursts * BURST as u64))
}

/// The middle one.
pub fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Where two frames first differ, and both from there on.
pub fn difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    let hex = |bytes: &[u8]| bytes.iter().skip(at).take(48).map(|b| format!("{b:02x}")).collect::<String>();
    format!(
        "from byte {at} on:\n  expected {} bytes: …{}\n  came out {} bytes: …{}",
        expected.len(),
        hex(expected),
        found.len(),
        hex(found)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds of a core that is shared are left out, unless there are hardly others.
    #[test]
    fn rounds_of_a_shared_core_are_left_out() {
        let pace = |sums_per_cycle| Some(Pace { cycles_per_tick: 1.5, sums_per_cycle });
        let (alone, busy) = (pace(4.4), pace(2.5));
        let round = |path, before, after| Round { floor: 10, path, before, after };
        let quiet = [round(50, None, alone), round(60, alone, alone), round(52, alone, alone)];
        let disturbed = [round(90, alone, busy), round(91, busy, busy), round(92, busy, alone)];
        let cost = Rounds { rounds: [quiet, disturbed].concat() }.cost(2);
        assert_eq!(cost, Cost { packets: 6, floor: 5.0, path: 21.0, pace: alone });
        let cost = Rounds { rounds: disturbed.to_vec() }.cost(2);
        assert_eq!((cost.packets, cost.path), (6, 40.5));
        assert_eq!(cost.pace.map(|pace| pace.shared()), Some(true));
    }
}
