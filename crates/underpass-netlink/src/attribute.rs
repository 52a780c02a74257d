//! Attributes of a request, checked against a policy. Linux: `lib/nlattr.c`.
//!
//! ```text
//! |  length (with this header)    | N|B|           type           |
//! |  value, padded to 4 bytes                                     |
//! ```
//!
//! N: `NLA_F_NESTED`, B: `NLA_F_NET_BYTEORDER`; both in host byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{AF_INET, AF_INET6, EINVAL, EOPNOTSUPP, ERANGE};
use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator};

use crate::RequestError;

/// What a policy asks of an attribute's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// Linux does not know the attribute: ignored, or refused where the request is checked strictly.
    Unknown,
    /// Any value.
    Any,
    /// No value.
    Flag,
    /// At least 1 byte.
    U8,
    /// At least 2 bytes.
    U16,
    /// At least 4 bytes.
    U32,
    /// At least 8 bytes.
    U64,
    /// A string of at most so many bytes, its NUL not counted.
    String(u16),
    /// At least so many bytes.
    AtLeast(u16),
    /// At most so many bytes.
    AtMost(u16),
    /// So many bytes.
    Exact(u16),
    /// Attributes, or nothing.
    Nested,
    /// Linux refuses the attribute here.
    Rejected,
    /// Linux acts on the attribute and this router does not: refused with `EOPNOTSUPP`.
    Unsupported,
}

/// How strictly attributes are validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validate {
    /// `NL_VALIDATE_LIBERAL`: unknown types and trailing bytes are ignored.
    Liberal,
    /// `NL_VALIDATE_DEPRECATED_STRICT`: they are errors.
    Strict,
    /// `NL_VALIDATE_STRICT`: so are other lengths than those of numbers, and nested attributes without `NLA_F_NESTED`.
    Full,
}

/// Makes a policy of `N` types: those listed, all others [`Type::Unknown`].
#[expect(
    clippy::indexing_slicing,
    reason = "for constants: an index beyond the end is an error of the compiler"
)]
pub const fn policy<const N: usize>(types: &[(u16, Type)]) -> [Type; N] {
    let mut policy = [Type::Unknown; N];
    let mut i = 0;
    while i < types.len() {
        policy[types[i].0 as usize] = types[i].1;
        i += 1;
    }
    policy
}

