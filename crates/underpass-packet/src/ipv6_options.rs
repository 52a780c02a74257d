//! Options of IPv6 hop-by-hop and destination options headers, RFC 8200 section 4.2.
//!
//! ```text
//! |  Next Header  |  Hdr Ext Len  | Type | Length | Data … | Type | Length | Data … | padding |
//! ```

/// An option goes on after the end of its header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Malformed;

/// Type of a padding byte that has no length, RFC 8200 section 4.2.
pub const OPTION_PAD1: u8 = 0;
/// Type of a padding option, RFC 8200 section 4.2.
pub const OPTION_PADN: u8 = 1;
/// Type of the router alert option, RFC 2711.
pub const OPTION_ROUTER_ALERT: u8 = 5;

/// What a node does that does not know an option: the upper two bits of its type, RFC 8200 section 4.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unrecognised {
    /// Goes on with the next option.
    Skip,
    /// Drops the packet.
    Discard,
    /// Drops the packet and sends a parameter problem, code 2.
    Report,
    /// The same, but sends nothing if the destination is a multicast address.
    ReportUnicast,
}

/// One option of a hop-by-hop or destination options header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opt<'a> {
    /// Its type.
    pub kind: u8,
    /// Where it starts, in bytes from the start of its extension header.
    pub offset: usize,
    /// Its data; empty for [`OPTION_PAD1`].
    pub data: &'a [u8],
}

impl Opt<'_> {
    /// What a node does that does not know the option.
    #[inline]
    pub const fn unrecognised(&self) -> Unrecognised {
        match self.kind >> 6 {
            0 => Unrecognised::Skip,
            1 => Unrecognised::Discard,
            2 => Unrecognised::Report,
            _ => Unrecognised::ReportUnicast,
        }
    }

    /// Whether the data may change on the way.
    #[inline]
    pub const fn may_change(&self) -> bool {
        self.kind & 0x20 != 0
    }
}

/// The options of a hop-by-hop or destination options header, padding among them. An error ends the
/// walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// The options of the header that `bytes` are, from its next header field to its end.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes.get(2..).unwrap_or(&[]), offset: 2 }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let (option, rest) = match *self.rest {
            [] => return None,
            [OPTION_PAD1, ref rest @ ..] => (Opt { kind: OPTION_PAD1, offset, data: &[] }, rest),
            [kind, len, ref rest @ ..] if len as usize <= rest.len() => {
                let (data, rest) = rest.split_at(len as usize);
                (Opt { kind, offset, data }, rest)
            }
            _ => {
                self.rest = &[];
                return Some(Err(Malformed));
            }
        };
        self.offset += self.rest.len() - rest.len();
        self.rest = rest;
        Some(Ok(option))
    }
}

/// An option to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewOption<'a> {
    /// Its type.
    pub kind: u8,
    /// Its data, at most 255 bytes.
    pub data: &'a [u8],
    /// The option starts at a multiple of this many bytes (1, 2, 4 or 8) …
    pub align: u8,
    /// … plus this many: the `xn+y` of RFC 8200 section 4.2, x being `align` and y this.
    pub align_offset: u8,
}

/// Why an options header cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unbuildable {
    /// An option is longer than 255 bytes, or the header longer than 2,048.
    TooLong,
    /// An option's `align` is not 1, 2, 4 or 8.
    Alignment,
    /// The bytes to write to are too few.
    NoRoom,
}

/// A hop-by-hop or destination options header to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionsBuilder<'a> {
    /// What follows the header.
    pub next_header: u8,
    /// The options without padding, which is added where alignment and the end of the header need it.
    pub options: &'a [NewOption<'a>],
}

/// Longest options header.
const MAX_LEN: usize = 8 * 256;

impl OptionsBuilder<'_> {
    /// Length of the header in bytes.
    ///
    /// # Errors
    /// [`Unbuildable::TooLong`], [`Unbuildable::Alignment`].
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> Result<usize, Unbuildable> {
        let mut at: usize = 2;
        for option in self.options {
            if option.data.len() > u8::MAX as usize {
                return Err(Unbuildable::TooLong);
            }
            if !matches!(option.align, 1 | 2 | 4 | 8) {
                return Err(Unbuildable::Alignment);
            }
            at += padding(at, option) + 2 + option.data.len();
            if at > MAX_LEN {
                return Err(Unbuildable::TooLong);
            }
        }
        Ok(at.next_multiple_of(8))
    }

    /// Writes the header to the start of `bytes` and returns its length.
    ///
    /// # Errors
    /// See [`Unbuildable`]; nothing is then written.
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Unbuildable> {
        let len = self.len()?;
        let bytes = bytes.get_mut(..len).ok_or(Unbuildable::NoRoom)?;
        bytes.fill(0);
        if let [next_header, hdr_ext_len, ..] = bytes {
            *next_header = self.next_header;
            *hdr_ext_len = (len / 8 - 1) as u8;
        }
        let mut at = 2;
        for option in self.options {
            let gap = padding(at, option);
            write_padding(bytes.get_mut(at..at + gap));
            at += gap;
            let end = at + 2 + option.data.len();
            if let Some([kind, len, data @ ..]) = bytes.get_mut(at..end) {
                *kind = option.kind;
                *len = option.data.len() as u8;
                data.copy_from_slice(option.data);
            }
            at = end;
        }
        write_padding(bytes.get_mut(at..));
        Ok(len)
    }
}

