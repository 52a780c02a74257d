"""Forwarding of IPv4 and IPv6, ICMP errors, echo, rules, VRFs, next-hop objects."""

from scapy.all import TCP
from scapy.utils import checksum

from .frames import *

OPTIONS = [IPOption(b"\x94\x04\0\0")]  # router alert: copied into fragments
listed = [
    ("UDP", ip4() / udp()),
    ("TTL 2", ip4(ttl=2) / udp()),
    ("TTL 255, TOS 0xff", IP(src=SOURCE4, dst=TARGET4, ttl=255, tos=0xFF, id=1) / udp()),
    ("no payload", ip4(proto=59)),
    ("1,500 bytes", ip4() / udp(1472)),
    ("1,500 bytes, don't fragment", ip4(flags="DF") / udp(1472)),
    ("a first fragment", ip4(flags="MF") / udp()),
    ("a last fragment", ip4(frag=100, proto=17) / payload(40)),
    ("TCP checksum wrong", ip4(proto=6) / Raw(bytes(20))),
    (
        "record route is not asked of us: no-operation options",
        ip4(options=[IPOption(b"\x01"), IPOption(b"\x01"), IPOption(b"\x01"), IPOption(b"\x00")]) / udp(),
    ),
    ("an unknown option", ip4(options=[IPOption(b"\x9e\x04\0\0")]) / udp()),
    ("checksum that becomes 0", None),
]
for number in range(65536):  # an identification with which the checksum is 0xff00 + … on the way
    probe = ip4()
    probe.id = number
    if bytes(hops(probe / udp()))[10:12] in (b"\0\0", b"\xff\xff"):
        listed[-1] = (listed[-1][0], probe / udp())
        break
Case(
    "ip/ipv4",
    "IPv4 forwarded.",
    BASE,
    **io([(label, ether(p), [to_p1(hops(p))]) for label, p in listed if p]),
)
short = ip4() / Raw(b"tiny")
Case(
    "ip/ipv4-padding",
    "Bytes behind the total length are left behind.",
    BASE,
    **io(
        [
            ("a short frame, padded", behind(ether(short), bytes(22)), [to_p1(hops(short))]),
            ("a trailer", behind(ether(ip4() / udp()), b"trailer"), [to_p1(hops(ip4() / udp()))]),
        ]
    ),
)
listed = [
    ("UDP", ip6() / udp()),
    ("hop limit 2", ip6(hlim=2) / udp()),
    (
        "every bit of traffic class, flow label",
        IPv6(src=SOURCE, dst=TARGET, hlim=255, tc=0xFF, fl=0xFFFFF) / udp(),
    ),
    ("no next header", ip6(nh=59)),
    ("1,500 bytes", ip6() / udp(1452)),
    ("hop-by-hop options", ip6(nh=0) / opts(17, udp())),
    ("destination options", ip6(nh=60) / opts(17, udp())),
    ("a fragment", ip6(nh=44) / fragment(17, udp())),
    ("an SRH for another router", routed(ip6(), [TARGET, "fc00:d::1"], 1, udp())),
    ("a malformed SRH for another router", routed(ip6(), [TARGET, "fc00:d::1"], 1, udp(), last=9)),
    ("an unknown next header", ip6(nh=253) / payload(8)),
]
Case("ip/ipv6", "IPv6 forwarded.", BASE, **io([(label, ether(p), [to_p1(hops(p))]) for label, p in listed]))
short = ip6(nh=59)
Case(
    "ip/ipv6-padding",
    "Bytes behind the payload length are left behind.",
    BASE,
    **io(
        [
            ("a short frame, padded", behind(ether(short), bytes(6)), [to_p1(hops(short))]),
            ("a trailer", behind(ether(ip6() / udp()), b"trailer"), [to_p1(hops(ip6() / udp()))]),
        ]
    ),
)
Case(
    "ip/ipv6-router-alert",
    "A hop-by-hop router alert that nobody listens to is forwarded.",
    BASE,
    **io(
        [
            (
                "router alert, RSVP",
                ether(ip6(nh=0) / Raw(bytes([17, 0, 5, 2, 0, 1, 1, 0])) / udp()),
                [to_p1(hops(ip6(nh=0) / Raw(bytes([17, 0, 5, 2, 0, 1, 1, 0])) / udp()))],
            )
        ]
    ),
)
Case(
    "ip/ipv6-jumbo",
    "A jumbo payload option beside a payload length, with a length that needs none, of another length, out of place.",
    BASE,
    [
        (label, ether(ip6(nh=0) / Raw(bytes.fromhex(text)) / udp()))
        for label, text in [
            ("beside a payload length", "1100c20400010000"),
            ("a length that needs none", "1100c2040000ffff"),
            ("another length", "1100c20300010000"),
            ("out of place", "110000c204000100000100000000000000"[:32]),
            ("in destination options", "3c00010400000000" + "1100c20400010000"),
        ]
    ],
)
Case(
    "ip/ipv6-hop-by-hop-unknown",
    "Unknown hop-by-hop options: skip, discard, discard and tell, tell unless multicast.",
    BASE,
    [
        (f"option type {kind:#x}", ether(ip6(nh=0) / Raw(bytes([17, 0, kind, 4, 0, 0, 0, 0])) / udp()))
        for kind in (0x1E, 0x5E, 0x9E, 0xDE)
    ],
)

# Errors.
packets = [
    ("UDP", ip4(ttl=1) / udp()),
    ("TTL 0", ip4(ttl=0) / udp()),
    ("a long packet", ip4(ttl=1) / udp(1000)),
    ("TOS 0", IP(src=SOURCE4, dst=TARGET4, ttl=1, id=5) / udp()),
    ("a first fragment", ip4(ttl=1, flags="MF") / udp()),
    ("an echo request", ip4(ttl=1) / ICMP(id=7, seq=1) / payload(8)),
]
Case(
    "ip/ipv4-ttl",
    "TTL 1 and 0: time exceeded, 576 bytes at most.",
    BASE,
    [(label, ether(p)) for label, p in packets],
    expect={i: [to_p0(icmp4(p, 11, 0))] for i, (_, p) in enumerate(packets)},
)
Case(
    "ip/ipv4-ttl-silent",
    "TTL 1 of what no error may be sent about: a later fragment, an ICMP error.",
    BASE,
    [
        ("a later fragment", ether(ip4(ttl=1, frag=8, proto=17) / payload(40))),
        ("an ICMP error", ether(ip4(ttl=1) / ICMP(type=3, code=1) / Raw(bytes(INNER4)[:28]))),
        ("from 0.0.0.0", ether(ip4(src="0.0.0.0", ttl=1) / udp())),
        ("to the broadcast MAC", ether(ip4(ttl=1) / udp(), dst="ff:ff:ff:ff:ff:ff")),
    ],
    expect={},
)
# Of ICMP timestamps: scapy would take the time of day.
TIMES = {"ts_ori": 1, "ts_rx": 2, "ts_tx": 3}

