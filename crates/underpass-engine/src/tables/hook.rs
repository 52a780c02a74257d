//! The filters that classify every packet that comes in or goes out by a link.
//!
//! A [`Hook`] is the filters of one place: `ingress` or `egress` of a link (`clsact`), or of a qdisc. Its chains
//! hold priorities, a priority holds filters of one classifier, and a filter leads to actions, which several filters
//! may share. Order and outcome are those of `tcf_classify` and `tcf_action_exec` of Linux's `net/sched`.

use super::{Ematch, FlowerKey, LinkId, TcActionId};
use crate::counters::{CounterId, TcCounterId};

/// The protocol of a [`FilterPriority`] that takes packets of any EtherType: `ETH_P_ALL`.
pub const ANY_PROTOCOL: u16 = 0x0003;

/// The filters of one place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hook {
    /// What the qdisc of the place counts (`ingress`, `clsact`): each packet that is classified, and drops. `None` where
    /// the filters are those of a qdisc that counts for itself. Ingress and egress of one `clsact` share it.
    pub counter: Option<TcCounterId>,
    /// The chains, each number once. Packets begin in chain 0; without it every packet passes.
    pub chains: Vec<FilterChain>,
    /// The hash tables of all u32 filters of the place, which [`Classifier::U32`] and [`U32Node::link`] name by
    /// where they are in this list.
    pub u32_tables: Vec<U32Table>,
}

/// Filters in the order in which they classify.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FilterChain {
    /// The number that `goto chain` names.
    pub index: u32,
    /// By rising `prio`, and as Linux orders equal ones.
    pub priorities: Vec<FilterPriority>,
}

/// The filters of one priority and protocol, which are of one kind (`struct tcf_proto`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterPriority {
    /// The EtherType of the packets that it classifies, in host byte order; [`ANY_PROTOCOL`]: all. A packet with a VLAN
    /// tag has that of the tag.
    pub protocol: u16,
    /// How they are distinguished.
    pub classifier: Classifier,
}

/// How filters of a priority distinguish packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Classifier {
    /// `matchall`: every packet.
    Matchall(Outcome),
    /// `basic`: the first whose ematches hold, in order of their handles' list.
    Basic(Vec<BasicFilter>),
    /// `u32`: from bucket 0 of this table on, by its place in [`Hook::u32_tables`].
    U32(usize),
    /// `flower`: masks in the order in which they first occur; of those with the same mask the one whose key is that
    /// of the packet.
    Flower(Vec<FlowerFilter>),
    /// `fw`: by the packet's mark.
    Fw(Fw),
}

/// What a packet that matches a filter is in for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// `classid` or `flowid`: major number in the upper 16 bits, minor in the lower. 0: none.
    pub class: u32,
    /// What is done to it, in order.
    pub actions: Vec<TcActionId>,
    /// Counts packets and bytes that matched, and as errors packets that did not. `flower` counts only
    /// those that matched.
    pub counter: Option<CounterId>,
}

/// A filter of `basic`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BasicFilter {
    /// The conditions of a packet, as a sequence in which each names how it is joined to what follows. Empty: matches.
    pub ematches: Vec<Ematch>,
    /// What then.
    pub outcome: Outcome,
}

/// Filters of `fw`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fw {
    /// The mark is the class, if its major number is that of the qdisc or 0: a `fw` priority without filters.
    Classes {
        /// The handle of the qdisc, its minor number 0.
        qdisc: u32,
    },
    /// The filter whose handle is the mark, as far as `mask` has bits.
    Marks {
        /// Bits of the mark that count.
        mask: u32,
        /// By handle.
        filters: Vec<FwFilter>,
    },
}

/// A filter of `fw`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FwFilter {
    /// The mark.
    pub handle: u32,
    /// The link that a packet must have come in by: `indev`.
    pub ingress: Option<LinkId>,
    /// What then.
    pub outcome: Outcome,
}

/// A hash table of u32 nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct U32Table {
    /// As many as the divisor, a power of two up to 256; each in the order in which its nodes classify.
    pub buckets: Vec<Vec<U32Node>>,
}

/// A filter of `u32`, or a link to another table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct U32Node {
    /// All of which must hold.
    pub keys: Vec<U32Key>,
    /// Counts for each key how often it held, in the order of `keys`; empty: not counted.
    pub key_counters: Vec<CounterId>,
    /// The packet's mark must be the first number where the second has bits.
    pub mark: Option<(u32, u32)>,
    /// Counts how often that held.
    pub mark_counter: Option<CounterId>,
    /// The link that a packet must have come in by: `indev`.
    pub ingress: Option<LinkId>,
    /// Whether a packet that matches, and that no node of the table linked to has taken, is in for `outcome`
    /// (`TC_U32_TERMINAL`).
    pub terminal: bool,
    /// The table to go on in, by its place in [`Hook::u32_tables`].
    pub link: Option<usize>,
    /// Where the header that the linked table looks at begins.
    pub next: U32Next,
    /// What then.
    pub outcome: Outcome,
}

/// One comparison of `u32`: numbers in host byte order of the four bytes as they are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct U32Key {
    /// What the bits of `mask` must be.
    pub value: u32,
    /// Bits that count.
    pub mask: u32,
    /// Bytes behind the start of the present header; may be negative.
    pub offset: i32,
    /// Which bits of the offset that a link has worked out are added (`nexthdr+`): -1 or 0.
    pub offset_mask: i32,
}

/// How a link of `u32` finds the next header and the bucket: the fields of `struct tc_u32_sel`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct U32Next {
    /// Whether `fixed` is the offset of the next header (`TC_U32_OFFSET`).
    pub has_fixed: bool,
    /// Whether it is read from the packet too (`TC_U32_VAROFFSET`).
    pub has_variable: bool,
    /// Whether what follows counts from there: `offset … eat` (`TC_U32_EAT`).
    pub eat: bool,
    /// Bytes: `offset plus`.
    pub fixed: u16,
    /// Where two bytes of the packet say how many more: `offset at`.
    pub variable_at: i16,
    /// Which of their bits, in host byte order.
    pub variable_mask: u16,
    /// Shifted right by so many: `offset … shift`.
    pub variable_shift: u8,
    /// Where four bytes of the packet say which bucket: `hashkey … at`.
    pub hash_at: i16,
    /// Which of their bits, in host byte order; moved down to the lowest bit.
    pub hash_mask: u32,
}

/// A filter of `flower`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowerFilter {
    /// What a packet must have, where `mask` has bits.
    pub key: FlowerKey,
    /// Bits that count.
    pub mask: FlowerKey,
    /// The least and greatest source port.
    pub source_ports: Option<(u16, u16)>,
    /// The least and greatest destination port.
    pub destination_ports: Option<(u16, u16)>,
    /// What then.
    pub outcome: Outcome,
}
