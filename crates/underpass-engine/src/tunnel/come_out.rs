//! Where packets and frames go that have come out of a tunnel. Linux: `gro_cells_receive`, `br_handle_frame`.

use std::net::{Ipv4Addr, Ipv6Addr};

use underpass_packet::ethernet;

use crate::counters::Direction;
use crate::drops::DropReason;
use crate::l2::go_up_from_tunnel;
use crate::path::input::classify;
use crate::path::ipv4::check as ipv4_check;
use crate::path::ipv6::check as ipv6_check;
use crate::tables::{Excluded, InnerProtocol, Link, LinkId, LookupId, StoredTunnel};
use crate::trace::Trace;
use crate::tunnel::hook::note_input;
use crate::worker::metadata::{ExtraMeta, PacketMeta};
use crate::worker::path::{Burst, Path, bytes_of};
use crate::worker::rewrite::ETHERNET;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// The step in which a packet goes on that has come out of a tunnel, by whose link it has come in now: to its look-up
/// in these tables, if IPv4 and IPv6 are forwarded.
pub(crate) fn come_out<const COUNT: bool>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    (lookup, forward4, forward6): (LookupId, bool, bool),
    inside: InnerProtocol,
) -> Verdict {
    note_input(view, &mut meta.packet, Some(meta.ingress));
    let bytes = meta.packet.bytes();
    match inside {
        InnerProtocol::Ip4 => match ipv4_check(bytes) {
            Ok(checked) => {
                meta.packet.truncate(checked.len);
                meta.target4 = checked.destination;
                let plain = !checked.unusual && forward4;
                if plain { Verdict::Look4(lookup) } else { Verdict::Unusual }
            }
            Err(reason) => Verdict::drop(reason),
        },
        InnerProtocol::Ip6 => match ipv6_check(bytes) {
            Ok(checked) => {
                meta.packet.truncate(checked.len);
                meta.target6 = checked.destination;
                let plain = !checked.unusual && forward6;
                if plain { Verdict::Look6(lookup) } else { Verdict::Unusual }
            }
            Err(reason) => Verdict::drop(reason),
        },
        InnerProtocol::Mpls if view.link(meta.ingress).is_some_and(|link| link.mpls) => Verdict::Label,
        InnerProtocol::Mpls => Verdict::drop(DropReason::MplsOff),
        InnerProtocol::Frame => {
            if view.link(meta.ingress).is_some_and(|link| link.has_above() || link.to_bridge.is_some()) {
                return Verdict::Above;
            }
            take_frame(path, view, meta)
        }
    }
}

/// The step in which a frame goes on that has come out of a tunnel.
pub(crate) fn take_frame<const COUNT: bool>(
    path: &Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
) -> Verdict {
    let Some(link) = view.link(meta.ingress) else { return Verdict::drop(DropReason::LinkDown) };
    let (verdict, target, len) = classify(meta.packet.bytes(), link, path.answers);
    match verdict {
        Verdict::Look4(_) => meta.target4 = Ipv4Addr::from_bits(target as u32),
        Verdict::Look6(_) => meta.target6 = Ipv6Addr::from_bits(target),
        _ => {}
    }
    meta.packet.narrow(ethernet::Header::LEN, len);
    meta.framed();
    verdict
}

/// Frames in a row have come out of a tunnel, by its link, which is the port of a bridge. `Some`: they go to all other ports of it
/// but these.
#[inline(never)]
pub(crate) fn come_out_together<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (device, all_but): ((&StoredTunnel, &Link), Option<Excluded>),
    frames: &mut Burst,
    trace: &mut T,
) {
    if !frames.is_empty() {
        count_received(path, device.0.link, frames);
        go_on_together(path, view, (device, all_but), frames, trace);
    }
}

/// Counts frames that have come out of the tunnel that this link is.
#[inline(always)]
pub(crate) fn count_received<const COUNT: bool>(path: &Path<COUNT>, link: LinkId, frames: &Burst) {
    let packets = frames.len() as u64;
    let bytes = bytes_of(frames) - packets * ETHERNET as u64;
    path.counters.add_crossed(link, Direction::Receive, packets, bytes);
}

/// The same, of frames that are counted.
#[inline(always)]
pub(crate) fn go_on_together<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    ((tunnel, link), all_but): ((&StoredTunnel, &Link), Option<Excluded>),
    frames: &mut Burst,
    trace: &mut T,
) {
    go_up_from_tunnel(path, view, (tunnel.link, link, all_but), frames, trace);
    for frame in frames.drain(..) {
        let at = frame.headroom();
        let mut meta = PacketMeta::new(frame, at, tunnel.link, ExtraMeta::new(tunnel.lookup));
        let verdict = take_frame(path, view, &mut meta);
        path.slow_path_alone(view, meta, verdict, trace);
    }
}
