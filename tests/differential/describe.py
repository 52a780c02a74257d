"""A frame in words: its layers, with the fields of each, so that two can be compared field by field."""

import ipaddress
import struct


def layers(frame):
    """[(layer, {field: value})]; what cannot be read is `raw`."""
    found, kind, at = [], 0x6558, 0
    if len(frame) > 18 and frame[2] & 1 and frame[4:6] == frame[10:12] == b"\x02\0":
        # `mpls mac_push` has put a label before the Ethernet header.
        found, at = [labels(frame)[:2]], 4
    while at < len(frame):
        data = frame[at:]
        try:
            name, fields, kind, size = LAYERS.get(kind, raw)(data)
        except (struct.error, IndexError, ValueError):
            name, fields, kind, size = raw(data)
        found.append((name, fields))
        if size == 0:
            break
        at += size
    return found


def inside(frame):
    """(what is before, the frame that a VXLAN, a Geneve device or a VLAN device carries in this one), or None: behind the first
    of their headers. A packet gets an Ethernet header of nobody."""
    kind, at = 0x6558, 0
    while at < len(frame):
        try:
            name, _, following, size = LAYERS.get(kind, raw)(frame[at:])
        except (struct.error, IndexError, ValueError):
            return None
        if size == 0:
            return None
        if name == "vlan":
            return frame[12 : at + 4], frame[:12] + frame[at + 2 :] if at == 14 else None
        at += size
        if name in ("vxlan", "geneve") or name == "gre" and following == 0x6558:
            bare = following in (0x0800, 0x86DD, 0x8847)
            return frame[:at], bytes(12) + struct.pack("!H", following) + frame[at:] if bare else frame[at:]
        kind = following
    return None


def raw(data):
    return "raw", {"len": len(data), "data": data.hex()}, None, 0


def ethernet(data):
    (kind,) = struct.unpack_from("!H", data, 12)
    return "eth", {"dst": data[:6].hex(), "src": data[6:12].hex(), "type": f"{kind:#x}"}, kind, 14


def vlan(data):
    tci, kind = struct.unpack_from("!HH", data)
    return "vlan", {"tci": tci, "type": f"{kind:#x}"}, kind, 4


def labels(data):
    (word,) = struct.unpack_from("!I", data)
    kind = 0x8847 if not word & 0x100 else {4: 0x800, 6: 0x86DD}.get(data[4] >> 4 if len(data) > 4 else 0, 0x6558)
    return "mpls", {"label": word >> 12, "tc": word >> 9 & 7, "bottom": word >> 8 & 1, "ttl": word & 255}, kind, 4


def ip4(data):
    first, tos, length, ident, flags, ttl, protocol, sum = struct.unpack_from("!BBHHHBBH", data)
    source, destination = (str(ipaddress.ip_address(data[n : n + 4])) for n in (12, 16))
    size = 4 * (first & 15)
    fields = {"src": source, "dst": destination, "tos": tos, "len": length, "id": ident, "frag": f"{flags:#x}", "ttl": ttl, "proto": protocol, "sum": f"{sum:#x}"}
    if size > 20:
        fields["options"] = data[20:size].hex()
    if size < 20:
        return raw(data)
    return "ip4", fields, None if flags & 0x1FFF else ("proto", protocol, 4), size


def ip6(data):
    first, length, following, hops = struct.unpack_from("!IHBB", data)
    source, destination = (str(ipaddress.ip_address(data[n : n + 16])) for n in (8, 24))
    fields = {"src": source, "dst": destination, "tclass": first >> 20 & 255, "label": f"{first & 0xFFFFF:#x}", "len": length, "next": following, "hops": hops}
    return "ip6", fields, ("proto", following, 6), 40


# Where `bareudp`, VXLAN and Geneve devices of random configurations send to.
BARE_PORTS = (6635, 6636)
VXLAN_PORTS, GENEVE_PORTS = (4789, 8472), (6081, 6082)


def udp(data):
    source, destination, length, sum = struct.unpack_from("!HHHH", data)
    kind = {5555: ("proto", 4, 0), 5557: ("proto", 41, 0), 5558: ("proto", 47, 0), 5556: "gue", 5559: "gue"}.get(destination)
    if kind == "gue" and data[8:9] != b"\1" and data[10:12] in (b"\x08\0", b"\x86\xdd", b"\x65\x58", b"\x88\x47"):
        kind = ("proto", 47, 0)  # of a tunnel with `encap fou`
    if destination in (5555, 5557) and len(data) > 12:
        # A tunnel may send something else there.
        gue = data[8] < 2 and data[9] in (4, 41, 47)
        kind = "gue" if gue else ("proto", {4: 4, 6: 41}.get(data[8] >> 4, 47), 0)
    if destination in VXLAN_PORTS + GENEVE_PORTS and len(data) >= 16:
        kind = "vxlan" if destination in VXLAN_PORTS else "geneve"
    if destination in BARE_PORTS and len(data) > 8:
        kind = {4: 0x800, 6: 0x86DD}.get(data[8] >> 4, 0x8847)
    return "udp", {"sport": source, "dport": destination, "len": length, "sum": f"{sum:#x}"}, kind, 8


