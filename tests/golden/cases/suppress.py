"""Bridges that answer for the neighbours that they know: `neigh_suppress`, `proxy_arp`, `proxy_arp_wifi` of their ports.

The neighbours have the addresses 10.1.0.N and 2001:db8:11::N."""

from scapy.all import ARP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr as Source,
)

from .bridge import ALL, A, B, C, D, FOUR, GROUP, MAC, QUAD, bridge, frame
from .frames import *

OWN, BEHIND, NEAR, LOST, PORT, FAILED, ROUTER, UNKNOWN, ASKER = range(1, 10)
STATIONS = {BEHIND: B, NEAR: C, LOST: D, PORT: P1, ROUTER: B, ASKER: A}
LINK_LOCAL = "fe80::aa"
NODES = "33:33:00:00:00:01"


def ip_of(n):
    return n if isinstance(n, str) else f"10.1.0.{n}"


def ip6_of(n):
    return n if isinstance(n, str) else f"2001:db8:11::{n}"


def neighbours(dev="tun0", stations=STATIONS):
    """What the bridge, or a VLAN device above it, knows of the hosts."""
    lines = [
        f"ip addr add {ip_of(OWN)}/24 dev {dev}",
        f"ip addr add {ip6_of(OWN)}/64 dev {dev} nodad",
        f"ip addr add {LINK_LOCAL}/64 dev {dev} nodad",
        f"ip neigh add {ip_of(FAILED)} dev {dev} nud failed",
        f"ip neigh add {ip6_of(FAILED)} dev {dev} nud failed",
    ]
    for n, mac in stations.items():
        router = " router" if n == ROUTER else ""
        lines += [
            f"ip neigh add {ip_of(n)} lladdr {mac} dev {dev} nud permanent",
            f"ip neigh add {ip6_of(n)} lladdr {mac} dev {dev}{router} nud permanent",
        ]
    return lines


STATIC = [f"bridge fdb add {B} dev p1 master static", f"bridge fdb add {C} dev p0 master static"]


def arp(n, *tags, op=1, src=A, dst=ALL, psrc=ASKER, kind=0x0806, **more):
    message = bytes(ARP(**{"op": op, "hwsrc": src, "psrc": ip_of(psrc), "pdst": ip_of(n), **more}))
    made = last = frame(src, dst, *tags, inner=Raw(message))
    while isinstance(last.payload, (Dot1Q, Dot1AD)):
        last = last.payload
    last.type = kind
    return made


def nd(message, *tags, src=A, dst=None, psrc=ASKER, pdst=None, hlim=255, **more):
    """To the solicited-node group of the target, unless said otherwise."""
    low = ip_address(message.tgt if hasattr(message, "tgt") else ip6_of(BEHIND)).packed[-3:]
    dst = f"33:33:ff:{low[0]:02x}:{low[1]:02x}:{low[2]:02x}" if dst is None else dst
    pdst = str(ip_address(bytes.fromhex("ff0200000000000000000001ff") + low)) if pdst is None else pdst
    packet = IPv6(src=ip6_of(psrc), dst=ip6_of(pdst), hlim=hlim, **more) / message
    return frame(src, dst, *tags, inner=packet)


def ns(n, *tags, options=None, **more):
    options = Source(lladdr=more.get("src", A)) if options is None else options
    return nd(ICMPv6ND_NS(tgt=ip6_of(n)) / options, *tags, **more)


def probe(n):
    return nd(ICMPv6ND_NS(tgt=ip6_of(n)), psrc="::")


def na(n, solicited, src=A, **more):
    message = ICMPv6ND_NA(tgt=ip6_of(n), R=0, S=solicited, O=1) / ICMPv6NDOptDstLLAddr(lladdr=src)
    return nd(message, src=src, dst=NODES, psrc=n, pdst="ff02::1", **more)


