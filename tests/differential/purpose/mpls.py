"""What differs on purpose: "MPLS" in docs/differences.md."""

import ipaddress
import re

import compare
import describe

from .common import address_pair, counts_more, error, inputs, lost_elsewhere, only, pair, purpose, tried


@purpose("The sender hears of what does not go on")
def labels(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    if told and told[1:3] in ((3, 1), (1, 3)):
        # Of a neighbour that does not answer: what it quotes came below labels.
        about = {key: told[3][0][1][key] for key in ("src", "dst")}
        came = tried(case, difference)
        return any(any(name == "mpls" for name, _ in layers[:3]) and any(about.items() <= values.items() for _, values in layers) for layers in came)
    return bool(told) and told[1:3] in ((11, 0), (3, 0), (3, 4), (2, 0)) and (
        any(layers[1:2] and layers[1][0] in ("mpls", "vlan") and any(n == "mpls" for n, _ in layers) for layers in tried(case, difference))
        or any("encap mpls" in line for line in facts.lines) and facts.leads(told[3][0][1]["dst"], "encap mpls|nhid")
    ) and (told[0] == 4 or told[1:3] != (3, 4))


@purpose("The sender hears of what does not go on")
def cut_below_labels(case, facts, difference, here):
    # What is too long with its labels, and may be cut.
    frames = difference.more.get("here") or []
    if difference.more.get("there") or len(frames) < 2:
        return False
    cut = set()
    for frame in frames:
        below = [layer for layer in describe.layers(frame)[1:] if layer[0] != "mpls"]
        if below == describe.layers(frame)[1:] or below[0][0] != "ip4" or not int(below[0][1]["frag"], 16) & 0x3FFF:
            return False
        cut.add(tuple(below[0][1][key] for key in ("src", "dst", "id")))
    came = {tuple(values[key] for key in ("src", "dst", "id")) for layers in inputs(difference) for name, values in layers if name == "ip4"}
    return len(cut) == 1 and cut <= came


@purpose("The sender hears of what does not go on")
def into_vrf(case, facts, difference, here):
    # By a label into a VRF, its hop limit its own and used up: Linux sends it with hop limit 0.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    told = len(b) == 1 and error(b[0])
    if b and (not told or told[1:3] not in ((11, 0), (3, 0))):
        return False
    if cut := used_up_inside(a, inputs(difference)):
        return cut
    if len(a) != 1:
        return False
    # A route of the VRF may put labels on it.
    pushes = any("encap mpls" in line for line in facts.lines)
    below = [layer for layer in describe.layers(a[0])[1:] if layer[0] != "mpls" or not pushes]
    sent = next((values for name, values in below[:1] if name in ("ip4", "ip6")), {})
    if sent.get("ttl", sent.get("hops")) != 0:
        return False
    return any(
        layers[1:2] and layers[1][0] == "mpls" and any(values.get("src") == sent["src"] and values.get("dst") == sent["dst"] for _, values in layers[2:])
        for layers in inputs(difference)
    )


def used_up_inside(frames, came):
    """Whether frames are a packet in a tunnel, or parts of it, whose hop limit is 0, and which came below a label as the last hop."""
    outer = [layers[1][1] for layers in map(describe.layers, frames) if layers[1:] and layers[1][0] in ("ip4", "ip6")]
    if not outer or len(outer) < len(frames) or len({(one["src"], one["dst"], one.get("id")) for one in outer}) > 1:
        return False
    inside = [values for frame in frames for name, values in describe.layers(frame)[2:] if name in ("ip4", "ip6") and values.get("ttl", values.get("hops")) == 0]
    ends = {(values["src"], values["dst"]) for layers in came if layers[1:2] and layers[1][0] == "mpls" for name, values in layers[2:] if name in ("ip4", "ip6") and values.get("ttl", values.get("hops")) == 1}
    return len(inside) == 1 and (inside[0]["src"], inside[0]["dst"]) in ends


@purpose("What a label leads into a VRF is checked")
def malformed_in_vrf(case, facts, difference, here):
    a = difference.more.get("there")
    if not a or difference.more.get("here"):
        return False
    below = malformed_below(facts, [frame for _, frame in difference.more.get("inputs") or []])
    # Linux sends it on, its hop limit lowered, or into a tunnel, or says that it is too long for that.
    told = len(a) == 1 and error(a[0])
    if told and told[:3] in ((6, 2, 0), (4, 3, 4)):
        return any(packet[8:40] == address_pair(told[3][0][1]) if told[0] == 6 else packet[12:20] == address_pair(told[3][0][1]) for packet in below)
    inside = lambda f: facts.tunnels and any(len(packet) > 28 and packet[20:] in f for packet in below)
    return all(any(f[34:] in (packet[20:], packet[20 : len(f) - 14]) for packet in below) or inside(f) for f in a)


def malformed_below(facts, frames):
    """What is malformed in frames below a label that leads into a VRF."""
    into_vrf = {match[1] for line in facts.lines if (match := re.search(r"mpls route (?:add|replace) (\d+) +dev vrf", line))}
    below = []
    for frame in map(bytes.fromhex, frames):
        if frame[12:14] == b"\x88\x47":
            at = next((n for n in range(14, len(frame) - 3, 4) if frame[n + 2] & 1), len(frame))
            if str(int.from_bytes(frame[at : at + 3], "big") >> 4) in into_vrf and is_malformed(frame[at + 4 :]):
                below.append(frame[at + 4 :])
    return below


@purpose("What a label leads into a VRF is checked")
def counted_as_malformed(case, facts, difference, here):
    # And is an error of the VRF.
    if not str(difference.more.get("link")).startswith("vrf") or difference.more["key"] != "stats64.tx.errors":
        return False
    return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= len(malformed_below(facts, [frame for _, _, frame in case["packets"]]))


@purpose("What a label leads into a VRF is checked")
def malformed_and_lost(case, facts, difference, here):
    # What Linux sends of it into a tunnel is counted there, and its filters count it.
    below = malformed_below(facts, [frame for _, _, frame in case["packets"]])
    packets = [describe.layers(bytes(12) + (b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\0") + packet)[1:] for packet in below if packet]
    if difference.more.get("key") == "stats64.tx.errors" and re.fullmatch(r"tun\d", difference.more["link"]):
        return 0 < int(difference.linux[0]) - int(difference.ours[0]) <= len(packets)
    return bool(packets) and lost_elsewhere(difference, packets)


def is_malformed(packet):
    """Whether Linux would drop a packet where it comes in by a port, for what is in its IP header."""
    if packet[:1] and packet[0] >> 4 == 6 and len(packet) >= 40:
        source = ipaddress.IPv6Address(packet[8:24])
        return 40 + int.from_bytes(packet[4:6], "big") > len(packet) or source.is_multicast or source.is_loopback
    if packet[:1] and packet[0] >> 4 == 4 and len(packet) >= 20:
        size, total = 4 * (packet[0] & 15), int.from_bytes(packet[2:4], "big")
        if not 20 <= size <= total <= len(packet):
            return True
        words = sum(int.from_bytes(packet[n : n + 2], "big") for n in range(0, size, 2))
        source = ipaddress.IPv4Address(packet[12:16])
        return words % 0xFFFF != 0 or source.is_multicast or source.is_loopback or packet[12] == 0 or source == ipaddress.IPv4Address("255.255.255.255")
    return True


def as_long_as(frame, shorter):
    """A frame that SRv6 has put an IPv6 header before, with the payload length of a shorter one."""
    if frame is None or frame[12:14] != b"\x86\xdd" or frame[20] != 43:
        return frame
    return frame[:18] + shorter[18:20] + frame[20:]


@purpose("What a label leads into a VRF is checked")
def behind_packet(case, facts, difference, here):
    # What is behind the packet in the frame.
    a, b = pair(difference)
    a = as_long_as(a, b)
    if a is None or len(a) <= len(b) or a[: len(b)] != b or not any(re.search(r"mpls route (add|replace) \d+ +dev vrf", line) for line in facts.lines):
        return False
    # Behind the labels that its route has given it then.
    at = 14
    while b[12:14] == b"\x88\x47" and len(b) > at + 4 and (at == 14 or not b[at - 2] & 1):
        at += 4
    own = at + (40 + int.from_bytes(b[at + 4 : at + 6], "big") if b[at] >> 4 == 6 else int.from_bytes(b[at + 2 : at + 4], "big"))
    outside = 48 + 8 * b[55] if b[12:14] == b"\x86\xdd" and b[20] == 43 else 0
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return len(b) == own and any(frame[12:14] == b"\x88\x47" and frame.endswith(a[at + 20 + outside :]) for frame in came)


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def no_gateway(case, facts, difference, here):
    a = difference.more.get("there")
    return bool(a) and not difference.more.get("here") and all(
        [name for name, _ in describe.layers(f)][:2] == ["eth", "mpls"] and f[:6] == b"\xff" * 6 for f in a
    )


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def no_gateway_filtered(case, facts, difference, here):
    # A filter where it leaves has sent the broadcast into a tunnel.
    a = difference.more.get("there")
    sent = any(re.search(r"filter add dev p\d egress .*mirred egress (mirror|redirect) dev tun\d", line) for line in facts.lines)
    if not a or difference.more.get("here") or not sent or not here["drops"].get("neighbour-unresolved"):
        return False

    def labelled(frame):
        layers = describe.layers(frame)
        below = next((values for (over, _), (name, values) in zip(layers, layers[1:]) if over == "mpls" and name in ("ip4", "ip6")), None)
        return below is not None and facts.leads(below["dst"], r"encap mpls \S+ (ttl \d+ )?dev ")

    return all(map(labelled, a))


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def told_of_labels(case, facts, difference, here):
    # Of a labelled packet whose neighbour does not answer, as if its labels began an IPv6 header.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 1, 3):
        return False
    # The message may be in a tunnel.
    quoted = a[0][a[0].index(address_pair(told[3][0][1])) - 8 :]
    labels = below_labels(quoted, [bytes.fromhex(frame) for _, _, frame in case["packets"]])
    return labels is not None and any("encap mpls" in line and " via " not in line for line in facts.lines)


def below_labels(quoted, packets):
    """Where the IPv6 packet begins in what an error quotes of labels before it: one of `packets`, or one that a SID has sent to a
    segment of it."""
    came = lambda ends: any(ends[:16] in packet and ends[16:] in packet for packet in packets)
    labels = [n for n in (4, 8, 12) if len(quoted) >= n + 40 and came(quoted[n + 8 : n + 40])]
    return labels[0] if labels and quoted[labels[0]] >> 4 == 6 else None


@purpose("The labels of an action are no IPv6 header")
def told_of_pushed(case, facts, difference, here):
    # Of one that an earlier packet has not arrived for, or of such a message that goes into the tunnel in its turn.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    pushed = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (tun\d) (?:egress|parent) .*action mpls (?:mac_)?push ", line))}
    if not told or told[:3] != (6, 1, 3) or not any(facts.tunnels.get(name) in ("ipip", "sit", "gre") for name in pushed):
        return False
    quoted = a[0][a[0].index(address_pair(told[3][0][1])) - 8 :]
    messages = [frame for frame in (bytes.fromhex(frame) for _, _, frame in here.get("linux", [])) if (one := error(frame)) and one[:3] == (6, 1, 3)]
    return below_labels(quoted, [bytes.fromhex(frame) for _, _, frame in case["packets"]] + messages) is not None


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def told_of_labels_into_tunnel(case, facts, difference, here):
    # The default route leads such a message into a tunnel, which counts it, or its filters.
    at = difference.more.get("link") or next(iter(re.findall(r" dev (tun\d) ", difference.what + " ")), r"tun\d")
    labels = {line.split("encap mpls ")[1].split()[0].count("/") + 1 for line in facts.lines if "-6 route" in line and "encap mpls" in line and " via " not in line}
    if not labels or not any(re.search(rf"-6 route \w+ default .*dev {at}\b", line) for line in facts.lines):
        return False
    # What a SID or a policy has made longer may have gone there.
    growth = {0}
    for line in facts.lines:
        for segments in re.findall(r"segs (\S+)", line):
            listed = segments.count(",") + 1
            growth |= {8 + 16 * n for n in (listed, listed + 1)} | {40 + 8 + 16 * n + frame for n in (listed, listed - 1) for frame in (0, 14)} | {40, 54}
    packets = []
    for layers in tried(case, difference):
        inside = [values["len"] + (40 if name == "ip6" else 0) for name, values in layers if name in ("ip4", "ip6")]
        packets.append({48 + min(4 * n + size + more, 1232) for n in labels for size in inside for more in growth})
    swapped = compare.Difference(difference.kind, difference.what, difference.ours, difference.linux, **difference.more)
    more = re.findall(r"(\d+) pkt", " ".join(difference.linux)), re.findall(r"(\d+) pkt", " ".join(difference.ours))
    few = all(int(x) - int(y) <= here["drops"].get("neighbour-unresolved", 0) for x, y in zip(*more))
    return few and counts_more(swapped, packets)


@purpose("The sender hears of what does not go on")
def used_up_in_vrf(case, facts, difference, here):
    # What has a hop limit of 1 below a label that does not hand its own down goes into a VRF in Linux, with 0, and is counted where
    # that leads it.
    off = any(line.endswith("net.mpls.ip_ttl_propagate=0") for line in facts.lines)
    into = set()
    for line in facts.lines:
        route = re.search(r"mpls route (?:add|replace) (\d+) +dev vrf\d(.*)", line)
        if route and ("ttl-propagate disabled" in route[2] or off and "ttl-propagate" not in route[2]):
            into.add(int(route[1]))
    packets = []
    for _, _, frame in case["packets"]:
        layers = describe.layers(bytes.fromhex(frame))
        at = next((n for n, (name, values) in enumerate(layers) if name == "mpls" and values["bottom"]), None)
        if at is not None and int(layers[at][1]["label"]) in into and len(layers) > at + 1 and layers[at + 1][1].get("ttl", layers[at + 1][1].get("hops", 2)) <= 1:
            # One that is cut off goes as it is.
            (name, values), whole = layers[at + 1], len(frame) // 2 - 14 - 4 * at - (40 if layers[at + 1][0] == "ip6" else 0)
            packets.append([(name, {**values, "len": min(values["len"], whole)}), *layers[at + 2 :]])
    if difference.more.get("key") == "stats64.tx.errors" and facts.tunnels.get(difference.more["link"]) == "vrf":
        return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= len(packets)
    return bool(packets) and lost_elsewhere(difference, packets)


@purpose("A label stack without an end, or of more than 30 entries, is dropped")
def endless_stack(case, facts, difference, here):
    if not difference.more.get("there") or difference.more.get("here") or not here["drops"].get("label-stack-malformed"):
        return False
    return any(layers[1:] and layers[1][0] == "mpls" and not any(values.get("bottom") for name, values in layers if name == "mpls") for layers in inputs(difference))


@purpose("So is what is below the last label if it is shorter than an IP header")
def shorter_at_vrf(case, facts, difference, here):
    # Linux counts it at the VRF's device, which cannot send it.
    if difference.more.get("key") != "stats64.tx.errors" or facts.tunnels.get(difference.more["link"]) != "vrf":
        return False
    into = any(re.search(rf"mpls route \S+ \d+ .*dev {difference.more['link']}\b", line) for line in facts.lines)
    return into and 0 < int(difference.linux[0]) - int(difference.ours[0]) <= here["drops"].get("label-stack-malformed", 0)


@purpose("So is what is below the last label if it is shorter than an IP header")
def shorter_than_a_header(case, facts, difference, here):
    a = difference.more.get("there")
    if not a or difference.more.get("here") or not any(layers[1:2] and layers[1][0] == "mpls" for layers in inputs(difference)):
        return False
    least = {b"\x08\x00": 20, b"\x86\xdd": 40}
    # A filter may have given it a tag.
    tags = [4 if frame[12:14] in (b"\x81\x00", b"\x88\xa8") else 0 for frame in a]
    return all(len(frame) < 14 + tag + least.get(frame[12 + tag : 14 + tag], 0) for frame, tag in zip(a, tags))
