//! Proxied devices: VRFs, dummies, tunnels and bridges of the router's beside a kernel. Each is a device of the kernel's
//! that the router has made and speaks for. The kernel does not know which links are enslaved to them; the router does.

use libc::{EOPNOTSUPP, IFF_UP, RTM_NEWLINK, RTM_SETLINK};
use netlink_packet_core::{NLA_F_NESTED, NLM_F_CREATE, NLM_F_EXCL};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Reply, RequestError, tunnel};

use super::devices::ProxiedTunnel;
use super::encode::IFLA_INET6_ADDR_GEN_MODE;
use super::mirror::{change_mirrored_link, unmirror_link};
use super::rewrite::link_is_other;
use super::{Link, LinkKind};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::live::Live;
use crate::request::word;
use crate::route::mirror::unpark_routes;
use crate::{Device, Request, Router};

/// Length of a `struct ifinfomsg`.
pub(super) const HEADER: usize = 16;

/// Whether the router makes devices of this kind, or says who does.
pub(crate) fn is_made(kind: &str) -> bool {
    matches!(kind, "vrf" | "dummy" | "vlan" | "bridge") || tunnel::Kind::named(kind).is_some()
}

/// Whether the kernel has devices of a kind. `write` writes what makes a request for one that it refuses even then.
pub(super) fn kernel_has(router: &mut Router, kind: &str, write: impl FnOnce(&mut Reply<'_>)) -> bool {
    let asked = router.request_kernel(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
        message.fixed(&[0; HEADER]);
        write(message);
        let info = message.nest(libc::IFLA_LINKINFO);
        message.text(libc::IFLA_INFO_KIND, kind);
        message.end(info);
    });
    !asked.is_err_and(|error| error.errno == EOPNOTSUPP)
}

/// Has the kernel do what a request says.
pub(super) fn pass_on(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    router.pass_on(&mut request.message.bytes.to_vec())?;
    Ok(Outcome::Done)
}

/// The same without one of its attributes.
pub(super) fn pass_on_without(
    router: &mut Router,
    request: &Request<'_>,
    without: u16,
) -> Result<(), RequestError> {
    let fixed = request.fixed::<HEADER>()?;
    let flags = request.message.flags & (NLM_F_CREATE | NLM_F_EXCL);
    let mut message = Vec::new();
    write_message(&mut message, request.message.kind, flags, Address::default(), |message| {
        message.fixed(&fixed);
        write_all(message, request, |kind| kind != without);
    })?;
    router.pass_on(&mut message)
}

/// Writes the attributes of a request that are wanted.
fn write_all(message: &mut Reply<'_>, request: &Request<'_>, wanted: impl Fn(u16) -> bool) {
    for attribute in request.message.attributes(HEADER).filter(|attribute| wanted(attribute.kind)) {
        let nested = [libc::IFLA_LINKINFO, libc::IFLA_AF_SPEC].contains(&attribute.kind);
        let flag = if nested { NLA_F_NESTED } else { 0 };
        message.attribute(attribute.kind | flag, attribute.value);
    }
}

/// Makes a device and does with it what the request says besides.
pub(super) fn make_device(
    router: &mut Router,
    request: &Request<'_>,
    name: &str,
    device: Device,
    master: Option<u32>,
) -> Result<Outcome, RequestError> {
    let index = add_device(router, name, device)?;
    let skip = [libc::IFLA_IFNAME, libc::IFLA_LINKINFO, libc::IFLA_MASTER];
    let rest = pass_on_rest(router, request, index, &skip, |message| {
        if let Device::Vrf { .. } = device {
            no_link_local(message);
        }
    });
    keep_master(router, index, master, rest)
}

/// Makes a tunnel's device. `link` is what it is to be.
pub(super) fn make_tunnel(
    router: &mut Router,
    request: &Request<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    let LinkKind::Tunnel(kind) = link.kind else { return Err(RequestError::errno(libc::EOPNOTSUPP)) };
    let index = add_tunnel_device(router, link, kind)?;
    let rest = pass_on_rest(router, request, index, skipped(kind), |message| {
        message.u32(libc::IFLA_MTU, link.mtu);
        if kind == tunnel::Kind::Ipip
            && request.message.attributes(HEADER).all(|it| it.kind != libc::IFLA_AF_SPEC)
        {
            // It carries no IPv6.
            no_link_local(message);
        }
    });
    keep_master(router, index, link.master, rest)
}

/// Makes the device of a tunnel that no request describes.
pub(super) fn make_fallback_device(
    router: &mut Router,
    link: &Link,
    kind: tunnel::Kind,
) -> Result<(), RequestError> {
    let index = add_tunnel_device(router, link, kind)?;
    let settled = router.request_kernel(RTM_SETLINK, 0, |message| {
        message.fixed(&header(index, 0, 0));
        message.u32(libc::IFLA_MTU, link.mtu);
        if kind == tunnel::Kind::Ipip {
            no_link_local(message);
        }
    });
    settled.inspect_err(|_| remove_device(router, index))
}

