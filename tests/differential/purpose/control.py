"""What differs on purpose: "Control" in docs/differences.md."""

import ipaddress
import re

import describe

from .common import arrived, before, counts_more, inputs, more_hits, only, pair, part_of, purpose, tried


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
        # At egress the hop limit has been lowered by then.
        came = any(sent[0][: 7 if into else 12] in bytes.fromhex(frame)[14:] for _, frame in difference.more.get("inputs") or [])
        return (pushed or into) and came and bool(here["drops"].get("tc-edit")) and [name for name, _ in describe.layers(sent[0])[:2]] == ["eth", "vlan"]
    return a is not None and any("mac_push" in line or "pop_eth" in line for line in facts.lines) and "gre/eth/mpls/eth" in describe.chain(b)


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def came_with_tag(case, facts, difference, here):
    # Of what came with one Linux writes it there as well, and GRE or a datagram carries that.
    a = difference.more.get("there")
    into = any(re.search(rf"filter add dev p\d ingress .*mirred egress (redirect|mirror) dev {name}\b", line) for name in facts.tunnels for line in facts.lines)
    if not a or len(a) != 1 or difference.more.get("here") or not into or not here["drops"].get("tunnel-payload"):
        return False
    came = [bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []]
    return any(describe.layers(frame)[1][0] == "vlan" and a[0].endswith(frame[18:30] + frame[12:16] + frame[30:]) for frame in came)


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def sent_with_tag(case, facts, difference, here):
    # Or of what gets one from the filter that sends it there, GRE in a datagram too.
    a = difference.more.get("there")
    if not a or len(a) != 1 or difference.more.get("here") or not here["drops"].get("tunnel-payload"):
        return False
    into = "|".join(name for name, kind in facts.tunnels.items() if kind in ("gre", "ip6gre"))
    for port, frame in difference.more.get("inputs") or []:
        pushed = rf"filter add dev p{port} ingress .*action vlan push id (\d+) .*mirred egress (?:redirect|mirror) dev (?:{into})\b"
        tags = {int(match[1]) for line in facts.lines if into and (match := re.search(pushed, line))}
        packet = bytes.fromhex(frame)[14:]
        at = a[0].find(packet[:12], 14) + 12
        if tags and at > 14 and a[0][at : at + 2] in (b"\x81\x00", b"\x88\xa8") and int.from_bytes(a[0][at + 2 : at + 4], "big") & 0xFFF in tags and a[0][at + 4 :] == packet[12:]:
            return True
    return False


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
    if difference.kind in ("shows tc -s: filter parent", "shows tc -s: filter protocol") and len(difference.linux) == len(difference.ours):
        # The filters of such a device's qdisc, or those behind the one that gives a packet its tag.
        more = [one for lines in zip(difference.linux, difference.ours) for one in more_hits(*lines) or [-1]]
        behind = re.match(r"filter protocol .* pref (\d+) ", difference.what)
        hook = rf"egress .*pref {behind[1]} " if behind else "parent "
        classifies = any(re.search(f"filter add dev {name} {hook}", line) for name in at for line in facts.lines)
        return classifies and any(more) and all(0 <= one <= dropped for one in more)
    if difference.what.startswith("class htb ") and any(re.search(rf"filter add dev {name} parent ", line) for name in at for line in facts.lines):
        # The class of the device that it would have gone to, and those above it.
        found = [[re.match(r"\s*(?:Sent \d+ bytes|lended:) (\d+)", line) for line in lines] for lines in (difference.linux, difference.ours)]
        counts = [[int(match[1]) for match in matches if match] for matches in found]
        return len(counts[0]) == len(counts[1]) > 0 and all(0 < there - ours <= dropped for there, ours in zip(*counts))
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


