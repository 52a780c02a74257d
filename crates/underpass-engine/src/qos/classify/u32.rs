//! `u32`: Linux's `net/sched/cls_u32.c`.

use arrayvec::ArrayVec;

use crate::counters::{Count, Counters};
use crate::qos::subject::Subject;
use crate::tables::{Outcome, U32Node, U32Table};

/// Links that a packet may follow at a time: `TC_U32_MAXDEPTH`.
const DEPTH: usize = 8;

/// Where a walk through the tables has come to, so that it can go on when a filter sends the packet on.
#[derive(Default)]
pub(crate) struct Walk {
    /// The node that is asked next: table, bucket, place.
    node: (usize, usize, usize),
    /// Where the present header begins, behind the network header.
    offset: i64,
    /// What a link has worked out and not eaten.
    further: i64,
    /// The links that were followed, and where their header began.
    links: ArrayVec<((usize, usize, usize), i64), DEPTH>,
    ended: bool,
}

impl Walk {
    /// From the first node of a table on.
    pub(crate) fn of(table: usize) -> Self {
        Self { node: (table, 0, 0), ..Self::default() }
    }
}

/// The next filter that takes a packet.
pub(crate) fn walk<'h>(
    tables: &'h [U32Table],
    walk: &mut Walk,
    subject: &Subject<'_>,
    counters: &Counters,
) -> Option<&'h Outcome> {
    // A node that links to a table without its own bucket ends there; each step goes to another node, and as tables may
    // link in a circle only `DEPTH` of them deep, the walk ends.
    while !walk.ended {
        let (table, bucket, place) = walk.node;
        let node = tables.get(table)?.buckets.get(bucket).and_then(|bucket| bucket.get(place));
        let Some(node) = node else {
            // The end of a bucket: back to the link that led here.
            let Some((link, offset)) = walk.links.pop() else { break };
            (walk.node, walk.offset) = (link, offset);
            let (table, bucket, place) = link;
            let node = tables.get(table)?.buckets.get(bucket)?.get(place)?;
            walk.node.2 += 1;
            if node.terminal
                && let Some(outcome) = end_at(node, subject, counters)
            {
                return Some(outcome);
            }
            continue;
        };
        walk.node.2 += 1;
        match holds(node, walk, subject, counters) {
            // The packet ends before what was to be compared: nothing matches, as in Linux.
            None => {
                count(node, subject, false, counters);
                break;
            }
            Some(false) => count(node, subject, false, counters),
            Some(true) => match node.link {
                None => {
                    if let Some(outcome) = end_at(node, subject, counters) {
                        return Some(outcome);
                    }
                }
                Some(link) => {
                    // A mere link takes no packet itself; the table may not lead back.
                    if !node.terminal {
                        count(node, subject, false, counters);
                    }
                    if walk.links.try_push(((table, bucket, place), walk.offset)).is_err() {
                        break;
                    }
                    if follow(node, tables.get(link)?, link, walk, subject).is_none() {
                        break;
                    }
                }
            },
        }
    }
    walk.ended = true;
    None
}

/// Whether mark and keys of a node hold; `None`: the packet is too short.
fn holds(node: &U32Node, walk: &Walk, subject: &Subject<'_>, counters: &Counters) -> Option<bool> {
    const ONE: Count = Count { packets: 1, bytes: 0, errors: 0 };
    if let Some((value, mask)) = node.mark
        && subject.tag.mark & mask != value
    {
        return Some(false);
    }
    if let Some(counter) = node.mark_counter {
        counters.add(counter, ONE);
    }
    for (n, key) in node.keys.iter().enumerate() {
        let further = walk.further & i64::from(key.offset_mask);
        let found = subject.bytes(walk.offset + i64::from(key.offset) + further)?;
        if (u32::from_be_bytes(found) ^ key.value) & key.mask != 0 {
            return Some(false);
        }
        if let Some(counter) = node.key_counters.get(n) {
            counters.add(*counter, ONE);
        }
    }
    Some(true)
}

/// What a node that matches is in for, if it is not only a link.
fn end_at<'h>(node: &'h U32Node, subject: &Subject<'_>, counters: &Counters) -> Option<&'h Outcome> {
    let ends = node.terminal && subject.came_by(node.ingress);
    count(node, subject, ends, counters);
    ends.then_some(&node.outcome)
}