/// Makes a tunnel's device, and returns its index.
fn add_tunnel_device(router: &mut Router, link: &Link, kind: tunnel::Kind) -> Result<u32, RequestError> {
    let unavailable = RequestError::new(libc::EOPNOTSUPP, "Unknown device type");
    let made = ProxiedTunnel::new(link).ok_or(unavailable)?;
    let index = add_device(router, &link.name, Device::Tunnel(kind))?;
    if let Some(live) = &mut router.live {
        live.devices.tunnels.insert(index, made);
    }
    Ok(index)
}

/// Makes a device, and returns its index.
pub(super) fn add_device(router: &mut Router, name: &str, device: Device) -> Result<u32, RequestError> {
    let unavailable = RequestError::new(libc::EOPNOTSUPP, "Unknown device type");
    let live = router.live.as_mut().ok_or(unavailable.clone())?;
    let index = live.namespace.as_mut().ok_or(unavailable)?.make(name, device)?;
    live.devices.gone.remove(&index);
    live.devices.made.insert(index, device);
    Ok(index)
}

/// The end of making a device: it gets its master, or is removed if the kernel has not done what else was to be done.
pub(super) fn keep_master(
    router: &mut Router,
    index: u32,
    master: Option<u32>,
    done: Result<(), RequestError>,
) -> Result<Outcome, RequestError> {
    let is_own = |live: &Live, master: u32| live.devices.get(master).is_some();
    let own = master.filter(|master| router.live.as_ref().is_some_and(|live| is_own(live, *master)));
    let done = done.and_then(|()| match master.filter(|_| own.is_none()) {
        Some(kernels) => router.request_kernel(RTM_SETLINK, 0, |message| {
            message.fixed(&header(index, 0, 0));
            message.u32(libc::IFLA_MASTER, kernels);
        }),
        None => Ok(()),
    });
    done.inspect_err(|_| remove_device(router, index))?;
    if let (Some(live), Some(master)) = (&mut router.live, own) {
        live.devices.masters.insert(index, master);
    }
    Ok(Outcome::Done)
}

/// Whether a device with these ends is made that the kernel has yet to report.
pub(super) fn is_making(router: &Router, parameters: &tunnel::Tunnel) -> bool {
    let Some(devices) = router.live.as_ref().map(|live| &live.devices) else { return false };
    let untold = devices.made.keys().filter(|index| router.links.get(**index).is_none());
    untold.filter_map(|index| devices.tunnel(*index)).any(|made| made.tunnel.same(parameters))
}

/// Makes another tunnel of a device.
pub(super) fn change_tunnel(
    router: &mut Router,
    request: &Request<'_>,
    link: Link,
) -> Result<Outcome, RequestError> {
    let unsupported = RequestError::errno(libc::EOPNOTSUPP);
    let old = router.links.get(link.index).cloned().ok_or(unsupported.clone())?;
    let LinkKind::Tunnel(kind) = link.kind else { return Err(unsupported) };
    let skip = skipped(kind);
    let mtu = (link.mtu != old.mtu).then_some(link.mtu);
    pass_on_rest(router, request, link.index, skip, |message| {
        mtu.into_iter().for_each(|mtu| message.u32(libc::IFLA_MTU, mtu));
    })?;
    let (index, master) = (link.index, link.master);
    change_own_tunnel(router, link);
    enslave(router, request.into(), index, master);
    Ok(Outcome::Done)
}

/// Makes another tunnel of a device, of which the kernel knows nothing.
pub(super) fn change_own_tunnel(router: &mut Router, link: Link) {
    let Some(old) = router.links.get(link.index).cloned() else { return };
    if let (Some(live), Some(made)) = (&mut router.live, ProxiedTunnel::new(&link)) {
        live.devices.tunnels.insert(link.index, made);
    }
    change_mirrored_link(router, &old, Link { tunnel: link.tunnel, ..old.clone() });
}

fn remove_device(router: &mut Router, index: u32) {
    if let Some(live) = &mut router.live {
        live.devices.forget(index);
        if let Some(namespace) = &mut live.namespace {
            namespace.remove(index);
        }
    }
}

/// Deletes devices that the router has made. What is enslaved to them is set free.
pub(super) fn delete_devices(router: &mut Router, doomed: &[u32]) -> Result<Outcome, RequestError> {
    for &index in doomed {
        let slaves: Vec<u32> = router.links.slaves(index).map(|link| link.index).collect();
        for slave in slaves {
            enslave(router, Cause::default(), slave, None);
        }
        remove_device(router, index);
        unmirror_link(router, index);
    }
    Ok(Outcome::Done)
}

