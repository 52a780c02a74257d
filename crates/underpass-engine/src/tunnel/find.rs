//! Which tunnel a packet came through, and whether that takes it: Linux's `ip_tunnel_lookup`, `ip6_tnl_lookup`,
//! `ip6_tnl_rcv_ctl`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ethernet, gre, ipv4, ipv6, mpls, protocol, vxlan};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::group::without_priority;
use crate::path::rules::{self, has_address6};
use crate::tables::{
    Action, ActionId, Ingress, InnerProtocol, LinkId, LookupId, PrecomputedDecap, StoredTunnel, TunnelKind,
    TunnelMatch, TunnelMode, TunnelRole,
};
use crate::tunnel::geneve;
use crate::worker::error::IcmpError;
use crate::worker::family::Family;
use crate::worker::fibs::Fibs;
use crate::worker::metadata::{LED_INTO_VRF, PacketMeta, TUNNELLED};
use crate::worker::verdict::Verdict;
use crate::worker::view::{OUTSIDE, View};

/// What a tunnel is found by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrived<A> {
    pub(crate) kind: TunnelKind,
    pub(crate) remote: A,
    pub(crate) local: A,
    pub(crate) key: Option<u32>,
}

/// The end of the tunnel that a packet is for. `None`: it is not so simple.
#[inline(always)]
pub(crate) fn find_fast<'a, A: Family>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    Arrived { kind, remote, local, key }: Arrived<A>,
    ingress: Ingress,
) -> Option<&'a PrecomputedDecap> {
    let tunnels = view.tables.tunnels();
    let tunnel_match = TunnelMatch { local: local.into(), remote: remote.into(), key };
    let end = match tunnels.precomputed_decap(kind, tunnel_match, ingress, view.guard) {
        Some(end) => end,
        None => tunnels.find(kind, tunnel_match, ingress, view.guard)?.1.end.as_ref()?,
    };
    let refused = match kind {
        TunnelKind::Ip6tnl => {
            is_foreign(view, ingress, Ipv6Addr::from_bits(tunnel_match.local), end.underlay)
                || is_refused(view, Ipv6Addr::from_bits(tunnel_match.remote), end.own())
        }
        _ if A::IPV6 => false,
        _ => is_own4(view, fibs, ingress, tunnel_match.remote as u32),
    };
    (!refused).then_some(end)
}

/// Whether an address is one of the router's where a packet came in.
#[inline(always)]
pub(super) fn is_own4<'a>(view: &View<'a>, fibs: &mut Fibs<'a>, ingress: Ingress, address: u32) -> bool {
    let Some(fib) = fibs.fib4(view, ingress.instance) else {
        return is_local4(view, ingress, Ipv4Addr::from_bits(address));
    };
    let leaf = fib.lookup(address, view.guard);
    leaf.is_some_and(|leaf| matches!(view.tables.action(ActionId(leaf), view.guard), Some(Action::Local)))
}

/// What was found inside a packet.
pub(crate) struct Found<'a> {
    pub(crate) tunnel: &'a StoredTunnel,
    pub(crate) inside: InnerProtocol,
    /// Where what is inside begins.
    pub(crate) at: usize,
    /// Whether the tunnel takes it.
    pub(crate) taken: bool,
}

