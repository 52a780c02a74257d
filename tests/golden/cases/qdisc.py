"""Queueing disciplines: which packets pass, which wait, and every counter.

Nothing depends on the time between two packets: rates are some bytes a second, so that what a bucket holds at first
decides, and no packet is as long as what is left in one.
"""

import random

from scapy.all import TCP

from .frames import *
from .qos import sized

ROOT, CLASSES = "tc -s -d qdisc show dev p1", "tc -s class show dev p1"
IFB = ["ip link add ifb0 type ifb", "ip link set ifb0 addrgenmode none", "ip link set ifb0 up", "tc qdisc add dev p0 clsact"]
IFB_ROOT, IFB_CLASSES = "tc -s -d qdisc show dev ifb0", "tc -s class show dev ifb0"
SLOW = "rate 80bit burst 1000 cburst 1000"


def queues(name, doc, lines, frames, shows=(ROOT, CLASSES)):
    """`lines` are whole."""
    frames = [(label, *([ether(p)] if not isinstance(p, Ether) else [p])) for label, p in frames]
    Case(f"qos/{name}", doc, BASE + lines, frames, shows=shows, remembers=True, links=False)


def to(port, *lengths):
    """UDP packets to a port."""
    return [(f"{n} bytes to port {port}", ip4() / UDP(sport=1111, dport=port) / payload(n - 28)) for n in lengths]


def port(number, flow, dev="p1", parent="1:", prio=1):
    """A filter that leads packets to a UDP port to a class."""
    return f"tc filter add dev {dev} parent {parent} protocol ip prio {prio} u32 match ip dport {number} 0xffff flowid {flow}"


# ------------------------------------------------------------------------------------------ plain queues

for kind in ["pfifo", "pfifo limit 1", "bfifo limit 1000", "pfifo_fast", "fq_codel", "prio", "sfq"]:
    queues(
        f"{kind.replace(' ', '-')}",
        f"{kind}: nothing has to wait.",
        [f"tc qdisc add dev p1 root handle 1: {kind}"],
        sized(300, 1000, 28, 1400) + [("IPv6", ip6() / udp())],
    )
queues(
    "fq_codel-filtered",
    "fq_codel: where it has a filter, that sees what has to wait for nobody, too.",
    ["tc qdisc add dev p1 root handle 1: fq_codel", "tc filter add dev p1 parent 1: protocol ip matchall action drop"],
    sized(300) + [("IPv6", ip6() / udp())],
)
queues(
    "sfq-waiting",
    "sfq in tbf: a queue that is full, and filters that lead packets to queues.",
    [
        "tc qdisc add dev p1 root handle 1: tbf rate 80bit burst 1000 limit 10k",
        "tc qdisc add dev p1 parent 1:1 handle 2: sfq depth 2",
        port(2001, "2:1", parent="2:"),
        port(2002, "2:2", parent="2:"),
        port(2003, "2:2000", parent="2:"),
    ],
    to(2001, 900, 300, 300) + to(2002, 300, 100, 100, 100) + to(2001, 50, 60) + to(2003, 70) + to(2004, 80),
    shows=(ROOT,),
)
queues(
    "fq_codel-redirected",
    "fq_codel: what an action sends there has to wait for nobody either.",
    ["tc qdisc add dev p1 root handle 1: fq_codel", "tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress matchall action mirred egress redirect dev p1"],
    sized(300, 28),
)
for kind in ("redirect", "mirror"):
    queues(
        f"prio-{kind}-to-itself",
        f"prio: of what a filter has sent by the same link ({kind}) the qdisc takes nothing, as it is about to take a packet.",
        ["tc qdisc add dev p1 root handle 1: prio", f"tc filter add dev p1 parent 1: protocol ip matchall action mirred egress {kind} dev p1"],
        sized(300, 28) + [("IPv6", ip6() / udp())],
        shows=(ROOT, "tc -s filter show dev p1 parent 1:"),
    )
queues(
    "prio-filters",
    "prio: filters lead to bands.",
    ["tc qdisc add dev p1 root handle 1: prio bands 4", port(2001, "1:1"), port(2002, "1:4"), port(2003, "1:9")],
    to(2001, 100, 200) + to(2002, 300) + to(2003, 400) + sized(500),
)

