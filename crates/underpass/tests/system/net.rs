//! What the tests build with: hosts, routers of either kind, packets that are counted one by one.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use underpass_daemon::testbed::{self, Namespace, Router};

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_underpass"))
}

/// Says why a test is skipped, where it is seen: the test runner keeps only what is printed by macros.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}

/// The right to run.
#[expect(dead_code, reason = "held until it goes out of scope")]
pub enum Turn {
    Beside(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

static TURNS: RwLock<()> = RwLock::new(());

/// The right to run beside other tests; `None`, said aloud, where this is not root.
pub fn turn(test: &str) -> Option<Turn> {
    permitted(test).then(|| Turn::Beside(TURNS.read().unwrap_or_else(PoisonError::into_inner)))
}

/// The right to run while no other test does: one that measures, or that loses no packet at a rate.
pub fn turn_alone(test: &str) -> Option<Turn> {
    permitted(test).then(|| Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner)))
}

fn permitted(test: &str) -> bool {
    if !testbed::permitted() {
        skip(test, "not root");
    }
    testbed::permitted()
}

pub fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

/// `h1 – r – h2`, with 10.0.1/24 and fd00:1::/64 to the one side and 10.0.2/24 and fd00:2::/64 to the other.
pub struct Line {
    pub hosts: [Namespace; 2],
    pub router: Namespace,
}

impl Line {
    pub fn new() -> Self {
        let [h1, r, h2] = ["h1", "r", "h2"].map(namespace);
        for (n, host) in [(1, &h1), (2, &h2)] {
            testbed::join(&r, &format!("v{n}"), host, "e0").unwrap();
            r.run(&format!(
                "ip link set v{n} up; ip addr add 10.0.{n}.1/24 dev v{n}; ip addr add fd00:{n}::1/64 dev v{n} nodad"
            ))
            .unwrap();
            host.run(&format!(
                "sysctl -qw net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.e0.seg6_enabled=1
                 ip link set e0 up; ip addr add 10.0.{n}.2/24 dev e0; ip addr add fd00:{n}::2/64 dev e0 nodad
                 ip route add default via 10.0.{n}.1; ip -6 route add default via fd00:{n}::1"
            ))
            .unwrap();
        }
        Self { hosts: [h1, h2], router: r }
    }

    pub fn start(&self, arguments: &[&str]) -> Router {
        Router::start(program(), &self.router, arguments).unwrap()
    }
}

/// Which router a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    Underpass,
}

/// A router: the kernel's own, or Underpass beside it.
pub struct Node {
    pub namespace: Namespace,
    pub router: Option<Router>,
}

impl Node {
    /// A node that forwards, without devices.
    pub fn new(name: &str) -> Self {
        let namespace = namespace(name);
        namespace
            .run(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                 net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.default.seg6_enabled=1 \
                 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
            )
            .unwrap();
        Self { namespace, router: None }
    }

    /// Starts the router; its devices should be there.
    pub fn start(&mut self, kind: Kind) {
        if kind == Kind::Underpass {
            self.start_with(&[]);
        }
    }

    /// Starts Underpass with these arguments.
    pub fn start_with(&mut self, arguments: &[&str]) {
        self.router = Some(Router::start(program(), &self.namespace, arguments).unwrap());
    }

    /// Lines of shell, told to the router, which must succeed.
    pub fn run(&self, lines: &str) -> String {
        let done = match &self.router {
            Some(router) => router.run(lines),
            None => self.namespace.run(lines),
        };
        done.unwrap_or_else(|error| panic!("{error:#}{}", self.log()))
    }

    /// What the router said and counted, for the message of a failure.
    pub fn log(&self) -> String {
        let Some(router) = &self.router else { return String::new() };
        let stats = self.namespace.outcome(&format!("{} stats", program().display())).unwrap().output;
        format!("\n{} said:\n{}\n{stats}", self.namespace.name(), router.log().unwrap())
    }

    /// Ends the router, which must end well.
    pub fn stop(self) {
        if let Some(router) = self.router {
            router.stop().unwrap();
        }
    }
}

/// A number after a word in what `ip` prints: `packets 3`.
pub fn number(text: &str, word: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    words.nth(1)?.parse().ok()
}

