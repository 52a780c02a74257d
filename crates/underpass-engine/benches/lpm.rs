//! What the forwarding tables cost: `cargo bench -p underpass-engine --bench lpm`.
//!
//! For each set of routes, generated from a fixed seed: insertions and changes a second, bytes a route
//! (all of the writer's included), and nanoseconds a look-up of random destinations that a route
//! covers, in bursts of 64 and one by one: the median, and in parentheses the fastest tenth.

use std::collections::HashSet;
use std::hint::black_box;
use std::time::Instant;

use underpass_engine::tables::{ActionId, NO_LEAF, Writer};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    fn next_u128(&mut self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }
}

/// Allocations of 32 bits in 2000::/3, 48 of 100 routes the 48 bits of a site in one of them, the
/// rest of 33 to 47 bits: the shape of the Internet's table.
fn routes6(count: usize, allocations: usize, random: &mut Random) -> Vec<(u128, u8)> {
    let allocations: Vec<u128> =
        (0..allocations).map(|_| ((1 << 125) | (random.next_u128() >> 3)) >> 96 << 96).collect();
    let mut routes: HashSet<(u128, u8)> = allocations.iter().map(|prefix| (*prefix, 32)).collect();
    while routes.len() < count {
        let len = if random.below(100) < 48 { 48 } else { 33 + random.below(15) as u8 };
        let address = allocations[random.below(allocations.len())] | (random.next_u128() >> 32);
        routes.insert((address >> (128 - len) << (128 - len), len));
    }
    shuffled(routes, random)
}

/// 60 of 100 routes of 24 bits, the rest of 16 to 23, in 1.0.0.0 to 223.255.255.255.
fn routes4(count: usize, random: &mut Random) -> Vec<(u32, u8)> {
    let mut routes = HashSet::new();
    while routes.len() < count {
        let len = match random.below(100) {
            0..60 => 24,
            60..70 => 23,
            70..82 => 22,
            82..87 => 21,
            87..92 => 20,
            92..95 => 19,
            95..97 => 18,
            _ => 16,
        };
        let address = (1 << 24) + random.below(223 << 24) as u32;
        routes.insert((address >> (32 - len) << (32 - len), len));
    }
    shuffled(routes, random)
}

fn shuffled<T: Ord>(routes: HashSet<T>, random: &mut Random) -> Vec<T> {
    let mut routes: Vec<T> = routes.into_iter().collect();
    routes.sort_unstable();
    for n in (1..routes.len()).rev() {
        routes.swap(n, random.below(n + 1));
    }
    routes
}

/// The median time of a look-up, and that of the fastest tenth, in nanoseconds: of slices of 8,192, in
/// several rounds.
fn time<A>(addresses: &[A], mut round: impl FnMut(&[A])) -> [f64; 2] {
    let mut times = Vec::new();
    for _ in 0..7 {
        for slice in addresses.as_chunks::<8192>().0 {
            let start = Instant::now();
            round(slice);
            times.push(start.elapsed().as_secs_f64() * 1e9 / 8192.0);
        }
    }
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() / 10]]
}

/// Routes lead to 256 actions, in no order.
fn action(n: usize) -> ActionId {
    ActionId((n as u32).wrapping_mul(0x9e37_79b1) >> 24)
}

macro_rules! family {
    ($run:ident, $address:ty, $ip:ty, $fib:ident, $add:ident, $insert:ident, $remove:ident) => {
        fn $run(name: &str, routes: &[($address, u8)], random: &mut Random) {
            let (mut writer, tables, mut readers) = Writer::new(1);
            let id = writer.$add();
            let start = Instant::now();
            for (n, (prefix, len)) in routes.iter().enumerate() {
                writer.$insert(id, <$ip>::from_bits(*prefix), *len, action(n));
            }
            let inserted = routes.len() as f64 / start.elapsed().as_secs_f64();
            let bytes = writer.route_bytes() as f64 / routes.len() as f64;
            let changes = 200_000;
            let start = Instant::now();
            for n in 0..changes {
                let (prefix, len) = routes[n * 7 % routes.len()];
                writer.$remove(id, <$ip>::from_bits(prefix), len);
                writer.$insert(id, <$ip>::from_bits(prefix), len, action(n));
            }
            let changed = 2.0 * changes as f64 / start.elapsed().as_secs_f64();

            let bits = <$address>::BITS as u8;
            let addresses: Vec<$address> = (0..1 << 20)
                .map(|_| {
                    let (prefix, len) = routes[random.below(routes.len())];
                    let host = (random.next_u128() >> (128 - bits)) as $address;
                    prefix | host.checked_shr(len.into()).unwrap_or(0)
                })
                .collect();
            let guard = readers[0].enter();
            let Some(table) = tables.$fib(id, &guard) else { return };
            let [batch, batch_fast] = time(&addresses, |addresses| {
                let mut leaves = [0; 64];
                for burst in addresses.chunks(64) {
                    table.lookup_batch(burst, &mut leaves, &guard);
                    assert!(!black_box(&leaves).contains(&NO_LEAF));
                }
            });
            let [single, single_fast] = time(&addresses, |addresses| {
                for address in addresses {
                    black_box(table.lookup(black_box(*address), &guard));
                }
            });
            println!(
                "{name:12} {:>9} routes  {:>6.0} k inserts/s  {:>6.0} k changes/s  {bytes:>6.1} bytes/route  \
                 ns in bursts {batch:>6.1} ({batch_fast:>5.1})  one by one {single:>6.1} ({single_fast:>5.1})",
                routes.len(),
                inserted / 1e3,
                changed / 1e3,
            );
        }
    };
}

family!(run4, u32, std::net::Ipv4Addr, fib4, add_fib4, insert4, remove4);
family!(run6, u128, std::net::Ipv6Addr, fib6, add_fib6, insert6, remove6);

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| name == only);
    let random = &mut Random(1);
    if wanted("ip6-1") {
        run6("ip6-1", &[(0x2001_0db8 << 96, 32)], random);
    }
    for (name, count) in [("ip6-100", 100), ("ip6-1k", 1_000), ("ip6-10k", 10_000), ("ip6-1m", 1_000_000)] {
        if wanted(name) {
            let routes = routes6(count, count / 25, random);
            run6(name, &routes, random);
        }
    }
    if wanted("ip4-1") {
        run4("ip4-1", &[(0x0a00_0000, 8)], random);
    }
    for (name, count) in [("ip4-100", 100), ("ip4-1k", 1_000), ("ip4-10k", 10_000), ("ip4-1m", 1_000_000)] {
        if wanted(name) {
            let routes = routes4(count, random);
            run4(name, &routes, random);
        }
    }
}
