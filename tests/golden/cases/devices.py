"""Tunnels as devices: outer packets that the device itself would send, and what is heard of those of a device in a VRF."""

from .frames import *
from .tunnel import IN4, IN6, heard, heard6, outer6, tunnel

# A packet to the far end goes into the device again, with other parameters than before.
for kind in ("bareudp", "ipip", "gre", "ip6tnl", "ip6gre"):
    wide = kind.startswith("ip6")
    key = lambda end: f"encap ip6 id 5 dst 2001:db8:77::{end} src 2001:db8:2::1 hoplimit 64" if wide else f"encap ip id 5 dst 10.77.0.{end} src 198.51.100.1 ttl 64"
    ip, far = ("ip -6", "2001:db8:77::/48") if wide else ("ip", "10.77.0.0/16")
    for name, way in [("key", f"{key(9)} dev tun1"), ("device", "dev tun1")]:
        Case(
            f"tunnel/{kind}/loop-{name}",
            f"{kind}: the way to the far end is the device, {'with another key' if name == 'key' else 'without a key'}.",
            BASE
            + [
                f"ip link add tun1 type {kind} " + ("dstport 6635 ethertype ipv4 multiproto" if kind == "bareudp" else "external"),
                "ip link set tun1 addrgenmode none",
                "ip link set tun1 up",
                f"ip route add 10.7.0.0/16 {key(8)} dev tun1",
                f"ip -6 route add 2001:db8:7::/48 {key(8)} dev tun1",
                f"{ip} route add {far} {way}",
                "tc qdisc add dev tun1 clsact",
                "tc filter add dev tun1 egress protocol all matchall action pass",
            ],
            [("IPv4", ether(ip4(IN4) / udp())), ("IPv6", ether(ip6(IN6) / udp()))],
            shows=["tc -s filter show dev tun1 egress"],
            remembers=True,
        )

# The sender is outside the VRF, where a route leads into the device; the tenant has another sender.
for name, more in [("out", []), ("in", ["ip link set p0 master vrf100", *(line for line in BASE if "p0" in line and "link set" not in line)])]:
    Case(
        f"tunnel/ip6tnl/errors-vrf-{name}",
        f"ip6tnl in a VRF, the sender {'outside' if name == 'out' else 'inside'} it: who hears of an error of the underlay.",
        tunnel(
            "ip6tnl",
            "mode any",
            before=["ip link add vrf100 type vrf table 100", "ip link set vrf100 up"],
            after=["ip link set tun1 master vrf100", "ip route replace 10.7.0.0/16 dev tun1 table 100", "ip -6 route replace 2001:db8:7::/48 dev tun1 table 100"]
            + (["ip route replace 10.7.0.0/16 dev tun1", "ip -6 route replace 2001:db8:7::/48 dev tun1"] if name == "out" else []),
        )
        + [line.replace(" addr add ", " addr replace ").replace(" neigh add ", " neigh replace ").replace(" route add ", " route replace ") + (" table 100" if " route add " in line else "") for line in more],
        [
            heard(f"{what}: {label}", heard6(outer6(proto, inner, 4), *code))
            for what, proto, inner in [("IPv4", 4, ip4(IN4) / udp()), ("IPv6", 41, ip6(IN6) / udp())]
            for label, code in [("no route", (1, 0)), ("hop limit exceeded", (3, 0))]
        ],
        links=False,
    )
