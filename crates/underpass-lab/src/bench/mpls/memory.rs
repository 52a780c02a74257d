//! `underpass bench mpls-memory`: what a label route takes of memory, beside Linux's `struct mpls_route`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::str::FromStr;
use underpass_control::write_sysctl;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use underpass_netlink::mpls::Via;

use super::super::routes::{LabelWay, Route};
use super::super::scenario::BASE;
use super::super::{configure_lines, send};
use crate::random::Random;
use underpass_daemon::output;

/// Measure the memory per label route: how much the process grows over a million of them.
///
/// Each route has labels of its own; neighbours are shared. The table also has what Linux takes: 56 bytes for one next
/// hop by an Ethernet or IPv4 address with one or two labels, 64 by an IPv6 address; for several next hops, 24 bytes and
/// 32 or 40 for each. `computed` is the size by this router's layout. Each case is measured in a process of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass bench mpls-memory
  underpass bench mpls-memory --json --routes 100000")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How many routes there are
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    routes: u32,
    /// Measure one case in this process and print the bytes
    #[arg(long, hide = true)]
    case: Option<Case>,
}

/// How a neighbour is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Ethernet,
    Ipv4,
    Ipv6,
}

/// What routes are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    via: Kind,
    next_hops: usize,
    labels: usize,
}

/// `VIA,NEXT_HOPS,LABELS`, for the process that measures one.
impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.split(',').collect();
        let [via, next_hops, labels] = parts[..] else { bail!("not VIA,NEXT_HOPS,LABELS") };
        let via = match via {
            "ethernet" => Kind::Ethernet,
            "ipv4" => Kind::Ipv4,
            "ipv6" => Kind::Ipv6,
            _ => bail!("no such via"),
        };
        Ok(Self { via, next_hops: next_hops.parse()?, labels: labels.parse()? })
    }
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    routes: u32,
    /// Bytes for a route, of Linux by its layout.
    linux: usize,
    /// By the layout of this router.
    computed: usize,
    /// Growth of the process's memory, divided by the routes.
    measured: f64,
}

/// Neighbours, and groups of them, that the routes share.
const SHARED: u32 = 1000;

/// Measures all cases, or one.
pub fn main(args: &Args) -> anyhow::Result<()> {
    if let Some(case) = args.case {
        output::print(&format!("{}\n", growth(case, args.routes)?))?;
        return Ok(());
    }
    let mut rows = Vec::new();
    for via in [Kind::Ethernet, Kind::Ipv4, Kind::Ipv6] {
        for next_hops in [1, 2, 16] {
            for labels in [1, 2] {
                let case = Case { via, next_hops, labels };
                eprintln!("{} …", case.name());
                let measured = in_its_own_process(case, args.routes)? as f64 / f64::from(args.routes);
                let (linux, computed) = (case.linux(), case.computed());
                rows.push(Row { case, routes: args.routes, linux, computed, measured });
            }
        }
    }
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&rows)?))?;
        return Ok(());
    }
    let mut text = format!(
        "bytes for a label route, over {} of them\n{:<9} {:>9} {:>7} {:>6} {:>9} {:>9}\n",
        args.routes, "via", "next hops", "labels", "Linux", "computed", "measured"
    );
    for Row { case: Case { via, next_hops, labels }, linux, computed, measured, .. } in &rows {
        let via = format!("{via:?}").to_lowercase();
        text += &format!("{via:<9} {next_hops:>9} {labels:>7} {linux:>6} {computed:>9} {measured:>9.1}\n");
    }
    output::print(&text)?;
    Ok(())
}

impl Case {
    fn name(self) -> String {
        format!("{},{},{}", format!("{:?}", self.via).to_lowercase(), self.next_hops, self.labels)
    }

    /// `struct mpls_route`, and for each next hop `struct mpls_nh` with its labels and address, all in units of eight
    /// bytes.
    fn linux(self) -> usize {
        let labels = (4 * self.labels).next_multiple_of(8);
        let address = if self.via == Kind::Ipv6 { 16 } else { 8 };
        24 + self.next_hops * (16 + labels + address)
    }

