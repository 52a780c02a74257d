"""`tunnel_key`: what an action says of the outer header, for devices that are `external` and `bareudp`."""

from . import bareudp
from .frames import *
from .tunnel import ECN, FOUR, IN4, IN6, MPLS_ON, SIX, labelled, labels_of, sizes, tos4, tunnel
from .tunnel_out import carry, in4, listed
from .tunnel_qos import CLSACT, IFB, IFB_ROOT, KINDS, OUT, outside
from .qdisc import TBF

PORT_IN = "tc -s filter show dev p0 ingress"
EXTERNAL = [kind for kind in KINDS if kind != "sit"]
HERE4, HERE6 = "src_ip 198.51.100.1 dst_ip 198.51.100.2", "src_ip 2001:db8:2::1 dst_ip 2001:db8:2::2"
FULL = "id 100 tos 0x20 ttl 9"


# Networks, over either family; `-bare`: packets are inside, and no frames.
NETWORKS = [kind + six for kind in ("vxlan", "geneve", "geneve-bare") for six in ("", "6")]


def ends_of(kind):
    return HERE6 if kind.startswith("ip6") or kind.endswith("6") else HERE4


def has_frames(kind):
    return kind.endswith("tap") or kind in NETWORKS and "bare" not in kind


def device(kind, **more):
    """The device tun1, without parameters of its own."""
    if kind.startswith("bareudp"):
        lines = bareudp.device(**more)
        return lines + ["ip route add 10.7.0.0/16 dev tun1", "ip -6 route add 2001:db8:7::/48 dev tun1"]
    if kind in NETWORKS:
        options = "dstport 4789 external" if kind.startswith("vxlan") else "external"
        bare = " innerprotoinherit" if "bare" in kind else ""
        return tunnel(kind.split("-")[0].rstrip("6"), options + bare, "", **more)
    return tunnel(kind, "mode any external" if kind == "ip6tnl" else "external", "", **more)


def key(kind, options=FULL, verb="set"):
    return f"action tunnel_key set {ends_of(kind)} {options}".rstrip() if verb == "set" else "action tunnel_key unset"


def case(name, doc, kind, lines, frames, shows=(), links=True, remembers=True, **more):
    frames = [f if len(f) == 3 else (f[0], "p0", ether(f[1])) for f in frames]
    Case(f"qos/tunnel-key/{name}", doc, device(kind, **more) + lines, frames, shows=shows, links=links, remembers=remembers)


def leaving(*filters):
    return CLSACT + [f"tc filter add dev tun1 egress {line}" for line in filters]


def coming(*filters, at="p0"):
    return [f"tc qdisc add dev {at} clsact"] + [f"tc filter add dev {at} ingress {line}" for line in filters]


TO_TUNNEL = "action mirred egress redirect dev tun1"
OVER_UDP = ["bareudp", "bareudp6"] + NETWORKS
ALL_KINDS = EXTERNAL + OVER_UDP

