"""Packets into IP tunnels: RFC 2003, RFC 2784, RFC 2890, RFC 4213, RFC 2473, RFC 6040, foo-over-UDP and GUE."""

from scapy.contrib.mpls import MPLS
from scapy.layers.inet6 import ICMPv6Unknown

from .frames import *

IN4, IN6 = "10.7.0.7", "2001:db8:7::7"
ENDS4 = "local 198.51.100.1 remote 198.51.100.2"
ENDS6 = "local 2001:db8:2::1 remote 2001:db8:2::2"
MAC, FAR_MAC = "02:00:00:00:00:77", "02:00:00:00:01:77"
ENCAP_AUTO = "encap fou encap-sport auto encap-dport 5555"
NEAR4, FAR4 = "198.51.100.1", "198.51.100.2"
MPLS_ON = ["sysctl -qw net.mpls.platform_labels=2000"]


def tunnel(kind, options="", ends=None, base=BASE, before=(), after=()):
    """A tunnel tun1 and routes through it."""
    wide = kind.startswith("ip6")
    ends = (ENDS6 if wide else ENDS4) if ends is None else ends
    ethernet = kind.endswith("tap") or kind in ("vxlan", "geneve") and "innerprotoinherit" not in options
    address = f"address {MAC} " if ethernet else ""
    lines = list(base) + list(before)
    lines += [
        f"ip link add tun1 {address}type {kind} {ends} {options}".rstrip(),
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
    ]
    if ethernet:
        lines += [
            "ip addr add 10.6.0.1/24 dev tun1",
            "ip addr add 2001:db8:9::1/64 dev tun1 nodad",
            f"ip neigh add 10.6.0.2 lladdr {FAR_MAC} dev tun1 nud permanent",
            f"ip neigh add 2001:db8:9::2 lladdr {FAR_MAC} dev tun1 nud permanent",
            "ip route add 10.7.0.0/16 via 10.6.0.2",
            "ip -6 route add 2001:db8:7::/48 via 2001:db8:9::2",
        ]
    else:
        lines += ["ip route add 10.7.0.0/16 dev tun1", "ip -6 route add 2001:db8:7::/48 dev tun1"]
    return lines + list(after)


def tos4(tos, dst=IN4, n=64, **more):
    return IP(src=SOURCE4, dst=dst, ttl=40, tos=tos, id=0x4321, **more) / udp(n)


def tos6(tos, dst=IN6, n=64, **more):
    return IPv6(src=SOURCE, dst=dst, hlim=40, tc=tos, fl=0x12345, **more) / udp(n)


FOUR = [
    ("IPv4", ip4(IN4) / udp()),
    ("IPv4, don't fragment", ip4(IN4, flags="DF") / udp()),
    ("TTL 2", ip4(IN4, ttl=2) / udp()),
    ("TTL 255", ip4(IN4, ttl=255) / udp()),
    ("options", ip4(IN4, options=[IPOption(b"\x94\x04\0\0")]) / udp()),
    ("a fragment", ip4(IN4, flags="MF", frag=8, proto=17) / payload(64)),
    ("no payload", ip4(IN4, proto=59)),
]
SIX = [
    ("IPv6", ip6(IN6) / udp()),
    ("hop limit 2", ip6(IN6, hlim=2) / udp()),
    ("hop limit 255", ip6(IN6, hlim=255) / udp()),
    ("IPv6 with a hop-by-hop header", ip6(IN6, nh=0) / opts(17, udp())),
    ("IPv6 fragment", ip6(IN6, nh=44) / fragment(17, payload(64))),
    ("IPv6 without a payload", ip6(IN6, nh=59)),
]
ECN = [(f"IPv4 of TOS {tos:#x}", tos4(tos)) for tos in (0, 1, 2, 3, 0xB9, 0xBB, 0xFF)] + [
    (f"IPv6 of traffic class {tos:#x}", tos6(tos)) for tos in (0, 1, 2, 3, 0xB9, 0xBB, 0xFF)
]
EXPIRED = [("TTL 1", ip4(IN4, ttl=1) / udp()), ("hop limit 1", ip6(IN6, hlim=1) / udp())]


def sizes(mtu, both=True):
    """Packets around the MTU of the tunnel: that just fit, that just do not, and that are far too long."""
    listed = []
    for n, what in [(0, "just fits"), (1, "just does not fit"), (mtu, "is twice as long")]:
        long = mtu + n if n < 2 else min(2 * mtu, 1500)
        listed += [
            (f"IPv4 that {what}", ip4(IN4) / udp(long - 28)),
            (f"IPv4 that {what}, don't fragment", ip4(IN4, flags="DF") / udp(long - 28)),
            (f"IPv6 that {what}", ip6(IN6) / udp(long - 48)),
        ]
    return listed


def put_in(listed):
    return [(label, ether(p)) for label, p in listed]


def into(name, doc, kind, options="", packets=None, remembers=False, links=True, **more):
    Case(
        f"tunnel/{name}",
        doc,
        tunnel(kind, options, **more),
        put_in(packets if packets is not None else FOUR + SIX),
        remembers=remembers,
        links=links,
    )


def labels_of(numbers, inner):
    return Raw(b"".join(bytes(MPLS(label=n, cos=5, s=i + 1 == len(numbers), ttl=40)) for i, n in enumerate(numbers)) + bytes(inner))


def labelled():
    return MPLS_ON + [
        "ip route add 10.8.0.0/16 encap mpls 100 dev tun1",
        "ip -6 route add 2001:db8:8::/48 encap mpls 100/200 dev tun1",
    ]


LABELLED = [
    ("IPv4 to labels", ip4("10.8.0.8") / udp()),
    ("IPv6 to two labels", ip6("2001:db8:8::8") / udp()),
    ("IPv4 without labels", ip4(IN4) / udp()),
    ("IPv6 without labels", ip6(IN6) / udp()),
]

MTU = {
    "ipip": 1480,
    "sit": 1480,
    "gre": 1476,
    "gretap": 1462,
    "ip6tnl": 1452,
    "ip6gre": 1448,
    "ip6gretap": 1434,
}

# -------------------------------------------------------------------------- devices over IPv4 and IPv6

# What actions can send into a tunnel, with the EtherType of IP and not its header.
SHORT = [
    (label, "p0", Ether(dst=P0, src=N0, type=kind) / Raw(data))
    for label, kind, data in [
        ("six bytes of IPv4", 0x0800, bytes.fromhex("45ffd2381234")),
        ("nineteen bytes of IPv4", 0x0800, bytes(ip4(IN4))[:19]),
        ("twenty", 0x0800, bytes(ip4(IN4))[:20]),
        ("thirty-nine bytes of IPv6", 0x86DD, bytes(ip6(IN6))[:39]),
        ("forty", 0x86DD, bytes(ip6(IN6))[:40]),
    ]
]

