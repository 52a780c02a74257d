"""What differs on purpose. Each function takes a difference and says whether it is the one that its heading in
docs/differences.md names: it looks at the fields that the heading speaks of, and at nothing else.

A test (`differential.py --check-purpose`) sees to it that every heading is there."""

import copy
import ipaddress
import itertools
import re

import compare
import describe

PURPOSES = []


def purpose(heading):
    def note(function):
        PURPOSES.append((heading, function))
        return function

    return note


def fields(frame):
    """{(number of the layer, its name, field): value}, sums and lengths of what quotes left out."""
    return {(n, name, key): value for n, (name, found) in enumerate(describe.layers(frame)) for key, value in found.items()}


def pair(difference):
    """The frames of a difference of one each."""
    a, b = difference.more.get("there"), difference.more.get("here")
    return (a[0], b[0]) if a and b and len(a) == len(b) == 1 else (None, None)


def changed(a, b):
    """The fields that differ, as layer.field; {} for other layers."""
    x, y = fields(a), fields(b)
    if x.keys() != y.keys():
        return None
    return {f"{name}.{key}" for (n, name, key) in x if x[n, name, key] != y[n, name, key]}


OWN = {"ip4.id", "ip4.sum", "ip6.label", "icmp.sum", "icmp.checksum"}


class Facts:
    """What a case configures, as far as the purposes speak of it."""

    def __init__(self, case):
        self.lines = [f"{' '.join(w for w in words if not w.startswith('-f') and w not in ('-batch', '-'))} {line}" for words, text in case["config"] for line in text.splitlines()]
        self.routes, self.connected, self.sids, self.own, self.tunnels = [], [], {}, set(), {}
        for line in self.lines:
            words = line.split()
            if " route " in line and "mpls route" not in line:
                for word in words[words.index("route") + 2 :]:
                    try:
                        self.routes.append((ipaddress.ip_network("::/0" if word == "default" and "-6" in words else "0.0.0.0/0" if word == "default" else word, strict=False), line))
                        break
                    except ValueError:
                        continue
            if "seg6local action" in line:
                self.sids[words[words.index("encap") - 1].split("/")[0]] = line.split("action ")[1]
            if " addr add " in line:
                try:
                    address = ipaddress.ip_interface(words[words.index("add") + 1])
                    self.own.add(str(address.ip))
                    self.connected.append((address.network, line))
                except ValueError:
                    pass  # A line that is wrong.
            if "link add" in line and " type " in line:
                # A second is wrong.
                self.tunnels.setdefault(words[words.index("add") + 1], words[words.index("type") + 1])

    def leads(self, address, what):
        """Whether some route to `address` has a line that matches `what`."""
        address = ipaddress.ip_address(address)
        return any(address.version == net.version and address in net and re.search(what, line) for net, line in self.routes)


def error(frame):
    """(version, type, code, what is quoted as layers) of a frame that is an ICMP error, or None."""
    found = describe.layers(frame)
    for n, (name, values) in enumerate(found):
        if name == "icmp":
            if n + 1 < len(found) and found[n + 1][0].startswith("quoted"):
                return found[n - 1][0][-1] if False else (4 if found[n + 1][0] == "quoted ip4" else 6), values["type"], values["code"], found[n + 1 :]
            return None
        if name.startswith("quoted"):
            return None
    return None


def only(difference):
    """The router's frame where Linux sends none, or host unreachable, which is compared elsewhere."""
    a, b = difference.more.get("there"), difference.more.get("here")
    return b[0] if b and len(b) == 1 and not a else None


def address_pair(header):
    """Source and destination of an IP header as they are on the wire."""
    return b"".join(ipaddress.ip_address(header[end]).packed for end in ("src", "dst"))


def inputs(difference):
    """The layers of what came in."""
    return [describe.layers(bytes.fromhex(frame)) for _, frame in difference.more.get("inputs") or []]


def tried(case, difference):
    """The layers of whatever came in at the time, or of all that came in where no time is told."""
    return inputs(difference) or [describe.layers(bytes.fromhex(frame)) for _, _, frame in case["packets"]]


@purpose("Errors of a port of foo-over-UDP quote the datagram as it came")
def fou_quote(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not re.search(r"icmp\((3,[23]|1,4)\)/quoted ip[46]$", describe.chain(b)):
        return False
    at = next(n for n, (name, _) in enumerate(describe.layers(b)) if name == "icmp")
    quoted = next((values for name, values in describe.layers(b)[at:] if name == "udp"), {})
    if quoted.get("dport") not in (5555, 5556, 5557, 5558, 5559):
        return False
    # A tunnel that it goes into chooses its source port and its sum.
    outside = {"udp.sport", "udp.sum"} if any(name == "udp" for name, _ in describe.layers(b)[:at]) else set()
    return (changed(a, b) or {"no"}) - OWN - outside <= {"quoted ip4.len", "quoted ip6.len"}


@purpose("Host unreachable quotes the packet as it came")
def unreachable_quote(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not re.search(r"icmp\((3,1|1,3)\)/quoted ip[46]$", describe.chain(b)):
        return False
    x, y = fields(a), fields(b)
    lowered = all(x.get(key) == y[key] - 1 for key in y if key[1].startswith("quoted") and key[2] in ("ttl", "hops"))
    return lowered and (changed(a, b) or {"no"}) - OWN <= {"quoted ip4.ttl", "quoted ip4.sum", "quoted ip6.hops"}


@purpose("The sender hears that there is no way to the far end")
def no_way(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    codes = ((3, 0), (1, 0), (3, 1), (1, 3)) + (((3, 13), (1, 1)) if prohibits_far_end(facts) else ())
    if not told or told[1:3] not in codes or not facts.tunnels:
        return False
    if facts.leads(told[3][0][1]["dst"], r" dev tun\d"):
        return True
    # A filter may have redirected it there.
    ends = [told[3][0][1][end] for end in ("src", "dst")]
    came = any(name == f"ip{told[0]}" and [values["src"], values["dst"]] == ends for layers in tried(case, difference) for name, values in layers)
    return came and any(re.search(r"mirred egress redirect dev tun\d", line) for line in facts.lines)


def prohibits_far_end(facts):
    """Whether a rule prohibits, or a route to the other end of a tunnel, which may be anywhere where none is said."""
    made = [line for line in facts.lines if re.search(r"link (add|change) tun\d ", line)]
    remotes = [match[1] for line in made if (match := re.search(r" remote (\S+)", line))]
    for line in facts.lines:
        if re.search(r"\brule add (.* )?prohibit\b", line):
            return True
        to = re.search(r"\broute (?:add|append|replace) prohibit (\S+)", line)
        if to and (len(remotes) < len(made) or any(within(remote, to[1]) for remote in remotes)):
            return True
    return False


def within(address, prefix):
    """Whether an address is in what a route line calls its destination."""
    return prefix == "default" or ipaddress.ip_address(address) in ipaddress.ip_network(prefix, strict=False)


@purpose("The sender hears that there is no way to the far end")
def no_way_of_linux(case, facts, difference, here):
    # Host unreachable, of a packet of which the router says that there is no way.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((3, 1), (1, 3)) or not facts.leads(told[3][0][1]["dst"], r" dev tun\d"):
        return False
    about = lambda told: [{**fields, "ttl": 0, "hops": 0, "sum": 0} for _, fields in told[3]]
    ours = [error(bytes.fromhex(frame)) for _, _, frame in here["out"]]
    codes = ((3, 0), (1, 0), (3, 1), (1, 3)) + (((3, 13), (1, 1)) if prohibits_far_end(facts) else ())
    return any(one and one[1:3] in codes and about(one) == about(told) for one in ours)


@purpose("The sender hears that there is no way to the far end")
def told_itself(case, facts, difference, here):
    # Where the outer source is an address that the router has in a VRF, what Linux tells itself leaves.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (4, 3, 1) or told[3][0][1]["src"] not in facts.own or told[3][0][1]["proto"] not in (4, 41, 47):
        return False
    inside = next((values for name, values in told[3][1:] if name in ("ip4", "ip6")), None)
    if not inside or not facts.leads(inside["dst"], r" dev tun\d"):
        return False
    ours = [error(bytes.fromhex(frame)) for _, _, frame in here["out"]]
    about = lambda one: all(one[3][0][1][end] == inside[end] for end in ("src", "dst"))
    return any(one and one[1:3] in ((3, 0), (1, 0), (3, 1), (1, 3)) and about(one) for one in ours)


@purpose("The sender hears that there is no way to the far end")
def no_way_back(case, facts, difference, here):
    # The way to the sender is a tunnel from which nothing arrives: that counts the message.
    if "link" not in difference.more or difference.kind not in ("shows link tun stats64.tx.bytes", "shows link tun stats64.tx.packets"):
        return False
    by = rf" dev {difference.more['link']}\b"
    ends = lambda layers: next((values for name, values in layers[:1] if name in ("ip4", "ip6")), None)
    told = [layers[1:] for layers in tried(case, difference) if (outer := ends(layers[1:])) and facts.leads(outer["dst"], by) and facts.leads(outer["src"], by)]
    unsaid = sum(here.get("drops", {}).get(reason, 0) for reason in ("neighbour-unresolved", "no-route"))
    swapped = compare.Difference(difference.kind, difference.what, difference.ours, difference.linux, **difference.more)
    return lost_elsewhere(swapped, told[:unsaid] if len(told) > unsaid else told)


@purpose("The sender hears that there is no way to the far end")
def told_through_filters(case, facts, difference, here):
    # The message passes a port's filter, which sends it into a tunnel, or the way to the sender is a tunnel, from which nothing
    # may arrive either: all of these count it.
    unsaid = sum(here.get("drops", {}).get(reason, 0) for reason in ("neighbour-unresolved", "no-route"))
    if not unsaid:
        return False
    redirected = any(re.search(r"filter add dev p\d egress .*mirred egress (redirect|mirror) dev tun", line) for line in facts.lines)
    packets = []
    for layers in tried(case, difference):
        # It may have come out of a tunnel, or of a SID.
        sizes = []
        for values in (values for name, values in layers[1:] if name in ("ip4", "ip6")):
            if redirected or facts.leads(values["dst"], r" dev tun\d") and facts.leads(values["src"], r" dev tun\d"):
                told = 48 + min(40 + values["len"], 1232) if "hops" in values else 28 + min(values["len"], 548)
                sizes += [told, told + 14]
        packets += [sizes] if sizes else []
    # Linux's own requests for neighbours pass the filter as well.
    asked = 3 * rounds(case) if redirected and here["drops"].get("neighbour-unresolved") else 0
    return any(counts_more(without_requests(difference, n, size), packets) for n in range(0, asked + 1, 3) for size in (86, 42)[: n + 1])


def without_requests(difference, number, size):
    """A difference of counters, if Linux had not counted so many packets of this length."""
    found = copy.copy(difference)
    less = lambda text, by: f"{int(text) - by}" if int(text) >= by else text
    sent = lambda match: f"Sent {less(match[1], number * size)} bytes {less(match[2], number)} pkt"
    if difference.kind.startswith("shows tc -s: "):
        lines = [re.sub(r"Sent (\d+) bytes (\d+) pkt", sent, line) for line in difference.linux]
        lines = [re.sub(r"((?:rule hit|success) )(\d+)", lambda match: match[1] + less(match[2], number), line) for line in lines]
        # Dropped there as well, if the router has dropped so many fewer.
        dropped = [re.search(r"\(dropped (\d+)", line) for line in difference.ours]
        fewer = lambda text, ours: less(text, number) if ours and int(text) - int(ours[1]) >= number else text
        found.linux = [re.sub(r"(?<=\(dropped )\d+", lambda match: fewer(match[0], ours), line) for line, ours in zip(lines, dropped)]
    return found


@purpose("The sender hears that there is no way to the far end")
def told_into_tunnel(case, facts, difference, here):
    # By a message that goes into a tunnel whose far end has no way either, where its filters count it.
    if not re.search(r"(?:qdisc clsact ffff:|filter) .*?dev tun\d |^filter ", difference.what + " ") or not here["drops"].get("no-route"):
        return False
    packets = []
    for layers in tried(case, difference):
        outer = next((values for name, values in layers[1:2] if name in ("ip4", "ip6")), None)
        if outer and all(facts.leads(outer[end], r" dev tun\d") for end in ("src", "dst")):
            packets.append((48 + min(40 + outer["len"], 1192),) if "hops" in outer else (28 + min(outer["len"], 548),))
    return difference.kind.startswith("shows tc -s: ") and counts_more(difference, packets)


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


@purpose("The sender of an IPv6 packet hears at once that it is too long for the underlay of `bareudp`")
def too_long_for_bareudp(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[:3] != (6, 2, 0):
        return False
    quoted, mtu = told[3][0][1], int.from_bytes(frame[58:62], "big")
    bare = [name for name, kind in facts.tunnels.items() if kind == "bareudp"]
    # A SID of the router's may have led it there.
    by_sid = bare and quoted["dst"] in facts.sids
    # Or a filter where it leaves, once a route has led it there.
    by_filter = any(re.search(rf"filter add dev \S+ egress .*mirred egress redirect dev {name}\b", line) for name in bare for line in facts.lines)
    return mtu < 40 + quoted["len"] and (by_sid or by_filter or any(facts.leads(quoted["dst"], rf" dev {name}\b") for name in bare))


@purpose("The sender of an IPv6 packet hears at once that it is too long for the underlay of `bareudp`")
def counted_for_bareudp(case, facts, difference, here):
    # Which Linux counts as sent, although nobody may answer for the next hop.
    key, link = difference.more.get("key"), difference.more.get("link")
    if key not in ("stats64.tx.packets", "stats64.tx.bytes") or facts.tunnels.get(link) != "bareudp":
        return False
    sums = {(0, 0)}
    for layers in tried(case, difference):
        name, values = layers[1] if len(layers) > 1 else ("", {})
        if name == "ip6" and 1440 < 40 + values["len"] <= 1500 and facts.leads(values["dst"], rf" dev {link}\b"):
            sums |= {(n + 1, total + 40 + values["len"]) for n, total in sums}
    more = int(difference.linux[0]) - int(difference.ours[0])
    few = {one for one in sums if 0 < one[0] <= here["drops"].get("too-big", 0)}
    return more in {one[key.endswith("bytes")] for one in few}


@purpose("The sender of an IPv6 packet hears at once that it is too long for the underlay of `bareudp`")
def cut_for_bareudp(case, facts, difference, here):
    # What Linux sends of it over IPv4.
    a = difference.more.get("there") or []
    outer = [describe.layers(frame)[1] for frame in a]
    if len(a) < 2 or any(name != "ip4" or values["proto"] != 17 for name, values in outer):
        return False
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r" type bareudp dstport (\d+)", line))}
    inside = a[0][42:]
    first = int.from_bytes(a[0][20:22], "big") == 0x2000
    if not first or int.from_bytes(a[0][36:38], "big") not in ports or inside[0] >> 4 != 6:
        return False
    if b := difference.more.get("here"):
        # The way to the sender is that tunnel, too.
        told = b[0][42:]
        return len(b) == 1 and told[6:7] == b"\x3a" and told[40:42] == b"\x02\0" and told[56:88] == inside[8:40]
    ends = tuple(str(ipaddress.ip_address(inside[at : at + 16])) for at in (8, 24))
    ours = [error(bytes.fromhex(frame)) for _, _, frame in here["out"]]
    return any(one and one[:3] == (6, 2, 0) and (one[3][0][1]["src"], one[3][0][1]["dst"]) == ends for one in ours)


@purpose("The sender of an IPv6 packet hears at once that it is too long for the underlay of `bareudp`")
def told_of_bareudp(case, facts, difference, here):
    # What Linux tells the outer source leaves where that is an address of the router's in a VRF.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 2, 0) or [name for name, _ in told[3][:2]] != ["quoted ip6", "udp"]:
        return False
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r" type bareudp dstport (\d+)", line))}
    return told[3][0][1]["src"] in facts.own and told[3][1][1]["dport"] in ports and any(" type vrf " in line for line in facts.lines)


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
def to_itself_elsewhere(case, facts, difference, here):
    # Where its own address is one of a VRF's, what Linux sends to it leaves.
    a = difference.more.get("there")
    layers = describe.layers(a[0]) if a and len(a) == 1 and not difference.more.get("here") else []
    names = [name for name, _ in layers[1:3]]
    if names not in (["ip4", "gre"], ["ip6", "gre"]) or layers[1][1]["src"] != layers[1][1]["dst"]:
        return False
    own = layers[1][1]["src"]
    return any(re.search(rf"link add tun\d .*type (ip6)?gre .*local {re.escape(own)}( |$)", line) and " remote " not in line for line in facts.lines) and any(" type vrf " in line for line in facts.lines)


@purpose("An SRH behind hop-by-hop options leaves whole from addresses that are no SIDs")
def labels_inside(case, facts, difference, here):
    # The same labels, and in Linux the packet without its first bytes.
    a, b = pair(difference)
    if a is None or a[12:14] != b"\x88\x47" or a[:14] != b[:14]:
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))[1:4]
        if [name for name, _ in layers] == ["ip6", "hbh", "routing"] and layers[0][1]["dst"] in facts.own and layers[2][1]["type"] == 4 and layers[2][1]["left"]:
            gone = 1 + len(layers[1][1]["data"]) // 2
            bottom = next((n + 4 for n in range(14, len(b) - 3, 4) if b[n + 2] & 1), 0)
            if bottom and gone % 8 == 0 and a[:bottom] == b[:bottom] and a[bottom:] == b[bottom + gone :]:
                return True
    return False


