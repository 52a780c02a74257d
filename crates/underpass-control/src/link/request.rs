//! Requests for links. Linux: `net/core/rtnetlink.c`.

mod create;
pub(super) mod master;

use libc::{
    EADDRNOTAVAIL, EAFNOSUPPORT, EEXIST, EINVAL, ENODEV, EOPNOTSUPP, EPERM, IFF_ALLMULTI, IFF_AUTOMEDIA,
    IFF_DEBUG, IFF_DYNAMIC, IFF_MULTICAST, IFF_NOARP, IFF_NOTRAILERS, IFF_PORTSEL, IFF_PROMISC, IFF_UP,
};
use underpass_netlink::tunnel::{Kind, check_ethernet};
use underpass_netlink::{Attribute, Attributes, RequestError, Type, Validate, policy};

use self::master::{leave_master, master_for};
use super::bridge::Flush;
use super::change::{change_link, delete_link};
use super::encode::mtu_bounds;
use super::proxied::{HEADER, change_tunnel, delete_devices, is_made, set_master};
use super::tunnel::{geneve, port, vxlan};
use super::{Link, LinkKind, bridge, tunnel, valid_mac, valid_name, vlan};
use crate::dump::Outcome;
use crate::events::Cause;
use crate::request::{creates, word};
use crate::{Request, Router};

const POLICY: [Type; 66] = policy(&[
    (libc::IFLA_ADDRESS, Type::AtMost(32)),
    (libc::IFLA_BROADCAST, Type::AtMost(32)),
    (libc::IFLA_IFNAME, Type::String(15)),
    (libc::IFLA_MTU, Type::U32),
    (libc::IFLA_LINK, Type::U32),
    (libc::IFLA_QDISC, Type::Any),
    (libc::IFLA_STATS, Type::Any),
    (libc::IFLA_MASTER, Type::U32),
    (libc::IFLA_PROTINFO, Type::Unsupported),
    (libc::IFLA_TXQLEN, Type::U32),
    (libc::IFLA_MAP, Type::Unsupported),
    (libc::IFLA_OPERSTATE, Type::Unsupported),
    (libc::IFLA_LINKMODE, Type::Unsupported),
    (libc::IFLA_LINKINFO, Type::Nested),
    (libc::IFLA_NET_NS_PID, Type::Unsupported),
    (libc::IFLA_IFALIAS, Type::AtMost(256)),
    (libc::IFLA_VFINFO_LIST, Type::Unsupported),
    (libc::IFLA_VF_PORTS, Type::Unsupported),
    (libc::IFLA_PORT_SELF, Type::Unsupported),
    (libc::IFLA_AF_SPEC, Type::Nested),
    (libc::IFLA_GROUP, Type::U32),
    (libc::IFLA_NET_NS_FD, Type::Unsupported),
    (libc::IFLA_EXT_MASK, Type::U32),
    (libc::IFLA_NUM_TX_QUEUES, Type::Unsupported),
    (libc::IFLA_NUM_RX_QUEUES, Type::Unsupported),
    (libc::IFLA_CARRIER, Type::Unsupported),
    (libc::IFLA_LINK_NETNSID, Type::Unsupported),
    (libc::IFLA_PROTO_DOWN, Type::Unsupported),
    (libc::IFLA_GSO_MAX_SEGS, Type::Unsupported),
    (libc::IFLA_GSO_MAX_SIZE, Type::Unsupported),
    (libc::IFLA_XDP, Type::Unsupported),
    (libc::IFLA_TARGET_NETNSID, Type::Unsupported),
    (libc::IFLA_NEW_IFINDEX, Type::Unsupported),
    (libc::IFLA_ALT_IFNAME, Type::String(127)),
    (libc::IFLA_PROTO_DOWN_REASON, Type::Unsupported),
    (libc::IFLA_GRO_MAX_SIZE, Type::Unsupported),
    (super::encode::IFLA_GSO_IPV4_MAX_SIZE, Type::Unsupported),
    (super::encode::IFLA_GRO_IPV4_MAX_SIZE, Type::Unsupported),
]);

const INFO: [Type; 6] = policy(&[
    (libc::IFLA_INFO_KIND, Type::String(55)),
    (libc::IFLA_INFO_DATA, Type::Nested),
    (libc::IFLA_INFO_SLAVE_KIND, Type::String(55)),
    (libc::IFLA_INFO_SLAVE_DATA, Type::Nested),
]);

const VRF: [Type; 2] = policy(&[(super::encode::IFLA_VRF_TABLE, Type::U32)]);

