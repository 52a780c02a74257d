//! What `top` shows: a table for each kind of object, made of a state and its rates.

use underpass_daemon::live::{PORT_REASONS, state::State};

use super::cells::{Cell, Row, Table, left, right, short};
use super::meter::Meter;

/// A view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// What comes, what goes, and what is dropped and why.
    Overview,
    Ports,
    Drops,
    Sids,
    Labels,
    Tunnels,
    Queues,
    Policers,
    Workers,
}

impl View {
    /// In the order of their keys, from 1.
    pub const ALL: [Self; 9] = [
        Self::Overview,
        Self::Ports,
        Self::Drops,
        Self::Sids,
        Self::Labels,
        Self::Tunnels,
        Self::Queues,
        Self::Policers,
        Self::Workers,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Ports => "ports",
            Self::Drops => "drops",
            Self::Sids => "SIDs",
            Self::Labels => "labels",
            Self::Tunnels => "tunnels",
            Self::Queues => "queues",
            Self::Policers => "police",
            Self::Workers => "workers",
        }
    }
}

/// The tables of a view.
pub fn tables(view: View, state: &State, meter: &Meter) -> Vec<Table> {
    match view {
        View::Overview => {
            let warnings = (!state.stats.warnings.is_empty()).then(|| warnings(state));
            [drops(state, meter), ports(state, meter)].into_iter().chain(warnings).collect()
        }
        View::Ports => vec![ports(state, meter), port_drops(state, meter)],
        View::Drops => vec![drops(state, meter), port_drops(state, meter)],
        View::Sids => vec![sids(state, meter), policies(state, meter)],
        View::Labels => vec![labels(state, meter)],
        View::Tunnels => vec![tunnels(state, meter)],
        View::Queues => vec![queues(state, meter)],
        View::Policers => vec![policers(state, meter)],
        View::Workers => vec![workers(state, meter)],
    }
}

fn titled(name: &str, count: usize, left_out: usize) -> String {
    match left_out {
        0 => format!("{name} ({count})"),
        more => format!("{name} (the busiest {count} of {})", count + more),
    }
}

fn drops(state: &State, meter: &Meter) -> Table {
    let drops = &state.stats.drops;
    let rows = drops.iter().map(|(reason, count)| {
        let name = format!("drop {reason}");
        let rate = meter.rate(&name);
        let meaning = state.meanings.get(reason).cloned().unwrap_or_default();
        Row {
            cells: vec![
                Cell::text(reason),
                Cell::Rate(rate),
                Cell::Count(*count),
                Cell::Spark(meter.history(&name)),
                Cell::text(meaning),
            ],
            alarm: rate.is_some_and(|rate| rate > 0),
        }
    });
    Table {
        title: "dropped by the packet path, and why".to_owned(),
        columns: vec![
            left("reason", 22),
            right("/s", 6),
            right("all", 6),
            left("", 10),
            left("what it means", 0),
        ],
        rows: rows.collect(),
        sorted_by: 1,
        empty: "nothing was dropped".into(),
    }
}

/// What is configured so that it cannot do what it is for.
fn warnings(state: &State) -> Table {
    let rows = state.stats.warnings.iter();
    Table {
        title: "warnings".to_owned(),
        columns: vec![left("", 0)],
        rows: rows.map(|warning| Row { cells: vec![Cell::text(warning)], alarm: true }).collect(),
        sorted_by: 0,
        empty: "".into(),
    }
}

fn port_drops(state: &State, meter: &Meter) -> Table {
    let lost = state.stats.ports.iter().flat_map(|port| {
        port.drops.iter().filter(|(_, count)| **count > 0).map(move |(reason, count)| {
            let name = format!("port {} drop {reason}", port.name);
            let rate = meter.rate(&name);
            Row {
                cells: vec![
                    Cell::text(&port.name),
                    Cell::text(reason),
                    Cell::Rate(rate),
                    Cell::Count(*count),
                    Cell::Spark(meter.history(&name)),
                    Cell::text(port_reason(reason)),
                ],
                alarm: rate.is_some_and(|rate| rate > 0),
            }
        })
    });
    Table {
        title: "dropped at ports".to_owned(),
        columns: vec![
            left("port", 15),
            left("reason", 11),
            right("/s", 6),
            right("all", 6),
            left("", 10),
            left("what it means", 0),
        ],
        rows: lost.collect(),
        sorted_by: 2,
        empty: "nothing was dropped at a port".into(),
    }
}

/// What a port's reason means.
fn port_reason(reason: &str) -> &'static str {
    PORT_REASONS.iter().find(|(name, _)| *name == reason).map_or("", |(_, meaning)| meaning)
}