@purpose("End.DX4 sends to `nh4`")
def to_nh4(case, facts, difference, here):
    def inside(frame):
        return [values for name, values in describe.layers(frame) if name == "ip4"][:1]

    # To the neighbour that the SID names, and not to one with the destination of the packet inside, of which Linux says that
    # it does not answer.
    to = {match[1] for match in (re.search(r"End.DX4 nh4 (\S+)", action) for action in facts.sids.values()) if match}
    came = [
        values for layers in tried(case, difference)
        if any("End.DX4" in facts.sids.get(to, "") for name, v in layers for to in ([v["dst"]] if name == "ip6" else segments(v) if name == "routing" and v["type"] == 4 else []))
        # Or by a policy.
        or any("End.DX4" in action and name == "ip4" and facts.leads(v["dst"], rf"encap seg6 .*segs \S*{re.escape(sid)}\b") for name, v in layers for sid, action in facts.sids.items())
        for name, values in layers if name == "ip4"
    ]
    known = lambda ip: any((ip["src"], ip["dst"], ip["id"]) == (one["src"], one["dst"], one["id"]) for one in came)
    a, b = difference.more.get("there") or [], difference.more.get("here") or []
    near = lambda frame: {line.split()[3] for line in facts.lines if line.startswith("ip neigh") and f" lladdr {frame[:6].hex(':')} " in line}
    if len(a) == len(b) == 1:
        # Where that one answers, it goes to it.
        return a[0][6:] == b[0][6:] and bool(to & near(b[0])) and any(ip["dst"] in near(a[0]) and known(ip) for ip in inside(a[0]))
    if len(b) == 1 and not a and not to & near(b[0]):
        # A filter where it leaves has sent it into a tunnel.
        sent = any(re.search(r"filter add dev p\d egress .*mirred egress redirect dev tun\d", line) for line in facts.lines)
        return sent and any(name == "ip4" and known(values) for name, values in describe.layers(b[0])[2:])
    if len(b) == 1 and not a:
        return bool(to & near(b[0])) and any(known(ip) for ip in inside(b[0]))
    told = len(a) == 1 and not b and error(a[0])
    return bool(told) and told[1:3] in ((3, 1), (3, 0)) and known(told[3][0][1])