for kind in ALL_KINDS:
    inside = FOUR[:4] + SIX[:3] if kind != "ipip" else FOUR[:4]
    case(
        f"egress/{kind}",
        f"Where packets leave by an external {kind}, an action says where they go.",
        kind,
        leaving(f"protocol all prio 1 matchall {key(kind)}"),
        inside,
        (OUT,),
    )
    case(
        f"redirect/{kind}",
        f"What comes in by a port is sent by an external {kind}.",
        kind,
        coming(f"protocol all prio 1 matchall {key(kind)} pipe {TO_TUNNEL}"),
        inside + [("for the router", ip4("192.0.2.1") / udp())],
        (PORT_IN,),
    )
    if ends_of(kind) == HERE6:
        of_port = key(kind).replace("2001:db8:2::1", "2001:db8:1::1")
        routes = ["ip route replace 10.7.0.0/16 encap ip6 id 7 src 2001:db8:1::1 dst 2001:db8:2::2 hoplimit 9 dev tun1"]
        case(
            f"another-source/{kind}",
            f"The source that an action or a route gives an external {kind} is an address of another link.",
            kind,
            coming(f"protocol all prio 1 matchall {of_port} pipe {TO_TUNNEL}", at="p1") + (routes if not has_frames(kind) else []),
            FOUR[:1] + [("redirected", "p1", Ether(dst=P1, src=N1) / ip4(IN4) / udp())],
        )
    case(
        f"narrow/{kind}",
        f"What comes in by a port is sent by an external {kind}, and is too long for the way: who hears of it.",
        kind,
        coming(f"protocol all prio 1 matchall {key(kind)} pipe {TO_TUNNEL}") + ["ip link set p1 mtu 1400"],
        [("IPv4", ip4(IN4) / udp(1400)), ("IPv4, don't fragment", ip4(IN4, flags="DF") / udp(1400))]
        + ([("IPv6", ip6(IN6) / udp(1400)), ("again", ip6(IN6) / udp(1400))] if kind != "ipip" else []),
        (PORT_IN,),
    )
    if ends_of(kind) == HERE6:
        case(
            f"from-remote/{kind}",
            f"What an action sends by an external {kind} to where it is from goes there.",
            kind,
            leaving(f"protocol all prio 1 matchall {key(kind)}"),
            [("from the other end", ip6(IN6, src="2001:db8:2::2") / udp())],
            (OUT,),
        )
        if kind in ("ip6tnl", "ip6gre"):
            limited = lambda limit: Raw(bytes([17, 0, 4, 1, limit, 1, 1, 0])) / udp()
            case(
                f"limit/{kind}",
                f"What an action sends by an external {kind} has no limit of encapsulations.",
                kind,
                leaving(f"protocol all prio 1 matchall {key(kind)}"),
                [(f"a limit of {limit}", ip6(IN6, nh=60) / limited(limit)) for limit in (4, 1, 0)],
                (OUT,),
            )
    case(
        f"least/{kind}",
        f"Into {kind} without an id, a TTL and a checksum.",
        kind,
        leaving(f"protocol all prio 1 matchall {key(kind, 'nocsum')}"),
        inside,
        (OUT,),
    )
    case(
        f"ecn/{kind}",
        f"Into {kind} with a TOS of 0x29: whose ECN it is.",
        kind,
        leaving(f"protocol all prio 1 matchall {key(kind, 'tos 0x29 ttl 64')}"),
        ECN if kind != "ipip" else ECN[:7],
        (OUT,),
    )
    # What has no way is a case of its own: `differs/tunnel/*/external/foreign`.
    if kind not in NETWORKS:
        case(
            f"family/{kind}",
            f"The addresses are of the other family, or the source is not the router's: what {kind} counts.",
            kind,
            leaving(
                f"protocol ip prio 1 matchall {key('gre' if ends_of(kind) == HERE6 else 'ip6gre')}"
                if kind not in OVER_UDP
                else "protocol ip prio 1 matchall action tunnel_key set src_ip 198.51.100.77 dst_ip 198.51.100.2 ttl 9"
            ),
            FOUR[:1] + (SIX[:1] if kind != "ipip" else []),
            (OUT,),
        )
    case(
        f"unset/{kind}",
        f"An action takes away what a route says of where packets by {kind} go.",
        kind,
        [
            (
                f"ip route replace 10.7.0.0/16 encap ip6 dst 2001:db8:2::2 hoplimit 64 {via}"
                if ends_of(kind) == HERE6
                else f"ip route replace 10.7.0.0/16 encap ip dst 198.51.100.2 ttl 64 {via}"
            )
            for via in ["via 10.6.0.2 dev tun1" if has_frames(kind) else "dev tun1"]
        ]
        + leaving("protocol ip prio 1 u32 match ip tos 0x10 0xff action tunnel_key unset"),
        [("another TOS", tos4(0)), ("unset", tos4(0x10))],
        (OUT,),
    )
    case(
        f"replaces/{kind}",
        f"An action says otherwise than a route where packets by {kind} go.",
        kind,
        [
            (
                f"ip route replace 10.7.0.0/16 encap ip6 id 7 dst 2001:db8:2::3 hoplimit 64 key {via}"
                if ends_of(kind) == HERE6
                else f"ip route replace 10.7.0.0/16 encap ip id 7 dst 198.51.100.3 ttl 64 key {via}"
            )
            for via in ["via 10.6.0.2 dev tun1" if has_frames(kind) else "dev tun1"]
        ]
        + leaving(f"protocol ip prio 1 u32 match ip tos 0x10 0xff {key(kind)}"),
        [("the action's", tos4(0x10))],
        (OUT,),
    )
    case(
        f"given/{kind}",
        f"A route says where packets by {kind} go: a TOS that is no inheritance, and Don't Fragment inside.",
        kind,
        [
            (
                f"ip route replace 10.7.0.0/16 encap ip6 dst 2001:db8:2::2 tc 0x29 hoplimit 64 {via}"
                if ends_of(kind) == HERE6
                else f"ip route replace 10.7.0.0/16 encap ip dst 198.51.100.2 tos 0x29 ttl 64 {via}"
            )
            for via in ["via 10.6.0.2 dev tun1" if has_frames(kind) else "dev tun1"]
        ],
        FOUR[:2] + ECN[:7],
    )
    case(
        f"small/{kind}",
        f"The underlay has a smaller MTU than {kind}.",
        kind,
        leaving(f"protocol all prio 1 matchall {key(kind, 'ttl 64')}"),
        [(label, packet) for label, packet in sizes(1400) if isinstance(packet, IP)],
        links=False,
        base=BASE + ["ip link set p1 mtu 1400"],
    )

