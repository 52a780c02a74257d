//! Look-ups that the control thread does itself: is a gateway reachable, where would a packet go.
//! Linux: `fib_table_lookup`, `fib6_table_lookup`, `fib_rules_lookup`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EACCES, EAGAIN, EHOSTUNREACH, EINVAL, ENETUNREACH};
use underpass_packet::ipv6::{LINK_SCOPE, group_scope};

use super::compiled::RouteLimits;
use super::encode::found_hop;
use super::info::{Hop, Info, InfoId, NextHops};
use super::rule::{Flow, Ports, Rule};
use super::table::{Family, Ids, Prefix, bits};
use crate::Router;
use crate::address::source::{source4, source6_to};

/// Those of the routes to a prefix that share its packets with one of them, itself included: of IPv6 all of its metric
/// that spread, whether the router's own or the kernel's.
pub(crate) fn together(router: &Router, family: Family, ids: &[InfoId], id: InfoId) -> Ids {
    let info = router.routes.infos.get(id);
    let Some(info) = info.filter(|info| ids.len() > 1 && family == Family::V6 && info.spreads()) else {
        return Ids::from_slice(&[id]);
    };
    let with = |id: &&InfoId| {
        router.routes.infos.get(**id).is_some_and(|other| other.metric == info.metric && other.spreads())
    };
    ids.iter().filter(with).copied().collect()
}

/// What a look-up found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub table: u32,
    pub prefix: Prefix,
    pub id: InfoId,
    /// Which of its ways.
    pub way: usize,
}

/// The errno that a route of this type ends a look-up with; `None` for one that forwards or delivers.
/// Linux: `fib_props`, `fib6_prop`.
pub(crate) const fn type_error(kind: u8) -> Option<i32> {
    match kind {
        libc::RTN_BLACKHOLE => Some(EINVAL),
        libc::RTN_UNREACHABLE => Some(EHOSTUNREACH),
        libc::RTN_PROHIBIT => Some(EACCES),
        libc::RTN_THROW => Some(EAGAIN),
        _ => None,
    }
}

/// The ways of a route, those of its next-hop object included.
pub(crate) fn ways_of<'a>(router: &'a Router, info: &'a Info) -> Cow<'a, [Hop]> {
    match &info.ways {
        NextHops::Hops(hops) => Cow::Borrowed(hops),
        NextHops::Object(id) => Cow::Owned(router.routes.objects.ways(*id)),
    }
}

/// Whether the route leads to a next-hop object that discards.
pub(crate) fn blackhole_object(router: &Router, info: &Info) -> bool {
    let NextHops::Object(id) = info.ways else { return false };
    router.routes.objects.discards(id)
}

/// The way of a route that a flow may take.
pub(super) fn usable(router: &Router, family: Family, id: InfoId, flow: &Flow) -> Option<usize> {
    let info = router.routes.infos.get(id)?;
    if family == Family::V4 && info.scope < flow.scope {
        return None;
    }
    if type_error(info.kind).is_some() || info.reject || blackhole_object(router, info) {
        // Linux: `rt6_device_match`, `rt6_score_route`: its device is the loopback device, which is another one than is asked for.
        let elsewhere = family == Family::V6 && flow.oif > 1 && !flow.prefers;
        return (!elsewhere).then_some(0);
    }
    let fits = |hop: &Hop| !hop.dead && (flow.oif == 0 || flow.prefers || hop.oif == flow.oif);
    ways_of(router, info).iter().position(fits)
}

/// Looks up in one table: `None` if no route fits.
pub(crate) fn look_up_in(router: &Router, family: Family, table: u32, flow: &Flow) -> Option<Found> {
    let routes = router.routes.tables.get(&(family, table))?;
    let usable =
        |ids: &[InfoId]| ids.iter().find_map(|&id| usable(router, family, id, flow).map(|way| (id, way)));
    let host = Prefix::host(flow.destination);
    let (prefix, ids) = routes.longest_by(host, |ids| usable(ids).is_some())?;
    let first = if flow.prefers { preferred(router, ids, flow.oif) } else { None };
    let (id, way) = first.and_then(|id| usable(&[id])).or_else(|| usable(ids))?;
    Some(Found { table, prefix, id, way })
}

/// Looks up by the policy rules.
///
/// # Errors
/// The errno of the rule or route type that ends the look-up, `ENETUNREACH` if none does.
pub(crate) fn look_up(router: &Router, flow: &Flow) -> Result<Found, i32> {
    let family = Family::of(flow.destination);
    let rules = router.routes.rules.of(family);
    let mut position = 0;
    while let Some(rule) = rules.get(position) {
        position += 1;
        if !rule_matches(router, rule, flow) {
            continue;
        }
        match rule.action {
            super::rule::FR_ACT_TO_TBL => {
                let table = if rule.l3mdev { flow.l3mdev } else { Some(rule.table) };
                let Some(found) = table.and_then(|table| look_up_in(router, family, table, flow)) else {
                    continue;
                };
                let Some(info) = router.routes.infos.get(found.id) else { continue };
                let suppressed = !flow.unsuppressed
                    && rule.suppressed_length().is_some_and(|longest| found.prefix.len <= longest);
                match type_error(info.kind) {
                    None if suppressed => {}
                    Some(EAGAIN) => {}
                    Some(errno) if family == Family::V4 => return Err(errno),
                    _ => return Ok(found),
                }
            }
            super::rule::FR_ACT_GOTO => {
                let target = rules.partition_point(|other| other.priority < rule.target);
                if rules.get(target).is_some_and(|other| other.priority == rule.target) {
                    position = target;
                }
            }
            super::rule::FR_ACT_UNREACHABLE => return Err(ENETUNREACH),
            super::rule::FR_ACT_PROHIBIT => return Err(EACCES),
            super::rule::FR_ACT_BLACKHOLE => return Err(EINVAL),
            _ => {}
        }
    }
    Err(ENETUNREACH)
}