/// One attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute<'a> {
    /// Its type, without the two flag bits.
    pub kind: u16,
    /// Offset of its header from the netlink header, in bytes.
    pub offset: u32,
    /// Its value, without padding.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.iter_mut().zip(self.value).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// The value as a byte; 0 if it is empty.
    pub fn u8(&self) -> u8 {
        self.bytes::<1>()[0]
    }

    /// The first 2 bytes in host byte order, missing ones taken as 0, as in all that follow.
    pub fn u16(&self) -> u16 {
        u16::from_ne_bytes(self.bytes())
    }

    /// The first 2 bytes in network byte order.
    pub fn be16(&self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    /// The first 4 bytes in host byte order.
    pub fn u32(&self) -> u32 {
        u32::from_ne_bytes(self.bytes())
    }

    /// The first 4 bytes in network byte order.
    pub fn be32(&self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    /// The first 8 bytes in host byte order.
    pub fn u64(&self) -> u64 {
        u64::from_ne_bytes(self.bytes())
    }

    /// The first 4 bytes as an IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.bytes::<4>())
    }

    /// The first 16 bytes as an IPv6 address.
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.bytes::<16>())
    }

    /// The value as an address of `family`; `None` if the value is shorter than one, or the family is
    /// neither `AF_INET` nor `AF_INET6`.
    pub fn address(&self, family: u8) -> Option<IpAddr> {
        match i32::from(family) {
            AF_INET if self.value.len() >= 4 => Some(self.ipv4().into()),
            AF_INET6 if self.value.len() >= 16 => Some(self.ipv6().into()),
            _ => None,
        }
    }

    /// The bytes up to the first NUL, as text; other than UTF-8 is replaced.
    pub fn text(&self) -> String {
        let text = self.value.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    /// The attributes inside, with no policy, in their order; ends at the first malformed one.
    pub fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        iterate(self.value, self.offset as usize + NLA_HEADER_SIZE)
    }

    /// The attributes inside, checked against `policy`.
    ///
    /// # Errors
    /// As [`Attributes::parse`].
    pub fn parse_nested<const N: usize>(
        &self,
        policy: &[Type; N],
        validate: Validate,
    ) -> Result<Attributes<'a, N>, RequestError> {
        Attributes::parse(policy, self.value, self.offset as usize + NLA_HEADER_SIZE, validate)
    }

    /// `EINVAL` at this attribute, with a text.
    pub const fn invalid(&self, message: &'static str) -> RequestError {
        RequestError::new(EINVAL, message).at(self.offset)
    }

    /// What is checked before the rest where everything is, of `known` types. Linux: `validate_nla`.
    fn check_form(&self, wanted: Type, known: usize, is_nested: bool) -> Result<(), RequestError> {
        let len = match wanted {
            Type::U8 => Some(1),
            Type::U16 => Some(2),
            Type::U32 => Some(4),
            Type::U64 => Some(8),
            _ => None,
        };
        if len.is_some_and(|len| len != self.value.len()) {
            return Err(self.invalid("invalid attribute length"));
        }
        match wanted {
            Type::Nested if !is_nested => Err(self.invalid("NLA_F_NESTED is missing")),
            Type::Unknown if (1..known).contains(&usize::from(self.kind)) => {
                Err(self.invalid("Unsupported attribute"))
            }
            Type::Nested | Type::Unknown | Type::Any => Ok(()),
            _ if is_nested => Err(self.invalid("NLA_F_NESTED not expected")),
            Type::Exact(exact) if self.value.len() != usize::from(exact) => {
                Err(RequestError::new(ERANGE, "binary attribute size out of range").at(self.offset))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, wanted: Type, validate: Validate) -> Result<(), RequestError> {
        let len = self.value.len();
        let fits = match wanted {
            Type::Unknown if validate != Validate::Liberal => {
                return Err(self.invalid("Unknown attribute type"));
            }
            Type::Unsupported => {
                return Err(RequestError::new(EOPNOTSUPP, "Attribute is not supported by this router")
                    .at(self.offset));
            }
            Type::Rejected => return Err(self.invalid("Attribute failed policy validation")),
            Type::Unknown | Type::Any => true,
            Type::Flag => len == 0,
            Type::U8 => len >= 1,
            Type::U16 => len >= 2,
            Type::U32 => len >= 4,
            Type::U64 => len >= 8,
            Type::AtLeast(min) => len >= usize::from(min),
            Type::AtMost(max) => len <= usize::from(max),
            Type::Exact(exact) => len == usize::from(exact),
            Type::Nested => len == 0 || len >= NLA_HEADER_SIZE,
            Type::String(max) => {
                let text = self.value.strip_suffix(&[0]).unwrap_or(self.value);
                len >= 1 && text.len() <= usize::from(max)
            }
        };
        if fits {
            return Ok(());
        }
        let errno = if matches!(wanted, Type::Exact(_)) { EINVAL } else { ERANGE };
        Err(RequestError::new(errno, "Attribute failed policy validation").at(self.offset))
    }
}

/// The attributes of a message by their type; of several of one type the last counts.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a, const N: usize>([Option<Attribute<'a>>; N]);

impl<'a, const N: usize> Attributes<'a, N> {
    /// Reads the attributes in `bytes`, which start `base` bytes after the netlink header.
    ///
    /// # Errors
    /// The first attribute that breaks the policy, with the errno and text of Linux's
    /// `__nla_validate_parse`.
    pub fn parse(
        policy: &[Type; N],
        bytes: &'a [u8],
        base: usize,
        validate: Validate,
    ) -> Result<Self, RequestError> {
        let mut found = [None; N];
        let mut end = 0;
        for attribute in iterate(bytes, base) {
            let kind = usize::from(attribute.kind);
            // Type 0 is nobody's in most families: Linux skips it where the check is liberal.
            let wanted = policy.get(kind).copied().unwrap_or(Type::Unknown);
            if validate == Validate::Full {
                let kind =
                    bytes.get(attribute.offset as usize - base + 2..).and_then(|rest| rest.first_chunk());
                let is_nested = kind.is_some_and(|kind| u16::from_ne_bytes(*kind) & NLA_F_NESTED != 0);
                attribute.check_form(wanted, N, is_nested)?;
            }
            attribute.check(wanted, validate)?;
            if let Some(slot) = found.get_mut(kind) {
                *slot = Some(attribute);
            }
            end = attribute.offset as usize - base
                + (NLA_HEADER_SIZE + attribute.value.len()).next_multiple_of(4);
        }
        if validate != Validate::Liberal && end < bytes.len() {
            return Err(RequestError::new(EINVAL, "bytes leftover after parsing attributes"));
        }
        Ok(Self(found))
    }

    /// The attribute of a type, if the message has it.
    #[inline]
    pub fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    /// Those that are there, in the order of their types.
    pub fn iter(&self) -> impl Iterator<Item = Attribute<'a>> {
        self.0.iter().flatten().copied()
    }
}

