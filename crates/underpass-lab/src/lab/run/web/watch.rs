//! What there is to see of a network at one time: every router is asked at its socket, every host's kernel by its files.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::ifaddrs::getifaddrs;
use serde::Serialize;
use underpass_daemon::{
    live::{
        LabelStats, Location, PolicyStats, SidStats, Totals,
        state::{Link, State, Tunnel},
    },
    query,
    testbed::Namespace,
};

use super::super::{file, picture::Places};

/// How long a router may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Routers that are asked at a time.
const AT_ONCE: usize = 8;

/// The network that is watched.
#[derive(Debug, Default)]
pub struct Lab {
    pub name: String,
    pub nodes: Vec<Watched>,
    pub links: Vec<[file::End; 2]>,
    pub places: Option<Places>,
}

/// A node.
#[derive(Debug)]
pub struct Watched {
    pub name: String,
    /// `host`, `router`, or `router, FRR`.
    pub kind: &'static str,
    pub namespace: Namespace,
    /// Where its router listens.
    pub socket: Option<PathBuf>,
    /// Where its own page is.
    pub page: Option<u16>,
}

/// What there is to see.
#[derive(Debug, Serialize)]
pub struct Network {
    /// When, in milliseconds since 1970.
    pub time: u64,
    name: String,
    /// The machine.
    host: String,
    /// Of the drawing.
    width: usize,
    height: usize,
    nodes: Vec<Node>,
    links: Vec<[End; 2]>,
    /// A sentence for each reason for which packets were dropped.
    meanings: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize)]
