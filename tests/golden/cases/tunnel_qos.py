"""Traffic control at tunnels: what comes out of one, what goes in, and what waits before it.

As in qos.py and qdisc.py nothing depends on the time between two packets.
"""

from .frames import *
from .qdisc import SLOW, TBF
from .qos import sized, tcp
from .tunnel import FAR_MAC, IN4, IN6, MAC, MPLS_ON, labels_of, tunnel
from .tunnel_out import carry, gre, in4, in6, out4, out6

KINDS = ["ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap"]
CLSACT = ["tc qdisc add dev tun1 clsact"]
IN, OUT = "tc -s filter show dev tun1 ingress", "tc -s filter show dev tun1 egress"
ALL, CLASSES = "tc -s -d qdisc show dev tun1", "tc -s class show dev tun1"
IFB = ["ip link add ifb0 type ifb", "ip link set ifb0 addrgenmode none", "ip link set ifb0 up"]
IFB_ROOT, IFB_CLASSES = "tc -s -d qdisc show dev ifb0", "tc -s class show dev ifb0"
POLICE = "action police rate 80bit burst 1000 mtu 1500 conform-exceed drop"


def mode(kind):
    return "mode any" if kind in ("ip6tnl", "sit") else ""


def case(name, doc, kind, lines, frames, shows, options=None, remembers=True, base=BASE, links=True, ends=None):
    """`lines` of filters begin behind `tc filter add dev tun1`."""
    config = [line if line.startswith(("tc ", "ip ", "sysctl ")) else f"tc filter add dev tun1 {line}" for line in lines]
    made = tunnel(kind, mode(kind) if options is None else options, ends, base=base)
    Case(f"qos/tunnel/{name}", doc, made + config, frames, shows=shows, remembers=remembers, links=links)


def out_of(kind, packets):
    """`packets` inside, that come from the far end."""
    return [(label, "p1", Ether(dst=P1, src=N1) / carry(kind, p)) for label, p in packets]


def into(packets):
    return [(label, "p0", ether(p)) for label, p in packets]


def sized_out(*lengths):
    return [(f"{n} bytes", in4(n=n - 28)) for n in lengths]


def sized_in(*lengths):
    return [(f"{n} bytes", ip4(IN4) / udp(n - 28)) for n in lengths]


def port_in(number, *lengths):
    return [(f"{n} bytes to port {number}", ip4(IN4) / UDP(sport=1111, dport=number) / payload(n - 28)) for n in lengths]


def classify(number, flow, parent="1:", dev="tun1"):
    return f"tc filter add dev {dev} parent {parent} protocol ip prio 1 u32 match ip dport {number} 0xffff flowid {flow}"


# ------------------------------------------------------------------------------------------ what comes out

MIXED_OUT = [("IPv4", in4()), ("IPv6", in6()), ("IPv4, another TOS", in4(tos=0x10)), ("IPv4 for the router", in4(dst="192.0.2.1"))]

for kind in KINDS:
    both = MIXED_OUT[:1] + MIXED_OUT[2:] if kind == "ipip" else MIXED_OUT
    case(
        f"ingress/police/{kind}",
        f"A policer where packets come out of {kind}.",
        kind,
        CLSACT + [f"ingress protocol ip prio 1 matchall {POLICE}"],
        out_of(kind, sized_out(300, 300, 300, 300, 90, 28)),
        (IN,),
    )
    case(
        f"ingress/filters/{kind}",
        f"Filters where packets come out of {kind}: u32 and flower, of both protocols.",
        kind,
        CLSACT
        + [
            "ingress protocol ip prio 1 u32 match ip tos 0x10 0xff action drop",
            "ingress protocol ip prio 2 flower ip_proto udp dst_port 2222 dst_ip 203.0.113.5 action pass",
            "ingress protocol ipv6 prio 3 flower ip_proto udp dst_port 2222 action drop",
            "ingress protocol all prio 4 matchall action pass",
        ],
        out_of(kind, both),
        (IN,),
    )

