//! Why a packet was dropped: every drop has one of these names and is counted under it.

macro_rules! drops {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The reason for which a packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Drop { $($(#[doc = $doc])+ $name,)+ }

        impl Drop {
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
    /// An EtherType that the router does not handle.
    EtherTypeUnknown = "ethertype-unknown",
    /// A VLAN tag of no configured VLAN.
    VlanUnknown = "vlan-unknown",
    /// The port has no link, or the link is down.
    LinkDown = "link-down",
    /// Shorter than the IPv4 header, or than its total length.
    Ip4Truncated = "ip4-truncated",
    /// Version, header length or total length that IPv4 forbids.
    Ip4Malformed = "ip4-malformed",
    /// The IPv4 header checksum is wrong.
    Ip4Checksum = "ip4-checksum",
    /// A source address that no packet may have.
    SourceInvalid = "source-invalid",
    /// A destination address that must not be forwarded (multicast, link-local, loopback).
    DestinationInvalid = "destination-invalid",
    /// Shorter than the IPv6 header, or than its payload length.
    Ip6Truncated = "ip6-truncated",
    /// Not version 6, or an extension header chain that contradicts itself.
    Ip6Malformed = "ip6-malformed",
    /// Hop limit or TTL ran out.
    HopLimitExceeded = "hop-limit-exceeded",
    /// No route to the destination.
    NoRoute = "no-route",
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
    /// Longer than the MTU of the way out, and not to be fragmented.
    TooBig = "too-big",
    /// A routing header whose lengths contradict each other or the packet.
    SrhMalformed = "srh-malformed",
    /// The behaviour needs a segment routing header and the packet has none.
    SrhMissing = "srh-missing",
    /// An RPL source routing header whose fields contradict each other, or with a multicast address.
    RplMalformed = "rpl-malformed",
    /// An RPL source route that comes back to this router.
    RplLoop = "rpl-loop",
    /// Segments left is 0 where the behaviour needs a next segment.
    SegmentsLeftZero = "segments-left-zero",
    /// Segments left is not 0 where the behaviour decapsulates.
    SegmentsLeftNotZero = "segments-left-not-zero",
    /// The behaviour expects another protocol inside.
    UpperLayerUnexpected = "upper-layer-unexpected",
    /// The packet inside is truncated or malformed.
    InnerMalformed = "inner-malformed",
    /// A segment routing header for the router itself, which accepts none there.
    SrhNotEnabled = "srh-not-enabled",
    /// `seg6_require_hmac` asks for an HMAC, or a policy has one to be filled in, and the segment routing
    /// header has none.
    HmacMissing = "hmac-missing",
    /// An HMAC whose key the router does not have.
    HmacKeyUnknown = "hmac-key-unknown",
    /// An HMAC that is not that of its key.
    HmacInvalid = "hmac-invalid",
    /// Neither the slot nor a free large one has room for the packet with its new headers.
    NoHeadroom = "no-headroom",
    /// The packet with its new headers would be longer than its length field can say.
    LengthOverflow = "length-overflow",
    /// A route's encapsulation leads back to the route, or one encapsulation follows another too often.
    EncapsulationLoop = "encapsulation-loop",
    /// The packet went round through the router's own segments or tables too often.
    Loop = "loop",
    /// No free buffer for a fragment or a copy.
    NoBuffer = "no-buffer",
    /// The transmit queue of the port is full.
    TransmitFull = "transmit-full",
    /// The link has no port to send by.
    NoPort = "no-port",
    /// An ARP message that is truncated, or not of Ethernet and IPv4.
    ArpMalformed = "arp-malformed",
    /// In a frame for a group of stations, and not for the router.
    GroupFrame = "group-frame",
    /// An IPv4, hop-by-hop or destination option that contradicts itself or its header, or a source route.
    OptionMalformed = "option-malformed",
    /// An option that must not be passed over, and that the router does not know.
    OptionUnknown = "option-unknown",
    /// An IOAM option that is misplaced, or shorter than what it says of itself.
    IoamMalformed = "ioam-malformed",
    /// An IOAM trace whose length of a node's data is not what its trace type asks for.
    IoamNodeLength = "ioam-node-length",
    /// A datagram to the router for a port that nothing listens at.
    PortUnreachable = "port-unreachable",
    /// A packet to the router of a protocol that nothing handles.
    ProtocolUnknown = "protocol-unknown",
    /// MPLS where the interface does not take it: `net.mpls.conf.IF.input`.
    MplsOff = "mpls-off",
    /// A label stack without a last entry, or of more than 30.
    LabelStackMalformed = "label-stack-malformed",
    /// A label that leads nowhere.
    LabelUnknown = "label-unknown",
    /// What is below the last label is no IP packet, or not of the version that the label says.
    LabelPayload = "label-payload",
    /// The program of an End.BPF said so.
    BpfDrop = "bpf-drop",
    /// The program of an End.BPF returned what means nothing.
    BpfReturnUnknown = "bpf-return-unknown",
    /// The program of an End.BPF read or wrote what is not its own.
    BpfFault = "bpf-fault",
    /// The program of an End.BPF took too many instructions.
    BpfBudget = "bpf-budget",
    /// A fragment for the router whose lengths contradict those of others, or that has not all headers.
    FragmentMalformed = "fragment-malformed",
    /// A fragment for the router that is there in part: all that has come of its packet goes with it.
    FragmentOverlap = "fragment-overlap",
    /// A fragment for the router that is there.
    FragmentDuplicate = "fragment-duplicate",
    /// Of a packet for the router not all fragments came in time.
    ReassemblyTimeout = "reassembly-timeout",
    /// Fragments of a packet for the router made room for those of others.
    ReassemblyFull = "reassembly-full",
    /// An ICMP or ICMPv6 message to the router that is malformed or of no use to it.
    IcmpUnexpected = "icmp-unexpected",
    /// An IP packet for the router with another inside that no tunnel takes.
    TunnelUnknown = "tunnel-unknown",
    /// Inside a tunnel is what it does not carry, or what is to go in is.
    TunnelPayload = "tunnel-payload",
    /// The checksum of an outer packet is wrong, or missing, or there though the tunnel has none.
    TunnelChecksum = "tunnel-checksum",
    /// The sequence number of a GRE packet is missing or old.
    TunnelSequence = "tunnel-sequence",
    /// A source or destination that the outer packet of a tunnel must not have, or a tunnel over IPv6 without a source.
    TunnelSource = "tunnel-source",
    /// Congestion was experienced outside, and the packet inside cannot say so: RFC 6040 section 4.2.
    TunnelEcn = "tunnel-ecn",
    /// Neither the tunnel nor the packet says where the outer packet is to go.
    TunnelRemote = "tunnel-remote",
    /// The tunnel encapsulation limit of a packet that was to go into a tunnel is 0.
    TunnelLimit = "tunnel-limit",
    /// A router on the way of a tunnel's packets has told that they do not arrive: a copy of one that is sent
    /// nevertheless, whose sender is told.
    TunnelUnreachable = "tunnel-unreachable",
    /// Foo-over-UDP inside foo-over-UDP too often.
    TunnelNested = "tunnel-nested",
    /// A UDP datagram whose length is not its own, for a port of foo-over-UDP.
    UdpMalformed = "udp-malformed",
    /// A GRE header that is truncated, of another version or with routing.
    GreMalformed = "gre-malformed",
    /// A GUE header whose lengths, flags or positions contradict each other.
    GueMalformed = "gue-malformed",
    /// A control message of GUE.
    GueControl = "gue-control",
    /// A queue of a qdisc is full, or the worker has no room to hold it.
    QdiscFull = "qdisc-full",
    /// Longer than the burst of a `tbf`.
    QdiscTooBig = "qdisc-too-big",
    /// Waited in a qdisc that was removed.
    QdiscPurged = "qdisc-purged",
    /// An action of a filter of a qdisc said so.
    QdiscAction = "qdisc-action",
    /// CoDel dropped it, as its queue has been too long for too long.
    Codel = "codel",
    /// In an ifb, and not redirected there.
    IfbOrigin = "ifb-origin",
    /// Over the rate or the MTU of a `police`, or because it says so of all.
    Police = "police",
    /// An action of a filter said so.
    TcAction = "tc-action",
    /// An action took it for itself: `trap`, `stolen`.
    TcStolen = "tc-stolen",
    /// Filters sent it back and forth too often: `reclassify`, `goto chain`.
    TcLoop = "tc-loop",
    /// An action was to change headers that it does not have, or had no room for more.
    TcEdit = "tc-edit",
    /// The link that it was to be redirected to is gone or down, or has no port.
    MirredLink = "mirred-link",
    /// Redirected too often.
    MirredLoop = "mirred-loop",
}
