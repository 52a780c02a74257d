//! IPv4 and IPv6, as far as the fast path distinguishes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::{ethernet, protocol};

use crate::buffer::Packet;
use crate::lpm::Address;
use crate::path::{ipv4, ipv6};
use crate::tables::{InnerProtocol, LookupId, StoredNextHop};
use crate::worker::env::Env;
use crate::worker::fibs::{FibList, Fibs};
use crate::worker::rewrite::{ETHERNET, FIXED, FastVerdict, addresses, next_hop, next_hop_of, write_header};
use crate::worker::view::View;

/// A family of addresses, and of the packets that have them.
pub(crate) trait Family: Address + Into<u128> {
    /// Whether it is IPv6.
    const IPV6: bool;
    /// The unspecified address.
    const NOWHERE: Self;
    /// Of a frame with such a packet.
    const ETHERTYPE: u16;
    /// What a header says before such a packet.
    const PROTOCOL: u8;
    /// What it is to a tunnel that it goes into.
    const INSIDE: InnerProtocol;

    /// An address, if it is of the family.
    fn of_address(address: IpAddr) -> Option<Self>;

    /// The address.
    fn address(self) -> IpAddr;

    /// Writes it, in network byte order, over as many bytes.
    fn write(self, bytes: &mut [u8]);

    /// The source of a packet, and its destination.
    fn ends(bytes: &[u8]) -> Option<(Self, Self)>;

    /// The destination and the length of a sound packet, as [`ipv4::plain`] and [`ipv6::plain`] have it.
    /// `bits4`: which of the first bits of an IPv4 header count.
    fn validate(bytes: &[u8], bits4: u32) -> Option<(Self, usize)>;

    /// The length of such a packet if it is for this address, of which it is known that packets for it may be forwarded.
    fn validate_to(bytes: &[u8], target: Self, bits4: u32) -> Option<usize>;

    /// Takes one from the TTL or hop limit: what is left. `None`: it would be 0, and is as it was.
    fn lower(bytes: &mut [u8]) -> Option<u8>;

    /// The TOS or traffic class of a packet by its second byte; in the lowest two bits ECN, above them as it comes.
    fn class(second: u8) -> u8;

    /// The first three words of an IPv4 header that says what the header of a packet says, as they lie in little-endian
    /// memory, as far as TOS, flags and TTL go; `left` is the TTL.
    fn words(header: &[u8; 12], left: u8) -> [u32; 3];

    /// The tables that what came in is looked up in.
    fn chain<'a>(env: &Env<'_, 'a>) -> Option<FibList<'a, Self>>;

    /// The tables of a look-up, if they are few.
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>>;

    /// The same if they are near besides.
    fn near<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>>;
}

impl Family for u32 {
    const IPV6: bool = false;
    const NOWHERE: Self = 0;
    const ETHERTYPE: u16 = ethernet::IPV4;
    const PROTOCOL: u8 = protocol::IPV4;
    const INSIDE: InnerProtocol = InnerProtocol::Ip4;

    fn of_address(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address.to_bits()),
            IpAddr::V6(_) => None,
        }
    }

    fn address(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_be_bytes());
    }

    #[inline(always)]
    fn ends(bytes: &[u8]) -> Option<(Self, Self)> {
        let [.., a, b, c, d, e, f, g, h] = *bytes.first_chunk::<{ underpass_packet::ipv4::Header::LEN }>()?;
        Some((Self::from_be_bytes([a, b, c, d]), Self::from_be_bytes([e, f, g, h])))
    }

    #[inline(always)]
    fn validate(bytes: &[u8], bits4: u32) -> Option<(Self, usize)> {
        ipv4::plain(bytes, bits4)
    }

    #[inline(always)]
    fn validate_to(bytes: &[u8], target: Self, bits4: u32) -> Option<usize> {
        ipv4::plain(bytes, bits4).filter(|(found, _)| *found == target).map(|(_, len)| len)
    }

    #[inline(always)]
    fn lower(bytes: &mut [u8]) -> Option<u8> {
        crate::path::ipv4::lower_ttl(bytes)
    }

    #[inline(always)]
    fn class(second: u8) -> u8 {
        second
    }

    #[inline(always)]
    fn words(header: &[u8; 12], left: u8) -> [u32; 3] {
        let [a, b, c, d, e, f, g, h, ..] = *header;
        [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]), left.into()]
    }

    #[inline(always)]
    fn chain<'a>(env: &Env<'_, 'a>) -> Option<FibList<'a, Self>> {
        env.fib4
    }

    #[inline(always)]
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>> {
        fibs.fib4(view, lookup)
    }

    #[inline(always)]
    fn near<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>> {
        fibs.near4(view, lookup)
    }
}

