//! What a filter is attached to. Linux: `tcf_block_find` in `net/sched/cls_api.c`.

/// The interface index of requests that name a shared block: `TCM_IFINDEX_MAGIC_BLOCK`.
pub(crate) const SHARED: u32 = u32::MAX;

/// What a request for filters of what leaves by a VRF is told: packets do not pass there.
pub(crate) const EGRESS_OF_VRF: &str = "Filters of what leaves by a VRF are not supported by this router";

/// A place where filters are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Block {
    /// Interface index; [`SHARED`] of a shared block.
    pub link: u32,
    /// Where on it.
    pub point: Point,
}

/// Where on a link filters are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Point {
    /// What comes in.
    Ingress,
    /// What goes out, before it is queued.
    Egress,
    /// The qdisc of this handle: its filters choose a class.
    Qdisc(u32),
    /// The class of this handle: its filters choose a class below it.
    Class(u32),
    /// The shared block of this index: its filters are those of the hooks that name it.
    Shared(u32),
}

impl Block {
    /// The shared block of an index.
    pub const fn shared(index: u32) -> Self {
        Self { link: SHARED, point: Point::Shared(index) }
    }
}

/// The filters that a request means, and how its messages name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Where they are.
    pub block: Block,
    /// `tcm_parent`: that of the request, or the root qdisc if it named none.
    pub parent: u32,
    /// Handle of the qdisc.
    pub qdisc: u32,
}
