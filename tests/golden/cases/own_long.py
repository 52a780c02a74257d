"""What the router itself sends, too long for its way: Linux cuts it, whatever a route has put before it or into it."""

from .frames import *

# Behind p1, of which the MTU is 1300, by routes of all kinds.
WAYS = {
    "plain": "via 2001:db8:2::2 dev p1",
    "mtu": "via 2001:db8:2::2 dev p1 mtu 1280",
    "encap": "encap seg6 mode encap segs fc00:b::1 dev p1",
    "encap-two": "encap seg6 mode encap segs fc00:b::1,fc00:c::1 dev p1",
    "encap-red": "encap seg6 mode encap.red segs fc00:b::1,fc00:c::1 dev p1",
    "inline": "encap seg6 mode inline segs fc00:b::1 dev p1",
    "rpl": "encap rpl segs 2001:db8:2::2 dev p1",
    "ioam-inline": "encap ioam6 mode inline trace prealloc type 0x800000 ns 0 size 12 via 2001:db8:2::2 dev p1",
    "ioam-encap": "encap ioam6 mode encap tundst fc00:b::1 trace prealloc type 0x800000 ns 0 size 12 via 2001:db8:2::2 dev p1",
    "mpls": "encap mpls 100/200 via 2001:db8:2::2 dev p1",
}
TUNNELS = {
    "ip6tnl": "type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2 encaplimit none",
    "ip6gre": "type ip6gre local 2001:db8:2::1 remote 2001:db8:2::2 encaplimit none",
    "sit": "type sit local 198.51.100.1 remote 198.51.100.2",
    "gre": "type gre local 198.51.100.1 remote 198.51.100.2",
}
HERE = "2001:db8:1::1"
FAR = "2001:db8:77::7"


def request(size, source=FAR, here=HERE):
    """An echo request of so many bytes."""
    return ether(ip6(here, src=source) / ICMPv6EchoRequest(id=7, seq=3, data=bytes(i & 0xFF for i in range(size - 48))))


def asked(sizes):
    return [(f"an echo request of {size} bytes", request(size)) for size in sizes]


