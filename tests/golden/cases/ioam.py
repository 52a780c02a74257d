"""IOAM pre-allocated traces: RFC 9197 section 4.4 in the option of RFC 9486, inserted and filled."""

from .frames import *

NS, DATA, WIDE = 123, 0xDEADBEE0, 0xCAFEC0CAF00DC0DE
NODE = [
    "sysctl -qw net.ipv6.ioam6_id=11259375",
    "sysctl -qw net.ipv6.ioam6_id_wide=4822678189205111",
    "sysctl -qw net.ipv6.conf.p0.ioam6_id=258",
    "sysctl -qw net.ipv6.conf.p1.ioam6_id=772",
    "sysctl -qw net.ipv6.conf.p0.ioam6_id_wide=168496141",
    "sysctl -qw net.ipv6.conf.p1.ioam6_id_wide=437984285",
    f"ip ioam namespace add {NS} data {DATA:#x} wide {WIDE:#x}",
    "ip ioam namespace add 7",
]
ENABLED = ["sysctl -qw net.ipv6.conf.p0.ioam6_enabled=1"]
SCHEMA = ["ip ioam schema add 777 something", f"ip ioam namespace set {NS} schema 777"]
IN6, NEAR = "2001:db8:7::7", "2001:db8:2::2"
BITS = [*range(12), 22]
SHORT, LONG = 0xFF1FFC, 0x00E000


def node_len(kind):
    return bin(kind & SHORT).count("1") + 2 * bin(kind & LONG).count("1")


def option(kind, space, ns=NS, length=None, left=None, overflow=0, ioam_type=0, size=None, data=None):
    """The option; `space` bytes for data, of which `left` × 4 are free."""
    length = node_len(kind) if length is None else length
    left = space // 4 if left is None else left
    data = bytes(space) if data is None else data
    head = struct.pack("!HBB", ns, length << 3 | overflow << 2, left) + struct.pack("!I", kind << 8)
    body = bytes([0, ioam_type]) + head + data
    return bytes([0x31, len(body) if size is None else size]) + body


