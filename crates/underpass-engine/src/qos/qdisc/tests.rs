//! Single queueing disciplines against what Linux does to the nanosecond; any of them: [`trees`].

mod cake;
mod fq;
mod netem;
mod red;
mod sfq;
mod trees;

use super::*;
use crate::buffer::{Frames, HEADROOM, Offload, Packet, Pool, Segment, SegmentKind, Tag};
use crate::drops::DropReason;
use crate::qos::RateConfig;
use crate::tables::{self, FifoLimit, HookId, HtbClass, Qdisc, QdiscKind, StoredQdisc, TICK};

/// Filters that name the class that a packet's mark is; 0: none.
pub(super) struct ByMark<'a>(&'a mut Pool);

impl Classify for ByMark<'_> {
    fn pool(&mut self) -> &mut Pool {
        self.0
    }

    fn classify(&mut self, _: HookId, item: &mut Item) -> Class {
        match item.packet().map_or(0, |packet| packet.tag().mark) {
            0 => Class::None,
            u32::MAX => Class::Shot,
            mark => Class::Class(mark),
        }
    }
}

/// A tree, and all that it needs.
pub(super) struct Bed {
    pub(super) node: Node,
    items: Items,
    pool: Pool,
    dropped: Vec<(Packet, DropReason)>,
    pub(super) now: Nanos,
    pub(super) due: Nanos,
    /// Packets that have become several, and how many more.
    pub(super) generated: u64,
    tag: Tag,
}

impl Bed {
    pub(super) fn new(root: &Qdisc) -> Self {
        Self::of_slots(root, 4096)
    }

    /// With room for so many packets.
    fn of_slots(root: &Qdisc, slots: usize) -> Self {
        let mut items = Items::new(slots);
        let mut pool = Pool::new(slots);
        let mut dropped = Vec::new();
        let now = 1_000_000_000_000;
        let cx = &mut Context {
            now,
            items: &mut items,
            classify: &mut ByMark(&mut pool),
            due: Nanos::MAX,
            lost: Lost::default(),
            dropped: &mut dropped,
            generated: 0,
        };
        let node = Node::build(&StoredQdisc::new(root.clone(), 0, None, 1), true, None, cx);
        Self { node, items, pool, dropped, now, due: Nanos::MAX, generated: 0, tag: Tag::default() }
    }

    fn with<R>(&mut self, what: impl FnOnce(&mut Node, &mut Context<'_, ByMark<'_>>) -> R) -> R {
        let cx = &mut Context {
            now: self.now,
            items: &mut self.items,
            classify: &mut ByMark(&mut self.pool),
            due: Nanos::MAX,
            lost: Lost::default(),
            dropped: &mut self.dropped,
            generated: 0,
        };
        let result = what(&mut self.node, cx);
        self.due = cx.due;
        self.generated += cx.generated;
        result
    }

    pub(super) fn change(&mut self, root: &Qdisc) {
        self.with(|node, cx| {
            let old = std::mem::replace(node, Node::nothing());
            *node = Node::build(&StoredQdisc::new(root.clone(), 0, None, 1), true, Some(old), cx);
        });
    }

    /// Enqueues a frame of `len` bytes to a class.
    pub(super) fn enqueue(&mut self, len: usize, mark: u32) -> Enqueued {
        let mut packet = self.pool.take().unwrap();
        packet.place(HEADROOM.min(packet.slot().len() - len), len).unwrap();
        packet.bytes_mut().fill(0);
        packet.set_tag(Tag { mark, ..Tag::default() });
        self.enqueue_packet(packet)
    }

    /// What the next frame has besides its mark.
    pub(super) fn tag(&mut self, tag: Tag) {
        self.tag = tag;
    }

    /// Enqueues this frame.
    pub(super) fn enqueue_frame(&mut self, frame: &[u8], mark: u32) -> Enqueued {
        let mut packet = self.pool.take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        packet.set_tag(Tag { mark, ..std::mem::take(&mut self.tag) });
        self.enqueue_packet(packet)
    }

    /// Enqueues a segment of TCP of `bytes` in parts of `size`.
    pub(super) fn enqueue_segment(&mut self, size: u16, bytes: usize) -> Enqueued {
        let mut packet = self.pool.take().unwrap();
        let mut frame = vec![0; 54 + bytes];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        let len = (40 + bytes) as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
        packet.set(HEADROOM, &frame).unwrap();
        let segment = Some(Segment { size, kind: SegmentKind::Tcp4 });
        packet.set_offload(Offload { start: 34, field: 16, segment });
        self.enqueue_packet(packet)
    }