def vxlan(data):
    flags, number = struct.unpack_from("!II", data)
    return "vxlan", {"flags": f"{flags:#x}", "vni": number >> 8, "last": number & 255}, 0x6558, 8


def geneve(data):
    first, flags, kind, number = struct.unpack_from("!BBHI", data)
    size = 8 + 4 * (first & 63)
    fields = {"first": first, "flags": flags, "type": f"{kind:#x}", "vni": number >> 8, "options": data[8:size].hex()}
    return "geneve", fields, kind, size


def gue(data):
    size = 4 + 4 * (data[0] & 31)
    return "gue", {"head": data[:size].hex()}, ("proto", data[1], 0), size


def tcp(data):
    return "tcp", {"data": data.hex()}, None, 0


def gre(data):
    flags, kind = struct.unpack_from("!HH", data)
    size = 4 + 4 * (flags >> 15 & 1) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1)
    return "gre", {"flags": f"{flags:#x}", "type": f"{kind:#x}", "rest": data[4:size].hex()}, kind, size


def icmp(data, version):
    kind, code, sum, rest = struct.unpack_from("!BBHI", data)
    error = kind < 128 if version == 6 else kind in (3, 4, 5, 11, 12)
    fields = {"type": kind, "code": code, "sum": f"{sum:#x}", "rest": f"{rest:#x}"}
    if not error:
        fields["data"] = data[8:].hex()
        return "icmp", fields, None, 0
    return "icmp", fields, ("quoted", version), 8


def extension(name):
    def parse(data):
        size = 8 * (data[1] + 1)
        fields = {"next": data[0], "data": data[1:size].hex()}
        if name == "routing":
            fields = {"next": data[0], "type": data[2], "left": data[3], "data": data[4:size].hex()}
        return name, fields, ("proto", data[0], 6), size

    return parse


def fragment(data):
    following, _, offset, ident = struct.unpack_from("!BBHI", data)
    return "frag6", {"next": following, "offset": f"{offset:#x}", "id": ident}, ("proto", following, 6) if offset & 0xFFF8 == 0 else None, 8


class Layers(dict):
    def get(self, kind, default):
        if isinstance(kind, tuple) and kind[0] == "quoted":
            return lambda data: (lambda l: ("quoted " + l[0], *l[1:]))(ip6(data) if kind[1] == 6 else ip4(data))
        if isinstance(kind, tuple):
            _, protocol, version = kind
            if protocol in (1, 58):
                return lambda data: icmp(data, 6 if protocol == 58 else 4)
            kind = {4: 0x800, 41: 0x86DD, 47: "gre", 17: "udp", 6: "tcp", 137: 0x8847, 143: 0x6558}.get(protocol)
            if version == 6:
                kind = {0: "hbh", 43: "routing", 60: "dstopt", 44: "frag6"}.get(protocol, kind)
        return super().get(kind, default)


LAYERS = Layers({
    0x6558: ethernet, 0x8100: vlan, 0x88A8: vlan, 0x8847: labels, 0x8848: labels, 0x800: ip4, 0x86DD: ip6, "gre": gre, "udp": udp,
    "tcp": tcp, "gue": gue, "vxlan": vxlan, "geneve": geneve, "hbh": extension("hbh"), "dstopt": extension("dstopt"), "routing": extension("routing"), "frag6": fragment,
})


def chain(frame):
    """The layers' names."""
    names = []
    for name, fields in layers(frame):
        names.append(name + (f"({fields['type']},{fields['code']})" if name == "icmp" else ""))
        if name.startswith("quoted"):
            break
    return "/".join(n for n in names if n != "raw")


def words(frame):
    text = []
    for name, fields in layers(frame):
        short = {k: (v if len(str(v)) < 260 else str(v)[:260] + "…") for k, v in fields.items()}
        text.append(name + " " + " ".join(f"{k}={v}" for k, v in short.items()))
    return " | ".join(text)


def difference(a, b):
    """What distinguishes two frames: the fields, or the chains of layers."""
    if chain(a) != chain(b):
        return f"{chain(a)} → {chain(b)}"
    fields, path = [], []
    for (name, x), (_, y) in zip(layers(a), layers(b)):
        path.append(name)
        for key in x:
            if x.get(key) != y.get(key) and not (key in ("sum", "len")):
                fields.append(f"{name}.{key}")
        if len(x) != len(y):
            fields.append(f"{name}.?")
    return chain(a) + ": " + " ".join(dict.fromkeys(fields)) if fields else chain(a) + ": sums or lengths"
