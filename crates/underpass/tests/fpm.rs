//! What FRR sends over FPM becomes routes of the router: recorded frames, over TCP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use underpass_daemon::{fpm::Fpm, offline::Offline};
use underpass_netlink::{
    fpm::{Decoder, write_frame},
    messages,
};

const GRACE: Duration = Duration::from_millis(300);
/// No answer.
const SILENCE: [u32; 0] = [];
const OFFLOAD: u32 = 0x4000;
const OFFLOAD_FAILED: u32 = 0x2000_0000;

// FRR installs names for its protocols, which `ip` prints where they are: numbers (`ip -N`) are the same
// everywhere. Protocol 196 is FRR's static, 186 BGP; type 6 is blackhole, 7 unreachable.

/// A router with the links and addresses that the recordings name, and its listener for FRR.
struct Bench {
    offline: Offline,
    fpm: Fpm,
}

impl Bench {
    fn new() -> Self {
        let ports = ["p0", "p1"].map(|name| name.parse().unwrap());
        let (offline, _, _) = Offline::new(&ports, 0).unwrap();
        let fpm = Fpm::listen("127.0.0.1:0".parse().unwrap(), false, GRACE).unwrap();
        let bench = Self { offline, fpm };
        for line in [
            "ip link add vrf-1 type vrf table 100",
            "ip link set vrf-1 up",
            "ip link set p0 up",
            "ip link set p1 up",
            "ip addr add 10.0.0.1/24 dev p0",
            "ip addr add fd00::1/64 dev p0",
            "ip addr add 10.1.0.1/24 dev p1",
            "ip addr add fd01::1/64 dev p1",
        ] {
            bench.ip(line);
        }
        bench
    }

    fn ip(&self, line: &str) -> String {
        let output = self.offline.run_line(line).unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        // `ip` ends its lines with blanks, and puts two between some words.
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Turns the listener until nothing has happened for a while.
    fn settle(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            let mut wait = [PollFd::new(self.fpm.as_fd(), PollFlags::POLLIN)];
            if poll(&mut wait, PollTimeout::from(50u8)).unwrap() == 0 {
                return;
            }
            self.fpm.turn(&mut self.offline.router());
        }
        panic!("it never settles");
    }

    fn connect(&mut self) -> TcpStream {
        let stream = TcpStream::connect(self.fpm.address().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.settle();
        stream
    }

    /// Sends the frames of a recording, those behind `from` and before `to`; the flags of the answers.
    fn send(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> Vec<u32> {
        stream.write_all(bytes).unwrap();
        self.settle();
        answers(stream)
    }
}

/// `rtm_flags` of the routes that came back.
fn answers(stream: &mut TcpStream) -> Vec<u32> {
    let (mut bytes, mut flags) = (Vec::new(), Vec::new());
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        other => drop(other.unwrap()),
    }
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    while let Some(frame) = decoder.frame().unwrap() {
        for message in messages(frame) {
            assert_eq!(message.kind, libc::RTM_NEWROUTE);
            flags.push(u32::from_ne_bytes(message.body()[8..12].try_into().unwrap()));
        }
    }
    assert_eq!(decoder.pending(), 0);
    flags
}

/// The steps of a recording: what was typed or done, and the frames that followed.
fn recording(name: &str) -> Vec<(String, Vec<u8>)> {
    let path = format!("{}/../underpass-netlink/tests/frr/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut steps = vec![("connect".to_owned(), Vec::new())];
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.to_owned(), Vec::new()));
        } else if !line.starts_with('#') {
            let digits =
                (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap());
            steps.last_mut().unwrap().1.extend(digits);
        }
    }
    steps
}

fn until<'a>(steps: &'a [(String, Vec<u8>)], command: &str) -> &'a [(String, Vec<u8>)] {
    let end = steps.iter().position(|(step, _)| step == command).unwrap();
    &steps[..end]
}

