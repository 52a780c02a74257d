//! `IFLA_INFO_DATA` of a VLAN device. Linux: `net/8021q/vlan_netlink.c`.
//!
//! ```text
//! IFLA_VLAN_ID (u16), FLAGS (struct ifla_vlan_flags), EGRESS_QOS, INGRESS_QOS (nests of QOS_MAPPING, each a struct
//! ifla_vlan_qos_mapping), PROTOCOL (u16 in network byte order)
//! ```

use libc::{EINVAL, EOPNOTSUPP, EPROTONOSUPPORT, ERANGE};

use crate::RequestError;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::reply::Reply;

const ID: u16 = 1;
const FLAGS: u16 = 2;
const EGRESS_QOS: u16 = 3;
const INGRESS_QOS: u16 = 4;
const PROTOCOL: u16 = 5;
const QOS_MAPPING: u16 = 1;

const POLICY: [Type; PROTOCOL as usize + 1] = policy(&[
    (ID, Type::U16),
    (FLAGS, Type::AtLeast(8)),
    (EGRESS_QOS, Type::Nested),
    (INGRESS_QOS, Type::Nested),
    (PROTOCOL, Type::U16),
]);

/// `ETH_P_8021Q`.
pub const VLAN: u16 = 0x8100;
/// `ETH_P_8021AD`.
pub const SERVICE_VLAN: u16 = 0x88a8;

/// `VLAN_FLAG_REORDER_HDR`.
pub const REORDER_HDR: u32 = 1;
const GVRP: u32 = 2;
/// `VLAN_FLAG_LOOSE_BINDING`.
pub const LOOSE_BINDING: u32 = 4;
const MVRP: u32 = 8;
const BRIDGE_BINDING: u32 = 16;

/// What makes a device a VLAN device, but for the link below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// [`VLAN`] or [`SERVICE_VLAN`].
    pub protocol: u16,
    /// The VLAN identifier, below 4,095.
    pub id: u16,
    /// [`REORDER_HDR`], [`LOOSE_BINDING`].
    pub flags: u32,
    /// By priority code point: `skb->priority`.
    pub ingress: [u32; 8],
    /// Pairs of `skb->priority` and priority code point, in the order in which Linux shows them. A code point of 0 is not
    /// shown.
    pub egress: Vec<(u32, u8)>,
}

/// What a request says of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The VLAN identifier.
    pub id: Option<u16>,
    /// The protocol of the tag.
    pub protocol: Option<u16>,
    /// Flags, and which of them are said.
    flags: Option<(u32, u32)>,
    /// Pairs of from and to.
    ingress: Vec<(u32, u32)>,
    egress: Vec<(u32, u32)>,
}

impl Wanted {
    /// Reads `IFLA_INFO_DATA`. Linux: `vlan_validate`.
    ///
    /// # Errors
    /// Those of Linux; `EOPNOTSUPP` for registration protocols and bindings to a bridge.
    pub fn parse(data: Option<&Attribute<'_>>) -> Result<Self, RequestError> {
        let data = data.ok_or(RequestError::new(EINVAL, "8021q: VLAN properties not specified"))?;
        let data = data.parse_nested(&POLICY, Validate::Liberal)?;
        let protocol = data.get(PROTOCOL).map(|protocol| protocol.be16());
        if protocol.is_some_and(|protocol| !matches!(protocol, VLAN | SERVICE_VLAN)) {
            return Err(RequestError::new(EPROTONOSUPPORT, "8021q: Invalid VLAN protocol"));
        }
        let id = data.get(ID).map(|id| id.u16());
        if id.is_some_and(|id| id >= 4095) {
            return Err(RequestError::new(ERANGE, "8021q: Invalid VLAN id"));
        }
        let words = |attribute: &Attribute<'_>| {
            let word = |at: usize| attribute.value.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
            Some((word(0)?, word(4)?))
        };
        let flags = data.get(FLAGS).and_then(|flags| words(&flags));
        if let (Some((flags, mask)), Some(attribute)) = (flags, data.get(FLAGS)) {
            let refuse = |text| Err(RequestError::new(EOPNOTSUPP, text).at(attribute.offset));
            match flags & mask {
                set if set & !(REORDER_HDR | GVRP | LOOSE_BINDING | MVRP | BRIDGE_BINDING) != 0 => {
                    return Err(RequestError::new(EINVAL, "8021q: Invalid VLAN flags"));
                }
                set if set & GVRP != 0 => return refuse("gvrp is not supported by this router"),
                set if set & MVRP != 0 => return refuse("mvrp is not supported by this router"),
                set if set & BRIDGE_BINDING != 0 => {
                    return refuse("bridge_binding is not supported by this router");
                }
                _ => {}
            }
        }
        let pairs = |kind: u16, text: &'static str| {
            let Some(map) = data.get(kind) else { return Ok(Vec::new()) };
            let mappings = map.nested().filter(|mapping| mapping.kind == QOS_MAPPING);
            mappings.map(|mapping| words(&mapping).ok_or(RequestError::new(EINVAL, text))).collect()
        };
        Ok(Self {
            id,
            protocol,
            flags,
            ingress: pairs(INGRESS_QOS, "8021q: Invalid ingress QoS map")?,
            egress: pairs(EGRESS_QOS, "8021q: Invalid egress QoS map")?,
        })
    }
}

