//! Hooks, filters and actions made of any bytes, and packets for them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;

use underpass_engine::buffer::Pool;
use underpass_engine::counters::TcCounterId;
use underpass_engine::qos::{LinkLayer, RateConfig};
use underpass_engine::tables::{
    ANY_PROTOCOL, Action, ActionId, BasicFilter, Chance, ChanceKind, Checksums, Classifier, Control, Ematch,
    EmatchCmp, EmatchCompare, EmatchJoin, EmatchLayer, EmatchTest, EstimatorConfig, FifoLimit, FilterChain,
    FilterPriority, FlowerFilter, FlowerKey, Fw, FwFilter, Hook, HookId, Link, LinkId, MetaTerm, MetaValue,
    Mirred, MplsEdit, MplsFields, Outcome, PeditHeader, PeditKey, Police, PolicePackets, PoliceRate, Qdisc,
    QdiscId, QdiscKind, Skbedit, TcAction, TcActionId, TcActionKind, Tunnel, TunnelKey, TunnelKind,
    TunnelRole, TunnelRoute, U32Key, U32Next, U32Node, U32Table, VlanEdit,
};
use underpass_packet::{ethernet, protocol};

use crate::dice::Dice;
use crate::lab::{Lab, Watcher, frame, ip4, ip6, udp, with_srh};
use crate::pair;

/// A router whose hooks are made anew each time, and the ids that they use.
struct Bench {
    lab: Lab,
    links: Vec<LinkId>,
    actions: Vec<TcActionId>,
    counters: Vec<TcCounterId>,
    hooks: [HookId; 3],
    /// Tunnels of IP packets and of frames, and what they queue in.
    tunnels: Vec<LinkId>,
    queues: Vec<QdiscId>,
    /// What `tunnel_key` makes of each of them.
    ways: Vec<(LinkId, ActionId)>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// Packets through hooks, both made of these bytes. All are accounted for, and come out unwatched as watched.
pub fn any(bytes: &[u8]) {
    BENCH.with_borrow_mut(|bench| bench.run(bytes));
}

/// Why packets have been dropped so far.
#[allow(dead_code, reason = "for the test")]
pub fn drops() -> Vec<&'static str> {
    BENCH.with_borrow(|bench| bench.lab.drops().into_iter().map(|(reason, _)| reason).collect())
}

impl Bench {
    fn new() -> Self {
        let mut lab = Lab::with_pool(Pool::new(256));
        let ifb = lab.writer.add_link(Link { port: None, ifb: true, ..lab.link(1) });
        let roles = [TunnelRole::Device, TunnelRole::Device, TunnelRole::External];
        let ways: Vec<_> = [TunnelKind::Ipip, TunnelKind::Gretap, TunnelKind::Gre]
            .into_iter()
            .zip(roles)
            .map(|(kind, role)| {
                let (link, tunnel) = pair::device(&mut lab, kind, 0);
                let keyed = lab
                    .writer
                    .add_tunnel(Tunnel { role: TunnelRole::Route { given: None }, ..tunnel.clone() });
                let way = TunnelRoute { tunnel: keyed, next_hop: None, mtu: 0, hop_limit: 0 };
                let way = lab.writer.add_action(Action::Tunnel(way));
                let id = lab.writer.add_tunnel(Tunnel { role, ..tunnel });
                pair::route4(&mut lab, [10, 50 + kind as u8, 0, 0].into(), id);
                (link, way)
            })
            .collect();
        let tunnels: Vec<_> = ways.iter().map(|(link, _)| *link).collect();
        let mut links = vec![lab.links[0], lab.links[1], ifb, LinkId(77)];
        links.extend(&tunnels);
        let queues = (1..=2).map(|limit| {
            let queue = lab.writer.add_queue();
            let kind = QdiscKind::Fifo(FifoLimit::Packets(limit));
            lab.writer.add_qdisc(Qdisc::new(queue, limit << 16, kind))
        });
        let queues = queues.collect();
        let counters: Vec<_> = (0..8).map(|_| lab.writer.add_tc_counter()).collect();
        let action = |n: usize| TcAction {
            kind: TcActionKind::Gact(None),
            control: Control::Ok,
            counter: counters[n],
            estimator: None,
        };
        let actions = (0..8).map(|n| lab.writer.add_tc_action(action(n))).collect();
        let hooks = [0; 3].map(|_| lab.writer.add_hook(Hook::default()));
        Self { lab, links, actions, counters, hooks, tunnels, queues, ways }
    }

