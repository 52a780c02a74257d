//! What the hosts send each other: datagrams by every way at a bounded rate, and TCP by those that lose nothing.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::network::{Network, Service};

/// Where datagrams of a way go: this, and its place in [`Service::ALL`].
const PORT: u16 = 7000;
/// Flows of a way, which spread over the workers.
const FLOWS: usize = 4;
/// Payloads in turn: some datagrams are short, some fill a frame, some are fragmented.
const PAYLOADS: [usize; 4] = [18, 400, 1300, 2600];
/// How often datagrams are sent.
const TICK: Duration = Duration::from_millis(2);
/// What a TCP stream sends at once and how often: segments that are cut late.
const CHUNK: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(20);
/// How long a stream lasts; the next one takes another way.
const STREAM: Duration = Duration::from_secs(2);
/// How long nothing may come before whoever waits looks whether it is the end.
const LOOK: Duration = Duration::from_millis(200);

/// Counted at both ends.
#[derive(Default)]
pub struct Traffic {
    /// Whether to send.
    pub flowing: AtomicBool,
    /// Whether all ends.
    pub over: AtomicBool,
    /// By way, in the order of [`Service::ALL`].
    pub sent: [AtomicU64; Service::ALL.len()],
    pub received: [AtomicU64; Service::ALL.len()],
    /// Bytes of TCP that arrived, and connections.
    pub streamed: AtomicU64,
    pub streams: AtomicU64,
}

/// A socket of h2's that gets the datagrams of a way.
pub fn receiver(network: &Network, index: usize, way: Service) -> anyhow::Result<UdpSocket> {
    let socket = network.hosts[1].enter(|| UdpSocket::bind((way.address(), PORT + index as u16)))??;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

/// Sockets of h1's, some a way.
fn senders(network: &Network) -> anyhow::Result<Vec<Vec<UdpSocket>>> {
    let open = || -> io::Result<Vec<Vec<UdpSocket>>> {
        let ways = Service::ALL.into_iter().enumerate().map(|(index, way)| {
            let flows = (0..FLOWS).map(|_| {
                let any: IpAddr = match way.address() {
                    IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect((way.address(), PORT + index as u16))?;
                Ok(socket)
            });
            flows.collect()
        });
        ways.collect()
    };
    Ok(network.hosts[0].enter(open)??)
}

impl Traffic {
    /// Sends `rate` datagrams a second in all, until the end.
    pub fn send(&self, network: &Network, rate: u32) -> anyhow::Result<()> {
        let senders = senders(network).context("sockets to send by")?;
        let payload = [0; 4096];
        let (start, mut sent) = (Instant::now(), 0_u64);
        let mut turn = 0_usize;
        while !self.over.load(Relaxed) {
            thread::sleep(TICK);
            let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            // Where this thread had to wait, what was missed is left out.
            let number = (due - sent).min(u64::from(rate) / 50);
            sent = due;
            if !self.flowing.load(Relaxed) {
                continue;
            }
            for _ in 0..number {
                turn = turn.wrapping_add(1);
                let (way, flow) = (turn % senders.len(), turn / senders.len());
                let Some(socket) = senders.get(way).and_then(|flows| flows.get(flow % FLOWS)) else {
                    continue;
                };
                let length = PAYLOADS[flow / FLOWS % PAYLOADS.len()];
                // A link that is down, or a router that says that it cannot reach who is to get it.
                if socket.send(&payload[..length]).is_ok() {
                    self.sent[way].fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Counts what comes to a socket, until the end.
    pub fn receive(&self, index: usize, socket: &UdpSocket) {
        let mut buffer = [0; 4096];
        while !self.over.load(Relaxed) {
            if socket.recv(&mut buffer).is_ok() {
                self.received[index].fetch_add(1, Relaxed);
            }
        }
    }

    /// TCP by one way after the other, until the end. What breaks is begun anew.
    pub fn stream(&self, network: &Network) -> anyhow::Result<()> {
        let [h1, h2] = &network.hosts;
        let listener = h2.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)))??;
        listener.set_nonblocking(true)?;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; CHUNK];
                while !self.over.load(Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => self.read(stream, &mut buffer),
                        Err(_) => thread::sleep(PAUSE),
                    }
                }
            });
            h1.enter(|| {
                for way in Service::ALL.into_iter().filter(|way| way.is_free()).cycle() {
                    if self.over.load(Relaxed) {
                        break;
                    }
                    if !self.flowing.load(Relaxed) || self.write(way).is_err() {
                        thread::sleep(LOOK);
                    }
                }
            })
        })?;
        Ok(())
    }

    fn write(&self, way: Service) -> io::Result<()> {
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::new(way.address(), PORT), Duration::from_secs(1))?;
        stream.set_write_timeout(Some(LOOK))?;
        self.streams.fetch_add(1, Relaxed);
        let (start, chunk) = (Instant::now(), vec![0; CHUNK]);
        while start.elapsed() < STREAM && self.flowing.load(Relaxed) {
            stream.write_all(&chunk)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn read(&self, mut stream: TcpStream, buffer: &mut [u8]) {
        if stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(2 * STREAM))).is_err() {
            return;
        }
        while let Ok(length @ 1..) = stream.read(buffer) {
            self.streamed.fetch_add(length as u64, Relaxed);
        }
    }
}

/// Sends a number of datagrams by a way, slowly; how many arrive. Nothing else is to use the way.
pub fn probe(
    network: &Network,
    index: usize,
    way: Service,
    traffic: &Traffic,
    number: u64,
) -> anyhow::Result<u64> {
    let senders = senders(network)?;
    let flows = senders.get(index).context("no such way")?;
    let before = traffic.received[index].load(Relaxed);
    for (_, socket) in (0..number).zip(flows.iter().cycle()) {
        let _ = socket.send(&[0; 200]);
        thread::sleep(Duration::from_millis(1));
    }
    let arrived = || traffic.received[index].load(Relaxed) - before;
    let deadline = Instant::now() + Duration::from_secs(4);
    while arrived() < number && Instant::now() < deadline && way.is_free() {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(arrived())
}
