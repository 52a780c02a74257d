//! What routers on the way of outer packets report of it: its MTU, or that they do not arrive. Linux's `ipip_err`,
//! `ipgre_err`, `ip6gre_err` and the like.

use std::net::IpAddr;

use underpass_packet::checksum::Sum;
use underpass_packet::icmp_extension::QUOTED;
use underpass_packet::{FromBytes, ethernet, gre, ipv4, ipv6, protocol};

use crate::path::icmp::{ECHO_REPLY_V4, ICMP_LEN};
use crate::path::rules;
use crate::tables::{
    Action, Ingress, InnerProtocol, LinkId, LookupId, PathMtu, StoredTunnel, TunnelBound, TunnelKind,
    TunnelMatch,
};
use crate::tunnel::outer::LEAST_MTU6;
use crate::tunnel::relay::Relay;
use crate::tunnel::{limit, relay};
use crate::worker::error::IcmpError;
use crate::worker::metadata::{PacketMeta, TUNNELLED};
use crate::worker::view::{OUTSIDE, View};

/// What is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Mtu(u32),
    Unreachable,
    /// Nobody listens for what is in the outer packet.
    Port,
    HopLimit,
    /// Its encapsulation limit is 0, RFC 2473 section 8.
    Limit,
}

impl Told {
    /// Of an ICMP error, RFC 792 and RFC 1191.
    fn of4(message: &[u8]) -> Option<Self> {
        match message {
            [3, 4, _, _, _, _, high, low, ..] => Some(Self::Mtu(u16::from_be_bytes([*high, *low]).into())),
            // A source route that failed cannot be about such a packet.
            [3, 5, ..] => None,
            [3, ..] => Some(Self::Unreachable),
            [11, 0, ..] => Some(Self::HopLimit),
            _ => None,
        }
    }

    /// Of an ICMPv6 error, RFC 4443.
    fn of6(message: &[u8]) -> Option<Self> {
        match message {
            [2, 0, _, _, a, b, c, d, ..] => Some(Self::Mtu(u32::from_be_bytes([*a, *b, *c, *d]))),
            [1, 4, ..] => Some(Self::Port),
            [1, ..] => Some(Self::Unreachable),
            [3, 0, ..] => Some(Self::HopLimit),
            [4, 0, _, _, 0, 0, 0, place, ..] => {
                let at = ICMP_LEN + usize::from(*place);
                (usize::from(*place) == limit::VALUE && message.get(at) == Some(&0)).then_some(Self::Limit)
            }
            _ => None,
        }
    }
}

/// A packet of a tunnel's that an ICMP error quotes.
struct Quoted<'a> {
    tunnel: &'a StoredTunnel,
    remote: IpAddr,
    /// What follows its outer headers, but those of foo-over-UDP.
    protocol: u8,
    /// Where it begins in the message's packet, where what follows, and where what is quoted ends.
    from: usize,
    at: usize,
    end: usize,
    /// Its length, as it says.
    len: usize,
}

/// Takes note of what an ICMP error to the router reports, if it is about a packet of a tunnel's. What the sender of the
/// packet inside is to hear of it.
pub(crate) fn learn<'a>(view: &View<'a>, packet: &[u8], ingress: Ingress) -> Option<Relay<'a>> {
    let (quoted, reported) = match packet {
        [0x40..=0x4f, _, _, _, _, _, _, _, _, protocol::ICMP, ..] => learn4(view, packet, ingress),
        [0x60..=0x6f, _, _, _, _, _, protocol::ICMPV6, ..] => learn6(view, packet, ingress),
        _ => None,
    }?;
    let tunnel = quoted.tunnel;
    let exceptions = &view.tables.tunnels().exceptions;
    // RFC 8201 section 4: no IPv6 link has a smaller MTU than the least, and such a message is discarded.
    if let Told::Mtu(mtu) = reported
        && (quoted.remote.is_ipv4() || mtu >= LEAST_MTU6)
        && (quoted.remote.is_ipv6() || {
            let header = packet.get(quoted.from..).unwrap_or_default();
            way_of(&quoted, ingress.link)
                .is_none_or(|link| leads_by(view, header, tunnel.config.via.lookup, quoted.remote, link))
        })
    {
        exceptions.learn(bits(quoted.remote), tunnel.config.underlay, mtu, view.now);
    }
    if tunnel.kind.is_overlay() {
        return None;
    }
    if tunnel.kind == TunnelKind::Ip6tnl {
        return relayed6(&quoted, reported);
    }
    let counted = match reported {
        Told::Mtu(_) | Told::Limit => return None,
        // Over IPv6 it says that the other end has no such tunnel.
        Told::Port => false,
        Told::HopLimit => tunnel.config.ttl.is_some(),
        Told::Unreachable => true,
    };
    if let Some(relay) = relayed4(packet, &quoted, reported) {
        return Some(relay);
    }
    // Of a tunnel to anywhere nobody else need be told, nor where the hop limit is the sender's own.
    if counted && !tunnel.config.remote.is_unspecified() {
        tunnel.sequence.fail(view.now);
        exceptions.set_any();
    }
    None
}

