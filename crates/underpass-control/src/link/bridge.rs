//! Bridges and their ports: links that pass frames to each other. Linux: `net/bridge/br_if.c`, `br_stp.c`.

mod answer;
pub(super) mod beside;
pub(super) mod compile;
pub(super) mod device;
pub(crate) mod fdb;
pub(crate) mod options;
pub(crate) mod publish;
pub(super) mod query;
pub(crate) mod request;
pub(crate) mod save;
mod spanning;
pub(crate) mod stations;
mod tree;
pub(crate) mod trees;
pub(crate) mod vlans;

use libc::{EBUSY, EINVAL, ELOOP, EMLINK, EOPNOTSUPP};
use underpass_engine::tables::LinkId;
use underpass_netlink::bridge::{
    self, BLOCKING, DISABLED, FORWARDING, NEIGH_SUPPRESS, NEIGH_VLAN_SUPPRESS, PROXY_ARP, PROXY_ARP_WIFI,
    SpanningTree, VLAN_TUNNEL,
};
use underpass_netlink::{Attribute, RequestError};

use super::change::change_link;
use super::publish::publish_link;
use super::{Link, LinkKind, valid_mac};
use crate::Router;
use crate::events::Cause;
pub(super) use device::bridge_of;
pub use device::{Bridge, BridgePort};
use vlans::Vlans;

/// Most ports of a bridge: `BR_MAX_PORTS`.
const MOST_PORTS: u16 = 1023;

/// MTU of a bridge without ports.
const MTU: u32 = 1500;

/// What a request asks of a bridge or a port, besides what the link becomes by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flush {
    /// Its stations are to be forgotten.
    pub stations: bool,
}

/// The bridge that a request asks for, as a link that is not there yet. Linux: `br_dev_newlink`.
pub(super) fn create(link: Link, data: Option<&Attribute<'_>>) -> Result<Link, RequestError> {
    let mut settings = bridge::Bridge::default();
    if let Some(data) = data {
        settings.change(data)?;
    }
    let mut vlans = Vlans::default();
    vlans.add(settings.default_pvid, true, true);
    let bridge = Bridge { settings, id: [0; 6], mac_is_set: false, mtu_is_set: false, vlans };
    Ok(Link { bridge: Some(Box::new(bridge)), ..link })
}

/// A link has a new address, by a request, or is made with it. Linux: `br_set_mac_address`, `br_dev_newlink`.
pub(super) fn set_mac(link: &mut Link, new: bool) {
    let Some(bridge) = &mut link.bridge else { return };
    (bridge.mac_is_set, bridge.id) = (true, link.mac);
    if new {
        // `br_stp_change_bridge_id` looks whether it has a port.
        (link.carrier, link.carrier_changes) = (false, [0, 1]);
    }
}

/// A link has a new MTU, by a request. Linux: `br_change_mtu`.
pub(super) fn set_mtu(link: &mut Link) {
    if let Some(bridge) = &mut link.bridge {
        bridge.mtu_is_set = true;
    }
}

/// What a bridge becomes by a request that changes it. Linux: `br_changelink`.
pub(super) fn change(
    link: &Link,
    bridge: &Bridge,
    data: &Attribute<'_>,
) -> Result<(Link, Flush), RequestError> {
    let mut bridge = bridge.clone();
    let before = bridge.settings.default_pvid;
    let stations = bridge.settings.change(data)?;
    if bridge.settings.default_pvid != before {
        bridge.vlans.replace_default(before, bridge.settings.default_pvid);
    }
    Ok((Link { bridge: Some(Box::new(bridge)), ..link.clone() }, Flush { stations }))
}

