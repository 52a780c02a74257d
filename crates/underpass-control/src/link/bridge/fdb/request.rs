//! `bridge fdb`: requests for entries. Linux: `rtnl_fdb_add` and its like in `net/core/rtnetlink.c`, `br_fdb_add`.

use libc::{
    EEXIST, EINVAL, ENODEV, ENOENT, EOPNOTSUPP, EPERM, NTF_EXT_LEARNED, NTF_MASTER, NTF_SELF, NUD_NOARP,
    NUD_PERMANENT, NUD_REACHABLE, RTM_NEWNEIGH,
};
use underpass_engine::l2::fdb::{EXTERNAL, Entry, LOCAL, STATIC, STICKY, Station, USER};
use underpass_netlink::bridge::{FORWARDING, LEARNING};
use underpass_netlink::{Attributes, Replies, RequestError, Type, Validate, policy};

use super::{NDA_FLAGS_EXT, NTF_STICKY, Told, now, put, remove, remove_all};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::link::tunnel::vxlan::fdb as vxlan_fdb;
use crate::link::{Link, LinkKind};
use crate::{Request, Router};

const NDA_NDM_STATE_MASK: u16 = 16;
const NDA_NDM_FLAGS_MASK: u16 = 17;
/// `NLM_F_BULK`: a deletion of all that match.
const BULK: u16 = 0x200;

const POLICY: [Type; 18] = policy(&[
    (libc::NDA_DST, Type::Any),
    (libc::NDA_LLADDR, Type::Any),
    (libc::NDA_CACHEINFO, Type::Any),
    (libc::NDA_VLAN, Type::Any),
    (libc::NDA_PORT, Type::Unsupported),
    (libc::NDA_VNI, Type::Unsupported),
    (libc::NDA_IFINDEX, Type::U32),
    (libc::NDA_SRC_VNI, Type::U32),
    (libc::NDA_MASTER, Type::U32),
    (NDA_FLAGS_EXT, Type::U32),
    (NDA_NDM_STATE_MASK, Type::U16),
    (NDA_NDM_FLAGS_MASK, Type::U8),
]);

/// A request's `struct ndmsg` and attributes.
pub(in crate::link) struct Wanted<'a> {
    link: u32,
    pub(in crate::link) state: u16,
    pub(in crate::link) flags: u8,
    pub(in crate::link) attributes: Attributes<'a, 18>,
}

impl<'a> Wanted<'a> {
    fn parse(request: &Request<'a>) -> Result<Self, RequestError> {
        let (header, attributes) = request.parse::<12, 18>(&POLICY, Validate::Liberal)?;
        let [_, _, _, _, a, b, c, d, e, f, flags, _] = header;
        let (link, state) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
        Ok(Self { link, state, flags, attributes })
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.attributes.get(kind).map(|number| number.u32())
    }

