//! What a look-up ends in: the compiled form of a route, a next hop, a link.
//!
//! The control thread compiles these; workers only read them. Everything that can be known before a
//! packet comes (the outer headers of an encapsulation, the link-layer header of a next hop, which
//! tables an inner packet is looked up in) is known here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;

use underpass_packet::{ethernet, rpl};

use super::{Ioam, IoamLink, TunnelRoute};
use crate::bpf::Program;
use crate::buffer::PortId;
use crate::counters::CounterId;
use crate::hmac::Require;

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
    /// The destination is a broadcast address of a link, or a multicast one that the router listens to.
    Broadcast,
    /// Drop, with what the sender is told.
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

/// An SRv6 local SID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// What the SID does.
    pub behaviour: Behaviour,
    /// What it does besides, if it has any flavour (End, End.X, End.T).
    pub flavours: Option<Flavours>,
    /// Counts packets, bytes and errors if the route asked for it with `count`.
    pub counter: Option<CounterId>,
    /// The link of the route.
    pub link: LinkId,
}

/// Flavours of End, End.X and End.T. They do not depend on one another: each combination is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flavours {
    /// Penultimate segment pop of the SRH, RFC 8986 section 4.16.1.
    pub psp: bool,
    /// Ultimate segment pop of the SRH, RFC 8986 section 4.16.2.
    pub usp: bool,
    /// Ultimate segment decapsulation, RFC 8986 section 4.16.3.
    pub usd: bool,
    /// NEXT-CSID, RFC 9800 section 4.1.
    pub next_csid: Option<NextCsid>,
}

/// The structure of a NEXT-CSID SID, RFC 9800 section 4.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextCsid {
    /// Locator-block length, in bits, a multiple of 8.
    pub block: u8,
    /// Locator-node and function length, in bits, a multiple of 8.
    pub node_function: u8,
}

impl NextCsid {
    /// The destination with the first compressed SID of its argument in the place of this SID's. `None`: the
    /// argument is 0. RFC 9800 section 4.1.1, N01, N05 and N06.
    #[inline(always)]
    pub(crate) fn next(self, destination: u128) -> Option<u128> {
        // What is behind the block: the lengths are below 128, as `ip` must give them.
        let behind = u128::MAX >> (self.block & 127);
        let moved = destination << (self.node_function & 127) & behind;
        (moved != 0).then_some(destination & !behind | moved)
    }
}

/// SRv6 endpoint behaviours, as Linux names them (`SEG6_LOCAL_ACTION_*`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(u8)] // as `Action`
pub enum Behaviour {
    /// RFC 8986 section 4.1. The next segment is looked up in these tables.
    End {
        /// The tables of the SID's own routing instance.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.2: to this neighbour.
    X(Via),
    /// RFC 8986 section 4.3: the next segment is looked up in these tables.
    T {
        /// The tables named by the SID.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.9: the inner Ethernet frame leaves by this link.
    DX2 {
        /// `oif`.
        link: LinkId,
    },
    /// RFC 8986 section 4.5: the inner IPv4 packet to this neighbour. `0.0.0.0`: by its own destination.
    DX4(Via),
    /// RFC 8986 section 4.4: the inner IPv6 packet to this neighbour. `::`: by its own destination.
    DX6(Via),
    /// RFC 8986 section 4.7.
    DT4 {
        /// The tables of the VRF.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.6.
    DT6 {
        /// The tables of the VRF.
        lookup: LookupId,
    },
    /// RFC 8986 section 4.8.
    DT46 {
        /// The tables of the VRF, for either family.
        lookup: LookupId,
    },
    /// Linux's End.B6 (draft-filsfils-spring-srv6-network-programming): inserts an SRH.
    B6(Box<Headend>),
    /// RFC 8986 section 4.13.
    B6Encaps(Box<Headend>),
    /// Linux's End.BPF: what a program says.
    Bpf(Box<Bpf>),
}

/// A program, and what its helpers need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bpf {
    /// The program.
    pub program: Arc<Program>,
    /// The tables of the SID's own routing instance, where a packet is looked up that came in behind a label.
    pub lookup: LookupId,
    /// The tables that a program can name, by their numbers, in rising order.
    pub tables: Box<[(u32, LookupId)]>,
    /// The source of outer headers that the program has put before packets.
    pub source: Ipv6Addr,
    /// Whether it is always this one, and not that of the link that a look-up of the program has led to.
    pub fixed_source: bool,
}

impl Bpf {
    /// The tables of a number; 0 are `own`.
    pub(crate) fn table(&self, number: u32, own: LookupId) -> Option<LookupId> {
        match number {
            0 => Some(own),
            number => {
                let place = self.tables.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                self.tables.get(place).map(|(_, lookup)| *lookup)
            }
        }
    }
}

impl Behaviour {
    /// Whether it puts headers before or into a packet.
    #[inline(always)]
    pub(crate) fn inserts(&self) -> bool {
        matches!(self, Self::B6(_) | Self::B6Encaps(_))
    }
}

/// How a headend puts the segment list before a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadendMode {
    /// H.Insert (`mode inline`): an SRH between the IPv6 header and what follows it.
    Inline,
    /// H.Encaps and H.Encaps.Red: an outer IPv6 header and SRH (none, if the reduced list is empty).
    Encap,
    /// H.Encaps.L2 and H.Encaps.L2.Red: the same around the Ethernet frame as received.
    L2Encap,
}

/// An SRv6 policy: the headers to insert, built once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headend {
    /// How the headers are put before the packet.
    pub mode: HeadendMode,
    /// What is inserted, in wire order. `Encap`, `L2Encap`: an IPv6 header (its payload length 0, its
    /// traffic class and flow label 0, its hop limit that of an IPv4 or Ethernet payload, its next
    /// header that of the SRH, or 0 if there is none) and the SRH, if any. `Inline`: the SRH alone, its
    /// first segment (the last to visit) all zero, to be filled with the packet's destination. The next
    /// header of the SRH is 0, to be filled.
    pub header: Box<[u8]>,
    /// Bytes that a packet must have in front of its layer-3 header: what is put there, and the link layer
    /// of the port that it then leaves by.
    pub room: u16,
    /// The HMAC TLV at the end of the SRH is still to be filled in for each packet: one that is inserted, or one
    /// whose key is missing. `via` is then not resolved, so that no packet takes the fast path.
    pub hmac_open: bool,
    /// Where the packet goes: its first segment, looked up in the tables of the route.
    pub via: Via,
    /// The link of the route.
    pub link: LinkId,
    /// What becomes of the router's own packets, if they stay as they are: `L2Encap` is for packets that came in. Linux
    /// sets LWTUNNEL_STATE_OUTPUT_REDIRECT for the other modes alone.
    pub plain: Option<ActionId>,
}

