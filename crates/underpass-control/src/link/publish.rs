//! Links as the packet path has them.

use std::net::IpAddr;

use underpass_engine::buffer::PortId;
use underpass_engine::hmac::Require;
use underpass_engine::tables::LookupId;

use super::bridge::compile::{compile as compile_bridge, compile_port};
use super::encode::{self, Above, count_link, in_own_vrf, vrf_table_over};
use super::tunnel::publish::publish_tunnel;
use super::tunnel::vxlan::networks;
use super::vlan::compile::{compile as compile_vlan, compile_above as compile_vlans_above};
use super::{Link, LinkKind};
use crate::Router;
use crate::address::source::{anycast6, instance, own_source4, own_source6, own6, several};
use crate::events::Cause;
use crate::live::Hooked;
use crate::route::ioam::ioam_link;
use crate::route::publish::{lookup_back, lookup_of_link};
use crate::route::recompile::refresh_next_hops;
use crate::sysctl::{Instance, RPL_SEG_ENABLED, SEG6_ENABLED, SEG6_REQUIRE_HMAC, Variable};
use crate::tc::parent::{Block, Point};

/// How packets of a link are looked up: in the VRF that it is in, and by the rules that name it.
pub(crate) fn lookup_of(router: &mut Router, link: &Link) -> LookupId {
    let vrf = router.links.vrf_of(link.index).and_then(Link::vrf_table);
    lookup_of_link(router, link, vrf)
}

/// A port behind all that there are.
pub(crate) fn free_port(router: &Router) -> PortId {
    let ports = router.links.iter().flat_map(|link| [link.port(), link.sink]).flatten();
    PortId(ports.map(|port| port.0 + 1).max().unwrap_or(0))
}

/// Gives a link that has no wire another port.
pub(crate) fn change_sink(router: &mut Router, link: Link) {
    let index = link.index;
    router.links.put(link);
    publish_link(router, index);
    refresh_next_hops(router, index);
}

/// Publishes a link that has changed.
pub(crate) fn publish_link(router: &mut Router, index: u32) {
    if let Some(link) = router.links.get(index).cloned() {
        networks::publish(router, index);
        let compiled = compile_link(router, &link);
        let classified = compiled.ingress.is_some() || compiled.ingress_qdisc.is_some();
        let coming = classified || compiled.bridge_port.is_some();
        router.note_hooked(
            index,
            Hooked { ingress: coming, egress: compiled.egress.is_some() || compiled.root.is_some() },
        );
        router.engine.set_link(link.id, compiled);
        publish_tunnel(router, index);
        networks::forget(router, index);
    }
}

/// An address for a link that a request makes: one that no station was sold.
pub(super) fn own_mac(index: u32) -> [u8; 6] {
    let [_, a, b, c] = index.to_be_bytes();
    [0x02, b'u', b'p', a, b, c]
}

/// Notifies listeners that a link is no more.
pub(super) fn notify_link_gone(router: &mut Router, cause: Cause, link: &Link) {
    router.events.notify(cause, libc::RTNLGRP_LINK, libc::RTM_DELLINK, 0, |reply| {
        encode::write_link(reply, link, u32::MAX, None, &Above::default());
    });
}

/// Notifies listeners of a new link, or of a change of these of its flags.
pub(super) fn notify_link(router: &mut Router, cause: Cause, index: u32, change: u32) {
    let Some(link) = router.links.get(index) else { return };
    let (count, above) = (count_link(router, link), Above::of(router, link));
    router.events.notify(cause, libc::RTNLGRP_LINK, libc::RTM_NEWLINK, 0, |reply| {
        encode::write_link(reply, link, change, Some(count), &above);
    });
}

