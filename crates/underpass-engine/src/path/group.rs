//! Frames that few stations send: to a group of stations, or with a priority tag.

use underpass_packet::ethernet;

use crate::drops::Drop;
use crate::path::{ipv4, ipv6};
use crate::worker::metadata::{GROUP, NOT_FORWARDED, Road};
use crate::worker::not_ip;
use crate::worker::verdict::Step;

/// Length of what a VLAN tag adds: its control information and the EtherType behind it.
const TAG_LEN: usize = 4;

/// The VLAN identifier in the control information. 0: the tag gives only a priority (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

/// The step and the length of a packet in a frame that is not for the MAC address of its link.
#[cold]
pub(crate) fn of_other_station(header: &ethernet::Header, packet: &[u8], answers: bool) -> (Step, usize) {
    if !header.is_multicast() {
        return (Step::drop(Drop::OtherHost), packet.len());
    }
    let checked = match header.ethertype.get() {
        ethernet::IPV6 => ipv6::check(packet).map(|checked| checked.len),
        ethernet::IPV4 => ipv4::check(packet).map(|checked| checked.len),
        ethernet::MPLS => Err(Drop::GroupFrame),
        ethertype => return (not_ip(ethertype, packet, false, answers), packet.len()),
    };
    match checked {
        Ok(len) => (Step::Group, len),
        Err(reason) => (Step::drop(reason), packet.len()),
    }
}

/// An IP packet in a frame for a group: it may be for the router, but is neither forwarded nor the
/// subject of an error. RFC 1812 section 5.3.4: "A router MUST NOT forward any packet that the router
/// received as a Link Layer broadcast".
pub(crate) fn group(road: &mut Road) -> Step {
    road.extra.flags |= GROUP | NOT_FORWARDED;
    Step::Unusual
}

/// Whether a frame's tag names no VLAN.
pub(crate) fn is_priority_tag(packet: &[u8]) -> bool {
    packet.first_chunk().is_some_and(|control| u16::from_be_bytes(*control) & VLAN_ID == 0)
}

/// Takes the priority tag off a frame, which the packet is behind its addresses and first EtherType.
pub(crate) fn untag(road: &mut Road, mpls: bool, answers: bool) -> Step {
    let (Some(frame), Some(tag)) = (road.link_layer(), road.packet.bytes().first_chunk::<TAG_LEN>()) else {
        return Step::drop(Drop::EthernetTruncated);
    };
    let ethertype = u16::from_be_bytes([tag[2], tag[3]]);
    let mut header = frame;
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    road.packet.pull(TAG_LEN);
    road.put_link_layer(header);
    if header[0] & 1 != 0 {
        road.extra.flags |= GROUP | NOT_FORWARDED;
    }
    let checked = match ethertype {
        ethernet::IPV6 => ipv6::check(road.packet.bytes()).map(|checked| checked.len),
        ethernet::IPV4 => ipv4::check(road.packet.bytes()).map(|checked| checked.len),
        ethernet::VLAN | ethernet::SERVICE_VLAN => Err(Drop::VlanUnknown),
        ethernet::MPLS if road.is(GROUP) => Err(Drop::GroupFrame),
        _ => return not_ip(ethertype, road.packet.bytes(), mpls, answers),
    };
    match checked {
        Ok(len) => {
            road.packet.truncate(len);
            Step::Unusual
        }
        Err(reason) => Step::drop(reason),
    }
}
