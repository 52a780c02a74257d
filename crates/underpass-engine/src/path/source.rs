//! The source of what this router sends itself, as Linux chooses it: RFC 1122 section 3.3.4.3, RFC 6724.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::ipv6::policy_label;
use underpass_packet::{FromBytes, ipv4, ipv6};

use crate::path::icmp_sum::{fill_checksum4, fill_checksum6};
use crate::path::rules;
use crate::tables::{Action, ActionId, Link, LinkId, LookupId};
use crate::worker::metadata::{
    BEHIND_LABEL, LABELLED, LED_INTO_VRF, PacketMeta, SWITCHED, TUNNELLED, UNFINISHED,
};
use crate::worker::view::{OUTSIDE, View, egress_of};

/// The source of errors of a router that has no IPv4 address: RFC 7600.
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Fills in the source address, where it has none, and the checksum of a message of this router's that leaves by `link`:
/// that of its route, or else an address of the link. Where the message leaves its VRF, it is one of the VRF.
#[cold]
#[inline(never)]
pub(crate) fn finish_generated(view: &View<'_>, meta: &mut PacketMeta, link: LinkId) {
    meta.extra.flags &= !UNFINISHED;
    let lookups = (view.own_lookup(meta.extra.instance), meta.extra.looked_in);
    let links = (view.link(link), view.link(meta.ingress));
    let bytes = meta.packet.bytes();
    if bytes.first().is_some_and(|first| first >> 4 == 6) {
        let Ok((header, _)) = ipv6::Header::ref_from_prefix(bytes) else { return };
        let source = match header.source() {
            Ipv6Addr::UNSPECIFIED => source6(view, bytes, lookups, header.destination(), links),
            known => Some(known),
        };
        let Ok((header, message)) = ipv6::Header::mut_from_prefix(meta.packet.bytes_mut()) else { return };
        header.source = source.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
        fill_checksum6(header, message);
    } else {
        let Ok(ipv4::View { header, .. }) = ipv4::View::parse(bytes) else { return };
        let source = match header.source() {
            Ipv4Addr::UNSPECIFIED => source4(view, bytes, lookups, header.destination(), links),
            known => Some(known),
        };
        let Ok(ipv4::ViewMut { header, options, payload }) = ipv4::ViewMut::parse(meta.packet.bytes_mut())
        else {
            return;
        };
        header.source = source.unwrap_or(DUMMY).octets();
        header.fill_checksum(options);
        fill_checksum4(payload);
    }
}

/// Gives what the router itself sends the hop limit that its route says, unless it is behind other headers.
#[cold]
#[inline(never)]
pub(crate) fn limit_hops(meta: &mut PacketMeta, hop_limit: u8) {
    if meta.is(TUNNELLED | LABELLED | SWITCHED) || meta.extra.wrapping != 0 || meta.extra.inserted != 0 {
        return;
    }
    let bytes = meta.packet.bytes_mut();
    if bytes.first().is_some_and(|first| first >> 4 == 6) {
        if let Ok((header, _)) = ipv6::Header::mut_from_prefix(bytes) {
            header.hop_limit = hop_limit;
        }
    } else if let Ok((header, _)) = ipv4::Header::mut_from_prefix(bytes) {
        header.update_ttl(hop_limit);
    }
}

/// Linux: `fib_select_path`, which takes the source of a route inside the VRF only.
fn source4(
    view: &View<'_>,
    message: &[u8],
    (instance, lookup): (LookupId, LookupId),
    to: Ipv4Addr,
    (egress, ingress): (Option<&Link>, Option<&Link>),
) -> Option<Ipv4Addr> {
    let is_inside = |link: &&Link| view.own_lookup(link.lookup) == instance;
    let leaving = egress.filter(is_inside).map(|egress| {
        let route = rules::message_at(view, message, lookup, to.into());
        route.and_then(|route| leaving4(view, route, egress, to)).or_else(|| view.source4(egress))
    });
    let of_vrf = || view.source4(view.links().find(|link| link.vrf && is_inside(link))?);
    let of_links = || [egress, ingress].into_iter().flatten().find_map(|link| view.source4(link));
    // What the host sends arrives by a link that has no addresses.
    let of_instance = || view.links().filter(is_inside).find_map(|link| view.source4(link));
    let in_vrf = view.links().any(|link| link.vrf && is_inside(&link));
    // `inet_select_addr`: of a VRF's links, or none.
    let elsewhere = || if in_vrf { None } else { of_links() };
    leaving.unwrap_or_else(of_vrf).or_else(elsewhere).or_else(of_instance)
}

/// What a route by this link says of the source, or the next hop: Linux's `fib_result_prefsrc`.
pub(crate) fn leaving4(view: &View<'_>, route: ActionId, egress: &Link, to: Ipv4Addr) -> Option<Ipv4Addr> {
    if let Some(IpAddr::V4(source)) = view.tables.source(route, view.guard) {
        return Some(source);
    }
    let Action::Forward(next_hop) = view.tables.action(route, view.guard)? else { return None };
    match view.tables.next_hop(*next_hop, view.guard)?.address {
        IpAddr::V4(gateway) if gateway != to => egress.source4_near(gateway),
        _ => None,
    }
}

