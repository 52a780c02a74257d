//! What programs read of links, look-ups, next hops and actions, each in a few words.
//!
//! The first word of a record has its own length in words in its highest byte. All numbers are in the machine's byte order; addresses and headers as on the wire. An address of a record, of a trie or
//! of a counter is how far it lies behind the first byte of the region. Where a record names another, it has the address of
//! the *slot* that holds the address of that, as it may be replaced by itself; a slot of 0 is one without a record.

use std::collections::BTreeSet;
use std::sync::atomic::{
    AtomicI64, AtomicU32,
    Ordering::{Relaxed, Release},
};

use underpass_packet::mpls::Entry;

use super::Programs;
use super::counters::{self, ProgramCounters};
use super::labels::ProgramLabels;
use super::region::Region;
use super::{filters, links, tunnels};
use crate::counters::CounterId;
use crate::lpm::{Arena, Words};
use crate::publish::Retirer;
use crate::tables::{
    Action, Behaviour, Csid, Discard, Endpoint, Headend, HeadendMode, LabelAction, Lookup, LookupId,
    Multipath, NextHopId, Push, StoredNextHop, TunnelRoute, Via,
};

/// Why a worker was given a packet that a program might have carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[repr(u32)]
pub enum MissCause {
    /// Not IP, of a VLAN without a device, or for another station.
    Frame,
    /// A header that is malformed, has options or extensions, or an address that is not simply forwarded.
    Header,
    /// Policy rules, more than two tables, or forwarding is off.
    Tables,
    /// No route.
    NoRoute,
    /// What the route or the SID says no program does.
    Action,
    /// What the SID needs is not in the packet.
    Segments,
    /// TTL or hop limit is used up.
    HopLimit,
    /// The neighbour is not resolved, or a qdisc, filters or another driver are where it would leave.
    NextHop,
    /// Longer than the link takes.
    TooLong,
    /// A large segment of which the program does not know how long its parts are.
    Segment,
    /// The kernel cannot put in or take out headers here.
    Room,
    /// A filter that no program knows, or a qdisc, looks at what comes in.
    Hooked,
    /// Packets are traced.
    Traced,
    /// In a bridge: a frame for a group, for the bridge itself, or from or for a station that is not known at its port.
    Station,
}

