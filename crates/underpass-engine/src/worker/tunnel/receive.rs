//! Out of a tunnel: Linux's `tunnel4_rcv`, `gre_rcv`, `tunnel6_rcv` and what they lead to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::checksum::Sum;
use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ethernet, gre, gue, ipv4, ipv6, mpls, protocol, udp};

use super::super::{IcmpError, Path, Road, Step, View, classify, ipv4_check, ipv6_check};
use super::encapsulate::name;
use super::{ECN, ecn_inside};
use crate::buffer::{Packet, Tag};
use crate::counters::{Count, Direction};
use crate::drops::Drop;
use crate::offload::{Cut, is_udp_segment};
use crate::qos::TunnelKey;
use crate::tables::{
    Action, ActionId, Arrival, FouPayload, Ingress, Inside, LookupId, StoredTunnel, TunnelKind, TunnelMode,
    TunnelRole,
};
use crate::trace::{Event, Trace};

/// Headers of UDP that foo-over-UDP takes off one packet: Linux has no bound but the length of the packet.
const NESTED: usize = 8;

/// The outer header of a packet that is for the router.
struct Outer {
    source: IpAddr,
    destination: IpAddr,
    tos: u8,
    ttl: u8,
    /// What follows it.
    protocol: u8,
    /// Where that begins.
    at: usize,
}

impl Outer {
    /// `None`: it is nothing that a tunnel could take. `Err`: it is a fragment of a packet with this protocol inside.
    fn read(bytes: &[u8]) -> Option<Result<Self, u8>> {
        if bytes.first()? >> 4 == 6 {
            return Self::read6(&ipv6::View::parse(bytes).ok()?);
        }
        let ipv4::View { header, .. } = ipv4::View::parse(bytes).ok()?;
        if header.is_fragment() {
            return Some(Err(header.protocol));
        }
        Some(Ok(Self {
            source: header.source().into(),
            destination: header.destination().into(),
            tos: header.tos,
            ttl: header.ttl,
            protocol: header.protocol,
            at: header.header_len(),
        }))
    }

    fn read6(packet: &ipv6::View<'_>) -> Option<Result<Self, u8>> {
        let mut extensions = Extensions::new(packet);
        let mut fragment = false;
        for extension in extensions.by_ref() {
            let extension = extension.ok()?;
            match extension.kind {
                Kind::DestinationOptions => {
                    // What must not be passed over is the router's to refuse.
                    super::super::options::check6(packet.header, &extension, None).ok()?;
                }
                Kind::HopByHop if extension.named_at == ipv6::Header::NEXT_HEADER_OFFSET => {}
                Kind::Fragment => {
                    let own = extension.fragment()?;
                    fragment |= own.offset() != 0 || own.more_fragments();
                }
                _ => return None,
            }
        }
        let upper = extensions.upper().ok()?;
        if fragment {
            return Some(Err(upper.protocol));
        }
        Some(Ok(Self {
            source: packet.header.source().into(),
            destination: packet.header.destination().into(),
            tos: packet.header.traffic_class(),
            ttl: packet.header.hop_limit,
            protocol: upper.protocol,
            at: upper.offset,
        }))
    }

    fn arrival(&self, key: Option<u32>) -> Arrival {
        let bits = |address| match address {
            IpAddr::V4(address) => Ipv4Addr::to_bits(address).into(),
            IpAddr::V6(address) => Ipv6Addr::to_bits(address),
        };
        Arrival { local: bits(self.destination), remote: bits(self.source), key }
    }
}

/// Whether this protocol is a packet inside another.
pub(in super::super) const fn is_tunnelled(protocol: u8) -> bool {
    matches!(protocol, protocol::IPV4 | protocol::IPV6 | protocol::GRE | protocol::MPLS)
}

/// What was found inside a packet.
struct Found<'a> {
    tunnel: &'a StoredTunnel,
    inside: Inside,
    /// Where what is inside begins.
    at: usize,
    /// Whether the tunnel takes it.
    taken: bool,
}

