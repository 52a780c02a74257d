#!/usr/bin/python3
"""Records the golden packets: what a real Linux sends for the input of every case.

    UNDERPASS_UML=/path/to/linux tests/golden/record.py                  # every case
    UNDERPASS_UML=/path/to/linux tests/golden/record.py endpoint/end     # those whose name starts so
    tests/golden/record.py --list                                        # names and what they show
    UNDERPASS_UML=... tests/golden/record.py --show endpoint/end         # print, write nothing
    tests/golden/record.py --inputs ip/                                  # rewrite config and in.pcap only
    tests/golden/record.py --check                                       # is what is recorded what scapy builds?

UNDERPASS_UML names a user-mode Linux kernel (`make ARCH=um linux`) with hostfs, veth, network namespaces,
VRF, IPv6 policy rules and SRv6 built in: CONFIG_HOSTFS, VETH, NET_NS, NET_VRF, IPV6_MULTIPLE_TABLES,
IPV6_SEG6_LWTUNNEL, BRIDGE, BRIDGE_VLAN_FILTERING; for qos/cake also NET_SCH_CAKE, for
qos/actions/sample NET_ACT_SAMPLE. It needs no root and no device of this machine: every case runs in a network
namespace inside the guest, whose ports p0 and p1 are veths to the guest's first namespace, where the
frames are injected and captured. The guest sees this machine's files, so it runs this machine's `ip`.
Also needed: python3-scapy (>= 2.5), iproute2 (>= 6.1), mount, bash; ptrace, which the kernel runs on.

What each file of a case holds is told in README.md. The package `cases` holds the cases.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
import uml
from uml import checksum, frame_socket, ip, is_noise, is_of_neighbours, kernel_log, make_ports, read_pcap, ready, received, write_pcap

HERE = Path(__file__).resolve().parent
PORTS = ["p0", "p1"]
PORT_MAC = {"p0": "02:00:00:00:00:01", "p1": "02:00:00:00:00:02"}

# Of the links tun0 to tun9, whose statistics are part of a case.
STATISTICS = [
    (way, name)
    for way, names in [
        ("rx", "packets bytes errors dropped over_errors length_errors crc_errors frame_errors fifo_errors"),
        ("tx", "packets bytes errors dropped aborted_errors fifo_errors carrier_errors collisions"),
    ]
    for name in names.split()
]

# The source ports of flows, by the destination port: those of `encap-sport auto` and of
# `vxlan`; of `bareudp`, and with `srcportmin 60000`; of `geneve`.
FLOW_PORTS = {6081: (1, 65534), 5555: (32768, 60999), 4789: (32768, 60999), 4790: (32768, 60999), 6635: (0, 65535), 6636: (60000, 65535)}

# Variables that Underpass has and Linux has not.
OURS = {"net.mpls.tc_propagate"}


# --------------------------------------------------------------------------------- inside the guest


def link_statistics():
    """Of the links tun0 to tun9: by name, in the order of STATISTICS."""
    links = json.loads(ip("-j", "-s", "-s", "link", "show"))
    of = lambda link: [link["stats64"][way].get(name, 0) for way, name in STATISTICS]
    return {link["ifname"]: of(link) for link in links if re.fullmatch(r"tun\d", link["ifname"])}


def statistics_lines(before, after):
    """What has been counted since `before`, a line a link; what is 0 is not named."""
    lines = []
    for name, counts in sorted(after.items()):
        since = [b - a for a, b in zip(before[name], counts)]
        words = [f"{way}_{what} {n}" for (way, what), n in zip(STATISTICS, since) if n]
        lines.append(" ".join([name, *words]) + "\n")
    return "".join(lines)


def newer_tool(name):
    """The words by which a tool is run that `scripts/newer-tools.sh` has unpacked, with its own loader and libraries."""
    tree = HERE.parent.parent / "target/newer"
    found = [path for path in (tree / "bin" / name, tree / "sbin" / name) if path.exists()]
    if not found:
        raise RuntimeError("scripts/newer-tools.sh has not been run")
    (loader,), (libraries,) = tree.glob("lib64/ld-linux*"), tree.glob("lib/*-linux-gnu")
    return [str(loader), "--library-path", str(libraries), str(found[0])]


def configure(config, newer):
    """Gives the router its configuration; by `newer` tools."""
    # A batch for each run of lines with the same family: -batch takes no options of its own. What a line reads
    # from its input (<<< 'text') follows it there.
    split = [
        re.match(r"(sysctl -qw |tc |bridge |ip (?:-[46] |-f mpls )?)(.*?)(?: <<< '(.*)')?$", line).groups() for line in config if line.strip()
    ]
    for tool, lines in itertools.groupby(split, lambda line: line[0]):
        lines = list(lines)
        if tool == "tc " and any(" root " in line for _, line, _ in lines):
            time.sleep(2.5)  # A queue counts what Linux tells of its multicast groups, too, until it has told it twice.
        if tool == "sysctl -qw ":
            for _, setting, _ in lines:
                name, value = setting.split("=")
                if name not in OURS:
                    Path("/proc/sys", name.replace(".", "/")).write_text(value)
            continue
        batch = "".join(f"{line}\n" + ("" if text is None else f"{text}\n") for _, line, text in lines)
        name, *options = tool.split()
        program, *before = newer_tool(name) if newer else [name]
        ip(*before, *options, "-batch", "-", lines=batch, tool=program)


def shown(commands):
    """What `tc` shows, command by command, without how long ago an action was made and used."""
    text = "".join(f"$ {line}\n" + ip(*line.split()[1:], tool="tc") for line in commands)
    # An age is shown from a hundredth of a second on.
    text = re.sub(r" (installed|used|firstused) \d+ sec", "", text)
    # Tokens grow with time.
    text = re.sub(r"tokens: -?\d+ ctokens: -?\d+", "tokens: N ctokens: N", text)
    # So does what is left until a flow may send.
    text = re.sub(r" next_packet_delay \w+", "", text)
    # What a cake shows of time, and of Linux's memory.
    text = re.sub(r"^(  \w\w_delay).*", r"\1", text, flags=re.M)
    text = re.sub(r"memory used: \w+", "memory used: N", text)
    return re.sub(r" +$", "", text, flags=re.M)


def guest_case(number, case):
    """Runs one case; returns what left and the counters."""
    (done_read, done_write), (go_read, go_write) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_read)
        os.close(go_write)
        try:
            make_ports(PORT_MAC, number)
            os.write(done_write, b"+")
            os.read(go_read, 1)
            configure(case["config"], case["newer"])
            before = link_statistics()
            os.write(done_write, b"+")
            os.read(go_read, 1)
            counters = {
                "counters": ip("-6", "-s", "route", "show"),
                "links": statistics_lines(before, link_statistics()),
                "shows": shown(case["shows"]),
            }
            os.write(done_write, json.dumps(counters).encode())
        except (RuntimeError, OSError) as error:
            os.write(done_write, f"-{error}".encode())
        os._exit(0)
    os.close(done_write)
    os.close(go_read)
    with open(done_read, "rb", buffering=0) as done:
        try:
            ready(done)
            names = {port: f"q{i}n{number}" for i, port in enumerate(PORTS)}
            ip("-batch", "-", lines="".join(f"link set {q} up\n" for q in names.values()))
            os.write(go_write, b"+")
            ready(done)
            sockets = {port: frame_socket(q) for port, q in names.items()}
            for s in sockets.values():
                received(s)
            out = []
            for number, (port, frame) in enumerate(case["frames"]):
                sockets[port].send(bytes.fromhex(frame))
                # The packet's whole path is taken before send returns: one CPU, and veth's soft interrupt
                # runs when send lets it. Nothing is waited for.
                for at, s in sockets.items():
                    out += [(at, number, f.hex()) for f in received(s)]
            for s in sockets.values():
                s.close()
        finally:
            os.close(go_write)
            os.waitpid(child, 0)
        return {"out": out, **json.loads(done.read())}


def guest(work):
    """The first program of the guest."""
    work = uml.enter(work)
    os.chdir(HERE)  # where configurations find their BPF programs
    answers = []
    for number, case in enumerate(json.loads((work / "cases.json").read_text())):
        print("CASE " + case["name"], flush=True)
        try:
            answers.append(guest_case(number, case))
        except (RuntimeError, OSError) as error:
            answers.append({"error": f"{error}"})
        answers[-1]["log"] = kernel_log()
    (work / "answers.json").write_text(json.dumps(answers))
    uml.leave()


# ------------------------------------------------------------------------------------ on the machine


def run_guest(cases):
    """Boots the kernel, runs the cases in it, returns its answers."""
    with tempfile.TemporaryDirectory(prefix="underpass-golden-") as work:
        Path(work, "cases.json").write_text(
            json.dumps(
                [
                    {
                        "name": c.name,
                        "config": [line for line in c.config if not line.startswith("#")],
                        "frames": [(port, bytes(frame).hex()) for port, frame in c.frames],
                        "shows": c.shows,
                        "newer": c.newer,
                    }
                    for c in cases
                ]
            )
        )
        said = uml.boot(HERE / "record.py", work)
        answers = Path(work, "answers.json")
        if not answers.exists():
            sys.exit("record.py: the guest died:\n" + said[-3000:])
        return json.loads(answers.read_text())


# Addresses of the router's, as they are in the cases.
OWN4 = (b"\xc0\0\2\1", b"\xc6\x33\x64\1", b"\x0a\6\0\1")


def behind_tags(frame, change):
    """What `change` makes of a frame without its VLAN tags, with them."""
    at = 12
    while frame[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    changed = change(frame[:12] + frame[at:])
    return changed[:12] + frame[12:at] + changed[12:]


def own_identification(frame):
    """IPv4 packets that the router itself makes: ICMP. Their identification is random in Linux; 0 here. Inside other headers
    those that come from an address of the router's."""
    at, kind = 14, frame[12:14]
    if kind == b"\x88\x47":
        while at + 4 < len(frame) and not frame[at + 2] & 1:
            at += 4
        at, kind = at + 4, b"\x08\x00"
    elif kind == b"\x86\xdd" and frame[20] == 43 and frame[54] == 4:
        at, kind = 54 + 8 * (frame[55] + 1), b"\x08\x00"
    elif kind == b"\x08\x00" and frame[23] == 4:
        at = 14 + 4 * (frame[14] & 15)
    if kind != b"\x08\x00" or len(frame) < at + 21 or frame[at] >> 4 != 4 or frame[at + 9] != 1:
        return frame
    size = 4 * (frame[at] & 15)
    if frame[at + 20] in (0, 3, 4, 5, 11, 12) and (at == 14 or frame[at + 12 : at + 16] in OWN4):
        header = bytearray(frame[at : at + size])
        header[4:6] = header[10:12] = b"\0\0"
        header[10:12] = struct.pack("!H", checksum(header))
        frame = frame[:at] + bytes(header) + frame[at + size :]
    return frame


