//! `--trace`: each packet's road, a line a step.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::sync::Arc;

use underpass_engine::buffer::{Packet, PortId};
use underpass_engine::tables::{
    Action, Behaviour, Discard, Endpoint, Guard, Headend, HeadendMode, Ioam, IoamMode, LabelAction, LinkId,
    NextHopId, Reader, SwitchTo, Tables,
};
use underpass_engine::trace::{Event, Trace};
use underpass_packet::mpls::Entry;
use underpass_packet::srh::Srh;
use underpass_packet::{FromBytes, ipv6};

use super::describe;

/// Writes the steps of packets, with the names that the configuration gave.
pub struct Printer<W> {
    out: W,
    tables: Arc<Tables>,
    reader: Reader,
    /// Of the links: a port's is the link's.
    names: Vec<(LinkId, Option<PortId>, String)>,
    /// The first failure to write.
    failed: Option<io::Error>,
}

impl<W: Write> Printer<W> {
    /// `names` are those of the links, each with its port if it has one.
    pub fn new(
        out: W,
        tables: Arc<Tables>,
        reader: Reader,
        names: Vec<(LinkId, Option<PortId>, String)>,
    ) -> Self {
        Self { out, tables, reader, names, failed: None }
    }

    /// Says which packet the next steps are of.
    pub fn begin(&mut self, number: u64, time: u64) {
        self.line(format_args!("packet {number} at {}.{:09}", time / 1_000_000_000, time % 1_000_000_000));
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        if let Err(error) = writeln!(self.out, "{line}") {
            self.failed.get_or_insert(error);
        }
    }

    fn port(&self, port: PortId) -> &str {
        self.names.iter().find(|(_, p, _)| *p == Some(port)).map_or("?", |(_, _, name)| name)
    }
}

fn link_name(names: &[(LinkId, Option<PortId>, String)], link: LinkId) -> &str {
    names.iter().find(|(id, _, _)| *id == link).map_or("?", |(_, _, name)| name)
}

impl<W: Write> Trace for Printer<W> {
    fn step(&mut self, event: Event, packet: &Packet) {
        let bytes = packet.bytes();
        let (frame, inner) = (describe::Frame(bytes), describe::Packet(bytes));
        match event {
            Event::Received(port) => {
                let name = self.port(port).to_owned();
                self.line(format_args!("  in by {name}: {frame}"));
            }
            Event::Sent(port) => {
                let name = self.port(port).to_owned();
                self.line(format_args!("  out by {name}: {frame}"));
            }
            Event::Lookup(address, None) => self.line(format_args!("  look up {address} → no route")),
            Event::Lookup(address, Some(action)) => {
                let guard = self.reader.enter();
                let names = Names { tables: &self.tables, guard: &guard, names: &self.names };
                let found = self.tables.action(action, &guard);
                let text = match found {
                    Some(action) => Described(&names, action).to_string(),
                    None => "a route that is gone".to_owned(),
                };
                self.line(format_args!("  look up {address} → {text}"));
            }
            Event::Label(label, action) => {
                let guard = self.reader.enter();
                let names = Names { tables: &self.tables, guard: &guard, names: &self.names };
                let text = match action {
                    None => "no route".to_owned(),
                    Some(LabelAction::Swap { label, next_hop }) => {
                        format!("as to {label} {}", NextHop(&names, next_hop))
                    }
                    Some(LabelAction::SwapPush { labels: [first, last], next_hop }) => {
                        format!("as to {first}/{last} {}", NextHop(&names, next_hop))
                    }
                    Some(LabelAction::Ways(_)) => "several ways".to_owned(),
                    Some(LabelAction::Pop { next_hop, .. }) => format!("pop {}", NextHop(&names, next_hop)),
                    Some(LabelAction::Act(id)) => match self.tables.action(id, &guard) {
                        Some(action) => Described(&names, action).to_string(),
                        None => "a route that is gone".to_owned(),
                    },
                };
                self.line(format_args!("  label {label} → {text}"));
            }
            Event::Behaviour(name) => self.line(format_args!("  {name}: {inner}")),
            Event::Headend(name, length) => {
                self.line(format_args!("  {name}, {length} bytes of headers: {inner}"));
            }
            Event::IoamInserted(mode, length) => {
                self.line(format_args!("  IOAM {mode}, {length} bytes of headers: {inner}"));
            }
            Event::IoamFilled => self.line(format_args!("  IOAM trace filled: {inner}")),
            Event::Moved(room) => self.line(format_args!("  moved, for {room} bytes of room")),
            Event::Fragmented(count) => self.line(format_args!("  cut into {count} fragments")),
            Event::Icmp(kind, code, reason) => {
                let reason = reason.name();
                self.line(format_args!("  {reason}: answered by ICMP type {kind} code {code}: {inner}"));
            }
            Event::EchoReply => self.line(format_args!("  echo request, answered: {inner}")),
            Event::Neighbour => self.line(format_args!("  neighbour asked for, answered")),
            Event::Queued(link) => {
                let name = link_name(&self.names, link).to_owned();
                self.line(format_args!("  queued by the qdisc of {name}"));
            }
            Event::Dequeued(link) => {
                let name = link_name(&self.names, link).to_owned();
                self.line(format_args!("  let go by the qdisc of {name}"));
            }
            Event::Gathered => self.line(format_args!("  kept until the other fragments come")),
            Event::Reassembled(count) => {
                self.line(format_args!("  {inner}, put together of {count} fragments"))
            }
            Event::Datagrams => self.line(format_args!("  stands for several datagrams")),
            Event::Held => self.line(format_args!("  held until the next hop is known")),
            Event::NextHop(id) => {
                let guard = self.reader.enter();
                let names = Names { tables: &self.tables, guard: &guard, names: &self.names };
                let text = NextHop(&names, id).to_string();
                self.line(format_args!("  {text}"));
            }
            Event::Delivered(link) => {
                let name = link_name(&self.names, link).to_owned();
                self.line(format_args!("  delivered to the router, by {name}: {inner}"));
            }
            Event::Action(name) => self.line(format_args!("  action {name}: {inner}")),
            Event::Dropped(reason) => self.line(format_args!("  dropped: {}", reason.name())),
        }
        // What only this printer has looked at must not keep memory from being freed.
        self.reader.idle();
    }
}

