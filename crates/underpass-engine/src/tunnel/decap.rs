//! Out of a tunnel: Linux's `tunnel4_rcv`, `gre_rcv`, `tunnel6_rcv` and what they lead to.

use std::net::{IpAddr, Ipv4Addr};

use underpass_packet::checksum::Sum;
use underpass_packet::ipv6_ext::Extensions;
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol};

use crate::buffer::{Packet, Tag};
use crate::counters::{Count, Counters, Direction};
use crate::drops::DropReason;
use crate::l2::bridge::networks::enter_network;
use crate::path::rules::has_address6;
use crate::qos::OuterKey;
use crate::tables::{
    Ingress, InnerProtocol, Link, LinkId, LookupId, PrecomputedDecap, StoredTunnel, TunnelKind, TunnelRole,
};
use crate::trace::{Event, Trace};
use crate::tunnel::come_out::come_out;
use crate::tunnel::find::{
    Arrived, Found, NO_TUNNEL, Outer, check, find, find_fast, ingress_of, inside_of, is_foreign, is_local4,
    is_refused, is_tunnelled, key_of, protocol_of,
};
use crate::tunnel::fou::{Taken, is_for_device, ports_of, stands_for_datagrams, take_datagram};
use crate::tunnel::outer::GRE;
use crate::tunnel::outer_fast::OuterFast;
use crate::tunnel::relay::relay_error;
use crate::tunnel::{ECN, ecn_inside, networks};
use crate::worker::env::{BurstContext, Packets};
use crate::worker::error::IcmpError;
use crate::worker::family::{Family, To, forward_inner};
use crate::worker::fibs::Fibs;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::metadata::{PacketMeta, TUNNELLED};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Packets in a row out of one tunnel, added to what its link has counted when another one's turn comes.
#[derive(Default)]
struct Left {
    link: Option<LinkId>,
    packets: u64,
    bytes: u64,
}

impl Left {
    #[inline(always)]
    fn count(&mut self, link: LinkId, bytes: usize, counters: &Counters) {
        if self.link != Some(link) {
            self.flush(counters);
            *self = Self { link: Some(link), packets: 0, bytes: 0 };
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    #[inline(always)]
    fn flush(&self, counters: &Counters) {
        if let Some(link) = self.link {
            counters.add_crossed(link, Direction::Receive, self.packets, self.bytes);
        }
    }
}

/// What was found for the packet that came out of a tunnel last.
struct Last<'a, A> {
    end: Option<(Arrived<A>, &'a PrecomputedDecap)>,
    /// Where what comes out of it is looked up.
    lookup: Option<LookupId>,
    to4: Option<To<'a, u32>>,
    to6: Option<To<'a, u128>>,
}

/// Takes what is inside out of packets in a row for the same address of the router's, if they came through tunnels, from
/// the first on. The packet that follows the run.
#[inline(never)]
pub(crate) fn decap_run<const COUNT: bool, T: Trace, A: Family, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, look): (Packet, Looked<A>),
) -> Option<Packet> {
    let env = context.env;
    if !env.view.tables.tunnels().receives() || env.view.tables.reads_input() {
        path.enter_slow_path(context, packet);
        return None;
    }
    let datagrams = env.view.tables.tunnels().takes_datagrams() && !env.link.in_vrf;
    if datagrams {
        packet = match networks::decap_run(path, context, packets, lookups, (packet, look)) {
            Ok(following) => return following,
            Err(packet) => packet,
        };
    }
    let Link { lookup: instance, in_vrf, .. } = *env.link;
    let ingress = Ingress { link: env.ingress, instance, in_vrf };
    let mut last = Last { end: None, lookup: None, to4: None, to6: None };
    let mut left = Left::default();
    let mut len = look.len;
    let following = loop {
        match decap_fast::<A>(env.view, context.fibs, &mut last, ingress, (&mut packet, len)) {
            Some((forward_fast, link, bytes)) => {
                left.count(link, bytes, &path.counters);
                path.send_frame(forward_fast, packet, context.trace);
            }
            // Those of networks go together.
            None if datagrams && networks::is_one::<A>(env.view, &packet, len) => break Some(packet),
            None => path.enter_slow_path(context, packet),
        }
        packet = match packets.next() {
            Some(packet) => packet,
            None => break None,
        };
        len = match lookups.again(env, &packet, packets, look) {
            Some(len) => len,
            None => break Some(packet),
        };
    };
    left.flush(&path.counters);
    following
}