case(
    "ingress/old",
    "The ingress qdisc, and what it counts.",
    "gre",
    ["tc qdisc add dev tun1 ingress", "tc filter add dev tun1 parent ffff: protocol ip prio 1 u32 match ip dport 2222 0xffff action drop"],
    out_of("gre", MIXED_OUT[:2] + [("TCP", IP(src="203.0.113.133", dst=SOURCE4, ttl=9, id=3) / tcp())]),
    (ALL, "tc -s filter show dev tun1 parent ffff:"),
)
case(
    "ingress/police-mtu",
    "A policer's MTU: there is no Ethernet header that would count.",
    "ipip",
    CLSACT + ["ingress protocol ip matchall action police rate 800bit burst 20k mtu 500 conform-exceed drop"],
    out_of("ipip", sized_out(486, 487, 500, 501, 100)),
    (IN,),
)
case(
    "ingress/police-mtu-gretap",
    "A policer's MTU: the Ethernet header inside counts.",
    "gretap",
    CLSACT + ["ingress protocol ip matchall action police rate 800bit burst 20k mtu 500 conform-exceed drop"],
    out_of("gretap", sized_out(486, 487, 500, 501, 100)),
    (IN,),
)
for kind in ["ipip", "gre", "gretap", "ip6tnl"]:
    case(
        f"ingress/ifb/{kind}",
        f"What comes out of {kind} goes through an ifb.",
        kind,
        IFB + CLSACT + ["ingress protocol ip matchall action mirred egress redirect dev ifb0", "tc qdisc add dev ifb0 root handle 1: pfifo"],
        out_of(kind, sized_out(300, 28) + [("for the router", in4(dst="192.0.2.1"))]),
        (IFB_ROOT, IN),
        links=False,
    )
for kind in ["ipip", "gretap"]:
    case(
        f"ingress/ifb-htb/{kind}",
        f"What comes out of {kind} is shaped at an ifb, whose filters see it.",
        kind,
        IFB
        + CLSACT
        + [
            "ingress protocol ip matchall action mirred egress redirect dev ifb0",
            "tc qdisc add dev ifb0 root handle 1: htb default 2",
            f"tc class add dev ifb0 parent 1: classid 1:1 htb {SLOW}",
            f"tc class add dev ifb0 parent 1: classid 1:2 htb {SLOW}",
            "tc qdisc add dev ifb0 parent 1:1 handle 2: pfifo limit 2",
            classify(2222, "1:1", dev="ifb0"),
        ],
        out_of(kind, sized_out(*[300] * 8)),
        (IFB_ROOT, IFB_CLASSES, IN),
        links=False,
    )
    case(
        f"ingress/to-port/{kind}",
        f"What comes out of {kind} is sent by a port as it is.",
        kind,
        CLSACT + ["ingress protocol ip matchall action mirred egress redirect dev p0"],
        out_of(kind, MIXED_OUT[:1] + sized_out(300)),
        (IN,),
    )
    case(
        f"ingress/mirror/{kind}",
        f"What comes out of {kind} is sent by a port, too.",
        kind,
        CLSACT + ["ingress protocol ip matchall action mirred egress mirror dev p0"],
        out_of(kind, MIXED_OUT[:1] + sized_out(300)),
        (IN,),
    )
    case(
        f"ingress/to-tunnel/{kind}",
        f"What comes out of {kind} goes into another tunnel.",
        kind,
        [
            "ip link add tun2 type gre local 192.0.2.1 remote 192.0.2.2",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
            "tc qdisc add dev tun2 clsact",
            "tc filter add dev tun2 egress protocol ip u32 match ip dport 2222 0xffff action pass",
        ]
        + CLSACT
        + ["ingress protocol ip matchall action mirred egress redirect dev tun2"],
        out_of(kind, MIXED_OUT[:1] + sized_out(300)),
        (IN, "tc -s filter show dev tun2 egress"),
    )
    case(
        f"ingress/to-ingress/{kind}",
        f"What comes out of {kind} comes in by a port, whose filters see it.",
        kind,
        [
            "tc qdisc add dev p0 clsact",
            "tc filter add dev p0 ingress protocol ip matchall action pass",
        ]
        + CLSACT
        + ["ingress protocol ip matchall action mirred ingress redirect dev p0"],
        out_of(kind, [("to the other side", in4(dst=TARGET4, src=SOURCE4)), ("for the router", in4(dst="192.0.2.1"))]),
        (IN, "tc -s filter show dev p0 ingress"),
    )
    case(
        f"ingress/to-ingress-police/{kind}",
        f"What comes out of {kind} comes in by a port, where it is policed: what is dropped there is an overlimit.",
        kind,
        ["tc qdisc add dev p0 clsact", f"tc filter add dev p0 ingress protocol ip matchall {POLICE}"]
        + CLSACT
        + ["ingress protocol ip matchall action mirred ingress redirect dev p0"],
        out_of(kind, [("to the other side", in4(dst=TARGET4, src=SOURCE4, n=400))] * 4),
        (IN, "tc -s filter show dev p0 ingress"),
    )
