//! Filters of what comes in, and their actions: `matchall`, `u32` at fixed places, `police`, `gact`. As `classify_at_hook` of
//! the engine's `worker/hook`.
//!
//! Which filters take a packet is found out at the beginning, as it came. Counted and policed it is at the end, when it is
//! certain that no worker gets it: what is taken out of a bucket is not given back.

use underpass_engine::drops::DropReason;
use underpass_engine::in_kernel::counters::DROPS;
use underpass_engine::in_kernel::filters::{
    BYTES, CONTINUE, DROP, LAST_KEY, MOST_ACTIONS, MOST_FILTERS, MOST_KEYS, NOTHING, OK, PACKETS, PIPE,
    action, filter, key, kind, place,
};

use super::emit::{Context, ETHERNET, Emit, Hook, TCX_DROP, XDP_DROP, add, sk_buff, stack};
use super::input::LINK_FILTERS;
use crate::xdp::assembler::{
    Do, Label, Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Size, When,
};

/// `bpf_ktime_get_ns`.
const KTIME_GET_NS: i32 = 5;

/// A counter of traffic control, and of an object.
mod count {
    pub(super) const PACKETS: i16 = 0;
    pub(super) const BYTES: i16 = 8;
    pub(super) const DROPS: i16 = 16;
    pub(super) const OVERLIMITS: i16 = 24;
    pub(super) const FIRST: i16 = 32;
    pub(super) const LAST: i16 = 40;
    pub(super) const ERRORS: i16 = 16;
}

/// What a filter says of a packet, in a byte: how many of its keys hold, or this if it is for packets of another protocol.
const OF_OTHERS: i32 = 0x80;
/// What an action says of a packet that it drops, with the reason.
const DROPPED: i32 = 0x100;
/// How often a bucket is tried whose state another processor changes meanwhile.
const TRIES: usize = 16;

impl Emit {
    /// Notes which filters take the packet that came in by the link in R8; jumps if no program knows them. Changes R0 to R5.
    pub(super) fn classify(&mut self, hooked: Label) {
        let p = &mut self.p;
        let none = p.label();
        p.load(Size::Word, R1, R8, LINK_FILTERS);
        p.store(Size::Double, R10, stack::FILTERS, R1);
        if !self.polices {
            return p.jump_if(R1, When::NotEqual, 0, hooked);
        }
        p.jump_if(R1, When::Equal, 0, none);
        p.point(R1, R1);
        p.load(Size::Word, R2, R1, 0);
        p.jump_if(R2, When::Equal, 0, hooked);
        p.store(Size::Double, R10, stack::FILTERS, R2);
        // A large segment may conform in part.
        if self.hook == Hook::Tcx {
            p.load(Size::Word, R1, R6, sk_buff::GSO_SIZE);
            p.jump_if(R1, When::NotEqual, 0, hooked);
        }
        p.copy(R1, R6);
        p.copy(R3, R10);
        p.add(R3, stack::HELD.into());
        p.call_here(self.classify);
        p.jump_if(R0, When::NotEqual, 0, hooked);
        p.here(none);
    }

