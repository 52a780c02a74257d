//! `bridge fdb` of a VXLAN: behind which other ends stations are, and where all else goes. Linux: `vxlan_fdb_add`,
//! `vxlan_fdb_delete`, `vxlan_fdb_dump` in `drivers/net/vxlan/vxlan_core.c`.

use std::net::IpAddr;

use libc::{
    EAFNOSUPPORT, EEXIST, EINVAL, ENOENT, ENOSPC, EOPNOTSUPP, NTF_EXT_LEARNED, NUD_NOARP, NUD_PERMANENT,
    NUD_REACHABLE, RTM_DELNEIGH, RTM_NEWNEIGH,
};
use underpass_engine::l2::fdb::{EXTERNAL, Entry, LOCAL, STATIC, Station, USER};
use underpass_engine::tables::LinkId;
use underpass_netlink::tunnel;
use underpass_netlink::{Replies, RequestError};

use super::super::publish::publish_tunnel;
use crate::dump::Outcome;
use crate::events::Cause;
use crate::link::Link;
use crate::link::bridge::fdb::request::Wanted;
use crate::link::bridge::fdb::{Told, now, put, remove, remove_all};
use crate::save::{Save, Words, mac};
use crate::{Request, Router};

/// The address of frames of whose station nothing is known.
const ALL: [u8; 6] = [0; 6];

