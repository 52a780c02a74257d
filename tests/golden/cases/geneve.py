"""Into and out of Geneve devices: RFC 8926. A device has one other end, and learns nothing."""

from scapy.contrib.mpls import MPLS

from .frames import *
from .bareudp import LONG, of4
from .tunnel import ECN, EXPIRED, FAR_MAC, FOUR, IN4, IN6, LABELLED, MAC, MPLS_ON, SIX, heard, heard4, heard6, labelled, put_in, sizes, tunnel
from .tunnel_out import in4, in6, listed
from .vxlan import ARP_IN, BOTH, HOST_MAC, OTHER_MAC, THERE_MAC, bridged, framed, local

REMOTE = {False: "198.51.100.2", True: "2001:db8:2::2"}
HEADERS = {False: 50, True: 70}


def device(wide, options="", remote=None, vni=100, **more):
    return tunnel("geneve", options, f"id {vni} remote {remote or REMOTE[wide]}", **more)


def into(name, doc, wide, packets=None, options="", remembers=False, links=True, **more):
    Case(
        f"tunnel/geneve/{name}",
        doc,
        device(wide, options, **more),
        put_in(packets if packets is not None else FOUR + SIX),
        remembers=remembers,
        links=links,
    )


def header(inner, vni=100, proto=None, version=0, flags=0, last=0, options=b"", words=None):
    """`words`: how long the options are said to be."""
    if proto is None:
        proto = {IP: 0x0800, IPv6: 0x86DD, MPLS: 0x8847}.get(type(inner), 0x6558)
    words = len(options) // 4 if words is None else words
    return Raw(struct.pack("!BBHI", version << 6 | words, flags, proto, vni << 8 | last) + options + bytes(inner))


def carried(wide, inner, sport=50000, dport=6081, chksum=None, outer=(), **more):
    """A datagram with a Geneve header and a frame."""
    datagram = UDP(sport=sport, dport=dport, **({} if chksum is None else {"chksum": chksum})) / header(inner, **more)
    ip = dict(outer)
    if wide:
        return IPv6(**{"src": "2001:db8:2::2", "dst": "2001:db8:2::1", "hlim": 64, **ip}) / datagram
    return IP(**{"src": "198.51.100.2", "dst": "198.51.100.1", "ttl": 64, "id": 9, **ip}) / datagram


def out_of(name, doc, wide, packets, options="", remembers=False, **more):
    Case(f"tunnel/geneve/{name}", doc, device(wide, options, **more), listed(packets), remembers=remembers)


