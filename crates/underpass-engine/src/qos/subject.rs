//! A packet as filters see it: Linux's `sk_buff` at a hook.
//!
//! A frame is whole here, while Linux has taken its Ethernet header and its outermost VLAN tag away at ingress. Offsets
//! count from the network header, as `u32` counts them; those before it lead into the Ethernet header without the tag.

use std::net::IpAddr;

use underpass_packet::ethernet;

use super::WireLength;
use crate::buffer::{NO_LINK, Packet, Tag};
use crate::tables::{ANY_PROTOCOL, LinkId, TunnelId};

const ETHERNET: usize = ethernet::Header::LEN;
/// Where the first word is that has a byte of the frame.
const FIRST: i64 = -16;
/// Length of a VLAN tag.
const VLAN: usize = 4;

/// The outer header of a packet at an `external` tunnel, as far as filters see it: Linux's `struct ip_tunnel_key`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OuterKey {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The key of GRE; 0: none.
    pub(crate) id: u32,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// Source and destination of a datagram of a `bareudp`; 0: there are none.
    pub(crate) ports: (u16, u16),
}

/// How often a packet may be redirected: `MIRRED_NEST_LIMIT`.
const REDIRECTS: u8 = 4;
/// And how often to come in somewhere: what the two bits of Linux's `ttl` of a packet hold.
const RECEIVED: u8 = 3;

/// The redirections that a packet is in the midst of: Linux's `sched_mirred_nest` and `sched_mirred_dev`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Nest {
    /// How many they are, with those that it went into a tunnel or a queue behind.
    pub(crate) depth: u8,
    /// How many of them were to come in, of all that the packet has behind it.
    pub(crate) received: u8,
    /// The links that it was to be sent by.
    links: [Option<LinkId>; REDIRECTS as usize],
}

impl Nest {
    pub(crate) const fn is_full(&self) -> bool {
        self.depth >= REDIRECTS || self.received >= RECEIVED
    }

    /// Whether a redirection by this link would be a loop.
    pub(crate) fn has(&self, link: LinkId) -> bool {
        self.links.contains(&Some(link))
    }

    /// One more, to be sent by this link.
    pub(crate) fn to_send(mut self, link: LinkId) -> Self {
        if let Some(place) = self.links.iter_mut().find(|place| place.is_none()) {
            *place = Some(link);
        }
        Self { depth: self.depth + 1, ..self }
    }

    /// What a packet remembers of them where it goes on, out of those that are looked at later.
    pub(crate) fn through(&self) -> [u32; 3] {
        let [links @ .., _] = self.links;
        links.map(|link| link.map_or(0, |link| link.0 + 1))
    }

    /// They are as many as a packet remembers of when it went on, if it has not been redirected since.
    pub(crate) fn behind(self, depth: u8, through: [u32; 3]) -> Self {
        if depth <= self.depth {
            return self;
        }
        let [a, b, c] = through.map(|link| link.checked_sub(1).map(LinkId));
        Self { depth, links: [a, b, c, None], ..self }
    }

    /// One more, to come in somewhere. What `leaves` is put aside first, and is in the midst of none then: `netif_rx`.
    pub(crate) fn to_receive(self, leaves: bool) -> Self {
        let known = if leaves { Self::default() } else { Self { depth: self.depth + 1, ..self } };
        Self { received: self.received + 1, ..known }
    }
}

/// Where packets are classified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The link of the hook or qdisc.
    pub(crate) link: LinkId,
    /// Its Linux interface index.
    pub(crate) ifindex: u32,
    /// Its hardware address.
    pub(crate) mac: [u8; 6],
    /// Whether packets come in there.
    pub(crate) ingress: bool,
    /// Whether it is the qdisc, which is about to take them.
    pub(crate) queues: bool,
    /// The link that they came in by, and its interface index.
    pub(crate) received_by: Option<(LinkId, u32)>,
    /// What has redirected them.
    pub(crate) nest: Nest,
    /// Whether packets there have no Ethernet header: at most tunnels.
    pub(crate) bare: bool,
    /// The tunnel that they are to go into.
    pub(crate) tunnel: Option<TunnelId>,
    /// The outer header that they had, or will have.
    pub(crate) outer: Option<OuterKey>,
    /// Bytes before them that a device gets which they are sent to from there: all that they came in with.
    pub(crate) before: usize,
}