for suffix, to in [("", HERE4), ("6", HERE6)]:
    given = f"action tunnel_key set {to} ttl 64"
    case(
        f"labels/push{suffix}",
        f"A label is put on what comes in, and bareudp carries it over IPv{suffix or 4}.",
        "bareudp",
        MPLS_ON + coming(f"protocol ip prio 1 matchall action mpls push protocol mpls_uc label 100 ttl 64 {given} pipe {TO_TUNNEL}"),
        FOUR[:4],
        (PORT_IN,),
        ethertype="mpls_uc",
    )
    case(
        f"labels/come{suffix}",
        f"What comes in with labels, bareudp carries over IPv{suffix or 4}.",
        "bareudp",
        MPLS_ON + coming(f"protocol mpls_uc prio 1 matchall {given} pipe {TO_TUNNEL}"),
        [("two labels", "p0", Ether(dst=P0, src=N0, type=0x8847) / labels_of([100, 200], ip4(IN4) / udp()))]
        + [("not labelled", ip4() / udp())],
        (PORT_IN,),
        ethertype="mpls_uc",
    )
case(
    "labels/route",
    "A route's label, by a bareudp where an action says where it goes.",
    "bareudp",
    MPLS_ON
    + ["ip route replace 10.7.0.0/16 encap mpls 100/200 dev tun1"]
    + leaving(f"protocol mpls_uc prio 1 matchall action tunnel_key set {HERE4} ttl 64"),
    FOUR[:4],
    (OUT,),
    ethertype="mpls_uc",
)

