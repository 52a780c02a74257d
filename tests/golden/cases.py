"""The cases of the golden packets: for each its configuration, its input frames, and what it shows.

Inputs unless a case says otherwise: hop limit 40, traffic class 0xb8, flow label 0x12345, UDP with 64
bytes of payload, from a host behind p0's neighbour.
"""
import struct

from scapy.all import Ether, ICMP, IP, IPOption, Raw, UDP, Dot1Q
from scapy.layers.inet6 import (ICMPv6EchoRequest, ICMPv6DestUnreach, ICMPv6PacketTooBig,
                                ICMPv6TimeExceeded, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment,
                                IPv6ExtHdrHopByHop, PadN)
from ipaddress import ip_address

P0, P1 = "02:00:00:00:00:01", "02:00:00:00:00:02"          # the router's ports
N0, N1, N1B = "02:00:00:00:01:01", "02:00:00:00:01:02", "02:00:00:00:01:03"  # their neighbours
SOURCE = "2001:db8:5::5"                                    # a host behind N0
TARGET = "2001:db8:6::6"                                    # a host behind N1
SOURCE4, TARGET4 = "203.0.113.5", "203.0.113.133"
NEXT, LAST = "fc00:b::1", "fc00:c::1"                       # SIDs of other routers, behind N1

BASE = """
ip link set p0 up
ip link set p1 up
ip addr add 2001:db8:1::1/64 dev p0 nodad
ip addr add 2001:db8:2::1/64 dev p1 nodad
ip addr add 192.0.2.1/24 dev p0
ip addr add 198.51.100.1/24 dev p1
ip neigh add 2001:db8:1::2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 2001:db8:2::2 lladdr 02:00:00:00:01:02 dev p1 nud permanent
ip neigh add 2001:db8:2::3 lladdr 02:00:00:00:01:03 dev p1 nud permanent
ip neigh add 192.0.2.2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent
ip neigh add 198.51.100.3 lladdr 02:00:00:00:01:03 dev p1 nud permanent
ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0
ip -6 route add 2001:db8:6::/48 via 2001:db8:2::2 dev p1
ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1
ip -6 route add fc00:c::/32 via 2001:db8:2::2 dev p1
ip route add 203.0.113.0/25 via 192.0.2.2 dev p0
ip route add 203.0.113.128/25 via 198.51.100.2 dev p1
""".strip().splitlines()

# A tenant: everything but p0, which stays in the main table, is in a VRF.
VRF = """
ip link add vrf100 type vrf table 100
ip link set vrf100 up
ip link set p1 master vrf100
ip link set p0 up
ip link set p1 up
ip addr add 2001:db8:1::1/64 dev p0 nodad
ip addr add 2001:db8:2::1/64 dev p1 nodad
ip addr add 192.0.2.1/24 dev p0
ip addr add 198.51.100.1/24 dev p1
ip neigh add 2001:db8:1::2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 2001:db8:2::2 lladdr 02:00:00:00:01:02 dev p1 nud permanent
ip neigh add 192.0.2.2 lladdr 02:00:00:00:01:01 dev p0 nud permanent
ip neigh add 198.51.100.2 lladdr 02:00:00:00:01:02 dev p1 nud permanent
ip -6 route add 2001:db8:5::/48 via 2001:db8:1::2 dev p0
ip route add 203.0.113.0/25 via 192.0.2.2 dev p0
ip -6 route add 2001:db8:6::/48 via 2001:db8:2::2 dev p1 table 100
ip route add 203.0.113.128/25 via 198.51.100.2 dev p1 table 100
""".strip().splitlines()


class Case:
    """`frames`: (what it is, frame) or (what it is, port, frame). `expect`: for some inputs, by their
    number, the frames that must leave, as (port, frame)s; scapy built them from the RFC. `differs`: what
    Linux does instead. `counters`: "errors" if every input should count as one, though Linux does not."""

    def __init__(self, name, doc, config, frames, expect=None, differs=None, counters=None):
        self.doc, self.config, self.differs, self.counters = doc, config, differs, counters
        self.name = f"differs/{name}" if differs else name
        frames = [f if len(f) == 3 else (f[0], "p0", f[1]) for f in frames]
        self.labels = [label for label, _, _ in frames]
        self.frames = [(port, bytes(frame)) for _, port, frame in frames]
        self.expect = expect
        CASES.append(self)

    def header(self):
        lines = [f"# {self.doc}"]
        if self.differs:
            lines += [f"# Linux differs (linux-*.pcap): {self.differs}"]
        lines += [f"# Recorded by: tests/golden/record.py {self.name}"]
        return lines + [f"# in {i}: {label}" for i, label in enumerate(self.labels)]

    def expected(self):
        if self.expect is None:
            return None
        out = {"p0": [], "p1": []}
        for number, frames in sorted(self.expect.items()):
            for port, frame in frames:
                out[port].append((number, bytes(frame)))
        return out


CASES = []


# ------------------------------------------------------------------------------------------ frames

def ether(inner, dst=P0, src=N0):
    return Ether(dst=dst, src=src) / inner


def payload(n=64):
    return Raw(bytes(i & 0xFF for i in range(n)))


def udp(n=64):
    return UDP(sport=1111, dport=2222) / payload(n)


def ip6(dst=TARGET, src=SOURCE, hlim=40, **more):
    return IPv6(src=src, dst=dst, hlim=hlim, tc=0xB8, fl=0x12345, **more)


def ip4(dst=TARGET4, src=SOURCE4, ttl=40, **more):
    return IP(src=src, dst=dst, ttl=ttl, tos=0xB8, id=0x4321, **more)


def srh(segments, left, inner, nh=None, last=None, flags=0, tag=0, tlvs=b"", hdrlen=None, kind=4):
    """A segment routing header around `inner`; `segments` in the order of the visit."""
    if nh is None:
        nh = {IPv6: 41, IP: 4, UDP: 17, Ether: 143, ICMPv6EchoRequest: 58}[type(inner)]
    wire = b"".join(ip_address(s).packed for s in reversed(segments)) + tlvs
    fixed = struct.pack("!BBBBBBH", nh, len(wire) // 8 if hdrlen is None else hdrlen, kind, left,
                        len(segments) - 1 if last is None else last, flags, tag)
    return Raw(fixed + wire) / inner


def routed(outer, segments, left, inner, **more):
    """An IPv6 packet `outer` (without its next header) with a segment routing header."""
    outer = outer.copy()
    outer.nh = 43
    # A UDP checksum counts the final destination: the inner checksum is made against it.
    if isinstance(inner, UDP):
        final = IPv6(src=outer.src, dst=segments[-1], nh=17) / inner
        inner = UDP(bytes(final)[40:])
    return outer / srh(segments, left, inner, **more)




def behind(frame, extra):
    """Bytes behind the end of the packet, as the padding of a short Ethernet frame is."""
    return bytes(frame) + extra


def opts(nh, inner):
    """A destination options or hop-by-hop header of 8 bytes of padding before `inner`."""
    return Raw(bytes([nh, 0, 1, 4, 0, 0, 0, 0])) / inner


def fragment(nh, inner, offset=0, more=1):
    return Raw(struct.pack("!BBHI", nh, 0, offset << 3 | more, 9)) / inner


def to_p1(packet, dst=N1):
    return ("p1", Ether(dst=dst, src=P1) / packet)


def to_p0(packet):
    return ("p0", Ether(dst=N0, src=P0) / packet)


def hops(packet, n=1):
    """The packet one hop later."""
    packet = packet.copy()
    if isinstance(packet, IPv6):
        packet.hlim -= n
    else:
        packet.ttl -= n
        del packet.chksum
    return packet


def time_exceeded(quoted, src="2001:db8:1::1", dst=SOURCE):
    """ICMPv6 time exceeded: RFC 4443 section 3.3."""
    body = bytes(quoted)[:1232]
    return IPv6(src=src, dst=dst, hlim=64) / ICMPv6TimeExceeded(code=0) / Raw(body)


def too_big(quoted, mtu, src="2001:db8:1::1", dst=SOURCE):
    """ICMPv6 packet too big: RFC 4443 section 3.2."""
    return IPv6(src=src, dst=dst, hlim=64) / ICMPv6PacketTooBig(mtu=mtu) / Raw(bytes(quoted)[:1232])


def icmp4(quoted, kind, code, mtu=0, src="192.0.2.1", dst=SOURCE4):
    """An ICMP error as Linux forms it: identification 0, the TOS of the packet at precedence
    internetwork control, as much of the packet as 576 bytes hold."""
    return IP(src=src, dst=dst, ttl=64, id=0, tos=(quoted.tos & 0x1E) | 0xC0) / ICMP(type=kind, code=code, nexthopmtu=mtu) / Raw(bytes(quoted)[:548])


def unreachable6(quoted, code, src="2001:db8:1::1"):
    return IPv6(src=src, dst=SOURCE, hlim=64) / ICMPv6DestUnreach(code=code) / Raw(bytes(quoted)[:1232])


INNER6 = ip6() / udp()
INNER4 = ip4() / udp()
FRAME = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / INNER6
SID = "fc00:a::1"


# ------------------------------------------------------------------------------- endpoint behaviours

def sid(action, base=BASE, dev="p0", address=SID):
    return base + [f"ip -6 route add {address}/128 encap seg6local action {action} count dev {dev}"]


# What End, End.X and End.T refuse: they need a next segment.
NOT_ENDED = [
    ("no SRH, UDP", ether(ip6(SID) / udp())),
    ("no SRH, IPv6 inside", ether(ip6(SID, nh=41) / INNER6)),
    ("no SRH, IPv4 inside", ether(ip6(SID, nh=4) / INNER4)),
    ("no SRH, no next header", ether(ip6(SID, nh=59))),
    ("segments left 0, UDP", ether(routed(ip6(SID), [NEXT, SID], 0, udp()))),
    ("segments left 0, IPv6 inside", ether(routed(ip6(SID), [NEXT, SID], 0, INNER6))),
    ("no SRH, hop limit 1", ether(ip6(SID, nh=41, hlim=1) / INNER6)),
    ("SRH longer than the packet", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=200))),
    ("SRH too short for last entry", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=2))),
    ("SRH length odd, TLVs broken", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, hdrlen=5))),
    ("last entry beyond the list", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, last=2))),
    ("segments left above last entry + 1", ether(routed(ip6(SID), [SID, NEXT], 3, INNER6))),
    ("routing type 0", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, kind=0))),
    ("routing type 2, segments left 0", ether(routed(ip6(SID), [SID, NEXT], 0, INNER6, kind=2))),
    ("TLV longer than the SRH", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6, tlvs=bytes([4, 60] + [0] * 6)))),
    ("a fragment that is not the first", ether(ip6(SID, nh=44) / fragment(43, payload(80), offset=8))),
    ("first fragment, no SRH", ether(ip6(SID, nh=44) / fragment(41, INNER6))),
    ("SRH cut after 4 bytes", ether(ip6(SID, nh=43) / Raw(bytes([41, 4, 4, 1])))),
    ("SRH cut inside its list", ether(ip6(SID, nh=43) / Raw(bytes(srh([SID, NEXT], 1, INNER6))[:20]))),
]
PADTLV = bytes([4, 6, 0, 0, 0, 0, 0, 0])
OPAQUE = bytes([200, 4, 1, 2, 3, 4, 0, 0])


