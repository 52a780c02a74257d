"""Into and out of VXLANs: RFC 7348. Stations are learned from what comes in."""

from scapy.all import ARP
from scapy.layers.inet6 import ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr

from .frames import *
from .tunnel import ECN, EXPIRED, FAR_MAC, FOUR, IN4, IN6, MAC, SIX, put_in, sizes, tunnel
from .tunnel_out import in4, in6, listed
from .bareudp import of4

BOTH = [("4", False), ("6", True)]
ENDS = {
    False: "local 198.51.100.1 remote 198.51.100.2",
    True: "local 2001:db8:2::1 remote 2001:db8:2::2",
}
OTHER_MAC = "02:00:00:00:01:88"


def device(wide, options="", ends=None, vni=100, **more):
    return tunnel("vxlan", f"dstport 4789 {options}".strip(), f"id {vni} {ENDS[wide] if ends is None else ends}".strip(), **more)


def into(name, doc, wide, packets=None, options="", remembers=False, links=True, **more):
    Case(
        f"tunnel/vxlan/{name}",
        doc,
        device(wide, options, **more),
        put_in(packets if packets is not None else FOUR + SIX),
        remembers=remembers,
        links=links,
    )


def header(inner, vni=100, flags=0x08000000, last=0):
    return Raw(struct.pack("!II", flags, vni << 8 | last) + bytes(inner))


def framed(inner, dst=MAC, src=FAR_MAC):
    return Ether(dst=dst, src=src) / inner


def carried(wide, inner, sport=50000, dport=4789, chksum=None, outer=(), **more):
    """A datagram with a VXLAN header and a frame."""
    datagram = UDP(sport=sport, dport=dport, **({} if chksum is None else {"chksum": chksum})) / header(inner, **more)
    ip = dict(outer)
    if wide:
        return IPv6(**{"src": "2001:db8:2::2", "dst": "2001:db8:2::1", "hlim": 64, **ip}) / datagram
    return IP(**{"src": "198.51.100.2", "dst": "198.51.100.1", "ttl": 64, "id": 9, **ip}) / datagram


def out_of(name, doc, wide, packets, options="", remembers=False, **more):
    Case(f"tunnel/vxlan/{name}", doc, device(wide, options, **more), listed(packets), remembers=remembers)


# What a host behind the tunnel asks with: the address of the router, of the group and of all stations.
ASKED = ICMPv6ND_NS(tgt="2001:db8:9::1") / ICMPv6NDOptSrcLLAddr(lladdr=FAR_MAC)
ASKING = [
    ("to the group of the address", "ff02::1:ff00:1", "33:33:ff:00:00:01"),
    ("to the address", "2001:db8:9::1", MAC),
    ("to the address, for all stations", "2001:db8:9::1", "ff:ff:ff:ff:ff:ff"),
    ("to the address, for a group", "2001:db8:9::1", "33:33:ff:00:00:01"),
    ("to the address, for another station", "2001:db8:9::1", OTHER_MAC),
]

ARP_IN = ARP(op=1, hwsrc=FAR_MAC, psrc="10.6.0.2", pdst="10.6.0.1")

