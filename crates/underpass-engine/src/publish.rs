//! Quiescent-state publication: workers read shared objects without locks, the control thread frees
//! what it replaced once every worker has passed a point where it holds none of it.
//!
//! ```text
//! control   unlink object ──> epoch := e+1 ─────────────> every slot ≥ e+1 or idle: free
//! worker    ── burst, slot = e ──┴── burst, slot = e+1 ──┘
//! ```
//!
//! A worker enters once per burst: one load of the global epoch and one store to its own cache line,
//! no read-modify-write and no fence. Only the first burst after [`Reader::idle`] pays for a fence.
//!
//! # Which guard reads what
//!
//! A [`Guard`] protects what the [`Retirer`] of its own domain retires. The constructors of this module
//! are private to the crate, and [`crate::tables::Writer::new`] makes one domain, its readers and its
//! tables together. Debug builds check on every access that guard and slab are of one domain.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// What an idle reader's slot holds: later than every epoch.
const IDLE: u64 = u64::MAX;

/// The epoch that one reader has seen, alone on its pair of cache lines (the prefetcher fetches pairs).
#[repr(align(128))]
struct Seen(AtomicU64);

struct Domain {
    epoch: AtomicU64,
    seen: Box<[Seen]>,
    /// What the retirer had not freed when it was dropped. Freed with the domain, which lives as long
    /// as any reader, and so longer than any guard.
    orphans: Mutex<VecDeque<(Stamp, Retired)>>,
}

/// The moment at which something was unlinked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stamp(u64);

type Retired = Box<dyn Send>;

/// Makes a domain of `readers` readers, all idle.
pub(crate) fn domain(readers: usize) -> (Retirer, Vec<Reader>) {
    let domain = Arc::new(Domain {
        epoch: AtomicU64::new(1),
        seen: (0..readers).map(|_| Seen(AtomicU64::new(IDLE))).collect(),
        orphans: Mutex::default(),
    });
    let readers =
        (0..readers).map(|index| Reader { domain: domain.clone(), index, idle: true }).collect::<Vec<_>>();
    (Retirer { domain, limbo: VecDeque::new(), passed: Cell::new(Stamp(0)) }, readers)
}

/// The control thread's end of a domain: takes what was unlinked, frees it when no reader holds it.
pub(crate) struct Retirer {
    domain: Arc<Domain>,
    limbo: VecDeque<(Stamp, Retired)>,
    passed: Cell<Stamp>,
}

impl Retirer {
    /// The stamp of what has just been unlinked.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(self.domain.epoch.load(Ordering::Relaxed) + 1)
    }

    /// Whether no reader holds anything that was unlinked at `stamp`, as of the last
    /// [`Self::advance`].
    pub(crate) fn has_passed(&self, stamp: Stamp) -> bool {
        stamp <= self.passed.get()
    }

    /// Frees `object` once no reader can hold it. It must have been unlinked before this call.
    pub(crate) fn retire(&mut self, object: Retired) {
        self.limbo.push_back((self.stamp(), object));
    }

    /// Starts a new epoch and finds out which earlier ones every reader has left. Never waits.
    pub(crate) fn advance(&self) {
        let epoch = self.domain.epoch.load(Ordering::Relaxed) + 1;
        // Release: a reader that sees the new epoch sees everything unlinked before it.
        self.domain.epoch.store(epoch, Ordering::Release);
        // Pairs with the fence of a reader that stops being idle: either the loads below see its slot,
        // or its loads see everything unlinked before this point.
        fence(Ordering::SeqCst);
        // Acquire: what a reader read before it stored its slot happens before we free it.
        let seen = self.domain.seen.iter().map(|seen| seen.0.load(Ordering::Acquire)).min();
        self.passed.set(Stamp(seen.unwrap_or(IDLE).min(epoch)));
    }

    /// Advances, and frees what no reader can hold any more.
    pub(crate) fn reclaim(&mut self) {
        self.advance();
        while self.limbo.front().is_some_and(|(stamp, _)| self.has_passed(*stamp)) {
            self.limbo.pop_front();
        }
    }

    /// How many retired objects wait to be freed.
    pub(crate) fn waiting(&self) -> usize {
        self.limbo.len()
    }
}

