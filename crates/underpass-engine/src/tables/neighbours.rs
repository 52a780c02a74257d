//! Neighbours as bridges need them that answer for these: by link and address. What packets are sent to is a
//! [`NextHop`](super::NextHop).
//!
//! A table of a fixed number of buckets, each of which is replaced as a whole: one is few entries, even of a million neighbours.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

use super::{Guard, LinkId, Tables, Writer};
use crate::publish::{Retirer, Slab};

/// Buckets, as a power of two; the slab has no last one.
const BITS: u32 = 16;

/// What is known of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// Whether it is a router: `NTF_ROUTER`.
    pub router: bool,
}

type Key = (LinkId, IpAddr);
type Bucket = Box<[(Key, Neighbour)]>;

/// The neighbours on bridges, and on VLAN devices above them.
pub(super) struct Neighbours {
    buckets: Slab<Bucket>,
    hasher: RandomState,
}

impl Neighbours {
    pub(super) fn new(retirer: &Retirer) -> Self {
        Self { buckets: Slab::new(BITS, retirer), hasher: RandomState::new() }
    }

    fn bucket(&self, key: Key) -> u32 {
        (self.hasher.hash_one(key) % ((1 << BITS) - 1)) as u32
    }
}

impl Tables {
    /// The neighbour with this address on a bridge, or on a VLAN device above one, if its link-layer address may be used.
    #[cold]
    pub(crate) fn neighbour(&self, link: LinkId, address: IpAddr, guard: &Guard<'_>) -> Option<Neighbour> {
        let key = (link, address);
        let bucket = self.neighbours.buckets.get(self.neighbours.bucket(key), guard)?;
        bucket.iter().find(|(other, _)| *other == key).map(|(_, neighbour)| *neighbour)
    }
}

impl Writer {
    /// Says what is known of the neighbour with this address on a link; `None`: nothing.
    pub fn set_neighbour(&mut self, link: LinkId, address: IpAddr, neighbour: Option<Neighbour>) {
        let (neighbours, key) = (&self.tables.neighbours, (link, address));
        let place = neighbours.bucket(key);
        let old = neighbours.buckets.peek(place, &self.retirer).map_or(&[][..], |bucket| bucket);
        let others = old.iter().filter(|(other, _)| *other != key).copied();
        let bucket: Bucket = others.chain(neighbour.map(|neighbour| (key, neighbour))).collect();
        if *old != *bucket {
            let bucket = Some(bucket).filter(|bucket| !bucket.is_empty());
            neighbours.buckets.replace(place, bucket, &mut self.retirer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many that buckets have several.
    #[test]
    fn neighbours_come_and_go_one_by_one() {
        let (mut writer, tables, mut readers) = Writer::new(1);
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let neighbour = |n: u32| Neighbour { mac: [2, 0, 0, 0, 0, n as u8], router: n.is_multiple_of(2) };
        let count = 1 << (BITS + 1);
        (0..count).for_each(|n| writer.set_neighbour(LinkId(n % 3), address(n), Some(neighbour(n))));
        (0..count).step_by(5).for_each(|n| writer.set_neighbour(LinkId(n % 3), address(n), None));
        (1..count)
            .step_by(5)
            .for_each(|n| writer.set_neighbour(LinkId(n % 3), address(n), Some(neighbour(0))));
        let guard = readers[0].enter();
        for n in 0..count {
            let there = match n % 5 {
                0 => None,
                1 => Some(neighbour(0)),
                _ => Some(neighbour(n)),
            };
            assert_eq!(tables.neighbour(LinkId(n % 3), address(n), &guard), there, "{n}");
            assert_eq!(tables.neighbour(LinkId(n % 3 + 1), address(n), &guard), None, "{n}");
        }
        let _ = guard;
        readers[0].idle();
        (0..count).for_each(|n| writer.set_neighbour(LinkId(n % 3), address(n), None));
        writer.reclaim();
        assert_eq!(writer.waiting(), 0);
    }
}
