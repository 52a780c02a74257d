//! A bridge answers ARP requests and neighbour solicitations for stations that it knows, and does not flood them to ports that
//! suppress them. Linux: `net/bridge/br_arp_nd_proxy.c`.

use std::net::{IpAddr, Ipv6Addr};

use underpass_packet::{FromBytes, IntoBytes, arp, ethernet, ipv6, ndisc, protocol};

use super::bridge::{ADDRESSES, Tagged, Way, find};
use crate::buffer::{HEADROOM, Packet};
use crate::drops::DropReason;
use crate::l2::fdb::Station;
use crate::l2::{send_by, take_in_above};
use crate::qos::edit::{insert, tag_of};
use crate::tables::{Answering, BridgePort, LinkId, Neighbour};
use crate::trace::{Event, Trace};
use crate::worker::path::Path;
use crate::worker::view::View;

/// A message of ARP or of neighbour discovery.
enum ArpNd<'a> {
    Arp(&'a arp::Packet),
    /// A solicitation or an advertisement, with its options and all that is behind them in the frame.
    Nd(&'a ipv6::Header, &'a ndisc::Message, &'a [u8]),
}

/// What a bridge that answers for others does with one.
enum Suppression {
    /// It is flooded as any frame.
    Flood,
    /// It is not flooded to ports that suppress it.
    Suppress,
    /// The same, and it is answered for this neighbour.
    Reply(Neighbour),
}

/// Whether a frame is a message of ARP or of neighbour discovery.
pub(super) fn is_arp_or_nd(frame: &[u8]) -> bool {
    parse(frame, tag_of(frame)).is_some()
}

/// Reads a frame that has so many bytes of tags.
fn parse(frame: &[u8], tag: usize) -> Option<ArpNd<'_>> {
    let behind = frame.get(ADDRESSES + tag..)?;
    let (kind, payload) = behind.split_first_chunk()?;
    match u16::from_be_bytes(*kind) {
        ethernet::ARP | ethernet::RARP => arp::Packet::parse_of_any_hardware(payload).ok().map(ArpNd::Arp),
        ethernet::IPV6 => {
            let (header, payload) = ipv6::Header::ref_from_prefix(payload).ok()?;
            let (message, options) = ndisc::Message::parse_prefix(payload).ok()?;
            let is = header.next_header == protocol::ICMPV6;
            is.then_some(ArpNd::Nd(header, message, options))
        }
        _ => None,
    }
}

/// Answers a frame, if the bridge knows the answer. Whether it is flooded to ports alone that do not suppress such.
pub(super) fn answer<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    (packet, tagged): (&Packet, Option<Tagged>),
    trace: &mut T,
) -> bool {
    let Some(answering) = way.bridge.answering.as_deref() else { return false };
    let frame = packet.bytes();
    let tag = match &tagged {
        Some(tagged) => usize::from(tagged.inside) * tagged.tag.len(),
        None => tag_of(frame),
    };
    let vlan = tagged.map_or(0, |tagged| tagged.id);
    let proxy = Proxy { view, way, answering, vlan };
    let suppression = match parse(frame, tag) {
        Some(ArpNd::Arp(request)) => proxy.decide_arp(request),
        Some(ArpNd::Nd(header, message, _)) => proxy.decide_nd(header, message),
        None => Suppression::Flood,
    };
    let Suppression::Reply(neighbour) = suppression else {
        return matches!(suppression, Suppression::Suppress);
    };
    match parse(frame, tag) {
        Some(ArpNd::Arp(request)) => {
            send(path, view, way, &reply_to_arp(request, neighbour), tagged, trace);
        }
        Some(ArpNd::Nd(header, message, options)) => {
            let reply = advertisement(frame, (header, message, options), neighbour);
            reply.into_iter().for_each(|reply| send(path, view, way, &reply, tagged, trace));
        }
        None => {}
    }
    true
}

/// The bridge where a message comes in, and the VLAN.
struct Proxy<'a> {
    view: &'a View<'a>,
    way: &'a Way<'a>,
    answering: &'a Answering,
    vlan: u16,
}

