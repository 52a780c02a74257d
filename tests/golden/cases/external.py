"""VXLANs and Geneve devices with external metadata: what comes out of them, what goes in, and what is said of it."""

from . import geneve, vxlan
from .frames import *
from .tunnel import ECN, FAR_MAC, FOUR, IN4, IN6, MAC, SIX, put_in, sizes, tos4, tunnel
from .tunnel_key import HERE4, HERE6, NETWORKS, TO_TUNNEL, coming, device, has_frames, key
from .tunnel_out import in4, in6, listed
from .tunnel_qos import CLSACT, OUT
from .vxlan import ARP_IN, HOST_MAC, OTHER_MAC, THERE_MAC, framed, local

IN = "tc -s filter show dev tun1 ingress"
PORT_IN = "tc -s filter show dev p0 ingress"


def wide(kind):
    return kind.endswith("6")


def case(name, doc, kind, lines, frames, links=True, remembers=True, shows=(), **more):
    name = f"tunnel/{kind.split('-')[0].rstrip('6')}/external/{name}{'-bare' if 'bare' in kind else ''}{6 if wide(kind) else 4}"
    Case(name, doc, device(kind, **more) + lines, frames, links=links, remembers=remembers, shows=shows)


def carried(kind, inner, **more):
    if "bare" not in kind and not isinstance(inner, Raw):
        inner = inner if isinstance(inner, Ether) else framed(inner)
    module = vxlan if kind.startswith("vxlan") else geneve
    return module.carried(wide(kind), inner, **more)


def route(kind, options="", verb="replace", to="10.7.0.0/16", by=None):
    end, ttl = ("ip6 dst 2001:db8:2::2", "hoplimit") if wide(kind) else ("ip dst 198.51.100.2", "ttl")
    by = by if by is not None else "via 10.6.0.2 " if has_frames(kind) else ""
    return f"ip route {verb} {to} encap {end} {options.replace('TTL', ttl)} {by}dev tun1".replace("  ", " ")