/// An RPL source route: the header to insert, built once but for its last address, the packet's destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rpl {
    /// The routing header in wire order, as [`underpass_packet::rpl::Last`] completes it.
    pub header: Box<[u8]>,
    /// Bytes that a packet must have in front of its layer-3 header, as [`Headend::room`].
    pub room: u16,
    /// Where the packet goes: the first address, looked up in the tables of the route.
    pub via: Via,
}

impl Rpl {
    /// The source route over these addresses, the first of which is where packets go. `None`: there is none, or more
    /// than a header holds.
    pub fn new(addresses: &[Ipv6Addr], via: Via) -> Option<Self> {
        let (first, rest) = addresses.split_first()?;
        // Behind the others, the packet's own destination, whatever it is.
        let listed = [rest, &[Ipv6Addr::UNSPECIFIED]].concat();
        let segments_left = u8::try_from(listed.len()).ok()?;
        let builder = rpl::Builder { next_header: 0, segments_left, destination: *first, addresses: &listed };
        let mut header = vec![0; rpl::FIXED_LEN + 16 * listed.len()];
        let len = builder.write_without_last(&mut header).ok()?;
        header.truncate(len);
        let link_layer = if via.resolved.is_some() { ethernet::Header::LEN } else { LONGEST_LINK_LAYER };
        let room = (len + 16).next_multiple_of(8) + link_layer;
        Some(Self { header: header.into(), room: room as u16, via })
    }
}

/// Which tables a packet is looked up in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lookup {
    /// For IPv4, in this order, until one has a route that is not `throw`.
    pub fibs4: Box<[Fib4Id]>,
    /// For IPv6.
    pub fibs6: Box<[Fib6Id]>,
    /// Policy rules that look at more than the destination, for IPv4; they come before `fibs4`.
    pub rules4: Box<[Rule]>,
    /// The same for IPv6; they come before `fibs6`.
    pub rules6: Box<[Rule]>,
    /// Where the router looks up what it sends itself in the same routing instance: by the rules for packets from the
    /// host. `None`: these tables are no routing instance, they are those that a SID names.
    pub own: Option<LookupId>,
}

/// A policy rule with a selector (`ip rule`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Source prefix: address and length. Length 0 matches all.
    pub source: (IpAddr, u8),
    /// Destination prefix.
    pub destination: (IpAddr, u8),
    /// `ipproto`.
    pub protocol: Option<u8>,
    /// `sport`.
    pub source_port: Option<PortMatch>,
    /// `dport`.
    pub destination_port: Option<PortMatch>,
    /// `tos` or `dscp`: bits of the octet that holds the DSCP, and which of them are compared.
    pub tos: Option<(u8, u8)>,
    /// `flowlabel` and its mask. Matches no IPv4 packet.
    pub flow_label: Option<(u32, u32)>,
    /// `fwmark` and its mask.
    pub mark: Option<(u32, u32)>,
    /// `not`: matches what the selector does not.
    pub invert: bool,
    /// What a match leads to.
    pub then: RuleAction,
}

