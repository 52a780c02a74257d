"""What differs on purpose: "Tunnels" in docs/differences.md."""

import ipaddress
import re

import compare
import describe

from .common import OWN, address_pair, arrived, before, changed, counts_more, error, inputs, leaves_by, lost_elsewhere, only, pair, part_of, purpose, rounds, segments, tried, without_requests


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


@purpose("The sender hears that there is no way to the far end")
def no_way(case, facts, difference, here):
    frame = only(difference)
    told = frame and error(frame)
    codes = ((3, 0), (1, 0), (3, 1), (1, 3)) + (((3, 13), (1, 1)) if prohibits_far_end(facts) else ())
    if not told or told[1:3] not in codes or not facts.tunnels:
        return False
    if facts.leads(told[3][0][1]["dst"], r" dev tun\d"):
        return True
    # A SID may have led it there, by segments of its own or by those of the packet.
    to = told[3][0][1]["dst"]
    if to in facts.sids:
        listed = [segment for name, values in told[3][1:2] if name == "routing" and values["type"] == 4 for segment in segments(values)]
        listed += [segment for found in re.findall(r" segs (\S+)", facts.sids[to]) for segment in found.split(",")]
        if any(facts.leads(segment, r" dev tun\d") for segment in listed):
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
    # What Linux sends of it over IPv4, with labels or without.
    a = [unlabelled(out_of_gre(frame)) for frame in difference.more.get("there") or []]
    outer = [describe.layers(frame)[1] for frame in a]
    if len(a) < 2 or any(name != "ip4" or values["proto"] != 17 for name, values in outer):
        return False
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r" type bareudp dstport (\d+)", line))}
    if not first_for(ports, a[0]):
        return False
    inside, ends = a[0][42:], ends_inside(a[0])
    if b := difference.more.get("here"):
        told = error(b[0])
        if len(b) == 1 and told and told[:3] == (6, 2, 0):
            # The way to the sender is the same port.
            return (told[3][0][1]["src"], told[3][0][1]["dst"]) == ends
        # The way to the sender is that tunnel, too.
        told = b[0][42:]
        return len(b) == 1 and told[6:7] == b"\x3a" and told[40:42] == b"\x02\0" and told[56:88] == inside[8:40]
    ours = [error(bytes.fromhex(frame)) for _, _, frame in here["out"]]
    told = {(one[3][0][1]["src"], one[3][0][1]["dst"]) for one in ours if one and one[:3] == (6, 2, 0)}
    if ends in told:
        return True
    # The router itself has sent it, with a packet inside.
    if ends[0] in facts.own and here["drops"].get("too-big") and not difference.more.get("here"):
        return any(name == "ip6" for name, _ in describe.layers(a[0])[4:]) and part_of(a[0][: 42 + 120], [packet for _, packet in arrived(case, difference)])
    # A filter on the way to the sender may redirect what is told into the tunnel once more, where it is lost: of each packet that
    # Linux cuts and of which nobody hears, one that is too long and one message.
    bare = [name for name, kind in facts.tunnels.items() if kind == "bareudp"]
    by = [match[1] for line in facts.lines for name in bare if (match := re.search(rf"filter add dev (p\d) egress .*mirred egress redirect dev {name}\b", line))]
    lost = [frame for _, _, other in here.get("linux", []) if first_for(ports, frame := unlabelled(bytes.fromhex(other))) and ends_inside(frame) not in told]
    sent = any(address_pair({"src": ends[0], "dst": ends[1]}) in bytes.fromhex(frame) for slot, _, frame in here["out"] if slot == difference.more.get("slot"))
    came = any(inside[8:] in packet for _, packet in arrived(case, difference))
    return came and not sent and any(leaves_by(facts, ends[0], port) for port in by) and len(lost) <= min(here["drops"].get(reason, 0) for reason in ("too-big", "mirred-loop"))


def out_of_gre(frame):
    """The frame of an IPv4 packet that a GRE tunnel carries."""
    layers = describe.layers(frame)
    inside = next((values for (over, _), (name, values) in zip(layers, layers[1:]) if over == "gre" and name == "ip4"), None)
    return frame[:12] + b"\x08\0" + frame[frame.rfind(address_pair(inside)) - 12 :] if inside else frame


def unlabelled(frame):
    """A frame without the labels before an IPv4 packet."""
    at = 14
    while frame[12:14] == b"\x88\x47" and at + 4 < len(frame):
        at += 4
        if frame[at - 2] & 1:
            return frame[:12] + b"\x08\0" + frame[at:] if frame[at] >> 4 == 4 else frame
    return frame


