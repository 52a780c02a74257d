//! Programs with a router beside the kernel (`underpass run` in a network namespace): what each of the two has,
//! shown and changed as if it were one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{
    env, fs,
    io::{BufRead, BufReader, IoSlice, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, sendmsg,
    setsockopt, socket, socketpair, sockopt,
};
use underpass_daemon::{
    launch,
    protocol::{Kind, Message, VERSION},
    serve,
    testbed::{self, Namespace, Router},
};

const UNDERPASS: &str = env!("CARGO_BIN_EXE_underpass");

/// A router in a namespace with a veth pair, both of whose ends are there. `None`, and said so, without root.
fn live(name: &str, arguments: &[&str]) -> Option<(Namespace, Router)> {
    if !testbed::permitted() {
        println!("SKIPPED: needs root");
        return None;
    }
    let namespace = Namespace::new(name).unwrap();
    namespace
        .run(
            "ip link add v0 type veth peer name v1
             ip link set v0 up; ip link set v1 up
             ip addr add 10.0.0.1/24 dev v0; ip addr add fd00::1/64 dev v0",
        )
        .unwrap();
    let arguments = [&["--driver", "packet", "--workers", "1"], arguments].concat();
    let router = Router::start(Path::new(UNDERPASS), &namespace, &arguments).unwrap();
    Some((namespace, router))
}

/// Runs lines that must fail; what they printed.
fn refused(router: &Router, lines: &str) -> String {
    let outcome = router.outcome(lines).unwrap();
    assert_ne!(outcome.status, 0, "{lines}: {}", outcome.output);
    outcome.output
}

