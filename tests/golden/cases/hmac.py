"""HMAC TLVs: RFC 8754 section 2.1.2. The digests are Python's own; keys and secrets are made up."""

import hashlib
import hmac

from .frames import *
from .headend import IN4, IN6, LIST, OWN, policy, wrapped

SECRETS = {1: ("sha1", "made up"), 2: ("sha256", "also made up"), 3: ("sha256", "x" * 63)}
KEYS = [f"ip sr hmac set {key} {kind} <<< '{secret}'" for key, (kind, secret) in SECRETS.items()]
UNKNOWN = 77
FLAG = 8


def digest(key, source, segments, flags=FLAG, secret=None):
    """RFC 8754 section 2.1.2.1; `segments` as they are listed, in the order of the visit."""
    kind, known = SECRETS.get(key, ("sha256", "unknown"))
    text = ip_address(source).packed + struct.pack("!BBI", len(segments) - 1, flags, key)
    text += b"".join(ip_address(s).packed for s in reversed(segments))
    made = hmac.new((secret or known).encode(), text, getattr(hashlib, kind)).digest()
    return made.ljust(32, b"\0")


def tlv(key, made, kind=5, first=0):
    return struct.pack("!BBHI", kind, 6 + len(made), first, key) + made


def sealed(packet, key, at=40):
    """A packet, its SRH at `at` with an HMAC besides."""
    raw = bytearray(bytes(packet))
    count = raw[at + 4] + 1
    segments = [bytes(raw[at + 8 + 16 * i : at + 24 + 16 * i]) for i in reversed(range(count))]
    made = digest(key, bytes(raw[8:24]), segments)
    raw[at + 1] += 5
    raw[at + 5] |= FLAG
    raw[at + 8 + 16 * count : at + 8 + 16 * count] = tlv(key, made)
    raw[4:6] = struct.pack("!H", len(raw) - 40)
    return IPv6(bytes(raw))


def made(mode, segs, inner, key, src=OWN):
    """What a policy with `hmac` sends. Reduced to nothing, the list stays whole for its HMAC, as in Linux."""
    whole = mode.removesuffix(".red") if len(segs) == 1 else mode
    return sealed(wrapped(whole, segs, inner, src=src, frame=ether(inner)), key)


# ------------------------------------------------------------------------------------------ made

for mode in ["encap", "encap.red", "inline", "l2encap", "l2encap.red"]:
    name = mode.replace(".", "-")
    config, listed, count = BASE + KEYS, [], 0
    for key in SECRETS:
        for n in (1, 2, 3):
            count += 1
            config = policy(mode, LIST[:n], config, dst=f"2001:db8:7:{count:x}::/64", more=f"hmac {key} ")
            p = ip6(f"2001:db8:7:{count:x}::7") / udp()
            other = ip6(f"2001:db8:7:{count:x}::8", src="2001:db8:5::77") / udp()
            label = f"key {key}, {n} segments"
            listed.append((label, ether(p), [to_p1(made(mode, LIST[:n], p, key))]))
            listed.append((label + ", another flow", ether(other), [to_p1(made(mode, LIST[:n], other, key))]))
            if mode != "inline":
                config = policy(mode, LIST[:n], config, dst=f"10.7.{count}.0/24", more=f"hmac {key} ")
                p = ip4(f"10.7.{count}.7") / udp()
                listed.append((label + ", IPv4", ether(p), [to_p1(made(mode, LIST[:n], p, key))]))
    Case(f"hmac/{name}", f"mode {mode} with an HMAC, of sha1 and sha256.", config, **io(listed))
    # Of inline the destination is a segment too.
    longest = 13 if mode == "inline" else 15 if mode.endswith("red") else 14
    config, short, long = BASE + KEYS, [], []
    for n in range(1, 31):
        segs = [f"fc00:b::{n:x}:{i:x}" for i in range(1, n + 1)]
        line = policy(mode, segs, [], dst=f"2001:db8:7:{n:x}::/64", more="hmac 2 ")
        config = config + line
        p = ip6(f"2001:db8:7:{n:x}::7") / udp()
        one = (f"{n} segments", ether(p), [to_p1(made(mode, segs, p, 2))])
        (short if n <= longest else long).append(one)
    Case(f"hmac/{name}-lists", f"mode {mode} with an HMAC, up to {longest} segments.", config, **io(short))
    Case(
        f"hmac/{name}-lists-long",
        f"mode {mode} with an HMAC, {longest + 1} to 30 segments.",
        config,
        **io(long),
        differs="it drops the packet: what an HMAC covers must be shorter than 256 bytes",
    )

