"""The features of a random router of layer 2: VLAN devices, bridges, VXLAN and Geneve devices, tunnels of Ethernet, what routes
and filters do above them, and frames that fit. `--layer2` chooses it; cases without it know nothing of it."""

import control
import features
from frames import *
from world import *

# Who sends frames. A frame from or to one of these addresses is nothing that a router says on its own account.
STATIONS = [f"02:5a:00:00:00:0{n}" for n in range(1, 7)]
UNKNOWN = ["02:5a:00:00:00:71", "02:5a:00:00:00:72"]
ALL_STATIONS, NOBODY = "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"
VIDS = [1, 5, 10, 20, 30, 4094]
TPIDS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}
VXLAN_PORTS, GENEVE_PORTS = (4789, 8472), (6081, 6082)
VNIS = [100, 200, 16777215]


class Device:
    """A device of Ethernet. `carried` gives, for a frame that is to come in by it, (port's number, the frame outside)."""

    def __init__(self, name, kind, mac, carried=None):
        self.name, self.kind, self.mac, self.carried = name, kind, mac, carried
        self.master = self.lower = None
        self.own4 = self.own6 = self.near4 = self.near6 = None
        self.members, self.filters, self.mtu = [], None, 1500


class World2(World):
    """`devices2`: every device of Ethernet by its name."""

    def __init__(self, seed):
        super().__init__(seed)
        self.devices2, self.bare = {}, []
        self.port_mtu = dict.fromkeys(PORTS, 1500)

    def put(self, device):
        self.devices2[device.name] = device
        self.devices.append(device.name)
        return device

    def of_kind(self, *kinds):
        return [device for device in self.devices2.values() if device.kind in kinds]

    def routed(self):
        """The devices with addresses."""
        return [device for device in self.devices2.values() if device.own4]

    def hop2(self, version, device=None):
        device = device or self.choice(self.routed())
        return f"via {self.choice(device.near4 if version == 4 else device.near6)} dev {device.name}"

    # ------------------------------------------------------------------------------- frames

    def frame(self, number):
        port, frame = self.choices(self.targets, [weight for weight, _ in self.targets])[0][1]()
        if self.chance(0.04):
            port = self.randrange(3)
        if self.chance(0.08):
            frame = frame[:12] + self.mutated(frame[12:])
        if self.chance(0.03):
            frame = frame[: self.choice([14, 15, 17, 18, 20, 22, 40])]
        frame += bytes(max(0, (60 if self.chance(0.3) else 14) - len(frame)))
        # What is longer a device does not take.
        tagged = frame[12:14] in (b"\x81\0", b"\x88\xa8")
        return port, frame[: self.port_mtu[PORTS[port]] + 14 + 4 * tagged]

    def to_router(self, device, kind, data):
        """A packet that a neighbour sends to a device with addresses."""
        mac = device.mac if self.chance(0.97) else self.choice([ALL_STATIONS, UNKNOWN[0]])
        return device.carried(ether(mac, self.choice(STATIONS[:3]), kind, data))

    def from_station(self, device):
        """A frame of some station that comes in by a device."""
        top = self.devices2[device.master] if device.master in self.devices2 else device
        source = self.choices([self.choice(STATIONS), self.choice(STATIONS[:2]), device.mac, top.mac, "01:00:5e:00:00:01", NOBODY], [60, 32, 2, 2, 2, 2])[0]
        destination = self.choices(
            [
                top.mac, device.mac, self.choice(STATIONS), self.choice(STATIONS[:2]), self.choice(UNKNOWN), ALL_STATIONS, "01:00:5e:01:02:03", "33:33:00:00:01:23",
                f"01:80:c2:00:00:{self.choice([0, 0, 1, 2, 3, 14, 14, 15, 16]):02x}", self.choice(list(self.devices2.values())).mac,
            ],
            [24 if top.own4 else 8, 3, 18, 22, 8, 12, 5, 5, 8, 3],
        )[0]
        kind, data, source = self.payload(top, source)
        if destination[:9] == "01:00:5e:" and kind == 0x86DD or destination[:6] == "33:33:" and kind == 0x0800:
            kind, data = 0x88B5, data
        return device.carried(ether(destination, source, kind, data, self.tags(device)))

    def tags(self, device):
        tagged = self.chance(0.55 if device.filters or device.master in self.devices2 and self.devices2[device.master].filters else 0.2)
        if not tagged:
            return []
        tag = lambda: (self.choices([0x8100, 0x88A8], [85, 15])[0], self.choice([0, *VIDS, *VIDS, 99]) | self.choice([0, 0, 0, 0x2000, 0xE000]) | self.choice([0, 0, 0, 0, 0x1000]))
        return [tag() for _ in range(self.choices([1, 2, 3], [80, 17, 3])[0])]

    def payload(self, top, source):
        """(EtherType, bytes) of what a station says, and that station: who asks by neighbour discovery is answered at its fixed address."""
        what = "nd" if self.chance(0.09) else None
        if what and (top.own6 or self.chance(0.7)):
            number = self.randrange(2)
            return 0x86DD, self.neighbour(top, STATIONS[number], number), STATIONS[number]
        return *self.said(top, source), source

    def said(self, top, source):
        what = self.choices(["ip", "near", "arp", "raw", "llc", "mpls", "long"], [46, 14, 14, 6, 5, 2, 5])[0]
        if what == "near" and not top.own4 or what == "arp" and not top.own4 and self.chance(0.3):
            what = "ip"
        if what == "ip":
            return self.inner()
        if what == "near":
            if self.chance(0.5):
                return 0x0800, self.packet4(self.choice(top.near4), self.choice([top.own4, *HOSTS4[:2]]))
            return 0x86DD, self.packet6(self.choice(top.near6), self.choice([top.own6, *HOSTS6[:2]]))
        if what == "arp":
            return 0x0806, self.arp(top, source)
        if what == "raw":
            return self.choice([0x88CC, 0x88B5, 0x8906, 0x0842]), bytes(self.randrange(256) for _ in range(4)) * self.choice([1, 12, 30])
        if what == "llc":
            data = b"\x42\x42\x03" + bytes(35) if self.chance(0.6) else b"\xaa\xaa\x03\0\0\x0c\x01\x0b" + bytes(30)
            return len(data), data + bytes(46 - len(data))
        if what == "mpls":
            return 0x8847, mpls([(100, 0, 64)], self.packet4())
        return 0x0800, ip4(self.choice(SOURCES4), self.choice(HOSTS4), 17, bytes(self.choice([1372, 1400, 1430, 1450, 1472, 1476, 1480])), 64, 0, 7, self.choice([0, 2]))

    def arp(self, top, source):
        near = top.near4 or ["10.7.99.2", "10.7.99.3"]
        own = top.own4 or "10.7.99.1"
        source = source if int(source[1], 16) & 1 == 0 else STATIONS[0]
        op = self.choices([1, 2, 3], [80, 18, 2])[0]
        sender, asked = self.choice(near), self.choice([own, own, *near, "10.7.99.99"])
        if self.chance(0.1):
            sender = "0.0.0.0"
        target = NOBODY if op == 1 else self.choice(STATIONS)
        return struct.pack("!HHBBH", 1, 0x0800, 6, 4, op) + mac(source) + address(sender) + mac(target) + address(asked)

    def neighbour(self, top, source, number):
        near = top.near6 or ["2001:db8:799::2", "2001:db8:799::3"]
        own = top.own6 or "2001:db8:799::1"
        asked, sender = self.choice([own, own, *near]), near[number]
        if self.chance(0.8):
            to = self.choice([asked, f"ff02::1:ff00:{asked.rsplit(':', 1)[1]}"])
            lladdr = self.choices([bytes([1, 1]) + mac(source), b""], [85, 15])[0]
            return ip6(sender, to, 58, icmp6(sender, to, 135, 0, 0, address(asked) + lladdr), 255)
        to = self.choice([own, "ff02::1"])
        return ip6(sender, to, 58, icmp6(sender, to, 136, 0, 0x60000000, address(sender) + bytes([2, 1]) + mac(source)), 255)