    fn run(&mut self, bytes: &[u8]) {
        let mut dice = Dice(bytes);
        for port in [0, 1] {
            let (ingress, egress) = (self.attached(&mut dice), self.attached(&mut dice));
            let link = Link { ingress, egress, up: dice.byte() != 7, ..self.lab.link(port) };
            self.lab.writer.set_link(self.links[usize::from(port)], link);
        }
        let egress = self.attached(&mut dice);
        let ifb = Link { port: None, ifb: true, egress, ..self.lab.link(1) };
        self.lab.writer.set_link(self.links[2], ifb);
        for tunnel in self.tunnels.clone() {
            let (ingress, egress) = (self.attached(&mut dice), self.attached(&mut dice));
            let queue =
                |dice: &mut Dice<'_>| if dice.below(4) == 0 { Some(dice.of(&self.queues)) } else { None };
            let (root, ingress_qdisc) = (queue(&mut dice), queue(&mut dice));
            let link = self.lab.link(0);
            let link =
                Link { ifindex: 9, port: None, mtu: 1500, ingress, egress, root, ingress_qdisc, ..link };
            self.lab.writer.set_link(tunnel, link);
        }
        for n in 0..self.actions.len() {
            let action = self.action(&mut dice, n);
            self.lab.writer.set_tc_action(self.actions[n], action);
        }
        for id in self.hooks {
            let hook = self.hook(&mut dice);
            self.lab.writer.set_hook(id, hook);
        }
        for _ in 0..2 {
            let frames = packets(&mut dice);
            self.lab.now += u64::from(dice.byte()) << dice.below(30);
            match dice.bool() {
                true => self.lab.send_watched(&frames, &mut Watcher),
                false => self.lab.send(&frames),
            };
            // What has come from one qdisc to another too often goes on with the next burst.
            let mut rounds = 0;
            while self.lab.worker.undecided() > 0 && rounds < 20 {
                self.lab.send(&[]);
                rounds += 1;
            }
            self.lab.assert_accounted();
        }
        self.lab.writer.reclaim();
    }

    fn attached(&self, dice: &mut Dice<'_>) -> Option<HookId> {
        if dice.below(3) == 0 { None } else { Some(dice.of(&self.hooks)) }
    }