for kind, options in [("prio", "bands 3 priomap 0 0 0 0 1 1 1 1 2 2 2 2 0 0 0 0"), ("htb", "default 2"), ("sfq", ""), ("fq_codel", "")]:
    queues(
        f"{kind}-no-class",
        f"{kind}: a filter that leads to no class takes packets all the same.",
        [f"tc qdisc add dev p1 root handle 1: {kind} {options}"]
        + ["tc class add dev p1 parent 1: classid 1:2 htb rate 1mbit"] * (kind == "htb")
        + ["tc filter add dev p1 parent 1: protocol ip prio 1 matchall action pipe"],
        sized(100, 200) + [("IPv6", ip6() / udp())],
    )

# ------------------------------------------------------------------------------------------ tbf

for name, options, frames in [
    ("burst", "rate 80bit burst 1000 limit 10k", sized(300, 300, 300, 300, 100)),
    ("limit", "rate 80bit burst 1000 limit 700", sized(300, 300, 300, 300, 300, 300, 28)),
    ("limit-0", "rate 80bit burst 1000 limit 1", sized(300, 300, 300, 300, 100)),
    ("too-long", "rate 800bit burst 600 limit 10k", sized(580, 600, 28, 700)),
    ("mpu", "rate 80bit burst 1000 limit 10k mpu 400", sized(28, 28, 28, 28)),
    ("overhead", "rate 80bit burst 1000 limit 10k overhead 100", sized(300, 300, 300)),
    ("atm", "rate 80bit burst 1000 limit 10k linklayer atm", sized(300, 300, 300, 100, 48)),
    ("peakrate", "rate 80bit burst 1000 limit 10k peakrate 160bit minburst 600", sized(300, 200, 100, 300, 28)),
    ("peakrate-mtu", "rate 80bit burst 1000 limit 10k peakrate 160bit mtu 400", sized(300, 200, 500, 100, 28)),
]:
    queues(f"tbf/{name}", f"tbf {options}.", [f"tc qdisc add dev p1 root handle 1: tbf {options}"], frames)
queues(
    "tbf/pfifo",
    "tbf with a pfifo in it.",
    [
        "tc qdisc add dev p1 root handle 1: tbf rate 80bit burst 1000 limit 10k",
        "tc qdisc add dev p1 parent 1:1 handle 2: pfifo limit 2",
    ],
    sized(*[300] * 8),
)

# ------------------------------------------------------------------------------------------ htb

ONE = ["tc qdisc add dev p1 root handle 1: htb default 1", f"tc class add dev p1 parent 1: classid 1:1 htb {SLOW}"]
queues("htb/one", "One class, into which all goes.", ONE, sized(*[300] * 6))
queues(
    "htb/limit",
    "Its queue holds two packets.",
    ONE + ["tc qdisc add dev p1 parent 1:1 pfifo limit 2"],
    sized(*[300] * 8),
)
queues(
    "htb/direct",
    "What no filter classifies goes unshaped where there is no default class.",
    ["tc qdisc add dev p1 root handle 1: htb", f"tc class add dev p1 parent 1: classid 1:1 htb {SLOW}", port(2001, "1:1")],
    sized(300, 300) + to(2001, 300, 300, 300, 300, 300),
)
TREE = [
    "tc qdisc add dev p1 root handle 1: htb default 20",
    "tc class add dev p1 parent 1: classid 1:1 htb rate 80bit burst 2000 cburst 2000",
    "tc class add dev p1 parent 1:1 classid 1:10 htb rate 80bit burst 700 ceil 80bit cburst 700",
    "tc class add dev p1 parent 1:1 classid 1:20 htb rate 8bit burst 200 ceil 80bit cburst 2000",
    port(2001, "1:10"),
]
queues("htb/borrow", "A class sends what its parent lends it.", TREE, sized(*[200] * 8))
queues("htb/ceil", "A class does not exceed its ceil.", TREE, to(2001, *[200] * 6))
queues("htb/share", "Two classes share what their parent has.", TREE, [f for _ in range(6) for f in to(2001, 200) + sized(300)])
queues(
    "htb/inner",
    "A filter leads to a class with others below it, whose own filter chooses one of these.",
    TREE[:4] + [port(2001, "1:1"), port(2001, "1:10", parent="1:1")],
    to(2001, *[200] * 5) + sized(300),
)
queues(
    "htb/overhead",
    "Packets are longer on the wire.",
    [ONE[0], f"tc class add dev p1 parent 1: classid 1:1 htb {SLOW} overhead 86 mpu 200"],
    sized(200, 200, 28, 28, 28, 200),
)

