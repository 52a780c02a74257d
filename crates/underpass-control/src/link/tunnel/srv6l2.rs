//! `srv6l2` devices: stations behind the SIDs of other routers, RFC 8986 section 5.4. Linux has none.
//!
//! ```text
//! ip link add srl0 type srv6l2
//! bridge fdb add 02:00:00:00:00:01 dev srl0 dst fc00:2::d2        a station, behind an End.DT2U
//! bridge fdb append 00:00:00:00:00:00 dev srl0 dst fc00:2::d3     all else, to an End.DT2M
//! ```

use std::net::IpAddr;

use underpass_engine::tables::Behind;
use underpass_netlink::tunnel::{self, Kind};

use super::Tunnel;
use crate::Router;
use crate::route::Flow;
use crate::route::lookup::source_for;

/// A device that a request describes.
pub(super) fn build(parameters: tunnel::Tunnel) -> Tunnel {
    let made = Tunnel {
        parameters,
        encap: tunnel::Encap::default(),
        six_rd: tunnel::SixRd::default(),
        max_mtu: 0,
        fallback: false,
        link_layer: None,
    };
    Tunnel { max_mtu: super::MOST - made.overhead(), ..made }
}

/// The source of outer headers: `ip sr tunsrc`, or what the way to the first end for all else asks for. `None`: it is no such
/// device, or that is for workers to find out.
pub(super) fn source(
    router: &Router,
    parameters: &tunnel::Tunnel,
    behind: Option<&Behind>,
) -> Option<IpAddr> {
    let behind = behind.filter(|_| parameters.kind == Kind::Srv6L2)?;
    match router.tunnel_source {
        source if !source.is_unspecified() => Some(source.into()),
        _ => source_for(router, &Flow::to(*behind.others.first()?)),
    }
}
