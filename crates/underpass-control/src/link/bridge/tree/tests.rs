//! Trees that hear each other, without a router: bridges whose ports are at networks.

use std::collections::BTreeSet;

use proptest::prelude::*;
use underpass_netlink::bridge::{BLOCKING, DISABLED, FORWARDING, LEARNING, LISTENING};
use underpass_packet::bpdu::{Bpdu, Configuration};

use super::{Event, PortSettings, Times, Tree};

const TIMES: Times = Times { max_age: 20_000, hello: 2_000, forward_delay: 15_000 };

/// Bridges, of which port `n` of each is at a network or at none.
struct Networks {
    now: u64,
    trees: Vec<Tree>,
    /// For each bridge, and each of its ports, the network.
    at: Vec<Vec<Option<usize>>>,
    heard: usize,
}

const fn id(bridge: usize) -> [u8; 8] {
    [0x80, 0, 2, 0, 0, 0, 0, bridge as u8]
}

fn port(number: usize, open: bool) -> PortSettings {
    let id = 0x8000 | number as u16;
    PortSettings { id, number: number as u16, cost: 100, open, ..PortSettings::default() }
}

impl Networks {
    fn new(at: Vec<Vec<Option<usize>>>) -> Self {
        let mut networks = Self { now: 0, trees: Vec::new(), at, heard: 0 };
        for bridge in 0..networks.at.len() {
            let mut tree = Tree::new(id(bridge), TIMES);
            tree.set_up(true);
            networks.trees.push(tree);
            networks.set_ports(bridge);
        }
        networks.deliver();
        networks
    }

    /// The ports of a bridge that are at a network are open.
    fn set_ports(&mut self, bridge: usize) {
        self.trees[bridge].set_time(self.now);
        for (number, network) in self.at[bridge].iter().enumerate() {
            let settings = port(number + 1, network.is_some());
            self.trees[bridge].set_port(number as u32, settings, None);
        }
    }

    /// A port of a bridge is at another network, or at none.
    fn plug(&mut self, bridge: usize, number: usize, network: Option<usize>) {
        self.at[bridge][number] = None;
        self.set_ports(bridge);
        self.at[bridge][number] = network;
        self.set_ports(bridge);
        self.deliver();
    }

    /// What is sent is heard at once.
    fn deliver(&mut self) {
        loop {
            let sent: Vec<(usize, u32, Bpdu)> = (0..self.trees.len())
                .flat_map(|bridge| {
                    self.trees[bridge].take_sent().into_iter().map(move |(p, unit)| (bridge, p, unit))
                })
                .collect();
            if sent.is_empty() {
                return;
            }
            for (from, by, unit) in sent {
                let Some(network) = self.at[from][by as usize] else { continue };
                for (bridge, ports) in self.at.iter().enumerate() {
                    for (number, at) in ports.iter().enumerate() {
                        if *at == Some(network) && (bridge, number) != (from, by as usize) {
                            self.trees[bridge].set_time(self.now);
                            self.trees[bridge].hear(number as u32, Some(&unit));
                            self.heard += 1;
                        }
                    }
                }
            }
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while let Some(due) = self.trees.iter().filter_map(Tree::due).min().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            for tree in &mut self.trees {
                tree.set_time(self.now);
                tree.pass();
            }
            self.deliver();
        }
        self.now = end;
    }

    fn state(&self, bridge: usize, number: usize) -> u8 {
        self.trees[bridge].states().find(|(index, _)| *index as usize == number).unwrap().1
    }

    /// Whether any ports pass frames on in a circle, and into how many parts the networks and bridges fall: by those that
    /// forward, and by all that are at a network.
    fn parts(&self) -> (bool, usize, usize) {
        let (mut circle, mut forwarding, mut all) = (false, Parts::default(), Parts::default());
        for (bridge, ports) in self.at.iter().enumerate() {
            for (number, network) in ports.iter().enumerate() {
                let Some(network) = network else { continue };
                all.join(bridge, *network);
                forwarding.see(bridge, *network);
                if self.state(bridge, number) == FORWARDING {
                    circle |= !forwarding.join(bridge, *network);
                }
            }
        }
        (circle, forwarding.count(), all.count())
    }
}

/// Sets of bridges (even) and networks (odd) that reach each other.
#[derive(Default)]
struct Parts(Vec<BTreeSet<usize>>);

impl Parts {
    fn see(&mut self, bridge: usize, network: usize) {
        for node in [2 * bridge, 2 * network + 1] {
            if !self.0.iter().any(|part| part.contains(&node)) {
                self.0.push(BTreeSet::from([node]));
            }
        }
    }

