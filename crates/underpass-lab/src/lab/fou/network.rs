//! Two hosts, a router before each, and nine tunnels between the routers.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use anyhow::Context;
use underpass_daemon::testbed::{Namespace, Router, join};
use underpass_port::without_offloads;

use super::super::stream::Ends;

/// What carries the hosts' packets between the routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gre,
    Ipip,
    Sit,
}

/// Foo-over-UDP around it, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    Checksum,
    NoChecksum,
    NoFou,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub kind: Kind,
    pub encapsulation: Encapsulation,
}

/// In the order of the document's tables.
pub const TUNNELS: [Tunnel; 9] = {
    const fn of(kind: Kind, encapsulation: Encapsulation) -> Tunnel {
        Tunnel { kind, encapsulation }
    }
    use Encapsulation::{Checksum, NoChecksum, NoFou};
    use Kind::{Gre, Ipip, Sit};
    [
        of(Gre, Checksum),
        of(Gre, NoChecksum),
        of(Gre, NoFou),
        of(Ipip, Checksum),
        of(Ipip, NoChecksum),
        of(Ipip, NoFou),
        of(Sit, Checksum),
        of(Sit, NoChecksum),
        of(Sit, NoFou),
    ]
};

/// The number of what the routers forward without a tunnel, in addresses; the first tunnel has the next.
const PLAIN: u16 = 0;

impl Tunnel {
    /// In addresses and in the device's name.
    fn number(self) -> u16 {
        (1..).zip(TUNNELS).find(|(_, tunnel)| *tunnel == self).map_or(PLAIN, |(number, _)| number)
    }

    pub fn device(self) -> String {
        format!("tun{}", self.number())
    }
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Gre, Self::Ipip, Self::Sit];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Gre => "GRE",
            Self::Ipip => "IPIP",
            Self::Sit => "SIT",
        }
    }

    /// What the hosts speak.
    pub const fn is_ipv6(self) -> bool {
        matches!(self, Self::Sit)
    }

    /// As `ip link` calls it.
    const fn word(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Sit => "sit",
        }
    }

    /// Its FOU port, and its IP protocol.
    const fn port(self) -> (u16, u8) {
        match self {
            Self::Ipip => (5555, 4),
            Self::Sit => (5556, 41),
            Self::Gre => (5557, 47),
        }
    }
}

impl Encapsulation {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Checksum => "FOU, UDP checksum enabled",
            Self::NoChecksum => "FOU, UDP checksum disabled",
            Self::NoFou => "no FOU",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Checksum => "fou-csum",
            Self::NoChecksum => "fou",
            Self::NoFou => "none",
        }
    }
}

/// h1 ── near r1 far ── far r2 near ── h2
pub struct Network {
    hosts: [Namespace; 2],
    edges: [Namespace; 2],
    routers: [Router; 2],
}

impl Network {
    /// With its tunnels. `cut`: no device keeps TCP segments together, the hosts' or the routers'.
    pub fn build(program: &Path, cut: bool) -> anyhow::Result<Self> {
        let [h1, h2, r1, r2] = ["h1", "h2", "r1", "r2"].map(Namespace::new);
        let (hosts, edges) = ([h1?, h2?], [r1?, r2?]);
        let [first, second] = &edges;
        join(first, "far", second, "far")?;
        for (side, (host, edge)) in (1..).zip(hosts.iter().zip(&edges)) {
            join(host, "eth0", edge, "near")?;
            host.run(&host_lines(side)).with_context(|| host.name().to_owned())?;
            edge.run(&edge_lines(side)).with_context(|| edge.name().to_owned())?;
        }
        let routers = [first, second].map(|edge| Router::start(program, edge, &["--workers", "1"]));
        let [first, second] = routers;
        let network = Self { hosts, edges, routers: [first?, second?] };
        if cut {
            for (namespaces, devices) in
                [(&network.hosts, ["eth0"].as_slice()), (&network.edges, ["near", "far"].as_slice())]
            {
                for namespace in namespaces {
                    for device in devices {
                        namespace
                            .enter(|| without_offloads(device))?
                            .with_context(|| format!("offloads of {device}"))?;
                    }
                }
            }
        }
        for (side, router) in (1..).zip(&network.routers) {
            // Traced, so that an error tells the line.
            router.run(&format!("set -x\n{}", tunnel_lines(side))).with_context(|| format!("r{side}"))?;
        }
        Ok(network)
    }

