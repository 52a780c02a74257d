#!/usr/bin/python3
"""Random configurations and random packets, on a real Linux and on the router: what differs?

    UNDERPASS_UML=/path/to/linux tests/differential/differential.py --count 100
    UNDERPASS_UML=... tests/differential/differential.py --seed 4711 --shrink     # one case, made as small as it goes
    tests/differential/differential.py --seed 4711 --print                        # what it is
    UNDERPASS_UML=... tests/differential/differential.py --record 100             # rewrite recorded/
    UNDERPASS_UML=... tests/differential/differential.py --layer2 --record 50     # the same with VLAN devices, bridges, VXLANs

UNDERPASS_UML names a user-mode Linux as tests/golden/record.py wants it, with everything that Underpass has, and with
CONFIG_UML_TIME_TRAVEL_SUPPORT. Compared are what every line of the configuration answers, every packet out of every
port, in order, and what `ip` and `tc` show before the packets and after them, with every counter.

What differs on purpose is known by the functions of `purpose/`, each of which names its heading in
docs/differences.md. All else is printed, and the exit status is 1.
"""

import argparse
import hashlib
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

import apart
import compare
import control
import features
import filters
import layer2
import linux
import purpose
from world import MACS, PORTS, World

# What is shown before the packets and after them.
SHOWS = [
    (["ip", "-j", "-s", "-s", "-d"], ["link show"]),
    (["ip"], ["addr show", "neigh show", "rule show", "route show table all", "nexthop show", "fou show", "tunnel show", "ioam namespace show", "ioam schema show", "sr tunsrc show"]),
    (["ip", "-6"], ["rule show", "tunnel show"]),
    (["ip", "-6", "-s"], ["route show table all"]),
    (["ip", "-f", "mpls"], ["route show"]),
]
# With devices of layer 2.
LAYER2 = r"bridge |ip link add .* type (vlan|bridge|vxlan|geneve) "
LAYER2_SHOWS = [(["bridge"], ["fdb show", "vlan show"]), (["bridge", "-d"], ["link show"])]
TC_SHOWS = ["qdisc show", "actions ls action gact", "actions ls action police", "actions ls action mirred", "actions ls action skbedit", "actions ls action vlan", "actions ls action mpls"]


def generate(seed, of_layer2=False):
    """The case of a number: lines of configuration, packets."""
    if of_layer2:
        w = layer2.World2(seed)
        layer2.generate(w)
        return w.lines + [" ".join(line.split()) for line in w.tc], packets_of(w)
    w = World(seed)
    features.base(w)
    chosen = [feature for feature, p in features.ALL if w.chance(p)]
    order = {features.vrfs: 0, features.tunnels: 1, features.ioam: 2}
    chosen.sort(key=lambda feature: order.get(feature, 3))
    for feature in chosen:
        feature(w)
    if seed >= features.METADATA_FROM and w.chance(0.7):
        features.metadata(w)
    if seed >= features.PROGRAMS_FROM and w.chance(0.2):
        features.programs(w)
    if w.chance(0.4):
        control.tc_hooks(w)
    if seed >= features.PROGRAMS_FROM and w.chance(0.25):
        control.hash_tables(w)
    if w.keyed:
        control.tunnel_keys(w)
    if w.chance(0.25):
        control.qdiscs(w)
    if w.chance(0.15):
        features.changes(w)
    return w.lines + [" ".join(line.split()) for line in w.tc], packets_of(w)


def packets_of(w):
    packets, at = [], 0
    # No bucket of so many packets a second is full at the very moment that one comes.
    spacing = w.choice([1_000_137, 1_000_137, 1_000_137, 1013, 20_137])
    for number in range(w.randint(15, 45)):
        if number and not w.chance(0.1):
            at += spacing
        packets.append((at, *w.frame(number)))
    return [(at, port, frame.hex()) for at, port, frame in packets]


def runs(lines):
    """Lines, gathered into batches of one tool and family."""
    found = []
    for line in lines:
        for head, words in [("sysctl -qw ", ["sysctl"]), ("ip -6 ", ["ip", "-6"]), ("ip -f mpls ", ["ip", "-f", "mpls"]), ("ip ", ["ip"]), ("tc ", ["tc"]), ("bridge ", ["bridge"])]:
            if line.startswith(head):
                break
        else:
            raise ValueError(line)
        if words[0] != "sysctl":
            words = [*words, "-force", "-batch", "-"]
        rest = line[len(head) :].replace(" <<< ", "\n")
        if found and found[-1][0] == words:
            found[-1][1].append(rest)
        else:
            found.append((words, [rest]))
    return [(words, "\n".join(rest) + "\n") for words, rest in found]


