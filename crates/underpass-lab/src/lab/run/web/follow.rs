//! A flow across the routers: each follows its packets for a while, and what they say is put together packet by packet.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, Shutdown},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use underpass_daemon::live::{
    trace::{Message, PacketPath, Request},
    trace_path,
};

use super::{
    flow::{self, Pair},
    watch::{Lab, Watched},
};

/// How long routers follow packets.
pub const TIME: Duration = Duration::from_secs(3);
/// How long a router may take to tell the rest then.
const REST: Duration = Duration::from_secs(2);
/// Packets of each router; those beyond are not looked at.
const PACKETS: usize = 200;
/// Packets that each worker follows in a second at most.
const RATE: u32 = 100;

/// What became of a flow.
#[derive(Debug, Default, Serialize)]
pub struct Followed {
    /// Packets whose whole way is known.
    pub packets: usize,
    /// Packets of which routers have seen something, but not where they came from.
    pub in_part: usize,
    /// Routers that did not follow them, and why.
    pub refused: Vec<Refused>,
    /// The ways that the packets took, the most frequent first.
    pub ways: Vec<Way>,
}

/// Why a router followed nothing.
#[derive(Debug, Serialize)]
pub struct Refused {
    pub node: String,
    pub why: String,
}

/// A way across the nodes.
#[derive(Debug, Serialize)]
pub struct Way {
    /// Packets that took it.
    pub packets: usize,
    /// The node that the packets came from, if a link leads there.
    pub from: Option<usize>,
    /// The routers, in the order in which a packet came there.
    pub visits: Vec<Visit>,
    /// What became of it in the end.
    pub end: String,
}

/// A packet at a router.
#[derive(Clone, Debug, Serialize)]
pub struct Visit {
    pub node: usize,
    /// The port that it came in by.
    pub port: String,
    /// The ports that it left by, and the nodes at the other ends.
    pub sent: Vec<String>,
    pub next: Vec<Option<usize>>,
    pub delivered: bool,
    pub dropped: Vec<String>,
    /// What the router did, step by step, of the first packet that took this way.
    pub steps: Vec<String>,
    /// When, in nanoseconds since 1970.
    #[serde(skip)]
    time: u64,
}

impl Visit {
    fn new(lab: &Lab, node: usize, path: &PacketPath) -> Self {
        Self {
            node,
            port: path.port.clone(),
            next: path.sent.iter().map(|port| lab.neighbour(node, port)).collect(),
            sent: path.sent.clone(),
            delivered: path.delivered,
            dropped: path.dropped.clone(),
            steps: path.steps.iter().map(|step| step.text.clone()).collect(),
            time: path.time,
        }
    }

    /// What is the same for packets that take the same way.
    fn way(&self) -> (usize, &str, &[String], bool, &[String]) {
        (self.node, &self.port, &self.sent, self.delivered, &self.dropped)
    }
}

/// Follows packets of these pairs for a while. With `source` only packets count that come from there.
pub fn follow(lab: &Lab, pairs: &[Pair], source: Option<usize>) -> Followed {
    let program = flow::filter(pairs);
    let routers = lab.nodes.iter().enumerate().filter(|(_, node)| node.socket.is_some());
    let told: Vec<(usize, Result<Vec<PacketPath>, String>)> = thread::scope(|scope| {
        let threads: Vec<_> =
            routers.map(|(number, node)| (number, scope.spawn(|| paths(node, &program)))).collect();
        let join = |(number, thread): (usize, thread::ScopedJoinHandle<'_, _>)| {
            (number, thread.join().unwrap_or_else(|_| Err("the thread has ended".to_owned())))
        };
        threads.into_iter().map(join).collect()
    });
    let mut followed = Followed::default();
    let mut seen = Vec::new();
    for (node, told) in told {
        match told {
            Ok(paths) => seen.extend(paths.into_iter().filter_map(|path| {
                let frame = path.frames.iter().find(|frame| !frame.left)?.bytes()?;
                Some((flow::identity(&frame, pairs)?, Visit::new(lab, node, &path)))
            })),
            Err(why) => followed.refused.push(Refused { node: lab.nodes[node].name.clone(), why }),
        }
    }
    put_together(lab, seen, source, &mut followed);
    followed
}

/// The paths of packets through a router, of those that match.
fn paths(node: &Watched, program: &[flow::Instruction]) -> Result<Vec<PacketPath>, String> {
    let Some(socket) = &node.socket else { return Ok(Vec::new()) };
    ask(&trace_path(socket), program).unwrap_or_else(|error| Err(error.to_string()))
}

