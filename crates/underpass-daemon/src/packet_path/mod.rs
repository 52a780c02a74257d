//! A packet's path in words: a line a step, for `replay --trace` and `trace`.

mod describe;
pub mod facts;

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use underpass_control::Matched;
use underpass_engine::buffer::{Packet, PortId};
use underpass_engine::tables::{
    Action, ActionId, ArgFe2, Behaviour, Csid, Discard, Endpoint, Guard, Headend, HeadendMode, Ioam,
    IoamMode, LabelAction, LinkId, NextHopId, SwitchTo, Tables,
};
use underpass_engine::trace::Event;
use underpass_packet::mpls::Entry;
use underpass_packet::srh::Srh;
use underpass_packet::{FromBytes, ipv6};

/// The name of a link, and its port if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkName {
    /// The link.
    pub id: LinkId,
    /// Its port.
    pub port: Option<PortId>,
    /// Its name.
    pub name: String,
}

/// The name of a port, `?` if it has gone.
pub fn port_name(names: &[LinkName], port: PortId) -> &str {
    names.iter().find(|link| link.port == Some(port)).map_or("?", |link| &link.name)
}

fn link_name(names: &[LinkName], link: LinkId) -> &str {
    names.iter().find(|known| known.id == link).map_or("?", |known| &known.name)
}

/// A frame in words.
pub fn frame(bytes: &[u8]) -> String {
    describe::Frame(bytes).to_string()
}

/// The same of a frame of `len` bytes, of which only the first are known: headers that lie behind these are left out.
pub fn cut_frame(first: &[u8], len: usize) -> String {
    // What the rest is makes a difference to the text where that speaks of it.
    let [text, other] = [0, 0xff].map(|rest| {
        let mut whole = first.to_vec();
        whole.resize(len.max(first.len()), rest);
        frame(&whole)
    });
    if text == other {
        return text;
    }
    let common = text.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    let common: String = common.map(|(same, _)| same).collect();
    let known = common.rsplit_once(" / ").map_or("", |(known, _)| known);
    format!("{known} / …")
}

/// What a step says of the packet itself, whose headers are then those that still stand; empty where it says nothing.
pub fn packet(event: &Event, packet: &Packet) -> String {
    let bytes = packet.bytes();
    match event {
        Event::Received(_) | Event::Sent(_) | Event::Kept(_) => describe::Frame(bytes).to_string(),
        // A hook sees frames, but for what has no Ethernet header there: at tunnels, and behind an action that took it off.
        Event::Action(_) => match packet.tag().headless {
            0 => describe::Frame(bytes).to_string(),
            ethertype => describe::Headless(ethertype, bytes).to_string(),
        },
        Event::Behaviour(_)
        | Event::Headend(..)
        | Event::IoamInserted(..)
        | Event::IoamFilled
        | Event::Icmp(..)
        | Event::EchoReply
        | Event::Reset
        | Event::Reassembled(_)
        | Event::Delivered(_) => describe::Packet(bytes).to_string(),
        _ => String::new(),
    }
}

/// The word for a kind of step, for programs.
pub fn word(event: &Event) -> &'static str {
    match event {
        Event::Received(_) => "received",
        Event::Lookup(..) => "lookup",
        Event::Rule(_) => "rule",
        Event::Label(..) => "label",
        Event::Behaviour(_) => "behaviour",
        Event::Headend(..) => "headend",
        Event::Moved(_) => "moved",
        Event::IoamInserted(..) => "ioam-inserted",
        Event::IoamFilled => "ioam-filled",
        Event::Fragmented(_) => "fragmented",
        Event::Icmp(..) => "icmp",
        Event::EchoReply => "echo-reply",
        Event::Reset => "reset",
        Event::Neighbour => "neighbour",
        Event::Held => "held",
        Event::Queued(_) => "queued",
        Event::Dequeued(_) => "dequeued",
        Event::Gathered => "gathered",
        Event::Reassembled(_) => "reassembled",
        Event::Datagrams => "datagrams",
        Event::NextHop(_) => "next-hop",
        Event::Sent(_) => "sent",
        Event::Delivered(_) => "delivered",
        Event::Kept(_) => "kept",
        Event::Action(_) => "action",
        Event::Dropped(_) => "dropped",
    }
}

