"""Bridges: stations learned and moved, floods, switches of ports, VLANs, addresses of the bridge, ports that are other devices.

The bridge is tun0, VLAN devices that are ports are tun1 and tun2, as the statistics of links of these names are part of a
case."""

from scapy.all import ARP

from .frames import *

MAC = "02:00:00:00:00:aa"  # the bridge's
A, B, C, D = (f"02:00:00:00:0a:0{n}" for n in range(1, 5))
ALL, GROUP = "ff:ff:ff:ff:ff:ff", "01:00:5e:01:02:03"


def bridge(options="", ports=("p0", "p1"), before=(), after=()):
    return (
        ["ip link set p0 up", "ip link set p1 up"]
        + list(before)
        + [
            f"ip link add tun0 address {MAC} type bridge mcast_snooping 0 {options}".strip(),
            *(f"ip link set {port} master tun0" for port in ports),
            "ip link set tun0 up",
        ]
        + list(after)
    )


def frame(src, dst, *tags, inner=None):
    made = Ether(dst=dst, src=src)
    for tag in tags:
        made = made / (Dot1Q(vlan=tag) if isinstance(tag, int) else tag)
    return made / (ip4("10.1.0.9", "10.1.0.8") / udp() if inner is None else inner)


PAIRS = [
    ("nobody knows where", frame(A, B)),
    ("back, to one that is known", "p1", frame(B, A)),
    ("and forth", frame(A, B)),
    ("to all", frame(A, ALL)),
    ("to a group", "p1", frame(B, GROUP)),
    ("to one behind the same port", frame(C, A)),
    ("a station moves", "p1", frame(A, C)),
    ("to where it is now", frame(C, A)),
    ("from a group", frame(GROUP, B)),
    ("from nobody", frame("00:00:00:00:00:00", B)),
    ("a tag goes along", frame(A, B, 7)),
    ("two tags", frame(B, ALL, Dot1AD(vlan=3), 4)),
]
LOCAL = [
    (f"link-local group {group:x}", frame(A, f"01:80:c2:00:00:{group:02x}", inner=Raw(b"BPDU" * 16)))
    for group in (0, 1, 2, 3, 8, 0xD, 0xE, 0xF, 0x10)
]
Case("bridge/learning", "Frames between two ports: unknown stations, known ones, all, groups, one that moves.", bridge(), PAIRS, remembers=True)
Case("bridge/groups", "Link-local groups end at the port.", bridge(), LOCAL, remembers=True)
Case(
    "bridge/group-forward",
    "Link-local groups that are forwarded: by the bridge, by a port.",
    bridge("group_fwd_mask 0x4008", after=["ip link set p0 type bridge_slave group_fwd_mask 4"]),
    LOCAL + [("from the other port", "p1", frame(B, "01:80:c2:00:00:02"))],
    remembers=True,
)
Case("bridge/ageing-0", "Nothing is learned.", bridge("ageing_time 0"), PAIRS, remembers=True)
# Four ports: each wire, and a VLAN of each.
FOUR = [
    "ip link add link p0 name tun1 type vlan id 10",
    "ip link add link p1 name tun2 type vlan id 10",
    "ip link set tun1 up",
    "ip link set tun2 up",
]
QUAD = ("p0", "p1", "tun1", "tun2")
MANY = [
    ("unknown, in the VLAN", frame(A, B, 10)),
    ("from the VLAN of the other wire", "p1", frame(B, A, 10)),
    ("to it", frame(A, B, 10)),
    ("to all, without a tag", "p1", frame(C, ALL)),
    ("to all, with it", frame(D, ALL, 10)),
    ("known, from another port", "p1", frame(C, D)),
    ("another tag", frame(A, ALL, 11)),
    ("a group", "p1", frame(B, GROUP, 10)),
]
Case("bridge/vlan-devices", "VLAN devices as ports take their frames before the port below.", bridge(ports=QUAD, before=FOUR), MANY, remembers=True)
Case(
    "bridge/isolated",
    "Isolated ports do not reach each other.",
    bridge(ports=QUAD, before=FOUR, after=["ip link set p0 type bridge_slave isolated on", "ip link set tun2 type bridge_slave isolated on"]),
    MANY,
    remembers=True,
)
Case(
    "bridge/hairpin",
    "What came in by a port leaves by it.",
    bridge(after=["ip link set p0 type bridge_slave hairpin on"]),
    PAIRS,
    remembers=True,
)
Case(
    "bridge/locked",
    "A locked port takes frames of stations alone that are known there, also where it learns none, and in their VLAN.",
    bridge(
        ports=QUAD,
        before=FOUR,
        after=[
            "ip link set p0 type bridge_slave locked on",
            "ip link set tun1 type bridge_slave locked on learning off",
            f"bridge fdb add {A} dev p0 master static",
            f"bridge fdb add {B} dev p1 master static",
            f"bridge fdb add {C} dev tun1 master dynamic",
        ],
    ),
    [
        ("one that is known", frame(A, B)),
        ("one that is not", frame(D, B)),
        ("it was not learned", "p1", frame(B, D)),
        ("one of another port", frame(B, A)),
        ("the bridge's address", frame(MAC, B)),
        ("known to the port that learns none", frame(C, B, 10)),
        ("not known to that", frame(A, B, 10)),
        ("to a link-local group from one that is not known", frame(D, "01:80:c2:00:00:0e", inner=Raw(b"LLDP" * 16))),
        ("was that learned?", "p1", frame(B, D)),
        ("to all from one that is not known", frame(D, ALL)),
        ("what leaves by it is as ever", "p1", frame(D, ALL)),
        ("and to it", "p1", frame(B, A)),
    ],
    remembers=True,
)
Case(
    "bridge/switches",
    "A port that learns nothing, and ports that get no unknown stations, groups or broadcasts.",
    bridge(
        ports=QUAD,
        before=FOUR,
        after=[
            "ip link set p0 type bridge_slave learning off",
            "ip link set p1 type bridge_slave flood off",
            "ip link set tun1 type bridge_slave mcast_flood off",
            "ip link set tun2 type bridge_slave bcast_flood off",
        ],
    ),
    MANY + PAIRS,
    remembers=True,
)
Case(
    "bridge/states",
    "A port that only learns, and one that is disabled.",
    bridge(ports=QUAD, before=FOUR, after=["bridge link set dev p0 state 2", "bridge link set dev tun2 state 0"]),
    MANY + PAIRS,
    remembers=True,
)
Case(
    "bridge/fdb",
    "Entries that requests have made: static, dynamic, sticky, local, of the bridge itself.",
    bridge(
        after=[
            f"bridge fdb add {A} dev p1 master static",
            f"bridge fdb add {B} dev p0 master static sticky",
            f"bridge fdb add {C} dev p1 master local",
            f"bridge fdb add {D} dev p1 master dynamic",
            "bridge fdb add 02:00:00:00:0a:05 dev tun0 self local",
            "bridge fdb add 02:00:00:00:0a:06 dev p1 master extern_learn",
        ]
    ),
    [(f"to {n}", frame("02:00:00:00:0b:01", f"02:00:00:00:0a:0{n}")) for n in range(1, 7)]
    + [(f"from {n}", frame(f"02:00:00:00:0a:0{n}", "02:00:00:00:0b:02")) for n in range(1, 7)]
    + [(f"to {n} again", "p1", frame("02:00:00:00:0b:03", f"02:00:00:00:0a:0{n}")) for n in range(1, 7)],
    remembers=True,
)
TAGS = [
    (f"{label} {way}", port, frame(src, dst, *tags))
    for way, port, src, dst in [
        ("to all", "p0", A, ALL),
        ("back", "p1", B, A),
        ("forth", "p0", A, B),
        ("to a group", "p1", B, GROUP),
    ]
    for label, tags in [
        ("no tag", []),
        ("VLAN 5", [5]),
        ("VLAN 6", [6]),
        ("VLAN 7", [7]),
        ("VLAN 8", [8]),
        ("a priority", [Dot1Q(vlan=0, prio=5)]),
        ("VLAN 6 with a priority", [Dot1Q(vlan=6, prio=3, id=1)]),
        ("two tags", [6, 9]),
        ("a service tag", [Dot1AD(vlan=6)]),
        ("a service tag and another", [Dot1AD(vlan=6), 5]),
    ]
]
VLANS = [
    "bridge vlan add vid 5 dev p0 pvid untagged",
    "bridge vlan add vid 6 dev p0",
    "bridge vlan add vid 7-9 dev p0",
    "bridge vlan add vid 5 dev p1",
    "bridge vlan add vid 6 dev p1 pvid untagged",
    "bridge vlan add vid 7 dev p1 untagged",
    "bridge vlan del vid 1 dev p1",
    "bridge vlan add vid 6 dev tun0 self",
]
Case("bridge/vlan-filtering", "VLANs of ports: tags put on, taken off, refused.", bridge("vlan_filtering 1", after=VLANS), TAGS, remembers=True)
Case("bridge/vlan-off", "VLANs of ports are of no account where the bridge does not filter.", bridge(after=VLANS), TAGS, remembers=True)
Case(
    "bridge/vlan-provider",
    "Service VLANs.",
    bridge("vlan_filtering 1 vlan_protocol 802.1ad", after=VLANS),
    TAGS + LOCAL,
    remembers=True,
)
Case(
    "bridge/vlan-no-pvid",
    "No frame without a tag.",
    bridge("vlan_filtering 1 vlan_default_pvid 0", after=["bridge vlan add vid 6 dev p0", "bridge vlan add vid 6 dev p1"]),
    TAGS,
    remembers=True,
)
Case(
    "bridge/vlan-fdb",
    "Stations are known in their VLAN.",
    bridge("vlan_filtering 1", after=VLANS + [f"bridge fdb add {B} dev p1 master static vlan 5", f"bridge fdb add {C} dev p0 master static"]),
    TAGS + [(f"to the other in {tag}", "p1", frame(B, C, tag)) for tag in (5, 6, 7)],
    remembers=True,
)
# Addresses of the bridge: two networks behind the same ports.
IRB = [
    "ip addr add 10.1.0.1/24 dev tun0",
    "ip addr add 10.2.0.1/24 dev tun0",
    "ip addr add 2001:db8:11::1/64 dev tun0 nodad",
    f"ip neigh add 10.1.0.2 lladdr {A} dev tun0 nud permanent",
    f"ip neigh add 10.2.0.2 lladdr {B} dev tun0 nud permanent",
    f"ip neigh add 2001:db8:11::2 lladdr {A} dev tun0 nud permanent",
    "ip route add 10.7.0.0/16 via 10.2.0.2",
]


