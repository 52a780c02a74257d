//! What the packet path knows of IOAM: the router as a node of traces, and the options that it inserts.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{IntoVrf, LinkId, NextHopId, Via};

/// What a link is in IOAM traces: `net.ipv6.conf.*.ioam6_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoamLink {
    /// Whether traces of packets that come in by it are filled.
    pub enabled: bool,
    /// Whether what comes in by it was sent by the host itself.
    pub host: bool,
    /// Its id.
    pub id: u16,
    /// Its wide id.
    pub id_wide: u32,
}

/// Linux's defaults.
impl Default for IoamLink {
    fn default() -> Self {
        Self { enabled: false, host: false, id: u16::MAX, id_wide: u32::MAX }
    }
}

/// What the router is in IOAM traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoamNode {
    /// `net.ipv6.ioam6_id`: 24 bits.
    pub id: u32,
    /// `net.ipv6.ioam6_id_wide`: 56 bits.
    pub id_wide: u64,
    /// Those that it knows, in rising order of their ids.
    pub namespaces: Box<[IoamNamespace]>,
}

impl IoamNode {
    /// A namespace by its id.
    #[inline]
    pub fn namespace(&self, id: u16) -> Option<&IoamNamespace> {
        let at = self.namespaces.binary_search_by_key(&id, |namespace| namespace.id).ok()?;
        self.namespaces.get(at)
    }
}

/// An IOAM namespace: `ip ioam namespace`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoamNamespace {
    /// Its id.
    pub id: u16,
    /// `data`.
    pub data: u32,
    /// `wide`.
    pub data_wide: u64,
    /// The opaque state snapshot of its schema as it lies in a trace: length, schema id, data.
    pub schema: Option<Box<[u8]>>,
}

/// Where an IOAM option goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoamMode {
    /// Into the packet's own header chain.
    Inline,
    /// Into an outer IPv6 header.
    Encap,
    /// `Inline` for what the host sends, `Encap` for what is forwarded.
    Auto,
}

/// Which packets an option is inserted into: `k` of `n`, the first ones. Each worker counts its own: none writes
/// to what another reads.
#[derive(Clone, Debug)]
pub struct IoamFrequency {
    /// So many …
    pub k: u32,
    /// … of so many; not 0.
    pub n: u32,
    /// Packets so far, of each worker.
    pub seen: Arc<[IoamSeen]>,
}

/// How many packets a worker has chosen from, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IoamSeen(AtomicU64);

impl IoamFrequency {
    /// Counts a packet of this worker, and says whether it is one of the `k`.
    #[inline]
    pub(crate) fn chooses(&self, worker: usize) -> bool {
        let Some(IoamSeen(seen)) = self.seen.get(worker) else { return false };
        let before = seen.load(Relaxed);
        seen.store(before.wrapping_add(1), Relaxed);
        before.checked_rem(self.n.into()).is_some_and(|place| place < self.k.into())
    }
}

impl PartialEq for IoamFrequency {
    fn eq(&self, other: &Self) -> bool {
        (self.k, self.n) == (other.k, other.n) && Arc::ptr_eq(&self.seen, &other.seen)
    }
}

impl Eq for IoamFrequency {}

/// Where in an inserted header the packet's own values go, in bytes from its start; 0 for nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoamPlaces {
    /// The hop limit of bit 0.
    pub hop_limit: u16,
    /// Two bytes: the id of the link that the packet came in by.
    pub ingress: u16,
    /// Four bytes: seconds.
    pub seconds: u16,
    /// Four bytes: microseconds.
    pub microseconds: u16,
    /// The hop limit of bit 8.
    pub hop_limit_wide: u16,
    /// Four bytes: the wide id of the link that the packet came in by.
    pub ingress_wide: u16,
}

/// Where a packet goes that its route does not send elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoamOnward {
    /// To this next hop.
    NextHop(NextHopId),
    /// To the neighbour that its destination is, on this link.
    OnLink(LinkId),
    /// Into a VRF, where it is looked up again.
    Vrf(IntoVrf),
}

/// The insertion of an IOAM option: `encap ioam6`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ioam {
    /// Where the option goes.
    pub mode: IoamMode,
    /// Which packets it goes into. `None`: all.
    pub frequency: Option<IoamFrequency>,
    /// The hop-by-hop options header, its next header field 0, to be filled: its trace filled but for what
    /// depends on the packet, that with what the host's own packets have.
    pub header: Box<[u8]>,
    /// Where what depends on the packet goes.
    pub places: IoamPlaces,
    /// Source of the outer header.
    pub source: Ipv6Addr,
    /// Destination of the outer header, and where that leads.
    pub via: Via,
    /// Where a packet goes whose destination stays as it was.
    pub onward: IoamOnward,
    /// The link of the route.
    pub link: LinkId,
}

impl Ioam {
    /// Destination of the outer header; `::` if there is none.
    #[inline(always)]
    pub const fn destination(&self) -> Ipv6Addr {
        match self.via.address {
            IpAddr::V6(address) => address,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each worker's packets the first `k` of `n`, whatever the others have.
    #[test]
    fn k_of_n_of_each_worker() {
        let seen = (0..2).map(|_| IoamSeen::default()).collect();
        let frequency = IoamFrequency { k: 2, n: 5, seen };
        let chosen = |worker, packets: usize| -> Vec<bool> {
            (0..packets).map(|_| frequency.chooses(worker)).collect()
        };
        assert_eq!(chosen(0, 4), [true, true, false, false]);
        assert_eq!(chosen(1, 1), [true]);
        assert_eq!(chosen(0, 8), [false, true, true, false, false, false, true, true]);
        assert_eq!(chosen(1, 2), [true, false]);
        assert_eq!(chosen(2, 1), [false], "there is no such worker");
    }
}
