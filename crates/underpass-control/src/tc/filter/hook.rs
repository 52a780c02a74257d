//! Hooks and places that come and go, with their filters.

use libc::{EINVAL, ENODEV, ENOENT, EOPNOTSUPP};
use underpass_engine::counters::TcCount;
use underpass_netlink::RequestError;
use underpass_netlink::tc::{self, Header};

use super::common::{Common, PriorityName};
use super::publish::{hook_changed, publish_place, publish_tables_alone};
use super::u32::change::remove_root;
use super::{Classifier, Priority};
use crate::Router;
use crate::tc::action::change::{forget_link_of_actions, release_exts};
use crate::tc::parent::{Block, EGRESS_OF_VRF, Found, Point, SHARED};

/// What `ingress` or `clsact` of a link has counted.
pub(in crate::tc) fn hook_count(router: &Router, link: u32, qdisc: u32) -> TcCount {
    let counter = router.filters.counters.get(&(link, qdisc));
    counter.map(|counter| router.engine.tc_count(*counter)).unwrap_or_default()
}

/// Qdiscs of a link are no more, and their filters with them.
pub(crate) fn forget_lost_filters(router: &mut Router, link: u32) {
    let control = router.tc.get(link);
    let lost = |qdisc| control.is_none_or(|control| control.lookup(qdisc).is_none());
    let places = router.filters.places.iter();
    let blocks: Vec<_> = places
        .filter(|(block, place)| block.link == link && lost(place.qdisc))
        .map(|(block, _)| *block)
        .collect();
    let counters = router.filters.counters.keys();
    let counters: Vec<_> = counters.filter(|(on, qdisc)| *on == link && lost(*qdisc)).copied().collect();
    blocks.into_iter().for_each(|block| forget_place(router, block));
    for key in counters {
        if let Some(counter) = router.filters.counters.remove(&key) {
            router.engine.remove_tc_counter(counter);
        }
    }
}

/// The `ingress` or `clsact` of a link is no more, or another one is in its place.
pub(crate) fn forget_filters_of_hook(router: &mut Router, link: u32) {
    for point in [Point::Ingress, Point::Egress] {
        forget_place(router, Block { link, point });
    }
    leave_shared(router, link);
    if let Some(counter) = router.filters.counters.remove(&(link, tc::HOOK)) {
        router.engine.remove_tc_counter(counter);
    }
}

/// A hook of a link names a shared block.
pub(crate) fn join_shared(router: &mut Router, hook: Block, index: u32) {
    router.filters.shared.insert(hook, (index, None));
    router.filters.generation += 1;
    publish_place(router, Block::shared(index));
}

/// The hooks of a link name no shared blocks any more. A block that nobody names is no more.
fn leave_shared(router: &mut Router, link: u32) {
    for point in [Point::Ingress, Point::Egress] {
        let hook = Block { link, point };
        let Some((index, published)) = router.filters.shared.remove(&hook) else { continue };
        router.filters.generation += 1;
        if let Some(published) = published {
            hook_changed(router, hook);
            router.engine.remove_hook(published);
        }
        if !router.filters.is_shared(index) {
            forget_place(router, Block::shared(index));
        }
    }
}

/// A class is no more, and its filters with it.
pub(crate) fn forget_place(router: &mut Router, block: Block) {
    let Some(place) = router.filters.places.get(&block) else { return };
    let names: Vec<_> = place
        .chains
        .iter()
        .flat_map(|chain| {
            let name =
                |priority: &Priority| PriorityName { block, chain: chain.index, number: priority.number };
            chain.priorities.iter().map(name)
        })
        .collect();
    names.into_iter().for_each(|name| remove_priority(router, name));
    if let Some(hook) = router.filters.places.remove(&block).and_then(|place| place.hook) {
        hook_changed(router, block);
        router.engine.remove_hook(hook);
    }
    publish_tables_alone(router, None);
    router.filters.generation += 1;
}

