//! The longest segment lists that the real `ip` can ask for, inserted in buffers as the router has them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::Ipv6Addr;

use underpass_daemon::offline::Offline;
use underpass_engine::buffer::{HEADROOM, Pool, PortId};
use underpass_engine::worker::{Burst, Worker};

const CONFIG: [&str; 6] = [
    "ip link set p0 up",
    "ip link set p1 up",
    "ip addr add fd00::1/64 dev p0 nodad",
    "ip addr add fd01::1/64 dev p1 nodad",
    "ip neigh add fd01::2 lladdr 02:00:00:00:02:01 dev p1 nud permanent",
    "ip -6 route add fc00:2::/32 via fd01::2 dev p1",
];

/// What one more segment than it can send gets from `ip` 6.1, whose messages end at 1,024 bytes.
const TOO_LONG: &str = "addraw_l ERROR: message exceeded bound of 1024";

/// iproute2 6.1 on Linux 6.12: 59 segments are the most that `ip route add 2001:db8::/32 encap seg6 mode M segs …`
/// can ask for, 58 with `mode inline`, which adds one.
#[test]
fn the_longest_lists_of_ip() {
    for (mode, most) in
        [("encap", 59), ("encap.red", 59), ("l2encap", 59), ("l2encap.red", 59), ("inline", 58)]
    {
        let ports =
            ["p0,mac=02:00:00:00:00:01", "p1,mac=02:00:00:00:00:02"].map(|port| port.parse().unwrap());
        let (router, tables, mut readers) = Offline::new(&ports, 1).unwrap();
        for line in CONFIG {
            assert!(router.run_line(line).unwrap().status.success(), "{line}");
        }
        let mut worker: Worker = Worker::new(tables, readers.remove(0), Pool::new(8));
        // Where the comparable router of the field goes wrong, and the longest.
        for count in [1, 2, 5, 6, 7, 12, 13, 14, 20, 21, 22, 31, 32, most] {
            let list = (1..=count).map(|n| format!("fc00:2::{n:x}")).collect::<Vec<_>>().join(",");
            let line = format!("ip -6 route replace 2001:db8::/32 encap seg6 mode {mode} segs {list} dev p1");
            let output = router.run_line(&line).unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{mode} {count}: {output:?}");
            let mut packet = worker.pool().take().unwrap();
            packet.set(HEADROOM, &frame()).unwrap();
            let last_byte = packet.bytes().as_ptr_range().end;
            let mut burst = Burst::new();
            burst.push(packet);
            worker.process(PortId(0), &mut burst, 0, None);
            let packet = worker.sent(PortId(1)).next().unwrap();
            assert_eq!(packet.bytes().as_ptr_range().end, last_byte, "{mode} of {count} segments: moved");
            let (listed, rest) = match mode {
                "encap" => (count, 40 + 40),
                "encap.red" => (count - 1, 40 + 40),
                "l2encap" => (count, 40 + 54),
                "l2encap.red" => (count - 1, 40 + 54),
                _ => (count + 1, 40),
            };
            let srh = if listed == 0 { 0 } else { 8 + 16 * listed };
            assert_eq!(packet.bytes().len(), 14 + rest + srh, "{mode} of {count} segments");
            let first: Ipv6Addr = "fc00:2::1".parse().unwrap();
            assert_eq!(packet.bytes()[38..54], first.octets(), "{mode} of {count} segments");
            worker.pool().give(packet);
        }
        let list = (1..=most + 1).map(|n| format!("fc00:2::{n:x}")).collect::<Vec<_>>().join(",");
        let line = format!("ip -6 route replace 2001:db8::/32 encap seg6 mode {mode} segs {list} dev p1");
        let said = router.run_line(&line).unwrap().stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with(TOO_LONG), "{mode} takes more now: raise `most`: {said}");
    }
}

/// An IPv6 packet without anything in it, for 2001:db8::1.
fn frame() -> Vec<u8> {
    let addresses = ["fd00::2", "2001:db8::1"].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
    let link_layer = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1, 0x86, 0xdd];
    [&link_layer[..], &[0x60, 0, 0, 0, 0, 0, 59, 64], &addresses[0], &addresses[1]].concat()
}