for suffix, wide in BOTH:
    over = f"over IPv{suffix}"
    into(f"into{suffix}", f"IPv4 and IPv6 {over}, with the checksum that there is by default", wide)
    unsummed = "udp6zerocsumtx" if wide else "noudpcsum"
    into(f"into{suffix}-no-csum", f"{over}, without a checksum", wide, options=unsummed)
    into(f"into{suffix}-expired", f"{over}: TTL 1", wide, EXPIRED)
    into(f"into{suffix}-ecn", f"{over}: ECN is that of the packet inside", wide, ECN)
    into(f"into{suffix}-tos", f"{over}: a TOS of its own", wide, ECN, "tos 0x29")
    into(f"into{suffix}-tos-inherit", f"{over}: the TOS of the packet inside", wide, ECN, "tos inherit")
    into(f"into{suffix}-ttl", f"{over}: a TTL of its own", wide, FOUR + SIX, "ttl 225")
    into(f"into{suffix}-ttl-inherit", f"{over}: the TTL of the packet inside", wide, FOUR + SIX, "ttl inherit")
    into(f"into{suffix}-srcport", f"{over}: one source port", wide, FOUR[:1] + SIX[:1], "srcport 7777 7778")
    into(f"into{suffix}-df", f"{over}: Don't Fragment", wide, FOUR[:2] + SIX[:1], "df set")
    into(f"into{suffix}-sizes", f"{over}: packets around the MTU, which is that of no way", wide, of4(sizes(1500)), links=False, remembers=True)
    into(f"into{suffix}-sizes-df", f"{over}: the same with Don't Fragment", wide, of4(sizes(1500)), "df set", links=False, remembers=True)
    room = 1500 - (70 if wide else 50)
    into(f"into{suffix}-dev", f"{over}: above a link, whose MTU says what fits", wide, sizes(room), "dev p1", links=False, remembers=True)
    local = "2001:db8:2::2" if wide else "198.51.100.2"
    into(f"into{suffix}-no-local", f"{over}: the source is that of the link", wide, FOUR[:1] + SIX[:1], ends=f"remote {local}")
    into(
        f"into{suffix}-no-remote",
        f"{over}: no other end, so that nothing leaves",
        wide,
        FOUR[:1] + SIX[:1],
        ends="local 2001:db8:2::1" if wide else "local 198.51.100.1",
    )
    if wide:
        into("into6-from-remote", "over IPv6: IPv6 from the other end itself", wide, [("from there", IPv6(src=local, dst=IN6, hlim=40) / udp())])
    away = "2001:db8:77::1" if wide else "203.0.114.1"
    four, six, long6 = ip4(IN4) / udp(), ip6(IN6) / udp(), ip6(IN6) / udp(room - 47)
    Case(
        f"tunnel/vxlan/into{suffix}-no-way",
        f"{over}: no route to the other end",
        device(wide, ends=f"remote {away}"),
        differs="it tells the sender nothing",
        **io([("IPv4", ether(four), [to_p0(icmp4(hops(four), 3, 0))]), ("IPv6", ether(six), [to_p0(unreachable6(hops(six), 0))])]),
        links=False,
    )
    Case(
        f"tunnel/vxlan/into{suffix}-too-long",
        f"{over}: IPv6 that is too long for the underlay",
        device(wide),
        differs="it drops the first, or sends it in fragments, and tells its sender of the next",
        **io([("too long", ether(long6), [to_p0(too_big(hops(long6), room))])]),
        links=False,
    )
    Case(
        f"tunnel/vxlan/out{suffix}-asked",
        f"{over}: a host asks for the router's address, and is answered through the tunnel",
        device(wide),
        listed([(label, carried(wide, framed(IPv6(src="2001:db8:9::2", dst=dst, hlim=255) / ASKED, dst=mac))) for label, dst, mac in ASKING]),
        neighbours=True,
        links=True,
    )
    out_of(
        f"out{suffix}",
        f"{over}: frames come out, as far as they are for the device",
        wide,
        [
            ("IPv4", carried(wide, framed(in4()))),
            ("IPv4, TTL 1", carried(wide, framed(in4(ttl=1)))),
            ("IPv6", carried(wide, framed(in6()))),
            ("for another station", carried(wide, framed(in4(), dst=OTHER_MAC))),
            ("for all", carried(wide, framed(in4(), dst="ff:ff:ff:ff:ff:ff"))),
            ("an ARP request", carried(wide, framed(ARP_IN, dst="ff:ff:ff:ff:ff:ff"))),
            ("another source port", carried(wide, framed(in4()), sport=4789)),
            ("from the station that it is itself", carried(wide, framed(in4(), src=MAC))),
            ("from no station", carried(wide, framed(in4(), src="00:00:00:00:00:00"))),
            ("from a group", carried(wide, framed(in4(), src="01:00:5e:00:00:01"))),
            ("another network", carried(wide, framed(in4()), vni=101)),
            ("no network", carried(wide, framed(in4()), flags=0)),
            ("a bit without a meaning", carried(wide, framed(in4()), flags=0x88000000)),
            ("a last byte without a meaning", carried(wide, framed(in4()), last=1)),
            ("another port", carried(wide, framed(in4()), dport=4790)),
            ("no checksum", carried(wide, framed(in4()), chksum=0)),
            ("a wrong checksum", carried(wide, framed(in4()), chksum=0x1234)),
            ("thirteen bytes of a frame", carried(wide, Raw(bytes(framed(in4()))[:13]))),
            ("an Ethernet header", carried(wide, Raw(bytes(framed(in4()))[:14]))),
            ("an empty frame", carried(wide, Raw(b""))),
        ],
    )
    out_of(
        f"out{suffix}-ecn",
        f"{over}: every pair of ECN fields (RFC 6040)",
        wide,
        [
            (
                f"{family}, outer {outer:#x}, inner {inner:#x}",
                carried(wide, framed(make(inner)), outer={"tc" if wide else "tos": outer}),
            )
            for family, make in [("IPv4", in4), ("IPv6", in6)]
            for outer in (0, 1, 2, 3, 0xBB)
            for inner in (0, 1, 2, 3)
        ],
    )
    third = "2001:db8:2::3" if wide else "198.51.100.3"
    Case(
        f"tunnel/vxlan/learn{suffix}",
        f"{over}: a station is behind the end that its frames came from last",
        device(wide),
        put_in([("before", ip4(IN4) / udp())])
        + listed([("from another end", carried(wide, framed(in4()), outer={"src": third}))])
        + put_in([("to that end", ip4(IN4) / udp()), ("IPv6 to that end", ip6(IN6) / udp())])
        + listed([("from the first end", carried(wide, framed(in4())))])
        + put_in([("to the first end", ip4(IN4) / udp())]),
        remembers=True,
    )
    Case(
        f"tunnel/vxlan/nolearning{suffix}",
        f"{over}: nothing is learned",
        device(wide, "nolearning"),
        listed(
            [
                ("from another end", carried(wide, framed(in4()), outer={"src": third})),
                ("from no station", carried(wide, framed(in4(), src="00:00:00:00:00:00"))),
            ]
        )
        + put_in([("to the first end", ip4(IN4) / udp())]),
    )

