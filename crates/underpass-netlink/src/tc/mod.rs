//! Traffic control: the messages of `tc`. Linux: `include/uapi/linux/rtnetlink.h`, `pkt_sched.h`, `pkt_cls.h`.
//!
//! ```text
//! |     family    |                       0                       |
//! |                    index of the link (s32)                    |
//! |                            handle                             |
//! |                            parent                             |
//! |                             info                              |
//! ```
//!
//! A `struct tcmsg`, in host byte order. A handle is two numbers, `major:minor`, the upper and the lower 16 bits.

pub mod action;
pub mod basic;
pub mod cake;
pub mod codel;
pub mod flower;
pub mod fq;
pub mod fq_codel;
pub mod fw;
pub mod htb;
pub mod matchall;
pub mod netem;
pub mod queue;
pub mod rate;
pub mod red;
pub mod sfq;
pub mod stab;
pub mod statistics;
pub mod tbf;
pub mod u32;

use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;

pub use rate::Rate;
pub use statistics::{Own, Statistics};

/// Length of a `struct tcmsg`.
pub const HEADER: usize = 20;

/// Name of the kind: `htb`, `u32`.
pub const TCA_KIND: u16 = 1;
/// What the kind adds, in attributes of its own.
pub const TCA_OPTIONS: u16 = 2;
/// A `struct tc_stats`, for old programs.
pub const TCA_STATS: u16 = 3;
/// Statistics of the kind.
pub const TCA_XSTATS: u16 = 4;
/// A `struct tc_estimator`.
pub const TCA_RATE: u16 = 5;
/// Statistics, in `TCA_STATS_*`.
pub const TCA_STATS2: u16 = 7;
/// A size table.
pub const TCA_STAB: u16 = 8;
/// Nothing: aligns what follows.
pub const TCA_PAD: u16 = 9;
/// Whether default qdiscs are shown too.
pub const TCA_DUMP_INVISIBLE: u16 = 10;
/// Index of a chain.
pub const TCA_CHAIN: u16 = 11;
/// Whether a qdisc is offloaded, a byte.
pub const TCA_HW_OFFLOAD: u16 = 12;
/// Index of a filter block shared by ingress hooks.
pub const TCA_INGRESS_BLOCK: u16 = 13;
/// Index of a filter block shared by egress hooks.
pub const TCA_EGRESS_BLOCK: u16 = 14;
/// A bit field of what a dump is to say.
pub const TCA_DUMP_FLAGS: u16 = 15;
/// A warning in a notification.
pub const TCA_EXT_WARN_MSG: u16 = 16;
/// Highest attribute type.
pub const TCA_MAX: u16 = TCA_EXT_WARN_MSG;

/// The policy of all requests but dumps: `rtm_tca_policy`, checked liberally.
pub const POLICY: [Type; TCA_MAX as usize + 1] = policy(&[
    (TCA_KIND, Type::String(u16::MAX)),
    (TCA_RATE, Type::AtLeast(2)),
    (TCA_STAB, Type::Nested),
    (TCA_DUMP_INVISIBLE, Type::Flag),
    (TCA_CHAIN, Type::U32),
    (TCA_INGRESS_BLOCK, Type::U32),
    (TCA_EGRESS_BLOCK, Type::U32),
]);

/// `RTNLGRP_TC`: who hears of changes.
pub const GROUP: u32 = 4;

