//! Traffic control where packets come in and leave: what passes, what is counted, and where packets go.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::lab::{Lab, MACS, PEERS, Watcher, frame, ip4, udp};
use underpass_engine::buffer::{LARGE_SLOT, MARGIN, Offload, Pool, PortId, SLOT, Segment, SegmentKind};
use underpass_engine::counters::{Count, Direction, TcCount, TcCounterId};
use underpass_engine::drops::DropReason;
use underpass_engine::qos::RateConfig;
use underpass_engine::tables::{
    ANY_PROTOCOL, Chance, ChanceKind, Classifier, Control, FilterChain, FilterPriority, Fw, FwFilter, Hook,
    HookId, LinkId, Mirred, MplsEdit, MplsFields, Outcome, Police, PoliceRate, Sample, Skbedit, TcAction,
    TcActionId, TcActionKind, U32Key, U32Node, U32Table, VlanEdit,
};
use underpass_engine::worker::{Burst, Keeper, Kept};
use underpass_packet::{ethernet, protocol};

const SECOND: u64 = 1_000_000_000;

impl Lab {
    fn action(&mut self, kind: TcActionKind, control: Control) -> (TcActionId, TcCounterId) {
        let counter = self.writer.add_tc_counter();
        (self.writer.add_tc_action(TcAction { kind, control, counter, estimator: None }), counter)
    }

    fn gact(&mut self, control: Control) -> TcActionId {
        self.action(TcActionKind::Gact(None), control).0
    }

    fn mirred(&mut self, to: LinkId, ingress: bool, redirect: bool) -> (TcActionId, TcCounterId) {
        let control = if redirect { Control::Stolen } else { Control::Pipe };
        self.action(TcActionKind::Mirred(Mirred { link: Some(to), ingress, redirect }), control)
    }

    /// A hook whose filters take every packet, one after the other in chain 0.
    fn hook(&mut self, filters: &[&[TcActionId]]) -> (HookId, TcCounterId) {
        let priorities = filters.iter().map(|actions| matchall(actions)).collect();
        self.chains(vec![FilterChain { index: 0, priorities }])
    }

    fn chains(&mut self, chains: Vec<FilterChain>) -> (HookId, TcCounterId) {
        let counter = self.writer.add_tc_counter();
        let hook = Hook { counter: Some(counter), chains, u32_tables: Vec::new() };
        (self.writer.add_hook(hook), counter)
    }

    fn attach(&mut self, port: u16, ingress: Option<HookId>, egress: Option<HookId>) {
        let link = underpass_engine::tables::Link { ingress, egress, ..self.link(port) };
        self.writer.set_link(self.links[usize::from(port)], link);
    }
}

fn matchall(actions: &[TcActionId]) -> FilterPriority {
    let outcome = Outcome { actions: actions.to_vec(), ..Outcome::default() };
    FilterPriority { protocol: ANY_PROTOCOL, classifier: Classifier::Matchall(outcome) }
}

fn of(protocol: u16, classifier: Classifier) -> FilterPriority {
    FilterPriority { protocol, classifier }
}

/// Frames of 100 bytes that are forwarded to port 1.
fn frames(count: usize) -> Vec<Vec<u8>> {
    vec![frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(58))); count]
}

/// So many bytes a second, and a bucket of so many.
fn police(bytes_per_second: u64, burst: u64, peak: Option<u64>) -> TcActionKind {
    let of = |bytes_per_second| RateConfig { bytes_per_second, ..RateConfig::default() };
    let burst = burst * SECOND / bytes_per_second;
    let rate = PoliceRate { rate: of(bytes_per_second), burst, peak: peak.map(of) };
    TcActionKind::Police(Police {
        rate: Some(rate),
        packets: None,
        mtu: 2000,
        average: None,
        conform: Control::Pipe,
    })
}

fn counted(count: TcCount) -> [u64; 4] {
    [count.packets, count.bytes, count.drops, count.overlimits]
}

