//! What zebra's messages say, as far as it decides what is done with them.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use underpass_netlink::reply::{Address, write_message};
use underpass_netlink::{Attribute, Message, message};

/// `RTM_NEWNEXTHOP`, `RTM_DELNEXTHOP`, `RTM_GETNEXTHOP`.
pub const RTM_NEWNEXTHOP: u16 = 104;
pub const RTM_DELNEXTHOP: u16 = 105;
pub const RTM_GETNEXTHOP: u16 = 106;

/// `RTM_F_OFFLOAD`, `RTM_F_OFFLOAD_FAILED`.
const OFFLOAD: u32 = 0x4000;
const OFFLOAD_FAILED: u32 = 0x2000_0000;

/// `struct rtmsg`, `struct nhmsg`, `struct rtnexthop`, `struct nexthop_grp`.
const RTMSG: usize = 12;
const NHMSG: usize = 8;
const RTNH: usize = 8;
const MEMBER: usize = 8;

const RTA_DST: u16 = 1;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;

const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_ENCAP: u16 = 8;

/// Which route: no two of these are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RouteKey {
    family: u8,
    table: u32,
    length: u8,
    destination: [u8; 16],
    metric: u32,
}

impl RouteKey {
    /// That of a route of IPv4 or IPv6.
    pub fn of(address: IpAddr, length: u8, table: u32, metric: u32) -> Self {
        let mut destination = [0; 16];
        let family = match address {
            IpAddr::V4(address) => {
                destination[..4].copy_from_slice(&address.octets());
                libc::AF_INET
            }
            IpAddr::V6(address) => {
                destination = address.octets();
                libc::AF_INET6
            }
        };
        Self { family: family as u8, table, length, destination, metric }
    }

    /// Of the key of one label's route that of another's.
    pub fn with_label(&self, label: u32) -> Option<Self> {
        let mut destination = [0; 16];
        destination[..4].copy_from_slice(&(label << 12 | 1 << 8).to_be_bytes());
        (self.family == libc::AF_MPLS as u8).then_some(Self { destination, ..*self })
    }
}

/// `RTM_NEWROUTE` or `RTM_DELROUTE`.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub key: RouteKey,
    /// `struct rtmsg`.
    pub header: [u8; RTMSG],
    /// Id of its next-hop object, and where that stands in the message.
    pub object: Option<(u32, usize)>,
    pub encapsulated: bool,
}

fn attributes<'a>(message: &Message<'a>, fixed: usize) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
    let from = message::HEADER + fixed;
    let value = message.bytes.get(from..).unwrap_or_default();
    Attribute { kind: 0, offset: (from - 4) as u32, value }.nested()
}

/// Where an attribute's value stands in its message.
const fn place(attribute: &Attribute<'_>) -> usize {
    attribute.offset as usize + 4
}

impl Route {
    /// Reads one; `None` if it is too short to be one.
    pub fn read(message: &Message<'_>) -> Option<Self> {
        let header = *message.body().first_chunk::<RTMSG>()?;
        let [family, length, _, _, table, ..] = header;
        let mut key = RouteKey { family, table: u32::from(table), length, destination: [0; 16], metric: 0 };
        let (mut object, mut encapsulated) = (None, false);
        for attribute in attributes(message, RTMSG) {
            match attribute.kind {
                RTA_DST => {
                    let bytes = attribute.value.get(..16).unwrap_or(attribute.value);
                    key.destination[..bytes.len()].copy_from_slice(bytes);
                }
                RTA_TABLE => key.table = attribute.u32(),
                RTA_PRIORITY => key.metric = attribute.u32(),
                RTA_NH_ID if attribute.value.len() >= 4 && attribute.u32() != 0 => {
                    object = Some((attribute.u32(), place(&attribute)));
                }
                RTA_ENCAP => encapsulated = true,
                RTA_MULTIPATH => encapsulated |= multipath_encapsulates(attribute.value),
                _ => {}
            }
        }
        Some(Self { key, header, object, encapsulated })
    }

    /// Whether it is of a label.
    pub const fn is_label(&self) -> bool {
        self.key.family == libc::AF_MPLS as u8
    }

    pub const fn protocol(&self) -> u8 {
        self.header[5]
    }
}

