"""Endpoint behaviours: RFC 8986 section 4, RFC 9800 section 4.1, and what they refuse."""

from .frames import *

# What End, End.X and End.T refuse: they need a next segment.
NOT_ENDED = [
    ("no SRH, UDP", ether(ip6(SID) / udp())),
    ("no SRH, IPv6 inside", ether(ip6(SID, nh=41) / INNER6)),
    ("no SRH, IPv4 inside", ether(ip6(SID, nh=4) / INNER4)),
    ("no SRH, no next header", ether(ip6(SID, nh=59))),
    ("segments left 0, UDP", ether(routed(ip6(SID), [NEXT, SID], 0, udp()))),
    ("segments left 0, IPv6 inside", ether(routed(ip6(SID), [NEXT, SID], 0, INNER6))),
    ("no SRH, hop limit 1", ether(ip6(SID, nh=41, hlim=1) / INNER6)),
    ("SRH longer than the packet", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=200))),
    ("SRH too short for last entry", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=2))),
    ("SRH length odd, TLVs broken", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=5))),
    ("last entry beyond the list", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, last=2))),
    ("segments left above last entry + 1", ether(routed(ip6(SID), [SID, NEXT], 3, INNER6))),
    ("routing type 0", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, kind=0))),
    ("routing type 2, segments left 0", ether(routed(ip6(SID), [SID, NEXT], 0, INNER6, kind=2))),
    (
        "TLV longer than the SRH",
        ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, tlvs=bytes([4, 60] + [0] * 6))),
    ),
    ("a fragment that is not the first", ether(ip6(SID, nh=44) / fragment(43, payload(80), offset=8))),
    ("first fragment, no SRH", ether(ip6(SID, nh=44) / fragment(41, INNER6))),
    ("SRH cut after 4 bytes", ether(ip6(SID, nh=43) / Raw(bytes([41, 4, 4, 1])))),
    ("SRH cut inside its list", ether(ip6(SID, nh=43) / Raw(bytes(srh([SID, NEXT], 1, INNER6))[:20]))),
]
PADTLV = bytes([4, 6, 0, 0, 0, 0, 0, 0])
OPAQUE = bytes([200, 4, 1, 2, 3, 4, 0, 0])


def advanced(dst=N1):
    """What End and its like do: (label, in, out)."""

    def one(label, segments, left, inner, **more):
        before = routed(ip6(SID), segments, left, inner, **more)
        after = routed(ip6(segments[len(segments) - left]), segments, left - 1, inner, **more)
        return (label, ether(before), [to_p1(hops(after), dst)])

    listed = [
        one("SRH of 2, IPv6 inside", [SID, NEXT], 1, INNER6),
        one("SRH of 2, IPv4 inside", [SID, NEXT], 1, INNER4),
        one("SRH of 3, UDP", [SID, NEXT, LAST], 2, udp()),
        one("SRH of 3, the second segment is done", [LAST, SID, NEXT], 1, udp()),
        one("SRH of 2, a frame inside", [SID, NEXT], 1, FRAME),
        one("reduced SRH: 1 segment, segments left 1", [NEXT], 1, INNER6),
        one("reduced SRH: 2 segments, segments left 2", [NEXT, LAST], 2, INNER6),
        one("tag, every flag, a padding TLV", [SID, NEXT], 1, INNER6, tag=0x1234, flags=0xFF, tlvs=PADTLV),
        one("an opaque TLV and padding", [SID, NEXT], 1, INNER6, tlvs=OPAQUE + PADTLV),
        one("HMAC flag without its TLV", [SID, NEXT], 1, INNER6, flags=8),
    ]
    for label, nh, wrap in [
        ("hop-by-hop options before the SRH", 0, opts),
        ("destination options before the SRH", 60, opts),
        ("fragment header before the SRH", 44, fragment),
    ]:
        listed.append(
            (
                label,
                ether(ip6(SID, nh=nh) / wrap(43, srh([SID, NEXT], 1, INNER6))),
                [to_p1(hops(ip6(NEXT, nh=nh) / wrap(43, srh([SID, NEXT], 0, INNER6))), dst)],
            )
        )
    listed.append(
        (
            "destination options after the SRH",
            ether(ip6(SID, nh=43) / srh([SID, NEXT], 1, opts(17, udp()), nh=60)),
            [to_p1(hops(ip6(NEXT, nh=43) / srh([SID, NEXT], 0, opts(17, udp()), nh=60)), dst)],
        )
    )
    listed.append(
        (
            "bytes behind the packet",
            behind(ether(routed(ip6(SID), [SID, NEXT], 1, INNER6)), b"PADDING"),
            [to_p1(hops(routed(ip6(NEXT), [SID, NEXT], 0, INNER6)), dst)],
        )
    )
    listed.append(
        ("next segment unroutable", ether(routed(ip6(SID), [SID, "fc00:dead::1"], 1, INNER6)), None)
    )
    return listed


T100 = BASE + [
    "ip -6 route add fc00:b::/32 via 2001:db8:2::3 dev p1 table 100",
    "ip -6 route add fc00:c::/32 via 2001:db8:2::3 dev p1 table 100",
]
for name, action, base, dst in [
    ("end", "End", BASE, N1),
    ("end-x", "End.X nh6 2001:db8:2::3", BASE, N1B),
    ("end-t", "End.T table 100", T100, N1B),
]:
    doc = action.split()[0]
    listed = advanced(dst)
    Case(f"endpoint/{name}", f"{doc} moves on to the next segment.", sid(action, base), **io(listed[:-1]))
    Case(
        f"endpoint/{name}-no-route",
        f"{doc} towards a segment without a route"
        + (", which End.X does not look up." if name == "end-x" else "."),
        sid(action, base),
        **io(listed[-1:]),
    )
    Case(
        f"endpoint/{name}-refused",
        f"{doc} drops what has no next segment, or no valid SRH.",
        sid(action, base),
        NOT_ENDED,
        expect={},
    )
    hop1 = [(f"hop limit {h}", routed(ip6(SID, hlim=h), [SID, NEXT], 1, INNER6)) for h in (1, 0)]
    Case(
        f"endpoint/{name}-hop-limit",
        f"{doc} at hop limit 1 and 0: time exceeded.",
        sid(action, base),
        [(label, ether(p)) for label, p in hop1],
        expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
        differs="it quotes the packet with the next segment already its destination",
    )


