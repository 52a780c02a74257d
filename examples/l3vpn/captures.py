#!/usr/bin/python3
"""Makes core.pcap, red.pcap and blue.pcap: what PE1 of vpn.conf receives in half a second.

Needs scapy (Debian: python3-scapy). The captures are in the repository; run this only to change them.

red   a host of 10.1.0.0/24 fetches a page from 10.2.0.20, and asks it a name
blue  a host of the same address does the same with another server of the same address, pings it, and
      talks to fd10:2::20; one of its packets has no route
core  the answers, in IPv6 packets for PE1's SIDs: red's without SRH, blue's with one; one answer has no
      hop left, one packet is for a SID that nobody has, one carries IPv6 to red's SID, which takes IPv4
      alone
"""

from scapy.all import (DNS, DNSQR, DNSRR, ICMP, IP, TCP, UDP, Ether, ICMPv6EchoReply, ICMPv6EchoRequest,
                       IPv6, Raw, wrpcap)
from scapy.layers.inet6 import IPv6ExtHdrSegmentRouting
from scapy.utils import EDecimal

START = 1_700_000_000
CORE, RED, BLUE = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
P, RED_HOST, BLUE_HOST = "02:00:00:00:0c:02", "02:00:00:00:0a:10", "02:00:00:00:0b:10"
PE1_RED, PE1_BLUE, PE2 = "fc00:1:0:d4::", "fc00:1:0:d46::", "fc00:2::1"

captures = {"core": [], "red": [], "blue": []}


def add(port, milliseconds, packet):
    packet.time = EDecimal(START) + EDecimal(milliseconds) / 1000
    captures[port].append(packet)


def from_red(milliseconds, packet):
    add("red", milliseconds, Ether(src=RED_HOST, dst=RED) / packet)


def from_blue(milliseconds, packet):
    add("blue", milliseconds, Ether(src=BLUE_HOST, dst=BLUE) / packet)


def from_core(milliseconds, sid, packet, srh=False):
    outer = IPv6(src=PE2, dst=sid, hlim=62, fl=hash_of(packet))
    if srh:  # by way of P, whose segment is behind it
        outer /= IPv6ExtHdrSegmentRouting(addresses=[sid, "fc00:9::2"], segleft=0, lastentry=1)
    add("core", milliseconds, Ether(src=P, dst=CORE) / outer / packet)


def hash_of(packet):
    """A flow label that the packets of a flow share, as PE2 would set it."""
    return sum(bytes(packet)[12:20] if packet.version == 4 else bytes(packet)[8:40]) * 2654435761 & 0xFFFFF


def fetch(here, there, page, at, send, answer):
    """A TCP connection: three-way handshake, a request, a page in segments, the end."""
    client, server = dict(sport=49152 + at % 1000, dport=80), dict(sport=80, dport=49152 + at % 1000)
    request = b"GET / HTTP/1.1\r\nHost: intranet.example\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
    header = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page)
    response = header + page
    mss = [("MSS", 1400)]
    send(at, here / TCP(**client, flags="S", seq=1000, window=64240, options=mss))
    answer(at + 8, there / TCP(**server, flags="SA", seq=5000, ack=1001, window=65160, options=mss))
    send(at + 9, here / TCP(**client, flags="A", seq=1001, ack=5001, window=502))
    send(at + 10, here / TCP(**client, flags="PA", seq=1001, ack=5001, window=502) / Raw(request))
    sequence, acknowledged = 5001, 1001 + len(request)
    for number, start in enumerate(range(0, len(response), 1380)):
        segment = response[start:start + 1380]
        answer(at + 20 + number,
               there / TCP(**server, flags="PA", seq=sequence, ack=acknowledged, window=509) / Raw(segment))
        sequence += len(segment)
        send(at + 21 + number, here / TCP(**client, flags="A", seq=acknowledged, ack=sequence, window=502))
    send(at + 40, here / TCP(**client, flags="FA", seq=acknowledged, ack=sequence, window=502))
    answer(at + 48, there / TCP(**server, flags="FA", seq=sequence, ack=acknowledged + 1, window=509))
    send(at + 49, here / TCP(**client, flags="A", seq=acknowledged + 1, ack=sequence + 1, window=502))


def ask(here, there, at, send, answer):
    """A question to a name server, and its answer."""
    question = DNSQR(qname="intranet.example")
    reply = DNSRR(rrname="intranet.example", ttl=300, rdata="10.2.0.20")
    send(at, here / UDP(sport=40000 + at, dport=53) / DNS(id=at, rd=1, qd=question))
    answer(at + 6, there / UDP(sport=53, dport=40000 + at) / DNS(id=at, qr=1, rd=1, ra=1, qd=question, an=reply))


here, there = IP(src="10.1.0.10", dst="10.2.0.20", flags="DF", id=1), IP(src="10.2.0.20", dst="10.1.0.10", ttl=60, id=2)
here6, there6 = IPv6(src="fd10:1::10", dst="fd10:2::20"), IPv6(src="fd10:2::20", dst="fd10:1::10", hlim=60)
page = b"<html><body>" + b"<p>All is well here.</p>" * 300 + b"</body></html>"


def red_answer(at, packet):
    from_core(at, PE1_RED, packet)


def blue_answer(at, packet):
    from_core(at, PE1_BLUE, packet, srh=True)


ask(here, there, 1, from_red, red_answer)
fetch(here, there, page, 20, from_red, red_answer)
ask(here, there, 3, from_blue, blue_answer)
fetch(here, there, page[:4000], 25, from_blue, blue_answer)
fetch(here6, there6, page, 120, from_blue, blue_answer)
for number in range(5):
    at = 200 + 50 * number
    from_blue(at, here / ICMP(type=8, id=7, seq=number) / Raw(bytes(range(48))))
    blue_answer(at + 11, there / ICMP(type=0, id=7, seq=number) / Raw(bytes(range(48))))
    from_blue(at + 2, here6 / ICMPv6EchoRequest(id=8, seq=number, data=bytes(range(48))))
    blue_answer(at + 13, there6 / ICMPv6EchoReply(id=8, seq=number, data=bytes(range(48))))

# What goes wrong on a normal day.
blue_answer(460, IP(src="10.2.0.20", dst="10.1.0.10", ttl=1, id=3) / UDP(sport=33434, dport=33434) / Raw(b"trace"))
from_blue(470, IP(src="10.1.0.10", dst="10.9.0.1", id=4) / UDP(sport=5000, dport=5000) / Raw(b"nowhere"))
from_core(480, "fc00:1:0:dead::", there / UDP(sport=5000, dport=5000) / Raw(b"no such SID"))
from_core(490, PE1_RED, there6 / UDP(sport=5000, dport=5000) / Raw(b"not IPv4"))

for port, packets in captures.items():
    packets.sort(key=lambda packet: packet.time)
    wrpcap(f"{port}.pcap", packets, nano=True)
    print(f"{port}.pcap: {len(packets)} packets")