/// Takes what is inside a packet of `len` bytes in a frame out of its tunnel, and sends it to where it leads: the link of
/// the tunnel, and the bytes that came out of it. `None`: it is not so simple, and as it was.
#[inline(always)]
fn decap_fast<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    last: &mut Last<'a, A>,
    ingress: Ingress,
    (packet, len): (&mut Packet, usize),
) -> Option<(FastVerdict, LinkId, usize)> {
    if packet.has_offload() {
        return None;
    }
    let bytes = packet.bytes().get(ETHERNET..ETHERNET + len)?;
    let mut outer = OuterFast::<A>::read(bytes)?;
    if outer.protocol == protocol::UDP {
        // Which ports a VRF has is for the slow path.
        (!ingress.in_vrf).then_some(())?;
        outer.pass_udp(view, bytes)?;
    }
    let (mut key, mut checked) = (None, false);
    let (kind, inside) = match (outer.protocol, A::IPV6) {
        (protocol::IPV4, false) => (TunnelKind::Ipip, InnerProtocol::Ip4),
        (protocol::IPV6, false) => (TunnelKind::Sit, InnerProtocol::Ip6),
        (protocol::IPV4, true) => (TunnelKind::Ip6tnl, InnerProtocol::Ip4),
        (protocol::IPV6, true) => (TunnelKind::Ip6tnl, InnerProtocol::Ip6),
        (protocol::GRE, _) => {
            let gre = bytes.get(outer.at..)?;
            let [flags, version, type0, type1] = *gre.first_chunk::<GRE>()?;
            let inside = match u16::from_be_bytes([type0, type1]) {
                ethernet::IPV4 => InnerProtocol::Ip4,
                ethernet::IPV6 => InnerProtocol::Ip6,
                _ => return None,
            };
            // A checksum and a key, and no other flags.
            if flags & !0xa0 != 0 || version != 0 {
                return None;
            }
            let mut fields = GRE;
            if flags & 0x80 != 0 {
                checked = Sum::new().add_bytes(gre).fold() == 0xffff;
                checked.then_some(())?;
                fields += 4;
            }
            if flags & 0x20 != 0 {
                key = Some(u32::from_be_bytes(*gre.get(fields..)?.first_chunk()?));
                fields += 4;
            }
            outer.at += fields;
            (if A::IPV6 { TunnelKind::Ip6gre } else { TunnelKind::Gre }, inside)
        }
        _ => return None,
    };
    let arrived = Arrived { kind, remote: outer.remote, local: outer.local, key };
    let end = match &last.end {
        Some((same, end)) if *same == arrived => *end,
        _ => {
            let end = find_fast::<A>(view, fibs, arrived, ingress)?;
            if last.lookup != Some(end.lookup) {
                last.lookup = Some(end.lookup);
                last.to4 = To::table(view, fibs, end.lookup);
                last.to6 = To::table(view, fibs, end.lookup);
            }
            last.end = Some((arrived, end));
            end
        }
    };
    if end.checked != checked {
        return None;
    }
    let place = (outer.at, len);
    let forward_fast = match inside {
        InnerProtocol::Ip4 if end.forward4 => forward_fast(view, packet, place, outer.tos, last.to4?),
        InnerProtocol::Ip6 if end.forward6 => forward_fast(view, packet, place, outer.tos, last.to6?),
        _ => None,
    };
    Some((forward_fast?, end.link, len - outer.at))
}

