"""What differs on purpose at VLAN devices, bridges, VXLAN and Geneve devices."""

import re

import compare
import describe

from .common import changed, error, pair, purpose

ABOVE = r"link add .* type (vlan|bridge|vxlan|geneve|gretap|ip6gretap) "


def counted(difference):
    """{which counter: (Linux's, the router's)} of a difference of a link's counter, or of the lines of one qdisc or filter."""
    if "link" in difference.more:
        key = difference.more["key"].rsplit(".", 1)[-1]
        numbers = difference.linux + difference.ours
        return {key: tuple(map(int, numbers))} if difference.kind.startswith("shows link") and all(n.isdigit() for n in numbers) else {}
    if not difference.kind.startswith("shows tc -s: ") or len(difference.linux) != len(difference.ours):
        return {}
    found = {}
    for n, lines in enumerate(zip(difference.linux, difference.ours)):
        sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt(.*)", line) for line in lines]
        if None in sent or sent[0][3] != sent[1][3]:
            return {}
        found[n, "bytes"] = int(sent[0][1]), int(sent[1][1])
        found[n, "packets"] = int(sent[0][2]), int(sent[1][2])
    return found


@purpose("A link counts a tag that is in the frame")
def counts_tags(case, facts, difference, here):
    """Four bytes for a tag, up to three of each frame that is counted there."""
    numbers = counted(difference)
    packets = difference.more.get("packets") or max([max(pair) for key, pair in numbers.items() if "packets" in key], default=0)
    is_of_tags = lambda key, a, b: a == b or "bytes" in key and abs(a - b) <= 12 * packets and (a - b) % 4 == 0
    tagged = any("vlan" in line for line in facts.lines) or any(frame[24:28] in ("8100", "88a8") for _, _, frame in case["packets"])
    return bool(numbers) and tagged and any(re.search(ABOVE, line + " ") for line in facts.lines) and all(is_of_tags(key, *pair) for key, pair in numbers.items())


def sends(difference):
    """Whether it is of what a link sends that is none of the ports, whose frames are seen, or of what a qdisc or a filter counts."""
    if not difference.kind.startswith("shows link"):
        return True
    return difference.more["link"] not in ("p0", "p1", "p2") and difference.more["key"].startswith("stats64.tx.")


@purpose("The router answers for itself")
def asks_above(case, facts, difference, here):
    """Linux asks for a neighbour three times, by a device above others too, and each of these counts it."""
    numbers = counted(difference)
    more = {key: a - b for key, (a, b) in numbers.items()}
    asked = 3 * 4 * here["drops"].get("neighbour-unresolved", 0)
    most = lambda key: asked * (150 if "bytes" in key else 1)
    fits = all(0 <= n <= most(key) and n % 3 == 0 and ("bytes" in key or "packets" in key) for key, n in more.items())
    return bool(numbers) and sends(difference) and fits and any(re.search(ABOVE, line + " ") for line in facts.lines)


# What a frame at a port has more than in a device above: tags, and the outer headers of tunnels.
OUTSIDE = [0, 4, 8, 12, 50, 54, 58, 70, 74, 38, 42, 46, 58, 66]


def redirect(frame):
    """How long the frame is in which Linux says of an IPv6 packet that there is a shorter way; 0 for others. Linux:
    `ndisc_send_redirect`."""
    while carried := describe.inside(frame):
        frame = carried[1]
    return 14 + 40 + 40 + 8 + min(len(frame) - 14 + 8, 1280 - 88) // 8 * 8 if frame[12:14] == b"\x86\xdd" else 0


@purpose("The router answers for itself")
def says_above(case, facts, difference, here):
    """What Linux says on its own account, and what has left by a port, the devices above it have counted, too: that there is a
    shorter way, and what it asks whom it has heard of."""
    numbers = counted(difference)
    sizes = [size for _, size in here.get("noise", [])] + [redirect(bytes.fromhex(frame)) for _, _, frame in case["packets"]]
    sizes = [size for size in sizes if size]
    if not numbers or not sizes or not sends(difference) or not any(re.search(ABOVE, line + " ") for line in facts.lines):
        return False
    for key, (a, b) in numbers.items():
        if "bytes" not in key:
            if "packets" not in key or not 0 <= a - b <= len(sizes):
                return False
            continue
        sums = {0}
        for size in sizes:
            sums |= {total + size - less for total in sums for less in OUTSIDE if 28 <= size - less and total + size - less <= a - b}
        if a - b not in sums:
            return False
    return any(a != b for a, b in numbers.values())


@purpose("The router answers for itself")
def hears_of_neighbours(case, facts, difference, here):
    """Linux sends to a neighbour of which it has heard by ARP or a solicitation while it asked for it."""
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    came = [bytes.fromhex(frame) for _, _, frame in case["packets"]]
    heard = set()
    for frame in came:
        layers = describe.layers(frame)
        last = [fields for name, fields in layers if name == "eth"][-1:]
        if last and any(fields.get("type") == "0x806" or name == "icmp" and fields["type"] in (135, 136) for name, fields in layers):
            heard |= {last[0]["src"], *re.findall(r"025a0000000\d", frame.hex())}
    return bool(there) and not ours and "neighbour-unresolved" in here["drops"] and all(frame[:6].hex() in heard for frame in there)


