"""What differs on purpose: "RPL source routes" in docs/differences.md."""

import copy
import ipaddress
import re

import describe

from .common import OWN, address_pair, changed, counts_others, error, inputs, only, pair, purpose, tried


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
def shorter_in_datagram(case, facts, difference, here):
    # Also in foo-over-UDP, where the Ethernet header that came in stands in the middle of a packet that is else the same.
    a, b = pair(difference)
    if a is None or not {"raw.data"} <= (changed(a, b) or set()) <= {"raw.data", "udp.sum", "udp.sport", "ip6.label", *OWN}:
        return False
    x, y = (bytes.fromhex(dict(describe.layers(frame))["raw"]["data"]) for frame in (a, b))
    for _, frame in difference.more.get("inputs") or []:
        header, layers = bytes.fromhex(frame)[:14], describe.layers(bytes.fromhex(frame))
        packet, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        # The length and the hop limit are written over it again.
        overwritten = lambda at: sum(one == other for one, other in zip(x[at:], header)) >= 10 and x[:at] + x[at + 14 :] == y[:at] + y[at + 14 :]
        if packet and routing and shrinks(facts, packet, routing) > 0 and any(map(overwritten, range(1, len(x) - 13))):
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
    return packet["hops"] <= 1 and shrinks(facts, packet, routing) > 0


def shrinks(facts, packet, routing):
    """By how many bytes the RPL header of a packet for the router becomes shorter there."""
    if routing["type"] != 3 or packet["dst"] not in facts.own:
        return 0
    data = bytes.fromhex(routing["data"])
    addresses = [data[n : n + 16] for n in range(4, len(data), 16)]
    if data[0] or data[1] >> 4 or not 0 < routing["left"] <= len(addresses) or len(data) % 16 != 4:
        return 0
    at = len(addresses) - routing["left"]
    to, addresses[at] = addresses[at], ipaddress.ip_address(packet["dst"]).packed
    common = lambda address: next((n for n, (x, y) in enumerate(zip(to, address)) if x != y), 15)
    size = sum(16 - min(map(common, addresses[:-1])) for _ in addresses[:-1]) + 16 - common(addresses[-1])
    return 16 * len(addresses) - (size + -size % 8)


@purpose("A header may become shorter on its way")
def shorter_counted(case, facts, difference, here):
    # Of such a packet the router tells before it goes into a tunnel, where filters and queues count in Linux what is overwritten. One
    # that goes on has there no header of IPv6 in Linux, and is lost before.
    at = re.search(r" dev (\w+) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or at and facts.tunnels.get(at[1]) is None:
        return False
    sizes = []
    for layers in tried(case, difference):
        packet, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        if packet and routing and shrinks(facts, packet, routing) > 0:
            data = bytes.fromhex(routing["data"])[4:]
            to = data[len(data) - 16 * routing["left"] :][:16]
            if facts.leads(ipaddress.ip_address(to), rf" dev {at[1] if at else 'tun.'}\b"):
                size = 40 + packet["len"] - shrinks(facts, packet, routing)
                sizes.append((-1 if packet["hops"] <= 1 else 1, {size, size + 14}))
    return counts_others(difference, sizes)


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


@purpose("Two addresses of the router are a loop")
def two_own(case, facts, difference, here):
    # The router says so, and Linux sends the packet on to the next address, or tells later that this one does not answer.
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if sorted(map(len, sides)) != [0, 1] or not here["drops"].get("rpl-loop"):
        return False
    frame, loops = (sides[0] + sides[1])[0], {}
    for layers in tried(case, difference):
        packet, routing = dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")
        if packet and routing and (to := next_in_loop(facts, packet, routing)):
            loops[packet["src"], packet["dst"]] = to
    told = error(frame)
    ends = lambda layers: next(((values["src"], values["dst"]) for name, values in layers if name.endswith("ip6")), None)
    if sides[1]:
        return bool(told) and told[:3] == (6, 4, 0) and ends(told[3]) in loops
    return ends(told[3] if told else describe.layers(frame)) in {(source, to) for (source, _), to in loops.items()}


def next_in_loop(facts, packet, routing):
    """The next address of an RPL header that has two addresses of the router, with another between them, once the packet's own
    destination is in it; none of another."""
    data = bytes.fromhex(routing["data"])
    if routing["type"] != 3 or packet["dst"] not in facts.own or len(data) < 5:
        return None
    own, (inner, last, pad) = ipaddress.ip_address(packet["dst"]).packed, (data[0] >> 4, data[0] & 15, data[1] >> 4)
    number = (len(data) - 4 - pad - (16 - last)) // (16 - inner) + 1
    if not 0 < routing["left"] <= number:
        return None
    behind = 4 + (number - 1) * (16 - inner)
    addresses = [own[:inner] + data[at : at + 16 - inner] for at in range(4, behind, 16 - inner)] + [own[:last] + data[behind : behind + 16 - last]]
    at = number - routing["left"]
    to, addresses[at] = addresses[at], own
    ours = [n for n, address in enumerate(addresses) if str(ipaddress.ip_address(address)) in facts.own]
    return str(ipaddress.ip_address(to)) if len(ours) == 2 and ours[1] > ours[0] + 1 else None


@purpose("A header may become shorter on its way")
def shorter_gone(case, facts, difference, here):
    # What is overwritten may be nothing that Linux forwards, or be forwarded with a hop limit that is none.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(b) > 1 or len(a) > 1:
        return False
    alone = copy.copy(difference)
    alone.more = {**difference.more, "there": []}
    if a:
        # The EtherType stands where next header and hop limit are; a route may have put options or segments behind them.
        layers = describe.layers(a[0])
        behind = [layers[n + 1 : n + 2] for n in range(len(layers))]
        overwritten = any(
            name == "ip6" and values["hops"] in (220, 221) and (values["next"] == 134 or any(option in ("hbh", "routing") and more["next"] == 134 for option, more in after))
            for (name, values), after in zip(layers, behind)
        ) or overwritten_source(difference, layers) or overwritten_below_labels(a[0], layers) or overwritten_inside(difference, a[0])
        if not overwritten or b:
            return overwritten and shorter_at_last_hop(case, facts, alone, here)
        # The error goes another way, or there is none to the sender.
        heads = ((dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")) for layers in inputs(difference))
        # Or a rule by its source leads it elsewhere, which is overwritten.
        ruled = overwritten_source(difference, layers) and any(re.search(r"-6 rule add .*\bfrom (?!all)", line) for line in facts.lines)
        return any(packet and routing and shrinks(facts, packet, routing) and (ruled or packet["hops"] <= 1) for packet, routing in heads)
    if not b:
        return False
    # A route may have given it labels, or a routing header more, or have led it into a tunnel.
    sent = [values for name, values in [layer for layer in describe.layers(b[0]) if layer[0] not in ("mpls", "dstopt", "udp", "gue", "gre")][2:4] if name == "routing" and values["type"] == 3]
    return any(
        outer and routing and routing["type"] == 3 and outer["dst"] in facts.own and any(routing["left"] == one["left"] + 1 and len(one["data"]) < len(routing["data"]) for one in sent)
        for outer, routing in ((dict(layers[:3]).get("ip6"), dict(layers[:3]).get("routing")) for layers in inputs(difference))
    )
