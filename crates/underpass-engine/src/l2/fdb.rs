//! The forwarding database of a bridge: by which port a station is reached. Linux: `net/bridge/br_fdb.c`.
//!
//! One table of a fixed size, which workers look up and learn into without a lock: a slot is a pair of words, found by linear
//! probing. A key never leaves its slot while the table lives, and a slot that was given up is not used again, so that a station
//! is in one slot alone, whoever learns it. The control thread ages entries, and makes a larger or a clean table of a crowded one.
//!
//! ```text
//! key    1 | 000 | VLAN identifier (12) | MAC address (48)         0: free, 1: given up
//! entry  milliseconds when it was heard last (36) | flags (8) | link (20)         no flag PRESENT: about to be written
//! ```

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use underpass_packet::ethernet;

use crate::in_kernel::region::Region;
use crate::lpm::{Pages, Words};
use crate::publish::prefetch;
use crate::tables::LinkId;

/// Slots of the smallest table, and of the largest: one for a million stations in two VLANs each, as `bridge fdb add` puts them in.
const FEWEST: usize = 1 << 12;
const MOST: usize = 1 << 22;

/// Of fewer slots than these, a megabyte, at most one in [`SPACE`] is taken. What is not taken is not in the cache of a core and
/// costs nothing; a station that is not in its first slot costs a mispredicted branch.
const SPARSE: usize = 1 << 16;
const SPACE: usize = 8;

/// How many slots are looked at for a key. A station for which all of them are taken is not learned.
const PROBES: usize = 128;

/// How many tables are made, at the most, until one has room for all entries.
const TRIES: usize = 4;

/// From so many slots on, two megabytes, a table is not in the cache of a core.
const COLD: usize = 1 << 17;

/// By how many bits a folded product is moved onto itself, one after the other.
pub const SHIFTS: [u32; 2] = [32, 15];

/// For so many milliseconds a station counts as heard just now: less than the ticks of 10 ms in which Linux tells how long ago it was.
/// A power of two.
const JUST_NOW: u64 = 8;

const USED: u64 = 1 << 63;
const GIVEN_UP: u64 = 1;

const LINK: u64 = (1 << 20) - 1;
const FLAGS: u32 = 20;
const HEARD: u32 = 28;
const LAST: u64 = (1 << 36) - 1;
const PRESENT: u64 = 1 << 27;

/// An entry of its own of the bridge: what is for it comes in by the bridge. Linux: `BR_FDB_LOCAL`.
pub const LOCAL: u8 = 1;
/// An entry that does not age: `BR_FDB_STATIC`.
pub const STATIC: u8 = 2;
/// One that a request has made: `BR_FDB_ADDED_BY_USER`.
pub const USER: u8 = 4;
/// One that stays at its port: `BR_FDB_STICKY`.
pub const STICKY: u8 = 8;
/// One that another program keeps: `BR_FDB_ADDED_BY_EXT_LEARN`.
pub const EXTERNAL: u8 = 16;

/// A station in a VLAN; 0 where the bridge does not filter VLANs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Station(u64);

impl Station {
    /// That of a MAC address and a VLAN identifier, below 4,096.
    #[inline(always)]
    pub const fn new(mac: [u8; 6], vlan: u16) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self(USED | ((vlan & 0x0fff) as u64) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Destination and source of a frame, in no VLAN.
    #[inline(always)]
    pub fn of_frame(frame: &[u8]) -> Option<[Self; 2]> {
        const MAC: u64 = (1 << 48) - 1;
        let header = frame.first_chunk::<{ ethernet::Header::LEN }>()?;
        let [destination, source] =
            [header.first_chunk()?, header[4..].first_chunk()?].map(|bytes| u64::from_be_bytes(*bytes));
        Some([Self(USED | destination >> 16), Self(USED | source & MAC)])
    }

    /// Whether its address is a group's.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0 >> 40 & 1 != 0
    }

    /// Its MAC address.
    pub const fn mac(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Its VLAN identifier.
    pub const fn vlan(self) -> u16 {
        (self.0 >> 48) as u16 & 0x0fff
    }
}

/// What is known of a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The port by which it is reached; of an entry of the bridge itself the bridge.
    pub link: LinkId,
    /// [`LOCAL`], [`STATIC`] and the others.
    pub flags: u8,
    /// When it was heard last, in milliseconds.
    pub heard: u64,
}

impl Entry {
    const fn pack(self) -> u64 {
        (self.heard & LAST) << HEARD
            | PRESENT
            | ((self.flags & 0x7f) as u64) << FLAGS
            | self.link.0 as u64 & LINK
    }

    #[inline(always)]
    const fn unpack(word: u64) -> Option<Self> {
        if word & PRESENT == 0 {
            return None;
        }
        let flags = (word >> FLAGS) as u8 & 0x7f;
        Some(Self { link: LinkId((word & LINK) as u32), flags, heard: word >> HEARD })
    }

