//! Tables of any kind, and changes of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::buffer::PortId;
use underpass_engine::counters::CounterId;
use underpass_engine::hmac::Require;
use underpass_engine::in_kernel::records::{Leaving, OfDevice};
use underpass_engine::tables::{
    Action, ActionId, Behaviour, Csid, Discard, Endpoint, Fib4Id, Fib6Id, Flavours, FouPort, FouPortId,
    Headend, HeadendMode, LabelAction, Link, LinkId, Lookup, LookupId, Multipath, NextCsid, NextHop,
    NextHopId, ReplaceCsid, Rewrite, Tunnel, TunnelId, TunnelRoute, Via, Writer,
};
use underpass_packet::{IntoBytes, ipv6, protocol, srh};
use underpass_port::index_of;

use crate::filters::Filters;
use crate::labels;
use crate::random::Random;
use crate::tunnels::{self, PORTS, TUNNELS};
use crate::vlans::{self, VLANS};

/// How many devices there are: `d0`, …
pub const DEVICES: usize = 4;
/// VLAN devices are links behind those and those of tunnels.
pub const FIRST_VLAN: usize = DEVICES + TUNNELS;
pub const LINKS: usize = FIRST_VLAN + VLANS;
pub const VRFS: usize = 3;
pub const NEXT_HOPS: usize = 12;
const COUNTERS: usize = 24;
pub const ACTIONS: usize = 70;
/// The first of them just forward, and others lead to them.
const FORWARDS: usize = 12;
/// Behind them, one is for the router itself, and some lead into tunnels.
pub const LOCAL_ACTION: usize = FORWARDS;
const INTO: std::ops::RangeInclusive<usize> = FORWARDS + 1..=FORWARDS + TUNNELS;
pub const ROUTES: u64 = 160;

/// What [`Router::leads`] says of what is for the router itself.
pub const LOCAL: &str = "local";

/// A route, and the number of its action.
#[derive(Clone, Copy)]
pub struct Route<A> {
    pub prefix: A,
    pub len: u8,
    pub action: usize,
}

/// Tables, and which links and SIDs look up in them.
pub struct Vrf {
    pub lookup: LookupId,
    pub order: Lookup,
    pub fibs4: [Fib4Id; 2],
    pub fibs6: [Fib6Id; 2],
    /// Of both tables, with which it is in.
    pub routes4: Vec<(usize, Route<Ipv4Addr>)>,
    pub routes6: Vec<(usize, Route<Ipv6Addr>)>,
}

pub struct Router {
    pub writer: Writer,
    pub ifindexes: [u32; DEVICES],
    /// Those of the devices, and behind them those of tunnels and VLAN devices.
    pub links: Vec<LinkId>,
    /// Which VRF each link is in.
    pub of_links: [usize; LINKS],
    /// Whether it has programs, as far as the tables know.
    pub has_programs: [bool; DEVICES],
    pub counters: Vec<CounterId>,
    pub vrfs: Vec<Vrf>,
    pub tunnels: Vec<(TunnelId, Tunnel)>,
    pub fou_ports: Vec<FouPortId>,
    pub ports: Vec<FouPort>,
    pub next_hops: Vec<(NextHopId, NextHop)>,
    pub now_links: Vec<Link>,
    pub actions: Vec<(ActionId, Action)>,
    pub stand_in: u32,
    pub filters: Filters,
}

pub fn mac(device: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, device as u8]
}

