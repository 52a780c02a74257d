//! Tables of the size of the Internet's: the routes, the netlink requests that add them, and packets
//! with destinations at random among them.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_netlink::mpls::{self, Via};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Reply, messages};
use underpass_port::memory::Patches;

use super::scenario::{CHECKED, Flow, HOPS, Load, NEIGHBOUR, PORTS, flows, incoming};
use super::wire::{self, Mac};
use crate::random::Random;

/// How many destinations are drawn, and sent to in turn: too many for any cache to remember the way.
pub const DESTINATIONS: usize = 1 << 20;

/// How many neighbours the routes lead to.
pub const NEIGHBOURS: u8 = 16;

/// A route to be added.
pub enum Route {
    /// To a neighbour, counted from 0.
    Plain { prefix: IpAddr, length: u8, neighbour: u8 },
    /// `encap seg6 mode encap`, with these segments in the order in which they are visited.
    Encapsulated { prefix: Ipv6Addr, length: u8, segments: Vec<Ipv6Addr> },
    /// A label, and where it leads.
    Label { label: u32, ways: Vec<LabelWay> },
    /// No route: the device of an `ipip` tunnel that is up, by the index that it is to have.
    Tunnel { index: u32, local: Ipv4Addr, remote: Ipv4Addr, ttl: u8 },
    /// No route: a `flower` filter at the ingress of a port, counted from 0, with `action ok` or a policer of its own.
    Filter { port: u32, destination: Ipv4Addr, length: u8, number: u32, police: bool },
    /// `encap seg6local action End count`.
    Sid(Ipv6Addr),
    /// No route: a station at a port, counted from 0, of a bridge.
    Station { port: u32, mac: Mac },
    /// By the device of this index.
    Device { prefix: Ipv4Addr, length: u8, index: u32 },
}

/// One way of a label.
pub struct LabelWay {
    /// What is put on in its place.
    pub labels: Vec<u32>,
    /// The neighbour.
    pub via: Via,
}

impl LabelWay {
    fn write(&self, request: &mut Reply<'_>) {
        request.attribute(RTA_NEWDST, &mpls::stack(&self.labels));
        request.attribute(RTA_VIA, &mpls::via(self.via));
    }
}

/// The Ethernet address of a neighbour, counted from 0.
pub fn neighbour_mac(neighbour: u8) -> Mac {
    let mut mac = NEIGHBOUR;
    mac[5] += neighbour;
    mac
}

/// The address of a neighbour, counted from 0.
pub fn gateway(neighbour: u8, v4: bool) -> IpAddr {
    if v4 {
        Ipv4Addr::new(10, 1, 0, 2 + neighbour).into()
    } else {
        Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2 + u16::from(neighbour)).into()
    }
}

/// The lines that make the neighbours known.
pub fn neighbours() -> String {
    let mut lines = String::new();
    for neighbour in 0..NEIGHBOURS {
        let mac = neighbour_mac(neighbour).map(|b| format!("{b:02x}")).join(":");
        for v4 in [true, false] {
            let address = gateway(neighbour, v4);
            let _ = writeln!(lines, "ip neigh replace {address} lladdr {mac} dev p1 nud permanent");
        }
    }
    lines
}

// include/uapi/linux: netlink.h, rtnetlink.h, lwtunnel.h, seg6.h, seg6_iptunnel.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWNEIGH: u16 = 28;
const NDA_LLADDR: u16 = 2;
const NTF_MASTER: u8 = 4;
const NUD_NOARP: u16 = 0x40;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_IPTUN_LOCAL: u16 = 2;
const IFLA_IPTUN_REMOTE: u16 = 3;
const IFLA_IPTUN_TTL: u16 = 4;
const IFLA_IPTUN_PMTUDISC: u16 = 10;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTA_NEWDST: u16 = 19;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
const LWTUNNEL_ENCAP_SEG6: u16 = 5;
const LWTUNNEL_ENCAP_SEG6_LOCAL: u16 = 7;
// include/uapi/linux/seg6_local.h.
const SEG6_LOCAL_ACTION: u16 = 1;
const SEG6_LOCAL_COUNTERS: u16 = 10;
const SEG6_LOCAL_ACTION_END: u32 = 1;
const SEG6_LOCAL_CNT_PACKETS: u16 = 2;
const SEG6_LOCAL_CNT_BYTES: u16 = 3;
const SEG6_LOCAL_CNT_ERRORS: u16 = 4;
// include/uapi/linux: pkt_sched.h, pkt_cls.h, tc_act/tc_gact.h.
const RTM_NEWTFILTER: u16 = 44;
const TC_H_INGRESS: u32 = 0xffff_fff2;
const PRIORITY: u32 = 1;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_FLOWER_ACT: u16 = 3;
const TCA_FLOWER_KEY_ETH_TYPE: u16 = 8;
const TCA_FLOWER_KEY_IPV4_DST: u16 = 12;
const TCA_FLOWER_KEY_IPV4_DST_MASK: u16 = 13;
const TCA_FLOWER_FLAGS: u16 = 22;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_GACT_PARMS: u16 = 2;
const TCA_POLICE_TBF: u16 = 1;
const TCA_POLICE_RATE: u16 = 2;
const TCA_POLICE_RATE64: u16 = 8;
const TC_ACT_SHOT: u32 = 2;
const SEG6_IPTUNNEL_SRH: u16 = 1;
const SEG6_IPTUN_MODE_ENCAP: u32 = 1;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;