out_of("out6-unsummed", "over IPv6: without a checksum, where that is taken", True, [("no checksum", carried(True, framed(in4()), chksum=0))], "udp6zerocsumrx")

Case(
    "tunnel/vxlan/short",
    "Frames with less than an IP header do not go in.",
    device(False)
    + ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol all prio 1 matchall action mirred egress redirect dev tun1"],
    [
        (f"{n} bytes of {what}", "p0", Raw(bytes(Ether(dst=FAR_MAC, src=N0) / packet)[: 14 + n]))
        for what, packet, sizes_of in [("IPv4", ip4(IN4) / udp(), (19, 20)), ("IPv6", ip6(IN6) / udp(), (39, 40))]
        for n in sizes_of
    ],
    remembers=True,
)

TWO = [
    "ip link add tun2 address 02:00:00:00:00:78 type vxlan id 101 local 198.51.100.1 remote 198.51.100.3 dstport 4789",
    "ip link set tun2 addrgenmode none",
    "ip link set tun2 up",
]
Case(
    "tunnel/vxlan/two-networks",
    "Two networks at one port, and one that is down.",
    device(False, after=TWO + ["ip link add tun3 address 02:00:00:00:00:79 type vxlan id 102 remote 198.51.100.3 dstport 4789"]),
    listed(
        [
            ("the first", carried(False, framed(in4()))),
            ("the second", carried(False, framed(in4(), dst="02:00:00:00:00:78"), vni=101)),
            ("the first by the second's address", carried(False, framed(in4(), dst="02:00:00:00:00:78"))),
            ("the third", carried(False, framed(in4(), dst="02:00:00:00:00:79"), vni=102)),
        ]
    ),
)
Case(
    "tunnel/vxlan/vlan",
    "A VLAN device above a VXLAN.",
    device(
        False,
        after=[
            "ip link add link tun1 name tun2 address 02:00:00:00:00:77 type vlan id 10",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
            "ip addr add 10.9.0.1/24 dev tun2",
            f"ip neigh add 10.9.0.2 lladdr {FAR_MAC} dev tun2 nud permanent",
            "ip route add 10.11.0.0/16 via 10.9.0.2",
        ],
    ),
    put_in([("IPv4", ip4("10.11.0.9") / udp())])
    + listed([("a tagged frame", carried(False, Ether(dst=MAC, src=FAR_MAC) / Dot1Q(vlan=10) / in4()))]),
)

