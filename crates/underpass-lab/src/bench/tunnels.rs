//! `underpass bench tunnels`: what a packet costs by the number of tunnels, and by how many packets in a row are of one.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::Context;
use serde::Serialize;
use underpass_daemon::offline::Offline;
use underpass_engine::buffer::BURST;
use underpass_port::memory::Generator;

use super::measure::{Line, median, undisturbed};
use super::routes::Route;
use super::scenario::{BASE, CHECKED, FLOWS, Flow, HOPS, flows, incoming, outgoing};
use super::tunnel::{AWAY, FIRST, HERE, TTL, UNDERLAY, devices, remote};
use super::wire::{self, Ip4};
use super::{clock, configure_lines, send};
use crate::random::Random;
use underpass_daemon::output;

/// Measure the cost of a packet by the number of IPIP tunnels, and by the number of consecutive packets in one tunnel.
///
/// Each tunnel has a remote address of its own and leads to a /24 of its own. 4,096 packets are sent over and over; which
/// tunnel each row of them is of was drawn at random, so that rows of 64 are of 64 tunnels at the most. One thread, pinned to
/// the last core; every cell has its turn in each round beside a round of the generator and the sink alone, which is
/// subtracted, and the median counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench tunnels
  underpass bench tunnels --rounds 301 --json")]
pub struct Args {
    /// How often each cell has its turn
    #[arg(long, value_name = "N", default_value = "101", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Numbers of tunnels, and of packets in a row.
const COUNTS: [u16; 5] = [1, 10, 100, 1000, 10_000];
const ROWS: [usize; 5] = [1, 2, 4, 16, 64];

/// How long a turn of one cell takes, about, in nanoseconds, and how many bursts warm it up: all that is sent, once.
const TURN: f64 = 5e5;
const WARM: u64 = (FLOWS / BURST) as u64;

/// Which way packets cross the tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Into,
    Out,
}

/// What a packet costs where there are so many tunnels, and so many packets in a row are of one.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    way: Direction,
    tunnels: u16,
    row: usize,
    path_clocks: f64,
}

/// A router with so many tunnels.
struct Rig {
    way: Direction,
    tunnels: u16,
    line: Line<true>,
    _router: Offline,
    /// By row: what is sent.
    traffic: Vec<Generator>,
    /// Of a turn.
    bursts: u64,
}

/// Measures all.
pub fn main(args: &Args) -> anyhow::Result<()> {
    let core = clock::pin().context("this thread cannot be kept on one core")?;
    let ticks = clock::ticks_per_nanosecond();
    eprintln!("core {core}, {ticks:.2} GHz time-stamp counter");
    let mut rigs = Vec::new();
    for (way, tunnels) in
        [Direction::Into, Direction::Out].into_iter().flat_map(|way| COUNTS.map(|count| (way, count)))
    {
        eprintln!("{tunnels} tunnels …");
        let mut rig = Rig::new(way, tunnels).with_context(|| format!("{tunnels} tunnels"))?;
        rig.calibrate(ticks)?;
        let taken: [Vec<[u64; 2]>; ROWS.len()] = Default::default();
        rigs.push((rig, taken));
    }
    for round in 0..args.rounds {
        if round % 20 == 0 {
            eprintln!("round {round} of {} …", args.rounds);
        }
        for (rig, taken) in &mut rigs {
            for (row, taken) in taken.iter_mut().enumerate() {
                taken.push(rig.turn(row)?);
            }
        }
    }
    let cells = rigs.iter().flat_map(|(rig, taken)| {
        ROWS.into_iter().zip(taken).map(|(row, taken)| {
            let middle = |which: usize| median(&mut taken.iter().map(|turn| turn[which]).collect::<Vec<_>>());
            let packets = (rig.bursts * BURST as u64) as f64;
            let path_clocks = (middle(1) as f64 - middle(0) as f64) / packets;
            Cell { way: rig.way, tunnels: rig.tunnels, row, path_clocks }
        })
    });
    let cells: Vec<Cell> = cells.collect();
    output::print(&if args.json { serde_json::to_string_pretty(&cells)? + "\n" } else { table(&cells) })?;
    Ok(())
}

/// The tunnel of each of the flows, a row of which are of one, at random.
fn turns(tunnels: u16, row: usize) -> impl Iterator<Item = u16> {
    let mut random = Random(1);
    std::iter::repeat_with(move || random.below(tunnels.into()) as u16)
        .flat_map(move |tunnel| std::iter::repeat_n(tunnel, row))
}

/// The flow to an address behind a tunnel.
fn behind(tunnel: u16, flow: Flow) -> Flow {
    let host = flow.destination4.to_bits() & 0xff;
    Flow { destination4: Ipv4Addr::from_bits(prefix(tunnel).to_bits() | host), ..flow }
}

/// Where a tunnel leads: one after the other from 100.64.0.0 on.
pub fn prefix(tunnel: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0000 | u32::from(tunnel) << 8)
}

/// A packet from the other end of a tunnel.
fn arriving(tunnel: u16, inside: &[u8]) -> Vec<u8> {
    let (source, destination) = (remote(tunnel), HERE[1]);
    incoming(&wire::ipv4(Ip4 { source, destination, identification: 9, ttl: TTL }, wire::IPV4, inside))
}

/// One that goes to it, the `number`-th that goes into tunnels.
fn encapsulated(tunnel: u16, number: u16, inside: &[u8]) -> Vec<u8> {
    let outer = Ip4 { source: AWAY[0], destination: remote(tunnel), identification: number, ttl: TTL };
    outgoing(&wire::ipv4(outer, wire::IPV4, inside))
}

