//! Captures as ports: pcap and pcapng are read, also compressed; pcap with nanosecond time stamps is written.
//!
//! A packet that was captured without an Ethernet header gets one. One of which the capture kept only the first bytes is
//! filled up with zeros, and counted. What is wrong with a file is an error that names it and the number of the packet,
//! counted from 1 as Wireshark does.

mod blocks;
mod compressed;
mod link;
mod writer;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::{PcapError, TsResolution};
use underpass_engine::buffer::{HEADROOM, Packet, Pool};

use blocks::PcapNg;
use compressed::Source;
use link::{Layer, LinkType};
pub use writer::Writer;

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
    /// The packets are of no link type that is read, or carry a frame check sequence.
    #[error(
        "link type {0} is not read; Ethernet (1), Linux cooked (113, 276), IP (101, 228, 229) and BSD loopback (0, 108) are"
    )]
    LinkType(u32),
    /// No packet was captured at the interface that was asked for.
    #[error("no interface '{0}'; there is {1}")]
    NoInterface(String, String),
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

enum Format {
    Pcap(PcapReader<Source>),
    PcapNg(PcapNg),
}

/// What a file says of a packet, beside its bytes.
struct Record {
    time: Nanoseconds,
    /// `LINKTYPE_*`.
    link: u32,
    /// The name of its interface.
    name: Option<Arc<str>>,
    /// The number of its interface in the file, from 0.
    number: u32,
    /// Whether the file says that the captured machine sent it.
    sent: bool,
    /// Bytes on the wire.
    original: u32,
}

/// An interface of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name; `tcpdump -i any` does not write any.
    pub name: Option<String>,
    /// Its index in the captured machine where packets have it (`tcpdump -i any`), or its number in the file, from 0.
    pub number: u32,
}

impl Interface {
    /// Whether `text` is its name or number.
    fn is(&self, text: &str) -> bool {
        self.name.as_deref() == Some(text) || text.parse() == Ok(self.number)
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.number),
        }
    }
}

/// What became of packets that were not received just as they are in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Received, filled up with zeros: the capture kept only their first bytes.
    pub padded: u64,
    /// Left out: the captured machine sent them.
    pub sent: u64,
    /// Left out: they cannot be Ethernet frames, such as those of netlink monitors.
    pub foreign: u64,
}