@purpose("A frame that a bridge sends into a VXLAN or a Geneve device tells its sender nothing")
def tells_nothing(case, facts, difference, here):
    """Linux answers in the name of the station: what is too long is of a frame near the MTU."""
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if not any(" type bridge" in line for line in facts.lines):
        return False
    too_big = lambda frame: re.search(r"icmp\((2,0|3,4)\)/quoted", describe.chain(frame)) is not None
    pieces = lambda frame: re.search(r"ip4.*/udp|ip6/udp/|frag6|gre", describe.chain(frame)) is not None or frame[12:14] == b"\x08\0" and int.from_bytes(frame[20:22], "big") & 0x3FFF
    long = any(len(frame) > 2 * 1200 for _, frame in difference.more.get("inputs") or [])
    # That leaves by the port of whoever hears it.
    fragments = any(int.from_bytes(frame[20:22], "big") & 0x2000 and frame[12:14] == b"\x08\0" or "frag6" in describe.chain(frame) for frame in ours)
    return long and (there or fragments) and all(too_big(frame) for frame in there) and all(pieces(frame) for frame in ours)


def congested(frame):
    """The frame with a tag that a tunnel carries in a packet with ECN, or None."""
    layers = describe.layers(frame)
    outer = next((fields for name, fields in layers if name in ("ip4", "ip6")), {})
    carried = describe.inside(frame)
    while carried and carried[1][12:14] not in (b"\x81\0", b"\x88\xa8"):
        carried = describe.inside(carried[1])
    marked = outer.get("tos", outer.get("tclass", 0)) & 3
    names = [name for name, _ in layers]
    return carried[1] if marked and carried and "eth" in names[1:] else None


@purpose("ECN behind a tag is left as it is")
def ecn_behind_tag(case, facts, difference, here):
    """Linux drops what comes out of a tunnel by bits of the tag."""
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    frames = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return difference.kind.startswith("packet") and not there and bool(ours) and any(congested(frame) for frame in frames)


@purpose("ECN behind a tag is left as it is")
def counts_behind_tag(case, facts, difference, here):
    """Which it counts as an error of the device, and neither there nor above as a packet."""
    dropped = [found for _, _, frame in case["packets"] if (found := congested(bytes.fromhex(frame)))]
    key = difference.more.get("key", "")
    if not dropped or not difference.kind.startswith("shows link ") or not re.fullmatch(r"stats64\.rx\.(packets|bytes|errors|dropped)", key):
        return False
    more = int(difference.ours[0]) - int(difference.linux[0])
    if key.endswith("dropped"):
        # There of the tunnel, here of whoever does not take it.
        return 0 < abs(more) <= len(dropped)
    if not key.endswith("bytes"):
        return 0 < (-more if key.endswith("errors") else more) <= len(dropped)
    sums = {0}
    for frame in dropped:
        sums |= {total + len(frame) - less for total in sums for less in (0, 4, 14, 18)}
    return more in sums - {0}


@purpose("A tag hides the packet inside from a gretap over IPv4")
def behind_tag_into_gretap(case, facts, difference, here):
    a, b = pair(difference)
    names = [name for name, _ in describe.layers(a)] if a else []
    if not b or "vlan" not in names or "gre" not in names[: names.index("vlan")] or changed(a, b) is None:
        return False
    outer = names.index("gre") - 1
    fields = [layers[outer][1] for layers in (describe.layers(a), describe.layers(b))]
    same = [{key: value for key, value in one.items() if key not in ("ttl", "tos", "id", "sum")} for one in fields]
    inside = [frame[frame.index(b"\x65\x58") :] for frame in (a, b)]
    return names[outer] == "ip4" and same[0] == same[1] and fields[1]["ttl"] == 64 and fields[1]["tos"] in (0, fields[0]["tos"]) and inside[0] == inside[1]


@purpose("`promiscuity` and `allmulti` of a link count its bridge alone")
def listening(case, facts, difference, here):
    if difference.more.get("key") in compare.LISTENING:
        return True
    # A VRF that takes a link down and up leaves the flag there.
    plain = lambda lines: [re.sub(r"'(PROMISC|ALLMULTI)', |,PROMISC|,ALLMULTI", "", line) for line in lines]
    flags = difference.more.get("key") == "flags" or difference.kind.startswith(("before ip: ", "before bridge -d: "))
    return bool(flags and any("PROMISC" in line for line in difference.linux) and plain(difference.linux) == plain(difference.ours) and any(" master vrf" in line for line in facts.lines))


@purpose("Copies of a frame leave in another order")
def order_of_copies(case, facts, difference, here):
    bridged = any(" type bridge " in line or "fdb append" in line for line in facts.lines)
    return bridged and difference.kind.startswith("packets in another order") and difference.more["same"]