impl Router {
    /// Everything is there, but leads nowhere.
    pub fn new(mut writer: Writer) -> Self {
        let index = |name: &str| index_of(name).expect("a device");
        let ifindexes = std::array::from_fn(|device| index(&format!("d{device}")));
        let vrfs = (0..VRFS).map(|_| Vrf::new(&mut writer)).collect();
        let stand_in = index("stand-in");
        let filters = Filters::new(&mut writer);
        let mut router = Self {
            writer,
            ifindexes,
            links: Vec::new(),
            of_links: [0; LINKS],
            has_programs: [true; DEVICES],
            counters: Vec::new(),
            vrfs,
            tunnels: Vec::new(),
            fou_ports: Vec::new(),
            ports: Vec::new(),
            next_hops: Vec::new(),
            now_links: Vec::new(),
            actions: Vec::new(),
            stand_in,
            filters,
        };
        for device in 0..LINKS {
            let link = router.link(device, &mut Random(0));
            router.links.push(router.writer.add_link(link.clone()));
            router.now_links.push(link);
        }
        router.counters = (0..COUNTERS).map(|_| router.writer.add_counter()).collect();
        for _ in 0..NEXT_HOPS {
            let next_hop = router.next_hop(&mut Random(0));
            router.next_hops.push((router.writer.add_next_hop(next_hop), next_hop));
        }
        for number in 0..TUNNELS {
            let tunnel = router.tunnel(number, &mut Random(0));
            router.tunnels.push((router.writer.add_tunnel(tunnel.clone()), tunnel));
        }
        for number in 0..PORTS.len() {
            let port = router.fou_port(number, &mut Random(0));
            router.fou_ports.push(router.writer.add_fou_port(port));
            router.ports.push(port);
        }
        for _ in 0..ACTIONS {
            let action = Action::Discard(Discard::Blackhole);
            router.actions.push((router.writer.add_action(action.clone()), action));
        }
        router
    }

    /// The action of a route.
    pub fn action_of<A>(&self, route: &Route<A>) -> &Action {
        &self.actions[route.action].1
    }

    /// What the destination of a packet leads to that comes in by a device, by name.
    pub fn leads(&self, device: usize, frame: &[u8]) -> String {
        if frame[12] == 0x88 {
            let label = u32::from_be_bytes(frame[14..18].try_into().unwrap()) >> 12;
            return match self.writer.label(label) {
                Some(LabelAction::Swap { .. }) => "label swapped",
                Some(LabelAction::SwapPush { .. }) => "label swapped for two",
                Some(LabelAction::Pop { .. }) => "label popped",
                _ => "label",
            }
            .to_owned();
        }
        let order = &self.vrfs[self.of_links[device]].order;
        let id = if frame[12] == 0x08 {
            let to = Ipv4Addr::from_octets(frame[30..34].try_into().unwrap());
            order.fibs4.iter().find_map(|fib| self.writer.lookup4(*fib, to))
        } else {
            let to = Ipv6Addr::from_octets(frame[38..54].try_into().unwrap());
            order.fibs6.iter().find_map(|fib| self.writer.lookup6(*fib, to))
        };
        let family = if frame[12] == 0x08 { "IPv4" } else { "IPv6" };
        match self.actions.iter().find(|(of, _)| Some(*of) == id).map(|(_, action)| action) {
            Some(Action::Forward(_)) => format!("{family} forward"),
            Some(Action::Multipath(_)) => format!("{family} multipath"),
            Some(Action::Local) => LOCAL.to_owned(),
            Some(Action::Tunnel(TunnelRoute { tunnel, .. })) => {
                let (_, tunnel) = self.tunnels.iter().find(|(id, _)| id == tunnel).unwrap();
                let over = tunnel.udp.map_or("", |udp| if udp.gue { " over GUE" } else { " over FOU" });
                let sum = if tunnel.udp.is_some_and(|udp| udp.checksum) { ", sum" } else { "" };
                format!("{family} into {:?}{over}{sum}", tunnel.kind)
            }
            Some(Action::Discard(_)) => format!("{family} drop"),
            Some(Action::Push(_)) => format!("{family} labelled"),
            Some(Action::Headend(policy)) => format!("{family} encapsulated, {} bytes", policy.header.len()),
            Some(Action::Endpoint(Endpoint { behaviour, flavours, .. })) => {
                let flavours = flavours.unwrap_or_default();
                let csid = if flavours.csid.is_some() { " NEXT-CSID" } else { "" };
                let with_srh = frame[20] == protocol::ROUTING;
                let srh = if with_srh { "" } else { ", no SRH" };
                let psp = if flavours.psp { " PSP" } else { "" };
                let used_up = !with_srh || frame.get(57) == Some(&0);
                let usd = if flavours.usd && used_up { " USD" } else { "" };
                format!("{}{csid}{psp}{usd}{srh}", behaviour.name())
            }
            other => format!("{other:?}"),
        }
    }