DEEP = [
    "tc qdisc add dev p1 root handle 1: htb default 30",
    "tc class add dev p1 parent 1: classid 1:1 htb rate 80bit burst 2000 cburst 2000",
    "tc class add dev p1 parent 1:1 classid 1:2 htb rate 80bit burst 2000 cburst 2000",
    "tc class add dev p1 parent 1:2 classid 1:30 htb rate 80bit burst 2000 cburst 2000",
]
TBF = "tbf rate 80bit burst 700 limit"
queues("htb/tbf", "A tbf in a class lets less go than the class.", ONE + [f"tc qdisc add dev p1 parent 1:1 handle 2: {TBF} 10k"], sized(*[300] * 6))
queues("htb/tbf-limit", "It has no room.", ONE + [f"tc qdisc add dev p1 parent 1:1 handle 2: {TBF} 700"], sized(*[300] * 6))
queues(
    "htb/tbf-beside",
    "A tbf that lets nothing go is asked, and counts that, each time that another class is served.",
    [
        "tc qdisc add dev p1 root handle 1: htb default 20",
        "tc class add dev p1 parent 1: classid 1:10 htb rate 80bit burst 2000 cburst 2000",
        "tc class add dev p1 parent 1: classid 1:20 htb rate 80bit burst 2000 cburst 2000",
        f"tc qdisc add dev p1 parent 1:10 handle 2: {TBF} 10k",
        port(2001, "1:10"),
    ],
    to(2001, 300, 300, 300) + sized(200, 200, 200),
)
queues("htb/deep-tbf", "Three levels.", DEEP + [f"tc qdisc add dev p1 parent 1:30 handle 2: {TBF} 10k"], sized(*[300] * 6))
queues("htb/deep-tbf-limit", "Three levels, and no room.", DEEP + [f"tc qdisc add dev p1 parent 1:30 handle 2: {TBF} 700"], sized(*[300] * 6))

# ------------------------------------------------------------------------------------------ ifb

REDIRECT = "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev ifb0"
Case(
    "qos/ifb/itself",
    "What comes in at an ifb and is sent to it comes in there.",
    BASE
    + IFB
    + [
        "tc qdisc add dev ifb0 clsact",
        "tc filter add dev p0 ingress protocol all prio 1 matchall action mirred ingress redirect dev ifb0",
        "tc filter add dev ifb0 ingress protocol all prio 1 matchall action mirred egress redirect dev ifb0",
    ],
    [
        ("IPv4", ether(ip4() / udp())),
        ("IPv6", ether(ip6() / udp())),
        ("IPv4, no way", ether(ip4("10.99.0.1") / udp())),
        ("IPv6, no way", ether(ip6("2001:db8:99::1") / udp())),
        ("a ping of the router", ether(ip4("192.0.2.1") / ICMP(type=8, id=1, seq=1))),
        ("for another station", ether(ip4() / udp(), dst="02:00:00:00:00:77")),
    ],
    shows=("tc -s filter show dev p0 ingress", "tc -s filter show dev ifb0 ingress"),
    links=False,
)
INGRESS = "tc -s filter show dev p0 ingress"
queues("ifb/plain", "To an ifb and back.", IFB + [REDIRECT, "tc qdisc add dev ifb0 root handle 1: pfifo"], sized(300, 28), (IFB_ROOT, INGRESS))
queues(
    "ifb/htb",
    "What comes in is shaped by an htb at an ifb.",
    IFB + [REDIRECT] + [line.replace("dev p1", "dev ifb0") for line in TREE],
    [f for _ in range(6) for f in to(2001, 200) + sized(300)],
    (IFB_ROOT, IFB_CLASSES, INGRESS),
)
LIMITED = [line.replace("dev p1", "dev ifb0") for line in ONE + ["tc qdisc add dev p1 parent 1:1 handle 2: pfifo limit 2"]]
NEXT = "tc filter add dev p0 ingress protocol ip prio 50000 matchall action ok"
INGRESS_QDISC = "tc -s qdisc show dev p0"
for name, doc, filters in [
    ("limit", "What the qdisc of an ifb has no room for is an overlimit of the redirect.", [REDIRECT]),
    ("limit-next", "And the filter behind it is not asked.", [REDIRECT, NEXT]),
    (
        "limit-u32",
        "By u32.",
        ["tc filter add dev p0 ingress protocol ip prio 1 u32 match u32 0 0 action mirred egress redirect dev ifb0"],
    ),
    (
        "limit-mirror",
        "Of a copy.",
        ["tc filter add dev p0 ingress protocol ip prio 1 matchall action mirred egress mirror dev ifb0"],
    ),
    (
        "limit-pipe",
        "Of an action after another.",
        [
            "tc filter add dev p0 ingress protocol ip prio 1 matchall action skbedit mark 1 pipe "
            "action mirred egress redirect dev ifb0"
        ],
    ),
]:
    queues(f"ifb/{name}", doc, IFB + filters + LIMITED, sized(*[300] * 8), (IFB_ROOT, IFB_CLASSES, INGRESS, INGRESS_QDISC))
