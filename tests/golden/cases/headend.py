"""Policy headends: RFC 8986 section 5 and Linux's mode inline; chains with endpoint behaviours; bursts."""

from scapy.all import TCP

from .frames import *

IN6, IN4 = "2001:db8:7::7", "10.7.0.7"  # destinations that have a policy
LIST = ["fc00:b::1", "fc00:c::1", "fc00:b::3"]
OWN = "2001:db8:2::1"  # the outer source where no tunsrc is set: p1's address


def policy(mode, segs, base=BASE, dst="2001:db8:7::/48", dev="p1", more=""):
    family = "-6 " if ":" in dst else ""
    return base + [f"ip {family}route add {dst} encap seg6 mode {mode} segs {','.join(segs)} {more}dev {dev}"]


def wrapped(mode, segs, inner, src=OWN, hlim=None, frame=None):
    """The packet with a policy's headers, as it leaves."""
    inherits = isinstance(inner, IPv6)
    tc, fl = (inner.tc, inner.fl) if inherits else (0, 0)
    hlim = hlim or (inner.hlim - 1 if inherits else 63)
    inside = frame if mode.startswith("l2") else inner
    nh = 143 if mode.startswith("l2") else 41 if inherits else 4
    if mode == "inline":
        whole = srh(segs + [inner.dst], len(segs), Raw(bytes(inner)[40:]), nh=bytes(inner)[6])
        return IPv6(src=inner.src, dst=segs[0], hlim=hlim, tc=tc, fl=fl, nh=43) / whole
    outer = IPv6(src=src, dst=segs[0], hlim=hlim, tc=tc, fl=fl)
    if mode.endswith("red"):
        if len(segs) == 1:
            outer.nh = nh
            return outer / Raw(bytes(inside))
        outer.nh = 43
        return outer / srh(segs[1:], len(segs) - 1, Raw(bytes(inside)), nh=nh)
    outer.nh = 43
    return outer / srh(segs, len(segs) - 1, Raw(bytes(inside)), nh=nh)


def frame_of(inner):
    """What l2encap puts in: the frame as it came, its padding cut off."""
    return ether(inner)


def plain_inputs():
    """IPv6 packets that a policy takes."""
    return [
        ("UDP", ip6(IN6) / udp()),
        ("traffic class, flow label 0", IPv6(src=SOURCE, dst=IN6, hlim=40) / udp()),
        (
            "every bit of traffic class, flow label",
            IPv6(src=SOURCE, dst=IN6, hlim=255, tc=0xFF, fl=0xFFFFF) / udp(),
        ),
        ("hop limit 2", ip6(IN6, hlim=2) / udp()),
        ("destination options", ip6(IN6, nh=60) / opts(17, udp())),
        ("a fragment", ip6(IN6, nh=44) / fragment(17, udp())),
        ("an SRH at segments left 0", routed(ip6(IN6), ["fc00:d::1", IN6], 0, udp())),
        ("an SRH at segments left 1", routed(ip6(IN6), [IN6, "fc00:d::1"], 1, udp())),
        ("no next header", ip6(IN6, nh=59)),
        ("a long packet", ip6(IN6) / udp(1300)),
    ]


HBH6 = ("hop-by-hop options", ip6(IN6, nh=0) / opts(17, udp()))
INPUTS4 = [
    ("UDP", ip4(IN4) / udp()),
    ("TTL 2", ip4(IN4, ttl=2) / udp()),
    ("TTL 1: the packet inside is not forwarded here", ip4(IN4, ttl=1) / udp()),
    ("TOS 0, don't fragment", IP(src=SOURCE4, dst=IN4, flags="DF", ttl=255, id=7) / udp()),
    ("options", ip4(IN4, options=[IPOption(b"\x94\x04\0\0")]) / udp()),
    ("a later fragment", ip4(IN4, frag=8, flags="MF", proto=17) / payload(64)),
]

