//! Neighbour solicitations for the router's own addresses, where no kernel beside it answers them:
//! RFC 4861 section 7.2.4.

use std::net::Ipv6Addr;

use underpass_packet::{ethernet, ipv6};

use crate::path::icmp_sum::fill_checksum6;
use crate::path::rules::is_own6;
use crate::tables::Link;
use crate::trace::{Event, Trace};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Fixed part of a solicitation or an advertisement.
const LEN: usize = 24;

/// The target link-layer address option.
const OPTION: [u8; 2] = [2, 1];
const OPTION_LEN: usize = 8;

const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Answers a solicitation for an address of the link by which it has come in, or of its VRF. `None`: not a solicitation, or not
/// for this router. Linux: `ndisc_recv_ns`.
pub(crate) fn neighbour_solicitation<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    let link = view.link(meta.ingress)?;
    let ipv6::View { header, payload } = ipv6::View::parse(meta.packet.bytes()).ok()?;
    // RFC 4861 section 7.1.1: "The IP Hop Limit field has a value of 255".
    if header.hop_limit != 255 || payload.len() < LEN || payload[..2] != [SOLICITATION, 0] {
        return None;
    }
    let target = Ipv6Addr::from_octets(*payload.get(8..)?.first_chunk()?);
    if target.is_multicast() || !is_own6(view, link.lookup, target) || !has(view, link, target) {
        return None;
    }
    let (solicitor, asked) = (header.source(), header.destination());
    if asked.is_multicast() && !listens(link, asked) {
        return None;
    }
    let frame = meta.link_layer()?;
    let solicitor_mac: [u8; 6] = std::array::from_fn(|i| frame[6 + i]);
    // RFC 4861 section 7.2.4: to the all-nodes group if the solicitation had no source.
    let (destination, mac, flags) = if solicitor.is_unspecified() {
        (ALL_NODES, [0x33, 0x33, 0, 0, 0, 1], FLAG_ROUTER | FLAG_OVERRIDE)
    } else if asked.is_multicast() {
        (solicitor, solicitor_mac, FLAG_ROUTER | FLAG_SOLICITED | FLAG_OVERRIDE)
    } else {
        (solicitor, solicitor_mac, FLAG_ROUTER | FLAG_SOLICITED)
    };
    // RFC 4861 section 4.4: "When responding to a unicast Neighbor Solicitation this option MAY be omitted".
    let len = if flags & FLAG_OVERRIDE != 0 { LEN + OPTION_LEN } else { LEN };

    let mut message = [0; LEN + OPTION_LEN];
    (message[0], message[4]) = (ADVERTISEMENT, flags);
    message[8..24].copy_from_slice(&target.octets());
    message[24..26].copy_from_slice(&OPTION);
    message[26..32].copy_from_slice(&link.mac);
    // Linux: `ndisc_send_na`.
    let source = if link.own6.contains(&target) { target } else { link.source6.unwrap_or(target) };
    let header = ipv6::Header::new(source, destination, underpass_packet::protocol::ICMPV6, 255, len as u16);
    fill_checksum6(&header, &mut message[..len]);
    let ethernet = ethernet::Header::new(mac, link.mac, ethernet::IPV6);

    let mut reply = [0; ethernet::Header::LEN + ipv6::Header::LEN + LEN + OPTION_LEN];
    let (first, rest) = reply.split_at_mut(ethernet::Header::LEN);
    first.copy_from_slice(underpass_packet::IntoBytes::as_bytes(&ethernet));
    let (second, third) = rest.split_at_mut(ipv6::Header::LEN);
    second.copy_from_slice(underpass_packet::IntoBytes::as_bytes(&header));
    third.copy_from_slice(&message);
    let length = ethernet::Header::LEN + ipv6::Header::LEN + len;
    meta.packet.set(crate::buffer::HEADROOM, &reply[..length]).ok()?;
    trace.step(Event::Neighbour, &meta.packet);
    path.totals.delivered += 1;
    path.totals.generated += 1;
    meta.packet.untag();
    Some(Verdict::Frame(meta.ingress))
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

/// RFC 4291 section 2.7.1.
const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}