/// A link is no more.
pub(crate) fn forget_link_of_filters(router: &mut Router, link: u32) {
    let blocks: Vec<_> = router.filters.places.keys().filter(|block| block.link == link).copied().collect();
    blocks.into_iter().for_each(|block| forget_place(router, block));
    leave_shared(router, link);
    forget_link_of_actions(router, link);
}

/// Takes a priority out, with its filters.
pub(super) fn remove_priority(router: &mut Router, name: PriorityName) {
    let Some(chain) = router.filters.chain_mut(name.block, name.chain) else { return };
    let Ok(at) = chain.priorities.binary_search_by_key(&name.number, |priority| priority.number) else {
        return;
    };
    let priority = chain.priorities.remove(at);
    let filters = match priority.classifier {
        Classifier::U32(root) => remove_root(router, name, &root),
        Classifier::Basic(filters) => filters.into_common(),
        Classifier::Flower(filters) => filters.into_common(),
        Classifier::Matchall(filters) => filters.into_common(),
        Classifier::Fw(filters) => filters.into_common(),
    };
    filters.into_iter().for_each(|common| drop_common(router, common));
    router.filters.tidy(name.block, name.chain);
}

/// A filter is no more.
pub(super) fn drop_common(router: &mut Router, common: Common) {
    if let Some(counter) = common.counter {
        router.engine.remove_counter(counter);
    }
    release_exts(router, &common.exts);
}

/// The filters that a request means to change, or one of them. Those of a shared block are named by its index.
///
/// # Errors
/// `ENODEV`, or what Linux says of a qdisc, class or block that is not there or has no filters.
pub(crate) fn find_block(router: &Router, header: &Header) -> Result<Found, RequestError> {
    let found = find_block_to_show(router, header)?;
    if header.link != SHARED && found.block.link == SHARED {
        let text = "This filter block is shared. Please use the block index to manipulate the filters";
        return Err(RequestError::new(EOPNOTSUPP, text));
    }
    Ok(found)
}

/// The filters that a request means to show.
///
/// # Errors
/// As [`find_block`].
pub(crate) fn find_block_to_show(router: &Router, header: &Header) -> Result<Found, RequestError> {
    let shared = |index| Found { block: Block::shared(index), parent: index, qdisc: index };
    if header.link == SHARED {
        let index = header.parent;
        let missing = RequestError::new(EINVAL, "Block of given index was not found");
        return router.filters.is_shared(index).then(|| shared(index)).ok_or(missing);
    }
    let link = router.links.get(header.link).ok_or(RequestError::errno(ENODEV))?;
    let unclassful = RequestError::new(EINVAL, "Qdisc not classful");
    let control = router.tc.get(header.link);
    let qdisc = match header.parent {
        0 => control.and_then(|control| control.root()).ok_or(unclassful.clone())?,
        parent => control
            .and_then(|control| control.lookup(tc::major(parent)))
            .ok_or(RequestError::new(EINVAL, "Parent Qdisc doesn't exists"))?,
    };
    let parent = if header.parent == 0 { qdisc.handle } else { header.parent };
    if !qdisc.kind.classful() {
        return Err(unclassful);
    }
    if !qdisc.kind.has_filters() {
        return Err(RequestError::new(EOPNOTSUPP, "Class doesn't support blocks"));
    }
    let class = tc::minor(parent) != 0;
    if class && !qdisc.has_class(parent) {
        return Err(RequestError::new(ENOENT, "Specified class doesn't exist"));
    }
    let point = qdisc.point(parent).ok_or(RequestError::errno(EINVAL))?;
    if point == Point::Egress && link.vrf_table().is_some() {
        return Err(RequestError::new(EOPNOTSUPP, EGRESS_OF_VRF));
    }
    let block = Block { link: header.link, point };
    let own = Found { block, parent, qdisc: qdisc.handle };
    Ok(router.filters.shared_by(block).map_or(own, shared))
}
