//! `SEG6_LOCAL_FLAVORS`: what End, End.X and End.T do besides. Linux: `parse_nla_flavors`.

use libc::{EINVAL, EOPNOTSUPP};

use super::{Action, quiet};
use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

pub(super) const FLV_OPERATION: u16 = 1;
pub(super) const FLV_LCBLOCK_BITS: u16 = 2;
pub(super) const FLV_LCNODE_FN_BITS: u16 = 3;
const FLV_POLICY: [Type; 4] =
    policy(&[(FLV_OPERATION, Type::U32), (FLV_LCBLOCK_BITS, Type::U8), (FLV_LCNODE_FN_BITS, Type::U8)]);

/// Penultimate segment pop, as a bit of [`Flavors::operations`].
pub const FLAVOR_PSP: u32 = 1 << 1;
/// Ultimate segment pop, as a bit of [`Flavors::operations`].
pub const FLAVOR_USP: u32 = 1 << 2;
/// Ultimate segment decapsulation, as a bit of [`Flavors::operations`].
pub const FLAVOR_USD: u32 = 1 << 3;
/// NEXT-CSID, RFC 9800 section 4.1, as a bit of [`Flavors::operations`].
pub const FLAVOR_NEXT_CSID: u32 = 1 << 4;
/// REPLACE-CSID, RFC 9800 section 4.2. Linux has no number for it, and refuses this bit, which no number of its own is near.
pub const FLAVOR_REPLACE_CSID: u32 = 1 << 31;
const CSID: u32 = FLAVOR_NEXT_CSID | FLAVOR_REPLACE_CSID;

/// `SEG6_LOCAL_FLAVORS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flavors {
    /// [`FLAVOR_PSP`], [`FLAVOR_USP`], [`FLAVOR_USD`], [`FLAVOR_NEXT_CSID`] or [`FLAVOR_REPLACE_CSID`].
    pub operations: u32,
    /// Locator-block length of compressed SIDs, in bits; 0 without these.
    pub block: u8,
    /// Locator-node and function length of compressed SIDs, in bits; 0 without these.
    pub node_function: u8,
}

impl Flavors {
    pub(super) fn parse(action: Action, flavors: &Attribute<'_>) -> Result<Self, RequestError> {
        let attributes = flavors.parse_nested(&FLV_POLICY, Validate::Liberal).map_err(quiet)?;
        let operations = attributes.get(FLV_OPERATION).ok_or(RequestError::errno(EINVAL))?.u32();
        if operations & !action.flavors() != 0 {
            return Err(RequestError::new(EOPNOTSUPP, "Unsupported Flavor operation(s)"));
        }
        if operations & CSID == CSID {
            return Err(RequestError::new(EINVAL, "A SID has NEXT-CSID or REPLACE-CSID, not both"));
        }
        if operations & CSID == 0 {
            return Ok(Self { operations, block: 0, node_function: 0 });
        }
        let bits = |kind, default| attributes.get(kind).map_or(default, |a: Attribute<'_>| a.u8());
        let (block, node_function) = (bits(FLV_LCBLOCK_BITS, 32), bits(FLV_LCNODE_FN_BITS, 16));
        let fits = |bits: u8| bits != 0 && bits.is_multiple_of(8);
        if !fits(block) || !fits(node_function) || u16::from(block) + u16::from(node_function) > 128 {
            return Err(RequestError::new(EINVAL, "Invalid Locator Block/Node Function lengths"));
        }
        if operations & FLAVOR_REPLACE_CSID != 0 {
            // RFC 9800 section 4.2: an entry is full of CSIDs, and the argument has room for their index.
            let index = (128 / u16::from(node_function)).ilog2() as u16;
            let room = 128 - u16::from(block) - u16::from(node_function);
            if !matches!(node_function, 8 | 16 | 32 | 64) || room < index {
                return Err(RequestError::new(EINVAL, "Invalid Locator Block/Node Function lengths"));
            }
        }
        Ok(Self { operations, block, node_function })
    }

    /// Writes them as this attribute.
    pub(super) fn write(&self, attribute: u16, reply: &mut Reply<'_>) {
        let nest = reply.nest(attribute);
        reply.u32(FLV_OPERATION, self.operations);
        if self.operations & CSID != 0 {
            reply.u8(FLV_LCBLOCK_BITS, self.block);
            reply.u8(FLV_LCNODE_FN_BITS, self.node_function);
        }
        reply.end(nest);
    }
}