case(
    "ingress/from-port",
    "What comes in by a port comes out of a tunnel, whose filters see it.",
    "ipip",
    [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol ip matchall action mirred ingress redirect dev tun1",
    ]
    + CLSACT
    + ["ingress protocol ip matchall action police rate 80bit burst 1000 mtu 400 conform-exceed drop"],
    into(sized(300, 300, 386, 387, 300, 28)),
    ("tc -s filter show dev p0 ingress", IN),
)
case(
    "ingress/from-port-others",
    "What is another station's, or for a group of them, is that there, too.",
    "ipip",
    [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol ip matchall action mirred ingress redirect dev tun1",
    ]
    + CLSACT
    + [
        "ingress protocol ip prio 1 flower dst_mac 02:00:00:00:00:01 action pass",
        "ingress protocol ip prio 2 matchall action pass",
    ],
    [
        ("for the router", "p0", ether(ip4() / udp())),
        ("for another station", "p0", ether(ip4() / udp(), dst="02:00:00:00:00:99")),
        ("for a group", "p0", ether(ip4() / udp(), dst="01:00:5e:00:00:05")),
        ("for all", "p0", ether(ip4() / udp(), dst="ff:ff:ff:ff:ff:ff")),
    ],
    (IN,),
)
case(
    "ingress/from-port-tagged",
    "A tag that gives only a priority is taken off there, too.",
    "ipip",
    [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol all matchall action mirred ingress redirect dev tun1",
    ],
    [
        (f"{what}, {name}", "p0", Ether(dst=P0, src=N0) / tag / packet / udp())
        for what, tag in [("a priority", Dot1Q(vlan=0, prio=3)), ("a priority of a provider", Dot1AD(vlan=0, prio=3)), ("a VLAN", Dot1Q(vlan=5))]
        for name, packet in [("IPv4", ip4()), ("IPv6", ip6())]
    ],
    (),
)
case(
    "ingress/push-ethernet",
    "What comes out gets an Ethernet header, and is sent by a port.",
    "ipip",
    CLSACT
    + [
        "ingress protocol ip matchall action vlan push_eth dst_mac 02:00:00:00:01:01 src_mac 02:00:00:00:00:01 "
        "action mirred egress redirect dev p0"
    ],
    out_of("ipip", MIXED_OUT[:1] + sized_out(300)),
    (IN,),
)
case(
    "ingress/push-ethernet-only",
    "What comes out gets an Ethernet header, which nobody looks at.",
    "ipip",
    CLSACT + ["ingress protocol ip matchall action vlan push_eth dst_mac 02:00:00:00:01:01 src_mac 02:00:00:00:00:01"],
    out_of("ipip", MIXED_OUT[:1] + sized_out(300)),
    (IN,),
)
case(
    "ingress/mpls-pop",
    "The label of what comes out is taken off.",
    "gre",
    CLSACT + ["ingress protocol mpls_uc matchall action mpls pop protocol ip"],
    [("a label", "p1", Ether(dst=P1, src=N1) / out4(47, gre(labels_of([100], in4()), proto=0x8847)))],
    (IN,),
)
case(
    "ingress/mpls-push",
    "What comes out gets a label, and is switched.",
    "gre",
    [*MPLS_ON, "sysctl -qw net.mpls.conf.tun1.input=1", "ip -f mpls route add 100 via inet 192.0.2.2 dev p0"]
    + CLSACT
    + ["ingress protocol ip matchall action mpls push protocol mpls_uc label 100 ttl 9 tc 0"],
    out_of("gre", MIXED_OUT[:1]),
    (IN,),
)
case(
    "ingress/skbedit",
    "A mark that a filter behind it sees.",
    "ipip",
    CLSACT
    + [
        "ingress protocol ip prio 1 matchall action skbedit mark 7 priority 3 continue",
        "ingress protocol ip prio 2 handle 7 fw action drop",
    ],
    out_of("ipip", MIXED_OUT[:1]),
    (IN,),
)
case(
    "ingress/nested",
    "A tunnel in a tunnel: each has its own filters.",
    "ipip",
    [
        "ip link add tun2 type gre local 198.51.100.1 remote 198.51.100.3",
        "ip link set tun2 addrgenmode none",
        "ip link set tun2 up",
        "tc qdisc add dev tun2 clsact",
        "tc filter add dev tun2 ingress protocol ip matchall action pass",
    ]
    + CLSACT
    + ["ingress protocol ip matchall action pass"],
    [("GRE in IPIP", "p1", Ether(dst=P1, src=N1) / out4(4, out4(47, gre(in4()), src="198.51.100.3")))],
    (IN, "tc -s filter show dev tun2 ingress"),
)

# ------------------------------------------------------------------------------------------ what goes in