queues(
    "ifb/tbf-limit",
    "tbf at an ifb has no room.",
    IFB + [REDIRECT, "tc qdisc add dev ifb0 root handle 1: tbf rate 80bit burst 1000 limit 700"],
    sized(300, 300, 300, 300, 300, 300, 28),
    (IFB_ROOT, INGRESS, INGRESS_QDISC),
)
queues(
    "ifb/egress-limit",
    "What leaves is redirected to an ifb whose qdisc has no room.",
    IFB
    + ["tc qdisc add dev p1 clsact", "tc filter add dev p1 egress protocol ip matchall action mirred egress redirect dev ifb0"]
    + LIMITED,
    sized(*[300] * 8),
    # Linux classifies those that come back once more, without their actions, and counts them twice.
    (IFB_ROOT, IFB_CLASSES),
)
queues(
    "ifb/port-limit",
    "What comes in is redirected to a port whose qdisc has no room.",
    ["tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev p1"]
    + ONE
    + ["tc qdisc add dev p1 parent 1:1 handle 2: pfifo limit 2"],
    sized(*[300] * 8),
    (ROOT, CLASSES, INGRESS),
)
queues(
    "ifb/egress-drop",
    "What a filter of the ifb drops is an overlimit of the redirect.",
    IFB
    + [
        REDIRECT,
        "tc qdisc add dev ifb0 clsact",
        "tc filter add dev ifb0 egress protocol ip u32 match ip dport 2001 0xffff action drop",
    ],
    sized(300) + to(2001, 300, 200),
    (INGRESS, "tc -s filter show dev ifb0 egress"),
)
queues(
    "redirected-in-again",
    "A filter of a qdisc mirrors to come in by another port what then waits in that qdisc again.",
    ["tc qdisc add dev p1 root handle 1: htb default 1"]
    + ["tc filter add dev p1 parent 1: protocol ip prio 1 matchall action mirred ingress mirror dev p0"],
    [("IPv4", ip4() / udp()), ("TTL 3", ip4(ttl=3) / udp()), ("IPv6", ip6() / udp())],
    shows=["tc -s filter show dev p1"],
)

# ------------------------------------------------------------------------------------------ netem


def marked(ecn):
    packet = ip4()
    packet.tos |= ecn
    return packet


for name, options, frames in [
    ("plain", "", sized(300, 1000, 28)),
    ("loss", "loss 100%", sized(300, 300)),
    ("loss-ecn", "loss 100% ecn", [(f"ECN {ecn}", marked(ecn) / udp(30)) for ecn in range(4)] + [("IPv6", ip6() / udp())]),
    ("duplicate", "duplicate 100%", sized(300, 100)),
    ("limit", "limit 2 delay 200s", sized(300, 300, 300)),
    ("reorder", "delay 200s reorder 100% gap 3", sized(300, 100, 28, 300, 100, 28, 300)),
    ("rate", "rate 8bit 10 20 5", sized(300, 100)),
]:
    queues(f"netem/{name}", f"netem {options}.", [f"tc qdisc add dev p1 root handle 1: netem {options}"], frames)
queues(
    "netem/inside",
    "netem with a pfifo in it, in a class of HTB.",
    [
        "tc qdisc add dev p1 root handle 1: htb default 2",
        "tc class add dev p1 parent 1: classid 1:2 htb rate 1mbit",
        "tc qdisc add dev p1 parent 1:2 handle 2: netem duplicate 100%",
        "tc qdisc add dev p1 parent 2:1 handle 3: pfifo limit 7",
    ],
    sized(300, 100),
)

