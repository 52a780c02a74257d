use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn station(n: u32) -> Station {
    let [a, b, c, d] = n.to_be_bytes();
    Station::new([2, 0, a, b, c, d], (n % 7) as u16)
}

#[test]
fn what_is_put_in_is_found() {
    let fdb = Fdb::default();
    assert_eq!((station(5).mac(), station(5).vlan()), ([2, 0, 0, 0, 0, 5], 5));
    let [to, from] =
        Station::of_frame(&[1, 2, 3, 4, 5, 6, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 8, 0]).unwrap();
    assert_eq!((to, to.is_group()), (Station::new([1, 2, 3, 4, 5, 6], 0), true));
    assert_eq!((from, from.is_group()), (Station::new([0x10, 0x20, 0x30, 0x40, 0x50, 0x60], 0), false));
    for n in 0..2000 {
        fdb.hear(station(n), LinkId(n % 3), u64::from(n));
    }
    fdb.remove(station(7));
    fdb.hear(station(8), LinkId(9), 5000);
    for n in 0..2000 {
        let found = fdb.find(station(n)).map(|entry| (entry.link.0, entry.heard));
        let expected = (n % 3, u64::from(n));
        assert_eq!(
            found,
            match n {
                7 => None,
                8 => Some((9, 5000)),
                _ => Some(expected),
            },
            "{n}"
        );
    }
    assert_eq!(fdb.find(station(2001)), None);
    assert_eq!(fdb.iter().count(), 1999);
    let again = fdb.again();
    assert!(again.iter().count() == 1999 && again.find(station(1999)) == fdb.find(station(1999)));
}

#[test]
fn entries_of_the_control_stay() {
    let fdb = Fdb::default();
    let entry = |flags| Entry { link: LinkId(1), flags, heard: 0 };
    for (n, flags) in [(1, LOCAL | STATIC), (2, STATIC), (3, STATIC | STICKY), (4, EXTERNAL)] {
        assert!(fdb.set(station(n), entry(flags)));
        fdb.hear(station(n), LinkId(2), 1000);
    }
    let found = |n| fdb.find(station(n)).map(|entry| (entry.link.0, entry.flags, entry.heard));
    assert_eq!(found(1), Some((1, LOCAL | STATIC, 0)));
    assert_eq!(found(2), Some((2, STATIC, 1000)));
    assert_eq!(found(3), Some((1, STATIC | STICKY, 1000)));
    assert_eq!(found(4), Some((2, 0, 1000)));
    assert!(!entry(STATIC).has_expired(1 << 40, 10) && !entry(EXTERNAL).has_expired(1 << 35, 10));
    assert!(entry(0).has_expired(10, 10) && !entry(0).has_expired(9, 10));
}

proptest! {
    /// What is compared as it is stored is what the entry says.
    #[test]
    fn stored_entries_are_compared_as_they_are(
        (link, at) in (0..3_u32, 0..3_u32), flags in 0..=0x7f_u8, base in 0..LAST, passed in -3..40_i64, ageing in 1..30_u64,
    ) {
        let now = base.wrapping_add_signed(passed) & LAST;
        let entry = Entry { link: LinkId(link), flags, heard: base };
        let expected = link == at && (0..JUST_NOW as i64).contains(&passed);
        prop_assert_eq!(Hearing::new(LinkId(at), now).is_of(entry.pack()), expected);
        let leads = !entry.is(LOCAL) && !entry.has_expired(now, ageing);
        prop_assert_eq!(Fresh::new(now, ageing).port_of(entry.pack()), leads.then_some(entry.link));
        prop_assert!(!Hearing::new(LinkId(at), now).is_of(0) && Fresh::new(now, ageing).port_of(0).is_none());
    }
}

#[test]
fn a_million_stations_have_room() {
    let fdb = Fdb::for_stations(1_000_000);
    let count = if cfg!(miri) { 1000 } else { 1_000_000 };
    (0..count).for_each(|n| fdb.hear(station(n), LinkId(n & 1), 1));
    assert!((0..count).all(|n| fdb.find(station(n)).is_some_and(|entry| entry.link.0 == n & 1)));
    // A small one learns what it has room for.
    let small = Fdb::default();
    (0..10_000).for_each(|n| small.hear(station(n), LinkId(0), 1));
    assert!(small.is_crowded() && small.iter().count() > 3000);
    assert!(!small.again().is_crowded());
}

/// Each time that it is made again it has room for as many more.
#[test]
fn a_table_grows_seldom() {
    let (mut fdb, mut again) = (Fdb::default(), Vec::new());
    for n in 0..if cfg!(miri) { 2000 } else { 300_000 } {
        if fdb.is_full() {
            fdb = fdb.again();
            again.push(n);
            assert!(!fdb.is_full(), "{again:?}");
        }
        assert!(fdb.set(station(n), Entry { link: LinkId(1), flags: 0, heard: 0 }));
    }
    assert!(again.windows(2).all(|two| two[1] + 1 >= two[0] * 2), "{again:?}");
    assert!(!again.is_empty() && fdb.find(station(0)).is_some());
}

/// Nor is it made again each time that a station goes and another one comes.
#[test]
fn stations_come_and_go() {
    let entry = Entry { link: LinkId(1), flags: 0, heard: 0 };
    for count in [511, 512, 682, 1024, 2048, 2730, 4096] {
        let mut fdb = Fdb::for_stations(count);
        (0..count as u32).for_each(|n| assert!(fdb.set(station(n), entry)));
        let mut again = 0;
        for n in 0..1000 {
            fdb.remove(station(n));
            if fdb.is_full() {
                fdb = fdb.again();
                again += 1;
            }
            assert!(fdb.set(station(n + count as u32), entry));
        }
        assert!(again <= 1000 / (count / 3) + 1, "{count}: {again}");
        assert_eq!(fdb.iter().count(), count);
    }
}

/// A vendor's addresses follow each other, and are as far from each other in the table as any.
#[test]
fn stations_that_follow_each_other_have_room() {
    let count = if cfg!(miri) { 1000 } else { 1_000_000 };
    let station = |n: u32| {
        let [_, a, b, c] = (n / 2).to_be_bytes();
        Station::new([2, 0xb0 | n as u8 & 1, 0, a, b, c], 0)
    };
    let entry = Entry { link: LinkId(1), flags: STATIC, heard: 0 };
    let mut fdb = Fdb::for_stations(count as usize);
    for _ in 0..4 {
        assert!((0..count).all(|n| fdb.set(station(n), entry)));
        fdb = fdb.again();
        assert_eq!(fdb.iter().count(), count as usize);
        let mut places = fdb.by_place();
        assert!(places.all(|(place, station, _)| fdb.place_of(station) == Some(place)));
    }
}

#[test]
fn workers_learn_each_station_once() {
    let fdb = Arc::new(Fdb::default());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let fdb = &fdb;
            scope.spawn(move || (0..1000).for_each(|n| fdb.hear(station(n), LinkId(worker), 1)));
        }
    });
    let mut stations: Vec<_> = fdb.iter().map(|(station, _)| station).collect();
    stations.sort_unstable();
    stations.dedup();
    assert_eq!((stations.len(), fdb.iter().count()), (1000, 1000));
}
