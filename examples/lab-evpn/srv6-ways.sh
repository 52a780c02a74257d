#!/bin/sh
# The ways to a leaf: sh srv6-ways.sh LEAF GATEWAY. Its address, the SIDs of its bridges, and bgpd's locator.
set -e
for prefix in "fd00::$1/128" "fc00:$1::/32" "fd01:0:0:$1::/64"; do
    ip -6 route add "$prefix" via "$2"
done
