"""Fallback devices, which take what no other tunnel of their kind does: `tunl0`, `gre0`, `gretap0`, `sit0`, `ip6tnl0`,
`ip6gre0`."""

from .frames import *
from .tunnel import FAR_MAC, MAC
from .tunnel_out import FAR4, FAR6, HERE4, HERE6, carry, gre, in4, in6, listed, out4, out6

DEVICES = {
    "ipip": "tunl0",
    "gre": "gre0",
    "gretap": "gretap0",
    "sit": "sit0",
    "ip6tnl": "ip6tnl0",
    "ip6gre": "ip6gre0",
}


def up(kind, name="tun1", mtu=None):
    """Their links are counted by the names tun0 to tun9."""
    address = [f"ip link set {name} address {MAC}"] if kind.endswith("tap") else []
    return [
        f"ip link set {DEVICES[kind]} name {name}",
        f"ip link set {name} mtu 1400",
        f"ip link set {name} addrgenmode none",
        *([f"ip link set {name} mtu {mtu}"] if mtu else []),
        *address,
        f"ip link set {name} up",
    ]


def keyed(kind, inner, key):
    inner = Ether(dst=MAC, src=FAR_MAC) / inner if kind.endswith("tap") else inner
    return (out6 if kind.startswith("ip6") else out4)(47, gre(inner, key=key))


for kind in DEVICES:
    wide = kind.startswith("ip6")
    stranger = {"src": "2001:db8:2::77"} if wide else {"src": "198.51.100.77"}
    packets = [
        ("IPv4", carry(kind, in4())),
        ("IPv6", carry(kind, in6())),
        ("IPv4 from elsewhere", carry(kind, in4(), **stranger)),
        ("IPv6 from elsewhere", carry(kind, in6(), **stranger)),
        ("IPv4 with TTL 1", carry(kind, in4(ttl=1))),
        ("an outer ECN of 3", carry(kind, in4(tos=2), tos=3)),
    ]
    if "gre" in kind:
        packets += [(f"key {key}", keyed(kind, in4(), key)) for key in (0, 7)]
        packets += [("a checksum", (out6 if wide else out4)(47, gre(in4(), csum=True)))] * (kind != "gretap")
        packets += [("a sequence number", (out6 if wide else out4)(47, gre(in4(), seq=3)))] * (kind != "gretap")
    if kind == "ip6gre":
        packets += [("a frame", carry("ip6gretap", in4()))]
    Case(
        f"tunnel/fallback/{kind}-out",
        f"out of {DEVICES[kind]}",
        BASE + up(kind),
        listed(packets),
        # Linux counts what it says of its multicast groups.
        links=kind != "gretap",
    )
    # The names alone make the devices.
    Case(
        f"tunnel/fallback/{kind}-down",
        f"{DEVICES[kind]} is down",
        BASE + up(kind)[:-1],
        listed(packets[:2]),
    )

for kind in ["ipip", "gre", "gretap"]:
    packets = [("IPv4", carry(kind, in4()))]
    packets += [(f"key {key}", keyed(kind, in4(), key)) for key in (0, 7) if kind != "ipip"]
    Case(
        f"tunnel/fallback/{kind}-external",
        f"{DEVICES[kind]} (tun1) beside a device with external metadata (tun2)",
        BASE
        # Without IPv6 Linux says nothing of multicast groups.
        + up(kind, mtu=1200)
        + [f"ip link add tun2 address {MAC} type {kind} external" if kind == "gretap" else f"ip link add tun2 type {kind} external"]
        + ["ip link set tun2 mtu 1200", "ip link set tun2 up"],
        listed(packets),
    )

for kind, spec in [("ipip", f"remote {FAR4}"), ("gre", f"remote {FAR4} key 7"), ("sit", f"mode any remote {FAR4}"), ("ip6tnl", f"mode any remote {FAR6}")]:
    near = carry(kind, in4())
    Case(
        f"tunnel/fallback/{kind}-beside",
        f"{DEVICES[kind]} (tun1) beside a tunnel to one end (tun2)",
        BASE + up(kind) + [f"ip link add tun2 type {kind} {spec}", "ip link set tun2 addrgenmode none", "ip link set tun2 up"],
        listed(
            [
                ("from the end", near),
                ("from elsewhere", carry(kind, in4(), src="2001:db8:2::77" if kind == "ip6tnl" else "198.51.100.77")),
                ("IPv6 from the end", carry(kind, in6())),
            ]
            + [("from the end, key 7", keyed(kind, in4(), 7))] * (kind == "gre")
        ),
    )

# Into them: where a route says the other end.
IN = [
    ("IPv4", ip4("10.7.0.7") / udp()),
    ("IPv4, don't fragment", ip4("10.7.0.7", flags="DF") / udp()),
    ("IPv4, no gateway", ip4("198.51.100.2") / udp()),
    ("IPv6", ip6("2001:db8:7::7") / udp()),
    ("IPv6, 6to4", ip6("2002:c633:6402::7") / udp()),
]
ROUTES = {
    "ipip": [f"ip route add 10.7.0.0/16 via {FAR4} dev tun1 onlink", "ip -6 route add 2001:db8:7::/48 dev tun1"],
    "sit": [
        f"ip route add 10.7.0.0/16 via {FAR4} dev tun1 onlink",
        f"ip -6 route add 2001:db8:7::/48 via ::{FAR4} dev tun1 onlink",
        "ip -6 route add 2002::/16 dev tun1",
    ],
    "gre": ["ip route add 10.7.0.0/16 dev tun1"],
    "ip6tnl": [
        "ip route add 10.7.0.0/16 dev tun1",
        "ip -6 route add 2001:db8:7::/48 dev tun1",
    ],
    "ip6gre": ["ip route add 10.7.0.0/16 dev tun1", "ip -6 route add 2001:db8:7::/48 dev tun1"],
}
for kind, routes in ROUTES.items():
    Case(
        f"tunnel/fallback/{kind}-in",
        f"into {DEVICES[kind]}, which has no remote address",
        BASE + up(kind) + routes,
        [(label, Ether(dst=P0, src=N0) / packet) for label, packet in IN],
    )

Case(
    "tunnel/fallback/ipip-source",
    "tunl0 (tun1) sends to the destination of the packet, from an address that the route there says, or of its link",
    BASE
    + up("ipip")
    + [
        "ip route add 10.7.0.0/16 via 198.51.100.2",
        "ip route add 10.8.0.0/16 via 198.51.100.2 src 192.0.2.1",
        "ip route add 10.0.0.0/8 dev tun1 table 100",
        "ip rule add iif p0 lookup 100",
    ],
    [(f"IPv4 to {to}", "p0", ether(ip4(to) / udp())) for to in ("10.7.0.7", "10.8.0.8")],
)