/// A message without its frame.
fn netlink(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&[1, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(body);
    let mut frame = Vec::new();
    write_frame(&mut frame, &message).unwrap();
    frame
}

#[test]
fn static_routes() {
    let mut bench = Bench::new();
    let mut zebra = bench.connect();
    let shown = |bench: &Bench, line: &str| bench.ip(line);
    let connected = bench.ip("ip -N route show");
    for (command, frames) in recording("static.txt") {
        let flags = bench.send(&mut zebra, &frames);
        let last = |prefix: &str| shown(&bench, &format!("ip -N route show {prefix}"));
        let last6 = |prefix: &str| shown(&bench, &format!("ip -N -6 route show {prefix}"));
        match &*command {
            "connect" => {
                assert_eq!(flags, SILENCE, "connected routes are the router's own");
                assert_eq!(bench.ip("ip -N route show"), connected);
            }
            "ip route 10.20.0.0/16 10.0.0.2" => {
                assert_eq!(flags, [OFFLOAD]);
                assert_eq!(
                    last("10.20.0.0/16"),
                    "10.20.0.0/16 nhid 14 via 10.0.0.2 dev p0 proto 196 metric 20"
                );
            }
            "ip route 10.20.0.0/16 10.1.0.2" => assert_eq!(
                last("10.20.0.0/16"),
                "10.20.0.0/16 nhid 18 proto 196 metric 20\n\
                 nexthop via 10.0.0.2 dev p0 weight 1\n\
                 nexthop via 10.1.0.2 dev p1 weight 1"
            ),
            "no ip route 10.20.0.0/16 10.0.0.2" => assert_eq!(
                last("10.20.0.0/16"),
                "10.20.0.0/16 nhid 19 via 10.1.0.2 dev p1 proto 196 metric 20"
            ),
            "ip route 10.30.0.0/16 Null0" => {
                assert_eq!(last("10.30.0.0/16"), "6 10.30.0.0/16 proto 196 metric 20");
            }
            "ipv6 route fd20::/32 fd01::2" => assert_eq!(
                last6("fd20::/32"),
                "fd20::/32 nhid 28 proto 196 metric 20 pref medium\n\
                 nexthop via fd00::2 dev p0 weight 1\n\
                 nexthop via fd01::2 dev p1 weight 1"
            ),
            "ipv6 route fd40::/32 reject" => {
                assert!(last6("fd40::/32").starts_with("7 fd40::/32 dev lo proto 196 metric 20"));
            }
            "ip route 10.50.0.0/16 10.1.0.2 table 100" => assert_eq!(
                last("table 100 10.50.0.0/16"),
                "10.50.0.0/16 nhid 19 via 10.1.0.2 dev p1 proto 196 metric 20"
            ),
            "no ip route 10.30.0.0/16 Null0; no ipv6 route fd30::/32 blackhole" => {
                assert_eq!(flags, SILENCE, "nothing is said of withdrawals");
                assert_eq!((last("10.30.0.0/16"), last6("fd30::/32")), (String::new(), String::new()));
            }
            _ => {}
        }
    }
    // The objects of two links of the recording that are not here.
    assert_eq!(bench.fpm.counts().refused, 2);
}

#[test]
fn srv6_with_and_without_objects() {
    for name in ["srv6.txt", "srv6-without-objects.txt"] {
        let mut bench = Bench::new();
        bench.ip("ip link set p1 master vrf-1");
        let mut zebra = bench.connect();
        let steps = recording(name);
        let begin = if name == "srv6.txt" { &steps[..] } else { until(&steps, "no neighbor fd00::2") };
        let flags: Vec<_> = begin.iter().flat_map(|(_, frames)| bench.send(&mut zebra, frames)).collect();
        assert_eq!(flags.iter().map(|flags| flags & !4).collect::<Vec<_>>(), [OFFLOAD; 3], "{name}");
        let sids = bench.ip("ip -N -6 route show proto 186");
        assert_eq!(sids.lines().count(), 2, "{sids}");
        assert!(sids.contains("encap seg6local action End.DT4 vrftable 100 dev vrf-1 metric 20"), "{sids}");
        assert!(sids.contains("encap seg6local action End.DT6 table 100 dev vrf-1 metric 20"), "{sids}");
        let headend = bench.ip("ip -N route show table 100 proto 186");
        assert!(headend.contains("encap seg6 mode encap segs 1 [ fd01:0:2:0:100:: ] via"), "{headend}");
        steps[begin.len()..].iter().for_each(|(_, frames)| drop(bench.send(&mut zebra, frames)));
        if name == "srv6-without-objects.txt" {
            assert_eq!(bench.ip("ip -N -6 route show proto 186"), "");
            assert_eq!(bench.ip("ip -N route show table 100 proto 186"), "");
        }
    }
}

/// SIDs that come before their VRF, as after a restart of the router, are taken once it is there.
#[test]
fn routes_that_lack_a_device_are_tried_again() {
    for name in ["srv6.txt", "srv6-without-objects.txt"] {
        let mut bench = Bench::new();
        bench.ip("ip link del vrf-1");
        let mut zebra = bench.connect();
        let steps = recording(name);
        let begin = if name == "srv6.txt" { &steps[..] } else { until(&steps, "no neighbor fd00::2") };
        let flags: Vec<_> = begin.iter().flat_map(|(_, frames)| bench.send(&mut zebra, frames)).collect();
        assert!(flags.iter().any(|flags| flags & OFFLOAD_FAILED != 0), "{name}: {flags:x?}");
        let sids = bench.ip("ip -N -6 route show proto 186");
        assert!(!sids.contains("vrftable"), "{name}: {sids}");
        bench.ip("ip link add vrf-1 index 4 type vrf table 100");
        bench.ip("ip link set vrf-1 up");
        bench.ip("ip link set p1 master vrf-1");
        let end = Instant::now() + Duration::from_secs(10);
        let mut told = Vec::new();
        while Instant::now() < end && told.len() < 2 {
            bench.settle();
            told.extend(answers(&mut zebra));
        }
        assert!(told.len() >= 2 && told.iter().all(|flags| flags & !4 == OFFLOAD), "{name}: {told:x?}");
        let sids = bench.ip("ip -N -6 route show proto 186");
        for sid in ["End.DT4 vrftable 100 dev vrf-1 metric 20", "End.DT6 table 100 dev vrf-1 metric 20"] {
            assert!(sids.contains(sid), "{name}: {sids}");
        }
    }
}

/// zebra is killed and started: what it sends again stays, what it does not goes after the time of grace.
#[test]
fn resynchronisation() {
    let mut bench = Bench::new();
    let steps = recording("static.txt");
    let mut zebra = bench.connect();
    for (_, frames) in until(&steps, "no ip route 10.30.0.0/16 Null0; no ipv6 route fd30::/32 blackhole") {
        bench.send(&mut zebra, frames);
    }
    let before = bench.ip("ip -N route show proto 196");
    let counts = bench.fpm.counts();
    assert_eq!((counts.routes, counts.stale), (6, 0));
    drop(zebra);
    bench.settle();
    // Without a zebra nothing is swept.
    std::thread::sleep(GRACE * 2);
    bench.settle();
    assert_eq!(bench.ip("ip -N route show proto 196"), before);

    // The same again: nothing changes, and what was ECMP for a moment only is swept.
    let mut zebra = bench.connect();
    assert_eq!(bench.fpm.counts().stale, 6);
    for (_, frames) in until(&steps, "ip route 10.30.0.0/16 Null0") {
        bench.send(&mut zebra, frames);
    }
    assert_eq!(bench.ip("ip -N route show proto 196"), before, "none is lost before its time");
    std::thread::sleep(GRACE);
    bench.settle();
    assert_eq!(bench.ip("ip -N route show proto 196"), "10.20.0.0/16 nhid 19 via 10.1.0.2 dev p1 metric 20",);
    assert_eq!(bench.ip("ip -N -6 route show proto 196"), "");
    let counts = bench.fpm.counts();
    assert_eq!((counts.routes, counts.stale), (1, 0));
    let objects = bench.ip("ip nexthop show");
    assert!(!objects.contains("blackhole") && objects.contains("id 19 via 10.1.0.2"), "{objects}");
}

/// A zebra that was restarted counts its objects anew: an id of before must not lead old routes astray.
#[test]
fn ids_of_another_zebra() {
    let mut bench = Bench::new();
    let mut zebra = bench.connect();
    let object = |id: u8, via: [u8; 4], link: u8| {
        let mut body = vec![2, 0, 11, 0, 0, 0, 0, 0, 8, 0, 1, 0, id, 0, 0, 0, 8, 0, 6, 0];
        body.extend_from_slice(&via);
        body.extend_from_slice(&[8, 0, 5, 0, link, 0, 0, 0]);
        netlink(104, &body)
    };
    let group = |id: u8, members: [u8; 2]| {
        let mut body = vec![0, 0, 11, 0, 0, 0, 0, 0, 8, 0, 1, 0, id, 0, 0, 0, 20, 0, 2, 0];
        members.iter().for_each(|&member| body.extend_from_slice(&[member, 0, 0, 0, 0, 0, 0, 0]));
        netlink(104, &body)
    };
    let route = |third: u8, object: u8| {
        let mut body = vec![2, 24, 0, 0, 254, 196, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 9, third, 0];
        body.extend_from_slice(&[8, 0, 30, 0, object, 0, 0, 0, 8, 0, 6, 0, 20, 0, 0, 0]);
        netlink(libc::RTM_NEWROUTE, &body)
    };
    // A group may come before its members.
    let frames = [
        group(7, [5, 6]),
        object(5, [10, 0, 0, 2], 2),
        object(6, [10, 1, 0, 2], 3),
        route(0, 5),
        route(1, 7),
    ];
    assert_eq!(bench.send(&mut zebra, &frames.concat()), [OFFLOAD; 2]);
    let ecmp = "10.9.1.0/24 nhid 7 proto 196 metric 20\n\
                nexthop via 10.0.0.2 dev p0 weight 1\n\
                nexthop via 10.1.0.2 dev p1 weight 1";
    assert_eq!(bench.ip("ip -N route show 10.9.1.0/24"), ecmp);

    let mut zebra = bench.connect();
    // 5 is another next hop now, 7 no group, 6 what it was.
    let frames = [object(5, [10, 1, 0, 9], 3), object(6, [10, 1, 0, 2], 3), object(7, [10, 0, 0, 8], 2)];
    bench.send(&mut zebra, &frames.concat());
    assert_eq!(
        bench.ip("ip -N route show 10.9.0.0/24"),
        "10.9.0.0/24 nhid 5 via 10.0.0.2 dev p0 proto 196 metric 20"
    );
    assert_eq!(bench.ip("ip -N route show 10.9.1.0/24"), ecmp);
    assert_eq!(bench.send(&mut zebra, &[route(0, 5), route(2, 6)].concat()), [OFFLOAD; 2]);
    assert!(bench.ip("ip -N route show 10.9.0.0/24").contains("via 10.1.0.9 dev p1"));
    // An object that nobody has reported of.
    assert_eq!(bench.send(&mut zebra, &route(3, 77)), [OFFLOAD_FAILED]);
    std::thread::sleep(GRACE);
    bench.settle();
    assert_eq!(bench.ip("ip -N route show 10.9.1.0/24"), "");
    assert_eq!(bench.ip("ip -N route show proto 196").lines().count(), 2);
    let objects = bench.ip("ip nexthop show");
    assert_eq!(objects.lines().count(), 3, "{objects}");
    // zebra's id, whatever it is here.
    bench.send(&mut zebra, &netlink(105, &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 5, 0, 0, 0]));
    assert_eq!(bench.ip("ip -N route show 10.9.0.0/24"), "");
}

