//! The stations of a bridge, or of a VXLAN, as the control thread has them beside the table of the workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use underpass_engine::in_kernel::region::Region;
use underpass_engine::l2::fdb::{EXTERNAL, Entry, Fdb, LOCAL, STATIC, Station, USER};
use underpass_engine::tables::LinkId;

use crate::Router;

/// The stations of a bridge, or of a VXLAN, whose entries have the number of another end in the place of a link.
#[derive(Debug, Default)]
pub(crate) struct Stations {
    /// What workers look up, and learn into.
    pub table: Arc<Fdb>,
    /// What of it listeners know.
    pub(super) known: BTreeMap<Station, Known>,
    /// Those that were added later have higher numbers.
    last: u64,
    /// [`Fdb::changes`] when the table was last read.
    pub(super) seen: u32,
    /// When it was last read, in milliseconds.
    pub(super) read: u64,
    /// What it had at each of its places then: most have that again, and a million are not looked up each time.
    places: Vec<Option<(LinkId, u8)>>,
}

/// What listeners know of a station.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub link: LinkId,
    pub flags: u8,
    number: u64,
}

impl Stations {
    /// None yet, in a table that programs in the kernel read, too, if there is memory that they share.
    pub(in crate::link) fn within(region: Option<&Region>) -> Self {
        Self { table: Arc::new(Fdb::within(region, 0)), ..Self::default() }
    }

    /// Puts an entry in, or another in its place; whether the table is another one now. `None`: there is no room.
    pub(super) fn put(&mut self, station: Station, entry: Entry) -> Option<bool> {
        let mut grown = self.table.is_full();
        if grown {
            self.make_again();
        }
        while !self.table.set(station, entry) {
            if grown || !self.table.gets_room() {
                return None;
            }
            self.make_again();
            grown = true;
        }
        // What was at its place is not what listeners know now.
        let place = self.table.place_of(station).and_then(|place| self.places.get_mut(place));
        place.into_iter().for_each(|seen| *seen = None);
        self.note(station, entry);
        Some(grown)
    }

    /// Listeners hear of an entry.
    fn note(&mut self, station: Station, entry: Entry) {
        self.last += 1;
        let number = self.known.get(&station).map_or(self.last, |known| known.number);
        self.known.insert(station, Known { link: entry.link, flags: entry.flags, number });
    }

    /// Puts a larger or a clean table in the place of this one.
    pub(super) fn make_again(&mut self) {
        self.table = Arc::new(self.table.again());
        self.places.clear();
    }

    /// Reads what workers have changed since: what listeners are to hear of, in the order in which it was heard, and what has not
    /// been heard for too long.
    pub(super) fn read(&mut self, now: u64, ageing: u64) -> (Vec<(Station, Entry)>, Vec<Station>) {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        self.table.follow_programs(now);
        self.places.resize(self.table.places(), None);
        for (place, station, entry) in self.table.by_place() {
            if entry.has_expired(now, ageing) && !entry.is(LOCAL) {
                old.push(station);
                continue;
            }
            let there = Some((entry.link, entry.flags));
            match self.places.get_mut(place) {
                Some(seen) if *seen == there => continue,
                Some(seen) => *seen = there,
                None => {}
            }
            let known = self.known.get(&station);
            if known.is_none_or(|known| (known.link, known.flags) != (entry.link, entry.flags)) {
                new.push((station, entry));
            }
        }
        new.sort_unstable_by_key(|(station, entry)| (entry.heard, *station));
        new.iter().for_each(|(station, entry)| self.note(*station, *entry));
        (new, old)
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, station: Station) {
        self.table.remove(station);
        self.known.remove(&station);
    }

    /// Those by a link, the last added first, as Linux lists them.
    pub(super) fn by(&self, link: LinkId) -> Vec<(Station, Entry)> {
        let mut found: Vec<_> = self.known.iter().filter(|(_, known)| known.link == link).collect();
        found.sort_unstable_by_key(|(_, known)| std::cmp::Reverse(known.number));
        found.into_iter().filter_map(|(station, _)| Some((*station, self.table.find(*station)?))).collect()
    }
}

/// How many stations a bridge has learned.
pub(in crate::link) fn count_learned(router: &Router, bridge: u32) -> u32 {
    let stations = router.stations.get(&bridge);
    let known = stations.iter().flat_map(|stations| stations.known.values());
    known.filter(|known| known.flags & (LOCAL | STATIC | USER | EXTERNAL) == 0).count() as u32
}
