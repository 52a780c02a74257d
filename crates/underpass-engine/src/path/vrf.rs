//! Into a VRF by a route that names its device: Linux's `vrf_process_v4_outbound` and `vrf_process_v6_outbound`.

use underpass_packet::{FromBytes, ethernet, ipv4, ipv6};

use crate::counters::{Count, Direction};
use crate::drops::DropReason;
use crate::path::icmp::destination_of;
use crate::path::rules;
use crate::path::source::finish_generated;
use crate::tables::{Action, ActionId, IntoVrf};
use crate::worker::error::{IcmpError, PacketError};
use crate::worker::metadata::{
    Entered, GENERATED, GROUP, LABELLED, LED_INTO_VRF, NOT_FORWARDED, PacketMeta, SWITCHED, TUNNELLED,
    UNFINISHED,
};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::{OUTSIDE, View};

/// Looks a packet up again, in the VRF that a route leads into. `id`: the action that is the route, if it is one.
///
/// Whether the packet may go on is seen here, where Linux forwards it. Its hop limit is lowered where it leaves the
/// VRF, so that an error quotes it as it came.
#[cold]
#[inline(never)]
pub(crate) fn enter_vrf<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (id, route): (Option<ActionId>, &IntoVrf),
) -> Verdict {
    let Some(device) = view.link(route.link).filter(|device| device.up) else {
        return Verdict::drop(DropReason::LinkDown);
    };
    let mtu = if route.mtu == 0 { device.mtu } else { route.mtu };
    if meta.is(UNFINISHED) {
        finish_generated(view, meta, route.link);
    }
    if meta.is(NOT_FORWARDED | LABELLED) {
        let group = meta.is(GROUP);
        return Verdict::drop(if group { DropReason::GroupFrame } else { DropReason::ForwardingOff });
    }
    // Of these the hop limit is done with; how long they may be is seen where they leave.
    let lowered = meta.is(GENERATED | TUNNELLED | SWITCHED);
    let fits = lowered || meta.packet.fits(mtu as usize);
    let bytes = meta.packet.bytes();
    let (hop_limit, cut, destination) = match bytes.first().map(|first| first >> 4) {
        Some(6) => match ipv6::Header::ref_from_prefix(bytes) {
            Ok((header, _)) => (header.hop_limit, false, header.destination().into()),
            Err(_) => return Verdict::drop(DropReason::Ip6Truncated),
        },
        _ => match ipv4::Header::ref_from_prefix(bytes) {
            Ok((header, _)) => (header.ttl, !header.dont_fragment(), header.destination().into()),
            Err(_) => return Verdict::drop(DropReason::Ip4Truncated),
        },
    };
    if !lowered && hop_limit <= 1 {
        return Verdict::error(DropReason::HopLimitExceeded, IcmpError::HopLimit);
    }
    match (fits, id) {
        (true, _) => {}
        (false, Some(id)) if cut => return Verdict::FragmentInto(id),
        (false, _) => {
            meta.extra.argument = mtu;
            return Verdict::error(DropReason::TooBig, IcmpError::TooBig);
        }
    }
    // Linux counts the Ethernet header that goes with the packet through the device.
    let len = meta.packet.len() + ethernet::Header::LEN;
    path.counters.add_link(
        route.link,
        Direction::Transmit,
        Count { packets: 1, bytes: len as u64, errors: 0 },
    );
    meta.extra.entered = Some(Entered { link: route.link, bytes: len as u32, vrf: true, drops: false });
    meta.extra.flags |= LED_INTO_VRF;
    match destination {
        std::net::IpAddr::V6(destination) => Verdict::look6(meta, route.lookup, destination),
        std::net::IpAddr::V4(destination) => Verdict::look4(meta, route.lookup, destination),
    }
}

/// What is for the router itself behind the device of a VRF was forwarded on its way there. If its address is of no VRF, it
/// comes by `lo` and is answered from outside.
#[cold]
#[inline(never)]
pub(crate) fn arrive(view: &View<'_>, meta: &mut PacketMeta) {
    // The device has done its part.
    meta.extra.entered = meta.extra.entered.filter(|entered| !entered.vrf);
    let bytes = meta.packet.bytes_mut();
    if bytes.first().is_some_and(|first| first >> 4 == 6) {
        if let Ok((header, _)) = ipv6::Header::mut_from_prefix(bytes) {
            header.hop_limit = header.hop_limit.saturating_sub(1);
        }
    } else if let Ok((header, _)) = ipv4::Header::mut_from_prefix(bytes) {
        header.update_ttl(header.ttl.saturating_sub(1));
    }
    let outside = view.own_lookup(OUTSIDE);
    let own = destination_of(meta.packet.bytes());
    let action = own.and_then(|own| rules::action_at(view, meta.packet.bytes(), outside, own));
    if matches!(action, Some(Action::Local | Action::Anycast)) {
        meta.extra.instance = OUTSIDE;
    }
}

/// Whether no error says why a packet is dropped: a route of another instance led it where it has none.
pub(crate) fn hides(meta: &PacketMeta, error: PacketError) -> bool {
    meta.is(LED_INTO_VRF)
        && matches!(error.reason(), DropReason::NoRoute | DropReason::Unreachable | DropReason::Prohibited)
}
