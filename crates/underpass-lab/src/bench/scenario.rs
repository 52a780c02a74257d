//! What a scenario is: a configuration, what is sent through it and what must come out, and the
//! addresses that all of them share.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_port::memory::Patches;

use super::routes::Route;
use super::wire::{self, Ip4, Ip6, Key, Mac};
use crate::random::Random;

/// Ethernet addresses: of the two ports, of the sender before the first and of the neighbours behind
/// the second.
pub const PORTS: [Mac; 2] = [[2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 1, 1]];
pub const SENDER: Mac = [2, 0, 0, 0, 2, 0];
pub const NEIGHBOUR: Mac = [2, 0, 0, 0, 2, 1];

/// How many different packets a scenario sends.
pub const FLOWS: usize = 4096;

/// How many packets are compared before the time is taken.
pub const CHECKED: usize = 256;

/// Where the SIDs of the configuration are, and those that packets visit after it.
pub const SID: Ipv6Addr = Ipv6Addr::new(0xfc00, 1, 0, 0, 0, 0, 0, 1);
pub const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 1);

/// The segment that packets visit `n`-th after the router, 1 the first.
pub fn segment(n: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfc00, 2, 0, 0, 0, 0, 0, n as u16)
}

/// Both ports up and with addresses, a neighbour behind the second.
pub const BASE: &str = "\
ip link set p0 up
ip link set p1 up
ip addr add fd00::1/64 dev p0 nodad
ip addr add fd01::1/64 dev p1 nodad
ip addr add 10.0.0.1/24 dev p0
ip addr add 10.1.0.1/24 dev p1
ip neigh add fd01::2 lladdr 02:00:00:00:02:01 dev p1 nud permanent
ip neigh add 10.1.0.2 lladdr 02:00:00:00:02:01 dev p1 nud permanent
";

/// The same with the second port in a VRF.
pub const VRF: &str = "\
ip link add vrf10 type vrf table 10
ip link set vrf10 up
ip link set p0 up
ip link set p1 master vrf10
ip link set p1 up
ip addr add fd00::1/64 dev p0 nodad
ip addr add fd01::1/64 dev p1 nodad
ip addr add 10.0.0.1/24 dev p0
ip addr add 10.1.0.1/24 dev p1
ip neigh add fd01::2 lladdr 02:00:00:00:02:01 dev p1 nud permanent
ip neigh add 10.1.0.2 lladdr 02:00:00:00:02:01 dev p1 nud permanent
";

/// The key of the scenarios with HMACs.
pub const KEY: Key = Key { id: 7, secret: "known to both ends" };

/// The line that sets it; `ip` reads the secret from its input.
pub fn set_key() -> String {
    format!("ip sr hmac set {} sha256 <<< '{}'\n", KEY.id, KEY.secret)
}

/// One thing to measure.
pub struct Scenario {
    /// What it is called on the command line.
    pub name: String,
    /// What VPP v26.06 takes for it, in cycles of the core, its sink with it; docs/performance.md says how that was measured.
    pub vpp: Option<u32>,
    /// The lines that configure it, run by the real tools.
    pub config: String,
    /// What is configured besides, by too many routes for lines.
    pub mass: Option<String>,
    /// Makes what is sent through it; called once, when it is its turn.
    pub load: Box<dyn Fn() -> Load>,
}

impl Scenario {
    /// A scenario without mass routes.
    pub fn new(
        name: impl Into<String>,
        vpp: impl Into<Option<u32>>,
        config: String,
        pair: impl Fn(&Flow) -> (Vec<u8>, Vec<u8>) + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            vpp: vpp.into(),
            config,
            mass: None,
            load: Box::new(move || Load::of_flows(&pair)),
        }
    }
}

/// In which order the packets of a scenario come out. Those of one flow keep theirs in any case.
#[derive(Clone, Copy, Default)]
pub enum Order {
    /// As they came.
    #[default]
    Kept,
    /// Packets of a burst may overtake others of it.
    InBurst,
    /// Packets may wait on their way, and come out with a later burst.
    Waits,
}

