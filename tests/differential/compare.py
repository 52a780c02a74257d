"""Two answers to a case, and what differs."""

import difflib
import json
import re

import describe

MAC_LEN = 14


class Difference:
    """`kind` is what two cases have in common that differ for the same cause, as far as can be told: for shrinking."""

    def __init__(self, kind, what, linux, ours, **more):
        self.kind, self.what, self.linux, self.ours, self.more = kind, what, linux, ours, more

    def text(self):
        both = [f"      - {x}" for x in self.linux] + [f"      + {x}" for x in self.ours]
        return "\n".join([f"  {self.kind}: {self.what}", *both])


# ------------------------------------------------------------------------------------------------ lines


def line_answers(words, text, said):
    """For each line of a batch: what it said on its way to failing, or None."""
    if words == ["sysctl"]:
        failed = dict(line.split(": ", 1) for line in said["err"].splitlines())
        return [(line, failed.get(line.split("=")[0])) for line in text.splitlines()]
    answers, part, warnings = {}, [], {}
    for line in said["err"].splitlines():
        match = re.fullmatch(r"Command failed -:(\d+)", line)
        if match:
            answers[int(match[1])] = "\n".join(part)
            part = []
        else:
            part.append(line)
    answers[0] = "\n".join(part)
    return [*((line, answers.get(n + 1)) for n, line in enumerate(text.splitlines())), ("(at the end)", answers[0])]


def normal_text(text):
    """What is shown, without what is Linux's or the moment's affair."""
    text = re.sub(r"@if\d+", "", text)
    text = re.sub(r" link-netnsid \d+", "", text)
    text = re.sub(r" (installed|used|firstused|expires) \d+ ?sec", "", text)
    text = re.sub(r"tokens: -?\d+ ctokens: -?\d+", "tokens: N ctokens: N", text)
    # What is random in Linux: the permanent addresses of tunnels, the addresses of devices that are made up.
    text = re.sub(r" permaddr \S+", "", text)
    # A veth has a speed, from which the cost of a port of a bridge follows.
    text = re.sub(r" cost (2|100)\b", " cost N", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.M)


# ------------------------------------------------------------------------------------------------ frames


def holes(frame, own, tunnels=True):
    """The bytes of a frame that the router chooses: identifications, flow labels, and UDP source ports with the checksums
    that cover them, of headers that it makes from its addresses `own`; the times in IOAM traces."""
    found = set()
    if len(frame) < 14:
        return found
    kind, at = int.from_bytes(frame[12:14], "big"), 14
    if frame[2] & 1 and frame[4:6] == frame[10:12] == b"\x02\x00":
        # `mpls mac_push` has put a label before the Ethernet header.
        kind, at = int.from_bytes(frame[16:18], "big"), 18
    if frame[0] >> 4 == 4 and int.from_bytes(frame[2:4], "big") == len(frame) and frame[12:16] in own:
        # A filter has sent an outer packet on without an Ethernet header.
        kind, at = 0x800, 0
    if is_bare_ip6(frame):
        kind, at = 0x86DD, 0
    for _ in range(12):
        if kind in (0x8100, 0x88A8) and at + 4 <= len(frame):
            kind, at = int.from_bytes(frame[at + 2 : at + 4], "big"), at + 4
        elif kind in (0x8847, 0x8848) and at + 4 <= len(frame):
            bottom, at = frame[at + 2] & 1, at + 4
            if bottom and at < len(frame):
                kind = {4: 0x800, 6: 0x86DD}.get(frame[at] >> 4, 0x6558)
        elif kind == 0x6558 and at + 14 <= len(frame):
            kind, at = int.from_bytes(frame[at + 12 : at + 14], "big"), at + 14
        elif kind == 0x800 and at + 20 <= len(frame):
            size, protocol = 4 * (frame[at] & 15), frame[at + 9]
            mine = frame[at + 12 : at + 16] in own
            if mine:
                found |= {at + 4, at + 5, at + 10, at + 11}
            found |= option_times(frame, at, min(at + size, len(frame)))
            if int.from_bytes(frame[at + 6 : at + 8], "big") & 0x1FFF:
                break
            kind, at = upper(frame, protocol, at + size, mine, found)
        elif kind == 0x86DD and at + 40 <= len(frame):
            following, mine = frame[at + 6], frame[at + 8 : at + 24] in own
            if mine:
                found |= {at + 1, at + 2, at + 3}
            at += 40
            while following in (0, 43, 44, 60) and at + 8 <= len(frame):
                size = 8 if following == 44 else 8 * (frame[at + 1] + 1)
                if following == 0:
                    found |= trace_times(frame, at, min(at + size, len(frame)))
                if following == 44 and mine:
                    found |= set(range(at + 4, at + 8))
                following, at = frame[at], at + size
            kind, at = upper(frame, following, at, mine, found)
        else:
            break
    return {n for n in found if n < len(frame)}


