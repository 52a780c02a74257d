#!/bin/sh
# What the bandwidth plugin of Kubernetes' CNI does for a pod whose device on the host is DEV: what goes to the pod is
# shaped where it leaves by DEV; what comes from it is redirected to an ifb and shaped there.
#
#   ifb-tbf.sh add DEV RATE BURST
#   ifb-tbf.sh del DEV
set -e
action=$1 dev=$2 rate=$3 burst=$4
ifb=bwp-$dev

case $action in
add)
    # To the pod ("ingress" to the plugin).
    tc qdisc add dev "$dev" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    # From the pod ("egress").
    ip link add "$ifb" type ifb
    ip link set "$ifb" up
    tc qdisc add dev "$dev" handle ffff: ingress
    tc filter add dev "$dev" parent ffff: protocol all prio 1 u32 match u32 0 0 flowid 1:1 \
        action mirred egress redirect dev "$ifb"
    tc qdisc add dev "$ifb" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    ;;
del)
    tc qdisc del dev "$dev" root
    tc qdisc del dev "$dev" ingress
    ip link del "$ifb"
    ;;
esac