# Stations that are said, and several ends for all else.
MORE = [
    f"bridge fdb add {FAR_MAC} dev tun1 dst 198.51.100.3",
    "ip neigh add 10.6.0.3 lladdr 02:00:00:00:01:99 dev tun1 nud permanent",
    "ip route add 10.11.0.0/16 via 10.6.0.3",
]
ENDS_OF_ALL = [f"bridge fdb append 00:00:00:00:00:00 dev tun1 dst 198.51.100.{n}" for n in (3, 9)]
Case(
    "tunnel/vxlan/fdb",
    "A station that is said to be behind another end stays there, and frames from it from elsewhere are dropped.",
    device(False, after=MORE),
    put_in([("to the end that is said", ip4(IN4) / udp()), ("to the device's own", ip4("10.11.0.9") / udp())])
    + listed(
        [
            ("from where it is said to be", carried(False, framed(in4()), outer={"src": "198.51.100.3"})),
            ("from elsewhere", carried(False, framed(in4()))),
        ]
    )
    + put_in([("to the end that is said, again", ip4(IN4) / udp())]),
    remembers=True,
)
Case(
    "tunnel/vxlan/fdb-dynamic",
    "A station that is said, but not for ever, moves.",
    device(False, after=[f"bridge fdb add {FAR_MAC} dev tun1 dst 198.51.100.3 dynamic"]),
    put_in([("to the end that is said", ip4(IN4) / udp())])
    + listed([("from elsewhere", carried(False, framed(in4())))])
    + put_in([("to where it has come from", ip4(IN4) / udp())]),
    remembers=True,
)
Case(
    "tunnel/vxlan/ends",
    "What nothing is known of goes to three ends, of which one does not answer.",
    device(False, after=ENDS_OF_ALL[:1] + ["ip neigh add 198.51.100.9 lladdr 02:00:00:00:01:09 dev p1 nud permanent"] + ENDS_OF_ALL[1:]),
    put_in(FOUR[:2] + SIX[:1] + EXPIRED)
    + listed([("the station is heard", carried(False, framed(in4()), outer={"src": "198.51.100.9"}))])
    + put_in([("to its end alone", ip4(IN4) / udp())]),
    remembers=True,
)

# By the link below goes what is for the device's own end; stations behind others are reached as anything else is.
BY_OTHER_LINKS = [
    f"bridge fdb add {FAR_MAC} dev tun1 dst 192.0.2.2",
    "ip neigh add 10.6.0.3 lladdr 02:00:00:00:01:99 dev tun1 nud permanent",
    "ip route add 10.11.0.0/16 via 10.6.0.3",
]
Case(
    "tunnel/vxlan/fdb-dev",
    "Above a link: a station behind an end that another link leads to.",
    device(False, "dev p1", after=BY_OTHER_LINKS),
    put_in([("by another link", ip4(IN4) / udp()), ("to the device's own end", ip4("10.11.0.9") / udp())]),
)
Case(
    "tunnel/vxlan/fdb-dev-vrf",
    "Above a link in a VRF: a station behind an end that is reached outside of it.",
    device(False, "dev p1", base=VRF, after=BY_OTHER_LINKS),
    [(label, "p0", ether(p)) for label, p in [("outside", ip4(IN4) / udp()), ("to the device's own end", ip4("10.11.0.9") / udp())]],
)
Case(
    "tunnel/vxlan/learned-dev-vrf",
    "Above a link in a VRF: a station that was heard from an end inside of it, which is not the device's own.",
    device(False, "dev p1", ends="remote 198.51.100.9", base=VRF),
    listed([("the station is heard", carried(False, framed(in4())))]) + [("to its end", "p0", ether(ip4(IN4) / udp()))],
    remembers=True,
)

# A device without an address of its own sends from that of the way to each end.
ENDS_WITHOUT = {False: ("remote 198.51.100.2", "192.0.2.2", "192.0.2.1"), True: ("remote 2001:db8:2::2", "2001:db8:1::2", "2001:db8:22::1")}
for suffix, wide in BOTH:
    remote, elsewhere, _ = ENDS_WITHOUT[wide]
    Case(
        f"tunnel/vxlan/fdb{suffix}-no-local",
        f"Over IPv{suffix} without an address: a station behind an end that another link leads to.",
        device(wide, ends=remote, after=[f"bridge fdb add {FAR_MAC} dev tun1 dst {elsewhere}"] + BY_OTHER_LINKS[1:]),
        put_in([("by another link", ip4(IN4) / udp()), ("to the device's own end", ip4("10.11.0.9") / udp())]),
    )

# ---------------------------------------------------------------------------- VXLANs as ports of bridges

HOST_MAC, THERE_MAC = "02:00:00:00:03:01", "02:00:00:00:03:02"


def bridged(wide, options="", after=(), ends=None, device=None):
    device = device or f"vxlan id 100 {ENDS[wide] if ends is None else ends} dstport 4789"
    # The port of the bridge has no address, nor a route.
    base = [line for line in BASE if "link set" in line or not any(word in line for word in ("p0", "db8:1::", "192.0.2."))]
    return (
        ["ip link set p0 addrgenmode none"]
        + base
        + [
            "ip link add name tun2 address 02:00:00:00:0b:00 type bridge mcast_snooping 0",
            f"ip link add tun1 address {MAC} type {device} {options}".strip(),
            "ip link set tun1 addrgenmode none",
            "ip link set tun2 addrgenmode none",
            "ip link set tun1 master tun2",
            "ip link set p0 master tun2",
            "ip link set tun1 up",
            "ip link set tun2 up",
        ]
        + list(after)
    )


