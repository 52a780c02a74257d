"""End.BPF: the programs in tests/golden/bpf on packets."""

from .endpoint import NOT_ENDED, OPAQUE, PADTLV, T100, VRF_PORT
from .frames import *
from .headend import wrapped


def bpf(program, base=BASE):
    return sid(f"End.BPF endpoint obj bpf/{program}.o section seg6", base)


def tagged(tag, inner=INNER6, segments=None, left=1, hlim=40, **more):
    segments = segments or [SID, NEXT]
    return ether(routed(ip6(SID, hlim=hlim), segments, left, inner, tag=tag, **more))


Case(
    "endpoint/bpf-plain",
    "End.BPF with a program that does nothing: the next segment, as End.",
    bpf("plain"),
    [
        ("SRH of 2, IPv6 inside", tagged(0)),
        ("SRH of 3, UDP", tagged(0, udp(), [SID, NEXT, LAST], 2)),
        ("reduced SRH: 1 segment, segments left 1", tagged(0, INNER4, [NEXT])),
        ("TLVs", tagged(7, tlvs=OPAQUE + PADTLV)),
        (
            "hop-by-hop options before the SRH",
            ether(ip6(SID, nh=0) / opts(43, srh([SID, NEXT], 1, INNER6))),
        ),
        ("bytes behind the packet", behind(tagged(0), b"PADDING")),
        ("next segment unroutable", tagged(0, segments=[SID, "fc00:dead::1"])),
    ],
)
Case(
    "endpoint/bpf-tag",
    "End.BPF with a program that raises the tag of the SRH by one.",
    bpf("tag"),
    [("tag 0", tagged(0)), ("tag 65535", tagged(65535)), ("UDP", tagged(41, udp(), [SID, NEXT, LAST], 2))],
)
Case(
    "endpoint/bpf-refused",
    "End.BPF refuses what End does, before its program sees it.",
    bpf("plain"),
    [(label, frame) for label, frame in NOT_ENDED if label != "no SRH, hop limit 1"],
)
RULES = T100 + [
    "ip -6 rule add fwmark 7 lookup 100",
    "ip -6 route add prohibit fc00:d1::/32",
    "ip -6 route add blackhole fc00:d2::/32",
    "ip -6 route add unreachable fc00:d3::/32",
]
DEAD = "fc00:dead::1"
Case(
    "endpoint/bpf-write",
    "Programs write to the SRH: bpf_lwt_seg6_store_bytes and bpf_lwt_seg6_adjust_srh.",
    bpf("steer"),
    [
        ("tag", tagged(1)),
        ("flags and tag", tagged(2)),
        ("segments left: refused", tagged(3)),
        ("the first segment of the list: refused", tagged(4)),
        ("the end of the list, which Linux lets pass", tagged(5)),
        ("a TLV behind the others", tagged(6)),
        ("the same behind a TLV", tagged(6, tlvs=PADTLV)),
        ("the same with UDP inside", tagged(6, udp(), [SID, NEXT, LAST], 2)),
        ("8 bytes of zeros", tagged(7)),
        ("4 bytes: the length is not a multiple of 8", tagged(8)),
        ("a TLV taken out", tagged(9, tlvs=PADTLV)),
        ("the first of two taken out", tagged(9, tlvs=OPAQUE + PADTLV)),
        ("none to be taken out", tagged(9)),
        ("room inside the list: refused", tagged(10)),
        ("more taken out than there is", tagged(11, tlvs=PADTLV)),
        ("a TLV before the others", tagged(12, tlvs=PADTLV)),
        ("a broken TLV", tagged(13)),
        ("a broken TLV, an action, the TLV put right", tagged(14)),
        ("new pointers after a move", tagged(49)),
        ("an SRH that becomes too long", tagged(51)),
    ],
)
Case(
    "endpoint/bpf-action",
    "Programs choose where packets go: bpf_lwt_seg6_action, BPF_REDIRECT.",
    bpf("steer", RULES),
    [
        ("End.X", tagged(15)),
        ("End.X with half an address", tagged(16)),
        ("End.T", tagged(17)),
        ("End.T, a table that is not there, BPF_OK", tagged(18)),
        ("End.T, a table that is not there, BPF_REDIRECT", tagged(19)),
        ("End.T with table 0", tagged(20)),
        ("End.DT6", tagged(21)),
        ("End.DT6 of an SRH with segments left", tagged(21, segments=[SID, NEXT, LAST], left=2)),
        ("End.DT6 with table 0, BPF_OK", tagged(22)),
        ("End.DT6 of UDP", tagged(23, udp())),
        ("End.DT6 of IPv4", tagged(23, INNER4)),
        ("End.B6", tagged(24)),
        ("End.B6, BPF_OK", tagged(25)),
        ("End.B6 with UDP inside", tagged(24, udp(), [SID, NEXT, LAST], 2)),
        ("End.B6, what it returns", tagged(50)),
        ("End.B6.Encaps", tagged(26)),
        ("End.B6.Encaps with segments left 0, BPF_OK", tagged(27)),
        ("End.B6.Encaps with half a list", tagged(28)),
        ("End.B6.Encaps and a TLV in it", tagged(29)),
        ("End", tagged(34)),
        ("End.X unroutable", tagged(44)),
        ("End.T unroutable", tagged(45, segments=[SID, DEAD])),
        ("End.T prohibited", tagged(18, segments=[SID, DEAD])),
        ("End.DT6, then End.B6.Encaps", tagged(46)),
        ("BPF_REDIRECT to nowhere", tagged(30)),
        ("a mark for rules", tagged(39)),
    ],
)
Case(
    "endpoint/bpf-vrf",
    "What comes in by a link of a VRF goes on from End.BPF, and is looked up by its program, in the VRF.",
    VRF_PORT
    + [
        f"ip -6 route add fc00:77::{n}/128 encap seg6local action End.BPF endpoint obj bpf/{program}.o section seg6 dev p1"
        for n, program in enumerate(["tag", "steer"], 1)
    ],
    [
        (
            f"{name}, {to}",
            ether(routed(IPv6(src="2001:db8:5::5", dst=sid, hlim=9), [sid, to], 1, udp(), tag=tag)),
        )
        for name, sid, tag in [
            ("BPF_OK", "fc00:77::1", 0),
            ("End.T with table 0", "fc00:77::2", 20),
            ("End.B6", "fc00:77::2", 24),
            ("End.B6.Encaps", "fc00:77::2", 26),
        ]
        for to in ["fc00:88::1", "fc00:99::1"]
    ],
)
Case(
    "endpoint/bpf-routes",
    "What bpf_lwt_seg6_action returns of routes that discard.",
    bpf("steer", RULES),
    [
        (f"{action}: {kind}", tagged(tag, segments=[SID, f"{prefix}::1"]))
        for tag, action in [(20, "End.T"), (50, "End.B6")]
        for prefix, kind in [
            ("fc00:d1", "prohibit"),
            ("fc00:d2", "blackhole"),
            ("fc00:d3", "unreachable"),
            ("fc00:dead", "none"),
        ]
    ],
)
# The SRH that the packet came with remains that of the program, and is no longer where it was.
Case(
    "endpoint/bpf-no-way",
    "Programs insert a header where the first segment has no way: what they write to then, and what becomes of the packet.",
    bpf("steer", [line for line in RULES if "fc00:c" not in line] + ["ip -6 route add prohibit fc00:c::/32"]),
    [
        (label, tagged(tag, **more))
        for label, tag, more in [
            ("End.B6, dropped", 24, {}),
            ("End.B6, the tag written", 50, {}),
            ("End.B6 with UDP inside, the tag written", 50, {"inner": udp(), "segments": [SID, NEXT, LAST], "left": 2}),
            ("End.B6 of an SRH with a TLV, the tag written", 50, {"tlvs": PADTLV}),
            ("End.B6.Encaps, dropped", 26, {}),
            ("End.B6.Encaps and a TLV in it", 29, {}),
        ]
    ],
)
Case(
    "endpoint/bpf-return",
    "What a program returns.",
    bpf("steer"),
    [
        ("1", tagged(31)),
        ("BPF_DROP", tagged(32)),
        ("BPF_LWT_REROUTE", tagged(33)),
        ("BPF_OK", tagged(99)),
    ],
)
Case(
    "endpoint/bpf-context",
    "What a program reads, and helpers that need nothing of SRv6.",
    bpf("steer"),
    [
        ("bpf_skb_load_bytes beyond the packet", tagged(35)),
        ("bpf_skb_load_bytes", tagged(36)),
        ("bpf_csum_diff", tagged(37)),
        ("bpf_skb_pull_data beyond the packet", tagged(38)),
        ("len", tagged(40)),
        ("len of a frame with bytes behind the packet", behind(tagged(40), b"PADDING")),
        ("protocol", tagged(41)),
        ("cb, mark, priority, pkt_type, gso_size, tc_index", tagged(42)),
        ("ifindex and ingress_ifindex", tagged(43)),
        ("a loop over the list", tagged(47)),
        ("arithmetic", tagged(48)),
        ("arithmetic on another length", tagged(48, ip6() / udp(99))),
    ],
)
Case(
    "endpoint/bpf-hop-limit",
    "End.BPF at hop limit 1: time exceeded, or the packet inside goes on.",
    bpf("steer", RULES),
    [
        ("BPF_OK", tagged(99, hlim=1)),
        ("End.DT6", tagged(21, hlim=1)),
    ],
)
Case(
    "endpoint/bpf-hop-limit-encaps",
    "End.BPF with End.B6.Encaps at hop limit 1: time exceeded, without the headers of this router.",
    bpf("steer"),
    [("End.B6.Encaps", tagged(26, hlim=1))],
    expect={0: [to_p0(time_exceeded(routed(ip6(NEXT, hlim=1), [SID, NEXT], 0, INNER6, tag=26)))]},
    differs="it tells the source of the outer header, which is itself",
)
Case(
    "endpoint/bpf-count",
    "Global data and an array that outlive the packet: every third is dropped.",
    bpf("count"),
    [(f"packet {n}", tagged(0, segments=[SID, NEXT, LAST, NEXT], left=1 + n % 3)) for n in range(9)]
    + [("beyond the array", tagged(0, segments=[SID] + [NEXT] * 7, left=6))],
)
FAR = "fc00:7::1"
LONGER = routed(ip6(FAR, hlim=40), [SID, FAR], 0, INNER6, tag=6, tlvs=bytes([4, 6, 0, 0, 0, 0, 0, 0]))
Case(
    "endpoint/bpf-l2encap",
    "A program adds a TLV, and the next segment leads to a headend of frames: the frame is the one that the packet came in.",
    bpf("steer") + [f"ip -6 route add {FAR}/128 encap seg6 mode l2encap segs {NEXT} dev p1"],
    [("a TLV", tagged(6, segments=[SID, FAR]))],
    expect={0: [to_p1(wrapped("l2encap", [NEXT], LONGER, frame=Ether(dst=P0, src=N0) / LONGER))]},
    differs="it sends what the moved headers have left of the Ethernet header",
)
