"""MPLS: RFC 3031, RFC 3032, RFC 3443; what Linux's mpls_forward, mpls_xmit and mpls_egress send."""

from scapy.contrib.mpls import MPLS

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
    ("TTL 1", labels([100], FOUR, ttl=1)),
    ("TTL 0", labels([100], FOUR, ttl=0)),
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
    "mpls/pop-vrf",
    "into a VRF",
    VRF + ON + ["ip -f mpls route add 100 dev vrf100"],
    ALL,
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
for name, line, base, longer in [
    ("too-big", f"100 as 200 {VIA4}", SMALL, 1300),
    ("too-big-30", f"100 as {'/'.join(str(n) for n in range(1000, 1030))} {VIA6}", BASE, 1400),
]:
    quoted = ip4() / udp(longer)
    Case(
        f"mpls/{name}",
        "a packet that is too long with its labels",
        routes(line, base=base),
        [("too long", frame(labels([100], quoted)))],
        expect={0: [to_p0(icmp4(quoted, 3, 4, 1280 if base is SMALL else 1500))]},
        differs="it drops the packet silently",
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
    BASE + ON + ["sysctl -qw net.mpls.ip_ttl_propagate=0", "sysctl -qw net.mpls.default_ttl=77"] + push("100"),
    PLAIN,
)
Case(
    "mpls/no-propagate",
    "net.mpls.ip_ttl_propagate=0: packets keep their own TTL",
    routes(f"100 {VIA4}", "101 dev lo", more=["sysctl -qw net.mpls.ip_ttl_propagate=0"]),
    [(l, frame(p)) for l, p in PACKETS] + [("to local", frame(labels([101], FOUR)))],
)
