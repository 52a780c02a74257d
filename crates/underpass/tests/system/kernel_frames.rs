//! Frames that the kernel keeps, or has taken something off: traffic control sees the ones, the router counts the others.
//!
//! ```text
//! h1 ──── v1 R v2 ──── h2
//! ```

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::{
    live::Stats,
    testbed::{Namespace, join},
};

use super::net::{self, Node, ping, program, settle};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const MPLS: u16 = 0x8847;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

struct Lab {
    hosts: [Namespace; 2],
    router: Node,
}

impl Lab {
    /// `vlan` is whether devices take tags off and put them on: `on`, as they are made, or `off`, for which ethtool is
    /// needed. With the driver `generic`, v1 has no XDP of its own.
    fn new(driver: &str, vlan: &str) -> Self {
        let hosts = [net::namespace("h1"), net::namespace("h2")];
        let mut router = Node::new("r");
        for (n, host) in (1..).zip(&hosts) {
            if (driver, n) == ("generic", 1) {
                join(host, "e0", &router.namespace, "w1").unwrap();
                // The device below would answer for the addresses of v1, past its filters.
                router.run(
                    "sysctl -qw net.ipv4.conf.w1.arp_ignore=1
                     ip link set w1 up; ip link add link w1 name v1 type macvlan mode bridge",
                );
            } else {
                join(host, "e0", &router.namespace, &format!("v{n}")).unwrap();
            }
            if vlan == "off" {
                let off = |device: &str| format!("ethtool -K {device} rxvlan off txvlan off > /dev/null");
                host.run(&off("e0")).unwrap();
                router.run(&off(&format!("v{n}")));
            }
            host.run(&format!(
                "ip link set e0 up
                 ip addr add 10.0.{n}.2/24 dev e0; ip addr add fd00:{n}::2/64 dev e0 nodad
                 ip route add default via 10.0.{n}.1; ip -6 route add default via fd00:{n}::1"
            ))
            .unwrap();
            router.run(&format!(
                "ip link set v{n} up
                 ip addr add 10.0.{n}.1/24 dev v{n}; ip addr add fd00:{n}::1/64 dev v{n} nodad"
            ));
        }
        // A worker has a queue of its own with AF_XDP, of which these devices have one.
        let (driver, workers) = if driver == "packet" { (driver, "2") } else { ("xdp", "1") };
        router.start_with(&["--driver", driver, "--workers", workers, "--attach", "v1", "--attach", "v2"]);
        let lab = Self { hosts, router };
        lab.works();
        lab
    }

    fn works(&self) {
        for address in ["10.0.2.2", "fd00:2::2", "10.0.1.1"] {
            settle(&self.hosts[0], address, Duration::from_secs(10)).unwrap();
        }
    }

    fn stats(&self) -> Stats {
        let told = self.router.namespace.run(&format!("{} stats --json", program().display())).unwrap();
        serde_json::from_str(&told).unwrap()
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.stats().drops.get(reason).copied().unwrap_or_default()
    }

    /// Every packet has one end.
    fn adds_up(&self) {
        let totals = self.stats().totals;
        let ends = totals.sent + totals.delivered + totals.dropped + totals.held;
        assert_eq!(totals.received + totals.generated, ends, "{totals:?}");
    }

    /// Pings the router's own address `count` times, which is known without ARP; how many are answered.
    fn ping_router(&self, count: u32, options: &str) -> usize {
        let mac = hex(mac(&self.router.namespace, "v1"));
        let host = &self.hosts[0];
        host.run(&format!("ip neigh replace 10.0.1.1 lladdr {mac} dev e0 nud permanent")).unwrap();
        let line = format!("ping -n -c {count} -i 0.02 -W 1 {options} 10.0.1.1");
        let output = host.outcome(&line).unwrap().output;
        host.run("ip neigh del 10.0.1.1 dev e0").unwrap();
        output.matches("icmp_seq=").count()
    }

    /// What the filters of v1 have counted.
    fn filters(&self) -> String {
        self.router.run("tc -s filter show dev v1 ingress")
    }
}

fn mac(space: &Namespace, device: &str) -> [u8; 6] {
    let told = space.run(&format!("ip link show {device}")).unwrap();
    let text = told.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    std::array::from_fn(|_| bytes.next().unwrap())
}

