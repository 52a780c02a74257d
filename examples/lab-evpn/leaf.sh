#!/bin/sh
# A leaf of evpn.yaml: sh leaf.sh NUMBER. FRR does the rest.
set -e
number=$1
own=10.0.0.$number

# The underlay: room for the outer headers, and the address that VXLANs have.
ip addr add $own/32 dev lo
ip link set core up
ip addr add 10.9.$number.1/24 dev core

# vxlan VNI: a VXLAN on the bridge of the same number, whose stations bgpd tells of: the bridge learns none there, and answers
# who asks for the address of one.
vxlan() {
    ip link add "vxlan$1" type vxlan id "$1" dstport 4789 local "$own" nolearning
    ip link set "vxlan$1" master "br$1"
    ip link set "vxlan$1" type bridge_slave learning off neigh_suppress on
    ip link set "vxlan$1" up
}

# tenant VRF TABLE VNI: a VRF, and the VNI by which the leaves route between them.
tenant() {
    ip link add "$1" up type vrf table "$2"
    ip link add "br$3" type bridge
    ip link set "br$3" master "$1" up
    vxlan "$3"
}

# network VRF VNI GATEWAY PORT...: a network of a tenant. The gateway has the same address and the same MAC address on
# each leaf that has the network, so that a host that moves keeps it.
network() {
    vrf=$1 vni=$2 gateway=$3
    shift 3
    ip link add "br$vni" address "02:00:00:00:0${vni%??}:${vni#?}" type bridge
    ip link set "br$vni" master "$vrf" up
    ip addr add "$gateway" dev "br$vni"
    vxlan "$vni"
    for port; do
        ip link set "$port" master "br$vni" up
    done
}

tenant red 100 1000
tenant blue 200 2000
case $number in
1)
    network red 110 10.1.1.1/24 red1 red4
    network blue 210 10.1.1.1/24 blue1
    ;;
2)
    network red 110 10.1.1.1/24 red2 red1
    network blue 210 10.1.1.1/24 blue2
    network red 120 10.1.2.1/24 red3
    network blue 220 10.1.2.1/24 blue3
    ;;
esac