    pub fn link(&self, device: usize, random: &mut Random) -> Link {
        let mut rarely = || random.below(60) == 0;
        let (down, off4, off6, strict, not, none) =
            (rarely(), rarely(), rarely(), rarely(), rarely(), rarely());
        let leaving = [Leaving::Redirect, Leaving::Peer][random.below(2) as usize];
        let leaving = if not { Leaving::Not } else { leaving };
        let programs = OfDevice { misses: self.stand_in, leaving, xdp: random.below(10) > 0 };
        let in_vrf = self.of_links[device] > 0 && random.below(2) == 0;
        let vlan = (device >= FIRST_VLAN).then(|| Box::new(vlans::vlan(&self.links, random)));
        let port = (device < DEVICES || vlan.is_some()).then(|| port(device));
        let is_device = device < DEVICES;
        Link {
            ifindex: self.ifindexes.get(device).copied().unwrap_or(1000 + device as u32),
            port,
            up: !down,
            mac: mac(device),
            mtu: [1500, 1500, 1280, 9000, 200][random.below(5) as usize],
            lookup: self.vrfs[self.of_links[device]].lookup,
            forward4: !off4,
            forward6: !off6,
            source4: Some(Ipv4Addr::new(10, 0, device as u8, 1)),
            in_vrf,
            source6: Some(Ipv6Addr::from_bits(0xfd00 << 112 | (device as u128) << 96 | 1)),
            mpls: random.below(6) > 0,
            rpl: true,
            seg6: true,
            require_hmac: if strict { Require::Always } else { Require::Present },
            ingress: if port.is_some() { self.filters.of_link(random) } else { None },
            vlan,
            vlans: if is_device { self.vlans_above(device) } else { None },
            programs: (!none && is_device).then_some(programs),
            ..Link::default()
        }
    }

