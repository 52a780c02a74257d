//! Changes to a table: the control thread's half of the trie.

use std::sync::atomic::Ordering::{Relaxed, Release};

use arrayvec::ArrayVec;

use super::arena::{Arena, Block, UNIT, View};
use super::entry::{Entry, Kind, MOST, NONE};
use super::node::{self, Node};
use super::{Address, COVERED, COVERS, DEFAULT, Lpm, MAX_LEAF, Mark, ROOT, SHORTS, record};
use crate::publish::Retirer;

/// Most bits between a slot and the node that it leads to.
const SKIP: u8 = 24;

/// Where an entry is.
#[derive(Clone, Copy)]
enum Link {
    Root(usize),
    Arena(usize),
}

/// A node on the way to a prefix.
#[derive(Clone, Copy)]
struct Hop {
    /// The entry that leads to the node.
    link: Link,
    /// The bit of the address behind that entry's slot.
    pos: u8,
    /// The node's first word.
    at: usize,
    /// The bit of the address that the node begins with.
    base: u8,
}

/// The nodes on the way to a prefix: the root's and (128 − 16) / 8 more.
type Path = ArrayVec<Hop, 16>;

/// Where the way to a prefix ends.
enum Stop {
    /// The last node of the path owns prefixes of this length.
    InnerProtocol,
    /// The last node of the path has no entry for this slot.
    Absent(u8),
    /// At an entry, behind this bit, that is not a node, or a node that the prefix does not lead to.
    Entry(Link, u8, Entry),
}

/// A table and its arena, to be changed.
pub(crate) struct Edit<'a, A: Address> {
    pub(crate) table: &'a Lpm<A>,
    pub(crate) arena: &'a mut Arena,
    pub(crate) retirer: &'a Retirer,
}

impl<A: Address> Lpm<A> {
    /// The leaf of the longest prefix that covers `address`, for the control thread.
    pub(crate) fn peek_longest(&self, address: A) -> Option<u32> {
        self.longest(address).checked_sub(1)
    }

    /// The leaf of this very prefix, for the control thread.
    pub(crate) fn peek_exact(&self, address: A, len: u8) -> Option<u32> {
        self.exact(address, len)?.checked_sub(1)
    }

    pub(super) fn exact(&self, address: A, len: u8) -> Option<Mark> {
        if len > A::BITS {
            return None;
        }
        if len < ROOT {
            return Some(self.root.word(short(address, len)).load(Relaxed) as Mark);
        }
        let (path, stop) = self.descend(address, len);
        match stop {
            Stop::InnerProtocol => {
                let hop = path.last()?;
                node::prefix(self.arena.view(), hop.at, code(address, hop.base, len))
            }
            Stop::Absent(_) => None,
            Stop::Entry(_, pos, entry) => self.single(address, pos, entry, len).map(|(_, leaf)| leaf),
        }
    }

    /// All blocks of the table's nodes and records, with their sizes in words.
    pub(crate) fn blocks(&self) -> Vec<(Block, usize)> {
        let mut blocks = self.deep_blocks();
        blocks.extend(self.groups());
        let mut entries: Vec<u64> = (0..COVERS).map(|slot| self.root.word(slot).load(Relaxed)).collect();
        while let Some(entry) = entries.pop().map(Entry) {
            match entry.kind() {
                Kind::Leaf => {}
                Kind::Record => blocks.push((entry.block(), record::SIZE)),
                Kind::Node => {
                    let at = entry.at();
                    blocks.push((entry.block(), node::size(self.arena.view(), at)));
                    entries.extend(node::single_entries(self.arena.view(), at).map(|entry| entry.0));
                }
            }
        }
        blocks
    }

    /// Has `each` see all prefixes of [`ROOT`] bits and more, with their lengths and marks, until it says `false`; whether it
    /// has seen all.
    pub(super) fn visit(&self, each: &mut impl FnMut(A, u8, Mark) -> bool) -> bool {
        (0..COVERS as u64).all(|slot| {
            let entry = Entry(self.root.word(slot as usize).load(Relaxed));
            self.visit_entry(A::from_halves([slot << 48, 0]), ROOT, entry, each)
        })
    }

