"""VLAN devices: tags taken off and put on, priorities, service tags with others inside, above tunnels, with hooks and in VRFs.

The devices are tun1 and tun2, as the statistics of links of these names are part of a case."""

from scapy.all import ARP

from .frames import *

# From VLAN 10 at p0 to VLAN 20 at p1.
IN4, IN6 = "10.7.0.9", "2001:db8:7::9"


def vlans(lower0="p0", lower1="p1", in_options="id 10", out_options="id 20", before=(), vrf=""):
    table = " table 100" if vrf else ""
    return (
        BASE
        + list(before)
        + [
            f"ip link add link {lower0} name tun1 type vlan {in_options}",
            f"ip link add link {lower1} name tun2 type vlan {out_options}",
            *([f"ip link set tun{n} master {vrf}" for n in (1, 2)] if vrf else []),
            "ip link set tun1 up",
            "ip link set tun2 up",
            "ip addr add 10.1.0.1/24 dev tun1",
            "ip addr add 2001:db8:11::1/64 dev tun1 nodad",
            "ip addr add 10.2.0.1/24 dev tun2",
            "ip addr add 2001:db8:12::1/64 dev tun2 nodad",
            "ip neigh add 10.1.0.2 lladdr 02:00:00:00:01:01 dev tun1 nud permanent",
            "ip neigh add 2001:db8:11::2 lladdr 02:00:00:00:01:01 dev tun1 nud permanent",
            "ip neigh add 10.2.0.2 lladdr 02:00:00:00:01:02 dev tun2 nud permanent",
            "ip neigh add 2001:db8:12::2 lladdr 02:00:00:00:01:02 dev tun2 nud permanent",
            f"ip route add 10.7.0.0/16 via 10.2.0.2{table}",
            f"ip -6 route add 2001:db8:7::/48 via 2001:db8:12::2{table}",
            f"ip route add 10.8.0.0/16 via 10.1.0.2{table}",
            f"ip -6 route add 2001:db8:8::/48 via 2001:db8:11::2{table}",
        ]
    )


def frame(*layers, dst=P0, src=N0):
    made = Ether(dst=dst, src=src)
    for layer in layers:
        made = made / layer
    return made


def out(*layers):
    return [("p1", frame(*layers, dst=N1, src=P1))]


def back(*layers):
    return [("p0", frame(*layers, dst=N0, src=P0))]


