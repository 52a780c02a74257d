//! IPv4 fragmentation: RFC 791 section 3.2, as Linux's `ip_do_fragment` cuts.

use arrayvec::ArrayVec;
use underpass_packet::{FromBytes, ipv4};

use crate::buffer::{Packet, Pool};
use crate::drops::DropReason;

/// More than 65,535 bytes make at the smallest MTU that carries a full-size slot.
const MAX_FRAGMENTS: usize = 64;

/// An option that stands in every fragment has this bit set: RFC 791 section 3.1.
const COPIED: u8 = 0x80;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;

/// Cuts `packet` (from its IPv4 header on) into fragments of at most `mtu` bytes, in packets of `pool`.
///
/// # Errors
/// Why it cannot be done; no packet of the pool is then used.
pub(crate) fn fragment(
    pool: &mut Pool,
    packet: &Packet,
    mtu: usize,
) -> Result<ArrayVec<Packet, MAX_FRAGMENTS>, DropReason> {
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

    let mut fragments = ArrayVec::new();
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
