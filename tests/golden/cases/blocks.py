"""Blocks of filters that hooks share, and traffic control at dummies."""

from .frames import *
from .mpls import frame as labelled, labels
from .qos import EGRESS, INGRESS, sized, tcp

SHARED = [
    "tc qdisc add dev p0 ingress_block 22 clsact",
    "tc qdisc add dev p1 ingress_block 22 egress_block 23 clsact",
]
BOTH = [
    ("UDP by p0", "p0", ether(ip4() / udp(50))),
    ("TCP by p0", "p0", ether(ip4() / tcp())),
    ("IPv6 by p0", "p0", ether(ip6() / udp(60))),
    ("UDP by p1", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, TARGET4) / udp(70)),
    ("TCP by p1", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, TARGET4) / tcp()),
    ("IPv6 by p1", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, TARGET) / udp(80)),
]
SHOWS = (
    "tc -s filter show block 22",
    INGRESS,
    "tc -s filter show dev p1 ingress",
    EGRESS,
    "tc -s filter show block 23",
    "tc chain show block 22",
    "tc -s qdisc show dev p0 clsact",
    "tc -s actions ls action police",
)


def case(name, doc, lines, frames=BOTH, shows=SHOWS, base=BASE):
    Case(f"qos/{name}", doc, base + lines, frames, shows=shows, remembers=True, links=False)


