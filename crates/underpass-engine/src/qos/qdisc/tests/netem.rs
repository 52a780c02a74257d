//! `netem`: with a seed it does what Linux 6.12 does with that seed; without one, what it is asked for on average.

use proptest::prelude::*;

use super::*;
use crate::tables::{NetemLoss, NetemRate};

fn plain() -> tables::Netem {
    tables::Netem {
        change: 0,
        limit: 1000,
        latency: 0,
        jitter: 0,
        distribution: None,
        loss: NetemLoss::Random(0),
        ecn: false,
        duplicate: 0,
        corrupt: 0,
        reorder: 0,
        gap: 0,
        rate: None,
        correlations: [0; 5],
        seed: 42,
        child: None,
    }
}

pub(super) fn netem(config: tables::Netem) -> Qdisc {
    Qdisc::new(QueueId(0), 0x1_0000, QdiscKind::Netem(Box::new(config)))
}

/// One that may do anything.
pub(super) fn any_netem(numbers: [u32; 6], child: Option<Qdisc>, flags: [bool; 4]) -> Qdisc {
    let [seed, chance, latency, jitter, gap, limit] = numbers;
    let [loses, duplicates, corrupts, rated] = flags;
    let rate = NetemRate {
        bytes_per_second: 100_000 + u64::from(seed % 1_000_000),
        packet_overhead: (chance % 100).cast_signed() - 50,
        cell_size: gap % 60,
        cell_overhead: 5,
    };
    let chance_if = |flag| if flag { chance } else { 0 };
    netem(tables::Netem {
        change: seed.into(),
        limit: limit % 40,
        latency: (latency % 20_000_000).into(),
        jitter: jitter % 30_000_000,
        loss: NetemLoss::Random(chance_if(loses)),
        duplicate: chance_if(duplicates),
        corrupt: chance_if(corrupts),
        reorder: chance,
        gap: gap % 5,
        rate: rated.then_some(rate),
        correlations: [jitter, latency, gap, limit, seed],
        seed: seed.into(),
        child,
        ..plain()
    })
}

/// A probability, as `tc` sends it.
fn percent(percent: f64) -> u32 {
    (percent / 100.0 * f64::from(u32::MAX)).round_ties_even() as u32
}

/// Which of so many packets leave, in which order: their numbers.
fn left(bed: &mut Bed, count: u32) -> Vec<u32> {
    for number in 0..count {
        bed.enqueue(60, number + 1);
        // Linux's sender took about as long for each.
        bed.now += 80_000;
    }
    bed.run().iter().map(|(_, _, mark)| mark - 1).collect()
}

const MS: i64 = 1_000_000;

