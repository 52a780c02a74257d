//! Packets through tunnels that the real `ip` has configured, in an offline router: what the packet path does follows
//! what is configured, changed and deleted while packets come.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::worker::{Burst, Worker};

const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];

/// Two ports with addresses and neighbours; what comes in by the first has a way out by the second.
const UNDERLAY: &[&str] = &[
    "ip link set p0 up",
    "ip link set p1 up",
    "ip addr add 10.1.0.1/24 dev p0",
    "ip addr add 10.2.0.1/24 dev p1",
    "ip addr add fd01::1/64 dev p0",
    "ip addr add fd02::1/64 dev p1",
    "ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:aa dev p0",
    "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:bb dev p1",
    "ip neigh add 10.2.0.3 lladdr 02:00:00:00:00:cc dev p1",
    "ip neigh add fd01::2 lladdr 02:00:00:00:00:aa dev p0",
    "ip neigh add fd02::2 lladdr 02:00:00:00:00:bb dev p1",
];

struct Lab {
    router: Offline,
    worker: Worker,
    seconds: u64,
}

impl Lab {
    fn new(lines: &[&str]) -> Self {
        let ports =
            ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"].map(|port| port.parse().unwrap());
        let (router, tables, mut readers) = Offline::new(&ports, 1).unwrap();
        let worker = Worker::new(tables, readers.remove(0), Pool::with_slot_size(64, HEADROOM + 4096));
        let lab = Self { router, worker, seconds: 0 };
        UNDERLAY.iter().chain(lines).for_each(|line| lab.run(line));
        lab
    }