impl Drop for Retirer {
    fn drop(&mut self) {
        let limbo = std::mem::take(&mut self.limbo);
        self.domain.orphans.lock().unwrap_or_else(PoisonError::into_inner).extend(limbo);
    }
}

/// A worker's end of a domain.
pub struct Reader {
    domain: Arc<Domain>,
    index: usize,
    idle: bool,
}

impl Reader {
    /// Begins a burst: what is read from the tables stays valid until the guard is dropped, and
    /// everything that was read under earlier guards may be freed.
    #[inline]
    pub fn enter(&mut self) -> Guard<'_> {
        // Acquire: with a new epoch we also see everything that was unlinked before it.
        let epoch = self.domain.epoch.load(Ordering::Acquire);
        // Release: whatever we read under the last guard, we have read.
        self.domain.seen[self.index].0.store(epoch, Ordering::Release);
        if self.idle {
            // The control thread may be passing by and see us idle still; see `Retirer::advance`.
            fence(Ordering::SeqCst);
            self.idle = false;
        }
        Guard { domain: &raw const *self.domain as usize, reader: PhantomData }
    }

    /// Ends the last burst without beginning one: while a worker has nothing to do, it holds back no
    /// memory.
    #[inline]
    pub fn idle(&mut self) {
        self.domain.seen[self.index].0.store(IDLE, Ordering::Release);
        self.idle = true;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.idle();
    }
}

/// A burst in progress: while it lives, nothing that a reader can reach is freed.
pub struct Guard<'g> {
    domain: usize,
    reader: PhantomData<&'g mut Reader>,
}

/// Slots of objects that readers find by a dense number. The slots are one array, reserved when the
/// slab is made and backed by memory only where it is used, so that a reader needs one load to find
/// an object's address.
pub(crate) struct Slab<T> {
    slots: *mut AtomicPtr<T>,
    mask: u32,
    domain: usize,
    /// One above the largest id ever used.
    top: AtomicU32,
}

// SAFETY: a slab owns its objects like a `Vec<Box<T>>` (Send), and shares them with readers (Sync).
unsafe impl<T: Send + Sync> Send for Slab<T> {}
// SAFETY: as above; slots are atomic, and objects are dropped by whichever thread owns the retirer.
unsafe impl<T: Send + Sync> Sync for Slab<T> {}

