//! Coalescing: TCP segments of a flow that come one after the other become one packet that stands for all of them,
//! as Linux's `tcp_gro_receive` makes it, so that the host takes it through its stack once. So do UDP datagrams of one
//! length, the last of which may be shorter (`udp_gro_receive_segment`), for a device that takes them: who has asked for
//! them at the socket (UDP_GRO) gets them at once, others one by one.
//!
//! What cutting the packet would not give back stays as it is: segments with other headers, other options, of
//! another size or with flags that mean something to one of them alone. A checksum that does not hold stays, too, for
//! the host to see, and so does a datagram without one. Only IPv4 identifications that stand still, which say nothing
//! where a packet may not be cut (RFC 6864 section 4), would grow.

use std::collections::VecDeque;

use underpass_packet::checksum::Sum;
use underpass_packet::tcp::{ACK, FIN, PSH};
use underpass_packet::{FromBytes, ethernet, ipv4, ipv6, protocol, tcp, udp};

use crate::buffer::{HEADROOM, Offload, Packet, Pool, Segment, SegmentKind};
use crate::worker::port_queues::QUEUE;

/// Flows that are gathered at a time, as many as Linux has in a bucket (`MAX_GRO_SKBS`).
const FLOWS: usize = 8;
/// Where the IP header begins.
const IP: usize = ethernet::Header::LEN;
/// Offset of the checksum in a TCP header, and in one of UDP.
const CHECKSUM: u16 = 16;
const CHECKSUM_UDP: u16 = 6;
/// Most datagrams in one packet: Linux's `UDP_GRO_CNT_MAX`, and what a sender may say (`UDP_MAX_SEGMENTS` of old).
const DATAGRAMS: u16 = 64;
/// The longest IP packet.
const LONGEST: usize = 65_535;

/// Gathers the packets of a port that passes segments on to its device.
pub struct Coalescer {
    /// What is to be sent, in the order of the first segments.
    ready: VecDeque<Packet>,
    flows: Vec<Flow>,
    /// Whether the device takes UDP datagrams that were put together.
    datagrams: bool,
}

/// Segments that were put together, or one to which others may be put.
struct Flow {
    /// Where its packet stands in what is to be sent.
    at: usize,
    headers: Headers,
    /// The sequence number of what follows; of UDP nothing.
    next: u32,
    /// Payload of each segment.
    size: usize,
    segments: u16,
    /// By how much the IPv4 identification grows from one to the next: 0 or 1, once there is a second.
    step: Option<u16>,
}

/// Where the parts of a TCP segment, or of a UDP datagram, in a frame are.
#[derive(Clone, Copy)]
struct Headers {
    ipv6: bool,
    udp: bool,
    upper: usize,
    payload: usize,
    end: usize,
}

impl Headers {
    /// Of a frame with TCP, or UDP, right behind an IP header without options.
    fn of(frame: &[u8]) -> Option<Self> {
        let (link, packet) = ethernet::Header::parse(frame).ok()?;
        let (ipv6, protocol, upper, end) = match link.ethertype.get() {
            ethernet::IPV4 => {
                let (header, _) = ipv4::Header::ref_from_prefix(packet).ok()?;
                let whole = !header.more_fragments() && header.fragment_offset() == 0;
                let plain = packet.first() == Some(&0x45) && whole && header.checksum_valid(&[]);
                plain.then_some((
                    false,
                    header.protocol,
                    IP + ipv4::Header::LEN,
                    IP + usize::from(header.total_length.get()),
                ))?
            }
            ethernet::IPV6 => {
                let (header, _) = ipv6::Header::ref_from_prefix(packet).ok()?;
                let (next, upper) = (header.next_header, IP + ipv6::Header::LEN);
                let end = upper + usize::from(header.payload_length.get());
                (packet.first()? >> 4 == 6).then_some((true, next, upper, end))?
            }
            _ => return None,
        };
        let (payload, sound) = match protocol {
            protocol::TCP => {
                let payload = upper + 4 * usize::from(frame.get(upper + 12)? >> 4);
                (payload, payload >= upper + tcp::Header::LEN)
            }
            protocol::UDP => {
                let (header, _) = udp::Header::ref_from_prefix(frame.get(upper..)?).ok()?;
                (upper + udp::Header::LEN, upper + usize::from(header.length.get()) == end)
            }
            _ => return None,
        };
        let sound = sound && payload <= end && end <= frame.len();
        sound.then_some(Self { ipv6, udp: protocol == protocol::UDP, upper, payload, end })
    }

