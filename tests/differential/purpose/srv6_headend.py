"""What differs on purpose: "SRv6 headend" in docs/differences.md."""

import copy
import ipaddress
import re

import compare
import describe

from .common import before, by_program, counts_others, error, inputs, only, pair, purpose, quotes_more, rounds, segments, sid_counts, to_programs, tried


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
    if told[:3] == (6, 2, 0) and any(by_program(difference, facts, told)):
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
def passed_on_unreachable(case, facts, difference, here):
    # And that the outer packet has not arrived, of which the router tells the sender itself.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 1, 3) or not any(" type ip6tnl " in line for line in facts.lines):
        return False
    by_sid = any("End.B6.Encaps" in facts.sids.get(to, "") for to in visited(case, difference))
    led = by_sid or facts.leads(told[3][0][1]["dst"], "encap seg6 mode encap")
    if not led or str(ipaddress.ip_address(a[0][22:38])) not in facts.own:
        return False
    ours = [frame for _, _, other in here["out"] if (frame := bytes.fromhex(other)) and (error(frame) or [0])[:3] in ((6, 1, 0), (6, 1, 1), (6, 1, 3), (6, 3, 0))]
    return any(frame[62:] == a[0][62:] for frame in ours)


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
def told_itself_in_vrf(case, facts, difference, here):
    # Where the outer source is an address that the router has in a VRF, what Linux tells itself leaves.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[0] != 6 or told[1] not in (1, 2, 3) or told[3][0][1]["src"] not in facts.own or "vrf" not in facts.tunnels.values():
        return False
    inside = next(((values["src"], values["dst"]) for name, values in told[3][1:] if name in ("ip4", "ip6")), None)
    ours = [about[3] for _, _, frame in here["out"] if (about := error(bytes.fromhex(frame)))]
    return inside is not None and any((quoted[0][1]["src"], quoted[0][1]["dst"]) == inside for quoted in ours)


@purpose("The sender hears of errors")
def asked_for_outer_source(case, facts, difference, here):
    # What it hears filters count, and in Linux three requests for the outer source, if that is a neighbour that does not answer.
    sources = [match[1] for line in facts.lines if (match := re.search(r"sr tunsrc set (\S+)", line))]
    near = sources and sources[-1] not in facts.own and any(ipaddress.ip_address(sources[-1]) in net for net, line in facts.connected if re.search(r" dev p\d\b", line))
    if not near or not difference.kind.startswith("shows tc -s: "):
        return False
    told = []
    for layers in tried(case, difference):
        name, values = layers[1] if len(layers) > 1 else ("", {})
        if name == "ip6" and facts.leads(values["dst"], r"encap seg6 mode (encap|l2encap)"):
            size = min(40 + values["len"] + 48, 1280)
            told.append((1, {size, size + 14}))
    return bool(told) and any(counts_others(difference, told + [(-1, {86})] * 3 * n) for n in range(1, rounds(case) + 1))


@purpose("The sender hears of errors")
def own_header(case, facts, difference, here):
    # Into the packet that it quotes, Linux has inserted its own routing header.
    def from_here(ours):
        came = visited(case, difference)
        # Or a program, `steer.c`, by the tag in the SRH.
        program = any(outer["src"] == ours["src"] and int(routing["data"][4:8] or "0", 16) in (24, 25, 50) for came in tried(case, difference) for outer, routing in to_programs([came], facts))
        return program or facts.leads(ours["dst"], r"encap rpl |mode inline|nhid") or any("End.B6 " in facts.sids.get(to, "") for to in came)

    return quotes_more(difference, "routing", {"dst"}, from_here)


@purpose("The sender hears of errors")
def used_up(case, facts, difference, here):
    # That the hop limit is used up, where Linux tells what becomes of the packet behind the new headers.
    a, b = pair(difference)
    x, y = a and error(a), b and error(b)
    if not x or not y or x[0] != 6 or y[:3] != (6, 3, 0) or x[1:3] not in ((1, 0), (1, 1), (1, 3)):
        return False
    quoted, ours = x[3][0][1], y[3][0][1]
    led = facts.leads(ours["dst"], r"encap (seg6 mode inline|rpl) ")
    return led and ours["hops"] <= 1 and ours["src"] == quoted["src"] and [name for name, _ in x[3][1:2]] == ["routing"]


