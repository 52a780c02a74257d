//! IOAM insertion on routes: `RTA_ENCAP` of type `ioam6`. Linux: `net/ipv6/ioam6_iptunnel.c`.
//!
//! ```text
//! RTA_ENCAP, nested: IOAM6_IPTUNNEL_MODE (u8), DST and SRC (IPv6 addresses), FREQ_K and FREQ_N (u32),
//! IOAM6_IPTUNNEL_TRACE
//! |         Namespace-ID          | NodeLen |O|L|A|F|  RemLen     |   in network byte order
//! |                IOAM Trace-Type                |   Reserved    |
//! ```

use std::net::Ipv6Addr;

use libc::{AF_INET6, EINVAL, ERANGE};
use underpass_packet::ioam::{Header, MAX_DATA};
use underpass_packet::{FromBytes, IntoBytes};

use crate::RequestError;
use crate::attribute::{Attribute, Attributes, Type, Validate, policy};
use crate::reply::Reply;

const IOAM6_IPTUNNEL_MODE: u16 = 1;
const IOAM6_IPTUNNEL_DST: u16 = 2;
const IOAM6_IPTUNNEL_TRACE: u16 = 3;
const IOAM6_IPTUNNEL_FREQ_K: u16 = 4;
const IOAM6_IPTUNNEL_FREQ_N: u16 = 5;
const IOAM6_IPTUNNEL_SRC: u16 = 6;
const POLICY: [Type; 7] = policy(&[
    (IOAM6_IPTUNNEL_MODE, Type::Any),
    (IOAM6_IPTUNNEL_DST, Type::Any),
    (IOAM6_IPTUNNEL_TRACE, Type::Any),
    (IOAM6_IPTUNNEL_FREQ_K, Type::Any),
    (IOAM6_IPTUNNEL_FREQ_N, Type::Any),
    (IOAM6_IPTUNNEL_SRC, Type::Any),
]);

/// `IOAM6_IPTUNNEL_FREQ_MAX`.
const MAX_FREQUENCY: u32 = 1_000_000;

/// Where the option goes: `IOAM6_IPTUNNEL_MODE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Into the packet's own IPv6 header chain.
    Inline = 1,
    /// Into an outer IPv6 header.
    Encap = 2,
    /// `Inline` for packets of the router itself, `Encap` for those that it forwards.
    Auto = 3,
}

/// An IOAM insertion of a route.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ioam6 {
    /// Where the option goes.
    pub mode: Mode,
    /// `freq`: so many packets …
    pub frequency_k: u32,
    /// … of so many have the option inserted.
    pub frequency_n: u32,
    /// `tunsrc`: source of the outer header. `None`: that of the link.
    pub source: Option<Ipv6Addr>,
    /// `tundst`: destination of the outer header; `::` without one, as `inline` has none.
    pub destination: Ipv6Addr,
    /// The trace's header, its NodeLen as the trace type asks for.
    pub trace: Header,
}

const fn refuse(message: &'static str) -> RequestError {
    RequestError::new(EINVAL, message)
}

/// Checks the values as Linux's policy does.
fn check(attributes: &Attributes<'_, 7>) -> Result<(), RequestError> {
    for attribute in attributes.iter() {
        let len = attribute.value.len();
        let (fits, range) = match attribute.kind {
            IOAM6_IPTUNNEL_MODE => (len == 1, (1..=3).contains(&attribute.u8())),
            IOAM6_IPTUNNEL_FREQ_K | IOAM6_IPTUNNEL_FREQ_N => {
                (len == 4, (1..=MAX_FREQUENCY).contains(&attribute.u32()))
            }
            kind => {
                let wanted = if kind == IOAM6_IPTUNNEL_TRACE { Header::LEN } else { 16 };
                if len != wanted {
                    return Err(
                        RequestError::new(ERANGE, "binary attribute size out of range").at(attribute.offset)
                    );
                }
                (true, true)
            }
        };
        if !fits {
            return Err(attribute.invalid("invalid attribute length"));
        }
        if !range {
            return Err(RequestError::new(ERANGE, "integer out of range").at(attribute.offset));
        }
    }
    Ok(())
}