/// The way that a packet of the router's own takes.
pub(crate) fn hop_of(router: &Router, flow: &Flow) -> Option<Hop> {
    let found = look_up(router, flow).ok()?;
    let info = router.routes.infos.get(found.id).filter(|info| !info.reject)?;
    ways_of(router, info).get(found.way).cloned()
}

/// The link by which a packet of the router's own leaves; the loopback link if it is for the router.
pub(crate) fn way_out(router: &Router, flow: &Flow) -> Option<u32> {
    let found = look_up(router, flow).ok()?;
    let info = router.routes.infos.get(found.id)?;
    match info.kind {
        libc::RTN_LOCAL if flow.destination.is_ipv4() => Some(1),
        libc::RTN_LOCAL | libc::RTN_UNICAST | libc::RTN_BROADCAST if !info.reject => {
            ways_of(router, info).get(found.way).map(|hop| hop.oif)
        }
        _ => None,
    }
}

/// The only way that a packet of the router's own may take, of a route that leads to a link or a neighbour there; `Err`: none
/// does, or several. With what the route says of MTU and hop limit.
pub(crate) fn only_way(router: &Router, flow: &Flow) -> Result<(Hop, RouteLimits), NoWay> {
    let found = look_up(router, flow).map_err(|_| NoWay::None)?;
    let info = router.routes.infos.get(found.id).ok_or(NoWay::None)?;
    let ways = ways_of(router, info);
    let several = flow.destination.is_ipv6() && (info.spreads() || ways.len() > 1);
    match ways.get(found.way) {
        Some(hop) if info.kind == libc::RTN_UNICAST && !info.reject && !several => {
            Ok((hop.clone(), info.limits()))
        }
        _ => Err(NoWay::Other),
    }
}

/// Why there is no such way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoWay {
    /// No route leads there, or one that is an error.
    None,
    /// What is done there is another thing.
    Other,
}

/// The table of the VRF that a link is, or is enslaved to.
pub(crate) fn l3mdev_table(router: &Router, index: u32) -> Option<u32> {
    let link = router.links.get(index)?;
    link.vrf_table().or_else(|| router.links.get(link.master?)?.vrf_table())
}

/// What IPv4 takes an address for. Linux: `inet_addr_type_table`.
pub(crate) fn address_type4(router: &Router, address: std::net::Ipv4Addr, table: u32) -> u8 {
    if address.is_unspecified() || address.octets()[0] == 0 || address.is_broadcast() {
        return libc::RTN_BROADCAST;
    }
    if address.is_multicast() {
        return libc::RTN_MULTICAST;
    }
    if !router.routes.tables.contains_key(&(Family::V4, table)) {
        return libc::RTN_BROADCAST;
    }
    let found = look_up_in(router, Family::V4, table, &Flow::to(address.into()));
    let info = found.and_then(|found| router.routes.infos.get(found.id));
    info.map_or(libc::RTN_UNICAST, |info| info.kind)
}

/// Whether the address is the router's own; `link`: on this link.
pub(crate) fn own_address6(
    router: &Router,
    address: std::net::Ipv6Addr,
    table: u32,
    link: Option<u32>,
) -> bool {
    let Some(routes) = router.routes.tables.get(&(Family::V6, table)) else { return false };
    let ids = routes.get(Prefix::host(address.into()));
    ids.iter().filter_map(|&id| router.routes.infos.get(id)).any(|info| {
        info.kind == libc::RTN_LOCAL && link.is_none_or(|link| info.hops().iter().any(|hop| hop.oif == link))
    })
}

/// Linux: `fib_result_prefsrc`.
pub(super) fn route_source4(router: &Router, info: &Info, hop: Option<&Hop>) -> Option<Ipv4Addr> {
    if let Some(IpAddr::V4(source)) = info.source {
        return Some(source);
    }
    let hop = hop?;
    let gateway = if let Some(IpAddr::V4(gateway)) = hop.gateway { Some(gateway) } else { None };
    source4_for(router, hop.oif, gateway, info.scope)
}