    fn action(&self, dice: &mut Dice<'_>, n: usize) -> TcAction {
        let rate = |dice: &mut Dice<'_>| RateConfig {
            bytes_per_second: u64::from(dice.word()) << dice.below(33),
            overhead: dice.word() as u16,
            mpu: dice.word() as u16,
            link_layer: dice.of(&[LinkLayer::Ethernet, LinkLayer::Atm]),
        };
        let label = |dice: &mut Dice<'_>| MplsFields {
            label: dice.some(Dice::word),
            class: dice.some(Dice::byte),
            ttl: dice.some(Dice::byte),
            bottom: dice.some(Dice::bool),
        };
        let protocols = [ethernet::MPLS, ethernet::VLAN, ethernet::IPV4, ethernet::SERVICE_VLAN, 0];
        let kind = match dice.below(9) {
            0 => TcActionKind::Gact(dice.some(|dice| Chance {
                kind: dice.of(&[ChanceKind::Random, ChanceKind::Regular]),
                one_of: dice.word() as u16,
                control: control(dice),
            })),
            1 => TcActionKind::Police(Police {
                rate: dice.some(|dice| PoliceRate {
                    rate: rate(dice),
                    burst: u64::from(dice.word()) << dice.below(33),
                    peak: dice.some(rate),
                }),
                packets: dice.some(|dice| PolicePackets {
                    rate: dice.word().into(),
                    burst: dice.word().into(),
                    since: dice.word().into(),
                }),
                mtu: dice.of(&[0, 100, 2000, u32::MAX]),
                average: dice.some(Dice::word),
                conform: control(dice),
            }),
            2 => TcActionKind::Mirred(Mirred {
                link: dice.some(|dice| dice.of(&self.links)),
                ingress: dice.bool(),
                redirect: dice.bool(),
            }),
            3 => TcActionKind::Mpls(match dice.below(5) {
                0 => MplsEdit::Pop { protocol: dice.of(&protocols) },
                1 => MplsEdit::Push { protocol: dice.of(&protocols), label: label(dice) },
                2 => MplsEdit::MacPush { protocol: dice.of(&protocols), label: label(dice) },
                3 => MplsEdit::Modify(label(dice)),
                _ => MplsEdit::DecrementTtl,
            }),
            4 => TcActionKind::Vlan(match dice.below(5) {
                0 => VlanEdit::Pop,
                1 => VlanEdit::Push { protocol: dice.of(&protocols), id: 7, priority: dice.byte() },
                2 => {
                    VlanEdit::Modify { protocol: dice.of(&protocols), id: 9, priority: dice.some(Dice::byte) }
                }
                3 => VlanEdit::PopEthernet,
                _ => VlanEdit::PushEthernet { destination: crate::lab::MACS[0], source: [2; 6] },
            }),
            5 => TcActionKind::TunnelKey(dice.some(|dice| TunnelKey {
                source: [192, 0, 2, 1].into(),
                destination: [192, 0, 2, 2].into(),
                id: dice.word(),
                tos: dice.byte(),
                ttl: dice.byte(),
                port: dice.word() as u16,
                ways: dice.list(2, |dice| dice.of(&self.ways)).into(),
            })),
            6 => TcActionKind::Csum(Checksums(dice.word())),
            7 => TcActionKind::Pedit(
                dice.list(3, |dice| PeditKey {
                    mask: dice.word(),
                    value: dice.word(),
                    offset: dice.of(&[-16, -12, -4, 0, 4, 12, 16, 24, 32, 1400]),
                    at: dice.some(|dice| (dice.of(&[-20, -14, 0, 6, 9]), dice.word(), dice.word() % 32)),
                    header: dice.of(&[
                        PeditHeader::Network,
                        PeditHeader::Ethernet,
                        PeditHeader::Tcp,
                        PeditHeader::Udp,
                    ]),
                    add: dice.bool(),
                })
                .into(),
            ),
            _ => TcActionKind::Skbedit(Skbedit {
                priority: dice.some(Dice::word),
                inherit_dsfield: dice.bool(),
                queue: dice.some(|dice| dice.word() as u16),
                mark: dice.some(|dice| (dice.word(), dice.word())),
                packet_type: dice.some(|dice| dice.byte() & 3),
            }),
        };
        let estimator =
            dice.some(|dice| EstimatorConfig { interval: dice.byte() as i8, ewma_log: dice.byte() });
        TcAction { kind, control: control(dice), counter: self.counters[n], estimator }
    }

    fn outcome(&self, dice: &mut Dice<'_>) -> Outcome {
        Outcome { class: dice.word(), actions: dice.list(3, |dice| dice.of(&self.actions)), counter: None }
    }

    fn hook(&self, dice: &mut Dice<'_>) -> Hook {
        let chain = |dice: &mut Dice<'_>, index| {
            let priority = |dice: &mut Dice<'_>| FilterPriority {
                protocol: dice.of(&[
                    ANY_PROTOCOL,
                    ANY_PROTOCOL,
                    ethernet::IPV4,
                    ethernet::VLAN,
                    ethernet::MPLS,
                ]),
                classifier: self.classifier(dice),
            };
            FilterChain { index, priorities: dice.list(3, priority) }
        };
        let chains = (0..2).map(|index| chain(dice, index)).collect();
        let node = |dice: &mut Dice<'_>| U32Node {
            keys: dice.list(3, |dice| U32Key {
                value: dice.word(),
                mask: if dice.bool() { 0 } else { dice.word() },
                offset: (dice.word() as i32).wrapping_sub(14),
                offset_mask: if dice.bool() { -1 } else { 0 },
            }),
            mark: dice.some(|dice| (dice.word(), dice.word())),
            ingress: dice.some(|dice| dice.of(&self.links)),
            terminal: dice.bool(),
            link: dice.some(|dice| dice.below(4)),
            next: U32Next {
                has_fixed: dice.bool(),
                has_variable: dice.bool(),
                eat: dice.bool(),
                fixed: dice.word() as u16,
                variable_at: dice.word() as i16,
                variable_mask: dice.word() as u16,
                variable_shift: dice.byte(),
                hash_at: dice.word() as i16,
                hash_mask: dice.word(),
            },
            outcome: self.outcome(dice),
            ..U32Node::default()
        };
        let table = |dice: &mut Dice<'_>| U32Table { buckets: dice.list(4, |dice| dice.list(3, node)) };
        Hook { counter: dice.some(|dice| dice.of(&self.counters)), chains, u32_tables: dice.list(3, table) }
    }

    fn classifier(&self, dice: &mut Dice<'_>) -> Classifier {
        match dice.below(5) {
            0 => Classifier::Matchall(self.outcome(dice)),
            1 => Classifier::Basic(
                dice.list(3, |dice| BasicFilter { ematches: ematches(dice, 2), outcome: self.outcome(dice) }),
            ),
            2 => Classifier::U32(dice.below(4)),
            3 => Classifier::Flower(dice.list(3, |dice| FlowerFilter {
                key: key(dice),
                mask: key(dice),
                source_ports: dice.some(|dice| (dice.word() as u16, dice.word() as u16)),
                destination_ports: None,
                outcome: self.outcome(dice),
            })),
            _ if dice.bool() => Classifier::Fw(Fw::Classes { qdisc: dice.word() }),
            _ => Classifier::Fw(Fw::Marks {
                mask: dice.word(),
                filters: dice.list(3, |dice| FwFilter {
                    handle: dice.word(),
                    ingress: dice.some(|dice| dice.of(&self.links)),
                    outcome: self.outcome(dice),
                }),
            }),
        }
    }
}

