//! Captures that are written: pcap of Ethernet frames with nanosecond time stamps.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};

use super::{CaptureError, MAX_FRAME, Nanoseconds, Problem, problem};

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
    use underpass_engine::buffer::Pool;

    use super::super::Reader;
    use super::*;

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
