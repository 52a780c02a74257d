//! Routes, next-hop objects and policy rules. Linux: `net/ipv4/fib_*.c`, `net/ipv6/{ip6_fib,route}.c`,
//! `net/core/fib_rules.c`, `net/ipv4/nexthop.c`.

mod advertised;
pub(crate) mod change;
mod check;
pub(crate) mod compile;
pub(crate) mod compiled;
pub(crate) mod config;
mod dump;
pub(crate) mod egress;
pub(crate) mod encode;
pub(crate) mod get;
pub(crate) mod info;
pub(crate) mod ioam;
pub(crate) mod lookup;
mod matched;
pub(crate) mod mirror;
pub(crate) mod mpls;
pub(crate) mod next_hop;
pub(crate) mod nexthop;
pub(crate) mod owner;
pub(crate) mod policies;
pub(crate) mod publish;
mod published;
pub(crate) mod recompile;
mod reported;
mod request;
pub(crate) mod rule;
pub(crate) mod save;
pub(crate) mod scope;
mod segments;
pub(crate) mod shadow;
pub(crate) mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
pub(crate) mod update;
mod view;
pub(crate) mod vrf;

use std::collections::BTreeMap;
use std::net::IpAddr;

use compiled::Actions;
use config::{RT_TABLE_LOCAL, RT_TABLE_MAIN};
use info::Infos;
use nexthop::Objects;
use published::Published;
use rule::Rules;
use table::Table;

pub(crate) use compiled::{NextHopKey, RouteLimits};
pub(crate) use dump::dump;
pub(crate) use get::get;
pub(crate) use info::{Hop, Info, InfoId, NextHops, Origin};
pub use matched::{Matched, matched};
pub(crate) use published::Scope;
pub(crate) use request::{delete, new};
pub(crate) use rule::{
    Flow, delete as delete_rule, dump as dump_rules, is_of as is_rule_of, is_own as is_own_rule,
    new as new_rule,
};
pub use shadow::Shadow;
pub(crate) use table::{Family, Ids, Place, Prefix, bits};

pub use crate::live::VrfRoute;
pub use view::{PolicyCount, Route, RouteWords, RoutesInWords, policy_counts, routes, routes_in_words};
pub use vrf::{Sender, VrfChange, VrfDoor};

/// The state of routing.
#[derive(Debug)]
pub(crate) struct Routes {
    pub tables: BTreeMap<(Family, u32), Table>,
    pub infos: Infos,
    objects: Objects,
    rules: Rules,
    gateways: Gateways,
    published: Published,
    pub compiled: Actions,
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

/// Gateways that were found reachable. A client that adds many routes names few.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    /// Table, gateway, link asked for, scope, and the link found.
    known: Vec<(u32, IpAddr, u32, u8, u32)>,
}

impl Gateways {
    fn find(&self, table: u32, gateway: IpAddr, oif: u32, scope: u8) -> Option<u32> {
        let known = self.known.iter().find(|k| (k.0, k.1, k.2, k.3) == (table, gateway, oif, scope));
        known.map(|known| known.4)
    }

    fn add(&mut self, table: u32, gateway: IpAddr, oif: u32, scope: u8, link: u32) {
        if self.known.len() == GATEWAYS {
            self.known.remove(0);
        }
        self.known.push((table, gateway, oif, scope, link));
    }

    /// Forgets all: a link or a rule has changed.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Forgets those that a changed route may lead to.
    pub fn forget(&mut self, family: Family, prefix: table::Prefix) {
        let touched = |gateway| Family::of(gateway) == family && prefix.contains(table::bits(gateway));
        self.known.retain(|known| !touched(known.1));
    }
}

/// Most gateways that are remembered.
const GATEWAYS: usize = 16;