fn multipath_encapsulates(mut hops: &[u8]) -> bool {
    while let Some(&[a, b, ..]) = hops.first_chunk::<RTNH>() {
        let length = usize::from(u16::from_ne_bytes([a, b])).max(RTNH);
        let inside = hops.get(RTNH..length).unwrap_or_default();
        let mut inside = Attribute { kind: 0, offset: 0, value: inside }.nested();
        if inside.any(|attribute| attribute.kind == RTA_ENCAP) {
            return true;
        }
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// `RTM_NEWNEXTHOP` or `RTM_DELNEXTHOP`.
#[derive(Clone, Debug)]
pub struct Object {
    pub id: u32,
    /// Where that stands in the message.
    id_at: usize,
    /// Its members, if it is a group, and where those stand.
    pub members: Option<(Vec<u32>, usize)>,
    pub encapsulated: bool,
}

impl Object {
    /// Reads one; `None` if it is too short to be one, or says no id.
    pub fn read(message: &Message<'_>) -> Option<Self> {
        let mut object = Self { id: 0, id_at: 0, members: None, encapsulated: false };
        message.body().first_chunk::<NHMSG>()?;
        for attribute in attributes(message, NHMSG) {
            match attribute.kind {
                NHA_ID if attribute.value.len() >= 4 => {
                    (object.id, object.id_at) = (attribute.u32(), place(&attribute));
                }
                NHA_GROUP => {
                    let ids = attribute.value.as_chunks::<MEMBER>().0.iter();
                    let ids = ids.map(|&[a, b, c, d, ..]| u32::from_ne_bytes([a, b, c, d])).collect();
                    object.members = Some((ids, place(&attribute)));
                }
                NHA_ENCAP => object.encapsulated = true,
                _ => {}
            }
        }
        (object.id != 0).then_some(object)
    }

    /// Writes another id, and those that `members` are known by, into a copy of its message.
    pub fn rewrite(&self, copy: &mut [u8], id: u32, members: &[u32]) {
        put(copy, self.id_at, id);
        if let Some((_, at)) = self.members {
            members.iter().enumerate().for_each(|(i, &member)| put(copy, at + i * MEMBER, member));
        }
    }
}

/// Overwrites 4 bytes of a message.
pub fn put(copy: &mut [u8], at: usize, value: u32) {
    if let Some(place) = copy.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Makes a message a request of ours that is acknowledged.
pub fn as_request(copy: &mut [u8], flags: u16) {
    if let Some(place) = copy.get_mut(6..8) {
        place.copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
    }
}

/// The request that removes the route that a header and a key tell of, and no other.
pub fn delete_route(header: &[u8; RTMSG], key: &RouteKey) -> Vec<u8> {
    let mut request = Vec::new();
    // No attribute is long.
    let _ = write_message(
        &mut request,
        libc::RTM_DELROUTE,
        NLM_F_REQUEST | NLM_F_ACK,
        Address::default(),
        |reply| {
            let mut header = *header;
            header[8..].fill(0); // flags
            reply.fixed(&header);
            let bytes = match i32::from(key.family) {
                libc::AF_INET6 => 16,
                _ => 4,
            };
            reply.attribute(RTA_DST, &key.destination[..bytes]);
            // In a message about a label neither has a place.
            if key.table != u32::from(header[4]) {
                reply.u32(RTA_TABLE, key.table);
            }
            if key.metric != 0 {
                reply.u32(RTA_PRIORITY, key.metric);
            }
        },
    );
    request
}

/// A request about one next-hop object.
pub fn object_request(kind: u16, id: u32) -> Vec<u8> {
    let mut request = Vec::new();
    let _ = write_message(&mut request, kind, NLM_F_REQUEST | NLM_F_ACK, Address::default(), |reply| {
        reply.fixed(&[0; NHMSG]);
        reply.u32(NHA_ID, id);
    });
    request
}

/// The answer to zebra about a route: its own message with `RTM_F_OFFLOAD` or `RTM_F_OFFLOAD_FAILED`.
pub fn answer(route: &Message<'_>, offloaded: bool) -> Vec<u8> {
    let mut copy = route.bytes.to_vec();
    let at = message::HEADER + 8;
    if let Some(flags) = copy.get(at..).and_then(|rest| rest.first_chunk()) {
        let flag = if offloaded { OFFLOAD } else { OFFLOAD_FAILED };
        let flags = u32::from_ne_bytes(*flags) & !(OFFLOAD | OFFLOAD_FAILED) | flag;
        put(&mut copy, at, flags);
    }
    copy
}
