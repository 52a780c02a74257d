//! Changes of tables.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_engine::tables::{Fib4Id, Fib6Id, Lookup, Rule, RuleAction};
use underpass_packet::protocol;

use crate::labels::{self, LABELS};
use crate::random::Random;
use crate::router::{
    ACTIONS, DEVICES, FIRST_VLAN, LINKS, LOCAL_ACTION, NEXT_HOPS, ROUTES, Route, Router, VRFS, Vrf, address4,
    address6, any_vrf,
};
use crate::tunnels::{self, PORTS, TUNNELS};

impl Router {
    /// Puts everything in the place of what is there.
    pub fn configure(&mut self, random: &mut Random) {
        for vrf in 0..VRFS {
            self.empty(vrf);
            self.order(vrf, random);
        }
        (0..LINKS).for_each(|device| self.change_link(device, random));
        self.filters.configure(&mut self.writer, random);
        (0..NEXT_HOPS).for_each(|next_hop| self.change_next_hop(next_hop, random));
        (0..TUNNELS).for_each(|tunnel| self.change_tunnel(tunnel, random));
        (0..PORTS.len()).for_each(|port| self.change_fou_port(port, random));
        (0..ACTIONS).for_each(|action| self.change_action(action, random));
        (0..LABELS).for_each(|label| self.change_label(label, random));
        self.writer.set_uniform_classes(random.below(10) == 0);
        for vrf in 0..VRFS {
            let count = random.below(ROUTES);
            (0..count).for_each(|_| self.add_route(vrf, random));
        }
        self.writer.leave_programs();
        self.writer.reclaim();
    }

    /// Changes something that changes nothing for packets in which there are these addresses and no others.
    pub fn stir(&mut self, random: &mut Random, kept: &Addresses) {
        let (vrf, of) = (&self.vrfs[random.below(VRFS as u64) as usize], random.next() as usize);
        match random.below(100) {
            0..40 => {
                let (len, action) = (20 + random.below(109) as u8, of % ACTIONS);
                let prefix = address6(random).to_bits() & mask(len, 128);
                let any = |route: &(usize, Route<Ipv6Addr>)| {
                    route.1.len == len && route.1.prefix.to_bits() == prefix
                };
                if !kept.any6(prefix, len) && !vrf.routes6.iter().any(any) {
                    let (fib, prefix) = (vrf.fibs6[of & 1], Ipv6Addr::from_bits(prefix));
                    if self.writer.insert6(fib, prefix, len, self.actions[action].0).is_some() {
                        self.writer.remove6(fib, prefix, len);
                    }
                }
            }
            40..60 => {
                let (len, action) = (16 + random.below(17) as u8, of % ACTIONS);
                let prefix = address4(random).to_bits() & mask(len, 32) as u32;
                let any = |route: &(usize, Route<Ipv4Addr>)| {
                    route.1.len == len && route.1.prefix.to_bits() == prefix
                };
                if !kept.any4(prefix, len) && !vrf.routes4.iter().any(any) {
                    let (fib, prefix) = (vrf.fibs4[of & 1], Ipv4Addr::from_bits(prefix));
                    if self.writer.insert4(fib, prefix, len, self.actions[action].0).is_some() {
                        self.writer.remove4(fib, prefix, len);
                    }
                }
            }
            60..70 => {
                let (id, next_hop) = self.next_hops[of % NEXT_HOPS];
                self.writer.set_next_hop(id, next_hop);
            }
            70..85 => {
                let (id, action) = self.actions[of % ACTIONS].clone();
                self.writer.set_action(id, action);
            }
            85..90 => {
                let number = of % self.links.len();
                self.writer.set_link(self.links[number], self.now_links[number].clone());
            }
            90..94 => {
                let (lookup, order) = (vrf.lookup, vrf.order.clone());
                self.writer.set_lookup(lookup, order);
            }
            94..98 => {
                let (id, tunnel) = self.tunnels[of % TUNNELS].clone();
                self.writer.set_tunnel(id, tunnel);
            }
            _ => {
                self.writer.leave_programs();
                self.writer.reclaim();
            }
        }
    }

    /// Changes something.
    pub fn change(&mut self, random: &mut Random) {
        let (vrf, of) = (random.below(VRFS as u64) as usize, random.next() as usize);
        self.writer.set_aside(false);
        match random.below(421) {
            0..190 => self.add_route(vrf, random),
            190..200 => self.filters.change(&mut self.writer, random),
            200..300 => self.remove_route(vrf, random),
            300..340 => self.change_next_hop(of % NEXT_HOPS, random),
            340..375 => self.change_action(of % ACTIONS, random),
            375..384 => self.change_tunnel(of % TUNNELS, random),
            384..387 => self.change_fou_port(of % PORTS.len(), random),
            387..393 => self.change_link(of % LINKS, random),
            393..396 => self.order(vrf, random),
            400..420 => self.change_label(of % LABELS, random),
            420 => self.writer.set_uniform_classes(random.below(4) == 0),
            396 => self.empty(vrf),
            397 => self.remake(vrf, random),
            398 => self.writer.set_aside(true),
            _ => {
                self.writer.leave_programs();
                self.writer.reclaim();
            }
        }
    }