def is_bare_ip6(frame):
    """Whether a filter has sent an IPv6 packet on out of a tunnel, without an Ethernet header."""
    return frame[0] >> 4 == 6 and int.from_bytes(frame[4:6], "big") + 40 == len(frame)


def upper(frame, protocol, at, mine, found):
    """The EtherType of what is in a transport header, and where."""
    if protocol == 4:
        return 0x800, at
    if protocol == 41:
        return 0x86DD, at
    if protocol == 137:
        return 0x8847, at
    if protocol == 143:
        return 0x6558, at
    if protocol == 1 and frame[at : at + 1] == b"\x0e" and mine:
        found |= {at + 2, at + 3, *range(at + 12, at + 20)}  # the time of day
        return 0, at + 8
    if protocol in (1, 58) and at + 8 <= len(frame) and (frame[at] < 128 if protocol == 58 else frame[at] in (3, 4, 5, 11, 12)):
        if protocol == 58:
            following, options = frame[at + 14 : at + 15], at + 48
            if following == b"+" and options + 8 <= len(frame):
                # Linux puts an RPL header before them.
                following, options = frame[options : options + 1], options + 8 * (frame[options + 1] + 1)
            inside = trace_times(frame, options, len(frame)) if following == b"\0" else set()
        else:
            inside = option_times(frame, at + 8, min(at + 8 + 4 * (frame[at + 8] & 15), len(frame))) if at + 28 <= len(frame) else set()
        if inside:
            found |= inside | {at + 2, at + 3}
        return 0, at + 8
    if protocol == 47 and at + 4 <= len(frame):
        flags = int.from_bytes(frame[at : at + 2], "big")
        if flags & 0x8000 and mine:
            found |= {at + 4, at + 5}
        size = 4 + 4 * (flags >> 15 & 1) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1)
        return int.from_bytes(frame[at + 2 : at + 4], "big"), at + size
    if protocol == 17 and at + 8 <= len(frame) and mine:
        port, to = int.from_bytes(frame[at : at + 2], "big"), int.from_bytes(frame[at + 2 : at + 4], "big")
        if to in describe.VXLAN_PORTS + describe.GENEVE_PORTS and at + 16 <= len(frame):
            # A VXLAN has a range of source ports, which may be one.
            if port != 7777:
                found |= {at, at + 1}
            if frame[at + 6 : at + 8] != b"\0\0":
                found |= {at + 6, at + 7}
            if to in describe.VXLAN_PORTS:
                return 0x6558, at + 16
            return int.from_bytes(frame[at + 10 : at + 12], "big"), at + 16 + 4 * (frame[at + 8] & 63)
        if to in range(5555, 5560) or to in describe.BARE_PORTS:
            if 32768 <= port < 61000 or to in describe.BARE_PORTS:
                found |= {at, at + 1}
            if frame[at + 6 : at + 8] != b"\0\0":
                found |= {at + 6, at + 7}
            if at + 12 > len(frame):
                return 0, at + 8
            if to in describe.BARE_PORTS:
                return {4: 0x800, 6: 0x86DD}.get(frame[at + 8] >> 4, 0x8847), at + 8
            if frame[at + 8] < 2 and frame[at + 9] in (4, 41, 47):
                # GUE, with the words of its options.
                return upper(frame, frame[at + 9], at + 12 + 4 * frame[at + 8], mine, found)
            return upper(frame, {4: 4, 6: 41}.get(frame[at + 8] >> 4, 47), at + 8, mine, found)
    return 0, at


