//! Qdiscs on the path of packets.

use super::lab;
use super::lab::{Lab, frame, ip4, udp};
use underpass_engine::buffer::{HEADROOM, PortId, Tag};
use underpass_engine::counters::{Direction, QueueId, TcCounterId};
use underpass_engine::qos::{Rate, RateConfig};
use underpass_engine::tables::{
    ANY_PROTOCOL, Classifier, Control, FifoLimit, FilterChain, FilterPriority, Fw, FwFilter, Hook, HookId,
    Htb, HtbClass, Link, LinkId, Mirred, Outcome, PRIOMAP, Prio, Qdisc, QdiscId, QdiscKind, Tbf, TcAction,
    TcActionKind,
};
use underpass_engine::trace::Watch;
use underpass_engine::worker::Burst;
use underpass_packet::ethernet;

/// 1,000 bytes with the Ethernet header.
const LEN: usize = 1000;
/// At 8 Mbit/s a millisecond a packet.
const SPEED: u64 = 1_000_000;
const MS: u64 = 1_000_000;

fn rate(bytes_per_second: u64) -> RateConfig {
    RateConfig { bytes_per_second, ..RateConfig::default() }
}

fn pfifo(queue: QueueId, limit: u32) -> Qdisc {
    Qdisc::new(queue, 0, QdiscKind::Fifo(FifoLimit::Packets(limit)))
}

/// A `tbf` of [`SPEED`] with a burst of two packets.
fn tbf(queues: [QueueId; 2], limit: u32) -> Qdisc {
    let max_size = 2 * LEN as u32;
    let buffer = Rate::new(rate(SPEED)).nanos(max_size);
    let tbf = Tbf { rate: rate(SPEED), buffer, peak: None, max_size, child: pfifo(queues[1], limit) };
    Qdisc::new(queues[0], 0x1_0000, QdiscKind::Tbf(Box::new(tbf)))
}

fn udp_frame(destination: [u8; 4]) -> Vec<u8> {
    frame(ethernet::IPV4, &ip4([10, 0, 0, 2], destination, 17, &udp(LEN - 14 - 20 - 8)))
}

/// Brings packets in by port 0 at a time.
fn process(lab: &mut Lab, count: usize, now: u64) {
    process_watched(lab, count, now, None);
}

fn process_watched(lab: &mut Lab, count: usize, now: u64, watch: Option<&mut dyn Watch>) {
    let mut burst = Burst::new();
    for _ in 0..count {
        let mut packet = lab.worker.pool().take().unwrap();
        packet.set(HEADROOM, &udp_frame([10, 1, 0, 7])).unwrap();
        burst.push(packet);
    }
    lab.worker.process(PortId(0), &mut burst, now, watch);
}

fn sent(lab: &mut Lab) -> usize {
    lab.worker.discard_sent(PortId(1))
}

/// Advances until nothing waits: when packets left.
fn run(lab: &mut Lab) -> Vec<u64> {
    let mut left = Vec::new();
    while let Some(due) = lab.worker.deadline() {
        lab.worker.advance(due, None);
        left.extend(std::iter::repeat_n(due, sent(lab)));
        assert_accounted(lab);
    }
    left
}

/// Every packet has left, was dropped, or waits.
fn assert_accounted(lab: &Lab) {
    let totals = lab.writer.totals();
    let dropped: u64 = lab.drops().iter().map(|(_, n)| n).sum();
    let waits = lab.worker.undecided() as u64;
    assert_eq!(totals.received + totals.generated, totals.sent + totals.delivered + dropped + waits);
}

/// Gives the link of a port what `change` says.
fn with_link(lab: &mut Lab, port: u16, change: impl FnOnce(&mut Link)) {
    let mut link = lab.link(port);
    change(&mut link);
    lab.writer.set_link(lab.links[usize::from(port)], link);
}

