"""What differs on purpose: "IPv4 and IPv6" in docs/differences.md."""

import ipaddress
import re

import compare
import describe

from .common import OWN, address_pair, changed, counts_more, counts_others, error, fields, inputs, pair, purpose, rounds, tried


@purpose("Host unreachable quotes the packet as it came")
def unreachable_quote(case, facts, difference, here):
    a, b = pair(difference)
    if a is None or not re.search(r"icmp\((3,1|1,3)\)/quoted ip[46]$", describe.chain(b)):
        return False
    x, y = fields(a), fields(b)
    lowered = all(x.get(key) == y[key] - 1 for key in y if key[1].startswith("quoted") and key[2] in ("ttl", "hops"))
    return lowered and (changed(a, b) or {"no"}) - OWN <= {"quoted ip4.ttl", "quoted ip4.sum", "quoted ip6.hops"}


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


@purpose("The router answers for itself")
def asked_into_ifb(case, facts, difference, here):
    # What Linux asks by a port, of which a filter there sends copies to an ifb.
    link, key = difference.more.get("link") or "", difference.more.get("key", "")
    ports = {int(match[1]) for line in facts.lines if (match := re.search(rf"filter add dev p(\d) egress .*mirred egress mirror dev {link}\b", line))}
    asked = [size for port, size in here.get("noise", []) if port in ports]
    if not link.startswith("ifb") or not asked:
        return False
    more = {"stats64.rx.packets": len(asked), "stats64.rx.dropped": len(asked), "stats64.rx.bytes": sum(asked)}
    return int(difference.linux[0]) - int(difference.ours[0]) == more.get(key)


@purpose("Link-local IPv4 addresses are not forwarded")
def this_network(case, facts, difference, here):
    # Of 0.0.0.0/8. What Linux tells later, of a neighbour that does not answer, is about one of those that came.
    a = difference.more.get("there")
    zero = ipaddress.ip_network("0.0.0.0/8")
    if a and not difference.more.get("here") and not inputs(difference):
        ends = lambda values: (values["src"], values["dst"])
        came = {ends(values) for layers in tried(case, difference) for name, values in layers if name == "ip4" and ipaddress.ip_address(values["dst"]) in zero}
        return all((told := error(frame)) and told[:3] == (4, 3, 1) and ends(told[3][0][1]) in came for frame in a)
    came = [values for layers in inputs(difference) for name, values in layers if name == "ip4" and any(ipaddress.ip_address(values[end]) in zero for end in ("src", "dst"))]
    # Also where it is in a datagram that is not looked into.
    of_it = lambda frame: any(name in ("ip4", "quoted ip4") and values["dst"].startswith("0.") or values.get("src", "").startswith("0.") for name, values in describe.layers(frame)) or any(address_pair(values) in frame for values in came)
    return bool(a) and not difference.more.get("here") and bool(came) and all(map(of_it, a))


@purpose("Link-local IPv4 addresses are not forwarded")
def this_network_counted(case, facts, difference, here):
    # Those of 0.0.0.0/8 that go into a tunnel, without an Ethernet header or with one, where its qdisc and its filters count them.
    if not difference.kind.startswith("shows tc -s: ") or not re.search(r" dev tun\d |^filter |^total acts", difference.what + " "):
        return False
    zero = lambda values: values["src"].startswith("0.") or values["dst"].startswith("0.")
    came = [values for layers in tried(case, difference) for name, values in layers if name == "ip4" and zero(values) and facts.leads(values["dst"], r" dev tun\d")]
    return counts_others(difference, [(-1, {values["len"], values["len"] + 14}) for values in came])


@purpose("Link-local IPv4 addresses are not forwarded")
def this_network_refused(case, facts, difference, here):
    # Nor where the tunnel that they are led to does not take them, and counts them.
    link, key = difference.more.get("link") or "", difference.more.get("key")
    if difference.more.get("when") != "shows" or not re.fullmatch(r"tun\d", link) or key not in ("stats64.tx.errors", "stats64.tx.dropped"):
        return False
    led = lambda values: any(values[end].startswith("0.") for end in ("src", "dst")) and facts.leads(values["dst"], rf" dev {link}\b")
    came = sum(any(name == "ip4" and led(values) for name, values in layers) for layers in tried(case, difference))
    return 0 < int(difference.linux[0]) - int(difference.ours[0]) <= came


