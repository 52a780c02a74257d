//! The classes of an `htb`. Linux: `htb_change_class`, `htb_delete`.

use std::collections::BTreeMap;

use libc::{EBUSY, EINVAL};
use underpass_engine::counters::QueueId;
use underpass_engine::tables::{self, FifoLimit, HTB_DEPTH, HTB_PRIORITIES, QuantumWarning};
use underpass_netlink::tc::htb as codec;
use underpass_netlink::{Attribute, RequestError, tc};

use super::kind::config;
use super::leaf::Leaf;
use crate::link::Link;

/// An `htb`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Htb {
    /// Its parameters.
    pub settings: codec::Htb,
    /// Packets that wait unshaped at most.
    pub direct_limit: u32,
    classes: BTreeMap<u32, Class>,
    order: Order,
}

/// A class of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Class {
    /// Its parameters, with the quantum.
    pub settings: codec::HtbClass,
    /// The class above it.
    pub parent: Option<u32>,
    /// 0 without classes below it; 7 with some, at the top, 6 below such.
    pub level: u32,
    /// What it queues in; nothing if classes are below it.
    pub leaf: Option<Leaf>,
    /// What its two buckets hold until it has sent, as the time that it takes, in nanoseconds: what they were made with.
    pub tokens: [u64; 2],
    /// What the packet path counts it as.
    pub queue: Option<QueueId>,
}

/// What a change of classes does to others, and what there is to say of it.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// What was in a class that has others below it now, or is no more.
    pub removed: Option<Leaf>,
    /// What the packet path counted a class as that is no more.
    pub queue: Option<QueueId>,
    /// A warning.
    pub warning: Option<String>,
}

impl Htb {
    /// One without classes.
    pub fn new(settings: codec::Htb, link: &Link) -> Self {
        let direct_limit = settings.direct_limit.unwrap_or(link.tx_queue_len);
        Self { settings, direct_limit, classes: BTreeMap::new(), order: Order::default() }
    }

    /// A class by its number.
    pub fn get(&self, class: u32) -> Option<&Class> {
        self.classes.get(&class)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, class: u32) -> Option<&mut Class> {
        self.classes.get_mut(&class)
    }

    /// All classes, by their numbers.
    pub fn classes(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes.iter().map(|(id, class)| (*id, class))
    }

    /// The same, to change them.
    pub fn classes_mut(&mut self) -> impl Iterator<Item = &mut Class> {
        self.classes.values_mut()
    }

    /// Their numbers in the order in which Linux shows them.
    pub fn order(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.chains.iter().flatten().copied()
    }

    /// Makes a class of the qdisc `handle`, or changes the one that there is.
    ///
    /// # Errors
    /// `EINVAL` as Linux's `htb_change_class`.
    pub fn change(
        &mut self,
        handle: u32,
        id: u32,
        parent: u32,
        options: Option<Attribute<'_>>,
        link: &Link,
    ) -> Result<Changed, RequestError> {
        let mut wanted = codec::HtbClass::parse(options)?;
        wanted.priority = wanted.priority.min(HTB_PRIORITIES as u32 - 1);
        let wanted_quantum = wanted.quantum;
        let rate = config(&wanted.rate);
        let (quantum, warning) =
            tables::HtbClass::quantum(&rate, self.settings.rate_to_quantum, wanted_quantum);
        wanted.quantum = quantum;
        let mut changed = Changed::default();
        if let Some(class) = self.classes.get_mut(&id) {
            if class.level > 0 {
                // What only counts for a class without others below it stays as it was.
                (wanted.quantum, wanted.priority) = (class.settings.quantum, class.settings.priority);
            }
            class.settings = wanted;
            changed.warning = warning.filter(|_| class.level == 0).map(|warning| quantum_text(id, warning));
            return Ok(changed);
        }
        if id == 0 || tc::major(id) != handle {
            return Err(RequestError::errno(EINVAL));
        }
        let above = self.classes.get(&parent).and_then(|parent| parent.parent);
        let above = above.and_then(|above| self.classes.get(&above));
        if above.is_some_and(|above| above.level < 2) {
            return Err(RequestError::new(EINVAL, "sch_htb: tree is too deep"));
        }
        let top = above.map_or(HTB_DEPTH as u32, |above| above.level);
        if let Some(parent) = self.classes.get_mut(&parent)
            && parent.level == 0
        {
            parent.level = top - 1;
            changed.removed = parent.leaf.take();
        }
        let parent = Some(parent).filter(|parent| self.classes.contains_key(parent));
        let leaf = Some(Leaf::queue(FifoLimit::Packets(link.tx_queue_len)));
        let tokens = [wanted.buffer, wanted.ceil_buffer];
        self.classes.insert(id, Class { settings: wanted, parent, level: 0, leaf, tokens, queue: None });
        self.order.insert(id);
        changed.warning = warning.map(|warning| quantum_text(id, warning));
        Ok(changed)
    }

