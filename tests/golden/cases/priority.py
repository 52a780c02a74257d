"""skb->priority: what forwarding and actions make of it, and what queueing disciplines and filters make of that."""

from scapy.contrib.mpls import MPLS

from .frames import *
from .qdisc import CLASSES, ROOT, queues
from .qos import EGRESS, INGRESS, filters
from .tunnel import IN4, IN6, MPLS_ON, tunnel

INGRESS_HOOK = "tc qdisc add dev p0 clsact"
TOS = [0x00, 0x02, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C, 0x1E, 0x20, 0xB8, 0xF0]


def v4(tos=0, dst=TARGET4, ttl=40, **more):
    return IP(src=SOURCE4, dst=dst, ttl=ttl, tos=tos, id=0x4321, **more)


def v6(tc=0, dst=TARGET, hlim=40):
    return IPv6(src=SOURCE, dst=dst, hlim=hlim, tc=tc)


def classed(*classes, packet=v4, n=100):
    """UDP packets of one TOS or traffic class each."""
    return [(f"IP{packet.__name__}, class {c:#x}", packet(c) / udp(n + i)) for i, c in enumerate(classes)]


def meter(dev, place="egress"):
    """Counts packets by their priority, from 0 to 7 and two handles. At ports not those to groups, which Linux sends itself."""
    values = [*range(8), 0x10002, 0x10020]
    unicast = " and cmp(u8 at 0 layer link eq 2)" if dev.startswith("p") else ""
    return [f"tc filter add dev {dev} {place} protocol all prio {n} basic match 'meta(priority eq {v}){unicast}' classid 1:{n} action pass" for n, v in enumerate(values, 1)]


def edit(family, what):
    return f"tc filter add dev p0 ingress protocol {family} matchall action skbedit {what}"


MIXED = classed(*TOS) + classed(*TOS[::3], packet=v6)
ERRORS = [
    ("IPv4, TTL 1, TOS 0x10", v4(tos=0x10, ttl=1) / udp()),
    ("IPv4, no route, TOS 0x8", v4(dst="192.168.7.7", tos=0x08) / udp()),
    ("IPv6, hop limit 1", v6(tc=0x10, hlim=1) / udp()),
]
ECHO = [
    ("echo request, TOS 0x10", IP(src=SOURCE4, dst="192.0.2.1", tos=0x10, id=0) / ICMP(type=8, id=7, seq=1) / payload(20)),
    ("IPv6 echo request", v6(dst="2001:db8:1::1", tc=0x10) / ICMPv6EchoRequest(id=7, seq=1, data=b"a" * 20)),
]

# ------------------------------------------------------------------------------------------ queueing disciplines

