//! The margin before a slot: what a port left undone, and what goes along with a packet beside its bytes.

#![allow(unsafe_code)]

use super::{MARGIN, OFFLOAD, Packet, TAGGED};

/// Where in the margin a [`Tag`] lies.
const TAG: usize = size_of::<Stored>();

/// What was left to the one who sends a packet: an unfinished checksum, a segment that is to be cut.
/// A packet that comes from a kernel's socket on the same machine has one; see virtio 1.2 section 5.1.6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Where the TCP or UDP header starts, in bytes from the packet's first. Its checksum covers all from
    /// there to the end of the packet.
    pub start: usize,
    /// Where the checksum field lies behind `start`: it holds the folded sum of the pseudo header.
    pub field: u16,
    /// The packet stands for several.
    pub segment: Option<Segment>,
}

/// A packet that stands for several that differ in their sequence numbers and checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Bytes of payload behind the TCP or UDP header in each, less in the last.
    pub size: u16,
    /// How it is cut.
    pub kind: SegmentKind,
}

/// How a segment is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams, each with its own header.
    Udp,
}

/// What goes along with a packet beside its bytes, for policy and traffic control: fields of Linux's `sk_buff`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Tag {
    /// `mark`: what `fw` filters and rules with `fwmark` look at.
    pub mark: u32,
    /// `priority`: the class that a qdisc puts it in.
    pub priority: u32,
    /// `queue_mapping`, as `skbedit` sets it.
    pub queue: u16,
    /// `tc_index`: the minor number of the class that a filter of a hook found.
    pub index: u16,
    /// `pkt_type`, as `skbedit` sets it, plus 1; 0: what its destination address says.
    pub packet_type: u8,
    /// How often it had been encapsulated when it came into the qdisc of a tunnel; in the upper half how often it had been
    /// redirected when it went into one.
    pub nested: u8,
    /// How often actions have redirected it to come in somewhere, wherever it was forwarded to in between: Linux's two bits
    /// of `ttl`.
    pub received: u8,
    /// Whether it is a copy that `mirred` has sent into a tunnel, of which nobody hears that it cannot go on.
    pub copy: bool,
    /// The links that it was redirected to be sent by then, plus 1; 0: none.
    pub through: [u32; 3],
    /// The EtherType of a packet without an Ethernet header, which an action has taken off, or which is at a tunnel of such
    /// packets; 0: it has one.
    pub headless: u16,
    /// The EtherType of a packet that went into a tunnel of frames without an Ethernet header, as if it had one; 0: it has one.
    pub frameless: u16,
    /// By how many bytes the filters of the link that it leaves by have made it longer: the qdisc behind them does not charge these,
    /// as Linux has noted its length before (`qdisc_pkt_len_init`).
    pub grown: i16,
    /// What whoever watches its path calls it; 0: nobody does. It changes nothing of that path.
    pub trace: u32,
    /// The `tunnel_key` action that has last said what a tunnel puts before it, plus 1, or [`NO_TUNNEL_KEY`]; 0: none has.
    pub tunnel: u32,
    /// The link that it has come in by, plus 1; 0: that of its burst; [`NO_LINK`]: none.
    pub received_by: u32,
    /// The interface index of that link, if it is one: `skb_iif`.
    pub received_index: u32,
}

/// [`Tag::received_by`] of a packet that the router has made, and of one that a tunnel has encapsulated.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// [`Tag::tunnel`] of a packet that has lost its parameters: `tunnel_key unset`.
pub(crate) const NO_TUNNEL_KEY: u32 = u32::MAX;

/// An [`Offload`] in the margin: `start` counts from the start of the slot, so that it stays right when
/// headers come and go.
#[derive(Clone, Copy)]
#[repr(C)]
struct Stored {
    start: u32,
    field: u16,
    /// 0: no segment.
    size: u16,
    kind: SegmentKind,
}

const _: () = assert!(size_of::<Stored>() <= TAG && TAG + size_of::<Tag>() <= MARGIN);

impl Packet {
    /// Whether something is left to be done before it is sent: [`Packet::offload`].
    #[inline(always)]
    pub fn has_offload(&self) -> bool {
        self.place & OFFLOAD != 0
    }