WHOM = [
    ("behind a port of them", BEHIND),
    ("behind this port", NEAR),
    ("of a station that is unknown", LOST),
    ("the router's own", OWN),
    ("with the address of a port", PORT),
    ("one that failed", FAILED),
    ("a router", ROUTER),
    ("unknown", UNKNOWN),
]
RARP = 0x8035
ARPS = [(f"ARP: {whom}", arp(n)) for whom, n in WHOM] + [
    ("ARP, by the port of them", "p1", arp(ASKER, src=B, psrc=BEHIND)),
    ("ARP, by the port of them, for one behind it", "p1", arp(ROUTER, src=B, psrc=BEHIND)),
    ("gratuitous, by the port of them", "p1", arp(BEHIND, src=B, psrc=BEHIND)),
    ("to the station itself", arp(BEHIND, dst=B)),
    ("to a station that nobody knows", arp(BEHIND, dst="02:00:00:00:0b:77")),
    ("to the address of the bridge", arp(BEHIND, dst=MAC)),
    ("to a group", arp(BEHIND, dst=GROUP)),
    ("a gratuitous request", arp(ASKER)),
    ("a gratuitous reply", arp(ASKER, op=2)),
    ("a probe", arp(BEHIND, psrc="0.0.0.0")),
    ("a probe for an unknown one", arp(UNKNOWN, psrc="0.0.0.0")),
    ("from the network of nobody", arp(BEHIND, psrc="0.0.0.5")),
    ("a probe for the router's own", arp(OWN, psrc="0.0.0.0")),
    ("a reply to all", arp(BEHIND, op=2)),
    ("a reply to one", arp(BEHIND, op=2, dst=B)),
    ("a reply from nowhere", arp(BEHIND, op=2, psrc="0.0.0.0")),
    ("RARP", arp(ASKER, op=3, kind=RARP)),
    ("RARP with nothing", arp("0.0.0.0", op=3, psrc="0.0.0.0", kind=RARP)),
    ("a reply of RARP", arp(ASKER, op=4, kind=RARP)),
    ("an operation of RARP in ARP", arp(ASKER, op=3)),
    ("a request in RARP", arp(BEHIND, kind=RARP)),
    ("InARP, gratuitous", arp(ASKER, op=8)),
    ("a loopback address", arp("127.0.0.1")),
    ("a group's address", arp("224.0.0.9")),
    ("everyone's address", arp("255.255.255.255")),
    ("other hardware", arp(BEHIND, hwtype=6)),
    ("another length of hardware addresses", arp(BEHIND, hwlen=8)),
    ("another length of addresses", arp(BEHIND, plen=16)),
    ("another protocol", arp(BEHIND, ptype=0x86DD)),
    ("from another station than it says", arp(BEHIND, hwsrc=D)),
    ("from a group, it says", arp(BEHIND, hwsrc=GROUP)),
    ("for a station that it names", arp(BEHIND, hwdst=B)),
    ("cut off", Raw(bytes(arp(BEHIND))[:41])),
    ("with something behind", Raw(bytes(arp(BEHIND)) + bytes(range(18)))),
    ("with a tag", arp(BEHIND, 7)),
    ("with a service tag", arp(BEHIND, Dot1AD(vlan=7, prio=3))),
    ("with two tags", arp(BEHIND, 7, 8)),
    ("by a VLAN device", arp(BEHIND, 10)),
    ("by the other one", "p1", arp(NEAR, 10, src="02:00:00:00:0a:0a")),
    ("no ARP", frame(A, ALL)),
]
NDS = [(f"ND: {whom}", ns(n)) for whom, n in WHOM] + [
    ("ND, by the port of them", "p1", ns(ASKER, src=B, psrc=BEHIND)),
    ("ND, by the port of them, for one behind it", "p1", ns(ROUTER, src=B, psrc=BEHIND)),
    ("an advertisement, by the port of them", "p1", na(BEHIND, 0, src=B)),
    ("to the station itself", ns(BEHIND, dst=B)),
    ("to the address itself", ns(BEHIND, dst=B, pdst=BEHIND)),
    ("to a station that nobody knows", ns(BEHIND, dst="02:00:00:00:0b:77")),
    ("to the address of the bridge", ns(BEHIND, dst=MAC)),
    ("a probe", probe(BEHIND)),
    ("a probe for an unknown one", probe(UNKNOWN)),
    ("a probe for the router's own", probe(OWN)),
    ("from itself to itself", ns(BEHIND, psrc=BEHIND, pdst=BEHIND)),
    ("the link-local address of the bridge", ns(LINK_LOCAL)),
    ("a group", ns("ff02::5")),
    ("loopback", ns("::1")),
    ("an unsolicited advertisement", na(ASKER, 0)),
    ("a solicited one, to all", na(ASKER, 1)),
    ("no options", ns(BEHIND, options=Raw(b""))),
    ("another source in the option", ns(BEHIND, options=Source(lladdr=D))),
    ("a nonce before it", ns(BEHIND, options=Raw(bytes([14, 1, 1, 2, 3, 4, 5, 6])) / Source(lladdr=D))),
    ("two sources", ns(BEHIND, options=Source(lladdr=D) / Source(lladdr=C))),
    ("a longer option of the source", ns(BEHIND, options=Raw(bytes([1, 2]) + bytes(range(2, 16))))),
    ("an option of no length", ns(BEHIND, options=Raw(bytes([14, 0, 1, 2, 3, 4, 5, 6])) / Source(lladdr=D))),
    ("an option that is too long", ns(BEHIND, options=Raw(bytes([14, 3, 1, 2, 3, 4, 5, 6])))),
    ("a source that is too long", ns(BEHIND, options=Raw(bytes([1, 3, 2, 0, 0, 0, 0, 9])))),
    ("a byte of an option", ns(BEHIND, options=Raw(bytes([1])))),
    ("three bytes of an option", ns(BEHIND, options=Raw(bytes([1, 1, 2])))),
    ("another code", nd(ICMPv6ND_NS(tgt=ip6_of(BEHIND), code=1))),
    ("a hop limit of 64", ns(BEHIND, hlim=64)),
    ("a traffic class and a flow label", ns(BEHIND, tc=0xB8, fl=0x12345)),
    ("a wrong checksum", nd(ICMPv6ND_NS(tgt=ip6_of(BEHIND), cksum=0x1234))),
    ("behind another header", nd(opts(58, ICMPv6ND_NS(tgt=ip6_of(BEHIND))), nh=60)),
    ("cut off", Raw(bytes(ns(BEHIND, options=Raw(b"")))[:-1])),
    ("a shorter length", ns(BEHIND, plen=8)),
    ("a router solicitation", nd(ICMPv6ND_RS())),
    ("with a tag", ns(BEHIND, 7)),
    ("by a VLAN device", ns(BEHIND, 10)),
    ("no ND", frame(A, NODES, inner=ip6(dst="ff02::1") / udp())),
]