def popped():
    """What PSP does with the last segment."""
    listed = [
        ("SRH of 2, IPv6 inside", routed(ip6(SID), [SID, NEXT], 1, INNER6), ip6(NEXT, nh=41) / INNER6),
        ("SRH of 2, IPv4 inside", routed(ip6(SID), [SID, NEXT], 1, INNER4), ip6(NEXT, nh=4) / INNER4),
        ("SRH of 2, UDP", routed(ip6(SID), [SID, NEXT], 1, udp()), ip6(NEXT) / udp()),
        ("SRH of 3, the last but one", routed(ip6(SID), [LAST, SID, NEXT], 1, udp()), ip6(NEXT) / udp()),
        (
            "SRH of 3, not the last: stays",
            routed(ip6(SID), [SID, NEXT, LAST], 2, udp()),
            routed(ip6(NEXT), [SID, NEXT, LAST], 1, udp()),
        ),
        (
            "with TLVs and tag",
            routed(ip6(SID), [SID, NEXT], 1, INNER6, tag=7, tlvs=OPAQUE + PADTLV),
            ip6(NEXT, nh=41) / INNER6,
        ),
        (
            "hop-by-hop options before the SRH",
            ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6)),
            ip6(NEXT, nh=0) / opts(41, INNER6),
        ),
        (
            "destination options before the SRH",
            ip6(SID, nh=60) / opts(43, srh([SID, NEXT], 1, INNER6)),
            ip6(NEXT, nh=60) / opts(41, INNER6),
        ),
        (
            "destination options after the SRH",
            ip6(SID, nh=43) / srh([SID, NEXT], 1, opts(17, udp()), nh=60),
            ip6(NEXT, nh=60) / opts(17, udp()),
        ),
        ("reduced SRH", routed(ip6(SID), [NEXT], 1, INNER6), ip6(NEXT, nh=41) / INNER6),
    ]
    return [(label, ether(before), [to_p1(hops(after))]) for label, before, after in listed]


Case(
    "endpoint/end-psp",
    "End with PSP removes the SRH as the last segment becomes the destination.",
    sid("End flavors psp"),
    **io(popped()),
)
Case(
    "endpoint/end-psp-refused",
    "End with PSP drops what has no next segment, or no valid SRH.",
    sid("End flavors psp"),
    NOT_ENDED,
    expect={},
)
hop1 = routed(ip6(SID, hlim=1), [SID, NEXT], 1, INNER6)
Case(
    "endpoint/end-psp-hop-limit",
    "End with PSP at hop limit 1: time exceeded.",
    sid("End flavors psp"),
    [("hop limit 1", ether(hop1))],
    expect={0: [to_p0(time_exceeded(hop1))]},
    differs="it quotes the packet without the SRH, the next segment already its destination",
)
Case(
    "endpoint/end-twice",
    "Two SIDs of this router one after the other: the hop limit falls once, each SID counts.",
    sid("End", sid("End", address="fc00:a::2")),
    **io(
        [
            (
                "fc00:a::1, then fc00:a::2",
                ether(routed(ip6(SID), [SID, "fc00:a::2", NEXT], 2, udp())),
                [to_p1(hops(routed(ip6(NEXT), [SID, "fc00:a::2", NEXT], 0, udp())))],
            )
        ]
    ),
)
THREE = BASE + [
    "ip -6 route add fc00:a::1/128 encap seg6local action End count dev p0",
    "ip -6 route add fc00:a::2/128 encap seg6local action End dev p0",
    "ip -6 route add fc00:a::3/128 encap seg6local action End count dev p0",
    "ip -6 route add fc00:a::4/128 encap seg6local action End.B6.Encaps srh segs fc00:a::2,fc00:a::4 count dev p0",
]
Case(
    "endpoint/end-thrice",
    "Three SIDs of this router one after the other, of which the second does not count: what the last refuses is an error of all.",
    THREE,
    [
        ("through all three", ether(routed(ip6(SID), [SID, "fc00:a::2", "fc00:a::3", NEXT], 3, udp()))),
        ("the third is the last", ether(routed(ip6(SID), [SID, "fc00:a::2", "fc00:a::3"], 2, udp()))),
        ("the second is the last", ether(routed(ip6(SID), [SID, "fc00:a::2"], 1, udp()))),
        ("back to itself, without segments left", ether(routed(ip6("fc00:a::4"), ["fc00:a::4", NEXT], 1, udp()))),
    ],
)

CHAIN = [SID, "fc00:a::2", "fc00:a::3", "fc00:a::4"]


def chained(first, to, n=64):
    """Through the SIDs from this one on, to an address behind them."""
    segments = CHAIN[first:] + [to]
    return ether(routed(ip6(CHAIN[first]), segments, len(segments) - 1, udp(n)))


Case(
    "endpoint/chain",
    "Several SIDs of this router one after the other: what becomes of a packet behind the last one counts for each.",
    sid("End")
    + [
        "ip link set p1 mtu 1400",
        "ip -6 route add fc00:a::2/128 encap seg6local action End.T table main count dev p0",
        "ip -6 route add fc00:a::3/128 encap seg6local action End dev p0",
        "ip -6 route add fc00:a::4/128 encap seg6local action End count dev p0",
        "ip link add tun1 type ip6tnl local 2001:db8:2::1 remote 2001:db8:6::99",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
        "ip -6 route add fc00:d::1 dev tun1",
    ],
    [
        (f"from SID {first + 1} on, {what}", chained(first, to, n))
        for first in range(len(CHAIN))
        for what, to, n in [
            ("to the next router", NEXT, 64),
            ("too long for the link", NEXT, 1330),
            ("into a tunnel", "fc00:d::1", 64),
            ("too long for the tunnel", "fc00:d::1", 1330),
        ]
    ],
    remembers=True,
)

Case(
    "endpoint/dt4-options",
    "IPv4 options behind a SID: nothing is written into them, and an error does not echo them.",
    sid("End.DT4 vrftable 100", VRF, dev="vrf100") + ["ip route add prohibit 10.99.0.0/16 table 100"],
    [
        (f"{what}, {to}", ether(ip6(SID, nh=4) / ip4(dst, ttl=ttl, options=[IPOption(option)]) / udp()))
        for what, option in [
            ("a timestamp", b"\x44\x08\x05\0\0\0\0\0"),
            ("a route", b"\x07\x07\x04\0\0\0\0\0"),
        ]
        for to, dst, ttl in [("forwarded", TARGET4, 40), ("TTL 1", TARGET4, 1), ("prohibited", "10.99.0.9", 40), ("no route", "10.98.0.9", 40)]
    ],
)

