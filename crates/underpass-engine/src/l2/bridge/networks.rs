//! Networks of an external VXLAN that are VLANs of a bridge: what comes in of one gets the tag of its VLAN. Linux:
//! `net/bridge/br_vlan_tunnel.c`.

use underpass_packet::ethernet;

use crate::buffer::Packet;
use crate::l2::bridge::{ADDRESSES, TAG};
use crate::qos::edit::{insert, tag_of};
use crate::tables::{Link, LinkId};
use crate::worker::view::View;

/// The tag of frames of a network that have come in by this link, if it is a VLAN there.
pub(crate) fn tag_in(view: &View<'_>, link: &Link, vni: u32) -> Option<[u8; TAG]> {
    let port = link.bridge_port.as_deref()?;
    let vlan = port.vlan_of(vni)?;
    let bridge = view.link(port.bridge).and_then(|link| link.bridge.as_deref());
    let filters = bridge.and_then(|bridge| bridge.filters.as_ref());
    let [a, b] = filters.map_or(ethernet::VLAN, |(protocol, _)| *protocol).to_be_bytes();
    let [c, d] = vlan.to_be_bytes();
    Some([a, b, c, d])
}

/// Puts a tag on a frame that has none. There is room: an outer header was there. Linux: `br_handle_ingress_vlan_tunnel`.
#[inline]
pub(crate) fn put_on(packet: &mut Packet, tag: [u8; TAG]) {
    if tag_of(packet.bytes()) == 0 {
        let _ = insert(packet, ADDRESSES, tag);
    }
}

/// Puts a frame of a network, which has come in by this link, into its VLAN.
#[cold]
pub(crate) fn enter_network(view: &View<'_>, id: LinkId, packet: &mut Packet, vni: u32) {
    let tag = view.link(id).and_then(|link| tag_in(view, link, vni));
    tag.into_iter().for_each(|tag| put_on(packet, tag));
}