/// Linux: `ip6_route_get_saddr`.
fn source6(
    view: &View<'_>,
    message: &[u8],
    (instance, lookup): (LookupId, LookupId),
    to: Ipv6Addr,
    (egress, ingress): (Option<&Link>, Option<&Link>),
) -> Option<Ipv6Addr> {
    let is_inside = |link: &&Link| view.own_lookup(link.lookup) == instance;
    let of_link = || source6_for(view, egress.filter(is_inside)?, to);
    let of_instance = || view.links().filter(is_inside).find_map(|link| source6_for(view, link, to));
    let of_links = || [egress, ingress].into_iter().flatten().find_map(|link| view.source6(link));
    of_route6(view, message, lookup, to).or_else(of_link).or_else(of_instance).or_else(of_links)
}

/// What the route by which a message leaves says of the source.
fn of_route6(view: &View<'_>, message: &[u8], lookup: LookupId, to: Ipv6Addr) -> Option<Ipv6Addr> {
    let route = rules::message_at(view, message, lookup, to.into())?;
    match view.tables.source(route, view.guard)? {
        IpAddr::V6(source) => Some(source),
        IpAddr::V4(_) => None,
    }
}

/// The source of an error to `sender` with a packet that was for others, if it is known before the message, which the packet
/// is by now, is looked up: Linux's `icmp6_send`.
#[cold]
pub(crate) fn of_error6(view: &View<'_>, meta: &PacketMeta, sender: Ipv6Addr) -> Option<Ipv6Addr> {
    // Linux looks for one outside of any VRF. If there is one, the route of the VRF decides.
    if of_route6(view, meta.packet.bytes(), view.own_lookup(OUTSIDE), sender).is_some() {
        return None;
    }
    if meta.is(BEHIND_LABEL) {
        // By `lo` it arrived from outside, wherever it would have left.
        let instance = if meta.is(LED_INTO_VRF) { meta.extra.instance } else { OUTSIDE };
        let instance = view.own_lookup(instance);
        let mut links = view.links().filter(|link| view.own_lookup(link.lookup) == instance);
        return links.find_map(|link| source6_for(view, link, sender));
    }
    if meta.is(LED_INTO_VRF) {
        // Linux no longer knows by which link it arrived.
        return None;
    }
    source6_for(view, view.link(meta.ingress)?, sender)
}

/// The router's address towards another, in the VRF of a link: Linux's `fib_compute_spec_dst`.
#[cold]
pub(crate) fn towards4(view: &View<'_>, packet: &[u8], link: &Link, to: Ipv4Addr) -> Ipv4Addr {
    let route = rules::leaf_at(view, packet, view.own_lookup(link.lookup), to.into());
    let egress = route.and_then(|route| view.link(egress_of(view, view.tables.action(route, view.guard)?)?));
    let egress = egress.unwrap_or(link);
    let source = route.and_then(|route| leaving4(view, route, egress, to));
    let source = source.or_else(|| view.source4(egress)).or_else(|| view.source4(link));
    source.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

/// The address of this router's by which a packet leaves by `link`, for the options that record it: Linux's
/// `ip_rt_get_source`.
#[cold]
pub(crate) fn recorded4(view: &View<'_>, meta: &PacketMeta, link: LinkId) -> Option<Ipv4Addr> {
    let egress = view.link(link)?;
    let packet = meta.packet.bytes();
    let to = ipv4::View::parse(packet).ok()?.header.destination();
    let route = rules::leaf_at(view, packet, meta.extra.looked_in, to.into());
    route.and_then(|route| leaving4(view, route, egress, to)).or_else(|| view.source4(egress))
}

impl Link {
    /// The address whose network a gateway is in, if there are several: Linux's `inet_select_addr`.
    fn source4_near(&self, gateway: Ipv4Addr) -> Option<Ipv4Addr> {
        self.several.iter().find_map(|(address, len)| match *address {
            IpAddr::V4(address) => {
                let common = (address.to_bits() ^ gateway.to_bits()).leading_zeros();
                (common >= u32::from(*len)).then_some(address)
            }
            IpAddr::V6(_) => None,
        })
    }
}

/// The address of a link for what goes to this one: RFC 6724 section 5. Rules 2, 6 and 8 distinguish addresses of a link.
fn source6_for(view: &View<'_>, link: &Link, to: Ipv6Addr) -> Option<Ipv6Addr> {
    if to.is_unicast_link_local()
        && let Some(near) = link.own6.iter().find(|address| address.is_unicast_link_local())
    {
        return Some(*near);
    }
    let several = link.several.iter().filter_map(|(address, len)| match *address {
        IpAddr::V6(address) => Some((address, u32::from(*len))),
        IpAddr::V4(_) => None,
    });
    let best = several.min_by_key(|(address, len)| {
        let common = (address.to_bits() ^ to.to_bits()).leading_zeros();
        Reverse((policy_label(*address) == policy_label(to), common.min(*len)))
    });
    best.map(|(address, _)| address).or_else(|| view.source6(link))
}
