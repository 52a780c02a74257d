//! End.DX2, End.DX2V, End.DX4, End.DX6, End.DT4, End.DT6 and End.DT46: what is inside comes out. RFC 8986 sections 4.4
//! to 4.10.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::srh::Srh;
use underpass_packet::{FromBytes, ethernet, ipv6, protocol, srh};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::l2::vlan;
use crate::path::ipv4::{check as ipv4_check, plain as ipv4_plain};
use crate::path::ipv6::{check as ipv6_check, plain as ipv6_plain};
use crate::srv6;
use crate::srv6::end::extensions;
use crate::srv6::next::Next;
use crate::tables::{Link, LinkId, LookupId, StoredNextHop, Via};
use crate::worker::error::PacketError;
use crate::worker::family::{Family, To, forward_inner};
use crate::worker::fibs::Fibs;
use crate::worker::rewrite::{ETHERNET, FastVerdict};
use crate::worker::view::View;

/// Where the Ethernet frame in a packet of `len` bytes begins, behind outer headers of the frequent forms, and the frame.
#[inline(always)]
pub(super) fn frame_inside(packet: &Packet, len: usize) -> Option<(usize, &[u8])> {
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let at = find_inner_fast(bytes, protocol::ETHERNET)?;
    Some((at, bytes.get(at..)?))
}

/// End.DX2 of a frame that its link takes as it is. `None`: nothing was written, [`decapsulate_frame`] decides.
#[inline(always)]
pub(crate) fn end_dx2_fast(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    link: LinkId,
) -> Option<FastVerdict> {
    let (at, inside) = frame_inside(packet, len)?;
    let [.., type0, type1] = *inside.first_chunk::<ETHERNET>()?;
    let len = inside.len();
    match view.link(link)? {
        Link { up: true, port: Some(port), mtu, .. }
            if u16::from_be_bytes([type0, type1]) >= LEAST_ETHERTYPE && len <= *mtu as usize + ETHERNET =>
        {
            packet.narrow(ETHERNET + at, len);
            Some((*port, len as u32))
        }
        _ => None,
    }
}

/// Below it is the length of an IEEE 802.3 frame, of which Linux forwards none.
pub(crate) const LEAST_ETHERTYPE: u16 = 0x0600;

/// End.DX2: what is inside is an Ethernet frame. RFC 8986 section 4.9.
#[inline(always)]
pub(crate) fn decapsulate_frame(packet: &mut Packet, check: &Check<'_>) -> Result<(), PacketError> {
    let at = inner(packet, check, protocol::ETHERNET)?;
    packet.pull(at);
    match ethernet::Header::parse(packet.bytes()) {
        Ok((header, _)) if header.ethertype.get() >= LEAST_ETHERTYPE => Ok(()),
        _ => Err(DropReason::InnerMalformed.into()),
    }
}

/// End.DX2V of a frame whose outer VLAN alone has a device, which takes it. `None`: nothing was written, [`end_dx2v`] decides.
#[inline(always)]
pub(crate) fn end_dx2v_fast(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    link: LinkId,
) -> Option<FastVerdict> {
    let (at, inside) = frame_inside(packet, len)?;
    let device = view.link(view.link(link)?.vlans.as_ref()?.of_frame(inside)?)?;
    let len = inside.len();
    match device {
        Link { up: true, port: Some(port), mtu, vlans: None, vlan: Some(vlan), .. }
            if len <= *mtu as usize + ETHERNET + vlan::TAG && !packet.has_offload() =>
        {
            packet.narrow(ETHERNET + at, len);
            vlan::take_off(packet, vlan);
            Some((*port, packet.len() as u32))
        }
        _ => None,
    }
}

/// End.DX2V: the VLANs of the Ethernet frame inside say by which link it leaves. RFC 8986 section 4.10, whose L2 table
/// is the VLAN devices above `link`, and those above the device of the outer VLAN.
///
/// The frame comes out without the tags that led to the device, which puts its own on again: those of the same VLANs, with the
/// priorities that its maps say. An inner tag of no device is none of these, and stays.
#[inline(never)]
pub(crate) fn end_dx2v(
    view: &View<'_>,
    packet: &mut Packet,
    check: &Check<'_>,
    link: LinkId,
) -> Result<LinkId, PacketError> {
    decapsulate_frame(packet, check)?;
    // S03: the exposed VLANs are looked up in the table. An entry is of the outer one, or of both.
    let outer = vlan::take_tag(view, packet, link).ok_or(DropReason::VlanUnknown)?;
    Ok(vlan::take_tag(view, packet, outer).unwrap_or(outer))
}

