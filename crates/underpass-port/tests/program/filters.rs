//! Filters of what comes in, and their actions, of any kind.

use underpass_engine::counters::{CounterId, TcCounterId};
use underpass_engine::qos::{LinkLayer, Rate, RateConfig};
use underpass_engine::tables::{
    ANY_PROTOCOL, BasicFilter, Chance, ChanceKind, Classifier, Control, EstimatorConfig, FilterChain,
    FilterPriority, Hook, HookId, Outcome, Police, PolicePackets, PoliceRate, TcAction, TcActionId,
    TcActionKind, U32Key, U32Node, U32Table, Writer,
};
use underpass_packet::ethernet;

use crate::random::Random;

/// How many places there are that have filters, and how many actions.
const HOOKS: usize = 3;
const ACTIONS: usize = 16;
const COUNTERS: usize = 8;

pub struct Filters {
    pub hooks: Vec<(HookId, Hook)>,
    pub actions: Vec<(TcActionId, TcAction)>,
    pub tc_counters: Vec<TcCounterId>,
    pub counters: Vec<CounterId>,
}

fn any<T: Copy>(of: &[T], random: &mut Random) -> T {
    of[random.below(of.len() as u64) as usize]
}

impl Filters {
    pub fn new(writer: &mut Writer) -> Self {
        let tc_counters: Vec<_> = (0..ACTIONS + HOOKS).map(|_| writer.add_tc_counter()).collect();
        let counters = (0..COUNTERS).map(|_| writer.add_counter()).collect();
        let mut filters = Self { hooks: Vec::new(), actions: Vec::new(), tc_counters, counters };
        for number in 0..ACTIONS {
            let action = filters.action(number, &mut Random(1));
            filters.actions.push((writer.add_tc_action(action.clone()), action));
        }
        for _ in 0..HOOKS {
            filters.hooks.push((writer.add_hook(Hook::default()), Hook::default()));
        }
        filters
    }

    pub fn configure(&mut self, writer: &mut Writer, random: &mut Random) {
        (0..ACTIONS).for_each(|number| self.change_action(number, writer, random));
        (0..HOOKS).for_each(|number| self.change_hook(number, writer, random));
    }

    /// Changes something.
    pub fn change(&mut self, writer: &mut Writer, random: &mut Random) {
        let of = random.next() as usize;
        if random.below(2) == 0 {
            self.change_action(of % ACTIONS, writer, random)
        } else {
            self.change_hook(of % HOOKS, writer, random)
        }
    }

    fn change_action(&mut self, number: usize, writer: &mut Writer, random: &mut Random) {
        let action = self.action(number, random);
        writer.set_tc_action(self.actions[number].0, action.clone());
        self.actions[number].1 = action;
    }

    fn change_hook(&mut self, number: usize, writer: &mut Writer, random: &mut Random) {
        let hook = self.hook(number, random);
        writer.set_hook(self.hooks[number].0, hook.clone());
        self.hooks[number].1 = hook;
    }

    /// A hook for a link, sometimes.
    pub fn of_link(&self, random: &mut Random) -> Option<HookId> {
        (random.below(4) == 0).then(|| self.hooks[random.below(HOOKS as u64) as usize].0)
    }

    /// Fills all buckets that the filters of a place take from.
    pub fn fill(&self, hook: HookId, writer: &mut Writer) {
        let text = self.hooks.iter().find(|(id, _)| *id == hook).map(|(_, hook)| format!("{hook:?}"));
        let text = text.unwrap_or_default();
        for (id, action) in &self.actions {
            if matches!(action.kind, TcActionKind::Police(Police { rate: Some(_), .. }))
                && text.contains(&format!("{id:?}"))
            {
                writer.set_tc_action(*id, action.clone());
            }
        }
    }

    fn hook(&self, number: usize, random: &mut Random) -> Hook {
        let mut u32_tables = Vec::new();
        let count = 1 + random.below(4);
        let priorities = (0..count).map(|_| self.priority(&mut u32_tables, random)).collect();
        let counter = (random.below(8) > 0).then(|| self.tc_counters[ACTIONS + number]);
        Hook { counter, chains: vec![FilterChain { index: 0, priorities }], u32_tables }
    }

    fn priority(&self, tables: &mut Vec<U32Table>, random: &mut Random) -> FilterPriority {
        let protocol = match random.below(4) {
            0 => ethernet::IPV4,
            1 => ethernet::IPV6,
            _ => ANY_PROTOCOL,
        };
        let classifier = match random.below(240) {
            0 => Classifier::Basic(vec![BasicFilter { ematches: Vec::new(), outcome: self.outcome(random) }]),
            1..90 => Classifier::Matchall(self.outcome(random)),
            _ => {
                let nodes = (0..1 + random.below(2)).map(|_| self.node(random)).collect();
                tables.push(U32Table { buckets: vec![nodes] });
                Classifier::U32(tables.len() - 1)
            }
        };
        FilterPriority { protocol, classifier }
    }

