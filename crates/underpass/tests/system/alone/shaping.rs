//! What `tc` shapes on a router's links, at a rate that the router's own clock keeps.
//!
//! ```text
//! h1 ──── in R out ──── h2
//! ```

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::net::{self, Kind::Underpass, Node, number, settle, turn_alone};
use underpass_daemon::testbed::{Namespace, join};

/// Bits a second that are asked for.
pub const RATE: f64 = 20e6;
/// Bytes of UDP payload, and of the frame that they make.
const PAYLOAD: usize = 1200;
const FRAME: usize = PAYLOAD + 8 + 20 + 14;

/// Sends at about 50 Mbit/s for a while; gives the rate of frames at the other host, in bits a second, from its
/// second half second on, and how many came in all.
pub fn flood(from: &Namespace, to: &Namespace, address: &'static str, port: u16) -> (f64, u64) {
    let sink = to.enter(|| UdpSocket::bind(("0.0.0.0", port))).unwrap().unwrap();
    let source = from.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let _ = nix::sys::socket::setsockopt(&sink, nix::sys::socket::sockopt::RcvBufForce, &(8 << 20));
    let patience = |time| sink.set_read_timeout(Some(Duration::from_millis(time))).unwrap();
    patience(5000);
    let sender = thread::spawn(move || {
        let (start, payload) = (Instant::now(), [0; PAYLOAD]);
        let mut sent = 0_u32;
        while start.elapsed() < Duration::from_millis(2500) {
            let due = (start.elapsed().as_secs_f64() * 50e6 / 8.0 / FRAME as f64) as u32;
            while sent < due {
                let _ = source.send_to(&payload, (address, port));
                sent += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let (mut arrivals, mut payload) = (Vec::new(), [0; PAYLOAD]);
    while let Ok(PAYLOAD) = sink.recv(&mut payload) {
        patience(500);
        arrivals.push(Instant::now());
    }
    sender.join().unwrap();
    let (first, last) = (arrivals[0], arrivals[arrivals.len() - 1]);
    let steady = first + Duration::from_millis(500);
    let counted = arrivals.iter().filter(|at| **at > steady).count();
    let time = last.saturating_duration_since(steady).as_secs_f64();
    ((counted * FRAME * 8) as f64 / time, arrivals.len() as u64)
}

struct Lab {
    hosts: [Namespace; 2],
    router: Node,
}

impl Lab {
    fn new() -> Self {
        let hosts = [net::namespace("h1"), net::namespace("h2")];
        let mut router = Node::new("r");
        for (n, (host, device)) in (1..).zip(hosts.iter().zip(["in", "out"])) {
            join(host, "eth0", &router.namespace, device).unwrap();
            host.run(&format!(
                "ip link set eth0 up
                 ip addr add 10.{n}.0.2/24 dev eth0
                 ip route add default via 10.{n}.0.1"
            ))
            .unwrap();
        }
        router.start(Underpass);
        router.run(
            "ip link set in up
             ip link set out up
             ip addr add 10.1.0.1/24 dev in
             ip addr add 10.2.0.1/24 dev out",
        );
        settle(&hosts[0], "10.2.0.2", Duration::from_secs(10)).unwrap();
        Self { hosts, router }
    }

    /// Floods, and compares rate and counters with what was asked for.
    fn assert_shaped(&self, what: &str, device: &str, port: u16) {
        let (rate, received) = flood(&self.hosts[0], &self.hosts[1], "10.2.0.2", port);
        let shown = self.router.run(&format!("tc -s qdisc show dev {device}"));
        let log = || format!("{what}: {rate} bit/s\n{shown}{}", self.router.log());
        assert!((rate / RATE - 1.0).abs() < 0.1, "{}", log());
        let sent = number(&shown, "bytes").unwrap_or_else(|| panic!("{}", log()));
        // A busy receiver may lose some.
        assert!((received..=received + received / 20).contains(&sent), "{received} packets came: {}", log());
        assert!(!shown.contains("dropped 0,"), "{}", log());
    }
}

/// `tbf` where packets leave; `htb` behind the ingress hook, without an ifb; and with an ifb of the kernel's.
#[test]
fn tc_shapes() {
    let Some(_turn) = turn_alone("tc_shapes") else { return };
    let lab = Lab::new();
    lab.router.run("tc qdisc add dev out root tbf rate 20mbit burst 100k limit 100k");
    lab.assert_shaped("tbf", "out", 5001);
    lab.router.run(
        "tc qdisc del dev out root
         tc qdisc add dev in clsact
         tc qdisc add dev in parent ffff:fff2 handle 1: htb default 1
         tc class add dev in parent 1: classid 1:1 htb rate 20mbit burst 100k
         tc qdisc add dev in parent 1:1 bfifo limit 100k",
    );
    lab.assert_shaped("htb at ingress", "in parent ffff:fff2", 5002);
    lab.router.run(
        "tc qdisc del dev in parent ffff:fff2
         ip link add ifb0 type ifb
         ip link set ifb0 up
         tc qdisc add dev ifb0 root handle 1: htb default 1
         tc class add dev ifb0 parent 1: classid 1:1 htb rate 20mbit burst 100k
         tc qdisc add dev ifb0 parent 1:1 bfifo limit 100k
         tc filter add dev in ingress protocol ip matchall action mirred egress redirect dev ifb0",
    );
    lab.assert_shaped("ifb", "ifb0 root", 5003);
    let (lab, router) = (lab.hosts, lab.router);
    router.stop();
    drop(lab);
}

/// TCP waits for its retransmission timer again and again where a policer drops all that exceeds: it reaches the rate if the
/// bucket holds what the rate lets through meanwhile, as the example's README advises.
#[test]
fn tcp_reaches_the_rate_of_a_policer() {
    let Some(_turn) = turn_alone("tcp_reaches_the_rate_of_a_policer") else { return };
    let lab = Lab::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cni-bandwidth/police.sh");
    let readme = fs::read_to_string(Path::new(script).with_file_name("README.md")).unwrap();
    let advised = readme.lines().find_map(|line| line.split_once("police.sh add pod 100mbit ")).unwrap().1;
    lab.router.run(&format!("sh {script} add in 100mbit {advised}"));
    let (listener, address) =
        (lab.hosts[1].enter(|| TcpListener::bind("10.2.0.2:7000")).unwrap().unwrap(), "10.2.0.2:7000");
    let receiver = thread::spawn(move || {
        let (mut stream, mut piece) = (listener.accept().unwrap().0, vec![0; 1 << 16]);
        // The full bucket is gone by then.
        let (start, warm, time) = (Instant::now(), Duration::from_secs(2), Duration::from_secs(6));
        let mut bytes = 0;
        while start.elapsed() < warm + time {
            let len = stream.read(&mut piece).unwrap();
            if start.elapsed() > warm {
                bytes += len;
            }
        }
        bytes as f64 * 8.0 / time.as_secs_f64()
    });
    let mut stream = lab.hosts[0].enter(|| TcpStream::connect(address)).unwrap().unwrap();
    while stream.write_all(&[0; 1 << 16]).is_ok() {}
    // At ingress Linux charges IP packets: of 1500 bytes, 1448 are payload.
    let share = receiver.join().unwrap() * 1500.0 / 1448.0 / 100e6;
    let filters = lab.router.run("tc -s filter show dev in ingress");
    assert!((0.9..1.1).contains(&share), "{:.1} % of the rate\n{filters}", share * 100.0);
    lab.router.stop();
}
