//! Which filter takes a packet: Linux's `net/sched/cls_*.c`.

mod ematch;
mod flower;
mod u32;

pub(crate) use ematch::hold;
pub(crate) use flower::FlowerTable;
pub(crate) use u32::{Table as U32Walked, Walk, walk};