fn control(dice: &mut Dice<'_>) -> Control {
    match dice.below(11) {
        0 => Control::Continue,
        1 => Control::Ok,
        2 => Control::Reclassify,
        3 => Control::Drop,
        4 | 9 | 10 => Control::Pipe,
        5 => Control::Stolen,
        6 => Control::Trap,
        7 => Control::Jump(dice.word()),
        _ => Control::Goto(dice.word() % 3),
    }
}

fn ematches(dice: &mut Dice<'_>, deep: usize) -> Vec<Ematch> {
    let layer =
        |dice: &mut Dice<'_>| dice.of(&[EmatchLayer::Link, EmatchLayer::Network, EmatchLayer::Transport]);
    let compare =
        |dice: &mut Dice<'_>| dice.of(&[EmatchCompare::Equal, EmatchCompare::Less, EmatchCompare::Greater]);
    let term = |dice: &mut Dice<'_>| match dice.bool() {
        true => MetaTerm::Number(dice.word().into()),
        false => MetaTerm::Of {
            value: dice.of(&[
                MetaValue::Random,
                MetaValue::Priority,
                MetaValue::Protocol,
                MetaValue::PacketType,
                MetaValue::PacketLength,
                MetaValue::Mark,
                MetaValue::Device,
                MetaValue::IngressDevice,
                MetaValue::VlanTag,
            ]),
            shift: dice.byte(),
            mask: dice.word().into(),
        },
    };
    dice.list(3, |dice| Ematch {
        invert: dice.bool(),
        test: match dice.below(5) {
            0 if deep > 0 => EmatchTest::Group(ematches(dice, deep - 1)),
            1 => EmatchTest::U32 { value: dice.word(), mask: dice.word(), offset: dice.word() as i32 },
            2 => EmatchTest::Nbyte {
                layer: layer(dice),
                offset: dice.word() as u16,
                bytes: dice.list(6, Dice::byte).into(),
            },
            3 => EmatchTest::Meta { left: term(dice), compare: compare(dice), right: term(dice) },
            _ => EmatchTest::Cmp(EmatchCmp {
                layer: layer(dice),
                offset: dice.word() as u16,
                width: dice.of(&[1, 2, 3, 4]),
                swap: dice.bool(),
                mask: dice.word(),
                compare: compare(dice),
                value: dice.word(),
            }),
        },
        join: dice.of(&[EmatchJoin::And, EmatchJoin::Or]),
    })
}

