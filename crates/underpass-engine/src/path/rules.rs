//! Look-ups off the fast path: policy rules that look at more than the destination, `throw` routes,
//! and packets that no first table had a route for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::drops::DropReason;
use crate::tables::{
    Action, ActionId, Discard, Fib4Id, Fib6Id, Link, LookupId, PortMatch, Rule, RuleAction, Via,
};
use crate::trace::{Event, Trace};
use crate::worker::error::IcmpError;
use crate::worker::metadata::{BEHIND_LABEL, BEHIND_SID, GENERATED, LED_INTO_VRF, PacketMeta, Slow};
use crate::worker::path::Path;
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// What a policy rule can look at.
struct Selectors {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: Option<(u16, u16)>,
    tos: u8,
    /// 0 of an IPv4 packet, which a rule by flow label passes over.
    flow_label: u32,
    mark: u32,
}

/// Goes through the rules and tables one by one.
pub(crate) fn look_slow<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    id: LookupId,
    trace: &mut T,
) -> Verdict {
    if !meta.look_up_again(id) {
        return Verdict::drop(DropReason::Loop);
    }
    let address: IpAddr = match meta.extra.slow {
        Slow::Target4 => meta.target4.into(),
        Slow::Target6 => meta.target6.into(),
    };
    let Some(mut selectors) = Selectors::read(meta.packet.bytes(), address, meta.extra.mark) else {
        return Verdict::drop(DropReason::NoRoute);
    };
    if meta.is(GENERATED) {
        selectors.take_message(meta.packet.bytes());
    }
    if meta.is(BEHIND_SID) && address.is_ipv6() {
        selectors.take_next_header(meta.packet.bytes());
    }
    let (rule, found) = selectors.decide(view, id, address);
    if let Some(priority) = rule {
        trace.step(Event::Rule(priority), &meta.packet);
    }
    match found {
        Ok(found) => {
            trace.step(Event::Lookup(address, found), &meta.packet);
            found.map_or(Verdict::error(DropReason::NoRoute, IcmpError::NoRoute), Verdict::Act)
        }
        // In IPv4 the network, not the host, is said to be unreachable.
        Err(Discard::Unreachable) => Verdict::error(DropReason::Unreachable, IcmpError::NoRoute),
        Err(discard) => path.discard(view, meta, discard),
    }
}

/// What an IPv6 packet with this mark leads to, were it looked up by `address`: as the slow look-up would find it.
///
/// # Errors
/// The rule that it ends at.
pub(crate) fn find6(
    view: &View<'_>,
    packet: &[u8],
    id: LookupId,
    address: Ipv6Addr,
    mark: u32,
) -> Result<Option<ActionId>, Discard> {
    match Selectors::read(packet, address.into(), mark) {
        Some(selectors) => selectors.find(view, id, address.into()),
        None => Ok(None),
    }
}

/// What a packet without a mark leads to, were it looked up by `address`.
pub(crate) fn action_at<'a>(
    view: &View<'a>,
    packet: &[u8],
    id: LookupId,
    address: IpAddr,
) -> Option<&'a Action> {
    view.tables.action(leaf_at(view, packet, id, address)?, view.guard)
}

/// The same as an id.
pub(crate) fn leaf_at(view: &View<'_>, packet: &[u8], id: LookupId, address: IpAddr) -> Option<ActionId> {
    Selectors::read(packet, address, 0)?.find(view, id, address).ok()?
}

/// What a packet of this router's own with this protocol inside leads to, of which nothing else is said yet.
pub(crate) fn own_at(view: &View<'_>, protocol: u8, id: LookupId, address: IpAddr) -> Option<ActionId> {
    let source = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let said =
        Selectors { source, destination: address, protocol, ports: None, tos: 0, flow_label: 0, mark: 0 };
    said.find(view, id, address).ok()?
}

