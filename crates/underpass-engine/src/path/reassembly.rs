//! Fragments of packets for the router itself, until all have come: RFC 791 section 3.2 and RFC 8200 section 4.5, with the
//! checks of Linux's `ip_frag_queue` and `ip6_frag_queue`.

use std::collections::VecDeque;
use std::net::IpAddr;

use underpass_packet::ipv6_ext::{Extensions, Kind, Upper};
use underpass_packet::{FromBytes, ipv4, ipv6, protocol};

use crate::drops::DropReason;
use crate::limiter::Nanos;
use crate::tables::{LinkId, LookupId};
use crate::worker::error::IcmpError;
use crate::worker::metadata::ExtraMeta;

/// Packets that are waited for at a time; the oldest makes room for one more.
pub(crate) const PACKETS: usize = 256;

/// Bytes that fragments take at most, and each beyond its own.
pub(crate) const MEMORY: usize = 4 << 20;
const OVERHEAD: usize = 64;

/// How long the first fragment waits for the others: Linux's `ipfrag_time` and `ip6frag_time`.
pub(crate) const PATIENCE4: Nanos = 30_000_000_000;
pub(crate) const PATIENCE6: Nanos = 60_000_000_000;

/// The longest IPv4 packet, and the longest payload of an IPv6 packet.
pub(crate) const LONGEST: usize = 65_535;
const FRAGMENT_HEADER: usize = 8;

/// Where an IPv6 header says how long its payload is.
const PAYLOAD_LENGTH: usize = 4;
pub(crate) const ECN: u8 = 3;

/// What the fragments of one packet have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identification: u32,
    /// Of IPv4.
    pub(crate) protocol: u8,
    pub(crate) instance: LookupId,
}

/// A fragment, as its headers describe it.
pub(crate) struct Fragment {
    pub(crate) key: Key,
    /// Where its payload begins in the packet that it is of, and in its own.
    pub(crate) offset: usize,
    pub(crate) payload: std::ops::Range<usize>,
    pub(crate) more: bool,
    /// Of IPv6: where the fragment header is, and the field that names it.
    pub(crate) header: Option<(usize, usize)>,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
}

/// A packet whose fragments come.
pub(crate) struct Partial {
    pub(crate) key: Key,
    /// When it is given up.
    pub(crate) until: Nanos,
    /// All before the payload, as it came in the first fragment, and where the fragment header is in it.
    pub(crate) headers: Vec<u8>,
    pub(crate) header: Option<(usize, usize)>,
    /// What has come, in order and without overlaps.
    pub(crate) parts: Vec<(usize, Box<[u8]>)>,
    /// Length of the payload, once it is known.
    pub(crate) total: Option<usize>,
    /// As far as anything has come.
    pub(crate) end: usize,
    pub(crate) received: usize,
    /// A bit for each codepoint of ECN that came.
    pub(crate) ecn: u8,
    /// The longest fragment, and the longest that must not be fragmented.
    pub(crate) longest: [usize; 2],
    /// Of the fragment that came last.
    pub(crate) ingress: LinkId,
    pub(crate) extra: ExtraMeta,
}

/// Why a fragment is refused.
pub(crate) struct Refused {
    pub(crate) reason: DropReason,
    /// Whether all that has come of its packet goes too.
    pub(crate) all: bool,
    /// What the sender of an IPv6 packet is to hear, and which byte is wrong.
    pub(crate) error: Option<(IcmpError, usize)>,
}

impl Refused {
    const fn with_all(reason: DropReason) -> Self {
        Self { reason, all: true, error: None }
    }

    pub(crate) const fn alone(reason: DropReason, error: Option<(IcmpError, usize)>) -> Self {
        Self { reason, all: false, error }
    }
}

/// Packets whose fragments come.
#[derive(Default)]
pub(crate) struct Reassembly {
    /// Oldest first.
    pub(crate) packets: VecDeque<Partial>,
    pub(crate) memory: usize,
    /// When the next of them is given up.
    pub(crate) due: Option<Nanos>,
}

