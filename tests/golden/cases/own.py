"""What the router sends itself, errors and echo replies: by which rules, from which address, in which order of checks.
The ports that rules see in packets."""

from scapy.layers.inet6 import ICMPv6ParamProblem

from .frames import *

OTHER = [
    "ip route add default via 198.51.100.3 table 200",
    "ip -6 route add default via 2001:db8:2::3 dev p1 table 200",
]
OTHER_VRF = [
    "ip route add default via 192.0.2.2 dev p0 table 200",
    "ip -6 route add default via 2001:db8:1::2 dev p0 table 200",
]


def both(rule):
    return [f"ip rule add {rule}", f"ip -6 rule add {rule}"]


# The ports of a packet.


def headers(n, inner):
    """`n` destination options headers."""
    for i in range(n):
        inner = opts(17 if i == 0 else 60, inner)
    return inner


def routing(kind, left, inner):
    return Raw(bytes([17, 2, kind, left, 0, 0, 0, 0]) + bytes.fromhex("20010db8000600000000000000000006")) / inner


def authentication(inner):
    return Raw(bytes([17, 4, 0, 0]) + bytes.fromhex("045708ae") + bytes(16)) / inner


listed = [
    ("UDP", 17, udp()),
    ("hop-by-hop options", 0, opts(17, udp())),
    ("destination options", 60, opts(17, udp())),
    ("an SRH that is used up", 43, routing(4, 0, udp())),
    ("an SRH with a segment left", 43, routing(4, 1, udp())),
    ("a routing header of another type", 43, routing(9, 1, udp())),
    ("a first fragment", 44, fragment(17, udp())),
    ("a later fragment", 44, fragment(17, udp(), 10)),
    ("a last fragment", 44, fragment(17, udp(), 10, 0)),
    ("a fragment that is the whole", 44, fragment(17, udp(), 0, 0)),
    ("destination options, a fragment", 60, opts(44, fragment(17, udp()))),
    ("a fragment with destination options", 44, fragment(60, opts(17, udp()), 0, 0)),
    ("hop-by-hop options, destination options, an SRH", 0, opts(60, opts(43, routing(4, 0, udp())))),
    ("15 headers", 60, headers(15, udp())),
    ("16 headers", 60, headers(16, udp())),
    ("17 headers", 60, headers(17, udp())),
    ("a header that is longer than the packet", 60, Raw(bytes([17, 200, 1, 4, 0, 0, 0, 0])) / udp()),
    ("authentication", 51, authentication(udp())),
    ("encapsulated security", 50, udp()),
    ("DCCP", 33, udp()),
    ("SCTP", 132, udp()),
    ("UDP-Lite", 136, udp()),
    ("TCP", 6, udp()),
    ("UDP, 3 bytes", 17, Raw(bytes(udp())[:3])),
    ("UDP, 4 bytes", 17, Raw(bytes(udp())[:4])),
    ("mobility", 135, opts(17, udp())),
    ("IPv6 inside", 41, ip6() / udp()),
    ("IPv4 inside", 4, ip4() / udp()),
    ("no next header", 59, udp()),
]
for name, rule in [
    ("ports", "sport 1111 dport 2222"),
    ("not-ports", "not dport 2222"),
    ("protocol", "ipproto udp"),
    ("protocol-fragment", "ipproto 44"),
    ("protocol-options", "ipproto 60"),
]:
    Case(
        f"ip/rule-ipv6-{name}",
        f"The rule `{rule}` and the headers between.",
        BASE + OTHER + [f"ip -6 rule add {rule} pref 100 table 200"],
        [(label, ether(IPv6(src=SOURCE, dst=TARGET, hlim=40, nh=nh) / inner)) for label, nh, inner in listed],
    )
