//! Statistics of qdiscs, classes and actions, as attributes and as the structure of old. Linux: `net/core/gen_stats.c`.

use super::{TCA_PAD, TCA_STATS, TCA_STATS2, TCA_XSTATS};
use crate::reply::Reply;

const BASIC: u16 = 1;
const RATE_EST: u16 = 2;
const QUEUE: u16 = 3;
const APP: u16 = 4;
const PAD: u16 = 6;
const PKT64: u16 = 8;

/// What is counted of packets and of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u32,
    /// How often a limit was reached.
    pub overlimits: u32,
    /// Packets put back.
    pub requeues: u32,
    /// Packets in the queue.
    pub queued: u32,
    /// Bytes in the queue.
    pub backlog: u32,
    /// Bytes and packets a second, where they are estimated.
    pub rate: Option<[u32; 2]>,
}

/// What one kind counts besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Own {
    /// A structure, which old programs know too.
    Structure(Vec<u8>),
    /// Attributes.
    Attributes(Vec<u8>),
}

impl Own {
    fn write(&self, reply: &mut Reply<'_>) {
        match self {
            Self::Structure(bytes) => {
                reply.align_64(PAD);
                reply.attribute(APP, bytes);
            }
            Self::Attributes(bytes) => reply.attribute(APP, bytes),
        }
    }
}

impl Statistics {
    /// Writes `TCA_STATS2`, `TCA_STATS` and, for `own` if it is a structure, `TCA_XSTATS`. `own` is first in `TCA_STATS2` for
    /// qdiscs (`first`) and last for classes.
    pub fn write(&self, reply: &mut Reply<'_>, own: Option<&Own>, first: bool) {
        let nest = reply.nest_unflagged(TCA_STATS2);
        own.filter(|_| first).into_iter().for_each(|own| own.write(reply));
        self.write_attributes(reply);
        own.filter(|_| !first).into_iter().for_each(|own| own.write(reply));
        reply.end(nest);
        reply.align_64(TCA_PAD);
        reply.attribute(TCA_STATS, &self.tc_stats());
        if let Some(Own::Structure(own)) = own {
            reply.align_64(TCA_PAD);
            reply.attribute(TCA_XSTATS, own);
        }
    }

    /// Writes `TCA_STATS2` and `TCA_STATS` of what counts nothing.
    pub fn write_none(reply: &mut Reply<'_>) {
        let nest = reply.nest_unflagged(TCA_STATS2);
        reply.end(nest);
        reply.align_64(TCA_PAD);
        reply.attribute(TCA_STATS, &Self::default().tc_stats());
    }

    /// Writes `TCA_STATS_BASIC`, `TCA_STATS_RATE_EST` and `TCA_STATS_QUEUE`, which go into an attribute of the caller's.
    pub fn write_attributes(&self, reply: &mut Reply<'_>) {
        let mut basic = [0; 16];
        basic[..8].copy_from_slice(&self.bytes.to_ne_bytes());
        basic[8..12].copy_from_slice(&(self.packets as u32).to_ne_bytes());
        reply.align_64(PAD);
        reply.attribute(BASIC, &basic);
        if self.packets > u64::from(u32::MAX) {
            reply.u64_aligned(PKT64, self.packets, PAD);
        }
        if let Some(rate) = self.rate {
            reply.align_64(PAD);
            reply.attribute(RATE_EST, &words(&rate));
        }
        let queue = [self.queued, self.backlog, self.drops, self.requeues, self.overlimits];
        reply.attribute(QUEUE, &words(&queue));
    }

    /// `struct tc_stats`.
    pub fn tc_stats(&self) -> Vec<u8> {
        let [bps, pps] = self.rate.unwrap_or_default();
        let rest = [
            self.packets as u32,
            self.drops,
            self.overlimits,
            bps,
            pps,
            self.queued,
            self.backlog,
            0, // fills up to a multiple of 8
        ];
        [&self.bytes.to_ne_bytes()[..], &words(&rest)].concat()
    }
}

/// Words of 32 bits in host byte order.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