@purpose("Who has sent an IPv6 packet through sit or gre hears that it did not arrive")
def heard(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[0] != 6:
        return False
    for layers in tried(case, difference):
        names = [name for name, _ in layers]
        if "quoted ip4" in names and names[names.index("quoted ip4") + 1 :][:1] in (["ip6"], ["gre"]):
            return True
    return False


@purpose("The router answers for itself")
def own_did_not_arrive(case, facts, difference, here):
    # An error about what Linux asks by a tunnel that leads nowhere counts at another with the same ends, by which the packet goes.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((3, 1), (1, 3)) or "linux" not in here:
        return False
    made = [line for line in facts.lines if re.search(r"link add tun\d .*type (ipip|sit|gre|gretap) .*remote ", line)]
    remotes = [re.search(r" remote (\S+)", line)[1] for line in made]
    twice = any(re.search(r" dev p\d", line) and remotes.count(remote) > 1 for line, remote in zip(made, remotes))
    ends = b"".join(ipaddress.ip_address(told[3][0][1][key]).packed for key in ("src", "dst"))
    sent = lambda frames: any(describe.layers(frame)[1][0] == "ip4" and ends in frame[34:] and error(frame) is None for frame in (bytes.fromhex(frame) for _, _, frame in frames))
    return twice and sent(here["linux"]) and sent(here["out"])


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
    if len(a) != 1 or b and (not told or told[1:3] not in ((11, 0), (3, 0))):
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


def visited(case, difference):
    """What the packets were to: their destinations, and the segments that are left in their SRHs."""
    found = []
    for layers in tried(case, difference):
        for name, values in layers:
            if name == "ip6":
                found.append(values["dst"])
            elif name == "routing" and values["type"] == 4:
                segments = bytes.fromhex(values["data"])[4:]
                left = [segments[16 * n : 16 * n + 16] for n in range(values["left"])]
                found += [str(ipaddress.ip_address(segment)) for segment in left if len(segment) == 16]
    return found


@purpose("The sender hears of errors")
def headend(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[1:3] not in ((11, 0), (3, 0), (3, 4), (2, 0), (1, 0), (3, 13), (1, 1), (3, 1), (1, 3)):
        return False
    came = visited(case, difference)
    # Also by way of the segments of an End.B6.
    came += [to for sid in came for to in re.findall(r"(?<=segs )\S+", facts.sids.get(sid, "")) for to in to.split(",")]
    if told[0] == 6 and any("End.B6.Encaps" in facts.sids.get(to, "") for to in came):
        return True
    # By an RPL source route, to a next address that leads there.
    routing = next((values for name, values in told[3] if name == "routing" and values["type"] == 3), {"data": ""})
    data = bytes.fromhex(routing["data"]) if routing["data"].startswith("00") else b""
    at = len(data) - 16 * routing["left"] if data else 0
    following = [ipaddress.ip_address(data[at : at + 16])] if 4 <= at <= len(data) - 16 else []
    if any(facts.leads(address, "encap (seg6|rpl) ") for address in following):
        return True
    return facts.leads(told[3][0][1]["dst"], r"encap (seg6|rpl) |tundst|nhid")


@purpose("The sender hears of errors")
def passed_on(case, facts, difference, here):
    # What Linux tells the outer source, itself, an ip6tnl that the outer packet could be of passes on: from that address, and
    # with so much less of the packet as the outer headers were long.
    a, b = pair(difference)
    x, y = a and error(a), b and error(b)
    if not x or not y or x[:3] != (6, 2, 0) or y[:3] != (6, 2, 0) or not any(" type ip6tnl " in line for line in facts.lines):
        return False
    outside = lambda frame: [{**values, "src": 0, "len": 0, "sum": 0, "label": 0} for name, values in describe.layers(frame)[1:3]]
    quoted, less = a[62:], len(b) - len(a)
    return (
        facts.leads(y[3][0][1]["dst"], "encap seg6 mode encap")
        and str(ipaddress.ip_address(a[22:38])) in facts.own
        and outside(a) == outside(b)
        and len(b) == 14 + 1280
        and less >= 40
        and less % 8 == 0
        and quoted == b[62 : 62 + len(quoted)]
    )


@purpose("The sender hears of errors")
def heard_by_another(case, facts, difference, here):
    # Linux tells the outer source, and quotes what it put before the packet.
    a, b = pair(difference)
    x, y = a and error(a), b and error(b)
    if not x or not y or x[:3] != (6, 2, 0) or y[1:3] not in ((3, 4), (2, 0)) or not facts.leads(y[3][0][1]["dst"], "encap seg6 mode (l2)?encap|nhid"):
        return False
    inside = b[42:] if y[0] == 4 else b[62:]
    own = x[3][0][1]["src"] in facts.own or any(line.endswith(f"tunsrc set {x[3][0][1]['src']}") for line in facts.lines)
    return own and inside[8:40] in a[102:]


@purpose("The sender hears of errors")
def own_header(case, facts, difference, here):
    # Into the packet that it quotes, Linux has inserted its own routing header.
    def from_here(ours):
        came = visited(case, difference)
        return facts.leads(ours["dst"], r"encap rpl |mode inline|nhid") or any("End.B6 " in facts.sids.get(to, "") for to in came)

    return quotes_more(difference, "routing", {"dst"}, from_here)


@purpose("The sender hears of errors")
def own_header_unresolved(case, facts, difference, here):
    # So it does where nobody answers for the next hop, of which it tells later.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 1, 3):
        return False
    for _, _, frame in here["out"]:
        whole = copy.copy(difference)
        whole.more = {**difference.more, "here": [bytes.fromhex(frame)]}
        if own_header(case, facts, whole, here):
            return True
    return False


@purpose("Insertion stays in the VRF")
def id_of_vrf(case, facts, difference, here):
    # The id of the VRF's device, which has none.
    a, b = pair(difference)
    if a is None or (changed(a, b) or {"no"}) - OWN != {"hbh.data"} or not facts.leads(dict(describe.layers(a))["ip6"]["dst"], "encap ioam6|nhid"):
        return False
    # Of those that came in at the time, the one that it is.
    goal = dict(describe.layers(a))["ip6"]["dst"]
    came = [(port, describe.layers(bytes.fromhex(frame))) for port, frame in difference.more.get("inputs") or []]
    came = [port for port, layers in came if any(name == "ip6" and values["dst"] == goal for name, values in layers)] or [port for port, _ in came]
    if not all(any(f"ip link set p{port} master vrf" in line for line in facts.lines) for port in came):
        return False
    hidden = compare.holes(a, compare.own_addresses(case))
    places = [n for n in range(len(a)) if a[n] != b[n] and n not in hidden]
    return 0 < len(places) <= 6 and all(a[n] == 0xFF for n in places)


@purpose("Insertion stays in the VRF")
def by_the_main_table(case, facts, difference, here):
    # The same packet with its option, by a way of the VRF's here, by one of the main table in Linux.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) + len(ours) != 1 or difference.more.get("slot") is None:
        return False
    if not all(any(f"ip link set p{port} master vrf" in line for line in facts.lines) for port, _ in difference.more.get("inputs") or []):
        return False

    def inserted(frame):
        at = 14
        if frame[12:14] == b"\x88\x47":
            bottom = next((n for n in range(14, len(frame) - 3, 4) if frame[n + 2] & 1), len(frame))
            at = bottom + 4
        packet = frame[at:]
        return packet[4:] if len(packet) > 40 and packet[0] >> 4 == 6 and packet[6] == 0 else None

    frame = (there or ours)[0]
    goal = next((values["dst"] for name, values in describe.layers(frame) if name == "ip6"), None)
    others = here["out"] if there else here["linux"]
    same = any(slot == difference.more["slot"] and inserted(bytes.fromhex(other)) == inserted(frame) for slot, _, other in others)
    return bool(goal) and inserted(frame) is not None and facts.leads(goal, "encap ioam6|nhid") and same


@purpose("Insertion stays in the VRF")
def unanswered_in_vrf(case, facts, difference, here):
    # Where nobody answers there, of which the sender hears.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) + len(b) != 1:
        return False
    inserts = lambda to: facts.leads(to, r"encap ioam6 .* (table|vrf) ")
    told = [one for _, _, frame in here["out"] if (one := error(bytes.fromhex(frame))) and one[1:3] in ((1, 3), (1, 0)) and inserts(one[3][0][1]["dst"])]
    sent = [outer for _, _, frame in here["linux"] for name, outer in describe.layers(bytes.fromhex(frame))[1:2] if name == "ip6" and outer["next"] == 0 and inserts(outer["dst"])]
    ends = lambda outer: (outer["src"], outer["dst"])
    if b:
        own = error(b[0])
        return bool(own) and own[1:3] in ((1, 3), (1, 0)) and any(ends(outer) == ends(own[3][0][1]) for outer in sent)
    outer = next((values for name, values in describe.layers(a[0])[1:2] if name == "ip6"), None)
    return outer in sent and any(ends(one[3][0][1]) == ends(outer) for one in told)


@purpose("Insertion stays in the VRF")
def round_by_the_main_table(case, facts, difference, here):
    # By the main table a packet with a header of its own comes back into a VRF, and goes round until its hop limit is used up, of
    # which Linux tells itself.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 3, 0) or told[3][0][1]["src"] not in facts.own or [name for name, _ in told[3][1:3]] != ["hbh", "ip6"]:
        return False
    outer, inside = told[3][0][1], told[3][2][1]
    came = any(f"ip link set p{port} master vrf" in line and dict(describe.layers(bytes.fromhex(frame))[1:2]).get("ip6", {}).get("dst") == inside["dst"] for port, frame in difference.more.get("inputs") or [] for line in facts.lines)
    return came and facts.leads(inside["dst"], rf"encap ioam6 .*tundst {outer['dst']} ") and facts.leads(outer["dst"], r" dev vrf\d")


@purpose("A trace's insertion counts in a Packet Too Big")
def own_trace(case, facts, difference, here):
    return quotes_more(difference, "hbh", {"hops"}, lambda ours: facts.leads(ours["dst"], r"encap ioam6|nhid"))


def quotes_more(difference, extra, changes, from_here):
    """Whether both tell the same error, and Linux's quote has headers `extra` that the router's lacks: these headers' own
    fields, those of the IPv6 header in `changes`, lengths, the MTU and what there is room for differ then."""
    # The times in traces differ.
    a, b = (frame and compare.blank(frame, set()) for frame in pair(difference))
    x, y = a and error(a), b and error(b)
    if not x or not y or x[:3] != y[:3] or x[0] != 6 or x[1] not in (1, 2, 3):
        return False
    # Source ports of the tunnels that it goes into are their own choice.
    before = lambda frame: itertools.takewhile(lambda layer: not layer[0].startswith("quoted"), describe.layers(frame))
    outside = lambda frame: [{**values, "len": 0, "sum": 0, "label": 0, "id": 0, "sport": 0, "rest": 0 if x[1] == 2 else values.get("rest")} for name, values in before(frame)]
    linux, ours = x[3], y[3]
    if outside(a) != outside(b) or len(linux) < 2 or linux[1][0] != extra or not from_here(ours[0][1]):
        return False
    # Each that is put in is before those that were there.
    more = next((n for n in range(2, len(linux)) if linux[n][0] != extra or linux[n - 1][1]["next"] == ours[0][1]["next"]), len(linux))
    if linux[more - 1][1]["next"] != ours[0][1]["next"] or {key for key in ours[0][1] if linux[0][1].get(key) != ours[0][1][key]} - {"next", "len"} - changes:
        return False
    whole = lambda layers: "".join(f"{name} {key}={value} " for name, values in layers for key, value in values.items() if (name, key) != ("raw", "len"))
    return whole(ours[1:]).startswith(whole(linux[more:])[:-1])


@purpose("Bytes behind the inner packet are left behind")
def left_behind(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or len(a) <= len(b) or not a.startswith(b) or describe.layers(b)[1][0] not in ("ip4", "ip6"):
        return False
    name, packet = describe.layers(b)[1]
    whole = len(b) == 14 + packet["len"] + (40 if name == "ip6" else 0)
    return whole and any(name == "ip6" and re.match(r"End\.D[XT][46]", facts.sids.get(values["dst"], "")) for layers in tried(case, difference) for name, values in layers)


@purpose("An error quotes the packet as it came")
def hop_limit_first(case, facts, difference, here):
    # Linux looks for the next hop of a SID before it looks at the hop limit, and drops silently where there is none.
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[:3] != (6, 3, 0) or told[3][0][1]["hops"] > 1:
        return False
    if told[3][0][1]["dst"] in facts.own and told[3][1:2] and told[3][1][0] == "routing":
        # At an address of its own Linux leaves that to the next segment, where it is a SID.
        left, data = told[3][1][1]["left"], bytes.fromhex(told[3][1][1]["data"])[4:]
        following = data[16 * (left - 1) : 16 * left]
        return len(following) == 16 and "End.B6.Encaps" in facts.sids.get(str(ipaddress.ip_address(following)), "")
    return told[3][0][1]["dst"] in facts.sids


@purpose("An error quotes the packet as it came")
def quoted_as_came(case, facts, difference, here):
    a, b = pair(difference)
    if a and out_of_udp(a) and out_of_udp(b):
        a, b = out_of_udp(a), out_of_udp(b)
    told = b and error(b)
    if not told:
        return False
    # To a SID, or by a routing header to an address of the router's; that packet is quoted whole.
    came = [values for layers in tried(case, difference) for name, values in layers if name == "ip6"]
    ours = told[3][0][1]
    passed = lambda values: any(
        name == "routing" and packet["dst"] == values["dst"] and values["dst"] in facts.sids and ours["dst"] in segments(routing)
        for layers in tried(case, difference) for (_, packet), (name, routing) in zip(layers, layers[1:]) if "dst" in packet
    )
    # Or what a SID before has made of it.
    if told[0] != 6 or not any((values["dst"] == ours["dst"] or passed(values)) and values["hops"] == ours["hops"] for values in came):
        return False
    if not (ours["dst"] in facts.own or any(ipaddress.ip_address(ours["dst"]) in ipaddress.ip_network(f"{sid}/64", strict=False) for sid in facts.sids)):
        return False
    linux = error(a)
    return bool(linux) and told[1:3] in ((3, 0), (1, 0), (2, 0), (4, 0)) and (ours["hops"] <= 1 or linux[1:3] == told[1:3])


def out_of_udp(frame):
    """What GRE in foo-over-UDP carries, as a frame; None if that is nothing of IP."""
    layers = describe.layers(frame)
    if [name for name, _ in layers[:4]] != ["eth", "ip4", "udp", "raw"] or layers[2][1]["dport"] not in range(5555, 5560):
        return None
    inside = frame[42:]
    flags, kind = int.from_bytes(inside[:2], "big"), inside[2:4]
    size = 4 + 4 * (flags >> 15 & 1) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1)
    return frame[:12] + kind + inside[size:] if flags & 0x4FFF == 0 and kind in (b"\x08\x00", b"\x86\xdd") else None


def sid_counts(difference):
    """(SID, packets, errors) of Linux and of the router, of a SID whose counters alone differ."""
    if not difference.kind.startswith("shows ip -6 -s: ") or not len(difference.linux) == len(difference.ours) == 1:
        return None
    both = [re.match(r"(\S+)  (encap seg6local .*?packets )(\d+) bytes (\d+) errors (\d+)(.*)$", lines[0]) for lines in (difference.linux, difference.ours)]
    if None in both or len({(one[1], one[2], one[6]) for one in both}) != 1:
        return None
    return [(one[1], int(one[3]), int(one[5])) for one in both]


@purpose("An error quotes the packet as it came")
def hop_limit_at_sids(case, facts, difference, here):
    # Linux looks for the next hop of a SID first, and where there is none it does not count an error. With the hop limit used up
    # it goes on to the next SID of its own, which counts the error as well.
    counts = sid_counts(difference)
    if not counts:
        return False
    sid = ipaddress.ip_address(counts[0][0]).packed.hex()
    at_sid = through = 0
    for layers in tried(case, difference):
        outer, routing = (next((values for name, values in layers if name == wanted), None) for wanted in ("ip6", "routing"))
        through += bool(outer and routing and outer["hops"] <= 1 and outer["dst"] in facts.sids and outer["dst"] != counts[0][0] and sid in routing["data"])
        at_sid += sum(
            name == "ip6" and values["hops"] <= 1 and ipaddress.ip_address(values["dst"]) in ipaddress.ip_network(f"{counts[0][0]}/64", strict=False)
            for name, values in layers[:3]
        )
    more = counts[0][1] - counts[1][1]
    passed_on = counts[0][2] - counts[1][2] + more
    return (more, passed_on) != (0, 0) and 0 <= more <= at_sid and 0 <= passed_on <= through


@purpose("An SRH or RPL header goes behind hop-by-hop options")
def behind_options(case, facts, difference, here):
    a, b = pair(difference)
    if a is None:
        return False
    x, y = describe.chain(a), describe.chain(b)
    if any("encap ioam6" in line for line in facts.lines) and "/hbh/routing/hbh/" in x + "/":
        # So that Linux puts a trace before it, as it sees no hop-by-hop options.
        return (x + "/").replace("/hbh/routing/hbh/", "/hbh/routing/", 1) == y + "/"
    # One header or, where the next segment leads to another such route, two.
    return any(x.replace(f"{headers}/hbh", f"hbh/{headers}", 1) == y and f"hbh/{headers}" in y for headers in ("routing", "routing/routing"))


@purpose("A header may become shorter on its way")
def shorter(case, facts, difference, here):
    a, b = pair(difference)
    if a is None:
        return False
    for layers in tried(case, difference):
        routing = dict(layers).get("routing")
        outer = dict(layers[:3]).get("ip6")
        if routing and routing["type"] == 3 and routing["left"] and outer and outer["dst"] in facts.own:
            if any(name == "routing" and values["type"] == 3 and len(values["data"]) < len(routing["data"]) for name, values in describe.layers(b)):
                return True
    return False


@purpose("A header may become shorter on its way")
def shorter_error(case, facts, difference, here):
    # Nobody hears of a packet whose IPv6 header is overwritten.
    frame = only(difference)
    told = frame and error(frame)
    quoted = told and told[0] == 6 and dict(told[3]).get("routing")
    if not quoted or quoted["type"] != 3:
        return False
    for layers in tried(case, difference):
        outer, routing = dict(layers[:3]).get("ip6"), dict(layers).get("routing")
        if outer and routing and routing["type"] == 3 and routing["left"] > quoted["left"] and outer["src"] == told[3][0][1]["src"] and outer["dst"] in facts.own and len(routing["data"]) > len(quoted["data"]):
            return True
    return False


@purpose("A header may become shorter on its way")
def shorter_at_last_hop(case, facts, difference, here):
    # Nor of one whose hop limit is used up, of which the router tells before it goes on.
    frame = only(difference)
    told = frame and error(frame)
    routing = told and told[:3] == (6, 3, 0) and dict(told[3]).get("routing")
    return bool(routing) and shrinks_at_last_hop(facts, told[3][0][1], routing)


def shrinks_at_last_hop(facts, packet, routing):
    """Whether the RPL header of a packet for the router becomes shorter there, with a hop limit that is used up."""
    if packet["hops"] > 1 or routing["type"] != 3 or packet["dst"] not in facts.own:
        return False
    data = bytes.fromhex(routing["data"])
    addresses = [data[n : n + 16] for n in range(4, len(data), 16)]
    if data[0] or data[1] >> 4 or not 0 < routing["left"] <= len(addresses) or len(data) % 16 != 4:
        return False
    at = len(addresses) - routing["left"]
    to, addresses[at] = addresses[at], ipaddress.ip_address(packet["dst"]).packed
    common = lambda address: next((n for n, (x, y) in enumerate(zip(to, address)) if x != y), 15)
    size = sum(16 - min(map(common, addresses[:-1])) for _ in addresses[:-1]) + 16 - common(addresses[-1])
    return size + -size % 8 < 16 * len(addresses)


@purpose("A header may become shorter on its way")
def shorter_quoted(case, facts, difference, here):
    # Linux quotes a packet whose IPv6 header is overwritten, the router the whole one.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[0] != 6 or "routing" in dict(told[3]):
        return False
    if overwritten_source(difference, told[3]):
        return True
    quoted = told[3][0][1]
    if quoted["next"] == 134 and quoted["hops"] in (220, 221):
        # The EtherType stands where next header and hop limit are. The router quotes it as it came.
        for layers in tried(case, difference):
            outer, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
            if outer and routing and routing["type"] == 3 and routing["left"] and outer["src"] == quoted["src"] and outer["dst"] in facts.own:
                return True
    source = ipaddress.ip_address(quoted["src"]).packed
    for _, frame in difference.more.get("inputs") or []:
        # Or the end of the Ethernet header where the source begins.
        frame = bytes.fromhex(frame)
        outer, routing = (dict(describe.layers(frame)[:3]).get(name) for name in ("ip6", "routing"))
        overwritten = frame[12:14] == b"\x86\xdd" and source == frame[6:14] + frame[30:38]
        if outer and routing and overwritten and routing["type"] == 3 and routing["left"] and outer["dst"] in facts.own:
            return True
    part = copy.copy(difference)
    for _, port, frame in here["out"]:
        ours = error(bytes.fromhex(frame))
        if port == difference.more["port"] and ours and ours[:3] == told[:3] and all(ours[3][0][1][key] == told[3][0][1][key] for key in ("src", "dst", "len")):
            part.more = {**difference.more, "there": [], "here": [bytes.fromhex(frame)]}
            if shorter_error(case, facts, part, here):
                return True
    return False


def overwritten_source(difference, layers):
    """Whether some IPv6 header has 8 bytes of the Ethernet header that came in where its source is: the header behind it has
    become 16 bytes shorter."""
    sources = [ipaddress.ip_address(values["src"]).packed for name, values in layers if name.endswith("ip6")]
    return any(source[:8] == bytes.fromhex(frame)[6:14] for source in sources for _, frame in difference.more.get("inputs") or [])


def overwritten_below_labels(frame, layers):
    """Whether the EtherType stands where next header and hop limit are, in what is below labels, which is then no IP packet to see."""
    at = 14 + 4 * sum(name == "mpls" for name, _ in layers)
    return layers[1][0] == "mpls" and frame[at + 6 : at + 8] in (b"\x86\xdc", b"\x86\xdd")


def overwritten_inside(difference, frame):
    """Whether the EtherType stands where next header and hop limit are, before the source of what came in, however deep inside."""
    sources = [address_pair(values)[:16] for layers in inputs(difference) for name, values in layers if name == "ip6"]
    return any(frame[at - 2 : at] in (b"\x86\xdc", b"\x86\xdd") for at in map(frame.find, sources) if at > 2)


@purpose("A header may become shorter on its way")
def shorter_gone(case, facts, difference, here):
    # What is overwritten may be nothing that Linux forwards, or be forwarded with a hop limit that is none.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(b) > 1 or len(a) > 1:
        return False
    alone = copy.copy(difference)
    alone.more = {**difference.more, "there": []}
    if a:
        # The EtherType stands where next header and hop limit are; a route may have put hop-by-hop options behind them.
        layers = describe.layers(a[0])
        behind = [layers[n + 1 : n + 2] for n in range(len(layers))]
        overwritten = any(
            name == "ip6" and values["hops"] in (220, 221) and (values["next"] == 134 or any(option == "hbh" and more["next"] == 134 for option, more in after))
            for (name, values), after in zip(layers, behind)
        ) or overwritten_source(difference, layers) or overwritten_below_labels(a[0], layers) or overwritten_inside(difference, a[0])
        if not overwritten or b:
            return overwritten and shorter_at_last_hop(case, facts, alone, here)
        # The error goes another way, or there is none to the sender.
        heads = ((dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")) for layers in inputs(difference))
        return any(packet and routing and shrinks_at_last_hop(facts, packet, routing) for packet, routing in heads)
    if not b:
        return False
    # A route may have given it labels, or a routing header more, or have led it into a tunnel.
    sent = [values for name, values in [layer for layer in describe.layers(b[0]) if layer[0] not in ("mpls", "dstopt", "udp", "gue", "gre")][2:4] if name == "routing" and values["type"] == 3]
    return any(
        outer and routing and routing["type"] == 3 and outer["dst"] in facts.own and any(routing["left"] == one["left"] + 1 and len(one["data"]) < len(routing["data"]) for one in sent)
        for outer, routing in ((dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")) for layers in inputs(difference))
    )


@purpose("What has come out of End.DT4, DT46 or DX4 for the router itself may have IPv4 options")
def options_inside(case, facts, difference, here):
    b = difference.more.get("here")
    if not b or len(b) != 1 or difference.more.get("there"):
        return False
    answer = describe.layers(b[0])[1]
    for layers in inputs(difference):
        at = next((n for n, (name, values) in enumerate(layers) if name == "ip6" and re.search(r"End\.(DT4|DT46|DX4)\b", facts.sids.get(values["dst"], ""))), None)
        inside = next((values for name, values in layers[at + 1 :] if name == "ip4"), None) if at is not None else None
        if inside and inside.get("options") and inside["dst"] in facts.own and answer[0] == "ip4":
            return (answer[1]["src"], answer[1]["dst"]) == (inside["dst"], inside["src"])
    return False


@purpose("A Pad1 TLV is one byte")
def pad1(case, facts, difference, here):
    # An SRH whose TLVs fill it only so.
    if difference.more.get("there") or not difference.more.get("here"):
        return False
    return any(has_pad1(layers) for layers in inputs(difference))


@purpose("A Pad1 TLV is one byte")
def pad1_with_length(case, facts, difference, here):
    # What begins with a byte 0 is a TLV with a length to Linux, which may fill the SRH.
    if not difference.more.get("there") or difference.more.get("here") or not here["drops"].get("srh-malformed"):
        return False
    srhs = [bytes.fromhex(values["data"]) for layers in inputs(difference) for name, values in layers[:3] if name == "routing" and values["type"] == 4]
    tlvs = [data[4 + 16 * (data[0] + 1) :] for data in srhs]
    return any(fills(one, 2) and not fills(one, 1) for one in tlvs)


@purpose("A Pad1 TLV is one byte")
def pad1_with_length_counts(case, facts, difference, here):
    # It goes on into a tunnel that counts it.
    came = []
    for layers in tried(case, difference):
        routing = next((values for name, values in layers[:3] if name == "routing" and values["type"] == 4), None)
        tlvs = routing and bytes.fromhex(routing["data"])[4 + 16 * (bytes.fromhex(routing["data"])[0] + 1) :]
        if tlvs and fills(tlvs, 2) and not fills(tlvs, 1):
            came.append(layers[1:])
    at = "link" in difference.more or re.search(r" dev tun\d ", difference.what + " ")
    return bool(came) and bool(at) and bool(here["drops"].get("srh-malformed")) and lost_elsewhere(difference, came)


def has_pad1(layers):
    found = [bytes.fromhex(values["data"]) for name, values in layers if name == "routing" and values["type"] == 4]
    tlvs = [data[4 + 16 * (data[0] + 1) :] for data in found]
    return any(fills(one, 1) and not fills(one, 2) for one in tlvs)


@purpose("A Pad1 TLV is one byte")
def pad1_counts(case, facts, difference, here):
    # SIDs behind one that Linux does not let it pass.
    counts = sid_counts(difference)
    came = counts and sum(has_pad1(layers) for layers in tried(case, difference))
    return bool(counts) and 0 <= counts[1][1] + counts[1][2] - counts[0][1] - counts[0][2] <= came


@purpose("A Pad1 TLV is one byte")
def pad1_errors(case, facts, difference, here):
    # Or a tunnel that does not carry it.
    if difference.more.get("key") not in ("stats64.tx.errors", "stats64.tx.dropped") or not re.fullmatch(r"tun\d", difference.more["link"]):
        return False
    return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= sum(has_pad1(layers) for layers in tried(case, difference))


@purpose("A Pad1 TLV is one byte")
def pad1_into_tunnel(case, facts, difference, here):
    # The filters of a tunnel that a SID sends it to see it.
    if not re.search(r" dev tun\d |^filter ", difference.what + " "):
        return False
    came = [layers[1:] for layers in tried(case, difference) if len(layers) > 1 and has_pad1(layers)]
    return bool(came) and counts_more(difference, list(goes_on(came)))


@purpose("A Pad1 TLV is one byte")
def pad1_seen(case, facts, difference, here):
    # A program that counts has seen it.
    a, b = pair(difference)
    counting = {sid for sid, action in facts.sids.items() if "bpf/count.o" in action}
    came = [describe.layers(bytes.fromhex(frame)) for _, _, frame in case["packets"]]
    if not counting or not any(has_pad1(layers) and layers[1][1].get("dst") in facts.sids for layers in came):
        return False
    if not difference.more.get("there") or not difference.more.get("here"):
        # It drops every third.
        return any(layers[1:] and layers[1][1].get("dst") in counting for layers in inputs(difference))
    if a is None or (changed(a, b) or {"no"}) - OWN != {"routing.data"}:
        return False
    x, y = (next(values["data"] for name, values in describe.layers(frame) if name == "routing") for frame in (a, b))
    return x[:4] + x[8:] == y[:4] + y[8:]


@purpose("A malformed routing header is not taken for none")
def counted_as_error(case, facts, difference, here):
    # Where Linux sends nothing either, for want of a neighbour.
    counts = sid_counts(difference)
    if not counts or not re.match(r"End\.D[TX]", facts.sids.get(counts[0][0], "")) or not here["drops"].get("srh-malformed"):
        return False
    came = 0
    for layers in tried(case, difference):
        routing = dict(layers).get("routing")
        came += any(values["dst"] == counts[0][0] for name, values in layers[:3] if name == "ip6") and bool(routing) and not sound(routing)
    return sum(counts[0][1:]) == sum(counts[1][1:]) and 0 < counts[1][2] - counts[0][2] <= came


def fills(tlvs, pad1):
    """Whether TLVs end where they are to, if one of type 0 is `pad1` bytes long or, where that is 2, as long as it says."""
    while tlvs:
        size = 1 if tlvs[0] == 0 and pad1 == 1 else 2 + tlvs[1] if len(tlvs) > 1 else 0
        if not 0 < size <= len(tlvs):
            return False
        tlvs = tlvs[size:]
    return True


@purpose("A malformed routing header is not taken for none")
def second_routing(case, facts, difference, here):
    # At a SID that decapsulates Linux looks at the first routing header alone, and passes it if it is not a sound SRH.
    if not difference.more.get("there") or difference.more.get("here"):
        return False
    for layers in tried(case, difference):
        outer = next((values["dst"] for name, values in layers if name == "ip6"), None)
        routing = [values for name, values in layers if name == "routing"]
        left = any(values["left"] for values in routing) or routing and routing[0]["type"] == 4
        if left and re.match(r"End\.D[TX]", facts.sids.get(outer, "")) and not sound(routing[0]):
            return True
    return False


def sound(routing):
    """Whether a routing header is an SRH as Linux's `seg6_validate_srh` wants it."""
    data = bytes.fromhex(routing["data"])
    last = data[0]
    return routing["type"] == 4 and 4 + 16 * (last + 1) <= len(data) and routing["left"] <= last + 1 and fills(data[4 + 16 * (last + 1) :], 2)


@purpose("PSP takes off an SRH that is behind another routing header")
def pops_behind(case, facts, difference, here):
    # One that is used up.
    if difference.more.get("there") or not difference.more.get("here"):
        return False
    for layers in inputs(difference):
        values = layers[1][1] if layers[1:2] and layers[1][0] == "ip6" else {}
        routing = [fields for name, fields in layers[2:] if name == "routing"][:2]
        if re.search(r"flavors .*psp", facts.sids.get(values.get("dst"), "")) and [fields["left"] for fields in routing] == [0, 1] and routing[1]["type"] == 4:
            return True
    return False


@purpose("A SID may lead to the router itself")
def to_itself_by_sid(case, facts, difference, here):
    # Linux drops it; here its sender is answered, or what is in error told.
    frame = only(difference)
    if not frame:
        return False
    told = error(frame)
    quoted = told[3][0][1] if told else None
    answered = next((values["src"] for name, values in describe.layers(frame) if name in ("ip4", "ip6")), None)
    goal = quoted["dst"] if quoted else answered
    for layers in tried(case, difference):
        outer = next((values["dst"] for name, values in layers if name == "ip6"), None)
        if goal in facts.own and re.match(r"End( |\.X|\.T|\.DX6|$)", facts.sids.get(outer, "")):
            inside = [values["dst"] for name, values in layers[2:] if name == "ip6"]
            if goal in inside or any(ipaddress.ip_address(goal).packed.hex() in values["data"] for name, values in layers if name == "routing"):
                return True
    return False


@purpose("Link-local IPv4 addresses are not forwarded")
def this_network(case, facts, difference, here):
    # Of 0.0.0.0/8.
    a = difference.more.get("there")
    zero = ipaddress.ip_network("0.0.0.0/8")
    return bool(a) and not difference.more.get("here") and any(
        name == "ip4" and (ipaddress.ip_address(values["dst"]) in zero or ipaddress.ip_address(values["src"]) in zero)
        for layers in inputs(difference) for name, values in layers
    ) and all(any(name in ("ip4", "quoted ip4") and values["dst"].startswith("0.") or values.get("src", "").startswith("0.") for name, values in describe.layers(f)) for f in a)


@purpose("Link-local IPv4 addresses are not forwarded")
def this_network_counted(case, facts, difference, here):
    # Those of 0.0.0.0/8 that go into a tunnel, without an Ethernet header or with one, where its qdisc and its filters count them.
    if not difference.kind.startswith("shows tc -s: ") or not re.search(r" dev tun\d |^filter |^total acts", difference.what + " "):
        return False
    came = [values for layers in tried(case, difference) for name, values in layers if name == "ip4" and values["dst"].startswith("0.") and facts.leads(values["dst"], r" dev tun\d")]
    return counts_others(difference, [(-1, {values["len"], values["len"] + 14}) for values in came])


@purpose("Link-local IPv4 addresses are not forwarded")
def out_of_this_network(case, facts, difference, here):
    # Nor does what such a source has sent through a tunnel come out of it.
    a = difference.more.get("there")
    zero = ipaddress.ip_network("0.0.0.0/8")
    ends = lambda layers: {(values["src"], values["dst"]) for name, values in layers if name in ("ip4", "ip6")}
    inside = set()
    for layers in inputs(difference):
        name, outer = layers[1] if len(layers) > 1 else ("", {})
        if name == "ip4" and ipaddress.ip_address(outer["src"]) in zero and outer["dst"] in facts.own:
            inside |= ends(layers[2:])
    return bool(a) and not difference.more.get("here") and all(ends(describe.layers(frame)) & inside for frame in a)


@purpose("Hop-by-hop options in a payload of length 0 are malformed")
def no_length(case, facts, difference, here):
    return bool(difference.more.get("there")) and not difference.more.get("here") and any(
        name == "ip6" and values["len"] == 0 and values["next"] == 0 for layers in inputs(difference) for name, values in layers
    )


@purpose("A reduced list is taken at addresses that are no SIDs")
def reduced(case, facts, difference, here):
    # Linux tells of segments left where the router goes on: to the next segment, or to an error about that.
    def is_reduced(values, own):
        if values["type"] != 4 or own not in facts.own:
            return False
        data = bytes.fromhex(values["data"])
        return values["left"] == data[0] + 1 and len(data) >= 4 + 16 * values["left"] - 16

    came = []
    for layers in tried(case, difference):
        outer, routing = dict(layers[:3]).get("ip6"), dict(layers).get("routing")
        if outer and routing and is_reduced(routing, outer["dst"]):
            came.append((outer["src"], routing["data"]))
    a, b = difference.more.get("there") or [], difference.more.get("here") or []
    if not came or len(a) + len(b) != 1:
        return False
    frame = (a or b)[0]
    told = error(frame)
    layers = told[3] if told else describe.layers(frame)
    # It may have gone on into another header, or got one.
    at = next((n for n, (name, values) in enumerate(layers) if name == "routing" and values["type"] == 4), 0)
    outer = next((values for name, values in reversed(layers[:at]) if name.endswith("ip6")), None)
    if not outer or (outer["src"], layers[at][1]["data"]) not in came:
        return False
    return bool(told) and told[:3] == (6, 4, 0) if a else True


@purpose("A reduced list is taken at addresses that are no SIDs")
def last_entry(case, facts, difference, here):
    # A last entry beyond the list, or segments left beyond it, of which Linux does not tell: it goes on to the next segment.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) + len(b) != 1:
        return False
    told = error((a or b)[0])
    layers = told[3] if told else describe.layers((a or b)[0])
    outer = next((values for name, values in layers if name.endswith("ip6")), None)
    routing = dict(layers).get("routing")
    last = lambda values: bytes.fromhex(values["data"])[0]
    beyond = lambda values: values["type"] == 4 and (last(values) >= (len(values["data"]) // 2 - 4) // 16 or values["left"] > last(values) + 1)
    if not outer or not routing or b and (not told or told[:3] != (6, 4, 0)):
        return False
    for layers in tried(case, difference):
        came, by = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        if came and by and beyond(by) and came["dst"] in facts.own and came["src"] == outer["src"] and by["data"] == routing["data"]:
            return by["left"] == routing["left"] + (1 if a else 0)
    return False


@purpose("A reduced list is taken at addresses that are no SIDs")
def unread_tlvs(case, facts, difference, here):
    # TLVs that do not fill the SRH, at which Linux does not look.
    if not difference.more.get("there") or difference.more.get("here") or not here["drops"].get("srh-malformed"):
        return False
    for layers in inputs(difference):
        # A packet inside is none of the two.
        first = dict(reversed(layers[:4]))
        outer, routing = first.get("ip6"), first.get("routing")
        if outer and routing and outer["dst"] in facts.own and routing["type"] == 4 and routing["left"]:
            data = bytes.fromhex(routing["data"])
            if not fills(data[4 + 16 * (data[0] + 1) :], 1):
                return True
    return False


def segments(routing):
    """The addresses that an SRH lists."""
    data = bytes.fromhex(routing["data"])[4:]
    return [str(ipaddress.ip_address(data[n : n + 16])) for n in range(0, len(data) - 15, 16)]


def before(case, difference, ports=()):
    """The layers of what came in before, but by these ports."""
    times = list(dict.fromkeys(at for at, _, _ in case["packets"]))
    return [describe.layers(bytes.fromhex(frame)) for at, port, frame in case["packets"] if times.index(at) < (difference.more.get("slot") or 0) and port not in ports]


@purpose("A route with segments leads each packet by its own link")
def remembered(case, facts, difference, here):
    # The same packet, by the same port or another, to another neighbour: to where Linux has sent the first by the route.
    if "vrf" not in facts.tunnels.values() or "linux" not in here:
        return False
    own = compare.own_addresses(case)

    def inside(frame):
        layers = describe.layers(frame)
        if [name for name, _ in layers[1:4]] != ["ip6", "routing", "eth"]:
            return compare.masked(frame, own)[28:]
        # Of `l2encap`, without the Ethernet header that Linux does not make for what has none. Times in IPv4 options are of the moment.
        framed = compare.blank(frame, own)[54 + 8 * (frame[55] + 1) :]
        came = any(framed[:12] == bytes.fromhex(other)[:12] for _, other in difference.more.get("inputs") or [])
        return layers[1][1]["dst"], layers[2][1]["data"], framed[14:] if came else framed

    found = []
    for side, others in (("there", here["out"]), ("here", here["linux"])):
        for frame in difference.more.get(side) or []:
            layers = describe.layers(frame)
            goals = [values["dst"] for name, values in layers[2:] if name in ("ip4", "ip6")]
            last = [str(ipaddress.ip_address(bytes.fromhex(values["data"])[4:20])) for name, values in layers if name == "routing" and values["type"] == 4 and len(values["data"]) >= 40]
            if any(name == "routing" and values["type"] == 3 for name, values in layers):
                # Compressed: where the packet went before.
                last += [values["dst"] for came in inputs(difference) for name, values in came if name == "ip6" and facts.leads(values["dst"], "encap rpl ")]
                # Or the segment that a SID has sent it to.
                last += [to for came in inputs(difference) for name, values in came if name == "routing" and values["type"] == 4 for to in segments(values) if facts.leads(to, "encap rpl ")]
            found.append(
                layers[1][0] == "ip6"
                and any(facts.leads(goal, r"encap (seg6|rpl) |nhid") for goal in goals + last)
                and any(slot == difference.more.get("slot") and inside(bytes.fromhex(other)) == inside(frame) for slot, _, other in others)
            )
    return bool(found) and all(found)


@purpose("A route with segments leads each packet by its own link")
def remembered_unanswered(case, facts, difference, here):
    # By a rule with its name, or by its VRF; where Linux has sent another by the route nobody answers for the next hop.
    frame = only(difference)
    layers = describe.layers(frame) if frame else []
    # The outer packet may have gone into a tunnel, where it is let out of the VRF.
    at = next((n for n, (name, _) in enumerate(layers[:-1]) if name == "ip6" and layers[n + 1][0] == "routing"), 1)
    bound = "vrf" in facts.tunnels.values() or any(" rule add " in line and " iif " in line for line in facts.lines)
    if len(layers) < at + 2 or layers[at][0] != "ip6" or not bound:
        return False
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6|rpl) ", line) and layers[at][1]["dst"] in line]
    led = lambda came: any(ipaddress.ip_address(values["dst"]) in net for name, values in came if name in ("ip4", "ip6") for net in ways)
    # The list of a source route is compressed: where the packet went before.
    goals = inputs(difference) if layers[at + 1][1].get("type") == 3 else [layers[at + 1 :]]
    return any(map(led, goals)) and any(led(came) for came in before(case, difference))


@purpose("A route with segments leads each packet by its own link")
def remembered_elsewhere(case, facts, difference, here):
    # A packet for which its own link has no way goes, or is told of, where Linux has sent another by the route.
    a, b = pair(difference)
    if a is None:
        a = (difference.more.get("there") or [None])[0]
    told = b and error(b)
    if a is None or b and (not told or told[1:3] not in ((1, 0), (3, 0))) or "vrf" not in facts.tunnels.values() or "linux" not in here:
        return False
    way = lambda layers: next(((values["dst"], layers[n + 1][1]["type"]) for n, (name, values) in enumerate(layers[:-1]) if name.endswith("ip6") and layers[n + 1][0] == "routing"), None)
    goal = way((error(a) or (0, 0, 0, describe.layers(a)))[3])
    if not goal or not any(re.search(r"encap (seg6|rpl) ", line) and f"{goal[0]}" in line for line in facts.lines):
        return False
    others = [bytes.fromhex(frame) for slot, _, frame in here["linux"] if slot != difference.more.get("slot")]
    if any(way((error(other) or (0, 0, 0, describe.layers(other)))[3]) == goal for other in others):
        return True
    # Or has led another, which did not fit.
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6|rpl) ", line) and goal[0] in line]
    led = lambda to: any(ipaddress.ip_address(to).version == net.version and ipaddress.ip_address(to) in net for net in ways)
    return bool(here["drops"].get("too-big")) and any(name in ("ip4", "ip6") and led(values["dst"]) for came in before(case, difference) for name, values in came)


@purpose("A route with segments leads each packet by its own link")
def remembered_sid(case, facts, difference, here):
    # A packet for which its own link has a way ends, in Linux, at a SID of the router's or in a tunnel, where one by another link
    # before it did.
    frame = only(difference)
    layers = describe.layers(frame) if frame else []
    if "vrf" not in facts.tunnels.values() or [name for name, _ in layers[1:3]] != ["ip6", "routing"]:
        return False
    # Or has no way there, as outside the VRF there is none.
    to = layers[1][1]["dst"]
    if to not in facts.sids and not facts.leads(to, r" dev tun\d") and facts.leads(to, r"^((?! (table|vrf) ).)*$"):
        return False
    goals = [values["dst"] for name, values in layers[3:] if name in ("ip4", "ip6")][:1]
    if layers[2][1]["type"] == 3:
        # Compressed: where the packet went before.
        goals = [values["dst"] for came in inputs(difference) for name, values in came if name == "ip6"]
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6 mode (l2)?encap|rpl)", line) and layers[1][1]["dst"] in line]
    led = lambda to: any(ipaddress.ip_address(to).version == net.version and ipaddress.ip_address(to) in net for net in ways)
    ports = {port for port, _ in difference.more.get("inputs") or []}
    came = before(case, difference, ports)
    return any(map(led, goals)) and any(name in ("ip4", "ip6") and led(values["dst"]) for layers in came for name, values in layers)


@purpose("A route with segments leads each packet by its own link")
def remembered_loop(case, facts, difference, here):
    # A packet that the route would lead to itself goes where Linux has sent another by it, which a rule has led elsewhere.
    a = difference.more.get("there")
    layers = describe.layers(a[0]) if a and len(a) == 1 and not difference.more.get("here") else []
    if [name for name, _ in layers[1:3]] != ["ip6", "routing"] or not here["drops"].get("loop"):
        return False
    to = layers[1][1]["dst"]
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6|rpl) ", line) and to in line and ipaddress.ip_address(to) in net]
    led = lambda came: any(ipaddress.ip_address(values["dst"]) in net for name, values in came[1:2] if name == "ip6" for net in ways)
    return any(" rule add " in line for line in facts.lines) and any(map(led, inputs(difference))) and any(map(led, before(case, difference)))


@purpose("Among IPv6 routes of the same metric the first is taken")
def by_the_same_link(case, facts, difference, here):
    # Linux takes the one by the link that the packet came in by: a port, or for what was inside another packet a tunnel.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    goals = set()
    for frame in there + ours:
        told = error(frame)
        if told and told[1:3] not in ((1, 0), (1, 1), (1, 3), (2, 0), (3, 0)):
            return False
        goals |= {values["dst"] for name, values in (told[3] if told else describe.layers(frame)[1:])[:1] if name.endswith("ip6")}
    if there and ours and not all(same_inside(a, b) for a in there for b in ours):
        return False
    came = tried(case, difference)
    # And the neighbours that a SID names, or a program.
    sids = [facts.sids.get(values["dst"], "") for layers in came for name, values in layers if name == "ip6"]
    goals |= {goal for sid in sids for goal in re.findall(r"nh6 (\S+)", sid)} | {"2001:db8:2::3" for sid in sids if "bpf/steer.o" in sid}
    ports = {f"p{port}" for port, _ in difference.more["inputs"]} if difference.more.get("inputs") else {f"p{port}" for _, port, _ in case["packets"]}
    inside = any(sum(name in ("ip4", "ip6", "gre", "eth") for name, _ in layers) > 2 for layers in came)
    links = ports | (set(facts.tunnels) if inside else set())
    objects = {match[1]: match[2] for line in facts.lines if (match := re.search(r"nexthop add id (\d+) (?!group).* dev (\S+)", line))}

    def device(line):
        by, nhid = (re.search(rf" {word} (\S+)", line) for word in ("dev", "nhid"))
        # Without one it is that of the gateway.
        near = re.search(r" via 2001:db8:(\d)::", line)
        return by[1] if by else objects.get(nhid[1]) if nhid else near and f"p{near[1]}"

    for goal in goals:
        routes = {}
        for net, line in facts.routes + facts.connected:
            if net.version == 6 and ipaddress.ip_address(goal) in net and re.search(r" (route (add|append|replace)|addr add) ", line):
                routes.setdefault((net, *re.findall(r" (?:table|vrf|metric) \S+", line)), []).append(line)
        for first, *others in routes.values():
            alone = any(" via " not in line or " nhid " in line for line in [first, *others])
            if alone and (inside or device(first) not in ports) and any(device(line) in links for line in others):
                return True
    return False


def shared_ways(facts, goal):
    """The gateways and devices that share an IPv6 route to an address; none if it is one."""
    routes = {}
    for net, line in facts.routes:
        if net.version == 6 and ipaddress.ip_address(goal) in net and re.search(r" route (add|append|replace) .* via ", line):
            gateway, device = (re.search(rf" {word} (\S+)", line) for word in ("via", "dev"))
            # Without a device it is that of the gateway.
            port = re.match(r"2001:db8:(\d)::", gateway[1])
            routes.setdefault((net, *re.findall(r" (?:table|vrf|metric) \S+", line)), set()).add((gateway[1], device[1] if device else port and f"p{port[1]}"))
    return set().union(*(ways for ways in routes.values() if len(ways) > 1))


@purpose("Multipath looks deeper")
def spread(case, facts, difference, here):
    # The same packet by another of the gateways that share those of an IPv6 route, at the same time.
    if "linux" not in here or difference.more.get("slot") is None:
        return False
    sides = (("there", here["out"]), ("here", here["linux"]))
    frames = [(frame, others) for side, others in sides for frame in difference.more.get(side) or []]
    for frame, others in frames:
        shared = any(name == "ip6" and shared_ways(facts, values["dst"]) for name, values in describe.layers(frame)[1:])
        same = any(slot == difference.more["slot"] and same_inside(bytes.fromhex(other), frame) and bytes.fromhex(other) != frame for slot, _, other in others)
        if not shared or not same:
            return False
    return bool(frames)


@purpose("Multipath looks deeper")
def spread_to_filter(case, facts, difference, here):
    # One of those ways ends at a filter that redirects; or of one the sender hears, as it has an MTU of its own.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) + len(b) != 1 or difference.more.get("slot") is None:
        return False
    told = error((a or b)[0])
    if told and told[:3] != (6, 2, 0):
        return False
    goal = next((values["dst"] for name, values in (told[3] if told else describe.layers((a or b)[0])[1:]) if name.endswith("ip6")), None)
    ways = shared_ways(facts, goal) if goal else set()
    redirects = {device for _, device in ways if any(re.search(rf"filter add dev {device} egress .*mirred (ingress|egress) redirect", line) for line in facts.lines)}
    return bool(redirects) and (bool(told) or f"p{difference.more['port']}" not in redirects)


def same_inside(a, b):
    """Whether two frames that went different ways have the same packet inside, or quote it."""
    x, y = describe.layers(a), describe.layers(b)
    return x[-1] == y[-1] and len(a) == len(b) if len(x) == len(y) else x[-2:] == y[-2:]


@purpose("No packet to `::`")
def unspecified(case, facts, difference, here):
    a = difference.more.get("there")
    return bool(a) and not difference.more.get("here") and all(any(name in ("ip6", "quoted ip6") and values["dst"] == "::" for name, values in describe.layers(f)) for f in a)


@purpose("No source validation")
def own_source_mirrored(case, facts, difference, here):
    # A message of the router's own that a filter where it leaves has sent back: each time its TTL is lower.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if not ours or there or not any(re.search(r"filter add dev \S+ egress .*mirred ingress (mirror|redirect)", line) for line in facts.lines):
        return False
    return all(values["src"] in facts.own and values["ttl"] < 64 for frame in ours for name, values in describe.layers(frame)[1:2] if name == "ip4") and all(describe.layers(frame)[1][0] == "ip4" for frame in ours)


@purpose("No source validation")
def own_source_counted(case, facts, difference, here):
    # Which the filters see each time, until it is a loop: as often as a packet may come in anew, and leave.
    looped = 8 * here.get("drops", {}).get("mirred-loop", 0)
    if not difference.kind.startswith("shows tc -s: ") or not any(re.search(r"filter add dev \S+ (egress|parent) .*mirred ingress (mirror|redirect)", line) for line in facts.lines):
        return False
    at = re.match(r"(?:qdisc|class) (?!clsact).* dev p(\d) ", difference.what + " ")
    if at and looped and len(difference.linux) == len(difference.ours) == 1:
        # The qdisc whose filter does so drops it then. What Linux asks passes it, too.
        dropped = [int(n) for line in difference.linux + difference.ours for n in re.findall(r"\(dropped (\d+)", line)]
        alike = [[re.sub(r"\(dropped \d+", "(dropped", line) for line in lines] for lines in (difference.linux, difference.ours)]
        if len(dropped) == 2 and 0 < dropped[1] - dropped[0] <= looped:
            asked = [size for port, size in here["noise"] if f"{port}" == at[1]]
            return alike[0] == alike[1] or more_by(compare.Difference(difference.kind, difference.what, *alike, **difference.more), asked)
    counts = [[[int(n) for n in re.findall(r"(?:bytes|rule hit|success|dropped|overlimits) (\d+)", line)] for line in lines] for lines in (difference.linux, difference.ours)]
    more = [[y - x for x, y in zip(*both)] for both in zip(*counts)]
    return 0 < len(counts[0]) == len(counts[1]) and all(one and 0 < one[0] <= looped and all(0 <= n <= looped for n in one) for one in more)


@purpose("No source validation")
def own_source(case, facts, difference, here):
    return not difference.more.get("there") and any(
        values["src"] in facts.own for layers in inputs(difference) for name, values in layers if name == "ip4"
    )


@purpose("An ICMPv6 error comes from the port of the packet")
def no_global_address(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not error(a) or (changed(a, b) or {"no"}) - OWN != {"ip6.src"}:
        return False
    source = ipaddress.ip_address(describe.layers(a)[1][1]["src"])
    return source.is_loopback or source.is_link_local


@purpose("An ICMPv6 error comes from the port of the packet")
def of_the_way_back(case, facts, difference, here):
    # Where rules lead it back by a VRF that the packet did not come in by, Linux takes an address of the port by which it leaves.
    a, b = pair(difference)
    if a is None or not error(a) or (changed(a, b) or {"no"}) - OWN != {"ip6.src"}:
        return False
    port = difference.more["port"]
    has = lambda port, frame: any(re.search(rf" addr add (\S+)/\d+ dev p{port} ", line + " ") and ipaddress.ip_interface(line.split()[3 + ("-6" in line)]).ip == ipaddress.ip_address(frame[22:38]) for line in facts.lines)
    in_vrf = lambda port: any(line.startswith(f"ip link set p{port} master vrf") for line in facts.lines)
    ends = address_pair(error(b)[3][0][1])
    came = any(has(by, b) and not in_vrf(by) and bytes.fromhex(frame)[22:54] == ends for _, by, frame in case["packets"])
    return has(port, a) and in_vrf(port) and came and any(" -6 rule " in f" {line} " for line in facts.lines)


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
    own = 14 + (40 + int.from_bytes(b[18:20], "big") if b[12:14] == b"\x86\xdd" else int.from_bytes(b[16:18], "big"))
    outside = 48 + 8 * b[55] if b[12:14] == b"\x86\xdd" and b[20] == 43 else 0
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return len(b) == own and any(frame[12:14] == b"\x88\x47" and frame.endswith(a[34 + outside :]) for frame in came)


@purpose("Inner packets are checked")
def inner(case, facts, difference, here):
    return bool(difference.more.get("there")) and not difference.more.get("here") and here["drops"].get("inner-malformed", 0) > 0 and any(
        values["dst"] in facts.sids for layers in inputs(difference) for name, values in layers if name == "ip6"
    )


@purpose("Inner packets are checked")
def inner_unanswered(case, facts, difference, here):
    # One that is cut off, of which Linux tells that a neighbour does not answer.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 1, 3) or not here["drops"].get("inner-malformed"):
        return False
    quoted = told[3][0][1]
    for _, _, frame in case["packets"]:
        frame = bytes.fromhex(frame)
        at, outer = frame.find(address_pair(quoted)) - 8, describe.layers(frame)[1:2]
        if at > 54 and any(name == "ip6" and values["dst"] in facts.sids and 14 + values["len"] - at < quoted["len"] for name, values in outer):
            return True
    return False


@purpose("What the router writes into IPv4 options is in the checksum at once")
def options_sum(case, facts, difference, here):
    a, b = pair(difference)
    # Or cleared, behind their end.
    recorded = b and any(name.endswith("ip4") and values.get("options", "")[:2] in ("00", "07", "44") for name, values in describe.layers(b))
    return bool(recorded) and (changed(a, b) or {"no"}) - OWN - {"icmp.sum", "icmp.checksum"} <= {"ip4.sum", "quoted ip4.sum"}


@purpose("Packet Too Big quotes the packet as it came")
def too_big(case, facts, difference, here):
    a, b = pair(difference)
    told = b and error(b)
    return bool(told) and told[:3] == (6, 2, 0) and (changed(a, b) or {"no"}) - OWN == {"quoted ip6.hops"}


@purpose("Frames for other stations stay in ip6gretap")
def other_station(case, facts, difference, here):
    if not difference.more.get("there") or difference.more.get("here"):
        return False
    for layers in inputs(difference):
        names = [name for name, _ in layers]
        if [name for name in names if name != "vlan"][:2] == ["eth", "ip6"] and "gre" in names:
            inside = layers[names.index("gre") + 1 :]
            if inside and inside[0][0] == "eth" and inside[0][1]["dst"] != "020000000a01":
                return True
    return False


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


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def no_gateway(case, facts, difference, here):
    a = difference.more.get("there")
    return bool(a) and not difference.more.get("here") and all(
        [name for name, _ in describe.layers(f)][:2] == ["eth", "mpls"] and f[:6] == b"\xff" * 6 for f in a
    )


@purpose("A label without a gateway goes to the neighbour that has the packet's destination")
def told_of_labels(case, facts, difference, here):
    # Of a labelled packet whose neighbour does not answer, as if its labels began an IPv6 header.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 1, 3):
        return False
    # The message may be in a tunnel.
    quoted = a[0][a[0].index(address_pair(told[3][0][1])) - 8 :]
    # Its destination may have been the segment that a SID has made it.
    came = lambda ends: any(ends[:16] in packet and ends[16:] in packet for _, _, frame in case["packets"] for packet in [bytes.fromhex(frame)])
    labels = [n for n in (4, 8, 12) if len(quoted) >= n + 40 and came(quoted[n + 8 : n + 40])]
    return bool(labels) and quoted[labels[0]] >> 4 == 6 and any("encap mpls" in line and " via " not in line for line in facts.lines)


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


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def headless_in_vrf(case, facts, difference, here):
    # What a SID has taken into a VRF.
    frame = only(difference)
    layers = describe.layers(frame) if frame else []
    if [name for name, _ in layers[1:4]] != ["ip6", "routing", "eth"] or not any(" mode l2encap" in line for line in facts.lines):
        return False
    inside = frame[54 + 8 * (frame[55] + 1) + 14 :]
    taken = lambda layers: any(name == "ip6" and re.match(r"End\.DT(4|6|46) vrftable", facts.sids.get(values["dst"], "")) for name, values in layers)
    return any(taken(describe.layers(came)) and inside[20:] in came for came in (bytes.fromhex(came) for _, came in difference.more.get("inputs") or []))


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def headless(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not facts.tunnels or not any("l2encap" in line for line in facts.lines):
        return False
    # At a SID of the router's own the outer header comes off again.
    if b[14:] == a and any("End.DX2" in action for action in facts.sids.values()):
        return True
    return len(b) == len(a) + 14 and re.match(r"eth/(mpls/|eth/)*(ip[46]/(dstopt/|routing/|udp/|gre/|eth/)*)+eth", describe.chain(b)) is not None


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def behind_outer(case, facts, difference, here):
    # Out of a gre without a remote address it goes with its outer header and the one of GRE.
    a, b = pair(difference)
    gre = any(re.search(r"link add tun\d .*type (ip6)?gre ", line + " ") and " remote " not in line for line in facts.lines)
    if a is None or not gre or not any("l2encap" in line for line in facts.lines) or "routing" not in describe.chain(b):
        return False
    for _, frame in difference.more.get("inputs") or []:
        came = bytes.fromhex(frame)
        outer = came[14:34] if came[12:14] == b"\x08\x00" else came[14:54]
        at = a.find(outer, 54)
        # What is behind them is what the router has put its Ethernet header before.
        inside = b[at + 14 :]
        if at > 0 and inside and a[at:].endswith(inside) and len(a) - at - len(inside) in range(len(outer) + 4, len(outer) + 17):
            return True
    return False


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def headless_bytes(case, facts, difference, here):
    # Which makes it longer for those that count it.
    if not facts.tunnels or not any("l2encap" in line for line in facts.lines):
        return False
    if difference.more.get("key") in ("stats64.tx.bytes", "stats64.rx.bytes"):
        more = int(difference.ours[0]) - int(difference.linux[0])
    else:
        sent = [re.match(r"\s*Sent (\d+) bytes (\d+ pkt.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
        if None in sent or sent[0][2] != sent[1][2]:
            return False
        more = int(sent[1][1]) - int(sent[0][1])
    inside = sum(any((name, below) in (("ip4", "ip4"), ("ip4", "ip6"), ("ip6", "ip4"), ("ip6", "ip6"), ("gre", "ip4"), ("gre", "ip6"), ("udp", "ip4"), ("udp", "ip6")) for (name, _), (below, _) in zip(layers, layers[1:])) for layers in tried(case, difference))
    return more > 0 and more % 14 == 0 and more // 14 <= inside


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def whole_frame(case, facts, difference, here):
    # What was in a packet for one of the router's own segments is sent with all that was before it.
    a, b = pair(difference)
    if a is None or not any("l2encap" in line for line in facts.lines) or not any("seg6_enabled=1" in line for line in facts.lines):
        return False
    for port, frame in difference.more.get("inputs") or []:
        frame = bytes.fromhex(frame)
        layers = describe.layers(frame)
        outer, routing = (next((values for name, values in layers if name == wanted), None) for wanted in ("ip6", "routing"))
        if outer and routing and outer["dst"] in facts.own and routing["left"] == 0 and a.find(frame[:12]) > 54:
            inside = b[b.find(frame[:12]) + 14 :]
            return b.find(frame[:12]) == a.find(frame[:12]) and frame[14:54] in a and a.endswith(inside) and len(inside) > 20
    return False


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def too_long_with_header(case, facts, difference, here):
    # With the 14 bytes more it is too long, of which its sender hears.
    a = difference.more.get("there")
    if not a or len(a) != 1 or difference.more.get("here") or not re.match(r"eth/ip6/(routing/)?eth$", describe.chain(a[0])):
        return False
    inside = bytes(a[0])[54:]
    inside = inside[8 * (inside[1] + 1) :] if a[0][20] == 43 else inside
    told = [frame for slot, _, frame in here["out"] if slot == difference.more.get("slot") and (about := error(bytes.fromhex(frame))) and about[1:3] in ((3, 4), (2, 0))]
    return any("l2encap" in line for line in facts.lines) and any(inside[:28].hex() in frame for frame in told)


@purpose("A mirrored packet is sent as it was")
def mirrored(case, facts, difference, here):
    b = difference.more.get("here")
    if not b or not any("mirred" in line and "mirror" in line for line in facts.lines):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return all(frame in came for frame in b) and len(b) == len(difference.more.get("there"))


@purpose("A mirrored packet is sent as it was")
def overwritten(case, facts, difference, here):
    # By the header of foo-over-UDP: the copy has gone into a tunnel.
    a, b = pair(difference)
    if a is None or a[:6] != b[:6] or a[6:14] == b[6:14]:
        return False
    port = difference.more.get("port")
    into = [match[1] for line in facts.lines if (match := re.search(rf"filter add dev p{port} egress .*mirred egress mirror dev (tun\d)", line))]
    if not any(re.search(rf"link add {name} .*encap (fou|gue)", line) for name in into for line in facts.lines):
        return False
    own = compare.own_addresses(case)
    return compare.masked(b[:14] + a[14:], own) == compare.masked(b, own)


@purpose("A mirrored packet is sent as it was")
def advanced_in_place(case, facts, difference, here):
    # The SRH of a packet that goes on, of which a copy came to a SID.
    a, b = pair(difference)
    if a is None or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    of = changed(a, b) or set()
    left = [next((values["left"] for name, values in describe.layers(frame) if name == "routing"), None) for frame in (a, b)]
    return "routing.left" in of and of <= {"routing.left", "ip6.dst"} and left[0] == left[1] - 1


@purpose("A mirrored packet is sent as it was")
def advanced_and_lost(case, facts, difference, here):
    # Of the two the second, of which the SRH that a SID has advanced for the first is at a segment that leads nowhere.
    if difference.kind.split(" [")[0] != "packets in another order or number" or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    slot, port = difference.more["slot"], difference.more["port"]
    there, ours = ([frame for at, by, frame in here[side] if (at, by) == (slot, port)] for side in ("linux", "out"))
    at_sid = lambda layers: any(name == "ip6" and values["dst"] in facts.sids and below == "routing" and routing["left"] > 0 for (name, values), (below, routing) in zip(layers, layers[1:]))
    return len(ours) == len(there) + 1 and set(ours) == set(there) and any(map(at_sid, inputs(difference)))


@purpose("A mirrored packet is sent as it was")
def changed_in_place(case, facts, difference, here):
    # Of the packet and its copy Linux sends one: a SID has changed the destination of both, and of the other its sender hears.
    if not difference.kind.startswith("packets in another order") or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    told = [error(bytes.fromhex(frame)) for slot, _, frame in here["linux"] if slot == difference.more["slot"]]
    outer = [values for layers in inputs(difference) for name, values in layers[1:2] if name == "ip6" and "next-csid" in facts.sids.get(values["dst"], "")]
    changed = lambda one: any(one[3][0][1]["src"] == values["src"] and one[3][0][1]["dst"] != values["dst"] for values in outer)
    return any(one and one[0] == 6 and changed(one) for one in told)


@purpose("A mirrored packet is sent as it was")
def shifted_in_place(case, facts, difference, here):
    # Or goes on, or is told of, with the destination that a SID has given the other of the two.
    a = difference.more.get("there")
    if not a or len(a) != 1 or difference.more.get("here") or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    told = error(a[0])
    outer = told[3][0][1] if told else next((values for name, values in describe.layers(a[0])[1:2] if name == "ip6"), None)
    if not outer or told and told[0] != 6:
        return False
    # A locator of 32 bits, functions of 16.
    shifted = {sid: packed[:4] + packed[6:] + b"\0\0" for sid, action in facts.sids.items() if "next-csid" in action for packed in [ipaddress.ip_address(sid).packed]}
    came = [layers for layers in inputs(difference) if any(name == "ip6" and values["src"] == outer["src"] for name, values in layers[1:2])]
    return bool(came) and any(ipaddress.ip_address(outer["dst"]).packed == packed for packed in shifted.values())


@purpose("A mirrored packet is sent as it was")
def shortened_in_place(case, facts, difference, here):
    # A datagram for a port of foo-over-UDP: with its new length the other of the two is malformed, and nobody hears of it.
    frame = only(difference)
    told = frame and error(frame)
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r"fou add port (\d+)", line))}
    if not told or told[1:3] not in ((3, 3), (1, 4)) or not any("mirred ingress mirror" in line or "mirred egress mirror dev tun" in line for line in facts.lines):
        return False
    names = [name for name, _ in told[3]]
    return "udp" in names and told[3][names.index("udp")][1]["dport"] in ports and sum(frame.hex()[28:] in other for slot, _, other in here["out"] if slot == difference.more["slot"]) > 1


@purpose("A mirrored packet is sent as it was")
def shortened_and_lost(case, facts, difference, here):
    # So is what was in it, of which Linux then sends one where the router sends two.
    if not difference.kind.startswith("packets in another order or number") or difference.more.get("same") or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r"fou add port (\d+)", line))}
    datagrams = [layers for layers in inputs(difference) if any(name == "udp" and values["dport"] in ports for name, values in layers[2:3])]
    sent = [[frame for slot, port, frame in side if slot == difference.more["slot"] and port == difference.more["port"]] for side in (here["linux"], here["out"])]
    return bool(datagrams) and 0 < len(sent[1]) - len(sent[0]) <= len(datagrams)


@purpose("A mirrored packet leaves behind what it is a copy of")
def chosen(case, facts, difference, here):
    # Of a packet and its copy an action of the port chooses one.
    a, b = pair(difference)
    port = difference.more.get("port")
    determ = any(re.search(rf"filter add dev p{port} egress .*(random determ|police pkts_rate) ", line) for line in facts.lines)
    if a is None or not determ or not any(re.search(rf"mirred egress mirror dev p{port}\b", line) for line in facts.lines):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    moved = {"eth.dst", "eth.src", "ip4.ttl", "ip4.sum", "ip6.hops"}
    told = error(b)
    about = told and any((name, values["src"], values["dst"]) == (f"ip{told[0]}", told[3][0][1]["src"], told[3][0][1]["dst"]) for layers in inputs(difference) for name, values in layers[1:2])
    return (a in came) != (b in came) and ((changed(a, b) or {"no"}) - OWN <= moved or bool(about))


@purpose("A mirrored packet leaves behind what it is a copy of")
def mirrored_later(case, facts, difference, here):
    a, b = difference.more.get("there"), difference.more.get("here")
    return difference.kind.startswith("packets in another order") and any("mirred" in line and "mirror" in line for line in facts.lines) and difference.more.get("same", False)


@purpose("A mirrored packet leaves behind what it is a copy of")
def numbered_later(case, facts, difference, here):
    # So it has the sequence number behind.
    a, b = difference.more.get("there") or [], difference.more.get("here") or []
    mirrored = {match[1] for line in facts.lines if (match := re.search(r"mirred egress mirror dev (tun\d)", line))}
    counts = any(re.search(rf"link add {name} .* o?seq\b", line) for name in mirrored for line in facts.lines)
    if not counts or len(a) != len(b) or len(a) < 2:
        return False

    def unnumbered(frame):
        # What GRE carries, without what the two headers choose.
        layers = describe.layers(frame)
        at = next((n for n, (name, _) in enumerate(layers) if name == "gre"), None)
        return repr([(name, {key: value for key, value in values.items() if key not in ("rest", "id", "sum", "label")}) for name, values in layers]) if at else None

    numbers = lambda side: sorted(values["rest"] for frame in side for name, values in describe.layers(frame) if name == "gre")
    bare = [[unnumbered(frame) for frame in side] for side in (a, b)]
    return None not in bare[0] + bare[1] and bare[0] != bare[1] and sorted(bare[0]) == sorted(bare[1]) and numbers(a) == numbers(b)


@purpose("A mirrored packet leaves behind what it is a copy of")
def error_mirrored(case, facts, difference, here):
    # Into the tunnel that it is about. In Linux the copy goes in before the tunnel knows of an error, and the sender of the next
    # packet hears of it; here the copy is the next.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((3, 1), (1, 3)):
        return False
    for line in facts.lines:
        mirrored = re.search(r"filter add dev (p\d) ingress .*mirred egress mirror dev (tun\d)", line)
        made = mirrored and next((line for line in facts.lines if f"link add {mirrored[2]} " in line), "")
        ends = made and [re.search(rf" {end} (\S+)", made) for end in ("local", "remote")]
        if not made or None in ends or not facts.leads(told[3][0][1]["dst"], rf" dev {mirrored[2]}\b"):
            continue
        for _, port, frame in case["packets"]:
            came = f"p{port}" == mirrored[1] and error(bytes.fromhex(frame))
            if came and [came[3][0][1]["src"], came[3][0][1]["dst"]] == [end[1] for end in ends]:
                return True
    return False


def rounds(case):
    """How often Linux can have asked for a neighbour in vain, each time for three seconds, at most."""
    return min(4, 1 + case["packets"][-1][0] // 3_000_000) if case["packets"] else 1


@purpose("The router answers for itself")
def asked(case, facts, difference, here):
    # Linux asks for neighbours, and those requests go through the filters and the qdisc of the port, too.
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    at = re.search(r" dev (p\d) ", difference.what + " ")
    noise = [(f"p{port}", size) for port, size in here["noise"] if not at or f"p{port}" == at[1]]
    # It asks three times, of which a filter there may drop some behind where they are counted.
    drops = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) egress .*(?: police |action drop)", line))}
    noise += [one for one in dict.fromkeys(noise) if one[0] in drops for _ in range(-noise.count(one) % 3)]
    # Or all of them, where it has asked in vain.
    heard = {port for port, _ in noise}
    if here["drops"].get("neighbour-unresolved"):
        noise += [(port, size) for port in drops - heard if not at or port == at[1] for size in (42, 86) for _ in range(6)]
    sizes = [size for _, size in noise]
    # They are counted before an action gives them a label.
    pushes = any(re.search(r"filter add dev p\d egress .*action mpls (mac_)?push ", line) for line in facts.lines)
    return more_by(difference, sizes) or pushes and more_by(difference, [size - 4 for size in sizes])


@purpose("The router answers for itself")
def asked_into_tunnel(case, facts, difference, here):
    # A port's filter sends what Linux asks there into a tunnel of packets, whose filters count it. So it does with redirects.
    at = re.search(r" dev (tun\d) ", difference.what + " ")
    ports = set()
    for line in facts.lines:
        sent = re.search(r"filter add dev p(\d) egress .*mirred egress (?:redirect|mirror) dev (tun\d)\b", line)
        if sent and (not at or sent[2] == at[1]) and facts.tunnels.get(sent[2]) not in ("gretap", "ip6gretap", "vxlan", "geneve"):
            ports.add(int(sent[1]))
    sizes = [size - 14 for port, size in here["noise"] if port in ports]
    return bool(sizes) and difference.kind.startswith("shows tc -s: ") and 0 < len(difference.linux) == len(difference.ours) and more_by(difference, sizes)


def more_by(difference, sizes):
    """Whether Linux has counted some packets of these lengths more."""
    sums = {(0, 0)}
    for size in sizes:
        sums |= {(n + 1, total + size) for n, total in sums}
    counts = {n for n, _ in sums if n}
    for theirs, ours in zip(difference.linux, difference.ours):
        sent = [re.match(r"\s*Sent (\d+) bytes (\d+) pkt(.*)$", line) for line in (theirs, ours)]
        hits = [re.match(r"(.*(?:rule hit|direct_packets_stat|lended:) )(\d+)(.*)$", line) for line in (theirs, ours)]
        # Of u32, of which some of the packets may be what it looks for.
        success = [re.match(r"(.*[( ]success )(\d+)( ?\))$", line) for line in (theirs, ours)]
        if None not in success:
            more = int(success[0][2]) - int(success[1][2])
            rest = [re.match(r"(.*rule hit )(\d+)( success )$", line[1]) or line[1] for line in success]
            hit = all(isinstance(one, re.Match) and one[1] == rest[0][1] for one in rest)
            found = (int(rest[0][2]) - int(rest[1][2]) in counts if hit else rest[0] == rest[1]) and more in counts | {0}
        elif None not in sent and (sent[0][3] == sent[1][3] or refused_of(sent, counts)):
            found = (int(sent[0][2]) - int(sent[1][2]), int(sent[0][1]) - int(sent[1][1])) in sums - {(0, 0)}
        elif None not in hits and hits[0][1] == hits[1][1] and hits[0][3] == hits[1][3]:
            found = int(hits[0][2]) - int(hits[1][2]) in counts
        else:
            found = False
        if not found:
            return False
    return True


def refused_of(sent, counts):
    """Whether some of the packets that Linux has counted more were dropped there or were over a limit: none, or as many as there are."""
    rest = [re.match(r"(.*dropped )(\d+)(, overlimits )(\d+)( .*)$", line[3]) for line in sent]
    if None in rest or rest[0].group(1, 3, 5) != rest[1].group(1, 3, 5):
        return False
    return all(0 <= int(rest[0][n]) - int(rest[1][n]) <= max(counts, default=0) for n in (2, 4))


@purpose("The router answers for itself")
def asked_elsewhere(case, facts, difference, here):
    # Its three requests for a neighbour, which an action of the port has redirected to where they do not arrive.
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    away = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) egress .*mirred (?:egress|ingress) redirect dev ", line))}
    at = re.search(r" dev (p\d) ", difference.what + " ")
    return bool(away) and (not at or at[1] in away) and more_by(difference, [86, 86, 86, 42, 42, 42] * len(away) * rounds(case))


@purpose("The router answers for itself")
def asked_in_vain(case, facts, difference, here):
    # The requests that do not get through a tunnel: for a gateway behind it, or sent to it by a filter.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    if key not in ("stats64.tx.errors", "stats64.tx.dropped") or not str(facts.tunnels.get(link)).endswith(("gre", "gretap", "ipip", "sit", "ip6tnl", "bareudp")):
        return False
    known = {line.split()[3] for line in facts.lines if line.startswith("ip neigh ")}
    gateways = {match[1] for line in facts.lines if (match := re.search(rf" via (?:inet6? )?(\S+) dev {link}\b", line))} - known
    redirects = sum(bool(re.search(rf"filter add dev p\d egress .*mirred egress (?:redirect|mirror) dev {link}\b", line)) for line in facts.lines)
    more = int(difference.linux[0]) - int(difference.ours[0])
    return 0 < more <= 3 * (len(gateways) + 2 * redirects) * rounds(case)


@purpose("The router answers for itself")
def asked_through_tunnel(case, facts, difference, here):
    # Or that go into it, to where they are lost.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    if key not in ("stats64.tx.packets", "stats64.tx.bytes") or facts.tunnels.get(link) not in ("ipip", "sit", "gre", "ip6tnl", "ip6gre", "bareudp"):
        return False
    redirects = sum(bool(re.search(rf"filter add dev p\d egress .*mirred egress (?:redirect|mirror) dev {link}\b", line)) for line in facts.lines)
    sums = {(0, 0)}
    for size in [72, 72, 72, 28, 28, 28] * redirects * rounds(case):
        sums |= {(n + 1, total + size) for n, total in sums}
    more = int(difference.linux[0]) - int(difference.ours[0])
    return more > 0 and more in {sum[key.endswith("bytes")] for sum in sums}


@purpose("The router answers for itself")
def asked_into_tunnel(case, facts, difference, here):
    # Those requests by the filters of the tunnel that a port's filter sends them to, without their Ethernet header.
    at = re.match(r"(?:qdisc clsact ffff:|filter) .*?dev (tun\d) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    into = [match[1] for line in facts.lines if (match := re.search(r"filter add dev p\d egress .*mirred egress (?:redirect|mirror) dev (tun\d)\b", line))]
    into = [name for name in into if facts.tunnels.get(name) in ("ipip", "sit", "gre", "ip6tnl", "ip6gre", "bareudp") and (not at or name == at[1])]
    # Or with the label that it gives them.
    pushes = any(re.search(r"filter add dev p\d egress .*action mpls push .*mirred egress (redirect|mirror) dev tun", line) for line in facts.lines)
    sizes = [size + label for size in (72, 28) for label in ((0, 4) if pushes else (0,))]
    return bool(into) and more_by(difference, [size for size in sizes for _ in range(3)] * len(into) * rounds(case))


@purpose("Each packet that is too long for a tunnel is an error of it")
def too_long_again(case, facts, difference, here):
    if not re.fullmatch(r"tun\d", difference.more.get("link") or "") or difference.more["key"] != "stats64.tx.errors":
        return False
    return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= here["drops"].get("too-big", 0)


@purpose("Each packet that is too long for a tunnel is an error of it")
def too_long_for_route(case, facts, difference, here):
    # A Packet Too Big for what an earlier packet has gone to, from an address of the link by which it came.
    a, b = pair(difference)
    told = b and error(b)
    if not told or told[:3] != (6, 2, 0) or (changed(a, b) or set()) - OWN != {"ip6.src"}:
        return False
    earlier, now = ({values["dst"] for layers in packets for name, values in layers if name == "ip6"} for packets in (before(case, difference), inputs(difference)))
    into = facts.leads(told[3][0][1]["dst"], r" dev tun\d")
    from_link = next(values["src"] for name, values in describe.layers(a) if name == "ip6") in facts.own
    return into and from_link and bool(earlier & now)


@purpose("On a way of fewer than 552 bytes a packet that may be cut is cut outside alone")
def cut_inside(case, facts, difference, here):
    # The parts are of the same packet, and a router on the way has said so.
    narrow = lambda layers: any(name == "icmp" and (values["type"], values["code"]) == (3, 4) and int(values["rest"], 16) & 0xFFFF < 552 for name, values in layers)
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if not all(sides) or not any(map(narrow, before(case, difference))):
        return False
    for frame in (bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []):
        ends = [address_pair(values) for name, values in describe.layers(frame) if name == "ip4"][-1:]
        if ends and (at := frame.rfind(ends[0]) - 12) > 0:
            packet = frame[at : at + int.from_bytes(frame[at + 2 : at + 4], "big")]
            size = 4 * (packet[0] & 15)
            if [inner_parts(side, ends[0]) for side in sides] == [packet[size:]] * 2:
                return True
    return False


def inner_parts(frames, ends):
    """The data of the IPv4 packet from and to `ends` that these frames carry, each of them whole or a part of an IPv4 packet."""
    outer, found = {}, {}
    for frame in frames:
        size = 4 * (frame[14] & 15)
        outer.setdefault(frame[18:20], {})[int.from_bytes(frame[20:22], "big") & 0x1FFF] = frame[14 + size : 14 + int.from_bytes(frame[16:18], "big")]
    for parts_of in outer.values():
        data = b"".join(parts_of[at] for at in sorted(parts_of))
        at = data.find(ends) - 12
        if at < 0:
            return None
        size = 4 * (data[at] & 15)
        found[int.from_bytes(data[at + 6 : at + 8], "big") & 0x1FFF] = data[at + size : at + int.from_bytes(data[at + 2 : at + 4], "big")]
    return b"".join(found[at] for at in sorted(found))


@purpose("No redirects")
def redirected_into_tunnel(case, facts, difference, here):
    # Linux's redirect, which a tunnel on the way to the sender counts, and its filters. Of ICMPv6 with the packet to its eighth byte, and
    # the neighbour's hardware address where that is known.
    packets = []
    for layers in tried(case, difference):
        outer = next((values for name, values in layers[1:2] if name in ("ip4", "ip6")), None)
        if outer and facts.leads(outer["src"], r" dev tun\d"):
            six = (40 + outer["len"]) // 8 * 8 if "hops" in outer else 0
            sizes = (88 + min(six, 1192), 96 + min(six, 1184)) if six else (28 + min(outer["len"], 548),)
            # With an Ethernet header, if it is a tunnel of frames.
            framed = any(kind.endswith("tap") for kind in facts.tunnels.values())
            packets.append(sizes + tuple(size + 14 for size in sizes) if framed else sizes)
    swapped = compare.Difference(difference.kind, difference.what, difference.ours, difference.linux, **difference.more)
    return counts_more(swapped, packets)


@purpose("What is mirrored to an ifb ends there")
def goes_on_from_ifb(case, facts, difference, here):
    # Of a packet that was redirected before, the copy leaves as well.
    mirrors = any(re.search(r"mirred egress mirror dev ifb", line) for line in facts.lines)
    redirects = any(re.search(r"mirred (egress|ingress) redirect dev", line) for line in facts.lines)
    more = difference.kind.startswith("packets in another order or number") and not difference.more.get("same")
    return mirrors and redirects and bool(here["drops"].get("ifb-origin")) and (more or difference.kind.startswith("packet missing: "))


@purpose("The router answers for itself")
def asked_through_ifb(case, facts, difference, here):
    # Where a port's filter redirects what leaves to an ifb.
    key = difference.more.get("key", "")
    if facts.tunnels.get(difference.more.get("link")) != "ifb" or not re.fullmatch(r"stats64\.[rt]x\.(packets|bytes)", key):
        return False
    ports = {match[1] for line in facts.lines if (match := re.search(rf"filter add dev p(\d) egress .*mirred egress redirect dev {difference.more['link']}", line))}
    sums = {(0, 0)}
    for port, size in here["noise"]:
        if str(port) in ports:
            sums |= {(n + 1, total + size) for n, total in sums}
    more = int(difference.linux[0]) - int(difference.ours[0])
    return more > 0 and more in {sum[key.endswith("bytes")] for sum in sums}


@purpose("What came in a frame for a group is not encapsulated")
def group_frames(case, facts, difference, here):
    counts = sid_counts(difference)
    if not counts or counts[0][1] != counts[1][1]:
        return False
    leads = any(re.search(rf"(encap seg6 mode encap(\.red)?|End\.B6\.Encaps srh) segs \S*{counts[0][0]}\b", line) for line in facts.lines)
    # Also in a frame that comes out of a tunnel.
    group = lambda layers: any(name == "eth" and int(values["dst"][:2], 16) & 1 for name, values in layers)
    came = sum(map(group, tried(case, difference)))
    return leads and 0 < counts[0][2] - counts[1][2] <= came


@purpose("What comes back from an ifb is not classified again")
def classified_twice(case, facts, difference, here):
    at = re.match(r"qdisc clsact ffff: dev (p\d) ", difference.what)
    sent = [re.match(r" Sent (\d+) bytes (\d+) pkt(.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or sent[0][3] != sent[1][3]:
        return False
    if not any(re.search(rf"filter add dev {at[1]} (egress|parent) .*mirred egress redirect dev ifb", line) for line in facts.lines):
        return False
    # Those that went there, and the requests for neighbours, each of which went twice.
    asked = [size for port, size in here["noise"] if f"p{port}" == at[1]]
    more = int(sent[0][2]) - int(sent[1][2])
    return 0 < more <= int(sent[1][2]) + 2 * len(asked)


@purpose("A SID counts what is dropped where it leaves as forwarded")
def dropped_behind(case, facts, difference, here):
    if not difference.kind.startswith("shows ip -6 -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    # Whatever filters and qdiscs drop.
    dropped = sum(count for reason, count in here["drops"].items() if re.match(r"tc-|police|qdisc-|codel", reason))
    more = 0
    for both in zip(difference.linux, difference.ours):
        counts = [re.match(r"(\S+  encap seg6local .*) packets (\d+) bytes \d+ errors (\d+) (.*)$", line) for line in both]
        if None in counts or counts[0].group(1, 4) != counts[1].group(1, 4):
            return False
        (packets, errors), (own_packets, own_errors) = ([int(number) for number in count.group(2, 3)] for count in counts)
        more += own_packets - packets
        if not own_packets - packets == errors - own_errors > 0:
            return False
    return more <= dropped and any(re.search(r"filter add dev \S+ egress |qdisc (add|replace) dev \S+ (root|parent)", line) for line in facts.lines)


@purpose("A SID counts what is dropped where it leaves as forwarded")
def sent_and_dropped(case, facts, difference, here):
    # So do tunnels, of outer packets.
    link, key = difference.more.get("link"), difference.more.get("key")
    kind = facts.tunnels.get(link)
    if difference.more.get("when") != "shows" or kind not in ("ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap", "bareudp"):
        return False
    if not any(re.search(r"filter add dev p\d (egress|parent) .*(\bdrop\b|police|redirect)|qdisc (add|replace) dev p\d (root|parent)", line) for line in facts.lines):
        return False
    dropped = sum(count for reason, count in here["drops"].items() if re.match(r"tc-action|tc-edit|police|qdisc-|codel|mirred-loop", reason))
    more = int(difference.ours[0]) - int(difference.linux[0])
    if key in ("stats64.tx.errors", "stats64.tx.dropped"):
        return 0 < -more <= dropped
    return 0 < more <= {"stats64.tx.packets": dropped, "stats64.tx.bytes": 1500 * dropped}.get(key, 0)


@purpose("Every fragment is classified")
def behind_dropped_fragments(case, facts, difference, here):
    # Of what is cut here, as where no filters are, the fragments behind the first. Of what came as a fragment none.
    came = {fragment_of(layers) for layers in tried(case, difference)}
    cut = [bytes.fromhex(frame) for _, _, frame in here.get("unfiltered", [])]
    # An action may have put a label on each, which a filter counts.
    label = 4 if any(re.search(r"egress .*action mpls push", line) for line in facts.lines) else 0
    packets = [(len(frame), len(frame) - 14, len(frame) + label) for frame in cut if (found := fragment_of(describe.layers(frame))) and found[0] and found not in came]
    # Or the second of what an action that stands there has sent into a tunnel over IPv4, with a label or without.
    if any(re.search(r"filter add dev p\d egress .*mirred egress (redirect|mirror) dev tun\d", line) for line in facts.lines):
        for frame in cut:
            outer = len(frame) - 14 + label + 28
            packets += [(14 + outer - 1480, 14 + outer - 1480 + label)] if 1480 < outer - 20 and outer - label - 28 <= 1500 else []
    dropped = sum(count for reason, count in here["drops"].items() if re.match(r"tc-|police|mirred-loop", reason))
    return bool(packets) and dropped > 0 and "link" not in difference.more and counts_more(difference, packets)


def fragment_of(layers):
    """(offset, source, destination, identification) of the outermost IP header if it is that of a fragment."""
    for name, values in layers:
        if name == "ip4":
            ends = values["src"], values["dst"]
            return (int(values["frag"], 16) & 0x1FFF, *ends, values["id"]) if int(values["frag"], 16) & 0x3FFF else None
        if name == "ip6":
            ends = values["src"], values["dst"]
        if name == "frag6":
            return int(values["offset"], 16) & ~7, *ends, values["id"]
        if name not in ("eth", "vlan", "mpls", "ip6", "hbh", "routing", "dstopt"):
            return None
    return None


@purpose("A qdisc is served once for all that comes to it in a burst")
def tried_more_often(case, facts, difference, here):
    # Where a filter makes copies, or packets come at the same moment.
    if not re.match(r"shows tc -s: ", difference.kind) or not re.match(r"(qdisc|class) (tbf|htb) ", difference.what) or not 0 < len(difference.linux) == len(difference.ours):
        return False
    times = [at for at, _, _ in case["packets"]]
    several = len(set(times)) < len(times) or any(" mirror dev " in line for line in facts.lines)
    for lines in zip(difference.linux, difference.ours):
        found = [re.fullmatch(r"( Sent \d+ bytes (\d+) pkt \(dropped \d+), overlimits (\d+) requeues 0\)", line) for line in lines]
        if None in found or found[0][1] != found[1][1] or not 0 < int(found[0][3]) - int(found[1][3]) < int(found[0][2]):
            return False
    return several


@purpose("A qdisc counts a packet as long as it is when it comes")
def edited(case, facts, difference, here):
    # By four bytes for each label that an action at egress of the same device has put on or taken off.
    at = re.match(r"(?:qdisc|class) .* dev (\S+) ", difference.what + " ")
    sent = [re.match(r" Sent (\d+) bytes (\d+) pkt(.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or "clsact" in difference.what or None in sent or sent[0][3] != sent[1][3]:
        return False
    # With the requests for neighbours, which no label is put on.
    asked = [size for port, size in here["noise"] if f"p{port}" == at[1]] if sent[0][2] != sent[1][2] else []
    if int(sent[0][2]) - len(asked) != int(sent[1][2]):
        return False
    edits = [line for line in facts.lines if f"filter add dev {at[1]} egress " in line and re.search(r"action mpls (push|pop)", line)]
    more = abs(int(sent[0][1]) - sum(asked) - int(sent[1][1]))
    return bool(edits) and more % 4 == 0 and more <= 4 * len(edits) * int(sent[0][2])


@purpose("An action counts what the filters refuse that it redirects to")
def refused_elsewhere(case, facts, difference, here):
    sent = [re.match(r"\s*(Sent \d+ bytes \d+ pkt \(dropped \d+), overlimits (\d+) requeues 0\)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not difference.what.startswith("total acts") or None in sent or sent[0][1] != sent[1][1]:
        return False
    return int(sent[0][2]) > int(sent[1][2]) and any(re.search(r"filter add dev \S+ ingress .*mirred ingress", line) for line in facts.lines)


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


def goes_on(packets):
    """The lengths that a filter may count of packets, layers from an IP header on, that Linux forwards, or of errors about them:
    for each, what it may be with an Ethernet header and without, and with a label."""
    for layers in packets:
        name, values = layers[0]
        if name not in ("ip4", "ip6"):
            continue
        size = values["len"] + (40 if name == "ip6" else 0)
        told = min(size + 48, 1280) if name == "ip6" else min(size + 28, 576)
        yield {n + more for n in (size, told) for more in (0, 4, 14, 18)}


def lost_elsewhere(difference, packets):
    """Whether Linux has counted some of these packets more, which were lost behind where they were counted."""
    sums = {(0, 0)}
    for sizes in goes_on(packets):
        sums |= {(n + 1, total + size) for n, total in sums for size in sizes}
    if "link" in difference.more:
        # Into a tunnel it goes without its Ethernet header, or as an error.
        key, more = difference.more["key"], int(difference.linux[0]) - int(difference.ours[0])
        if not re.fullmatch(r"tun\d", difference.more["link"]) or not key.startswith("stats64.tx."):
            return False
        return more in ({total for _, total in sums} if key.endswith("bytes") else {n for n, _ in sums}) - {0}
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    for lines in zip(difference.linux, difference.ours):
        sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+) requeues 0\)\s*", line) for line in lines]
        if None not in sent:
            bytes_, packets, *rest = (int(x) - int(y) for x, y in zip(sent[0].groups(), sent[1].groups()))
            if (packets, bytes_) not in sums - {(0, 0)} or any(not 0 <= one <= packets for one in rest):
                return False
        elif not (more := more_hits(*lines)) or not 0 <= min(more) or not 0 < max(more) <= max(n for n, _ in sums):
            return False
    return True


def more_hits(line, other):
    """By how much the numbers of hits differ in two lines that say the same else; none if they do not."""
    hit = re.compile(r"((?:rule hit|direct_packets_stat|success) )(\d+)")
    if hit.sub(r"\1", line) != hit.sub(r"\1", other):
        return []
    return [int(x[2]) - int(y[2]) for x, y in zip(hit.finditer(line), hit.finditer(other))]


@purpose("Frames for other stations stay in ip6gretap")
def counted_by_frequency(case, facts, difference, here):
    # What Linux forwards of them a route with `freq` counts, so that other packets get its trace.
    a, b = pair(difference)
    names = [[name for name, _ in describe.layers(frame)[1:3]] for frame in (a, b)] if a else []
    if sorted(one[:2].count("hbh") for one in names) != [0, 1] or dict(describe.layers(a))["ip6"]["dst"] != dict(describe.layers(b))["ip6"]["dst"]:
        return False
    by = {line for net, line in facts.routes if "encap ioam6 freq" in line and ipaddress.ip_address(dict(describe.layers(a))["ip6"]["dst"]) in net}
    others = [values["dst"] for inside in other_frames(case) for name, values in inside[1:2] if name == "ip6"]
    return any(ipaddress.ip_address(to) in net for net, line in facts.routes if line in by for to in others)


@purpose("Frames for other stations stay in ip6gretap")
def lost_from_others(case, facts, difference, here):
    # What is in them, or is told of it, filters count, and where it is lost behind them nobody sees it.
    return lost_elsewhere(difference, [inside[1:] for inside in other_frames(case) if len(inside) > 1])


@purpose("A malformed routing header is not taken for none")
def lost_behind(case, facts, difference, here):
    # The same of what Linux takes out at a SID that decapsulates.
    found = []
    for layers in tried(case, difference):
        outer = next((values["dst"] for name, values in layers[:3] if name == "ip6"), None)
        at = next((n for n, (name, _) in enumerate(layers) if name == "routing"), None)
        if at is not None and re.match(r"End\.D[TX]", facts.sids.get(outer, "")) and not sound(layers[at][1]) and len(layers) > at + 1:
            found.append(list(itertools.dropwhile(lambda layer: layer[0] == "routing", layers[at:])))
    return lost_elsewhere(difference, found)


@purpose("Nobody hears of a truncated packet that a filter sends into a tunnel and that is too long for it")
def truncated_into_tunnel(case, facts, difference, here):
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 2, 0):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    cut = any(frame[12:14] == b"\x86\xdd" and len(frame) - 54 < told[3][0][1]["len"] and frame[22:54] == address_pair(told[3][0][1]) for frame in came)
    return cut and any(re.search(rf"ingress .*mirred egress (mirror|redirect) dev {name}\b", line) for name in facts.tunnels for line in facts.lines)


@purpose("A timestamp option is written once")
def written_twice(case, facts, difference, here):
    a, b = pair(difference)
    # The checksum of GRE is over the option.
    summed = {"gre.rest"} if a and any(name == "gre" and int(values["flags"], 16) == 0x8000 for name, values in describe.layers(a)) else set()
    if a is None or (changed(a, b) or {"no"}) - OWN - {"udp.sport", "udp.sum"} - summed != {"ip4.options"}:
        return False
    options = [[values["options"] for name, values in describe.layers(frame) if name == "ip4" and values.get("options")] for frame in (a, b)]
    # One more that found no room, in the upper half of the byte behind the pointer.
    full = [[re.fullmatch(r"44(..)(..)(.)(.).*", one) for one in side] for side in options]
    return bool(full[0]) and all(
        x and y and x.group(1, 2, 4) == y.group(1, 2, 4) and int(x[3], 16) == int(y[3], 16) + 1 for x, y in zip(*full)
    )


@purpose("A timestamp option is written once")
def written_behind_label(case, facts, difference, here):
    # What a label has led into a VRF has options that are not looked at, but by that message.
    a, b = pair(difference)
    if a is None or len(a) != len(b) or not any(re.search(r"-f mpls route add .* dev vrf\d|route add \d+ dev vrf\d", line) for line in facts.lines):
        return False
    for layers in inputs(difference):
        options = next((values.get("options") for name, values in layers[2:] if name == "ip4"), None) if layers[1:2] and layers[1][0] == "mpls" else None
        at = b.find(bytes.fromhex(options)) if options and options.startswith("44") else -1
        if at < 34:
            continue
        size = len(options) // 2
        stamp, own = a[at : at + size], b[at : at + size]
        entry = stamp[2] - own[2]
        written = entry in (4, 8) and stamp[:2] + stamp[3:4] == own[:2] + own[3:4]
        # All else inside is the same, even the sum over the header.
        if written and a[at - 20 : at] + a[at + size :] == b[at - 20 : at] + b[at + size :]:
            return True
    return False


def circle(facts):
    """The SIDs that the segments of End.B6 and End.B6.Encaps lead back to themselves, or from one of these to the next."""
    to = {sid: [segment for segment in re.findall(r"segs (\S+)", action)[0].split(",") if segment in facts.sids] for sid, action in facts.sids.items() if "segs" in action}
    found = set()
    for sid in to:
        way, seen = list(to[sid]), set()
        while way:
            segment = way.pop()
            if segment not in seen:
                seen.add(segment)
                way += to.get(segment, [])
        # End goes back to the SID that the packet had for its destination.
        if sid in seen or any(re.match(r"End(\.[XT])? ", facts.sids[segment] + " ") for segment in seen):
            found |= {sid} | seen
    return found


@purpose("Loops are dropped as loops")
def loops(case, facts, difference, here):
    if difference.more.get("key") == "stats64.tx.errors" and facts.tunnels.get(difference.more["link"]) == "vrf":
        return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= here["drops"].get("loop", 0)
    # A SID whose segments lead back to it counts in Linux once for each time that the packet comes round, as do those between.
    counts = sid_counts(difference)
    looped = sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop"))
    if not counts or not looped or not counts[0][0] in circle(facts):
        return False
    (_, packets, errors), (_, own_packets, own_errors) = counts
    return errors > own_errors and 0 <= own_packets - packets <= looped * 16


@purpose("Loops are dropped as loops")
def looped_into_tunnel(case, facts, difference, here):
    # A tunnel whose other end a policy leads back into it, which counts each round until Linux has had enough: the third.
    loops = sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop"))
    round_ = {match[2] for line in facts.lines if (match := re.search(r" encap ip6? .*?dst (\S+) .*dev (tun\d)", line)) and facts.leads(match[1], r"encap seg6 | dev tun\d")}
    most = 3 * loops
    if not most or not round_:
        return False
    key, link = difference.more.get("key", ""), difference.more.get("link")
    if link:
        more = int(difference.linux[0]) - int(difference.ours[0])
        return link in round_ and re.fullmatch(r"stats64\.tx\.(packets|bytes)", key) is not None and 0 < more <= most * (1500 if key.endswith("bytes") else 1)
    at = re.search(r" dev (\w+) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or at and at[1] not in round_ or not 0 < len(difference.linux) == len(difference.ours):
        return False
    for lines in zip(difference.linux, difference.ours):
        sent = [re.match(r"\s*Sent (\d+) bytes (\d+) pkt(.*)$", line) for line in lines]
        more = [int(sent[0][2]) - int(sent[1][2])] if None not in sent and sent[0][3] == sent[1][3] else more_hits(*lines)
        if not any(more) or not all(0 <= one <= most for one in more):
            return False
    return True


@purpose("Loops are dropped as loops")
def looped(case, facts, difference, here):
    # From the device of a VRF, which has no other route, also behind a SID, or from a SID back to it, until the hop limit is
    # used up.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((11, 0), (3, 0)) or not here["drops"].get("loop"):
        return False
    quoted = told[3][0][1]
    if quoted.get("ttl", quoted.get("hops")) > 1:
        return False
    into_vrf = facts.leads(quoted["dst"], r" dev vrf\d")
    near = lambda sid: ipaddress.ip_address(quoted["dst"]) in ipaddress.ip_network(f"{sid}/64", strict=False)
    back = lambda to: into_vrf if to == quoted["dst"] else to in facts.sids and (into_vrf or near(to))
    came = lambda values: values["src"] == quoted["src"] and values.get("ttl", values.get("hops")) > 1 and back(values["dst"])
    return any(name == f"ip{told[0]}" and came(values) for layers in tried(case, difference) for name, values in layers)


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
def shorter_than_a_header(case, facts, difference, here):
    a = difference.more.get("there")
    if not a or difference.more.get("here") or not any(layers[1:2] and layers[1][0] == "mpls" for layers in inputs(difference)):
        return False
    least = {b"\x08\x00": 20, b"\x86\xdd": 40}
    # A filter may have given it a tag.
    tags = [4 if frame[12:14] in (b"\x81\x00", b"\x88\xa8") else 0 for frame in a]
    return all(len(frame) < 14 + tag + least.get(frame[12 + tag : 14 + tag], 0) for frame, tag in zip(a, tags))


@purpose("VRFs and `lo` do not count what passes")
def uncounted(case, facts, difference, here):
    link = difference.more.get("link")
    return bool(link) and difference.more["when"] == "shows" and (link == "lo" or facts.tunnels.get(link) == "vrf") and ".errors" not in difference.more["key"]


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def no_room(case, facts, difference, here):
    a, b = pair(difference)
    sent = difference.more.get("there") or []
    if len(sent) == 1 and not difference.more.get("here"):
        # A tag in the middle of the packet, which is sent as a frame.
        pushed = any(re.search(r"filter add dev tun\d ingress .*vlan push ", line) for line in facts.lines)
        into = any(re.search(r"filter add dev tun\d egress .*vlan push ", line) for line in facts.lines)
        if into and here["drops"].get("tc-edit") and "/gre/vlan" in describe.chain(sent[0]):
            # Into GRE, which carries whatever it is.
            at = next(n for n, (name, _) in enumerate(describe.layers(sent[0])) if name == "vlan")
            rest = bytes.fromhex(dict(describe.layers(sent[0])[at:]).get("raw", {"data": ""})["data"])
            return any(len(rest) > 20 and rest[-20:] in bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or [])
        came = any(sent[0][:12] in bytes.fromhex(frame)[14:] for _, frame in difference.more.get("inputs") or [])
        return pushed and came and bool(here["drops"].get("tc-edit")) and [name for name, _ in describe.layers(sent[0])[:2]] == ["eth", "vlan"]
    return a is not None and any("mac_push" in line or "pop_eth" in line for line in facts.lines) and "gre/eth/mpls/eth" in describe.chain(b)


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def counted_without_tag(case, facts, difference, here):
    # What is dropped for it: the device's filters count it so, and those that Linux's packet comes to do not count it.
    bare = {name for name, kind in facts.tunnels.items() if kind in ("ipip", "sit", "gre", "ip6tnl", "ip6gre", "bareudp")}
    tagged = any(re.search(rf"filter add dev {name} ingress .*(vlan push|mac_push)", line) for name in bare for line in facts.lines)
    dropped = here["drops"].get("tc-edit", 0)
    if not difference.kind.startswith("shows tc -s: ") or not tagged or not dropped or not len(difference.linux) == len(difference.ours) == 1:
        return False
    sent = [re.match(r"\s*Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+) requeues 0\)$", lines[0]) for lines in (difference.linux, difference.ours)]
    if None in sent:
        return False
    bytes_, packets, drops, over = (int(x) - int(y) for x, y in zip(sent[0].groups(), sent[1].groups()))
    if packets == 0:
        return bytes_ == 0 and 0 < -drops <= dropped and over == 0
    return 0 < packets <= dropped and bytes_ > 0 and 0 <= drops <= packets and 0 <= over <= packets


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def no_room_counted(case, facts, difference, here):
    # What is dropped for it goes no further, and its device counts it.
    bare = {name for name, kind in facts.tunnels.items() if re.fullmatch(r"ipip|sit|gre|ip6tnl|ip6gre|bareudp", kind)}
    at = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (\S+) .*action (?:vlan push|mpls mac_push|vlan push_eth)", line))} & bare
    dropped = here["drops"].get("tc-edit", 0)
    if not at or not dropped:
        return False
    if difference.more.get("key") == "stats64.tx.errors":
        # That it was mirrored to.
        to = any(f"mirred egress mirror dev {difference.more['link']}" in line or f"mirred egress redirect dev {difference.more['link']}" in line for line in facts.lines)
        # The packet, and its copy.
        return to and 0 < int(difference.linux[0]) - int(difference.ours[0]) <= 2 * dropped
    both = [list(lines) for lines in (difference.linux, difference.ours)]
    direct = [re.match(r"(qdisc htb .* direct_packets_stat )(\d+)( direct_qlen \d+)\s*$", lines[0]) if len(lines) == 2 else None for lines in both]
    if None not in direct and direct[0].group(1, 3) == direct[1].group(1, 3):
        # The root qdisc of the device, which puts what has no class straight into its queue.
        if not 0 < int(direct[0][2]) - int(direct[1][2]) <= dropped:
            return False
        both = [lines[1:] for lines in both]
    counts = [re.match(r"\s*Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits \d+ requeues 0\)\s*$", lines[0]) if len(lines) == 1 else None for lines in both]
    if None in counts or not (difference.what.startswith("total acts") or any(f" dev {name} " in difference.what + " " for name in at)):
        return False
    (packets, drops), (own_packets, own_drops) = ([int(number) for number in count.group(2, 3)] for count in counts)
    # An action behind it may drop what it has given a tag.
    return 0 <= packets - own_packets <= dropped and drops - own_drops <= dropped and own_drops - drops <= dropped


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def before_the_network_header(case, facts, difference, here):
    # Where `u32` finds nothing here.
    bare = {name for name, kind in facts.tunnels.items() if re.fullmatch(r"ipip|sit|gre|ip6tnl|ip6gre|bareudp", kind)}
    at = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (\S+) .*u32 .*match u\d+ \S+ \S+ at -", line))} & bare
    if difference.more.get("link") in at:
        return difference.more["key"] in ("stats64.tx.errors", "stats64.tx.dropped")
    if not at or not difference.kind.startswith("shows tc -s: "):
        return False
    # Also by a filter behind such a one.
    behind = (one := re.match(r"filter (?:parent \S+ )?protocol (\S+) pref (\d+) ", difference.what)) and any(
        re.search(rf"filter add dev {name} .*protocol {one[1]} pref {one[2]} ", line) for name in at for line in facts.lines
    )
    return bool(behind) or difference.what.startswith("total acts") or any(f" dev {name} " in difference.what + " " for name in at) or any("at -" in line for line in difference.ours)


@purpose("`mpls dec_ttl` drops a label whose TTL is 0")
def used_up(case, facts, difference, here):
    spent = lambda packets: sum(any(name == "mpls" and values["ttl"] == 0 for name, values in layers) for layers in packets)
    if not any(" action mpls dec_ttl" in line for line in facts.lines):
        return False
    if difference.kind.startswith("packet"):
        # Which goes on there, behind that label or with it.
        return bool(difference.more.get("there")) and not difference.more.get("here") and bool(spent(inputs(difference)))
    sent = [[re.fullmatch(r"(\s*Sent \d+ bytes \d+ pkt) \(dropped (\d+), (.*)", line) for line in lines] for lines in (difference.linux, difference.ours)]
    if [len(lines) for lines in sent] != [1, 1] or None in sent[0] + sent[1] or sent[0][0].group(1, 3) != sent[1][0].group(1, 3):
        return False
    return 0 < int(sent[1][0][2]) - int(sent[0][0][2]) <= spent(tried(case, difference))


@purpose("Filters see what is in a frame that comes out of End.DX2")
def out_of_dx2(case, facts, difference, here):
    ports = {match[1] for action in facts.sids.values() if (match := re.search(r"End\.DX2 oif (p\d)", action))}
    ports &= {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) (?:egress|parent) .*(?:flower|u32|basic) ", line))}
    came = [layers for layers in tried(case, difference) if any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers)]
    if not ports or not came:
        return False
    frames = [frame for side in ("there", "here") for frame in difference.more.get(side) or []]
    if frames:
        # The frame, in whatever way a filter has changed it.
        inside = [layers[n][1]["src"] for layers in came for n in range(1, len(layers)) if layers[n][0] == "eth"]
        return all(describe.layers(frame)[0][1]["src"] in inside for frame in frames)
    more = [[int(number) for number in re.findall(r"(?:bytes|rule hit|success) (\d+)", " ".join(lines))] for lines in (difference.linux, difference.ours)]
    return difference.kind.startswith("shows tc -s: ") and len(more[0]) == len(more[1]) and all(abs(a - b) <= len(came) for a, b in zip(*more))


@purpose("Filters see what is in a frame that comes out of End.DX2")
def out_of_dx2_into_tunnel(case, facts, difference, here):
    # And so a filter sends it into a tunnel of IP packets without its Ethernet header.
    a, b = pair(difference)
    ports = {match[1] for action in facts.sids.values() if (match := re.search(r"End\.DX2 oif (p\d)", action))}
    into = any(re.search(rf"filter add dev {port} egress .*mirred egress (mirror|redirect) dev tun\d", line) for port in ports for line in facts.lines)
    if a is None or not into or len(a) != len(b) + 14:
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))
        to_sid = any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers)
        header = next((values["dst"] + values["src"] for name, values in layers[1:] if name == "eth"), None)
        if to_sid and header and header in frame[28:]:
            inside = bytes.fromhex(frame[frame.index(header, 28) :])
            if a.endswith(inside) and b.endswith(inside[14:]) and not b.endswith(inside):
                return True
    return False


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def transport_inside(case, facts, difference, here):
    # A packet inside another: what goes into the guest comes from packet sockets.
    if not difference.kind.startswith("shows tc -s: ") or not any(re.search(r"(cmp|nbyte)\([^)]* layer 2 ", line) for line in facts.lines):
        return False
    lines = [[re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt .*|(\s*not_in_hw )\(rule hit (\d+)\)", line) for line in side] for side in (difference.linux, difference.ours)]
    if len(lines[0]) != 1 or len(lines[1]) != 1 or None in lines[0] + lines[1] or lines[0][0][3] != lines[1][0][3]:
        return False
    at = 4 if lines[0][0][3] else 2
    inside = sum(sum(name in ("ip4", "ip6") for name, _ in layers) > 1 for layers in tried(case, difference))
    return 0 < abs(int(lines[0][0][at]) - int(lines[1][0][at])) <= inside


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def sent_by_transport_inside(case, facts, difference, here):
    # A packet inside another that such a match redirects, or not.
    frames = [frame for side in ("there", "here") for frame in difference.more.get(side) or []]
    nested = [bytes.fromhex(frame)[14:] for _, frame in difference.more.get("inputs") or [] if sum(name in ("ip4", "ip6") for name, _ in describe.layers(bytes.fromhex(frame))) > 1]
    sends = any(re.search(r"(cmp|nbyte)\([^)]* layer 2 .*mirred ", line) for line in facts.lines)
    return sends and bool(frames) and all(frame[14:] in nested for frame in frames)


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def dropped_by_transport_inside(case, facts, difference, here):
    # Or that it drops, as what has no label where a label is changed.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    drops = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:drop|mpls (?:modify|dec_ttl))", line))}
    ends = lambda layers: {(values["src"], values["dst"]) for name, values in layers if name in ("ip4", "ip6")}
    nested = set()
    for port, frame in difference.more.get("inputs") or []:
        nested |= ends(describe.layers(bytes.fromhex(frame))[2:]) if f"{port}" in drops else set()
    return bool(sides[0]) != bool(sides[1]) and all(ends(describe.layers(frame)) & nested for frame in sides[0] + sides[1])


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def drops_by_transport_inside(case, facts, difference, here):
    # Which the hook counts, and a tunnel that the packet is for.
    drops = any(re.search(r"filter add dev p\d ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action .*drop$", line) for line in facts.lines)
    nested = sum(sum(name in ("ip4", "ip6") for name, _ in layers) > 1 for layers in tried(case, difference))
    if not drops or len(difference.linux) != 1 or len(difference.ours) != 1:
        return False
    if re.fullmatch(r"stats64\.rx\.(packets|errors|dropped)", difference.more.get("key", "")) and facts.tunnels.get(difference.more["link"]):
        counts = int(difference.linux[0]), int(difference.ours[0])
    else:
        found = [re.fullmatch(r"(\s*Sent \d+ bytes \d+ pkt) \(dropped (\d+), (.*)", line) for line in (difference.linux[0], difference.ours[0])]
        if None in found or found[0].group(1, 3) != found[1].group(1, 3) or " ingress " not in difference.what and " clsact " not in difference.what:
            return False
        counts = int(found[0][2]), int(found[1][2])
    return 0 < abs(counts[0] - counts[1]) <= nested


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def policed_by_transport_inside(case, facts, difference, here):
    # Or one behind it, as it has taken the tokens that this one had needed, or was one of so many.
    rated = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:police (?:pkts_)?rate|\w+ random determ drop)", line))}
    by = {f"{port}" for port, _ in difference.more.get("inputs") or []}
    sides = [bool(difference.more.get(side)) for side in ("there", "here")]
    others = [int(port) for port in "012" if port not in by & rated]
    nested = any(sum(name in ("ip4", "ip6") for name, _ in layers) > 1 for layers in before(case, difference, others))
    return bool(by) and by <= rated and sides[0] != sides[1] and nested


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def without_outer_header(case, facts, difference, here):
    # The same inner packet, in Linux with the outer header and the one of GRE before it.
    a, b = pair(difference)
    many = [name for name, kind in facts.tunnels.items() if kind == "gre" and not any(re.search(rf"link add {name} .*( remote | external)", line + " ") for line in facts.lines)]
    frames = [name for name, kind in facts.tunnels.items() if kind in ("gretap", "ip6gretap", "vxlan", "geneve")]
    sent = any(re.search(rf"filter add dev {one} ingress .*mirred egress (redirect|mirror) dev {to}\b", line) for one in many for to in frames for line in facts.lines)
    if a is None or not sent:
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))
        at = next((n for n, (name, _) in enumerate(layers) if name == "gre"), 0)
        if at < 2 or layers[at - 1][0] != "ip4":
            continue
        packet = bytes.fromhex(frame)[14:]
        gre = 4 * (packet[0] & 15)
        flags = int.from_bytes(packet[gre : gre + 2], "big")
        inner = packet[gre + 4 + 4 * (flags >> 15 & 1) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1) :]
        if len(a) - len(b) == len(packet) - len(inner) and a.endswith(packet) and b.endswith(inner):
            return True
    return False


@purpose("A label goes before what GRE with checksums in UDP has made")
def label_before_gre_in_udp(case, facts, difference, here):
    made = any(re.search(r" type (ip6)?gre .*\bo?csum .*encap (fou|gue) ", line) for line in facts.lines)
    pushes = any(re.search(r"filter add dev p\d (egress|parent) .*action mpls push ", line) for line in facts.lines)
    b = difference.more.get("here")
    if not made or not pushes or not b or difference.more.get("there"):
        return False
    return all(re.search(r"/mpls/ip[46]/(dstopt/)?udp", describe.chain(frame)) for frame in b)


@purpose("A mirrored packet is sent as it was")
def visited_twice(case, facts, difference, here):
    # A SID with a program changes the destination of both, so that Linux does not come to the program with the other.
    a, b = pair(difference)
    if a is None or (changed(a, b) or {"no"}) - OWN != {"routing.data"} or not any(re.search(r"filter add dev p\d ingress .*mirred ingress mirror dev p\d", line) for line in facts.lines):
        return False
    x, y = (next(values["data"] for name, values in describe.layers(frame) if name == "routing") for frame in (a, b))
    # Which has written a tag.
    came = [dict(layers) for layers in inputs(difference) if any(name == "routing" for name, _ in layers)]
    same = any("End.BPF" in facts.sids.get(one["ip6"]["dst"], "") and one["routing"]["data"] == x for one in came if "ip6" in one)
    return same and x[:4] + x[8:] == y[:4] + y[8:]


@purpose("An error at the hop limit behind End.B6.Encaps of a program")
def behind_program(case, facts, difference, here):
    # By the tag in the SRH, as `steer.c` has it.
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[:3] != (6, 3, 0) or told[3][0][1]["hops"] > 1:
        return False
    for layers in inputs(difference):
        outer, routing = (next((values for name, values in layers if name == wanted), None) for wanted in ("ip6", "routing"))
        if outer and routing and "End.BPF" in facts.sids.get(outer["dst"], "") and (outer["src"], outer["hops"]) == (told[3][0][1]["src"], told[3][0][1]["hops"]):
            if int(routing["data"][4:8] or "0", 16) in (26, 27, 29):
                return True
    return False


@purpose("What is not supported is refused")
def unsupported(case, facts, difference, here):
    return difference.kind.startswith("config") and difference.linux == ["None"] and "by this router." in difference.ours[0]


def check(path):
    """Every heading is there."""
    text = " ".join(path.read_text().split())
    missing = [heading for heading, _ in PURPOSES if heading not in text]
    if missing:
        raise SystemExit(f"{path} has no heading {missing}")


def parts(difference, errors):
    """What differs in a slot, frame by frame: frames of the same layers are a pair, and with `errors` those to the same sender;
    the others stand alone."""
    there, here = difference.more.get("there") or [], list(difference.more.get("here") or [])
    found = []
    for a in there:
        b = next((b for b in here if describe.chain(b) == describe.chain(a)), None)
        if b is None and errors and (told := error(a)):
            b = next((b for b in here if (other := error(b)) and other[0] == told[0] and other[3][0][1]["src"] == told[3][0][1]["src"]), None)
        if b is not None:
            here.remove(b)
        found.append(([a], [] if b is None else [b]))
    for one in found + [([], [b]) for b in here]:
        part = copy.copy(difference)
        part.more = {**difference.more, "there": one[0], "here": one[1]}
        yield part


def in_order(difference, facts):
    """As many frames on either side, pair by pair as they were sent. Where copies may leave by this port, also with some of what
    Linux sends behind all others: copies go out later than Linux sends them."""
    there, here = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) != len(here):
        return
    copies = rf"mirred (?:ingress mirror|egress mirror dev (?:p{difference.more.get('port')}\b|tun|ifb))"
    most = len(here) if len(here) <= 3 and any(re.search(copies, line) for line in facts.lines) else 0
    orders = []
    for later in itertools.chain.from_iterable(itertools.combinations(range(len(there)), n) for n in range(most + 1)):
        order = [n for n in range(len(there)) if n not in later] + list(later)
        if order in orders:
            continue
        orders.append(order)
        found = []
        for a, b in zip((there[n] for n in order), here):
            part = copy.copy(difference)
            part.more = {**difference.more, "there": [a], "here": [b]}
            found.append(part)
        yield found