for kind in NETWORKS:
    six = wide(kind)
    over = f"over IPv{6 if six else 4}"
    third = {"src": "2001:db8:2::3" if six else "198.51.100.3"}
    tos = "tc" if six else "tos"
    packets = [
        ("IPv4", carried(kind, in4(), vni=7)),
        ("IPv4, TTL 1", carried(kind, in4(ttl=1), vni=7)),
        ("IPv6 of no network", carried(kind, in6(), vni=0)),
        ("of the last network", carried(kind, in4(), vni=0xFFFFFF)),
        ("from another end", carried(kind, in4(), outer=third)),
        ("another port", carried(kind, in4(), dport=4790)),
        ("no checksum", carried(kind, in4(), chksum=0)),
        ("a wrong checksum", carried(kind, in4(), chksum=0x1234)),
        ("congestion outside", carried(kind, in4(2), outer={tos: 3})),
        ("congestion outside, none inside", carried(kind, in6(0), outer={tos: 3})),
    ]
    if has_frames(kind):
        packets += [
            ("for another station", carried(kind, framed(in4(), dst=OTHER_MAC))),
            ("for all", carried(kind, framed(in4(), dst="ff:ff:ff:ff:ff:ff"))),
            ("from the station that it is itself", carried(kind, framed(in4(), src=MAC))),
            ("from no station", carried(kind, framed(in4(), src="00:00:00:00:00:00"))),
            ("from a group", carried(kind, framed(in4(), src="01:00:5e:00:00:01"))),
            ("thirteen bytes of a frame", carried(kind, Raw(bytes(framed(in4()))[:13]))),
            ("an Ethernet header", carried(kind, Raw(bytes(framed(in4()))[:14]))),
            ("an empty frame", carried(kind, Raw(b""))),
        ]
    if kind.startswith("vxlan"):
        packets += [
            ("no network", carried(kind, in4(), flags=0)),
            ("a bit without a meaning", carried(kind, in4(), flags=0x88000000)),
            ("a last byte without a meaning", carried(kind, in4(), last=1)),
        ]
    else:
        packets += [
            ("another version", carried(kind, in4(), version=1)),
            ("a control message", carried(kind, in4(), flags=0x80)),
            ("another protocol", carried(kind, in4(), proto=0x88B5)),
            ("an option", carried(kind, in4(), options=geneve.OPTION)),
            ("two options", carried(kind, in4(), options=geneve.OPTION + geneve.option(0x02))),
            ("options behind the end", carried(kind, in4(), words=63)),
        ]
    case("out", f"{over}: what is of any network comes out", kind, [], listed(packets))
    if kind == "vxlan6":
        Case(
            "tunnel/vxlan/external/unsummed",
            "over IPv6: without a checksum, where that is taken",
            tunnel("vxlan", "dstport 4789 external udp6zerocsumrx", ""),
            listed(packets[6:8]),
        )
    near, far = ("2001:db8:2::1", "2001:db8:2::2") if six else ("198.51.100.1", "198.51.100.2")
    port = 4789 if kind.startswith("vxlan") else 6081
    case(
        "flower",
        f"{over}: flower sees the outer header of what comes out",
        kind,
        CLSACT
        + [
            f"tc filter add dev tun1 ingress {line}"
            for line in (
                f"protocol ip prio 1 flower enc_key_id 7 enc_src_ip {third['src']} action drop",
                "protocol ip prio 2 flower enc_key_id 7 enc_ttl 9 action drop",
                "protocol ip prio 3 flower enc_tos 0x40 action tunnel_key unset continue",
                "protocol ip prio 4 flower enc_key_id 7 enc_tos 0x40 action drop",
                "protocol ip prio 5 flower enc_key_id 8 action drop",
                f"protocol ip prio 6 flower enc_key_id 7 enc_dst_ip {near} enc_src_ip {far} enc_dst_port {port} action pass",
                "protocol ip prio 7 matchall action pass",
            )
        ],
        listed(
            [
                ("as asked for", carried(kind, in4(), vni=7)),
                ("another network", carried(kind, in4(), vni=8)),
                ("another source", carried(kind, in4(), vni=7, outer=third)),
                ("another TTL", carried(kind, in4(), vni=7, outer={"hlim" if six else "ttl": 9})),
                ("another TOS", carried(kind, in4(), vni=7, outer={tos: 0x40})),
                ("IPv6", carried(kind, in6(), vni=7)),
            ]
        ),
        shows=(IN,),
    )
    case(
        "key",
        f"{over}: an id of more bits than a network has, and a port",
        kind,
        coming(f"protocol all prio 1 matchall {key(kind, 'id 4294967295 dst_port 4790')} pipe {TO_TUNNEL}"),
        put_in(FOUR[:2] + SIX[:1]),
        shows=(PORT_IN,),
    )
    case(
        "route",
        f"{over}: a route says where packets go, with a checksum and without, with a TOS of 1, and without a TTL",
        kind,
        [
            route(kind, "id 100 csum TTL 9"),
            route(kind, f"id 16777217 {tos} 0x1", to="10.7.8.0/24"),
            route(kind, f"id 3 {tos} 0x29 TTL 255 key", to="10.7.9.0/24"),
        ],
        put_in(FOUR + [("a TOS of 1", ip4("10.7.8.1") / udp()), ("a TOS of 0x29", ip4("10.7.9.1") / udp())] + SIX[:1]),
    )
    if has_frames(kind):
        case(
            "on-link",
            f"{over}: a route without a gateway says where frames for its neighbours go",
            kind,
            [
                route(kind, "id 100", verb="add", to="10.8.0.0/24", by=""),
                f"ip neigh add 10.8.0.5 lladdr {OTHER_MAC} dev tun1 nud permanent",
            ],
            put_in([("a neighbour", ip4("10.8.0.5") / udp())]),
        )
        case(
            "frames",
            f"{over}: frames of a port, as they are",
            kind,
            coming(f"protocol all prio 1 matchall {key(kind)} pipe {TO_TUNNEL}"),
            [
                ("a tag", "p0", Ether(dst=THERE_MAC, src=HOST_MAC) / Dot1Q(vlan=7) / ip4("10.5.0.2") / udp()),
                ("ARP", "p0", Ether(dst="ff:ff:ff:ff:ff:ff", src=HOST_MAC) / ARP_IN),
                ("neither IPv4 nor IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x88B5) / payload(50)),
                ("nineteen bytes of IPv4", "p0", Raw(bytes(Ether(dst=THERE_MAC, src=HOST_MAC) / ip4("10.5.0.2"))[:33])),
            ],
            shows=(PORT_IN,),
        )
    case(
        "none",
        f"{over}: without metadata nothing leaves",
        kind,
        coming(f"protocol ip prio 1 u32 match ip tos 0x10 0xff {TO_TUNNEL}"),
        [("by a route", "p0", ether(tos4(0))), ("by a filter", "p0", ether(tos4(0x10))), ("IPv6", "p0", ether(ip6(IN6) / udp()))],
        shows=(PORT_IN,),
    )
    away = "src_ip :: dst_ip 2001:db8:77::1" if six else "src_ip 0.0.0.0 dst_ip 203.0.114.1"
    case(
        "no-way",
        f"{over}: no route leads to the other end",
        kind,
        coming(f"protocol ip prio 1 matchall action tunnel_key set {away} id 5 ttl 64 pipe {TO_TUNNEL}"),
        [("IPv4", "p0", ether(ip4(IN4) / udp()))],
        shows=(PORT_IN,),
    )
    case(
        "sizes",
        f"{over}: packets around what the way has room for, which a route leads in",
        kind,
        [route(kind, "id 5 TTL 64"), "ip link set tun1 mtu 1500"],
        put_in([(label, p) for label, p in sizes(1500 - (70 if six else 50)) if isinstance(p, IP)]),
        links=False,
    )
    # Of packets without frames Linux learns nothing: `geneve_udp_encap_err_lookup`.
    if has_frames(kind):
        case(
            "errors",
            f"{over}: the MTU of the way is learned",
            kind,
            [route(kind, "id 5 TTL 64"), "ip link set tun1 mtu 1400"],
            geneve.LONG
            + [
                geneve.heard(
                    "too big, 1,300",
                    (lambda q: geneve.heard6(q[:1000], 2, 0, 1300) if six else geneve.heard4(q[:128], 3, 4, 1300))(
                        bytes(
                            carried(
                                kind,
                                framed(ip4(IN4) / udp(1272), dst=FAR_MAC, src=MAC),
                                vni=5,
                                outer={"src": near, "dst": far},
                            )
                        )
                    ),
                )
            ]
            + geneve.LONG,
        )

    four = ip4(IN4) / udp()
    ends = ("ip6 src 2001:db8:77::5 dst 2001:db8:77::1 hoplimit 64" if six else "ip src 198.51.100.77 dst 198.51.100.2 ttl 64")
    Case(
        f"tunnel/{kind.split('-')[0].rstrip('6')}/external/{'foreign' if not six else 'unreachable'}{'-bare' if 'bare' in kind else ''}",
        f"{over}: a route says a source that is not the router's, from which no way leads" if not six else f"{over}: a route says an end that no way leads to",
        device(kind) + [f"ip route replace 10.7.0.0/16 encap {ends} {'via 10.6.0.2 ' if has_frames(kind) else ''}dev tun1"],
        differs="it tells the sender nothing",
        **io([("IPv4", ether(four), [to_p0(icmp4(hops(four), 3, 0))])]),
        links=False,
    )

for kind in ("vxlan", "geneve"):
    bridge = vxlan.bridged(False, device=f"{kind} external" + (" dstport 4789" if kind == "vxlan" else ""))
    port = 4789 if kind == "vxlan" else 6081
    make = (vxlan if kind == "vxlan" else geneve).carried
    here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
    Case(
        f"tunnel/{kind}/external/bridged",
        "A bridge with a port and an external device: what has no metadata does not leave, and an action may give it some.",
        bridge + CLSACT + [f"tc filter add dev tun1 egress protocol ip prio 1 u32 match ip tos 0x10 0xff action tunnel_key set {HERE4} id 9 ttl 7"],
        [
            ("without metadata", *local(here / udp())),
            ("for all", *local(here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("with metadata", *local(IP(src="10.5.0.1", dst="10.5.0.2", tos=0x10, id=1) / udp())),
        ]
        + listed([("the station", make(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=3))])
        + [("known", *local(here / udp()))],
        remembers=True,
        links=True,
        shows=(OUT,),
    )
    second = f"ip link add tun2 address 02:00:00:00:00:78 type {kind} "
    Case(
        f"tunnel/{kind}/external/two",
        "An external device beside one of a network at another port.",
        device(kind)
        + [
            second + ("id 100 local 198.51.100.1 remote 198.51.100.2 dstport 4790" if kind == "vxlan" else "id 100 remote 198.51.100.2 dstport 6082"),
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
        ],
        listed(
            [
                ("the first", make(False, framed(in4()))),
                ("the second", make(False, framed(in4(), dst="02:00:00:00:00:78"), dport=port + 1)),
                ("another network of the second", make(False, framed(in4(), dst="02:00:00:00:00:78"), dport=port + 1, vni=101)),
            ]
        ),
    )
    Case(
        f"tunnel/{kind}/external/vrf",
        "No datagram that has come in by a VRF is for an external device outside of it.",
        device(kind, base=VRF),
        listed([("IPv4", make(False, framed(in4())))]),
    )
    Case(
        f"tunnel/{kind}/external/relay",
        "What has come out of it goes into it again: with parameters of its own, or those that it came with, which do not say where it goes.",
        device(kind)
        + CLSACT
        + [
            f"tc filter add dev tun1 ingress protocol ip prio 1 flower enc_ttl 9 {TO_TUNNEL}",
            f"tc filter add dev tun1 ingress protocol ip prio 2 flower enc_key_id 8 action tunnel_key set {HERE4} id 33 ttl 33 pipe {TO_TUNNEL}",
        ],
        listed([("as it came", make(False, framed(in4()), outer={"ttl": 9})), ("with others", make(False, framed(in4()), vni=8))]),
        remembers=True,
        shows=(IN,),
    )

Case(
    "tunnel/vxlan/external/ends",
    "An external VXLAN with ends of its own, which mean nothing.",
    tunnel("vxlan", "dstport 4789 external tos 0x20 ttl 3", "local 198.51.100.1 remote 198.51.100.3") + coming(f"protocol ip prio 1 u32 match ip tos 0x10 0xff {key('vxlan')} pipe {TO_TUNNEL}"),
    [("without metadata", "p0", ether(tos4(0))), ("with metadata", "p0", ether(tos4(0x10)))],
    remembers=True,
)
for kind in ("geneve", "geneve-bare"):
    inside = in4() if "bare" in kind else framed(in4())
    Case(
        f"tunnel/geneve/external/critical{'-bare' if 'bare' in kind else ''}",
        "A critical option, which nothing here could read (RFC 8926 section 3.5).",
        device(kind),
        differs="it takes it, for whoever may match the option",
        frames=listed([("a critical option", geneve.carried(False, inside, options=geneve.CRITICAL, flags=0x40))]),
        expect={},
        links=False,
    )

# ------------------------------------------------- VLANs of a bridge that are networks of an external VXLAN

ENDS_OF = {False: ["198.51.100.2", "198.51.100.3"], True: ["2001:db8:2::2", "2001:db8:2::3"]}


def networks(six, more=(), options=""):
    """VLANs 10 and 11 are networks 10010 and 11, VLAN 12 is none, VLAN 13 leaves without a tag."""
    one, other = ENDS_OF[six]
    near = "2001:db8:2::1" if six else "198.51.100.1"
    return vxlan.bridged(
        six,
        device=f"vxlan external dstport 4789 local {near} {options}".rstrip(),
        after=["ip link set tun2 type bridge vlan_filtering 1", "bridge link set dev tun1 vlan_tunnel on"]
        + [f"bridge vlan add dev p0 vid {vid}" for vid in ("10", "11 untagged", "12", "13")]
        + ["bridge vlan add dev tun2 vid 10 self"]
        + [f"bridge vlan add dev tun1 vid {vid}" for vid in (10, 11, 12)]
        + ["bridge vlan add dev tun1 vid 13 untagged"]
        + [f"bridge vlan add dev tun1 vid {vid} tunnel_info id {vni}" for vid, vni in [(10, 10010), (11, 11), (13, 13)]]
        + [f"bridge fdb append 00:00:00:00:00:00 dev tun1 dst {one} src_vni {vni}" for vni in (10010, 11, 13)]
        + [f"bridge fdb append 00:00:00:00:00:00 dev tun1 dst {other} src_vni 11"]
        + [f"bridge fdb add {THERE_MAC} dev tun1 dst {other} src_vni 10010 static"]
        + list(more),
    )


def tagged(vid, inner, **more):
    return local(Dot1Q(vlan=vid) / inner, **more)


for six in (False, True):
    suffix = 6 if six else 4
    here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
    back = lambda inner, vni, **more: vxlan.carried(six, framed(inner, dst=HOST_MAC, src=THERE_MAC), vni=vni, **more)
    Case(
        f"tunnel/vxlan/networks/into{suffix}",
        f"A bridge whose VLANs are networks over IPv{suffix}: what leaves in which.",
        networks(six),
        [
            ("to the end of the station", *tagged(10, here / udp())),
            ("an unknown station", *tagged(10, here / udp(), dst=OTHER_MAC)),
            ("for all, to two ends", *tagged(11, here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("a station of another network", *tagged(11, here / udp())),
            ("a VLAN without a network", *tagged(12, here / udp())),
            ("a VLAN that leaves without a tag", *tagged(13, here / udp())),
            ("without a tag", *local(here / udp())),
            ("two tags", *tagged(10, Dot1Q(vlan=77) / here / udp())),
            ("a TOS", *tagged(10, IP(src="10.5.0.1", dst="10.5.0.2", tos=0xB9, id=1) / udp())),
            ("Don't Fragment", *tagged(10, ip4("10.5.0.2", src="10.5.0.1", flags="DF") / udp())),
            ("IPv6", *tagged(10, ip6("2001:db8:55::2") / udp())),
            ("neither IPv4 nor IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC) / Dot1Q(vlan=10, type=0x88B5) / payload(50)),
            ("a tag of its own priority", "p0", Ether(dst=THERE_MAC, src=HOST_MAC) / Dot1Q(vlan=10, prio=5) / here / udp()),
        ],
        remembers=True,
    )
    Case(
        f"tunnel/vxlan/networks/options{suffix}",
        f"The device's own TTL, TOS and checksum over IPv{suffix}, and no Don't Fragment, count for networks.",
        networks(six, options=f"ttl 7 tos 0x20 df set {'udp6zerocsumtx' if six else 'noudpcsum'} srcport 7777 7778"),
        [("a station", *tagged(10, here / udp()))],
        remembers=True,
    )
    Case(
        f"tunnel/vxlan/networks/out{suffix}",
        f"A bridge whose VLANs are networks over IPv{suffix}: what comes in of which.",
        networks(six),
        listed(
            [
                ("a network that is a VLAN", back(there / udp(), 10010)),
                ("another, of which frames leave without a tag", back(there / udp(), 11)),
                ("a network that is none", back(there / udp(), 99)),
                ("no network", back(there / udp(), 0)),
                ("a tag that is a VLAN of the port", back(Dot1Q(vlan=10) / there / udp(), 11)),
                ("a tag that is none", back(Dot1Q(vlan=7) / there / udp(), 10010)),
                ("an empty tag", back(Dot1Q(vlan=0, prio=3) / there / udp(), 10010)),
                ("a tag of providers", vxlan.carried(six, Ether(dst=HOST_MAC, src=THERE_MAC) / Dot1AD(vlan=7) / there / udp(), vni=10010)),
                ("for all", vxlan.carried(six, framed(there / udp(), dst="ff:ff:ff:ff:ff:ff", src=THERE_MAC), vni=10010)),
            ]
        )
        + [("back to where it came from, as is said", *tagged(10, here / udp()))],
        remembers=True,
    )
here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
Case(
    "tunnel/vxlan/networks/filters",
    "Filters see the network, and say otherwise.",
    networks(
        False,
        CLSACT
        + [
            "tc filter add dev tun1 egress protocol all prio 1 flower enc_key_id 11 action drop",
            f"tc filter add dev tun1 egress protocol ip prio 2 u32 match ip tos 0x10 0xff action tunnel_key set {HERE4} id 77 ttl 9",
            "tc filter add dev tun1 egress protocol ip prio 3 u32 match ip tos 0x20 0xff action tunnel_key unset",
            "tc filter add dev tun1 egress protocol ip prio 4 flower enc_ttl 7 action drop",
            "tc filter add dev tun1 egress protocol ip prio 5 flower enc_dst_ip 198.51.100.3 action drop",
            "tc filter add dev tun1 ingress protocol ip prio 1 flower enc_key_id 11 action drop",
            "tc filter add dev tun1 ingress protocol ip prio 2 flower enc_key_id 10010 enc_ttl 9 action tunnel_key unset",
            f"tc filter add dev tun1 ingress protocol ip prio 3 flower enc_key_id 5 action tunnel_key set {HERE4} id 10010",
        ],
        options="ttl 7",
    ),
    [
        ("no filter", *tagged(10, here / udp())),
        ("dropped", *tagged(11, here / udp())),
        ("another network, by an action", *tagged(10, IP(src="10.5.0.1", dst="10.5.0.2", tos=0x10, id=1) / udp())),
        ("none, by an action", *tagged(10, IP(src="10.5.0.1", dst="10.5.0.2", tos=0x20, id=1) / udp())),
    ]
    + listed(
        [
            ("dropped", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=11)),
            ("unset", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=10010, outer={"ttl": 9})),
            ("as it came", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=10010)),
            ("another network, by an action", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=5)),
        ]
    ),
    remembers=True,
    shows=(OUT, IN),
)
Case(
    "tunnel/vxlan/networks/changed",
    "VLANs that were networks are none any more, and others are.",
    networks(
        False,
        [
            "bridge vlan del dev tun1 vid 10 tunnel_info id 10010",
            "bridge vlan add dev tun1 vid 12 tunnel_info id 10010",
            "bridge fdb del 00:00:00:00:00:00 dev tun1 dst 198.51.100.3 src_vni 11",
            f"bridge fdb replace {THERE_MAC} dev tun1 dst 198.51.100.2 src_vni 10010 static",
        ],
    ),
    [
        ("no network", *tagged(10, here / udp())),
        ("the network of another VLAN", *tagged(12, here / udp())),
        ("one end", *tagged(11, here / udp())),
    ]
    + listed([("in the other VLAN", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=10010))]),
    remembers=True,
)
Case(
    "tunnel/vxlan/networks/unfiltered",
    "A bridge that does not filter by VLANs has no networks either.",
    networks(False, ["ip link set tun2 type bridge vlan_filtering 0"]),
    [("a tag", *tagged(10, here / udp())), ("no tag", *local(here / udp()))]
    + listed([("a network", vxlan.carried(False, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC), vni=10010))]),
    remembers=True,
)
