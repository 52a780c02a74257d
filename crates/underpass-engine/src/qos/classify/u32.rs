//! `u32`: Linux's `net/sched/cls_u32.c`.

use arrayvec::ArrayVec;

use crate::counters::{CounterId, Counters};
use crate::qos::subject::Subject;
use crate::tables::{LinkId, Outcome, U32Key, U32Next, U32Node, U32Table};

/// Links that a packet may follow at a time: `TC_U32_MAXDEPTH`.
const DEPTH: usize = 8;

/// A hash table as packets meet it.
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
}

/// The nodes of a bucket, and the keys of all of them.
struct Bucket {
    nodes: Box<[Node]>,
    keys: Box<[Key]>,
}

/// A node, without its keys.
struct Node {
    /// Where its keys end; they begin where those of the node before do.
    keys_end: u32,
    outcome: Outcome,
    terminal: bool,
    link: Option<usize>,
    mark: Option<(u32, u32)>,
    mark_counter: Option<CounterId>,
    ingress: Option<LinkId>,
    next: U32Next,
}

/// A comparison: numbers as they lie in memory.
struct Key {
    value: u32,
    mask: u32,
    offset: i32,
    offset_mask: i32,
    counter: Option<CounterId>,
}

impl From<U32Table> for Table {
    fn from(U32Table { buckets }: U32Table) -> Self {
        Self { buckets: buckets.into_iter().map(Bucket::from).collect() }
    }
}

impl From<Vec<U32Node>> for Bucket {
    fn from(nodes: Vec<U32Node>) -> Self {
        let mut keys = Vec::new();
        let nodes = nodes.into_iter().map(|node| {
            for (n, key) in node.keys.iter().enumerate() {
                let &U32Key { value, mask, offset, offset_mask } = key;
                let counter = node.key_counters.get(n).copied();
                keys.push(Key { value: value.to_be(), mask: mask.to_be(), offset, offset_mask, counter });
            }
            let U32Node { mark, mark_counter, ingress, terminal, link, next, outcome, .. } = node;
            Node { keys_end: keys.len() as u32, outcome, terminal, link, mark, mark_counter, ingress, next }
        });
        Self { nodes: nodes.collect(), keys: keys.into() }
    }
}

/// Where a walk through the tables has come to, so that it can go on when a filter sends the packet on.
#[derive(Default)]
pub(crate) struct Walk {
    /// The next node: table, bucket, place.
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

/// What a bucket has for a packet.
enum Held<'h> {
    /// The node at this place.
    Node(usize, &'h Node),
    /// No node.
    None,
    /// The packet ends before what was to be compared.
    TooShort,
}

/// The next filter that takes a packet.
pub(crate) fn walk<'h>(
    tables: &'h [Table],
    walk: &mut Walk,
    subject: &Subject<'_>,
    counters: &Counters,
) -> Option<&'h Outcome> {
    // A node that links to a table without its own bucket ends there; each step goes to another node, and as tables may
    // link in a circle only `DEPTH` of them deep, the walk ends.
    while !walk.ended {
        let (table, bucket, place) = walk.node;
        let bucket_of = |table: usize, bucket: usize| tables.get(table)?.buckets.get(bucket);
        let held = match bucket_of(table, bucket) {
            Some(bucket) => bucket.find(place, walk, subject, counters),
            None => Held::None,
        };
        match held {
            Held::None => {
                // The end of a bucket: back to the link that led here.
                let Some((link, offset)) = walk.links.pop() else { break };
                (walk.node, walk.offset) = (link, offset);
                let (table, bucket, place) = link;
                let node = bucket_of(table, bucket)?.nodes.get(place)?;
                walk.node.2 += 1;
                if node.terminal
                    && let Some(outcome) = end_at(node, subject, counters)
                {
                    return Some(outcome);
                }
            }
            // Nothing matches, as in Linux.
            Held::TooShort => break,
            Held::Node(place, node) => {
                walk.node.2 = place + 1;
                let Some(link) = node.link else {
                    if let Some(outcome) = end_at(node, subject, counters) {
                        return Some(outcome);
                    }
                    continue;
                };
                // A mere link takes no packet itself, and the table may not lead back to one that would.
                miss(node, counters);
                if walk.links.try_push(((table, bucket, place), walk.offset)).is_err() {
                    break;
                }
                if follow(node, tables.get(link)?, link, walk, subject).is_none() {
                    break;
                }
            }
        }
    }
    walk.ended = true;
    None
}