for kind, mtu in MTU.items():
    wide = kind.startswith("ip6")
    mode = "mode any" if kind == "ip6tnl" else ""
    ttl = "hoplimit" if wide else "ttl"
    tos = "tclass" if wide else "tos"
    into(f"{kind}/plain", f"into {kind} as it is made by default", kind, mode)
    into(f"{kind}/ecn", f"{kind}: ECN as in RFC 6040, TOS not inherited", kind, mode, ECN)
    into(f"{kind}/tos-inherit", f"{kind}: TOS inherited", kind, f"{mode} {tos} inherit".strip(), ECN)
    into(f"{kind}/tos-fixed", f"{kind}: a TOS of its own", kind, f"{mode} {tos} 0x28".strip(), ECN)
    into(f"{kind}/ttl-fixed", f"{kind}: a TTL of its own", kind, f"{mode} {ttl} 225".strip())
    into(f"{kind}/expired", f"{kind}: TTL 1", kind, mode, EXPIRED)
    into(f"{kind}/sizes", f"{kind}: packets about the size of the MTU", kind, mode, sizes(mtu))
    into(
        f"{kind}/small-underlay",
        f"{kind}: the underlay's MTU has become smaller than the tunnel's",
        kind,
        mode,
        sizes(mtu - 160),
        after=["ip link set p1 mtu 1340"],
        remembers=True,
        links=False,
    )
    into(
        f"{kind}/own-mtu",
        f"{kind}: a larger MTU than the underlay's allows",
        kind,
        mode,
        sizes(mtu),
        after=["ip link set tun1 mtu 1500"],
        remembers=True,
        links=False,
    )
    into(
        f"{kind}/dev",
        f"{kind}: bound to a device of the underlay",
        kind,
        f"{mode} dev p1".strip(),
        FOUR[:1] + SIX[:1],
    )
    if wide:
        into(
            f"{kind}/dev-elsewhere",
            f"{kind}: bound to a device by which no route leads to the far end",
            kind,
            f"{mode} dev p0".strip(),
            FOUR[:1] + SIX[:1],
        )
        Case(
            f"tunnel/{kind}/dev-vrf",
            f"{kind}: bound to a device in a VRF",
            tunnel(kind, f"{mode} dev p1".strip(), base=VRF),
            [(label, "p0", ether(p)) for label, p in FOUR[:1] + SIX[:1]],
        )
    if kind in ("gre", "ip6gre"):
        Case(
            f"tunnel/{kind}/no-remote",
            f"{kind}: no remote address, and a local one of a VRF's",
            tunnel(kind, base=VRF, ends="local 2001:db8:2::1" if wide else "local 198.51.100.1"),
            [(label, "p0", ether(p)) for label, p in FOUR[:1] + SIX[:1]],
        )
    Case(
        f"tunnel/{kind}/no-way",
        f"{kind}: no route leads to the far end",
        tunnel(
            kind,
            mode,
            ends="local 2001:db8:2::1 remote 2001:db8:99::1" if wide else "local 198.51.100.1 remote 198.18.0.1",
        ),
        differs="it tells the sender that the address is unreachable, or nothing",
        **io(
            [
                ("IPv4", ether(ip4(IN4) / udp()), [to_p0(icmp4(hops(ip4(IN4) / udp()), 3, 0))]),
                *(
                    []
                    if kind == "ipip"
                    else [("IPv6", ether(ip6(IN6) / udp()), [to_p0(unreachable6(hops(ip6(IN6) / udp()), 0))])]
                ),
            ]
        ),
        links=False,
    )
    Case(
        f"tunnel/{kind}/no-neighbour",
        f"{kind}: nobody answers at the far end's address",
        tunnel(
            kind,
            mode,
            ends="local 2001:db8:2::1 remote 2001:db8:2::99" if wide else "local 198.51.100.1 remote 198.51.100.99",
        ),
        differs="it tells itself",
        **io(
            [
                ("IPv4", ether(ip4(IN4) / udp()), [to_p0(icmp4(hops(ip4(IN4) / udp()), 3, 1))]),
                *(
                    []
                    if kind == "ipip"
                    else [("IPv6", ether(ip6(IN6) / udp()), [to_p0(unreachable6(hops(ip6(IN6) / udp()), 3))])]
                ),
            ]
        ),
    )
    into(
        f"{kind}/down",
        f"{kind}: the device is down",
        kind,
        mode,
        FOUR[:1] + SIX[:1],
        after=["ip link set tun1 down"],
    )
    into(
        f"{kind}/behind",
        f"{kind}: the far end is behind a router",
        kind,
        mode,
        FOUR[:2] + SIX[:2],
        ends=f"local 2001:db8:2::1 remote {TARGET}" if wide else f"local 198.51.100.1 remote {TARGET4}",
    )
    into(
        f"{kind}/no-local",
        f"{kind}: no local address: nothing is sent" if wide else f"{kind}: the local address is that of the way out",
        kind,
        mode,
        FOUR[:2] + SIX[:2],
        ends="remote 2001:db8:2::2" if wide else "remote 198.51.100.2",
    )
    if not wide:
        into(
            f"{kind}/nopmtudisc",
            f"{kind}: may be cut on the way",
            kind,
            "nopmtudisc",
            FOUR[:2] + SIX[:1] + sizes(mtu),
        )
        into(
            f"{kind}/nopmtudisc-small",
            f"{kind}: is cut at the underlay's MTU",
            kind,
            "nopmtudisc",
            sizes(mtu - 160),
            after=["ip link set p1 mtu 1340"],
            remembers=True,
        )
        if kind in ("ipip", "sit"):
            into(
                f"{kind}/to-the-neighbour",
                f"{kind}: no far end: that of the gateway",
                kind,
                "nopmtudisc",
                FOUR[:2],
                ends="local 198.51.100.1",
                after=["ip route replace 10.7.0.0/16 via 198.51.100.2 dev tun1 onlink"],
            )
    if kind == "gretap":
        into(
            f"{kind}/to-the-neighbour",
            f"{kind}: no far end: that of the gateway, in IPv6 an IPv4-compatible one",
            kind,
            "nopmtudisc",
            FOUR[:2] + SIX[:1],
            ends="local 198.51.100.1",
            after=[
                f"ip neigh add 198.51.100.2 lladdr {FAR_MAC} dev tun1 nud permanent",
                f"ip neigh add ::198.51.100.2 lladdr {FAR_MAC} dev tun1 nud permanent",
                "ip route replace 10.7.0.0/16 via 198.51.100.2 dev tun1 onlink",
                "ip -6 route replace 2001:db8:7::/48 via ::198.51.100.2 dev tun1 onlink",
            ],
        )
    if kind in ("gretap", "ipip"):
        into(
            f"{kind}/to-the-neighbour-bound",
            f"{kind}: no far end, bound to p1: the gateway is on p1, to which no route by p1 leads",
            kind,
            "dev p1 nopmtudisc",
            FOUR[:2],
            ends="local 198.51.100.1",
            after=[
                "ip neigh add 10.6.0.9 lladdr 02:00:00:00:01:09 dev p1 nud permanent",
                *([f"ip neigh add 10.6.0.9 lladdr {FAR_MAC} dev tun1 nud permanent"] if kind == "gretap" else []),
                "ip route replace 10.7.0.0/16 via 10.6.0.9 dev tun1 onlink",
            ],
        )
    redirect = "tc filter add dev p0 ingress protocol all prio 1 matchall action mirred egress redirect dev tun1"
    Case(
        f"tunnel/{kind}/short",
        f"{kind}: what is shorter than an IP header does not go in",
        tunnel(kind, after=["tc qdisc add dev p0 clsact", redirect]),
        SHORT,
        remembers=True,
        links=True,
    )
    if "gre" in kind:
        for option, doc in [
            ("key 7", "a key"),
            ("okey 7 ikey 8", "keys for each way"),
            ("csum", "checksums"),
            ("key 7 csum", "a key and checksums"),
        ]:
            into(f"{kind}/{option.replace(' ', '-')}", f"{kind}: {doc}", kind, option, FOUR + SIX[:3])
        if not kind.endswith("tap"):  # whose numbers begin with what Linux says on its own account
            into(f"{kind}/seq", f"{kind}: sequence numbers", kind, "seq", FOUR + SIX[:3], remembers=True)
            everything = "key 7 csum seq"
            into(f"{kind}/all", f"{kind}: {everything}", kind, everything, FOUR + SIX[:3], remembers=True)
    if kind in ("gre", "gretap"):
        into(
            f"{kind}/ignore-df",
            f"{kind}: the DF flag of what is inside is not looked at",
            kind,
            "nopmtudisc ignore-df",
            FOUR + sizes(mtu),
        )

for kind, modes in [
    ("ipip", ["ipip", "mplsip", "any"]),
    ("sit", ["ip6ip", "ipip", "mplsip", "any"]),
    ("ip6tnl", ["ip6ip6", "ipip6", "any"]),
]:
    for mode in modes:
        into(
            f"{kind}/mode-{mode}",
            f"{kind} of mode {mode}: what it takes",
            kind,
            f"mode {mode}",
            LABELLED if kind != "ip6tnl" else LABELLED[2:],
            after=labelled() if kind != "ip6tnl" else (),
        )
into("gre/mpls", "labelled packets in GRE", "gre", packets=LABELLED, after=labelled())
into("ip6gre/mpls", "labelled packets in GRE over IPv6", "ip6gre", packets=LABELLED, after=labelled())
for kind in ("gretap", "ip6gretap"):
    # The front of the last two labels looks like that of an IPv4 and an IPv6 packet.
    labels = ["100", "200/300", "282624", "393216"]
    mark = "tclass" if kind.startswith("ip6") else "tos"
    for name, options in [("mpls", ""), ("mpls-tos-inherit", f"{mark} inherit"), ("mpls-fou", ENCAP_AUTO)]:
        Case(
            f"tunnel/{kind}/{name}",
            f"labelled packets in frames in {kind}: pushed, swapped, and without their last label",
            tunnel(
                kind,
                options,
                after=MPLS_ON
                + ["sysctl -qw net.mpls.conf.p0.input=1"]
                + [f"ip route add 10.8.{i}.0/24 encap mpls {label} via 10.6.0.2 dev tun1" for i, label in enumerate(labels)]
                + [
                    "ip -6 route add 2001:db8:8::/48 encap mpls 100/200 via 2001:db8:9::2 dev tun1",
                    "ip -f mpls route add 100 as 282624 via inet 10.6.0.2 dev tun1",
                    "ip -f mpls route add 101 via inet 10.6.0.2 dev tun1",
                ],
            ),
            put_in([(f"IPv4 to {label}", tos4(0x29, f"10.8.{i}.8")) for i, label in enumerate(labels)])
            + put_in([("IPv6 to two labels", tos6(0x29, "2001:db8:8::8")), ("IPv4 without labels", tos4(0x29))])
            + [
                (label, Ether(dst=P0, src=N0, type=0x8847) / labels_of(stack, ip4("10.8.0.8") / udp()))
                for label, stack in [("a label", [100]), ("two labels", [100, 300]), ("the last label", [101])]
            ],
            links=True,
        )
for option in ["encaplimit none", "encaplimit 0", "encaplimit 7", "flowlabel 0x54321", "flowlabel inherit", "hoplimit 0"]:
    for kind in ["ip6tnl", "ip6gre"]:
        into(
            f"{kind}/{option.replace(' ', '-')}",
            f"{kind}: {option}",
            kind,
            f"{'mode any ' if kind == 'ip6tnl' else ''}{option}",
            FOUR[:3] + SIX[:3],
        )