Case(
    "ip/ipv4-ttl-icmp",
    "TTL 1 of ICMP messages: of which types the sender hears.",
    BASE,
    [(f"type {kind}", ether(ip4(ttl=1) / ICMP(type=kind, id=7, seq=1, **(TIMES if kind in (13, 14) else {})) / payload(40))) for kind in [*range(21), 40, 128, 255]]
    + [("without a type", ether(ip4(ttl=1, proto=1)))],
)


def with_options(options):
    """An IPv4 packet with these bytes for options."""
    options += bytes(-len(options) % 4)
    head = bytearray(bytes(ip4(ihl=5 + len(options) // 4, len=20 + len(options) + 72, proto=17, chksum=0))[:20] + options)
    head[10:12] = checksum(bytes(head)).to_bytes(2, "big")
    return Raw(bytes(head) + bytes(ip4() / udp())[20:])


Case(
    "ip/ipv4-source-route-malformed",
    "Source routes: one that is sound is dropped silently, the sender hears of others.",
    BASE,
    [
        (label, Ether(dst=P0, src=N0, type=0x0800) / with_options(bytes.fromhex(options)))
        for label, options in [
            ("loose", "8307040a00010200"),
            ("strict, used up", "8907080a00010200"),
            ("no place", "83020000"),
            ("place 0", "8307000a00010200"),
            ("place 3", "8907030a00010200"),
            ("beyond the end", "8309040a00010200"),
            ("two", "8307040a000102" + "8307040a000102" + "0000"),
            ("loose, then a malformed option", "8307040a000102" + "9e"),
            ("after the end", "008307000a000102"),
        ]
    ],
)
packets = [
    ("UDP", ip6(hlim=1) / udp()),
    ("hop limit 0", ip6(hlim=0) / udp()),
    ("a long packet", ip6(hlim=1) / udp(1400)),
    ("an echo request", ip6(hlim=1) / ICMPv6EchoRequest(id=7, seq=1, data=b"x")),
    ("a later fragment", ip6(hlim=1, nh=44) / fragment(17, payload(40), offset=8)),
]
Case(
    "ip/ipv6-hop-limit",
    "Hop limit 1 and 0: time exceeded, 1,280 bytes at most.",
    BASE,
    [(label, ether(p)) for label, p in packets],
    expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(packets)},
)
Case(
    "ip/ipv6-hop-limit-silent",
    "Hop limit 1 of what no error may be sent about: an ICMPv6 error.",
    BASE,
    [
        ("an ICMPv6 error", ether(ip6(hlim=1) / ICMPv6DestUnreach() / Raw(bytes(INNER6)[:60]))),
        ("from ::", ether(ip6(src="::", hlim=1) / udp())),
        ("to the broadcast MAC", ether(ip6(hlim=1) / udp(), dst="33:33:00:00:00:01")),
    ],
    expect={},
)
Case(
    "ip/ipv6-hop-limit-cut-off",
    "Hop limit 1 of what may be an ICMPv6 error, as nothing is where its type would be: of which the sender hears.",
    BASE,
    [
        (f"{what}, {name}", ether(ip6(hlim=1, nh=number) / Raw(head)))
        for name, following in [("of ICMPv6", 58), ("of UDP", 17), ("of destination options", 60)]
        for what, number, head in [
            ("a routing header beyond the end", 43, bytes([following, 38, 4, 0]) + bytes(20)),
            ("destination options beyond the end", 60, bytes([following, 1, 1, 4]) + bytes(4)),
            ("an authentication header beyond the end", 51, bytes([following, 40]) + bytes(14)),
            ("an authentication header with nothing behind it", 51, bytes([following, 2]) + bytes(14)),
            ("a routing header behind the first fragment", 44, bytes([43, 0, 0, 1, 0, 0, 0, 7, following, 38, 4, 0]) + bytes(20)),
            ("the first fragment with nothing in it", 44, bytes([following, 0, 0, 1, 0, 0, 0, 7])),
            ("a fragment header that is cut off", 44, bytes([following, 0, 0, 0])),
            ("one byte of a routing header", 43, bytes([following])),
        ]
    ],
)
TYPES = BASE + [
    "ip route add blackhole 203.0.114.0/24",
    "ip route add unreachable 203.0.115.0/24",
    "ip route add prohibit 203.0.116.0/24",
    "ip route add throw 203.0.117.0/24",
    "ip -6 route add blackhole 2001:db8:14::/48",
    "ip -6 route add unreachable 2001:db8:15::/48",
    "ip -6 route add prohibit 2001:db8:16::/48",
    "ip -6 route add throw 2001:db8:17::/48",
]
packets = [ip4(f"203.0.{n}.1") / udp() for n in (113, 114, 115, 116, 117, 118)]
packets[0].dst = "198.18.0.1"
Case(
    "ip/ipv4-types",
    "Route types: none, blackhole, unreachable, prohibit, throw, none.",
    TYPES,
    [
        (l, ether(p))
        for l, p in zip(
            ["no route", "blackhole", "unreachable", "prohibit", "throw", "no route either"], packets
        )
    ],
)
packets = [ip6(f"2001:db8:{n}::1") / udp() for n in (99, 14, 15, 16, 17)]
Case(
    "ip/ipv6-types",
    "Route types: none, blackhole, unreachable, prohibit, throw.",
    TYPES,
    [(l, ether(p)) for l, p in zip(["no route", "blackhole", "unreachable", "prohibit", "throw"], packets)],
)
Case(
    "ip/order",
    "What is looked at first: no route, TTL 1, too big, in pairs.",
    TYPES + ["ip link set p1 mtu 1280"],
    [
        ("TTL 1, no route", ether(ip4("198.18.0.1", ttl=1) / udp())),
        ("TTL 1, prohibit", ether(ip4("203.0.116.1", ttl=1) / udp())),
        ("TTL 1, too big", ether(ip4(ttl=1, flags="DF") / udp(1300))),
        ("hop limit 1, no route", ether(ip6("2001:db8:99::1", hlim=1) / udp())),
        ("hop limit 1, prohibit", ether(ip6("2001:db8:16::1", hlim=1) / udp())),
        ("hop limit 1, too big", ether(ip6(hlim=1) / udp(1300))),
        ("hop limit 1, blackhole", ether(ip6("2001:db8:14::1", hlim=1) / udp())),
    ],
)

big6, big4 = ip6() / udp(1300), ip4(flags="DF") / udp(1300)
edge6, edge4 = ip6() / udp(1232), ip4(flags="DF") / udp(1252)
Case(
    "ip/ipv6-too-big",
    "Longer than the MTU: packet too big.",
    SMALL,
    **io(
        [
            ("1,348 bytes", ether(big6), [to_p0(too_big(big6, 1280))]),
            ("1,280 bytes: it fits", ether(edge6), [to_p1(hops(edge6))]),
            ("1,281 bytes", ether(ip6() / udp(1233)), [to_p0(too_big(ip6() / udp(1233), 1280))]),
        ]
    ),
)
Case(
    "ip/ipv4-too-big",
    "Longer than the MTU, don't fragment: fragmentation needed.",
    SMALL,
    **io(
        [
            ("1,328 bytes", ether(big4), [to_p0(icmp4(big4, 3, 4, 1280))]),
            ("1,280 bytes: it fits", ether(edge4), [to_p1(hops(edge4))]),
            (
                "1,281 bytes",
                ether(ip4(flags="DF") / udp(1253)),
                [to_p0(icmp4(ip4(flags="DF") / udp(1253), 3, 4, 1280))],
            ),
        ]
    ),
)


def fragments(packet, mtu):
    """RFC 791: the fragments of an IPv4 packet. Options with the copied flag are in each of them; the
    others become no-operations in Linux, so that every header has the same length."""
    whole = bytes(packet)
    size = 4 * (whole[0] & 15)
    options, body = whole[20:size], whole[size:]
    later, at = b"", 0
    while at < len(options):
        if options[at] <= 1:
            n = 1
        else:
            n = options[at + 1]
        later += options[at : at + n] if options[at] & 0x80 or options[at] <= 1 else b"\x01" * n
        at += n
    room, out, offset = mtu - size, [], 0
    while offset < len(body):
        # The last one is no multiple of 8.
        part = body[offset:] if len(body) - offset <= room else body[offset : offset + (room & ~7)]
        more = offset + len(part) < len(body) or bool(packet.flags & 1)
        header = IP(bytes(whole[:20] + (later if offset and not packet.frag else options))[:size])
        header.len, header.frag, header.flags = size + len(part), packet.frag + offset // 8, int(more)
        header.ttl -= 1
        del header.chksum
        out.append(to_p1(header / Raw(part)))
        offset += len(part)
    return out


MTU600 = BASE + ["ip link set p1 mtu 576"]
packets = [
    ("3 fragments", ip4() / udp(1400)),
    ("an exact multiple", ip4() / Raw(bytes(552 * 2))),
    ("1 byte too many", ip4() / udp(549)),
    ("it fits", ip4() / udp(548)),
    ("a last fragment as long as the MTU", ip4() / udp(552 + 548)),
    ("1 byte more", ip4() / udp(552 + 549)),
    ("a first fragment, in fragments", ip4(flags="MF") / udp(1352)),
    ("a middle fragment, in fragments", ip4(flags="MF", frag=170, proto=17) / payload(1360)),
    ("a last fragment, in fragments", ip4(frag=340, proto=17) / payload(1001)),
    ("an option that is copied", ip4(options=OPTIONS) / udp(1000)),
    (
        "an option that is not copied",
        ip4(options=[IPOption(b"\x1e\x04\x05\x06"), IPOption(b"\x94\x04\0\0")]) / udp(1000),
    ),
    (
        "an option that is not copied, of a middle fragment",
        ip4(flags="MF", frag=170, proto=17, options=[IPOption(b"\x1e\x04\x05\x06")]) / payload(1000),
    ),
]
Case(
    "ip/ipv4-fragments",
    "Longer than the MTU: fragments. RFC 791.",
    MTU600,
    **io(
        [
            (label, ether(p), fragments(p, 576) if len(bytes(p)) > 576 else [to_p1(hops(p))])
            for label, p in packets
        ]
    ),
)

# What is not forwarded.
Case(
    "ip/ipv4-martians",
    "Sources and destinations that no router forwards.",
    BASE + ["ip route add default via 198.51.100.2"],
    [
        (f"from {a}", ether(ip4(src=a) / udp()))
        for a in (
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.255",
        )
    ]
    + [
        (f"to {a}", ether(ip4(a) / udp()))
        for a in (
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.5",
            "239.1.2.3",
            "255.255.255.255",
            "240.0.0.1",
            "198.51.100.255",
        )
    ],
)
Case(
    "ip/ipv4-own-source",
    "Source addresses are not validated unless that is asked for: RFC 1812 section 5.3.8.",
    BASE,
    **io(
        [
            (f"from {a}", ether(ip4(src=a) / udp()), [to_p1(hops(ip4(src=a) / udp()))])
            for a in ("192.0.2.1", "198.51.100.1")
        ]
    ),
    differs="it drops packets from its own addresses, in IPv4 and not in IPv6",
)
Case(
    "ip/ipv6-martians",
    "Sources and destinations that no router forwards.",
    BASE + ["ip -6 route add default via 2001:db8:2::2"],
    [
        (f"from {a}", ether(ip6(src=a) / udp()))
        for a in (
            "::1",
            "::",
            "ff02::1",
            "fe80::1234",
            "2001:db8:1::1",
            "2001:db8:2::1",
            "::ffff:1.2.3.4",
            "fec0::1",
        )
    ]
    + [
        (f"to {a}", ether(ip6(a) / udp()))
        for a in ("::1", "ff0e::1234", "ff02::1234", "::ffff:1.2.3.4", "::1.2.3.4", "fec0::1")
    ],
)
Case(
    "ip/ipv6-unspecified",
    "The unspecified address is no destination: RFC 4291 section 2.5.2.",
    BASE + ["ip -6 route add default via 2001:db8:2::2"],
    [("to ::", ether(ip6("::") / udp()))],
    expect={},
    differs="it forwards to ::, where there is a default route",
)
Case(
    "ip/ipv4-link-local",
    "Link-local addresses are not forwarded: RFC 3927 section 2.6.2 and 7.",
    BASE + ["ip route add default via 198.51.100.2"],
    [
        ("to 169.254.1.1", ether(ip4("169.254.1.1") / udp())),
        ("from 169.254.1.1", ether(ip4(src="169.254.1.1") / udp())),
    ],
    expect={},
    differs="it forwards link-local IPv4 addresses",
)
Case(
    "ip/ipv4-malformed",
    "IPv4 headers that are wrong are dropped.",
    BASE,
    [("checksum", ether(ip4(chksum=0x1234) / udp()))]
    + [
        (label, Ether(dst=P0, src=N0, type=0x0800) / Raw(b))
        for label, b in [
            ("version 5", b"\x55" + bytes(ip4() / udp())[1:]),
            ("header length 4", bytes(ip4(ihl=4) / udp())),
            ("header longer than the packet", bytes(ip4(ihl=15) / Raw(b"123"))),
            ("total length beyond the frame", bytes(ip4(len=500) / udp())),
            ("total length shorter than the header", bytes(ip4(len=19) / udp())),
            ("the header cut", bytes(ip4())[:15]),
            ("nothing at all", b""),
            ("an option longer than the header", bytes(ip4(options=[IPOption(b"\x94\x09\0\0")]) / udp())),
            ("an option of length 0", bytes(ip4(options=[IPOption(b"\x94\x00\0\0")]) / udp())),
        ]
    ],
)
Case(
    "ip/ipv6-malformed",
    "IPv6 headers that are wrong are dropped.",
    BASE,
    [
        (label, Ether(dst=P0, src=N0, type=0x86DD) / Raw(b))
        for label, b in [
            ("version 5", b"\x5b" + bytes(ip6() / udp())[1:]),
            ("payload length beyond the frame", bytes(ip6(plen=500) / udp())),
            ("the header cut", bytes(ip6())[:30]),
            ("nothing at all", b""),
            (
                "hop-by-hop options longer than the packet",
                bytes(ip6(nh=0) / Raw(bytes([17, 40, 1, 4, 0, 0, 0, 0]))),
            ),
            (
                "hop-by-hop option longer than its header",
                bytes(ip6(nh=0) / Raw(bytes([17, 0, 1, 44, 0, 0, 0, 0])) / udp()),
            ),
        ]
    ],
)
Case(
    "ip/ipv6-no-length",
    "Hop-by-hop options in a payload of length 0, which is the form of a jumbogram: RFC 2675.",
    BASE,
    [
        ("no jumbo option", ether(ip6(nh=0, plen=0) / opts(17, udp()))),
        ("one that says the length", ether(ip6(nh=0, plen=0) / Raw(bytes([17, 0, 0xC2, 4, 0, 0, 0, 80])) / udp())),
    ],
    expect={},
    differs="it forwards the packet without the option as it is, its length 0",
)
Case(
    "ip/link-layer",
    "Frames that are not for this router.",
    BASE,
    [
        ("another station's MAC", ether(ip6() / udp(), dst="02:00:00:00:77:77")),
        ("broadcast, IPv4", ether(ip4() / udp(), dst="ff:ff:ff:ff:ff:ff")),
        ("multicast, IPv6", ether(ip6() / udp(), dst="33:33:00:00:00:01")),
        ("an unknown EtherType", Ether(dst=P0, src=N0, type=0x88B5) / payload(50)),
        ("a VLAN that is not here", Ether(dst=P0, src=N0) / Dot1Q(vlan=5) / ip6() / udp()),
        ("EtherType IPv4, IPv6 inside", Ether(dst=P0, src=N0, type=0x0800) / Raw(bytes(ip6() / udp()))),
        ("EtherType IPv6, IPv4 inside", Ether(dst=P0, src=N0, type=0x86DD) / Raw(bytes(ip4() / udp()))),
        ("VLAN 0: a priority tag", Ether(dst=P0, src=N0) / Dot1Q(vlan=0, prio=5) / ip6() / udp()),
    ],
)
Case(
    "ip/both-ways",
    "Forwarded from p1 to p0.",
    BASE,
    [
        ("IPv6", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET) / udp()),
        ("IPv4", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, src=TARGET4) / udp()),
    ],
    expect={
        0: [to_p0(hops(ip6(SOURCE, src=TARGET) / udp()))],
        1: [to_p0(hops(ip4(SOURCE4, src=TARGET4) / udp()))],
    },
)
Case(
    "ip/back-out",
    "Out by the port it came in by: no redirect for a host behind the neighbour.",
    BASE
    + [
        "ip -6 route add 2001:db8:9::/48 via 2001:db8:1::2 dev p0",
        "ip route add 203.0.119.0/24 via 192.0.2.2",
    ],
    [("IPv6", ether(ip6("2001:db8:9::1") / udp())), ("IPv4", ether(ip4("203.0.119.1") / udp()))],
)

