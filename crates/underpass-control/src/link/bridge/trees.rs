//! The spanning trees of bridges, and what they say of a bridge or a port.

use std::collections::BTreeMap;

use underpass_netlink::bridge::{PortInTree, Shown, SpanningTree};

use super::super::Link;
use super::device::Bridge;
use super::device::bridge_of;
use super::stations::count_learned;
use super::tree::{HUNDREDTH, Tree};
use crate::Router;

/// The spanning trees of bridges.
#[derive(Default)]
pub(crate) struct Trees {
    pub(super) trees: BTreeMap<u32, Tree>,
    /// What is to be sent to other bridges, by which port.
    pub(super) frames: Vec<(u32, Vec<u8>)>,
}

impl Trees {
    /// A link is gone.
    pub fn forget(&mut self, index: u32) {
        self.trees.remove(&index);
    }
}

/// Who decides in the bridge of a port which ports pass frames on.
pub(super) fn of_port(router: &Router, link: &Link) -> SpanningTree {
    let bridge = bridge_of(router, link.master).and_then(|bridge| bridge.bridge.as_ref());
    bridge.map_or(SpanningTree::Off, |bridge| bridge.settings.spanning_tree)
}

/// What is shown of a bridge besides what is set.
pub(in crate::link) fn shown(router: &Router, index: u32, bridge: &Bridge) -> Shown {
    let tree = router.trees.trees.get(&index).map(|tree| tree.shown(now(router)));
    Shown { id: bridge.id, learned: count_learned(router, index), tree }
}

/// Where a port is in the spanning tree of its bridge.
pub(in crate::link) fn port_shown(router: &Router, link: &Link) -> Option<PortInTree> {
    let port = link.bridge_port.as_ref()?;
    let over = bridge_of(router, link.master)?;
    let tree = router.trees.trees.get(&over.index);
    tree.and_then(|tree| tree.port_shown(link.index, now(router))).or_else(|| {
        let bridge = over.bridge.as_ref()?;
        Some(port.settings.alone(bridge.settings.id(bridge.id)))
    })
}

/// After how many milliseconds a bridge forgets a station.
pub(super) fn ageing(router: &Router, link: &Link) -> u64 {
    let shortened = router.trees.trees.get(&link.index).and_then(Tree::ageing);
    let set = link.bridge.as_ref().map_or(0, |bridge| u64::from(bridge.settings.ageing_time) * HUNDREDTH);
    shortened.unwrap_or(set)
}

/// Milliseconds since the router began.
pub(super) fn now(router: &Router) -> u64 {
    router.began.elapsed().as_millis() as u64
}