/// What ids stand for, while nothing changes.
struct Names<'a> {
    tables: &'a Tables,
    guard: &'a Guard<'a>,
    names: &'a [(LinkId, Option<PortId>, String)],
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
            Action::Local => write!(f, "local"),
            Action::Broadcast => write!(f, "broadcast"),
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
    match &endpoint.behaviour {
        Behaviour::End { .. } => write!(f, "End")?,
        Behaviour::X(via) => write!(f, "End.X nh6 {}", via.address)?,
        Behaviour::T { .. } => write!(f, "End.T")?,
        Behaviour::DX2 { link } => write!(f, "End.DX2 oif {}", link_name(names.names, *link))?,
        Behaviour::DX4(via) => write!(f, "End.DX4 nh4 {}", via.address)?,
        Behaviour::DX6(via) => write!(f, "End.DX6 nh6 {}", via.address)?,
        Behaviour::DT4 { .. } => write!(f, "End.DT4")?,
        Behaviour::DT6 { .. } => write!(f, "End.DT6")?,
        Behaviour::DT46 { .. } => write!(f, "End.DT46")?,
        Behaviour::Bpf(bpf) => write!(f, "End.BPF, {:?}", bpf.program)?,
        Behaviour::B6(headend) => {
            write!(f, "End.B6 ")?;
            policy(f, headend)?;
        }
        Behaviour::B6Encaps(headend) => {
            write!(f, "End.B6.Encaps ")?;
            policy(f, headend)?;
        }
    }
    if let Some(flavours) = &endpoint.flavours {
        let csid = flavours.next_csid.is_some();
        let named =
            [(flavours.psp, "psp"), (flavours.usp, "usp"), (flavours.usd, "usd"), (csid, "next-csid")];
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
    if let Some(Ok(srh)) = headend.header.get(list..).filter(|bytes| !bytes.is_empty()).map(Srh::parse) {
        write!(f, ", segments in the SRH: {}", srh.segments().len())?;
    }
    Ok(())
}
