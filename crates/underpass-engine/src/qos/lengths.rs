//! The lengths of a burst of plain packets, side by side: what all of them cost is reckoned several at a time.

use underpass_packet::ethernet::Header as Ethernet;

use super::subject::is_vlan;
use super::{Rate, link_layer};
use crate::buffer::{BURST, Packet};
use crate::tables::ANY_PROTOCOL;

/// Shortest frame that counts as plain: an Ethernet header and the first words behind it, which `u32` compares.
const SHORTEST: usize = 22;

/// Lengths of packets, as traffic control counts them.
pub(crate) struct Lengths {
    lengths: [u32; BURST],
    count: usize,
}

impl Lengths {
    /// Of a burst in which every packet is a plain one: a frame of this EtherType, or of any without a VLAN tag, that
    /// stands for itself alone and that nothing goes along with. `None`: there are others.
    #[inline(always)]
    pub(crate) fn of(burst: &[Packet], protocol: u16, ingress: bool) -> Option<Self> {
        let less = link_layer(ingress);
        let (mut lengths, mut types) = ([0; BURST], [0; BURST]);
        let mut plain = true;
        for ((packet, length), ethertype) in burst.iter().zip(&mut lengths).zip(&mut types) {
            plain &= packet.is_plain();
            let [.., high, low] =
                *packet.bytes().first_chunk::<SHORTEST>()?.first_chunk::<{ Ethernet::LEN }>()?;
            *length = packet.len() as u32 - less;
            *ethertype = u16::from_ne_bytes([high, low]);
        }
        let count = burst.len().min(BURST);
        let types = types.get(..count)?;
        let tagged = types.iter().fold(false, |tagged, ethertype| tagged | is_vlan(u16::from_be(*ethertype)));
        let strange = protocol != ANY_PROTOCOL
            && types.iter().fold(false, |other, ethertype| other | (*ethertype != protocol.to_be()));
        (plain && !tagged && !strange).then_some(Self { lengths, count })
    }

    /// Of a burst that is to leave by a queueing discipline: `qdisc_pkt_len` of each.
    #[inline(always)]
    pub(crate) fn leaving(burst: &[Packet]) -> Option<Self> {
        Self::of(burst, ANY_PROTOCOL, false)
    }

    /// Those of packets that are not there.
    #[cfg(test)]
    pub(crate) fn pretended(charged: &[u32]) -> Self {
        let mut lengths = [0; BURST];
        lengths.iter_mut().zip(charged).for_each(|(length, charged)| *length = *charged);
        Self { lengths, count: charged.len().min(BURST) }
    }

    /// How many packets there are.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn lengths(&self) -> &[u32] {
        self.lengths.get(..self.count).unwrap_or_default()
    }

    /// Bytes of all, and of the longest.
    #[inline(always)]
    pub(crate) fn sum(&self) -> (u64, u32) {
        let bytes = self.lengths().iter().map(|length| u64::from(*length)).sum();
        (bytes, self.lengths().iter().fold(0, |longest, length| longest.max(*length)))
    }

    /// Nanoseconds that all take at a rate, each rounded down.
    #[inline(always)]
    pub(crate) fn nanos(&self, rate: &Rate) -> i64 {
        // The rate by itself, so that nothing is asked of it for each packet.
        let rate = *rate;
        let all = |nanos: fn(&Rate, u32) -> u64| {
            self.lengths().iter().map(|length| nanos(&rate, *length) as i64).sum()
        };
        if rate.is_atm() { all(Rate::nanos) } else { all(Rate::nanos_by_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use underpass_packet::ethernet;

    use super::*;
    use crate::buffer::{HEADROOM, Offload, Pool, Tag};
    use crate::qos::{LinkLayer, RateConfig, WireLength, uncounted};

    fn burst(pool: &mut Pool, lengths: &[usize], ethertype: u16) -> Vec<Packet> {
        let frame = |length: &usize| {
            let mut bytes = vec![0; *length];
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            let mut packet = pool.take().unwrap();
            packet.set(HEADROOM, &bytes).unwrap();
            packet
        };
        lengths.iter().map(frame).collect()
    }

    #[test]
    fn all_cost_what_each_does() {
        let mut pool = Pool::new(64);
        let lengths: Vec<usize> = (0..64).map(|n| 22 + n * 23).collect();
        let packets = burst(&mut pool, &lengths, ethernet::IPV4);
        let config =
            RateConfig { bytes_per_second: 123_456_789, overhead: 24, mpu: 64, ..Default::default() };
        for (count, ingress) in [(1, true), (7, true), (64, true), (64, false)] {
            let packets = &packets[..count];
            let wire = |packet| WireLength::of_packet(packet, uncounted(packet, ingress));
            let found = Lengths::of(packets, ANY_PROTOCOL, ingress).unwrap();
            let bytes = packets.iter().map(|packet| wire(packet).bytes()).sum();
            let longest = packets.iter().map(|packet| wire(packet).longest()).max().unwrap();
            assert_eq!((found.count(), found.sum()), (count, (bytes, longest)));
            for link_layer in [LinkLayer::Ethernet, LinkLayer::Atm] {
                let rate = Rate::new(RateConfig { link_layer, ..config });
                let nanos = packets.iter().map(|packet| wire(packet).nanos(&rate) as i64).sum::<i64>();
                assert_eq!(found.nanos(&rate), nanos);
            }
        }
    }

    #[test]
    fn only_plain_packets() {
        let mut pool = Pool::new(64);
        let plain = |packets: &[Packet], protocol| Lengths::of(packets, protocol, true).is_some();
        let mut packets = burst(&mut pool, &[60, 60, 22], ethernet::IPV6);
        assert!(plain(&packets, ANY_PROTOCOL) && plain(&packets, ethernet::IPV6));
        assert!(!plain(&packets, ethernet::IPV4));
        packets[1].set_tag(Tag { mark: 1, ..Tag::default() });
        assert!(!plain(&packets, ANY_PROTOCOL));
        packets[1].set_tag(Tag::default());
        packets[2].set_offload(Offload { start: 14, field: 6, segment: None });
        assert!(!plain(&packets, ANY_PROTOCOL));
        assert!(!plain(&burst(&mut pool, &[60, 21], ethernet::IPV6), ANY_PROTOCOL));
        assert!(!plain(&burst(&mut pool, &[60], ethernet::SERVICE_VLAN), ethernet::SERVICE_VLAN));
    }
}
