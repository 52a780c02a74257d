//! Traffic control at tunnels: the same packets come and go with hooks and queues as without, nothing is lost that waits,
//! and nothing goes round for ever.

use super::lab::{Lab, Watcher, frame};
use super::pair::{self, Pair, every, inner4, inner6};
use underpass_engine::buffer::PortId;
use underpass_engine::counters::{Direction, QueueId, TcCounterId};
use underpass_engine::drops::DropReason;
use underpass_engine::qos::{Rate, RateConfig};
use underpass_engine::tables::{
    ANY_PROTOCOL, Classifier, Control, FifoLimit, FilterChain, FilterPriority, Hook, HookId, Link, LinkId,
    Mirred, Outcome, Qdisc, QdiscId, QdiscKind, Tbf, TcAction, TcActionKind, TunnelKind,
};
use underpass_packet::ethernet;

/// A hook with one filter, which does this with every packet, and what counts there.
fn hook(lab: &mut Lab, kind: TcActionKind, control: Control) -> (HookId, TcCounterId) {
    let counter = lab.writer.add_tc_counter();
    let action = lab.writer.add_tc_action(TcAction { kind, control, counter, estimator: None });
    let outcome = Outcome { actions: vec![action], ..Outcome::default() };
    let all = FilterPriority { protocol: ANY_PROTOCOL, classifier: Classifier::Matchall(outcome) };
    let chains = vec![FilterChain { index: 0, priorities: vec![all] }];
    (lab.writer.add_hook(Hook { counter: None, chains, u32_tables: Vec::new() }), counter)
}

fn pass(lab: &mut Lab) -> (HookId, TcCounterId) {
    hook(lab, TcActionKind::Gact(None), Control::Ok)
}

fn redirect(lab: &mut Lab, to: LinkId, ingress: bool) -> HookId {
    let mirred = Mirred { link: Some(to), ingress, redirect: true };
    hook(lab, TcActionKind::Mirred(mirred), Control::Stolen).0
}

fn fifo(lab: &mut Lab, limit: u32) -> (QdiscId, QueueId) {
    let queue = lab.writer.add_queue();
    let kind = QdiscKind::Fifo(FifoLimit::Packets(limit));
    (lab.writer.add_qdisc(Qdisc::new(queue, 0x1_0000, kind)), queue)
}

/// A byte a microsecond, and this many at first.
fn tbf(lab: &mut Lab, max_size: u32) -> (QdiscId, QueueId) {
    let [queue, inside] = [lab.writer.add_queue(), lab.writer.add_queue()];
    let rate = RateConfig { bytes_per_second: 1_000_000, ..RateConfig::default() };
    let child = Qdisc::new(inside, 0, QdiscKind::Fifo(FifoLimit::Packets(100)));
    let buffer = Rate::new(rate).nanos(max_size);
    let kind = QdiscKind::Tbf(Box::new(Tbf { rate, buffer, peak: None, max_size, child }));
    (lab.writer.add_qdisc(Qdisc::new(queue, 0x1_0000, kind)), queue)
}

/// Changes the link of a tunnel of the near router, or of the far one.
fn change(lab: &mut Lab, id: LinkId, change: impl FnOnce(&mut Link)) {
    let mut link = Link { ifindex: 9, port: None, mtu: 1500, mac: pair::DEVICE, ..lab.link(0) };
    change(&mut link);
    lab.writer.set_link(id, link);
}

/// Every kind of tunnel, with hooks and queues at both ends and without.
#[test]
fn nothing_changes_what_passes() {
    for sample in every().into_iter().chain([pair::srv6l2()]) {
        let mut plain = Pair::new(&sample);
        let mut hooked = Pair::new(&sample);
        let [near, far] = hooked.links;
        let (egress, gone) = pass(&mut hooked.near);
        let (root, queue) = fifo(&mut hooked.near, 100);
        change(&mut hooked.near, near, |link| (link.egress, link.root) = (Some(egress), Some(root)));
        let (ingress, come) = pass(&mut hooked.far);
        let (behind, queue_behind) = fifo(&mut hooked.far, 100);
        change(&mut hooked.far, far, |link| {
            (link.ingress, link.ingress_qdisc) = (Some(ingress), Some(behind))
        });
        let mut packets = Vec::new();
        for len in [0, 1, 100] {
            packets.extend([inner4(len), inner6(len)].map(|packet| frame(pair::ethertype(&packet), &packet)));
        }
        let wires = plain.near.send(&packets);
        assert_eq!(hooked.near.send(&packets), wires, "{sample:?}");
        let wires: Vec<_> =
            wires.into_iter().map(|(_, wire)| frame(pair::ethertype(&wire[14..]), &wire[14..])).collect();
        let out = plain.far.send(&wires);
        assert_eq!(hooked.far.send(&wires), out, "{sample:?}");
        assert_eq!(plain.counted(), hooked.counted(), "{sample:?}");
        hooked.assert_accounted();
        let count = hooked.near.writer.tc_count(gone);
        // What may not be inside is refused behind them.
        assert!(hooked.near.writer.queue_count(queue).packets >= hooked.counted().0.packets);
        assert!(count.packets >= wires.len() as u64, "{sample:?}");
        assert_eq!(hooked.far.writer.tc_count(come).packets, hooked.counted().1.packets);
        assert_eq!(hooked.far.writer.queue_count(queue_behind).packets, hooked.counted().1.packets);
        // Watched: what waits is served step by step.
        let watched = hooked.far.send_watched(&wires, &mut Watcher);
        if !sample.receive.sequence {
            assert_eq!(watched, out, "{sample:?}");
        }
        // Without them again.
        change(&mut hooked.near, near, |_| {});
        change(&mut hooked.far, far, |_| {});
        assert_eq!(hooked.far.send(&wires), plain.far.send(&wires));
        hooked.assert_accounted();
    }
}