impl Rig {
    fn new(way: Direction, tunnels: u16) -> anyhow::Result<Self> {
        let out = "ip route add 198.18.0.0/16 via 10.1.0.2 dev p1\n";
        let (local, rest) = if way == Direction::Into { (AWAY[0], UNDERLAY) } else { (HERE[1], out) };
        let mut configured = configure_lines("tunnels", &format!("{BASE}{rest}"), 1)?;
        let mut routes = devices(local, tunnels);
        if way == Direction::Into {
            let route = |n| Route::Device { prefix: prefix(n), length: 24, index: FIRST + u32::from(n) };
            routes.extend((0..tunnels).map(route));
        }
        send(&configured.router, &routes)?;
        let reader = configured.readers.pop().context("no reader")?;
        let line = Line::new(configured.tables, reader, Generator::new([[0; 64]], None));
        let mut rig = Self { way, tunnels, line, _router: configured.router, traffic: Vec::new(), bursts: 1 };
        for (number, row) in ROWS.into_iter().enumerate() {
            // The router numbers outer packets from 1 on, and as many are compared of each.
            let generator = rig.check(row, number * CHECKED).with_context(|| format!("{row} in a row"))?;
            rig.traffic.push(generator);
        }
        Ok(rig)
    }

    /// What is sent with so many packets in a row of one tunnel, after what comes of the first packets has been compared;
    /// so many have been sent before.
    fn check(&mut self, row: usize, before: usize) -> anyhow::Result<Generator> {
        let (tunnels, way) = (turns(self.tunnels, row), self.way);
        let pairs = flows().into_iter().zip(tunnels).zip(1..).map(|((flow, tunnel), number)| match way {
            Direction::Into => {
                let flow = behind(tunnel, flow);
                let number = (before + number) as u16;
                (incoming(&flow.packet4(HOPS)), encapsulated(tunnel, number, &flow.packet4(HOPS - 1)))
            }
            Direction::Out => (arriving(tunnel, &flow.packet4(HOPS)), outgoing(&flow.packet4(HOPS - 1))),
        });
        let (sent, mut expected): (Vec<_>, Vec<_>) = pairs.unzip();
        expected.truncate(CHECKED);
        let mut generator = Generator::new(sent, None);
        std::mem::swap(self.line.generator(), &mut generator);
        self.line.check(&expected)?;
        std::mem::swap(self.line.generator(), &mut generator);
        Ok(generator)
    }

    /// How many bursts a turn has.
    fn calibrate(&mut self, ticks_per_nanosecond: f64) -> anyhow::Result<()> {
        self.with(0, |line| line.bursts(ticks_per_nanosecond, TURN)).map(|bursts| self.bursts = bursts)
    }

    /// The ticks of a turn: of the generator and the sink alone, and with the path.
    fn turn(&mut self, row: usize) -> anyhow::Result<[u64; 2]> {
        let bursts = self.bursts;
        self.with(row, |line| {
            line.path(WARM)?;
            Ok([undisturbed(|| line.floor(bursts))?, undisturbed(|| line.path(bursts))?])
        })
    }

    /// What becomes of the packets with so many in a row, by their place in [`ROWS`].
    fn with<T>(
        &mut self,
        row: usize,
        of: impl FnOnce(&mut Line<true>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let Self { line, traffic, .. } = self;
        let generator = traffic.get_mut(row).context("no such row")?;
        std::mem::swap(line.generator(), generator);
        let outcome = of(line);
        std::mem::swap(line.generator(), generator);
        outcome
    }
}

fn table(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (way, title) in [(Direction::Into, "into tunnels"), (Direction::Out, "out of tunnels")] {
        let _ = write!(text, "{title}, clocks a packet (× of one tunnel)\n{:>15}", "packets in a row");
        ROWS.iter().for_each(|row| text += &format!("{row:>16}"));
        text.push('\n');
        for tunnels in COUNTS {
            let name = if tunnels == 1 { "1 tunnel".to_owned() } else { format!("{tunnels} tunnels") };
            let _ = write!(text, "{name:>16}");
            for row in ROWS {
                let clocks = |tunnels: u16| {
                    let is = |cell: &&Cell| (cell.way, cell.tunnels, cell.row) == (way, tunnels, row);
                    cells.iter().find(is).map_or(f64::NAN, |cell| cell.path_clocks)
                };
                let (cost, one) = (clocks(tunnels), clocks(1));
                let _ = write!(text, "{:>16}", format!("{cost:.1} ({:.2})", cost / one));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each packet comes out as it must; ten thousand tunnels take long to add in a debug build.
    #[test]
    fn packets_come_out_of_their_tunnels() {
        for way in [Direction::Into, Direction::Out] {
            for tunnels in [1, 10, 300] {
                Rig::new(way, tunnels).unwrap();
            }
        }
    }

    #[test]
    fn rows_are_of_one_tunnel() {
        let turns: Vec<_> = turns(1000, 4).take(400).collect();
        assert!(turns.chunks(4).all(|row| row.iter().all(|tunnel| *tunnel == row[0])));
        let different: std::collections::BTreeSet<_> = turns.iter().collect();
        assert!(different.len() > 80, "{}", different.len());
    }

    #[test]
    fn a_cell_stands_beside_that_of_one_tunnel() {
        let cell = |tunnels, path_clocks| Cell { way: Direction::Into, tunnels, row: 2, path_clocks };
        let text = table(&[cell(1, 30.0), cell(100, 45.0)]);
        assert!(text.contains("30.0 (1.00)") && text.contains("45.0 (1.50)"), "{text}");
    }
}
