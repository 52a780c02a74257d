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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    /// scapy 2.5.0: `IP(src='192.0.2.1',dst='198.51.100.2')/TCP(sport=443,dport=50000,seq=0x01020304,
    /// ack=0x05060708,flags='SAE',window=512,options=[('MSS',1460),('SAckOK',b''),('Timestamp',(1,2)),
    /// ('NOP',None),('WScale',7)])/b'x'`
    const SEGMENT: &str = "01bbc3500102030405060708a05202000c550000
        020405b4 0402 080a0000000100000002 01 030307 78";

    #[test]
    fn segment_of_scapy() {
        let mut bytes = hex(SEGMENT);
        let view = View::parse(&bytes).unwrap();
        let header = view.header;
        assert_eq!((header.source_port.get(), header.destination_port.get()), (443, 50000));
        assert_eq!((header.sequence.get(), header.acknowledgment.get()), (0x01020304, 0x05060708));
        assert_eq!((header.header_len(), header.flags(), header.window.get()), (40, SYN | ACK | ECE, 512));
        assert_eq!(view.payload, b"x");
        let options: Vec<_> = view.options().map(|o| o.map(|o| (o.kind, o.data.len()))).collect();
        assert_eq!(options, [Ok((OPTION_MSS, 2)), Ok((4, 0)), Ok((8, 8)), Ok((OPTION_NOP, 0)), Ok((3, 1))]);

        let pseudo = Sum::pseudo_ipv4([192, 0, 2, 1], [198, 51, 100, 2], protocol::TCP, 41);
        assert!(header.checksum_valid(pseudo, view.options, view.payload));
        let view = ViewMut::parse(&mut bytes).unwrap();
        view.header.checksum.set(0x5555);
        view.header.fill_checksum(pseudo, view.options, view.payload);
        assert_eq!(bytes, hex(SEGMENT));
    }

    #[test]
    fn every_rule() {
        let bytes = hex(SEGMENT);
        for len in 0..40 {
            assert_eq!(View::parse(&bytes[..len]), Err(Malformed::Truncated), "{len}");
        }
        for offset in 0..5 {
            let mut bytes = bytes.clone();
            bytes[12] = offset << 4;
            assert_eq!(View::parse(&bytes), Err(Malformed::DataOffset));
            assert_eq!(ViewMut::parse(&mut bytes), Err(Malformed::DataOffset));
        }
    }

    #[test]
    fn options_end() {
        let read = |bytes: &'static [u8]| Options(bytes).collect::<Vec<_>>();
        let nop = Ok(Opt { kind: OPTION_NOP, data: &[] });
        assert_eq!(read(&[1, 0, 1, 9]), [nop], "END ends the list");
        assert_eq!(read(&[1, 2]), [nop, Err(Malformed::Option)], "no length");
        assert_eq!(read(&[2, 0, 1]), [Err(Malformed::Option)], "a length that does not advance");
        assert_eq!(read(&[2, 1, 1]), [Err(Malformed::Option)]);
        assert_eq!(read(&[2, 4, 1]), [Err(Malformed::Option)], "past the end");
        assert_eq!(read(&[2, 2, 1]), [Ok(Opt { kind: 2, data: &[] }), nop]);
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(
            ports: (u16, u16), flags in 0..0x1000_u16, other_flags in 0..0x1000_u16,
            options in (0..=10_usize).prop_flat_map(|words| proptest::collection::vec(any::<u8>(), words * 4)),
            payload: Vec<u8>,
        ) {
            let mut header = Header::new(ports.0, ports.1, other_flags);
            header.set_options_len(options.len());
            prop_assert_eq!(header.flags(), other_flags);
            header.set_flags(flags);
            header.fill_checksum(Sum::new(), &options, &payload);
            let mut bytes = [header.as_bytes(), &options, &payload].concat();
            let view = View::parse(&bytes).unwrap();
            prop_assert_eq!(view, View { header: &header, options: &options, payload: &payload });
            prop_assert_eq!(view.header.flags(), flags);
            let view = ViewMut::parse(&mut bytes).unwrap();
            prop_assert!(view.header.checksum_valid(Sum::new(), view.options, view.payload));
        }
    }
}