case(
    "blocks/shared",
    "Two hooks share the filters of what comes in, and count for themselves.",
    SHARED
    + [
        "tc filter add block 22 protocol ip prio 1 flower ip_proto tcp action drop",
        "tc filter add block 22 protocol ip prio 2 u32 match ip protocol 17 0xff action pass",
        "tc filter add block 22 protocol all prio 3 matchall action goto chain 5",
        "tc filter add block 22 chain 5 protocol ipv6 prio 1 basic match 'cmp(u8 at 6 layer network eq 17)' action drop",
        "tc filter add block 23 protocol ip prio 1 flower dst_ip 203.0.113.128/25 action pass",
    ],
)
case(
    "blocks/police",
    "They share a policer with them.",
    SHARED
    + [
        "tc filter add block 22 protocol ip prio 1 matchall action police rate 80bit burst 250 mtu 1500 conform-exceed drop",
        "tc filter add block 23 protocol ip prio 9 u32 match u32 0 0 action pass",
    ],
)
case(
    "blocks/later",
    "A hook that comes later has the filters too; one that goes leaves them to the other.",
    [
        SHARED[0],
        "tc filter add block 22 protocol ip prio 1 flower ip_proto tcp action drop",
        SHARED[1],
        "tc qdisc del dev p0 clsact",
        "tc filter add block 22 protocol ip prio 4 flower ip_proto udp action pass",
        "tc filter add block 22 protocol ip prio 5 flower ip_proto icmp action pass",
        "tc filter del block 22 protocol ip prio 5 flower",
    ],
)
case(
    "blocks/both-ways",
    "A block of what comes in by one port and leaves by the other, and a large index.",
    [
        "tc qdisc add dev p0 ingress_block 4294967295 clsact",
        "tc qdisc add dev p1 egress_block 4294967295 clsact",
        "tc filter add block 4294967295 protocol ip prio 65535 flower ip_proto tcp action pass",
        "tc filter add block 4294967295 protocol ipv6 prio 1 flower ip_proto udp action mirred egress mirror dev p0",
    ],
    shows=("tc -s filter show block 4294967295", INGRESS, EGRESS),
)
DUMMY = [
    "ip link add d0 type dummy",
    "ip link set d0 address 02:00:00:00:0d:00 addrgenmode none",
    "ip link set d0 up",
    "ip addr add 10.5.0.1/24 dev d0",
    "ip route add 10.6.0.0/24 via 10.5.0.9",
    "ip route add 10.7.0.0/24 dev d0",
    "ip -6 route add 2001:db8:77::/64 dev d0",
]
INTO = [
    ("to an address on it", "p0", ether(ip4("10.5.0.7") / udp(50))),
    ("to a gateway on it", "p0", ether(ip4("10.6.0.7") / udp(60))),
    ("by a route to it", "p0", ether(ip4("10.7.0.7") / udp(70))),
    ("IPv6", "p0", ether(ip6("2001:db8:77::7") / udp(80))),
    ("TTL 1", "p0", ether(ip4("10.7.0.7", ttl=1) / udp(70))),
    ("past it", "p0", ether(ip4() / udp(90))),
]
ON_DUMMY = ("tc -s filter show dev d0 egress", "tc -s filter show dev d0 ingress", "tc -s qdisc show dev d0", "tc -s class show dev d0")
METERS = [
    "tc qdisc add dev d0 clsact",
    "tc filter add dev d0 egress protocol ip prio 1 flower dst_mac 02:00:00:00:0d:00 dst_ip 10.6.0.0/24 action pass",
    "tc filter add dev d0 egress protocol ip prio 2 matchall action pass",
    "tc filter add dev d0 egress protocol ipv6 prio 3 flower ip_proto udp action pass",
    "tc filter add dev d0 ingress protocol ip prio 1 matchall action pass",
]
case("dummy/filters", "What leaves by a dummy is asked, and ends there.", DUMMY + METERS, INTO, ON_DUMMY[:2])
case(
    "dummy/htb",
    "It waits in the dummy's queues.",
    DUMMY + METERS + [
        "tc qdisc add dev d0 root handle 1: htb default 20",
        "tc class add dev d0 parent 1: classid 1:10 htb rate 80bit burst 250 cburst 250",
        "tc class add dev d0 parent 1: classid 1:20 htb rate 1gbit",
        "tc filter add dev d0 parent 1: protocol ip prio 1 u32 match ip dst 10.6.0.0/24 flowid 1:10",
    ],
    [("to a gateway on it", "p0", ether(ip4("10.6.0.7") / udp(60 + n))) for n in range(5)],
    ON_DUMMY,
)
case(
    "dummy/mirror",
    "A mirror sends copies there.",
    DUMMY + METERS + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 matchall action mirred egress mirror dev d0"],
    INTO[-2:] + [("UDP", "p0", ether(ip4() / udp(20)))],
    ON_DUMMY[:2] + ("tc -s filter show dev p0 ingress",),
)
case(
    "dummy/redirect-in",
    "What is redirected comes in there.",
    DUMMY + METERS + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 matchall action mirred ingress redirect dev d0"],
    INTO[-1:] + [("UDP", "p0", ether(ip4() / udp(20)))],
    ON_DUMMY[:2] + ("tc -s filter show dev p0 ingress",),
)
case(
    "dummy/vrf",
    "What is redirected to come in by a VRF is asked there, and looked up in it.",
    [
        "tc qdisc add dev vrf100 clsact",
        "tc filter add dev vrf100 ingress protocol ip prio 1 flower ip_proto udp action pass",
        "tc filter add dev vrf100 ingress protocol ipv6 prio 2 matchall action drop",
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol all prio 1 matchall action mirred ingress redirect dev vrf100",
    ],
    [("UDP", "p0", ether(ip4() / udp(20))), ("IPv6", "p0", ether(ip6() / udp(30))), ("from the VRF", "p1", Ether(dst=P1, src=N1) / ip4(TARGET4, SOURCE4) / udp(20))],
    ("tc -s filter show dev vrf100 ingress", "tc -s filter show dev p0 ingress", "tc -s qdisc show dev vrf100 clsact"),
    base=VRF,
)

for kind in ("ipip", "gre", "gretap", "ip6gretap"):
    ends = "local 2001:db8:2::1 remote 2001:db8:2::2" if kind.startswith("ip6") else "local 198.51.100.1 remote 198.51.100.2"
    address = "address 02:00:00:00:00:77" if kind.endswith("tap") else ""
    Case(
        f"qos/mirror-around/{kind}",
        "What leaves by a port is mirrored into a tunnel whose packets leave there: they are not mirrored again.",
        BASE
        + ["tc qdisc add dev p1 clsact", f"ip link add tun1 {address} type {kind} {ends}", "ip link set tun1 addrgenmode none", "ip link set tun1 up"]
        + [f"tc filter add dev p1 egress protocol {'all' if kind.startswith('ip6') else 'ip'} prio 1 matchall action mirred egress mirror dev tun1"],
        [("IPv4", "p0", ether(ip4() / udp(20)))],
        shows=["tc -s filter show dev p1 egress"],
    )

