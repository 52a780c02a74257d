"""MPLS: RFC 3031, RFC 3032, RFC 3443; what Linux's mpls_forward, mpls_xmit and mpls_egress send. Of what Linux drops
silently the sender is told, with the labels: RFC 3032 sections 2.3 and 3, RFC 4884, RFC 4950."""

from scapy.contrib.mpls import MPLS

from scapy.layers.inet6 import in6_chksum
from scapy.utils import checksum

from .frames import *

ON = [
    "sysctl -qw net.mpls.platform_labels=2000",
    "sysctl -qw net.mpls.conf.p0.input=1",
    "sysctl -qw net.mpls.conf.p1.input=1",
]
VIA4, VIA6 = "via inet 198.51.100.2 dev p1", "via inet6 2001:db8:2::2 dev p1"


def labels(numbers, inner=b"", ttl=40, cos=5):
    """A label stack, the outermost first, before `inner`."""
    stack = b"".join(
        bytes(MPLS(label=n, cos=cos, s=i + 1 == len(numbers), ttl=ttl)) for i, n in enumerate(numbers)
    )
    return Raw(stack + bytes(inner))


def frame(packet, dst=P0):
    return Ether(dst=dst, src=N0, type=0x8847) / packet


def routes(*lines, base=BASE, more=()):
    return base + ON + list(more) + [f"ip -f mpls route add {line}" for line in lines]


FOUR, SIX = ip4() / udp(), ip6() / udp()
PACKETS = [
    ("IPv4", labels([100], FOUR)),
    ("IPv6", labels([100], SIX)),
    ("TTL 255, class 0", labels([100], FOUR, ttl=255, cos=0)),
    ("TTL 2", labels([100], FOUR, ttl=2)),
    ("another label below", labels([100, 300], FOUR)),
    ("three labels", labels([100, 300, 301], SIX)),
    ("IPv4 of TTL 1", labels([100], ip4(ttl=1) / udp())),
    ("IPv6 of hop limit 1", labels([100], ip6(hlim=1) / udp())),
    ("IPv4 with options", labels([100], ip4(options=[IPOption(b"\x94\x04\x00\x00")]) / udp())),
    ("a long packet", labels([100], ip4() / udp(1400))),
]
ALL = [(label, frame(p)) for label, p in PACKETS]

for name, doc, line in [
    ("swap", "one label for another", f"100 as 200 {VIA4}"),
    ("swap-2", "one label for two", f"100 as 200/201 {VIA4}"),
    ("swap-30", "one label for 30", f"100 as {'/'.join(str(n) for n in range(1000, 1030))} {VIA6}"),
    ("pop", "penultimate hop popping", f"100 {VIA4}"),
    ("pop-6", "penultimate hop popping to an IPv6 neighbour", f"100 {VIA6}"),
    ("pop-pipe", "the packet keeps its own TTL", f"100 ttl-propagate disabled {VIA4}"),
    ("swap-link", "to a link-layer address", f"100 as 200 via link 02:00:00:00:01:03 dev p1"),
    ("pop-here", "the packet below is looked up", "100 dev lo"),
    ("pop-here-pipe", "the same, its TTL its own", "100 ttl-propagate disabled dev lo"),
]:
    Case(f"mpls/{name}", doc, routes(line), ALL[:-1] if name == "swap-30" else ALL)