def own_tunnel(frame):
    """What Linux chooses for the outer headers of a tunnel whose packets it sends from the addresses of its ports:
    the identification of IPv4, and the UDP source port where it is that of the flow. Both are 0 here."""
    frame, kind = bytearray(frame), bytes(frame[12:14])
    if kind == b"\x08\x00" and bytes(frame[26:30]) in (b"\xc0\x00\x02\x01", b"\xc6\x33\x64\x01"):
        at, protocol, whole = 14 + 4 * (frame[14] & 15), frame[23], not int.from_bytes(frame[20:22], "big") & 0x1FFF
        frame[18:20] = frame[24:26] = b"\0\0"
        frame[24:26] = struct.pack("!H", checksum(frame[14:at]))
    elif kind == b"\x86\xdd" and frame[22:26] == b"\x20\x01\x0d\xb8" and frame[28:38] == bytes(9) + b"\1":
        at, protocol, whole = 54, frame[20], True
        if protocol == 60 and frame[55] == 0:  # the encapsulation limit
            at, protocol = 62, frame[54]
    else:
        return bytes(frame)
    first, last = FLOW_PORTS.get(int.from_bytes(frame[at + 2 : at + 4], "big"), (1, 0))
    if protocol == 17 and whole and first <= last:
        (port, sum) = struct.unpack("!HxxxxH", frame[at : at + 8])
        if first <= port <= last:
            frame[at : at + 2] = b"\0\0"
            if sum:
                # RFC 1624: the sum without the port; 0 is sent as 0xffff.
                without = (~sum & 0xFFFF) + (~port & 0xFFFF)
                without = (without & 0xFFFF) + (without >> 16)
                frame[at + 6 : at + 8] = struct.pack("!H", ~without & 0xFFFF or 0xFFFF)
    return bytes(frame)