def case(name, doc, config, frames, **more):
    Case(f"bridge/{name}", doc, config, frames, remembers=True, neighbours=True, **more)


def ports(*settings):
    return [f"ip link set {port} type bridge_slave {setting}" for port, setting in settings]


SUPPRESSING = ports(("p1", "neigh_suppress on"), ("tun2", "neigh_suppress on"))
PLAIN = bridge(ports=QUAD, before=FOUR, after=neighbours() + STATIC)
case("suppress-arp", "ARP requests for known neighbours are answered, and not flooded to some ports.", PLAIN + SUPPRESSING, ARPS)
case("suppress-nd", "Neighbour solicitations for known neighbours are answered, and not flooded to some ports.", PLAIN + SUPPRESSING, NDS)
case(
    "suppress-off",
    "What was switched on is switched off again.",
    PLAIN + SUPPRESSING + ports(("p1", "neigh_suppress off"), ("tun2", "neigh_suppress off")),
    ARPS + NDS,
)
case("proxy-arp", "A port at which the bridge answers for all, and to which nothing is flooded.", PLAIN + ports(("p0", "proxy_arp on")), ARPS + NDS)
case("proxy-arp-wifi", "Ports of stations for which the bridge answers.", PLAIN + ports(("p1", "proxy_arp_wifi on"), ("tun1", "proxy_arp_wifi on")), ARPS + NDS)
case(
    "proxy-arp-suppress",
    "A port at which the bridge answers for all, and one to which no requests for known neighbours are flooded.",
    PLAIN + ports(("p0", "proxy_arp on"), ("p1", "neigh_suppress on")),
    ARPS + NDS,
)