Case(
    "mpls/pop-here-labels",
    "labels below are looked up where lo takes them",
    routes("100 dev lo", f"300 as 400 {VIA4}", more=["sysctl -qw net.mpls.conf.lo.input=1"]),
    ALL,
)
Case(
    "mpls/pop-here-options",
    "Options of IPv4, and hop by hop, below a label are looked at where it leads here, not to a neighbour or into a VRF.",
    routes("100 dev lo", f"101 {VIA4}", "102 dev vrf100", base=BASE + ["ip link add vrf100 type vrf table 100", "ip link set vrf100 up"], more=["ip route add 203.0.113.128/25 via 198.51.100.2 dev p1 vrf vrf100"]),
    [
        (f"{label}, {what}", frame(labels([label], ip4(ttl=ttl, options=[IPOption(bytes.fromhex(options))]) / udp())))
        for label in (100, 101, 102)
        for what, ttl, options in [
            ("record route", 40, "070b0400000000000000" + "0000"),
            ("record route, TTL 1", 1, "070b0400000000000000" + "0000"),
            ("a malformed one", 40, "070b0200000000000000" + "0000"),
            ("a source route", 40, "8307040a00010200"),
        ]
    ]
    + [
        (f"{label}, IPv6, option {option[:2]}", frame(labels([label], ip6(nh=0) / Raw(bytes.fromhex("1100" + option)) / udp())))
        for label in (100, 101, 102)
        for option in ("1e0400000000", "5e0400000000", "9e0400000000", "050200000100")
    ],
)
Case(
    "mpls/pop-here-l2encap",
    "The packet below is looked up, and led into SRv6 as a frame: the one in which it has come in by `lo`.",
    routes(
        "100 dev lo",
        more=[
            "ip route add 10.7.0.0/16 encap seg6 mode l2encap segs fc00:b::1,fc00:c::1 dev p1",
            "ip -6 route add 2001:db8:7::/48 encap seg6 mode l2encap.red segs fc00:b::1,fc00:c::1 dev p1",
        ],
    ),
    [("IPv4", frame(labels([100], ip4("10.7.0.7") / udp()))), ("IPv6, two labels", frame(labels([100, 100], ip6("2001:db8:7::7") / udp())))],
)
Case(
    "mpls/pop-vrf",
    "into a VRF",
    VRF + ON + ["ip -f mpls route add 100 dev vrf100"],
    ALL,
)
Case(
    "mpls/pop-vrf-errors",
    "Into a VRF, whose device counts what has no way there.",
    BASE
    + ON
    + [
        "ip link add tun1 type vrf table 100",
        "ip link set tun1 up",
        *(f"ip route add {kind} 10.8.{n}.0/24 vrf tun1" for n, kind in enumerate(["unreachable", "prohibit", "blackhole"])),
        "ip -f mpls route add 100 dev tun1",
    ],
    [
        (what, Ether(dst=P0, src=N0, type=0x8847) / labels([100], packet))
        for what, packet in [
            ("unreachable", ip4("10.8.0.1") / udp()),
            ("prohibit", ip4("10.8.1.1") / udp()),
            ("blackhole", ip4("10.8.2.1") / udp()),
        ]
    ],
)
Case(
    "mpls/pop-vrf-refused",
    "Into a VRF that has no way: nobody hears of it. For the router itself, in the VRF or outside: it answers from there.",
    VRF
    + ON
    + [
        "ip route add 203.0.113.0/25 via 198.51.100.2 dev p1 vrf vrf100",
        "ip -6 route add 2001:db8:5::/48 via 2001:db8:2::2 dev p1 vrf vrf100",
        *(f"ip route add {kind} 10.8.{n}.0/24 vrf vrf100" for n, kind in enumerate(["unreachable", "prohibit", "throw"])),
        *(f"ip -6 route add {kind} 2001:db8:8:{n}::/64 vrf vrf100" for n, kind in enumerate(["unreachable", "prohibit", "throw"])),
        "ip -f mpls route add 100 dev vrf100",
        "ip -f mpls route add 101 dev lo",
    ],
    [
        (f"{label} to {to}", port, Ether(dst=mac, src=N0, type=0x8847) / labels([label], (ip6(to) if ":" in to else ip4(to)) / udp()))
        for port, mac in (("p0", P0), ("p1", P1))
        for label in (100, 101)
        for to in ["10.8.0.1", "10.8.1.1", "10.8.2.1", "192.0.2.1", "198.51.100.1"]
        + ["2001:db8:8::1", "2001:db8:8:1::1", "2001:db8:8:2::1", "2001:db8:1::1", "2001:db8:2::1"]
    ],
)
Case(
    "mpls/explicit-null",
    "labels 0 and 2 end here",
    routes(f"100 as 200 {VIA4}"),
    [
        ("IPv4 below 0", frame(labels([0], FOUR))),
        ("IPv6 below 2", frame(labels([2], SIX))),
        ("0 above a label", frame(labels([0, 100], FOUR))),
    ],
)
Case(
    "mpls/drops",
    "labels and frames that lead nowhere",
    routes(f"100 as 200 {VIA4}", base=SMALL),
    [
        ("an unknown label", frame(labels([101], FOUR))),
        ("a label beyond the table", frame(labels([5000], FOUR))),
        ("implicit null", frame(labels([3], FOUR))),
        ("router alert", frame(labels([1, 100], FOUR))),
        ("to another station", frame(labels([100], FOUR), dst="02:00:00:00:00:99")),
        ("to all stations", frame(labels([100], FOUR), dst="ff:ff:ff:ff:ff:ff")),
    ],
)
Case(
    "mpls/input-off",
    "an interface that takes no labels",
    BASE + ON[:1] + [f"ip -f mpls route add 100 as 200 {VIA4}"],
    [("IPv4", frame(labels([100], FOUR)))],
)

