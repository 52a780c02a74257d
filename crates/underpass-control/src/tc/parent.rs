//! What a filter is attached to. Linux: `tcf_block_find` in `net/sched/cls_api.c`.

use libc::{EINVAL, ENODEV, ENOENT, EOPNOTSUPP};
use underpass_netlink::Refusal;
use underpass_netlink::tc::{self, Header};

use crate::Router;

/// A place where filters are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Block {
    /// Interface index.
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
    /// The filters that a request means.
    ///
    /// # Errors
    /// `ENODEV`, or what Linux says of a qdisc, class or block that is not there or has no filters.
    pub(crate) fn find_block(&self, header: &Header) -> Result<Found, Refusal> {
        if header.link == u32::MAX {
            return Err(Refusal::new(EINVAL, "Block of given index was not found"));
        }
        self.links.get(header.link).ok_or(Refusal::errno(ENODEV))?;
        let unclassful = Refusal::new(EINVAL, "Qdisc not classful");
        let control = self.tc.get(header.link);
        let qdisc = match header.parent {
            0 => control.and_then(|control| control.root()).ok_or(unclassful.clone())?,
            parent => control
                .and_then(|control| control.lookup(tc::major(parent)))
                .ok_or(Refusal::new(EINVAL, "Parent Qdisc doesn't exists"))?,
        };
        let parent = if header.parent == 0 { qdisc.handle } else { header.parent };
        if !qdisc.kind.classful() {
            return Err(unclassful);
        }
        if !qdisc.kind.has_filters() {
            return Err(Refusal::new(EOPNOTSUPP, "Class doesn't support blocks"));
        }
        let class = tc::minor(parent) != 0;
        if class && !qdisc.has_class(parent) {
            return Err(Refusal::new(ENOENT, "Specified class doesn't exist"));
        }
        let point = qdisc.point(parent).ok_or(Refusal::errno(EINVAL))?;
        Ok(Found { block: Block { link: header.link, point }, parent, qdisc: qdisc.handle })
    }
}
