//! Every driver between veth devices of network namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod lab;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lab::{Forwarder, Namespace, Raw, Seen, TaggedRaw, port, segment_behind, veth};
use underpass_engine::buffer::{Offload, Packet};
use underpass_engine::offload::{Cut, make_even};
use underpass_packet::checksum::Sum;
use underpass_packet::protocol;
use underpass_port::kernel_frames::{KernelFrames, OfDevice, Vlan};
use underpass_port::live::{Device, Driver, LivePort};
use underpass_port::tun::{self, TunKind, TunPort};

const PACKETS: usize = 10_000;

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";

/// A – router – B, with addresses that A and B have of each other without asking.
struct Line {
    a: Namespace,
    router: Namespace,
    b: Namespace,
}

impl Line {
    fn new() -> Self {
        let (a, router, b) = (Namespace::new(), Namespace::new(), Namespace::new());
        veth((&a, "a0", A), (&router, "ra", "02:00:00:00:01:0a"));
        veth((&b, "b0", B), (&router, "rb", "02:00:00:00:01:0b"));
        for (space, device, own, other, mac) in [(&a, "a0", 1, 2, B), (&b, "b0", 2, 1, A)] {
            space.ip(&format!(
                "addr add 10.0.0.{own}/24 dev {device}
                 addr add fd00::{own}/64 dev {device} nodad
                 neigh add 10.0.0.{other} lladdr {mac} dev {device} nud permanent
                 neigh add fd00::{other} lladdr {mac} dev {device} nud permanent"
            ));
        }
        Self { a, router, b }
    }

    /// Forwards between `ra` and `rb` with these drivers.
    fn forward(&self, a: Driver, b: Driver) -> Forwarder {
        Forwarder::start(&self.router, move |memory, pool| {
            let kernel_frames = KernelFrames::new();
            [port("ra", a, &kernel_frames, memory, pool), port("rb", b, &kernel_frames, memory, pool)]
        })
    }
}

/// UDP over IPv6 of `len` bytes, whose bytes tell its number.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend(((len - 54) as u16).to_be_bytes());
    frame.extend([17, 64]);
    frame.resize(len, number as u8);
    (frame[22], frame[38]) = (0xfd, 0xfd);
    frame[54..62].copy_from_slice(&number.to_be_bytes());
    frame
}