def own_fragments(frame):
    """The identification of fragments that the router makes of IPv6, from an address of its own, and of its own IPv4 packets
    inside other headers, which is random in Linux: 0 here."""
    frame, at, kind = bytearray(frame), 14, bytes(frame[12:14])
    if kind == b"\x88\x47":
        while at + 4 < len(frame) and not frame[at + 2] & 1:
            at += 4
        at += 4
        following = {4: 4, 6: 41}.get(frame[at] >> 4) if at < len(frame) else None
    else:
        following = {b"\x08\x00": 4, b"\x86\xdd": 41}.get(kind)
    while following in (4, 41, 47) and at + 40 <= len(frame):
        if following == 4:
            size = 4 * (frame[at] & 15)
            if at > 14 and frame[at + 12 : at + 16] in OWN4:
                frame[at + 4 : at + 6] = frame[at + 10 : at + 12] = bytes(2)
                frame[at + 10 : at + 12] = struct.pack("!H", checksum(bytes(frame[at : at + size])))
            if int.from_bytes(frame[at + 6 : at + 8], "big") & 0x1FFF:
                break
            following, at = frame[at + 9], at + size
        elif following == 47:
            following, at = {b"\x08\x00": 4, b"\x86\xdd": 41}.get(bytes(frame[at + 2 : at + 4])), at + 4
        else:
            own = frame[at + 8 : at + 12] == b"\x20\x01\x0d\xb8" and frame[at + 14 : at + 24] == bytes(9) + b"\1"
            following, at = frame[at + 6], at + 40
            while following in (0, 43, 60) and at + 8 <= len(frame):
                following, at = frame[at], at + 8 * (frame[at + 1] + 1)
            if following == 44 and at + 8 <= len(frame):
                if own:
                    frame[at + 4 : at + 8] = bytes(4)
                if int.from_bytes(frame[at + 2 : at + 4], "big") >> 3:
                    break
                following, at = frame[at], at + 8
    return bytes(frame)


