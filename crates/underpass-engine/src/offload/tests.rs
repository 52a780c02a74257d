//! Packets behind random tunnels. They are built and checked here with nothing of what they test: a checksum
//! is good if the words under it, its own among them, sum up to 0xffff (RFC 1071).

use proptest::prelude::*;

use super::*;
use crate::buffer;

/// What lies around the TCP or UDP header, from the outside in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Around {
    /// So many MPLS labels, right behind the Ethernet header.
    Labels(u8),
    Ip4,
    Ip6,
    /// IPv6 with an SRH of so many segments, the last of which is yet to come.
    Srh(u8),
    /// UDP that carries what is below, with a checksum or without.
    Fou(bool),
    /// UDP and GUE with so many words of private data.
    Gue(bool, u8),
    /// UDP, a VXLAN header and an Ethernet header.
    Vxlan(bool),
    /// UDP, a Geneve header with so many words of options, and an Ethernet header.
    Geneve(bool, u8),
    /// With these flags.
    Gre(u8),
    /// An Ethernet header behind IPv6.
    Frame,
}

const ADDRESS4: [u8; 8] = [10, 0, 0, 1, 10, 0, 0, 2];

fn address6(last: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// RFC 1071, word by word.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo header of what stands behind `around`.
fn pseudo(around: Around, protocol: u8, len: usize) -> Vec<u8> {
    let len = (len as u32).to_be_bytes();
    match around {
        Around::Ip4 => [&ADDRESS4[..], &[0, protocol], &len[2..]].concat(),
        Around::Srh(segments) if segments > 0 => {
            [&address6(1)[..], &address6(100), &len, &[0, 0, 0, protocol]].concat()
        }
        _ => [&address6(1)[..], &address6(2), &len, &[0, 0, 0, protocol]].concat(),
    }
}

/// A frame of `upper` behind these headers. `protocol` is what `upper` is; it has its checksum, or the sum of
/// its pseudo header.
fn build(stack: &[Around], protocol: u8, upper: &[u8], index: u16) -> Vec<u8> {
    let (mut bytes, mut inside) = (upper.to_vec(), protocol);
    for (place, around) in stack.iter().enumerate().rev() {
        let len = bytes.len();
        let (header, number) = match around {
            Around::Labels(depth) => {
                let entry = |n| [0, n, 0x10 | u8::from(n == *depth), 64];
                ((1..=*depth).flat_map(entry).collect(), 137)
            }
            Around::Ip4 => {
                let total = ((len + 20) as u16).to_be_bytes();
                let id = 0xfffe_u16.wrapping_add(index).to_be_bytes();
                let mut header =
                    [&[0x45, 0, total[0], total[1], id[0], id[1], 0x40, 0, 64, inside, 0, 0], &ADDRESS4[..]]
                        .concat();
                let checksum = (!sum(&[&header])).to_be_bytes();
                header[10..12].copy_from_slice(&checksum);
                (header, 4)
            }
            Around::Ip6 => (ip6(len, inside), 41),
            Around::Srh(segments) => {
                let list: Vec<_> = (0..*segments).flat_map(|n| address6(100 + n)).collect();
                let fixed =
                    [inside, segments * 2, 4, u8::from(*segments > 0), segments.saturating_sub(1), 0, 0, 0];
                let header = if *segments == 0 { Vec::new() } else { [&fixed[..], &list].concat() };
                let next = if header.is_empty() { inside } else { 43 };
                ([ip6(len + header.len(), next), header].concat(), 41)
            }
            Around::Fou(with) | Around::Gue(with, _) | Around::Vxlan(with) | Around::Geneve(with, _) => {
                if let Around::Geneve(_, words) = *around {
                    let own = [words, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0];
                    let options = vec![0x5a; 4 * usize::from(words)];
                    bytes = [&own[..], &options, &link(inside), &bytes].concat();
                }
                if let Around::Vxlan(_) = *around {
                    bytes = [&[8, 0, 0, 0, 0x12, 0x34, 0x56, 0][..], &link(inside), &bytes].concat();
                }
                if let Around::Gue(_, words) = *around {
                    bytes = [&vec![words, inside, 0, 0][..], &vec![0xa5; 4 * usize::from(words)], &bytes]
                        .concat();
                }
                let len = bytes.len();
                let length = ((len + 8) as u16).to_be_bytes();
                let mut header = vec![0x12, 0x34, 0x15, 0xb3, length[0], length[1], 0, 0];
                if *with {
                    let checksum = !sum(&[&pseudo(stack[place - 1], 17, len + 8), &header, &bytes]);
                    header[6..8]
                        .copy_from_slice(&if checksum == 0 { 0xffff } else { checksum }.to_be_bytes());
                }
                (header, 17)
            }
            Around::Gre(flags) => {
                let mut header = [&[*flags, 0], &link(inside)[12..]].concat();
                for (flag, field) in
                    [(0x80, 0), (0x20, 0x0102_0304), (0x10, 0xffff_fffe_u32.wrapping_add(index.into()))]
                {
                    if flags & flag != 0 {
                        header.extend(field.to_be_bytes());
                    }
                }
                if flags & 0x80 != 0 {
                    let checksum = (!sum(&[&header, &bytes])).to_be_bytes();
                    header[4..6].copy_from_slice(&checksum);
                }
                (header, 47)
            }
            Around::Frame => (link(inside), 143),
        };
        bytes = [header, bytes].concat();
        inside = number;
    }
    [link(inside), bytes].concat()
}

fn ip6(len: usize, next: u8) -> Vec<u8> {
    let len = (len as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next, 64], &address6(1)[..], &address6(2)].concat()
}

