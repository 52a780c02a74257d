#!/bin/sh
# P, the router between the sites: it knows the locators of the core and no tenant. README.md shows the network.
set -e

sysctl -qw net.ipv6.conf.all.forwarding=1
sysctl -qw net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.west.seg6_enabled=1 net.ipv6.conf.east.seg6_enabled=1

ip link set lo up
ip link set west mtu 1600       # room for the outer headers
ip link set east mtu 1600
ip link set west up
ip link set east up
ip addr add fc00:9::1/128 dev lo nodad
ip addr add fd00:1::9/64 dev west nodad
ip addr add fd00:2::9/64 dev east nodad
ip -6 route add fc00:1::/32 via fd00:1::1 dev west      # PE1
ip -6 route add fc00:2::/32 via fd00:2::1 dev east      # PE2

# The SID that tenant b's packets visit on their way.
ip -6 route add fc00:9::e/128 encap seg6local action End count dev east
