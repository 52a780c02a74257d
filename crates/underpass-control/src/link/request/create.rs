//! Links that requests make.

use libc::{EINVAL, ENETDOWN, EOPNOTSUPP, IFF_UP};
use underpass_netlink::tunnel::Kind;
use underpass_netlink::{RequestError, Validate};

use super::super::change::{add_link, change_link};
use super::super::encode::IFLA_VRF_TABLE;
use super::super::proxied::{make_device, make_tunnel, pass_on, pass_on_without};
use super::super::publish::own_mac;
use super::super::tunnel::fallback::use_kind;
use super::super::{Link, LinkKind, bridge, tunnel, vlan};
use super::master::master_for;
use super::{VRF, Wanted, free_name};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::sysctl::{self, Instance};
use crate::{Device, Request, Router};

impl Wanted<'_> {
    /// The link that is to be, with nothing but its name, its index and what it is.
    fn link(&self, router: &mut Router, name: String, kind: LinkKind) -> Link {
        let index = match u32::try_from(self.index) {
            Ok(0) | Err(_) => router.links.index_for(&name),
            Ok(index) => index,
        };
        Link::new(index, name, kind, own_mac(index))
    }
}

pub(super) fn create(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
) -> Result<Outcome, RequestError> {
    if let Some(master) = wanted.joins(router) {
        return make_kernels(router, request, wanted, master);
    }
    let tunnel = wanted.kind.as_deref().and_then(Kind::named);
    if let Some(kind) = tunnel.filter(|kind| router.experimental || !kind.is_experimental()) {
        return create_tunnel(router, request, wanted, kind);
    }
    if wanted.kind.as_deref() == Some("vlan") {
        return create_vlan(router, request, wanted);
    }
    if wanted.kind.as_deref() == Some("bridge") {
        return create_bridge(router, request, wanted);
    }
    let kind = match wanted.kind.as_deref() {
        Some("dummy") => LinkKind::Dummy,
        // Beside a kernel, ifb links are the kernel's.
        Some("ifb") if router.live.is_none() => LinkKind::Ifb,
        Some("vrf") => LinkKind::Vrf { table: vrf_table(wanted)? },
        _ => return Err(RequestError::new(EOPNOTSUPP, "Unknown device type")),
    };
    let template = match kind {
        LinkKind::Vrf { .. } => "vrf%d",
        LinkKind::Ifb => "ifb%d",
        _ => "dummy%d",
    };
    let name = free_name(router, wanted.name().as_deref().unwrap_or(template))?;
    if let LinkKind::Vrf { table } = kind {
        check_table(router, table)?;
    }
    if router.live.is_some() {
        let device = match kind {
            LinkKind::Vrf { table } => Device::Vrf { table },
            _ => Device::Dummy,
        };
        let master = wanted.attributes.get(libc::IFLA_MASTER).map_or(0, |master| master.u32());
        let link = Link::new(0, name.clone(), kind, own_mac(0));
        let master = if master == 0 { None } else { master_for(router, &link, master)? };
        return make_device(router, request, &name, device, master);
    }
    let link = wanted.link(router, name, kind);
    let link = wanted.apply(router, &link)?;
    add(router, Cause::from(request), link);
    Ok(Outcome::Done)
}

/// Adds a link that a request makes: first down and on its own, then up and enslaved.
fn add(router: &mut Router, cause: Cause, mut link: Link) {
    let index = link.index;
    let up = link.flags & IFF_UP as u32;
    link.flags &= !up;
    let master = link.master.take();
    add_link(router, cause, link.clone());
    if let Some(added) = router.links.get(index)
        && (master.is_some() || up != 0)
    {
        let changed = Link { master, flags: added.flags | up, ..added.clone() };
        change_link(router, cause, changed);
    }
}

/// A link of a kind of the kernel's that is to be enslaved to a device of the router's, of which the kernel knows nothing.
fn make_kernels(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    master: u32,
) -> Result<Outcome, RequestError> {
    let unnamed = "A link needs a name to be made as one that is enslaved to a link of this router";
    let name = wanted.name().filter(|name| !name.contains('%'));
    let name = name.ok_or(RequestError::new(EOPNOTSUPP, unnamed))?;
    pass_on_without(router, request, libc::IFLA_MASTER)?;
    if let Some(live) = &mut router.live {
        live.devices.joining.insert(name, master);
    }
    Ok(Outcome::Done)
}

