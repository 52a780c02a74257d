//! Actions of traffic control: what is done to a packet that matches a filter. Linux's `net/sched/act_*.c`.
//!
//! An action is an object of its own; several filters may lead to it, and it counts for all of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::{ActionId, LinkId};
use crate::counters::TcCounterId;
use crate::limiter::Nanos;
use crate::qos::RateConfig;

/// An action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcAction {
    /// What it does.
    pub kind: TcActionKind,
    /// What happens to the packet then: for [`Police`] that exceeds.
    pub control: Control,
    /// Counts packets, bytes, drops and overlimits.
    pub counter: TcCounterId,
    /// Estimates the rate of what it counts.
    pub estimator: Option<EstimatorConfig>,
}

/// What happens to a packet after an action: `TC_ACT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// `continue`: the next filter classifies the packet.
    Continue,
    /// `ok`, `pass`: it goes on its way.
    Ok,
    /// `reclassify`: the filters classify it again, from the first on.
    Reclassify,
    /// `drop`, `shot`.
    Drop,
    /// `pipe`: the next action.
    Pipe,
    /// `stolen`: the packet is gone, without an error. What `mirred redirect` has.
    Stolen,
    /// `trap`: to whoever configures the hardware; as there is none, gone.
    Trap,
    /// `jump`: to the action of this number, from 1 on for the second.
    Jump(u32),
    /// `goto chain`.
    Goto(u32),
}

/// What an action does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcActionKind {
    /// `gact`: nothing, or sometimes something else.
    Gact(Option<Chance>),
    /// `police`.
    Police(Police),
    /// `mirred`.
    Mirred(Mirred),
    /// `mpls`.
    Mpls(MplsEdit),
    /// `vlan`.
    Vlan(VlanEdit),
    /// `skbedit`.
    Skbedit(Skbedit),
    /// `tunnel_key`: the packet gets these parameters, or `unset`.
    TunnelKey(Option<TunnelKey>),
    /// `sample`: somebody wants to see one of so many packets.
    Sample(Arc<Sample>),
    /// `csum`: these checksums are made right.
    Csum(Checksums),
    /// `pedit`: bytes are changed, in this order.
    Pedit(Box<[PeditKey]>),
}

/// `sample`: one packet of so many for whoever listens to a group.
#[derive(Clone, Debug)]
pub struct Sample {
    /// One of so many; not 0.
    pub rate: u32,
    /// The bytes of a packet that are wanted. `None`: all.
    pub truncate: Option<u32>,
    /// The number of the group.
    pub group: u32,
    /// The number of the group's next sample.
    pub next: Arc<AtomicU32>,
    /// What goes along with each sample.
    pub cookie: Option<Box<[u8]>>,
    /// Whether anybody listens. Otherwise nothing is sampled.
    pub heard: bool,
}

impl PartialEq for Sample {
    fn eq(&self, other: &Self) -> bool {
        let Self { rate, truncate, group, next, cookie, heard } = self;
        (rate, truncate, group, cookie, heard)
            == (&other.rate, &other.truncate, &other.group, &other.cookie, &other.heard)
            && Arc::ptr_eq(next, &other.next)
    }
}

impl Eq for Sample {}

/// Checksums: `TCA_CSUM_UPDATE_FLAG_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksums(pub u32);

impl Checksums {
    /// Of the IPv4 header.
    pub const IPV4: u32 = 1;
    /// Of ICMP, for IPv4 and IPv6.
    pub const ICMP: u32 = 2;
    /// Of IGMP.
    pub const IGMP: u32 = 4;
    /// Of TCP.
    pub const TCP: u32 = 8;
    /// Of UDP.
    pub const UDP: u32 = 16;
    /// Of UDP-Lite.
    pub const UDP_LITE: u32 = 32;
    /// Of SCTP.
    pub const SCTP: u32 = 64;

    pub(crate) const fn has(self, checksum: u32) -> bool {
        self.0 & checksum != 0
    }
}

/// From where a [`PeditKey`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeditHeader {
    /// The network header.
    Network,
    /// The Ethernet header, in which there is no VLAN tag.
    Ethernet,
    /// The TCP header; of IPv4 what is behind its header, whatever that is.
    Tcp,
    /// The UDP header, likewise.
    Udp,
}

/// A change of four bytes: `(bytes & mask) ^ value`, in the order of this machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeditKey {
    /// Bits that stay.
    pub mask: u32,
    /// What the others become, or what is added to them.
    pub value: u32,
    /// Where the bytes are.
    pub offset: i32,
    /// Where a byte is that adds to that, which of its bits, and how far they are shifted, below 32.
    pub at: Option<(i32, u32, u32)>,
    /// From where they count.
    pub header: PeditHeader,
    /// Whether the value is added, under the bits that do not stay.
    pub add: bool,
}

/// `gact random`: what happens to one of so many packets instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chance {
    /// Which of them.
    pub kind: ChanceKind,
    /// One of so many; not 0.
    pub one_of: u16,
    /// What happens to it.
    pub control: Control,
}