fn link(inside: u8) -> Vec<u8> {
    let ethertype: [u8; 2] = match inside {
        4 => [8, 0],
        137 => [0x88, 0x47],
        143 => [0x65, 0x58],
        _ => [0x86, 0xdd],
    };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype].concat()
}

/// A TCP or UDP header with `payload`, its checksum finished or not.
fn upper(around: Around, tcp: bool, payload: &[u8], sequence: u32, flags: u8, finished: bool) -> Vec<u8> {
    let mut bytes = if tcp {
        let mut header = vec![0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&sequence.to_be_bytes());
        [header, vec![1; 12]].concat()
    } else {
        let length = ((payload.len() + 8) as u16).to_be_bytes();
        vec![0x30, 0x39, 0, 53, length[0], length[1], 0, 0]
    };
    bytes.extend(payload);
    let (protocol, field) = if tcp { (6, 16) } else { (17, 6) };
    let pseudo = sum(&[&pseudo(around, protocol, bytes.len())]);
    let value = if finished { !sum(&[&pseudo.to_be_bytes(), &bytes]) } else { pseudo };
    let value = if value == 0 && !tcp { 0xffff } else { value };
    bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
    bytes
}

/// A frame whose checksum at `at` is what [`finish`] makes of an unfinished one, which is never 0.
fn never_zero(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    if frame[at..at + 2] == [0, 0] {
        frame[at..at + 2].fill(0xff);
    }
    frame
}

