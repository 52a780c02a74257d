//! `bridge vlan set`, `bridge -d vlan show`: what VLANs of a port are besides their tags. Linux: `net/bridge/br_vlan.c`,
//! `br_vlan_options.c`.

use libc::{AF_BRIDGE, EINVAL, ENODEV, ENOENT, EOPNOTSUPP, ERANGE};
use underpass_netlink::bridge::FORWARDING;
use underpass_netlink::{Attribute, Attributes, Reply, RequestError, Type, Validate, policy};

use super::super::Link;
use super::super::publish::publish_link;
use super::query::{PVID, RANGE_BEGIN, RANGE_END, UNTAGGED, notify_port};
use super::request::{change_vlans, check_vlans, vlans};
use super::vlans::{Options, Vlans};
use super::{fdb, follow};
use crate::dump::{Chunk, Dump, More, Outcome};
use crate::events::Cause;
use crate::request::word;
use crate::{Request, Router};

/// `RTM_NEWVLAN`.
pub(crate) const RTM_NEWVLAN: u16 = 112;
/// `RTM_DELVLAN`.
pub(crate) const RTM_DELVLAN: u16 = 113;
/// `RTM_GETVLAN`.
pub(crate) const RTM_GETVLAN: u16 = 114;

const ENTRY: u16 = 1;
const GLOBAL_OPTIONS: u16 = 2;

const INFO: u16 = 1;
const RANGE: u16 = 2;
const STATE: u16 = 3;
const TUNNEL_INFO: u16 = 4;
const MCAST_ROUTER: u16 = 6;
const MCAST_N_GROUPS: u16 = 7;
const MCAST_MAX_GROUPS: u16 = 8;
const NEIGH_SUPPRESS: u16 = 9;

const POLICY: [Type; 10] = policy(&[
    (INFO, Type::Exact(4)),
    (RANGE, Type::U16),
    (STATE, Type::U8),
    (TUNNEL_INFO, Type::Nested),
    (MCAST_ROUTER, Type::U8),
    (MCAST_N_GROUPS, Type::Rejected),
    (MCAST_MAX_GROUPS, Type::U32),
    (NEIGH_SUPPRESS, Type::U8),
]);

const ENTRIES: [Type; 3] = policy(&[(ENTRY, Type::Nested), (GLOBAL_OPTIONS, Type::Any)]);

/// In the flags of a VLAN of a port: its bridge itself is to have it, too.
const MASTER: u16 = 1;
/// In the flags of a VLAN: it is there already, and only what it is besides is said.
const ONLY_OPTIONS: u16 = 1 << 6;

/// What the router has no other value of.
const ONLY: [(u16, u8, &str); 2] = [
    (STATE, FORWARDING, "states of VLANs are not supported by this router"),
    (MCAST_ROUTER, 1, "mcast_router is not supported by this router"),
];

/// `struct br_vlan_msg`.
const HEADER: usize = 8;

/// An entry of a request, read.
struct Requested<'a> {
    flags: u16,
    first: u16,
    last: u16,
    attributes: Attributes<'a, 10>,
}

/// `RTM_NEWVLAN`, `RTM_DELVLAN`. Linux: `br_vlan_rtm_process`.
pub(crate) fn change(router: &mut Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    let (header, _) = request.parse::<HEADER, 3>(&ENTRIES, Validate::Full)?;
    let deletes = request.message.kind == RTM_DELVLAN;
    let index = u32::from_ne_bytes(word(&header, 4));
    let link = router.links.get(index).ok_or(RequestError::errno(ENODEV))?;
    if link.bridge.is_none() && link.bridge_port.is_none() {
        return Err(RequestError::new(EINVAL, "bridge: The device is not a valid bridge or bridge port"));
    }
    let (mut requested, mut refused) = (Vec::new(), None);
    for entry in request.message.attributes(HEADER) {
        match read(link, &entry, deletes) {
            Ok(one) => requested.push(one),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    // What this router lacks is refused before anything is changed. Of what Linux refuses, the entries before stay.
    if let Some(lacks) = refused.take_if(|error| error.errno == EOPNOTSUPP) {
        return Err(lacks);
    }
    if requested.is_empty() && refused.is_none() {
        return Err(RequestError::new(EINVAL, "bridge: No vlans found to process"));
    }
    for one in &requested {
        apply(router, Cause::from(request), index, one, deletes)?;
    }
    refused.map_or(Ok(Outcome::Done), Err)
}

/// Reads an entry, and refuses what this router lacks. Linux: `br_vlan_rtm_process_one`,
/// `br_vlan_rtm_process_global_options`.
fn read<'a>(link: &Link, entry: &Attribute<'a>, deletes: bool) -> Result<Requested<'a>, RequestError> {
    let invalid = |text| RequestError::new(EINVAL, text);
    if entry.kind == GLOBAL_OPTIONS {
        if deletes {
            return Err(invalid("bridge: Global vlan options support only set operation"));
        }
        if link.bridge.is_none() {
            return Err(invalid("bridge: Global vlan options can only be set on bridge device"));
        }
        let text = "options of VLANs of a bridge are not supported by this router";
        return Err(RequestError::new(EOPNOTSUPP, text).at(entry.offset));
    }
    let attributes: Attributes<'_, 10> = entry.parse_nested(&POLICY, Validate::Full)?;
    if let Some(suppress) = attributes.get(NEIGH_SUPPRESS).filter(|suppress| suppress.u8() > 1) {
        return Err(RequestError::new(ERANGE, "integer out of range").at(suppress.offset));
    }
    let info = attributes.get(INFO).and_then(|info| <[u8; 4]>::try_from(info.value).ok());
    let [a, b, c, d] = info.ok_or(invalid("bridge: Missing vlan entry info"))?;
    let (flags, first) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    if flags & (RANGE_BEGIN | RANGE_END) != 0 {
        return Err(invalid("bridge: Old-style vlan ranges are not allowed when using RTM vlan calls"));
    }
    let is_vlan =
        |id: u16| if (1..4095).contains(&id) { Ok(id) } else { Err(invalid("bridge: Vlan id is invalid")) };
    let mut last = is_vlan(first)?;
    if let Some(range) = attributes.get(RANGE) {
        last = is_vlan(range.u16())?;
        if flags & PVID != 0 {
            return Err(invalid("bridge: Pvid isn't allowed in a range"));
        }
        if last <= first {
            return Err(invalid("bridge: End vlan id is less than or equal to start vlan id"));
        }
    }
    if !deletes {
        check_options(&attributes)?;
    }
    Ok(Requested { flags, first, last, attributes })
}

