//! Acknowledgements of TCP that a later one in the same queue makes needless: `cake_ack_filter`.

use super::tin::Flow;
use crate::qos::qdisc::items::{Item, ItemId, Items, network_header};

const TCP: u8 = 6;
const IPV6: u8 = 41;
const ACK: u16 = 0x10;
const SYN: u16 = 0x02;
/// Congestion notification: another one of these says something new.
const ECE_CWR: u16 = 0xc0;
const EOL: u8 = 0;
const NOP: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;
const MD5: u8 = 19;

/// A segment of TCP, of IP or of IPv6 in IPv4.
struct Segment<'a> {
    /// Version and addresses.
    version: u8,
    addresses: &'a [u8],
    ports: [u8; 4],
    acknowledged: u32,
    /// With the reserved ones.
    flags: u16,
    options: &'a [u8],
    /// Bytes behind the TCP header; Linux has them negative in packets that are not sound.
    payload: i64,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<4>()).copied();
    u32::from_be_bytes(word.unwrap_or_default())
}

fn after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a).cast_signed() < 0
}

impl<'a> Segment<'a> {
    /// `cake_get_tcphdr` and `cake_get_iphdr`.
    fn of(item: &'a Item) -> Option<Self> {
        let (_, at) = network_header(item.bytes(), item.headless());
        let outer = item.bytes().get(at..)?;
        let mut inner = outer;
        if outer.first()? >> 4 == 4 && *outer.get(9)? == IPV6 {
            inner = outer.get(usize::from(outer[0] & 15) * 4..)?;
            inner = inner.first().filter(|_| inner.len() >= 40).map(|_| inner)?;
        }
        let (version, addresses, upper, length) = match inner.first()? >> 4 {
            4 if inner.get(9) == Some(&TCP) && inner.len() >= 20 => {
                let header = usize::from(inner[0] & 15) * 4;
                let length = i64::from(word(inner, 0) & 0xffff) - header as i64;
                (4, inner.get(12..20)?, inner.get(header..)?, length)
            }
            6 if inner.get(6) == Some(&TCP) && inner.len() >= 40 => {
                (6, inner.get(8..40)?, inner.get(40..)?, i64::from(word(inner, 4) >> 16))
            }
            _ => return None,
        };
        let fixed = upper.first_chunk::<20>()?;
        let header = usize::from(fixed[12] >> 4) * 4;
        if header < 20 {
            return None;
        }
        Some(Self {
            version,
            addresses,
            ports: [fixed[0], fixed[1], fixed[2], fixed[3]],
            acknowledged: word(fixed, 8),
            flags: (word(fixed, 12) >> 16) as u16 & 0x0fff,
            options: upper.get(20..header)?,
            payload: length - header as i64,
        })
    }

    fn options(&self) -> Options<'a> {
        Options(self.options)
    }

    /// The blocks that it acknowledges selectively.
    fn sacks(&self) -> &'a [u8] {
        let sack = self.options().find(|(kind, _)| *kind == SACK);
        sack.map_or(&[], |(_, value)| value.get(..value.len() / 8 * 8).unwrap_or_default())
    }

    /// Its time, and the one that it echoes; 0 without.
    fn times(&self) -> (u32, u32) {
        let times = self.options().find(|(kind, _)| *kind == TIMESTAMP).filter(|(_, value)| value.len() == 8);
        times.map_or((0, 0), |(_, value)| (word(value, 0), word(value, 4)))
    }

    fn same_connection(&self, other: &Self) -> bool {
        (self.version, self.ports) == (other.version, other.ports) && self.addresses == other.addresses
    }

    /// Whether it says nothing but what it acknowledges: `cake_tcph_may_drop`.
    fn is_plain(&self, (time, echo): (u32, u32)) -> bool {
        self.flags & !ECE_CWR == ACK
            && self.options().all(|(kind, value)| match kind {
                MD5 => true,
                SACK => value.len() % 8 == 0,
                TIMESTAMP => value.len() == 8 && !after(word(value, 0), time) && !after(word(value, 4), echo),
                _ => false,
            })
    }

    /// Whether `later` says selectively more than this (above 0), the same, or not all of it: `cake_tcph_sack_compare`.
    fn compare_sacks(&self, later: &Self) -> i32 {
        let (own, others) = (self.sacks(), later.sacks());
        match (own.is_empty(), others.is_empty()) {
            (true, true) => return 0,
            (false, true) => return -1,
            (true, false) => return 1,
            (false, false) => {}
        }
        let blocks = |sacks: &'a [u8]| sacks.chunks_exact(8).map(|block| (word(block, 0), word(block, 4)));
        let length =
            |sacks| blocks(sacks).fold(0u32, |sum, (start, end)| sum.wrapping_add(end.wrapping_sub(start)));
        for (start, end) in blocks(own) {
            // A duplicate is news to the sender.
            if after(self.acknowledged, start) {
                return -1;
            }
            let covers = |(other, other_end): (u32, u32)| !after(other, start) && !after(end, other_end);
            if !blocks(others).any(covers) {
                return -1;
            }
        }
        i32::from(length(others) > length(own))
    }
}

