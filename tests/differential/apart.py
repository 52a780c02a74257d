"""Counters that several packets have moved: what each of these does alone, and whether that is all there is."""

import re

import compare
import purpose

NUMBER = re.compile(r"\d+")


def counted(difference):
    """{which counter: how much more the router has counted} of a difference of counters; none of one in which more differs."""
    if not difference.kind.startswith("shows ") or len(difference.linux) != len(difference.ours):
        return {}
    if "link" in difference.more:
        return {(difference.more["link"], difference.more["key"]): int(difference.ours[0]) - int(difference.linux[0])}
    found = {}
    for line, other in zip(difference.linux, difference.ours):
        # The counters of a SID or of a policy stand on the line of their route, which is all there is to tell whose they are.
        route, packets, _ = line.partition(" packets ")
        at, whose = (len(route), "") if packets else (0, difference.what)
        if line[:at] != other[:at] or NUMBER.sub("", line) != NUMBER.sub("", other):
            return {}
        numbers = [[int(n) for n in NUMBER.findall(text[at:])] for text in (line, other)]
        for n, (x, y) in enumerate(zip(*numbers)):
            key = (whose, line[:at] + NUMBER.sub("", line[at:]), n)
            found[key] = found.get(key, 0) + y - x
    return found


def total(differences):
    """The sum of what [`counted`] finds in all of them."""
    found = {}
    for difference in differences:
        for key, more in counted(difference).items():
            found[key] = found.get(key, 0) + more
    return found


def on_purpose_alone(case, both):
    """{number of a packet: headings} of those that, alone, leave in another way on purpose, and in no other."""
    alone = [{**case, "packets": [packet]} for packet in case["packets"]]
    found = {}
    for number, (one, said) in enumerate(zip(alone, both(alone))):
        if any("error" in answer for answer in said):
            continue
        differences = compare.differences(one, *said)
        if any(difference.kind.startswith(("packet", "shows ip -6 -s")) for difference in differences):
            rest, known = purpose.without(one, *said, differences)
            if not rest:
                found[number] = known
    return found


def behind_others(case, both):
    """{heading: how many} if nothing is left that differs where those packets do not come which alone leave in another way on purpose:
    what is left is what the others meet for them, or what they count."""
    if len(case["packets"]) < 2:
        return None
    others = on_purpose_alone(case, both)
    if not others:
        return None
    # Frames for another station take their place.
    inert = "02000000fffe02000000fffd" + "88b5" + "00" * 46
    packets = [(at, port, inert if number in others else frame) for number, (at, port, frame) in enumerate(case["packets"])]
    calm = {**case, "packets": packets}
    (said,) = both([calm])
    if any("error" in answer for answer in said):
        return None
    rest, _ = purpose.without(calm, *said, compare.differences(calm, *said))
    if rest:
        return None
    headings = {}
    for known in others.values():
        for heading, count in known.items():
            headings[heading] = headings.get(heading, 0) + count
    return headings


def explained(case, answers, left, both):
    """{heading: how many} if purposes explain all that differs with each packet of a case alone, and if what differs in these
    counters then comes to the sum that differs with all of them; None otherwise. `left` are differences of the case, and `both`
    asks Linux and the router."""
    if len(case["packets"]) < 2 or not all(counted(difference) for difference in left):
        return None
    alone = [{**case, "packets": [packet]} for packet in case["packets"]]
    headings, differences = {}, []
    for one, said in zip(alone, both(alone)):
        if any("error" in answer for answer in said):
            return None
        rest, known = purpose.without(one, *said, compare.differences(one, *said))
        if rest:
            return None
        differences += compare.differences(one, *said, every=True)
        for heading, count in known.items():
            headings[heading] = headings.get(heading, 0) + count
    wanted, found = total(compare.differences(case, *answers, every=True)), total(differences)
    whose = {key for difference in left for key in counted(difference)}
    return headings if all(found.get(key, 0) == wanted[key] for key in whose) else None
