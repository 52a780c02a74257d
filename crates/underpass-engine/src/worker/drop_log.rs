//! The last packet of each reason that a worker has dropped.

use underpass_packet::ethernet;

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::worker::metadata::{LABELLED, PacketMeta};

/// Bytes of a dropped frame that are kept.
pub const EXAMPLE: usize = 160;

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

/// The last drops of a worker. Nothing is allocated after it is made.
pub struct DropLog {
    now: Nanos,
    /// The number of the burst, from 1.
    burst: u64,
    /// By the number of the reason.
    examples: Box<[Example]>,
}

impl Default for DropLog {
    fn default() -> Self {
        Self { now: 0, burst: 1, examples: DropReason::ALL.iter().map(|_| Example::NONE).collect() }
    }
}

impl DropLog {
    /// Begins a burst, or what else may drop packets.
    #[inline(always)]
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.now = now;
        self.burst += 1;
    }

    /// Keeps a frame as the last that was dropped for a reason, if none of its burst was.
    #[cold]
    pub(crate) fn keep_frame(&mut self, reason: DropReason, port: PortId, packet: &Packet) {
        let header = match packet.tag().headless {
            0 => None,
            ethertype => Some(bare(ethertype)),
        };
        self.keep((reason, port), header, packet.bytes());
    }

    /// The same of a packet on its path.
    #[cold]
    pub(crate) fn keep_packet(&mut self, reason: DropReason, port: PortId, meta: &PacketMeta) {
        let ethertype = match meta.packet.bytes().first().map(|first| first >> 4) {
            _ if meta.is(LABELLED) => ethernet::MPLS,
            Some(6) => ethernet::IPV6,
            _ => ethernet::IPV4,
        };
        let own = meta.link_layer().filter(|_| meta.has_link_layer());
        let mut header = own.unwrap_or_else(|| bare(ethertype));
        // Labels and headers may have gone since.
        if matches!(header, [.., 0x88, 0x47] | [.., 0x08, 0x00] | [.., 0x86, 0xdd]) {
            header[12..].copy_from_slice(&ethertype.to_be_bytes());
        }
        self.keep((reason, port), Some(header), meta.packet.bytes());
    }

    fn keep(
        &mut self,
        (reason, port): (DropReason, PortId),
        header: Option<[u8; ethernet::Header::LEN]>,
        packet: &[u8],
    ) {
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
        example.port = (port != PortId::NONE).then_some(port);
        (example.at, example.burst) = (self.now, self.burst);
    }

    /// The last frame of each reason for which one was dropped.
    pub fn examples(&self) -> impl Iterator<Item = (DropReason, &Example)> {
        DropReason::ALL.iter().copied().zip(&self.examples).filter(|(_, example)| example.burst != 0)
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
    use crate::tables::{LinkId, LookupId};
    use crate::worker::metadata::ExtraMeta;

    fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
        let mut packet = pool.take().unwrap();
        packet.set(200, bytes).unwrap();
        packet
    }

    /// A header of a tunnel lies where that of the frame was.
    #[test]
    fn a_frame_that_is_gone_is_not_made_up() {
        let mut pool = Pool::new(1);
        let mut log = DropLog::default();
        let packet = packet(&mut pool, &[0x45; 60]);
        let at = packet.headroom();
        let mut meta = PacketMeta::new(packet, at, LinkId(1), ExtraMeta::new(LookupId(0)));
        meta.put_link_layer([7; 14]);
        meta.packet.push(24).unwrap()[..24].fill(0x4f);
        meta.wrapped(24, None);
        log.begin(7);
        log.keep_packet(DropReason::TooBig, PortId(1), &meta);
        let (_, example) = log.examples().next().unwrap();
        assert_eq!(example.bytes()[..14], bare(ethernet::IPV4));
        assert_eq!(example.bytes()[14..], [&[0x4f; 24][..], &[0x45; 60]].concat());
        pool.give(meta.packet);
    }

    #[test]
    fn the_last_burst_has_the_example() {
        let mut pool = Pool::new(4);
        let mut log = DropLog::default();
        log.begin(7);
        let [first, second, long] =
            [&[1; 60][..], &[2; 60], &[3; 1000]].map(|bytes| packet(&mut pool, bytes));
        log.keep_frame(DropReason::NoRoute, PortId(1), &first);
        log.keep_frame(DropReason::NoRoute, PortId(1), &second);
        let told = |log: &DropLog| {
            let examples = log.examples();
            examples.map(|(reason, e)| (reason, e.at, e.port, e.len, e.bytes().to_vec())).collect::<Vec<_>>()
        };
        assert_eq!(told(&log), [(DropReason::NoRoute, 7, Some(PortId(1)), 60, vec![1; 60])]);
        log.begin(8);
        log.keep_frame(DropReason::NoRoute, PortId::NONE, &long);
        assert_eq!(told(&log), [(DropReason::NoRoute, 8, None, 1000, vec![3; EXAMPLE])]);
    }
}
