//! Frames that few stations send: to a group of stations, or with a priority tag.

use underpass_packet::ethernet;

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::input::not_ip;
use crate::path::nobody::is_of_nobody;
use crate::path::{ipv4, ipv6};
use crate::worker::metadata::{GROUP, NOT_FORWARDED, PacketMeta};
use crate::worker::verdict::Verdict;

/// Length of what a VLAN tag adds: its control information and the EtherType behind it.
const TAG_LEN: usize = 4;

/// The VLAN identifier in the control information. 0: the tag gives only a priority (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

/// The step and the length of a packet in a frame that is not for the MAC address of its link.
#[cold]
pub(crate) fn of_other_station(header: &ethernet::Header, packet: &[u8], answers: bool) -> (Verdict, usize) {
    if !header.is_multicast() {
        return (drop_of(header.ethertype.get(), packet, answers), packet.len());
    }
    let checked = match header.ethertype.get() {
        ethernet::IPV6 => ipv6::check(packet).map(|checked| checked.len),
        ethernet::IPV4 => ipv4::check(packet).map(|checked| checked.len),
        ethernet::MPLS => Err(DropReason::GroupFrame),
        ethertype => return (not_ip(ethertype, packet, false, answers), packet.len()),
    };
    match checked {
        Ok(len) => (Verdict::Group, len),
        Err(reason) => (Verdict::drop(reason), packet.len()),
    }
}

/// Why a frame for another station is dropped. Linux looks for who takes it first, and counts what nobody does.
fn drop_of(ethertype: u16, packet: &[u8], answers: bool) -> Verdict {
    match ethertype {
        ethernet::IPV4 | ethernet::IPV6 | ethernet::ARP | ethernet::MPLS => {
            Verdict::drop(DropReason::OtherHost)
        }
        ethernet::VLAN | ethernet::SERVICE_VLAN => match packet.split_first_chunk::<TAG_LEN>() {
            Some((&[_, _, high, low], behind)) if is_priority_tag(packet) => {
                drop_of(u16::from_be_bytes([high, low]), behind, answers)
            }
            Some(_) if is_of_nobody(packet) => not_ip(ethertype, packet, false, answers),
            None => not_ip(ethertype, packet, false, answers),
            _ => Verdict::drop(DropReason::OtherHost),
        },
        _ => not_ip(ethertype, packet, false, answers),
    }
}

/// An IP packet in a frame for a group: it may be for the router, but is neither forwarded nor the
/// subject of an error. RFC 1812 section 5.3.4: "A router MUST NOT forward any packet that the router
/// received as a Link Layer broadcast".
pub(crate) fn group(meta: &mut PacketMeta) -> Verdict {
    meta.extra.flags |= GROUP | NOT_FORWARDED;
    Verdict::Unusual
}

/// Whether a frame's tag names no VLAN.
pub(crate) fn is_priority_tag(packet: &[u8]) -> bool {
    packet.first_chunk().is_some_and(|control| u16::from_be_bytes(*control) & VLAN_ID == 0)
}

/// Takes the priority tag off a packet whose Ethernet header, with this EtherType, is no longer there: the EtherType then.
pub(crate) fn without_priority(packet: &mut Packet, ethertype: u16) -> u16 {
    let tagged =
        matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN) && is_priority_tag(packet.bytes());
    match packet.bytes().first_chunk::<TAG_LEN>() {
        Some(&[_, _, high, low]) if tagged => {
            packet.pull(TAG_LEN);
            u16::from_be_bytes([high, low])
        }
        _ => ethertype,
    }
}

/// Takes the priority tag off a frame, which the packet is behind its addresses and first EtherType.
pub(crate) fn untag(meta: &mut PacketMeta, mpls: bool, answers: bool) -> Verdict {
    let (Some(frame), Some(tag)) = (meta.link_layer(), meta.packet.bytes().first_chunk::<TAG_LEN>()) else {
        return Verdict::drop(DropReason::EthernetTruncated);
    };
    let ethertype = u16::from_be_bytes([tag[2], tag[3]]);
    let mut header = frame;
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    meta.packet.pull(TAG_LEN);
    meta.put_link_layer(header);
    if header[0] & 1 != 0 {
        meta.extra.flags |= GROUP | NOT_FORWARDED;
    }
    let checked = match ethertype {
        ethernet::IPV6 => ipv6::check(meta.packet.bytes()).map(|checked| checked.len),
        ethernet::IPV4 => ipv4::check(meta.packet.bytes()).map(|checked| checked.len),
        // Another one: Linux takes off as many as there are.
        ethernet::VLAN | ethernet::SERVICE_VLAN if is_priority_tag(meta.packet.bytes()) => {
            return Verdict::Untag;
        }
        ethernet::VLAN | ethernet::SERVICE_VLAN => Err(DropReason::VlanUnknown),
        ethernet::MPLS if meta.is(GROUP) => Err(DropReason::GroupFrame),
        _ => return not_ip(ethertype, meta.packet.bytes(), mpls, answers),
    };
    match checked {
        Ok(len) => {
            meta.packet.truncate(len);
            Verdict::Unusual
        }
        Err(reason) => Verdict::drop(reason),
    }
}
