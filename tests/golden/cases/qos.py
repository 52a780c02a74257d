"""Filters and actions of traffic control: which packets pass, and every counter.

Nothing depends on the time between two packets: rates are a byte or a packet in seconds, so that what a bucket holds
decides, and no packet is as long as what is left in one.
"""

from scapy.all import TCP
from scapy.contrib.mpls import MPLS

from .frames import *

HOOKS = ["tc qdisc add dev p0 clsact", "tc qdisc add dev p1 clsact"]
INGRESS, EGRESS = "tc -s filter show dev p0 ingress", "tc -s filter show dev p1 egress"


def filters(name, doc, lines, frames, shows=(INGRESS,), remembers=False):
    """`lines` begin behind `tc filter add dev p0 ingress`, or are whole."""
    whole = [line if line.startswith("tc ") else f"tc filter add dev p0 ingress {line}" for line in lines]
    frames = [(label, *([ether(p)] if not isinstance(p, Ether) else [p])) for label, p in frames]
    Case(f"qos/{name}", doc, BASE + HOOKS + whole, frames, shows=shows, remembers=remembers, links=False)


def sized(*lengths, packet=ip4):
    """UDP packets of so many bytes with their IPv4 headers."""
    return [(f"{n} bytes", packet() / udp(n - 28)) for n in lengths]


def tcp(sport=1111, dport=80, flags="S"):
    return TCP(sport=sport, dport=dport, flags=flags) / payload(10)


# ------------------------------------------------------------------------------------------ police

POLICE = [
    ("burst", "rate 80bit burst 1000 mtu 1500 conform-exceed drop", sized(300, 300, 300, 300, 90, 20 + 8)),
    ("burst-refuses-one", "rate 80bit burst 1000 mtu 1500 conform-exceed drop", sized(1100, 900, 200, 60, 40)),
    ("mtu", "rate 800bit burst 20k mtu 500 conform-exceed drop", sized(486, 487, 500, 501, 100)),
    ("mtu-alone", "mtu 500 conform-exceed drop/ok", sized(486, 487, 500, 501, 100)),
    ("peakrate", "rate 800bit burst 20k peakrate 1600bit mtu 600 conform-exceed drop", sized(500, 500, 40, 28, 300)),
    ("overhead", "rate 80bit burst 1000 mtu 1500 overhead 100 conform-exceed drop", sized(300, 300, 300, 28)),
    ("mpu", "rate 80bit burst 1000 mtu 1500 mpu 400 conform-exceed drop", sized(28, 28, 28, 600)),
    ("atm", "rate 80bit burst 1000 mtu 1500 linklayer atm conform-exceed drop", sized(300, 300, 300, 100, 48)),
    ("reclassify", "rate 80bit burst 500 mtu 1500", sized(300, 300, 28)),
    ("continue", "rate 80bit burst 500 mtu 1500 conform-exceed continue", sized(300, 300, 28)),
    ("ok", "rate 80bit burst 500 mtu 1500 conform-exceed ok", sized(300, 300, 28)),
    ("pipe", "rate 80bit burst 500 mtu 1500 conform-exceed drop/pipe", sized(300, 300, 28)),
    # A bucket of packets is empty at first, one of bytes full.
    ("packets", "pkts_rate 1 pkts_burst 3 conform-exceed drop", sized(300, 28)),
    ("packets-mtu", "pkts_rate 1 pkts_burst 3 mtu 500 conform-exceed drop/pass", sized(300, 600)),
]
for name, options, frames in POLICE:
    filters(
        f"police/{name}",
        f"police {options}.",
        [
            f"protocol ip prio 1 matchall action police {options} action drop"
            if name == "pipe"
            else f"protocol ip prio 1 matchall action police {options}",
            "protocol ip prio 2 matchall action pass",
        ],
        frames,
        remembers=True,
    )
