"""Routes by the device of a VRF: what they lead to is looked up again in the VRF's table."""

from .frames import *
from .mpls import MPLS

UNREACHABLE = [
    "ip route add unreachable default metric 4278198272 table 100",
    "ip -6 route add unreachable default metric 4278198272 table 100",
]
TO = [
    "ip route add 203.0.113.128/25 dev vrf100",
    "ip route add 198.51.100.0/24 dev vrf100",
    "ip route add 203.0.120.0/24 dev vrf100",
    "ip -6 route add 2001:db8:6::/48 dev vrf100",
    "ip -6 route add 2001:db8:2::/64 dev vrf100",
    "ip -6 route add 2001:db8:8::/48 dev vrf100",
]
# Back from the VRF to what is outside.
BACK = [
    "ip route add 203.0.113.0/25 via 192.0.2.2 dev p0 table 100",
    "ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0 table 100",
]
LEAK = VRF + UNREACHABLE + TO + BACK
back = Ether(dst=P1, src=N1)

Case(
    "leak/main",
    "Routes of main by the device of a VRF, and routes of the VRF by a port outside it.",
    LEAK,
    [
        ("IPv4", ether(ip4() / udp())),
        ("IPv6", ether(ip6() / udp())),
        ("IPv4, TTL 2", ether(ip4(ttl=2) / udp())),
        ("IPv6, hop limit 2", ether(ip6(hlim=2) / udp())),
        ("IPv4 to a neighbour in the VRF", ether(ip4("198.51.100.2") / udp())),
        ("IPv6 to a neighbour in the VRF", ether(ip6("2001:db8:2::2") / udp())),
        ("IPv4 back", "p1", back / ip4(SOURCE4, src=TARGET4) / udp()),
        ("IPv6 back", "p1", back / ip6(SOURCE, src=TARGET) / udp()),
    ],
)
Case(
    "leak/local",
    "What is led into a VRF can be for the router's own address there.",
    LEAK,
    [
        ("IPv4", ether(ip4("198.51.100.1") / ICMP(id=1, seq=1))),
        ("IPv6", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=1))),
        ("IPv4, TTL 2", ether(ip4("198.51.100.1", ttl=2) / ICMP(id=2, seq=1))),
    ],
)
Case(
    "leak/errors",
    "The hop limit counts once, where the packet is led into the VRF. Nobody is told that the VRF has no route.",
    LEAK,
    [
        ("IPv4, TTL 1", ether(ip4(ttl=1) / udp())),
        ("IPv6, hop limit 1", ether(ip6(hlim=1) / udp())),
        ("IPv4, TTL 1, for the VRF's own address", ether(ip4("198.51.100.1", ttl=1) / ICMP(id=1, seq=1))),
        ("no route, IPv4", ether(ip4("203.0.120.1") / udp())),
        ("no route, IPv6", ether(ip6("2001:db8:8::1") / udp())),
    ],
)
Case(
    "leak/error-no-address",
    "An error of a VRF without an IPv4 address that leaves by a route outside of it.",
    VRF + ["ip addr del 198.51.100.1/24 dev p1"],
    [("no route, IPv4", "p1", back / ip4("203.0.120.1", src=SOURCE4) / udp()), ("TTL 1, IPv4", "p1", back / ip4("203.0.120.1", src=SOURCE4, ttl=1) / udp())],
)
long4, long6 = ip4(flags="DF") / udp(1372), ip6() / udp(1352)
Case(
    "leak/too-big",
    "A packet that is too long for the way out of the VRF.",
    LEAK + ["ip link set p1 mtu 1280"],
    [
        ("IPv4, don't fragment", ether(long4)),
        ("IPv6", ether(long6)),
    ],
    expect={
        0: [to_p0(icmp4(long4, 3, 4, 1280, src="198.51.100.1"))],
        1: [to_p0(too_big(long6, 1280, src="2001:db8:2::1"))],
    },
    differs="the hop limit of the quoted packet is lowered",
)
Case(
    "leak/fragments",
    "An IPv4 packet that is too long for the way out of the VRF and may be fragmented.",
    LEAK + ["ip link set p1 mtu 1280"],
    [("IPv4", ether(ip4() / udp(1372)))],
)
Case(
    "leak/route-mtu",
    "The MTU of a route by the device of a VRF.",
    VRF
    + UNREACHABLE
    + BACK
    + [
        "ip route add 203.0.113.128/25 dev vrf100 mtu 1300",
    ],
    [
        ("IPv4", ether(ip4() / udp(1372))),
        ("IPv4, don't fragment", ether(ip4(flags="DF") / udp(1372))),
        ("IPv4 that fits", ether(ip4() / udp(1272))),
    ],
)
Case(
    "leak/route-mtu-ipv6",
    "The MTU of an IPv6 route by the device of a VRF.",
    VRF + UNREACHABLE + BACK + ["ip -6 route add 2001:db8:6::/48 dev vrf100 mtu 1300"],
    [("IPv6", ether(long6)), ("IPv6 that fits", ether(ip6() / udp(1252)))],
    expect={0: [to_p0(too_big(long6, 1300))], 1: [to_p1(hops(ip6() / udp(1252)))]},
    differs="the hop limit of the quoted packet is lowered",
)
Case(
    "leak/vrf",
    "From one VRF into another.",
    [
        "ip link add vrf200 type vrf table 200",
        "ip link set vrf200 up",
        "ip link set p0 master vrf200",
    ]
    + [
        line + " table 200" if line in ("ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0", "ip route add 203.0.113.0/25 via 192.0.2.2 dev p0") else line
        for line in VRF
    ]
    + UNREACHABLE
    + [
        "ip route add 203.0.113.128/25 dev vrf100 table 200",
        "ip -6 route add 2001:db8:6::/48 dev vrf100 table 200",
        "ip route add 203.0.113.0/25 dev vrf200 table 100",
        "ip -6 route add 2001:db8:5::/48 dev vrf200 table 100",
    ],
    [
        ("IPv4", ether(ip4() / udp())),
        ("IPv6", ether(ip6() / udp())),
        ("IPv4 back", "p1", back / ip4(SOURCE4, src=TARGET4) / udp()),
        ("IPv6 back", "p1", back / ip6(SOURCE, src=TARGET) / udp()),
        ("IPv4, TTL 1", ether(ip4(ttl=1) / udp())),
        ("IPv4 back, TTL 1", "p1", back / ip4(SOURCE4, src=TARGET4, ttl=1) / udp()),
        ("IPv6 back, hop limit 1", "p1", back / ip6(SOURCE, src=TARGET, hlim=1) / udp()),
        ("IPv4 back, not led into the other VRF", "p1", back / ip4("192.0.2.77", src=TARGET4) / udp()),
    ],
)
Case(
    "leak/objects",
    "Next-hop objects, groups of them and routes of several ways by the device of a VRF.",
    VRF
    + UNREACHABLE
    + [
        "ip nexthop add id 1 dev vrf100",
        "ip -6 nexthop add id 2 dev vrf100",
        "ip route add 203.0.113.128/25 nhid 1",
        "ip -6 route add 2001:db8:6::/48 nhid 2",
        "ip route add 198.51.100.0/24 nexthop dev vrf100 weight 1 nexthop dev vrf100 weight 2",
    ],
    [
        ("IPv4", ether(ip4() / udp())),
        ("IPv6", ether(ip6() / udp())),
        ("IPv4, several ways", ether(ip4("198.51.100.2") / udp())),
    ],
)
Case(
    "leak/gateway",
    "A gateway given with the device of a VRF is one of a link in it; with onlink it is of no use.",
    VRF
    + UNREACHABLE
    + [
        "ip route add 203.0.113.128/26 via 198.51.100.2 dev vrf100",
        "ip route add 203.0.113.192/26 via 198.51.100.77 dev vrf100 onlink",
        "ip route add 203.0.113.192/26 via 198.51.100.2 dev p1 table 100",
    ],
    [
        ("by a gateway in the VRF", ether(ip4("203.0.113.133") / udp())),
        ("onlink", ether(ip4("203.0.113.200") / udp())),
    ],
)
Case(
    "leak/encap",
    "Encapsulations of routes by the device of a VRF.",
    VRF
    + UNREACHABLE
    + [
        "ip -6 route add fc00:c::/32 via 2001:db8:1::2 dev p0",
        "ip -6 route add 2001:db8:6::/48 encap seg6 mode encap segs fc00:c::1 dev vrf100",
        "ip -6 route add 2001:db8:8::/48 encap ioam6 trace prealloc type 0x800000 ns 0 size 12 dev vrf100",
        "ip -6 route add 2001:db8:8::/48 via 2001:db8:2::2 dev p1 table 100",
        "ip route add 203.0.120.0/24 encap mpls 100 dev vrf100",
        "ip route add 203.0.120.0/24 via 198.51.100.2 dev p1 table 100",
    ],
    [
        ("SRv6 before the device", ether(ip6() / udp())),
        ("a label before the device", ether(ip4("203.0.120.1") / udp())),
        ("IOAM", ether(ip6("2001:db8:8::1") / udp())),
    ],
)

