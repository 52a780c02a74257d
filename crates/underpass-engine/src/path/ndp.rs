//! Neighbour solicitations for the router's own addresses, where no kernel beside it answers them:
//! RFC 4861 section 7.2.4.

use std::net::Ipv6Addr;

use underpass_packet::{IntoBytes, ethernet, ipv6, ndisc, protocol};

use crate::buffer::HEADROOM;
use crate::drops::DropReason;
use crate::path::rules::is_own6;
use crate::tables::Link;
use crate::trace::{Event, Trace};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// An advertisement's headers, message and option.
const LONGEST: usize =
    ethernet::Header::LEN + ipv6::Header::LEN + ndisc::Message::LEN + size_of::<ndisc::LinkLayer>();

/// Answers a solicitation, whose message is at `at`, for an address of the link by which it has come in, or of its VRF. `None`:
/// not for this router. Linux: `ndisc_recv_ns`.
pub(crate) fn neighbour_solicitation<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    at: usize,
    trace: &mut T,
) -> Option<Verdict> {
    let link = view.link(meta.ingress)?;
    let ipv6::View { header, payload } = ipv6::View::parse(meta.packet.bytes()).ok()?;
    let message = payload.get(at.checked_sub(ipv6::Header::LEN)?..)?;
    let Some((target, source_mac)) = validate(header, message) else {
        return Some(Verdict::drop(DropReason::NeighbourMalformed));
    };
    let (solicitor, asked) = (header.source(), header.destination());
    if !is_own6(view, link.lookup, target) || !has(view, link, target) {
        return None;
    }
    if asked.is_multicast() && !listens(link, asked) {
        return None;
    }
    // RFC 4861 section 7.2.4: to the all-nodes group if the solicitation had no source.
    let (destination, mac, solicited) = if solicitor.is_unspecified() {
        (ALL_NODES, ALL_NODES_MAC, 0)
    } else {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = meta.link_layer()?;
        (solicitor, source_mac.unwrap_or([a, b, c, d, e, f]), ndisc::SOLICITED)
    };
    // RFC 4861 section 4.4: "When responding to a unicast Neighbor Solicitation this option MAY be omitted".
    let option = asked.is_multicast().then(|| ndisc::LinkLayer::new(ndisc::TARGET_LINK_LAYER, link.mac));
    let option = option.as_ref().map_or(&[][..], IntoBytes::as_bytes);
    // "If the Target Address is either an anycast address or a unicast address for which the node is providing proxy service, or
    // the Target Link-Layer Address option is not included, the Override flag SHOULD be set to zero."
    let anycast = link.anycast6.contains(&target);
    let overrides = if option.is_empty() || anycast { 0 } else { ndisc::OVERRIDE };
    let mut message = ndisc::Message::advertisement(target, ndisc::ROUTER | solicited | overrides);
    // Linux: `ndisc_send_na`.
    let source = if link.own6.contains(&target) { target } else { view.source6(link).unwrap_or(target) };
    message.fill_checksum(source, destination, option);
    let len = (ndisc::Message::LEN + option.len()) as u16;
    let header = ipv6::Header::new(source, destination, protocol::ICMPV6, ndisc::HOP_LIMIT, len);
    let ethernet = ethernet::Header::new(mac, link.mac, ethernet::IPV6);

    let mut reply = [0; LONGEST];
    let mut rest = &mut reply[..];
    for part in [ethernet.as_bytes(), header.as_bytes(), message.as_bytes(), option] {
        rest.split_off_mut(..part.len())?.copy_from_slice(part);
    }
    let unused = rest.len();
    meta.packet.set(HEADROOM, &reply[..LONGEST - unused]).ok()?;
    trace.step(Event::Neighbour, &meta.packet);
    path.totals.delivered += 1;
    path.totals.generated += 1;
    meta.packet.untag();
    Some(Verdict::Frame(meta.ingress))
}

/// Validates a solicitation as RFC 4861 section 7.1.1 says; its checksum is right. The address that it asks for, and the
/// link-layer address that it says is its sender's. `None`: it is to be dropped.
fn validate(header: &ipv6::Header, message: &[u8]) -> Option<(Ipv6Addr, Option<[u8; 6]>)> {
    // "The IP Hop Limit field has a value of 255".
    if header.hop_limit != ndisc::HOP_LIMIT {
        return None;
    }
    // "ICMP Code is 0", "ICMP length is 24 or more octets", "Target Address is not a multicast address", "All included options
    // have a length that is greater than zero".
    let solicitation = ndisc::View::parse(message).ok()?;
    let mac = solicitation.link_layer().ok()?;
    // "If the IP source address is the unspecified address, the IP destination address is a solicited-node multicast address",
    // and "there is no source link-layer address option in the message".
    let probe = header.source().is_unspecified();
    if probe && (mac.is_some() || !is_solicited_node(header.destination())) {
        return None;
    }
    Some((solicitation.message.target(), mac))
}

/// Whether a link has an address, or its VRF.
fn has(view: &View<'_>, link: &Link, address: Ipv6Addr) -> bool {
    let vrf = || view.vrf_of(link.lookup).is_some_and(|(_, vrf)| vrf.own6.contains(&address));
    link.own6.contains(&address) || link.anycast6.contains(&address) || link.in_vrf && vrf()
}

/// Whether a link is in a group to which solicitations are sent: that of one of its addresses, or one that all are in.
fn listens(link: &Link, group: Ipv6Addr) -> bool {
    let mut own = link.own6.iter().chain(&link.anycast6);
    matches!(group, ALL_NODES | ALL_ROUTERS) || own.any(|address| solicited_node(*address) == group)
}

/// The solicited-node group of an address: RFC 4291 section 2.7.1.
const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}

/// Whether an address is a solicited-node group.
fn is_solicited_node(address: Ipv6Addr) -> bool {
    solicited_node(address) == address
}