/// A request that enslaves a link to one of the router's VRFs or bridges, or sets it free, and may say more. What it says of
/// the link as a port is not the kernel's to know.
pub(super) fn set_master(
    router: &mut Router,
    request: &Request<'_>,
    index: u32,
    master: Option<u32>,
) -> Result<Outcome, RequestError> {
    let own = |router: &Router, master: u32| {
        router.live.as_ref().is_some_and(|live| live.devices.get(master).is_some())
    };
    const GIVEN: [u16; 2] = [libc::IFLA_LINKINFO, libc::IFLA_MASTER];
    let made = own(router, index);
    let skip: &[u16] = match master.is_some_and(|master| !own(router, master)) {
        true if made => &GIVEN[..1],
        true => &[],
        false => &GIVEN,
    };
    let before = router.links.get(index).and_then(|link| link.master);
    if before.is_some_and(|master| !own(router, master)) && skip.len() == GIVEN.len() {
        // Enslaved to a bridge, or the like: set free there.
        router.request_kernel(RTM_SETLINK, 0, |message| {
            message.fixed(&header(index, 0, 0));
            message.u32(libc::IFLA_MASTER, 0);
        })?;
    }
    pass_on_rest(router, request, index, skip, |_| {})?;
    let master = master.filter(|&master| own(router, master));
    enslave(router, request.into(), index, master);
    Ok(Outcome::Done)
}

/// Puts a link into a VRF or a bridge of the router's, or out of it. For a VRF the link is taken down, as by Linux's
/// `cycle_netdev`.
pub(super) fn enslave(router: &mut Router, cause: Cause, index: u32, master: Option<u32>) {
    let Some(old) = router.links.get(index).cloned() else { return };
    let Some(live) = &mut router.live else { return };
    let before = live.devices.master(index);
    if before == master {
        return;
    }
    let is_vrf = |master: u32| matches!(live.devices.get(master), Some(Device::Vrf { .. }));
    let switches = old.up() && (before.is_some_and(is_vrf) || master.is_some_and(is_vrf));
    if switches {
        switch_kernels(router, index, false);
    }
    let Some(live) = &mut router.live else { return };
    match master {
        Some(master) => live.devices.masters.insert(index, master),
        None => live.devices.masters.remove(&index),
    };
    change_mirrored_link(router, &old, Link { master, ..old.clone() });
    if master.is_none() {
        unpark_routes(router, index);
    }
    match switches {
        true => switch_kernels(router, index, true),
        // Of which the kernel tells nothing.
        false => link_is_other(router, cause, index),
    }
}

fn switch_kernels(router: &mut Router, index: u32, up: bool) {
    let flags = if up { IFF_UP as u32 } else { 0 };
    let switched = router.request_kernel(RTM_SETLINK, 0, |message| {
        message.fixed(&header(index, flags, IFF_UP as u32));
    });
    if let Err(error) = switched {
        tracing::warn!("the kernel does not switch link {index}: {error}");
    }
}

/// Passes a request on to the kernel without some of its attributes, if anything is left of it.
pub(super) fn pass_on_rest(
    router: &mut Router,
    request: &Request<'_>,
    index: u32,
    skip: &[u16],
    more: impl FnOnce(&mut Reply<'_>),
) -> Result<(), RequestError> {
    let fixed = request.fixed::<HEADER>()?;
    let word = |at: usize| u32::from_ne_bytes(word(&fixed, at));
    let (flags, change) = (word(8), word(12));
    // A name stands for the link where the index does not.
    let named = word(4) == 0;
    let names = [libc::IFLA_IFNAME, libc::IFLA_ALT_IFNAME, libc::IFLA_EXT_MASK];
    let keep = |kind: u16| !(skip.contains(&kind) || named && names.contains(&kind));
    let mut message = Vec::new();
    write_message(&mut message, RTM_NEWLINK, 0, Address::default(), |message| {
        message.fixed(&header(index, flags, change));
        write_all(message, request, keep);
        more(message);
    })?;
    let nothing = message.len() == underpass_netlink::message::HEADER + HEADER && flags == 0 && change == 0;
    if nothing { Ok(()) } else { router.pass_on(&mut message) }
}

/// What of a request for a tunnel is not passed on.
const fn skipped(kind: tunnel::Kind) -> &'static [u16] {
    const BOTH: [u16; 5] =
        [libc::IFLA_IFNAME, libc::IFLA_LINKINFO, libc::IFLA_MASTER, libc::IFLA_LINK, libc::IFLA_MTU];
    const ENDS: [u16; 7] = [
        libc::IFLA_IFNAME,
        libc::IFLA_LINKINFO,
        libc::IFLA_MASTER,
        libc::IFLA_LINK,
        libc::IFLA_MTU,
        libc::IFLA_ADDRESS,
        libc::IFLA_BROADCAST,
    ];
    if kind.ethernet() { &BOTH } else { &ENDS }
}

/// The device gets no link-local address.
fn no_link_local(message: &mut Reply<'_>) {
    let families = message.nest(libc::IFLA_AF_SPEC);
    let inet6 = message.nest(libc::AF_INET6 as u16);
    message.u8(IFLA_INET6_ADDR_GEN_MODE, 1);
    message.end(inet6);
    message.end(families);
}

/// `struct ifinfomsg`.
pub(super) fn header(index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}