filters(
    "police/shared",
    "One policer for two filters.",
    [
        "tc actions add action police rate 80bit burst 1000 mtu 1500 conform-exceed drop index 7",
        "protocol ip prio 1 flower ip_proto udp action police index 7",
        "protocol ip prio 2 flower ip_proto tcp action police index 7",
    ],
    [
        ("UDP", ip4() / udp(500)),
        ("TCP", ip4() / tcp()),
        ("UDP beyond the burst", ip4() / udp(500)),
        ("TCP again", ip4() / tcp()),
    ],
    shows=(INGRESS, "tc -s actions ls action police"),
    remembers=True,
)
filters(
    "police/old",
    "Old-style policers: u32 … police … drop flowid, and basic … police.",
    [
        "protocol ip prio 1 u32 match ip protocol 6 0xff police rate 80bit burst 100 mtu 1500 drop flowid :1",
        "protocol all prio 49 basic police rate 80bit burst 500 mtu 1500 drop",
    ],
    [("TCP", ip4() / tcp()), ("TCP again", ip4() / tcp())] + sized(300, 300, 28),
    remembers=True,
)
filters(
    "police/egress",
    "A policer where packets leave: the Ethernet header counts.",
    ["tc filter add dev p1 egress protocol ip matchall action police rate 80bit burst 1000 mtu 1500 conform-exceed drop"],
    sized(300, 300, 300, 100, 28),
    shows=(EGRESS,),
    remembers=True,
)

# ------------------------------------------------------------------------------------------ mirred, gact

PLAIN = [("IPv4", ip4() / udp()), ("IPv6", ip6() / udp()), ("TCP", ip4() / tcp())]
for name, action in [
    ("redirect", "mirred egress redirect dev p1"),
    ("mirror", "mirred egress mirror dev p1"),
    ("mirror-back", "mirred egress mirror dev p0"),
    ("drop", "drop"),
    ("pass", "pass"),
    ("trap", "trap"),
    ("pipe", "gact pipe action drop"),
    ("jump", "gact jump 1 action drop action pass"),
    ("determ", "gact pass random determ drop 2"),
    ("sample", "sample rate 1 group 4 trunc 50"),
    ("sample-drop", "sample rate 1 group 4 drop"),
    ("sample-pipe", "sample rate 1 group 4 pipe action drop"),
]:
    filters(f"actions/{name}", f"action {action}.", [f"protocol ip prio 1 matchall action {action}"], PLAIN * 2, remembers=True)