/// End.DX4 and End.DX6 of a packet that goes where its SID says or its destination leads. `None`: nothing was written,
/// [`end_dx4`] or [`end_dx6`] decides.
#[inline(always)]
pub(crate) fn end_dx_fast<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    via: &Via,
) -> Option<FastVerdict> {
    let known = view.next_hop(via.resolved);
    if known.is_none() && !via.address.is_unspecified() {
        return None;
    }
    decapsulate_fast::<A>(view, packet, len, |target, _, _| {
        known.or_else(|| looked_up(view, fibs, via.lookup, target))
    })
}

/// End.DX4: the IPv4 packet inside goes to this neighbour. RFC 8986 section 4.5.
#[inline(always)]
pub(crate) fn end_dx4<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    let destination = decapsulate4(packet, check, unusual)?;
    Ok(match via.address {
        IpAddr::V4(address) if address.is_unspecified() => Next::Look4(via.lookup, destination),
        _ => Next::via(via),
    })
}

/// End.DX6: the IPv6 packet inside goes to this neighbour. RFC 8986 section 4.4.
#[inline(always)]
pub(crate) fn end_dx6<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    via: &Via,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    let destination = decapsulate6(packet, check, unusual)?;
    Ok(match via.address {
        IpAddr::V6(address) if address.is_unspecified() => Next::Look6(via.lookup, destination),
        _ => Next::via(via),
    })
}

/// End.DT4 and End.DT6, and End.DT46 of either family, of a packet whose destination leads on in tables that are near.
/// `None`: nothing was written, [`end_dt4`], [`end_dt6`] or [`end_dt46`] decides.
#[inline(always)]
pub(crate) fn end_dt_fast<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    lookup: LookupId,
) -> Option<FastVerdict> {
    decapsulate_fast::<A>(view, packet, len, |target, _, _| looked_up(view, fibs, lookup, target))
}

/// [`end_dt_fast`] where the destination may lead to a multipath route.
#[inline(always)]
pub(crate) fn end_dt_spread<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    lookup: LookupId,
) -> Option<FastVerdict> {
    let to = To::table(view, fibs, lookup)?;
    decapsulate_fast::<A>(view, packet, len, |target, inside, len| {
        to.next_hop_of(view, target, inside.get(..len)?)
    })
}

/// End.DT4: the IPv4 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.7.
#[inline(always)]
pub(crate) fn end_dt4<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    Ok(Next::Look4(lookup, decapsulate4(packet, check, unusual)?))
}

/// End.DT6: the IPv6 packet inside is looked up in the tables of the VRF. RFC 8986 section 4.6.
#[inline(always)]
pub(crate) fn end_dt6<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    Ok(Next::Look6(lookup, decapsulate6(packet, check, unusual)?))
}

/// End.DT46: either. RFC 8986 section 4.8.
#[inline(always)]
pub(crate) fn end_dt46<'s>(
    packet: &mut Packet,
    check: &Check<'_>,
    lookup: LookupId,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    match end_dt6(packet, check, lookup, unusual) {
        Err(error) if error == PacketError::silent(DropReason::UpperLayerUnexpected) => {
            end_dt4(packet, check, lookup, unusual)
        }
        done => done,
    }
}

/// The next hop that an address leads to, in tables that are near.
#[inline(always)]
pub(crate) fn looked_up<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    lookup: LookupId,
    target: A,
) -> Option<&'a StoredNextHop> {
    To::table(view, fibs, lookup)?.next_hop(view, target)
}

/// Takes the outer headers off the packet of `len` bytes in a frame, and sends the one inside to the next hop that is said of
/// its destination, of the bytes from its first on, and of its length.
#[inline(always)]
pub(crate) fn decapsulate_fast<'a, A: Family>(
    view: &View<'a>,
    packet: &mut Packet,
    len: usize,
    next_hop: impl FnOnce(A, &[u8], usize) -> Option<&'a StoredNextHop>,
) -> Option<FastVerdict> {
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let at = srv6::find_inner_fast(bytes, A::PROTOCOL)?;
    let inside = bytes.get(at..)?;
    let (target, len) = A::validate(inside, view.tables.plain_bits4())?;
    let next_hop = next_hop(target, inside, len)?;
    forward_inner::<A>(packet, (at, len), next_hop)
}

