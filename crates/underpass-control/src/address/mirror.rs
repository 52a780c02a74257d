//! The kernel's addresses.

use std::net::IpAddr;

use libc::{AF_INET, AF_INET6};
use underpass_netlink::{RequestError, Type, Validate, policy};

use super::kernel_routes::refresh_routes;
use super::publish::{address_gone, insert4, insert6, publish_sources};
use super::query::{IFA_PROTO, IFA_RT_PRIORITY};
use super::{Address, scope_of};
use crate::events::Cause;
use crate::link::bridge::publish::publish_answering;
use crate::link::publish::vrf_addresses_changed;
use crate::route::recompile::update_sources;
use crate::updates::last_ipv4_gone;
use crate::{Request, Router};

const ALL: [Type; 12] = policy(&[]);

/// `RTM_NEWADDR` and `RTM_DELADDR` of the kernel.
pub(crate) fn mirror_address(router: &mut Router, request: &Request<'_>) -> Result<(), RequestError> {
    let family = request.family();
    if !matches!(i32::from(family), AF_INET | AF_INET6) {
        return Ok(());
    }
    let (header, attributes) = request.parse::<8, 12>(&ALL, Validate::Liberal)?;
    let [_, prefix_len, flags, scope, a, b, c, d] = header;
    let link = u32::from_ne_bytes([a, b, c, d]);
    let address = |kind| attributes.get(kind).and_then(|address| address.address(family));
    let (first, local) = (address(libc::IFA_ADDRESS), address(libc::IFA_LOCAL));
    let Some(local_address) = local.or(first) else { return Ok(()) };
    if router.is_host_address(link, local_address) {
        return Ok(());
    }
    if request.message.kind == libc::RTM_DELADDR {
        unmirror_address(router, link, local_address, prefix_len);
        return Ok(());
    }
    if router.links.get(link).is_none() {
        return Ok(()); // gone already
    }
    if let Some(unseen) = router.unseen() {
        unseen.addresses.remove(&(link, local_address, prefix_len));
    }
    let now = router.ticks();
    put_mirrored_address(
        router,
        Address {
            link,
            local: local_address,
            peer: first.filter(|&peer| peer != local_address),
            prefix_len,
            broadcast: attributes.get(libc::IFA_BROADCAST).map(|broadcast| broadcast.ipv4()),
            label: attributes.get(libc::IFA_LABEL).map(|label| label.text()).unwrap_or_default(),
            scope: match local_address {
                IpAddr::V4(_) => scope,
                IpAddr::V6(address) => scope_of(address),
            },
            flags: attributes.get(libc::IFA_FLAGS).map_or(u32::from(flags), |flags| flags.u32()),
            metric: attributes.get(IFA_RT_PRIORITY).map_or(0, |metric| metric.u32()),
            protocol: attributes.get(IFA_PROTO).map_or(0, |protocol| protocol.u8()),
            stamps: [now; 2],
        },
    );
    Ok(())
}

fn put_mirrored_address(router: &mut Router, address: Address) {
    let same = |own: &Address| (own.local, own.prefix_len) == (address.local, address.prefix_len);
    let list = router.addresses.of_mut(address.link, address.local.is_ipv6());
    match list.iter_mut().find(|own| same(own)) {
        Some(own) => {
            if *own == (Address { stamps: own.stamps, ..address.clone() }) {
                return;
            }
            *own = address.clone();
            refresh_routes(router, Cause::default(), address.link);
        }
        None if address.local.is_ipv4() => insert4(router, Cause::default(), address.clone()),
        None => insert6(router, Cause::default(), address.clone()),
    }
    router.addresses.locals += 1;
    publish_sources(router, address.link);
    publish_answering(router, address.link, std::slice::from_ref(&address));
    vrf_addresses_changed(router);
    if address.local.is_ipv6() {
        update_sources(router);
    }
}

/// The kernel has this address no more.
pub(crate) fn unmirror_address(router: &mut Router, link: u32, local: IpAddr, prefix_len: u8) {
    let list = router.addresses.of_mut(link, local.is_ipv6());
    let same = |own: &Address| (own.local, own.prefix_len) == (local, prefix_len);
    let Some(position) = list.iter().position(same) else { return };
    let gone = list.remove(position);
    router.addresses.locals += 1;
    address_gone(router, Cause::default(), &gone);
    vrf_addresses_changed(router);
    if local.is_ipv4() && router.addresses.v4(link).is_empty() {
        last_ipv4_gone(router, link);
    }
    if local.is_ipv6() {
        update_sources(router);
    }
}
