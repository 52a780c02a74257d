//! Coalescing: TCP segments of a flow that come one after the other become one packet that stands for all of them,
//! as Linux's `tcp_gro_receive` makes it, so that the host takes it through its stack once.
//!
//! What cutting the packet would not give back stays as it is: segments with other headers, other options, of
//! another size or with flags that mean something to one of them alone. A checksum that does not hold stays, too, for
//! the host to see. Only IPv4 identifications that stand still, which say nothing where a packet may not be cut (RFC
//! 6864 section 4), would grow.

use std::collections::VecDeque;

use underpass_packet::checksum::Sum;
use underpass_packet::tcp::{ACK, FIN, PSH};
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol, tcp};

use crate::buffer::{HEADROOM, Offload, Packet, Pool, Segment, SegmentKind};
use crate::worker::QUEUE;

/// Flows that are gathered at a time, as many as Linux has in a bucket (`MAX_GRO_SKBS`).
const FLOWS: usize = 8;
/// Where the IP header begins.
const IP: usize = ethernet::Header::LEN;
/// Offset of the checksum in a TCP header.
const CHECKSUM: u16 = 16;
/// The longest IP packet.
const LONGEST: usize = 65_535;

/// Gathers the packets of a port that passes segments on to its device.
pub struct Coalescer {
    /// What is to be sent, in the order of the first segments.
    ready: VecDeque<Packet>,
    flows: Vec<Flow>,
}

/// Segments that were put together, or one to which others may be put.
struct Flow {
    /// Where its packet stands in what is to be sent.
    at: usize,
    headers: Headers,
    /// The sequence number of what follows.
    next: u32,
    /// Payload of each segment.
    size: usize,
    segments: u16,
    /// By how much the IPv4 identification grows from one to the next: 0 or 1, once there is a second.
    step: Option<u16>,
}

/// Where the parts of a TCP segment in a frame are.
#[derive(Clone, Copy)]
struct Headers {
    ipv6: bool,
    tcp: usize,
    payload: usize,
    end: usize,
}

impl Headers {
    /// Of a frame with TCP right behind an IP header without options.
    fn of(frame: &[u8]) -> Option<Self> {
        let (link, packet) = ethernet::Header::parse(frame).ok()?;
        let (ipv6, tcp, end) = match link.ethertype.get() {
            ethernet::IPV4 => {
                let (header, _) = ipv4::Header::ref_from_prefix(packet).ok()?;
                let whole = !header.more_fragments() && header.fragment_offset() == 0;
                let plain = packet.first() == Some(&0x45) && whole && header.checksum_valid(&[]);
                let plain = plain && header.protocol == protocol::TCP;
                plain.then_some((
                    false,
                    IP + ipv4::Header::LEN,
                    IP + usize::from(header.total_length.get()),
                ))?
            }
            ethernet::IPV6 => {
                let (header, _) = ipv6::Header::ref_from_prefix(packet).ok()?;
                let tcp = IP + ipv6::Header::LEN;
                let plain = packet.first()? >> 4 == 6 && header.next_header == protocol::TCP;
                plain.then_some((true, tcp, tcp + usize::from(header.payload_length.get())))?
            }
            _ => return None,
        };
        let payload = tcp + 4 * usize::from(frame.get(tcp + 12)? >> 4);
        let sound = payload >= tcp + tcp::Header::LEN && payload <= end && end <= frame.len();
        sound.then_some(Self { ipv6, tcp, payload, end })
    }

    fn tcp(self, frame: &[u8]) -> Option<&tcp::Header> {
        Some(tcp::Header::ref_from_prefix(frame.get(self.tcp..)?).ok()?.0)
    }

    /// Addresses and ports.
    fn flow(self, frame: &[u8]) -> Option<(&[u8], &[u8])> {
        let addresses = if self.ipv6 { IP + 8..IP + 40 } else { IP + 12..IP + 20 };
        Some((frame.get(addresses)?, frame.get(self.tcp..self.tcp + 4)?))
    }