    /// `R0 = classify(R1: context, R2: the record of a place, R3: where to put what its filters say, a byte each)`: 0, or 1 if
    /// a worker has to look at the packet. What filters say goes to memory and not into R0, so that the verifier does not fork on
    /// its value.
    pub(super) fn function_classify(&mut self) {
        self.p.function(self.classify, "classify", None);
        let Context { data, data_end, .. } = self.context;
        let p = &mut self.p;
        let (unknown, done) = (p.label(), p.label());
        const ETHERTYPE: i16 = -8;
        const RESULT: i16 = -16;
        p.copy(R6, R1);
        p.store(Size::Double, R10, RESULT, R3);
        p.point(R7, R2);
        p.load(Size::Word, R3, R6, data);
        p.load(Size::Word, R4, R6, data_end);
        p.copy(R5, R3);
        p.add(R5, ETHERNET.into());
        p.jump_if_register(R5, When::Greater, R4, unknown);
        p.load(Size::Half, R1, R3, 12);
        p.store(Size::Double, R10, ETHERTYPE, R1);
        p.load(Size::Byte, R8, R7, place::COUNT);
        p.set(R9, 0);
        for n in 0..MOST_FILTERS {
            let (base, bits) = (place::FILTERS + n as i16 * filter::LEN, 8 * n as i32);
            let (next, of_others, of_this) = (p.label(), p.label(), p.label());
            p.jump_if(R8, When::LessOrEqual, n as i32, done);
            for number in 0..MOST_ACTIONS as i16 {
                let none = p.label();
                p.load(Size::Word, R1, R7, base + filter::ACTIONS + 4 * number);
                p.jump_if(R1, When::Equal, 0, none);
                p.point(R1, R1);
                p.load(Size::Word, R1, R1, 0);
                p.jump_if(R1, When::Equal, 0, unknown);
                p.here(none);
            }
            p.load(Size::Half, R1, R7, base + filter::ETHERTYPE);
            p.jump_if(R1, When::Equal, 0, of_this);
            p.load(Size::Double, R2, R10, ETHERTYPE);
            p.jump_if_register(R1, When::NotEqual, R2, of_others);
            p.here(of_this);
            for number in 0..MOST_KEYS {
                let at = base + filter::KEYS + number as i16 * key::LEN;
                p.load(Size::Byte, R1, R7, base + filter::KEY_COUNT);
                p.jump_if(R1, When::LessOrEqual, number as i32, next);
                p.load(Size::Word, R2, R7, at + key::AT);
                p.compute(R2, Do::And, LAST_KEY);
                p.load(Size::Word, R3, R6, data);
                p.load(Size::Word, R4, R6, data_end);
                p.compute_with(R3, Do::Add, R2);
                p.copy(R5, R3);
                p.add(R5, i32::from(ETHERNET) + 4);
                p.jump_if_register(R5, When::Greater, R4, unknown);
                p.load(Size::Word, R3, R3, ETHERNET);
                p.load(Size::Word, R4, R7, at + key::VALUE);
                p.compute_with(R3, Do::Xor, R4);
                p.load(Size::Word, R4, R7, at + key::MASK);
                p.compute_with(R3, Do::And, R4);
                p.jump_if(R3, When::NotEqual, 0, next);
                says(p, 1, bits);
            }
            p.jump(next);
            p.here(of_others);
            says(p, OF_OTHERS, bits);
            p.here(next);
        }
        p.here(done);
        p.load(Size::Double, R1, R10, RESULT);
        p.store(Size::Double, R1, 0, R9);
        p.set(R0, 0);
        p.exit();
        p.here(unknown);
        p.set(R0, 1);
        p.exit();
    }

    /// Has the packet, which no worker gets, pass the filters, if it has not: before it is counted. What becomes of it if it
    /// does not pass is at another place.
    pub(super) fn pass_filters(&mut self) {
        if !self.polices {
            return;
        }
        let p = &mut self.p;
        let none = p.label();
        p.load(Size::Double, R1, R10, stack::FILTERS);
        p.jump_if(R1, When::Equal, 0, none);
        p.load(Size::Double, R2, R10, stack::HELD);
        p.load(Size::Double, R3, R10, stack::RECEIVED);
        p.add(R3, -i32::from(ETHERNET));
        p.load(Size::Double, R4, R10, stack::COUNTERS);
        p.call_here(self.police);
        p.jump_if(R0, When::NotEqual, 0, self.policed);
        p.store(Size::Double, R10, stack::FILTERS, R0);
        p.here(none);
    }

    /// Drops a packet that did not pass the filters.
    pub(super) fn write_policed(&mut self) {
        self.p.here(self.policed);
        // Taken out of what filters said, which nobody asks for any more.
        self.p.store(Size::Double, R10, stack::HELD, R0);
        self.count_received();
        let p = &mut self.p;
        p.load(Size::Double, R0, R10, stack::HELD);
        p.load(Size::Double, R1, R10, stack::COUNTERS);
        p.compute(R0, Do::And, 0xff);
        p.compute(R0, Do::ShiftLeft, 3);
        p.compute_with(R1, Do::Add, R0);
        p.compute(R1, Do::Add, DROPS.cast_signed());
        p.point(R1, R1);
        add(p, R1, 0, None);
        p.set(R0, if self.hook == Hook::Tcx { TCX_DROP } else { XDP_DROP });
        p.exit();
    }

