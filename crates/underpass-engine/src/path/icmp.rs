//! ICMP and ICMPv6 errors from the router: RFC 792, RFC 4443, RFC 1812.
//!
//! An error takes the place of the packet that caused it: the packet counts as dropped, the message as generated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::icmp_extension::QUOTED;
use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::{FromBytes, IntoBytes, ipv4, ipv6, protocol};

use crate::drops::DropReason;
use crate::mpls::error;
use crate::mpls::error::send_from_path;
use crate::path::{ioam, options, rules, source};
use crate::srv6;
use crate::srv6::replace_csid::segments_left_at;
use crate::tables::{Action, LONGEST_LINK_LAYER, LinkId, LookupId};
use crate::trace::{Event, Trace};
use crate::worker::error::IcmpError;
use crate::worker::headroom::move_for_headroom;
use crate::worker::metadata::{
    BEHIND_LABEL, BEHIND_SID, BROADCAST, Counted, Entered, GENERATED, GROUP, HANDED_OVER, INSERTED_TRACE,
    LABELLED, LED_INTO_VRF, NOT_FORWARDED, OPAQUE, PacketMeta, SWITCHED, TUNNELLED, UNFINISHED,
};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::{OUTSIDE, View, egress_of};

/// Most bytes of an ICMPv6 error with its IPv6 header: RFC 4443 section 2.4 (c).
const MAX_V6: usize = 1280;

/// Most bytes of an ICMP error with its IPv4 header: RFC 1812 section 4.3.2.3.
const MAX_V4: usize = 576;

/// Bytes of an ICMP or ICMPv6 header with its four bytes of argument.
pub(crate) const ICMP_LEN: usize = 8;

/// Hop limit of what the router sends: Linux's `IPDEFTTL`.
pub(crate) const HOP_LIMIT: u8 = 64;

// Types of messages: RFC 792, RFC 4443 section 4.
pub(crate) const ECHO_REPLY_V4: u8 = 0;
pub(crate) const ECHO_REQUEST_V4: u8 = 8;
pub(crate) const TIMESTAMP_V4: u8 = 13;
pub(crate) const TIMESTAMP_REPLY_V4: u8 = 14;
pub(crate) const ECHO_REQUEST_V6: u8 = 128;
pub(crate) const ECHO_REPLY_V6: u8 = 129;

/// Replaces a packet by the error to its sender, where one may be sent.
pub(crate) fn icmp_error<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    reason: DropReason,
    error: IcmpError,
    trace: &mut T,
) -> Verdict {
    // It is a copy: the packet itself goes on.
    if meta.packet.tag().copy && in_tunnel(meta, reason) && says_no_way(error) {
        return Verdict::drop(reason);
    }
    // What is quoted is the packet without the headers that this router put before it.
    let argument = match error {
        IcmpError::TooBig => meta.extra.argument.saturating_sub(u32::from(meta.extra.growth)),
        _ => meta.extra.argument,
    };
    // Linux looks an error about a packet in a tunnel up in the VRF of the tunnel's device.
    let of_tunnel = error == IcmpError::TooBig || says_no_way(error) && in_tunnel(meta, reason);
    if let Some(Entered { link, vrf: false, .. }) = meta.extra.entered.filter(|_| of_tunnel)
        && let Some(link) = view.link(link)
    {
        meta.extra.instance = link.lookup;
    }
    // Once its last label is off, the packet is an IP packet like any other.
    let inside = meta.is(LABELLED | SWITCHED);
    let stack = if inside { error::received(meta) } else { error::Stack::new() };
    unwrap(meta);
    if meta.is(LABELLED) && !error::uncover(meta) {
        return Verdict::drop(reason);
    }
    let argument = match error {
        IcmpError::UpperLayer => upper_layer(meta.packet.bytes()),
        IcmpError::SegmentsLeft => segments_left_at(meta.packet.bytes()),
        _ => argument,
    };
    let silent = meta.is(GENERATED | OPAQUE)
        || meta.is(GROUP) && !(error == IcmpError::Option && is_for_groups(meta.packet.bytes(), argument));
    let Some(sender) = may_answer(meta.packet.bytes(), error).filter(|_| !silent) else {
        return Verdict::drop(reason);
    };
    if let (IcmpError::AddressUnreachable, IpAddr::V4(_), Some(link)) =
        (error, sender, view.link(meta.ingress))
    {
        // Linux: `ipv4_send_dest_unreach` compiles the options once more.
        crate::path::ipv4::take_options(view, meta, link);
    }
    answer_error(path, view, meta, (reason, error, argument), (sender, &stack, true), trace)
}

