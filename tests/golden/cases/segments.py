"""SRHs for addresses of the router itself, which are no SIDs: RFC 8754 section 4.3.1, with seg6_enabled."""

from scapy.layers.inet6 import ICMPv6ParamProblem

from .endpoint import PADTLV
from .frames import *
from .hmac import KEYS, sealed, spoilt

OWN, OWN2 = "2001:db8:1::1", "2001:db8:2::1"
ON = BASE + [f"sysctl -qw net.ipv6.conf.{device}.seg6_enabled=1" for device in ("all", "p0")]


def at(segments, left, inner, hlim=40, **more):
    return routed(ip6(OWN, hlim=hlim), segments, left, inner, **more)


def on(segments, left, inner, lowered=1, **more):
    """It goes on to the next segment."""
    after = routed(ip6(segments[len(segments) - left]), segments, left - 1, inner, **more)
    return hops(after, lowered)


ping = ip6(OWN) / ICMPv6EchoRequest(id=7, seq=1)
PING = Raw(bytes(ping)[40:])
listed = []
for label, segments, left, inner, more in [
    ("SRH of 2, IPv6 inside", [OWN, NEXT], 1, INNER6, {}),
    ("SRH of 2, IPv4 inside", [OWN, NEXT], 1, INNER4, {}),
    ("SRH of 2, UDP", [OWN, NEXT], 1, udp(), {}),
    ("SRH of 3, the second is this router", [LAST, OWN, NEXT], 1, udp(), {}),
    ("a tag, every flag, a padding TLV", [OWN, NEXT], 1, INNER6, dict(tag=7, flags=0xF7, tlvs=PADTLV)),
    ("a frame inside", [OWN, NEXT], 1, FRAME, {}),
]:
    before, after = at(segments, left, inner, **more), on(segments, left, inner, **more)
    listed.append((label, ether(before), [to_p1(after)]))
twice = [OWN, OWN2, NEXT]
listed += [
    (
        "by another address of the router",
        ether(at(twice, 2, INNER6)),
        [to_p1(hops(routed(ip6(NEXT), twice, 0, INNER6), 2))],
    ),
    ("used up, IPv6 inside", ether(at([NEXT, OWN], 0, INNER6)), [to_p1(hops(INNER6))]),
    ("used up, IPv4 inside", ether(at([NEXT, OWN], 0, INNER4)), [to_p1(hops(INNER4))]),
    ("used up, hop limit 1", ether(at([NEXT, OWN], 0, INNER6, hlim=1)), [to_p1(hops(INNER6))]),
    (
        "used up, bytes behind the packet",
        behind(ether(at([NEXT, OWN], 0, INNER6)), b"PADDING"),
        [to_p1(hops(INNER6))],
    ),
    (
        "no route to the next segment",
        ether(at([OWN, "fc00:dead::1"], 1, INNER6)),
        [to_p0(unreachable6(routed(ip6("fc00:dead::1"), [OWN, "fc00:dead::1"], 0, INNER6), 0))],
    ),
]
listed.append(
    (
        "used up, last entry beyond the list",
        ether(at([NEXT, OWN], 0, INNER6, last=9)),
        [to_p1(hops(INNER6))],
    )
)
Case("segments/on", "An SRH for an address of the router's: RFC 8754 section 4.3.1.1.", ON, **io(listed))
Case(
    "segments/rule",
    "An SRH for two addresses of the router's, where rules look at more than where packets go.",
    ON + ["ip -6 rule add from 2001:db8:99::/48 unreachable pref 0"],
    **io([("IPv6 inside", ether(at(twice, 2, INNER6)), [to_p1(hops(routed(ip6(NEXT), twice, 0, INNER6), 2))])]),
)
Case(
    "segments/reduced",
    "A reduced SRH for an address of the router's: segments left may be last entry + 1.",
    ON,
    **io(
        [
            (label, ether(at(list_, len(list_), INNER6)), [to_p1(on(list_, len(list_), INNER6))])
            for label, list_ in [("1 segment", [NEXT]), ("2 segments", [NEXT, LAST])]
        ]
    ),
    differs="it takes segments left for too many",
)
Case(
    "segments/arrived",
    "An echo request behind an SRH that is used up.",
    ON,
    [("echo request", ether(at([NEXT, OWN], 0, PING, nh=58)))],
)
for name, config in [
    ("off-all", BASE + ["sysctl -qw net.ipv6.conf.p0.seg6_enabled=1"]),
    ("off-link", BASE + ["sysctl -qw net.ipv6.conf.all.seg6_enabled=1"]),
]:
    Case(
        f"segments/{name}",
        "Where seg6_enabled is not on for all and the link, packets with an SRH are dropped.",
        config,
        [("segments left", listed[0][1]), ("used up, IPv6 inside", ether(at([NEXT, OWN], 0, INNER6)))],
        expect={},
    )


def problem(quoted, pointer):
    """ICMPv6 parameter problem, erroneous header field: RFC 4443 section 3.4."""
    error = ICMPv6ParamProblem(code=0, ptr=pointer)
    return IPv6(src=OWN, dst=SOURCE, hlim=64) / error / Raw(bytes(quoted)[:1232])


