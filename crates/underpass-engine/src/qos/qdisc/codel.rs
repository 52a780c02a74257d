//! CoDel, as `include/net/codel.h` and `codel_impl.h` compute it: times in units of 1,024 ns in 32 bits that wrap, and
//! the reciprocal square root in 16 bits.

use crate::limiter::Nanos;

/// In units of 1,024 ns.
pub(super) type Time = u32;

/// `codel_get_time`.
pub(super) fn time(now: Nanos) -> Time {
    (now >> 10) as Time
}

/// Microseconds in units of CoDel, as netlink's are converted.
pub(super) fn of_micros(micros: u32) -> Time {
    ((u64::from(micros) * 1000) >> 10) as Time
}

fn after(a: Time, b: Time) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

fn after_or_at(a: Time, b: Time) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

fn before(a: Time, b: Time) -> bool {
    after(b, a)
}

/// What it is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Params {
    pub(super) target: Time,
    pub(super) interval: Time,
    pub(super) mtu: u32,
    pub(super) ecn: bool,
    /// `None`: disabled.
    pub(super) ce_threshold: Option<Time>,
    pub(super) ce_selector: (u8, u8),
}

/// What it knows of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Vars {
    pub(super) count: u32,
    pub(super) lastcount: u32,
    dropping: bool,
    rec_inv_sqrt: u16,
    first_above_time: Time,
    drop_next: Time,
    /// How long the packet waited that was looked at last.
    pub(super) delay: Time,
}

/// A packet of its queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) id: u32,
    pub(super) len: u32,
    /// When it came.
    pub(super) time: Time,
}

/// The queue that it looks after.
pub(super) trait Queue {
    /// Takes the first packet.
    fn pop(&mut self) -> Option<Head>;
    /// Bytes in all queues of the qdisc.
    fn backlog(&self) -> u64;
    fn drop(&mut self, head: Head);
    /// Marks a packet as one that has experienced congestion; `false`: it does not know what that is.
    fn mark(&mut self, head: Head) -> bool;
    /// The traffic class of a packet.
    fn class(&self, head: Head) -> Option<u8>;
    fn marked(&mut self);
    fn marked_above_threshold(&mut self);
    fn seen(&mut self, len: u32);
}

impl Vars {
    /// Whether packets are being dropped, and when the next one is.
    pub(super) const fn dropping(&self) -> (bool, Time) {
        (self.dropping, self.drop_next)
    }

    /// `codel_Newton_step`: a step towards 1 / √count.
    fn newton_step(&mut self) {
        let invsqrt = u32::from(self.rec_inv_sqrt) << 16;
        let squared = (u64::from(invsqrt) * u64::from(invsqrt)) >> 32;
        let val = (3u64 << 32).wrapping_sub(u64::from(self.count).wrapping_mul(squared)) >> 2;
        self.rec_inv_sqrt = (val.wrapping_mul(invsqrt.into()) >> (32 - 2 + 1) >> 16) as u16;
    }

    /// `codel_control_law`.
    fn control_law(&self, t: Time, interval: Time) -> Time {
        let scaled = (u64::from(interval) * u64::from(u32::from(self.rec_inv_sqrt) << 16)) >> 32;
        t.wrapping_add(scaled as u32)
    }

    fn should_drop(
        &mut self,
        head: Option<Head>,
        params: &Params,
        queue: &mut impl Queue,
        now: Time,
    ) -> bool {
        let Some(head) = head else {
            self.first_above_time = 0;
            return false;
        };
        self.delay = now.wrapping_sub(head.time);
        queue.seen(head.len);
        if before(self.delay, params.target) || queue.backlog() <= params.mtu.into() {
            self.first_above_time = 0;
            return false;
        }
        if self.first_above_time == 0 {
            self.first_above_time = now.wrapping_add(params.interval);
            return false;
        }
        after(now, self.first_above_time)
    }

    /// The packet that leaves next: `codel_dequeue`.
    pub(super) fn dequeue(&mut self, params: &Params, queue: &mut impl Queue, now: Time) -> Option<Head> {
        let Some(mut head) = queue.pop() else {
            self.dropping = false;
            return None;
        };
        let drop = self.should_drop(Some(head), params, queue, now);
        if self.dropping {
            if !drop {
                self.dropping = false;
            }
            while self.dropping && after_or_at(now, self.drop_next) {
                self.count = self.count.wrapping_add(1);
                self.newton_step();
                if params.ecn && queue.mark(head) {
                    queue.marked();
                    self.drop_next = self.control_law(self.drop_next, params.interval);
                    break;
                }
                queue.drop(head);
                let next = queue.pop();
                if self.should_drop(next, params, queue, now) {
                    self.drop_next = self.control_law(self.drop_next, params.interval);
                } else {
                    self.dropping = false;
                }
                head = next?;
            }
        } else if drop {
            let mut next = Some(head);
            if params.ecn && queue.mark(head) {
                queue.marked();
            } else {
                queue.drop(head);
                next = queue.pop();
                self.should_drop(next, params, queue, now);
            }
            self.dropping = true;
            let delta = self.count.wrapping_sub(self.lastcount);
            if delta > 1 && before(now.wrapping_sub(self.drop_next), params.interval.wrapping_mul(16)) {
                self.count = delta;
                self.newton_step();
            } else {
                self.count = 1;
                self.rec_inv_sqrt = u16::MAX;
            }
            self.lastcount = self.count;
            self.drop_next = self.control_law(now, params.interval);
            head = next?;
        }
        if let Some(threshold) = params.ce_threshold
            && after(now.wrapping_sub(head.time), threshold)
        {
            let (selector, mask) = params.ce_selector;
            let selected = mask == 0 || queue.class(head).is_some_and(|class| class & mask == selector);
            if selected && queue.mark(head) {
                queue.marked_above_threshold();
            }
        }
        Some(head)
    }
}
