//! `fq`, a queue a flow, paced. Linux: `net/sched/sch_fq.c`.

use libc::{EINVAL, ERANGE};

use super::TCA_OPTIONS;
use super::statistics::words;
use crate::attribute::{Attribute, Type, Validate, policy};
use crate::{Reply, RequestError};

const PLIMIT: u16 = 1;
const FLOW_PLIMIT: u16 = 2;
const QUANTUM: u16 = 3;
const INITIAL_QUANTUM: u16 = 4;
const RATE_ENABLE: u16 = 5;
const FLOW_DEFAULT_RATE: u16 = 6;
const FLOW_MAX_RATE: u16 = 7;
const BUCKETS_LOG: u16 = 8;
const FLOW_REFILL_DELAY: u16 = 9;
const ORPHAN_MASK: u16 = 10;
const LOW_RATE_THRESHOLD: u16 = 11;
const CE_THRESHOLD: u16 = 12;
const TIMER_SLACK: u16 = 13;
const HORIZON: u16 = 14;
const HORIZON_DROP: u16 = 15;
const PRIOMAP: u16 = 16;
const WEIGHTS: u16 = 17;

/// Those from `TCA_FQ_TIMER_SLACK` on are checked strictly.
const POLICY: [Type; 18] = policy(&[
    (PLIMIT, Type::U32),
    (FLOW_PLIMIT, Type::U32),
    (QUANTUM, Type::U32),
    (INITIAL_QUANTUM, Type::U32),
    (RATE_ENABLE, Type::U32),
    (FLOW_DEFAULT_RATE, Type::U32),
    (FLOW_MAX_RATE, Type::U32),
    (BUCKETS_LOG, Type::U32),
    (FLOW_REFILL_DELAY, Type::U32),
    (ORPHAN_MASK, Type::U32),
    (LOW_RATE_THRESHOLD, Type::U32),
    (CE_THRESHOLD, Type::U32),
    (TIMER_SLACK, Type::Exact(4)),
    (HORIZON, Type::Exact(4)),
    (HORIZON_DROP, Type::Exact(1)),
    (PRIOMAP, Type::Exact(PRIO as u16)),
    (WEIGHTS, Type::Exact(4 * BANDS as u16)),
]);

/// `FQ_BANDS`.
pub const BANDS: usize = 3;
/// `FQ_MIN_WEIGHT`.
const MIN_WEIGHT: i32 = 16384;
/// Length of a `struct tc_prio_qopt`: bands, and the band of each of 16 priorities.
const PRIO: usize = 20;
/// Most bytes of a quantum.
const MAX_QUANTUM: u32 = 1 << 20;
/// Most buckets, as a power of 2.
const MAX_BUCKETS_LOG: u32 = 18;
/// Microseconds of a jiffy, of Linux's usual 250 a second.
const JIFFY: u32 = 4000;

/// The parameters of the qdisc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fq {
    /// Packets that wait in a band at most.
    pub limit: u32,
    /// Packets of a flow.
    pub flow_limit: u32,
    /// Bytes that a flow sends in its turn.
    pub quantum: u32,
    /// Bytes that a new flow sends in its first turn.
    pub initial_quantum: u32,
    /// Whether flows are paced.
    pub pacing: bool,
    /// Most bytes a second of a flow; `u32::MAX`: any number.
    pub max_rate: u32,
    /// Buckets of flows, as a power of 2.
    pub buckets_log: u32,
    /// After how many jiffies without packets a flow gets a quantum again.
    pub refill_delay: u32,
    /// Which bits of a hash distinguish flows without a socket.
    pub orphan_mask: u32,
    /// Bytes a second up to which each packet is paced by itself.
    pub low_rate_threshold: u32,
    /// From how many microseconds of waiting on packets are marked.
    pub ce_threshold: u32,
    /// How much later packets may leave than they are due, in nanoseconds.
    pub timer_slack: u32,
    /// How many microseconds ahead packets may say that they are to leave.
    pub horizon: u32,
    /// What is beyond is dropped, not sent at the horizon. Shown as it was set.
    pub horizon_drop: u8,
    /// The band of each priority.
    pub priomap: [u8; 16],
    /// Bytes that bands send in their turns.
    pub weights: [i32; BANDS],
}

