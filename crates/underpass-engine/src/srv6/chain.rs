//! The chain of IPv6 extension headers, for those few packets that do not have the SRH first.

use underpass_packet::{ipv6, protocol};

/// A header behind the fixed one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extension {
    /// Its protocol number.
    pub(super) kind: u8,
    /// Its offset from the start of the packet.
    pub(super) at: usize,
}

/// Each header of the chain, the upper-layer one last. `Err`: the chain runs out of the packet.
/// Behind the header of a fragment that is not the first there is nothing to be read.
pub(super) fn chain(packet: &[u8]) -> impl Iterator<Item = Result<Extension, ()>> + '_ {
    let first = packet.get(ipv6::Header::NEXT_HEADER_OFFSET).map(|kind| (*kind, ipv6::Header::LEN));
    let mut next = first;
    std::iter::from_fn(move || {
        let (kind, at) = next.take()?;
        let header = Extension { kind, at };
        let len = match kind {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                packet.get(at + 1).map(|len| (usize::from(*len) + 1) * 8)
            }
            protocol::AUTHENTICATION => packet.get(at + 1).map(|len| (usize::from(*len) + 2) * 4),
            protocol::FRAGMENT => match packet.get(at..at + 8) {
                Some([_, _, a, b, ..]) if u16::from_be_bytes([*a, *b]) & 0xfff8 != 0 => {
                    return Some(Ok(header));
                }
                found => found.map(|_| 8),
            },
            _ => return Some(Ok(header)),
        };
        let Some(end) = len.map(|len| at + len).filter(|end| *end <= packet.len()) else {
            return Some(Err(()));
        };
        next = Some((packet[at], end));
        Some(Ok(header))
    })
}
