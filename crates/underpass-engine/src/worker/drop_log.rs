//! What a worker remembers of the packets that it has dropped: how many came in by which port, and the last of each reason.

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::worker::metadata::{LABELLED, PacketMeta};

/// Bytes of a dropped frame that are kept.
pub const EXAMPLE: usize = 160;

/// Pairs of port and reason that are counted apart, and how many are looked at for one.
const PAIRS: usize = 1 << 10;
const PROBES: usize = 16;

/// The last frame that was dropped for a reason, or one of the same burst.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// When, by the worker's clock.
    pub at: Nanos,
    /// The port by which its burst came in; `None` if it had waited.
    pub port: Option<PortId>,
    /// How long the frame was.
    pub len: u32,
    kept: u8,
    bytes: [u8; EXAMPLE],
    burst: u64,
}

impl Example {
    const NONE: Self = Self { at: 0, port: None, len: 0, kept: 0, bytes: [0; EXAMPLE], burst: 0 };

    /// Its first bytes, as it was when it was dropped, from an Ethernet header on: its own, if it still had one.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.kept)).unwrap_or_default()
    }
}

/// The drops of a worker. Nothing is allocated after it is made.
pub struct DropLog {
    port: Option<PortId>,
    now: Nanos,
    /// The number of the burst, from 1.
    burst: u64,
    /// By the number of the reason.
    examples: Box<[Example]>,
    /// A key and how often, found by linear probing; 0 is no key.
    pairs: Box<[(u32, u64)]>,
    /// Of pairs for which there is no room.
    others: u64,
}

impl Default for DropLog {
    fn default() -> Self {
        Self {
            port: None,
            now: 0,
            burst: 1,
            examples: DropReason::ALL.iter().map(|_| Example::NONE).collect(),
            pairs: vec![(0, 0); PAIRS].into(),
            others: 0,
        }
    }
}

impl DropLog {
    /// What is dropped from now on has come in by this port, or has waited.
    #[inline(always)]
    pub(crate) fn begin(&mut self, port: Option<PortId>, now: Nanos) {
        self.port = port;
        self.now = now;
        self.burst += 1;
    }

    #[cold]
    pub(crate) fn count(&mut self, reason: DropReason, n: u64) {
        let port = self.port.map_or(0, |port| u32::from(port.0) + 1);
        let key = (port << 8 | reason as u32) + 1;
        let first = (key.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        for step in 0..PROBES {
            if let Some(pair) = self.pairs.get_mut(first.wrapping_add(step) & (PAIRS - 1))
                && (pair.0 == key || pair.0 == 0)
            {
                *pair = (key, pair.1 + n);
                return;
            }
        }
        self.others += n;
    }

    /// Keeps a frame as the last that was dropped for a reason, if none of its burst was.
    #[cold]
    pub(crate) fn keep_frame(&mut self, reason: DropReason, packet: &Packet) {
        let header = match packet.tag().headless {
            0 => None,
            ethertype => Some(bare(ethertype)),
        };
        self.keep(reason, header, packet.bytes());
    }

    /// The same of a packet on its path.
    #[cold]
    pub(crate) fn keep_packet(&mut self, reason: DropReason, meta: &PacketMeta) {
        let ethertype = match meta.packet.bytes().first().map(|first| first >> 4) {
            _ if meta.is(LABELLED) => ethernet::MPLS,
            Some(6) => ethernet::IPV6,
            _ => ethernet::IPV4,
        };
        let mut header = meta.link_layer().unwrap_or_else(|| bare(ethertype));
        // Labels and headers may have gone since.
        if matches!(header, [.., 0x88, 0x47] | [.., 0x08, 0x00] | [.., 0x86, 0xdd]) {
            header[12..].copy_from_slice(&ethertype.to_be_bytes());
        }
        self.keep(reason, Some(header), meta.packet.bytes());
    }

    fn keep(&mut self, reason: DropReason, header: Option<[u8; ethernet::Header::LEN]>, packet: &[u8]) {
        let Some(example) = self.examples.get_mut(reason as usize) else { return };
        if example.burst == self.burst {
            return;
        }
        let header = header.as_ref().map_or(&[][..], |header| header);
        let kept = packet.get(..EXAMPLE - header.len()).unwrap_or(packet);
        let len = header.len() + kept.len();
        (example.bytes[..header.len()]).copy_from_slice(header);
        if let Some(room) = example.bytes.get_mut(header.len()..len) {
            room.copy_from_slice(kept);
        }
        example.kept = len as u8;
        example.len = (header.len() + packet.len()) as u32;
        (example.at, example.port, example.burst) = (self.now, self.port, self.burst);
    }

    /// The last frame of each reason for which one was dropped.
    pub fn examples(&self) -> impl Iterator<Item = (DropReason, &Example)> {
        DropReason::ALL.iter().copied().zip(&self.examples).filter(|(_, example)| example.burst != 0)
    }

    /// How many packets were dropped by the port that they came in by, and the reason. `None` for the port: they had waited, or
    /// there are more ports than are counted apart.
    pub fn by_port(&self) -> impl Iterator<Item = (Option<PortId>, DropReason, u64)> {
        self.pairs.iter().filter(|(key, _)| *key != 0).filter_map(|(key, n)| {
            let reason = DropReason::ALL.get((key - 1 & 0xff) as usize)?;
            let port = ((key - 1) >> 8).checked_sub(1).map(|port| PortId(port as u16));
            Some((port, *reason, *n))
        })
    }

    /// How many were dropped of ports and reasons for which there is no room.
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// An Ethernet header in front of a packet that had none left.
const fn bare(ethertype: u16) -> [u8; ethernet::Header::LEN] {
    let [high, low] = ethertype.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]
}

const _: () = assert!(DropReason::ALL.len() <= 256 && EXAMPLE <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;

    fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
        let mut packet = pool.take().unwrap();
        packet.set(200, bytes).unwrap();
        packet
    }

