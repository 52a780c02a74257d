//! Headers that routes put before and into packets, on the fast path: SRv6's, RPL's, IOAM's.

use underpass_packet::{ethernet, protocol};

use crate::buffer::Packet;
use crate::path::ioam;
use crate::path::rpl::insert_route_fast;
use crate::srv6::headend::{headend_fast, headend_next_hop};
use crate::tables::{Action, Headend, Ioam, LookupId, Rpl, StoredNextHop};
use crate::worker::Path;
use crate::worker::burst::Env;
use crate::worker::family::Family;
use crate::worker::rewrite::{ETHERNET, FIXED, FastVerdict, addresses, cut, write_header};
use crate::worker::run::Rewrite;

/// What puts headers before packets, or into them.
pub(crate) trait Insert {
    /// The same, of an action.
    fn of(action: &Action) -> Option<&Self>;

    /// Whether what comes in by a link with this look-up goes where the route says.
    fn goes_on_by(&self, lookup: LookupId) -> bool;

    /// Puts them before the packet of `len` bytes in a frame, or into it, and sends it to where it goes then. `None`: it is
    /// not so simple, and as it was.
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict>;
}

impl Insert for Headend {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Headend(policy) = action { Some(policy) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, lookup: LookupId) -> bool {
        self.via.lookup == lookup
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        headend_fast(headend_next_hop(env, packet, len, self)?, packet, len, self, None)
    }
}

impl Insert for Rpl {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Rpl(route) = action { Some(route) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, lookup: LookupId) -> bool {
        self.via.lookup == lookup
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        insert_route_fast(env.view, packet, len, self)
    }
}

impl Insert for Ioam {
    #[inline(always)]
    fn of(action: &Action) -> Option<&Self> {
        if let Action::Ioam(ioam) = action { Some(ioam) } else { None }
    }

    #[inline(always)]
    fn goes_on_by(&self, _: LookupId) -> bool {
        true
    }

    #[inline(always)]
    fn insert_fast(&self, env: &Env<'_, '_>, packet: &mut Packet, len: usize) -> Option<FastVerdict> {
        ioam::insert_fast(env, packet, len, self)
    }
}

/// How packets get headers.
pub(crate) struct Headers<'v, I>(pub(crate) &'v I);

impl<I> Clone for Headers<'_, I> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Headers<'_, I> {}

impl<'v, 'a, A: Family, I: Insert> Rewrite<'v, 'a, A> for Headers<'v, I> {
    /// Packets.
    type Counts = u64;

    #[inline(always)]
    fn for_leaf(self, env: &Env<'v, 'a>, leaf: Option<u32>) -> Option<Self> {
        I::of(env.action(leaf)?).filter(|insert| insert.goes_on_by(env.link.lookup)).map(Self)
    }

    #[inline(always)]
    fn apply<const COUNT: bool>(
        self,
        _: &mut Path<COUNT>,
        env: &Env<'v, 'a>,
        (packet, len): (&mut Packet, usize),
        counts: &mut u64,
    ) -> Option<FastVerdict> {
        let out = self.0.insert_fast(env, packet, len)?;
        *counts += 1;
        Some(out)
    }

    #[inline(always)]
    fn count<const COUNT: bool>(self, path: &mut Path<COUNT>, counts: u64) {
        path.totals.buffer_moves_avoided += counts;
    }
}

/// Room for a routing header, and what it takes over.
pub(crate) struct Gap<'p> {
    pub(crate) room: &'p mut [u8],
    pub(crate) next_header: u8,
    /// Where the packet was going.
    pub(crate) destination: [u8; 16],
    pub(crate) out: FastVerdict,
}

/// Makes room for a routing header of `longer` bytes behind the IPv6 header of the packet of `len` bytes in a
/// frame, and sends it to `first`, which `next_hop` leads to. `None`: it is not IPv6, or not so simple, and as it was.
#[inline(always)]
pub(crate) fn open_gap_fast<'p>(
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