/// A capture that is read packet by packet.
pub struct Reader {
    path: PathBuf,
    format: Format,
    packet: u64,
    only: Option<String>,
    with_sent: bool,
    station: [u8; 6],
    tally: Tally,
    /// The bytes of the packet that is being read.
    data: Vec<u8>,
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
    /// Opens a capture, which may be compressed by gzip or zstd, and reads its file header. What the captured machine
    /// itself sent is left out, where the file says so.
    ///
    /// # Errors
    /// The file cannot be read, is no capture, is truncated, or of a link type that is not read.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let format = File::open(path).and_then(compressed::open).map_err(Problem::Io).and_then(open);
        format.map(|format| Self::new(path, format)).map_err(|problem| CaptureError {
            path: path.to_owned(),
            packet: 0,
            problem,
        })
    }

    fn new(path: &Path, format: Format) -> Self {
        Self {
            path: path.to_owned(),
            format,
            packet: 0,
            only: None,
            with_sent: false,
            station: [2, 0, 0, 0, 0, 1],
            tally: Tally::default(),
            data: Vec::new(),
        }
    }

    /// Leaves out packets of all other interfaces than the one with this name or number (see [`Interface`]).
    pub fn only(mut self, interface: &str) -> Self {
        self.only = Some(interface.to_owned());
        self
    }

    /// Receives what the captured machine sent, too.
    pub fn with_sent(mut self) -> Self {
        self.with_sent = true;
        self
    }

    /// Says the address, in the order of the wire, that packets go to which were captured without it.
    pub fn set_station(&mut self, station: [u8; 6]) {
        self.station = station;
    }

    /// The file that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the packet that was read last, counted from 1; 0 before the first.
    pub fn packet_number(&self) -> u64 {
        self.packet
    }

    /// What became of packets so far that were not received just as they are.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The next packet, in a buffer of the pool, and when it was captured; `None` at the end.
    ///
    /// # Errors
    /// The packet is truncated by the end of the file, of a link type that is not read, longer than a buffer, or the pool
    /// is empty.
    pub fn receive(&mut self, pool: &mut Pool) -> Result<Option<(Nanoseconds, Packet)>, CaptureError> {
        self.next(pool).map_err(|problem| CaptureError {
            path: self.path.clone(),
            packet: self.packet,
            problem,
        })
    }

    fn next(&mut self, pool: &mut Pool) -> Result<Option<(Nanoseconds, Packet)>, Problem> {
        while let Some(record) = self.read()? {
            if self.only.is_some() && !self.is_wanted(&record) {
                continue;
            }
            let Some(layer) = link::layer(LinkType::new(record.link)?, &self.data, self.station)? else {
                self.tally.foreign += 1;
                continue;
            };
            if (layer.sent || record.sent) && !self.with_sent {
                self.tally.sent += 1;
                continue;
            }
            self.tally.padded += u64::from(self.data.len() < record.original as usize);
            return Ok(Some((record.time, fill(pool, &layer, &self.data, record.original as usize)?)));
        }
        Ok(None)
    }

    /// The next record of the file; its bytes are then in `data`.
    fn read(&mut self) -> Result<Option<Record>, Problem> {
        self.packet += 1;
        match &mut self.format {
            Format::Pcap(reader) => read_pcap(reader, &mut self.data),
            Format::PcapNg(section) => section.read(&mut self.data),
        }
    }

    /// The interface of the record that was read last.
    fn interface(&self, record: &Record) -> Interface {
        let index = LinkType::new(record.link).ok().and_then(|link| link::index(link, &self.data));
        Interface {
            // Of all interfaces the name is `any`, which is none of them.
            name: record.name.as_deref().filter(|_| index.is_none()).map(str::to_owned),
            number: index.unwrap_or(record.number),
        }
    }

    fn is_wanted(&self, record: &Record) -> bool {
        self.only.as_ref().is_none_or(|only| self.interface(record).is(only))
    }
}

/// The interfaces that the packets of a capture are of, in the order of their first packets. Reads the whole file.
///
/// # Errors
/// As [`Reader::open`] and [`Reader::receive`].
pub fn interfaces(path: &Path) -> Result<Vec<Interface>, CaptureError> {
    let mut reader = Reader::open(path)?;
    let mut found: Vec<Interface> = Vec::new();
    loop {
        match reader.read() {
            Ok(None) => return Ok(found),
            Ok(Some(record)) => {
                let interface = reader.interface(&record);
                if !found.contains(&interface) {
                    found.push(interface);
                }
            }
            Err(problem) => {
                return Err(CaptureError { path: reader.path, packet: reader.packet, problem });
            }
        }
    }
}

/// Checks that packets of a capture are of the interface with this name or number. Reads the whole file.
///
/// # Errors
/// [`Problem::NoInterface`], and as [`interfaces`].
pub fn check_interface(path: &Path, interface: &str) -> Result<(), CaptureError> {
    let found = interfaces(path)?;
    if found.iter().any(|one| one.is(interface)) {
        return Ok(());
    }
    let list = found.iter().map(Interface::to_string).collect::<Vec<_>>().join(", ");
    let problem =
        Problem::NoInterface(interface.to_owned(), if list.is_empty() { "none".to_owned() } else { list });
    Err(CaptureError { path: path.to_owned(), packet: 0, problem })
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
    LinkType::new(reader.header().datalink.into())?;
    Ok(Format::Pcap(reader))
}

