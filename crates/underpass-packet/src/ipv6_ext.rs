//! IPv6 extension headers, RFC 8200 section 4: the chain of them, options, routing and fragment headers.
//!
//! ```text
//! options   |  Next Header  |  Hdr Ext Len  | Options: Type, Length, Data; to Hdr Ext Len × 8 + 8 |
//! routing   |  Next Header  |  Hdr Ext Len  |  Routing Type | Segments Left | type-specific data  |
//! fragment  |  Next Header  |   Reserved    |      Fragment Offset    |Res|M|   Identification    |
//! ```

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

use crate::{ipv6, protocol};

/// Most extension headers of a packet. RFC 8504 section 5.3 lets a node set such a limit; without it
/// one packet would cost thousands of steps.
pub const MAX_HEADERS: usize = 32;

/// Which rule the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// An extension header goes on after the end of the packet.
    Truncated,
    /// More than [`MAX_HEADERS`] of them.
    TooMany,
    /// An option goes on after the end of its header.
    Option,
}

/// A protocol number that is an extension header with a next header field of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Hop-by-hop options.
    HopByHop,
    /// Destination options.
    DestinationOptions,
    /// A routing header of any type.
    Routing,
    /// A fragment header.
    Fragment,
    /// An authentication header, RFC 4302.
    Authentication,
}

impl Kind {
    /// The extension header of this number; `None` for upper layers, ESP and no next header.
    #[inline]
    pub const fn of(next_header: u8) -> Option<Self> {
        match next_header {
            protocol::HOP_BY_HOP => Some(Self::HopByHop),
            protocol::DESTINATION_OPTIONS => Some(Self::DestinationOptions),
            protocol::ROUTING => Some(Self::Routing),
            protocol::FRAGMENT => Some(Self::Fragment),
            protocol::AUTHENTICATION => Some(Self::Authentication),
            _ => None,
        }
    }

    /// Length in bytes of a header whose second byte is `second`.
    #[inline]
    const fn len(self, second: u8) -> usize {
        match self {
            Self::Fragment => Fragment::LEN,
            Self::Authentication => (second as usize + 2) * 4,
            _ => (second as usize + 1) * 8,
        }
    }
}

/// One extension header, which lies whole in the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension<'a> {
    /// Which one.
    pub kind: Kind,
    /// Where it starts, in bytes from the start of the IPv6 header.
    pub offset: usize,
    /// Where the next header field lies that names it, in bytes from the start of the IPv6 header.
    pub named_at: usize,
    /// What follows it.
    pub next_header: u8,
    /// Its bytes, to its own length.
    pub bytes: &'a [u8],
}

impl<'a> Extension<'a> {
    /// The fixed part of a routing header; `None` if it is another header.
    #[inline]
    pub fn routing(&self) -> Option<&'a Routing> {
        if self.kind != Kind::Routing {
            return None;
        }
        Routing::ref_from_prefix(self.bytes).ok().map(|(routing, _)| routing)
    }

    /// The fragment header; `None` if it is another header.
    #[inline]
    pub fn fragment(&self) -> Option<&'a Fragment> {
        if self.kind != Kind::Fragment {
            return None;
        }
        Fragment::ref_from_prefix(self.bytes).ok().map(|(fragment, _)| fragment)
    }

    /// The options of a hop-by-hop or destination options header; none, if it is another header.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        match self.kind {
            Kind::HopByHop | Kind::DestinationOptions => Options::new(self.bytes),
            _ => Options::new(&[]),
        }
    }
}

/// What the extension headers end in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper {
    /// Its number: an upper layer, ESP or no next header. Of a fragment that is not the first, the
    /// number that its fragment header gives, which may be that of an extension header.
    pub protocol: u8,
    /// Where it starts, in bytes from the start of the IPv6 header; at most the length of the packet.
    pub offset: usize,
    /// Where the next header field lies that names it, in bytes from the start of the IPv6 header.
    pub named_at: usize,
    /// Where the payload belongs in the packet that it is a fragment of, in bytes. Unless it is 0, no
    /// header of that protocol stands at `offset`.
    pub fragment_offset: usize,
}

