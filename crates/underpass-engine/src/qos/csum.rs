//! Checksums that an action makes right: Linux's `net/sched/act_csum.c`.

use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, protocol};

use super::subject::is_vlan;
use crate::buffer::Packet;
use crate::offload;
use crate::tables::Checksums;

const ETHERNET: usize = ethernet::Header::LEN;
/// Length of a VLAN tag.
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// IGMP and UDP-Lite, which nothing else here knows.
const IGMP: u8 = 2;
const UDP_LITE: u8 = 136;

/// Makes the checksums right that are wanted. `None`: a header is cut off.
pub(crate) fn make_checksums(packet: &mut Packet, wanted: Checksums) -> Option<()> {
    let headless = packet.tag().headless;
    let kind =
        |packet: &Packet, at: usize| Some(u16::from_be_bytes(*packet.bytes().get(at..)?.first_chunk()?));
    let (mut network, mut ethertype) = (0, headless);
    if headless == 0 {
        (network, ethertype) = (ETHERNET, kind(packet, ETHERNET - 2)?);
    }
    while is_vlan(ethertype) {
        ethertype = kind(packet, network + 2)?;
        network += TAG;
    }
    match ethertype {
        ethernet::IPV4 => ipv4(packet, network, wanted),
        ethernet::IPV6 => ipv6(packet, network, wanted),
        _ => Some(()),
    }
}

fn ipv4(packet: &mut Packet, network: usize, wanted: Checksums) -> Option<()> {
    let header: [u8; IPV4] = *packet.bytes().get(network..)?.first_chunk()?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    if !is_later {
        let [source, destination] =
            [12, 16].map(|at| *header.get(at..).and_then(|b| b.first_chunk()).unwrap_or(&[0; 4]));
        let pseudo = |protocol, len: usize| Sum::pseudo_ipv4(source, destination, protocol, len as u16);
        let upper =
            Upper { at: network + header_len, header: header_len, len, protocol: header[9], is_ip4: true };
        upper.make(packet, wanted, pseudo)?;
    }
    if wanted.has(Checksums::IPV4) {
        let header = packet.bytes_mut().get_mut(network..)?;
        let header_len = header_len.min(header.len());
        let header = header.get_mut(..header_len)?;
        header.get_mut(10..12)?.fill(0);
        let sum = Sum::new().add_bytes(header).checksum();
        header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
    }
    Some(())
}

fn ipv6(packet: &mut Packet, network: usize, wanted: Checksums) -> Option<()> {
    let header: [u8; IPV6] = *packet.bytes().get(network..)?.first_chunk()?;
    let mut payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (mut next, mut at) = (header[6], IPV6);
    let [source, destination] =
        [8, 24].map(|at| *header.get(at..).and_then(|b| b.first_chunk()).unwrap_or(&[0; 16]));
    while network + at < packet.len() {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let bytes = packet.bytes().get(network + at..)?;
                let [kind, len] = *bytes.first_chunk()?;
                let len = 8 * (usize::from(len) + 1);
                let extension = bytes.get(..len)?;
                if next == protocol::HOP_BY_HOP {
                    payload = jumbo(extension)?.unwrap_or(payload);
                }
                (next, at) = (kind, at + len);
            }
            _ => {
                let pseudo =
                    |protocol, len: usize| Sum::pseudo_ipv6(source, destination, protocol, len as u32);
                let len = payload.checked_add(IPV6)?;
                let upper = Upper { at: network + at, header: at, len, protocol: next, is_ip4: false };
                return upper.make(packet, wanted, pseudo);
            }
        }
    }
    Some(())
}

/// The length that a jumbo payload option gives (RFC 2675): `tcf_csum_ipv6_hopopts`. `None`: it is malformed.
fn jumbo(extension: &[u8]) -> Option<Option<usize>> {
    const PAD1: u8 = 0;
    const JUMBO: u8 = 0xc2;
    let mut at = 2;
    while let Some([kind, len]) = extension.get(at..).and_then(|option| option.first_chunk::<2>()) {
        at += match *kind {
            PAD1 => 1,
            JUMBO if *len != 4 || at % 4 != 2 => return None,
            JUMBO => {
                let value = extension.get(at + 2..)?.first_chunk()?;
                return Some(Some(u32::from_be_bytes(*value) as usize));
            }
            _ => usize::from(*len) + 2,
        };
    }
    Some(None)
}

