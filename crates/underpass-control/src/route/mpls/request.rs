//! `RTM_NEWROUTE`, `RTM_DELROUTE` and `RTM_GETROUTE` of label routes. Linux: `rtm_to_route_config`,
//! `mpls_route_add`, `mpls_getroute`.

use libc::{EEXIST, EINVAL, ENETUNREACH, ENODEV, ENOENT, EOPNOTSUPP, RT_SCOPE_UNIVERSE, RTN_UNICAST};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_engine::tables::MAX_LABEL_NEXT_HOPS;
use underpass_netlink::mpls::{MAX_LABELS, Via, parse_labels, parse_via};
use underpass_netlink::{Attribute, Attributes, Replies, RequestError, Type, Validate, policy};

use super::dump::{notify_label, write_label};
use super::object::label_ways;
use super::publish::{forget_label, set_label};
use super::{FIRST_UNRESERVED, LabelNextHop, NONE, OWN_LABELS, RTA_NEWDST, RTA_TTL_PROPAGATE, Spec, Stack};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::route::config::{
    ATTRIBUTES, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_NH_ID, RTA_OIF, RTA_VIA, RTMSG, RTNH,
    RouteHeader,
};
use crate::route::encode::found_hop;
use crate::route::lookup::look_up;
use crate::route::rule::Flow;
use crate::{Request, Router};

const POLICY: [Type; ATTRIBUTES] = policy(&[
    (RTA_DST, Type::U32),
    (RTA_OIF, Type::U32),
    (RTA_TTL_PROPAGATE, Type::U8),
    (RTA_NH_ID, Type::U32),
]);

/// Bits of a label.
const LABEL_BITS: u8 = 20;
/// `RTM_F_FIB_MATCH`: the route as it is in the table.
const RTM_F_FIB_MATCH: u32 = 0x2000;

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

struct Config {
    label: Option<u32>,
    protocol: u8,
    propagate: Option<bool>,
    /// Looked at last, as by Linux.
    ways: Result<Vec<LabelNextHop>, RequestError>,
    /// The next-hop object that has the ways.
    object: Option<u32>,
}

/// `RTM_NEWROUTE`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let config = parse(request)?;
    let flags = request.message.flags;
    let label = match config.label {
        Some(label) => label,
        None if flags & NLM_F_CREATE != 0 => free_label(router),
        None => NONE,
    };
    check_label(router, label)?;
    if flags & NLM_F_APPEND != 0 {
        return Err(RequestError::new(EOPNOTSUPP, "MPLS does not support route append"));
    }
    let there = router.routes.labels.get(label).is_some();
    if there && (flags & NLM_F_EXCL != 0 || flags & NLM_F_REPLACE == 0) {
        return Err(RequestError::errno(EEXIST));
    }
    if !there && flags & NLM_F_CREATE == 0 {
        return Err(RequestError::errno(ENOENT));
    }
    let Config { protocol, propagate, ways, object, .. } = config;
    let mut ways = match object {
        Some(object) => label_ways(router, object)?,
        None => ways?,
    };
    for way in &mut ways {
        way.oif = link_of_way(router, way)?;
    }
    let stacks = match object {
        Some(_) => [Stack::new()].into(),
        None => ways.iter_mut().map(|way| own_stack(router, way)).collect(),
    };
    set_label(router, label, Some((Spec { protocol, propagate, ways: ways.into(), object }, stacks)))?;
    notify_label(
        router,
        Cause::from(request),
        libc::RTM_NEWROUTE,
        if there { NLM_F_REPLACE } else { 0 },
        label,
    );
    Ok(Outcome::Done)
}

/// `RTM_DELROUTE`, which succeeds where there is no route.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let config = parse(request)?;
    let label = config.label.unwrap_or(NONE);
    check_label(router, label)?;
    if router.routes.labels.get(label).is_some() {
        notify_label(router, Cause::from(request), libc::RTM_DELROUTE, 0, label);
        forget_label(router, label);
    }
    Ok(Outcome::Done)
}