impl MissCause {
    /// All of them.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name, as `underpass stats` writes it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Kinds of actions, in byte 0 of their records.
pub mod kind {
    /// To a next hop: its slot at 8.
    pub const FORWARD: u8 = 1;
    /// Drop silently: `blackhole`.
    pub const BLACKHOLE: u8 = 2;
    /// SRv6 End: flavours in byte 1 ([`super::PSP`], [`super::NEXT_CSID`]); for NEXT-CSID at 16 and 24 the bits of the
    /// locator block in either half of an address, as numbers, and at 12 the bits to move by.
    pub const END: u8 = 3;
    /// End.X: the slot of the next hop at 8, flavours as of [`END`].
    pub const X: u8 = 4;
    /// End.T: the slot of the look-up at 8, flavours as of [`END`].
    pub const T: u8 = 5;
    /// End.DX2: the slot of the link at 8.
    pub const DX2: u8 = 6;
    /// End.DX4: the slot of the next hop at 8.
    pub const DX4: u8 = 7;
    /// End.DX6.
    pub const DX6: u8 = 8;
    /// End.DT4: the slot of the look-up at 8.
    pub const DT4: u8 = 9;
    /// End.DT6.
    pub const DT6: u8 = 10;
    /// End.DT46.
    pub const DT46: u8 = 11;
    /// H.Encaps: the slot of the next hop at 8, at 12 that of the look-up it was found by, the header from 16 on, its
    /// length at 2, the number of its counter at 4 as a SID has it.
    pub const ENCAPS: u8 = 12;
    /// Into a tunnel: at 8 the slot of the outer header for IPv4, at 12 that for IPv6, at 16 the longest packet or 0.
    pub const TUNNEL: u8 = 13;
    /// For the router itself, which may be the end of a tunnel.
    pub const LOCAL: u8 = 14;
    /// Multipath: how many paths at 2; from 8 on, of each the bound of the hash and the slot of its action.
    pub const MULTIPATH: u8 = 15;
    /// Labels: the slot of the next hop at 8, at 12 their TTL, or 0 for that of the packet; the entries from 16 on, their
    /// length at 2.
    pub const PUSH: u8 = 16;
}

/// End, End.X, End.T: penultimate segment pop.
pub const PSP: u8 = 1;
/// End, End.X, End.T: NEXT-CSID.
pub const NEXT_CSID: u8 = 2;
/// End, End.X, End.T: ultimate segment decapsulation. Of End there is the slot of its look-up at 8.
pub const USD: u8 = 4;

/// A link: packets that come in by it may be carried.
pub const IN: u16 = 1;
/// Packets may be sent by it.
pub const OUT: u16 = 2;
/// To the other end of the veth pair at once.
pub const PEER: u16 = 4;
/// IPv4 is forwarded.
pub const FORWARD4: u16 = 8;
/// IPv6 is forwarded.
pub const FORWARD6: u16 = 16;
/// It is in a VRF.
pub const IN_VRF: u16 = 32;
/// Packets may be sent by it from within the driver of another device.
pub const XDP_OUT: u16 = 64;
/// Labelled packets that come in are forwarded.
pub const LABELS: u16 = 128;
/// It is a VLAN device.
pub const VLAN: u16 = 256;
/// It is a port of a bridge, and frames that come in go through that. Not with [`IN`].
pub const BRIDGE: u16 = 512;
/// It is a port of a bridge, of which frames may leave by it.
pub const BRIDGE_OUT: u16 = 1024;

/// Most labels that a program puts on a packet.
pub const MOST_LABELS: usize = 8;

/// What a program may do with packets that leave by a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Nothing: all that leaves is the kernel's or the workers' to send.
    Not,
    /// Send it by the device.
    Redirect,
    /// Give it to the other end of the veth pair, in another namespace.
    Peer,
}

/// The programs of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfDevice {
    /// The interface index of the device by which workers get what no program carries.
    pub misses: u32,
    /// What is done with what leaves by it.
    pub leaving: Leaving,
    /// Whether packets may leave by it that programs in drivers carry.
    pub xdp: bool,
}

/// Where programs find what; all addresses in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Slots of links, by the index of the interface, below [`MOST_INTERFACES`].
    pub interfaces: u32,
    /// Slots of actions, by what a trie's mark says, less 1.
    pub actions: u32,
    /// The nodes of tries.
    pub nodes: u32,
    /// Bytes of the blocks that nodes are in, a word a class.
    pub sizes: u32,
    /// What is so for all packets: at 0 the bits of the first word of an IPv4 header that must be those of version 4 and no
    /// options, in the order of little-endian memory; at 4, not 0 while workers are to get all packets; at 8, while they are
    /// to get those of tunnels; at 16 the bits that a label takes over from the one whose place it takes;
    /// at 24, 64 bits, what the workers' clock lies behind that of the machine.
    pub common: u32,
    /// Ends of tunnels, by a hash of what they are found by.
    pub ends: u32,
    /// Ports of foo-over-UDP, by the UDP port.
    pub fou_ports: u32,
    /// Not 0 if a shorter path MTU than that of the link was ever reported.
    pub narrow: u32,
    /// The counters of the first processor.
    pub counters: u32,
    /// Slots of next hops, by their numbers.
    pub next_hops: u32,
    /// Slots of links, by their numbers.
    pub links: u32,
    /// Words of labels, and their counters of the first processor: [`super::labels`]. `None`: programs know no labels.
    pub labels: Option<(u32, u32)>,
}

/// Most paths of a multipath route that programs choose among.
pub const MOST_PATHS: usize = 64;

/// Interface indexes that have slots.
pub const MOST_INTERFACES: u32 = 1 << INTERFACE_BITS;
const INTERFACE_BITS: u32 = 16;
const LINK_BITS: u32 = counters::MOST_LINKS.trailing_zeros();
const LOOKUP_BITS: u32 = 16;
const NEXT_HOP_BITS: u32 = 20;
const ACTION_BITS: u32 = 24;
/// Words of 32 bits for what is so for all packets, as a power of two.
const COMMON_BITS: u32 = 3;
/// Words for records, as a power of two.
const RECORD_BITS: u32 = 25;
/// Words for the nodes of tries.
pub(crate) const NODE_BITS: u32 = 28;