fn ports(state: &State, meter: &Meter) -> Table {
    let rows = state.stats.ports.iter().map(|port| {
        let rate = |what: &str| meter.rate(&format!("port {} {what}", port.name));
        let up = state.links.iter().find(|link| link.index == port.index).is_some_and(|link| link.up);
        Row {
            cells: vec![
                Cell::text(&port.name),
                Cell::text(if up { "up" } else { "down" }),
                Cell::Rate(rate("in")),
                Cell::Bits(rate("in bytes")),
                Cell::Spark(meter.history(&format!("port {} in", port.name))),
                Cell::Rate(rate("out")),
                Cell::Bits(rate("out bytes")),
                Cell::Spark(meter.history(&format!("port {} out", port.name))),
                Cell::Rate(rate("drops")),
                Cell::text(&port.driver),
            ],
            alarm: !up || rate("drops").is_some_and(|rate| rate > 0),
        }
    });
    Table {
        title: format!("ports ({})", state.stats.ports.len()),
        columns: vec![
            left("port", 15),
            left("", 4),
            right("in/s", 6),
            right("bit/s", 6),
            left("", 8),
            right("out/s", 6),
            right("bit/s", 6),
            left("", 8),
            right("drop/s", 6),
            left("driver", 0),
        ],
        rows: rows.collect(),
        sorted_by: 2,
        empty: "no device is attached".into(),
    }
}

/// A row of what counts packets, bytes and errors under a name: what says which it is, then rates, and all errors.
fn counting(meter: &Meter, name: &str, mut cells: Vec<Cell>, all_errors: u64) -> Row {
    let errors = meter.rate(&format!("{name} errors"));
    cells.extend([
        Cell::Rate(meter.rate(name)),
        Cell::Bits(meter.rate(&format!("{name} bytes"))),
        Cell::Spark(meter.history(name)),
        Cell::Rate(errors),
        Cell::Count(all_errors),
    ]);
    Row { cells, alarm: errors.is_some_and(|rate| rate > 0) }
}

fn sids(state: &State, meter: &Meter) -> Table {
    let sids = &state.stats.sids;
    let rows = sids.iter().map(|sid| {
        counting(
            meter,
            &format!("sid {} {}", sid.table, sid.prefix),
            vec![Cell::text(&sid.prefix), Cell::text(&sid.behaviour)],
            sid.errors,
        )
    });
    Table {
        title: titled("local SIDs", sids.len(), state.left_out.sids),
        columns: vec![
            left("prefix", 0),
            left("behaviour", 14),
            right("/s", 6),
            right("bit/s", 6),
            left("", 8),
            right("err/s", 6),
            right("errors", 6),
        ],
        rows: rows.collect(),
        sorted_by: 2,
        empty: "there is no local SID; one without `count` shows no packets".into(),
    }
}

fn policies(state: &State, meter: &Meter) -> Table {
    let policies = &state.stats.policies;
    let rows = policies.iter().map(|policy| {
        counting(
            meter,
            &format!("policy {}", policy.encap),
            vec![Cell::text(policy.encap.trim_start_matches("seg6 mode "))],
            policy.errors,
        )
    });
    Table {
        title: titled("SRv6 policies", policies.len(), state.left_out.policies),
        columns: vec![
            left("policy", 0),
            right("/s", 6),
            right("bit/s", 6),
            left("", 8),
            right("err/s", 6),
            right("errors", 6),
        ],
        rows: rows.collect(),
        sorted_by: 1,
        empty: "no route has segments".into(),
    }
}

fn labels(state: &State, meter: &Meter) -> Table {
    let rows = state.labels.iter().map(|label| {
        counting(
            meter,
            &format!("label {}", label.label),
            vec![Cell::Count(label.packets), Cell::text(label.label)],
            label.errors,
        )
    });
    Table {
        title: titled("MPLS labels", state.labels.len(), state.left_out.labels),
        columns: vec![
            right("packets", 8),
            left("label", 10),
            right("/s", 6),
            right("bit/s", 6),
            left("", 20),
            right("err/s", 6),
            right("errors", 6),
        ],
        rows: rows.collect(),
        sorted_by: 2,
        empty: "no label has a route".into(),
    }
}

