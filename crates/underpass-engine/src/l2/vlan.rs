//! VLAN devices: frames of a link with their tag come in by them, and what they send goes by that link with the tag. Linux:
//! `vlan_do_receive`, `vlan_dev_hard_start_xmit`.

use arrayvec::ArrayVec;
use underpass_packet::ethernet;

use crate::buffer::{BURST, Packet, PortId, Tag};
use crate::drops::DropReason;
use crate::l2::{come_in_above, send_by};
use crate::path::ipv4;
use crate::qos::edit::{insert, remove};
use crate::tables::{LinkId, Vlan, Vlans};
use crate::trace::{Event, Trace};
use crate::worker::path::{Burst, Path};
use crate::worker::view::View;

/// Where the tag of a frame is: behind its addresses.
const ADDRESSES: usize = 12;

/// Length of a tag.
pub(crate) const TAG: usize = 4;

/// Bits for where a packet is in its burst.
const PLACE: u32 = 16;

/// Takes the frames of VLAN devices out of a burst; they come in by these. Those of a device go on together, whatever is
/// between them. `outermost`: a frame may have the tag behind one that gives a priority alone.
#[inline(never)]
pub(super) fn receive_tagged<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    (vlans, outermost): (&Vlans, bool),
    burst: &mut Burst,
    trace: &mut T,
) {
    // By packet: the link's id + 1, 0: none; and where the packet is in the burst.
    let link_of = |packet: &Packet| vlans.of_frame(packet.bytes()).map_or(0, |LinkId(id)| u64::from(id) + 1);
    let mut links: ArrayVec<u64, BURST> =
        burst.iter().zip(0..).map(|(packet, at): (_, u64)| link_of(packet) << PLACE | at).collect();
    let Some(mut first) = links.first().map(|link| link >> PLACE) else { return };
    if outermost && links.iter().any(|link| link >> PLACE == 0) && take_off_priorities(vlans, burst) {
        links = burst.iter().zip(0..).map(|(packet, at): (_, u64)| link_of(packet) << PLACE | at).collect();
        first = links.first().map_or(0, |link| link >> PLACE);
    }
    if links.iter().all(|link| link >> PLACE == first) {
        if let Some(id) = first.checked_sub(1) {
            receive_by(path, view, LinkId(id as u32), burst, trace);
        }
        return;
    }
    links.sort_unstable();
    let mut packets: ArrayVec<Option<Packet>, BURST> = burst.drain(..).map(Some).collect();
    for together in links.chunk_by(|one, other| one >> PLACE == other >> PLACE) {
        let taken =
            together.iter().filter_map(|link| packets.get_mut((link & ((1 << PLACE) - 1)) as usize)?.take());
        match together.first().and_then(|link| (link >> PLACE).checked_sub(1)) {
            Some(id) => receive_by(path, view, LinkId(id as u32), &mut taken.collect(), trace),
            None => burst.extend(taken),
        }
    }
}

/// Takes tags of no VLAN off frames that have one of a device behind it; whether there were such. Linux: `check_vlan_id` in
/// `__netif_receive_skb_core`.
#[cold]
fn take_off_priorities(vlans: &Vlans, burst: &mut Burst) -> bool {
    let mut found = false;
    for packet in burst.iter_mut() {
        for _ in 0..vlans.priorities(packet.bytes()) {
            found |= remove(packet, ADDRESSES).is_some();
        }
    }
    found
}

/// Frames with the tag of this device come in by it, without.
fn receive_by<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    id: LinkId,
    burst: &mut Burst,
    trace: &mut T,
) {
    let Some((link, vlan)) = view.link(id).and_then(|link| Some((link, link.vlan.as_deref()?))) else {
        burst.drain(..).for_each(|packet| path.drop(packet, DropReason::VlanUnknown, trace));
        return;
    };
    if !link.up {
        burst.drain(..).for_each(|packet| path.drop(packet, DropReason::LinkDown, trace));
        return;
    }
    for packet in burst.iter_mut() {
        take_off(packet, vlan);
    }
    // What is for the address of the link below Linux takes for the router's here, too.
    if let Some(lower) =
        view.link(vlan.lower).filter(|lower| lower.mac != link.mac && link.bridge_port.is_none())
    {
        burst.iter_mut().for_each(|packet| readdress(packet, lower.mac, link.mac));
    }
    let headers = burst.len() * ethernet::Header::LEN;
    come_in_above(path, view, (id, link), headers as u64, burst, trace);
}

/// A frame for one address of the router's is for another from now on.
#[inline(always)]
pub(super) fn readdress(packet: &mut Packet, old: [u8; 6], new: [u8; 6]) {
    if let Some(destination) = packet.bytes_mut().first_chunk_mut()
        && *destination == old
    {
        *destination = new;
    }
}

/// Takes the tag of a device off a frame that has it, and gives the frame the priority that the device says.
#[inline(always)]
pub(crate) fn take_off(packet: &mut Packet, vlan: &Vlan) {
    if let Some(&[.., control]) = packet.bytes().first_chunk::<{ ADDRESSES + 3 }>() {
        let priority = vlan.ingress[usize::from(control >> 5)];
        if priority != packet.tag().priority {
            packet.set_tag(Tag { priority, ..packet.tag() });
        }
    }
    // A frame that has a tag is long enough for it.
    let _ = remove(packet, ADDRESSES);
}

/// Takes the outermost tag off a frame, if a VLAN device above a link has it: that device.
pub(crate) fn take_tag(view: &View<'_>, packet: &mut Packet, lower: LinkId) -> Option<LinkId> {
    let id = view.link(lower)?.vlans.as_ref()?.of_frame(packet.bytes())?;
    take_off(packet, view.link(id)?.vlan.as_deref()?);
    Some(id)
}

/// What the host sends by a VLAN device or a bridge, if the port is one of these, leaves by it.
#[cold]
#[inline(never)]
pub(crate) fn send_from_host<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    port: PortId,
    burst: &mut Burst,
    trace: &mut T,
) {
    let Some((_, link)) = view.tables.host_port_link(port, view.guard).filter(|(_, link)| link.up) else {
        return;
    };
    let Some(inside) = link.port else { return };
    for mut packet in burst.drain(..) {
        trace.step(Event::Received(port), &packet);
        if packet.len() < ethernet::Header::LEN {
            path.drop(packet, DropReason::EthernetTruncated, trace);
            continue;
        }
        ipv4::prioritize_frame(view, &mut packet);
        path.send(inside, packet, trace);
    }
}

/// Sends what waits at the port of a VLAN device by the link below it, with its tag. Whether that has a port.
pub(super) fn send_tagged<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    port: PortId,
    vlan: &Vlan,
    trace: &mut T,
) -> bool {
    let mut packets = path.transmit.take(port);
    let any = !packets.is_empty();
    let lower = view.link(vlan.lower).filter(|lower| lower.up);
    for mut packet in packets.drain(..) {
        let tag = vlan.tag(packet.tag().priority);
        let tagged = || packet.bytes().get(ADDRESSES..ADDRESSES + 2) == Some(&tag[..2]);
        if !(vlan.keeps_tags && tagged()) && insert(&mut packet, ADDRESSES, tag).is_none() {
            path.drop(packet, DropReason::NoHeadroom, trace);
            continue;
        }
        let Some(lower) = lower else {
            path.drop(packet, DropReason::LinkDown, trace);
            continue;
        };
        send_by(path, view, (vlan.lower, lower), (packet, false), trace);
    }
    path.transmit.give_back(port, packets);
    any
}
