//! RPL source routing header, RFC 6554 section 3.
//!
//! ```text
//! |  Next Header  |  Hdr Ext Len  | Routing Type=3| Segments Left |
//! | CmprI | CmprE |  Pad  |               Reserved                |
//! |        Addresses[1..n-1], without their first CmprI bytes     |
//! |        Addresses[n], without its first CmprE bytes            |
//! |                   Pad bytes of padding                        |
//! ```
//!
//! The bytes that an address lacks are those of the packet's destination. Addresses are counted from 0 here.

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

/// Routing type of an RPL source routing header.
pub const ROUTING_TYPE: u8 = 3;
/// Most addresses that a header is read or written with: as many as fit uncompressed.
pub const MAX_ADDRESSES: usize = 127;
/// Where Segments Left lies in the header.
pub const SEGMENTS_LEFT_OFFSET: usize = 3;

/// Which rule the bytes break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Malformed {
    /// Shorter than Hdr Ext Len says, or than 8 bytes.
    Truncated,
    /// The routing type is not 3.
    RoutingType,
    /// What Hdr Ext Len, Pad, CmprI and CmprE say of the addresses' length is no whole number of them, or
    /// more than [`MAX_ADDRESSES`].
    Addresses,
    /// Segments Left is above the number of addresses.
    SegmentsLeft,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    next_header: u8,
    hdr_ext_len: u8,
    routing_type: u8,
    segments_left: u8,
    /// CmprI and CmprE.
    compressed: u8,
    /// Pad in its upper half.
    pad: u8,
    reserved: U16,
}

/// Length of the part before the addresses, in bytes.
pub const FIXED_LEN: usize = size_of::<Fixed>();

/// How many bytes the addresses of a header have in common with its packet's destination, at most.
const MAX_COMPRESSED: u32 = 15;

/// How many of their first bytes two addresses have in common, as far as a header can say.
#[inline]
fn common(a: u128, b: u128) -> u8 {
    ((a ^ b).leading_zeros() / 8).min(MAX_COMPRESSED) as u8
}

/// An RPL source routing header whose lengths agree with each other and with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rpl<'a> {
    fixed: &'a Fixed,
    /// All but the last, one after the other.
    intermediate: &'a [u8],
    last: &'a [u8],
}

impl<'a> Rpl<'a> {
    /// Reads the routing header at the start of `bytes`; `bytes` may go on after it.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, rest) = Fixed::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if fixed.routing_type != ROUTING_TYPE {
            return Err(Malformed::RoutingType);
        }
        let len = usize::from(fixed.hdr_ext_len) * 8;
        let body = rest.get(..len).ok_or(Malformed::Truncated)?;
        // RFC 6554 section 4.2: n = (((Hdr Ext Len * 8) - Pad - (16 - CmprE)) / (16 - CmprI)) + 1
        let addresses = len.checked_sub(usize::from(fixed.pad >> 4)).ok_or(Malformed::Addresses)?;
        let last_len = 16 - usize::from(fixed.compressed & 0xf);
        let intermediate_len = addresses.checked_sub(last_len).ok_or(Malformed::Addresses)?;
        let each = 16 - usize::from(fixed.compressed >> 4);
        if !intermediate_len.is_multiple_of(each) || intermediate_len / each >= MAX_ADDRESSES {
            return Err(Malformed::Addresses);
        }
        if usize::from(fixed.segments_left) > intermediate_len / each + 1 {
            return Err(Malformed::SegmentsLeft);
        }
        let (intermediate, rest) = body.split_at_checked(intermediate_len).ok_or(Malformed::Addresses)?;
        let last = rest.get(..last_len).ok_or(Malformed::Addresses)?;
        Ok(Self { fixed, intermediate, last })
    }

    /// Length of the header, padding included, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        FIXED_LEN + usize::from(self.fixed.hdr_ext_len) * 8
    }

    /// What follows the header, a number of [`crate::protocol`].
    pub fn next_header(&self) -> u8 {
        self.fixed.next_header
    }

    /// How many addresses are yet to be visited after the current destination.
    pub fn segments_left(&self) -> u8 {
        self.fixed.segments_left
    }

    /// How many bytes all addresses but the last have in common with the destination: CmprI.
    pub fn compressed(&self) -> u8 {
        self.fixed.compressed >> 4
    }

    /// How many bytes the last address has in common with the destination: CmprE.
    pub fn last_compressed(&self) -> u8 {
        self.fixed.compressed & 0xf
    }

    /// How many addresses there are, at least 1.
    pub fn count(&self) -> usize {
        self.intermediate.len() / (16 - usize::from(self.compressed())) + 1
    }

    /// Address `index`, counted from 0, in a packet to `destination`.
    pub fn address(&self, index: usize, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let len = 16 - usize::from(self.compressed());
        let bytes = match index.checked_sub(self.intermediate.len() / len) {
            None => self.intermediate.get(index * len..(index + 1) * len)?,
            Some(0) => self.last,
            Some(_) => return None,
        };
        let mut address = destination.octets();
        address.get_mut(16 - bytes.len()..)?.copy_from_slice(bytes);
        Some(Ipv6Addr::from_octets(address))
    }

    /// All addresses, in the order in which they are visited.
    pub fn addresses(&self, destination: Ipv6Addr) -> impl Iterator<Item = Ipv6Addr> + '_ {
        (0..self.count()).filter_map(move |index| self.address(index, destination))
    }
}

