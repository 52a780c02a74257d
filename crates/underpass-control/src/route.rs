//! Routes, next-hop objects and policy rules. Linux: `net/ipv4/fib_*.c`, `net/ipv6/{ip6_fib,route}.c`,
//! `net/core/fib_rules.c`, `net/ipv4/nexthop.c`.

mod advertised;
mod change;
mod check;
mod compile;
mod compiled;
mod config;
mod dump;
mod encode;
mod follow;
mod get;
mod info;
mod ioam;
mod lookup;
mod mirror;
pub(crate) mod mpls;
pub(crate) mod nexthop;
mod own;
mod publish;
mod rule;
mod segments;
mod shadow;
mod statistics;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
mod told;
mod view;
mod vrf;

use std::collections::BTreeMap;

pub(crate) use advertised::Advertised;
pub(crate) use change::{Place, delete, new};
pub(crate) use compile::NextHopKey;
pub(crate) use dump::dump;
pub(crate) use get::get;
pub(crate) use info::{Hop, Info, InfoId, Origin, Ways};
pub(crate) use lookup::Flow;
pub(crate) use publish::Scope;
pub(crate) use rule::{
    delete as delete_rule, dump as dump_rules, is_of as is_rule_of, is_own as is_own_rule, new as new_rule,
};
pub use shadow::Shadow;
pub(crate) use table::{Family, Ids, Prefix, bits};

pub use view::Route;
pub(crate) use vrf::VrfRoutes;
pub use vrf::{Sender, VrfChange, VrfDoor, VrfRoute};

use check::Gateways;
use compile::Actions;
use config::{RT_TABLE_LOCAL, RT_TABLE_MAIN};
use info::Infos;
use nexthop::Objects;
use publish::Published;
use rule::Rules;
use table::Table;

/// The state of routing.
#[derive(Debug)]
pub(crate) struct Routes {
    tables: BTreeMap<(Family, u32), Table>,
    infos: Infos,
    objects: Objects,
    rules: Rules,
    gateways: Gateways,
    published: Published,
    compiled: Actions,
    pub labels: mpls::Labels,
    /// Changes with every change of a route.
    pub generation: u64,
}

impl Routes {
    /// Forgets the rules that a router without a kernel begins with.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }
}

impl Default for Routes {
    fn default() -> Self {
        // IPv4's, too, are there as soon as the loopback link is up.
        let there = [Family::V4, Family::V6]
            .map(|family| [RT_TABLE_LOCAL, RT_TABLE_MAIN].map(|id| ((family, id), Table::new(family, 0))));
        Self {
            tables: there.into_iter().flatten().collect(),
            infos: Infos::default(),
            objects: Objects::default(),
            rules: Rules::default(),
            gateways: Gateways::default(),
            published: Published::default(),
            compiled: Actions::default(),
            labels: mpls::Labels::default(),
            generation: 0,
        }
    }
}
