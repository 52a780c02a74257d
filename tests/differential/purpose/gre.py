"""What differs on purpose: "Tunnels" in docs/differences.md, GRE."""

import ipaddress
import re

import describe

from .common import OWN, address_pair, arrived, changed, error, inputs, lost_elsewhere, pair, purpose, without_requests


@purpose("Nobody hears of GRE over IPv6 in a frame for a group of stations")
def gre_in_group_frame(case, facts, difference, here):
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    names = [name for name, _ in told[3] if name not in ("hbh", "dstopt", "gue")][:3] if told else []
    if not told or told[0] != 6 or told[1:3] != (1, 4) or "gre" not in names[1:] or names[1] not in ("gre", "udp"):
        return False
    outer = lambda layers: next((values for name, values in layers[1:] if name not in ("vlan", "eth")), {})
    to_group = lambda layers: int(layers[0][1]["dst"][:2], 16) & 1
    return any(to_group(layers) and all(outer(layers).get(end) == told[3][0][1][end] for end in ("src", "dst")) for layers in inputs(difference))


@purpose("With GRE and no remote address nothing is sent")
def sent_by_itself(case, facts, difference, here):
    # What Linux sends there the device's queue counts with the outer header that it is given before.
    gre = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line and " external" not in line}
    at = re.match(r"(?:qdisc|class) .* dev (tun\d) ", difference.what + " ")
    sent = [re.match(r" Sent (\d+) bytes (\d+) pkt(.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or at[1] not in gre or None in sent or sent[0].groups()[1:] != sent[1].groups()[1:]:
        return False
    more = int(sent[0][1]) - int(sent[1][1])
    # An IPv4 or IPv6 header, GRE, and those of UDP and GUE.
    return 24 * int(sent[0][2]) <= more <= (40 + 16 + 8 + 4) * int(sent[0][2])


@purpose("With GRE and no remote address nothing is sent")
def classified_with_header(case, facts, difference, here):
    # So do its filters at egress and their actions, of what a route has led there, but not of what else they have seen.
    at = re.match(r"(?:qdisc|filter) .*?dev (tun\d) ", difference.what + " ")
    sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt(.*)", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if None in sent or sent[0].groups()[1:] != sent[1].groups()[1:] or not at and not difference.what.startswith("total acts "):
        return False
    more, packets = int(sent[0][1]) - int(sent[1][1]), int(sent[0][2])
    for line in (line + " " for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ")):
        name = line.split()[3]
        if " remote " in line or " external" in line or at and at[1] != name or not any(f"filter add dev {name} egress " in other for other in facts.lines):
            continue
        fields = sum(re.search(rf" o?{field} ", line) is not None for field in ("key", "csum", "seq"))
        size = (40 if "ip6gre" in line else 20) + 4 + 4 * fields + (8 if " encap fou" in line else 12 if " encap gue" in line else 0)
        if more > 0 and more % size == 0 and more // size <= packets:
            return True
    return False


@purpose("With GRE and no remote address nothing is sent")
def heard_itself(case, facts, difference, here):
    # What Linux sends to itself there comes out of the device again.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    gre = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line and " external" not in line}
    return link in gre and key in ("stats64.rx.packets", "stats64.rx.bytes") and int(difference.linux[0]) > int(difference.ours[0]) and any(f" dev {link} " in line + " " for _, line in facts.routes)


@purpose("With GRE and no remote address nothing is sent")
def to_itself(case, facts, difference, here):
    # In Linux it goes round until its TTL is used up.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((11, 0), (3, 0)) or told[3][0][1].get("ttl", told[3][0][1].get("hops")) > 1:
        return False
    gre = [line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line and " external" not in line]
    return any(facts.leads(told[3][0][1]["dst"], rf" dev {name}( |$)") for name in gre)


@purpose("With GRE and no remote address nothing is sent")
def to_the_gateway(case, facts, difference, here):
    # A frame that a filter where it leaves copies into a gretap goes in Linux to the gateway of the route that led it to the filter.
    a = difference.more.get("there")
    layers = describe.layers(a[0])[1:] if a and len(a) == 1 and not difference.more.get("here") else []
    if not layers or layers[0][0] != "ip4" or not here["drops"].get("tunnel-remote"):
        return False
    for line in (line + " " for line in facts.lines if re.search(r"link add tun\d .*type gretap ", line + " ")):
        name, local = line.split()[3], re.search(r" local (\S+)", line)
        sent = any(re.search(rf"filter add dev p{difference.more.get('port')} egress .*mirred egress (mirror|redirect) dev {name}\b", other) for other in facts.lines)
        if " remote " in line or " external" in line or not sent or local and local[1] != layers[0][1]["src"]:
            continue
        # A gateway, and a frame of the same port inside.
        gateway = any(re.search(rf" via {re.escape(layers[0][1]['dst'])}\b", other) for _, other in facts.routes)
        inside = next((values for (over, _), (below, values) in zip(layers, layers[1:]) if over == "gre" and below == "eth"), None)
        if gateway and inside and inside["src"] == a[0][6:12].hex():
            return True
    return False


@purpose("With GRE and no remote address nothing is sent")
def goes_on_from_itself(case, facts, difference, here):
    # Or it leaves by another way, as the device is in a VRF: forwarded twice.
    a = difference.more.get("there")
    layers = describe.layers(a[0])[1:] if a and len(a) == 1 and not difference.more.get("here") and not error(a[0]) else []
    name, left = layers[0] if layers else ("nothing", {})
    if name not in ("ip4", "ip6"):
        return False
    made = [line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line and " external" not in line]
    bound = [tunnel for tunnel in made if any(re.search(rf"link set {tunnel} master vrf", line) for line in facts.lines)]
    hops = "hops" if name == "ip6" else "ttl"
    alike = lambda values: {key: value for key, value in values.items() if key not in ("sum", hops)}
    came = [values for packet in inputs(difference) for other, values in packet[1:] if other == name and alike(values) == alike(left)]
    return any(values[hops] - left[hops] >= 2 for values in came) and any(facts.leads(left["dst"], rf" dev {tunnel}( |$)") for tunnel in bound)


@purpose("With GRE and no remote address nothing is sent")
def counted_as_sent(case, facts, difference, here):
    # By Linux, which sends it to itself; here it is an error.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    gre = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line and " external" not in line}
    if link not in gre or difference.more["when"] != "shows":
        return False
    more = int(difference.linux[0]) - int(difference.ours[0])
    return more < 0 if key == "stats64.tx.errors" else more > 0 and key in ("stats64.tx.packets", "stats64.tx.bytes", "stats64.rx.errors")


@purpose("With GRE and no remote address nothing is sent")
def own_header_outside(case, facts, difference, here):
    # What `mirred` sends into such a tunnel, as if the packet's own IPv4 header were the outer one.
    a = difference.more.get("there")
    if not a or len(a) != 1 or difference.more.get("here"):
        return False
    gre = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type gre ", line + " ") and " remote " not in line and " external" not in line}
    sent = {match[1] for line in facts.lines if (match := re.search(r"mirred egress (?:redirect|mirror) dev (tun\d)", line))}
    ends = lambda frame: next(((values["src"], values["dst"]) for name, values in describe.layers(frame)[1:3] if name == "ip4"), None)
    known = {ends(bytes.fromhex(frame)) for _, _, frame in here["out"]} | {ends(bytes.fromhex(frame)) for _, frame in difference.more.get("inputs") or []}
    return bool(gre & sent) and ends(a[0]) in known - {None}


@purpose("With GRE and no remote address nothing is sent")
def own_header_told(case, facts, difference, here):
    # Or its IPv6 header, over which that of GRE is then written: of what is left Linux says that it did not arrive.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    gre = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type gre ", line + " ") and " remote " not in line and " external" not in line}
    sent = {match[1] for line in facts.lines if (match := re.search(r"mirred egress (?:redirect|mirror) dev (tun\d)", line))}
    if not told or told[:3] != (6, 1, 3):
        return False
    quote = a[0][a[0].rfind(address_pair(told[3][0][1])) - 8 :]
    for line in (line + " " for line in facts.lines if re.search(r"link add tun\d .*type gre ", line) and line.split()[3] in gre & sent):
        size = 4 + 4 * sum(re.search(rf" o?{field} ", line) is not None for field in ("key", "csum", "seq"))
        if any(written_over(quote, size, packet) for _, packet in arrived(case, difference)):
            return True
    return False


def written_over(quote, size, packet):
    """Whether a quoted IPv6 packet is one that is in this packet, with the header of GRE of `size` bytes where it is behind an IPv4
    header. The hop limit is another, and the destination and the segments left where a SID was visited."""
    if quote[22:24] != b"\x86\xdd":
        return False
    for match in re.finditer(re.escape(quote[8:20]), packet):
        came = packet[max(0, match.start() - 8) :][: len(quote)]
        visited = quote[6] == 43
        changed = {7, *range(20, 40 if visited else 20 + size)} | ({43} if visited else set())
        if len(came) == len(quote) and all(x == y for n, (x, y) in enumerate(zip(came, quote)) if n not in changed):
            return True
    return False


@purpose("With GRE and no remote address nothing is sent")
def to_itself_elsewhere(case, facts, difference, here):
    # Where its own address is one of a VRF's, what Linux sends to it leaves.
    a = difference.more.get("there")
    layers = describe.layers(a[0]) if a and len(a) == 1 and not difference.more.get("here") else []
    names = [name for name, _ in layers[1:3]]
    if names not in (["ip4", "gre"], ["ip6", "gre"]) or layers[1][1]["src"] != layers[1][1]["dst"]:
        return False
    own = layers[1][1]["src"]
    return any(re.search(rf"link add tun\d .*type (ip6)?gre .*local {re.escape(own)}( |$)", line) and " remote " not in line for line in facts.lines) and any(" type vrf " in line for line in facts.lines)


@purpose("Frames for other stations stay in ip6gretap")
def other_station(case, facts, difference, here):
    if not difference.more.get("there") or difference.more.get("here"):
        return False
    for layers in inputs(difference):
        names = [name for name, _ in layers]
        if [name for name in names if name != "vlan"][:2] == ["eth", "ip6"] and "gre" in names:
            inside = layers[names.index("gre") + 1 :]
            if inside and inside[0][0] == "eth" and inside[0][1]["dst"] != mac_of_tap(facts):
                return True
    return False


def mac_of_tap(facts):
    """The address that the ip6gretap has in the end."""
    given = [match[1] for line in facts.lines if (match := re.search(r"link (?:add|set) tap\d address ([0-9a-f:]{17}) ", line + " "))]
    return given[-1].replace(":", "") if given else "020000000a01"


@purpose("Frames for other stations stay in ip6gretap")
def other_station_unresolved(case, facts, difference, here):
    # What Linux says of a packet in such a frame, that has no route or whose next hop does not answer,
    a = difference.more.get("there")
    # or of a fragment in one for the router, whose others do not come.
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((3, 1), (1, 3), (11, 1), (3, 1), (3, 0), (1, 0), (11, 0)):
        return False
    about = {key: told[3][0][1][key] for key in ("src", "dst")}
    for layers in [describe.layers(bytes.fromhex(frame)) for _, _, frame in case["packets"]]:
        names = [name for name, _ in layers]
        if [name for name in names if name != "vlan"][:2] == ["eth", "ip6"] and "gre" in names:
            inside = layers[names.index("gre") + 1 :]
            if inside and inside[0][0] == "eth" and inside[0][1]["dst"] != "020000000a01" and any(about.items() <= values.items() for _, values in inside):
                return True
    return False


@purpose("A packet that is too long for a GRE tunnel uses up no sequence number")
def numbered(case, facts, difference, here):
    # Those behind it have lower numbers than in Linux.
    a, b = pair(difference)
    if a is None or not here["drops"].get("too-big") or (changed(a, b) or {"no"}) - OWN - {"udp.sport", "udp.sum"} != {"gre.rest"}:
        return False
    number = lambda frame: next(int(values["rest"][-8:], 16) for name, values in describe.layers(frame) if name == "gre" and int(values["flags"], 16) & 0x1000)
    try:
        return 0 < number(a) - number(b) <= here["drops"]["too-big"]
    except StopIteration:
        return False


@purpose("Frames for other stations stay in ip6gretap")
def numbered_elsewhere(case, facts, difference, here):
    # Those behind one that Linux has sent on have lower numbers.
    a, b = pair(difference)
    if a is None or (changed(a, b) or {"no"}) - OWN - {"udp.sport", "udp.sum"} != {"gre.rest"}:
        return False
    number = lambda frame: next((int(values["rest"][-8:], 16) for name, values in describe.layers(frame) if name == "gre" and int(values["flags"], 16) & 0x1000), None)
    return None not in (number(a), number(b)) and 0 < number(a) - number(b) <= for_others(case)


@purpose("Frames for other stations stay in ip6gretap")
def counted_elsewhere(case, facts, difference, here):
    # Where Linux sends it on into a tunnel that it does not get through, that counts it.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    if key not in ("stats64.tx.errors", "stats64.tx.dropped") or not re.fullmatch(r"tun\d", link or ""):
        return False
    return 0 < int(difference.linux[0]) - int(difference.ours[0]) <= for_others(case)


def for_others(case):
    """How many frames for other stations have come in by ip6gretap."""
    return len(other_frames(case))


def other_frames(case):
    """The layers of frames for other stations that have come in by ip6gretap."""
    found = []
    for _, _, frame in case["packets"]:
        layers = describe.layers(bytes.fromhex(frame))
        names = [name for name, _ in layers]
        if [name for name in names if name != "vlan"][:2] == ["eth", "ip6"] and "gre" in names:
            inside = layers[names.index("gre") + 1 :]
            if inside and inside[0][0] == "eth" and inside[0][1]["dst"] != "020000000a01":
                found.append(inside)
    return found


@purpose("Frames for other stations stay in ip6gretap")
def counted_by_frequency(case, facts, difference, here):
    # What Linux forwards of them a route with `freq` counts, so that other packets get its trace, or are lost on the way to the
    # other end of it, of which the sender hears here.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if len(sides[0]) > 1 or len(sides[1]) > 1 or not sides[0] + sides[1]:
        return False
    traced, goals = [], set()
    for frame in sides[0] + sides[1]:
        told = error(frame)
        traced.append(bool(told) or [name for name, _ in describe.layers(frame)[1:3]] == ["ip6", "hbh"])
        goals.add((told[3] if told else describe.layers(frame)[1:])[0][1].get("dst"))
    tunnelled = any("encap ioam6 freq" in line and " tundst " in line for line in facts.lines)
    if sorted(traced) != [False, True] and not (tunnelled and len(traced) == 1):
        return False
    by = {line for net, line in facts.routes if "encap ioam6 freq" in line and all(goal and ipaddress.ip_address(goal) in net for goal in goals)}
    others = [values["dst"] for inside in other_frames(case) for name, values in inside[1:2] if name == "ip6"]
    return any(ipaddress.ip_address(to) in net for net, line in facts.routes if line in by for to in others)


@purpose("Frames for other stations stay in ip6gretap")
def lost_from_others(case, facts, difference, here):
    # What is in them, or is told of it, filters count, and where it is lost behind them nobody sees it. So it is with the three
    # requests for a neighbour that it goes to.
    others = [inside[1:] for inside in other_frames(case) if len(inside) > 1]
    if lost_elsewhere(difference, others):
        return True
    if any(re.search(r"filter add dev p\d egress .*mirred ingress redirect ", line) for line in facts.lines) and lost_elsewhere(difference, others * 4):
        # Where it leaves it is sent back, as often as Linux does that.
        return True
    goals = {(name, values["dst"]) for (name, values), *_ in others if name in ("ip4", "ip6")}
    for size, family in ((86, "ip6"), (42, "ip4")):
        asked = sum(name == family and facts.leads(goal, r"route \S+ \S+ dev p\d$") for name, goal in goals)
        if any(lost_elsewhere(without_requests(difference, 3 * n, size), others) for n in range(1, asked + 1)):
            return True
    return False
