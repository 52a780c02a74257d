"""Into and out of `bareudp`: UDP with nothing between it and the packet inside. RFC 7510 has MPLS so; metadata of routes
(`encap ip`, `encap ip6`) say where packets go."""

from .fou import over_udp
from .frames import *
from .headend import wrapped
from .tunnel import (
    ECN,
    EXPIRED,
    FOUR,
    IN4,
    IN6,
    LABELLED,
    MPLS_ON,
    SHORT,
    SIX,
    heard,
    heard4,
    heard6,
    labelled,
    labels_of,
    put_in,
    sizes,
)
from .tunnel_out import in4, in6, listed

PORT, NARROW_PORT = 6635, 6636
BOTH = [("4", False), ("6", True)]


def device(options="", port=PORT, ethertype="ipv4 multiproto", base=BASE, before=(), after=()):
    lines = list(base) + list(before)
    lines.append(f"ip link add tun1 type bareudp dstport {port} ethertype {ethertype} {options}".rstrip())
    return lines + ["ip link set tun1 addrgenmode none", "ip link set tun1 up"] + list(after)


def ways(wide, options="", to=None, hops=64):
    """Routes by the device over IPv4, or over IPv6."""
    if wide:
        given = f"encap ip6 dst {to or '2001:db8:2::2'} " + (f"hoplimit {hops} " if hops else "")
    else:
        given = f"encap ip dst {to or '198.51.100.2'} " + (f"ttl {hops} " if hops else "")
    given = (given + options).strip()
    return [f"ip route add 10.7.0.0/16 {given} dev tun1", f"ip -6 route add 2001:db8:7::/48 {given} dev tun1"]


def of4(packets):
    return [(label, packet) for label, packet in packets if isinstance(packet, IP)]


def into(name, doc, packets, routes, remembers=False, links=True, **more):
    Case(f"tunnel/bareudp/{name}", doc, device(**more) + routes, put_in(packets), remembers=remembers, links=links)


def out_of(name, doc, packets, **more):
    Case(f"tunnel/bareudp/{name}", doc, device(**more), listed(packets), remembers=False)


for suffix, wide in BOTH:
    over = f"over IPv{suffix}"
    into(f"into{suffix}", f"IPv4 and IPv6 {over}", FOUR + SIX + EXPIRED, ways(wide))
    into(f"into{suffix}-csum", f"{over}, with a checksum", FOUR + SIX + [("an odd length", ip4(IN4) / udp(63))], ways(wide, "csum"))
    into(f"into{suffix}-id", f"{over}: an id, which is not seen outside", FOUR[:1], ways(wide, "id 7 key"))
    into(
        f"into{suffix}-src",
        f"{over}: an address of the router's as the source",
        FOUR[:1] + SIX[:1],
        ways(wide, "csum src " + ("2001:db8:1::1" if wide else "192.0.2.1")),
    )
    into(
        f"into{suffix}-foreign",
        f"{over}: an address that is not the router's as the source",
        FOUR[:1] + SIX[:1],
        ways(wide, "src " + ("2001:db8:77::1" if wide else "198.51.100.77")),
    )
    into(f"into{suffix}-no-ttl", f"{over}: no TTL is that of nothing", FOUR[:1] + SIX[:1], ways(wide, hops=0))
    into(f"into{suffix}-ecn", f"{over}: ECN is that of the packet inside", ECN, ways(wide))
    into(f"into{suffix}-tos", f"{over}: TOS 0x29, whose last bits are those of ECN", ECN, ways(wide, f"{'tc' if wide else 'tos'} 0x29"))
    into(f"into{suffix}-sizes", f"{over}: packets around the MTU", of4(sizes(1500)), ways(wide))
    left = 1340 - (48 if wide else 28)
    narrow = dict(base=BASE + ["ip link set p1 mtu 1340"])
    into(
        f"into{suffix}-small",
        f"{over}: the underlay has a smaller MTU than the device",
        of4(sizes(left)) + [("IPv6 that just fits", ip6(IN6) / udp(left - 48))],
        ways(wide, "csum"),
        **narrow,
    )
    long6 = ip6(IN6) / udp(left - 47)
    Case(
        f"tunnel/bareudp/into{suffix}-too-long",
        f"{over}: IPv6 that is too long for the underlay",
        device(**narrow) + ways(wide),
        differs="it drops the first, or sends it in fragments, and tells its sender of the next",
        **io([("too long", ether(long6), [to_p0(too_big(hops(long6), left))])]),
        links=False,
    )
    # With the headers of a policy, 64 bytes, it is one byte too long.
    left = 1420 - (48 if wide else 28)
    longer6 = ip6("2001:db8:8::8") / udp(left - 111)
    Case(
        f"tunnel/bareudp/into{suffix}-too-long-policy",
        f"{over}: IPv6 that is too long for the underlay with what a policy puts before it",
        device(base=BASE + ["ip link set p1 mtu 1420"]) + ways(wide) + [f"ip -6 route add 2001:db8:8::/48 encap seg6 mode encap segs {IN6} dev p1"],
        differs="it drops it, or sends it in fragments, and tells itself",
        **io([("too long", ether(longer6), [to_p0(too_big(longer6, left - 64))])]),
        links=False,
    )
    into(
        f"into{suffix}-behind",
        f"{over}: the far end is behind a router",
        FOUR[:1] + SIX[:1],
        ways(wide, to=TARGET if wide else TARGET4),
    )
    into(
        f"into{suffix}-srcportmin",
        f"{over}: the source port is 60000 or more",
        [(f"flow {n}", ip4(IN4) / UDP(sport=1000 + n, dport=2222) / payload(20)) for n in range(8)],
        ways(wide, "csum"),
        port=NARROW_PORT,
        options="srcportmin 60000",
    )
    into(f"into{suffix}-down", f"{over}: the device is down", FOUR[:1] + SIX[:1], ways(wide) + ["ip link set tun1 down"])
    for ethertype in ["ipv4", "ipv6", "mpls_uc"]:
        into(f"into{suffix}-{ethertype}", f"{over}: of {ethertype} alone", FOUR[:1] + SIX[:1], ways(wide), ethertype=ethertype)