fn count(node: &U32Node, subject: &Subject<'_>, matched: bool, counters: &Counters) {
    if let Some(counter) = node.outcome.counter {
        counters.add(counter, asked(subject, matched));
    }
}

/// What a filter counts of a packet that it was asked about.
pub(crate) fn asked(subject: &Subject<'_>, matched: bool) -> Count {
    match matched {
        true => Count { packets: 1, bytes: subject.wire.bytes(), errors: 0 },
        false => Count { packets: 0, bytes: 0, errors: 1 },
    }
}

/// Goes on in the table that a node links to. `None`: the packet is too short.
fn follow(
    node: &U32Node,
    table: &U32Table,
    link: usize,
    walk: &mut Walk,
    subject: &Subject<'_>,
) -> Option<()> {
    let next = &node.next;
    let mut bucket = 0;
    if table.buckets.len() > 1 {
        let found = u32::from_be_bytes(subject.bytes(walk.offset + i64::from(next.hash_at))?);
        let folded = (found & next.hash_mask) >> (next.hash_mask.trailing_zeros() & 31);
        bucket = folded as usize & (table.buckets.len() - 1);
    }
    walk.node = (link, bucket, 0);
    if next.has_fixed || next.has_variable {
        walk.further = i64::from(next.fixed) + 3;
        if next.has_variable {
            let found = u16::from_be_bytes(subject.bytes(walk.offset + i64::from(next.variable_at))?);
            walk.further += i64::from(found & next.variable_mask) >> (next.variable_shift & 15);
        }
        walk.further &= !3;
    }
    if next.eat {
        walk.offset += std::mem::take(&mut walk.further);
    }
    if (next.has_fixed || next.has_variable || next.eat) && walk.offset >= subject.network().len() as i64 {
        // Nothing is left to be looked at: back to this node.
        walk.node.2 = usize::MAX;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;
    use crate::counters::CounterId;
    use crate::qos::subject::tests::{PLACE, packet};
    use crate::tables::{U32Key, U32Next};

    fn key(value: u32, mask: u32, offset: i32) -> U32Key {
        U32Key { value, mask, offset, offset_mask: 0 }
    }

    fn ends(keys: &[U32Key], class: u32) -> U32Node {
        let outcome = Outcome { class, ..Outcome::default() };
        U32Node { keys: keys.to_vec(), terminal: true, outcome, ..U32Node::default() }
    }

    /// UDP to 10.0.0.2 port 53 with `options` bytes of IP options.
    fn datagram(options: usize) -> Vec<u8> {
        let mut frame = [&[0; 12][..], &[8, 0]].concat();
        let len = (28 + options) as u8;
        frame.extend([
            0x45 + (options / 4) as u8,
            0,
            0,
            len,
            0,
            0,
            0,
            0,
            64,
            17,
            0,
            0,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ]);
        frame.extend(vec![0; options]);
        frame.extend([0x10, 0, 0, 53, 0, 8, 0, 0]);
        frame
    }

    fn classes(tables: &[U32Table], frame: &[u8]) -> Vec<u32> {
        let (mut pool, counters) = (Pool::new(1), Counters::default());
        let packet = packet(&mut pool, frame);
        let subject = Subject::of(&packet, &PLACE).unwrap();
        let mut at = Walk::of(0);
        std::iter::from_fn(|| walk(tables, &mut at, &subject, &counters).map(|outcome| outcome.class))
            .collect()
    }

    #[test]
    fn keys_all_hold() {
        let udp = key(0x0011_0000, 0x00ff_0000, 8);
        let tcp = key(0x0006_0000, 0x00ff_0000, 8);
        let there = key(0x0a00_0002, 0xffff_ffff, 16);
        let tables = [U32Table {
            buckets: vec![vec![
                ends(&[tcp, there], 1),
                ends(&[udp, there], 2),
                ends(&[], 3),
                ends(&[there], 4),
            ]],
        }];
        assert_eq!(classes(&tables, &datagram(0)), [2, 3, 4]);
        // What lies behind the packet ends the search.
        let tables =
            [U32Table { buckets: vec![vec![ends(&[], 1), ends(&[key(0, 0, 25)], 2), ends(&[], 3)]] }];
        assert_eq!(classes(&tables, &datagram(0)), [1]);
        assert_eq!(classes(&tables, &datagram(4)), [1, 2, 3]);
    }

    /// `u32 link 1: offset at 0 mask 0f00 shift 6 eat`, and ports behind it; a table by the destination's last byte.
    #[test]
    fn links_find_the_next_header() {
        let next = U32Next {
            has_variable: true,
            eat: true,
            variable_mask: 0x0f00,
            variable_shift: 6,
            ..U32Next::default()
        };
        let link =
            U32Node { keys: vec![key(0x0011_0000, 0x00ff_0000, 8)], link: Some(1), next, ..ends(&[], 9) };
        let tables = [
            U32Table { buckets: vec![vec![U32Node { terminal: false, ..link.clone() }, ends(&[], 7)]] },
            U32Table { buckets: vec![vec![ends(&[key(53, 0xffff, 0)], 5), ends(&[key(54, 0xffff, 0)], 6)]] },
        ];
        for options in [0, 4, 40] {
            assert_eq!(classes(&tables, &datagram(options)), [5, 7], "{options}");
        }
        // A link that is terminal is asked for itself once its table has not taken the packet.
        let tables = [U32Table { buckets: vec![vec![link]] }, tables[1].clone()];
        assert_eq!(classes(&tables, &datagram(0)), [5, 9]);
        let hash = U32Next { hash_at: 16, hash_mask: 0xff, ..U32Next::default() };
        let link = U32Node { link: Some(1), next: hash, ..U32Node::default() };
        let mut buckets = vec![Vec::new(); 256];
        buckets[2] = vec![ends(&[], 22)];
        buckets[3] = vec![ends(&[], 33)];
        let tables = [U32Table { buckets: vec![vec![link]] }, U32Table { buckets }];
        assert_eq!(classes(&tables, &datagram(0)), [22]);
    }

    /// `nexthdr+`: the offset of a link is added where a key says so.
    #[test]
    fn offsets_that_are_not_eaten() {
        let next = U32Next {
            has_fixed: true,
            has_variable: true,
            variable_mask: 0x0f00,
            variable_shift: 6,
            ..U32Next::default()
        };
        let link = U32Node { link: Some(1), next, ..U32Node::default() };
        let port = U32Key { offset_mask: -1, ..key(53, 0xffff, 0) };
        let tables = [
            U32Table { buckets: vec![vec![link]] },
            U32Table { buckets: vec![vec![ends(&[port], 5), ends(&[key(0x0a00_0002, u32::MAX, 16)], 6)]] },
        ];
        assert_eq!(classes(&tables, &datagram(8)), [5, 6]);
    }

    #[test]
    fn tables_in_a_circle_end() {
        let link = |to| U32Node { link: Some(to), ..ends(&[], 1) };
        let tables =
            [U32Table { buckets: vec![vec![link(1)]] }, U32Table { buckets: vec![vec![link(0), link(1)]] }];
        assert_eq!(classes(&tables, &datagram(0)), [0; 0]);
        // A table without buckets, and one that is not there.
        assert_eq!(
            classes(
                &[U32Table { buckets: vec![vec![link(1), ends(&[], 2)]] }, U32Table::default()],
                &datagram(0)
            ),
            [1, 2]
        );
        assert_eq!(classes(&[U32Table { buckets: vec![vec![link(7)]] }], &datagram(0)), [0; 0]);
    }

    #[test]
    fn nodes_count() {
        let (mut pool, counters) = (Pool::new(1), Counters::default());
        (0..4).for_each(|n| counters.reserve(CounterId(n)));
        let packet = packet(&mut pool, &datagram(0));
        let subject = Subject::of(&packet, &PLACE).unwrap();
        let counted = |class, counter| {
            let mut node = ends(&[key(0x4500_0000, 0xff00_0000, 0), key(class, 0xff, 16)], class);
            node.outcome.counter = Some(CounterId(counter));
            node.key_counters = vec![CounterId(counter + 1), CounterId(counter + 2)];
            node
        };
        let tables = [U32Table { buckets: vec![vec![counted(3, 1), counted(2, 0)]] }];
        assert_eq!(
            walk(&tables, &mut Walk::of(0), &subject, &counters).map(|outcome| outcome.class),
            Some(2)
        );
        assert_eq!(counters.read(CounterId(0)), Count { packets: 1, bytes: 28, errors: 0 });
        // The first one's own count, and those of the second one's keys.
        assert_eq!(counters.read(CounterId(1)), Count { packets: 1, bytes: 0, errors: 1 });
        assert_eq!(counters.read(CounterId(2)), Count { packets: 2, bytes: 0, errors: 0 });
        assert_eq!(counters.read(CounterId(3)), Count::default());
    }
}
