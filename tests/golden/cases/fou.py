"""Out of foo-over-UDP and GUE: the receive ports, and what must not get through them. draft-ietf-intarea-gue-09,
draft-herbert-remotecsumoffload, RFC 7510."""

from scapy.layers.inet6 import in6_chksum
from scapy.utils import checksum

from .frames import *
from .tunnel import FAR_MAC, MAC, MPLS_ON, labels_of, tunnel
from .tunnel_out import FAR4, FAR6, NEAR4, NEAR6, gre, in4, in6, inside, listed, out4, out6


def over_udp(inner, dport=5555, sport=4444, csum=True, bad=0, length=None, wide=False, **more):
    """An outer packet with UDP; `csum` 0 for none, `bad` is added to it."""
    inner = bytes(inner)
    head = UDP(sport=sport, dport=dport, len=8 + len(inner) if length is None else length)
    if not csum:
        head.chksum = 0
    whole = (out6 if wide else out4)(17, head / Raw(inner), **more)
    outer = IPv6(bytes(whole)) if wide else IP(bytes(whole))
    at = 40 if wide else 20
    data = bytearray(bytes(whole)[at:])
    data[6:8] = b"\0\0"
    if csum:
        if wide:
            sum = in6_chksum(17, outer, bytes(data))
        else:
            pseudo = outer.src, outer.dst
            pseudo = b"".join(ip_address(a).packed for a in pseudo) + struct.pack("!HH", 17, len(data))
            sum = checksum(pseudo + bytes(data))
        data[6:8] = struct.pack("!H", (sum or 0xFFFF) ^ bad)
    return outer.__class__(bytes(whole)[:at] + bytes(data))


def gue(proto, inner, private=None, remote=None, version=0, control=False, flags=0, hlen=None, extra=b""):
    """`private`: the private flags; `remote`: start and offset of a remote checksum."""
    tail = b""
    if remote is not None and private is None:
        private = 0x80000000
    if private is not None:
        flags |= 1
        tail += struct.pack("!I", private)
    if remote is not None:
        tail += struct.pack("!HH", *remote)
    tail += extra
    if hlen is None:
        hlen = len(tail) // 4
    return struct.pack("!BBH", version << 6 | control << 5 | hlen, proto, flags) + tail + bytes(inner)


PORT = "ip fou add port 5555 "
BOTH = [("", False), ("6", True)]


def ports(lines, kind="ipip", options="", **more):
    return tunnel(kind, options, after=lines, **more)


