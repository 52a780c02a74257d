//! Headers that routes put before and into packets, on the common road.

use std::net::{IpAddr, Ipv6Addr};

use underpass_packet::rpl::Last;
use underpass_packet::{ethernet, protocol};

use super::super::{Path, View, ioam};
use super::family::Family;
use super::row::Way;
use super::{Common, ETHERNET, FIXED, Out, addresses, cut, write_header};
use crate::buffer::Packet;
use crate::srv6;
use crate::tables::{Action, Headend, HeadendMode, Ioam, Rpl, StoredNextHop};

/// What puts headers before packets, or into them.
pub(super) trait Insert {
    /// The same, of an action.
    fn of(action: &Action) -> Option<&Self>;

    /// Puts them before the packet of `len` bytes in a frame, or into it, and sends it to where it goes then. `None`: it is
    /// not so plain, and as it was.
    fn insert(&self, common: &Common<'_, '_>, packet: &mut Packet, len: usize) -> Option<Out>;
}

impl Insert for Headend {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Headend(policy) = action { Some(policy) } else { None }
    }

    #[inline(always)]
    fn insert(&self, common: &Common<'_, '_>, packet: &mut Packet, len: usize) -> Option<Out> {
        encapsulate(common.view, packet, len, self, None)
    }
}

impl Insert for Rpl {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Rpl(route) = action { Some(route) } else { None }
    }

    #[inline(always)]
    fn insert(&self, common: &Common<'_, '_>, packet: &mut Packet, len: usize) -> Option<Out> {
        insert_rpl(common.view, packet, len, self)
    }
}

impl Insert for Ioam {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Ioam(ioam) = action { Some(ioam) } else { None }
    }

    #[inline(always)]
    fn insert(&self, common: &Common<'_, '_>, packet: &mut Packet, len: usize) -> Option<Out> {
        ioam::insert_plain(common, packet, len, self)
    }
}

/// How packets get headers.
pub(super) struct Headers<'v, I>(pub(super) &'v I);

impl<I> Clone for Headers<'_, I> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Headers<'_, I> {}

impl<'v, 'a, A: Family, I: Insert> Way<'v, 'a, A> for Headers<'v, I> {
    /// Packets.
    type Row = u64;

    #[inline(always)]
    fn other(self, common: &Common<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        I::of(common.action(leaf)?).map(Self)
    }

    #[inline(always)]
    fn take<const COUNT: bool>(
        self,
        _: &mut Path<COUNT>,
        common: &Common<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        row: &mut u64,
    ) -> Option<Out> {
        let out = self.0.insert(common, packet, len)?;
        *row += 1;
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, row: u64) {
        path.totals.buffer_moves_avoided += row;
    }
}

/// Puts a policy's headers around the packet of `len` bytes in a frame, or around the frame, and sends it to
/// their next hop. `advance`: the packet goes to this segment of its own list first.
#[inline(always)]
pub(super) fn encapsulate(
    view: &View<'_>,
    packet: &mut Packet,
    len: usize,
    policy: &Headend,
    advance: Option<(u8, Ipv6Addr)>,
) -> Option<Out> {
    let next_hop = view.next_hop(policy.via.resolved)?;
    let header = &*policy.header;
    // How much of the Ethernet header goes inside.
    let framed = match policy.mode {
        HeadendMode::Encap => 0,
        HeadendMode::L2Encap => ETHERNET,
        HeadendMode::Inline => return insert(next_hop, packet, len, header),
    };
    let outer_len = header.len() + framed + len;
    let mac = addresses(next_hop, outer_len)?;
    let payload_length = u16::try_from(outer_len - underpass_packet::ipv6::Header::LEN).ok()?;
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let inherited = srv6::inherited(packet.bytes().get(ETHERNET..)?, false).ok()?;
    let bytes = packet.push(header.len() + framed).ok()?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    if let Some((left, segment)) = advance {
        let inside = bytes.get_mut(header.len() + framed..)?.first_chunk_mut()?;
        srv6::write_segment(inside, left, segment);
    }
    write_header(head, mac, ethernet::IPV6);
    let next_header = if framed > 0 { protocol::ETHERNET } else { inherited.next_header };
    srv6::write_headers(bytes, header, payload_length, &inherited, next_header)?;
    bytes[7] -= 1;
    Some((next_hop.port, (ETHERNET + outer_len) as u32))
}

