//! Fragments of packets for the router itself, put together: RFC 791 section 3.2 and RFC 8200 section 4.5, with the
//! checks of Linux's `ip_frag_queue` and `ip6_frag_queue`.
//!
//! What is kept is copied, so that fragments hold back none of the memory of packets. A fragment that is kept counts as
//! delivered; the packet that comes of it, or what is left of it in the end, as generated.

use std::collections::VecDeque;
use std::net::IpAddr;

use underpass_packet::ipv6_ext::{Extensions, Kind};
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::buffer::Packet;
use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::offload;
use crate::tables::{LinkId, LookupId};
use crate::trace::{Event, Trace};
use crate::tunnel::decap::leave_tunnel;
use crate::worker::Path;
use crate::worker::error::IcmpError;
use crate::worker::metadata::{ExtraMeta, PacketMeta};
use crate::worker::verdict::Verdict;
use crate::worker::view::View;

/// Packets that are waited for at a time; the oldest makes room for one more.
const PACKETS: usize = 256;

/// Bytes that fragments take at most, and each beyond its own.
const MEMORY: usize = 4 << 20;
const OVERHEAD: usize = 64;

/// How long the first fragment waits for the others: Linux's `ipfrag_time` and `ip6frag_time`.
const PATIENCE4: Nanos = 30_000_000_000;
const PATIENCE6: Nanos = 60_000_000_000;

/// The longest IPv4 packet, and the longest payload of an IPv6 packet.
const LONGEST: usize = 65_535;
const FRAGMENT_HEADER: usize = 8;

/// Where an IPv6 header says how long its payload is.
const PAYLOAD_LENGTH: usize = 4;
const ECN: u8 = 3;

/// What the fragments of one packet have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Of IPv4.
    protocol: u8,
    instance: LookupId,
}

/// A fragment, as its headers describe it.
struct Fragment {
    key: Key,
    /// Where its payload begins in the packet that it is of, and in its own.
    offset: usize,
    payload: std::ops::Range<usize>,
    more: bool,
    /// Of IPv6: where the fragment header is, and the field that names it.
    header: Option<(usize, usize)>,
    tos: u8,
    dont_fragment: bool,
}

/// A packet whose fragments come.
struct Partial {
    key: Key,
    /// When it is given up.
    until: Nanos,
    /// All before the payload, as it came in the first fragment, and where the fragment header is in it.
    headers: Vec<u8>,
    header: Option<(usize, usize)>,
    /// What has come, in order and without overlaps.
    parts: Vec<(usize, Box<[u8]>)>,
    /// Length of the payload, once it is known.
    total: Option<usize>,
    /// As far as anything has come.
    end: usize,
    received: usize,
    /// A bit for each codepoint of ECN that came.
    ecn: u8,
    /// The longest fragment, and the longest that must not be fragmented.
    longest: [usize; 2],
    /// Of the fragment that came last.
    ingress: LinkId,
    extra: ExtraMeta,
}

/// Why a fragment is refused.
struct Refused {
    reason: DropReason,
    /// Whether all that has come of its packet goes too.
    all: bool,
    /// What of an IPv6 packet its sender is told is wrong.
    pointer: Option<usize>,
}

impl Refused {
    const fn with_all(reason: DropReason) -> Self {
        Self { reason, all: true, pointer: None }
    }

    const fn alone(reason: DropReason, pointer: Option<usize>) -> Self {
        Self { reason, all: false, pointer }
    }
}

/// Packets whose fragments come.
#[derive(Default)]
pub(crate) struct Reassembly {
    /// Oldest first.
    packets: VecDeque<Partial>,
    memory: usize,
    /// When the next of them is given up.
    due: Option<Nanos>,
}

impl Fragment {
    /// `None`: it is whole, or not sound.
    fn read(bytes: &[u8], instance: LookupId) -> Option<Self> {
        if bytes.first()? >> 4 == 6 { Self::read6(bytes, instance) } else { Self::read4(bytes, instance) }
    }

    fn read4(bytes: &[u8], instance: LookupId) -> Option<Self> {
        let ipv4::View { header, payload, .. } = ipv4::View::parse(bytes).ok()?;
        let start = header.header_len();
        header.is_fragment().then(|| Self {
            key: Key {
                source: header.source().into(),
                destination: header.destination().into(),
                identification: header.identification.get().into(),
                protocol: header.protocol,
                instance,
            },
            offset: header.fragment_offset(),
            payload: start..start + payload.len(),
            more: header.more_fragments(),
            header: None,
            tos: header.tos,
            dont_fragment: header.dont_fragment(),
        })
    }

