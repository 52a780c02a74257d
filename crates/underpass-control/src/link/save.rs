//! Links as lines.

use std::collections::BTreeMap;

use libc::{
    IFF_ALLMULTI, IFF_AUTOMEDIA, IFF_DEBUG, IFF_DYNAMIC, IFF_MULTICAST, IFF_NOARP, IFF_NOTRAILERS,
    IFF_PORTSEL, IFF_PROMISC,
};

use underpass_netlink::Attribute;
use underpass_netlink::tunnel::Kind;

use super::encode::IFLA_INET6_ADDR_GEN_MODE;
use super::proxied::HEADER;

use super::tunnel::save::{first, kind_words};
use super::{Link, LinkKind, bridge, vlan};
use crate::Router;
use crate::address::publish::would_wait;
use crate::route::{Family, InfoId, Prefix};
use crate::save::{Save, Words, mac, quoted};

/// include/uapi/linux/if_link.h
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

/// The links that requests have made, and what requests have changed of all.
pub(crate) fn save_links(save: &mut Save<'_>) {
    for link in in_order(save) {
        match link.fallback_name() {
            None => add(save, link),
            // It is there as soon as it is named.
            Some(first) if first != link.name => {
                save.line(Words::new(&format!("ip link set dev {first} name {}", quoted(&link.name))));
            }
            Some(_) => {}
        }
    }
    for link in save.router.links.iter() {
        if save.keeps(link.index) {
            set(save, link);
        }
    }
    let mut slaves: Vec<&Link> = save.router.links.iter().filter(|link| link.master.is_some()).collect();
    // Ports of a bridge get their numbers again.
    slaves.sort_by_key(|link| link.bridge_port.as_ref().map(|port| port.settings.number));
    for link in slaves {
        let Some(master) = link.master else { continue };
        if save.makes(master) {
            let (name, master) = (save.name(link.index), save.name(master));
            save.line(Words::new(&format!("ip link set dev {name} master {master}")));
        }
    }
    bridge::save::save_ports(save);
}

/// Every link behind the one that it is bound to, and else as they were made.
fn in_order<'a>(save: &Save<'a>) -> Vec<&'a Link> {
    let links = save.router.links.iter().filter(|link| save.makes(link.index));
    let mut rest: BTreeMap<u32, &Link> = links.map(|link| (link.index, link)).collect();
    let mut ordered: Vec<&Link> = Vec::new();
    while let Some(first) = rest.values().next() {
        let waits = |link: &Link| {
            let lower = link.lower().filter(|lower| *lower != 0 && *lower != link.index);
            lower.is_some_and(|lower| rest.contains_key(&lower))
        };
        // In a circle there is none to begin with.
        let next = rest.values().find(|link| !waits(link)).unwrap_or(first).index;
        ordered.extend(rest.remove(&next));
    }
    ordered
}

fn add(save: &mut Save<'_>, link: &Link) {
    let mut line = Words::new("ip link add");
    if let Some(vlan) = &link.vlan {
        line.pair("link", save.name(vlan.lower));
    }
    line.pair("name", quoted(&link.name));
    let inherits = link.vlan.as_ref().is_some_and(|vlan| vlan.inherits_mac)
        || link.bridge.as_ref().is_some_and(|bridge| !bridge.mac_is_set);
    if is_ethernet(link) && !inherits {
        line.pair("address", mac(link.mac));
    }
    match (&link.tunnel, &link.vlan) {
        (_, Some(vlan)) => {
            line.add(vlan::words(vlan));
        }
        (None, None) if let Some(bridge) = &link.bridge => {
            line.add(bridge::save::words(bridge));
        }
        (Some(tunnel), None) => {
            let words = kind_words(save, &link.name, tunnel);
            line.add(words);
        }
        (None, None) => {
            line.some("type", link.kind.name()).some("table", link.vrf_table());
        }
    }
    save.line(line);
}

/// Whether it has a hardware address that can be set.
fn is_ethernet(link: &Link) -> bool {
    match link.kind {
        LinkKind::Loopback => false,
        LinkKind::Port(_)
        | LinkKind::Kernel
        | LinkKind::Dummy
        | LinkKind::Ifb
        | LinkKind::Vrf { .. }
        | LinkKind::Vlan
        | LinkKind::Bridge => true,
        LinkKind::Tunnel(kind) => kind.ethernet() && link.mac != [0; 6],
    }
}

/// What a link is at first: as requests make it.
fn fresh(save: &Save<'_>, link: &Link) -> Link {
    match (&link.tunnel, &link.vlan) {
        (_, Some(vlan)) => vlan::as_made(save.router, link, vlan),
        (Some(tunnel), None) => first(save.router, link, tunnel),
        (None, None) => {
            let mut first = Link::new(link.index, link.name.clone(), link.kind, link.mac);
            // That of a bridge follows from its ports, unless a request has set it.
            let has_ports = save.router.links.slaves(link.index).next().is_some();
            if has_ports && link.bridge.as_ref().is_some_and(|bridge| !bridge.mtu_is_set) {
                first.mtu = link.mtu;
            }
            first
        }
    }
}

