//! Room for a routing header in a frame.

use underpass_packet::{ethernet, protocol};

use crate::buffer::Packet;
use crate::tables::StoredNextHop;
use crate::worker::rewrite::{ETHERNET, FIXED, FastVerdict, addresses, cut, write_header};

/// Room for a routing header, and what it takes over.
pub(crate) struct Gap<'p> {
    pub(crate) room: &'p mut [u8],
    pub(crate) next_header: u8,
    /// Where the packet was going.
    pub(crate) destination: [u8; 16],
    pub(crate) out: FastVerdict,
}

/// Makes room for a routing header of `longer` bytes behind the IPv6 header of the packet of `len` bytes in a
/// frame, and sends it to `first`, which `next_hop` leads to. `None`: it is not IPv6, or not so simple, and as it was.
#[inline(always)]
pub(crate) fn open_gap_fast<'p>(
    next_hop: &StoredNextHop,
    packet: &'p mut Packet,
    len: usize,
    longer: usize,
    first: &[u8; 16],
) -> Option<Gap<'p>> {
    let mac = addresses(next_hop, longer + len)?;
    let payload_length = u16::try_from(longer + len - FIXED).ok()?;
    let fixed: &[u8; FIXED] = packet.bytes().get(ETHERNET..)?.first_chunk()?;
    let start = u64::from_be_bytes(*fixed.first_chunk()?);
    let source: [u8; 16] = *fixed.get(8..)?.first_chunk()?;
    let destination: [u8; 16] = *fixed.last_chunk()?;
    let (next_header, hop_limit) = ((start >> 8) as u8, start as u8);
    if start >> 60 != 6 || hop_limit <= 1 {
        return None;
    }
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let bytes = packet.push(longer).ok()?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    let (header, bytes) = bytes.split_first_chunk_mut::<FIXED>()?;
    let room = bytes.get_mut(..longer)?;
    write_header(head, mac, ethernet::IPV6);
    let start = start & !0xffff_ffff
        | u64::from(payload_length) << 16
        | u64::from(protocol::ROUTING) << 8
        | u64::from(hop_limit - 1);
    *header.first_chunk_mut()? = start.to_be_bytes();
    *header.get_mut(8..)?.first_chunk_mut()? = source;
    *header.last_chunk_mut()? = *first;
    Some(Gap { room, next_header, destination, out: (next_hop.port, (ETHERNET + longer + len) as u32) })
}
