#!/bin/sh
# A router at the edge: sh edge.sh NUMBER OTHER.
set -e
number=$1 other=$2
local=192.0.2.$((number * 128 - 118)) remote=192.0.2.$((other * 128 - 118))
gateway=192.0.2.$((number * 128 - 127))

ip link set near up
ip link set far up
ip addr add 10.$number.0.1/24 dev near
ip addr add fd0$number::1/64 dev near nodad
ip addr add $local/25 dev far
ip route add 192.0.2.0/24 via $gateway

# What comes in UDP at these ports is unpacked.
ip fou add port 5555 ipproto 4
ip fou add port 5556 ipproto 41
ip fou add port 5557 gue

in_udp() {
    ip link add "$1" type "$2" local $local remote $remote ttl 64 encap "$3" encap-sport auto encap-dport "$4"
    ip link set "$1" up mtu 1500
}
in_udp ipip ipip fou 5555
in_udp sit sit fou 5556
in_udp gre gre gue 5557
ip route add 10.$other.0.0/24 dev ipip
ip -6 route add fd0$other::/64 dev sit
ip route add 10.$other.1.0/24 dev gre
# The host behind it has one address of that network.
ip route add 10.$number.1.0/24 via 10.$number.0.2

# The same without UDP, for comparison.
ip link add bare type gre local $local remote $remote ttl 64 key 9
ip link set bare up
