//! `RTM_GETROUTE` for one destination: `ip route get`. Linux: `inet_rtm_getroute`,
//! `inet6_rtm_getroute`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EHOSTUNREACH, EINVAL, ENETUNREACH, ENODEV, EOPNOTSUPP, RTM_NEWROUTE};
use underpass_netlink::{Attributes, Replies, Reply, RequestError, Validate};

use super::change::siblings;
use super::config::{
    ATTRIBUTES, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTA_CACHEINFO, RTA_DPORT, RTA_DST, RTA_ENCAP, RTA_ENCAP_TYPE,
    RTA_GATEWAY, RTA_IIF, RTA_IP_PROTO, RTA_MARK, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_SPORT, RTA_SRC,
    RTA_TABLE, RTA_UID, RTA_VIA, RTM_F_CLONED, RTMSG, RouteHeader, route_policy,
};
use super::encode::{found_hop, route_counts, table_byte, write_metrics, write_route, write_tail6};
use super::lookup::{
    Found, blackhole_object, l3mdev_table, look_up, route_source4, route_source6, source4_for, type_error,
};
use super::rule::Flow;
use super::table::{Family, Ids};
use crate::dump::Outcome;
use crate::link::encode::in_own_vrf;
use crate::{Request, Router};

const RTM_F_NOTIFY: u32 = 0x100;
const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTCF_LOCAL: u32 = 0x8000_0000;
const RTCF_BROADCAST: u32 = 0x1000_0000;
const RTCF_MULTICAST: u32 = 0x2000_0000;
/// `INVALID_UID`.
const NOBODY: u32 = u32::MAX;

/// A question, read.
struct Question {
    flow: Flow,
    flags: u32,
    tos: u8,
    uid: u32,
}

fn texts(family: Family) -> [&'static str; 5] {
    match family {
        Family::V4 => [
            "ipv4: Invalid header for route get request",
            "ipv4: Invalid values in header for route get request",
            "ipv4: Unsupported rtm_flags for route get request",
            "ipv4: rtm_src_len and rtm_dst_len must be 32 for IPv4",
            "ipv4: Unsupported attribute in route get request",
        ],
        Family::V6 => [
            "Invalid header for get route request",
            "Invalid values in header for get route request",
            "Invalid flags for get route request",
            "rtm_src_len and rtm_dst_len must be 128 for IPv6",
            "Unsupported attribute in get route request",
        ],
    }
}

/// Linux: `inet_rtm_valid_getroute_req`, `inet6_rtm_valid_getroute_req`.
fn parse<'a>(
    request: &Request<'a>,
    family: Family,
) -> Result<(RouteHeader, Attributes<'a, ATTRIBUTES>), RequestError> {
    let [short, values, flags, lengths, attribute] =
        texts(family).map(|text| RequestError::new(EINVAL, text));
    let header = RouteHeader::read(&request.fixed::<RTMSG>().map_err(|_| short)?);
    let validate = request.validate();
    if validate == Validate::Strict {
        let whole = |len: u8| len == 0 || len == family.bits();
        if !whole(header.src_len)
            || !whole(header.dst_len)
            || header.table != 0
            || header.protocol != 0
            || header.scope != 0
            || header.kind != 0
        {
            return Err(values);
        }
        if header.flags & !(RTM_F_NOTIFY | RTM_F_LOOKUP_TABLE | RTM_F_FIB_MATCH) != 0 {
            return Err(flags);
        }
    }
    let (_, attributes) = request.parse::<RTMSG, ATTRIBUTES>(route_policy(family), validate)?;
    if validate == Validate::Strict {
        let bare = |kind, len: u8| attributes.get(kind).is_some() && len == 0;
        if bare(RTA_SRC, header.src_len) || bare(RTA_DST, header.dst_len) {
            return Err(lengths);
        }
        let known =
            [RTA_IIF, RTA_OIF, RTA_SRC, RTA_DST, RTA_MARK, RTA_UID, RTA_IP_PROTO, RTA_SPORT, RTA_DPORT];
        if attributes.iter().any(|attribute| !known.contains(&attribute.kind)) {
            return Err(attribute);
        }
    }
    Ok((header, attributes))
}