const INET6: [Type; 10] = policy(&[
    (1, Type::Unsupported), // IFLA_INET6_FLAGS
    (2, Type::Unsupported), // IFLA_INET6_CONF
    (7, Type::Unsupported), // IFLA_INET6_TOKEN
    (super::encode::IFLA_INET6_ADDR_GEN_MODE, Type::U8),
    (9, Type::Unsupported), // IFLA_INET6_RA_MTU
]);

/// The flags that a request can change; others in it mean nothing. Linux: `__dev_change_flags`.
const SETTABLE: u32 = (IFF_UP
    | IFF_DEBUG
    | IFF_NOTRAILERS
    | IFF_NOARP
    | IFF_PROMISC
    | IFF_ALLMULTI
    | IFF_MULTICAST
    | IFF_PORTSEL
    | IFF_AUTOMEDIA
    | IFF_DYNAMIC) as u32;

/// A request's `struct ifinfomsg` and attributes.
pub(crate) struct Wanted<'a> {
    index: i32,
    flags: u32,
    change: u32,
    pub(super) attributes: Attributes<'a, 66>,
    pub(super) kind: Option<String>,
    data: Option<Attribute<'a>>,
    /// What it says of a link as one that is enslaved to another.
    slave_data: Option<Attribute<'a>>,
}

impl<'a> Wanted<'a> {
    /// Reads a request.
    pub fn parse(request: &Request<'a>) -> Result<Self, RequestError> {
        let (header, attributes) = request.parse::<16, 66>(&POLICY, Validate::Liberal)?;
        let word = |at: usize| word(&header, at);
        // Linux reads it where a link may be made, and only there: `__rtnl_newlink`.
        let info = attributes.get(libc::IFLA_LINKINFO);
        let info = match info.filter(|_| request.message.kind != libc::RTM_SETLINK) {
            Some(info) => Some(info.parse_nested(&INFO, Validate::Liberal)?),
            None => None,
        };
        Ok(Self {
            index: i32::from_ne_bytes(word(4)),
            flags: u32::from_ne_bytes(word(8)),
            change: u32::from_ne_bytes(word(12)),
            attributes,
            kind: info.as_ref().and_then(|info| info.get(libc::IFLA_INFO_KIND)).map(|kind| kind.text()),
            data: info.as_ref().and_then(|info| info.get(libc::IFLA_INFO_DATA)),
            slave_data: info.as_ref().and_then(|info| info.get(libc::IFLA_INFO_SLAVE_DATA)),
        })
    }

    /// The VRF or the bridge of the router's beside a kernel that the link is to be enslaved to, if it is one of the kernel's kinds.
    pub fn joins(&self, router: &Router) -> Option<u32> {
        let live = router.live.as_ref()?;
        let master = self.attributes.get(libc::IFLA_MASTER)?.u32();
        let kernels = self.kind.as_deref().is_some_and(|kind| !is_made(kind));
        live.devices.get(master).filter(|_| kernels).map(|_| master)
    }

    /// Whether it says something of what makes the link's kind.
    pub const fn changes_kind(&self) -> bool {
        self.data.is_some()
    }

    /// What a kind asks of its parameters, of address and MTU, whether there is such a link or not, and of whichever kind that is.
    /// Linux: `vrf_validate`, `dummy_validate`, `ipgre_tap_validate`, `vxlan_validate`, `geneve_validate` and the like.
    fn validate(&self) -> Result<(), RequestError> {
        let missing = match self.kind.as_deref().filter(|_| self.data.is_none()) {
            Some("vxlan") => Some("Required attributes not provided to perform the operation"),
            Some("geneve" | "bareudp") => Some("Not enough attributes provided to perform the operation"),
            _ => None,
        };
        self.validate_address()?;
        if let Some(missing) = missing {
            return Err(RequestError::new(EINVAL, missing));
        }
        match (self.kind.as_deref(), &self.data) {
            (Some("vlan"), data) => underpass_netlink::vlan::Wanted::parse(data.as_ref()).map(drop),
            (Some("bridge"), Some(data)) => underpass_netlink::bridge::validate(data),
            _ => Ok(()),
        }
    }