#[test]
fn routes_of_both_are_one_table() {
    let Some((kernel, router)) = live("routes", &[]) else { return };
    router
        .run(
            "ip route add 10.9.0.0/16 via 10.0.0.2
             ip route add 10.10.0.0/16 encap seg6 mode encap segs fc00:2::1 dev v0
             ip -6 route add fc00::1/128 encap seg6local action End count dev v0
             ip -6 route add fd52::/64 encap seg6 mode encap segs fc00:2::1 dev v0 table 77
             ip nexthop add id 5 via fd00::2 dev v0
             ip nexthop add id 6 encap seg6 mode encap segs fc00:3::1 via fd00::2 dev v0
             ip route add 10.11.0.0/16 nhid 6",
        )
        .unwrap();
    // The kernel has its own and no more, shadows apart.
    let of_kernel = kernel.run("ip route show; ip -6 route show; ip nexthop show").unwrap();
    assert!(
        of_kernel.contains("10.9.0.0/16 via 10.0.0.2") && of_kernel.contains("id 5 via fd00::2"),
        "{of_kernel}"
    );
    assert!(!of_kernel.contains("encap") && !of_kernel.contains("id 6"), "{of_kernel}");

    let shown = router.run("ip route show").unwrap();
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    assert_eq!(
        lines,
        [
            "10.0.0.0/24 dev v0 proto kernel scope link src 10.0.0.1",
            "10.9.0.0/16 via 10.0.0.2 dev v0",
            "10.10.0.0/16  encap seg6 mode encap segs 1 [ fc00:2::1 ] dev v0 scope link",
            "10.11.0.0/16 nhid 6  encap seg6 mode encap segs 1 [ fc00:3::1 ] via inet6 fd00::2 dev v0",
        ]
    );
    let all = router.run("ip -6 route show table all").unwrap();
    for wanted in ["local fd00::1 dev v0 table local", "fc00::1  encap seg6local action End", "table 77"] {
        assert!(all.contains(wanted), "{wanted}: {all}");
    }
    assert!(!all.contains("proto 117"), "{all}");
    assert!(router.run("ip -s -6 route show").unwrap().contains("packets 0 bytes 0 errors 0"));
    let json: serde_json::Value = serde_json::from_str(&router.run("ip -j route show").unwrap()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
    let objects = router.run("ip nexthop show").unwrap();
    assert!(objects.contains("id 5 via fd00::2 dev v0") && objects.contains("id 6  encap seg6"), "{objects}");
    assert!(router.run("ip nexthop get id 6").unwrap().contains("fc00:3::1"));
    assert!(router.run("ip nexthop get id 5").unwrap().contains("fd00::2"));

    // A table that one of the two has, and one that neither has.
    assert!(router.run("ip -6 route show table 77").unwrap().contains("fd52::/64"));
    assert!(refused(&router, "ip -6 route show table 78").contains("FIB table does not exist"));
    // Look-ups.
    assert!(router.run("ip route get 10.10.1.1").unwrap().contains("encap seg6"));
    assert!(router.run("ip route get 10.9.1.1").unwrap().contains("via 10.0.0.2"));
    // What is there is there, whoever has it; what was deleted is gone.
    assert!(refused(&router, "ip route add 10.10.0.0/16 via 10.0.0.2").contains("File exists"));
    assert!(
        refused(&router, "ip route add 10.9.0.0/16 encap seg6 mode encap segs fc00::9 dev v0")
            .contains("File exists")
    );
    router.run("ip route replace 10.10.0.0/16 via 10.0.0.3").unwrap();
    assert_eq!(router.run("ip route show 10.10.0.0/16").unwrap().trim(), "10.10.0.0/16 via 10.0.0.3 dev v0");
    router.run("ip route replace 10.9.0.0/16 encap seg6 mode encap segs fc00::9 dev v0").unwrap();
    assert!(!kernel.run("ip route show 10.9.0.0/16").unwrap().contains("via"));
    for route in ["10.9.0.0/16", "10.10.0.0/16", "10.11.0.0/16"] {
        router.run(&format!("ip route del {route}")).unwrap();
        assert!(refused(&router, &format!("ip route del {route}")).contains("No such process"));
    }
    assert_eq!(router.run("ip route show").unwrap().lines().count(), 1);
}

#[test]
fn links_rules_and_the_rest() {
    let Some((kernel, router)) = live("links", &[]) else { return };
    router
        .run(
            "ip link add red type vrf table 10; ip link add blue type vrf table 20
             ip link set red up; ip link set v1 master red; ip link add d0 type dummy",
        )
        .unwrap();
    let names = |line: &str| {
        let shown = router.run(line).unwrap();
        let mut names: Vec<_> =
            shown.lines().map(|line| line.split([':', '@']).nth(1).unwrap().trim().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names("ip -o link show type vrf"), ["blue", "red"]);
    assert_eq!(names("ip -o link show type dummy"), ["d0"]);
    assert_eq!(names("ip -o link show master red"), ["v1"]);
    assert_eq!(names("ip -o link show vrf red"), ["v1"]);
    assert_eq!(names("ip -o link show"), ["blue", "d0", "lo", "red", "underpass0", "v0", "v1"]);
    assert!(router.run("ip -d link show red").unwrap().contains("vrf table 10"));
    assert!(router.run("ip -s link show v0").unwrap().contains("RX:"));
    let rules = router.run("ip rule show").unwrap();
    assert!(rules.contains("1000:\tfrom all lookup [l3mdev-table]"), "{rules}");
    assert_eq!(
        router.run("cat /proc/sys/net/vrf/strict_mode; sysctl -n net.vrf.strict_mode").unwrap(),
        "1\n1\n"
    );
    // Traffic control of the links that packets come and go by is the router's.
    router.run("tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 50ms").unwrap();
    assert!(router.run("tc qdisc show dev v0").unwrap().starts_with("qdisc tbf"));
    assert!(kernel.run("tc qdisc show dev v0").unwrap().starts_with("qdisc noqueue"));
    // A VRF has hooks, and no root qdisc: packets would bypass it.
    let refused = router.outcome("tc qdisc add dev red root tbf rate 1mbit burst 10k latency 50ms").unwrap();
    let text = "A root qdisc at a VRF is not supported by this router";
    assert!(refused.status == 2 && refused.output.contains(text), "{}", refused.output);
    assert!(!router.run("tc qdisc show dev red").unwrap().contains("tbf"));
    router.run("tc qdisc add dev red clsact").unwrap();
    assert!(router.run("tc qdisc show dev red").unwrap().contains("clsact"));
    // What is the kernel's alone goes there.
    router.run("tc qdisc add dev lo root tbf rate 1mbit burst 10k latency 50ms").unwrap();
    assert!(kernel.run("tc qdisc show dev lo").unwrap().starts_with("qdisc tbf"));
    for line in [
        "tc qdisc show dev lo",
        "bridge link show",
        "ip neigh show",
        "ip addr show v0",
        "sysctl net.ipv4.ip_forward",
    ] {
        assert_eq!(router.run(line).unwrap(), kernel.run(line).unwrap(), "{line}");
    }
    let batch = "ip -batch - <<END
route add 10.20.0.0/16 via 10.0.0.2
route add 10.21.0.0/16 encap seg6 mode encap segs fc00::1 dev v0
link set d0 up
route add 10.22.0.0/16 via 10.0.0.2
END";
    router.run(batch).unwrap();
    assert_eq!(router.run("ip route show | grep -c '^10.2[012]'").unwrap().trim(), "3");
    router.run("ip link del red; ip link del d0").unwrap();
    assert_eq!(names("ip -o link show"), ["blue", "lo", "underpass0", "v0", "v1"]);
}

/// The request carries the number of a descriptor, which means something in the program only.
#[test]
fn links_move_between_namespaces() {
    let Some((kernel, router)) = live("moving", &[]) else { return };
    let (one, two) = (Namespace::new("one").unwrap(), Namespace::new("two").unwrap());
    let (first, second) = (one.path(), two.path());
    router.run(&format!("ip link add a0 netns {first} type veth peer name b0 netns {second}")).unwrap();
    assert!(one.run("ip -o link show a0").unwrap().contains("a0"));
    assert!(two.run("ip -o link show b0").unwrap().contains("b0"));
    router.run(&format!("ip link add c0 type veth peer name d0; ip link set d0 netns {second}")).unwrap();
    assert!(two.run("ip -o link show d0").unwrap().contains("d0"));
    assert!(kernel.run("ip -o link show c0").unwrap().contains("c0"));
    assert_ne!(kernel.outcome("ip link show d0").unwrap().status, 0);
}

#[test]
fn a_monitor_hears_both() {
    let Some((_kernel, router)) = live("monitor", &[]) else { return };
    let mut command = router.command("stdbuf");
    let mut monitor = command.args(["-oL", "ip", "monitor"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
    let (sender, heard) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let expect = |doing: &str, undoing: &str, wanted: &str| {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            router.run(doing).unwrap();
            let until = Instant::now() + Duration::from_millis(500);
            while let Ok(line) = heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                assert!(!line.contains("proto 117"), "{line}");
                if line.contains(wanted) {
                    return;
                }
            }
            assert!(Instant::now() < end, "{doing}: nothing of {wanted:?} heard");
            router.run(undoing).unwrap();
        }
    };
    expect("ip route add 10.9.0.0/16 via 10.0.0.2", "ip route del 10.9.0.0/16", "10.9.0.0/16 via 10.0.0.2");
    let encap = "ip route add 10.8.0.0/16 encap seg6 mode encap segs fc00::1 dev v0";
    expect(encap, "ip route del 10.8.0.0/16", "10.8.0.0/16  encap seg6");
    expect("ip route del 10.8.0.0/16", encap, "Deleted 10.8.0.0/16");
    expect("ip link add red type vrf table 10", "ip link del red", "red: <NOARP,MASTER>");
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    reader.join().unwrap();
}

/// A client that speaks the protocol itself, and so can break it.
struct Raw {
    control: OwnedFd,
    data: OwnedFd,
}

impl Raw {
    fn open(router: &Path) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let control = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(control.as_raw_fd(), &UnixAddr::new(router).unwrap()).unwrap();
        setsockopt(&control, sockopt::ReceiveTimeout, &nix::sys::time::TimeVal::new(10, 0)).unwrap();
        let (data, far) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let open = Message::new(Kind::Open, libc::NETLINK_ROUTE as u32, VERSION, 0).to_bytes();
        let rights = [far.as_raw_fd()];
        let ancillary = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(control.as_raw_fd(), &[IoSlice::new(&open)], &ancillary, MsgFlags::empty(), None)
            .unwrap();
        let this = Self { control, data };
        assert!(this.done(Kind::Reply));
        this
    }

    /// Whether the next control message is of this kind; `false` too if the connection is over.
    fn done(&self, kind: Kind) -> bool {
        let mut bytes = [0; 64];
        let length = recv(self.control.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap_or(0);
        Message::from_bytes(&bytes[..length]).is_some_and(|message| message.kind == kind)
    }

    /// Sends a datagram and waits until it is done; `false` if the connection is over.
    fn request(&self, datagram: &[u8]) -> bool {
        send(self.data.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL).is_ok() && self.done(Kind::Done)
    }

    /// The sequence numbers of all answers that are there.
    fn answers(&self) -> Vec<u32> {
        let mut bytes = vec![0; 1 << 18];
        let mut sequences = Vec::new();
        while let Ok(length) = recv(self.data.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            for message in underpass_netlink::messages(&bytes[..length]) {
                sequences.push(message.sequence);
            }
        }
        sequences
    }
}

/// A request with a body.
fn message(kind: u16, flags: i32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = (16 + body.len()) as u32;
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(flags as u16).to_ne_bytes()].concat();
    [&head[..], &sequence.to_ne_bytes(), &[0; 4], body].concat()
}

fn socket_of(namespace: &Namespace) -> PathBuf {
    namespace.enter(|| launch::namespace_socket().unwrap()).unwrap()
}

/// Linux answers the messages of a datagram in their order.
#[test]
fn answers_keep_their_order_whoever_gives_them() {
    let Some((kernel, router)) = live("order", &[]) else { return };
    router.run("ip nexthop add id 6 encap seg6 mode encap segs fc00:3::1 via fd00::2 dev v0").unwrap();
    const RTM_GETNEXTHOP: u16 = 106;
    let raw = Raw::open(&socket_of(&kernel));
    let link = |sequence, index: u32| {
        let body = [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
        message(libc::RTM_GETLINK, libc::NLM_F_REQUEST, sequence, &body)
    };
    // NHA_ID
    let object = |sequence, id: u32| {
        let body = [&[0; 8][..], &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &id.to_ne_bytes()].concat();
        message(RTM_GETNEXTHOP, libc::NLM_F_REQUEST, sequence, &body)
    };
    let unknown = |sequence| message(0xfff0, libc::NLM_F_REQUEST, sequence, &[0; 16]);
    let dump = message(libc::RTM_GETROUTE, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, 9, &[2; 1].repeat(12));
    let datagram =
        [link(1, 1), object(2, 6), link(3, 4711), object(4, 7), unknown(5), object(6, 6), link(7, 1)]
            .concat();
    assert!(raw.request(&datagram));
    assert_eq!(raw.answers(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(raw.request(&[object(8, 6), dump, link(10, 1)].concat()));
    let mut answers = raw.answers();
    answers.sort();
    answers.dedup();
    assert_eq!(answers, [8, 9, 10]);
}

#[test]
fn mad_and_lazy_clients_are_alone() {
    let Some((kernel, router)) = live("mad", &[]) else { return };
    let path = socket_of(&kernel);
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions()) & 0o777,
        0o600
    );
    let raw = Raw::open(&path);
    let good = message(libc::RTM_GETLINK, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, 1, &[0; 16]);
    for length in 1..good.len() {
        assert!(raw.request(&good[..length]));
    }
    for datagram in [&[0xff; 4096][..], &[0; 16], &good.repeat(40)] {
        assert!(raw.request(datagram));
    }
    assert!(router.run("ip -o link show v0").unwrap().contains("v0"));
    // The kernel's errors repeat the request.
    let lazy = Raw::open(&path);
    let long = message(0xfff0, libc::NLM_F_REQUEST, 1, &vec![0; 60_000]);
    let most = 3 * serve::QUEUE / long.len();
    let mut sent = 0;
    while sent < most && lazy.request(&long) {
        sent += 1;
        if sent % 100 == 0 {
            assert!(router.run("ip -o link show v0").unwrap().contains("v0"));
        }
    }
    assert!(sent > 100 && sent < most, "cut off after {sent} of {most}");
    assert!(router.run("ip route show").unwrap().contains("10.0.0.0/24"));
}

/// Debian's python3-pyroute2, or what $UNDERPASS_TEST_PYTHON has.
#[test]
fn pyroute2() {
    let python = env::var("UNDERPASS_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let found = Command::new(&python).args(["-c", "import pyroute2"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: {python} has no pyroute2");
        return;
    }
    let Some((_kernel, router)) = live("pyroute2", &[]) else { return };
    let script = r"
import socket
from pyroute2 import IPRoute
with IPRoute() as ipr:
    [index] = ipr.link_lookup(ifname='v0')
    ipr.link('add', ifname='red', kind='vrf', vrf_table=10)
    [red] = ipr.link_lookup(ifname='red')
    ipr.link('set', index=red, state='up')
    [other] = ipr.link_lookup(ifname='v1')
    ipr.link('set', index=other, master=red)
    ipr.route('add', dst='10.9.0.0/16', gateway='10.0.0.2')
    ipr.route('add', dst='10.8.0.0/16', oif=index, encap={'type': 'seg6', 'mode': 'encap', 'segs': 'fc00::1'})
    routes = {r.get_attr('RTA_DST'): r.get_attr('RTA_ENCAP_TYPE') for r in ipr.get_routes(family=socket.AF_INET, table=254)}
    print(sorted(routes.items()))
    kinds = {l.get_attr('IFLA_IFNAME'): l.get_nested('IFLA_LINKINFO', 'IFLA_INFO_KIND') for l in ipr.get_links()}
    print(kinds['v0'], kinds['red'])
    print([l.get_attr('IFLA_MASTER') == red for l in ipr.get_links(other)])
    for dst in ('10.9.0.0/16', '10.8.0.0/16'):
        ipr.route('del', dst=dst)
    try:
        ipr.route('del', dst='10.8.0.0/16')
    except Exception as error:
        print(error.code)
";
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all(script.as_bytes()).unwrap();
    let printed = router.run(&format!("{python} -W ignore {}", file.path().display())).unwrap();
    assert_eq!(
        printed.trim(),
        "[('10.0.0.0', None), ('10.8.0.0', 5), ('10.9.0.0', None)]\nveth vrf\n[True]\n3"
    );
}

/// FRR's zebra and staticd learn of both sides, and what they install is the kernel's.
#[test]
fn zebra() {
    let frr = Path::new("/usr/lib/frr");
    if !frr.join("zebra").is_file() {
        println!("SKIPPED: FRR is not installed");
        return;
    }
    let Some((kernel, router)) = live("zebra", &["--socket-group", "frr"]) else { return };
    router
        .run("ip link add red type vrf table 10; ip link set red up; ip link set v1 master red; ip addr add 10.5.0.1/24 dev v1")
        .unwrap();
    let directory = tempfile::Builder::new().prefix("up-merge-frr-").tempdir_in("/tmp").unwrap();
    let place = directory.path();
    let owned = Command::new("chown").arg("frr:frr").arg(place).status().unwrap();
    assert!(owned.success());
    let daemons: Vec<_> = ["zebra", "staticd"]
        .map(|name| {
            let mut command = router.command(frr.join(name).to_str().unwrap());
            command.args(["-P", "0", "-f", "/dev/null", "-i"]).arg(place.join(format!("{name}.pid")));
            command.arg("-z").arg(place.join("zserv.api")).arg("--vty_socket").arg(place);
            let daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(300));
            daemon
        })
        .into();
    let ask = |commands: &[&str]| {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(place);
        commands.iter().for_each(|command| {
            vtysh.args(["-c", command]);
        });
        String::from_utf8(vtysh.output().unwrap().stdout).unwrap()
    };
    let eventually = |what: &str, wanted: &[&str], look: &dyn Fn() -> String| {
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            let shown = look();
            if wanted.iter().all(|wanted| shown.contains(wanted)) {
                return;
            }
            assert!(Instant::now() < end, "{what}: {wanted:?} is not in {shown}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    eventually("interfaces", &["v0", "red", "10.0.0.1/24", "10.5.0.1/24"], &|| {
        ask(&["show interface brief"])
    });
    eventually("VRFs", &["vrf red", "table 10"], &|| ask(&["show vrf"]));
    router.run("ip route add 10.79.0.0/16 via 10.0.0.5").unwrap();
    router.run("ip route add 10.80.0.0/16 encap seg6 mode encap segs fc00::1 dev v0").unwrap();
    eventually("routes", &["10.79.0.0/16", "10.80.0.0/16"], &|| ask(&["show ip route"]));
    ask(&["configure terminal", "ip route 10.77.0.0/16 10.0.0.9"]);
    eventually("installed", &["10.77.0.0/16 nhid"], &|| kernel.run("ip route show").unwrap());
    eventually("shown", &["10.77.0.0/16 nhid", "10.80.0.0/16"], &|| router.run("ip route show").unwrap());
    ask(&["configure terminal", "no ip route 10.77.0.0/16 10.0.0.9"]);
    router.run("ip route del 10.80.0.0/16").unwrap();
    eventually("withdrawn", &["10.79.0.0/16"], &|| {
        let shown = ask(&["show ip route"]) + &kernel.run("ip route show").unwrap();
        if shown.contains("10.77") || shown.contains("10.80") { String::new() } else { shown }
    });
    for mut daemon in daemons {
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
}