listed = [
    ("UDP", ip4() / udp()),
    ("don't fragment", ip4(flags="DF") / udp()),
    ("a first fragment", ip4(flags="MF") / udp()),
    ("a later fragment", ip4(frag=10, flags="MF", proto=17) / udp()),
    ("a last fragment", ip4(frag=10, proto=17) / udp()),
    ("an option", ip4(options=[IPOption(b"\x94\x04\0\0")]) / udp()),
    ("authentication", ip4(proto=51) / authentication(udp())),
    ("encapsulated security", ip4(proto=50) / udp()),
    ("DCCP", ip4(proto=33) / udp()),
    ("UDP-Lite", ip4(proto=136) / udp()),
    ("destination options, which IPv4 has not", ip4(proto=60) / opts(17, udp())),
    ("IPv4 inside", ip4() / ip4() / udp()),
    ("UDP, 3 bytes", ip4(proto=17) / Raw(bytes(udp())[:3])),
]
for name, rule in [("ports", "sport 1111 dport 2222"), ("not-ports", "not dport 2222"), ("protocol", "ipproto udp")]:
    Case(
        f"ip/rule-ipv4-{name}",
        f"The rule `{rule}`: no port in a fragment, not even the first.",
        BASE + OTHER + [f"ip rule add {rule} pref 100 table 200"],
        [(label, ether(p)) for label, p in listed],
    )


# The rules for what the router sends itself.


def caused(port):
    """What the router forwards, and what it answers itself, from behind p0 or p1."""
    near = port == "p0"
    (s4, d4), (s6, d6) = ((SOURCE4, TARGET4), (SOURCE, TARGET)) if near else ((TARGET4, SOURCE4), (TARGET, SOURCE))
    own4, own6 = ("192.0.2.1", "2001:db8:1::1") if near else ("198.51.100.1", "2001:db8:2::1")
    frame = Ether(dst=P0, src=N0) if near else Ether(dst=P1, src=N1)
    listed = [
        ("UDP", ip4(d4, s4) / udp(), ip6(d6, s6) / udp()),
        ("hop limit 1", ip4(d4, s4, ttl=1) / udp(), ip6(d6, s6, hlim=1) / udp()),
        ("no route", ip4("198.18.0.1", s4) / udp(), ip6("2001:db8:99::1", s6) / udp()),
        ("no port", ip4(own4, s4) / udp(), ip6(own6, s6) / udp()),
        (
            "echo request",
            ip4(own4, s4) / ICMP(id=7, seq=3) / payload(),
            ip6(own6, s6) / ICMPv6EchoRequest(id=7, seq=3, data=b"abc"),
        ),
    ]
    return [
        (f"{port}, {family}: {label}", port, frame / packet)
        for label, four, six in listed
        for family, packet in (("IPv4", four), ("IPv6", six))
    ]


for name, rules in [
    ("iif", both("iif p0 table 200 pref 100")),
    ("lo", both("iif lo table 200 pref 100")),
    ("not-lo", both("not iif lo table 200 pref 100")),
    ("lo-prohibit", both("iif lo prohibit pref 100")),
    ("lo-and-iif", both("iif lo table 200 pref 100") + both("iif p0 table main pref 101")),
    (
        "protocol",
        ["ip rule add iif lo ipproto icmp table 200", "ip -6 rule add iif lo ipproto ipv6-icmp table 200"],
    ),
    # Linux takes type and code for the port.
    ("port", both("dport 2816 table 200 pref 100") + both("dport 768-1000 table 200 pref 101")),
    (
        "from",
        ["ip rule add from 192.0.2.1 table 200 pref 100", "ip -6 rule add from 2001:db8:1::1 table 200 pref 100"],
    ),
    ("oif", both("oif p0 table 200 pref 100")),
    ("not-oif", both("not oif p0 table 200 pref 100")),
]:
    for base, other, where in ((BASE, OTHER, ""), (VRF, OTHER_VRF, "-vrf")):
        Case(
            f"ip/own-rule-{name}{where}",
            "Errors and echo replies follow the rules for what the host sends, not those for the port of the packet.",
            base + other + rules,
            caused("p0") + caused("p1"),
        )
