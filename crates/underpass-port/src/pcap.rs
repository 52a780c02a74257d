//! Captures as ports: pcap and pcapng are read, pcap with nanosecond time stamps is written.
//!
//! Only Ethernet frames that were captured whole are packets; anything else is an error that names the
//! file and the number of the packet, counted from 1 as Wireshark does.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use underpass_engine::buffer::{HEADROOM, Packet, Pool};

/// Longest frame that a capture written here may hold: `MAXIMUM_SNAPLEN` of libpcap.
pub const MAX_FRAME: usize = 262_144;

/// Nanoseconds since the Unix epoch.
pub type Nanoseconds = u64;

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {problem}", path.display(), At(*packet))]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// The packet, counted from 1; 0 before the first.
    pub packet: u64,
    /// What is wrong with it.
    pub problem: Problem,
}

/// `: packet N`, or nothing before the first packet.
struct At(u64);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ": packet {}", self.0) }
    }
}

/// What can be wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be opened, read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The first bytes are those of no capture format.
    #[error("neither a pcap nor a pcapng file")]
    Foreign,
    /// The file ends inside a header or a packet.
    #[error("the file is truncated: it ends in the middle of a {0}")]
    Truncated(&'static str),
    /// A field has a value that the format forbids.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The packets are not Ethernet frames, or carry a frame check sequence.
    #[error("link type {0} is not Ethernet (1)")]
    LinkType(u32),
    /// The capture kept only the first bytes of the packet.
    #[error("only {captured} of {original} bytes were captured; capture with a longer snap length")]
    Snapped {
        /// Bytes in the file.
        captured: usize,
        /// Bytes on the wire.
        original: u32,
    },
    /// The frame is longer than the buffers.
    #[error("{0} bytes are more than a buffer holds ({1})")]
    TooLong(usize, usize),
    /// The pool has no free buffer.
    #[error("no free buffer")]
    NoBuffer,
    /// A time before 1970, or after 2106 where a pcap file is written.
    #[error("the time stamp cannot be represented")]
    Time,
}

/// Where a capture's bytes come from.
type Source = Box<dyn Read>;

enum Format {
    Pcap(PcapReader<Source>),
    PcapNg(PcapNg),
}

/// A capture that is read packet by packet.
pub struct Reader {
    path: PathBuf,
    format: Format,
    packet: u64,
}

/// What the library's error means in this place.
fn problem(error: PcapError, place: &'static str) -> Problem {
    match error {
        PcapError::IncompleteBuffer => Problem::Truncated(place),
        PcapError::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => Problem::Truncated(place),
        PcapError::IoError(e) => Problem::Io(e),
        PcapError::InvalidInterfaceId(id) => Problem::Damaged(format!("no interface {id}")),
        PcapError::InvalidField(what) => Problem::Damaged(what.to_owned()),
        PcapError::Utf8Error(_) | PcapError::FromUtf8Error(_) => {
            Problem::Damaged("an option is not UTF-8".to_owned())
        }
    }
}

const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The four magic numbers of pcap: micro- and nanoseconds, in either byte order.
const PCAP: [[u8; 4]; 4] =
    [[0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x4d, 0x3c, 0xb2, 0xa1]];

impl Reader {
    /// Opens a capture and reads its file header.
    ///
    /// # Errors
    /// The file cannot be read, is no capture, is truncated, or is not of Ethernet frames.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let format = File::open(path).map_err(Problem::Io).and_then(|file| open(Box::new(file)));
        match format {
            Ok(format) => Ok(Self { path: path.to_owned(), format, packet: 0 }),
            Err(problem) => Err(CaptureError { path: path.to_owned(), packet: 0, problem }),
        }
    }
    /// The file that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the packet that was read last, counted from 1; 0 before the first.
    pub fn packet_number(&self) -> u64 {
        self.packet
    }

    /// The next packet, in a buffer of the pool, and when it was captured; `None` at the end.
    ///
    /// # Errors
    /// The packet is truncated, not Ethernet, longer than a buffer, or the pool is empty.
    pub fn receive(&mut self, pool: &mut Pool) -> Result<Option<(Nanoseconds, Packet)>, CaptureError> {
        self.packet += 1;
        let result = match &mut self.format {
            Format::Pcap(reader) => receive_pcap(reader, pool),
            Format::PcapNg(section) => section.receive(pool),
        };
        result.map_err(|problem| CaptureError { path: self.path.clone(), packet: self.packet, problem })
    }
}