into(
    "sit/6rd",
    "6rd: the far end is in the destination (RFC 5969)",
    "sit",
    packets=[
        ("6rd", ip6("2001:db8:c633:6402::9") / udp()),
        ("6to4", ip6("2002:c633:6402::9") / udp()),
    ],
    ends="local 198.51.100.1",
    after=[
        "ip tunnel 6rd dev tun1 6rd-prefix 2001:db8::/32",
        "ip -6 route add 2001:db8:c633::/48 dev tun1",
        "ip -6 route add 2002::/16 dev tun1",
    ],
)
into(
    "sit/6to4",
    "6to4 and gateways that hold the far end",
    "sit",
    packets=[
        ("6to4", ip6("2002:c633:6402::9") / udp()),
        ("by a compatible gateway", ip6("2001:db8:a::9") / udp()),
        ("on the link, to nobody", ip6(IN6) / udp()),
    ],
    ends="local 198.51.100.1",
    after=["ip -6 route add 2002::/16 dev tun1", "ip -6 route add 2001:db8:a::/48 via ::198.51.100.2 dev tun1"],
)

# ------------------------------------------------------------------------------------- FOU and GUE

FEW = FOUR[:3] + FOUR[5:] + SIX[:2] + [("an odd length", ip4(IN4) / udp(63)), ("IPv6, an odd length", ip6(IN6) / udp(63))]
ENCAPS = {
    "fou": "encap fou encap-sport 4444 encap-dport 5555",
    "fou-csum": "encap fou encap-sport 4444 encap-dport 5555 encap-csum",
    "fou-auto": ENCAP_AUTO,
    "fou-auto-csum": "encap fou encap-sport auto encap-dport 5555 encap-csum",
    "gue": "encap gue encap-sport 4444 encap-dport 5555",
    "gue-csum": "encap gue encap-sport 4444 encap-dport 5555 encap-csum",
    "gue-remcsum": "encap gue encap-sport 4444 encap-dport 5555 encap-csum encap-remcsum",
    "gue-remcsum-alone": "encap gue encap-sport auto encap-dport 5555 encap-remcsum",
}
for kind in MTU:
    for encap, options in ENCAPS.items():
        if kind.startswith("ip6"):
            options = options.replace("encap-csum", "encap-udp6-csum")
        mode = "mode any " if kind == "ip6tnl" else ""
        into(f"{kind}/{encap}", f"{kind} in {encap}", kind, mode + options, FEW)
        if kind in ("gre", "gretap", "ip6gre", "ip6gretap") and "remcsum" in encap:
            into(f"{kind}/{encap}-csum", f"{kind} with a checksum, which it leaves to the receiver, in {encap}", kind, f"csum key 5 {options}", FEW)
into(
    "ipip/document",
    "the tunnel of the document",
    "ipip",
    "ttl 225 encap fou encap-sport auto encap-dport 5555",
    FEW + ECN[:4],
    ends="remote 198.51.100.2 local 198.51.100.1",
)
for kind in ["ipip", "gre", "sit", "ip6tnl"]:
    for encap, extra in [("fou", 8), ("gue", 12)]:
        mode = "mode any " if kind == "ip6tnl" else ""
        into(
            f"{kind}/{encap}-sizes",
            f"{kind} in {encap}: packets about the size of the MTU",
            kind,
            mode + ENCAPS[encap],
            sizes(MTU[kind] - extra),
        )
        if kind != "ip6tnl":
            into(
                f"{kind}/{encap}-nopmtudisc",
                f"{kind} in {encap}: may be cut on the way",
                kind,
                "nopmtudisc " + ENCAPS[encap + "-csum"],
                sizes(MTU[kind] - extra - 160),
                after=["ip link set p1 mtu 1340"],
                remembers=True,
            )
into("gre/gue-all", "GRE with key, checksum and number in GUE", "gre", "key 7 csum seq " + ENCAPS["gue-csum"], FEW, remembers=True)
into("sit/gue-tos", "SIT in GUE, TOS and TTL inherited", "sit", "tos inherit ttl inherit " + ENCAPS["gue"], ECN)
Case(
    "tunnel/ipip/fou-no-local",
    "ipip in fou with a checksum, from the address of the way out",
    tunnel("ipip", ENCAPS["fou-csum"], ends="remote 198.51.100.2"),
    differs="its checksum leaves out the source, which it does not know yet",
    **io(
        [
            (
                label,
                ether(p),
                [to_p1(IP(src=NEAR4, dst=FAR4, id=0, flags="DF", ttl=39, proto=17) / UDP(sport=4444, dport=5555) / Raw(bytes(hops(p))))],
            )
            for label, p in FOUR[:2] + FOUR[4:5]
        ]
    ),
)
into("ipip/fou-mpls", "labelled packets in IP in UDP", "ipip", "mode mplsip " + ENCAPS["fou-csum"], LABELLED, after=labelled())

# ------------------------------------------------------- what the underlay says about outer packets


def heard4(outer, kind, code, mtu=0, src="198.51.100.2"):
    """An ICMP error from the underlay that quotes an outer packet."""
    return ("p1", Ether(dst=P1, src=N1) / IP(src=src, dst="198.51.100.1", ttl=64, id=7) / ICMP(type=kind, code=code, nexthopmtu=mtu) / Raw(bytes(outer)))


def outer4(proto, inner, **more):
    return IP(src="198.51.100.1", dst="198.51.100.2", ttl=64, id=9, proto=proto, flags="DF") / Raw(bytes(inner))


def heard(label, frame):
    return (label, *frame)


own = IP(src="198.51.100.2", dst="198.51.100.1", ttl=64, id=9, proto=47) / Raw(b"\0\0\x08\0") / ip4() / udp(1000)
Case(
    "tunnel/ipip/pmtu-own",
    "An MTU of the path to the other end is that of the router's own messages to it, too: how much of a packet is quoted.",
    tunnel("ipip"),
    [
        ("no such tunnel", "p1", Ether(dst=P1, src=N1) / own),
        heard("fragmentation needed, 560", heard4(bytes(outer4(4, ip4(IN4) / udp(1300)))[:128], 3, 4, 560)),
        ("no such tunnel, then", "p1", Ether(dst=P1, src=N1) / own),
        heard("fragmentation needed, 300", heard4(bytes(outer4(4, ip4(IN4) / udp(1300)))[:128], 3, 4, 300)),
        ("no such tunnel, at last", "p1", Ether(dst=P1, src=N1) / own),
    ],
    remembers=True,
    links=False,
)
for name, link in [("elsewhere", "p0"), ("there", "p1")]:
    Case(
        f"tunnel/ipip/pmtu-{name}",
        f"ipip of {link}: an MTU of the path is that of the way by that link, if there is one.",
        tunnel("ipip", f"dev {link}"),
        [
            heard("fragmentation needed, 560", heard4(bytes(outer4(4, ip4(IN4) / udp(1300)))[:128], 3, 4, 560)),
            ("no such tunnel", "p1", Ether(dst=P1, src=N1) / own),
        ],
        remembers=True,
        links=False,
    )
for kind in ("ipip", "gre", "gretap", "sit"):
    # It fits, or is too long for the way and not for the device.
    for name, options in [("lock", ""), ("lock-bound", "dev p1")]:
        into(
            f"{kind}/{name}",
            f"{kind}{' of p1' if options else ''}: the route to the other end has a locked MTU, by which what goes in may be cut.",
            kind,
            options,
            [
                (f"{version} of {n} bytes", ip4(IN4, flags=flags) / udp(n - 28) if version.startswith("IPv4") else ip6(IN6) / udp(n - 48))
                for n in (100, 1390)
                for version, flags in [("IPv4", 0), ("IPv4, don't fragment", "DF"), ("IPv6", 0)]
            ],
            after=["ip route add 198.51.100.2/32 dev p1 mtu lock 1400"],
            remembers=True,
            links=False,
        )
GRE_HEADS = {"ipip": (4, b""), "gre": (47, b"\0\0\x08\0"), "sit": (41, b"")}
for kind, (proto, head) in GRE_HEADS.items():
    inner = ip6(IN6) / udp(1300) if kind == "sit" else ip4(IN4, flags="DF") / udp(1300)
    outer = outer4(proto, Raw(head) / inner)
    before = [("p0", ether(inner)), ("p0", ether(ip6(IN6) / udp(1300)))]
    Case(
        f"tunnel/{kind}/pmtu",
        f"{kind}: an MTU of the path that is learned",
        tunnel(kind),
        [
            ("before", *before[0]),
            ("IPv6 before", *before[1]),
            heard("fragmentation needed, 1,300", heard4(bytes(outer)[:128], 3, 4, 1300)),
            ("after", *before[0]),
            ("after again", *before[0]),
            ("IPv6 after", *before[1]),
            ("IPv4 after, may be cut", "p0", ether(ip4(IN4) / udp(1300))),
            heard("fragmentation needed of another's packet", heard4(bytes(outer4(proto, Raw(head) / inner)).replace(b"\xc6\x33\x64\x02", b"\xc6\x33\x64\x09", 1)[:128], 3, 4, 1000)),
            ("IPv6 then", *before[1]),
        ],
        remembers=True,
        links=False,
    )
    Case(
        f"tunnel/{kind}/pmtu-locked",
        f"{kind}: an MTU of the path that is not believed: what is too long is cut, unless its sender does not want it to be",
        tunnel(kind, "mode any" if kind == "sit" else ""),
        [
            heard("fragmentation needed, 68", heard4(bytes(outer)[:128], 3, 4, 68)),
            *(
                (what, "p0", ether(packet))
                for what, packet in [
                    # Each elsewhere: Linux remembers for the way of the packet inside, too.
                    ("IPv4 that must not be cut", ip4("10.7.0.1", flags="DF") / udp(1300)),
                    ("IPv4 that may be cut", ip4("10.7.0.2") / udp(1300)),
                    ("short IPv4 that must not be cut", ip4("10.7.0.3", flags="DF") / udp(300)),
                    *([] if kind == "ipip" else [("IPv6", ip6("2001:db8:7::1") / udp(1300)), ("IPv6 of the least MTU", ip6("2001:db8:7::2") / udp(1200))]),
                ]
            ),
        ],
        remembers=True,
        links=False,
    )
    if kind == "gre":
        Case(
            "tunnel/gretap/pmtu-gre",
            "gretap: an MTU of the path that is told of a GRE packet of no tunnel",
            tunnel("gretap"),
            [
                ("before", *before[0]),
                heard("fragmentation needed, 1,200", heard4(bytes(outer)[:128], 3, 4, 1200)),
                ("after", *before[0]),
                ("IPv4, may be cut", "p0", ether(ip4(IN4) / udp(1300))),
                heard("fragmentation needed, 68", heard4(bytes(outer)[:128], 3, 4, 68)),
                ("one that fits", "p0", ether(ip4(IN4) / udp(200))),
            ],
            remembers=True,
            links=False,
        )
    small = ip6(IN6) / udp() if kind == "sit" else ip4(IN4) / udp()
    # Of an IPv6 packet too little for its sender to be told.
    outer = bytes(outer4(proto, Raw(head) / small))[: 20 + 47 if kind == "sit" else None]
    Case(
        f"tunnel/{kind}/errors",
        f"{kind}: errors of the underlay, of which the sender of the next packet hears",
        tunnel(kind),
        [
            heard("TTL exceeded", heard4(outer, 11, 0)),
            heard("host unreachable", heard4(outer, 3, 1)),
            heard("protocol unreachable", heard4(outer, 3, 2)),
            heard("of too few bytes", heard4(outer[:28], 11, 0)),
            ("the next", "p0", ether(small)),
            ("the third", "p0", ether(small)),
            ("the last", "p0", ether(small)),
        ],
        remembers=True,
    )