# VLANs 5 and 6 have devices above the bridge, 7 and 8 have none or no neighbours; 5 is that of untagged frames, 8 leaves without
# its tag as well.
DEVICES = [
    "bridge vlan add vid 5 dev p0 pvid untagged",
    "bridge vlan add vid 6 dev p0",
    "bridge vlan add vid 7 dev p0",
    "bridge vlan add vid 8 dev p0 untagged",
    "bridge vlan add vid 5 dev p1",
    "bridge vlan add vid 6 dev p1 pvid untagged",
    "bridge vlan add vid 7 dev p1",
    "bridge vlan add vid 8 dev p1",
    *(f"bridge vlan add vid {vlan} dev tun0 self" for vlan in (5, 6, 8)),
    "ip link add link tun0 name tun1 type vlan id 5",
    "ip link add link tun0 name tun2 type vlan id 6",
    "ip link add link tun0 name tun3 type vlan id 8",
    *(f"ip link set tun{n} up" for n in (1, 2, 3)),
    *neighbours("tun1"),
    "ip addr add 10.1.6.1/24 dev tun2",
    *(f"ip neigh add {ip_of(n)} lladdr {B} dev {dev} nud permanent" for dev in ("tun0", "tun2", "tun3") for n in (BEHIND, UNKNOWN)),
    *(f"ip neigh add {ip6_of(n)} lladdr {B} dev {dev} nud permanent" for dev in ("tun0", "tun2", "tun3") for n in (BEHIND, UNKNOWN)),
    *(f"bridge fdb add {B} dev p1 master static vlan {vlan}" for vlan in (5, 6, 8)),
    f"bridge fdb add {C} dev p0 master static vlan 5",
]
TAGS = [
    ("no tag", []),
    ("VLAN 5", [5]),
    ("VLAN 6", [6]),
    ("VLAN 7", [7]),
    ("VLAN 8", [8]),
    ("VLAN 9", [9]),
    ("a priority", [Dot1Q(vlan=0, prio=5)]),
    ("VLAN 5 with a priority", [Dot1Q(vlan=5, prio=5)]),
    ("VLAN 6 with a priority", [Dot1Q(vlan=6, prio=3, id=1)]),
    ("two tags", [6, 9]),
    ("a service tag", [Dot1AD(vlan=6)]),
    ("a service tag and another", [Dot1AD(vlan=6), 5]),
]
TAGGED = [
    (f"{what}, {label}", made(n, *tags))
    for what, made, n in [
        ("ARP", arp, BEHIND),
        ("ARP for one behind this port", arp, NEAR),
        ("ARP for an unknown one", arp, UNKNOWN),
        ("ARP for the router", arp, OWN),
        ("ARP for the router's in VLAN 6", arp, "10.1.6.1"),
        ("gratuitous ARP", arp, ASKER),
        ("ND", ns, BEHIND),
        ("ND for one behind this port", ns, NEAR),
        ("ND for an unknown one", ns, UNKNOWN),
        ("ND for the router", ns, OWN),
        ("ND for the link-local address", ns, LINK_LOCAL),
    ]
    for label, tags in TAGS
]
PORT_OF_ALL = ports(("p1", "neigh_suppress on"))
case("suppress-vlans", "Neighbours are those of the VLAN's device.", bridge("vlan_filtering 1", after=DEVICES + PORT_OF_ALL), TAGGED)
case(
    "suppress-provider",
    "The same of service VLANs, for which the devices are none.",
    bridge("vlan_filtering 1 vlan_protocol 802.1ad", after=DEVICES + PORT_OF_ALL),
    TAGGED,
)
case("suppress-vlans-off", "VLANs are of no account where the bridge does not filter.", bridge(after=DEVICES + PORT_OF_ALL), TAGGED)
# Words that iproute2 6.1 does not have.
PER_VLAN = "bridge link set dev p1 neigh_vlan_suppress on"
OF_VLAN = "bridge vlan set vid {} dev {} neigh_suppress on"
for name, doc, lines in [
    ("one", "Those of one VLAN of a port.", [PER_VLAN, OF_VLAN.format(5, "p1")]),
    ("tagged", "Those of VLANs of a port that have a tag there, or no device.", [PER_VLAN, *(OF_VLAN.format(n, "p1") for n in (7, 8))]),
    ("of-all", "VLANs count, not the port, where both are said.", PORT_OF_ALL + [PER_VLAN, OF_VLAN.format(6, "p1")]),
    ("none", "No VLAN of a port whose VLANs count.", PORT_OF_ALL + [PER_VLAN]),
    ("port", "The port counts, not its VLANs, unless it is said.", PORT_OF_ALL + [OF_VLAN.format(5, "p1")]),
    ("unused", "VLANs that do not count, of a port that does not either.", [OF_VLAN.format(5, "p1")]),
    (
        "off",
        "What was switched on is switched off again, for one of two VLANs.",
        [PER_VLAN, OF_VLAN.format(5, "p1"), OF_VLAN.format(6, "p1"), "bridge vlan set vid 5 dev p1 neigh_suppress off"],
    ),
    (
        "both",
        "At the port by which they come in as well.",
        ["bridge link set dev p0 neigh_vlan_suppress on", PER_VLAN, OF_VLAN.format(5, "p0"), *(OF_VLAN.format(n, "p1") for n in (5, 6))],
    ),
]:
    case(f"suppress-per-vlan-{name}", doc, bridge("vlan_filtering 1", after=DEVICES + lines), TAGGED, newer=True)
