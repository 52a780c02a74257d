//! What a running router has counted: for `underpass stats` at a socket beside its own, and for Prometheus.
//!
//! Each connection to the socket gets one JSON document: [`Stats`], or [`Mpls`] to a line `mpls`, of all labels or
//! of one that the line names behind it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a running router has counted since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What became of all packets.
    pub totals: Totals,
    /// Packets dropped by the packet path, by reason; reasons that have not occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// By port.
    pub ports: Vec<Port>,
    /// By worker.
    pub workers: Vec<Worker>,
    /// What the kernel has carried by itself.
    #[serde(default)]
    pub fast_path: FastPath,
    /// By local SID.
    pub sids: Vec<Sid>,
    /// By SRv6 policy.
    #[serde(default)]
    pub policies: Vec<Policy>,
    /// By device that has received or sent labelled packets.
    #[serde(default)]
    pub mpls: Vec<MplsDevice>,
    /// What is configured so that it cannot do what it is for.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Packets that came in by devices with a program that carries packets in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastPath {
    /// Why there is no such program, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<String>,
    /// Packets that programs sent or dropped. They are among those of the totals.
    pub hits: u64,
    /// Packets that workers got instead, by cause.
    pub misses: BTreeMap<String, u64>,
}

/// What has been counted of MPLS since the router was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mpls {
    /// By label that has a route.
    pub labels: Vec<Label>,
    /// By device, as `ip stats show dev NAME group afstats` tells it.
    pub devices: Vec<MplsDevice>,
}

/// Packets that came with a label. One with several labels counts for each that this router looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The label.
    pub label: u32,
    /// Packets that were forwarded as its route says.
    pub packets: u64,
    /// Their bytes, as received from the label on.
    pub bytes: u64,
    /// Packets that were not.
    pub errors: u64,
}

/// Labelled packets of a device; bytes from the first label on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MplsDevice {
    /// The device.
    pub name: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Received with a label that had run out, or malformed.
    pub rx_errors: u64,
    /// Received where no labels are taken.
    pub rx_dropped: u64,
    /// Received with a label that leads nowhere.
    pub rx_noroute: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Too long to be sent.
    pub tx_errors: u64,
}

/// Every packet that came in or was made was sent, delivered or dropped, or is held:
/// `received + generated = sent + delivered + dropped + held`. A worker gives account between two bursts, so the sum is
/// exact whatever comes meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Came in by a port.
    pub received: u64,
    /// Made by the router: ICMP errors, fragments.
    pub generated: u64,
    /// Handed to a port to be sent.
    pub sent: u64,
    /// For the host.
    pub delivered: u64,
    /// Dropped for a reason.
    pub dropped: u64,
    /// Waiting for a neighbour or in a qdisc.
    #[serde(default)]
    pub held: u64,
    /// Times that a packet was moved to make room for headers.
    pub buffer_moves: u64,
    /// Times that headers found room before or in a packet.
    pub buffer_moves_avoided: u64,
}

/// A device, as a port of the router.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// `packet`, `xdp-native`, `xdp-generic` or `tun`.
    pub driver: String,
    /// `tcx`: a program there carries packets in the kernel. `tcx-peer`: so it does, and gives what leaves by the device to
    /// the other end of the veth pair at once. `xdp`: one in its driver does, and one at tcx what that does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_path: Option<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, with the link layer.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, with the link layer.
    pub tx_bytes: u64,
    /// What the port itself has dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Of what the workers have dropped, what came in by it, by reason. What waited in a queue and was dropped there is in none
    /// of the ports, nor is what a program in the kernel drops.
    #[serde(default)]
    pub path_drops: BTreeMap<String, u64>,
    /// Large segments that were cut, as the device does not take them.
    pub cut: u64,
    /// TCP segments and UDP datagrams that were put to others, so that the host takes them as one.
    #[serde(default)]
    pub coalesced: u64,
}

/// A thread that forwards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number, from 0.
    pub number: usize,
    /// The processor that it is bound to.
    pub processor: Option<usize>,
    /// What became of its packets.
    pub totals: Totals,
    /// Bursts that had packets.
    pub bursts: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Free slots for packets; what the rings of its ports have is not free.
    #[serde(default)]
    pub free_buffers: u64,
    /// The same for large segments.
    #[serde(default)]
    pub free_large_buffers: u64,
    /// Bytes of both that have not been used yet. The kernel fills them in when so many packets wait at once for the first
    /// time.
    #[serde(default)]
    pub untouched_buffer_bytes: u64,
}

/// A local SID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sid {
    /// Its prefix.
    pub prefix: String,
    /// Its table.
    pub table: u32,
    /// Its behaviour.
    pub behaviour: String,
    /// Packets processed.
    pub packets: u64,
    /// Their bytes, as received from the IPv6 header on.
    pub bytes: u64,
    /// Packets refused.
    pub errors: u64,
}

/// An SRv6 policy: segments that routes put before packets, or into them. Routes with the same ones count together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What `ip` writes behind `encap`: the mode, and the segments in the order in which packets visit them.
    pub encap: String,
    /// Packets that got its headers.
    pub packets: u64,
    /// Their bytes, as they came, from the IP header on.
    pub bytes: u64,
    /// Packets that could not go on with them.
    pub errors: u64,
}

/// What somebody wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// [`Stats`].
    All,
    /// [`Mpls`], of one label or of all.
    Mpls(Option<u32>),
    /// [`State`](super::state::State).
    State,
    /// [`Dropped`](super::drops::Dropped), a list.
    Drops,
    /// [`Routes`](super::state::Routes).
    Routes,
}

impl Topic {
    /// Reads the line of a question: nothing for [`Topic::All`].
    pub fn parse(line: &str) -> Option<Self> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => Some(Self::All),
            ["state"] => Some(Self::State),
            ["drops"] => Some(Self::Drops),
            ["routes"] => Some(Self::Routes),
            ["mpls"] => Some(Self::Mpls(None)),
            ["mpls", label] => Some(Self::Mpls(Some(label.parse().ok()?))),
            _ => None,
        }
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.generated += other.generated;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.held += other.held;
        self.buffer_moves += other.buffer_moves;
        self.buffer_moves_avoided += other.buffer_moves_avoided;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        for (line, topic) in [
            ("", Some(Topic::All)),
            ("state", Some(Topic::State)),
            ("drops", Some(Topic::Drops)),
            ("routes", Some(Topic::Routes)),
            ("mpls", Some(Topic::Mpls(None))),
            (" mpls  100 ", Some(Topic::Mpls(Some(100)))),
            ("mpls -1", None),
            ("sids", None),
        ] {
            assert_eq!(Topic::parse(line), topic, "{line}");
        }
    }
}