def once(difference):
    """Of as many frames on either side, which are all the same there and here, as of copies, one each."""
    there, here = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) < 2 or len(there) != len(here) or len(set(there)) > 1 or len(set(here)) > 1:
        return difference
    part = copy.copy(difference)
    part.more = {**difference.more, "there": there[:1], "here": here[:1]}
    return part


def taken(case, unfiltered, explains):
    """What leaves there and not here, or here and not there, where no filters are, and that some purpose explains: (heading, 1 for
    what leaves here and -1 for what leaves there, the lengths that a filter may count). `unfiltered` are both answers."""
    found = []
    for difference in compare.frame_differences(case, *unfiltered, compare.own_addresses(case)):
        heading = explains(difference)
        for sign, frames in ((1, difference.more["here"]), (-1, difference.more["there"])) if heading else ():
            for frame in frames:
                layers = describe.layers(frame)
                sizes = {len(frame), len(frame) - 14}
                # At a tunnel that it goes into it is not yet encapsulated; what a filter sends there has no Ethernet header.
                for name, values in layers:
                    if name in ("ip4", "ip6"):
                        own = values["len"] + (40 if name == "ip6" else 0)
                        sizes |= {own, own + 14}
                    if name == "icmp" or name.startswith("quoted"):
                        break
                found.append((heading, sign, sizes))
    return found