def heard6(outer, kind, code, argument=0):
    """The same of the underlay's IPv6."""
    head = IPv6(src="2001:db8:2::2", dst="2001:db8:2::1", hlim=64) / ICMPv6Unknown(type=kind, code=code, msgbody=argument.to_bytes(4, "big") + bytes(outer)[:1232])
    return ("p1", Ether(dst=P1, src=N1) / head)


def outer6(proto, inner, limit=None):
    head = IPv6(src="2001:db8:2::1", dst="2001:db8:2::2", hlim=64, nh=proto)
    if limit is None:
        return head / Raw(bytes(inner))
    head.nh = 60
    return head / Raw(bytes([proto, 0, 4, 1, limit, 1, 1, 0]) + bytes(inner))


FOR_SIX = ip6(IN6) / udp()


def heard_of(listed):
    """As `io`, of frames that come in by p1."""
    return dict(
        frames=[(label, *frame) for label, frame, _ in listed],
        expect={i: out for i, (_, _, out) in enumerate(listed)},
    )


def time_exceeded6(quoted):
    return IPv6(src="2001:db8:1::1", dst=SOURCE, hlim=64) / ICMPv6TimeExceeded(code=0) / Raw(bytes(quoted)[:1232])


for kind, outer in [
    ("sit", outer4(41, FOR_SIX)),
    ("gre", outer4(47, Raw(b"\0\0\x86\xdd") / FOR_SIX)),
]:
    whole = len(bytes(outer)) - len(bytes(FOR_SIX))
    told = to_p0(unreachable6(FOR_SIX, 3))
    Case(
        f"tunnel/{kind}/errors-ipv6",
        f"{kind}: an error of the underlay is told on to the sender of an IPv6 packet (RFC 4213 section 3.4)",
        tunnel(kind),
        differs="it tells nobody: the source that it gives the message is an IPv4-mapped one, for which there is no route",
        **heard_of(
            [
                ("host unreachable", heard4(outer, 3, 1), [told]),
                ("TTL exceeded", heard4(outer, 11, 0), [to_p0(time_exceeded6(FOR_SIX))]),
                ("fragmentation needed", heard4(outer, 3, 4, 1400), []),
                ("port unreachable", heard4(outer, 3, 3), [told]),
                ("reassembly time exceeded", heard4(outer, 11, 1), []),
                ("source route failed", heard4(outer, 3, 5), []),
                ("just enough bytes", heard4(bytes(outer)[: whole + 48], 3, 1), [to_p0(unreachable6(bytes(FOR_SIX)[:48], 3))]),
                ("from a router on the way", heard4(outer, 3, 1, src="203.0.113.200"), [told]),
                ("of a packet of nobody's", heard4(bytes(outer).replace(b"\xc6\x33\x64\x02", b"\xc6\x33\x64\x09", 1), 3, 1), []),
            ]
        ),
        links=False,
    )
for limit in (4, None):
    options = "mode any" if limit else "mode any encaplimit none"
    four, six = ip4(IN4, flags="DF") / udp(), FOR_SIX
    long4, long6 = ip4(IN4, flags="DF") / udp(1372), ip6(IN6) / udp(1352)
    icmp4_inside = ip4(IN4) / ICMP(type=3, code=1) / Raw(bytes(four)[:28])
    Case(
        f"tunnel/ip6tnl/errors{'' if limit else '-no-limit'}",
        "ip6tnl: an error of the underlay is told on to the sender (RFC 2473 section 8)",
        tunnel("ip6tnl", options),
        [
            case
            for name, proto, inner, long in [("IPv4", 4, four, long4), ("IPv6", 41, six, long6)]
            for case in [
                heard(f"{name}: no route", heard6(outer6(proto, inner, limit), 1, 0)),
                heard(f"{name}: address unreachable", heard6(outer6(proto, inner, limit), 1, 3)),
                heard(f"{name}: port unreachable", heard6(outer6(proto, inner, limit), 1, 4)),
                heard(f"{name}: hop limit exceeded", heard6(outer6(proto, inner, limit), 3, 0)),
                heard(f"{name}: reassembly time exceeded", heard6(outer6(proto, inner, limit), 3, 1)),
                heard(f"{name}: the encapsulation limit", heard6(outer6(proto, inner, 0), 4, 0, 44)),
                heard(f"{name}: another header field", heard6(outer6(proto, inner, limit), 4, 0, 6)),
                heard(f"{name}: too big, cut in the message", heard6(outer6(proto, long, limit), 2, 0, 1400)),
                heard(f"{name}: too big, though it is not", heard6(outer6(proto, inner, limit), 2, 0, 1400)),
                heard(f"{name}: too few bytes", heard6(bytes(outer6(proto, inner, limit))[: 40 + (8 if limit else 0) + 19], 1, 0)),
                heard(f"{name}: a packet of nobody's", heard6(bytes(outer6(proto, inner, limit)).replace(b"\0\2\0\0\0\0\0\0\0\2", b"\0\2\0\0\0\0\0\0\0\7", 1), 1, 0)),
            ]
        ]
        + [
            heard("an ICMP error inside", heard6(outer6(4, icmp4_inside, limit), 1, 0)),
            heard("IPv4 to elsewhere inside", heard6(outer6(4, ip4("192.0.2.9") / udp(), limit), 1, 0)),
            heard("IPv4 from nowhere inside", heard6(outer6(4, IP(src="198.18.0.9", dst=IN4, ttl=40) / udp(), limit), 1, 0)),
            ("the next one, IPv4", "p0", ether(four)),
            ("the next one, IPv6", "p0", ether(six)),
        ],
        links=False,
    )
told = {"no route": (1, 0), "hop limit exceeded": (3, 0), "too big": (2, 0, 1300)}
Case(
    "tunnel/ip6tnl/errors-in-group-frames",
    "ip6tnl: of an error of the underlay in a frame for a group the sender hears if it is one of IPv6 that tells of an MTU",
    tunnel("ip6tnl", "mode any"),
    [
        (f"{name}: {what}, to {dst}", "p1", Ether(dst=dst, src=N1) / heard6(outer6(proto, inner, 4), *kind)[1].payload)
        for name, proto, inner in [("IPv4", 4, ip4(IN4, flags="DF") / udp(1372)), ("IPv6", 41, ip6(IN6) / udp(1352))]
        for what, kind in told.items()
        for dst in ("ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", P1)
    ],
    links=False,
)
for kind, proto, before in [("sit", 41, b""), ("gre", 47, b"\0\0\x86\xdd")]:
    quoted = bytes(outer4(proto, Raw(before) / FOR_SIX))
    Case(
        f"tunnel/{kind}/errors-in-group-frames",
        f"{kind}: of an error of the underlay in a frame for a group the sender does not hear",
        tunnel(kind),
        [
            (f"{what}, to {dst}", "p1", Ether(dst=dst, src=N1) / heard4(quoted, *error)[1].payload)
            for what, error in [("host unreachable", (3, 1)), ("TTL exceeded", (11, 0)), ("too big", (3, 4, 1300))]
            for dst in ("ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01")
        ],
        links=False,
    )