/// What a message of this router's own leads to, were it looked up by `address`.
pub(crate) fn message_at(view: &View<'_>, message: &[u8], id: LookupId, address: IpAddr) -> Option<ActionId> {
    let mut selectors = Selectors::read(message, address, 0)?;
    selectors.take_message(message);
    selectors.find(view, id, address).ok()?
}

/// Whether an IPv4 address is one of the router's in these tables, as packets are looked up that no rule selects. Linux's
/// `arp_process` and tunnels ask for a route.
pub(crate) fn is_own4(view: &View<'_>, id: LookupId, address: Ipv4Addr) -> bool {
    let Some(lookup) = view.lookup(id) else { return false };
    let leaf_in = |fib: &Fib4Id| view.tables.fib4(*fib, view.guard)?.lookup(address.to_bits(), view.guard);
    let of_rules = lookup.rules4.iter().filter_map(|rule| match &rule.then {
        RuleAction::Fib4(fib) if rule.takes_all() => Some(fib),
        _ => None,
    });
    of_rules.chain(&lookup.fibs4).find_map(leaf_in).is_some_and(|leaf| view.is_local(leaf))
}

/// Whether an IPv6 address is one of the router's in these tables, whatever packets their rules are about. Linux:
/// `ipv6_chk_addr`.
pub(crate) fn is_own6(view: &View<'_>, id: LookupId, address: Ipv6Addr) -> bool {
    is_led_to(view, id, address, |action| matches!(action, Action::Local | Action::Anycast))
}

/// Whether an IPv6 address leads to such an action in these tables, or in one that a rule leads to.
fn is_led_to(view: &View<'_>, id: LookupId, address: Ipv6Addr, to: impl Fn(&Action) -> bool) -> bool {
    let Some(lookup) = view.lookup(id) else { return false };
    let leaf_in = |fib: &Fib6Id| view.tables.fib6(*fib, view.guard)?.lookup(address.to_bits(), view.guard);
    let leads = |leaf| view.tables.action(ActionId(leaf), view.guard).is_some_and(&to);
    if lookup.rules6.is_empty() {
        return lookup.fibs6.iter().find_map(leaf_in).is_some_and(leads);
    }
    let of_rules = lookup.rules6.iter().filter_map(|rule| match &rule.then {
        RuleAction::Fib6(fib) => Some(fib),
        _ => None,
    });
    of_rules.chain(&lookup.fibs6).filter_map(leaf_in).any(leads)
}

/// Whether a link of the routing instance of these tables has an IPv6 address. A rule may lead into tables of other instances,
/// whose addresses are none of these. Linux: `ipv6_chk_addr_and_flags`.
pub(crate) fn has_address6(view: &View<'_>, id: LookupId, address: Ipv6Addr) -> bool {
    let ruled = || view.lookup(id).is_some_and(|lookup| !lookup.rules6.is_empty());
    let own = view.own_lookup(id);
    let mut links = view.links();
    let has = |link: &Link| link.own6.contains(&address) && view.own_lookup(link.lookup) == own;
    let is_own = is_led_to(view, id, address, |action| matches!(action, Action::Local));
    is_own && (!ruled() || links.any(has))
}

/// Whether a packet is forwarded where it is looked up by `address`.
pub(crate) fn leads(view: &View<'_>, packet: &[u8], id: LookupId, address: IpAddr) -> bool {
    action_at(view, packet, id, address).is_some_and(|action| !matches!(action, Action::Discard(_)))
}

fn in_fib4(view: &View<'_>, fib: Fib4Id, address: IpAddr) -> Option<ActionId> {
    let IpAddr::V4(address) = address else { return None };
    let fib = view.tables.fib4(fib, view.guard)?;
    let leaf = fib.lookup(address.to_bits(), view.guard)?;
    not_thrown(view, leaf)
}

fn in_fib6(view: &View<'_>, fib: Fib6Id, address: IpAddr) -> Option<ActionId> {
    let IpAddr::V6(address) = address else { return None };
    let fib = view.tables.fib6(fib, view.guard)?;
    let leaf = fib.lookup(address.to_bits(), view.guard)?;
    not_thrown(view, leaf)
}