def ping(src, dst):
    return IP(src=src, dst=dst, id=7) / ICMP(type=8, id=5, seq=6) / payload(32)


ROUTED = [
    ("a ping, to a station that is not known yet", frame("02:00:00:00:0a:09", MAC, inner=ping("10.1.0.2", "10.1.0.1"))),
    ("a ping", frame(A, MAC, inner=ping("10.1.0.2", "10.1.0.1"))),
    ("ARP", frame(A, ALL, inner=ARP(op=1, hwsrc=A, psrc="10.1.0.2", pdst="10.1.0.1"))),
    ("IPv6", frame(A, MAC, inner=IPv6(src="2001:db8:11::2", dst="2001:db8:11::1") / ICMPv6EchoRequest(id=1, seq=2, data=b"x" * 16))),
    ("forwarded, to one that is not known", frame(A, MAC, inner=ip4("10.7.0.5", "10.1.0.2") / udp())),
    ("the other is heard", "p1", frame(B, A)),
    ("forwarded", frame(A, MAC, inner=ip4("10.7.0.5", "10.1.0.2") / udp())),
    ("for another station", frame(A, C, inner=ip4("10.7.0.5", "10.1.0.2") / udp())),
    ("to the address of its port", frame(A, P0, inner=ping("10.1.0.2", "10.1.0.1"))),
    ("to the address of the other port", frame(A, P1, inner=ping("10.1.0.2", "10.1.0.1"))),
    ("the last hop", frame(A, MAC, inner=ip4("10.7.0.5", "10.1.0.2", ttl=1) / udp())),
]
Case("bridge/routed", "The bridge has addresses: pings, ARP, and packets forwarded from it to itself.", bridge(after=IRB), ROUTED, remembers=True)
Case(
    "bridge/routed-vlans",
    "VLAN devices above a bridge that filters VLANs.",
    bridge(
        "vlan_filtering 1",
        after=[
            "bridge vlan add vid 5 dev p0 pvid untagged",
            "bridge vlan add vid 6 dev p1",
            "bridge vlan add vid 5 dev tun0 self",
            "bridge vlan add vid 6 dev tun0 self",
            "ip link add link tun0 name tun1 type vlan id 5",
            "ip link add link tun0 name tun2 type vlan id 6",
            "ip link set tun1 up",
            "ip link set tun2 up",
            "ip addr add 10.1.0.1/24 dev tun1",
            "ip addr add 10.2.0.1/24 dev tun2",
            f"ip neigh add 10.1.0.2 lladdr {A} dev tun1 nud permanent",
            f"ip neigh add 10.2.0.2 lladdr {B} dev tun2 nud permanent",
        ],
    ),
    [
        ("from the one to the other", frame(A, MAC, inner=ip4("10.2.0.2", "10.1.0.2") / udp())),
        ("back", "p1", frame(B, MAC, 6, inner=ip4("10.1.0.2", "10.2.0.2") / udp())),
        ("and forth", frame(A, MAC, inner=ip4("10.2.0.2", "10.1.0.2") / udp())),
        ("a ping", "p1", frame(B, MAC, 6, inner=ping("10.2.0.2", "10.2.0.1"))),
        ("of a VLAN that the port has not", "p1", frame(B, MAC, 5, inner=ping("10.2.0.2", "10.2.0.1"))),
    ],
    remembers=True,
)
Case(
    "bridge/promiscuous",
    "A VLAN device above a bridge has another address: the bridge takes all frames, and passes them on.",
    bridge(
        after=[
            "ip link add link tun0 name tun1 address 02:00:00:00:0b:01 type vlan id 5",
            "ip link set tun1 up",
            "ip addr add 10.1.0.1/24 dev tun1",
            f"ip neigh add 10.1.0.2 lladdr {A} dev tun1 nud permanent",
        ]
    ),
    [
        ("for the VLAN device", frame(A, "02:00:00:00:0b:01", 5, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for one that is not known", frame(A, B, 5, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("heard", "p1", frame(B, A, 5)),
        ("for one that is known", frame(A, B, 5, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("without a tag", frame(A, B)),
        ("for the bridge", frame(A, MAC, 5, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for the VLAN device, from a station behind the same port", frame(C, "02:00:00:00:0b:01", 5, inner=ping("10.1.0.2", "10.1.0.1"))),
    ],
    remembers=True,
)
Case(
    "bridge/promiscuous-vlans",
    "A VLAN device above a bridge has another address: the bridge takes all frames of VLANs that it is not in, with their tags.",
    bridge(
        "vlan_filtering 1",
        after=[
            "bridge vlan add dev p0 vid 5 pvid untagged",
            "bridge vlan add dev p1 vid 5",
            "bridge vlan add dev p0 vid 6",
            "ip link add link tun0 name tun1 address 02:00:00:00:0b:01 type vlan id 5",
            "ip link set tun1 up",
            "ip addr add 10.1.0.1/24 dev tun1",
            f"ip neigh add 10.1.0.2 lladdr {A} dev tun1 nud permanent",
        ],
    ),
    [
        ("for the VLAN device", frame(A, "02:00:00:00:0b:01", inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for one that is not known", frame(A, B, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for the bridge", frame(A, MAC, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for the port", frame(A, P0, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("for all", frame(A, ALL, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("with the tag", "p1", frame(C, "02:00:00:00:0b:01", 5, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("another VLAN", frame(A, "02:00:00:00:0b:01", 6, inner=ping("10.1.0.2", "10.1.0.1"))),
        ("of the bridge's VLAN", "p1", frame(C, MAC, inner=ping("10.1.0.2", "10.1.0.1"))),
    ],
    remembers=True,
    links=True,
)
Case(
    "bridge/redirected",
    "What a filter at one port mirrors or redirects to another, where it comes in, has its addresses there.",
    bridge(
        after=[
            "tc qdisc add dev p0 clsact",
            "tc filter add dev p0 ingress protocol ip pref 1 flower ip_ttl 9 action mirred ingress mirror dev p1",
            "tc filter add dev p0 ingress protocol ip pref 2 flower ip_ttl 7 action mirred ingress redirect dev p1",
        ]
    ),
    [
        ("mirrored", frame(A, B, inner=ip4("10.1.0.9", "10.1.0.8", ttl=9) / udp())),
        ("redirected", frame(A, B, inner=ip4("10.1.0.9", "10.1.0.8", ttl=7) / udp())),
        ("redirected, for the port", frame(A, P0, inner=ip4("10.1.0.9", "10.1.0.8", ttl=7) / udp())),
        ("as it is", frame(A, B)),
    ],
    remembers=True,
)
SHORT = [
    (f"{tag:04x}, {more} more", Ether(dst=B, src=A, type=tag) / Raw(b"\x00\x05\x88\xb5\x00\x00\x00"[:more]))
    for tag in (0x8100, 0x88A8, 0x88B5)
    for more in (1, 3, 4, 5, 6, 7)
]
Case("bridge/short", "A tag that nothing is behind goes nowhere, other short frames pass.", bridge(), SHORT, remembers=True)
VXLAN_PORT = (
    ["ip link set p0 up", "ip link set p1 up", "ip addr add 198.51.100.1/24 dev p1"]
    + ["ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent"]
    + ["ip link add tun1 address 02:00:00:00:00:bb type vxlan id 100 dstport 4789 local 198.51.100.1 remote 198.51.100.2 srcport 7777 7778", "ip link set tun1 up"]
    + [f"ip link add tun0 address {MAC} type bridge mcast_snooping 0", "ip link set p0 master tun0", "ip link set tun1 master tun0", "ip link set tun0 up"]
)
Case(
    "bridge/vxlan-twice",
    "A VXLAN above a link: an end that is added once more gets another copy.",
    [line.replace(" srcport", " dev p1 srcport") for line in VXLAN_PORT] + ["bridge fdb append 00:00:00:00:00:00 dev tun1 dst 198.51.100.2"],
    [("to all", frame(A, ALL)), ("nobody knows where", frame(A, B))],
    remembers=True,
)
SHORT_IP = [
    (f"{name}, {length} bytes{tagged}", Ether(dst=B, src=A, type=tags[0] if tags else kind) / Raw((b"\x00\x05" + kind.to_bytes(2, "big") if tags else b"") + (b"\x45" if kind == 0x0800 else b"\x60") + bytes(length - 1)))
    for tagged, tags in [("", []), (", tagged", [0x8100])]
    for name, kind, lengths in [("IPv4", 0x0800, (1, 19, 20)), ("IPv6", 0x86DD, (2, 39, 40)), ("another type", 0x88B5, (1, 20))]
    for length in lengths
]
Case(
    "bridge/vxlan-short",
    "Frames that end inside the IP header go into no VXLAN.",
    VXLAN_PORT,
    SHORT_IP,
    remembers=True,
)
Case(
    "bridge/gretap",
    "A tunnel with frames inside as a port.",
    ["ip link set p0 up", "ip link set p1 up", "ip addr add 198.51.100.1/24 dev p1"]
    + ["ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent"]
    + ["ip link add tun1 address 02:00:00:00:00:bb type gretap local 198.51.100.1 remote 198.51.100.2 ttl 64 nopmtudisc ignore-df", "ip link set tun1 up"]
    + [f"ip link add tun0 address {MAC} type bridge mcast_snooping 0", "ip link set p0 master tun0", "ip link set tun1 master tun0", "ip link set tun0 up"],
    [
        ("into the tunnel", frame(A, B)),
        ("out of it", "p1", Ether(dst=P1, src=N1) / IP(src="198.51.100.2", dst="198.51.100.1", proto=47) / Raw(b"\0\0\x65\x58") / Raw(bytes(frame(B, A)))),
        ("known", frame(A, B)),
        ("to all", frame(A, ALL, inner=ARP(op=1, hwsrc=A, psrc="10.1.0.2", pdst="10.1.0.1"))),
        ("all from there", "p1", Ether(dst=P1, src=N1) / IP(src="198.51.100.2", dst="198.51.100.1", proto=47) / Raw(b"\0\0\x65\x58") / Raw(bytes(frame(B, ALL)))),
    ],
    remembers=True,
)
for kind, own, far, address in [
    ("gretap", "198.51.100.1", "198.51.100.2", "198.51.100.1/24 dev p1"),
    ("ip6gretap", "2001:db8:2::1", "2001:db8:2::2", "2001:db8:2::1/64 dev p1 nodad"),
]:
    Case(
        f"bridge/{kind}-short",
        f"Frames that end inside the IP header go into no {kind}, unless they have a tag.",
        ["ip link set p0 up", "ip link set p1 up", f"ip addr add {address}", f"ip neigh add {far} lladdr 02:00:00:00:01:02 dev p1 nud permanent"]
        + [f"ip link add tun1 address 02:00:00:00:00:bb type {kind} local {own} remote {far} ttl 64", "ip link set tun1 up"]
        + [f"ip link add tun0 address {MAC} type bridge mcast_snooping 0", "ip link set p0 master tun0", "ip link set tun1 master tun0", "ip link set tun0 up"],
        SHORT_IP,
        remembers=True,
        links=True,
    )
Case(
    "bridge/mtu",
    "Frames that a port is too small for.",
    bridge(after=["ip link set p1 mtu 1400"]),
    [(f"{n} bytes", frame(A, B, inner=ip4("10.1.0.9", "10.1.0.8") / udp(n - 28))) for n in (1400, 1404, 1405, 1500)]
    + [("tagged" if n == 1400 else f"tagged {n} bytes", frame(A, B, 7, inner=ip4("10.1.0.9", "10.1.0.8") / udp(n - 28))) for n in (1400, 1401, 1404, 1405)],
    remembers=True,
)