def first_for(ports, frame):
    """Whether this is the first fragment of an IPv6 packet in a datagram over IPv4 for one of these ports."""
    head = frame[12:15] == b"\x08\0\x45" and frame[20:22] == b"\x20\0" and frame[23:24] == b"\x11"
    return head and int.from_bytes(frame[36:38], "big") in ports and frame[42] >> 4 == 6


def ends_inside(frame):
    """The addresses of the IPv6 packet in a datagram over IPv4."""
    return tuple(str(ipaddress.ip_address(frame[at : at + 16])) for at in (50, 66))


@purpose("The sender of an IPv6 packet hears at once that it is too long for the underlay of `bareudp`")
def told_of_bareudp(case, facts, difference, here):
    # What Linux tells the outer source leaves where that is an address of the router's in a VRF.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    # The outer packet may have got a trace.
    quoted = [layer for layer in told[3] if layer[0] != "hbh"] if told else []
    if not told or told[:3] != (6, 2, 0) or [name for name, _ in quoted[:2]] != ["quoted ip6", "udp"]:
        return False
    ports = {int(match[1]) for line in facts.lines if (match := re.search(r" type bareudp dstport (\d+)", line))}
    return quoted[0][1]["src"] in facts.own and quoted[1][1]["dport"] in ports and any(" type vrf " in line for line in facts.lines)


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
    # With the MTU that was known when that went: a router on the way may have told of a smaller one since.
    differs = (changed(a, b) or set()) - OWN if told and told[:3] == (6, 2, 0) else set()
    mtus = [int(next(values["rest"] for name, values in describe.layers(frame) if name == "icmp"), 16) for frame in (a, b)] if "icmp.rest" in differs else [1, 0]
    if not differs or not differs <= {"ip6.src", "icmp.rest"} or mtus[0] < mtus[1]:
        return False
    earlier, now = ({values["dst"] for layers in packets for name, values in layers if name == "ip6"} for packets in (before(case, difference), inputs(difference)))
    into = facts.leads(told[3][0][1]["dst"], r" dev tun\d")
    from_link = next(values["src"] for name, values in describe.layers(a) if name == "ip6") in facts.own
    return into and from_link and bool(earlier & now)


@purpose("The MTU of a path over IPv6 is kept for ten minutes")
def kept_mtu(case, facts, difference, here):
    # Linux sends whole what was too long for the path half a minute before; the router tells the sender, or nobody.
    sent, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if not sent or not all((told := error(frame)) and told[1:3] in ((2, 0), (3, 4)) for frame in ours):
        return False
    times = list(dict.fromkeys(at for at, _, _ in case["packets"]))
    now, known = times[difference.more.get("slot") or 0], {}
    for at, _, frame in case["packets"]:
        told = error(bytes.fromhex(frame)) if now - at >= 29_000_000 else None
        if told and told[:3] == (6, 2, 0):
            mtu = int(next(values["rest"] for name, values in describe.layers(bytes.fromhex(frame)) if name == "icmp"), 16)
            known[told[3][0][1]["dst"]] = min(mtu, known.get(told[3][0][1]["dst"], mtu))
    outer = [next((values for name, values in describe.layers(frame)[1:2] if name == "ip6"), None) for frame in sent]
    return all(one and 40 + one["len"] > known.get(one["dst"], 1 << 16) for one in outer)


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


@purpose("Nobody hears of a truncated packet that a filter sends into a tunnel and that is too long for it")
def truncated_into_tunnel(case, facts, difference, here):
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] not in ((6, 2, 0), (4, 3, 4)):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    # Behind a tag as well.
    came = [frame[:12] + frame[16:] if frame[12:14] in (b"\x81\x00", b"\x88\xa8") else frame for frame in came]
    kind, before, ends = (b"\x86\xdd", 54, slice(22, 54)) if told[0] == 6 else (b"\x08\0", 14, slice(26, 34))
    cut = any(frame[12:14] == kind and len(frame) - before < told[3][0][1]["len"] and frame[ends] == address_pair(told[3][0][1]) for frame in came)
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


@purpose("Parameters of IPv6 send no IPv4 packet out of an `external` `sit`")
def keyed_sit(case, facts, difference, here):
    # Linux sends it to its own destination: to the router, where what is inside comes out of a tunnel and goes on, or is told of.
    a = difference.more.get("there")
    if not a or difference.more.get("here") or not len(a) <= here["drops"].get("tunnel-remote", 0):
        return False
    came = [frame for port, frame in arrived(case, difference) if into_keyed_sit(facts, port, frame)]
    return all(part_of(frame, came) for frame in a)