    fn link<'r>(&self, router: &'r Router) -> Result<&'r Link, RequestError> {
        if self.link == 0 {
            return Err(RequestError::new(EINVAL, "invalid ifindex"));
        }
        router.links.get(self.link).ok_or(RequestError::new(ENODEV, "unknown ifindex"))
    }

    fn mac(&self, text: &'static str) -> Result<[u8; 6], RequestError> {
        let mac = self.attributes.get(libc::NDA_LLADDR);
        let mac = mac.and_then(|mac| <[u8; 6]>::try_from(mac.value).ok());
        mac.ok_or(RequestError::new(EINVAL, text))
    }

    /// Linux: `fdb_vid_parse`. 0: none was named.
    fn vlan(&self) -> Result<u16, RequestError> {
        let Some(vlan) = self.attributes.get(libc::NDA_VLAN) else { return Ok(0) };
        match <[u8; 2]>::try_from(vlan.value).map(u16::from_ne_bytes) {
            Err(_) => Err(RequestError::new(EINVAL, "invalid vlan attribute size")),
            Ok(0 | 4095..) => Err(RequestError::new(EINVAL, "invalid vlan id")),
            Ok(id) => Ok(id),
        }
    }

    /// Whether it is about the stations that a device keeps itself: those of a VXLAN. What else it says is then for its bridge.
    fn takes_own(&mut self, link: &Link) -> bool {
        let own = self.flags & NTF_SELF != 0 && link.has_ends();
        if own {
            self.flags &= !NTF_SELF;
        }
        own
    }

    /// Has the kernel do what is about the addresses that a port has itself, where that is a device of the kernel's.
    fn leave_own(
        &mut self,
        router: &mut Router,
        request: &Request<'_>,
        link: &Link,
    ) -> Result<(), RequestError> {
        const BOTH: u8 = NTF_SELF | NTF_MASTER;
        if router.live.is_some() && link.bridge_port.is_some() && self.flags & BOTH == BOTH {
            pass_on(router, request, NTF_MASTER)?;
            self.flags &= !NTF_SELF;
        }
        Ok(())
    }

    /// The bridge that a request is about. Of the addresses that a device has itself only a bridge's can be changed.
    fn bridge(&self, link: &Link, what: &'static str) -> Result<u32, RequestError> {
        if !has_frames(link) {
            return Err(RequestError::new(EINVAL, what));
        }
        let itself = self.flags & NTF_SELF != 0;
        let to_master = self.flags == 0 || self.flags & NTF_MASTER != 0;
        match link.master.filter(|_| link.bridge_port.is_some()) {
            Some(bridge) if to_master && !itself => Ok(bridge),
            None if itself && link.bridge.is_some() => Ok(link.index),
            _ if itself => {
                let text = "addresses of a device itself are not supported by this router: say master";
                Err(RequestError::new(EOPNOTSUPP, text))
            }
            _ => Err(RequestError::errno(EOPNOTSUPP)),
        }
    }

    /// The VLANs that it is about: without one, also all of the link, which Linux does "to be nice".
    fn vlans(&self, link: &Link) -> Result<Vec<u16>, RequestError> {
        let mut all = link.bridge_vlans().into_iter().flat_map(|vlans| vlans.iter()).map(|(id, ..)| id);
        match self.vlan()? {
            0 => Ok(std::iter::once(0).chain(all).collect()),
            id if all.any(|other| other == id) => Ok(vec![id]),
            _ => Err(RequestError::errno(EINVAL)),
        }
    }
}

/// Whether its frames are Ethernet's.
const fn has_frames(link: &Link) -> bool {
    match link.kind {
        LinkKind::Loopback => false,
        LinkKind::Tunnel(kind) => kind.ethernet(),
        _ => true,
    }
}

fn find(router: &Router, bridge: u32, station: Station) -> Option<Entry> {
    router.stations.get(&bridge)?.table.find(station)
}

/// `RTM_NEWNEIGH`. Linux: `rtnl_fdb_add`, `br_fdb_add`.
pub(crate) fn new(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let mut wanted = Wanted::parse(request)?;
    let link = wanted.link(router)?.clone();
    let mac = wanted.mac("invalid address")?;
    wanted.vlan()?;
    if wanted.takes_own(&link) {
        if wanted.flags & NTF_MASTER != 0 {
            match router.live.is_some() && link.bridge_port.is_none() {
                true => pass_on(router, request, NTF_SELF)?,
                false => new_of_bridge(router, request, &wanted, (&link, mac))?,
            }
        }
        vxlan_fdb::new(router, request, &wanted, (&link, mac))?;
    } else {
        wanted.leave_own(router, request, &link)?;
        new_of_bridge(router, request, &wanted, (&link, mac))?;
    }
    Ok(Outcome::Done)
}

/// What of a request is for the bridge of the device, where that is the kernel's, or for the device itself: it without a flag.
fn pass_on(router: &mut Router, request: &Request<'_>, without: u8) -> Result<(), RequestError> {
    /// Where the flags of a `struct ndmsg` are, behind the header of the message.
    const FLAGS: usize = 16 + 10;
    let mut bytes = request.message.bytes.to_vec();
    if let Some(flags) = bytes.get_mut(FLAGS) {
        *flags &= !without;
    }
    router.pass_on(&mut bytes)
}

