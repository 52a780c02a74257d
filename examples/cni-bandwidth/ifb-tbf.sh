#!/bin/sh
# What the bandwidth plugin of Kubernetes' CNI does for a pod whose device on the host is DEV: what goes to the pod is
# shaped where it leaves by DEV; what comes from it is redirected to an ifb and shaped there.
#
#   ifb-tbf.sh add DEV RATE BURST
#   ifb-tbf.sh del DEV
#
# Where a step fails, those before it are undone.
set -e
action=$1 dev=$2 rate=$3 burst=$4
ifb=bwp-$dev
# A name has 15 characters at most: a long one becomes a hash, as in the plugin.
if [ ${#ifb} -gt 15 ]; then
    ifb=bwp$(printf %s "$dev" | sha1sum | cut -c 1-12)
fi

undo=
undo_all() {
    status=$?
    [ "$status" = 0 ] || eval "$undo"
    exit "$status"
}
case $action in
add)
    trap undo_all EXIT
    # To the pod ("ingress" to the plugin).
    tc qdisc add dev "$dev" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    undo="tc qdisc del dev '$dev' root; $undo"
    # From the pod ("egress").
    ip link add "$ifb" type ifb
    undo="ip link del '$ifb'; $undo"
    ip link set "$ifb" up
    tc qdisc add dev "$dev" handle ffff: ingress
    undo="tc qdisc del dev '$dev' ingress; $undo"
    tc filter add dev "$dev" parent ffff: protocol all prio 1 u32 match u32 0 0 flowid 1:1 \
        action mirred egress redirect dev "$ifb"
    tc qdisc add dev "$ifb" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    trap - EXIT
    ;;
del)
    tc qdisc del dev "$dev" root
    tc qdisc del dev "$dev" ingress
    ip link del "$ifb"
    ;;
esac
