//! Packets made of any bytes through tunnels of every kind, and outer packets of any kind at their ends. The test and
//! the fuzz target share them.

use std::cell::RefCell;

use underpass_engine::buffer::{HEADROOM, Offload, PortId, Segment, SegmentKind};
use underpass_engine::worker::Burst;
use underpass_packet::{FromBytes, ipv4, protocol};

use crate::lab::{frame, ip4, ip6};
use crate::pair::{self, Pair, every, forwarded};

/// What outer packets have inside, among others.
const NEXT: &[u8] = &[
    protocol::UDP,
    protocol::GRE,
    protocol::IPV4,
    protocol::IPV6,
    protocol::MPLS,
    protocol::FRAGMENT,
    protocol::DESTINATION_OPTIONS,
    protocol::ICMP,
    protocol::ICMPV6,
];

thread_local! {
    static PAIRS: RefCell<Vec<Pair>> =
        RefCell::new(every().iter().step_by(5).map(Pair::new).collect());
}

/// Sends what the bytes stand for through one of the tunnels, which the first byte chooses; the second says what it is:
/// a packet that goes in, or one that comes out, whole, in fragments, or put together by a kernel. Nothing is lost, and
/// what comes out is what went in. Whether something does.
pub fn send(bytes: &[u8]) -> bool {
    let Some((&[which, what, next], payload)) = bytes.split_first_chunk::<3>() else { return false };
    let next = NEXT.get(usize::from(next)).copied().unwrap_or(next);
    let payload = &payload[..payload.len().min(1300)];
    PAIRS.with_borrow_mut(|pairs| {
        let which = usize::from(which) % pairs.len();
        let pair = &mut pairs[which];
        let six = what & 4 != 0;
        let outer = if six {
            ip6("fd00::1", "fd00::2", next, payload)
        } else {
            ip4([10, 0, 0, 1], [10, 0, 0, 2], next, payload)
        };
        let received_by = match what & 3 {
            0 => {
                let inner = if six {
                    ip6("fd00:1::7", "fd50::7", next, payload)
                } else {
                    ip4([10, 1, 0, 7], [10, 50, 0, 7], next, payload)
                };
                let sent = pair.near.send(&[frame(pair::ethertype(&inner), &inner)]);
                let wires: Vec<_> = sent.into_iter().filter(|(port, _)| *port == 0).collect();
                let wires: Vec<_> = wires
                    .into_iter()
                    .map(|(_, wire)| frame(pair::ethertype(&wire[14..]), &wire[14..]))
                    .collect();
                let out = pair.far.send(&wires);
                for (port, out) in &out {
                    let whole = wires.len() == 1 && *port == 1;
                    assert!(!whole || out[14..] == forwarded(&forwarded(&inner)), "{which}: {inner:02x?}");
                }
                !out.is_empty()
            }
            1 => !pair.far.send(&[frame(pair::ethertype(&outer), &outer)]).is_empty(),
            2 => {
                let len = 8 * (1 + usize::from(what >> 3));
                let parts: Vec<_> =
                    fragments(&outer, len).iter().map(|part| frame(pair::ethertype(part), part)).collect();
                parts.chunks(32).any(|burst| !pair.far.send(burst).is_empty())
            }
            _ => {
                let Some(mut packet) = pair.far.worker.pool().take() else { return false };
                let start = 14 + if six { 40 } else { 20 };
                if packet.set(HEADROOM, &frame(pair::ethertype(&outer), &outer)).is_err() {
                    pair.far.worker.pool().give(packet);
                    return false;
                }
                let (size, kind) = (1 + u16::from(what >> 3) * 20, SegmentKind::Udp);
                packet.set_offload(Offload { start, field: 6, segment: Some(Segment { size, kind }) });
                let mut burst = Burst::new();
                burst.push(packet);
                pair.far.worker.process(PortId(0), &mut burst, 0, None);
                !pair.far.send(&[]).is_empty()
            }
        };
        pair.assert_accounted();
        received_by
    })
}

/// An outer packet in fragments of so many bytes.
fn fragments(packet: &[u8], len: usize) -> Vec<Vec<u8>> {
    let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let payload = &packet[at..];
    let parts = payload.chunks(len).enumerate();
    let parts = parts.map(|(n, part)| (n * len, n * len + part.len() < payload.len(), part));
    parts
        .map(|(offset, more, part)| {
            if at == 20 {
                let mut fragment = [&packet[..20], part].concat();
                let (header, _) = ipv4::Header::mut_from_prefix(&mut fragment).unwrap();
                let more = if more { ipv4::MORE_FRAGMENTS } else { 0 };
                header.flags_offset = (more | (offset / 8) as u16).into();
                header.total_length = ((part.len() + 20) as u16).into();
                header.fill_checksum(&[]);
                return fragment;
            }
            let [high, low] = (offset as u16 | u16::from(more)).to_be_bytes();
            let mut fragment = [&packet[..40], &[packet[6], 0, high, low, 0, 0, 0, 7], part].concat();
            fragment[6] = protocol::FRAGMENT;
            fragment[4..6].copy_from_slice(&((part.len() + 8) as u16).to_be_bytes());
            fragment
        })
        .collect()
}
