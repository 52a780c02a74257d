//! Endpoint behaviours: RFC 8986 section 4. Which function a SID means, for one packet and for packets in a row.
//!
//! A packet may arrive with no SRH, a full one or a reduced one. What a behaviour refuses is dropped
//! for a named reason and counted as an error of the SID.

use underpass_packet::{ipv6, protocol};

use crate::buffer::Packet;
use crate::counters::Count;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::srv6::decap::{
    decapsulate_fast, decapsulate_frame, end_dt_fast, end_dt_spread, end_dt4, end_dt6, end_dt46, end_dx_fast,
    end_dx2_fast, end_dx2v, end_dx2v_fast, end_dx4, end_dx6,
};
use crate::srv6::dt2::{end_dt2, excluded, frames_run};
use crate::srv6::end::{active_srh, advance, end, end_fast, end_x, end_x_fast, next_segment_fast};
use crate::srv6::flavours::flavours_fast;
use crate::srv6::headend::headend_fast;
use crate::srv6::next::Next;
use crate::tables::{Action, Behaviour, Endpoint, Excluded, LookupId, Via};
use crate::trace::Trace;
use crate::worker::env::{BurstContext, Packets};
use crate::worker::error::PacketError;
use crate::worker::family::{Family, To};
use crate::worker::fibs::Fibs;
use crate::worker::lookup::{BurstLookup, Looked};
use crate::worker::path::Path;
use crate::worker::rewrite::{ETHERNET, FastVerdict, NEXT_HEADER};
use crate::worker::view::View;

impl From<DropReason> for PacketError {
    fn from(reason: DropReason) -> Self {
        Self::silent(reason)
    }
}

/// [`endpoint_fast`] for a packet that goes on by a multipath route, by itself, as it would take longer for others.
#[inline(never)]
fn endpoint_spread<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    (sid, instance): (&Endpoint, LookupId),
) -> Option<FastVerdict> {
    match &sid.behaviour {
        _ if sid.flavours.is_some() => flavours_fast::<true>(view, fibs, packet, len, (sid, instance)),
        Behaviour::End { .. } => end_fast::<true>(view, fibs, packet, len, instance),
        Behaviour::T { lookup } => end_fast::<true>(view, fibs, packet, len, *lookup),
        Behaviour::DT46 { lookup } if is_inside(packet, protocol::IPV4) => {
            end_dt_spread::<u32>(view, fibs, packet, len, *lookup)
        }
        Behaviour::DT46 { lookup } => end_dt_spread::<u128>(view, fibs, packet, len, *lookup),
        // End.DT4 and End.DT6 would take 10 % longer: a multipath route behind them is the slow path's.
        _ => None,
    }
}

/// [`endpoint`] for an IPv6 packet of `len` bytes in a frame that came in by a link of this instance. `None`: it is not of
/// a frequent kind, and as it was.
#[inline(always)]
fn endpoint_fast<'a>(
    view: &View<'a>,
    fibs: &mut Fibs<'a>,
    packet: &mut Packet,
    len: usize,
    (sid, instance): (&Endpoint, LookupId),
) -> Option<FastVerdict> {
    match &sid.behaviour {
        // End, End.X, End.DX4, End.DX6 and End.B6.Encaps look up by the link by which the packet came in.
        Behaviour::End { .. } => end_fast::<false>(view, fibs, packet, len, instance),
        Behaviour::T { lookup } => end_fast::<false>(view, fibs, packet, len, *lookup),
        Behaviour::X(via) if via.lookup == instance => end_x_fast(view, packet, len, via),
        Behaviour::DX2 { link } => end_dx2_fast(view, packet, len, *link),
        Behaviour::DX2V { link } => end_dx2v_fast(view, packet, len, *link),
        Behaviour::DX4(via) if via.lookup == instance => end_dx_fast::<u32>(view, fibs, packet, len, via),
        Behaviour::DX6(via) if via.lookup == instance => end_dx_fast::<u128>(view, fibs, packet, len, via),
        Behaviour::DT4 { lookup } => end_dt_fast::<u32>(view, fibs, packet, len, *lookup),
        Behaviour::DT46 { lookup } if is_inside(packet, protocol::IPV4) => {
            end_dt_fast::<u32>(view, fibs, packet, len, *lookup)
        }
        Behaviour::DT6 { lookup, .. } | Behaviour::DT46 { lookup } => {
            end_dt_fast::<u128>(view, fibs, packet, len, *lookup)
        }
        Behaviour::B6Encaps(policy) if policy.via.lookup == instance => {
            let next = next_segment_fast(packet.bytes().get(ETHERNET..ETHERNET + len)?)?;
            headend_fast(view.next_hop(policy.via.resolved)?, packet, len, policy, Some(next))
        }
        Behaviour::X(_)
        | Behaviour::DT2U { .. }
        | Behaviour::DT2M { .. }
        | Behaviour::DX4(_)
        | Behaviour::DX6(_)
        | Behaviour::B6(_)
        | Behaviour::B6Encaps(_)
        | Behaviour::Bpf(_) => None,
    }
}