    fn node(&self, random: &mut Random) -> U32Node {
        let count = if random.below(100) == 0 { 5 } else { random.below(4) };
        let keys: Vec<U32Key> = (0..count).map(|_| key(random)).collect();
        let counted = random.below(2) == 0;
        let key_counters = keys.iter().filter(|_| counted).map(|_| any(&self.counters, random)).collect();
        U32Node {
            keys,
            key_counters,
            mark: (random.below(200) == 0).then_some((0, 1)),
            terminal: random.below(200) > 0,
            outcome: self.outcome(random),
            ..U32Node::default()
        }
    }

    fn outcome(&self, random: &mut Random) -> Outcome {
        let count = match random.below(120) {
            0 => 3,
            1..12 => 0,
            12..36 => 2,
            _ => 1,
        };
        Outcome {
            class: 0,
            actions: (0..count).map(|_| self.actions[random.below(ACTIONS as u64) as usize].0).collect(),
            counter: (random.below(3) > 0).then(|| any(&self.counters, random)),
        }
    }

    fn action(&self, number: usize, random: &mut Random) -> TcAction {
        let control = |random: &mut Random| match random.below(250) {
            0 => Control::Stolen,
            1 => Control::Reclassify,
            2 => Control::Jump(1),
            3..80 => Control::Continue,
            80..150 => Control::Pipe,
            150..200 => Control::Ok,
            _ => Control::Drop,
        };
        let kind = match random.below(250) {
            0 => TcActionKind::Gact(Some(Chance {
                kind: ChanceKind::Regular,
                one_of: 1,
                control: Control::Ok,
            })),
            1..60 => TcActionKind::Gact(None),
            _ => TcActionKind::Police(police(control(random), random)),
        };
        let estimator = (random.below(300) == 0).then_some(EstimatorConfig { interval: 0, ewma_log: 3 });
        TcAction { kind, control: control(random), counter: self.tc_counters[number], estimator }
    }
}

/// A key that holds for many packets.
fn key(random: &mut Random) -> U32Key {
    let (offset, mask) = match random.below(10) {
        0 => (0, 0xf000_0000),
        1 => (8, 0x00ff_0000),
        2 => (4 * random.below(33) as i32, 0),
        3 => (random.below(60) as i32, random.next() as u32 & 0x0101_0101),
        _ => (4 * random.below(10) as i32, 1 << random.below(32)),
    };
    let value = match (offset, mask) {
        (0, 0xf000_0000) => any(&[0x4000_0000, 0x6000_0000], random),
        (8, 0x00ff_0000) => 0x0011_0000,
        _ if random.below(3) == 0 => mask,
        _ => 0,
    };
    let offset = if random.below(400) == 0 { -4 } else { offset };
    U32Key { value, mask, offset, offset_mask: -i32::from(random.below(400) == 0) }
}

fn police(conform: Control, random: &mut Random) -> Police {
    let link_layer = if random.below(150) == 0 { LinkLayer::Atm } else { LinkLayer::Ethernet };
    let config = RateConfig {
        bytes_per_second: match random.below(3) {
            0 => random.below(100),
            1 => random.below(1_000_000),
            _ => random.below(10_000_000_000),
        },
        overhead: any(&[0, 0, 4, 24, 65_532], random),
        mpu: any(&[0, 0, 64, 128], random),
        link_layer,
    };
    // What one packet takes, about.
    let burst = Rate::new(config).nanos(match random.below(4) {
        0 => random.below(2000) as u32,
        1 => 60_000,
        _ => 40 + random.below(100) as u32,
    });
    let packets = any(&[(1_000_000, 1_000_000_000), (1, 999)], random);
    let packets = PolicePackets { rate: packets.0, burst: packets.1, since: 0 };
    let (rate, packets) = match random.below(10) {
        0 => (None, None),
        1 | 2 => (None, Some(packets)),
        3 if random.below(4) == 0 => (Some(PoliceRate { rate: config, burst, peak: Some(config) }), None),
        _ => (Some(PoliceRate { rate: config, burst, peak: None }), None),
    };
    let mtu = if random.below(4) == 0 { 50 + random.below(200) as u32 } else { u32::MAX };
    let average = (random.below(300) == 0).then_some(1000);
    Police { rate, packets, mtu, average, conform }
}

/// Filters that let so many bytes pass, in bursts and in sum: about none more in any time that matters.
pub fn bucket(writer: &mut Writer, bytes: u32) -> HookId {
    let rate = RateConfig { bytes_per_second: 1000, ..RateConfig::default() };
    let burst = Rate::new(rate).nanos(bytes);
    let rate = Some(PoliceRate { rate, burst, peak: None });
    let police = Police { rate, packets: None, mtu: u32::MAX, average: None, conform: Control::Ok };
    let (counter, kind) = (writer.add_tc_counter(), TcActionKind::Police(police));
    let action = TcAction { kind, control: Control::Drop, counter, estimator: None };
    let actions = vec![writer.add_tc_action(action)];
    let outcome = Outcome { actions, ..Outcome::default() };
    let priority = FilterPriority { protocol: ANY_PROTOCOL, classifier: Classifier::Matchall(outcome) };
    let chains = vec![FilterChain { index: 0, priorities: vec![priority] }];
    writer.add_hook(Hook { counter: None, chains, u32_tables: Vec::new() })
}