/// Why a header cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unbuildable {
    /// There is no address.
    NoAddresses,
    /// There are more than [`MAX_ADDRESSES`].
    TooLong,
    /// The bytes to write to are too few.
    NoRoom,
}

/// A header to be written, compressed as far as it can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builder<'a> {
    /// What follows the header.
    pub next_header: u8,
    /// How many of the addresses are yet to be visited.
    pub segments_left: u8,
    /// The packet's destination.
    pub destination: Ipv6Addr,
    /// The addresses, at least 1.
    pub addresses: &'a [Ipv6Addr],
}

impl Builder<'_> {
    /// Writes the header to the start of `bytes` and returns its length.
    ///
    /// # Errors
    /// See [`Unbuildable`].
    pub fn write(&self, bytes: &mut [u8]) -> Result<usize, Unbuildable> {
        let (last, intermediate) = self.addresses.split_last().ok_or(Unbuildable::NoAddresses)?;
        let open = self.write_open(intermediate, bytes)?;
        let last = Last::new(open, self.destination.to_bits(), last.to_bits());
        last.write(bytes, self.next_header).ok_or(Unbuildable::NoRoom)?;
        Ok(last.header_len())
    }

    /// Writes what does not depend on the last address, for [`Last`] to complete, and returns its length.
    ///
    /// # Errors
    /// See [`Unbuildable`].
    pub fn write_without_last(&self, bytes: &mut [u8]) -> Result<usize, Unbuildable> {
        let (_, intermediate) = self.addresses.split_last().ok_or(Unbuildable::NoAddresses)?;
        self.write_open(intermediate, bytes)
    }

    fn write_open(&self, intermediate: &[Ipv6Addr], bytes: &mut [u8]) -> Result<usize, Unbuildable> {
        if intermediate.len() >= MAX_ADDRESSES {
            return Err(Unbuildable::TooLong);
        }
        let destination = self.destination.to_bits();
        let compressed = intermediate.iter().map(|address| common(destination, address.to_bits()));
        // Linux says 15 where there are none, too.
        let compressed = compressed.min().unwrap_or(MAX_COMPRESSED as u8);
        let len = 16 - usize::from(compressed);
        let (fixed, rest) = Fixed::mut_from_prefix(bytes).map_err(|_| Unbuildable::NoRoom)?;
        let places = rest.get_mut(..intermediate.len() * len).ok_or(Unbuildable::NoRoom)?;
        *fixed = Fixed {
            next_header: self.next_header,
            hdr_ext_len: 0,
            routing_type: ROUTING_TYPE,
            segments_left: self.segments_left,
            compressed: compressed << 4,
            pad: 0,
            reserved: U16::ZERO,
        };
        for (place, address) in places.chunks_exact_mut(len).zip(intermediate) {
            place.copy_from_slice(&address.octets()[usize::from(compressed)..]);
        }
        Ok(FIXED_LEN + intermediate.len() * len)
    }
}

/// What completes a header that lacks its last address ([`Builder::write_without_last`]): that of a packet whose
/// own destination becomes the last address is not known before it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Last {
    address: u128,
    /// Where the address begins and ends.
    start: usize,
    end: usize,
    compressed: u8,
}

impl Last {
    /// The last address, behind `open` bytes of header, in a packet to `destination`.
    #[inline(always)]
    pub fn new(open: usize, destination: u128, address: u128) -> Self {
        let compressed = common(destination, address);
        Self { address, start: open, end: open + 16 - usize::from(compressed), compressed }
    }

