//! The kinds of qdiscs: what each is told, which classes it has, what is in them.

#![allow(dead_code, reason = "filters and classes come next")]

use libc::{EINVAL, EOPNOTSUPP};
use underpass_netlink::tc::{self, TCA_OPTIONS};
use underpass_netlink::{Attribute, Refusal, Reply};

use super::Qdisc;
use super::parent::Point;
use crate::link::Link;

/// What a qdisc is and was told.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Kind {
    /// `ingress`: filters for what comes in.
    Ingress,
    /// `clsact`: filters for what comes in and for what goes out.
    Clsact,
    /// `noqueue`: packets are sent at once.
    Noqueue,
    /// `pfifo_fast`: what most of Linux's links have.
    PfifoFast,
}

/// What a class queues its packets in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Leaf {
    /// Nothing: packets are dropped.
    None,
    /// A queue that tc made by itself.
    Default,
    /// The qdisc of this handle.
    Qdisc(u32),
}

impl Kind {
    /// Makes a qdisc of a request for a place on a link.
    ///
    /// # Errors
    /// `ENOENT` for a kind that there is not; what Linux says of options.
    pub fn parse(
        name: Option<Attribute<'_>>,
        options: Option<Attribute<'_>>,
        parent: u32,
        _link: &Link,
    ) -> Result<Self, Refusal> {
        let kind = match name.map(|name| name.text()).as_deref() {
            Some("ingress") => Self::Ingress,
            Some("clsact") => Self::Clsact,
            _ => return Err(Refusal::new(libc::ENOENT, "Specified qdisc kind is unknown")),
        };
        if kind.is_hook() != (parent == tc::INGRESS) {
            let text = "Specified parent ID is reserved for ingress and clsact Qdiscs";
            return Err(if kind.is_hook() { Refusal::errno(EOPNOTSUPP) } else { Refusal::new(EINVAL, text) });
        }
        let _ = options; // neither of the two has any
        Ok(kind)
    }

    /// Changes what the qdisc was told.
    ///
    /// # Errors
    /// `EINVAL` for a kind that Linux cannot change.
    pub fn change(&mut self, _options: Attribute<'_>, _link: &Link) -> Result<(), Refusal> {
        Err(Refusal::new(EINVAL, "Change operation not supported by specified qdisc"))
    }

    /// `TCA_KIND`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Clsact => "clsact",
            Self::Noqueue => "noqueue",
            Self::PfifoFast => "pfifo_fast",
        }
    }

    /// Writes `TCA_OPTIONS`.
    pub fn write(&self, reply: &mut Reply<'_>) {
        match self {
            Self::Ingress | Self::Clsact => {
                let nest = reply.nest_unflagged(TCA_OPTIONS);
                reply.end(nest);
            }
            Self::Noqueue => {}
            Self::PfifoFast => tc::queue::Prio::FAST.write(reply),
        }
    }

    /// Whether it is `ingress` or `clsact`.
    pub const fn is_hook(&self) -> bool {
        matches!(self, Self::Ingress | Self::Clsact)
    }

    /// Whether it has classes of any kind.
    pub const fn classful(&self) -> bool {
        self.is_hook()
    }

    /// Whether there can be qdiscs in its classes.
    pub const fn takes_qdiscs(&self) -> bool {
        false
    }

    /// Whether it has filters.
    pub const fn has_filters(&self) -> bool {
        self.is_hook()
    }
}

impl Qdisc {
    /// Whether there is a class of this id. Linux: `find` of the qdisc.
    pub fn has_class(&self, class: u32) -> bool {
        match self.kind {
            Kind::Ingress => true,
            Kind::Clsact => matches!(tc::minor(class), tc::MIN_INGRESS | tc::MIN_EGRESS),
            Kind::Noqueue | Kind::PfifoFast => false,
        }
    }

    /// Where the filters are of the qdisc (minor number 0) or of a class of it. Linux: `tcf_block` of the qdisc.
    pub fn point(&self, class: u32) -> Option<Point> {
        match self.kind {
            Kind::Ingress => Some(Point::Ingress),
            Kind::Clsact => match tc::minor(class) {
                tc::MIN_INGRESS => Some(Point::Ingress),
                tc::MIN_EGRESS => Some(Point::Egress),
                _ => None,
            },
            Kind::Noqueue | Kind::PfifoFast => None,
        }
    }

    /// Puts a qdisc into a class that there is, or leaves the class to what it has by itself. Returns what was there.
    ///
    /// # Errors
    /// `EINVAL` if there can be nothing in it.
    pub fn graft(&mut self, _class: u32, _link: &Link, _new: Option<u32>) -> Result<Leaf, Refusal> {
        Err(Refusal::errno(EINVAL))
    }

    /// What is in a class that there is; `None` if nothing can be.
    pub const fn leaf(&self, _class: u32) -> Option<&Leaf> {
        None
    }
}
