//! `fq`: the turns of flows, their pace, and what is counted.

use super::*;

/// Linux's default ones for an MTU of 1,500 bytes.
pub(super) fn params(orphan_mask: u32) -> tables::Fq {
    tables::Fq {
        more: QueueId(60),
        limit: 10_000,
        flow_limit: 100,
        quantum: 3028,
        initial_quantum: 15_140,
        pacing: true,
        max_rate: None,
        low_rate_threshold: 68_750,
        buckets_log: 10,
        orphan_mask,
        refill_delay: 40_000_000,
        ce_threshold: 4_294_967_295_000,
        priomap: tables::PRIOMAP,
        weights: [9 << 16, 3 << 16, 1 << 16],
    }
}

pub(super) fn fq(config: tables::Fq) -> Qdisc {
    Qdisc::new(QueueId(2), 0x2_0000, QdiscKind::Fq(Box::new(config)))
}

fn counted(bed: &mut Bed) -> ([u64; 9], [u64; 9]) {
    (bed.count(2).own, bed.count(60).own)
}

/// 100 packets a second of a flow: the first of its initial quantum at once.
#[test]
fn a_flow_keeps_to_its_rate() {
    let config = tables::Fq { max_rate: Some(100_000), quantum: 1000, initial_quantum: 2000, ..params(0) };
    let mut bed = Bed::new(&fq(config));
    for _ in 0..6 {
        assert_eq!(bed.enqueue(1000, 0), Enqueued::Queued);
    }
    let begun = bed.now;
    let left: Vec<_> = bed.run().into_iter().map(|(time, ..)| (time - begun) / 1_000_000).collect();
    assert_eq!(left, [0, 0, 10, 20, 30, 40]);
    let (own, more) = counted(&mut bed);
    // One flow, without packets; throttled four times.
    assert_eq!(own, [1, 1, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(more[2..], [0; 7]);
}

/// Below the threshold each packet is paced by itself, and a second is the most.
#[test]
fn a_slow_flow_waits_a_second() {
    let config = tables::Fq { max_rate: Some(100), ..params(0) };
    let mut bed = Bed::new(&fq(config));
    (0..3).for_each(|_| assert_eq!(bed.enqueue(500, 0), Enqueued::Queued));
    let begun = bed.now;
    let left: Vec<_> = bed.run().into_iter().map(|(time, ..)| time - begun).collect();
    assert_eq!(left, [0, 1_000_000_000, 2_000_000_000]);
    assert_eq!(counted(&mut bed).0[6], 3);
}

/// What finds nobody waiting goes past all flows, up to eight of them; bands and flows have their limits.
#[test]
fn bands_and_flows_have_limits() {
    let mut bed = Bed::new(&fq(params(0)));
    (0..10).for_each(|_| assert_eq!(bed.enqueue(100, 0), Enqueued::Queued));
    let (own, more) = counted(&mut bed);
    assert_eq!((own[0], own[1], more[2], more[7]), (1, 0, 8, 2));
    assert_eq!(bed.run().len(), 10);
    let config = tables::Fq { max_rate: Some(1_000_000), limit: 3, flow_limit: 2, ..params(0) };
    let mut bed = Bed::new(&fq(config));
    let enqueued: Vec<_> = (0..3).map(|_| bed.enqueue(100, 0)).collect();
    assert_eq!(enqueued, [Enqueued::Queued, Enqueued::Queued, Enqueued::Dropped]);
    assert_eq!((counted(&mut bed).0[5], bed.count(2).drops), (1, 1));
    bed.change(&fq(tables::Fq { limit: 2, ..config }));
    assert_eq!(bed.enqueue(100, 0), Enqueued::Dropped);
    let (own, more) = counted(&mut bed);
    assert_eq!((own[5], more[4], more[7]), (1, 1, 2));
}

/// Other buckets keep the flows.
#[test]
fn a_flow_is_found_again() {
    let config = tables::Fq { max_rate: Some(1_000_000), buckets_log: 1, ..params(0) };
    let mut bed = Bed::new(&fq(config));
    bed.enqueue(100, 0);
    assert_eq!((bed.run().len(), bed.dequeue()), (1, None));
    assert_eq!(counted(&mut bed).0[..2], [1, 1]);
    bed.change(&fq(tables::Fq { buckets_log: 2, ..config }));
    bed.enqueue(100, 0);
    assert_eq!(counted(&mut bed).0[..2], [1, 0]);
}

/// Packets that have waited are marked behind the threshold, by the time at which they could have left.
#[test]
fn late_packets_are_counted_as_marked() {
    let config = tables::Fq { ce_threshold: 1_000_000, max_rate: Some(1_000_000_000), ..params(0) };
    let mut bed = Bed::new(&fq(config));
    bed.enqueue(100, 0);
    bed.now += 900_000;
    assert!(bed.dequeue().is_some());
    bed.enqueue(100, 0);
    bed.now += 1_100_000;
    assert!(bed.dequeue().is_some());
    assert_eq!(counted(&mut bed).0[8], 1);
}