filters(
    "actions/chain-alone",
    "Filters in another chain than 0, to which nobody goes: nothing is asked, and the qdisc counts nothing.",
    ["chain 1 protocol all prio 1 matchall action drop"],
    sized(100, 200),
    shows=(INGRESS, "tc -s qdisc show dev p0"),
)
filters(
    "actions/chains",
    "goto chain, and a chain that is not there.",
    [
        "protocol ip prio 1 flower ip_proto udp action goto chain 5",
        "protocol ip prio 2 flower ip_proto tcp action goto chain 6",
        "protocol ip chain 5 prio 1 flower ip_proto udp dst_port 2222 action drop",
        "protocol ip chain 5 prio 2 matchall action pass",
    ],
    [("UDP", ip4() / udp()), ("UDP 53", ip4() / UDP(dport=53) / payload(9)), ("TCP", ip4() / tcp()), ("IPv6", ip6() / udp())],
)
filters(
    "actions/mpls",
    "Labels put on.",
    [
        "protocol ip prio 1 flower ip_proto udp action mpls push label 100 tc 3 ttl 9 action mirred egress redirect dev p1",
        "protocol ip prio 2 flower ip_proto tcp action mpls push label 200 action mpls push label 300 bos 0 "
        "action mirred egress redirect dev p1",
        "protocol mpls_uc prio 3 flower mpls_label 16 mpls_bos 1 action mpls pop protocol ip action mirred egress redirect dev p1",
        "protocol mpls_uc prio 4 flower mpls_label 17 action mpls modify label 18 tc 1 ttl 5 action mirred egress redirect dev p1",
        "protocol mpls_uc prio 5 flower mpls_label 19 action mpls dec_ttl action mirred egress redirect dev p1",
    ],
    [("UDP", ip4() / udp()), ("TCP", ip4() / tcp())]
    + [
        (f"label {label}", Ether(dst=P0, src=N0, type=0x8847) / MPLS(label=label, cos=2, s=1, ttl=ttl) / ip4() / udp())
        for label, ttl in [(16, 7), (17, 7), (19, 7), (19, 1)]
    ],
)
TAG = Ether(dst=P0, src=N0) / Dot1Q(vlan=5, prio=3) / ip4() / udp()
filters(
    "actions/vlan",
    "Tags put on, changed and taken off.",
    [
        "protocol ip prio 1 flower ip_proto udp action vlan push id 100 priority 3 action mirred egress redirect dev p1",
        "protocol ip prio 2 flower ip_proto tcp action vlan push id 7 protocol 802.1ad action mirred egress redirect dev p1",
        "protocol 802.1q prio 3 flower vlan_id 5 action vlan modify id 6 action mirred egress redirect dev p1",
        "protocol 802.1q prio 4 flower vlan_id 8 action vlan pop action mirred egress redirect dev p1",
    ],
    [
        ("UDP", ip4() / udp()),
        ("TCP", ip4() / tcp()),
        ("a tag", TAG),
        ("another", Ether(dst=P0, src=N0) / Dot1Q(vlan=8) / ip4() / udp()),
    ],
)
filters(
    "actions/mark",
    "skbedit sets the mark that fw, u32 and basic ask for.",
    [
        "protocol ip prio 1 flower ip_proto udp action skbedit mark 7 action continue",
        "protocol ip prio 2 flower ip_proto tcp action skbedit mark 0x19/0xf action continue",
        "protocol ip prio 3 handle 7 fw action drop",
        "protocol ip prio 4 u32 match mark 9 0xff action drop",
        "protocol ip prio 5 basic match 'meta(nf_mark gt 5)' action drop".replace("'", ""),
    ],
    [("UDP", ip4() / udp()), ("TCP", ip4() / tcp()), ("ICMP", ip4(proto=1) / ICMP())],
)

# ------------------------------------------------------------------------------------------ classifiers

