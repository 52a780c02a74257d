//! What of a packet inside a tunnel is seen outside, so that its flows spread: the UDP source port, RFC 8086 section
//! 3.2.1, and the flow label, RFC 6438.

use underpass_packet::protocol;

use crate::flow;

/// The UDP source port of the flow of a packet inside, out of these: Linux's `udp_flow_src_port`. A labelled one's begins
/// with its labels.
#[inline(always)]
pub(crate) fn source_port(inside: &[u8], labelled: bool, (low, high): (u16, u16)) -> u16 {
    low + ((u64::from(hash(inside, labelled)) * u64::from(high - low)) >> 32) as u16
}

/// The flow label of it, 20 bits.
#[inline(always)]
pub(crate) fn flow_label(inside: &[u8], labelled: bool) -> u32 {
    hash(inside, labelled) >> 12
}

/// All 32 bits of it are spread: over addresses, protocol and ports, or the flow label of IPv6. Fragments of a packet,
/// which have no ports but the first, have the same.
#[inline(always)]
fn hash(inside: &[u8], labelled: bool) -> u32 {
    if labelled {
        return flow::hash_labelled(inside) << 1;
    }
    match inside.first() {
        Some(0x45) => match inside.first_chunk::<24>() {
            Some(packet) => hash4(packet),
            None => flow::hash(inside) << 1,
        },
        Some(0x60..=0x6f) => match inside.first_chunk::<44>() {
            Some(packet) => hash6(packet),
            None => flow::hash(inside) << 1,
        },
        _ => flow::hash(inside) << 1,
    }
}

#[inline(always)]
fn hash4(packet: &[u8; 24]) -> u32 {
    let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
    let ports = if fragment { 0 } else { ports(packet[9], word(packet, 20) as u32) };
    mix(word(packet, 12), ports | u64::from(packet[9]) << 32)
}

#[inline(always)]
fn hash6(packet: &[u8; 44]) -> u32 {
    let addresses = fold(word(packet, 8) ^ FIRST, word(packet, 24) ^ SECOND)
        ^ fold(word(packet, 16) ^ SECOND, word(packet, 32) ^ THIRD);
    let label = word(packet, 0) as u32 & u32::from_le_bytes([0, 0x0f, 0xff, 0xff]);
    mix(
        addresses,
        (ports(packet[6], word(packet, 40) as u32) | u64::from(packet[6]) << 32) ^ u64::from(label) << 29,
    )
}

/// The ports of a packet of this protocol.
#[inline(always)]
fn ports(protocol: u8, word: u32) -> u64 {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => word.into(),
        _ => 0,
    }
}

/// Up to eight bytes.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map_or(0, |word| u32::from_le_bytes(*word).into()),
    }
}

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const THIRD: u64 = 0x2545_f491_4f6c_dd1d;

#[inline(always)]
fn mix(a: u64, b: u64) -> u32 {
    let mixed = fold(a ^ FIRST, b ^ SECOND);
    (mixed ^ mixed >> 32) as u32
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
