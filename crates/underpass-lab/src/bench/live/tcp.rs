//! TCP through two routers between two hosts: plainly, over SRv6, and over tunnels.

use std::{
    env,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use underpass_daemon::testbed::{Namespace, Router, join};

use super::report::{Stream, TcpRecord};
use super::{DriverName, Kind, median};

/// How long a stream runs before it is measured, and how long it is measured.
const WARM: Duration = Duration::from_millis(300);
const WINDOW: Duration = Duration::from_millis(600);

/// What a program writes and reads at once.
const CHUNK: usize = 128 << 10;

/// What streams go over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ipv4,
    Srv6,
    Ipip,
    Gre,
    Fou,
}

impl Over {
    const ALL: [Self; 5] = [Self::Ipv4, Self::Srv6, Self::Ipip, Self::Gre, Self::Fou];

    fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Srv6 => "SRv6",
            Self::Ipip => "IPIP",
            Self::Gre => "GRE",
            Self::Fou => "FOU",
        }
    }

    /// Over what the kernel is measured beside it. It may not have tunnels; without one it has less to do.
    fn base(self) -> Self {
        match self {
            Self::Srv6 => Self::Srv6,
            Self::Ipv4 | Self::Ipip | Self::Gre | Self::Fou => Self::Ipv4,
        }
    }

    /// The address of host `n`.
    fn host(self, n: u8) -> IpAddr {
        match self {
            Self::Srv6 => Ipv6Addr::new(0xfd10, n.into(), 0, 0, 0, 0, 0, 2).into(),
            _ => Ipv4Addr::new(10, self as u8, n, 2).into(),
        }
    }

    /// What makes the tunnel that leads to the other router, as router `n` has it.
    fn tunnel(self, n: u8) -> Option<String> {
        // Each has ends of its own: two of a kind may not have the same.
        let ends = format!("local 10.9.{0}.{n} remote 10.9.{0}.{1} ttl 64", self as u8, 3 - n);
        match self {
            Self::Ipv4 | Self::Srv6 => None,
            Self::Ipip => Some(format!("ip link add ipip1 type ipip {ends}")),
            Self::Gre => Some(format!("ip link add gre1 type gre {ends}")),
            Self::Fou => Some(format!(
                "ip fou add port 5555 ipproto 4
                 ip link add fou1 type ipip {ends} encap fou encap-sport auto encap-dport 5555"
            )),
        }
    }
}

/// h1 ── near R1 far ── far R2 near ── h2
struct Pair {
    kind: Kind,
    hosts: [Namespace; 2],
    _edges: [Namespace; 2],
    /// They end when they are dropped.
    routers: Vec<Router>,
}

impl Pair {
    fn new(kind: Kind) -> anyhow::Result<Self> {
        let [h1, h2, r1, r2] = ["h1", "h2", "r1", "r2"].map(Namespace::new);
        let (hosts, edges) = ([h1?, h2?], [r1?, r2?]);
        let [first, second] = &edges;
        join(first, "far", second, "far")?;
        let mut routers = Vec::new();
        for (n, (host, edge)) in (1..).zip(hosts.iter().zip(&edges)) {
            join(host, "eth0", edge, "near")?;
            host.run(&of_host(n))?;
            edge.run(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1",
            )?;
            match kind.arguments() {
                None => drop(edge.run(&of_router(n, false))?),
                Some(arguments) => {
                    let router = Router::start(&env::current_exe()?, edge, arguments)?;
                    router.run(&of_router(n, true))?;
                    routers.push(router);
                }
            }
        }
        Ok(Self { kind, hosts, _edges: edges, routers })
    }

    /// A stream from one host to the other, in gigabits a second of payload.
    fn rate(&self, over: Over) -> anyhow::Result<f64> {
        let [from, to] = &self.hosts;
        let address = over.host(2);
        let listener = to.enter(|| TcpListener::bind((address, 0)))??;
        let port = listener.local_addr()?.port();
        let out = connect(from, address, port)?;
        let (mut into, _) = listener.accept()?;
        into.set_read_timeout(Some(Duration::from_secs(5)))?;
        let sender = thread::spawn(move || {
            let (mut out, chunk) = (out, vec![0; CHUNK]);
            while out.write_all(&chunk).is_ok() {}
        });
        let mut chunk = vec![0; CHUNK];
        let mut read_for = |time: Duration| -> anyhow::Result<f64> {
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < time {
                match into.read(&mut chunk).context("the stream stands still")? {
                    0 => bail!("the stream ended"),
                    length => bytes += length,
                }
            }
            Ok(bytes as f64 * 8.0 / 1e9 / start.elapsed().as_secs_f64())
        };
        let rate = read_for(WARM).and_then(|_| read_for(WINDOW));
        drop(into);
        if sender.join().is_err() {
            bail!("the sender panicked");
        }
        rate
    }

    /// What the fast path of the first router has carried, and what it left to workers.
    fn carried(&self) -> anyhow::Result<[u64; 2]> {
        let Some(router) = self.routers.first() else { return Ok([0; 2]) };
        let fast_path = router.stats()?.fast_path;
        Ok([fast_path.hits, fast_path.misses.values().sum()])
    }

    /// Why there is no fast path, if there is none.
    fn without_fast_path(&self) -> anyhow::Result<Option<String>> {
        self.routers.first().map_or(Ok(None), |router| Ok(router.stats()?.fast_path.off))
    }
}