queues("priority/prio", "prio: bands by TOS.", ["tc qdisc add dev p1 root handle 1: prio"], MIXED)
queues(
    "priority/prio-map",
    "prio: a priomap of its own.",
    ["tc qdisc add dev p1 root handle 1: prio bands 5 priomap 0 1 2 3 4 3 2 1 0 1 2 3 4 3 2 1"],
    MIXED,
)
queues(
    "priority/prio-htb",
    "prio above HTB and HTB above prio: each looks at the priority.",
    [
        "tc qdisc add dev p1 root handle 1: htb default 10",
        "tc class add dev p1 parent 1: classid 1:10 htb rate 1gbit",
        "tc class add dev p1 parent 1: classid 1:20 htb rate 1gbit",
        "tc qdisc add dev p1 parent 1:10 handle 10: prio",
        "tc qdisc add dev p1 parent 1:20 handle 20: prio",
        "tc filter add dev p1 parent 1: protocol ip prio 1 basic match 'meta(priority eq 6)' flowid 1:20",
    ],
    MIXED,
)
SETS = ["0x10020", "0x10010", "0x10000", "0x10001", "0x20010", "0x10099", "2", "6", "15", "16", "0xffffffff"]
for kind, lines in {
    "htb": [
        "tc qdisc add dev p1 root handle 1: htb default 10",
        "tc class add dev p1 parent 1: classid 1:1 htb rate 1gbit",
        "tc class add dev p1 parent 1:1 classid 1:10 htb rate 1gbit",
        "tc class add dev p1 parent 1:1 classid 1:20 htb rate 1gbit",
        "tc filter add dev p1 parent 1:1 protocol all matchall classid 1:20",
    ],
    "prio": ["tc qdisc add dev p1 root handle 1: prio bands 4"],
    "fq_codel": ["tc qdisc add dev p1 root handle 1: fq_codel flows 64"],
    "pfifo_fast": ["tc qdisc add dev p1 root handle 1: pfifo_fast"],
}.items():
    for where in ["ingress", "egress"]:
        hook, place = ("p0", "ingress") if where == "ingress" else ("p1", "egress")
        queues(
            f"priority/{kind}-{where}",
            f"{kind}: a priority that skbedit sets at {where} chooses. Forwarded IPv4 has that of its TOS.",
            lines
            + [f"tc qdisc add dev {hook} clsact"]
            + [
                f"tc filter add dev {hook} {place} protocol {family} prio {n} u32 match {word} sport {1000 + n // 2} 0xffff action skbedit priority {value}"
                for n, (value, family, word) in enumerate(
                    [(v, *f) for v in SETS for f in [("ip", "ip"), ("ipv6", "ip6")]], 2
                )
            ],
            [
                (f"IP{p.__name__}, priority {v}", p() / UDP(sport=1001 + i, dport=2222) / payload(20 + i))
                for i, v in enumerate(SETS)
                for p in (v4, v6)
            ],
        )

# ------------------------------------------------------------------------------------------ who has which


def metered(name, doc, lines, frames, remembers=False):
    filters(f"priority/{name}", doc, meter("p1") + lines, frames, shows=(EGRESS,), remembers=remembers)


metered("forwarded", "Forwarded packets: IPv4 by its TOS, IPv6 none.", [], MIXED)
metered("skbedit", "What skbedit sets at ingress stays with IPv6 alone.", [edit("all", "priority 1:2")], MIXED)
metered("dsfield", "skbedit inheritdsfield at ingress.", [edit("all", "inheritdsfield")], MIXED)
filters(
    "priority/dsfield-short",
    "skbedit inheritdsfield drops what is too short for an IP header.",
    ["protocol all matchall action skbedit inheritdsfield"],
    [
        (f"{n} bytes of {what}", Ether(bytes(Ether(dst=P0, src=N0) / packet)[: 14 + n]))
        for what, packet, sizes in (("IPv4", v4() / udp(), (19, 20)), ("IPv6", v6() / udp(), (24, 39, 40)))
        for n in sizes
    ],
    shows=(INGRESS, "tc -s qdisc show dev p0"),
)
metered("redirect", "What is redirected is not forwarded.", [edit("all", "priority 1:20 pipe action mirred egress redirect dev p1")], MIXED)
metered("redirect-plain", "What is redirected has none.", ["protocol all matchall action mirred egress redirect dev p1"], MIXED)
metered("mirror", "A copy has none, the packet its own.", ["protocol all matchall action mirred egress mirror dev p1"], MIXED, remembers=True)
filters(
    "priority/errors",
    "Errors and echo replies of the router.",
    meter("p0"),
    ERRORS + ECHO,
    shows=("tc -s filter show dev p0 egress",),
)
filters(
    "priority/errors-skbedit",
    "The same about packets that had a priority.",
    meter("p0") + [edit("all", "priority 1:2")],
    ERRORS + ECHO,
    shows=("tc -s filter show dev p0 egress",),
)
FRAGMENTS = [("IPv4 to be fragmented, TOS 0x10", v4(tos=0x10, flags=0) / udp(1300))]
Case(
    "qos/priority/fragments",
    "Fragments have that of the packet.",
    SMALL + ["tc qdisc add dev p1 clsact"] + meter("p1"),
    [(label, ether(p)) for label, p in FRAGMENTS],
    shows=(EGRESS,),
    links=False,
)
for name, routes in {
    "mpls": ["ip route add 203.0.113.200/32 encap mpls 200 via inet 198.51.100.2 dev p1"],
    "seg6": ["ip route add 203.0.113.200/32 encap seg6 mode encap segs fc00:b::1 dev p1"],
}.items():
    Case(
        f"qos/priority/{name}",
        f"IPv4 into {name}.",
        (BASE if name == "seg6" else MPLS_ON + BASE) + ["tc qdisc add dev p1 clsact", "tc qdisc add dev p0 clsact"] + routes + meter("p1") + [edit("all", "priority 1:2")],
        [(f"TOS {t:#x}", ether(v4(dst="203.0.113.200", tos=t) / udp())) for t in TOS],
        shows=(EGRESS,),
        links=False,
    )
