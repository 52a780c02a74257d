//! `mirred`: sends the packet, or a copy of it, by a link, or takes it in as if it had come by one. Linux:
//! `net/sched/act_mirred.c`.
//!
//! ```text
//! TCA_MIRRED_PARMS: tc_gen, eaction (s32), ifindex (u32). TCA_MIRRED_BLOCKID (u32).
//! ```

use libc::{EINVAL, EOPNOTSUPP};

use super::{Generic, Times};
use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PAD: u16 = 3;
const BLOCKID: u16 = 4;

const POLICY: [Type; 5] = policy(&[(PARMS, Type::AtLeast(28)), (BLOCKID, Type::U32)]);

/// What becomes of the packet: `TCA_{E,IN}GRESS_{REDIR,MIRROR}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MirredAction {
    /// It leaves by the link.
    EgressRedirect = 1,
    /// A copy leaves by the link.
    EgressMirror = 2,
    /// It comes in by the link.
    IngressRedirect = 3,
    /// A copy comes in by the link.
    IngressMirror = 4,
}

/// A redirect or a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mirred {
    /// Index and control action.
    pub generic: Generic,
    /// `eaction`; see [`Mirred::way`].
    pub eaction: i32,
    /// Index of the link; 0 in a request that keeps the one there is.
    pub link: u32,
}

impl Mirred {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_mirred_init` until it looks for the action; `EOPNOTSUPP` for a shared block.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let missing = RequestError::new(EINVAL, "act_mirred: Mirred requires attributes to be passed");
        let attributes = attribute.ok_or(missing)?.parse_nested(&POLICY, Validate::Liberal)?;
        let missing = RequestError::new(EINVAL, "act_mirred: Missing required mirred parameters");
        let parms = attributes.get(PARMS).ok_or(missing)?;
        let word = |at: usize| {
            let bytes = parms.value.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let mirred = Self {
            generic: Generic::read(parms.value),
            eaction: word(Generic::LEN) as i32,
            link: word(Generic::LEN + 4),
        };
        if let Some(block) = attributes.get(BLOCKID) {
            if mirred.link != 0 {
                let message = "act_mirred: Cannot specify Block ID and dev simultaneously";
                return Err(RequestError::new(EINVAL, message));
            }
            return Err(RequestError::new(EOPNOTSUPP, "Shared blocks are not supported by this router")
                .at(block.offset));
        }
        Ok(mirred)
    }

    /// What becomes of the packet.
    ///
    /// # Errors
    /// `EINVAL` for a number that is none.
    pub const fn way(&self) -> Result<MirredAction, RequestError> {
        match self.eaction {
            1 => Ok(MirredAction::EgressRedirect),
            2 => Ok(MirredAction::EgressMirror),
            3 => Ok(MirredAction::IngressRedirect),
            4 => Ok(MirredAction::IngressMirror),
            _ => Err(RequestError::new(EINVAL, "act_mirred: Unknown mirred option")),
        }
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        let mut parms = self.generic.bytes();
        parms.extend_from_slice(&self.eaction.to_ne_bytes());
        parms.extend_from_slice(&self.link.to_ne_bytes());
        reply.attribute(PARMS, &parms);
        times.write(reply, TM, PAD);
    }
}
