//! `police`: token buckets in time, as Linux's `net/sched/act_police.c` has them, shared by workers without a lock.
//!
//! A bucket that holds `burst` nanoseconds is one number: the moment at which it was, or would have been, empty. At
//! `now` it has `now - empty` tokens, and never more than `burst`; taking tokens moves the moment on. So a worker takes
//! all that a burst of packets needs by one compare-and-swap. Where there are several workers each takes a slice more,
//! its lease, and the next packets are paid from that: what passes is exact to within one slice a worker. A worker that is
//! alone needs no swap that waits for all it has written before, only a store.

use std::sync::atomic::{
    AtomicI64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use underpass_packet::ethernet;

use super::{Lengths, Rate, WireLength};
use crate::buffer::BURST;
use crate::in_kernel::filters;
use crate::limiter::Nanos;
use crate::lpm::Words;
use crate::tables::{Control, Police};

/// Most tokens that a worker leases, in nanoseconds.
const LONGEST_SLICE: i64 = 50_000;

/// The longest time that a bucket counts with, in nanoseconds: 36 years, so that a sum of two never overflows.
const LONGEST_TIME: Nanos = 1 << 60;

/// For when a packet last passed, while none has: long ago.
const NEVER: i64 = i64::MIN / 2;

/// For when a bucket was empty, if it is full: long ago.
const FULL: i64 = i64::MIN / 2;

/// One bucket, on cache lines of its own.
#[repr(align(128))]
struct Bucket {
    /// When it was empty.
    empty: AtomicI64,
    /// The same where programs in the kernel have it too.
    shared: Option<SharedBucket>,
    /// Nanoseconds that it holds.
    burst: i64,
}

/// Where programs in the kernel have when a bucket was empty.
pub(crate) type SharedBucket = (Words<AtomicI64>, usize);

impl Bucket {
    fn new(empty: i64, burst: Nanos, shared: Option<SharedBucket>) -> Self {
        let bucket = Self { empty: AtomicI64::new(0), shared, burst: burst.min(LONGEST_TIME) as i64 };
        bucket.empty().store(empty, Relaxed);
        bucket
    }

    /// When it was empty.
    #[inline(always)]
    fn empty(&self) -> &AtomicI64 {
        match &self.shared {
            None => &self.empty,
            Some((words, at)) => words.word(*at),
        }
    }
}

/// What programs in the kernel have to know of a policer.
pub(crate) struct Policed {
    /// What it charges for.
    pub(crate) charge: u8,
    /// Multiplier, shift, overhead in bytes and least length in bytes of its rate.
    pub(crate) rate: [u32; 4],
    /// Nanoseconds that the bucket holds.
    pub(crate) burst: i64,
    /// Nanoseconds that a packet takes, if it charges for packets.
    pub(crate) packet: i64,
}

/// A policer with its state.
pub(crate) struct Policer {
    /// What a packet takes out of the first bucket.
    cost: Cost,
    bucket: Bucket,
    /// The bucket of `peakrate`: it fills at that rate and holds one packet of the MTU.
    peak: Option<(Rate, Bucket)>,
    /// With a second bucket: when a packet has last passed. That bucket is not filled for longer than the first one holds.
    last: AtomicI64,
    /// Most tokens that one worker leases, in nanoseconds.
    slice: i64,
    /// Whether only one worker takes tokens.
    alone: bool,
    mtu: u32,
    average: Option<u64>,
    pub(crate) conform: Control,
}

#[derive(Clone, Copy)]
enum Cost {
    /// There is no bucket.
    Nothing,
    Bytes(Rate),
    Packets(i64),
}

/// Tokens that one worker has taken out of a bucket and not spent, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lease(i64);

/// A packet, as police sees it.
#[derive(Clone, Copy)]
pub(crate) struct Charged {
    /// Bytes on the wire that it is charged for.
    pub(crate) wire: WireLength,
    /// Its length, or that of the longest packet that it stands for, with the link layer.
    pub(crate) longest: u32,
}

/// What all packets of a burst are charged.
#[derive(Clone, Copy, Default)]
pub(crate) struct Charge {
    /// Packets on the wire.
    pub(crate) packets: u64,
    /// Their bytes on the wire.
    pub(crate) bytes: u64,
    /// Nanoseconds that they take out of the first bucket.
    first: i64,
    /// Nanoseconds that they take out of the second.
    peak: i64,
    /// Length of the longest, in bytes.
    longest: u32,
}

impl Charge {
    /// Packets that are counted and not policed.
    #[inline(always)]
    pub(crate) fn of_bytes(lengths: Lengths<'_>) -> Self {
        Self { packets: lengths.count() as u64, bytes: lengths.bytes(), ..Self::default() }
    }
}

impl Policer {
    pub(crate) fn new(config: &Police, workers: usize, shared: Option<SharedBucket>) -> Self {
        let alone = workers <= 1 && shared.is_none();
        let (cost, bucket) = match (config.rate, config.packets) {
            (Some(rate), _) => (Cost::Bytes(Rate::new(rate.rate)), Bucket::new(FULL, rate.burst, shared)),
            (None, Some(packets)) => (
                Cost::Packets(Rate::of_packets(packets.rate).nanos(1) as i64),
                Bucket::new(packets.since.min(LONGEST_TIME) as i64, packets.burst, shared),
            ),
            (None, None) => (Cost::Nothing, Bucket::new(FULL, 0, None)),
        };
        let slice = match workers {
            0 | 1 => 0,
            workers => (bucket.burst / (8 * workers as i64)).min(LONGEST_SLICE),
        };
        let peak = config.rate.and_then(|rate| rate.peak).map(|peak| {
            let rate = Rate::new(peak);
            (rate, Bucket::new(FULL, rate.nanos(config.mtu), None))
        });
        Self {
            cost,
            bucket,
            peak,
            last: AtomicI64::new(NEVER),
            slice,
            alone,
            mtu: config.mtu,
            average: config.average.map(u64::from).filter(|average| *average != 0),
            conform: config.conform,
        }
    }

    /// When its bucket of packets was empty, in nanoseconds. `None`: it has none.
    pub(crate) fn packets(&self) -> Option<i64> {
        matches!(self.cost, Cost::Packets(_)).then(|| self.bucket.empty().load(Acquire))
    }

    /// Takes over what a change leaves as it was: what a bucket of packets holds. One of bytes is full again.
    pub(crate) fn follow(self, packets: Option<i64>) -> Self {
        if let (Cost::Packets(_), Some(empty)) = (&self.cost, packets) {
            self.bucket.empty().store(empty, Relaxed);
        }
        self
    }

    /// What programs in the kernel have to know of it. `None`: they cannot do what it does.
    pub(crate) fn in_kernel(&self) -> Option<Policed> {
        if self.peak.is_some() || self.average.is_some() {
            return None;
        }
        let (charge, rate, packet) = match &self.cost {
            Cost::Nothing => (filters::NOTHING, [0; 4], 0),
            Cost::Bytes(rate) => (filters::BYTES, rate.in_kernel()?, 0),
            Cost::Packets(nanos) => (filters::PACKETS, [0; 4], *nanos),
        };
        let shared = self.bucket.shared.is_some() || self.is_mtu_only();
        shared.then_some(Policed { charge, rate, burst: self.bucket.burst, packet })
    }

    /// The estimated rate above which nothing conforms, in bytes a second: `avrate`.
    pub(crate) fn average(&self) -> Option<u64> {
        self.average
    }

    /// Whether it has no bucket, and so polices the length of packets alone.
    pub(crate) fn is_mtu_only(&self) -> bool {
        matches!(self.cost, Cost::Nothing)
    }

    /// What the packets of a burst are charged, each plain.
    #[inline(always)]
    pub(crate) fn charge_plain(&self, lengths: Lengths<'_>) -> Charge {
        let packets = lengths.count() as u64;
        let (first, peak) = match (&self.cost, &self.peak) {
            (Cost::Bytes(rate), None) => (lengths.nanos(rate), 0),
            (Cost::Bytes(rate), Some((peak, _))) => (lengths.nanos(rate), lengths.nanos(peak)),
            (Cost::Packets(nanos), _) => (nanos.saturating_mul(packets as i64), 0),
            (Cost::Nothing, _) => (0, 0),
        };
        Charge { packets, bytes: lengths.bytes(), first, peak, longest: lengths.longest_frame() }
    }

    /// What one packet is charged.
    #[inline]
    pub(crate) fn charge(&self, packet: Charged) -> Charge {
        let (first, peak) = self.price(packet.wire);
        let (packets, bytes) = (packet.wire.packets().into(), packet.wire.bytes());
        Charge { packets, bytes, first, peak, longest: packet.longest }
    }

    /// What a packet takes out of the buckets.
    #[inline]
    fn price(&self, wire: WireLength) -> (i64, i64) {
        match &self.cost {
            Cost::Bytes(rate) => {
                let peak = self.peak.as_ref().map_or(0, |(peak, _)| wire.nanos(peak));
                (wire.nanos(rate) as i64, peak as i64)
            }
            Cost::Packets(nanos) => (nanos.saturating_mul(wire.packets().into()), 0),
            Cost::Nothing => (0, 0),
        }
    }

    /// Whether all packets of a burst conform; if not, nothing has been taken, and [`Self::admit`] says which do.
    #[inline]
    pub(crate) fn admit_all(&self, lease: &mut Lease, now: Nanos, charge: &Charge) -> bool {
        if charge.longest > self.mtu {
            return false;
        }
        if self.peak.is_none() && charge.first <= lease.0 {
            lease.0 -= charge.first;
            return true;
        }
        let total = (charge.first, charge.peak);
        self.take(lease, now, |tokens| (total.0 <= tokens.0 && total.1 <= tokens.1).then_some(total))
    }

    /// Which of up to [`BURST`] packets conform, each where those before it have been taken or refused, bit by bit from
    /// the lowest.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit(&self, lease: &mut Lease, now: Nanos, packets: impl Iterator<Item = Charged>) -> u64 {
        let mut prices = [None; BURST];
        for (packet, price) in packets.zip(&mut prices) {
            *price = (packet.longest <= self.mtu).then(|| self.price(packet.wire));
        }
        let mut passed = 0;
        let taken = self.take(lease, now, |tokens| {
            let (found, spent) = one_by_one(&prices, tokens);
            passed = found;
            (passed != 0).then_some(spent)
        });
        if taken { passed } else { 0 }
    }

    /// How many packets of those that a large segment stands for conform, from the first on.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_part(&self, lease: &mut Lease, now: Nanos, segment: Charged) -> u32 {
        if segment.longest > self.mtu {
            return 0;
        }
        let (first, peak) = self.price(segment.wire.first());
        let mut parts = 0;
        let taken = self.take(lease, now, |tokens| {
            let most = |tokens: i64, price: i64| tokens.checked_div(price).unwrap_or(i64::MAX);
            let paid = most(tokens.0, first).min(most(tokens.1, peak)).min(segment.wire.packets().into());
            parts = paid as u32;
            (paid > 0).then_some((paid * first, paid * peak))
        });
        if taken { parts } else { 0 }
    }

    /// Takes as much as `choose` wants of the tokens of the two buckets. Whether it wanted any.
    #[inline(always)]
    fn take(
        &self,
        lease: &mut Lease,
        now: Nanos,
        mut choose: impl FnMut((i64, i64)) -> Option<(i64, i64)>,
    ) -> bool {
        match &self.peak {
            Some((_, peak)) => self.take_both(peak, now as i64, choose),
            None => {
                self.take_one(lease, now as i64, |tokens| choose((tokens, i64::MAX)).map(|(spent, _)| spent))
            }
        }
    }

    /// From the only bucket.
    #[inline(always)]
    fn take_one(&self, lease: &mut Lease, now: i64, mut choose: impl FnMut(i64) -> Option<i64>) -> bool {
        loop {
            let empty = self.bucket.empty().load(Acquire);
            let base = empty.max(now - self.bucket.burst);
            let tokens = (now - base).max(0) + lease.0;
            let Some(spent) = choose(tokens) else { return false };
            if spent == 0 {
                return true;
            }
            let kept = (tokens - spent).min(self.slice);
            let moved = base + spent + kept - lease.0;
            if self.move_on(&self.bucket, empty, moved) {
                lease.0 = kept;
                return true;
            }
        }
    }

    /// Says that a bucket that was empty at one time was, by what is taken out of it, at another. `false`: somebody else
    /// has taken something meanwhile.
    #[inline(always)]
    fn move_on(&self, bucket: &Bucket, from: i64, to: i64) -> bool {
        if self.alone {
            bucket.empty().store(to, Release);
            return true;
        }
        bucket.empty().compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// From both buckets. Nothing is leased, as the second holds a single packet.
    #[inline(always)]
    fn take_both(
        &self,
        peak: &Bucket,
        now: i64,
        mut choose: impl FnMut((i64, i64)) -> Option<(i64, i64)>,
    ) -> bool {
        loop {
            let (empty, empty_peak) = (self.bucket.empty().load(Acquire), peak.empty().load(Acquire));
            let base = empty.max(now - self.bucket.burst);
            let last = self.last.load(Relaxed);
            // The time since the last packet, as far as it counts.
            let skipped = if last == NEVER { 0 } else { (now - last - self.bucket.burst).max(0) };
            let base_peak = empty_peak.saturating_add(skipped).max(now - peak.burst);
            let tokens = ((now - base).max(0), (now - base_peak).max(0));
            let Some((spent, spent_peak)) = choose(tokens) else { return false };
            let moved_peak = base_peak + spent_peak;
            if !self.move_on(peak, empty_peak, moved_peak) {
                continue;
            }
            if self.move_on(&self.bucket, empty, base + spent) {
                if self.alone {
                    self.last.store(last.max(now), Relaxed);
                } else {
                    self.last.fetch_max(now, Relaxed);
                }
                return true;
            }
            // Somebody else was faster at the first bucket: what was taken out of the second goes back.
            peak.empty().fetch_sub(spent_peak, AcqRel);
        }
    }
}

