//! What `top` shows: a table for each kind of object, made of a state and its rates.

use underpass::live::state::State;

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

/// What stands in a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Text(String),
    /// A number, shown short: a count, or a rate that is not known yet.
    Count(u64),
    /// Packets a second.
    Rate(Option<u64>),
    /// Bytes a second, shown in bits.
    Bits(Option<u64>),
    /// How a rate went.
    Spark(Vec<u64>),
}

impl Cell {
    fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// The number that a column is sorted by; text is sorted as text.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Count(count) => Some(*count),
            Self::Rate(rate) | Self::Bits(rate) => Some(rate.unwrap_or(0)),
            Self::Spark(rates) => Some(rates.iter().sum()),
            Self::Text(_) => None,
        }
    }

    /// As it is shown in `width` columns.
    pub fn show(&self, width: usize) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => short(*count as f64),
            Self::Rate(rate) => rate.map_or("-".to_owned(), |rate| short(rate as f64)),
            Self::Bits(rate) => rate.map_or("-".to_owned(), |rate| short(rate as f64 * 8.0)),
            Self::Spark(rates) => spark(rates, width),
        }
    }
}

/// A number in at most five characters.
pub fn short(number: f64) -> String {
    let mut rest = number;
    for unit in ["", "k", "M", "G", "T", "P"] {
        if rest < 999.5 || unit == "P" {
            let digits = if unit.is_empty() || rest >= 99.95 {
                0
            } else if rest >= 9.995 {
                1
            } else {
                2
            };
            return format!("{rest:.digits$}{unit}");
        }
        rest /= 1000.0;
    }
    number.to_string()
}

/// Bars of the last rates, as high as they are beside the highest of them.
fn spark(rates: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let rates = rates.get(rates.len().saturating_sub(width)..).unwrap_or_default();
    let highest = rates.iter().copied().max().unwrap_or(0);
    let bar = |rate: &u64| match (*rate, highest) {
        (0, _) => ' ',
        (rate, highest) => {
            let bar = (rate as u128 * 7).div_ceil(u128::from(highest)) as usize;
            BARS.get(bar).copied().unwrap_or('█')
        }
    };
    format!("{:>width$}", rates.iter().map(bar).collect::<String>())
}

/// A column: its name, and how many characters it has; 0: what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub width: u16,
    /// Numbers stand to the right.
    pub right: bool,
}

const fn left(name: &'static str, width: u16) -> Column {
    Column { name, width, right: false }
}

const fn right(name: &'static str, width: u16) -> Column {
    Column { name, width, right: true }
}

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub cells: Vec<Cell>,
    /// Something is lost here now.
    pub alarm: bool,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub title: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// The column that it is sorted by unless told otherwise, the largest first.
    pub sorted_by: usize,
    /// What is said where there is no row.
    pub empty: &'static str,
}

impl Table {
    /// Leaves the rows with `filter` in one of their texts.
    pub fn filter(&mut self, filter: &str) {
        let filter = filter.to_lowercase();
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if text.to_lowercase().contains(&filter));
        self.rows.retain(|row| filter.is_empty() || row.cells.iter().any(has));
    }

    /// Sorts by a column: numbers from the largest on, texts from A on; or the other way round.
    pub fn sort(&mut self, column: Option<usize>, reverse: bool) {
        let column = column.unwrap_or(self.sorted_by);
        self.rows.sort_by(|a, b| {
            let (Some(a), Some(b)) = (a.cells.get(column), b.cells.get(column)) else {
                return std::cmp::Ordering::Equal;
            };
            let order = match (a, b) {
                (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
                _ => b.number().cmp(&a.number()),
            };
            if reverse { order.reverse() } else { order }
        });
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
        View::Sids => vec![sids(state, meter)],
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
        empty: "nothing was dropped",
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
        empty: "",
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
        empty: "nothing was dropped at a port",
    }
}

/// What a port's reason means.
fn port_reason(reason: &str) -> &'static str {
    match reason {
        "no-buffer" => "The worker had no free buffer.",
        "malformed" => "What the kernel handed over made no sense.",
        "queue-full" => "The device did not send as fast.",
        "too-long" => "Longer than the device sends.",
        "send-error" => "The kernel refused to send it.",
        "kernel" => "Lost before the worker could take it.",
        _ => "",
    }
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
        empty: "no device is attached",
    }
}

fn sids(state: &State, meter: &Meter) -> Table {
    let sids = &state.stats.sids;
    let rows = sids.iter().map(|sid| {
        let name = format!("sid {} {}", sid.table, sid.prefix);
        let errors = meter.rate(&format!("{name} errors"));
        Row {
            cells: vec![
                Cell::text(&sid.prefix),
                Cell::text(&sid.behaviour),
                Cell::Rate(meter.rate(&name)),
                Cell::Bits(meter.rate(&format!("{name} bytes"))),
                Cell::Spark(meter.history(&name)),
                Cell::Rate(errors),
                Cell::Count(sid.errors),
            ],
            alarm: errors.is_some_and(|rate| rate > 0),
        }
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
        empty: "there is no local SID; one without `count` shows no packets",
    }
}

fn labels(state: &State, meter: &Meter) -> Table {
    let rows = state.labels.iter().map(|label| {
        let name = format!("label {}", label.label);
        let errors = meter.rate(&format!("{name} errors"));
        Row {
            cells: vec![
                Cell::Count(label.packets),
                Cell::text(label.label),
                Cell::Rate(meter.rate(&name)),
                Cell::Bits(meter.rate(&format!("{name} bytes"))),
                Cell::Spark(meter.history(&name)),
                Cell::Rate(errors),
                Cell::Count(label.errors),
            ],
            alarm: errors.is_some_and(|rate| rate > 0),
        }
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
        empty: "no label has a route",
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
        empty: "there is no tunnel",
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
        empty: "no qdisc of the router's has been made",
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
        empty: "there is no policer",
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
        empty: "there is no worker",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1.00k"),
            (9_994.0, "9.99k"),
            (99_949.0, "99.9k"),
            (999_499.0, "999k"),
            (999_500.0, "1.00M"),
            (12_345_678.0, "12.3M"),
            (1.5e9, "1.50G"),
            (u64::MAX as f64, "18447P"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn bars() {
        assert_eq!(spark(&[0, 1, 50, 100], 6), "   ▂▅█");
        assert_eq!(spark(&[9, 9, 0, 7], 2), " █", "the last ones");
        assert_eq!(spark(&[], 3), "   ");
        assert_eq!(spark(&[u64::MAX], 1), "█");
    }

    #[test]
    fn sorted_and_filtered() {
        let row = |name: &str, rate| Row { cells: vec![Cell::text(name), Cell::Rate(rate)], alarm: false };
        let mut table = Table {
            title: String::new(),
            columns: vec![left("a", 3), right("b", 3)],
            rows: vec![row("b", Some(1)), row("a", Some(7)), row("c", None)],
            sorted_by: 1,
            empty: "",
        };
        let order = |table: &Table| table.rows.iter().map(|row| row.cells[0].show(0)).collect::<String>();
        table.sort(None, false);
        assert_eq!(order(&table), "abc");
        table.sort(Some(0), true);
        assert_eq!(order(&table), "cba");
        table.filter("B");
        assert_eq!(order(&table), "b");
    }
}
