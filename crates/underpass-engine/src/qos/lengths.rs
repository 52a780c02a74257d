//! The lengths of a burst of plain packets, side by side: what all of them cost is reckoned several at a time.

use super::subject::is_vlan;
use super::{Rate, link_layer};
use crate::buffer::{Frames, Packet};
use crate::tables::ANY_PROTOCOL;

/// Lengths of packets, as traffic control counts them.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'f> {
    frames: &'f Frames,
    /// Bytes of each frame that do not count.
    less: u32,
}

impl<'f> Lengths<'f> {
    /// Of a burst in which every packet is a plain one: a frame of this EtherType, or of any without a VLAN tag, that
    /// stands for itself alone and that nothing goes along with. `less` bytes of each do not count. `None`: there are
    /// others. The burst is looked at by `frames`, which have not looked at any.
    #[inline(always)]
    pub(crate) fn of(frames: &'f mut Frames, burst: &[Packet], protocol: u16, less: u32) -> Option<Self> {
        let plain = match protocol {
            ANY_PROTOCOL => frames.look(burst, is_vlan),
            _ => !is_vlan(protocol) && frames.look(burst, |ethertype| ethertype != protocol),
        };
        plain.then_some(Self { frames, less })
    }

    /// Of a burst that is to leave by a queueing discipline: `qdisc_pkt_len` of each.
    #[inline(always)]
    pub(crate) fn leaving(frames: &'f mut Frames, burst: &[Packet]) -> Option<Self> {
        Self::of(frames, burst, ANY_PROTOCOL, link_layer(false))
    }

    /// The same packets, counted as those that leave are.
    #[inline(always)]
    pub(crate) fn as_leaving(self) -> Self {
        Self { less: link_layer(false), ..self }
    }

    /// Those of frames whose every byte counts.
    #[cfg(test)]
    pub(crate) fn pretended(frames: &'f Frames) -> Self {
        Self { frames, less: 0 }
    }

    /// How many packets there are.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.frames.count()
    }

    /// Bytes of all.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.frames.bytes - self.count() as u64 * u64::from(self.less)
    }

    /// Bytes of all, with those that do not count.
    #[inline(always)]
    pub(crate) fn bytes_of_frames(&self) -> u64 {
        self.frames.bytes
    }

    /// Bytes of the longest.
    #[inline(always)]
    pub(crate) fn longest(&self) -> u32 {
        self.frames.longest - self.less
    }

    /// Bytes of the longest with the link layer.
    #[inline(always)]
    pub(crate) fn longest_frame(&self) -> u32 {
        self.frames.longest
    }

    /// Nanoseconds that all take at a rate, each rounded down.
    #[inline(always)]
    pub(crate) fn nanos(&self, rate: &Rate) -> i64 {
        // The rate by itself, so that nothing is asked of it for each packet.
        let rate = *rate;
        let all = |nanos: fn(&Rate, u32) -> u64| {
            let lengths = self.frames.lengths().iter();
            lengths.map(|frame| nanos(&rate, *frame - self.less) as i64).sum()
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
            let mut frames = Frames::new();
            let found = Lengths::of(&mut frames, packets, ANY_PROTOCOL, link_layer(ingress)).unwrap();
            let bytes = packets.iter().map(|packet| wire(packet).bytes()).sum();
            let longest = packets.iter().map(|packet| wire(packet).longest()).max().unwrap();
            assert_eq!((found.count(), found.bytes(), found.longest()), (count, bytes, longest));
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
        let plain =
            |packets: &[Packet], protocol| Lengths::of(&mut Frames::new(), packets, protocol, 14).is_some();
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
