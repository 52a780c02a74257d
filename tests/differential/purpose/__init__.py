"""What differs on purpose. Each function takes a difference and says whether it is the one that its heading in
docs/differences.md names: it looks at the fields that the heading speaks of, and at nothing else.

A file is a section of that page, or a part of one; `common.py` has what several need. [`check`] sees to it that every heading is
there."""

import copy
import itertools
import re

import compare
import describe

from . import srv6_endpoint, srv6_headend, rpl, loops, ip, ioam, mpls, tunnels, gre, mirror, control, layer2  # noqa: F401
from .common import Facts, PURPOSES, counts_others, drops_others, error, rounds, without_requests


def check(path):
    """Every heading is there."""
    text = " ".join(path.read_text().split())
    missing = [heading for heading, _ in PURPOSES if heading not in text]
    if missing:
        raise SystemExit(f"{path} has no heading {missing}")


def parts(difference, errors=False, payload=False):
    """What differs in a slot, frame by frame: frames of the same layers are a pair, with `errors` those to the same sender, and with
    `payload` those that end alike and are of the same length, but for an Ethernet header; the others stand alone."""
    there, here = difference.more.get("there") or [], list(difference.more.get("here") or [])
    found = []
    for a in there:
        b = next((b for b in here if describe.chain(b) == describe.chain(a)), None)
        if b is None and errors and (told := error(a)):
            others = [b for b in here if (other := error(b)) and other[0] == told[0] and other[3][0][1]["src"] == told[3][0][1]["src"]]
            # About that packet, if several hear of some.
            b = max(others, key=lambda b: sum(x == y for x, y in zip(told[3], error(b)[3])), default=None)
        if b is None and payload:
            b = next((b for b in here if len(b) - len(a) in (0, 14) and b[-20:] == a[-20:]), None)
        if b is not None:
            here.remove(b)
        found.append(([a], [] if b is None else [b]))
    for one in found + [([], [b]) for b in here]:
        part = copy.copy(difference)
        part.more = {**difference.more, "there": one[0], "here": one[1]}
        yield part


def in_order(difference, facts):
    """As many frames on either side, pair by pair as they were sent. Where copies may leave by this port, also with some of what
    Linux sends behind all others: copies go out later than Linux sends them."""
    there, here = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) != len(here):
        return
    copies = rf"mirred (?:ingress mirror|egress mirror dev (?:p{difference.more.get('port')}\b|tun|ifb))"
    most = len(here) if len(here) <= 3 and any(re.search(copies, line) for line in facts.lines) else 0
    orders = []
    for later in itertools.chain.from_iterable(itertools.combinations(range(len(there)), n) for n in range(most + 1)):
        order = [n for n in range(len(there)) if n not in later] + list(later)
        if order in orders:
            continue
        orders.append(order)
        found = []
        for a, b in zip((there[n] for n in order), here):
            part = copy.copy(difference)
            part.more = {**difference.more, "there": [a], "here": [b]}
            found.append(part)
        yield found


def looks_inside(function):
    """Whether a purpose is about the inner frame, too: those of layer 2 look at all headers by themselves."""
    return function.__module__ != layer2.__name__ or function in (layer2.moved_addresses, layer2.tagged_frame)


def carried(difference):
    """The difference as it is of frames that came in by VLAN devices and tunnels of frames, or leave by them: without the outer
    headers of what came in, of what leaves, or of both, once and twice. What leaves by the same tunnel on both sides has the same
    outer headers, but for lengths and what each chooses; else it is none of that."""
    own = [[bytes.fromhex(frame) for _, frame in difference.more.get("inputs") or []], difference.more.get("there") or [], difference.more.get("here") or []]
    if not own[1] + own[2]:
        return

    def peel(frames):
        found = [describe.inside(frame) for frame in frames]
        return None if not frames or None in [one and one[1] for one in found] else found

    def outer(one):
        return [(name, {key: value for key, value in fields.items() if key not in ("len", "id", "sum", "label", "sport", "tos", "tclass")}) for name, fields in describe.layers(one[0]) if name != "raw"]

    ways = [(own[0], own[1], own[2], "")]
    for came, there, here, how in ways:
        if len(how) > 3:
            continue
        inputs = [(found[1] if (found := describe.inside(frame)) and found[1] else frame) for frame in came]
        if inputs != came and how.count("i") < 2:
            ways.append((inputs, there, here, how + "i"))
        left = [peel(side) if side else [] for side in (there, here)]
        if None not in left and how.count("o") < 2 and (not there or not here or [outer(one) for one in left[0]] == [outer(one) for one in left[1]]):
            ways.append((came, [one[1] for one in left[0]], [one[1] for one in left[1]], how + "o"))
    ports = [port for port, _ in difference.more.get("inputs") or []]
    seen = [ways[0][:3]]
    for came, there, here, _ in ways[1:]:
        if (came, there, here) in seen:
            continue
        seen.append((came, there, here))
        part = copy.copy(difference)
        part.more = {**difference.more, "there": there, "here": here, "inputs": [(port, frame.hex()) for port, frame in zip(ports, came)]}
        yield part


