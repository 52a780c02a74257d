//! Neighbours: the link-layer addresses of the stations on a link. Linux: `net/core/neighbour.c`.
//!
//! Every entry is there because a request made it; states do not age.

pub(crate) mod mirror;
pub(crate) mod request;
pub(crate) mod save;
pub(crate) mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libc::{
    AF_INET, AF_INET6, EAFNOSUPPORT, EINVAL, EOPNOTSUPP, NTF_PROXY, NUD_DELAY, NUD_NOARP, NUD_PERMANENT,
    NUD_PROBE, NUD_REACHABLE, NUD_STALE,
};
use underpass_netlink::{Attributes, Reply, RequestError, Type, Validate, policy};

use crate::Request;

pub(crate) use request::{get, new};

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
const REPORTED: [Type; 18] = policy(&[]);

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
    /// Link, address, and what is known.
    pub fn iter(&self) -> impl Iterator<Item = (u32, IpAddr, &Neighbour)> {
        self.entries.iter().map(|(&(_, link, address), neighbour)| (link, address, neighbour))
    }

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

/// Most neighbours that wait for a link. Packets ask for those that are not among them.
pub(crate) const LIMIT: usize = 4096;

/// The neighbours that nobody has been asked for yet.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub new: BTreeSet<(u32, IpAddr)>,
    /// Their link is down, or no port is attached to it.
    pub asleep: BTreeSet<(u32, IpAddr)>,
    /// The generation of the links when that was so.
    pub seen: u64,
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
