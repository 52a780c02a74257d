//! The stations of a bridge, or of a VXLAN, as the control thread has them: what requests put into the table of the workers, what
//! these learn, and what has not been heard for too long. Linux: `net/bridge/br_fdb.c`, `drivers/net/vxlan/vxlan_core.c`.

pub(crate) mod request;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use libc::{ENOSPC, NUD_NOARP, NUD_PERMANENT, NUD_REACHABLE, NUD_STALE, RTM_DELNEIGH, RTM_NEWNEIGH};
use underpass_engine::l2::fdb::{EXTERNAL, Entry, LOCAL, STATIC, STICKY, Station, USER};
use underpass_engine::tables::LinkId;
use underpass_netlink::{Reply, RequestError};

use super::super::publish::publish_link;
use super::super::tunnel::publish::publish_tunnel;
use super::super::tunnel::vxlan;
use super::super::{Link, valid_mac};
use super::{index_of, trees};
use crate::Router;
use crate::events::Cause;

const NDA_FLAGS_EXT: u16 = 15;
const NTF_STICKY: u8 = 1 << 6;

pub(in crate::link) fn now(router: &Router) -> u64 {
    router.packet_time() / 1_000_000
}

/// How long a station of a bridge or a VXLAN is kept, in milliseconds.
fn ageing(router: &Router, owner: u32) -> u64 {
    let Some(link) = router.links.get(owner) else { return 0 };
    match (&link.bridge, &link.tunnel) {
        (Some(_), _) => trees::ageing(router, link),
        (None, Some(tunnel)) => u64::from(vxlan::ageing(&tunnel.parameters).unwrap_or(0)) * 1000,
        (None, None) => 0,
    }
}

/// Workers get another table of a bridge or a VXLAN.
fn publish(router: &mut Router, owner: u32) {
    publish_link(router, owner);
    publish_tunnel(router, owner);
}

/// Puts an entry in, and tells listeners.
///
/// # Errors
/// `ENOSPC`: the table is full.
pub(in crate::link) fn put(
    router: &mut Router,
    cause: Cause,
    bridge: u32,
    station: Station,
    entry: Entry,
) -> Result<(), RequestError> {
    let Some(stations) = router.stations.get_mut(&bridge) else { return Ok(()) };
    let full = || RequestError::new(ENOSPC, "The forwarding database is full");
    if stations.put(station, entry).ok_or_else(full)? {
        publish(router, bridge);
    }
    notify(router, cause, RTM_NEWNEIGH, bridge, station, entry);
    Ok(())
}

/// Takes an entry out, and tells listeners.
pub(in crate::link) fn remove(router: &mut Router, cause: Cause, bridge: u32, station: Station) {
    let Some(stations) = router.stations.get_mut(&bridge) else { return };
    let Some(entry) = stations.table.find(station) else { return };
    stations.remove(station);
    notify(router, cause, RTM_DELNEIGH, bridge, station, entry);
}

pub(in crate::link) fn remove_all(
    router: &mut Router,
    cause: Cause,
    bridge: u32,
    which: impl Fn(Station, Entry) -> bool,
) -> usize {
    let Some(stations) = router.stations.get(&bridge) else { return 0 };
    let found: Vec<Station> = stations
        .table
        .iter()
        .filter(|(station, entry)| which(*station, *entry))
        .map(|(station, _)| station)
        .collect();
    found.iter().for_each(|station| remove(router, cause, bridge, *station));
    found.len()
}

/// A bridge forgets what it has learned by a port, or by all, in a VLAN, or in all (0). Linux: `br_fdb_delete_by_port`.
pub(super) fn forget_learned(
    router: &mut Router,
    cause: Cause,
    bridge: u32,
    port: Option<LinkId>,
    vlan: u16,
) {
    remove_all(router, cause, bridge, |station, entry| {
        !entry.is(LOCAL | STATIC | EXTERNAL)
            && port.is_none_or(|port| entry.link == port)
            && (vlan == 0 || station.vlan() == vlan)
    });
}

/// A bridge forgets all that leads to a port that is none any more.
pub(super) fn forget_port(router: &mut Router, cause: Cause, bridge: u32, port: LinkId) {
    remove_all(router, cause, bridge, |_, entry| entry.link == port);
}

/// What a bridge, or a bridge by this port of it, has learned is to be forgotten.
pub(in crate::link) fn flush(router: &mut Router, cause: Cause, link: &Link) {
    match (link.bridge.is_some(), link.master) {
        // Linux: `br_fdb_flush` by all that is not static, what others have learned for it as well.
        (true, _) => {
            remove_all(router, cause, link.index, |_, entry| !entry.is(LOCAL | STATIC));
        }
        (false, Some(bridge)) => forget_learned(router, cause, bridge, Some(link.id), 0),
        (false, None) => {}
    }
}

