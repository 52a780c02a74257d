//! pcapng: the packets of its blocks, each with its interface.

use std::sync::Arc;

use pcap_file::Endianness;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};

use super::compressed::Source;
use super::{Nanoseconds, Problem, Record, problem};

/// `epb_flags`: the lower two bits say which way a packet went.
const OUTBOUND: u32 = 2;

/// A pcapng file, and what its current section says of its interfaces.
pub(super) struct PcapNg {
    reader: PcapNgReader<Source>,
    interfaces: Vec<Interface>,
    last: Nanoseconds,
}

/// An interface that packets were captured at.
struct Interface {
    /// `LINKTYPE_*`.
    link: u32,
    /// `if_name`.
    name: Option<Arc<str>>,
    /// `if_tsresol`: a negative power of 10, or of 2 where the top bit is set.
    resolution: u8,
    /// `if_tsoffset`, in seconds.
    offset: i64,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let mut interface = Self { link: block.linktype.into(), name: None, resolution: 6, offset: 0 };
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfName(name) => interface.name = Some(Arc::from(&**name)),
                InterfaceDescriptionOption::IfTsResol(resolution) => interface.resolution = *resolution,
                InterfaceDescriptionOption::IfTsOffset(offset) => interface.offset = offset.cast_signed(),
                _ => {}
            }
        }
        interface
    }

    fn nanoseconds(&self, ticks: u64) -> Result<Nanoseconds, Problem> {
        let exponent = u32::from(self.resolution & 0x7f);
        let nanoseconds = if self.resolution & 0x80 != 0 {
            u128::from(ticks).checked_mul(1_000_000_000).and_then(|n| n.checked_shr(exponent)).unwrap_or(0)
        } else if let Some(finer) = exponent.checked_sub(9) {
            10_u128.checked_pow(finer).map_or(0, |divisor| u128::from(ticks) / divisor)
        } else {
            u128::from(ticks) * 10_u128.pow(9 - exponent)
        };
        i128::try_from(nanoseconds)
            .ok()
            .and_then(|n| n.checked_add(i128::from(self.offset) * 1_000_000_000))
            .and_then(|n| u64::try_from(n).ok())
            .ok_or(Problem::Time)
    }
}

impl PcapNg {
    pub(super) fn new(reader: PcapNgReader<Source>) -> Self {
        Self { reader, interfaces: Vec::new(), last: 0 }
    }

    /// The next packet, whose bytes are put into `data`; `None` at the end.
    pub(super) fn read(&mut self, data: &mut Vec<u8>) -> Result<Option<Record>, Problem> {
        loop {
            let little = self.reader.section().endianness == Endianness::Little;
            let Some(block) = self.reader.next_block() else { return Ok(None) };
            let (number, ticks, captured, original, sent) = match &block.map_err(|e| problem(e, "block"))? {
                Block::EnhancedPacket(block) => {
                    let ticks = u64::try_from(block.timestamp.as_nanos()).map_err(|_| Problem::Time)?;
                    let sent = block.options.iter().any(
                        |option| matches!(option, EnhancedPacketOption::Flags(flags) if flags & 3 == OUTBOUND),
                    );
                    (block.interface_id, Some(ticks), block.data.clone(), block.original_len, sent)
                }
                Block::Packet(block) => {
                    // Two 32-bit words, the upper one first in either byte order; the library reads one
                    // 64-bit word.
                    let ticks = if little { block.timestamp.rotate_left(32) } else { block.timestamp };
                    let number = u32::from(block.interface_id);
                    (number, Some(ticks), block.data.clone(), block.original_len, false)
                }
                Block::SimplePacket(block) => (0, None, block.data.clone(), block.original_len, false),
                Block::InterfaceDescription(block) => {
                    self.interfaces.push(Interface::new(block));
                    continue;
                }
                Block::SectionHeader(_) => {
                    self.interfaces.clear();
                    continue;
                }
                _ => continue,
            };
            let interface = self
                .interfaces
                .get(number as usize)
                .ok_or_else(|| Problem::Damaged(format!("there is no interface {number}")))?;
            // A simple packet block has no time: it came when the packet before it did.
            if let Some(ticks) = ticks {
                self.last = interface.nanoseconds(ticks)?;
            }
            // Its data is also the only one that still has its padding.
            let length = if ticks.is_none() { captured.len().min(original as usize) } else { captured.len() };
            data.clear();
            data.extend_from_slice(captured.get(..length).unwrap_or_default());
            let (link, name) = (interface.link, interface.name.clone());
            return Ok(Some(Record { time: self.last, link, name, number, sent, original }));
        }
    }
}
