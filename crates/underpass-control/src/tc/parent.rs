//! What a filter is attached to. Linux: `tcf_block_find` in `net/sched/cls_api.c`.

use libc::{EINVAL, ENODEV, ENOENT, EOPNOTSUPP};
use underpass_netlink::RequestError;
use underpass_netlink::tc::{self, Header};

use crate::Router;

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

impl Router {
    /// The filters that a request means to change, or one of them. Those of a shared block are named by its index.
    ///
    /// # Errors
    /// `ENODEV`, or what Linux says of a qdisc, class or block that is not there or has no filters.
    pub(crate) fn find_block(&self, header: &Header) -> Result<Found, RequestError> {
        let found = self.find_block_to_show(header)?;
        if header.link != SHARED && found.block.link == SHARED {
            let text = "This filter block is shared. Please use the block index to manipulate the filters";
            return Err(RequestError::new(EOPNOTSUPP, text));
        }
        Ok(found)
    }

    /// The filters that a request means to show.
    ///
    /// # Errors
    /// As [`Router::find_block`].
    pub(crate) fn find_block_to_show(&self, header: &Header) -> Result<Found, RequestError> {
        let shared = |index| Found { block: Block::shared(index), parent: index, qdisc: index };
        if header.link == SHARED {
            let index = header.parent;
            let missing = RequestError::new(EINVAL, "Block of given index was not found");
            return self.filters.is_shared(index).then(|| shared(index)).ok_or(missing);
        }
        let link = self.links.get(header.link).ok_or(RequestError::errno(ENODEV))?;
        let unclassful = RequestError::new(EINVAL, "Qdisc not classful");
        let control = self.tc.get(header.link);
        let qdisc = match header.parent {
            0 => control.and_then(|control| control.root()).ok_or(unclassful.clone())?,
            parent => control
                .and_then(|control| control.lookup(tc::major(parent)))
                .ok_or(RequestError::new(EINVAL, "Parent Qdisc doesn't exists"))?,
        };
        let parent = if header.parent == 0 { qdisc.handle } else { header.parent };
        if !qdisc.kind.classful() {
            return Err(unclassful);
        }
        if !qdisc.kind.has_filters() {
            return Err(RequestError::new(EOPNOTSUPP, "Class doesn't support blocks"));
        }
        let class = tc::minor(parent) != 0;
        if class && !qdisc.has_class(parent) {
            return Err(RequestError::new(ENOENT, "Specified class doesn't exist"));
        }
        let point = qdisc.point(parent).ok_or(RequestError::errno(EINVAL))?;
        if point == Point::Egress && link.vrf_table().is_some() {
            return Err(RequestError::new(EOPNOTSUPP, EGRESS_OF_VRF));
        }
        let block = Block { link: header.link, point };
        let own = Found { block, parent, qdisc: qdisc.handle };
        Ok(self.filters.shared_by(block).map_or(own, shared))
    }
}