/// Bytes of a word.
const WORD: usize = 8;

/// The records, and who keeps them.
pub(crate) struct Records {
    pub(super) interfaces: Words<AtomicU32>,
    pub(super) links: Words<AtomicU32>,
    pub(super) vlans: Words<AtomicU32>,
    /// The links with VLAN devices above them.
    pub(super) trunks: BTreeSet<u32>,
    pub(super) lookups: Words<AtomicU32>,
    pub(super) next_hops: Words<AtomicU32>,
    actions: Words<AtomicU32>,
    pub(super) tunnels: Words<AtomicU32>,
    pub(super) ends: Words<AtomicU32>,
    pub(super) fou_ports: Words<AtomicU32>,
    pub(super) blocks: Arena,
    pub(super) hooks: Words<AtomicU32>,
    pub(super) tc_actions: Words<AtomicU32>,
    pub(super) buckets: Words<AtomicI64>,
    sizes: Words,
    common: Words<AtomicU32>,
    pub(crate) counters: ProgramCounters,
    /// `None`: the region has no room for them.
    pub(crate) labels: Option<ProgramLabels>,
    /// What all of it is in.
    pub(crate) region: Region,
    wait: Box<dyn Fn() + Send>,
}

impl Records {
    /// None yet. `None`: the region has no room.
    pub(crate) fn new(programs: Programs) -> Option<Self> {
        let Programs { region, processors, wait } = programs;
        let sizes: Words = Words::within(&region, Arena::CLASSES.next_power_of_two().trailing_zeros())?;
        for class in 0..Arena::CLASSES {
            sizes.word(class).store((Arena::size_of_class(class) * WORD) as u64, Relaxed);
        }
        // What a packet may name that nobody has set: a program that reads memory that is not there yet finds zeros too, but
        // takes a microsecond for it.
        let there = |bits| -> Option<Words<AtomicU32>> {
            let words: Words<AtomicU32> = Words::within(&region, bits)?;
            (0..words.len()).for_each(|at| words.word(at).store(0, Relaxed));
            Some(words)
        };
        Some(Self {
            sizes,
            common: there(COMMON_BITS)?,
            interfaces: there(INTERFACE_BITS)?,
            hooks: Words::within(&region, filters::HOOK_BITS)?,
            tc_actions: Words::within(&region, filters::ACTION_BITS)?,
            buckets: Words::within(&region, filters::BUCKET_BITS)?,
            links: Words::within(&region, LINK_BITS)?,
            vlans: Words::within(&region, LINK_BITS + links::GROUP_BITS)?,
            trunks: BTreeSet::new(),
            lookups: Words::within(&region, LOOKUP_BITS)?,
            next_hops: Words::within(&region, NEXT_HOP_BITS)?,
            actions: Words::within(&region, ACTION_BITS)?,
            tunnels: Words::within(&region, tunnels::TUNNEL_BITS + 1)?,
            ends: there(tunnels::PLACE_BITS)?,
            fou_ports: there(u16::BITS)?,
            blocks: Arena::within(&region, RECORD_BITS)?,
            counters: ProgramCounters::new(&region, processors)?,
            labels: ProgramLabels::new(&region, processors),
            region,
            wait,
        })
    }

    /// Where programs find them, and the nodes of tries.
    pub(crate) fn places(&self, nodes: &Arena) -> Places {
        Places {
            interfaces: self.interfaces.offset(),
            actions: self.actions.offset(),
            nodes: nodes.words().offset(),
            counters: self.counters.offset(),
            sizes: self.sizes.offset(),
            common: self.common.offset(),
            ends: self.ends.offset(),
            fou_ports: self.fou_ports.offset(),
            narrow: 0,
            next_hops: self.next_hops.offset(),
            links: self.links.offset(),
            labels: self.labels.as_ref().map(ProgramLabels::places),
        }
    }