/// Replaces a packet by the error to `sender` that quotes it as it is. `stack`: the labels that it came in with.
/// `with_options`: the error has the options of an IPv4 packet.
pub(crate) fn answer_error<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (reason, error, argument): (DropReason, IcmpError, u32),
    (sender, stack, with_options): (IpAddr, &error::Stack, bool),
    trace: &mut T,
) -> Verdict {
    if !path.icmp.allow(view.now) {
        return Verdict::drop(reason);
    }
    // As it is before it becomes the message.
    path.drop_log.keep_packet(reason, path.counters.port(), meta);
    // Whose the destination is rules may say, which look at the whole packet. Of what came in a frame for a group Linux does not ask.
    let own = destination_of(meta.packet.bytes())
        .filter(|destination| !meta.is(GROUP) && answers_for(view, meta, (reason, error), *destination));
    let echoes = sender.is_ipv4() && with_options;
    let (echoed, recorded) =
        if echoes { options_of(view, meta, (reason, error, argument)) } else { Default::default() };
    crate::path::ipv4::records(meta, recorded);
    let (longest, headers) = match sender {
        IpAddr::V6(_) => (MAX_V6, ipv6::Header::LEN + ICMP_LEN),
        IpAddr::V4(_) => (longest4(view, meta, sender), ipv4::Header::LEN + echoed.len() + ICMP_LEN),
    };
    meta.packet.truncate(quoted(error, argument, sender).min(longest - headers));
    let room = headers + stack.len() + LONGEST_LINK_LAYER;
    if meta.packet.headroom() < room && move_for_headroom(path, meta, room, trace).is_err() {
        return Verdict::drop(DropReason::NoHeadroom);
    }
    let extends = !stack.is_empty() && error.is_extensible(sender) && error::extend(&mut meta.packet, stack);
    let (kind, code, built) = match sender {
        IpAddr::V6(sender) => {
            let (kind, code, argument) = error.v6(argument);
            // RFC 4884 section 4.4: the length, in words of 64 bits.
            let argument = argument | if extends { (QUOTED as u32 / 8) << 24 } else { 0 };
            (kind, code, quote6(meta, sender, [kind, code], argument))
        }
        IpAddr::V4(sender) => {
            let (kind, code, argument) = error.v4(argument);
            // RFC 4884 sections 4.1 to 4.3: the length, in words of 32 bits.
            let argument = argument | if extends { (QUOTED as u32 / 4) << 16 } else { 0 };
            (kind, code, quote4(meta, sender, [kind, code], (argument, &echoed)))
        }
    };
    if built.is_none() {
        return Verdict::drop(DropReason::NoHeadroom);
    }
    // In IPv6 it is mostly known before the message is looked up: rules see it.
    let source6 = || match sender {
        IpAddr::V6(sender) if !in_tunnel(meta, reason) => {
            source::of_error6(view, meta, sender).map(IpAddr::from)
        }
        // Linux no longer knows by which link the packet arrived.
        _ => None,
    };
    if let Some(source) = own.or_else(source6) {
        set_source(&mut meta.packet, source);
    }
    meta.packet.clear_offload();
    if reason == DropReason::NeighbourUnresolved {
        // Linux tells it when it has waited for the neighbour.
        meta.packet.leave_redirections();
    }
    meta.packet.untag();
    path.count_drop(meta, reason);
    trace.step(Event::Icmp(kind, code, reason), &meta.packet);
    if !stack.is_empty() {
        return send_from_path(path, view, meta, stack, sender);
    }
    send_generated(path, view, meta, sender)
}