/// Linux 6.12 charges at ingress without the Ethernet header: 86 bytes for each of these frames.
#[test]
fn police_at_ingress() {
    for watched in [false, true] {
        let mut lab = Lab::new();
        let (action, counter) = lab.action(police(8600, 860, None), Control::Drop);
        let (hook, sum) = lab.hook(&[&[action]]);
        lab.attach(0, Some(hook), None);
        let send = |lab: &mut Lab, count| match watched {
            true => lab.send_watched(&frames(count), &mut Watcher).len(),
            false => lab.send(&frames(count)).len(),
        };
        lab.now = SECOND;
        assert_eq!((send(&mut lab, 12), send(&mut lab, 1)), (10, 0));
        lab.now += 30_000_000;
        assert_eq!(send(&mut lab, 64), 3);
        lab.now += 5 * SECOND;
        assert_eq!(send(&mut lab, 9), 9);
        let wanted = [86, 86 * 86, 64, 64];
        assert_eq!(counted(lab.writer.tc_count(counter)), wanted);
        assert_eq!(counted(lab.writer.tc_count(sum)), [86, 86 * 86, 64, 0]);
        let count = lab.writer.tc_count(counter);
        assert_eq!((count.first_used, count.last_used), (SECOND, lab.now));
        let received = Count { packets: 86, bytes: 8600, errors: 0 };
        assert_eq!(lab.writer.link_count(lab.links[0], Direction::Receive), received);
        assert_eq!(lab.drops(), [("police", 64)]);
        lab.assert_accounted();
    }
}

/// A large segment is charged what it is on the wire, and passes as far as the bucket reaches.
#[test]
fn police_takes_segments_apart() {
    let region = |slot: usize| Vec::leak(vec![0; (slot + MARGIN) * 4]);
    let mut lab = Lab::with_pool(Pool::over(region(SLOT), region(LARGE_SLOT)));
    let (action, counter) = lab.action(police(1_000_000, 3000, None), Control::Drop);
    let (hook, _) = lab.hook(&[&[action]]);
    lab.attach(0, Some(hook), None);
    let segment = frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(5000)));
    // Six packets of 900 bytes of payload at most: five of 928 bytes, one of 528.
    let send = |lab: &mut Lab, now| {
        let mut packet = lab.worker.pool().take_for(segment.len()).unwrap();
        packet.bytes_mut().copy_from_slice(&segment);
        let offload = Segment { size: 900, kind: SegmentKind::Udp };
        packet.set_offload(Offload { start: 34, field: 6, segment: Some(offload) });
        lab.worker.process(PortId(0), &mut Burst::from_iter([packet]), now, None);
        let sent: Vec<_> = lab.worker.sent(PortId(1)).collect();
        let found = sent.iter().map(|packet| (packet.len(), packet.offload().unwrap().segment.is_some()));
        let found = found.collect::<Vec<_>>();
        sent.into_iter().for_each(|packet| lab.worker.pool().give(packet));
        found
    };
    assert_eq!(send(&mut lab, SECOND), [(42 + 3 * 900, true)]);
    assert_eq!(send(&mut lab, SECOND + 800_000), [(42 + 900, false)]);
    assert_eq!(send(&mut lab, SECOND + 900_000), []);
    assert_eq!(counted(lab.writer.tc_count(counter)), [18, 3 * (5 * 928 + 528), 3, 3]);
    assert_eq!(lab.drops(), [("police", 3)]);
    lab.assert_accounted();
}

/// The peak bucket holds one packet of the MTU; what exceeds can go on as well.
#[test]
fn police_with_a_peak_and_controls() {
    let mut lab = Lab::new();
    let (action, counter) = lab.action(police(8600, 8600, Some(86_000)), Control::Ok);
    let (hook, _) = lab.hook(&[&[action]]);
    lab.attach(0, Some(hook), None);
    lab.now = SECOND;
    assert_eq!(lab.send(&frames(30)).len(), 30);
    // 2000 bytes are 23 packets of 86.
    assert_eq!(counted(lab.writer.tc_count(counter)), [30, 30 * 86, 0, 7]);
    let counter = lab.writer.add_tc_counter();
    let kind = police(8600, 8600, Some(86_000));
    let control = Control::Continue;
    lab.writer.set_tc_action(action, TcAction { kind, control, counter, estimator: None });
    let drop = lab.gact(Control::Drop);
    let (hook, _) = lab.hook(&[&[action], &[drop]]);
    lab.attach(0, Some(hook), None);
    assert_eq!(lab.send(&frames(30)).len(), 23);
    assert_eq!(counted(lab.writer.tc_count(counter)), [30, 30 * 86, 0, 7]);
    assert_eq!(lab.drops(), [("tc-action", 7)]);
    lab.assert_accounted();
}

