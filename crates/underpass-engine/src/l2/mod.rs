//! Links above other links, which take frames from them and send frames by them.

mod answer;
pub(crate) mod bridge;
pub mod fdb;
pub(crate) mod vlan;

use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::path::kept::give_to_kernel;
use crate::tables::{Excluded, Link, LinkId, TunnelId};
use crate::trace::{Event, Trace};
use crate::tunnel::frames::send_frames;
use crate::worker::metadata::PacketMeta;
use crate::worker::path::{Burst, Path};
use crate::worker::view::View;

impl Link {
    /// Whether what waits to be sent by its port is no wire's: it goes on in the router, or ends there.
    pub(crate) const fn is_inside(&self) -> bool {
        self.swallows || self.is_above()
    }

    /// Whether what is sent by its port goes on by links below it.
    pub(crate) const fn is_above(&self) -> bool {
        self.vlan.is_some() || self.bridge.is_some()
    }

    /// Whether what comes in by it may go on by links above it.
    #[inline(always)]
    pub(crate) const fn has_above(&self) -> bool {
        self.vlans.is_some() || self.bridge_port.is_some()
    }

    /// Whether a frame that has come in by it goes on by a link above it.
    fn goes_up(&self, frame: &[u8]) -> bool {
        self.bridge_port.is_some()
            || self
                .vlans
                .as_ref()
                .is_some_and(|vlans| vlans.of_frame(frame).is_some() || vlans.priorities(frame) > 0)
    }
}

/// How frames leave by a link.
#[derive(Clone, Copy)]
enum Out {
    Port(PortId),
    Tunnel(TunnelId),
}

/// How frames leave by a link that is up: by its port, or into the tunnel that it is.
#[inline(always)]
fn out_by(view: &View<'_>, id: LinkId, link: &Link) -> Option<Out> {
    view.tables.tunnels().of_link(id).map(Out::Tunnel).or(link.port.map(Out::Port))
}

/// A frame of so many bytes is sent by a port or into a tunnel, with others when [`send_waiting`] says so. `unrouted` if no route
/// may have led it here.
#[inline(always)]
fn send_out<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    out: Out,
    (packet, unrouted): (Packet, bool),
    trace: &mut T,
) {
    match out {
        Out::Port(port) => path.send(port, packet, trace),
        Out::Tunnel(tunnel) => {
            let tunnel = Some((tunnel, unrouted));
            if path.into_tunnel.tunnel != tunnel || path.into_tunnel.frames.is_full() {
                send_waiting(path, view, trace);
                path.into_tunnel.tunnel = tunnel;
            }
            path.into_tunnel.frames.push(packet);
        }
    }
}

/// The same by a link that is up.
#[inline(always)]
fn send_by<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, link): (LinkId, &Link),
    (packet, unrouted): (Packet, bool),
    trace: &mut T,
) {
    match out_by(view, id, link) {
        Some(out) => send_out(path, view, out, (packet, unrouted), trace),
        None => path.drop(packet, DropReason::NoPort, trace),
    }
}

/// Sends the frames that wait to go into a tunnel.
#[inline(always)]
fn send_waiting<const COUNT: bool, T: Trace>(path: &mut Path<COUNT>, view: &View<'_>, trace: &mut T) {
    if let Some(tunnel) = path.into_tunnel.tunnel.take() {
        let mut frames = std::mem::take(&mut path.into_tunnel.frames);
        send_frames(path, view, tunnel, &mut frames, trace);
    }
}

/// Takes frames that have come in by a link to the links above it: VLAN devices, a bridge, of which they go to all ports but `all_but`
/// if there are such. What is left is for the link itself.
#[inline(never)]
pub(crate) fn go_up<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, link, all_but): (LinkId, &Link, Option<Excluded>),
    burst: &mut Burst,
    trace: &mut T,
) {
    if let Some(vlans) = &link.vlans {
        // Of a port of a bridge the bridge takes the others first.
        vlan::receive_tagged(path, view, (vlans, link.bridge_port.is_none()), burst, trace);
    }
    if let Some(port) = &link.bridge_port {
        bridge::receive(path, view, ((id, link, port), all_but), burst, trace);
        send_waiting(path, view, trace);
    }
}