def option_times(frame, header, end):
    """The times in the options of the IPv4 header that ends at `end`, and the sum over them."""
    found, at = set(), header + 20
    while at + 4 <= end and frame[at]:
        size = 1 if frame[at] == 1 else max(2, frame[at + 1])
        if frame[at] == 68:
            step = 4 if frame[at + 3] & 15 == 0 else 8
            for entry in range(at + 4, min(at + frame[at + 2] - 1, at + size, end), step):
                found |= set(range(entry + step - 4, min(entry + step, end)))
        at += size
    return found | {header + 10, header + 11} if found else found


def trace_times(frame, at, end):
    found, at = set(), at + 2
    while at + 12 <= end:
        if frame[at] == 0:
            at += 1
            continue
        size = frame[at + 1]
        if frame[at] == 0x31 and size >= 10 and frame[at + 3] == 0:
            kind = int.from_bytes(frame[at + 8 : at + 11], "big")
            words = bin(kind & 0xFF1FFC).count("1") + 2 * bin(kind & 0xE000).count("1")
            skip = bin(kind >> 22 & 3).count("1")
            times = bin(kind >> 20 & 3).count("1")
            if times:
                # A schema (bit 22) has a length of its own; all that is behind is then the router's.
                step = 4 * words
                node = at + 12 + 4 * (frame[at + 7] & 127)
                stop = min(at + 2 + size, end)
                while node < stop and step:
                    found |= set(range(node + 4 * skip, min(node + 4 * (skip + times), stop)))
                    if kind >> 1 & 1:
                        length = frame[node + step] if node + step < stop else 0
                        node += 4 + 4 * length
                    node += step
        at += 2 + size
    return found


def masked(frame, own):
    """In hexadecimal, with `..` for what is the router's choice."""
    hidden = holes(frame, own)
    return "".join(".." if n in hidden else f"{byte:02x}" for n, byte in enumerate(frame))


def own_addresses(case):
    import ipaddress

    found = set()
    for words, text in case["config"]:
        for address in re.findall(r"addr add ([0-9a-f.:]+)", text) + re.findall(r"tunsrc set ([0-9a-f:]+)", text) + re.findall(r"local ([0-9a-f.:]+)", text):
            try:
                found.add(ipaddress.ip_address(address).packed)
            except ValueError:
                pass
        for address in re.findall(r" address 02:((?:[0-9a-f]{2}:?){5})", text):
            tail = bytes.fromhex(address.replace(":", ""))
            found.add(b"\xfe\x80" + bytes(7) + tail[:2] + b"\xff\xfe" + tail[2:])
    found.add(bytes([192, 0, 0, 8]))
    for n in (1, 2, 3):
        found.add(bytes.fromhex("fe80000000000000000000fffe00000%d" % n))
    return found


# What the addresses of stations of layer 2 begin with.
STATION = "025a"


def is_noise(frame):
    """ARP, neighbour and listener discovery, in tunnels too: what Linux says on its own account."""
    if frame[12:14] == b"\x08\x06" and STATION not in (frame[:2].hex(), frame[6:8].hex()):
        return True
    if len(frame) > 18 and frame[2] & 1 and frame[16:18] in (b"\x08\x06", b"\x86\xdd") and is_noise(frame[4:]):
        # Behind a label that an action has put before the Ethernet header.
        return True
    if is_bare_ip6(frame):
        return is_noise(bytes(12) + b"\x86\xdd" + frame)
    ends, headers = "", 0
    for name, fields in describe.layers(frame):
        if name == "eth":
            ends, headers = fields, 0
        headers += name in ("ip4", "ip6")
        if ends and headers < 2 and any(ends[end].startswith(STATION) for end in ("dst", "src")):
            # What somebody else says, or is answered; but not that there is a shorter way.
            if name == "icmp" and fields["type"] != 137 or fields.get("type") == "0x806":
                return False
        if name == "icmp" and fields["type"] in (130, 131, 132, 133, 134, 135, 136, 137, 143):
            return True
        if name.startswith("quoted"):
            return False
        if fields.get("type") == "0x806":
            return True
    return False


