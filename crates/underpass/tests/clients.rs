//! The netlink server and its clients: stock tools, many at once, slow ones and mad ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod daemon;

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, IoSlice, Write as _},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use daemon::{Daemon, run};
use nix::{
    errno::Errno,
    sys::signal::Signal,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, sendmsg,
        setsockopt, socket, socketpair, sockopt,
    },
};
use underpass_daemon::protocol::{Kind, Message, VERSION};

/// A client that speaks the protocol itself, and so can break it.
struct Raw {
    control: OwnedFd,
    data: OwnedFd,
}

fn unix(kind: SockType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn control(daemon: &Daemon) -> OwnedFd {
    let control = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(control.as_raw_fd(), &UnixAddr::new(&daemon.socket()).unwrap()).unwrap();
    setsockopt(&control, sockopt::ReceiveTimeout, &nix::sys::time::TimeVal::new(10, 0)).unwrap();
    control
}

fn hand(control: &OwnedFd, message: &[u8], descriptors: &[i32]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let ancillary = if descriptors.is_empty() { &[][..] } else { &rights };
    let slices = [IoSlice::new(message)];
    sendmsg::<()>(control.as_raw_fd(), &slices, ancillary, MsgFlags::MSG_NOSIGNAL, None).unwrap();
}

/// The next control message; `None` if the connection is over.
fn hear(control: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; 64];
    match recv(control.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
        Ok(0) | Err(Errno::ECONNRESET) => None,
        Ok(length) => Some(Message::from_bytes(&bytes[..length]).unwrap()),
        Err(errno) => panic!("neither an answer nor the end: {errno}"),
    }
}

impl Raw {
    fn open(daemon: &Daemon) -> Self {
        let control = control(daemon);
        let (data, far) = unix(SockType::SeqPacket);
        let open = Message::new(Kind::Open, libc::NETLINK_ROUTE as u32, VERSION, 0);
        hand(&control, &open.to_bytes(), &[far.as_raw_fd()]);
        assert_eq!(hear(&control).unwrap(), Message::new(Kind::Reply, 0, 0, 0));
        Self { control, data }
    }

    /// Sends a datagram and waits for its DONE; `false` if the connection is over.
    fn request(&self, datagram: &[u8]) -> bool {
        send(self.data.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL).is_ok()
            && hear(&self.control).is_some_and(|message| message.kind == Kind::Done)
    }
}