for mode in ["encap", "encap.red", "inline", "l2encap", "l2encap.red"]:
    name = mode.replace(".", "-")
    for n in (1, 2, 3):
        segs = LIST[:n]
        inputs = plain_inputs() + ([HBH6] if mode != "inline" else [])
        listed = [
            (label, ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]) for label, p in inputs
        ]
        short = ip6(IN6, nh=59)
        listed.append(
            (
                "a short frame, padded",
                behind(ether(short), bytes(6)),
                [to_p1(wrapped(mode, segs, short, frame=frame_of(short)))],
            )
        )
        Case(
            f"headend/{name}-{n}-ipv6",
            f"mode {mode}, {n} segment{'s'[:n > 1]}, IPv6.",
            policy(mode, segs),
            **io(listed),
        )
        if mode != "inline":
            listed = [
                (label, ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]) for label, p in INPUTS4
            ]
            short = ip4(IN4) / Raw(b"tiny")
            listed.append(
                (
                    "a short frame, padded",
                    behind(ether(short), bytes(22)),
                    [to_p1(wrapped(mode, segs, short, frame=frame_of(short)))],
                )
            )
            Case(
                f"headend/{name}-{n}-ipv4",
                f"mode {mode}, {n} segment{'s'[:n > 1]}, IPv4.",
                policy(mode, segs, dst="10.7.0.0/16"),
                **io(listed),
            )
    # Lists of 1 to 31 segments, a route each.
    config, listed = list(BASE), []
    for n in range(1, 32):
        segs = [f"fc00:b::{n:x}:{i:x}" for i in range(1, n + 1)]
        config = policy(mode, segs, config, dst=f"2001:db8:7:{n:x}::/64")
        p = ip6(f"2001:db8:7:{n:x}::7") / udp()
        listed.append((f"{n} segments", ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]))
    Case(f"headend/{name}-lists", f"mode {mode}, lists of 1 to 31 segments.", config, **io(listed))
    if mode != "inline":
        config, listed = list(BASE), []
        for n in range(1, 32):
            segs = [f"fc00:b::{n:x}:{i:x}" for i in range(1, n + 1)]
            config = policy(mode, segs, config, dst=f"10.7.{n}.0/24")
            p = ip4(f"10.7.{n}.7") / udp()
            listed.append((f"{n} segments", ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]))
        Case(
            f"headend/{name}-lists-ipv4",
            f"mode {mode}, lists of 1 to 31 segments, IPv4.",
            config,
            **io(listed),
        )
    # Errors that the sender must hear.
    hop1 = [(f"hop limit {h}", ip6(IN6, hlim=h) / udp()) for h in (1, 0)]
    Case(
        f"headend/{name}-hop-limit",
        f"mode {mode} at hop limit 1 and 0: time exceeded.",
        policy(mode, LIST[:2]),
        [(label, ether(p)) for label, p in hop1],
        expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
        differs=(
            "it quotes the packet with the SRH inserted"
            if mode == "inline"
            else "it drops the packet silently"
        ),
    )
    big = ip6(IN6) / udp(1452)
    growth = {"encap": 80, "encap.red": 64, "inline": 56, "l2encap": 94, "l2encap.red": 78}[mode]
    Case(
        f"headend/{name}-too-big",
        f"mode {mode}: too big with its new headers; the sender hears what would fit.",
        policy(mode, LIST[:2]),
        [
            ("1,500 bytes", ether(big)),
            ("1 byte too many", ether(ip6(IN6) / udp(1453 - growth))),
            ("it fits", ether(ip6(IN6) / udp(1452 - growth))),
        ],
        expect={
            0: [to_p0(too_big(big, 1500 - growth))],
            1: [to_p0(too_big(ip6(IN6) / udp(1453 - growth), 1500 - growth))],
            2: [
                to_p1(
                    wrapped(
                        mode,
                        LIST[:2],
                        ip6(IN6) / udp(1452 - growth),
                        frame=frame_of(ip6(IN6) / udp(1452 - growth)),
                    )
                )
            ],
        },
        differs=(
            "the MTU that it tells is 1500, of the packet with the SRH inserted"
            if mode == "inline"
            else "it drops the packet silently"
        ),
    )