/// Refuses what this router has no other value of, or not at all.
fn check_options(attributes: &Attributes<'_, 10>) -> Result<(), RequestError> {
    for (kind, only, text) in ONLY {
        if let Some(other) = attributes.get(kind).filter(|value| value.u8() != only) {
            return Err(RequestError::new(EOPNOTSUPP, text).at(other.offset));
        }
    }
    for (kind, text) in [
        (TUNNEL_INFO, "vlan_tunnel is not supported by this router"),
        (MCAST_MAX_GROUPS, "mcast_max_groups is not supported by this router"),
    ] {
        if let Some(refused) = attributes.get(kind) {
            return Err(RequestError::new(EOPNOTSUPP, text).at(refused.offset));
        }
    }
    Ok(())
}

/// Linux: `br_process_vlan_info`, `br_vlan_process_options`.
fn apply(
    router: &mut Router,
    cause: Cause,
    index: u32,
    requested: &Requested<'_>,
    deletes: bool,
) -> Result<(), RequestError> {
    let Some(old) = router.links.get(index).cloned() else { return Ok(()) };
    let bridge = old.master.filter(|_| old.bridge_port.is_some());
    let mut link = old.clone();
    let mut gone = Vec::new();
    let change = |link: &mut Link| {
        let ids = requested.first..=requested.last;
        vlans(link).map(|vlans| change_vlans(vlans, ids, requested.flags, deletes)).unwrap_or_default()
    };
    if deletes || requested.flags & ONLY_OPTIONS == 0 {
        if !deletes {
            check_vlans(&link, &(requested.first..=requested.last))?;
        }
        gone = change(&mut link);
        let master =
            bridge.filter(|_| requested.flags & MASTER != 0).and_then(|bridge| router.links.get(bridge));
        if let Some(old) = master.cloned() {
            let mut link = old.clone();
            change(&mut link);
            put(router, cause, &old, link);
        }
    }
    let mut result = Ok(());
    if let Some(vlans) = vlans(&mut link).filter(|_| !deletes) {
        result = set_options(vlans, requested, bridge.is_some());
    }
    let are_others = !ids_of(&old).eq(ids_of(&link));
    put(router, cause, &old, link);
    if are_others {
        let kind = if deletes { libc::RTM_DELLINK } else { libc::RTM_SETLINK };
        notify_port(router, cause, kind, index);
    }
    if let Some(bridge) = bridge {
        gone.into_iter().for_each(|vlan| fdb::forget_learned(router, cause, bridge, Some(old.id), vlan));
    }
    result
}

/// The VLANs of a bridge or a port, and their tags.
fn ids_of(link: &Link) -> impl Iterator<Item = (u16, bool, bool)> {
    link.bridge_vlans().into_iter().flat_map(Vlans::iter)
}

/// Those before the first for which it cannot be done have them then. Linux: `br_vlan_process_options`.
fn set_options(vlans: &mut Vlans, requested: &Requested<'_>, is_port: bool) -> Result<(), RequestError> {
    for (id, text) in [
        (requested.first, "bridge: Vlan range start doesn't exist, can't process options"),
        (requested.last, "bridge: Vlan range end doesn't exist, can't process options"),
    ] {
        if !vlans.has(id) {
            return Err(RequestError::new(ENOENT, text));
        }
    }
    for id in requested.first..=requested.last {
        let missing = RequestError::new(ENOENT, "bridge: Vlan in range doesn't exist, can't process options");
        let options = vlans.options_mut(id).ok_or(missing)?;
        if let Some(on) = requested.attributes.get(NEIGH_SUPPRESS) {
            if !is_port {
                return Err(RequestError::new(EINVAL, "bridge: Can't set neigh_suppress for non-port vlans"));
            }
            options.suppresses = on.u8() != 0;
        }
    }
    Ok(())
}

