"""What differs on purpose: "Loops" in docs/differences.md."""

import ipaddress
import re

import describe

from .common import arrived, error, leaves_by, more_hits, only, part_of, purpose, shifted, sid_counts, tried


def circle(facts):
    """The SIDs that the segments of End.B6 and End.B6.Encaps lead back to themselves, or from one of these to the next."""
    to = {sid: [segment for segment in re.findall(r"segs (\S+)", action)[0].split(",") if segment in facts.sids] for sid, action in facts.sids.items() if "segs" in action}
    found = set()
    led = {segment for line in facts.lines if "-6 route" in line for match in re.findall(r"encap seg6 mode \S+ segs (\S+)", line) for segment in match.split(",")}
    for sid in to:
        way, seen = list(to[sid]), set()
        while way:
            segment = way.pop()
            if segment not in seen:
                seen.add(segment)
                way += to.get(segment, [])
        # End goes back to the SID that the packet had for its destination.
        # What End.DT6 takes out a policy may lead to it once more.
        taken_out = sid in led and any(re.match(r"End\.DT4?6 ", facts.sids[segment]) for segment in seen)
        if sid in seen or taken_out or any(re.match(r"End(\.[XT])? ", facts.sids[segment] + " ") for segment in seen):
            found |= {sid} | seen
    # Or a policy inserts a SID of End, which goes back to the packet's own destination, and so to the policy.
    inserted = {segment for line in facts.lines if "-6 route" in line for match in re.findall(r"encap seg6 mode inline segs (\S+)", line) for segment in match.split(",")}
    found |= {sid for sid in inserted if re.match(r"End(\.[XT])? ", facts.sids.get(sid, "") + " ")}
    # Or a policy lists one before a segment that it is for.
    for net, line in facts.routes:
        for match in re.findall(r"encap seg6 mode \S+ segs (\S+)", line):
            segments = match.split(",")
            for sid, to in zip(segments, segments[1:]):
                if re.match(r"End(\.[XT])? ", facts.sids.get(sid, "") + " ") and net.version == 6 and ipaddress.ip_address(to) in net:
                    found.add(sid)
    for sid, action in facts.sids.items():
        # Or to a policy, by what is left of the address when one is shifted out.
        if "next-csid" in action and facts.leads(shifted(sid), rf"encap seg6 mode \S+ segs {re.escape(sid)}(,| )"):
            found.add(sid)
    return found


@purpose("Loops are dropped as loops")
def loops(case, facts, difference, here):
    if difference.more.get("key") == "stats64.tx.errors" and facts.tunnels.get(difference.more["link"]) == "vrf":
        return 0 < int(difference.ours[0]) - int(difference.linux[0]) <= sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop"))
    # A SID whose segments lead back to it counts in Linux once for each time that the packet comes round, as do those between.
    counts = sid_counts(difference)
    looped = sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop"))
    if not counts or not looped or not counts[0][0] in circle(facts):
        return False
    (_, packets, errors), (_, own_packets, own_errors) = counts
    return errors > own_errors and 0 <= own_packets - packets <= looped * 16


@purpose("Loops are dropped as loops")
def looped_into_tunnel(case, facts, difference, here):
    # A tunnel whose other end a policy leads back into it, which counts each round until Linux has had enough: the third.
    loops = sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop"))
    round_ = {match[2] for line in facts.lines if (match := re.search(r" encap ip6? .*?dst ([0-9a-f.:]+) .*dev (tun\d)", line)) and facts.leads(match[1], r"encap seg6 | dev tun\d")}
    # Or one without a remote address, in a VRF that a route leads its packets back into: to the gateway of each.
    for vrf in (name for name, kind in facts.tunnels.items() if kind == "vrf"):
        bound = {match[1] for line in facts.lines if (match := re.search(rf"link set (tun\d) master {vrf}", line))}
        bare = {line.split()[3] for line in facts.lines if re.search(r"link add tun\d .*type (ipip|sit|gre|gretap) ", line) and " remote " not in line and " external" not in line}
        round_ |= {name for name in bound & bare for line in facts.lines if (near := re.search(rf" via (\S+) dev {name}\b", line)) and facts.leads(near[1], rf"dev {vrf}\b")}
    most = 3 * loops
    if not most or not round_:
        return False
    key, link = difference.more.get("key", ""), difference.more.get("link")
    if link:
        more = int(difference.linux[0]) - int(difference.ours[0])
        return link in round_ and re.fullmatch(r"stats64\.tx\.(packets|bytes|errors)", key) is not None and 0 < more <= most * (1500 if key.endswith("bytes") else 1)
    at = re.search(r" dev (\w+) ", difference.what + " ")
    if not difference.kind.startswith("shows tc -s: ") or at and at[1] not in round_ or not 0 < len(difference.linux) == len(difference.ours):
        return False
    for lines in zip(difference.linux, difference.ours):
        sent = [re.match(r"\s*Sent (\d+) bytes (\d+) pkt(.*)$", line) for line in lines]
        more = [int(sent[0][2]) - int(sent[1][2])] if None not in sent and sent[0][3] == sent[1][3] else more_hits(*lines)
        if not any(more) or not all(0 <= one <= most for one in more):
            return False
    return True


