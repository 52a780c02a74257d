//! The classes of qdiscs as places: which there are, what is in them, where their filters are.

use libc::{EINVAL, EOPNOTSUPP};
use underpass_engine::counters::QueueId;
use underpass_engine::tables::FifoLimit;
use underpass_netlink::{RequestError, tc};

use super::parent::Point;
use super::{Kind, Qdisc};
use crate::link::Link;

/// What a class queues its packets in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Leaf {
    /// A plain queue that tc made by itself.
    Queue {
        /// What it holds.
        limit: FifoLimit,
        /// What the packet path counts it as.
        queue: Option<QueueId>,
    },
    /// The qdisc of this handle.
    Qdisc(u32),
}

impl Leaf {
    /// The limit of Linux's `noop`, which drops all.
    pub const NOTHING: FifoLimit = FifoLimit::Packets(0);

    /// A plain queue.
    pub const fn queue(limit: FifoLimit) -> Self {
        Self::Queue { limit, queue: None }
    }

    /// What a `tbf` queues in by itself.
    pub const fn of_tbf(limit: u32) -> Self {
        Self::queue(if limit > 0 { FifoLimit::Bytes(limit) } else { Self::NOTHING })
    }

    /// The handle of the qdisc in it, or 0.
    pub const fn handle(&self) -> u32 {
        match self {
            Self::Queue { .. } => 0,
            Self::Qdisc(handle) => *handle,
        }
    }
}

/// The band that a class of a `prio` is, from 0.
pub(super) fn band(class: u32) -> usize {
    (tc::minor(class) as usize).wrapping_sub(1)
}

impl Qdisc {
    /// Whether there is a class of this number. Linux: `find` of the qdisc.
    pub fn has_class(&self, class: u32) -> bool {
        match &self.kind {
            Kind::Ingress | Kind::Tbf { .. } | Kind::Netem { .. } | Kind::Red { .. } => true,
            Kind::Clsact => matches!(tc::minor(class), tc::MIN_INGRESS | tc::MIN_EGRESS),
            Kind::Prio { bands, .. } => band(class) < bands.len(),
            Kind::Htb(htb) => htb.get(class).is_some(),
            Kind::Noqueue
            | Kind::Fifo(_)
            | Kind::PfifoFast
            | Kind::FqCodel(_)
            | Kind::Codel(_)
            | Kind::Fq { .. }
            | Kind::Cake { .. }
            | Kind::Sfq { .. } => false,
        }
    }

    /// Where the filters are of the qdisc (minor number 0) or of a class of it. Linux: `tcf_block` of the qdisc.
    pub fn point(&self, class: u32) -> Option<Point> {
        let itself = tc::minor(class) == 0;
        match &self.kind {
            Kind::Ingress => Some(Point::Ingress),
            Kind::Clsact => match tc::minor(class) {
                tc::MIN_INGRESS => Some(Point::Ingress),
                tc::MIN_EGRESS => Some(Point::Egress),
                _ => None,
            },
            Kind::Htb(_) if !itself => Some(Point::Class(class)),
            Kind::Prio { .. } | Kind::FqCodel(_) | Kind::Sfq { .. } | Kind::Cake { .. } | Kind::Htb(_)
                if itself =>
            {
                Some(Point::Qdisc(self.handle))
            }
            _ => None,
        }
    }

    /// What is in a class that there is; `None` if nothing can be.
    pub fn leaf(&self, class: u32) -> Option<&Leaf> {
        match &self.kind {
            Kind::Prio { bands, .. } => bands.get(band(class)),
            Kind::Tbf { child, .. } | Kind::Red { child, .. } => Some(child),
            Kind::Netem { child, .. } => child.as_ref(),
            Kind::Htb(htb) => htb.get(class)?.leaf.as_ref(),
            Kind::Clsact => self.ingress.as_ref().filter(|_| tc::minor(class) == tc::MIN_INGRESS),
            _ => None,
        }
    }

    /// Puts a qdisc into a class that there is, or leaves the class to what it has by itself. Returns what was there.
    ///
    /// # Errors
    /// `EINVAL` if the class has others below it, `EOPNOTSUPP` if there are never qdiscs in classes of this one.
    pub fn graft(&mut self, class: u32, link: &Link, new: Option<u32>) -> Result<Option<Leaf>, RequestError> {
        let of_link = Leaf::queue(FifoLimit::Packets(link.tx_queue_len));
        let unsupported = RequestError::errno(EOPNOTSUPP);
        let (place, own) = match &mut self.kind {
            Kind::Prio { bands, .. } => (bands.get_mut(band(class)), of_link),
            Kind::Tbf { child, .. } | Kind::Red { child, .. } => (Some(child), Leaf::queue(Leaf::NOTHING)),
            Kind::Htb(htb) => (htb.get_mut(class).and_then(|class| class.leaf.as_mut()), of_link),
            Kind::Netem { child, .. } => return Ok(std::mem::replace(child, new.map(Leaf::Qdisc))),
            Kind::Clsact if tc::minor(class) == tc::MIN_INGRESS => {
                return Ok(std::mem::replace(&mut self.ingress, new.map(Leaf::Qdisc)));
            }
            _ => return Err(unsupported),
        };
        let place = place.ok_or(RequestError::errno(EINVAL))?;
        Ok(Some(std::mem::replace(place, new.map_or(own, Leaf::Qdisc))))
    }
}
