"""Queueing disciplines: which packets pass, which wait, and every counter.

Nothing depends on the time between two packets: rates are some bytes a second, so that what a bucket holds at first
decides, and no packet is as long as what is left in one.
"""

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

for kind in ["pfifo", "pfifo limit 1", "bfifo limit 1000", "pfifo_fast", "fq_codel", "prio"]:
    queues(
        f"{kind.replace(' ', '-')}",
        f"{kind}: nothing has to wait.",
        [f"tc qdisc add dev p1 root handle 1: {kind}"],
        sized(300, 1000, 28, 1400) + [("IPv6", ip6() / udp())],
    )
queues(
    "prio-filters",
    "prio: filters lead to bands.",
    ["tc qdisc add dev p1 root handle 1: prio bands 4", port(2001, "1:1"), port(2002, "1:4"), port(2003, "1:9")],
    to(2001, 100, 200) + to(2002, 300) + to(2003, 400) + sized(500),
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

# ------------------------------------------------------------------------------------------ ifb

REDIRECT = "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev ifb0"
INGRESS = "tc -s filter show dev p0 ingress"
queues("ifb/plain", "To an ifb and back.", IFB + [REDIRECT, "tc qdisc add dev ifb0 root handle 1: pfifo"], sized(300, 28), (IFB_ROOT, INGRESS))
queues(
    "ifb/htb",
    "What comes in is shaped by an htb at an ifb.",
    IFB + [REDIRECT] + [line.replace("dev p1", "dev ifb0") for line in TREE],
    [f for _ in range(6) for f in to(2001, 200) + sized(300)],
    (IFB_ROOT, IFB_CLASSES, INGRESS),
)
