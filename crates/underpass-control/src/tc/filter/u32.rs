//! `u32`: hash tables of filters, shared by all priorities of a qdisc. Linux: `net/sched/cls_u32.c`.

pub(crate) mod change;
pub(super) mod save;

use std::collections::BTreeMap;
use std::ops::Bound;

use libc::ENOMEM;
use underpass_engine::counters::CounterId;
use underpass_netlink::RequestError;
use underpass_netlink::tc::u32::{self, Selector};

use super::Filters;
use super::common::{Common, PriorityName};

/// What a priority begins with: its root table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Root {
    /// Handle of the table.
    pub table: u32,
    /// Handle of the qdisc, whose tables it is among.
    pub qdisc: u32,
    /// Whether there has been a filter: Linux's `tcf_proto.usesw`, which tables alone do not set.
    pub used: bool,
}

/// A filter of a table.
#[derive(Debug)]
pub(super) struct Node {
    pub selector: Selector,
    /// The table that it leads to.
    pub link: Option<u32>,
    pub input: Option<u32>,
    pub mark: Option<(u32, u32)>,
    pub mark_counter: Option<CounterId>,
    pub key_counters: Vec<CounterId>,
    pub common: Common,
}

/// A hash table.
#[derive(Debug)]
pub(super) struct Table {
    pub handle: u32,
    /// The priority that it was made in.
    priority: u16,
    /// As many buckets as it has.
    pub divisor: u32,
    /// A priority begins with it.
    root: bool,
    /// Filters that lead to it.
    links: usize,
    /// By their handles: in the order in which a bucket asks them.
    pub nodes: BTreeMap<u32, Node>,
}

/// The tables of a qdisc.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The last that was made first.
    pub tables: Vec<Table>,
    /// Priorities that begin with one of them.
    roots: usize,
    /// The last number that was given.
    last: u32,
}

impl Tables {
    pub fn get(&self, handle: u32) -> Option<&Table> {
        self.tables.iter().find(|table| table.handle == handle)
    }

    fn get_mut(&mut self, handle: u32) -> Option<&mut Table> {
        self.tables.iter_mut().find(|table| table.handle == handle)
    }

    /// A number that no table has: 1 to 7fe, with 800 added. Linux: `idr_alloc_cyclic`.
    fn free(&mut self) -> Option<u32> {
        for _ in 1..0x7ff {
            self.last = self.last % 0x7fe + 1;
            let handle = (0x800 | self.last) << 20;
            if self.get(handle).is_none() {
                return Some(handle);
            }
        }
        None
    }

    fn nodes(&self) -> usize {
        self.tables.iter().map(|table| table.nodes.len()).sum()
    }

    pub fn users_of_class(&self, class: u32) -> usize {
        let nodes = self.tables.iter().flat_map(|table| table.nodes.values());
        nodes.filter(|node| node.common.class == class).count()
    }
}

impl Table {
    /// The lowest free node of a bucket, from 800 on, else from 1 on. Linux: `gen_new_kid`.
    fn free(&self, bucket: u32) -> Option<u32> {
        // The nodes that there are leave the first gap free.
        let free = |first: u32, last: u32| {
            let taken =
                self.nodes.range(bucket | first..=bucket | last).map(|(handle, _)| u32::node(*handle));
            let gap = taken.zip(first..).find(|(taken, free)| taken != free).map(|(_, free)| free);
            gap.or_else(|| {
                let count = self.nodes.range(bucket | first..=bucket | last).count() as u32;
                (first + count <= last).then_some(first + count)
            })
        };
        free(0x800, 0xfff).or_else(|| free(1, 0x7ff)).map(|node| bucket | node)
    }
}

/// The key of the tables of a qdisc.
const fn place(name: PriorityName, qdisc: u32) -> (u32, u32) {
    (name.block.link, qdisc)
}

impl Filters {
    fn tables(&self, name: PriorityName, root: &Root) -> Option<&Tables> {
        self.tables.get(&place(name, root.qdisc))
    }

    /// Makes the root table of a new priority.
    pub(super) fn new_root(&mut self, name: PriorityName, qdisc: u32) -> Result<Root, RequestError> {
        let first = !self.tables.contains_key(&place(name, qdisc));
        let tables = self.tables.entry(place(name, qdisc)).or_default();
        let handle = if first { Some(0x8000_0000) } else { tables.free() };
        let handle = handle.ok_or(RequestError::errno(ENOMEM))?;
        let table =
            Table { handle, priority: name.number, divisor: 1, root: true, links: 0, nodes: BTreeMap::new() };
        tables.tables.insert(0, table);
        tables.roots += 1;
        Ok(Root { table: handle, qdisc, used: false })
    }

    pub(super) fn find_node(&self, name: PriorityName, root: &Root, handle: u32) -> Option<u32> {
        let tables = self.tables(name, root)?;
        let wanted = match u32::table(handle) {
            u32::ROOT => root.table,
            wanted => wanted,
        };
        let table = tables.get(wanted)?;
        if handle & 0xf_ffff == 0 {
            return Some(table.handle);
        }
        table.nodes.contains_key(&handle).then_some(handle)
    }

    pub(super) fn node_after(&self, name: PriorityName, root: &Root, last: Option<u32>) -> Option<u32> {
        let tables = &self.tables(name, root)?.tables;
        let own = |table: &&Table| table.priority == name.number;
        let Some(last) = last else { return tables.iter().find(own).map(|table| table.handle) };
        let at = tables.iter().position(|table| table.handle == u32::table(last))?;
        let behind = (Bound::Excluded(last), Bound::Unbounded);
        let node = tables.get(at)?.nodes.range(behind).next().map(|(handle, _)| *handle);
        node.or_else(|| tables.get(at + 1..)?.iter().find(own).map(|table| table.handle))
    }

    /// The actions of a filter.
    pub(super) fn node_common(&self, name: PriorityName, root: &Root, handle: u32) -> Option<&Common> {
        let table = self.tables(name, root)?.get(u32::table(handle))?;
        table.nodes.get(&handle).map(|node| &node.common)
    }
}
