//! UDP as fast as a container's program sends it.

use std::{
    io::IoSlice,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg, setsockopt, sockopt};
use underpass_daemon::testbed::Namespace;

use super::network::Network;

/// Datagrams that one system call sends.
const BATCH: usize = 64;
/// Payload of a datagram whose frame has 1514 bytes, and the bytes before it, which a limit counts too.
pub const PAYLOAD: usize = 1472;
pub const HEADERS: usize = 42;
/// Datagrams that the kernel cuts from what is sent at once.
const TOGETHER: usize = 40;
/// The port of the sink.
const PORT: u16 = 4789;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Short datagrams.
    Short,
    /// As long as Ethernet takes them.
    Long,
    /// The same, many handed over together.
    Together,
}

/// Sockets of a container's program, one a flow.
fn sockets(
    container: &Namespace,
    to: Ipv4Addr,
    flows: usize,
    shape: Shape,
) -> anyhow::Result<Vec<UdpSocket>> {
    let open = || -> anyhow::Result<Vec<UdpSocket>> {
        (0..flows)
            .map(|_| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect((to, PORT))?;
                if shape == Shape::Together {
                    setsockopt(&socket, sockopt::UdpGsoSegment, &(PAYLOAD as i32)).context("UDP_SEGMENT")?;
                }
                Ok(socket)
            })
            .collect()
    };
    container.enter(open)?
}

/// Sends until `stop`.
fn send(sockets: &[UdpSocket], shape: Shape, stop: &AtomicBool) {
    let payload = match shape {
        Shape::Short => vec![0; 18],
        Shape::Long => vec![0; PAYLOAD],
        Shape::Together => vec![0; PAYLOAD * TOGETHER],
    };
    let count = if shape == Shape::Together { 1 } else { BATCH };
    let slices: Vec<_> = (0..count).map(|_| [IoSlice::new(&payload)]).collect();
    let addresses = vec![None::<SockaddrIn>; count];
    let mut headers = MultiHeaders::preallocate(count, None);
    while !stop.load(Relaxed) {
        for socket in sockets {
            // A full queue is the limit's doing; what is not sent now is sent next.
            let _ = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, &addresses, [], MsgFlags::empty());
        }
    }
}

/// Does something while short or long datagrams of some flows are sent.
fn while_sending<T>(
    network: &Network,
    (to, flows, shape): (Ipv4Addr, usize, Shape),
    action: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let sockets = sockets(&network.ends().from, to, flows, shape)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&sockets, shape, &stop));
        let done = action();
        stop.store(true, Relaxed);
        ensure!(sender.join().is_ok(), "the sender panicked");
        done
    })
}

/// Short datagrams a second that arrive.
pub fn packets(network: &Network, warm: Duration, time: Duration) -> anyhow::Result<f64> {
    while_sending(network, (super::network::NOBODY, 1, Shape::Short), || {
        thread::sleep(warm);
        let (before, start) = (network.received()?, Instant::now());
        thread::sleep(time);
        let (after, took) = (network.received()?, start.elapsed());
        Ok((after - before) as f64 / took.as_secs_f64())
    })
}

/// Megabits a second of frames that arrive, as a limit counts them.
pub fn mbits(
    network: &Network,
    flows: usize,
    shape: Shape,
    warm: Duration,
    time: Duration,
) -> anyhow::Result<f64> {
    let ends = network.ends();
    let receiver = ends.to.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
    receiver.set_read_timeout(Some(Duration::from_secs(2)))?;
    setsockopt(&receiver, sockopt::RcvBufForce, &(32 << 20)).context("SO_RCVBUFFORCE")?;
    setsockopt(&receiver, sockopt::UdpGroSegment, &true).context("UDP_GRO")?;
    while_sending(network, (super::network::SERVER, flows, shape), || {
        let mut buffer = vec![0; 1 << 16];
        let mut read_for = |time: Duration| -> anyhow::Result<(usize, Duration)> {
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < time {
                bytes += receiver.recv(&mut buffer).context("nothing arrives")?;
            }
            Ok((bytes, start.elapsed()))
        };
        read_for(warm)?;
        let (bytes, took) = read_for(time)?;
        let datagrams = bytes as f64 / PAYLOAD as f64;
        Ok(datagrams * ((PAYLOAD + HEADERS) * 8) as f64 / 1e6 / took.as_secs_f64())
    })
}