    /// Length of the whole header, a multiple of 8 bytes.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        self.end.next_multiple_of(8)
    }

    /// Completes the header at the start of `bytes`. `None`: the bytes end before the header, or it is longer than
    /// Hdr Ext Len can say.
    #[inline(always)]
    pub fn write(&self, bytes: &mut [u8], next_header: u8) -> Option<()> {
        let len = self.header_len();
        let header = bytes.get_mut(..len)?;
        let room = header.get_mut(self.start..)?;
        room.fill(0);
        room.get_mut(..self.end - self.start)?
            .copy_from_slice(self.address.to_be_bytes().get(usize::from(self.compressed)..)?);
        let (fixed, _) = Fixed::mut_from_prefix(header).ok()?;
        fixed.next_header = next_header;
        fixed.hdr_ext_len = u8::try_from(len / 8 - 1).ok()?;
        fixed.compressed |= self.compressed;
        fixed.pad = ((len - self.end) as u8) << 4;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{protocol, testing::hex};

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// Linux 6.12: `ip -6 route add fd80::/64 encap rpl segs fd80::3,fd80::2,fd80::1 dev p1`, a UDP packet to
    /// fd80::9.
    const COMPRESSED: &str = "1101 0303 ff50 0000 02 03 09 0000000000";

    #[test]
    fn header_of_linux() {
        let bytes = hex(COMPRESSED);
        let rpl = Rpl::parse(&bytes).unwrap();
        assert_eq!((rpl.len(), rpl.next_header(), rpl.segments_left()), (16, protocol::UDP, 3));
        assert_eq!((rpl.compressed(), rpl.last_compressed(), rpl.count()), (15, 15, 3));
        let to = address("fd80::1");
        let all: Vec<_> = rpl.addresses(to).collect();
        assert_eq!(all, ["fd80::2", "fd80::3", "fd80::9"].map(address));
        assert_eq!(rpl.address(3, to), None);
        let mut again = [0xaa; 24];
        let builder = Builder { next_header: 17, segments_left: 3, destination: to, addresses: &all };
        assert_eq!(builder.write(&mut again), Ok(16));
        assert_eq!(again[..16], bytes);
    }

    /// RFC 6554 section 3: the last address may be compressed less than the others.
    #[test]
    fn last_address_apart() {
        let addresses = ["fd80::2", "fd80::3", "2001:db8::9"].map(address);
        let builder = Builder {
            next_header: 6,
            segments_left: 2,
            destination: address("fd80::1"),
            addresses: &addresses,
        };
        let mut bytes = [0; 64];
        assert_eq!(builder.write(&mut bytes), Ok(32));
        let expected = "0603 0302 f060 0000 02 03 20010db8000000000000000000000009 000000000000";
        assert_eq!(bytes[..32], hex(expected));
    }

    /// RFC 6554 section 4.2: how n follows from the lengths.
    #[test]
    fn lengths_that_contradict_each_other() {
        let good = hex(COMPRESSED);
        for (at, value, wrong) in [
            (1, 2, Malformed::Truncated),
            (2, 4, Malformed::RoutingType),
            (1, 0, Malformed::Addresses),
            (3, 4, Malformed::SegmentsLeft),
            (4, 0xf0, Malformed::Addresses), // the last address alone is longer
            (4, 0x7f, Malformed::Addresses), // 2 bytes are no whole number of 9
            (5, 0xf0, Malformed::Addresses), // more padding than bytes
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Rpl::parse(&bad), Err(wrong), "byte {at} = {value:#x}");
        }
        for len in 0..good.len() {
            assert_eq!(Rpl::parse(&good[..len]), Err(Malformed::Truncated));
        }
        // 128 addresses of a byte each.
        let mut many = [&[17, 16, 3, 1, 0xff, 0, 0, 0][..], &[7; 128]].concat();
        assert_eq!(Rpl::parse(&many), Err(Malformed::Addresses));
        many[5] = 0x10;
        assert_eq!(Rpl::parse(&many).unwrap().count(), 127);
    }

    #[test]
    fn too_many_and_none() {
        let mut bytes = [0; 4096];
        let builder =
            |addresses| Builder { next_header: 0, segments_left: 0, destination: address("::"), addresses };
        let many = vec![address("ff00::"); 128];
        assert_eq!(builder(&many).write(&mut bytes), Err(Unbuildable::TooLong));
        assert_eq!(builder(&[]).write(&mut bytes), Err(Unbuildable::NoAddresses));
        assert_eq!(builder(&many[..127]).write(&mut bytes), Ok(8 + 127 * 16));
        assert_eq!(builder(&many[..127]).write(&mut bytes[..8 + 126 * 16]), Err(Unbuildable::NoRoom));
    }

    /// Addresses that share some of their first bytes.
    fn any_addresses() -> impl Strategy<Value = (Ipv6Addr, Vec<Ipv6Addr>)> {
        (any::<u128>(), proptest::collection::vec((0u32..128, any::<u128>()), 1..20)).prop_map(
            |(destination, all)| {
                let near = |(shared, bits): (u32, u128)| Ipv6Addr::from_bits(destination ^ bits >> shared);
                (Ipv6Addr::from_bits(destination), all.into_iter().map(near).collect())
            },
        )
    }

    proptest! {
        #[test]
        fn round_trip((destination, addresses) in any_addresses(), next_header: u8, left: prop::sample::Index) {
            let segments_left = left.index(addresses.len() + 1) as u8;
            let builder = Builder { next_header, segments_left, destination, addresses: &addresses };
            let mut bytes = [0xaa; 512];
            let len = builder.write(&mut bytes).unwrap();
            let rpl = Rpl::parse(&bytes[..len]).unwrap();
            prop_assert_eq!((rpl.len(), rpl.next_header(), rpl.segments_left()), (len, next_header, segments_left));
            prop_assert_eq!(rpl.addresses(destination).collect::<Vec<_>>(), addresses);
            prop_assert!(bytes[len..].iter().all(|byte| *byte == 0xaa));
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), destination: u128) {
            if let Ok(rpl) = Rpl::parse(&bytes) {
                prop_assert_eq!(rpl.addresses(Ipv6Addr::from_bits(destination)).count(), rpl.count());
            }
        }
    }
}