@purpose("Link-local IPv4 addresses are not forwarded")
def out_of_this_network(case, facts, difference, here):
    # Nor does what such a source has sent through a tunnel come out of it.
    a = difference.more.get("there")
    zero = ipaddress.ip_network("0.0.0.0/8")
    # Or is told of.
    ends = lambda layers: {(values["src"], values["dst"]) for name, values in layers if name.endswith(("ip4", "ip6"))}
    inside = set()
    for layers in inputs(difference):
        name, outer = layers[1] if len(layers) > 1 else ("", {})
        if name == "ip4" and ipaddress.ip_address(outer["src"]) in zero and outer["dst"] in facts.own:
            inside |= ends(layers[2:])
    return bool(a) and not difference.more.get("here") and all(ends(describe.layers(frame)) & inside for frame in a)


@purpose("Link-local IPv4 addresses are not forwarded")
def received_from_this_network(case, facts, difference, here):
    # Nor does a tunnel count what comes out of it.
    link, key = difference.more.get("link") or "", difference.more.get("key", "")
    if difference.more.get("when") != "shows" or not re.fullmatch(r"tun\d", link) or key not in ("stats64.rx.packets", "stats64.rx.bytes"):
        return False
    sums = {(0, 0)}
    for layers in tried(case, difference):
        name, outer = layers[1] if len(layers) > 2 else ("", {})
        if name == "ip4" and outer["src"].startswith("0.") and outer["dst"] in facts.own:
            # Whatever is behind the headers of the tunnel.
            sums |= {(n + 1, total + size) for n, total in sums for size in range(outer["len"] - 20)}
    more = int(difference.linux[0]) - int(difference.ours[0])
    few = {one for one in sums if 0 < one[0] <= here["drops"].get("source-invalid", 0)}
    return more in {one[key.endswith("bytes")] for one in few}


@purpose("Link-local IPv4 addresses are not forwarded")
def marked_by_this_network(case, facts, difference, here):
    # Nor is it an error of that tunnel that such a source's outer header tells of congestion and the inner one cannot.
    if difference.more.get("when") != "shows" or not re.fullmatch(r"tun\d", difference.more.get("link") or "") or difference.more.get("key") != "stats64.rx.errors":
        return False
    came = 0
    for layers in tried(case, difference):
        headers = [values for name, values in layers if name in ("ip4", "ip6")]
        if len(headers) > 1 and headers[0]["src"].startswith("0.") and headers[0]["dst"] in facts.own:
            outer, inner = (values["tos" if "tos" in values else "tclass"] & 3 for values in headers[:2])
            came += outer == 3 and inner == 0
    more = int(difference.linux[0]) - int(difference.ours[0])
    return 0 < more <= min(came, here["drops"].get("source-invalid", 0))


@purpose("Hop-by-hop options in a payload of length 0 are malformed")
def no_length(case, facts, difference, here):
    return bool(difference.more.get("there")) and not difference.more.get("here") and any(
        name == "ip6" and values["len"] == 0 and values["next"] == 0 for layers in inputs(difference) for name, values in layers
    )


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
        if not told and len(frame) > 34 and frame[12:14] == b"\x08\0" and str(ipaddress.ip_address(frame[26:30])) in facts.own:
            # Into a tunnel of IPv6 packets over IPv4.
            goals |= {values["dst"] for name, values in describe.layers(frame)[2:3] if name == "ip6"}
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
            gateway, device = (re.search(rf" {word} (\S+)", line) for word in ("via(?: inet6?)?", "dev"))
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
def spread_into_tunnel(case, facts, difference, here):
    # One of those ways leads into a tunnel, where nobody answers, or nothing of it is seen.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) + len(b) != 1:
        return False
    told = error((a or b)[0])
    if told and told[:3] not in ((6, 1, 3), (6, 2, 0)):
        return False
    goals = {values["dst"] for name, values in (told[3] if told else describe.layers((a or b)[0])[1:]) if name.endswith("ip6")}
    ways = set().union(*(shared_ways(facts, goal) for goal in goals))
    return any(device in facts.tunnels for _, device in ways) and any(device not in facts.tunnels for _, device in ways)


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


@purpose("Multipath looks deeper")
def spread_to_silent(case, facts, difference, here):
    # At the gateway of one of those ways nobody answers: it has no neighbour, or its port has been down since.
    frames = [frame for side in ("there", "here") for frame in difference.more.get(side) or []]
    if len(frames) != 1 or difference.more.get("slot") is None or error(frames[0]):
        return False
    answers = set()
    for line in facts.lines:
        if down := re.match(r"ip link set (p\d) down", line):
            answers = {(to, by) for to, by in answers if by != down[1]}
        elif known := re.match(r"ip(?: -6)? neigh (?:add|replace) ([0-9a-f:]+) lladdr \S+ dev (\S+)", line):
            answers.add((ipaddress.ip_address(known[1]), known[2]))
    goals = {values["dst"] for name, values in describe.layers(frames[0])[1:2] if name == "ip6"}
    ways = {(ipaddress.ip_address(near), device) for goal in goals for near, device in shared_ways(facts, goal)}
    return bool(ways & answers) and bool({way for way in ways - answers if str(way[1]).startswith("p")})