/// What a question asks about.
fn flow_of(
    router: &Router,
    header: &RouteHeader,
    attributes: &Attributes<'_, ATTRIBUTES>,
    family: Family,
) -> Result<Flow, RequestError> {
    let number = |kind| attributes.get(kind).map_or(0, |attribute| attribute.u32());
    let address = |kind| attributes.get(kind).and_then(|address| address.address(family.number()));
    let (iif, oif) = (number(RTA_IIF), number(RTA_OIF));
    if iif != 0 && router.links.get(iif).is_none() {
        return Err(RequestError::errno(ENODEV));
    }
    let l3mdev = l3mdev_table(router, if iif == 0 { oif } else { iif });
    // A VRF as the outgoing link says where to look up, not by which link. Linux: l3mdev_update_flow.
    let vrf = router.links.get(oif).is_some_and(|link| link.vrf_table().is_some());
    Ok(Flow {
        source: address(RTA_SRC).filter(|source| !source.is_unspecified()),
        iif: if iif == 0 { 1 } else { iif },
        oif: if iif == 0 && !vrf { oif } else { 0 },
        mark: number(RTA_MARK),
        tos: header.tos & !3,
        protocol: attributes.get(RTA_IP_PROTO).map_or(0, |protocol| protocol.u8()),
        source_port: attributes.get(RTA_SPORT).map_or(0, |port| port.be16()),
        destination_port: attributes.get(RTA_DPORT).map_or(0, |port| port.be16()),
        l3mdev,
        ..Flow::to(address(RTA_DST).unwrap_or(family.address(0)))
    })
}

/// Whether a question ends in a route of the router's own, or in a VRF of which the kernel does not know.
pub(crate) fn finds_own(router: &Router, request: &Request<'_>, family: Family) -> bool {
    let Ok((header, attributes)) = parse(request, family) else { return false };
    let Ok(flow) = flow_of(router, &header, &attributes, family) else { return false };
    let in_vrf = [RTA_IIF, RTA_OIF].into_iter().filter_map(|kind| attributes.get(kind));
    if in_vrf.into_iter().any(|link| in_own_vrf(router, link.u32())) {
        return true;
    }
    let found = look_up(router, &flow).ok();
    found.and_then(|found| router.routes.infos.get(found.id)).is_some_and(|info| info.own())
}

/// Answers where a packet would go.
pub(crate) fn get(
    router: &mut Router,
    request: &Request<'_>,
    family: Family,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (header, attributes) = parse(request, family)?;
    let number = |kind| attributes.get(kind).map_or(0, |attribute| attribute.u32());
    let protocol = attributes.get(RTA_IP_PROTO).map_or(0, |protocol| protocol.u8());
    if attributes.get(RTA_IP_PROTO).is_some() {
        let icmp = if family == Family::V4 { 1 } else { 58 };
        if !matches!(protocol, 6 | 17) && protocol != icmp {
            return Err(RequestError::new(EOPNOTSUPP, "Unsupported ip proto"));
        }
    }
    let flow = flow_of(router, &header, &attributes, family)?;
    let iif = number(RTA_IIF);
    let uid = match attributes.get(RTA_UID) {
        Some(uid) => uid.u32(),
        None if iif != 0 => NOBODY,
        None => 0,
    };
    // Linux does not show what it has looked up with for a packet that comes in.
    let tos = if iif == 0 { header.tos } else { 0 };
    let question = Question { flow, flags: header.flags, tos, uid };
    let to = request.reply_to();
    match family {
        Family::V4 => {
            let answer = answer4(router, &question, iif)?;
            replies.message(RTM_NEWROUTE, 0, to, |reply| write_answer4(router, reply, &question, &answer))?;
        }
        Family::V6 => {
            let found = answer6(router, &question, iif)?;
            replies.message(RTM_NEWROUTE, 0, to, |reply| {
                write_answer6(router, reply, &question, found, iif);
            })?;
        }
    }
    Ok(Outcome::Done)
}

