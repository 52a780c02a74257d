//! `red`: what Linux's formulas come to.

use super::*;
use crate::tables::{Red, RedParams};

pub(super) fn params() -> RedParams {
    RedParams {
        change: 0,
        least: 1000,
        most: 3000,
        window_log: 2,
        cell_log: 10,
        table: [0; 256],
        max_p: 1 << 30,
        difference: 2000,
        ecn: false,
        hard_drop: false,
        no_drop: false,
        seed: 7,
    }
}

pub(super) fn red(params: RedParams, child: Qdisc) -> Qdisc {
    Qdisc::new(QueueId(1), 0x1_0000, QdiscKind::Red(Box::new(Red { params, child })))
}

/// The average follows the queue by a quarter of the difference; beyond the maximum all packets are dropped.
#[test]
fn beyond_the_maximum() {
    let params = RedParams { most: 1001, difference: 1, table: [3; 256], ..params() };
    let mut bed = Bed::new(&red(params, bfifo(2, 100_000)));
    let (mut average, mut backlog) = (0u64, 0u64);
    let mut first = true;
    for _ in 0..40 {
        // Of the first packet the average is that of an idle queue.
        average = if first { 0 } else { average + backlog - (average >> 2) };
        first = false;
        let wanted = if average < 1001 << 2 { Enqueued::Queued } else { Enqueued::Dropped };
        assert_eq!(bed.enqueue(500, 0), wanted, "{average}");
        backlog += if wanted == Enqueued::Queued { 500 } else { 0 };
    }
    let count = bed.count(1);
    assert!(count.drops > 20 && count.queued * 500 == backlog && count.overlimits == count.drops);
    assert_eq!((count.own[0], count.own[1], count.own[2]), (count.drops, 0, 0));
    assert_eq!(bed.run().len() as u64, count.queued);
    // Idle, it falls as the table says.
    bed.now += 1_000_000_000;
    assert_eq!(bed.enqueue(500, 0), Enqueued::Queued);
}

/// Between both, one packet of so many is, by the formula.
#[test]
fn between_minimum_and_maximum() {
    let mut bed = Bed::new(&red(RedParams { window_log: 0, ..params() }, bfifo(2, 100_000)));
    for _ in 0..4 {
        bed.enqueue(500, 0);
    }
    let before = bed.count(1).drops;
    for _ in 0..2000 {
        bed.enqueue(500, 0);
        if bed.node.len() > 4 {
            bed.dequeue();
        }
    }
    // (2000 - 1000) · count reaches a number below 2³² / (2³⁰ / 2000): 8,000 at most, 4 packets on average.
    let dropped = bed.count(1).drops - before;
    assert!((300..700).contains(&dropped), "{dropped}");
    assert_eq!(bed.count(1).own[0], bed.count(1).drops);
}

#[test]
fn marks_and_full_queues() {
    let all = RedParams { least: 0, most: 0, difference: 1, ..params() };
    let mut bed = Bed::new(&red(RedParams { ecn: true, no_drop: true, ..all }, bfifo(2, 1000)));
    // It knows nothing of congestion, and is queued all the same; until there is no room.
    let enqueued: Vec<_> = (0..3).map(|_| bed.enqueue(500, 0)).collect();
    assert_eq!(enqueued, [Enqueued::Queued, Enqueued::Queued, Enqueued::Dropped]);
    assert_eq!(bed.count(1).own[..3], [0, 1, 0]);
    bed.change(&red(RedParams { change: 1, ecn: true, ..all }, bfifo(2, 1000)));
    assert_eq!((bed.node.len(), bed.enqueue(10, 0)), (2, Enqueued::Dropped));
    assert_eq!(bed.count(1).own[..3], [1, 1, 0]);
}