case(
    "suppress-per-vlan-unfiltered",
    "VLANs are of no account where the bridge does not filter: the port counts.",
    bridge(after=DEVICES + PORT_OF_ALL + [PER_VLAN, OF_VLAN.format(6, "p1")]),
    TAGGED,
    newer=True,
)
IN_VRF = [
    "ip link add vrf9 type vrf table 9",
    "ip link set vrf9 up",
    "ip addr add 10.1.0.50/32 dev vrf9",
    "ip addr add 2001:db8:11::50/128 dev vrf9 nodad",
    "ip link add d0 type dummy",
    "ip link set d0 up",
    "ip addr add 10.1.0.51/32 dev d0",
    "ip addr add 2001:db8:11::51/128 dev d0 nodad",
    "ip link add d1 type dummy",
    "ip link set d1 master vrf9",
    "ip link set d1 up",
    "ip addr add 10.1.0.52/32 dev d1",
    "ip addr add 2001:db8:11::52/128 dev d1 nodad",
]
BRIDGE_IN_VRF = ["ip link set tun0 master vrf9"] + neighbours() + STATIC + ["ip addr add 10.1.0.53 peer 10.3.0.53/32 dev tun0"]
FOR_VRF = (
    [(f"{what} for {n}", made(n)) for what, made in [("ARP", arp), ("ND", ns)] for n in (BEHIND, OWN)]
    + [(f"ARP for {n}", arp(f"10.1.0.{n}")) for n in (50, 51, 52, 53)]
    + [(f"ND for {n}", ns(f"2001:db8:11::{n}")) for n in (50, 51, 52)]
    + [("ND to the address 50", ns("2001:db8:11::50", dst=MAC, pdst="2001:db8:11::50"))]
    + [("ND to the router's address", ns(OWN, dst=MAC, pdst=OWN))]
    + [("ARP for the subnet", arp("10.1.0.0")), ("ARP for all of it", arp("10.1.0.255"))]
)
case(
    "suppress-vrf",
    "The bridge is in a VRF, whose addresses are the router's own.",
    IN_VRF + bridge(after=BRIDGE_IN_VRF + PORT_OF_ALL),
    FOR_VRF,
)
case(
    "suppress-first",
    "The same of a bridge that suppresses requests before links and addresses come, move and go.",
    bridge(
        after=PORT_OF_ALL
        + IN_VRF
        + BRIDGE_IN_VRF
        + [
            "ip addr add 10.1.0.54/32 dev vrf9",
            "ip addr del 10.1.0.54/32 dev vrf9",
            "ip addr add 2001:db8:11::54/128 dev d1 nodad",
            "ip addr del 2001:db8:11::54/128 dev d1",
            "ip link add d2 type dummy",
            "ip link set d2 up",
            "ip link set d2 master vrf9",
            "ip addr add 2001:db8:11::55/128 dev d2 nodad",
            "ip link add d3 type dummy",
            "ip link set d3 up",
            "ip link set d3 master vrf9",
            "ip addr add 2001:db8:11::56/128 dev d3 nodad",
            "ip link set d3 nomaster",
            "ip addr add 2001:db8:11::56/128 dev d3 nodad",
            "ip link set d2 down",
            "ip addr add 10.1.0.57/32 dev vrf9",
        ]
    ),
    FOR_VRF + [(f"ARP for {n}", arp(f"10.1.0.{n}")) for n in (54, 57)] + [(f"ND for {n}", ns(f"2001:db8:11::{n}")) for n in (54, 55, 56)],
)
TENANT = [
    "ip addr add 198.51.100.1/24 dev p1",
    "ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent",
    "ip link add tun1 address 02:00:00:00:00:bb type vxlan id 100 local 198.51.100.1 dstport 4789 nolearning",
    "bridge fdb append 00:00:00:00:00:00 dev tun1 dst 198.51.100.2",
    f"bridge fdb add {B} dev tun1 dst 198.51.100.2",
    "ip link set tun1 up",
]