/// The link by which the way leads that a message is about: of GRE that by which it has come in (`gre_err`), of others that
/// which the tunnel is bound to. `None`: any.
fn way_of(quoted: &Quoted<'_>, ingress: LinkId) -> Option<LinkId> {
    match quoted.tunnel.config.bound {
        _ if quoted.protocol == protocol::GRE => Some(ingress),
        Some(TunnelBound::Link(link)) => Some(link),
        Some(TunnelBound::Instance(_)) | None => None,
    }
}

/// Whether the way of what is quoted leads by a link: of another way Linux takes no note.
fn leads_by(view: &View<'_>, quoted: &[u8], lookup: LookupId, remote: IpAddr, link: LinkId) -> bool {
    let Some(mut header) = quoted.first_chunk::<{ ipv4::Header::LEN }>().copied() else { return true };
    // Whole as it is, for rules to look at.
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(ipv4::Header::LEN as u16).to_be_bytes());
    match rules::action_at(view, &header, lookup, remote) {
        Some(Action::Forward(id)) => {
            view.tables.next_hop(*id, view.guard).is_none_or(|next_hop| next_hop.link == link)
        }
        _ => true,
    }
}

/// Takes note of an MTU that a message to the router, which is sound, reports of the path of a packet with GRE, or of an echo
/// reply, for the router's own messages: Linux's `gre_err`, whether there is a tunnel or not, and `icmp_err`.
pub(crate) fn learn_own(view: &View<'_>, message: &[u8], ingress: LinkId, instance: LookupId) {
    let Some(Told::Mtu(mtu)) = Told::of4(message) else { return };
    let quoted = message.get(ICMP_LEN..).unwrap_or_default();
    let Ok((header, _)) = ipv4::Header::ref_from_prefix(quoted) else { return };
    if header.version() != 4 || header.fragment_offset() != 0 {
        return;
    }
    let remote = header.destination().into();
    let instance = match (header.protocol, quoted.get(header.header_len())) {
        (protocol::GRE, _) if leads_by(view, quoted, view.own_lookup(instance), remote, ingress) => instance,
        (protocol::ICMP, Some(&ECHO_REPLY_V4)) => OUTSIDE,
        _ => return,
    };
    view.tables.tunnels().own_exceptions.learn(bits(remote), view.own_lookup(instance), mtu, view.now);
}

/// The error to the sender of a packet in an ip6tnl: RFC 2473 section 8, Linux's `ip6_tnl_err`.
fn relayed6<'a>(quoted: &Quoted<'a>, reported: Told) -> Option<Relay<'a>> {
    let Quoted { tunnel, protocol, at, end, .. } = *quoted;
    let inside = if protocol == protocol::IPV4 { InnerProtocol::Ip4 } else { InnerProtocol::Ip6 };
    if !tunnel.takes(inside) || !relay::is_whole(protocol, end.saturating_sub(at)) {
        return None;
    }
    let (error, argument) = match reported {
        Told::Mtu(mtu) => {
            let headers = (at - quoted.from) as u32;
            let mtu = mtu.saturating_sub(headers).max(LEAST_MTU6);
            // Linux: `dst_mtu`, of the way that leads into the tunnel.
            let news = protocol == protocol::IPV6 || mtu <= tunnel.template(inside).mtu;
            (news && quoted.len > mtu as usize).then_some((IcmpError::TooBig, mtu))?
        }
        _ => (IcmpError::AddressUnreachable, 0),
    };
    Some(Relay { tunnel, error, argument, quoted: at..end })
}