/// The tunnel that a packet came through. `Ok(None)`: there is none.
pub(crate) fn find<'a>(
    view: &View<'a>,
    packet: &Packet,
    outer: &Outer,
    ingress: Ingress,
) -> Result<Option<Found<'a>>, DropReason> {
    let bytes = packet.bytes().get(outer.at..).unwrap_or_default();
    let over6 = outer.source.is_ipv6();
    let look = |kind, key| {
        view.tables
            .tunnels()
            .find(kind, outer.tunnel_match(key), ingress, view.guard)
            .map(|(_, tunnel)| tunnel)
    };
    if outer.protocol == protocol::GRE {
        let parsed = if over6 { gre::View::parse(bytes) } else { gre::View::parse_over_ipv4(bytes) };
        let header = parsed.map_err(|_| DropReason::GreMalformed)?;
        if !packet.has_offload() && !header.checksum_valid() {
            return Err(DropReason::TunnelChecksum);
        }
        let frames = header.protocol == gre::TRANSPARENT_ETHERNET;
        if over6 && frames && header.payload.len() < ethernet::Header::LEN {
            // Linux: `iptunnel_pull_header`, by which `gre_rcv` of IPv6 begins.
            return Err(DropReason::GreMalformed);
        }
        let kind = match (over6, frames) {
            (false, false) => TunnelKind::Gre,
            (false, true) => TunnelKind::Gretap,
            (true, false) => TunnelKind::Ip6gre,
            (true, true) => TunnelKind::Ip6gretap,
        };
        // Frames that no Ethernet device waits for are the other's, which has no use for them.
        let other = if over6 { TunnelKind::Ip6gre } else { TunnelKind::Gre };
        let has_ends = |tunnel: &&StoredTunnel| {
            !matches!(tunnel.config.role, TunnelRole::External | TunnelRole::Fallback)
        };
        let found = match (look(kind, header.key), frames) {
            // Linux: `ip6gre_tunnel_lookup`, for which one that has these ends comes before one that has none.
            (Some(found), true) if over6 && !has_ends(&found) => {
                look(other, header.key).filter(has_ends).or(Some(found))
            }
            (None, true) => look(other, header.key),
            (found, _) => found,
        };
        // An `external` ip6gretap takes what no other device does for a frame, whatever it is.
        let any_frame =
            (over6 && !frames && found.is_none_or(|found| found.config.role == TunnelRole::Fallback))
                .then(|| {
                    let (kind, tunnel_match) = (TunnelKind::Ip6gretap, outer.tunnel_match(header.key));
                    view.tables.tunnels().external(kind, tunnel_match, ingress, view.guard)
                })
                .flatten();
        let Some(tunnel) = any_frame.or(found) else { return Ok(None) };
        if frames && tunnel.kind.carries_frames() && header.payload.len() < ethernet::Header::LEN {
            // Over IPv4 Linux looks for the tunnel first, and the sender is told of one that is unknown: `__ipgre_rcv`.
            return Err(DropReason::GreMalformed);
        }
        let payload = header.redirected().unwrap_or(header.payload);
        let at = packet.len() - payload.len();
        let (inside, taken) = match header.protocol {
            _ if any_frame.is_some() => (InnerProtocol::Frame, true),
            ethernet::IPV4 => (InnerProtocol::Ip4, true),
            // Linux's `gre_parse_header` takes it for a packet of the outer family.
            gre::WCCP if !over6 => (InnerProtocol::Ip4, true),
            gre::WCCP | ethernet::IPV6 => (InnerProtocol::Ip6, true),
            ethernet::MPLS => (InnerProtocol::Mpls, true),
            gre::TRANSPARENT_ETHERNET => (InnerProtocol::Frame, tunnel.kind.carries_frames()),
            _ => (InnerProtocol::Frame, false),
        };
        return Ok(Some(Found { tunnel, inside, at, taken }));
    }
    let (inside, mode, least) = match outer.protocol {
        protocol::IPV4 => (InnerProtocol::Ip4, TunnelMode::Ip4, ipv4::Header::LEN),
        protocol::IPV6 => (InnerProtocol::Ip6, TunnelMode::Ip6, ipv6::Header::LEN),
        // Linux: `tunnelmpls6_rcv` wants as much as of IPv6.
        _ if over6 => (InnerProtocol::Mpls, TunnelMode::Mpls, ipv6::Header::LEN),
        _ => (InnerProtocol::Mpls, TunnelMode::Mpls, mpls::Entry::LEN),
    };
    if bytes.len() < least {
        return Err(DropReason::InnerMalformed);
    }
    let tunnel = match (over6, inside) {
        (true, _) => look(TunnelKind::Ip6tnl, None),
        (false, InnerProtocol::Ip6) => look(TunnelKind::Sit, None),
        (false, _) => look(TunnelKind::Ipip, None).or_else(|| look(TunnelKind::Sit, None)),
    };
    let Some(tunnel) = tunnel else { return Ok(None) };
    let taken = tunnel.mode == TunnelMode::Any || tunnel.mode == mode;
    Ok(Some(Found { tunnel, inside, at: outer.at, taken }))
}

/// What becomes of a packet that is for no tunnel: Linux's `tunnel4_rcv`, `tunnel6_rcv` and `gre_rcv`.
pub(crate) const NO_TUNNEL: Verdict = Verdict::error(DropReason::TunnelUnknown, IcmpError::Port);