/// Bytes of the link layer, which count for the MTU and not in the length where a packet comes in.
#[inline(always)]
pub(crate) fn link_layer(ingress: bool) -> u32 {
    if ingress { ethernet::Header::LEN as u32 } else { 0 }
}

/// Which packets could pay, each where those before it have been taken or refused, and what they have paid.
fn one_by_one(prices: &[Option<(i64, i64)>; BURST], tokens: (i64, i64)) -> (u64, (i64, i64)) {
    let (mut passed, mut left) = (0, tokens);
    for (n, price) in prices.iter().enumerate() {
        if let Some((first, peak)) = *price
            && first <= left.0
            && peak <= left.1
        {
            passed |= 1 << n;
            left = (left.0 - first, left.1 - peak);
        }
    }
    (passed, (tokens.0 - left.0, tokens.1 - left.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{LinkLayer, RateConfig};
    use crate::tables::{PolicePackets, PoliceRate};

    const SECOND: u64 = 1_000_000_000;

    /// Linux's `tcf_police_act`, step by step.
    struct Linux {
        t_c: i64,
        toks: i64,
        ptoks: i64,
        burst: i64,
        rate: Rate,
        peak: Option<(Rate, i64)>,
        mtu: u32,
    }

    impl Linux {
        fn new(config: &Police, now: u64) -> Self {
            let rate = config.rate.unwrap();
            let peak = rate.peak.map(Rate::new).map(|peak| (peak, peak.nanos(config.mtu) as i64));
            let burst = rate.burst as i64;
            let ptoks = peak.map_or(0, |(_, most)| most);
            Self {
                t_c: now as i64,
                toks: burst,
                ptoks,
                burst,
                rate: Rate::new(rate.rate),
                peak,
                mtu: config.mtu,
            }
        }

        fn admit(&mut self, now: u64, len: u32) -> bool {
            if len + 14 > self.mtu {
                return false;
            }
            let elapsed = (now as i64 - self.t_c).min(self.burst);
            let mut ptoks = 0;
            if let Some((peak, most)) = self.peak {
                ptoks = (elapsed + self.ptoks).min(most) - peak.nanos(len) as i64;
            }
            let toks = (elapsed + self.toks).min(self.burst) - self.rate.nanos(len) as i64;
            if (toks | ptoks) >= 0 {
                (self.t_c, self.toks, self.ptoks) = (now as i64, toks, ptoks);
                return true;
            }
            false
        }
    }

    fn bytes(rate: u64, burst: u64, peak: Option<u64>, mtu: u32) -> Police {
        let of = |bytes_per_second| RateConfig { bytes_per_second, ..RateConfig::default() };
        let rate = PoliceRate { rate: of(rate), burst, peak: peak.map(of) };
        Police { rate: Some(rate), packets: None, mtu, average: None, conform: Control::Pipe }
    }

    fn packet(len: u32) -> Charged {
        Charged { wire: WireLength::of(len), longest: len + 14 }
    }

    fn sum(one: Charge, other: Charge) -> Charge {
        Charge {
            packets: one.packets + other.packets,
            bytes: one.bytes + other.bytes,
            first: one.first + other.first,
            peak: one.peak + other.peak,
            longest: one.longest.max(other.longest),
        }
    }

    /// Every packet has Linux's verdict, in bursts of 1 to 64, over hours, with one bucket and with two.
    #[test]
    fn verdicts_are_those_of_linux() {
        for (rate, burst, peak, mtu) in [
            (1_250_000, 8_000_000, None, 65_535),
            (1_250_000, 8_000_000, Some(1_875_000), 2000),
            (125_000_000, 100_000, Some(150_000_000), 9000),
            // The first bucket holds less than the second.
            (125_000, 2_000_000, Some(250_000), 9000),
            // It is never filled for as long as the second takes, which is full at first.
            (1_250_000, 1_638_400, Some(250_000), 1600),
            (1_000, 3 * SECOND, None, 1000),
        ] {
            let config = bytes(rate, burst, peak, mtu);
            let start = 5 * SECOND;
            let (policer, mut linux) = (Policer::new(&config, 1, None), Linux::new(&config, start));
            let (mut lease, mut now, mut random) = (Lease::default(), start, 1_u64);
            let (mut passed, mut refused) = (0, 0);
            for _ in 0..20_000 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let count = 1 + (random >> 33) % 64;
                let lens: Vec<u32> = (0..count)
                    .map(|n| 20 + ((random >> 20).wrapping_mul(n + 7) >> 3) as u32 % 1480)
                    .collect();
                // About what the rate lets through, with pauses now and then.
                let total: u64 = lens.iter().map(|len| u64::from(*len)).sum();
                let pause = if random >> 60 == 0 { 40 * burst } else { 0 };
                now += total * SECOND / rate * ((random >> 40) % 1500) / 1000 + pause;
                let packets = || lens.iter().map(|len| packet(*len));
                let charge = packets().map(|packet| policer.charge(packet)).fold(Charge::default(), sum);
                let all = policer.admit_all(&mut lease, now, &charge);
                let mask = if all { u64::MAX } else { policer.admit(&mut lease, now, packets()) };
                for (n, len) in lens.iter().enumerate() {
                    let wanted = linux.admit(now, *len);
                    assert_eq!(mask >> n & 1 != 0, wanted, "{rate} {burst} {peak:?} at {now}, {len} bytes");
                    passed += u64::from(wanted);
                    refused += u64::from(!wanted);
                }
            }
            assert!(passed > 10_000 && refused > 10_000, "{passed} {refused}");
        }
    }

    #[test]
    fn packets_a_second() {
        const MILLISECOND: u64 = 1_000_000;
        let packets = Some(PolicePackets { rate: 1000, burst: 200 * MILLISECOND, since: SECOND });
        let config = Police { rate: None, packets, mtu: u32::MAX, average: None, conform: Control::Ok };
        let (policer, mut lease) = (Policer::new(&config, 1, None), Lease::default());
        let mut pass = |policer: &Policer, count: usize, now| {
            let lens = vec![1000; count];
            policer.admit(&mut lease, now, lens.iter().map(|len| packet(*len))).count_ones()
        };
        // Empty as it is made, also for a worker whose time is a little behind; then a packet each millisecond.
        assert_eq!(pass(&policer, 50, SECOND - 1), 0);
        assert_eq!(pass(&policer, 50, SECOND + 5 * MILLISECOND), 5);
        assert_eq!((0..10).map(|_| pass(&policer, 50, 2 * SECOND)).sum::<u32>(), 200);
        assert_eq!(pass(&policer, 64, 2 * SECOND + 30 * MILLISECOND), 30);
        // A change leaves in it what was there.
        let packets = packets.map(|packets| PolicePackets { since: 3 * SECOND, ..packets });
        let changed = Policer::new(&Police { packets, ..config }, 1, None).follow(policer.packets());
        assert_eq!(pass(&changed, 64, 2 * SECOND + 37 * MILLISECOND), 7);
        let other = Policer::new(&config, 1, None)
            .follow(Policer::new(&bytes(1, SECOND, None, 1500), 1, None).packets());
        assert_eq!(pass(&other, 50, SECOND + 2 * MILLISECOND), 2);
    }

    /// With a rate that lets nothing through for years only the burst passes; without one only the MTU counts.
    #[test]
    fn a_tiny_rate_passes_only_the_burst() {
        let (slow, mut lease) =
            (Policer::new(&bytes(1, 100 * SECOND, None, 1500), 1, None), Lease::default());
        let mut admit = |policer: &Policer, lens: &[u32]| {
            policer.admit(&mut lease, 7, lens.iter().map(|len| packet(*len)))
        };
        assert_eq!(admit(&slow, &[60, 50, 40, 1500]), 0b101);
        assert_eq!(admit(&slow, &[1]), 0);
        let none = Police { rate: None, ..bytes(1, 1, None, 114) };
        assert_eq!(admit(&Policer::new(&none, 1, None), &[100, 101, 1]), 0b101);
        let atm = RateConfig { bytes_per_second: 1000, link_layer: LinkLayer::Atm, ..RateConfig::default() };
        let rate = Some(PoliceRate { rate: atm, burst: 106_000_000, peak: None });
        let atm = Policer::new(&Police { rate, ..none }, 1, None);
        assert_eq!(admit(&atm, &[49, 1]), 0b01);
    }

    /// Four workers together let through what one would, to within a slice of each.
    #[test]
    fn workers_share_a_bucket() {
        const WORKERS: usize = 4;
        let (rate, burst, end) = (125_000_000, 4_000_000, if cfg!(miri) { 10_000_000 } else { SECOND });
        let policer = Policer::new(&bytes(rate, burst, None, 65_535), WORKERS, None);
        assert!(policer.slice > 0);
        let passed: u64 = std::thread::scope(|scope| {
            let worker = |offset: u64| {
                let policer = &policer;
                move || {
                    let (mut lease, mut passed) = (Lease::default(), 0);
                    let mut now = SECOND + offset;
                    // Each offers as much as the rate alone: four times too much in all.
                    while now < SECOND + end {
                        let mask = policer.admit(&mut lease, now, [1000; 3].map(packet).into_iter());
                        passed += u64::from(mask.count_ones()) * 1000;
                        now += 24_000;
                        std::thread::yield_now();
                    }
                    passed
                }
            };
            let workers: Vec<_> = (0..WORKERS as u64).map(|n| scope.spawn(worker(n * 10))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        // The clocks of the workers are their own here: the last of them ends at `end`, so no more can pass than this.
        let most = rate * (end + burst) / SECOND;
        assert!(passed <= most, "{passed} of {most}");
    }
}