/// How many bytes of padding bring `option` from offset `at` to where it may start.
fn padding(at: usize, option: &NewOption<'_>) -> usize {
    let align = usize::from(option.align.max(1));
    (usize::from(option.align_offset) % align + align - at % align) % align
}

/// Makes `gap`, which is zero, one Pad1 or one PadN.
fn write_padding(gap: Option<&mut [u8]>) {
    if let Some([kind, len, rest @ ..]) = gap {
        *kind = OPTION_PADN;
        *len = rest.len() as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    #[test]
    fn options_that_do_not_fit() {
        let read =
            |bytes: &'static [u8]| Options::new(bytes).map(|o| o.map(|o| o.offset)).collect::<Vec<_>>();
        assert_eq!(read(&[59, 0, 0, 0, 1, 2, 0, 0]), [Ok(2), Ok(3), Ok(4)]);
        assert_eq!(read(&[59, 0, 0, 0, 1, 3, 0, 0]), [Ok(2), Ok(3), Err(Malformed)]);
        assert_eq!(read(&[59, 0, 0, 0, 0, 0, 0, 9]), [Ok(2), Ok(3), Ok(4), Ok(5), Ok(6), Err(Malformed)]);
    }

    /// scapy 2.5.0: `IPv6ExtHdrHopByHop(nh=60,options=RouterAlert(value=2))/IPv6ExtHdrDestOpt(nh=43,
    /// options=[HBHOptUnknown(otype=0xde,optdata=b'1234567')])`
    #[test]
    fn options_builder_agrees_with_scapy() {
        let chain = hex("3c00050200020100 2b01de073132333435363701030000 00");
        let build = |next_header, option| {
            let mut bytes = [0x55; 32];
            let len = OptionsBuilder { next_header, options: &[option] }.write(&mut bytes).unwrap();
            bytes[..len].to_vec()
        };
        let alert = NewOption { kind: OPTION_ROUTER_ALERT, data: &[0, 2], align: 2, align_offset: 0 };
        assert_eq!(build(protocol::DESTINATION_OPTIONS, alert), chain[..8]);
        let unknown = NewOption { kind: 0xde, data: b"1234567", align: 1, align_offset: 0 };
        assert_eq!(build(protocol::ROUTING, unknown), chain[8..]);
    }

    #[test]
    fn options_that_cannot_be_built() {
        let (long, most) = ([0; 256], [0; 255]);
        let option = NewOption { kind: 9, data: &most, align: 1, align_offset: 0 };
        let len = |options: &[NewOption<'_>]| OptionsBuilder { next_header: 59, options }.len();
        assert_eq!(len(&[]), Ok(8));
        assert_eq!(len(&[option; 7]), Ok(1808));
        assert_eq!(len(&[option; 8]), Err(Unbuildable::TooLong));
        assert_eq!(len(&[NewOption { data: &long, ..option }]), Err(Unbuildable::TooLong));
        assert_eq!(len(&[NewOption { align: 3, ..option }]), Err(Unbuildable::Alignment));
        let builder = OptionsBuilder { next_header: 59, options: &[option] };
        assert_eq!(builder.write(&mut [0; 263]), Err(Unbuildable::NoRoom));
    }

    proptest! {
        /// Every option is read back, where its alignment wants it, and all else is padding.
        #[test]
        fn options_are_read_as_written(
            options in proptest::collection::vec(
                (2..=255_u8, proptest::collection::vec(any::<u8>(), 0..40), 0..4_u32, 0..8_u8), 0..20),
            next_header: u8,
        ) {
            let options: Vec<_> = options.iter().map(|(kind, data, align, align_offset)| {
                NewOption { kind: *kind, data, align: 1 << align, align_offset: *align_offset }
            }).collect();
            let builder = OptionsBuilder { next_header, options: &options };
            let len = builder.len().unwrap();
            let mut bytes = vec![0x55; len];
            prop_assert_eq!(builder.write(&mut bytes), Ok(len));
            prop_assert_eq!((bytes[0], (usize::from(bytes[1]) + 1) * 8), (next_header, len));

            let read: Vec<_> = Options::new(&bytes).map(Result::unwrap).collect();
            let (padding, read): (Vec<Opt<'_>>, Vec<Opt<'_>>) = read.into_iter().partition(|o| o.kind <= OPTION_PADN);
            prop_assert!(padding.iter().all(|o| o.data.len() <= 5 && o.data.iter().all(|b| *b == 0)));
            prop_assert_eq!(read.len(), options.len());
            for (read, wrote) in read.iter().zip(&options) {
                prop_assert_eq!((read.kind, read.data), (wrote.kind, wrote.data));
                let align = usize::from(wrote.align);
                prop_assert_eq!(read.offset % align, usize::from(wrote.align_offset) % align);
            }
        }
    }
}
