"""Packets out of IP tunnels, and what must not come out of them."""

from scapy.utils import checksum

from .frames import *
from .tunnel import ECN, ENDS4, ENDS6, FAR_MAC, MAC, MPLS_ON, labels_of, tos4, tos6, tunnel

FAR4, NEAR4, FAR6, NEAR6 = "198.51.100.2", "198.51.100.1", "2001:db8:2::2", "2001:db8:2::1"
# What is inside goes on by p0; errors about it go back by p1, outside the tunnel.
HERE4, HERE6 = "203.0.113.5", "2001:db8:5::5"
FROM4, FROM6 = "203.0.113.133", "2001:db8:6::6"


def in4(tos=0xB8, n=64, dst=HERE4, src=FROM4, ttl=40, **more):
    return IP(src=src, dst=dst, ttl=ttl, tos=tos, id=0x4321, **more) / udp(n)


def in6(tos=0xB8, n=64, dst=HERE6, src=FROM6, hlim=40, **more):
    return IPv6(src=src, dst=dst, hlim=hlim, tc=tos, fl=0x12345, **more) / udp(n)


def out4(proto, inner, tos=0, src=FAR4, dst=NEAR4, ttl=64, **more):
    return IP(src=src, dst=dst, ttl=ttl, tos=tos, id=9, proto=proto, **more) / Raw(bytes(inner))


def out6(nh, inner, tos=0, src=FAR6, dst=NEAR6, hlim=64, **more):
    return IPv6(src=src, dst=dst, hlim=hlim, tc=tos, nh=nh, **more) / Raw(bytes(inner))


def gre(inner, proto=None, key=None, seq=None, csum=False, flags=0, bad=0, offset=None):
    """RFC 2784, RFC 2890."""
    if proto is None:
        proto = {IP: 0x0800, IPv6: 0x86DD, Ether: 0x6558}[type(inner)]
    flags |= 0x8000 * csum | 0x2000 * (key is not None) | 0x1000 * (seq is not None)
    tail = (b"" if key is None else struct.pack("!I", key)) + (b"" if seq is None else struct.pack("!I", seq))
    tail += bytes(inner)
    if not csum:
        return Raw(struct.pack("!HH", flags, proto) + tail)
    head = struct.pack("!HH", flags, proto)
    sum = checksum(head + bytes(4) + tail)
    return Raw(head + struct.pack("!HH", sum ^ bad, 0) + tail)


def frame(packet, src=N1):
    return ("p1", Ether(dst=P1, src=src) / packet)


def listed(packets):
    return [(label, *frame(p)) for label, p in packets]


def inside(kind, inner):
    """What is in the outer packet: protocol and bytes."""
    if "gre" in kind:
        if kind.endswith("tap"):
            inner = Ether(dst=MAC, src=FAR_MAC) / inner
        return 47, gre(inner)
    return (4 if isinstance(inner, IP) else 41), inner


def carry(kind, inner, **more):
    proto, data = inside(kind, inner)
    return (out6 if kind.startswith("ip6") else out4)(proto, data, **more)


def cut(packet, n):
    """The packet without its last bytes, as its own header says."""
    data = bytes(packet)[:-n]
    packet = packet.__class__(data)
    if isinstance(packet, IP):
        packet.len = len(data)
    else:
        packet.plen = len(data) - 40
    del packet[IP if isinstance(packet, IP) else IPv6].payload
    return packet


def from_tunnel(name, doc, kind, packets, options="", remembers=False, **more):
    mode = "mode any " if kind in ("ip6tnl", "sit") else ""
    Case(
        f"tunnel/{name}",
        doc,
        tunnel(kind, (mode + options).strip(), **more),
        listed(packets),
        remembers=remembers,
    )


