//! The addresses of an outer header, where they are not the tunnel's own: those that the packet inside says, or the link by
//! which the outer packet leaves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::path::rules::{has_address6, leaf_at, own_at};
use crate::path::source::leaving4;
use crate::tables::{StoredTunnel, TunnelKind, TunnelRole, Via};
use crate::worker::view::{View, egress_of};

/// Whether nothing that a route leads to a tunnel gets as far as its device: with GRE and neither end, Linux's `ipgre_header`
/// and `ip6gre_header` make no header.
pub(super) fn lacks_ends(tunnel: &StoredTunnel) -> bool {
    let bare = matches!(tunnel.kind, TunnelKind::Gre | TunnelKind::Ip6gre);
    let plain = bare && tunnel.config.role != TunnelRole::External;
    plain && tunnel.config.remote.is_unspecified() && tunnel.config.local.is_unspecified()
}

/// Where an outer packet goes: to the tunnel's remote address, or where the packet inside says. Of one that is `unrouted` only
/// a prefix of 6rd says it: Linux asks `skb_dst` for the neighbour, which what a filter sends here has not.
pub(super) fn remote_of(tunnel: &StoredTunnel, packet: &[u8], unrouted: bool) -> Option<IpAddr> {
    let remote = tunnel.config.remote;
    if !remote.is_unspecified() {
        return Some(remote);
    }
    if unrouted && tunnel.config.sixrd.is_none() {
        return None;
    }
    let destination = match packet.first()? >> 4 {
        // Only a route could say.
        _ if tunnel.config.role == TunnelRole::External => return None,
        _ if tunnel.kind.carries_frames() || tunnel.kind.is_overlay() => return None,
        // With GRE only neighbours could say it.
        _ if tunnel.kind.has_gre() => return None,
        4 => IpAddr::V4(ipv4::Header::ref_from_prefix(packet).ok()?.0.destination()),
        6 => IpAddr::V6(ipv6::Header::ref_from_prefix(packet).ok()?.0.destination()),
        _ => return None,
    };
    match (tunnel.kind.is_over_ipv6(), destination) {
        (false, IpAddr::V4(_)) | (true, IpAddr::V6(_)) => (!unrouted).then_some(destination),
        (false, IpAddr::V6(destination)) => {
            let mapped = tunnel.config.sixrd.and_then(|sixrd| sixrd.embedded(destination));
            let mapped = mapped.filter(|address| !address.is_unspecified());
            let address = mapped.or_else(|| compatible(destination).filter(|_| !unrouted))?;
            Some(address.into())
        }
        (true, IpAddr::V4(_)) => None,
    }
}

/// Whether an IPv6 packet, of which `rest` are the addresses, is from the other end of a tunnel over IPv6: it would go back
/// and forth between the two.
#[inline(always)]
pub(super) fn is_from_remote(tunnel: &StoredTunnel, rest: &[u8]) -> bool {
    match (tunnel.config.remote, rest.first_chunk::<16>()) {
        (IpAddr::V6(remote), Some(source)) => remote.octets() == *source,
        _ => false,
    }
}

/// Whether a tunnel over IPv6 has come to send to an address of the router's own, where it may not (`allow-localremote`).
pub(super) fn is_own_remote(view: &View<'_>, tunnel: &StoredTunnel, remote: IpAddr) -> bool {
    let sends = tunnel.kind.is_overlay() || tunnel.config.allows_local_remote;
    match remote {
        IpAddr::V6(remote) if !sends => has_address6(view, tunnel.config.underlay, remote),
        _ => false,
    }
}

/// The address in an IPv4-compatible one, RFC 4291 section 2.5.5.1.
fn compatible(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    (bits >> 32 == 0 && bits > 1).then(|| Ipv4Addr::from_bits(bits as u32))
}

/// The source of an outer header: that of the tunnel, or an address of the link by which it leaves. Over IPv6 the latter is for
/// networks alone.
pub(super) fn source_of(view: &View<'_>, tunnel: &StoredTunnel, via: &Via, packet: &[u8]) -> IpAddr {
    let chosen = tunnel.config.sends_from();
    let asks = !tunnel.kind.is_over_ipv6() || tunnel.kind.is_network();
    // That of the way to the device's own end is none of the ways to others.
    let other = tunnel.config.local.is_unspecified() && via.address != tunnel.config.remote;
    let unknown = chosen.is_unspecified() || other && tunnel.kind.is_vxlan();
    if !unknown || !asks {
        return chosen;
    }
    let route = match via.resolved {
        Some(_) => None,
        // What is inside is no packet that a rule could look at.
        None if tunnel.kind.is_network() => own_at(view, protocol::UDP, via.lookup, via.address),
        None => leaf_at(view, packet, via.lookup, via.address),
    };
    let action = route.and_then(|id| view.tables.action(id, view.guard));
    let egress = match action {
        Some(action) => egress_of(view, action),
        None => view.next_hop(via.resolved).map(|next_hop| next_hop.link),
    };
    let egress = egress.and_then(|link| view.link(link));
    let own = view.own_lookup(via.lookup);
    let instance = || view.links().filter(|link| view.own_lookup(link.lookup) == own);
    if tunnel.kind.is_over_ipv6() {
        let source = egress.into_iter().chain(instance()).find_map(|link| view.source6(link));
        return source.unwrap_or(Ipv6Addr::UNSPECIFIED).into();
    }
    let of_route = || match (route, egress, via.address) {
        (Some(route), Some(egress), IpAddr::V4(to)) => leaving4(view, route, egress, to),
        _ => None,
    };
    let of_link = || egress.into_iter().chain(instance()).find_map(|link| view.source4(link));
    let source = of_route().or_else(of_link);
    source.unwrap_or(Ipv4Addr::UNSPECIFIED).into()
}