    /// The same of address and MTU alone.
    fn validate_address(&self) -> Result<(), RequestError> {
        if self.kind.as_deref() == Some("vxlan") {
            let [address, mtu] = [libc::IFLA_ADDRESS, libc::IFLA_MTU].map(|kind| self.attributes.get(kind));
            return vxlan::validate(address.as_ref(), mtu.as_ref());
        }
        if self.kind.as_deref() == Some("geneve") {
            return vxlan::validate_address(self.attributes.get(libc::IFLA_ADDRESS).as_ref());
        }
        let Some(address) = self.attributes.get(libc::IFLA_ADDRESS) else { return Ok(()) };
        match self.kind.as_deref() {
            Some("vrf") => {
                let said = "Invalid hardware address";
                check_ethernet(&address).map_err(|error| RequestError::new(error.errno, said))?;
            }
            Some("dummy" | "ifb" | "gretap" | "ip6gretap") => {
                check_ethernet(&address)?;
            }
            // Linux: `br_validate`.
            Some("bridge") => {
                check_ethernet(&address)?;
            }
            Some("vlan") => {
                let said = "8021q: Invalid link address";
                check_ethernet(&address).map_err(|error| RequestError::new(error.errno, said))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        self.attributes.get(libc::IFLA_IFNAME).map(|name| name.text())
    }

    /// The link that is meant, by index or else by name; whether any was named at all.
    pub fn find<'r>(&self, router: &'r Router) -> (Option<&'r Link>, bool) {
        let alternative = || self.attributes.get(libc::IFLA_ALT_IFNAME).map(|name| name.text());
        match (self.index, self.name().or_else(alternative)) {
            (1.., _) => (router.links.get(self.index as u32), true),
            (_, Some(name)) => (router.links.named(&name), true),
            _ => (None, false),
        }
    }

    /// What `link` is to become.
    fn apply(&self, router: &Router, link: &Link) -> Result<Link, RequestError> {
        self.apply_to(router, link, false)
    }

    /// What a tunnel is to become that is just being made: the addresses of a layer-3 one are its ends.
    fn apply_new(&self, router: &Router, link: &Link) -> Result<Link, RequestError> {
        self.apply_to(router, link, true)
    }

    fn apply_to(&self, router: &Router, link: &Link, new: bool) -> Result<Link, RequestError> {
        let opens = self.opens(link);
        let mut link = link.clone();
        let families = self.attributes.get(libc::IFLA_AF_SPEC);
        if let Some(families) = &families {
            addr_gen_mode(families, &link)?;
        }
        // Geneve without frames has an Ethernet device's functions, and none of its addresses is shown.
        let layer3 =
            matches!(link.kind, LinkKind::Tunnel(kind) if !kind.ethernet() && kind != Kind::GeneveIp);
        let mac = |attribute: Attribute<'_>| {
            if layer3 {
                return Err(RequestError::errno(EOPNOTSUPP));
            }
            <[u8; 6]>::try_from(attribute.value).map_err(|_| RequestError::errno(EINVAL))
        };
        if let Some(address) = self.attributes.get(libc::IFLA_ADDRESS).filter(|_| !(new && layer3)) {
            link.mac = mac(address)?;
            if !valid_mac(link.mac) {
                return Err(RequestError::errno(EADDRNOTAVAIL));
            }
            if let Some(vlan) = &mut link.vlan {
                vlan.inherits_mac = false;
            }
            bridge::set_mac(&mut link, new && router.live.is_none());
        }
        if let Some(mtu) = self.attributes.get(libc::IFLA_MTU) {
            let (min, mut max) = mtu_bounds(&link);
            if new {
                max = geneve::first_max_mtu(&link).unwrap_or(max);
            }
            let old = std::mem::replace(&mut link.mtu, mtu.u32());
            if link.mtu > i32::MAX as u32 || link.mtu < min {
                return Err(RequestError::new(EINVAL, "mtu less than device minimum"));
            }
            if max > 0 && link.mtu > max {
                return Err(RequestError::new(EINVAL, "mtu greater than device maximum"));
            }
            if let Some(tunnel) = link.tunnel.as_ref().filter(|_| !new) {
                tunnel.check_mtu(link.mtu)?;
                vxlan::check_mtu(router, &link)?;
            }
            if !new {
                // Linux: `netif_set_mtu_ext` does nothing where it is the same.
                if link.mtu != old {
                    bridge::set_mtu(&mut link);
                }
                vlan::check_mtu(router, &link)?;
            }
        }
        if let Some(group) = self.attributes.get(libc::IFLA_GROUP) {
            link.group = group.u32();
        }
        if let Some(alias) = self.attributes.get(libc::IFLA_IFALIAS) {
            link.alias = alias.value.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
            if link.alias.len() > 255 {
                return Err(RequestError::errno(EINVAL));
            }
        }
        if let Some(broadcast) = self.attributes.get(libc::IFLA_BROADCAST).filter(|_| !(new && layer3)) {
            link.broadcast = mac(broadcast)?;
        }
        if let Some(master) = self.attributes.get(libc::IFLA_MASTER) {
            link.master = master_for(router, &link, master.u32())?;
        }
        if let Some(len) = self.attributes.get(libc::IFLA_TXQLEN) {
            link.tx_queue_len = len.u32();
        }
        if let Some(families) = &families {
            link.eui64 = addr_gen_mode(families, &link)?; // once more: the MTU may be too small now
        }
        if self.flags != 0 || self.change != 0 {
            let was_up = link.up();
            link.flags = self.new_flags(&link)?;
            // Linux: `eth_validate_addr`. `gretap0` has none at first.
            if !was_up {
                vlan::check_up(router, &link)?;
            }
            if link.up() && !was_up && link.kind.is_ethernet_tunnel() && !valid_mac(link.mac) {
                return Err(RequestError::errno(EADDRNOTAVAIL));
            }
        }
        if opens {
            port::check_port(router, &link)?;
        }
        Ok(link)
    }