/// Sends the packet at `at` of one of `len` bytes in a frame, whose outer header has this TOS, to where its destination
/// leads.
#[inline(always)]
fn forward_fast<'a, A: Family>(
    view: &View<'a>,
    packet: &mut Packet,
    (at, len): (usize, usize),
    tos: u8,
    to: To<'a, A>,
) -> Option<FastVerdict> {
    let bytes = packet.bytes().get(ETHERNET + at..ETHERNET + len)?;
    let (target, len) = A::validate(bytes, view.tables.plain_bits4())?;
    let own = A::class(*bytes.get(1)?);
    if ecn_inside(tos, own)? != own & 3 {
        return None;
    }
    let next_hop = to.next_hop_of(view, target, bytes.get(..len)?)?;
    forward_inner::<A>(packet, (at, len), next_hop)
}

/// Headers of UDP that foo-over-UDP takes off one packet: Linux has no bound but the length of the packet.
const NESTED: usize = 8;

/// Takes a packet for the router itself out of the tunnel that it came through, if it came through one.
#[inline(never)]
pub(crate) fn leave_tunnel<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Verdict {
    let ingress = ingress_of(view, meta);
    if let Some(relay) = crate::tunnel::path_mtu::learn(view, meta.packet.bytes(), ingress) {
        relay_error(path, view, meta, relay, trace);
    }
    let mut outer = match Outer::read(meta.packet.bytes()) {
        None => return Verdict::Deliver,
        Some(Ok(outer)) => outer,
        Some(Err(protocol)) => {
            let datagrams = protocol == protocol::UDP && view.tables.tunnels().takes_datagrams();
            let ours = path.answers || datagrams || is_tunnelled(protocol);
            return if ours { Verdict::Reassemble } else { Verdict::Deliver };
        }
    };
    let (first, whole) = (outer.at, meta.packet.len());
    if is_from_router(view, meta, &outer, ingress) {
        return Verdict::drop(DropReason::TunnelSource);
    }
    for _ in 0..=NESTED {
        match outer.protocol {
            protocol::HOP_BY_HOP if outer.at != first => return Verdict::drop(DropReason::TunnelPayload),
            protocol::UDP if stands_for_datagrams(view, &meta.packet, &outer, ingress) => {
                return Verdict::Datagrams;
            }
            protocol::UDP => match take_datagram(view, &mut meta.packet, &mut outer, ingress) {
                Ok(Taken::Headers) => {}
                Ok(Taken::Nothing) => return deliver(meta, &outer, first),
                Ok(Taken::All(found)) => return take_out(path, view, meta, &outer, found, trace),
                Ok(Taken::Refused(link)) => {
                    path.counters.add_link_drops(link, Direction::Receive, 1);
                    return Verdict::drop(DropReason::TunnelPayload);
                }
                Err(reason) => return Verdict::drop(reason),
            },
            protocol if is_tunnelled(protocol) => {
                return match find(view, &meta.packet, &outer, ingress) {
                    Ok(Some(found)) => take_out(path, view, meta, &outer, found, trace),
                    // Whoever listens for it may be the host.
                    Ok(None) if host_may_take(path, view, &outer) => deliver(meta, &outer, first),
                    // It has been sent, and its sender is the router itself, which does not listen.
                    Ok(None) if meta.is(TUNNELLED) => {
                        meta.extra.entered = None;
                        Verdict::drop(DropReason::TunnelUnknown)
                    }
                    Ok(None) => {
                        restore(meta, whole);
                        NO_TUNNEL
                    }
                    Err(reason) => Verdict::drop(reason),
                };
            }
            protocol if outer.at != first && path.answers && outer.is_unknown(protocol) => {
                restore(meta, whole);
                return Verdict::error(DropReason::ProtocolUnknown, IcmpError::Protocol);
            }
            _ => return deliver(meta, &outer, first),
        }
    }
    Verdict::drop(DropReason::TunnelNested)
}