MANY = [
    ("UDP 53", ip4() / UDP(sport=9, dport=53) / payload(20)),
    ("UDP 54", ip4() / UDP(sport=9, dport=54) / payload(20)),
    ("TCP SYN 80", ip4() / tcp()),
    ("TCP ACK 443", ip4() / tcp(dport=443, flags="A")),
    ("ICMP echo", ip4(proto=1) / ICMP()),
    ("IPv4 options", ip4(options=[IPOption(b"\x94\x04\0\0")]) / UDP(dport=53) / payload(20)),
    ("a first fragment", ip4(flags="MF") / UDP(dport=53) / payload(24)),
    ("a last fragment", ip4(frag=3, proto=17) / payload(24)),
    ("another source", ip4(src="203.0.113.9") / UDP(dport=53) / payload(20)),
    ("TTL 9", ip4(ttl=9) / udp()),
    ("IPv6 UDP 53", ip6() / UDP(dport=53) / payload(20)),
    ("IPv6 TCP", ip6() / tcp()),
    ("IPv6 echo", ip6() / ICMPv6EchoRequest()),
    ("IPv6 hop-by-hop options", ip6(nh=0) / opts(17, udp())),
    ("a tag", TAG),
    ("two tags", Ether(dst=P0, src=N0, type=0x88A8) / Dot1Q(vlan=9, type=0x8100) / Dot1Q(vlan=5, prio=1) / ip4() / udp()),
    ("a label", Ether(dst=P0, src=N0, type=0x8847) / MPLS(label=16, cos=2, s=1, ttl=64) / ip4() / udp()),
    ("two labels", Ether(dst=P0, src=N0, type=0x8847) / MPLS(label=17, s=0, ttl=9) / MPLS(label=18, s=1, ttl=64) / ip4() / udp()),
]
FILTERS = {
    "u32": [
        "protocol ip prio 1 u32 match ip dport 53 0xffff action drop",
        "protocol ip prio 2 u32 match ip src 203.0.113.9/32 action drop",
        "protocol ip prio 3 u32 match u8 9 0xff at 8 action drop",
        "protocol ip prio 4 u32 match tcp dst 443 0xffff action drop",
        "protocol ipv6 prio 5 u32 match ip6 dst 2001:db8:6::/48 match ip6 protocol 6 0xff action drop",
        "protocol all prio 6 u32 match u16 0x0800 0xffff at -2 match u8 1 0xff at 9 action drop",
        "protocol 802.1q prio 7 u32 match u32 0 0 action drop",
        "protocol mpls_uc prio 8 u32 match u32 0x00010000 0xfffff000 at 0 action drop",
    ],
    "u32-before": [
        "protocol all prio 1 u32 match u16 0x0200 0xffff at -14 match u8 1 0xff at -3 match u16 0x0800 0xffff at -2 match u8 0x11 0xff at 9",
        "protocol all prio 2 u32 match u8 2 0xff at -8 match u8 0x01 0xff at -9 match u16 0x86dd 0xffff at -2",
        "protocol all prio 3 u32 match u8 2 0xff at -14 match u16 0x0800 0xffff at -2 action drop",
        "protocol all prio 4 u32 match u32 0 0 at -64 action drop",
    ],
    "u32-tables": [
        "protocol ip prio 1 handle 2: u32 divisor 256",
        "protocol ip prio 1 u32 ht 2:35: match u8 0x35 0xff at nexthdr+3 action drop",
        "protocol ip prio 1 u32 ht 2:50: match u16 80 0xffff at nexthdr+2 action drop",
        "protocol ip prio 1 u32 ht 800: match ip protocol 17 0xff offset at 0 mask 0x0f00 shift 6 link 2: "
        "hashkey mask 0x000000ff at 20",
        "protocol ip prio 1 u32 ht 800: match ip protocol 6 0xff offset at 0 mask 0x0f00 shift 6 plus 0 eat link 2: "
        "hashkey mask 0x000000ff at 20",
        "protocol ip prio 1 u32 ht 2:bb: match u16 443 0xffff at 2 action drop",
        "protocol ip prio 2 u32 match ip protocol 1 0xff classid 1:1 action pass",
    ],
    "basic": [
        "protocol ip prio 1 basic match cmp(u16 at 2 layer transport eq 53) action drop",
        "protocol ip prio 2 basic match u32(u32 0xcb007109 0xffffffff at 12) action drop",
        "protocol ip prio 3 basic match cmp(u8 at 8 layer network lt 10) and not cmp(u8 at 9 layer network eq 6) action drop",
        "protocol all prio 4 basic match nbyte(\"\\x02\" at 0 layer link) and cmp(u8 at 6 layer network eq 58) action drop",
        "protocol all prio 5 basic match meta(vlan mask 0xfff eq 5) action drop",
        "protocol all prio 6 basic match meta(pkt_len gt 101) or (cmp(u8 at 9 layer network eq 1) and cmp(u8 at 0 layer transport eq 8)) action drop",
    ],
    "flower": [
        "protocol ip prio 1 flower ip_proto udp dst_port 53 action drop",
        "protocol ip prio 1 flower ip_proto tcp tcp_flags 0x2/0x2 action drop",
        "protocol ip prio 1 flower src_ip 203.0.113.9 action drop",
        "protocol ip prio 2 flower ip_flags frag action drop",
        "protocol ip prio 2 flower ip_ttl 9 action drop",
        "protocol ip prio 2 flower ip_proto icmp type 8 action drop",
        "protocol ip prio 3 flower ip_proto tcp dst_port 400-500 action drop",
        "protocol ipv6 prio 4 flower ip_proto udp dst_port 53 action drop",
        "protocol ipv6 prio 4 flower ip_proto icmpv6 type 128 action drop",
        "protocol ipv6 prio 4 flower dst_ip 2001:db8:6::/48 ip_proto tcp action drop",
        "protocol 802.1q prio 5 flower vlan_id 5 vlan_prio 3 vlan_ethtype ipv4 ip_proto udp action drop",
        "protocol 802.1ad prio 6 flower vlan_id 9 vlan_ethtype 802.1q cvlan_id 5 cvlan_ethtype ipv4 action drop",
        "protocol mpls_uc prio 7 flower mpls_label 16 mpls_tc 2 action drop",
        "protocol mpls_uc prio 7 flower mpls lse depth 1 label 17 lse depth 2 label 18 bos 1 action drop",
        "protocol all prio 8 flower src_mac 02:00:00:00:01:01 action pass",
    ],
    "matchall": ["protocol ip prio 1 matchall action pass", "protocol all prio 2 matchall action drop"],
}
for name, lines in FILTERS.items():
    filters(f"classify/{name}", f"What filters of {name.split('-')[0]} choose.", lines, MANY)
