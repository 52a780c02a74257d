//! UDP requests and responses: one byte there and one back, one transaction at a time, as netperf's UDP_RR.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use underpass_daemon::{live::priority, testbed::Namespace};

/// Sockets of the client, used in turn, so that flows are spread over next hops.
const FLOWS: usize = 16;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST: u8 = 1;
/// Ends the server.
const LAST: u8 = 0;

/// Who answers, at addresses of one namespace.
pub struct Server {
    address: SocketAddr,
    /// Opened in its namespace too: the last word comes from there.
    end: UdpSocket,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts one at an address of `namespace`.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn start(namespace: &Namespace, address: IpAddr) -> anyhow::Result<Self> {
        let open =
            || Ok::<_, std::io::Error>((UdpSocket::bind((address, 0))?, UdpSocket::bind((address, 0))?));
        let (socket, end) = namespace.enter(open)?.with_context(|| format!("a server at {address}"))?;
        let address = socket.local_addr()?;
        let thread = thread::Builder::new().name("server".to_owned()).spawn(move || {
            let _ = priority::go_first();
            let mut byte = [0; 1];
            while let Ok((_, client)) = socket.recv_from(&mut byte) {
                if byte == [LAST] {
                    return;
                }
                let _ = socket.send_to(&byte, client);
            }
        })?;
        Ok(Self { address, end, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.end.send_to(&[LAST], self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Who asks a server.
pub struct Client {
    sockets: Vec<UdpSocket>,
    taken: Vec<u32>,
    /// How long it asked.
    time: Duration,
}

/// What came of all rounds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Figures {
    /// Transactions a second.
    pub rate: f64,
    /// Microseconds that a transaction takes: half of them, 90 and 99 % at most.
    pub latency: [f64; 3],
}

impl Client {
    /// One in `namespace`, for this server; waits until it is reached.
    ///
    /// # Errors
    /// Those of sockets; no answer in time.
    pub fn new(namespace: &Namespace, server: &Server, patience: Duration) -> anyhow::Result<Self> {
        let any: IpAddr = if server.address.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
        let open = || {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(server.address)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let sockets = namespace.enter(|| (0..FLOWS).map(|_| open()).collect::<std::io::Result<_>>())?;
        let mut client = Self { sockets: sockets?, taken: Vec::new(), time: Duration::ZERO };
        let deadline = Instant::now() + patience;
        // Each flow once, so that every neighbour on their ways is known.
        while let Err(error) = client.transact() {
            ensure!(Instant::now() < deadline, "{} is not reached: {error:#}", server.address);
            client.drain();
        }
        (client.taken, client.time) = (Vec::new(), Duration::ZERO);
        Ok(client)
    }

    /// One transaction by each socket.
    ///
    /// # Errors
    /// A request or its response was lost.
    pub fn transact(&mut self) -> anyhow::Result<()> {
        for socket in &self.sockets {
            let start = Instant::now();
            let mut byte = [0; 1];
            socket.send(&[REQUEST])?;
            match socket.recv(&mut byte) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no answer"),
                Err(error) => return Err(error.into()),
            }
            let took = start.elapsed();
            self.time += took;
            self.taken.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// Throws away answers that came too late.
    fn drain(&self) {
        for socket in &self.sockets {
            let _ = socket.set_nonblocking(true);
            while socket.recv(&mut [0; 1]).is_ok() {}
            let _ = socket.set_nonblocking(false);
        }
    }

    /// What came of it.
    pub fn figures(mut self) -> Figures {
        self.taken.sort_unstable();
        let at = |share: usize| {
            let index = (self.taken.len() * share / 100).min(self.taken.len().saturating_sub(1));
            self.taken.get(index).copied().map_or(0.0, |nanoseconds| f64::from(nanoseconds) / 1e3)
        };
        let rate = self.taken.len() as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        Figures { rate, latency: [at(50), at(90), at(99)] }
    }
}
