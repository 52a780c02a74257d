//! Fragmentation: of IPv4, RFC 791 section 3.2, as Linux's `ip_do_fragment` cuts; of what the router itself sends of IPv6,
//! RFC 8200 section 4.5, as `ip6_fragment` does.

use arrayvec::ArrayVec;
use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::buffer::{Packet, Pool};
use crate::drops::DropReason;

/// More than 65,535 bytes make at the smallest MTU that carries a full-size slot.
const MAX_FRAGMENTS: usize = 64;

/// An option that stands in every fragment has this bit set: RFC 791 section 3.1.
const COPIED: u8 = 0x80;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;

/// Fragments of one packet.
pub(crate) type Fragments = ArrayVec<Packet, MAX_FRAGMENTS>;

/// Length of a fragment header of IPv6, and where the identification is in it.
const HEADER6: usize = 8;
const IDENTIFICATION6: usize = 4;
const MORE_FRAGMENTS6: u16 = 1;

/// Cuts `packet` (from its IPv6 header on) into fragments of at most `mtu` bytes, in packets of `pool`. Hop-by-hop options and
/// routing headers stand in each of them. `even`: the last one, too, is no longer than those before it, where Linux has cut the
/// message as it made it (`__ip6_append_data`).
///
/// # Errors
/// Why it cannot be done; no packet of the pool is then used.
pub(crate) fn fragment6(
    pool: &mut Pool,
    packet: &Packet,
    mtu: usize,
    (identification, even): (u32, bool),
) -> Result<Fragments, DropReason> {
    let view = ipv6::View::parse(packet.bytes()).map_err(|_| DropReason::Ip6Malformed)?;
    let (at, named_at) = behind_unfragmentable(&view)?;
    let bytes = packet.bytes();
    let (front, rest) = bytes.split_at_checked(at).ok_or(DropReason::Ip6Malformed)?;
    let room = mtu.saturating_sub(at + HEADER6);
    let each = room & !7;
    if each == 0 || rest.len().div_ceil(each) > MAX_FRAGMENTS {
        return Err(DropReason::TooBig);
    }
    let next_header = *front.get(named_at).ok_or(DropReason::Ip6Malformed)?;
    let most = if even { each } else { room };
    let mut fragments = Fragments::new();
    let mut offset = 0;
    while let Some(left) = rest.get(offset..).filter(|left| !left.is_empty()) {
        let part = if left.len() <= most { left } else { &left[..each] };
        let more = if part.len() < left.len() { MORE_FRAGMENTS6 } else { 0 };
        let mut header = [next_header, 0, 0, 0, 0, 0, 0, 0];
        header[2..IDENTIFICATION6].copy_from_slice(&(offset as u16 | more).to_be_bytes());
        header[IDENTIFICATION6..].copy_from_slice(&identification.to_be_bytes());
        match build6(pool, (front, named_at), header, part) {
            Ok(mut fragment) => {
                fragment.tag_as(packet);
                fragments.push(fragment);
            }
            Err(reason) => {
                fragments.into_iter().for_each(|fragment| pool.give(fragment));
                return Err(reason);
            }
        }
        offset += part.len();
    }
    Ok(fragments)
}

/// Where the part of a packet begins that is cut, and where the number stands that names it: Linux's `ip6_find_1stfragopt`.
fn behind_unfragmentable(packet: &ipv6::View<'_>) -> Result<(usize, usize), DropReason> {
    let mut place = (ipv6::Header::LEN, ipv6::Header::NEXT_HEADER_OFFSET);
    let mut routed = false;
    for extension in Extensions::new(packet) {
        let extension = extension.map_err(|_| DropReason::Ip6Malformed)?;
        match extension.kind {
            Kind::HopByHop => {}
            Kind::Routing => routed = true,
            Kind::DestinationOptions if !routed => {}
            _ => break,
        }
        place = (extension.offset + extension.bytes.len(), extension.offset);
    }
    Ok(place)
}

