//! Filters as the packet path has them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use underpass_engine::counters::TcCounterId;
use underpass_engine::tables::{
    self, BasicFilter, Ematch, EmatchCmp, EmatchCompare, EmatchJoin, EmatchLayer, EmatchTest, FilterChain,
    FilterPriority, Fw, FwFilter, Hook, MetaTerm, MetaValue, Outcome, U32Key, U32Next, U32Node, U32Table,
};
use underpass_netlink::tc;
use underpass_netlink::tc::basic::{Kind, Layer, Match, Meta, Operand, Operator, Relation, Tree};
use underpass_netlink::tc::u32::{bucket, table};

use super::common::Common;
use super::{Classifier, Place, u32};
use crate::Router;
use crate::link::publish::publish_link;
use crate::tc::action::change::action_id;
use crate::tc::parent::{Block, Point};
use crate::tc::publish::publish_qdiscs;

/// Filters of a place from which on those that are added are gathered.
const MANY: usize = 64;
/// How long they wait for the next, and in all, unless it takes longer to put them in force.
pub(crate) const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// `TC_U32_*`.
const TERMINAL: u8 = 1;
const OFFSET: u8 = 2;
const VAROFFSET: u8 = 4;
const EAT: u8 = 8;

/// A filter has been added to a place, and nothing else has changed there.
pub(super) fn publish_added(router: &mut Router, block: Block, qdisc: u32) {
    let many = router.filters.places.get(&block).is_some_and(|place| place.published >= MANY);
    if !many {
        return publish_filters(router, block, qdisc);
    }
    router.filters.gathered.insert(block);
    router.filters.gathered_since.get_or_insert_with(Instant::now);
}

/// Publishes to the packet path what the filters of a place are now, and those that share tables of `u32` with it.
pub(crate) fn publish_filters(router: &mut Router, block: Block, qdisc: u32) {
    publish_place(router, block);
    if router.filters.tables.contains_key(&(block.link, qdisc)) {
        let others =
            router.filters.places.iter().filter(|(other, place)| {
                other.link == block.link && place.qdisc == qdisc && **other != block
            });
        let others: Vec<_> = others.map(|(block, _)| *block).collect();
        others.into_iter().for_each(|block| publish_place(router, block));
    }
}

/// Publishes to the packet path what the filters of a place are now.
pub(super) fn publish_place(router: &mut Router, block: Block) {
    if router.filters.gathered.remove(&block) && router.filters.gathered.is_empty() {
        router.filters.gathered_since = None;
    }
    publish_tables_alone(router, Some(block));
    let Some(place) = router.filters.places.get(&block) else { return };
    // Without a filter in chain 0 nobody gets to the others, and the qdisc counts nothing.
    let none = place.chains.iter().all(|chain| chain.index != 0 || chain.priorities.is_empty());
    let alone = !has_filters(place);
    for at in router.filters.met_at(block) {
        // Where there are only tables of `u32`, Linux passes the hook by at ingress (`tcf_block_bypass_sw`). At egress the
        // hook does not know its block.
        let passed = if at.point == Point::Egress { !router.filters.software } else { alone };
        let empty = none || passed;
        match (router.filters.hook_of(at), empty) {
            (None, true) => {}
            (Some(hook), true) => {
                set_hook(router, at, None);
                router.engine.remove_hook(hook);
            }
            (Some(hook), false) => {
                let compiled = compile_counted(router, block, at);
                router.engine.set_hook(hook, compiled);
            }
            (None, false) => {
                let compiled = compile_counted(router, block, at);
                let hook = router.engine.add_hook(compiled);
                set_hook(router, at, Some(hook));
            }
        }
    }
}

/// Whether a place has more than tables of `u32` that have never had a filter.
fn has_filters(place: &Place) -> bool {
    let mut priorities = place.chains.iter().flat_map(|chain| &chain.priorities);
    priorities.any(|priority| !matches!(priority.classifier, Classifier::U32(root) if !root.used))
}

/// Publishes the places that have nothing but tables of `u32`, `except` one, if it is by another place's filters that
/// packets meet them now, or by none any more.
pub(super) fn publish_tables_alone(router: &mut Router, except: Option<Block>) {
    let software = router.filters.places.values().any(has_filters);
    if router.filters.software == software {
        return;
    }
    router.filters.software = software;
    let alone = router.filters.places.iter().filter(|(_, place)| !has_filters(place));
    let alone: Vec<_> = alone.map(|(block, _)| *block).filter(|block| Some(*block) != except).collect();
    alone.into_iter().for_each(|block| publish_place(router, block));
}

fn set_hook(router: &mut Router, block: Block, hook: Option<tables::HookId>) {
    router.filters.set_hook(block, hook);
    hook_changed(router, block);
}

