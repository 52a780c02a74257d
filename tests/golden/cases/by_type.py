"""What an action sends into a tunnel: what it is its EtherType says, whatever it looks like; and where a tunnel of frames gets a
packet without an Ethernet header, that packet says what the outer header inherits.
"""

from .frames import *
from .tunnel import MAC, tunnel
from .tunnel_out import carry, in4, in6
from .tunnel_qos import KINDS

REDIRECT = ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol all matchall action mirred egress redirect dev tun1"]
IP4, IP6 = 0x0800, 0x86DD


def typed(kind, packet):
    """A frame with an EtherType that need not be that of its packet."""
    return Ether(dst=P0, src=N0, type=kind) / Raw(bytes(packet))


def odd(first, second):
    """A packet that begins with these bytes."""
    return bytes([first, second]) + bytes(ip4() / udp())[2:]


PACKETS = [
    ("an IPv6 packet as IPv4", typed(IP4, ip6() / udp())),
    ("an IPv4 packet as IPv6", typed(IP6, ip4() / udp())),
    ("an IPv4 packet with ECN as IPv6", typed(IP6, odd(0x45, 0x3F))),
    ("a packet of version 0 as IPv4", typed(IP4, odd(0, 3))),
    ("a packet of version 15 as IPv4", typed(IP4, odd(0xF5, 2))),
    ("a packet of version 0 as IPv6", typed(IP6, odd(0x0F, 0x3F))),
]

for kind in KINDS:
    Case(
        f"tunnel/by-type/{kind}",
        f"An action sends into {kind} what its EtherType contradicts.",
        tunnel(kind, "mode any" if kind in ("ipip", "sit", "ip6tnl") else "") + REDIRECT,
        PACKETS,
        remembers=True,
    )
    Case(
        f"tunnel/by-type/{kind}-inherits",
        "The same, and the outer header inherits.",
        tunnel(kind, ("mode any " if kind in ("ipip", "sit", "ip6tnl") else "") + ("tclass inherit" if kind.startswith("ip6") else "tos inherit ttl inherit")) + REDIRECT,
        PACKETS,
        remembers=True,
    )

for kind in ("gretap", "ip6gretap"):
    for words in ("", "inherits"):
        options = {"": "", "inherits": "tclass inherit" if kind.startswith("ip6") else "tos inherit"}[words]
        Case(
            f"tunnel/frameless/{kind}{'-' * bool(words)}{words}",
            f"What comes out of sit has no Ethernet header, and is mirrored into {kind}.",
            tunnel(kind, options)
            + [
                "ip link add tun2 type sit local 198.51.100.1 remote 198.51.100.2 mode any",
                "ip link set tun2 addrgenmode none",
                "ip link set tun2 up",
                "tc qdisc add dev tun2 clsact",
                "tc filter add dev tun2 ingress protocol all matchall action mirred egress mirror dev tun1",
            ],
            [
                (label, "p1", Ether(dst=P1, src=N1) / carry("sit", packet))
                for label, packet in [("IPv4", in4(tos=0x2A, ttl=7)), ("congestion", in4(tos=3, ttl=7)), ("IPv6", in6(tos=0x2A, hlim=7))]
            ],
            remembers=True,
        )

FAR6 = "2001:db8:2::2"
for kind in ("gretap", "ip6gretap"):
    for words in ("", "inherits"):
        options = {"": "", "inherits": "tclass inherit" if kind.startswith("ip6") else "tos inherit"}[words]
        Case(
            f"tunnel/tagged/{kind}{'-' * bool(words)}{words}",
            f"An action sends frames with tags into {kind}: the packet behind them says what the outer header inherits.",
            tunnel(kind, options) + REDIRECT,
            [
                (label, Ether(dst=P0, src=N0) / tags / packet)
                for what, tags in [("a tag", Dot1Q(vlan=5)), ("two tags", Dot1Q(vlan=7) / Dot1Q(vlan=5)), ("a priority", Dot1Q(vlan=0, prio=3))]
                for label, packet in [
                    (f"{what}, IPv4", IP(src=SOURCE4, dst=TARGET4, ttl=7, tos=0x2A, id=9) / udp()),
                    (f"{what}, IPv6", IPv6(src=SOURCE, dst=TARGET, hlim=7, tc=0x2A) / udp()),
                    (f"{what}, IPv6 from the far end", IPv6(src=FAR6, dst=TARGET, hlim=7) / udp()),
                ]
            ],
            remembers=True,
        )

for kind in ("gretap", "ip6gretap"):
    Case(
        f"tunnel/tagged/{kind}-long",
        f"An action sends frames with tags into {kind} that are too long for it: over IPv6 the sender of the packet behind them hears of it.",
        tunnel(kind) + REDIRECT,
        [
            (f"{what}, {name} of {size} bytes", Ether(dst=P0, src=N0) / tags / packet(size))
            for what, tags in [("a tag", Dot1Q(vlan=5)), ("two tags", Dot1Q(vlan=7) / Dot1Q(vlan=5)), ("a priority", Dot1Q(vlan=0, prio=3))]
            for name, packet in [
                ("IPv4", lambda size: IP(src=SOURCE4, dst=TARGET4, flags="DF", id=9) / udp(size - 28)),
                ("IPv6", lambda size: IPv6(src=SOURCE, dst=TARGET) / udp(size - 48)),
            ]
            for size in (1426, 1430, 1431, 1480)
        ],
        remembers=True,
    )

# By p1, so that what comes in by p0 once more is routed there.
for into in ("bareudp dstport 6635 ethertype ipv4", "gretap local 198.51.100.1 remote 198.51.100.77 key 9"):
    Case(
        f"tunnel/of-whom/{into.split()[0]}",
        "Whose a frame is stays so behind a tunnel that a filter sends it into: one for another station does not come in by p0.",
        tunnel("gretap")
        + [
            f"ip link add tun2 type {into}",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
            "tc qdisc add dev tun1 clsact",
            "tc filter add dev tun1 ingress protocol all matchall action mirred egress redirect dev tun2",
            "tc qdisc add dev tun2 clsact",
            "tc filter add dev tun2 egress protocol all matchall action mirred ingress mirror dev p0 pipe action drop",
        ],
        [
            (label, "p1", Ether(dst=P1, src=N1) / IP(src="198.51.100.2", dst="198.51.100.1", proto=47) / Raw(b"\0\0\x65\x58") / Ether(dst=mac, src="02:00:00:00:09:02") / IP(src=SOURCE4, dst=TARGET4, ttl=9, id=9) / udp())
            for label, mac in [("for it", MAC), ("for another station", "02:00:00:00:09:01"), ("for all", "ff:ff:ff:ff:ff:ff"), ("for p0", P0)]
        ],
        remembers=True,
    )