Case(
    "headend/inline-hop-by-hop",
    "mode inline inserts behind hop-by-hop options, which come first: RFC 8200 section 4.1.",
    policy("inline", LIST[:2]),
    **io(
        [
            (
                "hop-by-hop options",
                ether(HBH6[1]),
                [
                    to_p1(
                        IPv6(src=SOURCE, dst=LIST[0], hlim=39, tc=0xB8, fl=0x12345, nh=0)
                        / opts(43, srh(LIST[:2] + [IN6], 2, Raw(bytes(HBH6[1])[48:]), nh=17))
                    )
                ],
            )
        ]
    ),
    differs="it inserts before them",
)
big4 = ip4(IN4, flags="DF") / udp(1472)
for mode, growth in [("encap", 80), ("encap.red", 64), ("l2encap", 94)]:
    Case(
        f"headend/{mode.replace('.', '-')}-too-big-ipv4",
        f"mode {mode}: an IPv4 packet that must not be fragmented is too big.",
        policy(mode, LIST[:2], dst="10.7.0.0/16"),
        [("1,500 bytes, don't fragment", ether(big4))],
        expect={0: [to_p0(icmp4(big4, 3, 4, 1500 - growth))]},
        differs="it drops the packet silently",
    )

TWO = [("IPv6", ether(ip6(IN6) / udp())), ("IPv4", ether(ip4(IN4) / udp()))]


def both(mode, segs, **more):
    return policy(mode, segs, policy(mode, segs, dst="10.7.0.0/16", **more), **more)


def two(mode, segs, src=OWN):
    packets = [ip6(IN6) / udp(), ip4(IN4) / udp()]
    return {i: [to_p1(wrapped(mode, segs, p, src=src, frame=frame_of(p)))] for i, p in enumerate(packets)}


