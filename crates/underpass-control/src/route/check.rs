//! Whether the ways of a new route can be taken. Linux: `fib_check_nh`, `fib6_nh_init`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libc::{EBADF, EHOSTUNREACH, EINVAL, ENETDOWN, ENODEV, EOPNOTSUPP};
use underpass_netlink::seg6local::{Action, FLAVOR_REPLACE_CSID, Seg6Local};
use underpass_netlink::tunnel::Kind;
use underpass_netlink::{Encap, RequestError};

use super::config::{HopConfig, RT_TABLE_LOCAL, RT_TABLE_MAIN, RTNH_F_ONLINK, RTNH_F_PERVASIVE};
use super::info::{Hop, Tunnel};
use super::lookup::{address_type4, l3mdev_table, look_up, look_up_in, own_address6, type_error, ways_of};
use super::rule::Flow;
use super::table::Family;
use crate::link::LinkKind;
use crate::sysctl::{self, Instance};
use crate::{Program, Router};

const RT_SCOPE_LINK: u8 = libc::RT_SCOPE_LINK;

/// What the ways belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub table: u32,
    pub scope: u8,
    pub kind: u8,
    /// IPv6: the destination is a loopback address.
    pub loopback: bool,
}

/// The encapsulation of a way, its counter not yet allocated.
pub(crate) fn check_tunnel(
    router: &Router,
    config: &HopConfig<'_>,
    family: Family,
) -> Result<Option<Tunnel>, RequestError> {
    let Some((kind, encap)) = &config.encap else { return Ok(None) };
    let mut encap = Encap::parse(*kind, encap, family.number())?;
    let mut program = None;
    if let Encap::Seg6Local(local) = &mut encap
        && let Some(bpf) = &mut local.bpf
    {
        let loaded = named_program(router, bpf.program)?;
        bpf.program = loaded.id();
        program = Some(loaded);
    }
    if let Encap::Seg6Local(local) = &encap
        && let Some(table) = local.vrf_table
    {
        // Linux: `seg6_end_dt_vrf_build`.
        if router.sysctls.value(&sysctl::STRICT_MODE, Instance::One) != 1 {
            return Err(RequestError::new(libc::EPERM, "Strict mode for VRF is disabled"));
        }
        if router.links.vrf_with_table(table).is_none() {
            return Err(RequestError::new(ENODEV, "Table has no associated VRF device"));
        }
    }
    if let Encap::Seg6Local(Seg6Local { flavors: Some(flavors), .. }) = &encap
        && flavors.operations & FLAVOR_REPLACE_CSID != 0
        && !router.experimental
    {
        let text =
            "REPLACE-CSID is experimental: Linux has no number for it. Start the router with --experimental";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    if let Encap::Seg6Local(local) = &encap
        && local.action.is_experimental()
        && !router.experimental
    {
        // Linux's answer to an action that it does not have.
        return Err(RequestError::errno(EINVAL));
    }
    if let Encap::Seg6Local(Seg6Local { action: Action::EndDT2U | Action::EndDT2M, oif: Some(oif), .. }) =
        &encap
        && !router.links.get(*oif).is_some_and(|link| link.kind == LinkKind::Tunnel(Kind::Srv6L2))
    {
        let text = "oif of End.DT2U and End.DT2M has to be an srv6l2 device";
        return Err(RequestError::new(EINVAL, text));
    }
    if let Encap::Rpl(route) = &encap
        && route.loops(|address| router.addresses.is_local(address.into()))
    {
        return Err(RequestError::errno(EINVAL));
    }
    let program = program.map(Box::new);
    Ok(Some(Tunnel { encap: Arc::new(encap), counter: None, program }))
}

/// Checks that the Arg.FE2 of a SID begins where the prefix of its route ends; what has no prefix, an object, has none.
pub(crate) fn check_argument(hop: &Hop, prefix: Option<u8>) -> Result<(), RequestError> {
    match hop.encap() {
        Some(Encap::Seg6Local(Seg6Local { fe2: Some(argument), .. })) if prefix != Some(argument.at) => {
            Err(RequestError::new(EINVAL, "Arg.FE2 has to begin where the prefix of the route ends"))
        }
        _ => Ok(()),
    }
}

/// Checks one way of an IPv4 route.
pub(crate) fn check_hop4(
    router: &mut Router,
    owner: Owner,
    config: &HopConfig<'_>,
) -> Result<Hop, RequestError> {
    let tunnel = check_tunnel(router, config, Family::V4)?;
    let onlink = config.flags & RTNH_F_ONLINK != 0;
    let oif = match config.gateway {
        None => check_no_gateway(router, config)?,
        Some(IpAddr::V4(gateway)) => check_gateway4(router, owner, config, gateway)?,
        Some(IpAddr::V6(gateway)) => {
            let owner = Owner { loopback: false, ..owner };
            check_gateway6(router, owner, config, gateway)?
        }
    };
    let weight = config.weight.max(1);
    Ok(Hop { oif, gateway: config.gateway, onlink, dead: false, weight, tunnel })
}

/// Linux: `fib_check_nh_nongw`.
fn check_no_gateway(router: &Router, config: &HopConfig<'_>) -> Result<u32, RequestError> {
    if config.flags & (RTNH_F_PERVASIVE | RTNH_F_ONLINK) != 0 {
        let message = "Invalid flags for nexthop - PERVASIVE and ONLINK can not be set";
        return Err(RequestError::new(EINVAL, message));
    }
    let link = router.links.get(config.oif).ok_or(RequestError::errno(ENODEV))?;
    if !link.up() {
        return Err(RequestError::new(ENETDOWN, "Device for nexthop is not up"));
    }
    Ok(config.oif)
}

/// Linux: `fib_check_nh_v4_gw`.
fn check_gateway4(
    router: &mut Router,
    owner: Owner,
    config: &HopConfig<'_>,
    gateway: Ipv4Addr,
) -> Result<u32, RequestError> {
    if config.flags & RTNH_F_ONLINK != 0 {
        if owner.scope >= RT_SCOPE_LINK {
            return Err(RequestError::new(EINVAL, "Nexthop has invalid scope"));
        }
        let missing = RequestError::new(ENODEV, "Nexthop device required for onlink");
        let link = router.links.get(config.oif).ok_or(missing)?;
        if !link.up() {
            return Err(RequestError::new(ENETDOWN, "Nexthop device is not up"));
        }
        let table = l3mdev_table(router, config.oif).unwrap_or(RT_TABLE_LOCAL);
        if address_type4(router, gateway, table) != libc::RTN_UNICAST {
            return Err(RequestError::new(EINVAL, "Nexthop has invalid gateway"));
        }
        return Ok(config.oif);
    }
    let known = router.routes.gateways.find(owner.table, gateway.into(), config.oif, owner.scope);
    if let Some(link) = known {
        return Ok(link);
    }
    // The device of a VRF says where to look, not by which link. Linux: `l3mdev_update_flow`.
    let vrf = router.links.get(config.oif).is_some_and(|link| link.vrf_table().is_some());
    let flow = Flow {
        oif: if vrf { 0 } else { config.oif },
        iif: 1,
        scope: owner.scope.saturating_add(1).max(RT_SCOPE_LINK),
        l3mdev: l3mdev_table(router, config.oif),
        ..Flow::to(gateway.into())
    };
    let bad = |errno| RequestError::new(errno, "Nexthop has invalid gateway");
    let own = Some(owner.table).filter(|&table| table != 0 && table != RT_TABLE_MAIN);
    let usable = |id| {
        let info = router.routes.infos.get(id);
        info.is_some_and(|info| type_error(info.kind).is_none())
    };
    let found = own.and_then(|table| look_up_in(router, Family::V4, table, &flow));
    let found = match found.filter(|found| usable(found.id)) {
        Some(found) => found,
        None => look_up(router, &flow).map_err(bad)?,
    };
    let info = router.routes.infos.get(found.id).ok_or(bad(EINVAL))?;
    if !matches!(info.kind, libc::RTN_UNICAST | libc::RTN_LOCAL) {
        return Err(bad(EINVAL));
    }
    let ways = ways_of(router, info);
    let oif = ways.get(found.way).map_or(0, |hop| hop.oif);
    let none = RequestError::new(EINVAL, "No egress device for nexthop gateway");
    let link = router.links.get(oif).ok_or(none)?;
    if !link.up() {
        return Err(RequestError::errno(ENETDOWN));
    }
    router.routes.gateways.add(owner.table, gateway.into(), config.oif, owner.scope, oif);
    Ok(oif)
}

/// Checks one way of an IPv6 route; says too whether the route is one over the loopback link, which
/// discards (Linux: `fib6_is_reject`).
pub(crate) fn check_hop6(
    router: &mut Router,
    owner: Owner,
    config: &HopConfig<'_>,
) -> Result<(Hop, bool), RequestError> {
    let link = router.links.get(config.oif).filter(|link| link.ipv6());
    if config.oif != 0 && link.is_none() {
        return Err(RequestError::errno(ENODEV));
    }
    if config.flags & RTNH_F_ONLINK != 0 {
        let link = link.ok_or(RequestError::new(ENODEV, "Nexthop device required for onlink"))?;
        if !link.up() {
            return Err(RequestError::new(ENETDOWN, "Nexthop device is not up"));
        }
    }
    let over_loopback = link.is_some_and(|link| link.kind == crate::LinkKind::Loopback);
    let local = matches!(owner.kind, libc::RTN_LOCAL | libc::RTN_ANYCAST);
    let reject = type_error(owner.kind).is_some() || (over_loopback && !owner.loopback && !local);
    let onlink = config.flags & RTNH_F_ONLINK != 0;
    let weight = config.weight.max(1);
    let mut hop = Hop { oif: 1, gateway: None, onlink, dead: false, weight, tunnel: None };
    if type_error(owner.kind).is_some() {
        return Ok((hop, true));
    }
    if reject {
        // Linux looks for the gateway first.
        if let Some(IpAddr::V6(gateway)) = config.gateway {
            check_gateway6(router, owner, config, gateway)?;
        }
        hop.tunnel = check_tunnel(router, config, Family::V6)?;
        return Ok((hop, true));
    }
    hop.oif = config.oif;
    if let Some(IpAddr::V6(gateway)) = config.gateway {
        hop.oif = check_gateway6(router, owner, config, gateway)?;
        hop.gateway = config.gateway;
    }
    let link = router.links.get(hop.oif).ok_or(RequestError::errno(ENODEV))?;
    if !link.up() {
        return Err(RequestError::new(ENETDOWN, "Nexthop device is not up"));
    }
    hop.tunnel = check_tunnel(router, config, Family::V6)?;
    Ok((hop, false))
}

/// Linux: `ip6_validate_gw`.
fn check_gateway6(
    router: &mut Router,
    owner: Owner,
    config: &HopConfig<'_>,
    gateway: Ipv6Addr,
) -> Result<u32, RequestError> {
    let onlink = config.flags & RTNH_F_ONLINK != 0;
    let known = router.routes.gateways.find(owner.table, gateway.into(), config.oif, owner.scope);
    if let Some(link) = known.filter(|_| !onlink) {
        return Ok(link);
    }
    let link_local = gateway.is_unicast_link_local();
    let own = |router: &Router, link: u32| {
        let table = l3mdev_table(router, link).unwrap_or(RT_TABLE_LOCAL);
        own_address6(router, gateway, table, link_local.then_some(link))
    };
    let local = RequestError::new(EINVAL, "Gateway can not be a local address");
    if config.oif != 0 && own(router, config.oif) {
        return Err(local);
    }
    let mut oif = config.oif;
    if !link_local {
        let mapped = gateway.to_ipv4_mapped().is_some();
        let odd = gateway.is_multicast() || gateway.is_unspecified() || gateway.is_loopback();
        if odd && !mapped {
            return Err(RequestError::new(EINVAL, "Invalid gateway address"));
        }
        if onlink {
            check_onlink6(router, config.oif, gateway)?;
        } else {
            oif = reach6(router, owner.table, oif, gateway).ok_or(RequestError::errno(EHOSTUNREACH))?;
        }
    }
    let link = router.links.get(oif).ok_or(RequestError::new(EINVAL, "Egress device not specified"))?;
    if link.kind == crate::LinkKind::Loopback {
        let message = "Egress device can not be loopback device for this route";
        return Err(RequestError::new(EINVAL, message));
    }
    if config.oif == 0 && own(router, oif) {
        return Err(local);
    }
    if !onlink {
        router.routes.gateways.add(owner.table, gateway.into(), config.oif, owner.scope, oif);
    }
    Ok(oif)
}

/// The link by which a gateway is a neighbour. Linux: `ip6_route_check_nh`.
fn reach6(router: &Router, table: u32, oif: u32, gateway: Ipv6Addr) -> Option<u32> {
    // Linux: `fib6_rule_suppress` looks at what forwards packets alone, which `fib6_lookup` does not make.
    let l3mdev = l3mdev_table(router, oif);
    let flow = Flow { oif, l3mdev, unsuppressed: true, ..Flow::to(gateway.into()) };
    let direct = |found: super::lookup::Found| {
        let info = router.routes.infos.get(found.id)?;
        if info.reject || type_error(info.kind).is_some() {
            return None;
        }
        let ways = ways_of(router, info);
        let hop = ways.get(found.way).filter(|hop| hop.gateway.is_none())?;
        Some(hop.oif).filter(|&link| oif == 0 || link == oif)
    };
    let own = look_up_in(router, Family::V6, table, &flow).and_then(direct);
    own.or_else(|| look_up(router, &flow).ok().and_then(direct))
}

/// Linux: `ip6_route_check_nh_onlink`.
fn check_onlink6(router: &Router, oif: u32, gateway: Ipv6Addr) -> Result<(), RequestError> {
    let table = l3mdev_table(router, oif).unwrap_or(RT_TABLE_MAIN);
    let found = look_up_in(router, Family::V6, table, &Flow::to(gateway.into()));
    let Some(found) = found.filter(|found| found.prefix.len > 0 || found.prefix.bits != 0) else {
        return Ok(());
    };
    let Some(info) = router.routes.infos.get(found.id) else { return Ok(()) };
    let same = ways_of(router, info).get(found.way).is_some_and(|hop| hop.oif == oif);
    let rejects = info.reject || type_error(info.kind).is_some();
    if !rejects && (info.kind != libc::RTN_UNICAST || !same) {
        return Err(RequestError::new(EINVAL, "Nexthop has invalid gateway or device mismatch"));
    }
    Ok(())
}

/// The program that a request names. Linux: `bpf_prog_get_type`.
fn named_program(router: &Router, number: u32) -> Result<Program, RequestError> {
    let offered = router.programs.iter().find(|(offered, _)| *offered == number);
    offered.map_or(Err(RequestError::errno(EBADF)), |(_, program)| program.clone())
}