# The router's own addresses.
ECHO4 = [("p0's address", "192.0.2.1"), ("p1's address", "198.51.100.1")]
Case(
    "ip/ipv4-echo",
    "Echo requests to the router's own addresses, with and without data, TOS kept.",
    BASE,
    **io(
        [
            (
                label,
                ether(ip4(a) / ICMP(id=7, seq=n) / payload(56)),
                [
                    to_p0(
                        IP(src=a, dst=SOURCE4, ttl=64, tos=0xB8, id=0)
                        / ICMP(type=0, id=7, seq=n)
                        / payload(56)
                    )
                ],
            )
            for n, (label, a) in enumerate(ECHO4)
        ]
        + [
            (
                "no data",
                ether(ip4("192.0.2.1") / ICMP(id=7, seq=9)),
                [to_p0(IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=9))],
            ),
            (
                "odd length",
                ether(ip4("192.0.2.1") / ICMP(id=7, seq=9) / payload(33)),
                [
                    to_p0(
                        IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0)
                        / ICMP(type=0, id=7, seq=9)
                        / payload(33)
                    )
                ],
            ),
            (
                "TTL 1",
                ether(ip4("192.0.2.1", ttl=1) / ICMP(id=7, seq=9)),
                [to_p0(IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=9))],
            ),
            ("checksum wrong", ether(ip4("192.0.2.1") / ICMP(id=7, seq=9, chksum=1)), []),
        ]
    ),
)
Case(
    "ip/ipv6-echo",
    "Echo requests to the router's own addresses.",
    BASE,
    [
        ("p0's address", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=1, data=bytes(56)))),
        ("p1's address", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=7, seq=2, data=bytes(56)))),
        ("no data", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=3))),
        ("hop limit 1", ether(ip6("2001:db8:1::1", hlim=1) / ICMPv6EchoRequest(id=7, seq=4))),
        ("checksum wrong", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=5, cksum=1))),
        (
            "destination options",
            ether(
                ip6("2001:db8:1::1", nh=60)
                / Raw(bytes([58, 0, 1, 4, 0, 0, 0, 0]))
                / Raw(bytes(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=6))[40:])
            ),
        ),
    ],
)
Case(
    "ip/own-ports",
    "UDP and TCP to the router's own addresses, where nothing listens.",
    BASE,
    [
        ("UDP, IPv4", ether(ip4("192.0.2.1") / udp())),
        ("UDP, IPv6", ether(ip6("2001:db8:1::1") / udp())),
        ("an unknown protocol, IPv4", ether(ip4("192.0.2.1", proto=253) / payload(8))),
        ("an unknown next header, IPv6", ether(ip6("2001:db8:1::1", nh=253) / payload(8))),
    ],
)
# What is of no use where it is is not looked into.
Case(
    "ip/own-headers-misplaced",
    "Extension headers for the router itself that it has no use for: whole, and longer than the packet.",
    BASE,
    [
        (
            f"{label}, {whole}",
            ether(ip6("2001:db8:1::1", nh=first) / Raw(before + bytes([59, length]) + bytes(22))),
        )
        for label, first, before in [
            ("hop-by-hop options behind destination options", 60, bytes.fromhex("0000010400000000")),
            ("hop-by-hop options behind two others", 0, bytes.fromhex("3c000104000000000000010400000000")),
            ("an authentication header", 51, b""),
            ("an authentication header behind destination options", 60, bytes.fromhex("3300010400000000")),
            ("destination options behind others", 60, bytes.fromhex("3c00010400000000")),
            ("a routing header behind destination options", 60, bytes.fromhex("2b00010400000000")),
            ("a fragment behind destination options", 60, bytes.fromhex("2c00010400000000")),
        ]
        for whole, length in [("whole", 1), ("longer than the packet", 200)]
    ],
)