fn not_thrown(view: &View<'_>, leaf: u32) -> Option<ActionId> {
    let action = view.tables.action(ActionId(leaf), view.guard)?;
    (!matches!(action, Action::Discard(Discard::Throw))).then_some(ActionId(leaf))
}

impl Selectors {
    /// What the rules look at in a packet that is looked up by `destination`.
    fn read(packet: &[u8], destination: IpAddr, mark: u32) -> Option<Self> {
        let (source, tos, flow_label, (protocol, upper)): (IpAddr, _, _, _) = match packet.first()? >> 4 {
            6 => {
                let (header, rest) = ipv6::Header::ref_from_prefix(packet).ok()?;
                let upper = upper6(header.next_header, rest);
                (header.source().into(), header.traffic_class(), header.flow_label(), upper)
            }
            _ => {
                let ipv4::View { header, payload, .. } = ipv4::View::parse(packet).ok()?;
                let upper = (!header.is_fragment()).then_some(payload);
                (header.source().into(), header.tos, 0, (header.protocol, upper))
            }
        };
        let ports = upper.and_then(|upper| ports(protocol, upper));
        Some(Self { source, destination, protocol, ports, tos, flow_label, mark })
    }

    /// Takes the next header of an IPv6 packet for its protocol, and no ports. Linux: `seg6_lookup_any_nexthop`.
    fn take_next_header(&mut self, packet: &[u8]) {
        if let Ok((header, _)) = ipv6::Header::ref_from_prefix(packet) {
            (self.protocol, self.ports) = (header.next_header, None);
        }
    }

    /// Takes the type and the code of an ICMP message of this router's for its destination port, as Linux does.
    fn take_message(&mut self, packet: &[u8]) {
        let at = match self.protocol {
            protocol::ICMP if self.source.is_ipv4() => ipv4::Header::LEN,
            protocol::ICMPV6 if self.source.is_ipv6() => ipv6::Header::LEN,
            _ => return,
        };
        if let Some(message) = packet.get(at..).and_then(|message| message.first_chunk()) {
            self.ports = Some((0, u16::from_be_bytes(*message)));
        }
    }

    /// Goes through the rules and tables one by one.
    ///
    /// # Errors
    /// The rule that it ends at.
    fn find(&self, view: &View<'_>, id: LookupId, address: IpAddr) -> Result<Option<ActionId>, Discard> {
        self.decide(view, id, address).1
    }

    /// The same, and the preference of the rule that decided, if that is the last one with a selector or one before it.
    fn decide(
        &self,
        view: &View<'_>,
        id: LookupId,
        address: IpAddr,
    ) -> (Option<u32>, Result<Option<ActionId>, Discard>) {
        let Some(lookup) = view.lookup(id) else { return (None, Ok(None)) };
        let rules = if address.is_ipv4() { &lookup.rules4 } else { &lookup.rules6 };
        let mut next = 0;
        while let Some(rule) = rules.get(next) {
            next += 1;
            if !self.match_rule(rule) {
                continue;
            }
            let found = match &rule.then {
                RuleAction::Fib4(fib) => in_fib4(view, *fib, address),
                RuleAction::Fib6(fib) => in_fib6(view, *fib, address),
                RuleAction::Discard(discard) => return (Some(rule.priority), Err(*discard)),
                RuleAction::Act(action) => Some(*action),
                // Only forwards, so that there is an end.
                RuleAction::Goto(place) => {
                    next = next.max(*place);
                    None
                }
                RuleAction::Nop => None,
            };
            if found.is_some() {
                return (Some(rule.priority), Ok(found));
            }
        }
        let found = match address {
            IpAddr::V4(_) => lookup.fibs4.iter().find_map(|fib| in_fib4(view, *fib, address)),
            IpAddr::V6(_) => lookup.fibs6.iter().find_map(|fib| in_fib6(view, *fib, address)),
        };
        (None, Ok(found))
    }

