//! The counters of [`Stats`] for Prometheus. `docs/metrics.md` lists them.

use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::AtomicU64,
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::stats::Stats;

/// Longest request that is read.
const REQUEST: usize = 8192;

/// Answers an HTTP request for `/metrics`.
///
/// # Errors
/// The client takes too long, or the router does.
pub fn answer(
    mut connection: &TcpStream,
    patience: Duration,
    stats: impl FnOnce() -> io::Result<Stats>,
) -> io::Result<()> {
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = connection.read(&mut part)?;
        if length == 0 || request.len() + length > REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&part[..length]);
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (status, kind, body) = match words[..] {
        [b"GET", path, _] if path == b"/metrics" || path.starts_with(b"/metrics?") => {
            let text = render(&stats()?).map_err(io::Error::other)?;
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
        }
        [b"GET", _, _] => ("404 Not Found", "text/plain", "try /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", String::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
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

fn render(stats: &Stats) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("underpass");
    let totals = &stats.totals;
    for (name, help, value) in [
        ("packets_received", "Packets that came in by a port", totals.received),
        ("packets_generated", "Packets made by the router", totals.generated),
        ("packets_sent", "Packets handed to a port", totals.sent),
        ("packets_delivered", "Packets for the host", totals.delivered),
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
    counters(&mut registry, "packets_dropped", "Packets dropped by the packet path", drops);

    let ports = &stats.ports;
    let device = |port: &super::stats::Port| Device { device: port.name.clone() };
    let each =
        |value: fn(&super::stats::Port) -> u64| ports.iter().map(move |port| (device(port), value(port)));
    counters(&mut registry, "port_receive_packets", "Packets received", each(|port| port.rx_packets));
    counters(
        &mut registry,
        "port_receive_bytes",
        "Bytes received, with the link layer",
        each(|port| port.rx_bytes),
    );
    counters(&mut registry, "port_transmit_packets", "Packets sent", each(|port| port.tx_packets));
    counters(
        &mut registry,
        "port_transmit_bytes",
        "Bytes sent, with the link layer",
        each(|port| port.tx_bytes),
    );
    counters(
        &mut registry,
        "port_segments_cut",
        "Large segments cut before they were sent",
        each(|port| port.cut),
    );
    counters(
        &mut registry,
        "port_segments_coalesced",
        "TCP segments put to others before they were sent",
        each(|port| port.coalesced),
    );
    let port_drops = ports.iter().flat_map(|port| {
        port.drops.iter().map(|(reason, count)| {
            (DeviceReason { device: port.name.clone(), reason: reason.clone() }, *count)
        })
    });
    counters(&mut registry, "port_dropped", "Packets dropped at a port", port_drops);
    let attached = Family::<Attached, Gauge>::default();
    for port in ports {
        let labels = Attached { device: port.name.clone(), driver: port.driver.clone() };
        attached.get_or_create(&labels).set(1);
    }
    registry.register("port_attached", "1 for each device, with its driver", attached);

    let mpls = &stats.mpls;
    let each = |value: fn(&super::stats::MplsDevice) -> u64| {
        mpls.iter().map(move |one| (Device { device: one.name.clone() }, value(one)))
    };
    counters(
        &mut registry,
        "mpls_receive_packets",
        "Packets received with labels",
        each(|one| one.rx_packets),
    );
    counters(
        &mut registry,
        "mpls_receive_bytes",
        "Bytes received, from the first label on",
        each(|one| one.rx_bytes),
    );
    counters(
        &mut registry,
        "mpls_receive_errors",
        "Packets received with a label that had run out, or malformed",
        each(|one| one.rx_errors),
    );
    counters(
        &mut registry,
        "mpls_receive_dropped",
        "Packets received with labels where none are taken",
        each(|one| one.rx_dropped),
    );
    counters(
        &mut registry,
        "mpls_receive_noroute",
        "Packets received with a label that leads nowhere",
        each(|one| one.rx_noroute),
    );
    counters(&mut registry, "mpls_transmit_packets", "Packets sent with labels", each(|one| one.tx_packets));
    counters(
        &mut registry,
        "mpls_transmit_bytes",
        "Bytes sent, from the first label on",
        each(|one| one.tx_bytes),
    );
    counters(
        &mut registry,
        "mpls_transmit_errors",
        "Packets too long to be sent with labels",
        each(|one| one.tx_errors),
    );

    let workers = &stats.workers;
    let worker = |worker: &super::stats::Worker| Worker { worker: worker.number as u64 };
    let each =
        |value: fn(&super::stats::Worker) -> u64| workers.iter().map(move |one| (worker(one), value(one)));
    counters(
        &mut registry,
        "worker_packets",
        "Packets received by a worker",
        each(|one| one.totals.received),
    );
    counters(&mut registry, "worker_bursts", "Bursts that had packets", each(|one| one.bursts));
    counters(&mut registry, "worker_sleeps", "Times that a worker went to sleep", each(|one| one.sleeps));

    let sid = |sid: &super::stats::Sid| Sid {
        prefix: sid.prefix.clone(),
        table: sid.table,
        behaviour: sid.behaviour.clone(),
    };
    let each =
        |value: fn(&super::stats::Sid) -> u64| stats.sids.iter().map(move |one| (sid(one), value(one)));
    counters(&mut registry, "sid_packets", "Packets processed by a local SID", each(|one| one.packets));
    counters(&mut registry, "sid_bytes", "Bytes processed by a local SID", each(|one| one.bytes));
    counters(&mut registry, "sid_errors", "Packets refused by a local SID", each(|one| one.errors));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::stats;

    #[test]
    fn what_was_counted_is_told() {
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
        let told = render(&Stats {
            totals: stats::Totals { buffer_moves: 2, buffer_moves_avoided: 9, held: 8, ..Default::default() },
            drops: [("no-route".to_owned(), 5)].into(),
            ports: vec![port],
            workers: vec![stats::Worker { number: 1, sleeps: 4, ..Default::default() }],
            sids: vec![sid],
            warnings: Vec::new(),
            mpls: vec![stats::MplsDevice { name: "eth1".into(), rx_noroute: 6, ..Default::default() }],
        });
        let told = told.unwrap();
        for line in [
            "underpass_packets_dropped_total{reason=\"no-route\"} 5",
            "underpass_packets_held 8",
            "underpass_buffer_moves_total 2",
            "underpass_buffer_moves_avoided_total 9",
            "underpass_port_receive_bytes_total{device=\"eth0\"} 99",
            "underpass_port_dropped_total{device=\"eth0\",reason=\"queue-full\"} 3",
            "underpass_port_attached{device=\"eth0\",driver=\"packet\"} 1",
            "underpass_worker_sleeps_total{worker=\"1\"} 4",
            "underpass_mpls_receive_noroute_total{device=\"eth1\"} 6",
            "underpass_sid_packets_total{prefix=\"fc00:1::/64\",table=\"254\",behaviour=\"End\"} 7",
        ] {
            assert!(told.lines().any(|told| told == line), "{line} is not in\n{told}");
        }
    }
}