for name in ("p1", "vrf100"):
    Case(
        f"ip/vrf-rule-iif-{name}",
        "In a VRF, rules take IPv6 packets to come from its device, IPv4 packets from the link.",
        VRF + OTHER_VRF + both(f"iif {name} table 200 pref 100"),
        caused("p0") + caused("p1"),
    )
    Case(
        f"ip/vrf-rule-oif-{name}",
        "In a VRF, too, rules take IPv6's echo replies to leave by the link, and nothing by its device.",
        VRF + OTHER_VRF + both(f"oif {name} table 200 pref 100"),
        caused("p0") + caused("p1"),
    )
Case(
    "tunnel/rule-lo",
    "Outer packets follow the rules for what the host sends.",
    BASE
    + OTHER
    + [
        "ip link add tun1 type ipip local 192.0.2.1 remote 192.0.2.2",
        "ip link set tun1 up",
        "ip route add 10.50.0.0/16 dev tun1",
        "ip link add tun2 type ip6tnl mode ip6ip6 local 2001:db8:1::1 remote 2001:db8:1::2",
        "ip link set tun2 up",
        "ip -6 route add 2001:db8:50::/48 dev tun2",
    ]
    + both("iif lo table 200 pref 100")
    + both("iif p1 table main pref 101"),
    [
        ("into ipip", "p1", Ether(dst=P1, src=N1) / ip4("10.50.0.1", TARGET4) / udp()),
        ("into ip6tnl", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:50::1", TARGET) / udp()),
        ("out of ipip", ether(IP(src="192.0.2.2", dst="192.0.2.1") / ip4() / udp())),
        ("out of ip6tnl", ether(IPv6(src="2001:db8:1::2", dst="2001:db8:1::1") / ip6() / udp())),
    ],
)

# The order of checks.
ROUTES = [
    "ip link set p1 mtu 1280",
    "ip route add 10.1.0.0/16 via 198.51.100.77",
    "ip -6 route add 2001:db8:f1::/48 via 2001:db8:2::77",
    "ip route add blackhole 10.2.0.0/16",
    "ip -6 route add blackhole 2001:db8:f2::/48",
    "ip route add unreachable 10.3.0.0/16",
    "ip -6 route add unreachable 2001:db8:f3::/48",
    "ip route add prohibit 10.4.0.0/16",
    "ip -6 route add prohibit 2001:db8:f4::/48",
    "ip rule add to 10.5.0.0/16 blackhole",
    "ip -6 rule add to 2001:db8:f5::/48 blackhole",
    "ip rule add to 10.6.0.0/16 unreachable",
    "ip -6 rule add to 2001:db8:f6::/48 unreachable",
    "ip rule add to 10.7.0.0/16 prohibit",
    "ip -6 rule add to 2001:db8:f7::/48 prohibit",
    "ip nexthop add id 5 blackhole",
    "ip route add 10.8.0.0/16 nhid 5",
    "ip -6 nexthop add id 6 blackhole",
    "ip -6 route add 2001:db8:f8::/48 nhid 6",
    "ip route add 10.9.0.0/16 dev p1",
    "ip -6 route add 2001:db8:f9::/48 dev p1",
]
WAYS = [
    ("a neighbour that is not known", "198.51.100.77", "2001:db8:2::77"),
    ("behind one", "10.1.0.1", "2001:db8:f1::1"),
    ("blackhole", "10.2.0.1", "2001:db8:f2::1"),
    ("unreachable", "10.3.0.1", "2001:db8:f3::1"),
    ("prohibit", "10.4.0.1", "2001:db8:f4::1"),
    ("a rule, blackhole", "10.5.0.1", "2001:db8:f5::1"),
    ("a rule, unreachable", "10.6.0.1", "2001:db8:f6::1"),
    ("a rule, prohibit", "10.7.0.1", "2001:db8:f7::1"),
    ("a blackhole next hop", "10.8.0.1", "2001:db8:f8::1"),
    ("on the link by a route", "10.9.0.1", "2001:db8:f9::1"),
    ("no route", "198.18.0.1", "2001:db8:99::1"),
]
TOGETHER = ["ip link add vrf100 type vrf table 100", "ip link set vrf100 up"] + [
    f"ip link set {port} master vrf100" for port in ("p0", "p1")
]
for name, vrf in (("", []), ("-vrf", TOGETHER)):
    config = vrf + [
        line + " vrf vrf100" if vrf and "route add" in line and "nhid" not in line else line
        for line in BASE + [line for line in ROUTES if not (vrf and "nhid" in line)]
    ]
    ways = [way for way in WAYS if not (vrf and "next hop" in way[0])]
    Case(
        f"ip/order-ipv4{name}",
        "Hop limit and length are looked at before the neighbour, and after routes that discard.",
        config,
        [
            (f"{label}, {what}", ether(ip4(d, **more) / udp(n)))
            for label, d, _ in ways
            for what, n, more in (
                ("TTL 1", 64, {"ttl": 1}),
                ("TTL 0", 64, {"ttl": 0}),
                ("TTL 1, 1,428 bytes", 1400, {"ttl": 1, "flags": "DF"}),
                ("1,428 bytes", 1400, {"flags": "DF"}),
            )
        ],
    )
    Case(
        f"ip/order-ipv6{name}",
        "Hop limit and length are looked at before the neighbour, and after routes that discard.",
        config,
        [
            (f"{label}, {what}", ether(ip6(d, **more) / udp(n)))
            for label, _, d in ways
            for what, n, more in (
                ("hop limit 1", 64, {"hlim": 1}),
                ("hop limit 0", 64, {"hlim": 0}),
                ("hop limit 1, 1,448 bytes", 1400, {"hlim": 1}),
                ("1,448 bytes", 1400, {}),
            )
        ],
    )

# From which address.
BARE = [line for line in BASE if " addr add 1" not in line and "203.0.113" not in line] + [
    "ip link set p1 mtu 1280",
    "ip route add 192.0.2.2 dev p0 scope link",
    "ip route add 198.51.100.2 dev p1 scope link",
    "ip route add 203.0.113.0/25 via 192.0.2.2 dev p0",
    "ip route add 203.0.113.128/25 via 198.51.100.2 dev p1",
]
for name, address in [("", []), ("-host", ["ip addr add 10.0.0.1/32 dev lo scope host"]), ("-lo", ["ip addr add 10.0.0.1/32 dev lo"])]:
    Case(
        f"ip/no-address{name}",
        "Errors of a router without an IPv4 address that it could send from come from 192.0.0.8, RFC 7600.",
        BARE + address,
        [
            ("TTL 1", ether(ip4(ttl=1) / udp())),
            ("no route", ether(ip4("198.18.0.1") / udp())),
            ("too long", ether(ip4(flags="DF") / udp(1400))),
        ],
    )

# Echo replies.
REQUEST = ICMP(id=7, seq=3) / payload(20)


def request(**more):
    return ether(IP(**{"src": SOURCE4, "dst": "192.0.2.1", "ttl": 40, "id": 0x4321, "tos": 0xB8, **more}) / REQUEST)


Case(
    "ip/ipv4-echo-fields",
    "An echo reply has fields of its own: it may be fragmented, and has none of the options that are not for it.",
    BASE,
    [
        ("don't fragment", request(flags="DF")),
        ("the reserved flag", request(flags="evil")),
        ("TTL 1", request(ttl=1)),
        ("TTL 0", request(ttl=0)),
        ("every bit of the TOS", request(tos=0xFF)),
        ("router alert", request(options=[IPOption(b"\x94\x04\0\0")])),
        ("no operation", request(options=[IPOption(b"\x01\x01\x01\x01")])),
        ("security", request(options=[IPOption(b"\x82\x0b" + bytes(9) + b"\0")])),
        ("a stream", request(options=[IPOption(b"\x88\x04\0\0")])),
        ("end of options, and bytes behind", request(options=[IPOption(b"\x00\x01\x02\x03")])),
        ("an unknown option", request(options=[IPOption(b"\x19\x04ab")])),
        ("40 bytes of options", request(options=[IPOption(b"\x01" * 40)])),
        ("a route that is full", request(options=[IPOption(b"\x07\x07\x08\x0a\0\0\x01\0")])),
        ("no operation, a route that is full", request(options=[IPOption(b"\x01\x07\x07\x08\x0a\0\0\x01")])),
    ],
)
Case(
    "ip/ipv6-echo-fields",
    "An echo reply to a group comes from an address of the link.",
    BASE,
    [
        (label, ether(IPv6(src=SOURCE, dst=dst, hlim=40, tc=0xB8, fl=0x12345) / ICMPv6EchoRequest(id=7, data=b"abcd"), dst=mac))
        for label, dst, mac in (
            ("to the router", "2001:db8:1::1", P0),
            ("to all nodes", "ff02::1", "33:33:00:00:00:01"),
            ("to all routers", "ff02::2", "33:33:00:00:00:02"),
            ("to a group that it is not in", "ff02::1234", "33:33:00:00:12:34"),
        )
    ],
)
Case(
    "ip/ipv6-echo-scopes",
    "Echo requests to all nodes and all routers in scopes of other reach, and to groups that no link takes packets to.",
    BASE,
    [
        (dst, ether(IPv6(src=SOURCE, dst=dst, hlim=40) / ICMPv6EchoRequest(id=7, data=b"abcd"), dst=f"33:33:00:00:00:0{dst[-1]}"))
        for dst in (f"ff0{scope}::{group}" for scope in "0123458e" for group in "123")
    ],
)

# Frames for a group of stations.
INTO = IPv6(src=SOURCE, dst="fc00:a::6", hlim=40)
Case(
    "endpoint/group-frames",
    "A packet in a frame for a group of stations is an error of the SID that would forward it.",
    sid("End") + ["ip -6 route add fc00:a::6/128 encap seg6local action End.DT6 table main count dev p0"],
    [
        (f"{label}, {what}", ether(packet, dst=mac))
        for what, mac in (("its own", P0), ("another", N1), ("broadcast", "ff:ff:ff:ff:ff:ff"), ("multicast", "33:33:00:00:00:01"))
        for label, packet in (
            ("End", routed(ip6(SID), [SID, NEXT], 1, udp())),
            ("End without an SRH", ip6(SID) / udp()),
            ("End.DT6", INTO / ip6() / udp()),
        )
    ],
)

Case(
    "endpoint/nested-errors",
    "What a SID inside another refuses is an error of both.",
    sid("End.DX2 oif p1")
    + [
        "ip -6 route add fc00:a::6/128 encap seg6local action End.DT6 table main count dev p0",
        "ip -6 route add fc00:a::7/128 encap seg6local action End count dev p0",
    ],
    [
        ("End.DT6, End.DX2 without a frame", ether(INTO / ip6(SID) / udp())),
        ("End.DT6, End without an SRH", ether(INTO / ip6("fc00:a::7") / udp())),
        ("End, End.DX2 without a frame", ether(routed(ip6("fc00:a::7"), ["fc00:a::7", SID], 1, udp()))),
        ("End.DT6, End", ether(INTO / routed(ip6("fc00:a::7"), ["fc00:a::7", NEXT], 1, udp()))),
    ],
)

# What is for the router itself.
HERE = "2001:db8:1::1"
SEG6 = BASE + [f"sysctl -qw net.ipv6.conf.{device}.{name}=1" for device in ("all", "p0") for name in ("seg6_enabled", "rpl_seg_enabled")]
listed = [
    ("used up, IPv6 inside", [NEXT, HERE], 0, INNER6, {}),
    ("a segment left", [HERE, NEXT], 1, udp(), {}),
    ("a routing header of another type, used up", [HERE, NEXT], 0, udp(), {"kind": 9}),
]
Case(
    "segments/group",
    "A packet with a routing header that is for a group of nodes or stations is dropped.",
    SEG6,
    [
        (f"{label}, {what}", ether(routed(ip6(dst), segments, left, inner, **more), dst=mac))
        for label, segments, left, inner, more in listed
        for what, dst, mac in (
            ("for all nodes", "ff02::1", "33:33:00:00:00:01"),
            ("for all nodes, in a frame for the router", "ff02::1", P0),
            ("in a frame for all", HERE, "ff:ff:ff:ff:ff:ff"),
        )
    ],
    expect={},
)
beyond = [
    ("one of two left", routed(ip6(HERE), [HERE, NEXT], 1, udp(), last=9)),
    ("one of two left, no route to it", routed(ip6(HERE), [HERE, "2001:db8:99::1"], 1, udp(), last=2)),
    ("two of two left", routed(ip6(HERE), [HERE, NEXT], 2, udp(), last=2)),
]
Case(
    "segments/last-entry",
    "The last entry of an SRH is beyond its list: the sender is told, RFC 8754 section 4.3.1.1, S10.",
    SEG6,
    [(label, ether(p)) for label, p in beyond],
    expect={
        i: [to_p0(IPv6(src=HERE, dst=SOURCE, hlim=64) / ICMPv6ParamProblem(code=0, ptr=43) / Raw(bytes(p)))]
        for i, (_, p) in enumerate(beyond)
    },
    differs="it does not look at the last entry",
)
Case(
    "segments/error-source",
    "An error with a packet for another address of the router's comes from that address.",
    SEG6,
    [
        ("too many segments left", ether(routed(ip6("2001:db8:2::1"), [HERE, NEXT], 3, udp()))),
        ("an option that must be known", ether(ip6("2001:db8:2::1", nh=60) / Raw(bytes([17, 0, 0x9E, 4, 0, 0, 0, 0])) / udp())),
        ("an unknown routing header", ether(routed(ip6("2001:db8:2::1"), [HERE, NEXT], 1, udp(), kind=9))),
        ("for somebody else", ether(ip6(nh=0) / Raw(bytes([17, 0, 0x9E, 4, 0, 0, 0, 0])) / udp())),
    ],
)
Case(
    "ip/port-unreachable-trailer",
    "Bytes behind a datagram that nobody listens for are not quoted.",
    BASE,
    [
        ("IPv4", ether(IP(bytes(ip4("192.0.2.1", len=100) / udp())) / Raw(b"trailer!"))),
        ("IPv6", ether(IPv6(bytes(ip6(HERE, plen=80) / udp())) / Raw(b"trailer!"))),
        ("IPv4, nothing behind", ether(ip4("192.0.2.1") / udp())),
    ],
)

# Labels.
SWITCHED = BASE + [
    "sysctl -qw net.mpls.platform_labels=2000",
    "sysctl -qw net.mpls.conf.p0.input=1",
    "ip -f mpls route add 100 as 200 via inet 198.51.100.2 dev p1",
    "ip -f mpls route add 101 via inet 198.51.100.2 dev p1",
    "ip -f mpls route add 102 dev lo",
    "ip -f mpls route add 104 via inet6 2001:db8:2::2 dev p1",
]


def labelled(*labels, inner=b"", ttl=40):
    last = len(labels) - 1
    stack = b"".join(struct.pack("!I", n << 12 | (i == last) << 8 | ttl) for i, n in enumerate(labels))
    return Ether(dst=P0, src=N0, type=0x8847) / Raw(stack + bytes(inner))


Case(
    "mpls/trailer",
    "Bytes behind the packet below a label stay where the label is swapped or popped, and not where the packet is looked up.",
    SWITCHED,
    [
        (f"{what}, {label}", labelled(n, inner=bytes(inner) + b"trailer"))
        for what, n in (("swap", 100), ("pop", 101), ("pop to an IPv6 neighbour", 104), ("here", 102))
        for label, inner in (("IPv4", INNER4), ("IPv6", INNER6))
    ],
)
Case(
    "mpls/explicit-null-below",
    "An explicit null label above another one: that is looked up as if it had come in by lo.",
    SWITCHED + ["sysctl -qw net.mpls.conf.lo.input=1"],
    [
        (f"{upper} above {lower}, {label}", labelled(upper, lower, inner=inner))
        for upper in (0, 2)
        for lower in (0, 2, 100, 101, 104)
        for label, inner in (("IPv4", INNER4), ("IPv6", INNER6))
    ],
)
Case(
    "ip/own-ports-outside-vrf",
    "Who writes from a VRF to an address outside hears that no one listens there from an address of the VRF.",
    VRF,
    [
        (label, "p1", Ether(dst=P1, src=N1) / packet)
        for label, packet in [
            ("IPv6, an address outside the VRF", ip6("2001:db8:1::1", src=TARGET) / udp()),
            ("IPv6, an unknown protocol there", ip6("2001:db8:1::1", src=TARGET, nh=253) / payload(8)),
            ("IPv6, an address of the VRF", ip6("2001:db8:2::1", src=TARGET) / udp()),
            ("IPv4, an address outside the VRF", ip4("192.0.2.1", src=TARGET4) / udp()),
            ("IPv4, an address of the VRF", ip4("198.51.100.1", src=TARGET4) / udp()),
        ]
    ],
)
Case(
    "ip/errors-into-encap",
    "An error that goes back by a route which puts headers before it comes from an address of that route's link.",
    BASE
    + [
        "ip link add tun1 type ipip local 198.51.100.1 remote 198.51.100.2",
        "ip link set tun1 up",
        "ip addr add 10.6.0.1/24 dev tun1",
        "ip link add tun2 type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2",
        "ip link set tun2 addrgenmode none",
        "ip link set tun2 up",
        "ip addr add 2001:db8:9::1/64 dev tun2 nodad",
        "ip route add 10.1.0.0/16 dev tun1",
        "ip route add 10.2.0.0/16 encap seg6 mode encap segs 2001:db8:6::9 via 198.51.100.2 dev p1",
        "ip route add 10.3.0.0/16 encap mpls 100 via 198.51.100.2 dev p1",
        "ip -6 route add 2001:db8:81::/48 dev tun2",
        "ip -6 route add 2001:db8:82::/48 encap seg6 mode encap segs 2001:db8:6::9 via 2001:db8:2::2 dev p1",
        "ip -6 route add 2001:db8:83::/48 encap mpls 100 via 2001:db8:2::2 dev p1",
    ],
    [
        (f"{name}, {label}", ether(packet))
        for n, name in enumerate(["a tunnel", "SRv6", "labels"], 1)
        for label, packet in [
            ("IPv4, TTL 1", ip4(src=f"10.{n}.0.7", ttl=1) / udp()),
            ("IPv4, no route", ip4("198.18.0.1", src=f"10.{n}.0.7") / udp()),
            ("IPv6, hop limit 1", ip6(src=f"2001:db8:8{n}::7", hlim=1) / udp()),
        ]
    ],
    links=False,
)


def reported(proto, rest, mtu, frame=Ether(dst=P1, src=N1)):
    """An ICMP error about a packet that the router has sent."""
    quoted = bytes(IP(src="198.51.100.1", dst="198.51.100.2", ttl=64, id=9, proto=proto, len=1300, flags="DF") / Raw(rest))
    return frame / IP(src="198.51.100.3", dst="198.51.100.1", ttl=64, id=7) / ICMP(type=3, code=4, nexthopmtu=mtu) / Raw(quoted)


LONG = Ether(dst=P1, src=N1) / IP(src="198.51.100.2", dst="198.51.100.1", ttl=64, id=9) / udp(1000)
FOR_GRE = b"\0\0\x08\0" + bytes(24)
for name, proto, rest in [("gre", 47, FOR_GRE), ("echo", 1, bytes(8)), ("no-echo", 1, b"\x08" + bytes(7)), ("udp", 17, bytes(8))]:
    Case(
        f"ip/own-pmtu-{name}",
        f"An MTU of a path that no tunnel uses, told of {dict(gre='GRE', echo='an echo reply', udp='UDP').get(name, 'an echo request')}: how much of a packet an error quotes.",
        BASE,
        [
            ("for a port", "p1", LONG),
            ("fragmentation needed, 570, by p0", "p0", reported(proto, rest, 570, frame=Ether(dst=P0, src=N0))),
            ("for a port, after that", "p1", LONG),
            ("fragmentation needed, 560", "p1", reported(proto, rest, 560)),
            ("for a port, after", "p1", LONG),
            ("fragmentation needed, 68", "p1", reported(proto, rest, 68)),
            ("for a port, at last", "p1", LONG),
        ],
        remembers=True,
    )
for name, config in [("anycast", BASE), ("anycast-vrf", VRF)]:
    Case(
        f"ip/ipv6-echo-{name}",
        "An echo reply to an anycast address, or to a group, comes from an address of the link, and leaves by it alone.",
        config,
        [
            (f"to {label}, from behind {behind}, by {port}", port, frame / ip6(to, src=source) / ICMPv6EchoRequest(id=3, seq=1, data=b"x"))
            for label, to in [("the anycast address of p0", "2001:db8:1::"), ("the anycast address of p1", "2001:db8:2::"), ("another address", "2001:db8:77::"), ("all nodes", "ff02::1")]
            for behind, source in [("p0", SOURCE), ("p1", TARGET), ("p0, near", "2001:db8:1::2")]
            for port, frame in [("p0", Ether(dst=P0, src=N0)), ("p1", Ether(dst=P1, src=N1))]
        ],
    )


Case(
    "ip/own-hoplimit",
    "The router's own messages have the hop limit of their route: errors and echo replies.",
    BASE
    + [
        f"ip route replace {SOURCE4}/32 via 192.0.2.2 hoplimit 33",
        f"ip -6 route replace {SOURCE}/128 via 2001:db8:1::2 dev p0 hoplimit 34",
        f"ip route replace {TARGET4}/32 via 198.51.100.2 hoplimit 255",
        f"ip -6 route replace {TARGET}/128 via 2001:db8:2::2 dev p1 hoplimit 1",
    ],
    caused("p0") + caused("p1"),
)

Case(
    "ip/own-hoplimit-tunnel",
    "The same of routes that lead into tunnels, of packets and of frames.",
    BASE
    + [
        "ip link add tun1 type ipip local 198.51.100.1 remote 198.51.100.2 ttl 7",
        "ip link add tun2 address 02:00:00:00:00:77 type gretap local 198.51.100.1 remote 198.51.100.2 ttl inherit",
        "ip link add tun3 type ip6tnl local 2001:db8:2::1 remote 2001:db8:2::2 mode any",
        *(f"ip link set {tunnel} {what}" for tunnel in ("tun1", "tun2", "tun3") for what in ("addrgenmode none", "up")),
        "ip addr add 2001:db8:9::1/64 dev tun2 nodad",
        "ip neigh add 2001:db8:9::2 lladdr 02:00:00:00:01:77 dev tun2 nud permanent",
        f"ip route replace {SOURCE4}/32 dev tun1 hoplimit 33",
        f"ip -6 route replace {SOURCE}/128 dev tun3 hoplimit 34",
        f"ip route replace {TARGET4}/32 dev tun1 hoplimit 9",
        f"ip -6 route replace {TARGET}/128 via 2001:db8:9::2 dev tun2 hoplimit 1",
    ],
    caused("p0") + caused("p1"),
)
