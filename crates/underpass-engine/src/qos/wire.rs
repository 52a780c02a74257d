//! What a packet is on the wire: itself, or the packets that a large segment stands for.

use super::Rate;
use crate::buffer::{Packet, Segment};

/// Lengths on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireLength {
    /// Length of each packet but the last.
    full: u32,
    /// Length of the last.
    last: u32,
    /// How many packets there are.
    packets: u32,
}

impl WireLength {
    /// One packet of `len` bytes: no segment.
    #[inline(always)]
    pub fn of(len: u32) -> Self {
        Self { full: 0, last: len, packets: 1 }
    }

    /// What `packet` is, without the `less` bytes that do not count of each.
    #[inline(always)]
    pub fn of_packet(packet: &Packet, less: u32) -> Self {
        if packet.has_offload() {
            return Self::of_segment(packet, less);
        }
        Self::of((packet.len() as u32).saturating_sub(less))
    }

    #[cold]
    #[inline(never)]
    fn of_segment(packet: &Packet, less: u32) -> Self {
        let whole = (packet.len() as u32).saturating_sub(less);
        let segment = packet.offload().and_then(|offload| offload.segment);
        let Some(Segment { size: size @ 1.., .. }) = segment else { return Self::of(whole) };
        let full = (packet.longest_part() as u32).saturating_sub(less);
        let headers = full.saturating_sub(size.into());
        let payload = whole.saturating_sub(headers);
        let packets = payload.div_ceil(size.into()).max(1);
        Self { full, last: headers + payload - (packets - 1) * u32::from(size), packets }
    }

    /// How many packets there are.
    #[inline(always)]
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Bytes of all: Linux's `qdisc_pkt_len` at egress.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        u64::from(self.last) + u64::from(self.packets - 1) * u64::from(self.full)
    }

    /// The first packet alone.
    #[inline(always)]
    pub(crate) fn first(&self) -> Self {
        Self::of(if self.packets == 1 { self.last } else { self.full })
    }

    /// Length of the longest.
    #[inline(always)]
    pub fn longest(&self) -> u32 {
        self.last.max(self.full)
    }

    /// Length of the last.
    #[inline(always)]
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// Nanoseconds that all take.
    #[inline(always)]
    pub fn nanos(&self, rate: &Rate) -> u64 {
        let last = rate.nanos(self.last);
        if self.packets == 1 {
            return last;
        }
        last + u64::from(self.packets - 1) * rate.nanos(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Offload, Pool, SegmentKind};
    use crate::qos::RateConfig;

    #[test]
    fn a_segment_is_the_packets_that_it_stands_for() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        // 14 + 20 + 20 bytes of headers, 1300 of payload in segments of 500.
        packet.set(HEADROOM, &[0; 1354]).unwrap();
        packet.bytes_mut()[34 + 12] = 0x50;
        assert_eq!(WireLength::of_packet(&packet, 14), WireLength::of(1340));
        let segment = Some(Segment { size: 500, kind: SegmentKind::Tcp4 });
        packet.set_offload(Offload { start: 34, field: 16, segment });
        let wire = WireLength::of_packet(&packet, 14);
        assert_eq!((wire.packets(), wire.bytes(), wire.longest()), (3, 540 + 540 + 340, 540));
        let rate = Rate::new(RateConfig { bytes_per_second: 1000, ..RateConfig::default() });
        assert_eq!(wire.nanos(&rate), 1_420_000_000);
        assert_eq!(WireLength::of(1340).bytes(), 1340);
    }
}