Case(
    "headend/tunsrc",
    "The outer source is what ip sr tunsrc set says.",
    ["ip sr tunsrc set fc00:99::1"] + policy("encap", LIST[:2], policy("encap", LIST[:2], dst="10.7.0.0/16")),
    TWO,
    two("encap", LIST[:2], "fc00:99::1"),
)
Case(
    "headend/tunsrc-l2",
    "The same with l2encap.",
    ["ip sr tunsrc set fc00:99::1"]
    + policy("l2encap", LIST[:2], policy("l2encap", LIST[:2], dst="10.7.0.0/16")),
    TWO,
    two("l2encap", LIST[:2], "fc00:99::1"),
)
Case(
    "headend/source-of-device",
    "No tunsrc: the outer source is an address of the policy route's device.",
    policy("encap", LIST[:2], policy("encap", LIST[:2], dst="10.7.0.0/16", dev="p0"), dev="p0"),
    TWO,
    two("encap", LIST[:2], "2001:db8:1::1"),
)
Case(
    "headend/gateway",
    "A policy route's gateway is not used: the packet goes where its first segment does.",
    policy("encap", LIST[:2], more="via 2001:db8:2::3 "),
    TWO[:1],
    {0: two("encap", LIST[:2])[0]},
)
Case(
    "headend/source-longest-match",
    "No tunsrc: of the device's addresses the one that has the longest prefix in common with the first segment.",
    policy("encap", LIST[:2], BASE + ["ip -6 addr add fc00:b:9::1/64 dev p1 nodad"]),
    TWO[:1],
)
Case(
    "headend/local-end",
    "The first segment is a local End.",
    policy(
        "encap", [SID, NEXT], BASE + [f"ip -6 route add {SID}/128 encap seg6local action End count dev p0"]
    ),
    TWO[:1],
)
Case(
    "headend/local-end-red",
    "The first two segments are local, encap.red.",
    policy("encap.red", [SID, "fc00:a::2", NEXT], sid("End", sid("End", address="fc00:a::2"))),
    TWO[:1],
)
Case(
    "headend/local-end-x",
    "The first segment is a local End.X.",
    policy("encap", [SID, NEXT], sid("End.X nh6 2001:db8:2::3")),
    TWO[:1],
)
Case(
    "headend/local-end-dt6",
    "The only segment is a local End.DT6.",
    policy(
        "encap",
        [SID],
        sid("End.DT6 table 100") + ["ip -6 route add 2001:db8:7::/48 via 2001:db8:2::3 dev p1 table 100"],
    ),
    TWO[:1] + [("hop limit 2", ether(ip6(IN6, hlim=2) / udp()))],
)
Case(
    "headend/local-headend",
    "The first segment has a policy of its own.",
    policy("encap", ["fc00:d::1"], policy("encap", LIST[:2], dst="fc00:d::/32")),
    TWO[:1],
)
Case(
    "headend/after-end",
    "The next segment of End has a policy.",
    policy("encap", LIST[:2], sid("End"), dst="fc00:d::/32"),
    [("SRH of 2", ether(routed(ip6(SID), [SID, "fc00:d::1"], 1, INNER6)))],
)
Case(
    "headend/after-dt6",
    "What End.DT6 takes out has a policy.",
    policy("encap", LIST[:2], sid("End.DT6 table main")),
    [("IPv6 inside", ether(ip6(SID, nh=41) / ip6(IN6) / udp()))],
)
Case(
    "headend/after-dt4",
    "What End.DT46 takes out has a policy in the VRF.",
    sid("End.DT46 vrftable 100", VRF, "vrf100")
    + [
        "ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0",
        "ip route add 10.7.0.0/16 encap seg6 mode encap segs fc00:b::1 dev p0 table 100",
        "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p0 table 100",
    ],
    [
        ("IPv4 inside", ether(ip6(SID, nh=4) / ip4(IN4) / udp())),
        ("IPv6 inside", ether(ip6(SID, nh=41) / ip6(IN6) / udp())),
    ],
)
Case(
    "headend/vrf",
    "Policies of a VRF, whose first segment is looked up in the main table.",
    VRF
    + [
        "ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0",
        "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p0 table 100",
        "ip route add 10.7.0.0/16 encap seg6 mode encap segs fc00:b::1 dev p0 table 100",
    ],
    [
        ("IPv6 by p1", "p1", Ether(dst=P1, src=N1) / ip6(IN6, src=TARGET) / udp()),
        ("IPv4 by p1", "p1", Ether(dst=P1, src=N1) / ip4(IN4, src=TARGET4) / udp()),
        ("IPv6 by p0, which is not in the VRF", ether(ip6(IN6) / udp())),
    ],
)
Case(
    "headend/vrf-behind-sid",
    "Policies of a VRF, of what a SID has taken into it: the first segment is looked up in the VRF. End.DT6 of a table takes nothing into one.",
    VRF
    + [
        "ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0",
        "ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1 table 100",
        "ip -6 route add fc00:e::4/128 encap seg6local action End.DT4 vrftable 100 dev p0",
        "ip -6 route add fc00:e::6/128 encap seg6local action End.DT6 vrftable 100 dev p0",
        "ip -6 route add fc00:e::7/128 encap seg6local action End.DT6 table 100 dev p0",
        "ip -6 route add fc00:e::46/128 encap seg6local action End.DT46 vrftable 100 dev p0",
        "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p1 table 100",
        "ip -6 route add 2001:db8:8::/48 encap seg6 mode inline segs fc00:b::1 dev p1 table 100",
        "ip -6 route add 2001:db8:9::/48 encap seg6 mode encap segs fc00:b::1 dev p1 table 100",
        "ip route add 10.7.0.0/16 encap seg6 mode encap segs fc00:b::1 dev p1 table 100",
    ],
    [
        (f"{sid}, {what}", ether(routed(ip6(sid), [sid], 0, p)))
        for sid, what, p in [
            ("fc00:e::4", "IPv4", ip4(IN4) / udp()),
            ("fc00:e::6", "IPv6", ip6(IN6) / udp()),
            ("fc00:e::6", "IPv6 into which segments go", ip6("2001:db8:8::1") / udp()),
            ("fc00:e::46", "IPv4", ip4(IN4) / udp()),
            ("fc00:e::46", "IPv6", ip6(IN6) / udp()),
            # Linux remembers where the first packet by a route went: a route of its own.
            ("fc00:e::7", "IPv6", ip6("2001:db8:9::1") / udp()),
        ]
    ],
)
Case(
    "headend/no-route",
    "No route to the first segment: the sender hears of it.",
    policy("encap", ["fc00:dead::1"], policy("encap", ["fc00:dead::1"], dst="10.7.0.0/16")),
    TWO,
    expect={0: [to_p0(unreachable6(ip6(IN6) / udp(), 0))], 1: [to_p0(icmp4(ip4(IN4) / udp(), 3, 0))]},
    differs="it drops the packet; its error goes to the outer source, which is itself",
)
Case(
    "headend/l2encap-own-packets",
    "mode l2encap: what the router sends itself goes as it is.",
    policy("l2encap", LIST[:2], policy("l2encap", LIST[:2], dst="10.7.0.0/16", more="via 198.51.100.2 "), more="via 2001:db8:2::2 "),
    [
        ("an echo request, IPv6", ether(IPv6(src=IN6, dst="2001:db8:1::1") / ICMPv6EchoRequest(id=1, seq=2))),
        ("a datagram, IPv6", ether(IPv6(src=IN6, dst="2001:db8:1::1") / udp())),
        ("no route, IPv6", ether(IPv6(src=IN6, dst="2001:dead::1") / udp())),
        ("an echo request, IPv4", ether(IP(src=IN4, dst="192.0.2.1") / ICMP(id=1, seq=2))),
        ("a datagram, IPv4", ether(IP(src=IN4, dst="192.0.2.1") / udp())),
        ("a SYN, IPv4", ether(IP(src=IN4, dst="192.0.2.1") / TCP(sport=1111, dport=80, flags="S"))),
        ("no route, IPv4", ether(IP(src=IN4, dst="203.0.114.9") / udp())),
        ("forwarded", ether(ip6(IN6) / udp())),
    ],
)
inside4, inside6 = ip4(IN4) / udp(), ip6(IN6) / udp()
Case(
    "headend/l2encap-own-segment",
    "mode l2encap, of what is in a packet for one of the router's own segments: behind an Ethernet header.",
    policy("l2encap", LIST[:2], policy("l2encap", LIST[:2], dst="10.7.0.0/16"))
    + [f"sysctl -qw net.ipv6.conf.{device}.seg6_enabled=1" for device in ("all", "p0")],
    [
        (what, ether(routed(ip6("2001:db8:1::1"), ["fc00:b::9", "2001:db8:1::1"], 0, p)))
        for what, p in (("IPv4", inside4), ("IPv6", inside6))
    ],
    expect={
        n: [to_p1(wrapped("l2encap", LIST[:2], p, frame=Ether(dst=P0, src=N0) / p))] for n, p in enumerate((inside4, inside6))
    },
    differs="it sends the whole frame, with what was before the packet inside",
)
Case(
    "headend/l2encap-behind-sid",
    "mode l2encap, of what is in a packet for End.DT4: the EtherType is that of what is inside.",
    VRF
    + [
        "ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0",
        "ip -6 route add fc00:e::4/128 encap seg6local action End.DT4 vrftable 100 dev p0",
        "ip route add 10.7.0.0/16 encap seg6 mode l2encap segs fc00:b::1 dev p0 table 100",
    ],
    [("IPv4", ether(routed(ip6("fc00:e::4"), ["fc00:e::4"], 0, inside4)))],
    expect={0: [to_p0(wrapped("l2encap", ["fc00:b::1"], inside4, src="2001:db8:1::1", frame=Ether(dst=P0, src=N0) / inside4))]},
    differs="it drops the packet, as it knows no Ethernet header of it in the VRF",
)
Case(
    "headend/l2encap-own-dx2",
    "mode l2encap, to the router's own End.DX2: nothing lowers the hop limit of what is in the frame.",
    policy("l2encap", ["fc00:e::2"]) + policy("l2encap.red", ["fc00:e::2"], [], dst="2001:db8:8::/48")
    + ["ip -6 route add fc00:e::2/128 encap seg6local action End.DX2 oif p1 dev p0"],
    [
        (f"{what}, hop limit {limit}", ether(ip6(to, hlim=limit) / udp()))
        for what, to in (("l2encap", IN6), ("l2encap.red", "2001:db8:8::8"))
        for limit in (2, 1, 0)
    ],
)
for what in ["rpl", "seg6 mode inline"]:
    Case(
        f"headend/l2encap-behind-{what.split()[-1]}",
        f"mode l2encap, to where `encap {what}` has led the packet: it is in the frame that it came in.",
        policy("l2encap", LIST[:2])
        + [f"ip -6 route add 2001:db8:8::/48 encap {what} segs 2001:db8:7::1 dev p1"],
        [("UDP", ether(ip6("2001:db8:8::8") / udp())), ("no payload", ether(ip6("2001:db8:8::8", nh=59)))],
    )