for name, route, label in [
    ("next-hop", "via inet 198.51.100.2 dev p1", 300),
    ("lookup", "dev lo", 301),
    ("swap", "as 400 via inet 198.51.100.2 dev p1", 302),
]:
    Case(
        f"qos/priority/mpls-{name}",
        "IPv4 out of a label: by its TOS if it is looked up.",
        MPLS_ON + ["sysctl -qw net.mpls.conf.p0.input=1"] + BASE + ["tc qdisc add dev p1 clsact", "tc qdisc add dev p0 clsact"] + [f"ip -f mpls route add {label} {route}"] + meter("p1") + [edit("all", "priority 1:2")],
        [(f"TOS {t:#x}", ether(MPLS(label=label, s=1, ttl=20) / v4(t) / udp())) for t in TOS[::2]],
        shows=(EGRESS,),
        links=False,
    )
Case(
    "qos/priority/mpls-vrf",
    "IPv4 out of a label into a VRF: the one that it came with, as the device of the VRF sends it.",
    MPLS_ON
    + ["sysctl -qw net.mpls.conf.p0.input=1"]
    + BASE
    + ["ip link add vrf9 type vrf table 9", "ip link set vrf9 up", "ip route add 203.0.113.0/24 via 198.51.100.2 dev p1 table 9"]
    + ["tc qdisc add dev p1 clsact", "tc qdisc add dev p0 clsact", "ip -f mpls route add 303 dev vrf9"]
    + meter("p1")
    + [edit("all", "priority 1:2")],
    [(f"TOS {t:#x}", ether(MPLS(label=303, s=1, ttl=20) / v4(t) / udp())) for t in TOS[::2]],
    shows=(EGRESS,),
    links=False,
)
Case(
    "qos/priority/dt4",
    "IPv4 out of a SID: by its TOS.",
    BASE + ["sysctl -qw net.vrf.strict_mode=1", "ip link add vrf9 type vrf table 254", "ip link set vrf9 up", "ip -6 route add fc00:a::4/128 encap seg6local action End.DT4 vrftable 254 dev vrf9", "tc qdisc add dev p1 clsact"] + meter("p1"),
    [(f"TOS {t:#x}", ether(IPv6(src=SOURCE, dst="fc00:a::4", hlim=40) / v4(t) / udp())) for t in TOS[::2]],
    shows=(EGRESS,),
    links=False,
)
for kind in ["ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre"]:
    word = "tclass" if kind.startswith("ip6") else "tos"
    for tos in ["inherit", "0x8"]:
        inner = [(f"IPv4, TOS {t:#x}", "p0", ether(v4(t, IN4) / udp())) for t in TOS[::2]]
        if kind != "ipip":
            inner += [(f"IPv6, class {t:#x}", "p0", ether(v6(t, IN6) / udp())) for t in TOS[::4]]
        Case(
            f"qos/priority/{kind}-{tos}",
            f"Into {kind}: the outer packet has that of the packet inside.",
            tunnel(kind, ("mode any " if kind in ("ip6tnl", "sit") else "") + f"{word} {tos}")
            + ["tc qdisc add dev p1 clsact", "tc qdisc add dev tun1 clsact", *meter("p1"), *meter("tun1")],
            inner,
            shows=(EGRESS, "tc -s filter show dev tun1 egress"),
            links=False,
        )
