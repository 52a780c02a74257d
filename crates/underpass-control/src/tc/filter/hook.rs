//! Hooks and places that come and go, with their filters.

use underpass_engine::counters::TcCount;
use underpass_netlink::tc;

use super::common::{Common, PriorityName};
use super::{Classifier, Priority};
use crate::Router;
use crate::tc::parent::{Block, Point};

impl Router {
    /// What `ingress` or `clsact` of a link has counted.
    pub(in crate::tc) fn hook_count(&self, link: u32, qdisc: u32) -> TcCount {
        let counter = self.filters.counters.get(&(link, qdisc));
        counter.map(|counter| self.engine.tc_count(*counter)).unwrap_or_default()
    }

    /// Qdiscs of a link are no more, and their filters with them.
    pub(crate) fn forget_lost_filters(&mut self, link: u32) {
        let control = self.tc.get(link);
        let lost = |qdisc| control.is_none_or(|control| control.lookup(qdisc).is_none());
        let places = self.filters.places.iter();
        let blocks: Vec<_> = places
            .filter(|(block, place)| block.link == link && lost(place.qdisc))
            .map(|(block, _)| *block)
            .collect();
        let counters = self.filters.counters.keys();
        let counters: Vec<_> = counters.filter(|(on, qdisc)| *on == link && lost(*qdisc)).copied().collect();
        blocks.into_iter().for_each(|block| self.forget_place(block));
        for key in counters {
            if let Some(counter) = self.filters.counters.remove(&key) {
                self.engine.remove_tc_counter(counter);
            }
        }
    }

    /// The `ingress` or `clsact` of a link is no more, or another one is in its place.
    pub(crate) fn forget_filters_of_hook(&mut self, link: u32) {
        for point in [Point::Ingress, Point::Egress] {
            self.forget_place(Block { link, point });
        }
        self.leave_shared(link);
        if let Some(counter) = self.filters.counters.remove(&(link, tc::HOOK)) {
            self.engine.remove_tc_counter(counter);
        }
    }

    /// A hook of a link names a shared block.
    pub(crate) fn join_shared(&mut self, hook: Block, index: u32) {
        self.filters.shared.insert(hook, (index, None));
        self.filters.generation += 1;
        self.publish_place(Block::shared(index));
    }

    /// The hooks of a link name no shared blocks any more. A block that nobody names is no more.
    fn leave_shared(&mut self, link: u32) {
        for point in [Point::Ingress, Point::Egress] {
            let hook = Block { link, point };
            let Some((index, published)) = self.filters.shared.remove(&hook) else { continue };
            self.filters.generation += 1;
            if let Some(published) = published {
                self.hook_changed(hook);
                self.engine.remove_hook(published);
            }
            if !self.filters.is_shared(index) {
                self.forget_place(Block::shared(index));
            }
        }
    }

    /// A class is no more, and its filters with it.
    pub(crate) fn forget_place(&mut self, block: Block) {
        let Some(place) = self.filters.places.get(&block) else { return };
        let names: Vec<_> = place
            .chains
            .iter()
            .flat_map(|chain| {
                let name =
                    |priority: &Priority| PriorityName { block, chain: chain.index, number: priority.number };
                chain.priorities.iter().map(name)
            })
            .collect();
        names.into_iter().for_each(|name| self.remove_priority(name));
        if let Some(hook) = self.filters.places.remove(&block).and_then(|place| place.hook) {
            self.hook_changed(block);
            self.engine.remove_hook(hook);
        }
        self.filters.generation += 1;
    }

    /// A link is no more.
    pub(crate) fn forget_link_of_filters(&mut self, link: u32) {
        let blocks: Vec<_> = self.filters.places.keys().filter(|block| block.link == link).copied().collect();
        blocks.into_iter().for_each(|block| self.forget_place(block));
        self.leave_shared(link);
        self.forget_link_of_actions(link);
    }

    /// Takes a priority out, with its filters.
    pub(super) fn remove_priority(&mut self, name: PriorityName) {
        let Some(chain) = self.filters.chain_mut(name.block, name.chain) else { return };
        let Ok(at) = chain.priorities.binary_search_by_key(&name.number, |priority| priority.number) else {
            return;
        };
        let priority = chain.priorities.remove(at);
        let filters = match priority.classifier {
            Classifier::U32(root) => self.remove_root(name, &root),
            Classifier::Basic(filters) => filters.into_common(),
            Classifier::Flower(filters) => filters.into_common(),
            Classifier::Matchall(filters) => filters.into_common(),
            Classifier::Fw(filters) => filters.into_common(),
        };
        filters.into_iter().for_each(|common| self.drop_common(common));
        self.filters.tidy(name.block, name.chain);
    }

    /// A filter is no more.
    pub(super) fn drop_common(&mut self, common: Common) {
        if let Some(counter) = common.counter {
            self.engine.remove_counter(counter);
        }
        self.release_exts(&common.exts);
    }
}