/// Frames come in by a link above another one: a VLAN device, a bridge.
#[inline(never)]
fn come_in_above<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, link): (LinkId, &Link),
    uncounted: u64,
    burst: &mut Burst,
    trace: &mut T,
) {
    // What is in them may be for the router, and come out of a tunnel to such a link again.
    if path.levels >= LEVELS {
        return burst.drain(..).for_each(|packet| path.drop(packet, DropReason::Loop, trace));
    }
    // These are of the link below.
    let (by, labelled) = (path.hooks.received_by, std::mem::take(&mut path.labelled));
    path.levels += 1;
    path.receive(view, (link.port.unwrap_or_default(), id, link), uncounted, burst, trace);
    path.levels -= 1;
    (path.hooks.received_by, path.labelled) = (by, labelled);
}

/// A frame that the router itself has made for such a link comes in by it, which does not count it.
#[cold]
fn take_in_above<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (id, link): (LinkId, &Link),
    packet: Packet,
    trace: &mut T,
) {
    let mut burst: Burst = [packet].into_iter().collect();
    let (by, labelled) = (path.hooks.received_by, std::mem::take(&mut path.labelled));
    path.take_in(view, (link.port.unwrap_or_default(), id, link), &mut burst, trace);
    (path.hooks.received_by, path.labelled) = (by, labelled);
}

/// The same of frames that have come out of a tunnel. A tunnel of the router to itself may be on their way, and bridges that are joined
/// by such are a loop.
pub(crate) fn go_up_from_tunnel<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    to: (LinkId, &Link, Option<Excluded>),
    burst: &mut Burst,
    trace: &mut T,
) {
    if path.ascents >= ASCENTS {
        return burst.drain(..).for_each(|packet| path.drop(packet, DropReason::Loop, trace));
    }
    path.ascents += 1;
    go_up(path, view, to, burst, trace);
    path.ascents -= 1;
}

/// The same of a frame that has come out of a tunnel by itself, if there are such links. `None`: it is gone.
#[inline(never)]
pub(crate) fn go_up_alone<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    mut meta: PacketMeta,
    trace: &mut T,
) -> Option<PacketMeta> {
    let link = view.link(meta.ingress);
    if let Some(port) = link.and_then(|link| link.to_bridge) {
        trace.step(Event::Kept(meta.ingress), &meta.packet);
        give_to_kernel(path, port, meta.packet, trace);
        return None;
    }
    let Some(link) = link.filter(|link| link.goes_up(meta.packet.bytes())) else {
        return Some(meta);
    };
    let mut burst: Burst = [meta.packet].into_iter().collect();
    go_up_from_tunnel(path, view, (meta.ingress, link, meta.extra.all_but), &mut burst, trace);
    meta.packet = burst.pop()?;
    Some(meta)
}

/// How often frames come up out of tunnels behind each other: each time a bridge may send copies to several. Linux:
/// `XMIT_RECURSION_LIMIT`.
const ASCENTS: u32 = 8;

/// How many levels a packet goes up, out of tunnels inside each other, and down: as deep as links may stand above each other, and as
/// often again by filters that redirect it back up.
const LEVELS: u32 = 16;

impl<const COUNT: bool> Path<COUNT> {
    /// Takes what waits to be sent by ports of links inside the router a level further down, in this round since the burst.
    /// Whether anything has come to another port, where it is still to be classified, queued and counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_down<T: Trace>(&mut self, view: &View<'_>, round: u32, trace: &mut T) -> bool {
        let mut passed = false;
        let mut last = None;
        while let Some(port) = self.transmit.used_after(last) {
            last = Some(port);
            let Some((id, link)) = view.tables.port_link(port, view.guard) else { continue };
            if link.swallows {
                self.transmit.drain(port).for_each(|packet| self.pool.give(packet));
            } else if link.is_above() && round >= LEVELS {
                let mut packets = self.transmit.take(port);
                packets.drain(..).for_each(|packet| self.drop(packet, DropReason::Loop, trace));
                self.transmit.give_back(port, packets);
            } else if let Some(vlan) = &link.vlan {
                passed |= vlan::send_tagged(self, view, port, vlan, trace);
                send_waiting(self, view, trace);
            } else if let Some(bridge) = &link.bridge {
                passed |= bridge::device::send_bridged(self, view, port, (id, link, bridge), trace);
                send_waiting(self, view, trace);
            }
        }
        passed
    }
}
