//! `vlan`: puts on, takes off or changes a VLAN tag, or an Ethernet header. Linux: `net/sched/act_vlan.c`.
//!
//! ```text
//! TCA_VLAN_PARMS: tc_gen, v_action (s32). TCA_VLAN_PUSH_VLAN_ID (u16), PROTOCOL (be16), PRIORITY (u8),
//! PUSH_ETH_DST, PUSH_ETH_SRC (6 bytes)
//! ```

use libc::{EINVAL, EPROTONOSUPPORT, ERANGE};

use super::{Generic, Times, options};
use crate::RequestError;
use crate::attribute::{Attribute, Type, policy};
use crate::reply::Reply;

const TM: u16 = 1;
const PARMS: u16 = 2;
const PUSH_ID: u16 = 3;
const PUSH_PROTOCOL: u16 = 4;
const PAD: u16 = 5;
const PUSH_PRIORITY: u16 = 6;
const PUSH_ETH_DST: u16 = 7;
const PUSH_ETH_SRC: u16 = 8;

const POLICY: [Type; 9] = policy(&[
    (PARMS, Type::AtLeast(24)),
    (PUSH_ID, Type::U16),
    (PUSH_PROTOCOL, Type::U16),
    (PUSH_PRIORITY, Type::U8),
    (PUSH_ETH_DST, Type::Exact(6)),
    (PUSH_ETH_SRC, Type::Exact(6)),
]);

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// VLAN, 12 bits.
    pub id: u16,
    /// Ethernet type of the tag, in host byte order: 802.1Q or 802.1ad.
    pub protocol: u16,
    /// Priority, 3 bits; `None` leaves it as it is.
    pub priority: Option<u8>,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Takes the outer tag off.
    Pop,
    /// Puts a tag on.
    Push(Tag),
    /// Changes the outer tag.
    Modify(Tag),
    /// Takes the Ethernet header off.
    PopEthernet,
    /// Puts an Ethernet header on.
    PushEthernet {
        /// Destination address.
        destination: [u8; 6],
        /// Source address.
        source: [u8; 6],
    },
}

/// A change of tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// Index and control action.
    pub generic: Generic,
    pub(super) v_action: i32,
    pub(super) id: Option<u16>,
    pub(super) protocol: Option<u16>,
    pub(super) priority: Option<u8>,
    pub(super) addresses: [Option<[u8; 6]>; 2],
}

impl Vlan {
    /// Reads the options.
    ///
    /// # Errors
    /// As Linux's `tcf_vlan_init` until it looks for the action.
    pub fn parse(attribute: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let attributes = options(attribute, &POLICY)?;
        let parms = attributes.get(PARMS).ok_or(RequestError::errno(EINVAL))?;
        let verb = parms.value.get(Generic::LEN..).and_then(|bytes| bytes.first_chunk::<4>());
        let address = |kind| attributes.get(kind).and_then(|a: Attribute<'_>| a.value.first_chunk().copied());
        Ok(Self {
            generic: Generic::read(parms.value),
            v_action: verb.map_or(0, |verb| i32::from_ne_bytes(*verb)),
            id: attributes.get(PUSH_ID).map(|id| id.u16()),
            protocol: attributes.get(PUSH_PROTOCOL).map(|protocol| protocol.be16()),
            priority: attributes.get(PUSH_PRIORITY).map(|priority| priority.u8()),
            addresses: [PUSH_ETH_DST, PUSH_ETH_SRC].map(address),
        })
    }

    /// What is done.
    ///
    /// # Errors
    /// As Linux's `tcf_vlan_init`, which has no texts: what is missing, or no VLAN, or no protocol of tags.
    pub fn check(&self) -> Result<Verb, RequestError> {
        let tag = || {
            let id = self.id.ok_or(RequestError::errno(EINVAL))?;
            if id >= 0xfff {
                return Err(RequestError::errno(ERANGE));
            }
            let protocol = self.protocol.unwrap_or(0x8100);
            if ![0x8100, 0x88a8].contains(&protocol) {
                return Err(RequestError::errno(EPROTONOSUPPORT));
            }
            Ok(Tag { id, protocol, priority: self.priority })
        };
        Ok(match (self.v_action, self.addresses) {
            (1, _) => Verb::Pop,
            (2, _) => {
                let tag = tag()?;
                Verb::Push(Tag { priority: Some(tag.priority.unwrap_or(0)), ..tag })
            }
            (3, _) => Verb::Modify(tag()?),
            (4, _) => Verb::PopEthernet,
            (5, [Some(destination), Some(source)]) => Verb::PushEthernet { destination, source },
            _ => return Err(RequestError::errno(EINVAL)),
        })
    }

    pub(super) fn write(&self, reply: &mut Reply<'_>, times: Times) {
        let mut parms = self.generic.bytes();
        parms.extend_from_slice(&self.v_action.to_ne_bytes());
        reply.attribute(PARMS, &parms);
        match self.check() {
            Ok(Verb::Push(tag) | Verb::Modify(tag)) => {
                reply.u16(PUSH_ID, tag.id);
                reply.be16(PUSH_PROTOCOL, tag.protocol);
                if let Some(priority) = tag.priority {
                    reply.u8(PUSH_PRIORITY, priority);
                }
            }
            Ok(Verb::PushEthernet { destination, source }) => {
                reply.attribute(PUSH_ETH_DST, &destination);
                reply.attribute(PUSH_ETH_SRC, &source);
            }
            _ => {}
        }
        times.write(reply, TM, PAD);
    }
}
