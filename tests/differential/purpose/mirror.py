"""What differs on purpose: "Control" in docs/differences.md, copies and ifbs."""

import ipaddress
import re

import compare
import describe

from .common import OWN, before, changed, counts_more, error, goes_on, inputs, lost_elsewhere, only, pair, purpose, quotes_more, shifted, sid_counts, tried


@purpose("A mirrored packet is sent as it was")
def mirrored(case, facts, difference, here):
    b = difference.more.get("here")
    if not b or not any("mirred" in line and "mirror" in line for line in facts.lines):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return all(frame in came for frame in b) and len(b) == len(difference.more.get("there"))


@purpose("A mirrored packet is sent as it was")
def overwritten(case, facts, difference, here):
    # By the header of foo-over-UDP, with GUE's behind it: the copy has gone into a tunnel.
    a, b = pair(difference)
    if a is None or a[:14] == b[:14]:
        return False
    port = difference.more.get("port")
    into = [match[1] for line in facts.lines if (match := re.search(rf"filter add dev p{port} egress .*mirred egress mirror dev (tun\d)", line))]
    made = [match for name in into for line in facts.lines if (match := re.search(rf"link add {name} .*encap (fou|gue) .*encap-dport (\d+)", line))]
    own = compare.own_addresses(case)
    for kind, goal in (match.groups() for match in made):
        start = 14 - (8 if kind == "fou" else 12)
        written = a[:start] == b[:start] and a[start + 2 : start + 4] == int(goal).to_bytes(2, "big")
        if written and compare.masked(b[:14] + a[14:], own) == compare.masked(b, own):
            return True
    return False


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
def advanced_and_quoted(case, facts, difference, here):
    # The same at a SID of PSP, to which the packet itself then does not come any more: what is told of it quotes its SRH.
    at_sid = any(name == "ip6" and "psp" in facts.sids.get(values["dst"], "") for layers in inputs(difference) for name, values in layers)
    return at_sid and any("mirred ingress mirror" in line for line in facts.lines) and quotes_more(difference, "routing", set(), lambda ours: True)


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
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) != 1 or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    if b and (len(b) > 1 or (changed(a[0], b[0]) or {"no"}) - OWN != {"ip6.dst"}):
        return False
    told = error(a[0])
    outer = told[3][0][1] if told else next((values for name, values in describe.layers(a[0])[1:2] if name == "ip6"), None)
    if not outer or told and told[0] != 6:
        return False
    came = [layers for layers in inputs(difference) if any(name == "ip6" and values["src"] == outer["src"] for name, values in layers[1:2])]
    return bool(came) and any(outer["dst"] == shifted(sid) for sid, action in facts.sids.items() if "next-csid" in action)


@purpose("A mirrored packet is sent as it was")
def shifted_and_not_counted(case, facts, difference, here):
    # So that Linux's SID counts one of the two.
    counts = sid_counts(difference)
    if not counts or "next-csid" not in facts.sids.get(counts[0][0], "") or counts[0][2] != counts[1][2] or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    came = sum(any(name == "ip6" and values["dst"] == counts[0][0] for name, values in layers) for layers in tried(case, difference))
    return 0 < counts[1][1] - counts[0][1] <= came


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
def chosen_in_tunnel(case, facts, difference, here):
    # So does an action of the tunnel that the copy goes into, and what is in the packet after it.
    frame = only(difference)
    inside = [values["dst"] for name, values in describe.layers(frame) if name in ("ip4", "ip6")] if frame else []
    if len(inside) < 2:
        return False
    for line in facts.lines:
        mirrored = re.search(r"filter add dev p(\d) ingress .*mirred egress mirror dev (tun\d)\b", line)
        if not mirrored or not facts.leads(inside[-1], rf" dev {mirrored[2]}\b"):
            continue
        came = [bytes.fromhex(other) for port, other in difference.more.get("inputs") or [] if str(port) == mirrored[1]]
        determ = any(re.search(rf"filter add dev {mirrored[2]} egress .*(random determ|police pkts_rate) ", line) for line in facts.lines)
        if determ and any(name in ("ip4", "ip6") and values["dst"] == inside[-1] for other in came for name, values in describe.layers(other)[2:]):
            return True
    return False


@purpose("A mirrored packet leaves behind what it is a copy of")
def mirrored_later(case, facts, difference, here):
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


