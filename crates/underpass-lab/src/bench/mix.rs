//! Mixed traffic: each packet of a burst goes through another of N SIDs, policies, labels or tunnels, drawn at random.
//!
//! The packets leave to 16 neighbours. With N = 1 a scenario does what the one of the same behaviour does alone.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::routes::{NEIGHBOURS, gateway, neighbour_mac, neighbours};
use super::scenario::{
    BASE, CHECKED, CLASS, Flow, HOPS, Load, OUTER_HOPS, Order, PORTS, SENDER, SOURCE, Scenario, VRF, flows,
    incoming,
};
use super::tunnel::{AWAY, TTL, remote};
use super::wire::{self, Ip4, Ip6};
use super::{mpls, tunnels};
use crate::random::Random;

/// How many there are to choose from.
const COUNTS: [u16; 5] = [1, 2, 4, 16, 1000];

/// What packets choose from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// SIDs of End, and the next segments.
    End,
    /// SIDs of End.DT6, and the prefixes of the packets inside.
    Dt6,
    /// SIDs of End, End.X, End.DT6, End.DX4 and End.DX6 in turn.
    Sid,
    /// Prefixes, each with an H.Encaps policy of two segments.
    Policy,
    /// Labels, each swapped for another.
    Label,
    /// Prefixes, each into an IPIP tunnel.
    Tunnel,
    /// VLANs that packets come from, and prefixes, each by a VLAN of its own.
    Vlan,
}

/// The behaviours of [`Kind::Sid`], in turn.
const BEHAVIOURS: u16 = 5;

/// What a packet was drawn to go through, and to.
#[derive(Clone, Copy)]
struct Drawn {
    sid: u16,
    to: u16,
}

/// The scenarios of this file.
pub fn scenarios() -> Vec<Scenario> {
    let kinds = [
        ("end", Kind::End),
        ("dt6", Kind::Dt6),
        ("sid", Kind::Sid),
        ("policy", Kind::Policy),
        ("label", Kind::Label),
        ("tunnel", Kind::Tunnel),
        ("vlan", Kind::Vlan),
    ];
    let all = kinds.into_iter().flat_map(|kind| COUNTS.map(|count| (kind, count)));
    all.map(|((name, kind), count)| Scenario {
        name: format!("mix-{name}-{count}"),
        vpp: kind.vpp(count),
        config: kind.config(),
        mass: Some(format!("{count} {}", kind.what())),
        load: Box::new(move || kind.load(count)),
    })
    .collect()
}

fn sid(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfc00, 1, 0, n, 0, 0, 0, 1)
}

/// A segment behind the router, of which each `n` has a route of its own.
fn next(n: u16, number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfc00, 2, n, 0, 0, 0, 0, number)
}

/// A prefix of 64 bits that packets go to.
fn prefix(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 1, n, 0, 0, 0, 0)
}

fn label(n: u16) -> u32 {
    1000 + u32::from(n)
}

fn vlan(n: u16) -> u16 {
    n + 1
}

/// The address of a neighbour, as `ip` reads it.
fn mac(neighbour: u8) -> String {
    neighbour_mac(neighbour).map(|byte| format!("{byte:02x}")).join(":")
}

/// The neighbour of a number.
fn neighbour(n: u16) -> u8 {
    (n % u16::from(NEIGHBOURS)) as u8
}

/// As a packet leaves to the neighbour of a number.
fn leaving(n: u16, packet: &[u8]) -> Vec<u8> {
    wire::ethernet(neighbour_mac(neighbour(n)), PORTS[1], packet)
}

/// The flow to a prefix.
fn to(n: u16, flow: &Flow) -> Flow {
    let host = flow.destination6.to_bits() & 0xffff;
    Flow { destination6: Ipv6Addr::from_bits(prefix(n).to_bits() | host), ..*flow }
}

impl Kind {
    fn config(self) -> String {
        let known = neighbours();
        match self {
            Self::Dt6 => format!("{VRF}{known}"),
            Self::Policy => format!("{BASE}{known}ip sr tunsrc set {SOURCE}\n"),
            Self::Label => format!("{BASE}{known}{}{}", mpls::LABELS, mpls::INPUT),
            Self::Tunnel => format!("{BASE}{}", super::tunnel::UNDERLAY),
            Self::End | Self::Sid | Self::Vlan => format!("{BASE}{known}"),
        }
    }