MIXED_IN = [("IPv4", ip4(IN4) / udp()), ("IPv6", ip6(IN6) / udp()), ("TCP", ip4(IN4) / tcp())]

for kind in KINDS:
    both = MIXED_IN[:1] + MIXED_IN[2:] if kind == "ipip" else MIXED_IN
    case(
        f"egress/police/{kind}",
        f"A policer where packets go into {kind}.",
        kind,
        CLSACT + [f"egress protocol ip prio 1 matchall {POLICE}"],
        into(sized_in(300, 300, 300, 300, 90, 28)),
        (OUT,),
    )
    case(
        f"egress/filters/{kind}",
        f"Filters where packets go into {kind}.",
        kind,
        CLSACT
        + [
            "egress protocol ip prio 1 u32 match ip protocol 6 0xff action drop",
            "egress protocol ip prio 2 flower ip_proto udp dst_port 2222 dst_ip 10.7.0.7 action pass",
            "egress protocol ipv6 prio 3 flower ip_proto udp dst_port 2222 action drop",
        ],
        into(both),
        (OUT,),
    )
case(
    "egress/too-long",
    "What does not fit is told so before it is asked.",
    "gre",
    CLSACT + ["egress protocol ip matchall action pass"],
    into([("IPv4, don't fragment", ip4(IN4, flags="DF") / udp(1472)), ("IPv4", ip4(IN4) / udp(1472)), ("TTL 1", ip4(IN4, ttl=1) / udp())]),
    (OUT,),
)
for kind in ["ipip", "gretap"]:
    case(
        f"egress/to-port/{kind}",
        f"What would go into {kind} is sent by a port as it is.",
        kind,
        CLSACT + ["egress protocol ip matchall action mirred egress redirect dev p1"],
        into(sized_in(300)),
        (OUT,),
    )
    case(
        f"egress/mirror/{kind}",
        f"What goes into {kind} is sent by a port, too.",
        kind,
        CLSACT + ["egress protocol ip matchall action mirred egress mirror dev p0"],
        into(sized_in(300)),
        (OUT,),
    )
    case(
        f"egress/ifb/{kind}",
        f"What goes into {kind} goes through an ifb.",
        kind,
        IFB + CLSACT + ["egress protocol ip matchall action mirred egress redirect dev ifb0", "tc qdisc add dev ifb0 root handle 1: pfifo"],
        into(sized_in(300, 28)),
        # Linux classifies those that come back once more, without their actions, and counts them twice.
        (IFB_ROOT,),
        links=False,
    )
    case(
        f"egress/from-port/{kind}",
        f"What comes in by a port goes into {kind}, whose filters see it.",
        kind,
        ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev tun1"]
        + CLSACT
        + [f"egress protocol ip prio 1 matchall {POLICE}"],
        into(sized(300, 300, 300, 300, 90, 28)),
        ("tc -s filter show dev p0 ingress", OUT),
    )
case(
    "egress/mpls-push",
    "What goes in gets a label.",
    "gre",
    CLSACT + ["egress protocol ip matchall action mpls push protocol mpls_uc label 100 ttl 9 tc 0"],
    into(MIXED_IN[:1]),
    (OUT,),
)
case(
    "egress/no-addresses",
    "There are no hardware addresses, not even where others have them.",
    "gre",
    CLSACT
    + ["egress protocol ip prio 1 flower dst_mac 45:b8:00:5c:43:21 action drop", "egress protocol ip prio 2 matchall action pass"],
    into(MIXED_IN[:1]),
    (OUT,),
)
case(
    "egress/both-ends",
    "Filters before the tunnel, and where the outer packet leaves.",
    "gre",
    CLSACT
    + [
        "egress protocol ip matchall action pass",
        "tc qdisc add dev p1 clsact",
        "tc filter add dev p1 egress protocol ip u32 match ip protocol 47 0xff action pass",
    ],
    into(sized_in(300, 100)),
    (OUT, "tc -s filter show dev p1 egress"),
)

PUSH_ETHERNET = "matchall action vlan push_eth dst_mac 02:00:00:00:01:01 src_mac 02:00:00:00:00:01"
case("egress/push-ethernet", "A frame gets no second Ethernet header.", "gretap", CLSACT + [f"egress protocol ip {PUSH_ETHERNET}"], into(MIXED_IN[:1]), (OUT,))
case(
    "egress/push-ethernet-port",
    "Nor does one where it comes in by a port.",
    "gretap",
    ["tc qdisc add dev p0 clsact", f"tc filter add dev p0 ingress protocol ip {PUSH_ETHERNET}"],
    into(MIXED_IN[:1]),
    ("tc -s filter show dev p0 ingress",),
)
for kind in ["ipip", "gre", "gretap"]:
    case(
        f"ingress/pop-ethernet/{kind}",
        f"The Ethernet header of what comes out of {kind} is taken off, if it has one.",
        kind,
        CLSACT + ["ingress protocol ip matchall action vlan pop_eth"],
        out_of(kind, MIXED_OUT[:1]),
        (IN,),
    )