fn key(dice: &mut Dice<'_>) -> FlowerKey {
    let mut key = FlowerKey::default();
    match dice.below(6) {
        0 => key.ethertype = dice.of(&[ethernet::IPV4, 0xffff, 0]),
        1 => key.protocol = dice.of(&[protocol::UDP, 0xff]),
        2 => key.destination_port = dice.word() as u16,
        3 => key.vlan.tci = dice.word() as u16,
        4 => key.labels[0] = dice.word(),
        _ => {}
    }
    key
}

/// Packets of every kind that has a look of its own, and any bytes.
fn packets(dice: &mut Dice<'_>) -> Vec<Vec<u8>> {
    let inner = ip4([10, 0, 0, 2], [10, 1, 0, 2], protocol::UDP, &udp(40));
    let srh = with_srh(&["fc00::1", "fd00:1::2"], 1, protocol::UDP, &udp(64));
    let frames = [
        frame(ethernet::IPV4, &inner),
        frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &udp(30))),
        frame(ethernet::IPV6, &ip6("fd00:0::2", "fc00::1", protocol::ROUTING, &srh)),
        frame(ethernet::VLAN, &[&[0x20, 7, 8, 0][..], &inner].concat()),
        frame(ethernet::MPLS, &[&[0, 1, 1, 64][..], &inner].concat()),
        frame(
            ethernet::ARP,
            &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1],
        ),
    ];
    let frames = frames.into_iter().chain([
        frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 50, 0, 2], protocol::UDP, &udp(30))),
        frame(ethernet::IPV4, &ip4([10, 0, 0, 2], [10, 52, 0, 2], protocol::UDP, &udp(1400))),
        frame(ethernet::IPV4, &pair::outer4(protocol::IPV4, &inner)),
        frame(ethernet::IPV4, &pair::outer4(protocol::GRE, &pair::gre(&inner, None))),
        frame(
            ethernet::IPV4,
            &pair::outer4(protocol::GRE, &[&[0, 0, 0x65, 0x58][..], &frame(ethernet::IPV4, &inner)].concat()),
        ),
    ]);
    let frames: Vec<_> = frames.collect();
    let mut sent = dice.list(5, |dice| dice.of(&frames));
    if let Some(first) = sent.first_mut() {
        let cut = dice.word() as usize;
        if dice.byte() == 3 {
            first.truncate(cut);
        }
        if let Some(place) = first.get_mut(cut) {
            *place ^= dice.byte();
        }
    }
    sent.push(dice.list(40, Dice::byte));
    sent
}