for suffix, wide in BOTH:
    family = "ip -6 fou add port 5555 " if wide else PORT
    ipip, ipip_options = ("ip6tnl", "mode any") if wide else ("ipip", "")
    make = lambda inner, **more: over_udp(inner, wide=wide, **more)
    Case(
        f"tunnel/fou{suffix}/ipip",
        "a port of IPv4 packets",
        ports([family + "ipproto 4"], ipip, ipip_options),
        listed(
            [
                ("checksum", make(in4())),
                ("no checksum", make(in4(), csum=False)),
                ("wrong checksum", make(in4(), bad=0x10)),
                ("odd length", make(in4(n=63))),
                ("another source port", make(in4(), sport=1)),
                ("another port", make(in4(), dport=5556)),
                ("IPv6 inside", make(in6())),
                ("UDP length too long", make(in4(), length=500)),
                ("UDP length too short", make(in4(), length=40)),
                ("UDP length 7", make(in4(), length=7)),
                ("a UDP header and nothing more", make(b"")),
                ("four bytes", make(b"\x45\0\0\x54")),
                ("TTL 1 inside", make(in4(ttl=1))),
                ("ECN", make(in4(0xB9), tos=3)),
            ]
        ),
    )
    Case(
        f"tunnel/fou{suffix}/sit",
        "a port of IPv6 packets",
        ports([family + "ipproto 41"], "ip6tnl" if wide else "sit", "mode any" if wide else ""),
        listed([("checksum", make(in6())), ("no checksum", make(in6(), csum=False)), ("wrong", make(in6(), bad=1))]),
    )
    Case(
        f"tunnel/fou{suffix}/gre",
        "a port of GRE",
        ports([family + "ipproto 47"], "ip6gre" if wide else "gre", "key 7"),
        listed(
            [
                ("IPv4", make(gre(in4(), key=7))),
                ("IPv6, no checksum", make(gre(in6(), key=7), csum=False)),
                ("a GRE checksum", make(gre(in4(), key=7, csum=True), csum=False)),
                ("a wrong GRE checksum", make(gre(in4(), key=7, csum=True, bad=4))),
            ]
        ),
    )
    Case(
        f"tunnel/fou{suffix}/gretap",
        "a port of GRE with Ethernet",
        ports([family + "ipproto 47"], "ip6gretap" if wide else "gretap"),
        listed([("IPv4", make(gre(Ether(dst=MAC, src=FAR_MAC) / in4()))), ("IPv6", make(gre(Ether(dst=MAC, src=FAR_MAC) / in6())))]),
    )
    Case(
        f"tunnel/fou{suffix}/gue",
        "a GUE port",
        ports([family + "gue"], ipip, ipip_options),
        listed(
            [
                ("IPv4", make(gue(4, in4()))),
                ("no checksum", make(gue(4, in4()), csum=False)),
                ("wrong checksum", make(gue(4, in4()), bad=1)),
                *([("IPv6", make(gue(41, in6())))] if wide else []),
                ("variant 1, IPv4", make(in4())),
                *([("variant 1, IPv6", make(in6()))] if wide else []),
                ("variant 1, neither", make(Raw(b"\x55" + bytes(in4())[1:]))),
                ("variant 2", make(gue(4, in4(), version=2))),
                ("variant 3", make(gue(4, in4(), version=3))),
                ("a control message", make(gue(1, in4(), control=True))),
                ("an unknown flag", make(gue(4, in4(), flags=0x8000))),
                ("private data", make(gue(4, in4(), private=0))),
                ("unknown private flags", make(gue(4, in4(), private=0x40000000))),
                ("fields that no flag announces", make(gue(4, in4(), extra=bytes(8)))),
                ("a header beyond the packet", make(gue(4, b"", hlen=31))),
                ("a header of 128 bytes", make(gue(4, in4(), extra=bytes(124)))),
                ("flags beyond the header", make(gue(4, in4(), flags=1, hlen=0))),
                ("three bytes", make(b"\0\x04\0")),
                ("a header alone", make(gue(4, b""))),
                ("protocol 0", make(gue(0, in4()))),
                ("a ping of the router", make(gue(58 if wide else 1, bytes(8)))),
            ]
        ),
    )
    sums = lambda p, at: bytes(p)[:at] + struct.pack("!H", 0) + bytes(p)[at + 2 :]

    def unfinished(p):
        """The packet with the sum of the pseudo header in the place of its UDP checksum, as a sender of a partial
        checksum leaves it; and where the sum starts and goes."""
        data = bytearray(bytes(p))
        at = 20 if isinstance(p, IP) else 40
        length = len(data) - at
        addresses = bytes(data[12:20]) if at == 20 else bytes(data[8:40])
        sum = ~checksum(addresses + struct.pack("!HH", 17, length)) & 0xFFFF
        data[at + 6 : at + 8] = struct.pack("!H", sum)
        return bytes(data), (at, at + 6)

    four, where4 = unfinished(in4())
    six, where6 = unfinished(in6())
    odd, where_odd = unfinished(in4(n=63))
    Case(
        f"tunnel/fou{suffix}/remcsum",
        "remote checksum offload",
        ports([family + "gue"], ipip, ipip_options),
        listed(
            [
                ("IPv4", make(gue(4, four, remote=where4))),
                *([("IPv6", make(gue(41, six, remote=where6)))] if wide else []),
                ("odd length", make(gue(4, odd, remote=where_odd))),
                ("no outer checksum", make(gue(4, four, remote=where4), csum=False)),
                ("a start beyond the packet", make(gue(4, four, remote=(1000, 1006)))),
                ("an offset beyond the packet", make(gue(4, four, remote=(20, len(four))))),
                ("an offset at its very end", make(gue(4, four, remote=(20, len(four) - 2)))),
                ("an odd offset", make(gue(4, four, remote=(20, 27)))),
                ("a flag without its field", make(gue(4, four, private=0x80000000))),
            ]
        ),
    )
    Case(
        f"tunnel/fou{suffix}/remcsum-nopartial",
        "remote checksum offload that is completed at once",
        ports([family + "gue"], ipip, ipip_options),
        listed([("IPv4", make(gue(4, four, remote=where4)))]),
    )

    def nested(levels, inner=None):
        data = gue(4, in4()) if inner is None else inner
        for _ in range(levels):
            data = gue(17, bytes(UDP(sport=1, dport=5555, chksum=0, len=8 + len(data))) + data)
        return data

    Case(
        f"tunnel/fou{suffix}/nested",
        "GUE in GUE",
        ports([family + "gue"], ipip, ipip_options),
        listed(
            [
                ("once", make(nested(1))),
                ("twice", make(nested(2))),
                ("a port in itself", make(gue(17, bytes(UDP(sport=1, dport=5555, chksum=0, len=8))))),
            ]
        ),
    )
    Case(
        f"tunnel/fou{suffix}/ipproto-17",
        "a port of UDP: the port again",
        ports([family + "ipproto 17", family.replace("5555", "5557") + "ipproto 4"], ipip, ipip_options),
        listed(
            [
                ("to a port of IPv4", make(bytes(UDP(sport=1, dport=5557, chksum=0, len=8 + len(in4()))) + bytes(in4()))),
            ]
        ),
    )
    at = (NEAR6, "2001:db8:1::1", FAR6, "2001:db8:2::3") if wide else (NEAR4, "192.0.2.1", FAR4, "198.51.100.3")
    mode = "mode any" if wide else ""
    Case(
        f"tunnel/fou{suffix}/local",
        "a port of one address",
        tunnel(ipip, mode, ends=f"remote {at[2]}", after=[family + f"ipproto 4 local {at[0]}"]),
        listed([("to it", make(in4())), ("to another", make(in4(), dst=at[1]))]),
    )
    Case(
        f"tunnel/fou{suffix}/peer",
        "a port of one peer",
        tunnel(ipip, mode, ends=f"local {at[0]}", after=[family + f"ipproto 4 local {at[0]} peer {at[2]} peer_port 4444"]),
        listed([("from it", make(in4())), ("from another port", make(in4(), sport=4445)), ("from another", make(in4(), src=at[3]))]),
    )
    Case(
        f"tunnel/fou{suffix}/dev",
        "a port of one device",
        tunnel(ipip, mode, ends=f"local {at[0]}", after=[family + f"ipproto 4 local {at[0]} dev p1"]),
        [("by it", *listed([("", make(in4()))])[0][1:]), ("by another", "p0", ether(make(in4())))],
    )
    Case(
        f"tunnel/fou{suffix}/vrf",
        "ports and a VRF: what comes in by it is for those of the VRF and of its links",
        tunnel(
            ipip,
            mode,
            base=VRF,
            after=[family + "ipproto 4", *(family.replace("5555", str(port)) + f"ipproto 4 local {at[0]} dev {dev}" for port, dev in [(5556, "vrf100"), (5557, "p1")])],
        ),
        listed([("of none", make(in4())), ("of the VRF", make(in4(), dport=5556)), ("of its link", make(in4(), dport=5557))]),
    )
    Case(
        f"tunnel/fou{suffix}/both",
        "ports of an address and of none",
        tunnel(ipip, mode, ends=f"local {at[0]}", after=[family + "ipproto 47", family.replace("5555", "5556") + "ipproto 4"]),
        listed([("GRE that nobody waits for", make(in4())), ("IPv4", make(in4(), dport=5556))]),
    )

