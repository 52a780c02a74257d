//! Configuration that changes all the time: objects of every kind are added, changed and deleted, and programs that do
//! so are killed in the middle.
//!
//! What a step makes it takes away again, so that between two steps a router has what it had before.

use std::{
    fmt::Write,
    io::Write as _,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use underpass_daemon::testbed::{Client, Namespace};

use crate::random::Random;

/// What a step makes, and what takes away all that may be left of it.
struct Step {
    name: &'static str,
    lines: String,
    undo: &'static str,
}

/// Objects of a kind.
const OBJECTS: u16 = 100;
/// Of what costs a device each.
const DEVICES: u16 = 6;
/// A step is followed by so many times its own duration without one.
const REST: u32 = 3;

/// Who changes the configuration of a router.
pub struct Churn {
    pub edge: Namespace,
    pub client: Client,
    pub side: u8,
    /// How often this router was started. A step fails if it is started anew meanwhile, and that is no failure.
    pub lives: AtomicU64,
    /// Whether the router is there.
    pub alive: AtomicBool,
    /// Steps done.
    pub steps: AtomicU64,
    /// Programs killed in the middle.
    pub killed: AtomicU64,
    /// What went wrong.
    pub problems: Mutex<Vec<String>>,
}

impl Churn {
    pub fn new(edge: Namespace, client: Client, side: u8) -> Self {
        Self {
            edge,
            client,
            side,
            lives: AtomicU64::new(1),
            alive: AtomicBool::new(true),
            steps: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            problems: Mutex::new(Vec::new()),
        }
    }

    /// Step after step until the end; none while somebody else has `gate`.
    pub fn run(&self, gate: &RwLock<()>, over: &AtomicBool) {
        let mut random = Random(u64::from(self.side));
        while !over.load(Relaxed) {
            let start = Instant::now();
            if let Ok(_open) = gate.read()
                && self.alive.load(Relaxed)
            {
                match random.below(6) {
                    0 => self.kill_some(&mut random),
                    _ => self.step(&mut random),
                }
                self.steps.fetch_add(1, Relaxed);
            }
            thread::sleep((start.elapsed() * REST).clamp(Duration::from_millis(20), Duration::from_secs(1)));
        }
    }

    /// Does something, and says whether a failure of it counts.
    fn counted<T>(&self, action: impl FnOnce() -> anyhow::Result<T>) -> Result<T, Option<anyhow::Error>> {
        let lives = self.lives.load(Relaxed);
        action().map_err(|error| {
            let same = self.alive.load(Relaxed) && self.lives.load(Relaxed) == lives;
            same.then_some(error)
        })
    }

    fn step(&self, random: &mut Random) {
        let Step { name, lines, undo } = step(random, self.side);
        if let Err(failure) = self.counted(|| self.client.run(&lines)) {
            if let Some(error) = failure {
                self.complain(format!("r{}: {name}: {error:#}", self.side));
            }
            // The router's part is gone with it, if it is gone.
            let undo = format!("set +e\n{undo}");
            let _ = self.client.outcome(&undo);
            let _ = self.edge.outcome(&undo);
        }
    }

    fn complain(&self, problem: String) {
        if let Ok(mut problems) = self.problems.lock() {
            problems.push(problem);
        }
    }

    /// Kills programs in the middle of requests and of a dump.
    fn kill_some(&self, random: &mut Random) {
        let table = "ip -6 route flush table 778 || true; ip link show > /dev/null";
        let mut requests = self.client.command("ip");
        requests.args(["-6", "-force", "-batch", "-"]).stdin(Stdio::piped());
        let mut dump = self.client.command("ip");
        dump.args(["-6", "route", "show", "table", "all"]).stdin(Stdio::null());
        let lines = routes(778, 20 * OBJECTS);
        let after = |random: &mut Random| Duration::from_micros(random.below(60_000));
        let started = [(requests, Some(lines)), (dump, None)].map(|(command, input)| start(command, input));
        for (child, after) in started.into_iter().flatten().zip([after(random), after(random)]) {
            kill(child, after);
            self.killed.fetch_add(1, Relaxed);
        }
        if let Err(Some(error)) = self.counted(|| self.client.run(table)) {
            self.complain(format!("r{}: after killed programs: {error:#}", self.side));
        }
    }
}

/// Starts a program whose output nobody reads.
fn start(mut command: Command, input: Option<String>) -> Option<Child> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    Some(child)
}

fn kill(mut child: Child, after: Duration) {
    thread::sleep(after);
    let _ = child.kill();
    let _ = child.wait();
}

/// Lines of `ip -6 -batch` that add routes to a table.
fn routes(table: u32, number: u16) -> String {
    let line = |n| {
        format!(
            "route add fd77:{n:x}::/64 encap seg6 mode encap segs fc00:2::e,fc00:2::{n:x} dev far table {table}\n"
        )
    };
    (0..number).map(line).collect()
}

