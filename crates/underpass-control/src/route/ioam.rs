//! Routes that insert an IOAM option, as actions of the packet path. Linux: `ioam6_build_state`.

use std::net::IpAddr;
use std::sync::Arc;

use underpass_engine::counters::CounterId;
use underpass_engine::tables::{
    Ioam, IoamFrequency, IoamLink, IoamMode, IoamNode, IoamOnward, IoamPlaces, IoamSeen, LookupId, Via,
};
use underpass_netlink::Encap;
use underpass_netlink::ioam6::{Ioam6, Mode};
use underpass_packet::ioam::{BEFORE, Builder, Filled, Header, Node, TraceMut, UNAVAILABLE};

use super::compile::vrf_entry;
use super::compiled::{Build, RouteLimits};
use super::info::Hop;
use super::next_hop::{acquire_next_hop, find_via};
use super::publish::lookup_id;
use super::published::Scope;
use super::scope::link_id;
use super::segments::kept_source;
use crate::sysctl::{IOAM6_ENABLED, IOAM6_ID, IOAM6_ID_WIDE, IOAM6_NODE_ID, IOAM6_NODE_ID_WIDE, Instance};
use crate::{Link, LinkKind, Router};

/// The insertion of a way.
pub(crate) fn of(hop: &Hop) -> Option<&Ioam6> {
    match hop.encap() {
        Some(Encap::Ioam6(ioam6)) => Some(ioam6),
        _ => None,
    }
}

/// The header that is inserted, its trace filled as for a packet of the host, and where the values of others
/// go in it.
fn header(
    ioam6: &Ioam6,
    node: &IoamNode,
    egress: underpass_engine::tables::IoamLink,
) -> (Box<[u8]>, IoamPlaces) {
    let builder = Builder { header: ioam6.trace };
    let mut bytes = vec![0; builder.len()];
    let mut places = IoamPlaces::default();
    let end = BEFORE + Header::LEN + usize::from(ioam6.trace.rem_len()) * 4;
    let namespace = node.namespace(ioam6.trace.namespace.get());
    if builder.write(&mut bytes).is_some()
        && let Some(namespace) = namespace
        && let Some(Ok(mut trace)) = bytes.get_mut(BEFORE..end).map(TraceMut::parse)
    {
        let filled = trace.fill(&Node {
            hop_limit: 0,
            id: node.id,
            links: (u16::MAX, egress.id),
            time: (UNAVAILABLE, UNAVAILABLE),
            data: namespace.data,
            queue_depth: 0,
            id_wide: node.id_wide,
            links_wide: (u32::MAX, egress.id_wide),
            data_wide: namespace.data_wide,
            schema: namespace.schema.as_deref(),
        });
        if filled == Filled::Yes {
            let kind = trace.header().trace_type();
            let start = BEFORE + Header::LEN + usize::from(trace.header().rem_len()) * 4;
            let place = |bit| kind.offset(bit).map_or(0, |at| (start + at) as u16);
            places = IoamPlaces {
                hop_limit: place(0),
                ingress: place(1),
                seconds: place(2),
                microseconds: place(3),
                hop_limit_wide: place(8),
                ingress_wide: place(9),
            };
        }
    }
    (bytes.into(), places)
}

/// The action of a way that inserts. `neighbour`: of packets to this neighbour of its link.
pub(super) fn ioam_action(
    router: &mut Router,
    ioam6: &Ioam6,
    hop: &Hop,
    (scope, limits): (Scope, RouteLimits),
    neighbour: Option<IpAddr>,
    build: &mut Build,
) -> Ioam {
    let lookup = lookup_id(router, scope);
    let node = ioam_node(router);
    let (header, places) = header(ioam6, &node, ioam_egress(router, hop.oif));
    let address = IpAddr::V6(ioam6.destination);
    let via = match ioam6.mode {
        Mode::Inline => Via { address, lookup: LookupId(0), resolved: None },
        Mode::Encap | Mode::Auto => find_via(router, address, lookup, build),
    };
    let link = link_id(router, hop.oif);
    let onward = match hop.gateway.or(neighbour) {
        _ if let Some(route) = vrf_entry(router, hop.oif, limits.mtu()) => IoamOnward::Vrf(route),
        Some(gateway) => IoamOnward::NextHop(acquire_next_hop(router, (hop.oif, gateway, limits), build)),
        None => IoamOnward::OnLink(link),
    };
    let source = ioam6.source.or_else(|| kept_source(router, hop.oif));
    let counter = hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter);
    Ioam {
        mode: match ioam6.mode {
            Mode::Inline => IoamMode::Inline,
            Mode::Encap => IoamMode::Encap,
            Mode::Auto => IoamMode::Auto,
        },
        frequency: counter.map(|counter| ioam_frequency(router, counter, ioam6)),
        header,
        places,
        source: source.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED),
        via,
        onward,
        link,
    }
}

/// How many packets a way has seen stays as it is while the way does.
fn ioam_frequency(router: &mut Router, counter: CounterId, ioam6: &Ioam6) -> IoamFrequency {
    let workers = router.engine.workers();
    let fresh = || (0..workers).map(|_| IoamSeen::default()).collect();
    let seen = Arc::clone(router.routes.compiled.frequencies.entry(counter).or_insert_with(fresh));
    IoamFrequency { k: ioam6.frequency_k, n: ioam6.frequency_n, seen }
}

/// What the router is in traces.
pub(crate) fn ioam_node(router: &Router) -> IoamNode {
    IoamNode {
        id: router.sysctls.value(&IOAM6_NODE_ID, Instance::One) as u32,
        id_wide: router.sysctls.value(&IOAM6_NODE_ID_WIDE, Instance::One) as u64,
        namespaces: router.ioam.compile(),
    }
}

/// What a link is in traces.
pub(crate) fn ioam_link(router: &Router, link: &Link) -> IoamLink {
    let instance = Instance::Link(link.index);
    IoamLink {
        enabled: router.sysctls.value(&IOAM6_ENABLED, instance) != 0,
        host: router.is_host_door(link.index),
        id: router.sysctls.value(&IOAM6_ID, instance) as u16,
        id_wide: router.sysctls.value(&IOAM6_ID_WIDE, instance) as u32,
    }
}

/// What a packet that leaves by a link says of it: nothing of the loopback link, by which none does.
pub(crate) fn ioam_egress(router: &Router, index: u32) -> IoamLink {
    match router.links.get(index) {
        Some(link) if link.kind != LinkKind::Loopback => ioam_link(router, link),
        _ => IoamLink::default(),
    }
}