@purpose("A packet of IPsec has an unknown protocol")
def of_ipsec(case, facts, difference, here):
    a, b = pair(difference)
    x, y = a and error(a), b and error(b)
    if not x or not y or (x[:3], y[:3]) != ((4, 3, 3), (4, 3, 2)) or x[3][0][1]["proto"] not in (50, 51, 108):
        return False
    return (changed(a, b) or {"no"}) - OWN == {"icmp.code"}


@purpose("Encapsulations behind the device of a VRF are made in the VRF")
def message_in_vrf(case, facts, difference, here):
    # Of what the router says itself in a VRF, whose route puts segments before it that only the main table leads on.
    a = difference.more.get("there")
    if not a or len(a) != 1 or difference.more.get("here") or not any(here["drops"].get(reason) for reason in ("encapsulation-loop", "loop", "no-route")):
        return False
    layers = describe.layers(a[0])[1:]
    at = 2 if [name for name, _ in layers[:2]] == ["ip6", "routing"] else 0
    told = error(a[0])
    inside = layers[at : at + 2]
    if not at or not told or [name for name, _ in inside] != ["ip6", "icmp"] or inside[0][1]["src"] not in facts.own:
        return False
    in_vrf = {int(match[1]) for line in facts.lines if (match := re.match(r"ip link set p(\d) master vrf", line))}
    quoted = told[3][0][1]
    came = any(port in in_vrf and any(name == "ip6" and (values["src"], values["dst"]) == (quoted["src"], quoted["dst"]) for name, values in describe.layers(bytes.fromhex(frame))) for port, frame in difference.more.get("inputs") or [])
    return came and facts.leads(inside[0][1]["dst"], rf"encap seg6 mode (l2)?encap.* segs {layers[0][1]['dst']}\b.* (table|vrf) ")


def same_inside(a, b):
    """Whether two frames that went different ways have the same packet inside, or quote it."""
    x, y = describe.layers(a), describe.layers(b)
    # A trace that one of the ways puts before it is no part of the packet.
    if [name for name, _ in x[2:3]].count("hbh") != [name for name, _ in y[2:3]].count("hbh"):
        return x[-1] == y[-1]
    return x[-1] == y[-1] and len(a) == len(b) if len(x) == len(y) else x[-2:] == y[-2:]


@purpose("No packet to `::`")
def unspecified(case, facts, difference, here):
    a = difference.more.get("there")
    return bool(a) and not difference.more.get("here") and all(any(name in ("ip6", "quoted ip6") and values["dst"] == "::" for name, values in describe.layers(f)) for f in a)


