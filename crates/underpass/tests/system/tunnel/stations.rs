//! Networks of many stations, and loops of them.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use underpass_daemon::client::Client;
use underpass_daemon::launch;
use underpass_netlink::reply::{Address, write_message};

use super::super::guest;
use super::super::mpls::{UNDERPASS, Which};
use super::super::mtu::transfer;
use super::super::net::{ping, program, settle, turn};
use super::{ENDS, Pair};

/// A bridge of the kernel's at each router, of which the customer's port is one.
fn bridged() -> Pair {
    let mut pair = Pair::new(&[], UNDERPASS);
    for (n, host) in (1..).zip(&pair.hosts) {
        host.run(&format!("ip link set eth0 mtu 1400\nip addr add 10.70.0.{n}/24 dev eth0")).unwrap();
    }
    pair.both(
        "ip link add br0 address 02:00:00:00:b0:0ME type bridge
         ip link set br0 up
         ip addr flush dev cust
         ip link set cust master br0",
    );
    pair
}

/// Stations that are said to be behind the other end, and how many of them at once.
const STATIONS: u32 = 1_000_000;
const TOGETHER: usize = 1000;

/// Requests for stations of a device, as `bridge fdb add MAC dev DEVICE dst 10.0.0.2 static` makes one, the last with an
/// acknowledgement.
fn stations(device: u32, numbers: Range<u32>) -> Vec<u8> {
    const NTF_SELF: u8 = 2;
    let mut datagram = Vec::new();
    for n in numbers.clone() {
        let ack = if n + 1 == numbers.end { libc::NLM_F_ACK } else { 0 };
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_EXCL | ack) as u16;
        write_message(&mut datagram, libc::RTM_NEWNEIGH, flags, Address::default(), |message| {
            let state = libc::NUD_NOARP | libc::NUD_REACHABLE;
            message.fixed(&[libc::AF_BRIDGE as u8, 0, 0, 0]);
            message.fixed(&device.to_ne_bytes());
            message.fixed(&[&state.to_ne_bytes()[..], &[NTF_SELF, 0]].concat());
            message.attribute(libc::NDA_LLADDR, &[&[2, 0xbb][..], &n.to_be_bytes()].concat());
            message.attribute(libc::NDA_DST, &[10, 0, 0, 2]);
        })
        .unwrap();
    }
    datagram
}

/// A million of them are added while packets flow, of which none is lost; shown; and gone with the device.
#[test]
fn a_million_stations() {
    const NAME: &str = "a_million_stations";
    let Some(_turn) = turn(NAME) else { return };
    let mut pair = bridged();
    pair.both(&format!(
        "ip link add tun1 type vxlan id 100 dstport 4789 dev core {ENDS}
         ip link set tun1 master br0
         ip link set tun1 up"
    ));
    let address = "10.70.0.2";
    pair.check(NAME, settle(&pair.hosts[0], address, Duration::from_secs(10)));
    let shown = pair.routers[0].run("ip -o link show tun1");
    let device: u32 = shown.split(':').next().unwrap().parse().unwrap();
    let socket = pair.routers[0].namespace().enter(launch::namespace_socket).unwrap().unwrap();
    let hosts = &pair.hosts;
    let pinged = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let start = Instant::now();
            let client = Client::new(&socket).unwrap();
            for first in (0..STATIONS).step_by(TOGETHER) {
                client.request(&stations(device, first..first + TOGETHER as u32)).unwrap();
            }
            println!("{STATIONS} stations in {:.1?}", start.elapsed());
        });
        let mut rounds = 0;
        while !adding.is_finished() {
            ping(&hosts[0], address, 10).unwrap();
            rounds += 1;
        }
        adding.join().unwrap();
        rounds
    });
    assert!(pinged > 0);
    let shown = pair.routers[0].run("bridge fdb show dev tun1 | grep -c '^02:bb:'");
    assert_eq!(shown.trim_end().parse(), Ok(STATIONS));
    let one = pair.routers[0].run("bridge fdb get 02:bb:00:0f:42:3f dev tun1 self");
    assert_eq!(one.trim_end(), "02:bb:00:0f:42:3f dev tun1 dst 10.0.0.2 self static");
    pair.check(NAME, ping(&pair.hosts[0], address, 10));
    pair.both("ip link del tun1");
    pair.stop();
}

