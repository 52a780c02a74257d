//! Bursts of packets of many kinds in rows of any length: the fast path, which finds and counts once what a run shares,
//! and the slow path come to the same.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use underpass_engine::bpf::Program;
use underpass_engine::buffer::Pool;
use underpass_engine::counters::{Count, CounterId, Direction, MplsCount, TcCount, TcCounterId, Totals};
use underpass_engine::hmac::{Algorithm, Key, Keys};
use underpass_engine::tables::{
    Action, Behaviour, Bpf, Classifier, Control, FilterChain, FilterPriority, FouPayload, FouPort, GreFields,
    Headend, HeadendMode, Hook, HookId, LabelAction, Link, LinkId, Multipath, Outcome, Push, Rpl, SourcePort,
    Switch, SwitchTo, TcAction, TcActionKind, TunnelKind, TunnelRoute, TunnelUdp, U32Key, U32Next, U32Node,
    U32Table, Via,
};
use underpass_packet::mpls::{self, Entry};
use underpass_packet::{checksum, ethernet, protocol};

use super::exercise::op;
use super::lab::{Lab, Watcher, frame, ip4, ip6, udp, v6, with_srh};
use super::pair;

/// How a router sees the packets of a burst.
#[derive(Clone, Copy, Debug)]
enum Tables {
    /// Few routes: each in turn.
    Few,
    /// So many that those of IPv4 are laid out flat.
    Laid,
    /// So many that all are looked up first.
    Many,
    /// So many tunnels that they are asked for.
    ManyTunnels,
    /// A hook where packets come in, with hash tables of u32.
    Hooked,
    /// Three workers.
    Workers,
}

/// The routes with labels, how many there are of each, and their TTL.
const PUSHES: [(&[u32], Option<u8>); 5] =
    [(&[100], None), (&[101], None), (&[102], Some(77)), (&[103, 104], None), (&[105, 106, 107], None)];

/// What is between a tunnel's headers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    /// The key of GRE.
    Key(u32),
    /// FOU from a fixed port, and from one by the flow's hash.
    Fou,
    FouByHash,
    /// GUE from a port by the flow's hash.
    Gue,
}

/// Tunnels.
const TUNNELS: [(TunnelKind, Between); 9] = [
    (TunnelKind::Ipip, Between::Nothing),
    (TunnelKind::Sit, Between::Nothing),
    (TunnelKind::Gre, Between::Nothing),
    (TunnelKind::Gre, Between::Key(7)),
    (TunnelKind::Ipip, Between::FouByHash),
    (TunnelKind::Sit, Between::Fou),
    (TunnelKind::Gre, Between::Gue),
    (TunnelKind::Ip6tnl, Between::Nothing),
    (TunnelKind::Ip6gre, Between::Nothing),
];