def case_of(name, lines, packets):
    devices = list(PORTS)
    for line in lines:
        words = line.split()
        if line.startswith(("ip link add ", "ip tunnel add ", "ip -6 tunnel add ")):
            name_of = words[words.index("add") + 1]
            if name_of not in devices and any(line.startswith("tc") and f"dev {name_of} " in line + " " for line in lines):
                devices.append(name_of)
    tc = [line for line in lines if line.startswith("tc ")]
    shown = SHOWS + LAYER2_SHOWS * any(re.match(LAYER2, line) for line in lines)
    shows = [(words + ["-force", "-batch", "-"], "\n".join(what) + "\n") for words, what in shown]
    if tc:
        what = list(TC_SHOWS)
        for device in devices:
            if any(f"dev {device} " in line + " " for line in tc):
                what += [f"class show dev {device}", f"filter show dev {device}", f"filter show dev {device} ingress", f"filter show dev {device} egress"]
        shows.append((["tc", "-s", "-force", "-batch", "-"], "\n".join(what) + "\n"))
    return {"name": name, "ports": [f"{port},mac={mac}" for port, mac in MACS.items()], "config": runs(lines), "packets": packets, "shows": shows}


# ------------------------------------------------------------------------------------------ both answers


def test_program():
    """Where cargo has put the test, built if it has to be."""
    words = ["cargo", "test", "-q", "-p", "underpass", "--test", "differential", "--no-run", "--message-format=json"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line).get("executable") for line in done.stdout.splitlines() if '"differential"' in line]
    return next(path for path in found if path)


PROGRAM = None