impl<const COUNT: bool> Path<COUNT> {
    /// Takes a packet for the router itself out of the tunnel that it came through, if it came through one.
    #[inline(never)]
    pub(in super::super) fn leave_tunnel<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        trace: &mut T,
    ) -> Step {
        if let Some(relay) = super::path_mtu::learn(view, road.packet.bytes()) {
            self.relay(view, road.packet.bytes(), relay, trace);
        }
        let mut outer = match Outer::read(road.packet.bytes()) {
            None => return Step::Deliver,
            Some(Ok(outer)) => outer,
            Some(Err(protocol)) => {
                let datagrams = protocol == protocol::UDP && view.tables.tunnels().takes_datagrams();
                let ours = self.answers || datagrams || is_tunnelled(protocol);
                return if ours { Step::Reassemble } else { Step::Deliver };
            }
        };
        let ingress = ingress_of(view, road);
        let first = outer.at;
        if let IpAddr::V4(source) = outer.source
            && is_local4(view, ingress, source)
        {
            // Linux: a martian source.
            return Step::drop(Drop::TunnelSource);
        }
        for _ in 0..=NESTED {
            match outer.protocol {
                protocol::HOP_BY_HOP if outer.at != first => return Step::drop(Drop::TunnelPayload),
                protocol::UDP if stands_for_datagrams(view, &road.packet, &outer, ingress) => {
                    return Step::Datagrams;
                }
                protocol::UDP => match take_datagram(view, &mut road.packet, &mut outer, ingress) {
                    Ok(Taken::Headers) => {}
                    Ok(Taken::Nothing) => return deliver(road, &outer, first),
                    Ok(Taken::All(found)) => return self.take_out(view, road, &outer, found, trace),
                    Err(reason) => return Step::drop(reason),
                },
                protocol if is_tunnelled(protocol) => {
                    return match find(view, &road.packet, &outer, ingress) {
                        Ok(Some(found)) => self.take_out(view, road, &outer, found, trace),
                        // Whoever listens for it may be the host.
                        Ok(None) if self.host_may_take(view, &outer) => deliver(road, &outer, first),
                        Ok(None) => NO_TUNNEL,
                        Err(reason) => Step::drop(reason),
                    };
                }
                _ => return deliver(road, &outer, first),
            }
        }
        Step::drop(Drop::TunnelNested)
    }

    /// Whether the kernel beside the router has a use for a packet that no tunnel takes.
    fn host_may_take(&self, view: &View<'_>, outer: &Outer) -> bool {
        !self.answers && view.tables.tunnels().host_takes(outer.protocol, outer.source.is_ipv6())
    }

    /// Takes the datagrams that a packet stands for, which a kernel has put together, out of their tunnels.
    #[cold]
    pub(in super::super) fn take_datagrams<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        trace: &mut T,
    ) {
        trace.step(Event::Datagrams, &road.packet);
        let Some(mut cut) = Cut::of_ip(&road.packet) else {
            return self.drop_on_road(road, Drop::UdpMalformed, trace);
        };
        // One of them counts as the packet itself.
        let mut place = 1;
        while let Some(part) = cut.next(&road.packet, &mut self.pool) {
            self.totals.generated += 1 - std::mem::take(&mut place);
            let Ok(mut part) = part else { return self.drop_on_road(road, Drop::NoBuffer, trace) };
            part.tag_as(&road.packet);
            let at = part.headroom();
            let mut part = Road::new(part, at, road.ingress, road.extra);
            road.link_layer().into_iter().for_each(|frame| part.put_link_layer(frame));
            let step = self.leave_tunnel(view, &mut part, trace);
            self.carry_alone(view, part, step, trace);
        }
    }

    /// Takes what was found out of its outer headers, and looks it up.
    fn take_out<T: Trace>(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        outer: &Outer,
        found: Found<'_>,
        trace: &mut T,
    ) -> Step {
        let Found { tunnel, inside, at, taken } = found;
        let refuse = |reason| {
            self.counters.add_link(tunnel.link, Direction::Receive, Count { errors: 1, ..Count::default() });
            Step::drop(reason)
        };
        // What is not the tunnel's, for Linux, is no error of the tunnel's either.
        if !taken && !tunnel.kind.has_gre() && !tunnel.kind.is_bare_udp() {
            return Step::drop(Drop::TunnelPayload);
        }
        let own = Some(tunnel.config.via.lookup).filter(|_| !tunnel.config.allows_local_remote);
        let refused = matches!(outer.source, IpAddr::V6(source) if is_refused(view, source, own));
        if tunnel.kind == TunnelKind::Ip6tnl && refused {
            return Step::drop(Drop::TunnelSource);
        }
        if let Err(reason) = check(&road.packet, tunnel, outer, &found) {
            return refuse(reason);
        }
        if !taken {
            // Linux has no use for it, but counts it.
            let bytes = (road.packet.len() - at) as u64;
            let received = Count { packets: 1, bytes, errors: 0 };
            self.counters.add_link(tunnel.link, Direction::Receive, received);
            return Step::drop(Drop::TunnelPayload);
        }
        trace.step(Event::Behaviour(name(tunnel.kind)), &road.packet);
        if road.packet.offload().is_some_and(|offload| offload.start < at) {
            // Linux leaves the checksum of GRE to the device.
            road.packet.clear_offload();
        }
        let id = if tunnel.asks_in { key_of(&road.packet, tunnel, outer) } else { 0 };
        let ports = if tunnel.asks_in { ports_of(&road.packet, tunnel, at) } else { (0, 0) };
        road.packet.pull(at);
        if let Err(reason) = decapsulate_tos(&mut road.packet, inside, tunnel, outer) {
            return refuse(reason);
        }
        // Linux counts the header of the frame by one of the two devices only.
        let uncounted = if tunnel.kind == TunnelKind::Ip6gretap { ethernet::Header::LEN } else { 0 };
        let bytes = road.packet.len().saturating_sub(uncounted) as u64;
        let received = Count { packets: 1, bytes, errors: 0 };
        self.counters.add_link(tunnel.link, Direction::Receive, received);
        road.arrived(tunnel.link);
        if !road.turn(tunnel.lookup) {
            return Step::drop(Drop::Loop);
        }
        if tunnel.asks_in {
            let headless = match inside {
                Inside::Ip4 => ethernet::IPV4,
                Inside::Ip6 => ethernet::IPV6,
                Inside::Mpls => ethernet::MPLS,
                Inside::Frame => 0,
            };
            road.packet.set_tag(Tag { headless, ..road.packet.tag() });
            let (source, destination) = (outer.source, outer.destination);
            let key = || TunnelKey { source, destination, id, tos: outer.tos, ttl: outer.ttl, ports };
            self.hooks.outer = (tunnel.config.role == TunnelRole::External).then(key);
            return Step::AskIn;
        }
        self.come_out(view, road, (tunnel.lookup, tunnel.forward4, tunnel.forward6), inside)
    }

    /// The step in which a packet goes on that has come out of a tunnel, by whose link it has come in now: to its look-up
    /// in these tables, if IPv4 and IPv6 are forwarded.
    pub(super) fn come_out(
        &mut self,
        view: &View<'_>,
        road: &mut Road,
        (lookup, forward4, forward6): (LookupId, bool, bool),
        inside: Inside,
    ) -> Step {
        let bytes = road.packet.bytes();
        match inside {
            Inside::Ip4 => match ipv4_check(bytes) {
                Ok(checked) => {
                    road.packet.truncate(checked.len);
                    road.target4 = checked.destination;
                    let plain = !checked.unusual && forward4;
                    if plain { Step::Look4(lookup) } else { Step::Unusual }
                }
                Err(reason) => Step::drop(reason),
            },
            Inside::Ip6 => match ipv6_check(bytes) {
                Ok(checked) => {
                    road.packet.truncate(checked.len);
                    road.target6 = checked.destination;
                    let plain = !checked.unusual && forward6;
                    if plain { Step::Look6(lookup) } else { Step::Unusual }
                }
                Err(reason) => Step::drop(reason),
            },
            Inside::Mpls if view.link(road.ingress).is_some_and(|link| link.mpls) => Step::Label,
            Inside::Mpls => Step::drop(Drop::MplsOff),
            Inside::Frame => {
                let Some(link) = view.link(road.ingress) else { return Step::drop(Drop::LinkDown) };
                let (step, target, len) = classify(bytes, link, self.answers);
                match step {
                    Step::Look4(_) => road.target4 = Ipv4Addr::from_bits(target as u32),
                    Step::Look6(_) => road.target6 = Ipv6Addr::from_bits(target),
                    _ => {}
                }
                road.packet.narrow(ethernet::Header::LEN, len);
                road.framed();
                step
            }
        }
    }
}