@purpose("No source validation")
def own_source_mirrored(case, facts, difference, here):
    # What the router has sent itself, which a filter where it leaves has sent back: each time its TTL is lower.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if not ours or there or not any(re.search(r"filter add dev \S+ (egress|parent) .*mirred ingress (mirror|redirect)", line) for line in facts.lines):
        return False
    at_once = [describe.layers(bytes.fromhex(frame))[1:] for slot, _, frame in here["out"] if slot == difference.more.get("slot")]

    def lowered(layers):
        name, values = layers[0]
        if name != "ip4" or values["src"] not in facts.own:
            return False
        alike = lambda other: other[0][0] == "ip4" and all(other[0][1][key] == values[key] for key in ("src", "dst", "id")) and other[1:] == layers[1:]
        return values["ttl"] < 64 or any(alike(other) and other[0][1]["ttl"] > values["ttl"] for other in at_once)

    return all(lowered(describe.layers(frame)[1:]) for frame in ours)


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
    own = set(facts.own)
    if any(re.search(r"\brule add | type vrf ", line) for line in facts.lines):
        own |= {str(network.broadcast_address) for network, _ in facts.connected if network.version == 4}
    return not difference.more.get("there") and any(
        values["src"] in own for layers in inputs(difference) for name, values in layers if name == "ip4"
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
    # The times in traces differ.
    a, b = (frame and compare.blank(frame, set()) for frame in pair(difference))
    if a is None or not error(a) or (changed(a, b) or {"no"}) - OWN != {"ip6.src"}:
        return False
    port = difference.more["port"]
    has = lambda port, frame: any(re.search(rf" addr add (\S+)/\d+ dev p{port} ", line + " ") and ipaddress.ip_interface(line.split()[3 + ("-6" in line)]).ip == ipaddress.ip_address(frame[22:38]) for line in facts.lines)
    in_vrf = lambda port: any(line.startswith(f"ip link set p{port} master vrf") for line in facts.lines)
    ends = address_pair(error(b)[3][0][1])
    # Or a tunnel tells it, which has no address of its own.
    by_tunnel = str(ipaddress.ip_address(b[22:38])) in facts.own and facts.leads(error(b)[3][0][1]["dst"], r" dev tun\d")
    came = any((has(by, b) and not in_vrf(by) or by_tunnel) and bytes.fromhex(frame)[22:54] == ends for _, by, frame in case["packets"])
    return has(port, a) and in_vrf(port) and came and any(" -6 rule " in f" {line} " for line in facts.lines)


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
    if unresolved := here["drops"].get("neighbour-unresolved"):
        noise += [(port, size) for port in drops - heard if not at or port == at[1] for size in (42, 86) for _ in range(max(6, 3 * unresolved))]
    sizes = [size for _, size in noise]
    # They are counted before an action gives them a label.
    pushes = any(re.search(r"filter add dev p\d egress .*action mpls (mac_)?push ", line) for line in facts.lines)
    return more_by(difference, sizes) or pushes and more_by(difference, [size - 4 for size in sizes])


@purpose("The router answers for itself")
def waits_behind_message(case, facts, difference, here):
    # The sender hears at once that a neighbour does not answer: at a port with a rate other packets wait then, or find others there.
    at = re.match(r"(?:qdisc|class) (?:htb|tbf) (?:.* dev p(\d) )?", difference.what + " ")
    sent = [re.fullmatch(r"(\s*Sent )(\d+)( bytes )(\d+)( pkt \(dropped \d+), overlimits (\d+)( requeues 0\)\s*)", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or not here["drops"].get("neighbour-unresolved"):
        return False
    if abs(int(sent[0][6]) - int(sent[1][6])) > int(sent[1][4]):
        return False
    # All else is as without what Linux asks.
    alike = ["".join(one.group(1, 2, 3, 4, 5, 7)) for one in sent]
    asked = [size for port, size in here["noise"] if at[1] is None or f"{port}" == at[1]]
    return alike[0] == alike[1] or more_by(compare.Difference(difference.kind, difference.what, alike[:1], alike[1:], **difference.more), asked)


@purpose("The router answers for itself")
def asked_and_dropped(case, facts, difference, here):
    # Three requests for each neighbour that does not answer, which a filter of the port's qdisc drops.
    at = re.match(r"qdisc \S+ \S+ dev (p\d) root", difference.what)
    sent = [re.fullmatch(r"\s*(Sent \d+ bytes \d+ pkt \(dropped )(\d+)(,.*)", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or sent[0].group(1, 3) != sent[1].group(1, 3):
        return False
    more = int(sent[0][2]) - int(sent[1][2])
    drops = any(re.search(rf"filter add dev {at[1]} parent .* action drop", line) for line in facts.lines)
    return drops and more % 3 == 0 and 0 < more <= 3 * here["drops"].get("neighbour-unresolved", 0)


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
    # Its three requests for a neighbour, which an action of the port has redirected to where they do not arrive, or into a tunnel
    # whose outer packets leave by the port as well.
    if not difference.kind.startswith("shows tc -s: ") or not 0 < len(difference.linux) == len(difference.ours):
        return False
    away = {match[1] for line in facts.lines if (match := re.search(r"filter add dev (p\d) (?:egress|parent) .*mirred (?:egress|ingress) redirect dev ", line))}
    # Those in a qdisc that send back what has come there are lost every time.
    often = here["drops"].get("neighbour-unresolved", 0) if any(re.search(r"filter add dev (p\d) parent .*mirred (egress|ingress) redirect dev ", line) for line in facts.lines) else 0
    at = re.search(r" dev (p\d) ", difference.what + " ")
    outer = [size for port, size in here.get("noise", []) if size > 86 and f"p{port}" in away and (not at or at[1] == f"p{port}")]
    return bool(away) and (not at or at[1] in away) and more_by(difference, [86, 86, 86, 42, 42, 42] * max(len(away) * rounds(case), often) + outer)


@purpose("The router answers for itself")
def asked_in_vain(case, facts, difference, here):
    # The requests that do not get through a tunnel: for a gateway behind it, or sent to it by a filter.
    link, key = difference.more.get("link"), difference.more.get("key", "")
    if key not in ("stats64.tx.errors", "stats64.tx.dropped") or not str(facts.tunnels.get(link)).endswith(("gre", "gretap", "ipip", "sit", "ip6tnl", "bareudp")):
        return False
    known = {words[3]: words[2] != "del" for words in map(str.split, facts.lines) if words[:2] == ["ip", "neigh"]}
    known = {address for address, there in known.items() if there}
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
def asked_behind_tunnel(case, facts, difference, here):
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