LIKE_UDP = bytes(UDP(sport=9, dport=53, len=16, chksum=1)) + bytes(8)
filters(
    "classify/basic-fragments",
    "`layer transport` is what a fragment carries, also where it is not the first.",
    [f"protocol {family} prio {prio} basic match cmp(u16 at 2 layer transport eq 53) action drop" for prio, family in enumerate(("ip", "ipv6"), 1)],
    [
        ("a first fragment to port 53", ip6(nh=44) / fragment(17, LIKE_UDP)),
        ("a later one that looks alike", ip6(nh=44) / fragment(17, LIKE_UDP, offset=8)),
        ("an atomic one", ip6(nh=44) / fragment(17, LIKE_UDP, more=0)),
        ("a later one with other bytes", ip6(nh=44) / fragment(17, payload(16), offset=8)),
        ("IPv4, the first", ip4(flags="MF", proto=17) / LIKE_UDP),
        ("IPv4, a later one", ip4(flags="MF", frag=8, proto=17) / LIKE_UDP),
    ],
)
filters(
    "classify/u32-links",
    "A link that ends here, too, is asked once, whoever takes the packet behind it.",
    [
        "protocol ip prio 1 handle 2: u32 divisor 1",
        "protocol ip prio 1 u32 ht 2: match u16 53 0xffff at 2 action drop",
        "protocol ip prio 1 u32 ht 2: match u16 54 0xffff at 2 action continue",
        "protocol ip prio 1 u32 match ip protocol 17 0xff offset at 0 mask 0x0f00 shift 6 plus 0 eat link 2: action pass",
        "protocol ip prio 1 u32 match ip protocol 6 0xff link 2: action pass",
    ],
    MANY[:7],
)
for name, doc, lines in [
    ("alone", "Tables of u32 without a filter: the hook counts nothing.", []),
    ("behind-another", "Tables of u32 without a filter, behind another priority: the hook counts.", ["protocol ipv6 prio 2 matchall action pass"]),
    ("emptied", "The last filter of u32 takes the tables with it.", ["protocol ip prio 1 u32 match u32 0 0 action pass", "tc filter del dev p0 ingress protocol ip prio 1 handle 800::800 u32"]),
]:
    filters(f"classify/u32-tables-{name}", doc, ["protocol ip prio 1 handle 2: u32 divisor 2", *lines], MANY[:3], shows=(INGRESS, "tc -s qdisc show dev p0"))