/// Reads the file header.
fn open(mut source: Source) -> Result<Format, Problem> {
    let mut magic = [0; 4];
    match source.read_exact(&mut magic) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(Problem::Foreign),
        other => other?,
    }
    let source: Source = Box::new(io::Cursor::new(magic).chain(source));
    let header = |e| problem(e, "file header");
    if magic == PCAPNG {
        return Ok(Format::PcapNg(PcapNg::new(PcapNgReader::new(source).map_err(header)?)));
    }
    if !PCAP.contains(&magic) {
        return Err(Problem::Foreign);
    }
    let reader = PcapReader::new(source).map_err(header)?;
    ethernet(reader.header().datalink)?;
    Ok(Format::Pcap(reader))
}

fn ethernet(link: DataLink) -> Result<(), Problem> {
    // The upper bits of the field say that each frame ends with a check sequence, which is no part of
    // the packet: such a field is not plain 1 either.
    if link == DataLink::ETHERNET { Ok(()) } else { Err(Problem::LinkType(link.into())) }
}

fn receive_pcap(
    reader: &mut PcapReader<Source>,
    pool: &mut Pool,
) -> Result<Option<(Nanoseconds, Packet)>, Problem> {
    // Raw, because the library refuses a packet whose original length exceeds the snap length, which is
    // what a snap length is for.
    let resolution = reader.header().ts_resolution;
    let Some(raw) = reader.next_raw_packet() else { return Ok(None) };
    let raw = raw.map_err(|e| problem(e, "packet"))?;
    let fraction = match resolution {
        TsResolution::MicroSecond => u64::from(raw.ts_frac) * 1_000,
        TsResolution::NanoSecond => u64::from(raw.ts_frac),
    };
    if fraction >= 1_000_000_000 {
        return Err(Problem::Damaged("the fraction of the time stamp is a second or more".to_owned()));
    }
    let packet = fill(pool, &raw.data, raw.orig_len)?;
    Ok(Some((u64::from(raw.ts_sec) * 1_000_000_000 + fraction, packet)))
}

/// A pcapng file, and what its current section says of its interfaces.
struct PcapNg {
    reader: PcapNgReader<Source>,
    interfaces: Vec<Interface>,
    last: Nanoseconds,
}