@purpose("The sender hears of errors")
def own_headers(case, facts, difference, here):
    # And before that the option of a trace, by the route to the first address of the list.
    traced = lambda ours: facts.leads(ours["dst"], r"encap rpl |mode inline|nhid") and any("encap ioam6 " in line for line in facts.lines)
    return quotes_more(difference, "hbh", {"dst"}, traced, behind="routing")


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


@purpose("A route with segments leads each packet by its own link")
def remembered(case, facts, difference, here):
    # The same packet, by the same port or another, to another neighbour: to where Linux has sent the first by the route.
    ruled = any(re.search(r"\brule add ", line) for line in facts.lines)
    if "vrf" not in facts.tunnels.values() and not ruled or "linux" not in here:
        return False
    own = compare.own_addresses(case)
    pushed = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) egress .*action vlan push", line))}

    def untagged(frame, port):
        # Without the tag of an action where it leaves, which the other port has not.
        return frame[:12] + frame[16:] if f"p{port}" in pushed and frame[12:14] in (b"\x81\x00", b"\x88\xa8") else frame

    def inside(frame, port):
        frame = untagged(frame, port)
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
            port = difference.more.get("port")
            layers = describe.layers(untagged(frame, port))
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
                and any(slot == difference.more.get("slot") and inside(bytes.fromhex(other), out) == inside(frame, port) for slot, out, other in others)
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
    # A trace may stand before the header, which may be quoted.
    bare = lambda layers: [layer for layer in layers if layer[0] != "hbh"]
    way = lambda layers: next(((values["dst"], header["type"]) for (name, values), (below, header) in zip(bare(layers), bare(layers)[1:]) if name.endswith("ip6") and below == "routing"), None)
    goal = way(describe.layers(a))
    if not goal or not any(re.search(r"encap (seg6|rpl) ", line) and f"{goal[0]}" in line for line in facts.lines):
        return False
    others = [bytes.fromhex(frame) for slot, _, frame in here["linux"] if slot != difference.more.get("slot")]
    if any(way(describe.layers(other)) == goal for other in others):
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
    # A trace may stand before the header.
    layers = [layer for layer in describe.layers(frame) if layer[0] != "hbh"] if frame else []
    if "vrf" not in facts.tunnels.values() or [name for name, _ in layers[1:3]] != ["ip6", "routing"]:
        return False
    # Or has no way there, as outside the VRF there is none, or one with a trace that goes back to that route.
    to = layers[1][1]["dst"]
    back = lambda net, line: ipaddress.ip_address(to) in net and (end := re.search(r"tundst (\S+)", line)) and facts.leads(end[1], rf"encap (seg6|rpl) .*segs {to}\b")
    if to not in facts.sids and not facts.leads(to, r" dev tun\d") and facts.leads(to, r"^((?! (table|vrf) ).)*$") and not any(back(*way) for way in facts.routes):
        return False
    goals = [values["dst"] for name, values in layers[3:] if name in ("ip4", "ip6")][:1]
    if layers[2][1]["type"] == 3:
        # Compressed: where the packet went before.
        goals = [values["dst"] for came in inputs(difference) for name, values in came if name == "ip6"]
    elif not goals:
        # Of `mode inline` the last segment.
        goals = segments(layers[2][1])[:1]
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6 mode ((l2)?encap|inline)|rpl)", line) and layers[1][1]["dst"] in line]
    led = lambda to: any(ipaddress.ip_address(to).version == net.version and ipaddress.ip_address(to) in net for net in ways)
    ports = {port for port, _ in difference.more.get("inputs") or []}
    came = before(case, difference, ports)
    return any(map(led, goals)) and any(name in ("ip4", "ip6") and led(values["dst"]) for layers in came for name, values in layers)