    #[test]
    fn drops_are_counted_by_port_and_reason() {
        let mut log = DropLog::default();
        for port in 0..3 {
            log.begin(Some(PortId(port)), 5);
            log.count(DropReason::NoRoute, u64::from(port) + 1);
            log.count(DropReason::LinkDown, 1);
        }
        log.begin(None, 6);
        log.count(DropReason::NoRoute, 9);
        let mut told: Vec<_> = log.by_port().collect();
        told.sort_unstable_by_key(|(port, reason, _)| (*reason, port.map(|port| port.0)));
        let expected = [
            (Some(PortId(0)), DropReason::LinkDown, 1),
            (Some(PortId(1)), DropReason::LinkDown, 1),
            (Some(PortId(2)), DropReason::LinkDown, 1),
            (None, DropReason::NoRoute, 9),
            (Some(PortId(0)), DropReason::NoRoute, 1),
            (Some(PortId(1)), DropReason::NoRoute, 2),
            (Some(PortId(2)), DropReason::NoRoute, 3),
        ];
        let mut expected = expected.to_vec();
        expected.sort_unstable_by_key(|(port, reason, _)| (*reason, port.map(|port| port.0)));
        assert_eq!(told, expected);
    }

    /// No drop is lost, however many ports there are.
    #[test]
    fn what_has_no_room_is_counted_together() {
        let mut log = DropLog::default();
        for port in 0..5000 {
            log.begin(Some(PortId(port)), 0);
            log.count(DropReason::NoRoute, 2);
        }
        let apart: u64 = log.by_port().map(|(_, _, n)| n).sum();
        assert!(log.others() > 0 && apart + log.others() == 10_000);
    }

    #[test]
    fn the_last_burst_has_the_example() {
        let mut pool = Pool::new(4);
        let mut log = DropLog::default();
        log.begin(Some(PortId(1)), 7);
        let [first, second, long] =
            [&[1; 60][..], &[2; 60], &[3; 1000]].map(|bytes| packet(&mut pool, bytes));
        log.keep_frame(DropReason::NoRoute, &first);
        log.keep_frame(DropReason::NoRoute, &second);
        let told = |log: &DropLog| {
            let examples = log.examples();
            examples.map(|(reason, e)| (reason, e.at, e.port, e.len, e.bytes().to_vec())).collect::<Vec<_>>()
        };
        assert_eq!(told(&log), [(DropReason::NoRoute, 7, Some(PortId(1)), 60, vec![1; 60])]);
        log.begin(None, 8);
        log.keep_frame(DropReason::NoRoute, &long);
        assert_eq!(told(&log), [(DropReason::NoRoute, 8, None, 1000, vec![3; EXAMPLE])]);
    }
}