/// Where an IPv4 packet would go.
struct Answer4 {
    found: Option<Found>,
    kind: u8,
    oif: u32,
    iif: u32,
    source: Option<Ipv4Addr>,
    /// The packet is not sent the way of the route that was found, only by its link.
    direct: bool,
}

/// What an address is by itself, whatever the routes say: a group, or everybody on the link.
const fn own_kind(destination: Ipv4Addr) -> Option<u8> {
    match destination {
        Ipv4Addr::BROADCAST => Some(libc::RTN_BROADCAST),
        _ if destination.is_multicast() => Some(libc::RTN_MULTICAST),
        _ => None,
    }
}

/// Linux: `ipv4_is_local_multicast`.
const fn link_group(destination: Ipv4Addr) -> bool {
    matches!(destination.octets(), [224, 0, 0, _])
}

/// The group of all systems, RFC 1112: the only one that the router is in.
const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

fn answer4(router: &Router, question: &Question, iif: u32) -> Result<Answer4, RequestError> {
    let flow = &question.flow;
    let (IpAddr::V4(destination), source) = (flow.destination, flow.source) else {
        return Err(RequestError::errno(EINVAL));
    };
    let source = source.and_then(|source| if let IpAddr::V4(source) = source { Some(source) } else { None });
    if iif != 0 {
        return input4(router, question, iif, destination, source);
    }
    if let Some(source) = source
        && !router.addresses.is_local(source.into())
    {
        return Err(RequestError::errno(ENETUNREACH));
    }
    let own = own_kind(destination);
    let straight = |kind, oif, source| Answer4 { found: None, kind, oif, iif: 0, source, direct: true };
    if let (Some(kind), Some(source), 0) = (own, source, flow.oif)
        && let Some(link) = router.addresses.link_of(source.into())
    {
        return Ok(straight(kind, link, Some(source)));
    }
    let out = router.links.get(flow.oif);
    if flow.oif != 0 && !out.ok_or(RequestError::errno(ENODEV))?.up() {
        return Err(RequestError::errno(ENETUNREACH));
    }
    let on_link = || source.or_else(|| source4_for(router, flow.oif, None, libc::RT_SCOPE_LINK));
    if let Some(kind) = own
        && flow.oif != 0
        && (kind == libc::RTN_BROADCAST || link_group(destination))
    {
        return Ok(straight(kind, flow.oif, on_link()));
    }
    if destination.is_unspecified() {
        return Ok(straight(libc::RTN_LOCAL, 1, source.or(Some(Ipv4Addr::LOCALHOST))));
    }
    let found = match look_up(router, flow) {
        Ok(found) => found,
        // As if the destination were on that link. Linux: ip_route_output_key_hash_rcu.
        Err(_) if flow.oif != 0 && out.is_some_and(|link| link.vrf_table().is_none()) => {
            return Ok(straight(own.unwrap_or(libc::RTN_UNICAST), flow.oif, on_link()));
        }
        Err(errno) => return Err(RequestError::errno(errno)),
    };
    let info = router.routes.infos.get(found.id).ok_or(RequestError::errno(ENETUNREACH))?;
    if blackhole_object(router, info) {
        return Err(RequestError::errno(EINVAL));
    }
    let hop = found_hop(router, &found);
    let oif = hop.as_ref().map_or(0, |hop| hop.oif);
    if info.kind == libc::RTN_LOCAL {
        let own = match info.source {
            Some(IpAddr::V4(own)) => own,
            _ => destination,
        };
        let oif = loopback_of(router, oif);
        let source = source.or(Some(own));
        return Ok(Answer4 { found: Some(found), direct: false, ..straight(info.kind, oif, source) });
    }
    let chosen = source.or_else(|| route_source4(router, info, hop.as_ref()));
    let kind = own.unwrap_or(info.kind);
    // Linux: __mkroute_output. No gateway is asked for those; nor does the default route have one.
    let direct = match kind {
        libc::RTN_BROADCAST => true,
        libc::RTN_MULTICAST => found.prefix.len < 4,
        _ => false,
    };
    Ok(Answer4 { found: Some(found), direct, ..straight(kind, oif, chosen) })
}