def router(cases):
    """What the router answers to each."""
    with tempfile.TemporaryDirectory(prefix="underpass-differential-") as work:
        path = Path(work, "cases")
        found = []
        while len(found) < len(cases):
            path.write_text("".join(json.dumps(case) + "\n" for case in cases[len(found) :]))
            said = ""
            try:
                said = subprocess.run(
                    [PROGRAM, "--ignored", "--exact", "answer", "--nocapture"],
                    env={**os.environ, "UNDERPASS_DIFFERENTIAL": str(path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, errors="replace", timeout=60 + 10 * (len(cases) - len(found)),
                ).stdout
            except subprocess.TimeoutExpired:
                said = "it does not end"
            lines = Path(work, "cases.answers").read_text().splitlines()
            found += [json.loads(line) for line in lines]
            if len(found) < len(cases):
                found.append({"error": "the router ended: " + said[-2000:]})
        return found


KEPT = None


def linux_answers(cases):
    """What Linux answers to each; with `--kept`, only cases that it has not answered before are run."""
    if not KEPT:
        return linux.answers(cases)
    paths = [KEPT / hashlib.sha256(json.dumps(case).encode()).hexdigest() for case in cases]
    new = [(case, path) for case, path in zip(cases, paths) if not path.exists()]
    for (_, path), answer in zip(new, linux.answers([case for case, _ in new]) if new else []):
        path.write_text(json.dumps(answer))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def both(cases):
    """(Linux's answer, the router's) for each case."""
    there = []
    thread = threading.Thread(target=lambda: there.extend(linux_answers(cases)))
    thread.start()
    here = router(cases)
    thread.join()
    if len(there) != len(cases):
        sys.exit(1)
    return list(zip(there, here))


def differences(case, there, here, alone=True):
    """All that differs, less what does on purpose: (what is left, {name: how often}); with `alone` counters are looked at
    packet by packet where they have to be."""
    found = compare.differences(case, there, here)
    if "error" in there or "error" in here:
        return found, {}
    left, known = purpose.without(case, there, here, found)
    if left and all(d.kind.startswith("shows ") for d in left) and "out" in here:
        # Counters alone: of what filters take, for which others show what it was.
        open_case = without_filters(case)
        if open_case != case:
            (answers,) = both([open_case])
            if not any("error" in answer for answer in answers):
                left, known = purpose.without(case, there, here, found, unfiltered=answers)
    if left and "out" in here and (heading := after_others(case, left) or behind_filters(case, left)):
        left, known = [], {**known, heading: known.get(heading, 0) + len(left)}
    if alone and left and all(d.kind.startswith("shows ") for d in left) and (headings := apart.explained(case, (there, here), left, both)):
        left, known = [], headings
    if alone and left and "out" in here and (headings := apart.behind_others(case, both)):
        left, known = [], headings
    return left, known


# What lets so many packets pass, or so many a second: what else comes to it has its share.
SHARED = r"filter add dev (p\d) egress .* (?:random (?:determ|netrand)|police (?:pkts_)?rate) |(?:qdisc|class) add dev (p\d) .*(?:tbf|htb) .*rate "


def after_others(case, left):
    """The heading of what only one of the two sends, on purpose, or not at the same moment, by a port whose filters take one of
    so many packets, or whose qdisc has a rate, if all that is left is of such ports and behind it, and nothing is left where
    filters take all or none and qdiscs have no rate."""
    lines = [line for _, text in case["config"] for line in text.splitlines()]
    ports = {int((match[1] or match[2])[1:]) for line in lines if (match := re.search(SHARED, line))}
    # A copy may go out elsewhere.
    ports |= {int(to) for line in lines if " random " in line and re.search(r"dev p\d egress", line) for to in re.findall(r"mirred egress (?:mirror|redirect) dev p(\d)", line)}
    if not ports or not all(d.kind.startswith("packet") and d.more.get("port") in ports for d in left):
        return None
    config = []
    for words, text in case["config"]:
        if words[0] == "tc":
            text = re.sub(r" random (determ|netrand) \w+ \d+", "", text)
            text = "".join(line for line in text.splitlines(keepends=True) if not re.match(r"(qdisc|class) (add|replace) dev p\d (root|parent)|filter add dev p\d (parent|egress .* police )", line))
        config.append((words, text))
    calm = {**case, "config": config}
    (answers,) = both([calm])
    if any("error" in answer for answer in answers):
        return None
    found = compare.differences(calm, *answers)
    rest, known = purpose.without(calm, *answers, found)
    if any(d.kind.startswith("packet") for d in rest):
        return None
    first = min(d.more.get("slot") or 0 for d in left)
    if any(d.more.get("port") in ports and (d.more.get("slot") or 0) <= first for d in found) and known:
        return next(iter(known))
    # Of a neighbour that does not answer Linux tells later, and it asks for it.
    told = any(port in ports and slot <= first and compare.is_unresolved(bytes.fromhex(frame)) for slot, port, frame in answers[1]["out"])
    asked = any(port in ports for port, _ in compare.noise_of(answers[0]))
    return "The router answers for itself" if told or asked else None


def behind_filters(case, left):
    """The heading of what differs on purpose where no filters are, if all that is left is what filters make of it where it leaves, and
    all that differs then without them is on purpose."""
    slots = {d.more.get("slot") for d in left}
    open_case = {**without_filters(case), "shows": []}
    if not all(d.kind.startswith("packet") and d.more.get("there", []) + d.more.get("here", []) for d in left) or None in slots or open_case["config"] == case["config"]:
        return None
    (answers,) = both([open_case])
    if any("error" in answer for answer in answers):
        return None
    found = [d for d in compare.differences(open_case, *answers) if d.more.get("slot") in slots]
    rest, known = purpose.without(open_case, *answers, found)
    return next(iter(known)) if not rest and known and filters.made(case, left, found) else None


def without_filters(case):
    """A case without what its ports and tunnels do to packets that leave."""
    config = []
    for words, text in case["config"]:
        if words[0] == "tc":
            lines = text.splitlines(keepends=True)
            # What only says where a tunnel leads takes nothing.
            text = "".join(line for line in lines if re.search(r"filter add dev tun\d egress .* matchall action tunnel_key ", line) and line.count(" action ") == 1 or not re.match(r"filter add dev (p|tun)\d (egress|parent)|(qdisc|class) (add|replace) dev (p|tun)\d (root|parent)", line))
        config.append((words, text))
    return {**case, "config": config}


# ----------------------------------------------------------------------------------------- shrinking


def shrink(seed, lines, packets, wanted, slot=None):
    """Drops lines and packets for as long as a difference of the same kind (`wanted`) is left. Every round tries many
    in one run of both routers, and then to drop all at once that could be dropped alone."""

    def hold(candidates):
        cases = [case_of(f"{seed}", *candidate) for candidate in candidates]
        if wanted.startswith("packet"):
            cases = [{**case, "shows": []} for case in cases]
        return [any(d.kind == wanted for d in differences(case, *answers, alone=False)[0]) for case, answers in zip(cases, both(cases))]

    def without(sequence, chunks):
        gone = {n for chunk in chunks for n in chunk}
        return [x for n, x in enumerate(sequence) if n not in gone]

    def keeps(x):
        # What is down differs for other causes.
        return isinstance(x, str) and re.match(r"ip link set \S+ up$", x)

    def reduce(sequence, make):
        size = max(1, len(sequence) // 4)
        while sequence:
            chunks = [range(n, min(n + size, len(sequence))) for n in range(0, len(sequence), size)]
            chunks = [[n for n in chunk if not keeps(sequence[n])] for chunk in chunks]
            chunks = [chunk for chunk in chunks if chunk]
            held = hold([make(without(sequence, [chunk])) for chunk in chunks])
            loose = [chunk for chunk, ok in zip(chunks, held) if ok]
            while len(loose) > 1 and not hold([make(without(sequence, loose))])[0]:
                loose = loose[: len(loose) // 2]
            if loose:
                sequence = without(sequence, loose)
            elif size == 1:
                break
            if size > 1:
                size = max(1, min(size, len(sequence)) // (3 if loose else 2))
        return sequence

    # First the packets: it is mostly one.
    times = list(dict.fromkeys(at for at, _, _ in packets))
    if slot is not None:
        one = [p for p in packets if p[0] == times[slot]]
        candidates = [(lines, [p]) for p in one] + [(lines, one), (lines, packets[: packets.index(one[-1]) + 1])]
        found = [candidate for candidate, ok in zip(candidates, hold(candidates)) if ok]
        packets = found[0][1] if found else packets
    if len(packets) > 1:
        packets = reduce(packets, lambda rest: (lines, rest))
    return reduce(lines, lambda rest: (rest, packets)), packets


# ---------------------------------------------------------------------------------------------------- main


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer2", action="store_true", help="cases with VLAN devices, bridges, VXLAN and Geneve devices")
    parser.add_argument("--seed", type=int, help="of the first case; random without it")
    parser.add_argument("--count", type=int, default=1, help="how many cases")
    parser.add_argument("--batch", type=int, default=25, help="cases in one boot of Linux")
    parser.add_argument("--print", action="store_true", help="print the cases and run nothing")
    parser.add_argument("--shrink", action="store_true", help="make the first difference of every case as small as it goes")
    parser.add_argument("--kind", help="shrink this kind of difference, not the first")
    parser.add_argument("--quick", action="store_true", help="do not look at counters packet by packet")
    parser.add_argument("--raw", action="store_true", help="what differs on purpose, too")
    parser.add_argument("--save", help="append differences to this file, a JSON line each")
    parser.add_argument("--case", help="run the case of this file instead: lines, and `packet MICROSECONDS PORT HEX`")
    parser.add_argument("--kept", metavar="DIR", help="keep Linux's answers in DIR, and take from there what was asked before")
    parser.add_argument("--record", type=int, metavar="N", help="record N cases without a difference")
    args = parser.parse_args()
    purpose.check(ROOT / "docs" / "differences.md")
    global PROGRAM, KEPT
    if args.kept:
        KEPT = Path(args.kept)
        KEPT.mkdir(parents=True, exist_ok=True)
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 40)
    seeds = range(args.seed, args.seed + args.count)
    if args.print:
        for seed in seeds:
            show_case(*generate(seed, args.layer2))
        return
    PROGRAM = os.environ.get("UNDERPASS_DIFFERENTIAL_PROGRAM") or test_program()
    if args.case:
        sys.exit(run_file(args))
    if args.record:
        return record(args)
    started, wrong, failed, purposes, packets_in = time.time(), 0, 0, {}, 0
    for at in range(0, len(seeds), args.batch):
        batch = [(seed, *generate(seed, args.layer2)) for seed in seeds[at : at + args.batch]]
        cases = [case_of(str(seed), lines, packets) for seed, lines, packets in batch]
        for (seed, lines, packets), case, (there, here) in zip(batch, cases, both(cases)):
            packets_in += len(packets)
            left, known = differences(case, there, here, alone=not args.quick)
            for name, count in known.items():
                purposes[name] = purposes.get(name, 0) + count
            if not left:
                continue
            if left[0].kind == "Linux failed":
                # There is nothing to compare with, which is no difference and no success either.
                failed += 1
                print(f"== seed {seed}: Linux failed: {left[0].what.splitlines()[0]}", flush=True)
                continue
            wrong += 1
            print(f"== seed {seed}: " + ", ".join(sorted({d.kind for d in left})), flush=True)
            if args.shrink:
                wanted = args.kind or left[0].kind
                lines, packets = shrink(seed, lines, packets, wanted, next(d for d in left if d.kind == wanted).more.get("slot"))
                case = case_of(str(seed), lines, packets)
                (there, here), = both([case])
                left, _ = differences(case, there, here)
                show_case(lines, packets)
            for difference in left[: 40 if args.shrink or args.count == 1 else 4]:
                print(difference.text())
            if args.save:
                with open(args.save, "a") as f:
                    f.write(json.dumps({"seed": seed, "all": [(d.kind, d.text()) for d in left]}) + "\n")
    print(f"{len(seeds)} cases from seed {args.seed}, {packets_in} packets, {wrong} with a difference, {failed} at which Linux failed, {time.time() - started:.0f} s")
    for name, count in sorted(purposes.items()):
        print(f"  on purpose: {name}: {count}")
    sys.exit(bool(wrong or failed))


def record(args):
    """Finds cases without a difference, and writes them with what Linux answered: in the router's order, with `.` and
    `*` for what is its own choice. What differs, on purpose or not, is left out of a case."""
    recorded, seed = [], args.seed
    while len(recorded) < args.record:
        batch = [(s, *generate(s, args.layer2)) for s in range(seed, seed + args.batch)]
        seed += args.batch
        for last in (False, True):
            cases = [case_of(str(s), lines, packets) for s, lines, packets in batch]
            left = []
            for (s, lines, packets), case, (there, here) in zip(batch, cases, both(cases)):
                found = compare.differences(case, there, here)
                if found and all("link" in d.more for d in found):
                    # Counters that the router has not, which are 0.
                    found, _ = purpose.without(case, there, here, found)
                if not found:
                    recorded.append({**case, "linux": compare.recorded(case, here)})
                    continue
                gone = {d.more.get("slot") for d in found}
                if None in gone:
                    # Of a neighbour that nobody answers for, Linux tells later.
                    gone |= {slot for slot, _, frame in here["out"] if compare.is_unresolved(bytes.fromhex(frame))}
                if last or not gone - {None} or not all(d.kind.startswith("packet") for d in found):
                    continue
                times = list(dict.fromkeys(at for at, _, _ in packets))
                left.append((s, lines, [p for p in packets if times.index(p[0]) not in gone]))
            batch = left
            print(f"{len(recorded)} recorded, of seeds up to {seed}", flush=True)
            if not batch:
                break
        (HERE / "recorded").mkdir(exist_ok=True)
        text = "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in recorded[: args.record])
        name = "layer2.jsonl.xz" if args.layer2 else "cases.jsonl.xz"
        with lzma.open(HERE / "recorded" / name, "wt", check=lzma.CHECK_CRC32, preset=9) as f:
            f.write(text)


def show_case(lines, packets):
    print("\n".join(lines))
    for at, port, frame in packets:
        print(f"packet {at} {port} {frame}")


def read_case(text):
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "packet "))]
    packets = [line.split()[1:] for line in text.splitlines() if line.startswith("packet ")]
    return lines, [(int(at), int(port), frame) for at, port, frame in packets]


def run_file(args):
    lines, packets = read_case(Path(args.case).read_text())
    case = case_of("0", lines, packets)
    (there, here), = both([case])
    left, known = differences(case, there, here) if not args.raw else (compare.differences(case, there, here), {})
    if args.shrink and left:
        lines, packets = shrink(0, lines, packets, args.kind or left[0].kind)
        show_case(lines, packets)
        case = case_of("0", lines, packets)
        (there, here), = both([case])
        left, known = differences(case, there, here)
    for difference in left:
        print(difference.text())
    print("on purpose:", known, "drops:", here.get("drops"))
    return bool(left)


if __name__ == "__main__":
    main()