impl Proxy<'_> {
    /// Linux: `br_do_proxy_suppress_arp`.
    fn decide_arp(&self, request: &arp::Packet) -> Suppression {
        let (sender, target, operation) = (request.sender(), request.target(), request.operation.get());
        if !self.answering.arp || target.is_loopback() || target.is_multicast() {
            return Suppression::Flood;
        }
        if self.answering.suppresses {
            if self.is_suppressed_here() {
                return Suppression::Flood;
            }
            let reverse = matches!(operation, arp::REVERSE_REQUEST | arp::REVERSE_REPLY);
            if !reverse && (sender.is_unspecified() || sender == target) {
                return Suppression::Suppress;
            }
        }
        if operation != arp::REQUEST {
            return Suppression::Flood;
        }
        let for_all = self.ingress().is_some_and(|port| port.proxy_arp);
        self.decide(target.into(), |port| {
            for_all || port.is_some_and(|port| port.proxy_arp_wifi || port.suppresses.has(self.vlan))
        })
    }

    /// Linux: `br_do_suppress_nd`.
    fn decide_nd(&self, header: &ipv6::Header, message: &ndisc::Message) -> Suppression {
        if !self.answering.suppresses || self.is_suppressed_here() {
            return Suppression::Flood;
        }
        if !message.is_solicitation() {
            let solicited = message.flags.get() & ndisc::SOLICITED != 0;
            return if solicited { Suppression::Flood } else { Suppression::Suppress };
        }
        if header.source() == Ipv6Addr::UNSPECIFIED || header.source == header.destination {
            return Suppression::Suppress;
        }
        let suppresses = |port: &BridgePort| port.suppresses.has(self.vlan);
        self.decide(message.target().into(), |port| port.is_some_and(suppresses))
    }

    fn ingress(&self) -> Option<&BridgePort> {
        self.way.from.map(|(_, _, port)| port)
    }

    fn is_suppressed_here(&self) -> bool {
        self.ingress().is_some_and(|port| port.suppresses.has(self.vlan))
    }

    /// What is done with a request for an address, if `answers` says whether it is answered for a station behind a port, or for
    /// the bridge itself.
    fn decide(&self, target: IpAddr, answers: impl Fn(Option<&BridgePort>) -> bool) -> Suppression {
        let Self { view, way, answering, vlan } = *self;
        let Some(device) = self.device() else { return Suppression::Flood };
        if answering.suppresses && answering.is_own(device, target) {
            return Suppression::Suppress;
        }
        let Some(neighbour) = view.tables.neighbour(device, target, view.guard) else {
            return Suppression::Flood;
        };
        let Some(entry) = find(way, Station::new(neighbour.mac, vlan)) else { return Suppression::Flood };
        let port = view.link(entry.link).and_then(|link| link.bridge_port.as_deref());
        match answers(port) {
            true => Suppression::Reply(neighbour),
            false if answering.suppresses => Suppression::Suppress,
            false => Suppression::Flood,
        }
    }

    /// Whose neighbours are asked for: the bridge's, or those of the device of the VLAN.
    fn device(&self) -> Option<LinkId> {
        match &self.way.bridge.filters {
            Some((protocol, _)) if self.vlan != 0 => {
                self.way.link.vlans.as_ref()?.of_tag(*protocol, self.vlan)
            }
            _ => Some(self.way.id),
        }
    }
}

const ARP_REPLY: usize = ethernet::Header::LEN + arp::Packet::LEN;

fn reply_to_arp(request: &arp::Packet, neighbour: Neighbour) -> [u8; ARP_REPLY] {
    let asker = (request.sender_mac, request.sender());
    let header = ethernet::Header::new(request.sender_mac, neighbour.mac, ethernet::ARP);
    let reply = arp::Packet::new(arp::REPLY, (neighbour.mac, request.target()), asker);
    let mut frame = [0; ARP_REPLY];
    let (first, second) = frame.split_at_mut(ethernet::Header::LEN);
    first.copy_from_slice(header.as_bytes());
    second.copy_from_slice(reply.as_bytes());
    frame
}

const OPTION: usize = 8;
const ADVERTISEMENT: usize = ethernet::Header::LEN + ipv6::Header::LEN + ndisc::Message::LEN + OPTION;

