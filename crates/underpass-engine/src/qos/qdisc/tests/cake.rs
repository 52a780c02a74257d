//! `cake`: the rate, tins and their parts of it, flows and hosts that take turns, and what is counted.

use super::*;
use crate::tables::{Cake, CakeAcks, CakeFlows, CakeTins, cake_params as params};

pub(super) fn cake(config: Cake) -> Qdisc {
    Qdisc::new(QueueId(2), 0x2_0000, QdiscKind::Cake(Box::new(config)))
}

/// A frame of so many bytes: UDP with this DSCP, from a host to a host, by this flow.
fn frame(len: usize, dscp: u8, source: u8, destination: u8, flow: u8) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, dscp << 2, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, source, 10, 0, 1, destination, 0, flow, 0, 9]);
    frame.resize(len, 0);
    frame
}

/// What a tin counts: packets, drops, marks, and the rest of its own.
fn tin(bed: &mut Bed, tin: u32) -> QueueCount {
    bed.count(params().tins[0].0 + tin)
}

fn times(bed: &mut Bed) -> Vec<u64> {
    let begun = bed.now;
    bed.run().into_iter().map(|(time, ..)| (time - begun) / 1_000_000).collect()
}

/// No bursts: each packet leaves when the one before it has had its time.
#[test]
fn packets_leave_at_the_rate() {
    let mut bed = Bed::new(&cake(Cake { rate: 100_000, ..params() }));
    (0..5).for_each(|_| assert_eq!(bed.enqueue(1000, 0), Enqueued::Queued));
    assert_eq!(times(&mut bed), [0, 10, 20, 30, 40]);
    let count = bed.count(2);
    assert_eq!((count.packets, count.bytes, count.queued, count.drops), (5, 5000, 0, 0));
    assert_eq!(tin(&mut bed, 0).packets, 5);
    // Time that nobody used is lost.
    bed.now += 1_000_000_000;
    (0..3).for_each(|_| assert_eq!(bed.enqueue(1000, 0), Enqueued::Queued));
    assert_eq!(times(&mut bed), [0, 10, 20]);
    // With what the link adds.
    bed.change(&cake(Cake { rate: 100_000, overhead: 500, ..params() }));
    (0..3).for_each(|_| assert_eq!(bed.enqueue(1000, 0), Enqueued::Queued));
    let times = times(&mut bed);
    assert_eq!((times[1] - times[0], times[2] - times[1]), (15, 15));
}

/// A tin within its part of the rate goes first, and beyond it the one that is due first.
#[test]
fn tins_have_their_parts() {
    let patient = Cake { target: 4_000_000, interval: 4_000_000, ..params() };
    let mut bed = Bed::new(&cake(Cake { rate: 100_000, diffserv: CakeTins::Diffserv4, ..patient }));
    for _ in 0..50 {
        for dscp in [8, 0, 46] {
            bed.enqueue_frame(&frame(500, dscp, 1, 2, dscp), dscp.into());
        }
    }
    let left: Vec<_> = bed.run().into_iter().map(|(_, _, dscp)| dscp).collect();
    let of = |dscp| left[..60].iter().filter(|other| **other == dscp).count();
    // A quarter for EF, a sixteenth for CS1, the rest for what is left.
    assert!((14..18).contains(&of(46)) && (3..7).contains(&of(8)), "{} {} {}", of(46), of(0), of(8));
    for (number, bytes) in [(0, 25_000), (1, 25_000), (2, 0), (3, 25_000)] {
        assert_eq!(tin(&mut bed, number).bytes, bytes, "{number}");
    }
}

/// Without a rate tins have turns by their weights.
#[test]
fn tins_have_turns() {
    let mut bed = Bed::new(&cake(Cake { diffserv: CakeTins::Diffserv4, ..params() }));
    for _ in 0..400 {
        for dscp in [8, 0, 46] {
            bed.enqueue_frame(&frame(500, dscp, 1, 2, dscp), dscp.into());
        }
    }
    let left: Vec<_> = bed.run().into_iter().map(|(_, _, dscp)| dscp).collect();
    let of = |dscp| left[..400].iter().filter(|other| **other == dscp).count();
    assert!((65..85).contains(&of(46)) && (14..25).contains(&of(8)), "{} {} {}", of(46), of(0), of(8));
}