for kind in ["ipip", "gre"]:
    case(
        f"egress/pop-ethernet/{kind}",
        "There is no Ethernet header that could be taken off.",
        kind,
        CLSACT + ["egress protocol ip matchall action vlan pop_eth"],
        into(MIXED_IN[:1]),
        (OUT,),
    )
    case(
        f"egress/mac-push/{kind}",
        "A label before all that is there, which is the packet.",
        kind,
        CLSACT + ["egress protocol ip matchall action mpls mac_push protocol mpls_uc label 100 ttl 9 tc 0"],
        into(MIXED_IN[:1]),
        (OUT,),
    )

# ------------------------------------------------------------------------------------------ what waits

for kind in KINDS:
    case(
        f"root/tbf/{kind}",
        f"A tbf before {kind}.",
        kind,
        ["tc qdisc add dev tun1 root handle 1: tbf rate 80bit burst 1000 limit 700"],
        into(sized_in(300, 300, 300, 300, 300, 300, 28)),
        (ALL,),
    )
    case(
        f"root/htb/{kind}",
        f"An htb before {kind}.",
        kind,
        [
            "tc qdisc add dev tun1 root handle 1: htb default 20",
            "tc class add dev tun1 parent 1: classid 1:1 htb rate 80bit burst 2000 cburst 2000",
            "tc class add dev tun1 parent 1:1 classid 1:10 htb rate 80bit burst 700 ceil 80bit cburst 700",
            "tc class add dev tun1 parent 1:1 classid 1:20 htb rate 8bit burst 200 ceil 80bit cburst 2000",
            classify(2001, "1:10"),
        ],
        into([f for _ in range(6) for f in port_in(2001, 200) + sized_in(300)]),
        (ALL, CLASSES),
    )
for what in ["pfifo", "bfifo limit 1000", "pfifo_fast", "fq_codel", "prio"]:
    case(
        f"root/{what.split()[0]}",
        f"{what} before a tunnel: nothing has to wait.",
        "gre",
        [f"tc qdisc add dev tun1 root handle 1: {what}"],
        into(sized_in(300, 1000, 28) + MIXED_IN[1:2]),
        (ALL,),
    )
case(
    "root/htb-tbf",
    "A tbf in a class lets less go than the class.",
    "ipip",
    [
        "tc qdisc add dev tun1 root handle 1: htb default 1",
        f"tc class add dev tun1 parent 1: classid 1:1 htb {SLOW}",
        f"tc qdisc add dev tun1 parent 1:1 handle 2: {TBF} 10k",
    ],
    into(sized_in(*[300] * 6)),
    (ALL, CLASSES),
)
case(
    "root/redirected",
    "What is redirected to a tunnel whose qdisc has no room.",
    "gre",
    [
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev tun1",
        "tc qdisc add dev tun1 root handle 1: tbf rate 80bit burst 1000 limit 700",
    ],
    into(sized(300, 300, 300, 300, 300, 300, 28)),
    (ALL, "tc -s filter show dev p0 ingress"),
)
case(
    "root/fragments",
    "What is cut before it goes in waits piece by piece.",
    "gre",
    ["tc qdisc add dev tun1 root handle 1: tbf rate 80bit burst 2000 limit 10k"],
    into([("IPv4 that does not fit", ip4(IN4) / udp(1472))]),
    (ALL,),
)

# ------------------------------------------------------------------------------------------ what was outside


def outside(kind, key=None, **more):
    """Three outer packets: as the first filter wants it, and with another source and another TTL."""
    packets = []
    for label, change in [("as asked for", {}), ("another source", {"src": "other"}), ("another TTL", {"ttl": 9}), ("another TOS", {"tos": 0x40})]:
        wide = kind.startswith("ip6")
        change = {("hlim" if wide and k == "ttl" else k): v for k, v in change.items()}
        if "src" in change:
            change["src"] = "2001:db8:2::3" if wide else "198.51.100.3"
        proto, data = (47, gre(in4(), key=key)) if "gre" in kind else (4, in4())
        if kind.endswith("tap"):
            data = gre(Ether(dst=MAC, src=FAR_MAC) / in4(), key=key)
        outer = (out6 if wide else out4)(proto, data, **change)
        packets.append((label, "p1", Ether(dst=P1, src=N1) / outer))
    return packets


