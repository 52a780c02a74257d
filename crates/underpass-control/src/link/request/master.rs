//! The master of a link.

use libc::{EINVAL, EOPNOTSUPP};
use underpass_netlink::RequestError;

use super::Wanted;
use crate::Router;
use crate::events::Cause;
use crate::link::change::change_link;
use crate::link::{Link, LinkKind, bridge};

/// The master that `link` gets. Linux: `do_set_master` and `vrf_add_slave`.
pub(in crate::link) fn master_for(
    router: &Router,
    link: &Link,
    master: u32,
) -> Result<Option<u32>, RequestError> {
    if master == 0 || link.master == Some(master) {
        return Ok(link.master.filter(|_| master != 0));
    }
    let vrf = router.links.get(master).ok_or(RequestError::errno(EINVAL))?;
    if vrf.bridge.is_some() {
        return bridge::check_port(router, link, vrf).map(|()| Some(master));
    }
    if router.live.is_some() && link.has_ends() && matches!(vrf.kind, LinkKind::Kernel | LinkKind::Port(_)) {
        // The request is passed on: the kernel judges of its own.
        return Ok(Some(master));
    }
    if vrf.vrf_table().is_none() {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    if link.vrf_table().is_some() {
        return Err(RequestError::new(EINVAL, "Can not enslave an L3 master device to a VRF"));
    }
    if link.kind == LinkKind::Loopback {
        return Err(RequestError::new(EOPNOTSUPP, "Can not enslave loopback device to a VRF"));
    }
    Ok(Some(master))
}

/// Frees a link from its master if the one that it is to get instead refuses it. Linux: `do_set_master`, which frees it first.
pub(super) fn leave_master(router: &mut Router, cause: Cause, wanted: &Wanted<'_>, index: u32) {
    let (Some(link), Some(master)) =
        (router.links.get(index), wanted.attributes.get(libc::IFLA_MASTER).map(|master| master.u32()))
    else {
        return;
    };
    // A kernel beside the router does so itself.
    if router.live.is_none() && link.master.is_some() && master_for(router, link, master).is_err() {
        let freed = Link { master: None, ..link.clone() };
        change_link(router, cause, freed);
    }
}