    /// Adds so many routes to tables of a VRF that they are laid out for programs, of IPv4 flat and of IPv6 in buckets: most
    /// where few packets go, some deep in the nets where many do.
    pub fn enlarge(&mut self, vrf: usize, random: &mut Random) {
        let nets = (0..=u16::MAX).map(|net| (11 << 24 | u32::from(net) << 8, 24));
        let mut deep = Random(random.next());
        let deep = (0..3000).map(|_| (address4(&mut deep).to_bits(), 25 + deep.below(8) as u8));
        for (address, len) in nets.chain(deep) {
            let prefix = Ipv4Addr::from_bits(address & mask(len, 32) as u32);
            let action = self.actions[random.below(ACTIONS as u64) as usize].0;
            self.writer.insert4(self.vrfs[vrf].fibs4[0], prefix, len, action);
        }
        let nets = (0..5000u128).map(|net| (0x2400 << 112 | net << 90, 48));
        let deep = (0..3000).map(|_| (address6(random).to_bits(), 28 + random.below(37) as u8));
        for (address, len) in nets.chain(deep.collect::<Vec<_>>()) {
            let prefix = Ipv6Addr::from_bits(address & mask(len, 128));
            let action = self.actions[random.below(ACTIONS as u64) as usize].0;
            self.writer.insert6(self.vrfs[vrf].fibs6[0], prefix, len, action);
        }
    }

    /// A VRF goes, and another comes; whoever was in it is in that.
    fn remake(&mut self, vrf: usize, random: &mut Random) {
        self.empty(vrf);
        let new = Vrf::new(&mut self.writer);
        let old = std::mem::replace(&mut self.vrfs[vrf], new);
        for device in (0..LINKS).filter(|device| self.of_links[*device] == vrf).collect::<Vec<_>>() {
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
            priority: 100,
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
        self.writer.set_link(self.links[device], link.clone());
        self.now_links[device] = link;
        if device >= FIRST_VLAN {
            (0..DEVICES).for_each(|device| self.change_vlans(device));
        }
    }

    /// Says which VLAN devices are above a device.
    fn change_vlans(&mut self, device: usize) {
        let vlans = self.vlans_above(device);
        let link = &mut self.now_links[device];
        if link.vlans != vlans {
            link.vlans = vlans;
            self.writer.set_link(self.links[device], link.clone());
        }
    }

    fn change_next_hop(&mut self, number: usize, random: &mut Random) {
        let next_hop = self.next_hop(random);
        self.writer.set_next_hop(self.next_hops[number].0, next_hop);
        self.next_hops[number].1 = next_hop;
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

    fn change_label(&mut self, label: usize, random: &mut Random) {
        let action = labels::action(self, random);
        self.writer.set_label(labels::number(label), action);
    }

    fn change_fou_port(&mut self, number: usize, random: &mut Random) {
        self.ports[number] = self.fou_port(number, random);
        self.writer.set_fou_port(self.fou_ports[number], self.ports[number]);
    }

    /// Adds a route of either family, or changes one.
    fn add_route(&mut self, vrf: usize, random: &mut Random) {
        let mut action = random.below(ACTIONS as u64) as usize;
        // To the end of a tunnel, over either family.
        let end = random.below(TUNNELS as u64) as usize;
        let (to_tunnel, to_tunnel6) = match random.below(24) {
            0 | 1 => (Some(tunnels::local(end)), None),
            2 | 3 => (None, Some(tunnels::local6(end))),
            _ => (None, None),
        };
        if to_tunnel.is_some() || to_tunnel6.is_some() {
            action = LOCAL_ACTION;
        }
        let (id, table) = (self.actions[action].0, usize::from(random.below(4) == 0));
        let of = &mut self.vrfs[vrf];
        if to_tunnel6.is_none() && (to_tunnel.is_some() || random.below(3) == 0) {
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
                _ if to_tunnel6.is_some() => 128,
                0 | 1 => random.below(129) as u8,
                2 => 64,
                3 => 48,
                4 => 32,
                5 => 8 * random.below(17) as u8,
                _ => 128,
            };
            let prefix = to_tunnel6.unwrap_or_else(|| address6(random)).to_bits() & mask(len, 128);
            let prefix = Ipv6Addr::from_bits(prefix);
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

/// All that may be an address in packets.
pub struct Addresses {
    four: BTreeSet<u32>,
    six: BTreeSet<u128>,
}

impl Addresses {
    pub fn in_frames<'f>(frames: impl Iterator<Item = &'f [u8]>) -> Self {
        let (mut four, mut six) = (BTreeSet::new(), BTreeSet::new());
        for frame in frames {
            four.extend(frame.windows(4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())));
            six.extend(frame.windows(16).map(|bytes| u128::from_be_bytes(bytes.try_into().unwrap())));
        }
        Self { four, six }
    }

    fn any4(&self, prefix: u32, len: u8) -> bool {
        self.four.range(prefix..=prefix | !(mask(len, 32) as u32)).next().is_some()
    }

    fn any6(&self, prefix: u128, len: u8) -> bool {
        self.six.range(prefix..=prefix | !mask(len, 128)).next().is_some()
    }
}

/// The first `len` of `bits` bits.
fn mask(len: u8, bits: u8) -> u128 {
    let all = u128::MAX >> (128 - bits);
    if len == 0 { 0 } else { all & all << (bits - len) }
}