/// What stands behind an IP header.
struct Upper {
    /// Where it begins in the frame.
    at: usize,
    /// How long everything before it is, from the IP header on.
    header: usize,
    /// Length of the IP packet, as it says itself.
    len: usize,
    protocol: u8,
    is_ip4: bool,
}

impl Upper {
    /// `tcf_csum_ipv4` and `tcf_csum_ipv6`, behind the IP header. `pseudo` makes the sum of the pseudo header.
    fn make(&self, packet: &mut Packet, wanted: Checksums, pseudo: impl Fn(u8, usize) -> Sum) -> Option<()> {
        let Self { protocol, is_ip4, .. } = *self;
        let (checksums, least, field) = match protocol {
            protocol::ICMP if is_ip4 => (Checksums::ICMP, 8, 2),
            protocol::ICMPV6 if !is_ip4 => (Checksums::ICMP, 8, 2),
            IGMP if is_ip4 => (Checksums::IGMP, 8, 2),
            protocol::TCP => (Checksums::TCP, 20, 16),
            protocol::UDP => (Checksums::UDP, 8, 6),
            UDP_LITE => (Checksums::UDP_LITE, 8, 6),
            protocol::SCTP => (Checksums::SCTP, 12, 8),
            _ => return Some(()),
        };
        if !wanted.has(checksums) {
            return Some(());
        }
        let behind = self.len.checked_sub(self.header).filter(|behind| *behind >= least)?;
        packet.bytes().get(self.at..self.at + behind)?;
        if packet.offload().is_some_and(|offload| offload.segment.is_some()) {
            return self.segment(packet, behind, field, pseudo);
        }
        // What is left to do inside, behind the header of a tunnel, counts too.
        offload::finish(packet);
        let put = |packet: &mut Packet, sum: &[u8]| {
            let place = packet.bytes_mut().get_mut(self.at + field..)?.get_mut(..sum.len())?;
            place.copy_from_slice(sum);
            Some(())
        };
        if protocol == protocol::SCTP {
            put(packet, &[0; 4])?;
            // To the end of the frame, its padding too.
            let sum = crc32c(packet.bytes().get(self.at..)?);
            return put(packet, &sum.to_le_bytes());
        }
        let header: [u8; 8] = *packet.bytes().get(self.at..)?.first_chunk()?;
        let datagram = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let (covered, counted) = match protocol {
            protocol::UDP if is_ip4 && header[6..] == [0, 0] => return Some(()),
            // Linux leaves it without a checksum.
            protocol::UDP if datagram != behind => return put(packet, &[0, 0]),
            UDP_LITE if datagram == 0 => (behind, datagram),
            UDP_LITE if !(8..=behind).contains(&datagram) => return put(packet, &[0, 0]),
            UDP_LITE => (datagram, datagram),
            _ => (behind, behind),
        };
        put(packet, &[0, 0])?;
        let before = match protocol {
            protocol::ICMP | IGMP => Sum::new(),
            _ => pseudo(protocol, counted),
        };
        let sum = before.add_bytes(packet.bytes().get(self.at..self.at + covered)?).checksum();
        let is_datagram = matches!(protocol, protocol::UDP | UDP_LITE);
        let sum = if is_datagram && sum == 0 { 0xffff } else { sum };
        put(packet, &sum.to_be_bytes())
    }

