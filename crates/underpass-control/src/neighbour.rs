//! Neighbours: the link-layer addresses of the stations on a link. Linux: `net/core/neighbour.c`.
//!
//! Every entry is there because a request made it; states do not age.

mod mirror;
mod wanted;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use libc::{
    AF_INET, AF_INET6, EAFNOSUPPORT, EEXIST, EINVAL, ENODEV, ENOENT, EOPNOTSUPP, NTF_PROXY, NTF_ROUTER,
    NUD_DELAY, NUD_FAILED, NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE, RTM_DELNEIGH,
    RTM_NEWNEIGH,
};
use underpass_netlink::{Attributes, Replies, Reply, RequestError, Type, Validate, policy};

pub(crate) use wanted::Wants;

use crate::dump::{Chunk, Dump, More};
use crate::events::Cause;
use crate::router::Outcome;
use crate::{Request, Router};

const NDA_LLADDR: u16 = libc::NDA_LLADDR;
const NDA_PROTOCOL: u16 = 12;
const NDA_FLAGS_EXT: u16 = 15;
/// States in which the link-layer address may be used: `NUD_VALID`.
const VALID: u16 = NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;

const POLICY: [Type; 18] = policy(&[
    (libc::NDA_DST, Type::Any),
    (NDA_LLADDR, Type::AtMost(32)),
    (libc::NDA_CACHEINFO, Type::Any),
    (libc::NDA_PROBES, Type::Any),
    (libc::NDA_VLAN, Type::Unsupported),
    (libc::NDA_IFINDEX, Type::U32),
    (libc::NDA_MASTER, Type::U32),
    (NDA_PROTOCOL, Type::U8),
    (NDA_FLAGS_EXT, Type::U32),
]);

/// The kernel's own messages are taken as they are.
const TOLD: [Type; 18] = policy(&[]);

/// A neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// `NUD_*`.
    pub state: u16,
    /// `NTF_*`.
    pub flags: u8,
    /// `protocol`: who made the entry; 0 for nobody in particular.
    pub protocol: u8,
    /// When it was last changed, in hundredths of a second since the router began.
    pub updated: u32,
}

impl Neighbour {
    /// Its link-layer address, if it may be used.
    pub const fn usable(&self) -> Option<[u8; 6]> {
        if self.state & VALID == 0 { None } else { Some(self.mac) }
    }
}

/// Link and address of a neighbour; IPv4 comes before IPv6.
type Key = (bool, u32, IpAddr);

/// All neighbours.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: BTreeMap<Key, Neighbour>,
    /// Changes with every change of a neighbour.
    pub generation: u64,
}

impl Neighbours {
    /// What is known of the station with this address on this link.
    pub fn get(&self, link: u32, address: IpAddr) -> Option<&Neighbour> {
        self.entries.get(&(address.is_ipv6(), link, address))
    }

    /// The neighbours on a link of one family.
    pub fn on(&self, link: u32, v6: bool) -> impl Iterator<Item = (IpAddr, &Neighbour)> {
        let least = if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
        let from = self.entries.range((v6, link, least)..);
        from.take_while(move |((family, on, _), _)| (*family, *on) == (v6, link))
            .map(|((_, _, address), neighbour)| (*address, neighbour))
    }
}

/// A request's `struct ndmsg` and attributes.
struct Wanted<'a> {
    family: u8,
    link: u32,
    state: u16,
    flags: u8,
    attributes: Attributes<'a, 18>,
}

impl<'a> Wanted<'a> {
    fn parse(request: &Request<'a>, validate: Validate) -> Result<Self, RequestError> {
        Self::read(request, &POLICY, validate)
    }

    fn read(request: &Request<'a>, policy: &[Type; 18], validate: Validate) -> Result<Self, RequestError> {
        let (header, attributes) = request.parse::<12, 18>(policy, validate)?;
        let [a, b, c, d] = [header[4], header[5], header[6], header[7]];
        Ok(Self {
            family: header[0],
            link: u32::from_ne_bytes([a, b, c, d]),
            state: u16::from_ne_bytes([header[8], header[9]]),
            flags: header[10],
            attributes,
        })
    }

    /// The neighbour's address.
    fn address(&self) -> Result<IpAddr, RequestError> {
        let missing = RequestError::new(EINVAL, "Network address not specified");
        let address = self.attributes.get(libc::NDA_DST).ok_or(missing)?;
        if !matches!(i32::from(self.family), AF_INET | AF_INET6) {
            return Err(RequestError::errno(EAFNOSUPPORT));
        }
        address.address(self.family).ok_or(RequestError::new(EINVAL, "Invalid network address"))
    }