/// The options of the IPv4 packet that is quoted as the message has them: one that records the route of the packet goes on with
/// that of the message. With what there is to be recorded.
#[cold]
fn options_of(
    view: &View<'_>,
    meta: &PacketMeta,
    (reason, error, argument): (DropReason, IcmpError, u32),
) -> (options::Options4, options::Recorded) {
    let Ok(packet) = ipv4::View::parse(meta.packet.bytes()) else { return Default::default() };
    // Linux has not looked at those behind a SID, but does for this error.
    let unseen = meta.is(BEHIND_SID) && error != IcmpError::AddressUnreachable;
    // `ip_tunnel_xmit` and `ip6_tnl_start_xmit` have forgotten them before they look at the length.
    let forgotten = meta.is(TUNNELLED) && error == IcmpError::TooBig;
    if unseen || forgotten {
        return Default::default();
    }
    let fault = (argument as usize).saturating_sub(ipv4::Header::LEN);
    let options = match reason {
        DropReason::OptionMalformed => options::known_before(packet.options, fault),
        _ => packet.options,
    };
    options::echo4(options, options::time4(view.epoch.wrapping_add(view.now)))
}

/// How much of a packet is quoted at the most.
const fn quoted(error: IcmpError, argument: u32, sender: IpAddr) -> usize {
    match error {
        IcmpError::Port | IcmpError::Reassembly if argument > 0 => argument as usize,
        // In IPv6 it is a pointer.
        IcmpError::Protocol if argument > 0 && sender.is_ipv4() => argument as usize,
        _ => usize::MAX,
    }
}

/// Whether an error comes from the destination of the packet, as an address of the router's.
#[cold]
fn answers_for(
    view: &View<'_>,
    meta: &PacketMeta,
    (reason, error): (DropReason, IcmpError),
    destination: IpAddr,
) -> bool {
    let delivered = matches!(error, IcmpError::Port | IcmpError::Protocol | IcmpError::Reassembly);
    // A SID may lead it elsewhere nevertheless. Linux asks in IPv4 whether it was delivered, in IPv6 whose it is.
    let forwarded = says_no_way(error) || matches!(error, IcmpError::HopLimit | IcmpError::TooBig);
    if destination.is_ipv4() && forwarded {
        return false;
    }
    // Linux asks where the packet was to leave, if a neighbour there did not answer: `skb->dev`.
    let leaves = reason == DropReason::NeighbourUnresolved && meta.extra.wrapping == 0;
    let instance = leaves.then_some(meta.extra.instance).or_else(|| where_it_came_in(view, meta));
    let here = delivered || is_own(view, meta, instance, destination);
    let elsewhere = match instance {
        Some(instance) if leaves => is_of_others(view, instance, destination),
        _ => is_elsewhere(view, meta, destination),
    };
    here && !elsewhere || is_anycast(view, destination)
}

/// The longest message to `sender`: what routers on the way have reported of it counts.
#[cold]
fn longest4(view: &View<'_>, meta: &PacketMeta, sender: IpAddr) -> usize {
    let IpAddr::V4(sender) = sender else { return MAX_V4 };
    let tunnels = view.tables.tunnels();
    let (lookup, outside) = (view.own_lookup(meta.extra.instance), view.own_lookup(OUTSIDE));
    let lookups =
        [Some(lookup), (lookup != outside && is_way_outside(view, meta, lookup, sender)).then_some(outside)];
    let mut longest = MAX_V4;
    for lookup in lookups.into_iter().flatten() {
        for exceptions in [&tunnels.exceptions, &tunnels.own_exceptions] {
            let reported = exceptions.of(sender.to_bits().into(), lookup, view.now);
            longest = reported.map_or(longest, |reported| longest.min(reported.mtu as usize));
        }
    }
    longest
}

/// Whether what is sent to an address in a VRF leaves by the way that leads there from outside it: Linux's exceptions are those of
/// the route that has led there.
fn is_way_outside(view: &View<'_>, meta: &PacketMeta, lookup: LookupId, to: Ipv4Addr) -> bool {
    let tunnels = view.tables.tunnels();
    if !tunnels.exceptions.any() && !tunnels.own_exceptions.any() {
        return false;
    }
    let leads = |lookup| rules::leaf_at(view, meta.packet.bytes(), lookup, to.into());
    leads(lookup).is_some_and(|way| leads(view.own_lookup(OUTSIDE)) == Some(way))
}

