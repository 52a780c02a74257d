//! What a look-up ends in: the compiled form of a route and a next hop, and the ids of all that is compiled.
//!
//! The control thread compiles these; workers only read them. Everything that can be known before a
//! packet comes (the outer headers of an encapsulation, the link-layer header of a next hop, which
//! tables an inner packet is looked up in) is known here.

use std::net::IpAddr;
use std::ops::Deref;

use super::{Endpoint, Headend, Ioam, Rpl, TunnelRoute};
use crate::buffer::PortId;

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
    )+};
}

ids! {
    /// A compiled route's action; what the leaf of a forwarding table names. Below 2²⁴ − 1.
    ActionId,
    /// A shared next hop with its link-layer header.
    NextHopId,
    /// A link of the router, dense; not the ifindex.
    LinkId,
    /// One forwarding table of IPv4 prefixes.
    Fib4Id,
    /// One forwarding table of IPv6 prefixes.
    Fib6Id,
    /// Which tables a packet is looked up in, and in what order: the compiled policy rules.
    LookupId,
    /// A tunnel.
    TunnelId,
    /// A port that takes UDP datagrams with packets inside.
    FouPortId,
    /// The filters of one place.
    HookId,
    /// An action of traffic control.
    TcActionId,
    /// A root qdisc with its classes.
    QdiscId,
}

/// The look-up of links that are in no VRF, which the control thread makes first.
impl Default for LookupId {
    fn default() -> Self {
        Self(0)
    }
}

/// The link-layer header that a next hop puts before a packet, ready to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrite {
    /// The header without its EtherType, left-aligned.
    pub bytes: [u8; 20],
    /// How many of them count: 12 for Ethernet, 16 with a VLAN tag.
    pub len: u8,
}

/// Longest link-layer header: Ethernet's with two VLAN tags.
pub const LONGEST_LINK_LAYER: usize = 22;

/// A neighbour by which packets leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// The link that the packet leaves by.
    pub link: LinkId,
    /// That link's port; [`PortId::NONE`] of a tunnel.
    pub port: PortId,
    /// Longest layer-3 packet that the link takes, in bytes.
    pub mtu: u32,
    /// Whether that is to stay so (`mtu lock`): outer IPv4 packets by it may be fragmented. Linux: `ip_mtu_locked`.
    pub locked: bool,
    /// The TTL or hop limit of what the router itself sends by it (`hoplimit`); 0: as always. Linux: `ip4_dst_hoplimit`.
    pub hop_limit: u8,
    /// Destination and source MAC address; `None` while the neighbour is unresolved.
    pub rewrite: Option<Rewrite>,
    /// The neighbour's address, for whoever resolves it.
    pub address: IpAddr,
}

/// A next hop in the tables, and in front of it what most packets need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredNextHop {
    /// Longest layer-3 packet in bytes that can be sent behind `mac` and an EtherType; 0: none, as the neighbour is
    /// unresolved, behind a tunnel, or its link-layer header is longer.
    pub(crate) plain_mtu: u32,
    /// The port of `hop`.
    pub(crate) port: PortId,
    /// Destination and source MAC address.
    pub(crate) mac: [u8; 12],
    hop: NextHop,
}

impl From<NextHop> for StoredNextHop {
    fn from(hop: NextHop) -> Self {
        let plain = hop.rewrite.filter(|rewrite| rewrite.len == 12);
        let mac = plain.and_then(|rewrite| rewrite.bytes.first_chunk().copied());
        Self {
            plain_mtu: if mac.is_some() && hop.port != PortId::NONE { hop.mtu } else { 0 },
            port: hop.port,
            mac: mac.unwrap_or_default(),
            hop,
        }
    }
}

impl Deref for StoredNextHop {
    type Target = NextHop;

    fn deref(&self) -> &NextHop {
        &self.hop
    }
}

