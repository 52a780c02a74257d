"""What differs on purpose: "Control" in docs/differences.md."""

import ipaddress
import re

import compare
import describe

from .common import OWN, before, changed, counts_more, error, goes_on, inputs, lost_elsewhere, more_hits, only, pair, purpose, sid_counts, tried


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
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) != 1 or not any("mirred ingress mirror" in line for line in facts.lines):
        return False
    if b and (len(b) > 1 or (changed(a[0], b[0]) or {"no"}) - OWN != {"ip6.dst"}):
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
    # Of a class it is not shown which that is.
    at = re.match(r"(?:qdisc .* dev (\S+) |class )", difference.what + " ")
    sent = [re.match(r" Sent (\d+) bytes (\d+) pkt(.*)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or "clsact" in difference.what or None in sent or sent[0][3] != sent[1][3]:
        return False
    # With the requests for neighbours, which no label is put on.
    asked = [size for port, size in here["noise"] if at[1] in (None, f"p{port}")] if sent[0][2] != sent[1][2] else []
    if int(sent[0][2]) - len(asked) != int(sent[1][2]):
        return False
    edits = [line for line in facts.lines if f"filter add dev {at[1] or ''}" in line and " egress " in line and re.search(r"action mpls (push|pop)", line)]
    more = abs(int(sent[0][1]) - sum(asked) - int(sent[1][1]))
    return bool(edits) and more % 4 == 0 and more <= 4 * len(edits) * int(sent[0][2])


@purpose("An action counts what the filters refuse that it redirects to")
def refused_elsewhere(case, facts, difference, here):
    sent = [re.match(r"\s*(Sent \d+ bytes \d+ pkt \(dropped \d+), overlimits (\d+) requeues 0\)$", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not difference.what.startswith("total acts") or None in sent or sent[0][1] != sent[1][1]:
        return False
    return int(sent[0][2]) > int(sent[1][2]) and any(re.search(r"filter add dev \S+ ingress .*mirred ingress", line) for line in facts.lines)


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
def came_with_tag(case, facts, difference, here):
    # Of what came with one Linux writes it there as well, and GRE carries that.
    a = difference.more.get("there")
    into = any(re.search(rf"filter add dev p\d ingress .*mirred egress (redirect|mirror) dev {name}\b", line) for name, kind in facts.tunnels.items() if kind in ("gre", "ip6gre") for line in facts.lines)
    if not a or len(a) != 1 or difference.more.get("here") or not into or "/gre/vlan" not in describe.chain(a[0]) or not here["drops"].get("tunnel-payload"):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return any(describe.layers(frame)[1][0] == "vlan" and a[0].endswith(frame[18:30] + frame[12:16] + frame[30:]) for frame in came)


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
    if difference.kind == "shows tc -s: filter parent" and len(difference.linux) == len(difference.ours):
        # The filters of such a device's qdisc.
        more = [one for lines in zip(difference.linux, difference.ours) for one in more_hits(*lines) or [-1]]
        classifies = any(f"filter add dev {name} parent " in line for name in at for line in facts.lines)
        return classifies and any(more) and all(0 <= one <= dropped for one in more)
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
        return all(describe.layers(frame)[0][1].get("src") in inside for frame in frames)
    more = [[int(number) for number in re.findall(r"(?:bytes|rule hit|success) (\d+)", " ".join(lines))] for lines in (difference.linux, difference.ours)]
    return difference.kind.startswith("shows tc -s: ") and len(more[0]) == len(more[1]) and all(abs(a - b) <= len(came) for a, b in zip(*more))


@purpose("Filters see what is in a frame that comes out of End.DX2")
def out_of_dx2_into_tunnel(case, facts, difference, here):
    # And so a filter sends it into a tunnel of IP packets without its Ethernet header.
    a, b = pair(difference)
    ports = {match[1] for action in facts.sids.values() if (match := re.search(r"End\.DX2 oif (p\d)", action))}
    into = any(re.search(rf"filter add dev {port} egress .*mirred egress (mirror|redirect) dev tun\d", line) for port in ports for line in facts.lines)
    if a is None or not into:
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))
        to_sid = any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers)
        header = next((values["dst"] + values["src"] for name, values in layers[1:] if name == "eth"), None)
        if to_sid and header and header in frame[28:]:
            inside = bytes.fromhex(frame[frame.index(header, 28) :])
            # Or not at all, where what it compares is at another place.
            if (a == inside or len(a) == len(b) + 14 and a.endswith(inside)) and b.endswith(inside[14:]) and not b.endswith(inside):
                return True
    return False


@purpose("Filters see what is in a frame that comes out of End.DX2")
def label_before_frame(case, facts, difference, here):
    # And puts a label before its Ethernet header, not behind it.
    a, b = pair(difference)
    ports = {match[1] for action in facts.sids.values() if (match := re.search(r"End\.DX2 oif (p\d)", action))}
    if a is None or not any(re.search(rf"filter add dev {port} egress .*action mpls push ", line) for port in ports for line in facts.lines):
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))
        to_sid = any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers)
        header = next((values["dst"] + values["src"] for name, values in layers[1:] if name == "eth"), None)
        if to_sid and header and header in frame[28:]:
            inside = bytes.fromhex(frame[frame.index(header, 28) :])
            before, own = a[: -len(inside)], b[: 14 - len(inside)]
            if a.endswith(inside) and b.endswith(inside[14:]) and not b.endswith(inside) and len(before) >= 4 and before[-4:] == own[-4:]:
                return True
    return False