    /// The same of those that are longer than `len` bits and begin with the first `len` of `address`, at least [`ROOT`].
    pub(super) fn visit_below(
        &self,
        address: A,
        len: u8,
        each: &mut impl FnMut(A, u8, Mark) -> bool,
    ) -> bool {
        let (path, stop) = self.descend(address, len);
        let (pos, entry) = match (stop, path.last()) {
            (Stop::Entry(_, pos, entry), _) => (pos, entry),
            (Stop::InnerProtocol, Some(hop)) => (hop.pos, Entry(self.link(hop.link).load(Relaxed))),
            _ => return true,
        };
        self.visit_entry(address, pos, entry, &mut |prefix, of, mark| {
            let below = of > len && record::common(prefix, address) >= len.into();
            !below || each(prefix, of, mark)
        })
    }

    /// The same of what `entry` leads to, behind bit `pos` of `address`.
    fn visit_entry(
        &self,
        address: A,
        pos: u8,
        entry: Entry,
        each: &mut impl FnMut(A, u8, Mark) -> bool,
    ) -> bool {
        if let Some((prefix, len, mark)) = self.prefix(address, pos, entry) {
            return each(prefix, len, mark);
        }
        if entry.kind() != Kind::Node {
            return true;
        }
        let (address, base) = (address.with_window(pos, entry.suffix()), pos + entry.len());
        let node = Node::read(self.arena.view(), entry.at());
        (!node.own || each(address, base, node.default))
            && node.prefixes.iter().all(|(code, mark)| {
                let (prefix, len) = prefix_of(address, base, *code);
                each(prefix, len, *mark)
            })
            && node.singles.iter().all(|(slot, entry)| {
                let address = address.with_window(base, u64::from(*slot) << 56);
                self.visit_entry(address, base + 8, *entry, each)
            })
    }

    fn link(&self, link: Link) -> &std::sync::atomic::AtomicU64 {
        match link {
            Link::Root(index) => self.root.word(index),
            Link::Arena(index) => self.arena.word(index),
        }
    }

    /// Follows the first `len` bits of `address`, which are at least [`ROOT`], as far as nodes lead.
    fn descend(&self, address: A, len: u8) -> (Path, Stop) {
        let mut path = Path::new();
        let mut link = Link::Root((address.window(0) >> 48) as usize);
        let mut pos = ROOT;
        loop {
            let entry = Entry(self.link(link).load(Relaxed));
            let base = pos + entry.len();
            let goes_on = entry.kind() == Kind::Node && len >= base && entry.matches(address.window(pos));
            if !goes_on || path.is_full() {
                return (path, Stop::Entry(link, pos, entry));
            }
            let at = entry.at();
            path.push(Hop { link, pos, at, base });
            if len - base < 8 {
                return (path, Stop::InnerProtocol);
            }
            let slot = (address.window(base) >> 56) as u8;
            if !node::has_own_entry(self.arena.view(), at, slot) {
                return (path, Stop::Absent(slot));
            }
            (link, pos) = (Link::Arena(node::find(self.arena.view(), at, slot)), base + 8);
        }
    }

    /// If `entry`, behind bit `pos`, is one prefix, and has the first `len` bits of `address`: how many
    /// of them that are, and its leaf.
    fn single(&self, address: A, pos: u8, entry: Entry, len: u8) -> Option<(u8, u32)> {
        let (prefix, other, leaf) = self.prefix(address, pos, entry)?;
        (other == len && record::common(prefix, address) >= len.into()).then_some((other, leaf))
    }

    /// If `entry`, behind bit `pos` of `address`, is one prefix: it, its length and its leaf.
    fn prefix(&self, address: A, pos: u8, entry: Entry) -> Option<(A, u8, u32)> {
        match entry.kind() {
            Kind::Leaf if entry != Entry::EMPTY => {
                Some((address.with_window(pos, entry.suffix()), pos + entry.len(), entry.mark()))
            }
            Kind::Record => Some(record::read(&self.arena, entry)),
            Kind::Leaf | Kind::Node => None,
        }
    }

    /// What the parent of a node on the path says about its slot.
    fn inherited(&self, address: A, parents: &[Hop]) -> u32 {
        match parents.last() {
            Some(hop) => node::cover(self.arena.view(), hop.at, (address.window(hop.base) >> 56) as u8),
            None => {
                let slot = (address.window(0) >> 48) as usize;
                self.root.word(COVERS + slot).load(Relaxed) as u32
            }
        }
    }
}

