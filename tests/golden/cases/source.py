"""The source of errors and echo replies, where the route to the sender has one of its own, or the link has several addresses."""

from .frames import *

SOURCES = """
ip addr add 192.0.2.9/24 dev p0
ip addr add 192.0.3.1/24 dev p0
ip addr add 2001:db8:1::9/64 dev p0 nodad
ip addr add 2001:db8:3::1/64 dev p0 nodad
ip neigh add 192.0.2.3 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 192.0.3.2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 2001:db8:3::2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip route add 192.0.2.3/32 dev p0 src 192.0.2.9
ip route add 10.1.0.0/16 via 192.0.2.2 dev p0 src 192.0.2.9
ip route add 10.2.0.0/16 via 192.0.3.2 dev p0
ip route add 10.3.0.0/16 src 192.0.2.9 nexthop via 192.0.2.2 dev p0 nexthop via 192.0.3.2 dev p0
ip -6 route add 2001:db8:11::/48 via 2001:db8:1::2 dev p0 src 2001:db8:1::9
ip -6 route add 2001:db8:12::/48 via 2001:db8:3::2 dev p0
""".strip().splitlines()
ROUTES = {
    "": [
        "ip route add 10.4.0.0/16 via 192.0.2.2 dev p0 src 198.51.100.1",
        "ip -6 route add 2001:db8:14::/48 via 2001:db8:1::2 dev p0 src 2001:db8:2::1",
    ],
    "-vrf": [
        "ip route add 10.4.0.0/16 via 192.0.2.2 dev p0 src 192.0.2.9",
        "ip addr add 198.51.100.9/24 dev p1",
        "ip addr add 2001:db8:2::9/64 dev p1 nodad",
        "ip route add 10.1.0.0/16 via 198.51.100.2 dev p1 src 198.51.100.9 vrf vrf100",
        "ip route add 10.2.0.0/16 via 192.0.3.2 dev p0 vrf vrf100",
        "ip -6 route add 2001:db8:11::/48 via 2001:db8:2::2 dev p1 src 2001:db8:2::1 vrf vrf100",
        "ip -6 route add 2001:db8:12::/48 via 2001:db8:3::2 dev p0 vrf vrf100",
        "ip -6 route add 2001:db8:14::/48 via 2001:db8:2::2 dev p1 src 2001:db8:2::1 vrf vrf100",
    ],
}
SENDERS = [
    ("of the first network", "192.0.2.2", "2001:db8:1::2"),
    ("of the second network", "192.0.3.2", "2001:db8:3::2"),
    ("with a route and a source of its own", "192.0.2.3", None),
    ("behind a route with a source", "10.1.0.1", "2001:db8:11::1"),
    ("behind the second network", "10.2.0.1", "2001:db8:12::1"),
    ("behind two next hops with a source", "10.3.0.1", None),
    ("behind a route with an address of p1", "10.4.0.1", "2001:db8:14::1"),
]
ETHER = {"p0": Ether(dst=P0, src=N0), "p1": Ether(dst=P1, src=N1)}
for name, base in [("", BASE), ("-vrf", VRF)]:
    # Linux sends no more than 50 errors at once.
    sent = [
        ("hop limit, by p0", "p0", lambda a, b: [ip4(src=a, ttl=1) / udp(), b and ip6(src=b, hlim=1) / udp()]),
        ("hop limit, by p1", "p1", lambda a, b: [ip4(src=a, ttl=1) / udp(), b and ip6(src=b, hlim=1) / udp()]),
        ("no route", "p1", lambda a, b: [ip4("9.9.9.9", src=a) / udp(), b and ip6("2001:db9::9", src=b) / udp()]),
        ("to the anycast address", "p0", lambda a, b: [b and ip6("2001:db8:1::", src=b) / ICMPv6EchoRequest(id=3, seq=1)]),
        ("recorded, on", "p0", lambda a, b: [ip4("203.0.113.1", src=a, options=[IPOption(b"\x01\x07\x0f\x04" + bytes(12))]) / udp()]),
        ("recorded, back", "p0", lambda a, b: [ip4(a, options=[IPOption(b"\x01\x07\x0f\x04" + bytes(12))]) / udp()]),
    ]
    Case(
        f"ip/error-source{name}",
        "The source of an error is that of the route to the sender; in IPv4 else the address nearest to the next hop.",
        base + SOURCES + ROUTES[name],
        [
            (f"{label}, IPv{frame.version}, a sender {sender}", port, ETHER[port] / frame)
            for label, port, frames in sent
            for sender, a, b in SENDERS
            for frame in frames(a, b)
            if frame
        ],
    )

# Of a copy nobody hears that there is no way to the other end of its tunnel: the packet itself goes on.
for kind, ends in [
    ("ipip", "local 198.51.100.1 remote 198.18.0.1"),
    ("sit", "local 198.51.100.1 remote 198.18.0.1 mode any"),
    ("gre", "local 198.51.100.1 remote 198.18.0.1"),
    ("ip6tnl", "local 2001:db8:2::1 remote 2001:db8:99::1 mode any"),
    ("ip6gre", "local 2001:db8:2::1 remote 2001:db8:99::1"),
]:
    Case(
        f"tunnel/{kind}/no-way-copy",
        f"{kind}: no route leads to the far end of what gets copies.",
        BASE
        + [
            f"ip link add tun1 type {kind} {ends}",
            "ip link set tun1 addrgenmode none",
            "ip link set tun1 up",
            "tc qdisc add dev p0 clsact",
            "tc filter add dev p0 ingress matchall action mirred egress mirror dev tun1",
        ],
        [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp()))],
    )
