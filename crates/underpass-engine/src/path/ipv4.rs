//! IPv4 input and forwarding: RFC 791 and RFC 1812, with the checks of Linux's `ip_rcv_core`,
//! `ip_route_input_slow` and `ip_forward`.

use std::net::Ipv4Addr;

use underpass_packet::{FromBytes, ethernet, ipv4};

use crate::buffer::{Packet, Tag};
use crate::drops::DropReason;
use crate::path::options::{Options4, Recorded};
use crate::path::{options, rules, source};
use crate::tables::{Action, Link, LinkId, NextHop};
use crate::worker::error::IcmpError;
use crate::worker::metadata::{
    BEHIND_LABEL, BROADCAST, GENERATED, GROUP, LED_INTO_VRF, NOT_FORWARDED, PacketMeta, RECORDS_ROUTE,
    RECORDS_TIMES,
};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// A header that is sound.
pub(crate) struct Checked {
    pub(crate) destination: Ipv4Addr,
    /// Length of the packet by its header.
    pub(crate) len: usize,
    /// Whether it has options, or an address of a kind that may not be forwarded.
    pub(crate) unusual: bool,
}

/// Checks the header, and its checksum, of a packet.
#[inline(never)]
pub(crate) fn check(bytes: &[u8]) -> Result<Checked, DropReason> {
    let view = ipv4::View::parse(bytes).map_err(|malformed| match malformed {
        ipv4::Malformed::Truncated | ipv4::Malformed::PayloadTruncated => DropReason::Ip4Truncated,
        ipv4::Malformed::Version | ipv4::Malformed::HeaderLength | ipv4::Malformed::TotalLength => {
            DropReason::Ip4Malformed
        }
    })?;
    if !view.checksum_valid() {
        return Err(DropReason::Ip4Checksum);
    }
    let header = view.header;
    let unusual = is_unusual(header.source) || is_unusual(header.destination) || !view.options.is_empty();
    Ok(Checked { destination: header.destination(), len: usize::from(header.total_length.get()), unusual })
}

/// The destination and the length of a sound packet that may be forwarded and has no options, of which the first bits that
/// `compared` has are those of such a packet ([`Tables::plain_bits4`](crate::tables::Tables::plain_bits4)). `None`:
/// [`check`] says what it is.
#[inline(always)]
pub(crate) fn plain(bytes: &[u8], compared: u32) -> Option<(u32, usize)> {
    let header = bytes.first_chunk::<{ ipv4::Header::LEN }>()?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let [first, source, destination] = [word(0), word(12), word(16)];
    let len = usize::from(((first >> 16) as u16).swap_bytes());
    // RFC 1071: the sum over 32-bit words, folded, is that over 16-bit words, in either byte order. It folds to 0xffff
    // if it is a multiple of that other than 0: if its product with the inverse of 0xffff, modulo 2^64, is small.
    let sum: u64 = [first, word(4), word(8), source, destination].map(u64::from).iter().sum();
    let rare = RARE[usize::from(source as u8)] | RARE[usize::from(destination as u8)];
    let plain = first & compared == 0x45
        && (ipv4::Header::LEN..=bytes.len()).contains(&len)
        && sum.wrapping_mul(MINUS_INVERSE).wrapping_neg() <= MINUS_INVERSE
        && (!rare || !is_unusual(source.to_le_bytes()) && !is_unusual(destination.to_le_bytes()));
    let destination = destination.swap_bytes();
    plain.then_some((destination, len))
}

/// Minus the inverse of 0xffff modulo 2^64, which is also the largest quotient by it.
const MINUS_INVERSE: u64 = u64::MAX / 0xffff;

/// By the first octet of an address: whether [`is_unusual`] may say so.
const RARE: [bool; 256] = {
    let mut rare = [false; 256];
    let mut first = 0;
    while first < 256 {
        rare[first] = matches!(first, 0 | 127 | 169 | 224..);
        first += 1;
    }
    rare
};

