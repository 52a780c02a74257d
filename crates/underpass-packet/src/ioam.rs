//! The IOAM pre-allocated trace: RFC 9197 section 4.4, in the IPv6 option of RFC 9486.
//!
//! ```text
//! |   Type 0x31   |    Length     |   Reserved    |   IOAM Type   |
//! |         Namespace-ID          | NodeLen |O|L|A|F|  RemLen     |
//! |                IOAM Trace-Type                |   Reserved    |
//! |       free space: RemLen × 4 bytes, filled from its end       |
//! |       data of the last node … data of the first node          |
//! ```
//!
//! NodeLen and RemLen count units of 4 bytes. The data of a node is that of the bits of the trace type,
//! in their order.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32},
};

/// The IPv6 option that may change on the way: RFC 9486 section 3.
pub const OPTION: u8 = 0x31;
/// IOAM type of a pre-allocated trace: RFC 9197 section 7.1.
pub const PREALLOCATED: u8 = 0;
/// The O flag in the byte of [`Header::node_len_and_flags`]: a node had no space for its data.
pub const OVERFLOW: u8 = 0x04;
/// Most bytes of data that Linux takes in a trace: `IOAM6_TRACE_DATA_SIZE_MAX`.
pub const MAX_DATA: usize = 244;

/// What a node writes in 4 bytes of a value that it does not have: RFC 9197 section 4.4.1.
pub const UNAVAILABLE: u32 = u32::MAX;

/// Which rule the bytes break, in the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than the IOAM type or, of a pre-allocated trace, than its header.
    Truncated,
    /// RemLen is above the length of the data.
    RemLen,
    /// NodeLen is not what the trace type asks for.
    NodeLen,
}

/// An IOAM trace type: 24 bits, of which bit 0 is the highest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceType(u32);

/// Bits 8 to 10: their data take 8 bytes.
const WIDE: u32 = 0x00e0_0000;
/// Bit 22: its data are as long as the node's schema, and bit 23, which is reserved: not in NodeLen.
const UNCOUNTED: u32 = 0x0000_0300;
/// Bits 12 to 21, which have no meaning yet; of data of 4 bytes each, if set.
const UNDEFINED: u32 = 0x000f_fc00;
/// Bit 23, which is reserved.
const RESERVED: u32 = 0x0000_0100;

impl TraceType {
    /// The type of these three bytes.
    pub const fn new([a, b, c]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([a, b, c, 0]))
    }

    /// The three bytes.
    pub const fn bytes(self) -> [u8; 3] {
        let [a, b, c, _] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// Whether this bit is set, 0 the highest.
    #[inline(always)]
    pub const fn has(self, bit: u8) -> bool {
        self.0 << bit >> 31 != 0
    }

    /// Whether no bit is set that RFC 9197 gives no meaning: 12 to 21 and 23.
    pub const fn is_defined(self) -> bool {
        self.0 & (UNDEFINED | RESERVED) == 0
    }

    /// Bytes of the data of these bits.
    #[inline(always)]
    const fn len_of(bits: u32) -> usize {
        ((bits & !UNCOUNTED).count_ones() + (bits & WIDE).count_ones()) as usize * 4
    }

    /// NodeLen: length of a node's data in units of 4 bytes, without its opaque state snapshot.
    #[inline(always)]
    pub const fn node_len(self) -> u8 {
        (Self::len_of(self.0) / 4) as u8
    }

    /// Where the data of a bit lies in the data of a node, in bytes. `None`: the bit is not set.
    pub const fn offset(self, bit: u8) -> Option<usize> {
        if !self.has(bit) {
            return None;
        }
        let before = (1 << (31 - bit)) << 1;
        Some(Self::len_of(if bit == 0 { 0 } else { self.0 & !(before - 1) }))
    }
}

/// The header of a pre-allocated trace.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Namespace-ID.
    pub namespace: U16,
    /// NodeLen in the upper five bits, the flags O (overflow), L (loopback) and A (active) below.
    pub node_len_and_flags: u8,
    /// RemLen in the lower seven bits, the flag F above.
    pub rem_len_and_flag: u8,
    /// IOAM Trace-Type.
    pub trace_type: [u8; 3],
    /// Reserved.
    pub reserved: u8,
}