with_options = [
    (name, outer6(4, ip4(IN4, options=[IPOption(option)]) / udp(), 4))
    for name, option in [
        ("a timestamp", bytes.fromhex("4408050000000000")),
        ("a record of the route", bytes.fromhex("07070400000000") + b"\0"),
        ("router alert", bytes.fromhex("94040000")),
        ("a loose source route", bytes.fromhex("8307080a00010200")),
    ]
]
Case(
    "tunnel/ip6tnl/errors-options",
    "ip6tnl: what is told on of an IPv4 packet with options has none, and quotes it as it came",
    tunnel("ip6tnl", "mode any"),
    [heard(f"{name}: {what}", heard6(outer, *kind)) for name, outer in with_options for what, kind in [("no route", (1, 0)), ("hop limit exceeded", (3, 0))]],
    links=False,
)
outer = outer6(47, Raw(b"\0\0\x86\xdd") / FOR_SIX, 4)
Case(
    "tunnel/ip6gre/errors",
    "ip6gre: an error of the underlay is told to the sender of the next packet",
    tunnel("ip6gre"),
    [
        ("hop limit exceeded", *heard6(outer, 3, 0)),
        ("after it", "p0", ether(FOR_SIX)),
        ("no route", *heard6(outer, 1, 0)),
        ("after that", "p0", ether(FOR_SIX)),
        ("then", "p0", ether(FOR_SIX)),
    ],
    remembers=True,
    links=False,
)
Case(
    "tunnel/ip6gre/errors-small-way",
    "ip6gre: an error of the underlay is told to the sender of the next packet, also where the way is smaller than IPv6 allows",
    tunnel("ip6gre"),
    [
        ("hop limit exceeded", *heard6(outer, 3, 0)),
        ("a way of 1280 bytes", *heard6(outer, 2, 0, 1280)),
        ("one too long with its headers", "p0", ether(ip6(IN6) / udp(1192))),
        ("hop limit exceeded again", *heard6(outer, 3, 0)),
        ("one longer than the least MTU", "p0", ether(ip6(IN6) / udp(1240))),
        ("one that fits", "p0", ether(FOR_SIX)),
    ],
    remembers=True,
    links=False,
)


def beside(kind, first, second):
    """Two tunnels between the same ends, which these options tell apart."""
    lines = tunnel(kind, first)
    ends = ENDS6 if kind.startswith("ip6") else ENDS4
    lines += [f"ip link add tun2 type {kind} {ends} {second}", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]
    return lines + ["ip route add 10.8.0.0/16 dev tun2", "ip -6 route add 2001:db8:8::/48 dev tun2"]


keyed = Raw(b"\x20\0\x08\0\0\0\0\5") / ip4(IN4) / udp()
plain = Raw(b"\0\0\x08\0") / ip4("10.8.0.8") / udp()
for kind, error in [("gre", lambda gre: heard4(outer4(47, gre), 3, 1)), ("ip6gre", lambda gre: heard6(outer6(47, gre, 4), 1, 0))]:
    Case(
        f"tunnel/{kind}/errors-of-a-key",
        f"{kind}: of two tunnels between the same ends an error of the underlay is that of the one with the key",
        beside(kind, "key 5", ""),
        [
            ("of the one with a key", *error(keyed)),
            ("into the one without", "p0", ether(ip4("10.8.0.8") / udp())),
            ("into the one with a key", "p0", ether(ip4(IN4) / udp())),
            ("of the one without", *error(plain)),
            ("into the one with a key again", "p0", ether(ip4(IN4) / udp())),
            ("into the one without again", "p0", ether(ip4("10.8.0.8") / udp())),
            ("of another key", *error(Raw(b"\x20\0\x08\0\0\0\0\6") / ip4(IN4) / udp())),
            ("into the one with a key at last", "p0", ether(ip4(IN4) / udp())),
        ],
        remembers=True,
        links=False,
    )
for kind in ("ipip", "gre"):
    # The far end is not on a link: its way is the tunnel itself, or there is none.
    far = "local 198.51.100.1 remote 203.0.113.250"
    proto, head = (4, b"") if kind == "ipip" else (47, b"\0\0\x08\0")
    outer = IP(src="198.51.100.1", dst="203.0.113.250", ttl=64, id=9, proto=proto, flags="DF") / Raw(head) / ip4(IN4) / udp()
    for what, line in [("loop", "ip route add 203.0.113.250/32 dev tun1"), ("no-way", "ip route add blackhole 203.0.113.250/32")]:
        Case(
            f"tunnel/{kind}/errors-{what}",
            f"{kind}: of an error of the underlay nobody hears as long as there is no way to the other end",
            tunnel(kind, ends=far, after=[line]),
            [
                ("host unreachable", *heard4(outer, 3, 1)),
                ("the next", "p0", ether(ip4(IN4) / udp())),
            ],
            remembers=True,
        )
for kind in ("ipip", "sit", "gre", "ip6tnl", "ip6gre"):
    wide = kind.startswith("ip6")
    far = "2001:db8:99::9" if wide else "203.0.113.250"
    ends = f"local 2001:db8:2::1 remote {far}" if wide else f"local 198.51.100.1 remote {far}"
    back = f"ip -6 route add {far}/128 dev tun1" if wide else f"ip route add {far}/32 dev tun1"
    overhead = {"ipip": 20, "sit": 20, "gre": 24, "ip6tnl": 48, "ip6gre": 52}[kind]
    Case(
        f"tunnel/{kind}/loop-too-long",
        f"{kind}: of the way back into the tunnel nobody hears that the packet is too long for it",
        tunnel(kind, "mode any" if kind == "ip6tnl" else "", ends=ends, after=[back]),
        [
            (f"IPv{version}, {length} bytes", "p0", ether(packet(length)))
            for version, packet in [(4, lambda n: ip4(IN4, flags="DF") / udp(n - 28)), (6, lambda n: ip6(IN6) / udp(n - 48))]
            if not (kind == "sit" and version == 4)
            for length in (1500 - overhead, 1500 - 2 * overhead, 1500 - 2 * overhead - 8)
        ],
    )
for kind in ("ip6tnl", "ip6gre", "ip6gretap"):
    Case(
        f"tunnel/{kind}/from-remote",
        f"{kind} does not take in an IPv6 packet from its own other end.",
        tunnel(kind, "mode any" if kind == "ip6tnl" else ""),
        [
            ("from the other end", ether(ip6(IN6, src="2001:db8:2::2") / udp())),
            ("from the other end, with options", ether(ip6(IN6, src="2001:db8:2::2", nh=60) / opts(17, udp()))),
            ("from elsewhere", ether(ip6(IN6) / udp())),
            ("IPv4", ether(ip4(IN4) / udp())),
        ],
    )
for kind in ("ipip", "gre", "sit", "ip6tnl", "ip6gre"):
    wide = kind.startswith("ip6")
    proto = {"ipip": 4, "gre": 47, "sit": 41, "ip6tnl": 4, "ip6gre": 47}[kind]
    inside = Raw(b"\0\0\x08\0" if "gre" in kind else b"") / (ip6("2001:db8:5::77", src=IN6) if kind == "sit" else ip4("203.0.113.77", src=IN4)) / udp()
    outer = IPv6(src="2001:db8:2::2", dst="2001:db8:2::1", nh=proto) if wide else IP(src="198.51.100.2", dst="198.51.100.1", proto=proto)
    mode = "mode any" if kind == "ip6tnl" else ""
    for name, first, second in [("bound-first", "dev p1", ""), ("bound-last", "", "dev p1")]:
        Case(
            f"tunnel/{kind}/{name}",
            f"{kind}: of two tunnels with the same ends that is asked first which is bound to the link.",
            beside(kind, f"{mode} {first}".strip(), f"{mode} {second}".strip()),
            [("by p1", "p1", Ether(dst=P1, src=N1) / outer / inside), ("by p0", "p0", ether(outer / inside))],
        )
    # The second has fewer of the packet's addresses.
    near, far = ("2001:db8:2::1", "2001:db8:2::2") if wide else ("198.51.100.1", "198.51.100.2")
    for name, ends in [("local", f"local {near}"), ("remote", f"remote {far}"), ("neither", "")]:
        Case(
            f"tunnel/{kind}/bound-{name}",
            f"{kind}: a tunnel that is bound to the link is asked before one with both addresses, except by sit, and by ip6tnl if it has none.",
            [*tunnel(kind, mode), f"ip link add tun2 type {kind} {ends} {mode} dev p1", "ip link set tun2 addrgenmode none", "ip link set tun2 up"],
            [("by p1", "p1", Ether(dst=P1, src=N1) / outer / inside), ("by p0", "p0", ether(outer / inside))],
            links=True,
        )
    Case(
        f"tunnel/{kind}/bound-enslaved",
        f"{kind}: what comes in by a VRF is for a tunnel that is bound to the link in it as for any other, except by sit.",
        [
            "ip link add vrf1 type vrf table 100",
            "ip link set vrf1 up",
            "ip link set p1 master vrf1",
            *tunnel(kind, mode),
            f"ip link add tun2 type {kind} remote {far} {mode} dev p1",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
        ],
        [("by p1", "p1", Ether(dst=P1, src=N1) / outer / inside)],
        links=True,
    )
Case(
    "tunnel/sit/bound-elsewhere",
    "sit: a tunnel without addresses takes what comes in by another link, too.",
    tunnel("sit", "dev p0", ends=""),
    [(f"by {port}", port, Ether(dst=mac, src=N1) / IP(src="198.51.100.9", dst="198.51.100.1", proto=41) / ip6("2001:db8:5::77", src=IN6) / udp()) for port, mac in [("p0", P0), ("p1", P1)]],
    links=True,
)
for kind, first, second in [("ipip", "", "dev p0"), ("sit", "encap gue encap-sport 7777 encap-dport 5555", "dev p0"), ("gre", "", "dev p0")]:
    small = ip6(IN6) / udp() if kind == "sit" else ip4(IN4) / udp()
    outer = bytes(outer4({"ipip": 4, "sit": 41, "gre": 47}[kind], Raw(b"\0\0\x08\0" if kind == "gre" else b"") / small))[:60]
    Case(
        f"tunnel/{kind}/errors-bound",
        f"{kind}: an error of the underlay is not that of a tunnel that is bound to another link, if there is one that is not",
        beside(kind, first, second),
        [("host unreachable", *heard4(outer, 3, 1)), ("the next", "p0", ether(small)), ("the last", "p0", ether(small))],
        remembers=True,
        links=False,
    )