def counts_more(difference, packets):
    """Whether the router has counted some packets more, each of one of the lengths given for it."""
    return counts_others(difference, [(1, sizes) for sizes in packets])


def counts_others(difference, packets):
    """Whether one of the two has counted some packets that the other has not: 1 and -1 are those of the router and of Linux, each
    of one of the lengths given for it."""
    # As many as there are at most, where none is taken off again: of many packets there are too many sums.
    most = 1000
    if all(sign == 1 for sign, _ in packets) and "link" not in difference.more:
        numbers = lambda lines: [int(n) for line in lines for n in re.findall(r"(?<= )(\d+)(?= pkt)|(?:rule hit|success) (\d+)", line) for n in n if n]
        most = max((abs(y - x) for x, y in zip(numbers(difference.linux), numbers(difference.ours))), default=0)
    longest = 1 << 40
    if all(sign == 1 for sign, _ in packets) and "link" in difference.more:
        more = int(difference.ours[0]) - int(difference.linux[0])
        if more <= 0:
            return False
        most, longest = (1000, more) if difference.more["key"].endswith("bytes") else (more, longest)
    sums = {(0, 0)}
    for sign, sizes in packets:
        sums |= {(n + sign, total + sign * size) for n, total in sums for size in set(sizes) if abs(n + sign) <= most and total + sign * size <= longest}
    sums -= {(0, 0)}
    if "link" in difference.more:
        key, more = difference.more["key"], int(difference.ours[0]) - int(difference.linux[0])
        return key.startswith("stats64.tx.") and more in {total if key.endswith("bytes") else n for n, total in sums}
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    most = {sign: sum(one == sign for one, _ in packets) for sign in (1, -1)}
    for lines in zip(difference.linux, difference.ours):
        sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+) requeues 0\)\s*", line) for line in lines]
        if None not in sent:
            bytes_, packets, *rest = (int(y) - int(x) for x, y in zip(sent[0].groups(), sent[1].groups()))
            if (packets, bytes_) not in sums or any(not -most[-1] <= one <= most[1] for one in rest):
                return False
            continue
        more = more_hits(*reversed(lines))
        if not any(more) or not set(more) <= {0} | {n for n, _ in sums}:
            return False
    return True