/// What a scenario sends into the first port and wants back out of the second.
#[derive(Default)]
pub struct Load {
    /// Routes that are too many for lines, added after them.
    pub routes: Vec<Route>,
    /// Lines that are too many for a process each: one of this tool reads them all (`-batch -`).
    pub batches: Vec<(&'static str, String)>,
    /// In which order packets come out.
    pub order: Order,
    /// The packets, sent in turn.
    pub templates: Vec<Box<[u8]>>,
    /// What is written over them before they are sent, in turn and independently of the templates.
    pub patches: Option<Patches>,
    /// What the first [`CHECKED`] packets sent must come out as.
    pub expected: Vec<Vec<u8>>,
}

impl Load {
    /// A packet and what it must come out as, for each flow.
    fn of_flows(pair: &impl Fn(&Flow) -> (Vec<u8>, Vec<u8>)) -> Self {
        let (templates, mut expected): (Vec<_>, Vec<_>) = flows().iter().map(pair).unzip();
        expected.truncate(CHECKED);
        let templates = templates.into_iter().map(Vec::into_boxed_slice).collect();
        Self { templates, expected, ..Self::default() }
    }
}

/// The fields by which the flows of a scenario differ.
#[derive(Clone)]
pub struct Flow {
    pub source6: Ipv6Addr,
    pub destination6: Ipv6Addr,
    pub label: u32,
    pub source4: Ipv4Addr,
    pub destination4: Ipv4Addr,
    pub ports: (u16, u16),
    pub identification: u16,
}

/// [`FLOWS`] flows towards 2001:db8:1::/48 and 198.18.0.0/16, the same each time.
pub fn flows() -> Vec<Flow> {
    let mut random = Random(1);
    let prefix6 = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0).to_bits();
    let customers6 = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 0).to_bits();
    (0..FLOWS)
        .map(|_| Flow {
            source6: Ipv6Addr::from_bits(customers6 | random.wide() >> 48),
            destination6: Ipv6Addr::from_bits(prefix6 | random.wide() >> 48),
            label: random.below(1 << 20) as u32,
            source4: Ipv4Addr::from_bits(0xc613_0000 | random.below(1 << 16) as u32),
            destination4: Ipv4Addr::from_bits(0xc612_0000 | random.below(1 << 16) as u32),
            ports: (random.below(1 << 16) as u16, random.below(1 << 16) as u16),
            identification: random.below(1 << 16) as u16,
        })
        .collect()
}

/// Traffic class and hop limits of what is sent.
pub const CLASS: u8 = 0xb8;
pub const HOPS: u8 = 40;
pub const OUTER_HOPS: u8 = 61;

impl Flow {
    /// The flow's IPv6 packet of 86 bytes, 100 with an Ethernet header.
    pub fn packet6(&self, hop_limit: u8) -> Vec<u8> {
        let (source, destination) = (self.source6, self.destination6);
        let udp = wire::udp(&source.octets(), &destination.octets(), self.ports, &[0x5a; 38]);
        wire::ipv6(Ip6 { source, destination, class: CLASS, label: self.label, hop_limit }, wire::UDP, &udp)
    }

    /// The flow's IPv4 packet of 86 bytes.
    pub fn packet4(&self, ttl: u8) -> Vec<u8> {
        let (source, destination) = (self.source4, self.destination4);
        let udp = wire::udp(&source.octets(), &destination.octets(), self.ports, &[0x5a; 58]);
        wire::ipv4(Ip4 { source, destination, identification: self.identification, ttl }, wire::UDP, &udp)
    }

    /// The flow's Ethernet frame of `length` bytes between two hosts, an IPv4 packet in it.
    pub fn frame(&self, length: usize) -> Vec<u8> {
        let (source, destination) = (self.source4, self.destination4);
        let data = vec![0x5a; length.saturating_sub(14 + 20 + 8)];
        let udp = wire::udp(&source.octets(), &destination.octets(), self.ports, &data);
        let header = Ip4 { source, destination, identification: self.identification, ttl: 64 };
        wire::ethernet([2, 0, 0, 0, 9, 2], [2, 0, 0, 0, 9, 1], &wire::ipv4(header, wire::UDP, &udp))
    }

    /// The header of an IPv6 packet that carries the flow through the SRv6 domain.
    pub fn outer(&self, destination: Ipv6Addr, hop_limit: u8) -> Ip6 {
        Ip6 { source: self.source6, destination, class: CLASS, label: self.label, hop_limit }
    }
}

/// As it comes to the router.
pub fn incoming(packet: &[u8]) -> Vec<u8> {
    wire::ethernet(PORTS[0], SENDER, packet)
}

/// As it leaves it.
pub fn outgoing(packet: &[u8]) -> Vec<u8> {
    wire::ethernet(NEIGHBOUR, PORTS[1], packet)
}