impl Vlan {
    /// One as it is when it was just made: `vlan_setup`.
    pub const fn new(protocol: u16, id: u16) -> Self {
        Self { protocol, id, flags: REORDER_HDR, ingress: [0; 8], egress: Vec::new() }
    }

    /// Becomes what a request says. What it is a VLAN device of stays, whatever is said. Linux: `vlan_changelink`.
    pub fn change(&mut self, wanted: &Wanted) {
        if let Some((flags, mask)) = wanted.flags {
            self.flags = self.flags & !mask | flags & mask;
        }
        for &(code, priority) in &wanted.ingress {
            if let Some(place) = self.ingress.get_mut(code as usize & 7) {
                *place = priority;
            }
        }
        for &(priority, code) in &wanted.egress {
            let code = (code & 7) as u8;
            match self.egress.iter_mut().find(|(from, _)| *from == priority) {
                Some((_, old)) => *old = code,
                None => {
                    // A table of 16 lists, each with the newest first.
                    let place = |from: u32| from & 15;
                    let at = self.egress.partition_point(|(from, _)| place(*from) < place(priority));
                    self.egress.insert(at, (priority, code));
                }
            }
        }
    }

    /// The pairs of its ingress map that say something.
    pub fn ingress_pairs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..).zip(self.ingress).filter(|(_, priority)| *priority != 0)
    }

    /// The same of its egress map.
    pub fn egress_pairs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.egress.iter().filter(|(_, code)| *code != 0).map(|(from, code)| (*from, u32::from(*code)))
    }

    /// Writes `IFLA_INFO_DATA`. Linux: `vlan_fill_info`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let pair = |(from, to): (u32, u32)| [from.to_ne_bytes(), to.to_ne_bytes()].concat();
        reply.be16(PROTOCOL, self.protocol);
        reply.u16(ID, self.id);
        if self.flags != 0 {
            reply.attribute(FLAGS, &pair((self.flags, !0)));
        }
        let maps: [(u16, Vec<_>); 2] =
            [(INGRESS_QOS, self.ingress_pairs().collect()), (EGRESS_QOS, self.egress_pairs().collect())];
        for (kind, map) in maps.into_iter().filter(|(_, map)| !map.is_empty()) {
            let nest = reply.nest_unflagged(kind);
            map.into_iter().for_each(|mapping| reply.attribute(QOS_MAPPING, &pair(mapping)));
            reply.end(nest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_changed_as_linux_does() {
        let mut vlan = Vlan::new(VLAN, 40);
        let egress = vec![(5, 3), (0, 1), (21, 9), (4_294_967_295, 7)];
        vlan.change(&Wanted { ingress: vec![(3, 5), (9, 7)], egress, ..Wanted::default() });
        assert_eq!(vlan.ingress_pairs().collect::<Vec<_>>(), [(1, 7), (3, 5)]);
        assert_eq!(vlan.egress_pairs().collect::<Vec<_>>(), [(0, 1), (21, 1), (5, 3), (4_294_967_295, 7)]);
        vlan.change(&Wanted { ingress: vec![(3, 0)], egress: vec![(5, 0)], ..Wanted::default() });
        assert_eq!(vlan.ingress_pairs().collect::<Vec<_>>(), [(1, 7)]);
        assert_eq!(vlan.egress_pairs().collect::<Vec<_>>(), [(0, 1), (21, 1), (4_294_967_295, 7)]);
        assert_eq!(vlan.flags, REORDER_HDR);
        vlan.change(&Wanted { flags: Some((LOOSE_BINDING, 5)), ..Wanted::default() });
        assert_eq!(vlan.flags, LOOSE_BINDING);
    }
}
