#!/bin/sh
# The same network on a Linux that has VRF and SRv6 itself: a network namespace for each host and router, each
# configured by its own script. As root: sh linux.sh, then for example
#
#     ip netns exec lab-a1 ping 10.2.0.2
#
# and at the end: sh linux.sh down
set -e
cd "$(dirname "$0")"

all="a1 b1 pe1 p pe2 a2 b2"
if [ "$1" = down ]; then
    for name in $all; do ip netns del "lab-$name"; done
    exit
fi

for name in $all; do ip netns add "lab-$name"; done

# join NAMESPACE DEVICE NAMESPACE DEVICE
join() { ip link add "$2" netns "lab-$1" type veth peer name "$4" netns "lab-$3"; }
join a1 eth0 pe1 cust-a
join b1 eth0 pe1 cust-b
join pe1 core p west
join p east pe2 core
join pe2 cust-a a2 eth0
join pe2 cust-b b2 eth0

configure() { ip netns exec "lab-$1" sh "$2"; }
configure a1 host1.sh
configure b1 host1.sh
configure pe1 pe1.sh
configure p p.sh
configure pe2 pe2.sh
configure a2 host2.sh
configure b2 host2.sh
ip -n lab-a2 addr add 10.77.0.1/32 dev lo       # tenant a alone has it