/// The same of a bridge's.
fn new_of_bridge(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    (link, mac): (&Link, [u8; 6]),
) -> Result<(), RequestError> {
    let bridge = wanted.bridge(link, "FDB add only supported for Ethernet devices")?;
    if wanted.state & (NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE) == 0 || mac == [0; 6] {
        return Err(RequestError::errno(EINVAL));
    }
    if wanted.number(NDA_FLAGS_EXT).is_some_and(|flags| flags != 0) {
        return Err(RequestError::new(EINVAL, "Cannot add FDB entry with \"locked\" flag set"));
    }
    if wanted.flags & libc::NTF_USE != 0 {
        return Err(RequestError::new(EOPNOTSUPP, "use is not supported by this router"));
    }
    let entries = wanted.vlans(link)?.into_iter().map(|vlan| {
        let station = Station::new(mac, vlan);
        let old = find(router, bridge, station);
        Ok((station, old, entry(router, request, wanted, link, old)?))
    });
    // Nothing is written before all of it can be.
    let entries: Result<Vec<_>, RequestError> = entries.collect();
    for (station, old, entry) in entries? {
        if old.is_none_or(|old| (old.link, old.flags) != (entry.link, entry.flags)) {
            put(router, request.into(), bridge, station, entry)?;
        }
    }
    Ok(())
}

/// The entry that a request asks for. Linux: `fdb_add_entry`, `br_fdb_external_learn_add`.
fn entry(
    router: &Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    link: &Link,
    old: Option<Entry>,
) -> Result<Entry, RequestError> {
    let heard = now(router);
    let port = link.bridge_port.as_ref().map(|port| port.settings.state);
    let permanent = wanted.state & NUD_PERMANENT != 0;
    if wanted.flags & NTF_EXT_LEARNED != 0 {
        if port.is_none() && !permanent {
            return Err(RequestError::new(EINVAL, "FDB entry towards bridge must be permanent"));
        }
        let own = if port.is_none() { LOCAL } else { 0 };
        let kept = old.map_or(0, |old| old.flags);
        return Ok(Entry { link: link.id, flags: EXTERNAL | own | kept, heard });
    }
    let fixed = permanent || wanted.state & NUD_NOARP != 0;
    match port {
        Some(LEARNING | FORWARDING) => {}
        Some(_) if !fixed => return Err(RequestError::errno(EPERM)),
        None if !permanent => return Err(RequestError::errno(EINVAL)),
        _ => {}
    }
    let sticky = wanted.flags & NTF_STICKY != 0;
    if sticky && permanent {
        return Err(RequestError::errno(EINVAL));
    }
    match old {
        None if !request.create() => return Err(RequestError::errno(ENOENT)),
        Some(_) if request.exclusive() => return Err(RequestError::errno(EEXIST)),
        _ => {}
    }
    let state = match (permanent, fixed) {
        (true, _) => LOCAL | STATIC,
        (_, true) => STATIC,
        _ => 0,
    };
    let external = old.map_or(0, |old| old.flags & EXTERNAL);
    let flags = USER | state | external | if sticky { STICKY } else { 0 };
    Ok(Entry { link: link.id, flags, heard })
}