    fn run(&self, line: &str) {
        let output = self.router.run_line(line).unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn shown(&self, line: &str) -> String {
        String::from_utf8(self.router.run_line(line).unwrap().stdout).unwrap()
    }

    /// What each port sends when this frame comes in.
    fn send(&mut self, port: u16, frame: &[u8]) -> [Vec<Vec<u8>>; 2] {
        let mut burst = Burst::new();
        let mut packet = self.worker.pool().take().unwrap();
        packet.set(HEADROOM, frame).unwrap();
        burst.push(packet);
        self.seconds += 1;
        self.worker.process(PortId(port), &mut burst, self.seconds * 1_000_000_000, None);
        [PortId(0), PortId(1)].map(|port| {
            let sent: Vec<_> = self.worker.sent(port).collect();
            let frames = sent.iter().map(|packet| packet.bytes().to_vec()).collect();
            sent.into_iter().for_each(|packet| self.worker.pool().give(packet));
            frames
        })
    }

    /// The one frame that leaves by p1 when this packet comes in by p0.
    fn through(&mut self, packet: &[u8]) -> Vec<u8> {
        let [back, mut on] = self.send(0, &frame(0, packet));
        assert_eq!((back.len(), on.len()), (0, 1), "sent back {back:02x?}, on {on:02x?}");
        on.remove(0)
    }

    /// The one packet that leaves by p0 when this one comes in by p1.
    fn back(&mut self, packet: &[u8]) -> Vec<u8> {
        let [mut back, on] = self.send(1, &frame(1, packet));
        assert_eq!((back.len(), on.len()), (1, 0), "sent back {back:02x?}, on {on:02x?}");
        back.remove(0)[14..].to_vec()
    }

    /// Packets received and sent by a link, as `ip -s -j link show` has them.
    fn counts(&self, link: &str) -> (u64, u64) {
        let json: serde_json::Value =
            serde_json::from_str(&self.shown(&format!("ip -s -j link show {link}"))).unwrap();
        let stats = &json[0]["stats64"];
        let packets = |direction: &str| stats[direction]["packets"].as_u64().unwrap();
        (packets("rx"), packets("tx"))
    }
}

/// A frame to a port of the router.
fn frame(port: usize, packet: &[u8]) -> Vec<u8> {
    let kind: u16 = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    [&OWN[port][..], &PEER, &kind.to_be_bytes(), packet].concat()
}

fn sum(bytes: &[u8]) -> u16 {
    let total: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (total & 0xffff) + (total >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn ipv4(from: &str, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [from, to] = [from, to].map(|address| address.parse::<Ipv4Addr>().unwrap().octets());
    let mut header = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    header[12..16].copy_from_slice(&from);
    header[16..20].copy_from_slice(&to);
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&header[..], payload].concat()
}

fn ipv6(from: &str, to: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let [from, to] = [from, to].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((payload.len() as u16).to_be_bytes());
    header.extend([next, 64]);
    [&header[..], &from, &to, payload].concat()
}

/// UDP without a checksum.
fn udp(to: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x80, 0];
    header.extend(to.to_be_bytes());
    header.extend((8 + payload.len() as u16).to_be_bytes());
    [&header[..], &[0, 0], payload].concat()
}

fn inner() -> Vec<u8> {
    ipv4("10.1.0.2", "10.9.0.5", 17, &udp(7, b"to the other end"))
}

fn inner6() -> Vec<u8> {
    ipv6("fd01::2", "fd09::5", 59, b"to the other end")
}

/// Source and destination of an outer IPv4 header, its protocol, and what is behind it.
fn outer4(frame: &[u8]) -> (String, String, u8, &[u8]) {
    assert_eq!(frame[12..15], [0x08, 0x00, 0x45], "{frame:02x?}");
    let address = |at: usize| Ipv4Addr::from(*frame[at..].first_chunk::<4>().unwrap()).to_string();
    (address(26), address(30), frame[23], &frame[34..])
}

/// The source document's tunnel and port.
#[test]
fn ipip_over_fou() {
    let mut lab = Lab::new(&[
        "ip fou add port 5555 ipproto 4",
        "ip link add name tun1 type ipip remote 10.2.0.2 local 10.2.0.1 ttl 225 encap fou encap-sport auto \
         encap-dport 5555",
        "ip link set tun1 up",
        "ip route add 10.9.0.0/24 dev tun1",
    ]);
    let sent = lab.through(&inner());
    let (from, to, protocol, rest) = outer4(&sent);
    assert_eq!((from.as_str(), to.as_str(), protocol, sent[22]), ("10.2.0.1", "10.2.0.2", 17, 225));
    assert_eq!(sent[..12], [PEER, OWN[1]].concat());
    assert_eq!((rest[2..4].to_vec(), rest[6..8].to_vec()), (5555_u16.to_be_bytes().to_vec(), vec![0, 0]));
    assert_eq!((rest[8 + 8], &rest[8 + 12..]), (63, &inner()[12..]));
    // The other way.
    let inside = ipv4("10.9.0.5", "10.1.0.2", 17, &udp(7, b"and back"));
    let back = lab.back(&ipv4("10.2.0.2", "10.2.0.1", 17, &udp(5555, &inside)));
    assert_eq!((back[8], &back[12..]), (63, &inside[12..]));
    assert_eq!(lab.counts("tun1"), (1, 1));
    // Without the port the datagram is the host's.
    lab.run("ip fou del port 5555");
    let [back, _] = lab.send(1, &frame(1, &ipv4("10.2.0.2", "10.2.0.1", 17, &udp(5555, &inside))));
    assert!(back.is_empty());
    assert_eq!(lab.counts("tun1"), (1, 1));
}

/// A port is bound to one protocol, whatever tunnels there are.
#[test]
fn a_port_feeds_the_tunnel_of_its_protocol() {
    let mut lab = Lab::new(&[
        "ip fou add port 5556 ipproto 41",
        "ip fou add port 6080 gue",
        "ip link add s type sit remote 10.2.0.2 local 10.2.0.1",
        "ip link set s up",
    ]);
    let inside = ipv6("fd09::5", "fd01::2", 59, b"asymmetric");
    for (port, payload) in [(5556, inside.clone()), (6080, [&[0, 41, 0, 0][..], &inside].concat())] {
        let back = lab.back(&ipv4("10.2.0.2", "10.2.0.1", 17, &udp(port, &payload)));
        assert_eq!((back[7], &back[8..]), (63, &inside[8..]));
    }
    assert_eq!(lab.counts("s"), (2, 0));
}

/// Up, down, changed, deleted: each packet sees the tunnel as it is then.
#[test]
fn changes_while_packets_come() {
    let mut lab = Lab::new(&[
        "ip link add tun type ipip remote 10.2.0.2 local 10.2.0.1",
        "ip link set tun up",
        "ip addr add 10.9.0.1/24 dev tun",
    ]);
    assert_eq!(outer4(&lab.through(&inner())).1, "10.2.0.2");
    lab.run("ip link change tun type ipip remote 10.2.0.3 local 10.2.0.1 ttl 9");
    let sent = lab.through(&inner());
    assert_eq!((outer4(&sent).1.as_str(), sent[22], sent[5]), ("10.2.0.3", 9, 0xcc));
    lab.run(
        "ip link change tun type ipip remote 10.2.0.3 local 10.2.0.1 encap gue encap-sport 7 encap-dport 6080",
    );
    let sent = lab.through(&inner());
    let (_, _, protocol, rest) = outer4(&sent);
    assert_eq!((protocol, &rest[..4], &rest[8..12]), (17, &[0, 7, 0x17, 0xc0][..], &[0, 4, 0, 0][..]));
    lab.run("ip link set tun down");
    assert!(lab.send(0, &frame(0, &inner()))[1].is_empty());
    lab.run("ip link change tun type ipip encap none");
    lab.run("ip link set tun up");
    assert_eq!(outer4(&lab.through(&inner())).2, 4);
    assert_eq!(lab.counts("tun").1, 4);
    lab.run("ip link del tun");
    assert!(lab.send(0, &frame(0, &inner()))[1].is_empty());
    lab.run("ip link add tun type ipip remote 10.2.0.2 local 10.2.0.1");
    lab.run("ip link set tun up");
    lab.run("ip route add 10.9.0.0/24 dev tun");
    assert_eq!(outer4(&lab.through(&inner())).1, "10.2.0.2");
    assert_eq!(lab.counts("tun"), (0, 1));
}

/// The remote address is reached as the routes say now.
#[test]
fn underlay_routes_change() {
    let mut lab = Lab::new(&[
        "ip route add 192.168.1.0/24 via 10.2.0.2",
        "ip link add tun type gre remote 192.168.1.1 local 10.2.0.1 key 7",
        "ip link set tun up",
        "ip route add 10.9.0.0/24 dev tun",
    ]);
    let sent = lab.through(&inner());
    let (_, to, protocol, rest) = outer4(&sent);
    assert_eq!((to.as_str(), protocol, &rest[..8]), ("192.168.1.1", 47, &[0x20, 0, 8, 0, 0, 0, 0, 7][..]));
    assert_eq!(sent[5], 0xbb);
    lab.run("ip route replace 192.168.1.0/24 via 10.2.0.3");
    assert_eq!(lab.through(&inner())[5], 0xcc);
    lab.run("ip route add 192.168.1.1/32 via 10.2.0.2");
    assert_eq!(lab.through(&inner())[5], 0xbb);
    lab.run("ip route del 192.168.1.1/32");
    lab.run("ip route del 192.168.1.0/24");
    assert!(lab.send(0, &frame(0, &inner()))[1].is_empty());
    lab.run("ip route add default via 10.2.0.2");
    assert_eq!(lab.through(&inner())[5], 0xbb);
}

/// Without a local address the source is the one that the route to the remote address gives; ip6tnl, as in Linux, sends
/// nothing then, and says so.
#[test]
fn sources_are_chosen() {
    let mut lab = Lab::new(&[
        "ip link add tun type ipip remote 10.2.0.2",
        "ip link set tun up",
        "ip route add 10.9.0.0/24 dev tun",
        "ip link add t6 type ip6tnl remote fd02::2 encaplimit none",
        "ip link set t6 up",
        "ip -6 route add fd09::/64 dev t6",
    ]);
    assert_eq!(outer4(&lab.through(&inner())).0, "10.2.0.1");
    let [back, on] = lab.send(0, &frame(0, &inner6()));
    assert_eq!((back.len(), on.len()), (1, 0), "sent back {back:02x?}, on {on:02x?}");
    // ICMPv6 about it: address unreachable.
    assert_eq!((back[0][20], &back[0][54..56]), (58, &[1, 3][..]));
    lab.run("ip link set t6 type ip6tnl local fd02::1 remote fd02::2 encaplimit none");
    let sent = lab.through(&inner6());
    assert_eq!(sent[22..38], "fd02::1".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!((sent[20], &sent[54 + 8..]), (41, &inner6()[8..]));
    lab.run("ip route add 10.2.0.2/32 dev p1 src 10.1.0.1");
    assert_eq!(outer4(&lab.through(&inner())).0, "10.1.0.1");
}

/// `dev`: outer packets leave by that link, though routes lead elsewhere, and those that come in by it are the tunnel's
/// rather than another one's.
/// Outer headers of segments are sent from an address of the route's link, also once that has another one. Other links,
/// which come and go, change nothing.
#[test]
fn sources_of_segments_follow_addresses() {
    let mut lab = Lab::new(&[
        "ip -6 route add fc00::/16 via fd02::2",
        "ip -6 route add fd09::/64 encap seg6 mode encap segs fc00::1 dev p1",
    ]);
    let source = |lab: &mut Lab| {
        let frame = lab.through(&inner6());
        assert_eq!((frame[12..14].to_vec(), frame[20]), (vec![0x86, 0xdd], 43), "{frame:02x?}");
        Ipv6Addr::from(*frame[22..].first_chunk::<16>().unwrap()).to_string()
    };
    assert_eq!(source(&mut lab), "fd02::1");
    for (line, wanted) in [
        ("ip addr add fd0a::1/64 dev p0", "fd02::1"),
        ("ip addr add fd0b::1/64 dev p1", "fd0b::1"),
        ("ip link add t1 type gre local 10.2.0.1 remote 10.2.0.2", "fd0b::1"),
        ("ip link set t1 up", "fd0b::1"),
        ("ip addr add fd0c::1/64 dev t1", "fd0b::1"),
        ("ip addr del fd0b::1/64 dev p1", "fd02::1"),
        ("ip link del t1", "fd02::1"),
        ("ip sr tunsrc set fd0d::1", "fd0d::1"),
        ("ip addr add fd0e::1/64 dev p1", "fd0d::1"),
        ("ip sr tunsrc set ::", "fd0e::1"),
    ] {
        lab.run(line);
        assert_eq!(source(&mut lab), wanted, "{line}");
    }
}

#[test]
fn bound_to_a_link() {
    let mut lab = Lab::new(&[
        "ip route add 10.7.0.0/24 via 10.1.0.2",
        "ip route add 10.7.0.0/24 via 10.2.0.2 metric 9",
        "ip link add tun type ipip remote 10.7.0.1 local 10.2.0.1 dev p1",
        "ip link set tun up",
        "ip route add 10.9.0.0/24 dev tun",
    ]);
    assert_eq!(lab.through(&inner())[5], 0xbb);
    let inside = ipv4("10.9.0.5", "10.1.0.2", 17, &udp(7, b"and back"));
    let outside = ipv4("10.7.0.1", "10.2.0.1", 4, &inside);
    assert_eq!(lab.back(&outside)[12..], inside[12..]);
    // Another such tunnel, bound to the link that a packet comes in by, would go before this one; there is none.
    assert_eq!(lab.send(0, &frame(0, &outside))[0][0][14 + 12..], inside[12..]);
    assert_eq!(lab.counts("tun").0, 2);
    lab.run("ip link add other type ipip remote 10.7.0.1 local 10.2.0.1 dev p0");
    lab.run("ip link set other up");
    lab.send(0, &frame(0, &outside));
    lab.back(&outside);
    assert_eq!((lab.counts("tun").0, lab.counts("other").0), (3, 1));
}

/// What comes out of a tunnel in a VRF is looked up there; the outer packet is not.
#[test]
fn in_a_vrf() {
    let mut lab = Lab::new(&[
        "ip link add red type vrf table 10",
        "ip link set red up",
        "ip link set p0 master red",
        "ip neigh replace 10.1.0.2 lladdr 02:00:00:00:00:aa dev p0",
        "ip link add tun type ipip remote 10.2.0.2 local 10.2.0.1",
        "ip link set tun master red",
        "ip link set tun up",
        "ip route add 10.9.0.0/24 dev tun table 10",
    ]);
    assert_eq!(outer4(&lab.through(&inner())).1, "10.2.0.2");
    let inside = ipv4("10.9.0.5", "10.1.0.2", 17, &udp(7, b"and back"));
    assert_eq!(lab.back(&ipv4("10.2.0.2", "10.2.0.1", 4, &inside))[12..], inside[12..]);
}

/// 6to4 and 6rd: the destination has the address of the tunnel's other end.
#[test]
fn ends_inside_addresses() {
    let mut lab = Lab::new(&[
        "ip link add six type sit local 10.2.0.1",
        "ip link set six up",
        "ip -6 route add 2002::/16 dev six",
    ]);
    let packet = ipv6("fd01::2", "2002:a02:2::1", 59, b"6to4");
    assert_eq!(outer4(&lab.through(&packet)).1, "10.2.0.2");
    lab.run("ip link del six");
    lab.run("ip link add six type sit local 10.2.0.1 6rd-prefix 2001:db8::/32 6rd-relay_prefix 10.0.0.0/8");
    lab.run("ip link set six up");
    lab.run("ip -6 route add 2001:db8::/32 dev six");
    let packet = ipv6("fd01::2", "2001:db8:200:300::1", 59, b"6rd");
    assert_eq!(outer4(&lab.through(&packet)).1, "10.2.0.3");
}

/// Frames through gretap: the neighbour behind the tunnel has a MAC address.
#[test]
fn ethernet_inside() {
    let mut lab = Lab::new(&[
        "ip link add tap address 02:00:00:00:00:0a type gretap remote 10.2.0.2 local 10.2.0.1",
        "ip link set tap up",
        "ip addr add 10.8.0.1/24 dev tap",
        "ip neigh add 10.8.0.2 lladdr 02:00:00:00:00:dd dev tap",
        "ip route add 10.9.0.0/24 via 10.8.0.2",
    ]);
    for packet in [inner(), ipv4("10.1.0.2", "10.8.0.2", 17, &udp(7, b"on the link"))] {
        let sent = lab.through(&packet);
        let (_, _, protocol, rest) = outer4(&sent);
        assert_eq!((protocol, &rest[..4]), (47, &[0, 0, 0x65, 0x58][..]));
        assert_eq!(rest[4..18], [2, 0, 0, 0, 0, 0xdd, 2, 0, 0, 0, 0, 0x0a, 8, 0]);
        assert_eq!(rest[18 + 12..], packet[12..]);
    }
    let inside = ipv4("10.9.0.5", "10.1.0.2", 17, &udp(7, b"and back"));
    let ethernet = [&[2, 0, 0, 0, 0, 0x0a, 2, 0, 0, 0, 0, 0xdd, 8, 0][..], &inside].concat();
    let gre = [&[0, 0, 0x65, 0x58][..], &ethernet].concat();
    assert_eq!(lab.back(&ipv4("10.2.0.2", "10.2.0.1", 47, &gre))[12..], inside[12..]);
    assert_eq!(lab.counts("tap"), (1, 2));
}

/// A tunnel that is reached through another one.
#[test]
fn a_tunnel_inside_a_tunnel() {
    let mut lab = Lab::new(&[
        "ip link add outer type ipip remote 10.2.0.2 local 10.2.0.1",
        "ip link set outer up",
        "ip addr add 10.70.0.1/30 dev outer",
        "ip link add tun type gre remote 10.70.0.2 local 10.70.0.1",
        "ip link set tun up",
        "ip route add 10.9.0.0/24 dev tun",
    ]);
    let sent = lab.through(&inner());
    let (_, to, protocol, rest) = outer4(&sent);
    assert_eq!((to.as_str(), protocol, rest[9], &rest[16..20]), ("10.2.0.2", 4, 47, &[10, 70, 0, 2][..]));
    assert_eq!(rest[24 + 12..], inner()[12..]);
    assert_eq!((lab.counts("outer"), lab.counts("tun")), ((0, 1), (0, 1)));
}

/// `external`: the parameters are those of the route.
#[test]
fn parameters_of_routes() {
    let mut lab = Lab::new(&[
        "ip link add any4 type gre external",
        "ip link set any4 up",
        "ip route add 10.9.0.0/24 encap ip id 7 dst 10.2.0.2 src 10.2.0.1 ttl 9 key dev any4",
        "ip link add any6 type ip6tnl external",
        "ip link set any6 up",
        "ip -6 route add fd09::/64 encap ip6 dst fd02::2 hoplimit 5 dev any6",
    ]);
    let sent = lab.through(&inner());
    let (from, to, protocol, rest) = outer4(&sent);
    assert_eq!((from.as_str(), to.as_str(), protocol, sent[22]), ("10.2.0.1", "10.2.0.2", 47, 9));
    assert_eq!(rest[..8], [0x20, 0, 8, 0, 0, 0, 0, 7]);
    lab.run("ip route replace 10.9.0.0/24 encap ip id 8 dst 10.2.0.3 dev any4");
    let sent = lab.through(&inner());
    assert_eq!((outer4(&sent).1.as_str(), sent[22], &sent[34..38]), ("10.2.0.3", 63, &[0, 0, 8, 0][..]));
    let sent = lab.through(&inner6());
    assert_eq!(
        (sent[20], sent[21], &sent[38..54]),
        (41, 5, &"fd02::2".parse::<Ipv6Addr>().unwrap().octets()[..])
    );
    assert_eq!((lab.counts("any4"), lab.counts("any6")), ((0, 2), (0, 1)));
    // A route without parameters.
    lab.run("ip route replace 10.9.0.0/24 dev any4");
    assert!(lab.send(0, &frame(0, &inner()))[1].is_empty());
    // Whatever comes in and is no other tunnel's.
    let inside = ipv4("10.9.0.5", "10.1.0.2", 17, &udp(7, b"and back"));
    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, 7][..], &inside].concat();
    assert_eq!(lab.back(&ipv4("10.2.0.77", "10.2.0.1", 47, &gre))[12..], inside[12..]);
}

