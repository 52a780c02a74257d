//! Outer headers that are soon written: each in one cache line, with what of it depends on the packet.

use super::{
    ADDRESS, CLOSED, FRAGMENT, Form, GRE_SUM, HASH_LABEL, HOOKED, LABEL, LinkId, NextHopId, OVER_IPV6, PORT,
    REMOTE_SUM, SEQUENCE, TOS, TTL, UDP_SUM,
};

/// Outer headers that are written without a look at anything but the IP header of the packet inside, or its flow: over
/// IPv4, of a frequent length, without checksums and numbers. Each with what stands behind IPv4's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lean {
    Nothing,
    /// GRE without fields.
    Gre,
    /// UDP.
    Udp,
    /// UDP, GUE, GRE without fields.
    UdpGueGre,
}

/// What is open in headers that need more.
const NEEDS_MORE: u16 =
    CLOSED | HOOKED | ADDRESS | OVER_IPV6 | LABEL | HASH_LABEL | UDP_SUM | GRE_SUM | REMOTE_SUM | SEQUENCE;

impl Lean {
    fn of(form: &Form) -> Option<Self> {
        match (form.len, form.udp, form.gue, form.gre) {
            _ if form.has(NEEDS_MORE) => None,
            (20, 0, 0, 0) => Some(Self::Nothing),
            (24, 0, 0, 20) => Some(Self::Gre),
            (28, 20, 0, 0) => Some(Self::Udp),
            (36, 20, 28, 32) => Some(Self::UdpGueGre),
            _ => None,
        }
    }
}

/// The longest of them: IPv4, UDP, GUE, GRE.
const LONGEST: usize = 20 + 8 + 4 + 4;

/// An outer header that is soon written, for packets of one kind inside.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LeanForm {
    pub(crate) kind: Lean,
    /// Whether the UDP source port is that of the flow.
    pub(crate) by_flow: bool,
    /// The TOS, which is not in the header yet.
    pub(crate) tos: u8,
    /// Longest packet inside: the MTU of the device, as far as the length of the outer packet takes 16 bits.
    pub(crate) longest: u16,
    /// The sum over the words of the IPv4 header, as they lie in little-endian memory.
    pub(crate) sum: u16,
    /// Where outer packets go.
    pub(crate) next_hop: NextHopId,
    /// The device.
    pub(crate) link: LinkId,
    /// Which bits of the first three words of an IPv4 header, as they lie in little-endian memory, are those of the packet
    /// inside: of TOS, "don't fragment" and TTL.
    pub(crate) taken: [u32; 3],
    /// As on the wire, right-aligned; lengths, the checksum, and what the packet inside says, are 0.
    pub(crate) header: [u8; LONGEST],
}

const _: () = assert!(size_of::<LeanForm>() == 64);

impl LeanForm {
    /// `None`: the header needs more, or its next hop is not known.
    pub(super) fn new(form: &Form) -> Option<Self> {
        let taken = |bit, all| if form.has(bit) { all } else { 0 };
        Some(Self {
            kind: Lean::of(form)?,
            by_flow: form.has(PORT),
            tos: form.tos,
            longest: u16::try_from(form.mtu).unwrap_or(u16::MAX).min(u16::MAX - u16::from(form.len)),
            sum: form.sum,
            next_hop: form.next_hop?,
            link: form.link,
            taken: [taken(TOS, 0xfc << 8), taken(FRAGMENT, 0x40 << 16), taken(TTL, 0xff)],
            header: *form.template.last_chunk()?,
        })
    }
}
