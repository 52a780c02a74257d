//! Routes, for those outside who want to look at them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::info::NextHops;
use super::lookup::ways_of;
use crate::Router;

/// A route of the model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Route {
    /// Its destination.
    pub destination: IpNet,
    /// Its table.
    pub table: u32,
    /// `RTN_*`.
    pub kind: u8,
    /// `RTPROT_*`.
    pub protocol: u8,
    /// `metric`.
    pub metric: u32,
    /// `src`.
    pub source: Option<IpAddr>,
    /// Links and gateways of its ways. A route of IPv6 that spreads is one for each way.
    pub ways: Vec<(u32, Option<IpAddr>)>,
    /// `nhid`; 0 for none.
    pub object: u32,
    /// Whether it is the router's own, and not the kernel's.
    pub own: bool,
}

/// All routes, by family and table, in the order of a dump.
pub fn routes(router: &Router) -> impl Iterator<Item = Route> + '_ {
    let tables = router.routes.tables.iter();
    tables.flat_map(move |(&(family, table), routes)| {
        routes.after(None).flat_map(move |(key, ids)| {
            let prefix = key.prefix();
            let infos = ids.iter().filter_map(|&id| router.routes.infos.get(id));
            infos.filter_map(move |info| {
                Some(Route {
                    destination: IpNet::new(family.address(prefix.bits), prefix.len).ok()?,
                    table,
                    kind: info.kind,
                    protocol: info.protocol,
                    metric: info.metric,
                    source: info.source,
                    ways: ways_of(router, info).iter().map(|hop| (hop.oif, hop.gateway)).collect(),
                    object: if let NextHops::Object(id) = info.ways { id } else { 0 },
                    own: info.own(),
                })
            })
        })
    })
}
