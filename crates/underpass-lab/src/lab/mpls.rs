//! Label-switched paths of one and two labels, and of one and two next hops, beside plain forwarding through the
//! same routers. The network is that of the Linux commit 59b209667a13 ("net: mpls: change mpls_route layout").
//!
//! ```text
//! host ── ns0 ── ns1 ──┬── ns2 ──┬── ns3 ── ns4
//!                      └── ns2b ─┘
//! ```
//! A host before ns0 asks, so that ns0 is a router in either case: it pushes a label, ns1 swaps it for one or
//! two, ns2 takes the first off and ns3 the second. With one label ns3 is the destination, else ns4. Only the
//! network for two next hops has an ns2b. Answers are forwarded plainly. No router but ns0 has a route to the
//! addresses that labels lead to.

mod transactions;

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use ipnet::IpNet;
use serde::Serialize;
use underpass_daemon::{
    live::priority,
    testbed::{Namespace, Router, join},
};

use transactions::{Client, Figures, Server};
use underpass_daemon::output::print;
use underpass_daemon::seconds::within;

/// How long until a network has found its neighbours.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is measured, and how it is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Rounds per case; the cases alternate
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seconds per measurement; plain forwarding and labels alternate within it
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = within(1, 10_000))]
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ip4,
    Ip6,
}

/// A case and its figures.
#[derive(Debug, Serialize)]
struct Record {
    family: &'static str,
    labels: u8,
    nexthops: u8,
    /// How many routers a request passes, with labels or without.
    routers: u8,
    plain: Figures,
    mpls: Figures,
    /// Transactions a second with labels to those without.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: u16,
    milliseconds: u128,
    cases: Vec<Record>,
}

/// A network with its routers.
struct Network {
    host: Namespace,
    /// ns0, ns1, ns2, ns3, ns4; ns2b.
    nodes: Vec<Namespace>,
    routers: Vec<Router>,
    nexthops: u8,
}

/// Two clients for a case, and who answers them.
struct Pair {
    family: Family,
    labels: u8,
    nexthops: u8,
    plain: Client,
    mpls: Client,
    _servers: [Server; 2],
}

/// Measures all cases and prints what came of them.
///
/// # Errors
/// Something cannot be made; a packet is lost.
pub fn measure(program: &Path, args: &Args) -> anyhow::Result<()> {
    let mut networks = Vec::new();
    for nexthops in [1, 2] {
        eprintln!("{nexthops} next hops: routers start …");
        networks.push(Network::build(program, nexthops)?);
    }
    let mut pairs = Vec::new();
    for family in [Family::Ip4, Family::Ip6] {
        for network in &networks {
            for labels in [1, 2] {
                pairs.push(network.pair(family, labels)?);
            }
        }
    }
    eprintln!("{} rounds …", args.rounds);
    // As the workers do: what else the machine does is not what is measured.
    if let Err(error) = priority::go_first() {
        eprintln!("no priority over other processes: {error}");
    }
    let time = args.time;
    for _ in 0..args.rounds {
        for pair in &mut pairs {
            let end = Instant::now() + time;
            let mut turns = [&mut pair.plain, &mut pair.mpls];
            // In turns so short that what else the machine does concerns both.
            while Instant::now() < end {
                turns.rotate_left(1);
                turns.iter_mut().try_for_each(|client| client.transact())?;
            }
        }
    }
    let cases = pairs.into_iter().map(Pair::record).collect();
    for network in networks {
        network.stop()?;
    }
    let report = Report { rounds: args.rounds, milliseconds: args.time.as_millis(), cases };
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report)? };
    Ok(print(&text)?)
}

impl Pair {
    fn record(self) -> Record {
        let (plain, mpls) = (self.plain.figures(), self.mpls.figures());
        Record {
            family: if self.family == Family::Ip4 { "IPv4" } else { "IPv6" },
            labels: self.labels,
            nexthops: self.nexthops,
            routers: 2 + self.labels,
            plain,
            mpls,
            ratio: mpls.rate / plain.rate,
        }
    }
}

/// The addresses of a destination: ns3 or ns4; plain or by labels.
fn destination(family: Family, labels: u8, labelled: bool) -> IpAddr {
    let (node, kind) = (labels + 2, u8::from(labelled));
    match family {
        Family::Ip4 => Ipv4Addr::new(10, node, kind, 1).into(),
        Family::Ip6 => Ipv6Addr::new(0xfd00 + u16::from(node), kind.into(), 0, 0, 0, 0, 0, 1).into(),
    }
}

/// How a family is written in lines of `ip`.
struct Words {
    ip: &'static str,
    via: &'static str,
    length: u8,
    /// The first of the labels.
    label: u32,
}