fn hex(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A socket for all frames of a device.
fn tap(space: &Namespace, device: &str) -> OwnedFd {
    space.enter(|| underpass_port::packet::tap(underpass_port::index_of(device).unwrap()).unwrap()).unwrap()
}

fn frame(to: [u8; 6], from: [u8; 6], tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &from].concat();
    for (kind, control) in tags {
        frame.extend([kind.to_be_bytes(), control.to_be_bytes()].concat());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An echo request from h1.
fn echo(destination: [u8; 4], number: u16) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
        let sum: u32 = words.sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let mut message = [&[8, 0, 0, 0, 0x12, 0x34][..], &number.to_be_bytes(), &[7; 24]].concat();
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum);
    let mut header = [&[0x45, 0, 0, 52, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 1, 2][..], &destination].concat();
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum);
    [header, message].concat()
}

/// Who has 10.0.1.1? Tell 10.0.1.99.
fn who_has(from: [u8; 6]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1][..], &from, &[10, 0, 1, 99, 0, 0, 0, 0, 0, 0, 10, 0, 1, 1]].concat()
}

fn send(tap: &OwnedFd, frame: &[u8]) {
    assert_eq!(nix::unistd::write(tap, frame).unwrap(), frame.len());
}

/// Frames from a station that come to a tap, until `enough` do or a second has passed.
fn receive(tap: &OwnedFd, enough: usize, wanted: impl Fn(&[u8]) -> bool) -> usize {
    let (deadline, mut frame, mut count) = (Instant::now() + Duration::from_secs(1), [0; 2048], 0);
    while Instant::now() < deadline && count < enough {
        match nix::unistd::read(tap, &mut frame) {
            Ok(len) => count += usize::from(wanted(&frame[..len])),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    count
}

/// Echo requests that a kernel has received.
fn echoes(space: &Namespace) -> u64 {
    let told = space.run("grep ^Icmp: /proc/net/snmp").unwrap();
    let mut lines = told.lines().map(|line| line.split(' '));
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "InEchos").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

fn soon(what: &str, met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(3);
    while !met() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel takes the first tag off a frame before a socket has it.
#[test]
fn vlan_frames_are_counted_and_priority_tags_taken_off() {
    let Some(_turn) = net::turn("vlan_frames_are_counted_and_priority_tags_taken_off") else { return };
    let ethtool = Command::new("ethtool").arg("--version").stdout(Stdio::null()).status().is_ok();
    for (driver, vlan) in [("packet", "on"), ("packet", "off"), ("xdp", "off")] {
        if vlan == "off" && !ethtool {
            net::skip(&format!("tags that {driver} ports find in the frame"), "no ethtool");
            continue;
        }
        let lab = Lab::new(driver, vlan);
        let [h1, h2] = &lab.hosts;
        let (tap, to, from) = (tap(h1, "e0"), mac(&lab.router.namespace, "v1"), mac(h1, "e0"));
        let numbers = |count: u16, tag: (u16, u16), destination| {
            for number in 0..count {
                send(&tap, &frame(to, from, &[tag], IPV4, &echo(destination, number)));
                thread::sleep(Duration::from_micros(200));
            }
        };
        if driver == "packet" {
            let mut command = lab.router.namespace.command(program());
            command.args(["trace", "--drops", "--count", "1", "--port", "v1"]);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(child.stderr.take().unwrap());
            said.read_line(&mut String::new()).unwrap();
            thread::sleep(Duration::from_millis(50));
            let before = lab.dropped("vlan-unknown");
            numbers(200, (VLAN, 5), [10, 0, 2, 2]);
            // With a priority, and one that the router itself is to receive.
            numbers(60, (VLAN, 0x6005), [10, 0, 1, 1]);
            numbers(40, (SERVICE_VLAN, 7), [10, 0, 2, 2]);
            soon("300 drops", || lab.dropped("vlan-unknown") >= before + 300);
            assert_eq!(lab.dropped("vlan-unknown"), before + 300, "{driver} {vlan}");
            let mut seen = String::new();
            child.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
            child.wait().unwrap();
            assert!(seen.contains("vlan-unknown") && seen.contains("VLAN "), "{seen}");
        }
        for (tag, destination, space) in [
            ((VLAN, 0), [10, 0, 2, 2], h2),
            ((VLAN, 0xe000), [10, 0, 2, 2], h2),
            ((SERVICE_VLAN, 0), [10, 0, 2, 2], h2),
            ((VLAN, 0), [10, 0, 1, 1], &lab.router.namespace),
        ] {
            let before = echoes(space);
            numbers(50, tag, destination);
            soon(&format!("{driver} {vlan} {tag:x?}: priority tags"), || echoes(space) >= before + 50);
            thread::sleep(Duration::from_millis(50));
            assert_eq!(echoes(space), before + 50, "{driver} {vlan} {tag:x?}");
        }
        lab.works();
        lab.adds_up();
        lab.router.stop();
    }
}

#[test]
fn filters_see_what_the_kernel_keeps() {
    let Some(_turn) = net::turn("filters_see_what_the_kernel_keeps") else { return };
    for driver in ["packet", "xdp", "generic"] {
        let lab = Lab::new(driver, "on");
        let attached = |stats: Stats| stats.ports.into_iter().find(|port| port.name == "v1").unwrap().driver;
        let wanted =
            if driver == "packet" { "packet" } else { &format!("xdp-{}", driver.replace("xdp", "native")) };
        assert_eq!(attached(lab.stats()), wanted);
        let [h1, h2] = &lab.hosts;
        let add = "tc filter add dev v1 ingress";

        lab.router.run("tc qdisc add dev v1 clsact");
        lab.router.run(&format!("{add} pref 1 protocol ip flower dst_ip 10.0.1.1 ip_proto icmp action drop"));
        assert_eq!(lab.ping_router(20, ""), 0, "{driver}: dropped");
        let all = |counted: &str| counted.contains("Sent 1680 bytes 20 pkt (dropped 20, overlimits 0");
        soon(&format!("{driver}: 20 counted"), || all(&lab.filters()));
        assert_eq!(lab.dropped("tc-action"), 20, "{driver}");
        // By what device frames come back is nobody's affair.
        let shown = lab.router.run("ip -br link; tc qdisc show");
        assert!(shown.contains("v1") && !shown.contains("upk") && !shown.contains("upm"), "{shown}");

        lab.router.run("tc filter del dev v1 ingress");
        lab.router.run(&format!(
            "{add} pref 1 protocol ip flower dst_ip 10.0.1.1 ip_proto icmp \
             action police rate 8kbit burst 5000 conform-exceed drop"
        ));
        let answered = lab.ping_router(20, "-s 1400");
        assert!((2..=6).contains(&answered), "{driver}: {answered}");
        // ping does not wait for what is not answered.
        let refused = 20 - answered as u64;
        soon(&format!("{driver}: {refused} refused"), || lab.dropped("police") >= refused);
        assert_eq!(lab.dropped("police"), refused, "{driver}");

        // What the kernel alone would answer.
        lab.router.run("tc filter del dev v1 ingress");
        lab.router.run(&format!("{add} pref 1 protocol arp matchall action mirred egress redirect dev v2"));
        let (of_h1, aside) = (mac(h1, "e0"), tap(h2, "e0"));
        let (tap, to) = (tap(h1, "e0"), mac(&lab.router.namespace, "v1"));
        // The host has questions of its own too.
        let question = frame([0xff; 6], of_h1, &[], ARP, &who_has(of_h1));
        for _ in 0..30 {
            send(&tap, &question);
            thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(receive(&aside, 31, |got| got == question), 30, "{driver}: {}", lab.filters());
        let answer = |frame: &[u8]| frame[6..12] == to && frame[12..14] == [8, 6] && frame[20..22] == [0, 2];
        assert_eq!(receive(&tap, 1, answer), 0, "{driver}: the kernel has not seen them");

        // Labels that the port does not take.
        lab.router.run("tc filter del dev v1 ingress");
        lab.router
            .run(&format!("{add} pref 1 protocol mpls_uc matchall action mirred egress redirect dev v2"));
        for number in 0..30 {
            let labelled = [&[0, 0, 0x61, 64][..], &echo([10, 0, 2, 2], number)].concat();
            send(&tap, &frame(to, of_h1, &[], MPLS, &labelled));
            thread::sleep(Duration::from_micros(200));
        }
        let labelled = |got: &[u8]| got[6..12] == of_h1 && got[12..14] == MPLS.to_be_bytes();
        assert_eq!(receive(&aside, 31, labelled), 30, "{driver}: {}", lab.filters());

        // What passes is the kernel's as ever: of every kind, whole, once.
        lab.router.run(&format!("tc filter del dev v1 ingress; {add} pref 1 matchall action ok"));
        h1.run("ip neigh flush dev e0").unwrap();
        lab.works();
        for address in
            ["10.0.1.1", "fd00:1::1", "10.0.2.2", "fd00:2::2", "-s 4000 10.0.1.1", "-s 4000 fd00:1::1"]
        {
            ping(h1, address, 20).unwrap_or_else(|error| panic!("{driver}: {error}{}", lab.router.log()));
        }
        ping(&lab.router.namespace, "10.0.1.2", 20).unwrap();
        let local = h1.outcome("ping -n -c 2 -i 0.1 -W 1 ff02::1%e0").unwrap().output;
        assert!(local.contains("from fe80::"), "{driver}: {local}");
        carry(h1, &lab.router.namespace, "10.0.1.1:5001");
        carry(h1, h2, "10.0.2.2:5001");
        let counted = lab.filters();
        assert!(counted.contains("(dropped 0, overlimits 0"), "{driver}: {counted}");
        lab.adds_up();

        // A rule of all frames takes what resolves addresses too.
        lab.router.run(&format!("tc filter del dev v1 ingress; {add} pref 1 matchall action drop"));
        assert_eq!(lab.ping_router(10, ""), 0, "{driver}");
        assert_ne!(h1.outcome("ping -n -c 2 -i 0.1 -W 1 10.0.2.2").unwrap().status, 0, "{driver}");

        lab.router.run("tc qdisc del dev v1 clsact");
        lab.works();
        carry(h1, &lab.router.namespace, "10.0.1.1:5002");
        let delivered = lab.stats().totals.delivered;
        ping(h1, "10.0.1.1", 10).unwrap();
        assert_eq!(lab.stats().totals.delivered, delivered, "{driver}: the kernel has them by itself again");
        lab.adds_up();
        lab.router.stop();
    }
}

/// Carries 16 MiB, which must arrive as they were.
fn carry(from: &Namespace, to: &Namespace, address: &str) {
    const PIECE: usize = 1 << 16;
    let listener = to.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let receiver = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut piece, mut total) = (vec![0; PIECE], 0_usize);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => return total,
                len => {
                    let right =
                        piece[..len].iter().enumerate().all(|(at, byte)| *byte == ((total + at) / 3) as u8);
                    assert!(right, "{total}");
                    total += len;
                }
            }
        }
    });
    let mut stream = from.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let whole: Vec<u8> = (0..256 * PIECE).map(|at| (at / 3) as u8).collect();
    stream.write_all(&whole).unwrap();
    drop(stream);
    assert_eq!(receiver.join().unwrap(), whole.len());
}