/// Linux: `ip_route_input_slow`.
fn input4(
    router: &Router,
    question: &Question,
    iif: u32,
    destination: Ipv4Addr,
    source: Option<Ipv4Addr>,
) -> Result<Answer4, RequestError> {
    let invalid = RequestError::errno(EINVAL);
    let source = source.ok_or(invalid.clone())?;
    if source.is_multicast() || source.is_broadcast() || source.is_loopback() || destination.is_loopback() {
        return Err(invalid);
    }
    let flow = &question.flow;
    let to_host = |found, kind| {
        let oif = loopback_of(router, iif);
        Answer4 { found, kind, oif, iif, source: Some(source), direct: true }
    };
    match own_kind(destination) {
        // Linux: ip_route_input_rcu. Of other groups there is neither a member nor a forwarder.
        Some(libc::RTN_MULTICAST) if destination != ALL_SYSTEMS => return Err(invalid),
        Some(kind) => return Ok(to_host(None, kind)),
        None => {}
    }
    let found = look_up(router, flow)
        .map_err(|errno| RequestError::errno(if errno == ENETUNREACH { EHOSTUNREACH } else { errno }))?;
    let info = router.routes.infos.get(found.id).ok_or(RequestError::errno(ENETUNREACH))?;
    let back = Flow { source: Some(destination.into()), ..Flow { destination: source.into(), ..*flow } };
    // Linux: fib_validate_source.
    if let Ok(way) = look_up(router, &back)
        && router.routes.infos.get(way.id).is_some_and(|info| info.kind != libc::RTN_UNICAST)
    {
        return Err(invalid);
    }
    let hop = found_hop(router, &found);
    let oif = hop.map_or(0, |hop| hop.oif);
    if matches!(info.kind, libc::RTN_LOCAL | libc::RTN_BROADCAST) {
        return Ok(Answer4 { oif: loopback_of(router, oif), ..to_host(Some(found), info.kind) });
    }
    Ok(Answer4 { direct: false, oif, ..to_host(Some(found), info.kind) })
}

/// The link that a packet for the router itself goes to: `lo`, or the VRF of the address's link.
fn loopback_of(router: &Router, link: u32) -> u32 {
    router.links.vrf_of(link).map_or(1, |vrf| vrf.index)
}

fn write_answer4(router: &Router, reply: &mut Reply<'_>, question: &Question, answer: &Answer4) {
    let flow = &question.flow;
    if question.flags & RTM_F_FIB_MATCH != 0
        && let Some(found) = &answer.found
    {
        let place = (Family::V4, found.table, found.prefix);
        write_route(router, reply, place, &[found.id], 0);
        return;
    }
    let way = answer.found.as_ref().filter(|_| !answer.direct);
    let info = way.and_then(|found| router.routes.infos.get(found.id));
    let hop = way.and_then(|found| found_hop(router, found));
    let table = match &answer.found {
        _ if question.flags & RTM_F_LOOKUP_TABLE == 0 => RT_TABLE_MAIN,
        // Until there is a rule more or less, Linux has both tables in one.
        Some(found) if found.table == RT_TABLE_LOCAL && !router.routes.rules.changed4 => RT_TABLE_MAIN,
        Some(found) => found.table,
        None => 0,
    };
    let flags = match answer.kind {
        libc::RTN_LOCAL => RTCF_LOCAL,
        libc::RTN_BROADCAST => RTCF_BROADCAST | RTCF_LOCAL,
        libc::RTN_MULTICAST if flow.destination == ALL_SYSTEMS => RTCF_MULTICAST | RTCF_LOCAL,
        libc::RTN_MULTICAST => RTCF_MULTICAST,
        _ => 0,
    };
    let header = RouteHeader {
        dst_len: 32,
        src_len: if flow.source.is_some() { 32 } else { 0 },
        tos: question.tos,
        table: table_byte(table),
        kind: answer.kind,
        flags: flags | RTM_F_CLONED,
        ..RouteHeader::default()
    };
    reply.fixed(&header.write(Family::V4));
    reply.u32(RTA_TABLE, table);
    reply.address(RTA_DST, flow.destination);
    if let Some(source) = flow.source {
        reply.address(RTA_SRC, source);
    }
    if answer.oif != 0 {
        reply.u32(RTA_OIF, answer.oif);
    }
    let hop = hop.filter(|_| answer.kind != libc::RTN_LOCAL);
    if let Some(tunnel) = hop.as_ref().and_then(|hop| hop.tunnel.as_ref()) {
        let counts = hop.as_ref().map(|hop| route_counts(router, hop)).unwrap_or_default();
        tunnel.encap.write(reply, RTA_ENCAP, RTA_ENCAP_TYPE, counts);
    }
    if let Some(source) = answer.source
        && answer.iif == 0
        && flow.source != Some(source.into())
    {
        reply.address(RTA_PREFSRC, source.into());
    }
    match hop.and_then(|hop| hop.gateway) {
        Some(gateway @ IpAddr::V4(_)) => reply.address(RTA_GATEWAY, gateway),
        Some(IpAddr::V6(gateway)) => {
            let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
            via.extend_from_slice(&gateway.octets());
            reply.attribute(RTA_VIA, &via);
        }
        None => {}
    }
    write_metrics(reply, info.and_then(|info| info.metrics.as_deref()));
    if flow.mark != 0 {
        reply.u32(RTA_MARK, flow.mark);
    }
    if question.uid != NOBODY {
        reply.u32(RTA_UID, question.uid);
    }
    if answer.iif != 0 {
        reply.u32(RTA_IIF, answer.iif);
    }
    reply.attribute(RTA_CACHEINFO, &[0; 32]);
}

