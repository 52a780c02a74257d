//! `mpls`: puts on, takes off or changes a label. Linux: `net/sched/act_mpls.c`.
//!
//! ```text
//! TCA_MPLS_PARMS: tc_gen, m_action (s32). TCA_MPLS_PROTO (be16), LABEL (u32), TC, TTL, BOS (u8)
//! ```

use libc::{EINVAL, EPROTONOSUPPORT, ERANGE};

use super::{Generic, Times};
use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PAD: u16 = 3;
const PROTO: u16 = 4;
const LABEL: u16 = 5;
const TC: u16 = 6;
const TTL: u16 = 7;
const BOS: u16 = 8;

const POLICY: [Type; 9] = policy(&[
    (PARMS, Type::Exact(24)),
    (PROTO, Type::Exact(2)),
    (LABEL, Type::Any),
    (TC, Type::Exact(1)),
    (TTL, Type::Exact(1)),
    (BOS, Type::Exact(1)),
]);

/// What is done: `TCA_MPLS_ACT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Takes the label off.
    Pop = 1,
    /// Puts one on, before the network header.
    Push = 2,
    /// Changes the fields that are given.
    Modify = 3,
    /// Takes one from the TTL; a packet whose TTL is spent is dropped.
    DecTtl = 4,
    /// Puts one on, before the Ethernet header.
    MacPush = 5,
}

/// A change of labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mpls {
    /// Index and control action.
    pub generic: Generic,
    /// `m_action`; see [`Mpls::check`].
    pub m_action: i32,
    /// Ethernet type, in host byte order: of what is left after a pop, or of the label.
    pub protocol: Option<u16>,
    /// Label, 20 bits.
    pub label: Option<u32>,
    /// Traffic class, 3 bits.
    pub tc: Option<u8>,
    /// TTL, not 0.
    pub ttl: Option<u8>,
    /// Bottom of stack.
    pub bos: Option<u8>,
}

const MPLS_UC: u16 = 0x8847;
const MPLS_MC: u16 = 0x8848;

impl Mpls {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_mpls_init` until it looks for the action.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let missing = RequestError::new(EINVAL, "act_mpls: Missing netlink attributes");
        let attributes = attribute.ok_or(missing)?.parse_nested(&POLICY, Validate::Strict)?;
        for (kind, range) in [(TC, 0..=7), (TTL, 1..=255), (BOS, 0..=1)] {
            if let Some(attribute) = attributes.get(kind)
                && !range.contains(&attribute.u8())
            {
                return Err(RequestError::new(ERANGE, "integer out of range").at(attribute.offset));
            }
        }
        if let Some(label) = attributes.get(LABEL) {
            if label.value.len() != 4 {
                return Err(label.invalid("act_mpls: Invalid MPLS label length"));
            }
            // Implicit null is never seen on a wire.
            if label.u32() >= 1 << 20 || label.u32() == 3 {
                return Err(label.invalid("act_mpls: MPLS label out of range"));
            }
        }
        let parms = attributes.get(PARMS).ok_or(RequestError::new(EINVAL, "act_mpls: No MPLS params"))?;
        let verb = parms.value.get(Generic::LEN..).and_then(|bytes| bytes.first_chunk::<4>());
        let byte = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u8());
        Ok(Self {
            generic: Generic::read(parms.value),
            m_action: verb.map_or(0, |verb| i32::from_ne_bytes(*verb)),
            protocol: attributes.get(PROTO).map(|protocol| protocol.be16()),
            label: attributes.get(LABEL).map(|label| label.u32()),
            tc: byte(TC),
            ttl: byte(TTL),
            bos: byte(BOS),
        })
    }

    /// What is done, with the defaults filled in: a pushed label without a TTL gets `default_ttl`.
    ///
    /// # Errors
    /// As Linux's `tcf_mpls_init`: what does not belong to the verb.
    pub fn check(mut self, default_ttl: u8) -> Result<(Self, Verb), RequestError> {
        let invalid = |message| Err(RequestError::new(EINVAL, message));
        let fields = self.label.is_some() || self.ttl.is_some() || self.tc.is_some() || self.bos.is_some();
        let verb = match self.m_action {
            1 => {
                match self.protocol {
                    None => return invalid("act_mpls: Protocol must be set for MPLS pop"),
                    Some(protocol) if protocol < 0x600 => {
                        return invalid("act_mpls: Invalid protocol type for MPLS pop");
                    }
                    Some(_) if fields => {
                        return invalid("act_mpls: Label, TTL, TC or BOS cannot be used with MPLS pop");
                    }
                    Some(_) => {}
                }
                Verb::Pop
            }
            4 if fields || self.protocol.is_some() => {
                let message = "act_mpls: Label, TTL, TC, BOS or protocol cannot be used with MPLS dec_ttl";
                return invalid(message);
            }
            4 => Verb::DecTtl,
            verb @ (2 | 5) => {
                if self.label.is_none() {
                    return invalid("act_mpls: Label is required for MPLS push");
                }
                if self.protocol.is_some_and(|protocol| protocol != MPLS_UC && protocol != MPLS_MC) {
                    let message = "act_mpls: Protocol must be an MPLS type for MPLS push";
                    return Err(RequestError::new(EPROTONOSUPPORT, message));
                }
                self.ttl.get_or_insert(default_ttl);
                if verb == 2 { Verb::Push } else { Verb::MacPush }
            }
            3 if self.protocol.is_some() => {
                return invalid("act_mpls: Protocol cannot be used with MPLS modify");
            }
            3 => Verb::Modify,
            _ => return invalid("act_mpls: Unknown MPLS action"),
        };
        self.protocol.get_or_insert(MPLS_UC);
        Ok((self, verb))
    }

    /// What is done, of one that has been checked.
    pub const fn verb(&self) -> Option<Verb> {
        Some(match self.m_action {
            1 => Verb::Pop,
            2 => Verb::Push,
            3 => Verb::Modify,
            4 => Verb::DecTtl,
            5 => Verb::MacPush,
            _ => return None,
        })
    }

    pub(super) const fn offloads(&self) -> bool {
        matches!(self.m_action, 1..=3)
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        let mut parms = self.generic.bytes();
        parms.extend_from_slice(&self.m_action.to_ne_bytes());
        reply.attribute(PARMS, &parms);
        if let Some(label) = self.label {
            reply.u32(LABEL, label);
        }
        for (kind, value) in [(TC, self.tc), (TTL, self.ttl), (BOS, self.bos)] {
            if let Some(value) = value {
                reply.u8(kind, value);
            }
        }
        reply.be16(PROTO, self.protocol.unwrap_or(MPLS_UC));
        times.write(reply, TM, PAD);
    }
}