    /// Whether a device opens its UDP port because it comes up.
    pub fn opens(&self, link: &Link) -> bool {
        port::opens_port(link) && self.rises(link)
    }

    /// Whether the link comes up by it.
    const fn rises(&self, link: &Link) -> bool {
        let up = IFF_UP as u32;
        !link.up() && self.flags & up != 0 && (self.change == 0 || self.change & up != 0)
    }

    /// Whether what it says of a VLAN device or a VXLAN is for the link below to allow, or makes the device depend on that no more.
    fn depends_on_lower(&self, link: &Link) -> bool {
        let said = [libc::IFLA_MTU, libc::IFLA_ADDRESS].map(|kind| self.attributes.get(kind).is_some());
        self.rises(link) || said.contains(&true)
    }

    /// Linux: `rtnl_dev_get_flags` and `__dev_change_flags`.
    fn new_flags(&self, link: &Link) -> Result<u32, RequestError> {
        let keep = if self.change == 0 { 0 } else { !self.change };
        let flags = self.flags & !keep | link.flags & keep;
        let flags = flags & SETTABLE | link.flags & !SETTABLE;
        // The neighbours on a port always have link-layer addresses of their own.
        if matches!(link.kind, LinkKind::Port(_)) && flags & IFF_NOARP as u32 != 0 {
            return Err(RequestError::new(EOPNOTSUPP, "NOARP cannot be set on a port of this router"));
        }
        Ok(flags)
    }
}

impl Wanted<'_> {
    /// What a link becomes by what the request says of its kind, and of what it is enslaved to.
    fn parameters(&self, router: &Router, link: &Link) -> Result<(Link, Flush), RequestError> {
        let (mut changed, mut flush) = (link.clone(), Flush::default());
        // Of what makes their kind only tunnels, VLAN devices and bridges can be changed.
        if let Some(data) = &self.data {
            let mtu = self.attributes.get(libc::IFLA_MTU).is_some();
            let kind = self.kind.as_deref();
            match (&link.vlan, &link.bridge) {
                (Some(vlan), _) if kind == Some("vlan") => changed = vlan::change(link, vlan, data)?,
                (_, Some(bridge)) if kind == Some("bridge") => {
                    (changed, flush) = bridge::change(link, bridge, data)?;
                }
                _ => changed = tunnel::change(router, link, kind, data, mtu)?,
            }
        }
        if let Some(data) = &self.slave_data {
            let (port, stations) = bridge::change_port(router, &changed, data)?;
            (changed, flush) = (port, Flush { stations: flush.stations || stations.stations });
        }
        Ok((changed, flush))
    }

    /// What a link that was named becomes, its name included.
    fn changed(&self, router: &Router, link: &Link) -> Result<Link, RequestError> {
        let mut changed = self.apply(router, link)?;
        if let Some(name) = self.name()
            && self.index > 0
            && name != link.name
        {
            changed.name = free_name(router, &name)?;
        }
        Ok(changed)
    }
}