/// Linux: `ioam6_validate_trace_hdr`. What it changes of the header is NodeLen alone.
fn trace(value: &[u8]) -> Option<Header> {
    let (mut header, _) = Header::read_from_prefix(value).ok()?;
    let kind = header.trace_type();
    let asks = header.trace_type != [0; 3] || header.reserved != 0;
    let space = usize::from(header.rem_len()) * 4;
    if !asks || space == 0 || space > MAX_DATA || !kind.is_defined() {
        return None;
    }
    header.node_len_and_flags = kind.node_len() << 3 | header.node_len_and_flags & 7;
    Some(header)
}

impl Ioam6 {
    /// Reads an `RTA_ENCAP` of type `ioam6` on a route of an address family.
    ///
    /// # Errors
    /// As Linux's `ioam6_build_state`.
    pub fn parse(encap: &Attribute<'_>, family: u8) -> Result<Self, RequestError> {
        if i32::from(family) != AF_INET6 {
            return Err(RequestError::errno(EINVAL));
        }
        let attributes = encap.parse_nested(&POLICY, Validate::Strict)?;
        check(&attributes)?;
        let number = |kind| attributes.get(kind).map(|attribute: Attribute<'_>| attribute.u32());
        let (frequency_k, frequency_n) = match (number(IOAM6_IPTUNNEL_FREQ_K), number(IOAM6_IPTUNNEL_FREQ_N))
        {
            (None, None) => (1, 1),
            (Some(k), Some(n)) if k > n => return Err(refuse("freq: k > n is forbidden")),
            (Some(k), Some(n)) => (k, n),
            _ => return Err(refuse("freq: missing parameter")),
        };
        let mode = match attributes.get(IOAM6_IPTUNNEL_MODE).map(|mode| mode.u8()) {
            Some(2) => Mode::Encap,
            Some(3) => Mode::Auto,
            _ => Mode::Inline,
        };
        let source = attributes.get(IOAM6_IPTUNNEL_SRC);
        if source.is_some() && mode == Mode::Inline {
            return Err(refuse("no tunnel src expected with this mode"));
        }
        let destination = attributes.get(IOAM6_IPTUNNEL_DST);
        if destination.is_none() && mode != Mode::Inline {
            return Err(refuse("this mode needs a tunnel destination"));
        }
        let given = attributes.get(IOAM6_IPTUNNEL_TRACE).ok_or(refuse("missing trace"))?;
        let trace = trace(given.value).ok_or(given.invalid("invalid trace validation"))?;
        if let Some(source) = source.filter(|source| source.ipv6().is_unspecified()) {
            return Err(source.invalid("invalid tunnel source address"));
        }
        if let Some(destination) = destination.filter(|destination| destination.ipv6().is_unspecified()) {
            return Err(destination.invalid("invalid tunnel dest address"));
        }
        // Linux keeps that of `inline` but neither uses nor shows it.
        let destination = destination.filter(|_| mode != Mode::Inline);
        Ok(Self {
            mode,
            frequency_k,
            frequency_n,
            source: source.map(|source| source.ipv6()),
            destination: destination.map_or(Ipv6Addr::UNSPECIFIED, |destination| destination.ipv6()),
            trace,
        })
    }

    /// Writes what is inside `RTA_ENCAP`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.u32(IOAM6_IPTUNNEL_FREQ_K, self.frequency_k);
        reply.u32(IOAM6_IPTUNNEL_FREQ_N, self.frequency_n);
        reply.u8(IOAM6_IPTUNNEL_MODE, self.mode as u8);
        if self.mode != Mode::Inline {
            if let Some(source) = self.source {
                reply.attribute(IOAM6_IPTUNNEL_SRC, &source.octets());
            }
            reply.attribute(IOAM6_IPTUNNEL_DST, &self.destination.octets());
        }
        reply.attribute(IOAM6_IPTUNNEL_TRACE, self.trace.as_bytes());
    }