/// `skb_checksum_help` of Linux writes 0xffff for 0 whatever the protocol, `udp_gso_segment` too; `tcp_gso_segment` leaves 0.
#[test]
fn checksums_of_zero() {
    let mut pool = pool();
    for (inner, tcp) in [(Around::Ip4, true), (Around::Ip6, true), (Around::Ip4, false), (Around::Ip6, false)]
    {
        let (field, header, protocol) = if tcp { (16, 32, 6) } else { (6, 8, 17) };
        let kind = match (tcp, inner) {
            (false, _) => SegmentKind::Udp,
            (true, Around::Ip4) => SegmentKind::Tcp4,
            (true, _) => SegmentKind::Tcp6,
        };
        // What would be the checksum of zeros is under the checksum.
        let zeros = upper(inner, tcp, &[0; 100], 7, 0x18, true);
        let payload = [&zeros[field..field + 2], &[0; 98]].concat();
        let frame = build(&[inner], protocol, &upper(inner, tcp, &payload, 7, 0x18, false), 0);
        let start = frame.len() - payload.len() - header;
        let at = start + field;
        let of = |bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let mut packet = packet(&mut pool, &frame);
        let offload = Offload { start, field: field as u16, segment: None };
        packet.set_offload(Offload { segment: Some(Segment { size: 100, kind }), ..offload });
        let part = Cut::new(&packet).unwrap().next(&packet, &mut pool).unwrap().unwrap();
        assert_eq!(of(part.bytes()), if tcp { 0 } else { 0xffff });
        packet.set_offload(offload);
        finish(&mut packet);
        assert_eq!(of(packet.bytes()), 0xffff, "{inner:?}, TCP: {tcp}");
        [part, packet].into_iter().for_each(|packet| pool.give(packet));
    }
}

fn gre() -> impl Strategy<Value = Around> {
    (0..8_u8).prop_map(|flags| Around::Gre(flags << 4 & 0x30 | flags << 5 & 0x80))
}

/// Outer headers that may follow each other, then the innermost.
fn stack() -> impl Strategy<Value = Vec<Around>> {
    let outer = prop_oneof![
        Just(vec![Around::Ip4]),
        Just(vec![Around::Ip6]),
        (0..5_u8).prop_map(|segments| vec![Around::Srh(segments)]),
        any::<bool>().prop_map(|with| vec![Around::Ip4, Around::Fou(with)]),
        any::<bool>().prop_map(|with| vec![Around::Ip6, Around::Fou(with)]),
        (any::<bool>(), 0..30_u8).prop_map(|(with, words)| vec![Around::Ip6, Around::Gue(with, words)]),
        any::<bool>().prop_map(|with| vec![Around::Ip4, Around::Vxlan(with)]),
        any::<bool>().prop_map(|with| vec![Around::Ip6, Around::Vxlan(with)]),
        (any::<bool>(), 0..64_u8).prop_map(|(with, words)| vec![Around::Ip4, Around::Geneve(with, words)]),
        (any::<bool>(), 0..64_u8).prop_map(|(with, words)| vec![Around::Ip6, Around::Geneve(with, words)]),
        gre().prop_map(|gre| vec![Around::Ip4, gre]),
        (any::<bool>(), gre()).prop_map(|(with, gre)| vec![Around::Ip4, Around::Fou(with), gre]),
        (any::<bool>(), gre()).prop_map(|(with, gre)| vec![
            Around::Ip4,
            Around::Gue(with, 0),
            gre,
            Around::Frame
        ]),
        (1..4_u8).prop_map(|depth| vec![Around::Ip4, Around::Labels(depth)]),
        (1..4_u8).prop_map(|depth| vec![Around::Ip6, Around::Fou(true), Around::Labels(depth)]),
        Just(vec![Around::Ip6, Around::Frame]),
    ];
    let inner = prop_oneof![Just(Around::Ip4), Just(Around::Ip6), Just(Around::Srh(2))];
    let labels = prop_oneof![Just(Vec::new()), (1..31_u8).prop_map(|depth| vec![Around::Labels(depth)])];
    (labels, proptest::collection::vec(outer, 0..3), inner)
        .prop_map(|(labels, outer, inner)| [labels, outer.concat(), vec![inner]].concat())
}

fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
    let mut packet = pool.take_large().unwrap();
    packet.set(buffer::HEADROOM, bytes).unwrap();
    packet
}

fn pool() -> Pool {
    let region = |slot: usize, count: usize| Vec::leak(vec![0; (slot + 64) * count]);
    Pool::over(region(buffer::SLOT, 300), region(buffer::LARGE_SLOT, 4))
}

