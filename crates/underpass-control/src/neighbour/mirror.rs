//! The kernel's neighbours.

use std::net::IpAddr;

use libc::{NTF_PROXY, NTF_ROUTER};
use underpass_netlink::{RequestError, Validate};

use super::{NDA_LLADDR, NDA_PROTOCOL, Neighbour, Wanted};
use crate::updates::neighbour_changed;
use crate::{Request, Router};

/// `RTM_NEWNEIGH` and `RTM_DELNEIGH` of the kernel.
pub(crate) fn mirror_neighbour(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    let wanted = Wanted::read(request, &super::REPORTED, Validate::Liberal)?;
    if wanted.flags & NTF_PROXY != 0 {
        return Ok(());
    }
    // Those of bridges and others are passed over.
    let Some(address) = wanted.attributes.get(libc::NDA_DST).and_then(|a| a.address(wanted.family)) else {
        return Ok(());
    };
    if request.message.kind == libc::RTM_DELNEIGH {
        unmirror_neighbour(router, wanted.link, address);
        return Ok(());
    }
    if router.links.get(wanted.link).is_none() {
        return Ok(()); // gone already
    }
    if router.is_host_door(wanted.link) {
        return Ok(()); // the device itself, as which the kernel takes whoever it sends to by it
    }
    if let Some(unseen) = router.unseen() {
        unseen.neighbours.remove(&(wanted.link, address));
    }
    // An address of another length is that of a link-layer that this router does not write.
    let mac = wanted.attributes.get(NDA_LLADDR).and_then(|mac| <[u8; 6]>::try_from(mac.value).ok());
    let neighbour = Neighbour {
        mac: mac.unwrap_or_default(),
        // Without an address of a station there is nothing to send to.
        state: if mac.is_some() { wanted.state } else { wanted.state & !super::VALID },
        flags: wanted.flags,
        protocol: wanted.attributes.get(NDA_PROTOCOL).map_or(0, |protocol| protocol.u8()),
        updated: router.ticks(),
    };
    let key = (address.is_ipv6(), wanted.link, address);
    let old = router.neighbours.entries.insert(key, neighbour);
    router.neighbours.generation += 1;
    let known = |neighbour: &Neighbour| Some((neighbour.usable()?, neighbour.flags & NTF_ROUTER));
    if old.as_ref().and_then(known) != known(&neighbour) {
        neighbour_changed(router, wanted.link, address);
    }
    Ok(())
}

/// The kernel knows this neighbour no more.
pub(crate) fn unmirror_neighbour(router: &mut Router, link: u32, address: IpAddr) {
    router.neighbours.generation += 1;
    let old = router.neighbours.entries.remove(&(address.is_ipv6(), link, address));
    if old.is_some_and(|old| old.usable().is_some()) {
        neighbour_changed(router, link, address);
    }
}