Case(
    "leak/l2encap",
    "mode l2encap in a VRF: what has gone through its device goes as it is, by a route or from behind a label.",
    VRF
    + UNREACHABLE
    + [
        "sysctl -qw net.mpls.platform_labels=1000",
        "sysctl -qw net.mpls.conf.p0.input=1",
        "ip -f mpls route add 100 dev vrf100",
        "ip route add 10.7.0.0/16 dev vrf100",
        "ip -6 route add 2001:db8:7::/48 dev vrf100",
        "ip route add 10.7.0.0/16 encap seg6 mode l2encap segs fc00:b::1,fc00:c::1 via 198.51.100.2 dev p1 table 100",
        "ip -6 route add 2001:db8:7::/48 encap seg6 mode l2encap segs fc00:b::1,fc00:c::1 via 2001:db8:2::2 dev p1 table 100",
        "ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1 table 100",
    ],
    [
        ("IPv4", ether(ip4("10.7.0.7") / udp())),
        ("IPv6", ether(ip6("2001:db8:7::7") / udp())),
        ("IPv4, TTL 2", ether(ip4("10.7.0.7", ttl=2) / udp())),
        ("IPv4 behind a label", ether(MPLS(label=100, s=1, ttl=64) / ip4("10.7.0.7") / udp())),
        ("IPv6 behind a label", ether(MPLS(label=100, s=1, ttl=64) / ip6("2001:db8:7::7") / udp())),
        ("IPv4 by the port of the VRF", "p1", back / ip4("10.7.0.7", src=TARGET4) / udp()),
    ],
)
# What comes in by one and leads out by the other without the device of a VRF: by a port that is named, by the routes of
# main, which the VRF falls back to.
PORTS = VRF + [
    "ip -6 route add 2001:db8:6::/48 via 2001:db8:2::2 dev p1",
    "ip route add 203.0.113.128/25 via 198.51.100.2 dev p1",
    "ip -6 route add 2001:db8:5::/48 via 2001:db8:2::2 dev p1 vrf vrf100",
]
Case(
    "leak/too-big-ports",
    "Too long for a port of a VRF, by a route outside: the sender of an IPv6 packet is told from there.",
    PORTS + ["ip link set p1 mtu 1280"],
    [
        ("IPv4, don't fragment", ether(ip4(flags="DF") / udp(1372))),
        ("IPv6", ether(ip6() / udp(1352))),
    ],
)
Case(
    "leak/own-address",
    "From a VRF to an address of the router's outside: who answers an echo request, and who tells of an error.",
    PORTS,
    [
        ("IPv6, echo request", "p1", back / ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=1, data=b"x")),
        ("IPv6, UDP", "p1", back / ip6("2001:db8:1::1") / udp()),
        ("IPv4, echo request", "p1", back / ip4("192.0.2.1") / ICMP(id=7, seq=1)),
        ("IPv4, UDP", "p1", back / ip4("192.0.2.1") / udp()),
    ],
)
Case(
    "leak/own-address-by-rule",
    "From outside a VRF to an address of it, by a rule: who answers an echo request, and who tells of an error.",
    VRF + ["ip -6 rule add pref 1001 lookup 100", "ip rule add pref 1001 lookup 100"],
    [
        ("IPv6, UDP", ether(ip6("2001:db8:2::1") / udp())),
        ("IPv6, unknown protocol", ether(ip6("2001:db8:2::1", nh=200) / b"data")),
        ("IPv6, echo request", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=7, seq=1, data=b"x"))),
        ("IPv6 to an address outside, UDP", ether(ip6("2001:db8:1::1") / udp())),
        ("IPv4, UDP", ether(ip4("198.51.100.1") / udp())),
    ],
)