def in_fragments(size, each=1232):
    """The same in fragments."""
    message = bytes(request(size)[IPv6].payload)
    parts = [message[at : at + each] for at in range(0, len(message), each)]
    return [
        (f"of an echo request of {size} bytes, part {n + 1}", ether(ip6(HERE, src=FAR, nh=44) / fragment(58, Raw(part), n * each // 8, n + 1 < len(parts))))
        for n, part in enumerate(parts)
    ]


for name, way in WAYS.items():
    Case(
        f"errors/own-long-{name}",
        f"Echo replies and errors that are too long for {way} are cut into fragments.",
        BASE + ["ip link set p1 mtu 1300", f"ip -6 route add 2001:db8:77::/48 {way}"],
        asked([1200, 1232, 1236, 1240, 1260, 1276, 1280, 1292, 1296, 1300, 1304, 1400, 1500])
        + in_fragments(2536)
        + in_fragments(2540)
        + in_fragments(3000)
        + [
            ("no port", ether(ip6(HERE, src=FAR) / udp(1400))),
            ("no route", ether(ip6("2001:db8:99::1", src=FAR) / udp(1400))),
            ("hop limit 1", ether(ip6("2001:db8:99::1", src=FAR, hlim=1) / udp(1200))),
        ],
        remembers=True,
    )
for name, kind in TUNNELS.items():
    Case(
        f"errors/own-long-{name}",
        f"Echo replies and errors that are too long for a tunnel, {name}, are cut into fragments before they go in.",
        BASE
        + [
            "ip link set p1 mtu 1380",
            f"ip link add tun1 {kind}",
            "ip link set tun1 addrgenmode none",
            "ip link set tun1 mtu 1300",
            "ip link set tun1 up",
            "ip -6 route add 2001:db8:77::/48 dev tun1",
        ],
        asked([1280, 1296, 1300, 1304, 1400, 1500])
        + in_fragments(2540)
        + [("no route", ether(ip6("2001:db8:99::1", src=FAR) / udp(1400)))],
        remembers=True,
    )
Case(
    "errors/own-long-ipv4",
    "Echo replies of IPv4 that are too long behind the headers of SRv6 or labels.",
    BASE
    + [
        "ip link set p1 mtu 1300",
        "ip route add 10.1.0.0/16 encap seg6 mode encap segs fc00:b::1 via 198.51.100.2 dev p1",
        "ip route add 10.2.0.0/16 encap mpls 100/200 via 198.51.100.2 dev p1",
    ],
    [
        (f"{what}, {size} bytes", ether(ip4("192.0.2.1", src=source) / ICMP(id=7, seq=3) / payload(size - 28)))
        for what, source in [("SRv6", "10.1.0.7"), ("labels", "10.2.0.7")]
        for size in [1200, 1236, 1240, 1260, 1292, 1296, 1300, 1304, 1400, 1500]
    ],
)

def in_fragments4(size, each=1480):
    """An IPv4 echo request of so many bytes, in fragments."""
    message = bytes(ICMP(id=7, seq=3) / Raw(bytes(i & 0xFF for i in range(size - 28))))
    parts = [message[at : at + each] for at in range(0, len(message), each)]
    return [
        (
            f"of an echo request of {size} bytes, part {n + 1}",
            ether(ip4("192.0.2.1", src="10.1.0.7", proto=1, flags="MF" if n + 1 < len(parts) else 0, frag=n * each // 8) / Raw(part)),
        )
        for n, part in enumerate(parts)
    ]


# At MTU 576 a fragment takes 552 bytes, and the last one 556.
for name, mtu, sizes in [("576", 576, [40000, 552 * 64 + 20, 552 * 64 + 24, 552 * 64 + 28]), ("68", 68, [9000])]:
    Case(
        f"errors/own-many-fragments-{name}",
        f"Echo replies of IPv4 of more than 64 fragments: MTU {mtu}.",
        BASE + [f"ip link set p1 mtu {mtu}", "ip route add 10.1.0.0/16 via 198.51.100.2 dev p1"],
        [part for size in sizes for part in in_fragments4(size)],
        remembers=True,
    )
Case(
    "errors/own-many-fragments-ipv6",
    "Echo replies of IPv6 as long as a packet may be.",
    BASE + ["ip link set p1 mtu 1280", "ip -6 route add 2001:db8:77::/48 via 2001:db8:2::2 dev p1"],
    in_fragments(40000) + in_fragments(65575),
    remembers=True,
)
Case(
    "errors/route-mtu-follows",
    "MTUs of IPv6 routes follow that of their link, unless they are locked; those of IPv4 do not.",
    BASE
    + [
        "ip link set p1 mtu 1400",
        "ip -6 route add 2001:db8:a0::/48 via 2001:db8:2::2 dev p1 mtu 1400",
        "ip -6 route add 2001:db8:a1::/48 via 2001:db8:2::2 dev p1 mtu 1350",
        "ip -6 route add 2001:db8:a2::/48 via 2001:db8:2::2 dev p1 mtu 1300",
        "ip -6 route add 2001:db8:a3::/48 via 2001:db8:2::2 dev p1 mtu lock 1350",
        "ip -6 nexthop add id 5 via 2001:db8:2::2 dev p1",
        "ip -6 route add 2001:db8:a4::/48 nhid 5 mtu 1350",
        "ip -6 route add 2001:db8:a5::/48 via 2001:db8:2::2 dev p1",
        "ip route add 10.0.0.0/16 via 198.51.100.2 mtu 1350",
        "ip link set p1 mtu 1320",
        "ip -6 route add 2001:db8:a6::/48 via 2001:db8:2::2 dev p1 mtu 1320",
        "ip -6 route add 2001:db8:a7::/48 via 2001:db8:2::2 dev p1 mtu 1310",
        "ip link set p1 mtu 1360",
    ],
    [(f"a reply by route {n}, {size} bytes", request(size, source=f"2001:db8:a{n}::1")) for n in range(8) for size in (1300, 1310, 1320, 1350, 1360, 1361)]
    + [(f"IPv4, {size} bytes", ether(ip4("10.0.0.1", flags="DF") / udp(size - 28))) for size in (1320, 1321, 1350, 1351)],
)
Case(
    "errors/small-link",
    "IPv6 does not work on a link with an MTU below 1280: nothing is received there, nor sent.",
    BASE
    + [
        "ip -6 route add fc00:a::1/128 encap seg6local action End count dev p0",
        "ip -6 route add fc00:a::2/128 encap seg6local action End.X nh6 2001:db8:2::2 count dev p0",
        "ip link set p1 mtu 1279",
    ],
    [
        ("by a route that is gone", ether(ip6() / udp())),
        ("End", ether(routed(ip6(SID), [SID, NEXT], 1, udp()))),
        ("End.X", ether(routed(ip6("fc00:a::2"), ["fc00:a::2", NEXT], 1, udp()))),
        ("to the link's address", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=7, seq=3, data=b"abc"))),
        ("by the link", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET) / udp()),
        ("by the link, hop limit 1", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET, hlim=1) / udp()),
        ("by the link, to the router", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:1::1", src=SOURCE) / ICMPv6EchoRequest(id=7, seq=3, data=b"abc")),
        ("by the link, to a SID", "p1", Ether(dst=P1, src=N1) / routed(ip6(SID, src=SOURCE), [SID, SOURCE], 1, udp())),
        ("IPv4", ether(ip4() / udp())),
        ("IPv4 by the link", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, src=TARGET4) / udp()),
    ],
)

INTO = {
    "ipip": "type ipip local 198.51.100.1 remote 198.51.100.2",
    "gre": "type gre local 198.51.100.1 remote 198.51.100.2",
    "sit": "type sit mode any local 198.51.100.1 remote 198.51.100.2",
    "ip6tnl": "type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2",
    "ip6gre": "type ip6gre local 2001:db8:2::1 remote 2001:db8:2::2",
}
OPTIONS = {
    "a route that is full": IPOption(b"\x07\x07\x08\x0a\0\0\x01"),
    "router alert": IPOption(b"\x94\x04\0\0"),
}
for name, kind in INTO.items():
    Case(
        f"errors/options-{name}",
        f"IPv4 options in errors of a tunnel, {name}, behind a SID and without one.",
        BASE
        + [
            "ip link set p1 mtu 1300",
            f"ip link add tun1 {kind}",
            *(["ip link set tun1 addrgenmode none"] if name != "gre" else []),
            "ip link set tun1 mtu 1400",
            "ip link set tun1 up",
            "ip route add 10.7.0.0/16 dev tun1",
            "ip -6 route add fc00:a::4/128 encap seg6local action End.DX4 nh4 10.7.0.1 count dev p0",
        ],
        [
            (f"{behind}{label}, {size} bytes, TTL {ttl}", ether(before(ip4("10.7.0.1", ttl=ttl, flags="DF", options=[option]) / udp(size - 36))))
            for behind, before in [("", lambda p: p), ("behind a SID, ", lambda p: ip6("fc00:a::4", nh=4) / p)]
            for label, option in OPTIONS.items()
            for size, ttl in [(100, 40), (1290, 40), (1410, 40), (100, 1)]
        ],
        links=False,
    )
# Both tables lead segments the same way.
LED = [line for line in VRF if "203.0.113.128" not in line and "2001:db8:6::" not in line] + [
    line + end for line in ("ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1",) for end in ("", " table 100")
]
Case(
    "leak/encap-inside",
    "Encapsulations behind the device of a VRF, by a route or a label: the packet has been forwarded by then.",
    LED
    + [
        "sysctl -qw net.mpls.platform_labels=2000",
        "sysctl -qw net.mpls.conf.p0.input=1",
        "ip -f mpls route add 100 dev vrf100",
        "ip route add 10.0.0.0/8 dev vrf100",
        "ip -6 route add 2001:db8:a0::/44 dev vrf100",
        "ip route add 10.1.0.0/16 encap seg6 mode encap segs fc00:b::1 via 198.51.100.2 dev p1 table 100",
        "ip route add 10.2.0.0/16 encap seg6 mode encap.red segs fc00:b::1,fc00:c::1 via 198.51.100.2 dev p1 table 100",
        "ip -6 route add 2001:db8:a1::/48 encap seg6 mode encap segs fc00:b::1 via 2001:db8:2::2 dev p1 table 100",
        "ip -6 route add 2001:db8:a2::/48 encap seg6 mode inline segs fc00:b::1 via 2001:db8:2::2 dev p1 table 100",
        "ip -6 route add 2001:db8:a3::/48 encap rpl segs fc00:b::1 dev p1 table 100",
    ],
    [
        (f"{how}, {label}, hop limit {n}", frame(p))
        for how, frame in [("a route", ether), ("a label", lambda p: Ether(dst=P0, src=N0, type=0x8847) / Raw(struct.pack("!I", 100 << 12 | 0x140)) / p)]
        for n in (40, 2)
        for label, p in [(to, ip4(to, ttl=n) / udp()) for to in ("10.1.0.1", "10.2.0.1")] + [(to, ip6(to, hlim=n) / udp()) for to in ("2001:db8:a1::1", "2001:db8:a2::1", "2001:db8:a3::1")]
    ],
)
Case(
    "errors/option-behind-sid",
    "Parameter problems of what a SID has led into a VRF for an address outside, and of what it has led there for one inside.",
    VRF
    + [
        "ip -6 route add fc00:e::1/128 encap seg6local action End.DT46 vrftable 100 count dev p0",
        "ip -6 route add fc00:e::2/128 encap seg6local action End.DT6 vrftable 100 count dev p0",
        "ip -6 route add fc00:e::3/128 encap seg6local action End.DT6 table 100 count dev p0",
    ],
    [
        (f"SID {n}, {to}, {label}", ether(ip6(f"fc00:e::{n}", nh=41) / inner))
        for n in range(1, 4)
        for to in ("2001:db8:1::1", "2001:db8:2::1")
        for label, inner in [
            ("an option", ip6(to, nh=60) / Raw(bytes([17, 0, 0x9E, 4, 0, 0, 0, 0])) / udp()),
            ("a routing header", routed(ip6(to), [NEXT, to], 1, udp(), kind=9)),
            ("a protocol", ip6(to, nh=253) / payload(8)),
        ]
    ],
)
Case(
    "qos/copy-into-bareudp",
    "A copy of a forwarded packet that is too long with the headers of a bareudp: nobody hears of it.",
    BASE
    + [
        "ip link add tun1 type bareudp dstport 6635 ethertype ipv4 multiproto",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
        "tc qdisc add dev p1 clsact",
        "tc filter add dev p1 egress protocol ipv6 matchall action tunnel_key set src_ip 2001:db8:2::1 dst_ip 2001:db8:2::3 id 5 ttl 9 pipe action mirred egress mirror dev tun1",
    ],
    [(f"{n} bytes", ether(ip6() / udp(n - 48))) for n in (100, 1452, 1453, 1500)],
    links=False,
)

# MTUs of paths that routers report of tunnels to the same end, and to others.
FROM_ROUTER = Ether(dst=P1, src=N1)


def reported(proto, mtu, remote="198.51.100.2", local="198.51.100.1"):
    """Fragmentation needed, with a packet of this protocol between these ends."""
    inner = ip4("10.7.0.1") / udp(1300)
    rest = {4: bytes(inner), 47: b"\0\0\x08\0" + bytes(inner), 41: bytes(ip6() / udp(1300))}[proto]
    quoted = bytes(IP(src=local, dst=remote, ttl=64, id=9, proto=proto, flags="DF") / Raw(rest))
    return FROM_ROUTER / IP(src="198.51.100.3", dst=local, ttl=64, id=7) / ICMP(type=3, code=4, nexthopmtu=mtu) / Raw(quoted)


PAIRS = {
    "kinds": ("type ipip local 198.51.100.1 remote 198.51.100.2", "type gre local 198.51.100.1 remote 198.51.100.2"),
    "ends": ("type ipip local 198.51.100.1 remote 198.51.100.2", "type ipip local 198.51.100.1 remote 198.51.100.3"),
    "keys": ("type gre local 198.51.100.1 remote 198.51.100.2", "type gre local 198.51.100.1 remote 198.51.100.2 key 5"),
    "links": ("type ipip local 198.51.100.1 remote 198.51.100.2 dev p1", "type gre local 198.51.100.1 remote 198.51.100.2"),
    "no-route": ("type ipip local 198.51.100.1 remote 198.51.100.2 dev p0", "type gre local 198.51.100.1 remote 198.51.100.2"),
    "locals": ("type ipip local 198.51.100.1 remote 198.51.100.2", "type gre local 192.0.2.1 remote 198.51.100.2"),
}
for name, kinds in PAIRS.items():
    first = {"ipip": 4, "gre": 47, "sit": 41}[kinds[0].split()[1]]
    second = {"ipip": 4, "gre": 47}[kinds[1].split()[1]]
    local = kinds[1].split()[3]
    remote = kinds[1].split()[5]
    tries = [(f"into tunnel {n}, {size} bytes", ether(ip4(f"10.{n}.0.1", flags="DF") / udp(size - 28))) for n in (1, 2) for size in (1200, 1300, 1400)]
    Case(
        f"tunnel/reports-{name}",
        f"MTUs of paths reported of one of two tunnels: {', '.join(kinds)}.",
        BASE
        + ["ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:09 dev p0 nud permanent"]
        + [
            line
            for n, kind in enumerate(kinds, 1)
            for line in [f"ip link add tun{n} {kind}", *([] if " gre " in f" {kind} " else [f"ip link set tun{n} addrgenmode none"]), f"ip link set tun{n} up", f"ip route add 10.{n}.0.0/16 dev tun{n}"]
        ],
        [(f"{label} at first", frame) for label, frame in tries]
        + [("of the second's path, 1350", "p1", reported(second, 1350, remote, local))]
        + [(f"{label} after that", frame) for label, frame in tries]
        + [("of the first's path, 1280", "p1", reported(first, 1280))]
        + [(f"{label} in the end", frame) for label, frame in tries],
        remembers=True,
        links=False,
    )
for name, kind in {
    "sit-fou": "type sit local 198.51.100.1 remote 198.51.100.2 encap fou encap-sport 7777 encap-dport 5555",
    "gre-gue": "type gre local 198.51.100.1 remote 198.51.100.2 encap gue encap-sport 7777 encap-dport 5555",
    "gre": "type gre local 198.51.100.1 remote 198.51.100.2",
    "ip6tnl-fou": "type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2 encap fou encap-sport 7777 encap-dport 5555",
    "ip6gre": "type ip6gre local 2001:db8:2::1 remote 2001:db8:2::2",
}.items():
    Case(
        f"tunnel/counts-behind-b6-{name}",
        f"What a tunnel, {name}, and a SID count of packets that End.B6.Encaps or a policy has led there.",
        BASE
        + [
            "ip link set p1 mtu 1400",
            f"ip link add tun1 {kind}",
            *(["ip link set tun1 addrgenmode none"] if not name.startswith("gre") else []),
            "ip link set tun1 up",
            "ip -6 route add fc00:f::/32 dev tun1",
            f"ip -6 route add {SID}/128 encap seg6local action End.B6.Encaps srh segs fc00:f::1,fc00:b::1 count dev p0",
            "ip -6 route add fc00:a::2/128 encap seg6local action End count dev p0",
            "ip -6 route add 2001:db8:a0::/48 encap seg6 mode encap segs fc00:f::1 dev p0",
        ],
        [
            (f"{what}, {size} bytes", ether(packet))
            for size in (64, 1000)
            for what, packet in [
                ("End.B6.Encaps", routed(ip6(SID), [SID, NEXT], 1, udp(size - 48))),
                ("End", routed(ip6("fc00:a::2"), ["fc00:a::2", "fc00:f::1"], 1, udp(size - 48))),
                ("a policy", ip6("2001:db8:a0::1") / udp(size - 48)),
            ]
        ],
    )
for name, kind in INTO.items():
    Case(
        f"tunnel/blackhole-{name}",
        f"The outer packets of a tunnel, {name}, meet a blackhole: who hears of it.",
        BASE
        + [
            "ip route add blackhole 198.18.0.0/16",
            "ip -6 route add blackhole 2001:db8:98::/48",
            "ip link add tun1 " + kind.replace("198.51.100.2", "198.18.0.1").replace("2001:db8:2::2", "2001:db8:98::1"),
            *(["ip link set tun1 addrgenmode none"] if name != "gre" else []),
            "ip link set tun1 up",
            "ip route add 10.7.0.0/16 dev tun1",
            "ip -6 route add 2001:db8:7::/48 dev tun1",
        ],
        [("IPv4", ether(ip4("10.7.0.1") / udp())), ("IPv6", ether(ip6("2001:db8:7::1") / udp())), ("IPv4, DF, long", ether(ip4("10.7.0.1", flags="DF") / udp(1480 - 28)))],
    )

# Rules that what is inside would match, and the outer packet does not: the errors of both.
for name, (kind, outer) in {
    "ipip": ("type ipip local 198.51.100.1 remote 198.51.100.2", lambda inner: IP(src="198.51.100.1", dst="198.51.100.2", id=9) / inner),
    "gre": ("type gre local 198.51.100.1 remote 198.51.100.2", lambda inner: IP(src="198.51.100.1", dst="198.51.100.2", id=9, proto=47) / Raw(b"\0\0\x08\0" + bytes(inner))),
    "ip6tnl": ("type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2", lambda inner: IPv6(src="2001:db8:2::1", dst="2001:db8:2::2") / inner),
    "ip6gre": ("type ip6gre local 2001:db8:2::1 remote 2001:db8:2::2", lambda inner: IPv6(src="2001:db8:2::1", dst="2001:db8:2::2", nh=47) / Raw(b"\0\0\x08\0" + bytes(inner))),
}.items():
    six = name.startswith("ip6")
    error = IPv6(src="2001:db8:2::9", dst="2001:db8:2::1") / ICMPv6DestUnreach(code=3) if six else IP(src="198.51.100.3", dst="198.51.100.1", id=7) / ICMP(type=3, code=1)
    Case(
        f"tunnel/reports-rule-{name}",
        f"What did not arrive at the other end of a tunnel, {name}, is told behind rules by the TOS, or the source, that the packets inside have.",
        BASE
        + [
            f"ip link add tun1 {kind}",
            *([] if name == "gre" else ["ip link set tun1 addrgenmode none"]),
            "ip link set tun1 up",
            "ip route add 10.7.0.0/16 dev tun1",
            "ip -6 rule add iif lo tos 0xb8 blackhole" if six else f"ip rule add iif lo from {SOURCE4} blackhole",
        ],
        [
            one
            for tos in (0, 0xB8)
            for one in [("did not arrive", "p1", FROM_ROUTER / error / Raw(bytes(outer(ip4("10.7.0.1") / udp(100))))), (f"TOS {tos}", ether(IP(src=SOURCE4, dst="10.7.0.1", tos=tos, id=7) / udp()))]
        ],
        remembers=True,
        links=False,
    )
# The errors about what a filter has sent into a tunnel, which meet that filter on their way or not.
Case(
    "qos/redirected-reported",
    "What did not arrive at the other end of a tunnel that a filter sends packets into is told through no filter that sends it there.",
    BASE
    + [
        "ip link add tun1 type gre local 198.51.100.1 remote 198.51.100.2",
        "ip link set tun1 up",
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 egress protocol ipv6 matchall action mirred egress redirect dev tun1",
    ],
    [
        one
        for source in ("2001:db8:5::5", "2001:db8:6::6")
        for one in [
            ("did not arrive", "p1", FROM_ROUTER / IP(src="198.51.100.3", dst="198.51.100.1", id=7) / ICMP(type=3, code=1) / IP(src="198.51.100.1", dst="198.51.100.2", id=9, proto=47) / Raw(b"\0\0\x08\0" + bytes(ip4("10.7.0.1") / udp(100)))),
            (f"from {source}", ether(ip6("2001:db8:5::9", src=source) / udp())),
        ]
    ],
    remembers=True,
    links=False,
)

Case(
    "errors/reported-outside",
    "The length of an error that leaves a VRF by the way from outside it: what is reported of that way counts.",
    VRF,
    [
        (f"{what}, {far}", port, frame)
        for far in (SOURCE4, TARGET4)
        for what, port, frame in [
            ("500 bytes on the way", "p0", ether(ip4("192.0.2.1", "192.0.2.2") / ICMP(type=3, code=4, nexthopmtu=500) / IP(src="192.0.2.1", dst=far, proto=47, ttl=60, len=1000) / Raw(bytes.fromhex("200008000000004d")))),
            ("to p1", "p1", Ether(dst=P1, src=N1) / ip4("198.51.100.1", far) / udp(1300)),
            ("to p0", "p0", ether(ip4("192.0.2.1", far) / udp(1300))),
        ]
    ],
    remembers=True,
)