    /// Whether they were apart.
    fn join(&mut self, bridge: usize, network: usize) -> bool {
        self.see(bridge, network);
        let of = |node: usize| self.0.iter().position(|part| part.contains(&node)).unwrap();
        let (one, other) = (of(2 * bridge), of(2 * network + 1));
        if one == other {
            return false;
        }
        let part = self.0[other].clone();
        self.0[one].extend(part);
        self.0.remove(other);
        true
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_port_listens_then_learns_then_forwards() {
    let mut networks = Networks::new(vec![vec![Some(0)]]);
    let mut states = vec![networks.state(0, 0)];
    for _ in 0..3 {
        networks.pass(10_001);
        states.push(networks.state(0, 0));
    }
    assert_eq!(states, [LISTENING, LISTENING, LEARNING, FORWARDING]);
    // The topology has changed, and is settled after max_age and forward_delay.
    assert_eq!(networks.trees[0].ageing(), Some(15_000));
    networks.pass(40_000);
    assert_eq!(networks.trees[0].ageing(), None);
}

/// Two bridges between two networks: one port of the worse bridge is blocked, the one with the higher number.
#[test]
fn one_of_two_ways_is_blocked() {
    let mut networks = Networks::new(vec![vec![Some(0), Some(1)], vec![Some(0), Some(1)]]);
    networks.pass(31_000);
    let states = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(bridge, port)| networks.state(bridge, port));
    assert_eq!(states, [FORWARDING, FORWARDING, FORWARDING, BLOCKING]);
    let shown = networks.trees[1].shown(networks.now);
    assert_eq!((shown.root, shown.root_port, shown.root_path_cost), (id(0), 1, 100));
    let port = networks.trees[1].port_shown(1, networks.now).unwrap();
    assert_eq!((port.root, port.bridge, port.port, port.cost), (id(0), id(0), 0x8002, 0));

    // The way that is left is taken at once by state, and after twice the delay by frames.
    networks.plug(1, 0, None);
    assert_eq!(networks.state(1, 1), LISTENING);
    networks.pass(30_001);
    assert_eq!(networks.state(1, 1), FORWARDING);
    let root = networks.trees[1].shown(networks.now);
    assert_eq!((root.root, root.root_port), (id(0), 2));
}

/// A better identifier becomes the root, and a root that is not heard any more is given up.
#[test]
fn the_best_bridge_is_the_root_while_it_is_heard() {
    let mut networks = Networks::new(vec![vec![Some(0)], vec![Some(0)]]);
    networks.pass(60_000);
    assert_eq!(networks.trees[1].shown(0).root, id(0));
    let better = [0x10, 0, 2, 0, 0, 0, 0, 1];
    networks.trees[1].configure(better, TIMES);
    networks.deliver();
    networks.pass(3_000);
    assert_eq!([0, 1].map(|bridge| networks.trees[bridge].shown(0).root), [better; 2]);
    // It is silent from now on, and what the root set is forgotten with it.
    networks.at[1][0] = None;
    networks.pass(18_000);
    assert_eq!(networks.trees[0].shown(0).root, better);
    networks.pass(3_000);
    assert_eq!(networks.trees[0].shown(0).root, id(0));
    assert!(networks.trees[0].take_events().contains(&Event::Lost(0)));
}

/// The times of the root hold for all, and a change that a bridge far from it sees is told to it and from it.
#[test]
fn the_root_has_the_last_word() {
    let line = vec![vec![Some(0)], vec![Some(0), Some(1)], vec![Some(1), None]];
    let mut networks = Networks::new(line);
    networks.trees[0].configure(id(0), Times { forward_delay: 4_000, ..TIMES });
    networks.pass(60_000);
    assert_eq!(networks.trees[2].shown(0).times, [400, 200, 2000]);
    assert_eq!(networks.trees[0].ageing(), None);
    networks.plug(2, 1, Some(2));
    networks.pass(8_500);
    assert_eq!(networks.state(2, 1), FORWARDING);
    networks.pass(3_000);
    assert_eq!([0, 1, 2].map(|bridge| networks.trees[bridge].ageing()), [Some(4_000); 3]);
    assert!(!networks.trees[2].shown(0).topology_change[1], "it was not acknowledged");
    networks.pass(30_000);
    assert_eq!([0, 1, 2].map(|bridge| networks.trees[bridge].ageing()), [None; 3]);
}

/// A port that learns when the root says that nobody waits does not wait either.
#[test]
fn a_delay_of_0_is_no_delay_for_ever() {
    let mut networks = Networks::new(vec![vec![Some(0)], vec![Some(0), Some(1)]]);
    networks.pass(16_000);
    assert_eq!(networks.state(1, 1), LEARNING);
    networks.plug(1, 1, Some(2));
    networks.trees[0].configure(id(0), Times { forward_delay: 0, ..TIMES });
    networks.pass(16_000);
    assert_eq!(networks.state(1, 1), FORWARDING);
}

/// What is shown is what Linux shows: twice the delay, until another time is set.
#[test]
fn stations_are_forgotten_sooner_while_the_topology_changes() {
    let mut networks = Networks::new(vec![vec![Some(0)]]);
    networks.pass(31_000);
    let shown = |networks: &Networks| networks.trees[0].shown(networks.now).ageing_time;
    assert_eq!((networks.trees[0].ageing(), shown(&networks)), (Some(15_000), Some(3_000)));
    assert!(networks.trees[0].take_other_ageing() && !networks.trees[0].take_other_ageing());
    networks.trees[0].ageing_is_set();
    assert_eq!((networks.trees[0].ageing(), shown(&networks)), (Some(15_000), None));
    networks.pass(40_000);
    assert!(networks.trees[0].take_other_ageing());
}

/// `guard on` and `root_block on`.
#[test]
fn guarded_ports_hear_no_bridge_and_no_root() {
    let better = Bpdu::Configuration(Configuration {
        root: [0, 0, 2, 0, 0, 0, 0, 9],
        bridge: [0, 0, 2, 0, 0, 0, 0, 9],
        max_age: 20 * 256,
        hello_time: 2 * 256,
        forward_delay: 15 * 256,
        ..Configuration::default()
    });
    let alone = || Networks::new(vec![vec![Some(0)]]);
    let mut networks = alone();
    networks.trees[0].set_port(0, PortSettings { guards: true, ..port(1, true) }, None);
    networks.trees[0].hear(0, Some(&better));
    assert_eq!(networks.state(0, 0), DISABLED);
    assert!(networks.trees[0].take_events().contains(&Event::Guarded(0)));
    networks.plug(0, 0, None);
    networks.plug(0, 0, Some(0));
    assert_eq!(networks.state(0, 0), LISTENING);
    // What should have been a unit is as good.
    networks.trees[0].set_port(0, PortSettings { guards: true, ..port(1, true) }, None);
    networks.trees[0].hear(0, None);
    assert_eq!(networks.state(0, 0), DISABLED);

    let mut networks = alone();
    networks.trees[0].set_port(0, PortSettings { blocks_root: true, ..port(1, true) }, None);
    networks.pass(40_000);
    networks.trees[0].hear(0, Some(&better));
    assert_eq!((networks.state(0, 0), networks.trees[0].shown(0).root), (LISTENING, id(0)));
}

/// A bridge does not say more than one configuration a second by a port, and keeps what came meanwhile.
#[test]
fn configurations_are_held_back() {
    let mut networks = Networks::new(vec![vec![Some(0)]]);
    networks.pass(2_000);
    let worse = Bpdu::Configuration(Configuration {
        root: id(7),
        bridge: id(7),
        max_age: 20 * 256,
        ..Configuration::default()
    });
    networks.trees[0].take_sent();
    for _ in 0..5 {
        networks.trees[0].hear(0, Some(&worse));
    }
    assert!(networks.trees[0].take_sent().is_empty());
    assert!(networks.trees[0].port_shown(0, 0).unwrap().pending);
    networks.trees[0].set_time(networks.now + 1_000);
    networks.trees[0].pass();
    assert_eq!(networks.trees[0].take_sent().len(), 1);
}

/// Ports of a bridge that was made to have a tree while they forwarded go on.
#[test]
fn what_forwards_goes_on() {
    let mut tree = Tree::new(id(0), TIMES);
    tree.set_up(true);
    tree.set_port(0, port(1, true), Some(FORWARDING));
    assert_eq!(tree.states().collect::<Vec<_>>(), [(0, FORWARDING)]);
    assert_eq!(tree.settles(), None);
    tree.set_up(false);
    assert_eq!(tree.due(), None);
}

fn topologies() -> impl Strategy<Value = Vec<Vec<Option<usize>>>> {
    let ports = proptest::collection::vec(proptest::option::weighted(0.9, 0..6_usize), 1..5);
    proptest::collection::vec(ports, 1..7)
}

proptest! {
    /// Whatever is plugged in wherever, what forwards after the times of the tree reaches all that can be reached, and has no
    /// circle.
    #[test]
    fn what_forwards_is_a_tree(
        at in topologies(),
        moves in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), proptest::option::of(0..6_usize), 0..40_000_u64),
            0..6,
        ),
    ) {
        let mut networks = Networks::new(at);
        for (bridge, number, network, before) in moves {
            networks.pass(before);
            let bridge = bridge.index(networks.at.len());
            let number = number.index(networks.at[bridge].len());
            networks.plug(bridge, number, network);
        }
        networks.pass(150_000);
        let (circle, parts, possible) = networks.parts();
        prop_assert!(!circle, "there is a circle");
        prop_assert_eq!(parts, possible);
        prop_assert!(networks.heard < 20_000, "{} units were heard", networks.heard);
    }

    #[test]
    fn any_units_are_heard(
        units in proptest::collection::vec(any::<([u8; 8], u32, [u8; 8], [u16; 5], [bool; 3])>(), 0..40),
    ) {
        let mut networks = Networks::new(vec![vec![Some(0), Some(1)], vec![Some(1)]]);
        for (root, root_path_cost, bridge, [port, message_age, max_age, hello_time, forward_delay], flags) in units {
            let [topology_change, acknowledges, notifies] = flags;
            let unit = if notifies {
                Bpdu::TopologyChange
            } else {
                Bpdu::Configuration(Configuration {
                    topology_change, acknowledges, root, root_path_cost, bridge, port, message_age, max_age,
                    hello_time, forward_delay,
                })
            };
            networks.trees[0].hear(0, Some(&unit));
            networks.deliver();
            networks.pass(500);
        }
    }
}