/// Police where packets leave charges the Ethernet header too; what it drops has not been sent.
#[test]
fn police_at_egress() {
    let mut lab = Lab::new();
    let (action, counter) = lab.action(police(10_000, 1000, None), Control::Drop);
    let (hook, _) = lab.hook(&[&[action]]);
    lab.attach(1, None, Some(hook));
    lab.now = SECOND;
    assert_eq!(lab.send(&frames(13)).len(), 10);
    assert_eq!(counted(lab.writer.tc_count(counter)), [13, 1300, 3, 3]);
    let sent = Count { packets: 10, bytes: 1000, errors: 0 };
    assert_eq!(lab.writer.link_count(lab.links[1], Direction::Transmit), sent);
    lab.assert_accounted();
    lab.attach(1, None, None);
    assert_eq!(lab.send(&frames(13)).len(), 13);
    assert_eq!(counted(lab.writer.tc_count(counter)), [13, 1300, 3, 3]);
}

#[test]
fn mirrors_and_redirects() {
    let mut lab = Lab::new();
    let original = frames(1).remove(0);
    // A copy back to where it came from; the packet itself goes on.
    let (mirror, counter) = lab.mirred(lab.links[0], false, false);
    let (hook, _) = lab.hook(&[&[mirror]]);
    lab.attach(0, Some(hook), None);
    let out = lab.send(&frames(1));
    assert_eq!(out.len(), 2);
    assert_eq!(out[0], (0, original.clone()));
    assert_eq!((out[1].0, &out[1].1[..6]), (1, &PEERS[1][..]));
    assert_eq!(counted(lab.writer.tc_count(counter)), [1, 86, 0, 0]);
    lab.assert_accounted();
    // The packet itself, not forwarded.
    let (redirect, _) = lab.mirred(lab.links[1], false, true);
    let (hook, _) = lab.hook(&[&[redirect]]);
    lab.attach(0, Some(hook), None);
    assert_eq!(lab.send(&frames(1)), [(1, original.clone())]);
    lab.assert_accounted();
    // As if it had come in by port 1, where what comes goes to port 0.
    let (redirect, _) = lab.mirred(lab.links[1], true, true);
    let (hook, _) = lab.hook(&[&[redirect]]);
    lab.attach(0, Some(hook), None);
    let out = lab.send(&frames(2));
    assert_eq!(out.len(), 2);
    assert_eq!((out[0].0, &out[0].1[..12]), (1, &[PEERS[1], MACS[1]].concat()[..]));
    assert_eq!(lab.writer.link_count(lab.links[1], Direction::Receive), Count::default());
    lab.assert_accounted();
}

#[test]
fn a_redirect_that_cannot_be() {
    let mut lab = Lab::new();
    let (gone, counter) = lab
        .action(TcActionKind::Mirred(Mirred { link: None, ingress: false, redirect: false }), Control::Pipe);
    let (redirect, redirected) = lab.mirred(lab.links[1], false, true);
    let (hook, _) = lab.hook(&[&[gone, redirect]]);
    lab.attach(0, Some(hook), None);
    let down = underpass_engine::tables::Link { up: false, ..lab.link(1) };
    lab.writer.set_link(lab.links[1], down);
    assert_eq!(lab.send(&frames(3)).len(), 0);
    assert_eq!(counted(lab.writer.tc_count(counter)), [3, 258, 0, 3]);
    assert_eq!(counted(lab.writer.tc_count(redirected)), [3, 258, 0, 3]);
    assert_eq!(lab.drops(), [("mirred-link", 3)]);
    lab.assert_accounted();
}

/// Links that redirect to each other, each way there is: a packet ends after four times.
#[test]
fn redirects_in_a_circle_end() {
    for (ingress, back) in [(false, false), (true, true), (false, true), (true, false)] {
        let mut lab = Lab::new();
        let (there, _) = lab.mirred(lab.links[1], ingress, true);
        let (here, _) = lab.mirred(lab.links[0], back, true);
        let (one, other) = (lab.hook(&[&[there]]).0, lab.hook(&[&[here]]).0);
        lab.attach(0, Some(one), Some(one));
        lab.attach(1, Some(other), Some(other));
        assert_eq!(lab.send(&frames(3)).len(), 0, "{ingress} {back}");
        assert_eq!(lab.drops(), [("mirred-loop", 3)], "{ingress} {back}");
        lab.assert_accounted();
    }
    // Copies of copies.
    let mut lab = Lab::new();
    let (mirror, _) = lab.mirred(lab.links[1], false, false);
    let (hook, _) = lab.hook(&[&[mirror, mirror]]);
    lab.attach(1, None, Some(hook));
    let out = lab.send(&frames(1)).len();
    assert!(out > 1, "{out}");
    lab.assert_accounted();
}

