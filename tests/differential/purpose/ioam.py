"""What differs on purpose: "IOAM" in docs/differences.md."""

import re

import compare
import describe

from .common import OWN, changed, error, pair, purpose, quotes_more


@purpose("Insertion stays in the VRF")
def id_of_vrf(case, facts, difference, here):
    # The id of the VRF's device, which has none.
    a, b = pair(difference)
    if a is None or (changed(a, b) or {"no"}) - OWN != {"hbh.data"} or not facts.leads(dict(describe.layers(a))["ip6"]["dst"], "encap ioam6|nhid"):
        return False
    # Of those that came in at the time, the one that it is.
    goal = dict(describe.layers(a))["ip6"]["dst"]
    came = [(port, describe.layers(bytes.fromhex(frame))) for port, frame in difference.more.get("inputs") or []]
    came = [(port, layers) for port, layers in came if any(name == "ip6" and values["dst"] == goal for name, values in layers)] or came
    # Or that of `lo`, to which a label has led it.
    to_lo = {match[1] for line in facts.lines if (match := re.search(r"mpls route \w+ (\d+) +dev lo\b", line))}
    came = [port for port, layers in came if not any(name == "mpls" and str(values["label"]) in to_lo for name, values in layers)]
    if not all(any(f"ip link set p{port} master vrf" in line for line in facts.lines) for port in came):
        return False
    hidden = compare.holes(a, compare.own_addresses(case))
    places = [n for n in range(len(a)) if a[n] != b[n] and n not in hidden]
    return 0 < len(places) <= 6 and all(a[n] == 0xFF for n in places)


@purpose("Insertion stays in the VRF")
def by_the_main_table(case, facts, difference, here):
    # The same packet with its option, by a way of the VRF's here, by one of the main table in Linux.
    there, ours = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(there) + len(ours) != 1 or difference.more.get("slot") is None:
        return False
    if not all(any(f"ip link set p{port} master vrf" in line for line in facts.lines) for port, _ in difference.more.get("inputs") or []):
        return False

    def inserted(frame):
        at = 14
        if frame[12:14] == b"\x88\x47":
            bottom = next((n for n in range(14, len(frame) - 3, 4) if frame[n + 2] & 1), len(frame))
            at = bottom + 4
        packet = frame[at:]
        return packet[4:] if len(packet) > 40 and packet[0] >> 4 == 6 and packet[6] == 0 else None

    frame = (there or ours)[0]
    goal = next((values["dst"] for name, values in describe.layers(frame) if name == "ip6"), None)
    others = here["out"] if there else here["linux"]
    same = any(slot == difference.more["slot"] and inserted(bytes.fromhex(other)) == inserted(frame) for slot, _, other in others)
    # Or by none, or into a tunnel that does not take it.
    lost = bool(ours) and bool(goal) and facts.leads(goal, r"encap ioam6 .* (table|vrf) ")
    return bool(goal) and inserted(frame) is not None and facts.leads(goal, "encap ioam6|nhid") and (same or lost)


@purpose("Insertion stays in the VRF")
def unanswered_in_vrf(case, facts, difference, here):
    # Where nobody answers there, of which the sender hears.
    a, b = (difference.more.get(side) or [] for side in ("there", "here"))
    if len(a) + len(b) != 1:
        return False
    inserts = lambda to: facts.leads(to, r"encap ioam6 .* (table|vrf) ")
    told = [one for _, _, frame in here["out"] if (one := error(bytes.fromhex(frame))) and one[1:3] in ((1, 3), (1, 0)) and inserts(one[3][0][1]["dst"])]
    sent = [outer for _, _, frame in here["linux"] for name, outer in describe.layers(bytes.fromhex(frame))[1:2] if name == "ip6" and outer["next"] == 0 and inserts(outer["dst"])]
    ends = lambda outer: (outer["src"], outer["dst"])
    if b:
        own = error(b[0])
        return bool(own) and own[1:3] in ((1, 3), (1, 0)) and any(ends(outer) == ends(own[3][0][1]) for outer in sent)
    outer = next((values for name, values in describe.layers(a[0])[1:2] if name == "ip6"), None)
    return outer in sent and any(ends(one[3][0][1]) == ends(outer) for one in told)


@purpose("Insertion stays in the VRF")
def round_by_the_main_table(case, facts, difference, here):
    # By the main table a packet with a header of its own comes back into a VRF, and goes round until its hop limit is used up, of
    # which Linux tells itself.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[:3] != (6, 3, 0) or told[3][0][1]["src"] not in facts.own or [name for name, _ in told[3][1:3]] != ["hbh", "ip6"]:
        return False
    outer, inside = told[3][0][1], told[3][2][1]
    came = any(f"ip link set p{port} master vrf" in line and dict(describe.layers(bytes.fromhex(frame))[1:2]).get("ip6", {}).get("dst") == inside["dst"] for port, frame in difference.more.get("inputs") or [] for line in facts.lines)
    return came and facts.leads(inside["dst"], rf"encap ioam6 .*tundst {outer['dst']} ") and facts.leads(outer["dst"], r" dev vrf\d")


@purpose("A trace's insertion counts in a Packet Too Big")
def own_trace(case, facts, difference, here):
    return quotes_more(difference, "hbh", {"hops"}, lambda ours: facts.leads(ours["dst"], r"encap ioam6|nhid"))
