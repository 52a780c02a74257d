use proptest::prelude::*;

use super::*;
use crate::buffer::{LARGE_SLOT, MARGIN, SLOT};
use crate::offload::Cut;

/// A flow: its family, the port that it comes from, and whether its segments have timestamps.
type Kind = (bool, u16, bool);

/// A segment of a flow with so many bytes from sequence number `at` on, its checksums right.
fn segment((ipv6, port, timestamps): Kind, at: u32, len: usize, id: u16, flags: u16) -> Vec<u8> {
    let options: &[u8] = if timestamps { &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2] } else { &[] };
    let payload: Vec<u8> = (0..len as u32).map(|n| (at.wrapping_add(n) % 251) as u8).collect();
    let mut tcp = tcp::Header::new(port, 80, flags);
    tcp.sequence = at.into();
    tcp.set_options_len(options.len());
    tcp.window = 500.into();
    let upper = tcp::Header::LEN + options.len() + len;
    let (mac, mut ip, pseudo) = if ipv6 {
        let (source, destination) = ([0xfd; 16], [0xfc; 16]);
        let head = [0x60, 0, 0, 0, (upper >> 8) as u8, upper as u8, protocol::TCP, 64];
        let ip = [&head[..], &source, &destination].concat();
        ([0x86, 0xdd], ip, Sum::pseudo_ipv6(source, destination, protocol::TCP, upper as u32))
    } else {
        let total = upper + ipv4::Header::LEN;
        let [[a, b], [c, d]] = [total as u16, id].map(u16::to_be_bytes);
        let ip = vec![0x45, 0, a, b, c, d, 0x40, 0, 64, protocol::TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let pseudo = Sum::pseudo_ipv4([10, 0, 0, 1], [10, 0, 0, 2], protocol::TCP, upper as u16);
        ([8, 0], ip, pseudo)
    };
    if !ipv6 {
        ipv4::Header::mut_from_prefix(&mut ip).unwrap().0.fill_checksum(&[]);
    }
    tcp.fill_checksum(pseudo, options, &payload);
    use underpass_packet::IntoBytes;
    [&[2; 12][..], &mac, &ip, tcp.as_bytes(), options, &payload].concat()
}

/// A row of segments of `size`, the last of `last` bytes and with PSH.
fn row(kind: Kind, at: u32, segments: u16, size: usize, last: usize) -> Vec<Vec<u8>> {
    let one = |n: u16| {
        let (len, flags) = if n + 1 == segments { (last, ACK | PSH) } else { (size, ACK) };
        segment(kind, at.wrapping_add(u32::from(n) * size as u32), len, n.wrapping_add(65_520), flags)
    };
    (0..segments).map(one).collect()
}