    /// `R0 = police(R1: the record of a place, R2: what its filters say, R3: bytes of the packet, R4: counters)`: counts, and
    /// does what the actions say. 0: the packet goes on; else [`DROPPED`] and the reason.
    pub(super) fn function_police(&mut self) {
        const NOW: i16 = -8;
        self.p.function(self.police, "police", Some(4));
        let act = self.act;
        let clock = self.places.common.cast_signed() + 24;
        let p = &mut self.p;
        let (passes, drops) = (p.label(), p.label());
        p.point(R6, R1);
        p.copy(R7, R2);
        p.copy(R8, R3);
        p.copy(R9, R4);
        p.call(KTIME_GET_NS);
        p.set(R1, clock);
        p.point(R1, R1);
        p.load(Size::Double, R1, R1, 0);
        p.compute_with(R0, Do::Subtract, R1);
        p.store(Size::Double, R10, NOW, R0);
        let uncounted = p.label();
        p.load(Size::Word, R1, R6, place::COUNTER);
        p.jump_if(R1, When::Equal, 0, uncounted);
        p.compute_with(R1, Do::Add, R9);
        p.point(R1, R1);
        p.copy(R4, R0);
        came(p, R8);
        p.here(uncounted);
        for n in 0..MOST_FILTERS {
            let base = place::FILTERS + n as i16 * filter::LEN;
            let (next, missed) = (p.label(), p.label());
            p.load(Size::Byte, R1, R6, place::COUNT);
            p.jump_if(R1, When::LessOrEqual, n as i32, passes);
            p.copy(R5, R7);
            p.compute(R5, Do::ShiftRight, 8 * n as i32);
            p.jump_if(R5, When::Bits, OF_OTHERS, next);
            p.compute(R5, Do::And, 0xff);
            for number in 0..MOST_KEYS {
                let (counted, none) = (p.label(), p.label());
                p.jump_if(R5, When::LessOrEqual, number as i32, counted);
                p.load(Size::Word, R1, R6, base + filter::KEYS + number as i16 * key::LEN + key::COUNTER);
                p.jump_if(R1, When::Equal, 0, none);
                p.compute_with(R1, Do::Add, R9);
                p.point(R1, R1);
                add(p, R1, count::PACKETS, None);
                p.here(none);
                p.here(counted);
            }
            let (counts, none) = (p.label(), p.label());
            p.load(Size::Byte, R2, R6, base + filter::KEY_COUNT);
            p.load(Size::Word, R1, R6, base + filter::COUNTER);
            p.jump_if(R1, When::NotEqual, 0, counts);
            p.jump_if_register(R5, When::NotEqual, R2, next);
            p.jump(none);
            p.here(counts);
            p.compute_with(R1, Do::Add, R9);
            p.point(R1, R1);
            p.jump_if_register(R5, When::NotEqual, R2, missed);
            add(p, R1, count::PACKETS, None);
            add(p, R1, count::BYTES, Some(R8));
            p.here(none);
            for number in 0..MOST_ACTIONS as i16 {
                let gone = p.label();
                p.load(Size::Word, R1, R6, base + filter::ACTIONS + 4 * number);
                p.jump_if(R1, When::Equal, 0, passes);
                p.point(R1, R1);
                p.load(Size::Word, R1, R1, 0);
                // It has gone meanwhile.
                p.jump_if(R1, When::Equal, 0, gone);
                p.copy(R2, R8);
                p.copy(R3, R9);
                p.load(Size::Double, R4, R10, NOW);
                p.call_here(act);
                p.jump_if(R0, When::GreaterOrEqual, DROPPED, drops);
                p.jump_if(R0, When::Equal, CONTINUE.into(), next);
                p.jump_if(R0, When::NotEqual, PIPE.into(), passes);
                p.here(gone);
            }
            p.jump(passes);
            p.here(missed);
            add(p, R1, count::ERRORS, None);
            p.here(next);
        }
        p.here(passes);
        p.set(R0, OK.into());
        p.exit();
        p.here(drops);
        let none = p.label();
        p.load(Size::Word, R1, R6, place::COUNTER);
        p.jump_if(R1, When::Equal, 0, none);
        p.compute_with(R1, Do::Add, R9);
        p.point(R1, R1);
        add(p, R1, count::DROPS, None);
        p.here(none);
        p.exit();
    }