/// Publishes to the packet path where the filters of a place are.
pub(super) fn hook_changed(router: &mut Router, block: Block) {
    match block.point {
        Point::Ingress | Point::Egress => publish_link(router, block.link),
        Point::Qdisc(_) | Point::Class(_) => publish_qdiscs(router, block.link),
        // Each hook that names it is told.
        Point::Shared(_) => {}
    }
}

/// What the qdisc of a place counts with, if packets meet filters before they meet it.
fn hook_counter(router: &mut Router, block: Block) -> Option<TcCounterId> {
    if !matches!(block.point, Point::Ingress | Point::Egress) {
        return None;
    }
    let key = (block.link, tc::HOOK);
    if let Some(counter) = router.filters.counters.get(&key) {
        return Some(*counter);
    }
    let counter = router.engine.add_tc_counter();
    router.filters.counters.insert(key, counter);
    Some(counter)
}

/// Makes what the packet path takes of the filters of `block` where packets meet them `at` a place.
fn compile_place(router: &mut Router, block: Block, at: Block) -> Hook {
    let counter = hook_counter(router, at);
    let Some(place) = router.filters.places.get(&block) else { return Hook::default() };
    let tables = router.filters.tables.get(&(block.link, place.qdisc));
    let order: BTreeMap<u32, usize> = tables
        .iter()
        .flat_map(|tables| &tables.tables)
        .enumerate()
        .map(|(at, table)| (table.handle, at))
        .collect();
    let chains = place.chains.iter().map(|chain| FilterChain {
        index: chain.index,
        priorities: chain
            .priorities
            .iter()
            .map(|priority| FilterPriority {
                protocol: priority.protocol,
                classifier: compile_classifier(router, &priority.classifier, place.qdisc, &order),
            })
            .filter(|priority| !is_empty(&priority.classifier))
            .collect(),
    });
    let compile_table = |source: &u32::Table| {
        let mut buckets = vec![Vec::new(); source.divisor as usize];
        for (handle, node) in &source.nodes {
            if let Some(bucket) = buckets.get_mut(bucket(*handle) as usize) {
                bucket.push(compile_node(router, node, &order));
            }
        }
        U32Table { buckets }
    };
    Hook {
        counter,
        chains: chains.collect(),
        u32_tables: tables.iter().flat_map(|tables| &tables.tables).map(compile_table).collect(),
    }
}

/// Makes what the packet path takes of the filters of a place, and remembers how many they are.
fn compile_counted(router: &mut Router, block: Block, at: Block) -> Hook {
    let hook = compile_place(router, block, at);
    let of_priority = |priority: &FilterPriority| match &priority.classifier {
        tables::Classifier::Matchall(_) | tables::Classifier::U32(_) => 1,
        tables::Classifier::Basic(filters) => filters.len(),
        tables::Classifier::Flower(filters) => filters.len(),
        tables::Classifier::Fw(Fw::Classes { .. }) => 0,
        tables::Classifier::Fw(Fw::Marks { filters, .. }) => filters.len(),
    };
    let priorities = hook.chains.iter().flat_map(|chain| &chain.priorities).map(of_priority);
    let nodes = hook.u32_tables.iter().flat_map(|table| &table.buckets).map(Vec::len);
    let published = priorities.sum::<usize>() + nodes.sum::<usize>();
    if let Some(place) = router.filters.places.get_mut(&block) {
        place.published = published;
    }
    hook
}

fn outcome(router: &Router, common: &Common) -> Outcome {
    Outcome {
        class: common.class,
        actions: common.exts.names().iter().filter_map(|name| action_id(router, *name)).collect(),
        counter: common.counter,
    }
}

fn compile_classifier(
    router: &Router,
    classifier: &Classifier,
    qdisc: u32,
    order: &BTreeMap<u32, usize>,
) -> tables::Classifier {
    let input = |link: Option<u32>| link.and_then(|link| router.links.get(link)).map(|link| link.id);
    match classifier {
        Classifier::U32(root) => {
            tables::Classifier::U32(order.get(&table(root.table)).copied().unwrap_or(usize::MAX))
        }
        Classifier::Basic(filters) => tables::Classifier::Basic(
            filters
                .0
                .iter()
                .map(|filter| BasicFilter {
                    ematches: sequence(&filter.tree, 0),
                    outcome: outcome(router, &filter.common),
                })
                .collect(),
        ),
        Classifier::Flower(filters) => {
            tables::Classifier::Flower(filters.compile(|common| outcome(router, common)))
        }
        Classifier::Matchall(filters) => match filters.filter() {
            Some(common) => tables::Classifier::Matchall(outcome(router, common)),
            None => tables::Classifier::Basic(Vec::new()),
        },
        Classifier::Fw(filters) => tables::Classifier::Fw(match filters.mask {
            None => Fw::Classes { qdisc },
            Some(mask) => Fw::Marks {
                mask,
                filters: filters
                    .filters
                    .iter()
                    .map(|filter| FwFilter {
                        handle: filter.handle,
                        ingress: input(filter.input),
                        outcome: outcome(router, &filter.common),
                    })
                    .collect(),
            },
        }),
    }
}