Case(
    "qos/ingress/mirror-ifb",
    "A copy that goes into an ifb is dropped there, which counts it.",
    BASE
    + ["ip link add tun1 type ifb", "ip link set tun1 up", "tc qdisc add dev p0 clsact", "tc filter add dev p0 ingress matchall action mirred egress mirror dev tun1"],
    [("IPv4", Ether(dst=P0, src=N0) / ip4() / udp()), ("IPv6", Ether(dst=P0, src=N0) / ip6() / udp())],
)
Case(
    "qos/ingress/ifb-redirected",
    "What filters let come in by another port is the router's, too, when it comes back from an ifb.",
    BASE
    + [
        "ip link add tun1 type ifb",
        "ip link set tun1 up",
        "tc qdisc add dev p0 clsact",
        "tc filter add dev p0 ingress matchall action mirred ingress mirror dev p1",
        "tc qdisc add dev p1 clsact",
        "tc filter add dev p1 ingress matchall action mirred egress redirect dev tun1",
    ],
    [
        (f"{family}, to {whose}", Ether(dst=to, src=N0) / packet / udp())
        for family, packet in (("IPv4", ip4()), ("IPv6", ip6()))
        for whose, to in (("p0", P0), ("p1", P1), ("another", "02:00:00:00:00:77"), ("all", "ff:ff:ff:ff:ff:ff"))
    ],
    links=False,
)
for way, doc in [("in", "A packet comes in by a redirection three times; the next action refuses it, whatever it is."), ("out", "A packet is sent by a redirection four times.")]:
    names = ["p0", "tun1", "tun2", "tun3"]
    lines = [line for name in names[1:] for line in (f"ip link add {name} address 02:00:00:00:00:01 type dummy", f"ip link set {name} up")]
    hook = "ingress" if way == "in" else "egress"
    lines += [line for name in names for line in [f"tc qdisc add dev {name} clsact"]]
    lines += [f"tc filter add dev {name} {'ingress' if name == 'p0' else hook} matchall action mirred {'ingress' if way == 'in' else 'egress'} redirect dev {to}" for name, to in zip(names, names[1:])]
    lines += [f"tc filter add dev tun3 {hook} matchall action mirred egress redirect dev p1"]
    Case(
        f"qos/mirred-loop/{way}",
        doc,
        BASE + lines,
        [("IPv4", Ether(dst=P0, src=N0) / ip4() / udp())],
        shows=[f"tc -s filter show dev {name} {hook}" for name in names[1:]] + ["tc -s filter show dev p0 ingress"],
        links=False,
    )
Case(
    "qos/mirred-loop/queue",
    "A filter of a qdisc mirrors what leaves to where packets come in: each copy that leaves there goes through the qdisc, too.",
    BASE
    + [
        "tc qdisc add dev p1 root handle 1: htb default 10",
        "tc class add dev p1 parent 1: classid 1:10 htb rate 1mbit",
        "tc filter add dev p1 parent 1: protocol all pref 1 matchall action mirred ingress mirror dev p0",
    ],
    [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp())), ("no port, to behind p1", "p1", Ether(dst=P1, src=N1) / ip6("2001:db8:2::1", src=TARGET) / udp())],
    shows=["tc -s qdisc show dev p1", "tc -s filter show dev p1"],
)
Case(
    "qos/classify/edited-in-qdisc",
    "A filter of a qdisc makes a packet longer: it is counted as long as it came, in the qdisc and in its class.",
    BASE
    + [
        "tc qdisc add dev p1 root handle 1: htb default 10",
        "tc class add dev p1 parent 1: classid 1:10 htb rate 1mbit",
        "tc filter add dev p1 parent 1: protocol ip pref 1 matchall classid 1:10 action mpls push protocol mpls_uc label 100 tc 3 ttl 9 pass",
    ],
    [("IPv4", ether(ip4() / udp())), ("IPv6", ether(ip6() / udp())), ("IPv4 again", ether(ip4() / udp()))],
    shows=["tc -s qdisc show dev p1", "tc -s class show dev p1"],
    remembers=True,
)
Case(
    "qos/mirred-loop/forwarded",
    "A packet that is sent back where it leaves is forwarded again, but not until its TTL is used up: it comes in by a redirection three times.",
    BASE + ["tc qdisc add dev p1 clsact"] + [f"tc filter add dev p1 egress protocol {family} flower ip_proto udp action mirred ingress redirect dev p1" for family in ("ip", "ipv6")],
    [("IPv4", Ether(dst=P0, src=N0) / ip4() / udp()), ("IPv6", Ether(dst=P0, src=N0) / ip6() / udp())],
    shows=["tc -s filter show dev p1 egress"],
    links=False,
)
WHOSE = {
    "sent": [("to be sent by p1", Ether(dst=P0, src=N0) / ip4() / udp())],
    "back": [
        ("to come in by p1", Ether(dst=P0, src=N0) / ip4() / UDP(sport=7, dport=7) / payload(10)),
        ("the same for another station", Ether(dst="02:00:00:00:00:77", src=N0) / ip4() / UDP(sport=7, dport=7) / payload(10)),
    ],
    "forwarded": [("to be forwarded", Ether(dst=P0, src=N0) / ip4() / tcp())],
}
for name, frames in WHOSE.items():
    Case(
        f"qos/mirred-whose/{name}",
        "A frame that is redirected to come in elsewhere keeps its address, and is for whom it was.",
        BASE
        + ["ip link add tun1 address 02:00:00:00:0d:01 type dummy", "ip link set tun1 up", "tc qdisc add dev p0 clsact", "tc qdisc add dev tun1 clsact", "tc qdisc add dev p1 clsact"]
        + ["tc filter add dev p0 ingress matchall action mirred ingress redirect dev tun1"]
        + ["tc filter add dev tun1 ingress protocol ip flower ip_proto udp action mirred egress redirect dev p1"]
        + ["tc filter add dev p1 egress protocol ip flower ip_proto udp dst_port 7 action mirred ingress redirect dev p1"]
        + ["tc filter add dev tun1 ingress protocol ip flower dst_mac 02:00:00:00:0d:01 action drop"],
        frames,
        shows=["tc -s filter show dev tun1 ingress", "tc -s filter show dev p1 egress"],
        links=False,
    )
