//! ARP requests for the router's own addresses, where no kernel beside it answers them: RFC 826.

use std::net::Ipv4Addr;

use underpass_packet::ethernet;

use crate::drops::DropReason;
use crate::path::rules::is_own4;
use crate::tables::{Action, Link};
use crate::trace::{Event, Trace};
use crate::worker::metadata::PacketMeta;
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Ethernet and IPv4, and their address lengths: the only ARP there is.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
const LEN: usize = 28;

/// Answers a request for an address that is the router's own in the tables of the link, as Linux
/// does with `arp_ignore` 0.
pub(crate) fn answer_arp<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    link: &Link,
    trace: &mut T,
) -> Verdict {
    let Some(message) = meta.packet.bytes().first_chunk::<LEN>() else {
        return Verdict::drop(DropReason::ArpMalformed);
    };
    if message[..6] != ETHERNET_IPV4 {
        return Verdict::drop(DropReason::ArpMalformed);
    }
    let target = Ipv4Addr::new(message[24], message[25], message[26], message[27]);
    // Addresses of 127.0.0.0/8 are of no link: Linux's `route_localnet` is off unless it is turned on.
    let of_none = target.is_loopback() || target.is_multicast();
    if message[6..8] != REQUEST || of_none || !is_own4(view, link.lookup, target) {
        return Verdict::Deliver;
    }
    let sender: [u8; 10] = std::array::from_fn(|i| message[8 + i]);
    let sender_mac: [u8; 6] = std::array::from_fn(|i| sender[i]);

    meta.packet.truncate(LEN);
    let reply = meta.packet.bytes_mut();
    reply[6..8].copy_from_slice(&REPLY);
    reply[8..14].copy_from_slice(&link.mac);
    reply[14..18].copy_from_slice(&target.octets());
    reply[18..28].copy_from_slice(&sender);
    let Ok(frame) = meta.packet.push(ethernet::Header::LEN) else {
        return Verdict::drop(DropReason::NoHeadroom);
    };
    frame[..6].copy_from_slice(&sender_mac);
    frame[6..12].copy_from_slice(&link.mac);
    frame[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
    trace.step(Event::Neighbour, &meta.packet);
    path.totals.delivered += 1;
    path.totals.generated += 1;
    meta.packet.untag();
    Verdict::Frame(meta.ingress)
}

impl View<'_> {
    /// Whether a leaf says that the address is the router's own.
    pub(crate) fn is_local(&self, leaf: u32) -> bool {
        matches!(self.tables.action(crate::tables::ActionId(leaf), self.guard), Some(Action::Local))
    }
}