def vxlan(inner):
    outer = IP(src="198.51.100.2", dst="198.51.100.1", ttl=64, id=9) / UDP(sport=50000, dport=4789, chksum=0)
    return Ether(dst=P1, src=N1) / outer / Raw(struct.pack("!II", 0x08000000, 100 << 8) + bytes(inner))


case(
    "suppress-vxlan",
    "A VXLAN at which no requests for known neighbours are flooded; those from there are.",
    bridge(
        ports=("p0", "tun1"),
        before=TENANT,
        after=neighbours()
        + [f"bridge fdb add {B} dev tun1 master extern_learn", f"bridge fdb add {C} dev p0 master static"]
        + ports(("tun1", "neigh_suppress on learning off")),
    ),
    [(f"{what}: {whom}", made(n)) for what, made in [("ARP", arp), ("ND", ns)] for whom, n in WHOM]
    + [(f"{what} from there: {whom}", "p1", vxlan(made(n, src=B, psrc=BEHIND))) for what, made in [("ARP", arp), ("ND", ns)] for whom, n in WHOM]
    + [("gratuitous ARP", arp(ASKER)), ("an advertisement", na(ASKER, 0)), ("to all", frame(A, ALL))],
)
case(
    "suppress-device",
    "Requests that the bridge's own device sends.",
    bridge(
        ports=("p0", "tun1"),
        before=["ip link add link p0 name tun1 type vlan id 10", "ip link set tun1 up"],
        after=neighbours()
        + [f"bridge fdb add {B} dev p0 master static", f"bridge fdb add {C} dev tun1 master static"]
        + ports(("p0", "neigh_suppress on"))
        + ["tc qdisc add dev p1 clsact", "tc filter add dev p1 ingress matchall action mirred egress redirect dev tun0"],
    ),
    [(f"{what}: {whom}", "p1", made(n)) for what, made in [("ARP", arp), ("ND", ns)] for whom, n in WHOM if n != PORT]
    + [("gratuitous ARP", "p1", arp(ASKER)), ("an advertisement", "p1", na(ASKER, 0)), ("to all", "p1", frame(A, ALL))]
    + [("to the station itself", "p1", arp(BEHIND, dst=B)), ("ND to the station itself", "p1", ns(BEHIND, dst=B))],
    links=False,  # Linux counts the redirects that it sends.
)