/// What the packet path needs to know of a link.
pub(super) fn compile_link(router: &mut Router, link: &Link) -> underpass_engine::tables::Link {
    let (host, shared) = router.host_of(link.index);
    let qdiscs = router.tc.get(link.index).map(|control| control.published()).unwrap_or_default();
    let [root, ingress_qdisc] = qdiscs;
    underpass_engine::tables::Link {
        ifindex: link.index,
        port: link.port().or(link.sink),
        up: link.up() && link.carrier,
        mac: router.receiving_mac(link),
        port_macs: port_macs(router, link),
        mtu: link.mtu,
        lookup: lookup_of(router, link),
        back6: lookup_back(router, link),
        forward4: true,
        forward6: link.ipv6(),
        source4: own_source4(router, link.index),
        vrf: link.vrf_table().is_some(),
        in_vrf: link.vrf_table().or(vrf_table_over(router, link)).is_some(),
        bare4: router.addresses.v4(link.index).is_empty(),
        source6: own_source6(router, link.index),
        instance: instance(router, link.index),
        own6: own6(router, link.index),
        anycast6: anycast6(router, link.index),
        several: several(router, link.index),
        groups: router.tunnels.groups.by(link.index),
        host,
        shared,
        kernel: router.kernel_port(link.index),
        addresses: vrf_addresses(router, link.index),
        mpls: router.routes.labels.takes(link.index),
        // Linux: `ipv6_rpl_srh_rcv`, `ipv6_srh_rcv`.
        rpl: lower_of_all(router, &RPL_SEG_ENABLED, link) != 0,
        seg6: lower_of_all(router, &SEG6_ENABLED, link) != 0,
        require_hmac: require_hmac(router, link),
        ioam: ioam_link(router, link),
        ingress: router.filters.hook_of(Block { link: link.index, point: Point::Ingress }),
        egress: router.filters.hook_of(Block { link: link.index, point: Point::Egress }),
        root,
        ingress_qdisc,
        swallows: link.kind == LinkKind::Dummy && link.sink.is_some(),
        vlan: compile_vlan(router, link),
        vlans: compile_vlans_above(router, link),
        bridge: compile_bridge(router, link),
        bridge_port: compile_port(router, link),
        ifb: link.kind == LinkKind::Ifb,
        to_bridge: host.filter(|_| is_in_kernel_bridge(router, link)),
        programs: router.programs_of(link.index),
    }
}

/// The addresses of the ports of a bridge of the kernel's, which takes what comes in by a port for the address of that. Linux:
/// `br_handle_frame_finish`, behind which nothing says by which port a frame has come in.
fn port_macs(router: &Router, link: &Link) -> Box<[[u8; 6]]> {
    if link.kind != LinkKind::Kernel || router.live.is_none() {
        return Box::default();
    }
    router.links.slaves(link.index).map(|port| port.mac).filter(|mac| *mac != link.mac).collect()
}

/// Whether a link is a tunnel with frames whose device is a port of a bridge of the kernel's: it has a master that is neither a VRF nor a
/// bridge of the router's.
fn is_in_kernel_bridge(router: &Router, link: &Link) -> bool {
    let master = link.master.filter(|_| router.live.is_some() && link.kind.is_ethernet_tunnel());
    let is_own = |master: &Link| master.vrf_table().is_some() || master.bridge.is_some();
    master.is_some_and(|master| !router.links.get(master).is_some_and(is_own))
}

/// What is required of the HMACs of what comes in by a link. Linux: `seg6_hmac_validate_skb`.
fn require_hmac(router: &Router, link: &Link) -> Require {
    match router.sysctls.value(&SEG6_REQUIRE_HMAC, receiving(router, link)) {
        ..=-1 => Require::Never,
        0 => Require::Present,
        1.. => Require::Always,
    }
}

fn lower_of_all(router: &Router, variable: &Variable, link: &Link) -> i64 {
    let value = |instance| router.sysctls.value(variable, instance);
    value(Instance::All).min(value(receiving(router, link)))
}

/// Whose values hold for what comes in by a link. Linux takes what comes in by a link of a VRF for coming in by
/// the VRF's device.
fn receiving(router: &Router, link: &Link) -> Instance {
    let vrf = link.master.filter(|&master| router.links.vrf_of(master).is_some());
    Instance::Link(vrf.unwrap_or(link.index))
}

/// Of a link in a VRF of the router's: the addresses of the VRF.
pub(crate) fn vrf_addresses(router: &Router, index: u32) -> Option<Box<[IpAddr]>> {
    if !in_own_vrf(router, index) {
        return None;
    }
    let vrf = router.domain_of(index);
    let inside = router.addresses.iter().filter(|own| router.domain_of(own.link) == vrf);
    Some(inside.map(|own| own.local).collect())
}

pub(crate) fn is_only_one(router: &Router, address: IpAddr) -> bool {
    router.addresses.iter().filter(|other| other.local == address).count() == 1
}

/// The addresses of links have changed: who answers pings in VRFs may have, too.
pub(crate) fn vrf_addresses_changed(router: &mut Router) {
    if !router.has_own_slaves() {
        return;
    }
    let own = router.links.iter().filter(|link| in_own_vrf(router, link.index));
    let own: Vec<u32> = own.map(|link| link.index).collect();
    own.into_iter().for_each(|index| publish_link(router, index));
}