/// Marks and priorities name tins in the order in which they are shown.
#[test]
fn tins_by_name() {
    let config = Cake { diffserv: CakeTins::Diffserv3, fwmark: 0xf00, ..params() };
    let mut bed = Bed::new(&cake(config));
    for (mark, expected) in [(0, 0), (0x100, 1), (0x200, 0), (0x300, 2), (0x400, 0), (3, 0)] {
        let before = tin(&mut bed, expected).packets;
        bed.enqueue_frame(&frame(100, 0, 1, 2, 3), mark);
        assert_eq!(tin(&mut bed, expected).packets, before + 1, "{mark:x}");
    }
    bed.tag(Tag { priority: 0x2_0003, ..Tag::default() });
    bed.enqueue_frame(&frame(100, 0, 1, 2, 3), 0);
    assert_eq!(tin(&mut bed, 2).packets, 2);
    bed.tag(Tag { priority: 0x3_0003, ..Tag::default() });
    bed.enqueue_frame(&frame(100, 0, 1, 2, 3), 0);
    assert_eq!(tin(&mut bed, 2).packets, 2);
}

/// What of two hosts, one of which has four flows, the other one.
#[derive(Clone, Copy)]
enum Hosts {
    Sources,
    Destinations,
    Both,
}

/// Packets of the host with one flow among a hundred.
fn share(flow_mode: CakeFlows, hosts: Hosts) -> usize {
    let mut bed = Bed::new(&cake(Cake { diffserv: CakeTins::Besteffort, flow_mode, ..params() }));
    for _ in 0..200 {
        for (host, flow) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)] {
            let (source, destination) = match hosts {
                Hosts::Sources => (host, 9),
                Hosts::Destinations => (9, host),
                Hosts::Both => (host, host + 20),
            };
            bed.enqueue_frame(&frame(1000, 0, source, destination, flow), host.into());
        }
    }
    let left = bed.run();
    left[20..120].iter().filter(|(_, _, host)| *host == 2).count()
}

#[test]
fn hosts_share() {
    for (flow_mode, expected) in [
        (CakeFlows::BLIND, [20, 20, 20]),
        (CakeFlows(1), [50, 20, 50]),
        (CakeFlows(2), [20, 50, 50]),
        (CakeFlows(3), [50, 50, 50]),
        (CakeFlows(4), [20, 20, 20]),
        (CakeFlows::DUAL_SOURCE, [50, 20, 50]),
        (CakeFlows::DUAL_DESTINATION, [20, 50, 50]),
        // All flows have one end in common: its part is the least.
        (CakeFlows::TRIPLE, [20, 20, 50]),
    ] {
        for (hosts, expected) in [Hosts::Sources, Hosts::Destinations, Hosts::Both].into_iter().zip(expected)
        {
            let share = share(flow_mode, hosts);
            assert!(share.abs_diff(expected) < 5, "{flow_mode:?}: {share}, not {expected}");
        }
    }
}

/// A flow that sends little does not wait behind one that sends much.
#[test]
fn sparse_flows_go_first() {
    let mut bed = Bed::new(&cake(Cake { rate: 100_000, ..params() }));
    for _ in 0..30 {
        bed.enqueue_frame(&frame(1000, 0, 1, 2, 1), 1);
    }
    (0..5).for_each(|_| {
        bed.now += 10_000_000;
        assert!(bed.dequeue().is_some());
    });
    bed.enqueue_frame(&frame(100, 0, 1, 2, 2), 2);
    bed.now += 10_000_000;
    assert_eq!(bed.dequeue(), Some((100, 2)));
    let own = tin(&mut bed, 0).own;
    assert_eq!((own[4], own[6], own[7]), (2, 1, 1));
}

/// Where there is no memory the longest queue loses its first packets.
#[test]
fn the_longest_queue_loses() {
    let slot = crate::buffer::SLOT as u32;
    let mut bed = Bed::new(&cake(Cake { memory: 10 * slot, ..params() }));
    bed.enqueue_frame(&frame(100, 0, 1, 2, 1), 1);
    for _ in 0..9 {
        assert_eq!(bed.enqueue_frame(&frame(1000, 0, 1, 2, 2), 2), Enqueued::Queued);
    }
    assert_eq!(bed.enqueue_frame(&frame(1000, 0, 1, 2, 2), 2), Enqueued::Dropped);
    assert_eq!(bed.enqueue_frame(&frame(100, 46, 1, 2, 3), 3), Enqueued::Queued);
    let count = bed.count(2);
    assert_eq!((count.drops, count.queued, count.backlog), (2, 10, 8200));
    assert_eq!((tin(&mut bed, 0).drops, tin(&mut bed, 2).drops, bed.drops()), (2, 0, 2));
    // BLUE drops the flow from now on with some probability.
    assert_eq!((tin(&mut bed, 0).own[8], count.own[0]), (1, u64::from(11 * slot)));
    assert_eq!(bed.run().len(), 10);
}