IN4, IN6 = "10.7.0.7", "2001:db8:7::7"
PLAIN = [
    ("IPv4", ether(ip4(IN4) / udp())),
    ("IPv6", ether(ip6(IN6) / udp())),
    ("TTL 2", ether(ip4(IN4, ttl=2) / udp())),
    ("TTL 255", ether(ip4(IN4, ttl=255) / udp())),
    ("hop limit 2", ether(ip6(IN6, hlim=2) / udp())),
    ("IPv4 with options", ether(ip4(IN4, options=[IPOption(b"\x94\x04\x00\x00")]) / udp())),
    ("IPv4 that just does not fit", ether(ip4(IN4) / udp(1472))),
    ("IPv4 that fits", ether(ip4(IN4) / udp(1464))),
]


def push(stack, more=""):
    return [
        f"ip route add 10.7.0.0/16 encap mpls {stack} {more}via 198.51.100.2 dev p1",
        f"ip -6 route add 2001:db8:7::/48 encap mpls {stack} {more}via 2001:db8:2::2 dev p1",
    ]


for name, doc, stack, more in [
    ("push", "one label", "100", ""),
    ("push-2", "two labels", "100/200", ""),
    ("push-30", "30 labels", "/".join(str(n) for n in range(16, 46)), ""),
    ("push-ttl", "a TTL of the route", "100/200", "ttl 9 "),
]:
    Case(f"mpls/{name}", f"labels for IP packets: {doc}", BASE + ON + push(stack, more), PLAIN)
Case(
    "mpls/push-default-ttl",
    "labels for IP packets: the TTL of net.mpls.default_ttl",
    BASE
    + ON
    + ["sysctl -qw net.mpls.ip_ttl_propagate=0", "sysctl -qw net.mpls.default_ttl=77"]
    + push("100"),
    PLAIN,
)
Case(
    "mpls/push-no-gateway",
    "A route with labels without a gateway: the hop limit and the length are looked at first.",
    SMALL + ON + ["ip route add 10.5.0.0/16 encap mpls 100 dev p1", "ip -6 route add 2001:db8:55::/48 encap mpls 100 dev p1"],
    [
        ("IPv4, TTL 1", ether(ip4("10.5.0.1", ttl=1) / udp())),
        ("IPv6, hop limit 1", ether(ip6("2001:db8:55::1", hlim=1) / udp())),
        ("IPv6, hop limit 1, too long", ether(ip6("2001:db8:55::1", hlim=1) / udp(1352))),
        ("IPv6", ether(ip6("2001:db8:55::1") / udp())),
    ],
)
Case(
    "mpls/no-propagate",
    "net.mpls.ip_ttl_propagate=0: packets keep their own TTL",
    routes(f"100 {VIA4}", "101 dev lo", more=["sysctl -qw net.mpls.ip_ttl_propagate=0"]),
    [(l, frame(p)) for l, p in PACKETS] + [("to local", frame(labels([101], FOUR)))],
)


