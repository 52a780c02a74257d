//! Which route a look-up of the packet path has found: for those who follow packets.

use std::net::IpAddr;

use ipnet::IpNet;
use underpass_engine::tables::ActionId;

use super::publish::{End, evaluate};
use super::published::FibId;
use super::table::{Family, Prefix};
use crate::Router;

/// A route that a look-up has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matched {
    /// Its table.
    pub table: u32,
    /// The prefix that covers the address.
    pub prefix: IpNet,
}

/// The routes to `address` of those tables in which the packet path finds `action` for it: one, unless several tables lead
/// it to the same. Empty: what the packet found is not there any more.
pub fn matched(router: &Router, address: IpAddr, action: ActionId) -> Vec<Matched> {
    let (family, host) = (Family::of(address), Prefix::host(address));
    let mut found = Vec::new();
    for (index, fib) in router.routes.published.fibs.iter().enumerate() {
        let leaf = match (fib.id, address) {
            (FibId::V4(id), IpAddr::V4(address)) => router.engine.lookup4(id, address),
            (FibId::V6(id), IpAddr::V6(address)) => router.engine.lookup6(id, address),
            _ => None,
        };
        if leaf != Some(action) {
            continue;
        }
        let End::Routes(_, table) = evaluate(router, index, host) else { continue };
        let routes = router.routes.tables.get(&(family, table));
        let Some((prefix, _)) = routes.and_then(|routes| routes.longest(host)) else { continue };
        let Ok(prefix) = IpNet::new(family.address(prefix.bits), prefix.len) else { continue };
        let one = Matched { table, prefix };
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}
