//! Requests for neighbours.

use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use libc::{
    AF_INET, AF_INET6, EEXIST, EINVAL, ENODEV, ENOENT, EOPNOTSUPP, NTF_PROXY, NTF_ROUTER, NUD_FAILED,
    NUD_INCOMPLETE, RTM_DELNEIGH, RTM_NEWNEIGH,
};
use underpass_netlink::{Replies, RequestError, Validate};

use super::{Key, NDA_FLAGS_EXT, NDA_LLADDR, NDA_PROTOCOL, Neighbour, VALID, Wanted, write_neighbour};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::updates::neighbour_changed;
use crate::{Request, Router};

/// `RTM_NEWNEIGH`. Linux: `neigh_add`, `__neigh_update`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request, Validate::Liberal)?;
    if wanted.attributes.get(libc::NDA_DST).is_none() {
        wanted.address()?;
    }
    let link = match wanted.link {
        0 => None,
        index => Some(router.links.get(index).ok_or(RequestError::errno(ENODEV))?),
    };
    let tunnel = link.is_some_and(|link| link.tunnel.is_some() && !link.resolves());
    let mac = match wanted.attributes.get(NDA_LLADDR) {
        Some(mac) if tunnel => {
            let text = "link-layer addresses on a tunnel of layer 3 are not supported by this router";
            return Err(RequestError::new(EOPNOTSUPP, text).at(mac.offset));
        }
        Some(mac) => {
            let bytes = mac.value.first_chunk::<6>().copied();
            Some(bytes.ok_or(RequestError::new(EINVAL, "Invalid link address"))?)
        }
        None => None,
    };
    let address = wanted.address()?;
    wanted.refuse_proxy()?;
    let link = link.ok_or(RequestError::new(EINVAL, "Device not specified"))?;
    if address.is_ipv6() && !link.ipv6() {
        return Err(RequestError::new(EINVAL, "IPv6 is disabled on this device"));
    }
    let extended = wanted.attributes.get(NDA_FLAGS_EXT).map_or(0, |flags| flags.u32());
    let resolving = libc::NTF_USE;
    if extended != 0 || wanted.flags & resolving != 0 {
        let text = "neighbours are not resolved by this router: flags managed and use are not supported";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    let old = router.neighbours.get(link.index, address);
    match old {
        None if !request.create() => return Err(RequestError::errno(ENOENT)),
        Some(_) if request.exclusive() => return Err(RequestError::errno(EEXIST)),
        _ => {}
    }
    let known = old.and_then(Neighbour::usable).or((!link.resolves()).then_some(link.mac));
    let mac = match (mac, known) {
        _ if wanted.state & VALID == 0 => known.unwrap_or_default(),
        (Some(mac), Some(known)) if mac != known && old.is_some() && !request.replace() => {
            return Ok(Outcome::Done); // not to be overridden
        }
        (Some(mac), _) => mac,
        (None, Some(known)) => known,
        (None, None) => return Err(RequestError::new(EINVAL, "No link layer address given")),
    };
    let kept = libc::NTF_EXT_LEARNED | NTF_ROUTER;
    let protocol = wanted.attributes.get(NDA_PROTOCOL).map(|protocol| protocol.u8()).filter(|&it| it != 0);
    let mut neighbour = Neighbour {
        mac,
        state: wanted.state,
        flags: wanted.flags & kept,
        protocol: protocol.or(old.map(|old| old.protocol)).unwrap_or(0),
        updated: router.ticks(),
    };
    let (link, old) = (link.index, old.copied());
    let valid = neighbour.usable().is_some();
    if !valid {
        // One that is not valid keeps what it was.
        neighbour.flags = neighbour.flags & !NTF_ROUTER | old.map_or(0, |old| old.flags & NTF_ROUTER);
    }
    let stays = |old: &Neighbour| (old.usable(), old.state) == (neighbour.usable(), neighbour.state);
    if let Some(old) = old.filter(|old| !valid || stays(old)) {
        neighbour.updated = old.updated;
    }
    if old == Some(neighbour) {
        return Ok(Outcome::Done);
    }
    router.neighbours.generation += 1;
    router.neighbours.entries.insert((address.is_ipv6(), link, address), neighbour);
    if is_told(old.as_ref(), &neighbour) {
        notify_neighbour(router, request.into(), RTM_NEWNEIGH, link, address, &neighbour);
    }
    neighbour_changed(router, link, address);
    Ok(Outcome::Done)
}