/// What goes to an ifb without a qdisc comes back behind the hook, at ingress and at egress, and is counted there.
#[test]
fn ifb_without_a_qdisc() {
    let mut lab = Lab::new();
    let ifb = underpass_engine::tables::Link { port: None, ifb: true, ..lab.link(1) };
    let ifb = lab.writer.add_link(ifb);
    let (redirect, _) = lab.mirred(ifb, false, true);
    let (hook, _) = lab.hook(&[&[redirect]]);
    lab.attach(0, Some(hook), None);
    lab.attach(1, None, Some(hook));
    assert_eq!(lab.send(&frames(5)).len(), 5);
    // Each packet twice.
    for side in [Direction::Receive, Direction::Transmit] {
        assert_eq!(lab.writer.link_count(ifb, side), Count { packets: 10, bytes: 1000, errors: 0 });
    }
    let sent = Count { packets: 5, bytes: 500, errors: 0 };
    assert_eq!(lab.writer.link_count(lab.links[1], Direction::Transmit), sent);
    lab.assert_accounted();
}

#[test]
fn headers_are_changed() {
    let mut lab = Lab::new();
    let push = TcActionKind::Vlan(VlanEdit::Push { protocol: 0x8100, id: 7, priority: 5 });
    let label = MplsFields { label: Some(16), ttl: Some(64), ..MplsFields::default() };
    let label = TcActionKind::Mpls(MplsEdit::Push { protocol: ethernet::MPLS, label });
    let (push, counter) = lab.action(push, Control::Pipe);
    let (label, _) = lab.action(label, Control::Pipe);
    let (redirect, _) = lab.mirred(lab.links[1], false, true);
    let (hook, _) = lab.hook(&[&[push, label, redirect]]);
    lab.attach(0, Some(hook), None);
    let out = lab.send(&frames(1));
    assert_eq!(&out[0].1[12..23], [0x81, 0, 0xa0, 7, 0x88, 0x47, 0, 1, 1, 64, 0x45]);
    assert_eq!(counted(lab.writer.tc_count(counter)), [1, 86, 0, 0]);
    // A label is taken off that is not there, and lowered that is not there.
    let (pop, _) = lab.action(TcActionKind::Mpls(MplsEdit::Pop { protocol: 0x0800 }), Control::Pipe);
    let (lower, counter) = lab.action(TcActionKind::Mpls(MplsEdit::DecrementTtl), Control::Pipe);
    let (hook, _) = lab.hook(&[&[pop, lower]]);
    lab.attach(0, Some(hook), None);
    assert_eq!(lab.send(&frames(2)).len(), 0);
    assert_eq!(counted(lab.writer.tc_count(counter)), [2, 172, 2, 0]);
    assert_eq!(lab.drops(), [("tc-edit", 2)]);
    lab.assert_accounted();
}

/// `skbedit mark` at ingress, `fw` at egress; `skbedit ptype` says whose a packet is.
#[test]
fn marks_go_along() {
    let mut lab = Lab::new();
    let mark = TcActionKind::Skbedit(Skbedit { mark: Some((0x35, 0xff)), ..Skbedit::default() });
    let (mark, _) = lab.action(mark, Control::Pipe);
    let (hook, _) = lab.hook(&[&[mark]]);
    lab.attach(0, Some(hook), None);
    let drop = lab.gact(Control::Drop);
    let filter = |handle, mask| {
        let outcome = Outcome { actions: vec![drop], ..Outcome::default() };
        let filters = vec![FwFilter { handle, ingress: None, outcome }];
        FilterChain {
            index: 0,
            priorities: vec![of(ANY_PROTOCOL, Classifier::Fw(Fw::Marks { mask, filters }))],
        }
    };
    let (other, same) = (lab.chains(vec![filter(0x34, u32::MAX)]).0, lab.chains(vec![filter(0x5, 0xf)]).0);
    lab.attach(1, None, Some(other));
    assert_eq!(lab.send(&frames(1)).len(), 1);
    lab.attach(1, None, Some(same));
    assert_eq!(lab.send(&frames(1)).len(), 0);
    assert_eq!(lab.drops(), [("tc-action", 1)]);
    let other_host = TcActionKind::Skbedit(Skbedit { packet_type: Some(3), ..Skbedit::default() });
    let (other_host, _) = lab.action(other_host, Control::Pipe);
    let (hook, _) = lab.hook(&[&[other_host]]);
    lab.attach(0, Some(hook), None);
    assert_eq!(lab.send(&frames(1)).len(), 0);
    assert_eq!(lab.writer.dropped(DropReason::OtherHost), 1);
    lab.assert_accounted();
}