for kind in ["ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap"]:
    wide = kind.startswith("ip6")
    families = [("IPv4", in4), ("IPv6", in6)]
    from_tunnel(
        f"{kind}/out",
        f"out of {kind}",
        kind,
        [
            (label, carry(kind, p))
            for label, p in [
                ("IPv4", in4()),
                ("IPv4, don't fragment", in4(flags="DF")),
                ("TTL 2", in4(ttl=2)),
                ("TTL 1", in4(ttl=1)),
                ("options", in4(options=[IPOption(b"\x94\x04\0\0")])),
                ("a fragment", IP(src=FROM4, dst=HERE4, flags="MF", frag=8, proto=17) / payload(64)),
                ("IPv6", in6()),
                ("hop limit 2", in6(hlim=2)),
                ("hop limit 1", in6(hlim=1)),
                ("IPv6 fragment", IPv6(src=FROM6, dst=HERE6, nh=44) / fragment(17, payload(64))),
            ]
        ]
        + [("a trailer inside", carry(kind, Raw(bytes(in4()) + b"trailer")) if "gre" not in kind and not wide else carry(kind, in4()))]
        + [("an outer TTL of 1", carry(kind, in4(), **({"hlim": 1} if wide else {"ttl": 1})))],
    )
    from_tunnel(
        f"{kind}/out-ecn",
        f"out of {kind}: every pair of ECN fields (RFC 6040)",
        kind,
        [
            (f"{family}, outer {outer:#x}, inner {inner:#x}", carry(kind, make(inner), tos=outer))
            for family, make in families
            for outer in (0, 1, 2, 3)
            for inner in (0, 1, 2, 3)
        ]
        + [
            (f"{family}, outer {outer:#x}, inner {inner:#x}", carry(kind, make(inner), tos=outer))
            for family, make in families
            for outer, inner in [(0xB8, 0x28), (0xBB, 0x29), (0xBA, 0x28)]
        ],
    )
    ends = {"src": "2001:db8:2::3", "dst": "2001:db8:1::1"} if wide else {"src": "198.51.100.3", "dst": "192.0.2.1"}
    from_tunnel(
        f"{kind}/strangers",
        f"{kind}: outer packets that are not the tunnel's",
        kind,
        [
            ("from another", carry(kind, in4(), src=ends["src"])),
            ("to another address of the router", carry(kind, in4(), dst=ends["dst"])),
            ("IPv6 from another", carry(kind, in6(), src=ends["src"])),
            ("from the router itself", carry(kind, in4(), src=NEAR6 if wide else NEAR4)),
            ("from a group", carry(kind, in4(), src="ff02::1" if wide else "224.0.0.1")),
            ("from the loopback address", carry(kind, in4(), src="::1" if wide else "127.0.0.1")),
            ("from nobody", carry(kind, in4(), src="::" if wide else "0.0.0.0")),
            ("the tunnel's", carry(kind, in4())),
        ],
    )
    from_tunnel(
        f"{kind}/any-far-end",
        f"{kind}: from anywhere, and from spoofed addresses",
        kind,
        [
            ("from a neighbour", carry(kind, in4())),
            ("from behind", carry(kind, in4(), src=TARGET if wide else TARGET4)),
            ("IPv6 from behind", carry(kind, in6(), src=TARGET if wide else TARGET4)),
            ("from the router itself", carry(kind, in4(), src=NEAR6 if wide else NEAR4)),
            ("from a group", carry(kind, in4(), src="ff02::1" if wide else "224.0.0.1")),
            ("from the loopback address", carry(kind, in4(), src="::1" if wide else "127.0.0.1")),
            ("from nobody", carry(kind, in4(), src="::" if wide else "0.0.0.0")),
            ("to the other address", carry(kind, in4(), dst=ends["dst"])),
        ],
        ends=f"local {NEAR6 if wide else NEAR4}",
    )
    from_tunnel(
        f"{kind}/out-down",
        f"{kind}: the device is down",
        kind,
        [("IPv4", carry(kind, in4())), ("IPv6", carry(kind, in6()))],
        after=["ip link set tun1 down"],
    )
    short4, short6 = bytes(in4()), bytes(in6())
    bad = [
        ("IPv4 cut short", Raw(short4[:60])),
        ("IPv4 header cut short", Raw(short4[:12])),
        ("IPv4 header length 16", Raw(b"\x44" + short4[1:])),
        ("IPv4 header length beyond the packet", Raw(b"\x4f" + short4[1:28])),
        ("IPv4 checksum wrong", in4(chksum=0x1234)),
        ("IPv4 of version 5", Raw(b"\x55" + short4[1:])),
        ("IPv4 total length too long", IP(src=FROM4, dst=HERE4, len=500) / udp()),
        ("IPv4 total length below the header's", IP(src=FROM4, dst=HERE4, len=19) / udp()),
        ("IPv4 from a group", in4(src="224.0.0.5")),
        ("IPv4 from the loopback address", in4(src="127.0.0.1")),
        ("IPv4 to a group", in4(dst="224.0.1.5")),
        ("IPv4 to no route", in4(dst="198.18.0.1")),
        ("nothing", Raw(b"")),
        ("one byte", Raw(b"\x45")),
    ]
    bad6 = [
        ("IPv6 cut short", Raw(short6[:60])),
        ("IPv6 header cut short", Raw(short6[:30])),
        ("IPv6 of version 4", Raw(b"\x40" + short6[1:])),
        ("IPv6 payload length too long", IPv6(src=FROM6, dst=HERE6, plen=500) / udp()),
        ("IPv6 from a group", in6(src="ff02::5")),
        ("IPv6 from the loopback address", in6(src="::1")),
        ("IPv6 to no route", in6(dst="2001:db8:99::1")),
        ("no IPv6", Raw(b"")),
        ("one byte of IPv6", Raw(b"\x60")),
    ]

    def wrap(data, version):
        if "gre" in kind:
            proto = 0x0800 if version == 4 else 0x86DD
            if kind.endswith("tap"):
                head = Ether(dst=MAC, src=FAR_MAC, type=proto)
                return (out6 if wide else out4)(47, gre(Raw(bytes(head) + bytes(data)), proto=0x6558))
            return (out6 if wide else out4)(47, gre(Raw(bytes(data)), proto=proto))
        return (out6 if wide else out4)(4 if version == 4 else 41, data)

    from_tunnel(
        f"{kind}/bad-inside",
        f"{kind}: what is inside is wrong",
        kind,
        [(label, wrap(p, 4)) for label, p in bad] + [(label, wrap(p, 6)) for label, p in bad6],
    )
    if "gre" in kind:
        tap = kind.endswith("tap")
        out = out6 if wide else out4
        eth = (lambda p: Ether(dst=MAC, src=FAR_MAC) / p) if tap else (lambda p: p)
        g = lambda p=None, **more: out(47, gre(eth(in4() if p is None else p), **more))
        from_tunnel(
            f"{kind}/bad-header",
            f"{kind}: GRE headers that it does not take",
            kind,
            [
                ("version 1", g(flags=1)),
                ("routing", g(flags=0x4000)),
                ("reserved bits", g(flags=0x0100)),
                ("recursion", g(flags=0x0400)),
                ("a key that nobody waits for", g(key=7)),
                ("a checksum that nobody waits for", g(csum=True)),
                ("a number that nobody waits for", g(seq=1)),
                ("a wrong checksum", g(csum=True, bad=0x100)),
                ("an unknown protocol", g(proto=0x1234)),
                ("protocol 0, a keepalive", g(proto=0)),
                ("Ethernet" if not tap else "IPv4", out(47, gre(Ether(dst=MAC, src=FAR_MAC) / in4()) if not tap else gre(in4()))),
                ("WCCP", out(47, gre(in4(), proto=0x883E))),
                ("WCCPv2", out(47, gre(Raw(bytes(4) + bytes(in4())), proto=0x883E))),
                ("three bytes", out(47, Raw(b"\0\0\x08"))),
                ("a header without its key", out(47, Raw(b"\x20\0\x08\0"))),
                ("a header without its number", out(47, Raw(b"\x30\0\x08\0\0\0\0\7"))),
            ],
        )
        from_tunnel(
            f"{kind}/out-key",
            f"{kind}: keys of packets received",
            kind,
            [
                ("key 8", g(key=8)),
                ("key 7", g(key=7)),
                ("no key", g()),
                ("key 8, checksum", g(key=8, csum=True)),
                ("key 8, wrong checksum", g(key=8, csum=True, bad=1)),
                ("IPv6, key 8", g(in6(), key=8)),
            ],
            "okey 7 ikey 8",
        )
        from_tunnel(
            f"{kind}/out-csum",
            f"{kind}: checksums of packets received",
            kind,
            [
                ("checksum", g(csum=True)),
                ("no checksum", g()),
                ("wrong checksum", g(csum=True, bad=0x8000)),
                ("IPv6, odd length", g(in6(n=63), csum=True)),
                ("odd length", g(in4(n=63), csum=True)),
            ],
            "csum",
        )
        from_tunnel(
            f"{kind}/out-seq",
            f"{kind}: numbers of packets received",
            kind,
            [
                (f"number {n}", g(seq=n))
                for n in (5, 6, 6, 5, 8, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0, 1)
            ]
            + [("no number", g())],
            "seq",
            remembers=True,
        )