@purpose("A route with segments leads each packet by its own link")
def remembered_loop(case, facts, difference, here):
    # A packet that the route would lead to itself goes where Linux has sent another by it, which a rule has led elsewhere.
    a = difference.more.get("there")
    layers = describe.layers(a[0]) if a and len(a) == 1 and not difference.more.get("here") else []
    if [name for name, _ in layers[1:3]] != ["ip6", "routing"] or not any(here["drops"].get(reason) for reason in ("loop", "encapsulation-loop")):
        return False
    to = layers[1][1]["dst"]
    ways = [net for net, line in facts.routes if re.search(r"encap (seg6|rpl) ", line) and to in line and ipaddress.ip_address(to) in net]
    led = lambda came: any(ipaddress.ip_address(values["dst"]) in net for name, values in came[1:2] if name == "ip6" for net in ways)
    return any(" rule add " in line for line in facts.lines) and any(map(led, inputs(difference))) and any(map(led, before(case, difference)))


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
    return len(b) == len(a) + 14 and re.match(r"eth/(mpls/|eth/)*(ip[46]/(hbh/|dstopt/|routing/|udp/|udp/(mpls/)+|gue/|gre/|eth/)*)+eth", describe.chain(b)) is not None


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def headless_too_long(case, facts, difference, here):
    # With that it is too long, or has to be cut.
    a = difference.more.get("there")
    if not a or difference.more.get("here") or not here["drops"].get("too-big") or not any("l2encap" in line for line in facts.lines):
        return False
    at_once = [bytes.fromhex(frame) for slot, _, frame in here.get("linux", []) if slot == difference.more.get("slot")]
    came = [bytes.fromhex(frame)[34:] for _, frame in difference.more.get("inputs") or []]

    def too_long(frame):
        name, outer = describe.layers(frame)[1]
        if name == "ip4" and int(outer["frag"], 16) & 0x1FFF:
            # A part of it: the first one says what it is.
            same = lambda other: other[12:14] == b"\x08\0" and other[18:20] == frame[18:20] and other[26:34] == frame[26:34] and not int.from_bytes(other[20:22], "big") & 0x1FFF
            frame = next(filter(same, at_once), b"")
        packet = next((bytes.fromhex(values["dst"] + values["src"]) for name, values in describe.layers(frame)[2:] if name == "eth"), b"")
        at = frame.find(packet, 14)
        if not packet or frame[at] >> 4 not in (4, 6):
            return False
        size = int.from_bytes(frame[at + 2 : at + 4], "big") if frame[at] >> 4 == 4 else 40 + int.from_bytes(frame[at + 4 : at + 6], "big")
        return at + size > 1500 and any(frame[at + 12 : at + 40] in other for other in came)

    return all(map(too_long, a))


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def moved_over(case, facts, difference, here):
    # What a program has made room in came in by a frame, whose Ethernet header Linux no longer has.
    a, b = pair(difference)
    programs = any("End.BPF" in facts.sids.get(values["dst"], "") for layers in inputs(difference) for name, values in layers if name == "ip6")
    if a is None or not programs or len(a) != len(b) or not any("l2encap" in line for line in facts.lines):
        return False
    own = compare.own_addresses(case)
    a, b = (compare.blank(frame, own) for frame in (a, b))
    for frame in (bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []):
        at = b.find(frame[:12], 54)
        if at > 0 and a[:at] == b[:at] and a[at + 14 :] == b[at + 14 :]:
            return True
    return False


@purpose("A packet without an Ethernet header gets one in `l2encap`")
def type_of_frame(case, facts, difference, here):
    # One that a policy has put IPv6 before has the EtherType of that.
    a, b = pair(difference)
    if a is None or len(a) != len(b) or not any("l2encap" in line for line in facts.lines):
        return False
    own = compare.own_addresses(case)
    for frame in (bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []):
        # The frame that it came in.
        at = a.find(frame[:14], 54)
        if frame[12:14] == b"\x08\0" and at > 0 and b[at + 12 : at + 14] == b"\x86\xdd":
            if compare.masked(b[: at + 12] + frame[12:14] + b[at + 14 :], own) == compare.masked(a, own):
                return True
    return False


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
        if outer and routing and outer["dst"] in facts.own and routing["left"] == 0 and a.find(frame[:12]) >= 54:
            inside = b[b.find(frame[:12]) + 14 :]
            return b.find(frame[:12]) == a.find(frame[:12]) and frame[14:54] in a and a.endswith(inside) and len(inside) >= 20
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