/// Hands over to the router itself what no tunnel takes. Headers of foo-over-UDP that were taken off are gone: what was
/// inside follows the outer header, as for Linux's other protocols.
fn deliver(road: &mut Road, outer: &Outer, first: usize) -> Step {
    if outer.at == first {
        return Step::Deliver;
    }
    let gone = outer.at - first;
    let bytes = road.packet.bytes_mut();
    let named = if outer.source.is_ipv6() {
        let Ok((header, _)) = ipv6::Header::mut_from_prefix(bytes) else {
            return Step::drop(Drop::Ip6Truncated);
        };
        let Some(length) = header.payload_length.get().checked_sub(gone as u16) else {
            return Step::drop(Drop::UdpMalformed);
        };
        header.payload_length = length.into();
        // Destination options may be between.
        named_at(bytes, first)
    } else {
        let Ok((header, _)) = ipv4::Header::mut_from_prefix(bytes) else {
            return Step::drop(Drop::Ip4Truncated);
        };
        let Some(length) = header.total_length.get().checked_sub(gone as u16) else {
            return Step::drop(Drop::UdpMalformed);
        };
        header.total_length = length.into();
        Some(PROTOCOL)
    };
    let Some(place) = named.and_then(|at| bytes.get_mut(at)) else { return Step::drop(Drop::UdpMalformed) };
    *place = outer.protocol;
    if let Ok((header, options)) = ipv4::Header::mut_from_prefix(bytes)
        && header.version() == 4
    {
        let len = header.header_len().saturating_sub(ipv4::Header::LEN);
        header.fill_checksum(options.get(..len).unwrap_or_default());
    }
    bytes.copy_within(..first, gone);
    road.packet.pull(gone);
    // Not as it came in: a kernel beside the router has no such packet of its own.
    road.extra.turns += 1;
    Step::Deliver
}

