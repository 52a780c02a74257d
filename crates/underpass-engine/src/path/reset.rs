//! TCP segments for the router itself, where no kernel beside it takes them: nothing listens, which the sender hears by
//! a reset. RFC 9293 section 3.10.7.1; Linux: `tcp_v4_send_reset`, `tcp_v6_send_reset`.

use std::net::IpAddr;

use underpass_packet::checksum::Sum;
use underpass_packet::tcp::{ACK, FIN, RST, SYN};
use underpass_packet::{FromBytes, IntoBytes, ipv4, ipv6, protocol, tcp};

use crate::drops::DropReason;
use crate::path::icmp::{HOP_LIMIT, send_generated};
use crate::path::options;
use crate::trace::{Event, Trace};
use crate::worker::metadata::{BROADCAST, GROUP, PacketMeta};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The upper bits of TOS and traffic class: congestion notification is not given back.
const DSCP: u8 = 0xfc;

/// Turns a segment into the reset that answers it. `None`: it is delivered, and nothing more is to be done.
pub(crate) fn reset4<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    let ipv4::View { header, options, payload, .. } = ipv4::View::parse(meta.packet.bytes()).ok()?;
    let pseudo = Sum::pseudo_ipv4(header.source, header.destination, protocol::TCP, payload.len() as u16);
    let Some(mut reset) = answer(payload, pseudo) else {
        return Some(Verdict::drop(DropReason::InnerMalformed));
    };
    let (source, destination) = (header.source(), header.destination());
    let unicast = |address: std::net::Ipv4Addr| !address.is_multicast() && !address.is_unspecified();
    if reset.flags() == 0 || meta.is(GROUP | BROADCAST) || !unicast(source) || !unicast(destination) {
        return None;
    }
    // Linux: `ip_send_unicast_reply`. What records the way of the segment records that of the reset as well.
    let (echoed, recorded) = options::echo4(options, options::time4(view.epoch.wrapping_add(view.now)));
    let len = tcp::Header::LEN as u16;
    let before = ipv4::Header::LEN + echoed.len();
    let mut reply = ipv4::Header::new(destination, source, protocol::TCP, HOP_LIMIT, before as u16 + len);
    reply.tos = header.tos & DSCP;
    reply.set_header_len(before);
    reply.fill_checksum(&echoed);
    reset.fill_checksum(Sum::pseudo_ipv4(reply.source, reply.destination, protocol::TCP, len), &[], &[]);
    crate::path::ipv4::records(meta, recorded);
    send_reset(path, view, meta, (reply.as_bytes(), &echoed, &reset), source.into(), trace)
}

/// As [`Self::reset4`]; the segment is at `at`, behind extension headers.
pub(crate) fn reset6<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    at: usize,
    trace: &mut T,
) -> Option<Verdict> {
    let packet = ipv6::View::parse(meta.packet.bytes()).ok()?;
    let header = packet.header;
    let payload = packet.payload.get(at - ipv6::Header::LEN..)?;
    let pseudo = Sum::pseudo_ipv6(header.source, header.destination, protocol::TCP, payload.len() as u32);
    let Some(mut reset) = answer(payload, pseudo) else {
        return Some(Verdict::drop(DropReason::InnerMalformed));
    };
    let (source, destination) = (header.source(), header.destination());
    let unicast = |address: std::net::Ipv6Addr| !address.is_multicast() && !address.is_unspecified();
    if reset.flags() == 0 || meta.is(GROUP) || !unicast(source) || !unicast(destination) {
        return None;
    }
    let len = tcp::Header::LEN as u16;
    let mut reply = ipv6::Header::new(destination, source, protocol::TCP, HOP_LIMIT, len);
    reply.set_traffic_class(header.traffic_class() & DSCP);
    let sum = Sum::pseudo_ipv6(reply.source, reply.destination, protocol::TCP, len.into());
    reset.fill_checksum(sum, &[], &[]);
    send_reset(path, view, meta, (reply.as_bytes(), &[], &reset), source.into(), trace)
}

/// Puts the reset in the place of the segment, which is no shorter.
fn send_reset<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (header, options, reset): (&[u8], &[u8], &tcp::Header),
    to: IpAddr,
    trace: &mut T,
) -> Option<Verdict> {
    let mut place = meta.packet.bytes_mut();
    let mut len = 0;
    for part in [header, options, reset.as_bytes()] {
        let (own, rest) = place.split_at_mut_checked(part.len())?;
        own.copy_from_slice(part);
        (place, len) = (rest, len + part.len());
    }
    meta.packet.truncate(len);
    meta.packet.clear_offload();
    trace.step(Event::Reset, &meta.packet);
    path.totals.delivered += 1;
    Some(send_generated(path, view, meta, to))
}

/// The reset that answers a segment, still without its checksum, and without flags if there is to be none; `None` if
/// the segment is malformed.
fn answer(segment: &[u8], pseudo: Sum) -> Option<tcp::Header> {
    let (header, _) = tcp::Header::ref_from_prefix(segment).ok()?;
    let data = segment.len().checked_sub(header.header_len().max(tcp::Header::LEN))?;
    if header.header_len() < tcp::Header::LEN || pseudo.add_bytes(segment).fold() != 0xffff {
        return None;
    }
    let mut reset = tcp::Header::new(header.destination_port.get(), header.source_port.get(), 0);
    let has = |flag: u16| header.flags() & flag != 0;
    if has(RST) {
        return Some(reset);
    }
    if has(ACK) {
        reset.set_flags(RST);
        reset.sequence = header.acknowledgment;
    } else {
        reset.set_flags(RST | ACK);
        let taken = data as u32 + u32::from(has(SYN)) + u32::from(has(FIN));
        reset.acknowledgment = header.sequence.get().wrapping_add(taken).into();
    }
    Some(reset)
}
