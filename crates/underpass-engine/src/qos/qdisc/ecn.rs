//! Congestion that is marked, not dropped: RFC 3168, for all disciplines that know it.

use underpass_packet::ethernet;

use super::items::{Item, network_header};

/// Congestion experienced: RFC 3168.
const CE: u8 = 3;

/// Marks what waits; `false`: its sender does not know what that is.
pub(super) fn mark(item: &mut Item) -> bool {
    item.packet.as_mut().is_some_and(|packet| {
        let headless = packet.tag().headless;
        mark_congestion(packet.bytes_mut(), headless)
    })
}

/// The traffic class of what waits.
pub(super) fn class_of(item: &Item) -> Option<u8> {
    class(item.bytes(), item.headless())
}

/// The traffic class of the IP packet in a frame, or of one without a frame of this EtherType.
fn class(bytes: &[u8], headless: u16) -> Option<u8> {
    let (ethertype, at) = network_header(bytes, headless);
    let packet = bytes.get(at..)?;
    match (ethertype, packet) {
        (ethernet::IPV4, [_, tos, ..]) => Some(*tos),
        (ethernet::IPV6, [high, low, ..]) => Some(high << 4 | low >> 4),
        _ => None,
    }
}

/// Marks the IP packet in a frame, or without one, as one that has experienced congestion, if its sender knows what that
/// is: as `INET_ECN_set_ce`.
fn mark_congestion(bytes: &mut [u8], headless: u16) -> bool {
    match class(bytes, headless).map(|class| class & CE) {
        Some(CE) => return true,
        Some(1 | 2) => {}
        _ => return false,
    }
    let (_, at) = network_header(bytes, headless);
    let Some(packet) = bytes.get_mut(at..) else { return false };
    match packet {
        [0x45..=0x4f, tos, _, _, _, _, _, _, _, _, high, low, ..] => {
            // RFC 1624: the checksum goes up by what the sum goes down.
            let old = u32::from(*tos & CE);
            *tos |= CE;
            let sum = u32::from(u16::from_be_bytes([*high, *low])) + 0xffff - (u32::from(CE) - old);
            let sum = (sum & 0xffff) + (sum >> 16);
            [*high, *low] = ((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes();
            true
        }
        [0x60..=0x6f, second, ..] => {
            *second |= CE << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use underpass_packet::checksum::Sum;

    use super::*;

    #[test]
    fn congestion_is_marked_and_the_checksum_stays_right() {
        for ecn in 0..4 {
            let mut frame = vec![0; 12];
            frame.extend([
                0x08,
                0,
                0x45,
                0xb8 | ecn,
                0,
                20,
                0,
                9,
                0,
                0,
                64,
                17,
                0,
                0,
                10,
                0,
                0,
                1,
                10,
                0,
                0,
                2,
            ]);
            let sum = Sum::new().add_bytes(&frame[14..]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(mark_congestion(&mut frame, 0), ecn != 0);
            assert_eq!(class(&frame, 0), Some(0xb8 | if ecn == 0 { 0 } else { CE }));
            assert_eq!(Sum::new().add_bytes(&frame[14..]).checksum(), 0, "{ecn}");
        }
        // Behind a tag.
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0, 0, 5, 0x86, 0xdd, 0x60, 0x10, 0, 0]);
        assert_eq!((mark_congestion(&mut frame, 0), class(&frame, 0)), (true, Some(3)));
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x6b, 0x81, 0, 0]);
        assert_eq!((mark_congestion(&mut frame, 0), class(&frame, 0)), (false, Some(0xb8)));
        frame[15] = 0xa1;
        assert_eq!((mark_congestion(&mut frame, 0), class(&frame, 0)), (true, Some(0xbb)));
    }
}