    fn read6(bytes: &[u8], instance: LookupId) -> Option<Self> {
        let view = ipv6::View::parse(bytes).ok()?;
        let found = Extensions::new(&view).find_kind(Kind::Fragment).ok()??;
        let fragment = found.fragment()?;
        let start = found.offset + FRAGMENT_HEADER;
        (fragment.offset() != 0 || fragment.more_fragments()).then(|| Self {
            key: Key {
                source: view.header.source().into(),
                destination: view.header.destination().into(),
                identification: fragment.identification.get(),
                protocol: 0,
                instance,
            },
            offset: fragment.offset(),
            payload: start..ipv6::Header::LEN + view.payload.len(),
            more: fragment.more_fragments(),
            header: Some((found.offset, found.named_at)),
            tos: view.header.traffic_class(),
            dont_fragment: false,
        })
    }
}

impl Partial {
    fn new(key: Key, until: Nanos, ingress: LinkId, extra: ExtraMeta) -> Self {
        Self {
            key,
            until,
            headers: Vec::new(),
            header: None,
            parts: Vec::new(),
            total: None,
            end: 0,
            received: 0,
            ecn: 0,
            longest: [0; 2],
            ingress,
            extra,
        }
    }

    fn memory(&self) -> usize {
        self.received + self.headers.len() + self.parts.len() * OVERHEAD
    }

    fn is_complete(&self) -> bool {
        !self.headers.is_empty() && self.total == Some(self.received)
    }

    /// Puts a fragment to those that have come.
    fn add(&mut self, bytes: &[u8], fragment: &Fragment) -> Result<(), Refused> {
        const MALFORMED: Refused = Refused::with_all(DropReason::FragmentMalformed);
        let offset = fragment.offset;
        let mut payload = bytes.get(fragment.payload.clone()).unwrap_or_default();
        let mut end = offset + payload.len();
        if let Some((at, _)) = fragment.header {
            if end > LONGEST {
                return Err(Refused::alone(DropReason::FragmentMalformed, Some(at + 2)));
            }
            if fragment.more && end & 7 != 0 {
                return Err(Refused::alone(DropReason::FragmentMalformed, Some(PAYLOAD_LENGTH)));
            }
            if offset == 0 && !has_upper_header(bytes) {
                return Err(Refused::alone(DropReason::FragmentMalformed, None));
            }
        }
        if fragment.more {
            end &= !7;
            if self.total.is_some_and(|total| end > total) {
                return Err(MALFORMED);
            }
        } else if end < self.end || self.total.is_some_and(|total| end != total) {
            return Err(MALFORMED);
        }
        payload = payload.get(..end.saturating_sub(offset)).unwrap_or_default();
        if payload.is_empty() {
            return Err(MALFORMED);
        }
        let place = self.parts.partition_point(|(at, _)| *at < offset);
        self.overlap(place, (offset, end))?;
        if !fragment.more {
            self.total = Some(end);
        }
        self.end = self.end.max(end);
        if offset == 0 {
            self.headers = bytes.get(..fragment.payload.start).unwrap_or_default().to_vec();
            self.header = fragment.header;
        }
        self.received += payload.len();
        self.parts.insert(place, (offset, payload.into()));
        self.ecn |= 1 << (fragment.tos & ECN);
        let len = bytes.len();
        self.longest[0] = self.longest[0].max(len);
        if fragment.dont_fragment {
            self.longest[1] = self.longest[1].max(len);
        }
        Ok(())
    }

    /// Whether what goes from one place to another, and would stand at `place`, has come already.
    fn overlap(&self, place: usize, (offset, end): (usize, usize)) -> Result<(), Refused> {
        let reach = |index: usize| self.parts.get(index).map(|(at, part)| (*at, at + part.len()));
        let before = place.checked_sub(1).and_then(reach).filter(|(_, to)| *to > offset);
        let behind = reach(place).filter(|(at, _)| *at < end);
        if before.is_none() && behind.is_none() {
            return Ok(());
        }
        // What is in parts that follow each other has come twice.
        let from = if before.is_some() { place - 1 } else { place };
        let mut covered = reach(from).filter(|(at, _)| *at <= offset).map(|(_, to)| to);
        for index in from + 1.. {
            match (covered, reach(index)) {
                (Some(to), Some((at, next))) if to < end && at == to => covered = Some(next),
                _ => break,
            }
        }
        match covered {
            Some(to) if to >= end => Err(Refused::alone(DropReason::FragmentDuplicate, None)),
            _ => Err(Refused::with_all(DropReason::FragmentOverlap)),
        }
    }