impl Family for u128 {
    const IPV6: bool = true;
    const NOWHERE: Self = 0;
    const ETHERTYPE: u16 = ethernet::IPV6;
    const PROTOCOL: u8 = protocol::IPV6;
    const INSIDE: InnerProtocol = InnerProtocol::Ip6;

    fn of_address(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(address.to_bits()),
            IpAddr::V4(_) => None,
        }
    }

    fn address(self) -> IpAddr {
        Ipv6Addr::from_bits(self).into()
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_be_bytes());
    }

    #[inline(always)]
    fn ends(bytes: &[u8]) -> Option<(Self, Self)> {
        let ([_, _, _, _, _, _, _, _, source @ ..], destination) =
            bytes.first_chunk::<FIXED>()?.split_last_chunk::<16>()?
        else {
            return None;
        };
        Some((Self::from_be_bytes(*source.first_chunk()?), Self::from_be_bytes(*destination)))
    }

    #[inline(always)]
    fn validate(bytes: &[u8], _: u32) -> Option<(Self, usize)> {
        ipv6::plain(bytes)
    }

    #[inline(always)]
    fn validate_to(bytes: &[u8], target: Self, _: u32) -> Option<usize> {
        ipv6::plain_to(bytes, &target.to_be_bytes())
    }

    #[inline(always)]
    fn lower(bytes: &mut [u8]) -> Option<u8> {
        crate::path::ipv6::lower_hop_limit(bytes)
    }

    #[inline(always)]
    fn class(second: u8) -> u8 {
        second >> 4
    }

    #[inline(always)]
    fn words([first, second, ..]: &[u8; 12], left: u8) -> [u32; 3] {
        [u32::from(first << 4 | second >> 4) << 8, 0, left.into()]
    }

    #[inline(always)]
    fn chain<'a>(env: &Env<'_, 'a>) -> Option<FibList<'a, Self>> {
        env.fib6
    }

    #[inline(always)]
    fn fib<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>> {
        fibs.fib6(view, lookup)
    }

    #[inline(always)]
    fn near<'a>(fibs: &mut Fibs<'a>, view: &View<'a>, lookup: LookupId) -> Option<FibList<'a, Self>> {
        fibs.near6(view, lookup)
    }
}

/// Where packets go, found once for packets in a row.
#[derive(Clone, Copy)]
pub(crate) enum To<'a, A> {
    /// All to this next hop.
    NextHop(&'a StoredNextHop),
    /// Where their destinations lead, in tables that are near.
    Table(FibList<'a, A>),
}

impl<'a, A: Family> To<'a, A> {
    #[inline(always)]
    pub(crate) fn table(view: &View<'a>, fibs: &mut Fibs<'a>, lookup: LookupId) -> Option<Self> {
        A::near(fibs, view, lookup).map(Self::Table)
    }

    #[inline(always)]
    pub(crate) fn next_hop(&self, view: &View<'a>, target: A) -> Option<&'a StoredNextHop> {
        match self {
            Self::NextHop(next_hop) => Some(next_hop),
            Self::Table(chain) => next_hop(view, chain.lookup(target, view.guard)),
        }
    }

    /// The same, also by a multipath route.
    #[inline(always)]
    pub(crate) fn next_hop_of(&self, view: &View<'a>, target: A, packet: &[u8]) -> Option<&'a StoredNextHop> {
        match self {
            Self::NextHop(next_hop) => Some(next_hop),
            Self::Table(chain) => next_hop_of(view, chain.lookup(target, view.guard), packet),
        }
    }
}

/// Forwards the packet of `len` bytes that lies `at` bytes behind the first in a frame, of which the rest is cut off.
#[inline(always)]
pub(crate) fn forward_inner<A: Family>(
    packet: &mut Packet,
    (at, len): (usize, usize),
    next_hop: &StoredNextHop,
) -> Option<FastVerdict> {
    let mac = addresses(next_hop, len)?;
    // The Ethernet header right before the packet: `at` bytes behind the old one.
    let (head, bytes) = packet.bytes_mut().get_mut(at..)?.split_first_chunk_mut::<ETHERNET>()?;
    A::lower(bytes)?;
    write_header(head, mac, A::ETHERTYPE);
    packet.narrow(at, ETHERNET + len);
    Some((next_hop.port, (ETHERNET + len) as u32))
}