# ---------------------------------------------------------------------------------------- devices


def base(w):
    """Ports; one at least with addresses, and a way to what packets go to and to the ends of tunnels."""
    w.bare = w.some(PORTS, 2) if w.chance(0.8) else []
    for number, port in enumerate(PORTS):
        w.devices2[port] = device = Device(port, "port", MACS[port])
        device.carried = lambda frame, number=number: (number, frame)
        w.add(f"ip link set {port} up")
        if port in w.bare:
            w.own4.pop(port)
            w.own6.pop(port)
        else:
            addresses(w, device, OWN4[port], OWN6[port], NEAR4[port], NEAR6[port])
    w.under = w.choice(w.routed())


def addresses(w, device, own4, own6, near4, near6):
    device.own4, device.own6, device.near4, device.near6 = own4, own6, near4, near6
    w.own4[device.name], w.own6[device.name] = own4, own6
    w.add(f"ip addr add {own4}/24 dev {device.name}", f"ip addr add {own6}/64 dev {device.name} nodad")
    for n, near in enumerate([*near4, *near6]):
        w.add(f"ip neigh add {near} lladdr {STATIONS[n % len(near4)]} dev {device.name} nud permanent")


def vlan(w, name, lower, mac=None):
    protocol = w.choices(["802.1Q", "802.1ad"], [75, 25])[0]
    vid = w.choice(VIDS)
    mac = mac or w.maybe(0.15, f"02:00:00:00:08:0{name[1:]}") or None
    maps = w.maybe(0.3, f"ingress-qos-map {w.choice(['0:5 3:6', '1:2', '7:0 0:7'])}") + w.maybe(0.3, f" egress-qos-map {w.choice(['0:5 6:3', '5:1 2:7', '0:1'])}")
    flags = w.maybe(0.2, "reorder_hdr off") + w.maybe(0.1, " loose_binding on")
    w.add(f"ip link add {name} link {lower.name} {f'address {mac}' if mac else ''} type vlan {w.maybe(0.5, f'protocol {protocol}') if protocol == '802.1Q' else f'protocol {protocol}'} id {vid} {flags} {maps}")
    device = w.put(Device(name, "vlan", mac or lower.mac))
    device.lower = lower

    def carried(frame):
        kind = TPIDS[protocol] if w.chance(0.97) else w.choice([0x8100, 0x88A8, 0x9100])
        control = (vid if w.chance(0.96) else w.choice([0, *VIDS])) | w.choice([0, 0, 0, 0x6000, 0x2000, 0xE000]) | w.choice([0, 0, 0, 0, 0x1000])
        return lower.carried(frame[:12] + struct.pack("!HH", kind, control) + frame[12:])

    device.carried = carried