/// A bridge has entries of its own for its address and those of its ports, in all of their VLANs. Linux:
/// `br_fdb_add_local`, `br_fdb_changeaddr`, `br_fdb_change_mac_address`.
pub(in crate::link) fn refresh_local(router: &mut Router, cause: Cause, bridge: u32) {
    let Some(link) = router.links.get(bridge) else { return };
    let Some(own) = link.bridge.as_ref().map(|bridge| (link.id, link.mac, &bridge.vlans)) else { return };
    let ports = router.links.slaves(bridge);
    let ports = ports.filter_map(|port| Some((port.id, port.mac, &port.bridge_port.as_ref()?.vlans)));
    let table = router.stations.get(&bridge).map(|stations| Arc::clone(&stations.table));
    let holder =
        |station| table.as_ref()?.find(station).filter(|entry| entry.is(LOCAL)).map(|entry| entry.link);
    let mut wanted: BTreeMap<Station, LinkId> = BTreeMap::new();
    let mut order = Vec::new();
    for (id, mac, vlans) in ports.chain([own]).filter(|(_, mac, _)| valid_mac(*mac)) {
        for vlan in std::iter::once(0).chain(vlans.iter().map(|(id, ..)| id)) {
            let station = Station::new(mac, vlan);
            // Of several that have an address it is that of the first that had it.
            match wanted.entry(station) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(id);
                    order.push(station);
                }
                std::collections::btree_map::Entry::Occupied(mut place) if holder(station) == Some(id) => {
                    place.insert(id);
                }
                std::collections::btree_map::Entry::Occupied(_) => {}
            }
        }
    }
    remove_all(router, cause, bridge, |station, entry| {
        entry.is(LOCAL) && !entry.is(USER | EXTERNAL) && wanted.get(&station) != Some(&entry.link)
    });
    let heard = now(router);
    for station in order {
        let table = router.stations.get(&bridge).map(|stations| Arc::clone(&stations.table));
        let there = table.and_then(|table| table.find(station)).is_some_and(|entry| entry.is(LOCAL));
        if let Some(link) = wanted.get(&station).copied().filter(|_| !there) {
            // A table that is full, of millions of others, goes without it: what is for the router goes to the ports then.
            let _ = put(router, cause, bridge, station, Entry { link, flags: LOCAL | STATIC, heard });
        }
    }
}

impl Router {
    /// Whether there is a bridge or a VXLAN.
    pub fn keeps_stations(&self) -> bool {
        !self.stations.is_empty()
    }

    /// Reads what workers have learned into the tables of bridges and VXLANs since, tells of it, and forgets what was not heard for
    /// too long. Whether there is one, so that there may be more soon.
    pub fn follow_stations(&mut self) -> bool {
        let bridges: Vec<u32> = self.stations.keys().copied().collect();
        for bridge in &bridges {
            follow(self, *bridge);
        }
        !bridges.is_empty()
    }
}

/// How often a table is read for what has aged, in milliseconds.
const PERIOD: u64 = 1000;

fn follow(router: &mut Router, bridge: u32) {
    let (now, ageing) = (now(router), ageing(router, bridge));
    let Some(stations) = router.stations.get_mut(&bridge) else { return };
    let changes = stations.table.changes();
    if changes == stations.seen && now < stations.read + PERIOD {
        return;
    }
    (stations.seen, stations.read) = (changes, now);
    let table = Arc::clone(&stations.table);
    let (new, old) = stations.read(now, ageing);
    for (station, entry) in new {
        notify(router, Cause::default(), RTM_NEWNEIGH, bridge, station, entry);
    }
    for station in old {
        remove(router, Cause::default(), bridge, station);
    }
    if table.is_crowded()
        && let Some(stations) = router.stations.get_mut(&bridge)
    {
        stations.make_again();
        publish(router, bridge);
    }
}

/// `ndm_state` of an entry. Linux: `fdb_to_nud`.
fn state_of(entry: Entry, now: u64, ageing: u64) -> u16 {
    match entry {
        _ if entry.is(LOCAL) => NUD_PERMANENT,
        _ if entry.is(STATIC) => NUD_NOARP,
        _ if entry.has_expired(now, ageing) => NUD_STALE,
        _ => NUD_REACHABLE,
    }
}