/// All that a router has counted.
#[derive(PartialEq, Eq, Debug)]
struct Counted {
    /// Of SIDs, links and labels.
    counts: Vec<Count>,
    mpls: Vec<MplsCount>,
    /// Of what filters do.
    actions: Vec<TcCount>,
    totals: Totals,
    drops: Vec<(&'static str, u64)>,
}

/// A router with a route of every kind, for IPv4 and IPv6.
struct Router {
    lab: Lab,
    sids: Vec<CounterId>,
    links: Vec<LinkId>,
    actions: Vec<TcCounterId>,
}

impl Router {
    fn new(tables: Tables) -> Self {
        let workers = if matches!(tables, Tables::Workers) { 3 } else { 1 };
        let mut lab = Lab::with_pools((0..workers).map(|_| Pool::new(512)).collect());
        for port in [0, 1] {
            lab.writer.set_link(lab.links[usize::from(port)], Link { mpls: true, ..lab.link(port) });
        }
        let mut sids = lab.all_behaviours();
        sids.push(program(&mut lab));
        lab.writer.set_hmac_keys(keys());
        let seal = sealed(&lab, "fd00:1::8");
        let seal = lab.writer.add_action(Action::Headend(seal));
        lab.writer.insert6(lab.fib6, v6("2001:db8:f0::"), 48, seal);
        lab.writer.insert6(lab.fib6, v6("2001:db8:f9::"), 48, lab.forward[1]);
        let mut actions = Vec::new();
        let policy = lab.policy(HeadendMode::Encap, &["fd00:1::7"]);
        let other = lab.writer.add_action(Action::Headend(policy));
        let rpl = Rpl::new(&[v6("fd00:1::9"), v6("fd00:1::8")], lab.via(1), lab.links[1]).unwrap();
        let rpl = lab.writer.add_action(Action::Rpl(rpl));
        lab.writer.insert6(lab.fib6, v6("2001:db8:e3::"), 48, other);
        lab.writer.insert4(lab.fib4, [10, 203, 0, 0].into(), 16, other);
        lab.writer.insert6(lab.fib6, v6("2001:db8:e4::"), 48, rpl);
        let mut pushed = other;
        for (n, (labels, ttl)) in PUSHES.into_iter().enumerate() {
            let mut bytes = vec![0; labels.len() * Entry::LEN];
            mpls::write(labels, 0, &mut bytes).unwrap();
            let push = Push { labels: bytes.into(), ttl, next_hop: lab.next_hops[1] };
            pushed = lab.writer.add_action(Action::Push(push));
            lab.writer.insert4(lab.fib4, [10, 210, n as u8, 0].into(), 24, pushed);
            lab.writer.insert6(lab.fib6, v6(&format!("2001:db8:a{n}::")), 48, pushed);
        }
        // To either port, into an encapsulation, and below labels.
        let members = [lab.forward[1], lab.forward[0], other, pushed];
        let bound = |n: usize| ((n as u32 + 1) << 29) - 1;
        let buckets = members.into_iter().enumerate().map(|(n, member)| (bound(n), member)).collect();
        let multipath = lab.writer.add_action(Action::Multipath(Multipath { buckets }));
        lab.writer.insert4(lab.fib4, [10, 205, 0, 0].into(), 16, multipath);
        lab.writer.insert6(lab.fib6, v6("2001:db8:ea::"), 48, multipath);
        // A policy whose first segment is behind it.
        let mut policy = lab.policy(HeadendMode::Encap, &["fd00:1::7", "2001:db8:ea::5"]);
        policy.via = Via { address: v6("2001:db8:ea::5").into(), resolved: None, ..policy.via };
        let policy = lab.writer.add_action(Action::Headend(policy));
        lab.writer.insert4(lab.fib4, [10, 206, 0, 0].into(), 16, policy);
        lab.writer.insert6(lab.fib6, v6("2001:db8:eb::"), 48, policy);
        let next_hop = lab.next_hops[1];
        lab.writer.set_label(200, Some(LabelAction::Swap { label: 300, next_hop }));
        lab.writer.set_label(201, Some(LabelAction::Pop { next_hop, propagate: true }));
        let here = SwitchTo::Here { lookup: lab.lookup, labels: true, vrf: None };
        let here = Switch { labels: [].into(), to: here, propagate: true, payload: None };
        let here = lab.writer.add_action(Action::Switch(here));
        lab.writer.set_label(202, Some(LabelAction::Act(here)));
        let mut links = lab.links.to_vec();
        links.extend((0..TUNNELS.len()).map(|n| tunnel(&mut lab, n)));
        for (port, payload) in [
            (5555, FouPayload::Gue),
            (5556, FouPayload::Protocol(protocol::IPV4)),
            (5557, FouPayload::Protocol(protocol::IPV6)),
        ] {
            let local = pair::LOCAL4.into();
            lab.writer.add_fou_port(FouPort { port, ipv6: false, local, peer: None, bound: None, payload });
        }
        match tables {
            Tables::Few | Tables::Workers => {}
            Tables::Hooked => {
                let (hook, counters) = hash_tables(&mut lab);
                actions = counters;
                let link = Link { mpls: true, ingress: Some(hook), ..lab.link(0) };
                lab.writer.set_link(lab.links[0], link);
            }
            Tables::Laid => {
                let action = lab.writer.add_action(Action::Forward(lab.next_hops[1]));
                for n in 0..300u32 {
                    lab.writer.insert4(lab.fib4, Ipv4Addr::from_bits(0x0b00_0000 + (n << 6)), 26, action);
                }
            }
            Tables::Many => lab.spread(),
            Tables::ManyTunnels => {
                for n in 0..2100u16 {
                    let (_, mut tunnel) = pair::device(&mut lab, TunnelKind::Ipip, 0);
                    let [high, low] = n.to_be_bytes();
                    tunnel.remote = Ipv4Addr::new(10, 0, 8 + high, low).into();
                    lab.writer.add_tunnel(tunnel);
                }
            }
        }
        Self { lab, sids, links, actions }
    }