def advanced(dst=N1):
    """What End and its like do: (label, in, out)."""
    def one(label, segments, left, inner, **more):
        before = routed(ip6(SID), segments, left, inner, **more)
        after = routed(ip6(segments[len(segments) - left]), segments, left - 1, inner, **more)
        return (label, ether(before), [to_p1(hops(after), dst)])
    listed = [
        one("SRH of 2, IPv6 inside", [SID, NEXT], 1, INNER6),
        one("SRH of 2, IPv4 inside", [SID, NEXT], 1, INNER4),
        one("SRH of 3, UDP", [SID, NEXT, LAST], 2, udp()),
        one("SRH of 3, the second segment is done", [LAST, SID, NEXT], 1, udp()),
        one("SRH of 2, a frame inside", [SID, NEXT], 1, FRAME),
        one("reduced SRH: 1 segment, segments left 1", [NEXT], 1, INNER6),
        one("reduced SRH: 2 segments, segments left 2", [NEXT, LAST], 2, INNER6),
        one("tag, every flag, a padding TLV", [SID, NEXT], 1, INNER6, tag=0x1234, flags=0xFF, tlvs=PADTLV),
        one("an opaque TLV and padding", [SID, NEXT], 1, INNER6, tlvs=OPAQUE + PADTLV),
        one("HMAC flag without its TLV", [SID, NEXT], 1, INNER6, flags=8),
    ]
    for label, nh, wrap in [("hop-by-hop options before the SRH", 0, opts), ("destination options before the SRH", 60, opts),
                            ("fragment header before the SRH", 44, fragment)]:
        listed.append((label, ether(ip6(SID, nh=nh) / wrap(43, srh([SID, NEXT], 1, INNER6))),
                       [to_p1(hops(ip6(NEXT, nh=nh) / wrap(43, srh([SID, NEXT], 0, INNER6))), dst)]))
    listed.append(("destination options after the SRH", ether(ip6(SID, nh=43) / srh([SID, NEXT], 1, opts(17, udp()), nh=60)),
                   [to_p1(hops(ip6(NEXT, nh=43) / srh([SID, NEXT], 0, opts(17, udp()), nh=60)), dst)]))
    listed.append(("bytes behind the packet", behind(ether(routed(ip6(SID), [SID, NEXT], 1, INNER6)), b"PADDING"),
                   [to_p1(hops(routed(ip6(NEXT), [SID, NEXT], 0, INNER6)), dst)]))
    listed.append(("next segment unroutable", ether(routed(ip6(SID), [SID, "fc00:dead::1"], 1, INNER6)), None))
    return listed


def io(listed):
    """Frames and expectation of (label, in, out) triples; no expectation at all if one out is None."""
    frames = [(label, before) for label, before, _ in listed]
    if any(out is None for _, _, out in listed):
        return dict(frames=frames)
    return dict(frames=frames, expect={i: out for i, (_, _, out) in enumerate(listed)})


T100 = BASE + ["ip -6 route add fc00:b::/32 via 2001:db8:2::3 dev p1 table 100",
               "ip -6 route add fc00:c::/32 via 2001:db8:2::3 dev p1 table 100"]
for name, action, base, dst in [("end", "End", BASE, N1), ("end-x", "End.X nh6 2001:db8:2::3", BASE, N1B),
                                ("end-t", "End.T table 100", T100, N1B)]:
    doc = action.split()[0]
    listed = advanced(dst)
    Case(f"endpoint/{name}", f"{doc} moves on to the next segment.", sid(action, base), **io(listed[:-1]))
    Case(f"endpoint/{name}-no-route", f"{doc} towards a segment without a route"
         + (", which End.X does not look up." if name == "end-x" else "."), sid(action, base), **io(listed[-1:]))
    Case(f"endpoint/{name}-refused", f"{doc} drops what has no next segment, or no valid SRH.", sid(action, base), NOT_ENDED,
         expect={})
    hop1 = [(f"hop limit {h}", routed(ip6(SID, hlim=h), [SID, NEXT], 1, INNER6)) for h in (1, 0)]
    Case(f"endpoint/{name}-hop-limit", f"{doc} at hop limit 1 and 0: time exceeded.", sid(action, base),
         [(label, ether(p)) for label, p in hop1],
         expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
         differs="it quotes the packet with the next segment already its destination")


def popped():
    """What PSP does with the last segment."""
    listed = [
        ("SRH of 2, IPv6 inside", routed(ip6(SID), [SID, NEXT], 1, INNER6), ip6(NEXT, nh=41) / INNER6),
        ("SRH of 2, IPv4 inside", routed(ip6(SID), [SID, NEXT], 1, INNER4), ip6(NEXT, nh=4) / INNER4),
        ("SRH of 2, UDP", routed(ip6(SID), [SID, NEXT], 1, udp()), ip6(NEXT) / udp()),
        ("SRH of 3, the last but one", routed(ip6(SID), [LAST, SID, NEXT], 1, udp()), ip6(NEXT) / udp()),
        ("SRH of 3, not the last: stays", routed(ip6(SID), [SID, NEXT, LAST], 2, udp()),
         routed(ip6(NEXT), [SID, NEXT, LAST], 1, udp())),
        ("with TLVs and tag", routed(ip6(SID), [SID, NEXT], 1, INNER6, tag=7, tlvs=OPAQUE + PADTLV), ip6(NEXT, nh=41) / INNER6),
        ("hop-by-hop options before the SRH", ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6)),
         ip6(NEXT, nh=0) / opts(41, INNER6)),
        ("destination options before the SRH", ip6(SID, nh=60) / opts(43, srh([SID, NEXT], 1, INNER6)),
         ip6(NEXT, nh=60) / opts(41, INNER6)),
        ("destination options after the SRH", ip6(SID, nh=43) / srh([SID, NEXT], 1, opts(17, udp()), nh=60),
         ip6(NEXT, nh=60) / opts(17, udp())),
        ("reduced SRH", routed(ip6(SID), [NEXT], 1, INNER6), ip6(NEXT, nh=41) / INNER6),
    ]
    return [(label, ether(before), [to_p1(hops(after))]) for label, before, after in listed]


Case("endpoint/end-psp", "End with PSP removes the SRH as the last segment becomes the destination.",
     sid("End flavors psp"), **io(popped()))
Case("endpoint/end-psp-refused", "End with PSP drops what has no next segment, or no valid SRH.",
     sid("End flavors psp"), NOT_ENDED, expect={})
hop1 = routed(ip6(SID, hlim=1), [SID, NEXT], 1, INNER6)
Case("endpoint/end-psp-hop-limit", "End with PSP at hop limit 1: time exceeded.", sid("End flavors psp"),
     [("hop limit 1", ether(hop1))], expect={0: [to_p0(time_exceeded(hop1))]},
     differs="it quotes the packet without the SRH, the next segment already its destination")
Case("endpoint/end-twice", "Two SIDs of this router one after the other: the hop limit falls once, each SID counts.",
     sid("End", sid("End", address="fc00:a::2")),
     **io([("fc00:a::1, then fc00:a::2", ether(routed(ip6(SID), [SID, "fc00:a::2", NEXT], 2, udp())),
            [to_p1(hops(routed(ip6(NEXT), [SID, "fc00:a::2", NEXT], 0, udp())))])]))

# Decapsulating behaviours. What is in the way is passed over: options, an SRH at segments left 0.
DX = [("dx2", "End.DX2 oif p1", BASE, "p0", N1, {"ether"}),
      ("dx4-any", "End.DX4 nh4 0.0.0.0", BASE, "p0", N1, {"4"}),
      ("dx6", "End.DX6 nh6 2001:db8:2::3", BASE, "p0", N1B, {"6"}),
      ("dx6-any", "End.DX6 nh6 ::", BASE, "p0", N1, {"6"}),
      ("dt6-table", "End.DT6 table main", BASE, "p0", N1, {"6"}),
      ("dt6", "End.DT6 vrftable 100", VRF, "vrf100", N1, {"6"}),
      ("dt4", "End.DT4 vrftable 100", VRF, "vrf100", N1, {"4"}),
      ("dt46", "End.DT46 vrftable 100", VRF, "vrf100", N1, {"4", "6"})]
INNER = {"6": (41, INNER6), "4": (4, INNER4), "ether": (143, FRAME)}


def ways_in(nh, inner):
    """The ways that a packet can be inside another."""
    return [
        ("no SRH", ip6(SID, nh=nh) / inner),
        ("no SRH, outer hop limit 1", ip6(SID, nh=nh, hlim=1) / inner),
        ("SRH of 1, segments left 0", routed(ip6(SID), [SID], 0, inner, nh=nh)),
        ("SRH of 2, segments left 0", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh)),
        ("SRH with TLVs", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh, tlvs=OPAQUE + PADTLV)),
        ("reduced SRH, segments left 0", routed(ip6(SID), [NEXT], 0, inner, nh=nh)),
        ("hop-by-hop options", ip6(SID, nh=0) / opts(nh, inner)),
        ("destination options", ip6(SID, nh=60) / opts(nh, inner)),
        ("SRH, then destination options", routed(ip6(SID), [NEXT, SID], 0, opts(nh, inner), nh=60)),
        ("destination options, then SRH", ip6(SID, nh=60) / opts(43, srh([NEXT, SID], 0, inner, nh=nh))),
        ("an atomic fragment", ip6(SID, nh=44) / fragment(nh, inner, more=0)),
    ]


def inside_out(packet, dst):
    """The inner packet as it leaves: one hop later; a frame as it is."""
    return ("p1", packet) if isinstance(packet, Ether) else to_p1(hops(packet), dst)