fn read_pcap(reader: &mut PcapReader<Source>, data: &mut Vec<u8>) -> Result<Option<Record>, Problem> {
    // Raw, because the library refuses a packet whose original length exceeds the snap length, which is
    // what a snap length is for.
    let (resolution, link) = (reader.header().ts_resolution, reader.header().datalink.into());
    let Some(raw) = reader.next_raw_packet() else { return Ok(None) };
    let raw = raw.map_err(|e| problem(e, "packet"))?;
    let fraction = match resolution {
        TsResolution::MicroSecond => u64::from(raw.ts_frac) * 1_000,
        TsResolution::NanoSecond => u64::from(raw.ts_frac),
    };
    if fraction >= 1_000_000_000 {
        return Err(Problem::Damaged("the fraction of the time stamp is a second or more".to_owned()));
    }
    data.clear();
    data.extend_from_slice(&raw.data);
    let time = u64::from(raw.ts_sec) * 1_000_000_000 + fraction;
    Ok(Some(Record { time, link, name: None, number: 0, sent: false, original: raw.orig_len }))
}

/// A packet of the pool that holds the frame of `data`, of which `original` bytes were on the wire: what was not
/// captured of them is 0.
fn fill(pool: &mut Pool, layer: &Layer, data: &[u8], original: usize) -> Result<Packet, Problem> {
    let header: &[u8] = layer.header.as_ref().map_or(&[], |header| header);
    let body = data.get(layer.strip..).unwrap_or_default();
    let length = header.len() + original.max(data.len()) - layer.strip.min(data.len());
    let mut packet = pool.take().ok_or(Problem::NoBuffer)?;
    if packet.place(HEADROOM, length).is_err() {
        let room = packet.slot_mut().len().saturating_sub(HEADROOM);
        pool.give(packet);
        return Err(Problem::TooLong(length, room));
    }
    let (head, rest) = packet.bytes_mut().split_at_mut(header.len());
    head.copy_from_slice(header);
    let (kept, missing) = rest.split_at_mut(body.len());
    kept.copy_from_slice(body);
    missing.fill(0);
    Ok(packet)
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
        let source = compressed::unpacked(Box::new(io::Cursor::new(file.to_vec()))).unwrap();
        let format = open(source).map_err(fail)?;
        let mut reader = Reader::new(Path::new("in.pcap"), format);
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
        let known = "is not read; Ethernet (1), Linux cooked (113, 276), IP (101, 228, 229) and BSD loopback (0, 108) are";
        assert_eq!(message(b""), "in.pcap: neither a pcap nor a pcapng file");
        assert_eq!(message(b"\x7fELF and so on"), "in.pcap: neither a pcap nor a pcapng file");
        assert_eq!(message(&pcap(false, 0xa1b2_c3d4, 105, 0, 60)), format!("in.pcap: link type 105 {known}"));
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 0x2400_0001, 0, 60)),
            format!("in.pcap: link type 603979777 {known}")
        );
        assert_eq!(message(&pcapng(true, 105, &[])), format!("in.pcap: packet 1: link type 105 {known}"));
        assert_eq!(
            message(&pcap(false, 0xa1b2_c3d4, 1, 0, MAX_FRAME as u32)),
            "in.pcap: packet 1: 262144 bytes are more than a buffer holds (1920)"
        );
        let mut cooked = pcap(false, 0xa1b2_c3d4, 113, 0, 10);
        cooked.truncate(24 + 16 + 10);
        cooked[32] = 10;
        assert_eq!(message(&cooked), "in.pcap: packet 1: damaged: a packet is shorter than its link layer");
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

    /// A snap length of 60, and a frame of 1,500 bytes: it is as long as it was, and nothing of what the buffer held
    /// before is in it.
    #[test]
    fn what_was_not_captured_is_zero() {
        let format = open(Box::new(io::Cursor::new(pcap(false, 0xa1b2_c3d4, 1, 0, 1500)))).unwrap();
        let mut reader = Reader::new(Path::new("in.pcap"), format);
        let mut pool = Pool::new(1);
        let mut dirty = pool.take().unwrap();
        dirty.slot_mut().fill(0xee);
        pool.give(dirty);
        let (_, packet) = reader.receive(&mut pool).unwrap().unwrap();
        let expected: Vec<u8> = (0..1500).map(|n| if n < 60 { 0xab } else { 0 }).collect();
        assert_eq!(packet.bytes(), expected);
        assert_eq!(reader.tally(), Tally { padded: 1, ..Tally::default() });
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
}