/// Lays one fragment of IPv6 into a free packet.
fn build6(
    pool: &mut Pool,
    (front, named_at): (&[u8], usize),
    header: [u8; HEADER6],
    part: &[u8],
) -> Result<Packet, DropReason> {
    let mut packet = pool.take_for(front.len() + HEADER6 + part.len()).ok_or(DropReason::NoBuffer)?;
    let (to_front, rest) = packet.bytes_mut().split_at_mut(front.len());
    to_front.copy_from_slice(front);
    to_front[named_at] = protocol::FRAGMENT;
    let (to_header, to_part) = rest.split_at_mut(HEADER6);
    to_header.copy_from_slice(&header);
    to_part.copy_from_slice(part);
    let payload_length = (front.len() - ipv6::Header::LEN + HEADER6 + part.len()) as u16;
    to_front[PAYLOAD_LENGTH].copy_from_slice(&payload_length.to_be_bytes());
    Ok(packet)
}

/// Where an IPv6 header has its payload length.
const PAYLOAD_LENGTH: std::ops::Range<usize> = 4..6;

/// Cuts `packet` (from its IPv4 header on) into fragments of at most `mtu` bytes, in packets of `pool`.
///
/// # Errors
/// Why it cannot be done; no packet of the pool is then used.
pub(crate) fn fragment(pool: &mut Pool, packet: &Packet, mtu: usize) -> Result<Fragments, DropReason> {
    let view = ipv4::View::parse(packet.bytes()).map_err(|_| DropReason::Ip4Malformed)?;
    let header_len = view.header.header_len();
    // All fragments but the last carry a multiple of 8 bytes.
    let each = mtu.saturating_sub(header_len) & !7;
    if each == 0 || view.payload.len().div_ceil(each) > MAX_FRAGMENTS {
        return Err(DropReason::TooBig);
    }
    let mut options = [0; ipv4::MAX_OPTIONS];
    let options = &mut options[..view.options.len()];
    options.copy_from_slice(view.options);

    let mut fragments = Fragments::new();
    let last = (view.payload.len() - 1) / each;
    for (index, part) in view.payload.chunks(each).enumerate() {
        let mut header = *view.header;
        let offset = view.header.fragment_offset() + index * each;
        let more = index < last || view.header.more_fragments();
        let flags = if more { ipv4::MORE_FRAGMENTS } else { 0 };
        header.flags_offset = (flags | (offset / 8) as u16).into();
        header.total_length = ((header_len + part.len()) as u16).into();
        header.fill_checksum(options);
        match build(pool, &header, options, part) {
            Ok(mut fragment) => {
                fragment.tag_as(packet);
                fragments.push(fragment);
            }
            Err(reason) => {
                for fragment in fragments {
                    pool.give(fragment);
                }
                return Err(reason);
            }
        }
        // A later fragment has only those that its first sender let it have.
        if index == 0 && view.header.fragment_offset() == 0 {
            blank_uncopied(options);
        }
    }
    Ok(fragments)
}

/// Lays one fragment into a free packet.
fn build(pool: &mut Pool, header: &ipv4::Header, options: &[u8], part: &[u8]) -> Result<Packet, DropReason> {
    let len = ipv4::Header::LEN + options.len() + part.len();
    let mut packet = pool.take_for(len).ok_or(DropReason::NoBuffer)?;
    let written = {
        let (to_header, rest) = packet.bytes_mut().split_at_mut(ipv4::Header::LEN);
        let (to_options, to_part) = rest.split_at_mut(options.len());
        to_options.copy_from_slice(options);
        to_part.copy_from_slice(part);
        ipv4::Header::mut_from_prefix(to_header).map(|(to, _)| *to = *header).is_ok()
    };
    if written {
        Ok(packet)
    } else {
        pool.give(packet);
        Err(DropReason::NoBuffer)
    }
}

/// Turns the options that stand only in the first fragment into no-operations, as Linux does.
fn blank_uncopied(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            OPTION_END => return,
            OPTION_NOP => at += 1,
            _ => {
                let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
                let Some(option) = options.get_mut(at..at + len).filter(|_| len >= 2) else { return };
                if kind & COPIED == 0 {
                    option.fill(OPTION_NOP);
                }
                at += len;
            }
        }
    }
}
