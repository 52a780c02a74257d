"""A router at random: its configuration, line by line, and what packets may be sent to it.

Each feature is a function that adds lines and, as targets, functions that make packets for what it has configured. Names
and addresses come from small pools, so that features meet: a route leads into a tunnel, a rule into the table of a VRF."""

import random

from frames import *

PORTS = ["p0", "p1", "p2"]
MACS = {port: f"02:00:00:00:00:0{i + 1}" for i, port in enumerate(PORTS)}
NEAR4 = {port: [f"10.0.{i}.2", f"10.0.{i}.3"] for i, port in enumerate(PORTS)}
NEAR6 = {port: [f"2001:db8:{i}::2", f"2001:db8:{i}::3"] for i, port in enumerate(PORTS)}
OWN4 = {port: f"10.0.{i}.1" for i, port in enumerate(PORTS)}
OWN6 = {port: f"2001:db8:{i}::1" for i, port in enumerate(PORTS)}
PREFIXES4 = ["10.10.0.0/16", "10.10.1.0/24", "10.11.0.0/16", "10.11.128.0/17", "10.12.0.0/16", "10.13.5.6/32", "10.12.3.0/24"]
PREFIXES6 = ["2001:db8:a::/48", "2001:db8:a:1::/64", "2001:db8:b::/48", "2001:db8:c::/48", "2001:db8:d::d/128", "fc00:a::/32", "fc00:b::/32"]
HOSTS4 = ["10.10.1.7", "10.10.2.7", "10.11.0.9", "10.11.200.9", "10.12.3.4", "10.12.9.9", "10.13.5.6"]
HOSTS6 = ["2001:db8:a:1::7", "2001:db8:a:2::7", "2001:db8:b::9", "2001:db8:c::9", "2001:db8:d::d", "fc00:a::1", "fc00:b::2"]
FAR4, FAR6 = ["203.0.113.1", "203.0.113.9"], ["2001:db8:f::1", "2001:db8:f::9"]  # ends of tunnels
SOURCES4 = ["198.51.100.7", "198.51.100.8"]
SOURCES6 = ["2001:db8:5::5", "2001:db8:5::6"]
SIDS = ["fc00:e::1", "fc00:e::2", "fc00:e::3", "fc00:e::4", "fc00:e::5", "fc00:e::6"]
TABLES = [100, 101, 250]
PROTOCOLS = {4: "ipip", 41: "ipv6", 47: "gre"}


