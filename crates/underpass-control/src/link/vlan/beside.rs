//! VLAN devices beside a kernel that has none: devices that the router makes and speaks for, as [`super::super::proxied`] says.
//! What of them follows from the link below is requested of the kernel.

use libc::{EOPNOTSUPP, IFF_UP, RTM_SETLINK};
use underpass_netlink::RequestError;

use super::super::mirror::change_mirrored_link;
use super::super::proxied::{
    add_device, delete_devices, enslave, header, keep_master, kernel_has, pass_on_rest,
};
use super::super::{Link, LinkKind};
use super::{doomed_with, indices_above};
use crate::dump::Outcome;
use crate::{Device, Request, Router};

/// What of a request for a VLAN device says what it is to the router, and not what it is to the kernel.
const OWN: [u16; 3] = [libc::IFLA_LINKINFO, libc::IFLA_MASTER, libc::IFLA_LINK];
const OWN_AT_FIRST: [u16; 6] = [
    libc::IFLA_IFNAME,
    libc::IFLA_LINKINFO,
    libc::IFLA_MASTER,
    libc::IFLA_LINK,
    libc::IFLA_MTU,
    libc::IFLA_ADDRESS,
];

/// Whether the kernel itself makes VLAN devices of a link: it has them, and the link is its own.
pub(in crate::link) fn are_kernels(router: &mut Router, lower: u32) -> bool {
    let Some(live) = &router.live else { return false };
    if live.devices.get(lower).is_some() {
        return false;
    }
    if let Some(has) = live.devices.kernel_has_vlans {
        return has;
    }
    // One that has them asks which VLAN it is to be.
    let has = kernel_has(router, "vlan", |_| {});
    if let Some(live) = &mut router.live {
        live.devices.kernel_has_vlans = Some(has);
    }
    has
}

/// Makes the device of a VLAN. `link` is what it is to be.
pub(in crate::link) fn make(
    router: &mut Router,
    request: &Request<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    let vlan = link.vlan.as_deref().ok_or(RequestError::errno(EOPNOTSUPP))?;
    let index = add_device(router, &link.name, Device::Vlan)?;
    if let Some(live) = &mut router.live {
        live.devices.vlans.insert(index, vlan.clone());
    }
    let rest = pass_on_rest(router, request, index, &OWN_AT_FIRST, |message| {
        message.u32(libc::IFLA_MTU, link.mtu);
        message.attribute(libc::IFLA_ADDRESS, &link.mac);
        if !link.carrier {
            message.u8(libc::IFLA_CARRIER, 0);
        }
    });
    keep_master(router, index, link.master, rest)
}

/// Makes of a VLAN device of the router's what `link` says.
pub(in crate::link) fn change(
    router: &mut Router,
    request: &Request<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    let unsupported = RequestError::errno(EOPNOTSUPP);
    let vlan = link.vlan.as_deref().ok_or(unsupported.clone())?;
    let old = router.links.get(link.index).cloned().ok_or(unsupported)?;
    pass_on_rest(router, request, link.index, &OWN, |_| {})?;
    if let Some(live) = &mut router.live {
        live.devices.vlans.insert(link.index, vlan.clone());
    }
    change_mirrored_link(router, &old, Link { vlan: link.vlan.clone(), ..old.clone() });
    enslave(router, request.into(), link.index, link.master);
    Ok(Outcome::Done)
}

/// A link is now `new`: the VLAN devices of the router's above it follow. Linux: `vlan_device_event`.
pub(in crate::link) fn follow(router: &mut Router, old: &Link, new: &Link) {
    let of = |link: &Link| (link.mac, link.mtu, link.up(), link.carrier);
    if router.live.is_none() || of(old) == of(new) {
        return;
    }
    let (was_up, is_up) = (old.up(), new.up());
    for index in indices_above(router, new.index) {
        let Some(link) = router.links.get(index) else { continue };
        let Some(vlan) = link.vlan.as_deref() else { continue };
        // Whatever the model says of it: the kernel may have been asked for something else since.
        let switched = (was_up != is_up && !vlan.is_loose()).then_some(is_up);
        let carrier = (is_up && (!was_up || old.carrier != new.carrier)).then_some(new.carrier);
        let mac = (vlan.inherits_mac && old.mac != new.mac).then_some(new.mac);
        let mtu = (link.mtu > new.mtu).then_some(new.mtu);
        if (switched, carrier, mac, mtu) == (None, None, None, None) {
            continue;
        }
        let [flags, change] = switched.map_or([0; 2], |up| [u32::from(up), 1].map(|bit| bit * IFF_UP as u32));
        let followed = router.request_kernel(RTM_SETLINK, 0, |message| {
            message.fixed(&header(index, flags, change));
            mtu.into_iter().for_each(|mtu| message.u32(libc::IFLA_MTU, mtu));
            mac.into_iter().for_each(|mac| message.attribute(libc::IFLA_ADDRESS, &mac));
            carrier.into_iter().for_each(|carrier| message.u8(libc::IFLA_CARRIER, carrier.into()));
        });
        if let Err(error) = followed {
            tracing::warn!("interface {index} does not follow {}: {error}", new.name);
        }
    }
}

/// Deletes the VLAN devices and the VXLANs of the router's above a link that is gone.
pub(in crate::link) fn delete_above(router: &mut Router, lower: u32) {
    if router.live.is_some() {
        let above = doomed_with(router, lower);
        let _ = delete_devices(router, &above);
    }
}

/// Whether a link is a VLAN device of the router's, beside a kernel.
pub(in crate::link) fn is_own(router: &Router, link: &Link) -> bool {
    let live = router.live.as_ref();
    link.kind == LinkKind::Vlan && live.is_some_and(|live| live.devices.get(link.index).is_some())
}