INSIDE = IP(src="203.0.113.77", dst="203.0.113.5", id=3) / udp()
DATAGRAM = UDP(sport=7777, dport=6635) / INSIDE
TUNNELS = [
    "ip link add tun1 type bareudp dstport 6635 ethertype ipv4",
    "ip link add tun2 type ipip local 198.51.100.1 remote 203.0.113.5",
    "ip link add tun3 type sit local 198.51.100.1 remote 203.0.113.6 dev vrf100",
    "ip link add tun4 type sit local 198.51.100.1 remote 203.0.113.7 dev p0",
    *(f"ip link set tun{n} up" for n in range(1, 5)),
]
INSIDE6 = IPv6(src="2001:db8:6::77", dst="2001:db8:5::5") / udp()
Case(
    "leak/into-tunnels",
    "What is led into a VRF can come out of a tunnel that ends there: no port of UDP that is open outside, and by the device of the VRF.",
    LEAK + TUNNELS + ["ip -6 route add fc00:e::46/128 encap seg6local action End.DT46 vrftable 100 dev p0"],
    [
        ("a datagram, IPv4", ether(ip4("198.51.100.1") / DATAGRAM)),
        ("a datagram, IPv6", ether(ip6("2001:db8:2::1") / DATAGRAM)),
        ("a datagram, to an address outside", ether(ip4("192.0.2.1") / DATAGRAM)),
        ("ipip", ether(ip4("198.51.100.1") / INSIDE)),
        ("sit by the VRF", ether(ip4("198.51.100.1", src="203.0.113.6") / INSIDE6)),
        ("sit by the port", ether(ip4("198.51.100.1", src="203.0.113.7") / INSIDE6)),
        *(
            (f"{what}, out of a SID", ether(routed(ip6("fc00:e::46"), ["fc00:e::46"], 0, p)))
            for what, p in [
                ("a datagram, IPv4", ip4("198.51.100.1") / DATAGRAM),
                ("ipip", ip4("198.51.100.1") / INSIDE),
                ("sit by the VRF", ip4("198.51.100.1", src="203.0.113.6") / INSIDE6),
                ("sit by the port", ip4("198.51.100.1", src="203.0.113.7") / INSIDE6),
            ]
        ),
    ],
)