def own_time(frame, number):
    """The time in the data that the router has put into an IOAM trace: that of the input, which is its number
    in seconds, or into a timestamp reply. The time is told from other data by its being now."""
    frame, now = bytearray(frame), time.time()
    icmp = 14 + 4 * (frame[14] & 15)
    if frame[12:14] == b"\x08\0" and frame[23] == 1 and icmp + 20 <= len(frame) and frame[icmp] == 14:
        frame[icmp + 12 : icmp + 20] = struct.pack("!2I", number * 1000, number * 1000)
        frame[icmp + 2 : icmp + 4] = b"\0\0"
        frame[icmp + 2 : icmp + 4] = struct.pack("!H", checksum(bytes(frame[icmp:])))
        return bytes(frame)
    if frame[12:14] != b"\x86\xdd" or frame[20] != 0:
        return bytes(frame)
    at, end = 56, 54 + 8 * (frame[55] + 1)
    while at + 2 <= end:
        if frame[at] == 0:
            at += 1
            continue
        size = frame[at + 1]
        if frame[at] == 0x31 and frame[at + 3] == 0 and size >= 10 and at + 2 + size <= len(frame):
            kind = int.from_bytes(frame[at + 8 : at + 11], "big")
            node = at + 12 + 4 * (frame[at + 7] & 127)
            has = [kind >> 23 - bit & 1 for bit in range(4)]
            seconds = node + 4 * (has[0] + has[1])
            micros = seconds + 4 * has[2]
            told = int.from_bytes(frame[seconds : seconds + 4], "big")
            if has[2] and abs(told - now) < 3600:
                frame[seconds : seconds + 4] = struct.pack("!I", number)
            if has[3] and (not has[2] or abs(told - now) < 3600):
                if int.from_bytes(frame[micros : micros + 4], "big") < 1000000:
                    frame[micros : micros + 4] = bytes(4)
        at += 2 + size
    return bytes(frame)


def sent(case, answer):
    """Port name to [(number of the input, frame)]."""
    out = {port: [] for port in PORTS}
    for port, number, frame in answer["out"]:
        frame = bytes.fromhex(frame)
        if not is_noise(frame) or case.neighbours and is_of_neighbours(frame):
            out[port].append((number, behind_tags(frame, lambda frame: own_time(own_fragments(own_tunnel(own_identification(frame))), number))))
    return out


def render(number, port, frame):
    from scapy.all import Ether
    import scapy.layers.inet6, scapy.layers.l2  # noqa: F401

    return f"  {number:3} {port} {len(frame):4} {Ether(frame).summary()}\n      {frame.hex(' ', 4)}"


def write_inputs(case):
    where = HERE / case.name
    where.mkdir(parents=True, exist_ok=True)
    (where / "config").write_text("\n".join(case.header() + case.config) + "\n")
    for port in PORTS:
        path = where / ("in.pcap" if port == "p0" else f"in-{port}.pcap")
        frames = [(i, bytes(f)) for i, (at, f) in enumerate(case.frames) if at == port]
        if frames or port == "p0":
            write_pcap(path, frames)
        else:
            path.unlink(missing_ok=True)