impl Fq {
    /// What there is without parameters. `mtu`: longest frame of the link, in bytes.
    pub fn new(mtu: u32) -> Self {
        let mtu = mtu.clamp(1, MAX_QUANTUM);
        Self {
            limit: 10_000,
            flow_limit: 100,
            quantum: (2 * mtu).clamp(256, MAX_QUANTUM),
            initial_quantum: (10 * mtu).min(MAX_QUANTUM),
            pacing: true,
            max_rate: u32::MAX,
            buckets_log: 10,
            refill_delay: 40_000 / JIFFY,
            orphan_mask: 1023,
            low_rate_threshold: 550_000 / 8,
            ce_threshold: u32::MAX,
            timer_slack: 10_000,
            horizon: 10_000_000,
            horizon_drop: 1,
            priomap: super::queue::Prio::FAST.map,
            weights: [9 << 16, 3 << 16, 1 << 16],
        }
    }

    /// Takes over what `TCA_OPTIONS` say. As in Linux, what is sound of them stays though another part is refused.
    ///
    /// # Errors
    /// As Linux's `fq_change`.
    pub fn change(&mut self, options: Option<Attribute<'_>>) -> Result<(), RequestError> {
        let Some(options) = options else { return Ok(()) };
        let options = options.parse_nested(&POLICY, Validate::Liberal);
        let options = options.map_err(|error| RequestError::errno(error.errno))?;
        let number = |kind| options.get(kind).map(|number| number.u32());
        if number(QUANTUM).is_some_and(|quantum| quantum == 0 || quantum > MAX_QUANTUM) {
            return Err(RequestError::new(EINVAL, "sch_fq: invalid quantum"));
        }
        if number(INITIAL_QUANTUM).is_some_and(|quantum| quantum > MAX_QUANTUM) {
            return Err(RequestError::errno(ERANGE));
        }
        let mut result = Ok(());
        let buckets_log = number(BUCKETS_LOG).unwrap_or(self.buckets_log);
        if !(1..=MAX_BUCKETS_LOG).contains(&buckets_log) {
            result = Err(RequestError::errno(EINVAL));
        }
        self.limit = number(PLIMIT).unwrap_or(self.limit);
        self.flow_limit = number(FLOW_PLIMIT).unwrap_or(self.flow_limit);
        self.quantum = number(QUANTUM).map_or(self.quantum, |quantum| quantum.clamp(256, MAX_QUANTUM));
        self.initial_quantum = number(INITIAL_QUANTUM).unwrap_or(self.initial_quantum);
        self.max_rate = number(FLOW_MAX_RATE).unwrap_or(self.max_rate);
        self.low_rate_threshold = number(LOW_RATE_THRESHOLD).unwrap_or(self.low_rate_threshold);
        match number(RATE_ENABLE) {
            Some(enable @ 0..=1) => self.pacing = enable == 1,
            Some(_) => result = Err(RequestError::errno(EINVAL)),
            None => {}
        }
        self.refill_delay = number(FLOW_REFILL_DELAY).map_or(self.refill_delay, |time| time.div_ceil(JIFFY));
        if let Some(map) = options.get(PRIOMAP).filter(|_| result.is_ok()) {
            result = self.change_priomap(&map);
        }
        if let Some(weights) = options.get(WEIGHTS).filter(|_| result.is_ok()) {
            result = self.change_weights(&weights);
        }
        self.orphan_mask = number(ORPHAN_MASK).unwrap_or(self.orphan_mask);
        self.ce_threshold = number(CE_THRESHOLD).unwrap_or(self.ce_threshold);
        self.timer_slack = number(TIMER_SLACK).unwrap_or(self.timer_slack);
        self.horizon = number(HORIZON).unwrap_or(self.horizon);
        self.horizon_drop = options.get(HORIZON_DROP).map_or(self.horizon_drop, |drop| drop.u8());
        if result.is_ok() {
            self.buckets_log = buckets_log;
        }
        result
    }