/// What a port becomes by a request that changes it. Linux: `br_port_slave_changelink`.
pub(super) fn change_port(
    router: &Router,
    link: &Link,
    data: &Attribute<'_>,
) -> Result<(Link, Flush), RequestError> {
    let mut port = link.bridge_port.clone().ok_or(RequestError::errno(EOPNOTSUPP))?;
    let tree = trees::of_port(router, link);
    let stations = port.settings.change(data, (link.up(), link.carrier), tree)?;
    // Linux: `br_make_forwarding`. Without a spanning tree nothing keeps it blocked.
    if port.settings.state == BLOCKING && tree == SpanningTree::Off {
        port.settings.state = FORWARDING;
    }
    if !port.settings.has(VLAN_TUNNEL) {
        port.vlans.remove_networks();
    } else if !link.is_external_vxlan() {
        let text = "vlan_tunnel of a port that is no external VXLAN is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    Ok((Link { bridge_port: Some(port), ..link.clone() }, Flush { stations }))
}

/// Whether a link can be a port of a bridge. Linux: `br_add_if`.
pub(super) fn check_port(router: &Router, link: &Link, bridge: &Link) -> Result<(), RequestError> {
    let layer3 = matches!(link.kind, LinkKind::Tunnel(kind) if !kind.ethernet());
    if link.kind == LinkKind::Loopback || layer3 || !valid_mac(link.mac) {
        return Err(RequestError::errno(EINVAL));
    }
    if link.bridge.is_some() {
        return Err(RequestError::new(ELOOP, "Can not enslave a bridge to a bridge"));
    }
    if link.vrf_table().is_some() {
        return Err(RequestError::errno(EINVAL)); // it has a receive handler of its own
    }
    let below = |link: &Link| link.lower().and_then(|lower| router.links.get(lower)).cloned();
    if std::iter::successors(Some(link.clone()), below).take(16).any(|lower| lower.index == bridge.index) {
        return Err(RequestError::errno(EBUSY));
    }
    if router.links.slaves(bridge.index).count() >= usize::from(MOST_PORTS) {
        return Err(RequestError::errno(EMLINK));
    }
    Ok(())
}

/// A link that gets another master becomes a port, or is one no more. Linux: `new_nbp`.
pub(super) fn enslave(router: &Router, old: &Link, new: &mut Link) {
    if old.master == new.master {
        return;
    }
    new.bridge_port = bridge_of(router, new.master).and_then(|master| {
        let bridge = master.bridge.as_ref()?;
        let taken = |number: &u16| {
            let mut ports = router.links.slaves(master.index).filter_map(|link| link.bridge_port.as_ref());
            ports.any(|port| port.settings.number == *number)
        };
        let number = (1..=MOST_PORTS).find(|number| !taken(number))?;
        let mut vlans = Vlans::default();
        vlans.add(bridge.settings.default_pvid, true, true);
        let settings = bridge::Port { cost: spanning::path_cost(router, new), ..bridge::Port::new(number) };
        Some(Box::new(BridgePort { settings, vlans }))
    });
}

/// Whether a port of a bridge can pass frames on.
const fn is_open(port: &Link, bridge_up: bool) -> bool {
    port.up() && port.carrier && bridge_up
}

/// A link is now `new`: its bridge follows, or its ports do. Linux: `br_device_event`, `br_stp_if.c`.
pub(super) fn follow(router: &mut Router, cause: Cause, old: &Link, new: &Link) {
    if let (Some(before), Some(now)) = (&old.bridge, &new.bridge) {
        let pvids = [&before.settings, &now.settings].map(|settings| settings.default_pvid);
        let mut selects = before.id != now.id;
        let ports: Vec<Link> = router.links.slaves(new.index).cloned().collect();
        for mut port in ports {
            let was_open = is_open(&port, old.up());
            selects |= set_open(router, cause, &port, was_open, is_open(&port, new.up()));
            port = router.links.get(port.index).cloned().unwrap_or(port);
            if pvids[0] != pvids[1]
                && let Some(of_port) = &mut port.bridge_port
                && of_port.vlans.replace_default(pvids[0], pvids[1])
            {
                settle(router, cause, port);
            }
        }
        let reported = |link: &Link| (link.mac, link.mtu, link.carrier);
        let is_other = router.live.is_some() && reported(old) != reported(new);
        if selects || is_other {
            select(router, cause, new.index);
        }
        if is_other {
            // The kernel may have reported what was requested before something else was.
            adjust(router, cause, new.index);
        }
        publish_ports(router, old, new);
        let trees = [before, now].map(|bridge| bridge.settings.spanning_tree);
        if trees == [SpanningTree::Program, SpanningTree::Off] {
            spanning::is_programs(router, &new.name, false);
            spanning::forward_all(router, cause, new);
        }
        if before.settings.ageing_time != now.settings.ageing_time {
            spanning::ageing_is_set(router, new.index);
        }
        fdb::refresh_local(router, cause, new.index);
        spanning::follow(router, cause, new.index, trees == [SpanningTree::Off, SpanningTree::Own]);
    }
    let joined = old.master != new.master;
    if joined && let Some(index) = bridge_of(router, old.master).map(|bridge| bridge.index) {
        fdb::forget_port(router, cause, index, new.id);
        publish_link(router, index);
        adjust(router, cause, index);
        fdb::refresh_local(router, cause, index);
        select(router, cause, index);
        spanning::follow(router, cause, index, false);
    }
    let Some(bridge) = bridge_of(router, new.master) else { return };
    let (index, up) = (bridge.index, bridge.up());
    if joined {
        publish_link(router, index);
    }
    if joined || (old.mac, old.mtu) != (new.mac, new.mtu) {
        adjust(router, cause, index);
    }
    let was_open = !joined && is_open(old, up);
    let state = |link: &Link| link.bridge_port.as_ref().map(|port| port.settings.state);
    if !joined && answers(old) != answers(new) {
        publish_link(router, index);
    }
    if !joined && !was_open && is_open(new, up) {
        spanning::renew_cost(router, new);
    }
    let switched = set_open(router, cause, new, was_open, is_open(new, up));
    if switched || !joined && state(old) != state(new) {
        select(router, cause, index);
    }
    fdb::refresh_local(router, cause, index);
    spanning::follow(router, cause, index, false);
}

/// What of a port decides for which stations its bridge answers.
fn answers(port: &Link) -> Option<u16> {
    const SWITCHES: u16 = NEIGH_SUPPRESS | NEIGH_VLAN_SUPPRESS | PROXY_ARP | PROXY_ARP_WIFI;
    port.bridge_port.as_ref().map(|port| port.settings.switches & SWITCHES)
}

/// A port can pass frames on now, or cannot any more; whether its state is another one, of which a spanning tree of the bridge
/// itself takes care. Linux: `br_stp_enable_port`, `br_stp_disable_port`.
fn set_open(router: &mut Router, cause: Cause, link: &Link, was: bool, is: bool) -> bool {
    let Some(link) = router.links.get(link.index) else { return false };
    let Some(port) = &link.bridge_port else { return false };
    let state = match (was, is, trees::of_port(router, link)) {
        (.., SpanningTree::Own) => return false,
        (false, true, SpanningTree::Off) => FORWARDING,
        (false, true, SpanningTree::Program) => BLOCKING,
        (_, false, _) => DISABLED,
        _ => return false,
    };
    if port.settings.state == state {
        return false;
    }
    let index = link.index;
    spanning::put_state(router, cause, index, state);
    true
}

/// A bridge has a carrier while a port of it forwards. Linux: `br_port_state_selection`.
fn select(router: &mut Router, cause: Cause, index: u32) {
    let forwards =
        |link: &Link| link.bridge_port.as_ref().is_some_and(|port| port.settings.state == FORWARDING);
    let carrier = router.links.slaves(index).any(forwards);
    let Some(link) = router.links.get(index).filter(|link| link.carrier != carrier).cloned() else { return };
    if router.live.is_some() {
        return beside::settle(router, cause, Link { carrier, ..link });
    }
    let [ups, downs] = link.carrier_changes;
    let carrier_changes = if carrier { [ups + 1, downs] } else { [ups, downs + 1] };
    router.links.put(Link { carrier_changes, ..link.clone() });
    change_link(router, cause, Link { carrier, carrier_changes, ..link });
}

/// A bridge has another port, or one less, or a port has another address or MTU. Linux: `br_stp_recalculate_bridge_id`,
/// `br_mtu_auto_adjust`.
fn adjust(router: &mut Router, cause: Cause, index: u32) {
    let Some(link) = router.links.get(index).cloned() else { return };
    let Some(mut bridge) = link.bridge.clone() else { return };
    let mut new = link.clone();
    if !bridge.mtu_is_set {
        new.mtu = router.links.slaves(index).map(|port| port.mtu).min().unwrap_or(MTU);
    }
    if !bridge.mac_is_set {
        let lowest = router.links.slaves(index).map(|port| port.mac).min().unwrap_or_default();
        let is_late = router.live.is_some() && valid_mac(lowest) && new.mac != lowest;
        if lowest != bridge.id || is_late {
            (bridge.id, new.mac) = (lowest, lowest);
        }
    }
    new.bridge = Some(bridge);
    settle(router, cause, new);
}

/// Makes a bridge or a port of one what `new` says.
fn settle(router: &mut Router, cause: Cause, new: Link) {
    match router.live.is_some() {
        true => beside::settle(router, cause, new),
        false => change_link(router, cause, new),
    }
}

/// A bridge filters VLANs now, or does not any more: so do its ports.
fn publish_ports(router: &mut Router, old: &Link, new: &Link) {
    let filters = |link: &Link| link.bridge.as_ref().map(|bridge| bridge.settings.vlan_filtering);
    if filters(old) != filters(new) {
        let ports: Vec<u32> = router.links.slaves(new.index).map(|port| port.index).collect();
        ports.into_iter().for_each(|port| publish_link(router, port));
    }
}

/// The link of the packet path's name for it, of a bridge or one of its ports.
fn index_of(router: &Router, bridge: u32, id: LinkId) -> u32 {
    let mut links = router.links.slaves(bridge).chain(router.links.get(bridge));
    links.find(|link| link.id == id).map_or(bridge, |link| link.index)
}
