use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::publish;

/// A route of the model: the bits of the prefix, left-aligned in 128, and its length.
type Routes = BTreeMap<(u8, [u64; 2]), u32>;

/// The longest match by trying every length.
fn model<A: Address>(routes: &Routes, address: A) -> Option<u32> {
    (0..=A::BITS).rev().find_map(|len| routes.get(&(len, address.with_window(len, 0).halves())).copied())
}

/// Most steps of a history: few where an interpreter runs them.
const STEPS: usize = if cfg!(miri) { 8 } else { 60 };

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step<A> {
    Insert(A, u8, u32),
    Remove(A, u8),
    /// Of the n-th route that is there.
    RemoveNth(prop::sample::Index),
}

/// Addresses that share prefixes of all lengths: a few bits of a fixed pattern are flipped.
fn address4() -> impl Strategy<Value = u32> {
    prop_oneof![
        prop::collection::vec(0u32..32, 0..4)
            .prop_map(|flips| flips.iter().fold(0x0a0a_5500, |address, bit| address ^ 1 << bit)),
        any::<u32>(),
    ]
}

fn address6() -> impl Strategy<Value = u128> {
    prop_oneof![
        prop::collection::vec(0u32..128, 0..4).prop_map(|flips| flips
            .iter()
            .fold(0x2001_0db8_0a0a_5500_0000_0000_0000_0001, |address, bit| address ^ 1 << bit)),
        any::<u128>(),
    ]
}

fn step<A: Address + std::fmt::Debug>(
    address: impl Strategy<Value = A> + Clone,
) -> impl Strategy<Value = Step<A>> {
    let len = prop_oneof![0..=A::BITS, Just(A::BITS), Just(0), (0..=A::BITS / 8).prop_map(|n| n * 8)];
    prop_oneof![
        3 => (address.clone(), len.clone(), prop_oneof![0..=MAX_LEAF, 0u32..100, 0x7ff0u32..0x8010]).prop_map(|(a, l, leaf)| Step::Insert(a, l, leaf)),
        1 => (address, len).prop_map(|(a, l)| Step::Remove(a, l)),
        2 => any::<prop::sample::Index>().prop_map(Step::RemoveNth),
    ]
}

/// Takes a table and the model through a history, and compares them after each step. Before the step
/// `flat` the table is laid out flat, or has buckets, if there is such a step.
fn check<A: Address + std::fmt::Debug>(steps: Vec<Step<A>>, probes: Vec<A>, flat: usize) {
    let (retirer, mut readers) = publish::domain(1);
    let mut arena = Arena::new(20);
    let table = Lpm::<A>::new(&arena);
    let mut routes = Routes::new();
    for (n, step) in steps.into_iter().enumerate() {
        if n == flat {
            let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
            if A::BITS == 32 { edit.lay_out_flat() } else { edit.make_buckets() }
        }
        let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
        match step {
            Step::Insert(address, len, leaf) => {
                let key = (len, address.with_window(len, 0).halves());
                assert_eq!(edit.insert(address, len, leaf), routes.insert(key, leaf));
                assert_eq!(table.peek_exact(address, len), Some(leaf));
            }
            Step::Remove(address, len) => {
                let key = (len, address.with_window(len, 0).halves());
                assert_eq!(edit.remove(address, len), routes.remove(&key));
            }
            Step::RemoveNth(index) => {
                if routes.is_empty() {
                    continue;
                }
                let key = *routes.keys().nth(index.index(routes.len())).unwrap();
                assert_eq!(edit.remove(A::from_halves(key.1), key.0), routes.remove(&key));
                assert_eq!(table.peek_exact(A::from_halves(key.1), key.0), None);
            }
        }
        assert_eq!(table.len(), routes.len());
        let guard = readers[0].enter();
        // The probes, and both ends of every prefix with their neighbours outside.
        let ends: Vec<A> =
            routes.keys().flat_map(|(len, first)| around(*len, A::from_halves(*first))).collect();
        let all: Vec<A> = probes.iter().chain(&ends).copied().collect();
        for chunk in all.chunks(64) {
            let mut leaves = [7; 64];
            table.lookup_batch(chunk, &mut leaves, &guard);
            for (address, leaf) in chunk.iter().zip(leaves) {
                let expected = model(&routes, *address);
                assert_eq!(table.lookup(*address, &guard), expected, "{address:x?} in {routes:x?}");
                assert_eq!(leaf, expected.unwrap_or(crate::lpm::NO_LEAF), "{address:x?}, in a batch");
                if let Some(layout) = table.whole_layout() {
                    assert_eq!(layout.leaf(&table, *address), expected, "{address:x?}, laid out flat");
                }
                if let Some(leaf) = table.bucket_says(*address) {
                    assert_eq!(leaf, expected, "{address:x?}, in a bucket, of {routes:x?}");
                }
            }
        }
        for ((len, first), leaf) in &routes {
            assert_eq!(table.peek_exact(A::from_halves(*first), *len), Some(*leaf));
        }
    }
    // Everything removed, nothing is left behind.
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    for (len, first) in routes.into_keys() {
        assert!(edit.remove(A::from_halves(first), len).is_some());
    }
    assert_eq!(arena.used(), 0);
    assert!(table.blocks().is_empty());
}