def option(kind, data=b"", words=None):
    """RFC 8926 section 3.5."""
    return struct.pack("!HBB", 0x0102, kind, len(data) // 4 if words is None else words) + data


def inner(dst, src="10.5.0.1", ttl=40, **more):
    return IP(src=src, dst=dst, ttl=ttl, tos=0xB9, id=0x4321, **more)


# With Don't Fragment, in IPv4 and IPv6, with and without a tag.
WHOLE = FOUR[:2] + SIX[:1]
OPTION, CRITICAL = option(0x01, b"data"), option(0x81, b"data")

for suffix, wide in BOTH:
    over = f"over IPv{suffix}"
    into(f"into{suffix}", f"IPv4 and IPv6 {over}, with the checksum that there is by default", wide)
    checksum = "udp6zerocsumtx" if wide else "udpcsum"
    into(f"into{suffix}-csum", f"{over}, with the other word about a checksum", wide, options=checksum)
    into(f"into{suffix}-expired", f"{over}: TTL 1", wide, EXPIRED)
    into(f"into{suffix}-ecn", f"{over}: ECN is that of the packet inside", wide, ECN)
    into(f"into{suffix}-tos", f"{over}: a TOS of its own", wide, ECN, "tos 0x29")
    into(f"into{suffix}-tos-inherit", f"{over}: the TOS of the packet inside", wide, ECN, "tos inherit")
    into(f"into{suffix}-ttl", f"{over}: a TTL of its own", wide, FOUR + SIX, "ttl 225")
    into(f"into{suffix}-ttl-inherit", f"{over}: the TTL of the packet inside", wide, FOUR + SIX, "ttl inherit")
    into(f"into{suffix}-df", f"{over}: Don't Fragment", wide, WHOLE, "df set")
    into(f"into{suffix}-df-inherit", f"{over}: Don't Fragment of the packet inside", wide, WHOLE, "df inherit")
    if wide:
        into("into6-label", "over IPv6: a flow label", wide, WHOLE, "flowlabel 0x12345")
        other = "2001:db8:2::2"
        into("into6-from-remote", "over IPv6: IPv6 from the other end itself", wide, [("from there", IPv6(src=other, dst=IN6, hlim=40) / udp())])
    room = 1500 - HEADERS[wide]
    into(f"into{suffix}-sizes", f"{over}: packets around the MTU, which is that of the way", wide, sizes(room), links=False, remembers=True)
    more = ["ip link set tun1 mtu 1500"]
    into(f"into{suffix}-long", f"{over}: packets that are too long for the underlay", wide, of4(sizes(1500)), links=False, remembers=True, after=more)
    into(
        f"into{suffix}-long-df",
        f"{over}: the same with Don't Fragment",
        wide,
        of4(sizes(1500)),
        "df set",
        links=False,
        remembers=True,
        after=more,
    )
    away = "2001:db8:77::1" if wide else "203.0.114.1"
    four, six, long6 = ip4(IN4) / udp(), ip6(IN6) / udp(), ip6(IN6) / udp(room - 47)
    Case(
        f"tunnel/geneve/into{suffix}-no-way",
        f"{over}: no route to the other end",
        device(wide, remote=away),
        differs="it tells the sender nothing",
        **io([("IPv4", ether(four), [to_p0(icmp4(hops(four), 3, 0))]), ("IPv6", ether(six), [to_p0(unreachable6(hops(six), 0))])]),
        links=False,
    )
    Case(
        f"tunnel/geneve/into{suffix}-too-long",
        f"{over}: IPv6 that is too long for the underlay",
        device(wide, after=more),
        differs="it drops the first, or sends it in fragments, and tells its sender of the next",
        **io([("too long", ether(long6), [to_p0(too_big(hops(long6), room))])]),
        links=False,
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
            ("another source port", carried(wide, framed(in4()), sport=6081)),
            ("from the station that it is itself", carried(wide, framed(in4(), src=MAC))),
            ("from no station", carried(wide, framed(in4(), src="00:00:00:00:00:00"))),
            ("from a group", carried(wide, framed(in4(), src="01:00:5e:00:00:01"))),
            ("another network", carried(wide, framed(in4()), vni=101)),
            ("another end", carried(wide, framed(in4()), outer={"src": "2001:db8:2::3" if wide else "198.51.100.3"})),
            ("another port", carried(wide, framed(in4()), dport=6082)),
            ("another version", carried(wide, framed(in4()), version=1)),
            ("a control message", carried(wide, framed(in4()), flags=0x80)),
            ("reserved bits", carried(wide, framed(in4()), flags=0x3F)),
            ("a last byte without a meaning", carried(wide, framed(in4()), last=1)),
            ("IPv4 without a frame", carried(wide, in4())),
            ("IPv6 without a frame", carried(wide, in6())),
            ("another protocol", carried(wide, framed(in4()), proto=0x88B5)),
            ("an option", carried(wide, framed(in4()), options=OPTION)),
            ("two options", carried(wide, framed(in4()), options=OPTION + option(0x02))),
            ("as many options as there may be", carried(wide, framed(in4()), options=option(0x01, bytes(124)) + option(0x02, bytes(120)))),
            ("an option that is longer than all of them", carried(wide, framed(in4()), options=option(0x01, words=9))),
            ("an option with a critical type, and no bit that says so", carried(wide, framed(in4()), options=CRITICAL)),
            ("a critical option", carried(wide, framed(in4()), options=CRITICAL, flags=0x40)),
            ("a critical bit without options", carried(wide, framed(in4()), flags=0x40)),
            ("a critical bit in another protocol", carried(wide, in4(), flags=0x40)),
            ("options to the end", carried(wide, Raw(b""), words=0, options=OPTION)),
            ("options behind the end", carried(wide, framed(in4()), words=63)),
            ("no checksum", carried(wide, framed(in4()), chksum=0)),
            ("a wrong checksum", carried(wide, framed(in4()), chksum=0x1234)),
            ("thirteen bytes of a frame", carried(wide, Raw(bytes(framed(in4()))[:13]))),
            ("an Ethernet header", carried(wide, Raw(bytes(framed(in4()))[:14]))),
            ("nineteen bytes of IPv4", carried(wide, Raw(bytes(framed(in4()))[:33]))),
            ("thirty-nine bytes of IPv6", carried(wide, Raw(bytes(framed(in6()))[:53]))),
            ("an empty frame", carried(wide, Raw(b""))),
        ],
    )
    out_of(
        f"out{suffix}-short",
        f"{over}: less than a header",
        wide,
        [
            (f"{n} bytes", (IPv6(src="2001:db8:2::2", dst="2001:db8:2::1") if wide else IP(src="198.51.100.2", dst="198.51.100.1", id=9)) / UDP(sport=50000, dport=6081) / Raw(bytes(header(Raw(b"")))[:n]))
            for n in (0, 1, 7, 8)
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
    # Errors of the underlay, which quote what the device has sent.
    ends = {"src": "2001:db8:2::1" if wide else "198.51.100.1", "dst": REMOTE[wide]}
    quoted = bytes(carried(wide, framed(ip4(IN4) / udp(1272), dst=FAR_MAC, src=MAC), outer=ends))
    if wide:
        errors = [("too big, 1,300", heard6(quoted[:1000], 2, 0, 1300)), ("no route", heard6(quoted[:1000], 1, 0)), ("port unreachable", heard6(quoted[:1000], 1, 4))]
    else:
        errors = [("fragmentation needed, 1,300", heard4(quoted[:128], 3, 4, 1300)), ("host unreachable", heard4(quoted[:128], 3, 1)), ("port unreachable", heard4(quoted[:128], 3, 3))]
    frames = LONG[:]
    for label, error in errors:
        frames += [heard(label, error)] + LONG
    Case(
        f"tunnel/geneve/errors{suffix}",
        f"{over}: the MTU of the way is learned; nobody is told of the rest",
        device(wide),
        frames,
        remembers=True,
    )
    # Packets without frames.
    bare = dict(options="innerprotoinherit")
    into(f"into{suffix}-bare", f"{over}: packets without frames", wide, FOUR + SIX + EXPIRED, **bare)
    into(f"into{suffix}-bare-ecn", f"{over}: ECN of packets without frames", wide, ECN, **bare)
    into(f"into{suffix}-bare-tos", f"{over}: TOS and TTL of packets without frames", wide, ECN, "innerprotoinherit tos inherit ttl inherit")
    into(f"into{suffix}-bare-df", f"{over}: Don't Fragment of packets without frames", wide, WHOLE, "innerprotoinherit df inherit")
    into(f"into{suffix}-bare-sizes", f"{over}: packets without frames around the MTU", wide, sizes(room), "innerprotoinherit", links=False, remembers=True)
    into(f"into{suffix}-bare-labels", f"{over}: labels without frames", wide, LABELLED, "innerprotoinherit", after=labelled(), links=False)
    out_of(
        f"out{suffix}-bare",
        f"{over}: packets without frames",
        wide,
        [
            ("IPv4", carried(wide, in4())),
            ("IPv4, TTL 1", carried(wide, in4(ttl=1))),
            ("IPv6", carried(wide, in6())),
            ("congestion outside", carried(wide, in4(2), outer={"tc" if wide else "tos": 3})),
            ("congestion outside, none inside", carried(wide, in6(0), outer={"tc" if wide else "tos": 3})),
            ("an option", carried(wide, in4(), options=OPTION)),
            ("a critical option", carried(wide, in4(), options=CRITICAL, flags=0x40)),
            ("ARP", carried(wide, ARP_IN, proto=0x0806)),
            ("IPv6 that is said to be IPv4", carried(wide, in6(), proto=0x0800)),
            ("thirteen bytes of a frame", carried(wide, Raw(bytes(framed(in4()))[:13]))),
            ("nineteen bytes of IPv4", carried(wide, Raw(bytes(in4())[:19]), proto=0x0800)),
            ("thirty-nine bytes of IPv6", carried(wide, Raw(bytes(in6())[:39]), proto=0x86DD)),
        ],
        **bare,
    )

out_of("out6-unsummed", "over IPv6: without a checksum, where that is taken", True, [("no checksum", carried(True, framed(in4()), chksum=0))], "udp6zerocsumrx")
inside = in4()
Case(
    "tunnel/geneve/out6-unsummed-second",
    "Over IPv6 without a checksum, where another device at the port takes none.",
    device(
        True,
        after=[
            "ip link add tun2 address 02:00:00:00:00:78 type geneve id 101 remote 2001:db8:2::2 udp6zerocsumrx",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
        ],
    ),
    differs="the device that came up first says it for all at its port",
    frames=listed([("no checksum", carried(True, framed(inside, dst="02:00:00:00:00:78"), vni=101, chksum=0))]),
    expect={0: [to_p0(hops(inside))]},
    links=False,
)
Case(
    "tunnel/geneve/out4-bare-frame",
    "A frame out of a device of packets.",
    device(False, "innerprotoinherit"),
    listed([("IPv4", carried(False, framed(in4())))]),
)

out_of("out4-vrf", "No datagram that has come in by a VRF is for a device outside of it.", False, [("IPv4", carried(False, framed(in4())))], base=VRF)
out_of(
    "out4-into-vrf",
    "A device in a VRF, where what comes out is looked up.",
    False,
    [("IPv4", carried(False, framed(in4())))],
    after=[
        "ip link add vrf9 type vrf table 9",
        "ip link set vrf9 up",
        "ip link set tun1 master vrf9",
        "ip route add 203.0.113.0/25 via 192.0.2.2 dev p0 table 9",
    ],
)

TWO = [
    "ip link add tun2 address 02:00:00:00:00:78 type geneve id 101 remote 198.51.100.2",
    "ip link add tun3 address 02:00:00:00:00:79 type geneve id 100 remote 198.51.100.3",
    "ip link add tun4 address 02:00:00:00:00:7a type geneve id 100 remote 198.51.100.2 dstport 6082",
    *(f"ip link set tun{n} addrgenmode none" for n in (2, 3, 4)),
    *(f"ip link set tun{n} up" for n in (2, 3, 4)),
]
Case(
    "tunnel/geneve/several",
    "Devices that differ by their network, by their other end and by their port, and one that is down.",
    device(False, after=TWO + ["ip link add tun5 address 02:00:00:00:00:7b type geneve id 102 remote 198.51.100.2"]),
    listed(
        [
            ("the first", carried(False, framed(in4()))),
            ("the second", carried(False, framed(in4(), dst="02:00:00:00:00:78"), vni=101)),
            ("the third", carried(False, framed(in4(), dst="02:00:00:00:00:79"), outer={"src": "198.51.100.3"})),
            ("the fourth", carried(False, framed(in4(), dst="02:00:00:00:00:7a"), dport=6082)),
            ("the first by the second's address", carried(False, framed(in4(), dst="02:00:00:00:00:78"))),
            ("the fifth", carried(False, framed(in4(), dst="02:00:00:00:00:7b"), vni=102)),
        ]
    ),
)
VLAN_ABOVE = [
    "ip link add link tun1 name tun2 address 02:00:00:00:00:77 type vlan id 10",
    "ip link set tun2 addrgenmode none",
    "ip link set tun2 up",
    "ip addr add 10.9.0.1/24 dev tun2",
    f"ip neigh add 10.9.0.2 lladdr {FAR_MAC} dev tun2 nud permanent",
    "ip route add 10.11.0.0/16 via 10.9.0.2",
]
for options in ["", "tos inherit ttl inherit df inherit"]:
    Case(
        f"tunnel/geneve/vlan{'-inherit' if options else ''}",
        "A VLAN device above a Geneve device" + (", which inherits from what is behind the tag." if options else "."),
        device(False, options, after=VLAN_ABOVE),
        put_in([("IPv4", inner("10.11.0.9", flags="DF") / udp())])
        + listed([("a tagged frame", carried(False, Ether(dst=MAC, src=FAR_MAC) / Dot1Q(vlan=10) / in4()))]),
    )

# ---------------------------------------------------------------------------- ports of bridges

for suffix, wide in BOTH:
    here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
    tagged = Ether(dst=THERE_MAC, src=HOST_MAC) / Dot1Q(vlan=7) / Dot1Q(vlan=8) / inner("10.5.0.2", ttl=9) / udp()

    def between(options="", remote=None, **more):
        return bridged(wide, options, device=f"geneve id 100 remote {remote or REMOTE[wide]}", **more)

    Case(
        f"tunnel/geneve/bridged{suffix}",
        f"A bridge with a port and a Geneve device over IPv{suffix}: frames both ways, known and unknown.",
        between(),
        [
            ("unknown", *local(here / udp())),
            ("for all", *local(here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("a tag", *local(Dot1Q(vlan=7) / here / udp())),
            ("two tags", "p0", tagged),
            ("TTL 1", *local(ip4("10.5.0.2", src="10.5.0.1", ttl=1) / udp())),
            ("neither IPv4 nor IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x88B5) / payload(50)),
            ("nineteen bytes of IPv4", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x0800) / Raw(bytes(here)[:19])),
            ("thirty-nine bytes of IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x86DD) / Raw(bytes(ip6(IN6))[:39])),
        ]
        + listed([("the station", carried(wide, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC)))])
        + [("known", *local(here / udp()))]
        + listed(
            [
                ("for all", carried(wide, framed(there / udp(), dst="ff:ff:ff:ff:ff:ff", src=THERE_MAC))),
                ("for a station behind the device", carried(wide, framed(there / udp(), dst=THERE_MAC, src="02:00:00:00:03:03"))),
                ("for the bridge", carried(wide, framed(there / udp(), dst="02:00:00:00:0b:00", src=THERE_MAC))),
            ]
        ),
        remembers=True,
    )
    Case(
        f"tunnel/geneve/bridged{suffix}-inherit",
        f"Frames between bridges over IPv{suffix}, whose TOS, TTL and Don't Fragment are those of the packets inside.",
        between("tos inherit ttl inherit df inherit"),
        [
            ("IPv4", *local(inner("10.5.0.2") / udp())),
            ("IPv4, don't fragment", *local(ip4("10.5.0.2", src="10.5.0.1", flags="DF") / udp())),
            ("IPv6", *local(ip6(IN6) / udp())),
            ("a tag", *local(Dot1Q(vlan=7) / inner("10.5.0.2", flags="DF") / udp())),
            ("two tags", "p0", tagged),
            ("neither IPv4 nor IPv6", "p0", Ether(dst=THERE_MAC, src=HOST_MAC, type=0x88B5) / payload(50)),
        ],
    )
    Case(
        f"tunnel/geneve/bridged{suffix}-sizes",
        f"Frames between bridges over IPv{suffix} around the MTU.",
        between(),
        [(f"{n} more", *local(ip4("10.5.0.2", src="10.5.0.1") / udp(1500 - HEADERS[wide] - 28 + n))) for n in ((0,) if wide else (0, 1))],
        remembers=True,
    )
    Case(
        f"tunnel/geneve/bridged{suffix}-no-way",
        f"A frame between bridges over IPv{suffix} where no route leads to the other end.",
        between(remote="2001:db8:77::1" if wide else "203.0.114.1"),
        [("IPv4", *local(here / udp())), ("IPv6", *local(ip6("2001:db8:55::2") / udp()))],
    )