def noise_of(answer):
    """(port, bytes) of all such frames of an answer: the guest has not taken those away that an action gave a tag, which a
    veth sends beside the frame and does not count."""
    tagged = [(port, bytes.fromhex(frame)) for _, port, frame in answer["out"]]
    return [tuple(one) for one in answer.get("noise", [])] + [(port, len(frame) - 4 * tags(frame)) for port, frame in tagged if is_noise(frame)]


def tags(frame):
    return sum(name == "vlan" for name, _ in describe.layers(frame)[1:3])


# ------------------------------------------------------------------------------------------------- both


def differences(case, there, here, every=False):
    """All that differs: of lines of the same words one, or with `every` each."""
    for side, answer in (("Linux", there), ("the router", here)):
        if "error" in answer:
            return [Difference(f"{side} failed", answer["error"], [], [])]
    found, refused, chosen = [], set(), set()
    for (words, text), a, b in zip(case["config"], there["config"], here["config"]):
        for (line, x), (_, y) in zip(line_answers(words, text, a), line_answers(words, text, b)):
            if x is not None and re.match(r"filter (add|replace|change) ", line):
                refused |= set(re.findall(r" action (\w+)", line)) | set(re.findall(r" (police) ", line))
            elif x is None and line.startswith("filter del "):
                # So are those of filters that are deleted.
                refused |= set(re.findall(r" action (\w+)", text)) | set(re.findall(r" (police) ", text))
            for one in line.split(" action ")[1:]:
                if number := re.search(r" index (\d+)", one):
                    kind = one.split()[0]
                    chosen.add((kind if kind in KINDS else "gact", int(number[1])))
            if x != y:
                kind = "config " + " ".join(words[:3] if words[1:2] == ["-f"] else words[:1]) + " " + " ".join(line.split()[:2])
                found.append(Difference(kind, " ".join(w for w in words if w not in ("-force", "-batch", "-")) + " " + line, [f"{x}"], [f"{y}"], line=line))
        if a["out"] != b["out"]:
            found.append(Difference("config output", " ".join(words), a["out"].splitlines(), b["out"].splitlines()))
    own = own_addresses(case)
    found += frame_differences(case, there, here, own)
    seen = set()
    for when in ("before", "shows"):
        for n, ((words, text), a, b) in enumerate(zip(case["shows"], there[when], here[when])):
            tool = " ".join(w for w in words if w not in ("-force", "-batch", "-"))
            if when == "shows" and any(d.kind.startswith("packet") for d in found):
                continue  # What else is counted follows from these.
            if "-j" in words:
                found += link_differences(case, n, there, here, when)
                continue
            x, y = (shown_lines(said) for said in (a, b))
            if refused and tool == "tc -s":
                x, y = (renumbered(lines, refused, chosen) for lines in (x, y))
            for tag, i1, i2, j1, j2 in opcodes(x, y, alone=tool == "ip -6 -s"):
                if tag != "equal" and ((key := (n, *x[i1:i2], "|", *y[j1:j2])) not in seen or every):
                    seen.add(key)
                    first = (x[i1:i2] or y[j1:j2])[0].split()
                    kind = f"{when} {tool}: {' '.join(first[:2 if tool == 'tc -s' else 1])}"
                    found.append(Difference(kind, context(x, i1), x[i1:i2], y[j1:j2], tool=tool, when=when))
    return found


def opcodes(x, y, alone):
    """What to do to make lines `x` those of `y`, as `difflib` has it; of as many lines on either side each `alone`, if it says so."""
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, x, y, autojunk=False).get_opcodes():
        if alone and tag == "replace" and i2 - i1 == j2 - j1:
            yield from ((tag, n, n + 1, n - i1 + j1, n - i1 + j1 + 1) for n in range(i1, i2))
        else:
            yield tag, i1, i2, j1, j2