# VRFs, rules, next-hop objects.
Case(
    "ip/vrf",
    "Two tables with the same prefixes: a packet stays in the VRF of its port.",
    VRF
    + [
        "ip -6 route add 2001:db8:8::/48 via 2001:db8:2::2 dev p1 table 100",
        "ip -6 route add 2001:db8:9::/48 via 2001:db8:1::2 dev p0",
        "ip route add 203.0.120.0/24 via 198.51.100.2 dev p1 table 100",
    ],
    [
        ("IPv6 by p0 to a prefix of the VRF", ether(ip6("2001:db8:8::1") / udp())),
        ("IPv4 by p0 to a prefix of the VRF", ether(ip4("203.0.120.1") / udp())),
        (
            "IPv6 by p1 to a prefix of the VRF",
            "p1",
            Ether(dst=P1, src=N1) / ip6("2001:db8:8::1", src=TARGET) / udp(),
        ),
        (
            "IPv6 by p1 to a prefix of main",
            "p1",
            Ether(dst=P1, src=N1) / ip6("2001:db8:9::1", src=TARGET) / udp(),
        ),
        (
            "echo to the VRF's address",
            "p1",
            Ether(dst=P1, src=N1) / ip6("2001:db8:2::1", src=TARGET) / ICMPv6EchoRequest(id=1),
        ),
        ("echo to the VRF's address from main", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=3))),
    ],
)
Case(
    "ip/vrf-unreachable",
    "A VRF with an unreachable default does not fall through to main.",
    VRF
    + [
        "ip -6 route add unreachable default metric 4278198272 table 100",
        "ip route add unreachable default metric 4278198272 table 100",
    ],
    [
        ("IPv6", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET) / udp()),
        ("IPv4", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, src=TARGET4) / udp()),
    ],
)
RULES = BASE + [
    "ip -6 route add default via 2001:db8:2::3 dev p1 table 200",
    "ip route add default via 198.51.100.3 dev p1 table 200",
]
for name, rule in [
    ("from", "from 2001:db8:5::/64"),
    ("not-from", "not from 2001:db8:7::/64"),
    ("iif", "iif p0"),
    ("to", "to 2001:db8:6::/64"),
    ("tos", "tos 0x10"),
    ("ipproto", "ipproto udp"),
    ("dport", "ipproto udp dport 2222"),
    ("dport-range", "ipproto udp dport 2000-3000"),
    ("sport", "ipproto udp sport 1000-1200"),
]:
    rules = [
        f"ip -6 rule add {rule} table 200 pref 100",
        f"ip rule add {rule.replace('2001:db8:5::/64', '203.0.113.0/29').replace('2001:db8:7::/64', '203.0.120.0/24').replace('2001:db8:6::/64', '203.0.113.128/25')} table 200 pref 100",
    ]
    Case(
        f"ip/rule-{name}",
        f"A policy rule: {rule}.",
        RULES + rules,
        [
            ("IPv6", ether(ip6() / udp())),
            ("IPv4", ether(ip4() / udp())),
            ("IPv6, other source", ether(ip6(src="2001:db8:7::1") / udp())),
            ("IPv4, other source", ether(ip4(src="203.0.120.1") / udp())),
            ("IPv6, other destination", ether(ip6("2001:db8:8::1") / udp())),
            ("IPv6, other ports", ether(ip6() / UDP(sport=5, dport=6) / payload(8))),
            ("IPv4, other ports", ether(ip4() / UDP(sport=5, dport=6) / payload(8))),
            ("IPv6, traffic class 0x10", ether(IPv6(src=SOURCE, dst=TARGET, hlim=40, tc=0x10) / udp())),
            ("IPv4, TOS 0x10", ether(IP(src=SOURCE4, dst=TARGET4, ttl=40, tos=0x10) / udp())),
            ("IPv6, traffic class 0x12", ether(IPv6(src=SOURCE, dst=TARGET, hlim=40, tc=0x12) / udp())),
            ("IPv6 by p1", "p1", Ether(dst=P1, src=N1) / ip6(TARGET, src="2001:db8:9::1") / udp()),
        ],
    )