/// Where an IPv4 header says what follows it.
const PROTOCOL: usize = 9;

/// Where an IPv6 packet says what is at `first`.
fn named_at(bytes: &[u8], first: usize) -> Option<usize> {
    let view = ipv6::View::parse(bytes).ok()?;
    let upper = Extensions::new(&view).upper().ok()?;
    (upper.offset == first).then_some(upper.named_at)
}

/// Whether a packet stands for several datagrams for a port of foo-over-UDP.
fn stands_for_datagrams(view: &View<'_>, packet: &Packet, outer: &Outer, ingress: Ingress) -> bool {
    let segment = packet.offload().filter(|offload| offload.start == outer.at && is_udp_segment(packet));
    let header = packet.bytes().get(outer.at..).map(udp::Header::ref_from_prefix);
    let (Some(_), Some(Ok((header, _)))) = (segment, header) else { return false };
    let (source, destination) =
        ((outer.source, header.source_port.get()), (outer.destination, header.destination_port.get()));
    view.tables.tunnels().find_port(source, destination, ingress, view.guard).is_some()
}

/// What has been taken off a datagram.
enum Taken<'a> {
    /// It is for none of the ports.
    Nothing,
    /// What is inside has another outer header, or a tunnel of its own.
    Headers,
    /// It is a `bareudp`'s.
    All(Found<'a>),
}