@purpose("Tags before that of a device without `reorder_hdr` do not move its addresses")
def moved_addresses(case, facts, difference, here):
    """Linux puts the tag back four bytes before where the addresses begin."""
    a, b = pair(difference)
    return a and b and a[12:] == b[12:] and a[:8] == b[4:12] and any("reorder_hdr off" in line for line in facts.lines)


@purpose("So does the sender of one that is too long for the underlay of a VXLAN or a Geneve device")
def tells_at_once(case, facts, difference, here):
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    too_big = lambda frame: re.search(r"icmp\((2,0|3,4)\)/quoted", describe.chain(frame)) is not None
    long = any(len(frame) > 2 * 1200 for _, frame in difference.more.get("inputs") or [])
    # Linux sends the first in fragments.
    cut = lambda frame: frame[12:14] == b"\x08\0" and int.from_bytes(frame[20:22], "big") & 0x3FFF or "frag6" in describe.chain(frame)
    return bool(ours) and all(map(cut, there)) and long and all(map(too_big, ours)) and any(re.search(r" type (vxlan|geneve) ", line) for line in facts.lines)


@purpose("Each Geneve device says for itself")
def geneve_without_sum(case, facts, difference, here):
    """Of several devices at a port the first that comes up decides for all whether datagrams without a checksum come in."""
    ports = [match[1] for line in facts.lines if (match := re.search(r"link add .* type geneve .*dstport (\d+)", line))]
    shared = {int(port) for port in ports if ports.count(port) > 1}
    inputs = [describe.layers(bytes.fromhex(frame)) for _, frame in difference.more.get("inputs") or []]
    unsummed = lambda layers: any(name == "ip6" for name, _ in layers) and any(name == "udp" and fields["dport"] in shared and fields["sum"] == "0x0" for name, fields in layers)
    return difference.kind.startswith("packet") and any(map(unsummed, inputs))


@purpose("Packet Too Big says the MTU of the route")
def mtu_of_route(case, facts, difference, here):
    """The same error, with the MTU of a link in Linux and of a route here."""
    a, b = pair(difference)
    if not b or not error(a) or error(a)[:3] != (6, 2, 0) or (changed(a, b) or set()) - {"icmp.sum"} != {"icmp.rest"}:
        return False
    mtus = [next(int(fields["rest"], 16) for name, fields in describe.layers(frame) if name == "icmp") for frame in (a, b)]
    return mtus[1] < mtus[0] and facts.leads(error(a)[3][0][1]["dst"], rf" mtu {mtus[1]}\b")


@purpose("A tag that a device without `reorder_hdr` leaves in the frame is not in `l2encap`")
def tagged_frame(case, facts, difference, here):
    a, b = pair(difference)
    if not b or len(a) != len(b) + 4 or not any("l2encap" in line for line in facts.lines) or not any("reorder_hdr off" in line for line in facts.lines):
        return False
    # The frame is the last that begins with addresses of one that came in.
    ends = {bytes.fromhex(frame)[:12] for _, frame in difference.more.get("inputs") or []}
    at = max((b.rfind(end, 54) for end in ends), default=-1) + 12
    return at > 65 and a[at : at + 2] in (b"\x81\0", b"\x88\xa8") and a[at + 4 :] == b[at:]


@purpose("A frame that a bridge drops as too long for an ip6gretap is no error of that")
def too_long_for_port(case, facts, difference, here):
    key, link = difference.more.get("key", ""), difference.more.get("link", "")
    port = any(re.search(rf"link set {link} .*master br\d", line) for line in facts.lines) if link else False
    if not port or facts.tunnels.get(link) != "ip6gretap" or not re.fullmatch(r"stats64\.tx\.(errors|dropped)", key) or not difference.kind.startswith("shows "):
        return False
    long = sum(len(frame) > 2 * 1280 for _, _, frame in case["packets"])
    return 0 < int(difference.linux[0]) - int(difference.ours[0]) <= long


@purpose("A device counts what is dropped below it as sent")
def dropped_below(case, facts, difference, here):
    """Filters and qdiscs where frames leave have dropped some, or the link has no carrier; each is counted by one of these."""
    key, link = difference.more.get("key", ""), difference.more.get("link", "")
    if not re.fullmatch(r"(v|vx|gn|tap|br)\d", link) or not re.fullmatch(r"stats64\.tx\.\w+", key) or not difference.kind.startswith("shows "):
        return False
    leaving = any(re.search(r"filter add dev \S+ egress |qdisc add dev \S+ root ", line) for line in facts.lines)
    dropped = sum(count for reason, count in here["drops"].items() if re.match(r"tc-|police|qdisc|mirred|mpls", reason)) if leaving else 0
    if not dropped and any(re.search(rf"\b{link}\b.*NO-CARRIER", said["out"]) for said in here["before"]):
        dropped = len(case["packets"])
    more = int(difference.ours[0]) - int(difference.linux[0])
    if key.endswith(("errors", "dropped")):
        return 0 < -more <= dropped
    return 0 < more <= dropped * (1600 if key.endswith("bytes") else 1)