    fn enqueue_packet(&mut self, packet: Packet) -> Enqueued {
        let charged = self.node.charge(&packet);
        let item = Item::new(packet, Origin::Here, charged);
        let id = self.items.put(item).unwrap();
        self.with(|node, cx| node.enqueue(id, cx))
    }

    /// Dequeues what may leave now: length and mark.
    pub(super) fn dequeue(&mut self) -> Option<(u32, u32)> {
        let id = self.with(|node, cx| node.dequeue(cx))?;
        let item = self.items.take(id).unwrap();
        let mark = item.packet().unwrap().tag().mark;
        self.pool.give(item.packet.unwrap());
        Some((item.len, mark))
    }

    /// Until nothing waits: when what left.
    pub(super) fn run(&mut self) -> Vec<(Nanos, u32, u32)> {
        let mut left = Vec::new();
        // Each packet waits for a bucket of each class above it, or of each tree of one.
        for _ in 0..100 * self.items.limit() {
            while let Some((len, mark)) = self.dequeue() {
                left.push((self.now, len, mark));
            }
            if self.node.len() == 0 {
                return left;
            }
            assert!(self.due > self.now && self.due < Nanos::MAX, "it waits for nothing: {}", self.due);
            self.now = self.due;
        }
        panic!("{} packets wait for ever", self.node.len());
    }

    pub(super) fn drops(&mut self) -> usize {
        let count = self.dropped.len();
        self.dropped.drain(..).for_each(|(packet, _)| self.pool.give(packet));
        count
    }

    pub(super) fn count(&mut self, queue: u32) -> QueueCount {
        let counters = Counters::default();
        (0..64).for_each(|id| counters.reserve_queue(QueueId(id)));
        fn all(node: &mut Node) {
            node.changed = true;
            match &mut node.kind {
                Kind::Prio(prio) => prio.bands.iter_mut().for_each(all),
                Kind::Tbf(tbf) => all(&mut tbf.child),
                Kind::Red(red) => all(&mut red.child),
                Kind::Netem(netem) => netem.child.iter_mut().for_each(all),
                Kind::Htb(htb) => {
                    htb.reserve();
                    htb.classes.iter_mut().filter_map(|class| class.leaf.as_mut()).for_each(all);
                }
                _ => {}
            }
        }
        all(&mut self.node);
        self.node.report(&counters);
        counters.read_queue(QueueId(queue))
    }
}

pub(super) fn rate(bytes_per_second: u64) -> RateConfig {
    RateConfig { bytes_per_second, ..RateConfig::default() }
}

/// A table of two cells, or an overhead alone.
pub(super) fn size_table(number: u8) -> Arc<SizeTable> {
    let sizes = if number < 128 { Box::default() } else { Box::from([900, u16::from(number)]) };
    let overhead = i32::from(number) - 30;
    Arc::new(SizeTable { overhead, cell_align: -1, cell_log: 9, size_log: 0, sizes })
}

pub(super) fn pfifo(queue: u32, limit: u32) -> Qdisc {
    Qdisc::new(QueueId(queue), 0, QdiscKind::Fifo(FifoLimit::Packets(limit)))
}

pub(super) fn bfifo(queue: u32, limit: u32) -> Qdisc {
    Qdisc::new(QueueId(queue), 0, QdiscKind::Fifo(FifoLimit::Bytes(limit)))
}

pub(super) fn tbf(queue: u32, bytes_per_second: u64, burst: u32, child: Qdisc) -> Qdisc {
    let buffer = crate::qos::Rate::new(rate(bytes_per_second)).nanos(burst);
    let max_size = burst;
    let tbf = tables::Tbf { rate: rate(bytes_per_second), buffer, peak: None, max_size, child };
    Qdisc::new(QueueId(queue), 0x1_0000 * queue, QdiscKind::Tbf(Box::new(tbf)))
}