/// Gives a packet that came as `whole` bytes back what lay behind the end of a datagram in it: its header speaks of that.
/// An error quotes it up to that end.
#[cold]
fn restore(meta: &mut PacketMeta, whole: usize) {
    let end = meta.packet.len();
    if end < whole && meta.packet.lengthen(whole - end).is_ok() {
        meta.extra.argument = end as u32;
    }
}

/// RFC 1112 section 4.
const ALL_NODES: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));

/// Takes what is inside a packet for a broadcast address, or for a group, out of the tunnel that it is for. Linux:
/// `tunnel4_rcv` and `gre_rcv`, and `__udp4_lib_mcast_deliver`, which leaves what a port of foo-over-UDP would go on with.
#[cold]
pub(crate) fn leave_for_all<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Verdict {
    let ingress = ingress_of(view, meta);
    let Some(Ok(mut outer)) = Outer::read(meta.packet.bytes()) else { return Verdict::Deliver };
    let joined = |group| view.link(meta.ingress).is_some_and(|link| link.is_in(group));
    if outer.destination.is_multicast() && outer.destination != ALL_NODES && !joined(outer.destination) {
        return Verdict::Deliver;
    }
    let taken = match outer.protocol {
        protocol if is_tunnelled(protocol) => {
            find(view, &meta.packet, &outer, ingress).map(|found| found.map(Taken::All))
        }
        _ if is_for_device(view, &meta.packet, &outer, ingress) => {
            take_datagram(view, &mut meta.packet, &mut outer, ingress).map(Some)
        }
        _ => Ok(None),
    };
    match taken {
        Ok(Some(Taken::All(_))) if is_from_router(view, meta, &outer, ingress) => {
            Verdict::drop(DropReason::TunnelSource)
        }
        Ok(Some(Taken::All(found))) => take_out(path, view, meta, &outer, found, trace),
        Ok(Some(Taken::Refused(link))) => {
            path.counters.add_link_drops(link, Direction::Receive, 1);
            Verdict::drop(DropReason::TunnelPayload)
        }
        Ok(_) => Verdict::Deliver,
        Err(reason) => Verdict::drop(reason),
    }
}

/// Whether the outer header is to Linux the link-layer header of what comes out: GRE that may have many ends (`ipgre_header_ops`).
fn keeps_outer(tunnel: &StoredTunnel) -> bool {
    let remote = tunnel.config.remote;
    let many = remote.is_unspecified() || remote.is_multicast();
    tunnel.kind == TunnelKind::Gre && many && tunnel.config.role != TunnelRole::External
}

/// Whether an outer packet that has come in is from one of the router's own addresses, to Linux a martian source. What the
/// router sends itself is looked up on its way out alone.
fn is_from_router(view: &View<'_>, meta: &PacketMeta, outer: &Outer, ingress: Ingress) -> bool {
    match outer.source {
        IpAddr::V4(source) => !meta.is(TUNNELLED) && is_local4(view, ingress, source),
        IpAddr::V6(_) => false,
    }
}

/// Whether the kernel beside the router has a use for a packet that no tunnel takes.
fn host_may_take<const COUNT: bool>(path: &Path<COUNT>, view: &View<'_>, outer: &Outer) -> bool {
    !path.answers && view.tables.tunnels().host_takes(outer.protocol, outer.source.is_ipv6())
}