for kind in ["ipip", "gre", "gretap", "ip6tnl", "ip6gre"]:
    key = 100 if "gre" in kind else None
    wide = kind.startswith("ip6")
    near, far, other = (("2001:db8:2::1", "2001:db8:2::2", "2001:db8:2::3") if wide else ("198.51.100.1", "198.51.100.2", "198.51.100.3"))
    id = f"enc_key_id {key} " if key else ""
    case(
        f"ingress/external/{kind}",
        f"Flower sees the outer header of what comes out of an external {kind}.",
        kind,
        CLSACT
        + [
            f"ingress protocol ip prio 1 flower {id}enc_dst_ip {near} enc_src_ip {other} action pass",
            "ingress protocol ip prio 2 flower enc_ttl 9 action drop",
            "ingress protocol ip prio 3 flower enc_tos 0x40 action drop",
            *(["ingress protocol ip prio 4 flower enc_key_id 7 action drop"] if key else []),
            f"ingress protocol ip prio 5 flower {id}enc_dst_ip {near} enc_src_ip {far} ip_proto udp action pass",
            "ingress protocol ip prio 6 matchall action pass",
        ],
        outside(kind, key),
        (IN,),
        options=f"{'mode any ' if kind == 'ip6tnl' else ''}external",
        ends="",
    )
case(
    "ingress/not-external",
    "Of a tunnel that is not external it sees nothing.",
    "gre",
    CLSACT
    + [
        "ingress protocol ip prio 1 flower enc_src_ip 198.51.100.2 action drop",
        "ingress protocol ip prio 2 flower enc_ttl 64 action drop",
        "ingress protocol ip prio 3 matchall action pass",
    ],
    outside("gre")[:1],
    (IN,),
)
for kind in ["ipip", "gre"]:
    key = "key" if kind == "gre" else ""
    id = "enc_key_id 100 " if kind == "gre" else ""
    case(
        f"egress/external/{kind}",
        f"Flower sees what a route says of the outer header of what goes into an external {kind}.",
        kind,
        [
            f"ip route replace 10.7.0.0/17 encap ip id 100 dst 198.51.100.2 {key} dev tun1".replace("  ", " "),
            f"ip route replace 10.7.128.0/17 encap ip id 7 src 198.51.100.1 dst 198.51.100.3 ttl 9 tos 0x20 {key} dev tun1".replace("  ", " "),
        ]
        + CLSACT
        + [
            "egress protocol ip prio 1 flower enc_ttl 9 enc_src_ip 198.51.100.1 enc_tos 0x20 action pass",
            f"egress protocol ip prio 2 flower {id}enc_dst_ip 198.51.100.2 action drop",
        ],
        into([("to one end", ip4(IN4) / udp()), ("to another", ip4("10.7.200.7") / udp())]),
        (OUT,),
        options="external",
        ends="",
    )

case(
    "egress/external/gre-id",
    "It sees an id of a route without a key as well.",
    "gre",
    ["ip route replace 10.7.0.0/17 encap ip id 100 dst 198.51.100.2 dev tun1"]
    + CLSACT
    + ["egress protocol ip prio 1 flower enc_key_id 100 action pass"],
    into([("to one end", ip4(IN4) / udp())]),
    (OUT,),
    options="external",
    ends="",
)
case(
    "egress/gateway",
    "Of a gateway that is the other end it sees nothing.",
    "ipip",
    ["ip route replace 10.7.0.0/16 via 198.51.100.2 dev tun1 onlink"]
    + CLSACT
    + ["egress protocol ip prio 1 flower enc_dst_ip 198.51.100.2 action drop"],
    into([("to one end", ip4(IN4) / udp())]),
    (OUT,),
    ends="local 198.51.100.1",
)

for kind in ("gre", "ip6gre"):
    wide = kind == "ip6gre"
    outer = out6 if wide else out4
    others = [("a frame", Ether(dst=MAC, src=FAR_MAC) / in4(), 0x6558), ("an unknown protocol", in4(), 0x1234), ("IPv4", in4(), 0x800)]
    case(
        f"others-{kind}",
        f"{kind}: what comes out that nothing takes is asked, too",
        kind,
        CLSACT + ["ingress protocol 0x6558 prio 1 matchall action pass", "ingress protocol all prio 2 u32 match u8 0x45 0xff at 0 action pass"],
        [(label, "p1", Ether(dst=P1, src=N1) / outer(47, gre(p, proto=proto))) for label, p, proto in others],
        [IN, "tc -s qdisc show dev tun1"],
    )