impl<T: Send + Sync + 'static> Slab<T> {
    /// A slab with ids below 2^`bits` − 1, whose objects are retired to `retirer`'s domain.
    pub(crate) fn new(bits: u32, retirer: &Retirer) -> Self {
        let slots = slots::<T>(1 << bits);
        Self {
            slots: Box::into_raw(slots).cast(),
            mask: (1 << bits) - 1,
            domain: &raw const *retirer.domain as usize,
            top: AtomicU32::new(0),
        }
    }

    /// The object of that id. An id that was never used, or was removed before the guard's burst, has
    /// none.
    #[inline]
    pub(crate) fn get<'g>(&'g self, id: u32, guard: &'g Guard<'_>) -> Option<&'g T> {
        debug_assert_eq!(self.domain, guard.domain, "a guard of another domain");
        let _ = guard;
        // Acquire: the object's content was written before its address was.
        let object = self.slot(id).load(Ordering::Acquire);
        // SAFETY: a slot is null or holds a `Box<T>` made in `replace`. One that is taken out is
        // retired and freed only after this guard is gone (it entered before the object was unlinked,
        // or it would not have found it). One that is not taken out is freed with the slab, which `'g`
        // borrows.
        unsafe { object.as_ref() }
    }

    /// One above the largest id ever used.
    pub(crate) fn top(&self) -> u32 {
        self.top.load(Ordering::Relaxed)
    }

    /// Prefetches the cache lines that [`Self::get`] and its caller will read, for each id: first those of
    /// the addresses, then those of the objects.
    #[inline]
    pub(crate) fn prefetch(&self, ids: impl Iterator<Item = u32> + Clone) {
        self.prefetch_slots(ids.clone());
        for id in ids {
            prefetch(self.slot(id).load(Ordering::Relaxed));
        }
    }

    /// The same for the addresses alone.
    #[inline]
    pub(crate) fn prefetch_slots(&self, ids: impl Iterator<Item = u32>) {
        for id in ids {
            prefetch(self.slots.wrapping_add((id & self.mask) as usize));
        }
    }

    #[inline]
    fn slot(&self, id: u32) -> &AtomicPtr<T> {
        // SAFETY: the array has mask + 1 slots and lives as long as `self`.
        unsafe { &*self.slots.add((id & self.mask) as usize) }
    }

    /// Puts `object` (or nothing) in the place of what `id` names, which is retired. Says whether
    /// there was something.
    pub(crate) fn replace(&self, id: u32, object: Option<T>, retirer: &mut Retirer) -> bool {
        // The last slot stays empty: ids beyond the array name nothing.
        if id >= self.mask || self.domain != &raw const *retirer.domain as usize {
            return false;
        }
        self.top.store(self.top.load(Ordering::Relaxed).max(id + 1), Ordering::Relaxed);
        let new = object.map_or(std::ptr::null_mut(), |object| Box::into_raw(Box::new(object)));
        // Release for the new object's content; there is one writer, which has the one retirer.
        let old = self.slot(id).swap(new, Ordering::AcqRel);
        if old.is_null() {
            return false;
        }
        // SAFETY: it came from `Box::into_raw` in an earlier call, and the swap made it ours.
        retirer.retire(unsafe { Box::from_raw(old) });
        true
    }

    /// The object of that id, for the control thread.
    pub(crate) fn peek<'r>(&'r self, id: u32, retirer: &'r Retirer) -> Option<&'r T> {
        debug_assert_eq!(self.domain, &raw const *retirer.domain as usize);
        // SAFETY: objects are taken out and freed only through `&mut Retirer`, which this borrow of
        // the retirer excludes.
        unsafe { self.slot(id).load(Ordering::Acquire).as_ref() }
    }

    /// The largest number of objects.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask
    }
}

/// Prefetches the cache line at `address`, whatever is there.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching has no effect on memory, and every x86-64 can.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        let array = std::ptr::slice_from_raw_parts_mut(self.slots, self.mask as usize + 1);
        // SAFETY: made by `Box::into_raw` of a slice of this length in `new`.
        let slots = unsafe { Box::from_raw(array) };
        for slot in slots.iter().take(self.top.load(Ordering::Relaxed) as usize) {
            let object = slot.load(Ordering::Acquire);
            if !object.is_null() {
                // SAFETY: made by `Box::into_raw` in `replace`, and not taken out since.
                drop(unsafe { Box::from_raw(object) });
            }
        }
    }
}

/// An array of null pointers in memory that the kernel gives zeroed and only when touched.
#[cfg(not(loom))]
fn slots<T>(n: usize) -> Box<[AtomicPtr<T>]> {
    // SAFETY: an `AtomicPtr` of all-zero bytes is a null pointer.
    unsafe { Box::new_zeroed_slice(n).assume_init() }
}

#[cfg(loom)]
fn slots<T>(n: usize) -> Box<[AtomicPtr<T>]> {
    (0..n).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect()
}

/// The numbers of a slab: which are free, and which wait until no reader can use them any more.
pub(crate) struct Ids {
    next: u32,
    end: u32,
    free: Vec<u32>,
    leaving: VecDeque<(Stamp, u32)>,
}

impl Ids {
    /// The numbers below `end`.
    pub(crate) fn new(end: u32) -> Self {
        Self { next: 0, end, free: Vec::new(), leaving: VecDeque::new() }
    }