/// `addrgenmode` in `IFLA_AF_SPEC`. Linux: `inet6_validate_link_af`.
fn addr_gen_mode(families: &Attribute<'_>, link: &Link) -> Result<bool, RequestError> {
    let mut eui64 = link.eui64;
    for family in families.nested() {
        if i32::from(family.kind) != libc::AF_INET6 {
            return Err(
                RequestError::new(EOPNOTSUPP, "Attribute is not supported by this router").at(family.offset)
            );
        }
        if !link.ipv6() {
            return Err(RequestError::errno(EAFNOSUPPORT));
        }
        let attributes = family.parse_nested(&INET6, Validate::Liberal)?;
        if let Some(mode) = attributes.get(super::encode::IFLA_INET6_ADDR_GEN_MODE) {
            eui64 = match mode.u8() {
                0 => true,
                1 => false,
                2 | 3 => {
                    return Err(RequestError::new(EOPNOTSUPP, "addrgenmode is not supported by this router")
                        .at(mode.offset));
                }
                _ => return Err(RequestError::errno(EINVAL)),
            };
        }
    }
    Ok(eui64)
}

/// A name for a new link or a renamed one; `%d` in it stands for the lowest number that is free. Linux:
/// `dev_get_valid_name`.
fn free_name(router: &Router, name: &str) -> Result<String, RequestError> {
    if !valid_name(name) {
        return Err(RequestError::errno(EINVAL));
    }
    let Some((before, after)) = name.split_once("%d") else {
        return match router.links.named(name) {
            _ if name.contains('%') => Err(RequestError::errno(EINVAL)),
            Some(_) => Err(RequestError::errno(EEXIST)),
            None => Ok(name.to_owned()),
        };
    };
    if before.contains('%') || after.contains('%') {
        return Err(RequestError::errno(EINVAL));
    }
    let free = (0..).map(|n: u32| format!("{before}{n}{after}")).find(|n| router.links.named(n).is_none());
    free.filter(|name| valid_name(name)).ok_or(RequestError::errno(libc::ENFILE))
}

/// `RTM_NEWLINK`. Linux: `rtnl_newlink`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request)?;
    if wanted.index < 0 {
        return Err(RequestError::new(EINVAL, "ifindex can't be negative"));
    }
    wanted.validate()?;
    let cause = Cause::from(request);
    match wanted.find(router) {
        (Some(_), _) if request.exclusive() => Err(RequestError::errno(EEXIST)),
        (Some(_), _) if request.replace() => Err(RequestError::errno(EOPNOTSUPP)),
        (Some(link), _) => {
            let (link, flush) = wanted.parameters(router, link)?;
            let changed = wanted.changed(router, &link);
            let changed = changed.inspect_err(|_| leave_master(router, cause, &wanted, link.index))?;
            if router.live.is_some() {
                change_beside(router, request, changed.clone(), wanted.data.is_some())?;
                if wanted.slave_data.is_some() {
                    bridge::beside::change_port(router, cause, &changed);
                }
            }
            if flush.stations {
                bridge::fdb::flush(router, cause, &changed);
            }
            if router.live.is_none() {
                change_link(router, cause, changed);
            }
            Ok(Outcome::Done)
        }
        (None, named) if !request.create() => {
            let group = wanted.attributes.get(libc::IFLA_GROUP).filter(|_| !named);
            change_group(router, cause, &wanted, group.ok_or(RequestError::errno(ENODEV))?.u32())
        }
        (None, _) => create::create(router, request, &wanted),
    }
}

/// Changes the links of a group one after the other: each is judged by what those before it have become, and they stay
/// changed where it is refused. Linux: `rtnl_group_changelink`.
fn change_group(
    router: &mut Router,
    cause: Cause,
    wanted: &Wanted<'_>,
    group: u32,
) -> Result<Outcome, RequestError> {
    let members = router.links.iter().filter(|link| link.group == group);
    for index in members.map(|link| link.index).collect::<Vec<_>>() {
        let Some(link) = router.links.get(index) else { continue };
        let changed = wanted.apply(router, link);
        let changed = changed.inspect_err(|_| leave_master(router, cause, wanted, index))?;
        change_link(router, cause, changed);
    }
    Ok(Outcome::Done)
}

/// Makes of a link beside a kernel what `changed` says; `kind`: also of what makes its kind.
fn change_beside(
    router: &mut Router,
    request: &Request<'_>,
    changed: Link,
    kind: bool,
) -> Result<Outcome, RequestError> {
    if vlan::beside::is_own(router, &changed) {
        return vlan::beside::change(router, request, &changed);
    }
    if bridge::beside::is_own(router, &changed) {
        return bridge::beside::change(router, request, &changed);
    }
    match kind {
        true => change_tunnel(router, request, changed),
        false => set_master(router, request, changed.index, changed.master),
    }
}

