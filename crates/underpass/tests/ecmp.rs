//! Routes of several ways that encapsulate: every way gets its share of the flows, and a flow stays on its way.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use underpass::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::trace::Untraced;
use underpass_engine::worker::{Burst, Worker};

const CONFIG: [&str; 9] = [
    "ip link set p0 up",
    "ip link set p1 up",
    "ip addr add fd00::1/64 dev p0 nodad",
    "ip addr add fd01::1/64 dev p1 nodad",
    "ip addr add 10.0.0.1/24 dev p0",
    "ip addr add 10.1.0.1/24 dev p1",
    "ip neigh add fd01::2 lladdr 02:00:00:00:02:01 dev p1 nud permanent",
    "ip -6 route add fc00:a::/32 via fd01::2 dev p1",
    "ip -6 route add fc00:b::/32 via fd01::2 dev p1",
];

const FLOWS: u16 = 512;

struct Lab {
    router: Offline,
    worker: Worker,
}

impl Lab {
    fn new(lines: &[&str]) -> Self {
        let ports =
            ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"].map(|port| port.parse().unwrap());
        let (router, tables, mut readers) = Offline::new(&ports, 1).unwrap();
        let lab = Self { worker: Worker::new(tables, readers.remove(0), Pool::new(256)), router };
        lab.configure(&CONFIG);
        lab.configure(lines);
        lab
    }

    fn configure(&self, lines: &[&str]) {
        for line in lines {
            let output = self.router.run_line(line).unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// The first segment that each flow is sent to.
    fn ways(&mut self, version: u8) -> Vec<Ipv6Addr> {
        let mut ways = Vec::new();
        let flows: Vec<u16> = (0..FLOWS).collect();
        for flows in flows.chunks(64) {
            let mut burst = Burst::new();
            for flow in flows {
                let mut packet = self.worker.pool().take().unwrap();
                packet.set(HEADROOM, &frame(version, *flow)).unwrap();
                burst.push(packet);
            }
            self.worker.process(PortId(0), &mut burst, 0, &mut Untraced);
            let sent: Vec<_> = self.worker.sent(PortId(1)).collect();
            for packet in sent {
                let destination: [u8; 16] = packet.bytes()[38..54].try_into().unwrap();
                ways.push(destination.into());
                self.worker.pool().give(packet);
            }
        }
        ways
    }

    /// How many of a thousand flows take each way, by its first segment; and that they stay there.
    fn shares(&mut self, version: u8) -> BTreeMap<Ipv6Addr, usize> {
        let ways = self.ways(version);
        assert_eq!(ways.len(), usize::from(FLOWS), "flows are lost");
        assert_eq!(ways, self.ways(version), "a flow has changed its way");
        let mut shares = BTreeMap::new();
        for way in ways {
            *shares.entry(way).or_insert(0) += 1;
        }
        shares.values_mut().for_each(|share| *share = *share * 1000 / usize::from(FLOWS));
        shares
    }
}

/// Ethernet, IPv4 or IPv6, UDP from a port for each flow.
fn frame(version: u8, flow: u16) -> Vec<u8> {
    let [high, low] = flow.to_be_bytes();
    let udp = [4 + high, low, 0, 9, 0, 8, 0, 0];
    let link_layer = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1];
    if version == 6 {
        let source: Ipv6Addr = format!("fd00::{:x}", flow + 2).parse().unwrap();
        let destination: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let fixed = [0x60, 0, 0, 0, 0, 8, 17, 64];
        return [&link_layer[..], &[0x86, 0xdd], &fixed, &source.octets(), &destination.octets(), &udp]
            .concat();
    }
    let mut header = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 1 + high, low, 10, 7, 0, 1];
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&link_layer[..], &[8, 0], &header, &udp].concat()
}

/// Shares of a thousand, a and b, each within a tenth of all.
fn assert_shares(shares: &BTreeMap<Ipv6Addr, usize>, expected: &[(&str, usize)], what: &str) {
    assert_eq!(shares.len(), expected.len(), "{what}: {shares:?}");
    for (way, share) in expected {
        let found = shares.get(&way.parse().unwrap()).copied().unwrap_or_default();
        assert!(found.abs_diff(*share) < 100, "{what}: {shares:?}");
    }
}

const MODES: [&str; 4] = ["encap", "encap.red", "l2encap", "l2encap.red"];

#[test]
fn ways_of_a_route() {
    for mode in MODES.into_iter().chain(["inline"]) {
        let way = |segment: &str| format!("nexthop encap seg6 mode {mode} segs {segment},fc00:a::9");
        let (a, b) = (way("fc00:a::1"), way("fc00:b::1"));
        let v6 =
            format!("ip -6 route add 2001:db8::/48 {a} via fd01::2 dev p1 {b} via fd01::3 dev p1 weight 3");
        let v4 = format!("ip route add 10.7.0.0/16 {a} dev p1 {b} via 10.1.0.3 dev p1 weight 3");
        let expected = [("fc00:a::1", 250), ("fc00:b::1", 750)];
        let mut lab = Lab::new(&[&v6]);
        assert_shares(&lab.shares(6), &expected, mode);
        if mode != "inline" {
            lab.configure(&[&v4]);
            assert_shares(&lab.shares(4), &expected, &format!("{mode} of IPv4"));
        }
    }
}

#[test]
fn next_hop_objects() {
    for mode in MODES.into_iter().chain(["inline"]) {
        let object = |id: u8, segment: &str| {
            format!("ip -6 nexthop replace id {id} encap seg6 mode {mode} segs {segment},fc00:a::9 dev p1")
        };
        let mut lab = Lab::new(&[
            &object(1, "fc00:a::1"),
            &object(2, "fc00:b::1"),
            "ip nexthop add id 10 group 1/2,3",
            "ip -6 route add 2001:db8::/48 nhid 10",
        ]);
        assert_shares(&lab.shares(6), &[("fc00:a::1", 250), ("fc00:b::1", 750)], mode);
        // An object that changes changes its routes, and so does a group.
        lab.configure(&[&object(2, "fc00:b::2")]);
        assert_shares(&lab.shares(6), &[("fc00:a::1", 250), ("fc00:b::2", 750)], mode);
        lab.configure(&[&object(3, "fc00:a::3"), "ip nexthop replace id 10 group 1/2/3"]);
        let thirds = [("fc00:a::1", 333), ("fc00:b::2", 333), ("fc00:a::3", 333)];
        assert_shares(&lab.shares(6), &thirds, mode);
        lab.configure(&["ip nexthop del id 1"]);
        assert_shares(&lab.shares(6), &[("fc00:b::2", 500), ("fc00:a::3", 500)], mode);
        lab.configure(&["ip -6 route replace 2001:db8::/48 nhid 3"]);
        assert_shares(&lab.shares(6), &[("fc00:a::3", 1000)], mode);
    }
}

/// A way whose link goes down is left, as in Linux.
#[test]
fn a_way_whose_link_is_down() {
    let way = "nexthop encap seg6 mode encap segs";
    let line = format!(
        "ip -6 route add 2001:db8::/48 {way} fc00:a::1 via fd01::2 dev p1 {way} fc00:b::1 via fd02::2 dev d0"
    );
    let mut lab = Lab::new(&[
        "ip link add d0 type dummy",
        "ip link set d0 up",
        "ip addr add fd02::1/64 dev d0 nodad",
        &line,
    ]);
    assert_shares(&lab.shares(6), &[("fc00:a::1", 500), ("fc00:b::1", 500)], "both up");
    lab.configure(&["ip link set d0 down"]);
    assert_shares(&lab.shares(6), &[("fc00:a::1", 1000)], "one down");
}
