"""What the purposes are made of: headings, what a case configures, what differs, counters."""

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
                        self.routes.append((ipaddress.ip_network("::/0" if word == "default" and ("-6" in words or "inet6" in words) else "0.0.0.0/0" if word == "default" else word, strict=False), line))
                        break
                    except ValueError:
                        continue
            if " encap seg6local action End" in line:
                # Another route to it is refused.
                self.sids.setdefault(words[words.index("encap") - 1].split("/")[0], line.split("action ")[1])
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
                return 4 if found[n + 1][0] == "quoted ip4" else 6, values["type"], values["code"], found[n + 1 :]
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


def arrived(case, difference):
    """(port, frame) of whatever came in at the time, or of all that came in where no time is told."""
    return [(port, bytes.fromhex(frame)) for port, frame in difference.more.get("inputs") or [packet[1:] for packet in case["packets"]]]


def part_of(frame, packets):
    """Whether the innermost IP packet of a frame, from its addresses on, or as much of it as is quoted, is in one of these packets."""
    headers = [values for name, values in describe.layers(frame) if name.endswith(("ip4", "ip6"))]
    if not headers:
        return False
    inside = frame[frame.rfind(address_pair(headers[-1])) :]
    return any(inside in packet for packet in packets)


def leaves_by(facts, address, port):
    """Whether a route to an address names a port, or a gateway behind it."""
    near = rf"via (?:inet6 )?(?:10\.0\.{port[1:]}\.|2001:db8:{port[1:]}::)"
    return facts.leads(address, rf" dev {port}\b|{near}")


def tried(case, difference):
    """The layers of whatever came in at the time, or of all that came in where no time is told."""
    return inputs(difference) or [describe.layers(bytes.fromhex(frame)) for _, _, frame in case["packets"]]


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