    /// The sum of the pseudo header for `len` bytes of TCP.
    fn pseudo(self, frame: &[u8], len: usize) -> Option<Sum> {
        let packet = frame.get(IP..)?;
        Some(if self.ipv6 {
            let (ip, _) = ipv6::Header::ref_from_prefix(packet).ok()?;
            let (source, destination) = (ip.source().octets(), ip.destination().octets());
            Sum::pseudo_ipv6(source, destination, protocol::TCP, len as u32)
        } else {
            let (ip, _) = ipv4::Header::ref_from_prefix(packet).ok()?;
            let (source, destination) = (ip.source().octets(), ip.destination().octets());
            Sum::pseudo_ipv4(source, destination, protocol::TCP, len as u16)
        })
    }

    /// Whether a segment may be put to others, or others to it, as far as it alone says.
    fn may_join(self, packet: &Packet) -> Option<bool> {
        let frame = packet.bytes();
        let flags = self.tcp(frame)?.flags();
        if self.payload == self.end || self.end != frame.len() || flags & !(PSH | FIN) != ACK {
            return Some(false);
        }
        if packet.has_offload() {
            // A checksum that is left to be finished is not doubted.
            return Some(
                packet.offload() == Some(Offload { start: self.tcp, field: CHECKSUM, segment: None }),
            );
        }
        let sum = self.pseudo(frame, self.end - self.tcp)?.add_bytes(frame.get(self.tcp..self.end)?);
        Some(sum.checksum() == 0)
    }
}

/// Whether two segments differ in nothing but what differs from one to the next: lengths, the IPv4 identification,
/// sequence number, checksums, and the flags that end a row.
fn alike(one: &[u8], other: &[u8], headers: Headers) -> bool {
    let same = |from: usize, to: usize| one.get(from..to) == other.get(from..to);
    let ip = match headers.ipv6 {
        true => same(0, IP + 4) && same(IP + 6, headers.tcp),
        false => same(0, IP + 2) && same(IP + 6, IP + 10) && same(IP + 12, headers.tcp),
    };
    let tcp = headers.tcp;
    // Which flags there are has been looked at.
    ip && same(tcp, tcp + 4)
        && same(tcp + 8, tcp + 13)
        && same(tcp + 14, tcp + 16)
        && same(tcp + 18, headers.payload)
}

/// The IPv4 identification, and whether the packet may not be cut.
fn identification(frame: &[u8]) -> Option<(u16, bool)> {
    let (header, _) = ipv4::Header::ref_from_prefix(frame.get(IP..)?).ok()?;
    Some((header.identification.get(), header.dont_fragment()))
}

impl Default for Coalescer {
    /// With room for what the queue of a port holds.
    fn default() -> Self {
        Self { ready: VecDeque::with_capacity(QUEUE), flows: Vec::with_capacity(FLOWS) }
    }
}

impl Coalescer {
    /// Takes packets that are to be sent. Those that were put to others, whose number it gives, leave their slots to
    /// `pool`.
    ///
    /// What [`Coalescer::next`] gives then is to be sent before more packets come.
    pub fn put(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) -> u64 {
        let (mut came, before) = (0, self.ready.len());
        for packet in packets {
            came += 1;
            self.add(pool, packet);
        }
        while let Some(flow) = self.flows.pop() {
            self.close(&flow);
        }
        (before + came - self.ready.len()) as u64
    }

    /// The next that is to be sent.
    #[expect(clippy::should_implement_trait, reason = "it goes on giving after a `None`")]
    pub fn next(&mut self) -> Option<Packet> {
        self.ready.pop_front()
    }

    fn add(&mut self, pool: &mut Pool, packet: Packet) {
        let Some(headers) = Headers::of(packet.bytes()) else { return self.ready.push_back(packet) };
        let found = self.find(packet.bytes(), headers);
        let joins = headers.may_join(&packet).unwrap_or_default();
        if let Some(index) = found {
            let joined = if joins { self.join(pool, index, &packet, headers) } else { None };
            if joined != Some(true) {
                // What comes later of this flow comes behind what is there.
                let flow = self.flows.remove(index);
                self.close(&flow);
            }
            if joined.is_some() {
                return pool.give(packet);
            }
        }
        if joins {
            self.begin(&packet, headers);
        }
        self.ready.push_back(packet);
    }