/// Takes the outer headers off an IPv4 packet, which is checked: its destination.
#[inline(always)]
pub(crate) fn decapsulate4(
    packet: &mut Packet,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Ipv4Addr, DropReason> {
    let at = inner(packet, check, protocol::IPV4)?;
    let inner = packet.bytes().get(at..).ok_or(DropReason::InnerMalformed)?;
    if let Some((destination, len)) = ipv4_plain(inner, u8::MAX.into()) {
        packet.narrow(at, len);
        return Ok(Ipv4Addr::from_bits(destination));
    }
    let checked = ipv4_check(inner).map_err(|_| DropReason::InnerMalformed)?;
    packet.narrow(at, checked.len);
    *unusual = checked.unusual;
    Ok(checked.destination)
}

/// Takes the outer headers off an IPv6 packet, which is checked: its destination.
#[inline(always)]
pub(crate) fn decapsulate6(
    packet: &mut Packet,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Ipv6Addr, DropReason> {
    let at = inner(packet, check, protocol::IPV6)?;
    let inner = packet.bytes().get(at..).ok_or(DropReason::InnerMalformed)?;
    if let Some((destination, len)) = ipv6_plain(inner) {
        packet.narrow(at, len);
        return Ok(Ipv6Addr::from_bits(destination));
    }
    let checked = ipv6_check(inner).map_err(|_| DropReason::InnerMalformed)?;
    packet.narrow(at, checked.len);
    *unusual = checked.unusual;
    Ok(checked.destination)
}

/// [`inner`] for the frequent forms: nothing between the fixed header and the packet inside, or an SRH
/// without TLVs that is used up. `None`: it is of another form.
#[inline(always)]
pub(crate) fn find_inner_fast(bytes: &[u8], protocol: u8) -> Option<usize> {
    const SRH: usize = ipv6::Header::LEN;
    let next = *bytes.get(ipv6::Header::NEXT_HEADER_OFFSET)?;
    if next == protocol {
        return Some(SRH);
    }
    let [next_inside, len, kind, left, last, ..] = *bytes.get(SRH..)?.first_chunk::<8>()?;
    let end = SRH + 8 + usize::from(len) * 8;
    let plain = next == protocol::ROUTING
        && kind == srh::ROUTING_TYPE
        && left == 0
        && next_inside == protocol
        && usize::from(len) == (usize::from(last) + 1) * 2
        && end <= bytes.len();
    plain.then_some(end)
}

/// Where the packet inside begins, behind the outer IPv6 header and all its extension headers, if it is
/// of this protocol. The check that comes first in all of RFC 8986 sections 4.4 to 4.12: segments left
/// must be 0.
#[inline(always)]
pub(super) fn inner(packet: &Packet, check: &Check<'_>, protocol: u8) -> Result<usize, DropReason> {
    let bytes = packet.bytes();
    if check.passes_plain()
        && let Some(at) = find_inner_fast(bytes, protocol)
    {
        return Ok(at);
    }
    find_inner(bytes, check, protocol)
}

/// Walks the extension headers to the packet inside.
#[cold]
fn find_inner(bytes: &[u8], check: &Check<'_>, protocol: u8) -> Result<usize, DropReason> {
    let (fixed, _) = ipv6::Header::ref_from_prefix(bytes).map_err(|_| DropReason::Ip6Truncated)?;
    let mut headers = extensions(bytes)?;
    for header in headers.by_ref() {
        let header = header.map_err(|_| DropReason::Ip6Malformed)?;
        let Some(routing) = header.routing() else { continue };
        if routing.segments_left > 0 {
            return Err(DropReason::SegmentsLeftNotZero);
        }
        if routing.routing_type == srh::ROUTING_TYPE {
            let srh = Srh::parse(header.bytes).map_err(|_| DropReason::SrhMalformed)?;
            check.check(&fixed.source, &srh)?;
        }
    }
    let upper = headers.upper().map_err(|_| DropReason::Ip6Malformed)?;
    if upper.protocol == protocol && upper.fragment_offset == 0 {
        Ok(upper.offset)
    } else {
        Err(DropReason::UpperLayerUnexpected)
    }
}