/// A device without a remote address: the gateway is the other end.
#[test]
fn gateways_are_ends() {
    let mut lab = Lab::new(&[
        "ip link add many type ipip local 10.2.0.1",
        "ip link set many up",
        "ip route add 10.9.0.0/24 via 10.2.0.2 dev many onlink",
        "ip link add six type sit local 10.2.0.1",
        "ip link set six up",
        "ip -6 route add fd09::/64 via ::10.2.0.3 dev six",
    ]);
    assert_eq!(outer4(&lab.through(&inner())).1, "10.2.0.2");
    assert_eq!(outer4(&lab.through(&inner6())).1, "10.2.0.3");
    lab.run("ip link change many type ipip local 10.1.0.1 ttl 7");
    let sent = lab.through(&inner());
    assert_eq!((outer4(&sent).0.as_str(), sent[22]), ("10.1.0.1", 7));
}

/// `ip tunnel` and `ip -6 tunnel` speak by ioctls.
#[test]
fn by_ioctls() {
    let mut lab = Lab::new(&[
        "ip tunnel add old mode ipip remote 10.2.0.2 local 10.2.0.1 ttl 7 dev p1",
        "ip link set old up",
        "ip route add 10.9.0.0/24 dev old",
    ]);
    assert_eq!((outer4(&lab.through(&inner())).1.as_str(), lab.through(&inner())[22]), ("10.2.0.2", 7));
    assert_eq!(
        lab.shown("ip tunnel show old").trim(),
        "old: ip/ip remote 10.2.0.2 local 10.2.0.1 dev p1 ttl 7"
    );
    lab.run("ip tunnel change old remote 10.2.0.3");
    assert_eq!(outer4(&lab.through(&inner())).1, "10.2.0.3");
    let refused = |line: &str, text: &str| {
        let output = lab.router.run_line(line).unwrap();
        assert!(!output.status.success(), "{line}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), text, "{line}");
    };
    refused(
        "ip tunnel add new mode ipip remote 10.2.0.3 local 10.2.0.1 dev p1",
        "add tunnel \"tunl0\" failed: File exists",
    );
    refused("ip tunnel del new", "delete tunnel \"new\" failed: No such device");
    refused("ip tunnel change p0 remote 10.2.0.3", "get tunnel \"p0\" failed: Operation not supported");
    lab.run("ip tunnel add g mode gre remote 10.2.0.2 local 10.2.0.1 key 7 csum");
    let shown = lab.shown("ip tunnel show g");
    assert_eq!(
        shown.lines().next().unwrap().trim(),
        "g: gre/ip remote 10.2.0.2 local 10.2.0.1 ttl inherit key 7"
    );
    lab.run("ip tunnel add s mode sit local 10.2.0.1");
    lab.run("ip tunnel 6rd dev s 6rd-prefix 2001:db8::/32");
    assert_eq!(
        lab.shown("ip tunnel show s").trim(),
        "s: ipv6/ip remote any local 10.2.0.1 ttl inherit 6rd-prefix 2001:db8::/32"
    );
    lab.run("ip tunnel 6rd dev s 6rd-reset");
    assert!(lab.shown("ip tunnel show s").contains("6rd-prefix 2002::/16"));
    lab.run("ip -6 tunnel add six mode ip6ip6 remote fd02::2 local fd02::1 encaplimit none hoplimit 3");
    lab.run("ip link set six up");
    lab.run("ip -6 route add fd09::/64 dev six");
    let sent = lab.through(&inner6());
    assert_eq!((sent[20], sent[21]), (41, 3));
    assert_eq!(
        lab.shown("ip -6 tunnel show six").trim(),
        "six: ipv6/ipv6 remote fd02::2 local fd02::1 encaplimit none hoplimit 3 tclass 0x00 flowlabel 0x00000 \
         (flowinfo 0x00000000)"
    );
    lab.run("ip -6 tunnel add g6 mode ip6gre remote fd02::2 local fd02::1 key 5");
    assert!(lab.shown("ip -6 tunnel show g6").contains("key 5"));
    for name in ["old", "g", "s"] {
        lab.run(&format!("ip tunnel del {name}"));
    }
    for name in ["six", "g6"] {
        lab.run(&format!("ip -6 tunnel del {name}"));
    }
    // The fallback devices stay.
    let left = lab.shown("ip tunnel show") + &lab.shown("ip -6 tunnel show");
    let names: Vec<_> = left.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names, ["tunl0", "gre0", "sit0", "ip6tnl0", "ip6gre0"]);
}