def not_inside(kinds):
    """What a decapsulating behaviour refuses: another protocol, segments left, no packet at all."""
    listed = [("UDP", ip6(SID) / udp()), ("no next header", ip6(SID, nh=59)), ("ESP", ip6(SID, nh=50) / payload(64)),
              ("an unknown protocol", ip6(SID, nh=253) / payload(64)), ("UDP behind the SRH", routed(ip6(SID), [NEXT, SID], 0, udp())),
              ("a later fragment", ip6(SID, nh=44) / fragment(41, payload(80), offset=8))]
    for kind, (nh, inner) in INNER.items():
        if kind not in kinds:
            listed.append((f"next header {nh}", ip6(SID, nh=nh) / inner))
            listed.append((f"next header {nh} behind the SRH", routed(ip6(SID), [NEXT, SID], 0, inner, nh=nh)))
        else:
            listed.append((f"next header {nh}, segments left 1", routed(ip6(SID), [SID, NEXT], 1, inner, nh=nh)))
            listed.append((f"next header {nh}, segments left 2", routed(ip6(SID), [SID, NEXT, LAST], 2, inner, nh=nh)))
            listed.append((f"next header {nh}, nothing inside", ip6(SID, nh=nh)))
            listed.append((f"next header {nh}, cut inside the header", ip6(SID, nh=nh) / Raw(bytes(inner)[:10])))
    return [(label, ether(packet)) for label, packet in listed]


for name, action, base, dev, dst, kinds in DX:
    doc = " ".join(action.split()[:2] if "table" in action else action.split()[:1])
    listed = []
    for kind in sorted(kinds):
        nh, inner = INNER[kind]
        listed += [(f"{label}, next header {nh}", ether(packet), [inside_out(inner, dst)]) for label, packet in ways_in(nh, inner)]
        listed.append((f"bytes behind the packet, next header {nh}", behind(ether(ip6(SID, nh=nh) / inner), b"PADDING"),
                       [inside_out(inner, dst)]))
    config = sid(action, base, dev)
    Case(f"endpoint/{name}", f"{doc} takes the packet out.", config, **io(listed))
    Case(f"endpoint/{name}-refused", f"{doc} drops what it does not expect.", config, not_inside(kinds), expect={})


# --------------------------------------------------------- where Linux leaves the RFCs, or its own sense

listed = [(label, packet) for label, packet in ways_in(4, INNER4)]
Case("endpoint/dx4", "End.DX4 sends to nh4, whatever the inner destination: RFC 8986 section 4.5.",
     sid("End.DX4 nh4 198.51.100.3"), **io([(label, ether(p), [to_p1(hops(INNER4), N1B)]) for label, p in listed]),
     differs="it resolves the inner destination, 203.0.113.133, on the link")
Case("endpoint/dx4-refused", "End.DX4 drops what it does not expect.", sid("End.DX4 nh4 198.51.100.3"),
     not_inside({"4"}), expect={})

BROKEN = [("SRH reaches into the inner packet", dict(hdrlen=6)), ("last entry beyond the list", dict(last=2)),
          ("segments left above last entry + 1", dict(left=3)), ("routing type 0, segments left 1", dict(kind=0)),
          ("routing type 2, segments left 1", dict(kind=2)), ("TLV longer than the SRH", dict(tlvs=bytes([4, 60] + [0] * 6)))]
for name, action, base, dev, dst, kinds in DX:
    if name not in ("dx2", "dx4-any", "dx6", "dt6", "dt4", "dt46"):
        continue
    doc = action.split()[0]
    config = sid(action, base, dev)
    for kind in sorted(kinds):
        nh, inner = INNER[kind]
        packets = [(label, routed(ip6(SID), [SID, NEXT], more.get("left", 1), inner, nh=nh, **{k: v for k, v in more.items() if k != "left"}))
                   for label, more in BROKEN]
        Case(f"endpoint/{name}-srh-broken-{nh}", f"{doc} drops a packet whose SRH is malformed or of another type, segments left.",
             config, [(label, ether(p)) for label, p in packets], expect={}, counters="errors",
             differs="it takes the routing header for absent and takes the inner packet out")
    for kind in sorted(kinds - {"ether"}):
        nh, inner = INNER[kind]
        cut = [("inner packet 10 bytes shorter than it says", ip6(SID, nh=nh) / Raw(bytes(inner)[:-10])),
               ("the same behind an SRH", routed(ip6(SID), [NEXT, SID], 0, Raw(bytes(inner)[:-10]), nh=nh))]
        if kind == "4":
            cut += [("inner checksum wrong", ip6(SID, nh=nh) / (ip4(chksum=0x1234) / udp())),
                    ("inner header length 4", ip6(SID, nh=nh) / Raw(b"\x44" + bytes(INNER4)[1:])),
                    ("inner version 6", ip6(SID, nh=nh) / INNER6),
                    ("inner header longer than the packet", ip6(SID, nh=nh) / Raw(b"\x4f" + bytes(INNER4)[1:40]))]
        else:
            cut += [("inner version 4", ip6(SID, nh=nh) / INNER4)]
        Case(f"endpoint/{name}-inner-broken-{nh}", f"{doc} drops an inner packet that is malformed.", config,
             [(label, ether(p)) for label, p in cut], expect={}, counters="errors",
             differs="it forwards inner packets without a look at their length, version and checksum")
        longer = [("5 bytes behind the inner packet", ip6(SID, nh=nh) / Raw(bytes(inner) + b"extra")),
                  ("the same behind an SRH", routed(ip6(SID), [NEXT, SID], 0, Raw(bytes(inner) + b"extra"), nh=nh))]
        Case(f"endpoint/{name}-inner-longer-{nh}", f"{doc} leaves behind what follows the inner packet.", config,
             [(label, ether(p)) for label, p in longer],
             expect={i: [to_p1(hops(inner), dst)] for i in range(2)}, differs="it forwards the bytes behind the inner packet")

for name, action, base, dev, dst, kinds in DX:
    for kind in sorted(kinds - {"ether"}):
        nh, inner = INNER[kind]
        last = ip6(hlim=1) / udp() if kind == "6" else ip4(ttl=1) / udp()
        away = ip6(TARGET.replace("db8:6", "db8:66"), src=SOURCE) / udp() if kind == "6" else ip4("203.0.114.1") / udp()
        Case(f"endpoint/{name}-inner-hop-limit-{nh}", f"{action.split()[0]}: the inner packet has no hop left.",
             sid(action, base, dev),
             [("no SRH", ether(ip6(SID, nh=nh) / last)), ("SRH", ether(routed(ip6(SID), [NEXT, SID], 0, last, nh=nh)))])
        if name not in ("dx4-any", "dx6-any"):
            Case(f"endpoint/{name}-inner-no-route-{nh}", f"{action.split()[0]}: no route to the inner destination"
                 + (", which End.DX6 does not look up." if name == "dx6" else "."),
                 sid(action, base, dev), [("no SRH", ether(ip6(SID, nh=nh) / away))])

# End.DX2 sends the frame as it is, VLAN tags and all, whatever it holds.
TAGGED = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / Dot1Q(vlan=5, prio=3) / INNER4
frames = [("a VLAN tag", TAGGED), ("an ARP request", Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:09:08", type=0x0806) / Raw(bytes(28))),
          ("an unknown EtherType", Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08", type=0x88B5) / payload(50)),
          ("multicast", Ether(dst="01:00:5e:00:00:05", src="02:00:00:00:09:08") / INNER4),
          ("hop limit 1 inside", Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / ip6(hlim=1) / udp())]
Case("endpoint/dx2-frames", "End.DX2 does not look into the frame.", sid("End.DX2 oif p1"),
     **io([(label, ether(ip6(SID, nh=143) / f), [("p1", f)]) for label, f in frames if "ARP" not in label]))
long_frame = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / ip6() / udp(1252)
Case("endpoint/dx2-too-big", "End.DX2 drops a frame longer than the MTU of its link.",
     sid("End.DX2 oif p1", BASE + ["ip link set p1 mtu 1280"]),
     [("1,300 bytes inside", ether(ip6(SID, nh=143) / long_frame)), ("it fits", ether(ip6(SID, nh=143) / FRAME))])

# End.B6 and End.B6.Encaps: a binding SID.
for n, segs in [(1, ["fc00:b::9"]), (2, ["fc00:b::9", "fc00:c::9"]), (3, ["fc00:b::9", "fc00:c::9", "fc00:b::8"])]:
    text = ",".join(segs)
    listed = []
    for label, segments, left, inner in [("SRH of 2", [SID, NEXT], 1, INNER6), ("SRH of 3, IPv4 inside", [SID, NEXT, LAST], 2, INNER4),
                                         ("reduced SRH", [NEXT], 1, INNER6)]:
        nh = {IPv6: 41, IP: 4}[type(inner)]
        packet = routed(ip6(SID), segments, left, inner, nh=nh)
        inserted = ip6(segs[0], nh=43) / srh(segs + [SID], n, srh(segments, left, inner, nh=nh), nh=43)
        listed.append((label, ether(packet), [to_p1(hops(inserted))]))
    Case(f"endpoint/b6-{n}", f"End.B6 inserts an SRH of {n + 1} before the packet's own, which it leaves as it is.",
         sid(f"End.B6 srh segs {text}"), **io(listed))
    listed = []
    for label, segments, left, inner in [("SRH of 2", [SID, NEXT], 1, INNER6), ("SRH of 3, IPv4 inside", [SID, NEXT, LAST], 2, INNER4),
                                         ("reduced SRH", [NEXT], 1, INNER6)]:
        packet = routed(ip6(SID), segments, left, inner)
        after = routed(ip6(segments[len(segments) - left]), segments, left - 1, inner)
        outer = IPv6(src="2001:db8:1::1", dst=segs[0], hlim=39, tc=0xB8, fl=0x12345, nh=43) / srh(segs, n - 1, after, nh=41)
        listed.append((label, ether(packet), [to_p1(outer)]))
    Case(f"endpoint/b6-encaps-{n}", f"End.B6.Encaps advances the packet's SRH, then encapsulates in a list of {n}.",
         sid(f"End.B6.Encaps srh segs {text}"), **io(listed))
for name, action in [("b6", "End.B6"), ("b6-encaps", "End.B6.Encaps")]:
    config = sid(f"{action} srh segs fc00:b::9,fc00:c::9")
    Case(f"endpoint/{name}-refused", f"{action} drops what has no next segment, or no valid SRH.", config, NOT_ENDED, expect={})
    hop1 = [(f"hop limit {h}", routed(ip6(SID, hlim=h), [SID, NEXT], 1, INNER6)) for h in (1, 0)]
    Case(f"endpoint/{name}-hop-limit", f"{action} at hop limit 1 and 0: time exceeded.", config,
         [(label, ether(p)) for label, p in hop1], expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
         differs="it quotes the packet with its own headers inserted" if name == "b6" else "it drops the packet silently")
Case("endpoint/b6-hop-by-hop", "End.B6 inserts behind hop-by-hop options, which come first: RFC 8200 section 4.1.",
     sid("End.B6 srh segs fc00:b::9,fc00:c::9"),
     **io([("hop-by-hop options", ether(ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6))),
            [to_p1(hops(ip6("fc00:b::9", nh=0) / opts(43, srh(["fc00:b::9", "fc00:c::9", SID], 2, srh([SID, NEXT], 1, INNER6), nh=43))))])]),
     differs="it inserts before them")
