"""What differs on purpose: "SRv6 endpoint" in docs/differences.md."""

import ipaddress
import itertools
import re

import describe

from .common import OWN, address_pair, by_program, changed, counts_more, counts_others, error, goes_on, inputs, lost_elsewhere, only, pair, purpose, segments, sid_counts, to_programs, tried


@purpose("An SRH behind options leaves whole from addresses that are no SIDs")
def labels_inside(case, facts, difference, here):
    # The same, with the same labels if any, and in Linux the packet without its first bytes.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) != 1 or not ours or there[0][12:14] not in (b"\x88\x47", b"\x86\xdd") or there[0][:14] != ours[0][:14]:
        return False
    (a,), (b, *again) = there, ours
    if again and not any(re.search(rf"filter add dev p{difference.more['port']} egress .*mirred ingress mirror", line) for line in facts.lines):
        return False
    # A copy that comes in once more goes the same way, and in Linux nowhere.
    if any((changed(b, copy) or {"no"}) - OWN != {"ip6.hops"} for copy in again):
        return False
    for _, frame in difference.more.get("inputs") or []:
        layers = describe.layers(bytes.fromhex(frame))[1:]
        at = next((n for n, (name, _) in enumerate(layers) if name == "routing"), 0)
        if at > 1 and all(name in ("hbh", "dstopt") for name, _ in layers[1:at]) and layers[0][1]["dst"] in facts.own and layers[at][1]["type"] == 4 and layers[at][1]["left"]:
            gone = sum(1 + len(values["data"]) // 2 for _, values in layers[1:at])
            bottom = 14
            if a[12:14] == b"\x88\x47":
                bottom = next((n + 4 for n in range(14, len(b) - 3, 4) if b[n + 2] & 1), 0)
            if bottom and gone % 8 == 0 and a[:bottom] == b[:bottom] and a[bottom:] == b[bottom + gone :]:
                return True
    return False


@purpose("End.DX4 sends to `nh4`")
def counted_at_nh4(case, facts, difference, here):
    # Where a filter counts and loses it, Linux has asked three times for its destination, and told the sender that this does not answer.
    counts = []
    for layers in tried(case, difference):
        outer = next((values for name, values in layers[1:2] if name == "ip6"), None)
        inner = next((values for name, values in layers if name == "ip4"), None)
        if outer and inner and "End.DX4" in facts.sids.get(outer["dst"], ""):
            told = min(inner["len"] + 28, 576) + 14
            counts += [(1, {inner["len"] + 14}), (-1, {told})] + [(-1, {42})] * 3
    return bool(counts) and counts_others(difference, counts)


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
    # Behind a label that an action puts before the frame.
    goal = lambda frame: (frame[4:10] if describe.layers(frame)[0][0] == "mpls" else frame[:6]).hex(":")
    near = lambda frame: {line.split()[3] for line in facts.lines if line.startswith("ip neigh") and f" lladdr {goal(frame)} " in line}
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
        if outer and routing and outer["hops"] <= 1 and outer["dst"] in facts.sids:
            # It may lead to itself.
            through += segments(routing)[: routing["left"]].count(counts[0][0]) if outer["dst"] == counts[0][0] else sid in routing["data"]
        elif outer and outer["hops"] <= 1 and facts.leads(outer["dst"], rf" encap seg6 mode l2encap(\.red)? segs \S*{counts[0][0]}\b"):
            # Or a route has put them before it, whose header has that hop limit, too.
            through += 1
        at_sid += sum(
            name == "ip6" and values["hops"] <= 1 and ipaddress.ip_address(values["dst"]) in ipaddress.ip_network(f"{counts[0][0]}/64", strict=False)
            for name, values in layers[:3]
        )
    more = counts[0][1] - counts[1][1]
    passed_on = counts[0][2] - counts[1][2] + more
    return (more, passed_on) != (0, 0) and 0 <= more <= at_sid + through and 0 <= passed_on <= through


@purpose("An error quotes the packet as it came")
def taken_out_at_hop_limit(case, facts, difference, here):
    # Which may take out what is inside.
    inside = [layers for layers in (passed_on(facts, layers) for layers in tried(case, difference)) if layers]
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if not a:
        return not b and lost_elsewhere(difference, inside)
    told = len(a) == 1 and len(b) == 1 and error(b[0])
    if b and (not told or told[:3] != (6, 3, 0) or told[3][0][1]["hops"] > 1 or told[3][0][1]["dst"] not in facts.sids):
        return False
    ends = [next(((values["src"], values["dst"]) for name, values in layers if name in ("ip4", "ip6")), None) for layers in inside]
    return all(any(name.endswith(("ip4", "ip6")) and (values["src"], values["dst"]) in ends for name, values in describe.layers(frame)) for frame in a)


def passed_on(facts, layers):
    """The layers of what is in a packet whose hop limit is used up, if it has come to a SID that leads by others of the router's to one
    that takes it out; else none."""
    outer, routing = outermost(layers)
    if not routing or outer["hops"] > 1 or not routing["left"] or not sound(routing):
        return []
    left, to, goes_on = routing["left"], outer["dst"], r"End(\.T)?( |$)"
    while left and re.match(goes_on, facts.sids.get(to, "")):
        left -= 1
        to = segments(routing)[left]
    at = next(n for n, (name, _) in enumerate(layers) if name == "routing")
    return layers[at + 1 :] if not left and re.match(r"End\.D", facts.sids.get(to, "")) else []


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
    # The header may be behind hop-by-hop options.
    before = [[layer for layer in layers if layer[0] != "hbh"][:3] for layers in inputs(difference)]
    tlvs = [tlvs_of(values) for layers in before for name, values in layers if name == "routing" and values["type"] == 4]
    return any(fills(one, 2) and not fills(one, 1) for one in tlvs)


@purpose("A Pad1 TLV is one byte")
def pad1_with_length_counts(case, facts, difference, here):
    # It goes on into a tunnel that counts it.
    came = []
    for layers in tried(case, difference):
        routing = next((values for name, values in layers[:3] if name == "routing" and values["type"] == 4), None)
        tlvs = routing and tlvs_of(routing)
        if tlvs and fills(tlvs, 2) and not fills(tlvs, 1):
            came.append(layers[1:])
    at = "link" in difference.more or re.search(r" dev tun\d ", difference.what + " ")
    return bool(came) and bool(at) and bool(here["drops"].get("srh-malformed")) and lost_elsewhere(difference, came)


def tlvs_of(routing):
    """The bytes behind the segments of an SRH; none where there is nothing of it."""
    data = bytes.fromhex(routing["data"])
    return data[4 + 16 * (data[0] + 1) :] if data else b""


def has_pad1(layers):
    tlvs = [tlvs_of(values) for name, values in layers if name == "routing" and values["type"] == 4]
    return any(fills(one, 1) and not fills(one, 2) for one in tlvs)


@purpose("A Pad1 TLV is one byte")
def pad1_counts(case, facts, difference, here):
    # SIDs behind one that Linux does not let it pass.
    counts = sid_counts(difference)
    came = counts and sum(has_pad1(layers) for layers in tried(case, difference))
    return bool(counts) and came > 0 and 0 <= counts[1][1] + counts[1][2] - counts[0][1] - counts[0][2] <= came


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
    if not counts or not re.match(r"End\.D[TX]", facts.sids.get(counts[0][0], "")) or not any(here["drops"].get(reason) for reason in ("srh-malformed", "segments-left-not-zero")):
        return False
    came = 0
    for layers in tried(case, difference):
        routing = next((values for name, values in layers if name == "routing"), None)
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
    last = data[0] if data else 0
    return routing["type"] == 4 and 4 + 16 * (last + 1) <= len(data) and routing["left"] <= last + 1 and fills(data[4 + 16 * (last + 1) :], 2)


@purpose("PSP takes off an SRH that is behind another routing header")
def pops_behind(case, facts, difference, here):
    # Linux drops one that is not used up as well.
    return not difference.more.get("there") and bool(difference.more.get("here")) and any(psp_behind_another(facts, layers) for layers in inputs(difference))


@purpose("PSP takes off an SRH that is behind another routing header")
def pops_behind_counted(case, facts, difference, here):
    # The SID counts a packet here and an error there; a tunnel that it goes to counts it, or does not take it.
    came = [layers[1:] for layers in tried(case, difference) if psp_behind_another(facts, layers)]
    if counts := sid_counts(difference):
        (name, packets, errors), (_, own_packets, own_errors) = counts
        to = sum(layers[0][1]["dst"] == name for layers in came)
        return "psp" in facts.sids.get(name, "") and 0 < errors - own_errors == own_packets - packets <= to
    if not came or difference.more.get("when") != "shows" and not difference.kind.startswith("shows tc -s: "):
        return False
    if difference.more.get("key") in ("stats64.tx.errors", "stats64.tx.dropped") and re.fullmatch(r"tun\d", difference.more["link"]):
        return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= len(came)
    return counts_more(difference, list(goes_on(came)))


def psp_behind_another(facts, layers):
    """Whether a packet is for a SID that pops, and its SRH behind a routing header that is used up."""
    to = layers[1][1]["dst"] if layers[1:2] and layers[1][0] == "ip6" else None
    routing = [values for name, values in layers[2:] if name == "routing"][:2]
    return re.search(r"flavors .*psp", facts.sids.get(to, "")) is not None and len(routing) == 2 and routing[0]["left"] == 0 < routing[1]["left"] and routing[1]["type"] == 4


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


def outermost(layers):
    """The outermost IPv6 header of a packet and the first routing header of that packet, None without one."""
    for n, (name, outer) in enumerate(layers):
        if name == "ip6":
            behind = itertools.dropwhile(lambda layer: layer[0] in ("hbh", "dstopt", "frag6"), layers[n + 1 :])
            name, routing = next(behind, ("nothing", None))
            return outer, routing if name == "routing" else None
    return None, None


@purpose("A reduced list is taken at addresses that are no SIDs")
def reduced(case, facts, difference, here):
    # Linux tells of segments left where the router goes on: to the next segment, or to an error about that.
    def is_reduced(values, own):
        if values["type"] != 4 or own not in facts.own:
            return False
        data = bytes.fromhex(values["data"])
        return bool(data) and values["left"] == data[0] + 1 and len(data) >= 4 + 16 * values["left"] - 16

    came = []
    for layers in tried(case, difference):
        outer, routing = outermost(layers)
        if routing and is_reduced(routing, outer["dst"]):
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
def reduced_counted(case, facts, difference, here):
    # A SID that such a list leads to counts what comes to it.
    counts = sid_counts(difference)
    if not counts:
        return False
    (sid, packets, errors), (_, own_packets, own_errors) = counts
    came = 0
    for layers in tried(case, difference):
        outer, routing = outermost(layers)
        if routing and routing["type"] == 4 and outer["dst"] in facts.own and routing["left"] and routing["data"][:2] == f"{routing['left'] - 1:02x}":
            came += segments(routing)[routing["left"] - 1 :][:1] == [sid]
    more = own_packets - packets + own_errors - errors
    return own_packets >= packets and own_errors >= errors and 0 < more <= came


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
    last = lambda values: int(values["data"][:2] or "0", 16)
    beyond = lambda values: values["type"] == 4 and (last(values) >= (len(values["data"]) // 2 - 4) // 16 or values["left"] > last(values) + 1)
    if not outer or not routing or b and (not told or told[:3] != (6, 4, 0)):
        return False
    for layers in tried(case, difference):
        came, by = outermost(layers)
        if by and beyond(by) and came["dst"] in facts.own and came["src"] == outer["src"] and by["data"] == routing["data"]:
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
            if not fills(tlvs_of(routing), 1):
                return True
    return False


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


# Extension headers, with the bytes of each that are not its data.
EXTENSIONS = {"routing": 4, "hbh": 2, "dstopt": 2, "frag6": 8}


@purpose("Inner packets are checked")
def inner_counted(case, facts, difference, here):
    # The SID counts it as an error, and what Linux counts behind it does not come here.
    malformed = here["drops"].get("inner-malformed", 0)
    counts = sid_counts(difference)
    if counts:
        more = counts[0][1] - counts[1][1]
        return 0 < more == counts[1][2] - counts[0][2] <= malformed
    inside = []
    for layers in tried(case, difference):
        at = next((n for n, (name, values) in enumerate(layers) if name == "ip6" and re.match(r"End\.D[TX]", facts.sids.get(values["dst"], ""))), None)
        if at is not None:
            headers = list(itertools.takewhile(lambda layer: layer[0] in EXTENSIONS, layers[at + 1 :]))
            left = layers[at][1]["len"] - sum(EXTENSIONS[name] + len(values.get("data", "")) // 2 for name, values in headers)
            # Of what says that it is longer there is no more.
            cut = [(name, {**values, "len": min(values["len"], left - (40 if name == "ip6" else 0))}) if name in ("ip4", "ip6") else (name, values) for name, values in layers[at + 1 + len(headers) :]]
            inside.append(cut)
    return malformed > 0 and lost_elsewhere(difference, inside, malformed)


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
    if not any(re.search(r"filter add dev p\d (egress|parent) .*(\bdrop\b|police|redirect|action mpls |action vlan )|qdisc (add|replace) dev p\d (root|parent)", line) for line in facts.lines):
        return False
    dropped = sum(count for reason, count in here["drops"].items() if re.match(r"tc-action|tc-edit|police|qdisc-|codel|mirred-loop", reason))
    more = int(difference.ours[0]) - int(difference.linux[0])
    if key in ("stats64.tx.errors", "stats64.tx.dropped"):
        return 0 < -more <= dropped
    return 0 < more <= {"stats64.tx.packets": dropped, "stats64.tx.bytes": 1500 * dropped}.get(key, 0)


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


@purpose("An error at the hop limit behind End.B6.Encaps of a program")
def behind_program(case, facts, difference, here):
    # By the tag in the SRH, as `steer.c` has it.
    frame = only(difference)
    told = frame and error(frame)
    if not told or told[:3] != (6, 3, 0) or told[3][0][1]["hops"] > 1:
        return False
    return any(outer["hops"] == told[3][0][1]["hops"] for outer in by_program(difference, facts, told))


@purpose("Host unreachable quotes the packet as it came")
def unreachable_behind_program(case, facts, difference, here):
    # Linux quotes the SRH that a program has put into it, by a tag of `steer.c` as well.
    a, b = pair(difference)
    there, ours = (error(frame) if frame else None for frame in (a, b))
    if not there or not ours or there[:3] != (6, 1, 3) or ours[:3] != (6, 1, 3):
        return False
    (_, header), (name, _), *behind = there[3] + [("", None)]
    came = any(outer["src"] == header["src"] and int(routing["data"][4:8] or "0", 16) == 25 for outer, routing in to_programs(tried(case, difference), facts))
    return came and name == "routing" and behind[:-1] == ours[3][1:] and header["hops"] == ours[3][0][1]["hops"]