#[test]
fn chains_and_protocols() {
    let mut lab = Lab::new();
    let (goto, drop, ok) = (lab.gact(Control::Goto(5)), lab.gact(Control::Drop), lab.gact(Control::Ok));
    let udp = U32Key { value: 17 << 16, mask: 0xff << 16, offset: 8, offset_mask: 0 };
    let outcome = Outcome { actions: vec![drop], ..Outcome::default() };
    let node = U32Node { keys: vec![udp], terminal: true, outcome, ..U32Node::default() };
    let only = |protocol, action| {
        of(protocol, Classifier::Matchall(Outcome { actions: vec![action], ..Outcome::default() }))
    };
    let chains = vec![
        FilterChain {
            index: 5,
            priorities: vec![of(ethernet::IPV4, Classifier::U32(0)), only(ANY_PROTOCOL, ok)],
        },
        FilterChain { index: 0, priorities: vec![only(ethernet::IPV6, drop), only(ethernet::IPV4, goto)] },
    ];
    let hook = Hook { counter: None, chains, u32_tables: vec![U32Table { buckets: vec![vec![node]] }] };
    let hook = lab.writer.add_hook(hook);
    lab.attach(0, Some(hook), None);
    let icmp = frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::ICMP, &[0; 64]));
    assert_eq!(lab.send(&[frames(1).remove(0), icmp]).len(), 1);
    assert_eq!(lab.drops(), [("tc-action", 1)]);
    lab.assert_accounted();
}

#[test]
fn filters_that_send_back_end() {
    let mut lab = Lab::new();
    for control in [Control::Reclassify, Control::Goto(0)] {
        let (action, counter) = lab.action(TcActionKind::Gact(None), control);
        let (hook, _) = lab.hook(&[&[action]]);
        lab.attach(0, Some(hook), None);
        assert_eq!(lab.send(&frames(1)).len(), 0);
        assert_eq!(lab.writer.tc_count(counter).packets, 17);
    }
    assert_eq!(lab.drops(), [("tc-loop", 2)]);
    // Actions that jump in a circle, and out of the list.
    for to in [0, 1, 2, 7] {
        let (again, jump) = (lab.gact(Control::Pipe), lab.gact(Control::Jump(to)));
        let (hook, _) = lab.hook(&[&[again, jump]]);
        lab.attach(0, Some(hook), None);
        assert_eq!(lab.send(&frames(1)).len(), 1, "jump {to}");
    }
    lab.assert_accounted();
}

#[test]
fn gact_by_chance() {
    let mut lab = Lab::new();
    let chance = |kind| TcActionKind::Gact(Some(Chance { kind, one_of: 10, control: Control::Drop }));
    let (regular, counter) = lab.action(chance(ChanceKind::Regular), Control::Ok);
    let (hook, _) = lab.hook(&[&[regular]]);
    lab.attach(0, Some(hook), None);
    assert_eq!((0..10).map(|_| lab.send(&frames(20)).len()).sum::<usize>(), 180);
    assert_eq!(counted(lab.writer.tc_count(counter)), [200, 200 * 86, 20, 0]);
    let (random, _) = lab.action(chance(ChanceKind::Random), Control::Ok);
    let (hook, _) = lab.hook(&[&[random]]);
    lab.attach(0, Some(hook), None);
    let passed = (0..100).map(|_| lab.send(&frames(50)).len()).sum::<usize>();
    assert!((4350..4650).contains(&passed), "{passed}");
    lab.assert_accounted();
}

/// A kernel that keeps ARP and VLAN 5, and may know somebody in VLAN 6.
struct Keeps;

impl Keeper for Keeps {
    fn kept(&mut self, ifindex: u32, frame: &[u8]) -> Kept {
        assert_eq!(ifindex, 2);
        match frame[12..16] {
            [8, 6, ..] | [0x81, 0, 0, 5] => Kept::Yes,
            [0x81, 0, 0, 6] => Kept::Copy,
            _ => Kept::No,
        }
    }
}