Case("endpoint/b6-encaps-options", "End.B6.Encaps with options before the SRH.", sid("End.B6.Encaps srh segs fc00:b::9,fc00:c::9"),
     [("hop-by-hop options", ether(ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6)))),
      ("destination options", ether(ip6(SID, nh=60) / opts(43, srh([SID, NEXT], 1, INNER6))))])

# NEXT-CSID: 32 bits of block, 16 of node and function.
CSID = "fc00:a:1:b:c::"
CSID_ROUTES = BASE + ["ip -6 route add fc00:a:b::/48 via 2001:db8:2::2 dev p1", "ip -6 route add fc00:a:c::/48 via 2001:db8:2::3 dev p1"]
for name, action, dst in [("un", "End flavors next-csid lblen 32 nflen 16", N1),
                          ("ua", "End.X nh6 2001:db8:2::3 flavors next-csid lblen 32 nflen 16", N1B)]:
    config = CSID_ROUTES + [f"ip -6 route add fc00:a:1::/48 encap seg6local action {action} count dev p0"]
    shifted = "fc00:a:b:c::"
    full = "fc00:a:1:b:2:3:4:c"
    listed = [("UDP, no SRH", ip6(CSID) / udp(), ip6(shifted) / UDP(bytes(ip6(CSID) / udp())[40:])),
              ("IPv6 inside, no SRH", ip6(CSID, nh=41) / INNER6, ip6(shifted, nh=41) / INNER6),
              ("every CSID in use", ip6(full, nh=41) / INNER6, ip6("fc00:a:b:2:3:4:c:0", nh=41) / INNER6),
              ("SRH stays as it is", routed(ip6(CSID), [CSID, NEXT], 1, INNER6), routed(ip6(shifted), [CSID, NEXT], 1, INNER6)),
              ("SRH at segments left 0", routed(ip6(CSID), [NEXT, CSID], 0, INNER6), routed(ip6(shifted), [NEXT, CSID], 0, INNER6)),
              ("SRH malformed: not looked at", routed(ip6(CSID), [CSID, NEXT], 1, INNER6, last=9), routed(ip6(shifted), [CSID, NEXT], 1, INNER6, last=9)),
              ("options", ip6(CSID, nh=60) / opts(41, INNER6), ip6(shifted, nh=60) / opts(41, INNER6)),
              ("argument 0: the SRH advances", routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT], 1, INNER6),
               routed(ip6(NEXT), ["fc00:a:1::", NEXT], 0, INNER6))]
    Case(f"endpoint/{name}", f"{action.split()[0]} with NEXT-CSID shifts the next CSID to the front: RFC 9800 section 4.1.", config,
         **io([(label, ether(before), [to_p1(hops(after), dst)]) for label, before, after in listed]))
    Case(f"endpoint/{name}-refused", "NEXT-CSID, argument 0: as without the flavour.", config,
         [("argument 0, no SRH", ether(ip6("fc00:a:1::") / udp())),
          ("argument 0, segments left 0", ether(routed(ip6("fc00:a:1::"), [NEXT, "fc00:a:1::"], 0, INNER6))),
          ("argument 0, IPv6 inside", ether(ip6("fc00:a:1::", nh=41) / INNER6)),
          ("argument 0, SRH malformed", ether(routed(ip6("fc00:a:1::"), ["fc00:a:1::", NEXT], 1, INNER6, last=9)))], expect={})
    Case(f"endpoint/{name}-odd", "NEXT-CSID: arguments that lead nowhere, or back here.", config,
         [("only the last bit", ether(ip6("fc00:a:1::1", nh=41) / INNER6)), ("a hole", ether(ip6("fc00:a:1:0:c::", nh=41) / INNER6)),
          ("this node twice", ether(ip6("fc00:a:1:1:c::", nh=41) / INNER6))])
    hop1 = [("no SRH", ip6(CSID, nh=41, hlim=1) / INNER6), ("argument 0, SRH", routed(ip6("fc00:a:1::", hlim=1), ["fc00:a:1::", NEXT], 1, INNER6))]
    Case(f"endpoint/{name}-hop-limit", "NEXT-CSID at hop limit 1: time exceeded.", config, [(label, ether(p)) for label, p in hop1],
         expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
         differs="it quotes the packet with its destination already changed")


# ------------------------------------------------------------------------------------------- headend

IN6, IN4 = "2001:db8:7::7", "10.7.0.7"      # destinations that have a policy
LIST = ["fc00:b::1", "fc00:c::1", "fc00:b::3"]
OWN = "2001:db8:2::1"                       # the outer source where no tunsrc is set: p1's address


def policy(mode, segs, base=BASE, dst="2001:db8:7::/48", dev="p1", more=""):
    family = "-6 " if ":" in dst else ""
    return base + [f"ip {family}route add {dst} encap seg6 mode {mode} segs {','.join(segs)} {more}dev {dev}"]


def wrapped(mode, segs, inner, src=OWN, hlim=None, frame=None):
    """The packet with a policy's headers, as it leaves."""
    inherits = isinstance(inner, IPv6)
    tc, fl = (inner.tc, inner.fl) if inherits else (0, 0)
    hlim = hlim or (inner.hlim - 1 if inherits else 63)
    inside = frame if mode.startswith("l2") else inner
    nh = 143 if mode.startswith("l2") else 41 if inherits else 4
    if mode == "inline":
        whole = srh(segs + [inner.dst], len(segs), Raw(bytes(inner)[40:]), nh=bytes(inner)[6])
        return IPv6(src=inner.src, dst=segs[0], hlim=hlim, tc=tc, fl=fl, nh=43) / whole
    outer = IPv6(src=src, dst=segs[0], hlim=hlim, tc=tc, fl=fl)
    if mode.endswith("red"):
        if len(segs) == 1:
            outer.nh = nh
            return outer / Raw(bytes(inside))
        outer.nh = 43
        return outer / srh(segs[1:], len(segs) - 1, Raw(bytes(inside)), nh=nh)
    outer.nh = 43
    return outer / srh(segs, len(segs) - 1, Raw(bytes(inside)), nh=nh)


def frame_of(inner):
    """What l2encap puts in: the frame as it came, its padding cut off."""
    return ether(inner)


def plain_inputs():
    """IPv6 packets that a policy takes."""
    return [
        ("UDP", ip6(IN6) / udp()),
        ("traffic class, flow label 0", IPv6(src=SOURCE, dst=IN6, hlim=40) / udp()),
        ("every bit of traffic class, flow label", IPv6(src=SOURCE, dst=IN6, hlim=255, tc=0xFF, fl=0xFFFFF) / udp()),
        ("hop limit 2", ip6(IN6, hlim=2) / udp()),
        ("destination options", ip6(IN6, nh=60) / opts(17, udp())),
        ("a fragment", ip6(IN6, nh=44) / fragment(17, udp())),
        ("an SRH at segments left 0", routed(ip6(IN6), ["fc00:d::1", IN6], 0, udp())),
        ("an SRH at segments left 1", routed(ip6(IN6), [IN6, "fc00:d::1"], 1, udp())),
        ("no next header", ip6(IN6, nh=59)),
        ("a long packet", ip6(IN6) / udp(1300)),
    ]


HBH6 = ("hop-by-hop options", ip6(IN6, nh=0) / opts(17, udp()))
INPUTS4 = [
    ("UDP", ip4(IN4) / udp()), ("TTL 2", ip4(IN4, ttl=2) / udp()), ("TTL 1: the packet inside is not forwarded here", ip4(IN4, ttl=1) / udp()),
    ("TOS 0, don't fragment", IP(src=SOURCE4, dst=IN4, flags="DF", ttl=255, id=7) / udp()),
    ("options", ip4(IN4, options=[IPOption(b"\x94\x04\0\0")]) / udp()), ("a later fragment", ip4(IN4, frag=8, flags="MF", proto=17) / payload(64)),
]