/// Linux 6.12: `tc qdisc add dev v0 root netem OPTIONS seed SEED`, and 64 or 32 frames.
#[test]
fn a_seed_does_what_it_does_in_linux() {
    let thirty_two: Vec<u32> = (0..32).collect();
    let cases: [(tables::Netem, &[u32]); 8] = [
        (
            // loss 50% seed 42
            tables::Netem { loss: NetemLoss::Random(percent(50.0)), ..plain() },
            &[
                0, 10, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 32, 34, 36, 40,
                41, 45, 46, 51, 52, 55, 57, 58, 59, 60, 62, 63,
            ],
        ),
        (
            // loss 50% seed 12345678901234567
            tables::Netem { loss: NetemLoss::Random(percent(50.0)), seed: 12345678901234567, ..plain() },
            &[
                3, 4, 7, 8, 11, 13, 17, 18, 20, 24, 25, 26, 30, 32, 34, 35, 37, 42, 45, 46, 47, 48, 50, 51,
                52, 53, 54, 55, 56, 58, 60, 61, 62,
            ],
        ),
        (
            // loss gemodel 20% 30% 80% 5% seed 42
            tables::Netem {
                loss: NetemLoss::GilbertElliot([
                    percent(20.0),
                    percent(30.0),
                    u32::MAX - percent(80.0),
                    percent(5.0),
                ]),
                ..plain()
            },
            &[
                0, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 21, 22, 23, 24, 26, 27, 28, 29,
                30, 31, 32, 33, 39, 43, 48, 49, 50, 51, 53, 54, 55, 57, 60,
            ],
        ),
        (
            // loss state 20% 30% 40% 50% 5% seed 42
            tables::Netem { loss: NetemLoss::States([20.0, 30.0, 40.0, 5.0, 50.0].map(percent)), ..plain() },
            &[
                0, 2, 4, 6, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 32, 33, 34, 36,
                38, 42, 44, 45, 46, 48, 50, 51, 52, 54, 55, 59, 60, 61, 62, 63,
            ],
        ),
        (
            // duplicate 30% seed 42
            tables::Netem { duplicate: percent(30.0), ..plain() },
            &[
                0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9, 9, 10, 11, 11, 12, 13, 13, 14, 14, 15, 16,
                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 27, 28, 29, 30, 31, 32, 33, 34, 35, 35, 36, 37,
                37, 38, 38, 39, 39, 40, 41, 42, 42, 43, 43, 44, 44, 45, 46, 47, 47, 48, 49, 49, 50, 50, 51,
                52, 53, 53, 54, 54, 55, 56, 56, 57, 58, 59, 60, 61, 62, 63,
            ],
        ),
        (
            // loss 20% duplicate 30% seed 42
            tables::Netem { loss: NetemLoss::Random(percent(20.0)), duplicate: percent(30.0), ..plain() },
            &[
                1, 2, 3, 3, 4, 6, 6, 7, 8, 9, 10, 11, 12, 12, 13, 14, 17, 18, 19, 20, 20, 21, 22, 22, 23, 23,
                24, 24, 25, 26, 27, 28, 29, 30, 31, 32, 35, 35, 36, 37, 38, 38, 39, 40, 41, 41, 42, 43, 44,
                45, 46, 48, 48, 50, 51, 52, 53, 54, 55, 57, 58, 59, 60, 61, 62, 63,
            ],
        ),
        (
            // delay 100ms 50ms seed 42
            tables::Netem { latency: 100 * MS, jitter: 50_000_000, ..plain() },
            &[
                7, 28, 16, 27, 13, 11, 2, 14, 23, 26, 5, 8, 19, 12, 29, 9, 31, 0, 15, 24, 22, 17, 4, 18, 10,
                25, 30, 21, 20, 3, 6, 1,
            ],
        ),
        (
            // without anything
            plain(),
            &thirty_two,
        ),
    ];
    for (config, wanted) in cases {
        let count = wanted.iter().max().unwrap().next_multiple_of(32);
        assert_eq!(left(&mut Bed::new(&netem(config.clone())), count), wanted, "{config:?}");
    }
    // delay 20ms reorder 50% gap 4 seed 42, of which each is sent at once.
    let config = tables::Netem { latency: 20 * MS, reorder: percent(50.0), gap: 4, ..plain() };
    let mut bed = Bed::new(&netem(config));
    let mut order = Vec::new();
    for number in 0..32 {
        bed.enqueue(60, number + 1);
        order.extend(bed.dequeue().map(|(_, mark)| mark - 1));
    }
    order.extend(bed.run().iter().map(|(_, _, mark)| mark - 1));
    assert_eq!(
        order,
        [
            4, 8, 12, 16, 20, 24, 28, 0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25,
            26, 27, 29, 30, 31
        ]
    );
    assert_eq!(bed.count(0).requeues, 7);
}

#[test]
fn delay_rate_and_limit() {
    let rate = NetemRate { bytes_per_second: 1000, packet_overhead: 20, cell_size: 50, cell_overhead: 10 };
    // 80 bytes of two cells, of 60 bytes each: 120 ms; the next one behind it.
    let config = tables::Netem { latency: 30 * MS, rate: Some(rate), limit: 3, ..plain() };
    let mut bed = Bed::new(&netem(config));
    let start = bed.now;
    let enqueued: Vec<_> = (0..5).map(|mark| bed.enqueue(60, mark)).collect();
    assert_eq!(enqueued[..3], [Enqueued::Queued; 3]);
    assert_eq!(enqueued[3..], [Enqueued::Dropped; 2]);
    let times: Vec<_> = bed.run().iter().map(|(time, _, _)| (time - start) / 1_000_000).collect();
    assert_eq!(times, [150, 270, 390]);
    let count = bed.count(0);
    assert_eq!((count.packets, count.bytes, count.drops, count.queued, count.backlog), (3, 180, 2, 0, 0));
    assert_eq!(bed.drops(), 2);
}