/// 10,000 packets of all lengths come through whole and in order, and every slot comes back.
fn ten_thousand(a: Driver, b: Driver) -> Seen {
    let line = Line::new();
    let forwarder = line.forward(a, b);
    let lengths = |number| 62 + number * 7 % (1514 - 61);
    let receiver = line.b.start(move || {
        let raw = Raw::open("b0");
        let mut number = 0;
        while number < PACKETS {
            let received = raw.receive().unwrap_or_else(|| panic!("nothing after packet {number}"));
            if received[12..14] == [0x86, 0xdd] && received[20] == 17 {
                assert!(received == frame(number, lengths(number)), "packet {number}");
                number += 1;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    line.a.run(move || {
        let raw = Raw::open("a0");
        for number in 0..PACKETS {
            raw.send(&frame(number, lengths(number)));
            // No faster than a loaded machine can take.
            if number % 64 == 63 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    receiver.recv().expect("packets are missing");
    let seen = forwarder.stop();
    assert_eq!((seen.dropped, seen.lost), (0, 0), "{seen:?}");
    assert!(seen.packets >= PACKETS as u64);
    seen
}

#[test]
fn xdp_generic_forwards() {
    if lab::may("xdp_generic_forwards") {
        ten_thousand(Driver::XdpGeneric, Driver::XdpGeneric);
    }
}

#[test]
fn xdp_native_forwards() {
    if lab::may("xdp_native_forwards") {
        ten_thousand(Driver::Xdp, Driver::Xdp);
    }
}

#[test]
fn packet_forwards() {
    if lab::may("packet_forwards") {
        ten_thousand(Driver::Packet, Driver::Packet);
    }
}

#[test]
fn drivers_mix() {
    if lab::may("drivers_mix") {
        ten_thousand(Driver::Packet, Driver::Xdp);
        ten_thousand(Driver::XdpGeneric, Driver::Packet);
    }
}

/// Sends `len` bytes over TCP to `server` and checks each.
fn transfer(client: &Namespace, server: &Namespace, address: IpAddr, len: usize) {
    let byte = |at: usize| (at * 31 + at / 255) as u8;
    let (bound, port) = std::sync::mpsc::channel();
    let received = server.start(move || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
        bound.send(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut buffer, mut at) = (vec![0; 1 << 16], 0);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return at,
                count => {
                    for received in &buffer[..count] {
                        assert_eq!(*received, byte(at), "byte {at}");
                        at += 1;
                    }
                }
            }
        }
    });
    let to = port.recv().unwrap();
    client.run(move || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let data: Vec<u8> = (0..len).map(byte).collect();
        stream.write_all(&data).unwrap();
    });
    assert_eq!(received.recv().expect("the transfer failed"), len);
}

fn tcp(a: Driver, b: Driver) -> Seen {
    let line = Line::new();
    let forwarder = line.forward(a, b);
    for address in ["10.0.0.2", "fd00::2"] {
        transfer(&line.a, &line.b, address.parse().unwrap(), 10_000_000);
    }
    let seen = forwarder.stop();
    assert_eq!(seen.lost, 0, "{seen:?}");
    // A socket on the same machine finishes no checksum.
    assert!(seen.unfinished > 100, "{seen:?}");
    seen
}

/// Large segments cross AF_PACKET whole.
#[test]
fn tcp_over_packet() {
    if lab::may("tcp_over_packet") {
        let seen = tcp(Driver::Packet, Driver::Packet);
        assert!(seen.longest > 10_000 && seen.cut == 0, "{seen:?}");
    }
}

/// AF_XDP in native mode gets no large segments, but checksums that are not finished.
#[test]
fn tcp_over_xdp_native() {
    if lab::may("tcp_over_xdp_native") {
        let seen = tcp(Driver::Xdp, Driver::Xdp);
        assert!(seen.longest <= 1514, "{seen:?}");
    }
}

/// AF_XDP in generic mode gets them in pieces and without a word.
#[test]
fn tcp_over_xdp_generic() {
    if lab::may("tcp_over_xdp_generic") {
        let seen = tcp(Driver::XdpGeneric, Driver::XdpGeneric);
        assert!(seen.longest > 1514 && seen.cut > 0, "{seen:?}");
    }
}

/// Runs ethtool in the namespace.
fn ethtool(namespace: &Namespace, line: &'static str) {
    let output = namespace.run(move || {
        std::process::Command::new("ethtool").args(line.split_whitespace()).output().expect("ethtool")
    });
    assert!(output.status.success(), "ethtool {line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether the checksum of a TCP segment, right behind the IP header of its frame, is the sum of its pseudo header.
fn is_left_open(packet: &Packet) -> bool {
    let (bytes, offload) = (packet.bytes(), packet.offload().unwrap());
    let field = &bytes[offload.start + usize::from(offload.field)..][..2];
    let len = bytes.len() - offload.start;
    let address = |at| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap();
    let pseudo = match bytes[12] {
        8 => Sum::pseudo_ipv4(
            bytes[26..30].try_into().unwrap(),
            bytes[30..34].try_into().unwrap(),
            protocol::TCP,
            len as u16,
        ),
        _ => Sum::pseudo_ipv6(address(22), address(38), protocol::TCP, len as u32),
    };
    field == pseudo.fold().to_be_bytes()
}

/// A kernel that is told to (`rx-gro-list`) strings packets together without touching their checksums, be they finished
/// or not: they are large segments as any other, to a device that takes them whole and to one that does not.
#[test]
fn packets_strung_together_come_as_segments() {
    let name = "packets_strung_together_come_as_segments";
    if !lab::may(name) {
        return;
    }
    if std::process::Command::new("ethtool").arg("--version").output().is_err() {
        return eprintln!("SKIPPED {name}: no ethtool");
    }
    for (tx, driver) in
        [("off", Driver::Packet), ("off", Driver::Xdp), ("on", Driver::Packet), ("on", Driver::Xdp)]
    {
        let line = Line::new();
        ethtool(&line.a, "-K a0 tso off gso off");
        if tx == "off" {
            ethtool(&line.a, "-K a0 tx off");
        }
        ethtool(&line.router, "-K ra gro on rx-gro-list on");
        let wrong = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wrong);
        let forwarder = Forwarder::start_changing(
            &line.router,
            move |memory, pool| {
                let kernel_frames = KernelFrames::new();
                [
                    port("ra", Driver::Packet, &kernel_frames, memory, pool),
                    port("rb", driver, &kernel_frames, memory, pool),
                ]
            },
            move |_, packet| {
                if packet.offload().is_some_and(|offload| offload.segment.is_some()) && !is_left_open(packet)
                {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            },
        );
        for address in ["10.0.0.2", "fd00::2"] {
            transfer(&line.a, &line.b, address.parse().unwrap(), 2_000_000);
        }
        let seen = forwarder.stop();
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "tx {tx}, {driver:?}");
        assert!(seen.longest > 5_000 && seen.dropped == 0 && seen.lost == 0, "tx {tx}, {driver:?}: {seen:?}");
    }
}

/// What AF_PACKET receives whole is cut for AF_XDP.
#[test]
fn tcp_from_packet_to_xdp() {
    if lab::may("tcp_from_packet_to_xdp") {
        let seen = tcp(Driver::Packet, Driver::Xdp);
        assert!(seen.longest > 10_000 && seen.cut > 0, "{seen:?}");
    }
}

/// Frames that a device has received, and their bytes.
fn received(namespace: &Namespace, device: &'static str) -> (u64, u64) {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let line = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':')).unwrap();
    let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap());
    let bytes = numbers.next().unwrap();
    (numbers.next().unwrap(), bytes)
}

/// Segments that the router puts into a tunnel leave AF_PACKET whole, and Linux takes them out of it: an IPv6
/// header, or one with an SRH, over IPv4 and IPv6. `ip -6 route add fc00::b encap seg6local action End.DT6 …`
#[test]
fn tunnelled_segments_leave_whole() {
    if !lab::may("tunnelled_segments_leave_whole") {
        return;
    }
    let line = Line::new();
    // Room for the outer headers.
    line.a.ip("link set a0 mtu 1400");
    line.b.ip("-6 route add fc00::b encap seg6local action End.DT6 table local dev b0");
    for with_srh in [false, true] {
        let forwarder = Forwarder::start_changing(
            &line.router,
            |memory, pool| {
                let kernel_frames = KernelFrames::new();
                let port = |name, pool: &mut _| port(name, Driver::Packet, &kernel_frames, memory, pool);
                [port("ra", pool), port("rb", pool)]
            },
            move |from, packet| {
                if from == 0 && packet.bytes()[12..14] == [0x86, 0xdd] {
                    encapsulate(packet, with_srh);
                }
            },
        );
        let before = received(&line.b, "b0");
        transfer(&line.a, &line.b, "fd00::2".parse().unwrap(), 20_000_000);
        let after = received(&line.b, "b0");
        let seen = forwarder.stop();
        assert!(seen.longest > 10_000 && seen.cut == 0 && seen.lost == 0, "{seen:?}");
        let mean = (after.1 - before.1) / (after.0 - before.0);
        assert!(mean > 5_000, "{mean} bytes a frame");
    }
}

/// Segments leave AF_PACKET whole, behind UDP or GRE too, and a kernel that has to cut them, as the device takes no
/// large ones, makes of them what `Cut` makes.
#[test]
fn the_kernel_cuts_what_the_device_does_not_take() {
    if !lab::may("the_kernel_cuts_what_the_device_does_not_take") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    veth((&a, "a0", A), (&router, "r0", B));
    let peer = Arc::new(a.run(|| Raw::open("a0")));
    router.run(move || {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(64, 4).unwrap();
        let kernel_frames = KernelFrames::new();
        let mut port = port("r0", Driver::Packet, &kernel_frames, &memory, &mut pool);
        let gre = [0x20, 0, 8, 0, 1, 2, 3, 4];
        let summed = [0xa0, 0, 8, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        let gue = [&[0x01, 47, 0, 0, 9, 9, 9, 9][..], &gre].concat();
        let gue_summed = [&[0x01, 47, 0, 0, 9, 9, 9, 9][..], &summed].concat();
        let cases: [(u8, bool, &[u8]); _] = [
            (6, false, &[]),
            (17, false, &[]),
            (17, false, &gue),
            (17, true, &[]),
            (17, true, &gue_summed),
            (47, false, &gre),
            (47, false, &summed),
        ];
        for (protocol, udp_sum, headers) in cases {
            for whole in [true, false] {
                lab::ip(&format!("link set r0 gso_max_size {}", if whole { 65_536 } else { 3000 }));
                let packet = segment_behind(&mut pool, protocol, udp_sum, headers);
                let checksum = packet.offload().unwrap().start + 16;
                let mut wanted = vec![packet.bytes().to_vec()];
                if !whole {
                    let mut cut = Cut::new(&packet).unwrap();
                    let parts = std::iter::from_fn(|| cut.next(&packet, &mut pool));
                    let parts: Vec<_> = parts.map(|part| part.unwrap()).collect();
                    wanted = parts.iter().map(|part| part.bytes().to_vec()).collect();
                    parts.into_iter().for_each(|part| pool.give(part));
                } else if udp_sum || headers.first().is_some_and(|flags| flags & 0x80 != 0) {
                    let mut even = segment_behind(&mut pool, protocol, udp_sum, headers);
                    let last = make_even(&mut even, &mut pool).unwrap().unwrap();
                    wanted = vec![even.bytes().to_vec(), last.bytes().to_vec()];
                    [even, last].into_iter().for_each(|packet| pool.give(packet));
                }
                port.send(&mut pool, [packet].into_iter());
                let ours = |frame: &Vec<u8>| frame[12..14] == [8, 0];
                let mut came: Vec<_> =
                    std::iter::from_fn(|| peer.receive()).filter(ours).take(wanted.len()).collect();
                // A veth device leaves the checksum to who needs it.
                came.iter_mut().chain(&mut wanted).for_each(|frame| frame[checksum..checksum + 2].fill(0));
                assert!(came == wanted, "{protocol} {headers:?} {whole}: {} frames", came.len());
            }
        }
        port.close(&mut pool);
    });
}

/// Tags of the router's VLAN devices come on top of the device's MTU, as those of Linux's do: one of either protocol, or
/// two, on frames whose checksum is finished or is not. A device of Linux has the outer tag beside the frame.
/// Without BPF, nobody can put it there: one tag has room.
/// `ip link add link rb name v1 type vlan protocol 802.1ad id 100`, `ip link add link v1 name v2 type vlan id 10`
#[test]
fn tags_come_on_top_of_the_mtu() {
    if !lab::may("tags_come_on_top_of_the_mtu") {
        return;
    }
    const CUSTOMER: [u8; 4] = [0x81, 0, 0xa0, 10];
    const SERVICE: [u8; 4] = [0x88, 0xa8, 0, 100];
    let (router, b) = (Namespace::new(), Namespace::new());
    veth((&router, "rb", A), (&b, "b0", B));
    let peer = Arc::new(b.run(|| TaggedRaw::open("b0")));
    router.run(move || {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(64, 4).unwrap();
        let stacks = [
            vec![CUSTOMER],
            vec![SERVICE],
            vec![SERVICE, CUSTOMER],
            vec![CUSTOMER, [0x81, 0, 0, 0]],
            vec![SERVICE, SERVICE],
            vec![CUSTOMER, SERVICE],
        ];
        for (kernel_frames, stacks) in
            [(KernelFrames::in_user_space("for the test"), &stacks[..2]), (KernelFrames::new(), &stacks)]
        {
            let mut port = port("rb", Driver::Packet, &kernel_frames, &memory, &mut pool);
            for (stack, unfinished) in stacks.iter().flat_map(|stack| [(stack, false), (stack, true)]) {
                let start = 54 + 4 * stack.len();
                // Small ones between them stay in their place.
                let mut frames = [1514, 100, 1514, 1513].map(|len| {
                    let mut bytes = frame(7, len);
                    bytes.splice(12..12, stack.concat());
                    bytes
                });
                let packets = frames.each_ref().map(|bytes| {
                    let mut packet = pool.take().unwrap();
                    packet.set(underpass_engine::buffer::HEADROOM, bytes).unwrap();
                    if unfinished {
                        packet.set_offload(Offload { start, field: 6, segment: None });
                    }
                    packet
                });
                port.send(&mut pool, packets.into_iter());
                let ours = |bytes: &Vec<u8>| bytes[12..14] != [0x86, 0xdd];
                let mut came: Vec<_> =
                    std::iter::from_fn(|| peer.receive()).filter(ours).take(frames.len()).collect();
                let lengths: Vec<_> = came.iter().map(Vec::len).collect();
                // Who finishes a checksum is not the matter here.
                came.iter_mut().chain(&mut frames).for_each(|frame| frame[start + 6..start + 8].fill(0));
                assert!(came == frames, "{stack:x?}, {unfinished}: {lengths:?}, {:?}", port.tally());
            }
            let tally = port.tally();
            assert_eq!((tally.too_long, tally.send_errors, tally.queue_full), (0, 0, 0));
            port.close(&mut pool);
        }
    });
}

/// Puts the packet of a frame into IPv6 to fc00::b, with an SRH of two segments or without.
fn encapsulate(packet: &mut Packet, with_srh: bool) {
    let link: [u8; 14] = packet.bytes()[..14].try_into().unwrap();
    packet.pull(14);
    let length = packet.len();
    let mut header = vec![0x60, 0, 0, 0, 0, 0, 41, 64];
    let address = |first, last| [&[first][..], &[0; 14], &[last]].concat();
    header.extend([address(0xfd, 9), address(0xfc, 0xb)].concat());
    if with_srh {
        header[6] = 43;
        header.extend([[41, 4, 4, 0, 1, 0, 0, 0].to_vec(), address(0xfc, 0xb), address(0xfc, 0xc)].concat());
    }
    let payload = (length + header.len() - 40) as u16;
    header[4..6].copy_from_slice(&payload.to_be_bytes());
    let all = [&link[..], &header].concat();
    packet.push(all.len()).unwrap()[..all.len()].copy_from_slice(&all);
}

/// The host's sockets behind a TUN device, to a neighbour behind AF_PACKET, and back.
#[test]
fn tcp_from_packet_to_tun() {
    if lab::may("tcp_from_packet_to_tun") {
        let seen = tcp_to_tun(Driver::Packet);
        assert!(seen.longest > 10_000 && seen.cut == 0 && seen.lost == 0, "{seen:?}");
    }
}

/// What AF_XDP receives one by one the host gets as large segments.
#[test]
fn tcp_from_xdp_to_tun() {
    if lab::may("tcp_from_xdp_to_tun") {
        let seen = tcp_to_tun(Driver::Xdp);
        assert!(seen.coalesced > 1000 && seen.lost == 0, "{seen:?}");
    }
}

fn tcp_to_tun(driver: Driver) -> Seen {
    let (a, router) = (Namespace::new(), Namespace::new());
    let router_mac = tun::ROUTER_MAC.map(|byte| format!("{byte:02x}")).join(":");
    // The forwarder changes no frame: A has the address that the TUN port makes up, and the other way round.
    veth((&a, "a0", &router_mac), (&router, "ra", "02:00:00:00:01:0a"));
    a.ip(&format!(
        "addr add 10.0.0.1/24 dev a0
         addr add fd00::1/64 dev a0 nodad
         neigh add 10.0.0.2 lladdr {router_mac} dev a0 nud permanent
         neigh add fd00::2 lladdr {router_mac} dev a0 nud permanent"
    ));
    let forwarder = Forwarder::start(&router, move |memory, pool| {
        let kernel_frames = KernelFrames::new();
        let tun = TunPort::open("host", TunKind::Tun, false).unwrap();
        lab::ip("link set host addrgenmode none up mtu 1500");
        lab::ip("addr add 10.0.0.2/24 dev host");
        lab::ip("addr add fd00::2/64 dev host nodad");
        [port("ra", driver, &kernel_frames, memory, pool), LivePort::Tun(tun)]
    });
    // The forwarder has the router's thread; another one in its namespace has the sockets.
    let host = router.beside();
    transfer(&a, &host, "10.0.0.2".parse().unwrap(), 10_000_000);
    transfer(&a, &host, "fd00::2".parse().unwrap(), 10_000_000);
    transfer(&host, &a, "fd00::1".parse().unwrap(), 10_000_000);
    drop(host);
    forwarder.stop()
}

/// The router's own address on `ra`, for frames that are for it.
const ROUTER: [u8; 6] = [2, 0, 0, 0, 1, 0xa];

/// A UDP datagram over IPv4 to this address, with this time to live.
fn ip4(destination: [u8; 4]) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1];
    header.extend(destination);
    let sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let upper = [0x30, 0x39, 0x30, 0x39, 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    [&ROUTER[..], &[2, 0, 0, 0, 0, 0xa, 8, 0], &header, &upper].concat()
}

fn ip6(destination: [u8; 16], next: u8, first: u8) -> Vec<u8> {
    let mut frame = [&ROUTER[..], &[2, 0, 0, 0, 0, 0xa, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, next, 64]].concat();
    frame.extend([&[0xfd][..], &[0; 14], &[1], &destination, &[first], &[0; 23]].concat());
    frame
}

/// What the kernel keeps stays in the kernel, and what a worker gets is not forwarded by the kernel too: with
/// every driver, with BPF and without, until the device is given back.
fn kernel_and_worker(driver: Driver, bpf: bool) {
    let line = Line::new();
    line.router.ip("addr add 10.0.0.9/24 dev ra
         route add 10.9.0.0/16 dev rb
         neigh add 10.9.9.9 lladdr 02:00:00:00:00:0b dev rb nud permanent");
    line.router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    let far = |last| [0xfd, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let mut arp = ip4([10, 9, 9, 9]);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut group = ip4([10, 9, 9, 9]);
    group[0] = 3;
    let tagged = |kind: u16, control: u16| {
        let mut frame = ip4([10, 9, 9, 9]);
        frame.splice(12..12, [kind.to_be_bytes(), control.to_be_bytes()].concat());
        frame
    };
    let frames = [
        ("transit", ip4([10, 9, 9, 9]), false),
        ("local", ip4([10, 0, 0, 9]), true),
        ("multicast", ip4([224, 0, 0, 5]), true),
        ("transit", ip6(far(1), 17, 0), false),
        ("local", ip6(far(9), 17, 0), true),
        ("multicast", ip6([0xff; 16], 17, 0), true),
        ("echo request", ip6(far(1), 58, 128), false),
        ("neighbour solicitation", ip6(far(1), 58, 135), true),
        ("group frame", group, true),
        ("ARP", arp, true),
        ("VLAN of the kernel's", tagged(0x8100, 0x2006), true),
        // Of a socket the worker gets a copy, to count it.
        ("VLAN", tagged(0x88a8, 5), true),
        ("priority tag", tagged(0x8100, 0xe000), false),
    ];
    let xdp = driver != Driver::Packet;
    let gets = |what: &str, kept: bool| !kept || !xdp && what == "VLAN";
    let wanted: Vec<Vec<u8>> = frames
        .iter()
        .filter(|(what, _, kept)| gets(what, *kept))
        .map(|(_, frame, _)| frame.clone())
        .collect();
    let (ready, started) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel();
    let worker = line.router.start(move || {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 8).unwrap();
        let kernel_frames =
            if bpf { KernelFrames::new() } else { KernelFrames::in_user_space("for the test") };
        kernel_frames
            .set_device(
                underpass_port::index_of("ra").unwrap(),
                OfDevice { domain: 3, ..OfDevice::default() },
            )
            .unwrap();
        let ifindex = underpass_port::index_of("ra").unwrap();
        kernel_frames.add_vlan(Vlan { ifindex, protocol: 0x8100, id: 6 }).unwrap();
        kernel_frames.add_local(3, [10, 0, 0, 9].into()).unwrap();
        kernel_frames.add_local(3, IpAddr::from(far(9))).unwrap();
        kernel_frames.add_local(0, IpAddr::from(far(1))).unwrap();
        let device = Device::attach("ra", driver, &kernel_frames).unwrap();
        let mut port = device.port(&[0], 1500, &memory, &mut pool).unwrap();
        // Of XDP, what the kernel gets is what its taps see.
        let tap = Raw::open("ra");
        ready.send(()).unwrap();
        ended.recv().unwrap();
        let mut burst = underpass_engine::worker::Burst::new();
        port.receive(&mut pool, &mut burst);
        let got: Vec<_> = burst.iter().map(|packet| packet.bytes().to_vec()).collect();
        let mut kept = Vec::new();
        while let (true, Some(frame)) = (xdp && kept.len() < 8, tap.receive()) {
            kept.push(frame);
        }
        port.close(&mut pool);
        (got, kept)
    });
    started.recv().unwrap();
    let sent = frames.clone();
    line.a.run(move || {
        let raw = Raw::open("a0");
        sent.iter().for_each(|(_, frame, _)| raw.send(frame));
    });
    end.send(()).unwrap();
    let (got, kept) = worker.recv().expect("the worker failed");
    assert_eq!(got, wanted);
    if xdp {
        // The tag is out of the tap's frame.
        let kernel: Vec<_> =
            frames.iter().filter(|(what, _, kept)| *kept && !what.starts_with("VLAN")).collect();
        for (what, frame, _) in kernel {
            assert!(kept.contains(frame), "the kernel has not got: {what}");
        }
        assert!(wanted.iter().all(|frame| !kept.contains(frame)));
    }
    // Now that the device is given back, the kernel forwards: this, and nothing that came before.
    let (ready, listens) = std::sync::mpsc::channel();
    let forwarded = line.b.start(move || {
        let raw = Raw::open("b0");
        ready.send(()).unwrap();
        std::iter::from_fn(|| raw.receive()).filter(|frame| frame[12..14] == [8, 0]).collect::<Vec<_>>()
    });
    listens.recv().unwrap();
    // The program may see packets for a moment longer.
    std::thread::sleep(Duration::from_millis(300));
    line.a.run(|| Raw::open("a0").send(&ip4([10, 9, 9, 9])));
    assert_eq!(forwarded.recv().unwrap().len(), 1);
    let before = received(&line.b, "b0").0;
    assert!(!bpf || before == 1, "the kernel has forwarded what a worker got");
}

#[test]
fn kernel_and_worker_share_xdp() {
    if lab::may("kernel_and_worker_share_xdp") {
        kernel_and_worker(Driver::Xdp, true);
        kernel_and_worker(Driver::XdpGeneric, true);
    }
}

#[test]
fn kernel_and_worker_share_packet() {
    if lab::may("kernel_and_worker_share_packet") {
        kernel_and_worker(Driver::Packet, true);
        kernel_and_worker(Driver::Packet, false);
    }
}

/// Two workers share a device: each frame comes to one of them, those of a flow to the same.
#[test]
fn workers_share_a_device() {
    if !lab::may("workers_share_a_device") {
        return;
    }
    let line = Line::new();
    let (ready, started) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel();
    let worker = line.router.start(move || {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(4096, 8).unwrap();
        let kernel_frames = KernelFrames::new();
        kernel_frames.set_device(underpass_port::index_of("ra").unwrap(), OfDevice::default()).unwrap();
        let device = Device::attach("ra", Driver::Packet, &kernel_frames).unwrap();
        let mut ports = [0, 1].map(|_| device.port(&[0], 1500, &memory, &mut pool).unwrap());
        ready.send(()).unwrap();
        ended.recv().unwrap();
        let received = ports.each_mut().map(|port| {
            let mut frames = Vec::new();
            for _ in 0..20 {
                let mut burst = underpass_engine::worker::Burst::new();
                port.receive(&mut pool, &mut burst);
                for packet in burst.drain(..) {
                    frames.push((packet.bytes()[33], packet.bytes()[45]));
                    pool.give(packet);
                }
            }
            frames
        });
        ports.into_iter().for_each(|port| port.close(&mut pool));
        assert_eq!(pool.available(), 4096);
        received
    });
    started.recv().unwrap();
    line.a.run(|| {
        let raw = Raw::open("a0");
        for number in 0..10 {
            for flow in 0..40 {
                let mut frame = ip4([10, 9, 9, flow]);
                frame[45] = number;
                // The header's checksum is not looked at on the way.
                raw.send(&frame);
            }
        }
    });
    end.send(()).unwrap();
    let [first, second] = worker.recv().expect("the worker failed");
    assert!(!first.is_empty() && !second.is_empty());
    assert_eq!(first.len() + second.len(), 400);
    for flow in 0..40 {
        let of = |frames: &[(u8, u8)]| -> Vec<u8> {
            frames.iter().filter(|frame| frame.0 == flow).map(|frame| frame.1).collect()
        };
        let all = [of(&first), of(&second)];
        let (none, one) = if all[0].is_empty() { (&all[0], &all[1]) } else { (&all[1], &all[0]) };
        assert!(none.is_empty() && one.iter().copied().eq(0..10), "flow {flow}: {all:?}");
    }
}

/// A device that goes away takes its port with it and no other; the next one shares the memory again.
#[test]
fn ports_come_and_go_over_one_memory() {
    if !lab::may("ports_come_and_go_over_one_memory") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    for pair in 0..3 {
        veth((&a, &format!("a{pair}"), A), (&router, &format!("r{pair}"), B));
    }
    router.run(|| {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(8192, 0).unwrap();
        let slots = pool.available();
        let kernel_frames = KernelFrames::new();
        let first = port("r0", Driver::Xdp, &kernel_frames, &memory, &mut pool);
        let second = port("r1", Driver::XdpGeneric, &kernel_frames, &memory, &mut pool);
        lab::ip("link del r0");
        let third = port("r2", Driver::Xdp, &kernel_frames, &memory, &mut pool);
        first.close(&mut pool);
        second.close(&mut pool);
        // The queue is free again, and the third socket lends the memory.
        let second = port("r1", Driver::Packet, &kernel_frames, &memory, &mut pool);
        second.close(&mut pool);
        third.close(&mut pool);
        assert_eq!(pool.available(), slots);
    });
}

/// As after a change of the MTU: the kernel takes the queue from the closed socket a moment later.
#[test]
fn a_queue_is_opened_again_at_once() {
    if !lab::may("a_queue_is_opened_again_at_once") {
        return;
    }
    let (a, router) = (Namespace::new(), Namespace::new());
    veth((&a, "a0", A), (&router, "r0", B));
    router.run(|| {
        let (memory, mut pool) = underpass_port::xdp::Memory::new(8192, 0).unwrap();
        let kernel_frames = KernelFrames::new();
        for _ in 0..30 {
            let device = Device::attach("r0", Driver::Xdp, &kernel_frames).unwrap();
            device.port(&[0], 1500, &memory, &mut pool).unwrap().close(&mut pool);
        }
    });
}