for mode in ["encap", "encap.red", "inline", "l2encap", "l2encap.red"]:
    name = mode.replace(".", "-")
    for n in (1, 2, 3):
        segs = LIST[:n]
        inputs = plain_inputs() + ([HBH6] if mode != "inline" else [])
        listed = [(label, ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]) for label, p in inputs]
        short = ip6(IN6, nh=59)
        listed.append(("a short frame, padded", behind(ether(short), bytes(6)), [to_p1(wrapped(mode, segs, short, frame=frame_of(short)))]))
        Case(f"headend/{name}-{n}-ipv6", f"mode {mode}, {n} segment{'s'[:n > 1]}, IPv6.", policy(mode, segs), **io(listed))
        if mode != "inline":
            listed = [(label, ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]) for label, p in INPUTS4]
            short = ip4(IN4) / Raw(b"tiny")
            listed.append(("a short frame, padded", behind(ether(short), bytes(22)), [to_p1(wrapped(mode, segs, short, frame=frame_of(short)))]))
            Case(f"headend/{name}-{n}-ipv4", f"mode {mode}, {n} segment{'s'[:n > 1]}, IPv4.",
                 policy(mode, segs, dst="10.7.0.0/16"), **io(listed))
    # Lists of 1 to 31 segments, a route each.
    config, listed = list(BASE), []
    for n in range(1, 32):
        segs = [f"fc00:b::{n:x}:{i:x}" for i in range(1, n + 1)]
        config = policy(mode, segs, config, dst=f"2001:db8:7:{n:x}::/64")
        p = ip6(f"2001:db8:7:{n:x}::7") / udp()
        listed.append((f"{n} segments", ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]))
    Case(f"headend/{name}-lists", f"mode {mode}, lists of 1 to 31 segments.", config, **io(listed))
    if mode != "inline":
        config, listed = list(BASE), []
        for n in range(1, 32):
            segs = [f"fc00:b::{n:x}:{i:x}" for i in range(1, n + 1)]
            config = policy(mode, segs, config, dst=f"10.7.{n}.0/24")
            p = ip4(f"10.7.{n}.7") / udp()
            listed.append((f"{n} segments", ether(p), [to_p1(wrapped(mode, segs, p, frame=frame_of(p)))]))
        Case(f"headend/{name}-lists-ipv4", f"mode {mode}, lists of 1 to 31 segments, IPv4.", config, **io(listed))
    # Errors that the sender must hear.
    hop1 = [(f"hop limit {h}", ip6(IN6, hlim=h) / udp()) for h in (1, 0)]
    Case(f"headend/{name}-hop-limit", f"mode {mode} at hop limit 1 and 0: time exceeded.", policy(mode, LIST[:2]),
         [(label, ether(p)) for label, p in hop1], expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
         differs="it quotes the packet with the SRH inserted" if mode == "inline" else "it drops the packet silently")
    big = ip6(IN6) / udp(1452)
    growth = {"encap": 80, "encap.red": 64, "inline": 56, "l2encap": 94, "l2encap.red": 78}[mode]
    Case(f"headend/{name}-too-big", f"mode {mode}: too big with its new headers; the sender hears what would fit.",
         policy(mode, LIST[:2]), [("1,500 bytes", ether(big)), ("1 byte too many", ether(ip6(IN6) / udp(1453 - growth))),
                                  ("it fits", ether(ip6(IN6) / udp(1452 - growth)))],
         expect={0: [to_p0(too_big(big, 1500 - growth))], 1: [to_p0(too_big(ip6(IN6) / udp(1453 - growth), 1500 - growth))],
                 2: [to_p1(wrapped(mode, LIST[:2], ip6(IN6) / udp(1452 - growth), frame=frame_of(ip6(IN6) / udp(1452 - growth))))]},
         differs="the MTU that it tells is 1500, of the packet with the SRH inserted" if mode == "inline" else "it drops the packet silently")

Case("headend/inline-hop-by-hop", "mode inline inserts behind hop-by-hop options, which come first: RFC 8200 section 4.1.",
     policy("inline", LIST[:2]),
     **io([("hop-by-hop options", ether(HBH6[1]),
            [to_p1(IPv6(src=SOURCE, dst=LIST[0], hlim=39, tc=0xB8, fl=0x12345, nh=0) / opts(43, srh(LIST[:2] + [IN6], 2, Raw(bytes(HBH6[1])[48:]), nh=17)))])]),
     differs="it inserts before them")
big4 = ip4(IN4, flags="DF") / udp(1472)
for mode, growth in [("encap", 80), ("encap.red", 64), ("l2encap", 94)]:
    Case(f"headend/{mode.replace('.', '-')}-too-big-ipv4", f"mode {mode}: an IPv4 packet that must not be fragmented is too big.",
         policy(mode, LIST[:2], dst="10.7.0.0/16"), [("1,500 bytes, don't fragment", ether(big4))],
         expect={0: [to_p0(icmp4(big4, 3, 4, 1500 - growth))]}, differs="it drops the packet silently")

TWO = [("IPv6", ether(ip6(IN6) / udp())), ("IPv4", ether(ip4(IN4) / udp()))]


def both(mode, segs, **more):
    return policy(mode, segs, policy(mode, segs, dst="10.7.0.0/16", **more), **more)


def two(mode, segs, src=OWN):
    packets = [ip6(IN6) / udp(), ip4(IN4) / udp()]
    return {i: [to_p1(wrapped(mode, segs, p, src=src, frame=frame_of(p)))] for i, p in enumerate(packets)}


Case("headend/tunsrc", "The outer source is what ip sr tunsrc set says.",
     ["ip sr tunsrc set fc00:99::1"] + policy("encap", LIST[:2], policy("encap", LIST[:2], dst="10.7.0.0/16")), TWO, two("encap", LIST[:2], "fc00:99::1"))
Case("headend/tunsrc-l2", "The same with l2encap.",
     ["ip sr tunsrc set fc00:99::1"] + policy("l2encap", LIST[:2], policy("l2encap", LIST[:2], dst="10.7.0.0/16")), TWO, two("l2encap", LIST[:2], "fc00:99::1"))
Case("headend/source-of-device", "No tunsrc: the outer source is an address of the policy route's device.",
     policy("encap", LIST[:2], policy("encap", LIST[:2], dst="10.7.0.0/16", dev="p0"), dev="p0"), TWO, two("encap", LIST[:2], "2001:db8:1::1"))
Case("headend/gateway", "A policy route's gateway is not used: the packet goes where its first segment does.",
     policy("encap", LIST[:2], more="via 2001:db8:2::3 "), TWO[:1], {0: two("encap", LIST[:2])[0]})
Case("headend/source-longest-match", "No tunsrc: of the device's addresses the one that has the longest prefix in common with the first segment.",
     policy("encap", LIST[:2], BASE + ["ip -6 addr add fc00:b:9::1/64 dev p1 nodad"]), TWO[:1])
Case("headend/local-end", "The first segment is a local End.",
     policy("encap", [SID, NEXT], BASE + [f"ip -6 route add {SID}/128 encap seg6local action End count dev p0"]), TWO[:1])
Case("headend/local-end-red", "The first two segments are local, encap.red.",
     policy("encap.red", [SID, "fc00:a::2", NEXT], sid("End", sid("End", address="fc00:a::2"))), TWO[:1])
Case("headend/local-end-x", "The first segment is a local End.X.",
     policy("encap", [SID, NEXT], sid("End.X nh6 2001:db8:2::3")), TWO[:1])
Case("headend/local-end-dt6", "The only segment is a local End.DT6.",
     policy("encap", [SID], sid("End.DT6 table 100") + ["ip -6 route add 2001:db8:7::/48 via 2001:db8:2::3 dev p1 table 100"]),
     TWO[:1] + [("hop limit 2", ether(ip6(IN6, hlim=2) / udp()))])
Case("headend/local-headend", "The first segment has a policy of its own.",
     policy("encap", ["fc00:d::1"], policy("encap", LIST[:2], dst="fc00:d::/32")), TWO[:1])
Case("headend/after-end", "The next segment of End has a policy.",
     policy("encap", LIST[:2], sid("End"), dst="fc00:d::/32"), [("SRH of 2", ether(routed(ip6(SID), [SID, "fc00:d::1"], 1, INNER6)))])
Case("headend/after-dt6", "What End.DT6 takes out has a policy.",
     policy("encap", LIST[:2], sid("End.DT6 table main")), [("IPv6 inside", ether(ip6(SID, nh=41) / ip6(IN6) / udp()))])
Case("headend/after-dt4", "What End.DT46 takes out has a policy in the VRF.",
     sid("End.DT46 vrftable 100", VRF, "vrf100") + ["ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0",
      "ip route add 10.7.0.0/16 encap seg6 mode encap segs fc00:b::1 dev p0 table 100", "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p0 table 100"],
     [("IPv4 inside", ether(ip6(SID, nh=4) / ip4(IN4) / udp())), ("IPv6 inside", ether(ip6(SID, nh=41) / ip6(IN6) / udp()))])
Case("headend/vrf", "Policies of a VRF, whose first segment is looked up in the main table.",
     VRF + ["ip -6 route add fc00:b::/32 via 2001:db8:1::2 dev p0", "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p0 table 100",
            "ip route add 10.7.0.0/16 encap seg6 mode encap segs fc00:b::1 dev p0 table 100"],
     [("IPv6 by p1", "p1", Ether(dst=P1, src=N1) / ip6(IN6, src=TARGET) / udp()), ("IPv4 by p1", "p1", Ether(dst=P1, src=N1) / ip4(IN4, src=TARGET4) / udp()),
      ("IPv6 by p0, which is not in the VRF", ether(ip6(IN6) / udp()))])
Case("headend/no-route", "No route to the first segment: the sender hears of it.", policy("encap", ["fc00:dead::1"], policy("encap", ["fc00:dead::1"], dst="10.7.0.0/16")), TWO,
     expect={0: [to_p0(unreachable6(ip6(IN6) / udp(), 0))], 1: [to_p0(icmp4(ip4(IN4) / udp(), 3, 0))]},
     differs="it drops the packet; its error goes to the outer source, which is itself")
Case("headend/blackhole", "The first segment is in a blackhole.",
     policy("encap", ["fc00:dead::1"], policy("encap", ["fc00:dead::1"], BASE + ["ip -6 route add blackhole fc00:dead::/32"], dst="10.7.0.0/16")), TWO)
Case("headend/loop", "A policy whose first segment leads to itself.",
     policy("encap", ["fc00:d::1"], dst="fc00:d::/32"), [("IPv6", ether(ip6("fc00:d::2") / udp()))], expect={})
Case("headend/multipath", "The first segment's route is a next-hop group of one.",
     policy("encap", ["fc00:d::1"], policy("encap", ["fc00:d::1"], BASE + ["ip nexthop add id 1 via 2001:db8:2::3 dev p1",
      "ip nexthop add id 10 group 1", "ip -6 route add fc00:d::/32 nhid 10"], dst="10.7.0.0/16")), TWO)

# -------------------------------------------------------------------------------------------- bursts

for n in range(10):
    flow = [(f"packet {i}", ether(routed(ip6(SID), [SID, NEXT], 1, INNER6))) for i in range(n)]
    Case(f"bursts/end-{n}", f"{n} packets of a flow through End.", sid("End"), flow,
         expect={i: [to_p1(hops(routed(ip6(NEXT), [SID, NEXT], 0, INNER6)))] for i in range(n)})
    flow = [(f"packet {i}", ether(ip6(IN6) / udp(64 + i))) for i in range(n)]
    Case(f"bursts/encap-{n}", f"{n} packets of a flow through mode encap.", policy("encap", LIST[:2]), flow,
         expect={i: [to_p1(wrapped("encap", LIST[:2], ip6(IN6) / udp(64 + i)))] for i in range(n)})


# ---------------------------------------------------------------------------------------- IP forwarding