#[test]
fn a_root_qdisc_lets_packets_go_in_their_time() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let root = lab.writer.add_qdisc(tbf(queues, 5));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 10, 5 * MS);
    // Two leave at once, five wait, three are too many.
    assert_eq!((sent(&mut lab), lab.worker.queued()), (2, 5));
    assert_eq!(lab.drops(), [("qdisc-full", 3)]);
    assert_accounted(&lab);
    let count = lab.writer.link_count(lab.links[1], Direction::Transmit);
    assert_eq!((count.packets, count.bytes), (2, 2 * LEN as u64));
    assert_eq!(run(&mut lab), [6 * MS, 7 * MS, 8 * MS, 9 * MS, 10 * MS]);
    let count = lab.writer.link_count(lab.links[1], Direction::Transmit);
    assert_eq!((count.packets, count.bytes), (7, 7 * LEN as u64));
    let count = lab.writer.queue_count(queues[0]);
    assert_eq!((count.packets, count.bytes, count.drops, count.queued), (7, 7 * LEN as u64, 3, 0));
    assert_eq!(lab.writer.queue_count(queues[1]).drops, 3);
    lab.assert_accounted();
}

/// A worker that is late by more than the bucket holds lets go what would have left, had it been on time; but one that
/// has stood still for long does not send all of that together.
#[test]
fn lateness_costs_no_rate() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let root = lab.writer.add_qdisc(tbf(queues, 100));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 60, 0);
    assert_eq!(sent(&mut lab), 2);
    // 2.5 packets late each time; a packet comes as well, before which those leave that were due.
    let mut left = 0;
    for turn in 1..=10 {
        let now = turn * 7 * MS / 2;
        if turn % 2 == 0 {
            process(&mut lab, 1, now);
        } else {
            lab.worker.advance(now, None);
        }
        left += sent(&mut lab) as u64;
        assert_eq!((left, lab.worker.deadline()), (now / MS, Some((now / MS + 1) * MS)), "{turn}");
        assert_accounted(&lab);
    }
    // 20 ms later it makes up for 10, and has a full bucket before.
    lab.worker.advance(56 * MS, None);
    assert_eq!((sent(&mut lab), lab.worker.queued()), (12, 60 + 5 - 2 - 35 - 12));
    // Time at which nothing waited is not made up for.
    run(&mut lab);
    process(&mut lab, 10, 1000 * MS);
    assert_eq!((sent(&mut lab), lab.worker.deadline()), (2, Some(1001 * MS)));
    assert_accounted(&lab);
}

/// Nobody looks each second whether a packet that has to wait for two may leave.
#[test]
fn what_waits_for_seconds_is_let_be() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let (slow, max_size) = (rate(LEN as u64 / 2), LEN as u32);
    let buffer = Rate::new(slow).nanos(max_size);
    let tbf = Tbf { rate: slow, buffer, peak: None, max_size, child: pfifo(queues[1], 10) };
    let root = lab.writer.add_qdisc(Qdisc::new(queues[0], 0x1_0000, QdiscKind::Tbf(Box::new(tbf))));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 2, 0);
    assert_eq!(sent(&mut lab), 1);
    let due = lab.worker.deadline().unwrap();
    assert!(due > 1900 * MS, "{due}");
    assert_eq!(run(&mut lab), [due]);
}

/// A worker that sleeps does not see that a qdisc goes, and another one with its number, elsewhere, is all that it finds.
#[test]
fn a_qdisc_that_has_the_number_of_another() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let root = lab.writer.add_qdisc(tbf(queues, 5));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 4, 5 * MS);
    assert_eq!((sent(&mut lab), lab.worker.queued()), (2, 2));
    lab.worker.idle();
    with_link(&mut lab, 1, |link| link.root = None);
    lab.writer.remove_qdisc(root);
    queues.iter().for_each(|queue| lab.writer.remove_queue(*queue));
    lab.writer.reclaim();
    let again = [lab.writer.add_queue(), lab.writer.add_queue()];
    let other = lab.writer.add_qdisc(tbf(again, 5));
    assert_eq!((other, again == queues), (root, false));
    with_link(&mut lab, 0, |link| link.ingress_qdisc = Some(other));
    process(&mut lab, 4, 6 * MS);
    // What waited is dropped; of the others two go on, as the bucket is a new one.
    assert_eq!((sent(&mut lab), lab.worker.queued(), lab.drops()), (2, 2, vec![("qdisc-purged", 2)]));
    let count = lab.writer.queue_count(again[0]);
    assert_eq!((count.packets, count.queued), (2, 2));
    assert_eq!(run(&mut lab).len(), 2);
    lab.assert_accounted();
}