/// A segment to be cut into parts of `size` behind `stack`.
#[derive(Debug)]
struct Large {
    stack: Vec<Around>,
    tcp: bool,
    size: u16,
    payload: Vec<u8>,
    sequence: u32,
    flags: u8,
}

impl Large {
    /// The frame of what starts at `at` of the payload.
    fn frame(&self, payload: &[u8], at: usize, flags: u8, finished: bool, index: usize) -> Vec<u8> {
        let inner = *self.stack.last().unwrap();
        let upper = upper(inner, self.tcp, payload, self.sequence.wrapping_add(at as u32), flags, finished);
        build(&self.stack, if self.tcp { 6 } else { 17 }, &upper, index as u16)
    }

    fn whole(&self) -> Vec<u8> {
        self.frame(&self.payload, 0, self.flags, false, 0)
    }

    fn packet(&self, pool: &mut Pool) -> Packet {
        let whole = self.whole();
        let mut packet = packet(pool, &whole);
        let (field, header) = if self.tcp { (16, 32) } else { (6, 8) };
        let kind = match (self.tcp, self.stack.last().unwrap()) {
            (false, _) => SegmentKind::Udp,
            (true, Around::Ip4) => SegmentKind::Tcp4,
            (true, _) => SegmentKind::Tcp6,
        };
        let start = whole.len() - self.payload.len() - header;
        packet.set_offload(Offload { start, field, segment: Some(Segment { size: self.size, kind }) });
        packet
    }

    /// How many parts there are.
    fn parts(&self) -> usize {
        self.payload.len().div_ceil(self.size.into())
    }
}

