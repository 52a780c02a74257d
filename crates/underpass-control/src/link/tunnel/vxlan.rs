//! VXLAN devices: what a request makes of one, and what the packet path has of it. Linux: `drivers/net/vxlan/vxlan_core.c`.

pub(crate) mod fdb;
pub(crate) mod networks;

use std::net::IpAddr;

use libc::{EADDRNOTAVAIL, EEXIST, EINVAL, ENODEV};
use underpass_netlink::tunnel::{self, Kind, Vxlan, check_ethernet};
use underpass_netlink::{Attribute, RequestError};

use super::words::{tos, ttl};
use super::{LEAST, MOST, Tunnel};
use crate::Router;
use crate::link::Link;
use crate::save::{Save, Words};

/// Seconds after which Linux forgets a station that it has learned, unless told otherwise: `FDB_AGE_DEFAULT`.
const AGEING: u32 = 300;

/// The other end of this number, of the stations of a link that has other ends.
pub(in crate::link) fn end(router: &Router, link: u32, number: u32) -> Option<IpAddr> {
    router.links.get(link).filter(|link| link.has_ends())?;
    router.tunnels.ends.address(number)
}

/// Whether a device may have such an address. Linux: `vxlan_validate`, `geneve_validate`.
pub(crate) fn validate_address(address: Option<&Attribute<'_>>) -> Result<(), RequestError> {
    let Some(address) = address else { return Ok(()) };
    check_ethernet(address).map(drop).map_err(|error| {
        let said = match error.errno {
            EADDRNOTAVAIL => "Provided Ethernet address is not unicast",
            _ => "Provided link layer address is not Ethernet",
        };
        RequestError::new(error.errno, said).at(address.offset)
    })
}

/// Whether a device may have such an address and such an MTU. Linux: `vxlan_validate`.
pub(crate) fn validate(
    address: Option<&Attribute<'_>>,
    mtu: Option<&Attribute<'_>>,
) -> Result<(), RequestError> {
    validate_address(address)?;
    match mtu {
        Some(mtu) if !(LEAST..=MOST).contains(&mtu.u32()) => {
            Err(RequestError::new(EINVAL, "MTU must be between 68 and 65535").at(mtu.offset))
        }
        _ => Ok(()),
    }
}

/// A device that a request describes. Linux: `vxlan_config_validate`, `vxlan_dev_configure`.
///
/// # Errors
/// `EEXIST`: another one has this network and this port. `ENODEV`: there is no such link below it.
pub(super) fn build(router: &Router, parameters: tunnel::Tunnel) -> Result<Tunnel, RequestError> {
    check(router, &parameters, None)?;
    Ok(Tunnel {
        parameters,
        encap: tunnel::Encap::default(),
        six_rd: tunnel::SixRd::default(),
        max_mtu: MOST,
        fallback: false,
        link_layer: None,
    })
}

fn check(router: &Router, parameters: &tunnel::Tunnel, own: Option<u32>) -> Result<(), RequestError> {
    if parameters.link != 0 && router.links.get(parameters.link).is_none() {
        return Err(RequestError::new(ENODEV, "Invalid local interface, device not found"));
    }
    let place = |tunnel: &tunnel::Tunnel| {
        let vxlan = tunnel.vxlan?;
        let place = (vxlan.vni, vxlan.port, vxlan.takes_unsummed6, tunnel.external);
        Some((place, tunnel.remote.is_ipv6()))
    };
    let mut others = router.links.iter().filter(|link| Some(link.index) != own);
    let same =
        |link: &Link| link.tunnel.as_ref().is_some_and(|other| place(&other.parameters) == place(parameters));
    if others.any(same) {
        return Err(RequestError::new(EEXIST, "A VXLAN device with the specified VNI already exists"));
    }
    Ok(())
}

/// The longest packet inside that the link below has room for, if there is one.
fn room(router: &Router, tunnel: &Tunnel) -> Option<u32> {
    let lower = router.links.get(tunnel.parameters.link)?;
    Some(lower.mtu.saturating_sub(tunnel.overhead()).max(LEAST))
}