/// In 0/8, 127/8, 169.254/16, multicast, reserved or broadcast.
#[inline(always)]
fn is_unusual([first, second, ..]: [u8; 4]) -> bool {
    // 0 wraps round to the top.
    first.wrapping_sub(1) >= 223 || first == 127 || [first, second] == [169, 254]
}

/// Whether a packet with these addresses may be forwarded: RFC 1812 section 5.3.7, RFC 3927 section 7.
/// 240/4 is forwarded, as by Linux.
pub(crate) fn may_forward(header: &ipv4::Header) -> bool {
    let not = |address: Ipv4Addr| {
        let first = address.octets()[0];
        first == 0
            || first == 127
            || address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
    };
    !not(header.source()) && !not(header.destination())
}

/// The checks that only some packets need.
#[cold]
pub(crate) fn unusual(view: &View<'_>, meta: &mut PacketMeta, link: &Link) -> Verdict {
    let Ok(packet) = ipv4::View::parse(meta.packet.bytes()) else {
        return Verdict::drop(DropReason::Ip4Truncated);
    };
    let (source, destination) = (packet.header.source(), packet.header.destination());
    let no_host = |address: Ipv4Addr| matches!(address.octets()[0], 0 | 127);
    let forwards = may_forward(packet.header);
    if let Err(problem) = options::check4(&packet) {
        return problem.refuse(meta);
    }
    take_options(view, meta, link);
    if destination.is_broadcast() {
        meta.extra.flags |= GROUP | BROADCAST;
        return Verdict::Deliver;
    }
    if source.is_multicast() || source.is_broadcast() || no_host(source) {
        return Verdict::drop(DropReason::SourceInvalid);
    }
    // 224.0.0/24 never leaves its link; no other group is forwarded, and tunnels are in some.
    if destination.is_multicast() {
        return match destination.octets() {
            [224, 0, 0, _] => Verdict::Deliver,
            _ if link.is_in(destination.into()) => Verdict::Deliver,
            _ => Verdict::drop(DropReason::DestinationInvalid),
        };
    }
    if no_host(destination) {
        return Verdict::drop(DropReason::DestinationInvalid);
    }
    if !forwards || !link.forward4 {
        meta.extra.flags |= NOT_FORWARDED;
    }
    meta.target4 = destination;
    Verdict::Look4(link.lookup)
}

/// Writes what the options of a packet ask for, which have been checked, and clears what is behind their end.
pub(crate) fn take_options(view: &View<'_>, meta: &mut PacketMeta, link: &Link) {
    let bytes = meta.packet.bytes();
    let Ok(header) = ipv4::Header::ref_from_prefix(bytes).map(|(header, _)| header) else { return };
    if header.header_len() <= ipv4::Header::LEN {
        return;
    }
    let (sender, destination) = (header.source(), header.destination());
    let own = |address: Ipv4Addr| {
        matches!(rules::action_at(view, bytes, link.lookup, address.into()), Some(Action::Local))
    };
    // What is for the router has come to this address, all else to the one from which the sender would be answered.
    let here = if own(destination) { destination } else { source::towards4(view, bytes, link, sender) };
    let time = options::time4(view.epoch.wrapping_add(view.now));
    let mut options = Options4::new();
    if let Ok(packet) = ipv4::View::parse(bytes) {
        options.extend(packet.options.iter().copied().take(ipv4::MAX_OPTIONS));
    }
    let recorded = options::record4(&mut options, here, time, own);
    if options::clear_behind_end4(&mut options) | recorded.changed
        && let Ok(packet) = ipv4::ViewMut::parse(meta.packet.bytes_mut())
    {
        packet.options.copy_from_slice(&options);
        packet.header.fill_checksum(packet.options);
    }
    records(meta, recorded);
}

/// Takes note of what is to be written into the options once it is known by which link the packet leaves.
pub(crate) fn records(meta: &mut PacketMeta, recorded: Recorded) {
    meta.extra.flags &= !(RECORDS_ROUTE | RECORDS_TIMES);
    meta.extra.flags |= if recorded.route { RECORDS_ROUTE } else { 0 };
    meta.extra.flags |= if recorded.times { RECORDS_TIMES } else { 0 };
}