/// Gives a bridge or a port other VLANs. Those who listen to links hear of which these are, not of what they are besides.
fn put(router: &mut Router, cause: Cause, old: &Link, new: Link) {
    if *old == new {
        return;
    }
    router.links.put(new.clone());
    publish_link(router, new.index);
    follow(router, cause, old, &new);
}

/// A dump of VLANs of bridges and their ports, after the last link.
struct VlanDump {
    last: u32,
    only: Option<u32>,
}

/// `BRIDGE_VLANDB_TINFO_ID`, in [`TUNNEL_INFO`].
const NETWORK: u16 = 1;
const DUMP_FLAGS: u16 = 1;
/// `BRIDGE_VLANDB_DUMPF_GLOBAL`: what VLANs of a bridge are for all of its ports.
const GLOBAL: u32 = 1 << 1;

/// Linux: `br_vlan_rtm_dump`.
pub(crate) fn dump(router: &Router, request: &Request<'_>) -> Result<Outcome, RequestError> {
    const DUMP: [Type; 2] = policy(&[(DUMP_FLAGS, Type::U32)]);
    let (header, attributes) = request.parse::<HEADER, 2>(&DUMP, Validate::Full)?;
    let index = u32::from_ne_bytes(word(&header, 4));
    if index != 0 {
        let link = router.links.get(index).ok_or(RequestError::errno(ENODEV))?;
        link.bridge_vlans().ok_or(RequestError::errno(EINVAL))?;
    }
    if attributes.get(DUMP_FLAGS).is_some_and(|flags| flags.u32() & GLOBAL != 0) {
        return Ok(Outcome::Dump(Box::new(crate::dump::Empty)));
    }
    Ok(Outcome::Dump(Box::new(VlanDump { last: 0, only: Some(index).filter(|index| *index != 0) })))
}

impl Dump for VlanDump {
    fn next(&mut self, router: &Router, out: &mut Chunk<'_>) -> Result<More, RequestError> {
        let Some(link) = router.links.after(self.last) else { return Ok(More::No) };
        self.last = link.index;
        if self.only.is_none_or(|only| only == link.index)
            && let Some(vlans) = link.bridge_vlans()
        {
            out.message(RTM_NEWVLAN, |reply| write(reply, link, vlans))?;
        }
        Ok(More::Yes)
    }

    fn generation(&self, router: &Router) -> u64 {
        router.links.generation
    }

    fn filtered(&self) -> bool {
        self.only.is_some()
    }
}

/// Linux: `br_vlan_dump_dev`.
fn write(reply: &mut Reply<'_>, link: &Link, vlans: &Vlans) {
    let mut header = [0; HEADER];
    header[0] = AF_BRIDGE as u8;
    header[4..].copy_from_slice(&link.index.to_ne_bytes());
    reply.fixed(&header);
    let all: Vec<_> =
        vlans.iter().map(|(id, is_pvid, untagged)| (id, is_pvid, untagged, vlans.options(id))).collect();
    // Whether they are suppressed makes no difference to Linux: what is shown is what the first is.
    let networks = |one: &Entry, next: &Entry| match (one.3.network, next.3.network) {
        (one, Some(next)) => one.is_some_and(|one| one.checked_add(1) == Some(next)),
        (one, None) => one.is_none(),
    };
    let together = |one: &Entry, next: &Entry| {
        one.0 + 1 == next.0 && one.2 == next.2 && !one.1 && !next.1 && networks(one, next)
    };
    for range in all.chunk_by(together) {
        let (Some(&(first, is_pvid, untagged, options)), Some(&(last, ..))) = (range.first(), range.last())
        else {
            continue;
        };
        let flags = if is_pvid { PVID } else { 0 } | if untagged { UNTAGGED } else { 0 };
        let entry = reply.nest(ENTRY);
        let ([a, b], [c, d]) = (flags.to_ne_bytes(), first.to_ne_bytes());
        reply.attribute(INFO, &[a, b, c, d]);
        if first < last {
            reply.u16(RANGE, last);
        }
        reply.u8(STATE, FORWARDING);
        if let Some(vni) = options.network {
            let info = reply.nest(TUNNEL_INFO);
            reply.u32(NETWORK, vni);
            reply.end(info);
        }
        reply.u8(MCAST_ROUTER, 1);
        reply.u8(NEIGH_SUPPRESS, options.suppresses.into());
        reply.end(entry);
    }
}

/// Identifier, whether it is that of frames without a tag, whether its frames leave without one, and what it is besides.
type Entry = (u16, bool, bool, Options);