fn tunnels(state: &State, meter: &Meter) -> Table {
    let tunnels = state.links.iter().filter_map(|link| Some((link, link.tunnel.as_ref()?)));
    let rows = tunnels.map(|(link, tunnel)| {
        let rate = |what: &str| meter.rate(&format!("tunnel {} {what}", link.name));
        let kind = tunnel.encap.as_ref().map_or(link.kind.clone(), |encap| format!("{}/{encap}", link.kind));
        Row {
            cells: vec![
                Cell::text(&link.name),
                Cell::text(kind),
                Cell::text(if link.up { "up" } else { "down" }),
                Cell::text(&tunnel.remote),
                Cell::Rate(rate("in")),
                Cell::Bits(rate("in bytes")),
                Cell::Rate(rate("out")),
                Cell::Bits(rate("out bytes")),
                Cell::Rate(rate("errors")),
            ],
            alarm: !link.up || rate("errors").is_some_and(|rate| rate > 0),
        }
    });
    Table {
        title: "tunnels".to_owned(),
        columns: vec![
            left("tunnel", 12),
            left("kind", 9),
            left("", 4),
            left("remote", 0),
            right("in/s", 6),
            right("bit/s", 6),
            right("out/s", 6),
            right("bit/s", 6),
            right("err/s", 6),
        ],
        rows: rows.collect(),
        sorted_by: 4,
        empty: "there is no tunnel".into(),
    }
}

fn queues(state: &State, meter: &Meter) -> Table {
    let rows = state.queues.iter().map(|queue| {
        let name = format!("queue {} {}", queue.device, queue.handle);
        let drops = meter.rate(&format!("{name} drops"));
        let kind = if queue.class { format!("{} class", queue.kind) } else { queue.kind.clone() };
        Row {
            cells: vec![
                Cell::text(&queue.device),
                Cell::text(&queue.handle),
                Cell::text(kind),
                Cell::text(queue.rate.map_or("-".to_owned(), |rate| short(rate as f64))),
                Cell::Rate(meter.rate(&name)),
                Cell::Bits(meter.rate(&format!("{name} bytes"))),
                Cell::Spark(meter.history(&name)),
                Cell::Rate(drops),
                Cell::Count(queue.drops),
                Cell::Count(queue.queued),
            ],
            alarm: drops.is_some_and(|rate| rate > 0),
        }
    });
    Table {
        title: titled("qdiscs and classes", state.queues.len(), state.left_out.queues),
        columns: vec![
            left("device", 0),
            left("handle", 8),
            left("kind", 10),
            right("limit", 5),
            right("/s", 6),
            right("bit/s", 6),
            left("", 6),
            right("drop/s", 6),
            right("drops", 6),
            right("wait", 5),
        ],
        rows: rows.collect(),
        sorted_by: 4,
        empty: "no qdisc of the router's has been made".into(),
    }
}

fn policers(state: &State, meter: &Meter) -> Table {
    let rows = state.policers.iter().map(|policer| {
        let name = format!("policer {}", policer.index);
        let drops = meter.rate(&format!("{name} drops"));
        Row {
            cells: vec![
                Cell::text(format!("police {}", policer.index)),
                Cell::text(policer.rate.map_or("-".to_owned(), |rate| short(rate as f64))),
                Cell::Count(policer.filters.into()),
                Cell::Rate(meter.rate(&name)),
                Cell::Bits(meter.rate(&format!("{name} bytes"))),
                Cell::Spark(meter.history(&name)),
                Cell::Rate(meter.rate(&format!("{name} overlimits"))),
                Cell::Rate(drops),
                Cell::Count(policer.drops),
            ],
            alarm: drops.is_some_and(|rate| rate > 0),
        }
    });
    Table {
        title: titled("policers", state.policers.len(), state.left_out.policers),
        columns: vec![
            left("policer", 0),
            right("limit", 6),
            right("filters", 7),
            right("/s", 6),
            right("bit/s", 6),
            left("", 10),
            right("over/s", 6),
            right("drop/s", 6),
            right("drops", 6),
        ],
        rows: rows.collect(),
        sorted_by: 3,
        empty: "there is no policer".into(),
    }
}

fn workers(state: &State, meter: &Meter) -> Table {
    let rows = state.stats.workers.iter().map(|worker| {
        let name = format!("worker {}", worker.number);
        let dropped = meter.rate(&format!("{name} dropped"));
        Row {
            cells: vec![
                Cell::text(&name),
                Cell::text(worker.processor.map_or("-".to_owned(), |processor| processor.to_string())),
                Cell::Rate(meter.rate(&name)),
                Cell::Spark(meter.history(&name)),
                Cell::Rate(dropped),
                Cell::Rate(meter.rate(&format!("{name} bursts"))),
                Cell::Rate(meter.rate(&format!("{name} sleeps"))),
                Cell::Count(worker.totals.held),
                Cell::Count(worker.free_buffers),
            ],
            alarm: worker.free_buffers == 0,
        }
    });
    Table {
        title: "workers".to_owned(),
        columns: vec![
            left("worker", 0),
            left("processor", 9),
            right("in/s", 6),
            left("", 10),
            right("drop/s", 6),
            right("bursts/s", 8),
            right("sleeps/s", 8),
            right("held", 5),
            right("free", 6),
        ],
        rows: rows.collect(),
        sorted_by: 2,
        empty: "there is no worker".into(),
    }
}
