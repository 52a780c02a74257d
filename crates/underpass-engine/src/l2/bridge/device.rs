//! What the device of a bridge sends: a frame leaves by the port of its station, or by all. Linux: `net/bridge/br_device.c`.

use underpass_packet::ethernet;

use super::{Flood, TICK, Tagged, Way, addresses, enter_vlan, find, flood, leave, takes};
use crate::buffer::{Packet, PortId};
use crate::drops::DropReason;
use crate::l2::answer::{answer, is_arp_or_nd};
use crate::l2::fdb::Station;
use crate::tables::{Bridge, Link, LinkId};
use crate::trace::Trace;
use crate::worker::path::Path;
use crate::worker::view::View;

/// Sends what waits at the port of a bridge's device by the ports of the bridge. Linux: `br_dev_xmit`.
pub(in crate::l2) fn send_bridged<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    port: PortId,
    (id, link, bridge): (LinkId, &Link, &Bridge),
    trace: &mut T,
) -> bool {
    let mut packets = path.transmit.take(port);
    let any = !packets.is_empty();
    let now = view.now / TICK;
    let way = Way { id, link, bridge, from: None, now, all_but: None, suppressed: false };
    let suppresses = bridge.answering.as_ref().is_some_and(|answering| answering.suppresses);
    if suppresses && packets.iter().any(|packet| is_arp_or_nd(packet.bytes())) {
        for packet in packets.drain(..) {
            send_arp_nd(path, view, &way, packet, trace);
        }
    }
    for packet in packets.drain(..) {
        if let Some((packet, to, tagged)) = leave_device(path, &way, packet, trace) {
            send_on(path, view, &way, packet, (to, tagged), trace);
        }
    }
    path.transmit.give_back(port, packets);
    any
}

/// The same of a frame in a bridge that answers for others, which may be a request.
#[cold]
#[inline(never)]
fn send_arp_nd<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: Packet,
    trace: &mut T,
) {
    if let Some((packet, to, tagged)) = leave_device(path, way, packet, trace) {
        let suppressed = answer(path, view, way, (&packet, tagged), trace);
        send_on(path, view, &Way { suppressed, ..*way }, packet, (to, tagged), trace);
    }
}

/// Lets a frame of the bridge's device into the bridge: with its destination, and the VLAN that it is in. `None`: it is dropped.
#[inline(always)]
fn leave_device<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    way: &Way<'_>,
    mut packet: Packet,
    trace: &mut T,
) -> Option<(Packet, [u8; 6], Option<Tagged>)> {
    let Some([destination, _]) = addresses(packet.bytes()) else {
        path.drop(packet, DropReason::EthernetTruncated, trace);
        return None;
    };
    let mut tagged = None;
    if let Some((protocol, vlans)) = &way.bridge.filters {
        tagged = enter_vlan(&mut packet, *protocol, Some(vlans));
        if tagged.is_none() {
            path.drop(packet, DropReason::BridgeVlan, trace);
            return None;
        }
    }
    Some((packet, destination, tagged))
}

/// Sends a frame of the bridge's device by the ports that it is for.
#[inline(always)]
fn send_on<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    packet: Packet,
    (destination, tagged): ([u8; 6], Option<Tagged>),
    trace: &mut T,
) {
    let station = Station::new(destination, tagged.map_or(0, |tagged| tagged.id));
    let whom = match destination {
        ethernet::BROADCAST => Flood::All,
        [first, ..] if first & 1 != 0 => Flood::Group,
        _ => match find(way, station) {
            Some(entry) => {
                return match takes(view, way, entry.link, tagged) {
                    Some(to) => leave(path, view, (entry.link, to), packet, tagged, trace),
                    None => path.drop(packet, DropReason::BridgeNowhere, trace),
                };
            }
            None => Flood::Unknown,
        },
    };
    flood(path, view, way, packet, (tagged, whom), trace);
}
