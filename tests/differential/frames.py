"""Packets, byte by byte, so that every field can be wrong."""

import ipaddress
import struct


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def address(text):
    return ipaddress.ip_address(text).packed


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ether(destination, source, kind, payload, tags=()):
    """`tags`: (TPID, TCI)."""
    vlan = b"".join(struct.pack("!HH", *tag) for tag in tags)
    return mac(destination) + mac(source) + vlan + struct.pack("!H", kind) + payload


def ip4(source, destination, protocol, payload, ttl=64, tos=0, ident=0x1234, flags=0, offset=0, options=b""):
    """`flags`: 2 is DF, 1 MF; `offset` in units of 8 bytes."""
    size = 20 + len(options)
    head = struct.pack("!BBHHHBBH", 0x40 | size // 4, tos, size + len(payload), ident, flags << 13 | offset, ttl, protocol, 0)
    head += address(source) + address(destination) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ip6(source, destination, following, payload, hops=64, tclass=0, label=0):
    head = struct.pack("!IHBB", 6 << 28 | tclass << 20 | label, len(payload) & 0xFFFF, following, hops)
    return head + address(source) + address(destination) + payload


def pseudo(source, destination, protocol, length):
    return address(source) + address(destination) + struct.pack("!IxxxB", length, protocol)


def udp(source, destination, ports, payload, sum=True):
    head = struct.pack("!HHHH", *ports, 8 + len(payload), 0)
    value = checksum(pseudo(source, destination, 17, 8 + len(payload)) + head + payload) or 0xFFFF
    return head[:6] + struct.pack("!H", value if sum else 0) + payload


def tcp(source, destination, ports, payload, flags=0x10):
    head = struct.pack("!HHIIBBHHH", *ports, 1000, 2000, 0x50, flags, 8192, 0, 0)
    value = checksum(pseudo(source, destination, 6, 20 + len(payload)) + head + payload)
    return head[:16] + struct.pack("!H", value) + head[18:] + payload


def icmp4(kind, code, rest, payload):
    data = struct.pack("!BBHI", kind, code, 0, rest) + payload
    return data[:2] + struct.pack("!H", checksum(data)) + data[4:]


def icmp6(source, destination, kind, code, rest, payload):
    data = struct.pack("!BBHI", kind, code, 0, rest) + payload
    value = checksum(pseudo(source, destination, 58, len(data)) + data)
    return data[:2] + struct.pack("!H", value) + data[4:]


def options(following, data):
    """A hop-by-hop or destination options header of these options, padded."""
    short = -(len(data) + 2) % 8
    data += b"" if short == 0 else b"\0" if short == 1 else bytes([1, short - 2]) + bytes(short - 2)
    return bytes([following, (len(data) + 2) // 8 - 1]) + data


def fragment(following, offset, more, ident=0x77):
    return struct.pack("!BBHI", following, 0, offset << 3 | more, ident)


def srh(following, segments, left, tlvs=b"", flags=0, tag=0, last=None):
    """`segments`: the last one first, as they lie in the header."""
    data = b"".join(address(s) for s in segments) + tlvs
    last = len(segments) - 1 if last is None else last
    return struct.pack("!BBBBBBH", following, len(data) // 8, 4, left, last & 255, flags, tag) + data


def rpl(following, segments, left):
    """RFC 6554, nothing compressed."""
    data = b"".join(address(s) for s in segments)
    return struct.pack("!BBBBI", following, len(data) // 8, 3, left, 0) + data


def gre(protocol, payload, key=None, sequence=None, sum=False, flags=0):
    flags |= (0x8000 if sum else 0) | (0x2000 if key is not None else 0) | (0x1000 if sequence is not None else 0)
    head = struct.pack("!HH", flags, protocol) + (bytes(4) if sum else b"")
    rest = b"".join(struct.pack("!I", n) for n in (key, sequence) if n is not None)
    data = head + rest + payload
    return data[:4] + struct.pack("!H", checksum(data)) + data[6:] if sum else data


def gue(protocol, payload, control=0):
    return bytes([control << 5, protocol, 0, 0]) + payload


def mpls(entries, payload):
    """`entries`: (label, class, TTL), the outermost first; the last has the bottom's bit."""
    words = [label << 12 | tc << 9 | (i == len(entries) - 1) << 8 | ttl for i, (label, tc, ttl) in enumerate(entries)]
    return b"".join(struct.pack("!I", w) for w in words) + payload


def ioam_trace(kind, free, nodes=b"", namespace=123, length=None, overflow=0, ioam_type=0):
    """A pre-allocated trace option: `free` words, of which nothing is filled yet, then what others have filled."""
    needed = bin(kind & 0xFF1FFC).count("1") + 2 * bin(kind & 0x00E000).count("1")
    length = needed if length is None else length
    body = bytes([0, ioam_type]) + struct.pack("!HBBI", namespace, (length & 31) << 3 | overflow << 2, free, kind << 8)
    body += bytes(4 * free) + nodes
    return bytes([0x31, len(body)]) + body
