"""Tunnels whose other end is a group: what is for all goes there, and comes from there. RFC 7348 section 4.2."""

from .frames import *
from .tunnel import FOUR, IN4, SIX, put_in, tunnel
from .tunnel_out import gre, in4, in6
from .vxlan import BOTH, HOST_MAC, THERE_MAC, bridged, carried, device, framed, local

GROUP = {False: "239.1.2.3", True: "ff05::1:203"}
OTHER_GROUP = {False: "239.1.2.4", True: "ff05::1:204"}
OWN = {False: "198.51.100.1", True: "2001:db8:2::1"}


def ends(wide, group=None):
    return f"group {group or GROUP[wide]} dev p1"


def station(group):
    """RFC 1112 section 6.4, RFC 2464 section 7."""
    if ":" in group:
        return "33:33:00:01:" + ":".join(group.split(":")[-1].zfill(4)[n : n + 2] for n in (0, 2))
    return "01:00:5e:" + ":".join(f"{int(byte):02x}" for byte in group.split(".")[1:])


def to_group(wide, inner, group=None, port="p1", dst=None, outer=(), **more):
    """What another end has sent to the group, at a port."""
    group = group or GROUP[wide]
    packet = carried(wide, inner, outer={"dst": group, **dict(outer)}, **more)
    return port, Ether(dst=dst or station(group), src=N1) / packet


