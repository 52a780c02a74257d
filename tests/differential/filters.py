"""What filters make of a packet where it leaves: the same IP packet with other labels and tags, by another port, inside a tunnel, or
quoted in an error."""

import re

import compare
import describe
from purpose.common import error, part_of


def made(case, left, found):
    """Whether all frames of the differences `left` are what filters make of those that differ without filters, `found`: Linux's of
    Linux's and the router's of the router's, of each of these one, and as many more as its port's filters make copies."""
    lines = [line for _, text in case["config"] for line in text.splitlines()]
    own = compare.own_addresses(case)
    for side in ("there", "here"):
        others = [(d.more["slot"], d.more["port"], frame) for d in found for frame in d.more[side]]
        room = [1 + sum(" mirror dev " in line for line in leaving(lines, f"p{port}")) for _, port, _ in others]
        for slot, port, frame in [(d.more["slot"], d.more["port"], frame) for d in left for frame in d.more[side]]:
            of = (n for n, (at, by, other) in enumerate(others) if room[n] and at == slot and is_made_of(lines, own, (port, frame), (by, other)))
            if (n := next(of, None)) is None:
                return False
            room[n] -= 1
    return True


def leaving(lines, device):
    """The filters that see what leaves by a device."""
    return [line for line in lines if re.match(rf"filter add dev {device} (egress|parent) ", line)]


def is_made_of(lines, own, sent, other):
    """Whether a frame by a port, `sent`, is what the filters of its port make of `other`."""
    (port, frame), (by, open_frame) = sent, other
    filters = leaving(lines, f"p{by}")
    tunnels = {to for line in filters for to in re.findall(r"mirred egress (?:redirect|mirror) dev (tun\d)", line)}
    if error(frame) and not error(open_frame):
        # By what a filter sends into a tunnel its sender hears.
        return bool(tunnels) and part_of(frame, [open_frame])
    if port != by and not tunnels and not any(re.search(rf"mirred egress (redirect|mirror) dev p{port}\b", line) for line in filters):
        return False
    start = network_header(open_frame)
    packet, now = (compare.blank(one, own) for one in (open_frame, frame))
    if not now.endswith(packet[start:]):
        return False
    before, at_first = now[: len(now) - len(packet) + start], packet[:start]
    if any(name in ("ip4", "ip6") for name, _ in describe.layers(frame[: len(before)])):
        return bool(tunnels)
    # Labels and tags, and with a label or without also the Ethernet header.
    edits = [line for line in filters if re.search(r"action (mpls|vlan) ", line)]
    return before == at_first or bool(edits)


def network_header(frame):
    """Where the first header is that is not of Ethernet, a tag or a label."""
    sizes = {"eth": 14, "vlan": 4, "mpls": 4}
    at = 0
    for name, _ in describe.layers(frame):
        if name not in sizes:
            break
        at += sizes[name]
    return at