into(
    "no-metadata",
    "routes that do not say where packets go",
    FOUR[:1] + SIX[:1],
    ["ip route add 10.7.0.0/16 dev tun1", "ip -6 route add 2001:db8:7::/48 dev tun1"],
)
into("labels", "labels of routes say not where packets go", LABELLED[:2], labelled(), ethertype="mpls_uc multiproto")
into("other-family", "a route of IPv4 over IPv6, one of IPv6 over IPv4", FOUR[:1] + SIX[:1], ways(True)[:1] + ways(False)[1:])

LABELS_IN = MPLS_ON + [
    "sysctl -qw net.mpls.conf.tun1.input=1",
    "ip -f mpls route add 100 as 200 via inet 192.0.2.2 dev p0",
    "ip -f mpls route add 101 via inet 192.0.2.2 dev p0",
]


def labelled_out():
    return [
        ("a label that is swapped", labels_of([100], in4())),
        ("a label that is popped", labels_of([101], in4())),
        ("two labels", labels_of([101, 100], in4())),
        ("an unknown label", labels_of([777], in4())),
        ("no whole label", Raw(b"\0\6\5")),
        ("IPv4", in4()),
    ]


for suffix, wide in BOTH:
    make = lambda inner, wide=wide, dport=PORT, **more: over_udp(inner, dport=dport, wide=wide, **more)
    over = f"over IPv{suffix}"
    every = [
        ("IPv4", make(in4())),
        ("IPv6", make(in6())),
        ("no checksum", make(in4(), csum=False)),
        ("IPv6, no checksum", make(in6(), csum=False)),
        ("wrong checksum", make(in4(), bad=0x10)),
        ("odd length", make(in4(n=63))),
        ("another port", make(in4(), dport=PORT + 7)),
        ("UDP length too long", make(in4(), length=500)),
        ("UDP length too short", make(in4(), length=40)),
        ("a UDP header and nothing more", make(b"")),
        ("four bytes", make(b"\x45\0\0\x54")),
        ("four bytes of IPv6", make(b"\x60\0\0\0")),
        ("version 5", make(b"\x55" + bytes(in4())[1:])),
        ("TTL 1 inside", make(in4(ttl=1))),
        ("hop limit 1 inside", make(in6(hlim=1))),
        ("no route", make(in4(dst="198.18.0.1"))),
        ("for the router", make(IP(src=in4().src, dst="192.0.2.1", ttl=40) / ICMP(id=1, seq=1) / payload(8))),
    ]
    out_of(f"out{suffix}", f"out of it {over}", every)
    out_of(f"out{suffix}-ipv4", f"out of it {over}: IPv4 alone", every[:4] + every[9:13], ethertype="ipv4")
    out_of(f"out{suffix}-ipv6", f"out of it {over}: IPv6 alone", every[:4] + every[9:13], ethertype="ipv6")
    out_of(f"out{suffix}-other", f"out of it {over}: what the router has no use for", every[:4], ethertype="0x1234")
    out_of(
        f"out{suffix}-ecn",
        f"out of it {over}: ECN",
        [(f"TOS {t:#x} outside, {i:#x} inside", make(p(i), tos=t)) for t in range(4) for i in range(4) for p in (in4, in6)],
    )
    for multi in ("", " multiproto"):
        out_of(
            f"out{suffix}-mpls{multi.replace(' ', '-')}",
            f"out of it {over}: labelled packets",
            [(label, make(p)) for label, p in labelled_out()],
            ethertype="mpls_uc" + multi,
            after=LABELS_IN,
        )
    out_of(f"out{suffix}-mpls-mc", f"out of it {over}: multicast labels", [(l, make(p)) for l, p in labelled_out()[:2]], ethertype="mpls_mc", after=LABELS_IN)
    out_of(f"out{suffix}-mpls-off", f"out of it {over}: no labels come in there", [(l, make(p)) for l, p in labelled_out()[:1]], ethertype="mpls_uc", after=LABELS_IN[:1] + LABELS_IN[2:])
    out_of(
        f"out{suffix}-vrf",
        f"out of it {over}: it is in a VRF",
        [("IPv4", make(in4())), ("IPv6", make(in6())), ("no route there", make(in4(dst="203.0.113.9")))],
        before=["ip link add vrf100 type vrf table 100", "ip link set vrf100 up"],
        after=[
            "ip link set tun1 master vrf100",
            "ip route add 203.0.113.5/32 via 192.0.2.2 dev p0 table 100",
            "ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0 table 100",
        ],
    )
    out_of(f"out{suffix}-down", f"it is down {over}", every[:1], after=["ip link set tun1 down"])

