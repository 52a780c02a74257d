//! REPLACE-CSID: RFC 9800 section 4.2. An entry of the segment list holds several compressed SIDs, and the end of the
//! destination is the index of the one that is active.
//!
//! ```text
//! destination:  | Locator-Block | Locator-Node + Function |   …   | Index |
//! entry:        | CSID 0 | CSID 1 | … | the last, which is visited first  |
//! ```

use std::net::Ipv6Addr;

use underpass_packet::srh::{Malformed, SEGMENTS_LEFT_OFFSET, Srh};
use underpass_packet::{FromBytes, ipv6, srh};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::srv6::end::{extensions, header_and_srh};
use crate::tables::ReplaceCsid;
use crate::worker::error::{IcmpError, PacketError};

/// S11: "Send an ICMP Parameter Problem to the Source Address", "Pointer set to the Segments Left field".
const BEYOND_THE_LIST: PacketError = PacketError::notify(DropReason::SrhMalformed, IcmpError::SegmentsLeft);

impl ReplaceCsid {
    /// The index of the CSID of an entry that is visited first: an entry has one more of them, a power of 2.
    const fn last_index(self) -> usize {
        (128 / self.node_function as usize).saturating_sub(1)
    }

    /// `DA.Arg.Index`.
    const fn index(self, destination: u128) -> usize {
        destination as usize & self.last_index()
    }

    /// `Segment List[…][index]`.
    fn csid(self, entry: u128, index: usize) -> u128 {
        let length = u32::from(self.node_function);
        entry.unbounded_shl(index as u32 * length).unbounded_shr(128 - length)
    }

    /// The destination with another CSID and index.
    fn replaced(self, destination: u128, csid: u128, index: usize) -> u128 {
        let (block, length) = (u32::from(self.block), u32::from(self.node_function));
        let behind = 128_u32.saturating_sub(block + length);
        let place = u128::MAX.unbounded_shr(128 - length).unbounded_shl(behind);
        let kept = destination & !place & !(self.last_index() as u128);
        kept | csid.unbounded_shl(behind) | index as u128
    }

    /// Whether nothing is left behind the CSID of this index: S02, S28.1.
    fn ends(self, srh: &Srh<'_>, index: usize) -> bool {
        let first = srh.segments().first().map_or(0, |entry| u128::from_be_bytes(*entry));
        srh.segments_left() == 0 && index.checked_sub(1).is_none_or(|next| self.csid(first, next) == 0)
    }
}

/// The SRH of a packet, as its list says.
pub(super) enum List {
    /// It goes on by the SRH that begins here.
    At(usize),
    /// It has ended, or there is none: why End without flavours would drop the packet.
    Ended(DropReason),
}

/// The SRH by which a packet goes on, RFC 9800 section 4.2.1, S01 and S02. It is sound, and its HMAC as it is to be.
///
/// # Errors
/// The list is malformed, or another routing header comes first.
pub(super) fn active_srh(
    packet: &Packet,
    structure: ReplaceCsid,
    check: &Check<'_>,
) -> Result<List, PacketError> {
    let (fixed, _) = ipv6::Header::ref_from_prefix(packet.bytes()).map_err(|_| DropReason::Ip6Truncated)?;
    let index = structure.index(u128::from_be_bytes(fixed.destination));
    let mut reason = DropReason::SrhMissing;
    for header in extensions(packet.bytes())? {
        let header = header.map_err(|_| DropReason::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        if routing.segments_left == 0 && (routing.routing_type != srh::ROUTING_TYPE || index == 0) {
            reason = DropReason::SegmentsLeftZero;
            continue;
        }
        if routing.routing_type != srh::ROUTING_TYPE {
            return Err(DropReason::SrhMissing.into());
        }
        let srh = Srh::parse(header.bytes).map_err(|malformed| match malformed {
            Malformed::LastEntry | Malformed::SegmentsLeft if fixed.hop_limit > 1 => BEYOND_THE_LIST,
            _ => DropReason::SrhMalformed.into(),
        })?;
        if structure.ends(&srh, index) {
            reason = DropReason::SegmentsLeftZero;
            continue;
        }
        check.check(&fixed.source, &srh)?;
        return Ok(List::At(header.offset));
    }
    Ok(List::Ended(reason))
}

/// S05 to S28: the next CSID of the SRH at `at` into the destination. The destination, and whether it is the last one.
///
/// # Errors
/// The hop limit is used up, or Segments Left is beyond the list.
pub(super) fn advance_at(
    packet: &mut Packet,
    at: usize,
    structure: ReplaceCsid,
) -> Result<(Ipv6Addr, bool), PacketError> {
    let (header, mut srh) = header_and_srh(packet, at)?;
    let destination = u128::from_be_bytes(header.destination);
    // S09: "If (DA.Arg.Index != 0)"
    let (next, ends) = if let Some(index) = structure.index(destination).checked_sub(1) {
        // S10: "(Segments Left > Last Entry)"
        let left = usize::from(srh.view().segments_left());
        let entry = *srh.view().segments().get(left).ok_or(BEYOND_THE_LIST)?;
        match structure.csid(u128::from_be_bytes(entry), index) {
            0 => {
                // S15, S17: "Update IPv6 DA with Segment List[Segments Left]"
                let entry = srh.advance().ok_or(DropReason::SrhMalformed)?;
                (u128::from_be_bytes(entry), srh.view().segments_left() == 0)
            }
            csid => (structure.replaced(destination, csid, index), structure.ends(&srh.view(), index)),
        }
    } else {
        // S24, S25: "Decrement Segments Left by 1", "Set DA.Arg.Index to (floor(128/LNFL) - 1)"
        let entry = srh.advance().ok_or(BEYOND_THE_LIST)?;
        let index = structure.last_index();
        let csid = structure.csid(u128::from_be_bytes(entry), index);
        (structure.replaced(destination, csid, index), structure.ends(&srh.view(), index))
    };
    header.destination = next.to_be_bytes();
    Ok((Ipv6Addr::from_bits(next), ends))
}

/// Where Segments Left of a packet is that [`BEYOND_THE_LIST`] refuses: of its first SRH that has not ended.
pub(crate) fn segments_left_at(bytes: &[u8]) -> u32 {
    let list = extensions(bytes).into_iter().flatten().flatten().find(|header| {
        let routing = header.routing();
        routing.is_some_and(|routing| {
            let index_counts = Srh::parse(header.bytes).is_ok();
            routing.routing_type == srh::ROUTING_TYPE && (routing.segments_left != 0 || !index_counts)
        })
    });
    list.map_or(0, |header| (header.offset + SEGMENTS_LEFT_OFFSET) as u32)
}