#[derive(Clone, Copy)]
struct Interface {
    link: DataLink,
    /// `if_tsresol`: a negative power of 10, or of 2 where the top bit is set.
    resolution: u8,
    /// `if_tsoffset`, in seconds.
    offset: i64,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let mut interface = Self { link: block.linktype, resolution: 6, offset: 0 };
        for option in &block.options {
            match option {
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
    fn new(reader: PcapNgReader<Source>) -> Self {
        Self { reader, interfaces: Vec::new(), last: 0 }
    }

    fn receive(&mut self, pool: &mut Pool) -> Result<Option<(Nanoseconds, Packet)>, Problem> {
        loop {
            let little = self.reader.section().endianness == Endianness::Little;
            let Some(block) = self.reader.next_block() else { return Ok(None) };
            let (interface, ticks, data, original) = match &block.map_err(|e| problem(e, "block"))? {
                Block::EnhancedPacket(block) => {
                    let ticks = u64::try_from(block.timestamp.as_nanos()).map_err(|_| Problem::Time)?;
                    (block.interface_id, Some(ticks), block.data.clone(), block.original_len)
                }
                Block::Packet(block) => {
                    // Two 32-bit words, the upper one first in either byte order; the library reads one
                    // 64-bit word.
                    let ticks = if little { block.timestamp.rotate_left(32) } else { block.timestamp };
                    (u32::from(block.interface_id), Some(ticks), block.data.clone(), block.original_len)
                }
                Block::SimplePacket(block) => (0, None, block.data.clone(), block.original_len),
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
                .get(interface as usize)
                .ok_or_else(|| Problem::Damaged(format!("there is no interface {interface}")))?;
            ethernet(interface.link)?;
            // A simple packet block has no time: it came when the packet before it did.
            if let Some(ticks) = ticks {
                self.last = interface.nanoseconds(ticks)?;
            }
            // Its data is also the only one that still has its padding.
            let length = if ticks.is_none() { data.len().min(original as usize) } else { data.len() };
            return Ok(Some((self.last, fill(pool, data.get(..length).unwrap_or_default(), original)?)));
        }
    }
}

/// A packet of the pool that holds `data`.
fn fill(pool: &mut Pool, data: &[u8], original: u32) -> Result<Packet, Problem> {
    if data.len() < original as usize {
        return Err(Problem::Snapped { captured: data.len(), original });
    }
    let mut packet = pool.take().ok_or(Problem::NoBuffer)?;
    if packet.set(HEADROOM, data).is_err() {
        let room = packet.slot_mut().len().saturating_sub(HEADROOM);
        pool.give(packet);
        return Err(Problem::TooLong(data.len(), room));
    }
    Ok(packet)
}

/// A pcap file with nanosecond time stamps that is being written.
pub struct Writer {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
    packet: u64,
}

impl Writer {
    /// Makes the file, or empties it, and writes its header.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Self, CaptureError> {
        let header = PcapHeader {
            snaplen: MAX_FRAME as u32,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        let writer = File::create(path)
            .map_err(Problem::Io)
            .and_then(|file| {
                PcapWriter::with_header(BufWriter::new(file), header).map_err(|e| problem(e, "file header"))
            })
            .map_err(|problem| CaptureError { path: path.to_owned(), packet: 0, problem })?;
        Ok(Self { path: path.to_owned(), writer, packet: 0 })
    }

    /// How many packets were written.
    pub fn packets(&self) -> u64 {
        self.packet
    }

    /// Appends a frame that left at `time`.
    ///
    /// # Errors
    /// The file cannot be written, the frame is longer than [`MAX_FRAME`], or the time is after 2106.
    pub fn send(&mut self, time: Nanoseconds, frame: &[u8]) -> Result<(), CaptureError> {
        self.packet += 1;
        let result = match u32::try_from(frame.len()) {
            Ok(length) if frame.len() <= MAX_FRAME && time / 1_000_000_000 <= u64::from(u32::MAX) => self
                .writer
                .write_packet(&PcapPacket::new(Duration::from_nanos(time), length, frame))
                .map_err(|e| problem(e, "packet")),
            Ok(_) if frame.len() <= MAX_FRAME => Err(Problem::Time),
            _ => Err(Problem::TooLong(frame.len(), MAX_FRAME)),
        };
        result.map(|_| ()).map_err(|problem| self.fail(problem))
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<(), CaptureError> {
        let (path, packet) = (self.path, self.packet);
        self.writer.into_writer().flush().map_err(|e| CaptureError { path, packet, problem: e.into() })
    }

    fn fail(&self, problem: Problem) -> CaptureError {
        CaptureError { path: self.path.clone(), packet: self.packet, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(big: bool, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| if big { w.to_be_bytes() } else { w.to_le_bytes() }).collect()
    }

    /// A pcap file of one packet of 60 bytes at 1,000 s and `fraction`.
    fn pcap(big: bool, magic: u32, link: u32, fraction: u32, original: u32) -> Vec<u8> {
        let mut file = words(big, &[magic]);
        for half in [2_u16, 4] {
            file.extend(if big { half.to_be_bytes() } else { half.to_le_bytes() });
        }
        file.extend(words(big, &[0, 0, 96, link, 1_000, fraction, 60, original]));
        file.extend([0xab; 60]);
        file
    }

    /// A pcapng block, padded.
    fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let length = 12 + body.len().next_multiple_of(4);
        let mut bytes = words(big, &[kind, length as u32]);
        bytes.extend(body);
        bytes.resize(length - 4, 0);
        bytes.extend(words(big, &[length as u32]));
        bytes
    }

    /// A pcapng file: an interface with `options`, and a packet of 61 bytes in each kind of block.
    fn pcapng(big: bool, link: u16, options: &[u8]) -> Vec<u8> {
        let half = |n: u16| if big { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut section = words(big, &[0x1a2b_3c4d]);
        section.extend([half(1), half(0)].concat());
        section.extend(words(big, &[u32::MAX, u32::MAX]));
        let mut interface = [half(link), half(0)].concat();
        interface.extend(words(big, &[0]));
        interface.extend(options);
        let enhanced = [words(big, &[0, 1, 0, 61, 61]), vec![0xcd; 61]].concat();
        let simple = [words(big, &[61]), vec![0xce; 61]].concat();
        let obsolete = [[half(0), half(0)].concat(), words(big, &[1, 7, 61, 61]), vec![0xcf; 61]].concat();
        [(0x0a0d_0d0a, section), (1, interface), (6, enhanced), (3, simple), (2, obsolete), (0x0bad, vec![1])]
            .iter()
            .flat_map(|(kind, body)| block(big, *kind, body))
            .collect()
    }

    fn read(file: &[u8]) -> Result<Vec<(u64, Vec<u8>)>, CaptureError> {
        let fail = |problem| CaptureError { path: "in.pcap".into(), packet: 0, problem };
        let format = open(Box::new(io::Cursor::new(file.to_vec()))).map_err(fail)?;
        let mut reader = Reader { path: "in.pcap".into(), format, packet: 0 };
        let mut pool = Pool::new(1);
        let mut packets = Vec::new();
        while let Some((time, packet)) = reader.receive(&mut pool)? {
            packets.push((time, packet.bytes().to_vec()));
            pool.give(packet);
        }
        Ok(packets)
    }

    fn message(file: &[u8]) -> String {
        read(file).unwrap_err().to_string()
    }

    #[test]
    fn pcap_of_either_byte_order_and_resolution() {
        for big in [false, true] {
            let micro = read(&pcap(big, 0xa1b2_c3d4, 1, 999_999, 60)).unwrap();
            assert_eq!(micro, [(1_000_999_999_000, vec![0xab; 60])]);
            let nano = read(&pcap(big, 0xa1b2_3c4d, 1, 999_999_999, 60)).unwrap();
            assert_eq!(nano, [(1_000_999_999_999, vec![0xab; 60])]);
        }
    }

    #[test]
    fn pcapng_of_either_byte_order_and_any_resolution() {
        let option = |big: bool, code: u16, value: &[u8]| {
            let half = |n: u16| if big { n.to_be_bytes() } else { n.to_le_bytes() };
            let mut bytes = [half(code), half(value.len() as u16)].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend([0; 4]);
            bytes
        };
        for big in [false, true] {
            let times = |options: &[u8]| {
                let packets = read(&pcapng(big, 1, options)).unwrap();
                assert_eq!(packets.iter().map(|p| p.1[0]).collect::<Vec<_>>(), [0xcd, 0xce, 0xcf]);
                assert!(packets.iter().all(|p| p.1.len() == 61));
                packets.iter().map(|p| p.0).collect::<Vec<_>>()
            };
            let ticks = 1_u64 << 32;
            assert_eq!(times(&[]), [ticks * 1_000, ticks * 1_000, (ticks + 7) * 1_000]);
            assert_eq!(times(&option(big, 9, &[9])), [ticks, ticks, ticks + 7]);
            assert_eq!(times(&option(big, 9, &[12])), [ticks / 1_000; 3]);
            assert_eq!(times(&option(big, 9, &[0x80 | 32]))[0], 1_000_000_000);
            let offset = 5_i64;
            let offset = if big { offset.to_be_bytes() } else { offset.to_le_bytes() };
            assert_eq!(times(&option(big, 14, &offset))[0], ticks * 1_000 + 5_000_000_000);
            let offset =
                if big { (-9_000_000_000_i64).to_be_bytes() } else { (-9_000_000_000_i64).to_le_bytes() };
            assert_eq!(
                message(&pcapng(big, 1, &option(big, 14, &offset))),
                "in.pcap: packet 1: the time stamp cannot be represented"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_packet() {
        assert_eq!(message(b""), "in.pcap: neither a pcap nor a pcapng file");
        assert_eq!(message(b"\x7fELF and so on"), "in.pcap: neither a pcap nor a pcapng file");
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 113, 0, 60)),
            "in.pcap: link type 113 is not Ethernet (1)"
        );
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 0x2400_0001, 0, 60)),
            "in.pcap: link type 603979777 is not Ethernet (1)"
        );
        assert_eq!(message(&pcapng(true, 113, &[])), "in.pcap: packet 1: link type 113 is not Ethernet (1)");
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 1, 0, 1500)),
            "in.pcap: packet 1: only 60 of 1500 bytes were captured; capture with a longer snap length"
        );
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 1, 1_000_000, 60)),
            "in.pcap: packet 1: damaged: the fraction of the time stamp is a second or more"
        );
        let whole = pcap(false, 0xa1b2_c3d4, 1, 0, 60);
        assert_eq!(
            message(&whole[..10]),
            "in.pcap: the file is truncated: it ends in the middle of a file header"
        );
        assert_eq!(
            message(&whole[..whole.len() - 1]),
            "in.pcap: packet 1: the file is truncated: it ends in the middle of a packet"
        );
    }

    /// Every cut is an error, except between packets; no byte that changes makes it panic.
    #[test]
    fn damaged_captures_never_panic() {
        for (file, cuts) in [
            (pcap(false, 0xa1b2_c3d4, 1, 0, 60), 1),
            (pcap(true, 0xa1b2_3c4d, 1, 0, 60), 1),
            (pcapng(false, 1, &[]), 5),
            (pcapng(true, 1, &[]), 5),
        ] {
            let whole = (0..file.len()).filter(|n| read(&file[..*n]).is_ok()).count();
            assert_eq!(whole, cuts);
            for position in 0..file.len().min(140) {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = file.clone();
                    damaged[position] = value;
                    let _ = read(&damaged);
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let path = std::env::temp_dir().join(format!("underpass-port-{}.pcap", std::process::id()));
        let packets: Vec<(u64, Vec<u8>)> =
            vec![(0, vec![1; 14]), (1_700_000_000_123_456_789, vec![2; 1514]), (7, vec![])];
        let mut writer = Writer::create(&path).unwrap();
        for (time, frame) in &packets {
            writer.send(*time, frame).unwrap();
        }
        assert_eq!(writer.packets(), 3);
        assert!(writer.send((u64::from(u32::MAX) + 1) * 1_000_000_000, &[0; 60]).is_err());
        assert!(writer.send(0, &vec![0; MAX_FRAME + 1]).is_err());
        writer.finish().unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let mut pool = Pool::new(1);
        let mut back = Vec::new();
        while let Some((time, packet)) = reader.receive(&mut pool).unwrap() {
            back.push((time, packet.bytes().to_vec()));
            pool.give(packet);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(back, packets);
    }
}