# Decapsulating behaviours. What is in the way is passed over: options, an SRH at segments left 0.
DX = [
    ("dx2", "End.DX2 oif p1", BASE, "p0", N1, {"ether"}),
    ("dx4-any", "End.DX4 nh4 0.0.0.0", BASE, "p0", N1, {"4"}),
    ("dx6", "End.DX6 nh6 2001:db8:2::3", BASE, "p0", N1B, {"6"}),
    ("dx6-any", "End.DX6 nh6 ::", BASE, "p0", N1, {"6"}),
    ("dt6-table", "End.DT6 table main", BASE, "p0", N1, {"6"}),
    ("dt6", "End.DT6 vrftable 100", VRF, "vrf100", N1, {"6"}),
    ("dt4", "End.DT4 vrftable 100", VRF, "vrf100", N1, {"4"}),
    ("dt46", "End.DT46 vrftable 100", VRF, "vrf100", N1, {"4", "6"}),
]
INNER = {"6": (41, INNER6), "4": (4, INNER4), "ether": (143, FRAME)}


def ways_in(nh, inner):
    """The ways that a packet can be inside another."""
    return [
        ("no SRH", ip6(SID, nh=nh) / inner),
        ("no SRH, outer hop limit 1", ip6(SID, nh=nh, hlim=1) / inner),
        ("SRH of 1, segments left 0", routed(ip6(SID), [SID], 0, inner, nh=nh)),
        ("SRH of 2, segments left 0", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh)),
        ("SRH with TLVs", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh, tlvs=OPAQUE + PADTLV)),
        ("reduced SRH, segments left 0", routed(ip6(SID), [NEXT], 0, inner, nh=nh)),
        ("hop-by-hop options", ip6(SID, nh=0) / opts(nh, inner)),
        ("destination options", ip6(SID, nh=60) / opts(nh, inner)),
        ("SRH, then destination options", routed(ip6(SID), [NEXT, SID], 0, opts(nh, inner), nh=60)),
        ("destination options, then SRH", ip6(SID, nh=60) / opts(43, srh([NEXT, SID], 0, inner, nh=nh))),
        ("an atomic fragment", ip6(SID, nh=44) / fragment(nh, inner, more=0)),
    ]


def inside_out(packet, dst):
    """The inner packet as it leaves: one hop later; a frame as it is."""
    return ("p1", packet) if isinstance(packet, Ether) else to_p1(hops(packet), dst)


def not_inside(kinds):
    """What a decapsulating behaviour refuses: another protocol, segments left, no packet at all."""
    listed = [
        ("UDP", ip6(SID) / udp()),
        ("no next header", ip6(SID, nh=59)),
        ("ESP", ip6(SID, nh=50) / payload(64)),
        ("an unknown protocol", ip6(SID, nh=253) / payload(64)),
        ("UDP behind the SRH", routed(ip6(SID), [NEXT, SID], 0, udp())),
        ("a later fragment", ip6(SID, nh=44) / fragment(41, payload(80), offset=8)),
    ]
    for kind, (nh, inner) in INNER.items():
        if kind not in kinds:
            listed.append((f"next header {nh}", ip6(SID, nh=nh) / inner))
            listed.append(
                (f"next header {nh} behind the SRH", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh))
            )
        else:
            listed.append(
                (f"next header {nh}, segments left 1", routed(ip6(SID), [SID, NEXT], 1, inner, nh=nh))
            )
            listed.append(
                (f"next header {nh}, segments left 2", routed(ip6(SID), [SID, NEXT, LAST], 2, inner, nh=nh))
            )
            listed.append((f"next header {nh}, nothing inside", ip6(SID, nh=nh)))
            listed.append(
                (f"next header {nh}, cut inside the header", ip6(SID, nh=nh) / Raw(bytes(inner)[:10]))
            )
    return [(label, ether(packet)) for label, packet in listed]


for name, action, base, dev, dst, kinds in DX:
    doc = " ".join(action.split()[:2] if "table" in action else action.split()[:1])
    listed = []
    for kind in sorted(kinds):
        nh, inner = INNER[kind]
        listed += [
            (f"{label}, next header {nh}", ether(packet), [inside_out(inner, dst)])
            for label, packet in ways_in(nh, inner)
        ]
        listed.append(
            (
                f"bytes behind the packet, next header {nh}",
                behind(ether(ip6(SID, nh=nh) / inner), b"PADDING"),
                [inside_out(inner, dst)],
            )
        )
    config = sid(action, base, dev)
    Case(f"endpoint/{name}", f"{doc} takes the packet out.", config, **io(listed))
    Case(
        f"endpoint/{name}-refused",
        f"{doc} drops what it does not expect.",
        config,
        not_inside(kinds),
        expect={},
    )


# --------------------------------------------------------- where Linux leaves the RFCs, or its own sense

listed = [(label, packet) for label, packet in ways_in(4, INNER4)]
Case(
    "endpoint/dx4",
    "End.DX4 sends to nh4, whatever the inner destination: RFC 8986 section 4.5.",
    sid("End.DX4 nh4 198.51.100.3"),
    **io([(label, ether(p), [to_p1(hops(INNER4), N1B)]) for label, p in listed]),
    differs="it resolves the inner destination, 203.0.113.133, on the link",
)
Case(
    "endpoint/dx4-refused",
    "End.DX4 drops what it does not expect.",
    sid("End.DX4 nh4 198.51.100.3"),
    not_inside({"4"}),
    expect={},
)

# The packet inside is for an address of the router's, which is not asked for where nh4 has no route.
Case(
    "endpoint/dx4-no-way",
    "End.DX4 in a VRF that has no way to nh4: the error comes from the port by which it leaves.",
    VRF
    + [
        "ip route add 203.0.113.0/25 via 198.51.100.2 dev p1 vrf vrf100",
        *(f"ip route add {kind} 10.9.{n}.0/24 vrf vrf100" for n, kind in enumerate(["unreachable", "prohibit"])),
        *(f"ip -6 route add {SID}{n}/128 encap seg6local action End.DX4 nh4 10.9.{n}.1 dev p0" for n in (0, 1)),
    ],
    [
        (f"{kind}, for {own}", "p1", Ether(dst=P1, src=N1) / ip6(f"{SID}{n}", nh=4) / ip4(own) / udp())
        for n, kind in enumerate(["unreachable", "prohibit"])
        for own in ("192.0.2.1", "198.51.100.1")
    ],
)

