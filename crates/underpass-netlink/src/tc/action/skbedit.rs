//! `skbedit`: changes what is known of the packet: its mark and its priority. Linux: `net/sched/act_skbedit.c`.
//!
//! ```text
//! TCA_SKBEDIT_PARMS: tc_gen. TCA_SKBEDIT_PRIORITY, MARK, MASK (u32), QUEUE_MAPPING (u16), PTYPE (u16), FLAGS (u64)
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use super::{Generic, Times, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PRIORITY: u16 = 3;
const QUEUE_MAPPING: u16 = 4;
const MARK: u16 = 5;
const PAD: u16 = 6;
const PTYPE: u16 = 7;
const MASK: u16 = 8;
const FLAGS: u16 = 9;
const QUEUE_MAPPING_MAX: u16 = 10;

const POLICY: [Type; 11] = policy(&[
    (PARMS, Type::AtLeast(Generic::LEN as u16)),
    (PRIORITY, Type::U32),
    (QUEUE_MAPPING, Type::U16),
    (MARK, Type::U32),
    (PTYPE, Type::U16),
    (MASK, Type::U32),
    (FLAGS, Type::U64),
    (QUEUE_MAPPING_MAX, Type::U16),
]);

/// `SKBEDIT_F_INHERITDSFIELD`: the priority is the DS field of the packet, without its ECN bits.
const F_INHERIT_DS: u64 = 0x20;

/// A change of what is known of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skbedit {
    /// Index and control action.
    pub generic: Generic,
    /// The priority that it gets.
    pub priority: Option<u32>,
    /// The mark that it gets.
    pub mark: Option<u32>,
    /// Which bits of the mark.
    pub mask: Option<u32>,
    /// The priority is the DS field of the packet.
    pub inherit_ds: bool,
}

impl Skbedit {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_skbedit_init` until it looks for the action; `EOPNOTSUPP` for a queue or a packet type.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let parms = attributes.get(PARMS).ok_or(RequestError::errno(EINVAL))?;
        for (kind, message) in [
            (QUEUE_MAPPING, "Queue mapping is not supported by this router"),
            (PTYPE, "Packet types are not supported by this router"),
        ] {
            if let Some(attribute) = attributes.get(kind) {
                return Err(RequestError::new(EOPNOTSUPP, message).at(attribute.offset));
            }
        }
        let word = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u32());
        let flags = attributes.get(FLAGS).map_or(0, |flags| flags.u64());
        Ok(Self {
            generic: Generic::read(parms.value),
            priority: word(PRIORITY),
            mark: word(MARK),
            mask: word(MASK),
            inherit_ds: flags & F_INHERIT_DS != 0,
        })
    }

    /// Whether it does anything.
    ///
    /// # Errors
    /// `EINVAL` if it does not.
    pub const fn check(&self) -> Result<(), RequestError> {
        if self.priority.is_some() || self.mark.is_some() || self.mask.is_some() || self.inherit_ds {
            return Ok(());
        }
        Err(RequestError::errno(EINVAL))
    }

    pub(super) const fn offloads(&self) -> bool {
        match (self.priority, self.mark, self.mask) {
            (None, Some(_), None) | (Some(_), None, None) => !self.inherit_ds,
            _ => false,
        }
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        reply.attribute(PARMS, &self.generic.bytes());
        for (kind, value) in [(PRIORITY, self.priority), (MARK, self.mark), (MASK, self.mask)] {
            if let Some(value) = value {
                reply.u32(kind, value);
            }
        }
        if self.inherit_ds {
            reply.u64(FLAGS, F_INHERIT_DS);
        }
        times.write(reply, TM, PAD);
    }
}
