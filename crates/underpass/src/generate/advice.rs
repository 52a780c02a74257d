//! What to do about packets that are dropped.

use underpass_engine::drops::DropReason;

/// What to look at, or to change, where packets are dropped for a reason.
pub fn advice(reason: DropReason) -> &'static str {
    use DropReason as R;
    match reason {
        R::EthernetTruncated | R::Ip4Truncated | R::Ip6Truncated => {
            "Capture at the sender: the frame is cut on the way, or its length field is wrong."
        }
        R::OtherHost => {
            "Usual where a switch floods. If it is traffic of yours, the sender has an old neighbour entry, or the device's MAC \
             address has changed."
        }
        R::EthernetLength => "Usual: spanning tree and other protocols of switches, which are not forwarded.",
        R::EtherTypeUnknown => "Usual for LLDP and the like. The trace shows the EtherType.",
        R::VlanUnknown => "Add a device for the tag: `ip link add link DEV name DEV.ID type vlan id ID`.",
        R::BridgePort => "`bridge link show`: the port's state, and `isolated`.",
        R::BridgeSource => {
            "`bridge fdb show`: the address is static at another port, or no station's (zeros, a group)."
        }
        R::BridgeLocked => {
            "`bridge -d link show`: the port is `locked`; `bridge fdb add STATION dev PORT master static` lets a station in."
        }
        R::BridgeVlan => "`bridge vlan show`: add the VLAN to the port or to the bridge (`self`).",
        R::BridgeNowhere => {
            "`bridge fdb show` and `bridge link show`: flooding is off, or no other port is up."
        }
        R::BridgePause => "Usual: flow control of a link is between its two ends.",
        R::LinkDown => "`ip link show`: set the link up, or look for its carrier.",
        R::Ip4Malformed | R::Ip6Malformed => {
            "Capture at the sender: the packet is broken there or on the way."
        }
        R::Ip4Checksum => {
            "The packet was changed on the way, or a device before left the checksum to hardware that did not do it."
        }
        R::SourceInvalid => {
            "The sender uses a group's, a loopback or no address as its source: correct its configuration."
        }
        R::DestinationInvalid => {
            "Usual for multicast and link-local packets, which the router does not forward."
        }
        R::HopLimitExceeded => {
            "`underpass trace --drops` twice in a row for one destination: a routing loop. A traceroute through the router is counted too."
        }
        R::NoRoute => {
            "`ip route get ADDRESS` (with `vrf NAME` in a VRF): add a route, or ask the routing protocol why it has none."
        }
        R::KernelOnly => {
            "Make the route one of the router's, or let the packet come in by a device that the kernel has in that VRF."
        }
        R::Blackhole | R::Unreachable | R::Prohibited => {
            "Meant so by a route or rule: `underpass trace --drops` names the prefix and the table; `ip rule show`."
        }
        R::ForwardingOff => {
            "`sysctl net.ipv4.ip_forward=1`, `net.ipv6.conf.all.forwarding=1`, or that of the device."
        }
        R::NeighbourUnresolved => {
            "`ip neigh show dev DEV`: the next hop does not answer. Is it up, on that link, with that address?"
        }
        R::TooBig => {
            "Usual for path MTU discovery: the sender is told. Where tunnels add headers, raise the MTU between routers \
             (`ip link set DEV mtu`), or lower that of the tunnel."
        }
        R::SrhMalformed | R::RplMalformed | R::InnerMalformed | R::OptionMalformed => {
            "The sender, or a router before this one, makes broken headers: `underpass trace --write FILE.pcapng` keeps the packet."
        }
        R::SrhMissing => {
            "The policy of the sender is too short for this behaviour: with `encap.red` a list of one leaves the header out."
        }
        R::SegmentsLeftZero => {
            "The SID is the last of the list, but its behaviour goes on to a next one. Put a decapsulating SID behind it."
        }
        R::SegmentsLeftNotZero => {
            "The SID is not the last of the list, but its behaviour takes the headers off. Reorder the segments."
        }
        R::UpperLayerUnexpected => {
            "Behaviour and policy do not fit: End.DX2 wants `mode l2encap`, End.DT4 IPv4 inside, End.DT6 IPv6. A ping to a SID ends here too."
        }
        R::SrhNotEnabled => "`sysctl net.ipv6.conf.all.seg6_enabled=1` and that of the device.",
        R::HmacMissing => {
            "`sysctl net.ipv6.conf.DEV.seg6_require_hmac`, or give the policy of the sender an `hmac` key."
        }
        R::HmacKeyUnknown => "`ip sr hmac set KEYID sha256` with the sender's key.",
        R::HmacInvalid => "The keys of both ends differ, or somebody forges: compare `ip sr hmac show`.",
        R::RplLoop => "The source route names addresses of this router twice: correct it at the sender.",
        R::NoHeadroom | R::NoBuffer => {
            "All buffers are in use: `underpass_packets_held` and `underpass_worker_free_buffers` say where they are. Lower the limits of qdiscs."
        }
        R::LengthOverflow => "A packet of nearly 64 KiB gets no more headers: lower the sender's MTU.",
        R::EncapsulationLoop => {
            "`ip route get` of the segment or remote address leads into the same tunnel: give it a route by the underlay."
        }
        R::Loop => "`underpass trace` shows the SIDs or tables that lead to each other. Break the circle.",
        R::TransmitFull => {
            "The device is slower than what it is to send: shape before it (`tc qdisc add dev DEV root fq_codel`), or spread."
        }
        R::NoPort => {
            "The link is the kernel's or not attached: `underpass stats` lists ports, `run --attach` chooses."
        }
        R::ArpMalformed => "Capture at the sender: its ARP is broken.",
        R::NeighbourMalformed => "Capture at the sender: its neighbour discovery is broken.",
        R::GroupFrame => "Usual: broadcast and multicast frames with packets for other hosts.",
        R::OptionUnknown => "The sender uses an option with the order to drop it where it is not known.",
        R::IoamMalformed | R::IoamNodeLength => {
            "The node that adds the trace and this one do not agree: compare `trace prealloc` of the route."
        }
        R::PortUnreachable => {
            "Of an offline router, beside which no program listens: `ip fou add port PORT` binds the port. Beside a kernel that answers."
        }
        R::ProtocolUnknown => {
            "The packet is for the router itself: add the tunnel that takes this protocol, or correct the destination."
        }
        R::MplsOff => "`sysctl net.mpls.conf.DEV.input=1`.",
        R::LabelStackMalformed | R::LabelPayload => {
            "The router before this one makes a wrong stack, or the label belongs to another service."
        }
        R::LabelUnknown => {
            "`ip -f mpls route show`: add the label, and raise `net.mpls.platform_labels` above it."
        }
        R::BpfDrop => "Meant so by the program of the SID.",
        R::BpfReturnUnknown | R::BpfFault | R::BpfBudget => "Correct the program of the SID.",
        R::FragmentMalformed | R::FragmentOverlap | R::FragmentDuplicate => {
            "A broken or hostile sender; duplicates also come from two ways of a network. `underpass trace` shows who."
        }
        R::ReassemblyTimeout => {
            "Fragments are lost on the way: look for drops there, or avoid fragments by MTU."
        }
        R::ReassemblyFull => {
            "Too many packets in fragments for the router: avoid fragments by MTU; it may be an attack."
        }
        R::IcmpUnexpected => "Usual in small numbers: late or forged answers.",
        R::TunnelUnknown => {
            "Compare `ip -d link show` of both ends: local, remote, key and protocol have to mirror each other."
        }
        R::TunnelPayload => "Use a tunnel that carries it: `mode any` of ipip and sit, gre for others.",
        R::TunnelChecksum => "`csum` and `encap-csum` of both ends differ, or packets change on the way.",
        R::TunnelSequence => "`iseq` is asked for: both ends need `seq`, and packets must keep their order.",
        R::TunnelSource => "Give the tunnel a `local` address that the router has, and look at the sender's.",
        R::TunnelEcn => {
            "A router on the way marks congestion of traffic that cannot say so to its sender: the outer packet claims ECN."
        }
        R::TunnelRemote => {
            "Give the tunnel a `remote`, or the packet a route with `encap ip dst ADDRESS`, a neighbour or a station."
        }
        R::TunnelLimit => {
            "Tunnels in tunnels: raise `encaplimit` where the packet enters first, or set `encaplimit none`."
        }
        R::TunnelUnreachable => {
            "The underlay lost the way to the remote address: ping it from the local one."
        }
        R::TunnelNested => {
            "One end puts UDP into UDP: an `ip fou` port must not be bound to a protocol that leads to it again."
        }
        R::UdpMalformed | R::GreMalformed | R::GueMalformed | R::VxlanMalformed | R::GeneveMalformed => {
            "Something else sends to this port or protocol, or the other end speaks another version."
        }
        R::GeneveCritical => "The other end sends options that have to be understood: turn them off there.",
        R::GueControl => "The other end sends control messages, which Linux has none of either.",
        R::NetemLoss => "Meant so by a `netem` with `loss`: `tc -s qdisc show`.",
        R::Red => {
            "Meant so by a `red`: `tc -s qdisc show`. With `ecn` packets of senders that know of congestion are marked instead."
        }
        R::QdiscFull | R::Codel => {
            "Meant so by the qdisc. `tc -s qdisc show`: a higher `limit` holds more, a higher rate loses less."
        }
        R::AckFiltered => {
            "Meant so by a `cake` with `ack-filter`: `tc -s qdisc show` counts them as `ack_drop`."
        }
        R::QdiscTooBig => "Raise `burst` of the `tbf` above the largest packet or segment.",
        R::QdiscPurged => "Usual when a qdisc is replaced or a link goes.",
        R::QdiscAction | R::TcAction => "Meant so by a filter: `tc -s filter show dev DEV` counts at which.",
        R::IfbOrigin => {
            "Send to an ifb by `action mirred egress redirect dev IFB` only; no route may lead to it."
        }
        R::Police => {
            "Meant so by a policer: `tc -s filter show` or `tc -s actions ls action police`. TCP wants a burst of 300 ms of its rate."
        }
        R::TcStolen => "Meant so by an action `trap` or `stolen`.",
        R::TcLoop => {
            "Filters lead to each other by `reclassify` or `goto chain`: `tc filter show` of each chain."
        }
        R::TcEdit => {
            "A `pedit`, `vlan` or `mpls` action meets packets that it does not fit: narrow its filter by `protocol`."
        }
        R::MirredLink => "The target of `mirred` is gone or down: `ip link show`, then add the filter anew.",
        R::MirredLoop => "Two `mirred` lead to each other: filter what has been redirected already.",
    }
}

/// The same of frames that a port drops.
pub fn at_port(reason: &str) -> &'static str {
    match reason {
        "no-buffer" => advice(DropReason::NoBuffer),
        "malformed" => "Report it, with the driver of the device (`ethtool -i DEV`).",
        "queue-full" => advice(DropReason::TransmitFull),
        "too-long" => "Raise the MTU of the device, or lower that of what sends by it.",
        "send-error" => {
            "The device is down or has no carrier, or its other end takes no more: `ip -s link show DEV`."
        }
        _ => {
            "The worker is too slow or has no processor: more `--workers`, fewer other programs there, or the fast path."
        }
    }
}