OPTIONS = [IPOption(b"\x94\x04\0\0")]        # router alert: copied into fragments
listed = [
    ("UDP", ip4() / udp()), ("TTL 2", ip4(ttl=2) / udp()), ("TTL 255, TOS 0xff", IP(src=SOURCE4, dst=TARGET4, ttl=255, tos=0xFF, id=1) / udp()),
    ("no payload", ip4(proto=59)), ("1,500 bytes", ip4() / udp(1472)), ("1,500 bytes, don't fragment", ip4(flags="DF") / udp(1472)),
    ("a first fragment", ip4(flags="MF") / udp()), ("a last fragment", ip4(frag=100, proto=17) / payload(40)),
    ("TCP checksum wrong", ip4(proto=6) / Raw(bytes(20))), ("record route is not asked of us: no-operation options", ip4(options=[IPOption(b"\x01"), IPOption(b"\x01"), IPOption(b"\x01"), IPOption(b"\x00")]) / udp()),
    ("an unknown option", ip4(options=[IPOption(b"\x9e\x04\0\0")]) / udp()), ("checksum that becomes 0", None),
]
for number in range(65536):                   # an identification with which the checksum is 0xff00 + … on the way
    probe = ip4(); probe.id = number
    if bytes(hops(probe / udp()))[10:12] in (b"\0\0", b"\xff\xff"):
        listed[-1] = (listed[-1][0], probe / udp())
        break
Case("ip/ipv4", "IPv4 forwarded.", BASE, **io([(label, ether(p), [to_p1(hops(p))]) for label, p in listed if p]))
short = ip4() / Raw(b"tiny")
Case("ip/ipv4-padding", "Bytes behind the total length are left behind.", BASE,
     **io([("a short frame, padded", behind(ether(short), bytes(22)), [to_p1(hops(short))]), ("a trailer", behind(ether(ip4() / udp()), b"trailer"), [to_p1(hops(ip4() / udp()))])]))
listed = [
    ("UDP", ip6() / udp()), ("hop limit 2", ip6(hlim=2) / udp()), ("every bit of traffic class, flow label", IPv6(src=SOURCE, dst=TARGET, hlim=255, tc=0xFF, fl=0xFFFFF) / udp()),
    ("no next header", ip6(nh=59)), ("1,500 bytes", ip6() / udp(1452)), ("hop-by-hop options", ip6(nh=0) / opts(17, udp())),
    ("destination options", ip6(nh=60) / opts(17, udp())), ("a fragment", ip6(nh=44) / fragment(17, udp())),
    ("an SRH for another router", routed(ip6(), [TARGET, "fc00:d::1"], 1, udp())), ("a malformed SRH for another router", routed(ip6(), [TARGET, "fc00:d::1"], 1, udp(), last=9)),
    ("an unknown next header", ip6(nh=253) / payload(8)),
]
Case("ip/ipv6", "IPv6 forwarded.", BASE, **io([(label, ether(p), [to_p1(hops(p))]) for label, p in listed]))
short = ip6(nh=59)
Case("ip/ipv6-padding", "Bytes behind the payload length are left behind.", BASE,
     **io([("a short frame, padded", behind(ether(short), bytes(6)), [to_p1(hops(short))]), ("a trailer", behind(ether(ip6() / udp()), b"trailer"), [to_p1(hops(ip6() / udp()))])]))
Case("ip/ipv6-router-alert", "A hop-by-hop router alert that nobody listens to is forwarded.", BASE,
     **io([("router alert, RSVP", ether(ip6(nh=0) / Raw(bytes([17, 0, 5, 2, 0, 1, 1, 0])) / udp()), [to_p1(hops(ip6(nh=0) / Raw(bytes([17, 0, 5, 2, 0, 1, 1, 0])) / udp()))])]))
Case("ip/ipv6-hop-by-hop-unknown", "Unknown hop-by-hop options: skip, discard, discard and tell, tell unless multicast.", BASE,
     [(f"option type {kind:#x}", ether(ip6(nh=0) / Raw(bytes([17, 0, kind, 4, 0, 0, 0, 0])) / udp())) for kind in (0x1E, 0x5E, 0x9E, 0xDE)])

# Errors.
packets = [("UDP", ip4(ttl=1) / udp()), ("TTL 0", ip4(ttl=0) / udp()), ("a long packet", ip4(ttl=1) / udp(1000)), ("TOS 0", IP(src=SOURCE4, dst=TARGET4, ttl=1, id=5) / udp()),
           ("a first fragment", ip4(ttl=1, flags="MF") / udp()), ("an echo request", ip4(ttl=1) / ICMP(id=7, seq=1) / payload(8))]
Case("ip/ipv4-ttl", "TTL 1 and 0: time exceeded, 576 bytes at most.", BASE, [(label, ether(p)) for label, p in packets],
     expect={i: [to_p0(icmp4(p, 11, 0))] for i, (_, p) in enumerate(packets)})
Case("ip/ipv4-ttl-silent", "TTL 1 of what no error may be sent about: a later fragment, an ICMP error.", BASE,
     [("a later fragment", ether(ip4(ttl=1, frag=8, proto=17) / payload(40))), ("an ICMP error", ether(ip4(ttl=1) / ICMP(type=3, code=1) / Raw(bytes(INNER4)[:28]))),
      ("from 0.0.0.0", ether(ip4(src="0.0.0.0", ttl=1) / udp())), ("to the broadcast MAC", ether(ip4(ttl=1) / udp(), dst="ff:ff:ff:ff:ff:ff"))], expect={})
packets = [("UDP", ip6(hlim=1) / udp()), ("hop limit 0", ip6(hlim=0) / udp()), ("a long packet", ip6(hlim=1) / udp(1400)), ("an echo request", ip6(hlim=1) / ICMPv6EchoRequest(id=7, seq=1, data=b"x")),
           ("a later fragment", ip6(hlim=1, nh=44) / fragment(17, payload(40), offset=8))]
Case("ip/ipv6-hop-limit", "Hop limit 1 and 0: time exceeded, 1,280 bytes at most.", BASE, [(label, ether(p)) for label, p in packets],
     expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(packets)})
Case("ip/ipv6-hop-limit-silent", "Hop limit 1 of what no error may be sent about: an ICMPv6 error.", BASE,
     [("an ICMPv6 error", ether(ip6(hlim=1) / ICMPv6DestUnreach() / Raw(bytes(INNER6)[:60]))), ("from ::", ether(ip6(src="::", hlim=1) / udp())),
      ("to the broadcast MAC", ether(ip6(hlim=1) / udp(), dst="33:33:00:00:00:01"))], expect={})
TYPES = BASE + ["ip route add blackhole 203.0.114.0/24", "ip route add unreachable 203.0.115.0/24", "ip route add prohibit 203.0.116.0/24", "ip route add throw 203.0.117.0/24",
                "ip -6 route add blackhole 2001:db8:14::/48", "ip -6 route add unreachable 2001:db8:15::/48", "ip -6 route add prohibit 2001:db8:16::/48", "ip -6 route add throw 2001:db8:17::/48"]
packets = [ip4(f"203.0.{n}.1") / udp() for n in (113, 114, 115, 116, 117, 118)]
packets[0].dst = "198.18.0.1"
Case("ip/ipv4-types", "Route types: none, blackhole, unreachable, prohibit, throw, none.", TYPES,
     [(l, ether(p)) for l, p in zip(["no route", "blackhole", "unreachable", "prohibit", "throw", "no route either"], packets)])
packets = [ip6(f"2001:db8:{n}::1") / udp() for n in (99, 14, 15, 16, 17)]
Case("ip/ipv6-types", "Route types: none, blackhole, unreachable, prohibit, throw.", TYPES,
     [(l, ether(p)) for l, p in zip(["no route", "blackhole", "unreachable", "prohibit", "throw"], packets)])
Case("ip/order", "What is looked at first: no route, TTL 1, too big, in pairs.", TYPES + ["ip link set p1 mtu 1280"],
     [("TTL 1, no route", ether(ip4("198.18.0.1", ttl=1) / udp())), ("TTL 1, prohibit", ether(ip4("203.0.116.1", ttl=1) / udp())), ("TTL 1, too big", ether(ip4(ttl=1, flags="DF") / udp(1300))),
      ("hop limit 1, no route", ether(ip6("2001:db8:99::1", hlim=1) / udp())), ("hop limit 1, prohibit", ether(ip6("2001:db8:16::1", hlim=1) / udp())), ("hop limit 1, too big", ether(ip6(hlim=1) / udp(1300))),
      ("hop limit 1, blackhole", ether(ip6("2001:db8:14::1", hlim=1) / udp()))])

SMALL = BASE + ["ip link set p1 mtu 1280"]
big6, big4 = ip6() / udp(1300), ip4(flags="DF") / udp(1300)
edge6, edge4 = ip6() / udp(1232), ip4(flags="DF") / udp(1252)
Case("ip/ipv6-too-big", "Longer than the MTU: packet too big.", SMALL, **io([
    ("1,348 bytes", ether(big6), [to_p0(too_big(big6, 1280))]), ("1,280 bytes: it fits", ether(edge6), [to_p1(hops(edge6))]),
    ("1,281 bytes", ether(ip6() / udp(1233)), [to_p0(too_big(ip6() / udp(1233), 1280))])]))
Case("ip/ipv4-too-big", "Longer than the MTU, don't fragment: fragmentation needed.", SMALL, **io([
    ("1,328 bytes", ether(big4), [to_p0(icmp4(big4, 3, 4, 1280))]), ("1,280 bytes: it fits", ether(edge4), [to_p1(hops(edge4))]),
    ("1,281 bytes", ether(ip4(flags="DF") / udp(1253)), [to_p0(icmp4(ip4(flags="DF") / udp(1253), 3, 4, 1280))])]))


def fragments(packet, mtu):
    """RFC 791: the fragments of an IPv4 packet. Options with the copied flag are in each of them; the
    others become no-operations in Linux, so that every header has the same length."""
    whole = bytes(packet)
    size = 4 * (whole[0] & 15)
    options, body = whole[20:size], whole[size:]
    later, at = b"", 0
    while at < len(options):
        if options[at] <= 1:
            n = 1
        else:
            n = options[at + 1]
        later += options[at:at + n] if options[at] & 0x80 or options[at] <= 1 else b"\x01" * n
        at += n
    step, out, offset = (mtu - size) & ~7, [], 0
    while offset < len(body):
        part = body[offset:offset + step]
        more = offset + len(part) < len(body) or bool(packet.flags & 1)
        header = IP(bytes(whole[:20] + (later if offset else options))[:size])
        header.len, header.frag, header.flags = size + len(part), packet.frag + offset // 8, int(more)
        header.ttl -= 1
        del header.chksum
        out.append(to_p1(header / Raw(part)))
        offset += len(part)
    return out


