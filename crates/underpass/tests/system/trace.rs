//! `underpass trace`: packets are followed through a running router, whatever becomes of them and of who follows.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use underpass_daemon::{
    live::trace::PacketPath,
    testbed::{self, Namespace, Router},
};

use crate::net::{self, program, settle};

/// `h1 – r – h2`, with 10.0.1/24 to the one side and 10.0.2/24 to the other.
struct Line {
    hosts: [Namespace; 2],
    space: Namespace,
    router: Router,
}

impl Line {
    fn new(workers: &str) -> Self {
        let [h1, r, h2] = ["h1", "r", "h2"].map(net::namespace);
        for (n, host) in [(1, &h1), (2, &h2)] {
            testbed::join(&r, &format!("v{n}"), host, "e0").unwrap();
            r.run(&format!("ip link set v{n} up; ip addr add 10.0.{n}.1/24 dev v{n}")).unwrap();
            host.run(&format!(
                "ip link set e0 up; ip addr add 10.0.{n}.2/24 dev e0; ip route add default via 10.0.{n}.1"
            ))
            .unwrap();
        }
        let router = Router::start(program(), &r, &["--workers", workers]).unwrap();
        settle(&h1, "10.0.2.2", Duration::from_secs(5)).unwrap();
        Self { hosts: [h1, h2], space: r, router }
    }

    /// `underpass trace`, which follows when this returns.
    fn follow(&self, arguments: &[&str]) -> Client {
        let mut command = self.space.command(program());
        let command = command.arg("trace").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        said.read_line(&mut first).unwrap();
        assert!(first.starts_with("following "), "{first}");
        // Its order has passed the workers.
        thread::sleep(Duration::from_millis(50));
        Client { child, said }
    }

    fn ping(&self, arguments: &str) {
        self.hosts[0].outcome(&format!("ping -n -W 1 {arguments}")).unwrap();
    }
}

struct Client {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Client {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// What it printed, the last that it said, and its status, once it has ended.
    fn end(mut self) -> (String, String, Option<i32>) {
        let (mut printed, mut said) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        self.said.read_to_string(&mut said).unwrap();
        (printed, said, self.child.wait().unwrap().code())
    }