def vlans_below(w):
    lowers = [w.devices2[port] for port in PORTS]
    for n in range(w.randint(1, 4)):
        vlan(w, f"v{n + 1}", w.choice(lowers))
        lowers += [device for device in w.of_kind("vlan") if device not in lowers]


def outside(w, over6, far, datagram, port):
    """(port's number, frame) of a datagram for a tunnel."""
    under, own = w.under, w.under.own6 if over6 else w.under.own4
    if over6:
        packet = ip6(far, own, 17, udp(far, own, (w.choice([7777, 50000]), port), datagram, w.chance(0.9)), w.ttl(), w.traffic_class())
    else:
        packet = ip4(far, own, 17, udp(far, own, (w.choice([7777, 50000]), port), datagram, w.chance(0.5)), w.ttl(), w.traffic_class(), w.randrange(65536), w.choice([0, 2]))
    return under.carried(ether(under.mac, w.choice(STATIONS[:2]), 0x86DD if over6 else 0x0800, packet))


def outer_words(w, over6):
    words = w.maybe(0.3, f"ttl {w.choice(['5', '64', 'inherit'])}") + w.maybe(0.3, f" tos {w.choice(['0x10', 'inherit', '0x29'])}") + w.maybe(0.3, f" df {w.choice(['set', 'unset'])}")
    if over6:
        return words + w.maybe(0.3, f" {w.choice(['udp6zerocsumtx', 'noudp6zerocsumtx'])}") + w.maybe(0.6, " udp6zerocsumrx") + w.maybe(0.15, " flowlabel 0x12345")
    return words + w.maybe(0.3, f" {w.choice(['udpcsum', 'noudpcsum'])}")