/// Takes what was found out of its outer headers, and looks it up.
pub(crate) fn take_out<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    outer: &Outer,
    found: Found<'_>,
    trace: &mut T,
) -> Verdict {
    let Found { tunnel, inside, at, taken } = found;
    let refuse = |reason| {
        path.counters.add_link(tunnel.link, Direction::Receive, Count { errors: 1, ..Count::default() });
        Verdict::drop(reason)
    };
    // What is not the tunnel's, for Linux, is no error of the tunnel's either.
    if !taken && !tunnel.kind.has_gre() && !tunnel.kind.is_overlay() {
        return Verdict::drop(DropReason::TunnelPayload);
    }
    if tunnel.kind == TunnelKind::Ip6tnl
        && let (IpAddr::V6(source), IpAddr::V6(destination)) = (outer.source, outer.destination)
    {
        let underlay = tunnel.config.underlay;
        let own = Some(underlay).filter(|_| !tunnel.config.allows_local_remote);
        // One without a local address takes what is for any but that of a subnet's routers.
        let of_routers = tunnel.config.local.is_unspecified()
            && !destination.is_multicast()
            && !has_address6(view, underlay, destination);
        let foreign = of_routers
            || tunnel.config.has_foreign_local()
            || is_foreign(view, ingress_of(view, meta), destination, underlay);
        if foreign || is_refused(view, source, own) {
            return Verdict::drop(DropReason::TunnelSource);
        }
    }
    if let Err(reason) = check(view, &meta.packet, tunnel, outer, &found) {
        return refuse(reason);
    }
    trace.step(Event::Behaviour(tunnel.kind.name()), &meta.packet);
    if meta.packet.offload().is_some_and(|offload| offload.start < at) {
        // Linux leaves the checksum of GRE to the device.
        meta.packet.clear_offload();
    }
    // Nothing takes it behind the tunnel's device, which counts it and shows it to its filters.
    let other = if taken { 0 } else { protocol_of(&meta.packet, tunnel, outer) };
    let external = tunnel.config.role == TunnelRole::External;
    let key = external.then(|| key_of(&meta.packet, tunnel, outer));
    let ports = if tunnel.classifies_ingress { ports_of(&meta.packet, tunnel, outer.at) } else { (0, 0) };
    meta.packet.pull(at);
    if taken && let Err(reason) = decapsulate_tos(&mut meta.packet, inside, tunnel, outer) {
        return refuse(reason);
    }
    // Linux counts the header of the frame by one of the two devices of GRE only.
    let uncounted = match (tunnel.kind, inside) {
        (TunnelKind::Gretap, _) => 0,
        (kind, InnerProtocol::Frame) if taken && (kind.carries_frames() || kind.is_geneve()) => {
            ethernet::Header::LEN
        }
        _ => 0,
    };
    let bytes = meta.packet.len().saturating_sub(uncounted) as u64;
    let received = Count { packets: 1, bytes, errors: 0 };
    path.counters.add_link(tunnel.link, Direction::Receive, received);
    meta.arrived(tunnel.link);
    if !meta.look_up_again(tunnel.lookup) {
        return Verdict::drop(DropReason::Loop);
    }
    if tunnel.classifies_ingress {
        let headless = match inside {
            _ if !taken => other,
            InnerProtocol::Ip4 => ethernet::IPV4,
            InnerProtocol::Ip6 => ethernet::IPV6,
            InnerProtocol::Mpls => ethernet::MPLS,
            InnerProtocol::Frame => 0,
        };
        meta.packet.set_tag(Tag { headless, packet_type: 0, ..meta.packet.tag() });
        let (source, destination) = (outer.source, outer.destination);
        let known = |id| OuterKey { source, destination, id, tos: outer.tos, ttl: outer.ttl, ports };
        path.hooks.outer = key.map(known);
        path.hooks.before = if keeps_outer(tunnel) { at } else { 0 };
        return Verdict::ClassifyIngress;
    }
    if let Some(network) = key.filter(|_| taken && inside == InnerProtocol::Frame) {
        // Above it may be a bridge whose VLANs are its networks.
        enter_network(view, tunnel.link, &mut meta.packet, network);
    }
    let inside = match taken {
        true => inside,
        false => match inside_of(&mut meta.packet, other) {
            Ok(inside) => inside,
            Err(reason) => return Verdict::drop(reason),
        },
    };
    come_out(path, view, meta, (tunnel.lookup, tunnel.forward4, tunnel.forward6), inside)
}