@purpose("Loops are dropped as loops")
def looped(case, facts, difference, here):
    # From the device of a VRF, which has no other route, also behind a SID, or from a SID back to it, until the hop limit is
    # used up.
    a = difference.more.get("there")
    told = a and len(a) == 1 and not difference.more.get("here") and error(a[0])
    if not told or told[1:3] not in ((11, 0), (3, 0)) or not here["drops"].get("loop"):
        return False
    quoted = told[3][0][1]
    if quoted.get("ttl", quoted.get("hops")) > 1:
        return False
    into_vrf = facts.leads(quoted["dst"], r" dev vrf\d")
    near = lambda sid: ipaddress.ip_address(quoted["dst"]) in ipaddress.ip_network(f"{sid}/64", strict=False)
    back = lambda to: into_vrf if to == quoted["dst"] else to in facts.sids and (into_vrf or near(to))
    came = lambda values: values["src"] == quoted["src"] and values.get("ttl", values.get("hops")) > 1 and back(values["dst"])
    return any(name == f"ip{told[0]}" and came(values) for layers in tried(case, difference) for name, values in layers)


@purpose("Loops are dropped as loops")
def sent_to_own_sid(case, facts, difference, here):
    # What a tunnel sends goes by a policy to a SID of the router's own, which in Linux no packet of its own comes to.
    frame = only(difference)
    if not frame or not part_of(frame, [packet for _, packet in arrived(case, difference)]):
        return False
    for name, values in describe.layers(frame)[1:]:
        if name in ("ip4", "ip6") and between_ends(facts, values):
            lists = [line for net, line in facts.routes if net.version == (6 if name == "ip6" else 4) and ipaddress.ip_address(values["dst"]) in net]
            firsts = [match[1] for line in lists if (match := re.search(r"encap seg6 mode \S+ segs ([0-9a-f:]+)", line))]
            if any(first in facts.sids for first in firsts):
                return True
    return False


def between_ends(facts, header):
    """Whether the addresses of a header are the ends of one tunnel, or those that a route or an action gives to what goes into one;
    where these say no source it is any address of the router's."""
    same = lambda address, end: ipaddress.ip_address(address) == ipaddress.ip_address(end)
    for line in facts.lines:
        if not re.search(r"link (add|change) tun\d |encap ip6? .*dev tun\d|tunnel_key set ", line):
            continue
        local, remote = (re.search(rf" (?:{words}) ([0-9a-f.:]+)(?: |$)", line) for words in ("local|src|src_ip", "remote|dst|dst_ip"))
        if remote and same(header["dst"], remote[1]) and (same(header["src"], local[1]) if local else header["src"] in facts.own):
            return True
    return False


@purpose("Loops are dropped as loops")
def copies_of_copies(case, facts, difference, here):
    # What a filter copies into a tunnel where it leaves by a port, by which that leaves, too: it is of that tunnel on either side,
    # or is told of such a packet.
    loops = sum(here["drops"].get(reason, 0) for reason in ("loop", "encapsulation-loop", "mirred-loop", "tunnel-limit"))
    sides = [difference.more.get(side) or [] for side in ("there", "here")]
    if not difference.kind.startswith("packet") or loops and abs(len(sides[0]) - len(sides[1])) > ROUNDS * loops:
        return False
    ends = set()
    for line in facts.lines:
        if sent := re.search(r"filter add dev (p\d) egress .*mirred egress mirror dev (tun\d)\b", line):
            made = next((line + " " for line in facts.lines if f" link add {sent[2]} " in line), "")
            local, remote = (re.search(rf" {end} (\S+)", made) for end in ("local", "remote"))
            # Or filters name the ends, there or where it is copied.
            for other in facts.lines:
                named = re.search(rf"filter add dev (?:{sent[1]}|{sent[2]}) egress .*action tunnel_key set src_ip (\S+) dst_ip (\S+)", other)
                if named and leaves_by(facts, named[2], sent[1]):
                    ends.add((ipaddress.ip_address(named[1]), ipaddress.ip_address(named[2])))
            if local and remote and leaves_by(facts, remote[1], sent[1]):
                ends.add((ipaddress.ip_address(local[1]), ipaddress.ip_address(remote[1])))
    # In a queue of the tunnel's they go round, and leave when others come.
    came = [packet for _, packet in arrived(case, difference)] if loops else [bytes.fromhex(frame) for _, _, frame in case["packets"]]
    often = lambda frame: sum(name.endswith(("ip4", "ip6")) and (ipaddress.ip_address(values["src"]), ipaddress.ip_address(values["dst"])) in ends for name, values in describe.layers(frame))
    of_tunnel = lambda frame: often(frame) > 0
    at_once = [bytes.fromhex(frame) for side in ("linux", "out") for slot, _, frame in here.get(side, []) if slot == difference.more.get("slot") or not loops]
    # A copy that is not made here is none that is dropped: then Linux has made some of copies of copies.
    if not ends or not any(often(frame) > (0 if loops else 2) for frame in at_once):
        return False
    # Of one sender hears, or of a message of the router's own that has come in once more.
    told = lambda frame: error(frame) and describe.layers(frame)[1][1].get("src") in facts.own
    return all((of_tunnel(frame) or told(frame)) and part_of(frame, came) for frame in sides[0] + sides[1])


# As often a packet goes round in one of the two at most, before it is dropped.
ROUNDS = 16