    pub fn next_hop(&self, random: &mut Random) -> NextHop {
        let device = any_way_out(random);
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&random.next().to_ne_bytes());
        bytes[6..12].copy_from_slice(&mac(device));
        let rewrite = match random.below(20) {
            0 => None,
            1 => Some(Rewrite { bytes, len: 16 }),
            _ => Some(Rewrite { bytes, len: 12 }),
        };
        let mtu = match random.below(8) {
            0..4 => 1500,
            4 => 1280,
            5 => 9000,
            6 => random.below(300) as u32,
            _ => random.below(2000) as u32,
        };
        let address = Ipv4Addr::new(10, 0, device as u8, 2).into();
        NextHop {
            link: self.links[device],
            port: port(device),
            mtu,
            locked: false,
            hop_limit: 0,
            rewrite,
            address,
        }
    }

    pub fn tunnel(&self, number: usize, random: &mut Random) -> Tunnel {
        let via = self.via(Ipv4Addr::UNSPECIFIED.into(), random);
        let next_hop = self.any_next_hop(random);
        tunnels::tunnel(number, self.links[DEVICES + number], via, next_hop, random)
    }

    pub fn fou_port(&self, number: usize, random: &mut Random) -> FouPort {
        tunnels::fou_port(number, self.via(Ipv4Addr::UNSPECIFIED.into(), random), random)
    }

    pub fn any_next_hop(&self, random: &mut Random) -> NextHopId {
        self.next_hops[random.below(NEXT_HOPS as u64) as usize].0
    }

    fn any_lookup(&self, random: &mut Random) -> LookupId {
        self.vrfs[any_vrf(random)].lookup
    }

    pub fn action(&self, number: usize, random: &mut Random) -> Action {
        if number < FORWARDS {
            return Action::Forward(self.any_next_hop(random));
        }
        if number == LOCAL_ACTION {
            return Action::Local;
        }
        if INTO.contains(&number) {
            let mtu = if random.below(10) == 0 { random.below(1500) as u32 } else { 0 };
            let tunnel = self.tunnels[number - INTO.start()].0;
            return Action::Tunnel(TunnelRoute { tunnel, next_hop: None, mtu, hop_limit: 0 });
        }
        match random.below(50) {
            0..8 => Action::Forward(self.any_next_hop(random)),
            8 => Action::Discard(Discard::Blackhole),
            9 => Action::Discard(Discard::Unreachable),
            10 => Action::Local,
            11 => Action::OnLink(self.links[any_way_out(random)]),
            12 => {
                let [one, other] =
                    std::array::from_fn(|_| self.actions[random.below(FORWARDS as u64) as usize].0);
                Action::Multipath(Multipath {
                    buckets: [((random.next() >> 33) as u32 / 2, one), ((1 << 31) - 1, other)].into(),
                })
            }
            13..17 => Action::Push(labels::push(self, random)),
            17..36 => Action::Endpoint(self.endpoint(random)),
            _ => Action::Headend(self.headend(random)),
        }
    }

    fn via(&self, unspecified: IpAddr, random: &mut Random) -> Via {
        let lookup = self.any_lookup(random);
        match random.below(16) {
            0 => Via { address: unspecified, lookup, resolved: None },
            1 => Via { address: Ipv6Addr::from_bits(0xfd << 120 | 2).into(), lookup, resolved: None },
            _ => {
                let address = match unspecified {
                    IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 2).into(),
                    IpAddr::V6(_) => address6(random).into(),
                };
                Via { address, lookup, resolved: Some(self.any_next_hop(random)) }
            }
        }
    }

    fn endpoint(&self, random: &mut Random) -> Endpoint {
        let lookup = self.any_lookup(random);
        let (any4, any6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
        let behaviour = match random.below(40) {
            20..25 | 0..3 => Behaviour::End { lookup },
            25..30 | 3..6 => Behaviour::X(self.via(any6, random)),
            30..33 | 6..8 => Behaviour::T { lookup },
            8..10 => Behaviour::DX2 { link: self.links[any_way_out(random)] },
            10..12 => Behaviour::DX4(self.via(any4, random)),
            12..14 => Behaviour::DX6(self.via(any6, random)),
            14 | 19 => Behaviour::DT4 { lookup },
            15 => Behaviour::DT6 { lookup, vrf: false },
            33 => Behaviour::DT6 { lookup, vrf: true },
            34..39 | 16..19 => Behaviour::DT46 { lookup },
            _ => Behaviour::B6Encaps(self.headend(random).into()),
        };
        let flavoured = matches!(behaviour, Behaviour::End { .. } | Behaviour::X(_) | Behaviour::T { .. });
        let octets = |most: u64, random: &mut Random| 8 * (1 + random.below(most)) as u8;
        let flavours = (flavoured && random.below(2) == 0).then(|| Flavours {
            psp: random.below(2) == 0,
            usp: random.below(20) == 0,
            usd: random.below(3) == 0,
            csid: (random.below(2) == 0)
                .then(|| NextCsid { block: octets(12, random), node_function: octets(9, random) })
                .filter(|csid| csid.block + csid.node_function < 128)
                .map(|csid| match csid {
                    // Neither is the program's; of these an entry is full.
                    NextCsid { block: block @ 8..=56, node_function: node_function @ 64 } => {
                        Csid::Replace(ReplaceCsid { block, node_function })
                    }
                    csid => Csid::Next(csid),
                }),
        });
        let counter = self.counter(random);
        Endpoint { behaviour, flavours, counter, link: self.links[0] }
    }

    fn counter(&self, random: &mut Random) -> Option<CounterId> {
        (random.below(3) > 0).then(|| self.counters[random.below(self.counters.len() as u64) as usize])
    }

    fn headend(&self, random: &mut Random) -> Headend {
        let mode = match random.below(20) {
            0 => HeadendMode::Inline,
            1 => HeadendMode::L2Encap,
            _ => HeadendMode::Encap,
        };
        let count = if random.below(20) == 0 { 1 + random.below(20) } else { 1 + random.below(5) };
        let path: Vec<Ipv6Addr> = (0..count).map(|_| address6(random)).collect();
        let reduced = random.below(2) == 0 && mode != HeadendMode::Inline;
        let mut header = vec![0; 1024];
        let builder = if reduced { srh::Builder::reduced(0, &path) } else { srh::Builder::new(0, &path) };
        let len = if reduced && path.len() == 1 { 0 } else { builder.write(&mut header).unwrap() };
        header.truncate(len);
        if mode != HeadendMode::Inline {
            let next = if len == 0 { 0 } else { protocol::ROUTING };
            let hops = 1 + random.below(255) as u8;
            let outer = ipv6::Header::new(address6(random), path[0], next, hops, 0);
            header.splice(0..0, outer.as_bytes().iter().copied());
        }
        let room = (header.len() + 14 + if mode == HeadendMode::L2Encap { 14 } else { 0 }) as u16;
        let via = self.via(Ipv6Addr::UNSPECIFIED.into(), random);
        let via = Via { address: path[0].into(), ..via };
        let counter = self.counter(random);
        Headend {
            mode,
            header: header.into(),
            room,
            hmac_open: false,
            via,
            link: self.links[0],
            counter,
            plain: None,
        }
    }
}