#[test]
fn a_qdisc_behind_the_ingress_hook_shapes_what_comes_in() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue(), lab.writer.add_queue()];
    let buffer = Rate::new(rate(SPEED)).nanos(LEN as u32);
    let class = HtbClass {
        queue: queues[1],
        classid: 0x1_0010,
        parent: None,
        rate: rate(SPEED),
        ceil: rate(SPEED),
        buffer,
        cbuffer: buffer,
        prio: 0,
        quantum: HtbClass::quantum(&rate(SPEED), 10, 0).0,
        filters: None,
        leaf: pfifo(queues[2], 100),
    };
    let htb = Htb { default: 0x10, direct: 100, filters: None, classes: vec![class] };
    let htb = Qdisc::new(queues[0], 0x1_0000, QdiscKind::Htb(Box::new(htb)));
    let qdisc = lab.writer.add_qdisc(htb);
    with_link(&mut lab, 0, |link| link.ingress_qdisc = Some(qdisc));
    process(&mut lab, 5, 0);
    // Linux's HTB sends a packet as long as it owes nothing.
    assert_eq!((sent(&mut lab), lab.worker.queued()), (2, 3));
    assert_eq!(run(&mut lab), [MS, 2 * MS, 3 * MS]);
    let count = lab.writer.link_count(lab.links[0], Direction::Receive);
    assert_eq!((count.packets, count.bytes), (5, 5 * LEN as u64));
    let count = lab.writer.queue_count(queues[1]);
    assert_eq!((count.packets, count.htb().lends, count.htb().borrows), (5, 5, 0));
    assert_eq!(count.htb().tokens, -(MS as i64));
    lab.assert_accounted();
}

#[test]
fn a_change_takes_effect_at_once() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let root = lab.writer.add_qdisc(tbf(queues, 50));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 10, 0);
    assert_eq!((sent(&mut lab), lab.worker.queued()), (2, 8));
    // The same with another limit: what waits stays, also what is too much now.
    lab.writer.set_qdisc(root, tbf(queues, 4));
    process(&mut lab, 1, MS / 2);
    assert_eq!((sent(&mut lab), lab.worker.queued(), lab.drops()), (0, 8, vec![("qdisc-full", 1)]));
    // Another below a `prio`: it has other packets.
    let others = [(); 4].map(|()| lab.writer.add_queue());
    let bands = vec![tbf([others[1], others[2]], 50), pfifo(others[3], 50)];
    let prio = Prio { priomap: PRIOMAP, filters: None, bands };
    lab.writer.set_qdisc(root, Qdisc::new(others[0], 0x1_0000, QdiscKind::Prio(prio)));
    process(&mut lab, 1, MS);
    assert_eq!((sent(&mut lab), lab.worker.queued()), (1, 0));
    assert_eq!(lab.drops(), [("qdisc-full", 1), ("qdisc-purged", 8)]);
    lab.writer.set_qdisc(root, tbf(queues, 50));
    process(&mut lab, 5, 2 * MS);
    assert_eq!((sent(&mut lab), lab.worker.queued()), (2, 3));
    with_link(&mut lab, 1, |link| link.root = None);
    lab.writer.remove_qdisc(root);
    process(&mut lab, 1, 2 * MS);
    assert_eq!((sent(&mut lab), lab.worker.queued(), lab.worker.deadline()), (1, 0, None));
    lab.assert_accounted();
}

/// Nothing that waits is lost when the link goes down: it is dropped by that name.
#[test]
fn a_link_that_goes_down_drops_what_waits() {
    let mut lab = Lab::new();
    let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
    let root = lab.writer.add_qdisc(tbf(queues, 50));
    with_link(&mut lab, 1, |link| link.root = Some(root));
    process(&mut lab, 5, 0);
    assert_eq!(sent(&mut lab), 2);
    with_link(&mut lab, 1, |link| (link.root, link.up) = (Some(root), false));
    assert_eq!(run(&mut lab), []);
    assert_eq!(lab.drops(), [("link-down", 3)]);
    lab.assert_accounted();
}

