//! `gact`: decides what becomes of the packet, always or with a probability. Linux: `net/sched/act_gact.c`.
//!
//! ```text
//! TCA_GACT_PARMS: tc_gen. TCA_GACT_PROB: ptype (u16), pval (u16), paction (s32).
//! ```

use libc::EINVAL;

use super::{GOTO_CHAIN, Generic, OK, SHOT, TRAP, Times, VALUE, goto_chain, is_control, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PROB: u16 = 3;
const PAD: u16 = 4;

const POLICY: [Type; 5] = policy(&[(PARMS, Type::AtLeast(Generic::LEN as u16)), (PROB, Type::AtLeast(8))]);

/// How one packet in so many is chosen for another control action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probability {
    /// `PGACT_*`: 0 never, 1 at random, 2 every so manieth.
    pub kind: u16,
    /// One in so many; at least 1.
    pub value: u16,
    /// What becomes of those chosen.
    pub action: i32,
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gact {
    /// Index and control action.
    pub generic: Generic,
    /// The other control action, if there is one.
    pub probability: Option<Probability>,
}

impl Gact {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_gact_init`.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let parms = attributes.get(PARMS).ok_or(RequestError::errno(EINVAL))?;
        let probability = match attributes.get(PROB).and_then(|prob| prob.value.first_chunk::<8>().copied()) {
            None => None,
            Some([a, b, c, d, action @ ..]) => {
                let kind = u16::from_ne_bytes([a, b]);
                let action = i32::from_ne_bytes(action);
                if kind > 2 {
                    return Err(RequestError::errno(EINVAL));
                }
                if !is_control(action) {
                    return Err(RequestError::new(EINVAL, "invalid fallback control action"));
                }
                if goto_chain(action).is_some() {
                    return Err(RequestError::new(EINVAL, "goto chain not allowed on fallback"));
                }
                Some(Probability { kind, value: u16::from_ne_bytes([c, d]).max(1), action })
            }
        };
        Ok(Self { generic: Generic::read(parms.value), probability })
    }

    pub(super) const fn offloads(&self) -> bool {
        let action = self.generic.action;
        matches!(action, OK | SHOT | TRAP) || action as u32 & !VALUE == GOTO_CHAIN as u32
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        reply.attribute(PARMS, &self.generic.bytes());
        if let Some(Probability { kind: kind @ 1.., value, action }) = self.probability {
            let [kind, value] = [kind, value].map(u16::to_ne_bytes);
            reply.attribute(PROB, &[&kind[..], &value, &action.to_ne_bytes()].concat());
        }
        times.write(reply, TM, PAD);
    }
}