/// What differs from a link as it is at first.
fn set(save: &mut Save<'_>, link: &Link) {
    let first = fresh(save, link);
    let Link {
        index,
        name: _,
        kind: _,
        flags,
        mac: address,
        broadcast,
        mtu,
        tx_queue_len,
        master: _,
        alias,
        group,
        eui64,
        attached: _,
        sink: _,
        carrier: _,
        activated: _,
        qdisc: _,
        carrier_changes: _,
        tunnel: _,
        vlan: _,
        bridge: _,
        bridge_port: _,
        id: _,
    } = link;
    let mut line = Words::default();
    let is_own = save.makes(*index) && !link.is_fallback();
    line.some("address", (is_ethernet(link) && !is_own).then(|| mac(*address)));
    line.some("broadcast", (is_ethernet(link) && *broadcast != first.broadcast).then(|| mac(*broadcast)));
    // That of a tunnel is what its way was when it was made.
    let last = has_ipv6(save.router, link);
    let said = link.bridge.as_ref().is_some_and(|bridge| bridge.mtu_is_set);
    line.some(
        "mtu",
        (!last && (*mtu != first.mtu || said || link.lower().is_some() || link.tunnel.is_some()))
            .then_some(mtu),
    );
    line.some("txqueuelen", (*tx_queue_len != first.tx_queue_len).then_some(tx_queue_len));
    line.some("group", (*group != first.group).then_some(group));
    let mode = if save.router.live.is_some() {
        kernels_mode(save.router, link)
    } else {
        (*eui64 != first.eui64).then_some(if *eui64 { "eui64" } else { "none" })
    };
    if let Some(mode) = mode {
        match link.ipv6() {
            true => {
                line.pair("addrgenmode", mode);
            }
            // Before the MTU is too small for it.
            false if first.ipv6() => {
                let name = save.name(*index);
                save.line(Words::new(&format!("ip link set dev {name} addrgenmode {mode}")));
            }
            false => {}
        }
    }
    // The flags of a device beside a kernel follow from its kind.
    if save.router.live.is_none() {
        let changed = (flags ^ first.flags) as i32;
        let switches = [
            (IFF_MULTICAST, "multicast"),
            (IFF_ALLMULTI, "allmulticast"),
            (IFF_PROMISC, "promisc"),
            (IFF_DYNAMIC, "dynamic"),
        ];
        for (flag, name) in switches.into_iter().filter(|(flag, _)| changed & flag != 0) {
            line.pair(name, if *flags as i32 & flag != 0 { "on" } else { "off" });
        }
        if changed & IFF_NOARP != 0 {
            line.pair("arp", if *flags as i32 & IFF_NOARP != 0 { "off" } else { "on" });
        }
        if changed & IFF_NOTRAILERS != 0 {
            line.pair("trailers", if *flags as i32 & IFF_NOTRAILERS != 0 { "off" } else { "on" });
        }
        let nameless = changed & (IFF_DEBUG | IFF_PORTSEL | IFF_AUTOMEDIA);
        if nameless != 0 {
            save.left_out(format!("flags {nameless:#x} of the link {}", link.name));
        }
    }
    if save.router.live.is_some() {
        save_reported(save, link, &mut line);
    }
    match std::str::from_utf8(alias) {
        Ok(text) if !text.contains('\n') => {
            line.some("alias", (!alias.is_empty()).then(|| quoted(text)));
        }
        _ => save.left_out(format!("the alias of the link {}: it is not a line of text", link.name)),
    }
    if !line.is_empty() {
        let name = save.name(*index);
        save.line(Words::new(&format!("ip link set dev {name} {line}")));
    }
}

/// What the kernel says of a device that it has made for the router, and the router has no use for.
fn save_reported(save: &mut Save<'_>, link: &Link, line: &mut Words) {
    let Some(body) = save.router.live.as_ref().and_then(|live| live.devices.reported.get(&link.index)) else {
        return;
    };
    let (Some(header), Some(value)) = (body.first_chunk::<HEADER>(), body.get(HEADER..)) else { return };
    // `struct ifinfomsg`: the flags that are set by requests alone.
    let flags = i32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    for (flag, name) in [(IFF_PROMISC, "promisc"), (IFF_ALLMULTI, "allmulticast")] {
        line.when(flags & flag != 0, &format!("{name} on"));
    }
    let message = Attribute { kind: 0, offset: 0, value };
    if let Some(alias) = nested(&message, libc::IFLA_IFALIAS).filter(|_| link.alias.is_empty()) {
        match std::str::from_utf8(alias.value.strip_suffix(&[0]).unwrap_or(alias.value)) {
            Ok(text) if !text.contains('\n') => {
                line.pair("alias", quoted(text));
            }
            _ => save.left_out(format!("the alias of the link {}: it is not a line of text", link.name)),
        }
    }
    let names = nested(&message, IFLA_PROP_LIST);
    for name in names.iter().flat_map(Attribute::nested).filter(|inner| inner.kind == IFLA_ALT_IFNAME) {
        let other = String::from_utf8_lossy(name.value).trim_end_matches('\0').to_owned();
        let own = save.name(link.index);
        save.line(Words::new(&format!("ip link property add dev {own} altname {}", quoted(&other))));
    }
}