impl Header {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// NodeLen, in units of 4 bytes.
    #[inline]
    pub const fn node_len(&self) -> u8 {
        self.node_len_and_flags >> 3
    }

    /// RemLen, in units of 4 bytes.
    #[inline]
    pub const fn rem_len(&self) -> u8 {
        self.rem_len_and_flag & 0x7f
    }

    /// Whether a node had no space for its data.
    #[inline]
    pub const fn overflow(&self) -> bool {
        self.node_len_and_flags & OVERFLOW != 0
    }

    /// Checks the lengths against each other and the data.
    #[inline]
    fn check(&self, data: &[u8]) -> Result<(), Malformed> {
        if usize::from(self.rem_len()) * 4 > data.len() {
            return Err(Malformed::RemLen);
        }
        if self.node_len() != self.trace_type().node_len() {
            return Err(Malformed::NodeLen);
        }
        Ok(())
    }

    /// The trace type.
    #[inline]
    pub const fn trace_type(&self) -> TraceType {
        TraceType::new(self.trace_type)
    }
}

/// What the data of an [`OPTION`] are.
#[derive(Debug)]
pub enum Ioam<'a> {
    /// A pre-allocated trace.
    Trace(TraceMut<'a>),
    /// Of another type: a router leaves it as it is.
    Other,
}

/// A pre-allocated trace whose lengths agree with each other, to be filled.
#[derive(Debug)]
pub struct TraceMut<'a> {
    header: &'a mut Header,
    data: &'a mut [u8],
}

/// What a node knows of itself and of a packet, for the bits of a trace type; all in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node<'a> {
    /// Hop limit as the packet leaves, bits 0 and 8.
    pub hop_limit: u8,
    /// Node id of 24 bits, bit 0.
    pub id: u32,
    /// Ids of the links that the packet came in and leaves by, bit 1.
    pub links: (u16, u16),
    /// Seconds since 1970 and microseconds, bits 2 and 3.
    pub time: (u32, u32),
    /// Data of the namespace, bit 5.
    pub data: u32,
    /// Bytes that wait to leave by the link, bit 6.
    pub queue_depth: u32,
    /// Node id of 56 bits, bit 8.
    pub id_wide: u64,
    /// Wide ids of the links, bit 9.
    pub links_wide: (u32, u32),
    /// Wide data of the namespace, bit 10.
    pub data_wide: u64,
    /// Bit 22: length in units of 4 bytes (8 bits), schema id (24 bits), and the schema's data, in wire
    /// order. `None`: the namespace has no schema.
    pub schema: Option<&'a [u8]>,
}

/// What became of a trace that was to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filled {
    /// The node's data is in it.
    Yes,
    /// It has no space for the data, and now says so.
    Overflow,
    /// It said before that a node had no space: unchanged.
    Skipped,
}

impl<'a> Ioam<'a> {
    /// Reads the data of an [`OPTION`], from its Reserved byte on.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(data: &'a mut [u8]) -> Result<Self, Malformed> {
        let [_, kind, trace @ ..] = data else { return Err(Malformed::Truncated) };
        if *kind != PREALLOCATED {
            return Ok(Self::Other);
        }
        TraceMut::parse(trace).map(Self::Trace)
    }
}

/// Checks the data of an [`OPTION`] as [`Ioam::parse`] does: the header of its trace, `None` if it is of
/// another type.
///
/// # Errors
/// See [`Malformed`].
#[inline]
pub fn check(data: &[u8]) -> Result<Option<&Header>, Malformed> {
    match data {
        [_, PREALLOCATED, trace @ ..] => {
            let (header, data) = Header::ref_from_prefix(trace).map_err(|_| Malformed::Truncated)?;
            header.check(data).map(|()| Some(header))
        }
        [_, _, ..] => Ok(None),
        _ => Err(Malformed::Truncated),
    }
}

