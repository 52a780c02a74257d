//! MPLS label stacks: RFC 3032 section 2, the traffic class of RFC 5462.
//!
//! ```text
//! | Label (20 bits) | TC (3 bits) | S (1 bit) | TTL (8 bits) | next entry or payload …
//! ```
//!
//! S is set in the last entry of the stack. What follows it is not said: only the label knows.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The payload is IPv4, whatever its label was: RFC 3032 section 2.1.
pub const IPV4_EXPLICIT_NULL: u32 = 0;
/// The packet is looked at by every router on its way: RFC 3032 section 2.1.
pub const ROUTER_ALERT: u32 = 1;
/// The payload is IPv6, whatever its label was: RFC 3032 section 2.1.
pub const IPV6_EXPLICIT_NULL: u32 = 2;
/// Never on the wire: the last router but one takes the label off. RFC 3032 section 2.1.
pub const IMPLICIT_NULL: u32 = 3;
/// The label below it is an entropy label: RFC 6790 section 4.1.
pub const ENTROPY_LABEL_INDICATOR: u32 = 7;
/// Labels below it have a meaning of their own: RFC 3032 section 2.1, RFC 7274.
pub const FIRST_UNRESERVED: u32 = 16;
/// The largest label.
pub const MAX_LABEL: u32 = (1 << 20) - 1;

/// Most entries of a stack that are read. Linux's `MAX_NEW_LABELS`, which it can put on.
pub const MAX_DEPTH: usize = 30;

/// Bit of an entry, as a number in host byte order: it is the last of its stack.
pub const BOTTOM: u32 = 1 << 8;
/// Bits of an entry, as a number in host byte order: its traffic class.
pub const TRAFFIC_CLASS: u32 = 7 << 9;

/// What is wrong with a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Ends before an entry that is the last.
    Truncated,
    /// More than [`MAX_DEPTH`] entries.
    TooDeep,
}

/// An entry of a label stack.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct Entry([u8; 4]);

impl Entry {
    /// Length in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// An entry of this label and traffic class, whose upper bits are ignored.
    #[inline(always)]
    pub const fn new(label: u32, traffic_class: u8, bottom: bool, ttl: u8) -> Self {
        let class = (traffic_class as u32 & 7) << 9;
        Self(((label << 12) | class | (bottom as u32) << 8 | ttl as u32).to_be_bytes())
    }

    /// The label, 20 bits.
    #[inline(always)]
    pub const fn label(self) -> u32 {
        u32::from_be_bytes(self.0) >> 12
    }

    /// The traffic class, 3 bits.
    #[inline(always)]
    pub const fn traffic_class(self) -> u8 {
        (self.0[2] >> 1) & 7
    }

    /// Whether it is the last of its stack.
    #[inline(always)]
    pub const fn is_bottom(self) -> bool {
        self.0[2] & 1 != 0
    }

    /// Time to live.
    #[inline(always)]
    pub const fn ttl(self) -> u8 {
        self.0[3]
    }

    /// The same entry with another time to live.
    #[inline(always)]
    #[must_use]
    pub const fn with_ttl(self, ttl: u8) -> Self {
        Self([self.0[0], self.0[1], self.0[2], ttl])
    }

    /// The same entry with another traffic class, whose upper bits are ignored.
    #[inline(always)]
    #[must_use]
    pub const fn with_traffic_class(self, class: u8) -> Self {
        Self([self.0[0], self.0[1], self.0[2] & !0xe | (class & 7) << 1, self.0[3]])
    }

    /// An entry of another label and time to live, which has those bits of this one that are set in `kept`:
    /// [`BOTTOM`], [`TRAFFIC_CLASS`].
    #[inline(always)]
    #[must_use]
    pub const fn swapped(self, label: u32, kept: u32, ttl: u8) -> Self {
        Self((label << 12 | u32::from_be_bytes(self.0) & kept | ttl as u32).to_be_bytes())
    }

    /// The same entry, the last of its stack or not.
    #[inline(always)]
    #[must_use]
    pub const fn with_bottom(self, bottom: bool) -> Self {
        Self([self.0[0], self.0[1], self.0[2] & !1 | bottom as u8, self.0[3]])
    }
}

/// A label stack and what it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack<'a> {
    /// From the top, at least one; the last is the bottom.
    pub entries: &'a [Entry],
    /// What follows the last entry.
    pub payload: &'a [u8],
}