for name, doc, actions in [
    ("mirror", "A packet is mirrored to the device that it leaves by: the copy is not mirrored again.", "mirred egress mirror dev p1"),
    ("redirect", "A packet is redirected to the device that it leaves by: its second way is a loop.", "mirred egress redirect dev p1"),
]:
    Case(
        f"qos/mirred-loop/{name}",
        doc,
        BASE + ["tc qdisc add dev p1 clsact", f"tc filter add dev p1 egress protocol all prio 1 matchall action {actions}"],
        [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp()))],
        shows=("tc -s filter show dev p1 egress", "tc -s qdisc show dev p1"),
        links=False,
    )
Case(
    "qos/mirred-loop/back",
    "A packet goes from one device to another and back.",
    BASE
    + ["tc qdisc add dev p0 clsact", "tc qdisc add dev p1 clsact"]
    + ["tc filter add dev p1 egress protocol ip prio 1 matchall action mirred egress mirror dev p0"]
    + ["tc filter add dev p0 egress protocol ip prio 1 matchall action mirred egress mirror dev p1"],
    [("IPv4", ether(ip4() / udp()))],
    shows=("tc -s filter show dev p0 egress", "tc -s filter show dev p1 egress"),
    links=False,
)

Case(
    "qos/classify/indev-own",
    "flower: a message of the router itself has come in by no device.",
    BASE + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 egress protocol all prio 1 flower indev p0 action drop", "ip route add 203.0.114.0/24 via 192.0.2.2"],
    [
        ("IPv4 that goes back", ether(ip4("203.0.114.9") / udp())),
        ("IPv4 without a route", ether(ip4("203.0.115.9") / udp())),
        ("IPv6 without a route", ether(ip6("2001:db8:99::9") / udp())),
        ("a ping", ether(ip4("192.0.2.1") / ICMP() / payload(8))),
    ],
    shows=("tc -s filter show dev p0 egress",),
    links=False,
)

INDEV = ["tc qdisc add dev p1 clsact"]
INDEV += [
    f"tc filter add dev p1 egress protocol all prio {n} flower indev {device} action continue"
    for n, device in enumerate(("p0", "p1", "tun1"), start=1)
]
for kind, ends, more in [
    ("ipip", "local 198.51.100.1 remote 198.51.100.2", ""),
    ("ip6tnl", "local 2001:db8:2::1 remote 2001:db8:2::2", "mode any "),
]:
    Case(
        f"qos/classify/indev-{kind}",
        "flower: what a tunnel has encapsulated has come in by no device, what it has decapsulated by the tunnel.",
        BASE
        + [
            f"ip link add tun1 type {kind} {more}{ends} ttl 64".replace("ttl", "encaplimit none hoplimit" if more else "ttl"),
            "ip link set tun1 addrgenmode none",
            "ip link set tun1 up",
            "ip route add 203.0.114.0/24 dev tun1",
        ]
        + INDEV,
        [
            ("in", ether(ip4("203.0.114.9") / udp())),
            ("past it", ether(ip4() / udp())),
            ("out, and back by p1", "p1", Ether(dst=P1, src=N1) / (ip4("198.51.100.1", src="198.51.100.2", proto=4) if kind == "ipip" else ip6("2001:db8:2::1", src="2001:db8:2::2", nh=4)) / ip4(TARGET4, src=SOURCE4) / udp()),
            ("out, and in again", "p1", Ether(dst=P1, src=N1) / (ip4("198.51.100.1", src="198.51.100.2", proto=4) if kind == "ipip" else ip6("2001:db8:2::1", src="2001:db8:2::2", nh=4)) / ip4("203.0.114.9", src=SOURCE4) / udp()),
            ("past it again", ether(ip4() / udp())),
        ],
        shows=("tc -s filter show dev p1 egress",),
        links=False,
    )
Case(
    "qos/classify/indev-vrf",
    "flower: what has come in by a port of a VRF has come in by the VRF's device.",
    BASE
    + [
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip route add 203.0.113.128/25 via 198.51.100.2 dev p1 table 100",
        "ip -6 route add 2001:db8:6::/48 via 2001:db8:2::2 dev p1 table 100",
        "ip link set p0 master vrf100",
    ]
    + [INDEV[0]]
    + [
        f"tc filter add dev p1 egress protocol all prio {n} flower indev {device} action continue"
        for n, device in enumerate(("p0", "p1", "vrf100"), start=1)
    ],
    [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp()))],
    shows=("tc -s filter show dev p1 egress",),
    links=False,
)