case(
    "pass",
    "Parameters of a packet that comes in, but is not redirected: routes know nothing of them.",
    "gre",
    coming(f"protocol all prio 1 matchall {key('gre')}"),
    FOUR[:2] + SIX[:1] + [("by the other port", ip4("198.51.100.2") / udp())],
    (PORT_IN,),
)
case(
    "none",
    "What is sent by the device without parameters.",
    "gre",
    coming(f"protocol ip prio 1 matchall {TO_TUNNEL}"),
    FOUR[:2] + SIX[:1],
    (PORT_IN,),
)
case(
    "mirror",
    "A copy goes into the tunnel.",
    "gre",
    coming(f"protocol ip prio 1 matchall {key('gre')} pipe action mirred egress mirror dev tun1"),
    FOUR[:2],
    (PORT_IN,),
)
case(
    "filters",
    "Flower sees the parameters that an action has given, and that they are gone.",
    "bareudp",
    leaving(
        "protocol ip prio 1 flower enc_dst_ip 198.51.100.2 action drop",
        f"protocol ip prio 2 matchall action tunnel_key set {HERE4} id 7 dst_port 53 tos 0x10 ttl 9 continue",
        "protocol ip prio 3 flower enc_key_id 8 action drop",
        "protocol ip prio 4 flower enc_dst_port 54 action drop",
        "protocol ip prio 5 flower enc_src_ip 198.51.100.1 enc_dst_ip 198.51.100.2 enc_key_id 7 enc_dst_port 53 enc_tos 0x10 enc_ttl 9 action tunnel_key unset continue",
        "protocol ip prio 6 flower enc_dst_ip 198.51.100.2 action drop",
        f"protocol ip prio 7 matchall action tunnel_key set {HERE4} ttl 64",
    ),
    FOUR[:2],
    (OUT,),
)
case(
    "arrived",
    "Flower sees what came outside, what an action says in its place, and nothing behind unset.",
    "gre",
    CLSACT
    + [
        f"tc filter add dev tun1 ingress {line}"
        for line in (
            "protocol ip prio 1 flower enc_ttl 9 action tunnel_key unset continue",
            f"protocol ip prio 2 flower enc_tos 0x40 action tunnel_key set {HERE4} tos 0x80 continue",
            "protocol ip prio 3 flower enc_ttl 9 action drop",
            "protocol ip prio 4 flower enc_tos 0x40 action drop",
            "protocol ip prio 5 flower enc_tos 0x80 action pass",
            "protocol ip prio 6 flower enc_dst_ip 198.51.100.1 action pass",
        )
    ],
    outside("gre"),
    ("tc -s filter show dev tun1 ingress",),
)
case(
    "relay",
    "What came out of one tunnel goes into another: with parameters of its own, or those that it came with, which do not say where it goes.",
    "gre",
    ["ip link add tun2 type bareudp dstport 6635 ethertype ipv4", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]
    + CLSACT
    + [
        "tc filter add dev tun1 ingress protocol ip prio 1 flower enc_ttl 9 action mirred egress redirect dev tun2",
        f"tc filter add dev tun1 ingress protocol ip prio 2 matchall action tunnel_key set {HERE4} ttl 33 pipe action mirred egress redirect dev tun2",
    ],
    outside("gre"),
    ("tc -s filter show dev tun1 ingress",),
)
case(
    "two-ends",
    "Two actions, two ends, of which one is shared by two filters.",
    "gre",
    ["tc actions add action tunnel_key set src_ip 198.51.100.1 dst_ip 198.51.100.3 id 3 index 5"]
    + leaving(
        "protocol ip prio 1 u32 match ip tos 0x10 0xff action tunnel_key index 5",
        "protocol ip prio 2 u32 match ip tos 0x20 0xff action tunnel_key index 5",
        f"protocol ip prio 3 matchall {key('gre')}",
    ),
    [("the first", tos4(0x10)), ("the second", tos4(0x20)), ("the third", tos4(0x30))],
    (OUT, "tc -s actions ls action tunnel_key"),
)
case(
    "changed",
    "An action is changed, and the device is made anew, after the filter.",
    "gre",
    leaving(f"protocol ip prio 1 matchall {key('gre')} index 3")
    + ["tc actions replace action tunnel_key set src_ip 198.51.100.1 dst_ip 198.51.100.2 id 8 nocsum ttl 44 index 3"]
    + coming(f"protocol ip prio 1 u32 match ip tos 0x10 0xff action tunnel_key index 3 pipe action mirred egress redirect dev tun1")
    + ["ip link add tun2 type bareudp dstport 6635 ethertype ipv4", "ip link set tun2 addrgenmode none", "ip link set tun2 up"]
    + ["tc filter add dev p0 ingress protocol ip prio 2 u32 match ip tos 0x20 0xff action tunnel_key index 3 pipe action mirred egress redirect dev tun2"],
    [("by the route", tos4(0)), ("by the first device", tos4(0x10)), ("by the second", tos4(0x20))],
    (OUT,),
)
case(
    "gateway",
    "The way to the other end leads by a gateway, and the source is not said.",
    "gre",
    leaving("protocol ip prio 1 matchall action tunnel_key set src_ip 0.0.0.0 dst_ip 203.0.113.200 ttl 64")
    + ["ip route add 203.0.113.200/32 via 198.51.100.2"],
    FOUR[:2],
    (OUT,),
)
case(
    "gateway6",
    "The same over IPv6.",
    "ip6gre",
    leaving("protocol all prio 1 matchall action tunnel_key set src_ip :: dst_ip 2001:db8:77::1 ttl 64")
    + ["ip -6 route add 2001:db8:77::/64 via 2001:db8:2::2"],
    FOUR[:2] + SIX[:1],
    (OUT,),
)
case(
    "waits",
    "Packets wait in the qdisc of the device with what an action has said.",
    "gre",
    leaving(f"protocol ip prio 1 matchall {key('gre')}") + [f"tc qdisc add dev tun1 root handle 1: {TBF} 10k"],
    [("IPv4", tos4(0)), ("another", tos4(0x10))],
    (OUT,),
    links=False,
)
case(
    "ifb",
    "What is on its way into the tunnel goes through an ifb, before whose queue an action says where it goes.",
    "gre",
    IFB
    + leaving("protocol ip prio 1 matchall action mirred egress redirect dev ifb0")
    + ["tc qdisc add dev ifb0 clsact", f"tc filter add dev ifb0 egress protocol ip prio 1 matchall {key('gre')}"],
    FOUR[:2],
    ("tc -s filter show dev ifb0 egress",),
    links=False,
)
case(
    "ifb-in",
    "What has come in by a port goes through an ifb with parameters: the routes then know nothing of them.",
    "gre",
    IFB + coming(f"protocol ip prio 1 matchall {key('gre')} pipe action mirred egress redirect dev ifb0"),
    FOUR[:2],
    (PORT_IN,),
    links=False,
)
for kind in ["ipip", "gre", "sit", "ip6tnl", "ip6gre"]:
    Case(
        f"qos/tunnel-key/plain/{kind}",
        f"{kind} that is not external: what an action says means nothing to it.",
        tunnel(kind, "mode any" if kind in ("ip6tnl", "sit") else "") + leaving(f"protocol ip prio 1 u32 match ip tos 0x10 0xff {key(kind)}", "protocol ip prio 2 u32 match ip tos 0x20 0xff action tunnel_key unset"),
        [(label, "p0", ether(p)) for label, p in [("set", tos4(0x10)), ("unset", tos4(0x20)), ("neither", tos4(0x30))]],
        shows=(OUT,),
        remembers=True,
    )