/// Takes the UDP header, and GUE's, off what is for a port of foo-over-UDP or a `bareudp`.
fn take_datagram<'a>(
    view: &View<'a>,
    packet: &mut Packet,
    outer: &mut Outer,
    ingress: Ingress,
) -> Result<Taken<'a>, Drop> {
    let bytes = packet.bytes();
    let Some(Ok((header, _))) = bytes.get(outer.at..).map(udp::Header::ref_from_prefix) else {
        return Ok(Taken::Nothing);
    };
    let (source, destination) =
        ((outer.source, header.source_port.get()), (outer.destination, header.destination_port.get()));
    let Some(payload) = view.tables.tunnels().find_port(source, destination, ingress, view.guard) else {
        return Ok(Taken::Nothing);
    };
    let datagram = udp::View::parse(bytes.get(outer.at..).unwrap_or_default());
    let udp::View { header, payload: inside } = datagram.map_err(|_| Drop::UdpMalformed)?;
    // What a kernel on this machine has left undone has crossed no wire.
    if header.has_checksum() && !packet.has_offload() {
        let len = udp::Header::LEN + inside.len();
        let pseudo = match (outer.source, outer.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Sum::pseudo_ipv4(source.octets(), destination.octets(), protocol::UDP, len as u16)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Sum::pseudo_ipv6(source.octets(), destination.octets(), protocol::UDP, len as u32)
            }
            _ => return Err(Drop::UdpMalformed),
        };
        if !header.checksum_valid(pseudo, inside) {
            return Err(Drop::TunnelChecksum);
        }
    }
    let (at, len) = (outer.at + udp::Header::LEN, inside.len());
    let mut gue_len = 0;
    let mut complete = None;
    let mut device = None;
    outer.protocol = match payload {
        FouPayload::Protocol(protocol) => protocol,
        FouPayload::Gue => {
            let gue = gue::View::parse(inside).map_err(|_| Drop::GueMalformed)?;
            gue_len = inside.len() - gue.payload.len();
            complete = gue.remote_checksum;
            match gue.content {
                gue::Content::Data(protocol) => protocol,
                gue::Content::Control(_) => return Err(Drop::GueControl),
            }
        }
        FouPayload::Device(id) => {
            let tunnel = view.tables.tunnels().tunnel(id, view.guard).filter(|tunnel| tunnel.up);
            let tunnel = tunnel.ok_or(Drop::LinkDown)?;
            // Linux: `udp_sk_bound_dev_eq`, by which what comes in by a VRF is for no socket outside of it.
            if view.own_lookup(ingress.instance) != view.own_lookup(tunnel.config.via.lookup) {
                return Ok(Taken::Nothing);
            }
            device = Some((tunnel, inside.first().map(|first| first >> 4)));
            protocol::UDP
        }
    };
    packet.truncate(at + len);
    if packet.offload().is_some_and(|offload| offload.start < at + gue_len) {
        // It was that of the datagram.
        packet.clear_offload();
    }
    outer.at = at + gue_len;
    if let (Some(remote), Some(inside)) = (complete, packet.bytes_mut().get_mut(at + gue_len..)) {
        remote.complete(inside).map_err(|_| Drop::GueMalformed)?;
    }
    let Some((tunnel, version)) = device else { return Ok(Taken::Headers) };
    let (inside, taken) = bare(tunnel.mode, version)?;
    Ok(Taken::All(Found { tunnel, inside, at: outer.at, taken }))
}