    /// The flow that a segment belongs to.
    fn find(&self, frame: &[u8], headers: Headers) -> Option<usize> {
        let wanted = headers.flow(frame)?;
        self.flows.iter().position(|flow| {
            let first = self.ready.get(flow.at).map(|packet| packet.bytes());
            flow.headers.ipv6 == headers.ipv6
                && first.and_then(|first| flow.headers.flow(first)) == Some(wanted)
        })
    }

    /// A segment that is the first of others.
    fn begin(&mut self, packet: &Packet, headers: Headers) -> Option<()> {
        let tcp = headers.tcp(packet.bytes())?;
        if tcp.flags() & (PSH | FIN) != 0 {
            return None;
        }
        if self.flows.len() == FLOWS {
            // The one that was begun first.
            let flow = self.flows.remove(0);
            self.close(&flow);
        }
        let size = headers.end - headers.payload;
        let next = tcp.sequence.get().wrapping_add(size as u32);
        self.flows.push(Flow { at: self.ready.len(), headers, next, size, segments: 1, step: None });
        Some(())
    }

    /// Puts a segment to those of its flow. Whether more may follow; `None`: it does not follow them, and nothing is
    /// changed.
    fn join(&mut self, pool: &mut Pool, index: usize, packet: &Packet, headers: Headers) -> Option<bool> {
        let flow = self.flows.get_mut(index)?;
        let first = self.ready.get_mut(flow.at)?;
        let frame = packet.bytes();
        let tcp = headers.tcp(frame)?;
        let payload = frame.get(headers.payload..headers.end)?;
        let follows = tcp.sequence.get() == flow.next
            && payload.len() <= flow.size
            && headers.payload == flow.headers.payload
            && first.len() - IP + payload.len() <= LONGEST
            && alike(first.bytes(), frame, headers);
        if !follows {
            return None;
        }
        if !headers.ipv6 {
            let ((was, atomic), (now, _)) = (identification(first.bytes())?, identification(frame)?);
            let step = flow.step.unwrap_or_else(|| now.wrapping_sub(was));
            let known = step == 1 || step == 0 && atomic;
            if !known || now != was.wrapping_add(step * flow.segments) {
                return None;
            }
            flow.step = Some(step);
        }
        if !first.is_large() {
            let mut large = pool.take_large()?;
            if large.set(HEADROOM, first.bytes()).is_err() {
                pool.give(large);
                return None;
            }
            pool.give(std::mem::replace(first, large));
        }
        let end = first.len();
        first.lengthen(payload.len()).ok()?;
        first.bytes_mut().get_mut(end..)?.copy_from_slice(payload);
        let ending = tcp.flags() & (PSH | FIN);
        if let Some(flags) = first.bytes_mut().get_mut(flow.headers.tcp + 13) {
            *flags |= ending as u8;
        }
        flow.next = flow.next.wrapping_add(payload.len() as u32);
        flow.segments += 1;
        Some(ending == 0 && payload.len() == flow.size)
    }

    /// Gives a packet that stands for several the headers that it needs.
    fn close(&mut self, flow: &Flow) -> Option<()> {
        let Flow { headers, segments, .. } = *flow;
        if segments < 2 {
            return None;
        }
        let packet = self.ready.get_mut(flow.at)?;
        let frame = packet.bytes_mut();
        let end = frame.len();
        let rest = frame.get_mut(IP..)?;
        let kind = if headers.ipv6 {
            let (ip, _) = ipv6::Header::mut_from_prefix(rest).ok()?;
            ip.payload_length = ((end - headers.tcp) as u16).into();
            SegmentKind::Tcp6
        } else {
            let (ip, _) = ipv4::Header::mut_from_prefix(rest).ok()?;
            ip.total_length = ((end - IP) as u16).into();
            ip.fill_checksum(&[]);
            SegmentKind::Tcp4
        };
        let pseudo = headers.pseudo(frame, end - headers.tcp)?.fold();
        tcp::Header::mut_from_prefix(frame.get_mut(headers.tcp..)?).ok()?.0.checksum = pseudo.into();
        let segment = Some(Segment { size: flow.size as u16, kind });
        packet.set_offload(Offload { start: headers.tcp, field: CHECKSUM, segment });
        Some(())
    }
}

#[cfg(test)]
mod tests;
