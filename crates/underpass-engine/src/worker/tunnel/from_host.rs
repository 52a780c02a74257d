//! What the host sends by the device of a tunnel.

use underpass_packet::ethernet;

use super::super::road::{Extra, OPAQUE};
use super::super::{Burst, Path, Road, View};
use super::encapsulate::is_ip;
use crate::buffer::PortId;
use crate::drops::Drop;
use crate::tables::{Inside, LinkId, TunnelId};
use crate::trace::{Event, Trace};

impl<const COUNT: bool> Path<COUNT> {
    /// Takes a burst that the host has sent by the device of a tunnel: IP packets in frames that mean nothing, or the
    /// frames that go in.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn take_from_host<T: Trace>(
        &mut self,
        view: &View<'_>,
        (port, ingress): (PortId, LinkId),
        id: TunnelId,
        burst: &mut Burst,
        trace: &mut T,
    ) {
        let instance = view.link(ingress).map(|link| link.lookup);
        let frames =
            view.tables.tunnels().tunnel(id, view.guard).is_some_and(|tunnel| tunnel.kind.carries_frames());
        for mut packet in burst.drain(..) {
            trace.step(Event::Received(port), &packet);
            let Some(instance) = instance.filter(|_| packet.len() > ethernet::Header::LEN) else {
                self.drop(packet, Drop::EthernetTruncated, trace);
                continue;
            };
            let at = packet.headroom() + ethernet::Header::LEN;
            if !frames {
                packet.pull(ethernet::Header::LEN);
            }
            let mut road = Road::new(packet, at, ingress, Extra::new(instance));
            if frames {
                // Its sender is told about the packet in the frame.
                road.wrapped(ethernet::Header::LEN, None);
                if !is_ip(road.packet.bytes(), Inside::Frame) {
                    road.extra.flags |= OPAQUE;
                }
            }
            let step = self.encapsulate_in(view, &mut road, id, trace);
            self.carry_alone(view, road, step, trace);
        }
    }
}