    /// What the fragments say together of congestion; `None`: they contradict each other. RFC 3168 section 5.3, Linux's
    /// `ip_frag_ecn_table`.
    fn ecn(&self) -> Option<u8> {
        const NOT: u8 = 1;
        const CONGESTION: u8 = 1 << ECN;
        match self.ecn {
            codepoints if codepoints & NOT != 0 && codepoints != NOT => None,
            codepoints if codepoints & CONGESTION != 0 => Some(ECN),
            _ => Some(0),
        }
    }

    /// The whole packet, which is as long as [`Self::len`] says.
    fn write(&self, to: &mut [u8]) -> Option<()> {
        let ecn = self.ecn()?;
        let (before, behind) = match self.header {
            Some((at, _)) => self.headers.split_at_checked(at)?,
            None => (&self.headers[..], &[][..]),
        };
        let behind = behind.get(FRAGMENT_HEADER..).unwrap_or_default();
        let start = before.len() + behind.len();
        to.get_mut(..before.len())?.copy_from_slice(before);
        to.get_mut(before.len()..start)?.copy_from_slice(behind);
        for (offset, part) in &self.parts {
            to.get_mut(start + offset..start + offset + part.len())?.copy_from_slice(part);
        }
        let len = to.len();
        match self.header {
            Some((at, named_at)) => {
                *to.get_mut(named_at)? = *self.headers.get(at)?;
                let (header, _) = ipv6::Header::mut_from_prefix(to).ok()?;
                header.payload_length = ((len - ipv6::Header::LEN) as u16).into();
                header.set_traffic_class(header.traffic_class() | ecn);
            }
            None => {
                let (header, rest) = ipv4::Header::mut_from_prefix(to).ok()?;
                header.total_length = (len as u16).into();
                // Linux: as long as the longest fragment that must not be cut is the longest of all.
                let stays = self.longest[0] == self.longest[1];
                header.flags_offset = if stays { ipv4::DONT_FRAGMENT } else { 0 }.into();
                header.tos |= ecn;
                let options = header.header_len() - ipv4::Header::LEN;
                header.fill_checksum(rest.get(..options)?);
            }
        }
        Some(())
    }

    /// Length of the whole packet; `None`: it is too long to be one.
    fn len(&self) -> Option<usize> {
        let headers = self.headers.len() - if self.header.is_some() { FRAGMENT_HEADER } else { 0 };
        let len = headers + self.total?;
        let longest = LONGEST + if self.header.is_some() { ipv6::Header::LEN } else { 0 };
        (len <= longest).then_some(len)
    }
}

/// RFC 8200 section 4.5: a first fragment has all headers, that of the upper layer too.
fn has_upper_header(packet: &[u8]) -> bool {
    let upper = ipv6::View::parse(packet).ok().and_then(|view| Extensions::new(&view).upper().ok());
    upper.is_some_and(|upper| {
        let least = match upper.protocol {
            protocol::TCP => 20,
            protocol::UDP | protocol::ICMPV6 => 8,
            _ => 1,
        };
        packet.len() >= upper.offset + least
    })
}

impl Reassembly {
    /// How many packets are waited for.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// When the next of them is given up.
    #[inline]
    pub(crate) const fn due(&self) -> Option<Nanos> {
        self.due
    }

    fn take(&mut self, at: usize) -> Option<Partial> {
        let partial = self.packets.remove(at)?;
        self.memory = self.memory.saturating_sub(partial.memory());
        self.due = self.packets.iter().map(|partial| partial.until).min();
        Some(partial)
    }
}

