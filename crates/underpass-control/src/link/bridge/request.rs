//! `bridge link set`, `bridge vlan`: requests of `AF_BRIDGE` for links. Linux: `rtnl_bridge_setlink` of `net/core/rtnetlink.c`,
//! `br_setlink` of `net/bridge/br_netlink.c`.

use std::ops::RangeInclusive;

use libc::{EINVAL, ENODEV, EOPNOTSUPP, ERANGE};
use underpass_netlink::bridge::VLAN_TUNNEL;
use underpass_netlink::{Attribute, Attributes, RequestError, Type, Validate, policy};

use super::super::{Link, valid_mac};
use super::query::{
    IFLA_BRIDGE_VLAN_INFO, IFLA_BRIDGE_VLAN_TUNNEL_INFO, PVID, RANGE_BEGIN, RANGE_END, TUNNEL_FLAGS,
    TUNNEL_ID, TUNNEL_VID, UNTAGGED,
};
use super::vlans::Vlans;
use super::{change_port, fdb, settle};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::request::word;
use crate::{Request, Router};

const POLICY: [Type; 66] = policy(&[
    (libc::IFLA_PROTINFO, Type::Any),
    (libc::IFLA_AF_SPEC, Type::Any),
    (libc::IFLA_EXT_MASK, Type::U32),
]);

const IFLA_BRIDGE_FLAGS: u16 = 0;
/// `BRIDGE_FLAGS_MASTER`: what the link is to its master; `BRIDGE_FLAGS_SELF`: what it is itself.
const MASTER: u16 = 1;
const SELF: u16 = 2;

/// A VLAN, or several, that a request adds or deletes.
#[derive(Clone, Debug)]
struct Said {
    ids: RangeInclusive<u16>,
    flags: u16,
}