    /// What a label is to lead to from now on.
    pub(crate) fn set_label(&self, label: u32, action: Option<LabelAction>) {
        if let Some(labels) = &self.labels {
            labels.set(label, action, self.next_hops.len());
        }
    }

    /// Which bits a label takes over from the one whose place it takes: [`LabelTable::kept`](crate::tables::LabelTable).
    pub(crate) fn set_kept_of_labels(&self, kept: u32) {
        self.common.word(4).store(kept, Relaxed);
    }

    /// Has workers get the packets of all tunnels, or no longer.
    pub(crate) fn set_tunnels_aside(&self, aside: bool) {
        self.common.word(2).store(aside.into(), Relaxed);
    }

    /// Which of the first bits of an IPv4 header must be those of a plain packet.
    pub(crate) fn set_plain_bits4(&self, bits: u32) {
        self.common.word(0).store(bits, Relaxed);
    }

    /// Says what the workers' clock lies behind that of the machine, `CLOCK_MONOTONIC`, in nanoseconds.
    pub(crate) fn set_clock(&self, behind: u64) {
        let halves = behind.to_ne_bytes();
        for (at, half) in halves.as_chunks::<4>().0.iter().enumerate() {
            self.common.word(6 + at).store(u32::from_ne_bytes(*half), Relaxed);
        }
    }

    /// Has workers get all packets, or no longer.
    pub(crate) fn set_aside(&self, aside: bool) {
        self.common.word(1).store(aside.into(), Relaxed);
    }

    /// Whether an interface has a record.
    pub(crate) fn knows(&self, ifindex: u32) -> bool {
        self.interfaces.slot(ifindex).is_some() && self.interfaces.word(ifindex as usize).load(Relaxed) != 0
    }

    /// Waits until no program runs that may have seen what was there before.
    pub(crate) fn wait(&self) {
        (self.wait)();
    }

    /// Blocks that wait for readers to move on.
    pub(crate) fn waiting(&self) -> usize {
        self.blocks.waiting()
    }

    /// Makes the blocks that readers have left free to be used again.
    pub(crate) fn reclaim(&mut self, retirer: &Retirer) {
        self.blocks.reclaim(retirer);
    }

    /// Puts the record of an order of tables into its slot. `root4` and `root6`: where tries begin.
    ///
    /// ```text
    /// 8: first table of IPv4; 12: second; 16: first of IPv6; 20: second
    /// ```
    ///
    /// A first table of 0 says that there is none that programs know; a second, that there is no more.
    pub(crate) fn set_lookup(
        &mut self,
        id: LookupId,
        lookup: Option<&Lookup>,
        roots: (&dyn Fn(u32) -> u32, &dyn Fn(u32) -> u32),
        retirer: &Retirer,
    ) {
        let tables = |tables: Vec<u32>, rules: bool, root: &dyn Fn(u32) -> u32| {
            let roots: Vec<u32> = tables.into_iter().map(root).collect();
            match roots[..] {
                _ if rules || roots.contains(&0) => pair(0, 0),
                [one] => pair(one, 0),
                [one, other] => pair(one, other),
                _ => pair(0, 0),
            }
        };
        let record = lookup.map(|lookup| {
            let fibs4 = lookup.fibs4.iter().map(|fib| fib.0).collect();
            let fibs6 = lookup.fibs6.iter().map(|fib| fib.0).collect();
            vec![
                0,
                tables(fibs4, !lookup.rules4.is_empty(), roots.0),
                tables(fibs6, !lookup.rules6.is_empty(), roots.1),
            ]
        });
        self.lookups.put(&mut self.blocks, id.0, record, retirer);
    }

    /// Puts a next hop's record into its slot.
    ///
    /// ```text
    /// 0: slot of its link; 8: longest packet; 12: destination and source MAC address
    /// ```
    pub(crate) fn set_next_hop(
        &mut self,
        id: NextHopId,
        next_hop: Option<&StoredNextHop>,
        retirer: &Retirer,
    ) {
        let record = next_hop.filter(|next_hop| next_hop.plain_mtu != 0).and_then(|next_hop| {
            let [a, b, c, d, rest @ ..] = next_hop.mac;
            Some(vec![
                pair(self.links.slot(next_hop.link.0)?, 0),
                pair(next_hop.plain_mtu, u32::from_ne_bytes([a, b, c, d])),
                u64::from_ne_bytes(rest),
            ])
        });
        self.next_hops.put(&mut self.blocks, id.0, record, retirer);
    }

