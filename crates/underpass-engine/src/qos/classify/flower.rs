//! `flower`: fields of a packet, one hash look-up for each mask. Linux's `net/sched/cls_flower.c` and what it asks of
//! `net/core/flow_dissector.c`.

use std::collections::HashMap;
use std::net::IpAddr;

use underpass_packet::{ethernet, ipv6_ext, protocol};

use crate::qos::subject::{OuterKey, Subject, is_vlan};
use crate::tables::{
    FLOWER_FIRST_FRAGMENT, FLOWER_FRAGMENT, FLOWER_LABELS, FlowerFilter, FlowerKey, FlowerVlan, Outcome,
};

/// Words of a key.
const WORDS: usize = size_of::<FlowerKey>() / 8;
const _: () = assert!(size_of::<FlowerKey>().is_multiple_of(8));

/// The filters of a priority.
pub(crate) struct FlowerTable {
    masks: Vec<Masked>,
    look: Look,
}

/// How far into a packet its fields are looked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Look {
    /// The link layer.
    Link,
    /// The network header.
    Network,
    /// Behind it.
    Transport,
}

/// The filters of one mask, in a hash table with open addressing.
struct Masked {
    /// The words of a key of which bits count, and these bits.
    words: Vec<(usize, u64)>,
    /// The place of a filter, plus 1; 0: free. At most half of them are taken, and their number is a power of two.
    slots: Box<[u32]>,
    /// What counts of the keys, `words.len()` words each.
    keys: Vec<u64>,
    filters: Vec<Filter>,
}

struct Filter {
    outcome: Outcome,
    ranges: Ranges,
    /// The place of the next one that only differs in its ranges of ports, plus 1; 0: there is none.
    next: u32,
}

/// Ranges of ports: source, destination.
type Ranges = [Option<(u16, u16)>; 2];

/// Mixes a word into a hash: what is in the table is chosen by whoever configures, so it need not withstand an attacker.
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

fn words(key: &FlowerKey) -> &[u64; WORDS] {
    zerocopy::transmute_ref!(key)
}

impl Masked {
    fn new(mask: &FlowerKey, filters: usize) -> Self {
        let counted = words(mask).iter().copied().enumerate().filter(|(_, bits)| *bits != 0);
        let slots = (2 * filters).next_power_of_two();
        Self {
            words: counted.collect(),
            slots: vec![0; slots].into(),
            keys: Vec::new(),
            filters: Vec::with_capacity(filters),
        }
    }

    /// The slot of the first filter with what counts of a key, or the free one where it would be.
    #[inline(always)]
    fn slot(&self, key: &[u64; WORDS]) -> usize {
        let counted = || self.words.iter().map(|(n, bits)| key.get(*n).unwrap_or(&0) & bits);
        let hash = counted().fold(0, mix);
        let last = self.slots.len() - 1;
        let mut slot = hash as usize & last;
        // Half of the slots are free: it ends.
        while let Some(place) = self.slots.get(slot).and_then(|place| place.checked_sub(1)) {
            let from = place as usize * self.words.len();
            let found = self.keys.get(from..from + self.words.len()).unwrap_or_default();
            if counted().eq(found.iter().copied()) {
                break;
            }
            slot = (slot + 1) & last;
        }
        slot
    }

    fn add(&mut self, key: &FlowerKey, ranges: Ranges, outcome: Outcome) {
        let key = words(key);
        let slot = self.slot(key);
        self.keys.extend(self.words.iter().map(|(n, bits)| key.get(*n).unwrap_or(&0) & bits));
        self.filters.push(Filter { outcome, ranges, next: 0 });
        let place = self.filters.len() as u32;
        let Some(first) = self.slots.get_mut(slot) else { return };
        if *first == 0 {
            *first = place;
            return;
        }
        let mut last = *first;
        while let Some(filter) = self.filters.get_mut(last as usize - 1) {
            if filter.next == 0 {
                filter.next = place;
                return;
            }
            last = filter.next;
        }
    }

    /// The filter that takes a packet with this key.
    #[inline]
    fn find(&self, key: &FlowerKey) -> Option<&Outcome> {
        let mut place = *self.slots.get(self.slot(words(key)))?;
        loop {
            let filter = self.filters.get(place.checked_sub(1)? as usize)?;
            if are_in(key, &filter.ranges) {
                return Some(&filter.outcome);
            }
            place = filter.next;
        }
    }
}