class World(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.lines, self.tc, self.targets = [], [], []
        self.vrfs, self.tunnels, self.nexthops, self.ifbs = {}, [], [], []
        self.devices = list(PORTS)  # that tc may be at
        self.encap_devices = []  # tunnels with `external`
        self.keyed = []  # what `tunnel_key` says something to, and the EtherType that it carries, or None
        self.master = {}
        self.own4, self.own6 = dict(OWN4), dict(OWN6)
        self.sids, self.labels = [], []
        self.ioam = False
        self.hmac = False
        self.taps = []  # tunnels of Ethernet
        self.least = 1500  # the least MTU of a port: a veth takes nothing that is longer

    def chance(self, p):
        return self.random() < p

    def some(self, pool, most):
        pool = list(pool)
        return self.sample(pool, min(len(pool), self.randint(1, most)))

    def maybe(self, p, text):
        return text if self.chance(p) else ""

    def add(self, *lines):
        self.lines += [" ".join(line.split()) for line in lines]

    def target(self, weight, make):
        """`make` returns the number of a port and what is behind the Ethernet header: (EtherType, bytes)."""
        self.targets.append((weight, make))

    # -------------------------------------------------------------------------- packets

    def size(self):
        return self.choices([self.randint(0, 60), self.randint(60, 600), self.randint(1180, 1500), self.randint(1380, 1480)], [70, 15, 7, 8])[0]

    def ttl(self):
        return self.choices([64, 255, 2, 1, 0, 33], [70, 5, 8, 9, 2, 6])[0]

    def traffic_class(self):
        return 0 if self.chance(0.6) else self.choice([0x10, 0x08, 0x04, 0xB8, 0x28, 0x02, 0x03, 0x1E, self.randrange(256)])

    def transport(self, source, destination, version):
        """(protocol, bytes)."""
        body = bytes(self.randrange(256) for _ in range(4)) * (self.size() // 4 + 1)
        kind = self.choices(["udp", "tcp", "icmp", "other", "none"], [60, 18, 12, 6, 4])[0]
        ports = self.choice([(1111, 2222), (80, 443), (5000, 53), (self.randrange(65536), self.randrange(65536))])
        if kind == "udp":
            return 17, udp(source, destination, ports, body, sum=version == 6 or self.chance(0.8))
        if kind == "tcp":
            return 6, tcp(source, destination, ports, body, self.choice([2, 0x10, 0x18, 0x11]))
        if kind == "icmp":
            if version == 4:
                return 1, icmp4(8, 0, 0x00010002, body)
            return 58, icmp6(source, destination, 128, 0, 0x00010002, body)
        return (253, body) if kind == "other" else (59 if version == 6 else 254, b"")

    def packet4(self, source=None, destination=None, ttl=None):
        source = source or self.choice(SOURCES4)
        destination = destination or self.choice(HOSTS4 * 6 + list(NEAR4[self.choice(PORTS)]) + list(self.own4.values())[:1])
        protocol, data = self.transport(source, destination, 4)
        flags, offset, opts = self.choices([0, 2, 1], [45, 45, 10])[0], 0, b""
        if self.chance(0.06):
            offset, flags = self.choice([1, 100, 185]), self.choice([0, 1])
        if self.chance(0.05):
            opts = self.choice([b"\1\1\1\0", b"\x94\4\0\0", b"\x83\7\4\x0a\0\1\1\0", b"\x82\x0b" + bytes(9) + b"\0"])
        elif self.chance(0.03):
            opts = b"\x44\x08\x05\0" + bytes(4)
        if flags == 1:
            data = data[: len(data) // 8 * 8]
        ttl = self.ttl() if ttl is None else ttl
        return ip4(source, destination, protocol, data, ttl, self.traffic_class(), self.randrange(1, 65536), flags, offset, opts)

    def packet6(self, source=None, destination=None, hops=None):
        source = source or self.choice(SOURCES6)
        destination = destination or self.choice(HOSTS6 * 6 + list(NEAR6[self.choice(PORTS)]) + list(self.own6.values())[:1])
        following, data = self.transport(source, destination, 6)
        if self.chance(0.12):
            following, data = self.extended(following, data)
        label = 0 if self.chance(0.6) else self.choice([0x12345, self.randrange(1 << 20)])
        return ip6(source, destination, following, data, self.ttl() if hops is None else hops, self.traffic_class(), label)

    def extended(self, following, data):
        """Extension headers before what follows."""
        kind = self.choice(["hbh", "dst", "fragment", "later", "both", "alert", "routing"])
        if kind == "hbh":
            return 0, options(following, self.choice([b"", b"\5\2\0\0", b"\x1e\2\0\0", b"\xc2\4\0\1\0\0", b"\x5e\1\0", b"\x9e\1\0", b"\xde\1\0"])) + data
        if kind == "dst":
            return 60, options(following, self.choice([b"", b"\x1e\2\0\0", b"\xde\1\0"])) + data
        if kind == "fragment":
            return 44, fragment(following, 0, self.choice([0, 1])) + data[: len(data) // 8 * 8]
        if kind == "later":
            return 44, fragment(following, self.choice([1, 50]), self.choice([0, 1])) + data[: len(data) // 8 * 8]
        if kind == "both":
            return 0, options(60, b"") + options(following, b"") + data
        if kind == "alert":
            return 0, options(following, b"\5\2\0\0") + data
        return 43, bytes([following, 0, self.choice([0, 2, 3, 4]), self.choice([0, 1])]) + bytes(4) + data

    def inner(self, versions=(4, 6)):
        """(EtherType, packet)."""
        if self.choice(versions) == 4:
            return 0x0800, self.packet4()
        return 0x86DD, self.packet6()

    def frame(self, number):
        """One packet of a case: (port's number, frame)."""
        weights = [w for w, _ in self.targets]
        port, kind, data = self.choices(self.targets, weights)[0][1]()
        port = self.randrange(3) if port is None or self.chance(0.1) else port
        destination = MACS[PORTS[port]]
        if self.chance(0.02):
            destination = self.choice(["ff:ff:ff:ff:ff:ff", "02:00:00:00:00:77", "01:00:5e:00:00:05", "33:33:00:00:00:01"])
        tags = []
        if self.chance(0.02):
            tags = [self.choice([(0x8100, 0), (0x8100, 5), (0x8100, 0x2000), (0x88A8, 7)])]
        near = f"02:00:00:00:0{port + 1}:02"
        if self.chance(0.15):
            data = self.mutated(data)
        frame = ether(destination, near, kind, data, tags)
        if len(frame) < 60 and self.chance(0.3):
            frame += bytes(60 - len(frame))  # padding, as short frames have
        elif self.chance(0.02):
            frame += b"trailing"
        # What is longer a device does not take.
        return port, frame[: self.least + 14 + 4 * len(tags)]

    def mutated(self, data):
        data = bytearray(data)
        for _ in range(self.choice([1, 1, 1, 2, 4])):
            if not data:
                break
            at = min(self.randrange(len(data)), self.randrange(120))
            what = self.choice(["bit", "byte", "cut", "length", "zero", "ones"])
            if what == "bit":
                data[at] ^= 1 << self.randrange(8)
            elif what == "byte":
                data[at] = self.randrange(256)
            elif what == "zero":
                data[at] = 0
            elif what == "ones":
                data[at] = 255
            elif what == "cut":
                del data[max(1, self.randrange(len(data))) :]
            elif len(data) >= 6:
                at = 2 if data[0] >> 4 == 4 else 4
                value = int.from_bytes(data[at : at + 2], "big") + self.choice([-1, 1, -8, 8, 100])
                data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")
            if len(data) >= 20 and data[0] >> 4 == 4 and self.chance(0.7):
                size = 4 * (data[0] & 15)
                if 20 <= size <= len(data):
                    data[10:12] = b"\0\0"
                    data[10:12] = checksum(bytes(data[:size])).to_bytes(2, "big")
        return bytes(data)