/// Pings until an answer comes, and no error with it: who has just set up one end of a tunnel hears of the other, which was not
/// there yet, once for each packet that it has sent there.
pub fn settle(host: &Namespace, address: &str, patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    loop {
        let outcome = host.outcome(&format!("ping -n -c 1 -W 1 {address}")).unwrap();
        if outcome.status == 0 && !outcome.output.contains(" errors, ") {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{} does not reach {address}:\n{}", host.name(), outcome.output));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// `count` pings, 20 ms apart, each of which must be answered once. The last have as long as the first: by itself ping
/// waits two round trips for them, which counts a moment without a processor as a loss.
pub fn ping(host: &Namespace, address: &str, count: u32) -> Result<(), String> {
    pings(host, address, count).map(drop)
}

/// The same; how many were sent until as many were answered.
pub fn pings(host: &Namespace, address: &str, count: u32) -> Result<usize, String> {
    let line = format!("ping -n -c {count} -i 0.02 -w {} {address}", 10 + count / 10);
    let outcome = host.outcome(&line).unwrap();
    // It goes on until it has as many answers, sometimes one more: behind a lost one there would be others.
    let answered: Vec<u32> = outcome
        .output
        .split("icmp_seq=")
        .skip(1)
        .filter_map(|rest| rest.split([' ', ':']).next()?.parse().ok())
        .collect();
    // What waited for a neighbour may be overtaken by what comes later: behind the last answer those that ping has not waited for.
    let last = answered.last().copied().unwrap_or_default();
    let once = answered.iter().all(|one| answered.iter().filter(|other| *other == one).count() == 1);
    let all = once && (1..=last).all(|one| answered.contains(&one)) && answered.len() >= count as usize;
    match outcome.status == 0 && all {
        true => sent(&outcome.output).ok_or(outcome.output),
        false => Err(format!("{}: {line}:\n{}", host.name(), outcome.output)),
    }
}

/// `20 packets transmitted, 20 received, …`
fn sent(told: &str) -> Option<usize> {
    told.split_once(" packets transmitted")?.0.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Numbered UDP packets from one host to another at a steady rate, until it is ended.
pub struct Stream {
    stop: &'static AtomicBool,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Vec<(u64, Instant)>>,
}

/// What became of the packets of a [`Stream`].
#[derive(Debug)]
pub struct Delivery {
    pub sent: u64,
    pub received: u64,
    /// How many came after one that was sent later.
    pub misordered: u64,
    pub duplicates: u64,
    /// The longest time without a packet.
    pub gap: Duration,
}

impl Delivery {
    pub fn lost(&self) -> u64 {
        self.sent - self.received
    }

    /// Every packet came, once, in order.
    pub fn assert_whole(&self) {
        assert!(self.lost() == 0 && self.misordered == 0 && self.duplicates == 0, "{self:?}");
    }
}

impl Stream {
    /// Starts sending so many packets a second.
    pub fn start(from: &Namespace, to: &Namespace, address: IpAddr, port: u16, rate: u32) -> Self {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let any = if address.is_ipv6() { "[::]" } else { "0.0.0.0" };
        let sink = to.enter(|| UdpSocket::bind(format!("{any}:{port}"))).unwrap().unwrap();
        let source = from.enter(|| UdpSocket::bind(format!("{any}:0"))).unwrap().unwrap();
        let _ = nix::sys::socket::setsockopt(&sink, nix::sys::socket::sockopt::RcvBufForce, &(8 << 20));
        sink.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (ended, last) = mpsc::channel();
        let sender = thread::spawn(move || {
            let (start, mut number) = (Instant::now(), 0_u64);
            let to = SocketAddr::new(address, port);
            let mut payload = [0; 64];
            while !stop.load(Relaxed) {
                let due = start + Duration::from_secs(1) * number as u32 / rate;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                payload[..8].copy_from_slice(&number.to_be_bytes());
                // A route that is away for a moment is an error of the socket: the packet counts as lost.
                let _ = source.send_to(&payload, to);
                number += 1;
            }
            let _ = ended.send(number);
            number
        });
        let receiver = thread::spawn(move || {
            let (mut got, mut payload, mut sent, mut idle) = (Vec::new(), [0; 64], None, 0);
            loop {
                match sink.recv(&mut payload) {
                    Ok(8..) => {
                        let number = u64::from_be_bytes(payload[..8].try_into().unwrap());
                        got.push((number, Instant::now()));
                        idle = 0;
                    }
                    Ok(_) => panic!("a packet was cut"),
                    Err(_) => idle += 1,
                }
                sent = sent.or_else(|| last.try_recv().ok());
                if let Some(sent) = sent
                    && (got.len() as u64 == sent || idle >= 5)
                {
                    return got;
                }
            }
        });
        Self { stop, sender, receiver }
    }

    /// Ends it and waits for what is still on its way.
    pub fn end(self) -> Delivery {
        self.stop.store(true, Relaxed);
        let sent = self.sender.join().unwrap();
        let got = self.receiver.join().unwrap();
        let mut seen = vec![false; sent as usize];
        let (mut misordered, mut duplicates, mut highest) = (0, 0, None);
        for (number, _) in &got {
            duplicates += u64::from(std::mem::replace(&mut seen[*number as usize], true));
            misordered += u64::from(highest.is_some_and(|highest| *number < highest));
            highest = highest.max(Some(*number));
        }
        let gap = got.windows(2).map(|pair| pair[1].1 - pair[0].1).max().unwrap_or_default();
        let received = seen.iter().filter(|seen| **seen).count() as u64;
        Delivery { sent, received, misordered, duplicates, gap }
    }
}