# ------------------------------------------------------------------------------------------ red

# Both averages are the same but for a byte, so that chance has no part.
EARLY = "min 1000 max 1001 avpkt 500 burst 3 probability 0.5 bandwidth 1mbit"
for name, options, frames in [
    ("early", f"limit 10000 {EARLY}", sized(*[500] * 24)),
    ("full", "limit 1200 min 60000 max 60001 avpkt 1000 burst 61", sized(*[500] * 6)),
    ("ecn", f"limit 10000 {EARLY} ecn", [(f"ECN {n % 4}", marked(n % 4) / udp(500)) for n in range(24)]),
    ("hard", f"limit 10000 {EARLY} ecn harddrop", [(f"ECN {n % 4}", marked(n % 4) / udp(500)) for n in range(24)]),
    ("nodrop", f"limit 10000 {EARLY} ecn nodrop", [(f"ECN {n % 4}", marked(n % 4) / udp(500)) for n in range(24)]),
]:
    queues(
        f"red/{name}",
        f"red {options}.",
        [
            "tc qdisc add dev p1 root handle 1: tbf rate 80bit burst 1000 limit 100k",
            f"tc qdisc add dev p1 parent 1:1 handle 2: red {options}",
        ],
        frames,
    )

# ------------------------------------------------------------------------------------------ size tables

for name, stab, kind in [
    ("overhead", "overhead 20", "pfifo"),
    ("less", "overhead -200", "pfifo_fast"),
    ("atm", "overhead 22 linklayer atm", "fq_codel"),
    ("mpu", "mpu 400 linklayer ethernet", "sfq"),
    ("beyond", "linklayer atm mtu 256 tsize 4", "prio"),
    ("cells", "overhead -14 mpu 64 linklayer atm mtu 1500 tsize 128", "codel"),
    ("long", "mpu 100000", "bfifo limit 250000"),
    ("netem", "overhead 100", "netem"),
    ("tbf", "overhead 100", "tbf rate 80bit burst 1000 limit 10k"),
    ("tbf-atm", "linklayer atm", "tbf rate 80bit burst 1000 limit 700"),
]:
    queues(
        f"stab/{name}",
        f"{kind} with the size table {stab}.",
        [f"tc qdisc add dev p1 root handle 1: stab {stab} {kind}"],
        sized(300, 300, 28, 1400, 300) + [("IPv6", ip6() / udp())],
        shows=(ROOT,),
    )
queues(
    "stab/htb",
    "The classes are charged by the table of the htb.",
    [line.replace("1: htb", "1: stab overhead 86 mpu 200 htb") for line in ONE],
    sized(200, 200, 28, 28, 28, 200),
)
queues(
    "stab/inside",
    "The qdisc of a class has got a table, which nobody looks at.",
    ONE
    + [
        "tc qdisc add dev p1 parent 1:1 handle 2: pfifo limit 3",
        "tc qdisc change dev p1 parent 1:1 handle 2: stab overhead 100 pfifo limit 3",
    ],
    sized(200, 200, 200, 200, 28, 28, 200),
)
queues(
    "stab/inside-tbf",
    "A tbf with a table has a bfifo in it with another, which nobody looks at.",
    [
        "tc qdisc add dev p1 root handle 1: stab overhead 50 tbf rate 80bit burst 1000 limit 10k",
        "tc qdisc add dev p1 parent 1:1 handle 2: bfifo limit 900",
        "tc qdisc change dev p1 parent 1:1 handle 2: stab linklayer atm bfifo limit 900",
    ],
    sized(*[200] * 8),
)

# ------------------------------------------------------------------------------------------ fq

for name, options, frames in [
    ("plain", "", sized(300, 1000, 28, 1400) + [("IPv6", ip6() / udp())]),
    # The first packet finds credit, the others wait for a second.
    ("maxrate", "maxrate 8bit", to(2001, 300, 300, 300)),
    ("flow-limit", "maxrate 8bit flow_limit 2", to(2001, 100, 200, 300, 400)),
    ("limit", "maxrate 8bit limit 2", to(2001, 100, 200, 300, 400)),
    ("nopacing", "maxrate 8bit nopacing", to(2001, 300, 300)),
    ("quantum", "maxrate 8kbit low_rate_threshold 0 initial_quantum 700 quantum 1000", to(2001, 300, 300, 300, 300, 300)),
    ("ce_threshold", "ce_threshold 1s", [(f"ECN {ecn}", marked(ecn) / udp(30)) for ecn in range(4)]),
]:
    queues(f"fq/{name}", f"fq {options}.", [f"tc qdisc add dev p1 root handle 1: fq orphan_mask 0 {options}"], frames, shows=(ROOT,))