/// Whether a packet of this protocol follows the IPv6 header in a frame, or the routing header behind it.
#[inline(always)]
fn is_inside(packet: &Packet, protocol: u8) -> bool {
    let bytes = packet.bytes();
    match bytes.get(ETHERNET + NEXT_HEADER) {
        Some(&protocol::ROUTING) => bytes.get(ETHERNET + ipv6::Header::LEN) == Some(&protocol),
        next => next == Some(&protocol),
    }
}

/// Does what a local SID says to a packet that is addressed to it. `unusual` is set if the packet inside
/// has addresses with which it must not be forwarded.
///
/// # Errors
/// Why the behaviour refuses the packet, which is then as it came, but for a decapsulation that found
/// something malformed inside, or a VLAN of no device.
#[inline(always)]
pub(crate) fn endpoint<'s>(
    view: &View<'_>,
    packet: &mut Packet,
    sid: &'s Endpoint,
    check: &Check<'_>,
    unusual: &mut bool,
) -> Result<Next<'s>, PacketError> {
    match &sid.behaviour {
        Behaviour::End { lookup } | Behaviour::T { lookup } => end(packet, sid, check, *lookup, unusual),
        Behaviour::X(via) => end_x(packet, sid, check, via, unusual),
        Behaviour::DX2 { link } => {
            decapsulate_frame(packet, check)?;
            Ok(Next::Frame(*link))
        }
        Behaviour::DX2V { link } => Ok(Next::Frame(end_dx2v(view, packet, check, *link)?)),
        Behaviour::DT2U { link } => {
            end_dt2(packet, check)?;
            Ok(Next::ComeIn(*link, None))
        }
        Behaviour::DT2M { link, argument } => {
            let excluded = excluded(packet, *argument);
            end_dt2(packet, check)?;
            Ok(Next::ComeIn(*link, Some(excluded)))
        }
        Behaviour::DX4(via) => end_dx4(packet, check, via, unusual),
        Behaviour::DX6(via) => end_dx6(packet, check, via, unusual),
        Behaviour::DT4 { lookup } => end_dt4(packet, check, *lookup, unusual),
        Behaviour::DT6 { lookup, .. } => end_dt6(packet, check, *lookup, unusual),
        Behaviour::DT46 { lookup } => end_dt46(packet, check, *lookup, unusual),
        // Linux's End.B6: a new SRH on top of the active one.
        Behaviour::B6(policy) => {
            active_srh(packet, check)?;
            Ok(Next::Insert(policy))
        }
        // RFC 8986 section 4.13: on to the next segment, and the policy's headers around it all.
        Behaviour::B6Encaps(policy) => {
            advance(packet, check)?;
            Ok(Next::Insert(policy))
        }
        Behaviour::Bpf(bpf) => {
            let at = crate::srv6::bpf::next_segment(packet, check)?;
            Ok(Next::Program(bpf, at))
        }
    }
}

/// Takes packets through their SIDs, from the first on, as long as the look-ups of these are known. The one that follows
/// them.
#[inline(never)]
pub(crate) fn sid_runs<'v, const COUNT: bool, T: Trace, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, 'v, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    mut first: (Packet, Looked<u128>),
    mut sid: &'v Endpoint,
) -> Option<Packet> {
    let env = context.env;
    if S::EACH
        && let (_, Looked { target, leaf: Some(leaf), .. }) = first
    {
        context.fibs.recent.put(env.link.lookup, target, leaf);
    }
    loop {
        let packet = sid_run(path, context, packets, lookups, first, sid)?;
        let Some(look) = lookups.remembered(env, &context.fibs.recent, &packet, packets) else {
            return Some(packet);
        };
        let Some(Action::Endpoint(next)) = env.action(look.leaf) else { return Some(packet) };
        (first, sid) = ((packet, look), next);
    }
}

