//! Relays to the sender of a packet inside what the underlay reports of the outer one: RFC 2473 section 8 and RFC 4213
//! section 3.4, Linux's `ip4ip6_err`, `ip6ip6_err` and `ip6_err_gen_icmpv6_unreach`.

use std::net::IpAddr;
use std::ops::Range;

use arrayvec::ArrayVec;
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::drops::DropReason;
use crate::mpls::error;
use crate::path::icmp::{answer_error, may_answer};
use crate::path::rules;
use crate::tables::{Action, LinkId, LookupId, StoredTunnel, TunnelKind};
use crate::trace::Trace;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{ExtraMeta, GROUP, PacketMeta};
use crate::worker::path::Path;
use crate::worker::view::{OUTSIDE, View};

/// What is passed on.
pub(crate) struct Relay<'a> {
    pub(crate) tunnel: &'a StoredTunnel,
    pub(crate) error: IcmpError,
    /// The MTU.
    pub(crate) argument: u32,
    /// Where the packet inside is quoted, as far as it is.
    pub(crate) quoted: Range<usize>,
}

/// Sends an error to the sender of the packet that an ICMP error quotes inside another.
#[cold]
pub(crate) fn relay_error<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    message: &PacketMeta,
    Relay { tunnel, error, argument, quoted }: Relay<'_>,
    trace: &mut T,
) {
    let Some(inside) = message.packet.bytes().get(quoted) else { return };
    let Some(front) = front_of(inside) else { return };
    let Some(sender) = may_answer(&front, error) else { return };
    let group = message.extra.flags & GROUP;
    // Linux takes the message for the packet that it tells of, and of one in a frame for a group it tells only this.
    if group != 0 && !(sender.is_ipv6() && error == IcmpError::TooBig) {
        return;
    }
    // Linux takes the message for one about a packet that has come in from the sender, outside of any VRF; what the underlay
    // says in IPv4, of which it tells nobody, is the tunnel's own affair.
    let lookup = if tunnel.kind.is_over_ipv6() { view.own_lookup(OUTSIDE) } else { tunnel.lookup };
    let Some(link) = link_to(view, &front, (tunnel, lookup), sender) else { return };
    let lookup = view.link(link).map_or(lookup, |link| link.lookup);
    if sender.is_ipv4() && !leads_into_ip6tnl(view, &front, lookup) {
        return;
    }
    let Some(mut copy) = path.pool.take_for(inside.len()) else { return };
    copy.bytes_mut().copy_from_slice(inside);
    path.totals.generated += 1;
    let at = copy.headroom();
    let mut meta = PacketMeta::new(copy, at, link, ExtraMeta::new(lookup));
    meta.extra.flags |= group;
    let about = (DropReason::TunnelUnreachable, error, argument);
    // Linux: `ip4ip6_err` calls `icmp_send`, which reads the options where those of the ICMPv6 message would be.
    let verdict = answer_error(path, view, &mut meta, about, (sender, &error::Stack::new(), false), trace);
    path.slow_path_alone(view, meta, verdict, trace);
}

/// The front of a packet that is quoted as far as it is, made one that is as long as what there is of it.
fn front_of(quoted: &[u8]) -> Option<ArrayVec<u8, LOOKED_AT>> {
    let mut front: ArrayVec<u8, LOOKED_AT> = quoted.iter().copied().take(LOOKED_AT).collect();
    let len = front.len() as u16;
    if front.first()? >> 4 == 6 {
        let (header, _) = ipv6::Header::mut_from_prefix(&mut front).ok()?;
        header.payload_length = len.checked_sub(ipv6::Header::LEN as u16)?.into();
    } else {
        let (header, options) = ipv4::Header::mut_from_prefix(&mut front).ok()?;
        header.total_length = len.into();
        let options_len = header.header_len().checked_sub(ipv4::Header::LEN)?;
        header.fill_checksum(options.get(..options_len)?);
    }
    Some(front)
}

/// As much of a packet as says who may get an error.
const LOOKED_AT: usize = 256;

/// The link by which packets to the sender of one that was in a tunnel leave.
fn link_to(
    view: &View<'_>,
    packet: &[u8],
    (tunnel, lookup): (&StoredTunnel, LookupId),
    sender: IpAddr,
) -> Option<LinkId> {
    match rules::action_at(view, packet, lookup, sender)? {
        Action::Forward(next_hop) => Some(view.tables.next_hop(*next_hop, view.guard)?.link),
        Action::OnLink(link) => Some(*link),
        Action::Vrf(route) => Some(route.link),
        Action::Discard(_) => None,
        _ => Some(tunnel.link),
    }
}

/// Whether an IPv4 packet goes where it has gone: Linux looks it up as if it came anew.
fn leads_into_ip6tnl(view: &View<'_>, packet: &[u8], lookup: LookupId) -> bool {
    let destination = ipv4::Header::ref_from_prefix(packet).map(|(header, _)| header.destination().into());
    let action = destination.ok().and_then(|to| rules::action_at(view, packet, lookup, to));
    let Some(Action::Tunnel(route)) = action else { return false };
    let into = view.tables.tunnels().tunnel(route.tunnel, view.guard);
    into.is_some_and(|into| into.kind == TunnelKind::Ip6tnl)
}

/// Whether a packet of this protocol and at least so many bytes is one whose sender can get an error.
pub(crate) const fn is_whole(inside: u8, len: usize) -> bool {
    match inside {
        protocol::IPV4 => len >= ipv4::Header::LEN,
        protocol::IPV6 => len >= ipv6::Header::LEN,
        _ => false,
    }
}