impl Vrf {
    pub fn new(writer: &mut Writer) -> Self {
        let (fibs4, fibs6) = ([(); 2].map(|()| writer.add_fib4()), [(); 2].map(|()| writer.add_fib6()));
        let order = Lookup { fibs4: [fibs4[0]].into(), fibs6: [fibs6[0]].into(), ..Lookup::default() };
        let lookup = writer.add_lookup(order.clone());
        Self { lookup, order, fibs4, fibs6, routes4: Vec::new(), routes6: Vec::new() }
    }
}

/// The port by which packets leave by a device or a VLAN device.
fn port(link: usize) -> PortId {
    if link < DEVICES { PortId(link as u16) } else { vlans::port(link) }
}

/// A device, or a VLAN device.
fn any_way_out(random: &mut Random) -> usize {
    match random.below(8) {
        0 => FIRST_VLAN + random.below(VLANS as u64) as usize,
        _ => random.below(DEVICES as u64) as usize,
    }
}

/// A VRF, the first one more often.
pub fn any_vrf(random: &mut Random) -> usize {
    random.below(VRFS as u64 + 5).saturating_sub(5) as usize
}

/// An address among few, so that prefixes lie within one another.
pub fn address6(random: &mut Random) -> Ipv6Addr {
    let mut bits: u128 = match random.below(6) {
        0 => 0xfc00 << 112,
        1 => 0xfd00_0001 << 96,
        2 => 0x2001_0db8_0001_0002_0003 << 48,
        3 => 0x2001_0db8 << 96 | 0x1_0000_0000_0001,
        4 => 0x3fff << 112 | 0x0002_0000_0000_0000_0001,
        _ => random.wide(),
    };
    for _ in 0..random.below(4) {
        bits ^= u128::from(random.below(4)) << (4 * random.below(32));
    }
    Ipv6Addr::from_bits(bits)
}

/// The same of IPv4.
pub fn address4(random: &mut Random) -> Ipv4Addr {
    let mut bits: u32 = match random.below(4) {
        0 => 0x0a01_0203,
        1 => 0xc000_0201,
        2 => 0x0a00_0000,
        _ => random.next() as u32,
    };
    for _ in 0..random.below(3) {
        bits ^= (random.below(4) as u32) << (4 * random.below(8));
    }
    Ipv4Addr::from_bits(bits)
}