/// `RTM_GETROUTE` of one label.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let (header, attributes) = request.parse::<RTMSG, ATTRIBUTES>(&POLICY, request.validate())?;
    let header = RouteHeader::read(&header);
    if request.strict {
        let bits = |len| len != 0 && len != LABEL_BITS;
        if bits(header.dst_len) || header.src_len != 0 || header.tos != 0 || header.table != 0 {
            return Err(refuse("mpls_router: Invalid values in header for get route request"));
        }
        if header.flags & !RTM_F_FIB_MATCH != 0 {
            return Err(refuse("mpls_router: Invalid flags for get route request"));
        }
        if attributes.iter().any(|attribute| ![RTA_DST, RTA_NEWDST].contains(&attribute.kind)) {
            return Err(refuse("mpls_router: Unsupported attribute in get route request"));
        }
    }
    let Some(destination) = attributes.get(RTA_DST) else { return Err(RequestError::errno(EINVAL)) };
    let label = only_label(&destination)?;
    check_label(router, label)?;
    if router.routes.labels.get(label).is_none() {
        return Err(RequestError::errno(ENETUNREACH));
    }
    let whole = header.flags & RTM_F_FIB_MATCH != 0;
    replies.message(libc::RTM_NEWROUTE, 0, request.reply_to(), |reply| {
        write_label(router, reply, label, whole);
    })?;
    Ok(Outcome::Done)
}

fn parse(request: &Request<'_>) -> Result<Config, RequestError> {
    let (header, attributes) = request.parse::<RTMSG, ATTRIBUTES>(&POLICY, Validate::Liberal)?;
    let header = RouteHeader::read(&header);
    let checks = [
        (header.dst_len != LABEL_BITS, "rtm_dst_len must be 20 for MPLS"),
        (header.src_len != 0, "rtm_src_len must be 0 for MPLS"),
        (header.tos != 0, "rtm_tos must be 0 for MPLS"),
        (u32::from(header.table) != RT_TABLE_MAIN, "MPLS only supports the main route table"),
        (header.scope != RT_SCOPE_UNIVERSE, "Invalid route scope  - MPLS only supports UNIVERSE"),
        (header.kind != RTN_UNICAST, "Invalid route type - MPLS only supports UNICAST"),
        (header.flags != 0, "rtm_flags must be 0 for MPLS"),
    ];
    if let Some((_, message)) = checks.into_iter().find(|(wrong, _)| *wrong) {
        return Err(refuse(message));
    }
    let of_ways = [RTA_OIF, RTA_NEWDST, RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH];
    let known = [&of_ways[..], &[RTA_DST, RTA_TTL_PROPAGATE, RTA_NH_ID]].concat();
    if let Some(unknown) = attributes.iter().find(|attribute| !known.contains(&attribute.kind)) {
        return Err(unknown.invalid("Unknown attribute"));
    }
    if let Some(gateway) = attributes.get(RTA_GATEWAY) {
        return Err(gateway.invalid("MPLS does not support RTA_GATEWAY attribute"));
    }
    let propagate = match attributes.get(RTA_TTL_PROPAGATE).map(|value| (value.u8(), value)) {
        Some((2.., value)) => return Err(value.invalid("RTA_TTL_PROPAGATE can only be 0 or 1")),
        Some((propagate, _)) => Some(propagate == 1),
        None => None,
    };
    let label = attributes.get(RTA_DST).as_ref().map(only_label).transpose()?;
    let object = attributes.get(RTA_NH_ID).map(|id| id.u32());
    if object.is_some() && of_ways.into_iter().any(|of_ways| attributes.get(of_ways).is_some()) {
        return Err(refuse("Nexthop specification and nexthop id are mutually exclusive"));
    }
    let oif = attributes.get(RTA_OIF).map_or(0, |oif| oif.u32());
    let single = way(&attributes, oif)?;
    let ways = match attributes.get(RTA_MULTIPATH) {
        Some(multipath) => several(&multipath),
        None => Ok(vec![single]),
    };
    Ok(Config { label, protocol: header.protocol, propagate, ways, object })
}