    /// Sends frames as packets come that nobody watches.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        self.lab.send_spread(frames)
    }

    fn counted(&self) -> Counted {
        let writer = &self.lab.writer;
        let sids = self.sids.iter().map(|id| writer.count(*id));
        let links = self.links.iter().flat_map(|id| {
            [Direction::Receive, Direction::Transmit].map(|direction| writer.link_count(*id, direction))
        });
        let labels = [200, 201, 202].map(|label| writer.label_count(label));
        Counted {
            counts: sids.chain(links).chain(labels).collect(),
            actions: self.actions.iter().map(|id| writer.tc_count(*id)).collect(),
            mpls: self.lab.links.iter().map(|id| writer.mpls_count(*id)).collect(),
            // Only the fast path says what it has saved.
            totals: Totals { buffer_moves: 0, buffer_moves_avoided: 0, ..writer.totals() },
            drops: self.lab.drops(),
        }
    }
}

fn keys() -> Keys {
    Keys::new(vec![Key::new(7, Algorithm::Sha256, b"a secret").unwrap()])
}

/// A policy that inserts an SRH by a segment, sealed by an HMAC.
fn sealed(lab: &Lab, segment: &str) -> Headend {
    let mut policy = lab.policy(HeadendMode::Inline, &["::", segment]);
    let mut header = policy.header.to_vec();
    // Longer by the TLV, and the flag that says so.
    (header[1], header[5]) = (9, 8);
    header.extend([&[5, 38, 0, 0, 0, 0, 0, 7][..], &[0; 32]].concat());
    (policy.header, policy.hmac_open, policy.room) = (header.into(), true, policy.room + 40);
    // As where routes are compiled: what is to be sealed goes the slow path.
    policy.via = Via { address: v6(segment).into(), resolved: None, ..policy.via };
    policy
}

thread_local! {
    /// A router that seals packets by way of fc00::1.
    static SEALER: RefCell<Lab> = RefCell::new({
        let mut lab = Lab::new();
        lab.writer.set_hmac_keys(keys());
        let policy = sealed(&lab, "fc00::1");
        let action = lab.writer.add_action(Action::Headend(policy));
        lab.writer.insert6(lab.fib6, v6("2001:db8:f9::"), 48, action);
        lab.writer.insert6(lab.fib6, v6("fc00::"), 16, lab.forward[1]);
        lab
    });
}

/// The packet, with an SRH and its HMAC.
fn seal(packet: &[u8]) -> Vec<u8> {
    let sent = SEALER.with_borrow_mut(|lab| lab.send(&[frame(ethernet::IPV6, packet)]));
    let [(1, sealed)] = &sent[..] else { panic!("{sent:?}") };
    sealed[14..].to_vec()
}

/// A SID with a program that drops packets of an odd length.
fn program(lab: &mut Lab) -> CounterId {
    let code = [op(0x61, 2, 1, 0, 0), op(0x57, 2, 0, 0, 1), op(0x67, 2, 0, 0, 1), op(0xbf, 0, 2, 0, 0)];
    let code = [code.concat(), op(0x95, 0, 0, 0, 0).to_vec()].concat();
    let program = Arc::new(Program::new(&code, Vec::new()).unwrap());
    let (lookup, source) = (lab.lookup, v6("fd00:1::1"));
    let tables = [(254, lookup)].into();
    lab.sid("fc02::b", Behaviour::Bpf(Box::new(Bpf { program, lookup, tables, source, fixed_source: true })))
}

