//! Large packets: TCP finds the MTU of a way whose routers add headers, and segments larger than it cross whole.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use super::behaviours::Line;
use super::net::{Kind::*, settle, turn};
use underpass_daemon::testbed::Namespace;

const LENGTH: usize = 4 << 20;

/// A byte of the stream, by its place.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Sends a stream from one host to another; every byte must arrive as it was.
pub fn transfer(from: &Namespace, to: &Namespace, address: &str) -> Result<(), String> {
    let address: IpAddr = address.parse().unwrap();
    let any = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let listener = to.enter(|| TcpListener::bind(any)).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let patience = Some(Duration::from_secs(10));
    let mut out = from.enter(|| TcpStream::connect((address, port))).unwrap().map_err(|e| e.to_string())?;
    let (mut into, _) = listener.accept().unwrap();
    out.set_write_timeout(patience).unwrap();
    into.set_read_timeout(patience).unwrap();
    let sender = thread::spawn(move || {
        let stream: Vec<u8> = (0..LENGTH).map(byte).collect();
        out.write_all(&stream)
    });
    let mut got = Vec::new();
    let outcome = into.read_to_end(&mut got).map_err(|error| format!("after {} bytes: {error}", got.len()));
    sender.join().unwrap().map_err(|error| format!("sending: {error}"))?;
    outcome?;
    match got.len() == LENGTH && got.iter().enumerate().all(|(at, found)| *found == byte(at)) {
        true => Ok(()),
        false => Err(format!("{} bytes came, or others than were sent", got.len())),
    }
}

/// The core takes packets no larger than the hosts' links do, so the headers make them too big. Linux as the
/// headend drops them silently: it is Underpass that tells the host.
#[test]
fn tcp_finds_the_mtu() {
    let Some(_turn) = turn("tcp_finds_the_mtu") else { return };
    for kinds in [[Underpass, Kernel, Underpass], [Underpass; 3]] {
        let line = Line::new(kinds);
        configure(&line);
        for (node, device) in [
            (&line.edges[0], "core"),
            (&line.middle, "west"),
            (&line.middle, "east"),
            (&line.edges[1], "core"),
        ] {
            node.run(&format!("ip link set {device} mtu 1500"));
        }
        for (address, way) in [("10.2.0.2", "10.2.0.2"), ("fd10:2::2", "fd10:2::2")] {
            settle(&line.hosts[0], address, Duration::from_secs(10)).unwrap();
            transfer(&line.hosts[0], &line.hosts[1], address).unwrap_or_else(|why| {
                panic!("{kinds:?} {address}: {why}{}{}", line.edges[0].log(), line.edges[1].log())
            });
            let route = line.hosts[0].run(&format!("ip route get {way}")).unwrap();
            assert!(route.contains("mtu 14"), "{kinds:?}: {route}");
        }
        line.stop();
    }
}

/// With room in the core: segments of 64 KiB cross as they are or are cut so that each fits.
#[test]
fn tcp_crosses() {
    let Some(_turn) = turn("tcp_crosses") else { return };
    for kinds in [[Kernel; 3], [Kernel, Underpass, Kernel], [Underpass, Kernel, Kernel], [Underpass; 3]] {
        let line = Line::new(kinds);
        configure(&line);
        for (from, to) in [(0, 1), (1, 0)] {
            for address in [format!("10.{}.0.2", to + 1), format!("fd10:{}::2", to + 1)] {
                settle(&line.hosts[from], &address, Duration::from_secs(10)).unwrap();
                transfer(&line.hosts[from], &line.hosts[to], &address)
                    .unwrap_or_else(|why| panic!("{kinds:?} {address}: {why}{}", line.edges[from].log()));
            }
        }
        line.stop();
    }
}

/// IPv4 and IPv6 of either host, encapsulated by its router.
pub fn configure(line: &Line) {
    for (n, edge) in (1..).zip(&line.edges) {
        let you = 3 - n;
        edge.run(&format!(
            "ip -6 route add fc00:{n}::d6 encap seg6local action End.DT6 table 254 count dev cust
             ip -6 route add fc00:{n}::d4 encap seg6local action End.DX4 nh4 10.{n}.0.2 count dev cust
             ip -6 route add fd10:{you}::/64 encap seg6 mode encap segs fc00:{you}::d6 dev core
             ip route add 10.{you}.0.0/24 encap seg6 mode encap segs fc00:{you}::d4 dev core"
        ));
    }
}
