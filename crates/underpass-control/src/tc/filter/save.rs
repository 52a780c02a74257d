//! Filters and chains as lines.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use underpass_netlink::tc::{self, SKIP_HW};

use super::common::{Common, PriorityName};
use super::{Chain, Classifier, Place, Priority};
use crate::save::{Save, Words, protocol, quoted};
use crate::tc::action::save::{Made, exts_words, save_alone};
use crate::tc::parent::{Block, Point};
use crate::tc::save::handle;

/// Actions without filters, then the chains of each place with their filters.
pub(in crate::tc) fn save(save: &mut Save<'_>) {
    let mut made = Made::default();
    save_alone(save, &mut made);
    let router = save.router;
    let mut queues: Vec<(Block, &Place, VecDeque<Part<'_>>)> = Vec::new();
    for (&block, place) in &router.filters.places {
        queues.extend(place.chains.iter().map(|chain| (block, place, parts(chain).collect())));
    }
    let head = |queue: &VecDeque<Part<'_>>| queue.front().map(Part::order);
    let heads = queues.iter().enumerate().filter_map(|(at, (_, _, queue))| Some(Reverse((head(queue)?, at))));
    let mut heads: BinaryHeap<_> = heads.collect();
    while let Some(Reverse((_, at))) = heads.pop() {
        let Some((block, place, queue)) = queues.get_mut(at) else { continue };
        let Some(part) = queue.pop_front() else { continue };
        let of = place_words(save, *block, parent_of(place, *block));
        match part {
            Part::Chain(chain) => save_chain(save, &of, chain),
            Part::Priority(chain, priority) => save_priority(save, &mut made, (*block, chain), priority, &of),
        }
        heads.extend(head(queue).map(|order| Reverse((order, at))));
    }
}

/// What is saved at a time.
enum Part<'a> {
    /// That there is a chain.
    Chain(&'a Chain),
    /// A priority of one.
    Priority(&'a Chain, &'a Priority),
}

impl Part<'_> {
    /// Whose turn is first: `u32` numbers the tables that priorities begin with as they come, at all places of a qdisc.
    fn order(&self) -> u32 {
        match self {
            Self::Priority(_, Priority { classifier: Classifier::U32(root), .. }) => root.table,
            Self::Priority(..) | Self::Chain(_) => 0,
        }
    }
}

/// A chain's parts, in the order in which they are made again.
fn parts(chain: &Chain) -> impl Iterator<Item = Part<'_>> {
    let mut parts: Vec<_> = chain.priorities.iter().map(|priority| Part::Priority(chain, priority)).collect();
    parts.sort_by_key(Part::order);
    std::iter::once(Part::Chain(chain)).chain(parts)
}

/// Where filters are, in words.
fn place_words(save: &Save<'_>, block: Block, parent: u32) -> Words {
    let mut words = Words::default();
    match block.point {
        Point::Shared(index) => words.pair("block", index),
        _ => words.pair("dev", save.name(block.link)),
    };
    const INGRESS: u32 = tc::INGRESS & 0xffff_0000 | tc::MIN_INGRESS;
    const EGRESS: u32 = tc::INGRESS & 0xffff_0000 | tc::MIN_EGRESS;
    match (block.point, parent) {
        (Point::Shared(_), _) => &mut words,
        (_, INGRESS) => words.add("ingress"),
        (_, EGRESS) => words.add("egress"),
        (_, parent) => words.pair("parent", handle(parent)),
    };
    words
}

/// The parent by which filters of a place are named.
const fn parent_of(place: &Place, block: Block) -> u32 {
    // A chain that was made before any filter has none to name its parent.
    match (place.parent, block.point) {
        (0, Point::Ingress) => tc::INGRESS & 0xffff_0000 | tc::MIN_INGRESS,
        (0, Point::Egress) => tc::INGRESS & 0xffff_0000 | tc::MIN_EGRESS,
        (0, Point::Qdisc(handle) | Point::Class(handle)) => handle,
        (parent, _) => parent,
    }
}

fn save_chain(save: &mut Save<'_>, place_of: &Words, chain: &Chain) {
    let Chain { index, explicit, template, held: _, priorities: _ } = chain;
    if !explicit {
        return;
    }
    let mut line = Words::new("tc chain add");
    line.add(place_of).pair("chain", index);
    if let Some(template) = template {
        match template.words(save) {
            Ok((kind, words)) => {
                let mut with = Words::new("tc chain add");
                with.add(place_of).pair("protocol", protocol(kind)).pair("chain", index).add("flower");
                line = with.add_all(&words).clone();
            }
            Err(why) => save.left_out(format!("the template of the chain {index}: {why}")),
        }
    }
    save.line(line);
}

fn save_priority(
    save: &mut Save<'_>,
    made: &mut Made,
    (block, Chain { index, .. }): (Block, &Chain),
    priority: &Priority,
    place_of: &Words,
) {
    let Priority { number, protocol: kind, classifier } = priority;
    let name = PriorityName { block, chain: *index, number: *number };
    let mut begin = Words::default();
    begin.add(place_of).some("chain", (*index != 0).then_some(index));
    begin.pair("protocol", protocol(*kind)).pair("prio", number);
    let begin = &begin;
    match classifier {
        Classifier::U32(root) => super::u32::save::save(save, made, name, root, begin),
        Classifier::Flower(filters) => filters.save(save, made, begin),
        Classifier::Basic(filters) => {
            // The last that was made stands first.
            for filter in filters.0.iter().rev() {
                match super::basic::save::tree_words(&filter.tree) {
                    Ok(tree) => {
                        let mut words = Words::new(&format!("handle {:#x} basic", filter.handle));
                        words.some("match", (!tree.is_empty()).then(|| quoted(&tree)));
                        save_filter(save, made, begin, &words, &filter.common);
                    }
                    Err(why) => {
                        save.left_out(format!("the basic filter {:#x} of {begin}: {why}", filter.handle));
                    }
                }
            }
        }
        Classifier::Matchall(filters) => {
            if let Some((handle, common)) = &filters.filter {
                let mut words = Words::new(&format!("handle {handle:#x} matchall"));
                words.when(common.flags & SKIP_HW != 0, "skip_hw");
                save_filter(save, made, begin, &words, common);
            }
        }
        Classifier::Fw(filters) => {
            if filters.filters.is_empty() {
                save_filter(save, made, begin, &Words::new("fw"), &Common::default());
            }
            for filter in filters.filters.iter().rev() {
                let super::fw::Filter { handle, input, common } = filter;
                let mark = match filters.mask {
                    None | Some(u32::MAX) => format!("{handle:#x}"),
                    Some(mask) => format!("{handle:#x}/{mask:#x}"),
                };
                let mut words = Words::new(&format!("handle {mark} fw"));
                words.some("indev", input.map(|link| save.name(link)));
                save_filter(save, made, begin, &words, common);
            }
        }
    }
}

/// A filter's line: where it is, what it compares, and what it does.
pub(super) fn save_filter(
    save: &mut Save<'_>,
    made: &mut Made,
    begin: &Words,
    words: &Words,
    common: &Common,
) {
    let Common { class, flags: _, exts, counter: _ } = common;
    let (estimator, actions) = exts_words(save, made, exts);
    let mut line = Words::new("tc filter add");
    line.some("estimator", estimator).add(begin).add(words);
    line.some("classid", (*class != 0).then(|| handle(*class))).add_all(&actions);
    save.line(line);
}