def hbh(*options, nh=17, inner=None, first=b"\1\0"):
    """A hop-by-hop header, its first option after a PadN that brings it to a multiple of 4."""
    body = first + b"".join(options)
    gap = -(len(body) + 2) % 8
    body += bytes(gap) if gap == 1 else bytes([1, gap - 2]) + bytes(gap - 2) if gap else b""
    return Raw(bytes([nh, (len(body) + 2) // 8 - 1]) + body) / (udp() if inner is None else inner)


def traced(*options, dst=TARGET, hlim=40, src=SOURCE, **more):
    return ip6(dst, src=src, hlim=hlim, nh=0) / hbh(*options, **more)


def kind_of(*bits):
    return sum(1 << 23 - bit for bit in bits)


def route(trace, dst="2001:db8:7::/48", more="", via=f"via {NEAR} "):
    return [f"ip -6 route add {dst} encap ioam6 {more}trace prealloc {trace} {via}dev p1"]


def sent_in(config, *packets):
    return dict(config=config, frames=[(label, ether(packet)) for label, packet in packets])


# -------------------------------------------------------------------------------------------- transit

SINGLE = [(f"bit {bit}", traced(option(kind_of(bit), 24))) for bit in range(24)]
MANY = [
    ("bits 0 to 11", traced(option(0xFFF000, 100))),
    ("bits 0 to 11 and 22", traced(option(0xFFF002, 100))),
    ("bits 0 to 22", traced(option(0xFFFFFE, 160))),
    ("bits 2 and 3", traced(option(0x300000, 24))),
    ("bits 8 and 11", traced(option(0x900000 >> 8 << 4 & 0xFFF000, 24))),
    ("no bit", traced(option(0, 24))),
    ("space for two nodes, one filled", traced(option(0xC00000, 16, left=2, data=bytes(8) + b"earlier!"))),
    ("just enough space", traced(option(0xC00000, 8))),
    ("behind other options", traced(b"\5\2\0\0", option(0x800000, 12))),
    ("two traces", traced(option(0x800000, 12), option(0x400000, 12))),
    ("hop limit 2", traced(option(0x808000, 24), hlim=2)),
    ("hop limit 1", traced(option(0x808000, 24), hlim=1)),
    ("more data than the trace says", traced(option(0x800000, 24, left=3))),
    ("flags L and A", traced(option(0x800000, 12)[:6] + bytes([1 << 3 | 3]) + option(0x800000, 12)[7:])),
]
ODD = [
    ("overflow already", traced(option(0x800000, 12, overflow=1))),
    ("no space left", traced(option(0xC00000, 16, left=0))),
    ("too little space", traced(option(0xC00000, 16, left=1))),
    ("an unknown namespace", traced(option(0x800000, 12, ns=5))),
    ("a namespace without data", traced(option(0x842000 | 0x040000, 32, ns=7))),
    ("another IOAM type", traced(option(0x800000, 12, ioam_type=2))),
    ("an option of 2 bytes, of another type", traced(bytes([0x31, 2, 0, 1]))),
    ("misaligned", traced(option(0x800000, 12), first=b"\1\1\0")),
    ("an option without data", traced(bytes([0x31, 0]))),
    ("an option of 1 byte", traced(bytes([0x31, 1, 0]))),
    ("shorter than the trace's header", traced(bytes([0x31, 9, 0, 0]) + bytes(7))),
    ("RemLen beyond the data", traced(option(0x800000, 12, left=4))),
    ("NodeLen too small", traced(option(0xC00000, 16, length=1))),
    ("NodeLen too great", traced(option(0x800000, 16, length=2))),
    ("NodeLen 0", traced(option(0x800000, 16, length=0))),
    ("for the router itself", traced(option(0xC00000, 16), dst="2001:db8:1::1", nh=59, inner=Raw(b""))),
]
Case("ioam/transit-bits", "Transit: each bit alone.", BASE + NODE + ENABLED, sent_in(None, *SINGLE)["frames"])
Case("ioam/transit", "Transit: several bits, several nodes.", BASE + NODE + ENABLED, sent_in(None, *MANY)["frames"])
Case(
    "ioam/transit-schema",
    "Transit: an opaque state snapshot.",
    BASE + NODE + ENABLED + SCHEMA,
    sent_in(
        None,
        ("bit 22", traced(option(2, 24))),
        ("bits 0 to 11 and 22", traced(option(0xFFF002, 100))),
        ("just enough space", traced(option(0x800002, 20))),
        ("space without the schema", traced(option(0x800002, 16))),
        ("another namespace", traced(option(0x800002, 16, ns=7))),
    )["frames"],
)
Case("ioam/transit-odd", "Transit: what is not filled.", BASE + NODE + ENABLED, sent_in(None, *ODD)["frames"])
Case(
    "ioam/transit-off",
    "Transit: not enabled where the packet comes in.",
    BASE + NODE,
    sent_in(None, *MANY[:3], *ODD)["frames"],
)
Case(
    "ioam/transit-default",
    "Transit: ids as they are at first.",
    BASE + NODE[6:] + ENABLED,
    sent_in(None, ("bits 0 to 11 and 22", traced(option(0xFFF002, 100))))["frames"],
)
Case(
    "ioam/transit-out",
    "Transit: where the packet leaves by.",
    BASE
    + NODE
    + ENABLED
    + [
        "ip -6 route add fc00:a::1/128 encap seg6local action End dev p1",
        "ip -6 route add 2001:db8:7::/48 encap seg6 mode encap segs fc00:b::1 dev p1",
        "ip -6 route add 2001:db8:8::/48 nexthop via 2001:db8:2::2 dev p1 nexthop via 2001:db8:2::3 dev p1",
        "ip -6 route add blackhole 2001:db8:9::/48",
        "ip -6 route add unreachable 2001:db8:a::/48",
    ],
    sent_in(
        None,
        ("back by the port that it came by", traced(option(0xC04000, 24), dst="2001:db8:5::9")),
        ("a neighbour", traced(option(0xC04000, 24), dst=NEAR)),
        (
            "a local SID",
            ip6("fc00:a::1", nh=0)
            / hbh(option(0xC04000, 24), nh=43, inner=srh(["fc00:a::1", LAST], 1, udp())),
        ),
        ("a headend", traced(option(0xC04000, 24), dst=IN6)),
        ("unreachable: the error quotes the trace", traced(option(0xC04000, 24), dst="2001:db8:a::1")),
        ("blackhole", traced(option(0xC04000, 24), dst="2001:db8:9::1")),
    )["frames"],
)

UNKNOWN = b"\x9e\2\0\0"
Case(
    "ioam/transit-refused",
    "Transit: the error about an option quotes the traces before it as they are filled, and not those behind it.",
    BASE + NODE + ENABLED,
    sent_in(
        None,
        ("behind it", traced(option(0xC04000, 24), UNKNOWN)),
        ("before it", traced(UNKNOWN, option(0xC04000, 24))),
        ("on both sides", traced(option(0x804000, 12), UNKNOWN, option(0x804000, 12))),
        ("for the router itself", traced(option(0xC04000, 24), UNKNOWN, dst="2001:db8:1::1")),
        ("without a way", traced(option(0xC04000, 24), UNKNOWN, dst="2001:db8:99::1")),
        ("an unknown namespace", traced(option(0xC04000, 24, ns=5), UNKNOWN)),
    )["frames"],
)

Case(
    "ioam/transit-out-rpl",
    "Transit: of a route with RPL segments the link of the route is where the packet leaves by, wherever the segments lead.",
    BASE
    + NODE
    + ENABLED
    + [
        "ip -6 route add fc00:77::/32 via 2001:db8:1::2 dev p0",
        "ip -6 route add 2001:db8:7::/48 encap rpl segs fc00:77::1 via 2001:db8:2::2 dev p1",
        "ip -6 route add 2001:db8:8::/48 encap rpl segs fc00:99::1,fc00:77::1 dev p1",
    ],
    sent_in(
        None,
        ("by the other link", traced(option(0xC04000, 24), UNKNOWN, dst=IN6)),
        ("nowhere", traced(option(0xC04000, 24), UNKNOWN, dst="2001:db8:8::1")),
    )["frames"],
)

# ------------------------------------------------------------------------------------------ insertion

PLAIN = [
    ("UDP", ip6(IN6) / udp()),
    ("hop limit 2", ip6(IN6, hlim=2) / udp()),
    ("hop limit 1", ip6(IN6, hlim=1) / udp()),
    ("destination options", ip6(IN6, nh=60) / opts(17, udp())),
    ("a hop-by-hop header", ip6(IN6, nh=0) / opts(17, udp())),
    ("no next header", ip6(IN6, nh=59)),
    ("a long packet", ip6(IN6) / udp(1250)),
    ("a trace", traced(option(0xC00000, 16), dst=IN6)),
    ("an SRH", routed(ip6(IN6), [IN6, "fc00:d::1"], 1, udp())),
]
MODES = [
    ("inline", "mode inline "),
    ("encap", "mode encap tundst fc00:b::1 "),
    ("auto", "mode auto tundst fc00:b::1 "),
]
for name, words in MODES:
    for trace in ["type 0x800000 ns 123 size 12", "type 0xfff002 ns 123 size 100"]:
        kind = "one" if "0x80" in trace else "all"
        Case(
            f"ioam/{name}-{kind}",
            f"Insertion, mode {name}, {trace}.",
            BASE + NODE + route(trace, more=words),
            sent_in(None, *PLAIN)["frames"]
            + [("a short frame, padded", behind(ether(ip6(IN6, nh=59)), bytes(6)))],
        )
    # Each bit, a route each.
    config = BASE + NODE
    for bit in BITS:
        trace = f"type {kind_of(bit):#08x} ns 123 size 24"
        config = config + route(trace, dst=f"2001:db8:7:{bit}::/64", more=words)
    Case(
        f"ioam/{name}-bits",
        f"Insertion, mode {name}: each bit alone.",
        config,
        sent_in(None, *[(f"bit {bit}", ip6(f"2001:db8:7:{bit}::7") / udp()) for bit in BITS])["frames"],
    )
Case(
    "ioam/sizes",
    "Insertion: sizes of 4 to 244 bytes, with what the space is too small for.",
    BASE
    + NODE
    + [
        line
        for size in range(4, 248, 4)
        for line in route(f"type 0xfff002 ns 123 size {size}", dst=f"2001:db8:7:{size}::/64")
    ],
    sent_in(
        None, *[(f"{size} bytes", ip6(f"2001:db8:7:{size}::7") / udp()) for size in range(4, 248, 4)]
    )["frames"],
)
Case(
    "ioam/insert-schema",
    "Insertion: an opaque state snapshot.",
    BASE + NODE + SCHEMA + route("type 0x808002 ns 123 size 40") + route("type 0x800002 ns 123 size 16", dst="2001:db8:8::/48"),
    sent_in(None, ("space", ip6(IN6) / udp()), ("too little space", ip6("2001:db8:8::7") / udp()))["frames"],
)
Case(
    "ioam/insert-unknown",
    "Insertion: a namespace that is not there.",
    BASE + NODE + route("type 0xc00000 ns 99 size 16"),
    sent_in(None, ("UDP", ip6(IN6) / udp()))["frames"],
)
Case(
    "ioam/insert-then-transit",
    "Insertion into what came with a trace, which was filled: the trace is left alone.",
    BASE + NODE + ENABLED + route("type 0xc00000 ns 123 size 16", more="mode encap tundst fc00:b::1 "),
    sent_in(None, *PLAIN)["frames"],
)
Case(
    "ioam/on-link",
    "Insertion on the way to a neighbour, and an outer destination that the packet has already.",
    BASE
    + NODE
    + ["ip -6 neigh add 2001:db8:7::7 lladdr 02:00:00:00:01:03 dev p1 nud permanent"]
    + ["ip -6 neigh add 2001:db8:8::7 lladdr 02:00:00:00:01:03 dev p1 nud permanent"]
    + route("type 0xc00000 ns 123 size 16", via="")
    + route("type 0xc00000 ns 123 size 16", dst="2001:db8:8::/48", more="mode encap tundst 2001:db8:8::7 ", via=""),
    sent_in(None, ("inline", ip6(IN6) / udp()), ("encap", ip6("2001:db8:8::7") / udp()))["frames"],
)
Case(
    "ioam/encap-into-itself",
    "The outer destination leads back to the route, by which the packet then leaves; to another route that inserts.",
    BASE
    + NODE
    + ["ip -6 neigh add 2001:db8:7::7 lladdr 02:00:00:00:01:03 dev p1 nud permanent"]
    + route("type 0xc00000 ns 123 size 16", dst="2001:db8:8::/48", more="mode encap tundst 2001:db8:8::9 ")
    + route("type 0x800000 ns 123 size 12", dst="2001:db8:9::/48", more="mode encap tundst 2001:db8:8::9 "),
    sent_in(None, ("to itself", ip6("2001:db8:8::7") / udp()), ("to the other, then to itself", ip6("2001:db8:9::7") / udp()))["frames"],
)
Case(
    "ioam/frequency",
    "Insertion into 2 packets of 5, and into 1 of 2.",
    BASE
    + NODE
    + route("type 0xc00000 ns 123 size 16", more="freq 2/5 ")
    + route("type 0xc00000 ns 123 size 16", dst="2001:db8:8::/48", more="freq 1/2 mode encap tundst fc00:b::1 "),
    sent_in(
        None,
        *[(f"2 of 5, number {n}", ip6(IN6) / udp()) for n in range(10)],
        *[(f"1 of 2, number {n}", ip6("2001:db8:8::7") / udp()) for n in range(4)],
    )["frames"],
)
LONG_ONE = ip6(IN6) / udp(1400)
Case(
    "ioam/too-long",
    "A packet that does not fit with the option: its sender is told what does.",
    BASE
    + NODE
    + route("type 0xfff002 ns 123 size 100")
    + route("type 0xfff002 ns 123 size 100", dst="2001:db8:8::/48", more="mode encap tundst fc00:b::1 "),
    frames=[
        ("inline", ether(LONG_ONE)),
        ("encap", ether(ip6("2001:db8:8::7") / udp(1400))),
    ],
    expect={
        0: [to_p0(too_big(LONG_ONE, 1500 - 120))],
        1: [to_p0(too_big(hops(ip6("2001:db8:8::7") / udp(1400)), 1500 - 160))],
    },
    differs="it tells the MTU of the link, and of an outer header its own source.",
)
IN_VRF = NODE + [
    "sysctl -qw net.ipv6.conf.vrf100.ioam6_id=1111",
    "sysctl -qw net.ipv6.conf.vrf100.ioam6_id_wide=22222222",
    "ip -6 route add 2001:db8:5::/48 via 2001:db8:2::2 dev p1 table 100",
]
THROUGH_VRF = Ether(dst=P1, src=N1)
inside = ip6("2001:db8:8::7", src="2001:db8:6::1") / udp()
own = struct.pack("!HHII", 772, 772, 437984285, 437984285)
inserted = option(kind_of(1, 9), 24, left=3, data=bytes(12) + own)
Case(
    "ioam/vrf-insert",
    "Insertion into packets that come in by a link of a VRF, and leave by it.",
    VRF
    + IN_VRF
    + ["ip -6 route add 2001:db8:8::/48 via 2001:db8:1::2 dev p0"]
    + route("type 0x404000 ns 123 size 24", dst="2001:db8:8::/48", via=f"via {NEAR} table 100 "),
    [("inline", "p1", THROUGH_VRF / inside)],
    expect={0: [to_p1(traced(inserted, inner=Raw(bytes(inside)[40:]), dst=inside.dst, src=inside.src, hlim=39))]},
    differs="it sends by the main table, and takes the VRF's device for that by which the packet came in",
)
# Linux sends what has an option by the main table.
THE_SAME_WAY = [f"ip -6 route add {to} via {NEAR} dev p1" for to in ("2001:db8:6::/64", "fc00:b::/32", "fc00:b::/32 table 100")]
PINGED = THROUGH_VRF / IPv6(src="2001:db8:6::1", dst="2001:db8:2::1", hlim=40) / ICMPv6EchoRequest(id=7, seq=1, data=b"hello")
for name, words in MODES:
    Case(
        f"ioam/vrf-own-{name}",
        f"Insertion, mode {name}, into what the router itself sends by a link of a VRF: it comes from the VRF's device.",
        VRF + IN_VRF + THE_SAME_WAY + route("type 0xfff000 ns 123 size 60", dst="2001:db8:6:0::/64", more=words, via=f"via {NEAR} table 100 "),
        [("an echo request", "p1", PINGED), ("a port that nobody listens to", "p1", THROUGH_VRF / IPv6(src="2001:db8:6::1", dst="2001:db8:2::1", hlim=40) / udp())],
    )
for device in ("vrf100", "p1"):
    Case(
        f"ioam/vrf-transit-{device}",
        f"A trace in a packet that comes in by a link of a VRF, where ioam6_enabled is that of {device}.",
        VRF + IN_VRF + [f"sysctl -qw net.ipv6.conf.{device}.ioam6_enabled=1"],
        [
            (
                "bits 1 and 9",
                "p1",
                THROUGH_VRF / traced(option(kind_of(1, 9), 24), dst="2001:db8:5::5", src="2001:db8:6::1"),
            )
        ],
    )
for name, words in MODES:
    lines = BASE + NODE
    for n, (kind, options) in enumerate([("ip6tnl", "mode any hoplimit 5"), ("ip6gre", "hoplimit 1"), ("ip6gre", "hoplimit inherit encaplimit none")], 1):
        far = f"2001:db8:7:{n}::7"
        lines = lines + [
            f"ip link add tun{n} type {kind} local 2001:db8:2::1 remote {far} flowlabel 0x12345 {options}",
            f"ip link set tun{n} addrgenmode none",
            f"ip link set tun{n} up",
            f"ip route add 10.7.{n}.0/24 dev tun{n}",
        ]
        lines += route("type 0xfff000 ns 123 size 60", dst=f"{far}/128", more=words)
    Case(
        f"ioam/{name}-tunnel",
        f"Insertion, mode {name}, into the outer header of a tunnel: it comes from the tunnel's device, and its hop limit is its own.",
        lines,
        [(f"tun{n}", ether(ip4(f"10.7.{n}.7") / udp())) for n in (1, 2, 3)],
        links=False,
    )

# What a policy puts before the header of a trace.
TO_POLICY = route("type 0xc00000 ns 123 size 16", more="mode encap tundst fc00:b::1 ")
POLICIES = {
    "encap": ["encap seg6 mode encap segs fc00:c::1"],
    "reduced": ["encap seg6 mode encap.red segs fc00:c::1"],
    "two": ["encap seg6 mode encap segs fc00:c::1", "encap seg6 mode encap segs 2001:db8:2::2"],
    "trace": ["encap ioam6 mode encap tundst fc00:c::1 trace prealloc type 0xc00000 ns 123 size 16"],
}
for name, ways in POLICIES.items():
    Case(
        f"ioam/encap-then-{name}",
        "The outer destination of what has a trace leads to another route that puts headers before it.",
        BASE + NODE + TO_POLICY + [f"ip -6 route add fc00:{chr(ord('b') + n)}::/48 {way} dev p1" for n, way in enumerate(ways)],
        sent_in(None, ("UDP", ip6(IN6) / udp()), ("hop limit 2", ip6(IN6, hlim=2) / udp()))["frames"],
    )