/// What is in a datagram for a `bareudp`, by the version that it begins with; and whether the router has a use for it.
/// Linux: `bareudp_udp_encap_recv`.
fn bare(mode: TunnelMode, version: Option<u8>) -> Result<(Inside, bool), Drop> {
    match (mode, version) {
        (TunnelMode::Ip4 | TunnelMode::Ip | TunnelMode::Any, Some(4)) => Ok((Inside::Ip4, true)),
        (TunnelMode::Ip | TunnelMode::Any, Some(6)) | (TunnelMode::Ip6, _) => Ok((Inside::Ip6, true)),
        (TunnelMode::Mpls, _) => Ok((Inside::Mpls, true)),
        (TunnelMode::Other, _) => Ok((Inside::Frame, false)),
        (TunnelMode::Ip4 | TunnelMode::Ip | TunnelMode::Any, _) => Err(Drop::TunnelPayload),
    }
}

/// What becomes of a packet that is for no tunnel: Linux's `tunnel4_rcv`, `tunnel6_rcv` and `gre_rcv`.
const NO_TUNNEL: Step = Step::error(Drop::TunnelUnknown, IcmpError::Port);

/// By what link a packet has come in, and in which routing instance tunnels are looked for.
fn ingress_of(view: &View<'_>, road: &Road) -> Ingress {
    let link = view.link(road.ingress);
    Ingress { link: road.ingress, instance: link.map_or(road.extra.instance, |link| link.lookup) }
}

/// What becomes of a packet for the router, of a protocol that [`is_tunnelled`], where there are no tunnels at all. What
/// is inside begins at `at`.
#[cold]
pub(in super::super) fn no_tunnel(
    view: &View<'_>,
    road: &Road,
    (source, destination): (IpAddr, IpAddr),
    (protocol, at): (u8, usize),
) -> Step {
    let ingress = ingress_of(view, road);
    if let IpAddr::V4(source) = source
        && is_local4(view, ingress, source)
    {
        return Step::drop(Drop::TunnelSource);
    }
    match find(view, &road.packet, &Outer { source, destination, tos: 0, ttl: 0, protocol, at }, ingress) {
        Ok(_) => NO_TUNNEL,
        Err(reason) => Step::drop(reason),
    }
}

/// The tunnel that a packet came through. `Ok(None)`: there is none.
fn find<'a>(
    view: &View<'a>,
    packet: &Packet,
    outer: &Outer,
    ingress: Ingress,
) -> Result<Option<Found<'a>>, Drop> {
    let bytes = packet.bytes().get(outer.at..).unwrap_or_default();
    let over6 = outer.source.is_ipv6();
    let look = |kind, key| {
        view.tables.tunnels().find(kind, outer.arrival(key), ingress, view.guard).map(|(_, tunnel)| tunnel)
    };
    if outer.protocol == protocol::GRE {
        let parsed = if over6 { gre::View::parse(bytes) } else { gre::View::parse_over_ipv4(bytes) };
        let header = parsed.map_err(|_| Drop::GreMalformed)?;
        if !packet.has_offload() && !header.checksum_valid() {
            return Err(Drop::TunnelChecksum);
        }
        let frames = header.protocol == gre::TRANSPARENT_ETHERNET;
        let kind = match (over6, frames) {
            (false, false) => TunnelKind::Gre,
            (false, true) => TunnelKind::Gretap,
            (true, false) => TunnelKind::Ip6gre,
            (true, true) => TunnelKind::Ip6gretap,
        };
        // Frames that no Ethernet device waits for are the other's, which has no use for them.
        let other = if over6 { TunnelKind::Ip6gre } else { TunnelKind::Gre };
        let found = look(kind, header.key).or_else(|| frames.then(|| look(other, header.key)).flatten());
        let Some(tunnel) = found else { return Ok(None) };
        let payload = header.redirected().unwrap_or(header.payload);
        let at = packet.len() - payload.len();
        let (inside, taken) = match header.protocol {
            ethernet::IPV4 => (Inside::Ip4, true),
            gre::WCCP if !over6 => (Inside::Ip4, true),
            ethernet::IPV6 => (Inside::Ip6, true),
            ethernet::MPLS => (Inside::Mpls, true),
            gre::TRANSPARENT_ETHERNET => (Inside::Frame, tunnel.kind.carries_frames()),
            _ => (Inside::Frame, false),
        };
        return Ok(Some(Found { tunnel, inside, at, taken }));
    }
    let (inside, mode, least) = match outer.protocol {
        protocol::IPV4 => (Inside::Ip4, TunnelMode::Ip4, ipv4::Header::LEN),
        protocol::IPV6 => (Inside::Ip6, TunnelMode::Ip6, ipv6::Header::LEN),
        // Linux: `tunnelmpls6_rcv` wants as much as of IPv6.
        _ if over6 => (Inside::Mpls, TunnelMode::Mpls, ipv6::Header::LEN),
        _ => (Inside::Mpls, TunnelMode::Mpls, mpls::Entry::LEN),
    };
    if bytes.len() < least {
        return Err(Drop::InnerMalformed);
    }
    let tunnel = match (over6, inside) {
        (true, _) => look(TunnelKind::Ip6tnl, None),
        (false, Inside::Ip6) => look(TunnelKind::Sit, None),
        (false, _) => look(TunnelKind::Ipip, None).or_else(|| look(TunnelKind::Sit, None)),
    };
    let Some(tunnel) = tunnel else { return Ok(None) };
    let taken = tunnel.mode == TunnelMode::Any || tunnel.mode == mode;
    Ok(Some(Found { tunnel, inside, at: outer.at, taken }))
}