/// A step in words. `shown` is what [`packet`] says of the packet.
pub fn line(event: &Event, shown: &str, names: &Names<'_>) -> String {
    let link = |link: LinkId| link_name(names.names, link);
    match event {
        Event::Received(port) => format!("in by {}: {shown}", port_name(names.names, *port)),
        Event::Sent(port) => format!("out by {}: {shown}", port_name(names.names, *port)),
        Event::Lookup(address, None) => format!("look up {address} → no route"),
        Event::Lookup(address, Some(id)) => match names.tables.action(*id, names.guard) {
            Some(action) => {
                let routes = (names.routes)(*address, *id);
                format!("look up {address}{} → {}", Routes(&routes), Described(names, action))
            }
            None => format!("look up {address} → a route that is gone"),
        },
        Event::Rule(priority) => format!("rule {priority} decides"),
        Event::Label(label, action) => format!("label {label} → {}", label_action(names, *action)),
        Event::Behaviour(name) => format!("{name}: {shown}"),
        Event::Headend(name, length) => format!("{name}, {length} bytes of headers: {shown}"),
        Event::IoamInserted(mode, length) => format!("IOAM {mode}, {length} bytes of headers: {shown}"),
        Event::IoamFilled => format!("IOAM trace filled: {shown}"),
        Event::Moved(room) => format!("moved, for {room} bytes of room"),
        Event::Fragmented(count) => format!("cut into {count} fragments"),
        Event::Icmp(kind, code, reason) => {
            format!("{}: answered by ICMP type {kind} code {code}: {shown}", reason.name())
        }
        Event::EchoReply => format!("echo request, answered: {shown}"),
        Event::Reset => format!("nothing listens, answered with a reset: {shown}"),
        Event::Neighbour => "neighbour asked for, answered".to_owned(),
        Event::Queued(id) => format!("queued by the qdisc of {}", link(*id)),
        Event::Dequeued(id) => format!("let go by the qdisc of {}", link(*id)),
        Event::Gathered => "kept until the other fragments come".to_owned(),
        Event::Reassembled(count) => format!("{shown}, put together of {count} fragments"),
        Event::Datagrams => "stands for several datagrams".to_owned(),
        Event::Held => "held until the next hop is known".to_owned(),
        Event::NextHop(id) => NextHop(names, *id).to_string(),
        Event::Delivered(id) => format!("delivered to the router, by {}: {shown}", link(*id)),
        Event::Kept(id) => format!("left to the kernel, in by {}: {shown}", link(*id)),
        Event::Action(name) => format!("action {name}: {shown}"),
        Event::Dropped(reason) => format!("dropped: {}", reason.name()),
    }
}

fn label_action(names: &Names<'_>, action: Option<LabelAction>) -> String {
    match action {
        None => "no route".to_owned(),
        Some(LabelAction::Swap { label, next_hop }) => format!("as to {label} {}", NextHop(names, next_hop)),
        Some(LabelAction::SwapPush { labels: [first, last], next_hop }) => {
            format!("as to {first}/{last} {}", NextHop(names, next_hop))
        }
        Some(LabelAction::NextHops(_)) => "several ways".to_owned(),
        Some(LabelAction::Pop { next_hop, .. }) => format!("pop {}", NextHop(names, next_hop)),
        Some(LabelAction::Act(id)) => match names.tables.action(id, names.guard) {
            Some(action) => Described(names, action).to_string(),
            None => "a route that is gone".to_owned(),
        },
    }
}

/// What ids stand for, while nothing changes.
pub struct Names<'a> {
    /// Where routes and next hops are.
    pub tables: &'a Tables,
    /// Keeps them there.
    pub guard: &'a Guard<'a>,
    /// The links.
    pub names: &'a [LinkName],
    /// Which routes a look-up of an address has found, as it ended in this action ([`underpass_control::matched`]).
    pub routes: &'a dyn Fn(IpAddr, ActionId) -> Vec<Matched>,
}

/// Where a route was found. Several, if there is no telling which of them it was.
struct Routes<'a>(&'a [Matched]);

impl Display for Routes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (position, Matched { table, prefix }) in self.0.iter().enumerate() {
            write!(f, " {} table ", if position == 0 { "in" } else { "or" })?;
            // As in rt_tables of iproute2.
            match table {
                253 => write!(f, "default")?,
                254 => write!(f, "main")?,
                255 => write!(f, "local")?,
                other => write!(f, "{other}")?,
            }
            write!(f, ", {prefix}")?;
        }
        Ok(())
    }
}

struct NextHop<'a>(&'a Names<'a>, NextHopId);

impl Display for NextHop<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(names, id) = self;
        let Some(next_hop) = names.tables.next_hop(*id, names.guard) else {
            return write!(f, "to a next hop that is gone");
        };
        write!(f, "to dev {}", link_name(names.names, next_hop.link))?;
        match &next_hop.rewrite {
            Some(rewrite) => {
                let mac = rewrite.bytes[..6].iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":");
                write!(f, " lladdr {mac}")
            }
            None => write!(f, ", whose link-layer address is not known"),
        }
    }
}

