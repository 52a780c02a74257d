"""The actions csum and pedit: bytes that are changed, and the checksums that follow."""

from scapy.all import SCTP, TCP, Padding, SCTPChunkData
from scapy.contrib.igmp import IGMP
from scapy.contrib.mpls import MPLS
from scapy.layers.inet6 import IPv6ExtHdrFragment

from .frames import *
from .qos import HOOKS, filters, tcp

BAD = 0xDEAD
MUNGED = Ether(dst=P0, src=N0)


def udplite(length, body=20):
    """A datagram of UDP-Lite that says so much is covered."""
    return Raw(struct.pack("!4H", 1111, 2222, length, BAD) + bytes(range(body)))


def tagged(inner, *tags):
    packet = Ether(dst=P0, src=N0)
    for tag in tags:
        packet /= Dot1Q(vlan=tag)
    return packet / inner


WRONG = [
    ("IPv4 header", ip4(chksum=BAD) / UDP(sport=1, dport=2, chksum=BAD) / payload(20)),
    ("options", ip4(chksum=BAD, options=[IPOption(b"\x94\x04\0\0")]) / UDP(sport=1, dport=2, chksum=BAD) / payload(21)),
    ("TCP", ip4(chksum=BAD) / TCP(sport=1, dport=2, chksum=BAD) / payload(21)),
    ("TCP too short", ip4(proto=6) / payload(19)),
    ("UDP without one", ip4() / UDP(sport=1, dport=2, chksum=0) / payload(20)),
    ("UDP of another length", ip4() / UDP(sport=1, dport=2, len=20, chksum=BAD) / payload(20)),
    ("ICMP", ip4(proto=1) / ICMP(chksum=BAD) / payload(13)),
    ("IGMP", ip4(proto=2, chksum=BAD) / IGMP(type=0x16, gaddr="224.1.2.3", chksum=BAD)),
    ("UDP-Lite, all", ip4(proto=136) / udplite(0)),
    ("UDP-Lite, a part", ip4(proto=136) / udplite(12)),
    ("UDP-Lite, too little", ip4(proto=136) / udplite(7)),
    ("UDP-Lite, too much", ip4(proto=136) / udplite(29)),
    ("SCTP", ip4(proto=132) / SCTP(sport=1, dport=2, chksum=BAD) / SCTPChunkData(data=b"12345678")),
    ("a first fragment", ip4(flags="MF", chksum=BAD) / UDP(sport=1, dport=2, len=100, chksum=BAD) / payload(24)),
    ("a last fragment", ip4(frag=3, proto=17, chksum=BAD) / payload(24)),
    ("longer than it is", ip4(len=100) / UDP(sport=1, dport=2, chksum=BAD) / payload(20)),
    ("padding", ip4() / UDP(sport=1, dport=2, chksum=BAD) / payload(5) / Padding(b"\xff" * 20)),
    ("IPv6 UDP", ip6() / UDP(sport=1, dport=2, chksum=BAD) / payload(20)),
    ("IPv6 UDP without one", ip6() / UDP(sport=1, dport=2, chksum=0) / payload(20)),
    ("IPv6 TCP", ip6() / TCP(sport=1, dport=2, chksum=BAD) / payload(21)),
    ("ICMPv6", ip6() / ICMPv6EchoRequest(cksum=BAD, data=b"123")),
    ("IPv6 options", ip6(nh=0) / opts(17, UDP(sport=1, dport=2, chksum=BAD) / payload(20))),
    ("IPv6 fragment", ip6() / IPv6ExtHdrFragment(nh=17, m=1) / UDP(sport=1, dport=2, chksum=BAD) / payload(24)),
    ("IPv6 UDP-Lite", ip6(nh=136) / udplite(12)),
    ("IPv6 SCTP", ip6(nh=132) / SCTP(sport=1, dport=2, chksum=BAD) / SCTPChunkData(data=b"1234")),
    ("IPv6 IGMP", ip6(nh=2) / Raw(bytes(12))),
    ("a tag", tagged(ip4(chksum=BAD) / UDP(sport=1, dport=2, chksum=BAD) / payload(20), 5)),
    ("two tags", tagged(ip4(chksum=BAD) / UDP(sport=1, dport=2, chksum=BAD) / payload(20), 5, 6)),
    ("a label", Ether(dst=P0, src=N0, type=0x8847) / MPLS(label=16, s=1, ttl=9) / ip4(chksum=BAD) / udp()),
]
ALL = "csum ip4h icmp igmp tcp udp udplite sctp pipe"
OUT = "mirred egress redirect dev p1"
for name, action in [
    ("all", ALL),
    ("ip4h", "csum ip4h pipe"),
    ("upper", "csum icmp tcp udp pipe"),
    ("rest", "csum igmp udplite sctp pipe"),
]:
    filters(f"csum/{name}", f"{action}.", [f"protocol all prio 1 matchall action {action} action {OUT}"], WRONG)
filters("csum/drop", "csum … drop: nothing is made right.", [f"protocol all prio 1 matchall action {ALL.replace('pipe', 'drop')}"], WRONG[:2])