    /// What stands for many packets gets its checksums when it is cut; until then the field holds the sum of the pseudo
    /// header, of which an action may have changed the addresses.
    #[cold]
    fn segment(
        &self,
        packet: &mut Packet,
        behind: usize,
        field: usize,
        pseudo: impl Fn(u8, usize) -> Sum,
    ) -> Option<()> {
        if packet.offload().is_some_and(|offload| offload.start == self.at) {
            let sum = pseudo(self.protocol, behind).fold();
            packet.bytes_mut().get_mut(self.at + field..)?.get_mut(..2)?.copy_from_slice(&sum.to_be_bytes());
        }
        Some(())
    }
}

/// CRC32c, which SCTP has: RFC 9260 appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let (mut crc, mut bit) = (n as u32, 0);
            while bit < 8 {
                crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            #[expect(
                clippy::indexing_slicing,
                reason = "a constant: an index beyond the end is an error of the compiler"
            )]
            {
                table[n] = crc;
            }
            n += 1;
        }
        table
    };
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::{HEADROOM, Pool};

    const ALL: Checksums = Checksums(0x7f);

    fn made(frame: &[u8], wanted: Checksums) -> Option<Vec<u8>> {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        make_checksums(&mut packet, wanted).map(|()| packet.bytes().to_vec())
    }

    fn ip4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = (20 + payload.len()) as u16;
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, protocol, 0xde, 0xad, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(payload);
        frame
    }

    /// The check value of RFC 3720 appendix B.4, and that of the usual nine digits.
    #[test]
    fn crc() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn only_what_is_wanted() {
        let frame = ip4(17, &[0, 1, 0, 2, 0, 9, 1, 1, 7]);
        assert_eq!(made(&frame, Checksums(0)).unwrap(), frame);
        let header = made(&frame, Checksums(Checksums::IPV4)).unwrap();
        assert_eq!((Sum::new().add_bytes(&header[14..34]).fold(), &header[34..]), (0xffff, &frame[34..]));
        let upper = made(&frame, Checksums(Checksums::UDP)).unwrap();
        assert_eq!(upper[..40], frame[..40]);
        assert_ne!(upper[40..42], frame[40..42]);
        // Without a checksum it stays without one, and one whose length is wrong loses it.
        let mut none = ip4(17, &[0, 1, 0, 2, 0, 9, 0, 0, 7]);
        assert_eq!(made(&none, Checksums(Checksums::UDP)).unwrap(), none);
        none[39] = 8;
        none[40] = 5;
        assert_eq!(made(&none, Checksums(Checksums::UDP)).unwrap()[40..42], [0, 0]);
        // Cut off.
        assert_eq!(made(&frame[..40], Checksums(Checksums::UDP)), None);
        assert_eq!(made(&ip4(6, &[0; 19]), Checksums(Checksums::TCP)), None);
    }

    proptest! {
        #[test]
        fn sums_come_out_right(payload in proptest::collection::vec(any::<u8>(), 20..80), tags in 0usize..3) {
            for protocol in [6, 17] {
                let mut payload = payload.clone();
                if protocol == 17 {
                    let len = payload.len() as u16;
                    payload[4..6].copy_from_slice(&len.to_be_bytes());
                    payload[6] |= 1;
                }
                let plain = ip4(protocol, &payload);
                let tag = [0x81, 0, 0, 5].repeat(tags);
                let frame = [&plain[..12], &tag, &plain[12..]].concat();
                let frame = made(&frame, ALL).unwrap();
                let at = 14 + tag.len();
                prop_assert_eq!(Sum::new().add_bytes(&frame[at..at + 20]).fold(), 0xffff);
                let pseudo = Sum::pseudo_ipv4([10, 0, 0, 1], [10, 0, 0, 2], protocol, payload.len() as u16);
                prop_assert_eq!(pseudo.add_bytes(&frame[at + 20..]).fold(), 0xffff);
            }
        }

        #[test]
        fn any_frame_stays_as_long(bytes in proptest::collection::vec(any::<u8>(), 14..120), kind in 0usize..4, wanted: u32) {
            let mut frame = bytes;
            frame[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]][kind]);
            if let Some(made) = made(&frame, Checksums(wanted)) {
                prop_assert_eq!(made.len(), frame.len());
            }
        }
    }
}
