#!/usr/bin/python3
"""Writes dt2.txt: packets for End.DT2U and End.DT2M and the frames that leave, frames of a bridge and the packets that they
leave in, built by scapy. Linux has no such behaviours to ask.

    crates/underpass-engine/tests/router/dt2.py > crates/underpass-engine/tests/router/dt2.txt

A line is a case: what it shows, the port and the frame that comes in, and what leaves, each behind its port, or the reason of
the drop. Flow labels are 0.
"""

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import ARP, LLC, STP, Dot1Q, Dot3, Ether
from scapy.packet import Raw

# Stations behind port 4 and port 5, behind fc00:2::d2, behind no known port, and the bridge itself.
FOUR, FIVE, FAR, NOWHERE, BRIDGE = ("02:aa:00:00:00:%02x" % n for n in (4, 5, 6, 7, 8))
EVERYBODY = "ff:ff:ff:ff:ff:ff"
UNICAST, MULTICAST = "fc00:1::d2", "fc00:1::d3"
INSIDE = IP(src="192.0.2.1", dst="192.0.2.2", id=7) / UDP(sport=1000, dport=2000) / Raw(b"inside End.DT2U")


def frame(to, source=FAR, inside=INSIDE):
    return bytes(Ether(dst=to, src=source) / inside)


def came(sid, inside, srh=None, next_header=143):
    made = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:01:01")
    made /= IPv6(src="fd00::2", dst=sid, hlim=64, nh=43 if srh else next_header)
    if srh:
        made /= srh
    return bytes(made / Raw(inside))


def left(sid, inside):
    made = Ether(dst="02:00:00:00:01:01", src="02:00:00:00:00:01")
    return bytes(made / IPv6(src="fd00::1", dst=sid, hlim=64, nh=143) / Raw(inside))


def srh(*addresses, left=0):
    return IPv6ExtHdrSegmentRouting(nh=143, addresses=list(addresses), segleft=left, lastentry=len(addresses) - 1)


def main():
    def case(name, port, received, *expected):
        shown = [one if isinstance(one, str) else f"{one[0]}={one[1].hex()}" for one in expected]
        print(f"{name}: {port} {received.hex()} {','.join(shown)}")

    known = frame(FIVE)
    for name, sid in (("DT2U", UNICAST), ("DT2M", MULTICAST)):
        both = lambda inside: ((4, inside), (5, inside))
        expected = both(known) if name == "DT2M" else ((5, known),)
        case(f"{name}, a known station", 0, came(sid, known), *expected)
        case(f"{name}, behind an SRH", 0, came(sid, known, srh(sid)), *expected)
        case(f"{name}, behind a list", 0, came(sid, known, srh(sid, "fc00::1")), *expected)
        for what, to, inside in (
            ("an unknown station", NOWHERE, INSIDE),
            ("everybody", EVERYBODY, ARP(psrc="192.0.2.1", pdst="192.0.2.2")),
            ("a group", "01:00:5e:00:00:05", INSIDE),
            ("a tag", NOWHERE, Dot1Q(vlan=10, prio=3) / INSIDE),
            ("nothing inside", NOWHERE, Raw(b"")),
        ):
            made = frame(to, inside=inside)
            case(f"{name}, {what}", 0, came(sid, made), *both(made))
        spanning = bytes(Dot3(dst="01:80:c2:00:00:00", src=FAR) / LLC() / STP())
        case(f"{name}, a length and no type", 0, came(sid, spanning), *both(spanning))
        case(f"{name}, no station's source", 0, came(sid, frame(FIVE, EVERYBODY)), "bridge-source")
        case(f"{name}, a truncated header", 0, came(sid, known[:13]), "inner-malformed")
        case(f"{name}, segments left", 0, came(sid, known, srh(sid, sid, left=1)), "segments-left-not-zero")
        case(f"{name}, an IPv4 packet", 0, came(sid, bytes(INSIDE), next_header=4), "upper-layer-unexpected")

    # RFC 8986 section 4.12: "Forward via all L2OIFs excluding those associated with the identifier Arg.FE2". Port 4 is number 1 of
    # the bridge, port 5 number 2, the device of the SIDs number 3; the argument is two numbers of 8 bits behind fc00:1:0:d4::/64.
    unknown = frame(NOWHERE)
    for what, argument, inside, ports in (
        ("no port", "0000", unknown, (4, 5)),
        ("a port", "0100", unknown, (5,)),
        ("the other one, in the second place", "0002", unknown, (4,)),
        ("a port twice", "0202", unknown, (4,)),
        ("both", "0102", unknown, ()),
        ("the device itself", "0300", unknown, (4, 5)),
        ("no such port", "0904", unknown, (4, 5)),
        ("a port, and more behind it", "0100:ffff:ffff:ffff", unknown, (5,)),
        ("a port, a known station", "0200", known, (4,)),
        ("a port, everybody", "0100", frame(EVERYBODY), (5,)),
    ):
        sid = f"fc00:1:0:d4:{argument}" + ("::" if len(argument) == 4 else "")
        case(f"FE2, {what}", 0, came(sid, inside), *[(port, inside) for port in ports] or ["bridge-nowhere"])
    sid = "fc00:1:0:d4:100::"
    case("FE2, behind an SRH", 0, came(sid, known, srh(sid, "fc00::1")), (5, known))
    case("FE2, a truncated header", 0, came(sid, known[:13]), "inner-malformed")

    out = frame(FAR, FOUR)
    case("to a station behind a SID", 4, out, (0, left("fc00:2::d2", out)))
    for what, to, inside in (
        ("an unknown station", NOWHERE, INSIDE),
        ("everybody", EVERYBODY, ARP(psrc="192.0.2.1", pdst="192.0.2.2")),
        ("a tag", NOWHERE, Dot1Q(vlan=10, prio=3) / INSIDE),
    ):
        out = frame(to, FOUR, inside)
        case(f"from a port, {what}", 4, out, (0, left("fc00:2::d3", out)), (5, out))
    marked = IP(src="192.0.2.1", dst="192.0.2.2", id=7, tos=0xB9, ttl=7) / UDP(sport=1000, dport=2000)
    out = frame(FAR, FOUR, marked)
    case("a class and a TTL stay inside", 4, out, (0, left("fc00:2::d2", out)))


main()
