//! Tables of any kind, and changes of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::buffer::PortId;
use underpass_engine::counters::CounterId;
use underpass_engine::hmac::Require;
use underpass_engine::in_kernel::records::{Leaving, OfDevice};
use underpass_engine::tables::{
    Action, ActionId, Behaviour, Discard, Endpoint, Fib4Id, Fib6Id, Flavours, FouPort, FouPortId, Headend,
    HeadendMode, IoamLink, Link, LinkId, Lookup, LookupId, Multipath, NextCsid, NextHop, NextHopId, Rewrite,
    Rule, RuleAction, Tunnel, TunnelId, TunnelRoute, Via, Writer,
};
use underpass_packet::{IntoBytes, ipv6, protocol, srh};
use underpass_port::index_of;

use crate::random::Random;
use crate::tunnels::{self, PORTS, TUNNELS};

/// How many devices there are: `d0`, …
pub const DEVICES: usize = 4;
const VRFS: usize = 3;
const NEXT_HOPS: usize = 12;
const COUNTERS: usize = 24;
const ACTIONS: usize = 70;
/// The first of them just forward, and others lead to them.
const FORWARDS: usize = 12;
/// Behind them, one is for the router itself, and some lead into tunnels.
const LOCAL_ACTION: usize = FORWARDS;
const INTO: std::ops::RangeInclusive<usize> = FORWARDS + 1..=FORWARDS + TUNNELS;
const ROUTES: u64 = 160;

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
    order: Lookup,
    fibs4: [Fib4Id; 2],
    fibs6: [Fib6Id; 2],
    /// Of both tables, with which it is in.
    pub routes4: Vec<(usize, Route<Ipv4Addr>)>,
    pub routes6: Vec<(usize, Route<Ipv6Addr>)>,
}