pub(super) fn class(queue: u32, minor: u32, parent: u32, speed: u64, ceil: u64, leaf: Qdisc) -> HtbClass {
    // As `tc` has it: 1600 bytes.
    let buffer = |speed| crate::qos::Rate::new(rate(speed)).nanos(1600) / TICK * TICK;
    HtbClass {
        queue: QueueId(queue),
        classid: 0x1_0000 | minor,
        parent: (parent != 0).then_some(0x1_0000 | parent),
        rate: rate(speed),
        ceil: rate(ceil),
        buffer: buffer(speed),
        cbuffer: buffer(ceil),
        prio: 0,
        quantum: HtbClass::quantum(&rate(speed), 10, 0).0,
        filters: None,
        leaf,
    }
}

pub(super) fn htb(queue: u32, default: u32, classes: Vec<HtbClass>) -> Qdisc {
    let htb = tables::Htb { default, direct: 1000, filters: Some(HookId(0)), classes };
    Qdisc::new(QueueId(queue), 0x1_0000, QdiscKind::Htb(Box::new(htb)))
}

/// 12 ms a packet of 1,500 bytes at 1 Mbit/s: the burst at once, then a packet each 12 ms.
#[test]
fn tbf_is_exact() {
    let mut bed = Bed::new(&tbf(1, 125_000, 3000, bfifo(2, 15_000)));
    let start = bed.now;
    for _ in 0..10 {
        assert_eq!(bed.enqueue(1500, 0), Enqueued::Queued);
    }
    assert_eq!(bed.enqueue(1500, 0), Enqueued::Dropped);
    assert_eq!(bed.enqueue(3001, 0), Enqueued::Dropped);
    let left: Vec<_> = bed.run().into_iter().map(|(at, ..)| at - start).collect();
    let expected: Vec<_> = [0, 0].into_iter().chain((1..9).map(|n| n * 12_000_000)).collect();
    assert_eq!(left, expected);
    let count = bed.count(1);
    assert_eq!((count.bytes, count.packets, count.drops, count.overlimits), (15_000, 10, 2, 8));
    assert_eq!(bed.count(2).drops, 1);
}

/// A class of 1 Mbit/s and one of 3 Mbit/s below 4 Mbit/s: each its own, and what one leaves the other takes.
#[test]
fn htb_lends() {
    let classes = vec![
        class(2, 1, 0, 500_000, 500_000, pfifo(3, 0)),
        class(4, 0x10, 1, 125_000, 500_000, pfifo(5, 400)),
        class(6, 0x20, 1, 375_000, 500_000, pfifo(7, 100)),
    ];
    let mut bed = Bed::new(&htb(1, 0, classes));
    let start = bed.now;
    for _ in 0..400 {
        bed.enqueue(1000, 0x1_0010);
    }
    for _ in 0..100 {
        bed.enqueue(1000, 0x1_0020);
    }
    let left = bed.run();
    let until = |bytes: u64, speed: u64| bytes * 1_000_000_000 / speed;
    let last = |mark| left.iter().rfind(|left| left.2 == mark).unwrap().0 - start;
    // 100 kB at 3/4 of 500 kB/s, but for bursts; then the rest has it all.
    let near = |a: u64, b: u64| a.abs_diff(b) < 8_000_000;
    assert!(near(last(0x1_0020), until(100_000, 375_000)), "{}", last(0x1_0020));
    assert!(near(last(0x1_0010), until(500_000, 500_000)), "{}", last(0x1_0010));
    let (own, lent) = (bed.count(4), bed.count(2));
    assert_eq!((own.packets, own.bytes), (400, 400_000));
    assert_eq!((lent.packets, lent.bytes), (500, 500_000));
    assert_eq!(own.htb().lends + own.htb().borrows, 400);
    assert_eq!(lent.htb().lends, own.htb().borrows + bed.count(6).htb().borrows);
}

#[test]
fn htb_takes_what_no_filter_takes_to_its_default() {
    let mut bed = Bed::new(&htb(1, 0x10, vec![class(2, 0x10, 0, 125_000, 125_000, pfifo(3, 2))]));
    for mark in [0, 0x1_0010, 0x1_0099, 0x1_0000, u32::MAX] {
        bed.enqueue(100, mark);
    }
    // The direct queue goes first; the third was one too many, the last was shot.
    let marks: Vec<_> = bed.run().into_iter().map(|left| left.2).collect();
    assert_eq!(marks, [0x1_0000, 0, 0x1_0010]);
    assert_eq!((bed.count(1).direct_packets(), bed.count(1).drops, bed.drops()), (1, 2, 2));
    let mut bed = Bed::new(&htb(1, 0x99, vec![class(2, 0x10, 0, 125_000, 125_000, pfifo(3, 2))]));
    bed.enqueue(100, 0);
    assert_eq!((bed.run().len(), bed.count(1).direct_packets()), (1, 1));
}