/// Longest datagram of requests, in bytes.
const BATCH: usize = 64 * 1024;

/// Longer than any request, in bytes.
const LONGEST: usize = 2048;

/// The requests that add the routes by the link of this index, many to a datagram, each acknowledged.
///
/// # Errors
/// A request is too long for netlink.
pub fn requests(routes: &[Route], link: u32) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for (index, route) in routes.iter().enumerate() {
        if datagrams.last().is_none_or(|datagram| datagram.len() + LONGEST > BATCH) {
            datagrams.push(Vec::with_capacity(BATCH));
        }
        let Some(datagram) = datagrams.last_mut() else { continue };
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        let to = Address { port: 0, sequence: index as u32 };
        let kind = match route {
            Route::Tunnel { .. } => RTM_NEWLINK,
            Route::Filter { .. } => RTM_NEWTFILTER,
            Route::Station { .. } => RTM_NEWNEIGH,
            _ => RTM_NEWROUTE,
        };
        write_message(datagram, kind, flags, to, |request| {
            if let Route::Tunnel { index, local, remote, ttl } = route {
                return write_tunnel(request, *index, (*local, *remote), *ttl);
            }
            if let Route::Filter { port, destination, length, number, police } = route {
                // The routes lead to the port that is counted as 1.
                return write_filter(request, link - 1 + port, (*destination, *length), *number, *police);
            }
            if let Route::Station { port, mac } = route {
                return write_station(request, link - 1 + port, *mac);
            }
            let (family, length) = match route {
                Route::Plain { prefix, length, .. } if prefix.is_ipv4() => (libc::AF_INET, *length),
                Route::Plain { length, .. } | Route::Encapsulated { length, .. } => (libc::AF_INET6, *length),
                Route::Label { .. } => (libc::AF_MPLS, 20),
                Route::Device { length, .. } => (libc::AF_INET, *length),
                Route::Sid(_) => (libc::AF_INET6, 128),
                Route::Tunnel { .. } | Route::Filter { .. } | Route::Station { .. } => return,
            };
            let header =
                [family as u8, length, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST, 0, 0, 0, 0];
            request.fixed(&header);
            match route {
                Route::Plain { prefix, neighbour, .. } => {
                    request.address(RTA_DST, *prefix);
                    request.address(RTA_GATEWAY, gateway(*neighbour, prefix.is_ipv4()));
                }
                Route::Label { label, ways } => {
                    request.attribute(RTA_DST, &mpls::stack(&[*label]));
                    if let [way] = &ways[..] {
                        way.write(request);
                    } else {
                        let nest = request.nest_unflagged(RTA_MULTIPATH);
                        for way in ways {
                            let start = request.len();
                            request.fixed(&[[0; 4], link.to_ne_bytes()].concat());
                            way.write(request);
                            let len = (request.len() - start) as u16;
                            request.written()[start..start + 2].copy_from_slice(&len.to_ne_bytes());
                        }
                        request.end(nest);
                        return;
                    }
                }
                Route::Device { prefix, index, .. } => {
                    request.address(RTA_DST, IpAddr::V4(*prefix));
                    request.u32(RTA_OIF, *index);
                    return;
                }
                Route::Tunnel { .. } | Route::Filter { .. } | Route::Station { .. } => return,
                Route::Sid(sid) => {
                    request.address(RTA_DST, IpAddr::V6(*sid));
                    let nest = request.nest(RTA_ENCAP);
                    request.u32(SEG6_LOCAL_ACTION, SEG6_LOCAL_ACTION_END);
                    let counters = request.nest(SEG6_LOCAL_COUNTERS);
                    for counter in [SEG6_LOCAL_CNT_PACKETS, SEG6_LOCAL_CNT_BYTES, SEG6_LOCAL_CNT_ERRORS] {
                        request.attribute(counter, &[0; 8]);
                    }
                    request.end(counters);
                    request.end(nest);
                    request.u16(RTA_ENCAP_TYPE, LWTUNNEL_ENCAP_SEG6_LOCAL);
                }
                Route::Encapsulated { prefix, segments, .. } => {
                    request.address(RTA_DST, IpAddr::V6(*prefix));
                    let nest = request.nest(RTA_ENCAP);
                    let left = segments.len().saturating_sub(1) as u8;
                    let tunnel =
                        [&SEG6_IPTUN_MODE_ENCAP.to_ne_bytes()[..], &wire::srh(segments, left, 0, &[])]
                            .concat();
                    request.attribute(SEG6_IPTUNNEL_SRH, &tunnel);
                    request.end(nest);
                    request.u16(RTA_ENCAP_TYPE, LWTUNNEL_ENCAP_SEG6);
                }
            }
            request.u32(RTA_OIF, link);
        })
        .map_err(|error| anyhow::anyhow!("a route does not fit in netlink: errno {}", error.errno))?;
    }
    Ok(datagrams)
}