/// Hands over to the router itself what no tunnel takes. Headers of foo-over-UDP that were taken off are gone: what was
/// inside follows the outer header, as for Linux's other protocols. So is what lay behind the end of a datagram.
fn deliver(meta: &mut PacketMeta, outer: &Outer, first: usize) -> Verdict {
    if outer.at == first {
        return Verdict::Deliver;
    }
    let gone = outer.at - first;
    let whole = meta.packet.len();
    let bytes = meta.packet.bytes_mut();
    let named = if outer.source.is_ipv6() {
        let Ok((header, _)) = ipv6::Header::mut_from_prefix(bytes) else {
            return Verdict::drop(DropReason::Ip6Truncated);
        };
        let length = usize::from(header.payload_length.get()).min(whole.saturating_sub(ipv6::Header::LEN));
        let Some(length) = (length as u16).checked_sub(gone as u16) else {
            return Verdict::drop(DropReason::UdpMalformed);
        };
        header.payload_length = length.into();
        // Destination options may be between.
        named_at(bytes, first)
    } else {
        let Ok((header, _)) = ipv4::Header::mut_from_prefix(bytes) else {
            return Verdict::drop(DropReason::Ip4Truncated);
        };
        let length = usize::from(header.total_length.get()).min(whole);
        let Some(length) = (length as u16).checked_sub(gone as u16) else {
            return Verdict::drop(DropReason::UdpMalformed);
        };
        header.total_length = length.into();
        Some(PROTOCOL)
    };
    let Some(place) = named.and_then(|at| bytes.get_mut(at)) else {
        return Verdict::drop(DropReason::UdpMalformed);
    };
    *place = outer.protocol;
    if let Ok((header, options)) = ipv4::Header::mut_from_prefix(bytes)
        && header.version() == 4
    {
        let len = header.header_len().saturating_sub(ipv4::Header::LEN);
        header.fill_checksum(options.get(..len).unwrap_or_default());
    }
    bytes.copy_within(..first, gone);
    meta.packet.pull(gone);
    // Not as it came in: a kernel beside the router has no such packet of its own.
    meta.extra.lookups_done += 1;
    Verdict::Deliver
}

/// Where an IPv4 header says what follows it.
const PROTOCOL: usize = 9;

/// Where an IPv6 packet says what is at `first`.
fn named_at(bytes: &[u8], first: usize) -> Option<usize> {
    let view = ipv6::View::parse(bytes).ok()?;
    let upper = Extensions::new(&view).upper().ok()?;
    (upper.offset == first).then_some(upper.named_at)
}

/// Gives the IP packet in what came out what the outer header's TOS says: RFC 6040.
fn decapsulate_tos(
    packet: &mut Packet,
    inside: InnerProtocol,
    tunnel: &StoredTunnel,
    outer: &Outer,
) -> Result<(), DropReason> {
    let bytes = packet.bytes_mut();
    let (version, bytes) = match (inside, bytes) {
        (InnerProtocol::Ip4, bytes) => (4, bytes),
        (InnerProtocol::Ip6, bytes) => (6, bytes),
        (InnerProtocol::Mpls, _) => return Ok(()),
        (InnerProtocol::Frame, [_, _, _, _, _, _, _, _, _, _, _, _, high, low, bytes @ ..]) => {
            match u16::from_be_bytes([*high, *low]) {
                ethernet::IPV4 => (4, bytes),
                ethernet::IPV6 => (6, bytes),
                _ => return Ok(()),
            }
        }
        _ => return Err(DropReason::InnerMalformed),
    };
    let given = |own: u8| -> Result<u8, DropReason> {
        let own = if tunnel.config.copies_dscp { outer.tos & !ECN | own & ECN } else { own };
        Ok(own & !ECN | ecn_inside(outer.tos, own).ok_or(DropReason::TunnelEcn)?)
    };
    match version {
        4 => {
            let (header, _) = ipv4::Header::mut_from_prefix(bytes).map_err(|_| DropReason::InnerMalformed)?;
            let new = given(header.tos)?;
            if new != header.tos {
                header.update_tos(new);
            }
        }
        _ => {
            let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| DropReason::InnerMalformed)?;
            let new = given(header.traffic_class())?;
            header.set_traffic_class(new);
        }
    }
    Ok(())
}