/// `TC_H_ROOT`: the parent of the qdisc of a link.
pub const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`: the parent of `ingress` and `clsact`.
pub const INGRESS: u32 = 0xffff_fff1;
/// `ffff:`: the handle of `ingress` and `clsact`.
pub const HOOK: u32 = 0xffff_0000;
/// The class of `clsact` where packets come in: `ffff:fff2`.
pub const MIN_INGRESS: u32 = 0xfff2;
/// The class of `clsact` where packets leave: `ffff:fff3`.
pub const MIN_EGRESS: u32 = 0xfff3;

/// The upper half of a handle, in its place.
pub const fn major(handle: u32) -> u32 {
    handle & 0xffff_0000
}

/// The lower half of a handle.
pub const fn minor(handle: u32) -> u32 {
    handle & 0xffff
}

/// What each message of traffic control begins with: `struct tcmsg`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Address family, 0.
    pub family: u8,
    /// Index of the link; `u32::MAX` where `parent` is the index of a shared block.
    pub link: u32,
    /// Handle of the object.
    pub handle: u32,
    /// Handle of what it is attached to.
    pub parent: u32,
    /// Of a filter its priority, in the upper half, and the protocol in network byte order. Of a qdisc who uses it.
    pub info: u32,
}

impl Header {
    /// Reads the fixed part of a message.
    pub fn read(bytes: &[u8; HEADER]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word));
        Self { family: bytes[0], link: word(1), handle: word(2), parent: word(3), info: word(4) }
    }

    /// Writes it.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.fixed(&[self.family, 0, 0, 0]);
        for word in [self.link, self.handle, self.parent, self.info] {
            reply.fixed(&word.to_ne_bytes());
        }
    }
}

/// How a rate is counted: `struct tc_ratespec`, 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateSpec {
    /// Size of a cell of the rate table, as a power of 2.
    pub cell_log: u8,
    /// `TC_LINKLAYER_*`: 0 unknown, 1 Ethernet, 2 ATM.
    pub linklayer: u8,
    /// Bytes that are added to each packet; -1 to 65535.
    pub overhead: u16,
    /// Where cells begin.
    pub cell_align: i16,
    /// Least size of a packet, in bytes.
    pub mpu: u16,
    /// Bytes a second; `u32::MAX` where another attribute has more.
    pub rate: u32,
}

impl RateSpec {
    /// Length in a message.
    pub const LEN: usize = 12;

    /// Reads it.
    pub const fn read(bytes: &[u8; Self::LEN]) -> Self {
        let [cell_log, linklayer, a, b, c, d, e, f, g, h, i, j] = *bytes;
        Self {
            cell_log,
            linklayer,
            overhead: u16::from_ne_bytes([a, b]),
            cell_align: i16::from_ne_bytes([c, d]),
            mpu: u16::from_ne_bytes([e, f]),
            rate: u32::from_ne_bytes([g, h, i, j]),
        }
    }

    /// Writes it.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let [a, b] = self.overhead.to_ne_bytes();
        let [c, d] = self.cell_align.to_ne_bytes();
        let [e, f] = self.mpu.to_ne_bytes();
        let [g, h, i, j] = self.rate.to_ne_bytes();
        [self.cell_log, self.linklayer, a, b, c, d, e, f, g, h, i, j]
    }
}

/// `PSCHED_TICKS2NS`: a tick of traffic control is 64 ns.
pub const fn ticks_to_ns(ticks: u64) -> u64 {
    ticks << 6
}

/// `PSCHED_NS2TICKS`.
pub const fn ns_to_ticks(ns: u64) -> u64 {
    ns >> 6
}

/// A `struct nla_bitfield32`: the values of the bits that are selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bits {
    /// Values.
    pub value: u32,
    /// Which bits are meant.
    pub selector: u32,
}

impl Bits {
    /// Reads it; missing bytes are 0.
    pub fn read(attribute: &Attribute<'_>) -> Self {
        let word = |at: usize| {
            let bytes = attribute.value.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        Self { value: word(0), selector: word(4) }
    }

    /// Writes it.
    pub fn write(self, reply: &mut Reply<'_>, kind: u16) {
        let [value, selector] = [self.value, self.selector].map(u32::to_ne_bytes);
        reply.attribute(kind, &[value, selector].concat());
    }
}

/// A `u32` of a structure, in host byte order; 0 past its end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

/// `TCA_CLS_FLAGS_SKIP_HW`: not in hardware.
pub const SKIP_HW: u32 = 1;
/// `TCA_CLS_FLAGS_SKIP_SW`: in hardware alone.
pub const SKIP_SW: u32 = 2;
/// `TCA_CLS_FLAGS_NOT_IN_HW`.
pub const NOT_IN_HW: u32 = 8;
/// `TCA_CLS_FLAGS_VERBOSE`.
const VERBOSE: u32 = 16;

/// Whether a request may have these `TCA_CLS_FLAGS_*`. Linux: `tc_flags_valid`.
const fn flags_valid(flags: u32) -> bool {
    flags & !(SKIP_HW | SKIP_SW | VERBOSE) == 0 && flags & (SKIP_HW | SKIP_SW) != SKIP_HW | SKIP_SW
}

/// The attributes inside the options of a classifier that reports no texts.
fn exts_options<'a, const N: usize>(
    options: &Attribute<'a>,
    policy: &[Type; N],
) -> Result<Attributes<'a, N>, RequestError> {
    options.parse_nested(policy, Validate::Liberal).map_err(|error| RequestError::errno(error.errno))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    proptest! {
        #[test]
        fn what_is_read_is_written(bytes: [u8; HEADER], rate: [u8; RateSpec::LEN]) {
            let again = written(|reply| Header::read(&bytes).write(reply));
            prop_assert_eq!(&again[4..], &bytes[4..]);
            prop_assert_eq!(again[0], bytes[0]);
            prop_assert_eq!(RateSpec::read(&rate).bytes(), rate);
        }
    }

    #[test]
    fn handles() {
        assert_eq!((major(INGRESS), minor(INGRESS)), (0xffff_0000, 0xfff1));
        assert_eq!(ns_to_ticks(ticks_to_ns(15_625)), 15_625);
    }
}