Case(
    "ip/rule-actions",
    "Policy rules that end the look-up: blackhole, unreachable, prohibit.",
    RULES
    + [
        "ip -6 rule add to 2001:db8:14::/48 blackhole pref 100",
        "ip -6 rule add to 2001:db8:15::/48 unreachable pref 101",
        "ip -6 rule add to 2001:db8:16::/48 prohibit pref 102",
        "ip -6 rule add table 200 pref 104",
        "ip rule add to 203.0.114.0/24 blackhole pref 100",
        "ip rule add to 203.0.115.0/24 unreachable pref 101",
        "ip rule add to 203.0.116.0/24 prohibit pref 102",
    ],
    [
        ("IPv6 blackhole", ether(ip6("2001:db8:14::1") / udp())),
        ("IPv6 unreachable", ether(ip6("2001:db8:15::1") / udp())),
        ("IPv6 prohibit", ether(ip6("2001:db8:16::1") / udp())),
        ("IPv6 table 200", ether(ip6("2001:db8:77::1") / udp())),
        ("IPv4 blackhole", ether(ip4("203.0.114.1") / udp())),
        ("IPv4 unreachable", ether(ip4("203.0.115.1") / udp())),
        ("IPv4 prohibit", ether(ip4("203.0.116.1") / udp())),
    ],
)
Case(
    "ip/rule-goto",
    "A policy rule that goes on at another.",
    RULES + ["ip -6 rule add to 2001:db8:6::/48 goto 32766 pref 103", "ip -6 rule add table 200 pref 104"],
    [("goto main", ether(ip6() / udp())), ("table 200", ether(ip6("2001:db8:77::1") / udp()))],
)
Case(
    "ip/rule-suppress",
    "suppress_prefixlength 0: the default route of the table does not count.",
    RULES
    + [
        "ip -6 rule add table main suppress_prefixlength 0 pref 100",
        "ip -6 rule add table 200 pref 101",
        "ip -6 route add default via 2001:db8:2::2 dev p1",
    ],
    [("a specific route", ether(ip6() / udp())), ("only the default", ether(ip6("2001:db8:77::1") / udp()))],
)
Case(
    "ip/rule-suppress-errors",
    "suppress_prefixlength: routes that end a look-up with an error count, unless a longer one is suppressed.",
    RULES
    + [
        "ip -6 route add prohibit 2001:db8:66::/48 table 201",
        "ip -6 route add 2001:db8:66:1::/64 via 2001:db8:2::3 dev p1 table 201",
        "ip -6 route add default via 2001:db8:2::2 dev p1 table 201",
        "ip route add blackhole 203.0.0.0/16 table 201",
        "ip route add 203.0.120.0/24 via 198.51.100.3 table 201",
        "ip route add 203.0.121.0/25 via 198.51.100.3 table 201",
        "ip route add 203.0.0.0/16 via 198.51.100.2",
        "ip -6 rule add table 201 suppress_prefixlength 64 pref 100",
        "ip -6 rule add table 200 pref 101",
        "ip rule add table 201 suppress_prefixlength 24 pref 100",
    ],
    [
        ("IPv6 prohibit", ether(ip6("2001:db8:66::1") / udp())),
        ("IPv6, longer and suppressed", ether(ip6("2001:db8:66:1::1") / udp())),
        ("IPv6, suppressed", ether(ip6("2001:db8:77::1") / udp())),
        ("IPv4 blackhole", ether(ip4("203.0.119.1") / udp())),
        ("IPv4, longer and suppressed", ether(ip4("203.0.120.1") / udp())),
        ("IPv4, not suppressed", ether(ip4("203.0.121.1") / udp())),
    ],
)
Case(
    "ip/throw",
    "throw goes on with the next rule.",
    RULES
    + [
        "ip -6 rule add table 201 pref 100",
        "ip -6 route add throw 2001:db8:6::/48 table 201",
        "ip -6 route add 2001:db8:66::/48 via 2001:db8:2::3 dev p1 table 201",
        "ip rule add table 201 pref 100",
        "ip route add throw 203.0.113.128/25 table 201",
        "ip route add default via 198.51.100.3 table 201",
    ],
    [
        ("IPv6 throw", ether(ip6() / udp())),
        ("IPv6 in table 201", ether(ip6("2001:db8:66::1") / udp())),
        ("IPv4 throw", ether(ip4() / udp())),
        ("IPv4 in table 201", ether(ip4("203.0.120.1") / udp())),
    ],
)
Case(
    "ip/nexthop-objects",
    "Routes with next-hop objects: one, a group of one, a blackhole, IPv4 by an IPv6 next hop.",
    BASE
    + [
        "ip nexthop add id 1 via 2001:db8:2::3 dev p1",
        "ip nexthop add id 2 via 198.51.100.3 dev p1",
        "ip -6 nexthop add id 3 blackhole",
        "ip nexthop add id 4 blackhole",
        "ip nexthop add id 10 group 1",
        "ip nexthop add id 11 group 2",
        "ip -6 route add 2001:db8:20::/48 nhid 1",
        "ip -6 route add 2001:db8:21::/48 nhid 10",
        "ip -6 route add 2001:db8:22::/48 nhid 3",
        "ip route add 203.0.120.0/24 nhid 2",
        "ip route add 203.0.121.0/24 nhid 11",
        "ip route add 203.0.122.0/24 nhid 4",
        "ip route add 203.0.123.0/24 nhid 1",
    ],
    [(f"IPv6, route {n}", ether(ip6(f"2001:db8:{n}::1") / udp())) for n in (20, 21, 22)]
    + [(f"IPv4, route {n}", ether(ip4(f"203.0.{n}.1") / udp())) for n in (120, 121, 122, 123)],
)
Case(
    "ip/longest-match",
    "The longest prefix wins, whatever the order.",
    BASE
    + [
        "ip -6 route add default via 2001:db8:2::2 dev p1",
        "ip -6 route add 2001:db8:6:8000::/49 via 2001:db8:2::3 dev p1",
        "ip -6 route add 2001:db8:6::77/128 via 2001:db8:1::2 dev p0",
        "ip route add default via 198.51.100.2",
        "ip route add 203.0.113.192/26 via 198.51.100.3",
        "ip route add 203.0.113.200/32 via 192.0.2.2",
    ],
    [
        (a, ether(ip6(a) / udp()))
        for a in (
            "2001:db8:77::1",
            "2001:db8:6:7fff::1",
            "2001:db8:6:8000::1",
            "2001:db8:6::77",
            "2001:db8:6::78",
        )
    ]
    + [
        (a, ether(ip4(a) / udp()))
        for a in ("8.8.8.8", "203.0.113.191", "203.0.113.192", "203.0.113.200", "203.0.113.201")
    ],
)
Case(
    "ip/metrics",
    "Of two routes to one prefix the lower metric wins.",
    BASE
    + [
        "ip -6 route add 2001:db8:20::/48 via 2001:db8:2::2 dev p1 metric 200",
        "ip -6 route add 2001:db8:20::/48 via 2001:db8:2::3 dev p1 metric 100",
        "ip route add 203.0.120.0/24 via 198.51.100.3 metric 100",
        "ip route add 203.0.120.0/24 via 198.51.100.2 metric 200",
    ],
    [("IPv6", ether(ip6("2001:db8:20::1") / udp())), ("IPv4", ether(ip4("203.0.120.1") / udp()))],
)
route_mtu6 = ip6("2001:db8:20::1") / udp(1300)
Case(
    "ip/ipv6-route-mtu",
    "An MTU on the route.",
    BASE + ["ip -6 route add 2001:db8:20::/48 via 2001:db8:2::2 dev p1 mtu 1300"],
    [("1,348 bytes", ether(route_mtu6))],
    expect={0: [to_p0(too_big(route_mtu6, 1300))]},
    differs="it quotes the packet with its hop limit already lowered",
)
Case(
    "ip/ipv4-route-mtu",
    "An MTU on the route.",
    BASE
    + [
        "ip route add 203.0.120.0/24 via 198.51.100.2 mtu 1300",
        "ip route add 203.0.121.0/24 via 198.51.100.2 mtu lock 1300",
    ],
    [
        ("1,328 bytes, don't fragment", ether(ip4("203.0.120.1", flags="DF") / udp(1300))),
        ("locked", ether(ip4("203.0.121.1", flags="DF") / udp(1300))),
    ],
)
Case(
    "ip/srh-for-router",
    "An SRH for one of the router's own addresses, which is no SID: not taken, seg6_enabled being 0.",
    BASE,
    [
        ("segments left 1", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp()))),
        ("segments left 0, UDP", ether(routed(ip6("2001:db8:1::1"), [NEXT, "2001:db8:1::1"], 0, udp()))),
        (
            "segments left 0, echo request",
            ether(
                routed(
                    ip6("2001:db8:1::1"),
                    [NEXT, "2001:db8:1::1"],
                    0,
                    Raw(bytes(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=9))[40:]),
                    nh=58,
                )
            ),
        ),
        ("hop limit 1", ether(routed(ip6("2001:db8:1::1", hlim=1), ["2001:db8:1::1", NEXT], 1, udp()))),
        ("malformed", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp(), last=9))),
        ("routing type 0", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp(), kind=0))),
    ],
)