    /// The way through a tunnel.
    pub fn through(&self, tunnel: Tunnel) -> Ends {
        self.ends(tunnel.number(), tunnel.kind.is_ipv6())
    }

    /// The way that has no tunnel.
    pub fn plainly(&self, ipv6: bool) -> Ends {
        self.ends(PLAIN, ipv6)
    }

    fn ends(&self, number: u16, ipv6: bool) -> Ends {
        let [from, to] = self.hosts.clone();
        Ends { from, to, address: host_address(2, number, ipv6) }
    }

    /// The receiver's.
    pub fn router(&self) -> &Router {
        &self.routers[1]
    }

    /// How many bytes the routers have counted on a tunnel: what r1 sent and what r2 received, then the other way.
    pub fn counted(&self, tunnel: Tunnel) -> anyhow::Result<[u64; 4]> {
        let count = |router: &Router| -> anyhow::Result<[u64; 2]> {
            let text = router.run(&format!("ip -json -s link show dev {}", tunnel.device()))?;
            let links: serde_json::Value = serde_json::from_str(&text)?;
            let bytes = |way: &str| {
                let found =
                    links.get(0).and_then(|link| link.get("stats64")?.get(way)?.get("bytes")?.as_u64());
                found.with_context(|| format!("no counters in {text}"))
            };
            Ok([bytes("tx")?, bytes("rx")?])
        };
        let [first, second] = &self.routers;
        let ([sent, received], [back, taken]) = (count(first)?, count(second)?);
        Ok([sent, taken, back, received])
    }

    /// What the routers said.
    pub fn log(&self) -> String {
        let said = |router: &Router| router.log().unwrap_or_default();
        let [first, second] = &self.routers;
        format!("r1 said:\n{}\nr2 said:\n{}", said(first), said(second))
    }

    /// Ends the routers.
    pub fn stop(self) -> anyhow::Result<()> {
        self.routers.into_iter().try_for_each(Router::stop)
    }
}

/// Two hosts with nothing but a pair of devices between them.
pub fn direct() -> anyhow::Result<Ends> {
    let (from, to) = (Namespace::new("d1")?, Namespace::new("d2")?);
    join(&from, "eth0", &to, "eth0")?;
    for (side, namespace) in [(1, &from), (2, &to)] {
        namespace.run(&format!("ip link set eth0 up; ip addr add 10.3.0.{side}/24 dev eth0"))?;
    }
    Ok(Ends { from, to, address: Ipv4Addr::new(10, 3, 0, 2).into() })
}

/// A host has an address for each tunnel, so that its peer's answers come back by the same.
fn host_address(side: u8, number: u16, ipv6: bool) -> IpAddr {
    match ipv6 {
        true => Ipv6Addr::new(0xfd00 + u16::from(side), 0, 0, 0, 0, 0, number, 2).into(),
        false => Ipv4Addr::new(10, side, number as u8, 2).into(),
    }
}

/// All numbers with their families.
fn numbers() -> impl Iterator<Item = (u16, bool)> {
    let tunnels = TUNNELS.into_iter().map(|tunnel| (tunnel.number(), tunnel.kind.is_ipv6()));
    [(PLAIN, false), (PLAIN, true)].into_iter().chain(tunnels)
}

