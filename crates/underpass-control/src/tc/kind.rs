//! The kinds of qdiscs: the parameters of each, and what a request changes of them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use libc::{EINVAL, ENOENT, EOPNOTSUPP};
use underpass_engine::counters::QueueId;
use underpass_engine::qos::{LinkLayer, Rate, RateConfig};
use underpass_engine::tables::{CAKE_TINS, FifoLimit};
use underpass_netlink::tc::{
    self, TCA_OPTIONS, cake, codel, fq, fq_codel, htb, netem, queue, rate, red, sfq, tbf,
};
use underpass_netlink::{Attribute, Reply, RequestError};

use super::htb::Htb;
use super::leaf::Leaf;
use crate::link::Link;

/// Kind and parameters of a qdisc.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Kind {
    /// `ingress`: filters for what comes in.
    Ingress,
    /// `clsact`: filters for what comes in and for what goes out.
    Clsact,
    /// `noqueue`: packets are sent at once.
    Noqueue,
    /// `pfifo` and `bfifo`.
    Fifo(FifoLimit),
    /// `pfifo_fast`: what most of Linux's links have.
    PfifoFast,
    /// `prio`.
    Prio {
        /// Bands and priorities.
        settings: queue::Prio,
        /// What is in each band.
        bands: Vec<Leaf>,
    },
    /// `tbf`.
    Tbf {
        /// Rates and bursts.
        settings: Box<tbf::Tbf>,
        /// What is in it.
        child: Leaf,
    },
    /// `htb`.
    Htb(Box<Htb>),
    /// `fq_codel`.
    FqCodel(Box<fq_codel::FqCodel>),
    /// `netem`.
    Netem {
        /// What it does to packets.
        settings: Box<netem::Netem>,
        /// What is in it, if anything is.
        child: Option<Leaf>,
        /// Another with each change.
        change: u64,
    },
    /// `codel`.
    Codel(codel::Codel),
    /// `red`.
    Red {
        /// When it drops.
        settings: Box<red::Red>,
        /// What is in it.
        child: Leaf,
        /// Another with each change.
        change: u64,
        /// Where numbers begin.
        seed: u64,
    },
    /// `fq`.
    Fq {
        /// Limits and rates.
        settings: Box<fq::Fq>,
        /// What the packet path counts the rest of its own as.
        more: Option<QueueId>,
    },
    /// `cake`.
    Cake {
        /// The rate, tins and limits.
        settings: Box<cake::Cake>,
        /// What the packet path counts each tin as.
        tins: [Option<QueueId>; CAKE_TINS],
        /// The rate that it was made with.
        capacity: u64,
        /// Another with each change that lets the lengths of packets begin anew.
        change: u64,
        /// Where numbers begin.
        seed: u64,
    },
    /// `sfq`.
    Sfq {
        /// Queues and limits.
        settings: sfq::Sfq,
        /// Where hashes begin.
        seed: u32,
    },
}

/// Longest frame of a link, in bytes. Linux: `psched_mtu`.
pub(super) fn frame(link: &Link) -> u32 {
    link.mtu.saturating_add(link.header())
}

/// A rate as the packet path takes it.
pub(super) const fn config(rate: &tc::Rate) -> RateConfig {
    RateConfig {
        bytes_per_second: rate.bytes,
        overhead: rate.overhead,
        mpu: rate.mpu,
        link_layer: if rate.link_layer == rate::ATM { LinkLayer::Atm } else { LinkLayer::Ethernet },
    }
}

fn parse_tbf(options: Option<Attribute<'_>>) -> Result<Box<tbf::Tbf>, RequestError> {
    let time = |rate: &tc::Rate, bytes| Rate::new(config(rate)).nanos(bytes);
    let length = |rate: &tc::Rate, nanos| config(rate).bytes(nanos);
    tbf::Tbf::parse(options, time, length).map(Box::new)
}

/// Where the numbers of a `netem` begin, unless the request says so.
fn seed() -> u64 {
    RandomState::new().hash_one(0)
}

const UNKNOWN: RequestError = RequestError::new(ENOENT, "Specified qdisc kind is unknown");

