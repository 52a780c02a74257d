use std::sync::atomic::Ordering::Acquire;

use super::*;
use crate::lpm::Arena;
use crate::publish;

impl<A: Address> Lpm<A> {
    /// What buckets say of an address, as programs read them. `None`: the trie is asked.
    pub(crate) fn bucket_says(&self, address: A) -> Option<Option<u32>> {
        let word = {
            let state = self.buckets.0.lock().unwrap_or_else(PoisonError::into_inner);
            let directory = &state.as_ref()?.directory;
            let home = directory.home(key_of(address));
            let words = (home..home + PROBES).map(|n| directory.words.word(n).load(Acquire));
            let mut words = words.take_while(|word| *word != 0);
            words.find(|word| (word >> 32) as u32 == key_of(address))?
        };
        let window = address.window(KEY);
        let bucket = (window >> 1 >> (63 - (word & 63))) as usize;
        let at = (word as u32 >> 6) as usize * WORDS + bucket * WORDS;
        let entries = (0..WORDS).map(|n| Entry(self.arena.word(at + n).load(Acquire)));
        let mut longest = Entry::EMPTY;
        for entry in entries {
            if entry == CROWDED {
                return None;
            }
            if entry != Entry::EMPTY && entry.matches(window) && entry.0 & 0xff >= longest.0 & 0xff {
                longest = entry;
            }
        }
        let mark = if longest.mark() == NONE { self.default() } else { longest.mark() };
        (longest.kind() == Kind::Leaf).then(|| mark.checked_sub(1))
    }

    /// Whether the group of an address has a crowded bucket, if it has a group.
    fn is_crowded(&self, address: A) -> Option<bool> {
        let state = self.buckets.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref()?.keys.get(&key_of(address)).map(|key| key.crowded)
    }
}

impl<A: Address> Edit<'_, A> {
    /// Has the table have buckets from now on.
    pub(crate) fn make_buckets(&mut self) {
        let new = self.new_buckets();
        *self.table.buckets.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }
}

/// Numbers, the same each time.
fn numbers() -> impl FnMut() -> u128 {
    let mut seed = 1u128;
    move || {
        seed = seed.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(0x5851_f42d);
        seed ^ seed >> 64
    }
}

/// A table with allocations of 32 bits, and routes of up to 48 below: nearly all of it is in buckets, and what is said of
/// it is what the trie says, also when half of it is gone.
#[test]
fn a_large_table_is_in_buckets() {
    if cfg!(miri) {
        return;
    }
    let mut number = numbers();
    let region = Region::of_heap(1 << 25);
    let (retirer, _readers) = publish::domain(1);
    let mut arena = Arena::within(&region, 21).unwrap();
    let table = Lpm::<u128>::new(&arena);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    let allocations: Vec<u128> = (0..800).map(|_| 0x2400 << 112 | number() >> 6 & !0 << 96).collect();
    let lens = [48, 48, 48, 44, 40, 36, 46, 32, 29, 64];
    let routes: Vec<(u128, u8)> = (0..20_000)
        .map(|n| {
            let below = number();
            let len = lens[below as usize % lens.len()];
            ((allocations[n % allocations.len()] | below >> 32).with_window(len, 0), len)
        })
        .collect();
    for (n, (prefix, len)) in routes.iter().enumerate() {
        edit.insert(*prefix, *len, n as u32);
        let shown = edit.table.root.word(FLAT).load(Relaxed) != 0;
        assert_eq!(shown, table.len() >= WORTH as usize, "with {} routes", table.len());
    }
    let mut check = |expected: usize| {
        let mut said = 0;
        for (prefix, len) in &routes {
            let address = prefix | number() >> len;
            if let Some(leaf) = table.bucket_says(address) {
                assert_eq!(leaf, table.peek_longest(address), "{address:x}");
                said += 1;
            }
        }
        assert!(said > expected, "of {} addresses {said}", routes.len());
    };
    check(19_900);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    // Some of the first 32 bits have no route any more.
    for (prefix, len) in &routes[..10_000] {
        edit.remove(*prefix, *len);
    }
    check(18_000);
}

/// More prefixes than a bucket holds, in a place that more buckets would not part: the trie is asked, until some go.
#[test]
fn a_crowded_bucket_sends_to_the_trie() {
    let (retirer, _readers) = publish::domain(1);
    let mut arena = Arena::new(20);
    let table = Lpm::<u128>::new(&arena);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    edit.make_buckets();
    let net = |n: u8| 0x2001_0db8_00aa << 80 | u128::from(n) << 64;
    for n in 0..9 {
        edit.insert(net(n), 64, n.into());
    }
    assert_eq!((table.is_crowded(net(0)), table.bucket_says(net(0))), (Some(true), None));
    // Elsewhere in the group it says that there is nothing.
    assert_eq!(table.bucket_says(0x2001_0db8_ff00 << 80), Some(None));
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    for n in 0..9 {
        // Those that come and go below 64 bits are the trie's all along.
        edit.insert(net(20) | 1, 128, 7);
        edit.remove(net(20) | 1, 128);
        if n < 8 {
            edit.remove(net(n), 64);
        }
    }
    assert_eq!((table.is_crowded(net(8)), table.bucket_says(net(8))), (Some(false), Some(Some(8))));
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    edit.insert(net(8) | 1, 128, 9);
    assert_eq!(table.bucket_says(net(8) | 1), None);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    edit.remove(net(8) | 1, 128);
    assert_eq!(table.bucket_says(net(8) | 1), Some(Some(8)));
}

/// Where most routes are longer than a bucket holds, programs ask the trie at once.
#[test]
fn a_table_of_hosts_is_not_asked_by_buckets() {
    if cfg!(miri) {
        return;
    }
    let region = Region::of_heap(1 << 25);
    let (retirer, _readers) = publish::domain(1);
    let mut arena = Arena::within(&region, 21).unwrap();
    let table = Lpm::<u128>::new(&arena);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    let (mut number, routes) = (numbers(), 2 * WORTH);
    let net = |n: u32| 0x2001 << 112 | u128::from(n) << 88;
    for n in 0..routes {
        edit.insert(net(n), 48, n);
    }
    let is_shown = || table.root.word(FLAT).load(Relaxed) != 0;
    assert!(is_shown());
    for n in 0..routes {
        edit.insert(net(n) | number() >> 48, 128, n);
    }
    assert!(!is_shown());
}