/// The rest of a request for a tunnel: `struct ifinfomsg`, and attributes.
fn write_tunnel(request: &mut Reply<'_>, index: u32, (local, remote): (Ipv4Addr, Ipv4Addr), ttl: u8) {
    let up = IFF_UP.to_ne_bytes();
    request.fixed(&[&[0; 4][..], &index.to_ne_bytes(), &up, &up].concat());
    request.attribute(IFLA_IFNAME, format!("t{index}\0").as_bytes());
    let info = request.nest_unflagged(IFLA_LINKINFO);
    request.attribute(IFLA_INFO_KIND, b"ipip\0");
    let data = request.nest_unflagged(IFLA_INFO_DATA);
    request.attribute(IFLA_IPTUN_LOCAL, &local.octets());
    request.attribute(IFLA_IPTUN_REMOTE, &remote.octets());
    request.attribute(IFLA_IPTUN_TTL, &[ttl]);
    // As `ip` asks for it.
    request.attribute(IFLA_IPTUN_PMTUDISC, &[1]);
    request.end(data);
    request.end(info);
}

/// The rest of a request for a station that stays where it is: `struct ndmsg`, and its address.
fn write_station(request: &mut Reply<'_>, index: u32, mac: Mac) {
    let [state0, state1] = NUD_NOARP.to_ne_bytes();
    let family = [libc::AF_BRIDGE as u8, 0, 0, 0];
    request.fixed(&[&family[..], &index.to_ne_bytes(), &[state0, state1, NTF_MASTER, 0]].concat());
    request.attribute(NDA_LLADDR, &mac);
}

/// The rest of a request for a filter: `struct tcmsg`, and attributes.
fn write_filter(
    request: &mut Reply<'_>,
    index: u32,
    (destination, length): (Ipv4Addr, u8),
    number: u32,
    police: bool,
) {
    let info = PRIORITY << 16 | u32::from(0x0800_u16.to_be());
    let words = [0, index, number, TC_H_INGRESS, info];
    request.fixed(&words.map(u32::to_ne_bytes).concat());
    request.attribute(TCA_KIND, b"flower\0");
    let options = request.nest_unflagged(TCA_OPTIONS);
    request.be16(TCA_FLOWER_KEY_ETH_TYPE, 0x0800);
    let mask = u32::MAX << (32 - u32::from(length));
    request.attribute(TCA_FLOWER_KEY_IPV4_DST, &destination.octets());
    request.attribute(TCA_FLOWER_KEY_IPV4_DST_MASK, &mask.to_be_bytes());
    request.u32(TCA_FLOWER_FLAGS, 0);
    let actions = request.nest_unflagged(TCA_FLOWER_ACT);
    let action = request.nest_unflagged(1);
    if police {
        write_police(request);
    } else {
        request.attribute(TCA_ACT_KIND, b"gact\0");
        let gact = request.nest_unflagged(TCA_ACT_OPTIONS);
        // `struct tc_gact`: TC_ACT_OK is 0.
        request.attribute(TCA_GACT_PARMS, &[0; 20]);
        request.end(gact);
    }
    request.end(action);
    request.end(actions);
    request.end(options);
}