def without(case, there, here, found, unfiltered=None):
    """(the differences that no purpose explains, {heading: how many it explains}); `unfiltered` are the answers of Linux and of a
    router that have no filters where packets leave."""
    left, known, facts = [], {}, Facts(case)

    def explains(difference):
        heading = next((heading for heading, function in PURPOSES if function(case, facts, difference, here)), None)
        if heading is None and messages and counts_others(difference, [one[1:] for one in messages]):
            heading = messages[0][0]
        if heading is None and unfiltered and here["drops"].get("neighbour-unresolved") and difference.kind.startswith("shows tc -s: "):
            # Or these, and its requests for a neighbour.
            for number, size in itertools.product(range(3, 3 * rounds(case) + 1, 3), (86, 42)):
                rest = without_requests(difference, number, size)
                if rest.linux == rest.ours or messages and counts_others(rest, [one[1:] for one in messages]):
                    return "The router answers for itself"
        return heading

    here = {**here, "noise": compare.noise_of(there), "linux": there["out"]} if "noise" in there else here
    messages = []
    if unfiltered:
        open_there, open_here = unfiltered
        here = {**here, "unfiltered": open_here["out"]}
        kept, here = here, {**open_here, "noise": compare.noise_of(open_there), "linux": open_there["out"]}
        messages = taken(case, unfiltered, explains)
        if any(re.search(r"filter add dev (\S+) egress .*mirred egress (redirect|mirror) dev \1\b", line) for line in facts.lines):
            # What a filter sends to where it has come from, that sees once more.
            messages += messages
        here = kept
    for difference in found:
        headings = [explains(once(difference))]
        if headings == [None] and len((difference.more.get("there") or []) + (difference.more.get("here") or [])) > 1:
            headings = [explains(part) for part in parts(difference, errors=False)]
            if None in headings:
                headings = [explains(part) for part in parts(difference, errors=True)]
            for pairs in in_order(difference, facts) if None in headings else ():
                headings = [explains(part) for part in pairs]
                if None not in headings:
                    break
        if None in headings:
            left.append(difference)
        else:
            for heading in headings:
                known[heading] = known.get(heading, 0) + 1
    return left, known