/// 1 and the bits of the prefix behind the node's base.
fn code<A: Address>(address: A, base: u8, len: u8) -> u8 {
    ((1 << 8 | address.window(base) >> 56) >> (8 - (len - base))) as u8
}

/// The prefix of this code in a node at bit `base` of `address`, and its length: the reverse of [`code`].
fn prefix_of<A: Address>(address: A, base: u8, code: u8) -> (A, u8) {
    let spare = code.leading_zeros() as u8 + 1;
    (address.with_window(base, (u64::from(code) << spare & 0xff) << 56), base + 8 - spare)
}

/// The word of a root that holds a prefix shorter than [`ROOT`].
fn short<A: Address>(address: A, len: u8) -> usize {
    SHORTS + (1 << len | (address.window(0) >> 1 >> (63 - len)) as usize)
}

impl<A: Address> Edit<'_, A> {
    /// Gives the first `len` bits of `address` a leaf, and returns the one that they had. Does nothing
    /// if `len` is too long, the leaf too large or the memory at its end.
    pub(crate) fn insert(&mut self, address: A, len: u8, leaf: u32) -> Option<u32> {
        if len > A::BITS || leaf > MAX_LEAF || !self.arena.has_room() {
            return None;
        }
        let address = address.with_window(len, 0);
        let mark = leaf + 1;
        let previous =
            if len < ROOT { self.set_short(address, len, Some(mark)) } else { self.set(address, len, mark) };
        if previous.is_none() {
            self.table.routes.store(self.table.routes.load(Relaxed) + 1, Relaxed);
        }
        self.refresh_flat(address, len);
        self.refresh_buckets(address, len, Some(mark), previous);
        previous.map(|mark| mark - 1)
    }

    /// Takes the leaf of the first `len` bits of `address`.
    pub(crate) fn remove(&mut self, address: A, len: u8) -> Option<u32> {
        if len > A::BITS {
            return None;
        }
        let address = address.with_window(len, 0);
        let previous = if len < ROOT { self.set_short(address, len, None) } else { self.unset(address, len) };
        if previous.is_some() {
            self.table.routes.store(self.table.routes.load(Relaxed) - 1, Relaxed);
            self.refresh_flat(address, len);
            self.refresh_buckets(address, len, None, previous);
        }
        previous.map(|mark| mark - 1)
    }

    fn words(&self) -> View<'_> {
        self.table.arena.view()
    }

    fn store(&self, link: Link, entry: Entry) {
        // Release: a new node's content before its address.
        self.table.link(link).store(entry.0, Release);
    }

    /// Gives back the node at `at`, which has just been unlinked.
    fn release(&mut self, at: usize) {
        let size = node::size(self.words(), at);
        self.arena.release((at / UNIT) as Block, size, self.retirer);
    }

    fn set_short(&mut self, address: A, len: u8, leaf: Option<u32>) -> Option<u32> {
        let own = short(address, len);
        let word = self.table.root.word(own);
        let previous = Some(word.load(Relaxed) as u32).filter(|mark| *mark != NONE);
        if previous.is_none() && leaf.is_none() {
            return None;
        }
        word.store(leaf.unwrap_or(NONE).into(), Relaxed);
        if len == 0 {
            self.table.root.word(DEFAULT).store(leaf.unwrap_or(NONE).into(), Release);
            return previous;
        }
        // What the slots show that showed this prefix: its leaf, or the next shorter prefix.
        let cover = match leaf {
            Some(leaf) => u64::from(len) << 32 | u64::from(leaf),
            None => (1..len)
                .rev()
                .find_map(|len| match self.table.root.word(short(address, len)).load(Relaxed) {
                    0 => None,
                    leaf => Some(u64::from(len) << 32 | leaf),
                })
                .unwrap_or(0),
        };
        if !self.table.covered() && self.table.root.offset() != 0 {
            Lpm::<A>::touch(&self.table.root, COVERS);
        }
        self.table.root.word(COVERED).store(1, Release);
        let first = (address.window(0) >> 48) as usize;
        for slot in first..first + (1 << (ROOT - len)) {
            let word = self.table.root.word(COVERS + slot);
            if word.load(Relaxed) >> 32 <= u64::from(len) {
                word.store(cover, Release);
                let entry = Entry(self.table.root.word(slot).load(Relaxed));
                node::inherit(self.words(), entry, cover as u32);
            }
        }
        previous
    }

    fn set(&mut self, address: A, len: u8, leaf: u32) -> Option<u32> {
        let (path, stop) = self.table.descend(address, len);
        match stop {
            Stop::InnerProtocol => {
                let hop = path.last()?;
                let code = code(address, hop.base, len);
                let previous = node::prefix(self.words(), hop.at, code);
                if code == 1 {
                    node::set_default(self.words(), hop.at, leaf, true);
                } else {
                    let mut node = Node::read(self.words(), hop.at);
                    node.set_prefix(code, Some(leaf));
                    self.replace(*hop, address, &node);
                    node.pass_down(self.words(), code);
                }
                previous
            }
            Stop::Absent(slot) => {
                let hop = path.last()?;
                let entry = self.leaf(address, hop.base + 8, len, leaf);
                if !node::append(self.words(), hop.at, slot, entry) {
                    let mut node = Node::read(self.words(), hop.at);
                    node.insert_single(slot, entry);
                    self.replace(*hop, address, &node);
                }
                None
            }
            Stop::Entry(link, pos, entry) => {
                if entry == Entry::EMPTY {
                    let entry = self.leaf(address, pos, len, leaf);
                    self.store(link, entry);
                    return None;
                }
                if let Some((_, previous)) = self.table.single(address, pos, entry, len) {
                    match entry.kind() {
                        Kind::Record => record::set_mark(&self.table.arena, entry, leaf),
                        _ => self.store(link, Entry::new(Kind::Leaf, leaf, entry.suffix(), entry.len())),
                    }
                    return Some(previous);
                }
                self.split(&path, link, pos, entry, address, len, leaf);
                None
            }
        }
    }

    /// An entry, behind bit `pos`, for a prefix alone.
    fn leaf(&mut self, address: A, pos: u8, len: u8, leaf: u32) -> Entry {
        if len - pos <= MOST {
            Entry::new(Kind::Leaf, leaf, address.window(pos), len - pos)
        } else {
            Entry::new(Kind::Record, record::write(self.arena, address, len, leaf), 0, 0)
        }
    }

    /// Writes a changed node anew and publishes it in the place of the old one.
    fn replace(&mut self, hop: Hop, address: A, node: &Node) {
        let block = node.write(self.arena);
        self.store(hop.link, Entry::new(Kind::Node, block, address.window(hop.pos), hop.base - hop.pos));
        self.release(hop.at);
    }

    /// Makes a node where a new prefix parts from what `entry`, behind bit `pos`, leads to.
    #[allow(clippy::too_many_arguments)]
    fn split(&mut self, path: &[Hop], link: Link, pos: u8, entry: Entry, address: A, len: u8, leaf: u32) {
        let mut node = Node::new(NONE);
        let mut release = None;
        let base;
        if let Some((prefix, other, old)) = self.table.prefix(address, pos, entry) {
            let common = record::common(prefix, address).min(len.into()).min(other.into()) as u8;
            base = common / 8 * 8;
            self.put(&mut node, base, prefix, other, old);
            if entry.kind() == Kind::Record {
                release = Some(entry.block());
            }
        } else {
            let common = entry.common(address.window(pos)).min(len - pos);
            base = pos + common / 8 * 8;
            let skipped = base - pos + 8;
            let suffix = entry.suffix();
            let slot = (suffix << (base - pos) >> 56) as u8;
            let rest = Entry::new(Kind::Node, entry.block(), suffix << skipped, entry.len() - skipped);
            node.insert_single(slot, rest);
        }
        self.put(&mut node, base, address, len, leaf);
        let inherited = self.table.inherited(address, path);
        if !node.own {
            node.default = inherited;
        }
        let mut block = node.write(self.arena);
        // Nodes of one entry lead over what is too long to be skipped at once.
        let mut bottom = base;
        while bottom - pos > SKIP {
            let hop = pos + SKIP + (bottom - pos - SKIP - 1) / 32 * 32;
            let mut chain = Node::new(inherited);
            let window = address.window(hop);
            let below = bottom - hop - 8;
            chain.insert_single((window >> 56) as u8, Entry::new(Kind::Node, block, window << 8, below));
            block = chain.write(self.arena);
            bottom = hop;
        }
        self.store(link, Entry::new(Kind::Node, block, address.window(pos), bottom - pos));
        if let Some(record) = release {
            self.arena.release(record, record::SIZE, self.retirer);
        }
        // What was below the entry inherited from the parent. The new node stands between them now, and
        // whoever comes through it meanwhile finds the longest match but for the new prefix.
        if entry.kind() == Kind::Node {
            node.pass_down(self.words(), 1);
        }
    }

    /// Puts a prefix into a new node at bit `base`.
    fn put(&mut self, node: &mut Node, base: u8, address: A, len: u8, leaf: u32) {
        if len == base {
            (node.default, node.own) = (leaf, true);
        } else if len - base < 8 {
            node.set_prefix(code(address, base, len), Some(leaf));
        } else {
            let entry = self.leaf(address, base + 8, len, leaf);
            node.insert_single((address.window(base) >> 56) as u8, entry);
        }
    }

    fn unset(&mut self, address: A, len: u8) -> Option<u32> {
        let (mut path, stop) = self.table.descend(address, len);
        match stop {
            Stop::Absent(_) => None,
            Stop::InnerProtocol => {
                let hop = path.pop()?;
                let code = code(address, hop.base, len);
                let previous = node::prefix(self.words(), hop.at, code)?;
                // In place first: then all below show the shorter prefix already, whether they are come
                // to through the old node or what takes its place.
                let mut node = Node::read(self.words(), hop.at);
                if code == 1 {
                    (node.own, node.default) = (false, self.table.inherited(address, &path));
                    node::set_default(self.words(), hop.at, node.default, false);
                    if node.things() > 1 {
                        return Some(previous);
                    }
                } else {
                    node.set_prefix(code, None);
                    node.pass_down(self.words(), code);
                }
                self.settle(path, hop, address, node);
                Some(previous)
            }
            Stop::Entry(link, pos, entry) => {
                let (_, previous) = self.table.single(address, pos, entry, len)?;
                match path.pop() {
                    None => self.store(link, Entry::EMPTY),
                    Some(hop) => {
                        let mut node = Node::read(self.words(), hop.at);
                        node.remove_single((address.window(hop.base) >> 56) as u8);
                        self.settle(path, hop, address, node);
                    }
                }
                if entry.kind() == Kind::Record {
                    self.arena.release(entry.block(), record::SIZE, self.retirer);
                }
                Some(previous)
            }
        }
    }

    /// Publishes a node from which something was removed: as it is, or as an entry if so little is
    /// left; and the same with the nodes above it.
    fn settle(&mut self, mut path: Path, mut hop: Hop, address: A, mut node: Node) {
        let mut gone = ArrayVec::<usize, 16>::new();
        loop {
            let Some(entry) = self.collapse(hop, address, &node) else {
                self.replace(hop, address, &node);
                break;
            };
            gone.push(hop.at);
            // A hop of a chain is not needed any more if what it leads to is an entry.
            match path.last().copied() {
                Some(above) if node::things(self.words(), above.at) == 1 => {
                    node = Node::read(self.words(), above.at);
                    node.singles.iter_mut().for_each(|single| single.1 = entry);
                    hop = above;
                    path.pop();
                }
                _ => {
                    self.store(hop.link, entry);
                    break;
                }
            }
        }
        gone.into_iter().for_each(|at| self.release(at));
    }

    /// The entry that can stand for a node with one thing in it. A node is never empty: of two things
    /// one is left.
    fn collapse(&mut self, hop: Hop, address: A, node: &Node) -> Option<Entry> {
        if node.things() != 1 {
            return None;
        }
        if node.own {
            return Some(self.leaf(address, hop.pos, hop.base, node.default));
        }
        if let Some((code, leaf)) = node.prefixes.first() {
            let (prefix, len) = prefix_of(address, hop.base, *code);
            return Some(self.leaf(prefix, hop.pos, len, *leaf));
        }
        let (slot, entry) = *node.singles.first()?;
        let window = u64::from(slot) << 56 | entry.suffix() >> 8;
        match entry.kind() {
            Kind::Record => Some(entry),
            Kind::Leaf => {
                let prefix = address.with_window(hop.base, window);
                Some(self.leaf(prefix, hop.pos, hop.base + 8 + entry.len(), entry.mark()))
            }
            Kind::Node => {
                let skip = hop.base - hop.pos + 8 + entry.len();
                (skip <= SKIP).then(|| {
                    // What stood between had no prefix: what the child inherits remains.
                    let window = address.with_window(hop.base, window).window(hop.pos);
                    Entry::new(Kind::Node, entry.block(), window, skip)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