impl FlowerTable {
    pub(crate) fn new(filters: Vec<FlowerFilter>) -> Self {
        // In the order in which they first occur; the filters of one mask mostly follow each other.
        let mut order: Vec<(FlowerKey, Vec<FlowerFilter>)> = Vec::new();
        let mut places: HashMap<FlowerKey, usize> = HashMap::new();
        let mut last = usize::MAX;
        for filter in filters {
            if order.get(last).is_none_or(|(mask, _)| *mask != filter.mask) {
                last = *places.entry(filter.mask).or_insert(order.len());
                if last == order.len() {
                    order.push((filter.mask, Vec::new()));
                }
            }
            if let Some((_, filters)) = order.get_mut(last) {
                filters.push(filter);
            }
        }
        let mut look = Look::Link;
        let masked = |(mask, filters): (FlowerKey, Vec<FlowerFilter>)| {
            look = look.max(Look::of(&mask));
            let mut masked = Masked::new(&mask, filters.len());
            for FlowerFilter { key, source_ports, destination_ports, outcome, .. } in filters {
                let ranges = [source_ports, destination_ports];
                if ranges != [None; 2] {
                    look = Look::Transport;
                }
                masked.add(&key, ranges, outcome);
            }
            masked
        };
        let masks = order.into_iter().map(masked).collect();
        Self { masks, look }
    }

    /// The filter that takes a packet.
    pub(crate) fn find(&self, subject: &Subject<'_>) -> Option<&Outcome> {
        let key = dissect(subject, self.look);
        self.masks.iter().find_map(|mask| mask.find(&key))
    }
}

impl Look {
    /// How far it is to what counts.
    fn of(mask: &FlowerKey) -> Self {
        let link = FlowerKey {
            mac_source: mask.mac_source,
            mac_destination: mask.mac_destination,
            ingress: mask.ingress,
            vlan: mask.vlan,
            ..FlowerKey::default()
        };
        let network = FlowerKey {
            source_port: 0,
            destination_port: 0,
            tcp_flags: 0,
            icmp_type: 0,
            icmp_code: 0,
            ..*mask
        };
        if link == *mask {
            Self::Link
        } else if network == *mask {
            Self::Network
        } else {
            Self::Transport
        }
    }
}

fn are_in(key: &FlowerKey, [source, destination]: &Ranges) -> bool {
    let is_in =
        |port: u16, range: &Option<(u16, u16)>| range.is_none_or(|(low, high)| (low..=high).contains(&port));
    is_in(key.source_port, source) && is_in(key.destination_port, destination)
}

/// What a packet has: `skb_flow_dissect`.
#[inline]
fn dissect(subject: &Subject<'_>, look: Look) -> FlowerKey {
    let mut key = FlowerKey::default();
    (key.mac_destination, key.mac_source) = subject.addresses();
    key.ingress = subject.received_by().map_or(0, |(_, ifindex)| ifindex);
    if let Some((tpid, tci)) = subject.vlan {
        key.vlan = vlan(tpid, tci);
        key.vlans = 1;
    }
    if let Some(outer) = &subject.place.outer {
        look_outside(&mut key, outer);
    }
    if look > Look::Link {
        look_behind(&mut key, subject, look == Look::Transport);
    }
    key
}

/// `skb_flow_dissect_tunnel_info`.
#[cold]
fn look_outside(key: &mut FlowerKey, outer: &OuterKey) {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    key.tunnel_family = if outer.destination.is_ipv6() { 6 } else { 4 };
    (key.tunnel_source, key.tunnel_destination) = (bits(outer.source), bits(outer.destination));
    (key.tunnel_key, key.tunnel_tos, key.tunnel_ttl) = (outer.id, outer.tos, outer.ttl);
    (key.tunnel_source_port, key.tunnel_destination_port) = outer.ports;
}

/// A tag without its drop-eligible bit, which `flower` does not see.
fn vlan(tpid: u16, tci: u16) -> FlowerVlan {
    FlowerVlan { tpid, tci: tci & 0xefff }
}