/// A packet at a place.
pub(crate) struct Subject<'p> {
    pub(crate) place: &'p Place,
    packet: &'p Packet,
    /// [`Tag::headless`].
    headless: u16,
    /// Where the network header is.
    network: usize,
    /// The EtherType of the outermost VLAN tag, and what else is in it.
    pub(crate) vlan: Option<(u16, u16)>,
    /// `skb->protocol` with the tag: what the protocol of a filter is compared with.
    pub(crate) protocol: u16,
    pub(crate) wire: WireLength,
}

/// Whether an EtherType is that of a VLAN tag.
#[inline(always)]
pub(crate) fn is_vlan(ethertype: u16) -> bool {
    ethertype == ethernet::VLAN || ethertype == ethernet::SERVICE_VLAN
}

/// Bytes of a frame that Linux's `qdisc_pkt_len` does not count: a tag lies beside it.
#[inline(always)]
pub(crate) fn uncounted(packet: &Packet, ingress: bool) -> u32 {
    let headless = packet.tag().headless;
    if headless != 0 {
        return if is_vlan(headless) { VLAN as u32 } else { 0 };
    }
    let tagged = match packet.bytes().first_chunk::<ETHERNET>() {
        Some([.., high, low]) => is_vlan(u16::from_be_bytes([*high, *low])),
        None => false,
    };
    (if ingress { ETHERNET as u32 } else { 0 }) + if tagged { VLAN as u32 } else { 0 }
}

/// Whose a packet is: 0, `PACKET_HOST`, if it is for this router; 3, `PACKET_OTHERHOST`, if it is too short to say.
pub(crate) fn packet_type(packet: &Packet, place: &Place) -> u8 {
    Subject::of(packet, place).map_or(3, |subject| subject.packet_type())
}

impl<'p> Subject<'p> {
    /// `None`: there is no Ethernet header.
    #[inline]
    pub(crate) fn of(packet: &'p Packet, place: &'p Place) -> Option<Self> {
        let headless = packet.tag().headless;
        if headless != 0 {
            let wire = WireLength::of_packet(packet, uncounted(packet, place.ingress));
            let vlan = packet.bytes().first_chunk().filter(|_| is_vlan(headless));
            let vlan = vlan.map(|control| (headless, u16::from_be_bytes(*control)));
            let network = if vlan.is_some() { VLAN } else { 0 };
            return Some(Self { place, packet, headless, network, vlan, protocol: headless, wire });
        }
        let frame = packet.bytes();
        let [.., high, low] = frame.first_chunk::<ETHERNET>()?;
        let protocol = u16::from_be_bytes([*high, *low]);
        if !is_vlan(protocol) {
            let less = if place.ingress { ETHERNET as u32 } else { 0 };
            let wire = WireLength::of_packet(packet, less);
            return Some(Self { place, packet, headless, network: ETHERNET, vlan: None, protocol, wire });
        }
        let vlan = match frame.get(ETHERNET..ETHERNET + VLAN) {
            Some([high, low, ..]) => Some((protocol, u16::from_be_bytes([*high, *low]))),
            _ => None,
        };
        Some(Self {
            place,
            packet,
            headless,
            network: ETHERNET + if vlan.is_some() { VLAN } else { 0 },
            vlan,
            protocol,
            wire: WireLength::of_packet(packet, uncounted(packet, place.ingress)),
        })
    }

