//! The networks of an external VXLAN that is a port of a bridge: each of them is a VLAN there, and has stations of its own. Linux:
//! `br_handle_egress_vlan_tunnel`, and `vxlan_xmit` with `IP_TUNNEL_INFO_BRIDGE`.
//!
//! Networks have numbers, in the order in which requests named them. A station is in the network of a number as one of a bridge is
//! in a VLAN; what a network puts before its frames is a tunnel of its own, by the device.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libc::ENOSPC;
use underpass_engine::tables::{self, Behind, TunnelId, TunnelRole};
use underpass_netlink::bridge::VLAN_TUNNEL;
use underpass_netlink::{RequestError, tunnel};

use super::ageing;
use crate::Router;
use crate::link::Link;
use crate::link::tunnel::Tunnel;
use crate::link::tunnel::compile::{compile_tunnel, underlay_lookup};
use crate::route::next_hop::via_now;

/// The highest number, that of the last VLAN of a bridge: [`underpass_engine::l2::fdb::Station`].
const LAST: usize = 4094;

/// The networks of all external VXLANs.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    /// Those that a link has heard of: the first has number 1. Number 0 is network 0.
    numbers: BTreeMap<u32, Vec<u32>>,
    /// What the packet path has of those that are VLANs, by link and network.
    published: BTreeMap<(u32, u32), (TunnelId, tables::Tunnel)>,
}

impl Networks {
    /// The number of a network, if a link has heard of it.
    pub(super) fn number(&self, link: u32, vni: u32) -> Option<u16> {
        if vni == 0 {
            return Some(0);
        }
        let at = self.numbers.get(&link)?.iter().position(|other| *other == vni)?;
        Some(at as u16 + 1)
    }

    /// The same, of one that it may hear of only now.
    ///
    /// # Errors
    /// `ENOSPC`: there are too many.
    pub(in crate::link) fn numbered(&mut self, link: u32, vni: u32) -> Result<u16, RequestError> {
        if let Some(number) = self.number(link, vni) {
            return Ok(number);
        }
        let all = self.numbers.entry(link).or_default();
        if all.len() >= LAST {
            return Err(RequestError::new(ENOSPC, "there are too many networks of this VXLAN"));
        }
        all.push(vni);
        Ok(all.len() as u16)
    }

    /// The numbers of the networks of a link, in the order of the networks.
    pub(super) fn sorted(&self, link: u32) -> Vec<u16> {
        let all = self.numbers.get(&link).map_or(0, Vec::len) as u16;
        let mut numbers: Vec<u16> = (0..=all).collect();
        numbers.sort_by_key(|number| self.of(link, *number));
        numbers
    }

    /// The network of a number.
    pub(in crate::link) fn of(&self, link: u32, number: u16) -> u32 {
        let all = self.numbers.get(&link);
        let vni = usize::from(number).checked_sub(1).and_then(|at| all?.get(at).copied());
        vni.unwrap_or(0)
    }
}

/// The VLANs of a link that are networks of the VXLAN that it is.
fn vlans(link: &Link) -> Vec<(u16, u32)> {
    let port = link.bridge_port.as_ref().filter(|port| port.settings.has(VLAN_TUNNEL));
    let port = port.filter(|_| link.is_external_vxlan());
    port.map_or_else(Vec::new, |port| port.vlans.networks().collect())
}

/// What a port of a bridge has of its networks, after [`publish`]. `None`: its VLANs are none.
pub(in crate::link) fn compile(router: &Router, link: &Link) -> Option<Box<tables::Networks>> {
    link.bridge_port.as_ref().filter(|port| port.settings.has(VLAN_TUNNEL))?;
    let networks = vlans(link).into_iter().filter_map(|(vlan, vni)| {
        let (tunnel, _) = router.tunnels.networks.published.get(&(link.index, vni))?;
        Some(tables::Network { vlan, vni, tunnel: *tunnel })
    });
    Some(Box::new(networks.collect()))
}