fn look_behind(key: &mut FlowerKey, subject: &Subject<'_>, transport: bool) {
    let (mut packet, mut ethertype) = (subject.network(), subject.inner_protocol());
    while is_vlan(ethertype) {
        let Some(([a, b, c, d], rest)) = packet.split_first_chunk() else { return };
        let tag = vlan(ethertype, u16::from_be_bytes([*a, *b]));
        match key.vlans {
            0 => key.vlan = tag,
            1 => key.inner_vlan = tag,
            _ => {}
        }
        key.vlans = key.vlans.saturating_add(1);
        (packet, ethertype) = (rest, u16::from_be_bytes([*c, *d]));
    }
    key.ethertype = ethertype;
    match ethertype {
        ethernet::IPV4 => look_at_ipv4(key, packet, transport),
        ethernet::IPV6 => look_at_ipv6(key, packet),
        ethernet::ARP => look_at_arp(key, packet),
        ethernet::MPLS | ethernet::MPLS_MULTICAST => look_at_labels(key, packet),
        _ => {}
    }
}

fn look_at_labels(key: &mut FlowerKey, packet: &[u8]) {
    let (entries, _) = packet.as_chunks::<4>();
    for (label, entry) in key.labels.iter_mut().zip(entries).take(FLOWER_LABELS) {
        *label = u32::from_be_bytes(*entry);
        if *label & 0x100 != 0 {
            break;
        }
    }
}

fn look_at_ipv4(key: &mut FlowerKey, packet: &[u8], transport: bool) {
    let Some(header) = packet.first_chunk::<20>() else { return };
    let len = usize::from(header[0] & 15) * 4;
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    if len < header.len() {
        return;
    }
    key.family = 4;
    key.source = u32::from_be_bytes([s0, s1, s2, s3]).into();
    key.destination = u32::from_be_bytes([d0, d1, d2, d3]).into();
    (key.tos, key.ttl, key.protocol) = (header[1], header[8], header[9]);
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    if fragment & 0x3fff != 0 {
        let first = fragment & 0x1fff == 0;
        key.fragment = FLOWER_FRAGMENT | if first { FLOWER_FIRST_FRAGMENT } else { 0 };
        return;
    }
    if key.protocol == protocol::MPLS {
        look_at_labels_inside(key, packet.get(len..).unwrap_or_default());
    } else if transport {
        look_at_transport(key, packet.get(len..).unwrap_or_default());
    }
}

fn look_at_ipv6(key: &mut FlowerKey, packet: &[u8]) {
    let Some((header, _)) = packet.split_first_chunk::<40>() else { return };
    let address = |at: usize| {
        let bytes = header.get(at..at + 16).and_then(|bytes| bytes.try_into().ok());
        u128::from_be_bytes(bytes.unwrap_or_default())
    };
    key.family = 6;
    (key.source, key.destination) = (address(8), address(24));
    key.tos = header[0] << 4 | header[1] >> 4;
    key.ttl = header[7];
    let (mut next, mut at) = (header[6], header.len());
    key.protocol = next;
    for _ in 0..ipv6_ext::MAX_HEADERS {
        let Some([after, second, high, low]) = packet.get(at..).and_then(|rest| rest.first_chunk()) else {
            return;
        };
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                (next, at) = (*after, at + (usize::from(*second) + 1) * 8);
                key.protocol = next;
            }
            protocol::FRAGMENT => {
                let first = u16::from_be_bytes([*high, *low]) & 0xfff8 == 0;
                key.fragment = FLOWER_FRAGMENT | if first { FLOWER_FIRST_FRAGMENT } else { 0 };
                key.protocol = *after;
                return;
            }
            protocol::MPLS => return look_at_labels_inside(key, packet.get(at..).unwrap_or_default()),
            _ => return look_at_transport(key, packet.get(at..).unwrap_or_default()),
        }
    }
}

/// Labels inside an IP packet: Linux looks at no other encapsulation, and takes the EtherType of these for the packet's.
#[cold]
fn look_at_labels_inside(key: &mut FlowerKey, labels: &[u8]) {
    key.ethertype = ethernet::MPLS;
    look_at_labels(key, labels);
}

