//! TCP over H.Encaps and End.DT6: two hosts, two routers.

use std::{
    env,
    io::{Read, Write},
    net::{Ipv6Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use underpass_daemon::testbed::{Namespace, Router, join};

/// How long a stream runs before it is measured, and how long it is measured.
const WARM: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);

/// What a program writes and reads at once.
const CHUNK: usize = 128 << 10;

/// h1 ── near R1 far ── far R2 near ── h2
struct Pair {
    hosts: [Namespace; 2],
    _edges: [Namespace; 2],
    /// They end when they are dropped.
    _routers: Vec<Router>,
}

impl Pair {
    /// With the kernel's own routers, or with Underpass by this driver.
    fn new(driver: Option<&str>) -> anyhow::Result<Self> {
        let [h1, h2, r1, r2] = ["h1", "h2", "r1", "r2"].map(Namespace::new);
        let (hosts, edges) = ([h1?, h2?], [r1?, r2?]);
        let [first, second] = &edges;
        join(first, "far", second, "far")?;
        let mut routers = Vec::new();
        for (n, (host, edge)) in (1..).zip(hosts.iter().zip(&edges)) {
            let other = 3 - n;
            join(host, "eth0", edge, "near")?;
            host.run(&format!(
                "ip link set eth0 up; ip addr add fd10:{n}::2/64 dev eth0; ip -6 route add default via fd10:{n}::1"
            ))?;
            edge.run("sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1")?;
            let lines = format!(
                "ip link set far mtu 1600 up; ip link set near up
                 ip addr add fd10:{n}::1/64 dev near; ip addr add fd00::{n}/64 dev far
                 ip -6 route add fc00:{other}::/32 via fd00::{other} dev far
                 ip -6 route add fc00:{n}::d6 encap seg6local action End.DT6 table 254 dev near
                 ip sr tunsrc set fc00:{n}::1
                 ip -6 route add fd10:{other}::/64 encap seg6 mode encap segs fc00:{other}::d6 dev far"
            );
            match driver {
                None => drop(edge.run(&lines)?),
                Some(driver) => {
                    let router = Router::start(&env::current_exe()?, edge, &["--driver", driver])?;
                    router.run(&lines)?;
                    routers.push(router);
                }
            }
        }
        Ok(Self { hosts, _edges: edges, _routers: routers })
    }

    /// A stream from one host to the other, in gigabits a second of payload.
    fn rate(&self) -> anyhow::Result<f64> {
        let [from, to] = &self.hosts;
        let address = Ipv6Addr::new(0xfd10, 2, 0, 0, 0, 0, 0, 2);
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
}

/// Connects, once neighbours are found and the way is there.
fn connect(from: &Namespace, address: Ipv6Addr, port: u16) -> anyhow::Result<TcpStream> {
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

/// The rates through the kernel's routers and through Underpass, which take turns.
pub fn measure(driver: &str, rounds: u16) -> anyhow::Result<[f64; 2]> {
    let pairs = [Pair::new(None)?, Pair::new(Some(driver))?];
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (pair, rates) in pairs.iter().zip(&mut rates) {
            rates.push(pair.rate()?);
        }
    }
    Ok(rates.map(|mut rates| super::median(&mut rates)))
}