for kind in ("ipip", "sit", "gre", "gretap"):
    for name, options in [("", "nopmtudisc"), ("-ignore-df", "nopmtudisc ignore-df")][: 2 if "gre" in kind else 1]:
        case(
            f"{kind}/mirror-too-long{name}",
            f"{kind}: what is mirrored into it before it is routed, and is longer than the device's MTU",
            kind,
            ["ip link set tun1 mtu 1400", "tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress matchall action mirred egress mirror dev tun1"],
            [
                (f"{what}, {n} bytes", "p0", ether(packet))
                for n in (1400, 1401, 1450)
                for what, packet in [
                    ("IPv4", ip4(IN4) / udp(n - 28)),
                    ("IPv4, don't fragment", ip4(IN4, flags="DF") / udp(n - 28)),
                    ("IPv6", ip6(IN6) / udp(n - 48)),
                ]
            ],
            [],
            options=f"{mode(kind)} {options}",
        )

case(
    "ipip/redirect-ethertype",
    "ipip: what is redirected into it is an IPv6 packet by its EtherType, and not taken",
    "ipip",
    ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress matchall action mirred egress redirect dev tun1"],
    [
        ("IPv4", "p0", ether(ip4(IN4) / udp())),
        ("IPv6", "p0", ether(ip6(IN6) / udp())),
        ("IPv4 by the EtherType of IPv6", "p0", Ether(dst=P0, src=N0, type=0x86DD) / Raw(bytes(ip4(IN4) / udp()))),
        ("neither, by the EtherType of IPv6", "p0", Ether(dst=P0, src=N0, type=0x86DD) / Raw(bytes(60))),
    ],
    [],
)
for kind, local in [("ipip", "198.51.100.1"), ("sit", "198.51.100.1"), ("ip6tnl", "2001:db8:2::1")]:
    case(
        f"{kind}/redirect-no-remote",
        f"{kind} without a remote address: what is redirected into it before it is routed goes nowhere, but by a prefix of 6rd.",
        kind,
        (["ip tunnel 6rd dev tun1 6rd-prefix 2001:db8::/32"] if kind == "sit" else [])
        + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress matchall action mirred egress redirect dev tun1"],
        [
            ("IPv4", "p0", ether(ip4() / udp())),
            ("IPv6", "p0", ether(ip6("fc00:b::9") / udp())),
            ("6rd", "p0", ether(ip6("2001:db8:cb00:71c8::9") / udp())),
            ("an IPv4-compatible address", "p0", ether(ip6("::203.0.113.200") / udp())),
        ],
        [],
        ends=f"local {local}",
    )
for kind in ["gre", "ip6gre"]:
    case(
        f"no-ends/{kind}",
        f"{kind} with neither address: no filter of the device sees what a route leads there.",
        kind,
        CLSACT + ["egress protocol all matchall action pass"],
        [("IPv4", ether(ip4(IN4) / udp())), ("IPv6", ether(ip6(IN6) / udp()))],
        (OUT,),
        options="key 5",
        ends="",
    )

# A tag that is taken off at once.
PUSH_POP = "action vlan push id 7 protocol 802.1ad priority 3 pipe action vlan pop pipe action pass"
for kind in ["ipip", "ip6gre"]:
    case(f"ingress/push-pop/{kind}", f"What comes out of {kind} gets a tag, and loses it.", kind, CLSACT + [f"ingress protocol all matchall {PUSH_POP}"], out_of(kind, MIXED_OUT[:1] + sized_out(300)), (IN,))
    case(f"egress/push-pop/{kind}", f"What goes into {kind} gets a tag, and loses it.", kind, CLSACT + [f"egress protocol all matchall {PUSH_POP}"], into(MIXED_IN[:1] + sized_in(300)), (OUT,))

# A label before what has just been put into a tunnel.
LABEL = "tc filter add dev p1 egress protocol all matchall action mpls push protocol mpls_uc label 100 ttl 64"
for name, kind, options in [
    ("ipip", "ipip", ""),
    ("gre", "gre", ""),
    ("gre-csum", "gre", "csum"),
    ("fou", "ipip", "encap fou encap-sport 4444 encap-dport 5555"),
    ("fou-csum", "ipip", "encap fou encap-sport 4444 encap-dport 5555 encap-csum"),
]:
    case(
        f"egress/label/{name}",
        f"What leaves in {name} gets a label.",
        kind,
        ["tc qdisc add dev p1 clsact", LABEL],
        into(MIXED_IN[:1] + sized_in(300)),
        ("tc -s filter show dev p1 egress",),
        options=f"{mode(kind)} {options}".strip(),
    )