/// A policer whose rate no load reaches: 200 Gbit/s, and a bucket of 40 ms of it.
fn write_police(request: &mut Reply<'_>) {
    const RATE: u64 = 25_000_000_000;
    /// In ticks of 64 ns.
    const BURST: u32 = 625_000;
    const MTU: u32 = 65_535;
    /// `struct tc_ratespec`: cells of 256 bytes, so that the table has one for the longest packet; Ethernet; the rate
    /// beyond 32 bits is in an attribute of its own.
    const SPEC: [u8; 12] = [8, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    request.attribute(TCA_ACT_KIND, b"police\0");
    let police = request.nest_unflagged(TCA_ACT_OPTIONS);
    let words = [0, TC_ACT_SHOT, 0, BURST, MTU].map(u32::to_ne_bytes).concat();
    request.attribute(TCA_POLICE_TBF, &[&words[..], &SPEC, &[0; 24]].concat());
    request.attribute(TCA_POLICE_RATE, &[0; 1024]);
    request.attribute(TCA_POLICE_RATE64, &RATE.to_ne_bytes());
    request.end(police);
}

/// The errno of the first request that a datagram of answers refuses.
pub fn refused(datagram: &[u8]) -> Option<i32> {
    let errors = messages(datagram).filter(|message| i32::from(message.kind) == libc::NLMSG_ERROR);
    let codes = errors.filter_map(|message| message.body().first_chunk().copied().map(i32::from_ne_bytes));
    codes.map(i32::wrapping_neg).find(|errno| *errno != 0)
}

/// Prefixes, left-aligned in 128 bits, with the neighbour that each leads to.
struct Table(HashMap<(u8, u128), u8>);

impl Table {
    /// Draws `size` different prefixes: `draw` gives bits, `lengths` the lengths and their weights.
    fn draw(size: usize, lengths: &[(u8, u64)], mut bits: impl FnMut(&mut Random) -> u128) -> (Self, Random) {
        let mut random = Random(3);
        let total = lengths.iter().map(|(_, weight)| weight).sum();
        let mut table = HashMap::with_capacity(size);
        while table.len() < size {
            let mut dice = random.below(total);
            let mut length = 0;
            for &(candidate, weight) in lengths {
                length = candidate;
                match dice.checked_sub(weight) {
                    Some(rest) => dice = rest,
                    None => break,
                }
            }
            let prefix = bits(&mut random) & mask(length);
            let neighbour = random.below(u64::from(NEIGHBOURS)) as u8;
            table.insert((length, prefix), neighbour);
        }
        (Self(table), random)
    }

    /// In an order that is the same each time and not that of the addresses.
    fn prefixes(&self) -> Vec<(u8, u128, u8)> {
        let mut prefixes: Vec<_> = self.0.iter().map(|(&(length, bits), &to)| (length, bits, to)).collect();
        prefixes.sort_unstable_by_key(|&(length, bits, _)| {
            Random((bits >> 64) as u64 ^ u64::from(length)).next()
        });
        prefixes
    }

    /// The neighbour of the longest prefix that covers the address.
    fn longest(&self, address: u128) -> Option<u8> {
        (0..=128).rev().find_map(|length| self.0.get(&(length, address & mask(length))).copied())
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// Lengths of the prefixes in the Internet's IPv6 table, by their share in percent.
const LENGTHS6: &[(u8, u64)] =
    &[(48, 48), (44, 12), (40, 10), (36, 6), (46, 5), (32, 4), (42, 4), (47, 4), (45, 3), (38, 2), (34, 2)];

/// What a table consists of, and destinations that its prefixes cover: bits are left-aligned.
pub struct Drawn {
    table: Table,
    /// Length, bits and neighbour, in no order of the addresses.
    pub prefixes: Vec<(u8, u128, u8)>,
    pub destinations: Vec<u128>,
}

impl Drawn {
    fn new((table, mut random): (Table, Random)) -> Self {
        let prefixes = table.prefixes();
        let destinations = (0..DESTINATIONS)
            .map(|_| {
                let (length, bits, _) = prefixes[random.below(prefixes.len() as u64) as usize];
                bits | random.wide() & !mask(length)
            })
            .collect();
        Self { table, prefixes, destinations }
    }
}

/// `size` routes of IPv6 below a twenty-fifth as many allocations of 32 bits.
pub fn drawn6(size: usize) -> Drawn {
    let mut random = Random(4);
    let allocations: Vec<u128> =
        (0..size / 25).map(|_| (0x2400_0000 + u128::from(random.below(0x0800_0000))) << 96).collect();
    Drawn::new(Table::draw(size, LENGTHS6, |random| {
        allocations[random.below(allocations.len() as u64) as usize] | random.wide() >> 32
    }))
}

/// [`drawn6`], and what is sent.
pub fn load6(size: usize) -> Load {
    let Drawn { table, prefixes, destinations } = drawn6(size);
    let flows = flows();
    let expected = destinations.iter().zip(&flows).take(CHECKED).map(|(destination, flow)| {
        let packet = packet6_to(flow, *destination, HOPS - 1);
        wire::ethernet(neighbour_mac(table.longest(*destination).unwrap_or_default()), PORTS[1], &packet)
    });
    Load {
        expected: expected.collect(),
        routes: plain(&prefixes, |bits| Ipv6Addr::from_bits(bits).into()),
        templates: flows.iter().map(|flow| incoming(&flow.packet6(HOPS)).into_boxed_slice()).collect(),
        patches: Some(Patches::new(14 + 24, 16, destinations.into_iter().map(u128::to_be_bytes).collect())),
        ..Load::default()
    }
}

/// Lengths of the prefixes in the Internet's IPv4 table, by their share in percent.
const LENGTHS4: &[(u8, u64)] =
    &[(24, 60), (22, 11), (23, 10), (21, 5), (20, 5), (19, 3), (16, 3), (18, 2), (17, 1)];

/// `size` routes of IPv4.
pub fn drawn4(size: usize) -> Drawn {
    Drawn::new(Table::draw(size, LENGTHS4, |random| {
        // Unicast addresses without this network, loopback, the block of link-local addresses, and the
        // router's own 10.0.0.0/8.
        let first = loop {
            match random.below(223) + 1 {
                10 | 127 | 169 => {}
                first => break first,
            }
        };
        u128::from(first << 24 | random.below(1 << 24)) << 96
    }))
}

/// The packet of a flow to another destination.
pub fn packet4_to(flow: &Flow, destination: u128, ttl: u8) -> Vec<u8> {
    let (source, identification) = (flow.source4, flow.identification);
    let destination = Ipv4Addr::from_bits((destination >> 96) as u32);
    // The length that the templates have, so that the header's checksum is theirs.
    let payload = flow.packet4(ttl).split_off(20);
    wire::ipv4(wire::Ip4 { source, destination, identification, ttl }, wire::UDP, &payload)
}

/// The packet of a flow to another destination.
pub fn packet6_to(flow: &Flow, destination: u128, hops: u8) -> Vec<u8> {
    let mut packet = flow.packet6(hops);
    packet.splice(24..40, destination.to_be_bytes());
    packet
}

/// [`drawn4`], and what is sent.
pub fn load4(size: usize) -> Load {
    let Drawn { table, prefixes, destinations } = drawn4(size);
    let flows = flows();
    let with_destination =
        |index: usize, ttl: u8| packet4_to(&flows[index % flows.len()], destinations[index], ttl);
    let expected = (0..CHECKED).map(|index| {
        let neighbour = table.longest(destinations[index] >> 96 << 96).unwrap_or_default();
        wire::ethernet(neighbour_mac(neighbour), PORTS[1], &with_destination(index, HOPS - 1))
    });
    // From the checksum to the destination, which it depends on.
    let values = (0..DESTINATIONS).map(|index| {
        let mut value = [0; 16];
        value[..10].copy_from_slice(&with_destination(index, HOPS)[10..20]);
        value
    });
    Load {
        expected: expected.collect(),
        routes: plain(&prefixes, |bits| Ipv4Addr::from_bits((bits >> 96) as u32).into()),
        templates: flows.iter().map(|flow| incoming(&flow.packet4(HOPS)).into_boxed_slice()).collect(),
        patches: Some(Patches::new(14 + 10, 10, values.collect())),
        ..Load::default()
    }
}

fn plain(prefixes: &[(u8, u128, u8)], address: impl Fn(u128) -> IpAddr) -> Vec<Route> {
    prefixes
        .iter()
        .map(|&(length, bits, neighbour)| Route::Plain { prefix: address(bits), length, neighbour })
        .collect()
}