    /// Puts an action's record into its slot.
    pub(crate) fn set_action(&mut self, id: u32, action: Option<&Action>, retirer: &Retirer) {
        let record = action.and_then(|action| self.action(action));
        self.actions.put(&mut self.blocks, id, record, retirer);
    }

    fn action(&self, action: &Action) -> Option<Vec<u64>> {
        match action {
            Action::Forward(to) => Some(vec![kind::FORWARD.into(), pair(self.next_hops.slot(to.0)?, 0)]),
            Action::Discard(Discard::Blackhole) => Some(vec![kind::BLACKHOLE.into()]),
            Action::Endpoint(sid) => self.endpoint(sid),
            Action::Local => Some(vec![kind::LOCAL.into()]),
            Action::Multipath(Multipath { buckets }) if buckets.len() <= MOST_PATHS => {
                let mut record = vec![u64::from(kind::MULTIPATH) | (buckets.len() as u64) << 16];
                for (bound, action) in buckets {
                    record.push(pair(*bound, self.actions.slot(action.0)?));
                }
                Some(record)
            }
            Action::Tunnel(TunnelRoute { tunnel, next_hop: None, mtu, .. }) => {
                let slots = [0, 1].map(|n| self.tunnels.slot(tunnel.0.checked_mul(2)? + n));
                let [Some(inside4), Some(inside6)] = slots else { return None };
                Some(vec![kind::TUNNEL.into(), pair(inside4, inside6), pair(*mtu, 0)])
            }
            Action::Headend(policy) => self.headend(policy),
            Action::Push(push) => self.push(push),
            _ => None,
        }
    }

    fn push(&self, push: &Push) -> Option<Vec<u64>> {
        // A TTL of 0 would be that of the packet.
        if push.labels.len() > MOST_LABELS * Entry::LEN || push.ttl == Some(0) {
            return None;
        }
        let (next_hop, ttl) = (self.next_hops.slot(push.next_hop.0)?, push.ttl.unwrap_or(0));
        let mut record =
            vec![u64::from(kind::PUSH) | (push.labels.len() as u64) << 16, pair(next_hop, ttl.into())];
        record.extend(push.labels.chunks(WORD).map(|labels| {
            let mut word = [0; WORD];
            word.iter_mut().zip(labels).for_each(|(to, from)| *to = *from);
            u64::from_ne_bytes(word)
        }));
        Some(record)
    }