last = ip6(IN6, hlim=1) / udp()
Case(
    "headend/inline-no-route",
    "mode inline, no route to the first segment: the sender hears of that, whatever the hop limit.",
    policy("inline", ["fc00:dead::1"]),
    [("hop limit 64", ether(ip6(IN6) / udp())), ("hop limit 1", ether(last))],
    expect={0: [to_p0(unreachable6(ip6(IN6) / udp(), 0))], 1: [to_p0(unreachable6(last, 0))]},
    differs="it quotes the packet with the SRH inserted",
)
Case(
    "headend/blackhole",
    "The first segment is in a blackhole.",
    policy(
        "encap",
        ["fc00:dead::1"],
        policy(
            "encap", ["fc00:dead::1"], BASE + ["ip -6 route add blackhole fc00:dead::/32"], dst="10.7.0.0/16"
        ),
    ),
    TWO,
)
Case(
    "headend/loop",
    "A policy whose first segment leads to itself.",
    policy("encap", ["fc00:d::1"], dst="fc00:d::/32"),
    [("IPv6", ether(ip6("fc00:d::2") / udp()))],
    expect={},
)
for mode in ["encap-red", "inline", "l2encap", "l2encap-red"]:
    Case(
        f"headend/loop-{mode}",
        f"The same, mode {mode.replace('-', '.')}.",
        policy(mode.replace("-", "."), ["fc00:d::1"], dst="fc00:d::/32"),
        [("IPv6", ether(ip6("fc00:d::2") / udp()))],
        expect={},
    )