def local(inner, dst=THERE_MAC, src=HOST_MAC):
    return "p0", Ether(dst=dst, src=src) / inner


for suffix, wide in BOTH:
    here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
    Case(
        f"tunnel/vxlan/bridged{suffix}",
        f"A bridge with a port and a VXLAN over IPv{suffix}: frames both ways, known and unknown.",
        bridged(wide),
        [
            ("unknown", *local(here / udp())),
            ("for all", *local(here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("a tag", *local(Dot1Q(vlan=7) / here / udp())),
            ("TTL 1", *local(ip4("10.5.0.2", src="10.5.0.1", ttl=1) / udp())),
        ]
        + listed([("the station", carried(wide, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC)))])
        + [("known", *local(here / udp()))]
        + listed(
            [
                ("for all", carried(wide, framed(there / udp(), dst="ff:ff:ff:ff:ff:ff", src=THERE_MAC))),
                ("for a station behind the VXLAN", carried(wide, framed(there / udp(), dst=THERE_MAC, src="02:00:00:00:03:03"))),
                ("for the bridge", carried(wide, framed(there / udp(), dst="02:00:00:00:0b:00", src=THERE_MAC))),
            ]
        ),
        remembers=True,
    )
    remote, _, source = ENDS_WITHOUT[wide]
    far, family = ("2001:db8:77::1", "ip -6") if wide else ("203.0.114.1", "ip")
    Case(
        f"tunnel/vxlan/bridged{suffix}-no-local",
        f"Frames between bridges over IPv{suffix} by a device without an address: a route gives one for one of its ends.",
        bridged(
            wide,
            ends=remote,
            after=[
                f"{family} addr add {source}/{64 if wide else 32} dev p1{' nodad' if wide else ''}",
                f"{family} route add {far} via {remote.split()[1]} dev p1 src {source}",
                f"bridge fdb add {THERE_MAC} dev tun1 dst {far}",
                f"bridge fdb add 02:00:00:00:03:04 dev tun1 {remote.replace('remote', 'dst')}",
            ],
        ),
        [
            ("by the route", *local(here / udp())),
            ("to the device's own end", *local(here / udp(), dst="02:00:00:00:03:04")),
            ("unknown", *local(here / udp(), dst="02:00:00:00:03:05")),
        ],
    )
    marked = IP(src="10.5.0.1", dst="10.5.0.2", ttl=9, tos=0xB9, id=0x4321) / udp()
    Case(
        f"tunnel/vxlan/bridged{suffix}-inherit",
        f"Frames between bridges over IPv{suffix}, whose TOS and TTL are those of what is behind the tags.",
        bridged(wide, "tos inherit ttl inherit"),
        [
            ("no tag", *local(marked)),
            ("a tag", *local(Dot1Q(vlan=7) / marked)),
            ("two tags", *local(Dot1Q(vlan=7) / Dot1Q(vlan=8) / marked)),
            ("TTL 0", *local(IP(src="10.5.0.1", dst="10.5.0.2", ttl=0, id=0x4321) / udp())),
            ("hop limit 0", *local(IPv6(src="2001:db8:55::1", dst="2001:db8:55::2", hlim=0) / udp())),
            ("neither IPv4 nor IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x88B5) / payload(50)),
        ],
    )
    room = 1500 - (70 if wide else 50)
    Case(
        f"tunnel/vxlan/bridged{suffix}-sizes",
        f"Frames between bridges over IPv{suffix} around the MTU.",
        bridged(wide),
        [
            (f"{n} more", *local(ip4("10.5.0.2", src="10.5.0.1") / udp(room - 28 + n)))
            for n in ((0,) if wide else (0, 1, 50))
        ],
        remembers=True,
    )
    Case(
        f"tunnel/vxlan/bridged{suffix}-no-way",
        f"A frame between bridges over IPv{suffix} where no route leads to the other end.",
        bridged(wide, ends=f"remote {'2001:db8:77::1' if wide else '203.0.114.1'}"),
        [("IPv4", *local(here / udp())), ("IPv6", *local(ip6("2001:db8:55::2") / udp()))],
    )
