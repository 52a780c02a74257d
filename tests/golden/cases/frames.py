"""What the cases are made of: addresses, configurations, packets, and the ICMP errors about them."""

import struct

from ipaddress import ip_address

from scapy.all import ICMP, IP, UDP, Dot1AD, Dot1Q, Ether, IPOption, Raw
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
)

P0, P1 = "02:00:00:00:00:01", "02:00:00:00:00:02"  # the router's ports
N0, N1, N1B = "02:00:00:00:01:01", "02:00:00:00:01:02", "02:00:00:00:01:03"  # their neighbours
SOURCE = "2001:db8:5::5"  # a host behind N0
TARGET = "2001:db8:6::6"  # a host behind N1
SOURCE4, TARGET4 = "203.0.113.5", "203.0.113.133"
NEXT, LAST = "fc00:b::1", "fc00:c::1"  # SIDs of other routers, behind N1

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

# The way out takes packets of at most 1,280 bytes.
SMALL = BASE + ["ip link set p1 mtu 1280"]

# A tenant: p1 is in a VRF, p0 stays in the main table.
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
    Linux does instead. `counters`: "errors" if every input should count as one, though Linux does not.
    `remembers`: what becomes of an input depends on those before it. `links`: whether what tunnels have
    counted is of use; Linux counts what it tells senders the first time only. `shows`: lines of `tc` whose output
    after the last packet is part of the case. `neighbours`: whether ARP and neighbour discovery are part of the output.
    `newer`: whether the configuration needs the tools that `scripts/newer-tools.sh` unpacks."""

    def __init__(
        self,
        name,
        doc,
        config,
        frames,
        expect=None,
        differs=None,
        counters=None,
        remembers=False,
        links=True,
        shows=(),
        neighbours=False,
        newer=False,
    ):
        self.remembers, self.links, self.shows, self.neighbours, self.newer = remembers, links, list(shows), neighbours, newer
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
        if self.remembers:
            lines += ["# An input depends on those before it."]
        if self.neighbours:
            lines += ["# ARP and neighbour discovery are part of the output."]
        if self.newer:
            lines += ["# The tools are those of scripts/newer-tools.sh."]
        lines += [f"# show: {line}" for line in self.shows]
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
    fixed = struct.pack(
        "!BBBBBBH",
        nh,
        len(wire) // 8 if hdrlen is None else hdrlen,
        kind,
        left,
        len(segments) - 1 if last is None else last,
        flags,
        tag,
    )
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
    return (
        IP(src=src, dst=dst, ttl=64, id=0, tos=(quoted.tos & 0x1E) | 0xC0)
        / ICMP(type=kind, code=code, nexthopmtu=mtu)
        / Raw(bytes(quoted)[:548])
    )


def unreachable6(quoted, code, src="2001:db8:1::1"):
    return IPv6(src=src, dst=SOURCE, hlim=64) / ICMPv6DestUnreach(code=code) / Raw(bytes(quoted)[:1232])


# Routes that lead nowhere, by what they are.
NOWHERE = {
    "blackhole": "2001:db8:b0::1",
    "unreachable": "2001:db8:b1::1",
    "prohibit": "2001:db8:b2::1",
    "throw": "2001:db8:b3::1",
    "no route": "2001:db8:99::1",
}
NOWHERE_ROUTES = [f"ip -6 route add {kind} {to[:-1]}/48" for kind, to in NOWHERE.items() if kind != "no route"]


INNER6 = ip6() / udp()
INNER4 = ip4() / udp()
FRAME = Ether(dst="02:00:00:00:09:09", src="02:00:00:00:09:08") / INNER6
SID = "fc00:a::1"


def sid(action, base=BASE, dev="p0", address=SID):
    return base + [f"ip -6 route add {address}/128 encap seg6local action {action} count dev {dev}"]


def io(listed):
    """Frames and expectation of (label, in, out) triples; no expectation at all if one out is None."""
    frames = [(label, before) for label, before, _ in listed]
    if any(out is None for _, _, out in listed):
        return dict(frames=frames)
    return dict(frames=frames, expect={i: out for i, (_, _, out) in enumerate(listed)})
