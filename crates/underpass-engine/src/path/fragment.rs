//! Fragmentation: of IPv4, RFC 791 section 3.2, as Linux's `ip_do_fragment` cuts; of what the router itself sends of IPv6,
//! RFC 8200 section 4.5, as `ip6_fragment` does.

use arrayvec::ArrayVec;
use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{IntoBytes, ipv4, ipv6, protocol};

use crate::buffer::{Packet, Pool};
use crate::drops::DropReason;

/// An option that stands in every fragment has this bit set: RFC 791 section 3.1.
const COPIED: u8 = 0x80;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;

/// Length of a fragment header of IPv6, and where the identification is in it.
const HEADER6: usize = 8;
const IDENTIFICATION6: usize = 4;
const MORE_FRAGMENTS6: u16 = 1;

/// Where an IPv6 header has its payload length.
const PAYLOAD_LENGTH: std::ops::Range<usize> = 4..6;

/// A packet that is cut into fragments. They are made one by one: the longest packet makes over a thousand at the smallest MTU.
pub(crate) struct Fragments<'a> {
    packet: &'a Packet,
    headers: Headers<'a>,
    /// What is cut, and how much of it the fragments have that were made.
    body: &'a [u8],
    done: usize,
    /// Most bytes of it in a fragment that others follow, a multiple of 8, and in the last one.
    each: usize,
    last: usize,
}

/// What stands in each fragment before its part.
enum Headers<'a> {
    Ip4 {
        header: ipv4::Header,
        options: ArrayVec<u8, { ipv4::MAX_OPTIONS }>,
    },
    /// The field `named_at` says what follows; it is to name the fragment header.
    Ip6 {
        front: &'a [u8],
        named_at: usize,
        identification: u32,
    },
}

impl<'a> Fragments<'a> {
    /// Those of at most `mtu` bytes of an IPv4 packet, from its header on.
    ///
    /// # Errors
    /// Why it cannot be cut.
    pub(crate) fn of_ip4(packet: &'a Packet, mtu: usize) -> Result<Self, DropReason> {
        let ipv4::View { header, options, payload } =
            ipv4::View::parse(packet.bytes()).map_err(|_| DropReason::Ip4Malformed)?;
        let options = options.try_into().map_err(|_| DropReason::Ip4Malformed)?;
        let room = mtu.saturating_sub(header.header_len());
        Self::new(packet, Headers::Ip4 { header: *header, options }, payload, room, false)
    }

    /// The same of an IPv6 packet. Hop-by-hop options and routing headers stand in each fragment. `even`: the last one, too, is no
    /// longer than those before it, where Linux has cut the message as it made it (`__ip6_append_data`).
    ///
    /// # Errors
    /// Why it cannot be cut.
    pub(crate) fn of_ip6(
        packet: &'a Packet,
        mtu: usize,
        (identification, even): (u32, bool),
    ) -> Result<Self, DropReason> {
        let view = ipv6::View::parse(packet.bytes()).map_err(|_| DropReason::Ip6Malformed)?;
        let (at, named_at) = behind_unfragmentable(&view)?;
        let (front, body) = packet.bytes().split_at_checked(at).ok_or(DropReason::Ip6Malformed)?;
        let room = mtu.saturating_sub(at + HEADER6);
        Self::new(packet, Headers::Ip6 { front, named_at, identification }, body, room, even)
    }

    fn new(
        packet: &'a Packet,
        headers: Headers<'a>,
        body: &'a [u8],
        room: usize,
        even: bool,
    ) -> Result<Self, DropReason> {
        let each = room & !7;
        if each == 0 || body.is_empty() {
            return Err(DropReason::TooBig);
        }
        Ok(Self { packet, headers, body, done: 0, each, last: if even { each } else { room } })
    }

    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        1 + self.body.len().saturating_sub(self.last).div_ceil(self.each)
    }

    /// The next one, in a packet of `pool`. `None`: all have been made.
    pub(crate) fn next(&mut self, pool: &mut Pool) -> Option<Result<Packet, DropReason>> {
        let left = self.body.get(self.done..).filter(|left| !left.is_empty())?;
        let part = left.get(..self.each).filter(|_| left.len() > self.last).unwrap_or(left);
        let more = part.len() < left.len();
        let offset = self.done;
        self.done += part.len();
        let laid = match &mut self.headers {
            Headers::Ip4 { header, options } => lay4(pool, (header, options), part, (offset, more)),
            Headers::Ip6 { front, named_at, identification } => {
                lay6(pool, (front, *named_at), *identification, part, (offset, more))
            }
        };
        Some(laid.map(|mut fragment| {
            fragment.tag_as(self.packet);
            fragment
        }))
    }
}