    /// Whether any of these flags is set.
    #[inline(always)]
    pub const fn is(self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Whether it has not been heard for so many milliseconds. Linux: `has_expired`.
    #[inline(always)]
    pub const fn has_expired(self, now: u64, ageing: u64) -> bool {
        !self.is(STATIC | EXTERNAL) && (now & LAST).saturating_sub(self.heard) >= ageing
    }
}

/// What an entry is compared with, as it is stored: that of a station that is heard now at a port.
#[derive(Clone, Copy)]
pub(crate) struct Hearing(u64);

impl Hearing {
    pub(crate) const fn new(link: LinkId, now: u64) -> Self {
        Self(Entry { link, flags: 0, heard: now }.pack())
    }

    /// Whether a stored entry is of this port, and was heard just now, whatever flags it has.
    #[inline(always)]
    const fn is_of(self, word: u64) -> bool {
        // All but the lowest bits of the time that has passed is 0.
        self.0.wrapping_sub(word & !(0x7f << FLAGS)) & !((JUST_NOW - 1) << HEARD) == 0
    }
}

/// What a stored entry is compared with to see whether it leads anywhere: the first moment of which none has expired.
#[derive(Clone, Copy)]
pub(crate) struct Fresh(u64);

impl Fresh {
    /// Entries that have been heard less than so many milliseconds ago are fresh.
    pub(crate) const fn new(now: u64, ageing: u64) -> Self {
        Self(((now & LAST) + 1).saturating_sub(ageing) << HEARD)
    }

    /// The port to which a stored entry leads; `None` if there is none, or if it is the bridge's own.
    #[inline(always)]
    fn port_of(self, word: u64) -> Option<LinkId> {
        const OTHERS: u64 = PRESENT | (LOCAL as u64) << FLAGS;
        let stays = word & ((STATIC | EXTERNAL) as u64) << FLAGS != 0;
        (word & OTHERS == PRESENT && (word >= self.0 || stays)).then_some(LinkId((word & LINK) as u32))
    }
}

/// Has memory there before a program writes into it, whose bytes would be lost, and before one looks a station up.
fn touch(heard: &Words<AtomicU8>, slots: &Words<Slot>) {
    const PAGE: usize = 4096;
    (0..heard.len()).step_by(PAGE).for_each(|at| heard.word(at).store(0, Relaxed));
    if slots.len() < COLD {
        let step = PAGE / size_of::<Slot>();
        (0..slots.len()).step_by(step).for_each(|at| slots.word(at)[KEY].store(0, Relaxed));
    }
}

/// A key, and the entry of its station.
type Slot = [AtomicU64; 2];
const KEY: usize = 0;
const ENTRY: usize = 1;

/// The stations of a bridge.
pub struct Fdb {
    slots: Words<Slot>,
    /// Of the hash, odd, so that nobody outside can choose addresses that collide.
    factor: u64,
    /// Slots that are not free.
    taken: AtomicU32,
    /// Moves on whenever a station is learned or moves to another port.
    changes: AtomicU32,
    /// Where programs in the kernel find the table, if they do.
    shared: Option<Shared>,
}

/// What programs in the kernel have of a table.
struct Shared {
    /// The memory that the slots are in.
    region: Region,
    /// By slot, not 0 if a program has heard the station since the control thread last looked. They write into it once a second,
    /// and into no entry, which a worker may be about to change.
    heard: Words<AtomicU8>,
}

/// Where programs in the kernel find a table, in the region that they share with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InKernel {
    /// The slots, each of two words.
    pub slots: u32,
    /// How many there are, less 1.
    pub mask: u32,
    /// What a key is multiplied by. The place of its slot is the upper half of the product and the lower, by exclusive or, and that
    /// and itself moved to the right by [`SHIFTS`].
    pub factor: u64,
    /// A byte for each slot: whether its station was heard.
    pub heard: u32,
}

/// In the first word of a slot that is taken, with the VLAN and the MAC address.
pub const KEY_USED: u64 = USED;
/// In the second word: it leads somewhere; to the bridge itself; to which link.
pub const ENTRY_PRESENT: u32 = PRESENT as u32;
/// See [`ENTRY_PRESENT`].
pub const ENTRY_LOCAL: u32 = (LOCAL as u32) << FLAGS;
/// See [`ENTRY_PRESENT`].
pub const ENTRY_LINK: u32 = LINK as u32;

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fdb({} of {})", self.taken.load(Relaxed), self.slots.len())
    }
}

impl Default for Fdb {
    fn default() -> Self {
        Self::for_stations(0)
    }
}