@purpose("At tunnels of IP packets there is no room for a VLAN tag or an Ethernet header")
def dropped_before_the_network_header(case, facts, difference, here):
    # So what such a filter drops in Linux goes on, by what a route says of the tunnel or a filter sends there.
    bare = {name for name, kind in facts.tunnels.items() if re.fullmatch(r"ipip|sit|gre|ip6tnl|ip6gre|bareudp", kind)}
    at = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (\S+) egress .*u32 .*match u\d+ \S+ \S+ at -\d+ .*\b(?:drop|shot)\b", line))} & bare
    frame = only(difference)
    if not at or not frame or not part_of(frame, [packet for _, packet in arrived(case, difference)]):
        return False
    goals = [values["dst"] for name, values in describe.layers(frame)[2:] if name in ("ip4", "ip6")]
    sent = lambda name: any(re.search(rf"mirred egress (redirect|mirror) dev {name}\b", line) for line in facts.lines)
    return any(facts.leads(goal, rf" dev {name}\b") or sent(name) for goal in goals[:1] for name in at)


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
def seen_behind_dx2(case, facts, difference, here):
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


def filters_behind_dx2(facts, action):
    """Whether a filter at the egress of a port does this to which an End.DX2 sends."""
    ports = {match[1] for said in facts.sids.values() if (match := re.search(r"End\.DX2 oif (p\d)", said))}
    return any(re.search(rf"filter add dev {port} egress .*{action}", line) for port in ports for line in facts.lines)


def out_of_dx2(facts, difference):
    """The frames in what has come in for an End.DX2."""
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))
        to_sid = any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers)
        header = next((values["dst"] + values["src"] for name, values in layers[1:] if name == "eth"), None)
        if to_sid and header and header in frame[28:]:
            yield bytes.fromhex(frame[frame.index(header, 28) :])


@purpose("Filters see what is in a frame that comes out of End.DX2")
def out_of_dx2_into_tunnel(case, facts, difference, here):
    # And so a filter sends it into a tunnel of IP packets without its Ethernet header. Or not at all, where what it compares is at
    # another place.
    if not filters_behind_dx2(facts, r"mirred egress (mirror|redirect) dev tun\d"):
        return False
    a, b = pair(difference)
    if a is None:
        frame = only(difference)
        return bool(frame) and any(frame.endswith(inside[14:]) and not frame.endswith(inside) for inside in out_of_dx2(facts, difference))
    return any(
        (a == inside or len(a) == len(b) + 14 and a.endswith(inside)) and b.endswith(inside[14:]) and not b.endswith(inside)
        for inside in out_of_dx2(facts, difference)
    )