    /// What VPP takes, where that is known: of SIDs, policies, labels and tunnels in these numbers.
    fn vpp(self, count: u16) -> Option<u32> {
        let [one, sixteen, thousand] = match self {
            Self::End => [161, 182, 237],
            Self::Dt6 => [171, 175, 196],
            Self::Policy => [211, 208, 274],
            Self::Label => [87, 97, 146],
            Self::Tunnel => [107, 106, 115],
            Self::Sid | Self::Vlan => return None,
        };
        match count {
            1 => Some(one),
            16 => Some(sixteen),
            1000 => Some(thousand),
            _ => None,
        }
    }

    /// What there is so many of.
    fn what(self) -> &'static str {
        match self {
            Self::End => "SIDs of End and as many next segments, each with a route",
            Self::Dt6 => "SIDs of End.DT6 and as many prefixes of 64 bits",
            Self::Sid => "SIDs of End, End.X, End.DT6, End.DX4 and End.DX6 in turn",
            Self::Policy => "prefixes of 64 bits, each with a list of two segments",
            Self::Label => "labels, each swapped for another",
            Self::Tunnel => "IPIP tunnels, each with a /24",
            Self::Vlan => "VLANs of either port, and as many /24, each by one of these",
        }
    }

    /// The lines for `ip`, after its family.
    fn lines(self, count: u16) -> Vec<(&'static str, String)> {
        let mut lines = String::new();
        for n in 0..count {
            let (via4, via6) = (gateway(neighbour(n), true), gateway(neighbour(n), false));
            let local = |action: &str| format!("route add {}/128 encap seg6local action {action}", sid(n));
            let segment = format!("route add {}/48 via {via6} dev p1", next(n, 0));
            let inside = format!("route add {}/64 via {via6} dev p1", prefix(n));
            // Writing to a string cannot fail.
            let _ = match self {
                Self::End => writeln!(lines, "{} count dev p0\n{segment}", local("End")),
                Self::Dt6 => {
                    writeln!(lines, "{} count dev vrf10\n{inside} table 10", local("End.DT6 vrftable 10"))
                }
                Self::Sid => {
                    let action = match n % BEHAVIOURS {
                        0 => "End",
                        1 => &format!("End.X nh6 {via6}"),
                        2 => "End.DT6 table 254",
                        3 => &format!("End.DX4 nh4 {via4}"),
                        _ => &format!("End.DX6 nh6 {via6}"),
                    };
                    writeln!(lines, "{} count dev p0\n{segment}\n{inside}", local(action))
                }
                Self::Policy => {
                    let list = format!("{},{}", next(n, 1), next(n, 2));
                    writeln!(
                        lines,
                        "{segment}\nroute add {}/64 encap seg6 mode encap segs {list} dev p1",
                        prefix(n)
                    )
                }
                Self::Label => {
                    writeln!(lines, "route add {} as {} via inet {via4} dev p1", label(n), 2 * label(n))
                }
                Self::Vlan => {
                    let (mac, network) = (mac(neighbour(n)), tunnels::prefix(n));
                    writeln!(
                        lines,
                        "link add link p0 name i{n} type vlan id {id}\nlink set i{n} up\n\
                         link add link p1 name o{n} type vlan id {id}\nlink set o{n} up\n\
                         neigh add {via4} lladdr {mac} dev o{n} nud permanent\n\
                         route add {network}/24 via {via4} dev o{n} onlink",
                        id = vlan(n)
                    )
                }
                Self::Tunnel => {
                    let (local, remote, network) = (AWAY[0], remote(n), tunnels::prefix(n));
                    writeln!(
                        lines,
                        "link add t{n} type ipip local {local} remote {remote} ttl {TTL}\nlink set t{n} up\n\
                         route add {network}/24 dev t{n}"
                    )
                }
            };
        }
        let tool = match self {
            Self::Label => "ip -f mpls",
            Self::Tunnel | Self::Vlan => "ip",
            _ => "ip -6",
        };
        vec![(tool, lines)]
    }

    fn load(self, count: u16) -> Load {
        let mut random = Random(9);
        let mut one = || random.below(count.into()) as u16;
        let pairs = flows().into_iter().zip(1..).map(|(flow, number)| {
            let drawn = Drawn { sid: one(), to: one() };
            self.pair(drawn, &flow, number)
        });
        let (templates, mut expected): (Vec<_>, Vec<_>) = pairs.unzip();
        expected.truncate(CHECKED);
        let templates = templates.into_iter().map(Vec::into_boxed_slice).collect();
        Load { batches: self.lines(count), order: Order::InBurst, templates, expected, ..Load::default() }
    }

    /// The `number`-th packet before the router and after it.
    fn pair(self, drawn: Drawn, flow: &Flow, number: u16) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::End => advanced(drawn, drawn.to, flow),
            Self::Dt6 => decapsulated6(drawn, drawn.to, flow),
            Self::Sid => match drawn.sid % BEHAVIOURS {
                0 => advanced(drawn, drawn.to, flow),
                1 => advanced(drawn, drawn.sid, flow),
                2 => decapsulated6(drawn, drawn.to, flow),
                3 => {
                    let packet =
                        wire::ipv6(flow.outer(sid(drawn.sid), OUTER_HOPS), wire::IPV4, &flow.packet4(HOPS));
                    (incoming(&packet), leaving(drawn.sid, &flow.packet4(HOPS - 1)))
                }
                _ => decapsulated6(drawn, drawn.sid, flow),
            },
            Self::Policy => {
                let flow = to(drawn.to, flow);
                let list = [next(drawn.to, 1), next(drawn.to, 2)];
                let routed = wire::srh(&list, 1, wire::IPV6, &flow.packet6(HOPS));
                let outer = Ip6 {
                    source: SOURCE,
                    destination: list[0],
                    class: CLASS,
                    label: flow.label,
                    hop_limit: HOPS - 1,
                };
                let after = leaving(drawn.to, &wire::ipv6(outer, wire::ROUTING, &routed));
                (incoming(&flow.packet6(HOPS)), after)
            }
            Self::Label => {
                let came = mpls::labelled(&[label(drawn.to)], &flow.packet4(HOPS));
                let packet = wire::mpls(&[2 * label(drawn.to)], HOPS - 1, &flow.packet4(HOPS));
                let mac = neighbour_mac(neighbour(drawn.to));
                (came, wire::frame(mac, PORTS[1], [0x88, 0x47], &packet))
            }
            Self::Vlan => {
                let host = flow.destination4.to_bits() & 0xff;
                let destination4 = Ipv4Addr::from_bits(tunnels::prefix(drawn.to).to_bits() | host);
                let flow = Flow { destination4, ..*flow };
                let came = wire::tagged(PORTS[0], SENDER, vlan(drawn.sid), &flow.packet4(HOPS));
                let mac = neighbour_mac(neighbour(drawn.to));
                (came, wire::tagged(mac, PORTS[1], vlan(drawn.to), &flow.packet4(HOPS - 1)))
            }
            Self::Tunnel => {
                let host = flow.destination4.to_bits() & 0xff;
                let destination4 = Ipv4Addr::from_bits(tunnels::prefix(drawn.to).to_bits() | host);
                let flow = Flow { destination4, ..*flow };
                let (source, destination) = (AWAY[0], remote(drawn.to));
                let outer = Ip4 { source, destination, identification: number, ttl: TTL };
                let packet = wire::ipv4(outer, wire::IPV4, &flow.packet4(HOPS - 1));
                (incoming(&flow.packet4(HOPS)), leaving(0, &packet))
            }
        }
    }
}

/// Through a SID that makes the next segment the destination, and on to the neighbour of a number.
fn advanced(drawn: Drawn, leaves: u16, flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let path = [sid(drawn.sid), next(drawn.to, 1)];
    let packet = |left, destination, hops| {
        let routed = wire::srh(&path, left, wire::IPV6, &flow.packet6(HOPS));
        wire::ipv6(flow.outer(destination, hops), wire::ROUTING, &routed)
    };
    (incoming(&packet(1, path[0], OUTER_HOPS)), leaving(leaves, &packet(0, path[1], OUTER_HOPS - 1)))
}

/// Through a SID that takes out an IPv6 packet, and on to the neighbour of a number.
fn decapsulated6(drawn: Drawn, leaves: u16, flow: &Flow) -> (Vec<u8>, Vec<u8>) {
    let flow = to(drawn.to, flow);
    let packet = wire::ipv6(flow.outer(sid(drawn.sid), OUTER_HOPS), wire::IPV6, &flow.packet6(HOPS));
    (incoming(&packet), leaving(leaves, &flow.packet6(HOPS - 1)))
}