    fn refuse_proxy(&self) -> Result<(), RequestError> {
        if self.flags & NTF_PROXY != 0 {
            return Err(RequestError::new(EOPNOTSUPP, "proxy neighbours are not supported by this router"));
        }
        Ok(())
    }
}

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
    let kept = libc::NTF_EXT_LEARNED | if address.is_ipv6() { NTF_ROUTER } else { 0 };
    let protocol = wanted.attributes.get(NDA_PROTOCOL).map(|protocol| protocol.u8());
    let neighbour = Neighbour {
        mac,
        state: wanted.state,
        flags: wanted.flags & kept,
        protocol: protocol.or(old.map(|old| old.protocol)).unwrap_or(0),
        updated: router.ticks(),
    };
    let link = link.index;
    router.neighbours.generation += 1;
    router.neighbours.entries.insert((address.is_ipv6(), link, address), neighbour);
    router.notify_neighbour(request.into(), RTM_NEWNEIGH, link, address, &neighbour);
    router.neighbour_changed(link, address);
    Ok(Outcome::Done)
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
    router.remove_neighbour(request.into(), wanted.link, address);
    Ok(Outcome::Done)
}

impl Router {
    /// The neighbours: link, address, and what is known.
    pub fn neighbours(&self) -> impl Iterator<Item = (u32, IpAddr, &Neighbour)> {
        self.neighbours.entries.iter().map(|(&(_, link, address), neighbour)| (link, address, neighbour))
    }

    /// Forgets all neighbours on a link, as Linux does when it goes down.
    pub(crate) fn flush_neighbours(&mut self, cause: Cause, link: u32) {
        [false, true].into_iter().for_each(|v6| self.flush_neighbours_of(cause, link, v6));
    }

    /// The same of one version of IP.
    pub(crate) fn flush_neighbours_of(&mut self, cause: Cause, link: u32, v6: bool) {
        let addresses: Vec<IpAddr> = self.neighbours.on(link, v6).map(|(address, _)| address).collect();
        addresses.into_iter().for_each(|address| self.remove_neighbour(cause, link, address));
    }

    fn remove_neighbour(&mut self, cause: Cause, link: u32, address: IpAddr) {
        self.neighbours.generation += 1;
        let Some(mut neighbour) = self.neighbours.entries.remove(&(address.is_ipv6(), link, address)) else {
            return;
        };
        neighbour.state = NUD_FAILED;
        self.notify_neighbour(cause, RTM_NEWNEIGH, link, address, &neighbour);
        self.notify_neighbour(cause, RTM_DELNEIGH, link, address, &neighbour);
        self.neighbour_changed(link, address);
    }

    fn notify_neighbour(
        &mut self,
        cause: Cause,
        kind: u16,
        link: u32,
        address: IpAddr,
        neighbour: &Neighbour,
    ) {
        let now = self.ticks();
        self.events.notify(cause, libc::RTNLGRP_NEIGH, kind, 0, |reply| {
            write_neighbour(reply, link, address, neighbour, now);
        });
    }
}

/// `RTM_NEWNEIGH`. Linux: `neigh_fill_info`.
fn write_neighbour(reply: &mut Reply<'_>, link: u32, address: IpAddr, neighbour: &Neighbour, now: u32) {
    let family = if address.is_ipv6() { AF_INET6 } else { AF_INET };
    let mut header = [0; 12];
    header[0] = family as u8;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&neighbour.state.to_ne_bytes());
    header[10] = neighbour.flags;
    header[11] = libc::RTN_UNICAST;
    reply.fixed(&header);
    reply.address(libc::NDA_DST, address);
    if let Some(mac) = neighbour.usable() {
        reply.attribute(NDA_LLADDR, &mac);
    }
    // struct nda_cacheinfo: how long ago it was confirmed, used and updated; users.
    let age = now.wrapping_sub(neighbour.updated);
    let info: Vec<u8> = [age, age, age, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    reply.attribute(libc::NDA_CACHEINFO, &info);
    reply.u32(libc::NDA_PROBES, 0);
    if neighbour.protocol != 0 {
        reply.u8(NDA_PROTOCOL, neighbour.protocol);
    }
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

/// Starts a dump of neighbours. Linux: `neigh_dump_info`.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let mut families = match i32::from(request.family()) {
        AF_INET => vec![false],
        AF_INET6 => vec![true],
        libc::AF_BRIDGE => return Err(RequestError::errno(EOPNOTSUPP)),
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
