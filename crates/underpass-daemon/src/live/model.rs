//! What there is to see of the model alone, whether packets move or not: links, SIDs, labels, queues and policers, with what has
//! been counted of them.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use underpass_control::{
    LabelCount, LinkCounts, LinkKind, PolicerCounts, QueueCounts, RouteWords, Router, policy_counts,
    routes_in_words,
};
use underpass_engine::{counters::MplsCount, drops::DropReason};

use super::{
    location::Location,
    queries::Answer,
    state::{LeftOut, Link, MOST, Policer, Queue, Route, Routes, State, Tunnel, busiest},
    stats::{FastPath, Label, Mpls, MplsDevice, Policy, Port, Sid, Stats, Topic},
};

/// What a router with virtual ports answers, by which no packet comes or goes.
pub fn offline(router: &Router, topic: Topic) -> Answer {
    match topic {
        Topic::All => Answer::All(Box::new(offline_stats(router))),
        Topic::Mpls(label) => Answer::Mpls(mpls(router, label)),
        Topic::State => Answer::State(Box::new(state(router, offline_stats(router), &[]))),
        Topic::Drops => Answer::Drops(Vec::new()),
        Topic::Routes => Answer::Routes(Box::new(routes(router))),
    }
}

fn offline_stats(router: &Router) -> Stats {
    let is_port =
        |index: u32| router.links().any(|link| link.index == index && matches!(link.kind, LinkKind::Port(_)));
    let ports = router.link_counts().into_iter().filter(|link| is_port(link.index)).map(|link| Port {
        name: link.name,
        index: link.index,
        driver: "virtual".to_owned(),
        rx_packets: link.received.0,
        rx_bytes: link.received.1,
        tx_packets: link.sent.0,
        tx_bytes: link.sent.1,
        ..Port::default()
    });
    Stats {
        ports: ports.collect(),
        fast_path: FastPath {
            off: Some("an offline router has virtual ports, by which no packet moves".to_owned()),
            ..FastPath::default()
        },
        sids: sids(router),
        policies: policies(router),
        warnings: router.warnings(),
        ..Stats::default()
    }
}

/// What labels, or one, and devices have counted of labelled packets.
pub(super) fn mpls(router: &Router, only: Option<u32>) -> Mpls {
    Mpls { labels: labels(router, only), devices: router.link_counts().iter().map(mpls_device).collect() }
}

/// What one label has counted, or all.
fn labels(router: &Router, only: Option<u32>) -> Vec<Label> {
    let label = |LabelCount { label, count }| Label {
        label,
        packets: count.packets,
        bytes: count.bytes,
        errors: count.errors,
    };
    match only {
        Some(only) => router.label_count(only).map(label).into_iter().collect(),
        None => router.label_counts().map(label).collect(),
    }
}

/// What local SIDs have counted.
pub(super) fn sids(router: &Router) -> Vec<Sid> {
    let sids = router.sid_counts().into_iter().map(|sid| Sid {
        prefix: sid.prefix,
        table: sid.table,
        behaviour: sid.behaviour.to_owned(),
        packets: sid.count.packets,
        bytes: sid.count.bytes,
        errors: sid.count.errors,
    });
    sids.collect()
}

/// What SRv6 policies have counted.
pub(super) fn policies(router: &Router) -> Vec<Policy> {
    let policies = policy_counts(router).into_iter().map(|policy| Policy {
        encap: policy.encap,
        packets: policy.count.packets,
        bytes: policy.count.bytes,
        errors: policy.count.errors,
    });
    policies.collect()
}

/// What there is to see now; `ports` are the links of the kernel that are ports.
pub(super) fn state(router: &Router, stats: Stats, ports: &[u32]) -> State {
    let mut state = State {
        time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        location: Location::default(),
        stats,
        links: links(router, ports),
        labels: labels(router, None),
        queues: router.queue_counts().into_iter().map(|counts| queue(router, counts)).collect(),
        policers: router.policer_counts().into_iter().map(policer).collect(),
        meanings: BTreeMap::new(),
        left_out: LeftOut::default(),
    };
    let occurred = DropReason::ALL.iter().filter(|reason| state.stats.drops.contains_key(reason.name()));
    state.meanings = occurred.map(|reason| (reason.name().into(), reason.meaning().into())).collect();
    state.left_out = LeftOut {
        links: busiest(&mut state.links, |link| link.rx_packets + link.tx_packets),
        sids: busiest(&mut state.stats.sids, |sid| sid.packets + sid.errors),
        policies: busiest(&mut state.stats.policies, |policy| policy.packets + policy.errors),
        labels: busiest(&mut state.labels, |label| label.packets + label.errors),
        queues: busiest(&mut state.queues, |queue| queue.packets + queue.drops),
        policers: busiest(&mut state.policers, |policer| policer.packets),
    };
    state
}