for kind in ["ipip", "sit"]:
    Case(
        f"qos/tunnel-key/many-ends/{kind}",
        f"{kind} without a remote address, not external: the action says where packets go.",
        tunnel(kind, "ttl 77", ends="local 198.51.100.1") + leaving(f"protocol all prio 1 matchall {key(kind)}"),
        [("set", "p0", ether(tos4(0x10)))] + ([("IPv6", "p0", ether(ip6(IN6) / udp()))] if kind == "sit" else []),
        shows=(OUT,),
        remembers=True,
    )
# What a filter where it leaves says comes before what is too long for the device.
for kind in ["ipip", "gre", "gretap"]:
    other = key("ip6gre", "id 5 ttl 9")
    case(
        f"redirect-too-long-other/{kind}",
        f"What is longer than the MTU of an external {kind} is sent there, where another action says otherwise: of the other family, or nothing.",
        kind,
        coming(f"protocol all prio 1 matchall {key(kind)} pipe {TO_TUNNEL}")
        + ["ip link set tun1 mtu 1400"]
        + leaving(f"protocol all prio 1 u32 match ip tos 0x10 0xff {other}", "protocol all prio 2 u32 match ip tos 0x20 0xff action tunnel_key unset"),
        [
            (f"{what}, {n} bytes", tos4(tos, n=n - 28, flags="DF"))
            for n in (1400, 1450)
            for what, tos in [("as it came", 0), ("the other family", 0x10), ("unset", 0x20)]
        ],
        (PORT_IN, OUT),
    )