    fn change_priomap(&mut self, map: &Attribute<'_>) -> Result<(), RequestError> {
        let refused = |text| Err(RequestError::with_text(EINVAL, text));
        if super::word(map.value, 0) != BANDS as u32 {
            return refused("sch_fq: FQ only supports 3 bands".to_owned());
        }
        let bands = map.value.get(4..).and_then(|bands| bands.first_chunk::<16>()).copied();
        let bands = bands.unwrap_or_default();
        if let Some(priority) = bands.iter().position(|band| usize::from(*band) >= BANDS) {
            let band = bands.get(priority).copied().unwrap_or_default();
            return refused(format!("sch_fq: FQ priomap field {priority} maps to a too high band {band}"));
        }
        self.priomap = bands;
        Ok(())
    }

    fn change_weights(&mut self, weights: &Attribute<'_>) -> Result<(), RequestError> {
        let weights = [0, 4, 8].map(|at| super::word(weights.value, at).cast_signed());
        if let Some(weight) = weights.iter().find(|weight| **weight < MIN_WEIGHT) {
            let text = format!("sch_fq: Weight {weight} less that minimum allowed {MIN_WEIGHT}");
            return Err(RequestError::with_text(EINVAL, text));
        }
        self.weights = weights;
        Ok(())
    }

    /// After how many nanoseconds without packets a flow gets a quantum again.
    pub const fn refill_delay_ns(&self) -> u64 {
        self.refill_delay as u64 * JIFFY as u64 * 1000
    }

    /// After how many microseconds.
    pub const fn refill_delay_us(&self) -> u32 {
        self.refill_delay.saturating_mul(JIFFY)
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_OPTIONS);
        for (kind, value) in [
            (PLIMIT, self.limit),
            (FLOW_PLIMIT, self.flow_limit),
            (QUANTUM, self.quantum),
            (INITIAL_QUANTUM, self.initial_quantum),
            (RATE_ENABLE, self.pacing.into()),
            (FLOW_MAX_RATE, self.max_rate),
            (FLOW_REFILL_DELAY, self.refill_delay_us()),
            (ORPHAN_MASK, self.orphan_mask),
            (LOW_RATE_THRESHOLD, self.low_rate_threshold),
            (CE_THRESHOLD, self.ce_threshold),
            (BUCKETS_LOG, self.buckets_log),
            (TIMER_SLACK, self.timer_slack),
            (HORIZON, self.horizon),
        ] {
            reply.u32(kind, value);
        }
        reply.u8(HORIZON_DROP, self.horizon_drop);
        let bands = (BANDS as u32).to_ne_bytes();
        reply.attribute(PRIOMAP, &[&bands[..], &self.priomap[..]].concat());
        reply.attribute(WEIGHTS, &words(&self.weights.map(i32::cast_unsigned)));
        reply.end(nest);
    }
}

/// `struct tc_fq_qd_stats`, without what is obsolete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FqCounts {
    /// Flows that were forgotten after they had been empty for long.
    pub gc_flows: u64,
    /// Times that a flow had to wait for its rate.
    pub throttled: u64,
    /// Packets dropped as their flow had too many.
    pub flows_plimit: u64,
    /// Packets that would have taken a second or more.
    pub pkts_too_long: u64,
    /// Packets for whose flow there was no room.
    pub allocation_errors: u64,
    /// In how many nanoseconds the next flow need not wait any more.
    pub time_next_delayed_flow: i64,
    /// Flows.
    pub flows: u32,
    /// Those without packets.
    pub inactive_flows: u32,
    /// Those that wait for their rate.
    pub throttled_flows: u32,
    /// How much later flows were served than they were due.
    pub unthrottle_latency_ns: u32,
    /// Packets marked.
    pub ce_mark: u64,
    /// Packets that found nobody waiting.
    pub fastpath_packets: u64,
    /// Packets dropped as their band had too many.
    pub band_drops: [u64; BANDS],
    /// Packets that wait in each band.
    pub band_packets: [u32; BANDS],
}

