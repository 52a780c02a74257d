//! What the host sends by the device of a tunnel.

use underpass_packet::ethernet;

use crate::buffer::PortId;
use crate::drops::DropReason;
use crate::qos::Nest;
use crate::tables::TunnelId;
use crate::trace::{Event, Trace};
use crate::tunnel::hook::send_into;
use crate::worker::path::{Burst, Path};
use crate::worker::view::View;

/// Takes a burst that the host has sent by the device of a tunnel: IP packets in frames that mean nothing, or the
/// frames that go in.
#[cold]
#[inline(never)]
pub(crate) fn take_from_host<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    port: PortId,
    id: TunnelId,
    burst: &mut Burst,
    trace: &mut T,
) {
    // It has come in by no link.
    path.hooks.received_by = None;
    for packet in burst.drain(..) {
        trace.step(Event::Received(port), &packet);
        if packet.len() > ethernet::Header::LEN {
            send_into(path, view, packet, (id, false), (None, Nest::default()), trace);
        } else {
            path.drop(packet, DropReason::EthernetTruncated, trace);
        }
    }
}
