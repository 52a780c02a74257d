//! Captures with comments: pcapng with an interface a port, nanosecond time stamps, and what is to be said of each
//! packet beside it (`opt_comment`).

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::pcap::{MAX_FRAME, Nanoseconds};

/// Time stamps are so many digits after the point: `if_tsresol`.
const RESOLUTION: u8 = 9;
/// `epb_flags`: which way a frame went.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Longest option: its length has 16 bits.
const LONGEST: usize = u16::MAX as usize;

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The port that it came in or left by.
    pub port: &'a str,
    /// Whether it left.
    pub left: bool,
    /// When.
    pub time: Nanoseconds,
    /// From the Ethernet header on, or as much of it as is known.
    pub bytes: &'a [u8],
    /// How long it was.
    pub len: u32,
    /// What is to be said of it.
    pub comment: &'a str,
}

/// A capture that is being written.
pub struct Writer<W: Write> {
    writer: PcapNgWriter<W>,
    /// Described so far, in the order of their numbers.
    ports: Vec<String>,
}

impl<W: Write> Writer<W> {
    /// Begins a capture, made by this program.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(out: W, program: &str) -> io::Result<Self> {
        let header = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(Cow::Owned(program.to_owned()))],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(out, header).map_err(failure)?;
        Ok(Self { writer, ports: Vec::new() })
    }

    /// Writes a frame. A comment that is too long for the format is cut.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let interface_id = self.interface(frame.port)?;
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(frame.time),
            original_len: frame.len,
            data: Cow::Borrowed(frame.bytes),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Borrowed(cut(frame.comment))),
                EnhancedPacketOption::Flags(if frame.left { OUTBOUND } else { INBOUND }),
            ],
        };
        self.writer.write_pcapng_block(block).map(drop).map_err(failure)
    }

    /// The number of a port, which is described before its first frame.
    fn interface(&mut self, port: &str) -> io::Result<u32> {
        if let Some(known) = self.ports.iter().position(|known| known == port) {
            return Ok(known as u32);
        }
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: MAX_FRAME as u32,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(port)),
                InterfaceDescriptionOption::IfTsResol(RESOLUTION),
            ],
        };
        self.writer.write_pcapng_block(block).map_err(failure)?;
        self.ports.push(port.to_owned());
        Ok(self.ports.len() as u32 - 1)
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }
}

fn failure(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// As much of a text as an option holds.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(LONGEST)).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    /// Read again by the library; `trace` of a running router is read by tshark.
    #[test]
    fn frames_with_comments() {
        let long = "ü".repeat(LONGEST);
        let frame = |port, left, time, comment| Frame { port, left, time, bytes: &[7; 61], len: 70, comment };
        let mut writer = Writer::new(Vec::new(), "underpass").unwrap();
        let written = [
            frame("eth0", false, 1_763_780_000_123_456_789, "in by eth0\nno route"),
            frame("eth1", true, 1_763_780_000_123_456_790, "out by eth1"),
            frame("eth0", false, 1_763_780_000_123_456_791, &long),
        ];
        written.iter().for_each(|frame| writer.write(frame).unwrap());
        let bytes = writer.writer.into_inner();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut names, mut frames) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    names.extend(interface.options.iter().filter_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    }))
                }
                Block::EnhancedPacket(packet) => frames.push(packet.into_owned()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(names, ["eth0", "eth1"]);
        assert_eq!(frames.len(), 3);
        for (read, written) in frames.iter().zip(&written) {
            assert_eq!(names[read.interface_id as usize], written.port);
            assert_eq!(read.timestamp.as_nanos() as u64, written.time);
            assert_eq!((&*read.data, read.original_len), (written.bytes, 70));
            let flags = EnhancedPacketOption::Flags(if written.left { 2 } else { 1 });
            assert!(read.options.contains(&flags));
            let [EnhancedPacketOption::Comment(comment), ..] = &read.options[..] else { panic!("{read:?}") };
            assert!(!comment.is_empty() && written.comment.starts_with(&**comment));
        }
        assert_eq!(cut(&long).len(), LONGEST - 1, "not in the middle of a character");
    }
}