for kind, modes in [("ipip", ["ipip", "mplsip", "any"]), ("sit", ["ip6ip", "ipip", "mplsip", "any"]), ("ip6tnl", ["ip6ip6", "ipip6", "any"])]:
    for mode in modes:
        wide = kind == "ip6tnl"
        out = out6 if wide else out4
        lines = tunnel(kind, f"mode {mode}")
        if not wide:
            lines += MPLS_ON + ["sysctl -qw net.mpls.conf.tun1.input=1", "ip -f mpls route add 100 as 200 via inet 192.0.2.2 dev p0", "ip -f mpls route add 101 dev lo"]
        Case(
            f"tunnel/{kind}/out-mode-{mode}",
            f"{kind} of mode {mode}: what it takes out",
            lines,
            listed(
                [
                    ("IPv4", out(4, in4())),
                    ("IPv6", out(41, in6())),
                    ("a label", out(137, labels_of([100], in4()))),
                    ("a label that ends here", out(137, labels_of([101], in4()))),
                    ("labels, IPv6", out(137, labels_of([100, 300], in6()))),
                ]
            ),
        )
for kind in ("gre", "ip6gre"):
    out = out6 if kind == "ip6gre" else out4
    Case(
        f"tunnel/{kind}/out-mpls",
        f"labelled packets out of {kind}",
        tunnel(kind) + MPLS_ON + ["sysctl -qw net.mpls.conf.tun1.input=1", "ip -f mpls route add 100 as 200 via inet 192.0.2.2 dev p0", "ip -f mpls route add 101 dev lo"],
        listed(
            [
                ("a label", out(47, gre(labels_of([100], in4()), proto=0x8847))),
                ("a label that ends here", out(47, gre(labels_of([101], in4()), proto=0x8847))),
                ("an unknown label", out(47, gre(labels_of([102], in4()), proto=0x8847))),
                ("upstream-assigned", out(47, gre(labels_of([100], in4()), proto=0x8848))),
            ]
        ),
    )

