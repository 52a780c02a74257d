//! Bridges of the router's beside a kernel: devices that the router makes and speaks for, as [`super::super::proxied`] says.
//! What of a bridge follows from its ports is requested of the kernel.

use libc::{EOPNOTSUPP, RTM_SETLINK};
use underpass_netlink::RequestError;

use super::super::mirror::change_mirrored_link;
use super::super::proxied::{add_device, header, keep_master, kernel_has, pass_on_rest, set_master};
use super::super::rewrite::link_is_other;
use super::super::{Link, valid_mac};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::{Device, Request, Router};

/// What of a request for a bridge says what it is to the router, and not what it is to the kernel.
const OWN_AT_FIRST: [u16; 5] =
    [libc::IFLA_IFNAME, libc::IFLA_LINKINFO, libc::IFLA_MASTER, libc::IFLA_MTU, libc::IFLA_ADDRESS];

/// Whether bridges are the kernel's: it has them, and the router is not told to have its own.
pub(in crate::link) fn are_kernels(router: &mut Router) -> bool {
    let Some(live) = &router.live else { return false };
    if let Some(are) = live.devices.bridges_are_kernels {
        return are;
    }
    // One that has them says that this is no address of theirs: `br_validate`.
    let has =
        kernel_has(router, Device::Bridge.kind(), |message| message.attribute(libc::IFLA_ADDRESS, &[0]));
    if let Some(live) = &mut router.live {
        live.devices.bridges_are_kernels = Some(has);
    }
    has
}

/// Makes the device of a bridge. `link` is what it is to be.
pub(in crate::link) fn make(
    router: &mut Router,
    request: &Request<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    let bridge = link.bridge.as_deref().ok_or(RequestError::errno(EOPNOTSUPP))?.clone();
    let index = add_device(router, &link.name, Device::Bridge)?;
    let mac = bridge.mac_is_set.then_some(link.mac);
    if let Some(live) = &mut router.live {
        live.devices.bridges.insert(index, bridge);
    }
    let rest = pass_on_rest(router, request, index, &OWN_AT_FIRST, |message| {
        message.u32(libc::IFLA_MTU, link.mtu);
        mac.into_iter().for_each(|mac| message.attribute(libc::IFLA_ADDRESS, &mac));
        // It has none before a port forwards.
        message.u8(libc::IFLA_CARRIER, 0);
    });
    keep_master(router, index, link.master, rest)
}

/// Makes of a bridge of the router's what `link` says.
pub(in crate::link) fn change(
    router: &mut Router,
    request: &Request<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    set_master(router, request, link.index, link.master)?;
    let now = router.links.get(link.index).cloned().ok_or(RequestError::errno(EOPNOTSUPP))?;
    settle(router, Cause::from(request), Link { bridge: link.bridge.clone(), ..now });
    Ok(Outcome::Done)
}

/// Makes of a port of a bridge of the router's what `link` says of it as one, if it still is one of that bridge.
pub(in crate::link) fn change_port(router: &mut Router, cause: Cause, link: &Link) {
    let is_port = |now: &&Link| now.bridge_port.is_some() && now.master == link.master;
    if let Some(now) = router.links.get(link.index).filter(is_port).cloned() {
        settle(router, cause, Link { bridge_port: link.bridge_port.clone(), ..now });
    }
}

/// Makes of a bridge or a port what `new` says, whatever of it the kernel knows: that is requested there, and mirrored when the
/// kernel has reported it.
pub(super) fn settle(router: &mut Router, cause: Cause, new: Link) {
    let Some(old) = router.links.get(new.index).cloned() else { return };
    let mac = (old.mac != new.mac && valid_mac(new.mac)).then_some(new.mac);
    let mtu = (old.mtu != new.mtu).then_some(new.mtu);
    let carrier = (old.carrier != new.carrier).then_some(new.carrier);
    let index = new.index;
    let known = Link { mac: old.mac, mtu: old.mtu, carrier: old.carrier, ..new };
    if known != old {
        change_mirrored_link(router, &old, known);
        link_is_other(router, cause, index);
    }
    if (mac, mtu, carrier) == (None, None, None) {
        return;
    }
    let followed = router.request_kernel(RTM_SETLINK, 0, |message| {
        message.fixed(&header(index, 0, 0));
        mtu.into_iter().for_each(|mtu| message.u32(libc::IFLA_MTU, mtu));
        mac.into_iter().for_each(|mac| message.attribute(libc::IFLA_ADDRESS, &mac));
        carrier.into_iter().for_each(|carrier| message.u8(libc::IFLA_CARRIER, carrier.into()));
    });
    if let Err(error) = followed {
        tracing::warn!("the bridge {} does not follow its ports: {error}", old.name);
    }
}

/// Whether a link is a bridge of the router's beside a kernel.
pub(in crate::link) fn is_own(router: &Router, link: &Link) -> bool {
    router.live.is_some() && link.bridge.is_some()
}