def vxlans(w):
    for n in range(w.randint(1, 2)):
        name, over6, port, vni = f"vx{n + 1}", w.chance(0.35), w.choice(VXLAN_PORTS), VNIS[n]
        fars = FAR6 if over6 else FAR4
        mac = f"02:00:00:00:0e:0{n + 1}"
        local = w.under.own6 if over6 else w.under.own4
        remote = w.chance(0.7)
        words = f"local {local}" + (f" remote {fars[0]}" if remote else "") + w.maybe(0.15, f" dev {w.under.name}") + w.maybe(0.2, " srcport 7777 7778")
        w.add(f"ip link add {name} address {mac} type vxlan id {vni} dstport {port} {words} {outer_words(w, over6)} {w.maybe(0.25, 'nolearning')} {w.maybe(0.2, 'ageing 11')}")
        device = w.put(Device(name, "vxlan", mac))

        def carried(frame, over6=over6, port=port, vni=vni, fars=fars):
            number = vni if w.chance(0.93) else w.choice([*VNIS, 7])
            flags = w.choices([0x08000000, 0, 0x0C000000, 0x88000000, 0x08000001], [94, 2, 1, 2, 1])[0]
            return outside(w, over6, w.choice(fars), struct.pack("!II", flags, number << 8 | w.choices([0, 1], [97, 3])[0]) + frame, port)

        device.carried = carried
        # Several ends for what nobody knows, and ends of stations.
        for _ in range(w.choices([0, 1, 2], [35, 35, 30])[0]):
            w.add(f"bridge fdb append {NOBODY} dev {name} dst {w.choice(fars)}")
        for station in w.some(STATIONS, 3) if w.chance(0.5) else []:
            w.add(f"bridge fdb {w.choice(['add', 'replace', 'append'])} {station} dev {name} dst {w.choice(fars)} {w.choice(['', 'self', 'self static', 'self dynamic', 'self permanent', 'self extern_learn'])}")
        mtu_and_up(w, device)