/// The answer to a solicitation. `None`: an option of it is none. Linux: `br_nd_send`.
fn advertisement(
    frame: &[u8],
    (asked, solicitation, options): (&ipv6::Header, &ndisc::Message, &[u8]),
    neighbour: Neighbour,
) -> Option<[u8; ADVERTISEMENT]> {
    let asker = match source_option(options) {
        Ok(Some(mac)) => mac,
        Ok(None) => *frame.get(6..)?.first_chunk()?,
        Err(()) => return None,
    };
    let target = solicitation.target();
    let router = if neighbour.router { ndisc::ROUTER } else { 0 };
    let mut message = ndisc::Message::advertisement(target, router | ndisc::SOLICITED | ndisc::OVERRIDE);
    let [a, b, c, d, e, f] = neighbour.mac;
    let option = [ndisc::TARGET_LINK_LAYER, 1, a, b, c, d, e, f];
    message.fill_checksum(target, asked.source(), &option);
    let length = (ndisc::Message::LEN + OPTION) as u16;
    let mut header = ipv6::Header::new(target, asked.source(), protocol::ICMPV6, ndisc::HOP_LIMIT, length);
    // Of the traffic class Linux copies what was the priority once.
    header.set_traffic_class(asked.traffic_class() & 0xf0);
    let ethernet = ethernet::Header::new(asker, neighbour.mac, ethernet::IPV6);

    let mut reply = [0; ADVERTISEMENT];
    let mut rest = &mut reply[..];
    for part in [ethernet.as_bytes(), header.as_bytes(), message.as_bytes(), &option] {
        rest.split_off_mut(..part.len())?.copy_from_slice(part);
    }
    Some(reply)
}

/// The link-layer address that the options of a solicitation say, up to the first that says one.
fn source_option(mut options: &[u8]) -> Result<Option<[u8; 6]>, ()> {
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).ok_or(())?;
        match option {
            [] => return Err(()),
            [_, _, mac @ ..] if kind == ndisc::SOURCE_LINK_LAYER => return Ok(mac.first_chunk().copied()),
            _ => options = rest,
        }
    }
    Ok(None)
}

/// Sends an answer back by the port by which the request has come in, with the tag that it had there, unless that port's frames
/// without a tag are of this VLAN; or it comes in by the bridge's device, which has asked. Linux: `br_arp_send`, `br_nd_send`.
fn send<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    way: &Way<'_>,
    frame: &[u8],
    tagged: Option<Tagged>,
    trace: &mut T,
) {
    path.totals.generated += 1;
    let Some(mut packet) = path.pool.take() else {
        path.counters.add_drop(DropReason::NoBuffer, 1);
        return;
    };
    let vlans = match way.from {
        Some((_, _, port)) => port.vlans.as_deref(),
        None => way.bridge.filters.as_ref().map(|(_, vlans)| &**vlans),
    };
    let untagged = vlans.map_or(0, |vlans| vlans.untagged_are);
    let tag = tagged.filter(|tagged| tagged.id != untagged).map(|tagged| tagged.tag);
    let made = packet.set(HEADROOM, frame).ok();
    if made.and_then(|()| tag.map_or(Some(()), |tag| insert(&mut packet, ADDRESSES, tag))).is_none() {
        return path.drop(packet, DropReason::NoHeadroom, trace);
    }
    trace.step(Event::Neighbour, &packet);
    let is_arp = || frame.get(ADDRESSES..ADDRESSES + 2) == Some(&ethernet::ARP.to_be_bytes());
    match way.from {
        Some((id, link, _)) => send_by(path, view, (id, link), (packet, true), trace),
        // Linux sends it by the device then, where whoever has asked is not.
        None if tagged.is_none() && is_arp() => {
            send_by(path, view, (way.id, way.link), (packet, true), trace);
        }
        None => {
            // Linux takes it for the router's, whatever its address is.
            if let Some(destination) = packet.bytes_mut().first_chunk_mut() {
                *destination = way.link.mac;
            }
            take_in_above(path, view, (way.id, way.link), packet, trace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_by_linux() {
        let source = [1, 1, 2, 0, 0, 0, 0, 9];
        let mac = Ok(Some([2, 0, 0, 0, 0, 9]));
        assert_eq!(source_option(&[]), Ok(None));
        assert_eq!(source_option(&[1]), Ok(None));
        assert_eq!(source_option(&source), mac);
        assert_eq!(source_option(&[&[14, 2][..], &[0; 14], &source].concat()), mac);
        assert_eq!(source_option(&[&source[..], &[14, 0]].concat()), mac);
        assert_eq!(source_option(&[14, 0]), Err(()));
        assert_eq!(source_option(&source[..7]), Err(()));
        assert_eq!(source_option(&[&[14, 3][..], &[0; 14]].concat()), Err(()));
    }
}