/// Lays one fragment of IPv4 into a free packet: the part at `offset`. `options` become those of the fragments behind it.
fn lay4(
    pool: &mut Pool,
    (whole, options): (&ipv4::Header, &mut [u8]),
    part: &[u8],
    (offset, more): (usize, bool),
) -> Result<Packet, DropReason> {
    let len = whole.header_len() + part.len();
    let mut header = *whole;
    let flags = if more || whole.more_fragments() { ipv4::MORE_FRAGMENTS } else { 0 };
    header.flags_offset = (flags | ((whole.fragment_offset() + offset) / 8) as u16).into();
    header.total_length = (len as u16).into();
    header.fill_checksum(options);
    let mut packet = pool.take_for(len).ok_or(DropReason::NoBuffer)?;
    let (to_header, rest) = packet.bytes_mut().split_at_mut(ipv4::Header::LEN);
    to_header.copy_from_slice(header.as_bytes());
    let (to_options, to_part) = rest.split_at_mut(options.len());
    to_options.copy_from_slice(options);
    to_part.copy_from_slice(part);
    // A fragment that was cut before has only the options that its first sender let it have.
    if offset == 0 && whole.fragment_offset() == 0 {
        blank_uncopied(options);
    }
    Ok(packet)
}

/// The same of IPv6.
fn lay6(
    pool: &mut Pool,
    (front, named_at): (&[u8], usize),
    identification: u32,
    part: &[u8],
    (offset, more): (usize, bool),
) -> Result<Packet, DropReason> {
    let next_header = *front.get(named_at).ok_or(DropReason::Ip6Malformed)?;
    let mut packet = pool.take_for(front.len() + HEADER6 + part.len()).ok_or(DropReason::NoBuffer)?;
    let (to_front, rest) = packet.bytes_mut().split_at_mut(front.len());
    to_front.copy_from_slice(front);
    to_front[named_at] = protocol::FRAGMENT;
    let payload_length = (front.len() - ipv6::Header::LEN + HEADER6 + part.len()) as u16;
    to_front[PAYLOAD_LENGTH].copy_from_slice(&payload_length.to_be_bytes());
    let (to_header, to_part) = rest.split_at_mut(HEADER6);
    let flags = if more { MORE_FRAGMENTS6 } else { 0 };
    to_header[..2].copy_from_slice(&[next_header, 0]);
    to_header[2..IDENTIFICATION6].copy_from_slice(&(offset as u16 | flags).to_be_bytes());
    to_header[IDENTIFICATION6..].copy_from_slice(&identification.to_be_bytes());
    to_part.copy_from_slice(part);
    Ok(packet)
}

/// Where the part of a packet begins that is cut, and where the number stands that names it: Linux's `ip6_find_1stfragopt`.
fn behind_unfragmentable(packet: &ipv6::View<'_>) -> Result<(usize, usize), DropReason> {
    let mut place = (ipv6::Header::LEN, ipv6::Header::NEXT_HEADER_OFFSET);
    let mut routed = false;
    for extension in Extensions::new(packet) {
        let extension = extension.map_err(|_| DropReason::Ip6Malformed)?;
        match extension.kind {
            Kind::HopByHop => {}
            Kind::Routing => routed = true,
            Kind::DestinationOptions if !routed => {}
            _ => break,
        }
        place = (extension.offset + extension.bytes.len(), extension.offset);
    }
    Ok(place)
}