    /// A number that no object has and no reader remembers, and whether it was ever used before.
    /// `None` if there is none.
    pub(crate) fn take(&mut self, retirer: &Retirer) -> Option<(u32, bool)> {
        while self.leaving.front().is_some_and(|(stamp, _)| retirer.has_passed(*stamp)) {
            self.free.extend(self.leaving.pop_front().map(|(_, id)| id));
        }
        if let Some(id) = self.free.pop() {
            return Some((id, true));
        }
        let id = self.next;
        (id < self.end).then(|| {
            self.next += 1;
            (id, false)
        })
    }

    /// Gives a number back.
    pub(crate) fn give(&mut self, id: u32, retirer: &Retirer) {
        self.leaving.push_back((retirer.stamp(), id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32 as Count, Ordering::Relaxed};

    use super::*;

    /// Counts how many of its kind live.
    struct Alive(u32, Arc<Count>);

    impl Alive {
        fn new(value: u32, alive: &Arc<Count>) -> Self {
            alive.fetch_add(1, Relaxed);
            Self(value, alive.clone())
        }
    }

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0 = u32::MAX;
            self.1.fetch_sub(1, Relaxed);
        }
    }

    #[test]
    fn a_replaced_object_lives_until_every_reader_has_entered_again() {
        let (mut retirer, mut readers) = domain(3);
        let alive = Arc::new(Count::new(0));
        let slab = Slab::new(4, &retirer);
        assert!(!slab.replace(3, Some(Alive::new(1, &alive)), &mut retirer));
        let [first, second, _idle] = &mut readers[..] else { unreachable!() };
        let guard = first.enter();
        let old = slab.get(3, &guard).unwrap();
        assert!(slab.replace(3, Some(Alive::new(2, &alive)), &mut retirer));
        let _ = second.enter();
        retirer.reclaim();
        assert_eq!((old.0, alive.load(Relaxed), retirer.waiting()), (1, 2, 1));
        let _ = guard;
        let guard = first.enter();
        assert_eq!(slab.get(3, &guard).unwrap().0, 2);
        // The second reader has entered before, not since: what it would have read then is kept.
        retirer.reclaim();
        assert_eq!(alive.load(Relaxed), 2);
        second.idle();
        retirer.reclaim();
        assert_eq!((alive.load(Relaxed), retirer.waiting()), (1, 0));
        drop(slab);
        assert_eq!(alive.load(Relaxed), 0);
    }

    #[test]
    fn what_the_retirer_leaves_behind_is_freed_with_the_readers() {
        let (mut retirer, mut readers) = domain(1);
        let alive = Arc::new(Count::new(0));
        let slab = Slab::new(4, &retirer);
        slab.replace(0, Some(Alive::new(1, &alive)), &mut retirer);
        let guard = readers[0].enter();
        let object = slab.get(0, &guard).unwrap();
        slab.replace(0, None, &mut retirer);
        drop(retirer);
        assert_eq!((object.0, alive.load(Relaxed)), (1, 1));
        let _ = guard;
        drop(readers);
        assert_eq!(alive.load(Relaxed), 0);
    }

    #[test]
    fn ids_beyond_the_array_name_nothing() {
        let (mut retirer, mut readers) = domain(1);
        let slab = Slab::new(2, &retirer);
        (0..10).for_each(|id| assert!(!slab.replace(id, Some(id), &mut retirer)));
        let guard = readers[0].enter();
        let found: Vec<_> = (0..4).map(|id| slab.get(id, &guard).copied()).collect();
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
        assert_eq!(slab.get(u32::MAX, &guard), None);
        assert_eq!(slab.peek(u32::MAX, &retirer), None);
    }