def with_ends(kind, ends):
    """Tunnels over IPv6 with these local and remote addresses; 10.7.N.0/24 leads into the one of number N."""
    mode = "mode any " if kind == "ip6tnl" else ""
    address = f"address {MAC} " if kind.endswith("tap") else ""
    lines = []
    for n, (local, remote) in enumerate(ends, 1):
        lines.append(f"ip link add tun{n} {address}type {kind} {mode}local {local} remote {remote}")
        lines += [f"ip link set tun{n} addrgenmode none", f"ip link set tun{n} up"]
        if address:
            lines.append(f"ip addr add 10.6.{n}.1/24 dev tun{n}")
            lines.append(f"ip neigh add 10.6.{n}.2 lladdr {FAR_MAC} dev tun{n} nud permanent")
            lines.append(f"ip route add 10.7.{n}.0/24 via 10.6.{n}.2")
        else:
            lines.append(f"ip route add 10.7.{n}.0/24 dev tun{n}")
    return lines


for kind in ("ip6tnl", "ip6gre", "ip6gretap"):
    lines = ["ip link add vrf100 type vrf table 100", "ip link set vrf100 up", *BASE]
    lines += ["ip -6 addr add 2001:db8:4::1/128 dev vrf100 nodad", "ip -6 addr add 2001:db8:41::1/128 dev p0 nodad"]
    lines += ["ip link add tun9 type dummy", "ip link set tun9 up", "ip -6 addr add 2001:db8:42::1/128 dev tun9 nodad"]
    locals = ["2001:db8:2::1", "2001:db8:3::1", "2001:db8:4::1", "2001:db8:40::1", "2001:db8:41::1", "2001:db8:42::1"]
    lines += with_ends(kind, [(local, "2001:db8:2::2") for local in locals])
    # Addresses that come and go after the tunnels.
    lines += ["ip -6 addr add 2001:db8:40::1/128 dev p0 nodad", "ip -6 addr del 2001:db8:41::1/128 dev p0", "ip link set tun9 down"]
    Case(
        f"tunnel/{kind}/foreign-local",
        f"{kind}: nothing goes into a tunnel whose local address the router does not have, or has in a VRF",
        lines,
        [
            (label, ether(ip4(f"10.7.{n}.7") / udp()))
            for n, label in enumerate(
                ["the router's", "nobody's", "of a VRF", "the router's since", "the router's no more", "of a link that has gone down"], 1
            )
        ],
    )


for kind in ("ip6tnl", "ip6gre", "ip6gretap"):
    remotes = ["2001:db8:2::1", "2001:db8:1::1", "2001:db8:40::1", "2001:db8:41::1"]
    lines = BASE + ["ip -6 addr add 2001:db8:41::1/128 dev p0 nodad"]
    lines += with_ends(kind, [("2001:db8:2::1", remote) for remote in remotes])
    # Addresses that come and go after the tunnels.
    lines += ["ip -6 addr add 2001:db8:40::1/128 dev p0 nodad", "ip -6 addr del 2001:db8:41::1/128 dev p0", "ip -6 route add 2001:db8:41::/48 via 2001:db8:2::2"]
    Case(
        f"tunnel/{kind}/own-remote",
        f"{kind}: nothing goes into a tunnel whose remote address is the router's",
        lines,
        [
            (label, ether(ip4(f"10.7.{n}.7") / udp()))
            for n, label in enumerate(
                ["the local address", "another of the router's", "the router's since", "the router's no more"], 1
            )
        ],
    )


def limited(limit):
    """What follows an IPv6 header with next header 60: an encapsulation limit, and UDP."""
    return Raw(bytes([17, 0, 4, 1, limit, 1, 1, 0])) / udp()


Case(
    "tunnel/ip6gretap/limit",
    "ip6gretap: the encapsulation limit of an IPv6 packet in a frame, which a route leads into it, or a filter",
    tunnel("ip6gretap", after=["tc qdisc add dev p1 clsact", "tc filter add dev p1 ingress protocol all matchall action mirred egress redirect dev tun1"]),
    [
        (f"{what}, a limit of {limit}", port, frame(ip6(IN6, nh=60) / limited(limit)))
        for what, port, frame in [
            ("a route", "p0", ether),
            ("a filter", "p1", lambda packet: Ether(dst=P1, src=N1) / packet),
            ("a filter, with a tag", "p1", lambda packet: Ether(dst=P1, src=N1) / Dot1Q(vlan=5) / packet),
        ]
        for limit in (4, 1, 0)
    ]
    + [("a filter, a limit of 4 in a truncated packet", "p1", Ether(dst=P1, src=N1, type=0x86DD) / Raw(bytes(ip6(IN6, nh=60) / limited(4))[:-20]))],
)
# ------------------------------------------------------------------------------------------ a link of their own

ROUTES6 = ["ip -6 route add 2001:db8:77::/48 via 2001:db8:2::2", "ip -6 route add 2001:db8:77::/64 via 2001:db8:2::2"]
for kind in ["ip6tnl", "ip6gre", "ip6gretap"]:
    mode = "mode any" if kind == "ip6tnl" else ""
    for name, doc, before in [
        ("elsewhere", "no route leads there by the device's link", []),
        ("longer", "a longer prefix leads elsewhere", [ROUTES6[0].replace("2::2", "1::2"), ROUTES6[1]]),
        ("shorter", "a shorter prefix leads elsewhere", [ROUTES6[0], ROUTES6[1].replace("2::2", "1::2")]),
        ("metric", "a better route leads elsewhere", [ROUTES6[1] + " metric 10", ROUTES6[1].replace("2::2", "1::2") + " metric 20"]),
    ]:
        remote = "2001:db8:77::7" if before else "2001:db8:2::2"
        into(
            f"link/{kind}-{name}",
            f"{kind} of p0, with a local address: {doc}.",
            kind,
            f"{mode} dev p0",
            FOUR[:1] + SIX[:1],
            ends=f"local 2001:db8:2::1 remote {remote}",
            before=before,
        )
for kind in ("ipip", "ip6gre"):
    wide = kind == "ip6gre"
    other = "ip6gretap" if wide else "gretap"
    Case(
        f"tunnel/{kind}/through-external",
        f"{kind}: its outer packets go into a device that does not know where to",
        [line for line in tunnel(kind, ends="local 2001:db8:2::1 remote 2001:db8:99::1" if wide else "local 198.51.100.1 remote 198.18.0.1")]
        + [f"ip link add tun2 address {MAC} type {other} external", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]
        + [f"ip addr add 10.6.0.1/24 dev tun2", "ip addr add 2001:db8:9::1/64 dev tun2 nodad"]
        + [f"ip neigh add 10.6.0.2 lladdr {FAR_MAC} dev tun2 nud permanent", f"ip neigh add 2001:db8:9::2 lladdr {FAR_MAC} dev tun2 nud permanent"]
        + ["ip route add 198.18.0.0/24 via 10.6.0.2", "ip -6 route add 2001:db8:99::/48 via 2001:db8:9::2"],
        [("IPv4", "p0", ether(ip4(IN4) / udp()))],
    )

# -------------------------------------------------------------------------------- what random runs found

long = ip6(IN6) / udp(1300)
told6 = bytes(outer6(47, Raw(b"\0\0\x86\xdd") / long))
Case(
    "tunnel/ip6gre/pmtu-least",
    "ip6gre: an MTU of the path below the least that an IPv6 link has is none (RFC 8201 section 4)",
    tunnel("ip6gre"),
    [
        heard("too big, 1,279", heard6(told6, 2, 0, 1279)),
        ("after", "p0", ether(long)),
        heard("too big, 1,280", heard6(told6, 2, 0, 1280)),
        ("after that", "p0", ether(long)),
    ],
    remembers=True,
    links=False,
)
for mode, sent, other in [("ip4ip6", "IPv4", 41), ("ip6ip6", "IPv6", 4)]:
    packet = long if other == 4 else ip4(IN4, flags="DF") / udp(1300)
    told = {proto: bytes(outer6(proto, ip6(IN6) / udp(1300) if proto == 41 else ip4(IN4) / udp(1300))) for proto in (4, 41)}
    Case(
        f"tunnel/ip6tnl/pmtu-{mode}",
        f"ip6tnl with {sent} inside: what the underlay says of other packets is of none of its own",
        tunnel("ip6tnl", f"mode {mode}"),
        [
            heard("too big, 1,300, of another", heard6(told[other], 2, 0, 1300)),
            ("after", "p0", ether(packet)),
            heard("unreachable, of another", heard6(told[other], 1, 0)),
            heard("too big, 1,300", heard6(told[45 - other], 2, 0, 1300)),
            ("after that", "p0", ether(packet)),
        ],
        remembers=True,
        links=False,
    )