/// More than the queue of a port holds: the rest waits for the port.
#[test]
fn a_full_port_keeps_packets_in_the_qdisc() {
    let mut lab = Lab::with_pool(underpass_engine::buffer::Pool::new(4096));
    let queues = [(); 4].map(|()| lab.writer.add_queue());
    let bands = vec![pfifo(queues[1], 0), pfifo(queues[2], 2000), pfifo(queues[3], 2000)];
    let prio = Prio { priomap: PRIOMAP, filters: None, bands };
    let prio = Qdisc::new(queues[0], 0x1_0000, QdiscKind::Prio(prio));
    let root = lab.writer.add_qdisc(prio);
    with_link(&mut lab, 1, |link| link.root = Some(root));
    (0..18).for_each(|burst| process(&mut lab, 64, burst));
    assert_eq!(lab.worker.queued(), 18 * 64 - 768);
    assert_eq!(lab.worker.deadline(), Some(17));
    assert_eq!(sent(&mut lab), 768);
    lab.worker.advance(17, None);
    assert_eq!((sent(&mut lab), lab.worker.queued(), lab.worker.deadline()), (384, 0, None));
    assert_eq!(lab.drops(), []);
    lab.assert_accounted();
}

/// What no slot is left for is dropped by the qdisc; slots of another size than usual are as good.
#[test]
fn qdiscs_leave_slots_to_what_comes_in() {
    for size in [4096, 70_000] {
        let mut lab = Lab::with_pool(underpass_engine::buffer::Pool::with_slot_size(400, size));
        let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
        let root = lab.writer.add_qdisc(tbf(queues, 1000));
        with_link(&mut lab, 1, |link| link.root = Some(root));
        for _ in 0..6 {
            process(&mut lab, 50, 0);
        }
        let (sent, held) = (sent(&mut lab), lab.worker.queued());
        assert!(sent == 2 && held > 150 && held < 256, "{held}");
        let dropped = 300 - sent - held;
        assert_eq!(lab.drops(), [("qdisc-full", dropped as u64)]);
        assert_eq!(lab.writer.queue_count(queues[0]).drops, dropped as u64);
        assert_eq!(run(&mut lab).len(), held);
        lab.assert_accounted();
    }
}

/// A link for an ifb, with a root qdisc.
fn ifb(lab: &mut Lab, root: Option<QdiscId>) -> LinkId {
    let link = Link { ifindex: 9, port: None, ifb: true, root, ..lab.link(0) };
    lab.writer.add_link(link)
}

/// A hook that redirects every packet to a link.
fn redirect(lab: &mut Lab, to: LinkId) -> (HookId, TcCounterId) {
    let counter = lab.writer.add_tc_counter();
    let kind = TcActionKind::Mirred(Mirred { link: Some(to), ingress: false, redirect: true });
    let action = TcAction { kind, control: Control::Stolen, counter, estimator: None };
    let actions = vec![lab.writer.add_tc_action(action)];
    let classifier = Classifier::Matchall(Outcome { actions, ..Outcome::default() });
    let priorities = vec![FilterPriority { protocol: ANY_PROTOCOL, classifier }];
    let chains = vec![FilterChain { index: 0, priorities }];
    let hook = Hook { counter: None, chains, u32_tables: Vec::new() };
    (lab.writer.add_hook(hook), counter)
}

/// What comes in is shaped by the ifb, and goes on behind the hook; so is what leaves.
#[test]
fn an_ifb_gives_packets_back_where_they_were_taken() {
    for (port, way) in [(0, Direction::Receive), (1, Direction::Transmit)] {
        for watched in [false, true] {
            let mut lab = Lab::new();
            let queues = [lab.writer.add_queue(), lab.writer.add_queue()];
            let root = lab.writer.add_qdisc(tbf(queues, 5));
            let ifb = ifb(&mut lab, Some(root));
            let (hook, counter) = redirect(&mut lab, ifb);
            with_link(&mut lab, port, |link| match way {
                Direction::Receive => link.ingress = Some(hook),
                Direction::Transmit => link.egress = Some(hook),
            });
            for (burst, now) in [(5, 0), (0, MS), (0, 2 * MS), (0, 3 * MS)] {
                if burst > 0 && watched {
                    process_watched(&mut lab, burst, now, Some(&mut lab::Watcher));
                } else if burst > 0 {
                    process(&mut lab, burst, now);
                } else {
                    assert_eq!(lab.worker.deadline(), Some(now));
                    lab.worker.advance(now, None);
                }
                assert_eq!(sent(&mut lab), if burst > 0 { 2 } else { 1 });
                assert_accounted(&lab);
            }
            assert_eq!(lab.worker.queued(), 0);
            for way in [Direction::Receive, Direction::Transmit] {
                let count = lab.writer.link_count(ifb, way);
                assert_eq!((count.packets, count.bytes), (5, 5 * LEN as u64));
            }
            let count = lab.writer.link_count(lab.links[usize::from(port)], way);
            assert_eq!((count.packets, count.bytes), (5, 5 * LEN as u64));
            assert_eq!(lab.writer.tc_count(counter).packets, 5);
            let count = lab.writer.queue_count(queues[0]);
            assert_eq!((count.packets, count.bytes, count.drops), (5, 5 * LEN as u64, 0));
            lab.assert_accounted();
        }
    }
}

