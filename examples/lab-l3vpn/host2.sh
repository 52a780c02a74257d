#!/bin/sh
# The host of either tenant at site 2: both have the same addresses.
set -e

ip link set lo up
ip link set eth0 up
ip addr add 10.2.0.2/24 dev eth0
ip addr add fd10:2::2/64 dev eth0 nodad
ip route add default via 10.2.0.1
ip -6 route add default via fd10:2::1
