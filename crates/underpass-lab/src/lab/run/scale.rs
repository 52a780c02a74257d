//! `underpass lab scale`: a network of many routers, with FRR's L3VPN over SRv6 between all that have a host, and what it takes.
//!
//! ```text
//!      p1 ── p2 ── p3 ── … ── p1      a ring; p1 and p2 reflect BGP's routes
//!     ╱  ╲  ╱  ╲
//!   pe1  pe2 …                        each joined to two of the ring
//!    │    │
//!   h1   h2                           in VRF red
//! ```

use std::{
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use underpass_daemon::output::print;

use super::{Lab, Options, Topology, node::Node, show_with};

/// How long BGP may take until every PE has every prefix.
const PATIENCE: u32 = 900;

/// A network of a number of routers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  underpass lab scale                                  # 64 routers
  underpass lab scale --routers 6 --keep --web 9200    # a small one, with the page of the network
  underpass lab scale --routers 12 --print > my.yaml   # the file, for `underpass lab run`")]
pub struct Args {
    /// How many routers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u8).range(4..=200))]
    routers: u8,
    /// Print the file of the network, and build nothing
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    options: Options,
}

/// Builds it, checks it, tells what it takes, and removes it.
///
/// # Errors
/// There is no FRR; a check that does not hold.
pub fn run(program: &Path, args: &Args) -> anyhow::Result<()> {
    let text = file(args.routers);
    if args.print {
        return Ok(print(&text)?);
    }
    let topology = Topology::parse(&text, "lab scale", Path::new("."))?;
    let start = Instant::now();
    show_with(program, &topology, &args.options, |lab| tell(lab, start))
}

/// Routers of the ring, of so many.
fn ring(routers: u8) -> u8 {
    (routers / 8).max(2)
}

/// The file of the network.
fn file(routers: u8) -> String {
    let ring = ring(routers);
    let edges = routers - ring;
    // Writing to a String does not fail.
    let mut text = String::new();
    let _ = write!(
        text,
        "# SRv6 L3VPN by FRR: a ring of {ring} routers, {edges} PEs with a host each.\nname: scale\n\n\
         topology:\n  kinds:\n    router: {{run: [\"--workers\", \"1\"]}}\n  nodes:\n"
    );
    let mut links = Vec::new();
    for p in 1..=ring {
        let next = p % ring + 1;
        // Two have one link between them.
        if ring > 2 || p == 1 {
            links.push((format!("p{p}:p{next}"), format!("p{next}:p{p}")));
        }
    }
    for pe in 1..=edges {
        for p in [pe % ring + 1, (pe + 1) % ring + 1] {
            links.push((format!("pe{pe}:p{p}"), format!("p{p}:pe{pe}")));
        }
    }
    let devices = |node: &str| {
        let ends = links.iter().flat_map(|(one, other)| [one, other]).filter_map(|end| end.split_once(':'));
        let own = ends.filter(|(of, _)| *of == node).map(|(_, device)| device.to_owned());
        own.collect::<Vec<String>>()
    };
    let router = |name: &str, number: u8, exec: &[String], frr: &str| {
        let mut text = format!("    {name}:\n      kind: router\n      exec:\n");
        let up = devices(name).into_iter().map(|device| format!("ip link set {device} up"));
        let own = [format!("ip addr add fd00::{number:x}/128 dev lo")];
        for line in up.chain(own).chain(exec.iter().cloned()) {
            let _ = writeln!(text, "        - {line}");
        }
        let underlay = underlay(name, number, &devices(name));
        text += "      frr: |\n";
        (underlay + frr).lines().for_each(|line| {
            let _ = writeln!(text, "        {line}");
        });
        text
    };
    for p in 1..=ring {
        text += &router(&format!("p{p}"), p, &[], &if p <= 2 { reflector(p) } else { String::new() });
    }
    for pe in 1..=edges {
        let number = ring + pe;
        let exec = [
            "ip link add red up type vrf table 100".to_owned(),
            "ip link set cust master red".to_owned(),
            "ip link set cust up".to_owned(),
            format!("ip addr add 10.{pe}.0.1/24 dev cust"),
            format!("ip addr add fd10:0:0:{pe:x}::1/64 dev cust nodad"),
            format!("ip sr tunsrc set fd00::{number:x}"),
        ];
        text += &router(&format!("pe{pe}"), number, &exec, &edge(number));
        let _ = write!(
            text,
            "    h{pe}:\n      kind: host\n      exec:\n        - ip link set eth0 up\n        \
             - ip addr add 10.{pe}.0.2/24 dev eth0\n        - ip route add default via 10.{pe}.0.1\n        \
             - ip addr add fd10:0:0:{pe:x}::2/64 dev eth0 nodad\n        \
             - ip -6 route add default via fd10:0:0:{pe:x}::1\n"
        );
    }
    text += "  links:\n";
    for (one, other) in &links {
        let _ = writeln!(text, "    - {{endpoints: [\"{one}\", \"{other}\"], mtu: 1600}}");
    }
    for pe in 1..=edges {
        let _ = writeln!(text, "    - endpoints: [\"pe{pe}:cust\", \"h{pe}:eth0\"]");
    }
    text += &checks(edges);
    text
}

/// Every PE has every other's prefixes, and its host reaches all others.
fn checks(edges: u8) -> String {
    let others = edges - 1;
    let mut text = String::from("\nchecks:\n");
    for pe in 1..=edges {
        let name =
            if pe == 1 { "  - name: every PE has a route to every other's prefixes\n    " } else { "  - " };
        let _ = write!(
            text,
            "{name}node: pe{pe}\n    exec: echo $(ip route show table 100 | grep -c 'proto bgp') \
             $(ip -6 route show table 100 | grep -c 'proto bgp')\n    text: {others} {others}\n    \
             within: {PATIENCE}\n"
        );
    }
    let _ = write!(
        text,
        "  - name: the first and the last host reach all\n    node: h1\n    exec: &all |\n      \
         for n in $(seq {edges}); do\n        \
         ping -n -q -c 1 -W 2 10.$n.0.2 >/dev/null || {{ echo h$n does not answer; exit 1; }}\n        \
         ping -n -q -c 1 -W 2 fd10:0:0:$(printf %x $n)::2 >/dev/null || {{ echo h$n does not answer; exit 1; }}\n      \
         done\n      echo {edges} answer\n    text: {edges} answer\n    within: 120\n  \
         - {{node: h{edges}, exec: *all, text: {edges} answer, within: 120}}\n"
    );
    text
}

/// OSPF on all links but those to hosts; the locator is one of its external routes.
fn underlay(name: &str, number: u8, devices: &[String]) -> String {
    let mut text = format!("hostname {name}\nipv6 route fd01:0:0:{number:x}::/64 blackhole\n");
    for device in devices {
        let _ = write!(
            text,
            "interface {device}\n ipv6 ospf6 area 0\n ipv6 ospf6 network point-to-point\n \
             ipv6 ospf6 hello-interval 3\n ipv6 ospf6 dead-interval 60\nexit\n"
        );
    }
    let _ = write!(
        text,
        "interface lo\n ipv6 ospf6 area 0\nexit\nrouter ospf6\n ospf6 router-id 10.255.0.{number}\n \
         redistribute static\nexit\n"
    );
    text
}

/// A router that gives every PE's routes to all others.
fn reflector(number: u8) -> String {
    format!("router bgp 65000\n bgp router-id 10.255.0.{number}\n{REFLECTOR}")
}

/// The rest of its lines.
const REFLECTOR: &str = " no bgp default ipv4-unicast
 neighbor edges peer-group
 neighbor edges remote-as 65000
 neighbor edges update-source lo
 neighbor edges capability extended-nexthop
 bgp listen limit 250
 bgp listen range fd00::/64 peer-group edges
 address-family ipv4 vpn
  neighbor edges activate
  neighbor edges route-reflector-client
 exit-address-family
 address-family ipv6 vpn
  neighbor edges activate
  neighbor edges route-reflector-client
 exit-address-family
exit
";

/// BGP of a PE: an SID of its own for the VRF, in each family.
fn edge(number: u8) -> String {
    let mut text = format!(
        "segment-routing\n srv6\n  locators\n   locator main\n    prefix fd01:0:0:{number:x}::/64\n   exit\n  exit\n \
         exit\nexit\nrouter bgp 65000\n bgp router-id 10.255.0.{number}\n no bgp default ipv4-unicast\n"
    );
    for reflector in [1, 2] {
        let _ = write!(
            text,
            " neighbor fd00::{reflector} remote-as 65000\n neighbor fd00::{reflector} update-source lo\n \
             neighbor fd00::{reflector} timers connect 5\n neighbor fd00::{reflector} capability extended-nexthop\n"
        );
    }
    text += " segment-routing srv6\n  locator main\n exit\n";
    for family in ["ipv4", "ipv6"] {
        let _ = write!(
            text,
            " address-family {family} vpn\n  neighbor fd00::1 activate\n  neighbor fd00::2 activate\n \
             exit-address-family\n"
        );
    }
    let _ = write!(text, "exit\nrouter bgp 65000 vrf red\n bgp router-id 10.255.0.{number}\n");
    for family in ["ipv4", "ipv6"] {
        let _ = write!(
            text,
            " address-family {family} unicast\n  redistribute connected\n  sid vpn export auto\n  \
             rd vpn export {number}:100\n  rt vpn both 65000:100\n  export vpn\n  import vpn\n exit-address-family\n"
        );
    }
    text + "exit\n"
}

/// Memory of processes: what each has for itself, and its part of what it shares.
#[derive(Default)]
struct Memory {
    processes: usize,
    kilobytes: u64,
}

impl Memory {
    fn add(&mut self, process: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(process.join("smaps_rollup"))?;
        let proportional = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kilobytes = proportional.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        self.processes += 1;
        self.kilobytes += kilobytes.context("smaps_rollup has no Pss")?;
        Ok(())
    }

    fn words(&self) -> String {
        format!("{} MB in {} processes", self.kilobytes / 1024, self.processes)
    }
}

/// Tells the time and the memory that it took.
fn tell(lab: &Lab, start: Instant) -> anyhow::Result<()> {
    let mut text = String::from("\n== what it took ==\n");
    let mut before = Duration::ZERO;
    for (what, when) in &lab.phases {
        let at = when.duration_since(start);
        let _ = writeln!(text, "{what:36} {:7.1} s", at.saturating_sub(before).as_secs_f64());
        before = at;
    }
    let rest = start.elapsed().saturating_sub(before);
    let _ = writeln!(text, "{:36} {:7.1} s", "converged, all checks hold", rest.as_secs_f64());
    let (mut routers, mut frr) = (Memory::default(), Memory::default());
    let nodes: Vec<(u64, &Node)> = lab
        .nodes
        .iter()
        .filter(|node| node.router.is_some())
        .map(|node| Ok((fs::metadata(node.namespace.path())?.ino(), node)))
        .collect::<anyhow::Result<_>>()?;
    for entry in fs::read_dir("/proc")?.flatten() {
        let process = entry.path();
        // Processes that end meanwhile are none of them.
        let Ok(own) = fs::metadata(process.join("ns/net")) else { continue };
        let Some((_, node)) = nodes.iter().find(|(namespace, _)| *namespace == own.ino()) else { continue };
        let is_router = node.router.as_ref().is_some_and(|router| {
            process.file_name().and_then(|name| name.to_str()) == Some(&router.pid().to_string())
        });
        let _ = if is_router { routers.add(&process) } else { frr.add(&process) };
    }
    let count = nodes.len().max(1) as u64;
    let _ = writeln!(
        text,
        "memory of {count} routers: {}, {} MB each",
        routers.words(),
        routers.kilobytes / 1024 / count
    );
    let _ = writeln!(text, "memory of FRR: {}, {} MB a router", frr.words(), frr.kilobytes / 1024 / count);
    Ok(print(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_a_network() {
        for (routers, links) in [(4, 7), (6, 13), (64, 176)] {
            let text = file(routers);
            let topology = Topology::parse(&text, "x", Path::new(".")).unwrap();
            let with_frr = topology.nodes.iter().filter(|node| node.frr.is_some()).count();
            assert_eq!((with_frr, topology.links.len()), (routers.into(), links), "{text}");
            assert!(text.lines().all(|line| line.len() < 160), "{text}");
        }
    }
}