TWO = [("IPv6", ether(ip6(IN6) / udp())), ("IPv4", ether(ip4(IN4) / udp()))]
INPUTS = [ip6(IN6) / udp(), ip4(IN4) / udp()]


def both(mode, key, base):
    segs = LIST[:2]
    return policy(
        mode, segs, policy(mode, segs, base, more=f"hmac {key} "), dst="10.7.0.0/16", more=f"hmac {key} "
    )


def two(mode, key, src=OWN):
    return {i: [to_p1(made(mode, LIST[:2], p, key, src))] for i, p in enumerate(INPUTS)}


Case("hmac/unknown", "A policy whose key is not there.", both("encap", UNKNOWN, BASE + KEYS), TWO, {})
Case(
    "hmac/unknown-inline",
    "The same, inline.",
    policy("inline", LIST[:2], BASE, more="hmac 2 "),
    TWO[:1],
    {},
)
Case(
    "hmac/deleted",
    "The key of a policy is deleted.",
    both("encap", 2, BASE + KEYS) + ["ip sr hmac set 2 sha256 <<< ''"],
    TWO,
    {},
)
Case(
    "hmac/key-later",
    "The key of a policy is set after it.",
    both("encap", 2, BASE) + KEYS,
    TWO,
    two("encap", 2),
)
Case(
    "hmac/key-changed",
    "The key of a policy is set anew.",
    both("encap.red", 2, BASE + ["ip sr hmac set 2 sha1 <<< 'the old one'"]) + KEYS,
    TWO,
    two("encap.red", 2),
)
Case(
    "hmac/tunsrc",
    "The source that the HMAC covers is that of ip sr tunsrc.",
    both("encap", 2, BASE + KEYS) + ["ip sr tunsrc set fc00:99::1"],
    TWO,
    two("encap", 2, "fc00:99::1"),
)

# ------------------------------------------------------------------------------------------ checked


def arrives(segments, left, inner, key=None, **more):
    packet = routed(ip6(SID), segments, left, inner, **more)
    return packet if key is None else sealed(packet, key)


def spoilt(packet, at, value):
    raw = bytearray(bytes(packet))
    raw[at] ^= value
    return IPv6(bytes(raw))


def with_tlvs(segments, left, inner, tlvs, flags=FLAG):
    return routed(ip6(SID), segments, left, inner, tlvs=tlvs, flags=flags)


def inputs(segments, left, inner):
    """What a SID may be sent."""
    size = 16 * len(segments)
    good = arrives(segments, left, inner, 2)
    sha1 = arrives(segments, left, inner, 1)
    right = digest(2, SOURCE, segments)
    pad = bytes([4, 6, 0, 0, 0, 0, 0, 0])
    return [
        ("sha1", ether(sha1)),
        ("sha256", ether(good)),
        ("a secret of 63 bytes", ether(arrives(segments, left, inner, 3))),
        ("no HMAC", ether(arrives(segments, left, inner))),
        ("the flag without an HMAC", ether(arrives(segments, left, inner, flags=FLAG))),
        ("no SRH", ether(ip6(SID, nh=41) / INNER6)),
        ("an unknown key", ether(arrives(segments, left, inner, UNKNOWN))),
        ("the first byte of the digest wrong", ether(spoilt(good, 56 + size, 1))),
        ("its last bit wrong", ether(spoilt(good, 56 + size + 31, 1))),
        ("the last byte of sha1 wrong", ether(spoilt(sha1, 56 + size + 19, 0x80))),
        ("not 0 behind sha1", ether(spoilt(sha1, 56 + size + 20, 1))),
        ("the digest of another key", ether(with_tlvs(segments, left, inner, tlv(2, digest(3, SOURCE, segments))))),
        ("another source", ether(spoilt(good, 23, 1))),
        ("another segment", ether(spoilt(good, 48 + size - 1, 1) if left == 0 else spoilt(good, 48 + size - 3, 1))),
        ("another flag", ether(spoilt(good, 45, 1))),
        ("another tag: not covered", ether(spoilt(good, 46, 1))),
        ("the D bit: not covered", ether(spoilt(good, 50 + size, 0x80))),
        ("padding before it", ether(with_tlvs(segments, left, inner, pad + tlv(2, right)))),
        ("padding behind it", ether(with_tlvs(segments, left, inner, tlv(2, right) + pad))),
        ("without its flag", ether(with_tlvs(segments, left, inner, tlv(2, right), 0))),
        ("a digest of 24 bytes", ether(with_tlvs(segments, left, inner, pad + tlv(2, right[:24])))),
        ("another type of TLV", ether(with_tlvs(segments, left, inner, tlv(2, right, kind=6)))),
    ]