# ------------------------------------------------------------------------------------------- a tag goes beside it

for kind in ["ipip", "gre", "ip6gre"]:
    case(
        f"tagged/{kind}",
        f"A tag is not counted where a filter sends what has one into {kind}.",
        kind,
        CLSACT
        + ["egress protocol 802.1q prio 1 basic match 'meta(pkt_len gt 60)' action drop", "egress protocol all prio 2 matchall action drop"]
        + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol 802.1q prio 1 matchall action mirred egress redirect dev tun1"],
        [(f"{n} bytes", "p0", Ether(dst=P0, src=N0) / Dot1Q(vlan=5) / ip4(IN4) / udp(n - 28)) for n in (60, 61, 62, 64, 65, 100)],
        (OUT, ALL),
    )

# GRE that may have many ends: to Linux its outer header is that of the link.
case(
    "gre/redirect-outer",
    "gre without a remote address: what is redirected to a port leaves with the outer header, as it came.",
    "gre",
    CLSACT
    + [
        "ip link add tun2 type gre local 198.51.100.1 remote 198.51.100.3",
        "ip link set tun2 up",
        "ingress protocol ip prio 1 u32 match ip tos 0x10 0xff action mirred egress redirect dev p0",
        "ingress protocol ip prio 2 u32 match ip tos 0x20 0xff action mirred egress mirror dev p0 pipe action drop",
        "ingress protocol ip prio 3 u32 match ip tos 0x30 0xff action mirred egress redirect dev tun2",
        "ingress protocol ipv6 prio 4 matchall action mirred egress redirect dev p0",
    ],
    out_of("gre", [("to a port", in4(0x10)), ("a copy to a port", in4(0x20)), ("to gre", in4(0x30)), ("IPv6, to a port", in6(0)), ("not redirected", in4(0x40))])
    + [
        (f"{what}, to a port", "p1", Ether(dst=P1, src=N1) / carry("gre", in4(0x10), **more))
        for what, more in [("from another", {"src": "198.51.100.9"}), ("for a broadcast", {"dst": "198.51.100.255"}), ("with options", {"options": [IPOption(b"\x94\x04\0\0")]})]
    ],
    (IN,),
    ends="dev p1",
)

# What did not arrive at the other end is told by a route, which has led the packet there.
for kind, proto, head in [("ipip", 4, b""), ("gre", 47, b"\0\0\x08\0"), ("ip6tnl", 4, b""), ("ip6gre", 47, b"\0\0\x08\0")]:
    inner = bytes(ip4(IN4) / udp())
    if kind.startswith("ip6"):
        near, far = "2001:db8:2::1", "2001:db8:2::2"
        quoted = bytes(IPv6(src=near, dst=far, hlim=64, nh=proto) / Raw(head + inner))
        error = IPv6(src=far, dst=near, hlim=64) / ICMPv6DestUnreach(code=3) / Raw(quoted)
    else:
        quoted = bytes(IP(src="198.51.100.1", dst="198.51.100.2", ttl=64, id=9, proto=proto, flags="DF") / Raw(head + inner))
        error = IP(src="198.51.100.2", dst="198.51.100.1", ttl=64, id=7) / ICMP(type=3, code=1) / Raw(quoted)
    case(
        f"{kind}/errors-redirected",
        f"{kind}: of what a filter sends there where it comes in nobody hears that one before has not arrived.",
        kind,
        ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip prio 1 u32 match ip tos 0x10 0xff action mirred egress redirect dev tun1", "tc filter add dev p0 ingress protocol ip prio 2 u32 match ip tos 0x20 0xff action mirred egress mirror dev tun1 pipe action drop"],
        [
            ("host unreachable", "p1", Ether(dst=P1, src=N1) / error),
            ("host unreachable, again", "p1", Ether(dst=P1, src=N1) / error),
            ("redirected", "p0", ether(IP(src=SOURCE4, dst=IN4, ttl=40, tos=0x10, id=7) / udp())),
            ("routed", "p0", ether(IP(src=SOURCE4, dst=IN4, ttl=40, id=7) / udp())),
            ("host unreachable, once more", "p1", Ether(dst=P1, src=N1) / error),
            ("a copy", "p0", ether(IP(src=SOURCE4, dst=IN4, ttl=40, tos=0x20, id=7) / udp())),
            ("routed, again", "p0", ether(IP(src=SOURCE4, dst=IN4, ttl=40, id=7) / udp())),
        ],
        [],
    )
