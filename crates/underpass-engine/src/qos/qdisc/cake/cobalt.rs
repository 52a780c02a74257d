//! COBALT: CoDel for flows that answer to drops and marks, and BLUE for those that do not, as `net/sched/sch_cake.c` computes
//! them: CoDel's state is kept while the queue is short and decays, and BLUE drops with a probability that grows whenever
//! there is no room.

use crate::limiter::Nanos;
use crate::tables::CakeTin;

/// By how much the probability to drop grows when there is no room, and shrinks when a queue is empty: of 2³².
const MORE: u32 = 1 << 24;
const LESS: u32 = 1 << 20;

/// 2³² / √count, of small counts, for which a single step of Newton's is too far off.
const INVERSE_ROOTS: [u32; 16] = [
    u32::MAX,
    u32::MAX,
    3_037_000_500,
    2_479_700_525,
    2_147_483_647,
    1_920_767_767,
    1_753_413_056,
    1_623_345_051,
    1_518_500_250,
    1_431_655_765,
    1_358_187_914,
    1_294_981_364,
    1_239_850_263,
    1_191_209_601,
    1_147_878_294,
    1_108_955_788,
];

/// What it knows of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cobalt {
    /// How often it drops: the root of it in an interval.
    pub(super) count: u32,
    inverse_root: u32,
    /// When it drops next, or how long it is remembered.
    pub(super) drop_next: Nanos,
    /// When the probability changed; 0: never.
    blue_changed: Nanos,
    /// With which probability BLUE drops, of 2³².
    pub(super) probability: u32,
    dropping: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Signal {
    pub(super) drop: bool,
    pub(super) marked: bool,
}

/// How long ago; below 0: it is yet to come.
fn since(now: Nanos, then: Nanos) -> i64 {
    now.wrapping_sub(then).cast_signed()
}

impl Cobalt {
    /// `cobalt_invsqrt`.
    fn find_root(&mut self) {
        self.inverse_root = match INVERSE_ROOTS.get(self.count as usize) {
            Some(root) => *root,
            None => {
                let root = u64::from(self.inverse_root);
                let squared = (root * root) >> 32;
                let step = (3u64 << 32).wrapping_sub(u64::from(self.count).wrapping_mul(squared)) >> 2;
                (step.wrapping_mul(root) >> 31) as u32
            }
        };
    }

    /// `cobalt_control`.
    fn control(&self, from: Nanos, tin: &CakeTin) -> Nanos {
        // Of the interval Linux takes the lower 32 bits, 4.3 s.
        let interval = u64::from(tin.interval as u32);
        from.wrapping_add((interval * u64::from(self.inverse_root)) >> 32)
    }

    /// There was no room for this queue; whether BLUE has begun: `cobalt_queue_full`.
    pub(super) fn full(&mut self, tin: &CakeTin, now: Nanos) -> bool {
        let mut begun = false;
        if self.blue_changed == 0 || now.wrapping_sub(self.blue_changed) > tin.target {
            begun = self.probability == 0;
            self.probability = self.probability.saturating_add(MORE);
            self.blue_changed = now;
        }
        self.dropping = true;
        self.drop_next = now;
        self.count = self.count.max(1);
        begun
    }

    /// It was this queue's turn, but it had nothing; whether BLUE has ended: `cobalt_queue_empty`.
    pub(super) fn empty(&mut self, tin: &CakeTin, now: Nanos) -> bool {
        let mut ended = false;
        if self.probability != 0 && now.wrapping_sub(self.blue_changed) > tin.target {
            self.probability = self.probability.saturating_sub(LESS);
            self.blue_changed = now;
            ended = self.probability == 0;
        }
        self.dropping = false;
        if self.count != 0 && since(now, self.drop_next) >= 0 {
            self.count -= 1;
            self.find_root();
            self.drop_next = self.control(self.drop_next, tin);
        }
        ended
    }

    /// Whether there is something to remember of a queue that is empty.
    pub(super) fn remembers(&self, now: Nanos) -> bool {
        self.probability != 0 || self.count != 0 || since(now, self.drop_next) < 0
    }