/// `RTM_SETLINK`. Linux: `rtnl_setlink`.
pub(crate) fn set(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request)?;
    match wanted.find(router) {
        (Some(link), _) => {
            let (index, cause) = (link.index, Cause::from(request));
            let changed = wanted.changed(router, link);
            let changed = changed.inspect_err(|_| leave_master(router, cause, &wanted, index))?;
            if router.live.is_some() {
                return change_beside(router, request, changed, false);
            }
            change_link(router, cause, changed);
            Ok(Outcome::Done)
        }
        (None, true) => Err(RequestError::errno(ENODEV)),
        (None, false) => Err(RequestError::errno(EINVAL)),
    }
}

/// `RTM_DELLINK`. Linux: `rtnl_dellink`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request)?;
    let doomed: Vec<&Link> = match (wanted.find(router), wanted.attributes.get(libc::IFLA_GROUP)) {
        ((Some(link), _), _) => vec![link],
        ((None, true), _) => return Err(RequestError::errno(ENODEV)),
        (_, Some(group)) if group.u32() == 0 => return Err(RequestError::errno(EPERM)),
        (_, Some(group)) => {
            let group: Vec<_> = router.links.iter().filter(|link| link.group == group.u32()).collect();
            if group.is_empty() {
                return Err(RequestError::errno(ENODEV));
            }
            group
        }
        _ => return Err(RequestError::errno(EINVAL)),
    };
    if doomed.iter().any(|link| link.kind.name().is_none()) {
        return Err(RequestError::errno(EOPNOTSUPP));
    }
    // Linux: `ip_tunnel_dellink`, which says nothing of it.
    let doomed: Vec<u32> = doomed.iter().filter(|link| !link.is_fallback()).map(|link| link.index).collect();
    if router.live.is_some() {
        return delete_devices(router, &doomed);
    }
    doomed.into_iter().for_each(|index| delete_link(router, Cause::from(request), index));
    Ok(Outcome::Done)
}

/// The link that a request moves to another network namespace, if it does.
fn moved<'r>(router: &'r Router, request: &Request<'_>) -> Option<&'r Link> {
    let attributes = || request.message.attributes(HEADER);
    attributes().find(|it| {
        matches!(it.kind, libc::IFLA_NET_NS_PID | libc::IFLA_NET_NS_FD | libc::IFLA_TARGET_NETNSID)
    })?;
    let index = u32::from_ne_bytes(*request.message.body().get(4..)?.first_chunk()?);
    match index {
        0 => router.links.named(&attributes().find(|it| it.kind == libc::IFLA_IFNAME)?.text()),
        index => router.links.get(index),
    }
}

/// Whether a request is about a device that the router makes, or has made, or about what is enslaved to one.
pub(crate) fn is_own(router: &Router, request: &Request<'_>) -> bool {
    let Some(live) = &router.live else { return true };
    let made = |index: u32| live.devices.get(index).is_some();
    let Ok(wanted) = Wanted::parse(request) else {
        // What only the kernel can do is for the kernel to judge. But to move a device of ours to another network namespace, where
        // nobody would speak for it, is refused.
        return moved(router, request).is_some_and(|link| made(link.index));
    };
    let (link, _) = wanted.find(router);
    match request.message.kind {
        libc::RTM_DELLINK => link.is_some_and(|link| made(link.index)),
        libc::RTM_NEWLINK if creates(request) && wanted.kind.as_deref().is_some_and(is_made) => true,
        libc::RTM_NEWLINK | libc::RTM_SETLINK => {
            let master = wanted.attributes.get(libc::IFLA_MASTER).map(|master| master.u32());
            let slave = link.is_some_and(|link| live.devices.master(link.index).is_some());
            if wanted.changes_kind() && link.is_some_and(|link| made(link.index)) {
                return true;
            }
            if link.is_some_and(|link| {
                link.bridge.is_some() || link.bridge_port.is_some() && wanted.slave_data.is_some()
            }) {
                return true;
            }
            if link.is_some_and(|link| wanted.opens(link)) {
                return true;
            }
            let above = |link: &Link| vlan::beside::is_own(router, link) || link.has_ends();
            if link.is_some_and(|link| above(link) && wanted.depends_on_lower(link)) {
                return true;
            }
            match (link, master) {
                (Some(_), Some(master)) => made(master) || slave,
                (None, Some(master)) => creates(request) && made(master),
                _ => false,
            }
        }
        _ => false,
    }
}
