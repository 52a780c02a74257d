//! Bridges as lines.

use underpass_engine::l2::fdb::{EXTERNAL, Entry, LOCAL, STATIC, STICKY, Station, USER};
use underpass_netlink::bridge::{
    self, BCAST_FLOOD, BLOCKING, FLOOD, FORWARDING, GUARD, HAIRPIN, ISOLATED, LEARNS, LOCKED, MCAST_FLOOD,
    NEIGH_SUPPRESS, NEIGH_VLAN_SUPPRESS, PROXY_ARP, PROXY_ARP_WIFI, ROOT_BLOCK, SpanningTree, VLAN_TUNNEL,
};

use super::super::Link;
use super::vlans::Vlans;
use super::{Bridge, BridgePort, trees};
use crate::Router;
use crate::save::{Save, Words, mac, protocol};

const fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// `type` and what follows it.
pub(in crate::link) fn words(bridge: &Bridge) -> Words {
    let bridge::Bridge {
        spanning_tree,
        forward_delay,
        hello_time,
        max_age,
        ageing_time,
        priority,
        group_fwd_mask,
        vlan_filtering,
        vlan_protocol,
        default_pvid,
    } = &bridge.settings;
    let first = bridge::Bridge::default();
    let mut words = Words::new("type bridge");
    words.some("stp_state", (*spanning_tree != SpanningTree::Off).then_some(1));
    words.some("forward_delay", (*forward_delay != first.forward_delay).then_some(forward_delay));
    words.some("hello_time", (*hello_time != first.hello_time).then_some(hello_time));
    words.some("max_age", (*max_age != first.max_age).then_some(max_age));
    words.some("ageing_time", (*ageing_time != first.ageing_time).then_some(ageing_time));
    words.some("priority", (*priority != first.priority).then_some(priority));
    words.some("group_fwd_mask", (*group_fwd_mask != 0).then_some(group_fwd_mask));
    words.some("vlan_filtering", vlan_filtering.then_some(1));
    words.some("vlan_protocol", (*vlan_protocol != first.vlan_protocol).then(|| protocol(*vlan_protocol)));
    words.some("vlan_default_pvid", (*default_pvid != first.default_pvid).then_some(default_pvid));
    words
}

/// What differs from a port as it is at first, and the VLANs, once all links are enslaved.
pub(in crate::link) fn save_ports(save: &mut Save<'_>) {
    let links = save.router.links.iter().filter(|link| save.keeps_in_bridge(link));
    let bridges: Vec<&Link> =
        links.filter(|link| link.bridge.is_some() || link.bridge_port.is_some()).collect();
    for link in bridges {
        let name = save.name(link.index);
        if let Some(bridge) = &link.bridge {
            save_vlans(save, &name, &bridge.vlans, bridge.settings.default_pvid, " self");
        }
        let over = super::bridge_of(save.router, link.master).and_then(|over| over.bridge.as_ref());
        if let (Some(port), Some(over)) = (&link.bridge_port, over) {
            let words = port_words(port);
            if !words.is_empty() {
                save.line(Words::new(&format!("ip link set dev {name} type bridge_slave {words}")));
            }
            save_vlans(save, &name, &port.vlans, over.settings.default_pvid, "");
        }
    }
}

fn port_words(port: &BridgePort) -> Words {
    // Its number follows from the order in which links are enslaved, its state is set once it is up.
    let bridge::Port { state: _, priority, cost, cost_is_set, switches: _, group_fwd_mask, number } =
        &port.settings;
    let first = bridge::Port::new(*number);
    let mut words = Words::default();
    words.some("priority", (*priority != first.priority).then_some(priority));
    words.some("cost", cost_is_set.then_some(cost));
    words.some("group_fwd_mask", (*group_fwd_mask != 0).then_some(group_fwd_mask));
    for (bit, name) in [
        (HAIRPIN, "hairpin"),
        (GUARD, "guard"),
        (ROOT_BLOCK, "root_block"),
        (LEARNS, "learning"),
        (FLOOD, "flood"),
        (MCAST_FLOOD, "mcast_flood"),
        (BCAST_FLOOD, "bcast_flood"),
        (ISOLATED, "isolated"),
        (LOCKED, "locked"),
        (PROXY_ARP, "proxy_arp"),
        (PROXY_ARP_WIFI, "proxy_arp_wifi"),
        (NEIGH_SUPPRESS, "neigh_suppress"),
        (NEIGH_VLAN_SUPPRESS, "neigh_vlan_suppress"),
        (VLAN_TUNNEL, "vlan_tunnel"),
    ] {
        let on = port.settings.has(bit);
        words.some(name, (on != first.has(bit)).then(|| switch(on)));
    }
    words
}

