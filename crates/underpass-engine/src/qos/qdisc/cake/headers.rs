//! What cake reads of a packet: its DSCP, and what distinguishes flows and hosts.

use underpass_packet::ethernet;

use crate::flow;
use crate::qos::qdisc::items::Item;
use crate::qos::subject::is_vlan;

/// Tags that are looked behind.
const TAGS: usize = 2;
const ARP: u16 = 0x0806;
/// The DSCP that ARP has: CS7.
const CONTROL: u8 = 0x38;
/// The bits of a traffic class that are not the DSCP.
const ECN: u8 = 3;

/// The EtherType of a packet behind all tags, and where it begins: `skb_protocol`.
pub(super) fn network(bytes: &[u8], headless: u16) -> (u16, usize) {
    let ethertype = |at: usize| match bytes.get(at..) {
        Some(&[high, low, ..]) => u16::from_be_bytes([high, low]),
        _ => 0,
    };
    let mut at = if headless == 0 { ethernet::Header::LEN } else { 0 };
    let mut kind = if headless == 0 { ethertype(at - 2) } else { headless };
    for _ in 0..TAGS {
        if !is_vlan(kind) {
            break;
        }
        (kind, at) = (ethertype(at + 2), at + 4);
    }
    (kind, at)
}

/// The DSCP of what waits, which it loses where it is washed: `cake_handle_diffserv`.
pub(super) fn dscp(item: &mut Item, wash: bool) -> u8 {
    let headless = item.headless();
    let (ethertype, at) = network(item.bytes(), headless);
    let network = item.bytes().get(at..).unwrap_or_default();
    let dscp = match (ethertype, network) {
        (ethernet::IPV4, [_, tos, ..]) => tos >> 2,
        (ethernet::IPV6, [high, low, ..]) => (high << 4 | low >> 4) >> 2,
        (ARP, _) => return CONTROL,
        _ => return 0,
    };
    if !wash || dscp == 0 {
        return dscp;
    }
    let least = if ethertype == ethernet::IPV4 { 20 } else { 40 };
    if network.len() < least {
        return 0;
    }
    if let Some(network) = item.packet.as_mut().and_then(|packet| packet.bytes_mut().get_mut(at..)) {
        remove_dscp(network, ethertype == ethernet::IPV4);
    }
    dscp
}

/// Leaves of a traffic class what congestion notification has.
fn remove_dscp(network: &mut [u8], ipv4: bool) {
    match network {
        [_, tos, _, _, _, _, _, _, _, _, high, low, ..] if ipv4 => {
            // RFC 1624, and 0 rather than 0xffff, as a checksum computed anew would be.
            let mut sum = u32::from(u16::from_be_bytes([*high, *low])) + u32::from(*tos);
            if sum >= 0xffff {
                sum = (sum + 1) & 0xffff;
            }
            *tos &= ECN;
            let sum = sum.wrapping_sub((*tos).into());
            [*high, *low] = (sum.wrapping_add(sum >> 16) as u16).to_be_bytes();
        }
        [high, low, ..] if !ipv4 => {
            *high &= 0xf0;
            *low &= ECN << 4 | 0x0f;
        }
        _ => {}
    }
}

/// The hash of the flow of what waits.
pub(super) fn flow_hash(item: &Item) -> u32 {
    flow::hash(network_of(item))
}

/// Those of its source and destination.
pub(super) fn host_hashes(item: &Item) -> (u32, u32) {
    flow::hash_hosts(network_of(item))
}

fn network_of(item: &Item) -> &[u8] {
    let (_, at) = network(item.bytes(), item.headless());
    item.bytes().get(at..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underpass_packet::checksum::Sum;

    use super::*;

    proptest! {
        /// The checksum is what it would be if it were computed anew.
        #[test]
        fn what_is_washed_is_sound(mut header in prop::array::uniform20(any::<u8>())) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let sum = Sum::new().add_bytes(&header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let mut expected = header;
            expected[1] &= 3;
            expected[10..12].fill(0);
            let sum = Sum::new().add_bytes(&expected).checksum();
            expected[10..12].copy_from_slice(&sum.to_be_bytes());
            remove_dscp(&mut header, true);
            prop_assert_eq!(header, expected);
        }
    }

    #[test]
    fn only_the_dscp_goes() {
        let mut header = [0x6f, 0xff, 0xff, 0xff];
        remove_dscp(&mut header, false);
        assert_eq!(header, [0x60, 0x3f, 0xff, 0xff]);
    }

    #[test]
    fn tags_are_looked_behind() {
        let frame = |types: &[u16]| {
            let mut frame = vec![0; 12];
            types.iter().for_each(|kind| frame.extend([(kind >> 8) as u8, *kind as u8, 0, 1]));
            frame
        };
        assert_eq!(network(&frame(&[0x0800]), 0), (0x0800, 14));
        assert_eq!(network(&frame(&[0x88a8, 0x8100, 0x86dd]), 0), (0x86dd, 22));
        assert_eq!(network(&frame(&[0x8100, 0x8100, 0x8100]), 0), (0x8100, 22));
        assert_eq!(network(&frame(&[0x8100]), 0), (0, 18));
        assert_eq!(network(&[0, 1, 8, 0], 0x8100), (0x0800, 4));
        assert_eq!((network(&[1, 2], 0), network(&[], 0x0800)), ((0, 14), (0x0800, 0)));
    }
}