fn ask(socket: &Path, program: &[flow::Instruction]) -> io::Result<Result<Vec<PacketPath>, String>> {
    let connection = UnixStream::connect(socket)?;
    let request = Request { filter: program.to_vec(), frames: true, rate: RATE, ..Request::default() };
    writeln!(&connection, "{}", serde_json::to_string(&request)?)?;
    let end = Instant::now() + TIME;
    let mut paths = Vec::new();
    let mut lines = BufReader::new(&connection);
    let mut line = String::new();
    let mut ended = false;
    loop {
        let now = Instant::now();
        if !ended && (now >= end || paths.len() >= PACKETS) {
            connection.shutdown(Shutdown::Write)?;
            ended = true;
        }
        let until = if ended { end + REST } else { end };
        let left = until.saturating_duration_since(now);
        if ended && left.is_zero() {
            return Ok(Ok(paths));
        }
        connection.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match lines.read_line(&mut line) {
            Ok(0) => return Ok(Ok(paths)),
            Ok(_) => {}
            // What has come of a line stays in it.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error),
        }
        match serde_json::from_str(&line)? {
            Message::Refused(why) => return Ok(Err(why)),
            Message::PacketPath(path) if paths.len() < PACKETS => paths.push(*path),
            Message::Ended => return Ok(Ok(paths)),
            _ => {}
        }
        line.clear();
    }
}

/// Makes ways of what routers have seen.
fn put_together(lab: &Lab, seen: Vec<(Vec<u8>, Visit)>, source: Option<usize>, followed: &mut Followed) {
    let mut packets: BTreeMap<Vec<u8>, Vec<Visit>> = BTreeMap::new();
    for (identity, visit) in seen {
        packets.entry(identity).or_default().push(visit);
    }
    for (_, mut visits) in packets {
        visits.sort_by_key(|visit| visit.time);
        for visits in apart(visits) {
            let Some(first) = visits.first() else { continue };
            let from = lab.neighbour(first.node, &first.port);
            if source.is_some_and(|source| from != Some(source) && first.node != source) {
                followed.in_part += 1;
                continue;
            }
            followed.packets += 1;
            let same = |way: &&mut Way| {
                way.visits.iter().map(Visit::way).eq(visits.iter().map(Visit::way)) && way.from == from
            };
            match followed.ways.iter_mut().find(same) {
                Some(way) => way.packets += 1,
                None => {
                    let end = end(lab, &visits);
                    followed.ways.push(Way { packets: 1, from, visits, end });
                }
            }
        }
    }
    followed.ways.sort_by_key(|way| std::cmp::Reverse(way.packets));
}

/// Packets that look alike, each for itself: where one comes to a port a second time, it is another.
fn apart(visits: Vec<Visit>) -> Vec<Vec<Visit>> {
    let mut all: Vec<Vec<Visit>> = Vec::new();
    for visit in visits {
        let has = |packet: &&mut Vec<Visit>| {
            !packet.iter().any(|other| (other.node, &other.port) == (visit.node, &visit.port))
        };
        match all.iter_mut().rev().find(has) {
            Some(packet) => packet.push(visit),
            None => all.push(vec![visit]),
        }
    }
    all
}

/// What became of a packet at the last router that has seen it.
fn end(lab: &Lab, visits: &[Visit]) -> String {
    let Some(last) = visits.last() else { return String::new() };
    let name = |node: usize| lab.nodes[node].name.as_str();
    let here = name(last.node);
    if let Some(reason) = visits.iter().flat_map(|visit| &visit.dropped).next() {
        let at = visits.iter().find(|visit| !visit.dropped.is_empty()).unwrap_or(last);
        return format!("dropped at {}:{}: {reason}", name(at.node), at.port);
    }
    match (last.delivered, &last.sent[..], &last.next[..]) {
        (true, ..) => format!("delivered to {here}"),
        (_, [port], [Some(next)]) => format!("sent to {} by {here}:{port}", name(*next)),
        (_, [], _) => format!("{here} has it still, or nothing more was heard of it"),
        (_, ports, _) => format!("sent by {here}:{}", ports.join(", ")),
    }
}

/// The addresses that a text names: an address, or a node's own.
pub fn addresses(lab: &Lab, text: &str) -> Option<(Option<usize>, Vec<IpAddr>)> {
    if let Ok(address) = text.parse() {
        return Some((None, vec![address]));
    }
    let node = lab.nodes.iter().position(|node| node.name == text)?;
    Some((Some(node), lab.addresses(node)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(node: usize, port: &str, time: u64) -> Visit {
        let path = PacketPath { port: port.to_owned(), time, ..PacketPath::default() };
        Visit::new(&Lab::default(), node, &path)
    }

    #[test]
    fn packets_that_look_alike_are_apart() {
        // Two packets, the second of which comes before the first has arrived.
        let visits =
            [(0, "in", 1), (1, "w", 2), (0, "in", 3), (2, "w", 4), (1, "w", 5), (2, "w", 6), (0, "back", 7)];
        let packets = apart(visits.map(|(node, port, time)| visit(node, port, time)).into());
        assert_eq!(packets.len(), 2);
        assert!(packets.iter().all(|packet| packet.len() >= 3));
        assert_eq!(packets.iter().map(Vec::len).sum::<usize>(), visits.len());
    }
}