    fn tcp(self, frame: &[u8]) -> Option<&tcp::Header> {
        Some(tcp::Header::ref_from_prefix(frame.get(self.upper..)?).ok()?.0)
    }

    /// TCP's flags; of UDP those of a segment that says nothing.
    fn flags(self, frame: &[u8]) -> Option<u16> {
        if self.udp { Some(ACK) } else { Some(self.tcp(frame)?.flags()) }
    }

    /// TCP's sequence number; of UDP 0.
    fn sequence(self, frame: &[u8]) -> Option<u32> {
        if self.udp { Some(0) } else { Some(self.tcp(frame)?.sequence.get()) }
    }

    const fn protocol(self) -> u8 {
        if self.udp { protocol::UDP } else { protocol::TCP }
    }

    /// Where its checksum is in its header.
    const fn field(self) -> u16 {
        if self.udp { CHECKSUM_UDP } else { CHECKSUM }
    }

    /// Addresses and ports.
    fn flow(self, frame: &[u8]) -> Option<(&[u8], &[u8])> {
        Some((addresses(self.ipv6, frame)?, frame.get(self.upper..self.upper + 4)?))
    }

    /// The sum of the pseudo header for `len` bytes of TCP or UDP.
    fn pseudo(self, frame: &[u8], len: usize) -> Option<Sum> {
        let packet = frame.get(IP..)?;
        Some(if self.ipv6 {
            let (ip, _) = ipv6::Header::ref_from_prefix(packet).ok()?;
            let (source, destination) = (ip.source().octets(), ip.destination().octets());
            Sum::pseudo_ipv6(source, destination, self.protocol(), len as u32)
        } else {
            let (ip, _) = ipv4::Header::ref_from_prefix(packet).ok()?;
            let (source, destination) = (ip.source().octets(), ip.destination().octets());
            Sum::pseudo_ipv4(source, destination, self.protocol(), len as u16)
        })
    }

    /// Whether a segment may be put to others, or others to it, as far as it alone says.
    fn may_join(self, packet: &Packet) -> Option<bool> {
        let frame = packet.bytes();
        let flags = self.flags(frame)?;
        if self.payload == self.end || self.end != frame.len() || flags & !(PSH | FIN) != ACK {
            return Some(false);
        }
        if packet.has_offload() {
            // A checksum that is left to be finished is not doubted.
            return Some(
                packet.offload() == Some(Offload { start: self.upper, field: self.field(), segment: None }),
            );
        }
        let checksum = self.upper + usize::from(self.field());
        if self.udp && frame.get(checksum..checksum + 2) == Some(&[0; 2]) {
            return Some(false);
        }
        let sum = self.pseudo(frame, self.end - self.upper)?.add_bytes(frame.get(self.upper..self.end)?);
        Some(sum.checksum() == 0)
    }
}

/// The addresses of an IP packet in a frame.
fn addresses(ipv6: bool, frame: &[u8]) -> Option<&[u8]> {
    frame.get(if ipv6 { IP + 8..IP + 40 } else { IP + 12..IP + 20 })
}