/// A hook that finds what to do with a UDP packet by a hash of where it goes: nothing, count it or drop it.
fn hash_tables(lab: &mut Lab) -> (HookId, Vec<TcCounterId>) {
    let counters: Vec<_> = (0..2).map(|_| lab.writer.add_tc_counter()).collect();
    let mut action = |control, counter| {
        let kind = TcActionKind::Gact(None);
        lab.writer.add_tc_action(TcAction { kind, control, counter, estimator: None })
    };
    let actions = [action(Control::Pipe, counters[0]), action(Control::Drop, counters[1])];
    let port = U32Key { value: 5678, mask: 0xffff, offset: 0, offset_mask: -1 };
    let leaf = |n: usize| U32Node {
        keys: vec![port],
        terminal: true,
        outcome: Outcome { class: 0, actions: vec![actions[n]], counter: None },
        ..U32Node::default()
    };
    let buckets = (0..16).map(|n| if n % 4 < 2 { vec![leaf(n % 4)] } else { Vec::new() }).collect();
    let udp = U32Key { value: 17 << 16, mask: 0xff << 16, offset: 8, offset_mask: 0 };
    let next = U32Next { has_fixed: true, fixed: 20, hash_at: 16, hash_mask: 0xf, ..U32Next::default() };
    let link = U32Node { keys: vec![udp], link: Some(1), next, ..U32Node::default() };
    let u32_tables = vec![U32Table { buckets: vec![vec![link]] }, U32Table { buckets }];
    let priority = FilterPriority { protocol: ethernet::IPV4, classifier: Classifier::U32(0) };
    let chains = vec![FilterChain { index: 0, priorities: vec![priority] }];
    (lab.writer.add_hook(Hook { counter: None, chains, u32_tables }), counters)
}

/// A tunnel of those, which 10.220+n/16 and 2001:db8:bn::/48 go into.
fn tunnel(lab: &mut Lab, n: usize) -> LinkId {
    let (kind, between) = TUNNELS[n];
    let (link, mut tunnel) = pair::device(lab, kind, 0);
    let key = if let Between::Key(key) = between { Some(key) } else { None };
    tunnel.transmit = GreFields { key, ..GreFields::default() };
    tunnel.receive = tunnel.transmit;
    let gue = between == Between::Gue;
    if gue || matches!(between, Between::Fou | Between::FouByHash) {
        tunnel.udp = Some(TunnelUdp {
            gue,
            source_port: if between == Between::Fou { SourcePort::Fixed(4444) } else { SourcePort::LOCAL },
            destination_port: if gue { 5555 } else { 5556 + u16::from(kind == TunnelKind::Sit) },
            checksum: false,
            remote_checksum: false,
        });
    }
    // Those of FOU have addresses of their own.
    if tunnel.udp.is_some() && !gue {
        tunnel.remote = Ipv4Addr::new(10, 0, 9, n as u8).into();
    }
    let id = lab.writer.add_tunnel(tunnel);
    let route = Action::Tunnel(TunnelRoute { tunnel: id, next_hop: None, mtu: 0, hop_limit: 0 });
    let action = lab.writer.add_action(route);
    lab.writer.insert4(lab.fib4, [10, 220 + n as u8, 0, 0].into(), 16, action);
    lab.writer.insert6(lab.fib6, v6(&format!("2001:db8:b{n}::")), 48, action);
    link
}

/// How many kinds of packets there are.
const KINDS: u8 = 43;