def quotes_more(difference, extra, changes, from_here, behind=None):
    """Whether both tell the same error, and Linux's quote has headers `extra`, and `behind` these, that the router's lacks: these headers' own
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
    more = next((n for n in range(2, len(linux)) if linux[n][0] not in (extra, behind) or linux[n - 1][1]["next"] == ours[0][1]["next"]), len(linux))
    if linux[more - 1][1]["next"] != ours[0][1]["next"] or {key for key in ours[0][1] if linux[0][1].get(key) != ours[0][1][key]} - {"next", "len"} - changes:
        return False
    whole = lambda layers: "".join(f"{name} {key}={value} " for name, values in layers for key, value in values.items() if (name, key) != ("raw", "len"))
    return whole(ours[1:]).startswith(whole(linux[more:])[:-1])


def sid_counts(difference):
    """(SID, packets, errors) of Linux and of the router, of a SID whose counters alone differ."""
    if not difference.kind.startswith("shows ip -6 -s: ") or not len(difference.linux) == len(difference.ours) == 1:
        return None
    both = [re.match(r"(\S+)  (encap seg6local .*?packets )(\d+) bytes (\d+) errors (\d+)(.*)$", lines[0]) for lines in (difference.linux, difference.ours)]
    if None in both or len({(one[1], one[2], one[6]) for one in both}) != 1:
        return None
    return [(one[1], int(one[3]), int(one[5])) for one in both]


def to_programs(came, facts):
    """The outer header and the SRH of those packets that came to a SID with a program."""
    for layers in came:
        outer, routing = (next((values for name, values in layers if name == wanted), None) for wanted in ("ip6", "routing"))
        if outer and routing and "End.BPF" in facts.sids.get(outer["dst"], ""):
            yield outer, routing


def by_program(difference, facts, told):
    """The outer headers of packets from whom an error is told to that came to a SID whose program, `steer.c`, does End.B6.Encaps
    with them: by the tag in the SRH."""
    for outer, routing in to_programs(inputs(difference), facts):
        if outer["src"] == told[3][0][1]["src"] and int(routing["data"][4:8] or "0", 16) in (26, 27, 29):
            yield outer


def segments(routing):
    """The addresses that an SRH lists."""
    data = bytes.fromhex(routing["data"])[4:]
    return [str(ipaddress.ip_address(data[n : n + 16])) for n in range(0, len(data) - 15, 16)]


def shifted(sid):
    """The destination that a SID of NEXT-CSID, of a locator of 32 bits and functions of 16, makes of itself."""
    packed = ipaddress.ip_address(sid).packed
    return str(ipaddress.ip_address(packed[:4] + packed[6:] + b"\0\0"))


def before(case, difference, ports=()):
    """The layers of what came in before, but by these ports."""
    times = list(dict.fromkeys(at for at, _, _ in case["packets"]))
    return [describe.layers(bytes.fromhex(frame)) for at, port, frame in case["packets"] if times.index(at) < (difference.more.get("slot") or 0) and port not in ports]


def rounds(case):
    """How often Linux can have asked for a neighbour in vain, each time for three seconds, at most."""
    return min(4, 1 + case["packets"][-1][0] // 3_000_000) if case["packets"] else 1


def goes_on(packets):
    """The lengths that a filter may count of packets, layers from an IP header on, that Linux forwards, or of errors about them:
    for each, what it may be with an Ethernet header and without, and with a label."""
    for layers in packets:
        name, values = layers[0] if layers else ("nothing", {})
        if name not in ("ip4", "ip6"):
            continue
        size = values["len"] + (40 if name == "ip6" else 0)
        told = min(size + 48, 1280) if name == "ip6" else min(size + 28, 576)
        yield {n + more for n in (size, told) for more in (0, 4, 14, 18)}


def lost_elsewhere(difference, packets, most=1000):
    """Whether Linux has counted some of these packets more, `most` of them, which were lost behind where they were counted."""
    sums = {(0, 0)}
    for sizes in goes_on(packets):
        sums |= {(n + 1, total + size) for n, total in sums for size in sizes if n < most}
    if "link" in difference.more:
        # Into a tunnel it goes without its Ethernet header, or as an error.
        key = difference.more["key"]
        if not re.fullmatch(r"tun\d", difference.more["link"]) or not key.startswith("stats64.tx."):
            return False
        more = int(difference.linux[0]) - int(difference.ours[0])
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
    hit = re.compile(r"((?:rule hit|direct_packets_stat|success|lended:|borrowed:) )(\d+)")
    if hit.sub(r"\1", line) != hit.sub(r"\1", other):
        return []
    return [int(x[2]) - int(y[2]) for x, y in zip(hit.finditer(line), hit.finditer(other))]


def drops_others(difference, facts, packets):
    """Whether the root qdisc of a port has dropped some packets, by a filter of its own, that the other of the two has not had: 1 and
    -1 are those of the router and of Linux."""
    at = re.match(r"qdisc \S+ \S+ dev (p\d) root", difference.what)
    sent = [re.fullmatch(r"\s*(Sent \d+ bytes \d+ pkt \(dropped )(\d+)(,.*)", lines[0]) if len(lines) == 1 else None for lines in (difference.linux, difference.ours)]
    if not at or None in sent or sent[0].group(1, 3) != sent[1].group(1, 3):
        return False
    more = int(sent[1][2]) - int(sent[0][2])
    alike = sum(sign * more > 0 for sign, _ in packets)
    return any(re.search(rf"filter add dev {at[1]} parent .* drop$", line) for line in facts.lines) and 0 < abs(more) <= alike


def counts_more(difference, packets, most=1000):
    """Whether the router has counted some packets more, `most` of them, each of one of the lengths given for it."""
    return counts_others(difference, [(1, sizes) for sizes in packets], most)


def counts_others(difference, packets, limit=1000):
    """Whether one of the two has counted some packets that the other has not, `limit` of them: 1 and -1 are those of the router and
    of Linux, each of one of the lengths given for it."""
    # Not a counter of a link.
    if "link" in difference.more and not all(line.isdigit() for line in difference.linux + difference.ours):
        return False
    # As many as there are at most, where none is taken off again: of many packets there are too many sums.
    most = limit
    if all(sign == 1 for sign, _ in packets) and "link" not in difference.more:
        numbers = lambda lines: [int(n) for line in lines for n in re.findall(r"(?<= )(\d+)(?= pkt)|(?:rule hit|success) (\d+)", line) for n in n if n]
        most = min(limit, max((abs(y - x) for x, y in zip(numbers(difference.linux), numbers(difference.ours))), default=0))
    longest = 1 << 40
    if all(sign == 1 for sign, _ in packets) and "link" in difference.more:
        more = int(difference.ours[0]) - int(difference.linux[0])
        if more <= 0:
            return False
        most, longest = (limit, more) if difference.more["key"].endswith("bytes") else (min(limit, more), longest)
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