impl<'a> TraceMut<'a> {
    /// Reads a pre-allocated trace that is all of `bytes`, from its header on.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Malformed> {
        let (header, data) = Header::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        header.check(data)?;
        Ok(Self { header, data })
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        self.header
    }

    /// Adds the data of a node, as Linux's `ioam6_fill_trace_data` does: RFC 9197 section 4.4.1. Nothing is
    /// written unless all of it has space.
    #[inline]
    pub fn fill(&mut self, node: &Node<'_>) -> Filled {
        if self.header.overflow() {
            return Filled::Skipped;
        }
        let kind = self.header.trace_type();
        let snapshot = match node.schema {
            _ if !kind.has(22) => 0,
            Some(schema) => schema.len(),
            None => 4,
        };
        let len = TraceType::len_of(kind.0) + snapshot;
        let free = usize::from(self.header.rem_len()) * 4;
        let room = free.checked_sub(len).and_then(|start| self.data.get_mut(start..free));
        let (Some(room), true) = (room, free > 0) else {
            self.header.node_len_and_flags |= OVERFLOW;
            return Filled::Overflow;
        };
        write(room, kind, node);
        self.header.rem_len_and_flag -= (len / 4) as u8;
        Filled::Yes
    }
}

/// Writes the data of a node to `room`, which is as long.
#[inline]
fn write(room: &mut [u8], kind: TraceType, node: &Node<'_>) {
    let mut rest = room;
    if kind.has(0) {
        put(&mut rest, u32::from(node.hop_limit) << 24 | node.id & 0x00ff_ffff);
    }
    if kind.has(1) {
        put(&mut rest, u32::from(node.links.0) << 16 | u32::from(node.links.1));
    }
    if kind.has(2) {
        put(&mut rest, node.time.0);
    }
    if kind.has(3) {
        put(&mut rest, node.time.1);
    }
    // The transit delay is not known.
    if kind.has(4) {
        put(&mut rest, UNAVAILABLE);
    }
    if kind.has(5) {
        put(&mut rest, node.data);
    }
    if kind.has(6) {
        put(&mut rest, node.queue_depth);
    }
    // No checksum complement is made.
    if kind.has(7) {
        put(&mut rest, UNAVAILABLE);
    }
    if kind.has(8) {
        put_wide(&mut rest, u64::from(node.hop_limit) << 56 | node.id_wide & 0x00ff_ffff_ffff_ffff);
    }
    if kind.has(9) {
        put(&mut rest, node.links_wide.0);
        put(&mut rest, node.links_wide.1);
    }
    if kind.has(10) {
        put_wide(&mut rest, node.data_wide);
    }
    // The buffer occupancy is not known.
    if kind.has(11) {
        put(&mut rest, UNAVAILABLE);
    }
    // "add corresponding node data filled with the reserved value 0xFFFFFFFF"
    for _ in 0..(kind.0 & UNDEFINED).count_ones() {
        put(&mut rest, UNAVAILABLE);
    }
    if kind.has(22) {
        match node.schema {
            Some(schema) if schema.len() == rest.len() => rest.copy_from_slice(schema),
            // Length 0, and an id that is none.
            _ => put(&mut rest, UNAVAILABLE >> 8),
        }
    }
}

#[inline(always)]
fn put(rest: &mut &mut [u8], value: u32) {
    if let Some((head, tail)) = std::mem::take(rest).split_first_chunk_mut::<4>() {
        *head = U32::new(value).to_bytes();
        *rest = tail;
    }
}

#[inline(always)]
fn put_wide(rest: &mut &mut [u8], value: u64) {
    put(rest, (value >> 32) as u32);
    put(rest, value as u32);
}

/// A hop-by-hop options header with an empty trace, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builder {
    /// The trace's header: its RemLen says how much space there is.
    pub header: Header,
}

/// Bytes before the trace's header: the fixed part of the extension header, padding that lets the option
/// start at a multiple of 4 bytes, and the option up to its IOAM type.
pub const BEFORE: usize = 8;

