//! What of a packet inside a tunnel is seen outside, so that its flows spread: the UDP source port, RFC 8086 section
//! 3.2.1, and the flow label, RFC 6438.

use crate::flow;

/// The ports that Linux's `ip_local_port_range` has at first.
const PORTS: (u16, u16) = (32768, 60999);

/// The UDP source port of a flow: as Linux's `udp_flow_src_port` spreads them.
#[inline(always)]
pub(crate) fn source_port(inside: &[u8]) -> u16 {
    let (low, high) = (u64::from(PORTS.0), u64::from(PORTS.1));
    (low + ((u64::from(hash(inside)) * (high - low)) >> 32)) as u16
}

/// The flow label of a flow, 20 bits.
#[inline(always)]
pub(crate) fn flow_label(inside: &[u8]) -> u32 {
    hash(inside) >> 12
}

/// All 32 bits of it are spread.
#[inline(always)]
fn hash(inside: &[u8]) -> u32 {
    let hash = flow::hash(inside);
    hash << 1 | hash & 1
}
