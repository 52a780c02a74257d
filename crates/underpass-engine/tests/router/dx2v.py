#!/usr/bin/python3
"""Writes dx2v.txt: packets for End.DX2V and the frames that leave, built by scapy. Linux has no such behaviour to ask.

    crates/underpass-engine/tests/router/dx2v.py > crates/underpass-engine/tests/router/dx2v.txt

A line is a case: what it shows, the SID's port, the frame that comes in, and the frame that leaves or the reason of the drop.
"""

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

SID = {0: "fc00::d0", 1: "fc00::d1"}
INSIDE = IP(src="192.0.2.1", dst="192.0.2.2", id=7) / UDP(sport=1000, dport=2000) / Raw(b"inside End.DX2V")


def frame(*tags, inside=INSIDE):
    made = Ether(dst="02:0a:00:00:00:02", src="02:0a:00:00:00:01")
    for tag in tags:
        made /= tag
    return bytes(made / inside)


def q(vlan, prio=0, dei=0):
    return Dot1Q(vlan=vlan, prio=prio, id=dei)


def ad(vlan, prio=0, dei=0):
    return Dot1AD(vlan=vlan, prio=prio, id=dei)


def outer(port, inside, srh=None, next_header=143):
    made = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:01:01")
    made /= IPv6(src="2001:db8::1", dst=SID[port], hlim=64, nh=43 if srh else next_header)
    if srh:
        made /= srh
    return bytes(made / Raw(inside))


def srh(*addresses, left=0):
    return IPv6ExtHdrSegmentRouting(nh=143, addresses=list(addresses), segleft=left, lastentry=len(addresses) - 1)


def main():
    def case(name, port, came, expected):
        expected = expected if isinstance(expected, str) else expected.hex()
        print(f"{name}: {port} {came.hex()} {expected}")

    single = frame(q(10))
    case("802.1Q", 0, outer(0, single), single)
    case("802.1ad", 0, outer(0, frame(ad(20))), frame(ad(20)))
    case("by another port", 1, outer(1, frame(q(40))), frame(q(40)))
    case("outer and inner", 0, outer(0, frame(q(10), q(30))), frame(q(10), q(30)))
    case("an inner VLAN of no device stays", 0, outer(0, frame(q(10), q(31, 3, 1))), frame(q(10), q(31, 3, 1)))
    case("a device without inner VLANs", 0, outer(0, frame(ad(20), q(30, 2))), frame(ad(20), q(30, 2)))
    case("three tags", 0, outer(0, frame(q(10), q(30), q(5, 7))), frame(q(10), q(30), q(5, 7)))
    case("the tags are written anew", 0, outer(0, frame(q(10, 5, 1), q(30, 6, 1))), frame(q(10), q(30)))
    case("behind an SRH", 0, outer(0, single, srh(SID[0])), single)
    case("behind a list", 0, outer(0, single, srh(SID[0], "fc00::1")), single)
    full = Raw(bytes(range(250)) * 6)
    case("as long as the MTU", 0, outer(0, frame(q(10), inside=full)), frame(q(10), inside=full))

    case("no tag", 0, outer(0, frame()), "vlan-unknown")
    case("a VLAN of no device", 0, outer(0, frame(q(11))), "vlan-unknown")
    case("a VLAN of another protocol", 0, outer(0, frame(ad(10))), "vlan-unknown")
    case("a VLAN of another port", 0, outer(0, frame(q(40))), "vlan-unknown")
    case("an inner VLAN alone", 0, outer(0, frame(q(30))), "vlan-unknown")
    case("a priority tag", 0, outer(0, frame(q(0, 5))), "vlan-unknown")
    case("nothing behind the tag", 0, outer(0, single[:18]), "vlan-unknown")
    case("a truncated header", 0, outer(0, single[:13]), "inner-malformed")
    case("an IEEE 802.3 frame", 0, outer(0, single[:12] + b"\x00\x40" + single[14:]), "inner-malformed")
    case("segments left", 0, outer(0, single, srh(SID[0], SID[0], left=1)), "segments-left-not-zero")
    case("an IPv4 packet", 0, outer(0, bytes(INSIDE), next_header=4), "upper-layer-unexpected")


main()