impl Family {
    const fn words(self) -> Words {
        match self {
            Self::Ip4 => Words { ip: "ip", via: "inet", length: 24, label: 100 },
            Self::Ip6 => Words { ip: "ip -6", via: "inet6", length: 32, label: 500 },
        }
    }

    /// The address of an end of a link.
    fn end(self, link: u8, end: u8) -> IpAddr {
        match self {
            Self::Ip4 => Ipv4Addr::new(10, 1, link, end).into(),
            Self::Ip6 => Ipv6Addr::new(0xfd01, link.into(), 0, 0, 0, 0, 0, end.into()).into(),
        }
    }
}

/// A link: its number in addresses, and its ends, the node's and the device's names.
type Link = (u8, [(&'static str, &'static str); 2]);

const ONE_WAY: [Link; 5] = [
    (0, [("host", "eth0"), ("ns0", "left")]),
    (1, [("ns0", "right"), ("ns1", "left")]),
    (2, [("ns1", "right"), ("ns2", "left")]),
    (3, [("ns2", "right"), ("ns3", "left")]),
    (4, [("ns3", "right"), ("ns4", "left")]),
];
const OTHER_WAY: [Link; 2] =
    [(12, [("ns1", "right-b"), ("ns2b", "left")]), (13, [("ns2b", "right"), ("ns3", "left-b")])];