/// A queue that stays loses packets, or has them marked; what is dropped is charged where it comes from a bottleneck.
#[test]
fn queues_are_kept_short() {
    let run = |ingress, ecn: u8| {
        let mut bed = Bed::new(&cake(Cake { rate: 1_000_000, ingress, memory: 1 << 30, ..params() }));
        let mut packet = frame(1000, 0, 1, 2, 1);
        packet[15] = ecn;
        for step in 0..4000 {
            bed.now += 500_000;
            bed.enqueue_frame(&packet, 1);
            while bed.dequeue().is_some() {}
            if step % 500 == 0 {
                bed.drops();
            }
        }
        let (count, tin) = (bed.count(2), tin(&mut bed, 0));
        assert_eq!((count.drops, tin.packets), (tin.drops, 4000));
        assert_eq!(count.packets + count.drops + count.queued, 4000);
        (count.packets, tin.drops, tin.overlimits)
    };
    let (sent, dropped, marked) = run(false, 0);
    assert!((1995..2005).contains(&sent) && dropped > 20 && marked == 0, "{sent} {dropped}");
    let (sent, dropped, marked) = run(false, 2);
    assert!((1995..2005).contains(&sent) && dropped == 0 && marked > 20, "{sent} {dropped} {marked}");
    let (sent, charged, _) = run(true, 0);
    assert!((1995..2005).contains(&(sent + charged)) && charged > 20, "{sent} {charged}");
}

/// Large segments become the packets that they stand for, or stay whole.
#[test]
fn segments_are_cut() {
    for split_gso in [true, false] {
        let mut bed = Bed::new(&cake(Cake { rate: 1_000_000, split_gso, ..params() }));
        assert_eq!(bed.enqueue_segment(500, 1300), Enqueued::Queued);
        let (count, tin) = (bed.count(2), tin(&mut bed, 0));
        let parts = if split_gso { 3 } else { 1 };
        assert_eq!((count.queued, tin.packets, tin.bytes, tin.queued), (parts, parts, 1462, 1462));
        assert_eq!((count.own[2], 0xffff - count.own[3]), (554, 354));
        assert_eq!((bed.generated, bed.run().len() as u64), (parts - 1, parts));
        assert_eq!((bed.count(2).packets, bed.count(2).bytes), (3, 1462));
    }
}

/// What needless acknowledgements are dropped is no loss of others.
#[test]
fn acknowledgements_are_filtered() {
    let mut bed = Bed::new(&cake(Cake { rate: 1_000, ack_filter: CakeAcks::Aggressive, ..params() }));
    let mut ack = frame(54, 0, 1, 2, 1);
    (ack[17], ack[23], ack[46], ack[47]) = (40, 6, 0x50, 0x10);
    for number in 0..4 {
        ack[45] = number;
        assert_eq!(bed.enqueue_frame(&ack, number.into()), Enqueued::Queued);
    }
    let (count, tin) = (bed.count(2), tin(&mut bed, 0));
    assert_eq!((count.queued, count.backlog, count.drops), (1, 54, 3));
    assert_eq!((tin.packets, tin.bytes, tin.requeues, tin.drops), (4, 216, 3, 0));
    assert_eq!(bed.run().iter().map(|(_, _, number)| *number).collect::<Vec<_>>(), [3]);
}

/// Tins that are no more lose their packets, others keep them.
#[test]
fn fewer_tins() {
    let mut bed = Bed::new(&cake(Cake { diffserv: CakeTins::Diffserv8, ..params() }));
    for dscp in [1, 0, 46] {
        bed.enqueue_frame(&frame(100, dscp, 1, 2, 1), dscp.into());
    }
    bed.change(&cake(Cake { diffserv: CakeTins::Besteffort, ..params() }));
    assert_eq!((bed.count(2).queued, bed.count(2).backlog, bed.drops()), (1, 100, 2));
    bed.change(&cake(Cake { diffserv: CakeTins::Precedence, ..params() }));
    assert_eq!(bed.run().len(), 1);
}

/// A filter names queue and host; it drops, too.
#[test]
fn filters_choose() {
    let config = Cake { filters: Some(HookId(0)), ..params() };
    let mut bed = Bed::new(&cake(config));
    for (class, enqueued) in [
        (0x1_0001, Enqueued::Queued),
        (0x1_0001, Enqueued::Queued),
        (7, Enqueued::Queued),
        (u32::MAX, Enqueued::Filtered),
    ] {
        assert_eq!(bed.enqueue_frame(&frame(100, 0, 1, 2, 1), class), enqueued);
    }
    // The first of a tin is found where nobody was, as in Linux.
    let own = tin(&mut bed, 0).own;
    assert_eq!((own[4], own[6], bed.count(2).drops), (1, 2, 1));
}

/// Packets lose their DSCP, and are in their tin all the same.
#[test]
fn packets_are_washed() {
    let mut bed = Bed::new(&cake(Cake { wash: true, ..params() }));
    bed.enqueue_frame(&frame(100, 46, 1, 2, 1), 0);
    assert_eq!(tin(&mut bed, 2).packets, 1);
    let id = bed.with(|node, cx| node.dequeue(cx)).unwrap();
    assert_eq!(bed.items.take(id).unwrap().bytes()[15], 0);
}