/// Linux: `inet_select_addr`.
pub(super) fn source4_for(
    router: &Router,
    link: u32,
    towards: Option<Ipv4Addr>,
    scope: u8,
) -> Option<Ipv4Addr> {
    let fits =
        |address: &&crate::Address| address.scope <= scope && address.flags & libc::IFA_F_SECONDARY == 0;
    let near = |address: &&crate::Address| {
        let prefix = address.prefix();
        towards.is_none_or(|to| prefix.is_some_and(|prefix| prefix.contains(&IpAddr::V4(to))))
    };
    let own = router.addresses.v4(link);
    let chosen = own.iter().filter(fits).find(near).or_else(|| own.iter().find(fits));
    match chosen.map(|address| address.local) {
        Some(IpAddr::V4(address)) => Some(address),
        _ => source4(router, link),
    }
}

/// The address that the router sends from to a destination.
pub(crate) fn source_for(router: &Router, flow: &Flow) -> Option<IpAddr> {
    if let IpAddr::V4(destination) = flow.destination
        && destination.is_multicast()
        && flow.oif != 0
    {
        // Linux: `ip_route_output_key_hash_rcu`.
        let of_link = matches!(destination.octets(), [224, 0, 0, _]);
        let scope = if of_link { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE };
        return source4_for(router, flow.oif, None, scope).map(IpAddr::V4);
    }
    let found = look_up(router, flow).ok()?;
    let info = router.routes.infos.get(found.id)?;
    let hop = found_hop(router, &found);
    match flow.destination {
        IpAddr::V4(_) => {
            let source = match left_vrf(router, flow, hop.as_ref()) {
                Some(vrf) => source4_for(router, vrf, None, libc::RT_SCOPE_LINK),
                None => route_source4(router, info, hop.as_ref()),
            };
            source.map(IpAddr::V4)
        }
        IpAddr::V6(destination) => route_source6(router, info, hop?.oif, destination),
    }
}

/// The VRF that a flow is in, where it leaves by a link outside. Linux: `fib_select_path`, which takes the source of a route inside
/// the VRF only.
fn left_vrf(router: &Router, flow: &Flow, hop: Option<&Hop>) -> Option<u32> {
    let table = flow.l3mdev?;
    let vrf = router.links.vrf_with_table(table)?.index;
    let leaves_by = router.links.vrf_of(hop?.oif).map(|vrf| vrf.index);
    (leaves_by != Some(vrf)).then_some(vrf)
}

/// The address that the router would send from. Linux: `ip6_route_get_saddr`.
pub(super) fn route_source6(router: &Router, info: &Info, oif: u32, destination: Ipv6Addr) -> Option<IpAddr> {
    if info.source.is_some() {
        return info.source;
    }
    if info.kind == libc::RTN_LOCAL {
        return Some(destination.into());
    }
    // RFC 6724 section 5, rule 2: of the addresses of no smaller scope that of the smallest.
    let of_link = group_scope(destination).is_some_and(|scope| scope <= LINK_SCOPE);
    let on_link = destination.is_unicast_link_local() || of_link;
    let own = router.addresses.v6(oif).iter().map(|address| address.local);
    let link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let near = own.clone().find(|address| on_link && link_local(address));
    near.or_else(|| source6_to(router, oif, destination).map(IpAddr::V6))
}

/// Whether a flow of the control thread's own look-ups matches. Linux: `fib_rule_match`.
pub(crate) fn rule_matches(router: &Router, rule: &Rule, flow: &Flow) -> bool {
    let link = |name: &str, index: u32| {
        let named = router.links.named(name).map(|link| link.index);
        name.is_empty() || index != 0 && named == Some(index)
    };
    let inside = |prefix: Option<Prefix>, address: Option<IpAddr>| {
        prefix.is_none_or(|prefix| prefix.contains(address.map_or(0, bits)))
    };
    let port = |ports: Option<Ports>, port: u16| ports.is_none_or(|ports| ports.compile().takes(port));
    let matches = link(&rule.iif, flow.iif)
        && link(&rule.oif, flow.oif)
        && (flow.mark ^ rule.mark) & rule.mask == 0
        && (!rule.l3mdev || flow.l3mdev.is_some())
        && inside(rule.source, flow.source)
        && inside(rule.destination, Some(flow.destination))
        && (rule.tos == 0 || rule.tos == flow.tos)
        && rule.dscp.is_none_or(|(dscp, mask)| (dscp ^ flow.tos) & mask == 0)
        // Nobody asks for the route of a flow with a label.
        && rule.flow_label.is_none_or(|(label, mask)| label & mask == 0)
        && (rule.ip_protocol == 0 || rule.ip_protocol == flow.protocol)
        && port(rule.source_port, flow.source_port)
        && port(rule.destination_port, flow.destination_port);
    matches != rule.invert
}

/// Of IPv6 routes to a prefix the one that packets take which had better leave by a link: of those of the best metric the
/// first by the link, or the first.
pub(super) fn preferred(router: &Router, ids: &[InfoId], link: u32) -> Option<InfoId> {
    let info = |id: &InfoId| router.routes.infos.get(*id);
    let best = info(ids.first()?)?.metric;
    let leads = |id: &&InfoId| {
        info(id).is_some_and(|info| {
            info.metric == best && ways_of(router, info).iter().any(|hop| !hop.dead && hop.oif == link)
        })
    };
    ids.iter().find(leads).or(ids.first()).copied()
}