impl Rule {
    /// Whether it matches every packet.
    pub(crate) const fn takes_all(&self) -> bool {
        matches!(
            self,
            Self {
                source: (_, 0),
                destination: (_, 0),
                protocol: None,
                source_port: None,
                destination_port: None,
                tos: None,
                flow_label: None,
                mark: None,
                invert: false,
                ..
            }
        )
    }
}

/// The ports that a policy rule takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortMatch {
    /// From the first to the last, both included.
    Range(u16, u16),
    /// Those whose bits under the mask are these: value and mask.
    Masked(u16, u16),
}

impl PortMatch {
    /// Whether a port is one of them.
    pub const fn takes(self, port: u16) -> bool {
        match self {
            Self::Range(first, last) => first <= port && port <= last,
            Self::Masked(value, mask) => (value ^ port) & mask == 0,
        }
    }
}

/// What a policy rule leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleAction {
    /// Look up in this table; if it has no route, go on. For a rule with `suppress_prefixlength` that is
    /// a table of the longer prefixes alone.
    Fib4(Fib4Id),
    /// The same for IPv6.
    Fib6(Fib6Id),
    /// End here.
    Discard(Discard),
    /// End here, with this action.
    Act(ActionId),
    /// Go on with the rule at this place, or behind the last rule: `goto`. Always forwards.
    Goto(usize),
    /// Do nothing: `nop`.
    Nop,
}

/// A link of the router, as the packet path needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The Linux interface index.
    pub ifindex: u32,
    /// The port by which packets of the link come and go; `None` for `lo` and `vrf`.
    pub port: Option<PortId>,
    /// Administratively up and with carrier.
    pub up: bool,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Longest layer-3 packet, in bytes.
    pub mtu: u32,
    /// The tables that a packet received here is looked up in (VRF and policy rules applied).
    pub lookup: LookupId,
    /// Whether IPv4 packets received here may be forwarded.
    pub forward4: bool,
    /// Whether IPv6 packets received here may be forwarded.
    pub forward6: bool,
    /// The source of ICMP errors that are sent by this link, if it has an IPv4 address.
    pub source4: Option<Ipv4Addr>,
    /// Whether it has no IPv4 address of its own.
    pub bare4: bool,
    /// Whether it is the device of a VRF.
    pub vrf: bool,
    /// Whether it is that, or enslaved to one.
    pub in_vrf: bool,
    /// The source of ICMPv6 errors that are sent by this link: its global address, or its link-local.
    pub source6: Option<Ipv6Addr>,
    /// Its IPv6 addresses.
    pub own6: Box<[Ipv6Addr]>,
    /// The port by which the host takes what is for itself, where a kernel is beside the router.
    pub host: Option<PortId>,
    /// Whether the host's kernel sees what comes in by it too.
    pub shared: bool,
    /// The port by which the host's kernel takes, as frames, what it keeps of what comes in by it: a link of which a
    /// worker gets all frames, so that its filters see them.
    pub kernel: Option<PortId>,
    /// Of a link in a VRF of the router's, beside a kernel that knows no VRFs: the addresses of the VRF, to
    /// which alone the host listens there. `None`: it listens to all of its own.
    pub addresses: Option<Box<[IpAddr]>>,
    /// Whether labelled packets that come in by it are forwarded: `net.mpls.conf.IF.input`.
    pub mpls: bool,
    /// Whether packets that come in by it go on along their RPL source route: `rpl_seg_enabled`.
    pub rpl: bool,
    /// Whether they go on along their SRH, where that is for an address of the router's that is no SID:
    /// `seg6_enabled`.
    pub seg6: bool,
    /// Which HMAC SRHs need that come in by it: `seg6_require_hmac`.
    pub require_hmac: Require,
    /// What it is in IOAM traces.
    pub ioam: IoamLink,
    /// The hook that classifies every packet that comes in by it, before all else.
    pub ingress: Option<HookId>,
    /// The hook that classifies every packet that is to leave by it.
    pub egress: Option<HookId>,
    /// What packets wait in before they leave by it. `None`: only the queue of its port.
    pub root: Option<QdiscId>,
    /// The qdisc behind the filters of packets that come in: one that is attached to the ingress hook of `clsact`, which
    /// Linux does not have.
    pub ingress_qdisc: Option<QdiscId>,
    /// Whether it is an `ifb`: what is sent by it goes on where it was taken from.
    pub ifb: bool,
    /// Whether it is a `dummy` of the router's own: what is sent by its port ends there.
    pub swallows: bool,
}

impl Link {
    /// Whether what comes in is classified, or goes into a qdisc.
    pub(crate) fn classifies_ingress(&self) -> bool {
        self.ingress.is_some() || self.ingress_qdisc.is_some()
    }

    /// Whether what is to be sent is classified, or waits in a qdisc.
    pub(crate) fn classifies_egress(&self) -> bool {
        self.egress.is_some() || self.root.is_some()
    }
}