queues(
    "fq/tbf",
    "fq in tbf: what waits goes past all flows as long as there are few packets, then by flows.",
    [
        "tc qdisc add dev p1 root handle 1: tbf rate 80bit burst 1000 limit 10k",
        "tc qdisc add dev p1 parent 1:1 handle 2: fq orphan_mask 0 flow_limit 3",
    ],
    to(2001, *[300] * 18),
    shows=(ROOT,),
)

# ------------------------------------------------------------------------------------------ cake


def classed(dscp, packet=ip4, **more):
    """A UDP packet with a DSCP."""
    frame = packet(**more)
    if packet is ip4:
        frame.tos = dscp << 2
    else:
        frame.tc = dscp << 2
    return f"DSCP {dscp}", frame / udp()


def ack(number, sport=1111, flags="A", options=()):
    return f"ACK {number}", ip4() / TCP(sport=sport, dport=80, flags=flags, seq=1, ack=number, options=list(options))


def from_hosts():
    """UDP packets of two flows of each of three sources to each of two destinations."""
    return [
        (f"from .{source} to .{destination} by {port}", ip4(f"203.0.113.{130 + destination}", f"203.0.113.{source}") / UDP(sport=port, dport=9) / payload(50))
        for source in (1, 2, 3)
        for destination in (3, 4)
        for port in (1, 2)
    ]


def cake(name, options, frames, more=()):
    queues(f"cake/{name}", f"cake {options}.", [f"tc qdisc add dev p1 root handle 1: cake {options}", *more], frames, shows=(ROOT,))


for name, options, frames in [
    ("plain", "", sized(300, 1000, 28, 1400) + [("IPv6", ip6() / udp())]),
    ("besteffort", "besteffort", [classed(dscp) for dscp in range(64)]),
    ("precedence", "precedence", [classed(dscp) for dscp in range(64)]),
    ("diffserv3", "diffserv3", [classed(dscp) for dscp in range(64)] + [classed(46, ip6)]),
    ("diffserv4", "diffserv4", [classed(dscp) for dscp in range(64)] + [classed(8, ip6)]),
    ("diffserv8", "diffserv8", [classed(dscp) for dscp in range(64)] + [classed(1, ip6)]),
    ("wash", "wash", [classed(46), classed(46, ip6), classed(0), (f"ECN", marked(2) / udp(30))]),
    ("overhead", "overhead 38 mpu 84", sized(28, 300, 1400)),
    ("less-overhead", "overhead -20", sized(30, 300)),
    ("mpu", "raw mpu 200", sized(28, 300)),
    ("atm", "overhead 10 atm", sized(28, 86, 87, 300)),
    ("ptm", "overhead 22 ptm", sized(28, 300)),
    ("raw-atm", "raw atm", sized(28, 300)),
    ("slow", "bandwidth 64bit besteffort", to(2001, 300, 300, 300)),
    ("slow-tins", "bandwidth 64bit diffserv4", [classed(dscp) for dscp in (0, 0, 8, 46, 34, 46)]),
    ("no-memory", "bandwidth 1gbit memlimit 1", to(2001, 300, 300)),
    ("no-memory-ingress", "bandwidth 100mbit memlimit 1 ingress", to(2001, 300, 300)),
    ("flowblind", "flowblind bandwidth 64bit", from_hosts()),
    ("acks", "bandwidth 64bit ack-filter", [ack(n) for n in (1, 2, 3, 4, 5)]),
    ("acks-aggressive", "bandwidth 64bit ack-filter-aggressive", [ack(n) for n in (1, 2, 3)] + [ack(4, 2222), ack(5, 2222)]),
    ("acks-marked", "bandwidth 64bit ack-filter-aggressive", [ack(1), ack(2, flags="AE"), ack(3), ack(4), ack(5, flags="AP")]),
    (
        "acks-options",
        "bandwidth 64bit ack-filter-aggressive flowblind",
        [ack(1), ack(2, options=[("Timestamp", (5, 5))]), ack(3, options=[("Timestamp", (6, 5))]), ack(3, options=[("SAck", (20, 30))]),
         ack(3, options=[("SAck", (20, 40))]), ack(3, options=[("SAck", (50, 60))]), ack(9, options=[("WScale", 3)]), ack(10)],
    ),
]:
    cake(name, options, frames)