/// The compiled form of a route: what happens to a packet whose destination it matches.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(u8)] // so that telling one from another takes one comparison
pub enum Action {
    /// The destination is one of the router's own addresses.
    Local,
    /// The destination is a subnet-router anycast address of the router's: RFC 4291 section 2.6.1. To the router as [`Action::Local`]
    /// is, but of none of its addresses.
    Anycast,
    /// The destination is a broadcast address of a link, or a multicast one that the router listens to.
    Broadcast,
    /// Drop, with the error to its sender.
    Discard(Discard),
    /// The destination is on this link, and no neighbour entry is known for it.
    OnLink(LinkId),
    /// Send to this next hop.
    Forward(NextHopId),
    /// Spread flows over these actions.
    Multipath(Multipath),
    /// An SRv6 local SID, RFC 8986 section 4.
    Endpoint(Endpoint),
    /// An SRv6 policy headend, RFC 8986 section 5.
    Headend(Headend),
    /// An MPLS label route of more than one label, or one that ends here.
    Switch(Switch),
    /// A route that puts MPLS labels on its packets.
    Push(Push),
    /// An RPL source route, RFC 6554, put into the packet.
    Rpl(Rpl),
    /// The insertion of an IOAM option, RFC 9486.
    Ioam(Box<Ioam>),
    /// A route by a tunnel.
    Tunnel(TunnelRoute),
    /// A route by the device of a VRF.
    Vrf(IntoVrf),
    /// The kernel beside the router forwards the packet: what leads here only the kernel can follow.
    HandOver,
}

/// A route by the device of a VRF: its packets are looked up again, in the VRF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntoVrf {
    /// The tables of the VRF.
    pub lookup: LookupId,
    /// The link of the VRF.
    pub link: LinkId,
    /// The MTU of the route; 0: that of the link.
    pub mtu: u32,
}

/// What takes the place of the label that a packet came with: RFC 3031 section 3.10.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The entries that are put on, as on the wire, the outermost first; their traffic classes and TTLs 0,
    /// the bottom bit in none.
    pub labels: Box<[u8]>,
    /// Where the packet goes.
    pub to: SwitchTo,
    /// Whether an IP packet from which the last label was taken takes over the TTL, or has its own lowered:
    /// RFC 3443.
    pub propagate: bool,
    /// What is below the last label, by the label itself (explicit null). `None`: what its first bits say.
    pub payload: Option<IpVersion>,
}

/// Where a labelled packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchTo {
    /// To this next hop.
    NextHop(NextHopId),
    /// It has arrived: an IP packet is looked up in these tables.
    Here {
        /// The tables.
        lookup: LookupId,
        /// Whether a packet that still has a label is looked up by it: `net.mpls.conf.lo.input`.
        labels: bool,
        /// The device of the VRF that the tables are of. `None`: by `lo`, where that the label is taken off counts as a hop
        /// of its own, before the packet is forwarded. To a VRF it does not, as in Linux.
        vrf: Option<LinkId>,
    },
}

/// The version of an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

/// Labels for an IP packet: RFC 3032.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Push {
    /// The entries, as on the wire, the outermost first; their traffic classes and TTLs 0, the bottom bit in
    /// the last.
    pub labels: Box<[u8]>,
    /// The TTL of the labels. `None`: that of the packet.
    pub ttl: Option<u8>,
    /// Where the packet goes.
    pub next_hop: NextHopId,
}

/// A route type that forwards nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// Silently: `blackhole`.
    Blackhole,
    /// With ICMP host unreachable or ICMPv6 no route: `unreachable`.
    Unreachable,
    /// With ICMP communication administratively prohibited: `prohibit`.
    Prohibit,
    /// Goes on with the next policy rule: `throw`.
    Throw,
}

/// Weighted next hops. A flow stays on its bucket while the buckets stay as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Multipath {
    /// Upper bound (inclusive, of a 31-bit hash) and action of each, in rising order of the bound, the
    /// last bound being 2³¹ − 1: the hash thresholds of Linux's `fib_rebalance`.
    pub buckets: Box<[(u32, ActionId)]>,
}

impl Multipath {
    /// The action of a flow of this hash.
    #[inline]
    pub(crate) fn choose(&self, hash: u32) -> Option<ActionId> {
        let bucket = self.buckets.partition_point(|(bound, _)| *bound < hash);
        self.buckets.get(bucket).map(|(_, id)| *id)
    }
}

/// Where a packet goes whose destination the control thread knows when it compiles the action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Via {
    /// The address to be looked up.
    pub address: IpAddr,
    /// In which tables.
    pub lookup: LookupId,
    /// What that look-up ends in, where it ends in a plain next hop; kept up to date by the control
    /// thread. `None`: the worker looks it up.
    pub resolved: Option<NextHopId>,
}