    /// Deletes a class that there is. `used`: filters lead to it.
    ///
    /// # Errors
    /// `EBUSY` if it has others below it or is used.
    pub fn delete(&mut self, id: u32, used: bool, link: &Link) -> Result<Changed, RequestError> {
        if used || self.classes.values().any(|class| class.parent == Some(id)) {
            return Err(RequestError::new(EBUSY, "HTB class in use"));
        }
        self.order.remove(id);
        let Some(class) = self.classes.remove(&id) else { return Ok(Changed::default()) };
        if let Some(parent) = class.parent
            && !self.classes.values().any(|class| class.parent == Some(parent))
            && let Some(parent) = self.classes.get_mut(&parent)
        {
            parent.level = 0;
            parent.tokens = [parent.settings.buffer, parent.settings.ceil_buffer];
            parent.leaf = Some(Leaf::queue(FifoLimit::Packets(link.tx_queue_len)));
        }
        Ok(Changed { removed: class.leaf, queue: class.queue, warning: None })
    }
}

fn quantum_text(class: u32, warning: QuantumWarning) -> String {
    let size = match warning {
        QuantumWarning::Small => "small",
        QuantumWarning::Big => "big",
    };
    format!("sch_htb: quantum of class {class:X} is {size}. Consider r2q change.")
}

/// The chains of Linux's hash of classes (`qdisc_class_hash`): what was put in last is first.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Order {
    chains: Vec<Vec<u32>>,
    count: usize,
}

impl Default for Order {
    fn default() -> Self {
        Self { chains: vec![Vec::new(); 4], count: 0 }
    }
}

impl Order {
    fn chain(&mut self, id: u32) -> Option<&mut Vec<u32>> {
        let hash = id ^ (id >> 8);
        let hash = hash ^ (hash >> 4);
        let at = hash as usize & (self.chains.len() - 1);
        self.chains.get_mut(at)
    }

    fn put(&mut self, id: u32) {
        if let Some(chain) = self.chain(id) {
            chain.insert(0, id);
        }
    }

    fn insert(&mut self, id: u32) {
        self.put(id);
        self.count += 1;
        if self.count * 4 > self.chains.len() * 3 {
            let twice = vec![Vec::new(); self.chains.len() * 2];
            let old = std::mem::replace(&mut self.chains, twice);
            old.into_iter().flatten().for_each(|id| self.put(id));
        }
    }

    fn remove(&mut self, id: u32) {
        self.count = self.count.saturating_sub(1);
        if let Some(chain) = self.chain(id) {
            chain.retain(|other| *other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underpass_netlink::message;
    use underpass_netlink::reply::{Address, write_message};

    use super::*;
    use crate::link::LinkKind;

    const HANDLE: u32 = 0x1_0000;

    fn link() -> Link {
        Link::new(1, "v0".into(), LinkKind::Dummy, [2, 0, 0, 0, 0, 1])
    }

    /// What a class `htb rate 1mbit burst 1600` is told.
    fn options() -> Vec<u8> {
        let rate = tc::Rate { bytes: 125_000, link_layer: tc::rate::ETHERNET, ..tc::Rate::default() };
        let class = codec::HtbClass {
            rate,
            ceil: rate,
            buffer: 12_800_000,
            ceil_buffer: 12_800_000,
            ..Default::default()
        };
        let mut bytes = Vec::new();
        write_message(&mut bytes, 40, 0, Address::default(), |reply| class.write(reply, 0)).unwrap();
        bytes.split_off(message::HEADER + 4)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Change { id: u32, parent: u32 },
        Delete(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = || (0_u32..12).prop_map(|minor| HANDLE | minor);
        prop_oneof![
            3 => (id(), id()).prop_map(|(id, parent)| Step::Change { id, parent }),
            1 => id().prop_map(Step::Delete),
        ]
    }

    proptest! {
        /// Whatever is asked for: a class has a queue if and only if no other is below it, its level is one less than
        /// that of the class above it, and each is shown once.
        #[test]
        fn the_hierarchy_is_sound(steps in proptest::collection::vec(step(), 0..60)) {
            let options = options();
            let options = Attribute { kind: 2, offset: 36, value: &options };
            let settings = codec::Htb { rate_to_quantum: 10, default: 0, direct_limit: None };
            let mut htb = Htb::new(settings, &link());
            for step in steps {
                match step {
                    Step::Change { id, parent } => {
                        let _ = htb.change(HANDLE, id, parent, Some(options), &link());
                    }
                    Step::Delete(id) => {
                        let inner = htb.classes().any(|(_, class)| class.parent == Some(id));
                        prop_assert_eq!(htb.delete(id, false, &link()).is_err(), inner);
                    }
                }
                for (id, class) in htb.classes() {
                    let inner = htb.classes().any(|(_, other)| other.parent == Some(id));
                    prop_assert_eq!((class.level > 0, class.leaf.is_none()), (inner, inner), "{:x}", id);
                    if let Some(above) = class.parent.and_then(|above| htb.get(above)) {
                        prop_assert!(class.level < above.level);
                    }
                }
                let mut shown: Vec<_> = htb.order().collect();
                shown.sort_unstable();
                prop_assert!(shown.into_iter().eq(htb.classes().map(|(id, _)| id)));
            }
        }
    }
}