/// A tunnel is off the fast path for as long as there is something to ask.
#[test]
fn a_hook_takes_a_tunnel_off_the_fast_path() {
    let mut pair = Pair::of(TunnelKind::Gre, |_| {});
    let [near, _] = pair.links;
    let moves = |pair: &mut Pair| {
        let before = pair.near.writer.totals().buffer_moves_avoided;
        pair.wire(&inner4(9)).unwrap();
        pair.near.writer.totals().buffer_moves_avoided - before
    };
    assert_eq!(moves(&mut pair), 1);
    let (egress, counter) = pass(&mut pair.near);
    change(&mut pair.near, near, |link| link.egress = Some(egress));
    pair.wire(&inner4(9)).unwrap();
    assert_eq!(pair.near.writer.tc_count(counter).packets, 1);
    change(&mut pair.near, near, |_| {});
    assert_eq!(moves(&mut pair), 1);
    assert_eq!(pair.near.writer.tc_count(counter).packets, 1);
    pair.assert_accounted();
}

/// What waits leaves in its time, with the outer header on; what waits as the tunnel goes is dropped.
#[test]
fn a_tunnel_lets_packets_go_in_their_time() {
    for kind in [TunnelKind::Ipip, TunnelKind::Gretap, TunnelKind::Ip6gre] {
        let mut pair = Pair::of(kind, |_| {});
        let near = pair.links[0];
        let own = if kind == TunnelKind::Gretap { 14 } else { 0 };
        let len = 128 + own;
        let (root, queue) = tbf(&mut pair.near, 2 * len);
        change(&mut pair.near, near, |link| link.root = Some(root));
        let packets = vec![frame(ethernet::IPV4, &inner4(100)); 6];
        assert_eq!(pair.near.send(&packets).len(), 2, "{kind:?}");
        assert_eq!(pair.near.worker.queued(), 4);
        let mut times = Vec::new();
        for _ in 0..3 {
            let due = pair.near.worker.deadline().unwrap();
            pair.near.worker.advance(due, None);
            assert_eq!(pair.near.worker.discard_sent(PortId(0)), 1);
            times.push(due / 1000);
        }
        assert_eq!(times, [1, 2, 3].map(|n| n * u64::from(len)), "{kind:?}");
        let count = pair.near.writer.link_count(near, Direction::Transmit);
        assert_eq!((count.packets, count.errors), (5, 0));
        let count = pair.near.writer.queue_count(queue);
        assert_eq!((count.packets, count.bytes, count.queued), (5, 5 * u64::from(len), 1));
        change(&mut pair.near, near, |_| {});
        pair.near.writer.remove_qdisc(root);
        pair.near.now = 1_000_000_000;
        assert_eq!(pair.near.send(&[]).len(), 0);
        assert_eq!(pair.near.writer.dropped(DropReason::QdiscPurged), 1);
        pair.assert_accounted();
    }
}

/// Filters that send packets back to where they came from: each goes round a few times, and is dropped.
#[test]
fn nothing_goes_round_for_ever() {
    for (kind, ingress) in [(TunnelKind::Ipip, false), (TunnelKind::Gretap, false), (TunnelKind::Ipip, true)]
    {
        let mut pair = Pair::of(kind, |tunnel| tunnel.dont_fragment = false);
        let near = pair.links[0];
        // The outer packet is redirected into the tunnel where it leaves; or what goes in, to come in there again.
        let into = redirect(&mut pair.near, near, ingress);
        let (root, _) = fifo(&mut pair.near, 100);
        if ingress {
            change(&mut pair.near, near, |link| (link.egress, link.ingress) = (Some(into), Some(into)));
        } else {
            change(&mut pair.near, near, |link| link.root = Some(root));
            let link = Link { egress: Some(into), ..pair.near.link(0) };
            pair.near.writer.set_link(pair.near.links[0], link);
        }
        for _ in 0..3 {
            pair.near.send(&[frame(ethernet::IPV4, &inner4(400))]);
        }
        assert!(pair.near.writer.dropped(DropReason::MirredLoop) > 0, "{kind:?}: {:?}", pair.near.drops());
        pair.assert_accounted();
    }
}

/// What the host sends by the device is asked where it goes in, and not where packets come out.
#[test]
fn what_the_host_sends_does_not_come_out() {
    let mut pair = Pair::of(TunnelKind::Gre, |_| {});
    let (ingress, come) = pass(&mut pair.near);
    let (egress, gone) = pass(&mut pair.near);
    let (behind, _) = fifo(&mut pair.near, 1);
    let hooks = |link: &mut Link| {
        (link.ingress, link.egress, link.ingress_qdisc) = (Some(ingress), Some(egress), Some(behind));
    };
    let sent = pair.send_by_device_with(&frame(ethernet::IPV4, &inner4(9)), hooks);
    assert_eq!(sent.len(), 1);
    assert_eq!(pair.near.writer.tc_count(come).packets, 0);
    let count = pair.near.writer.tc_count(gone);
    assert_eq!((count.packets, count.bytes), (1, inner4(9).len() as u64));
    pair.assert_accounted();
}