/// How a [`Chance`] chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChanceKind {
    /// `netrand`: at random.
    Random,
    /// `determ`: every so many packets.
    Regular,
}

/// `police`: the packets that are within a rate. Each part that is there has to be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Police {
    /// Bytes in a time.
    pub rate: Option<PoliceRate>,
    /// Packets in a time; not together with `rate`.
    pub packets: Option<PolicePackets>,
    /// Longest packet, in bytes with the link layer; a large segment by the longest packet that it stands for.
    pub mtu: u32,
    /// `avrate`: bytes a second that the estimated rate must be below.
    pub average: Option<u32>,
    /// What happens to a packet that conforms; it is not [`Control::Goto`].
    pub conform: Control,
}

/// The token bucket of `police`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoliceRate {
    /// How fast it fills.
    pub rate: RateConfig,
    /// How much it holds: the time in which that fills it.
    pub burst: Nanos,
    /// The second bucket, which holds one packet of `mtu`.
    pub peak: Option<RateConfig>,
}

/// `pkts_rate` and `pkts_burst`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicePackets {
    /// Packets a second.
    pub rate: u64,
    /// How much the bucket holds: the time in which the rate fills it.
    pub burst: Nanos,
    /// From when on it is filled, by the clock of the workers: when it is made it holds nothing.
    pub since: Nanos,
}

/// `estimator`: `struct tc_estimator`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EstimatorConfig {
    /// The time between two samples: 2ⁿ seconds, from -2 to 3.
    pub interval: i8,
    /// How slowly the average follows: 2ⁿ samples, below 32.
    pub ewma_log: u8,
}

/// `mirred`: the packet, or a copy of it, to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mirred {
    /// The link. `None`: it is gone.
    pub link: Option<LinkId>,
    /// Whether as if it had come in by the link, not to be sent by it.
    pub ingress: bool,
    /// Whether the packet itself, not a copy.
    pub redirect: bool,
}

/// `mpls`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MplsEdit {
    /// The first label is taken off; behind it is this EtherType.
    Pop {
        /// In host byte order.
        protocol: u16,
    },
    /// A label is put on.
    Push {
        /// The EtherType of the frame then.
        protocol: u16,
        /// What the label is.
        label: MplsFields,
    },
    /// A label is put before the Ethernet header (`mac_push`), and the packet has none until it gets another.
    MacPush {
        /// The EtherType of the packet then.
        protocol: u16,
        /// What the label is.
        label: MplsFields,
    },
    /// Fields of the first label are changed.
    Modify(MplsFields),
    /// Its TTL is lowered.
    DecrementTtl,
}

/// Fields of a label; those that are `None` stay, or are 0 in a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MplsFields {
    /// 20 bits.
    pub label: Option<u32>,
    /// 3 bits.
    pub class: Option<u8>,
    /// Not 0.
    pub ttl: Option<u8>,
    /// Whether it is the last one. `None` in a new one: whether there is no label behind it.
    pub bottom: Option<bool>,
}

/// `vlan`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VlanEdit {
    /// The outermost tag is taken off, if there is one.
    Pop,
    /// A tag is put on.
    Push {
        /// Its EtherType.
        protocol: u16,
        /// 12 bits.
        id: u16,
        /// 3 bits.
        priority: u8,
    },
    /// The outermost tag is changed, if there is one.
    Modify {
        /// Its EtherType.
        protocol: u16,
        /// 12 bits.
        id: u16,
        /// 3 bits; `None`: as it is.
        priority: Option<u8>,
    },
    /// The Ethernet header is taken off (`pop_eth`). A packet that still has none when it goes on gets one for the link
    /// that it is at.
    PopEthernet,
    /// An Ethernet header is put before the packet (`push_eth`).
    PushEthernet {
        /// Destination address.
        destination: [u8; 6],
        /// Source address.
        source: [u8; 6],
    },
}

/// `skbedit`: what goes along with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skbedit {
    /// The class that a qdisc puts it in.
    pub priority: Option<u32>,
    /// That it is the traffic class of the packet (`inheritdsfield`); has precedence.
    pub inherit_dsfield: bool,
    /// The transmit queue.
    pub queue: Option<u16>,
    /// A new mark, where the second number has bits.
    pub mark: Option<(u32, u32)>,
    /// `skb->pkt_type`: 0 for us, 1 broadcast, 2 multicast, 3 other station's.
    pub packet_type: Option<u8>,
}

/// `tunnel_key set`: what an `external` tunnel puts before a packet that is sent by it. Linux's `struct ip_tunnel_key`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelKey {
    /// Source of the outer header.
    pub source: IpAddr,
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// 0: none.
    pub id: u32,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0: that of the packet.
    pub ttl: u8,
    /// Destination port.
    pub port: u16,
    /// What that is by each device that takes it: what a route by the device with these parameters does.
    pub ways: Box<[(LinkId, ActionId)]>,
}
