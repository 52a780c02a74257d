//! The hop limit of packets that the host itself sends through the router. They are to leave with the sender's hop limit, while
//! a router lowers that of what it forwards.

use underpass_packet::ethernet;

/// Raises the hop limit of a frame's packet by what forwarding it takes off. The longest stays as it is.
pub fn raise_hop_limit(frame: &mut [u8]) {
    let Some((header, packet)) = frame.split_at_mut_checked(ethernet::Header::LEN) else { return };
    match u16::from_be_bytes([header[12], header[13]]) {
        ethernet::IPV6 => {
            if let Some(hop_limit) = packet.get_mut(7) {
                *hop_limit = hop_limit.saturating_add(1);
            }
        }
        ethernet::IPV4 => {
            let Some(packet) = packet.first_chunk_mut::<12>().filter(|packet| packet[8] < u8::MAX) else {
                return;
            };
            packet[8] += 1;
            // RFC 1624: the sum grows by what the word with the TTL grows by.
            let (sum, carry) = (!u16::from_be_bytes([packet[10], packet[11]])).overflowing_add(0x0100);
            let checksum = !(sum + u16::from(carry));
            packet[10..].copy_from_slice(&checksum.to_be_bytes());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_packet::{IntoBytes, checksum, ipv4};

    #[test]
    fn the_checksum_stays_right() {
        for ttl in 0..=255 {
            let mut header = ipv4::Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, ttl, 20);
            header.fill_checksum(&[]);
            let mut frame = ethernet::Header::new([2; 6], [2; 6], ethernet::IPV4).as_bytes().to_vec();
            frame.extend(header.as_bytes());
            raise_hop_limit(&mut frame);
            assert_eq!(frame[14 + 8], ttl.saturating_add(1));
            assert_eq!(checksum::of(&frame[14..]), 0, "{ttl}");
        }
    }

    #[test]
    fn ipv6_and_short_frames() {
        let mut frame = ethernet::Header::new([2; 6], [2; 6], ethernet::IPV6).as_bytes().to_vec();
        frame.extend([0; 40]);
        raise_hop_limit(&mut frame);
        assert_eq!(frame[14 + 7], 1);
        (0..54).for_each(|len| raise_hop_limit(&mut frame[..len]));
    }
}