Case(
    "qos/classify/indev-label",
    "flower: what a label has led to the router itself has come in by lo, what it has led into a VRF by its port.",
    BASE
    + [
        "sysctl -qw net.mpls.platform_labels=1000",
        "sysctl -qw net.mpls.conf.p0.input=1",
        "ip -f mpls route add 102 dev lo",
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip -f mpls route add 100 dev vrf100",
        "ip route add 203.0.113.128/25 via 198.51.100.2 dev p1 table 100",
    ]
    + [INDEV[0]]
    + [
        f"tc filter add dev p1 egress protocol all prio {n} flower indev {device} action continue"
        for n, device in enumerate(("p0", "lo", "vrf100"), start=1)
    ],
    [
        ("IPv4 Explicit NULL", labelled(labels([0], ip4() / udp()))),
        ("IPv6 Explicit NULL", labelled(labels([2], ip6() / udp()))),
        ("a label for lo", labelled(labels([102], ip4() / udp()))),
        ("a label for a VRF", labelled(labels([100], ip4() / udp()))),
        ("no label", ether(ip4() / udp())),
    ],
    shows=("tc -s filter show dev p1 egress",),
    links=False,
)

for name, more in [
    ("alone", []),
    ("others", ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 matchall action pass"]),
    ("u32", ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 u32 match ip protocol 17 0xff action pass"]),
]:
    Case(
        f"qos/classify/tables-{name}",
        "u32: a table without filters.",
        BASE + ["tc qdisc add dev p1 clsact", "tc filter add dev p1 egress protocol ip prio 1 handle 2: u32 divisor 4"] + more,
        [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp()))],
        shows=("tc -s qdisc show dev p1",),
        links=False,
    )
Case(
    "qos/classify/tables-ingress",
    "u32: a table without filters, at ingress, beside filters elsewhere.",
    BASE
    + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 handle 2: u32 divisor 4"]
    + ["tc filter add dev p0 egress protocol ip prio 1 matchall action pass"],
    [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp()))],
    shows=("tc -s qdisc show dev p0",),
    links=False,
)
Case(
    "qos/classify/indev-mirred",
    "What an action sends on has come in by the device of the action, to filters where it leaves.",
    BASE
    + [f"tc qdisc add dev {device} clsact" for device in ("p0", "p1")]
    + [
        f"tc filter add dev {at} egress protocol all prio {n} flower indev {device} action continue"
        for at in ("p0", "p1")
        for n, device in enumerate(("p0", "p1"), 1)
    ]
    + [
        "tc filter add dev p0 ingress protocol ip prio 1 u32 match ip tos 0x10 0xff action mirred egress redirect dev p1",
        "tc filter add dev p1 egress protocol ip prio 3 u32 match ip tos 0x20 0xff action mirred egress mirror dev p0",
        "tc filter add dev p1 egress protocol ip prio 4 u32 match ip tos 0x30 0xff action mirred egress redirect dev p0",
        "tc filter add dev p1 egress protocol ip prio 6 u32 match ip tos 0x50 0xff flowid 1:1 action mirred ingress redirect dev p0",
    ],
    [
        (what, ether(IP(src=SOURCE4, dst=TARGET4, ttl=ttl, tos=tos, id=7) / udp()))
        for what, tos, ttl in [
            ("forwarded", 0, 40),
            ("redirected where it came in", 0x10, 40),
            ("a copy back", 0x20, 40),
            ("redirected back", 0x30, 40),
            ("to come in again", 0x50, 3),
        ]
    ],
    shows=tuple(f"tc -s filter show dev {at} egress" for at in ("p0", "p1")),
    remembers=True,
    links=False,
)
# A qdisc charges what a packet was before the filters where it leaves: Linux notes its length first.
for name, action in [
    ("mpls-push", "mpls push label 55 tc 1 ttl 64"),
    ("mac-push", "mpls mac_push label 55 tc 1 ttl 64"),
    ("two-tags", "vlan push id 5 action vlan push id 6"),
]:
    for kind in ("pfifo", "tbf rate 100mbit burst 10k latency 50ms"):
        case(
            f"charged-before/{name}-{kind.split()[0]}",
            "What filters put before a packet that leaves is not charged by the qdisc behind them.",
            [
                "tc qdisc add dev p1 clsact",
                f"tc filter add dev p1 egress matchall action {action}",
                f"tc qdisc add dev p1 root handle 1: {kind}",
            ],
            shows=("tc -s qdisc show dev p1", "tc -s filter show dev p1 egress"),
        )