@purpose("A fragment that is dropped where it leaves takes no other with it")
def other_fragments(case, facts, difference, here):
    at = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (\S+) egress .*\b(?:drop|shot)\b", line))}
    sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+) requeues 0\)\s*", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or not difference.what.startswith("total acts") and not any(f" dev {name} " in difference.what + " " for name in at):
        return False
    bytes_, packets, drops, over = (int(y) - int(x) for x, y in zip(sent[0].groups(), sent[1].groups()))
    # Those behind the first, of which none is longer.
    whole = [values["len"] for layers in tried(case, difference) for name, values in layers if name == "ip4" and not int(values["frag"], 16) & 0x4000]
    return 0 <= drops <= packets and over == 0 and any(packets >= 1 and 20 * packets < bytes_ < length for length in whole if length > 552)


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
    # Or one that a label has led on, with a lower TTL.
    labelled = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or [] if "mpls" in dict(describe.layers(bytes.fromhex(frame))[1:3])]
    behind = lambda frame: any(frame[12:14] == kind and frame[at:] and frame[ends] in came and frame[at:] in came for came in labelled for kind, at, ends in ((b"\x08\0", 34, slice(26, 34)), (b"\x86\xdd", 54, slice(22, 54))))
    sends = any(re.search(r"(cmp|nbyte)\([^)]* layer 2 .*mirred ", line) for line in facts.lines)
    return sends and bool(frames) and all(frame[14:] in nested or behind(frame) for frame in frames)


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def dropped_by_transport_inside(case, facts, difference, here):
    # Or that it drops, as what has no label where a label is changed, or what gets the tag of a VLAN that is not here.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    drops = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:drop|mpls (?:modify|dec_ttl)|vlan push)", line))}
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
    firsts = [action.split(" segs ")[1].split()[0].split(",")[0] for action in facts.sids.values() if action.startswith("End.B6.Encaps") and " segs " in action]
    pushes = any(re.search(r"filter add dev p\d (egress|parent) .*action mpls push ", line) for line in facts.lines)
    b = difference.more.get("here")
    if not pushes or not b or difference.more.get("there"):
        return False
    # The outer packet of End.B6.Encaps goes to its first segment.
    below = lambda frame: next((values for (over, _), (name, values) in zip(describe.layers(frame), describe.layers(frame)[1:]) if (over, name) == ("mpls", "ip6")), {})
    return all(made and re.search(r"/mpls/ip[46]/(dstopt/)?udp", describe.chain(frame)) or below(frame).get("dst") in firsts and re.search(r"/mpls/ip6/(routing/)?ip[46]", describe.chain(frame)) for frame in b)


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


@purpose("What is not supported is refused")
def unsupported(case, facts, difference, here):
    return difference.kind.startswith("config") and difference.linux == ["None"] and "by this router." in difference.ours[0]


@purpose("What `tunnel_key` has said is the action's")
def said_to_another(case, facts, difference, here):
    # What leaves by the tunnel that `mirred` sends it on to has the other end that the route by the first has said, or the action
    # where the second is a GRE device without a remote address.
    sent, more = difference.more.get("there") or [], difference.more.get("here")
    said = {}
    for line in facts.lines:
        if route := re.search(r" encap ip6? .*?dst (\S+) .*dev (tun\d)", line):
            said.setdefault(route[2], set()).add(route[1])
    keyed = {to for line in facts.lines for to in re.findall(r"tunnel_key set .*?dst_ip (\S+)", line)}
    on = [match.groups() for line in facts.lines if (match := re.search(r"filter add dev (\S+) (?:egress|ingress) .*mirred egress (?:redirect|mirror) dev (tun\d)", line))]
    ends = set()
    for by, to in on:
        made = next((line + " " for line in facts.lines if f" link add {to} " in line), "")
        if re.search(r" type (gre|gretap) ", made) and " remote " not in made and " external" not in made:
            ends |= {(end, "gre") for end in said.get(by, set()) | keyed}
        elif re.search(r" type bareudp | external ", made) and by != to:
            kind = "gre" if "gre" in made else re.search(r" dstport (\d+) ", made)[1] if "bareudp" in made else "ip"
            ends |= {(end, kind) for end in said.get(by, set())}

    def by_another(frame):
        outer = describe.layers(frame)[1:3]
        if len(outer) < 2 or outer[0][0] not in ("ip4", "ip6"):
            return False
        own = {outer[1][0], "ip" if outer[1][0].startswith("ip") else None, str(outer[1][1].get("dport"))}
        return any(same(outer[0][1]["dst"], end) and kind in own for end, kind in ends)

    same = lambda address, end: ipaddress.ip_address(address) == ipaddress.ip_address(end)
    return bool(sent) and not more and all(map(by_another, sent))