/// The error to the sender of an IPv6 packet in a tunnel over IPv4, if enough of it is quoted: RFC 4213 section 3.4.
fn relayed4<'a>(packet: &[u8], quoted: &Quoted<'a>, reported: Told) -> Option<Relay<'a>> {
    let Quoted { tunnel, protocol, mut at, end, .. } = *quoted;
    // What a tunnel over UDP sends is quoted as UDP.
    if tunnel.kind.is_over_ipv6() || tunnel.config.udp.is_some() {
        return None;
    }
    match protocol {
        protocol::GRE if tunnel.kind == TunnelKind::Gre => {
            let header = gre::View::parse(packet.get(at..end)?).ok()?;
            (header.protocol == ethernet::IPV6).then_some(())?;
            at += header.header_len();
        }
        protocol::IPV6 => {}
        _ => return None,
    }
    // Linux wants eight bytes of what follows its header.
    if end.saturating_sub(at) < ipv6::Header::LEN + 8 {
        return None;
    }
    let error = if reported == Told::HopLimit { IcmpError::HopLimit } else { IcmpError::AddressUnreachable };
    Some(Relay { tunnel, error, argument: 0, quoted: at..end })
}

fn learn4<'a>(view: &View<'a>, packet: &[u8], ingress: Ingress) -> Option<(Quoted<'a>, Told)> {
    let outer = ipv4::View::parse(packet).ok()?;
    let message = outer.payload;
    let reported = Told::of4(message)?;
    if outer.header.is_fragment() || Sum::new().add_bytes(message).fold() != 0xffff {
        return None;
    }
    let before = outer.header.header_len() + ICMP_LEN;
    let quoted = message.get(ICMP_LEN..)?;
    let (header, _) = ipv4::Header::ref_from_prefix(quoted).ok()?;
    if header.version() != 4 || header.fragment_offset() != 0 {
        return None;
    }
    // RFC 4884 section 4.1: an extension may follow, which is nothing of the packet.
    let said = 4 * usize::from(*message.get(5)?);
    let end = before + if said >= QUOTED { said.min(quoted.len()) } else { quoted.len() };
    let (protocol, at) = (header.protocol, header.header_len());
    let ends = (header.source().into(), header.destination().into());
    let tunnel = find(view, ends, (protocol, quoted.get(at..)?), reported, ingress).or_else(|| {
        // Linux: `gre_err` takes note of an MTU for every packet with GRE, whichever tunnel it is of.
        let any = protocol == protocol::GRE && matches!(reported, Told::Mtu(_));
        view.tables.tunnels().find_remote(header.destination(), view.guard).filter(|_| any)
    })?;
    let len = header.total_length.get().into();
    Some((Quoted { tunnel, remote: ends.1, protocol, from: before, at: before + at, end, len }, reported))
}

fn learn6<'a>(view: &View<'a>, packet: &[u8], ingress: Ingress) -> Option<(Quoted<'a>, Told)> {
    let outer = ipv6::View::parse(packet).ok()?;
    let message = outer.payload;
    let ipv6::Header { source, destination, .. } = *outer.header;
    let pseudo = Sum::pseudo_ipv6(source, destination, protocol::ICMPV6, message.len() as u32);
    let reported = Told::of6(message)?;
    if pseudo.add_bytes(message).fold() != 0xffff {
        return None;
    }
    let before = ipv6::Header::LEN + ICMP_LEN;
    let (header, upper) = ipv6::Header::ref_from_prefix(message.get(ICMP_LEN..)?).ok()?;
    let (protocol, at) = match (header.next_header, upper) {
        // The encapsulation limit.
        (protocol::DESTINATION_OPTIONS, [next, 0, ..]) => (*next, ipv6::Header::LEN + limit::LEN),
        (next, _) => (next, ipv6::Header::LEN),
    };
    let ends = (header.source().into(), header.destination().into());
    let upper = upper.get(at - ipv6::Header::LEN..)?;
    let tunnel = find(view, ends, (protocol, upper), reported, ingress)?;
    let len = ipv6::Header::LEN + usize::from(header.payload_length.get());
    Some((
        Quoted { tunnel, remote: ends.1, protocol, from: before, at: before + at, end: packet.len(), len },
        reported,
    ))
}