def renumbered(lines, kinds, chosen):
    """With the numbers of actions of some kinds in the order in which filters show them, from N1 on, and lists of actions in the
    order of these. Actions of a filter that Linux refuses or deletes are there for a moment more: those that come next have
    other numbers, as long as they are not `chosen` by the configuration."""
    places, kind, lists = [], None, True
    for n, line in enumerate(lines):
        lists = lists and not line.startswith("filter ")
        named = re.search(r"action order \d+:\s+(\w+)", line) or re.search(r"\b(police) 0x", line)
        if named:
            kind = named[1] if named[1] in KINDS else "gact"
        number = re.search(r"\bpolice 0x([0-9a-f]+)", line) or re.search(r"\bindex (\d+)", line)
        if number and kind in kinds | ({"gact"} if kinds - KINDS else set()):
            value = int(number[1], 16 if "police" in number[0] else 10)
            if (kind, value) not in chosen:
                places.append((kind, value, n, number.span(1), lists))
    ranks = {}
    for kind, value, *_ in sorted(places, key=lambda place: (place[4], place[1] if place[4] else place[2])):
        if (kind, value) not in ranks:
            ranks[kind, value] = sum(other == kind for other, _ in ranks) + 1
    lines = list(lines)
    for kind, value, n, (start, end), _ in places:
        lines[n] = f"{lines[n][:start]}N{ranks[kind, value]}{lines[n][end:]}"
    return sorted_lists(lines)


def number_in(block):
    number = re.search(r"(?:index |police 0x)N(\d+)", "\n".join(block))
    return int(number[1]) if number else 0


def sorted_lists(lines):
    """With the actions of lists (`tc actions ls`) that have such numbers in the order of these, behind the others."""
    found, n = [], 0
    while n < len(lines):
        found.append(lines[n])
        n += 1
        if not lines[n - 1].startswith("total acts "):
            continue
        blocks = []
        while n < len(lines) and (not lines[n] or lines[n][0].isspace()) and not lines[n].startswith("total acts "):
            if re.match(r"\s*action order \d+:", lines[n]) or not blocks:
                blocks.append([])
            blocks[-1].append(lines[n])
            n += 1
        for order, block in enumerate(sorted(blocks, key=number_in)):
            # The last one has a blank line less.
            found += [re.sub(r"(\s*action order )\d+:", rf"\g<1>{order}:", block[0])] + [line for line in block[1:] if line]
    return found


# The kinds of actions by name; `action drop` and its like are of gact.
KINDS = {"police", "mirred", "mpls", "vlan", "skbedit", "tunnel_key", "gact"}


def shown_lines(said):
    lines = normal_text(said["out"] + said["err"]).splitlines()
    # Linux lists neighbours in the order of a hash that differs from boot to boot.
    # The queue that a device has by itself counts nothing here.
    for n, line in enumerate(lines):
        if n and re.match(r"qdisc (pfifo_fast|fq_codel) 0: dev", lines[n - 1]):
            lines[n] = " Sent by itself"
    # Those that packets went to show for a while that nobody answered.
    lines = [line for line in lines if not re.match(r"[0-9a-f.:]+ dev \S+ +(FAILED|INCOMPLETE)", line)]
    # What Linux hears of neighbours where it asks nobody, and stations that wait to be forgotten.
    lines = [line for line in lines if not re.match(r"\S+ dev \S+ lladdr \S+ STALE|([0-9a-f]{2}:){5}[0-9a-f]{2} dev .* stale$", line)]
    # Which groups and addresses a device listens to the router does not say; and the order of stations is that of a hash.
    lines = [line for line in lines if not re.match(r"\S+ dev (?!vx)\S+ self permanent|(33:33|01:00:5e|01:80:c2):\S+ dev \S+ self permanent", line)]
    # Its link-local addresses are ready in the order of a work queue.
    for what in (r"[0-9a-f.:]+ dev \S+ lladdr ", r"anycast fe80:: ", r"multicast ff00::/8 ", r"fe80::/64 dev", r"namespace \d+", r"local fe80::\S+ dev", r"([0-9a-f]{2}:){5}[0-9a-f]{2} dev "):
        there = iter(sorted(line for line in lines if re.match(what, line)))
        lines = [next(there) if re.match(what, line) else line for line in lines]
    return lines


# What a link has that is of a veth or of Linux's own choice.
LINK_SKIPPED = {"link_index", "link_netnsid", "tso_max_size", "permaddr"}
# How often a device was asked to take more than what is for its address; the router knows of ports of bridges alone.
LISTENING = {"promiscuity", "allmulti"}