for mode in ["srchost", "dsthost", "hosts", "flows", "dual-srchost", "dual-dsthost", "triple-isolate"]:
    cake(mode, f"besteffort {mode}", from_hosts())


def any_acks(seed, count=60):
    """Acknowledgements of two connections, with all that may keep one from being needless."""
    chance = random.Random(seed)
    frames = []
    for number in range(count):
        low = number // 3
        number_of = lambda: low + chance.randrange(6)
        options = []
        if chance.random() < 0.5:
            options.append(("Timestamp", (number_of(), number_of())))
        if chance.random() < 0.5:
            starts = [number_of() for _ in range(chance.choice([1, 1, 2, 3]))]
            options.append(("SAck", tuple(edge for start in starts for edge in (start, start + chance.randrange(8)))))
        if chance.random() < 0.1:
            options.append(chance.choice([("WScale", 2), ("MSS", 900), ("NOP", None), ("EOL", None)]))
        flags = chance.choices(["A", "AE", "AC", "AP", "AF", "AS", "AN", "P"], [20, 3, 2, 1, 1, 1, 1, 1])[0]
        tcp = TCP(sport=chance.choice([1, 1, 1, 2]), dport=80, flags=flags, seq=1, ack=number_of(), options=options)
        if chance.random() < 0.1:
            tcp /= payload(chance.randrange(1, 9))
        network = chance.choices([ip4(), ip6(), ip4() / IPv6(src=SOURCE, dst=TARGET)], [10, 3, 2])[0]
        frames.append((f"ACK {number}", network / tcp))
    return frames


for number in range(4):
    words = "ack-filter-aggressive" if number % 2 else "ack-filter"
    cake(f"acks-any-{number}", f"bandwidth 64bit besteffort flowblind {words}", any_acks(number))
MARKED = ["tc qdisc add dev p0 clsact"]
for number, edit in enumerate(["mark 0x10", "mark 0x20", "mark 0x30", "mark 0x40", "priority 1:1", "priority 1:3", "priority 2:3"]):
    MARKED.append(f"tc filter add dev p0 ingress protocol ip prio {number + 1} u32 match ip dport {3000 + number} 0xffff action skbedit {edit}")
cake("fwmark", "diffserv3 fwmark 0xf0", [frame for number in range(8) for frame in to(3000 + number, 100)], MARKED)
queues(
    "cake/vlan",
    "cake under a VLAN: what is behind the tag says which tin and which flow.",
    [
        "ip link add link p1 name p1.5 type vlan id 5",
        "ip link set p1.5 addrgenmode none",
        "ip link set p1.5 up",
        "ip neigh add 198.51.100.9 lladdr 02:00:00:00:01:09 dev p1.5 nud permanent",
        "ip route add 203.0.113.192/26 via 198.51.100.9 dev p1.5 onlink",
        "tc qdisc add dev p1 root handle 1: cake diffserv4 wash dual-srchost",
    ],
    [
        (f"from .{source} by DSCP {dscp}", classed(dscp, dst="203.0.113.200", src=f"203.0.113.{source}")[1])
        for source in (1, 2)
        for dscp in (0, 8, 46, 34)
    ],
    shows=(ROOT,),
)
cake(
    "filters",
    "diffserv4",
    to(2001, 100, 200) + to(2002, 100) + to(2003, 100) + to(2004, 100) + to(2005, 100),
    [
        port(2001, "1:7"),
        port(2002, "1:8"),
        port(2003, "1:7", prio=2) + " action drop",
        port(2004, "1:2000", prio=3),
    ],
)
queues(
    "cake/htb",
    "cake in a class of HTB.",
    [
        "tc qdisc add dev p1 root handle 1: htb default 2",
        f"tc class add dev p1 parent 1: classid 1:2 htb {SLOW}",
        "tc qdisc add dev p1 parent 1:2 handle 2: cake diffserv4",
    ],
    [classed(dscp) for dscp in (0, 0, 8, 46, 34, 46)] * 3,
    shows=(ROOT,),
)