/// The attributes in `bytes`, which start `base` bytes after the netlink header, up to a malformed one.
pub(crate) fn iterate<'a>(bytes: &'a [u8], base: usize) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
    let mut position = 0;
    NlasIterator::new(bytes).map_while(move |attribute| {
        // An error ends the list, as in `nla_for_each_attr`.
        let attribute = attribute.ok()?;
        let (kind, len) = (attribute.kind(), usize::from(attribute.length()));
        let value = bytes.get(position + NLA_HEADER_SIZE..position + len)?;
        let offset = (base + position) as u32;
        position += len.next_multiple_of(4);
        Some(Attribute { kind, offset, value })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: [Type; 4] = policy(&[(1, Type::U32), (2, Type::String(4)), (3, Type::Unsupported)]);

    fn parse(bytes: &[u8], validate: Validate) -> Result<Attributes<'_, 4>, RequestError> {
        Attributes::parse(&POLICY, bytes, 16, validate)
    }

    #[test]
    fn reads_values_and_knows_offsets() {
        let bytes = [8, 0, 1, 0, 1, 0, 0, 0, 7, 0, 2, 0, b'l', b'o', 0, 0];
        let attributes = parse(&bytes, Validate::Strict).unwrap();
        assert_eq!(attributes.get(1).unwrap().u32(), 1);
        assert_eq!(attributes.get(2).unwrap().text(), "lo");
        assert_eq!(attributes.get(2).unwrap().offset, 24);
        assert!(attributes.get(3).is_none() && attributes.get(99).is_none());
    }

    #[test]
    fn refuses_what_the_policy_forbids() {
        let short = [6, 0, 1, 0, 1, 0, 0, 0];
        assert_eq!(parse(&short, Validate::Liberal).unwrap_err().errno, ERANGE);
        let long = [9, 0, 2, 0, 1, 1, 1, 1, 1, 0, 0, 0];
        assert_eq!(parse(&long, Validate::Liberal).unwrap_err().errno, ERANGE);
        let unsupported = [4, 0, 3, 0];
        assert_eq!(parse(&unsupported, Validate::Liberal).unwrap_err().errno, EOPNOTSUPP);
        let unknown = [4, 0, 9, 0];
        assert!(parse(&unknown, Validate::Liberal).is_ok());
        assert_eq!(parse(&unknown, Validate::Strict).unwrap_err().offset, Some(16));
        let leftover = [4, 0, 2, 0x80, 1];
        assert_eq!(parse(&leftover, Validate::Liberal).unwrap_err().errno, ERANGE);
        assert_eq!(parse(&[8, 0, 1, 0, 1, 0, 0, 0, 5], Validate::Strict).unwrap_err().errno, EINVAL);
    }

    /// Linux 6.12, of `RTM_NEWVLAN`.
    #[test]
    fn refuses_other_forms() {
        const POLICY: [Type; 4] = policy(&[(1, Type::U32), (2, Type::Nested), (3, Type::Exact(2))]);
        let full = |bytes: &[u8]| {
            let error = Attributes::parse(&POLICY, bytes, 16, Validate::Full).err();
            error.map(|error| (error.errno, error.message.unwrap_or_default().into_owned()))
        };
        let refused = |errno, text: &str| Some((errno, text.to_owned()));
        assert_eq!(full(&[8, 0, 1, 0, 1, 0, 0, 0, 4, 0, 2, 0x80, 6, 0, 3, 0, 1, 1, 0, 0]), None);
        assert_eq!(full(&[12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]), refused(EINVAL, "invalid attribute length"));
        assert_eq!(full(&[8, 0, 1, 0x80, 1, 0, 0, 0]), refused(EINVAL, "NLA_F_NESTED not expected"));
        assert_eq!(full(&[4, 0, 2, 0]), refused(EINVAL, "NLA_F_NESTED is missing"));
        assert_eq!(full(&[5, 0, 3, 0, 1, 0, 0, 0]), refused(ERANGE, "binary attribute size out of range"));
        assert_eq!(full(&[4, 0, 0, 0]), refused(EINVAL, "Unknown attribute type"));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            for validate in [Validate::Liberal, Validate::Strict, Validate::Full] {
                if let Ok(attributes) = parse(&bytes, validate) {
                    for a in attributes.iter() {
                        let _ = (a.u64(), a.text(), a.address(10), a.nested().count());
                    }
                }
            }
        }
    }
}