/// Writes the address by which a packet leaves into its options, where these record it.
#[cold]
pub(crate) fn record_way_out(view: &View<'_>, meta: &mut PacketMeta, link: LinkId) {
    let of = Recorded { changed: true, route: meta.is(RECORDS_ROUTE), times: meta.is(RECORDS_TIMES) };
    meta.extra.flags &= !(RECORDS_ROUTE | RECORDS_TIMES);
    let own = meta.is(GENERATED);
    let egress = source::recorded4(view, meta, link).unwrap_or(Ipv4Addr::UNSPECIFIED);
    if let Ok(packet) = ipv4::ViewMut::parse(meta.packet.bytes_mut()) {
        let source = if own { packet.header.source() } else { egress };
        options::record_way_out4(packet.options, source, of);
        packet.header.fill_checksum(packet.options);
    }
}

/// Lowers the TTL of a checked packet, if that leaves some: what it leaves.
#[inline(always)]
pub(crate) fn lower_ttl(bytes: &mut [u8]) -> Option<u8> {
    match ipv4::Header::mut_from_prefix(bytes) {
        Ok((header, _)) if header.ttl > 1 => {
            header.decrement_ttl();
            Some(header.ttl)
        }
        _ => None,
    }
}

/// A checked packet before it goes to `next_hop`: its TTL, and whether it fits. `Ok(false)`: it has to
/// be fragmented first.
#[inline(always)]
pub(crate) fn forward(view: &View<'_>, meta: &mut PacketMeta, next_hop: &NextHop) -> Result<bool, Verdict> {
    let fits = meta.packet.fits(next_hop.mtu as usize);
    let generated = meta.is(GENERATED);
    // What a label has led into a VRF, its device sends as if it were its own: Linux's `vrf_process_v4_outbound`.
    let sent_by_vrf = meta.extra.flags & (BEHIND_LABEL | LED_INTO_VRF) == BEHIND_LABEL | LED_INTO_VRF;
    let Ok((header, _)) = ipv4::Header::mut_from_prefix(meta.packet.bytes_mut()) else {
        return Err(Verdict::drop(DropReason::Ip4Truncated));
    };
    if !generated {
        if header.ttl <= 1 {
            return Err(Verdict::error(DropReason::HopLimitExceeded, IcmpError::HopLimit));
        }
        if !fits && header.dont_fragment() {
            meta.extra.argument = next_hop.mtu;
            return Err(Verdict::error(DropReason::TooBig, IcmpError::TooBig));
        }
        header.decrement_ttl();
        let priority = PRIORITIES[usize::from(header.tos >> 3 & 3)];
        if !sent_by_vrf {
            prioritize(view, &mut meta.packet, priority);
        }
    }
    Ok(fits)
}

/// Gives a frame of the host's the priority that its TOS says, as a socket gets it by `IP_TOS`: the device by which it has
/// come does not say which one it had.
pub(crate) fn prioritize_frame(view: &View<'_>, frame: &mut Packet) {
    let Some([header @ .., _, tos]) = frame.bytes().first_chunk::<{ ethernet::Header::LEN + 2 }>() else {
        return;
    };
    if header[ethernet::Header::LEN - 2..] == ethernet::IPV4.to_be_bytes() {
        let priority = PRIORITIES[usize::from(tos >> 3 & 3)];
        prioritize(view, frame, priority);
    }
}

/// What TOS says of the priority of a packet that is forwarded: `ip_tos2prio`, of which ECN's bits and the precedence make no
/// difference.
const PRIORITIES: [u32; 4] = [0, 2, 6, 4];

/// Gives a packet its priority, if that may be looked at, in the place of the one that an action has set.
#[inline]
fn prioritize(view: &View<'_>, packet: &mut Packet, priority: u32) {
    let tag = packet.tag();
    if tag.priority != priority && (tag.priority != 0 || view.tables.reads_priority()) {
        packet.set_tag(Tag { priority, ..tag });
    }
}