def geneves(w):
    for n in range(w.randint(1, 2)):
        name, over6, port, vni = f"gn{n + 1}", w.chance(0.35), w.choice(GENEVE_PORTS), VNIS[n]
        fars = FAR6 if over6 else FAR4
        bare = w.chance(0.25)
        mac = f"02:00:00:00:0f:0{n + 1}"
        w.add(f"ip link add {name} {f'address {mac}' if not bare else ''} type geneve id {vni} remote {fars[0]} dstport {port} {outer_words(w, over6)} {'innerprotoinherit' if bare else ''}")

        def carried(inside, kind=0x6558, over6=over6, port=port, vni=vni, fars=fars):
            number = vni if w.chance(0.93) else w.choice([*VNIS, 7])
            kind = kind if w.chance(0.97) else w.choice([0x6558, 0x0800, 0x86DD, 0x88B5])
            extra = w.choices([b"", b"\1\2\3\1" + bytes(4), b"\1\2\x83\0", bytes(8)], [90, 4, 3, 3])[0]
            head = struct.pack("!BBHI", len(extra) // 4 | w.choices([0, 0x40], [98, 2])[0], w.choices([0, 0x80, 0x40], [95, 3, 2])[0], kind, number << 8)
            return outside(w, over6, fars[0] if w.chance(0.93) else fars[1], head + extra + inside, port)

        if bare:
            # A device of packets.
            w.add(f"ip link set {name} addrgenmode none", f"ip link set {name} up", f"ip addr add 10.6.{n}.1/24 dev {name}")
            w.devices.append(name)
            for version in (4, 6):
                w.add(f"{'ip' if version == 4 else 'ip -6'} route replace {features.prefix(w, version)} dev {name}")

            def make(carried=carried):
                kind, inside = w.inner()
                return carried(inside, kind)

            w.target(4, make)
            continue
        device = w.put(Device(name, "geneve", mac, carried))
        mtu_and_up(w, device)


def gretaps(w):
    name, over6 = "tap1", w.chance(0.35)
    own, far = (w.under.own6, FAR6[0]) if over6 else (w.under.own4, FAR4[0])
    key = w.choice([None, 5])
    mac = "02:00:00:00:0a:01"
    w.add(f"ip link add {name} address {mac} type {'ip6gretap' if over6 else 'gretap'} local {own} remote {far} {f'key {key}' if key else ''} {w.maybe(0.25, 'csum')} {w.maybe(0.3, 'ttl 64')}")
    device = w.put(Device(name, "gretap", mac))

    def carried(frame):
        inside = gre(0x6558, frame, key if w.chance(0.95) else 99, None, w.chance(0.3))
        under = w.under
        packet = ip6(far, own, 47, inside, w.ttl(), w.traffic_class()) if over6 else ip4(far, own, 47, inside, w.ttl(), w.traffic_class(), w.randrange(65536), w.choice([0, 2]))
        return under.carried(ether(under.mac, w.choice(STATIONS[:2]), 0x86DD if over6 else 0x0800, packet))

    device.carried = carried
    mtu_and_up(w, device)


def mtu_and_up(w, device):
    if w.chance(0.25):
        device.mtu = w.choice([1280, 1400, 1500])
        w.add(f"ip link set {device.name} mtu {device.mtu}")
    if device.kind != "port":
        w.add(f"ip link set {device.name} up")


# ---------------------------------------------------------------------------------------- bridges


def bridges(w):
    for n in range(w.choices([1, 2], [70, 30])[0]):
        free = [device for device in w.devices2.values() if device.kind != "bridge" and not device.own4 and not device.master and device is not w.under]
        if not free:
            return
        name = f"br{n + 1}"
        filters = w.chance(0.5) and w.choice(["802.1Q", "802.1Q", "802.1ad"])
        words = w.maybe(0.15, f"ageing_time {w.choice([0, 530, 1730])}") + w.maybe(0.2, f" group_fwd_mask {w.choice(['0x4000', '0x4008', '8'])}")
        if filters:
            words += " vlan_filtering 1" + (f" vlan_protocol {filters}" if filters == "802.1ad" else "") + w.maybe(0.2, f" vlan_default_pvid {w.choice([0, 5, 10])}")
        given = w.chance(0.6)
        mac = f"02:00:00:00:0d:0{n + 1}"
        w.add(f"ip link add {name} {f'address {mac}' if given else ''} type bridge mcast_snooping 0 stp_state 0 {words}")
        device = w.put(Device(name, "bridge", mac))
        device.filters = filters or None
        members = [one for one in free if one.kind == "port"] + w.some([one for one in free if one.kind != "port"], 4)
        for member in w.some(members, len(members)):
            w.add(f"ip link set {member.name} master {name}")
            member.master = name
            device.members.append(member)
        if not given:
            device.mac = min(member.mac for member in device.members)
        device.carried = lambda frame, device=device: w.choice(device.members).carried(frame)
        for member in device.members:
            if w.chance(0.35):
                options = w.some([f"{option} {w.choice(['on', 'off'])}" for option in ["isolated", "hairpin", "learning", "flood", "mcast_flood", "bcast_flood", "neigh_suppress"]] + [f"group_fwd_mask {w.choice([4, 8, 0x4000])}", "cost 7", "priority 5"], 3)
                w.add(f"ip link set {member.name} type bridge_slave {' '.join(options)}")
                # By itself, as Linux does half of a request whose state it refuses.
                w.add(*[f"ip link set {member.name} type bridge_slave state {w.choice([0, 1, 2, 3, 4])}"] * w.chance(0.3))
        mtu_and_up(w, device)
        if w.chance(0.55):
            entries(w, device)
        if filters:
            memberships(w, device)


def memberships(w, bridge):
    """VLANs of a bridge's ports, and of the bridge itself."""
    for _ in range(w.randint(2, 7)):
        member = w.choice([*bridge.members, bridge])
        which = w.choice([*map(str, VIDS), "10-20", "1-30", "2-4"])
        words = w.choice(["", "", "pvid untagged", "untagged", "pvid"]) if "-" not in which else w.choice(["", "", "untagged"])
        verb = w.choices(["add", "del"], [88, 12])[0]
        w.add(f"bridge vlan {verb} dev {member.name} vid {which} {words if verb == 'add' else ''} {'self' if member is bridge else w.maybe(0.1, 'master')}")


def entries(w, bridge):
    """Stations by hand."""
    for station in w.some(STATIONS + UNKNOWN, 4):
        member = w.choice(bridge.members)
        what = w.choice(["master static", "master dynamic", "master local", "master static sticky", "master extern_learn", "master"])
        number = w.maybe(0.5, f"vlan {w.choice(VIDS)}") if bridge.filters else ""
        w.add(f"bridge fdb {w.choice(['add', 'add', 'replace', 'append'])} {station} dev {member.name} {what} {number}")
    if w.chance(0.2):
        w.add(f"bridge fdb add 02:5a:00:00:00:0d dev {bridge.name} self local")


def vlans_above(w):
    uppers = w.of_kind("bridge", "vxlan", "geneve", "gretap")
    uppers = [device for device in uppers if not device.master]
    for n in range(w.randint(1, 2) if uppers else 0):
        vlan(w, f"v{n + 6}", w.choice(uppers))


def vlans_up(w):
    for device in w.of_kind("vlan"):
        if w.chance(0.2):
            device.mtu = w.choice([1280, 1400, 1496, 1500])
            w.add(f"ip link set {device.name} mtu {device.mtu}")
        w.add(f"ip link set {device.name} up")


def networks(w):
    """Addresses of what is no port of a bridge."""
    number = 0
    for device in list(w.devices2.values()):
        if device.own4 or device.master or device.kind == "port":
            continue
        if device.kind != "port" and w.chance(0.75):
            addresses(w, device, f"10.7.{number}.1", f"2001:db8:7{number}::1", [f"10.7.{number}.2", f"10.7.{number}.3"], [f"2001:db8:7{number}::2", f"2001:db8:7{number}::3"])
        number += 1


def into_vrfs(w):
    devices = [device for device in w.routed() if device is not w.under]
    if not devices:
        return
    name, table = "vrf1", TABLES[0]
    w.vrfs[name] = table
    w.add(f"ip link add {name} address 02:00:00:00:0b:01 type vrf table {table}", f"ip link set {name} up")
    for device in w.some(devices, 2):
        w.add(f"ip link set {device.name} master {name}", f"ip addr add {device.own6}/64 dev {device.name} nodad")
        for n, near in enumerate([*device.near4, *device.near6]):
            w.add(f"ip neigh replace {near} lladdr {STATIONS[n % 2]} dev {device.name} nud permanent")
        for _ in range(w.randint(1, 3)):
            version = w.choice([4, 6])
            w.add(f"{'ip' if version == 4 else 'ip -6'} route add {features.prefix(w, version)} {w.hop2(version, w.choice([device, device, w.choice(w.routed())]))} vrf {name}")
        if w.chance(0.6):
            w.add(f"ip route add 198.51.100.0/24 {w.hop2(4, device)} vrf {name}", f"ip -6 route add 2001:db8:5::/48 {w.hop2(6, device)} vrf {name}")


# ------------------------------------------------------------------------------------------ above


def routes(w):
    back, way = w.choice(w.routed()), w.under
    w.add(f"ip route add 198.51.100.0/24 {w.hop2(4, back)}", f"ip -6 route add 2001:db8:5::/48 {w.hop2(6, back)}")
    w.add(f"ip route add 203.0.113.0/24 {w.hop2(4, way)}", f"ip -6 route add 2001:db8:f::/48 {w.hop2(6, way)}")
    for _ in range(w.randint(4, 10)):
        version = w.choice([4, 6])
        ip = "ip" if version == 4 else "ip -6"
        encap = w.maybe(0.2, features.seg6(w, version) if w.chance(0.8) else features.mpls_encap(w))
        w.add(f"{ip} route {w.choices(['add', 'replace'], [80, 20])[0]} {features.prefix(w, version)} {encap} {w.hop2(version)} {w.maybe(0.06, 'mtu 1300')}")
    for device in w.routed():
        w.target(3, lambda device=device: w.to_router(device, *w.inner()))


def segments(w):
    w.sids = w.some(SIDS, 3)
    for sid in w.sids:
        near = w.choice(w.routed())
        action = w.choice(
            ["End", "End flavors psp", f"End.X nh6 {w.choice(near.near6)}", "End.T table main", f"End.DX6 nh6 {w.choice(near.near6)}", f"End.DX4 nh4 {w.choice(near.near4)}"]
            + [f"End.DX2 oif {device}" for device in w.some(w.devices2, 4)]
            + [f"End.DT6 vrftable {TABLES[0]}", f"End.DT4 vrftable {TABLES[0]}", f"End.DT46 vrftable {TABLES[0]}"] * bool(w.vrfs)
        )
        w.add(f"ip -6 route add {sid}/128 encap seg6local action {action} {w.maybe(0.7, 'count')} dev {near.name}")
        w.target(3, lambda sid=sid: w.to_router(w.choice(w.routed()), 0x86DD, features.through(w, sid)))


# ---------------------------------------------------------------------------------------- changes


def changes(w):
    """What happens to devices in between."""
    for _ in range(w.randint(1, 5)):
        name = w.choice(list(w.devices2))
        device = w.devices2[name]
        what = w.choice(["mac", "mtu", "master", "nomaster", "updown", "down", "del", "bridge", "vlan", "fdb", "again", "word"])
        if what == "mac":
            device.mac = f"02:00:00:00:07:0{w.randint(1, 9)}"
            w.add(f"ip link set {name} address {device.mac}")
        elif what == "mtu":
            mtu = w.choice([1280, 1400, 1500])
            w.add(f"ip link set {name} mtu {mtu}")
            if name in PORTS:
                w.port_mtu[name] = mtu
        elif what == "master" and w.of_kind("bridge"):
            bridge = w.choice(w.of_kind("bridge"))
            w.add(f"ip link set {name} master {bridge.name}")
        elif what == "nomaster":
            w.add(f"ip link set {name} nomaster")
        elif what == "updown":
            w.add(f"ip link set {name} down", f"ip link set {name} up")
        elif what == "down" and device is not w.under and w.chance(0.4):
            w.add(f"ip link set {name} down")
        elif what == "del" and name not in PORTS and device is not w.under and w.chance(0.4):
            w.add(f"ip link del {name}")
        elif what == "bridge" and w.of_kind("bridge"):
            bridge = w.choice(w.of_kind("bridge"))
            w.add(f"ip link set {bridge.name} type bridge {w.choice(['vlan_filtering 1', 'vlan_filtering 0', 'vlan_default_pvid 20', 'vlan_default_pvid 1', 'vlan_protocol 802.1ad', 'vlan_protocol 802.1Q', 'ageing_time 1730', 'group_fwd_mask 0x4000', 'fdb_flush'])}")
        elif what == "vlan" and w.of_kind("bridge"):
            memberships(w, w.choice(w.of_kind("bridge")))
        elif what == "fdb" and w.of_kind("bridge"):
            entries(w, w.choice(w.of_kind("bridge")))
        elif what == "again":
            w.add(w.choice(w.lines))
        elif what == "word":
            words = w.choice(w.lines).split()
            at = w.randrange(len(words))
            if at > 1 and words[at - 1] not in ("master", "state"):
                words[at] = w.choice(["0", "default", "1", "::", "p0", "10.0.0.1", "65536", "main"])
                if " mtu " not in " ".join(words):
                    w.add(" ".join(words))


def generate(w):
    """The whole of a case but for its packets."""
    base(w)
    kinds = w.some([vlans_below, vxlans, geneves, gretaps, bridges, bridges], 4)
    for feature in (vlans_below, vxlans, geneves, gretaps):
        if feature in kinds:
            feature(w)
    if bridges in kinds:
        bridges(w)
    if w.chance(0.35):
        vlans_above(w)
    vlans_up(w)
    networks(w)
    if w.chance(0.25):
        into_vrfs(w)
    routes(w)
    if w.chance(0.25):
        segments(w)
    for device in w.devices2.values():
        if device.kind != "bridge":
            w.target(2 if device.own4 and device.kind == "port" else 7 if device.master else 4, lambda device=device: w.from_station(device))
    if w.chance(0.25):
        control.tc_hooks(w)
    if w.chance(0.12):
        control.qdiscs(w)
    if w.chance(0.45):
        changes(w)