/// What is told of an entry besides itself.
#[derive(Clone, Copy)]
pub(in crate::link) struct Told {
    owner: Owner,
    link: u32,
    /// The link by which the other end is reached.
    pub(in crate::link) lower: Option<u32>,
    now: u64,
    ageing: u64,
}

/// Whose an entry is.
#[derive(Clone, Copy)]
enum Owner {
    /// That of the bridge of this index.
    Bridge(u32),
    /// A VXLAN's; the other end behind which the station is.
    /// And the network that it is in, if it is in one of several.
    Vxlan(IpAddr, u32),
}

impl Told {
    pub(in crate::link) fn of(router: &Router, owner: u32, (station, entry): (Station, Entry)) -> Self {
        match vxlan::end(router, owner, entry.link.0) {
            Some(end) => Self::behind(router, (owner, station.vlan()), end),
            None => {
                let link = index_of(router, owner, entry.link);
                Self {
                    owner: Owner::Bridge(owner),
                    link,
                    lower: None,
                    now: now(router),
                    ageing: ageing(router, owner),
                }
            }
        }
    }

    /// Of a station of the VXLAN of a link, in the network of this number, behind this end.
    pub(in crate::link) fn behind(router: &Router, (link, network): (u32, u16), end: IpAddr) -> Self {
        let owner = Owner::Vxlan(end, router.tunnels.networks.of(link, network));
        Self { owner, link, lower: None, now: now(router), ageing: ageing(router, link) }
    }

    /// Linux: `fdb_fill_info`, `vxlan_fdb_info`.
    pub(in crate::link) fn write(self, reply: &mut Reply<'_>, station: Station, entry: Entry) {
        let mut header = [0; 12];
        header[0] = libc::AF_BRIDGE as u8;
        header[4..8].copy_from_slice(&self.link.to_ne_bytes());
        header[8..10].copy_from_slice(&state_of(entry, self.now, self.ageing).to_ne_bytes());
        let own = if let Owner::Vxlan(..) = self.owner { libc::NTF_SELF } else { 0 };
        header[10] = own
            | if entry.is(EXTERNAL) { libc::NTF_EXT_LEARNED } else { 0 }
            | if entry.is(STICKY) { NTF_STICKY } else { 0 };
        reply.fixed(&header);
        reply.attribute(libc::NDA_LLADDR, &station.mac());
        match self.owner {
            Owner::Bridge(bridge) => {
                reply.u32(libc::NDA_MASTER, bridge);
                reply.u32(NDA_FLAGS_EXT, 0);
            }
            Owner::Vxlan(end, network) => {
                reply.address(libc::NDA_DST, end);
                if network != 0 {
                    reply.u32(libc::NDA_SRC_VNI, network);
                }
            }
        }
        if let Some(lower) = self.lower {
            reply.u32(libc::NDA_IFINDEX, lower);
        }
        // struct nda_cacheinfo: how long ago it was confirmed, used and updated, in hundredths of a second; users.
        let age = (self.now.saturating_sub(entry.heard) / 10) as u32;
        let info: Vec<u8> = [0, age, age, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        reply.attribute(libc::NDA_CACHEINFO, &info);
        if station.vlan() != 0 && matches!(self.owner, Owner::Bridge(_)) {
            reply.u16(libc::NDA_VLAN, station.vlan());
        }
    }
}

fn notify(router: &mut Router, cause: Cause, kind: u16, bridge: u32, station: Station, entry: Entry) {
    let told = Told::of(router, bridge, (station, entry));
    router.events.notify_own(cause, libc::RTNLGRP_NEIGH, kind, 0, |reply| told.write(reply, station, entry));
}

#[cfg(test)]
mod tests {
    use super::super::stations::Stations;
    use super::*;

    /// Of a station that a request moves, and then a frame moves back, listeners hear twice.
    #[test]
    fn moves_are_heard_of() {
        let mut stations = Stations::default();
        let station = Station::new([2, 0, 0, 0, 0, 1], 0);
        let entry = |link| Entry { link: LinkId(link), flags: 0, heard: 0 };
        assert_eq!(stations.put(station, entry(1)), Some(false));
        assert_eq!(stations.read(0, 1000), (vec![], vec![]));
        for link in [2, 1, 2] {
            stations.put(station, entry(link));
            stations.table.set(station, entry(1));
            let moved = if link == 1 { vec![] } else { vec![(station, entry(1))] };
            assert_eq!(stations.read(0, 1000), (moved, vec![]), "{link}");
            assert_eq!(stations.by(LinkId(1)), [(station, entry(1))]);
        }
        assert_eq!(stations.read(1000, 1000), (vec![], vec![station]));
    }
}