for kind in ["ipip", "sit", "ip6tnl"]:
    Case(
        f"qos/tunnel-key/many-ends-unset/{kind}",
        f"{kind} without a remote address, not external: what has lost its route knows no end.",
        tunnel(kind, "mode any" if kind == "ip6tnl" else "", ends="local 2001:db8:2::1" if kind == "ip6tnl" else "local 198.51.100.1")
        + ["ip route add 10.9.0.0/16 dev p1", "ip neigh add 10.9.0.1 lladdr 02:00:00:00:01:02 dev p1"]
        + leaving("protocol all prio 1 u32 match ip tos 0x10 0xff action tunnel_key unset")
        + [
            "tc qdisc add dev p1 clsact",
            "tc filter add dev p1 egress protocol ip prio 1 u32 match ip tos 0x20 0xff action tunnel_key unset pipe action mirred egress mirror dev tun1",
            "tc filter add dev p1 egress protocol ip prio 2 u32 match ip tos 0x30 0xff action mirred egress mirror dev tun1",
        ],
        [
            ("unset there", "p0", ether(tos4(0x10))),
            ("not so", "p0", ether(tos4(0x40))),
            ("a copy, unset", "p0", ether(tos4(0x20, "10.9.0.1"))),
            ("a copy", "p0", ether(tos4(0x30, "10.9.0.1"))),
        ],
        shows=(OUT,),
        remembers=True,
    )
Case(
    "qos/tunnel-key/class/ip6gre",
    "A traffic class of 0x29 of the device itself: all of it is the outer one.",
    tunnel("ip6gre", "tclass 0x29"),
    [(label, "p0", ether(packet)) for label, packet in ECN[:7]],
)
case(
    "round/bareudp",
    "Where outer packets leave they are sent into the tunnel again: each once, also one that is cut on its way.",
    "bareudp",
    ["tc qdisc add dev p1 clsact", f"tc filter add dev p1 egress protocol ip prio 1 matchall {key('bareudp')} pipe {TO_TUNNEL}"],
    [("short", ip4() / udp()), ("cut with an outer header", ip4() / udp(1460)), ("short again", ip4() / udp())],
    links=False,
)

# Too long for its way, with a queue before the device and without.
for kind in ["bareudp", "bareudp6", "gre"]:
    for name, root in [("", []), ("-queued", ["tc qdisc add dev tun1 root handle 1: bfifo"])]:
        case(
            f"redirect-too-long/{kind}{name}",
            f"What a filter sends by an external {kind} is too long for the way of the outer packet.",
            kind,
            root + coming(f"protocol all prio 1 matchall {key(kind, 'id 5')} pipe {TO_TUNNEL}"),
            [("IPv6 of 1500 bytes", ip6(IN6) / udp(1452)), ("IPv6 of 1400 bytes", ip6(IN6) / udp(1352)), ("IPv4 of 1500 bytes", ip4(IN4) / udp(1472))],
            (PORT_IN,),
            links=False,
        )
