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

use super::compiled::Build;
use super::info::Hop;
use super::published::Scope;
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

impl Router {
    /// The action of a way that inserts. `neighbour`: of packets to this neighbour of its link.
    pub(super) fn ioam_action(
        &mut self,
        ioam6: &Ioam6,
        hop: &Hop,
        (scope, mtu): (Scope, u32),
        neighbour: Option<IpAddr>,
        build: &mut Build,
    ) -> Ioam {
        let lookup = self.lookup(scope);
        let node = self.ioam_node();
        let (header, places) = header(ioam6, &node, self.ioam_egress(hop.oif));
        let address = IpAddr::V6(ioam6.destination);
        let via = match ioam6.mode {
            Mode::Inline => Via { address, lookup: LookupId(0), resolved: None },
            Mode::Encap | Mode::Auto => self.via(address, lookup, build),
        };
        let link = self.link_id(hop.oif);
        let onward = match hop.gateway.or(neighbour) {
            _ if let Some(route) = self.vrf_entry(hop.oif, mtu) => IoamOnward::Vrf(route),
            Some(gateway) => IoamOnward::NextHop(self.acquire_next_hop((hop.oif, gateway, mtu), build)),
            None => IoamOnward::OnLink(link),
        };
        let source = ioam6.source.or_else(|| self.kept_source(hop.oif));
        let counter = hop.tunnel.as_ref().and_then(|tunnel| tunnel.counter);
        Ioam {
            mode: match ioam6.mode {
                Mode::Inline => IoamMode::Inline,
                Mode::Encap => IoamMode::Encap,
                Mode::Auto => IoamMode::Auto,
            },
            frequency: counter.map(|counter| self.ioam_frequency(counter, ioam6)),
            header,
            places,
            source: source.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED),
            via,
            onward,
            link,
        }
    }

    /// How many packets a way has seen stays as it is while the way does.
    fn ioam_frequency(&mut self, counter: CounterId, ioam6: &Ioam6) -> IoamFrequency {
        let workers = self.engine.workers();
        let fresh = || (0..workers).map(|_| IoamSeen::default()).collect();
        let seen = Arc::clone(self.routes.compiled.frequencies.entry(counter).or_insert_with(fresh));
        IoamFrequency { k: ioam6.frequency_k, n: ioam6.frequency_n, seen }
    }

    /// What the router is in traces.
    pub(crate) fn ioam_node(&self) -> IoamNode {
        IoamNode {
            id: self.sysctls.value(&IOAM6_NODE_ID, Instance::One) as u32,
            id_wide: self.sysctls.value(&IOAM6_NODE_ID_WIDE, Instance::One) as u64,
            namespaces: self.ioam.compile(),
        }
    }

    /// What a link is in traces.
    pub(crate) fn ioam_link(&self, link: &Link) -> IoamLink {
        let instance = Instance::Link(link.index);
        IoamLink {
            enabled: self.sysctls.value(&IOAM6_ENABLED, instance) != 0,
            host: self.is_host_door(link.index),
            id: self.sysctls.value(&IOAM6_ID, instance) as u16,
            id_wide: self.sysctls.value(&IOAM6_ID_WIDE, instance) as u32,
        }
    }

    /// What a packet that leaves by a link says of it: nothing of the loopback link, by which none does.
    pub(crate) fn ioam_egress(&self, index: u32) -> IoamLink {
        match self.links.get(index) {
            Some(link) if link.kind != LinkKind::Loopback => self.ioam_link(link),
            _ => IoamLink::default(),
        }
    }
}