fn answer6(router: &Router, question: &Question, _iif: u32) -> Result<Found, RequestError> {
    let found = look_up(router, &question.flow).map_err(RequestError::errno)?;
    let info = router.routes.infos.get(found.id).ok_or(RequestError::errno(ENETUNREACH))?;
    if blackhole_object(router, info) {
        return Err(RequestError::errno(EINVAL));
    }
    match type_error(info.kind) {
        Some(errno) => Err(RequestError::errno(errno)),
        None => Ok(found),
    }
}

fn write_answer6(router: &Router, reply: &mut Reply<'_>, question: &Question, found: Found, iif: u32) {
    let place = (Family::V6, found.table, found.prefix);
    let Some(info) = router.routes.infos.get(found.id) else { return };
    if question.flags & RTM_F_FIB_MATCH != 0 {
        let together =
            if info.spreads() { siblings(router, place, found.id) } else { Ids::from_slice(&[found.id]) };
        write_route(router, reply, place, &together, 0);
        return;
    }
    let IpAddr::V6(destination) = question.flow.destination else { return };
    let header = RouteHeader {
        dst_len: 128,
        src_len: 128,
        table: table_byte(found.table),
        protocol: info.protocol,
        kind: info.kind,
        ..RouteHeader::default()
    };
    reply.fixed(&header.write(Family::V6));
    reply.u32(RTA_TABLE, found.table);
    reply.address(RTA_DST, destination.into());
    reply.address(RTA_SRC, question.flow.source.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
    let hop = found_hop(router, &found);
    let link = hop.as_ref().map_or(0, |hop| hop.oif);
    if iif != 0 {
        reply.u32(RTA_IIF, iif);
    } else if let Some(source) = route_source6(router, info, link, destination) {
        reply.address(RTA_PREFSRC, source);
    }
    if let Some(source) = info.source {
        reply.address(RTA_PREFSRC, source);
    }
    write_metrics(reply, info.metrics.as_deref());
    reply.u32(RTA_PRIORITY, info.metric);
    if let Some(hop) = &hop {
        if let Some(gateway) = hop.gateway {
            reply.address(RTA_GATEWAY, gateway);
        }
        let own = matches!(info.kind, libc::RTN_LOCAL | libc::RTN_ANYCAST);
        reply.u32(RTA_OIF, if own { loopback_of(router, hop.oif) } else { hop.oif });
        if let Some(tunnel) = &hop.tunnel {
            tunnel.encap.write(reply, RTA_ENCAP, RTA_ENCAP_TYPE, route_counts(router, hop));
        }
    }
    write_tail6(reply, info, 0);
}
