//! What SRv6 policies count: routes with the same segments together, on the fast path and on the slow one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::Ipv6Addr;

use underpass_control::{PolicyCount, policy_counts};
use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::counters::Count;
use underpass_engine::worker::{Burst, Worker};

const CONFIG: [&str; 8] = [
    "ip link set p0 up",
    "ip link set p1 up",
    "ip addr add fd00::1/64 dev p0 nodad",
    "ip addr add fd01::1/64 dev p1 nodad",
    "ip neigh add fd01::2 lladdr 02:00:00:00:02:01 dev p1 nud permanent",
    "ip -6 route add fc00:a::/32 via fd01::2 dev p1",
    "ip -6 route add 2001:db8:1::/48 encap seg6 mode encap segs fc00:a::1,fc00:a::2 dev p1",
    "ip -6 route add 2001:db8:2::/48 encap seg6 mode encap segs fc00:a::1,fc00:a::2 dev p1",
];

const TWO_SEGMENTS: &str = "seg6 mode encap segs fc00:a::1,fc00:a::2";

struct Lab {
    router: Offline,
    worker: Worker,
}

impl Lab {
    fn new() -> Self {
        let ports =
            ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"].map(|port| port.parse().unwrap());
        let (router, tables, mut readers) = Offline::new(&ports, 1).unwrap();
        let lab = Self { worker: Worker::new(tables, readers.remove(0), Pool::new(256)), router };
        CONFIG.iter().for_each(|line| lab.run(line));
        lab
    }

    fn run(&self, line: &str) {
        let output = self.router.run_line(line).unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Brings packets of 48 bytes, or longer by `more`, to these destinations in one burst. How many left.
    fn send(&mut self, destinations: &[&str], hop_limit: u8, more: u16) -> usize {
        let mut burst = Burst::new();
        for destination in destinations {
            let [high, low] = (8 + more).to_be_bytes();
            let fixed = [0x60, 0, 0, 0, high, low, 17, hop_limit];
            let [source, destination] =
                ["fd00::2", destination].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
            let udp = [4, 0, 0, 9, high, low, 0, 1];
            let link_layer = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1, 0x86, 0xdd];
            let mut frame = [&link_layer[..], &fixed, &source, &destination, &udp].concat();
            frame.resize(frame.len() + usize::from(more), 0);
            let mut packet = self.worker.pool().take().unwrap();
            packet.set(HEADROOM, &frame).unwrap();
            burst.push(packet);
        }
        self.worker.process(PortId(0), &mut burst, 0, None);
        let sent: Vec<_> = self.worker.sent(PortId(1)).collect();
        let count = sent.len();
        sent.into_iter().for_each(|packet| self.worker.pool().give(packet));
        count
    }

    fn counts(&self) -> Vec<PolicyCount> {
        policy_counts(&self.router.router())
    }

    fn count(&self, encap: &str) -> [u64; 3] {
        let found = self.counts().into_iter().find(|policy| policy.encap == encap).unwrap();
        let Count { packets, bytes, errors } = found.count;
        [packets, bytes, errors]
    }
}

#[test]
fn routes_with_the_same_segments_count_together() {
    let mut lab = Lab::new();
    assert_eq!(lab.counts().len(), 1);
    let both = ["2001:db8:1::1", "2001:db8:2::1", "2001:db8:1::2", "fc00:a::7"];
    assert_eq!(lab.send(&both, 64, 0), 4);
    assert_eq!(lab.count(TWO_SEGMENTS), [3, 3 * 48, 0]);
    // One whose hop limit has run out and one that is too long with the headers are errors.
    assert_eq!(lab.send(&both[..1], 1, 0), 0);
    assert_eq!(lab.send(&both[..1], 64, 1452), 0);
    assert_eq!(lab.count(TWO_SEGMENTS), [3, 3 * 48, 2]);
}

#[test]
fn counts_stay_as_long_as_a_route_has_the_segments() {
    let mut lab = Lab::new();
    lab.run("ip -6 route add 2001:db8:3::/48 encap seg6 mode inline segs fc00:a::1,fc00:a::2 dev p1");
    assert_eq!(lab.send(&["2001:db8:3::1", "2001:db8:3::2", "2001:db8:1::1"], 64, 0), 3);
    let inline = "seg6 mode inline segs fc00:a::1,fc00:a::2";
    assert_eq!([lab.count(inline), lab.count(TWO_SEGMENTS)], [[2, 96, 0], [1, 48, 0]]);
    // Where the first segment is may change, and so may one of the routes.
    lab.run("ip -6 route replace fc00:a::/32 via fd01::2 dev p1 metric 7");
    lab.run("ip -6 route del 2001:db8:1::/48");
    assert_eq!(lab.send(&["2001:db8:2::1"], 64, 0), 1);
    assert_eq!(lab.count(TWO_SEGMENTS), [2, 96, 0]);
    lab.run("ip -6 route del 2001:db8:2::/48");
    assert_eq!(lab.counts().len(), 1);
    lab.run("ip -6 route add 2001:db8:2::/48 encap seg6 mode encap segs fc00:a::1,fc00:a::2 dev p1");
    assert_eq!(lab.count(TWO_SEGMENTS), [0, 0, 0]);
}

#[test]
fn a_policy_of_a_multipath_route_counts_on_each_way() {
    let mut lab = Lab::new();
    lab.run(
        "ip -6 route add 2001:db8:4::/48 nexthop encap seg6 mode encap segs fc00:a::1 via fd01::2 dev p1 \
         nexthop encap seg6 mode encap segs fc00:a::2 via fd01::2 dev p1",
    );
    let destinations: Vec<String> = (1..200).map(|n| format!("2001:db8:4::{n:x}")).collect();
    let destinations: Vec<&str> = destinations.iter().map(String::as_str).collect();
    assert_eq!(destinations.chunks(50).map(|some| lab.send(some, 64, 0)).sum::<usize>(), 199);
    let ways =
        ["fc00:a::1", "fc00:a::2"].map(|segment| lab.count(&format!("seg6 mode encap segs {segment}"))[0]);
    assert!(ways.iter().sum::<u64>() == 199 && ways.iter().all(|count| *count > 20), "{ways:?}");
}