fn save_vlans(save: &mut Save<'_>, name: &str, vlans: &Vlans, default: u16, itself: &str) {
    if default != 0 && !vlans.has(default) {
        save.line(Words::new(&format!("bridge vlan del vid {default} dev {name}{itself}")));
    }
    for (id, is_pvid, untagged) in vlans.iter() {
        if id == default && is_pvid && untagged {
            continue;
        }
        let pvid = if is_pvid { " pvid" } else { "" };
        let untagged = if untagged { " untagged" } else { "" };
        save.line(Words::new(&format!("bridge vlan add vid {id} dev {name}{pvid}{untagged}{itself}")));
    }
    for (id, vni) in vlans.networks() {
        save.line(Words::new(&format!("bridge vlan add vid {id} dev {name} tunnel_info id {vni}")));
    }
    for id in vlans.suppressed() {
        save.line(Words::new(&format!("bridge vlan set vid {id} dev {name} neigh_suppress on")));
    }
}

/// What is kept of the stations of bridges, and the states of ports that requests have set. Those that were learned are
/// learned again.
pub(crate) fn save_stations(save: &mut Save<'_>) {
    let links: Vec<&Link> = save.router.links.iter().filter(|link| save.keeps_in_bridge(link)).collect();
    // One without a VLAN is put into all VLANs of its link, and others take its place there.
    for (link, with_vlan) in
        [false, true].into_iter().flat_map(|with| links.iter().map(move |link| (*link, with)))
    {
        let name = save.name(link.index);
        let bridge = link.bridge_index();
        let stations = bridge.and_then(|bridge| save.router.stations.get(&bridge));
        let mut entries = stations.map(|stations| stations.by(link.id)).unwrap_or_default();
        entries.reverse();
        for (station, entry) in entries {
            if !entry.is(USER | EXTERNAL) || (station.vlan() != 0) != with_vlan {
                continue;
            }
            let itself = if link.bridge.is_some() { "self" } else { "master" };
            let words = entry_words(entry);
            let mut line =
                Words::new(&format!("bridge fdb replace {} dev {name} {itself} {words}", mac(station.mac())));
            line.some("vlan", (station.vlan() != 0).then_some(station.vlan()));
            save.line(line);
            // Without a VLAN it is one in all VLANs of the link, of which some may have come later.
            let (mac, later) = (mac(station.mac()), || later_vlans(save.router, link, station));
            for vlan in if station.vlan() == 0 { later() } else { Vec::new() } {
                save.line(Words::new(&format!("bridge fdb del {mac} dev {name} {itself} vlan {vlan}")));
            }
        }
        let state = link.bridge_port.as_ref().map(|port| port.settings.state);
        let up = bridge.and_then(|bridge| save.router.links.get(bridge)).is_some_and(Link::up);
        let at_first = match trees::of_port(save.router, link) {
            SpanningTree::Off => Some(FORWARDING),
            SpanningTree::Program => Some(BLOCKING),
            SpanningTree::Own => state,
        };
        if let Some(state) = state.filter(|_| state != at_first && with_vlan)
            && up
            && link.up()
            && link.carrier
        {
            save.line(Words::new(&format!("bridge link set dev {name} state {state}")));
        }
    }
}

/// The VLANs of a link in which its bridge does not know a station.
fn later_vlans(router: &Router, link: &Link, station: Station) -> Vec<u16> {
    let stations = link.bridge_index().and_then(|bridge| router.stations.get(&bridge));
    let table = stations.map(|stations| &stations.table);
    let find = |vlan: u16| table.and_then(|table| table.find(Station::new(station.mac(), vlan)));
    let is_known = |vlan: &u16| find(*vlan).is_some_and(|entry| entry.link == link.id);
    link.bridge_vlans()
        .into_iter()
        .flat_map(Vlans::iter)
        .map(|(id, ..)| id)
        .filter(|id| !is_known(id))
        .collect()
}

fn entry_words(entry: Entry) -> String {
    let mut words = match entry {
        _ if entry.is(LOCAL) => "local",
        _ if entry.is(STATIC) => "static",
        _ => "dynamic",
    }
    .to_owned();
    for (flag, name) in [(STICKY, " sticky"), (EXTERNAL, " extern_learn")] {
        if entry.is(flag) {
            words.push_str(name);
        }
    }
    words
}