# Nor has it been delivered where its TTL runs out or it is too long for the way to nh4.
Case(
    "endpoint/dx4-errors",
    "An error about what End.DX4 sends on does not come from the packet's destination, though that is the router's own.",
    VRF
    + [
        "ip route add 203.0.113.0/25 via 198.51.100.2 dev p1 vrf vrf100",
        "ip route add 10.9.0.0/16 via 198.51.100.2 mtu 1000 vrf vrf100",
        *(f"ip -6 route add {SID}{n}/128 encap seg6local action End.DX4 nh4 {nh4} dev p0" for n, nh4 in enumerate(["198.51.100.3", "10.9.1.1"])),
    ],
    [
        (f"{why}, for {own}", "p1", Ether(dst=P1, src=N1) / ip6(f"{SID}{n}", nh=4) / ip4(own, ttl=ttl, flags="DF") / udp(size))
        for n, why, ttl, size in [(0, "TTL 1", 1, 10), (1, "too long", 9, 1100)]
        for own in ("192.0.2.1", "198.51.100.1")
    ]
    + [
        (f"{why}, with times", "p1", Ether(dst=P1, src=N1) / ip6(f"{SID}{n}", nh=4) / ip4(ttl=ttl, flags="DF", options=[IPOption(b"\x44\x08\5\0\0\0\0\0")]) / udp(size))
        for n, why, ttl, size in [(0, "TTL 1", 1, 10), (1, "too long", 9, 1100)]
    ],
)

BROKEN = [
    ("SRH reaches into the inner packet", dict(hdrlen=6)),
    ("last entry beyond the list", dict(last=2)),
    ("segments left above last entry + 1", dict(left=3)),
    ("routing type 0, segments left 1", dict(kind=0)),
    ("routing type 2, segments left 1", dict(kind=2)),
    ("TLV longer than the SRH", dict(tlvs=bytes([4, 60] + [0] * 6))),
]
for name, action, base, dev, dst, kinds in DX:
    if name not in ("dx2", "dx4-any", "dx6", "dt6", "dt4", "dt46"):
        continue
    doc = action.split()[0]
    config = sid(action, base, dev)
    for kind in sorted(kinds):
        nh, inner = INNER[kind]
        packets = [
            (
                label,
                routed(
                    ip6(SID),
                    [SID, NEXT],
                    more.get("left", 1),
                    inner,
                    nh=nh,
                    **{k: v for k, v in more.items() if k != "left"},
                ),
            )
            for label, more in BROKEN
        ]
        Case(
            f"endpoint/{name}-srh-broken-{nh}",
            f"{doc} drops a packet whose SRH is malformed or of another type, segments left.",
            config,
            [(label, ether(p)) for label, p in packets],
            expect={},
            counters="errors",
            differs="it takes the routing header for absent and takes the inner packet out",
        )
    for kind in sorted(kinds - {"ether"}):
        nh, inner = INNER[kind]
        cut = [
            ("inner packet 10 bytes shorter than it says", ip6(SID, nh=nh) / Raw(bytes(inner)[:-10])),
            ("the same behind an SRH", routed(ip6(SID), [NEXT, SID], 0, Raw(bytes(inner)[:-10]), nh=nh)),
        ]
        if kind == "4":
            cut += [
                ("inner checksum wrong", ip6(SID, nh=nh) / (ip4(chksum=0x1234) / udp())),
                ("inner header length 4", ip6(SID, nh=nh) / Raw(b"\x44" + bytes(INNER4)[1:])),
                ("inner version 6", ip6(SID, nh=nh) / INNER6),
                ("inner header longer than the packet", ip6(SID, nh=nh) / Raw(b"\x4f" + bytes(INNER4)[1:40])),
            ]
        else:
            cut += [("inner version 4", ip6(SID, nh=nh) / INNER4)]
        Case(
            f"endpoint/{name}-inner-broken-{nh}",
            f"{doc} drops an inner packet that is malformed.",
            config,
            [(label, ether(p)) for label, p in cut],
            expect={},
            counters="errors",
            differs="it forwards inner packets without a look at their length, version and checksum",
        )
        longer = [
            ("5 bytes behind the inner packet", ip6(SID, nh=nh) / Raw(bytes(inner) + b"extra")),
            ("the same behind an SRH", routed(ip6(SID), [NEXT, SID], 0, Raw(bytes(inner) + b"extra"), nh=nh)),
        ]
        Case(
            f"endpoint/{name}-inner-longer-{nh}",
            f"{doc} leaves behind what follows the inner packet.",
            config,
            [(label, ether(p)) for label, p in longer],
            expect={i: [to_p1(hops(inner), dst)] for i in range(2)},
            differs="it forwards the bytes behind the inner packet",
        )

for name, action, base, dev, dst, kinds in DX:
    for kind in sorted(kinds - {"ether"}):
        nh, inner = INNER[kind]
        last = ip6(hlim=1) / udp() if kind == "6" else ip4(ttl=1) / udp()
        away = (
            ip6(TARGET.replace("db8:6", "db8:66"), src=SOURCE) / udp()
            if kind == "6"
            else ip4("203.0.114.1") / udp()
        )
        Case(
            f"endpoint/{name}-inner-hop-limit-{nh}",
            f"{action.split()[0]}: the inner packet has no hop left.",
            sid(action, base, dev),
            [
                ("no SRH", ether(ip6(SID, nh=nh) / last)),
                ("SRH", ether(routed(ip6(SID), [NEXT, SID], 0, last, nh=nh))),
            ],
        )
        if name not in ("dx4-any", "dx6-any"):
            Case(
                f"endpoint/{name}-inner-no-route-{nh}",
                f"{action.split()[0]}: no route to the inner destination"
                + (", which End.DX6 does not look up." if name == "dx6" else "."),
                sid(action, base, dev),
                [("no SRH", ether(ip6(SID, nh=nh) / away))],
            )