struct Node {
    name: String,
    kind: &'static str,
    /// The name of its network namespace for `ip netns`, if it has one.
    namespace: Option<String>,
    /// The middle of its box in the drawing.
    x: usize,
    y: usize,
    page: Option<u16>,
    /// Why nothing is known of it.
    trouble: Option<String>,
    addresses: Vec<String>,
    totals: Option<Totals>,
    /// Drops that are of no end of a link.
    drops: BTreeMap<String, u64>,
    vrfs: Vec<Vrf>,
    sids: Vec<SidStats>,
    policies: Vec<PolicyStats>,
    labels: Vec<LabelStats>,
    tunnels: Vec<TunnelLink>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Vrf {
    name: String,
    table: u32,
    /// Links that are in it.
    links: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TunnelLink {
    name: String,
    kind: String,
    up: bool,
    #[serde(flatten)]
    tunnel: Tunnel,
    rx_packets: u64,
    tx_packets: u64,
}

/// An end of a link.
#[derive(Clone, Debug, Default, Serialize)]
struct End {
    node: usize,
    device: String,
    up: bool,
    addresses: Vec<String>,
    rx_packets: u64,
    rx_bytes: u64,
    tx_packets: u64,
    tx_bytes: u64,
    /// What came in here and was dropped, and what the device itself dropped, by reason.
    drops: BTreeMap<String, u64>,
}

/// What is known of a node: what goes into [`Node`], and the ends of its links by their devices.
#[derive(Default)]
struct Known {
    node: Node,
    ends: BTreeMap<String, End>,
    meanings: BTreeMap<String, String>,
}

impl Lab {
    /// The node at the other end of the link at a device.
    pub fn neighbour(&self, node: usize, device: &str) -> Option<usize> {
        let own = |end: &file::End| end.node == node && end.device == device;
        self.links.iter().find_map(|[one, other]| {
            own(one).then_some(other.node).or_else(|| own(other).then_some(one.node))
        })
    }

    /// The addresses of a node that packets may come from.
    pub fn addresses(&self, node: usize) -> Vec<IpAddr> {
        let known = self.known(node);
        let texts = known.node.addresses.iter().filter_map(|text| text.split('/').next()?.parse().ok());
        texts.filter(|address: &IpAddr| !address.is_loopback() && !is_link_local(address)).collect()
    }

    /// What there is to see now.
    pub fn look(&self) -> Network {
        let numbers: Vec<usize> = (0..self.nodes.len()).collect();
        let part = numbers.len().div_ceil(AT_ONCE).max(1);
        let mut known: Vec<Known> = thread::scope(|scope| {
            let parts = numbers.chunks(part);
            let threads: Vec<_> = parts
                .map(|part| scope.spawn(|| part.iter().map(|node| self.known(*node)).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let links = self.links.iter().map(|ends| {
            ends.each_ref().map(|end| {
                let found = known.get_mut(end.node).and_then(|known| known.ends.remove(&end.device));
                End { node: end.node, device: end.device.clone(), ..found.unwrap_or_default() }
            })
        });
        let links = links.collect();
        let mut meanings = BTreeMap::new();
        known.iter_mut().for_each(|known| meanings.append(&mut known.meanings));
        let (width, height) = self.places.as_ref().map_or((0, 0), |places| (places.width, places.height));
        Network {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            name: self.name.clone(),
            host: Location::here().host,
            width,
            height,
            nodes: known.into_iter().map(|known| known.node).collect(),
            links,
            meanings,
        }
    }

    fn known(&self, number: usize) -> Known {
        let Some(watched) = self.nodes.get(number) else { return Known::default() };
        let told = match &watched.socket {
            Some(socket) => query::answer_within(socket, "state", PATIENCE)
                .and_then(|text| Ok(of_router(serde_json::from_str(&text)?))),
            None => watched.namespace.enter(of_host).map_err(Into::into),
        };
        let mut known = told.unwrap_or_else(|error| Known {
            node: Node { trouble: Some(format!("{error:#}")), ..Node::default() },
            ..Known::default()
        });
        let at = self.places.as_ref().and_then(|places| places.at.get(number));
        (known.node.x, known.node.y) = at.copied().unwrap_or_default();
        (known.node.name, known.node.kind) = (watched.name.clone(), watched.kind);
        known.node.page = watched.page;
        known
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn of_router(state: State) -> Known {
    let ports: BTreeMap<&str, _> = state.stats.ports.iter().map(|port| (port.name.as_str(), port)).collect();
    let mut elsewhere = state.stats.drops.clone();
    let mut ends = BTreeMap::new();
    for link in &state.links {
        let mut drops = BTreeMap::new();
        if let Some(port) = ports.get(link.name.as_str()) {
            drops.clone_from(&port.path_drops);
            for (reason, count) in &port.path_drops {
                elsewhere.entry(reason.clone()).and_modify(|all| *all = all.saturating_sub(*count));
            }
            let own = port.drops.iter().filter(|(_, count)| **count > 0);
            own.for_each(|(reason, count)| *drops.entry(reason.clone()).or_default() += count);
        }
        ends.insert(link.name.clone(), end(link, drops));
    }
    elsewhere.retain(|_, count| *count > 0);
    let inside = |vrf: &Link| {
        let own = state.links.iter().filter(|link| link.master.as_ref() == Some(&vrf.name));
        own.map(|link| link.name.clone()).collect()
    };
    let vrfs = state.links.iter().filter(|link| link.kind == "vrf").map(|vrf| Vrf {
        links: inside(vrf),
        name: vrf.name.clone(),
        table: vrf.table.unwrap_or_default(),
    });
    let tunnels = state.links.iter().filter_map(|link| {
        Some(TunnelLink {
            name: link.name.clone(),
            kind: link.kind.clone(),
            up: link.up,
            tunnel: link.tunnel.clone()?,
            rx_packets: link.rx_packets,
            tx_packets: link.tx_packets,
        })
    });
    let node = Node {
        namespace: state.location.namespace.clone(),
        addresses: state.links.iter().flat_map(|link| link.addresses.clone()).collect(),
        totals: Some(state.stats.totals.clone()),
        drops: elsewhere,
        vrfs: vrfs.collect(),
        tunnels: tunnels.collect(),
        sids: state.stats.sids.clone(),
        policies: state.stats.policies.clone(),
        labels: state.labels.clone(),
        warnings: state.stats.warnings.clone(),
        ..Node::default()
    };
    Known { node, ends, meanings: state.meanings }
}

fn end(link: &Link, drops: BTreeMap<String, u64>) -> End {
    End {
        node: 0,
        device: String::new(),
        up: link.up,
        addresses: link.addresses.clone(),
        rx_packets: link.rx_packets,
        rx_bytes: link.rx_bytes,
        tx_packets: link.tx_packets,
        tx_bytes: link.tx_bytes,
        drops,
    }
}

/// What the kernel says in the network namespace of the calling thread.
fn of_host() -> Known {
    let mut addresses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut up = BTreeMap::new();
    for one in getifaddrs().into_iter().flatten() {
        use nix::net::if_::InterfaceFlags;
        up.insert(one.interface_name.clone(), one.flags.contains(InterfaceFlags::IFF_RUNNING));
        let Some(address) = &one.address else { continue };
        let text = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => v4.ip().to_string(),
            (_, Some(v6)) => v6.ip().to_string(),
            _ => continue,
        };
        addresses.entry(one.interface_name).or_default().push(text);
    }
    let counters = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let mut ends = BTreeMap::new();
    for (device, numbers) in counters.lines().filter_map(|line| line.split_once(':')) {
        let device = device.trim().to_owned();
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let number = |at: usize| numbers.get(at).copied().unwrap_or_default();
        let drops = [("receive-dropped", number(3)), ("transmit-dropped", number(11))];
        let end = End {
            up: up.get(&device).copied().unwrap_or_default(),
            addresses: addresses.get(&device).cloned().unwrap_or_default(),
            rx_packets: number(1),
            rx_bytes: number(0),
            tx_packets: number(9),
            tx_bytes: number(8),
            drops: drops
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            ..End::default()
        };
        ends.insert(device, end);
    }
    let node = Node {
        namespace: Location::here().namespace,
        addresses: addresses.into_values().flatten().collect(),
        ..Node::default()
    };
    Known { node, ends, meanings: BTreeMap::new() }
}

/// Where the router of a namespace listens, that `underpass run` has been given these arguments.
pub fn socket(namespace: &Namespace, arguments: &[String]) -> anyhow::Result<PathBuf> {
    use underpass_daemon::protocol::{RUNTIME, socket_name};
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match (word.strip_prefix("--socket="), word.as_str()) {
            (Some(path), _) => return Ok(path.into()),
            (None, "--socket") => return Ok(words.next().map(PathBuf::from).unwrap_or_default()),
            _ => {}
        }
    }
    Ok(PathBuf::from(RUNTIME).join(socket_name(fs::metadata(namespace.path())?.ino())))
}

impl Network {
    /// The counters of which the page shows rates, by the names that its script has for them.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for node in &self.nodes {
            if let Some(totals) = &node.totals {
                all.push((format!("node {} received", node.name), totals.received));
                all.push((format!("node {} dropped", node.name), totals.dropped));
            }
        }
        for end in self.links.iter().flatten() {
            let Some(node) = self.nodes.get(end.node) else { continue };
            let name = format!("end {}:{}", node.name, end.device);
            all.extend([
                (format!("{name} rx"), end.rx_packets),
                (format!("{name} rx bytes"), end.rx_bytes),
                (format!("{name} tx bytes"), end.tx_bytes),
            ]);
            all.extend(end.drops.iter().map(|(reason, count)| (format!("{name} drop {reason}"), *count)));
        }
        for node in &self.nodes {
            let name = &node.name;
            let sids = node.sids.iter();
            all.extend(sids.map(|sid| (format!("sid {name} {} {}", sid.table, sid.prefix), sid.packets)));
            let policies = node.policies.iter();
            all.extend(policies.map(|policy| (format!("policy {name} {}", policy.encap), policy.packets)));
            all.extend(node.drops.iter().map(|(reason, count)| (format!("drop {name} {reason}"), *count)));
            let labels = node.labels.iter();
            all.extend(labels.map(|label| (format!("label {name} {}", label.label), label.packets)));
            let tunnels = node.tunnels.iter();
            all.extend(tunnels.map(|tunnel| {
                (format!("tunnel {name} {}", tunnel.name), tunnel.rx_packets + tunnel.tx_packets)
            }));
        }
        all
    }
}
