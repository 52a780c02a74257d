//! `sample`: packets that somebody wants to see one of so many of. Linux: `tcf_sample_act`, `psample_sample_packet`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use underpass_packet::ethernet;

use crate::buffer::{Packet, Pool};
use crate::qos::{Place, uncounted};
use crate::tables::Sample;
use crate::worker::path::{Path, Worker};

/// Samples that wait for whoever owns the worker; what comes then is lost.
const ROOM: usize = 64;

/// Free slots that samples leave to packets.
const RESERVE: usize = 256;

/// Bytes of a packet before its EtherType.
const ADDRESSES: usize = ethernet::Header::LEN - 2;

/// A packet that was sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketSample {
    /// What the action says of it.
    pub sample: Arc<Sample>,
    /// Its number in its group. A number that is missing was lost.
    pub number: u32,
    /// The interface index of the link that it came in by, 0 if by none.
    pub received_by: u32,
    /// The interface index of the link that it leaves by, 0 where it comes in.
    pub leaves_by: u32,
    /// Its length, without a VLAN tag.
    pub length: u32,
    /// Its EtherType, behind a VLAN tag.
    pub protocol: u16,
    /// Its first bytes, without a VLAN tag.
    pub bytes: Vec<u8>,
}

/// A sample that waits, with its first bytes.
struct Waiting {
    sample: Arc<Sample>,
    number: u32,
    interfaces: [u32; 2],
    length: u32,
    protocol: u16,
    bytes: Packet,
}

/// The samples of a worker.
pub(crate) struct Samples(Vec<Waiting>);

impl Default for Samples {
    fn default() -> Self {
        Self(Vec::with_capacity(ROOM))
    }
}

impl<const COUNT: bool> Worker<COUNT> {
    /// The packets that were sampled since the last call.
    pub fn samples(&mut self) -> Vec<PacketSample> {
        let Path { hooks, pool, .. } = &mut self.path;
        let owned = |waiting: Waiting| {
            let Waiting { sample, number, interfaces: [received_by, leaves_by], length, protocol, .. } =
                waiting;
            let bytes = waiting.bytes.bytes().to_vec();
            pool.give(waiting.bytes);
            PacketSample { sample, number, received_by, leaves_by, length, protocol, bytes }
        };
        hooks.samples.0.drain(..).map(owned).collect()
    }
}

/// Takes a sample of a packet, if it is its turn and anybody is there to see it.
#[inline]
pub(crate) fn sample<const COUNT: bool>(
    path: &mut Path<COUNT>,
    sample: &Arc<Sample>,
    packet: &Packet,
    place: &Place,
) {
    // `get_random_u32_below`.
    let below = (u64::from(path.hooks.random()) * u64::from(sample.rate)) >> 32;
    if below == 0 && sample.heard {
        take(path, sample, packet, place);
    }
}

#[cold]
#[inline(never)]
fn take<const COUNT: bool>(path: &mut Path<COUNT>, sample: &Arc<Sample>, packet: &Packet, place: &Place) {
    let number = sample.next.fetch_add(1, Relaxed);
    let Path { hooks, pool, .. } = path;
    if hooks.samples.0.len() >= ROOM || pool.available() < RESERVE {
        return;
    }
    let received_by = place.received_by.map_or(0, |(_, ifindex)| ifindex);
    let interfaces = if place.ingress { [place.ifindex, 0] } else { [received_by, place.ifindex] };
    // Linux has the tag beside the packet.
    let tag = uncounted(packet, false) as usize;
    let headless = packet.tag().headless;
    let addresses = if headless == 0 { ADDRESSES } else { 0 };
    let behind = if headless == 0 { ADDRESSES + tag } else { tag.saturating_sub(2) };
    let length = packet.len().saturating_sub(tag) as u32;
    let most = sample.truncate.unwrap_or(u32::MAX).min(length).min(u16::MAX.into()) as usize;
    let ethertype = packet.bytes().get(behind..).and_then(|bytes| bytes.first_chunk());
    let protocol = match ethertype {
        Some(ethertype) if headless == 0 || tag != 0 => u16::from_be_bytes(*ethertype),
        _ => headless,
    };
    if let Some(bytes) = copy(pool, packet.bytes(), (addresses, tag), most) {
        let sample = Arc::clone(sample);
        hooks.samples.0.push(Waiting { sample, number, interfaces, length, protocol, bytes });
    }
}

/// The first bytes of a packet, without those of its tag behind the addresses.
fn copy(pool: &mut Pool, bytes: &[u8], (addresses, tag): (usize, usize), most: usize) -> Option<Packet> {
    let mut copy = pool.take_for(most)?;
    let behind = bytes.iter().skip(addresses + tag);
    let from = bytes.iter().take(addresses).chain(behind);
    copy.bytes_mut().iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    Some(copy)
}