/// The key in the GRE header of a packet, 0 if there is none.
fn key_of(packet: &Packet, tunnel: &StoredTunnel, outer: &Outer) -> u32 {
    if !tunnel.kind.has_gre() {
        return 0;
    }
    let header = gre::View::parse(packet.bytes().get(outer.at..).unwrap_or_default());
    header.ok().and_then(|header| header.key).unwrap_or(0)
}

/// The ports of a `bareudp`'s datagram, in which a packet begins at `at`.
fn ports_of(packet: &Packet, tunnel: &StoredTunnel, at: usize) -> (u16, u16) {
    let udp = at.checked_sub(udp::Header::LEN).and_then(|at| packet.bytes().get(at..));
    match udp.map(udp::Header::ref_from_prefix) {
        Some(Ok((header, _))) if tunnel.kind.is_bare_udp() => {
            (header.source_port.get(), header.destination_port.get())
        }
        _ => (0, 0),
    }
}

/// What Linux's receivers check before they take a packet.
fn check(packet: &Packet, tunnel: &StoredTunnel, outer: &Outer, found: &Found<'_>) -> Result<(), Drop> {
    let bytes = packet.bytes();
    if tunnel.kind.has_gre() {
        let header = gre::View::parse(bytes.get(outer.at..).unwrap_or_default());
        let header = header.map_err(|_| Drop::GreMalformed)?;
        let fields = tunnel.config.receive;
        if header.has_checksum() != fields.checksum {
            return Err(Drop::TunnelChecksum);
        }
        if fields.sequence {
            let sequence = header.sequence.ok_or(Drop::TunnelSequence)?;
            if !tunnel.sequence.admits(sequence) {
                return Err(Drop::TunnelSequence);
            }
        }
    }
    if tunnel.kind.is_bare_udp() {
        let least = match found.inside {
            Inside::Ip4 => ipv4::Header::LEN,
            Inside::Ip6 => ipv6::Header::LEN,
            Inside::Mpls | Inside::Frame => 0,
        };
        if bytes.len() < found.at + least {
            return Err(Drop::InnerMalformed);
        }
    }
    if tunnel.kind == TunnelKind::Sit
        && found.inside == Inside::Ip6
        && tunnel.config.remote.is_unspecified()
        && let Some(sixrd) = tunnel.config.sixrd
        && let Ok((inner, _)) = ipv6::Header::ref_from_prefix(bytes.get(found.at..).unwrap_or_default())
    {
        // `packet_is_spoofed`: what has an IPv4 address inside is from it, and for it.
        let lies = |address: IpAddr, inside: Ipv6Addr| {
            sixrd.embedded(inside).is_some_and(|embedded| IpAddr::V4(embedded) != address)
        };
        if lies(outer.source, inner.source()) || lies(outer.destination, inner.destination()) {
            return Err(Drop::TunnelSource);
        }
    }
    Ok(())
}

