"""Tunnels that are bound to a link of the underlay: by which routes their outer packets leave."""

from .frames import *
from .tunnel import IN4, IN6, tunnel

# What comes in is looked up elsewhere than what goes out.
APART = ["ip rule add iif p0 table 100", "ip route add 10.7.0.0/16 dev tun1 table 100"]
APART6 = ["ip -6 rule add iif p0 table 100", "ip -6 route add 2001:db8:7::/48 dev tun1 table 100"]


def of(kind, options, after):
    """A tunnel tun1 into which what comes in goes."""
    mode = "mode any " if kind in ("sit", "ip6tnl") else ""
    lines = [f"ip link add tun1 type {kind} {options} {mode}".rstrip(), "ip link set tun1 addrgenmode none", "ip link set tun1 up"]
    return BASE + lines + (APART6 if kind.startswith("ip6") else APART) + after


def to4(address):
    return (address, ether(ip4(address) / udp()))


def to6(address):
    return (address, ether(ip6(address) / udp()))


for kind in ("ipip", "sit"):
    routes = [
        "ip route add 10.7.1.0/24 via 198.51.100.3 dev p1",
        "ip route add 10.7.1.0/25 via 192.0.2.2 dev p0",
        "ip route add 10.7.2.0/24 nexthop via 192.0.2.2 dev p0 nexthop via 198.51.100.3 dev p1 nexthop via 198.51.100.2 dev p1",
        "ip route add unreachable 10.7.3.0/24",
        "ip route add throw 10.7.4.0/24",
        "ip addr add 10.7.6.6/32 dev p0",
        "ip addr add 10.7.7.7/32 dev p1",
        "ip route add 10.7.8.0/24 via 198.51.100.2 dev p1 mtu 600",
        "ip nexthop add id 1 via 192.0.2.2 dev p0",
        "ip nexthop add id 2 via 198.51.100.3 dev p1",
        "ip nexthop add id 3 group 1/2",
        "ip nexthop add id 4 blackhole",
        "ip route add 10.7.9.0/24 nhid 3",
        "ip route add 10.7.10.0/24 nhid 4",
        "ip route add 10.7.11.0/24 via 192.0.2.2 dev p0",
        "ip route add 10.7.11.0/24 via 198.51.100.3 dev p1 metric 50",
    ]
    routes += [f"ip neigh add 10.7.{n}.9 lladdr 02:00:00:00:09:{n:02} dev p1 nud permanent" for n in (3, 4, 6, 10, 20)]
    Case(
        f"tunnel/{kind}/by-link",
        f"{kind} without a remote address: only routes by its link lead to the other end, which without one is on the link",
        of(kind, "dev p1", routes),
        [to4(address) for address in ("10.7.1.9", "10.7.2.9", "10.7.3.9", "10.7.4.9", "10.7.6.9", "10.7.7.7", "10.7.9.9", "10.7.10.9", "10.7.11.9", "10.7.20.9")]
        + [("600 bytes fit", ether(ip4("10.7.8.9", flags="DF") / udp(600 - 48))), ("601 do not", ether(ip4("10.7.8.9", flags="DF") / udp(601 - 48)))],
        links=False,
    )
    Case(
        f"tunnel/{kind}/by-link-rules",
        f"{kind} without a remote address: rules that name its link",
        of(
            kind,
            "dev p1",
            [
                "ip rule add oif p0 table 101",
                "ip rule add oif p1 to 10.7.1.0/24 table 102",
                "ip rule add oif p1 to 10.7.2.0/24 unreachable",
                "ip rule add to 10.7.3.0/24 oif p1 blackhole",
                "ip route add 10.7.0.0/16 via 198.51.100.2 dev p1 table 101",
                "ip route add 10.7.0.0/16 via 198.51.100.3 dev p1 table 102",
                "ip neigh add 10.7.2.9 lladdr 02:00:00:00:09:02 dev p1 nud permanent",
                "ip neigh add 10.7.3.9 lladdr 02:00:00:00:09:03 dev p1 nud permanent",
                "ip neigh add 10.7.4.9 lladdr 02:00:00:00:09:04 dev p1 nud permanent",
            ],
        ),
        [to4(f"10.7.{n}.9") for n in (1, 2, 3, 4)],
    )
    Case(
        f"tunnel/{kind}/by-link-vrf",
        f"{kind} without a remote address, by a link in a VRF: what no route leads to is nowhere",
        ["ip link add red type vrf table 10", "ip link set red up", "ip link set p1 master red"]
        + of(
            kind,
            "dev p1",
            [
                "ip route add 10.7.1.0/24 via 198.51.100.3 dev p1 table 10",
                "ip route add 10.7.1.0/25 via 192.0.2.2 dev p0",
                "ip neigh add 10.7.2.9 lladdr 02:00:00:00:09:02 dev p1 nud permanent",
            ],
        ),
        [to4("10.7.1.9")],
    )
    Case(
        f"tunnel/{kind}/by-link-moved",
        f"{kind} without a remote address: its link comes up, and leaves a VRF",
        ["ip link add red type vrf table 10", "ip link set red up", "ip link set p1 master red"]
        + of(
            kind,
            "dev p1",
            ["ip link set p1 down", "ip link set p1 nomaster", "ip link set p1 up", "ip neigh add 10.7.2.9 lladdr 02:00:00:00:09:02 dev p1 nud permanent"],
        ),
        [to4("10.7.2.9")],
    )