/// Turns the options that stand only in the first fragment into no-operations, as Linux does.
fn blank_uncopied(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            OPTION_END => return,
            OPTION_NOP => at += 1,
            _ => {
                let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
                let Some(option) = options.get_mut(at..at + len).filter(|_| len >= 2) else { return };
                if kind & COPIED == 0 {
                    option.fill(OPTION_NOP);
                }
                at += len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::{LARGE_SLOT, MARGIN, SLOT};

    /// A packet of `len` bytes behind its header.
    fn packet(pool: &mut Pool, len: usize, six: bool) -> Packet {
        let header = if six {
            let [from, to] = [1_u16, 2].map(|last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
            ipv6::Header::new(from, to, protocol::UDP, 64, len as u16).as_bytes().to_vec()
        } else {
            let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let mut header = ipv4::Header::new(from, to, protocol::UDP, 64, (len + 20) as u16);
            header.flags_offset = 0.into();
            header.fill_checksum(&[]);
            header.as_bytes().to_vec()
        };
        let mut packet = pool.take_for(header.len() + len).unwrap();
        let (front, body) = packet.bytes_mut().split_at_mut(header.len());
        front.copy_from_slice(&header);
        body.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n % 251) as u8);
        packet
    }

    /// Where the part of a fragment belongs, whether others follow, and the part.
    fn part(fragment: &Packet) -> (usize, bool, Vec<u8>) {
        let bytes = fragment.bytes();
        if bytes[0] >> 4 == 4 {
            let ipv4::View { header, payload, .. } = ipv4::View::parse(bytes).unwrap();
            return (header.fragment_offset(), header.more_fragments(), payload.to_vec());
        }
        let view = ipv6::View::parse(bytes).unwrap();
        let found = Extensions::new(&view).find_kind(Kind::Fragment).unwrap().unwrap();
        let header = found.fragment().unwrap();
        (header.offset(), header.more_fragments(), bytes[found.offset + HEADER6..].to_vec())
    }

    proptest! {
        /// RFC 791 section 3.2, RFC 8200 section 4.5, of packets of any length at any MTU that Linux allows.
        #[test]
        fn fragments_have_all_of_a_packet(
            len in prop_oneof![1..3000_usize, 60_000..=65_515_usize],
            mtu in prop_oneof![68..100_usize, 68..9000_usize],
            six: bool,
            even: bool,
        ) {
            let region = |slot: usize, count: usize| Vec::leak(vec![0; (slot + MARGIN) * count]);
            let mut pool = Pool::over(region(SLOT, 1), region(LARGE_SLOT, 2));
            let packet = packet(&mut pool, len, six);
            let mut fragments = match six {
                true => Fragments::of_ip6(&packet, mtu, (7, even)).unwrap(),
                false => Fragments::of_ip4(&packet, mtu).unwrap(),
            };
            let count = fragments.count();
            let (mut body, mut numbers, mut last) = (Vec::new(), 0, true);
            while let Some(fragment) = fragments.next(&mut pool) {
                let fragment = fragment.unwrap();
                let (offset, more, part) = part(&fragment);
                prop_assert!(last && fragment.len() <= mtu && offset == body.len());
                prop_assert!(!more || part.len() % 8 == 0 && fragment.len() + 8 > mtu);
                body.extend(part);
                numbers += 1;
                last = more;
                pool.give(fragment);
            }
            prop_assert!(!last && numbers == count);
            prop_assert_eq!(&body, &packet.bytes()[if six { 40 } else { 20 }..]);
        }
    }

    /// At the smallest MTU of IPv4 the longest packet makes 1,365 fragments, the last of which is shorter than the others.
    #[test]
    fn the_longest_packet() {
        let region = |slot: usize| Vec::leak(vec![0; slot + MARGIN]);
        let mut pool = Pool::over(region(SLOT), region(LARGE_SLOT));
        let packet = packet(&mut pool, 65_515, false);
        assert_eq!(Fragments::of_ip4(&packet, 68).unwrap().count(), 1365);
        assert!(matches!(Fragments::of_ip4(&packet, 27), Err(DropReason::TooBig)));
    }
}