@purpose("Filters see what is in a frame that comes out of End.DX2")
def counted_with_header(case, facts, difference, here):
    # Which the tunnel's filters count with that header.
    at = re.search(r" dev (tun\d) ", difference.what + " ")
    sent = [re.fullmatch(r"\s*Sent (\d+) bytes (\d+ pkt.*)", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or sent[0][2] != sent[1][2] or not filters_behind_dx2(facts, rf"mirred egress (mirror|redirect) dev {at[1]}\b"):
        return False
    came = sum(any(name == "ip6" and "End.DX2 " in facts.sids.get(values["dst"], "") for name, values in layers) for layers in tried(case, difference))
    more = int(sent[0][1]) - int(sent[1][1])
    return more > 0 and more % 14 == 0 and more // 14 <= came


@purpose("Filters see what is in a frame that comes out of End.DX2")
def label_before_frame(case, facts, difference, here):
    # And puts a label before its Ethernet header, not behind it.
    a, b = pair(difference)
    if a is None or not filters_behind_dx2(facts, "action mpls push "):
        return False
    for inside in out_of_dx2(facts, difference):
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
def sent_by_transport_behind_options(case, facts, difference, here):
    # One with extension headers, behind the first of which it begins in Linux.
    frames = [frame for side in ("there", "here") for frame in difference.more.get(side) or []]
    extended = [bytes.fromhex(frame)[54:] for _, frame in difference.more.get("inputs") or [] if re.match(r"eth/ip6/(hbh|dstopt|routing|frag6)", describe.chain(bytes.fromhex(frame)))]
    sends = any(re.search(r"(cmp|nbyte)\([^)]* layer 2 .*mirred ", line) for line in facts.lines)
    return sends and bool(frames) and all(any(behind in frame for behind in extended) for frame in frames)


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def dropped_by_transport_inside(case, facts, difference, here):
    # Or that it drops, as what has no label where a label is changed, or what gets the tag of a VLAN that is not here.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    drops = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:drop|mpls (?:modify|dec_ttl)|vlan push|.*\bdrop$)", line))}
    # Or where it goes into a tunnel that a filter sends it to.
    into = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (tun\d) egress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:drop|mpls (?:modify|dec_ttl))", line))}
    drops |= {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*mirred egress (?:redirect|mirror) dev (tun\d)\b", line)) and match[2] in into}
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
def passed_on_by_transport_inside(case, facts, difference, here):
    # Or that comes to a filter behind it, and is dropped by that.
    at = re.search(r" dev (p\d) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    ports = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action ", line))}
    if not ports or at and at[1] not in ports:
        return False
    number = re.compile(r"((?:rule hit|success|dropped) )(\d+)")
    more = []
    for lines in zip(difference.linux, difference.ours):
        if number.sub(r"\1", lines[0]) != number.sub(r"\1", lines[1]):
            return False
        more += [abs(int(x[2]) - int(y[2])) for x, y in zip(number.finditer(lines[0]), number.finditer(lines[1]))]
    nested = sum(sum(name in ("ip4", "ip6") for name, _ in layers) > 1 for layers in tried(case, difference))
    return 0 < max(more, default=0) <= nested


@purpose("`layer transport` of `cmp` and `nbyte` begins behind the IP header")
def policed_by_transport_inside(case, facts, difference, here):
    # Or one behind it, as it has taken the tokens that this one had needed, or was one of so many.
    rated = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action (?:police (?:pkts_)?rate|\w+ random determ drop)", line))}
    # Or a later filter has such an action, by its number, for what no other one has taken.
    drops = {match[1] for line in facts.lines if (match := re.search(r"actions add action \w+ random determ drop \d+ index (\d+)", line))}
    taking = {match[1] for line in facts.lines if (match := re.search(r"filter add dev p(\d) ingress .*(?:cmp|nbyte)\([^)]* layer 2 .*action ", line))}
    rated |= {port for port in taking if any(re.search(rf"filter add dev p{port} ingress .*action (?:gact index {number}$|\w+ random determ drop)", line) for number in drops | {"none"} for line in facts.lines)}
    by = {f"{port}" for port, _ in difference.more.get("inputs") or []}
    sides = [bool(difference.more.get(side)) for side in ("there", "here")]
    others = [int(port) for port in "012" if port not in by & rated]
    nested = any(sum(name in ("ip4", "ip6") for name, _ in layers) > 1 for layers in before(case, difference, others))
    # One that came by such a port, where others came at the same time.
    came = [bytes.fromhex(frame) for port, frame in difference.more.get("inputs") or [] if f"{port}" in rated]
    theirs = by <= rated or all(part_of(frame, came) for side in ("there", "here") for frame in difference.more.get(side) or [])
    return bool(by & rated) and theirs and sides[0] != sides[1] and nested


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


@purpose("A tag for a packet without an Ethernet header")
def refused_tag_counted(case, facts, difference, here):
    # The action counts what it could not do.
    pushes = any(re.search(r"action vlan push ", line) for line in facts.lines)
    if not pushes or not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    for lines in zip(difference.linux, difference.ours):
        found = [re.fullmatch(r"(\s*Sent \d+ bytes \d+ pkt) \(dropped (\d+), (.*)", line) for line in lines]
        if None in found or found[0].group(1, 3) != found[1].group(1, 3) or not 0 < int(found[1][2]) - int(found[0][2]) <= here["drops"].get("tc-edit", 0):
            return False
    return True
