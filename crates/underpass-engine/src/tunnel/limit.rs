//! The tunnel encapsulation limit of a packet that goes into a tunnel over IPv6: RFC 2473 section 4.1.1, Linux's
//! `ip6_tnl_parse_tlv_enc_lim`.

use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ipv6, protocol};

use crate::buffer::Packet;
use crate::drops::DropReason;

/// Tunnel encapsulation limit, and its length.
const OPTION: [u8; 2] = [4, 1];
const PAD1: u8 = 0;

/// What an outer header with one is longer by.
pub(crate) const LEN: usize = 8;

/// Where it is in such a header.
pub(crate) const VALUE: usize = ipv6::Header::LEN + 4;

/// Where the option's value is in an IPv6 packet, and the value.
pub(crate) fn of(packet: &[u8]) -> Option<(usize, u8)> {
    // Most have no extension headers.
    if !has_extensions(*packet.get(ipv6::Header::NEXT_HEADER_OFFSET)?) {
        return None;
    }
    // Whatever length it says: what a filter sends here nobody has looked at.
    let (header, payload) = ipv6::Header::ref_from_prefix(packet).ok()?;
    let view = ipv6::View { header, payload };
    let options = Extensions::new(&view).map_while(Result::ok);
    options.filter(|header| header.kind == Kind::DestinationOptions).find_map(|header| {
        let mut at = 2;
        while let Some([kind, len, value]) = header.bytes.get(at..at + 3) {
            if [*kind, *len] == OPTION {
                return Some((header.offset + at + 2, *value));
            }
            at += if *kind == PAD1 { 1 } else { 2 + usize::from(*len) };
        }
        None
    })
}

/// Whether what follows an IPv6 header with this next header may have the option.
#[inline(always)]
pub(crate) const fn has_extensions(next_header: u8) -> bool {
    matches!(
        next_header,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION_OPTIONS
    )
}

/// Gives an outer header this limit, by an option of its own if it has none. By how much it has become longer.
pub(crate) fn set(packet: &mut Packet, limit: u8) -> Result<usize, DropReason> {
    let bytes = packet.bytes_mut();
    if bytes.get(ipv6::Header::NEXT_HEADER_OFFSET) == Some(&protocol::DESTINATION_OPTIONS) {
        *bytes.get_mut(VALUE).ok_or(DropReason::NoHeadroom)? = limit;
        return Ok(0);
    }
    let bytes = packet.push(LEN).map_err(|_| DropReason::NoHeadroom)?;
    let Some(header) = bytes.first_chunk_mut::<{ ipv6::Header::LEN + LEN }>() else {
        return Err(DropReason::NoHeadroom);
    };
    header.copy_within(LEN.., 0);
    let [_, _, _, _, high, low, next, ..] = header;
    let length =
        u16::from_be_bytes([*high, *low]).checked_add(LEN as u16).ok_or(DropReason::LengthOverflow)?;
    [*high, *low] = length.to_be_bytes();
    let inside = std::mem::replace(next, protocol::DESTINATION_OPTIONS);
    // And a PadN of 3 bytes.
    header[ipv6::Header::LEN..].copy_from_slice(&[inside, 0, OPTION[0], OPTION[1], limit, 1, 1, 0]);
    Ok(LEN)
}