/// A message that the router refuses with an error that repeats it.
fn refused(length: usize) -> Vec<u8> {
    let mut message = vec![0; length];
    message[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message
}

fn alive(daemon: &Daemon) {
    let begin = Instant::now();
    assert!(daemon.succeeds("ip -o link show p0").contains("p0"));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

/// How many descriptors the router has.
fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

/// The same, when those of clients that have just gone are closed.
fn settled(daemon: &Daemon) -> usize {
    let (mut before, mut unchanged) = (descriptors(daemon), 0);
    while unchanged < 20 {
        std::thread::sleep(Duration::from_millis(10));
        let now = descriptors(daemon);
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
    }
    before
}

/// Bytes of memory that the router has.
fn memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Seconds of a processor that the router has used.
fn busy(daemon: &Daemon) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
    (ticks[0] + ticks[1]) as f64 / 100.0
}

/// Clients that take all descriptors of the router are waited for: it stops listening meanwhile, uses no processor, ends
/// when it is told to, and serves those who wait when descriptors are back.
#[test]
fn descriptors_that_run_out_come_back() {
    for late in [false, true] {
        // A limit that the router knows, and one that it does not expect.
        let daemon = Daemon::start_with_descriptors(if late { 4096 } else { 64 }, &["p0"]);
        if late {
            let limits = ["--nofile=24:24", "--pid", &daemon.pid().to_string()].map(str::to_owned);
            assert!(Command::new("prlimit").args(limits).status().unwrap().success());
        }
        let hold = || {
            let clients: Vec<_> = (0..300).map(|_| control(&daemon)).collect();
            std::thread::sleep(Duration::from_millis(300));
            clients
        };
        let clients = hold();
        let before = busy(&daemon);
        std::thread::sleep(Duration::from_secs(1));
        let used = busy(&daemon) - before;
        assert!(used < 0.2, "{used} s of a processor in a second");
        drop(clients);
        alive(&daemon);
        // Who waits is served when others go.
        let mut clients = hold();
        let mut waiting = daemon.command(&["ip", "-o", "link", "show", "p0"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(waiting.try_wait().unwrap().is_none(), "served although there is no descriptor");
        clients.clear();
        assert!(waiting.wait().unwrap().success());
        let lines = daemon.log().lines().count();
        assert!((1..20).contains(&lines), "{lines} lines of log");
        let _clients = hold();
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
    }
}

/// Descriptors that come with a message are closed, however many they are and whatever the message is.
#[test]
fn descriptors_that_are_sent_are_closed() {
    let daemon = Daemon::start(&["p0"]);
    alive(&daemon);
    let before = settled(&daemon);
    let (_ours, far) = unix(SockType::SeqPacket);
    let bind = Message::new(Kind::Bind, 0, 0, 0).to_bytes();
    let index = Message::new(Kind::IndexOf, 0, 0, 0).to_bytes();
    for count in [1, 15, 16, 17, 18, 64, 253] {
        let descriptors = vec![far.as_raw_fd(); count];
        for message in [&b"x"[..], &[0; 5000], &bind, &index] {
            let clients: Vec<_> = (0..5).map(|_| control(&daemon)).collect();
            clients.iter().for_each(|control| hand(control, message, &descriptors));
            clients.iter().for_each(|control| {
                let _ = hear(control);
            });
            // The connection may stay open.
            let now = settled(&daemon);
            assert!(now <= before + clients.len(), "{count} descriptors: {before} before, {now} now");
        }
        let raw = Raw::open(&daemon);
        hand(&raw.data, &refused(64), &descriptors);
        assert_eq!(hear(&raw.control).unwrap().kind, Kind::Done);
        assert_eq!(settled(&daemon), before + 2);
    }
    assert_eq!(settled(&daemon), before);
}

/// However many clients do not read, what waits for them together has a limit, and leaves no memory behind.
#[test]
fn what_waits_for_all_together_is_bounded() {
    let daemon = Daemon::start(&["p0"]);
    alive(&daemon);
    let before = memory(&daemon);
    let request = refused(60_000);
    let mut clients: Vec<_> = (0..60).map(|_| Raw::open(&daemon)).collect();
    let mut most = 0;
    for _ in 0..2 * underpass_daemon::serve::QUEUE / request.len() {
        clients.retain(|client| client.request(&request));
        most = most.max(memory(&daemon));
        if clients.is_empty() {
            break;
        }
    }
    let limit = underpass_daemon::serve::QUEUED_TOGETHER as u64;
    assert!(clients.is_empty(), "{} clients were not cut off", clients.len());
    assert!(most < before + limit * 3 / 2, "{} MiB while they do not read", most >> 20);
    alive(&daemon);
    let after = memory(&daemon);
    assert!(after < before + (8 << 20), "{} MiB before, {} MiB after", before >> 20, after >> 20);
}

#[test]
fn who_does_not_read_is_cut_off_without_harm_to_others() {
    let daemon = Daemon::start(&["p0"]);
    let slow = Raw::open(&daemon);
    let request = refused(60_000);
    // Some wait in the socket, too.
    let most = 2 * underpass_daemon::serve::QUEUE / request.len();
    let mut sent = 0;
    while sent < most && slow.request(&request) {
        sent += 1;
        if sent % 50 == 0 {
            alive(&daemon);
        }
    }
    assert!(sent > 100, "cut off after {sent} answers that were not read");
    assert!(sent < most, "never cut off");
    alive(&daemon);
}

#[test]
fn who_reads_slowly_gets_all_of_a_dump() {
    let ports: Vec<String> = (0..400).map(|port| format!("port{port}")).collect();
    let daemon = Daemon::start(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    let slow = Raw::open(&daemon);
    let mut dump = vec![0; 32];
    dump[0] = 32;
    dump[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    dump[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16 | libc::NLM_F_DUMP as u16).to_ne_bytes());
    assert!(slow.request(&dump));
    assert_eq!(daemon.succeeds("ip -o link show").lines().count(), 401);
    let (mut links, mut done) = (0, false);
    let mut buffer = vec![0; 1 << 17];
    while !done {
        std::thread::sleep(Duration::from_millis(5));
        let length = recv(slow.data.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        let mut rest = &buffer[..length];
        while rest.len() >= 16 {
            let size = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            match i32::from(u16::from_ne_bytes([rest[4], rest[5]])) {
                libc::NLMSG_DONE => done = true,
                kind => {
                    assert_eq!(kind, i32::from(libc::RTM_NEWLINK));
                    links += 1;
                }
            }
            rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    assert_eq!(links, 401);
}

#[test]
fn garbage_is_refused_or_cut_off() {
    let daemon = Daemon::start(&["p0"]);
    alive(&daemon);
    let before = settled(&daemon);
    let open = Message::new(Kind::Open, libc::NETLINK_ROUTE as u32, VERSION, 0);

    // Control messages that are none, and such that are out of order.
    let bind = Message::new(Kind::Bind, 0, 0, 0).to_bytes();
    let done = Message::new(Kind::Done, 0, 0, 0).to_bytes();
    for bytes in [&b"x"[..], &[0xff; 32], &[0; 5000], &bind, &done] {
        let control = control(&daemon);
        hand(&control, bytes, &[]);
        assert_eq!(hear(&control), None, "{bytes:?}");
    }
    // OPEN of another protocol or version, and without, with the wrong and with too many descriptors.
    let errno = |message: Message, descriptors: &[i32]| {
        let control = control(&daemon);
        hand(&control, &message.to_bytes(), descriptors);
        hear(&control).unwrap().a as i32
    };
    let (ours, far) = unix(SockType::SeqPacket);
    let (stream, _other) = unix(SockType::Stream);
    let far = far.as_raw_fd();
    assert_eq!(errno(Message { a: libc::NETLINK_AUDIT as u32, ..open }, &[far]), libc::EPROTONOSUPPORT);
    assert_eq!(errno(Message { b: VERSION + 1, ..open }, &[far]), libc::EPROTO);
    assert_eq!(errno(open, &[]), libc::EBADF);
    assert_eq!(errno(open, &[stream.as_raw_fd()]), libc::ESOCKTNOSUPPORT);
    assert_eq!(errno(open, &[std::io::stderr().as_raw_fd()]), libc::ENOTSOCK);
    assert_eq!(errno(open, &[far, far, far, far]), 0);
    drop(ours);

    // Datagrams that are no netlink messages are passed over, as Linux passes them over.
    let raw = Raw::open(&daemon);
    let long = u32::MAX.to_ne_bytes();
    for datagram in [&b"x"[..], &[0; 15], &[0; 16], &[0xff; 4096], &[&long[..], &[0; 60]].concat()] {
        assert!(raw.request(datagram), "{} bytes", datagram.len());
    }
    // Each prefix of a good request, and a good request with a wrong length.
    let good = refused(64);
    for length in 1..good.len() {
        assert!(raw.request(&good[..length]));
    }
    drop(raw);
    alive(&daemon);
    assert_eq!(settled(&daemon), before, "descriptors leak");
}

#[test]
fn many_at_once() {
    let daemon = Daemon::start(&["p0", "p1"]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(daemon.succeeds("ip -o link show").lines().count(), 3);
                }
            });
        }
    });
    // More that do nothing than a process usually may have open.
    let idle: Vec<_> = (0..300).map(|_| Raw::open(&daemon)).collect();
    alive(&daemon);
    drop(idle);
}

#[test]
fn json_parses() {
    let daemon = Daemon::start(&["p0", "p1"]);
    daemon.succeeds("ip link set p0 up");
    daemon.succeeds("ip addr add 10.0.0.1/24 dev p0");
    daemon.succeeds("ip -6 route add fc00::1/128 encap seg6local action End count dev p0");
    for line in
        ["ip -j link show", "ip -j -d addr show", "ip -j -s -6 route show table all", "ip -j rule show"]
    {
        let printed = daemon.succeeds(line);
        let parsed: serde_json::Value =
            serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{line}: {error}: {printed}"));
        assert!(parsed.as_array().is_some_and(|array| !array.is_empty()), "{line}: {printed}");
    }
}

/// What a monitor of `ip` or `tc` prints: of each step the command, what undoes it, and what is heard of it.
fn monitored(words: &[&str], steps: &[[&str; 3]]) {
    let daemon = Daemon::start(&["p0"]);
    let mut command = daemon.command(&[&["stdbuf", "-oL"], words].concat());
    let mut monitor = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = BufReader::new(monitor.stdout.take().unwrap()).lines();
    // Until it listens, what changes goes unheard.
    let begin = Instant::now();
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        while let Some(Ok(line)) = heard.next() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    for [command, undo, wanted] in steps {
        'heard: loop {
            daemon.succeeds(command);
            let until = Instant::now() + Duration::from_millis(500);
            while let Ok(line) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                if line.contains(wanted) {
                    break 'heard;
                }
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{command}: nothing of {wanted:?} heard");
            daemon.succeeds(undo);
        }
    }
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    reader.join().unwrap();
}

#[test]
fn monitor_sees_changes() {
    let (there, gone) = ("ip route add 10.9.0.0/16 via 10.0.0.2", "ip route del 10.9.0.0/16");
    let address = ["ip addr add 10.0.0.1/24 dev p0", "ip addr del 10.0.0.1/24 dev p0", "inet 10.0.0.1/24"];
    monitored(
        &["ip", "monitor"],
        &[
            ["ip link set p0 up", "ip link set p0 down", "p0: <BROADCAST,MULTICAST,UP,LOWER_UP>"],
            address,
            [there, gone, "10.9.0.0/16 via 10.0.0.2 dev p0"],
            [gone, there, "Deleted 10.9.0.0/16"],
        ],
    );
    // Linux 6.12: `mpls_dev_notify`, and `dev_shutdown` before a link goes.
    let (there, gone) = ("ip link add d9 up type dummy", "ip link del d9");
    monitored(
        &["ip", "monitor", "all"],
        &[[there, gone, "[NETCONF]mpls d9 input off"], [gone, there, "[NETCONF]Deleted mpls d9"]],
    );
}

/// Linux 6.12: a qdisc that goes has one reference less than one that is there.
#[test]
fn monitor_sees_qdiscs() {
    let root = ["tc qdisc add dev p0 root handle 5: pfifo limit 10", "tc qdisc del dev p0 root"];
    let hook = ["tc qdisc add dev p0 ingress", "tc qdisc del dev p0 ingress"];
    monitored(
        &["tc", "monitor"],
        &[
            [root[0], root[1], "qdisc pfifo 5: dev p0 root refcnt 2 limit 10p"],
            [root[1], root[0], "deleted qdisc pfifo 5: dev p0 root limit 10p"],
            [hook[0], hook[1], "qdisc ingress ffff: dev p0 parent ffff:fff1 ----"],
            [hook[1], hook[0], "deleted qdisc ingress ffff: dev p0 parent ffff:fff1 refcnt 0 ----"],
        ],
    );
}

#[test]
fn a_batch_of_ten_thousand_routes() {
    let daemon = Daemon::start(&["p0"]);
    daemon.succeeds("ip link set p0 up");
    daemon.succeeds("ip addr add 10.0.0.1/24 dev p0");
    let mut batch = String::new();
    for i in 0..10_000 {
        writeln!(batch, "route add 172.{}.{}.0/24 via 10.0.0.2", 16 + i / 256, i % 256).unwrap();
    }
    let begin = Instant::now();
    let mut child = daemon.command(&["ip", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    println!("10,000 routes in {:?}", begin.elapsed());
    let shown = daemon.succeeds("ip route show");
    assert_eq!(shown.lines().filter(|line| line.starts_with("172.")).count(), 10_000);
    // A line that fails is named, and ends the batch.
    let mut child = daemon.command(&["ip", "-batch", "-"]);
    child.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"route add 10.9.0.0/16 via 10.0.0.2\nroute add 172.16.0.0/24 via 10.0.0.2\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("RTNETLINK answers: File exists") && errors.contains("Command failed -:2"),
        "{errors}"
    );
}

/// pyroute2 (Debian's python3-pyroute2, or from PyPI) does what its manual shows first.
#[test]
fn pyroute2() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Command::new(PYTHON).args(["-c", "import pyroute2"]).output().is_ok_and(|out| out.status.success()) {
        println!("SKIPPED: pyroute2 is not installed");
        return;
    }
    let daemon = Daemon::start(&["p0"]);
    let script = "
import os, socket
from pyroute2 import IPRoute
with IPRoute() as ipr:
    [index] = ipr.link_lookup(ifname='p0')
    ipr.link('set', index=index, state='up')
    ipr.addr('add', index=index, address='10.0.0.1', prefixlen=24)
    ipr.route('add', dst='10.9.0.0/16', gateway='10.0.0.2')
    names = sorted(link.get_attr('IFLA_IFNAME') for link in ipr.get_links())
    routes = [r.get_attr('RTA_DST') for r in ipr.get_routes(family=socket.AF_INET, table=254)]
    try:
        ipr.route('add', dst='10.9.0.0/16', gateway='10.0.0.2')
        again = 0
    except Exception as error:
        again = error.code
    print(names, sorted(routes), again)
";
    let outcome = run(&mut daemon.command(&[PYTHON, "-W", "ignore", "-c", script]));
    assert_eq!(outcome.output.trim(), "['lo', 'p0'] ['10.0.0.0', '10.9.0.0'] 17");
}

/// busybox reads 8 KiB at a time: the one that is installed (Debian's busybox-static), and the one that loads the library, which
/// `scripts/test-tools.sh` unpacks.
#[test]
fn busybox_shows_every_route() {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("busybox").join("bin/busybox");
    let there = |busybox: &&str| {
        let there = Command::new(busybox).arg("ip").output().is_ok();
        if !there {
            eprintln!("busybox_shows_every_route: skipped: there is no {busybox}");
        }
        there
    };
    let all: Vec<&str> = ["busybox", unpacked.to_str().unwrap()].into_iter().filter(there).collect();
    let daemon = Daemon::start(&["p0"]);
    daemon.succeeds("ip link set p0 up");
    let routes = (0..400).map(|i| format!("route add 10.{}.{}.0/24 dev p0\n", i / 200 + 1, i % 200));
    let batch = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(batch.path(), routes.collect::<String>()).unwrap();
    daemon.succeeds(&format!("ip -batch {}", batch.path().display()));
    for busybox in &all {
        let shown = daemon.succeeds(&format!("{busybox} ip route"));
        assert_eq!(shown.lines().count(), 400, "{busybox}: {shown}");
        assert!(daemon.succeeds(&format!("{busybox} ip link show p0")).contains("p0:"));
    }
    for (number, busybox) in all.iter().enumerate() {
        let address = format!("10.3.0.{number}/32");
        daemon.succeeds(&format!("{busybox} ip address add {address} dev p0"));
        assert!(daemon.succeeds("ip address show p0").contains(&address));
    }
}