/// Sends a message that this router made to `destination`, in the routing instance of the packet
/// that it answers.
pub(crate) fn send_generated<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    destination: IpAddr,
) -> Verdict {
    path.totals.generated += 1;
    meta.packet.untag();
    let gone = NOT_FORWARDED
        | GROUP
        | BROADCAST
        | LABELLED
        | SWITCHED
        | TUNNELLED
        | OPAQUE
        | LED_INTO_VRF
        | HANDED_OVER
        | BEHIND_SID
        | BEHIND_LABEL;
    meta.extra.flags = meta.extra.flags & !gone | GENERATED;
    meta.extra.counted = Counted::default();
    meta.start_again();
    // The tables that a SID names are no routing instance: a message is looked up where the packet
    // came in, as Linux looks up by the incoming device.
    let mut instance = meta.extra.instance;
    if let Some(ingress) = view.link(meta.ingress)
        && ingress.lookup != instance
        && view.lookup(instance).is_none_or(|lookup| lookup.own.is_none())
        && !view.links().any(|link| link.lookup == instance)
    {
        instance = ingress.lookup;
    }
    // By the rules for what the host sends, not by those for the link by which the packet came.
    let own = view.own_lookup(instance);
    match destination {
        IpAddr::V6(address) => Verdict::look6(meta, own, address),
        IpAddr::V4(address) => Verdict::look4(meta, own, address),
    }
}

/// Whether an error about the option of an IPv6 packet that `at` points at is sent of what came in a frame for a group, too.
/// RFC 4443 section 2.4 (e.3), (e.4): where its two highest bits are 10.
#[cold]
fn is_for_groups(packet: &[u8], at: u32) -> bool {
    let option = packet.get(at as usize).filter(|_| packet.first().is_some_and(|first| first >> 4 == 6));
    option.is_some_and(|kind| kind >> 6 == 0b10)
}

/// Who may get an error with this packet. RFC 4443 section 2.4 (e), RFC 1812 section 4.3.2.7:
/// not the sender of an ICMP error, of a fragment that is not the first, or one that is no single host. Of what goes to a group
/// its sender hears that it is too long, or of an option.
pub(crate) fn may_answer(packet: &[u8], error: IcmpError) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        6 => {
            let view = ipv6::View::parse(packet).ok()?;
            let header = view.header;
            let source = header.source();
            let group = header.destination().is_multicast()
                && !matches!(error, IcmpError::TooBig | IcmpError::Option);
            let single = !source.is_unspecified() && !source.is_multicast();
            (!is_error6(packet, &view) && !group && single).then_some(source.into())
        }
        4 => {
            let view = ipv4::View::parse(packet).ok()?;
            let (source, destination) = (view.header.source(), view.header.destination());
            // Echo, its reply, and those that ask and answer as it does. To the others, errors or unknown, Linux never
            // sends an error: `icmp_pointers`.
            let error = view.header.protocol == protocol::ICMP
                && !matches!(view.payload.first(), Some(0 | 8 | 13..=18));
            let group = destination.is_multicast() || destination.is_broadcast();
            let single = !source.is_unspecified() && !source.is_multicast() && !source.is_broadcast();
            (!error && !group && view.header.fragment_offset() == 0 && single).then_some(source.into())
        }
        _ => None,
    }
}