many = at([OWN, NEXT], 3, INNER6)
Case(
    "segments/too-many",
    "More segments left than the list has: the sender is told.",
    ON,
    [("three of two", ether(many))],
    expect={0: [to_p0(problem(many, 43))]},
)
hop1 = [(f"hop limit {h}", at([OWN, NEXT], 1, INNER6, hlim=h)) for h in (1, 0)]
hop1.append(("hop limit 1, by another address", at([OWN, OWN2, NEXT], 2, INNER6, hlim=1)))
Case(
    "segments/hop-limit",
    "An SRH for an address of the router's at hop limit 1 and 0: time exceeded.",
    ON,
    [(label, ether(p)) for label, p in hop1],
    expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
    differs="it quotes the packet with the next segment already its destination",
)
Case(
    "segments/nowhere",
    "An SRH for an address of the router's of which the next segment is one that no route leads to: the hop limit is not looked at.",
    ON + NOWHERE_ROUTES,
    [
        (f"{label}, hop limit {hlim}", ether(at([OWN, to], 1, INNER6, hlim=hlim)))
        for label, to in NOWHERE.items()
        for hlim in (40, 1, 0)
    ],
)
for require, text in [(-1, "never"), (0, "present"), (1, "always")]:
    good = sealed(at([OWN, NEXT], 1, INNER6), 2)
    Case(
        f"segments/hmac-{text}",
        f"HMACs of SRHs for an address of the router's: seg6_require_hmac={require}.",
        ON + KEYS + [f"sysctl -qw net.ipv6.conf.p0.seg6_require_hmac={require}"],
        [
            ("right", ether(good)),
            ("wrong", ether(spoilt(good, 56 + 32, 1))),
            ("none", ether(at([OWN, NEXT], 1, INNER6))),
            ("right, used up", ether(sealed(at([NEXT, OWN], 0, INNER6), 2))),
            ("wrong, used up", ether(spoilt(sealed(at([NEXT, OWN], 0, INNER6), 2), 56 + 32, 1))),
            ("none, used up", ether(at([NEXT, OWN], 0, INNER6))),
        ],
    )
# Behind a VRF, packets come in by its device. A second port's way back is in the main table.
BACK = ["ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1 table 100"]
for device in ("vrf100", "p1"):
    Case(
        f"segments/vrf-{device}",
        f"An SRH for an address in a VRF, seg6_enabled for all and {device}.",
        VRF + BACK + [f"sysctl -qw net.ipv6.conf.{name}.seg6_enabled=1" for name in ("all", device)],
        [
            (label, "p1", Ether(dst=P1, src=N1) / routed(ip6(OWN2), segments, left, INNER6))
            for label, segments, left in [("segments left", [OWN2, NEXT], 1), ("used up", [NEXT, OWN2], 0)]
        ],
    )
for what, filters in [
    ("passes", ["protocol ip prio 1 matchall action pass", "protocol ipv6 prio 2 flower dst_ip 2001:db8:6::/48 action pass", "protocol ipv6 prio 3 matchall action pass"]),
    ("drops", ["protocol ip prio 1 flower ip_proto udp action drop", "protocol ipv6 prio 2 flower dst_ip 2001:db8:6::/48 action drop"]),
]:
    Case(
        f"segments/filter-{what}",
        "What was in a packet for one of the router's own segments comes in once more: filters see it.",
        ON + ["tc qdisc add dev p0 clsact"] + [f"tc filter add dev p0 ingress {line}" for line in filters],
        [
            ("IPv6 inside", ether(at([NEXT, OWN], 0, INNER6))),
            ("IPv4 inside", ether(at([NEXT, OWN], 0, INNER4))),
            ("segments left", ether(at([OWN, NEXT], 1, INNER6))),
            ("UDP for the router", ether(at([NEXT, OWN], 0, udp()))),
            ("IPv6 inside twice", ether(at([NEXT, OWN], 0, at([NEXT, OWN], 0, INNER6)))),
        ],
        shows=("tc -s filter show dev p0 ingress", "tc -s qdisc show dev p0"),
        links=False,
    )
Case(
    "segments/filter-sends",
    "What was in a packet for one of the router's own segments is mirrored and redirected with all that it came in with, but into a tunnel of packets.",
    ON
    + [
        "ip link add tun1 type ipip local 198.51.100.1 remote 203.0.113.129",
        "ip link set tun1 up",
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol ip prio 1 flower ip_proto udp action mirred egress mirror dev p1 pipe action mirred egress redirect dev tun1",
        "tc filter add dev p0 ingress protocol ipv6 prio 2 flower dst_ip 2001:db8:6::/48 action mirred egress redirect dev p1",
    ],
    [
        ("IPv6 inside", ether(at([NEXT, OWN], 0, INNER6))),
        ("IPv4 inside", ether(at([NEXT, OWN], 0, INNER4))),
        ("IPv4 behind two segments and an option", ether(at([NEXT, LAST, OWN], 0, INNER4, tlvs=PADTLV))),
    ],
)