from4 = lambda **more: ip4(IN4, "10.8.0.5", **more)
from6 = lambda **more: ip6(IN6, "2001:db8:8::5", **more)
four, six = from4() / udp(), from6() / udp()
Case(
    "vlan/forward",
    "From one VLAN to another, and between VLANs and ports.",
    vlans(),
    **io(
        [
            ("IPv4", frame(Dot1Q(vlan=10), four), out(Dot1Q(vlan=20), hops(four))),
            ("IPv6", frame(Dot1Q(vlan=10), six), out(Dot1Q(vlan=20), hops(six))),
            ("priority 5, drop eligible", frame(Dot1Q(vlan=10, prio=5, id=1), four), out(Dot1Q(vlan=20), hops(four))),
            ("without a tag", frame(four), out(Dot1Q(vlan=20), hops(four))),
            ("a priority tag", frame(Dot1Q(vlan=0, prio=3), six), out(Dot1Q(vlan=20), hops(six))),
            ("another VLAN", frame(Dot1Q(vlan=11), four), []),
            ("a service tag", frame(Dot1AD(vlan=10), four), []),
            ("to a port", frame(Dot1Q(vlan=10), ip6() / udp()), out(hops(ip6() / udp()))),
            ("for another station", frame(Dot1Q(vlan=10), four, dst="02:00:00:00:00:99"), []),
            ("for all stations", frame(Dot1Q(vlan=10), four, dst="ff:ff:ff:ff:ff:ff"), []),
            ("two tags", frame(Dot1Q(vlan=10), Dot1Q(vlan=10), four), []),
            ("two tags, the inner of priority", frame(Dot1Q(vlan=10), Dot1Q(vlan=0), four), None),
            ("1,500 bytes", frame(Dot1Q(vlan=10), from4() / udp(1472)), out(Dot1Q(vlan=20), hops(from4() / udp(1472)))),
            ("padded", behind(frame(Dot1Q(vlan=10), from4() / Raw(b"tiny")), bytes(18)), out(Dot1Q(vlan=20), hops(from4() / Raw(b"tiny")))),
        ]
    ),
)
Case(
    "vlan/errors",
    "Errors leave with the tag that the packet came with, ARP and neighbours are answered with it; short and odd frames.",
    vlans(),
    [
        ("TTL 1", frame(Dot1Q(vlan=10), from4(ttl=1) / udp())),
        ("hop limit 1", frame(Dot1Q(vlan=10), from6(hlim=1) / udp())),
        ("no route", frame(Dot1Q(vlan=10), ip4("10.99.0.1", "10.8.0.5") / udp())),
        ("no route, IPv6", frame(Dot1Q(vlan=10), ip6("2001:db8:99::1", "2001:db8:8::5") / udp())),
        ("echo request", frame(Dot1Q(vlan=10, prio=6), ip4("10.1.0.1", "10.8.0.5") / ICMP(id=7, seq=1) / payload())),
        ("echo request, IPv6", frame(Dot1Q(vlan=10), ip6("2001:db8:11::1", "2001:db8:8::5") / ICMPv6EchoRequest(id=7, seq=1, data=b"hello"))),
        ("who has 10.1.0.1", frame(Dot1Q(vlan=10), ARP(op=1, hwsrc=N0, psrc="10.1.0.2", pdst="10.1.0.1"), dst="ff:ff:ff:ff:ff:ff")),
        ("who has 10.1.0.1, without a tag", frame(ARP(op=1, hwsrc=N0, psrc="192.0.2.2", pdst="192.0.2.1"), dst="ff:ff:ff:ff:ff:ff")),
        ("nothing behind the tag", frame(Dot1Q(vlan=10, type=0x0800))),
        ("half a tag", Raw(bytes(Ether(dst=P0, src=N0, type=0x8100)) + b"\0")),
        ("an unknown EtherType", frame(Dot1Q(vlan=10, type=0x1234), payload())),
        ("a length", frame(Dot1Q(vlan=10, type=64), payload())),
        ("IPv4 of a wrong sum", frame(Dot1Q(vlan=10), ip4(IN4, "10.8.0.5", chksum=1) / udp())),
    ],
)
for name, flags in [("reorder", ""), ("keep", " reorder_hdr off")]:
    Case(
        f"vlan/qos-{name}",
        "Priorities: of the tag for the packet, of the packet for the tag.",
        vlans(
            in_options=f"id 10{flags} ingress-qos-map 1:2 3:6 5:4 7:9",
            out_options=f"id 20{flags} egress-qos-map 0:1 2:7 6:5 4:3 9:6",
        ),
        [
            (f"{what}, priority {priority}, TOS {tos:#x}", frame(Dot1Q(vlan=10, prio=priority), packet(tos) / udp()))
            for what, packet in [("IPv4", lambda tos: IP(src="10.8.0.5", dst=IN4, ttl=40, tos=tos, id=7)), ("IPv6", lambda tos: IPv6(src="2001:db8:8::5", dst=IN6, hlim=40, tc=tos))]
            for priority, tos in [(0, 0), (1, 0), (3, 0), (5, 0x08), (7, 0), (2, 0x10), (0, 0x18), (7, 0x08)]
        ]
        + [("without a tag", frame(four)), ("IPv6 without a tag", frame(six))],
    )
