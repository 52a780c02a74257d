//! UDP datagrams for the host: put together before a TUN device, and what its sockets get of them.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod lab;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use lab::{Forwarder, Namespace, Raw, port, veth};
use underpass_packet::checksum::Sum;
use underpass_packet::protocol;
use underpass_port::kernel_frames::KernelFrames;
use underpass_port::live::{Driver, LivePort};
use underpass_port::tun::{self, TunKind, TunPort};

/// Datagrams of a row: the last is shorter.
const ROW: usize = 9;
const ROWS: usize = 20;
const SIZE: usize = 1200;
const LAST: usize = 333;

/// The datagram of this number, in a frame for the host: each byte of its payload is the number.
fn frame(number: usize, ipv6: bool) -> Vec<u8> {
    let len = if number % ROW == ROW - 1 { LAST } else { SIZE };
    let upper = 8 + len;
    let mut udp = vec![0x11, 0x11, 0x22, 0x22, (upper >> 8) as u8, upper as u8, 0, 0];
    udp.extend(vec![number as u8; len]);
    let mut frame = [&tun::ROUTER_MAC[..], &[2, 0, 0, 0, 0, 0xa]].concat();
    let pseudo = if ipv6 {
        let address = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let head = [0x86, 0xdd, 0x60, 0, 0, 0, (upper >> 8) as u8, upper as u8, protocol::UDP, 64];
        frame.extend([&head[..], &address(1), &address(2)].concat());
        Sum::pseudo_ipv6(address(1), address(2), protocol::UDP, upper as u32)
    } else {
        let total = 20 + upper;
        let [id, id1] = (number as u16).to_be_bytes();
        let mut ip = [0x45, 0, (total >> 8) as u8, total as u8, id, id1, 0x40, 0, 64, protocol::UDP, 0, 0];
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let sum = Sum::new().add_bytes(&ip).add_bytes(&addresses).checksum();
        ip[10..].copy_from_slice(&sum.to_be_bytes());
        frame.extend([&[8, 0][..], &ip, &addresses].concat());
        Sum::pseudo_ipv4([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP, upper as u16)
    };
    let sum = pseudo.add_bytes(&udp).checksum();
    udp[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    [frame, udp].concat()
}

/// What a socket gets at once: how many bytes, and, of one that has asked for it, the length of each datagram but the
/// last.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, Option<usize>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0_u64; 8];
    // SAFETY: all is ours and of the lengths that are said.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let len = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        let len = usize::try_from(len).ok()?;
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        let size = (!first.is_null()
            && ((*first).cmsg_level, (*first).cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO))
            .then(|| libc::CMSG_DATA(first).cast::<i32>().read_unaligned() as usize);
        Some((len, size))
    }
}

/// All that comes, datagram by datagram, and how many receives that took.
fn datagrams(socket: &UdpSocket) -> (Vec<Vec<u8>>, usize) {
    let (mut all, mut times) = (Vec::new(), 0);
    let mut buffer = vec![0; 65_536];
    while all.len() < ROW * ROWS {
        let Some((len, size)) = receive(socket, &mut buffer) else { break };
        times += 1;
        all.extend(buffer[..len].chunks(size.unwrap_or(len)).map(<[u8]>::to_vec));
    }
    (all, times)
}

/// A plain socket gets each datagram, one with UDP_GRO many at once, with their length.
#[test]
fn datagrams_keep_their_borders() {
    if !lab::may("datagrams_keep_their_borders") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    veth((&a, "a0", "02:00:00:00:00:0a"), (&router, "ra", "02:00:00:00:01:0a"));
    let forwarder = Forwarder::start(&router, move |memory, pool| {
        let kernel_frames = KernelFrames::new();
        let tun = TunPort::open("host", TunKind::Tun, false).unwrap();
        lab::ip("link set host addrgenmode none up mtu 1500");
        lab::ip("addr add 10.0.0.2/24 dev host");
        lab::ip("addr add fd00::2/64 dev host nodad");
        [port("ra", Driver::Xdp, &kernel_frames, memory, pool), LivePort::Tun(tun)]
    });
    let host = router.beside();
    for (ipv6, at_once) in [(false, false), (true, false), (false, true), (true, true)] {
        let socket = host.run(move || {
            let address = if ipv6 { "[fd00::2]:8738" } else { "10.0.0.2:8738" };
            let socket = UdpSocket::bind(address).unwrap();
            let (on, size) = (i32::from(at_once), 8_i32 << 20);
            for (level, option, value) in
                [(libc::SOL_UDP, libc::UDP_GRO, &on), (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size)]
            {
                // SAFETY: the value is ours and of this length.
                let set = unsafe {
                    libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), 4)
                };
                assert_eq!(set, 0);
            }
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket
        });
        // How many come together is the machine's affair: where each is forwarded before the next comes, none do.
        for round in 0.. {
            a.run(move || {
                let raw = Raw::open("a0");
                (0..ROW * ROWS).for_each(|number| raw.send(&frame(number, ipv6)));
            });
            let (got, times) = datagrams(&socket);
            assert_eq!(got.len(), ROW * ROWS, "IPv6: {ipv6}, at once: {at_once}");
            for (number, datagram) in got.iter().enumerate() {
                let sent = frame(number, ipv6);
                assert!(datagram[..] == sent[if ipv6 { 62 } else { 42 }..], "datagram {number}");
            }
            if if at_once { times < ROW * ROWS } else { times == ROW * ROWS } {
                break;
            }
            assert!(at_once && round < 50, "{times} receives");
        }
    }
    drop(host);
    let seen = forwarder.stop();
    assert!(seen.coalesced > 0 && seen.lost == 0 && seen.dropped == 0, "{seen:?}");
}