MTU600 = BASE + ["ip link set p1 mtu 576"]
packets = [("3 fragments", ip4() / udp(1400)), ("an exact multiple", ip4() / Raw(bytes(552 * 2))), ("1 byte too many", ip4() / udp(549)), ("it fits", ip4() / udp(548)),
           ("a first fragment, in fragments", ip4(flags="MF") / udp(1352)), ("a middle fragment, in fragments", ip4(flags="MF", frag=170, proto=17) / payload(1360)),
           ("a last fragment, in fragments", ip4(frag=340, proto=17) / payload(1001)), ("an option that is copied", ip4(options=OPTIONS) / udp(1000)),
           ("an option that is not copied", ip4(options=[IPOption(b"\x1e\x04\x05\x06"), IPOption(b"\x94\x04\0\0")]) / udp(1000))]
Case("ip/ipv4-fragments", "Longer than the MTU: fragments. RFC 791.", MTU600,
     **io([(label, ether(p), fragments(p, 576) if len(bytes(p)) > 576 else [to_p1(hops(p))]) for label, p in packets]))

# What is not forwarded.
Case("ip/ipv4-martians", "Sources and destinations that no router forwards.", BASE + ["ip route add default via 198.51.100.2"],
     [(f"from {a}", ether(ip4(src=a) / udp())) for a in ("127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.1", "240.0.0.1", "192.0.2.255")]
     + [(f"to {a}", ether(ip4(a) / udp())) for a in ("127.0.0.1", "0.0.0.0", "224.0.0.5", "239.1.2.3", "255.255.255.255", "240.0.0.1", "198.51.100.255", "198.51.100.0")])
Case("ip/ipv6-martians", "Sources and destinations that no router forwards.", BASE + ["ip -6 route add default via 2001:db8:2::2"],
     [(f"from {a}", ether(ip6(src=a) / udp())) for a in ("::1", "::", "ff02::1", "fe80::1234", "2001:db8:1::1", "2001:db8:2::1", "::ffff:1.2.3.4", "fec0::1")]
     + [(f"to {a}", ether(ip6(a) / udp())) for a in ("::1", "ff0e::1234", "ff02::1234", "::ffff:1.2.3.4", "::1.2.3.4", "fec0::1")])
Case("ip/ipv6-unspecified", "The unspecified address is no destination: RFC 4291 section 2.5.2.", BASE + ["ip -6 route add default via 2001:db8:2::2"],
     [("to ::", ether(ip6("::") / udp()))], expect={}, differs="it forwards to ::, where there is a default route")
Case("ip/ipv4-link-local", "Link-local addresses are not forwarded: RFC 3927 section 2.6.2 and 7.", BASE + ["ip route add default via 198.51.100.2"],
     [("to 169.254.1.1", ether(ip4("169.254.1.1") / udp())), ("from 169.254.1.1", ether(ip4(src="169.254.1.1") / udp()))], expect={},
     differs="it forwards link-local IPv4 addresses")
Case("ip/ipv4-malformed", "IPv4 headers that are wrong are dropped.", BASE, [("checksum", ether(ip4(chksum=0x1234) / udp()))] + [
    (label, Ether(dst=P0, src=N0, type=0x0800) / Raw(b)) for label, b in [
        ("version 5", b"\x55" + bytes(ip4() / udp())[1:]), ("header length 4", bytes(ip4(ihl=4) / udp())), ("header longer than the packet", bytes(ip4(ihl=15) / Raw(b"123"))),
        ("total length beyond the frame", bytes(ip4(len=500) / udp())), ("total length shorter than the header", bytes(ip4(len=19) / udp())),
        ("the header cut", bytes(ip4())[:15]), ("nothing at all", b""), ("an option longer than the header", bytes(ip4(options=[IPOption(b"\x94\x09\0\0")]) / udp())),
        ("an option of length 0", bytes(ip4(options=[IPOption(b"\x94\x00\0\0")]) / udp()))]])
Case("ip/ipv6-malformed", "IPv6 headers that are wrong are dropped.", BASE,
     [(label, Ether(dst=P0, src=N0, type=0x86DD) / Raw(b)) for label, b in [
         ("version 5", b"\x5b" + bytes(ip6() / udp())[1:]), ("payload length beyond the frame", bytes(ip6(plen=500) / udp())), ("the header cut", bytes(ip6())[:30]), ("nothing at all", b""),
         ("hop-by-hop options longer than the packet", bytes(ip6(nh=0) / Raw(bytes([17, 40, 1, 4, 0, 0, 0, 0])))),
         ("hop-by-hop option longer than its header", bytes(ip6(nh=0) / Raw(bytes([17, 0, 1, 44, 0, 0, 0, 0])) / udp()))]])
Case("ip/link-layer", "Frames that are not for this router.", BASE,
     [("another station's MAC", ether(ip6() / udp(), dst="02:00:00:00:77:77")), ("broadcast, IPv4", ether(ip4() / udp(), dst="ff:ff:ff:ff:ff:ff")), ("multicast, IPv6", ether(ip6() / udp(), dst="33:33:00:00:00:01")),
      ("an unknown EtherType", Ether(dst=P0, src=N0, type=0x88B5) / payload(50)), ("a VLAN that is not here", Ether(dst=P0, src=N0) / Dot1Q(vlan=5) / ip6() / udp()),
      ("EtherType IPv4, IPv6 inside", Ether(dst=P0, src=N0, type=0x0800) / Raw(bytes(ip6() / udp()))), ("EtherType IPv6, IPv4 inside", Ether(dst=P0, src=N0, type=0x86DD) / Raw(bytes(ip4() / udp()))),
      ("VLAN 0: a priority tag", Ether(dst=P0, src=N0) / Dot1Q(vlan=0, prio=5) / ip6() / udp())])
Case("ip/both-ways", "Forwarded from p1 to p0.", BASE, [("IPv6", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET) / udp()), ("IPv4", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, src=TARGET4) / udp())],
     expect={0: [to_p0(hops(ip6(SOURCE, src=TARGET) / udp()))], 1: [to_p0(hops(ip4(SOURCE4, src=TARGET4) / udp()))]})
Case("ip/back-out", "Out by the port it came in by: no redirect for a host behind the neighbour.", BASE + ["ip -6 route add 2001:db8:9::/48 via 2001:db8:1::2 dev p0", "ip route add 203.0.119.0/24 via 192.0.2.2"],
     [("IPv6", ether(ip6("2001:db8:9::1") / udp())), ("IPv4", ether(ip4("203.0.119.1") / udp()))])

# The router's own addresses.
ECHO4 = [("p0's address", "192.0.2.1"), ("p1's address", "198.51.100.1")]
Case("ip/ipv4-echo", "Echo requests to the router's own addresses, with and without data, TOS kept.", BASE,
     **io([(label, ether(ip4(a) / ICMP(id=7, seq=n) / payload(56)), [to_p0(IP(src=a, dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=n) / payload(56))]) for n, (label, a) in enumerate(ECHO4)]
          + [("no data", ether(ip4("192.0.2.1") / ICMP(id=7, seq=9)), [to_p0(IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=9))]),
             ("odd length", ether(ip4("192.0.2.1") / ICMP(id=7, seq=9) / payload(33)), [to_p0(IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=9) / payload(33))]),
             ("TTL 1", ether(ip4("192.0.2.1", ttl=1) / ICMP(id=7, seq=9)), [to_p0(IP(src="192.0.2.1", dst=SOURCE4, ttl=64, tos=0xB8, id=0) / ICMP(type=0, id=7, seq=9))]),
             ("checksum wrong", ether(ip4("192.0.2.1") / ICMP(id=7, seq=9, chksum=1)), [])]))
Case("ip/ipv6-echo", "Echo requests to the router's own addresses.", BASE,
     [("p0's address", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=1, data=bytes(56)))), ("p1's address", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=7, seq=2, data=bytes(56)))),
      ("no data", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=3))), ("hop limit 1", ether(ip6("2001:db8:1::1", hlim=1) / ICMPv6EchoRequest(id=7, seq=4))),
      ("checksum wrong", ether(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=5, cksum=1))), ("destination options", ether(ip6("2001:db8:1::1", nh=60) / Raw(bytes([58, 0, 1, 4, 0, 0, 0, 0])) / Raw(bytes(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=7, seq=6))[40:])))])
Case("ip/own-ports", "UDP and TCP to the router's own addresses, where nothing listens.", BASE,
     [("UDP, IPv4", ether(ip4("192.0.2.1") / udp())), ("UDP, IPv6", ether(ip6("2001:db8:1::1") / udp())), ("an unknown protocol, IPv4", ether(ip4("192.0.2.1", proto=253) / payload(8))), ("an unknown next header, IPv6", ether(ip6("2001:db8:1::1", nh=253) / payload(8)))])