    /// A word in the control and one in the packet path; of several ways a block of words, and a list of labels, which
    /// is memory of its own if there are more than four.
    fn computed(self) -> usize {
        if self.next_hops == 1 {
            return 16;
        }
        let units = (8 * (1 + self.next_hops)).div_ceil(32);
        let block = 32 * if units > 1 { units.next_multiple_of(2) } else { units };
        let labels = self.next_hops * self.labels;
        let list = 24 + if labels > 4 { (4 * labels + 8).next_multiple_of(16) } else { 0 };
        16 + block + list
    }
}

fn in_its_own_process(case: Case, routes: u32) -> anyhow::Result<usize> {
    let program = std::env::current_exe()?;
    let arguments = ["bench", "mpls-memory", "--case", &case.name(), "--routes", &routes.to_string()];
    let output = Command::new(program).args(arguments).output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        case.name(),
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    String::from_utf8(output.stdout)?.trim().parse().context("no number")
}

/// By how many bytes the process grows with so many routes.
fn growth(case: Case, count: u32) -> anyhow::Result<usize> {
    /// Routes that are asked for in one go.
    const CHUNK: u32 = 10_000;
    let configured = configure_lines("mpls-memory", BASE, 1)?;
    let mut random = Random(6);
    let chunk = |random: &mut Random, first: u32| -> Vec<Route> {
        let labels = first..(first + CHUNK).min(16 + count);
        labels.map(|label| Route::Label { label, ways: case.ways(random) }).collect()
    };
    // What the requests themselves take is there before.
    drop(super::super::routes::requests(&chunk(&mut Random(7), 16), 1)?);
    let before = resident()?;
    let labels = (16 + count).to_string();
    let set = write_sysctl(&mut configured.router.router(), "mpls/platform_labels", labels.as_bytes());
    set.map_err(|error| anyhow::anyhow!("platform_labels is refused: errno {}", error.errno))?;
    for first in (16..16 + count).step_by(CHUNK as usize) {
        send(&configured.router, &chunk(&mut random, first))?;
    }
    Ok(resident()?.saturating_sub(before))
}

impl Case {
    /// The ways of a route: labels of its own, one of [`SHARED`] groups of neighbours.
    fn ways(self, random: &mut Random) -> Vec<LabelWay> {
        let group = random.below(u64::from(SHARED)) as u32;
        let mut label = || 16 + random.below((1 << 20) - 16) as u32;
        let mut way = |n: usize| {
            let neighbour = group + n as u32 * 7;
            LabelWay { labels: (0..self.labels).map(|_| label()).collect(), via: self.neighbour(neighbour) }
        };
        (0..self.next_hops).map(&mut way).collect()
    }

    fn neighbour(self, n: u32) -> Via {
        match self.via {
            Kind::Ethernet => {
                let [.., a, b] = n.to_be_bytes();
                Via::Link([2, 0, 0, 9, a, b])
            }
            Kind::Ipv4 => Via::Ip(Ipv4Addr::from_bits(0x0a01_1000 + n).into()),
            Kind::Ipv6 => Via::Ip(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 1, n as u16).into()),
        }
    }
}

/// Bytes of memory that the process has touched and not given back: `/proc/self/statm`.
pub fn resident() -> anyhow::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize =
        text.split_whitespace().nth(1).context("/proc/self/statm has no second number")?.parse()?;
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.context("no page size")?;
    Ok(pages * size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of Linux's change of the layout (59b209667a): 56, 56 and 64 bytes.
    #[test]
    fn linux_is_as_it_says() {
        for labels in [1, 2] {
            let of = |via| Case { via, next_hops: 1, labels }.linux();
            assert_eq!([Kind::Ethernet, Kind::Ipv4, Kind::Ipv6].map(of), [56, 56, 64]);
        }
    }
}
