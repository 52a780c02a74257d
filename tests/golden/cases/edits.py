"""Actions that change headers, in any order: vlan and mpls, then a redirect, a mirror or the stack.

Each packet has a source of its own, by which a filter finds it; the chains of actions are random, with a fixed seed.
"""

import random

from scapy.contrib.mpls import MPLS

from .frames import *
from .qos import HOOKS

INNER = Ether(dst="02:00:00:00:0a:01", src="02:00:00:00:0a:02")

VLANS = [
    "vlan pop",
    "vlan push id 7 priority 3",
    "vlan push id 8 protocol 802.1ad",
    "vlan modify id 9",
    "vlan modify id 10 priority 5",
    "vlan pop_eth",
    "vlan push_eth dst_mac 02:00:00:00:0b:01 src_mac 02:00:00:00:0b:02",
]
LABELS = [
    "mpls pop protocol ip",
    "mpls pop protocol mpls_uc",
    "mpls pop protocol teb",
    "mpls push label 100 tc 3 ttl 9",
    "mpls push label 101 protocol mpls_mc bos 0",
    "mpls mac_push label 102 ttl 8",
    "mpls modify label 103 ttl 7",
    "mpls dec_ttl",
]


def label(n, s=1, ttl=64):
    return MPLS(label=n, s=s, ttl=ttl)


def packets(source):
    """Frames from an address, by what is in them."""
    ether = Ether(dst=P0, src=source)
    ip = lambda: ip4() / udp(30)  # noqa: E731
    return {
        "IPv4": ether / ip(),
        "IPv6": ether / ip6() / udp(30),
        "tag": ether / Dot1Q(vlan=5, prio=3) / ip(),
        "two tags": Ether(dst=P0, src=source, type=0x88A8) / Dot1Q(vlan=9, type=0x8100) / Dot1Q(vlan=5, prio=1) / ip(),
        "label": Ether(dst=P0, src=source, type=0x8847) / label(16) / ip(),
        "two labels": Ether(dst=P0, src=source, type=0x8847) / label(16, 0) / label(17, 1, 1) / ip(),
        "frame in a label": Ether(dst=P0, src=source, type=0x8847) / label(16) / INNER / ip(),
        "tag and label": ether / Dot1Q(vlan=5, type=0x8847) / label(16) / ip(),
        "frame": Ether(dst=P0, src=source, type=0x6558) / INNER / ip(),
    }


# What a vlan action pushes on a packet without an Ethernet header is left out: it has nowhere to stand (differences.md).
def chain(rng):
    headless, actions = False, []
    for _ in range(rng.randint(1, 4)):
        action = rng.choice(VLANS + LABELS)
        if headless and action.startswith("vlan push id"):
            continue
        headless = action in ("vlan pop_eth",) or action.startswith("mpls mac_push") or headless and not action.startswith("vlan push_eth")
        actions.append(action)
    return actions


def random_case(name, seed, ends, place="ingress"):
    rng = random.Random(seed)
    lines, frames = [], []
    kinds = list(packets(N0))
    for n in range(1, 13):
        kind, actions, end = rng.choice(kinds), chain(rng), rng.choice(ends)
        source = f"02:00:00:00:05:{n:02x}"
        words = " ".join(f"action {action} pipe" for action in actions)
        lines.append(f"tc filter add dev p0 ingress protocol all prio {n} flower src_mac {source} {words} action {end}")
        frames.append((f"{kind}: {', '.join(actions)}; {end}", packets(source)[kind]))
    Case(f"qos/{name}", f"Random changes of headers, seed {seed}.", BASE + HOOKS + lines, frames, shows=("tc -s filter show dev p0 ingress",), links=False)


for seed in range(8):
    random_case(f"edits/redirect-{seed}", seed, ["mirred egress redirect dev p1"])
for seed in range(8, 12):
    random_case(f"edits/mirror-{seed}", seed, ["mirred egress mirror dev p1 pipe action drop", "mirred egress redirect dev p0", "mirred egress mirror dev p0"])
for seed in range(12, 16):
    random_case(f"edits/pass-{seed}", seed, ["pass"])
Case(
    "qos/edits/teb",
    "The label and the header before it are taken off a frame, as Linux's own tests do: what is inside leaves as it is.",
    BASE
    + HOOKS
    + [
        "tc filter add dev p0 ingress protocol mpls_uc prio 1 flower mpls_label 16 action vlan pop_eth pipe action mpls pop protocol teb pipe action mirred egress redirect dev p1",
        "tc filter add dev p0 ingress protocol mpls_uc prio 2 flower mpls_label 17 action mpls pop protocol teb pipe action vlan pop_eth pipe action mirred egress redirect dev p1",
        "tc filter add dev p0 ingress protocol ip prio 3 flower action mpls mac_push label 18 pipe action vlan push_eth dst_mac 02:00:00:00:0b:01 src_mac 02:00:00:00:0b:02 pipe action mirred egress redirect dev p1",
    ],
    [
        ("pop_eth, then pop", Ether(dst=P0, src=N0, type=0x8847) / label(16) / INNER / ip4() / udp()),
        ("pop, then pop_eth", Ether(dst=P0, src=N0, type=0x8847) / label(17) / INNER / ip4() / udp()),
        ("a frame put behind a label", Ether(dst=P0, src=N0) / ip4() / udp()),
    ],
    shows=("tc -s filter show dev p0 ingress",),
    links=False,
)