/// A tunnel: what is said of it, then what is said of any link.
fn create_tunnel(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    kind: Kind,
) -> Result<Outcome, RequestError> {
    use_kind(router, kind);
    let template = format!("{}%d", kind.name());
    let name = free_name(router, wanted.name().as_deref().unwrap_or(&template));
    let link = wanted.link(router, name.clone().unwrap_or_default(), LinkKind::Tunnel(kind));
    let index = link.index;
    let mtu = wanted.attributes.get(libc::IFLA_MTU).map(|mtu| mtu.u32());
    let link = tunnel::create(router, link, kind, wanted.data.as_ref(), mtu)?;
    // Linux judges the name when the device is registered: `register_netdevice`.
    name?;
    if let Some(Err(error)) = link.tunnel.as_ref().map(|tunnel| tunnel.six_rd.check()) {
        // Linux has made the link then, and deletes it again.
        router.links.pass_over(index);
        return Err(error);
    }
    let made = wanted.apply_new(router, &link)?;
    if router.live.is_some() {
        return make_tunnel(router, request, &Link { mtu: link.mtu, ..made });
    }
    add(router, Cause::from(request), Link { mtu: link.mtu, ..made });
    Ok(Outcome::Done)
}

/// A VLAN device: what is said of it, then what is said of any link.
fn create_vlan(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
) -> Result<Outcome, RequestError> {
    let name = free_name(router, wanted.name().as_deref().unwrap_or("vlan%d"));
    let link = wanted.link(router, name.clone().unwrap_or_default(), LinkKind::Vlan);
    let index = link.index;
    let number = |kind: u16| wanted.attributes.get(kind).map(|number| number.u32());
    if number(libc::IFLA_LINK).is_some_and(|lower| vlan::beside::are_kernels(router, lower)) {
        return pass_on(router, request);
    }
    let said = vlan::Said {
        lower: number(libc::IFLA_LINK),
        mtu: number(libc::IFLA_MTU),
        address: wanted.attributes.get(libc::IFLA_ADDRESS).is_some(),
        data: wanted.data.as_ref(),
    };
    let link = vlan::create(router, link, said)?;
    name?;
    let link = match wanted.apply_new(router, &link) {
        Err(error) if error.errno == ENETDOWN => {
            // Linux has made the link then, and deletes it again.
            router.links.pass_over(index);
            return Err(error);
        }
        link => link?,
    };
    if router.live.is_some() {
        return vlan::beside::make(router, request, &link);
    }
    add(router, Cause::from(request), link);
    Ok(Outcome::Done)
}

/// A bridge: what is said of it, then what is said of any link.
fn create_bridge(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
) -> Result<Outcome, RequestError> {
    if bridge::beside::are_kernels(router) {
        return pass_on(router, request);
    }
    let name = free_name(router, wanted.name().as_deref().unwrap_or("bridge%d"))?;
    let link = wanted.link(router, name, LinkKind::Bridge);
    let link = bridge::create(link, wanted.data.as_ref())?;
    let link = wanted.apply_new(router, &link)?;
    if router.live.is_some() {
        return bridge::beside::make(router, request, &link);
    }
    add(router, Cause::from(request), link);
    Ok(Outcome::Done)
}

/// Linux: `vrf_newlink`.
fn vrf_table(wanted: &Wanted<'_>) -> Result<u32, RequestError> {
    let missing = RequestError::new(EINVAL, "VRF table id is missing");
    let data = wanted.data.ok_or(missing.clone())?.parse_nested(&VRF, Validate::Liberal)?;
    let table = data.get(IFLA_VRF_TABLE).ok_or(missing)?;
    if table.u32() == 0 {
        return Err(table.invalid("Invalid VRF table id"));
    }
    Ok(table.u32())
}

/// In strict mode a table belongs to one VRF, which is seen once the device has its name. Linux: `vrf_map_register_dev`.
fn check_table(router: &Router, table: u32) -> Result<(), RequestError> {
    let strict = router.sysctls.value(&sysctl::STRICT_MODE, Instance::One) == 1;
    if strict && router.links.vrf_with_table(table).is_some() {
        return Err(RequestError::new(libc::EBUSY, "Table is used by another VRF"));
    }
    Ok(())
}