fn large() -> impl Strategy<Value = Large> {
    (stack(), any::<bool>(), 1..1200_u16, 1..20_000_usize, any::<u32>(), any::<u8>()).prop_map(
        |(stack, tcp, size, len, sequence, flags)| {
            let payload = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            Large { stack, tcp, size: size.max((len / 250) as u16 + 1), payload, sequence, flags }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A segment is cut as the sender would have cut it.
    #[test]
    fn cut_as_the_sender_would(large in large()) {
        let mut pool = pool();
        let packet = large.packet(&mut pool);
        let labelled = large.stack.iter().any(|around| matches!(around, Around::Labels(_)));
        prop_assert!(!labelled || leaves(&packet) == Leaves::Cut);
        let mut cut = Cut::new(&packet).unwrap();
        for (index, chunk) in large.payload.chunks(large.size.into()).enumerate() {
            let mut part = cut.next(&packet, &mut pool).unwrap().unwrap();
            let last = index + 1 == large.parts();
            let flags = large.flags & if last { 0xff } else { 0xf6 } & if index == 0 { 0xff } else { 0x7f };
            let wanted = large.frame(chunk, index * usize::from(large.size), flags, true, index);
            prop_assert!(part.bytes() == wanted, "part {} of {:?}", index, &large.stack);
            part.clear_offload();
            pool.give(part);
        }
        prop_assert!(cut.next(&packet, &mut pool).is_none());
    }

    /// What the kernel has put together of finished parts is cut into these again: only the first part's checksum was
    /// still there. A UDP datagram with a tunnel in it is not told from one with data.
    #[test]
    fn reopened_as_the_sender_would(large in large()) {
        let mut pool = pool();
        let left_alone = large.packet(&mut pool);
        let offload = left_alone.offload().unwrap();
        let mut bytes = large.whole();
        let at = offload.start + usize::from(offload.field);
        bytes[at..at + 2].copy_from_slice(&[0x12, 0x34]);
        // The kernel hands up no padding, but somebody's device might.
        bytes.extend([0xee; 3]);
        let mut joined = packet(&mut pool, &bytes);
        let done = reopen(&mut joined, offload.segment.unwrap());
        let udp = |around: &Around| {
            matches!(around, Around::Fou(_) | Around::Gue(..) | Around::Vxlan(_) | Around::Geneve(..))
        };
        if large.stack.iter().any(udp) {
            prop_assert!(done != large.tcp);
        } else {
            prop_assert!(done);
            prop_assert_eq!(joined.offload(), Some(offload));
            prop_assert!(joined.bytes() == left_alone.bytes());
        }
    }

    /// What the kernel has strung together of unfinished parts has the sum of the first one's pseudo header.
    #[test]
    fn strung_as_the_sender_would(large in large()) {
        let mut pool = pool();
        let (mut whole, mut strung) = (large.packet(&mut pool), large.packet(&mut pool));
        let offload = whole.offload().unwrap();
        mend_strung(&mut whole);
        prop_assert!(whole.bytes() == large.whole());
        let first = &large.payload[..large.payload.len().min(large.size.into())];
        let first = large.frame(first, 0, large.flags, false, 0);
        let at = offload.start + usize::from(offload.field);
        strung.bytes_mut()[at..at + 2].copy_from_slice(&first[at..at + 2]);
        mend_strung(&mut strung);
        prop_assert!(strung.bytes() == large.whole());
    }

    /// The first parts of a segment are what the sender would have sent had it had no more.
    #[test]
    fn kept_as_the_sender_would(large in large(), parts in 0..400_usize) {
        let mut pool = pool();
        let mut packet = large.packet(&mut pool);
        let offload = packet.offload().unwrap();
        let parts = parts % (large.parts() + 2);
        if !keep(&mut packet, parts) {
            prop_assert!(parts == 0 || parts >= large.parts());
            prop_assert!(packet.bytes() == large.whole() && packet.offload() == Some(offload));
            return Ok(());
        }
        let size = usize::from(large.size);
        let segment = offload.segment.filter(|_| parts > 1);
        prop_assert_eq!(packet.offload(), Some(Offload { segment, ..offload }));
        let mut found = Vec::new();
        if parts == 1 {
            finish(&mut packet);
            found.push(packet);
        } else {
            let mut cut = Cut::new(&packet).unwrap();
            found.extend(std::iter::from_fn(|| cut.next(&packet, &mut pool)).map(Result::unwrap));
        }
        prop_assert_eq!(found.len(), parts);
        for (index, part) in found.iter().enumerate() {
            let flags = large.flags & 0xf6 & if index == 0 { 0xff } else { 0x7f };
            let chunk = &large.payload[index * size..][..size];
            let mut wanted = large.frame(chunk, index * size, flags, true, index);
            if parts == 1 {
                wanted = never_zero(wanted, offload.start + usize::from(offload.field));
            }
            prop_assert!(part.bytes() == wanted, "part {} of {} of {:?}", index, parts, &large.stack);
        }
    }

    /// A segment in a tunnel with checksums leaves as one whose outer checksums are those of each of its parts, and
    /// what is left over.
    #[test]
    fn even_as_the_sender_would(large in large()) {
        let mut pool = pool();
        let mut packet = large.packet(&mut pool);
        let (offload, size, flags) = (packet.offload(), usize::from(large.size), large.flags);
        let Leaves::Tunnelled(Tunnel { summed: true, .. }) = leaves(&packet) else { return Ok(()) };
        let parts = large.payload.len() / size;
        let Ok(last) = make_even(&mut packet, &mut pool) else {
            prop_assert!(parts < 2 && packet.bytes() == large.whole());
            return Ok(());
        };
        let (even, left) = large.payload.split_at(parts * size);
        let first_flags = flags & if parts == 1 && left.is_empty() { 0xff } else { 0xf6 };
        prop_assert_eq!(last.is_none(), left.is_empty());
        if let Some(last) = last {
            let wanted = large.frame(left, even.len(), flags & 0x7f, true, parts);
            prop_assert!(last.bytes() == wanted, "last of {:?}", &large.stack);
            pool.give(last);
        }
        // What differs from a packet that long is nothing but its outer checksums.
        let first = large.frame(&even[..size], 0, first_flags, true, 0);
        let mut wanted = large.frame(even, 0, flags & if left.is_empty() { 0xff } else { 0xf6 }, false, 0);
        for (layer, at) in Cut::new(&packet).unwrap().walk.layers {
            let at = match layer {
                Layer::Udp => at + 6,
                Layer::Gre { checksum: true, .. } => at + 4,
                _ => continue,
            };
            for index in 0..parts {
                let from = index * size;
                let part = large.frame(&even[from..from + size], from, 0, true, index);
                prop_assert_eq!(&part[at..at + 2], &first[at..at + 2]);
            }
            wanted[at..at + 2].copy_from_slice(&first[at..at + 2]);
        }
        prop_assert!(packet.bytes() == wanted, "{:?}", &large.stack);
        prop_assert_eq!(packet.offload(), offload);
    }

    /// An unfinished checksum is found wherever it is, and finished; a finished one stays.
    #[test]
    fn found_and_finished(
        stack in stack().prop_filter("UDP in UDP is not looked into, nor checksums over checksums", |stack| {
            !stack.iter().any(|around| match around {
                Around::Fou(_) | Around::Gue(..) | Around::Vxlan(_) | Around::Geneve(..) => true,
                Around::Gre(flags) => flags & 0x80 != 0,
                _ => false,
            })
        }),
        tcp in any::<bool>(), payload in proptest::collection::vec(any::<u8>(), 0..1400),
        finished in any::<bool>(), padding in 0..20_usize,
    ) {
        let inner = *stack.last().unwrap();
        let protocol = if tcp { 6 } else { 17 };
        let frame = |finished| build(&stack, protocol, &upper(inner, tcp, &payload, 1, 0x18, finished), 0);
        let mut pool = pool();
        let mut packet = packet(&mut pool, &[frame(finished), vec![0xee; padding]].concat());
        find(&mut packet, 9000);
        prop_assert!(finished || packet.has_offload());
        finish(&mut packet);
        let (mut done, (header, field)) = (frame(true), if tcp { (32, 16) } else { (8, 6) });
        if !finished {
            let at = done.len() - payload.len() - header + field;
            done = never_zero(done, at);
        }
        prop_assert_eq!(&packet.bytes()[..done.len()], &done);
    }

    /// Nothing that comes makes any of it panic.
    #[test]
    fn any_bytes(
        stack in stack(), tcp in any::<bool>(), changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        len in 0..200_usize, offload in (0..300_usize, any::<u16>(), any::<u16>()),
    ) {
        let inner = *stack.last().unwrap();
        let mut bytes = build(&stack, if tcp { 6 } else { 17 }, &upper(inner, tcp, &[7; 90], 1, 0, false), 0);
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().saturating_sub(len));
        let mut pool = pool();
        let mut packet = packet(&mut pool, &bytes);
        find(&mut packet, 40);
        let kind = if tcp { SegmentKind::Tcp6 } else { SegmentKind::Udp };
        reopen(&mut packet, Segment { size: 20, kind });
        for _ in 0..2 {
            mend_strung(&mut packet);
            let _ = leaves(&packet);
            keep(&mut packet, 1 + len % 3);
            if let Ok(Some(last)) = make_even(&mut packet, &mut pool) {
                pool.give(last);
            }
            if let Some(mut cut) = Cut::new(&packet) {
                while let Some(Ok(part)) = cut.next(&packet, &mut pool) {
                    pool.give(part);
                }
            }
            let (start, field, size) = offload;
            let segment = (size != 0).then_some(Segment { size, kind: SegmentKind::Tcp6 });
            packet.set_offload(Offload { start, field, segment });
        }
        finish(&mut packet);
    }
}