/// The first and the last address of a prefix, and those before and behind it.
fn around<A: Address>(len: u8, first: A) -> Vec<A> {
    let [high, low] = first.halves();
    let first = u128::from(high) << 64 | u128::from(low);
    let last = first | u128::MAX.checked_shr(len.into()).unwrap_or(0);
    let unit = 1u128 << (128 - A::BITS);
    [first, last, first.wrapping_sub(unit), last.wrapping_add(1)]
        .map(|bits| A::from_halves([(bits >> 64) as u64, bits as u64]))
        .into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    #[test]
    fn a_random_history_of_ipv4(
        steps in prop::collection::vec(step(address4().boxed()), 0..STEPS),
        probes in prop::collection::vec(address4(), 0..20),
    ) {
        check(steps, probes, usize::MAX);
    }

    #[test]
    fn a_random_history_of_ipv6(
        steps in prop::collection::vec(step(address6().boxed()), 0..STEPS),
        probes in prop::collection::vec(address6(), 0..20),
    ) {
        check(steps, probes, usize::MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 0 } else { 32 }))]

    /// Few cases: each lays sixteen million slots out.
    #[test]
    fn a_random_history_of_ipv4_laid_out_flat(
        steps in prop::collection::vec(step(address4().boxed()), 0..120),
        probes in prop::collection::vec(address4(), 0..20),
        flat in 0usize..60,
    ) {
        check(steps, probes, flat);
    }
}

/// Addresses of which some have their first 32 bits in common, and differ behind them in a few places or in many.
fn near6() -> impl Strategy<Value = u128> {
    const NEAR: u128 = 0x2001_0db8 << 96;
    prop_oneof![
        3 => (0u128..256, 0u128..4).prop_map(|(net, host)| NEAR | net << 88 | net << 64 | host),
        2 => any::<u128>().prop_map(|bits| NEAR | bits >> 32),
        1 => any::<u128>().prop_map(|bits| NEAR ^ (bits & 7) << 94 | bits >> 40),
        1 => address6(),
    ]
}

/// Histories that come to more than a group has buckets for, and back.
fn step_near() -> impl Strategy<Value = Step<u128>> {
    let len = prop_oneof![28u8..=72, 33u8..=40, Just(48), Just(64), 0u8..=128];
    prop_oneof![
        4 => (near6(), len, 0u32..1000).prop_map(|(a, l, leaf)| Step::Insert(a, l, leaf)),
        1 => any::<prop::sample::Index>().prop_map(Step::RemoveNth),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 24 }))]

    #[test]
    fn a_random_history_of_ipv6_in_buckets(
        steps in prop::collection::vec(step(address6().boxed()), 0..STEPS),
        probes in prop::collection::vec(address6(), 0..20),
        buckets in 0usize..30,
    ) {
        check(steps, probes, buckets);
    }

    #[test]
    fn a_random_history_of_ipv6_in_few_buckets(
        steps in prop::collection::vec(step_near(), 0..4 * STEPS),
        probes in prop::collection::vec(near6(), 0..20),
        buckets in 0usize..200,
    ) {
        check(steps, probes, buckets);
    }
}