/// Keeps a fragment for the router itself until the others of its packet have come, which then goes on in its place.
/// `None`: it is kept.
#[cold]
#[inline(never)]
pub(crate) fn reassemble<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    trace: &mut T,
) -> Option<Verdict> {
    give_up_fragments(path, view, trace);
    offload::finish(&mut meta.packet);
    let bytes = meta.packet.bytes();
    let Some(fragment) = Fragment::read(bytes, meta.extra.instance) else {
        return Some(Verdict::drop(DropReason::FragmentMalformed));
    };
    let packets = &mut path.reassembly.packets;
    let known = packets.iter().position(|partial| partial.key == fragment.key);
    let at = known.unwrap_or_else(|| {
        let patience = if fragment.header.is_some() { PATIENCE6 } else { PATIENCE4 };
        let until = view.now.saturating_add(patience);
        packets.push_back(Partial::new(fragment.key, until, meta.ingress, meta.extra));
        path.reassembly.due = Some(path.reassembly.due.map_or(until, |due| due.min(until)));
        packets.len() - 1
    });
    let partial = packets.get_mut(at)?;
    let before = partial.memory();
    let added = partial.add(bytes, &fragment);
    (partial.ingress, partial.extra) = (meta.ingress, meta.extra);
    path.reassembly.memory += partial.memory() - before;
    if let Err(refused) = added {
        if refused.all || known.is_none() {
            path.reassembly.take(at);
        }
        return Some(match refused.pointer {
            Some(pointer) => {
                meta.extra.argument = pointer as u32;
                Verdict::error(refused.reason, IcmpError::Header)
            }
            None => Verdict::drop(refused.reason),
        });
    }
    if partial.is_complete() {
        let partial = path.reassembly.take(at)?;
        return Some(put_together(path, view, meta, &partial, trace));
    }
    trace.step(Event::Gathered, &meta.packet);
    path.totals.delivered += 1;
    while path.reassembly.packets.len() > PACKETS || path.reassembly.memory > MEMORY {
        let oldest = path.reassembly.take(0)?;
        give_up_partial(path, view, oldest, DropReason::ReassemblyFull, trace);
    }
    None
}

/// Sends the packet that fragments are of down the path of the one that came last.
fn put_together<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    meta: &mut PacketMeta,
    partial: &Partial,
    trace: &mut T,
) -> Verdict {
    let Some(len) = partial.len() else { return Verdict::drop(DropReason::FragmentMalformed) };
    let Some(mut whole) = path.pool.take_for(len) else { return Verdict::drop(DropReason::NoBuffer) };
    if partial.write(whole.bytes_mut()).is_none() {
        path.pool.give(whole);
        return Verdict::drop(DropReason::FragmentMalformed);
    }
    let frame = meta.link_layer();
    whole.trace_as(&meta.packet);
    path.pool.give(std::mem::replace(&mut meta.packet, whole));
    frame.into_iter().for_each(|frame| meta.put_link_layer(frame));
    trace.step(Event::Reassembled(partial.parts.len()), &meta.packet);
    // Not as it came in: a kernel beside the router has no such packet of its own.
    meta.extra.lookups_done += 1;
    meta.extra.labels = 0;
    if view.tables.tunnels().receives() { leave_tunnel(path, view, meta, trace) } else { Verdict::Deliver }
}

/// Gives up the packets whose fragments have been waited for too long.
pub(crate) fn give_up_fragments<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    trace: &mut T,
) {
    while let Some(at) = path.reassembly.packets.iter().position(|partial| partial.until <= view.now)
        && let Some(partial) = path.reassembly.take(at)
    {
        give_up_partial(path, view, partial, DropReason::ReassemblyTimeout, trace);
    }
}

/// Counts what has come of a packet as one that is dropped. Who sent it is told of its time being over, if its first
/// fragment has come.
fn give_up_partial<const COUNT: bool, T: Trace>(
    path: &mut Path<COUNT>,
    view: &View<'_>,
    partial: Partial,
    reason: DropReason,
    trace: &mut T,
) {
    path.totals.generated += 1;
    let first =
        partial.parts.first().filter(|(offset, _)| *offset == 0 && reason == DropReason::ReassemblyTimeout);
    let Some(packet) = first.and_then(|(_, part)| first_fragment(path, &partial.headers, part)) else {
        return path.counters.add_drop(reason, 1);
    };
    let meta = PacketMeta::new(packet, 0, partial.ingress, partial.extra);
    path.slow_path_alone(view, meta, Verdict::error(reason, IcmpError::Reassembly), trace);
}

fn first_fragment<const COUNT: bool>(
    path: &mut Path<COUNT>,
    headers: &[u8],
    payload: &[u8],
) -> Option<Packet> {
    let mut packet = path.pool.take_for(headers.len() + payload.len())?;
    let (front, back) = packet.bytes_mut().split_at_mut(headers.len());
    front.copy_from_slice(headers);
    back.copy_from_slice(payload);
    Some(packet)
}