Case(
    "ip/errors-by-other-port",
    "An error leaves by another port than the packet came in by: whose address is its source?",
    BASE
    + [
        "ip -6 route add 2001:db8:30::/48 via 2001:db8:2::2 dev p1",
        "ip route add 203.0.130.0/24 via 198.51.100.2",
    ],
    [
        ("IPv6, hop limit 1", ether(ip6(src="2001:db8:30::1", hlim=1) / udp())),
        ("IPv6, no route", ether(ip6("2001:db8:99::1", src="2001:db8:30::1") / udp())),
        ("IPv4, TTL 1", ether(ip4(src="203.0.130.1", ttl=1) / udp())),
        ("IPv4, no route", ether(ip4("198.18.0.1", src="203.0.130.1") / udp())),
    ],
)

# ------------------------------------------------------------------- TCP, to which nothing listens here


def TOS(packet, tos):
    packet[0].fields["tc" if isinstance(packet, IPv6) else "tos"] = tos
    return packet


def tcp_to(*labelled):
    return [(label, ether(packet / segment / payload(n))) for label, packet, segment, n in labelled]


for name, own, make in [
    ("ipv4-tcp", "192.0.2.1", lambda **more: ip4("192.0.2.1", **more)),
    ("ipv6-tcp", "2001:db8:1::1", lambda **more: ip6("2001:db8:1::1", **more)),
]:
    segment = lambda **more: TCP(sport=1111, dport=80, seq=1000, ack=2000, **more)
    Case(
        f"ip/{name}",
        "TCP segments for the router: nothing listens, a reset says so.",
        BASE,
        tcp_to(
            ("SYN", make(), segment(flags="S"), 0),
            ("SYN with data", make(), segment(flags="S"), 10),
            ("ACK", make(), segment(flags="A"), 10),
            ("FIN and ACK", make(), segment(flags="FA"), 0),
            ("FIN", make(), segment(flags="F"), 5),
            ("no flags", make(), segment(flags=""), 5),
            ("RST", make(), segment(flags="R"), 0),
            ("RST and ACK", make(), segment(flags="RA"), 0),
            ("options", make(), segment(flags="S", options=[("MSS", 1460), ("NOP", None), ("WScale", 7)]), 0),
            ("a wrong checksum", make(), segment(flags="S", chksum=1), 0),
            ("a data offset below 5", make(), segment(flags="S", dataofs=4), 0),
            ("a data offset behind the end", make(), segment(flags="S", dataofs=9), 4),
        )
        + [
            ("a class, congestion experienced", ether(TOS(make(), 0x2B) / segment(flags="S"))),
            ("as a broadcast", ether(make() / segment(flags="S"), dst="ff:ff:ff:ff:ff:ff")),
            ("half a header", ether(make(**({"nh": 6} if name == "ipv6-tcp" else {"proto": 6})) / payload(10))),
        ],
    )


