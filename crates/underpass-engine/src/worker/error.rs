//! Why a packet is refused, and what its sender hears.

use std::net::IpAddr;

use crate::drops::DropReason;

/// The error that the sender of a packet gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcmpError {
    /// The hop limit ran out.
    HopLimit,
    /// The packet is longer than the bytes that [`PacketMeta::extra`] says, from its IP header on.
    TooBig,
    /// There is no route.
    NoRoute,
    /// An `unreachable` route.
    Unreachable,
    /// A `prohibit` route.
    Prohibited,
    /// The neighbour does not answer.
    AddressUnreachable,
    /// Nothing listens at the port. The packet is quoted to the byte that [`PacketMeta::extra`] says, if it says one.
    Port,
    /// Nothing handles the protocol, or the next header that is named at the byte that
    /// [`PacketMeta::extra`] says.
    Protocol,
    /// The byte that [`PacketMeta::extra`] says is wrong.
    Header,
    /// The option at the byte that [`PacketMeta::extra`] says must not be passed over.
    Option,
    /// The upper-layer header must not follow an SRH here.
    UpperLayer,
    /// Segments Left of an SRH is beyond its list.
    SegmentsLeft,
    /// A first fragment does not have all headers.
    HeaderChain,
    /// Not all fragments came in time. The packet is quoted as with `Port`.
    Reassembly,
}

impl IcmpError {
    /// Every error, in the order of their numbers.
    pub(crate) const ALL: [Self; 14] = [
        Self::HopLimit,
        Self::TooBig,
        Self::NoRoute,
        Self::Unreachable,
        Self::Prohibited,
        Self::AddressUnreachable,
        Self::Port,
        Self::Protocol,
        Self::Header,
        Self::Option,
        Self::UpperLayer,
        Self::SegmentsLeft,
        Self::HeaderChain,
        Self::Reassembly,
    ];

    /// Type, code and argument in ICMPv6.
    pub(crate) fn v6(self, argument: u32) -> (u8, u8, u32) {
        match self {
            Self::HopLimit => (3, 0, 0),
            Self::TooBig => (2, 0, argument),
            // Linux answers for `unreachable` routes as for none.
            Self::NoRoute | Self::Unreachable => (1, 0, 0),
            Self::Prohibited => (1, 1, 0),
            Self::AddressUnreachable => (1, 3, 0),
            Self::Port => (1, 4, 0),
            Self::Header | Self::SegmentsLeft => (4, 0, argument),
            Self::Protocol => (4, 1, argument),
            Self::Option => (4, 2, argument),
            // RFC 7112 section 5.
            Self::HeaderChain => (4, 3, 0),
            // RFC 8986 section 10.3: SR Upper-layer Header IcmpError.
            Self::UpperLayer => (4, 4, argument),
            Self::Reassembly => (3, 1, 0),
        }
    }

    /// Whether the error to `sender` has room for an extension: RFC 4884 section 4.
    pub(crate) fn is_extensible(self, sender: IpAddr) -> bool {
        match sender {
            IpAddr::V4(_) => matches!(self.v4(0).0, 3 | 11 | 12),
            IpAddr::V6(_) => matches!(self.v6(0).0, 1 | 3),
        }
    }

    /// Type, code and argument in ICMP.
    pub(crate) fn v4(self, argument: u32) -> (u8, u8, u32) {
        match self {
            Self::HopLimit => (11, 0, 0),
            Self::TooBig => (3, 4, argument.min(0xffff)),
            Self::NoRoute => (3, 0, 0),
            Self::Unreachable | Self::AddressUnreachable => (3, 1, 0),
            Self::Prohibited => (3, 13, 0),
            Self::Protocol | Self::UpperLayer => (3, 2, 0),
            Self::Port => (3, 3, 0),
            Self::Reassembly => (11, 1, 0),
            // RFC 792: the pointer is the first of the four bytes.
            Self::Header | Self::SegmentsLeft | Self::Option | Self::HeaderChain => (12, 0, argument << 24),
        }
    }
}

/// Why a packet is dropped, and the error to its sender, in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketError(u32);

impl PacketError {
    /// Dropped for this reason, and no error is sent.
    #[inline(always)]
    pub(crate) const fn silent(reason: DropReason) -> Self {
        Self(reason as u32)
    }

    /// Dropped for this reason, with an error to its sender.
    #[inline(always)]
    pub(crate) const fn notify(reason: DropReason, error: IcmpError) -> Self {
        Self(reason as u32 | (error as u32 + 1) << 8)
    }

    pub(crate) fn reason(self) -> DropReason {
        DropReason::ALL.get(self.0 as usize & 0xff).copied().unwrap_or(DropReason::NoRoute)
    }

    pub(crate) fn error(self) -> Option<IcmpError> {
        IcmpError::ALL.get((self.0 as usize >> 8).checked_sub(1)?).copied()
    }
}
