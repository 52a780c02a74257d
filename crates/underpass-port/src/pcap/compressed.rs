//! Captures in gzip (RFC 1952) and zstd (RFC 8878), which are found by their first bytes.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Where a capture's bytes come from.
pub(super) type Source = Box<dyn Read>;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A frame that a decoder passes over; parallel compressors begin with one.
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// The bytes of a file, unpacked if they are compressed.
///
/// # Errors
/// Those of reading.
pub(super) fn open(file: File) -> io::Result<Source> {
    unpacked(Box::new(file))
}

/// The same of any source.
pub(super) fn unpacked(mut source: Source) -> io::Result<Source> {
    let mut magic = Vec::new();
    source.by_ref().take(4).read_to_end(&mut magic)?;
    let (gzip, zstd) = (
        magic.starts_with(&GZIP),
        magic == ZSTD || magic.get(1..) == Some(&SKIPPABLE) && magic.first().is_some_and(|b| b >> 4 == 5),
    );
    let source: Source = Box::new(io::Cursor::new(magic).chain(source));
    Ok(match (gzip, zstd) {
        // A file may have several members, as `cat a.gz b.gz` makes one.
        (true, _) => Box::new(MultiGzDecoder::new(BufReader::new(source))),
        (_, true) => {
            Box::new(Zstd { decoder: FrameDecoder::new(), source: BufReader::new(source), inside: false })
        }
        _ => source,
    })
}

/// The frames of a zstd file, one after the other.
struct Zstd {
    decoder: FrameDecoder,
    source: BufReader<Source>,
    /// Whether a frame has begun, and is not read to its end.
    inside: bool,
}

impl Zstd {
    /// Begins the next frame, or passes over one that says nothing; `false` at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        if self.source.fill_buf()?.is_empty() {
            return Ok(false);
        }
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.inside = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let length = u64::from(length);
                if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(ended(error)),
        }
        Ok(true)
    }
}

impl Read for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.inside {
                while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                    self.decoder
                        .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                        .map_err(ended)?;
                }
                let read = self.decoder.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
                let written = self.decoder.get_checksum_from_data();
                if written.is_some() && written != self.decoder.get_calculated_checksum() {
                    return Err(io::Error::other("zstd: the checksum is wrong"));
                }
                self.inside = false;
            }
            if !self.begin()? {
                return Ok(0);
            }
        }
    }
}

/// The decoder's error; where the file ends too early, that.
fn ended(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(this) = cause {
        if this.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) {
            return io::ErrorKind::UnexpectedEof.into();
        }
        cause = this.source();
    }
    io::Error::other(format!("zstd: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        unpacked(Box::new(io::Cursor::new(bytes.to_vec())))?.read_to_end(&mut out)?;
        Ok(out)
    }

    /// `printf underpass | gzip -n | xxd -i`
    const UNDERPASS_GZ: [u8; 29] = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x2b, 0xcd, 0x4b, 0x49, 0x2d, 0x2a, 0x48,
        0x2c, 0x2e, 0x06, 0x00, 0x35, 0x6e, 0xba, 0xd2, 0x09, 0x00, 0x00, 0x00,
    ];
    /// `printf underpass | zstd | xxd -i`
    const UNDERPASS_ZST: [u8; 22] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x49, 0x00, 0x00, 0x75, 0x6e, 0x64, 0x65, 0x72, 0x70, 0x61, 0x73,
        0x73, 0xe6, 0x61, 0xae, 0x60,
    ];

    #[test]
    fn files_of_several_parts() {
        assert_eq!(read(b"plain").unwrap(), b"plain");
        assert_eq!(read(b"").unwrap(), b"");
        assert_eq!(read(&UNDERPASS_GZ.repeat(2)).unwrap(), b"underpassunderpass");
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let parts = [&skippable[..], &UNDERPASS_ZST, &skippable, &UNDERPASS_ZST].concat();
        assert_eq!(read(&parts).unwrap(), b"underpassunderpass");
    }

    /// Each cut is an error of that kind, and each bit that changes an error or another text.
    #[test]
    fn damaged_files() {
        for whole in [&UNDERPASS_GZ[..], &UNDERPASS_ZST] {
            for length in 4..whole.len() {
                let error = read(&whole[..length]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}: {error}");
            }
        }
        let mut wrong = UNDERPASS_ZST;
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(read(&wrong).unwrap_err().to_string(), "zstd: the checksum is wrong");
        for bit in 32..UNDERPASS_ZST.len() * 8 {
            let mut damaged = UNDERPASS_ZST;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&damaged);
        }
    }
}