Case(
    "headend/loop-of-two",
    "Two policies whose first segments lead to each other.",
    policy("inline", ["fc00:d::1"], policy("encap", ["fc00:e::1"], dst="fc00:d::/32"), dst="fc00:e::/32"),
    [("into one", ether(ip6("fc00:d::2") / udp())), ("into the other", ether(ip6("fc00:e::2") / udp()))],
    expect={},
)
Case(
    "headend/loop-of-a-way",
    "A route of two ways, both of whose first segments lead to it.",
    BASE
    + [
        "ip -6 route add fc00:d::/32"
        " nexthop encap seg6 mode encap segs fc00:d::1 via 2001:db8:1::2 dev p0"
        " nexthop encap seg6 mode encap segs fc00:d::2 via 2001:db8:2::2 dev p1"
    ],
    [("IPv6", ether(ip6("fc00:d::2") / udp()))],
    expect={},
)

Case(
    "headend/loop-rpl",
    "An RPL source route whose first address leads to itself.",
    BASE + ["ip -6 route add fc00:d::/32 encap rpl segs fc00:d::1 dev p1"],
    [("IPv6", ether(ip6("fc00:d::2") / udp()))],
    expect={},
)
Case(
    "headend/loop-ioam6",
    "Two routes that put traces into outer headers, whose tunnel ends lead to each other.",
    BASE
    + ["ip ioam namespace add 1"]
    + [
        f"ip -6 route add {dst} encap ioam6 mode encap tundst {to}"
        " trace prealloc type 0x800000 ns 1 size 4 via 2001:db8:2::2 dev p1"
        for dst, to in [("fc00:d::/32", "fc00:e::1"), ("fc00:e::/32", "fc00:d::1")]
    ],
    [("IPv6", ether(ip6("fc00:d::2") / udp()))],
    expect={},
)