impl Fdb {
    /// An empty one with room for so many, and half as many more at least.
    pub fn for_stations(count: usize) -> Self {
        Self::within(None, count)
    }

    /// The same, which programs in the kernel read, too, if there is a region and it has room.
    pub fn within(region: Option<&Region>, count: usize) -> Self {
        let sparse = count.saturating_mul(SPACE / 2 * 3).min(SPARSE);
        let slots = count.saturating_mul(4).max(sparse).clamp(FEWEST, MOST).next_power_of_two();
        let bits = slots.trailing_zeros();
        let within = |region: &Region| {
            let (heard, slots) = (Words::within(region, bits)?, Words::within(region, bits)?);
            touch(&heard, &slots);
            Some((slots, Shared { region: region.clone(), heard }))
        };
        let (slots, shared) = match region.and_then(within) {
            Some((slots, shared)) => (slots, Some(shared)),
            None => (Words::exactly(bits, Pages::Small), None),
        };
        let factor = RandomState::new().hash_one(bits) | 1;
        Self { slots, factor, taken: AtomicU32::new(0), changes: AtomicU32::new(0), shared }
    }

    /// Where programs in the kernel find it. `None`: they do not.
    pub(crate) fn in_kernel(&self) -> Option<InKernel> {
        let heard = self.shared.as_ref()?.heard.offset();
        let mask = self.slots.len() as u32 - 1;
        Some(InKernel { slots: self.slots.offset(), mask, factor: self.factor, heard })
    }

    /// Takes up which stations programs in the kernel have heard since this was last called.
    pub fn follow_programs(&self, now: u64) {
        let Some(Shared { heard, .. }) = &self.shared else { return };
        for place in 0..heard.len() {
            if heard.word(place).load(Relaxed) == 0 {
                continue;
            }
            heard.word(place).store(0, Relaxed);
            let slot = self.slots.word(place);
            let word = slot[ENTRY].load(Acquire);
            if let Some(entry) = Entry::unpack(word).filter(|entry| entry.heard < now) {
                // Where a worker has heard it meanwhile, that is what holds.
                let _ = slot[ENTRY].compare_exchange(
                    word,
                    Entry { heard: now, ..entry }.pack(),
                    Release,
                    Relaxed,
                );
            }
        }
    }

    /// A number that moves on whenever a station is learned or moves to another port.
    pub fn changes(&self) -> u32 {
        self.changes.load(Relaxed)
    }

    /// Whether a larger one should take its place, made by [`Fdb::again`].
    pub fn is_full(&self) -> bool {
        let slots = self.slots.len();
        let room = if slots < SPARSE { slots / SPACE } else { slots / 2 };
        slots < MOST && self.taken.load(Relaxed) as usize > room
    }

    /// Whether another one should take its place: a larger one, or one without the slots that were given up.
    pub fn is_crowded(&self) -> bool {
        let taken = self.taken.load(Relaxed) as usize;
        self.is_full() || taken > self.slots.len() / 2 && self.iter().count() < taken / 2
    }

    /// Whether [`Fdb::again`] makes one with more room.
    pub fn gets_room(&self) -> bool {
        self.slots.len() < MOST || self.iter().count() < MOST / 2
    }

    /// Another one with the same entries, and room.
    pub fn again(&self) -> Self {
        let entries: Vec<_> = self.iter().collect();
        let region = self.shared.as_ref().map(|shared| &shared.region);
        // With another seed the few that had no room in the largest have it.
        for _ in 0..TRIES {
            let again = Self::within(region, entries.len());
            if entries.iter().all(|(station, entry)| again.set(*station, *entry)) {
                return again;
            }
        }
        let again = Self::within(region, entries.len());
        entries.iter().for_each(|(station, entry)| _ = again.set(*station, *entry));
        again
    }

    #[inline(always)]
    fn place(&self, station: Station) -> usize {
        // Neither half of the product alone, nor the lower bits of both, keep addresses apart that follow each other, whatever the
        // factor is: those of a vendor would fill many slots in a row.
        let product = u128::from(station.0) * u128::from(self.factor);
        let folded = product as u64 ^ (product >> 64) as u64;
        SHIFTS.into_iter().fold(folded, |folded, shift| folded ^ folded >> shift) as usize
    }

    /// The slot of a station, and how far from its first place that is, from so many places on.
    #[inline(never)]
    fn probe_from(&self, first: usize, place: usize, station: Station) -> Option<(usize, &Slot)> {
        for step in first..PROBES {
            let slot = self.slots.word(place.wrapping_add(step));
            match slot[KEY].load(Acquire) {
                key if key == station.0 => return Some((step, slot)),
                0 => return None,
                _ => {}
            }
        }
        None
    }