# ------------------------------------------------------------------------------- what the underlay says

LONG = [("of 1,300 bytes", ether(ip4(IN4) / udp(1272))), ("of 100 bytes", ether(ip4(IN4) / udp(72)))]
for suffix, wide in BOTH:
    sent = over_udp(ip4(IN4) / udp(1272), dport=PORT, wide=wide, src="2001:db8:2::1" if wide else "198.51.100.1", dst="2001:db8:2::2" if wide else "198.51.100.2")
    if wide:
        quoted = bytes(sent)[:1000]
        errors = [("too big, 1,300", heard6(quoted, 2, 0, 1300)), ("no route", heard6(quoted, 1, 0)), ("port unreachable", heard6(quoted, 1, 4))]
    else:
        quoted = bytes(sent)[:128]
        errors = [("fragmentation needed, 1,300", heard4(quoted, 3, 4, 1300)), ("host unreachable", heard4(quoted, 3, 1)), ("port unreachable", heard4(quoted, 3, 3))]
    frames = LONG[:]
    for label, frame in errors:
        frames += [heard(label, frame)] + LONG
    Case(
        f"tunnel/bareudp/errors{suffix}",
        f"over IPv{suffix}: the MTU of the way is learned; nobody is told of the rest",
        device() + ways(wide),
        frames,
        remembers=True,
    )
    make = lambda inner, wide=wide: over_udp(inner, dport=PORT, wide=wide)
    Case(
        f"tunnel/bareudp/vrf{suffix}",
        f"over IPv{suffix}: datagrams of a VRF are not the device's",
        device(base=VRF) + ways(wide),
        listed([("IPv4 out of it", make(in4()))]),
    )

out_of(
    "out4-broadcast",
    "datagrams for all of a link come out; who has sent what is inside hears of it",
    [
        ("IPv4", over_udp(in4(), dport=PORT, dst="198.51.100.255")),
        ("IPv6", over_udp(in6(), dport=PORT, dst="198.51.100.255")),
        ("without a route", over_udp(in4(dst="203.0.114.1"), dport=PORT, dst="198.51.100.255")),
        ("for another link", over_udp(in4(), dport=PORT, dst="192.0.2.255")),
        ("for another port", over_udp(in4(), dport=PORT + 1, dst="198.51.100.255")),
        ("a wrong checksum", over_udp(in4(), dport=PORT, dst="198.51.100.255", bad=1)),
    ],
)
Case(
    "tunnel/fou/broadcast",
    "datagrams for all of a link stay in foo-over-UDP",
    list(BASE) + ["ip fou add port 5555 ipproto 4", "ip link add tun1 type ipip remote 198.51.100.2", "ip link set tun1 up"],
    listed([("IPv4", over_udp(in4(), dst="198.51.100.255"))]),
)