/// Whether two segments differ in nothing but what differs from one to the next: lengths, the IPv4 identification,
/// sequence number, checksums, and the flags that end a row.
fn alike(one: &[u8], other: &[u8], headers: Headers) -> bool {
    let same = |from: usize, to: usize| one.get(from..to) == other.get(from..to);
    let ip = match headers.ipv6 {
        true => same(0, IP + 4) && same(IP + 6, headers.upper),
        false => same(0, IP + 2) && same(IP + 6, IP + 10) && same(IP + 12, headers.upper),
    };
    let tcp = headers.upper;
    if headers.udp {
        return ip && same(tcp, tcp + 4);
    }
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

impl Coalescer {
    /// With room for what the queue of a port holds; `datagrams`: its device takes UDP datagrams that were put together
    /// ([`SegmentKind::Udp`]).
    pub fn new(datagrams: bool) -> Self {
        Self { ready: VecDeque::with_capacity(QUEUE), flows: Vec::with_capacity(FLOWS), datagrams }
    }

    /// Takes packets that are to be sent. Those that were put to others, whose number it gives, leave their slots to
    /// `pool`.
    ///
    /// What [`Coalescer::next`] gives then is to be sent before more packets come.
    pub fn put(&mut self, pool: &mut Pool, packets: impl Iterator<Item = Packet>) -> u64 {
        let (mut received, before) = (0, self.ready.len());
        for packet in packets {
            received += 1;
            self.add(pool, packet);
        }
        while let Some(flow) = self.flows.pop() {
            self.close(&flow);
        }
        (before + received - self.ready.len()) as u64
    }

    /// The next that is to be sent.
    #[expect(clippy::should_implement_trait, reason = "it goes on giving after a `None`")]
    pub fn next(&mut self) -> Option<Packet> {
        self.ready.pop_front()
    }

    fn add(&mut self, pool: &mut Pool, packet: Packet) {
        let headers = Headers::of(packet.bytes()).filter(|headers| self.datagrams || !headers.udp);
        let Some(headers) = headers else {
            self.close_between(packet.bytes());
            return self.ready.push_back(packet);
        };
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

    /// Lets no datagram overtake a packet between the same addresses that may be of its flow, a fragment say. Of TCP the
    /// sequence numbers see to it.
    fn close_between(&mut self, frame: &[u8]) {
        let Ok((link, _)) = ethernet::Header::parse(frame) else { return };
        let ipv6 = link.ethertype.get() == ethernet::IPV6;
        let wanted = addresses(ipv6, frame);
        let of_them = |flow: &Flow, ready: &VecDeque<Packet>| {
            let first = ready.get(flow.at).map(|packet| packet.bytes());
            let same = || first.and_then(|first| addresses(ipv6, first)) == wanted;
            flow.headers.udp && flow.headers.ipv6 == ipv6 && same()
        };
        while let Some(index) = self.flows.iter().position(|flow| of_them(flow, &self.ready)) {
            let flow = self.flows.remove(index);
            self.close(&flow);
        }
    }

    /// The flow that a segment belongs to.
    fn find(&self, frame: &[u8], headers: Headers) -> Option<usize> {
        let wanted = headers.flow(frame)?;
        self.flows.iter().position(|flow| {
            let first = self.ready.get(flow.at).map(|packet| packet.bytes());
            (flow.headers.ipv6, flow.headers.udp) == (headers.ipv6, headers.udp)
                && first.and_then(|first| flow.headers.flow(first)) == Some(wanted)
        })
    }

    /// A segment that is the first of others.
    fn begin(&mut self, packet: &Packet, headers: Headers) -> Option<()> {
        if headers.flags(packet.bytes())? & (PSH | FIN) != 0 {
            return None;
        }
        if self.flows.len() == FLOWS {
            // The one that was begun first.
            let flow = self.flows.remove(0);
            self.close(&flow);
        }
        let size = headers.end - headers.payload;
        let next = if headers.udp { 0 } else { headers.sequence(packet.bytes())?.wrapping_add(size as u32) };
        self.flows.push(Flow { at: self.ready.len(), headers, next, size, segments: 1, step: None });
        Some(())
    }

    /// Puts a segment to those of its flow. Whether more may follow; `None`: it does not follow them, and nothing is
    /// changed.
    fn join(&mut self, pool: &mut Pool, index: usize, packet: &Packet, headers: Headers) -> Option<bool> {
        let flow = self.flows.get_mut(index)?;
        let first = self.ready.get_mut(flow.at)?;
        let frame = packet.bytes();
        let payload = frame.get(headers.payload..headers.end)?;
        let follows = headers.sequence(frame)? == flow.next
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
        flow.segments += 1;
        if headers.udp {
            return Some(payload.len() == flow.size && flow.segments < DATAGRAMS);
        }
        let ending = headers.flags(frame)? & (PSH | FIN);
        if let Some(flags) = first.bytes_mut().get_mut(flow.headers.upper + 13) {
            *flags |= ending as u8;
        }
        flow.next = flow.next.wrapping_add(payload.len() as u32);
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
        let len = end - headers.upper;
        let kind = if headers.ipv6 {
            let (ip, _) = ipv6::Header::mut_from_prefix(rest).ok()?;
            ip.payload_length = (len as u16).into();
            SegmentKind::Tcp6
        } else {
            let (ip, _) = ipv4::Header::mut_from_prefix(rest).ok()?;
            ip.total_length = ((end - IP) as u16).into();
            ip.fill_checksum(&[]);
            SegmentKind::Tcp4
        };
        let pseudo = headers.pseudo(frame, len)?.fold();
        let upper = frame.get_mut(headers.upper..)?;
        let kind = if headers.udp {
            let (header, _) = udp::Header::mut_from_prefix(upper).ok()?;
            (header.length, header.checksum) = ((len as u16).into(), pseudo.into());
            SegmentKind::Udp
        } else {
            tcp::Header::mut_from_prefix(upper).ok()?.0.checksum = pseudo.into();
            kind
        };
        let segment = Some(Segment { size: flow.size as u16, kind });
        packet.set_offload(Offload { start: headers.upper, field: headers.field(), segment });
        Some(())
    }
}

#[cfg(test)]
mod tests;