NEXTS = BASE + ["ip -6 route add 2001:db8:7::/48 via 2001:db8:2::2 dev p1"]
TABLE = NEXTS + ["ip -6 route add 2001:db8:6::/48 via 2001:db8:2::3 dev p1 table 100"]
ACTIONS = [
    ("end", "End", NEXTS, "p0", [SID, NEXT], 1, INNER6),
    ("end-x", "End.X nh6 2001:db8:2::3", NEXTS, "p0", [SID, NEXT], 1, INNER6),
    ("end-t", "End.T table main", NEXTS, "p0", [SID, NEXT, LAST], 2, INNER4),
    ("end-psp", "End flavors psp", NEXTS, "p0", [SID, NEXT], 1, INNER6),
    ("b6", "End.B6 srh segs fc00:b::7", NEXTS, "p0", [SID, NEXT], 1, INNER6),
    ("b6-encaps", "End.B6.Encaps srh segs fc00:b::7", NEXTS, "p0", [SID, NEXT], 1, INNER6),
    ("dx2", "End.DX2 oif p1", NEXTS, "p0", [NEXT, SID], 0, FRAME),
    ("dx4", "End.DX4 nh4 0.0.0.0", NEXTS, "p0", [NEXT, SID], 0, INNER4),
    ("dx6", "End.DX6 nh6 2001:db8:2::3", NEXTS, "p0", [NEXT, SID], 0, INNER6),
    ("dt6", "End.DT6 table 100", TABLE, "p0", [NEXT, SID], 0, INNER6),
    ("dt4", "End.DT4 vrftable 100", VRF, "vrf100", [NEXT, SID], 0, INNER4),
    ("dt46", "End.DT46 vrftable 100", VRF, "vrf100", [NEXT, SID], 0, INNER6),
]
for name, action, base, dev, segments, left, inner in ACTIONS:
    doc = action.split()[0]
    for require, text in [(-1, "never"), (0, "where there is one"), (1, "always")]:
        if require and name not in ("end", "end-psp", "b6", "dx6", "dt46"):
            continue
        Case(
            f"hmac/check-{name}" + {-1: "-never", 0: "", 1: "-always"}[require],
            f"{doc} checks HMACs {text}: seg6_require_hmac={require}.",
            sid(action, base + KEYS, dev) + [f"sysctl -qw net.ipv6.conf.p0.seg6_require_hmac={require}"],
            inputs(segments, left, inner),
        )

