//! What is counted by the labels of MPLS.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use underpass_packet::mpls::MAX_LABEL;

use super::{Count, add};
use crate::counters::{Counters, MplsCount};
use crate::lpm::{Pages, Words};
use crate::tables::LinkId;

/// The counts of labels. The addresses of all are there from the start, and memory where labels are used; errors
/// are apart, as few labels have any.
///
/// Packets of a million labels at random find no count in the cache. So each adds to four bytes, which are the low
/// bits of the sums: 8 bits of packets below 24 bits of bytes. The sums themselves are written every 64 packets or
/// 2 MiB at the latest, so that the low bits of now say how far they have gone on since.
pub(super) struct LabelCells {
    low: Words<AtomicU32>,
    /// Packets and bytes of each label in turn.
    sums: Words,
    errors: Words,
}

/// Bits of packets in the low bits of a label's sums; bytes have the rest.
const LOW_PACKETS: u32 = 8;
/// Low bits that change where the sums are to be written: a quarter of the number of packets or of bytes, so that
/// what is added until then is still known from them, with its sign.
const FAR: u32 = 0b11 << (LOW_PACKETS - 2) | 0b111 << 29;
/// The most packets that are added at once to the low bits alone, and the most bytes.
const NEAR: (u64, u64) = (64, 1 << 22);

/// Sums, of which these are the low bits.
const fn low_of([packets, bytes]: [u64; 2]) -> u32 {
    (bytes as u32) << LOW_PACKETS | packets as u32 & ((1 << LOW_PACKETS) - 1)
}

/// The sums near these ones that have these low bits.
const fn near([packets, bytes]: [u64; 2], low: u32) -> [u64; 2] {
    let ahead_packets = (low as u8).wrapping_sub(packets as u8) as i8;
    let ahead_bytes = (low & !0xff).wrapping_sub((bytes as u32) << LOW_PACKETS) as i32 >> LOW_PACKETS;
    [packets.wrapping_add_signed(ahead_packets as i64), bytes.wrapping_add_signed(ahead_bytes as i64)]
}

impl LabelCells {
    pub(super) fn new() -> Self {
        let bits = MAX_LABEL.count_ones();
        Self {
            low: Words::exactly(bits, Pages::Huge),
            sums: Words::exactly(bits + 1, Pages::Small),
            errors: Words::exactly(bits, Pages::Small),
        }
    }

    #[inline(always)]
    pub(super) fn low(&self, label: u32) -> &AtomicU32 {
        self.low.word(label as usize)
    }

    #[inline]
    pub(super) fn add(&self, label: u32, count: Count) {
        let cell = self.low(label);
        let old = cell.load(Relaxed);
        let added = low_of([
            u64::from(old).wrapping_add(count.packets),
            u64::from(old >> LOW_PACKETS).wrapping_add(count.bytes),
        ]);
        let far = (old ^ added) & FAR != 0;
        if far || count.packets > NEAR.0 || count.bytes > NEAR.1 {
            self.add_sums(label, old, count);
        } else {
            cell.store(added, Release);
        }
        if count.errors != 0 {
            add(self.errors.word(label as usize), count.errors);
        }
    }

    #[inline(never)]
    fn add_sums(&self, label: u32, old: u32, count: Count) {
        let cells = self.sums(label);
        let [packets, bytes] = near(cells.map(|n| n.load(Relaxed)), old);
        let sums = [packets.wrapping_add(count.packets), bytes.wrapping_add(count.bytes)];
        // A reader who sees the new sums is to see their low bits too.
        self.low(label).store(low_of(sums), Release);
        cells.iter().zip(sums).for_each(|(cell, sum)| cell.store(sum, Release));
    }

    fn sums(&self, label: u32) -> [&AtomicU64; 2] {
        let at = 2 * label as usize;
        [self.sums.word(at), self.sums.word(at + 1)]
    }

    pub(super) fn read(&self, label: u32) -> Count {
        let cells = self.sums(label);
        let read = || cells.map(|n| n.load(Acquire));
        let mut sums = read();
        loop {
            let low = self.low(label).load(Acquire);
            // The low bits belong to these sums only if those have stayed.
            let again = read();
            if again == sums {
                let [packets, bytes] = near(sums, low);
                return Count { packets, bytes, errors: self.errors.word(label as usize).load(Relaxed) };
            }
            sums = again;
        }
    }
}

/// Labelled packets of a burst that came in.
#[derive(Default)]
pub(crate) struct Labelled {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Labelled {
    #[inline(always)]
    pub(crate) fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Adds them to what their link has counted.
    #[inline(always)]
    pub(crate) fn flush(&mut self, counters: &Counters, link: LinkId) {
        if self.packets != 0 {
            let Self { packets: rx_packets, bytes: rx_bytes } = std::mem::take(self);
            counters.add_mpls(link, MplsCount { rx_packets, rx_bytes, ..MplsCount::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{CounterId, Counters};

    #[test]
    fn labels_count_for_themselves() {
        let counters = Counters::default();
        let count = Count { packets: 1, bytes: 100, errors: 0 };
        for label in [0, 16, MAX_LABEL] {
            counters.add(CounterId::of_label(label), count);
        }
        counters.add(CounterId::of_label(16), Count { errors: 1, ..count });
        let read = |label| counters.read(CounterId::of_label(label));
        assert_eq!((read(0), read(17), read(MAX_LABEL)), (count, Count::default(), count));
        assert_eq!(read(16), Count { packets: 2, bytes: 200, errors: 1 });
        // As the packet path takes back what turned out to be an error.
        counters.add(CounterId::of_label(16), Count { errors: 1, ..Count::default() } - count);
        assert_eq!(read(16), Count { packets: 1, bytes: 100, errors: 2 });
        assert_eq!(counters.read(CounterId(16)), Count::default());
    }

    #[test]
    fn sums_of_labels_are_exact() {
        let counters = Counters::default();
        let id = CounterId::of_label(MAX_LABEL);
        let mut wanted = Count::default();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Rows of small packets, of segments, single ones, and some that are taken back.
            let packets = [1, 1, 64, 1 + (random >> 40) % 64][(random >> 60) as usize % 4];
            let bytes = packets * [20, 1500, 65_535, (random >> 20) % 65_536][(random >> 58) as usize % 4];
            let count = Count { packets, bytes, errors: 0 };
            let count = if random >> 32 & 15 == 0 { Count::default() - count } else { count };
            counters.add(id, count);
            wanted += count;
            assert_eq!(counters.read(id), wanted);
        }
        assert_eq!(counters.read(CounterId::of_label(MAX_LABEL - 1)), Count::default());
    }

    #[test]
    fn readers_of_labels_see_sums_that_grow() {
        let (counters, id) = (Counters::default(), CounterId::of_label(7));
        let count = Count { packets: 1, bytes: 1000, errors: 0 };
        const PACKETS: u64 = if cfg!(miri) { 300 } else { 1_000_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..PACKETS).for_each(|_| counters.add(id, count)));
            let mut last = Count::default();
            while last.packets < PACKETS {
                let now = counters.read(id);
                assert!(now.packets >= last.packets && now.bytes >= last.bytes, "{last:?} {now:?}");
                last = now;
            }
            assert_eq!(last.bytes, PACKETS * 1000);
        });
    }
}