/// `RTM_SETLINK`, `RTM_DELLINK`.
pub(crate) fn change(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, attributes) = request.parse::<16, 66>(&POLICY, Validate::Liberal)?;
    let deletes = request.message.kind == libc::RTM_DELLINK;
    let link = router.links.get(u32::from_ne_bytes(word(&header, 4)));
    let link = link.ok_or(RequestError::new(ENODEV, "unknown ifindex"))?.clone();
    let of_family = attributes.get(libc::IFLA_AF_SPEC);
    let flags = of_family.iter().flat_map(|of_family| of_family.nested());
    let flags = flags.filter(|inner| inner.kind == IFLA_BRIDGE_FLAGS).map(|inner| number(&inner)).next();
    let flags = flags.unwrap_or(Ok(0))?;
    let to_master = flags == 0 || flags & MASTER != 0;
    let itself = flags & SELF != 0;
    if to_master && link.bridge_port.is_none() && link.tunnel.is_some() && link.master.is_some() {
        let text = "vlan_tunnel needs a bridge of the router's: run --own-bridges";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    if to_master && link.bridge_port.is_none() || itself && link.bridge.is_none() {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    let mut changed = link;
    let mut flush = false;
    if let Some(port) =
        attributes.get(libc::IFLA_PROTINFO).filter(|_| !deletes && changed.bridge_port.is_some())
    {
        let (link, asked) = change_port(router, &changed, &port)?;
        (changed, flush) = (link, asked.stations);
    }
    let said = of_family.map_or(Ok(Vec::new()), |of_family| read(&of_family))?;
    let mut gone = Vec::new();
    let tunnels = of_family.map_or(Ok(Vec::new()), |of_family| networks(&of_family))?;
    let switched = changed.bridge_port.as_ref().is_some_and(|port| port.settings.has(VLAN_TUNNEL));
    if !tunnels.is_empty() && !switched {
        return Err(RequestError::errno(EINVAL));
    }
    for vni in tunnels.iter().filter(|_| !deletes).flat_map(|(ids, first)| ids.clone().zip(*first..)) {
        router.tunnels.networks.numbered(changed.index, vni.1)?;
    }
    for Said { ids, .. } in said.iter().filter(|_| !deletes) {
        check_vlans(&changed, ids)?;
    }
    if let Some(vlans) = vlans(&mut changed) {
        for Said { ids, flags } in said {
            gone.extend(change_vlans(vlans, ids, flags, deletes));
        }
        for (ids, first) in tunnels {
            for (id, vni) in ids.zip(first..) {
                match deletes {
                    true => vlans.remove_network(id),
                    false => vlans.add_network(id, vni)?,
                }
            }
        }
    }
    let cause = Cause::from(request);
    if flush {
        fdb::flush(router, cause, &changed);
    }
    let (id, bridge) = (changed.id, changed.master.filter(|_| changed.bridge_port.is_some()));
    settle(router, cause, changed);
    if let Some(bridge) = bridge {
        gone.into_iter().for_each(|vlan| fdb::forget_learned(router, cause, bridge, Some(id), vlan));
    }
    Ok(Outcome::Done)
}

/// The VLANs of a bridge or of a port, to be changed.
pub(super) fn vlans(link: &mut Link) -> Option<&mut Vlans> {
    match (&mut link.bridge_port, &mut link.bridge) {
        (Some(port), _) => Some(&mut port.vlans),
        (None, Some(bridge)) => Some(&mut bridge.vlans),
        (None, None) => None,
    }
}

/// Refuses new VLANs of a bridge that has no address, as one that has lost its last port. Linux: `__vlan_add`, which gives the address
/// an entry in each.
pub(super) fn check_vlans(link: &Link, ids: &RangeInclusive<u16>) -> Result<(), RequestError> {
    let bridge = link.bridge.as_ref().filter(|_| !valid_mac(link.mac));
    match bridge.is_some_and(|bridge| ids.clone().any(|id| !bridge.vlans.has(id))) {
        true => Err(RequestError::errno(EINVAL)),
        false => Ok(()),
    }
}

/// Adds VLANs with these flags, or deletes them; those that are gone.
pub(super) fn change_vlans(
    vlans: &mut Vlans,
    ids: RangeInclusive<u16>,
    flags: u16,
    deletes: bool,
) -> Vec<u16> {
    if !deletes {
        ids.for_each(|id| vlans.add(id, flags & PVID != 0, flags & UNTAGGED != 0));
        return Vec::new();
    }
    let gone: Vec<u16> = ids.filter(|id| vlans.has(*id)).collect();
    gone.iter().for_each(|id| vlans.remove(*id));
    gone
}

fn number(attribute: &Attribute<'_>) -> Result<u16, RequestError> {
    let bytes = <[u8; 2]>::try_from(attribute.value);
    bytes.map(u16::from_ne_bytes).map_err(|_| RequestError::errno(EINVAL))
}

/// The VLANs that a request makes networks, with the network of the first of them, in its order. Linux:
/// `br_parse_vlan_tunnel_info`, `br_process_vlan_tunnel_info`.
fn networks(of_family: &Attribute<'_>) -> Result<Vec<(RangeInclusive<u16>, u32)>, RequestError> {
    const POLICY: [Type; 4] =
        policy(&[(TUNNEL_ID, Type::U32), (TUNNEL_VID, Type::U16), (TUNNEL_FLAGS, Type::U16)]);
    let invalid = RequestError::errno(EINVAL);
    let mut all = Vec::new();
    let mut first: Option<(u16, u32)> = None;
    for inner in of_family.nested().filter(|inner| inner.kind == IFLA_BRIDGE_VLAN_TUNNEL_INFO) {
        let inner: Attributes<'_, 4> = inner.parse_nested(&POLICY, Validate::Liberal)?;
        let (Some(vni), Some(vlan)) = (inner.get(TUNNEL_ID), inner.get(TUNNEL_VID)) else {
            return Err(invalid);
        };
        let (vni, vlan) = (vni.u32(), vlan.u16());
        if vlan >= 4095 {
            return Err(RequestError::errno(ERANGE));
        }
        let flags = inner.get(TUNNEL_FLAGS).map_or(0, |flags| flags.u16());
        match (flags & RANGE_BEGIN != 0, flags & RANGE_END != 0, first) {
            (true, _, None) => first = Some((vlan, vni)),
            (false, true, Some((start, from)))
                if u32::from(vlan.wrapping_sub(start)) == vni.wrapping_sub(from) =>
            {
                all.push((start..=vlan, from));
                first = None;
            }
            (false, false, None) => all.push((vlan..=vlan, vni)),
            _ => return Err(invalid),
        }
        if vni >= NETWORKS {
            let text = "a network of more than 24 bits is not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text));
        }
    }
    Ok(all)
}

/// There are so many networks.
const NETWORKS: u32 = 1 << 24;

/// The VLANs that a request names. Linux: `br_afspec`, `br_process_vlan_info`.
fn read(of_family: &Attribute<'_>) -> Result<Vec<Said>, RequestError> {
    let mut all = Vec::new();
    let mut first: Option<(u16, u16)> = None;
    for inner in of_family.nested() {
        match inner.kind {
            IFLA_BRIDGE_FLAGS => continue,
            // IFLA_BRIDGE_MODE: that of an embedded bridge, which a bridge takes no notice of.
            1 => continue,
            IFLA_BRIDGE_VLAN_TUNNEL_INFO => continue,
            IFLA_BRIDGE_VLAN_INFO => {}
            _ => {
                let text = "Attribute is not supported by this router";
                return Err(RequestError::new(EOPNOTSUPP, text).at(inner.offset));
            }
        }
        let [a, b, c, d] = <[u8; 4]>::try_from(inner.value).map_err(|_| RequestError::errno(EINVAL))?;
        let (flags, id) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let invalid = |text| Err(RequestError::new(EINVAL, text));
        if id == 0 || id >= 4095 {
            return invalid("bridge: Vlan id is invalid");
        }
        if (first.is_some() || flags & RANGE_BEGIN != 0) && flags & PVID != 0 {
            return invalid("Pvid isn't allowed in a range");
        }
        match first {
            None if flags & RANGE_BEGIN != 0 => first = Some((id, flags)),
            None => all.push(Said { ids: id..=id, flags }),
            Some(_) if flags & RANGE_BEGIN != 0 => {
                return invalid("Found a new vlan range start while processing one");
            }
            Some(_) if flags & RANGE_END == 0 => return invalid("Vlan range end flag is missing"),
            Some((start, _)) if id <= start => {
                return invalid("End vlan id is less than or equal to start vlan id");
            }
            Some((start, flags)) => {
                all.push(Said { ids: start..=id, flags });
                first = None;
            }
        }
    }
    Ok(all)
}
