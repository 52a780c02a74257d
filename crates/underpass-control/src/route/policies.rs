//! SRv6 policies: the headends of routes that put the same segments before packets in the same way, and count together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use underpass_engine::counters::CounterId;
use underpass_netlink::seg6::Seg6;

use super::compiled::{Build, Holding};
use crate::Router;

/// Those that there are.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    counters: HashMap<Arc<Seg6>, CounterId>,
    /// How many actions of routes have the counter.
    users: HashMap<CounterId, (Arc<Seg6>, usize)>,
}

/// The counter of a policy, which what is compiled holds from now on.
pub(super) fn acquire(router: &mut Router, seg6: &Seg6, build: &mut Build) -> CounterId {
    let there = router.routes.compiled.policies.counters.get(seg6).copied();
    let counter = there.unwrap_or_else(|| router.engine.add_counter());
    let Policies { counters, users } = &mut router.routes.compiled.policies;
    let (_, number) = users.entry(counter).or_insert_with(|| {
        let seg6 = Arc::new(seg6.clone());
        counters.insert(Arc::clone(&seg6), counter);
        (seg6, 0)
    });
    *number += 1;
    build.holds.push(Holding::Policy(counter));
    counter
}

/// Who held it does no more: no action of theirs names it.
pub(super) fn release(router: &mut Router, counter: CounterId) {
    let Policies { counters, users } = &mut router.routes.compiled.policies;
    let Entry::Occupied(mut entry) = users.entry(counter) else { return };
    entry.get_mut().1 -= 1;
    if entry.get().1 == 0 {
        let (seg6, _) = entry.remove();
        counters.remove(&seg6);
        router.engine.remove_counter(counter);
    }
}

impl Policies {
    /// All of them, with their counters.
    pub fn iter(&self) -> impl Iterator<Item = (&Seg6, CounterId)> {
        self.counters.iter().map(|(seg6, counter)| (&**seg6, *counter))
    }
}