/// Whether an IPv6 packet is an ICMPv6 error, or may be one, as what says so is not there. Linux: `is_ineligible`.
fn is_error6(packet: &[u8], view: &ipv6::View<'_>) -> bool {
    let (mut walk, mut in_parts) = (Extensions::new(view), false);
    let whole = walk.by_ref().all(|extension| match extension {
        Ok(extension) => {
            in_parts |= extension.fragment().is_some_and(|fragment| fragment.more_fragments());
            true
        }
        Err(_) => false,
    });
    let last = walk.ahead();
    if !whole {
        // To Linux what a header names that goes on after the end of the packet is behind it, where nothing is.
        // Of a fragment header it reads the offset first.
        return !in_parts
            && match packet.get(last.offset..).unwrap_or_default() {
                [protocol::ICMPV6, _, 0, 0, ..] => true,
                [protocol::ICMPV6, _, ..] => last.protocol != protocol::FRAGMENT,
                _ => false,
            };
    }
    last.protocol == protocol::ICMPV6
        && last.fragment_offset == 0
        && packet.get(last.offset).map_or(!in_parts, |kind| *kind < 128)
}

/// The routing instance that a packet came in by, or that its label has led it into.
#[cold]
fn where_it_came_in(view: &View<'_>, meta: &PacketMeta) -> Option<LookupId> {
    if meta.is(BEHIND_LABEL) {
        return Some(meta.extra.instance);
    }
    // What a SID takes out for a VRF comes in by its device: Linux's `end_dt_vrf_core`.
    if meta.is(BEHIND_SID)
        && let Some((_, device)) = view.vrf_of(meta.extra.instance)
    {
        return Some(device.lookup);
    }
    Some(view.link(meta.ingress)?.lookup)
}

/// Whether an address is one of the router's in a routing instance.
#[cold]
fn is_own(view: &View<'_>, meta: &PacketMeta, instance: Option<LookupId>, address: IpAddr) -> bool {
    let action = instance.and_then(|lookup| rules::action_at(view, meta.packet.bytes(), lookup, address));
    matches!(action, Some(Action::Local | Action::Anycast))
}

/// Whether an IPv6 address is of another VRF than the link that a packet came in by, or one of the two of none: rules or a
/// SID have led the packet there, and an error does not come from that address. Linux: `ipv6_chk_addr`.
#[cold]
pub(super) fn is_elsewhere(view: &View<'_>, meta: &PacketMeta, address: IpAddr) -> bool {
    let instance = where_it_came_in(view, meta).filter(|_| !meta.is(BEHIND_LABEL));
    instance.is_some_and(|instance| is_of_others(view, instance, address))
}

/// Whether an IPv6 address is the router's, but none of a routing instance.
#[cold]
fn is_of_others(view: &View<'_>, instance: LookupId, address: IpAddr) -> bool {
    let IpAddr::V6(address) = address else { return false };
    let instance = view.own_lookup(instance);
    let mut having = view.links().filter(|link| link.own6.contains(&address)).peekable();
    having.peek().is_some() && having.all(|link| view.own_lookup(link.lookup) != instance)
}

/// Whether some link, of whatever VRF, has an anycast address. Linux: `ipv6_chk_acast_addr_src`.
#[cold]
fn is_anycast(view: &View<'_>, address: IpAddr) -> bool {
    let IpAddr::V6(address) = address else { return false };
    view.links().any(|link| link.anycast6.contains(&address))
}

/// Whether an error says that nothing leads to the destination.
const fn says_no_way(error: IcmpError) -> bool {
    matches!(
        error,
        IcmpError::AddressUnreachable | IcmpError::Unreachable | IcmpError::NoRoute | IcmpError::Prohibited
    )
}

/// Whether a packet had gone into a tunnel when it was dropped for `reason`.
fn in_tunnel(meta: &PacketMeta, reason: DropReason) -> bool {
    let refused =
        matches!(reason, DropReason::TunnelUnreachable | DropReason::TunnelSource | DropReason::TunnelRemote);
    refused || meta.is(TUNNELLED)
}

/// The link by which a message to `sender` leaves that is looked up so.
#[cold]
pub(super) fn way_out(
    view: &View<'_>,
    meta: &PacketMeta,
    lookup: LookupId,
    sender: IpAddr,
) -> Option<LinkId> {
    egress_of(view, rules::action_at(view, meta.packet.bytes(), lookup, sender)?)
}

/// The destination of a packet.
#[cold]
pub(super) fn destination_of(packet: &[u8]) -> Option<IpAddr> {
    Some(match packet.first()? >> 4 {
        6 => ipv6::Header::ref_from_prefix(packet).ok()?.0.destination().into(),
        _ => ipv4::Header::ref_from_prefix(packet).ok()?.0.destination().into(),
    })
}