impl Network {
    fn build(program: &Path, nexthops: u8) -> anyhow::Result<Self> {
        let two = nexthops == 2;
        let mut names = vec!["ns0", "ns1", "ns2", "ns3", "ns4"];
        names.extend(two.then_some("ns2b"));
        let nodes = names.iter().map(|name| Namespace::new(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut network = Self { host: Namespace::new("host")?, nodes, routers: Vec::new(), nexthops };
        let links = ONE_WAY.iter().chain(OTHER_WAY.iter().filter(|_| two));
        for (link, ends) in links {
            let [(one, first), (other, second)] = *ends;
            join(network.node(one)?, first, network.node(other)?, second)?;
            for (end, (node, device)) in (1..).zip(*ends) {
                let mut lines = format!("ip link set {device} up\n");
                for family in [Family::Ip4, Family::Ip6] {
                    let (words, address) = (family.words(), family.end(*link, end));
                    let length = if family == Family::Ip4 { words.length } else { 64 };
                    lines += &format!("{} addr add {address}/{length} dev {device}\n", words.ip);
                }
                network.node(node)?.run(&lines)?;
            }
        }
        for node in &network.nodes {
            node.run("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done")?;
        }
        network.host.run(&routes("host", nexthops))?;
        network.node("ns4")?.run(&routes("ns4", nexthops))?;
        for name in names.into_iter().filter(|name| *name != "ns4") {
            let router = Router::start(program, network.node(name)?, &["--workers", "1"])?;
            // Traced, so that an error tells the line.
            router.run(&format!("set -x\n{}", routes(name, nexthops))).with_context(|| name.to_owned())?;
            network.routers.push(router);
        }
        Ok(network)
    }

    fn node(&self, name: &str) -> anyhow::Result<&Namespace> {
        let mut all = self.nodes.iter().chain([&self.host]);
        all.find(|namespace| namespace.name() == name).context("no such namespace")
    }
    /// Clients for destinations with and without labels.
    fn pair(&self, family: Family, labels: u8) -> anyhow::Result<Pair> {
        let node = self.node(if labels == 1 { "ns3" } else { "ns4" })?;
        let [plain, mpls] = [false, true].map(|labelled| destination(family, labels, labelled));
        let servers = [Server::start(node, plain)?, Server::start(node, mpls)?];
        let [plain, mpls] = &servers;
        Ok(Pair {
            family,
            labels,
            nexthops: self.nexthops,
            plain: Client::new(&self.host, plain, PATIENCE)?,
            mpls: Client::new(&self.host, mpls, PATIENCE)?,
            _servers: servers,
        })
    }

    /// Ends the routers, once every way has been seen to be used.
    fn stop(self) -> anyhow::Result<()> {
        for node in self.nodes.iter().filter(|node| node.name().starts_with("ns2")) {
            ensure!(node.received("left")? > 2 * FEW, "{} has seen no packets", node.name());
        }
        self.routers.into_iter().try_for_each(Router::stop)
    }
}

/// Addresses and routes of a node, of both families.
fn routes(node: &str, nexthops: u8) -> String {
    let mut lines = String::new();
    if node != "host" && node != "ns4" {
        lines += "sysctl -qw net.mpls.platform_labels=1000\n";
    }
    let two = nexthops == 2;
    for (_, device) in LABELLED.iter().filter(|(name, device)| *name == node && (two || *device != "left-b"))
    {
        lines += &format!("sysctl -qw net.mpls.conf.{device}.input=1\n");
    }
    for family in [Family::Ip4, Family::Ip6] {
        lines += &routes_of(node, two, family);
    }
    lines
}

/// The devices by which labels come.
const LABELLED: [(&str, &str); 5] =
    [("ns1", "left"), ("ns2", "left"), ("ns2b", "left"), ("ns3", "left"), ("ns3", "left-b")];

fn routes_of(node: &str, two: bool, family: Family) -> String {
    let Words { ip, via, length, label, .. } = family.words();
    let (towards, back) = (|link| family.end(link, 2), |link| family.end(link, 1));
    let net = |address| IpNet::new(address, length).map(|net| net.trunc().to_string()).unwrap_or_default();
    let prefix = |labels, labelled| net(destination(family, labels, labelled));
    let (host, plain) = (net(family.end(0, 1)), [prefix(1, false), prefix(2, false)]);
    let plainly =
        |ways: &str| format!("{ip} route add {} {ways}\n{ip} route add {} {ways}\n", plain[0], plain[1]);
    let own = |labels| {
        let addresses = [false, true].map(|labelled| destination(family, labels, labelled));
        let length = if family == Family::Ip4 { 32 } else { 128 };
        addresses.map(|address| format!("{ip} addr add {address}/{length} dev lo\n")).concat()
    };
    match node {
        "host" => format!("{ip} route add default via {}\n", towards(0)),
        "ns0" => [
            plainly(&format!("via {}", towards(1))),
            format!(
                "{ip} route add {} encap mpls {label} via {via} {} dev right\n",
                prefix(1, true),
                towards(1)
            ),
            format!(
                "{ip} route add {} encap mpls {} via {via} {} dev right\n",
                prefix(2, true),
                label + 1,
                towards(1)
            ),
        ]
        .concat(),
        "ns1" => {
            let way =
                |labels: &str, link, device| format!("{labels} via {via} {} dev {device}", towards(link));
            let ways = |labels: &str| match two {
                true => format!("nexthop {} nexthop {}", way(labels, 2, "right"), way(labels, 12, "right-b")),
                false => way(labels, 2, "right"),
            };
            let hops = match two {
                true => {
                    format!("nexthop via {} dev right nexthop via {} dev right-b", towards(2), towards(12))
                }
                false => format!("via {}", towards(2)),
            };
            [
                plainly(&hops),
                format!("ip -f mpls route add {label} {}\n", ways(&format!("as {}", label + 10))),
                format!(
                    "ip -f mpls route add {} {}\n",
                    label + 1,
                    ways(&format!("as {}/{}", label + 11, label + 12))
                ),
                format!("{ip} route add {host} via {}\n", back(1)),
            ]
            .concat()
        }
        "ns2" | "ns2b" => {
            let link = if node == "ns2" { 3 } else { 13 };
            let pop = |label| format!("ip -f mpls route add {label} via {via} {} dev right\n", towards(link));
            [
                plainly(&format!("via {}", towards(link))),
                pop(label + 10),
                pop(label + 11),
                format!("{ip} route add {host} via {}\n", back(link - 1)),
            ]
            .concat()
        }
        "ns3" => [
            own(1),
            format!("{ip} route add {} via {}\n", plain[1], towards(4)),
            format!("ip -f mpls route add {} via {via} {} dev right\n", label + 12, towards(4)),
            format!("{ip} route add {host} via {}\n", back(3)),
        ]
        .concat(),
        _ => format!("{}{ip} route add {host} via {}\n", own(2), back(4)),
    }
}

/// Packets that neighbours and routers send of themselves.
const FEW: u64 = 20;

/// As the commit has it.
fn table(report: &Report) -> Result<String, std::fmt::Error> {
    let mut table = String::new();
    writeln!(
        table,
        "UDP requests and responses of one byte: transactions a second, and their latency in µs at 50/90/99 %;\n\
         mean of {} rounds of {} ms; plain: the same routers, without labels",
        report.rounds, report.milliseconds
    )?;
    for family in ["IPv4", "IPv6"] {
        writeln!(
            table,
            "\n{:<24} {:>8} {:>8} {:>6} {:>18} {:>18}",
            format!("{family}:"),
            "plain",
            "MPLS",
            "ratio",
            "plain",
            "MPLS"
        )?;
        for case in report.cases.iter().filter(|case| case.family == family) {
            let latency = |figures: &Figures| figures.latency.map(|value| format!("{value:.0}")).join("/");
            writeln!(
                table,
                "   {} label, {} nexthop     {:>8.0} {:>8.0} {:>6.2} {:>18} {:>18}",
                case.labels,
                case.nexthops,
                case.plain.rate,
                case.mpls.rate,
                case.ratio,
                latency(&case.plain),
                latency(&case.mpls)
            )?;
        }
    }
    Ok(table)
}