Case(
    "tunnel/fou/both-families",
    "one number, two families, two protocols",
    ports([PORT + "ipproto 4", "ip -6 fou add port 5555 ipproto 41"])
    + ["ip link add tun2 type ip6tnl mode any local 2001:db8:2::1 remote 2001:db8:2::2", "ip link set tun2 addrgenmode none", "ip link set tun2 up"],
    listed([("IPv4 by IPv4", over_udp(in4())), ("IPv6 by IPv6", over_udp(in6(), wide=True)), ("IPv4 by IPv6", over_udp(in4(), wide=True))]),
)
Case(
    "tunnel/fou/mpls",
    "labelled packets in UDP",
    tunnel("ipip", "mode any")
    + MPLS_ON
    + [
        "sysctl -qw net.mpls.conf.tun1.input=1",
        "ip -f mpls route add 100 as 200 via inet 192.0.2.2 dev p0",
        "ip -f mpls route add 101 dev lo",
        "ip fou add port 6635 ipproto 137",
    ],
    listed(
        [
            ("a label", over_udp(labels_of([100], in4()), dport=6635)),
            ("no checksum", over_udp(labels_of([100], in4()), dport=6635, csum=False)),
            ("a label that ends here", over_udp(labels_of([101], in6()), dport=6635)),
            ("an unknown label", over_udp(labels_of([102], in6()), dport=6635)),
            ("no label", over_udp(b"\0\0", dport=6635)),
        ]
    ),
)