/// `RTM_DELNEIGH`. Linux: `rtnl_fdb_del`, `br_fdb_delete`.
pub(crate) fn delete(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let mut wanted = Wanted::parse(request)?;
    let link = wanted.link(router)?.clone();
    let bulk = request.message.flags & BULK != 0;
    let mac = if bulk { [0; 6] } else { wanted.mac("invalid address")? };
    wanted.vlan()?;
    if wanted.takes_own(&link) {
        if wanted.flags & NTF_MASTER != 0 {
            match router.live.is_some() && link.bridge_port.is_none() {
                true => pass_on(router, request, NTF_SELF)?,
                false => drop(delete_of_bridge(router, request, &wanted, (&link, mac))?),
            }
        }
        return match bulk {
            true => vxlan_fdb::flush(router, request, &wanted, &link),
            false => vxlan_fdb::delete(router, request, &wanted, (&link, mac)),
        };
    }
    wanted.leave_own(router, request, &link)?;
    delete_of_bridge(router, request, &wanted, (&link, mac))
}

/// The same of a bridge's.
fn delete_of_bridge(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    (link, mac): (&Link, [u8; 6]),
) -> Result<Outcome, RequestError> {
    let bridge = wanted.bridge(link, "FDB delete only supported for Ethernet devices")?;
    if request.message.flags & BULK != 0 {
        return flush(router, request, wanted, (bridge, link));
    }
    let mut found = false;
    for station in wanted.vlans(link)?.into_iter().map(|vlan| Station::new(mac, vlan)) {
        if find(router, bridge, station).is_some_and(|entry| entry.link == link.id) {
            remove(router, request.into(), bridge, station);
            found = true;
        }
    }
    if found { Ok(Outcome::Done) } else { Err(RequestError::errno(ENOENT)) }
}

/// The flags of entries that are in one of these states. Linux: `__ndm_state_to_fdb_flags`.
const fn of_state(state: u16) -> u8 {
    (if state & NUD_PERMANENT != 0 { LOCAL } else { 0 }) | (if state & NUD_NOARP != 0 { STATIC } else { 0 })
}

/// The flags of entries that have these. Linux: `__ndm_flags_to_fdb_flags`.
const fn of_flags(flags: u8) -> u8 {
    (if flags & NTF_EXT_LEARNED != 0 { EXTERNAL } else { 0 })
        | (if flags & NTF_STICKY != 0 { STICKY } else { 0 })
}

/// `bridge fdb flush`. Linux: `br_fdb_delete_bulk`.
fn flush(
    router: &mut Router,
    request: &Request<'_>,
    wanted: &Wanted<'_>,
    (bridge, link): (u32, &Link),
) -> Result<Outcome, RequestError> {
    const STATES: u16 = NUD_PERMANENT | NUD_NOARP;
    const FLAGS: u8 = NTF_EXT_LEARNED | NTF_STICKY | libc::NTF_OFFLOADED;
    let invalid = |text| RequestError::new(EINVAL, text);
    let asked = wanted.flags & !(NTF_MASTER | NTF_SELF);
    if asked & !FLAGS != 0 {
        return Err(invalid("Unsupported fdb flush ndm flag bits set"));
    }
    if wanted.state & !STATES != 0 {
        return Err(invalid("Unsupported fdb flush ndm state bits set"));
    }
    let states = wanted.attributes.get(NDA_NDM_STATE_MASK).map_or(0, |mask| mask.u16());
    let flags = wanted.attributes.get(NDA_NDM_FLAGS_MASK).map_or(0, |mask| mask.u8());
    if states & !STATES != 0 || flags & !FLAGS != 0 {
        return Err(RequestError::errno(EINVAL));
    }
    let port = match wanted.number(libc::NDA_IFINDEX) {
        Some(port) => {
            let port = router.links.get(port).ok_or(invalid("Unknown flush device ifindex"))?;
            let is_port = port.bridge_port.is_some() && port.master == Some(bridge);
            if port.index != bridge && !is_port {
                return Err(invalid("Flush device is not a port of the bridge"));
            }
            Some(port.id)
        }
        None => link.bridge_port.as_ref().map(|_| link.id),
    };
    let vlan = wanted.vlan()?;
    let (mask, value) = (of_state(states) | of_flags(flags), of_state(wanted.state) | of_flags(asked));
    remove_all(router, Cause::from(request), bridge, |station, entry| {
        (vlan == 0 || station.vlan() == vlan)
            && port.is_none_or(|port| entry.link == port)
            && (mask == 0 || entry.flags & mask == value)
    });
    Ok(Outcome::Done)
}