/// Puts an SRH behind the IPv6 header of the packet of `len` bytes in a frame, the packet's destination its
/// last segment, and sends it to the next hop of the first. `None`: it is not IPv6, or not so plain.
#[inline(never)]
fn insert(next_hop: &StoredNextHop, packet: &mut Packet, len: usize, srh: &[u8]) -> Option<Out> {
    // The last, at 0, is filled in below.
    let left = usize::from(*srh.get(3)?).checked_sub(1)?;
    let first: &[u8; 16] = srh.get(24 + 16 * left..)?.first_chunk()?;
    let gap = open(next_hop, packet, len, srh.len(), first)?;
    srv6::copy(srh, gap.room);
    gap.room[0] = gap.next_header;
    *gap.room.get_mut(8..)?.first_chunk_mut()? = gap.destination;
    Some(gap.out)
}

/// The same for an RPL source route.
#[inline(never)]
fn insert_rpl(view: &View<'_>, packet: &mut Packet, len: usize, route: &Rpl) -> Option<Out> {
    let next_hop = view.next_hop(route.via.resolved)?;
    let IpAddr::V6(first) = route.via.address else { return None };
    let header = &*route.header;
    let fixed: &[u8; FIXED] = packet.bytes().get(ETHERNET..)?.first_chunk()?;
    let last = Last::new(header.len(), first.to_bits(), u128::from_be_bytes(*fixed.last_chunk()?));
    let longest = last.header_len() <= 8 * usize::from(u8::MAX);
    longest.then_some(())?;
    let gap = open(next_hop, packet, len, last.header_len(), &first.octets())?;
    gap.room.get_mut(..header.len())?.copy_from_slice(header);
    last.write(gap.room, gap.next_header)?;
    Some(gap.out)
}

/// Room for a routing header, and what it takes over.
struct Gap<'p> {
    room: &'p mut [u8],
    next_header: u8,
    /// Where the packet was going.
    destination: [u8; 16],
    out: Out,
}

/// Makes room for a routing header of `longer` bytes behind the IPv6 header of the packet of `len` bytes in a
/// frame, and sends it to `first`, which `next_hop` leads to. `None`: it is not IPv6, or not so plain, and as it was.
#[inline(always)]
fn open<'p>(
    next_hop: &StoredNextHop,
    packet: &'p mut Packet,
    len: usize,
    longer: usize,
    first: &[u8; 16],
) -> Option<Gap<'p>> {
    let mac = addresses(next_hop, longer + len)?;
    let payload_length = u16::try_from(longer + len - FIXED).ok()?;
    let fixed: &[u8; FIXED] = packet.bytes().get(ETHERNET..)?.first_chunk()?;
    let start = u64::from_be_bytes(*fixed.first_chunk()?);
    let source: [u8; 16] = *fixed.get(8..)?.first_chunk()?;
    let destination: [u8; 16] = *fixed.last_chunk()?;
    let (next_header, hop_limit) = ((start >> 8) as u8, start as u8);
    if start >> 60 != 6 || hop_limit <= 1 {
        return None;
    }
    if packet.len() != ETHERNET + len {
        cut(packet, ETHERNET + len);
    }
    let bytes = packet.push(longer).ok()?;
    let (head, bytes) = bytes.split_first_chunk_mut::<ETHERNET>()?;
    let (header, bytes) = bytes.split_first_chunk_mut::<FIXED>()?;
    let room = bytes.get_mut(..longer)?;
    write_header(head, mac, ethernet::IPV6);
    let start = start & !0xffff_ffff
        | u64::from(payload_length) << 16
        | u64::from(protocol::ROUTING) << 8
        | u64::from(hop_limit - 1);
    *header.first_chunk_mut()? = start.to_be_bytes();
    *header.get_mut(8..)?.first_chunk_mut()? = source;
    *header.last_chunk_mut()? = *first;
    Some(Gap { room, next_header, destination, out: (next_hop.port, (ETHERNET + longer + len) as u32) })
}