/// A packet of this kind; `len` bytes of payload, `class` its TOS or traffic class.
fn packet(kind: u8, len: usize, class: u8) -> Vec<u8> {
    let payload = udp(len);
    let four = |destination: [u8; 4]| {
        let mut packet = ip4([10, 0, 0, 2], destination, protocol::UDP, &payload);
        packet[1] = class;
        packet[10..12].fill(0);
        let sum = checksum::of(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let six = |destination: &str| {
        let mut packet = ip6("fd00:0::2", destination, protocol::UDP, &payload);
        packet[0] = 0x60 | class >> 4;
        packet[1] = packet[1] & 0xf | class << 4;
        packet
    };
    let v4 = |packet: Vec<u8>| frame(ethernet::IPV4, &packet);
    let v6 = |packet: Vec<u8>| frame(ethernet::IPV6, &packet);
    let sid = |n: u8, next_header: u8, inside: &[u8]| {
        v6(ip6("fd00:0::2", &format!("fc00::{n:x}"), next_header, inside))
    };
    let outer = |protocol: u8, inside: &[u8]| v4(ip4([10, 0, 0, 2], [10, 0, 0, 1], protocol, inside));
    let gre = |ethertype: u16, inside: &[u8]| [&[0, 0][..], &ethertype.to_be_bytes(), inside].concat();
    let of = usize::from(class) % 5;
    // What is inside others goes by one next hop or by one of several, each flow by its own.
    let spread = class & 2 != 0;
    let inside4 = || four(if spread { [10, 205, 0, len as u8] } else { [10, 1, 0, 9] });
    let inside6 = |alone: &str| six(&if spread { format!("2001:db8:ea::{len:x}") } else { alone.to_owned() });
    match kind {
        0 => v4(four([10, 1, 2, len as u8])),
        1 => v6(six("2001:db8:1::1")),
        2..4 => v4(four([10, 210, of as u8, kind])),
        4..6 => v6(six(&format!("2001:db8:a{of}::{kind}"))),
        6..9 => v4(four([10, 220 + (class % 9), 0, kind])),
        9..12 => v6(six(&format!("2001:db8:b{}::{kind}", class % 9))),
        12..14 => v4(four([10, 200 + (class % 4), 0, kind])),
        14..16 => v6(six(&format!("2001:db8:e{of}::{kind}"))),
        16 => sid(5, protocol::IPV4, &four([10, 1, 0, 9])),
        17 => sid(6, protocol::IPV6, &six("fd00:1::9")),
        18 => sid(7, protocol::IPV4, &inside4()),
        19 => sid(8, protocol::IPV6, &inside6("2001:db8:1::1")),
        20 => sid(9, if class & 1 == 0 { protocol::IPV4 } else { protocol::IPV6 }, &inside4()),
        21 => sid(4, protocol::ETHERNET, &frame(ethernet::IPV4, &four([10, 1, 0, 9]))),
        22..25 => {
            // End.X does not look the segment up.
            let next =
                if spread && kind != 23 { format!("2001:db8:ea::{len:x}") } else { "fd00:1::9".to_owned() };
            let path = [&*format!("fc00::{:x}", kind - 21), &*next];
            let inside = with_srh(&path, 1, protocol::UDP, &payload);
            sid(kind - 21, protocol::ROUTING, &inside)
        }
        25 => outer(protocol::IPV4, &inside4()),
        26 => outer(protocol::IPV6, &inside6("fd00:1::9")),
        27 => outer(protocol::GRE, &gre(ethernet::IPV4, &inside4())),
        28 => outer(protocol::GRE, &gre(ethernet::IPV6, &inside6("fd00:1::9"))),
        29 => {
            let inside = [&[0x20, 0, 8, 0, 0, 0, 0, 7][..], &four([10, 1, 0, 9])].concat();
            outer(protocol::GRE, &inside)
        }
        30 => v6(ip6("fd00::2", "fd00:0::1", protocol::IPV4, &four([10, 1, 0, 9]))),
        31 | 32 => {
            let mut labels = vec![0; 4];
            mpls::write(&[200 + u32::from(class % 3)], 40, &mut labels).unwrap();
            frame(ethernet::MPLS, &[labels, inside4()].concat())
        }
        33 | 37 => v4(four([10, 205, kind, len as u8])),
        38 | 39 => v6(six(&format!("2001:db8:ea::{len:x}"))),
        40 => v4(four([10, 206, 0, len as u8])),
        41 => v6(six(&format!("2001:db8:eb::{len:x}"))),
        34 => v6(six("2001:db8:f0::7")),
        35 => {
            let mut sealed = seal(&six("2001:db8:f9::7"));
            // Some are not what was sealed: a byte of the HMAC.
            sealed[90] ^= class & 1;
            v6(sealed)
        }
        36 => {
            let inside = with_srh(&["fc02::b", "fd00:1::9"], 1, protocol::UDP, &payload);
            v6(ip6("fd00:0::2", "fc02::b", protocol::ROUTING, &inside))
        }
        // Not of the common kind: for nobody, or broken.
        _ => {
            let mut broken = v4(four([10, 1, 0, 9]));
            broken[24] ^= class;
            broken
        }
    }
}

/// A frame without the identification of an outer header, which is that of the order, and its checksum.
fn unnumbered((port, mut frame): (u16, Vec<u8>)) -> (u16, Vec<u8>) {
    if frame[12..14] == ethernet::IPV4.to_be_bytes() && frame[26..30] == pair::LOCAL4.octets() {
        assert_eq!(checksum::of(&frame[14..34]), 0, "a checksum is wrong");
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    (port, frame)
}

/// The same router twice.
struct Both {
    common: Router,
    own: Router,
    /// How many packets have left.
    left: usize,
}

impl Both {
    /// Sends the same frames through both, by the fast path and by the slow one.
    fn send(&mut self, frames: &[Vec<u8>]) {
        // So much later that no error is withheld.
        self.common.lab.now += 10_000_000_000;
        self.own.lab.now = self.common.lab.now;
        let sorted = |out: Vec<_>| {
            let mut out: Vec<_> = out.into_iter().map(unnumbered).collect();
            out.sort();
            out
        };
        let out = sorted(self.common.send(frames));
        assert_eq!(out, sorted(self.own.lab.send_watched(frames, &mut Watcher)));
        assert_eq!(self.common.counted(), self.own.counted());
        self.common.lab.assert_accounted();
        self.left += out.len();
    }
}

fn rows_do_as_each_packet_would(tables: Tables) {
    let both = Both { common: Router::new(tables), own: Router::new(tables), left: 0 };
    let both = RefCell::new(both);
    // Which kind, whether it is that of the one before, its length and its class.
    let one = (0..KINDS, any::<[bool; 2]>(), 0..200usize, any::<u8>());
    let input = proptest::collection::vec(one, 1..=64);
    let run = TestRunner::new(Config::with_cases(400)).run(&input, |input| {
        let mut before = (0, 0);
        let frames: Vec<_> = input
            .into_iter()
            .map(|(kind, again, len, class)| {
                before = match again {
                    [true, true] => before,
                    [true, false] => (before.0, class),
                    _ => (kind, class),
                };
                packet(before.0, len, before.1)
            })
            .collect();
        both.borrow_mut().send(&frames);
        Ok(())
    });
    run.unwrap();
    let Both { common: Router { lab, sids, links, actions }, left, .. } = both.into_inner();
    assert!(left > 1000 && lab.writer.totals().buffer_moves_avoided > 1000);
    assert!(sids.iter().filter(|id| lab.writer.count(**id).packets > 0).count() >= 9);
    // The HMAC of some is wrong, and the program drops some.
    for sid in [sids.first(), sids.last()] {
        let count = lab.writer.count(*sid.unwrap());
        assert!(count.packets > 50 && count.errors > 50, "{count:?}");
    }
    assert!(actions.iter().all(|id| lab.writer.tc_count(*id).packets > 50));
    let crossed = |direction: Direction| {
        links.iter().filter(|link| lab.writer.link_count(**link, direction).packets > 0).count()
    };
    assert!(crossed(Direction::Transmit) > 8 && crossed(Direction::Receive) > 4);
}

#[test]
fn each_packet_in_turn() {
    rows_do_as_each_packet_would(Tables::Few);
}

#[test]
fn each_packet_in_turn_by_routes_laid_out_flat() {
    rows_do_as_each_packet_would(Tables::Laid);
}

#[test]
fn all_packets_first() {
    rows_do_as_each_packet_would(Tables::Many);
}

#[test]
fn all_packets_first_for_their_tunnels() {
    rows_do_as_each_packet_would(Tables::ManyTunnels);
}

#[test]
fn each_packet_in_turn_behind_hash_tables() {
    rows_do_as_each_packet_would(Tables::Hooked);
}

#[test]
fn several_workers_do_as_one_would() {
    rows_do_as_each_packet_would(Tables::Workers);
}