/// A datagram of a flow with so many bytes that begin with `at`, its checksums right.
fn datagram((ipv6, port): (bool, u16), at: u8, len: usize, id: u16) -> Vec<u8> {
    use underpass_packet::IntoBytes;
    let payload: Vec<u8> = (0..len).map(|n| (usize::from(at) + n) as u8).collect();
    let upper = udp::Header::LEN + len;
    let mut header = udp::Header::new(port, 53, upper as u16);
    // What is before it is that of a segment, but for the protocol.
    let mut frame = segment((ipv6, port, false), 0, len, id, ACK);
    let ip = if ipv6 { ipv6::Header::LEN } else { ipv4::Header::LEN };
    frame.truncate(IP + ip);
    let pseudo = if ipv6 {
        frame[IP + 4..IP + 6].copy_from_slice(&(upper as u16).to_be_bytes());
        frame[IP + 6] = protocol::UDP;
        Sum::pseudo_ipv6([0xfd; 16], [0xfc; 16], protocol::UDP, upper as u32)
    } else {
        let (header, _) = ipv4::Header::mut_from_prefix(&mut frame[IP..]).unwrap();
        header.protocol = protocol::UDP;
        header.total_length = ((ip + upper) as u16).into();
        header.fill_checksum(&[]);
        Sum::pseudo_ipv4([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP, upper as u16)
    };
    let sum = pseudo.add_bytes(header.as_bytes()).add_bytes(&payload).checksum();
    header.checksum = if sum == 0 { 0xffff } else { sum }.into();
    [&frame[..], header.as_bytes(), &payload].concat()
}

/// A row of datagrams of `size`, the last of `last` bytes.
fn datagrams(kind: (bool, u16), at: u8, count: u16, size: usize, last: usize) -> Vec<Vec<u8>> {
    let one = |n: u16| {
        let len = if n + 1 == count { last } else { size };
        datagram(kind, at.wrapping_add(n as u8), len, n.wrapping_add(65_520))
    };
    (0..count).map(one).collect()
}

struct Gathered {
    pool: Pool,
    packets: Vec<Packet>,
}

fn gather(frames: &[Vec<u8>]) -> Gathered {
    gather_for(frames, true)
}

/// For a device that takes datagrams that were put together, or not.
fn gather_for(frames: &[Vec<u8>], datagrams: bool) -> Gathered {
    let region = |slot: usize, count: usize| Vec::leak(vec![0; (slot + MARGIN) * count]);
    let mut pool = Pool::over(region(SLOT, 512), region(LARGE_SLOT, 8));
    let slots = pool.available();
    let packets: Vec<Packet> = frames
        .iter()
        .map(|frame| {
            let mut packet = pool.take().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            packet
        })
        .collect();
    let mut coalescer = Coalescer::new(datagrams);
    let coalesced = coalescer.put(&mut pool, packets.into_iter());
    let packets: Vec<Packet> = std::iter::from_fn(|| coalescer.next()).collect();
    assert_eq!(packets.len() as u64 + coalesced, frames.len() as u64);
    let large = packets.iter().filter(|packet| packet.is_large()).count();
    assert_eq!(pool.available() + packets.len() - large, slots, "no slot is lost");
    Gathered { pool, packets }
}

impl Gathered {
    fn frames(&self) -> Vec<Vec<u8>> {
        self.packets.iter().map(|packet| packet.bytes().to_vec()).collect()
    }

    /// What is sent where the port has to cut.
    fn cut(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packet in &self.packets {
            let Some(mut cut) = Cut::new(packet) else {
                frames.push(packet.bytes().to_vec());
                continue;
            };
            while let Some(part) = cut.next(packet, &mut self.pool) {
                let part = part.unwrap();
                frames.push(part.bytes().to_vec());
                self.pool.give(part);
            }
        }
        frames
    }
}

/// The frames of one flow, in their order.
fn of_flow(frames: &[Vec<u8>], port: u16) -> Vec<&Vec<u8>> {
    let port = port.to_be_bytes();
    let at = |frame: &[u8], at: usize| frame.get(at..at + 2) == Some(&port);
    frames.iter().filter(|frame| at(frame, 34) || at(frame, 54)).collect()
}

const FOUR: Kind = (false, 0xaaaa, true);
const SIX: Kind = (true, 0xbbbb, false);

#[test]
fn segments_of_two_flows_become_two_packets() {
    let (four, six) = (row(FOUR, u32::MAX - 5000, 20, 1448, 700), row(SIX, 1, 20, 1440, 1440));
    let mixed: Vec<_> = four.iter().zip(&six).flat_map(|(four, six)| [four.clone(), six.clone()]).collect();
    let mut gathered = gather(&mixed);
    assert_eq!(gathered.packets.len(), 2);
    let whole = gathered.packets.iter().map(|packet| packet.len()).collect::<Vec<_>>();
    assert_eq!(whole, [14 + 20 + 32 + 19 * 1448 + 700, 14 + 40 + 20 + 20 * 1440]);
    let segment = |packet: &Packet| packet.offload().unwrap().segment.unwrap();
    assert_eq!(segment(&gathered.packets[0]), Segment { size: 1448, kind: SegmentKind::Tcp4 });
    assert!(gathered.cut() == [four, six].concat());
}

#[test]
fn datagrams_of_two_flows_become_two_packets() {
    let (four, six) = ((false, 0xaaaa), (true, 0xbbbb));
    let (four, six) = (datagrams(four, 3, 20, 1400, 7), datagrams(six, 9, 20, 1200, 1200));
    let mixed: Vec<_> = four.iter().zip(&six).flat_map(|(four, six)| [four.clone(), six.clone()]).collect();
    let mut gathered = gather(&mixed);
    let lens = gathered.packets.iter().map(|packet| packet.len()).collect::<Vec<_>>();
    assert_eq!(lens, [14 + 20 + 8 + 19 * 1400 + 7, 14 + 40 + 8 + 20 * 1200]);
    let offload = gathered.packets[0].offload().unwrap();
    let segment = Some(Segment { size: 1400, kind: SegmentKind::Udp });
    assert_eq!(offload, Offload { start: 34, field: 6, segment });
    assert!(gathered.cut() == [four, six].concat());
    // For a device that does not take them, all stay as they are.
    assert!(gather_for(&mixed, false).frames() == mixed);
}

/// 64 are one packet at the most, and 65,535 bytes.
#[test]
fn bounds_of_datagrams() {
    for (size, wanted) in [(100, [64, 64, 2]), (1400, [46, 46, 38])] {
        let frames = datagrams((true, 1), 0, 130, size, size);
        let mut gathered = gather(&frames);
        let parts: Vec<_> = gathered.packets.iter().map(|packet| (packet.len() - 62) / size).collect();
        assert_eq!(parts, wanted);
        assert!(gathered.cut() == frames);
    }
}

#[test]
fn datagrams_that_differ_stay_apart() {
    let kind = (false, 0xaaaa);
    let changes: [fn(&mut Vec<u8>); 8] = [
        // Longer than the first, without payload, without a checksum, with a wrong one, with another TTL, TOS or
        // identification, with something behind it.
        |frame| *frame = datagram((false, 0xaaaa), 1, 1001, 65_521),
        |frame| *frame = datagram((false, 0xaaaa), 1, 0, 65_521),
        |frame| frame[40..42].fill(0),
        |frame| frame[900] ^= 1,
        |frame| frame[22] -= 1,
        |frame| frame[15] = 4,
        |frame| *frame = datagram((false, 0xaaaa), 1, 1000, 65_528),
        |frame| frame.push(0),
    ];
    for change in changes {
        let mut frames = datagrams(kind, 0, 4, 1000, 1000);
        change(&mut frames[1]);
        ipv4::Header::mut_from_prefix(&mut frames[1][14..]).unwrap().0.fill_checksum(&[]);
        let mut gathered = gather(&frames);
        assert!(gathered.frames()[0] == frames[0] && gathered.cut() == frames);
    }
    // Behind a shorter one begins another packet.
    let mut frames = datagrams(kind, 0, 6, 1000, 1000);
    frames[2] = datagram(kind, 2, 999, 65_522);
    let mut gathered = gather(&frames);
    assert_eq!(gathered.packets.iter().map(|packet| packet.len() - 42).collect::<Vec<_>>(), [2999, 3000]);
    assert!(gathered.cut() == frames);
    // None overtakes a fragment of its flow.
    let mut frames = datagrams(kind, 0, 3, 1000, 1000);
    frames[1][20] |= 0x20;
    ipv4::Header::mut_from_prefix(&mut frames[1][14..]).unwrap().0.fill_checksum(&[]);
    assert!(gather(&frames).frames() == frames);
    // Identifications that stand still, of packets that may be cut, are of different packets.
    let mut frames: Vec<_> = (0..3).map(|n| datagram(kind, n, 100, 7)).collect();
    assert_eq!(gather(&frames).packets.len(), 1);
    for frame in &mut frames {
        frame[20] = 0;
        ipv4::Header::mut_from_prefix(&mut frame[14..]).unwrap().0.fill_checksum(&[]);
    }
    assert_eq!(gather(&frames).packets.len(), 3);
}

#[test]
fn none_is_longer_than_ip_allows() {
    let frames = row(FOUR, 0, 60, 1448, 1448);
    let mut gathered = gather(&frames);
    assert_eq!(gathered.packets.len(), 2);
    assert!(gathered.packets.iter().all(|packet| packet.len() <= 14 + LONGEST));
    assert!(gathered.cut() == frames);
}

/// In a row, the second of which is changed like this, nothing is put to the first.
fn stays_apart(change: impl Fn(u32, usize) -> Vec<u8>) {
    let mut frames = row(FOUR, 0, 4, 1000, 1000);
    frames[1] = change(1000, 1000);
    let mut gathered = gather(&frames);
    assert!(gathered.frames()[0] == frames[0] && gathered.cut() == frames);
}

#[test]
fn what_differs_stays_apart() {
    let id = 65_521;
    stays_apart(|at, len| segment(FOUR, at + 1, len, id, ACK));
    stays_apart(|at, len| segment(FOUR, at, len + 1, id, ACK));
    stays_apart(|at, len| segment(FOUR, at, len, id + 7, ACK));
    stays_apart(|at, len| segment(FOUR, at, len, id, ACK | tcp::URG));
    stays_apart(|at, len| segment(FOUR, at, len, id, ACK | tcp::RST));
    stays_apart(|at, len| segment(FOUR, at, len, id, ACK | tcp::CWR));
    stays_apart(|at, _| segment(FOUR, at, 0, id, ACK));
    stays_apart(|at, len| segment((false, FOUR.1, false), at, len, id, ACK));
    // A payload that does not belong to its checksum.
    stays_apart(|at, len| {
        let mut frame = segment(FOUR, at, len, id, ACK);
        frame[900] ^= 1;
        frame
    });
    // One that has come in the place of another.
    let frames = row(FOUR, 0, 3, 1000, 1000);
    let swapped = [frames[0].clone(), frames[2].clone(), frames[1].clone()];
    assert!(gather(&swapped).frames() == swapped);
}

#[test]
fn identifications_that_stand_still_are_of_one_packet() {
    let frames: Vec<_> = (0..3).map(|n| segment(FOUR, n * 1000, 1000, 0, ACK)).collect();
    assert_eq!(gather(&frames).packets.len(), 1);
}

#[test]
fn without_large_slots_all_stays_as_it_is() {
    let frames = row(FOUR, 0, 4, 1000, 1000);
    let mut pool = Pool::new(8);
    let packets: Vec<_> = frames
        .iter()
        .map(|frame| {
            let mut packet = pool.take().unwrap();
            packet.set(HEADROOM, frame).unwrap();
            packet
        })
        .collect();
    let mut coalescer = Coalescer::new(true);
    assert_eq!(coalescer.put(&mut pool, packets.into_iter()), 0);
    assert!(std::iter::from_fn(|| coalescer.next()).map(|packet| packet.bytes().to_vec()).eq(frames));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whatever comes, cut again it is what came, each flow in its order.
    #[test]
    fn nothing_is_lost_or_moved(
        rows in prop::collection::vec((any::<[bool; 3]>(), any::<u32>(), 1..30_u16, 1..1440_usize), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..=255_u8), 0..6),
        order in any::<u64>(),
    ) {
        let mut queues: Vec<_> = rows.iter().zip(0x1000..).map(|(&([ipv6, udp, timestamps], at, count, size), port)| {
            let last = size.div_ceil(2);
            if udp {
                datagrams((ipv6, port), at as u8, count, size, last).into_iter()
            } else {
                row((ipv6, port, timestamps), at, count, size, last).into_iter()
            }
        }).collect();
        let (mut frames, mut random) = (Vec::new(), order);
        while queues.iter().any(|queue| queue.len() > 0) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % queues.len();
            frames.extend(queues[at].by_ref().take(1 + (random >> 60) as usize));
        }
        for (frame, byte, bits) in changes {
            let frame = frame.index(frames.len());
            let at = byte.index(frames[frame].len());
            // Not those by which flows are distinguished, here or of UDP, which has no sequence numbers.
            let apart = match (frames[frame][12], frames[frame][20], frames[frame][23]) {
                (0x86, protocol::UDP, _) => matches!(at, 12..14 | 22..58),
                (8, _, protocol::UDP) => matches!(at, 12..14 | 26..38),
                _ => false,
            };
            if !apart && !matches!(at, 34..36 | 54..56) {
                frames[frame][at] ^= bits;
            }
        }
        let cut = gather(&frames).cut();
        prop_assert_eq!(cut.len(), frames.len());
        for port in (0x1000..).take(rows.len()) {
            prop_assert!(of_flow(&cut, port) == of_flow(&frames, port), "flow {port:x}");
        }
    }
}