def chain(mode, count):
    """Policies each of which leads to the next, the last out of the router."""
    segs = [f"fc00:d:{n:x}::1" for n in range(1, count + 1)] + [LIST[0]]
    config = list(BASE)
    for n in range(1, count + 1):
        config = policy(mode, [segs[n]], config, dst=f"fc00:d:{n:x}::/48")
    return config


for mode in ["encap", "inline"]:
    packet = ip6("fc00:d:1::7") / udp()
    Case(f"headend/chain-{mode}", f"8 policies, mode {mode}, one after the other.", chain(mode, 8), [("UDP", ether(packet))])
    Case(
        f"headend/chain-{mode}-of-9",
        f"9 policies, mode {mode}, one after the other: one too many.",
        chain(mode, 9),
        [("UDP", ether(packet))],
        expect={},
    )

# Routes of several ways that encapsulate. Which flow takes which way is each router's own choice, so both ways
# do the same here: that every way is taken is tested elsewhere.
TUNSRC = ["ip sr tunsrc set fc00:f::9"]
for mode in ["encap", "encap.red", "inline", "l2encap", "l2encap.red"]:
    name = mode.replace(".", "-")
    way = f"encap seg6 mode {mode} segs {','.join(LIST[:2])}"
    inputs = [(label, ether(p), [to_p1(wrapped(mode, LIST[:2], p, src="fc00:f::9", frame=frame_of(p)))]) for label, p in plain_inputs()[:4]]
    Case(
        f"headend/ecmp-{name}",
        f"A route of two ways, mode {mode}.",
        BASE + TUNSRC + [
            "ip -6 route add 2001:db8:7::/48"
            f" nexthop {way} via 2001:db8:2::2 dev p1 nexthop {way} via 2001:db8:1::2 dev p0 weight 3"
        ],
        **io(inputs),
    )
    Case(
        f"headend/ecmp-objects-{name}",
        f"A route to a group of next-hop objects, mode {mode}.",
        BASE
        + TUNSRC
        + [
            f"ip -6 nexthop add id 1 {way} dev p1",
            f"ip -6 nexthop add id 2 {way} dev p0",
            "ip nexthop add id 10 group 1/2,2",
            "ip -6 route add 2001:db8:7::/48 nhid 10",
            "ip -6 route add 2001:db8:8::/48 nhid 1",
        ],
        **io(inputs),
    )
    if mode != "inline":
        inputs4 = [(label, ether(p), [to_p1(wrapped(mode, LIST[:2], p, src="fc00:f::9", frame=frame_of(p)))]) for label, p in INPUTS4[:2]]
        Case(
            f"headend/ecmp-{name}-ipv4",
            f"A route of IPv4 of two ways, mode {mode}.",
            BASE + TUNSRC + [f"ip route add 10.7.0.0/16 nexthop {way} dev p1 nexthop {way} dev p0 weight 3"],
            **io(inputs4),
        )