/// Whether listeners hear that an entry has changed: not of a protocol, nor of one that is no more valid than it was. Linux:
/// `__neigh_update`.
fn is_told(old: Option<&Neighbour>, new: &Neighbour) -> bool {
    let was = old.and_then(Neighbour::usable);
    let resolving = old.is_some_and(|old| old.state & NUD_INCOMPLETE != 0);
    match new.usable() {
        None => was.is_some() || resolving && new.state & NUD_FAILED != 0,
        now => was != now || old.is_some_and(|old| (old.state, old.flags) != (new.state, new.flags)),
    }
}

/// `RTM_DELNEIGH`. Linux: `neigh_delete`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request, Validate::Liberal)?;
    if wanted.attributes.get(libc::NDA_DST).is_none() {
        wanted.address()?;
    }
    if wanted.link != 0 && router.links.get(wanted.link).is_none() {
        return Err(RequestError::errno(ENODEV));
    }
    let address = wanted.address()?;
    wanted.refuse_proxy()?;
    if wanted.link == 0 {
        return Err(RequestError::errno(EINVAL));
    }
    if router.neighbours.get(wanted.link, address).is_none() {
        return Err(RequestError::errno(ENOENT));
    }
    fail_neighbour(router, request.into(), wanted.link, address);
    remove_neighbour(router, request.into(), wanted.link, address);
    Ok(Outcome::Done)
}

/// Answers a question about one neighbour. Linux: `neigh_get`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request, request.validate())?;
    let address = wanted.address()?;
    wanted.refuse_proxy()?;
    if wanted.link == 0 {
        return Err(RequestError::new(EINVAL, "No device specified"));
    }
    let link = router.links.get(wanted.link).map(|link| link.index);
    let link = link.ok_or(RequestError::new(ENODEV, "Unknown device ifindex"))?;
    let neighbour = router.neighbours.get(link, address);
    let neighbour = neighbour.ok_or(RequestError::new(ENOENT, "Neighbour entry not found"))?;
    replies.message(RTM_NEWNEIGH, 0, request.reply_to(), |reply| {
        write_neighbour(reply, link, address, neighbour, router.ticks());
    })?;
    Ok(Outcome::Done)
}

/// A dump of neighbours, after the last one written.
struct NeighbourDump {
    families: std::vec::IntoIter<bool>,
    v6: Option<bool>,
    last: Option<Key>,
    link: Option<u32>,
    master: Option<u32>,
}

impl Dump for NeighbourDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(v6) = self.v6 else { return Ok(More::No) };
        let least = if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
        let entries = &router.neighbours.entries;
        let next = match self.last {
            Some(last) => entries.range((Excluded(last), Unbounded)).next(),
            None => entries.range((v6, 0, least)..).next(),
        };
        let Some((&key, neighbour)) = next.filter(|(key, _)| key.0 == v6) else {
            (self.v6, self.last) = (self.families.next(), None);
            return Ok(More::Yes);
        };
        self.last = Some(key);
        let (_, link, address) = key;
        let master = router.links.get(link).and_then(|link| link.master);
        if self.link.is_none_or(|only| only == link) && (self.master.is_none() || self.master == master) {
            let now = router.ticks();
            out.message(RTM_NEWNEIGH, |reply| write_neighbour(reply, link, address, neighbour, now))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.neighbours.generation
    }

    fn filtered(&self) -> bool {
        self.link.is_some() || self.master.is_some()
    }
}