impl Fragment {
    /// `None`: it is whole, or not sound.
    pub(crate) fn read(bytes: &[u8], instance: LookupId) -> Option<Self> {
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

    pub(crate) fn read6(bytes: &[u8], instance: LookupId) -> Option<Self> {
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
    pub(crate) fn new(key: Key, until: Nanos, ingress: LinkId, extra: ExtraMeta) -> Self {
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

    pub(crate) fn memory(&self) -> usize {
        self.received + self.headers.len() + self.parts.len() * OVERHEAD
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.headers.is_empty() && self.total == Some(self.received)
    }

    /// Puts a fragment to those that have come.
    pub(crate) fn add(&mut self, bytes: &[u8], fragment: &Fragment) -> Result<(), Refused> {
        const MALFORMED: Refused = Refused::with_all(DropReason::FragmentMalformed);
        let offset = fragment.offset;
        let mut payload = bytes.get(fragment.payload.clone()).unwrap_or_default();
        let mut end = offset + payload.len();
        if let Some((at, _)) = fragment.header {
            let error = if offset == 0 && lacks_headers(bytes) {
                Some((IcmpError::HeaderChain, 0))
            } else if end > LONGEST {
                Some((IcmpError::Header, at + 2))
            } else if fragment.more && end & 7 != 0 {
                Some((IcmpError::Header, PAYLOAD_LENGTH))
            } else {
                None
            };
            if error.is_some() {
                return Err(Refused::alone(DropReason::FragmentMalformed, error));
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
    pub(crate) fn overlap(&self, place: usize, (offset, end): (usize, usize)) -> Result<(), Refused> {
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
    pub(crate) fn ecn(&self) -> Option<u8> {
        const NOT: u8 = 1;
        const CONGESTION: u8 = 1 << ECN;
        match self.ecn {
            codepoints if codepoints & NOT != 0 && codepoints != NOT => None,
            codepoints if codepoints & CONGESTION != 0 => Some(ECN),
            _ => Some(0),
        }
    }

    /// The whole packet, which is as long as [`Self::len`] says.
    pub(crate) fn write(&self, to: &mut [u8]) -> Option<()> {
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
    pub(crate) fn len(&self) -> Option<usize> {
        let headers = self.headers.len() - if self.header.is_some() { FRAGMENT_HEADER } else { 0 };
        let len = headers + self.total?;
        let longest = LONGEST + if self.header.is_some() { ipv6::Header::LEN } else { 0 };
        (len <= longest).then_some(len)
    }
}

/// Whether a first fragment does not have all headers, that of the upper layer too: RFC 8200 section 4.5. Nothing is missing to
/// Linux (`ipv6frag_thdr_truncated`) where it does not find the start of a header that another one names.
fn lacks_headers(packet: &[u8]) -> bool {
    let Ok(view) = ipv6::View::parse(packet) else { return true };
    let mut walk = Extensions::new(&view);
    let cut_off = walk.by_ref().any(|extension| extension.is_err());
    let Upper { protocol, offset, fragment_offset, .. } = walk.ahead();
    let rest = view.payload.get(offset - ipv6::Header::LEN..).unwrap_or_default();
    if cut_off {
        return match Kind::of(protocol) {
            Some(Kind::Fragment) => matches!(rest, [_, _, 0, 0..8, ..]),
            _ => rest.len() >= 2,
        };
    }
    let least = match protocol {
        protocol::NO_NEXT_HEADER => 0,
        protocol::TCP => 20,
        protocol::UDP | protocol::ICMPV6 => 8,
        _ => 1,
    };
    fragment_offset == 0 && rest.len() < least
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

    pub(crate) fn take(&mut self, at: usize) -> Option<Partial> {
        let partial = self.packets.remove(at)?;
        self.memory = self.memory.saturating_sub(partial.memory());
        self.due = self.packets.iter().map(|partial| partial.until).min();
        Some(partial)
    }
}