    #[inline(always)]
    fn slot(&self, station: Station) -> Option<&Slot> {
        // That of most is the first.
        let place = self.place(station);
        let slot = self.slots.word(place);
        match slot[KEY].load(Acquire) {
            key if key == station.0 => Some(slot),
            0 => None,
            _ => self.probe_from(1, place, station).map(|(_, slot)| slot),
        }
    }

    /// What is known of a station.
    #[inline(always)]
    pub fn find(&self, station: Station) -> Option<Entry> {
        Entry::unpack(self.slot(station)?[ENTRY].load(Acquire))
    }

    /// Whether the table is too large for the cache.
    #[inline(always)]
    pub(crate) fn is_cold(&self) -> bool {
        self.slots.len() >= COLD
    }

    /// Has the slot of a station at hand soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self, station: Station) {
        prefetch(self.slots.word(self.place(station)));
    }

    /// A station was heard at a port. Linux: `br_fdb_update`.
    #[inline(always)]
    pub(crate) fn hear(&self, station: Station, link: LinkId, now: u64) {
        let Some(slot) = self.slot(station) else { return self.learn(station, link, now) };
        let word = slot[ENTRY].load(Acquire);
        // Of most frames this is all.
        if !Hearing::new(link, now).is_of(word) {
            self.hear_again(slot, word, link, now);
        }
    }

    /// Whether a station was heard just now at the port where it is heard again, so that [`Fdb::hear`] has nothing to do.
    #[inline(always)]
    pub(crate) fn was_heard(&self, station: Station, hearing: Hearing) -> bool {
        self.slot(station).is_some_and(|slot| hearing.is_of(slot[ENTRY].load(Acquire)))
    }

    /// The port of another station, if that is known.
    #[inline(always)]
    pub(crate) fn port_of(&self, station: Station, fresh: Fresh) -> Option<LinkId> {
        fresh.port_of(self.slot(station)?[ENTRY].load(Acquire))
    }

    #[inline(never)]
    fn hear_again(&self, slot: &Slot, word: u64, link: LinkId, now: u64) {
        let Some(mut entry) = Entry::unpack(word).filter(|entry| !entry.is(LOCAL)) else { return };
        entry.heard = now;
        if entry.link != link && !entry.is(STICKY) {
            entry.link = link;
            entry.flags &= !EXTERNAL;
            self.changes.fetch_add(1, Relaxed);
        }
        // Where the control thread has changed it meanwhile, that is what holds.
        let _ = slot[ENTRY].compare_exchange(word, entry.pack(), Release, Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn learn(&self, station: Station, link: LinkId, now: u64) {
        if self.taken.load(Relaxed) as usize <= self.slots.len() / 4 * 3
            && let Some(slot) = self.take(station)
        {
            let entry = Entry { link, flags: 0, heard: now }.pack();
            let _ = slot[ENTRY].compare_exchange(0, entry, Release, Relaxed);
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// The slot of a station, which gets one if it has none. `None`: there is no room.
    fn take(&self, station: Station) -> Option<&Slot> {
        let place = self.place(station);
        for step in 0..PROBES {
            let slot = self.slots.word(place.wrapping_add(step));
            let mut key = slot[KEY].load(Acquire);
            if key == 0 {
                match slot[KEY].compare_exchange(0, station.0, Release, Acquire) {
                    Ok(_) => {
                        self.taken.fetch_add(1, Relaxed);
                        return Some(slot);
                    }
                    Err(other) => key = other,
                }
            }
            if key == station.0 {
                return Some(slot);
            }
        }
        None
    }

    /// Puts an entry in, or another in its place. Whether there is room.
    pub fn set(&self, station: Station, entry: Entry) -> bool {
        self.take(station).map(|slot| slot[ENTRY].store(entry.pack(), Release)).is_some()
    }

    /// Takes an entry out.
    pub fn remove(&self, station: Station) {
        if let Some(slot) = self.slot(station) {
            slot[ENTRY].store(0, Release);
            slot[KEY].store(GIVEN_UP, Release);
        }
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (Station, Entry)> + '_ {
        self.by_place().map(|(_, station, entry)| (station, entry))
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// The place of a station, if it has one.
    pub fn place_of(&self, station: Station) -> Option<usize> {
        let place = self.place(station);
        let (step, _) = self.probe_from(0, place, station)?;
        Some(place.wrapping_add(step) & (self.slots.len() - 1))
    }

    /// All entries, each with its place, at which no other station ever is.
    pub fn by_place(&self) -> impl Iterator<Item = (usize, Station, Entry)> + '_ {
        (0..self.slots.len()).filter_map(|place| {
            let slot = self.slots.word(place);
            let key = slot[KEY].load(Acquire);
            let entry = Entry::unpack(slot[ENTRY].load(Acquire))?;
            (key & USED != 0).then_some((place, Station(key), entry))
        })
    }
}

#[cfg(test)]
mod tests;