# ---------------------------------------------------------------------------- which tunnel it belongs to


def several(kind, tunnels):
    lines = list(BASE)
    for name, spec in tunnels:
        lines += [f"ip link add {name} type {kind} {spec}", f"ip link set {name} addrgenmode none", f"ip link set {name} up"]
    return lines


for kind in ("ipip", "sit", "gre"):
    mode = "mode any " if kind == "sit" else ""
    Case(
        f"tunnel/{kind}/which",
        f"{kind}: the tunnel is that of both ends, else of the far one, else of the near one",
        several(
            kind,
            [
                ("tun1", f"{mode}local 198.51.100.1 remote 198.51.100.2"),
                ("tun2", f"{mode}remote 198.51.100.3"),
                ("tun3", f"{mode}local 198.51.100.1"),
                ("tun4", f"{mode}local 192.0.2.1 remote 198.51.100.3"),
                ("tun5", f"{mode}local 192.0.2.1"),
            ],
        ),
        listed(
            [
                (label, carry(kind, in6() if kind == "sit" else in4(), src=src, dst=dst))
                for label, src, dst in [
                    ("both ends: tun1", FAR4, NEAR4),
                    ("the far end: tun2", "198.51.100.3", NEAR4),
                    ("the near end: tun3", "198.51.100.9", NEAR4),
                    ("both ends: tun4", "198.51.100.3", "192.0.2.1"),
                    ("the near end: tun5", "198.51.100.9", "192.0.2.1"),
                ]
            ]
        ),
    )