/// The end that a request names, of the family of the device's. `None`: it names none.
fn end_in(wanted: &Wanted<'_>, link: &Link) -> Result<Option<IpAddr>, RequestError> {
    for (kind, text) in [
        (libc::NDA_PORT, "a port of a station is not supported by this router"),
        (libc::NDA_VNI, "a network of a station is not supported by this router"),
        (libc::NDA_IFINDEX, "a link of a station is not supported by this router"),
    ] {
        if let Some(attribute) = wanted.attributes.get(kind) {
            return Err(RequestError::new(EOPNOTSUPP, text).at(attribute.offset));
        }
    }
    let Some(end) = wanted.attributes.get(libc::NDA_DST) else { return Ok(None) };
    let six = link.tunnel.as_ref().is_some_and(|tunnel| tunnel.parameters.remote.is_ipv6());
    let address = match end.value.len() {
        4 => IpAddr::V4(end.ipv4()),
        16 => IpAddr::V6(end.ipv6()),
        _ => return Err(RequestError::errno(EAFNOSUPPORT)),
    };
    if address.is_ipv6() != six {
        return Err(RequestError::errno(EAFNOSUPPORT));
    }
    if address.is_multicast() {
        let text = "a group of a VXLAN is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(end.offset));
    }
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

/// The network that a request names, of a device with several. One of a single network takes no notice of what FRR says of it.
/// Linux: `vxlan_fdb_parse`, `__vxlan_find_mac`.
fn network_in(wanted: &Wanted<'_>, link: &Link) -> Result<u32, RequestError> {
    let named = wanted.attributes.get(libc::NDA_SRC_VNI).filter(|_| link.is_external_vxlan());
    let Some(vni) = named else { return Ok(0) };
    if vni.u32() >= NETWORKS {
        let text = "a network of a station is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(vni.offset));
    }
    Ok(vni.u32())
}

/// There are so many networks.
const NETWORKS: u32 = 1 << 24;

/// The flags of an entry in this state.
const fn flags_of(state: u16) -> u8 {
    if state & NUD_PERMANENT != 0 {
        LOCAL | STATIC
    } else if state & NUD_NOARP != 0 {
        STATIC
    } else {
        0
    }
}

/// `RTM_NEWNEIGH`. Linux: `vxlan_fdb_add`, `vxlan_fdb_update`.
pub(in crate::link) fn new(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    (link, mac): (&Link, [u8; 6]),
) -> Result<(), RequestError> {
    if wanted.state & (NUD_PERMANENT | NUD_REACHABLE) == 0 || wanted.attributes.get(libc::NDA_DST).is_none() {
        return Err(RequestError::errno(EINVAL));
    }
    let end = end_in(wanted, link)?.ok_or(RequestError::errno(EOPNOTSUPP))?;
    let external = if wanted.flags & NTF_EXT_LEARNED != 0 { EXTERNAL } else { 0 };
    let flags = USER | external | flags_of(wanted.state);
    let group = mac == ALL || mac[0] & 1 != 0;
    let network = router.tunnels.networks.numbered(link.index, network_in(wanted, link)?)?;
    if mac == ALL {
        return add_other(router, request, (link, network), (end, flags));
    }
    let station = Station::new(mac, network);
    let old = router.stations.get(&link.index).and_then(|stations| stations.table.find(station));
    let behind = |old: Entry| router.tunnels.ends.address(old.link.0);
    let kept = match old {
        None if !request.create() => return Err(RequestError::errno(ENOENT)),
        None if request.replace() && group => return Err(RequestError::errno(EOPNOTSUPP)),
        Some(_) if request.exclusive() => return Err(RequestError::errno(EEXIST)),
        Some(_) if request.replace() && group => {
            return Err(RequestError::new(EOPNOTSUPP, "Cannot replace non-unicast fdb entries"));
        }
        Some(old) if request.append() && group && behind(old) != Some(end) => {
            let text = "several ends of a group are not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text));
        }
        // Another end takes the place of the old one by a request to replace it alone.
        Some(old) if !request.replace() => Some(old.link),
        _ => None,
    };
    // After everything that refuses: a number is never given back, as workers may hold it.
    let number = kept.or_else(|| router.tunnels.ends.number(end).map(LinkId));
    let link_id = number.ok_or(RequestError::new(ENOSPC, "there are too many other ends of VXLANs"))?;
    let entry = Entry { link: link_id, flags, heard: now(router) };
    if old.is_none_or(|old| (old.link, old.flags) != (entry.link, entry.flags)) {
        put(router, request.into(), link.index, station, entry)?;
    }
    Ok(())
}

/// One more end for frames of whose station nothing is known.
fn add_other(
    router: &mut Router,
    request: &Request<'_>,
    (link, network): (&Link, u16),
    (end, flags): (IpAddr, u8),
) -> Result<(), RequestError> {
    let others = router.tunnels.others.entry((link.index, network)).or_default();
    match others.is_empty() {
        true if !request.create() => return Err(RequestError::errno(ENOENT)),
        true if request.replace() => return Err(RequestError::errno(EOPNOTSUPP)),
        true => {}
        false if request.exclusive() => return Err(RequestError::errno(EEXIST)),
        false if request.replace() => {
            return Err(RequestError::new(EOPNOTSUPP, "Cannot replace non-unicast fdb entries"));
        }
        false if !request.append() => return Ok(()),
        false => {}
    }
    if !others.iter().any(|other| other.0 == end && !leads_by_link(link, *other)) {
        others.push((end, flags));
        publish_tunnel(router, link.index);
        tell(router, request.into(), RTM_NEWNEIGH, (link.index, network), (end, flags));
    }
    Ok(())
}

/// Whether an end is the device's own, and the device is above a link: Linux does not take it for one of the same address that a
/// request has added, which names no link (`vxlan_fdb_find_rdst`).
fn leads_by_link(link: &Link, (_, flags): (IpAddr, u8)) -> bool {
    flags & USER == 0 && link.tunnel.as_ref().is_some_and(|tunnel| tunnel.parameters.link != 0)
}

/// Listeners hear of an end for all else.
fn tell(router: &mut Router, cause: Cause, kind: u16, of: (u32, u16), (end, flags): (IpAddr, u8)) {
    let (told, entry) = other(router, of, (end, flags));
    let station = Station::new(ALL, of.1);
    router.events.notify(cause, libc::RTNLGRP_NEIGH, kind, 0, |reply| told.write(reply, station, entry));
}

fn other(router: &Router, (link, network): (u32, u16), (end, flags): (IpAddr, u8)) -> (Told, Entry) {
    let entry = Entry { link: LinkId(0), flags, heard: now(router) };
    let lower = router.links.get(link).filter(|link| leads_by_link(link, (end, flags)));
    let lower = lower.and_then(|link| Some(link.tunnel.as_ref()?.parameters.link));
    let mut told = Told::behind(router, (link, network), end);
    told.lower = lower;
    (told, entry)
}

/// A device with other ends is made, or has another end as its own: `old` was that of what the packet path has of it.
pub(in crate::link::tunnel) fn follow(
    router: &mut Router,
    link: u32,
    old: Option<IpAddr>,
    parameters: &tunnel::Tunnel,
) {
    if parameters.has_ends() {
        let named = |end: IpAddr| (!end.is_unspecified()).then_some(end);
        router.stations.entry(link).or_default();
        router.tunnels.others.entry((link, 0)).or_default();
        set_default(router, link, (old.and_then(named), named(parameters.remote)), parameters.link != 0);
    }
}

/// A device is made, or has another end as its own: that is for all else, in the place of the one that it had. Linux:
/// `vxlan_changelink`.
fn set_default(router: &mut Router, link: u32, (old, new): (Option<IpAddr>, Option<IpAddr>), by_link: bool) {
    if old == new {
        return;
    }
    let others = router.tunnels.others.entry((link, 0)).or_default();
    let is = |wanted: IpAddr, (end, flags): (IpAddr, u8)| end == wanted && !(by_link && flags & USER != 0);
    let gone = old.and_then(|old| others.iter().position(|other| is(old, *other)));
    let gone = gone.map(|at| others.remove(at));
    let added = new.filter(|new| !others.iter().any(|other| is(*new, *other)));
    let added = added.map(|end| (end, LOCAL | STATIC));
    others.extend(added);
    for (kind, other) in [(RTM_NEWNEIGH, added), (RTM_DELNEIGH, gone)] {
        if let Some(other) = other {
            tell(router, Cause::default(), kind, (link, 0), other);
        }
    }
}

/// `RTM_DELNEIGH`. Linux: `vxlan_fdb_delete`.
pub(in crate::link) fn delete(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    (link, mac): (&Link, [u8; 6]),
) -> Result<Outcome, RequestError> {
    let end = end_in(wanted, link)?;
    let absent = RequestError::errno(ENOENT);
    let vni = network_in(wanted, link)?;
    let Some(network) = router.tunnels.networks.number(link.index, vni) else { return Err(absent) };
    if mac == ALL {
        if router.tunnels.others.get(&(link.index, network)).is_none_or(Vec::is_empty) {
            return Err(absent);
        }
        let by_link = |other| leads_by_link(link, other);
        let which = |other: (IpAddr, u8)| end.is_none_or(|end| end == other.0 && !by_link(other));
        remove_others(router, request, (link.index, network), which);
        return Ok(Outcome::Done);
    }
    let station = Station::new(mac, network);
    let table = router.stations.get(&link.index).map(|stations| &stations.table);
    let entry = table.and_then(|table| table.find(station)).ok_or(absent)?;
    // Linux does nothing where it is behind another end, and says nothing of it.
    if end.is_none_or(|end| router.tunnels.ends.address(entry.link.0) == Some(end)) {
        remove(router, request.into(), link.index, station);
    }
    Ok(Outcome::Done)
}

/// All else goes to none of these ends any more.
fn remove_others(
    router: &mut Router,
    request: &Request<'_>,
    of: (u32, u16),
    which: impl Fn((IpAddr, u8)) -> bool,
) {
    let Some(others) = router.tunnels.others.get_mut(&of) else { return };
    let (gone, kept): (Vec<_>, Vec<_>) = others.iter().partition(|other| which(**other));
    *others = kept;
    publish_tunnel(router, of.0);
    gone.into_iter().for_each(|other| tell(router, request.into(), RTM_DELNEIGH, of, other));
}

/// A VXLAN that goes down forgets the stations that are neither permanent nor static. Linux: `vxlan_stop`.
pub(in crate::link) fn forget_dynamic(router: &mut Router, cause: Cause, link: u32) {
    let link = router.links.get(link);
    let has_ends = |link: &Link| link.tunnel.as_ref().is_some_and(|tunnel| tunnel.parameters.vxlan.is_some());
    if let Some(index) = link.filter(|link| has_ends(link)).map(|link| link.index) {
        remove_all(router, cause, index, |_, entry| !entry.is(LOCAL | STATIC));
    }
}

/// `bridge fdb flush`: all stations are forgotten, and where all else goes. Linux: `vxlan_fdb_delete_bulk`.
pub(in crate::link) fn flush(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    link: &Link,
) -> Result<Outcome, RequestError> {
    let asked = wanted.flags & !(libc::NTF_SELF | libc::NTF_MASTER);
    let filters =
        [libc::NDA_DST, libc::NDA_VLAN, libc::NDA_PORT, libc::NDA_VNI, libc::NDA_SRC_VNI, libc::NDA_IFINDEX];
    let filtered = filters.into_iter().any(|kind| wanted.attributes.get(kind).is_some());
    if asked != 0 || wanted.state != 0 || filtered {
        let text = "to flush some stations of a VXLAN is not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    remove_all(router, Cause::from(request), link.index, |_, _| true);
    let of_link = router.tunnels.others.range((link.index, 0)..=(link.index, u16::MAX));
    for of in of_link.map(|(of, _)| *of).collect::<Vec<_>>() {
        remove_others(router, request, of, |_| true);
    }
    Ok(Outcome::Done)
}

/// Answers a question about one station. Linux: `vxlan_fdb_get`.
pub(in crate::link) fn get(
    router: &Router,
    request: &Request<'_>,
    (link, mac): (&Link, [u8; 6]),
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let station = Station::new(mac, 0);
    let found = all(router, link).into_iter().find(|(_, other, _)| *other == station);
    let (told, _, entry) = found.ok_or(RequestError::new(ENOENT, "Fdb entry not found"))?;
    replies.message(RTM_NEWNEIGH, 0, request.reply_to(), |reply| told.write(reply, station, entry))?;
    Ok(Outcome::Done)
}

/// All entries: where all else goes, then the stations.
pub(in crate::link) fn all(router: &Router, link: &Link) -> Vec<(Told, Station, Entry)> {
    let others = router.tunnels.networks.sorted(link.index).into_iter().flat_map(|number| {
        let of = (link.index, number);
        router.tunnels.others.get(&of).into_iter().flatten().map(move |end| (of, *end))
    });
    let others = others.map(|(of, end)| {
        let (told, entry) = other(router, of, end);
        (told, Station::new(ALL, of.1), entry)
    });
    let known = stations_of(router, link).into_iter();
    others
        .chain(known.map(|(station, entry)| (Told::of(router, link.index, (station, entry)), station, entry)))
        .collect()
}

/// The stations, in the order of their networks and their addresses.
fn stations_of(router: &Router, link: &Link) -> Vec<(Station, Entry)> {
    let stations = router.stations.get(&link.index).into_iter();
    let mut known: Vec<_> = stations.flat_map(|stations| stations.table.iter()).collect();
    let network = |station: Station| router.tunnels.networks.of(link.index, station.vlan());
    known.sort_unstable_by_key(|(station, _)| (network(*station), *station));
    known
}

/// What is kept of the stations of VXLANs. Those that were learned are learned again.
pub(crate) fn save_stations(save: &mut Save<'_>) {
    let router = save.router;
    for link in router.links.iter().filter(|link| save.keeps(link.index)).collect::<Vec<_>>() {
        let Some(others) = router.tunnels.others.get(&(link.index, 0)) else { continue };
        let of_network = |number: u16| match router.tunnels.networks.of(link.index, number) {
            0 => String::new(),
            vni => format!(" src_vni {vni}"),
        };
        let name = save.name(link.index);
        let own = link.tunnel.as_ref().map(|tunnel| tunnel.parameters.remote);
        // It comes with the device.
        let own = own.filter(|own| !own.is_unspecified());
        let is_own = |(end, flags): (IpAddr, u8)| {
            Some(end) == own
                && (flags & USER == 0
                    || link.tunnel.as_ref().is_none_or(|tunnel| tunnel.parameters.link == 0))
        };
        if let Some(own) = own.filter(|_| !others.iter().any(|other| is_own(*other))) {
            save.line(Words::new(&format!("bridge fdb del {} dev {name} dst {own}", mac(ALL))));
        }
        for (end, flags) in others.iter().filter(|other| !is_own(**other)) {
            let words = words_of(*flags);
            save.line(Words::new(&format!("bridge fdb append {} dev {name} dst {end} {words}", mac(ALL))));
        }
        for number in router.tunnels.networks.sorted(link.index).into_iter().filter(|number| *number != 0) {
            for (end, flags) in router.tunnels.others.get(&(link.index, number)).into_iter().flatten() {
                let words = format!("{}{}", words_of(*flags), of_network(number));
                let line = format!("bridge fdb append {} dev {name} dst {end} {words}", mac(ALL));
                save.line(Words::new(&line));
            }
        }
        for (station, entry) in stations_of(router, link) {
            if let Some(end) = router.tunnels.ends.address(entry.link.0).filter(|_| entry.is(USER)) {
                let words = format!("{}{}", words_of(entry.flags), of_network(station.vlan()));
                let address = mac(station.mac());
                save.line(Words::new(&format!("bridge fdb replace {address} dev {name} dst {end} {words}")));
            }
        }
    }
}

fn words_of(flags: u8) -> String {
    let state = match flags {
        _ if flags & LOCAL != 0 => "permanent",
        _ if flags & STATIC != 0 => "static",
        _ => "dynamic",
    };
    format!("{state}{}", if flags & EXTERNAL != 0 { " extern_learn" } else { "" })
}