/// The MTU of a device that is made, or changed while it has this one.
pub(super) fn mtu(router: &Router, tunnel: &Tunnel, given: Option<u32>) -> u32 {
    match room(router, tunnel) {
        Some(room) => given.unwrap_or(room).min(room),
        None => given.unwrap_or(1500),
    }
}

/// Whether a device takes an MTU. Linux: `vxlan_change_mtu`.
pub(crate) fn check_mtu(router: &Router, link: &Link) -> Result<(), RequestError> {
    let tunnel = link.tunnel.as_ref().filter(|tunnel| tunnel.parameters.vxlan.is_some());
    match tunnel.and_then(|tunnel| room(router, tunnel)) {
        Some(room) if link.mtu > room => Err(RequestError::errno(EINVAL)),
        _ => Ok(()),
    }
}

/// What a device becomes. Linux: `vxlan_changelink`.
pub(super) fn change(
    router: &Router,
    (link, old): (&Link, &Tunnel),
    data: &Attribute<'_>,
) -> Result<Link, RequestError> {
    let parameters = tunnel::vxlan::change(&old.parameters, data)?;
    check(router, &parameters, Some(link.index))?;
    let new = Tunnel { parameters, ..old.clone() };
    let mtu = mtu(router, &new, Some(link.mtu));
    Ok(Link { mtu, tunnel: Some(Box::new(new)), ..link.clone() })
}

/// The VXLANs above a link.
pub(in crate::link) fn above(router: &Router, lower: u32) -> impl Iterator<Item = u32> {
    let of = move |link: &&Link| {
        let parameters = link.tunnel.as_ref().map(|tunnel| &tunnel.parameters);
        parameters.is_some_and(|parameters| parameters.vxlan.is_some() && parameters.link == lower)
    };
    router.links.iter().filter(of).map(|link| link.index)
}

/// For how many seconds an entry of a station lasts that was learned, or that a request says may age.
pub(in crate::link) fn ageing(parameters: &tunnel::Tunnel) -> Option<u32> {
    let own = parameters.vxlan.map(|vxlan| vxlan.ageing);
    own.or((parameters.kind == Kind::Srv6L2).then_some(AGEING))
}

/// The words of a device.
pub(super) fn words(names: &mut Save<'_>, words: &mut Words, parameters: &tunnel::Tunnel, vxlan: &Vxlan) {
    let Vxlan {
        vni,
        port,
        source_ports: (first, last),
        learning,
        ageing,
        label,
        ttl_inherit,
        dont_fragment,
        checksum,
        unsummed6,
        takes_unsummed6,
    } = vxlan;
    let tunnel::Tunnel { link, local, remote, external, .. } = parameters;
    match external {
        true => words.add("external"),
        false => words.pair("id", vni),
    };
    words.some("local", (!local.is_unspecified()).then_some(local));
    let end = if remote.is_multicast() { "group" } else { "remote" };
    words.some(end, (!remote.is_unspecified()).then_some(remote));
    words.some("dev", (*link != 0).then(|| names.name(*link)));
    words.pair("dstport", port);
    words.some("srcport", (*last != 0).then_some(format_args!("{first} {last}")));
    ttl(words, *ttl_inherit && parameters.ttl == 0, parameters.ttl);
    tos(words, parameters.tos);
    words.pair("df", if *dont_fragment { "set" } else { "unset" });
    words.some("flowlabel", (*label != 0).then_some(format_args!("{label:#x}")));
    words.add(if *learning { "learning" } else { "nolearning" });
    words.pair("ageing", ageing);
    words.add(if *checksum { "udpcsum" } else { "noudpcsum" });
    words.add(if *unsummed6 { "udp6zerocsumtx" } else { "noudp6zerocsumtx" });
    words.add(if *takes_unsummed6 { "udp6zerocsumrx" } else { "noudp6zerocsumrx" });
}