/// `ip` or `ip -6`, and the prefix of a side's addresses of a number.
fn prefix(side: u8, number: u16, ipv6: bool) -> (&'static str, String) {
    match ipv6 {
        true => ("ip -6", format!("fd0{side}::{number:x}:0/112")),
        false => ("ip", format!("10.{side}.{number}.0/24")),
    }
}

fn host_lines(side: u8) -> String {
    let mut lines = "ip link set eth0 up\n".to_owned();
    for (number, ipv6) in numbers() {
        let own = host_address(side, number, ipv6);
        let (ip, peers) = prefix(3 - side, number, ipv6);
        // Without `nodad` the kernel does not take it for its own at once.
        let (length, gateway) =
            if ipv6 { ("64 nodad", format!("fd0{side}::1")) } else { ("16", format!("10.{side}.0.1")) };
        lines += &format!(
            "{ip} addr add {own}/{length} dev eth0\n{ip} route add {peers} via {gateway} src {own}\n"
        );
    }
    lines
}

fn edge_lines(side: u8) -> String {
    let underlay = numbers().map(|(number, ipv6)| {
        let own = underlay(number, ipv6, local(side));
        format!("ip addr add {own}/{} dev far\n", if own.is_ipv6() { 64 } else { 24 })
    });
    format!(
        "for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
         ip link set near up; ip link set far up
         ip addr add 10.{side}.0.1/16 dev near; ip addr add fd0{side}::1/64 dev near\n{}",
        underlay.collect::<String>()
    )
}

/// As in the document, r1 is 2 and r2 is 1.
const fn local(side: u8) -> u8 {
    3 - side
}

/// The address of an end of a tunnel, or of the way without one, between the routers.
fn underlay(number: u16, ipv6: bool, end: u8) -> IpAddr {
    match ipv6 && number == PLAIN {
        true => Ipv6Addr::new(0xfd10, 0, 0, 0, 0, 0, 0, end.into()).into(),
        false => Ipv4Addr::new(192, 168, number as u8, end).into(),
    }
}

/// The document's lines, and routes.
fn tunnel_lines(side: u8) -> String {
    let other = 3 - side;
    let mut lines = String::new();
    for kind in Kind::ALL {
        let (port, protocol) = kind.port();
        lines += &format!("ip fou add port {port} ipproto {protocol}\n");
    }
    for ipv6 in [false, true] {
        let (ip, peers) = prefix(other, PLAIN, ipv6);
        lines += &format!("{ip} route add {peers} via {}\n", underlay(PLAIN, ipv6, local(other)));
    }
    for tunnel in TUNNELS {
        let (number, ipv6, device) = (tunnel.number(), tunnel.kind.is_ipv6(), tunnel.device());
        let (kind, (port, _)) = (tunnel.kind.word(), tunnel.kind.port());
        let [remote, local] = [other, side].map(|side| underlay(number, ipv6, local(side)));
        let fou = format!(" encap fou encap-sport auto encap-dport {port}");
        let (fou, checksum) = match tunnel.encapsulation {
            Encapsulation::Checksum => (fou.as_str(), " encap-csum"),
            Encapsulation::NoChecksum => (fou.as_str(), ""),
            Encapsulation::NoFou => ("", ""),
        };
        let (ip, peers) = prefix(other, number, ipv6);
        lines += &format!(
            "ip link add name {device} type {kind} remote {remote} local {local} ttl 225{fou}{checksum}\n\
             ip link set {device} up\n\
             {ip} route add {peers} dev {device}\n"
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of the document is one of r1's, but for the number of the network.
    #[test]
    fn the_lines_of_the_document() {
        let lines = tunnel_lines(1);
        for line in [
            "ip fou add port 5555 ipproto 4",
            "ip link add name tun5 type ipip remote 192.168.5.1 local 192.168.5.2 ttl 225 \
             encap fou encap-sport auto encap-dport 5555",
        ] {
            assert!(lines.lines().any(|found| found == line), "{line} in\n{lines}");
        }
    }
}