/// Lines for a program's `-batch`.
fn batch(program: &str, lines: &str) -> String {
    format!("{program} -batch - <<END\n{lines}END\n")
}

/// A line for each number.
fn each(number: u16, line: impl Fn(u16) -> String) -> String {
    (0..number).fold(String::new(), |mut lines, n| {
        // Writing to a String does not fail.
        let _ = writeln!(lines, "{}", line(n));
        lines
    })
}

fn step(random: &mut Random, side: u8) -> Step {
    let other = 3 - side;
    let of = |name, lines: String, undo| Step { name, lines, undo };
    match random.below(12) {
        0 => {
            let changed = each(OBJECTS, |n| {
                let mode = ["encap.red", "inline", "encap"][usize::from(n) % 3];
                format!("route replace fd77:{n:x}::/64 encap seg6 mode {mode} segs fc00:2::d6 dev far table 777")
            });
            let deleted = each(OBJECTS / 2, |n| format!("route del fd77:{n:x}::/64 table 777"));
            let lines = format!("{}{changed}{deleted}", routes(777, OBJECTS));
            of(
                "segments",
                batch("ip -6", &lines) + "ip -6 route flush table 777",
                "ip -6 route flush table 777",
            )
        }
        1 => {
            let lines = each(OBJECTS, |n| format!("route add 10.77.{n}.0/24 via 10.12.0.{other}"))
                + &each(OBJECTS, |n| {
                    format!("route replace 10.77.{n}.0/24 nexthop via 10.12.5.{other} nexthop via 10.12.6.{other}")
                })
                + &each(OBJECTS, |n| format!("route del 10.77.{n}.0/24"));
            of("plain routes", batch("ip", &lines), "ip route flush root 10.77.0.0/16")
        }
        2 => {
            let label = |n: u16| 1000 + n;
            let lines = each(OBJECTS, |n| {
                format!("route add {} as {}/{} via inet 10.12.0.{other} dev far", label(n), 200 + n, 300 + n)
            }) + &each(OBJECTS, |n| {
                format!("route replace {} nexthop as {} via inet 10.12.5.{other} dev far nexthop as 7 via inet 10.12.6.{other} dev far", label(n), 400 + n)
            }) + &each(OBJECTS, |n| format!("route del {}", label(n)));
            of(
                "labels",
                batch("ip -f mpls", &lines),
                "for n in $(seq 1000 1099); do ip -f mpls route del $n; done",
            )
        }
        3 => {
            let action = |n: u16| {
                [
                    "End".to_owned(),
                    format!("End.X nh6 fd12::{other}"),
                    "End.DT6 table 254 count".to_owned(),
                    format!("End.B6.Encaps srh segs fc00:2::{n:x}"),
                    "End flavors psp,usd".to_owned(),
                ]
            };
            let line = |word: &str, n: u16, turn: u16| {
                let chosen = usize::from((n + turn) % 5);
                format!("route {word} fc00:77::{n:x}/128 encap seg6local action {} dev far table 779", action(n)[chosen])
            };
            let lines = each(OBJECTS, |n| line("add", n, 0))
                + &each(OBJECTS, |n| line("replace", n, 1))
                + &each(OBJECTS, |n| format!("route del fc00:77::{n:x}/128 table 779"));
            of("SIDs", batch("ip -6", &lines), "ip -6 route flush table 779")
        }
        4 => {
            let lines = each(DEVICES, |n| {
                let kind = ["ipip", "gre", "sit", "gretap"][usize::from(n) % 4];
                format!("link add c{n} type {kind} local 10.12.0.{side} remote 10.99.0.{n} ttl 9\nlink set c{n} up\naddr add 10.98.{n}.1/24 dev c{n}\nroute add 10.97.{n}.0/24 dev c{n}")
            }) + &each(DEVICES, |n| {
                let kind = ["ipip", "gre", "sit", "gretap"][usize::from(n) % 4];
                format!("link set c{n} type {kind} local 10.12.0.{side} remote 10.99.1.{n} ttl 10")
            }) + &each(DEVICES, |n| format!("link del c{n}"));
            of("tunnels", batch("ip", &lines), "for n in $(seq 0 5); do ip link del c$n; done")
        }
        5 => {
            let dev = "dev near parent ffff: protocol ip";
            let flower = |word: &str, n: u16, rate: u16| {
                format!(
                    "filter {word} {dev} prio 100 handle {} flower dst_ip 10.96.{n}.0/24 \
                     action police rate {rate}mbit burst 100k drop",
                    n + 1
                )
            };
            let lines = "qdisc add dev near ingress\n".to_owned()
                + &each(OBJECTS, |n| flower("add", n, 1))
                + &each(OBJECTS, |n| flower("replace", n, 2))
                + &each(OBJECTS / 2, |n| format!("filter del {dev} prio 100 handle {} flower", n + 1))
                + &format!("filter del {dev} prio 100\n")
                + &each(OBJECTS / 2, |n| {
                    format!(
                        "filter add {dev} prio {} u32 match ip dst 10.96.{n}.0/24 police rate 1mbit burst 10k drop",
                        200 + n % 5
                    )
                })
                + &each(5, |n| format!("filter del {dev} prio {}", 200 + n))
                + "qdisc del dev near ingress\n";
            of(
                "filters",
                batch("tc", &lines),
                "tc qdisc del dev near ingress",
            )
        }
        6 => {
            let lines = "qdisc add dev near root handle 5: htb default 1
class add dev near parent 5: classid 5:1 htb rate 20mbit
class add dev near parent 5: classid 5:2 htb rate 5mbit ceil 10mbit
qdisc add dev near parent 5:1 handle 51: fq_codel
qdisc add dev near parent 5:2 handle 52: pfifo limit 20
class change dev near parent 5: classid 5:1 htb rate 2mbit
qdisc replace dev near parent 5:1 handle 53: tbf rate 5mbit burst 10k limit 50k
class del dev near classid 5:2
";
            // A rate at which the queue is full at once, and is full when it goes.
            let lines = batch("tc", lines)
                + "sleep 0.05
tc qdisc del dev near root
tc qdisc add dev near root tbf rate 200kbit burst 3k limit 30k
sleep 0.1
tc qdisc change dev near root tbf rate 20mbit burst 30k limit 60k
tc qdisc del dev near root";
            of("queueing disciplines", lines, "tc qdisc del dev near root")
        }
        7 => of(
            "devices",
            "ip link add v0 type veth peer name v1
ip link set v0 up; ip link set v1 up; ip addr add 10.95.0.1/24 dev v0
ip link add i0 type ifb; ip link set i0 up
tc qdisc add dev v0 ingress
tc filter add dev v0 parent ffff: protocol all matchall action mirred egress redirect dev i0
tc qdisc add dev i0 root tbf rate 1mbit burst 10k limit 30k
ip link set v0 mtu 1400
ip link del i0; ip link del v0"
                .to_owned(),
            "ip link del i0; ip link del v0",
        ),
        8 => {
            let address = |n: u16| format!("10.12.0.{}", 120 + n);
            let lines = each(OBJECTS, |n| format!("neigh replace {} lladdr 02:00:00:00:77:{n:02x} dev far", address(n)))
                + &each(OBJECTS, |n| format!("neigh del {} dev far", address(n)));
            // Traffic finds neighbours again faster than `ip` forgets them, which after ten rounds it takes for a failure.
            of("neighbours", batch("ip", &lines) + "ip neigh flush dev near || :", "ip neigh flush dev far")
        }
        9 => of(
            "rules and next hops",
            format!(
                "ip rule add from 10.94.0.0/16 table 774 prio 774; ip -6 rule add to fd94::/16 table 774 prio 774
ip nexthop add id 71 via 10.12.0.{other} dev far
ip nexthop add id 72 encap mpls 17 via 10.12.5.{other} dev far
ip nexthop add id 73 group 71/72
ip route add 10.93.0.0/24 nhid 73
ip nexthop replace id 72 encap mpls 18/19 via 10.12.6.{other} dev far
ip route del 10.93.0.0/24; ip nexthop del id 73; ip nexthop del id 72; ip nexthop del id 71
ip rule del prio 774; ip -6 rule del prio 774"
            ),
            "ip route del 10.93.0.0/24; ip nexthop del id 73; ip nexthop del id 72; ip nexthop del id 71
ip rule del prio 774; ip -6 rule del prio 774",
        ),
        10 => of(
            "a VRF",
            "ip link add c9 type vrf table 909; ip link set c9 up
ip -6 route add fc00:78::9/128 encap seg6local action End.DT46 vrftable 909 dev c9
ip route add 10.92.0.0/24 encap seg6 mode encap segs fc00:2::9 dev far table 909
ip link del c9; ip route flush table 909; ip -6 route flush table 909 || true"
                .to_owned(),
            "ip link del c9; ip route flush table 909; ip -6 route flush table 909
ip -6 route del fc00:78::9/128",
        ),
        _ => of(
            "dumps",
            "for what in 'ip -6 route show table all' 'ip -s link' 'ip -f mpls route' 'ip nexthop' 'ip neigh' 'ip fou show' \
'tc -s qdisc' 'tc -s filter show dev slow parent ffff:' 'tc -s class show dev slow' 'tc actions ls action police'; do \
$what > /dev/null; done"
                .to_owned(),
            "true",
        ),
    }
}
