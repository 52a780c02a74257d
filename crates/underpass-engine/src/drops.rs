//! Why a packet was dropped: every drop has one of these names and is counted under it.

macro_rules! drops {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The reason for which a packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $name,)+ }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name under which the reason is counted: lower case words joined by `-`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                let text = match self { $(Self::$name => concat!($($doc),+),)+ };
                text.trim_start()
            }
        }
    };
}

drops! {
    /// Shorter than the Ethernet header.
    EthernetTruncated = "ethernet-truncated",
    /// Sent to another station's MAC address.
    OtherHost = "other-host",
    /// An IEEE 802.3 frame, with a length for an EtherType.
    EthernetLength = "ethernet-length",
    /// An EtherType that the router does not handle.
    EtherTypeUnknown = "ethertype-unknown",
    /// The VLAN tag matches no configured VLAN.
    VlanUnknown = "vlan-unknown",
    /// The port of the bridge does not forward.
    BridgePort = "bridge-port",
    /// The source address is that of no station.
    BridgeSource = "bridge-source",
    /// A port of a bridge is locked, and the station is not known there.
    BridgeLocked = "bridge-locked",
    /// The VLAN is not one of the port of the bridge, or of the bridge itself.
    BridgeVlan = "bridge-vlan",
    /// No port of the bridge takes the frame.
    BridgeNowhere = "bridge-nowhere",
    /// A pause frame, which no bridge forwards.
    BridgePause = "bridge-pause",
    /// The port has no link, or the link is down.
    LinkDown = "link-down",
    /// Shorter than the IPv4 header, or than its total length.
    Ip4Truncated = "ip4-truncated",
    /// The version, header length or total length is not valid in IPv4.
    Ip4Malformed = "ip4-malformed",
    /// The IPv4 header checksum is wrong.
    Ip4Checksum = "ip4-checksum",
    /// The source address is not valid in a packet.
    SourceInvalid = "source-invalid",
    /// The destination address must not be forwarded (multicast, link-local, loopback).
    DestinationInvalid = "destination-invalid",
    /// Shorter than the IPv6 header, or than its payload length.
    Ip6Truncated = "ip6-truncated",
    /// Not version 6, or the extension headers contradict each other.
    Ip6Malformed = "ip6-malformed",
    /// The hop limit or TTL expired.
    HopLimitExceeded = "hop-limit-exceeded",
    /// No route to the destination.
    NoRoute = "no-route",
    /// Only the kernel can follow the route or rule, and the packet came from the kernel or is in a VRF that the kernel
    /// does not have.
    KernelOnly = "kernel-only",
    /// A blackhole route.
    Blackhole = "blackhole",
    /// An unreachable route.
    Unreachable = "unreachable",
    /// A prohibit route or rule.
    Prohibited = "prohibited",
    /// Forwarding is off for this family on this link.
    ForwardingOff = "forwarding-off",
    /// No link-layer address is known for the next hop.
    NeighbourUnresolved = "neighbour-unresolved",
    /// Longer than the MTU of the egress, and may not be fragmented.
    TooBig = "too-big",
    /// A routing header whose lengths contradict each other or the packet.
    SrhMalformed = "srh-malformed",
    /// The behaviour needs a segment routing header and the packet has none.
    SrhMissing = "srh-missing",
    /// An RPL source routing header whose fields contradict each other, or with a multicast address.
    RplMalformed = "rpl-malformed",
    /// An RPL source route that returns to this router.
    RplLoop = "rpl-loop",
    /// Segments left is 0 where the behaviour needs a next segment.
    SegmentsLeftZero = "segments-left-zero",
    /// Segments left is not 0 where the behaviour decapsulates.
    SegmentsLeftNotZero = "segments-left-not-zero",
    /// The behaviour expects another protocol inside.
    UpperLayerUnexpected = "upper-layer-unexpected",
    /// The packet inside is truncated or malformed.
    InnerMalformed = "inner-malformed",
    /// A segment routing header for the router itself, on an interface that accepts none (`seg6_enabled`).
    SrhNotEnabled = "srh-not-enabled",
    /// The segment routing header has no HMAC, but `seg6_require_hmac` or the policy requires one.
    HmacMissing = "hmac-missing",
    /// The router does not have the key of the HMAC.
    HmacKeyUnknown = "hmac-key-unknown",
    /// The HMAC is wrong for its key.
    HmacInvalid = "hmac-invalid",
    /// No buffer has room for the packet with its new headers.
    NoHeadroom = "no-headroom",
    /// With its new headers the packet is too long for its length field.
    LengthOverflow = "length-overflow",
    /// A route's encapsulation leads back to the route, or one encapsulation follows another too often.
    EncapsulationLoop = "encapsulation-loop",
    /// The packet passed the router's own segments or tables too many times.
    Loop = "loop",
    /// No free buffer for a fragment or a copy.
    NoBuffer = "no-buffer",
    /// The transmit queue of the port is full.
    TransmitFull = "transmit-full",
    /// The link has no port to send by.
    NoPort = "no-port",
    /// An ARP message that is truncated, or not of Ethernet and IPv4.
    ArpMalformed = "arp-malformed",
    /// A neighbour solicitation that RFC 4861 section 7.1.1 forbids.
    NeighbourMalformed = "neighbour-malformed",
    /// In a multicast or broadcast frame, but not addressed to the router.
    GroupFrame = "group-frame",
    /// An IPv4, hop-by-hop or destination option that contradicts itself or its header, or a source route.
    OptionMalformed = "option-malformed",
    /// An unknown option that the router must not skip.
    OptionUnknown = "option-unknown",
    /// An IOAM option that is misplaced or truncated.
    IoamMalformed = "ioam-malformed",
    /// The node data length of an IOAM trace does not match its trace type.
    IoamNodeLength = "ioam-node-length",
    /// A datagram to the router for a port that nothing listens on.
    PortUnreachable = "port-unreachable",
    /// A packet to the router of a protocol that it does not handle.
    ProtocolUnknown = "protocol-unknown",
    /// MPLS on an interface that does not accept it (`net.mpls.conf.IF.input`).
    MplsOff = "mpls-off",
    /// A label stack without a last entry, or of more than 30.
    LabelStackMalformed = "label-stack-malformed",
    /// The label has no route.
    LabelUnknown = "label-unknown",
    /// The packet below the last label is not IP, or not of the version that the label requires.
    LabelPayload = "label-payload",
    /// An End.BPF program dropped it.
    BpfDrop = "bpf-drop",
    /// An End.BPF program returned an unknown value.
    BpfReturnUnknown = "bpf-return-unknown",
    /// An End.BPF program accessed memory that is not its own.
    BpfFault = "bpf-fault",
    /// An End.BPF program ran for too many instructions.
    BpfBudget = "bpf-budget",
    /// A fragment for the router whose lengths contradict those of others, or that lacks headers.
    FragmentMalformed = "fragment-malformed",
    /// A fragment for the router that overlaps another; all fragments of its packet are dropped.
    FragmentOverlap = "fragment-overlap",
    /// A duplicate of a fragment for the router.
    FragmentDuplicate = "fragment-duplicate",
    /// Not all fragments of a packet for the router arrived in time.
    ReassemblyTimeout = "reassembly-timeout",
    /// Fragments of a packet for the router, dropped to make room for others.
    ReassemblyFull = "reassembly-full",
    /// An ICMP or ICMPv6 message to the router that is malformed or unexpected.
    IcmpUnexpected = "icmp-unexpected",
    /// An encapsulated packet to the router that matches no tunnel.
    TunnelUnknown = "tunnel-unknown",
    /// The inner packet is of a kind that the tunnel does not carry.
    TunnelPayload = "tunnel-payload",
    /// The checksum of the outer packet is wrong, missing, or not expected by the tunnel.
    TunnelChecksum = "tunnel-checksum",
    /// The sequence number of a GRE packet is missing or old.
    TunnelSequence = "tunnel-sequence",
    /// The outer packet of a tunnel has an invalid source or destination, or a tunnel over IPv6 has no source.
    TunnelSource = "tunnel-source",
    /// The outer header has congestion experienced, but the inner packet is not ECN-capable (RFC 6040 section 4.2).
    TunnelEcn = "tunnel-ecn",
    /// Neither the tunnel nor the packet gives a remote address.
    TunnelRemote = "tunnel-remote",
    /// The tunnel encapsulation limit of the packet is 0.
    TunnelLimit = "tunnel-limit",
    /// A router on the path of the tunnel reported an error. Counts the copies from which the sender is notified; the
    /// packets themselves are sent.
    TunnelUnreachable = "tunnel-unreachable",
    /// Too many layers of foo-over-UDP.
    TunnelNested = "tunnel-nested",
    /// A UDP datagram to a port of foo-over-UDP whose length field is wrong.
    UdpMalformed = "udp-malformed",
    /// A GRE header that is truncated, of another version or with routing.
    GreMalformed = "gre-malformed",
    /// A GUE header whose lengths, flags or positions contradict each other.
    GueMalformed = "gue-malformed",
    /// A VXLAN header that is truncated, or with bits that have no meaning.
    VxlanMalformed = "vxlan-malformed",
    /// A Geneve header that is truncated or of another version.
    GeneveMalformed = "geneve-malformed",
    /// A Geneve packet with options that a receiver must not pass over.
    GeneveCritical = "geneve-critical",
    /// A control message of GUE.
    GueControl = "gue-control",
    /// A queue of a qdisc is full, or the worker has no buffer to queue it.
    QdiscFull = "qdisc-full",
    /// Longer than the burst of a `tbf`.
    QdiscTooBig = "qdisc-too-big",
    /// Queued in a qdisc that was removed.
    QdiscPurged = "qdisc-purged",
    /// Lost as a `netem` is to lose packets.
    NetemLoss = "netem-loss",
    /// Dropped early by a `red`, so that its queue stays short on average.
    Red = "red",
    /// A filter action of a qdisc dropped it.
    QdiscAction = "qdisc-action",
    /// Dropped by CoDel: its queue stayed too long.
    Codel = "codel",
    /// An acknowledgement that a later one in the queue of a `cake` made needless.
    AckFiltered = "ack-filtered",
    /// Sent to an ifb other than by a redirect.
    IfbOrigin = "ifb-origin",
    /// Exceeded a policer's rate or MTU, or the policer drops everything.
    Police = "police",
    /// A filter action dropped it.
    TcAction = "tc-action",
    /// A filter action consumed it (`trap`, `stolen`).
    TcStolen = "tc-stolen",
    /// Too many `reclassify` or `goto chain` steps.
    TcLoop = "tc-loop",
    /// An action needs headers that the packet lacks, or there was no room for new ones.
    TcEdit = "tc-edit",
    /// The link that it was redirected to is gone or down, or has no port.
    MirredLink = "mirred-link",
    /// Redirected too many times.
    MirredLoop = "mirred-loop",
}