STACKED = [
    "ip link add link p0 name s0 type vlan id 100 protocol 802.1ad",
    "ip link add link p1 name s1 type vlan id 4094 protocol 802.1ad",
    "ip link set s0 up",
    "ip link set s1 up",
]
Case(
    "vlan/service",
    "Customers' tags inside service tags: IEEE 802.1ad.",
    vlans("s0", "s1", before=STACKED),
    **io(
        [
            ("IPv4", frame(Dot1AD(vlan=100), Dot1Q(vlan=10), four), out(Dot1AD(vlan=4094), Dot1Q(vlan=20), hops(four))),
            ("IPv6", frame(Dot1AD(vlan=100), Dot1Q(vlan=10), six), out(Dot1AD(vlan=4094), Dot1Q(vlan=20), hops(six))),
            ("the inner tag alone", frame(Dot1Q(vlan=10), four), []),
            ("the outer tag alone", frame(Dot1AD(vlan=100), four), out(Dot1AD(vlan=4094), Dot1Q(vlan=20), hops(four))),
            ("another inner tag", frame(Dot1AD(vlan=100), Dot1Q(vlan=11), four), []),
            ("another outer tag", frame(Dot1AD(vlan=101), Dot1Q(vlan=10), four), []),
            ("802.1Q outside", frame(Dot1Q(vlan=100), Dot1Q(vlan=10), four), []),
            ("three tags", frame(Dot1AD(vlan=100), Dot1Q(vlan=10), Dot1Q(vlan=10), four), []),
        ]
    ),
)
GRETAP = [
    "ip link add tun3 address 02:00:00:00:00:03 type gretap local 198.51.100.1 remote 198.51.100.2",
    "ip link set tun3 up",
]


def in_gre(*layers):
    inside = bytes(frame(*layers, dst="02:00:00:00:00:03", src=N1))
    return ether(IP(src="198.51.100.2", dst="198.51.100.1", ttl=64, proto=47) / Raw(b"\0\0\x65\x58" + inside), dst=P1, src=N1)