pub struct Router {
    pub writer: Writer,
    pub ifindexes: [u32; DEVICES],
    /// Those of the devices, and behind them those of tunnels.
    pub links: Vec<LinkId>,
    /// Which VRF each link is in.
    pub of_links: [usize; DEVICES + TUNNELS],
    /// Whether it has programs, as far as the tables know.
    pub has_programs: [bool; DEVICES],
    pub counters: Vec<CounterId>,
    pub vrfs: Vec<Vrf>,
    pub tunnels: Vec<(TunnelId, Tunnel)>,
    fou_ports: Vec<FouPortId>,
    pub ports: Vec<FouPort>,
    next_hops: Vec<NextHopId>,
    actions: Vec<(ActionId, Action)>,
    stand_in: u32,
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
        let mut router = Self {
            writer,
            ifindexes,
            links: Vec::new(),
            of_links: [0; DEVICES + TUNNELS],
            has_programs: [true; DEVICES],
            counters: Vec::new(),
            vrfs,
            tunnels: Vec::new(),
            fou_ports: Vec::new(),
            ports: Vec::new(),
            next_hops: Vec::new(),
            actions: Vec::new(),
            stand_in,
        };
        for device in 0..DEVICES + TUNNELS {
            let link = router.link(device, &mut Random(0));
            router.links.push(router.writer.add_link(link));
        }
        router.counters = (0..COUNTERS).map(|_| router.writer.add_counter()).collect();
        for _ in 0..NEXT_HOPS {
            let next_hop = router.next_hop(&mut Random(0));
            router.next_hops.push(router.writer.add_next_hop(next_hop));
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
                format!("{family} into {:?}{over}", tunnel.kind)
            }
            Some(Action::Discard(_)) => format!("{family} drop"),
            Some(Action::Headend(policy)) => format!("{family} encapsulated, {} bytes", policy.header.len()),
            Some(Action::Endpoint(Endpoint { behaviour, flavours, .. })) => {
                let flavours = flavours.unwrap_or_default();
                let csid = if flavours.next_csid.is_some() { " NEXT-CSID" } else { "" };
                let srh = if frame[20] == protocol::ROUTING { "" } else { ", no SRH" };
                format!("{}{csid}{}{srh}", behaviour.name(), if flavours.psp { " PSP" } else { "" })
            }
            other => format!("{other:?}"),
        }
    }

    /// Puts everything in the place of what is there.
    pub fn configure(&mut self, random: &mut Random) {
        for vrf in 0..VRFS {
            self.empty(vrf);
            self.order(vrf, random);
        }
        (0..DEVICES + TUNNELS).for_each(|device| self.change_link(device, random));
        (0..NEXT_HOPS).for_each(|next_hop| self.change_next_hop(next_hop, random));
        (0..TUNNELS).for_each(|tunnel| self.change_tunnel(tunnel, random));
        (0..PORTS.len()).for_each(|port| self.change_fou_port(port, random));
        (0..ACTIONS).for_each(|action| self.change_action(action, random));
        for vrf in 0..VRFS {
            let count = random.below(ROUTES);
            (0..count).for_each(|_| self.add_route(vrf, random));
        }
        self.writer.leave_programs();
        self.writer.reclaim();
    }

    /// Changes something.
    pub fn change(&mut self, random: &mut Random) {
        let (vrf, of) = (random.below(VRFS as u64) as usize, random.next() as usize);
        match random.below(400) {
            0..200 => self.add_route(vrf, random),
            200..300 => self.remove_route(vrf, random),
            300..340 => self.change_next_hop(of % NEXT_HOPS, random),
            340..375 => self.change_action(of % ACTIONS, random),
            375..384 => self.change_tunnel(of % TUNNELS, random),
            384..387 => self.change_fou_port(of % PORTS.len(), random),
            387..393 => self.change_link(of % (DEVICES + TUNNELS), random),
            393..396 => self.order(vrf, random),
            396 => self.empty(vrf),
            397 => self.remake(vrf, random),
            _ => {
                self.writer.leave_programs();
                self.writer.reclaim();
            }
        }
    }

    /// A VRF goes, and another comes; whoever was in it is in that.
    fn remake(&mut self, vrf: usize, random: &mut Random) {
        self.empty(vrf);
        let new = Vrf::new(&mut self.writer);
        let old = std::mem::replace(&mut self.vrfs[vrf], new);
        for device in
            (0..DEVICES + TUNNELS).filter(|device| self.of_links[*device] == vrf).collect::<Vec<_>>()
        {
            self.change_link(device, random);
        }
        (0..TUNNELS).for_each(|tunnel| self.change_tunnel(tunnel, random));
        (0..PORTS.len()).for_each(|port| self.change_fou_port(port, random));
        for action in 0..ACTIONS {
            if format!("{:?}", self.actions[action].1).contains(&format!("{:?}", old.lookup)) {
                self.change_action(action, random);
            }
        }
        self.writer.remove_lookup(old.lookup);
        old.fibs4.into_iter().for_each(|fib| self.writer.remove_fib4(fib));
        old.fibs6.into_iter().for_each(|fib| self.writer.remove_fib6(fib));
    }

    fn empty(&mut self, vrf: usize) {
        while !self.vrfs[vrf].routes4.is_empty() || !self.vrfs[vrf].routes6.is_empty() {
            self.remove_route(vrf, &mut Random(0));
        }
    }

    /// Says in which order the tables of a VRF are looked at.
    fn order(&mut self, vrf: usize, random: &mut Random) {
        let Vrf { lookup, fibs4: [a4, b4], fibs6: [a6, b6], .. } = self.vrfs[vrf];
        let (fibs4, fibs6): (Box<[Fib4Id]>, Box<[Fib6Id]>) = match random.below(100) {
            0..30 => ([a4].into(), [a6].into()),
            30..97 => ([a4, b4].into(), [a6, b6].into()),
            97 => ([a4, b4, a4].into(), [a6, b6, a6].into()),
            98 => ([].into(), [].into()),
            _ => ([b4, a4].into(), [b6].into()),
        };
        let any = |address: IpAddr, then| Rule {
            source: (address, 0),
            destination: (address, 0),
            protocol: Some(protocol::TCP),
            source_port: None,
            destination_port: None,
            tos: None,
            flow_label: None,
            mark: None,
            invert: false,
            then,
        };
        let ruled = random.below(100) == 0;
        let rules4 = any(Ipv4Addr::UNSPECIFIED.into(), RuleAction::Fib4(b4));
        let rules6 = any(Ipv6Addr::UNSPECIFIED.into(), RuleAction::Fib6(b6));
        let lookup4 = if ruled { [rules4].into() } else { [].into() };
        let lookup6 = if ruled { [rules6].into() } else { [].into() };
        let order = Lookup { fibs4, fibs6, rules4: lookup4, rules6: lookup6, own: Some(lookup) };
        self.vrfs[vrf].order = order.clone();
        self.writer.set_lookup(lookup, order);
    }

    fn change_link(&mut self, device: usize, random: &mut Random) {
        self.of_links[device] = any_vrf(random);
        let link = self.link(device, random);
        if device < DEVICES {
            self.has_programs[device] = link.programs.is_some();
        }
        self.writer.set_link(self.links[device], link);
    }

    fn link(&self, device: usize, random: &mut Random) -> Link {
        let mut rarely = || random.below(60) == 0;
        let (down, off4, off6, strict, not, none) =
            (rarely(), rarely(), rarely(), rarely(), rarely(), rarely());
        let leaving = [Leaving::Redirect, Leaving::Peer][random.below(2) as usize];
        let leaving = if not { Leaving::Not } else { leaving };
        let programs = OfDevice { misses: self.stand_in, leaving };
        let in_vrf = self.of_links[device] > 0 && random.below(2) == 0;
        let port = (device < DEVICES).then_some(PortId(device as u16));
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
            bare4: false,
            vrf: false,
            in_vrf,
            source6: Some(Ipv6Addr::from_bits(0xfd00 << 112 | (device as u128) << 96 | 1)),
            own6: Box::default(),
            anycast6: Box::default(),
            several: Box::default(),
            back6: None,
            host: None,
            shared: false,
            kernel: None,
            addresses: None,
            mpls: false,
            rpl: true,
            seg6: true,
            require_hmac: if strict { Require::Always } else { Require::Present },
            ioam: IoamLink::default(),
            ingress: None,
            egress: None,
            root: None,
            ingress_qdisc: None,
            ifb: false,
            swallows: false,
            programs: (!none && port.is_some()).then_some(programs),
        }
    }

    fn change_next_hop(&mut self, number: usize, random: &mut Random) {
        let next_hop = self.next_hop(random);
        self.writer.set_next_hop(self.next_hops[number], next_hop);
    }

    fn next_hop(&self, random: &mut Random) -> NextHop {
        let device = random.below(DEVICES as u64) as usize;
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
        NextHop { link: self.links[device], port: PortId(device as u16), mtu, rewrite, address }
    }

    fn change_action(&mut self, number: usize, random: &mut Random) {
        let action = self.action(number, random);
        let slot = &mut self.actions[number];
        self.writer.set_action(slot.0, action.clone());
        slot.1 = action;
    }

    fn change_tunnel(&mut self, number: usize, random: &mut Random) {
        let tunnel = self.tunnel(number, random);
        let slot = &mut self.tunnels[number];
        self.writer.set_tunnel(slot.0, tunnel.clone());
        slot.1 = tunnel;
    }

    fn tunnel(&self, number: usize, random: &mut Random) -> Tunnel {
        let via = self.via(Ipv4Addr::UNSPECIFIED.into(), random);
        let next_hop = self.any_next_hop(random);
        tunnels::tunnel(number, self.links[DEVICES + number], via, next_hop, random)
    }

    fn change_fou_port(&mut self, number: usize, random: &mut Random) {
        self.ports[number] = self.fou_port(number, random);
        self.writer.set_fou_port(self.fou_ports[number], self.ports[number]);
    }

    fn fou_port(&self, number: usize, random: &mut Random) -> FouPort {
        tunnels::fou_port(number, self.via(Ipv4Addr::UNSPECIFIED.into(), random), random)
    }

    fn any_next_hop(&self, random: &mut Random) -> NextHopId {
        self.next_hops[random.below(NEXT_HOPS as u64) as usize]
    }

    fn any_lookup(&self, random: &mut Random) -> LookupId {
        self.vrfs[any_vrf(random)].lookup
    }

    fn action(&self, number: usize, random: &mut Random) -> Action {
        if number < FORWARDS {
            return Action::Forward(self.any_next_hop(random));
        }
        if number == LOCAL_ACTION {
            return Action::Local;
        }
        if INTO.contains(&number) {
            let mtu = if random.below(10) == 0 { random.below(1500) as u32 } else { 0 };
            let tunnel = self.tunnels[number - INTO.start()].0;
            return Action::Tunnel(TunnelRoute { tunnel, next_hop: None, mtu });
        }
        match random.below(50) {
            0..8 => Action::Forward(self.any_next_hop(random)),
            8 => Action::Discard(Discard::Blackhole),
            9 => Action::Discard(Discard::Unreachable),
            10 => Action::Local,
            11 => Action::OnLink(self.links[random.below(DEVICES as u64) as usize]),
            12 => {
                let [one, other] =
                    std::array::from_fn(|_| self.actions[random.below(FORWARDS as u64) as usize].0);
                Action::Multipath(Multipath {
                    buckets: [((random.next() >> 33) as u32 / 2, one), ((1 << 31) - 1, other)].into(),
                })
            }
            13..35 => Action::Endpoint(self.endpoint(random)),
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
            30..34 | 6..8 => Behaviour::T { lookup },
            8..10 => Behaviour::DX2 { link: self.links[random.below(DEVICES as u64) as usize] },
            10..12 => Behaviour::DX4(self.via(any4, random)),
            12..14 => Behaviour::DX6(self.via(any6, random)),
            14 | 19 => Behaviour::DT4 { lookup },
            15 => Behaviour::DT6 { lookup },
            34..39 | 16..19 => Behaviour::DT46 { lookup },
            _ => Behaviour::B6Encaps(self.headend(random).into()),
        };
        let flavoured = matches!(behaviour, Behaviour::End { .. } | Behaviour::X(_) | Behaviour::T { .. });
        let octets = |most: u64, random: &mut Random| 8 * (1 + random.below(most)) as u8;
        let flavours = (flavoured && random.below(2) == 0).then(|| Flavours {
            psp: random.below(2) == 0,
            usp: random.below(20) == 0,
            usd: random.below(20) == 0,
            next_csid: (random.below(2) == 0)
                .then(|| NextCsid { block: octets(12, random), node_function: octets(9, random) })
                .filter(|csid| csid.block + csid.node_function < 128),
        });
        let counter =
            (random.below(3) > 0).then(|| self.counters[random.below(self.counters.len() as u64) as usize]);
        Endpoint { behaviour, flavours, counter, link: self.links[0] }
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
        Headend { mode, header: header.into(), room, hmac_open: false, via, link: self.links[0], plain: None }
    }

    /// Adds a route of either family, or changes one.
    fn add_route(&mut self, vrf: usize, random: &mut Random) {
        let mut action = random.below(ACTIONS as u64) as usize;
        let to_tunnel =
            (random.below(12) == 0).then(|| tunnels::local(random.below(TUNNELS as u64) as usize));
        if to_tunnel.is_some() {
            action = LOCAL_ACTION;
        }
        let (id, table) = (self.actions[action].0, usize::from(random.below(4) == 0));
        let of = &mut self.vrfs[vrf];
        if to_tunnel.is_some() || random.below(3) == 0 {
            let len = match random.below(4) {
                _ if to_tunnel.is_some() => 32,
                0 => random.below(33) as u8,
                1 => 24,
                2 => 32,
                _ => 16,
            };
            let prefix = to_tunnel.unwrap_or_else(|| address4(random)).to_bits() & mask(len, 32) as u32;
            let prefix = Ipv4Addr::from_bits(prefix);
            of.routes4
                .retain(|(in_table, route)| (*in_table, route.prefix, route.len) != (table, prefix, len));
            of.routes4.push((table, Route { prefix, len, action }));
            self.writer.insert4(of.fibs4[table], prefix, len, id);
        } else {
            let len = match random.below(8) {
                0 | 1 => random.below(129) as u8,
                2 => 64,
                3 => 48,
                4 => 32,
                5 => 8 * random.below(17) as u8,
                _ => 128,
            };
            let prefix = Ipv6Addr::from_bits(address6(random).to_bits() & mask(len, 128));
            of.routes6
                .retain(|(in_table, route)| (*in_table, route.prefix, route.len) != (table, prefix, len));
            of.routes6.push((table, Route { prefix, len, action }));
            self.writer.insert6(of.fibs6[table], prefix, len, id);
        }
    }

    fn remove_route(&mut self, vrf: usize, random: &mut Random) {
        let of = &mut self.vrfs[vrf];
        let (four, six) = (of.routes4.len(), of.routes6.len());
        if four + six == 0 {
            return;
        }
        let which = random.below((four + six) as u64) as usize;
        if which < four {
            let (table, route) = of.routes4.swap_remove(which);
            self.writer.remove4(of.fibs4[table], route.prefix, route.len);
        } else {
            let (table, route) = of.routes6.swap_remove(which - four);
            self.writer.remove6(of.fibs6[table], route.prefix, route.len);
        }
    }
}

impl Vrf {
    fn new(writer: &mut Writer) -> Self {
        let (fibs4, fibs6) = ([(); 2].map(|()| writer.add_fib4()), [(); 2].map(|()| writer.add_fib6()));
        let order = Lookup { fibs4: [fibs4[0]].into(), fibs6: [fibs6[0]].into(), ..Lookup::default() };
        let lookup = writer.add_lookup(order.clone());
        Self { lookup, order, fibs4, fibs6, routes4: Vec::new(), routes6: Vec::new() }
    }
}

/// A VRF, the first one more often.
fn any_vrf(random: &mut Random) -> usize {
    random.below(VRFS as u64 + 5).saturating_sub(5) as usize
}

/// The first `len` of `bits` bits.
fn mask(len: u8, bits: u8) -> u128 {
    let all = u128::MAX >> (128 - bits);
    if len == 0 { 0 } else { all & all << (bits - len) }
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
