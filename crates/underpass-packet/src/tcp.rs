//! TCP, RFC 9293 section 3.1.
//!
//! ```text
//! |          Source Port          |       Destination Port        |
//! |                        Sequence Number                        |
//! |                    Acknowledgment Number                      |
//! | Offset|  Rsvd | C E U A P R S F|            Window            |
//! |           Checksum            |         Urgent Pointer        |
//! |                  Options, to Data Offset × 4                  |
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use crate::checksum::Sum;

/// Flag: the sender has no more to send.
pub const FIN: u16 = 0x001;
/// Flag: synchronise sequence numbers.
pub const SYN: u16 = 0x002;
/// Flag: reset the connection.
pub const RST: u16 = 0x004;
/// Flag: push.
pub const PSH: u16 = 0x008;
/// Flag: the acknowledgment number counts.
pub const ACK: u16 = 0x010;
/// Flag: the urgent pointer counts.
pub const URG: u16 = 0x020;
/// Flag: ECN echo, RFC 3168.
pub const ECE: u16 = 0x040;
/// Flag: congestion window reduced, RFC 3168.
pub const CWR: u16 = 0x080;

/// Most bytes of options.
pub const MAX_OPTIONS: usize = 40;

/// Which rule of RFC 9293 section 3.1 the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the header with its options.
    Truncated,
    /// The data offset is below 20 bytes.
    DataOffset,
    /// An option goes on after the end of the header, or is shorter than its type and length.
    Option,
}

/// The header without its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub source_port: U16,
    /// Destination port.
    pub destination_port: U16,
    /// Sequence number of the first byte of the payload.
    pub sequence: U32,
    /// Sequence number that the sender expects next.
    pub acknowledgment: U32,
    offset_flags: U16,
    /// How many bytes the sender accepts.
    pub window: U16,
    /// Checksum of pseudo header, header and payload.
    pub checksum: U16,
    /// Offset of the end of urgent data.
    pub urgent: U16,
}

impl Header {
    /// Length in bytes, without options.
    pub const LEN: usize = size_of::<Self>();

    /// A header of these ports and flags without options, its numbers all 0.
    #[inline]
    pub const fn new(source_port: u16, destination_port: u16, flags: u16) -> Self {
        Self {
            source_port: U16::new(source_port),
            destination_port: U16::new(destination_port),
            sequence: U32::ZERO,
            acknowledgment: U32::ZERO,
            offset_flags: U16::new(5 << 12 | flags & 0x0FFF),
            window: U16::ZERO,
            checksum: U16::ZERO,
            urgent: U16::ZERO,
        }
    }

    /// Length of the header with its options, in bytes: 0 to 60.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.offset_flags.get() >> 12) as usize * 4
    }

    /// Makes the header say that it has `len` bytes of options, rounded down to a multiple of 4 and at
    /// most 40.
    #[inline]
    pub fn set_options_len(&mut self, len: usize) {
        let words = 5 + len.min(MAX_OPTIONS) as u16 / 4;
        self.offset_flags.set(words << 12 | self.flags());
    }

    /// Flags, the reserved bits among them: 12 bits.
    #[inline]
    pub const fn flags(&self) -> u16 {
        self.offset_flags.get() & 0x0FFF
    }

    /// Sets the flags; bits above their 12 are ignored.
    #[inline]
    pub fn set_flags(&mut self, flags: u16) {
        self.offset_flags.set(self.offset_flags.get() & 0xF000 | flags & 0x0FFF);
    }

    /// Whether the checksum is right; `pseudo` is the sum of the pseudo header.
    #[inline]
    pub fn checksum_valid(&self, pseudo: Sum, options: &[u8], payload: &[u8]) -> bool {
        pseudo.add_bytes(self.as_bytes()).add_bytes(options).add_bytes(payload).fold() == 0xFFFF
    }

    /// Makes the checksum right; `pseudo` is the sum of the pseudo header.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo: Sum, options: &[u8], payload: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum.set(pseudo.add_bytes(self.as_bytes()).add_bytes(options).add_bytes(payload).checksum());
    }

    #[inline]
    fn options_len(&self) -> Result<usize, Malformed> {
        self.header_len().checked_sub(Self::LEN).ok_or(Malformed::DataOffset)
    }
}

/// A segment whose header lies whole in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The fixed part.
    pub header: &'a Header,
    /// The options, as they are.
    pub options: &'a [u8],
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the segment that `bytes` are. Options and checksum are not looked at.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::DataOffset`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (options, payload) = rest.split_at_checked(header.options_len()?).ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }

    /// The options one by one.
    #[inline]
    pub const fn options(&self) -> Options<'a> {
        Options(self.options)
    }
}

/// [`View`], to be changed.
#[derive(PartialEq, Eq, Debug)]
pub struct ViewMut<'a> {
    /// The fixed part.
    pub header: &'a mut Header,
    /// The options, as they are.
    pub options: &'a mut [u8],
    /// What follows the header.
    pub payload: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// Reads the segment that `bytes` are. Options and checksum are not looked at.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::DataOffset`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let (options, payload) =
            rest.split_at_mut_checked(header.options_len()?).ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }
}

/// Kind of the option that ends the list.
pub const OPTION_END: u8 = 0;
/// Kind of the option of one byte that does nothing.
pub const OPTION_NOP: u8 = 1;
/// Kind of the maximum segment size option.
pub const OPTION_MSS: u8 = 2;

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opt<'a> {
    /// Its kind.
    pub kind: u8,
    /// What follows kind and length; empty for [`OPTION_NOP`].
    pub data: &'a [u8],
}

/// The options of a segment, to the end of the list or of the header. An error ends the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match *self.0 {
            [] | [OPTION_END, ..] => None,
            [OPTION_NOP, ref rest @ ..] => {
                self.0 = rest;
                Some(Ok(Opt { kind: OPTION_NOP, data: &[] }))
            }
            [kind, len, ref rest @ ..] if (2..=rest.len() + 2).contains(&(len as usize)) => {
                let (data, rest) = rest.split_at(len as usize - 2);
                self.0 = rest;
                Some(Ok(Opt { kind, data }))
            }
            _ => {
                self.0 = &[];
                Some(Err(Malformed::Option))
            }
        }
    }
}