/// Two leaves that are served equally by their quantum, and one of a higher priority that goes first.
#[test]
fn htb_takes_turns() {
    let mut classes = vec![class(2, 1, 0, 12_500_000, 12_500_000, pfifo(3, 0))];
    for (at, prio) in [(4, 1), (6, 1), (8, 0)] {
        let one = class(at, at, 1, 12_500, 12_500_000, pfifo(at + 1, 1000));
        classes.push(HtbClass { prio, quantum: 3000, ..one });
    }
    let mut bed = Bed::new(&htb(1, 0, classes));
    for _ in 0..40 {
        for at in [4, 6, 8] {
            bed.enqueue(1000, 0x1_0000 | at);
        }
    }
    let left = bed.run();
    let place = |mark: u32| left.iter().position(|left| left.2 == 0x1_0000 | mark).unwrap();
    let last = |mark: u32| left.iter().rposition(|left| left.2 == 0x1_0000 | mark).unwrap();
    assert!(last(8) < 50, "{}", last(8));
    assert!(place(4) < 10 && place(6) < 10);
    let of = |mark: u32, range: std::ops::Range<usize>| {
        left[range].iter().filter(|left| left.2 == 0x1_0000 | mark).count() as i64
    };
    assert!((of(4, 50..110) - of(6, 50..110)).abs() <= 6);
}

/// Linux 6.12: `tc -s class show dev v0` after 7 frames of 1,000 bytes at once, and 3 s later.
///
/// ```text
/// tc qdisc add dev v0 root handle 1: htb default 10
/// tc class add dev v0 parent 1: classid 1:1 htb rate 16kbit ceil 16kbit burst 3000 cburst 3000
/// tc class add dev v0 parent 1:1 classid 1:10 htb rate 8kbit ceil 16kbit burst 2000 cburst 3000
/// ```
#[test]
fn htb_counts_as_linux() {
    const SECOND: Nanos = 1_000_000_000;
    let above = HtbClass {
        buffer: SECOND * 3 / 2,
        cbuffer: SECOND * 3 / 2,
        ..class(2, 1, 0, 2000, 2000, pfifo(3, 0))
    };
    let leaf = HtbClass {
        buffer: 2 * SECOND,
        cbuffer: SECOND * 3 / 2,
        ..class(4, 0x10, 1, 1000, 2000, pfifo(5, 1000))
    };
    let mut bed = Bed::new(&htb(1, 0x10, vec![above, leaf]));
    let sent = (0..7).filter(|_| {
        bed.enqueue(1000, 0);
        bed.dequeue().is_some()
    });
    assert_eq!(sent.count(), 4);
    let ticks = |nanos: i64| nanos / TICK as i64;
    let reported = |count: QueueCount| {
        let own = count.htb();
        (count.packets, count.overlimits, own.lends, own.borrows, ticks(own.tokens), ticks(own.ctokens))
    };
    assert_eq!(reported(bed.count(4)), (4, 1, 3, 1, -15_625_000, -7_812_500));
    assert_eq!(reported(bed.count(2)), (4, 1, 1, 0, -7_812_500, -7_812_500));
    let count = bed.count(1);
    assert_eq!((count.bytes, count.overlimits, count.backlog, count.queued), (4000, 2, 3000, 3));
    bed.run();
    assert_eq!(reported(bed.count(4)), (7, 4, 4, 3, -7_812_500, -7_812_500));
    assert_eq!(reported(bed.count(2)), (7, 3, 3, 0, -7_812_500, -7_812_500));
    assert_eq!((bed.count(1).bytes, bed.count(1).overlimits), (7000, 7));
}

/// Linux 6.12: `tc -s qdisc show dev v0` after 12 frames of 1,000 bytes at once through `tbf rate 8kbit burst 3100 limit
/// 7000`: `Sent 3000 bytes 3 pkt (dropped 2, overlimits 9 requeues 0)`, `backlog 7000b 7p`.
#[test]
fn tbf_counts_as_linux() {
    let mut bed = Bed::new(&tbf(1, 1000, 3100, bfifo(2, 7000)));
    for _ in 0..12 {
        bed.enqueue(1000, 0);
        bed.dequeue();
    }
    let count = bed.count(1);
    assert_eq!((count.bytes, count.packets, count.drops, count.overlimits), (3000, 3, 2, 9));
    assert_eq!((count.backlog, count.queued), (7000, 7));
}

