//! Routes of several ways that encapsulate: every way gets its share of the flows, and a flow stays on its way.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
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

    /// What each flow's packet, as it is sent, says of its way.
    fn ways<W>(&mut self, frame: impl Fn(u16) -> Vec<u8>, way: impl Fn(&[u8]) -> W) -> Vec<W> {
        let mut ways = Vec::new();
        let flows: Vec<u16> = (0..FLOWS).collect();
        for flows in flows.chunks(64) {
            let mut burst = Burst::new();
            for flow in flows {
                let mut packet = self.worker.pool().take().unwrap();
                packet.set(HEADROOM, &frame(*flow)).unwrap();
                burst.push(packet);
            }
            self.worker.process(PortId(0), &mut burst, 0, None);
            let sent: Vec<_> = self.worker.sent(PortId(1)).collect();
            for packet in sent {
                ways.push(way(packet.bytes()));
                self.worker.pool().give(packet);
            }
        }
        ways
    }

    /// How many of a thousand flows take each way; and that they stay there.
    fn shares_by<W: Ord + std::fmt::Debug>(
        &mut self,
        frame: impl Fn(u16) -> Vec<u8>,
        way: impl Fn(&[u8]) -> W,
    ) -> BTreeMap<W, usize> {
        let ways = self.ways(&frame, &way);
        assert_eq!(ways.len(), usize::from(FLOWS), "flows are lost");
        assert_eq!(ways, self.ways(&frame, &way), "a flow has changed its way");
        let mut shares = BTreeMap::new();
        for way in ways {
            *shares.entry(way).or_insert(0) += 1;
        }
        shares.values_mut().for_each(|share| *share = *share * 1000 / usize::from(FLOWS));
        shares
    }

    /// The shares of ways that are told by their first segment.
    fn shares(&mut self, version: u8) -> BTreeMap<Ipv6Addr, usize> {
        let segment = |packet: &[u8]| <[u8; 16]>::try_from(&packet[38..54]).unwrap().into();
        self.shares_by(|flow| frame(version, flow), segment)
    }

    /// The shares of ways that are told by the outermost label, of packets with label 100.
    fn shares_of_labels(&mut self) -> BTreeMap<u32, usize> {
        let labelled = |flow| {
            let packet = frame(4, flow);
            [&packet[..12], &[0x88, 0x47, 0, 6, 0x41, 64], &packet[14..]].concat()
        };
        let label = |packet: &[u8]| match packet[12..14] {
            [0x88, 0x47] => u32::from_be_bytes(packet[14..18].try_into().unwrap()) >> 12,
            _ => 0,
        };
        self.shares_by(labelled, label)
    }

    /// What is refused, and how.
    fn assert_refused(&self, line: &str, why: &str) {
        let output = self.router.run_line(line).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("{why}\n"), "{line}");
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

/// Those of labels lead where next-hop objects do, with the weights of a group.
#[test]
fn labels_by_next_hop_objects() {
    let object = |id: u8, labels: &str| {
        let encap = if labels.is_empty() { String::new() } else { format!("encap mpls {labels}") };
        format!("ip -6 nexthop replace id {id} {encap} via fd01::2 dev p1")
    };
    let mut lab = Lab::new(&[
        "sysctl -w net.mpls.platform_labels=1000",
        "sysctl -w net.mpls.conf.p0.input=1",
        &object(1, "201"),
        &object(2, "202/300"),
        "ip nexthop add id 10 group 1/2,3",
        "ip -f mpls route add 100 nhid 10",
        "ip -f mpls route add 101 nhid 1",
    ]);
    let show = |lab: &Lab| {
        String::from_utf8(lab.router.run_line("ip -f mpls route show").unwrap().stdout)
            .unwrap()
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect::<String>()
    };
    assert_eq!(
        show(&lab),
        "100 nhid 10\n\
         \tnexthop as to 201 via inet6 fd01::2 dev p1\n\
         \tnexthop as to 202/300 via inet6 fd01::2 dev p1\n\
         101 nhid 1 as to 201 via inet6 fd01::2 dev p1\n"
    );
    assert_eq!(lab.shares_of_labels().into_keys().collect::<Vec<_>>(), [201, 202]);
    let assert_shares = |lab: &mut Lab, expected: &[(u32, usize)], what: &str| {
        let shares = lab.shares_of_labels();
        assert_eq!(shares.len(), expected.len(), "{what}: {shares:?}");
        for (label, share) in expected {
            assert!(shares[label].abs_diff(*share) < 100, "{what}: {shares:?}");
        }
    };
    assert_shares(&mut lab, &[(201, 250), (202, 750)], "weights");
    // Also through more labels than two, and none: packets go on without.
    lab.configure(&[&object(2, "203/300/301"), &object(3, ""), "ip nexthop replace id 10 group 1/2/3"]);
    assert_shares(&mut lab, &[(201, 333), (203, 333), (0, 333)], "an object and its group are replaced");
    lab.configure(&["ip nexthop del id 1"]);
    assert_shares(&mut lab, &[(203, 500), (0, 500)], "an object is deleted");
    assert!(!show(&lab).contains("101"), "its own routes go with it");

    let answers = |why: &str| format!("RTNETLINK answers: {why}");
    let add = "ip -f mpls route add 102";
    lab.assert_refused(&format!("{add} nhid 77"), "Error: Nexthop id does not exist.");
    let both = "Error: Nexthop specification and nexthop id are mutually exclusive.";
    lab.assert_refused(&format!("{add} nhid 2 via inet6 fd01::2 dev p1"), both);
    let weights = "nexthop via inet6 fd01::2 dev p1 weight 2 nexthop via inet6 fd01::3 dev p1";
    lab.assert_refused(&format!("{add} {weights}"), &answers("Invalid argument"));
    // What is there already is told first, as by Linux.
    lab.assert_refused(&format!("ip -f mpls route add 100 {weights}"), &answers("File exists"));
    let unfit = [
        ("ip nexthop replace id 2 blackhole", "a blackhole nexthop"),
        (
            "ip -6 nexthop replace id 2 encap mpls 203 ttl 9 via fd01::2 dev p1",
            "a nexthop with a TTL of its own",
        ),
        (
            "ip -6 nexthop replace id 2 encap seg6 mode encap segs fc00:a::1 via fd01::2 dev p1",
            "a nexthop with an encapsulation but MPLS",
        ),
    ];
    for (line, what) in unfit {
        // In Linux a group's member cannot become a blackhole either, which is said first.
        if !line.ends_with("blackhole") {
            lab.assert_refused(line, &format!("Error: MPLS routes can not use {what}."));
        }
        let alone = line.replace("id 2", "id 4");
        lab.configure(&[&alone]);
        lab.assert_refused(&format!("{add} nhid 4"), &format!("Error: MPLS routes can not use {what}."));
    }
    assert_shares(&mut lab, &[(203, 500), (0, 500)], "nothing was changed by what was refused");
    lab.configure(&["ip nexthop del id 10"]);
    assert_eq!(show(&lab), "");
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