/// The attribute of a kind inside another.
fn nested<'a>(attribute: &Attribute<'a>, kind: u16) -> Option<Attribute<'a>> {
    attribute.nested().find(|inner| inner.kind == kind)
}

/// `addrgenmode` of a device that the kernel has made for the router, if it is not as it was made.
fn kernels_mode(router: &Router, link: &Link) -> Option<&'static str> {
    const MODES: [&str; 4] = ["eui64", "none", "stable_secret", "random"];
    let body = router.live.as_ref()?.devices.reported.get(&link.index)?;
    let message = Attribute { kind: 0, offset: 0, value: body.get(HEADER..)? };
    let families = nested(&message, libc::IFLA_AF_SPEC)?;
    let mode = nested(&nested(&families, libc::AF_INET6 as u16)?, IFLA_INET6_ADDR_GEN_MODE)?;
    let mode = *MODES.get(usize::from(*mode.value.first()?))?;
    let made_without = matches!(link.kind, LinkKind::Vrf { .. } | LinkKind::Tunnel(Kind::Ipip));
    // Of a device that is down the kernel does not report it.
    (link.up() && made_without != (mode == "none")).then_some(mode)
}

/// Whether a link has neighbours or routes of IPv6, and an MTU by which it could get none now.
fn has_ipv6(router: &Router, link: &Link) -> bool {
    let routed = || {
        let tables = router.routes.tables.iter().filter(|((family, _), _)| *family == Family::V6);
        let mut ids = tables.flat_map(|(_, table)| table.after(None)).flat_map(|(_, ids)| ids);
        ids.any(|id| {
            let info = router.routes.infos.get(*id);
            info.is_some_and(|info| info.hops().iter().any(|hop| hop.oif == link.index))
        })
    };
    !link.ipv6() && (router.neighbours.on(link.index, true).next().is_some() || routed())
}

/// The MTUs of such links, when all is there.
pub(crate) fn save_mtus(save: &mut Save<'_>) {
    for link in save.router.links.iter() {
        if save.keeps(link.index) && has_ipv6(save.router, link) {
            let name = save.name(link.index);
            save.line(Words::new(&format!("ip link set dev {name} mtu {}", link.mtu)));
        }
    }
}

/// Takes up the links whose addresses may be made of those of all others, or all others.
pub(crate) fn save_up(save: &mut Save<'_>, last: bool) {
    let mut links: Vec<&Link> = save.router.links.iter().filter(|link| link.is_last() == last).collect();
    links.sort_by_cached_key(|link| save.router.has_carrier_at(link));
    for link in links.into_iter().filter(|link| link.kind != LinkKind::Loopback || !link.up()) {
        if !save.keeps(link.index) {
            continue;
        }
        let name = save.name(link.index);
        // What a link is that has been up shows in its queue.
        if link.up() || link.activated && link.kind != LinkKind::Loopback && save.router.live.is_none() {
            save.line(Words::new(&format!("ip link set dev {name} up")));
        }
        if !link.up() && link.activated {
            save.line(Words::new(&format!("ip link set dev {name} down")));
        }
    }
    if last {
        vlan::bind(save);
    }
}

impl Link {
    /// Whether it may have addresses that are made of those of other links.
    pub(crate) fn is_last(&self) -> bool {
        let makes = |kind: Kind| self.eui64 || kind == Kind::Sit;
        let tunnel = self.tunnel.as_ref().filter(|tunnel| makes(tunnel.parameters.kind));
        tunnel.is_some_and(|tunnel| self.takes_ipv4_addresses(tunnel))
    }
}

impl Router {
    /// The place of a link in the order in which links get a carrier, and with it addresses of their own: a VLAN device after the link
    /// below, a bridge after the first of its ports; how many are below it; and its index.
    fn has_carrier_at(&self, link: &Link) -> (usize, u32, u32) {
        let (own, index) = self.came_up(link.index);
        if would_wait(self, link) {
            return (usize::MAX, 0, index);
        }
        let lower = link.vlan.iter().filter_map(|vlan| self.links.get(vlan.lower));
        let ports =
            self.links.slaves(index).filter(|port| link.bridge.is_some() && port.up() && port.carrier);
        match lower.chain(ports).map(|below| self.has_carrier_at(below)).min() {
            Some((below, depth, _)) => (own.max(below), depth + 1, index),
            None => (own, 0, index),
        }
    }

    /// Links that have come up earlier have lower numbers, as their routes to all multicast groups say.
    fn came_up(&self, link: u32) -> (usize, u32) {
        let all = Prefix::new(0xff << 120, 8);
        let tables = self.routes.tables.iter().filter(|((family, _), _)| *family == Family::V6);
        let ids = tables.flat_map(|(_, table)| table.get(all));
        let leads = |id: &InfoId| {
            let info = self.routes.infos.get(*id);
            info.is_some_and(|info| info.hops().iter().any(|hop| hop.oif == link))
        };
        (ids.copied().position(|id| leads(&id)).unwrap_or(usize::MAX), link)
    }
}
