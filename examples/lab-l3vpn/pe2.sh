#!/bin/sh
# PE2, the provider edge router of the second site. README.md shows the network.
set -e

sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
sysctl -qw net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.core.seg6_enabled=1
sysctl -qw net.vrf.strict_mode=1

# The core. fc00:2::/32 is PE2's locator: P and PE1 have routes to it.
ip link set lo up
ip link set core mtu 1600       # room for the outer headers
ip link set core up
ip addr add fc00:2::1/128 dev lo nodad
ip addr add fd00:2::1/64 dev core nodad
ip -6 route add fc00:1::/32 via fd00:2::9 dev core src fc00:2::1     # PE1
ip -6 route add fc00:9::/32 via fd00:2::9 dev core src fc00:2::1     # P

# A VRF for each tenant, with the same addresses in both.
ip link add vrf-a type vrf table 10
ip link set vrf-a up
ip link set cust-a master vrf-a
ip link set cust-a up
ip addr add 10.2.0.1/24 dev cust-a
ip addr add fd10:2::1/64 dev cust-a nodad
ip route add 10.77.0.0/24 via 10.2.0.2 dev cust-a table 10      # b has none

ip link add vrf-b type vrf table 20
ip link set vrf-b up
ip link set cust-b master vrf-b
ip link set cust-b up
ip addr add 10.2.0.1/24 dev cust-b
ip addr add fd10:2::1/64 dev cust-b nodad

# What no route of a tenant takes is refused there and never reaches another table.
ip route add unreachable default metric 4278198272 table 10
ip -6 route add unreachable default metric 4278198272 table 10
ip route add unreachable default metric 4278198272 table 20
ip -6 route add unreachable default metric 4278198272 table 20

# What comes from the core: one SID a tenant, each with its own counters.
ip -6 route add fc00:2:0:a::/128 encap seg6local action End.DT46 vrftable 10 count dev vrf-a
ip -6 route add fc00:2:0:b::/128 encap seg6local action End.DT46 vrftable 20 count dev vrf-b

# What goes to the core. Tenant a takes the shortest way: the reduced list leaves the only segment out, so
# there is no SRH. Tenant b goes by way of P's End SID. The outer packet is looked up in the tenant's table.
ip sr tunsrc set fc00:2::1
ip -6 route add fc00:1:0:a::/128 via fd00:2::9 dev core table 10
ip route add 10.1.0.0/24 encap seg6 mode encap.red segs fc00:1:0:a:: dev core table 10
ip -6 route add fd10:1::/64 encap seg6 mode encap.red segs fc00:1:0:a:: dev core table 10

ip -6 route add fc00:9::e/128 via fd00:2::9 dev core table 20
ip route add 10.1.0.0/24 encap seg6 mode encap.red segs fc00:9::e,fc00:1:0:b:: dev core table 20
ip -6 route add fd10:1::/64 encap seg6 mode encap.red segs fc00:9::e,fc00:1:0:b:: dev core table 20