    /// What is left to be done. `None`: nothing, or the packet no longer has the header that it is about.
    pub fn offload(&self) -> Option<Offload> {
        if !self.has_offload() {
            return None;
        }
        // SAFETY: the margin before the slot is ours (see `Pool`), aligned as `Stored` is not, and was
        // written when the bit was set.
        let stored = unsafe { self.slot.as_ptr().sub(MARGIN).cast::<Stored>().read_unaligned() };
        let start = (stored.start as usize).checked_sub(self.start())?;
        if start + usize::from(stored.field) + 2 > self.len() {
            return None;
        }
        let segment = (stored.size != 0).then_some(Segment { size: stored.size, kind: stored.kind });
        Some(Offload { start, field: stored.field, segment })
    }

    /// Says what is left to be done.
    pub fn set_offload(&mut self, offload: Offload) {
        let stored = Stored {
            start: (self.start() + offload.start) as u32,
            field: offload.field,
            size: offload.segment.map_or(0, |segment| segment.size),
            kind: offload.segment.map_or(SegmentKind::Udp, |segment| segment.kind),
        };
        // SAFETY: the margin before the slot is ours (see `Pool`) and longer than `Stored`.
        unsafe { self.slot.as_ptr().sub(MARGIN).cast::<Stored>().write_unaligned(stored) };
        self.place |= OFFLOAD;
    }

    /// What goes along with it.
    #[inline(always)]
    pub fn tag(&self) -> Tag {
        if self.place & TAGGED == 0 { Tag::default() } else { self.read_tag() }
    }

    #[cold]
    fn read_tag(&self) -> Tag {
        // SAFETY: the margin before the slot is ours (see `Pool`) and longer than `TAG` and a `Tag`, which was written
        // there when the bit was set.
        unsafe { self.slot.as_ptr().sub(MARGIN - TAG).cast::<Tag>().read_unaligned() }
    }

    /// Says what goes along with it.
    pub fn set_tag(&mut self, tag: Tag) {
        self.place &= !TAGGED;
        if tag != Tag::default() {
            // SAFETY: as in `read_tag`.
            unsafe { self.slot.as_ptr().sub(MARGIN - TAG).cast::<Tag>().write_unaligned(tag) };
            self.place |= TAGGED;
        }
    }

    /// Is watched as the packet is that this one was made of.
    #[inline]
    pub fn trace_as(&mut self, origin: &Self) {
        let trace = origin.tag().trace;
        if trace != 0 {
            self.set_tag(Tag { trace, ..self.tag() });
        }
    }

    /// A packet of the router's own has taken its place, which is watched as it was, and made within the redirections that have
    /// led it here: Linux counts those that it is in, of whatever packet. Nothing else goes along with it.
    pub fn untag(&mut self) {
        let Tag { trace, nested, through, .. } = self.tag();
        self.set_tag(Tag { trace, nested: nested & 0xF0, through, received_by: NO_LINK, ..Tag::default() });
    }

    /// Is in no redirection any more.
    pub(crate) fn leave_redirections(&mut self) {
        let Tag { nested, through, .. } = Tag::default();
        self.set_tag(Tag { nested, through, ..self.tag() });
    }

    /// Is in the redirections that another packet is in.
    pub(crate) fn redirected_as(&mut self, other: &Self) {
        let Tag { nested, through, .. } = other.tag();
        self.set_tag(Tag { nested, through, ..self.tag() });
    }

    /// Loses the parameters that `tunnel_key` has given to it: the routes say where it goes on.
    #[inline]
    pub(crate) fn forget_key(&mut self) {
        let tag = self.tag();
        if tag.tunnel != 0 {
            self.set_tag(Tag { tunnel: 0, ..tag });
        }
    }

    /// Goes on from the filters of the link that it leaves by, and from the qdisc that charges it.
    #[inline]
    pub(crate) fn leave_filters(&mut self) {
        let tag = self.tag();
        if tag.grown != 0 {
            self.set_tag(Tag { grown: 0, ..tag });
        }
    }

    /// Takes over what goes along with the packet that this one is a part of: `ip_copy_metadata`; and how often it was
    /// redirected, without which one that is cut each time goes round for ever.
    pub fn tag_as(&mut self, whole: &Self) {
        let Tag { mark, priority, index, packet_type, trace, received_by, received_index, .. } = whole.tag();
        let Tag { nested, received, through, .. } = whole.tag();
        let tag = Tag { nested, received, through, ..self.tag() };
        self.set_tag(Tag { mark, priority, index, packet_type, trace, received_by, received_index, ..tag });
    }