for name, what, before in [
    ("external-any", "all GRE over IPv6 that no other device does", []),
    (
        "external-any-beside",
        "GRE over IPv6 of another device for frames",
        [f"ip link add tun2 address 02:00:00:00:00:78 type ip6gretap {ENDS6}", "ip link set tun2 addrgenmode none", "ip link set tun2 up"],
    ),
]:
    Case(
        f"tunnel/ip6gretap/{name}",
        f"An external ip6gretap takes {what}, for frames.",
        tunnel("ip6gretap", "external", "", before=before),
        [
            (label, "p1", Ether(dst=P1, src=N1) / IPv6(src="2001:db8:2::2", dst="2001:db8:2::1", nh=47) / Raw(head) / inside)
            for label, head, inside in [
                ("IPv6", b"\0\0\x86\xdd", long),
                ("IPv4 with a key", b"\x20\0\x08\0\0\0\0\5", ip4(IN4) / udp()),
                ("a label", b"\0\0\x88\x47", Raw(b"\0\0\x11\x40") / ip4(IN4) / udp()),
            ]
        ],
    )
Case(
    "tunnel/ip6gretap/external-beside",
    "An external ip6gretap takes the frames that no ip6gre has the ends and the key of.",
    tunnel("ip6gretap", "external", "", before=[f"ip link add tun2 type ip6gre {ENDS6} key 5", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]),
    [
        (label, "p1", Ether(dst=P1, src=N1) / IPv6(src=source, dst="2001:db8:2::1", nh=47) / Raw(head + b"\0\0\0" + bytes([key]) if key else head) / Ether(dst=MAC, src=FAR_MAC) / ip4(IN4) / udp())
        for label, source, head, key in [
            ("without a key", "2001:db8:2::2", b"\0\0\x65\x58", 0),
            ("its key", "2001:db8:2::2", b"\x20\0\x65\x58", 5),
            ("another key", "2001:db8:2::2", b"\x20\0\x65\x58", 6),
            ("its key, from another", "2001:db8:2::3", b"\x20\0\x65\x58", 5),
        ]
    ],
)
Case(
    "tunnel/ip6gretap/external-before-any",
    "An external ip6gretap takes frames without a key before one that has no addresses does, and with one after it.",
    tunnel(
        "ip6gretap",
        "external",
        "",
        before=[
            line
            for name, key in (("tun2", ""), ("tun3", " key 5"))
            for line in (f"ip link add {name} address {MAC} type ip6gretap{key}", f"ip link set {name} addrgenmode none", f"ip link set {name} up")
        ],
    ),
    [
        (label, "p1", Ether(dst=P1, src=N1) / IPv6(src="2001:db8:2::2", dst="2001:db8:2::1", nh=47) / Raw(bytes.fromhex(head)) / Ether(dst=MAC, src=FAR_MAC) / ip4(IN4) / udp())
        for label, head in [("without a key", "00006558"), ("key 0", "2000655800000000"), ("key 5", "2000655800000005"), ("key 6", "2000655800000006")]
    ],
)
Case(
    "tunnel/ip6tnl/vrf-rules",
    "ip6tnl: what comes in by a VRF, for an address outside of it, whatever rules there are",
    tunnel("ip6tnl", "mode any")
    + ["ip -6 rule add from 2001:db8:5::99 pref 5 unreachable", "ip link add vrf100 type vrf table 100", "ip link set vrf100 up", "ip link set p0 master vrf100"],
    [
        (label, "p0", Ether(dst=P0, src=N0) / IPv6(src="2001:db8:2::2", dst="2001:db8:2::1", nh=nh) / inside)
        for label, nh, inside in [("IPv6", 41, ip6("2001:db8:6::7") / udp()), ("IPv4", 4, ip4("203.0.113.200") / udp())]
    ],
)
Case(
    "tunnel/ip6tnl/vrf-rule-inside",
    "ip6tnl without a local address: what comes in by a VRF, for an address inside of it and for one outside, with a rule that leads into it",
    VRF
    + [
        "ip -6 rule add tos 0x08 pref 20 lookup 100",
        "ip link add tun1 type ip6tnl remote 2001:db8:f::9 mode any",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
    ],
    [
        (f"{what}, for {to}", port, Ether(dst=P1 if port == "p1" else P0, src=N1) / ip6(to, src="2001:db8:f::9", nh=nh) / inside)
        for port, to in [("p1", "2001:db8:2::1"), ("p0", "2001:db8:1::1")]
        for what, nh, inside in (("IPv4", 4, ip4(SOURCE4, src=TARGET4) / udp()), ("IPv6", 41, ip6(SOURCE, src=TARGET) / udp()))
    ],
)
Case(
    "tunnel/ip6tnl/anycast",
    "Without a local address: ip6gre takes what is for the anycast address of a subnet's routers, ip6tnl does not",
    BASE
    + [
        line
        for name, what in (("tun1", "ip6tnl remote 2001:db8:f::9 mode any"), ("tun2", "ip6gre remote 2001:db8:f::9"))
        for line in (f"ip link add {name} type {what}", f"ip link set {name} addrgenmode none", f"ip link set {name} up")
    ],
    [
        (f"{what} for {to}", ether(ip6(to, src="2001:db8:f::9", nh=nh) / inside))
        for to in ("2001:db8:2::", "2001:db8:1::", "2001:db8:2::1", "2001:db8:2::", "2001:db8:1::1")
        for what, nh, inside in (
            ("IPv4", 4, ip4() / udp()),
            ("IPv6", 41, ip6() / udp()),
            ("GRE", 47, Raw(bytes.fromhex("00000800")) / ip4() / udp()),
        )
    ],
)
for kind in ("ipip", "gre", "gretap", "sit", "ip6tnl", "ip6gre", "ip6gretap"):
    wide, frames = kind.startswith("ip6"), kind.endswith("tap")
    lines = BASE + ["ip link add vrf100 type vrf table 100", "ip link set vrf100 up", "ip link set p1 master vrf100"]
    lines += ["ip -6 addr add 2001:db8:2::1/64 dev p1 nodad", "ip -6 neigh replace 2001:db8:2::2 lladdr 02:00:00:00:01:02 dev p1 nud permanent"]
    lines += ["ip neigh replace 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent"]
    lines += ["ip route add 198.18.8.0/24 via 192.0.2.2", "ip -6 route add 2001:db8:88::/48 via 2001:db8:1::2"]
    lines += ["ip route add 198.18.9.0/24 via 198.51.100.2 vrf vrf100", "ip -6 route add 2001:db8:99::/48 via 2001:db8:2::2 vrf vrf100"]
    remotes = ["2001:db8:2::2", "2001:db8:88::7", "2001:db8:99::7"] if wide else ["198.51.100.2", "198.18.8.7", "198.18.9.7"]
    if kind == "sit":
        # It sends nothing by a route outside of the VRF, and says so otherwise than Linux.
        del remotes[1]
    for n, remote in enumerate(remotes, 1):
        local = "2001:db8:2::1" if wide else "198.51.100.1"
        mode = "mode any" if kind == "ip6tnl" else ""
        lines += [f"ip link add tun{n} {'address ' + MAC if frames else ''} type {kind} local {local} remote {remote} {mode} dev p1", f"ip link set tun{n} addrgenmode none", f"ip link set tun{n} up"]
        if frames:
            lines += [f"ip addr add 10.6.{n}.1/24 dev tun{n}", f"ip neigh add 10.6.{n}.2 lladdr {FAR_MAC} dev tun{n} nud permanent", f"ip route add 10.7.{n}.0/24 via 10.6.{n}.2"]
        elif kind == "sit":
            lines += [f"ip -6 route add 2001:db8:7:{n}::/64 dev tun{n}"]
        else:
            lines += [f"ip route add 10.7.{n}.0/24 dev tun{n}"]
    Case(
        f"tunnel/{kind}/dev-enslaved",
        f"{kind} of a link in a VRF: to an end on it{'' if kind == 'sit' else ', by a route outside of the VRF'}, by one inside",
        lines,
        [(f"to {remote}", "p0", ether((ip6(f"2001:db8:7:{n}::7") if kind == "sit" else ip4(f"10.7.{n}.7")) / udp())) for n, remote in enumerate(remotes, 1)],
    )
lines = BASE + ["ip link add vrf100 type vrf table 100", "ip link set vrf100 up", "ip link set p1 master vrf100"]
lines += ["ip neigh replace 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent", "ip route add 198.18.9.0/24 via 192.0.2.2 vrf vrf100"]
lines += ["ip route add 198.18.8.0/24 via 192.0.2.2", "ip route add 198.18.9.0/25 via 198.51.100.2 vrf vrf100"]
remotes = ["198.51.100.2", "198.18.8.7", "198.18.9.7", "198.18.9.207"]
for n, remote in enumerate(remotes, 1):
    lines += [f"ip link add tun{n} type sit local 198.51.100.1 remote {remote} mode any dev p1", f"ip link set tun{n} addrgenmode none"]
    lines += [f"ip link set tun{n} up", f"ip route add 10.7.{n}.0/24 dev tun{n}"]
Case(
    "tunnel/sit/dev-enslaved-ipv4",
    "sit of a link in a VRF, IPv4 inside: to an end on it, by a route outside of the VRF, by those inside",
    lines,
    [(f"to {remote}", "p0", ether(ip4(f"10.7.{n}.7") / udp())) for n, remote in enumerate(remotes, 1)],
)
Case(
    "tunnel/gre/pmtu-elsewhere",
    "gre: an MTU of the path that is told by another link than the way's is none",
    tunnel("gre"),
    [
        ("too big, by p0", "p0", Ether(dst=P0, src=N0) / IP(src="192.0.2.2", dst="198.51.100.1", ttl=64, id=7) / ICMP(type=3, code=4, nexthopmtu=1000) / Raw(bytes(outer4(47, Raw(b"\0\0\x08\0") / ip4(IN4) / udp(1300)))[:128])),
        ("after", "p0", ether(ip4(IN4, flags="DF") / udp(1300))),
        heard("too big, by p1", heard4(bytes(outer4(47, Raw(b"\0\0\x08\0") / ip4(IN4) / udp(1300)))[:128], 3, 4, 1100)),
        ("after that", "p0", ether(ip4(IN4, flags="DF") / udp(1300))),
    ],
    remembers=True,
    links=False,
)