def options(packet, text):
    """With these options, in hexadecimal."""
    packet.options = [IPOption(bytes.fromhex(text))]
    return packet


Case(
    "ip/ipv4-options-end",
    "What follows the end of the options is cleared.",
    BASE,
    [
        ("the end alone", ether(options(ip4(), "00000000") / udp())),
        ("bytes behind it", ether(options(ip4(), "00010203") / udp())),
        ("behind a no-operation", ether(options(ip4(), "0100ff07") / udp())),
        ("behind router alert", ether(options(ip4(), "9404000000440801") / udp())),
        ("none", ether(options(ip4(), "01010101") / udp())),
        ("an echo request", ether(options(ip4("192.0.2.1"), "000a0b0c") / ICMP(id=1, seq=2))),
        ("1,500 bytes", ether(options(ip4(), "940400000001ff07") / udp(1464))),
    ],
)

Case(
    "ip/ipv4-security",
    "A commercial security option (FIPS 188) is passed on, and what is wrong with it is told.",
    BASE,
    [
        ("a tag", ether(options(ip4(), "860a0000000105040001" + "0000") / udp())),
        ("two tags", ether(options(ip4(), "860c00000001010301020301"[:24]) / udp())),
        ("no tag but its header", ether(options(ip4(), "8608000000010102") / udp())),
        ("six bytes", ether(options(ip4(), "8606000000010000") / udp())),
        ("seven bytes", ether(options(ip4(), "8607000000010200") / udp())),
        ("no domain", ether(options(ip4(), "860a0000000005040001" + "0000") / udp())),
        ("a tag of no length", ether(options(ip4(), "860a0000000105000001" + "0000") / udp())),
        ("a tag that is too long", ether(options(ip4(), "860a0000000105050001" + "0000") / udp())),
        ("a tag without a length", ether(options(ip4(), "8609000000010102050000" + "00") / udp())),
        ("two of them", ether(options(ip4(), "86080000000101028608000000010102") / udp())),
        ("longer than the header", ether(options(ip4(), "8620000000010102") / udp())),
        ("for the router itself", ether(options(ip4("192.0.2.1"), "860a0000000005040001" + "0000") / ICMP(id=1, seq=2))),
        ("an echo request", ether(options(ip4("192.0.2.1"), "860a0000000105040001" + "0000") / ICMP(id=1, seq=2))),
    ],
)

Case(
    "ip/ipv4-record-route",
    "A route is recorded in what is forwarded and echoed, and what is wrong is told.",
    BASE,
    [
        ("room for two", ether(options(ip4(), "070b040000000000000000" + "00") / udp())),
        ("room for one", ether(options(ip4(), "070708c0000209000000"[:14] + "00") / udp())),
        ("no room", ether(options(ip4(), "070708c000020900") / udp())),
        ("behind a no-operation", ether(options(ip4(), "01070704000000000000"[:16]) / udp())),
        ("a place too low", ether(options(ip4(), "0707030000000000") / udp())),
        ("an echo request", ether(options(ip4("192.0.2.1"), "070b040000000000000000" + "00") / ICMP(id=1, seq=2))),
        ("times and addresses, no room: counted", ether(options(ip4(), "440c0d01c000020900000001") / udp())),
        ("times, no room and no count left", ether(options(ip4(), "44080900f0000001"[:6] + "f0" + "00000001") / udp())),
        ("to be fragmented", ether(options(ip4(), "070b040000000000000000" + "00") / udp(1458))),
    ],
)
Case(
    "ip/vrf-source",
    "An error that leaves the VRF comes from the address of its device.",
    [
        "ip link set p0 up",
        "ip link set p1 up",
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip addr add 192.0.2.200/32 dev vrf100",
        "ip link set p0 master vrf100",
        "ip addr add 192.0.2.1/24 dev p0",
        "ip addr add 198.51.100.1/24 dev p1",
        "ip neigh add 198.51.100.2 lladdr 02:00:00:00:02:02 dev p1 nud permanent",
        "ip route add 10.9.0.0/16 via 198.51.100.2 dev p1 table 100",
    ],
    [("no route", ether(IP(src="10.9.0.1", dst="203.0.114.9", ttl=9) / udp()))],
)
segment = lambda **more: TCP(sport=1111, dport=80, seq=1000, ack=2000, **more)
Case(
    "ip/ipv4-tcp-options",
    "A reset has the options that are echoed, in which it is recorded as well.",
    BASE,
    [
        (label, ether(options(ip4("192.0.2.1"), text) / segment(flags="S") / payload(n)))
        for n, (label, text) in enumerate(
            [
                ("a route, room for two", "070b04000000000000000000"),
                ("a route, room for one", "0707040000000000"),
                ("times, no room: counted", "4408090000000001"),
                ("router alert", "94040000"),
                ("a route behind times", "4408090000000001" + "070b04000000000000000000"),
                ("no-operations", "01010101"),
            ]
        )
    ],
)


def asks_time(size):
    """A request for a timestamp of so many bytes."""
    message = bytearray(struct.pack("!BBHHH3I", 13, 0, 0, 7, 9, 1, 2, 3).ljust(size, b"x")[:size])
    message[2:4] = struct.pack("!H", checksum(bytes(message)))
    return Raw(bytes(message))


