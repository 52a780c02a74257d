//! What the kernel reports of routes and next-hop objects, and what of that this router does not understand.
//!
//! Such a route is left to the kernel: its packets are handed over. Whatever the kernel learns to say that narrows a
//! route, or changes what it does, is among that.

use std::hash::{DefaultHasher, Hash, Hasher};

use underpass_netlink::{Attribute, Encap, Message};

use super::config::{
    RTA_CACHEINFO, RTA_DST, RTA_ENCAP, RTA_ENCAP_TYPE, RTA_EXPIRES, RTA_FLOW, RTA_GATEWAY, RTA_METRICS,
    RTA_MULTIPATH, RTA_NH_ID, RTA_OIF, RTA_PREF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTA_VIA, RTMSG, RTNH,
    RouteHeader,
};
use super::info::METRICS;
use super::nexthop;
use super::table::Family;

const RTA_PAD: u16 = 24;

/// What a route can say. Of the realm (`RTA_FLOW`) only statistics and the `route` classifier know.
const ROUTE: [u16; 17] = [
    RTA_DST,
    RTA_OIF,
    RTA_GATEWAY,
    RTA_PRIORITY,
    RTA_PREFSRC,
    RTA_METRICS,
    RTA_MULTIPATH,
    RTA_FLOW,
    RTA_CACHEINFO,
    RTA_TABLE,
    RTA_VIA,
    RTA_PREF,
    RTA_ENCAP_TYPE,
    RTA_ENCAP,
    RTA_EXPIRES,
    RTA_PAD,
    RTA_NH_ID,
];
/// What one of several ways can say.
const WAY: [u16; 5] = [RTA_GATEWAY, RTA_FLOW, RTA_VIA, RTA_ENCAP_TYPE, RTA_ENCAP];
/// What an object can say: its id, its members, its way, what fields of its members mean, and what it has counted.
const OBJECT: [u16; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, nexthop::NHA_OP_FLAGS, 15, 16];
/// What Linux 6.12 and later say of a group: that its members have no other fields than their weights.
const OBJECT_FLAGS: u32 = nexthop::NHA_OP_FLAG_RESP_GRP_RESVD_0;

/// `RTNH_F_DEAD`, `PERVASIVE`, `ONLINK`, `OFFLOAD`, `LINKDOWN`, `UNRESOLVED`, `TRAP`.
const WAY_FLAGS: u32 = 0x7f;
/// And `RTM_F_NOTIFY`, `CLONED`, `EQUALIZE`, `PREFIX`, `LOOKUP_TABLE`, `FIB_MATCH`, `OFFLOAD`, `TRAP`,
/// `OFFLOAD_FAILED`.
const ROUTE_FLAGS: u32 = WAY_FLAGS | 0xff00 | 0x2000_0000;

/// `NEXTHOP_GRP_TYPE_RES`: flows stay longer with their member, which is one of the group in any case.
const RESILIENT: u16 = 1;

/// Collects what is not understood.
#[derive(Default)]
struct Unknown(Option<DefaultHasher>);

impl Unknown {
    fn add(&mut self, what: impl Hash) {
        what.hash(self.0.get_or_insert_default());
    }

    fn add_if(&mut self, unknown: bool, what: impl Hash) {
        if unknown {
            self.add(what);
        }
    }

    fn attribute(&mut self, attribute: &Attribute<'_>, known: &[u16]) {
        self.add_if(!known.contains(&attribute.kind), (attribute.kind, attribute.value));
    }

    /// 0 for nothing.
    fn finish(self) -> u64 {
        self.0.map_or(0, |hasher| hasher.finish().max(1))
    }
}

/// A hash of what is not understood of a route; 0 if all is. The same for all messages about the same route.
pub(super) fn unknown_of_route(message: &Message<'_>, family: Family) -> u64 {
    let Some(header) = message.body().first_chunk::<RTMSG>() else { return 1 };
    let header = RouteHeader::read(header);
    let mut unknown = Unknown::default();
    unknown.add_if(header.tos != 0, header.tos);
    unknown.add_if(header.src_len != 0, header.src_len);
    unknown.add_if(!matches!(header.kind, libc::RTN_UNICAST..=libc::RTN_THROW), header.kind);
    unknown.add_if(header.flags & !ROUTE_FLAGS != 0, header.flags & !ROUTE_FLAGS);
    for attribute in message.attributes(RTMSG) {
        unknown.attribute(&attribute, &ROUTE);
        match attribute.kind {
            RTA_METRICS => {
                let beyond = attribute.nested().filter(|metric| usize::from(metric.kind) > METRICS);
                beyond.for_each(|metric| unknown.add((RTA_METRICS, metric.kind, metric.value)));
            }
            RTA_MULTIPATH => ways(&attribute, &mut unknown),
            // Neither family has it beside a gateway.
            RTA_VIA => unknown.add_if(family == Family::V6, attribute.value),
            _ => {}
        }
    }
    unknown.finish()
}

fn ways(multipath: &Attribute<'_>, unknown: &mut Unknown) {
    let mut rest = multipath.value;
    while let Some((&[a, b, flags, ..], _)) = rest.split_first_chunk::<RTNH>() {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let Some(inside) = rest.get(RTNH..len) else { return unknown.add(rest) };
        unknown.add_if(u32::from(flags) & !WAY_FLAGS != 0, flags);
        let inside = Attribute { value: inside, ..*multipath };
        inside.nested().for_each(|attribute| unknown.attribute(&attribute, &WAY));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// The same of a next-hop object, whose fixed header has so many bytes.
pub(super) fn understands_object(message: &Message<'_>, header: usize) -> bool {
    let mut unknown = Unknown::default();
    let flags = message.body().get(header - 4..header).and_then(|flags| flags.first_chunk::<4>());
    let flags = flags.map_or(u32::MAX, |flags| u32::from_ne_bytes(*flags));
    unknown.add_if(flags & !WAY_FLAGS != 0, flags);
    for attribute in message.attributes(header) {
        unknown.attribute(&attribute, &OBJECT);
        unknown.add_if(
            attribute.kind == nexthop::NHA_GROUP_TYPE && attribute.u16() > RESILIENT,
            attribute.value,
        );
        unknown.add_if(
            attribute.kind == nexthop::NHA_OP_FLAGS && attribute.u32() & !OBJECT_FLAGS != 0,
            attribute.value,
        );
    }
    unknown.finish() == 0
}

/// Whether an encapsulation is all that the kernel says of it, and one that the router makes in the kernel's place:
/// not parameters for the kernel's own devices.
pub(super) fn is_whole(encap: &Encap, reported: &Attribute<'_>) -> bool {
    !Encap::is_of_device(encap.kind()) && encap.is_all_of(reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18: `ip nexthop add id 3 group 1/2`, what `ip nexthop show id 3` is answered.
    #[test]
    fn a_group_of_linux_6_12_and_later() {
        let mut bytes = [
            &[0x44, 0, 0, 0, 104, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[0; 8],
            &[8, 0, 1, 0, 3, 0, 0, 0],
            &[6, 0, 3, 0, 0, 0, 0, 0],
            &[20, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[8, 0, 14, 0, 0, 0, 0, 0x80],
        ]
        .concat();
        let understood = |bytes: &[u8]| {
            let message = underpass_netlink::messages(bytes).next().unwrap();
            understands_object(&message, 8)
        };
        assert!(understood(&bytes));
        *bytes.last_mut().unwrap() = 0xc0;
        assert!(!understood(&bytes));
    }
}
