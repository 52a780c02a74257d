//! Which requests are about routes and next-hop objects of the router's own, where there is a kernel beside
//! it, and what follows in the kernel when they take the place of its own.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use underpass_netlink::{Encap, Message, RequestError};

use super::change::{ids_at, take_routes};
use super::config::{Config, HopConfig, makes_encap};
use super::info::InfoId;
use super::mirror::{replaced_by_vrf, reported_infos};
use super::request::{match4, match6};
use super::table::{Family, Ids, Place};
use crate::{Request, Router};

/// IPv6: what a route without a metric has.
const METRIC_USER6: u32 = 1024;

fn own_object(router: &Router, id: u32) -> bool {
    id != 0 && router.routes.objects.get(id).is_some_and(|object| object.origin == super::Origin::Own)
}

fn own_id(router: &Router, id: InfoId) -> bool {
    router.routes.infos.get(id).is_some_and(|info| info.own())
}

/// Whether the router has a route of its own at a place with a metric.
fn has_own(router: &Router, place: Place, metric: u32) -> bool {
    let same =
        |id: &InfoId| router.routes.infos.get(*id).is_some_and(|info| info.own() && info.metric == metric);
    ids_at(router, place).iter().any(same)
}

/// Whether `RTM_NEWROUTE` adds a route of the router's own, or meets one.
pub(crate) fn adds_own(router: &Router, request: &Request<'_>, family: Family) -> bool {
    let Ok(config) = Config::reported(request, family) else { return false };
    if is_own_config(router, &config) || own_object(router, config.nh_id) {
        return true;
    }
    let metric = if family == Family::V6 && config.metric == 0 { METRIC_USER6 } else { config.metric };
    request.message.flags & (NLM_F_EXCL | NLM_F_REPLACE) != 0
        && has_own(router, (family, config.table, config.prefix), metric)
}

/// Whether `RTM_DELROUTE` deletes a route of the router's own.
pub(crate) fn deletes_own(router: &Router, request: &Request<'_>, family: Family) -> bool {
    let Ok(config) = Config::reported(request, family) else { return false };
    let place = (family, config.table, config.prefix);
    if !ids_at(router, place).iter().any(|&id| own_id(router, id)) {
        return false;
    }
    match family {
        Family::V4 => match4(router, place, &config).is_ok_and(|position| position.is_some()),
        Family::V6 => {
            let hops = config.multipath.as_deref().unwrap_or(std::slice::from_ref(&config.hop));
            hops.iter().any(|hop| match6(router, place, &config, hop).is_some())
        }
    }
}

/// Whether a next-hop object that a request names is the router's own, or a new one would be.
pub(crate) fn is_own_object(router: &Router, request: &Request<'_>, new: bool) -> bool {
    use super::nexthop::{NHA_ENCAP, NHA_ENCAP_TYPE, NHA_GROUP, NHA_ID, NHA_OIF};
    let (mut encapsulated, mut oif) = ((false, None), 0);
    for attribute in request.message.attributes(8) {
        match attribute.kind {
            NHA_ID if own_object(router, attribute.u32()) => return true,
            NHA_OIF => oif = attribute.u32(),
            NHA_ENCAP => encapsulated.0 = true,
            NHA_ENCAP_TYPE => encapsulated.1 = Some(attribute.u16()),
            NHA_GROUP if new => {
                let mut members = attribute.value.as_chunks::<8>().0.iter();
                if members.any(|&[a, b, c, d, ..]| own_object(router, u32::from_ne_bytes([a, b, c, d]))) {
                    return true;
                }
            }
            _ => {}
        }
    }
    // The kernel would look for its gateway outside the VRF.
    if new && router.live.as_ref().is_some_and(|live| live.devices.vrf(oif).is_some()) {
        return true;
    }
    let device = router.links.get(oif).is_some_and(|link| link.tunnel.is_some());
    let makes = |kind| makes_encap(kind) && (device || !Encap::is_of_device(kind));
    new && matches!(encapsulated, (true, Some(kind)) if makes(kind))
}

/// Whether a message of the kernel is about a route that a VRF of the router's replaces.
pub(crate) fn is_replaced(router: &Router, message: &Message<'_>) -> bool {
    if !router.has_own_slaves() {
        return false;
    }
    let request = Request { message: *message, port: 0, strict: false };
    let Some(family) = Family::from_number(request.family()) else { return false };
    let Ok(config) = Config::reported(&request, family) else { return false };
    reported_infos(router, &config, family).iter().any(|info| replaced_by_vrf(router, config.table, info))
}

/// Whether a plain route of a client is to replace one of the router's own: then the kernel gets it, and
/// the router's goes.
pub(crate) fn replaces_own(
    router: &mut Router,
    request: &Request<'_>,
    config: &Config<'_>,
    family: Family,
) -> Result<bool, RequestError> {
    let plain = !is_own_config(router, config) && !own_object(router, config.nh_id);
    if router.live.is_none() || !plain || !request.replace() || request.exclusive() {
        return Ok(false);
    }
    let mut message = request.message.bytes.to_vec();
    if let Some(flags) = message.get_mut(6..8) {
        let with = request.message.flags | NLM_F_CREATE;
        flags.copy_from_slice(&with.to_ne_bytes());
    }
    router.pass_on(&mut message)?;
    let place = (family, config.table, config.prefix);
    let metric = if family == Family::V6 && config.metric == 0 { METRIC_USER6 } else { config.metric };
    let replaced =
        |id: &InfoId| router.routes.infos.get(*id).is_some_and(|info| info.own() && info.metric == metric);
    let gone: Ids = ids_at(router, place).into_iter().filter(replaced).collect();
    take_routes(router, request.into(), place, true, |id| gone.contains(id));
    Ok(true)
}

/// Whether a way of a route has an encapsulation that the router makes itself: one of parameters for a tunnel if
/// the tunnel is the router's.
fn is_own_config(router: &Router, config: &Config<'_>) -> bool {
    let device = |oif: u32| router.links.get(oif).is_some_and(|link| link.tunnel.is_some());
    let makes = |kind: u16, oif: u32| makes_encap(kind) && (device(oif) || !Encap::is_of_device(kind));
    let own = |hop: &HopConfig<'_>| hop.encap.is_some_and(|(kind, _)| makes(kind, hop.oif));
    own(&config.hop) || config.multipath.iter().flatten().any(own)
}