    fn match_rule(&self, rule: &Rule) -> bool {
        let port = |wanted: Option<PortMatch>, port: Option<u16>| {
            wanted.is_none_or(|wanted| port.is_some_and(|port| wanted.takes(port)))
        };
        let matches = covers(rule.source, self.source)
            && covers(rule.destination, self.destination)
            && rule.protocol.is_none_or(|protocol| protocol == self.protocol)
            && port(rule.source_port, self.ports.map(|(source, _)| source))
            && port(rule.destination_port, self.ports.map(|(_, destination)| destination))
            && rule.tos.is_none_or(|(tos, mask)| (tos ^ self.tos) & mask == 0)
            && rule.flow_label.is_none_or(|(label, mask)| {
                self.destination.is_ipv6() && (label ^ self.flow_label) & mask == 0
            })
            && rule.mark.is_none_or(|(mark, mask)| (mark ^ self.mark) & mask == 0);
        matches != rule.invert
    }
}

/// Most extension headers that are passed over for ports: Linux's `MAX_FLOW_DISSECT_HDRS`, and the first.
const MAX_HEADERS: usize = 16;

/// What a rule takes for the protocol of an IPv6 packet, with these headers behind the fixed one, and what follows them:
/// nothing in a fragment, whole or not. Linux: `__skb_flow_dissect`.
fn upper6(mut next: u8, mut rest: &[u8]) -> (u8, Option<&[u8]>) {
    for _ in 0..MAX_HEADERS {
        match (next, rest) {
            (protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS, [after, len, ..]) => {
                next = *after;
                rest = rest.get((usize::from(*len) + 1) * 8..).unwrap_or_default();
            }
            (protocol::FRAGMENT, [after, ..]) if rest.len() >= FRAGMENT_LEN => return (*after, None),
            _ => break,
        }
    }
    (next, Some(rest))
}

/// Length of a fragment header.
const FRAGMENT_LEN: usize = 8;

/// The source and the destination port of an upper layer, or what Linux takes for them: the parameter index of ESP and AH.
fn ports(protocol: u8, upper: &[u8]) -> Option<(u16, u16)> {
    let at = match protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP | protocol::ESP | DCCP => 0,
        protocol::AUTHENTICATION => 4,
        _ => return None,
    };
    let [a, b, c, d] = *upper.get(at..)?.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

const DCCP: u8 = 33;

/// Whether a prefix covers an address. Length 0 covers either family.
fn covers((prefix, len): (IpAddr, u8), address: IpAddr) -> bool {
    if len == 0 {
        return true;
    }
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            (prefix.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(len)
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            (prefix.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(len)
        }
        _ => false,
    }
}

/// On to where a route with headers points, by the link by which the packet came in. Linux: `seg6_input` and `rpl_input` ask
/// for a route as for packets that come in, `seg6_output` and `rpl_output` as for what the router itself sends.
pub(crate) fn on_by_ingress(view: &View<'_>, meta: &mut PacketMeta, via: &Via) -> Verdict {
    let lookup = lookup_of(view, meta, via);
    match via.address {
        IpAddr::V6(address) if lookup != via.lookup => Verdict::look6(meta, lookup, address),
        _ => Verdict::via(meta, via),
    }
}

/// The look-up of a packet that goes on by `via`: that of the VRF that a SID has taken it into, or of the link by which it came,
/// if it came by one as it is. Linux: `end_dt_vrf_rcv` has it come by the device of the VRF, and what is behind a label that led to
/// `lo` by that, as what the router itself sends.
#[inline]
pub(crate) fn lookup_of(view: &View<'_>, meta: &PacketMeta, via: &Via) -> LookupId {
    if meta.is(BEHIND_LABEL | LED_INTO_VRF | GENERATED) {
        return if meta.is(LED_INTO_VRF) { via.lookup } else { view.own_lookup(via.lookup) };
    }
    view.link(meta.ingress).map_or(via.lookup, |link| meta.extra.taken_into.unwrap_or(link.lookup))
}