fn look_at_transport(key: &mut FlowerKey, header: &[u8]) {
    let two = |at: usize| match header.get(at..at + 2) {
        Some([high, low]) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    };
    match key.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::UDP_LITE => {
            (key.source_port, key.destination_port) = (two(0), two(2));
            if key.protocol == protocol::TCP {
                key.tcp_flags = two(12) & 0x0fff;
            }
        }
        protocol::ICMP | protocol::ICMPV6 => {
            if let [kind, code, ..] = header {
                (key.icmp_type, key.icmp_code) = (*kind, *code);
            }
        }
        _ => {}
    }
}

fn look_at_arp(key: &mut FlowerKey, message: &[u8]) {
    // Of Ethernet and IPv4 alone: RFC 826.
    let Some((head, rest)) = message.split_first_chunk::<8>() else { return };
    let ([0, 1, 8, 0, 6, 4, 0, operation], Some(body)) = (head, rest.first_chunk::<20>()) else { return };
    let [a, b, c, d, e, f, s0, s1, s2, s3, g, h, i, j, k, l, t0, t1, t2, t3] = *body;
    key.arp_operation = *operation;
    (key.arp_source_mac, key.arp_target_mac) = ([a, b, c, d, e, f], [g, h, i, j, k, l]);
    key.arp_source = u32::from_be_bytes([s0, s1, s2, s3]);
    key.arp_target = u32::from_be_bytes([t0, t1, t2, t3]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;
    use crate::qos::subject::tests::{PLACE, packet};

    const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];

    fn datagram(ports: [u16; 2], protocol: u8) -> Vec<u8> {
        let mut bytes = vec![0x45, 0x2e, 0, 28, 0, 0, 0, 0, 61, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    fn frame(ethertypes: &[u8], packet: &[u8]) -> Vec<u8> {
        [&ETHERNET[..], ethertypes, packet].concat()
    }

    fn key_of(frame: &[u8]) -> FlowerKey {
        let mut pool = Pool::new(1);
        let packet = packet(&mut pool, frame);
        dissect(&Subject::of(&packet, &PLACE).unwrap(), Look::Transport)
    }

    #[test]
    fn fields_of_ipv4() {
        let key = key_of(&frame(&[8, 0], &datagram([4096, 53], 17)));
        let wanted = FlowerKey {
            mac_destination: [2, 0, 0, 0, 0, 1],
            mac_source: [2, 0, 0, 0, 0, 9],
            ingress: 5,
            ethertype: 0x0800,
            family: 4,
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            protocol: 17,
            tos: 0x2e,
            ttl: 61,
            source_port: 4096,
            destination_port: 53,
            ..FlowerKey::default()
        };
        assert_eq!(key, wanted);
        let tagged =
            key_of(&frame(&[0x88, 0xa8, 0xf0, 7, 0x81, 0, 0x20, 9, 8, 0], &datagram([4096, 53], 17)));
        let vlan = FlowerVlan { tpid: 0x88a8, tci: 0xe007 };
        let inner_vlan = FlowerVlan { tpid: 0x8100, tci: 0x2009 };
        assert_eq!(tagged, FlowerKey { vlan, inner_vlan, vlans: 2, ..wanted });
        let mut fragment = datagram([4096, 53], 17);
        fragment[6] = 0x20;
        let none = FlowerKey { source_port: 0, destination_port: 0, ..wanted };
        let first = FlowerKey { fragment: FLOWER_FRAGMENT | FLOWER_FIRST_FRAGMENT, ..none };
        assert_eq!(key_of(&frame(&[8, 0], &fragment)), first);
        fragment[7] = 1;
        assert_eq!(key_of(&frame(&[8, 0], &fragment)), FlowerKey { fragment: FLOWER_FRAGMENT, ..none });
    }

    #[test]
    fn fields_of_other_protocols() {
        let mut ipv6 = vec![0x62, 0xe0, 0, 0, 0, 28, 0, 63];
        ipv6.extend([1; 16]);
        ipv6.extend([2; 16]);
        ipv6.extend([6, 0, 0, 0, 0, 0, 0, 0]);
        ipv6.extend([0x10, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x51, 0x12, 0, 0, 0, 0, 0, 0]);
        let key = key_of(&frame(&[0x86, 0xdd], &ipv6));
        assert_eq!((key.family, key.protocol, key.tos, key.ttl), (6, 6, 0x2e, 63));
        assert_eq!(
            (key.source, key.destination),
            (u128::from_be_bytes([1; 16]), u128::from_be_bytes([2; 16]))
        );
        assert_eq!((key.source_port, key.destination_port, key.tcp_flags), (4096, 80, 0x112));
        let labels = [0x00, 0x01, 0x00, 0x40, 0x00, 0x02, 0x01, 0x40, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(key_of(&frame(&[0x88, 0x47], &labels)).labels[..3], [0x0001_0040, 0x0002_0140, 0]);
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2];
        arp.extend([1; 6]);
        arp.extend([10, 0, 0, 1]);
        arp.extend([3; 6]);
        arp.extend([10, 0, 0, 2]);
        let key = key_of(&frame(&[8, 6], &arp));
        assert_eq!((key.arp_operation, key.arp_source, key.arp_target), (2, 0x0a00_0001, 0x0a00_0002));
        assert_eq!((key.arp_source_mac, key.arp_target_mac), ([1; 6], [3; 6]));
        let key = key_of(&frame(&[8, 0], &datagram([0x0804, 0], 1)));
        assert_eq!((key.icmp_type, key.icmp_code, key.source_port), (8, 4, 0));
    }

    #[test]
    fn masks_in_order_and_ranges() {
        let outcome = |class| Outcome { class, ..Outcome::default() };
        let any = FlowerFilter::default();
        let port = FlowerKey { destination_port: 53, protocol: 17, ..FlowerKey::default() };
        let port_mask = FlowerKey { destination_port: 0xffff, protocol: 0xff, ..FlowerKey::default() };
        let net = FlowerKey { source: 0x0a00_0000, family: 4, ..FlowerKey::default() };
        let net_mask = FlowerKey { source: 0xff00_0000, family: 0xff, ..FlowerKey::default() };
        let udp = FlowerKey { protocol: 17, ..FlowerKey::default() };
        let udp_mask = FlowerKey { protocol: 0xff, ..FlowerKey::default() };
        let range = |low, high, class| FlowerFilter {
            key: udp,
            mask: udp_mask,
            source_ports: Some((low, high)),
            outcome: outcome(class),
            ..FlowerFilter::default()
        };
        let table = FlowerTable::new(vec![
            FlowerFilter { key: port, mask: port_mask, outcome: outcome(1), ..any.clone() },
            FlowerFilter { key: net, mask: net_mask, outcome: outcome(2), ..any.clone() },
            FlowerFilter {
                key: FlowerKey { destination_port: 54, ..port },
                mask: port_mask,
                outcome: outcome(3),
                ..any.clone()
            },
            range(1, 4095, 4),
            range(4096, 5000, 5),
        ]);
        assert_eq!(table.masks.len(), 3);
        let mut pool = Pool::new(1);
        let mut class = |frame: &[u8]| {
            let packet = packet(&mut pool, frame);
            let found = table.find(&Subject::of(&packet, &PLACE).unwrap()).map(|outcome| outcome.class);
            pool.give(packet);
            found
        };
        let of = |ports, protocol| frame(&[8, 0], &datagram(ports, protocol));
        assert_eq!(class(&of([1, 53], 17)), Some(1));
        assert_eq!(class(&of([1, 54], 17)), Some(3));
        assert_eq!(class(&of([1, 54], 6)), Some(2));
        let mut other = of([4096, 55], 17);
        other[26] = 11;
        assert_eq!(class(&other), Some(5));
        other[34] = 1;
        assert_eq!(class(&other), Some(4));
        other[34] = 0x7f;
        assert_eq!(class(&other), None);
    }

    /// Addresses and tags alone do not need what is behind them.
    #[test]
    fn a_shallow_mask() {
        let mask = FlowerKey { mac_source: [0xff; 6], ..FlowerKey::default() };
        let key = FlowerKey { mac_source: [2, 0, 0, 0, 0, 9], ..FlowerKey::default() };
        let table = FlowerTable::new(vec![FlowerFilter { key, mask, ..FlowerFilter::default() }]);
        assert_eq!(table.look, Look::Link);
        let mut pool = Pool::new(1);
        let packet = packet(&mut pool, &frame(&[8, 0], &[]));
        assert!(table.find(&Subject::of(&packet, &PLACE).unwrap()).is_some());
    }
}