/// What becomes of a packet for the router, of a protocol that [`is_tunnelled`], where there are no tunnels at all. What
/// is inside begins at `at`.
#[cold]
pub(crate) fn no_tunnel(
    view: &View<'_>,
    meta: &PacketMeta,
    (source, destination): (IpAddr, IpAddr),
    (protocol, at): (u8, usize),
) -> Verdict {
    let ingress = ingress_of(view, meta);
    if let IpAddr::V4(source) = source
        && !meta.is(TUNNELLED)
        && is_local4(view, ingress, source)
    {
        return Verdict::drop(DropReason::TunnelSource);
    }
    match find(view, &meta.packet, &Outer { source, destination, tos: 0, ttl: 0, protocol, at }, ingress) {
        Ok(_) => NO_TUNNEL,
        Err(reason) => Verdict::drop(reason),
    }
}

/// By what link a packet has come in, and in which routing instance tunnels are looked for.
pub(crate) fn ingress_of(view: &View<'_>, meta: &PacketMeta) -> Ingress {
    let by_device = |link, lookup| {
        let instance = view.own_lookup(lookup);
        Ingress { link, instance, in_vrf: instance != view.own_lookup(OUTSIDE) }
    };
    if meta.is(TUNNELLED) {
        // What the router has sent itself comes in by no port.
        return by_device(LinkId(u32::MAX), meta.extra.looked_in);
    }
    if meta.is(LED_INTO_VRF) {
        // By the device of the VRF.
        return by_device(LinkId(u32::MAX), meta.extra.instance);
    }
    if let Some(lookup) = meta.extra.taken_into {
        // By that device, and by the port as well. Linux: `inet_sdif`.
        return by_device(meta.ingress, lookup);
    }
    let link = view.link(meta.ingress);
    let instance = link.map_or(meta.extra.instance, |link| link.lookup);
    Ingress { link: meta.ingress, instance, in_vrf: link.is_some_and(|link| link.in_vrf) }
}

/// What Linux's receivers check before they take a packet.
pub(crate) fn check(
    view: &View<'_>,
    packet: &Packet,
    tunnel: &StoredTunnel,
    outer: &Outer,
    found: &Found<'_>,
) -> Result<(), DropReason> {
    let bytes = packet.bytes();
    if tunnel.kind.has_gre() {
        let header = gre::View::parse(bytes.get(outer.at..).unwrap_or_default());
        let header = header.map_err(|_| DropReason::GreMalformed)?;
        let fields = tunnel.config.receive;
        if header.has_checksum() != fields.checksum {
            return Err(DropReason::TunnelChecksum);
        }
        if fields.sequence {
            let sequence = header.sequence.ok_or(DropReason::TunnelSequence)?;
            if !tunnel.sequence.admits(sequence) {
                return Err(DropReason::TunnelSequence);
            }
        }
    }
    if tunnel.kind.is_geneve() {
        geneve::check(view, bytes, tunnel, outer, found)?;
    }
    if tunnel.kind.is_bare_udp() {
        let least = match found.inside {
            InnerProtocol::Ip4 => ipv4::Header::LEN,
            InnerProtocol::Ip6 => ipv6::Header::LEN,
            InnerProtocol::Mpls | InnerProtocol::Frame => 0,
        };
        if bytes.len() < found.at + least {
            return Err(DropReason::InnerMalformed);
        }
    }
    if tunnel.kind == TunnelKind::Sit
        && found.inside == InnerProtocol::Ip6
        && tunnel.config.remote.is_unspecified()
        && let Some(sixrd) = tunnel.config.sixrd
        && let Ok((inner, _)) = ipv6::Header::ref_from_prefix(bytes.get(found.at..).unwrap_or_default())
    {
        // `packet_is_spoofed`: what has an IPv4 address inside is from it, and for it.
        let lies = |address: IpAddr, inside: Ipv6Addr| {
            sixrd.embedded(inside).is_some_and(|embedded| IpAddr::V4(embedded) != address)
        };
        if lies(outer.source, inner.source()) || lies(outer.destination, inner.destination()) {
            return Err(DropReason::TunnelSource);
        }
    }
    Ok(())
}

/// The key in the GRE header of a packet, or the network in that of VXLAN or Geneve; 0 if there is none.
pub(crate) fn key_of(packet: &Packet, tunnel: &StoredTunnel, outer: &Outer) -> u32 {
    let own = packet.bytes().get(outer.at..).unwrap_or_default();
    let key = match tunnel.kind {
        kind if kind.is_vxlan() => vxlan::parse(own).ok().map(|(network, _)| network),
        kind if kind.is_geneve() => geneve::header_of(own).ok().map(|header| header.vni),
        kind if kind.has_gre() => gre::View::parse(own).ok().and_then(|header| header.key),
        _ => None,
    };
    key.unwrap_or(0)
}

const IGMP: u8 = 2;