/// A route's action.
struct Described<'a>(&'a Names<'a>, &'a Action);

impl Display for Described<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(names, action) = self;
        match action {
            Action::Local | Action::Anycast => write!(f, "local"),
            Action::Broadcast => write!(f, "broadcast"),
            Action::HandOver => write!(f, "left to the kernel"),
            Action::Discard(Discard::Blackhole) => write!(f, "blackhole"),
            Action::Discard(Discard::Unreachable) => write!(f, "unreachable"),
            Action::Discard(Discard::Prohibit) => write!(f, "prohibit"),
            Action::Discard(Discard::Throw) => write!(f, "throw"),
            Action::OnLink(link) => {
                let name = link_name(names.names, *link);
                write!(f, "on link {name}, a neighbour that is not known")
            }
            Action::Forward(id) => NextHop(names, *id).fmt(f),
            Action::Multipath(multipath) => write!(f, "one of {} next hops", multipath.buckets.len()),
            Action::Endpoint(endpoint) => sid(f, names, endpoint),
            Action::Headend(headend) => policy(f, headend),
            Action::Push(push) => {
                write!(f, "encap mpls {} ", Labels(&push.labels))?;
                NextHop(names, push.next_hop).fmt(f)
            }
            Action::Switch(switch) => {
                if switch.labels.is_empty() {
                    write!(f, "pop ")?;
                } else {
                    write!(f, "as to {} ", Labels(&switch.labels))?;
                }
                match switch.to {
                    SwitchTo::NextHop(id) => NextHop(names, id).fmt(f),
                    SwitchTo::Here { .. } => write!(f, "here"),
                }
            }
            Action::Vrf(route) => write!(f, "look-up in VRF {}", link_name(names.names, route.link)),
            Action::Rpl(route) => write!(f, "RPL source route to {}", route.via.address),
            Action::Ioam(ioam) => insertion(f, ioam),
            Action::Tunnel(route) => match names.tables.tunnel(route.tunnel, names.guard) {
                Some(tunnel) => write!(f, "into tunnel {}", link_name(names.names, tunnel.link)),
                None => write!(f, "into a tunnel that is gone"),
            },
        }
    }
}

/// A label stack as `ip` writes it.
struct Labels<'a>(&'a [u8]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, entry) in <[Entry]>::ref_from_bytes(self.0).unwrap_or_default().iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "/" }, entry.label())?;
        }
        Ok(())
    }
}

fn insertion(f: &mut Formatter<'_>, ioam: &Ioam) -> fmt::Result {
    let mode = match ioam.mode {
        IoamMode::Inline => "inline",
        IoamMode::Encap => "encap",
        IoamMode::Auto => "auto",
    };
    write!(f, "IOAM {mode}")?;
    if let Some(frequency) = &ioam.frequency {
        write!(f, " into {} of {}", frequency.k, frequency.n)?;
    }
    Ok(())
}

fn sid(f: &mut Formatter<'_>, names: &Names<'_>, endpoint: &Endpoint) -> fmt::Result {
    write!(f, "{}", endpoint.behaviour.name())?;
    match &endpoint.behaviour {
        Behaviour::X(via) | Behaviour::DX6(via) => write!(f, " nh6 {}", via.address)?,
        Behaviour::DX4(via) => write!(f, " nh4 {}", via.address)?,
        Behaviour::DX2 { link }
        | Behaviour::DX2V { link }
        | Behaviour::DT2U { link }
        | Behaviour::DT2M { link, argument: None } => write!(f, " oif {}", link_name(names.names, *link))?,
        Behaviour::DT2M { link, argument: Some(ArgFe2 { at, count, bits }) } => {
            write!(f, " oif {} fe2 {count}x{bits} at {at}", link_name(names.names, *link))?;
        }
        Behaviour::Bpf(bpf) => write!(f, ", {:?}", bpf.program)?,
        Behaviour::B6(headend) | Behaviour::B6Encaps(headend) => {
            write!(f, " ")?;
            policy(f, headend)?;
        }
        Behaviour::End { .. }
        | Behaviour::T { .. }
        | Behaviour::DT4 { .. }
        | Behaviour::DT6 { .. }
        | Behaviour::DT46 { .. } => {}
    }
    if let Some(flavours) = &endpoint.flavours {
        let next = matches!(flavours.csid, Some(Csid::Next(_)));
        let replace = matches!(flavours.csid, Some(Csid::Replace(_)));
        let named = [
            (flavours.psp, "psp"),
            (flavours.usp, "usp"),
            (flavours.usd, "usd"),
            (next, "next-csid"),
            (replace, "replace-csid"),
        ];
        named.iter().filter(|(has, _)| *has).try_for_each(|(_, name)| write!(f, " {name}"))?;
    }
    if endpoint.counter.is_some() {
        write!(f, " count")?;
    }
    Ok(())
}