/// Whether `ip6tnl` takes no packets from this address: none, or one of the router's `own`, where outer packets are looked
/// up, if it takes none from there. Linux: `ip6_tnl_rcv_ctl`.
pub(in super::super) fn is_refused(view: &View<'_>, source: Ipv6Addr, own: Option<LookupId>) -> bool {
    source.is_unspecified() || own.is_some_and(|underlay| is_own(view, underlay, source))
}

/// Whether an address is one of the router's where a packet came in.
pub(in super::super) fn is_local4(view: &View<'_>, ingress: Ingress, address: Ipv4Addr) -> bool {
    let Some(lookup) = view.lookup(ingress.instance) else { return false };
    let fibs = lookup.fibs4.iter().filter_map(|id| view.tables.fib4(*id, view.guard));
    let leaf = fibs.filter_map(|fib| fib.lookup(address.to_bits(), view.guard)).next();
    let action = leaf.and_then(|leaf| view.tables.action(ActionId(leaf), view.guard));
    matches!(action, Some(Action::Local))
}

/// Whether an address is one of the router's, where outer packets are looked up.
fn is_own(view: &View<'_>, underlay: LookupId, address: Ipv6Addr) -> bool {
    let Some(lookup) = view.lookup(underlay) else { return false };
    let fibs = lookup.fibs6.iter().filter_map(|id| view.tables.fib6(*id, view.guard));
    let leaf = fibs.filter_map(|fib| fib.lookup(address.to_bits(), view.guard)).next();
    let action = leaf.and_then(|leaf| view.tables.action(ActionId(leaf), view.guard));
    matches!(action, Some(Action::Local))
}

/// Gives the IP packet in what came out what the outer header's TOS says: RFC 6040.
fn decapsulate_tos(
    packet: &mut Packet,
    inside: Inside,
    tunnel: &StoredTunnel,
    outer: &Outer,
) -> Result<(), Drop> {
    let bytes = packet.bytes_mut();
    let (version, bytes) = match (inside, bytes) {
        (Inside::Ip4, bytes) => (4, bytes),
        (Inside::Ip6, bytes) => (6, bytes),
        (Inside::Mpls, _) => return Ok(()),
        (Inside::Frame, [_, _, _, _, _, _, _, _, _, _, _, _, high, low, bytes @ ..]) => {
            match u16::from_be_bytes([*high, *low]) {
                ethernet::IPV4 => (4, bytes),
                ethernet::IPV6 => (6, bytes),
                _ => return Ok(()),
            }
        }
        _ => return Err(Drop::InnerMalformed),
    };
    let given = |own: u8| -> Result<u8, Drop> {
        let own = if tunnel.config.copies_dscp { outer.tos & !ECN | own & ECN } else { own };
        Ok(own & !ECN | ecn_inside(outer.tos, own).ok_or(Drop::TunnelEcn)?)
    };
    match version {
        4 => {
            let (header, _) = ipv4::Header::mut_from_prefix(bytes).map_err(|_| Drop::InnerMalformed)?;
            let new = given(header.tos)?;
            if new != header.tos {
                header.update_tos(new);
            }
        }
        _ => {
            let (header, _) = ipv6::Header::mut_from_prefix(bytes).map_err(|_| Drop::InnerMalformed)?;
            let new = given(header.traffic_class())?;
            header.set_traffic_class(new);
        }
    }
    Ok(())
}
