//! IOAM traces on their way through the router: RFC 9197, as Linux's `ipv6_hop_ioam` and `ioam6_fill_trace_data` fill them.

use underpass_packet::ioam::{Filled, Malformed, Node, OPTION, TraceMut, UNAVAILABLE, check};
use underpass_packet::ipv6_options::Opt;
use underpass_packet::{FromBytes, ioam, ipv6};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::flow;
use crate::limiter::Nanos;
use crate::path::options::Problem;
use crate::path::rules::{find6, look_slow};
use crate::tables::{Action, ActionId, IoamLink, Link};
use crate::trace::{Event, Trace};
use crate::worker::metadata::{PacketMeta, Slow};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

pub(crate) const HEADER: usize = ipv6::Header::LEN;

pub(crate) const HOP_LIMIT: usize = 7;

/// Seconds and microseconds.
#[inline(always)]
pub(crate) fn timestamp(unix: Nanos) -> (u32, u32) {
    ((unix / 1_000_000_000) as u32, (unix % 1_000_000_000 / 1000) as u32)
}

/// Checks a hop-by-hop option of IOAM that starts `offset` bytes from the start of the IPv6 header. Whether
/// it is a trace that is to be filled: Linux's `ipv6_hop_ioam`.
pub(crate) fn check_option(option: &Opt<'_>, offset: usize, enabled: bool) -> Result<bool, Problem> {
    if !offset.is_multiple_of(4) {
        return Err(Problem::silent(DropReason::IoamMalformed));
    }
    if !enabled {
        return Ok(false);
    }
    match check(option.data) {
        Ok(header) => Ok(header.is_some()),
        Err(Malformed::NodeLen) => Err(Problem::silent(DropReason::IoamNodeLength)),
        Err(_) => Err(Problem::silent(DropReason::IoamMalformed)),
    }
}

/// Looks a packet up that has traces to be filled, so that these can tell the link by which it leaves,
/// and fills them.
#[cold]
#[inline(never)]
pub(crate) fn fill_traces<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    link: &Link,
    trace: &mut T,
) -> Verdict {
    meta.extra.slow = Slow::Target6;
    let verdict = look_slow(path, view, meta, link.lookup, trace);
    let egress = if let Verdict::Act(id) = verdict { egress(view, &meta.packet, id) } else { None };
    let now = view.epoch.wrapping_add(view.now);
    if fill(view, meta.packet.bytes_mut(), (&link.ioam, egress), now, usize::MAX) {
        trace.step(Event::IoamFilled, &meta.packet);
    }
    verdict
}

/// Fills the traces before the byte at which a packet is refused, which the error then quotes. Linux: `ip6_parse_tlv`, which
/// fills them as it comes to them.
#[cold]
pub(crate) fn fill_before<T: Trace>(
    view: &View<'_>,
    meta: &mut PacketMeta,
    link: &Link,
    fault: usize,
    trace: &mut T,
) {
    let Ok((header, _)) = ipv6::Header::ref_from_prefix(meta.packet.bytes()) else { return };
    let way = find6(view, meta.packet.bytes(), link.lookup, header.destination(), meta.extra.mark);
    let egress = way.ok().flatten().and_then(|id| egress(view, &meta.packet, id));
    let now = view.epoch.wrapping_add(view.now);
    if fill(view, meta.packet.bytes_mut(), (&link.ioam, egress), now, fault) {
        trace.step(Event::IoamFilled, &meta.packet);
    }
}

/// The link by which an action sends a packet. `None`: it does not.
pub(crate) fn egress<'a>(view: &View<'a>, packet: &Packet, id: ActionId) -> Option<&'a IoamLink> {
    let mut id = id;
    // The ways of a multipath route lead to no others.
    for _ in 0..2 {
        let link = match view.tables.action(id, view.guard)? {
            Action::Forward(next_hop) => view.tables.next_hop(*next_hop, view.guard)?.link,
            Action::Push(push) => view.tables.next_hop(push.next_hop, view.guard)?.link,
            Action::Rpl(route) => route.link,
            Action::OnLink(link) => *link,
            Action::Ioam(ioam) => ioam.link,
            Action::Endpoint(sid) => sid.link,
            Action::Headend(policy) => policy.link,
            Action::Tunnel(route) => view.tables.tunnels().tunnel(route.tunnel, view.guard)?.link,
            Action::Vrf(route) => route.link,
            Action::Multipath(multipath) => {
                id = multipath.choose(flow::hash(packet.bytes()))?;
                continue;
            }
            Action::Local
            | Action::Anycast
            | Action::Broadcast
            | Action::Discard(_)
            | Action::Switch(_)
            | Action::HandOver => return None,
        };
        return view.link(link).map(|link| &link.ioam);
    }
    None
}

/// Fills the traces of a packet before the byte at `end`; the options up to there were checked. Whether there was one.
fn fill(
    view: &View<'_>,
    packet: &mut [u8],
    links: (&IoamLink, Option<&IoamLink>),
    now: Nanos,
    end: usize,
) -> bool {
    let Some((header, rest)) = packet.split_first_chunk_mut::<HEADER>() else { return false };
    let hop_limit = header[HOP_LIMIT].wrapping_sub(1);
    let Some(&[_, len]) = rest.first_chunk() else { return false };
    let len = ((usize::from(len) + 1) * 8).min(end.saturating_sub(HEADER));
    let Some(mut options) = rest.get_mut(2..len) else { return false };
    let mut filled = false;
    loop {
        let (kind, len) = match *options {
            [0, ..] => {
                options = options.get_mut(1..).unwrap_or_default();
                continue;
            }
            [kind, len, ..] => (kind, usize::from(len)),
            _ => return filled,
        };
        let Some((option, rest)) = options.get_mut(2..).and_then(|data| data.split_at_mut_checked(len))
        else {
            return filled;
        };
        if kind == OPTION
            && let Ok(ioam::Ioam::Trace(mut trace)) = ioam::Ioam::parse(option)
        {
            filled |= fill_trace(view, &mut trace, hop_limit, links, now);
        }
        options = rest;
    }
}

/// Fills a trace, if its namespace is known.
#[inline(always)]
fn fill_trace(
    view: &View<'_>,
    trace: &mut TraceMut<'_>,
    hop_limit: u8,
    (ingress, egress): (&IoamLink, Option<&IoamLink>),
    now: Nanos,
) -> bool {
    let Some(node) = view.tables.ioam(view.guard) else { return false };
    let Some(namespace) = node.namespace(trace.header().namespace.get()) else { return false };
    let filled = trace.fill(&Node {
        hop_limit,
        id: node.id,
        links: (ingress.id, egress.map_or(u16::MAX, |link| link.id)),
        time: timestamp(now),
        data: namespace.data,
        // Links have no queue in which packets wait.
        queue_depth: if egress.is_some() { 0 } else { UNAVAILABLE },
        id_wide: node.id_wide,
        links_wide: (ingress.id_wide, egress.map_or(u32::MAX, |link| link.id_wide)),
        data_wide: namespace.data_wide,
        schema: namespace.schema.as_deref(),
    });
    filled != Filled::Skipped
}