fn policy(f: &mut Formatter<'_>, headend: &Headend) -> fmt::Result {
    let (name, list) = match headend.mode {
        HeadendMode::Inline => ("inline", 0),
        HeadendMode::Encap => ("encap", ipv6::Header::LEN),
        HeadendMode::L2Encap => ("l2encap", ipv6::Header::LEN),
    };
    write!(f, "{name}")?;
    if list > 0
        && let Ok((outer, _)) = ipv6::Header::ref_from_prefix(&headend.header)
    {
        write!(f, " from {}", outer.source())?;
    }
    write!(f, " to {}", headend.via.address)?;
    let segments = segments(headend);
    if segments.len() > 1 {
        write!(f, ", segments [")?;
        for (position, segment) in segments.iter().enumerate() {
            write!(f, "{}", if position == 0 { "" } else { ", " })?;
            match segment {
                Some(segment) => write!(f, "{segment}")?,
                None => write!(f, "the packet's destination")?,
            }
        }
        write!(f, "]")?;
    }
    Ok(())
}

/// The segments of a policy in the order in which they are visited; `None` is the packet's own destination.
fn segments(headend: &Headend) -> Vec<Option<IpAddr>> {
    let inline = headend.mode == HeadendMode::Inline;
    let list = if inline { 0 } else { ipv6::Header::LEN };
    let mut segments = vec![Some(headend.via.address)];
    if let Some(Ok(srh)) = headend.header.get(list..).filter(|bytes| !bytes.is_empty()).map(Srh::parse) {
        // Reversed on the wire. A reduced list is without the first.
        let listed = (0..srh.segments().len()).rev().filter_map(|index| srh.segment(index));
        let listed = listed.map(|segment| (!inline || !segment.is_unspecified()).then_some(segment.into()));
        segments.extend(listed.skip_while(|segment| *segment == Some(headend.via.address)));
    }
    segments
}

#[cfg(test)]
mod tests {
    use underpass_engine::buffer::{Pool, Tag};

    use super::*;

    /// What is not known of a frame is not made up, nor taken for a fault of it.
    #[test]
    fn a_cut_frame_has_the_headers_that_are_known() {
        let ip = [&[0x45, 0, 4, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 0, 0, 1, 10, 0, 0, 2]].concat();
        let udp = [0, 7, 0, 9, 3, 0xec, 0, 0];
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip, &udp, &[1; 100]].concat();
        let ends = "Ethernet 02:00:00:00:00:02 > 02:00:00:00:00:01 / IPv4 10.0.0.1 > 10.0.0.2 ttl 64 / ";
        assert_eq!(cut_frame(&frame, 14 + 1024), format!("{ends}UDP 7 > 9, 996 bytes"));
        assert_eq!(cut_frame(&frame[..36], 14 + 1024), format!("{ends}…"));
        assert_eq!(
            cut_frame(&frame[..30], 14 + 1024),
            format!("{}…", ends.split_inclusive(" / ").next().unwrap())
        );
        // One that is whole, and shorter than it says.
        assert!(cut_frame(&frame, frame.len()).contains("malformed"));
    }

    /// A hook sees frames, whatever their addresses begin with; at a tunnel, packets whose EtherType goes along with them.
    #[test]
    fn a_hook_shows_frames_as_frames() {
        let mut pool = Pool::new(1);
        let mut buffer = pool.take().unwrap();
        let inside = "IPv4 10.0.0.1 > 10.0.0.2 ttl 64 / nothing";
        let ip =
            [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0x66, 0xac][..], &[10, 0, 0, 1, 10, 0, 0, 2]].concat();
        for first in [0x02, 0x45, 0x46, 0x60, 0x6a] {
            let frame = [&[first, 0, 0, 20, 0, 0, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip].concat();
            buffer.set(200, &frame).unwrap();
            for event in [Event::Action("police"), Event::Kept(LinkId(0)), Event::Received(PortId(0))] {
                let wanted = format!("Ethernet 02:00:00:00:00:02 > {first:02x}:00:00:14:00:00 / {inside}");
                assert_eq!(packet(&event, &buffer), wanted);
            }
        }
        buffer.set(200, &ip).unwrap();
        buffer.set_tag(Tag { headless: 0x0800, ..Tag::default() });
        assert_eq!(packet(&Event::Action("police"), &buffer), inside);
        buffer.set_tag(Tag { headless: 0x0806, ..Tag::default() });
        assert!(packet(&Event::Action("police"), &buffer).starts_with("ARP"));
    }
}
