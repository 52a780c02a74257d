//! Labels, what they lead to, and labelled packets.

use underpass_engine::tables::{LabelAction, Push};
use underpass_packet::mpls::{Entry, MAX_LABEL};
use underpass_packet::{IntoBytes, ethernet};

use crate::packets;
use crate::random::Random;
use crate::router::Router;

/// How many labels may lead somewhere.
pub const LABELS: usize = 24;

/// A label's number.
pub fn number(label: usize) -> u32 {
    match label {
        0 => MAX_LABEL,
        1 => 1 << 18,
        _ => 14 + label as u32,
    }
}

fn any(random: &mut Random) -> u32 {
    match random.below(20) {
        0 => random.next() as u32 & MAX_LABEL,
        _ => number(random.below(LABELS as u64) as usize),
    }
}

/// What a label leads to.
pub fn action(router: &Router, random: &mut Random) -> Option<LabelAction> {
    let next_hop = router.any_next_hop(random);
    Some(match random.below(12) {
        0 => return None,
        1..5 => LabelAction::Swap { label: any(random), next_hop },
        5..8 => LabelAction::SwapPush { labels: [any(random), any(random)], next_hop },
        8..11 => LabelAction::Pop { next_hop, propagate: random.below(2) == 0 },
        _ => LabelAction::Act(router.actions[random.below(router.actions.len() as u64) as usize].0),
    })
}

/// Labels for IP packets.
pub fn push(router: &Router, random: &mut Random) -> Push {
    let count = if random.below(10) == 0 { 1 + random.below(12) } else { 1 + random.below(3) };
    let labels = (1..=count).flat_map(|n| {
        let entry = Entry::new(any(random), 0, n == count, 0);
        entry.as_bytes().to_vec()
    });
    let labels = labels.collect();
    let ttl = (random.below(3) == 0).then(|| random.below(256) as u8);
    Push { labels, ttl, next_hop: router.any_next_hop(random) }
}

/// A labelled packet that comes in by a device whose look-up is that of a VRF; what its EtherType is.
pub fn packet(router: &Router, vrf: usize, random: &mut Random) -> (u16, Vec<u8>) {
    let count = if random.below(10) == 0 { 1 + random.below(8) } else { 1 + random.below(2) };
    let mut bytes = Vec::new();
    for n in 1..=count {
        let last = (n == count) ^ (random.below(60) == 0);
        let ttl = if random.below(20) == 0 { random.below(3) as u8 } else { random.next() as u8 };
        bytes.extend_from_slice(Entry::new(any(random), random.below(8) as u8, last, ttl).as_bytes());
    }
    match random.below(12) {
        0 => bytes.extend((0..random.below(50)).map(|_| random.next() as u8)),
        1..6 => bytes.extend(packets::packet4(router, vrf, random, 1)),
        _ => bytes.extend(packets::packet6(router, vrf, random, 1)),
    }
    (ethernet::MPLS, bytes)
}