/// What configures a host.
fn of_host(n: u8) -> String {
    let mut lines = format!(
        "ip link set eth0 up
         ip addr add fd10:{n}::2/64 dev eth0; ip -6 route add default via fd10:{n}::1\n"
    );
    for over in Over::ALL {
        if let (IpAddr::V4(own), IpAddr::V4(other)) = (over.host(n), over.host(3 - n)) {
            let [a, b, c, _] = own.octets();
            lines +=
                &format!("ip addr add {own}/24 dev eth0; ip route add {other} via {a}.{b}.{c}.1 src {own}\n");
        }
    }
    lines
}

/// What configures a router. Without tunnels, streams go over the same link plainly.
fn of_router(n: u8, tunnels: bool) -> String {
    let other = 3 - n;
    let mut lines = format!(
        "ip link set far mtu 1600 up; ip link set near up
         ip addr add fd10:{n}::1/64 dev near; ip addr add fd00::{n}/64 dev far
         ip -6 route add fc00:{other}::/32 via fd00::{other} dev far
         ip -6 route add fc00:{n}::d6 encap seg6local action End.DT6 table 254 dev near
         ip sr tunsrc set fc00:{n}::1
         ip -6 route add fd10:{other}::/64 encap seg6 mode encap segs fc00:{other}::d6 dev far\n"
    );
    for over in Over::ALL {
        let (IpAddr::V4(own), IpAddr::V4(to)) = (over.host(n), over.host(other)) else { continue };
        let [a, b, c, _] = own.octets();
        lines += &format!("ip addr add {a}.{b}.{c}.1/24 dev near; ip addr add {a}.9.{b}.{n}/24 dev far\n");
        lines += &match over.tunnel(n).filter(|_| tunnels) {
            None => format!("ip route add {to} via 10.9.0.{other} dev far\n"),
            Some(made) => {
                let device = over.name().to_ascii_lowercase();
                format!("{made}\nip link set {device}1 up; ip route add {to} dev {device}1\n")
            }
        };
    }
    lines
}

/// Connects, once neighbours are found and the way is there.
fn connect(from: &Namespace, address: IpAddr, port: u16) -> anyhow::Result<TcpStream> {
    let mut last = None;
    for _ in 0..10 {
        let to = (address, port).into();
        match from.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)))? {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
        thread::sleep(Duration::from_millis(100));
    }
    match last {
        Some(error) => Err(error).context("no connection through the routers"),
        None => bail!("no connection through the routers"),
    }
}

/// The rates of a pair of routers over one thing, by round; what the fast path carried, and what it did not.
#[derive(Default)]
struct Turns {
    rates: Vec<f64>,
    carried: [u64; 2],
}

/// The streams of all routers over everything, in turns.
pub(super) fn measure(driver: DriverName, rounds: u16) -> anyhow::Result<Vec<TcpRecord>> {
    let mut pairs = Vec::new();
    for kind in [Kind::Kernel, Kind::Workers(driver), Kind::FastPath] {
        let pair = Pair::new(kind).with_context(|| kind.name())?;
        match pair.without_fast_path()? {
            Some(why) if matches!(kind, Kind::FastPath) => eprintln!("no fast path: {why}"),
            _ => pairs.push(pair),
        }
    }
    let mut turns: Vec<[Option<Turns>; Over::ALL.len()]> = pairs.iter().map(|_| Default::default()).collect();
    for round in 1..=rounds {
        for (n, over) in Over::ALL.into_iter().enumerate() {
            eprintln!("TCP over {}, round {round} of {rounds} …", over.name());
            for (pair, turns) in pairs.iter().zip(&mut turns) {
                if matches!(pair.kind, Kind::Kernel) && over.base() != over {
                    continue;
                }
                let Some(turns) = turns.get_mut(n) else { continue };
                let turns = turns.get_or_insert_default();
                let before = pair.carried()?;
                let rate = pair.rate(over);
                turns
                    .rates
                    .push(rate.with_context(|| format!("TCP over {}, {}", over.name(), pair.kind.name()))?);
                let after = pair.carried()?;
                for (sum, (after, before)) in turns.carried.iter_mut().zip(after.into_iter().zip(before)) {
                    *sum += after - before;
                }
            }
        }
    }
    let of = |kind: fn(Kind) -> bool, over: Over| {
        let turns = pairs.iter().zip(&turns).find(|(pair, _)| kind(pair.kind))?.1;
        turns.get(over as usize)?.as_ref()
    };
    let stream = |kind: fn(Kind) -> bool, over: Over| {
        let (own, base) = (of(kind, over)?, of(|kind| matches!(kind, Kind::Kernel), over.base())?);
        let [hits, misses] = own.carried;
        Some(Stream {
            gbps: median(own.rates.clone()),
            ratio: median(own.rates.iter().zip(&base.rates).map(|(own, base)| own / base).collect()),
            carried: (hits > 0).then(|| hits as f64 / (hits + misses) as f64),
        })
    };
    let rows = Over::ALL.into_iter().map(|over| {
        Some(TcpRecord {
            name: over.name(),
            base: over.base().name(),
            kernel: stream(|kind| matches!(kind, Kind::Kernel), over),
            workers: stream(|kind| matches!(kind, Kind::Workers(_)), over)?,
            fast_path: stream(|kind| matches!(kind, Kind::FastPath), over),
        })
    });
    Ok(rows.flatten().collect())
}