def write_outputs(case, answer):
    where, out = HERE / case.name, sent(case, answer)
    expected = case.expected()
    for port in PORTS:
        if expected is not None:
            wanted = expected[port]
            if case.differs:
                write_pcap(where / f"linux-{port}.pcap", out[port])
                write_pcap(where / f"out-{port}.pcap", wanted)
                continue
            if [(n, f) for n, f in out[port]] != wanted:
                report_difference(case, port, out[port], wanted)
        write_pcap(where / f"out-{port}.pcap", out[port])
    if case.differs and all(out[p] == expected[p] for p in PORTS) and not case.counters:
        print(f"{case.name}: Linux sends what is expected; it no longer differs")
    if answer["links"] and case.links:
        (where / "links").write_text(answer["links"])
    if case.shows:
        (where / "shows").write_text(answer["shows"])
    if any(" count" in line for line in case.config):
        text = answer["counters"]
        if case.counters == "errors":  # every packet should have been refused
            (where / "linux-counters").write_text(text)
            text = re.sub(
                r"packets \d+ bytes \d+ errors \d+", f"packets 0 bytes 0 errors {len(case.frames)}", text
            )
        (where / "counters").write_text(text)


def check(case):
    """Compares the files of a case with what the package `cases` says now. Needs no kernel."""
    where, wrong = HERE / case.name, 0
    if (where / "config").read_text() != "\n".join(case.header() + case.config) + "\n":
        print(f"{case.name}: the configuration has changed since it was recorded")
        wrong = 1
    for port in PORTS:
        path = where / ("in.pcap" if port == "p0" else f"in-{port}.pcap")
        frames = [(i, bytes(f)) for i, (at, f) in enumerate(case.frames) if at == port]
        if (read_pcap(path) if path.exists() else []) != frames:
            print(f"{case.name}: the input of {port} has changed since it was recorded")
            wrong = 1
        expected, recorded = case.expected(), read_pcap(where / f"out-{port}.pcap")
        if expected is not None and expected[port] != recorded:
            report_difference(case, port, recorded, expected[port])
            wrong = 1
    return wrong


def report_difference(case, port, linux, wanted):
    print(f"{case.name}: {port}: Linux does not send what scapy builds")
    for i in range(max(len(linux), len(wanted))):
        a, b = (x[i] if i < len(x) else None for x in (linux, wanted))
        if a != b:
            print(
                "    linux:",
                a and f"{a[0]} {a[1].hex(' ', 4)}",
                "\n    scapy:",
                b and f"{b[0]} {b[1].hex(' ', 4)}",
            )


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--guest":
        guest(sys.argv[2])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="cases whose name starts so")
    parser.add_argument("--list", action="store_true", help="names and one-line descriptions")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare what is recorded with scapy's packets; no kernel is needed",
    )
    parser.add_argument("--show", action="store_true", help="print what Linux sends; write nothing")
    parser.add_argument(
        "--inputs", action="store_true", help="write config and inputs only; no kernel is needed"
    )
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from cases import CASES

    cases = [c for c in CASES if not args.names or any(c.name.startswith(n) for n in args.names)]
    if args.list:
        for case in cases:
            print(f"{case.name:40} {case.doc}")
        return
    if args.check:
        wrong = sum(check(case) for case in cases)
        print(
            f"{len(cases)} cases, {sum(c.expect is not None for c in cases)} of them with packets built by scapy, {wrong} differ"
        )
        sys.exit(bool(wrong))
    if not args.show:
        for case in cases:
            if not args.names:
                shutil.rmtree(HERE / case.name, ignore_errors=True)
            write_inputs(case)
        if args.inputs:
            return
    failed = 0
    for case, answer in zip(cases, run_guest(cases)):
        if "error" in answer:
            print(f"{case.name}: {answer['error']}")
            failed += 1
        elif args.show:
            print(f"{case.name}: {len(case.frames)} in")
            print(answer["shows"], end="")
            for i, (port, frame) in enumerate(case.frames):
                print(f"{i:3} {case.labels[i]}")
                print(
                    "  ".join(
                        [""]
                        + [
                            render(n, p, f)[2:] + "\n"
                            for p, l in sent(case, answer).items()
                            for n, f in l
                            if n == i
                        ]
                    ).rstrip("\n")
                    or "      nothing"
                )
            print(
                "\n".join(
                    "      " + l for l in answer["counters"].splitlines() if "seg6" in l or "packets" in l
                )
            )
            print(answer["links"], end="")
            if answer["log"]:
                print("      kernel: " + answer["log"].strip())
        else:
            write_outputs(case, answer)
    print(f"{len(cases) - failed} cases recorded" + (f", {failed} failed" if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
