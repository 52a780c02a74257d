//! What cake reads of a packet: its DSCP, and what distinguishes flows and hosts.

use underpass_packet::ethernet;

use crate::flow;
use crate::qos::qdisc::items::{Item, network_header};

const ARP: u16 = 0x0806;
/// The DSCP that ARP has: CS7.
const CONTROL: u8 = 0x38;
/// The bits of a traffic class that are not the DSCP.
const ECN: u8 = 3;

/// The DSCP of what waits, which it loses where it is washed: `cake_handle_diffserv`.
pub(super) fn dscp(item: &mut Item, wash: bool) -> u8 {
    let headless = item.headless();
    let (ethertype, at) = network_header(item.bytes(), headless);
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

/// The hashes of the source and of the destination of what waits.
pub(super) fn host_hashes(item: &Item) -> (u32, u32) {
    flow::hash_hosts(network_of(item))
}

fn network_of(item: &Item) -> &[u8] {
    let (_, at) = network_header(item.bytes(), item.headless());
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
}
