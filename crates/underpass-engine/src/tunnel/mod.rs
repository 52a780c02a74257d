//! IP tunnels: RFC 2003, RFC 2473, RFC 2784, RFC 4213, and foo-over-UDP, as Linux has them.

pub(crate) mod behind;
pub(crate) mod come_out;
pub(crate) mod decap;
pub(crate) mod encap;
mod ends;
pub(crate) mod entropy;
pub(crate) mod find;
pub(crate) mod fou;
pub(crate) mod frames;
pub(crate) mod from_host;
mod geneve;
pub(crate) mod hook;
pub(crate) mod inside;
pub(crate) mod limit;
pub(crate) mod networks;
pub(crate) mod outer;
pub(crate) mod outer_address;
pub(crate) mod outer_fast;
pub(crate) mod path_mtu;
pub(crate) mod recent_ends;
pub(crate) mod relay;
mod stations;
pub(crate) mod too_long;
pub(crate) mod vxlan;

use underpass_packet::ipv4;

use crate::tables::TunnelKind;
pub(crate) use crate::tunnel::behind::behind;
pub(crate) use crate::tunnel::find::{is_local4, is_tunnelled, no_tunnel};
pub(crate) use crate::tunnel::path_mtu::narrowed;
pub(crate) use crate::tunnel::too_long::leave;
use crate::worker::metadata::PacketMeta;
use crate::worker::view::View;

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

/// Whether the sender of a packet in a tunnel hears that the outer one has met a blackhole. Linux: `ipip6_tunnel_xmit` and
/// `ip6_tnl_xmit`, to which that is a way that is none; `ip_tunnel_xmit` tells nobody of any.
#[cold]
pub(crate) fn tells_of_blackhole(view: &View<'_>, meta: &PacketMeta) -> bool {
    let tunnel = meta.extra.tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let is_six =
        || meta.packet.bytes().get(usize::from(meta.extra.outer)).is_some_and(|first| first >> 4 == 6);
    tunnel.is_some_and(|tunnel| {
        tunnel.kind.is_over_ipv6() && !tunnel.kind.is_overlay() || tunnel.kind == TunnelKind::Sit && is_six()
    })
}

/// Whether an IPv4 packet says that it is not to be fragmented.
#[inline(always)]
pub(crate) fn dont_fragment(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| u16::from(*flags) << 8 & ipv4::DONT_FRAGMENT != 0)
}
