//! The kernel's next-hop objects.

use std::collections::BTreeSet;

use underpass_netlink::{RequestError, Type, Validate, policy};

use super::request::{
    HEADER, MAX, MEMBER, NHA_BLACKHOLE, NHA_ENCAP, NHA_ENCAP_TYPE, NHA_FDB, NHA_GATEWAY, NHA_GROUP, NHA_ID,
    NHA_OIF, RTM_DELNEXTHOP, put_object, remove_object, with_counter,
};
use super::{Kind, Object};
use crate::events::Cause;
use crate::route::check::check_tunnel;
use crate::route::config::{HopConfig, RTNH_F_DEAD, RTNH_F_ONLINK};
use crate::route::info::{Hop, Origin};
use crate::route::reported::{is_whole, understands_object};
use crate::route::table::Family;
use crate::{Request, Router};

const REPORTED: [Type; MAX] = policy(&[]);

/// `RTM_NEWNEXTHOP` and `RTM_DELNEXTHOP` of the kernel.
pub(crate) fn mirror_object(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    let (header, attributes) = request.parse::<HEADER, MAX>(&REPORTED, Validate::Liberal)?;
    let [family, _, protocol, _, a, b, c, d] = header;
    let flags = u32::from_ne_bytes([a, b, c, d]);
    let id = attributes.get(NHA_ID).map_or(0, |id| id.u32());
    if request.message.kind == RTM_DELNEXTHOP {
        unmirror_object(router, id);
        return Ok(());
    }
    if attributes.get(NHA_FDB).is_some() {
        return Ok(()); // of bridges
    }
    if let Some(unseen) = router.unseen() {
        unseen.objects.remove(&id);
    }
    let mut origin = Origin::Kernel;
    if !understands_object(&request.message, HEADER) {
        origin = Origin::KernelAlone;
    }
    let kind = if let Some(group) = attributes.get(NHA_GROUP) {
        let member = |&[a, b, c, d, low, high, ..]: &[u8; MEMBER]| {
            let weight = u16::from_le_bytes([low, high]).saturating_add(1);
            (u32::from_ne_bytes([a, b, c, d]), weight)
        };
        Kind::Group(group.value.as_chunks().0.iter().map(member).collect())
    } else if attributes.get(NHA_BLACKHOLE).is_some() {
        Kind::Blackhole
    } else {
        let encap = attributes.get(NHA_ENCAP);
        let encap_kind = attributes.get(NHA_ENCAP_TYPE).map_or(0, |kind| kind.u16());
        let config = HopConfig {
            oif: attributes.get(NHA_OIF).map_or(0, |oif| oif.u32()),
            gateway: attributes.get(NHA_GATEWAY).and_then(|gateway| gateway.address(family)),
            flags,
            weight: 1,
            encap: encap.map(|encap| (encap_kind, encap)),
        };
        let tunnel = check_tunnel(router, &config, Family::from_number(family).unwrap_or(Family::V4));
        let known = match (&tunnel, &config.encap) {
            (Ok(Some(tunnel)), Some((_, reported))) => is_whole(&tunnel.encap, reported),
            (Ok(None), None) => true,
            _ => false,
        };
        if !known {
            origin = Origin::KernelAlone;
        }
        Kind::Single(Hop {
            oif: config.oif,
            gateway: config.gateway,
            onlink: flags & RTNH_F_ONLINK != 0,
            dead: flags & RTNH_F_DEAD != 0,
            weight: 1,
            tunnel: tunnel.ok().flatten().filter(|_| known),
        })
    };
    if router
        .routes
        .objects
        .get(id)
        .is_some_and(|old| old.origin == Origin::Own || old.kind == kind && old.origin == origin)
    {
        return Ok(());
    }
    if origin == Origin::KernelAlone {
        router.log_left("next-hop object", "what this router does not know");
    }
    let kind = with_counter(router, kind);
    put_object(router, id, Object { family, protocol, kind, origin });
    Ok(())
}

fn unmirror_object(router: &mut Router, id: u32) {
    if router.routes.objects.get(id).is_some_and(|object| object.origin != Origin::Own) {
        remove_object(router, Cause::default(), id);
    }
}

/// The ids of the kernel's objects.
pub(crate) fn mirrored_objects(router: &Router) -> impl Iterator<Item = u32> {
    let objects = router.routes.objects.by_id.iter();
    objects.filter(|(_, object)| object.origin != Origin::Own).map(|(id, _)| *id)
}

/// Removes what a dump has not named.
pub(crate) fn sweep_objects(router: &mut Router, unseen: &BTreeSet<u32>) {
    unseen.iter().for_each(|&id| unmirror_object(router, id));
}