# ------------------------------------------------------------------------------------- traffic control

CLSACT = ["tc qdisc add dev tun1 clsact"]


def control(name, doc, lines, frames, show, **more):
    Case(f"tunnel/bareudp/{name}", doc, device(**more) + ways(False) + CLSACT + lines, frames, remembers=True, shows=(show,))


control(
    "tc-ingress",
    "flower sees the outer header of what comes out, its ports among it",
    [
        f"tc filter add dev tun1 ingress protocol ip prio 1 flower enc_src_ip 198.51.100.2 enc_dst_port {PORT} enc_ttl 9 action drop",
        f"tc filter add dev tun1 ingress protocol ip prio 2 flower enc_dst_ip 198.51.100.1 enc_dst_port {PORT} enc_key_id 0 action pass",
        "tc filter add dev tun1 ingress protocol ipv6 prio 3 flower enc_dst_port 1 action drop",
    ],
    listed(
        [
            ("TTL 9 outside", over_udp(in4(), dport=PORT, ttl=9)),
            ("TTL 64 outside", over_udp(in4(), dport=PORT)),
            ("IPv6", over_udp(in6(), dport=PORT)),
        ]
    ),
    "tc -s filter show dev tun1 ingress",
)
control(
    "tc-egress",
    "flower sees what a route says of the outer header of what goes in",
    [
        "tc filter add dev tun1 egress protocol ip prio 1 flower enc_dst_ip 198.51.100.2 enc_ttl 64 action pass",
        "tc filter add dev tun1 egress protocol ipv6 prio 2 flower enc_dst_ip 198.51.100.2 enc_dst_port 0 action drop",
    ],
    put_in(FOUR[:2] + SIX[:1]),
    "tc -s filter show dev tun1 egress",
)
control(
    "tc-mirror-itself",
    "what goes in is mirrored into it: the copy has the route's outer header",
    ["tc filter add dev tun1 egress matchall action mirred egress mirror dev tun1"],
    put_in(FOUR[:2] + SIX[:1]),
    "tc -s filter show dev tun1 egress",
)
Case(
    "tunnel/ipip/tc-mirror-itself",
    "what goes into ipip by a gateway is mirrored into it: the copy goes to the gateway",
    BASE
    + ["ip link add tun1 type ipip local 198.51.100.1", "ip link set tun1 addrgenmode none", "ip link set tun1 up"]
    + ["ip route add 10.7.0.0/16 via 198.51.100.2 dev tun1 onlink"]
    + CLSACT
    + ["tc filter add dev tun1 egress matchall action mirred egress mirror dev tun1"],
    put_in([FOUR[0]]),
)
Case(
    "tunnel/bareudp/tc-id",
    "flower sees the id of a route, which no header has",
    device() + ways(False, "id 5") + CLSACT
    + [
        "tc filter add dev tun1 egress protocol ip prio 1 flower enc_key_id 5 action pass",
        "tc filter add dev tun1 egress protocol ipv6 prio 2 flower enc_key_id 5 action tunnel_key unset",
    ],
    put_in(FOUR[:2] + SIX[:1]),
    remembers=True,
    shows=("tc -s filter show dev tun1 egress",),
)
Case(
    "tunnel/bareudp/short",
    "what is shorter than an IP header does not go in",
    device()
    + [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol all prio 1 matchall action tunnel_key set src_ip 198.51.100.1 dst_ip 198.51.100.2 id 7 ttl 64 pipe action mirred egress redirect dev tun1",
    ],
    SHORT,
    remembers=True,
    links=True,
)
Case(
    "tunnel/bareudp/l2encap",
    "over IPv6, IPv4 comes out, and goes on in a frame of its own EtherType",
    device() + ["ip route replace 203.0.113.0/25 encap seg6 mode l2encap segs fc00:b::1 dev p0"],
    listed([("IPv4", over_udp(in4(), dport=PORT, wide=True))]),
    expect={0: [to_p1(wrapped("l2encap", ["fc00:b::1"], in4(), src="2001:db8:1::1", frame=Ether(dst=P1, src=N1) / in4()))]},
    differs="it sends the first 14 bytes of the packet as a header",
)
control(
    "tc-redirect",
    "what is redirected into it says not where it goes",
    [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol ip prio 1 matchall action mirred egress redirect dev tun1",
    ],
    put_in(FOUR[:2]),
    "tc -s filter show dev p0 ingress",
)