    /// Length of the longest of the packets that this one stands for, its own if it stands for itself.
    pub fn longest_part(&self) -> usize {
        self.segmented().map_or(self.len(), |(headers, size)| self.len().min(headers + size))
    }

    /// How many packets it stands for.
    pub fn parts(&self) -> u16 {
        let parts = self.segmented().filter(|(_, size)| *size > 0);
        let parts = parts.map_or(1, |(headers, size)| self.len().saturating_sub(headers).div_ceil(size));
        parts.clamp(1, u16::MAX.into()) as u16
    }

    /// Of one that stands for several: the length of the headers of each, and how much of the payload follows at most.
    fn segmented(&self) -> Option<(usize, usize)> {
        let Some(Offload { start, segment: Some(segment), .. }) = self.offload() else { return None };
        let header = match segment.kind {
            SegmentKind::Udp => 8,
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => {
                self.bytes().get(start + 12).map_or(0, |offset| usize::from(offset >> 4) * 4)
            }
        };
        Some((start + header, segment.size.into()))
    }

    /// Whether it, or each of the packets that it stands for, has at most `len` bytes.
    #[inline(always)]
    pub fn fits(&self, len: usize) -> bool {
        self.len() <= len || self.parts_fit(len)
    }

    #[cold]
    #[inline(never)]
    fn parts_fit(&self, len: usize) -> bool {
        self.has_offload() && self.longest_part() <= len
    }

    /// Says that nothing is left to be done.
    #[inline]
    pub fn clear_offload(&mut self) {
        self.place &= !OFFLOAD;
    }

    pub(super) fn take_over(&mut self, offload: Option<Offload>) {
        self.clear_offload();
        if let Some(offload) = offload {
            self.set_offload(offload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HEADROOM, Pool, SLOT};
    use super::*;

    const TCP: Offload = Offload { start: 54, field: 16, segment: None };

    #[test]
    fn an_offload_stays_at_its_header() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, &[1; 100]).unwrap();
        assert_eq!(packet.offload(), None);
        let segment = Some(Segment { size: 1440, kind: SegmentKind::Tcp6 });
        packet.set_offload(Offload { segment, ..TCP });
        packet.pull(14);
        packet.push(64).unwrap().fill(0xff);
        assert_eq!(packet.offload(), Some(Offload { start: 104, field: 16, segment }));
        // All of the headroom is used, and the margin is still there.
        let rest = packet.headroom();
        packet.push(rest).unwrap().fill(0xff);
        assert_eq!(packet.offload().unwrap().segment, segment);
        packet.truncate(rest + 104 + 17);
        assert_eq!(packet.offload(), None, "the field is cut off");
    }

    #[test]
    fn a_tag_goes_along() {
        let mut pool = Pool::new(2);
        let (mut packet, mut copy) = (pool.take().unwrap(), pool.take().unwrap());
        packet.set(HEADROOM, &[1; 100]).unwrap();
        let tag =
            Tag { mark: 7, priority: 0x0001_0002, queue: 3, index: 4, packet_type: 1, ..Tag::default() };
        packet.set_tag(tag);
        packet.set_offload(TCP);
        packet.push(64).unwrap().fill(0xff);
        packet.narrow(10, 150);
        packet.move_back(100).unwrap();
        assert_eq!((packet.tag(), packet.offload().is_some(), packet.len()), (tag, true, 150));
        packet.clear_offload();
        assert_eq!(packet.tag(), tag);
        copy.copy_back(&packet, 100).unwrap();
        assert_eq!((copy.tag(), copy.offload()), (tag, None));
        copy.set_tag(Tag::default());
        packet.set(HEADROOM, &[1; 100]).unwrap();
        assert_eq!((packet.tag(), copy.tag(), packet.len()), (Tag::default(), Tag::default(), 100));
        copy.set_tag(tag);
        pool.give(copy);
        assert_eq!(pool.take().unwrap().tag(), Tag::default());
    }

    #[test]
    fn what_replaces_a_packet_has_no_offload() {
        let mut pool = Pool::new(1);
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, &[1; 100]).unwrap();
        packet.set_offload(TCP);
        packet.set(HEADROOM, &[2; 100]).unwrap();
        assert_eq!(packet.offload(), None);
        packet.set_offload(TCP);
        pool.give(packet);
        let packet = pool.take().unwrap();
        assert_eq!((packet.offload(), packet.slot().len()), (None, SLOT));
    }
}