/// A bucket that becomes smaller than a packet that waits for it lets that go when it is full.
#[test]
fn tbf_is_left_by_what_it_has_become_too_small_for() {
    let mut bed = Bed::new(&tbf(1, 100_000, 2000, bfifo(2, 15_000)));
    for len in [1600, 1600, 400] {
        assert_eq!(bed.enqueue(len, 0), Enqueued::Queued);
    }
    bed.change(&tbf(1, 100_000, 500, bfifo(2, 15_000)));
    let start = bed.now;
    let left: Vec<_> = bed.run().into_iter().map(|(at, len, _)| ((at - start) / 1000, len)).collect();
    // 10 us a byte: 1,100 are owed after the first, and the bucket has to fill again.
    assert_eq!(left, [(0, 1600), (16_000, 1600), (31_000, 400)]);
}

/// A tree that is changed keeps what waits in what it still has.
#[test]
fn a_change_keeps_packets() {
    let classes = |speed, limit| {
        vec![
            class(2, 1, 0, speed, speed, pfifo(3, 0)),
            class(4, 0x10, 1, speed / 2, speed, pfifo(5, limit)),
            class(6, 0x20, 1, speed / 2, speed, tbf(7, 12_500, 3000, bfifo(8, 90_000))),
        ]
    };
    let mut bed = Bed::new(&htb(1, 0, classes(125_000, 20)));
    for _ in 0..20 {
        bed.enqueue(1000, 0x1_0010);
        bed.enqueue(1000, 0x1_0020);
    }
    for _ in 0..5 {
        bed.dequeue();
    }
    let waits = bed.node.len();
    bed.change(&htb(1, 0, classes(250_000, 5)));
    assert_eq!((bed.node.len(), bed.drops()), (waits, 0));
    assert_eq!(bed.enqueue(1000, 0x1_0010), Enqueued::Dropped);
    assert_eq!(bed.drops(), 1);
    // The second class goes, with its packets.
    let mut gone = classes(250_000, 20);
    gone.pop();
    bed.change(&htb(1, 0, gone));
    let purged = bed.drops() as u64;
    assert_eq!(bed.node.len() + purged, waits);
    let left = bed.run();
    assert!(left.iter().all(|left| left.2 == 0x1_0010));
    assert_eq!(left.len() as u64 + purged, waits);
    bed.change(&pfifo(9, 10));
    assert_eq!((bed.node.len(), bed.drops(), bed.pool.available()), (0, 0, 4096));
}

/// RFC 8289: a queue that stays above 5 ms for 100 ms loses a packet, then more and more.
#[test]
fn codel_drops_more_and_more() {
    let config = tables::FqCodel {
        filters: None,
        limit: 10_240,
        flows: 1024,
        quantum: 1514,
        target: 4999,
        interval: 99_999,
        ecn: true,
        ce_threshold: None,
        ce_threshold_selector: (0, 0),
        memory_limit: 32 << 20,
        drop_batch: 64,
        mtu: 1514,
    };
    let root = Qdisc::new(QueueId(1), 0x1_0000, QdiscKind::FqCodel(config));
    let mut bed = Bed::new(&root);
    let start = bed.now;
    let mut dropped = Vec::new();
    for step in 0..1000u64 {
        bed.now = start + step * 1_000_000;
        // Twice what leaves.
        bed.enqueue(1000, 0);
        bed.enqueue(1000, 0);
        bed.dequeue();
        dropped.extend(std::iter::repeat_n(step, bed.drops()));
    }
    // 5 ms after the first packet waits longer than that, and an interval later.
    assert!((105..=115).contains(&dropped[0]), "{dropped:?}");
    let gaps: Vec<_> = dropped.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // 1 / √count by one step of Newton's each time, which overshoots at first.
    assert!((99..=101).contains(&gaps[0]) && (49..=51).contains(&gaps[1]), "{gaps:?}");
    assert!((55..=58).contains(&gaps[2]) && (48..=51).contains(&gaps[3]), "{gaps:?}");
    let count = bed.count(1);
    assert_eq!(count.drops, dropped.len() as u64);
    assert_eq!(count.packets + count.drops + count.queued, 2000);
    assert_eq!(count.fq_codel().max_packet, 1000);
    assert_eq!(bed.drops(), 0);
}