def flat(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in LINK_SKIPPED:
                yield from flat(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def link_differences(case, n, there, here, when):
    """Of links: what they are, before the packets; what they have counted since, after them."""
    found, sides = [], []
    for answer in (there, here):
        try:
            first, now = (
                {link["ifname"]: dict(flat(link)) for link in json.loads(answer[which][n]["out"] or "[]")} for which in ("before", when)
            )
        except ValueError:
            return [Difference(f"{when} links", "no JSON", [answer[when][n]["out"][:500], answer[when][n]["err"]], [])]
        for name, link in now.items():
            for key in link:
                if key.startswith("stats64.") and name in first:
                    link[key] -= first[name].get(key, 0)
            for key in [key for key in link if key.startswith("linkinfo.") and key.endswith("_timer")]:
                del link[key]
            if link.get("linkinfo.info_slave_data.cost") in (2, 100):
                del link["linkinfo.info_slave_data.cost"]  # from the speed of a veth
            if name in ("p0", "p1", "p2"):
                link.pop("linkinfo.info_kind", None)
                if when == "shows":
                    noise = [size for port, size in noise_of(answer) if f"p{port}" == name]
                    link["stats64.tx.packets"] -= len(noise)
                    link["stats64.tx.bytes"] -= sum(noise)
                if when == "shows" and answer is here:
                    # A veth sends a tag beside the frame, and does not count it; but not that of labels.
                    tagged = [frame for _, port, frame in here["out"] if f"p{port}" == name and frame[24:28] in ("8100", "88a8") and frame[32:36] not in ("8847", "8848") and not is_noise(bytes.fromhex(frame))]
                    link["stats64.tx.bytes"] -= 4 * len(tagged)
            if link.get("linkinfo.info_kind") in ("vrf", "ifb", "gretap", "ip6gretap", "dummy"):
                link.pop("address", None)  # random
            if when == "shows":
                for key in [key for key in link if not re.fullmatch(r"stats64\.[rt]x\.(packets|bytes|errors|dropped)", key)]:
                    del link[key]
            else:
                for key in [key for key in link if key.startswith("stats64.")]:
                    del link[key]
        sides.append(now)
    a, b = sides
    tagged = sum(frame[24:28] in ("8100", "88a8") for _, _, frame in case["packets"])
    for name in {**a, **b}:
        x, y = a.get(name, {}), b.get(name, {})
        kind = (x or y).get("linkinfo.info_kind", "port" if name.startswith("p") else "")
        for key in sorted({**x, **y}):
            if name.startswith("ifb") and key in ("stats64.rx.bytes", "stats64.tx.bytes") and 0 < y.get(key, 0) - x.get(key, 0) <= 4 * tagged and (y[key] - x[key]) % 4 == 0:
                continue  # A tag comes in beside the frame.
            if x.get(key) != y.get(key):
                packets = max(one.get(re.sub(r"bytes$", "packets", key)) or 0 for one in (x, y)) if key.endswith("bytes") else 0
                found.append(Difference(f"{when} link {re.sub('[0-9]+$', '', name)} {key}", name, [f"{x.get(key)}"], [f"{y.get(key)}"], link=name, key=key, when=when, packets=packets))
    return found


def context(lines, at):
    """The line that begins the object which `at` belongs to."""
    for n in range(min(at, len(lines) - 1), -1, -1):
        if lines[n] and not lines[n][0].isspace():
            return lines[n]
    return ""


def slots(case):
    found, last = [], None
    for at, port, frame in case["packets"]:
        if at != last:
            found.append([])
            last = at
        found[-1].append((port, frame))
    return found


def frame_differences(case, there, here, own):
    found = []
    sides = []
    for answer in (there, here):
        by = {}
        for slot, port, frame in answer["out"]:
            data = bytes.fromhex(frame)
            if not is_noise(data):
                by.setdefault((slot, port), []).append(data)
        sides.append(by)
    found += unresolved(case, sides)
    a, b = sides
    for slot, inputs in enumerate(slots(case)):
        for port in range(len(case["ports"])):
            x, y = a.get((slot, port), []), b.get((slot, port), [])
            mx, my = [masked(f, own) for f in x], [masked(f, own) for f in y]
            if mx != my:
                only_x = [f for f, m in zip(x, mx) if m not in my]
                only_y = [f for f, m in zip(y, my) if m not in mx]
                if only_x and only_y:
                    kind = "packet differs: " + describe.difference(blank(only_x[0], own), blank(only_y[0], own))
                elif only_x or only_y:
                    kind = ("packet missing: " if only_x else "packet extra: ") + describe.chain((only_x or only_y)[0])
                else:
                    kind = "packets in another order or number"
                into = describe.chain(bytes.fromhex(inputs[0][1]))
                found.append(
                    Difference(
                        f"{kind} [in {into}]",
                        f"slot {slot} at p{port}" + "".join(f"\n      in p{p}: {describe.words(bytes.fromhex(f))}" for p, f in inputs),
                        [describe.words(f) for f in only_x], [describe.words(f) for f in only_y],
                        slot=slot, port=port, inputs=inputs, there=only_x, here=only_y, same=sorted(mx) == sorted(my),
                    )
                )
    return found


# The same behind an IPv4 and an IPv6 header, in a datagram that `describe` does not look into.
UNRESOLVED_INSIDE = re.compile(rb"\x45.{8}\x01.{10}(\x03\x01|\x0b\x01)|[\x60-\x6f].{5}\x3a\x40.{32}\x01\x03", re.DOTALL)


def is_unresolved(frame):
    chain = describe.chain(frame)
    return re.search(r"icmp\((1,3|3,1|11,1)\)", chain) is not None or chain.endswith("/udp") and UNRESOLVED_INSIDE.search(frame) is not None


def unresolved(case, sides):
    """Host unreachable, address unreachable: when Linux has asked for a neighbour for three seconds, and the router at once.
    And of fragments that have waited for others: Linux's timers tick. Those of a whole case are compared, and taken away."""
    taken = []
    for side in sides:
        all = []
        for key, frames in side.items():
            all += [(key[1], frame) for frame in frames if is_unresolved(frame)]
            frames[:] = [frame for frame in frames if not is_unresolved(frame)]
        taken.append(all)
    own = own_addresses(case)
    a, b = ([(port, masked(frame, own), frame) for port, frame in side] for side in taken)
    for x in list(a):
        same = next((y for y in b if y[:2] == x[:2]), None)
        if same:
            a.remove(x)
            b.remove(same)
    found = []
    # What is left goes together by the packet that it quotes, but for its hop limit, or but for the headers before what
    # it carries.
    about = lambda x: (x[0], [{**fields, "ttl": 0, "hops": 0, "sum": 0, "id": 0, "label": 0} for _, fields in describe.layers(x[2])][1:])
    carried = lambda x: (x[0], [layer for layer in describe.layers(x[2])[4:] if layer[0] not in ("routing", "hbh")])
    for x in list(a):
        same = next((y for y in b if about(y) == about(x)), None) or next((y for y in b if carried(y) == carried(x)), None)
        if same:
            a.remove(x)
            b.remove(same)
        kind = f"packet differs: {describe.difference(blank(x[2], own), blank(same[2], own))}" if same else f"packet missing: {describe.chain(x[2])}"
        here = [same[2]] if same else []
        found.append(Difference(kind, f"at p{x[0]}", [describe.words(x[2])], [describe.words(f) for f in here], slot=None, port=x[0], there=[x[2]], here=here, inputs=[]))
    for x in b:
        found.append(Difference(f"packet extra: {describe.chain(x[2])}", f"at p{x[0]}", [], [describe.words(x[2])], slot=None, port=x[0], there=[], here=[x[2]], inputs=[]))
    return found


def blank(frame, own):
    """With 0 for what is the router's choice."""
    hidden = holes(frame, own)
    return bytes(0 if n in hidden else byte for n, byte in enumerate(frame))


def recorded(case, here):
    """The router's answer, which is Linux's, for others to compare with: what is the router's choice is `.` or `*`."""
    own = own_addresses(case)

    def said(all):
        return [{**one, "out": volatile(one["out"]), "err": volatile(one["err"])} for one in all]

    frames = [(slot, port, masked(bytes.fromhex(frame), own)) for slot, port, frame in here["out"]]
    return {"config": said(here["config"]), "out": frames, "before": said(here["before"]), "shows": said(here["shows"])}


def volatile(text):
    return re.sub(r"tokens: -?\d+ ctokens: -?\d+", "tokens: * ctokens: *", text)