fn way(attributes: &Attributes<'_, ATTRIBUTES>, oif: u32) -> Result<LabelNextHop, RequestError> {
    let labels = attributes.get(RTA_NEWDST).map(|labels| parse_labels(&labels, MAX_LABELS)).transpose()?;
    let via = attributes.get(RTA_VIA).map(|via| parse_via(&via)).transpose()?;
    Ok(LabelNextHop { oif, via, weight: 1, labels: labels.unwrap_or_default() })
}

/// Linux: `mpls_nh_build_multi`, which takes neither weights nor flags.
fn several(multipath: &Attribute<'_>) -> Result<Vec<LabelNextHop>, RequestError> {
    let mut ways = Vec::new();
    let (mut rest, mut offset) = (multipath.value, multipath.offset as usize + 4);
    while let Some((fixed, _)) = rest.split_first_chunk::<RTNH>() {
        let [a, b, flags, weight, oif @ ..] = *fixed;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let Some(inside) = rest.get(RTNH..len).filter(|_| flags == 0 && weight == 0) else {
            return Err(RequestError::errno(EINVAL));
        };
        let attributes: Attributes<'_, ATTRIBUTES> =
            Attributes::parse(&POLICY, inside, offset + RTNH, Validate::Liberal)?;
        ways.push(way(&attributes, u32::from_ne_bytes(oif))?);
        let step = len.next_multiple_of(4);
        rest = rest.get(step..).unwrap_or_default();
        offset += step;
    }
    let wrong = ways.is_empty() || ways.len() > MAX_LABEL_NEXT_HOPS;
    if wrong { Err(refuse("Route does not contain a nexthop")) } else { Ok(ways) }
}

/// Takes the labels of a way that its route has, not its spec: two at most, of packets that go on.
fn own_stack(router: &Router, way: &mut LabelNextHop) -> Stack {
    let goes_on = way.via.is_some() || router.links.get(way.oif).is_some_and(|link| link.port().is_some());
    if goes_on && way.labels.len() <= OWN_LABELS {
        std::mem::take(&mut way.labels).into_iter().collect()
    } else {
        Stack::new()
    }
}

/// Linux: `mpls_label_ok`.
fn check_label(router: &Router, label: u32) -> Result<(), RequestError> {
    if label < FIRST_UNRESERVED {
        return Err(refuse("Invalid label - must be MPLS_LABEL_FIRST_UNRESERVED or higher"));
    }
    if label as usize >= router.routes.labels.routes.len() {
        return Err(refuse("Label >= configured maximum in platform_labels"));
    }
    Ok(())
}

/// Linux: `find_free_label`.
fn free_label(router: &Router) -> u32 {
    let labels = &router.routes.labels;
    let all = FIRST_UNRESERVED..labels.routes.len() as u32;
    all.into_iter().find(|&label| labels.get(label).is_none()).unwrap_or(NONE)
}

/// Linux: `find_outdev`, `mpls_nh_assign_dev`.
fn link_of_way(router: &Router, way: &LabelNextHop) -> Result<u32, RequestError> {
    let index = match (way.oif, way.via) {
        (0, Some(Via::Ip(address))) => {
            let found = look_up(router, &Flow::to(address)).map_err(RequestError::errno)?;
            found_hop(router, &found).map_or(0, |hop| hop.oif)
        }
        (index, _) => index,
    };
    let link = router.links.get(index).ok_or(RequestError::errno(ENODEV))?;
    if way.via.is_none() && link.port().is_none() && link.vrf_table().is_none() {
        let ends = link.kind == crate::LinkKind::Loopback;
        return if ends { Ok(index) } else { Err(no_port()) };
    }
    let tunnel = router.tunnels.id(index).is_some();
    if way.via.is_some() && link.port().is_none() && router.live.is_none() && !tunnel {
        return Err(no_port());
    }
    Ok(index)
}

fn no_port() -> RequestError {
    RequestError::new(EOPNOTSUPP, "MPLS through a device without a port is not supported by this router")
}

/// The label that a route is for.
fn only_label(attribute: &Attribute<'_>) -> Result<u32, RequestError> {
    parse_labels(attribute, 1)?.first().copied().ok_or(RequestError::errno(EINVAL))
}