impl Builder {
    /// Length of the extension header, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        (BEFORE + Header::LEN + self.header.rem_len() as usize * 4).next_multiple_of(8)
    }

    /// Writes the extension header to the start of `bytes`, as Linux's `ioam6_build_state` lays it out. Its
    /// next header field is 0. `None`: `bytes` is too short, or the space longer than [`MAX_DATA`].
    pub fn write(&self, bytes: &mut [u8]) -> Option<usize> {
        let len = self.len();
        let space = usize::from(self.header.rem_len()) * 4;
        let bytes = bytes.get_mut(..len).filter(|_| space <= MAX_DATA)?;
        bytes.fill(0);
        let (before, rest) = bytes.split_first_chunk_mut::<BEFORE>()?;
        // PadN without data.
        *before = [0, (len / 8 - 1) as u8, 1, 0, OPTION, (2 + Header::LEN + space) as u8, 0, PREALLOCATED];
        let (header, data) = rest.split_at_mut_checked(Header::LEN)?;
        header.copy_from_slice(self.header.as_bytes());
        if let [kind, rest @ ..] = data.get_mut(space..)?
            && let Some(length) = rest.first_mut()
        {
            (*kind, *length) = (1, 2);
        }
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ipv6_options::Options;
    use crate::testing::hex;

    const NODE: Node<'static> = Node {
        hop_limit: 39,
        id: 0xabcdef,
        links: (0x0102, 0x0304),
        time: (0x5060_7080, 999_999),
        data: 0xdead_bee0,
        queue_depth: 77,
        id_wide: 0x11_2233_4455_6677,
        links_wide: (0x0a0b_0c0d, 0x1a1b_1c1d),
        data_wide: 0xcafe_c0ca_f00d_c0de,
        schema: None,
    };

    fn trace(kind: u32, rem_len: u8) -> Vec<u8> {
        let [_, a, b, c] = kind.to_be_bytes();
        let trace_type = [a, b, c];
        let header = Header {
            namespace: 123.into(),
            node_len_and_flags: TraceType::new(trace_type).node_len() << 3,
            rem_len_and_flag: rem_len,
            trace_type,
            reserved: 0,
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(Header::LEN + usize::from(rem_len) * 4, 0);
        bytes
    }

    /// RFC 9197 section 4.4.2: what each bit's data hold.
    #[test]
    fn every_bit_alone() {
        for (bit, data) in [
            (0, "27abcdef"),
            (1, "01020304"),
            (2, "50607080"),
            (3, "000f423f"),
            (4, "ffffffff"),
            (5, "deadbee0"),
            (6, "0000004d"),
            (7, "ffffffff"),
            (8, "2711223344556677"),
            (9, "0a0b0c0d1a1b1c1d"),
            (10, "cafec0caf00dc0de"),
            (11, "ffffffff"),
            (12, "ffffffff"),
            (21, "ffffffff"),
            (22, "00ffffff"),
        ] {
            let data = hex(data);
            let mut bytes = trace(1 << (23 - bit), 3);
            let mut trace = TraceMut::parse(&mut bytes).unwrap();
            assert_eq!(trace.fill(&NODE), Filled::Yes, "bit {bit}");
            assert_eq!(usize::from(trace.header().rem_len()), 3 - data.len() / 4, "bit {bit}");
            assert_eq!(bytes[Header::LEN + 12 - data.len()..], data, "bit {bit}");
        }
    }

    /// "If there is not enough space, the node sets the O flag and adds nothing"; RFC 9197 section 4.4.1.
    #[test]
    fn no_space() {
        let mut bytes = trace(0xc0_0000, 1);
        let mut space = TraceMut::parse(&mut bytes).unwrap();
        assert_eq!(space.fill(&NODE), Filled::Overflow);
        assert!(space.header().overflow());
        assert_eq!(space.fill(&NODE), Filled::Skipped);
        assert_eq!(bytes[Header::LEN..], [0; 4]);
        // Also where the trace type asks for nothing.
        let mut bytes = trace(0, 0);
        assert_eq!(TraceMut::parse(&mut bytes).unwrap().fill(&NODE), Filled::Overflow);
    }

    #[test]
    fn schema() {
        let schema = hex("02000309 736f6d65 7468696e");
        let node = Node { schema: Some(&schema), ..NODE };
        let mut bytes = trace(0x80_0002, 6);
        let mut space = TraceMut::parse(&mut bytes).unwrap();
        assert_eq!(space.fill(&node), Filled::Yes);
        assert_eq!(space.header().rem_len(), 2);
        assert_eq!(space.fill(&node), Filled::Overflow);
        assert_eq!(bytes[Header::LEN + 8..], [&hex("27abcdef")[..], &schema].concat());
    }

    #[test]
    fn malformed() {
        let parse = |mut bytes: Vec<u8>| TraceMut::parse(&mut bytes).map(|_| ());
        let good = trace(0x80_0000, 3);
        assert_eq!(parse(good.clone()), Ok(()));
        assert_eq!(parse(good[..7].to_vec()), Err(Malformed::Truncated));
        assert_eq!(parse(good[..19].to_vec()), Err(Malformed::RemLen));
        let mut bad = good;
        bad[2] = 2 << 3;
        assert_eq!(parse(bad), Err(Malformed::NodeLen));
        assert!(matches!(Ioam::parse(&mut [0]), Err(Malformed::Truncated)));
        assert!(matches!(Ioam::parse(&mut [0, 1]), Ok(Ioam::Other)));
    }

    /// Linux 6.12: `ip -6 route add … encap ioam6 trace prealloc type 0x800000 ns 123 size 12`.
    #[test]
    fn builder_writes_what_linux_does() {
        let bytes = trace(0x80_0000, 3);
        let (header, _) = Header::read_from_prefix(&bytes).unwrap();
        let mut out = [0x55; 40];
        assert_eq!(Builder { header }.write(&mut out), Some(32));
        assert_eq!(
            out[..32],
            hex("00030100 31160000 007b0803 80000000 00000000 00000000 00000000 01020000")[..]
        );
        assert_eq!(Builder { header }.write(&mut [0; 31]), None);
    }

    proptest! {
        /// The data of the bits lie where `offset` says, and take what NodeLen says.
        #[test]
        fn offsets(kind in 1_u32..1 << 24) {
            let kind = kind & !1;
            let mut bytes = trace(kind, 40);
            let mut space = TraceMut::parse(&mut bytes).unwrap();
            prop_assert_eq!(space.fill(&NODE), Filled::Yes);
            let kind = space.header().trace_type();
            let start = Header::LEN + usize::from(space.header().rem_len()) * 4;
            let node = &bytes[start..];
            let snapshot = if kind.has(22) { 4 } else { 0 };
            prop_assert_eq!(node.len(), usize::from(kind.node_len()) * 4 + snapshot);
            let at = |bit, len: usize| kind.offset(bit).map(|at| node[at..at + len].to_vec());
            prop_assert!(at(5, 4).is_none_or(|data| data == [0xde, 0xad, 0xbe, 0xe0]));
            prop_assert!(at(8, 1).is_none_or(|data| data == [39]));
            prop_assert!(at(10, 8).is_none_or(|data| data == 0xcafe_c0ca_f00d_c0de_u64.to_be_bytes()));
            prop_assert!(at(22, 4).is_none_or(|data| data == [0, 255, 255, 255]));
        }

        /// What is built is read as it was meant, and all else is padding.
        #[test]
        fn built_is_read(kind in 1_u32..1 << 24, rem_len in 1_u8..=61) {
            let bytes = trace(kind, rem_len);
            let (header, _) = Header::read_from_prefix(&bytes).unwrap();
            let mut out = vec![0x55; 300];
            let len = Builder { header }.write(&mut out).unwrap();
            out.truncate(len);
            prop_assert_eq!((usize::from(out[1]) + 1) * 8, len);
            let options: Vec<_> = Options::new(&out).map(Result::unwrap).collect();
            let (traces, padding): (Vec<_>, Vec<_>) = options.into_iter().partition(|o| o.kind == OPTION);
            prop_assert!(padding.iter().all(|o| o.kind <= 1 && o.data.iter().all(|byte| *byte == 0)));
            prop_assert_eq!(traces.len(), 1);
            prop_assert_eq!(traces[0].offset % 4, 0);
            let mut data = traces[0].data.to_vec();
            prop_assert_eq!(&data[2..], &bytes);
            let Ok(Ioam::Trace(read)) = Ioam::parse(&mut data) else { panic!("no trace") };
            prop_assert_eq!(*read.header(), header);
        }
    }
}
