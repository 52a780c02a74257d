//! IP tunnels: RFC 2003, RFC 2473, RFC 2784, RFC 4213, and foo-over-UDP, as Linux has them.

pub(crate) mod behind;
pub(crate) mod decap;
pub(crate) mod encap;
pub(crate) mod entropy;
pub(crate) mod find;
pub(crate) mod fou;
pub(crate) mod frames;
pub(crate) mod from_host;
pub(crate) mod hook;
pub(crate) mod inside;
pub(crate) mod limit;
pub(crate) mod outer;
pub(crate) mod outer_address;
pub(crate) mod path_mtu;
pub(crate) mod relay;
pub(crate) mod too_long;
pub(crate) mod vxlan;

use underpass_packet::ipv4;

pub(crate) use crate::tunnel::behind::behind;
pub(crate) use crate::tunnel::find::{is_local4, is_tunnelled, no_tunnel};
pub(crate) use crate::tunnel::path_mtu::narrowed;
pub(crate) use crate::tunnel::too_long::leave;

/// Bits of a TOS or traffic class that are of ECN: RFC 3168 section 5.
pub(crate) const ECN: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// The TOS of an outer header: the ECN of the packet inside, but that congestion experienced becomes ECT(0), as in
/// Linux (RFC 3168 section 9.1.1; RFC 6040 would have it copied).
#[inline(always)]
pub(crate) fn ecn_outside(outer: u8, inner: u8) -> u8 {
    let ecn = inner & ECN;
    // Of both bits the upper one stays.
    outer & !ECN | ecn & !(ecn >> 1)
}

/// The ECN of a packet that comes out of an outer header with this TOS: RFC 6040 section 4.2, as Linux's
/// `INET_ECN_decapsulate`. `None`: it must not come out.
#[inline(always)]
pub(crate) fn ecn_inside(outer: u8, inner: u8) -> Option<u8> {
    match (outer & ECN, inner & ECN) {
        (CE, NOT_ECT) => None,
        (CE, _) => Some(CE),
        (ECT_1, ECT_0) => Some(ECT_1),
        (_, inner) => Some(inner),
    }
}

/// Whether an IPv4 packet says that it is not to be fragmented.
#[inline(always)]
pub(crate) fn dont_fragment(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| u16::from(*flags) << 8 & ipv4::DONT_FRAGMENT != 0)
}
