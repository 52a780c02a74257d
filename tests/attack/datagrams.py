"""Hostile datagrams: sound packets of all that the router knows, and what becomes of them by other bytes and lengths."""

import random
import socket
import struct
import time

from network import inside

# A second.
RATE = 2000


def address6(text):
    return socket.inet_pton(socket.AF_INET6, text)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(protocol, payload, destination="10.2.0.2", fragment=0):
    ends = socket.inet_aton("10.1.0.2") + socket.inet_aton(destination)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 7, fragment, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(protocol, payload, destination="fd02::2"):
    ends = address6("fd01::2") + address6(destination)
    return struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + ends + payload


def udp(payload, port=9):
    return struct.pack("!HHHH", 1000, port, 8 + len(payload), 0) + payload


def srh(following, left, segments, tlvs=b""):
    body = b"".join(map(address6, segments)) + tlvs
    return struct.pack("!BBBBBBH", following, len(body) // 8, 4, left, len(segments) - 1, 0, 0) + body


def sound():
    """Frames behind the MAC addresses: EtherType and packet."""
    inner4, inner6 = ipv4(17, udp(b"x" * 32)), ipv6(17, udp(b"x" * 32))
    segments = ["fd02::2", "fc00:1::e"]
    four = [
        inner4,
        ipv4(17, udp(b"x" * 1400), "10.30.0.1"),
        ipv4(17, udp(b"x" * 1400), "10.20.0.1"),
        ipv4(17, udp(b"x" * 100), "10.40.0.1"),
        ipv4(17, udp(b"x" * 64), fragment=0x2000),
        ipv4(17, b"x" * 64, "10.1.0.1", fragment=0x2001),
        ipv4(47, b"\x20\0\x08\0\0\0\0\x07" + inner4, "10.1.0.1"),
        ipv4(47, b"\xb0\0\x08\0\0\0\0\0\0\0\0\x07\0\0\0\x01" + inner4, "10.1.0.1"),
        ipv4(4, inner4, "10.1.0.1"),
        ipv4(17, udp(inner4, 5555), "10.1.0.1"),
        ipv4(1, b"\x03\x04\0\0\0\0\x05\0" + inner4, "10.1.0.1"),
    ]
    six = [
        inner6,
        ipv6(17, udp(b"x" * 1400), "fd20::1"),
        ipv6(43, srh(17, 1, segments) + udp(b"x" * 32), "fc00:1::e"),
        ipv6(43, srh(41, 0, segments) + inner6, "fc00:1::d6"),
        ipv6(43, srh(4, 0, segments) + inner4, "fc00:1::d4"),
        ipv6(43, srh(17, 1, segments, b"\x05\x26" + bytes(38)) + udp(b"x"), "fc00:1::b6"),
        ipv6(0, b"\x11\x01\x31\x0c\0\0" + bytes(10) + udp(b"x" * 32)),
        ipv6(44, b"\x11\0\0\1\0\0\0\7" + udp(b"x" * 32), "fd01::1"),
        ipv6(2, b"\x02\x04\0\0\0\0\x05\0" + inner6, "fd01::1"),
    ]
    labels = [struct.pack("!II", 100 << 12 | 64, 200 << 12 | 0x100 | 64), struct.pack("!I", 101 << 12 | 0x140)]
    return (
        [(0x0800, packet) for packet in four]
        + [(0x86DD, packet) for packet in six]
        + [(0x8847, stack + inner4) for stack in labels]
        + [(0x8100, b"\0\0\x08\0" + inner4)]
    )


def send(network, seed, over, count):
    """Sends until it is over."""
    dice = random.Random(seed)
    mac = inside(network.router, lambda: open_link("p1"))
    raw = inside(network.left, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    raw.bind(("eth0", 0))
    frames = sound()
    with raw:
        while not over.is_set():
            for _ in range(RATE // 50):
                kind, packet = dice.choice(frames)
                packet = bytearray(packet)
                for _ in range(dice.choice((0, 1, 1, 2, 8))):
                    packet[dice.randrange(len(packet))] = dice.randrange(256)
                change = dice.randrange(8)
                if change == 0:
                    packet = packet[: dice.randrange(1, len(packet))]
                elif change == 1:
                    packet += dice.randbytes(dice.randrange(1, 64))
                try:
                    raw.send(mac + b"\x02\0\0\0\0\x01" + struct.pack("!H", kind) + packet[:1500])
                    count("hostile datagrams")
                except OSError:
                    pass
            time.sleep(0.02)


def open_link(name):
    """The MAC address of a device."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as device:
        device.bind((name, 0))
        return device.getsockname()[4]