    /// Ends it as Ctrl-C does, after a while.
    fn interrupt(self) -> (String, String, Option<i32>) {
        thread::sleep(Duration::from_millis(100));
        kill(self.pid(), Signal::SIGINT).unwrap();
        self.end()
    }
}

fn packet_paths(printed: &str) -> Vec<PacketPath> {
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn paths_of_packets_that_match() {
    let Some(_turn) = net::turn("paths_of_packets_that_match") else { return };
    let line = Line::new("2");
    let client = line.follow(&["icmp[icmptype]", "==", "icmp-echo"]);
    line.ping("-c 2 -i 0.1 10.0.2.2");
    let (printed, said, status) = client.interrupt();
    assert_eq!((said.as_str(), status), ("2 packets followed, 0 more matched\n", Some(0)), "{printed}");
    let steps: Vec<&str> = printed.lines().collect();
    assert_eq!(steps.len(), 10, "{printed}");
    for packet_path in steps.chunks(5) {
        assert!(packet_path[0].starts_with("packet ") && packet_path[0].contains(", worker "), "{printed}");
        assert!(
            packet_path[1].contains("  in by v1: Ethernet ")
                && packet_path[1].contains("IPv4 10.0.1.2 > 10.0.2.2 ttl 64")
        );
        assert!(
            packet_path[2].starts_with("  look up 10.0.2.2 in table main, 10.0.2.0/24 → to dev v2 lladdr "),
            "{printed}"
        );
        assert!(packet_path[3].starts_with("  to dev v2 lladdr "), "{printed}");
        assert!(
            packet_path[4].contains("  out by v2: Ethernet ")
                && packet_path[4].contains("ttl 63 / ICMP type 8")
        );
    }

    // Only what comes in by the one port, until there are enough.
    let client = line.follow(&["--json", "--count", "3", "--port", "v2", "icmp"]);
    line.ping("-c 4 -i 0.1 10.0.2.2");
    let (printed, _, status) = client.end();
    let seen = packet_paths(&printed);
    assert_eq!((seen.len(), status), (3, Some(0)));
    for (packet_path, number) in seen.iter().zip(1..) {
        assert_eq!(
            (packet_path.packet, packet_path.port.as_str(), &packet_path.sent[..]),
            (number, "v2", &["v1".to_owned()][..])
        );
        assert!(packet_path.dropped.is_empty() && packet_path.ended && !packet_path.delivered);
    }
    line.router.stop().unwrap();
}

/// What is dropped alone; what is cut, held and shaped.
#[test]
fn dropped_fragmented_and_shaped_packets() {
    let Some(_turn) = net::turn("dropped_fragmented_and_shaped_packets") else { return };
    let line = Line::new("1");
    let client = line.follow(&["--json", "--drops", "ip"]);
    for arguments in ["-c 1 10.0.2.2", "-c 1 10.9.9.9", "-c 1 -t 1 10.0.2.2"] {
        line.ping(arguments);
    }
    let (printed, _, _) = client.interrupt();
    let reasons: Vec<_> = packet_paths(&printed).into_iter().map(|packet_path| packet_path.dropped).collect();
    assert_eq!(reasons, [["no-route"], ["hop-limit-exceeded"]]);

    line.space.run("ip link set v2 mtu 600").unwrap();
    line.router
        .run("ip route flush cache; tc qdisc add dev v2 root tbf rate 400kbit burst 700 limit 20000")
        .unwrap();
    line.hosts[1].run("ip link set e0 mtu 600").unwrap();
    line.space.run("ip neigh flush dev v2").unwrap();
    let client = line.follow(&["--json", "--write", "/dev/null", "src", "host", "10.0.1.2"]);
    line.ping("-c 1 -M dont -s 1400 10.0.2.2");
    let (printed, _, _) = client.interrupt();
    let [packet_path] = &packet_paths(&printed)[..] else { panic!("{printed}") };
    let count = |step: &str| packet_path.steps.iter().filter(|known| known.step == step).count();
    assert!(packet_path.ended && packet_path.sent == ["v2", "v2", "v2"], "{packet_path:?}");
    assert_eq!((count("fragmented"), count("queued"), count("dequeued")), (1, 3, 3), "{packet_path:?}");
    // Three fragments of 12 ms each, and a bucket that holds one.
    let last = packet_path.steps.last().unwrap();
    assert!(last.step == "dequeued" && last.after > 10_000_000, "{packet_path:?}");
    line.router.stop().unwrap();
}

/// Frames as they came in and as they left, as tshark reads them.
#[test]
fn captures_with_comments() {
    let Some(_turn) = net::turn("captures_with_comments") else { return };
    let line = Line::new("1");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out.pcapng");
    let client = line.follow(&["--count", "1", "--write", file.to_str().unwrap(), "icmp"]);
    line.ping("-c 1 10.0.2.2");
    assert_eq!(client.end().2, Some(0));
    let fields = ["frame.interface_name", "ip.ttl", "ip.dst", "frame.comment"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields"]).args(fields.iter().flat_map(|field| ["-e", field])).arg("-r").arg(&file);
    match tshark.output() {
        Ok(output) => {
            let told = String::from_utf8(output.stdout).unwrap();
            let [came, left] = told.lines().collect::<Vec<_>>()[..] else { panic!("{told}") };
            assert!(came.starts_with("v1\t64\t10.0.2.2\tas it came in: packet 1 at "), "{told}");
            assert!(left.starts_with("v2\t63\t10.0.2.2\tas it left: packet 1 at "), "{told}");
            assert!(came.contains("look up 10.0.2.2 in table main, 10.0.2.0/24 → to dev v2"), "{told}");
        }
        Err(error) => net::skip("captures_with_comments: comments", &format!("tshark: {error}")),
    }
    line.router.stop().unwrap();
}

/// What was dropped is told by reason and by port, with the last packet as a capture too; by prefix of what is followed.
#[test]
fn drops_by_reason_port_and_prefix() {
    let Some(_turn) = net::turn("drops_by_reason_port_and_prefix") else { return };
    let line = Line::new("2");
    let exec = format!("{} exec -- ", program().display());
    line.space.run(&format!("{exec} ip route add blackhole 10.66.0.0/16")).unwrap();
    let client = line.follow(&["--drops", "--summary", "--json", "--rate", "1000"]);
    line.ping("-c 3 -i 0.01 10.66.1.1");
    line.ping("-c 2 -i 0.01 10.77.1.1");
    let (printed, said, status) = client.interrupt();
    assert_eq!(status, Some(0), "{said}");
    let rows: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let row = |reason: &str| {
        let became = format!("dropped: {reason}");
        let is_it =
            |row: &&serde_json::Value| row["became"].as_str().is_some_and(|text| text.contains(&became));
        rows.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{printed}")).clone()
    };
    let blackhole = row("blackhole");
    assert_eq!((&blackhole["packets"], &blackhole["port"]), (&3.into(), &"v1".into()), "{printed}");
    assert_eq!(
        (&blackhole["table"], &blackhole["prefix"]),
        (&254.into(), &"10.66.0.0/16".into()),
        "{printed}"
    );
    let no_route = row("no-route");
    assert_eq!(
        (&no_route["became"], &no_route["prefix"]),
        (&"dropped: no-route, answered by ICMP".into(), &"10.77.1.1".into()),
        "{printed}"
    );

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drops.pcapng");
    let stats = |arguments: &str| {
        let outcome = line.space.outcome(&format!("{} stats {arguments}", program().display())).unwrap();
        (outcome.status, outcome.output)
    };
    let (status, told) = stats("drops");
    assert_eq!(status, 0, "{told}");
    let blackhole: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("blackhole: 3 packets. ")).collect();
    assert_eq!(blackhole[1], "    in by v1 3", "{told}");
    assert!(
        blackhole[2].contains(" s ago, in by v1, 98 bytes: Ethernet ")
            && blackhole[2].contains(" > 10.66.1.1 "),
        "{told}"
    );
    // One that was answered by an ICMP error is shown as it came.
    let no_route = told.lines().skip_while(|line| !line.starts_with("no-route: 2 packets. ")).nth(2).unwrap();
    assert!(
        no_route.contains(", in by v1, 98 bytes: ") && no_route.contains(" > 10.77.1.1 ttl 64 "),
        "{told}"
    );
    assert_eq!(stats(&format!("drops blackhole --write {}", file.display())).0, 0);
    let mut tshark = Command::new("tshark");
    tshark
        .args(["-T", "fields", "-e", "frame.interface_name", "-e", "ip.dst", "-e", "frame.len"])
        .arg("-r")
        .arg(&file);
    match tshark.output() {
        Ok(output) => assert_eq!(String::from_utf8(output.stdout).unwrap(), "v1\t10.66.1.1\t98\n"),
        Err(error) => net::skip("drops_by_reason_port_and_prefix: the capture", &format!("tshark: {error}")),
    }
    let (status, told) = stats("drops no-such-thing");
    assert!(status != 0 && told.contains("invalid value 'no-such-thing'"), "{told}");
    line.router.stop().unwrap();
}

#[test]
fn who_follows_may_go_at_any_time() {
    let Some(_turn) = net::turn("who_follows_may_go_at_any_time") else { return };
    let line = Line::new("2");
    let refused = |arguments: &str| {
        let outcome = line.space.outcome(&format!("{} trace {arguments}", program().display())).unwrap();
        assert_eq!(outcome.status, 1, "{}", outcome.output);
        outcome.output
    };
    let mut client = line.follow(&[]);
    let others: Vec<_> = (1..8).map(|_| line.follow(&["--json", "--count", "1", "icmp"])).collect();
    assert_eq!(refused("ip6"), "underpass: 8 others follow packets of this router\n");
    kill(client.pid(), Signal::SIGKILL).unwrap();
    client.child.wait().unwrap();
    // The next may as soon as the router has missed the first.
    let deadline = Instant::now() + Duration::from_secs(3);
    let again = format!("{} trace --time 0.1 ip6", program().display());
    while line.space.outcome(&again).unwrap().status != 0 {
        assert!(Instant::now() < deadline, "the router still follows for one that is gone");
    }
    // All others are told of one packet.
    line.ping("-c 1 10.0.2.2");
    for other in others {
        let (printed, said, status) = other.end();
        assert_eq!((packet_paths(&printed).len(), status), (1, Some(0)), "{printed}{said}");
    }
    assert_eq!(refused("--port e7"), "underpass: e7 is no port of the router\n");
    assert!(refused("tcp prot 80").starts_with("underpass: the filter 'tcp prot 80': "));

    // More than are followed in a second: the others are counted, and pass.
    let client = line.follow(&["--json", "--rate", "1", "icmp", "and", "dst", "10.0.2.2"]);
    let sent = net::pings(&line.hosts[0], "10.0.2.2", 20).unwrap();
    let (printed, said, _) = client.interrupt();
    let followed = packet_paths(&printed).len();
    assert!(followed < sent, "{followed} followed");
    assert!(said.ends_with(&format!("followed, {} more matched\n", sent - followed)), "{said}");

    // The router ends: so does who follows.
    let client = line.follow(&[]);
    line.router.stop().unwrap();
    let (_, said, status) = client.end();
    assert_eq!((said.lines().last(), status), (Some("underpass: the router has gone"), Some(1)), "{said}");
}