Case(
    "tunnel/gre/which-key",
    "gre: the tunnel is that of the key too",
    several(
        "gre",
        [
            ("tun1", f"{ENDS4} key 1"),
            ("tun2", f"{ENDS4} key 2"),
            ("tun3", ENDS4),
            ("tun4", "local 198.51.100.1 key 4"),
        ],
    ),
    listed([(f"key {k}", out4(47, gre(in4(), key=k))) for k in (1, 2, 4, 3, None, 0)]),
)
Case(
    "tunnel/ip6tnl/which",
    "ip6tnl: the tunnel is that of both ends, else of one",
    several(
        "ip6tnl",
        [
            ("tun1", f"mode any {ENDS6}"),
            ("tun2", "mode any remote 2001:db8:2::3"),
            ("tun3", "mode any local 2001:db8:2::1"),
            ("tun5", "mode any local 2001:db8:1::1"),
        ],
    ),
    listed(
        [
            (label, carry("ip6tnl", in4(), src=src, dst=dst))
            for label, src, dst in [
                ("both ends: tun1", FAR6, NEAR6),
                ("the far end: tun2", "2001:db8:2::3", NEAR6),
                ("the near end: tun3", "2001:db8:2::9", NEAR6),
                ("the far end, elsewhere: tun2", "2001:db8:2::3", "2001:db8:1::1"),
                ("the near end: tun5", "2001:db8:2::9", "2001:db8:1::1"),
            ]
        ]
    ),
)
for kind in ("ipip", "gre"):
    Case(
        f"tunnel/{kind}/transit",
        f"{kind}: outer packets for others pass",
        tunnel(kind),
        listed([("to another router", carry(kind, in4(), src="203.0.113.140", dst="203.0.113.7"))]),
    )

# ----------------------------------------------------------------------------------- no tunnel takes it


for wide in (False, True):
    out, own, source = (out6, "2001:db8:1::1", "2001:db8:1::1") if wide else (out4, "192.0.2.1", "192.0.2.1")
    inners = [("IPv4", 4, in4()), ("IPv6", 41, in6()), ("a label", 137, labels_of([100], in4()))]
    packets = [(label, out(protocol, inner)) for label, protocol, inner in inners]
    packets += [
        ("GRE", out(47, gre(in4()))),
        ("GRE, a key", out(47, gre(in4(), key=7))),
        ("GRE, a frame", out(47, gre(Ether(dst=MAC, src=FAR_MAC) / in4()))),
        ("GRE, a checksum", out(47, gre(in4(), csum=True))),
        ("GRE, a wrong checksum", out(47, gre(in4(), csum=True, bad=0x100))),
        ("GRE, an unknown protocol", out(47, gre(in4(), proto=0x1234))),
        ("GRE, routing", out(47, gre(in4(), flags=0x4000))),
        ("GRE, version 1", out(47, gre(in4(), flags=1))),
        ("GRE, version 2", out(47, gre(in4(), flags=2))),
        ("three bytes of GRE", out(47, Raw(b"\0\0\x08"))),
        ("GRE without its key", out(47, Raw(b"\x20\0\x08\0"))),
        ("to an address of another link", out(4, in4(), dst=own)),
        ("from an address of the router's", out(4, in4(), src=source)),
        ("TTL 1", out(4, in4(), **({"hlim": 1} if wide else {"ttl": 1}))),
        ("malformed inside", out(4, Raw(b"\x55" * 40))),
    ]
    for label, protocol, inner in inners:
        packets += [(f"{label}, {n} bytes", out(protocol, Raw(bytes(inner)[:n]))) for n in (0, 3, 4, 8, 19, 20, 39)]
    if wide:
        packets += [
            ("an authenticated packet", out6(51, Raw(bytes([4, 4]) + bytes(22) + bytes(in4())))),
            ("behind destination options", out(60, Raw(bytes([4, 0, 4, 1, 4, 1, 1, 0]) + bytes(in4())))),
            ("GRE behind destination options", out(60, Raw(bytes([47, 0, 1, 4, 0, 0, 0, 0]) + bytes(gre(in4()))))),
        ]
    Case(
        f"tunnel/none/out{6 if wide else 4}",
        "packets inside others, for the router, where there is no tunnel",
        BASE,
        listed(packets),
    )