Case(
    "ip/ipv4-timestamp",
    "Requests for a timestamp: RFC 792.",
    BASE,
    [
        ("a request", ether(ip4("192.0.2.1", flags="DF") / ICMP(type=13, code=0, id=7, seq=9, **TIMES))),
        ("with a code and more behind it", ether(ip4("192.0.2.1") / ICMP(type=13, code=5, id=7, seq=9, **TIMES) / payload(13))),
        ("to the other port", ether(ip4("198.51.100.1") / ICMP(type=13, id=7, seq=10, **{**TIMES, "ts_ori": 0x01020304}))),
        ("a wrong checksum", ether(ip4("192.0.2.1") / ICMP(type=13, id=7, seq=9, chksum=0x1234, **TIMES))),
        ("too short", ether(ip4("192.0.2.1", proto=1) / Raw(bytes.fromhex("0d00f2ff00000000")))),
        *[
            (f"{n} bytes, {label}", ether(ip4("192.0.2.1", proto=1, **more) / asks_time(n)))
            for n in (*range(8, 21), 32)
            for label, more in [("as it is", {}), ("with an option", {"options": OPTIONS})]
        ],
        ("a reply", ether(ip4("192.0.2.1") / ICMP(type=14, id=7, seq=9, **TIMES))),
        ("for a group", ether(ip4("224.0.0.1") / ICMP(type=13, id=7, seq=9, **TIMES), dst="01:00:5e:00:00:01")),
        ("options", ether(options(ip4("192.0.2.1"), "070b040000000000000000" + "00") / ICMP(type=13, id=1, seq=2, **TIMES))),
    ],
)
# The message quotes less than the packet, and whose its destination is rules decide.
Case(
    "ip/option-wrong-own",
    "A wrong option in packets for addresses of the router's, short ones and long ones: the error comes from that address.",
    BASE + ["ip rule add from 203.0.113.77 lookup 100", "ip -6 rule add from 2001:db8:77::1 lookup 100"],
    [
        (f"{to}, {n} bytes", ether(options(ip4(to), "4403050000000000") / udp(n)))
        for to in ("192.0.2.1", "198.51.100.1")
        for n in (8, 700, 1400)
    ]
    + [
        (f"{to}, {n} bytes", ether(ip6(to, nh=0) / Raw(bytes([17, 0, 0x9E, 1, 0, 1, 1, 0])) / udp(n)))
        for to in ("2001:db8:1::1", "2001:db8:2::1")
        for n in (8, 1300, 1400)
    ],
)
GROUPS = [("broadcast", "ff:ff:ff:ff:ff:ff"), ("group", "33:33:00:00:00:01"), ("the port", P0)]
Case(
    "ip/option-in-group-frame",
    "An unknown hop-by-hop option whose two highest bits are 10 is told of in a frame for a group, too: RFC 4443 section 2.4.",
    BASE,
    [
        (f"option {kind:02x}, {to}", ether(ip6(nh=0) / Raw(bytes([17, 0, kind, 1, 0, 1, 1, 0])) / udp(), dst=dst))
        for kind in (0x1E, 0x5E, 0x9E, 0xDE)
        for to, dst in GROUPS
    ]
    + [
        (f"for the router's {of}, {to}", ether(ip6(address, nh=0) / Raw(bytes([17, 0, 0x9E, 1, 0, 1, 1, 0])) / udp(), dst=dst))
        for of, address in [("address", "2001:db8:1::1"), ("address at the other port", "2001:db8:2::1")]
        for to, dst in GROUPS
    ],
)


def part(number, nh, inner, offset=0, more=1, before=b"", named=44):
    """A fragment for the router of `inner`, which `nh` names. `before` its fragment header, and `named` what is first."""
    return ip6("2001:db8:1::1", nh=named) / Raw(before + struct.pack("!BBHI", nh, 0, offset << 3 | more, number) + inner)


OPTION_HEADERS = {
    "hop-by-hop options": (0, bytes([44, 0, 1, 4, 0, 0, 0, 0])),
    "destination options": (60, bytes([44, 0, 1, 4, 0, 0, 0, 0])),
    "an SRH that is used up": (43, bytes([44, 2, 4, 0, 0, 0, 0, 0]) + bytes.fromhex("20010db8000600000000000000000006")),
}
first = [
    *[
        (f"{name}, {n} bytes", (nh, bytes(n)))
        for name, nh, sizes in [
            ("TCP", 6, (0, 8, 16, 24)),
            ("UDP", 17, (0, 8)),
            ("ICMPv6", 58, (0, 8)),
            ("SCTP", 132, (0, 8)),
            ("UDP-Lite", 136, (0, 8)),
            ("no next header", 59, (0, 8)),
            ("an unknown protocol", 253, (0, 8)),
            ("IPv6", 41, (0, 8, 40)),
        ]
        for n in sizes
    ],
    ("TCP, 9 bytes", (6, bytes(9))),
    ("TCP, 23 bytes", (6, bytes(23))),
    ("ICMPv6, an error", (58, bytes([1, 0, 0, 0]) + bytes(4))),
    *[(f"destination options, TCP, {n} bytes", (60, bytes([6, 0, 1, 4, 0, 0, 0, 0]) + bytes(n))) for n in (0, 8, 16, 24)],
    ("destination options that are cut off", (60, bytes([6, 1, 1, 4, 0, 0, 0, 0]))),
    ("destination options of 0 bytes", (60, b"")),
    ("hop-by-hop options that are cut off", (0, bytes([6, 1, 1, 4, 0, 0, 0, 0]))),
    ("a routing header that is cut off", (43, bytes([6, 2, 4, 0, 0, 0, 0, 0]))),
    ("authentication that is cut off", (51, bytes([6, 4, 0, 0, 0, 0, 0, 0]))),
    ("authentication, TCP, 8 bytes", (51, bytes([6, 4, 0, 0]) + bytes(20 + 8))),
    ("a fragment header, TCP, 8 bytes", (44, bytes([6, 0, 0, 1, 0, 0, 0, 7]) + bytes(8))),
    ("a fragment header that is not of the first, TCP, 8 bytes", (44, bytes([6, 0, 0, 9, 0, 0, 0, 7]) + bytes(8))),
]
first = [(label, part(n, nh, inner)) for n, (label, (nh, inner)) in enumerate(first)]
Case(
    "ip/ipv6-first-fragments",
    "First fragments for the router without all headers: RFC 8200 section 4.5.",
    BASE,
    [(label, ether(p)) for label, p in first]
    + [
        (f"behind {name}: TCP, {n} bytes, at {offset}{', the last' if not more else ''}", ether(part(100 + n, 6, bytes(n), offset, more, before, named)))
        for name, (named, before) in OPTION_HEADERS.items()
        for n, offset, more in [(8, 0, 1), (24, 0, 1), (8, 3, 1), (24, 4, 1), (8, 7, 0), (8, 8191, 1)]
    ]
    + [
        ("behind an option that is told of: TCP, 8 bytes", ether(part(200, 6, bytes(8), before=bytes([44, 0, 0x9E, 4, 0, 0, 0, 0]), named=60))),
        ("at 3: TCP, 8 bytes", ether(part(201, 6, bytes(8), 3))),
        ("the whole: TCP, 8 bytes", ether(part(202, 6, bytes(8), more=0))),
        ("again, after others of the same packet: TCP, 8 bytes", ether(part(201, 6, bytes(8)))),
        ("to a group", ether(ip6("ff02::1", nh=44) / fragment(6, Raw(bytes(8))), dst="33:33:00:00:00:01")),
        ("in a frame for all", ether(first[1][1], dst="ff:ff:ff:ff:ff:ff")),
        ("to the other port", ether(ip6("2001:db8:2::1", nh=44) / fragment(6, Raw(bytes(8))))),
        ("to another router", ether(ip6(nh=44) / fragment(6, Raw(bytes(8))))),
    ],
    remembers=True,
)