    /// What goes along with the packet.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.packet.tag()
    }

    #[inline(always)]
    fn frame(&self) -> &'p [u8] {
        self.packet.bytes()
    }

    /// Whether a filter of this protocol classifies it.
    #[inline]
    pub(crate) fn is_of(&self, protocol: u16) -> bool {
        protocol == ANY_PROTOCOL || protocol == self.protocol
    }

    /// The link layer, without the VLAN tag. Linux sees none at a device that has none.
    pub(crate) fn addresses(&self) -> ([u8; 6], [u8; 6]) {
        if self.headless != 0 || self.place.bare {
            return Default::default();
        }
        let of =
            |at: usize| self.frame().get(at..at + 6).and_then(|mac| mac.try_into().ok()).unwrap_or_default();
        (of(0), of(6))
    }

    /// The EtherType of what lies at the network header.
    pub(crate) fn inner_protocol(&self) -> u16 {
        match self.network.checked_sub(2).and_then(|at| self.frame().get(at..self.network)) {
            None => self.protocol,
            Some([high, low]) => u16::from_be_bytes([*high, *low]),
            _ => 0,
        }
    }

    /// From the network header on.
    pub(crate) fn network(&self) -> &'p [u8] {
        self.frame().get(self.network..).unwrap_or_default()
    }

    /// `skb->len`.
    pub(crate) fn len(&self) -> usize {
        let behind = self.frame().len() - self.network.min(self.frame().len());
        if self.place.ingress || self.headless != 0 { behind } else { behind + ETHERNET }
    }

    /// `N` bytes at an offset behind the network header, which may be negative. The two bytes before the frame are 0: `tc`
    /// asks for words, of which the first begins there. In Linux they are what was there last.
    #[inline]
    pub(crate) fn bytes<const N: usize>(&self, offset: i64) -> Option<[u8; N]> {
        if (FIRST..-(ETHERNET as i64)).contains(&offset) && self.headless == 0 {
            let mut bytes = [0; N];
            let known = bytes.get_mut((-(ETHERNET as i64) - offset) as usize..);
            for (place, offset) in known.into_iter().flatten().zip(-(ETHERNET as i64)..) {
                [*place] = self.bytes(offset)?;
            }
            return Some(bytes);
        }
        if offset < 0 && self.headless != 0 {
            return None;
        }
        if offset >= 0 || self.vlan.is_none() {
            let at = usize::try_from(i64::try_from(self.network).ok()?.checked_add(offset)?).ok()?;
            return self.frame().get(at..)?.first_chunk().copied();
        }
        let mut bytes = [0; N];
        for (place, n) in bytes.iter_mut().zip(0..) {
            let offset = offset + n;
            // Before the EtherType behind the tag are the addresses before the tag.
            let skipped = if offset < -2 { VLAN as i64 } else { 0 };
            let at = usize::try_from(self.network as i64 + offset - skipped).ok()?;
            *place = *self.frame().get(at)?;
        }
        Some(bytes)
    }

    /// Four bytes at an offset behind the network header, as they lie in memory.
    #[inline(always)]
    pub(crate) fn word(&self, offset: i64) -> Option<u32> {
        if offset >= 0 && offset < i64::from(u32::MAX) {
            let bytes = self.frame().get(self.network + offset as usize..)?.first_chunk()?;
            return Some(u32::from_ne_bytes(*bytes));
        }
        self.bytes(offset).map(u32::from_ne_bytes)
    }

    /// Whether these bytes are there at an offset behind the network header.
    pub(crate) fn has(&self, offset: i64, bytes: &[u8]) -> bool {
        (offset..).zip(bytes).all(|(offset, byte)| self.bytes(offset) == Some([*byte]))
    }

    /// `skb->pkt_type`.
    pub(crate) fn packet_type(&self) -> u8 {
        let (destination, _) = self.addresses();
        match self.tag().packet_type {
            // It is for whoever it has come to.
            0 if self.headless != 0 || self.place.bare => 0,
            0 if !self.place.ingress || destination == self.place.mac => 0,
            0 if destination == ethernet::BROADCAST => 1,
            0 if destination[0] & 1 != 0 => 2,
            0 => 3,
            set => set - 1,
        }
    }

    /// TOS or traffic class: `Some(None)` of what is no IP packet. `None`: its header is cut off.
    pub(crate) fn traffic_class(&self) -> Option<Option<u8>> {
        let network = self.network();
        match self.inner_protocol() {
            ethernet::IPV4 => network.first_chunk::<20>().map(|header| Some(header[1])),
            ethernet::IPV6 => network.first_chunk::<40>().map(|header| Some(header[0] << 4 | header[1] >> 4)),
            _ => Some(None),
        }
    }

    /// Whether it came in by a link; any link if none is asked for.
    #[inline]
    pub(crate) fn is_received_by(&self, link: Option<LinkId>) -> bool {
        link.is_none_or(|link| self.received_by().is_some_and(|(received_by, _)| received_by == link))
    }

    /// The link that it came in by, and its interface index.
    #[inline]
    pub(crate) fn received_by(&self) -> Option<(LinkId, u32)> {
        let tag = self.tag();
        match (self.place.ingress, tag.received_by) {
            (true, _) | (false, 0) => self.place.received_by,
            (false, NO_LINK) => None,
            (false, link) => Some((LinkId(link - 1), tag.received_index)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Pool};

    pub(crate) const PLACE: Place = Place {
        link: LinkId(1),
        ifindex: 5,
        mac: [2, 0, 0, 0, 0, 1],
        ingress: true,
        queues: false,
        received_by: Some((LinkId(1), 5)),
        nest: Nest { depth: 0, received: 0, links: [None; 4] },
        bare: false,
        tunnel: None,
        outer: None,
        before: 0,
    };

    pub(crate) fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
        let mut packet = pool.take().unwrap();
        packet.set(HEADROOM, bytes).unwrap();
        packet
    }

    #[test]
    fn offsets_pass_over_the_tag() {
        let mut pool = Pool::new(2);
        let plain: Vec<u8> = (0..12).chain([0x08, 0x00]).chain(100..140).collect();
        let tagged: Vec<u8> = (0..12).chain([0x81, 0x00, 0x60, 0x05, 0x08, 0x00]).chain(100..140).collect();
        let (plain, tagged) = (packet(&mut pool, &plain), packet(&mut pool, &tagged));
        let (plain, tagged) = (Subject::of(&plain, &PLACE).unwrap(), Subject::of(&tagged, &PLACE).unwrap());
        assert_eq!((plain.protocol, plain.vlan), (0x0800, None));
        assert_eq!((tagged.protocol, tagged.vlan), (0x8100, Some((0x8100, 0x6005))));
        for subject in [&plain, &tagged] {
            assert_eq!((subject.len(), subject.wire.bytes(), subject.inner_protocol()), (40, 40, 0x0800));
            for (offset, bytes) in [
                (0, Some([100, 101, 102, 103])),
                (36, Some([136, 137, 138, 139])),
                (37, None),
                (-14, Some([0, 1, 2, 3])),
                (-15, Some([0, 0, 1, 2])),
                (-16, Some([0, 0, 0, 1])),
                (-17, None),
                (-4, Some([10, 11, 8, 0])),
                (-2, Some([8, 0, 100, 101])),
                (i64::MAX, None),
                (i64::MIN, None),
            ] {
                assert_eq!(subject.bytes::<4>(offset), bytes, "{offset}");
            }
            assert!(subject.has(-2, &[8, 0, 100]) && !subject.has(38, &[138, 139, 140]));
        }
        let egress = Place { ingress: false, ..PLACE };
        let mut pool = Pool::new(1);
        let frame = packet(&mut pool, &[0; 60]);
        let subject = Subject::of(&frame, &egress).unwrap();
        assert_eq!((subject.len(), subject.wire.bytes()), (60, 60));
    }
}
