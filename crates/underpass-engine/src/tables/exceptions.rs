//! Path MTUs that routers on the way of outer packets have reported: Linux's exceptions of routes.
//!
//! Workers learn them and read them. They are few and seldom written: a worker that finds another one writing lets it
//! be, as the next packet that is too long is told of again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::LookupId;
use crate::in_kernel::region::Region;
use crate::limiter::Nanos;
use crate::lpm::{Pages, Words};

/// How long one counts: Linux's `mtu_expires`, and that of IPv6.
const LIFETIME: Nanos = 600_000_000_000;
/// Linux's `min_pmtu`: a smaller one is not believed, but then packets are let be fragmented.
const LEAST: u32 = 552;
/// RFC 8200 section 5.
const LEAST6: u32 = 1280;

const SETS: usize = 512;
const WAYS: usize = 4;

/// What is known of the way to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathMtu {
    pub(crate) mtu: u32,
    /// Whether packets are not to say that they must not be fragmented.
    pub(crate) locked: bool,
}

/// An entry, which is as it should be while `version` is even and stays the same.
#[derive(Default)]
struct Entry {
    version: AtomicU32,
    lookup: AtomicU32,
    high: AtomicU64,
    low: AtomicU64,
    /// 0: there is none. The highest bit: it is locked.
    mtu: AtomicU32,
    until: AtomicU64,
}

const LOCKED: u32 = 1 << 31;

/// The exceptions of all destinations.
pub(crate) struct Exceptions {
    entries: Box<[Entry]>,
    /// Whether there was ever one: not 0.
    any: Words<AtomicU32>,
    writing: Mutex<()>,
}

impl Exceptions {
    /// None yet. Programs in the kernel see in the region whether there is one.
    pub(super) fn new(region: Option<&Region>) -> Self {
        let entries = (0..SETS * WAYS).map(|_| Entry::default()).collect();
        Self { entries, any: Words::shared(region, 0, Pages::Small), writing: Mutex::new(()) }
    }

    /// Where in the region it says whether there is one.
    pub(crate) fn any_in_kernel(&self) -> u32 {
        self.any.offset()
    }
}

impl Entry {
    /// What it says, if it is of this destination and still counts.
    fn read(&self, key: (u32, u64, u64), now: Nanos) -> Option<u32> {
        let version = self.version.load(Ordering::Acquire);
        let relaxed = Ordering::Relaxed;
        let found = (self.lookup.load(relaxed), self.high.load(relaxed), self.low.load(relaxed));
        let (mtu, until) = (self.mtu.load(relaxed), self.until.load(relaxed));
        fence(Ordering::Acquire);
        let whole = version & 1 == 0 && self.version.load(relaxed) == version;
        (whole && found == key && mtu != 0 && now < until).then_some(mtu)
    }

    fn write(&self, key: (u32, u64, u64), mtu: u32, until: Nanos) {
        let relaxed = Ordering::Relaxed;
        let version = self.version.load(relaxed);
        self.version.store(version.wrapping_add(1), relaxed);
        fence(Ordering::Release);
        self.lookup.store(key.0, relaxed);
        self.high.store(key.1, relaxed);
        self.low.store(key.2, relaxed);
        self.mtu.store(mtu, relaxed);
        self.until.store(until, relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

const fn key(destination: u128, lookup: LookupId) -> (u32, u64, u64) {
    (lookup.0, (destination >> 64) as u64, destination as u64)
}

impl Exceptions {
    fn set(&self, (lookup, high, low): (u32, u64, u64)) -> &[Entry] {
        let hash = (high ^ low.rotate_left(31) ^ u64::from(lookup)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let first = hash as usize % SETS * WAYS;
        self.entries.get(first..first + WAYS).unwrap_or_default()
    }

    /// Whether one was ever reported.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.word(0).load(Ordering::Relaxed) != 0
    }

    /// Says that there is something to be looked for at each tunnel.
    #[cold]
    pub(crate) fn set_any(&self) {
        self.any.word(0).store(1, Ordering::Relaxed);
    }

    /// The path MTU of a destination, as a number, that is looked up in these tables, if one was reported.
    #[inline(always)]
    pub(crate) fn of(&self, destination: u128, lookup: LookupId, now: Nanos) -> Option<PathMtu> {
        if !self.any() {
            return None;
        }
        self.find(destination, lookup, now)
    }

    #[inline(never)]
    fn find(&self, destination: u128, lookup: LookupId, now: Nanos) -> Option<PathMtu> {
        let key = key(destination, lookup);
        let mtu = self.set(key).iter().find_map(|entry| entry.read(key, now))?;
        Some(PathMtu { mtu: mtu & !LOCKED, locked: mtu & LOCKED != 0 })
    }

    /// Takes note of what a router has reported. One that is larger than what is known counts for nothing.
    #[cold]
    pub(crate) fn learn(&self, destination: u128, lookup: LookupId, mtu: u32, now: Nanos) {
        let reported = match destination >> 32 {
            0 if mtu < LEAST => LEAST | LOCKED,
            0 => mtu,
            _ => mtu.max(LEAST6),
        };
        let Ok(_writing) = self.writing.try_lock() else { return };
        let key = key(destination, lookup);
        let set = self.set(key);
        let known = set.iter().find(|entry| entry.read(key, now).is_some());
        if known.is_some_and(|entry| entry.mtu.load(Ordering::Relaxed) & !LOCKED < reported & !LOCKED) {
            return;
        }
        // Else the place of the one that ends first.
        let entry = known.or_else(|| set.iter().min_by_key(|entry| entry.until.load(Ordering::Relaxed)));
        if let Some(entry) = entry {
            entry.write(key, reported, now.saturating_add(LIFETIME));
            self.set_any();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: LookupId = LookupId(3);

    #[test]
    fn what_was_told_counts_for_ten_minutes() {
        let exceptions = Exceptions::new(None);
        let reported = |destination, now| exceptions.of(destination, TABLES, now).map(|path| path.mtu);
        assert_eq!(reported(7, 0), None);
        exceptions.learn(7, TABLES, 1400, 5);
        exceptions.learn(7, TABLES, 1450, 6);
        assert_eq!((reported(7, 10), reported(8, 10)), (Some(1400), None));
        assert_eq!(exceptions.of(7, LookupId(4), 10), None);
        exceptions.learn(7, TABLES, 1300, 7);
        assert_eq!((reported(7, LIFETIME + 6), reported(7, LIFETIME + 7)), (Some(1300), None));
        // Then a larger one counts again.
        exceptions.learn(7, TABLES, 1400, LIFETIME + 7);
        assert_eq!(reported(7, LIFETIME + 8), Some(1400));
    }

    #[test]
    fn less_than_the_least_is_not_believed() {
        let exceptions = Exceptions::new(None);
        exceptions.learn(7, TABLES, 68, 0);
        assert_eq!(exceptions.of(7, TABLES, 1), Some(PathMtu { mtu: 552, locked: true }));
        exceptions.learn(1 << 64, TABLES, 68, 0);
        assert_eq!(exceptions.of(1 << 64, TABLES, 1), Some(PathMtu { mtu: 1280, locked: false }));
    }

    /// Any number of destinations: the latest are known.
    #[test]
    fn the_oldest_make_room() {
        let exceptions = Exceptions::new(None);
        for destination in 0..100_000u32 {
            exceptions.learn(destination.into(), TABLES, 1000, destination.into());
            assert!(exceptions.of(destination.into(), TABLES, destination.into()).is_some());
        }
    }
}