for suffix, wide in BOTH:
    over = f"over IPv{suffix}"
    unknown = framed(in4(), src="02:00:00:00:03:09")
    for options, what in [
        ("", "TTL 1, if none is said"),
        ("ttl 9", "a TTL of its own"),
        ("ttl inherit", "the TTL of the packet inside"),
        (f"local {OWN[wide]}", "a source of its own"),
    ]:
        name = options.split()[-1].replace(OWN[wide], "local") if options else "auto"
        Case(
            f"tunnel/vxlan-group/into{suffix}-{name}",
            f"To a group {over}: {what}.",
            device(wide, options, ends=ends(wide)),
            put_in(FOUR[:2] + SIX[:1]),
        )
    Case(
        f"tunnel/vxlan-group/out{suffix}",
        f"What comes for the group {over} is taken where the device is in it; the station is known then, and its frames go to its end alone.",
        device(wide, ends=ends(wide)),
        [
            ("before", ether(ip4(IN4) / udp())),
            ("IPv4", *to_group(wide, framed(in4()))),
            ("IPv6", *to_group(wide, framed(in6()))),
            ("behind, to its end", ether(ip4(IN4) / udp())),
            ("another network", *to_group(wide, framed(in4()), vni=101)),
            ("another port", *to_group(wide, framed(in4()), dport=4788)),
            ("at another link", *to_group(wide, unknown, port="p0")),
            ("for another group", *to_group(wide, unknown, group=OTHER_GROUP[wide])),
            ("in a frame for the link alone", *to_group(wide, framed(in4()), dst=P1)),
            ("in a frame for all", *to_group(wide, framed(in4()), dst="ff:ff:ff:ff:ff:ff")),
            ("for the address", "p1", ether(carried(wide, framed(in4())), dst=P1, src=N1)),
            ("from an address of the router's", *to_group(wide, framed(in4()), outer={"src": OWN[wide]})),
        ],
        remembers=True,
    )
    Case(
        f"tunnel/vxlan-group/down{suffix}",
        f"A device that is down is in no group {over}.",
        device(wide, ends=ends(wide), after=["ip link set tun1 down"]),
        [("for the group", *to_group(wide, framed(in4())))],
    )
    Case(
        f"tunnel/vxlan-group/changed{suffix}",
        f"A device that gets another group {over} leaves the one before.",
        device(wide, ends=ends(wide), after=[f"ip link set tun1 type vxlan {ends(wide, OTHER_GROUP[wide])}"]),
        [
            ("for the group that it was in", *to_group(wide, framed(in4()))),
            ("for the group", *to_group(wide, framed(in4()), group=OTHER_GROUP[wide])),
            ("from there", ether(ip4("10.11.0.9") / udp())),
        ],
    )
    Case(
        f"tunnel/vxlan-group/of-another{suffix}",
        f"A device takes what comes for the group of another one, with the same port {over}, where that is.",
        device(wide, ends=ends(wide))
        + [
            f"ip link add tun2 address 02:00:00:00:0b:01 type vxlan id 101 {ends(wide, OTHER_GROUP[wide])} dstport 4789",
            "ip link set tun2 addrgenmode none",
            "ip link set tun2 up",
        ],
        [("for the group of the other", *to_group(wide, framed(in4()), group=OTHER_GROUP[wide]))],
    )
    here, there = ip4("10.5.0.2", src="10.5.0.1"), ip4("10.5.0.1", src="10.5.0.2")
    Case(
        f"tunnel/vxlan-group/bridged{suffix}",
        f"A bridge with a port and a VXLAN of a group {over}.",
        bridged(wide, ends=ends(wide)),
        [
            ("unknown", *local(here / udp())),
            ("for all", *local(here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("the station", *to_group(wide, framed(there / udp(), dst=HOST_MAC, src=THERE_MAC))),
            ("known", *local(here / udp())),
            ("for all, again", *local(here / udp(), dst="ff:ff:ff:ff:ff:ff")),
            ("a full frame", *local(ip4("10.5.0.2", src="10.5.0.1") / udp(1500 - (70 if wide else 50) - 28), dst="ff:ff:ff:ff:ff:ff")),
        ],
        remembers=True,
    )

# ---------------------------------------------------------------------------- GRE

KEY = 0xEF010203  # that of a device without one, by ip(8): the group


def gre_to(group, inner, port="p1", **more):
    packet = IP(src="198.51.100.2", dst=group, ttl=64, id=9, proto=47) / gre(inner, key=KEY, **more)
    return port, Ether(dst=station(group), src=N1) / packet


Case(
    "tunnel/vxlan-group/gre-out",
    "GRE whose other end is a group takes what comes for it, by the link of its own address.",
    tunnel("gre", "", "local 198.51.100.1 remote 239.1.2.3"),
    [
        ("IPv4", *gre_to("239.1.2.3", in4())),
        ("IPv6", *gre_to("239.1.2.3", in6())),
        ("at another link", *gre_to("239.1.2.3", in4(), port="p0")),
        ("for another group", *gre_to("239.1.2.4", in4())),
    ],
)

# ---------------------------------------------------------------------------- above a VLAN device

Case(
    "tunnel/vxlan-group/vlan",
    "What comes for a group by a VLAN device: frames with its tag, and no others.",
    device(False, ends="group 239.1.2.3 dev p1.7", before=["ip link add link p1 name p1.7 type vlan id 7", "ip link set p1.7 addrgenmode none", "ip link set p1.7 up", "ip addr add 10.60.0.1/24 dev p1.7"]),
    [
        ("without a tag", *to_group(False, framed(in4()))),
        ("another VLAN", "p1", Ether(dst=station(GROUP[False]), src=N1) / Dot1Q(vlan=8) / carried(False, framed(in4()), outer={"dst": GROUP[False]})),
        ("its tag", "p1", Ether(dst=station(GROUP[False]), src=N1) / Dot1Q(vlan=7) / carried(False, framed(in4()), outer={"dst": GROUP[False], "src": "10.60.0.2"})),
    ],
)
Case(
    "tunnel/vxlan-group/vrf",
    "A group by a link in a VRF: no route is asked for.",
    device(False, ends="group 239.1.2.3 dev p1", base=VRF),
    [("to the group", "p0", ether(ip4(IN4) / udp())), ("from there", *to_group(False, framed(in4()))), ("to its end", "p0", ether(ip4(IN4) / udp()))],
    remembers=True,
)
Case(
    "tunnel/vxlan-group/default",
    "A group where a default route leads elsewhere.",
    device(False, ends="group 239.1.2.3 dev p1", after=["ip route add default via 192.0.2.2"]),
    put_in(FOUR[:1]),
)
Case(
    "tunnel/vxlan-group/gretap-into",
    "Frames to a group in GRE leave by the link of the device's own address, whatever routes there are.",
    tunnel("gretap", "", "local 198.51.100.1 remote 239.1.2.3", after=["ip route add default via 192.0.2.2"]),
    put_in(FOUR[:2] + SIX[:1]),
)
