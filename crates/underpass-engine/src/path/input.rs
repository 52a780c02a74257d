//! Which protocol a frame carries, whether that is sound, and what is to happen to it first.

use underpass_packet::{FromBytes, ethernet};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::path::nobody::is_of_llc;
use crate::path::{ipv4, ipv6};
use crate::tables::Link;
use crate::worker::metadata::{LABELLED, NOT_FORWARDED, PacketMeta};
use crate::worker::verdict::Verdict;

/// The link layer: whether a frame is for this router, which protocol it carries, and whether that is
/// sound. What is to happen next, the address to be looked up if that is a look-up (of IPv4 in the lower
/// bits), and the length of the packet behind the link layer.
#[inline(always)]
pub(crate) fn classify(frame: &[u8], link: &Link, answers: bool) -> (Verdict, u128, usize) {
    let Ok((header, packet)) = ethernet::Header::parse(frame) else {
        return (Verdict::drop(DropReason::EthernetTruncated), 0, 0);
    };
    if header.destination != link.mac && !is_for_port(link, header.destination) {
        let (verdict, len) = crate::path::group::of_other_station(header, packet, answers);
        return (verdict, 0, len);
    }
    let ethertype = header.ethertype.get();
    if ethertype == ethernet::IPV6 {
        return match ipv6::check(packet) {
            Ok(checked) if checked.unusual || !link.forward6 => (Verdict::Unusual, 0, checked.len),
            Ok(checked) => (Verdict::Look6(link.lookup), checked.destination.to_bits(), checked.len),
            Err(reason) => (Verdict::drop(reason), 0, packet.len()),
        };
    }
    if ethertype == ethernet::IPV4 {
        return match ipv4::check(packet) {
            Ok(checked) if checked.unusual || !link.forward4 => (Verdict::Unusual, 0, checked.len),
            Ok(checked) => (Verdict::Look4(link.lookup), checked.destination.to_bits().into(), checked.len),
            Err(reason) => (Verdict::drop(reason), 0, packet.len()),
        };
    }
    (not_ip(ethertype, packet, link.mpls, answers), 0, packet.len())
}

/// Whether a frame for another station is for a port of the bridge that the link is.
#[cold]
fn is_for_port(link: &Link, station: [u8; 6]) -> bool {
    station[0] & 1 == 0 && link.port_macs.contains(&station)
}

/// What is done with a frame of another EtherType.
#[cold]
pub(crate) fn not_ip(ethertype: u16, packet: &[u8], mpls: bool, answers: bool) -> Verdict {
    match ethertype {
        ethernet::MPLS if mpls => Verdict::Label,
        ethernet::MPLS => Verdict::drop(DropReason::MplsOff),
        ethernet::ARP if answers => Verdict::Arp,
        ethernet::ARP => Verdict::Deliver,
        // Linux: `skb_vlan_untag` wants an EtherType behind the tag.
        ethernet::VLAN | ethernet::SERVICE_VLAN if packet.len() < LEAST_TAG => {
            Verdict::drop(DropReason::EthernetTruncated)
        }
        ethernet::VLAN | ethernet::SERVICE_VLAN if crate::path::group::is_priority_tag(packet) => {
            Verdict::Untag
        }
        ethernet::VLAN | ethernet::SERVICE_VLAN => Verdict::drop(DropReason::VlanUnknown),
        length if is_of_llc(length, packet) => Verdict::drop(DropReason::EthernetLength),
        _ => Verdict::drop(DropReason::EtherTypeUnknown),
    }
}

/// Bytes of a tag, and two more.
const LEAST_TAG: usize = 6;

/// The EtherType of a packet on the slow path.
#[inline(always)]
pub(crate) fn ethertype(meta: &PacketMeta) -> u16 {
    if meta.is(LABELLED) {
        ethernet::MPLS
    } else if ipv6::is(&meta.packet) {
        ethernet::IPV6
    } else {
        ethernet::IPV4
    }
}

/// Whether a packet inside another, with unusual addresses or options, may be forwarded.
#[cold]
fn may_forward(packet: &Packet) -> bool {
    let bytes = packet.bytes();
    if ipv6::is(packet) {
        underpass_packet::ipv6::Header::ref_from_prefix(bytes)
            .is_ok_and(|(header, _)| ipv6::may_forward(header))
    } else {
        underpass_packet::ipv4::Header::ref_from_prefix(bytes)
            .is_ok_and(|(header, _)| ipv4::may_forward(header))
    }
}

/// Takes note that a packet that has come out of another, with unusual addresses or options, may not be forwarded, if so.
#[inline(always)]
pub(crate) fn note_unusual(meta: &mut PacketMeta, unusual: bool) {
    if unusual && !may_forward(&meta.packet) {
        meta.extra.flags |= NOT_FORWARDED;
    }
}