# End.DX2 sends the frame as it is, VLAN tags and all, whatever it holds.
TAGGED = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / Dot1Q(vlan=5, prio=3) / INNER4
frames = [
    ("a VLAN tag", TAGGED),
    ("an ARP request", Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:09:08", type=0x0806) / Raw(bytes(28))),
    (
        "an unknown EtherType",
        Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08", type=0x88B5) / payload(50),
    ),
    ("multicast", Ether(dst="01:00:5e:00:00:05", src="02:00:00:00:09:08") / INNER4),
    ("hop limit 1 inside", Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / ip6(hlim=1) / udp()),
]
Case(
    "endpoint/dx2-frames",
    "End.DX2 does not look into the frame.",
    sid("End.DX2 oif p1"),
    **io([(label, ether(ip6(SID, nh=143) / f), [("p1", f)]) for label, f in frames if "ARP" not in label]),
)
long_frame = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / ip6() / udp(1252)
Case(
    "endpoint/dx2-too-big",
    "End.DX2 drops a frame longer than the MTU of its link.",
    sid("End.DX2 oif p1", BASE + ["ip link set p1 mtu 1280"]),
    [
        ("1,300 bytes inside", ether(ip6(SID, nh=143) / long_frame)),
        ("it fits", ether(ip6(SID, nh=143) / FRAME)),
    ],
)

Case(
    "endpoint/dx2-filters",
    "Filters where a frame leaves see what is in it.",
    sid("End.DX2 oif p1")
    + [
        "tc qdisc add dev p1 clsact",
        "tc filter add dev p1 egress protocol ipv6 pref 1 flower ip_proto udp action drop",
        "tc filter add dev p1 egress protocol ip pref 2 u32 match ip protocol 17 0xff action drop",
    ],
    **io([(label, ether(ip6(SID, nh=143) / Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / inner), []) for label, inner in [("IPv6", INNER6), ("IPv4", INNER4)]]),
    differs="it takes the Ethernet header for the IP header, and the filters match nothing",
)

# End.B6 and End.B6.Encaps: a binding SID.
for n, segs in [
    (1, ["fc00:b::9"]),
    (2, ["fc00:b::9", "fc00:c::9"]),
    (3, ["fc00:b::9", "fc00:c::9", "fc00:b::8"]),
]:
    text = ",".join(segs)
    listed = []
    for label, segments, left, inner in [
        ("SRH of 2", [SID, NEXT], 1, INNER6),
        ("SRH of 3, IPv4 inside", [SID, NEXT, LAST], 2, INNER4),
        ("reduced SRH", [NEXT], 1, INNER6),
    ]:
        nh = {IPv6: 41, IP: 4}[type(inner)]
        packet = routed(ip6(SID), segments, left, inner, nh=nh)
        inserted = ip6(segs[0], nh=43) / srh(segs + [SID], n, srh(segments, left, inner, nh=nh), nh=43)
        listed.append((label, ether(packet), [to_p1(hops(inserted))]))
    Case(
        f"endpoint/b6-{n}",
        f"End.B6 inserts an SRH of {n + 1} before the packet's own, which it leaves as it is.",
        sid(f"End.B6 srh segs {text}"),
        **io(listed),
    )
    listed = []
    for label, segments, left, inner in [
        ("SRH of 2", [SID, NEXT], 1, INNER6),
        ("SRH of 3, IPv4 inside", [SID, NEXT, LAST], 2, INNER4),
        ("reduced SRH", [NEXT], 1, INNER6),
    ]:
        packet = routed(ip6(SID), segments, left, inner)
        after = routed(ip6(segments[len(segments) - left]), segments, left - 1, inner)
        outer = IPv6(src="2001:db8:1::1", dst=segs[0], hlim=39, tc=0xB8, fl=0x12345, nh=43) / srh(
            segs, n - 1, after, nh=41
        )
        listed.append((label, ether(packet), [to_p1(outer)]))
    Case(
        f"endpoint/b6-encaps-{n}",
        f"End.B6.Encaps advances the packet's SRH, then encapsulates in a list of {n}.",
        sid(f"End.B6.Encaps srh segs {text}"),
        **io(listed),
    )
for name, action in [("b6", "End.B6"), ("b6-encaps", "End.B6.Encaps")]:
    config = sid(f"{action} srh segs fc00:b::9,fc00:c::9")
    Case(
        f"endpoint/{name}-refused",
        f"{action} drops what has no next segment, or no valid SRH.",
        config,
        NOT_ENDED,
        expect={},
    )
    hop1 = [(f"hop limit {h}", routed(ip6(SID, hlim=h), [SID, NEXT], 1, INNER6)) for h in (1, 0)]
    Case(
        f"endpoint/{name}-hop-limit",
        f"{action} at hop limit 1 and 0: time exceeded.",
        config,
        [(label, ether(p)) for label, p in hop1],
        expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
        differs=(
            "it quotes the packet with its own headers inserted"
            if name == "b6"
            else "it drops the packet silently"
        ),
    )
Case(
    "endpoint/b6-hop-by-hop",
    "End.B6 inserts behind hop-by-hop options, which come first: RFC 8200 section 4.1.",
    sid("End.B6 srh segs fc00:b::9,fc00:c::9"),
    **io(
        [
            (
                "hop-by-hop options",
                ether(ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6))),
                [
                    to_p1(
                        hops(
                            ip6("fc00:b::9", nh=0)
                            / opts(
                                43,
                                srh(["fc00:b::9", "fc00:c::9", SID], 2, srh([SID, NEXT], 1, INNER6), nh=43),
                            )
                        )
                    )
                ],
            )
        ]
    ),
    differs="it inserts before them",
)
Case(
    "endpoint/b6-encaps-options",
    "End.B6.Encaps with options before the SRH.",
    sid("End.B6.Encaps srh segs fc00:b::9,fc00:c::9"),
    [
        ("hop-by-hop options", ether(ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6)))),
        ("destination options", ether(ip6(SID, nh=60) / opts(43, srh([SID, NEXT], 1, INNER6)))),
    ],
)

