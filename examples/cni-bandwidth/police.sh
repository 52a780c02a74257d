#!/bin/sh
# The same limits for a pod without an ifb: what comes from it is policed where it comes in.
#
#   police.sh add DEV RATE BURST
#   police.sh del DEV
set -e
action=$1 dev=$2 rate=$3 burst=$4

case $action in
add)
    # To the pod.
    tc qdisc add dev "$dev" root handle 1: tbf rate "$rate" burst "$burst" latency 25ms
    # From the pod.
    tc qdisc add dev "$dev" handle ffff: ingress
    tc filter add dev "$dev" parent ffff: protocol all prio 1 matchall \
        action police rate "$rate" burst "$burst" conform-exceed drop
    ;;
del)
    tc qdisc del dev "$dev" root
    tc qdisc del dev "$dev" ingress
    ;;
esac