Case(
    "headend/multipath",
    "The first segment's route is a next-hop group of one.",
    policy(
        "encap",
        ["fc00:d::1"],
        policy(
            "encap",
            ["fc00:d::1"],
            BASE
            + [
                "ip nexthop add id 1 via 2001:db8:2::3 dev p1",
                "ip nexthop add id 10 group 1",
                "ip -6 route add fc00:d::/32 nhid 10",
            ],
            dst="10.7.0.0/16",
        ),
    ),
    TWO,
)

# -------------------------------------------------------------------------------------------- bursts

for n in range(10):
    flow = [(f"packet {i}", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6))) for i in range(n)]
    Case(
        f"bursts/end-{n}",
        f"{n} packets of a flow through End.",
        sid("End"),
        flow,
        expect={i: [to_p1(hops(routed(ip6(NEXT), [SID, NEXT], 0, INNER6)))] for i in range(n)},
    )
    flow = [(f"packet {i}", ether(ip6(IN6) / udp(64 + i))) for i in range(n)]
    Case(
        f"bursts/encap-{n}",
        f"{n} packets of a flow through mode encap.",
        policy("encap", LIST[:2]),
        flow,
        expect={i: [to_p1(wrapped("encap", LIST[:2], ip6(IN6) / udp(64 + i)))] for i in range(n)},
    )

# Main's routes, which what comes in by a link of a VRF falls back to.
ENCAPS = {
    "2001:db8:a1::/48": "seg6 mode encap segs fc00:88::1,fc00:88::2",
    "2001:db8:a2::/48": "seg6 mode encap.red segs fc00:88::1,fc00:88::2",
    "2001:db8:a3::/48": "seg6 mode inline segs fc00:88::1",
    "2001:db8:a4::/48": "seg6 mode l2encap segs fc00:88::1",
    "2001:db8:a5::/48": "rpl segs fc00:88::1",
    "fc00:77::1/128": "seg6local action End.B6 srh segs fc00:88::1",
    "fc00:77::2/128": "seg6local action End.B6.Encaps srh segs fc00:88::1",
}
Case(
    "headend/vrf-ingress",
    "What comes in by a link of a VRF goes on by the VRF, though the route with the segments is one of main.",
    [
        "ip link set p0 up",
        "ip link set p1 up",
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip link set p0 master vrf100",
        "ip addr add 192.0.2.1/24 dev p0",
        "ip addr add 2001:db8:1::1/64 dev p0 nodad",
        "ip addr add 2001:db8:2::1/64 dev p1 nodad",
        "ip neigh add 2001:db8:2::2 lladdr 02:00:00:00:02:02 dev p1 nud permanent",
        "ip neigh add 2001:db8:2::3 lladdr 02:00:00:00:02:03 dev p1 nud permanent",
        "ip -6 route add fc00:88::/32 via 2001:db8:2::2 dev p1",
        "ip -6 route add fc00:88::/32 via 2001:db8:2::3 dev p1 vrf vrf100",
        "ip -6 route add 2001:db8:a6::/48 via 2001:db8:2::2 dev p1",
        "ip sr tunsrc set 2001:db8:99::1",
        "ip route add 10.1.0.0/16 encap seg6 mode encap segs fc00:88::1,fc00:88::2 dev p1",
    ]
    + [f"ip -6 route add {to} encap {encap} dev p1" for to, encap in ENCAPS.items()],
    [
        (to, ether(IPv6(src="2001:db8:5::5", dst=to.replace("::/48", "::7"), hlim=9) / udp()))
        for to in ENCAPS if to.endswith("/48")
    ]
    + [("IPv4", ether(IP(src="203.0.113.7", dst="10.1.0.1", ttl=9) / udp()))]
    + [
        (action, ether(routed(IPv6(src="2001:db8:5::5", dst=sid, hlim=9), ["2001:db8:a6::7", sid], 1, udp())))
        for action, sid in (("End.B6", "fc00:77::1"), ("End.B6.Encaps", "fc00:77::2"))
    ],
)