    /// What becomes of a packet that has waited: `cobalt_should_drop`. `flows` have their turn before it is this one's again.
    /// `random`: of 2³².
    pub(super) fn signal(
        &mut self,
        tin: &CakeTin,
        now: Nanos,
        waited: Nanos,
        flows: u32,
        random: impl FnOnce() -> u32,
        mark: impl FnOnce() -> bool,
    ) -> Signal {
        let mut signal = Signal::default();
        let mut schedule = since(now, self.drop_next);
        let mut due = self.count != 0 && schedule >= 0;
        let too_long =
            waited > tin.target && waited > tin.mtu_time * u64::from(flows) * 2 && waited > tin.mtu_time * 4;
        if too_long {
            if !self.dropping {
                self.dropping = true;
                self.drop_next = self.control(now, tin);
            }
            self.count = self.count.max(1);
        } else {
            self.dropping = false;
        }
        if due && self.dropping {
            signal.marked = mark();
            signal.drop = !signal.marked;
            self.count = self.count.saturating_add(1);
            self.find_root();
            self.drop_next = self.control(self.drop_next, tin);
            schedule = since(now, self.drop_next);
        } else {
            while due {
                self.count -= 1;
                self.find_root();
                self.drop_next = self.control(self.drop_next, tin);
                schedule = since(now, self.drop_next);
                due = self.count != 0 && schedule >= 0;
            }
        }
        // BLUE knows no marks.
        if self.probability != 0 {
            signal.drop |= random() < self.probability;
        }
        if self.count == 0 {
            // How long the queue is remembered.
            self.drop_next = now.wrapping_add(tin.interval);
        } else if schedule > 0 && !signal.drop {
            self.drop_next = now;
        }
        signal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Cake;

    const SECOND: Nanos = 1_000_000_000;

    fn tin() -> CakeTin {
        Cake { rate: 1_250_000, ..crate::tables::cake_params() }.tin(0)
    }

    /// A queue that stays too long: the first packet goes at once, as in Linux, then the times get less and less.
    #[test]
    fn drops_come_faster() {
        let (tin, mut cobalt) = (tin(), Cobalt::default());
        let mut drops = Vec::new();
        for step in 0..100_000 {
            let now = SECOND + step * 10_000;
            if cobalt.signal(&tin, now, 50_000_000, 1, || u32::MAX, || false).drop {
                drops.push((now - SECOND) / 1_000_000);
            }
        }
        assert_eq!(drops[..6], [0, 70, 128, 178, 223, 264]);
        assert!(drops.len() > 20, "{drops:?}");
    }

    /// What can be marked is, and what waits shortly is left alone.
    #[test]
    fn marks_and_leaves_alone() {
        let (tin, mut cobalt) = (tin(), Cobalt::default());
        let mut marks = 0;
        for step in 0..30_000 {
            let now = SECOND + step * 10_000;
            let signal = cobalt.signal(&tin, now, 50_000_000, 1, || u32::MAX, || true);
            assert!(!signal.drop);
            marks += u32::from(signal.marked);
        }
        assert!(marks > 1 && cobalt.count == marks + 1, "{marks} {}", cobalt.count);
        for step in 0..200_000 {
            let now = 2 * SECOND + step * 10_000;
            let signal = cobalt.signal(&tin, now, 1_000_000, 1, || u32::MAX, || true);
            assert_eq!(signal, Signal::default());
        }
        assert_eq!(cobalt.count, 0);
        assert!(cobalt.remembers(4 * SECOND) && !cobalt.remembers(5 * SECOND));
    }

    /// BLUE: a 256th more for each target in which there was no room, and a 4096th less for each in which nothing waited.
    #[test]
    fn blue_grows_and_shrinks() {
        let (tin, mut cobalt) = (tin(), Cobalt::default());
        assert!(cobalt.full(&tin, SECOND));
        assert!(!cobalt.full(&tin, SECOND + 1));
        assert!(!cobalt.full(&tin, SECOND + 6_000_000));
        assert_eq!(cobalt.probability, 2 * MORE);
        let signal = |cobalt: &mut Cobalt, random| {
            cobalt.signal(&tin, SECOND + 6_000_000, 0, 0, || random, || false).drop
        };
        assert!(signal(&mut cobalt, 2 * MORE - 1) && !signal(&mut cobalt, 2 * MORE));
        let ended: Vec<_> = (2..34).filter(|step| cobalt.empty(&tin, SECOND + step * 6_000_000)).collect();
        assert_eq!((ended, cobalt.probability), (vec![33], 0));
    }

    /// What the functions of Linux 6.12 come to, compiled by themselves, where time, delays, marks and calls are these.
    #[test]
    fn any_calls_come_to_what_they_do_in_linux() {
        let params = Cake { rate: 125_000, ..crate::tables::cake_params() };
        let (tin, mut cobalt) = (params.tin(0), Cobalt::default());
        assert_eq!((tin.target, tin.interval, tin.mtu_time), (18_168_000, 113_168_000, 12_112_000));
        let mut state = 88_172_645_463_325_252u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        };
        let (mut now, mut base, mut drops, mut marks) = (SECOND, 0, 0, 0);
        let mut hash = 14_695_981_039_346_656_037u64;
        for step in 0..200_000 {
            now += u64::from(random() % 3_000_000);
            let call = random() % 100;
            if step % 2000 == 0 {
                base = random() % 120_000_000;
            }
            let chance = random();
            let waited = u64::from(base + random() % 20_000_000);
            let (can_mark, flows) = (random() % 2 == 1, random() % 4);
            if call < 98 {
                let signal = cobalt.signal(&tin, now, waited, flows, || chance, || can_mark);
                (drops, marks) = (drops + u32::from(signal.drop), marks + u32::from(signal.marked));
            } else if call < 99 || chance % 8 != 0 {
                cobalt.empty(&tin, now);
            } else {
                cobalt.full(&tin, now);
            }
            for value in
                [cobalt.count.into(), cobalt.drop_next, cobalt.probability.into(), cobalt.dropping.into()]
            {
                hash = (hash ^ value).wrapping_mul(1_099_511_628_211);
            }
        }
        assert_eq!((drops, marks, hash), (57117, 47807, 0xfff7_b21c_266a_f959));
    }
}
