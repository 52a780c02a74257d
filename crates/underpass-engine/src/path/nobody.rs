//! Frames that nobody takes in Linux, which it counts otherwise than those that are for another station.

use underpass_packet::ethernet;

/// Length of a tag.
const TAG: usize = 4;

/// Whether nobody takes what is behind the tag of an unknown VLAN, another tag among it: Linux counts that as dropped by the
/// link, and of all else that it was for another station.
#[cold]
pub(crate) fn is_of_nobody(packet: &[u8]) -> bool {
    let Some((&[_, _, high, low], behind)) = packet.split_first_chunk::<TAG>() else { return true };
    match u16::from_be_bytes([high, low]) {
        ethernet::IPV4 | ethernet::IPV6 | ethernet::ARP | ethernet::MPLS => false,
        length => !is_of_llc(length, behind),
    }
}

/// Whether a frame has a length in place of the EtherType, and LLC takes it. Linux: `eth_type_trans`.
pub(crate) fn is_of_llc(ethertype: u16, packet: &[u8]) -> bool {
    ethertype <= LONGEST && packet.first_chunk() != Some(&NO_LLC)
}

/// The largest EtherType that is a length: IEEE 802.3 section 3.2.6.
const LONGEST: u16 = 0x05ff;

/// What a frame with a length begins with that has no LLC header, as those of IPX had none.
const NO_LLC: [u8; 2] = [0xff; 2];