# NEXT-CSID: 32 bits of block, 16 of node and function.
CSID = "fc00:a:1:b:c::"
CSID_ROUTES = BASE + [
    "ip -6 route add fc00:a:b::/48 via 2001:db8:2::2 dev p1",
    "ip -6 route add fc00:a:c::/48 via 2001:db8:2::3 dev p1",
]
for name, action, dst in [
    ("un", "End flavors next-csid lblen 32 nflen 16", N1),
    ("ua", "End.X nh6 2001:db8:2::3 flavors next-csid lblen 32 nflen 16", N1B),
]:
    config = CSID_ROUTES + [f"ip -6 route add fc00:a:1::/48 encap seg6local action {action} count dev p0"]
    shifted = "fc00:a:b:c::"
    full = "fc00:a:1:b:2:3:4:c"
    listed = [
        ("UDP, no SRH", ip6(CSID) / udp(), ip6(shifted) / UDP(bytes(ip6(CSID) / udp())[40:])),
        ("IPv6 inside, no SRH", ip6(CSID, nh=41) / INNER6, ip6(shifted, nh=41) / INNER6),
        ("every CSID in use", ip6(full, nh=41) / INNER6, ip6("fc00:a:b:2:3:4:c:0", nh=41) / INNER6),
        (
            "SRH stays as it is",
            routed(ip6(CSID), [CSID, NEXT], 1, INNER6),
            routed(ip6(shifted), [CSID, NEXT], 1, INNER6),
        ),
        (
            "SRH at segments left 0",
            routed(ip6(CSID), [NEXT, CSID], 0, INNER6),
            routed(ip6(shifted), [NEXT, CSID], 0, INNER6),
        ),
        (
            "SRH malformed: not looked at",
            routed(ip6(CSID), [CSID, NEXT], 1, INNER6, last=9),
            routed(ip6(shifted), [CSID, NEXT], 1, INNER6, last=9),
        ),
        ("options", ip6(CSID, nh=60) / opts(41, INNER6), ip6(shifted, nh=60) / opts(41, INNER6)),
        (
            "argument 0: the SRH advances",
            routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT], 1, INNER6),
            routed(ip6(NEXT), ["fc00:a:1::", NEXT], 0, INNER6),
        ),
    ]
    Case(
        f"endpoint/{name}",
        f"{action.split()[0]} with NEXT-CSID shifts the next CSID to the front: RFC 9800 section 4.1.",
        config,
        **io([(label, ether(before), [to_p1(hops(after), dst)]) for label, before, after in listed]),
    )
    Case(
        f"endpoint/{name}-refused",
        "NEXT-CSID, argument 0: as without the flavour.",
        config,
        [
            ("argument 0, no SRH", ether(ip6("fc00:a:1::") / udp())),
            (
                "argument 0, segments left 0",
                ether(routed(ip6("fc00:a:1::"), [NEXT, "fc00:a:1::"], 0, INNER6)),
            ),
            ("argument 0, IPv6 inside", ether(ip6("fc00:a:1::", nh=41) / INNER6)),
            (
                "argument 0, SRH malformed",
                ether(routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT], 1, INNER6, last=9)),
            ),
        ],
        expect={},
    )
    Case(
        f"endpoint/{name}-odd",
        "NEXT-CSID: arguments that lead nowhere, or back here.",
        config,
        [
            ("only the last bit", ether(ip6("fc00:a:1::1", nh=41) / INNER6)),
            ("a hole", ether(ip6("fc00:a:1:0:c::", nh=41) / INNER6)),
            ("this node twice", ether(ip6("fc00:a:1:1:c::", nh=41) / INNER6)),
        ],
    )
    hop1 = [
        ("no SRH", ip6(CSID, nh=41, hlim=1) / INNER6),
        ("argument 0, SRH", routed(ip6("fc00:a:1::", hlim=1), ["fc00:a:1::", NEXT], 1, INNER6)),
    ]
    Case(
        f"endpoint/{name}-hop-limit",
        "NEXT-CSID at hop limit 1: time exceeded.",
        config,
        [(label, ether(p)) for label, p in hop1],
        expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
        differs="it quotes the packet with its destination already changed",
    )

Case(
    "endpoint/un-psp",
    "End with NEXT-CSID and PSP: an argument is shifted, without one the last SRH is removed.",
    CSID_ROUTES
    + ["ip -6 route add fc00:a:1::/48 encap seg6local action End flavors psp,next-csid count dev p0"],
    **io(
        [
            (
                "SRH stays as it is",
                ether(routed(ip6(CSID), [CSID, NEXT], 1, INNER6)),
                [to_p1(hops(routed(ip6("fc00:a:b:c::"), [CSID, NEXT], 1, INNER6)))],
            ),
            (
                "argument 0: the SRH advances and goes",
                ether(routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT], 1, INNER6)),
                [to_p1(hops(ip6(NEXT, nh=41) / INNER6))],
            ),
            (
                "argument 0, not the last segment",
                ether(routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT, LAST], 2, udp())),
                [to_p1(hops(routed(ip6(NEXT), ["fc00:a:1::", NEXT, LAST], 1, udp())))],
            ),
        ]
    ),
    differs="it leaves the SRH in",
)

# Errors from inside SRv6.
for name, action in [("end", "End"), ("end-x", "End.X nh6 2001:db8:2::3")]:
    big = routed(ip6(SID), [SID, NEXT], 1, ip6() / udp(1200))
    Case(
        f"errors/{name}-too-big",
        f"{action.split()[0]} towards a link with an MTU of 1,280.",
        sid(action, SMALL),
        [("1,328 bytes", ether(big))],
        expect={0: [to_p0(too_big(routed(ip6(NEXT), [SID, NEXT], 0, ip6() / udp(1200)), 1280))]},
    )
for name, action, base, dev, dst, kinds in DX:
    for kind in sorted(kinds - {"ether"}):
        inner = ip6() / udp(1300) if kind == "6" else ip4(flags="DF") / udp(1300)
        Case(
            f"errors/{name}-too-big-{INNER[kind][0]}",
            f"{action.split()[0]}: the inner packet does not fit a link with an MTU of 1,280.",
            sid(action, base + ["ip link set p1 mtu 1280"], dev),
            [
                ("inner packet too big", ether(ip6(SID, nh=INNER[kind][0]) / inner)),
                ("the same behind an SRH", ether(routed(ip6(SID), [NEXT, SID], 0, inner))),
            ],
        )