impl Bucket {
    /// The first node from a place on whose mark and keys hold.
    #[inline]
    fn find<'h>(&'h self, from: usize, walk: &Walk, subject: &Subject<'_>, counters: &Counters) -> Held<'h> {
        let before = from.checked_sub(1).and_then(|before| self.nodes.get(before));
        let mut start = before.map_or(0, |node| node.keys_end as usize);
        for (n, node) in self.nodes.get(from..).unwrap_or_default().iter().enumerate() {
            let end = node.keys_end as usize;
            let keys = self.keys.get(start..end).unwrap_or_default();
            start = end;
            match node.holds(keys, walk, subject, counters) {
                Some(true) => return Held::Node(from + n, node),
                Some(false) => miss(node, counters),
                None => {
                    miss(node, counters);
                    return Held::TooShort;
                }
            }
        }
        Held::None
    }
}

impl Node {
    /// Whether mark and keys hold; `None`: the packet is too short.
    #[inline]
    fn holds(&self, keys: &[Key], walk: &Walk, subject: &Subject<'_>, counters: &Counters) -> Option<bool> {
        if let Some((value, mask)) = self.mark
            && subject.tag().mark & mask != value
        {
            return Some(false);
        }
        if let Some(counter) = self.mark_counter {
            counters.add_packet(counter, 0);
        }
        for key in keys {
            let further = walk.further & i64::from(key.offset_mask);
            let found = subject.word(walk.offset + i64::from(key.offset) + further)?;
            if (found ^ key.value) & key.mask != 0 {
                return Some(false);
            }
            if let Some(counter) = key.counter {
                counters.add_packet(counter, 0);
            }
        }
        Some(true)
    }
}

/// What a node that matches is in for, if it is not only a link.
fn end_at<'h>(node: &'h Node, subject: &Subject<'_>, counters: &Counters) -> Option<&'h Outcome> {
    if !node.terminal || !subject.is_received_by(node.ingress) {
        if node.link.is_none() {
            miss(node, counters);
        }
        return None;
    }
    if let Some(counter) = node.outcome.counter {
        counters.add_packet(counter, subject.wire.bytes());
        if node.link.is_some() {
            // It has counted as missed since the link was followed.
            counters.take_back_error(counter);
        }
    }
    Some(&node.outcome)
}

/// A node has not taken the packet.
fn miss(node: &Node, counters: &Counters) {
    if let Some(counter) = node.outcome.counter {
        counters.add_error(counter);
    }
}

/// Goes on in the table that a node links to. `None`: the packet is too short.
fn follow(node: &Node, table: &Table, link: usize, walk: &mut Walk, subject: &Subject<'_>) -> Option<()> {
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
    use crate::counters::Count;
    use crate::qos::subject::tests::{PLACE, packet};

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
        let tables: Vec<Table> = tables.iter().cloned().map(Table::from).collect();
        let mut at = Walk::of(0);
        std::iter::from_fn(|| walk(&tables, &mut at, &subject, &counters).map(|outcome| outcome.class))
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
        let tables = [U32Table { buckets: vec![vec![counted(3, 1), counted(2, 0)]] }].map(Table::from);
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

    /// A link is asked once, whether its table takes the packet, it takes it itself, or nobody does.
    #[test]
    fn links_count() {
        let counted = |inside: u32| {
            let (mut pool, counters) = (Pool::new(1), Counters::default());
            counters.reserve(CounterId(0));
            let packet = packet(&mut pool, &datagram(0));
            let subject = Subject::of(&packet, &PLACE).unwrap();
            let mut link = U32Node { link: Some(1), ..ends(&[], 9) };
            link.outcome.counter = Some(CounterId(0));
            let tables = [vec![link], vec![ends(&[key(inside, 0xff, 16)], 5)]]
                .map(|nodes| Table::from(U32Table { buckets: vec![nodes] }));
            let mut at = Walk::of(0);
            let class = walk(&tables, &mut at, &subject, &counters).map(|outcome| outcome.class);
            (class, counters.read(CounterId(0)))
        };
        assert_eq!(counted(2), (Some(5), Count { packets: 0, bytes: 0, errors: 1 }));
        assert_eq!(counted(3), (Some(9), Count { packets: 1, bytes: 28, errors: 0 }));
    }
}