# VRFs, rules, next-hop objects.
Case("ip/vrf", "Two tables with the same prefixes: a packet stays in the VRF of its port.",
     VRF + ["ip -6 route add 2001:db8:8::/48 via 2001:db8:2::2 dev p1 table 100", "ip -6 route add 2001:db8:9::/48 via 2001:db8:1::2 dev p0", "ip route add 203.0.120.0/24 via 198.51.100.2 dev p1 table 100"],
     [("IPv6 by p0 to a prefix of the VRF", ether(ip6("2001:db8:8::1") / udp())), ("IPv4 by p0 to a prefix of the VRF", ether(ip4("203.0.120.1") / udp())),
      ("IPv6 by p1 to a prefix of the VRF", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:8::1", src=TARGET) / udp()), ("IPv6 by p1 to a prefix of main", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:9::1", src=TARGET) / udp()),
      ("echo to the VRF's address", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:2::1", src=TARGET) / ICMPv6EchoRequest(id=1)), ("echo to the VRF's address from main", ether(ip6("2001:db8:2::1") / ICMPv6EchoRequest(id=3)))])
Case("ip/vrf-unreachable", "A VRF with an unreachable default does not fall through to main.",
     VRF + ["ip -6 route add unreachable default metric 4278198272 table 100", "ip route add unreachable default metric 4278198272 table 100"],
     [("IPv6", "p1", Ether(dst=P1, src=N1) / ip6(SOURCE, src=TARGET) / udp()), ("IPv4", "p1", Ether(dst=P1, src=N1) / ip4(SOURCE4, src=TARGET4) / udp())])
RULES = BASE + ["ip -6 route add default via 2001:db8:2::3 dev p1 table 200", "ip route add default via 198.51.100.3 dev p1 table 200"]
for name, rule in [("from", "from 2001:db8:5::/64"), ("not-from", "not from 2001:db8:7::/64"), ("iif", "iif p0"), ("to", "to 2001:db8:6::/64"), ("tos", "tos 0x10"), ("ipproto", "ipproto udp"), ("dport", "ipproto udp dport 2222"), ("dport-range", "ipproto udp dport 2000-3000"), ("sport", "ipproto udp sport 1000-1200")]:
    rules = [f"ip -6 rule add {rule} table 200 pref 100", f"ip rule add {rule.replace('2001:db8:5::/64', '203.0.113.0/29').replace('2001:db8:7::/64', '203.0.120.0/24').replace('2001:db8:6::/64', '203.0.113.128/25')} table 200 pref 100"]
    Case(f"ip/rule-{name}", f"A policy rule: {rule}.", RULES + rules,
         [("IPv6", ether(ip6() / udp())), ("IPv4", ether(ip4() / udp())), ("IPv6, other source", ether(ip6(src="2001:db8:7::1") / udp())), ("IPv4, other source", ether(ip4(src="203.0.120.1") / udp())),
          ("IPv6, other destination", ether(ip6("2001:db8:8::1") / udp())), ("IPv6, other ports", ether(ip6() / UDP(sport=5, dport=6) / payload(8))), ("IPv4, other ports", ether(ip4() / UDP(sport=5, dport=6) / payload(8))),
          ("IPv6, traffic class 0x10", ether(IPv6(src=SOURCE, dst=TARGET, hlim=40, tc=0x10) / udp())), ("IPv4, TOS 0x10", ether(IP(src=SOURCE4, dst=TARGET4, ttl=40, tos=0x10) / udp())),
          ("IPv6, traffic class 0x12", ether(IPv6(src=SOURCE, dst=TARGET, hlim=40, tc=0x12) / udp())), ("IPv6 by p1", "p1", Ether(dst=P1, src=N1) / ip6(TARGET, src="2001:db8:9::1") / udp())])
Case("ip/rule-actions", "Policy rules that end the look-up: blackhole, unreachable, prohibit; goto.",
     RULES + ["ip -6 rule add to 2001:db8:14::/48 blackhole pref 100", "ip -6 rule add to 2001:db8:15::/48 unreachable pref 101", "ip -6 rule add to 2001:db8:16::/48 prohibit pref 102",
              "ip -6 rule add to 2001:db8:6::/48 goto 32766 pref 103", "ip -6 rule add table 200 pref 104", "ip rule add to 203.0.114.0/24 blackhole pref 100", "ip rule add to 203.0.115.0/24 unreachable pref 101", "ip rule add to 203.0.116.0/24 prohibit pref 102"],
     [("IPv6 blackhole", ether(ip6("2001:db8:14::1") / udp())), ("IPv6 unreachable", ether(ip6("2001:db8:15::1") / udp())), ("IPv6 prohibit", ether(ip6("2001:db8:16::1") / udp())), ("IPv6 goto main", ether(ip6() / udp())), ("IPv6 table 200", ether(ip6("2001:db8:77::1") / udp())),
      ("IPv4 blackhole", ether(ip4("203.0.114.1") / udp())), ("IPv4 unreachable", ether(ip4("203.0.115.1") / udp())), ("IPv4 prohibit", ether(ip4("203.0.116.1") / udp()))])
Case("ip/rule-suppress", "suppress_prefixlength 0: the default route of the table does not count.", RULES + ["ip -6 rule add table main suppress_prefixlength 0 pref 100", "ip -6 rule add table 200 pref 101", "ip -6 route add default via 2001:db8:2::2 dev p1"],
     [("a specific route", ether(ip6() / udp())), ("only the default", ether(ip6("2001:db8:77::1") / udp()))])
Case("ip/throw", "throw goes on with the next rule.", RULES + ["ip -6 rule add table 201 pref 100", "ip -6 route add throw 2001:db8:6::/48 table 201", "ip -6 route add 2001:db8:66::/48 via 2001:db8:2::3 dev p1 table 201", "ip rule add table 201 pref 100", "ip route add throw 203.0.113.128/25 table 201", "ip route add default via 198.51.100.3 table 201"],
     [("IPv6 throw", ether(ip6() / udp())), ("IPv6 in table 201", ether(ip6("2001:db8:66::1") / udp())), ("IPv4 throw", ether(ip4() / udp())), ("IPv4 in table 201", ether(ip4("203.0.120.1") / udp()))])
Case("ip/nexthop-objects", "Routes with next-hop objects: one, a group of one, a blackhole, IPv4 by an IPv6 next hop.",
     BASE + ["ip nexthop add id 1 via 2001:db8:2::3 dev p1", "ip nexthop add id 2 via 198.51.100.3 dev p1", "ip -6 nexthop add id 3 blackhole", "ip nexthop add id 4 blackhole", "ip nexthop add id 10 group 1", "ip nexthop add id 11 group 2",
             "ip -6 route add 2001:db8:20::/48 nhid 1", "ip -6 route add 2001:db8:21::/48 nhid 10", "ip -6 route add 2001:db8:22::/48 nhid 3", "ip route add 203.0.120.0/24 nhid 2", "ip route add 203.0.121.0/24 nhid 11", "ip route add 203.0.122.0/24 nhid 4", "ip route add 203.0.123.0/24 nhid 1"],
     [(f"IPv6, route {n}", ether(ip6(f"2001:db8:{n}::1") / udp())) for n in (20, 21, 22)] + [(f"IPv4, route {n}", ether(ip4(f"203.0.{n}.1") / udp())) for n in (120, 121, 122, 123)])
Case("ip/longest-match", "The longest prefix wins, whatever the order.",
     BASE + ["ip -6 route add default via 2001:db8:2::2 dev p1", "ip -6 route add 2001:db8:6:8000::/49 via 2001:db8:2::3 dev p1", "ip -6 route add 2001:db8:6::77/128 via 2001:db8:1::2 dev p0", "ip route add default via 198.51.100.2", "ip route add 203.0.113.192/26 via 198.51.100.3", "ip route add 203.0.113.200/32 via 192.0.2.2"],
     [(a, ether(ip6(a) / udp())) for a in ("2001:db8:77::1", "2001:db8:6:7fff::1", "2001:db8:6:8000::1", "2001:db8:6::77", "2001:db8:6::78")] + [(a, ether(ip4(a) / udp())) for a in ("8.8.8.8", "203.0.113.191", "203.0.113.192", "203.0.113.200", "203.0.113.201")])
Case("ip/metrics", "Of two routes to one prefix the lower metric wins.", BASE + ["ip -6 route add 2001:db8:20::/48 via 2001:db8:2::2 dev p1 metric 200", "ip -6 route add 2001:db8:20::/48 via 2001:db8:2::3 dev p1 metric 100", "ip route add 203.0.120.0/24 via 198.51.100.3 metric 100", "ip route add 203.0.120.0/24 via 198.51.100.2 metric 200"],
     [("IPv6", ether(ip6("2001:db8:20::1") / udp())), ("IPv4", ether(ip4("203.0.120.1") / udp()))])
route_mtu6 = ip6("2001:db8:20::1") / udp(1300)
Case("ip/ipv6-route-mtu", "An MTU on the route.", BASE + ["ip -6 route add 2001:db8:20::/48 via 2001:db8:2::2 dev p1 mtu 1300"], [("1,348 bytes", ether(route_mtu6))],
     expect={0: [to_p0(too_big(route_mtu6, 1300))]}, differs="it quotes the packet with its hop limit already lowered")
Case("ip/ipv4-route-mtu", "An MTU on the route.", BASE + ["ip route add 203.0.120.0/24 via 198.51.100.2 mtu 1300", "ip route add 203.0.121.0/24 via 198.51.100.2 mtu lock 1300"],
     [("1,328 bytes, don't fragment", ether(ip4("203.0.120.1", flags="DF") / udp(1300))), ("locked", ether(ip4("203.0.121.1", flags="DF") / udp(1300)))])
Case("ip/srh-for-router", "An SRH for one of the router's own addresses, which is no SID: not taken, seg6_enabled being 0.", BASE,
     [("segments left 1", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp()))), ("segments left 0, UDP", ether(routed(ip6("2001:db8:1::1"), [NEXT, "2001:db8:1::1"], 0, udp()))),
      ("segments left 0, echo request", ether(routed(ip6("2001:db8:1::1"), [NEXT, "2001:db8:1::1"], 0, Raw(bytes(ip6("2001:db8:1::1") / ICMPv6EchoRequest(id=9))[40:]), nh=58))), ("hop limit 1", ether(routed(ip6("2001:db8:1::1", hlim=1), ["2001:db8:1::1", NEXT], 1, udp()))),
      ("malformed", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp(), last=9))), ("routing type 0", ether(routed(ip6("2001:db8:1::1"), ["2001:db8:1::1", NEXT], 1, udp(), kind=0)))])
# Errors from inside SRv6.
for name, action in [("end", "End"), ("end-x", "End.X nh6 2001:db8:2::3")]:
    big = routed(ip6(SID), [SID, NEXT], 1, ip6() / udp(1200))
    Case(f"errors/{name}-too-big", f"{action.split()[0]} towards a link with an MTU of 1,280.", sid(action, SMALL), [("1,328 bytes", ether(big))],
         expect={0: [to_p0(too_big(routed(ip6(NEXT), [SID, NEXT], 0, ip6() / udp(1200)), 1280))]})
for name, action, base, dev, dst, kinds in DX:
    for kind in sorted(kinds - {"ether"}):
        inner = ip6() / udp(1300) if kind == "6" else ip4(flags="DF") / udp(1300)
        Case(f"errors/{name}-too-big-{INNER[kind][0]}", f"{action.split()[0]}: the inner packet does not fit a link with an MTU of 1,280.", sid(action, base + ["ip link set p1 mtu 1280"], dev),
             [("inner packet too big", ether(ip6(SID, nh=INNER[kind][0]) / inner)), ("the same behind an SRH", ether(routed(ip6(SID), [NEXT, SID], 0, inner)))])