/// Headends and other routes.
pub(super) fn routes(router: &Router) -> Routes {
    let told = routes_in_words(router, MOST);
    let route = |route: RouteWords| Route {
        prefix: route.destination,
        table: route.table,
        kind: (!route.kind.is_empty()).then(|| route.kind.to_owned()),
        protocol: (!route.protocol.is_empty()).then_some(route.protocol),
        metric: route.metric,
        ways: route.ways,
    };
    Routes {
        headends: told.headends.into_iter().map(route).collect(),
        more_headends: told.more_headends,
        routes: told.routes.into_iter().map(route).collect(),
        prefixes: told.prefixes,
    }
}

fn links(router: &Router, ports: &[u32]) -> Vec<Link> {
    let name = |index: u32| {
        let known = router.links().find(|link| link.index == index);
        known.map(|link| link.name.clone())
    };
    let links = router.links().map(|link| {
        let kind = match link.kind {
            LinkKind::Loopback => "lo",
            LinkKind::Kernel if ports.contains(&link.index) => "port",
            LinkKind::Kernel => "kernel",
            LinkKind::Port(_) => "port",
            other => other.name().unwrap_or("other"),
        };
        let tunnel = link.tunnel.as_ref().map(|tunnel| {
            let address = |address: std::net::IpAddr| {
                if address.is_unspecified() { "any".to_owned() } else { address.to_string() }
            };
            Tunnel {
                local: address(tunnel.parameters.local),
                remote: address(tunnel.parameters.remote),
                device: name(tunnel.parameters.link),
                encap: match tunnel.encap.kind {
                    1 => Some("fou".to_owned()),
                    2 => Some("gue".to_owned()),
                    _ => None,
                },
            }
        });
        let [received, sent] = router.link_count(link);
        let addresses = router.addresses().filter(|address| address.link == link.index);
        Link {
            name: link.name.clone(),
            index: link.index,
            kind: kind.to_owned(),
            up: link.up() && link.carrier,
            mtu: link.mtu,
            addresses: addresses.map(|a| format!("{}/{}", a.local, a.prefix_len)).collect(),
            master: link.master.and_then(name),
            table: link.vrf_table(),
            tunnel,
            rx_packets: received.packets,
            rx_bytes: received.bytes,
            rx_errors: received.errors,
            tx_packets: sent.packets,
            tx_bytes: sent.bytes,
            tx_errors: sent.errors,
        }
    });
    links.collect()
}

fn queue(router: &Router, queue: QueueCounts) -> Queue {
    let device = router.links().find(|link| link.index == queue.link);
    Queue {
        device: device.map_or_else(|| queue.link.to_string(), |link| link.name.clone()),
        kind: queue.kind.to_owned(),
        handle: queue.handle,
        parent: queue.parent,
        class: queue.class,
        rate: queue.rate.map(|rate| rate.saturating_mul(8)),
        packets: queue.packets,
        bytes: queue.bytes,
        drops: queue.drops,
        overlimits: queue.overlimits,
        queued: queue.queued,
        backlog: queue.backlog,
    }
}

/// What a device has counted of labelled packets.
pub(super) fn mpls_device(link: &LinkCounts) -> MplsDevice {
    let MplsCount {
        rx_packets,
        rx_bytes,
        tx_packets,
        tx_bytes,
        rx_errors,
        tx_errors,
        rx_dropped,
        rx_noroute,
    } = link.mpls;
    MplsDevice {
        name: link.name.clone(),
        rx_packets,
        rx_bytes,
        rx_errors,
        rx_dropped,
        rx_noroute,
        tx_packets,
        tx_bytes,
        tx_errors,
    }
}

fn policer(policer: PolicerCounts) -> Policer {
    Policer {
        index: policer.index,
        rate: policer.rate.map(|rate| rate.saturating_mul(8)),
        filters: policer.filters,
        packets: policer.packets,
        bytes: policer.bytes,
        drops: policer.drops,
        overlimits: policer.overlimits,
    }
}
