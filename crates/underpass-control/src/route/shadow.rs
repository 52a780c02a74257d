//! Routes that the host needs in the kernel besides, so that what it sends itself comes to the router: one
//! beside each route of the router's own that encapsulates.

use std::net::IpAddr;

use ipnet::IpNet;
use underpass_netlink::Encap;
use underpass_netlink::ioam6::{self, Ioam6};
use underpass_netlink::seg6::{Mode, Seg6};
use underpass_packet::ioam::Builder;

use super::lookup::ways_of;
use super::{Hop, Info, Place};
use crate::Router;
use crate::address::source::{source4, source6};

/// Lengths of an IPv6 header, of an SRH without segments, and of an Ethernet header.
const IPV6_LEN: u32 = 40;
const SRH_LEN: u32 = 8;
const ETHERNET_LEN: u32 = 14;
const SEGMENT_LEN: u32 = 16;

/// A route to be had in the kernel, by the device of the host in the VRF of its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shadow {
    /// Its destination.
    pub destination: IpNet,
    /// Its table.
    pub table: u32,
    /// `metric`.
    pub metric: u32,
    /// `src`: what the host would choose on the link by which the packets leave.
    pub source: Option<IpAddr>,
    /// Longest packet that still leaves in one piece once it is encapsulated.
    pub mtu: u32,
}

/// Bytes that an encapsulation puts before a packet at most, or into it.
fn growth(seg6: &Seg6) -> u32 {
    let srh = seg6.srh.bytes().len() as u32;
    match seg6.mode {
        Mode::Inline => srh,
        Mode::Encap => IPV6_LEN + srh,
        Mode::L2Encap => IPV6_LEN + srh + ETHERNET_LEN,
        // One segment is enough for the destination alone.
        Mode::EncapRed | Mode::L2EncapRed => {
            let reduced = if srh <= SRH_LEN + SEGMENT_LEN { 0 } else { srh - SEGMENT_LEN };
            let ethernet = if seg6.mode == Mode::L2EncapRed { ETHERNET_LEN } else { 0 };
            IPV6_LEN + reduced + ethernet
        }
    }
}

/// The same for an IOAM option in packets of the host.
fn ioam6_growth(ioam6: &Ioam6) -> u32 {
    let option = Builder { header: ioam6.trace }.len() as u32;
    option + if ioam6.mode == ioam6::Mode::Encap { IPV6_LEN } else { 0 }
}

pub(crate) fn shadows_at(
    router: &Router,
    (family, table, prefix): Place,
) -> Option<(IpNet, u32, Vec<Shadow>)> {
    let destination = IpNet::new(family.address(prefix.bits), prefix.len).ok()?;
    let routes = router.routes.tables.get(&(family, table));
    let infos = routes.into_iter().flat_map(|routes| routes.get(prefix));
    let infos = infos.filter_map(|&id| router.routes.infos.get(id));
    let mut shadows: Vec<Shadow> =
        infos.filter_map(|info| shadow(router, info, destination, table)).collect();
    // Those of IPv6 that are used together are one.
    shadows.dedup_by_key(|shadow| shadow.metric);
    Some((destination, table, shadows))
}

fn shadow(router: &Router, info: &Info, destination: IpNet, table: u32) -> Option<Shadow> {
    if !info.own() || info.kind != libc::RTN_UNICAST {
        return None;
    }
    let ways = ways_of(router, info);
    let encapsulates = |hop: &Hop| match hop.encap() {
        Some(Encap::Mpls(mpls)) => Some(4 * mpls.labels.len() as u32),
        Some(Encap::Seg6(seg6)) => Some(growth(seg6)),
        Some(Encap::Rpl(rpl)) => Some(SRH_LEN + SEGMENT_LEN * rpl.addresses().count() as u32),
        Some(Encap::Ioam6(ioam6)) => Some(ioam6_growth(ioam6)),
        // The MTU of the device leaves room for its headers.
        Some(Encap::Ip(_)) => Some(0),
        _ => None,
    };
    let mtu = |hop: &Hop| {
        let link = router.links.get(hop.oif)?;
        Some(link.mtu.saturating_sub(encapsulates(hop).unwrap_or(0)))
    };
    let (first, _) = ways.iter().find_map(|hop| Some((hop, encapsulates(hop)?)))?;
    let source = match destination {
        IpNet::V4(_) => source4(router, first.oif).map(IpAddr::from),
        IpNet::V6(_) => source6(router, first.oif).map(IpAddr::from),
    };
    Some(Shadow {
        destination,
        table,
        metric: info.metric,
        source: info.source.or(source),
        mtu: ways.iter().filter_map(mtu).min().unwrap_or(0),
    })
}