impl<'a> Stack<'a> {
    /// Reads a stack to its bottom.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let depth = depth(bytes)?;
        let (entries, payload) =
            <[Entry]>::ref_from_prefix_with_elems(bytes, depth).map_err(|_| Malformed::Truncated)?;
        Ok(Self { entries, payload })
    }
}

/// How many entries the stack at the front of `bytes` has.
///
/// # Errors
/// [`Malformed`].
#[inline]
pub fn depth(bytes: &[u8]) -> Result<usize, Malformed> {
    let (entries, _) = bytes.as_chunks::<{ Entry::LEN }>();
    match entries.iter().take(MAX_DEPTH).position(|entry| Entry(*entry).is_bottom()) {
        Some(last) => Ok(last + 1),
        None if entries.len() < MAX_DEPTH => Err(Malformed::Truncated),
        None => Err(Malformed::TooDeep),
    }
}

/// Writes a stack of these labels, the outermost first, each with this time to live, to the front of
/// `bytes`; the last is the bottom. Labels have 20 bits.
///
/// # Errors
/// [`Malformed::Truncated`]: `bytes` is too short. It is then unchanged.
pub fn write(labels: &[u32], ttl: u8, bytes: &mut [u8]) -> Result<(), Malformed> {
    let (entries, _) =
        <[Entry]>::mut_from_prefix_with_elems(bytes, labels.len()).map_err(|_| Malformed::Truncated)?;
    for (i, (entry, label)) in entries.iter_mut().zip(labels).enumerate() {
        *entry = Entry::new(*label, 0, i + 1 == labels.len(), ttl);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 3032 section 2.1, figure 1: label 16, class 5, bottom, TTL 64.
    #[test]
    fn fields_lie_where_the_figure_says() {
        let entry = Entry::new(16, 5, true, 64);
        assert_eq!(entry.as_bytes(), [0x00, 0x01, 0x0b, 0x40]);
        assert_eq!((entry.label(), entry.traffic_class(), entry.ttl()), (16, 5, 64));
        assert!(entry.is_bottom() && !entry.with_bottom(false).is_bottom());
        assert_eq!(entry.with_ttl(3), Entry::new(16, 5, true, 3));
        assert_eq!(Entry::new(MAX_LABEL, 7, true, 255).as_bytes(), [0xff; 4]);
    }

    #[test]
    fn stacks() {
        let mut bytes = [9; 14];
        write(&[100, 200, 300], 7, &mut bytes).unwrap();
        let stack = Stack::parse(&bytes).unwrap();
        let labels: Vec<u32> = stack.entries.iter().map(|entry| entry.label()).collect();
        assert_eq!((&*labels, stack.payload), (&[100, 200, 300][..], &[9, 9][..]));
        assert_eq!(Stack::parse(&bytes[..11]), Err(Malformed::Truncated));
        assert_eq!(write(&[1, 2], 7, &mut bytes[..7]), Err(Malformed::Truncated));
    }

    #[test]
    fn a_stack_of_31_is_too_deep() {
        let mut bytes = [0; 31 * Entry::LEN];
        write(&[16; 30], 1, &mut bytes).unwrap();
        assert_eq!(depth(&bytes), Ok(30));
        write(&[16; 31], 1, &mut bytes).unwrap();
        assert_eq!(depth(&bytes), Err(Malformed::TooDeep));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(stack) = Stack::parse(&bytes) {
                let (last, others) = stack.entries.split_last().unwrap();
                prop_assert!(last.is_bottom() && others.iter().all(|entry| !entry.is_bottom()));
                prop_assert!(stack.entries.len() <= MAX_DEPTH);
                prop_assert_eq!(stack.entries.len() * Entry::LEN + stack.payload.len(), bytes.len());
            }
        }

        #[test]
        fn what_is_written_is_read(label in 0..=MAX_LABEL, class in 0..8u8, bottom: bool, ttl: u8) {
            let entry = Entry::new(label, class, bottom, ttl);
            prop_assert_eq!(Entry::new(label, !class, bottom, ttl).with_traffic_class(class), entry);
            let other = Entry::new(!label, class, bottom, !ttl);
            prop_assert_eq!(other.swapped(label, BOTTOM | TRAFFIC_CLASS, ttl), entry);
            prop_assert_eq!(other.swapped(label, BOTTOM, ttl), entry.with_traffic_class(0));
            prop_assert_eq!(
                (entry.label(), entry.traffic_class(), entry.is_bottom(), entry.ttl()),
                (label, class, bottom, ttl)
            );
        }
    }
}