# ------------------------------------------------------------------------------------------ errors


def extended(quoted, stack):
    """The quoted packet, 128 bytes of it, and the label stack as it came: RFC 4884 section 7, RFC 4950 section 3."""
    stack = bytes(stack)
    labels = next(stack[: i + 4] for i in range(0, len(stack), 4) if stack[i + 2] & 1)
    found = struct.pack("!HHHBB", 0x2000, 0, 4 + len(labels), 1, 1) + labels
    total = sum(struct.unpack(f"!{len(found) // 2}H", found))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return bytes(quoted)[:128].ljust(128, b"\0") + found[:2] + struct.pack("!H", ~total & 0xFFFF) + found[4:]


def finished(header, icmp):
    """An ICMP message with its checksum behind an IP header."""
    sum = in6_chksum(58, header, icmp) if isinstance(header, IPv6) else checksum(icmp)
    return header / Raw(icmp[:2] + struct.pack("!H", sum) + icmp[4:])


def told4(quoted, stack, kind, code, mtu=0, dst=SOURCE4, ttl=64):
    """An ICMP error with an extension; its length field counts words of 32 bits: RFC 4884 sections 4.1 and 4.2."""
    header = IP(src="192.0.2.1", dst=dst, ttl=ttl, id=0, proto=1, tos=(quoted.tos & 0x1E) | 0xC0)
    return finished(header, struct.pack("!BBHBBH", kind, code, 0, 0, 128 // 4, mtu) + extended(quoted, stack))


def told6(quoted, stack, dst=SOURCE, hlim=64):
    """ICMPv6 time exceeded with an extension; its length field counts words of 64 bits: RFC 4884 section 4.4."""
    header = IPv6(src="2001:db8:1::1", dst=dst, hlim=hlim, nh=58)
    return finished(header, struct.pack("!BBHBBH", 3, 0, 0, 128 // 8, 0, 0) + extended(quoted, stack))


def way_on(numbers, inner, ttl=255, classes=None):
    """What leaves by p1 with these labels. What is below the label that was looked up keeps its class."""
    stack = b"".join(
        bytes(MPLS(label=n, cos=classes[i] if classes else 0, s=i + 1 == len(numbers), ttl=ttl))
        for i, n in enumerate(numbers)
    )
    return ("p1", Ether(dst=N1, src=P1, type=0x8847) / Raw(stack + bytes(inner)))


def expired(listed, **more):
    """Packets whose label has run out: (what it is, the labels, what is below them, what is sent)."""
    return io(
        [
            (label, frame(labels(numbers, inner, ttl=1)), out(inner, labels(numbers, inner, ttl=1)))
            for label, numbers, inner, out in listed
        ]
    )


SILENT = "it drops the packet silently"
FAR4, FAR6 = "198.18.0.1", "2001:db8:99::1"  # no route leads there
LONG4, LONG6 = ip4() / udp(1000), ip6() / udp(1000)
CUT = IP(bytes(ip4(flags="MF", frag=64) / udp(64)))
back4 = lambda inner, stack: [to_p0(told4(inner, stack, 11, 0))]
back6 = lambda inner, stack: [to_p0(told6(inner, stack))]
nothing = lambda inner, stack: []
Case(
    "mpls/ttl",
    "a label that has run out, with a route to the sender",
    routes(f"100 as 200 {VIA4}"),
    differs=SILENT,
    **expired(
        [
            ("IPv4", [100], FOUR, back4),
            ("IPv6", [100], SIX, back6),
            ("a long IPv4 packet", [100], LONG4, back4),
            ("a long IPv6 packet", [100], LONG6, back6),
            ("an IPv4 fragment, not the first", [100], CUT, nothing),
            ("an ICMP error", [100], icmp4(FOUR, 11, 0, src="192.0.2.77"), nothing),
            ("an ICMPv6 error", [100], time_exceeded(SIX, src="2001:db8:1::77"), nothing),
            ("a ping", [100], ip4() / ICMP(id=1, seq=1), back4),
            ("to an IPv4 group", [100], ip4("232.1.1.1") / udp(), nothing),
            ("to an IPv6 group", [100], ip6("ff0e::1") / udp(), nothing),
            ("no IP packet", [100], Raw(b"\0" * 60), nothing),
            ("a wrong IPv4 checksum", [100], IP(bytes(ip4(chksum=1) / udp())), nothing),
        ]
    ),
)
along4 = lambda *numbers, **more: lambda inner, stack: [
    way_on(numbers, told4(inner, stack, 11, 0, dst=inner.src), **more)
]
along6 = lambda *numbers, **more: lambda inner, stack: [
    way_on(numbers, told6(inner, stack, dst=inner.src), **more)
]
FAR = [ip4(src=FAR4) / udp(), ip6(src=FAR6) / udp()]
# What is below comes in by `lo`: rules with its name lead it, and where a route or a SID leads it on.
Case(
    "mpls/pop-here-rules",
    "A label that ends here before what routes with headers and SIDs lead on, in tables that a rule for lo leads to.",
    routes(
        "100 dev lo",
        more=[
            "ip -6 rule add iif lo lookup 100 pref 100",
            "ip rule add iif lo lookup 100 pref 100",
            "ip -6 route add fc00:b::/32 via 2001:db8:2::3 dev p1 table 100",
            "ip -6 route add fc00:a::1/128 encap seg6local action End dev p0",
            "ip -6 route add fc00:a::2/128 encap seg6local action End.DX6 nh6 fc00:b::9 dev p0",
            "ip -6 route add fc00:a::3/128 encap seg6local action End.B6.Encaps srh segs fc00:b::1 dev p0",
            "sysctl -qw net.ipv6.conf.lo.seg6_enabled=1",
        ]
        + [
            f"{ip} route add {prefix} encap seg6 mode {mode} segs fc00:b::1 dev p1"
            for ip, prefix, mode in [
                ("ip", "10.8.1.0/24", "encap"),
                ("ip", "10.8.2.0/24", "l2encap"),
                ("ip -6", "2001:db8:81::/48", "encap"),
                ("ip -6", "2001:db8:82::/48", "inline"),
                ("ip -6", "2001:db8:83::/48", "l2encap.red"),
            ]
        ]
        + ["ip -6 route add 2001:db8:84::/48 encap rpl segs fc00:b::1 dev p1"],
    ),
    [
        (to, frame(labels([100], (ip4 if "." in to else ip6)(to) / udp())))
        for to in ("10.8.1.7", "10.8.2.7", "2001:db8:81::7", "2001:db8:82::7", "2001:db8:83::7", "2001:db8:84::7", "fc00:b::7")
    ]
    + [
        (f"the SID {sid}", frame(labels([100], routed(ip6(sid), [sid, "fc00:b::5"], left, inner))))
        for sid, left, inner in [("fc00:a::1", 1, udp()), ("fc00:a::2", 0, ip6("fc00:b::7") / udp()), ("fc00:a::3", 1, udp())]
    ],
)
Case(
    "mpls/ttl-along",
    "a label that has run out: the message goes along the path",
    routes(
        f"100 as 200 {VIA4}",
        f"101 as 200/201 {VIA6}",
        f"102 {VIA4}",
        f"103 ttl-propagate disabled {VIA4}",
        "104 dev lo",
    ),
    differs=SILENT,
    **expired(
        [
            ("no route to the IPv4 sender", [100], FAR[0], along4(200)),
            ("no route to the IPv6 sender", [100], FAR[1], along6(200)),
            ("two labels more", [101], FAR[0], along4(200, 201)),
            ("labels below", [100, 300, 301], FOUR, along4(200, 300, 301, classes=[0, 5, 5])),
            ("labels below, IPv6", [100, 300, 301], SIX, along6(200, 300, 301, classes=[0, 5, 5])),
            (
                "no label more",
                [102],
                FAR[0],
                lambda inner, stack: [to_p1(told4(inner, stack, 11, 0, dst=FAR4, ttl=255))],
            ),
            (
                "no label more, pipe",
                [103],
                FAR[0],
                lambda inner, stack: [to_p1(told4(inner, stack, 11, 0, dst=FAR4))],
            ),
            ("looked up here", [104], FOUR, back4),
            ("looked up here, no route to the sender", [104], FAR[0], nothing),
        ]
    ),
)
Case(
    "mpls/ttl-vrf",
    "a label that has run out, of a VRF: its sender is one of the VRF",
    VRF + ON + ["ip -f mpls route add 100 dev vrf100"],
    differs=SILENT,
    **expired(
        [
            (
                "IPv4",
                [100],
                ip4(src="203.0.113.140") / udp(),
                lambda inner, stack: [to_p1(told4(inner, stack, 11, 0, dst=inner.src, ttl=255))],
            ),
            (
                "IPv6",
                [100],
                ip6(src="2001:db8:6::9") / udp(),
                lambda inner, stack: [to_p1(told6(inner, stack, dst=inner.src, hlim=255))],
            ),
            (
                "a sender outside",
                [100],
                FOUR,
                lambda inner, stack: [to_p0(told4(inner, stack, 11, 0, ttl=255))],
            ),
        ]
    ),
)


def whole(numbers, packet, out):
    stack = labels(numbers, packet)
    return frame(stack), out(packet, stack)


def cut4(packet, size):
    """The fragments of an IPv4 packet, with `size` bytes behind their headers but for the last: RFC 791 section 3.2."""
    data, parts = bytes(packet)[20:], []
    for at in range(0, len(data), size):
        more = "MF" if at + size < len(data) else 0
        parts.append(
            IP(
                src=packet.src,
                dst=packet.dst,
                ttl=packet.ttl,
                tos=packet.tos,
                id=packet.id,
                proto=17,
                flags=more,
                frag=at // 8,
            )
            / Raw(data[at : at + size])
        )
    return parts


def fragments(*numbers, size):
    return lambda inner, stack: [way_on(numbers, part, ttl=39) for part in cut4(inner, size)]


BIG4, FIXED4, BIG6 = ip4() / udp(1380), ip4(flags="DF") / udp(1380), ip6() / udp(1380)
frag_needed = lambda mtu: lambda inner, stack: [to_p0(told4(inner, stack, 3, 4, mtu))]
Case(
    "mpls/too-big",
    "packets that are too long with their labels",
    routes(
        f"100 as 200 {VIA4}",
        f"101 as {'/'.join(str(n) for n in range(1000, 1030))} {VIA6}",
        f"102 {VIA4}",
        "103 dev lo",
        more=["ip link set p1 mtu 1400"],
    ),
    differs="it drops the packet silently, or tells the sender without the labels",
    **io(
        [
            (label, *whole(numbers, packet, out))
            for label, numbers, packet, out in [
                ("IPv4", [100], BIG4, fragments(200, size=1376)),
                ("IPv4, not to be fragmented", [100], FIXED4, frag_needed(1396)),
                ("IPv6", [100], BIG6, lambda inner, stack: [to_p0(too_big(inner, 1396))]),
                ("IPv4 that just does not fit", [100], ip4(flags="DF") / udp(1369), frag_needed(1396)),
                (
                    "IPv4 that just fits",
                    [100],
                    ip4(flags="DF") / udp(1368),
                    lambda inner, stack: [way_on([200], inner, ttl=39)],
                ),
                ("30 labels", [101], ip4() / udp(1300), fragments(*range(1000, 1030), size=1256)),
                ("30 labels, not to be fragmented", [101], ip4(flags="DF") / udp(1300), frag_needed(1280)),
                (
                    "no label more",
                    [102],
                    BIG4,
                    lambda inner, stack: [to_p1(hops(part)) for part in cut4(inner, 1376)],
                ),
                ("no label more, not to be fragmented", [102], FIXED4, frag_needed(1400)),
                (
                    "a label below",
                    [102, 300],
                    FIXED4,
                    lambda inner, stack: [way_on([300], told4(inner, stack, 3, 4, 1396), classes=[5])],
                ),
                (
                    "looked up here",
                    [103],
                    FIXED4,
                    lambda inner, stack: [to_p0(icmp4(hops(inner), 3, 4, 1400))],
                ),
                ("no IP packet", [100], Raw(b"\0" * 1450), nothing),
            ]
        ]
    ),
)


# ------------------------------------------------------------------------------- one traffic class


def classed(packet, tos, ttl):
    """The packet with another DS field and TTL."""
    packet = packet.copy()
    if isinstance(packet, IPv6):
        packet.tc, packet.hlim = tos, ttl
    else:
        packet.tos, packet.ttl = tos, ttl
        del packet.chksum
    return packet


UNIFORM = ["sysctl -qw net.mpls.tc_propagate=1"]
ZERO = "its labels have traffic class 0, packets keep their own"
DS = 0x5D  # class selector 2, drop precedence bits 111, ECN 1
LOW4, LOW6 = classed(FOUR, DS, 40), classed(SIX, DS, 40)


def above(entry, below):
    """A label (number, class, TTL) above others."""
    number, cos, ttl = entry
    return Raw(bytes(MPLS(label=number, cos=cos, s=0, ttl=ttl)) + bytes(below))


MIXED = labels([300], FOUR, cos=2)
Case(
    "mpls/uniform",
    "net.mpls.tc_propagate=1: labels keep the class of the one that came, and hand it down",
    routes(
        f"100 as 200 {VIA4}",
        f"101 as 200/201 {VIA4}",
        f"102 as {'/'.join(str(n) for n in range(1000, 1030))} {VIA6}",
        f"103 {VIA4}",
        f"104 ttl-propagate disabled {VIA4}",
        "105 dev lo",
        "106 ttl-propagate disabled dev lo",
        f"300 as 400 {VIA4}",
        more=UNIFORM + ["sysctl -qw net.mpls.conf.lo.input=1"],
    ),
    differs=f"{ZERO}; it drops silently what has run out",
    **io(
        [
            (label, frame(stack), [out])
            for label, stack, out in [
                ("swap", labels([100], LOW4), way_on([200], LOW4, ttl=39, classes=[5])),
                ("swap, class 0", labels([100], LOW6, cos=0), way_on([200], LOW6, ttl=39)),
                (
                    "swap, another class below",
                    above((100, 5, 40), MIXED),
                    ("p1", Ether(dst=N1, src=P1, type=0x8847) / above((200, 5, 39), MIXED)),
                ),
                (
                    "pop, another class below",
                    above((103, 5, 40), MIXED),
                    way_on([300], FOUR, ttl=40, classes=[5]),
                ),
                (
                    "pop, pipe, another class below",
                    above((104, 5, 40), MIXED),
                    way_on([300], FOUR, ttl=40, classes=[2]),
                ),
                ("two labels for one", labels([101], LOW6), way_on([200, 201], LOW6, ttl=39, classes=[5, 5])),
                ("30 labels", labels([102], LOW4), way_on(range(1000, 1030), LOW4, ttl=39, classes=[5] * 30)),
                ("pop, IPv4", labels([103], LOW4), to_p1(classed(LOW4, 0xBD, 39))),
                ("pop, IPv6", labels([103], LOW6), to_p1(classed(LOW6, 0xBD, 39))),
                ("pop, class 0", labels([103], FOUR, cos=0), to_p1(classed(FOUR, 0x18, 39))),
                ("pop, pipe", labels([104], LOW4), to_p1(hops(LOW4))),
                ("looked up here, IPv4", labels([105], LOW4), to_p1(classed(LOW4, 0xBD, 38))),
                ("looked up here, IPv6", labels([105], LOW6), to_p1(classed(LOW6, 0xBD, 38))),
                ("looked up here, pipe", labels([106], LOW6), to_p1(hops(LOW6, 2))),
                ("label after label", above((105, 5, 40), MIXED), way_on([400], FOUR, ttl=39, classes=[5])),
                (
                    "label after label, pipe",
                    above((106, 5, 40), MIXED),
                    way_on([400], FOUR, ttl=39, classes=[2]),
                ),
                (
                    "a label that has run out: the message has its own class",
                    labels([100], ip4(src=FAR4) / udp(), ttl=1),
                    way_on(
                        [200],
                        told4(
                            ip4(src=FAR4) / udp(),
                            labels([100], ip4(src=FAR4) / udp(), ttl=1),
                            11,
                            0,
                            dst=FAR4,
                        ),
                        classes=[6],
                    ),
                ),
            ]
        ]
    ),
)
PUSHED4, PUSHED6 = ip4(IN4) / udp(), ip6(IN6) / udp()
Case(
    "mpls/uniform-push",
    "net.mpls.tc_propagate=1: labels for IP packets have their class",
    BASE + ON + UNIFORM + push("100/200"),
    differs=ZERO,
    **io(
        [
            (label, ether(packet), [way_on([100, 200], hops(packet), ttl=39, classes=[tos >> 5] * 2)])
            for label, packet, tos in [
                ("IPv4, expedited forwarding", PUSHED4, 0xB8),
                ("IPv6, expedited forwarding", PUSHED6, 0xB8),
                ("IPv4, best effort", classed(PUSHED4, 0, 40), 0),
                ("IPv6, best effort", classed(PUSHED6, 0, 40), 0),
                ("IPv4, class selector 2 and lower bits", classed(PUSHED4, DS, 40), DS),
                ("IPv6, class selector 7", classed(PUSHED6, 0xE0, 40), 0xE0),
            ]
        ]
    ),
)
for name in ("lo", "p0"):
    to = "table 200 pref 100"
    other = ["ip route add default via 198.51.100.3 table 200", "ip -6 route add default via 2001:db8:2::3 dev p1 table 200"]
    Case(
        f"mpls/pop-here-rule-{name}",
        "For rules a packet below the last label comes by `lo`.",
        routes("100 dev lo", more=[*other, f"ip rule add iif {name} {to}", f"ip -6 rule add iif {name} {to}"]),
        [(f"label {n}, IPv{p.version}", frame(labels([n], p))) for n in (0, 2, 100) for p in (FOUR, SIX)],
    )
Case(
    "mpls/here-options-vrf",
    "What a label leads here from a link of a VRF is outside of the VRF: so are the errors about its options.",
    BASE
    + ON
    + [
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip link set p1 master vrf100",
        "ip addr add 2001:db8:2::1/64 dev p1 nodad",
        "ip neigh replace 2001:db8:2::2 lladdr 02:00:00:00:01:02 dev p1 nud permanent",
        "ip -6 route add 2001:db8:5::/48 via 2001:db8:2::2 vrf vrf100",
        "ip route add 203.0.113.0/25 via 198.51.100.2 vrf vrf100",
        "sysctl -qw net.mpls.conf.p1.input=1",
        "ip -f mpls route add 100 dev lo",
    ],
    [
        (f"{what}, label {label}", "p1", Ether(dst=P1, src=N1, type=0x8847) / MPLS(label=label, s=1, ttl=9) / packet)
        for label, packets in [
            (2, [("an unknown option", IPv6(src=SOURCE, dst=TARGET, hlim=33, nh=0) / Raw(bytes([17, 0, 0xDE, 1, 0, 1, 1, 0])) / udp())]),
            (0, [("a malformed option", IP(src=SOURCE4, dst=TARGET4, ttl=33, id=7, options=[IPOption(b"\x83\x07\x02\x0a\0\1\1\0")]) / udp())]),
            (100, [("an unknown option", IPv6(src=SOURCE, dst=TARGET, hlim=33, nh=0) / Raw(bytes([17, 0, 0xDE, 1, 0, 1, 1, 0])) / udp())]),
        ]
        for what, packet in packets
    ],
    links=False,
)