/// A qdisc in it gets what has waited.
#[test]
fn a_qdisc_inside() {
    let child = Some(tbf(1, 1000, 2000, pfifo(2, 3)));
    let mut bed = Bed::new(&netem(tables::Netem { latency: 10 * MS, child: child.clone(), ..plain() }));
    let start = bed.now;
    for mark in 0..5 {
        assert_eq!(bed.enqueue(1000, mark), Enqueued::Queued);
    }
    assert_eq!((bed.count(0).queued, bed.count(0).backlog), (5, 5000));
    let times: Vec<_> = bed.run().iter().map(|(time, _, _)| (time - start) / 1_000_000).collect();
    // The child has room for three at once, and a burst of two.
    assert_eq!((times, bed.drops()), (vec![10, 10, 1010], 2));
    let count = bed.count(0);
    assert_eq!((count.packets, count.drops, count.queued, count.backlog), (3, 2, 0, 0));
    // What waits stays when the tree is published again; numbers begin anew with a change alone.
    bed.enqueue(100, 1);
    bed.change(&netem(tables::Netem { latency: 10 * MS, child: None, change: 1, limit: 1, ..plain() }));
    assert_eq!((bed.node.len(), bed.enqueue(100, 2)), (1, Enqueued::Dropped));
    assert_eq!(bed.run().len(), 1);
}

#[test]
fn corruption_inverts_one_bit() {
    let mut bed = Bed::new(&netem(tables::Netem { corrupt: u32::MAX, ..plain() }));
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..100 {
        bed.enqueue(60, 0);
        let id = bed.with(|node, cx| node.dequeue(cx)).unwrap();
        let packet = bed.items.take(id).unwrap().packet.unwrap();
        assert_eq!(packet.bytes().iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        places.insert(packet.bytes().iter().position(|byte| *byte != 0));
        bed.pool.give(packet);
    }
    assert!(places.len() > 30, "{places:?}");
}

#[test]
fn losses_are_marked_where_they_can_be() {
    let loss = NetemLoss::Random(u32::MAX);
    let mut bed = Bed::new(&netem(tables::Netem { loss, ecn: true, ..plain() }));
    // It knows nothing of congestion.
    assert_eq!(bed.enqueue(60, 0), Enqueued::Filtered);
    assert_eq!((bed.node.len(), bed.drops(), bed.count(0).drops), (0, 1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// As often as asked for: 2,000 times a chance, within five standard deviations.
    #[test]
    fn as_often_as_asked_for(seed: u64, share in 1.0f64..99.0) {
        let near = |count: u64| {
            let (wanted, count) = (2000.0 * share / 100.0, count as f64);
            (wanted - count).abs() <= 5.0 * (wanted * (1.0 - share / 100.0)).sqrt() + 1.0
        };
        let chance = percent(share);
        let limit = 4000;
        let mut lossy = Bed::new(&netem(tables::Netem { loss: NetemLoss::Random(chance), seed, limit, ..plain() }));
        let passed = left(&mut lossy, 2000).len() as u64;
        let count = lossy.count(0);
        prop_assert!(near(count.drops) && passed + count.drops == 2000, "{} of {share}%", count.drops);
        let mut twice = Bed::new(&netem(tables::Netem { duplicate: chance, seed, limit, ..plain() }));
        let passed = left(&mut twice, 2000).len() as u64;
        prop_assert!(near(passed - 2000), "{} of {share}%", passed - 2000);
    }

    /// Within the jitter, or what the table makes of it, and spread over it.
    #[test]
    fn delays_are_within_the_jitter(seed: u64, jitter in 1u32..50_000_000, rho: u32, table: Option<[i16; 9]>) {
        let distribution = table.map(|table| table.to_vec().into());
        let most = table.map_or(8192, |table| table.iter().map(|value| i64::from(*value).abs()).max().unwrap());
        let config =
            tables::Netem { latency: 400 * MS, jitter, distribution, correlations: [rho, 0, 0, 0, 0], seed, ..plain() };
        let mut bed = Bed::new(&netem(config));
        let start = bed.now;
        (0..500).for_each(|mark| { bed.enqueue(60, mark); });
        let run = bed.run();
        prop_assert_eq!(run.len(), 500);
        let reach = i64::from(jitter) * most / 8192 + 1;
        for (time, _, _) in &run {
            prop_assert!(((time - start) as i64 - 400 * MS).abs() <= reach);
        }
        if rho == 0 && table.is_none() {
            let (first, last) = (run.first().unwrap().0, run.last().unwrap().0);
            prop_assert!(last - first > u64::from(jitter));
        }
    }
}