FLOWS = [
    ("UDP", ip4() / udp(30)),
    ("TCP", ip4() / tcp()),
    ("ICMP", ip4(proto=1) / ICMP() / payload(10)),
    ("options", ip4(options=[IPOption(b"\x94\x04\0\0")]) / udp(30)),
    ("IPv6 UDP", ip6() / udp(30)),
    ("IPv6 TCP", ip6() / tcp()),
    ("IPv6 options", ip6(nh=0) / opts(17, udp(30))),
    ("IPv6 last fragment", ip6() / IPv6ExtHdrFragment(nh=17, offset=3) / payload(40)),
    ("a tag", tagged(ip4() / udp(30), 5)),
    ("two tags", tagged(ip4() / udp(30), 5, 6)),
    ("short", ip4(len=20, proto=17)),
    ("a label", Ether(dst=P0, src=N0, type=0x8847) / MPLS(label=16, s=1, ttl=9) / ip4() / udp()),
]
for name, munge in [
    ("ip-dst", "ex munge ip dst set 198.51.100.77"),
    ("ip-src", "ex munge ip src set 192.0.2.9"),
    ("ttl-add", "ex munge ip ttl add 0xff"),
    ("ttl-set", "munge ip ttl set 9"),
    ("tos", "ex munge ip tos set 0xb8 retain 0xfc"),
    ("ip-add", "ex munge ip dst add 1"),
    ("ip-invert", "munge ip src invert"),
    ("eth", "ex munge eth dst set 02:00:00:00:0a:01 munge eth src set 02:00:00:00:0a:02"),
    ("eth-type", "ex munge eth type set 0x88b5"),
    ("ip6-dst", "ex munge ip6 dst set 2001:db8:6::77"),
    ("ip6-hoplimit", "ex munge ip6 hoplimit add 0xff"),
    ("ip6-traffic-class", "ex munge ip6 traffic_class set 0xb8 retain 0xfc"),
    ("udp", "ex munge udp dport set 7777 munge udp sport set 8888"),
    ("tcp", "ex munge tcp dport set 7777 munge tcp flags set 0x12"),
    ("tcp-add", "ex munge tcp sport add 0x101"),
    ("u8", "munge offset 1 u8 set 0xb8 retain 0xfc"),
    ("u16", "munge offset 22 u16 set 0x1234 retain 0xff0f"),
    ("u32", "munge offset 12 u32 set 0x01020304"),
    ("u32-add", "ex munge offset 12 u32 add 0xff00ff00"),
    ("preserve", "munge offset 12 u32 preserve munge offset 16 u32 clear"),
    ("before", "munge offset -4 u32 set 0x0a0b88b5"),
    ("far-before", "munge offset -16 u32 set 0x01020304"),
    ("beyond", "munge offset 48 u32 set 1 munge offset 0 u8 set 0x77"),
    ("mixed", "ex munge ip ttl set 9 munge udp dport set 7777"),
]:
    filters(f"pedit/{name}", f"pedit {munge}.", [f"protocol all prio 1 matchall action pedit {munge} pipe action {OUT}"], FLOWS)
filters(
    "pedit/nat",
    "pedit, csum, and the stack: a stateless translation of an address and a port.",
    [
        "protocol ip prio 1 flower dst_ip 203.0.113.200 ip_proto udp action pedit ex munge ip dst set 203.0.113.133 "
        "munge udp dport set 5353 pipe action csum ip4h udp",
        "protocol ipv6 prio 2 flower dst_ip 2001:db8:6::99 action pedit ex munge ip6 dst set 2001:db8:6::6 pipe action csum tcp udp icmp",
        "tc filter add dev p1 egress protocol ip prio 1 flower src_ip 203.0.113.5 action pedit ex munge ip src set 198.51.100.1 pipe "
        "action csum ip4h udp tcp",
    ],
    [
        ("UDP", ip4(dst="203.0.113.200") / udp(30)),
        ("TCP", ip4() / tcp()),
        ("IPv6 UDP", ip6(dst="2001:db8:6::99") / udp(30)),
        ("IPv6 TCP", ip6(dst="2001:db8:6::99") / tcp()),
        ("IPv6 echo", ip6(dst="2001:db8:6::99") / ICMPv6EchoRequest()),
    ],
    shows=("tc -s filter show dev p0 ingress", "tc -s filter show dev p1 egress"),
)
filters(
    "pedit/whose",
    "Whose a packet is that comes in was decided before: pedit changes its address, not that.",
    [
        "protocol ip prio 1 flower dst_mac 02:00:00:00:00:01 action pedit ex munge eth dst set 02:00:00:00:0a:01 pipe action pass",
        "protocol ip prio 2 flower dst_mac 02:00:00:00:0a:01 action pedit ex munge eth dst set 02:00:00:00:00:01 pipe action pass",
    ],
    [("ours", ip4() / udp(30)), ("another's", Ether(dst="02:00:00:00:0a:01", src=N0) / ip4() / udp(30))],
)
filters(
    "pedit/egress",
    "Where packets leave.",
    [
        "tc filter add dev p1 egress protocol all prio 1 matchall action pedit ex munge eth src set 02:00:00:00:0a:02 "
        "munge offset -4 u32 set 0x0a02 retain 0xffff0000 munge udp dport set 7777 pipe action csum udp",
    ],
    FLOWS[:8],
    shows=("tc -s filter show dev p1 egress",),
)