/// What the host itself sends by a device does not come by the router: a request that would have it pass a filter or a
/// qdisc there is warned of.
#[test]
fn a_filter_of_what_the_host_sends_is_warned_of() {
    let Some(_turn) = net::turn("a_filter_of_what_the_host_sends_is_warned_of") else { return };
    let lab = Lab::new("packet", "on");
    lab.router.run("tc qdisc add dev v1 clsact");
    assert!(lab.stats().warnings.is_empty(), "{:?}", lab.stats().warnings);
    lab.router.run("tc filter add dev v1 egress matchall action ok");
    lab.router.run("tc qdisc add dev v2 root tbf rate 10mbit burst 10k latency 50ms");
    let warnings = lab.stats().warnings;
    for device in ["v1", "v2"] {
        let named = |warning: &&String| {
            warning.starts_with(&format!("{device}: ")) && warning.contains("host itself")
        };
        assert_eq!(warnings.iter().filter(named).count(), 1, "{warnings:?}");
        assert!(
            lab.router.log().contains(&format!("{device}: what the host itself sends")),
            "{}",
            lab.router.log()
        );
    }
    lab.router.run("tc filter del dev v1 egress; tc qdisc del dev v2 root");
    assert!(lab.stats().warnings.is_empty(), "{:?}", lab.stats().warnings);
    lab.router.stop();
}