for kind in ["gretap", "ip6gretap"]:
    wide = kind.startswith("ip6")
    stations = [
        ("for the tunnel", MAC),
        ("for another station", "02:00:00:00:99:99"),
        ("a broadcast", "ff:ff:ff:ff:ff:ff"),
        ("for a group", "01:00:5e:00:00:05"),
    ]
    Case(
        f"tunnel/{kind}/other-station",
        f"out of {kind}: frames for other stations are not forwarded (RFC 1812 section 5.3.4)",
        tunnel(kind),
        listed(
            (label, (out6 if wide else out4)(47, gre(Ether(dst=station, src=FAR_MAC) / in4())))
            for label, station in stations
        ),
        expect={0: [to_p0(hops(in4()))]},
        differs="it forwards them all" if wide else None,
        links=False,
    )

UNKNOWN = [("of no type that is known", 0xC633), ("with a length", 0x05DC), ("of ARP", 0x0806), ("with labels", 0x8847)]
Case(
    "tunnel/gretap/other-station-type",
    "out of gretap: frames for another station, of a type that nobody takes, are counted as dropped",
    tunnel("gretap"),
    listed((what, out4(47, gre(Ether(dst="02:00:00:00:99:99", src=FAR_MAC, type=kind) / Raw(bytes(60))))) for what, kind in UNKNOWN),
    links=True,
)
Case(
    "tunnel/gre/tagged",
    "out of gre: what has a tag for an EtherType is taken if that gives only a priority",
    tunnel("gre"),
    listed(
        (f"{what}, {name}", out4(47, gre(tag / packet, proto=0x8100)))
        for what, tag in [("a priority", Dot1Q(vlan=0, prio=3)), ("a VLAN", Dot1Q(vlan=5)), ("no type that is known", Dot1Q(vlan=0, type=0xC633))]
        for name, packet in [("IPv4", in4()), ("IPv6", in6())]
    ),
    links=True,
)

Case(
    "tunnel/ip6tnl/no-way-vrf",
    "A tunnel in a VRF, whose packets have no way: what the sender hears comes from the VRF, if it does not leave there.",
    VRF
    + [
        "ip link add tun1 type ip6tnl local 2001:db8:9::1 remote 2001:db8:f::9",
        "ip link set tun1 master vrf100",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
        "ip -6 route add 2001:db8:b::/48 dev tun1",
        "sysctl -qw net.mpls.platform_labels=1000",
        "sysctl -qw net.mpls.conf.p0.input=1",
        "ip -f mpls route add 100 dev lo",
    ],
    [
        ("by p0", ether(ip6("2001:db8:b::9") / udp())),
        ("by p1", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:b::9") / udp()),
        ("by a label", Ether(dst=P0, src=N0, type=0x8847) / labels_of([100], ip6("2001:db8:b::9") / udp())),
    ],
    links=False,
)

Case(
    "tunnel/ip6tnl/no-way-sender-in-vrf",
    "A tunnel in a VRF, whose packets have no way: the sender, to whom only the VRF leads, hears of it.",
    VRF
    + [
        "ip link add tun1 type ip6tnl local 2001:db8:2::1 remote 2001:db8:f::9 mode any dev p1",
        "ip link set tun1 master vrf100",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
        "ip route add 10.7.0.0/16 dev tun1",
    ],
    differs="it says host unreachable",
    **io([("IPv4", ether(ip4("10.7.0.7", TARGET4) / udp()), [to_p1(icmp4(hops(ip4("10.7.0.7", TARGET4) / udp()), 3, 0, src="198.51.100.1", dst=TARGET4))])]),
    links=False,
)

Case(
    "tunnel/ip6tnl/out-vrf-rule",
    "Out of a tunnel whose local address is outside the VRF by which packets come, where rules look at more than where they go.",
    VRF
    + [
        "ip -6 rule add from 2001:db8:99::/48 unreachable pref 0",
        "ip link add tun1 type ip6tnl local 2001:db8:1::1 remote 2001:db8:f::9 mode any",
        "ip link set tun1 addrgenmode none",
        "ip link set tun1 up",
    ],
    [
        (what, "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:1::1", src="2001:db8:f::9", nh=nh) / inside)
        for what, nh, inside in (("IPv4", 4, ip4(SOURCE4, src=TARGET4) / udp()), ("IPv6", 41, ip6(SOURCE, src=TARGET) / udp()))
    ],
)