for name, root in [("htb", "htb default 10"), ("prio", "prio"), ("fq_codel", "fq_codel flows 64")]:
    Case(
        f"qos/mirred-filtered/{name}",
        f"What a filter of {name} drops where it was redirected to is no failure of the action that has redirected it.",
        BASE
        + ["tc qdisc add dev p0 clsact", f"tc qdisc add dev p1 root handle 1: {root}", "tc filter add dev p0 ingress protocol ip matchall action mirred egress redirect dev p1"]
        + ["tc filter add dev p1 parent 1: protocol ip matchall action drop"],
        [("IPv4", Ether(dst=P0, src=N0) / ip4() / udp())],
        shows=["tc -s filter show dev p0 ingress", "tc -s filter show dev p1 parent 1:"],
        links=False,
    )

# Labels inside an IP packet, whose EtherType is then theirs.
inside = bytes(MPLS(label=100, s=0, ttl=9) / MPLS(label=101, s=1, ttl=64) / ip4() / udp())
filters(
    "classify/flower-labels-inside",
    "flower takes a packet with labels inside for one with a label.",
    [
        "protocol ip prio 1 flower action pipe action continue",
        "protocol ip prio 2 flower ip_proto udp action pipe action continue",
        "protocol ipv6 prio 3 flower action pipe action continue",
        "protocol mpls_uc prio 4 flower mpls_label 100 action drop",
        "protocol all prio 5 flower action pipe action continue",
        "protocol ip prio 6 u32 match ip protocol 137 0xff action drop",
    ],
    [
        ("labels in IPv4", ip4(proto=137) / Raw(inside)),
        ("labels in IPv6", ip6(nh=137) / Raw(inside)),
        ("a first fragment", ip4(proto=137, flags="MF") / Raw(inside)),
        ("GRE", ip4(proto=47) / Raw(b"\0\0\x88\x47" + inside)),
        ("IPv4 in IPv4", ip4(proto=4) / ip4() / udp()),
        ("IPv6 in IPv4", ip4(proto=41) / ip6() / udp()),
        ("behind options of IPv6", ip6(nh=60) / opts(137, Raw(inside))),
        ("a label", Ether(dst=P0, src=N0, type=0x8847) / Raw(inside)),
        ("UDP", ip4() / udp()),
    ],
)

filters(
    "cut-tag",
    "A frame that is cut off at its tag comes to no filter: Linux wants an EtherType behind the tag.",
    ["protocol all prio 1 matchall action pass"],
    [
        (f"{tag:04x}, {more} more", Ether(dst=P0, src=N0, type=tag) / Raw(b"\x00\x07\x08\x00\x45\x00\x00"[:more]))
        for tag in (0x8100, 0x88A8, 0x88B5)
        for more in (1, 4, 5, 6)
    ],
    shows=(INGRESS, "tc -s qdisc show dev p0"),
)