/// Workers that share a rate send together what one could, but for what each may hold: a slice and a packet.
#[test]
fn workers_share_a_rate() {
    const SPEED: u64 = 1_250_000;
    let htb = htb(
        1,
        2,
        vec![class(2, 1, 0, SPEED, SPEED, pfifo(3, 0)), class(4, 2, 1, SPEED / 10, SPEED, pfifo(5, 2000))],
    );
    for root in [htb, tbf(1, SPEED, 10_000, bfifo(2, 1 << 24))] {
        for workers in [2, 4] {
            let stored = StoredQdisc::new(root.clone(), 0, None, workers);
            let mut beds: Vec<_> = (0..workers)
                .map(|_| {
                    let mut bed = Bed::new(&root);
                    bed.node = bed.with(|_, cx| Node::build(&stored, false, None, cx));
                    (0..1500).for_each(|_| assert_eq!(bed.enqueue(1000, 0), Enqueued::Queued));
                    bed
                })
                .collect();
            let start = beds[0].now;
            let mut left = Vec::new();
            // Each at its time, until a second has passed.
            while let Some(at) = (0..workers).min_by_key(|at| beds[*at].now)
                && beds[at].now < start + 1_000_000_000
            {
                let bed = &mut beds[at];
                while bed.dequeue().is_some() {
                    left.push(bed.now);
                }
                assert!(bed.due > bed.now && bed.due < Nanos::MAX);
                bed.now = bed.due;
            }
            let sum = left.len() as u64 * 1000;
            let slack = 10_000 + workers as u64 * (1000 + SPEED / 10_000) + 1600;
            assert!(sum <= SPEED + slack && sum >= SPEED * 99 / 100, "{workers} workers: {sum} of {SPEED}");
            for bed in &mut beds {
                let share = 1_500_000 - bed.node.count.backlog;
                assert!(share > SPEED / workers as u64 / 4, "a worker had {share}");
            }
        }
    }
}

/// What Linux 6.12 counts of a frame of so many bytes, by tables of `tc`.
#[test]
fn packets_are_charged_by_the_table() {
    let table = |overhead, cell_align, cell_log, size_log, sizes: &[u16]| SizeTable {
        overhead,
        cell_align,
        cell_log,
        size_log,
        sizes: sizes.into(),
    };
    let plain = table(20, 0, 0, 3, &[]);
    assert_eq!((plain.charge(100), plain.charge(u32::MAX)), (120, 19));
    assert_eq!(
        (table(-200, 0, 0, 0, &[]).charge(100), table(i32::MAX, 0, 0, 0, &[]).charge(0)),
        (1, 1 << 20)
    );
    // `stab linklayer atm tsize 4 mtu 256`: cells of 64 bytes.
    let atm = table(0, -1, 6, 0, &[106, 159, 212, 318]);
    let charged = [0, 1, 64, 65, 128, 256, 257, 320, 512, 513].map(|len| atm.charge(len));
    assert_eq!(charged, [106, 106, 106, 159, 159, 318, 424, 424, 636, 742]);
    assert_eq!(table(0, 0, 0, 30, &[1]).charge(0), 1 << 20);
    assert_eq!(table(0, 0, 0, 30, &[2]).charge(0), 1);
}

/// Linux 6.12 looks at the table of the root alone.
#[test]
fn the_root_charges() {
    let mut child = pfifo(2, 10);
    child.size_table = Some(size_table(40));
    let mut root = tbf(1, 1_000_000, 5000, child);
    let mut bed = Bed::new(&root);
    bed.enqueue(100, 0);
    assert_eq!((bed.count(1).backlog, bed.count(2).backlog), (100, 100));
    root.size_table = Some(size_table(50));
    bed.change(&root);
    assert!(!bed.node.pass_all(Lengths::pretended(&Frames::pretended(&[100])), bed.now));
    bed.enqueue(100, 0);
    assert_eq!((bed.count(1).backlog, bed.count(2).backlog), (220, 220));
    assert_eq!((bed.dequeue(), bed.dequeue()), (Some((100, 0)), Some((120, 0))));
}