csid = "fc00:a:1::"
Case(
    "hmac/check-un",
    "NEXT-CSID looks at no SRH while its argument is not 0.",
    NEXTS
    + KEYS
    + [
        f"ip -6 route add {csid}/48 encap seg6local action End flavors next-csid count dev p0",
        "ip -6 route add fc00:a:b::/48 via 2001:db8:2::2 dev p1",
        "sysctl -qw net.ipv6.conf.p0.seg6_require_hmac=1",
    ],
    [
        ("argument, no HMAC", ether(routed(ip6("fc00:a:1:b::"), ["fc00:a:1:b::", NEXT], 1, INNER6))),
        ("no argument, no HMAC", ether(routed(ip6(csid), [csid, NEXT], 1, INNER6))),
        ("no argument, an HMAC", ether(sealed(routed(ip6(csid), [csid, NEXT], 1, INNER6), 2))),
    ],
)
Case(
    "hmac/check-lists",
    "HMACs over 1 to 14 segments.",
    sid("End", NEXTS + KEYS),
    [
        (f"{n} segments", ether(arrives([NEXT] * (n - 1) + [LAST], 1, INNER6, 1 + n % 3)))
        for n in range(1, 15)
    ],
)
Case(
    "hmac/check-lists-long",
    "HMACs over 15 and more segments.",
    # Without count: Linux counts errors.
    [line.replace(" count ", " ") for line in sid("End", NEXTS + KEYS)],
    **io(
        [
            (
                f"{n} segments",
                ether(arrives([NEXT] * (n - 1) + [LAST], 1, INNER6, 2)),
                [to_p1(hops(sealed(routed(ip6(LAST), [NEXT] * (n - 1) + [LAST], 0, INNER6), 2)))],
            )
            for n in (15, 16, 31, 60)
        ]
    ),
    differs="it drops the packet: what an HMAC covers must be shorter than 256 bytes",
)
Case(
    "hmac/check-hop-limit",
    "A bad HMAC at hop limit 1: nobody is told.",
    sid("End", NEXTS + KEYS),
    [
        (
            "hop limit 1, a wrong digest",
            ether(spoilt(sealed(routed(ip6(SID, hlim=1), [SID, NEXT], 1, INNER6), 2), 56 + 32, 1)),
        )
    ],
    expect={},
)
for name, device in [("port", "p1"), ("vrf", "vrf100"), ("all", "all"), ("default", "default")]:
    base = VRF if device in ("p1", "vrf100") else NEXTS
    port, more = ("p1", " table 100") if base is VRF else ("p0", "")
    Case(
        f"hmac/require-{name}",
        f"seg6_require_hmac of {device}" + (", where the port is in a VRF." if base is VRF else "."),
        base
        + KEYS
        + ["ip -6 route add fc00:b::/32 via 2001:db8:2::2 dev p1" + more] * (base is VRF)
        + [
            f"ip -6 route add {SID}/128 encap seg6local action End count dev p1{more}",
            f"sysctl -qw net.ipv6.conf.{device}.seg6_require_hmac=1",
        ],
        [
            (label, port, Ether(dst=P1 if port == "p1" else P0, src=N1 if port == "p1" else N0) / packet)
            for label, packet in [
                ("no HMAC", arrives([SID, NEXT], 1, INNER6)),
                ("an HMAC", arrives([SID, NEXT], 1, INNER6, 2)),
            ]
        ],
    )
for name, action in [("b6", "End.B6"), ("b6-encaps", "End.B6.Encaps")]:
    for key in (2, UNKNOWN):
        Case(
            f"hmac/{name}" + ("-unknown" if key == UNKNOWN else ""),
            f"{action} with a policy of its own that has an HMAC" + (", its key unknown." if key == UNKNOWN else "."),
            sid(f"{action} srh segs fc00:b::7,fc00:c::8 hmac {key}", NEXTS + KEYS),
            [
                ("no HMAC", ether(arrives([SID, NEXT], 1, INNER6))),
                ("an HMAC of its own", ether(arrives([SID, NEXT], 1, INNER6, 1))),
            ],
        )
Case(
    "hmac/after-end",
    "The next segment of End has a policy whose key is unknown.",
    policy("encap", LIST[:2], sid("End", NEXTS), dst="fc00:d::/32", more="hmac 9 "),
    [("SRH of 2", ether(routed(ip6(SID), [SID, "fc00:d::1"], 1, INNER6)))],
    {},
)
Case(
    "hmac/end-to-end",
    "A policy to a SID of the same router, which checks what it made.",
    policy("encap", [SID, NEXT], sid("End", BASE + KEYS), more="hmac 2 ")
    + ["sysctl -qw net.ipv6.conf.p0.seg6_require_hmac=1"],
    TWO[:1],
)