    /// Whether two are the same to Linux where routes are compared: it looks at the namespace alone of the
    /// trace. Linux: `ioam6_encap_cmp`.
    pub fn is_like(&self, other: &Self) -> bool {
        let compared = |this: &Self| {
            let Self { mode, frequency_k, frequency_n, source, destination, trace } = this;
            (*mode, *frequency_k, *frequency_n, *source, *destination, trace.namespace)
        };
        compared(self) == compared(other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encap::tests::{as_attribute, written};

    const FAMILY: u8 = AF_INET6 as u8;
    const TRACE: [u8; 8] = [0, 123, 0, 3, 0x80, 0, 0, 0];

    /// Attributes of these types and values.
    fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
        written(|reply| list.iter().for_each(|(kind, value)| reply.attribute(*kind, value)))
    }

    fn parse(list: &[(u16, &[u8])]) -> Result<Ioam6, RequestError> {
        Ioam6::parse(&as_attribute(&attributes(list)), FAMILY)
    }

    /// Attributes, and what Linux 6.12 answers: errno, text, the offset of the attribute that it names.
    type Case<'a> = (&'a [(u16, &'a [u8])], i32, &'a str, Option<u32>);

    #[test]
    fn refuses_what_linux_refuses() {
        let one = 1_u32.to_ne_bytes();
        let two = 2_u32.to_ne_bytes();
        let much = 1_000_001_u32.to_ne_bytes();
        let (trace, address, any) = ((3, &TRACE[..]), [0xfd; 16], [0; 16]);
        let bad: Vec<[u8; 8]> = [
            [0, 123, 0, 3, 0, 0, 0, 0],
            [0, 123, 0, 0, 0x80, 0, 0, 0],
            [0, 123, 0, 62, 0x80, 0, 0, 0],
            [0, 123, 0, 3, 0, 8, 0, 0],
            [0, 123, 0, 3, 0x80, 0, 4, 0],
            [0, 123, 0, 3, 0x80, 0, 1, 0],
        ]
        .into();
        let cases: &[Case<'_>] = &[
            (&[], EINVAL, "missing trace", None),
            (&[(1, &[2])], EINVAL, "this mode needs a tunnel destination", None),
            (&[(1, &[1])], EINVAL, "missing trace", None),
            (&[(4, &one), trace], EINVAL, "freq: missing parameter", None),
            (&[(5, &one), trace], EINVAL, "freq: missing parameter", None),
            (&[(4, &two), (5, &one), trace], EINVAL, "freq: k > n is forbidden", None),
            (&[(4, &any[..4]), (5, &one), trace], ERANGE, "integer out of range", Some(4)),
            (&[(4, &one), (5, &much), trace], ERANGE, "integer out of range", Some(12)),
            (&[(4, &[1]), (5, &one), trace], EINVAL, "invalid attribute length", Some(4)),
            (&[(1, &[0]), trace], ERANGE, "integer out of range", Some(4)),
            (&[(1, &[4]), trace], ERANGE, "integer out of range", Some(4)),
            (&[(1, &one), trace], EINVAL, "invalid attribute length", Some(4)),
            (&[(2, &address[..8]), trace], ERANGE, "binary attribute size out of range", Some(4)),
            (&[(3, &TRACE[..4])], ERANGE, "binary attribute size out of range", Some(4)),
            (&[(6, &address), trace], EINVAL, "no tunnel src expected with this mode", None),
            (
                &[(1, &[2]), (2, &address), (6, &any), trace],
                EINVAL,
                "invalid tunnel source address",
                Some(32),
            ),
            (&[(1, &[3]), (2, &any), trace], EINVAL, "invalid tunnel dest address", Some(12)),
            (&[(9, &any), trace], EINVAL, "Unknown attribute type", Some(4)),
            (&[(3, &bad[0])], EINVAL, "invalid trace validation", Some(4)),
            (&[(3, &bad[1])], EINVAL, "invalid trace validation", Some(4)),
            (&[(3, &bad[2])], EINVAL, "invalid trace validation", Some(4)),
            (&[(3, &bad[3])], EINVAL, "invalid trace validation", Some(4)),
            (&[(3, &bad[4])], EINVAL, "invalid trace validation", Some(4)),
            (&[(3, &bad[5])], EINVAL, "invalid trace validation", Some(4)),
        ];
        for (list, errno, text, offset) in cases {
            let error = parse(list).unwrap_err();
            assert_eq!(error.errno, *errno, "{text}: {list:?}");
            assert_eq!(error.message.as_deref(), Some(*text), "{list:?}");
            assert_eq!(error.offset, *offset, "{text}: {list:?}");
        }
        let error = Ioam6::parse(&as_attribute(&attributes(&[trace])), libc::AF_INET as u8).unwrap_err();
        assert_eq!((error.errno, error.message), (EINVAL, None));
    }

    #[test]
    fn takes_what_linux_takes() {
        let plain = parse(&[(3, &TRACE)]).unwrap();
        assert_eq!((plain.mode, plain.frequency_k, plain.frequency_n), (Mode::Inline, 1, 1));
        assert_eq!(plain.trace.node_len(), 1);
        // What is said of NodeLen does not count, the flags stay.
        let flags = parse(&[(3, &[0, 123, 0xff, 3, 0x80, 0, 0, 0])]).unwrap();
        assert_eq!(flags.trace.node_len_and_flags, 1 << 3 | 7);
        // No bit is set, but a byte is that Linux takes for more of them.
        assert!(parse(&[(3, &[0, 123, 0, 3, 0, 0, 0, 1])]).is_ok());
        assert!(parse(&[(3, &[0, 123, 0, 61, 0, 0, 2, 0])]).is_ok());
        assert!(parse(&[(2, &[0xfd; 16]), (3, &TRACE)]).unwrap().destination.is_unspecified());
    }

    fn any_ioam6() -> impl Strategy<Value = Ioam6> {
        let frequency = (1..=MAX_FREQUENCY).prop_flat_map(|n| (1..=n, Just(n)));
        let addresses = (any::<Option<u128>>(), any::<u128>());
        let trace = (any::<u16>(), 1_u8..=61, 1_u32..1 << 13);
        (0_usize..3, frequency, addresses, trace).prop_map(
            |(mode, frequency, (source, destination), trace)| {
                let mode = [Mode::Inline, Mode::Encap, Mode::Auto][mode];
                let tunnel = mode != Mode::Inline;
                let (namespace, rem_len, bits) = trace;
                // Twelve bits from the top, and bit 22.
                let [_, a, b, c] = (bits >> 1 << 12 | (bits & 1) << 1).to_be_bytes();
                let kind = underpass_packet::ioam::TraceType::new([a, b, c]);
                Ioam6 {
                    mode,
                    frequency_k: frequency.0,
                    frequency_n: frequency.1,
                    source: source.filter(|bits| tunnel && *bits != 0).map(Ipv6Addr::from_bits),
                    destination: Ipv6Addr::from_bits(if tunnel { destination.max(1) } else { 0 }),
                    trace: Header {
                        namespace: namespace.into(),
                        node_len_and_flags: kind.node_len() << 3,
                        rem_len_and_flag: rem_len,
                        trace_type: kind.bytes(),
                        reserved: 0,
                    },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn round_trip(ioam6 in any_ioam6()) {
            let bytes = written(|reply| ioam6.write(reply));
            prop_assert_eq!(Ioam6::parse(&as_attribute(&bytes), FAMILY), Ok(ioam6));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = Ioam6::parse(&as_attribute(&bytes), FAMILY);
        }
    }
}
