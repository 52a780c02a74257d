//! Routing headers of packets for the router itself, at an address that is no SID, where no kernel is beside it: SRHs
//! (RFC 8754 section 4.3.1; Linux: `ipv6_srh_rcv`), and what they have in common with those of RPL.

use std::net::Ipv6Addr;

use underpass_packet::ipv6_ext::Extension;
use underpass_packet::srh::{Malformed, Srh};
use underpass_packet::{FromBytes, ethernet, ipv6, protocol, srh};

use crate::buffer::Tag;
use crate::drops::DropReason;
use crate::hmac::Check;
use crate::path::ipv4::check as ipv4_check;
use crate::path::ipv6::check as ipv6_check;
use crate::path::options::Problem;
use crate::path::rules::{action_at, is_own6};
use crate::srv6;
use crate::tables::Action;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{BEHIND_LABEL, LED_INTO_VRF, PacketMeta};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Checks an SRH of a packet, which has `left` segments left.
pub(crate) fn check(
    packet: &ipv6::View<'_>,
    extension: &Extension<'_>,
    left: u8,
    check: &Check<'_>,
) -> Result<(), Problem> {
    match Srh::parse(extension.bytes) {
        Ok(srh) => check.check(&packet.header.source, &srh).map_err(Problem::silent),
        // RFC 8754 section 4.3.1.1, S03: "Proceed to process the next header", whatever else the SRH says.
        Err(_) if left == 0 && check.passes_plain() => Ok(()),
        // S12: "Send an ICMP Parameter Problem, Code 0, message to the Source Address,
        // pointing to the Segments Left field"
        Err(Malformed::LastEntry | Malformed::SegmentsLeft) => {
            let pointer = extension.offset + srh::SEGMENTS_LEFT_OFFSET;
            Err(Problem::notify(DropReason::SrhMalformed, IcmpError::Header, pointer))
        }
        Err(_) => Err(Problem::silent(DropReason::SrhMalformed)),
    }
}

/// Sends a packet for the router itself on to the next segment of the SRH at `at`, which has some left and has been
/// checked.
pub(crate) fn visit_next(view: &View<'_>, meta: &mut PacketMeta, at: usize) -> Verdict {
    let next = Srh::parse(meta.packet.bytes().get(at..).unwrap_or_default()).ok();
    let next = next.and_then(|srh| srh.segment(usize::from(srh.segments_left()).checked_sub(1)?));
    let ends = next.is_some_and(|next| !leads_on(view, meta, next));
    let advance = if ends { srv6::step_at } else { srv6::advance_at };
    let (_, next) = match advance(&mut meta.packet, at) {
        Ok(advanced) => advanced,
        Err(error) => return Verdict::Refuse(error),
    };
    // What leaves has its hop limit lowered then.
    if is_own(view, meta, next)
        && let Ok((header, _)) = ipv6::Header::mut_from_prefix(meta.packet.bytes_mut())
    {
        header.hop_limit -= 1;
    }
    Verdict::look6(meta, meta.extra.looked_in, next)
}

/// Whether there is a way to the next address of a routing header. Where there is none, its sender hears of that, or nothing,
/// whatever the hop limit is: Linux's `ipv6_srh_rcv` and `ipv6_rpl_srh_rcv` leave that to what forwards the packet.
pub(crate) fn leads_on(view: &View<'_>, meta: &PacketMeta, next: Ipv6Addr) -> bool {
    let action = action_at(view, meta.packet.bytes(), meta.extra.looked_in, next.into());
    !matches!(action, None | Some(Action::Discard(_)))
}

/// Takes a packet of this protocol, IPv6 or IPv4, out of one whose routing header is used up, as Linux does: it is as
/// if it had come in so.
pub(crate) fn take_inside(view: &View<'_>, meta: &mut PacketMeta, at: usize, protocol: u8) -> Verdict {
    let Some(link) = view.link(meta.ingress) else { return Verdict::drop(DropReason::LinkDown) };
    let frame = meta.link_layer();
    meta.packet.pull(at);
    let ethertype = if protocol == protocol::IPV6 { ethernet::IPV6 } else { ethernet::IPV4 };
    // Linux: `netif_rx`. Behind a label or in a VRF it comes in by another device.
    if link.classifies_ingress() && !link.in_vrf && !meta.is(BEHIND_LABEL | LED_INTO_VRF) {
        if !meta.look_up_again(link.lookup) {
            return Verdict::drop(DropReason::Loop);
        }
        let tag = meta.packet.tag();
        meta.packet.set_tag(Tag { headless: ethertype, packet_type: 0, ..tag });
        return Verdict::ClassifyIngress;
    }
    meta.put_link_layer_of(frame, ethertype);
    let bytes = meta.packet.bytes();
    if protocol == protocol::IPV6 {
        let Ok(checked) = ipv6_check(bytes) else { return Verdict::drop(DropReason::InnerMalformed) };
        meta.packet.truncate(checked.len);
        if checked.unusual || !link.forward6 {
            return Verdict::Unusual;
        }
        Verdict::look6(meta, link.lookup, checked.destination)
    } else {
        let Ok(checked) = ipv4_check(bytes) else { return Verdict::drop(DropReason::InnerMalformed) };
        meta.packet.truncate(checked.len);
        if checked.unusual || !link.forward4 {
            return Verdict::Unusual;
        }
        Verdict::look4(meta, link.lookup, checked.destination)
    }
}

/// Whether an address is one of the router's, in the tables that the packet was looked up in.
pub(crate) fn is_own(view: &View<'_>, meta: &PacketMeta, address: Ipv6Addr) -> bool {
    is_own6(view, meta.extra.looked_in, address)
}