Case(
    "tunnel/sit/pmtu-small",
    "sit: on a way whose MTU is too small for IPv6 all IPv6 packets may be cut, and IPv4 packets as they say",
    tunnel("sit", "mode any"),
    [
        ("before", "p0", ether(ip6(IN6) / udp())),
        heard("fragmentation needed, 1,299", heard4(bytes(outer4(41, ip6(IN6) / udp(1300)))[:128], 3, 4, 1299)),
        ("a short one", "p0", ether(ip6(IN6) / udp())),
        ("a short IPv4 packet", "p0", ether(ip4(IN4) / udp())),
        ("one that must not be cut", "p0", ether(ip4(IN4, flags="DF") / udp())),
    ],
    remembers=True,
)
for kind, proto, head in [("ipip", 4, b""), ("gre", 47, b"\0\0\x08\0")]:
    outer = IP(src="198.51.100.1", dst="198.18.0.1", ttl=64, id=9, proto=proto, flags="DF") / Raw(head) / ip4(IN4) / udp()
    Case(
        f"tunnel/{kind}/errors-back",
        f"{kind}: what would leave by the tunnel itself tells nobody of the errors before it",
        tunnel(kind, ends="local 198.51.100.1 remote 198.18.0.1", after=["ip route add default dev tun1"]),
        [
            heard("host unreachable", heard4(bytes(outer)[:128], 3, 1)),
            heard("host unreachable, too", heard4(bytes(outer)[:128], 3, 1)),
            ("a packet that goes round", "p0", ether(ip4(IN4) / udp())),
            ("another one", "p0", ether(ip4(IN4) / udp())),
        ],
        remembers=True,
    )

    outer = bytes(outer4(proto, Raw(head) / (ip4(IN4, flags="DF") / udp(1300))))[:128]
    Case(
        f"tunnel/{kind}/errors-too-long",
        f"{kind}: what is too long for the way tells nobody of the errors before it, but what comes then does",
        tunnel(kind),
        [
            heard("fragmentation needed, 1,000", heard4(outer, 3, 4, 1000)),
            heard("host unreachable", heard4(outer, 3, 1)),
            ("too long", "p0", ether(ip4("10.7.0.1", flags="DF") / udp(1300))),
            ("one that fits", "p0", ether(ip4("10.7.0.2") / udp())),
            ("another one", "p0", ether(ip4("10.7.0.3") / udp())),
        ],
        remembers=True,
    )

# What a tunnel over IPv4 inherits is of the packet that End.B6.Encaps has put headers before.
WRAPPED = [
    ("IPv6 in SRv6", ether(IPv6(src=SOURCE, dst="2001:db8:d::7", hlim=33, tc=0x2E, fl=0x12345) / udp())),
    ("IPv6 in SRv6 in SRv6", ether(IPv6(src=SOURCE, dst="2001:db8:e::7", hlim=33, tc=0x2E, fl=0x12345) / udp())),
    ("in SRv6 by a SID", ether(routed(IPv6(src=SOURCE, dst=SID, hlim=77, tc=0x4C, fl=0x12345), [SID, NEXT], 1, IPv6(src=SOURCE, dst=TARGET, hlim=33, tc=0x2E) / udp()))),
]
for kind in ("gre", "gretap", "sit", "ip6tnl", "ip6gre"):
    wide, frames = kind.startswith("ip6"), kind.endswith("tap")
    options = {"ip6tnl": "mode any tclass inherit", "ip6gre": "tclass inherit"}.get(kind, "ttl inherit tos inherit")
    via6 = "via 2001:db8:9::2" if frames else "dev tun1"
    Case(
        f"tunnel/{kind}/inherit-wrapped",
        f"{kind}: what it inherits of packets that the router has encapsulated before",
        tunnel(
            kind,
            options,
            after=[
                f"ip -6 route add fc00:d::/32 {via6}",
                "ip -6 route add 2001:db8:d::/48 encap seg6 mode encap segs fc00:d::1,fc00:d::2 dev p1",
                "ip -6 route add fc00:f::1 encap seg6 mode encap segs fc00:d::3 dev p1",
                "ip -6 route add 2001:db8:e::/48 encap seg6 mode encap segs fc00:f::1 dev p1",
                f"ip -6 route add {SID} encap seg6local action End.B6.Encaps srh segs fc00:d::4 dev p0",
            ],
        ),
        WRAPPED,
    )

# It is that packet still when a SID of the router's has taken the SRH off, but not when it has taken the packet out.
AGAIN = [
    (f"End.B6.Encaps, then {then}", ether(routed(IPv6(src=SOURCE, dst=sid, hlim=77, tc=0x4C, fl=0x12345), [sid, last], 1, IPv6(src=SOURCE, dst="fc00:d::9", hlim=33, tc=0x2E) / udp())))
    for then, sid, last in [("PSP", "fc00:a::21", "fc00:d::9"), ("End.DT6", "fc00:a::22", "fc00:d::9"), ("PSP and End.B6", "fc00:a::23", "fc00:d::9")]
]
for kind in ("gre", "sit", "ip6tnl", "ip6gre"):
    options = {"ip6tnl": "mode any tclass inherit", "ip6gre": "tclass inherit"}.get(kind, "ttl inherit tos inherit")
    Case(
        f"tunnel/{kind}/inherit-wrapped-again",
        f"{kind}: what it inherits and counts of packets behind End.B6.Encaps and another SID of the router's",
        tunnel(
            kind,
            options,
            after=[
                "ip -6 route add fc00:d::/32 dev tun1",
                "ip -6 route add fc00:a::31 encap seg6local action End flavors psp dev p0",
                "ip -6 route add fc00:a::32 encap seg6local action End.DT6 table main dev p0",
                "ip -6 route add fc00:a::33 encap seg6local action End.B6 srh segs fc00:d::5 dev p0",
                "ip -6 route add fc00:a::21 encap seg6local action End.B6.Encaps srh segs fc00:a::31,fc00:d::4 dev p0",
                "ip -6 route add fc00:a::22 encap seg6local action End.B6.Encaps srh segs fc00:a::32 dev p0",
                "ip -6 route add fc00:a::23 encap seg6local action End.B6.Encaps srh segs fc00:a::31,fc00:a::33 dev p0",
            ],
        ),
        AGAIN,
    )

# So is what a program of End.BPF has put headers before, and last, unless it has taken the outer ones off first.
STEERED = [
    (label, ether(routed(IPv6(src=SOURCE, dst=SID, hlim=77, tc=0x4C, fl=0x12345), [SID, NEXT], 1, IPv6(src=SOURCE, dst=TARGET, hlim=33, tc=0x2E) / udp(), tag=tag)))
    for label, tag in [("End.B6.Encaps", 26), ("the same, and a TLV", 29), ("End.DT6, then End.B6.Encaps", 46), ("End.B6", 24)]
]
for kind in ("gre", "gretap", "sit", "ip6gre"):
    options = "tclass inherit" if kind == "ip6gre" else "ttl inherit tos inherit"
    Case(
        f"tunnel/{kind}/inherit-program",
        f"{kind}: what it inherits of packets that a program of End.BPF has encapsulated before",
        tunnel(
            kind,
            options,
            after=[
                f"ip -6 route replace fc00:c::/32 {'via 2001:db8:9::2' if kind.endswith('tap') else 'dev tun1'}",
                f"ip -6 route add {SID} encap seg6local action End.BPF endpoint obj bpf/steer.o section seg6 dev p0",
            ],
        ),
        STEERED,
    )

# What may not be cut outside, and may inside, so that nobody hears of it.
for kind in ("ipip", "gre"):
    Case(
        f"tunnel/{kind}/outer-too-long",
        f"Outer packets of {kind} that are too long for the link: dropped, or, where the sender hears of it, an error.",
        BASE
        + [
            f"ip link add tun1 type {kind} local 198.51.100.1 remote 203.0.113.129",
            "ip link set tun1 mtu 1500",
            "ip link set tun1 up",
            "ip route add 192.168.9.0/24 dev tun1",
        ],
        [
            ("may be fragmented", ether(ip4("192.168.9.9") / udp(1460))),
            ("may not", ether(ip4("192.168.9.9", flags="DF") / udp(1460))),
            ("fits", ether(ip4("192.168.9.9") / udp(100))),
        ],
    )

for kind, end in [("gretap", "ip dst 198.51.100.2 ttl 9"), ("ip6gretap", "ip6 dst 2001:db8:2::2 hoplimit 9")]:
    Case(
        f"tunnel/{kind}/external-on-link",
        "A route without a gateway says where frames for its neighbours go.",
        tunnel(kind, "external", "")
        + [f"ip route add 10.8.0.0/24 encap {end} dev tun1", "ip neigh add 10.8.0.5 lladdr 02:00:00:00:01:88 dev tun1 nud permanent"],
        put_in([("a neighbour", ip4("10.8.0.5") / udp())]),
    )