Case(
    "vlan/gretap",
    "A VLAN device above a gretap device.",
    vlans(lower1="tun3", before=GRETAP),
    [
        ("IPv4", frame(Dot1Q(vlan=10), four)),
        ("IPv6", frame(Dot1Q(vlan=10), six)),
        ("IPv4 back", "p1", in_gre(Dot1Q(vlan=20), ip4("10.8.0.5", IN4) / udp())),
        ("IPv6 back", "p1", in_gre(Dot1Q(vlan=20), ip6("2001:db8:8::5", IN6) / udp())),
        ("another VLAN", "p1", in_gre(Dot1Q(vlan=21), ip4("10.8.0.5", IN4) / udp())),
        ("without a tag", "p1", in_gre(ip4("10.8.0.5", IN4) / udp())),
        ("1,446 bytes", frame(Dot1Q(vlan=10), from4(flags="DF") / udp(1418))),
        ("1,462 bytes", frame(Dot1Q(vlan=10), from4() / udp(1434))),
        ("1,463 bytes", frame(Dot1Q(vlan=10), from4(flags="DF") / udp(1435))),
    ],
)
Case(
    "vlan/vrf",
    "VLAN devices in a VRF.",
    vlans(before=["ip link add vrf100 type vrf table 100", "ip link set vrf100 up"], vrf="vrf100"),
    [
        ("IPv4", frame(Dot1Q(vlan=10), four)),
        ("IPv6", frame(Dot1Q(vlan=10), six)),
        ("without a tag it is not in the VRF", frame(four)),
        ("TTL 1", frame(Dot1Q(vlan=10), from4(ttl=1) / udp())),
        ("no route", frame(Dot1Q(vlan=10), ip6() / udp())),
    ],
)
Case(
    "vlan/other-address",
    "A device whose address is not that of the link below takes what is for either, and a device above it for all three.",
    vlans(before=["ip link set p0 up"])
    + [
        "ip link set tun1 address 02:00:00:00:0b:01",
        "ip link add link tun1 name tun3 address 02:00:00:00:0b:03 type vlan id 11",
        "ip link set tun3 up",
        "ip addr add 10.3.0.1/24 dev tun3",
    ],
    [
        (f"{what}{inside}", frame(Dot1Q(vlan=10), *tag, four, dst=dst))
        for inside, tag in [("", []), (", two tags", [Dot1Q(vlan=11)])]
        for what, dst in [("the port's address", P0), ("the device's own", "02:00:00:00:0b:01"), ("that of the one above", "02:00:00:00:0b:03"), ("nobody's", "02:00:00:00:0b:09")]
    ]
    + [("who has 10.1.0.1", frame(Dot1Q(vlan=10), ARP(op=1, hwsrc=N0, psrc="10.1.0.2", pdst="10.1.0.1")))],
)
Case(
    "vlan/of-nobody",
    "What nobody takes counts as dropped, also if it was for another station; what LLC takes does not.",
    vlans(),
    [
        (f"{what}, {whose}", frame(Dot1Q(vlan=10), *layers, dst=dst))
        for whose, dst in [("for the router", P0), ("for another", "02:00:00:00:0b:09")]
        for what, layers in [
            ("in another VLAN", [Dot1Q(vlan=7, type=0x88B5), Raw(bytes(46))]),
            ("behind a priority tag", [Dot1Q(vlan=0, prio=3, type=0x88B5), Raw(bytes(46))]),
            ("a tag behind a priority tag", [Dot1Q(vlan=0), Dot1Q(vlan=7, type=0x88B5), Raw(bytes(46))]),
            ("IPv4 in another VLAN", [Dot1Q(vlan=7), four]),
            ("IPv4 behind a priority tag", [Dot1Q(vlan=0), four]),
            ("LLC", [Dot1Q(vlan=7, type=38), Raw(b"\x42\x42\x03" + bytes(43))]),
            ("no LLC", [Dot1Q(vlan=7, type=38), Raw(b"\xff\xff\x03" + bytes(43))]),
        ]
    ],
)
Case(
    "vlan/srv6",
    "SRv6 by VLANs: End, End.X, End.DX2 and H.Encaps.",
    vlans()
    + [
        "ip -6 route add fc00:a::1/128 encap seg6local action End dev p0",
        "ip -6 route add fc00:a::2/128 encap seg6local action End.X nh6 2001:db8:12::2 dev p0",
        "ip -6 route add fc00:a::3/128 encap seg6local action End.DX2 oif tun2 dev p0",
        "ip -6 route add fc00:a::4/128 encap seg6local action End.DX6 nh6 2001:db8:12::2 dev p0",
        "ip -6 route add fc00:d::/32 via 2001:db8:12::2",
        "ip sr tunsrc set 2001:db8:1::1",
        "ip -6 route add 2001:db8:17::/48 encap seg6 mode encap segs fc00:d::1,fc00:d::2 dev tun2",
        "ip route add 10.17.0.0/16 encap seg6 mode encap segs fc00:d::1 dev tun2",
    ],
    [
        (f"{label}{what}", frame(*tag, packet))
        for what, tag in [(" in a VLAN", [Dot1Q(vlan=10)]), ("", [])]
        for label, packet in [
            ("End", routed(ip6(dst="fc00:a::1"), ["fc00:a::1", "fc00:d::1"], 1, udp())),
            ("End.X", routed(ip6(dst="fc00:a::2"), ["fc00:a::2", "fc00:d::1"], 1, udp())),
            ("End.DX2", ip6(dst="fc00:a::3", nh=143) / Raw(bytes(FRAME))),
            ("End.DX6", ip6(dst="fc00:a::4") / INNER6),
            ("H.Encaps", ip6("2001:db8:17::1", "2001:db8:8::5") / udp()),
            ("H.Encaps of IPv4", ip4("10.17.0.1", "10.8.0.5") / udp()),
        ]
    ],
)
Case(
    "vlan/hooks",
    "Filters at VLAN devices see frames without the tag, those at the ports below with it.",
    vlans()
    + [
        line
        for dev in ("p0", "p1", "tun1", "tun2")
        for line in [
            f"tc qdisc add dev {dev} clsact",
            f"tc filter add dev {dev} ingress protocol 802.1Q pref 1 matchall action continue",
            f"tc filter add dev {dev} ingress protocol ip pref 2 matchall action continue",
            f"tc filter add dev {dev} egress protocol 802.1Q pref 1 matchall action continue",
            f"tc filter add dev {dev} egress protocol ip pref 2 u32 match ip dst 10.7.0.66/32 action drop",
        ]
    ]
    + [
        "tc filter add dev tun1 ingress protocol ip pref 3 flower dst_ip 10.7.0.67 action mirred egress redirect dev tun2",
        "tc filter add dev p0 ingress protocol 802.1Q pref 5 flower vlan_id 13 action vlan pop pipe action mirred ingress redirect dev tun1",
        "tc filter add dev p0 ingress protocol 802.1Q pref 6 flower vlan_id 14 action vlan modify id 10",
    ],
    [
        ("IPv4", frame(Dot1Q(vlan=10), four)),
        ("dropped at the way out", frame(Dot1Q(vlan=10), ip4("10.7.0.66", "10.8.0.5") / udp())),
        ("redirected", frame(Dot1Q(vlan=10), ip4("10.7.0.67", "10.8.0.5") / udp())),
        ("without a tag", frame(four)),
        ("redirected into the device", frame(Dot1Q(vlan=13), four)),
        ("another tag", frame(Dot1Q(vlan=14), four)),
    ],
    shows=[f"tc -s filter show dev {dev} {way}" for dev in ("p0", "p1", "tun1", "tun2") for way in ("ingress", "egress")],
)
Case(
    "vlan/hooks-cut",
    "A frame that ends in its tag, or two bytes behind it, is dropped before filters see it.",
    vlans() + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol all pref 1 matchall action continue"],
    [
        (f"{14 + n} bytes of {'a service tag' if kind == 0x88A8 else 'a tag'}", "p0", Ether(dst=P0, src=N0, type=kind) / Raw(bytes.fromhex("000a08004500")[:n]))
        for kind in (0x8100, 0x88A8)
        for n in (0, 1, 2, 4, 5, 6)
    ]
    + [("14 bytes of IPv4", "p0", Ether(dst=P0, src=N0, type=0x0800))],
    shows=["tc -s filter show dev p0 ingress"],
)
Case(
    "vlan/behind-priority",
    "A tag that gives a priority alone is before that of a VLAN device.",
    vlans(),
    [
        ("one", frame(Dot1Q(vlan=0, prio=3), Dot1Q(vlan=10), four)),
        ("IPv6", frame(Dot1Q(vlan=0, prio=3), Dot1Q(vlan=10, prio=5), six)),
        ("a service tag", frame(Dot1AD(vlan=0), Dot1Q(vlan=10), four)),
        ("two", frame(Dot1Q(vlan=0), Dot1Q(vlan=0), Dot1Q(vlan=10), four)),
        ("another VLAN", frame(Dot1Q(vlan=0), Dot1Q(vlan=11), four)),
        ("of a VLAN", frame(Dot1Q(vlan=5), Dot1Q(vlan=10), four)),
        ("a packet behind two", frame(Dot1Q(vlan=0), Dot1Q(vlan=0), four)),
        ("for another station", frame(Dot1Q(vlan=0), Dot1Q(vlan=10), four, dst="02:00:00:00:00:99")),
    ],
    links=True,
)
Case(
    "vlan/qdisc",
    "A qdisc at a VLAN device and one at the port below it.",
    vlans()
    + [
        "tc qdisc add dev tun2 root handle 1: prio",
        "tc qdisc add dev p1 root handle 2: pfifo limit 10",
    ],
    [("IPv4", frame(Dot1Q(vlan=10), four)), ("IPv6", frame(Dot1Q(vlan=10), six)), ("to the port", frame(Dot1Q(vlan=10), ip6() / udp()))],
    shows=["tc -s qdisc show dev tun2", "tc -s qdisc show dev p1"],
)
