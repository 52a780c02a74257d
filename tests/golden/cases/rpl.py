"""RPL source routes: RFC 6554."""

from scapy.layers.inet6 import ICMPv6ParamProblem

from .frames import *


def common(a, b):
    """How many of their first bytes two addresses have in common, 15 at most."""
    pairs = zip(ip_address(a).packed, ip_address(b).packed)
    return min(next((i for i, (x, y) in enumerate(pairs) if x != y), 16), 15)


def rpl(dst, addresses, left, inner, nh, cmpr=None, **wrong):
    """An RPL source routing header in a packet to `dst`: RFC 6554 section 3. `cmpr`: CmprI and CmprE, if
    it is not compressed as far as it can be. `wrong`: fields that are not what they should be."""
    *others, last = addresses
    cmpri, cmpre = cmpr or (min([common(dst, a) for a in others], default=15), common(dst, last))
    wire = b"".join(ip_address(a).packed[cmpri:] for a in others) + ip_address(last).packed[cmpre:]
    pad = -len(wire) % 8
    field = dict(hdrlen=(len(wire) + pad) // 8, kind=3, left=left, cmpr=cmpri << 4 | cmpre, pad=pad) | wrong
    fixed = struct.pack(
        "!BBBBBBH", nh, field["hdrlen"], field["kind"], field["left"], field["cmpr"], field["pad"] << 4, 0
    )
    return Raw(fixed + wire + bytes(pad)) / inner


def inserted(typed, packet):
    """What `encap rpl segs` makes of a packet. `ip` takes the addresses in the reverse order of the visit."""
    first, *rest = reversed(typed)
    out = packet.copy()
    out.dst, out.nh = first, 43
    listed = rest + [packet.dst]
    out.remove_payload()
    inner = Raw(bytes(packet)[40:])
    return out / rpl(first, listed, len(listed), inner, bytes(packet)[6])


def route(typed, dst="2001:db8:7::/48", base=BASE, dev="p1"):
    return base + [f"ip -6 route add {dst} encap rpl segs {','.join(typed)} dev {dev}"]


IN = "2001:db8:7::7"
INPUTS = [
    ("UDP", ip6(IN) / udp()),
    ("every bit of traffic class, flow label", IPv6(src=SOURCE, dst=IN, hlim=255, tc=0xFF, fl=0xFFFFF) / udp()),
    ("hop limit 2", ip6(IN, hlim=2) / udp()),
    ("destination options", ip6(IN, nh=60) / opts(17, udp())),
    ("a fragment", ip6(IN, nh=44) / fragment(17, udp())),
    ("an SRH", routed(ip6(IN), [IN, LAST], 1, udp())),
    ("an RPL header", ip6(IN, nh=43) / rpl(IN, [IN, "2001:db8:7::9"], 2, udp(), 17)),
    ("no payload", ip6(IN, nh=59)),
    ("IPv4 inside", ip6(IN, nh=4) / INNER4),
]
for name, doc, typed in [
    ("1", "one address", ["fc00:b::1"]),
    ("2", "two addresses, nearly alike", ["fc00:b::2", "fc00:b::1"]),
    ("3", "three addresses, the middle one far away", ["fc00:b::2", "fc00:c:1:2:3:4:5:6", "fc00:b::1"]),
    ("twice", "the same address twice", ["fc00:b::1", "fc00:b::1"]),
]:
    listed = [(label, ether(p), [to_p1(hops(inserted(typed, p)))]) for label, p in INPUTS]
    listed.append(
        (
            "a short frame, padded",
            behind(ether(ip6(IN, nh=59)), bytes(6)),
            [to_p1(hops(inserted(typed, ip6(IN, nh=59))))],
        )
    )
    Case(f"rpl/insert-{name}", f"encap rpl, {doc}.", route(typed), **io(listed))

# The destination is near the first address: CmprE from 7 to 15, Pad from 0 to 7.
config, listed = route(["fc00:b::1"], "fc00:b:0:7::/64"), []
for n, near in enumerate(["7::7", "7:8000::", "7::", "7::1", "7:1:2:3:4"]):
    p = ip6("fc00:b:0:" + near) / udp(n)
    listed.append((f"to {p.dst}", ether(p), [to_p1(hops(inserted(["fc00:b::1"], p)))]))
for bits, dst in [(72, "fc00:b:0:0:700::"), (96, "fc00:b::7:0:0"), (112, "fc00:b::9:0"), (128, "fc00:b::99")]:
    config = route(["fc00:b::1"], f"{dst}/{bits}", config)
    p = ip6(dst) / udp()
    listed.append((f"to {dst}", ether(p), [to_p1(hops(inserted(["fc00:b::1"], p)))]))
Case("rpl/insert-near", "encap rpl, destinations that share bytes with the first address.", config, **io(listed))

# Lists of 1 to 31 addresses, a route each: compressed and not.
for name, address in [("near", "fc00:b::{0:x}:{1:x}"), ("far", "fc00:{2}::{1:x}:{0:x}")]:
    config, listed = list(BASE), []
    for n in range(1, 32):
        typed = [address.format(n, i, "bc"[i % 2]) for i in range(n, 0, -1)]
        config = route(typed, f"2001:db8:7:{n:x}::/64", config)
        p = ip6(f"2001:db8:7:{n:x}::7") / udp()
        listed.append((f"{n} addresses", ether(p), [to_p1(hops(inserted(typed, p)))]))
    Case(f"rpl/insert-lists-{name}", "encap rpl, lists of 1 to 31 addresses.", config, **io(listed))

ONE = ["fc00:b::1"]
hop1 = [(f"hop limit {h}", ip6(IN, hlim=h) / udp()) for h in (1, 0)]
Case(
    "rpl/insert-hop-limit",
    "encap rpl, hop limit 1 and 0: time exceeded.",
    route(ONE),
    [(label, ether(p)) for label, p in hop1],
    expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
    differs="it quotes the packet with the header that it put in",
)
big = ip6(IN) / udp(1300)
Case(
    "rpl/insert-too-big",
    "encap rpl, too big with the new header: the sender is told the MTU less the header.",
    route(ONE, base=SMALL),
    [("UDP of 1300 bytes", ether(big))],
    expect={0: [to_p0(too_big(big, 1280 - 24))]},
    differs="it quotes the packet with the header that it put in, and tells the whole MTU",
)
fits = ip6(IN) / udp(1280 - 48 - 24)
Case(
    "rpl/insert-fits",
    "encap rpl, as long as the MTU with the new header.",
    route(ONE, base=SMALL),
    **io([("UDP of 1208 bytes", ether(fits), [to_p1(hops(inserted(ONE, fits)))])]),
)
hbh = ip6(IN, nh=0) / opts(17, udp())
Case(
    "rpl/insert-hop-by-hop",
    "encap rpl behind hop-by-hop options, which come first: RFC 8200 section 4.1.",
    route(ONE),
    # The checksum is that of the packet as it came.
    [("hop-by-hop options", ether(hbh))],
    expect={
        0: [
            to_p1(
                hops(
                    ip6("fc00:b::1", nh=0)
                    / opts(43, rpl("fc00:b::1", [IN], 1, Raw(bytes(hbh)[48:]), 17))
                )
            )
        ]
    },
    differs="it inserts before them",
)
Case(
    "rpl/insert-no-route",
    "encap rpl, no route to the first address: the sender is told, without the header, whatever the hop limit.",
    route(["fc00:dead::1"]),
    [("UDP", ether(INPUTS[0][1])), ("hop limit 1", ether(hop1[0][1]))],
    expect={0: [to_p0(unreachable6(INPUTS[0][1], 0))], 1: [to_p0(unreachable6(hop1[0][1], 0))]},
    differs="it quotes the packet with the header that it put in",
)

# ----------------------------------------------------------------------------------------- transit

OWN, OWN2 = "2001:db8:1::1", "2001:db8:2::1"
ON = BASE + ["sysctl -qw net.ipv6.conf.all.rpl_seg_enabled=1", "sysctl -qw net.ipv6.conf.p0.rpl_seg_enabled=1"]


def visited(addresses, left, inner, nh, hlim=40, **more):
    """A packet at this router, and as it goes on: the destination and the next address change places, and what
    can be compressed is."""
    before = ip6(OWN, nh=43, hlim=hlim) / rpl(OWN, addresses, left, inner, nh, **more)
    swapped = list(addresses)
    at = len(addresses) - left
    swapped[at] = OWN
    to = addresses[at]
    return before, ip6(to, nh=43, hlim=hlim) / rpl(to, swapped, left - 1, inner, nh)


UDP17 = (Raw(bytes(ip6() / udp())[40:]), 17)
listed, shorter = [], []
for label, addresses, left, more in [
    ("one address", [NEXT], 1, {}),
    ("two addresses", [NEXT, LAST], 2, {}),
    ("two addresses, the last one left", [LAST, NEXT], 1, {}),
    ("near ones", ["2001:db8:6::6", "2001:db8:6::7", "2001:db8:6::8"], 3, {}),
    ("near ones, the last one left", ["2001:db8:6::8", "2001:db8:6::7", "2001:db8:6::6"], 1, {}),
    ("not compressed", ["2001:db8:6::6", "2001:db8:6::7"], 2, dict(cmpr=(0, 0))),
    ("compressed less than could be", ["2001:db8:6::6", "2001:db8:6::7"], 2, dict(cmpr=(3, 1))),
    ("becomes longer", ["2001:db8:1::9", "2001:db8:1::8", NEXT], 1, {}),
    ("becomes much longer", [f"2001:db8:1::{n:x}" for n in range(2, 32)] + [NEXT], 1, {}),
    ("becomes shorter", ["fc00:b::7", "fc00:b::8", "fc00:b::9"], 1, {}),
    ("the same address twice", [NEXT, NEXT], 2, {}),
]:
    before, after = visited(addresses, left, *UDP17, **more)
    which = shorter if len(after) < len(before) else listed
    which.append((label, ether(before), [to_p1(hops(after))]))
for label, inner, nh in [("IPv6 inside", INNER6, 41), ("IPv4 inside", INNER4, 4), ("nothing inside", b"", 59)]:
    before, after = visited([NEXT, LAST], 2, Raw(bytes(inner)), nh)
    listed.append((label, ether(before), [to_p1(hops(after))]))
before, after = visited([NEXT], 1, *UDP17)
listed.append(("bytes behind the packet", behind(ether(before), b"PADDING"), [to_p1(hops(after))]))
twice = ip6(OWN, nh=43) / rpl(OWN, [OWN2, NEXT], 2, *UDP17)
listed.append(
    (
        "by another address of the router",
        ether(twice),
        [to_p1(hops(ip6(NEXT, nh=43) / rpl(NEXT, [OWN, OWN2], 0, *UDP17), 2))],
    )
)
listed.append(
    (
        "used up, IPv6 inside",
        ether(ip6(OWN, nh=43) / rpl(OWN, [LAST, NEXT], 0, INNER6, 41)),
        [to_p1(hops(INNER6))],
    )
)
before, after = visited(["fc00:dead::1", NEXT], 2, *UDP17)
listed.append(("no route to the next address", ether(before), [to_p0(unreachable6(after, 0))]))
Case("rpl/transit", "RPL: on to the next address: RFC 6554 section 4.2.", ON, **io(listed))
Case(
    "rpl/transit-shorter",
    "RPL: on to the next address, with which the others can be compressed more.",
    ON,
    **io(shorter),
    differs="it overwrites the IPv6 header with that of Ethernet where the routing header becomes shorter",
)

ping = ip6(OWN) / ICMPv6EchoRequest(id=7, seq=1)
Case(
    "rpl/transit-arrived",
    "RPL: an echo request behind a header that is used up.",
    ON,
    [("echo request", ether(ip6(OWN, nh=43) / rpl(OWN, [LAST, NEXT], 0, Raw(bytes(ping)[40:]), 58)))],
)

REFUSED = [
    ("a multicast address is next", ["ff02::1", NEXT], 2, {}),
    ("half an address", [LAST, NEXT], 2, dict(cmpr=(0, 0), pad=4)),
    ("more padding than bytes", [NEXT], 1, dict(cmpr=(0, 15), pad=9, hdrlen=1)),
    ("no bytes of addresses", [NEXT], 1, dict(hdrlen=0, pad=0)),
]
Case(
    "rpl/transit-refused",
    "RPL: headers that contradict themselves are dropped.",
    ON,
    [
        (label, ether(ip6(OWN, nh=43) / rpl(OWN, addresses, left, *UDP17, **wrong)))
        for label, addresses, left, wrong in REFUSED
    ],
    expect={},
)
for name, config in [
    ("off", BASE),
    ("off-all", BASE + ["sysctl -qw net.ipv6.conf.p0.rpl_seg_enabled=1"]),
    ("off-link", BASE + ["sysctl -qw net.ipv6.conf.all.rpl_seg_enabled=1"]),
]:
    Case(
        f"rpl/transit-{name}",
        "RPL: where it is not enabled, packets with an RPL header are dropped.",
        config,
        [
            ("addresses left", ether(visited([NEXT], 1, *UDP17)[0])),
            ("used up", ether(ip6(OWN, nh=43) / rpl(OWN, [LAST, NEXT], 0, *UDP17))),
            ("used up, IPv6 inside", ether(ip6(OWN, nh=43) / rpl(OWN, [LAST, NEXT], 0, INNER6, 41))),
        ],
        expect={},
    )


def problem(quoted, pointer):
    """ICMPv6 parameter problem, erroneous header field: RFC 4443 section 3.4."""
    return (
        IPv6(src=OWN, dst=SOURCE, hlim=64)
        / ICMPv6ParamProblem(code=0, ptr=pointer)
        / Raw(bytes(quoted)[:1232])
    )


many = ip6(OWN, nh=43) / rpl(OWN, [LAST, NEXT], 3, *UDP17)
Case(
    "rpl/transit-segments-left",
    "RPL: more segments left than addresses: the sender is told.",
    ON,
    [("three of two", ether(many))],
    expect={0: [to_p0(problem(many, 43))]},
)
hop1 = [(f"hop limit {h}", visited([NEXT, LAST], 2, *UDP17, hlim=h)[0]) for h in (1, 0)]
hop1.append(("hop limit 1, by another address", visited([OWN2, LAST], 2, *UDP17, hlim=1)[0]))
Case(
    "rpl/transit-hop-limit",
    "RPL: hop limit 1 and 0: time exceeded.",
    ON,
    [(label, ether(p)) for label, p in hop1],
    expect={i: [to_p0(time_exceeded(p))] for i, (_, p) in enumerate(hop1)},
    differs="it quotes the packet with the next address already its destination",
)
Case(
    "rpl/transit-nowhere",
    "RPL: the next address is one that no route leads to: the hop limit is not looked at.",
    ON + NOWHERE_ROUTES,
    [
        (f"{label}, hop limit {hlim}", ether(visited([to, LAST], 2, *UDP17, hlim=hlim)[0]))
        for label, to in NOWHERE.items()
        for hlim in (40, 1, 0)
    ],
)
loops = [
    ("two of its addresses", [OWN, NEXT, OWN2], 2),
    ("the same address twice", [OWN2, NEXT, OWN2], 2),
    ("three of its addresses", [OWN, NEXT, OWN2, LAST, OWN], 4),
]
loops = [(label, ip6(OWN, nh=43) / rpl(OWN, a, left, *UDP17)) for label, a, left in loops]
Case(
    "rpl/transit-loop",
    "RPL: addresses of the router with another between them: RFC 6554 section 4.2.",
    ON,
    [(label, ether(p)) for label, p in loops],
    expect={i: [to_p0(problem(p, 0))] for i, (_, p) in enumerate(loops)},
    differs="it forwards with two of its addresses, and quotes the packet with segments left already lowered",
)
opted = ip6(OWN, nh=60) / opts(43, rpl(OWN, [NEXT], 1, *UDP17))
Case(
    "rpl/transit-options",
    "RPL: destination options before the routing header stay.",
    ON,
    [("destination options", ether(opted))],
    expect={0: [to_p1(hops(ip6(NEXT, nh=60) / opts(43, rpl(NEXT, [OWN], 0, *UDP17))))]},
    differs="it puts the header in the place of the options",
)
for device in ("vrf100", "p1"):
    Case(
        f"rpl/transit-vrf-{device}",
        f"RPL: in a VRF, rpl_seg_enabled for all and {device}.",
        VRF
        + ["ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1 table 100"]
        + [f"sysctl -qw net.ipv6.conf.{name}.rpl_seg_enabled=1" for name in ("all", device)],
        [
            (
                "an address left",
                "p1",
                Ether(dst=P1, src=N1) / ip6(OWN2, nh=43) / rpl(OWN2, [NEXT], 1, *UDP17),
            )
        ],
    )