@purpose("What is mirrored to an ifb ends there")
def goes_on_from_ifb(case, facts, difference, here):
    # Of a packet that was redirected before, the copy leaves as well.
    mirrors = any(re.search(r"mirred egress mirror dev ifb", line) for line in facts.lines)
    redirects = any(re.search(r"mirred (egress|ingress) redirect dev", line) for line in facts.lines)
    more = difference.kind.startswith("packets in another order or number") and not difference.more.get("same")
    return mirrors and redirects and bool(here["drops"].get("ifb-origin")) and (more or difference.kind.startswith("packet missing: "))


@purpose("What is mirrored to an ifb ends there")
def counted_at_ifb(case, facts, difference, here):
    # Where the copy goes on, the ifb has sent it on, and not dropped it.
    link, ended = difference.more.get("link") or "", here["drops"].get("ifb-origin", 0)
    redirects = any(re.search(r"mirred (egress|ingress) redirect dev", line) for line in facts.lines)
    mirrors = link.startswith("ifb") and any(re.search(rf"mirred egress mirror dev {link}\b", line) for line in facts.lines)
    if difference.more.get("when") != "shows" or not ended or not redirects or not mirrors:
        return False
    more = int(difference.linux[0]) - int(difference.ours[0])
    most = {"stats64.tx.packets": ended, "stats64.tx.bytes": 1514 * ended}
    return 0 < -more <= ended if difference.more["key"] == "stats64.rx.dropped" else 0 < more <= most.get(difference.more["key"], 0)


@purpose("What comes back from an ifb is not classified again")
def classified_twice(case, facts, difference, here):
    at = re.match(r"qdisc clsact ffff: dev (p\d|tun\d) ", difference.what)
    sent = [re.match(r" Sent (\d+) bytes (\d+) pkt(.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or sent[0][3] != sent[1][3]:
        return False
    if not any(re.search(rf"filter add dev {at[1]} (egress|parent) .*mirred egress redirect dev ifb", line) for line in facts.lines):
        return False
    # Those that went there, and the requests for neighbours, each of which went twice.
    asked = [size for port, size in here["noise"] if f"p{port}" == at[1]]
    more = int(sent[0][2]) - int(sent[1][2])
    return 0 < more <= int(sent[1][2]) + 2 * len(asked)


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
    if not same and any("bpf/count.o" in action for action in facts.sids.values()):
        # Or a lower number of those that have come to it.
        visits = sum("bpf/count.o" in facts.sids.get(values["dst"], "") for layers in tried(case, difference) + before(case, difference) for name, values in layers[:2] if name == "ip6")
        fewer = int(y[4:8], 16) - int(x[4:8], 16)
        same = fewer % 0x0101 == 0 and 0 < fewer // 0x0101 <= visits
    return same and x[:4] + x[8:] == y[:4] + y[8:]


@purpose("A mirrored packet is sent as it was")
def dropped_by_program(case, facts, difference, here):
    # So a program that drops every third of those that come to it drops another, of which no sender hears, and no filter counts it.
    # One of the two each time that it drops one here.
    counting = {sid for sid, action in facts.sids.items() if "bpf/count.o" in action}
    dropped = here["drops"].get("bpf-drop", 0)
    if not counting or not dropped or not any(re.search(r"filter add dev p\d ingress .*mirred ingress mirror dev ", line) for line in facts.lines):
        return False
    came = [layers[1:] for layers in tried(case, difference) if any(name == "ip6" and values["dst"] in counting for name, values in layers[1:2])]
    return lost_elsewhere(difference, came, dropped) or counts_more(difference, list(goes_on(came)), dropped)


@purpose("A frame that a filter redirects to come in elsewhere is for the device there")
def for_the_device_there(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not any(" mode l2encap" in line for line in facts.lines) or (changed(a, b) or set()) - OWN != {"eth.dst"}:
        return False
    inside = [[values["dst"] for name, values in describe.layers(frame) if name == "eth"] for frame in (a, b)]
    there = {match[1] for line in facts.lines for match in re.finditer(r"mirred ingress (?:redirect|mirror) dev (\w+)", line)}
    macs = {match[1].replace(":", "") for line in facts.lines if (match := re.search(rf"link add (?:name )?(?:{'|'.join(there) or '-'}) address (\S+)", line))}
    return len(inside[0]) > 1 and inside[0][0] == inside[1][0] and inside[1][1] in macs