/// An EtherType that nothing has.
const RESERVED_TYPE: u16 = 0xffff;

/// What a packet is that has come out of a tunnel with this EtherType; one of a priority tag is taken off. `Err`: the router
/// forwards nothing of its EtherType. Linux has a use for ARP, though not there.
#[cold]
pub(crate) fn inside_of(packet: &mut Packet, ethertype: u16) -> Result<InnerProtocol, DropReason> {
    match without_priority(packet, ethertype) {
        ethernet::IPV4 => Ok(InnerProtocol::Ip4),
        ethernet::IPV6 => Ok(InnerProtocol::Ip6),
        ethernet::MPLS => Ok(InnerProtocol::Mpls),
        ethernet::ARP => Err(DropReason::TunnelPayload),
        ethernet::VLAN | ethernet::SERVICE_VLAN => Err(DropReason::VlanUnknown),
        _ => Err(DropReason::EtherTypeUnknown),
    }
}

/// The EtherType in the GRE or Geneve header of a packet.
pub(crate) fn protocol_of(packet: &Packet, tunnel: &StoredTunnel, outer: &Outer) -> u16 {
    if tunnel.kind.is_geneve() {
        return geneve::protocol_at(packet.bytes(), outer.at).unwrap_or(RESERVED_TYPE);
    }
    if !tunnel.kind.has_gre() {
        return RESERVED_TYPE;
    }
    let header = gre::View::parse(packet.bytes().get(outer.at..).unwrap_or_default());
    header.map_or(RESERVED_TYPE, |header| header.protocol)
}

/// Whether this protocol is a packet inside another.
pub(crate) const fn is_tunnelled(protocol: u8) -> bool {
    matches!(protocol, protocol::IPV4 | protocol::IPV6 | protocol::GRE | protocol::MPLS)
}

/// Whether `ip6tnl` takes no packets from this address: none, or one of the router's `own`, where outer packets are looked
/// up, if it takes none from there. Linux: `ip6_tnl_rcv_ctl`.
pub(crate) fn is_refused(view: &View<'_>, source: Ipv6Addr, own: Option<LookupId>) -> bool {
    source.is_unspecified() || own.is_some_and(|underlay| has_address6(view, underlay, source))
}

/// Whether what has come in by a VRF, for this address, is not for an `ip6tnl` whose `underlay` is elsewhere. Linux:
/// `ip6_tnl_rcv_ctl`.
pub(crate) fn is_foreign(view: &View<'_>, ingress: Ingress, address: Ipv6Addr, underlay: LookupId) -> bool {
    ingress.in_vrf && !has_address6(view, underlay, address)
}

/// Whether an address is one of the router's where a packet came in.
pub(crate) fn is_local4(view: &View<'_>, ingress: Ingress, address: Ipv4Addr) -> bool {
    rules::is_own4(view, ingress.instance, address)
}

/// The outer header of a packet that is for the router.
pub(crate) struct Outer {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// What follows it.
    pub(crate) protocol: u8,
    /// Where that begins.
    pub(crate) at: usize,
}

impl Outer {
    /// `None`: it is nothing that a tunnel could take. `Err`: it is a fragment of a packet with this protocol inside.
    pub(crate) fn read(bytes: &[u8]) -> Option<Result<Self, u8>> {
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

    pub(crate) fn read6(packet: &ipv6::View<'_>) -> Option<Result<Self, u8>> {
        let mut extensions = Extensions::new(packet);
        let mut fragment = false;
        for extension in extensions.by_ref() {
            let extension = extension.ok()?;
            match extension.kind {
                Kind::DestinationOptions => {
                    // What must not be passed over is the router's to refuse.
                    crate::path::options::check6(packet.header, &extension, None).ok()?;
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

    /// Whether nobody here listens for what an IPv4 header brings of this protocol, so that its sender is told of the packet as
    /// it came.
    pub(crate) const fn is_unknown(&self, protocol: u8) -> bool {
        let known =
            matches!(protocol, protocol::ICMP | IGMP | protocol::TCP | protocol::UDP | protocol::UDP_LITE);
        self.source.is_ipv4() && !known && !is_tunnelled(protocol)
    }

    pub(crate) fn tunnel_match(&self, key: Option<u32>) -> TunnelMatch {
        let bits = |address| match address {
            IpAddr::V4(address) => Ipv4Addr::to_bits(address).into(),
            IpAddr::V6(address) => Ipv6Addr::to_bits(address),
        };
        TunnelMatch { local: bits(self.destination), remote: bits(self.source), key }
    }
}