# A port in a VRF whose table has a route to fc00:88::/32 of its own, and none to fc00:99::/32.
VRF_PORT = [
    "ip link set p0 up",
    "ip link set p1 up",
    "ip link add vrf100 type vrf table 100",
    "ip link set vrf100 up",
    "ip link set p0 master vrf100",
    "ip addr add 2001:db8:1::1/64 dev p0 nodad",
    "ip addr add 2001:db8:2::1/64 dev p1 nodad",
    "ip neigh add 2001:db8:1::2 lladdr 02:00:00:00:01:02 dev p0 nud permanent",
    "ip neigh add 2001:db8:2::2 lladdr 02:00:00:00:02:02 dev p1 nud permanent",
    "ip neigh add 2001:db8:2::3 lladdr 02:00:00:00:02:03 dev p1 nud permanent",
    "ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0 vrf vrf100",
    "ip -6 route add fc00:88::/32 via 2001:db8:2::2 dev p1",
    "ip -6 route add fc00:88::/32 via 2001:db8:2::3 dev p1 vrf vrf100",
    "ip -6 route add fc00:99::/32 via 2001:db8:2::2 dev p1",
]
IN_VRF = ["fc00:77::1", "fc00:77::2", "fc00:77::3", "fc00:77::4"]
Case(
    "endpoint/vrf-ingress",
    "What comes in by a link of a VRF goes on from End, End.X and End.DX6 to :: by the VRF; a table that is not there.",
    VRF_PORT
    + [
        "ip -6 route add fc00:77::1/128 encap seg6local action End count dev p1",
        "ip -6 route add fc00:77::2/128 encap seg6local action End.X nh6 2001:db8:2::2 count dev p1",
        "ip -6 route add fc00:77::3/128 encap seg6local action End.T table 77 count dev p1",
        "ip -6 route add fc00:77::4/128 encap seg6local action End.DX6 nh6 :: count dev p1",
    ],
    [
        (f"{name}, {to}", ether(routed(IPv6(src="2001:db8:5::5", dst=sid, hlim=9), [sid, to], 1, udp())))
        for name, sid in zip(["End", "End.X", "End.T"], IN_VRF)
        for to in ["fc00:88::1", "fc00:99::1"]
    ]
    + [
        (f"End.DX6, {to}", ether(IPv6(src="2001:db8:5::5", dst=IN_VRF[3], hlim=9) / IPv6(src="2001:db8:5::6", dst=to, hlim=9) / udp()))
        for to in ["fc00:88::1", "fc00:99::1"]
    ],
)
Case(
    "endpoint/vrf-ingress-dx4",
    "What comes in by a link of a VRF goes on from End.DX4 to 0.0.0.0 by the VRF.",
    [
        "ip link set p0 up",
        "ip link set p1 up",
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip link set p0 master vrf100",
        "ip addr add 192.0.2.1/24 dev p0",
        "ip addr add 198.51.100.1/24 dev p1",
        "ip neigh add 192.0.2.2 lladdr 02:00:00:00:01:02 dev p0 nud permanent",
        "ip neigh add 198.51.100.2 lladdr 02:00:00:00:02:02 dev p1 nud permanent",
        "ip neigh add 198.51.100.3 lladdr 02:00:00:00:02:03 dev p1 nud permanent",
        "ip route add 203.0.113.0/24 via 192.0.2.2 dev p0 vrf vrf100",
        "ip route add 10.1.0.0/16 via 198.51.100.2 dev p1",
        "ip route add 10.1.0.0/16 via 198.51.100.3 dev p1 vrf vrf100",
        "ip route add 10.2.0.0/16 via 198.51.100.2 dev p1",
        "ip route add prohibit 10.3.0.0/16 vrf vrf100",
        "ip -6 route add fc00:77::1/128 encap seg6local action End.DX4 nh4 0.0.0.0 count dev p1",
    ],
    [
        (to, ether(IPv6(src="2001:db8:5::5", dst=IN_VRF[0], hlim=9) / IP(src="203.0.113.7", dst=to, ttl=9) / udp()))
        for to in ["10.1.0.1", "10.2.0.1", "10.3.0.1", "10.5.0.1"]
    ],
)
Case(
    "endpoint/vrf-ingress-rules",
    "What comes in by a link of a VRF comes from its device behind End.DX4, as rules with iif see it, and from the link by itself.",
    [
        "ip link set p0 up",
        "ip link set p1 up",
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip link set p0 master vrf100",
        "ip addr add 192.0.2.1/24 dev p0",
        "ip addr add 198.51.100.1/24 dev p1",
        *(f"ip neigh add 198.51.100.{n} lladdr 02:00:00:00:02:0{n} dev p1 nud permanent" for n in (2, 3, 4)),
        "ip route add 10.1.0.0/16 via 198.51.100.2 dev p1 vrf vrf100",
        "ip route add 10.1.0.0/16 via 198.51.100.3 dev p1 table 7",
        "ip route add 10.1.0.0/16 via 198.51.100.4 dev p1 table 8",
        "ip rule add iif vrf100 lookup 7 pref 10",
        "ip rule add iif p0 lookup 8 pref 20",
        "ip -6 route add fc00:77::1/128 encap seg6local action End.DX4 nh4 0.0.0.0 count dev p1",
        "ip -6 route add fc00:77::2/128 encap seg6local action End.DX4 nh4 10.1.7.7 count dev p1",
        "ip -6 route add fc00:77::3/128 encap seg6local action End.DT4 vrftable 100 count dev p1",
    ],
    [
        (f"SID {n}", ether(IPv6(src="2001:db8:5::5", dst=f"fc00:77::{n}", hlim=9) / IP(src="203.0.113.7", dst="10.1.0.1", ttl=9) / udp()))
        for n in (1, 2, 3)
    ]
    + [("by itself", ether(IP(src="203.0.113.7", dst="10.1.0.1", ttl=9) / udp()))],
)
Case(
    "endpoint/dt6-own-vrf",
    "End.DT6 to an address of the router's in a VRF: the error comes from an address of the link that the packet came in by.",
    VRF + ["ip -6 route add fc00:77::1/128 encap seg6local action End.DT6 table 100 dev p0"],
    [
        (to, ether(IPv6(src="2001:db8:5::5", dst=IN_VRF[0], hlim=9) / IPv6(src="2001:db8:5::6", dst=to, hlim=9) / udp()))
        for to in ["2001:db8:2::1", "2001:db8:1::1", "2001:db8:9::1"]
    ],
)