/// What is not supported is answered or counted; who does not speak the protocol is cut off; the newest of
/// two connections counts.
#[test]
fn what_cannot_be_done() {
    let mut bench = Bench::new();
    let mut zebra = bench.connect();
    // An LSP: label 100 to 10.0.0.2 by p0.
    let mut lsp = vec![28, 20, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 0, 6, 0x41, 0];
    lsp.extend_from_slice(&[10, 0, 18, 0, 2, 0, 10, 0, 0, 2, 0, 0, 8, 0, 4, 0, 2, 0, 0, 0]);
    assert_eq!(bench.send(&mut zebra, &netlink(libc::RTM_NEWROUTE, &lsp)), [OFFLOAD_FAILED]);
    // A MAC address of a bridge.
    let mac = [7, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(bench.send(&mut zebra, &netlink(libc::RTM_NEWNEIGH, &mac)), SILENCE);
    // Requests that are none of zebra's.
    assert_eq!(
        bench
            .send(&mut zebra, &netlink(libc::RTM_DELLINK, &[0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        SILENCE
    );
    // Routes that are cut short, and withdrawals of what is not there.
    assert_eq!(bench.send(&mut zebra, &netlink(libc::RTM_DELROUTE, &[2, 16])), SILENCE);
    assert_eq!(bench.send(&mut zebra, &netlink(104, &[2, 0, 11])), SILENCE);
    let refused = bench.fpm.counts().refused;
    assert_eq!(refused, 5);
    let absent = [2, 16, 0, 0, 254, 196, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 10, 99, 0, 0];
    assert_eq!(bench.send(&mut zebra, &netlink(libc::RTM_DELROUTE, &absent)), SILENCE);
    assert_eq!(bench.fpm.counts().refused, refused);
    // A withdrawal removes what came over FPM, nothing else.
    bench.ip("ip route add 10.99.0.0/16 via 10.0.0.2 proto static");
    assert_eq!(bench.send(&mut zebra, &netlink(libc::RTM_DELROUTE, &absent)), SILENCE);
    assert_ne!(bench.ip("ip -N route show 10.99.0.0/16"), "");
    assert_ne!(bench.ip("ip link show p0"), "");

    let mut second = bench.connect();
    assert_eq!(bench.fpm.peer(), Some(second.local_addr().unwrap()));
    assert_eq!(zebra.read(&mut [0; 9]).unwrap(), 0, "the first is closed");
    second.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    bench.settle();
    assert!(bench.fpm.peer().is_none());
    drop(second);
    // Half a frame and then nothing does no harm.
    let mut third = bench.connect();
    third.write_all(&netlink(libc::RTM_DELROUTE, &absent)[..9]).unwrap();
    bench.settle();
    assert_eq!(bench.fpm.peer(), Some(third.local_addr().unwrap()));
    drop(third);
    bench.settle();
    assert!(bench.fpm.peer().is_none());
}

/// A zebra that sends and never reads is not read from, and harms nobody.
#[test]
fn who_does_not_read() {
    let mut bench = Bench::new();
    let mut zebra = bench.connect();
    let lsp = [28, 20, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 0, 6, 0x41, 0];
    let frames = netlink(libc::RTM_NEWROUTE, &lsp).repeat(1000);
    let (mut sent, mut stuck) = (0, 0);
    while stuck < 3 {
        assert!(sent < 256 << 20, "it reads for ever");
        let before = sent;
        loop {
            match zebra.write(&frames[sent % frames.len()..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        stuck = if sent == before { stuck + 1 } else { 0 };
        bench.settle();
    }
    assert_ne!(bench.ip("ip link show p0"), "");
    // Once it reads, all goes on.
    let before = bench.fpm.counts().messages;
    let mut sink = vec![0; 1 << 20];
    for _ in 0..20 {
        while zebra.read(&mut sink).is_ok() {}
        bench.settle();
    }
    assert!(bench.fpm.counts().messages > before);
}