fn compile_node(router: &Router, node: &u32::Node, order: &BTreeMap<u32, usize>) -> U32Node {
    let selector = &node.selector;
    let has = |flag| selector.flags & flag != 0;
    U32Node {
        keys: selector
            .keys
            .iter()
            .map(|key| U32Key {
                value: u32::from_be_bytes(key.value),
                mask: u32::from_be_bytes(key.mask),
                offset: key.offset,
                offset_mask: key.offset_mask,
            })
            .collect(),
        key_counters: node.key_counters.clone(),
        mark: node.mark,
        mark_counter: node.mark_counter,
        ingress: node.input.and_then(|link| router.links.get(link)).map(|link| link.id),
        terminal: has(TERMINAL),
        link: node.link.and_then(|link| order.get(&link).copied()),
        next: U32Next {
            has_fixed: has(OFFSET),
            has_variable: has(VAROFFSET),
            eat: has(EAT),
            fixed: selector.offset,
            variable_at: selector.offset_at,
            variable_mask: selector.offset_mask,
            variable_shift: selector.shift,
            hash_at: selector.hash_at,
            hash_mask: u32::from_be_bytes(selector.hash_mask),
        },
        outcome: outcome(router, &node.common),
    }
}

/// Whether a classifier chooses no packet.
fn is_empty(classifier: &tables::Classifier) -> bool {
    match classifier {
        tables::Classifier::Basic(filters) => filters.is_empty(),
        tables::Classifier::Flower(filters) => filters.is_empty(),
        _ => false,
    }
}

/// The list of matches that begins at a place. A container names a later place: this ends.
fn sequence(tree: &Tree, from: usize) -> Vec<Ematch> {
    let mut list = Vec::new();
    for one in tree.matches.iter().skip(from) {
        list.push(ematch(tree, one));
        if one.relation == Relation::End {
            break;
        }
    }
    list
}

fn ematch(tree: &Tree, one: &Match) -> Ematch {
    let compare = |operator| match operator {
        Operator::Equal => Some(EmatchCompare::Equal),
        Operator::Greater => Some(EmatchCompare::Greater),
        Operator::Less => Some(EmatchCompare::Less),
        Operator::Other => None,
    };
    let layer = |layer| match layer {
        Layer::Link => Some(EmatchLayer::Link),
        Layer::Network => Some(EmatchLayer::Network),
        Layer::Transport => Some(EmatchLayer::Transport),
        Layer::Other(_) => None,
    };
    let test = match &one.kind {
        Kind::Container(at) => Some(EmatchTest::Group(sequence(tree, *at as usize))),
        Kind::Cmp { value, mask, offset, width, transform, layer: from, operator } => layer(*from)
            .zip(compare(*operator))
            .filter(|_| [1, 2, 4].contains(width))
            .map(|(layer, compare)| {
                EmatchTest::Cmp(EmatchCmp {
                    layer,
                    offset: *offset,
                    width: *width,
                    swap: *transform && cfg!(target_endian = "little"),
                    mask: *mask,
                    compare,
                    value: *value,
                })
            }),
        Kind::Nbyte { offset, layer: from, pattern } => layer(*from).map(|layer| EmatchTest::Nbyte {
            layer,
            offset: *offset,
            bytes: pattern.clone().into(),
        }),
        Kind::U32(key) => Some(EmatchTest::U32 {
            value: u32::from_be_bytes(key.value),
            mask: u32::from_be_bytes(key.mask),
            offset: key.offset,
        }),
        Kind::Meta { left, right, operator } => compare(*operator).map(|compare| EmatchTest::Meta {
            left: term(left),
            compare,
            right: term(right),
        }),
    };
    let join = match one.relation {
        Relation::Or => EmatchJoin::Or,
        Relation::And | Relation::End => EmatchJoin::And,
    };
    // What holds for no packet: a number that is not itself.
    let never = EmatchTest::Meta {
        left: MetaTerm::Number(0),
        compare: EmatchCompare::Equal,
        right: MetaTerm::Number(1),
    };
    Ematch { invert: one.invert, test: test.unwrap_or(never), join }
}

fn term(operand: &Operand) -> MetaTerm {
    let value = match operand.meta {
        Meta::Value(number) => return MetaTerm::Number(number),
        Meta::Device => MetaValue::Device,
        Meta::Priority => MetaValue::Priority,
        Meta::Protocol => MetaValue::Protocol,
        Meta::PacketLength => MetaValue::PacketLength,
        Meta::MacLength => MetaValue::MacLength,
        Meta::Mark => MetaValue::Mark,
        Meta::VlanTag => MetaValue::VlanTag,
    };
    MetaTerm::Of { value, shift: operand.shift, mask: operand.mask }
}