/// Without a qdisc packets go straight through; a packet that an ifb sends into itself ends there.
#[test]
fn an_ifb_without_a_qdisc_and_one_that_leads_to_itself() {
    let mut lab = Lab::new();
    let ifb = ifb(&mut lab, None);
    let (hook, _) = redirect(&mut lab, ifb);
    with_link(&mut lab, 0, |link| link.ingress = Some(hook));
    process(&mut lab, 7, 0);
    assert_eq!((sent(&mut lab), lab.writer.link_count(ifb, Direction::Transmit).packets), (7, 7));
    let link = Link { ifindex: 9, port: None, ifb: true, egress: Some(hook), ..lab.link(0) };
    lab.writer.set_link(ifb, link);
    process(&mut lab, 3, MS);
    assert_eq!(sent(&mut lab), 0);
    assert_eq!(lab.drops().iter().map(|(_, n)| n).sum::<u64>(), 3, "{:?}", lab.drops());
    lab.assert_accounted();
}

/// The class of HTB that a filter chooses, by the mark; what an action drops is counted by the qdisc.
#[test]
fn filters_choose_the_class() {
    let mut lab = Lab::new();
    let queues = [(); 5].map(|()| lab.writer.add_queue());
    let drop = TcAction {
        kind: TcActionKind::Gact(None),
        control: Control::Drop,
        counter: lab.writer.add_tc_counter(),
        estimator: None,
    };
    let drop = lab.writer.add_tc_action(drop);
    let filter = |handle, class, actions| FwFilter {
        handle,
        ingress: None,
        outcome: Outcome { class, actions, ..Outcome::default() },
    };
    let filters = vec![filter(7, 0x1_0020, vec![]), filter(8, 0, vec![drop])];
    let classifier = Classifier::Fw(Fw::Marks { mask: u32::MAX, filters });
    let priorities = vec![FilterPriority { protocol: ANY_PROTOCOL, classifier }];
    let chains = vec![FilterChain { index: 0, priorities }];
    let hook = lab.writer.add_hook(Hook { counter: None, chains, u32_tables: Vec::new() });
    let buffer = 10 * MS;
    let class = |queues: &[QueueId], classid| HtbClass {
        queue: queues[0],
        classid,
        parent: None,
        rate: rate(SPEED),
        ceil: rate(SPEED),
        buffer,
        cbuffer: buffer,
        prio: 0,
        quantum: 1514,
        filters: None,
        leaf: pfifo(queues[1], 100),
    };
    let classes = vec![class(&queues[1..3], 0x1_0010), class(&queues[3..5], 0x1_0020)];
    let htb = Htb { default: 0x10, direct: 100, filters: Some(hook), classes };
    let htb = Qdisc::new(queues[0], 0x1_0000, QdiscKind::Htb(Box::new(htb)));
    let root = lab.writer.add_qdisc(htb);
    with_link(&mut lab, 1, |link| link.root = Some(root));
    let mut burst = Burst::new();
    for mark in [0, 7, 8, 7, 9] {
        let mut packet = lab.worker.pool().take().unwrap();
        packet.set(HEADROOM, &udp_frame([10, 1, 0, 7])).unwrap();
        packet.set_tag(Tag { mark, ..Tag::default() });
        burst.push(packet);
    }
    lab.worker.process(PortId(0), &mut burst, 0, None);
    assert_eq!(sent(&mut lab), 4);
    let packets = queues.map(|queue| lab.writer.queue_count(queue).packets);
    assert_eq!(packets, [4, 2, 2, 2, 2]);
    assert_eq!(lab.writer.queue_count(queues[0]).drops, 1);
    assert_eq!(lab.drops(), [("tc-action", 1)]);
    lab.assert_accounted();
}