/// Answers a question about one entry. Linux: `rtnl_fdb_get`, `br_fdb_get`.
pub(crate) fn get(
    router: &Router,
    request: &Request<'_>,
    replies: &mut Replies,
) -> Result<Outcome, RequestError> {
    let wanted = Wanted::parse(request)?;
    let invalid = |text| RequestError::new(EINVAL, text);
    let mac = wanted.mac("Missing lookup address for fdb get request")?;
    let vlan = wanted.vlan()?;
    let link = match wanted.link {
        0 => None,
        index => Some(router.links.get(index).ok_or(RequestError::new(ENODEV, "Unknown device ifindex"))?),
    };
    if let Some(link) = link.filter(|link| wanted.flags & NTF_SELF != 0 && link.has_ends()) {
        return vxlan_fdb::get(router, request, (link, mac), replies);
    }
    let bridge = match (wanted.number(libc::NDA_MASTER), link) {
        (Some(bridge), _) => bridge,
        (None, None) => return Err(invalid("No device specified")),
        (None, Some(link)) if link.bridge.is_some() => link.index,
        (None, Some(link)) => match link.master.filter(|_| link.bridge_port.is_some()) {
            Some(bridge) => bridge,
            None => return Err(invalid("Device is not a bridge port")),
        },
    };
    if router.links.get(bridge).is_none_or(|link| link.bridge.is_none()) {
        return Err(invalid("Master is not a bridge"));
    }
    let station = Station::new(mac, vlan);
    let entry = find(router, bridge, station).ok_or(RequestError::new(ENOENT, "Fdb entry not found"))?;
    let told = Told::of(router, bridge, (station, entry));
    replies.message(RTM_NEWNEIGH, 0, request.reply_to(), |reply| told.write(reply, station, entry))?;
    Ok(Outcome::Done)
}

/// A dump of entries, those of one link after those of another, as Linux asks each device for its own.
struct StationDump {
    last: u32,
    rest: std::vec::IntoIter<(Told, Station, Entry)>,
    bridge: Option<u32>,
    link: Option<u32>,
}

impl Dump for StationDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        if let Some((told, station, entry)) = self.rest.next() {
            out.message(RTM_NEWNEIGH, |reply| told.write(reply, station, entry))?;
            return Ok(More::Yes);
        }
        let Some(link) = router.links.after(self.last) else { return Ok(More::No) };
        self.last = link.index;
        let bridge = link.bridge_index();
        let shown = self.bridge.is_none_or(|only| bridge == Some(only))
            && self.link.is_none_or(|only| link.index == only);
        let mut rest = Vec::new();
        if let Some(bridge) = bridge.filter(|_| shown)
            && let Some(stations) = router.stations.get(&bridge)
        {
            let of_link = stations.by(link.id).into_iter();
            rest.extend(
                of_link.map(|(station, entry)| (Told::of(router, bridge, (station, entry)), station, entry)),
            );
        }
        if shown && link.has_ends() {
            rest.extend(vxlan_fdb::all(router, link));
        }
        self.rest = rest.into_iter();
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }
}

/// Starts a dump of entries. Linux: `rtnl_fdb_dump`.
pub(crate) fn dump(request: &Request<'_>) -> Result<Outcome, RequestError> {
    let mut filter = [None; 2];
    if request.strict || request.message.body().len() >= 12 {
        let wanted = Wanted::parse(request)?;
        let link = wanted.number(libc::NDA_IFINDEX).unwrap_or(wanted.link);
        filter = [wanted.number(libc::NDA_MASTER), Some(link)];
    }
    let [bridge, link] = filter.map(|link| link.filter(|index| *index != 0));
    Ok(Outcome::Dump(Box::new(StationDump { last: 0, rest: Vec::new().into_iter(), bridge, link })))
}