/// A filter sees what the kernel keeps, drops it, changes it, or lets it go to the kernel as it is then.
#[test]
fn what_the_kernel_keeps_passes_filters_first() {
    const KERNEL: PortId = PortId(7);
    let mut lab = Lab::new();
    lab.worker = lab.worker.beside_kernel(4).kept_by(Keeps);
    let untag = lab.action(TcActionKind::Vlan(VlanEdit::Pop), Control::Ok).0;
    let drop = lab.gact(Control::Drop);
    let all_of = |ethertype, action| {
        of(ethertype, Classifier::Matchall(Outcome { actions: vec![action], ..Outcome::default() }))
    };
    let arp = frame(ethernet::ARP, &[0; 28]);
    let in_vlan = |id: u8| {
        let mut tagged = frames(1).remove(0);
        tagged.splice(12..12, [0x81, 0, 0, id]);
        tagged
    };
    let attach = |lab: &mut Lab, priorities| {
        let (hook, _) = lab.chains(vec![FilterChain { index: 0, priorities }]);
        let link =
            underpass_engine::tables::Link { kernel: Some(KERNEL), ingress: Some(hook), ..lab.link(0) };
        lab.writer.set_link(lab.links[0], link);
    };
    let kernel = |lab: &mut Lab| -> Vec<Vec<u8>> {
        let sent: Vec<_> = lab.worker.sent(KERNEL).collect();
        let bytes = sent.iter().map(|packet| packet.bytes().to_vec()).collect();
        sent.into_iter().for_each(|packet| lab.worker.pool().give(packet));
        bytes
    };
    // Nothing takes them: each to whom it belongs, an unknown VLAN to both.
    attach(&mut lab, vec![]);
    let all = [arp.clone(), in_vlan(5), in_vlan(6), frames(1).remove(0)];
    assert_eq!(lab.send(&all).len(), 1);
    assert_eq!(kernel(&mut lab), all[..3]);
    assert_eq!(lab.drops(), [("vlan-unknown", 1)]);
    assert_eq!(lab.writer.totals().delivered, 3);
    // What the filter has made of it is looked at.
    attach(&mut lab, vec![all_of(ethernet::VLAN, untag)]);
    assert_eq!(lab.send(&all).len(), 3);
    assert_eq!(kernel(&mut lab), std::slice::from_ref(&arp));
    // Dropped before.
    attach(&mut lab, vec![all_of(ethernet::ARP, drop)]);
    assert_eq!(lab.send(&all).len(), 1);
    assert_eq!(kernel(&mut lab), all[1..3]);
    assert_eq!(lab.drops(), [("vlan-unknown", 2), ("tc-action", 1)]);
    lab.assert_accounted();
}

/// Of each packet a sample: as it came in and as it left, without its VLAN tag, as long as somebody listens and has room.
#[test]
fn samples_for_whoever_listens() {
    let next = Arc::new(AtomicU32::new(7));
    let sample = |truncate, heard| {
        let next = Arc::clone(&next);
        TcActionKind::Sample(Arc::new(Sample { rate: 1, truncate, group: 5, next, cookie: None, heard }))
    };
    let mut lab = Lab::new();
    let (ingress, counter) = lab.action(sample(Some(20), true), Control::Pipe);
    let (egress, _) = lab.action(sample(None, true), Control::Pipe);
    let (unheard, _) = lab.action(sample(None, false), Control::Pipe);
    let (into, out) = (lab.hook(&[&[ingress, unheard]]).0, lab.hook(&[&[egress]]).0);
    lab.attach(0, Some(into), None);
    lab.attach(1, None, Some(out));
    let frames = frames(1);
    assert_eq!(lab.send(&frames).len(), 1);
    let samples = lab.worker.samples();
    let [first, second] = samples.as_slice() else { panic!("{samples:?}") };
    let interfaces = [0, 1].map(|port| lab.link(port).ifindex);
    assert_eq!((first.number, first.received_by, first.leaves_by), (7, interfaces[0], 0));
    assert_eq!((first.length, first.protocol, &first.bytes[..]), (100, ethernet::IPV4, &frames[0][..20]));
    assert_eq!((second.number, second.received_by, second.leaves_by), (8, interfaces[0], interfaces[1]));
    assert_eq!((second.length, second.bytes.len()), (100, 100));
    assert_eq!(lab.writer.tc_count(counter).packets, 1);

    let mut tagged = frames[0].clone();
    tagged.splice(12..12, [0x81, 0, 0, 9]);
    lab.send(&[tagged]);
    let samples = lab.worker.samples();
    assert_eq!(samples[0].bytes, frames[0][..20]);
    assert_eq!((samples[0].length, samples[0].protocol), (100, ethernet::IPV4));

    lab.send(&self::frames(60));
    assert_eq!(lab.worker.samples().len(), 64);
    assert!(lab.worker.samples().is_empty());
    lab.assert_accounted();
}