    /// `R0 = act(R1: the record of an action, R2: bytes of the packet, R3: counters, R4: now)`: what happens to it, or
    /// [`DROPPED`] and the reason.
    pub(super) fn function_act(&mut self) {
        const COUNTER: i16 = -8;
        self.p.function(self.act, "act", Some(4));
        let p = &mut self.p;
        let [police, conforms, exceeds, exits] = std::array::from_fn(|_| p.label());
        p.point(R6, R1);
        p.copy(R7, R2);
        p.copy(R9, R4);
        p.load(Size::Word, R1, R6, action::COUNTER);
        p.compute_with(R1, Do::Add, R3);
        p.store(Size::Double, R10, COUNTER, R1);
        p.point(R1, R1);
        came(p, R7);
        p.load(Size::Byte, R2, R6, action::KIND);
        p.jump_if(R2, When::Equal, kind::POLICE.into(), police);
        p.load(Size::Byte, R0, R6, action::CONTROL);
        p.jump_if(R0, When::NotEqual, DROP.into(), exits);
        add(p, R1, count::DROPS, None);
        p.set(R0, DROPPED | DropReason::TcAction as i32);
        p.exit();

        p.here(police);
        p.copy(R2, R7);
        p.add(R2, ETHERNET.into());
        p.load(Size::Word, R3, R6, action::MTU);
        p.jump_if_register(R2, When::Greater, R3, exceeds);
        let (by_bytes, priced, least) = (p.label(), p.label(), p.label());
        p.load(Size::Byte, R2, R6, action::CHARGE);
        p.jump_if(R2, When::Equal, NOTHING.into(), conforms);
        p.jump_if(R2, When::Equal, BYTES.into(), by_bytes);
        const _: () = assert!(PACKETS != BYTES && PACKETS != NOTHING);
        p.load(Size::Double, R5, R6, action::PACKET);
        p.jump(priced);
        p.here(by_bytes);
        p.copy(R5, R7);
        p.load(Size::Word, R3, R6, action::OVERHEAD);
        p.compute_words(R5, Do::Add, R3);
        p.load(Size::Word, R3, R6, action::LEAST);
        p.jump_if_register(R5, When::GreaterOrEqual, R3, least);
        p.copy(R5, R3);
        p.here(least);
        p.load(Size::Word, R3, R6, action::MULTIPLIER);
        p.compute_with(R5, Do::Multiply, R3);
        p.load(Size::Word, R3, R6, action::SHIFT);
        p.compute(R3, Do::And, 63);
        p.compute_with(R5, Do::ShiftRight, R3);
        p.here(priced);
        p.jump_if(R5, When::Equal, 0, conforms);
        p.load(Size::Word, R8, R6, action::BUCKET);
        p.point(R8, R8);
        for _ in 0..TRIES {
            // From when on there are tokens, and how many.
            let (full, some) = (p.label(), p.label());
            p.load(Size::Double, R0, R8, 0);
            p.copy(R2, R9);
            p.load(Size::Double, R3, R6, action::BURST);
            p.compute_with(R2, Do::Subtract, R3);
            p.jump_if_register(R2, When::SignedGreaterOrEqual, R0, full);
            p.copy(R2, R0);
            p.here(full);
            p.copy(R4, R9);
            p.compute_with(R4, Do::Subtract, R2);
            p.set(R3, 0);
            p.jump_if_register(R4, When::SignedGreaterOrEqual, R3, some);
            p.set(R4, 0);
            p.here(some);
            p.jump_if_register(R5, When::Greater, R4, exceeds);
            p.compute_with(R2, Do::Add, R5);
            p.copy(R4, R0);
            p.exchange_if_r0(R8, 0, R2);
            p.jump_if_register(R0, When::Equal, R4, conforms);
        }
        p.here(exceeds);
        let refused = p.label();
        p.load(Size::Double, R1, R10, COUNTER);
        p.point(R1, R1);
        add(p, R1, count::OVERLIMITS, None);
        p.load(Size::Byte, R0, R6, action::CONTROL);
        p.jump_if(R0, When::NotEqual, DROP.into(), exits);
        p.here(refused);
        p.load(Size::Double, R1, R10, COUNTER);
        p.point(R1, R1);
        add(p, R1, count::DROPS, None);
        let uncounted = p.label();
        p.here(uncounted);
        p.set(R0, DROPPED | DropReason::Police as i32);
        p.here(exits);
        p.exit();
        p.here(conforms);
        p.load(Size::Byte, R0, R6, action::CONFORM);
        p.jump_if(R0, When::NotEqual, DROP.into(), exits);
        // One that looks at the MTU alone does not count these.
        p.load(Size::Byte, R2, R6, action::CHARGE);
        p.jump_if(R2, When::Equal, NOTHING.into(), uncounted);
        p.jump(refused);
    }
}

/// Adds to what filters say, in R9. Changes R1.
fn says(p: &mut Program, what: i32, bits: i32) {
    p.set(R1, what);
    p.compute(R1, Do::ShiftLeft, bits);
    p.compute_with(R9, Do::Add, R1);
}

/// Counts a packet at the counter of traffic control in R1, which came at the time in R4. Changes R3 and R4.
fn came(p: &mut Program, bytes: Register) {
    let (later, known) = (p.label(), p.label());
    add(p, R1, count::PACKETS, None);
    add(p, R1, count::BYTES, Some(bytes));
    p.jump_if(R4, When::NotEqual, 0, later);
    p.set(R4, 1);
    p.here(later);
    p.load(Size::Double, R3, R1, count::FIRST);
    p.jump_if(R3, When::NotEqual, 0, known);
    p.store(Size::Double, R1, count::FIRST, R4);
    p.here(known);
    p.store(Size::Double, R1, count::LAST, R4);
}
