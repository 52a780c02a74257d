"""What differs on purpose. Each function takes a difference and says whether it is the one that its heading in
docs/differences.md names: it looks at the fields that the heading speaks of, and at nothing else.

A test (`differential.py --check-purpose`) sees to it that every heading is there."""

import re

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


@purpose("Errors of a port of foo-over-UDP quote the datagram as it came")
def fou_quote(case, difference):
    a, b = pair(difference)
    if a is None or not re.search(r"icmp\((3,3|1,4)\)/quoted ip[46]$", describe.chain(b)):
        return False
    quoted = dict(describe.layers(b)).get("udp", {})
    if quoted.get("dport") not in (5555, 5556, 5557, 5558, 5559):
        return False
    own = {"ip4.id", "ip4.sum", "ip6.label", "icmp.sum"}
    return changed(a, b) - own <= {"quoted ip4.len", "quoted ip6.len"}


@purpose("Host unreachable quotes the packet as it came")
def unreachable_quote(case, difference):
    a, b = pair(difference)
    if a is None or not re.search(r"icmp\((3,1|1,3)\)/quoted ip[46]$", describe.chain(b)):
        return False
    own = {"ip4.id", "ip4.sum", "ip6.label", "icmp.sum"}
    x, y = fields(a), fields(b)
    lowered = all(x.get(key) == y[key] - 1 for key in y if key[1].startswith("quoted") and key[2] in ("ttl", "hops"))
    return lowered and (changed(a, b) or {"no"}) - own <= {"quoted ip4.ttl", "quoted ip4.sum", "quoted ip6.hops"}


def without(case, there, here, found):
    """(the differences that no purpose explains, {heading: how many it explains})"""
    left, known = [], {}
    for difference in found:
        for heading, function in PURPOSES:
            if function(case, difference):
                known[heading] = known.get(heading, 0) + 1
                break
        else:
            left.append(difference)
    return left, known