/// Starts a dump of neighbours. Linux: `neigh_dump_info`.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let mut families = match i32::from(request.family()) {
        AF_INET => vec![false],
        AF_INET6 => vec![true],
        _ => vec![false, true],
    }
    .into_iter();
    let mut filter = [None; 2];
    let mut flags = 0;
    if request.strict || request.message.body().len() >= 12 {
        let invalid = |text| RequestError::new(EINVAL, text);
        let header = request.fixed::<12>();
        let header = header.map_err(|_| invalid("Invalid header for neighbor dump request"))?;
        if request.strict && (header[1..10] != [0; 9] || header[11] != 0) {
            return Err(invalid("Invalid values in header for neighbor dump request"));
        }
        if request.strict && header[10] & !NTF_PROXY != 0 {
            return Err(invalid("Invalid flags in header for neighbor dump request"));
        }
        let wanted = Wanted::parse(request, request.validate())?;
        let known = [libc::NDA_IFINDEX, libc::NDA_MASTER];
        let odd = wanted.attributes.iter().find(|attribute| !known.contains(&attribute.kind));
        if let Some(odd) = odd.filter(|_| request.strict) {
            return Err(odd.invalid("Unsupported attribute in neighbor dump request"));
        }
        filter =
            known.map(|kind| wanted.attributes.get(kind).map(|link| link.u32()).filter(|&link| link != 0));
        flags = header[10];
    }
    // There is no proxy entry to be dumped.
    let v6 = families.next().filter(|_| flags != NTF_PROXY);
    let [link, master] = filter;
    Ok(Outcome::Dump(Box::new(NeighbourDump { families, v6, last: None, link, master })))
}

/// An entry that is to be deleted has failed. Linux: `neigh_delete`, whose listeners hear of both.
fn fail_neighbour(router: &mut Router, cause: Cause, link: u32, address: IpAddr) {
    let Some(entry) = router.neighbours.entries.get_mut(&(address.is_ipv6(), link, address)) else { return };
    let old = *entry;
    (entry.state, entry.flags) = (NUD_FAILED, old.flags & !libc::NTF_EXT_LEARNED);
    let failed = *entry;
    if is_told(Some(&old), &failed) {
        notify_neighbour(router, cause, RTM_NEWNEIGH, link, address, &failed);
    }
}

/// Forgets all neighbours on a link, as Linux does when it goes down.
pub(crate) fn flush_neighbours(router: &mut Router, cause: Cause, link: u32) {
    [false, true].into_iter().for_each(|v6| flush_neighbours_of(router, cause, link, v6));
}

/// The same of one version of IP.
pub(crate) fn flush_neighbours_of(router: &mut Router, cause: Cause, link: u32, v6: bool) {
    let addresses: Vec<IpAddr> = router.neighbours.on(link, v6).map(|(address, _)| address).collect();
    addresses.into_iter().for_each(|address| remove_neighbour(router, cause, link, address));
}

/// Listeners hear of an entry as it was. Linux: `neigh_flush_dev`.
fn remove_neighbour(router: &mut Router, cause: Cause, link: u32, address: IpAddr) {
    router.neighbours.generation += 1;
    let Some(neighbour) = router.neighbours.entries.remove(&(address.is_ipv6(), link, address)) else {
        return;
    };
    notify_neighbour(router, cause, RTM_DELNEIGH, link, address, &neighbour);
    neighbour_changed(router, link, address);
}

fn notify_neighbour(
    router: &mut Router,
    cause: Cause,
    kind: u16,
    link: u32,
    address: IpAddr,
    neighbour: &Neighbour,
) {
    let now = router.ticks();
    router.events.notify(cause, libc::RTNLGRP_NEIGH, kind, 0, |reply| {
        write_neighbour(reply, link, address, neighbour, now);
    });
}
