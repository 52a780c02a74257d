//! Neighbour solicitations for the router's own addresses, where no kernel beside it answers them:
//! RFC 4861 section 7.2.4.

use std::net::Ipv6Addr;

use underpass_packet::{ethernet, ipv6};

use crate::path::icmp_sum::fill_checksum6;
use crate::path::rules::is_own6;
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

/// Router, solicited, override.
const FLAGS: u8 = 0xe0;
const FLAG_SOLICITED: u8 = 0x40;

/// Answers a solicitation for an address that is the router's own. `None`: not a solicitation, or
/// not for this router.
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
    if target.is_multicast() || !is_own6(view, link.lookup, target) {
        return None;
    }
    let solicitor = header.source();
    let frame = meta.link_layer()?;
    let solicitor_mac: [u8; 6] = std::array::from_fn(|i| frame[6 + i]);
    // RFC 4861 section 7.2.4: to the all-nodes group if the solicitation had no source.
    let (destination, mac, flags) = if solicitor.is_unspecified() {
        (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), [0x33, 0x33, 0, 0, 0, 1], FLAGS & !FLAG_SOLICITED)
    } else {
        (solicitor, solicitor_mac, FLAGS)
    };

    let mut message = [0; LEN + 8];
    (message[0], message[4]) = (ADVERTISEMENT, flags);
    message[8..24].copy_from_slice(&target.octets());
    message[24..26].copy_from_slice(&OPTION);
    message[26..32].copy_from_slice(&link.mac);
    let header =
        ipv6::Header::new(target, destination, underpass_packet::protocol::ICMPV6, 255, message.len() as u16);
    fill_checksum6(&header, &mut message);
    let ethernet = ethernet::Header::new(mac, link.mac, ethernet::IPV6);

    let mut reply = [0; ethernet::Header::LEN + ipv6::Header::LEN + LEN + 8];
    let (first, rest) = reply.split_at_mut(ethernet::Header::LEN);
    first.copy_from_slice(underpass_packet::IntoBytes::as_bytes(&ethernet));
    let (second, third) = rest.split_at_mut(ipv6::Header::LEN);
    second.copy_from_slice(underpass_packet::IntoBytes::as_bytes(&header));
    third.copy_from_slice(&message);
    meta.packet.set(crate::buffer::HEADROOM, &reply).ok()?;
    trace.step(Event::Neighbour, &meta.packet);
    path.totals.delivered += 1;
    path.totals.generated += 1;
    meta.packet.untag();
    Some(Verdict::Frame(meta.ingress))
}