# What becomes of packets behind SIDs, and what these count of it: one packet or error each.
BEHIND = CSID_ROUTES + [
    "ip link set p1 mtu 1400",
    "ip -6 route add fc00:a:1::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 count dev p0",
    "ip -6 route add fc00:a:2::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 count dev p0",
    "ip -6 route add fc00:a:3::/48 encap seg6local action End.X nh6 2001:db8:2::3 flavors next-csid lblen 32 nflen 16 count dev p0",
    "ip -6 route add fc00:a::6/128 encap seg6local action End.DX6 nh6 :: count dev p0",
    "ip -6 route add blackhole fc00:a:d::/48",
    "ip -6 route add prohibit fc00:a:e::/48",
    "ip -6 route add unreachable 2001:db8:e::/48",
    "ip -6 route add blackhole 2001:db8:d::/48",
]
Case(
    "endpoint/counts-csid",
    "SIDs with NEXT-CSID count one packet or error each of what is dropped behind them.",
    BEHIND,
    [
        (f"{label}, {what}", ether(ip6(to, nh=41, hlim=hlim) / IPv6(src=SOURCE, dst=TARGET, hlim=33) / udp(n)))
        for label, to in [
            ("twice", "fc00:a:1:2:b::"),
            ("the same twice", "fc00:a:1:1:b::"),
            ("uA", "fc00:a:1:3:b::"),
            ("no route", "fc00:a:1:2:77::"),
            ("blackhole", "fc00:a:1:2:d::"),
            ("prohibited", "fc00:a:1:2:e::"),
        ]
        for what, hlim, n in [("plain", 40, 64), ("too long", 40, 1330)]
    ],
)
Case(
    "endpoint/counts-dx6-any",
    "End.DX6 to :: counts one packet or error each of what is dropped behind it.",
    BEHIND,
    [
        (what, ether(ip6("fc00:a::6", nh=41) / IPv6(src=SOURCE, dst=to, hlim=hlim) / udp(n)))
        for what, to, hlim, n in [
            ("plain", TARGET, 33, 64),
            ("too long", TARGET, 33, 1330),
            ("no route", "2001:db8:77::7", 33, 64),
            ("unreachable", "2001:db8:e::7", 33, 64),
            ("blackhole", "2001:db8:d::7", 33, 64),
            ("a multicast destination", "ff0e::1", 33, 64),
            ("to the SID itself", "fc00:a::6", 33, 64),
        ]
    ],
)
Case(
    "endpoint/throw",
    "SIDs and their neighbours behind a table that throws all.",
    sid("End.X nh6 2001:db8:2::3")
    + [
        "ip -6 route add fc00:a::2/128 encap seg6local action End.DX6 nh6 2001:db8:2::3 count dev p0",
        "ip -6 rule add table 201 pref 100",
        "ip -6 route add throw default table 201",
    ],
    [
        ("End.X", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6))),
        ("End.DX6", ether(ip6("fc00:a::2", nh=41) / INNER6)),
    ],
)

# RFC 4291 section 2.7: a scope of the interface, or none, does not leave it.
GROUP_SEGMENTS = [f"ff0{scope:x}::77" for scope in (0, 1, 2, 5, 0xE)] + ["ff31::77", "ff32::77"]
Case(
    "endpoint/group-segments",
    "A segment that is a group, by End and, to a next hop that nobody looks up, by End.X and End.B6.Encaps.",
    sid("End.X nh6 2001:db8:2::3")
    + [
        "ip link set p1 mtu 1300",
        "ip -6 route add fc00:a::3/128 encap seg6local action End count dev p0",
        "ip -6 route add fc00:a::4/128 encap seg6local action End.B6.Encaps srh segs 2001:db8:2::3 count dev p0",
    ],
    [
        (f"{what}, {segment}", ether(routed(ip6(to), [to, segment], 1, INNER6)))
        for what, to in [("End.X", SID), ("End", "fc00:a::3"), ("End.B6.Encaps", "fc00:a::4")]
        for segment in GROUP_SEGMENTS
    ]
    + [("End.X, ff01::77, too long", ether(routed(ip6(SID), [SID, "ff01::77"], 1, udp(1300))))],
)
# Of what is not sent on it is asked whether there is a way first.
ON = {"there is a way": NEXT, "no route": "fc00:77::7", "its own address": "2001:db8:2::1", "a blackhole": "fc00:d::7"}
POLICIES = [
    (number, what, f"seg6local action {action} srh segs {to}")
    for number, (action, (what, to)) in enumerate(((action, to) for action in ("End.B6", "End.B6.Encaps") for to in ON.items()), 0x20)
]
Case(
    "endpoint/in-group-frames",
    "SIDs in frames for all stations: what is not sent on is an error of the SID if there is a way, or else a packet.",
    sid("End")
    + ["ip -6 route add blackhole fc00:d::/32"]
    + [f"ip -6 route add fc00:a::{number:x}/128 encap {policy} count dev p0" for number, _, policy in POLICIES]
    + [
        f"ip -6 route add fc00:f:{number:x}::/64 encap {how} dev p1"
        for number, (how, _) in enumerate(((how.format(to), to) for how in ("seg6 mode encap segs {}", "seg6 mode inline segs {}") for to in ON.values()), 1)
    ],
    [
        ("End, " + what, ether(routed(ip6(SID), [SID, to], 1, INNER6), dst="ff:ff:ff:ff:ff:ff"))
        for what, to in ON.items()
    ]
    + [
        (policy, ether(routed(ip6(f"fc00:a::{number:x}"), [f"fc00:a::{number:x}", NEXT], 1, INNER6), dst="33:33:00:00:00:01"))
        for number, _, policy in POLICIES
    ]
    + [(f"route {number}", ether(ip6(f"fc00:f:{number:x}::7") / udp(), dst="ff:ff:ff:ff:ff:ff")) for number in range(1, 9)],
)
# Where a packet does not go beyond its link or its node, or goes to a group of stations.
NOT_FORWARDED6 = GROUP_SEGMENTS + ["ff02::1", "fe80::77", "::1", "::"]
NOT_FORWARDED4 = ["224.0.0.1", "224.0.0.77", "239.1.1.77", "169.254.1.77", "255.255.255.255", "127.0.0.77", "0.0.0.0"]
for name, action, inner, ends in [
    ("dx6", "End.DX6 nh6 2001:db8:2::3", ip6, NOT_FORWARDED6),
    ("dx4", "End.DX4 nh4 198.51.100.3", ip4, NOT_FORWARDED4),
    ("dt6", "End.DT6 table 100", ip6, NOT_FORWARDED6),
]:
    Case(
        f"endpoint/groups-inside-{name}",
        "A packet inside for a group, or for an address of a narrow scope.",
        sid(action) + ["ip -6 route add default via 2001:db8:2::3 dev p1 table 100"],
        [(end, ether(ip6(SID, nh=4 if inner is ip4 else 41) / inner(end) / udp())) for end in ends],
        expect={},
        counters="errors",
        differs="it sends them on, but for groups of the scope of the node and IPv4 of 169.254/16 and 127/8",
    )
