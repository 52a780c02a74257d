//! IP tunnels: RFC 2003, RFC 2473, RFC 2784, RFC 4213, and foo-over-UDP, as Linux has them.

mod behind;
mod encapsulate;
mod entropy;
mod from_host;
mod hook;
mod limit;
mod path_mtu;
mod receive;
mod relay;

use underpass_packet::ipv4;

pub(super) use behind::behind;
pub(super) use encapsulate::{fill_gre, fill_udp, leave};
pub(super) use entropy::{flow_label, source_port};
pub(super) use limit::has_extensions;
pub(super) use path_mtu::narrowed;
pub(super) use receive::{is_local4, is_refused, is_tunnelled, no_tunnel};

/// Bits of a TOS or traffic class that are of ECN: RFC 3168 section 5.
const ECN: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// The TOS of an outer header: the ECN of the packet inside, but that congestion experienced becomes ECT(0), as in
/// Linux (RFC 3168 section 9.1.1; RFC 6040 would have it copied).
#[inline(always)]
pub(super) fn ecn_outside(outer: u8, inner: u8) -> u8 {
    let ecn = inner & ECN;
    // Of both bits the upper one stays.
    outer & !ECN | ecn & !(ecn >> 1)
}

/// The ECN of a packet that comes out of an outer header with this TOS: RFC 6040 section 4.2, as Linux's
/// `INET_ECN_decapsulate`. `None`: it must not come out.
#[inline(always)]
pub(super) fn ecn_inside(outer: u8, inner: u8) -> Option<u8> {
    match (outer & ECN, inner & ECN) {
        (CE, NOT_ECT) => None,
        (CE, _) => Some(CE),
        (ECT_1, ECT_0) => Some(ECT_1),
        (_, inner) => Some(inner),
    }
}

/// Whether an IPv4 packet says that it is not to be fragmented.
#[inline(always)]
fn dont_fragment(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| u16::from(*flags) << 8 & ipv4::DONT_FRAGMENT != 0)
}
