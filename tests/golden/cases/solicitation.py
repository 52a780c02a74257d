"""Neighbour solicitations for the router's own addresses: which are answered, to whom. RFC 4861 sections 7.1.1 and 7.2.4.

Who asks has another address and MAC address in each input, as Linux learns both: 2001:db8:1::N and 02:00:00:00:aa:N."""

from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr as Target

from .frames import *

OWN = "2001:db8:1::1"
GROUP = "ff02::1:ff00:1"
NODES, ROUTERS = "ff02::1", "ff02::2"
ANYCAST = "2001:db8:1::"
KNOWN = "2001:db8:1::2"
OTHER = "02:00:00:00:bb:bb"
# Options that are not link-layer addresses: a nonce, and one of a type that nobody knows.
NONCE, UNKNOWN = bytes([14, 1, 1, 2, 3, 4, 5, 6]), bytes([200, 2]) + bytes(14)


def mac_of(n):
    return f"02:00:00:00:aa:{n:02x}"


def source(mac, length=1, kind=1):
    return bytes([kind, length]) + bytes.fromhex(mac.replace(":", "")) + bytes(8 * length - 8 if length else 0)


def asked(n, to=GROUP, target=OWN, options=source, src=None, hlim=255, code=0, kind=ICMPv6ND_NS, behind=None):
    """What neighbour N sends; `options` may be made of its MAC address, `behind` makes what carries the message."""
    options = options(mac_of(n)) if callable(options) else options
    address = ip_address(to)
    dst = "33:33:" + address.packed[-4:].hex(":") if address.is_multicast else P0
    header = IPv6(src=f"2001:db8:1::{n:x}" if src is None else src, dst=to, hlim=hlim)
    message = kind(tgt=target, code=code) / Raw(options)
    if behind is not None:
        # The checksum is that of the message alone.
        message = Raw(bytes(header / message)[40:])
        header.nh, message = behind(message)
    return Ether(dst=dst, src=mac_of(n)) / header / message


def answer(n, flags, dst=None, mac=None, target=OWN, option=True):
    """The advertisement that RFC 4861 section 7.2.4 has the router send."""
    message = ICMPv6ND_NA(tgt=target, R="R" in flags, S="S" in flags, O="O" in flags)
    message = message / Target(lladdr=P0) if option else message
    header = IPv6(src=OWN, dst=f"2001:db8:1::{n:x}" if dst is None else dst, hlim=255)
    return [("p0", Ether(dst=mac_of(n) if mac is None else mac, src=P0) / header / message)]


ASKED = [
    ("to the group of the address", {}),
    ("to the address", dict(to=OWN)),
    ("to all nodes", dict(to=NODES)),
    ("to all routers", dict(to=ROUTERS)),
    ("to the group of another address", dict(to="ff02::1:ff00:99")),
    ("for the address of the other port", dict(target="2001:db8:2::1")),
    ("for nobody's", dict(target="2001:db8:1::99", to="ff02::1:ff00:99")),
    ("for a group", dict(target=GROUP)),
    ("for a group, to the address", dict(target=NODES, to=OWN)),
    ("a probe", dict(src="::", options=b"")),
    ("a probe to all nodes", dict(src="::", options=b"", to=NODES)),
    ("a probe to all routers", dict(src="::", options=b"", to=ROUTERS)),
    ("a probe to the address", dict(src="::", options=b"", to=OWN)),
    ("a probe with a nonce", dict(src="::", options=NONCE)),
    ("a probe with a source option", dict(src="::")),
    ("a probe with a source option, to all nodes", dict(src="::", to=NODES)),
    ("a probe with a source option that is too long", dict(src="::", options=lambda mac: source(mac, 2))),
    ("a probe with an option of no length", dict(src="::", options=bytes([14, 0, 1, 2, 3, 4, 5, 6]))),
    ("a hop limit of 254", dict(hlim=254)),
    ("code 1", dict(code=1)),
    ("an option of no length", dict(options=bytes(8))),
    ("a source option of no length", dict(options=lambda mac: source(mac, 0))),
    ("an option of no length behind the source", dict(options=lambda mac: source(mac) + bytes([14, 0, 1, 2, 3, 4, 5, 6]))),
    ("an option beyond the end", dict(options=bytes([14, 2, 1, 2, 3, 4, 5, 6]))),
    ("a source option beyond the end", dict(options=lambda mac: source(mac, 2)[:8])),
    ("an option beyond the end behind the source", dict(options=lambda mac: source(mac) + bytes([14, 2, 1, 2, 3, 4, 5, 6]))),
    ("a byte of an option behind the source", dict(options=lambda mac: source(mac) + b"\1")),
    ("an option of another type", dict(options=lambda mac: UNKNOWN + source(mac))),
    ("a nonce and the source", dict(options=lambda mac: NONCE + source(mac))),
    ("another MAC in the option", dict(options=source("02:00:00:00:bb:01"))),
    ("another MAC in the option, to the address", dict(options=source("02:00:00:00:bb:02"), to=OWN)),
    ("another MAC in the option, to all nodes", dict(options=source("02:00:00:00:bb:03"), to=NODES)),
    ("two source options", dict(options=lambda mac: source("02:00:00:00:bb:04") + source(mac))),
    ("a source option that is too long", dict(options=lambda mac: source(mac, 2))),
    ("one that is too long, then one that is not", dict(options=lambda mac: source(mac, 2) + source(mac))),
    ("one that is right, then one that is too long", dict(options=lambda mac: source(mac) + source(mac, 2))),
    ("from a group", dict(src="ff02::5")),
    ("for the anycast address, to it", dict(target=ANYCAST, to=ANYCAST)),
    ("from another network", dict(src="2001:db8:77::7")),
    ("behind destination options", dict(behind=lambda message: (60, opts(58, message)))),
    ("behind hop-by-hop options", dict(behind=lambda message: (0, opts(58, message)))),
    ("an advertisement", dict(kind=ICMPv6ND_NA)),
]
Case(
    "ip/solicitation",
    "Neighbour solicitations for the router's own addresses: which are answered, and to whom.",
    BASE,
    [(label, asked(n, **what)) for n, (label, what) in enumerate(ASKED, 0x10)],
    remembers=True,
    neighbours=True,
)

DIFFERENT = [
    ("no options", dict(options=b""), answer(0x50, "RSO")),
    ("no options, to the address", dict(options=b"", to=OWN), answer(0x51, "RS", option=False)),
    ("a target option", dict(options=lambda mac: source(mac, kind=2)), answer(0x52, "RSO")),
    ("another MAC in the option than the known one", dict(src=KNOWN, options=source(OTHER)), answer(0x53, "RSO", KNOWN, OTHER)),
    ("for the anycast address", dict(target=ANYCAST, to="ff02::1:ff00:0"), answer(0x54, "RS", target=ANYCAST)),
    (
        "a probe for the anycast address",
        dict(target=ANYCAST, to="ff02::1:ff00:0", src="::", options=b""),
        answer(0x55, "R", NODES, "33:33:00:00:00:01", target=ANYCAST),
    ),
]
Case(
    "ip/solicitation-at-once",
    "A router that asks nobody answers at once whoever asks, at the address that the solicitation says.",
    BASE,
    [(label, asked(n, **what)) for n, (label, what, _) in enumerate(DIFFERENT, 0x50)],
    expect={n: frames for n, (_, _, frames) in enumerate(DIFFERENT)},
    differs="it answers whom it knows, at the address that it knows, and for anycast addresses after a random time",
    remembers=True,
    neighbours=True,
)
