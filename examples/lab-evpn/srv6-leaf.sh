#!/bin/sh
# A leaf of srv6.yaml: sh srv6-leaf.sh NUMBER OTHER. FRR does the rest: the routes between networks of a tenant.
set -e
number=$1 other=$2

# The underlay.
ip addr add "fd00::$number/128" dev lo
ip link set core up
ip addr add "fd09:$number::1/64" dev core nodad
sh srv6-ways.sh "$other" "fd09:$number::9"
ip sr tunsrc set "fd00::$number"

# service NETWORK: a bridge's port for the other leaf. What is for one station goes to an End.DT2U, all else to an End.DT2M.
service() {
    ip link add "srl$1" type srv6l2
    ip link set "srl$1" master "br$1"
    ip link set "srl$1" mtu 1500
    ip link set "srl$1" up
    underpass sid add "fc00:$number:$1::d2" End.DT2U --oif "srl$1" --count
    underpass sid add "fc00:$number:$1::d3" End.DT2M --oif "srl$1" --count
    bridge fdb append 00:00:00:00:00:00 dev "srl$1" dst "fc00:$other:$1::d3"
}

# network VRF NETWORK GATEWAY PORT...: a network of a tenant. The gateway has the same address and the same MAC address on
# each leaf that has the network, so that a host that moves keeps it.
network() {
    vrf=$1 network=$2 gateway=$3
    shift 3
    ip link add "br$network" address "02:00:00:00:0${network%??}:${network#?}" type bridge
    ip link set "br$network" master "$vrf" up
    ip addr add "$gateway" dev "br$network"
    for port; do
        ip link set "$port" master "br$network" up
    done
}

ip link add red up type vrf table 100
ip link add blue up type vrf table 200
case $number in
1)
    network red 110 10.1.1.1/24 red1
    network blue 210 10.1.1.1/24 blue1
    ;;
2)
    network red 110 10.1.1.1/24 red2 red1
    network blue 210 10.1.1.1/24 blue2
    network red 120 10.1.2.1/24 red3
    network blue 220 10.1.2.1/24 blue3
    ;;
esac
service 110
service 210
