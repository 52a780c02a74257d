//! The counters of [`State`] for Prometheus. `docs/metrics.md` lists them.

use std::{fmt, sync::atomic::AtomicU64};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::state::{Link, Policer, Queue, State};
use super::stats::{Label, Stats};

/// The Content-Type of what is rendered.
pub const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Cause {
    cause: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Device {
    device: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Attached {
    device: String,
    driver: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeviceReason {
    device: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Worker {
    worker: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sid {
    prefix: String,
    table: u32,
    behaviour: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Policy {
    encap: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Version {
    version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeviceKind {
    device: String,
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Queued {
    device: String,
    kind: String,
    handle: String,
    parent: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Number {
    index: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MplsLabel {
    label: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WorkerSize {
    worker: u64,
    size: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ObjectKind {
    objects: String,
}

/// Registers one counter for each of `values`, under its labels.
fn counters<L>(registry: &mut Registry, name: &str, help: &str, values: impl Iterator<Item = (L, u64)>)
where
    L: Clone + fmt::Debug + std::hash::Hash + Eq + EncodeLabelSet + Send + Sync + 'static,
{
    let family = Family::<L, Counter<u64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
}

/// The same for values that come and go.
fn gauges<L>(registry: &mut Registry, name: &str, help: &str, values: impl Iterator<Item = (L, u64)>)
where
    L: Clone + fmt::Debug + std::hash::Hash + Eq + EncodeLabelSet + Send + Sync + 'static,
{
    let family = Family::<L, Gauge<u64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

/// All that has been counted, in the OpenMetrics text format.
///
/// # Errors
/// Those of writing, which a string has not.
pub fn render(state: &State) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("underpass");
    let version = Version { version: state.version.clone() };
    gauges(&mut registry, "build_info", "1, with the version of the program", [(version, 1)].into_iter());
    counted(&mut registry, &state.stats);
    tunnels(&mut registry, &state.links);
    labels(&mut registry, &state.labels);
    queues(&mut registry, &state.queues);
    policers(&mut registry, &state.policers);
    let left = &state.left_out;
    let left = [
        ("links", left.links),
        ("sids", left.sids),
        ("policies", left.policies),
        ("labels", left.labels),
        ("queues", left.queues),
        ("policers", left.policers),
    ];
    let left = left.map(|(objects, count)| (ObjectKind { objects: objects.to_owned() }, count as u64));
    gauges(
        &mut registry,
        "left_out",
        "Objects that are not told of, as there are too many",
        left.into_iter(),
    );
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// A figure of an object, its name and what it is.
type Figure<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Registers figures of objects, each under the labels of its object.
fn figures<T, L>(
    registry: &mut Registry,
    objects: &[T],
    labels: impl Fn(&T) -> L,
    figures: &[Figure<T>],
    register: fn(&mut Registry, &str, &str, std::vec::IntoIter<(L, u64)>),
) {
    for (name, help, value) in figures {
        let values: Vec<(L, u64)> = objects.iter().map(|object| (labels(object), value(object))).collect();
        register(registry, name, help, values.into_iter());
    }
}

fn tunnels(registry: &mut Registry, links: &[Link]) {
    let labels = |link: &Link| DeviceKind { device: link.name.clone(), kind: link.kind.clone() };
    let up: &[Figure<Link>] = &[("link_up", "Whether a link is up and has a carrier", |link| link.up.into())];
    figures(registry, links, labels, up, gauges);
    let tunnels: Vec<Link> = links.iter().filter(|link| link.tunnel.is_some()).cloned().collect();
    let counted: &[Figure<Link>] = &[
        ("tunnel_receive_packets", "Packets that came out of a tunnel", |link| link.rx_packets),
        ("tunnel_receive_bytes", "Their bytes", |link| link.rx_bytes),
        ("tunnel_receive_errors", "Packets that a tunnel refused", |link| link.rx_errors),
        ("tunnel_transmit_packets", "Packets that went into a tunnel", |link| link.tx_packets),
        ("tunnel_transmit_bytes", "Their bytes", |link| link.tx_bytes),
        ("tunnel_transmit_errors", "Packets that could not go into a tunnel", |link| link.tx_errors),
    ];
    figures(registry, &tunnels, labels, counted, counters);
}

fn labels(registry: &mut Registry, labels: &[Label]) {
    let counted: &[Figure<Label>] = &[
        ("label_packets", "Packets that came with an MPLS label", |label| label.packets),
        ("label_bytes", "Their bytes, from the label on", |label| label.bytes),
        ("label_errors", "Packets with a label that were not forwarded", |label| label.errors),
    ];
    figures(registry, labels, |label| MplsLabel { label: label.label }, counted, counters);
}

fn queues(registry: &mut Registry, queues: &[Queue]) {
    let labels = |queue: &Queue| Queued {
        device: queue.device.clone(),
        kind: queue.kind.clone(),
        handle: queue.handle.clone(),
        parent: queue.parent.clone(),
    };
    let counted: &[Figure<Queue>] = &[
        ("queue_packets", "Packets that left a qdisc or a class", |queue| queue.packets),
        ("queue_bytes", "Their bytes", |queue| queue.bytes),
        ("queue_drops", "Packets dropped by a qdisc or a class", |queue| queue.drops),
        ("queue_overlimits", "Times that packets had to wait", |queue| queue.overlimits),
    ];
    figures(registry, queues, labels, counted, counters);
    let waiting: &[Figure<Queue>] = &[
        ("queue_backlog_packets", "Packets that wait in a qdisc or a class", |queue| queue.queued),
        ("queue_backlog_bytes", "Bytes that wait in a qdisc or a class", |queue| queue.backlog),
    ];
    figures(registry, queues, labels, waiting, gauges);
}

fn policers(registry: &mut Registry, policers: &[Policer]) {
    let counted: &[Figure<Policer>] = &[
        ("policer_packets", "Packets that came to a policer", |policer| policer.packets),
        ("policer_bytes", "Their bytes", |policer| policer.bytes),
        ("policer_drops", "Packets dropped by a policer", |policer| policer.drops),
        ("policer_overlimits", "Packets beyond the limit of a policer", |policer| policer.overlimits),
    ];
    figures(registry, policers, |policer| Number { index: policer.index }, counted, counters);
}

fn counted(registry: &mut Registry, stats: &Stats) {
    packet_path(registry, stats);
    ports(registry, &stats.ports);
    mpls(registry, &stats.mpls);
    workers(registry, &stats.workers);
    sids(registry, &stats.sids);
    policies(registry, &stats.policies);
}

fn packet_path(registry: &mut Registry, stats: &Stats) {
    let totals = &stats.totals;
    for (name, help, value) in [
        ("packets_received", "Packets that came in by a port", totals.received),
        ("packets_generated", "Packets made by the router", totals.generated),
        ("packets_sent", "Packets handed to a port", totals.sent),
        ("packets_delivered", "Packets for the host", totals.delivered),
        ("fast_path_hits", "Packets that the kernel carried by itself", stats.fast_path.hits),
        ("buffer_moves", "Packets moved to make room for headers", totals.buffer_moves),
        ("buffer_moves_avoided", "Headers that found room", totals.buffer_moves_avoided),
    ] {
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let held = Gauge::<u64, AtomicU64>::default();
    held.set(totals.held);
    registry.register("packets_held", "Packets that wait for a neighbour or in a qdisc", held);
    let drops = stats.drops.iter().map(|(reason, count)| (Reason { reason: reason.clone() }, *count));
    counters(registry, "packets_dropped", "Packets dropped by the packet path", drops);
    let misses = stats.fast_path.misses.iter().map(|(cause, count)| (Cause { cause: cause.clone() }, *count));
    counters(registry, "fast_path_misses", "Packets that the kernel gave to workers", misses);
}

fn ports(registry: &mut Registry, ports: &[super::stats::Port]) {
    let device = |port: &super::stats::Port| Device { device: port.name.clone() };
    let each =
        |value: fn(&super::stats::Port) -> u64| ports.iter().map(move |port| (device(port), value(port)));
    counters(registry, "port_receive_packets", "Packets received", each(|port| port.rx_packets));
    counters(
        registry,
        "port_receive_bytes",
        "Bytes received, with the link layer",
        each(|port| port.rx_bytes),
    );
    counters(registry, "port_transmit_packets", "Packets sent", each(|port| port.tx_packets));
    counters(registry, "port_transmit_bytes", "Bytes sent, with the link layer", each(|port| port.tx_bytes));
    counters(
        registry,
        "port_segments_cut",
        "Large segments cut before they were sent",
        each(|port| port.cut),
    );
    counters(
        registry,
        "port_segments_coalesced",
        "TCP segments and UDP datagrams put to others before they were sent",
        each(|port| port.coalesced),
    );
    let port_drops = ports.iter().flat_map(|port| {
        port.drops.iter().map(|(reason, count)| {
            (DeviceReason { device: port.name.clone(), reason: reason.clone() }, *count)
        })
    });
    counters(registry, "port_dropped", "Packets dropped at a port", port_drops);
    let attached = Family::<Attached, Gauge>::default();
    for port in ports {
        let labels = Attached { device: port.name.clone(), driver: port.driver.clone() };
        attached.get_or_create(&labels).set(1);
    }
    registry.register("port_attached", "1 for each device, with its driver", attached);
}

fn mpls(registry: &mut Registry, mpls: &[super::stats::MplsDevice]) {
    let each = |value: fn(&super::stats::MplsDevice) -> u64| {
        mpls.iter().map(move |one| (Device { device: one.name.clone() }, value(one)))
    };
    counters(registry, "mpls_receive_packets", "Packets received with labels", each(|one| one.rx_packets));
    counters(
        registry,
        "mpls_receive_bytes",
        "Bytes received, from the first label on",
        each(|one| one.rx_bytes),
    );
    counters(
        registry,
        "mpls_receive_errors",
        "Packets received with a label that had run out, or malformed",
        each(|one| one.rx_errors),
    );
    counters(
        registry,
        "mpls_receive_dropped",
        "Packets received with labels where none are taken",
        each(|one| one.rx_dropped),
    );
    counters(
        registry,
        "mpls_receive_noroute",
        "Packets received with a label that leads nowhere",
        each(|one| one.rx_noroute),
    );
    counters(registry, "mpls_transmit_packets", "Packets sent with labels", each(|one| one.tx_packets));
    counters(
        registry,
        "mpls_transmit_bytes",
        "Bytes sent, from the first label on",
        each(|one| one.tx_bytes),
    );
    counters(
        registry,
        "mpls_transmit_errors",
        "Packets too long to be sent with labels",
        each(|one| one.tx_errors),
    );
}

fn workers(registry: &mut Registry, workers: &[super::stats::Worker]) {
    let worker = |worker: &super::stats::Worker| Worker { worker: worker.number as u64 };
    let each =
        |value: fn(&super::stats::Worker) -> u64| workers.iter().map(move |one| (worker(one), value(one)));
    counters(registry, "worker_packets", "Packets received by a worker", each(|one| one.totals.received));
    counters(registry, "worker_bursts", "Bursts that had packets", each(|one| one.bursts));
    let free = workers.iter().flat_map(|one| {
        let size = |size: &str| WorkerSize { worker: one.number as u64, size: size.to_owned() };
        [(size("small"), one.free_buffers), (size("large"), one.free_large_buffers)]
    });
    gauges(registry, "worker_free_buffers", "Buffers that a worker has free", free);
    counters(registry, "worker_sleeps", "Times that a worker went to sleep", each(|one| one.sleeps));
}

fn sids(registry: &mut Registry, sids: &[super::stats::Sid]) {
    let sid = |sid: &super::stats::Sid| Sid {
        prefix: sid.prefix.clone(),
        table: sid.table,
        behaviour: sid.behaviour.clone(),
    };
    let each = |value: fn(&super::stats::Sid) -> u64| sids.iter().map(move |one| (sid(one), value(one)));
    counters(registry, "sid_packets", "Packets processed by a local SID", each(|one| one.packets));
    counters(registry, "sid_bytes", "Bytes processed by a local SID", each(|one| one.bytes));
    counters(registry, "sid_errors", "Packets refused by a local SID", each(|one| one.errors));
}

fn policies(registry: &mut Registry, policies: &[super::stats::Policy]) {
    let policy = |policy: &super::stats::Policy| Policy { encap: policy.encap.clone() };
    let each =
        |value: fn(&super::stats::Policy) -> u64| policies.iter().map(move |one| (policy(one), value(one)));
    counters(
        registry,
        "policy_packets",
        "Packets that got the headers of an SRv6 policy",
        each(|one| one.packets),
    );
    counters(registry, "policy_bytes", "Bytes of these packets, as they came", each(|one| one.bytes));
    counters(registry, "policy_errors", "Packets that an SRv6 policy could not send", each(|one| one.errors));
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        io::{self, Write as _},
        path::{Path, PathBuf},
        process::Command,
    };

    use underpass_engine::drops::DropReason;

    use super::*;
    use crate::live::{
        state::{self, LeftOut},
        stats,
    };

    /// One of everything.
    fn everything() -> State {
        let sid = stats::Sid {
            prefix: "fc00:1::/64".into(),
            table: 254,
            behaviour: "End".into(),
            packets: 7,
            ..Default::default()
        };
        let port = stats::Port {
            name: "eth0".into(),
            driver: "packet".into(),
            rx_bytes: 99,
            drops: [("queue-full".to_owned(), 3)].into(),
            ..Default::default()
        };
        State {
            version: "1.2.3".into(),
            stats: Stats {
                fast_path: stats::FastPath {
                    hits: 17,
                    misses: [("header".to_owned(), 18)].into(),
                    ..Default::default()
                },
                totals: stats::Totals {
                    buffer_moves: 2,
                    buffer_moves_avoided: 9,
                    held: 8,
                    ..Default::default()
                },
                drops: [("no-route".to_owned(), 5)].into(),
                ports: vec![port],
                workers: vec![stats::Worker { number: 1, sleeps: 4, free_buffers: 77, ..Default::default() }],
                sids: vec![sid],
                policies: vec![stats::Policy {
                    encap: "seg6 mode encap segs fc00:1::d6".to_owned(),
                    packets: 6,
                    bytes: 480,
                    errors: 1,
                }],
                warnings: Vec::new(),
                mpls: vec![stats::MplsDevice { name: "eth1".into(), rx_noroute: 6, ..Default::default() }],
            },
            links: vec![state::Link {
                name: "t0".into(),
                kind: "gre".into(),
                up: true,
                tunnel: Some(state::Tunnel::default()),
                tx_errors: 11,
                ..Default::default()
            }],
            labels: vec![Label { label: 100, bytes: 12, ..Default::default() }],
            queues: vec![Queue {
                device: "eth0".into(),
                kind: "htb".into(),
                handle: "1:10".into(),
                parent: "1:".into(),
                drops: 13,
                backlog: 14,
                ..Default::default()
            }],
            policers: vec![Policer { index: 5, overlimits: 15, ..Default::default() }],
            left_out: LeftOut { sids: 16, ..Default::default() },
            ..Default::default()
        }
    }

    #[test]
    fn what_was_counted_is_told() {
        let told = render(&everything()).unwrap();
        for line in [
            "underpass_build_info{version=\"1.2.3\"} 1",
            "underpass_packets_dropped_total{reason=\"no-route\"} 5",
            "underpass_fast_path_hits_total 17",
            "underpass_fast_path_misses_total{cause=\"header\"} 18",
            "underpass_buffer_moves_total 2",
            "underpass_buffer_moves_avoided_total 9",
            "underpass_packets_held 8",
            "underpass_port_receive_bytes_total{device=\"eth0\"} 99",
            "underpass_port_dropped_total{device=\"eth0\",reason=\"queue-full\"} 3",
            "underpass_port_attached{device=\"eth0\",driver=\"packet\"} 1",
            "underpass_worker_sleeps_total{worker=\"1\"} 4",
            "underpass_worker_free_buffers{worker=\"1\",size=\"small\"} 77",
            "underpass_mpls_receive_noroute_total{device=\"eth1\"} 6",
            "underpass_policy_packets_total{encap=\"seg6 mode encap segs fc00:1::d6\"} 6",
            "underpass_policy_bytes_total{encap=\"seg6 mode encap segs fc00:1::d6\"} 480",
            "underpass_policy_errors_total{encap=\"seg6 mode encap segs fc00:1::d6\"} 1",
            "underpass_sid_packets_total{prefix=\"fc00:1::/64\",table=\"254\",behaviour=\"End\"} 7",
            "underpass_link_up{device=\"t0\",kind=\"gre\"} 1",
            "underpass_tunnel_transmit_errors_total{device=\"t0\",kind=\"gre\"} 11",
            "underpass_label_bytes_total{label=\"100\"} 12",
            "underpass_queue_drops_total{device=\"eth0\",kind=\"htb\",handle=\"1:10\",parent=\"1:\"} 13",
            "underpass_queue_backlog_bytes{device=\"eth0\",kind=\"htb\",handle=\"1:10\",parent=\"1:\"} 14",
            "underpass_policer_overlimits_total{index=\"5\"} 15",
            "underpass_left_out{objects=\"sids\"} 16",
        ] {
            assert!(told.lines().any(|told| told == line), "{line} is not in\n{told}");
        }
    }

    fn file(path: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
    }

    /// The names of series in a text.
    fn names(text: &str) -> BTreeSet<String> {
        let name = |at: usize| {
            let rest = &text[at..];
            let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            rest[..end].to_owned()
        };
        text.match_indices("underpass_").map(|(at, _)| name(at)).collect()
    }

    /// The names that `/metrics` prints.
    fn printed() -> BTreeSet<String> {
        let told = render(&everything()).unwrap();
        told.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(['{', ' ']).next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn every_name_is_documented_and_no_other() {
        assert_eq!(names(&file("docs/metrics.md")), printed());
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let text = file("docs/grafana/underpass.json");
        let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let mut expressions = 0;
        for panel in panels {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap();
                let asked = names(expression);
                assert!(!asked.is_empty(), "{expression}");
                for name in asked {
                    assert!(printed().contains(&name), "{name} in {expression}");
                }
                expressions += 1;
            }
        }
        assert!(expressions > 20, "{expressions}");
        // Of variables and other places.
        assert!(names(&text).is_subset(&printed()));
    }

    /// The expressions of the rules, and what stands in their tests and texts.
    #[test]
    fn the_alerts_ask_for_what_there_is() {
        let (rules, tests) = (file("docs/prometheus/alerts.yml"), file("docs/prometheus/alerts_test.yml"));
        for text in [&rules, &tests] {
            let unknown: Vec<String> = names(text).difference(&printed()).cloned().collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
        let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        for alert in alerts.clone() {
            assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
        }
        assert!(alerts.count() > 10);
        // Reasons that there are.
        let reasons: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        let at_ports = ["kernel", "queue-full", "no-buffer"];
        for quoted in rules
            .split("reason")
            .skip(1)
            .filter_map(|rest| rest.trim_start_matches(['=', '!', '~']).strip_prefix('"'))
        {
            for name in quoted.split('"').next().unwrap_or_default().split('|') {
                let known = |reason: &&str| {
                    name.strip_suffix(".*").map_or(*reason == name, |start| reason.starts_with(start))
                };
                assert!(reasons.iter().any(known) || at_ports.contains(&name), "{name}");
            }
        }
    }

    #[test]
    fn promtool_takes_the_alerts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let own = target.join("prometheus/usr/bin/promtool");
        let promtool = if own.exists() { own } else { PathBuf::from("promtool") };
        for what in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
            match Command::new(&promtool).args(what).current_dir(root.join("docs/prometheus")).output() {
                Ok(done) => assert!(done.status.success(), "{what:?}: {done:?}"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let _ = writeln!(
                        io::stderr(),
                        "skipped: promtool_takes_the_alerts: no promtool (scripts/test-tools.sh unpacks it)"
                    );
                    return;
                }
                Err(error) => panic!("{}: {error}", promtool.display()),
            }
        }
    }
}