/// The tunnel that has sent what is quoted: that which a packet between these ends would be for, by this link. Linux asks
/// each kind for one, whether that sends over UDP or not.
fn find<'a>(
    view: &View<'a>,
    (local, remote): (IpAddr, IpAddr),
    (protocol, upper): (u8, &[u8]),
    reported: Told,
    ingress: Ingress,
) -> Option<&'a StoredTunnel> {
    let tunnels = view.tables.tunnels();
    let look = |kind, key| {
        let tunnel_match = TunnelMatch { local: bits(local), remote: bits(remote), key };
        tunnels.find(kind, tunnel_match, ingress, view.guard).map(|(_, tunnel)| tunnel)
    };
    let over6 = remote.is_ipv6();
    match protocol {
        protocol::UDP => {
            let port = upper.get(2..4)?.first_chunk()?;
            tunnels.find_end((local, remote), u16::from_be_bytes(*port), view.guard)
        }
        protocol::GRE => {
            let header = gre::View::parse(upper).ok()?;
            let frames = header.protocol == gre::TRANSPARENT_ETHERNET;
            match (over6, frames) {
                (false, false) => look(TunnelKind::Gre, header.key),
                (false, true) => look(TunnelKind::Gretap, header.key),
                (true, false) => look(TunnelKind::Ip6gre, header.key),
                (true, true) => {
                    look(TunnelKind::Ip6gretap, header.key).or_else(|| look(TunnelKind::Ip6gre, header.key))
                }
            }
        }
        // `ip6_tnl_err` takes note of what its tunnel can have sent; `ipip_err` and `ipip6_err` do not ask.
        protocol::IPV4 | protocol::IPV6 | protocol::MPLS if over6 => {
            let inside = match protocol {
                protocol::IPV4 => InnerProtocol::Ip4,
                protocol::IPV6 => InnerProtocol::Ip6,
                _ => InnerProtocol::Mpls,
            };
            look(TunnelKind::Ip6tnl, None).filter(|found| found.takes(inside))
        }
        protocol::IPV6 => look(TunnelKind::Sit, None),
        // Of a tunnel to anywhere `ipip_err` takes note of an MTU alone.
        protocol::IPV4 | protocol::MPLS => look(TunnelKind::Ipip, None)
            .filter(|found| matches!(reported, Told::Mtu(_)) || !found.config.remote.is_unspecified())
            .or_else(|| look(TunnelKind::Sit, None)),
        _ => None,
    }
}

/// What was reported of the way of an outer packet.
#[inline]
pub(crate) fn of(view: &View<'_>, tunnel: &StoredTunnel, outer: &[u8]) -> Option<PathMtu> {
    let remote = match outer.first()? >> 4 {
        4 => u32::from_be_bytes(*outer.get(16..20)?.first_chunk()?).into(),
        _ => u128::from_be_bytes(*outer.get(24..40)?.first_chunk()?),
    };
    reported(view, tunnel, remote)
}

/// The same of the way to this address, as a number.
pub(crate) fn reported(view: &View<'_>, tunnel: &StoredTunnel, remote: u128) -> Option<PathMtu> {
    let path = view.tables.tunnels().exceptions.of(remote, tunnel.config.underlay, view.now);
    path.filter(|_| !tunnel.config.off_route)
}

/// The MTU by which a packet is cut: that of the next hop, or what was reported of the way if it is an outer packet's.
pub(crate) fn narrowed(view: &View<'_>, meta: &PacketMeta, mtu: u32) -> u32 {
    let tunnel = meta.extra.tunnel.filter(|_| meta.is(TUNNELLED));
    let tunnel = tunnel.and_then(|id| view.tables.tunnels().tunnel(id, view.guard));
    let exception = tunnel.and_then(|tunnel| of(view, tunnel, meta.packet.bytes()));
    exception.map_or(mtu, |path| path.mtu.min(mtu))
}

pub(crate) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
