#!/bin/sh
# The same limits for a pod without an ifb: what comes from it is policed where it comes in.
#
#   police.sh add DEV RATE BURST
#   police.sh del DEV
#
# Where a step fails, those before it are undone.
set -e
action=$1 dev=$2 rate=$3 burst=$4

undo=
undo_all() {
    status=$?
    [ "$status" = 0 ] || eval "$undo"
    exit "$status"
}
case $action in
add)
    trap undo_all EXIT
    # To the pod.
    tc qdisc add dev "$dev" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    undo="tc qdisc del dev '$dev' root; $undo"
    # From the pod.
    tc qdisc add dev "$dev" handle ffff: ingress
    undo="tc qdisc del dev '$dev' ingress; $undo"
    tc filter add dev "$dev" parent ffff: protocol all prio 1 matchall \
        action police rate "$rate" burst "$burst" conform-exceed drop
    trap - EXIT
    ;;
del)
    tc qdisc del dev "$dev" root
    tc qdisc del dev "$dev" ingress
    ;;
esac