/// Walks over the extension headers of a packet, in order. Like Linux's `ipv6_find_hdr()`, it takes them
/// in any order and number (to [`MAX_HEADERS`]) and stops behind a fragment header that is not of the
/// first fragment. An error ends the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions<'a> {
    /// What is left of the payload.
    rest: &'a [u8],
    upper: Upper,
    count: usize,
    ended: bool,
}

impl<'a> Extensions<'a> {
    /// The extension headers of `packet`.
    #[inline]
    pub const fn new(packet: &ipv6::View<'a>) -> Self {
        Self {
            rest: packet.payload,
            upper: Upper {
                protocol: packet.header.next_header,
                offset: ipv6::Header::LEN,
                named_at: ipv6::Header::NEXT_HEADER_OFFSET,
                fragment_offset: 0,
            },
            count: 0,
            ended: false,
        }
    }

    /// Walks to the end: what the chain ends in.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooMany`].
    #[inline]
    pub fn upper(mut self) -> Result<Upper, Malformed> {
        for extension in self.by_ref() {
            extension?;
        }
        Ok(self.upper)
    }

    /// Walks to the next header of this kind.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooMany`], if that comes first.
    #[inline]
    pub fn find_kind(&mut self, kind: Kind) -> Result<Option<Extension<'a>>, Malformed> {
        for extension in self {
            let extension = extension?;
            if extension.kind == kind {
                return Ok(Some(extension));
            }
        }
        Ok(None)
    }

    fn take(&mut self, kind: Kind) -> Result<Extension<'a>, Malformed> {
        if self.count == MAX_HEADERS {
            return Err(Malformed::TooMany);
        }
        let [next_header, second, ..] = *self.rest else { return Err(Malformed::Truncated) };
        let (bytes, rest) = self.rest.split_at_checked(kind.len(second)).ok_or(Malformed::Truncated)?;
        let Upper { offset, named_at, .. } = self.upper;
        let extension = Extension { kind, offset, named_at, next_header, bytes };
        self.count += 1;
        self.rest = rest;
        self.upper = Upper {
            protocol: next_header,
            offset: offset + bytes.len(),
            named_at: offset,
            fragment_offset: extension.fragment().map_or(0, Fragment::offset),
        };
        Ok(extension)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let kind = Kind::of(self.upper.protocol)?;
        if self.ended || self.upper.fragment_offset != 0 {
            return None;
        }
        let taken = self.take(kind);
        self.ended = taken.is_err();
        Some(taken)
    }
}

/// What every routing header starts with, RFC 8200 section 4.4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Routing {
    /// What follows the header.
    pub next_header: u8,
    /// Length of the header without its first 8 bytes, in units of 8 bytes.
    pub hdr_ext_len: u8,
    /// Which routing header it is: [`crate::srh::ROUTING_TYPE`] …
    pub routing_type: u8,
    /// How many nodes are yet to be visited. 0: the header is to be ignored.
    pub segments_left: u8,
}

/// A fragment header, RFC 8200 section 4.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// What the fragmentable part starts with.
    pub next_header: u8,
    reserved: u8,
    offset_flags: U16,
    /// Names the packet that the fragment is of.
    pub identification: U32,
}

impl Fragment {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// A fragment header. `offset` is in bytes; what it is above a multiple of 8, and above 65,528, is
    /// ignored.
    #[inline]
    pub const fn new(next_header: u8, offset: u16, more_fragments: bool, identification: u32) -> Self {
        Self {
            next_header,
            reserved: 0,
            offset_flags: U16::new(offset & !7 | more_fragments as u16),
            identification: U32::new(identification),
        }
    }

    /// Where the payload belongs in the packet that it is a fragment of, in bytes.
    #[inline]
    pub const fn offset(&self) -> usize {
        (self.offset_flags.get() & !7) as usize
    }

    /// Whether more fragments follow.
    #[inline]
    pub const fn more_fragments(&self) -> bool {
        self.offset_flags.get() & 1 != 0
    }
}

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
                return Some(Err(Malformed::Option));
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