UNKNOWN = [over_udp(gue(253, bytes(range(64)))), over_udp(gue(255, in4()))]
Case(
    "tunnel/fou/gue-unknown",
    "a GUE port, and what nobody listens for inside: its sender is told of the datagram as it came",
    ports(["ip fou add port 5555 gue"], "ipip", ""),
    listed([("protocol 253", UNKNOWN[0]), ("protocol 255", UNKNOWN[1])]),
    expect={n: [to_p1(icmp4(quoted, 3, 2, src=NEAR4, dst=FAR4))] for n, quoted in enumerate(UNKNOWN)},
    differs="it quotes the datagram with the length of what it has taken off missing",
)


def with_more(p, more=b"trailing"):
    """The datagram with bytes behind its end, which the outer header counts."""
    at, out = (40, out6) if isinstance(p, IPv6) else (20, out4)
    return out(17, bytes(p)[at:] + more)


def up_to_end(error, more=8):
    """The error without what it quotes from behind the end of the datagram."""
    error[Raw].load = error[Raw].load[:-more]
    return error


BEHIND = [with_more(over_udp(in6())), with_more(over_udp(gue(253, bytes(range(64))), dport=5556)), with_more(over_udp(in4(), wide=True))]
Case(
    "tunnel/fou/behind-its-end",
    "bytes behind the end of datagrams that no tunnel takes: their senders are told of them up to there",
    ports(["ip fou add port 5555 ipproto 41", "ip fou add port 5556 gue", "ip -6 fou add port 5555 ipproto 4"], "ipip", ""),
    listed([("IPv6", BEHIND[0]), ("an unknown protocol", BEHIND[1]), ("in IPv6", BEHIND[2])]),
    expect={
        0: [to_p1(up_to_end(icmp4(BEHIND[0], 3, 3, src=NEAR4, dst=FAR4)))],
        1: [to_p1(up_to_end(icmp4(BEHIND[1], 3, 2, src=NEAR4, dst=FAR4)))],
        2: [to_p1(up_to_end(IPv6(src=NEAR6, dst=FAR6, hlim=64) / ICMPv6DestUnreach(code=4) / Raw(bytes(BEHIND[2]))))],
    },
    differs="it quotes the datagram with the length of what it has taken off missing",
)
for suffix, wide in BOTH:
    ping = IPv6(src=FAR6, dst=NEAR6) / ICMPv6EchoRequest(id=7, seq=1, data=b"ping") if wide else IP() / ICMP(id=7, seq=1) / Raw(b"ping")
    ping = bytes(ping)[40 if wide else 20 :]
    Case(
        f"tunnel/fou{suffix}/ping-behind-its-end",
        "a ping in a datagram with bytes behind its end",
        ports([("ip -6 fou" if wide else "ip fou") + " add port 5555 gue"], "ipip", ""),
        listed([("a ping", with_more(over_udp(gue(58 if wide else 1, ping), wide=wide)))]),
    )