def into_keyed_sit(facts, port, frame):
    """Whether an IPv4 packet that came in by a port goes into an `external` `sit` with parameters of IPv6, by a route or a filter."""
    layers = describe.layers(frame)
    if not layers[1:] or layers[1][0] != "ip4":
        return False
    to = layers[1][1]["dst"]
    six = r"tunnel_key set (?:src_ip \S+ )?dst_ip \S*:"
    for sit in (line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type sit .*external", line)):
        # Its own filter says them, or the one that sends the packet there.
        keyed = any(re.search(rf"filter add dev {sit} egress .*{six}", line) for line in facts.lines)
        into = rf"{'' if keyed else six}.*mirred egress (?:mirror|redirect) dev {sit}\b"
        by = [match.groups() for line in facts.lines if (match := re.search(rf"filter add dev (p\d) (ingress|egress) .*{into}", line))]
        if (f"p{port}", "ingress") in by or any(hook == "egress" and leaves_by(facts, to, dev) for dev, hook in by) or keyed and facts.leads(to, rf" dev {sit}\b"):
            return True
    return False


@purpose("Parameters of IPv6 send no IPv4 packet out of an `external` `sit`")
def told_by_keyed_sit(case, facts, difference, here):
    # So an ICMP error about a tunnel reaches the router there: who sends the next packet in it hears that it did not arrive.
    a = difference.more.get("there")
    if not a or difference.more.get("here") or not len(a) <= here["drops"].get("tunnel-remote", 0):
        return False
    came = [told for port, frame in arrived(case, difference) if (told := error(frame)) and into_keyed_sit(facts, port, frame)]
    ends = {address_pair(told[3][0][1]) for told in came if told[0] == 4 and told[3][0][1]["src"] in facts.own}
    tunnelled = [bytes.fromhex(frame)[34:] for _, _, frame in here.get("linux", []) if bytes.fromhex(frame)[26:34] in ends]
    for told in map(error, a):
        if not told or told[1:3] not in ((3, 1), (1, 3)) or not any(address_pair(told[3][0][1]) in packet for packet in tunnelled):
            return False
    return len(a) <= len(came)


@purpose("A `sit` by a device of a VRF leads IPv6 packets by that device")
def by_device_of_sit(case, facts, difference, here):
    # In Linux by the way that one of IPv4 has found before.
    ends = {}
    for line in facts.lines:
        made = re.search(r"link add tun\d .*type sit .*remote (\S+) .*dev p(\d)\b", line)
        if made and any(re.search(rf"link set p{made[2]} master vrf", other) for other in facts.lines):
            ends[ipaddress.ip_address(made[1]).packed] = int(made[2])
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    to = lambda frame, protocol: frame[30:34] if frame[12:14] == b"\x08\x00" and frame[23] == protocol else None
    if not sides[0] + sides[1] or not all(to(frame, 41) in ends for frame in sides[0] + sides[1]):
        return False
    if any(ends[frame[30:34]] != difference.more["port"] for frame in sides[1]):
        return False
    sent = [(slot, port, bytes.fromhex(frame)) for slot, port, frame in here.get("linux", [])]
    found = {to(frame, 4) for slot, port, frame in sent if slot < (difference.more.get("slot") or 0) and port != ends.get(frame[30:34])}
    return all(frame[30:34] in found for frame in sides[0] + sides[1])


@purpose("What a filter sends into an `ipip` or a `sit` without a remote address goes to its own destination")
def to_gateway(case, facts, difference, here):
    # In Linux to the gateway of the route that has led it to the filter.
    ends = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ipip|sit) ", line + " ") and " remote " not in line and " external" not in line}
    if not any(re.search(rf"filter add dev p\d egress .*mirred egress (mirror|redirect) dev {name}\b", line) for name in ends for line in facts.lines):
        return False
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if max(map(len, sides)) != 1:
        return False
    for linux, frames in zip((True, False), sides):
        for frame in frames:
            headers = [values for name, values in describe.layers(frame)[1:3] if name == "ip4"]
            if len(headers) < 2:
                return False
            outer, inner = headers
            gateways = {gateway for net, line in facts.routes if net.version == 4 and ipaddress.ip_address(inner["dst"]) in net for gateway in re.findall(r" via (\d\S+)", line)}
            if not gateways or outer["dst"] not in (gateways if linux else {inner["dst"]}):
                return False
    return len(sides[0]) + len(sides[1]) == 1 or (changed(sides[0][0], sides[1][0]) or {"no"}) - OWN == {"ip4.dst"}