def once(difference):
    """Of as many frames on either side, which are all the same there and here, as of copies, one each."""
    there, here = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) < 2 or len(there) != len(here) or len(set(there)) > 1 or len(set(here)) > 1:
        return difference
    part = copy.copy(difference)
    part.more = {**difference.more, "there": there[:1], "here": here[:1]}
    return part


def taken(case, unfiltered, explains):
    """What leaves there and not here, or here and not there, where no filters are, and that some purpose explains: (heading, 1 for
    what leaves here and -1 for what leaves there, the lengths that a filter may count). `unfiltered` are both answers."""
    found = []
    for difference in compare.frame_differences(case, *unfiltered, compare.own_addresses(case)):
        heading = explains(difference)
        for sign, frames in ((1, difference.more["here"]), (-1, difference.more["there"])) if heading else ():
            for frame in frames:
                layers = describe.layers(frame)
                sizes = {len(frame), len(frame) - 14}
                # At a tunnel that it goes into it is not yet encapsulated; what a filter sends there has no Ethernet header.
                for name, values in layers:
                    if name in ("ip4", "ip6"):
                        own = values["len"] + (40 if name == "ip6" else 0)
                        sizes |= {own, own + 14}
                    if name == "icmp" or name.startswith("quoted"):
                        break
                found.append((heading, sign, sizes))
    return found


def without(case, there, here, found, unfiltered=None):
    """(the differences that no purpose explains, {heading: how many it explains}); `unfiltered` are the answers of Linux and of a
    router that have no filters where packets leave."""
    left, known, facts = [], {}, Facts(case)

    def explains(difference):
        heading = next((heading for heading, function in PURPOSES if function(case, facts, difference, here)), None)
        if heading is None and difference.kind.startswith("packet"):
            heading = next((heading for part in carried(difference) for heading, function in PURPOSES if looks_inside(function) and function(case, facts, part, here)), None)
        others = [one[1:] for one in messages]
        if heading is None and messages and (counts_others(difference, others) or drops_others(difference, facts, others)):
            heading = messages[0][0]
        if heading is None and unfiltered and here["drops"].get("neighbour-unresolved") and difference.kind.startswith("shows tc -s: "):
            # Or these, and its requests for a neighbour.
            for number, size in itertools.product(range(3, 3 * rounds(case) + 1, 3), (86, 42)):
                rest = without_requests(difference, number, size)
                if rest.linux == rest.ours or messages and counts_others(rest, others):
                    return "The router answers for itself"
        return heading

    here = {**here, "noise": compare.noise_of(there), "linux": there["out"]} if "noise" in there else here
    messages = []
    if unfiltered:
        open_there, open_here = unfiltered
        here = {**here, "unfiltered": open_here["out"]}
        kept, here = here, {**open_here, "noise": compare.noise_of(open_there), "linux": open_there["out"]}
        messages = taken(case, unfiltered, explains)
        if any(re.search(r"filter add dev (\S+) egress .*mirred egress (redirect|mirror) dev \1\b", line) for line in facts.lines):
            # What a filter sends to where it has come from, that sees once more.
            messages += messages
        here = kept
    for difference in found:
        headings = [explains(once(difference))]
        if headings == [None] and len((difference.more.get("there") or []) + (difference.more.get("here") or [])) > 1:
            for how in ({}, {"errors": True}, {"payload": True}):
                headings = [explains(part) for part in parts(difference, **how)]
                if None not in headings:
                    break
            for pairs in in_order(difference, facts) if None in headings else ():
                headings = [explains(part) for part in pairs]
                if None not in headings:
                    break
        if None in headings:
            left.append(difference)
        else:
            for heading in headings:
                known[heading] = known.get(heading, 0) + 1
    return left, known