/// Devices that know no other end find each other by a group, above a port and above a VLAN device of the router's: what nobody
/// knows goes there, and what has been learned to its end alone. The kernel is in the group, too, so that switches hear of it.
#[test]
fn stations_behind_a_group() {
    const NAME: &str = "stations_behind_a_group";
    let Some(_turn) = turn(NAME) else { return };
    let linux = guest::kernel(NAME);
    let others = linux.as_deref().map(Which::Linux).into_iter().chain([UNDERPASS]);
    for other in others {
        let mut pair = Pair::new(&[], other);
        pair.both(
            "ip link add link core name core.7 type vlan id 7
             ip link set core.7 up
             ip addr add 10.60.0.ME/24 dev core.7",
        );
        for (group, lower) in [("239.1.2.3", "core"), ("ff05::1:203", "core"), ("239.1.2.4", "core.7")] {
            let what = format!("{group} by {lower} with {other:?}");
            pair.both(&format!(
                "ip link add tun1 address 02:00:00:00:70:0ME type vxlan id 100 group {group} dev {lower} dstport 4789 \
                    udp6zerocsumrx
                 ip link set tun1 mtu 1300 up
                 ip addr add 10.9.0.ME/24 dev tun1
                 ip route add 10.YOU.0.0/24 via 10.9.0.YOU"
            ));
            for (n, host) in pair.hosts.iter().enumerate() {
                pair.check(&what, settle(host, &format!("10.{}.0.2", 2 - n), Duration::from_secs(10)));
            }
            pair.check(&what, transfer(&pair.hosts[0], &pair.hosts[1], "10.2.0.2"));
            let known = pair.routers[0].run("bridge fdb show dev tun1");
            assert!(
                known.contains(&format!("00:00:00:00:00:00 dst {group} via {lower} self permanent")),
                "{known}"
            );
            assert!(known.lines().any(|line| line.starts_with("02:00:00:00:70:02 dst ")), "{known}");
            let shown = pair.routers[0].run(&format!("ip maddr show dev {lower}"));
            assert!(shown.contains(group), "{what}: {shown}");
            pair.both("ip link del tun1");
            let shown = pair.routers[0].run(&format!("ip maddr show dev {lower}"));
            assert!(!shown.contains(group), "{what}: {shown}");
        }
        pair.stop();
    }
}

/// Two networks between the same two bridges are a loop, in which what is for all goes round for ever: a limit where it comes out
/// of them, as a switch's storm control has one, cuts it.
#[test]
fn a_loop_is_cut_by_a_limit() {
    /// Frames a second for groups, and at once.
    const RATE: u64 = 200;
    const BURST: u64 = 20;
    const NAME: &str = "a_loop_is_cut_by_a_limit";
    let Some(_turn) = turn(NAME) else { return };
    let mut pair = bridged();
    for (device, id) in [("tun1", 100), ("tun2", 101)] {
        pair.both(&format!(
            "ip link add {device} type vxlan id {id} dstport 4789 dev core {ENDS}
             tc qdisc add dev {device} clsact
             tc filter add dev {device} ingress protocol all flower \
                dst_mac 01:00:00:00:00:00/01:00:00:00:00:00 \
                action police pkts_rate {RATE} pkts_burst {BURST} conform-exceed drop/pipe
             ip link set {device} master br0
             ip link set {device} up"
        ));
    }
    // Nobody has this address: its neighbours are asked for, all of them.
    let _ = ping(&pair.hosts[0], "10.70.0.99", 3);
    let sent = |pair: &mut Pair| {
        let shown = pair.routers[0].run("ip -s link show dev tun1");
        let (_, sent) = shown.split_once("TX:").unwrap();
        sent.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let (start, before) = (Instant::now(), sent(&mut pair));
    thread::sleep(Duration::from_secs(2));
    let (after, took) = (sent(&mut pair), start.elapsed());
    // What one device sends has come out of the other, or is the host's own; and what the limit has dropped once goes round no more.
    let most = (took.as_secs_f64() * RATE as f64) as u64 + BURST + 50;
    let frames = after - before;
    assert!(frames <= most, "{frames} frames in {took:?}, {most} at the most");
    let shown = ["tun1", "tun2"]
        .map(|device| pair.routers[0].run(&format!("tc -s filter show dev {device} ingress")))
        .concat();
    let dropped =
        shown.split("(dropped ").skip(1).filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(dropped.sum::<u64>() > 0, "{shown}");
    let named = pair.routers[0].run(&format!("{} stats", program().display()));
    assert!(named.contains("police"), "{named}");
    // Without the loop all is well again.
    pair.both("ip link del tun2");
    pair.check(NAME, settle(&pair.hosts[0], "10.70.0.2", Duration::from_secs(10)));
    pair.stop();
}