/// Gives the packet path what is put before frames of each network of a link, as it is now.
pub(in crate::link) fn publish(router: &mut Router, index: u32) {
    let Some(link) = router.links.get(index) else { return };
    let (id, wanted) = (link.id, vlans(link));
    let Some(device) = link.tunnel.as_deref().filter(|_| !wanted.is_empty()).cloned() else { return };
    for (_, vni) in wanted {
        // The request that named it has made sure that it has one.
        let Some(number) = router.tunnels.networks.number(index, vni) else { continue };
        let tunnel = network_of(&device, vni);
        let lookup = underlay_lookup(router, tunnel.parameters.link);
        let via = via_now(router, tunnel.parameters.remote, lookup);
        let compiled = compile_tunnel(router, &tunnel, id, via, false);
        let behind = compile_ends(router, (index, number), &device.parameters);
        let role = TunnelRole::Route { given: Some(vni) };
        let compiled = tables::Tunnel { role, behind, ..compiled };
        match router.tunnels.networks.published.get_mut(&(index, vni)) {
            Some((_, old)) if *old == compiled => {}
            Some((id, old)) => {
                *old = compiled.clone();
                router.engine.set_tunnel(*id, compiled);
            }
            None => {
                let id = router.engine.add_tunnel(compiled.clone());
                router.tunnels.networks.published.insert((index, vni), (id, compiled));
            }
        }
    }
}

/// A network of a device as one of its own, without an end that all else goes to. Linux: `vxlan_xmit_one`, for which metadata say
/// Don't Fragment, and those of a bridge do not.
fn network_of(device: &Tunnel, vni: u32) -> Tunnel {
    let any = match device.parameters.remote {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let vxlan = device.parameters.vxlan.map(|vxlan| tunnel::Vxlan { vni, dont_fragment: false, ..vxlan });
    let parameters = tunnel::Tunnel { external: false, remote: any, vxlan, ..device.parameters };
    Tunnel { parameters, ..device.clone() }
}

/// Takes from the packet path what a link has of networks that are VLANs no more, after its port is published without them.
pub(in crate::link) fn forget(router: &mut Router, index: u32) {
    let wanted = router.links.get(index).map(vlans).unwrap_or_default();
    let published = router.tunnels.networks.published.range((index, 0)..=(index, u32::MAX));
    let gone =
        published.map(|((_, vni), _)| *vni).filter(|vni| !wanted.iter().any(|(_, other)| other == vni));
    for vni in gone.collect::<Vec<_>>() {
        if let Some((id, _)) = router.tunnels.networks.published.remove(&(index, vni)) {
            router.engine.remove_tunnel(id);
        }
    }
}

/// The same of all that there is of a device which is no more; whether it had other ends.
pub(in crate::link::tunnel) fn forget_all(router: &mut Router, index: u32) -> bool {
    let published = router.tunnels.networks.published.range((index, 0)..=(index, u32::MAX));
    for vni in published.map(|((_, vni), _)| *vni).collect::<Vec<_>>() {
        if let Some((id, _)) = router.tunnels.networks.published.remove(&(index, vni)) {
            router.engine.remove_tunnel(id);
        }
    }
    router.tunnels.networks.numbers.remove(&index);
    let before = router.tunnels.others.len();
    router.tunnels.others.retain(|(link, _), _| *link != index);
    router.tunnels.others.len() != before
}

/// What the packet path has of the other ends of a link's device, in the network of this number.
pub(in crate::link::tunnel) fn compile_ends(
    router: &mut Router,
    (link, network): (u32, u16),
    parameters: &tunnel::Tunnel,
) -> Option<Behind> {
    let ageing = ageing(parameters)?;
    // Linux: `vxlan_xmit_one` leads by the link below what goes to the device's own end alone, and by the VRF of that, to which the
    // socket is bound, all else.
    let lookup = underlay_lookup(router, parameters.link);
    let others = router.tunnels.others.get(&(link, network)).into_iter().flatten();
    Some(Behind {
        network,
        stations: Arc::clone(&router.stations.get(&link)?.table),
        ends: Arc::clone(&router.tunnels.ends),
        others: others.map(|(end, _)| *end).collect(),
        lookup,
        learns: parameters.vxlan.is_some_and(|vxlan| vxlan.learning),
        ageing: u64::from(ageing) * 1000,
    })
}