for kind in ("ipip", "sit", "gre", "gretap"):
    for what, doc, far, line in [
        ("mtu", "by a route with an MTU", "203.0.113.9", "ip route add 203.0.113.9/32 via 198.51.100.3 dev p1 mtu 600"),
        ("group", "to a group", "239.1.2.3", "ip route add 239.0.0.0/8 via 192.0.2.2 dev p0"),
    ]:
        if what == "group" and kind == "sit":
            continue
        Case(
            f"tunnel/{kind}/dev-{what}",
            f"{kind} that is bound to a link, {doc}",
            tunnel(kind, "dev p1", ends=f"local 198.51.100.1 remote {far}", after=[line]),
            [to4(IN4), ("700 bytes", ether(ip4(IN4, flags="DF") / udp(672)))],
            links=False,
        )
for kind in ("ip6tnl", "ip6gre"):
    Case(
        f"tunnel/{kind}/dev-rules",
        f"{kind} that is bound to a link: a rule that names it",
        tunnel(
            kind,
            "mode any dev p1" if kind == "ip6tnl" else "dev p1",
            ends="local 2001:db8:2::1 remote 2001:db8:f::9",
            after=[
                "ip -6 rule add oif p1 table 101",
                "ip -6 route add 2001:db8:f::/48 via 2001:db8:2::3 dev p1 table 101",
                "ip -6 route add 2001:db8:f::/48 via 2001:db8:2::2 dev p1",
            ],
        ),
        [to6(IN6)],
    )
    Case(
        f"tunnel/{kind}/dev-group",
        f"{kind} that is bound to a link, to a group",
        tunnel(kind, "mode any dev p1" if kind == "ip6tnl" else "dev p1", ends="local 2001:db8:2::1 remote ff05::7"),
        [to6(IN6)],
    )
Case(
    "tunnel/ip6tnl/by-link",
    "ip6tnl without a remote address: its link is only preferred, among routes that are equally good",
    of(
        "ip6tnl",
        "local 2001:db8:2::1 dev p1",
        [
            "ip -6 route add 2001:db8:7:1::/64 via 2001:db8:2::3 dev p1",
            "ip -6 route add 2001:db8:7:1::/80 via 2001:db8:1::2 dev p0",
            "ip -6 route add 2001:db8:7:2::/64 dev p0",
            "ip -6 route append 2001:db8:7:2::/64 dev p1",
            "ip neigh add 2001:db8:7:2::9 lladdr 02:00:00:00:09:02 dev p1 nud permanent",
            "ip neigh add 2001:db8:7:2::9 lladdr 02:00:00:00:09:03 dev p0 nud permanent",
            "ip -6 rule add oif p1 to 2001:db8:7:3::/64 table 101",
            "ip -6 route add 2001:db8:7:3::/64 via 2001:db8:2::2 dev p1 table 101",
            "ip -6 route add 2001:db8:7:3::/64 via 2001:db8:1::2 dev p0",
        ],
    ),
    [to6(f"2001:db8:7:{n}::9") for n in (1, 2, 3)],
)
for kind in ("ipip", "sit", "gre", "gretap"):
    packet = ip4(IN4) / udp()
    Case(
        f"tunnel/{kind}/no-address",
        f"{kind} from an address that the router does not have",
        tunnel(kind, ends="local 198.51.100.77 remote 198.51.100.2"),
        differs="it sends nothing, and tells nobody",
        **io([("IPv4", ether(packet), [to_p0(icmp4(hops(packet), 3, 0))])]),
        links=False,
    )
for kind in ("ipip", "sit", "gre", "gretap"):
    near, far = ("address 02:00:00:00:00:77 ", "address 02:00:00:00:01:77 ") if kind == "gretap" else ("", "")
    mode = " mode any" if kind == "sit" else ""
    Case(
        f"tunnel/{kind}/own-ends",
        f"{kind} whose two ends are the router's",
        tunnel(
            kind,
            mode.strip(),
            ends="local 192.0.2.1 remote 198.51.100.1",
            after=[
                f"ip link add tun2 {far}type {kind} local 198.51.100.1 remote 192.0.2.1{mode}",
                "ip link set tun2 addrgenmode none",
                "ip link set tun2 up",
                "ip rule add iif tun2 table 100",
                "ip route add 10.7.0.0/16 via 198.51.100.3 dev p1 table 100",
            ],
        ),
        [to4(IN4), ("TTL 2", ether(ip4(IN4, ttl=2) / udp()))],
    )
    Case(
        f"tunnel/{kind}/own-far-end",
        f"{kind} to an address of the router's, where no tunnel ends",
        tunnel(kind, mode.strip(), ends="local 192.0.2.1 remote 198.51.100.1"),
        [to4(IN4)],
    )

for kind in ("ipip", "gre", "gretap"):
    Case(
        f"tunnel/{kind}/out-of-vrf",
        f"{kind} bound to a link of a VRF, whose outer packets leave by a link outside: their source is an address of the VRF's",
        tunnel(kind, "", ends="remote 203.0.113.9 dev p1", base=VRF + ["ip addr add 198.51.100.9/32 dev p1", "ip route add 203.0.113.0/24 via 192.0.2.2 dev p0"]),
        [to4(IN4), ("IPv6", ether(ip6(IN6) / udp()))][: 1 if kind == "ipip" else 2],
    )