/// Options of TCP, as far as they are sound.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [] | [EOL, ..] => return None,
                [NOP, ref rest @ ..] => self.0 = rest,
                [kind, length, ..] => {
                    let value = self.0.get(2..usize::from(length))?;
                    self.0 = self.0.get(usize::from(length)..)?;
                    return Some((kind, value));
                }
                [_] => return None,
            }
        }
    }
}

/// Takes the acknowledgement out of a queue that its last packet makes needless, if there is one.
pub(super) fn filter(flow: &mut Flow, items: &mut Items, aggressive: bool) -> Option<ItemId> {
    let (first, last) = (flow.list.peek()?, flow.list.last()?);
    let newest = Segment::of(items.get(last).filter(|_| first != last)?)?;
    if newest.flags & (ACK | SYN) != ACK {
        return None;
    }
    let times = newest.times();
    // What may go, what is before it, and how it is marked.
    let mut needless: Option<(ItemId, Option<ItemId>, u16)> = None;
    let mut found = 0;
    let (mut before, mut at) = (None, first);
    while at != last {
        let candidate =
            items.get(at).and_then(Segment::of).filter(|segment| segment.same_connection(&newest));
        if let Some(segment) = candidate {
            // One that is marked otherwise has to follow.
            if needless.is_some_and(|(.., flags)| flags != segment.flags & ECE_CWR) {
                needless = None;
                found -= 1;
            }
            let plain = segment.is_plain(times)
                && segment.payload == 0
                && !after(segment.acknowledged, newest.acknowledged);
            let more = segment.compare_sacks(&newest);
            if plain && more >= 0 && (more > 0 || segment.acknowledged != newest.acknowledged) {
                needless = needless.or(Some((at, before, segment.flags & ECE_CWR)));
                found += 1;
                if found > 1 {
                    break;
                }
            }
        }
        before = Some(at);
        at = items.after(at)?;
    }
    let (id, before, flags) = needless?;
    // A single one goes only if nothing is between, and both are marked the same.
    let next_to = items.after(id) == Some(last);
    if found < 2 && !(aggressive && next_to && flags == newest.flags & ECE_CWR) {
        return None;
    }
    flow.list.remove_behind(items, before, id);
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HEADROOM, Pool};
    use crate::qos::qdisc::items::Origin;

    struct Bed {
        items: Items,
        pool: Pool,
        flow: Flow,
    }

    /// Flags, acknowledged, options, bytes.
    type Ack<'a> = (u16, u32, &'a [u8], usize);

    impl Bed {
        fn new() -> Self {
            Self { items: Items::new(64), pool: Pool::new(64), flow: Flow::default() }
        }

        fn push(&mut self, port: u8, (flags, acknowledged, options, bytes): Ack<'_>, version: u8) -> ItemId {
            let header = 20 + options.len();
            let mut tcp = vec![0, port, 0, 80, 0, 0, 0, 1];
            tcp.extend(acknowledged.to_be_bytes());
            tcp.extend([(header as u8 / 4) << 4 | (flags >> 8) as u8, flags as u8, 0, 0, 0, 0, 0, 0]);
            tcp.extend(options);
            tcp.resize(header + bytes, 7);
            let length = tcp.len() as u8;
            let mut frame = vec![0; 12];
            let ipv6 = [&[0x60, 0, 0, 0, 0, length, TCP, 64][..], &[5; 32]].concat();
            let ipv4 = |length: u8, protocol: u8| {
                [[0x45, 0, 0, length + 20, 0, 0, 0, 0, 64, protocol].as_slice(), &[0; 2], &[9; 8]].concat()
            };
            match version {
                4 => frame.extend([&[8, 0][..], &ipv4(length, TCP)].concat()),
                6 => frame.extend([&[0x86, 0xdd][..], &ipv6].concat()),
                _ => frame.extend([&[8, 0][..], &ipv4(length + 40, IPV6), &ipv6].concat()),
            }
            frame.extend(&tcp);
            let mut packet = self.pool.take().unwrap();
            packet.set(HEADROOM, &frame).unwrap();
            let id = self.items.put(Item::new(packet, Origin::Here, (frame.len() as u32, 1))).unwrap();
            self.flow.list.push(&mut self.items, id);
            id
        }

        fn filter(&mut self, aggressive: bool) -> Option<ItemId> {
            filter(&mut self.flow, &mut self.items, aggressive)
        }
    }

    /// Which of these go once the last is there, one by one.
    fn gone(acks: &[Ack<'_>], aggressive: bool) -> Vec<usize> {
        let mut result = None;
        for version in [4, 6, 64] {
            let mut bed = Bed::new();
            let ids: Vec<_> = acks.iter().map(|ack| bed.push(1, *ack, version)).collect();
            let mut gone = Vec::new();
            while let Some(id) = bed.filter(aggressive) {
                gone.push(ids.iter().position(|other| *other == id).unwrap());
                assert!(bed.items.take(id).is_some());
            }
            assert_eq!(bed.flow.list.len as usize, acks.len() - gone.len());
            assert_eq!(*result.get_or_insert_with(|| gone.clone()), gone);
        }
        result.unwrap()
    }

    #[test]
    fn two_needless_ones_are_one_too_many() {
        let ack = |acknowledged| (ACK, acknowledged, &[][..], 0);
        assert_eq!(gone(&[ack(1)], true), []);
        assert_eq!(gone(&[ack(1), ack(2)], false), []);
        assert_eq!(gone(&[ack(1), ack(2)], true), [0]);
        assert_eq!(gone(&[ack(1), ack(2), ack(3)], false), [0]);
        assert_eq!(gone(&[ack(1), ack(2), ack(3), ack(4)], true), [0, 1, 2]);
        // The same again is a duplicate, a later one in front stays.
        assert_eq!(gone(&[ack(3), ack(3), ack(3)], true), []);
        assert_eq!(gone(&[ack(5), ack(4), ack(3)], true), []);
        // Past the end of the numbers.
        assert_eq!(gone(&[ack(u32::MAX), ack(2)], true), [0]);
    }

    #[test]
    fn what_says_more_stays() {
        let newest = (ACK, 9, &[][..], 0);
        for flags in [ACK | 1, ACK | 4, ACK | 8, ACK | SYN, ACK | 0x100, SYN, 0] {
            assert_eq!(gone(&[(flags, 1, &[], 0), newest], true), [], "{flags:x}");
        }
        assert_eq!(gone(&[(ACK, 1, &[], 1), newest], true), []);
        // The newest one may have data.
        assert_eq!(gone(&[(ACK, 1, &[], 0), (ACK | 8, 9, &[], 5)], true), [0]);
        // Congestion that the newest one does not tell.
        assert_eq!(gone(&[(ACK | 0x40, 1, &[], 0), newest], true), []);
        assert_eq!(gone(&[(ACK | 0x40, 1, &[], 0), (ACK | 0x40, 9, &[], 0)], true), [0]);
        assert_eq!(gone(&[(ACK, 1, &[], 0), (ACK | 0x40, 2, &[], 0), newest], false), []);
        // Options: padding and signatures do not matter, others do.
        assert_eq!(gone(&[(ACK, 1, &[1, 1, 1, 0], 0), newest], true), [0]);
        assert_eq!(gone(&[(ACK, 1, &[3, 3, 7, 0], 0), newest], true), []);
        let (old, new) = ([8, 10, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0], [8, 10, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0]);
        assert_eq!(gone(&[(ACK, 1, &old, 0), (ACK, 9, &new, 0)], true), [0]);
        assert_eq!(gone(&[(ACK, 1, &new, 0), (ACK, 9, &old, 0)], true), []);
    }

    #[test]
    fn selective_ones_are_compared() {
        let sack = |blocks: &[(u32, u32)]| {
            let mut option = vec![1, 1, SACK, 2 + 8 * blocks.len() as u8];
            blocks.iter().for_each(|(start, end)| {
                option.extend([start.to_be_bytes(), end.to_be_bytes()].concat());
            });
            option
        };
        let compare = |old: &[(u32, u32)], acknowledged, new: &[(u32, u32)]| {
            gone(&[(ACK, 10, &sack(old), 0), (ACK, acknowledged, &sack(new), 0)], true)
        };
        assert_eq!(compare(&[(20, 30)], 11, &[(20, 30)]), [0]);
        assert_eq!(compare(&[(20, 30)], 10, &[(20, 30)]), []);
        assert_eq!(compare(&[(20, 30)], 10, &[(20, 40)]), [0]);
        assert_eq!(compare(&[(20, 30)], 10, &[(40, 50), (15, 35)]), [0]);
        assert_eq!(compare(&[(20, 30)], 11, &[(40, 90)]), []);
        assert_eq!(compare(&[(5, 30)], 11, &[(5, 30)]), []);
        assert_eq!(gone(&[(ACK, 10, &[], 0), (ACK, 10, &sack(&[(20, 30)]), 0)], true), [0]);
        assert_eq!(gone(&[(ACK, 10, &sack(&[(20, 30)]), 0), (ACK, 11, &[], 0)], true), []);
    }

    #[test]
    fn other_connections_are_left_alone() {
        let mut bed = Bed::new();
        bed.push(1, (ACK, 1, &[], 0), 4);
        bed.push(2, (ACK, 2, &[], 0), 4);
        bed.push(1, (ACK, 2, &[], 0), 6);
        assert_eq!(bed.filter(true), None);
        let wanted = bed.push(2, (ACK, 3, &[], 0), 6);
        bed.push(2, (ACK, 4, &[], 0), 6);
        assert_eq!(bed.filter(true), Some(wanted));
    }
}
