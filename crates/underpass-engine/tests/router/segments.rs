//! Packets that stand for several: whether they fit is a matter of their parts.

use super::lab;
use super::lab::{Lab, frame, ip4, ip6};
use underpass_engine::buffer::{HEADROOM, Offload, PortId, Segment, SegmentKind};
use underpass_engine::drops::DropReason;
use underpass_engine::worker::Burst;
use underpass_packet::checksum::Sum;
use underpass_packet::{ethernet, ipv4, protocol, udp};

/// A UDP header whose checksum is the sum of the pseudo header, and `len` bytes.
fn upper(pseudo: Sum, len: usize) -> Vec<u8> {
    let mut bytes = [[0, 7, 0, 9], [((len + 8) >> 8) as u8, (len + 8) as u8, 0, 0]].concat();
    bytes[6..8].copy_from_slice(&pseudo.fold().to_be_bytes());
    bytes.extend((0..len).map(|at| at as u8));
    bytes
}

fn send(lab: &mut Lab, frame: &[u8], size: u16) -> Vec<(Vec<u8>, Option<Offload>)> {
    let start = frame.len()
        - usize::from(u16::from_be_bytes([frame[frame.len() - LEN - 4], frame[frame.len() - LEN - 3]]));
    let mut packet = lab.worker.pool().take().unwrap();
    packet.set(HEADROOM, frame).unwrap();
    let segment = (size != 0).then_some(Segment { size, kind: SegmentKind::Udp });
    packet.set_offload(Offload { start, field: 6, segment });
    let mut burst = Burst::new();
    burst.push(packet);
    lab.worker.process(PortId(0), &mut burst, 0, None);
    let mut out = Vec::new();
    for port in [1, 0] {
        let sent: Vec<_> = lab.worker.sent(PortId(port)).collect();
        for packet in sent {
            out.push((packet.bytes().to_vec(), packet.offload()));
            lab.worker.pool().give(packet);
        }
    }
    out
}

const LEN: usize = 1700;

fn six() -> Vec<u8> {
    let pseudo = Sum::pseudo_ipv6(
        lab::v6("fd00:0::2").octets(),
        lab::v6("fd00:1::2").octets(),
        protocol::UDP,
        LEN as u32 + 8,
    );
    frame(ethernet::IPV6, &ip6("fd00:0::2", "fd00:1::2", protocol::UDP, &upper(pseudo, LEN)))
}

#[test]
fn parts_that_fit_are_forwarded_whole() {
    let mut lab = Lab::new();
    let out = send(&mut lab, &six(), 1452);
    let segment = Some(Segment { size: 1452, kind: SegmentKind::Udp });
    assert_eq!((out.len(), out[0].0.len()), (1, 14 + 40 + 8 + LEN));
    assert_eq!(out[0].1, Some(Offload { start: 54, field: 6, segment }));
    lab.assert_accounted();
}

#[test]
fn parts_that_do_not_fit_are_too_big() {
    for size in [1453, 0] {
        let mut lab = Lab::new();
        let out = send(&mut lab, &six(), size);
        assert_eq!(lab.writer.dropped(DropReason::TooBig), 1);
        // The error has a checksum of its own.
        assert_eq!((out.len(), out[0].0[54], out[0].1), (1, 2, None));
        lab.assert_accounted();
    }
}

/// Each part in its fragments, and the checksums finished before.
#[test]
fn parts_are_fragmented() {
    for (size, parts) in [(1600, 2), (0, 1)] {
        let mut lab = Lab::new();
        let addresses = ([10, 0, 0, 2], [10, 1, 0, 2]);
        let pseudo = Sum::pseudo_ipv4(addresses.0, addresses.1, protocol::UDP, LEN as u16 + 8);
        let mut packet = ip4(addresses.0, addresses.1, protocol::UDP, &upper(pseudo, LEN));
        // It may be fragmented.
        packet[6] = 0;
        packet[10..12].fill(0);
        let checksum = Sum::new().add_bytes(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        let out = send(&mut lab, &frame(ethernet::IPV4, &packet), size);
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        for (frame, offload) in &out {
            assert!(frame.len() <= 1514 && offload.is_none());
            let view = ipv4::View::parse(&frame[14..]).unwrap();
            assert!(view.checksum_valid());
            match view.header.fragment_offset() {
                0 => datagrams.push(view.payload.to_vec()),
                offset => {
                    let datagram = datagrams.last_mut().unwrap();
                    assert_eq!(datagram.len(), offset);
                    datagram.extend(view.payload);
                }
            }
        }
        assert_eq!(datagrams.len(), parts);
        for datagram in &datagrams {
            let length = datagram.len() as u16;
            assert_eq!(u16::from_be_bytes([datagram[4], datagram[5]]), length);
            let pseudo = Sum::pseudo_ipv4(addresses.0, addresses.1, protocol::UDP, length);
            assert_eq!(pseudo.add_bytes(datagram).fold(), 0xffff);
        }
        let payload: Vec<u8> =
            datagrams.iter().flat_map(|datagram| &datagram[size_of::<udp::Header>()..]).copied().collect();
        assert_eq!(payload, upper(Sum::new(), LEN)[8..]);
        lab.assert_accounted();
    }
}
