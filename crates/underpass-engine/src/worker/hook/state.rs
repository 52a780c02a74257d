//! What a worker keeps for the hooks of traffic control.

use crate::buffer::Packet;
use crate::counters::TcCounterId;
use crate::qos::{Lease, OuterKey, Place};
use crate::tables::{LinkId, TcActionId};
use crate::worker::hook::sample::Samples;

/// What a worker keeps for traffic control.
pub(crate) struct Hooks {
    /// What it has taken out of shared buckets, by action, and of which generation.
    leases: Vec<(u64, Lease)>,
    pub(crate) random: u64,
    /// Packets that somebody wants to see.
    pub(crate) samples: Samples,
    /// Packets on their way to another link.
    pub(crate) redirected: Vec<Redirected>,
    /// Those that go on just now, and of these what does not leave by a port.
    pub(crate) going: Vec<Redirected>,
    pub(crate) others: Vec<Redirected>,
    /// What was taken from the queue of a port to be classified.
    pub(crate) leaving: Vec<Packet>,
    /// The outer header of a packet that has just come out of an `external` tunnel, and is about to be classified there.
    pub(crate) outer: Option<OuterKey>,
    /// Bytes of outer headers before it which a device gets that it is sent to from there.
    pub(crate) before: usize,
    /// The link that the packets of the burst have come in by, and its interface index.
    pub(crate) received_by: Option<(LinkId, u32)>,
}

/// A packet that goes on at another link.
pub(crate) struct Redirected {
    pub(crate) packet: Packet,
    pub(crate) to: LinkId,
    pub(crate) side: Side,
    /// Where it was taken from.
    pub(crate) from: Place,
    /// Whether it is a copy, of which an ifb does not know where it belongs.
    pub(crate) copy: bool,
    /// Of the action that has redirected it: counts those that are refused where they go.
    pub(crate) counter: TcCounterId,
}

/// How a packet goes on at another link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It comes in there.
    Ingress,
    /// It is to be sent by it.
    Egress,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            leases: Vec::new(),
            samples: Samples::default(),
            random: 0x2545_f491_4f6c_dd1d,
            redirected: Vec::new(),
            going: Vec::new(),
            others: Vec::new(),
            leaving: Vec::new(),
            outer: None,
            before: 0,
            received_by: None,
        }
    }
}

impl Hooks {
    /// xorshift: good enough for those who ask for one packet of so many.
    pub(crate) fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as u32
    }

    /// What the worker has leased from a policer. An older one of the same id is gone with its bucket.
    #[inline]
    pub(crate) fn lease(&mut self, id: TcActionId, generation: u64) -> &mut Lease {
        let at = id.0 as usize;
        if self.leases.len() <= at {
            self.leases.resize(at + 1, (0, Lease::default()));
        }
        let (of, lease) = &mut self.leases[at];
        if *of != generation {
            (*of, *lease) = (generation, Lease::default());
        }
        lease
    }
}