/// Numbers of 31 bits, the same each time.
fn numbers() -> impl FnMut() -> u64 {
    let mut seed = 1u64;
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

/// A reader looks up while the writer churns: it always finds the route that always stays or a longer
/// one that covers the address, never nothing and never another's.
#[test]
fn a_reader_beside_the_writer() {
    use std::sync::atomic::{AtomicBool, Ordering};

    const STAYS: u128 = 0x2001_0db8 << 96;
    let mut random = numbers();
    // Under the /32 that stays, so dense that nodes come and go at all depths.
    let routes: Vec<(u128, u8)> = (0..if cfg!(miri) { 40 } else { 400 })
        .map(|_| {
            let len = 33 + random() as u8 % 96;
            let bits = u128::from(random() & 0x8181) << 80 | u128::from(random() & 0x0101) << 48;
            ((STAYS | bits).with_window(len, 0), len)
        })
        .collect();
    let rounds = if cfg!(miri) { 60 } else { 200_000 };
    let (retirer, mut readers) = publish::domain(2);
    let mut arena = Arena::new(20);
    let table = Lpm::new(&arena);
    Edit { table: &table, arena: &mut arena, retirer: &retirer }.insert(STAYS, 32, 1000);
    let addresses: Vec<u128> = routes.iter().map(|(prefix, _)| prefix | 1).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in &mut readers {
            let (table, routes, addresses, done) = (&table, &routes, &addresses, &done);
            scope.spawn(move || {
                let check = |address: u128, leaf: u32| match routes.get(leaf as usize) {
                    Some((prefix, len)) => assert_eq!(address.with_window(*len, 0), *prefix),
                    None => assert_eq!(leaf, 1000),
                };
                while !done.load(Ordering::Relaxed) {
                    for burst in addresses.chunks(64) {
                        let guard = reader.enter();
                        let mut leaves = [0; 64];
                        table.lookup_batch(burst, &mut leaves, &guard);
                        burst.iter().zip(leaves).for_each(|(address, leaf)| check(*address, leaf));
                        check(burst[0], table.lookup(burst[0], &guard).unwrap());
                    }
                }
                reader.idle();
            });
        }
        for _ in 0..rounds {
            let n = random() as usize % routes.len();
            let (prefix, len) = routes[n];
            let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
            if random() & 1 == 0 {
                edit.insert(prefix, len, n as u32);
            } else {
                edit.remove(prefix, len);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    for (prefix, len) in routes {
        Edit { table: &table, arena: &mut arena, retirer: &retirer }.remove(prefix, len);
    }
    assert_eq!(arena.used(), 0);
}

/// The same in a table of IPv4 that is laid out flat: entries and their blocks come and go below the reader.
#[test]
fn a_reader_of_a_layout_beside_the_writer() {
    read_beside_the_writer(64, true);
}

/// In one that is laid out below the root alone: all that is laid out comes and goes.
#[test]
fn a_reader_of_a_small_table_beside_the_writer() {
    read_beside_the_writer(3, false);
}

fn read_beside_the_writer(count: usize, whole: bool) {
    use std::sync::atomic::{AtomicBool, Ordering};

    if cfg!(miri) {
        return;
    }
    const STAYS: u32 = 0x0a00_0000;
    let mut random = numbers();
    // In four slots, so that each is deep, even and of another coarseness all the time.
    let routes: Vec<(u32, u8)> = (0..count)
        .map(|_| {
            let len = 23 + (random() % 10) as u8;
            ((STAYS | random() as u32 & 0x3ff).with_window(len, 0), len)
        })
        .collect();
    let (retirer, mut readers) = publish::domain(2);
    let mut arena = Arena::new(20);
    let table = Lpm::new(&arena);
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    edit.insert(STAYS, 8, 1000);
    if whole {
        edit.lay_out_flat();
    } else {
        (0..8u32).for_each(|n| assert_eq!(edit.insert(0xc000_0200 + (n << 8), 24, n), None));
        assert!(table.layout().is_some() && table.whole_layout().is_none());
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in &mut readers {
            let (table, routes, done) = (&table, &routes, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let guard = reader.enter();
                    let layout = table.layout().unwrap();
                    for address in STAYS..STAYS + 0x400 {
                        let leaf = match whole {
                            true => layout.leaf(table, address),
                            false => table.lookup(address, &guard),
                        };
                        match leaf {
                            Some(1000) => {}
                            Some(n) => {
                                let (prefix, len) = routes[n as usize];
                                assert_eq!(address.with_window(len, 0), prefix);
                            }
                            None => panic!("{address:x} has no route"),
                        }
                    }
                    let _ = guard;
                }
                reader.idle();
            });
        }
        for _ in 0..100_000 {
            let n = random() as usize % routes.len();
            let (prefix, len) = routes[n];
            let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
            if random() & 1 == 0 {
                edit.insert(prefix, len, n as u32);
            } else {
                edit.remove(prefix, len);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    for (prefix, len) in routes {
        Edit { table: &table, arena: &mut arena, retirer: &retirer }.remove(prefix, len);
    }
    let mut edit = Edit { table: &table, arena: &mut arena, retirer: &retirer };
    edit.remove(STAYS, 8);
    (0..8u32).for_each(|n| _ = edit.remove(0xc000_0200 + (n << 8), 24));
    assert_eq!(arena.used(), 0);
}