/// Gives a message the source that otherwise depends on the link by which it leaves.
#[cold]
fn set_source(packet: &mut crate::buffer::Packet, source: IpAddr) {
    match source {
        IpAddr::V6(source) => {
            if let Ok((header, _)) = ipv6::Header::mut_from_prefix(packet.bytes_mut()) {
                header.source = source.octets();
            }
        }
        IpAddr::V4(source) => {
            if let Ok((header, _)) = ipv4::Header::mut_from_prefix(packet.bytes_mut()) {
                header.source = source.octets();
            }
        }
    }
}

/// Where the upper-layer header of an IPv6 packet begins.
#[cold]
fn upper_layer(packet: &[u8]) -> u32 {
    let view = ipv6::View::parse(packet).ok();
    view.and_then(|view| Extensions::new(&view).upper().ok()).map_or(0, |upper| upper.offset as u32)
}

/// Puts IPv6 and ICMPv6 headers before the packet, of which as much is left as may be quoted. The source address and
/// the checksum are filled in once it is known by which link the message leaves.
fn quote6(meta: &mut PacketMeta, destination: Ipv6Addr, kind: [u8; 2], argument: u32) -> Option<()> {
    let headers = ipv6::Header::LEN + ICMP_LEN;
    let length = (meta.packet.len() + ICMP_LEN) as u16;
    let room = meta.packet.push(headers).ok()?;
    let header = ipv6::Header::new(Ipv6Addr::UNSPECIFIED, destination, protocol::ICMPV6, HOP_LIMIT, length);
    room.get_mut(..ipv6::Header::LEN)?.copy_from_slice(header.as_bytes());
    write_icmp(room.get_mut(ipv6::Header::LEN..)?, kind, argument)?;
    meta.extra.flags |= UNFINISHED;
    Some(())
}

/// The same for IPv4. Precedence and type of service: RFC 1812 section 4.3.2.5, as Linux has it.
fn quote4(
    meta: &mut PacketMeta,
    destination: Ipv4Addr,
    kind: [u8; 2],
    (argument, options): (u32, &[u8]),
) -> Option<()> {
    let before = ipv4::Header::LEN + options.len();
    let tos = (*meta.packet.bytes().get(1)? & 0x1e) | 0xc0;
    let length = (meta.packet.len() + before + ICMP_LEN) as u16;
    let room = meta.packet.push(before + ICMP_LEN).ok()?;
    let mut header = ipv4::Header::new(Ipv4Addr::UNSPECIFIED, destination, protocol::ICMP, HOP_LIMIT, length);
    header.tos = tos;
    header.flags_offset = 0.into();
    header.set_header_len(before);
    room.get_mut(..ipv4::Header::LEN)?.copy_from_slice(header.as_bytes());
    room.get_mut(ipv4::Header::LEN..before)?.copy_from_slice(options);
    write_icmp(room.get_mut(before..)?, kind, argument)?;
    meta.extra.flags |= UNFINISHED;
    Some(())
}

fn write_icmp(message: &mut [u8], kind: [u8; 2], argument: u32) -> Option<()> {
    message.get_mut(..2)?.copy_from_slice(&kind);
    message.get_mut(2..4)?.fill(0);
    message.get_mut(4..ICMP_LEN)?.copy_from_slice(&argument.to_be_bytes());
    Some(())
}

/// Takes the headers that this router has put before the packet and into it out again.
fn unwrap(meta: &mut PacketMeta) {
    meta.packet.pull(usize::from(std::mem::take(&mut meta.extra.wrapping)));
    let mut left = usize::from(std::mem::take(&mut meta.extra.inserted));
    if meta.is(INSERTED_TRACE) {
        meta.extra.flags &= !INSERTED_TRACE;
        left -= ioam::take_out(&mut meta.packet).unwrap_or(0).min(left);
    }
    while left > 0 {
        match srv6::take_out(&mut meta.packet) {
            Some(len) => left = left.saturating_sub(len),
            None => return,
        }
    }
}