impl FqCounts {
    /// Writes the structure.
    pub fn bytes(&self) -> Vec<u8> {
        let long = [
            self.gc_flows,
            0,
            0,
            self.throttled,
            self.flows_plimit,
            self.pkts_too_long,
            self.allocation_errors,
            self.time_next_delayed_flow.cast_unsigned(),
        ];
        let short = [self.flows, self.inactive_flows, self.throttled_flows, self.unthrottle_latency_ns];
        let [low, middle, high] = self.band_drops;
        // Without a time to leave no packet is beyond the horizon.
        let rest = [self.ce_mark, 0, 0, self.fastpath_packets, low, middle, high];
        let [low, middle, high] = self.band_packets;
        let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_ne_bytes()).collect::<Vec<_>>();
        [longs(&long), words(&short), longs(&rest), words(&[low, middle, high, 0])].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::written;

    fn change(fq: &mut Fq, bytes: &[u8]) -> Result<(), RequestError> {
        fq.change(Some(Attribute { kind: TCA_OPTIONS, offset: 0, value: bytes }))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            words: [u32; 8],
            quanta in (256..=MAX_QUANTUM, 0..=MAX_QUANTUM),
            pacing: bool,
            buckets_log in 1..=MAX_BUCKETS_LOG,
            refill_delay in 0u32..1_000_000,
            horizon_drop: u8,
            priomap in proptest::array::uniform16(0u8..3),
            weights in proptest::array::uniform3(MIN_WEIGHT..),
        ) {
            let [limit, flow_limit, max_rate, orphan_mask, low_rate_threshold, ce_threshold, timer_slack, horizon] =
                words;
            let (quantum, initial_quantum) = quanta;
            let fq = Fq {
                limit, flow_limit, quantum, initial_quantum, pacing, max_rate, buckets_log, refill_delay, orphan_mask,
                low_rate_threshold, ce_threshold, timer_slack, horizon, horizon_drop, priomap, weights,
            };
            let bytes = written(|reply| fq.write(reply));
            let mut read = Fq::new(1514);
            prop_assert_eq!(change(&mut read, &bytes[4..]), Ok(()));
            prop_assert_eq!(read, fq);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = change(&mut Fq::new(1514), &bytes);
        }
    }

    #[test]
    fn what_linux_refuses() {
        let refused = |kind, value: &[u8]| {
            let bytes = written(|reply| reply.attribute(kind, value));
            change(&mut Fq::new(1514), &bytes).unwrap_err()
        };
        let invalid = RequestError::errno(EINVAL);
        assert_eq!(
            (refused(BUCKETS_LOG, &[0; 4]), refused(BUCKETS_LOG, &[19, 0, 0, 0])),
            (invalid.clone(), invalid.clone())
        );
        assert_eq!(refused(RATE_ENABLE, &[2, 0, 0, 0]), invalid);
        assert_eq!(refused(INITIAL_QUANTUM, &(MAX_QUANTUM + 1).to_ne_bytes()).errno, ERANGE);
        let text = |kind, value: &[u8]| refused(kind, value).message.unwrap().into_owned();
        let mut map = [0; PRIO];
        assert_eq!(text(PRIOMAP, &map), "sch_fq: FQ only supports 3 bands");
        (map[0], map[9]) = (3, 7);
        assert_eq!(text(PRIOMAP, &map), "sch_fq: FQ priomap field 5 maps to a too high band 7");
        let low = words(&[1 << 20, 5, 1]);
        assert_eq!(text(WEIGHTS, &low), "sch_fq: Weight 5 less that minimum allowed 16384");
    }

    #[test]
    fn counts_have_their_places() {
        let counts =
            FqCounts { gc_flows: 1, flows: 2, ce_mark: 3, band_packets: [4, 5, 6], ..FqCounts::default() };
        let bytes = counts.bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[64], bytes[80]), (152, 1, 2, 3));
        assert_eq!((bytes[136], bytes[140], bytes[144]), (4, 5, 6));
    }
}