Case(
    "tunnel/ip6tnl/out-dev-vrf",
    "Out of tunnels that are bound to a link of a VRF: nothing for an address that is outside the VRF.",
    BASE
    + [
        "ip link add vrf100 type vrf table 100",
        "ip link set vrf100 up",
        "ip link set p0 master vrf100",
        "ip -6 addr add 2001:db8:1::1/64 dev p0 nodad",
        "ip link add tun1 type ip6tnl local 2001:db8:2::1 remote 2001:db8:f::9 mode any dev p0",
        "ip link add tun2 type ip6tnl local 2001:db8:1::1 remote 2001:db8:f::9 mode any dev p0",
        *(f"ip link set {name} {what}" for name in ("tun1", "tun2") for what in ("addrgenmode none", "up")),
        "ip -6 route add 2001:db8:77::/48 via 2001:db8:2::2",
    ],
    [
        ("outside", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:2::1", src="2001:db8:f::9", nh=41) / in6(dst="2001:db8:77::7")),
        ("in the VRF", "p0", Ether(dst=P0, src=N0) / ip6("2001:db8:1::1", src="2001:db8:f::9", nh=41) / in6(dst="2001:db8:77::7")),
    ],
)

# Tunnels without a local address take what is for a broadcast address, too.
for kind in ("ipip", "sit", "gre", "gretap"):
    Case(
        f"tunnel/{kind}/out-broadcast",
        f"Out of {kind} without ends, and with a remote address alone: what is for a broadcast address of a link, and for all.",
        tunnel(kind, ends="dev p1")
        + [f"ip link add tun2 {f'address {MAC} ' * kind.endswith('tap')}type {kind} remote 198.51.100.9", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]
        + ["ip link add tun3 type ipip local 198.51.100.1 remote 198.51.100.8", "ip link set tun3 up"] * (kind == "ipip"),
        [
            (f"{what}, {label}", "p1", Ether(dst=station, src=N1) / carry(kind, inner, src=src, dst=dst))
            for what, inner in [("IPv4", in4()), ("IPv6", in6())][kind == "sit" : 2 if kind != "ipip" else 1]
            for label, src, dst, station in [
                ("a broadcast", FAR4, "198.51.100.255", P1),
                ("a broadcast, in a frame for all", FAR4, "198.51.100.255", "ff:ff:ff:ff:ff:ff"),
                ("of another link", FAR4, "192.0.2.255", P1),
                ("of the second tunnel", "198.51.100.9", "198.51.100.255", P1),
                ("of one with a local address", "198.51.100.8", "198.51.100.255", P1),
                ("from the router", "198.51.100.1", "198.51.100.255", P1),
                ("for all", FAR4, "255.255.255.255", "ff:ff:ff:ff:ff:ff"),
                ("for all nodes", FAR4, "224.0.0.1", "01:00:5e:00:00:01"),
            ]
        ]
        + [("for no tunnel", "p1", Ether(dst=P1, src=N1) / out4(4 if "gre" in kind else 47, in4() if "gre" in kind else gre(in4()), dst="198.51.100.255"))],
    )

for kind in ("gretap", "ip6gretap"):
    wide = kind.startswith("ip6")
    Case(
        f"tunnel/{kind}/short-frame",
        f"out of {kind}: what is too short for a frame is dropped; over IPv6 also where no tunnel takes it, of which nobody hears then",
        tunnel(kind),
        listed(
            (f"{size} bytes{what}", (out6 if wide else out4)(47, gre(Raw(bytes(range(size))), proto=0x6558, **fields)))
            for what, fields in [("", {}), (", with a key that no tunnel has", {"key": 9})]
            for size in (0, 4, 13, 14)
        ),
        links=True,
    )