impl Kind {
    /// Whether there is a kind of this name for a place.
    ///
    /// # Errors
    /// `ENOENT` for a kind that there is not; what Linux says of one in the wrong place.
    pub fn check(name: &str, parent: u32) -> Result<(), RequestError> {
        let hook = match name {
            "ingress" | "clsact" => true,
            "noqueue" | "pfifo" | "bfifo" | "pfifo_fast" | "prio" | "tbf" | "htb" | "fq_codel" | "netem"
            | "codel" | "sfq" | "red" | "fq" | "cake" => false,
            _ => return Err(UNKNOWN),
        };
        match (hook, parent == tc::INGRESS) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(RequestError::errno(EOPNOTSUPP)),
            (false, true) => {
                let text = "Specified parent ID is reserved for ingress and clsact Qdiscs";
                Err(RequestError::new(EINVAL, text))
            }
        }
    }

    /// Makes a qdisc of a request for a link.
    ///
    /// # Errors
    /// `ENOENT` for a kind that there is not; what Linux says of options.
    pub fn parse(name: &str, options: Option<Attribute<'_>>, link: &Link) -> Result<Self, RequestError> {
        Ok(match name {
            "ingress" => Self::Ingress,
            "clsact" => Self::Clsact,
            "pfifo" => {
                let limit = queue::parse_limit(options)?;
                Self::Fifo(FifoLimit::Packets(limit.unwrap_or(link.tx_queue_len)))
            }
            "bfifo" => {
                let limit = queue::parse_limit(options)?;
                let default = link.tx_queue_len.wrapping_mul(frame(link));
                Self::Fifo(FifoLimit::Bytes(limit.unwrap_or(default)))
            }
            "pfifo_fast" => Self::PfifoFast,
            "prio" => {
                let settings = queue::Prio::parse(options)?;
                let band = || Leaf::queue(FifoLimit::Packets(link.tx_queue_len));
                Self::Prio { settings, bands: (0..settings.bands).map(|_| band()).collect() }
            }
            "tbf" => {
                let settings = parse_tbf(options)?;
                let child = Leaf::of_tbf(settings.limit);
                Self::Tbf { settings, child }
            }
            "htb" => Self::Htb(Box::new(Htb::new(htb::Htb::parse(options)?, link))),
            "fq_codel" => {
                let mut settings = fq_codel::FqCodel::new(frame(link));
                settings.change(options, true)?;
                Self::FqCodel(Box::new(settings))
            }
            "netem" => {
                let settings = Box::new(netem::Netem::parse(options, None, seed())?);
                Self::Netem { settings, child: None, change: 0 }
            }
            "fq" => {
                let mut settings = Box::new(fq::Fq::new(frame(link)));
                settings.change(options)?;
                Self::Fq { settings, more: None }
            }
            "cake" => {
                let mut settings = Box::new(cake::Cake::default());
                settings.change(options)?;
                let capacity = settings.rate;
                Self::Cake { settings, tins: [None; CAKE_TINS], capacity, change: 0, seed: seed() }
            }
            "codel" => {
                let mut settings = codel::Codel::default();
                settings.change(options)?;
                Self::Codel(settings)
            }
            "red" => {
                let settings = Box::new(red::Red::parse(options, 0)?);
                let child = Leaf::of_tbf(settings.limit);
                Self::Red { settings, child, change: 0, seed: seed() }
            }
            "sfq" => Self::Sfq { settings: sfq::Sfq::parse(options, frame(link))?, seed: seed() as u32 },
            "noqueue" => Self::Noqueue,
            _ => return Err(UNKNOWN),
        })
    }

    /// Changes the parameters of the qdisc.
    ///
    /// # Errors
    /// `EINVAL` for a kind that Linux cannot change; what Linux says of options.
    pub fn change(&mut self, options: Attribute<'_>, link: &Link) -> Result<Change, RequestError> {
        let mut change = Change::default();
        match self {
            Self::Ingress
            | Self::Clsact
            | Self::Noqueue
            | Self::PfifoFast
            | Self::Htb(_)
            | Self::Sfq { .. } => {
                let text = "Change operation not supported by specified qdisc";
                return Err(RequestError::new(EINVAL, text));
            }
            Self::Fifo(limit) => {
                let wanted = queue::parse_limit(Some(options))?.unwrap_or_default();
                *limit = limited(*limit, wanted);
            }
            Self::Prio { settings, bands } => {
                *settings = queue::Prio::parse(Some(options))?;
                let count = settings.bands as usize;
                change.removed = bands.split_off(count.min(bands.len()));
                bands.resize_with(count, || Leaf::queue(FifoLimit::Packets(link.tx_queue_len)));
            }
            Self::Tbf { settings, child } => {
                *settings = parse_tbf(Some(options))?;
                match child {
                    Leaf::Queue { limit, .. } if *limit == Leaf::NOTHING && settings.limit > 0 => {
                        *limit = FifoLimit::Bytes(settings.limit);
                    }
                    Leaf::Queue { limit, .. } => *limit = limited(*limit, settings.limit),
                    Leaf::Qdisc(handle) => change.limit_of = Some((*handle, settings.limit)),
                }
            }
            Self::FqCodel(settings) => settings.change(Some(options), false)?,
            Self::Codel(settings) => settings.change(Some(options))?,
            Self::Fq { settings, more: _ } => settings.change(Some(options))?,
            Self::Cake { settings, change: count, tins: _, capacity: _, seed: _ } => {
                *count = count.wrapping_add(settings.change(Some(options))?.into());
            }
            Self::Red { settings, child, change: count, seed: _ } => {
                **settings = red::Red::parse(Some(options), settings.flags)?;
                *count = count.wrapping_add(1);
                if settings.limit > 0 {
                    // Another queue takes the place of what was there.
                    change.removed.push(std::mem::replace(child, Leaf::of_tbf(settings.limit)));
                }
            }
            Self::Netem { settings, child: _, change } => {
                **settings = netem::Netem::parse(Some(options), Some(settings), seed())?;
                *change = change.wrapping_add(1);
            }
        }
        Ok(change)
    }

    /// `TCA_KIND`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Clsact => "clsact",
            Self::Noqueue => "noqueue",
            Self::Fifo(FifoLimit::Packets(_)) => "pfifo",
            Self::Fifo(FifoLimit::Bytes(_)) => "bfifo",
            Self::PfifoFast => "pfifo_fast",
            Self::Prio { .. } => "prio",
            Self::Tbf { .. } => "tbf",
            Self::Htb(_) => "htb",
            Self::FqCodel(_) => "fq_codel",
            Self::Netem { .. } => "netem",
            Self::Codel(_) => "codel",
            Self::Fq { .. } => "fq",
            Self::Cake { .. } => "cake",
            Self::Sfq { .. } => "sfq",
            Self::Red { .. } => "red",
        }
    }

    /// Writes `TCA_OPTIONS`. `direct`: packets that an `htb` sent unshaped.
    pub fn write(&self, reply: &mut Reply<'_>, direct: u32) {
        match self {
            Self::Ingress | Self::Clsact => {
                let nest = reply.nest_unflagged(TCA_OPTIONS);
                reply.end(nest);
            }
            Self::Noqueue => {}
            Self::Fifo(FifoLimit::Packets(limit) | FifoLimit::Bytes(limit)) => {
                queue::write_limit(reply, *limit)
            }
            Self::PfifoFast => queue::Prio::FAST.write(reply),
            Self::Prio { settings, .. } => settings.write(reply),
            Self::Tbf { settings, .. } => settings.write(reply),
            Self::Htb(htb) => htb.settings.write(reply, htb.direct_limit, direct),
            Self::FqCodel(settings) => settings.write(reply),
            Self::Netem { settings, .. } => settings.write(reply),
            Self::Codel(settings) => settings.write(reply),
            Self::Fq { settings, .. } => settings.write(reply),
            Self::Cake { settings, .. } => settings.write(reply),
            Self::Sfq { settings, .. } => settings.write(reply),
            Self::Red { settings, .. } => settings.write(reply),
        }
    }

    /// Whether it is `ingress` or `clsact`.
    pub const fn is_hook(&self) -> bool {
        matches!(self, Self::Ingress | Self::Clsact)
    }

    /// Whether it has classes of any kind.
    pub const fn classful(&self) -> bool {
        !matches!(self, Self::Noqueue | Self::Fifo(_) | Self::PfifoFast | Self::Codel(_) | Self::Fq { .. })
    }

    /// Whether it has filters.
    pub const fn has_filters(&self) -> bool {
        self.classful() && !matches!(self, Self::Tbf { .. } | Self::Netem { .. } | Self::Red { .. })
    }
}

/// What a change of a qdisc does to others.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// What was in classes that are no more.
    pub removed: Vec<Leaf>,
    /// The qdisc of this handle, if it is a plain queue, has this limit now.
    pub limit_of: Option<(u32, u32)>,
}

/// The same kind of queue with another limit.
pub(super) const fn limited(queue: FifoLimit, limit: u32) -> FifoLimit {
    match queue {
        FifoLimit::Packets(_) => FifoLimit::Packets(limit),
        FifoLimit::Bytes(_) => FifoLimit::Bytes(limit),
    }
}