/// Takes packets in a row that are for the same SID through it, from the first on. The one that follows the run.
#[inline(never)]
fn sid_run<const COUNT: bool, T: Trace, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, '_, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    mut first: (Packet, Looked<u128>),
    sid: &Endpoint,
) -> Option<Packet> {
    let frames = match sid.behaviour {
        Behaviour::DT2U { link } => Some((sid, link, None)),
        Behaviour::DT2M { link, argument: None } => Some((sid, link, Some(Excluded::default()))),
        _ => None,
    };
    if let Some(frames) = frames {
        first = match frames_run(path, context, packets, lookups, first, frames) {
            Ok(following) => return following,
            Err(first) => first,
        };
    }
    let (view, fibs) = (context.env.view, &mut *context.fibs);
    let (mut to4, mut to6) = (None::<To<'_, u32>>, None::<To<'_, u128>>);
    let instance = context.env.link.lookup;
    match &sid.behaviour {
        _ if sid.flavours.is_some() => {
            return run_through(path, context, packets, lookups, first, sid, |context, packet, len| {
                match flavours_fast::<false>(context.env.view, context.fibs, packet, len, (sid, instance)) {
                    Some(out) => Some(out),
                    None => endpoint_spread(context.env.view, context.fibs, packet, len, (sid, instance)),
                }
            });
        }
        Behaviour::DX4(via) if via.lookup == instance => to4 = context.by(via),
        Behaviour::DX6(via) if via.lookup == instance => to6 = context.by(via),
        Behaviour::DT4 { lookup } => to4 = To::table(view, fibs, *lookup),
        Behaviour::DT6 { lookup, .. } => to6 = To::table(view, fibs, *lookup),
        _ => {}
    }
    if let Some(to) = to4 {
        return decapsulating_run(path, context, packets, lookups, first, sid, to);
    }
    if let Some(to) = to6 {
        return decapsulating_run(path, context, packets, lookups, first, sid, to);
    }
    run_through(path, context, packets, lookups, first, sid, |context, packet, len| {
        match endpoint_fast(context.env.view, context.fibs, packet, len, (sid, instance)) {
            Some(out) => Some(out),
            None => endpoint_spread(context.env.view, context.fibs, packet, len, (sid, instance)),
        }
    })
}

/// The same through a SID that takes the outer headers off packets of one family.
#[inline(never)]
fn decapsulating_run<'a, const COUNT: bool, T: Trace, S: BurstLookup, A: Family>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'_, '_, 'a, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    first: (Packet, Looked<u128>),
    sid: &Endpoint,
    to: To<'a, A>,
) -> Option<Packet> {
    run_through(path, context, packets, lookups, first, sid, |context, packet, len| {
        decapsulate_fast::<A>(context.env.view, packet, len, |target, _, _| {
            to.next_hop(context.env.view, target)
        })
    })
}

#[inline(always)]
fn run_through<'x, 'v, 'a, const COUNT: bool, T: Trace, S: BurstLookup>(
    path: &mut Path<COUNT>,
    context: &mut BurstContext<'x, 'v, 'a, T>,
    packets: &mut Packets<'_>,
    lookups: S,
    (mut packet, look): (Packet, Looked<u128>),
    sid: &Endpoint,
    through: impl Fn(&mut BurstContext<'x, 'v, 'a, T>, &mut Packet, usize) -> Option<FastVerdict>,
) -> Option<Packet> {
    let env = context.env;
    let mut len = look.len;
    // Counted once for all: a counter for each packet would cost 7 % of End.DX2.
    let mut run = Count::default();
    let following = loop {
        if let Some(out) = through(context, &mut packet, len) {
            run.packets += 1;
            run.bytes += len as u64;
            path.send_frame(out, packet, context.trace);
        } else {
            path.enter_slow_path(context, packet);
        }
        packet = match packets.next() {
            Some(packet) => packet,
            None => break None,
        };
        len = match lookups.again(env, &packet, packets, look) {
            Some(len) => len,
            None => break Some(packet),
        };
    };
    if let Some(counter) = sid.counter.filter(|_| COUNT) {
        path.counters.add(counter, run);
    }
    if sid.behaviour.inserts() {
        path.totals.buffer_moves_avoided += run.packets;
    }
    following
}

impl<'a, T> BurstContext<'_, '_, 'a, T> {
    /// Where a cross-connect goes. `None`: it is not so simple.
    fn by<A: Family>(&mut self, via: &Via) -> Option<To<'a, A>> {
        let view = self.env.view;
        match view.next_hop(via.resolved) {
            Some(next_hop) => Some(To::NextHop(next_hop)),
            None if via.address.is_unspecified() => To::table(view, self.fibs, via.lookup),
            None => None,
        }
    }
}