    /// Byte 1: flavours; 4: the number of the SID's counter, 1 more (two bytes); from 8 on what its behaviour needs; 32:
    /// the slot of the only look-up that packets may have come by, or 0.
    fn endpoint(&self, sid: &Endpoint) -> Option<Vec<u64>> {
        let counter = object_counter(sid.counter)?;
        let decapsulates = sid.flavours.is_some_and(|flavours| flavours.usd);
        let resolved = |via: &Via| self.next_hops.slot(via.resolved?.0);
        let instance = match &sid.behaviour {
            Behaviour::X(via) | Behaviour::DX4(via) | Behaviour::DX6(via) => {
                self.lookups.slot(via.lookup.0)?
            }
            // What is inside goes by the tables of the SID.
            Behaviour::End { lookup } if decapsulates => self.lookups.slot(lookup.0)?,
            _ => 0,
        };
        let (kind, slot) = match &sid.behaviour {
            Behaviour::End { .. } => (kind::END, instance),
            Behaviour::X(via) => (kind::X, resolved(via)?),
            Behaviour::T { lookup } => (kind::T, self.lookups.slot(lookup.0)?),
            Behaviour::DX2 { link } => (kind::DX2, self.links.slot(link.0)?),
            Behaviour::DX4(via) => (kind::DX4, resolved(via)?),
            Behaviour::DX6(via) => (kind::DX6, resolved(via)?),
            Behaviour::DT4 { lookup } => (kind::DT4, self.lookups.slot(lookup.0)?),
            Behaviour::DT6 { lookup, .. } => (kind::DT6, self.lookups.slot(lookup.0)?),
            Behaviour::DT46 { lookup } => (kind::DT46, self.lookups.slot(lookup.0)?),
            Behaviour::DX2V { .. } | Behaviour::DT2U { .. } | Behaviour::DT2M { .. } => return None,
            Behaviour::B6(_) | Behaviour::B6Encaps(_) | Behaviour::Bpf(_) => return None,
        };
        let (mut flags, mut masks, mut shift) = (0, [0; 2], 0);
        if let Some(flavours) = sid.flavours {
            // What is behind an SRH that is taken out is nobody's but a worker's.
            if flavours.usp || matches!(flavours.csid, Some(Csid::Replace(_))) {
                return None;
            }
            flags |= if flavours.psp { PSP } else { 0 } | if flavours.usd { USD } else { 0 };
            if let Some(Csid::Next(csid)) = flavours.csid {
                flags |= NEXT_CSID;
                let block = !(u128::MAX >> (csid.block & 127));
                masks = [(block >> 64) as u64, block as u64];
                shift = u32::from(csid.node_function);
                if !(8..64).contains(&shift) {
                    return None;
                }
            }
        }
        let first = u64::from(kind) | u64::from(flags) << 8 | u64::from(counter) << 32;
        Some(vec![first, pair(slot, shift), masks[0], masks[1], pair(instance, 0)])
    }

    fn headend(&self, policy: &Headend) -> Option<Vec<u64>> {
        if policy.mode != HeadendMode::Encap || policy.hmac_open || !policy.header.len().is_multiple_of(WORD)
        {
            return None;
        }
        let next_hop = self.next_hops.slot(policy.via.resolved?.0)?;
        let lookup = self.lookups.slot(policy.via.lookup.0)?;
        let counter = object_counter(policy.counter)?;
        let first = u64::from(kind::ENCAPS) | (policy.header.len() as u64) << 16 | u64::from(counter) << 32;
        let mut record = vec![first, pair(next_hop, lookup)];
        let words = policy.header.as_chunks::<WORD>().0;
        record.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        Some(record)
    }
}

/// How a record of a SID or a headend names its counter: its number and 1 more, 0 for none. `None`: programs have none of that
/// number.
fn object_counter(counter: Option<CounterId>) -> Option<u32> {
    match counter {
        None => Some(0),
        Some(CounterId(id)) => (id < counters::MOST_OBJECTS).then_some(id + 1),
    }
}

/// Two halves of a word, the one at the lower address first.
pub(super) fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

impl Words<AtomicU32> {
    /// The address of a slot. `None`: there is none of this number.
    pub(super) fn slot(&self, id: u32) -> Option<u32> {
        ((id as usize) < self.len()).then(|| self.offset() + 4 * id)
    }

    /// Puts a record, or none, into a slot.
    pub(super) fn put(&self, blocks: &mut Arena, id: u32, record: Option<Vec<u64>>, retirer: &Retirer) {
        if self.slot(id).is_none() {
            return;
        }
        let slot = self.word(id as usize);
        let old = slot.load(Relaxed);
        let record = record.filter(|words| words.len() < 1 << 8 && blocks.has_room());
        let new = record.map_or(0, |words| {
            let (block, _) = blocks.allocate(words.len());
            let at = block as usize * Arena::UNIT;
            for (n, word) in words.iter().enumerate() {
                let word = if n == 0 { *word | (words.len() as u64) << 56 } else { *word };
                blocks.words().word(at + n).store(word, Relaxed);
            }
            blocks.words().offset() + (at * WORD) as u32
        });
        // Release: the record before the slot that names it.
        slot.store(new, Release);
        if old != 0 {
            let at = (old - blocks.words().offset()) as usize / WORD;
            let len = (blocks.words().word(at).load(Relaxed) >> 56) as usize;
            blocks.release((at / Arena::UNIT) as u32, len, retirer);
        }
    }
}