    /// Under Miri and the thread sanitiser this finds what the assertions do not.
    #[test]
    fn readers_run_beside_the_writer() {
        let rounds = if cfg!(miri) { 30 } else { 20_000 };
        let (mut retirer, readers) = domain(2);
        let alive = Arc::new(Count::new(0));
        let slab = Slab::new(2, &retirer);
        slab.replace(0, Some(Alive::new(0, &alive)), &mut retirer);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for mut reader in readers {
                let (slab, done) = (&slab, &done);
                scope.spawn(move || {
                    let mut last = 0;
                    for round in 0.. {
                        let guard = reader.enter();
                        let object = slab.get(0, &guard).unwrap();
                        assert!(object.0 >= last && object.0 != u32::MAX);
                        last = object.0;
                        if round % 3 == 0 {
                            reader.idle();
                        }
                        if done.load(Relaxed) {
                            break;
                        }
                    }
                });
            }
            for value in 1..=rounds {
                slab.replace(0, Some(Alive::new(value, &alive)), &mut retirer);
                retirer.reclaim();
            }
            done.store(true, Relaxed);
        });
        retirer.reclaim();
        assert_eq!((alive.load(Relaxed), retirer.waiting()), (1, 0));
    }
}

/// `make loom`, which builds this file by itself.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// An object whose end is a write: loom reports a reader that does not happen before it. The memory
    /// itself is not given back, so that such a reader finds the object to complain about.
    struct Watched(std::sync::Arc<UnsafeCell<u32>>, Arc<()>);

    // SAFETY: that accesses to the cell do not race is what the models check.
    unsafe impl Send for Watched {}
    // SAFETY: as above.
    unsafe impl Sync for Watched {}

    impl Watched {
        /// The `Arc` is loom's: one that is never dropped is reported.
        fn new(value: u32) -> Self {
            Self(std::sync::Arc::new(UnsafeCell::new(value)), Arc::new(()))
        }

        fn value(&self) -> u32 {
            // SAFETY: as above.
            self.0.with(|value| unsafe { *value })
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            // SAFETY: as above.
            self.0.with_mut(|value| unsafe { *value = u32::MAX });
            let _ = &self.1;
            std::mem::forget(self.0.clone());
        }
    }

    /// Two bursts, the second after a pause or straight on, beside a replacement and a removal.
    fn beside_a_writer(pause: bool) {
        loom::model(move || {
            let (mut retirer, readers) = domain(1);
            let slab = Arc::new(Slab::new(1, &retirer));
            slab.replace(0, Some(Watched::new(1)), &mut retirer);
            let mut reader = readers.into_iter().next().unwrap();
            let theirs = slab.clone();
            let worker = thread::spawn(move || {
                let mut last = 0;
                for _ in 0..2 {
                    let guard = reader.enter();
                    if let Some(object) = theirs.get(0, &guard) {
                        let value = object.value();
                        assert!(value >= last && value <= 2);
                        last = value;
                        assert_eq!(object.value(), value);
                    }
                    let _ = guard;
                    if pause {
                        reader.idle();
                    }
                }
            });
            slab.replace(0, Some(Watched::new(2)), &mut retirer);
            retirer.reclaim();
            slab.replace(0, None, &mut retirer);
            retirer.reclaim();
            worker.join().unwrap();
            retirer.reclaim();
            assert_eq!(retirer.waiting(), 0);
        });
    }

    #[test]
    fn bursts_one_after_the_other() {
        beside_a_writer(false);
    }

    #[test]
    fn bursts_with_pauses() {
        beside_a_writer(true);
    }

    #[test]
    fn the_writer_leaves_first() {
        loom::model(|| {
            let (mut retirer, readers) = domain(1);
            let slab = Arc::new(Slab::new(1, &retirer));
            slab.replace(0, Some(Watched::new(1)), &mut retirer);
            let mut reader = readers.into_iter().next().unwrap();
            let theirs = slab.clone();
            let worker = thread::spawn(move || {
                let guard = reader.enter();
                if let Some(object) = theirs.get(0, &guard) {
                    assert_eq!(object.value(), 1);
                }
            });
            slab.replace(0, None, &mut retirer);
            drop(retirer);
            drop(slab);
            worker.join().unwrap();
        });
    }
}
