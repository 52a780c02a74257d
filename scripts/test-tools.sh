#!/usr/bin/env bash
# Installs what some tests need and this machine lacks, if this is root on a Debian or Ubuntu: FRR, Chromium, tshark, libpcap,
# valgrind, busybox, Go, promtool, sudo, keepalived, BIRD, ethtool, nftables, iperf3, scapy, pyroute2, and programs that manage a host's
# network.
# Never fails: the tests that miss one are skipped, and say so.
set -uo pipefail

wanted=()
[ -e /usr/lib/frr/zebra ] || wanted+=(frr)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
    wanted+=(chromium)
command -v tshark >/dev/null || wanted+=(tshark)
ldconfig -p | grep 'libpcap\.so' >/dev/null || wanted+=(libpcap0.8)
command -v valgrind >/dev/null || wanted+=(valgrind)
[ -x /usr/bin/python3 ] || wanted+=(python3)
[[ $(ldd "$(command -v busybox)" 2>&1) == *'not a dynamic executable'* ]] || wanted+=(busybox-static)
command -v go >/dev/null || wanted+=(golang-go)
command -v sudo >/dev/null || wanted+=(sudo)
command -v keepalived >/dev/null || wanted+=(keepalived)
command -v bird >/dev/null || wanted+=(bird2)
command -v ethtool >/dev/null || wanted+=(ethtool)
command -v nft >/dev/null || wanted+=(nftables)
command -v iperf3 >/dev/null || wanted+=(iperf3)
/usr/bin/python3 -c 'import scapy.all' 2>/dev/null || wanted+=(python3-scapy)
[ -x /usr/lib/systemd/systemd-networkd ] || wanted+=(systemd)
command -v dbus-daemon >/dev/null || wanted+=(dbus-daemon)
# Where systemd runs, installing it would have it take over the machine's network.
command -v NetworkManager >/dev/null || [ -d /run/systemd/system ] || wanted+=(network-manager)
command -v ifup >/dev/null || [ -d /run/systemd/system ] || wanted+=(ifupdown)
/usr/bin/python3 -c 'import pyroute2' 2>/dev/null || wanted+=(python3-pyroute2)
# They cannot be installed beside ifupdown and busybox-static, and prometheus would start: their files are unpacked.
unpacked=$(realpath -m "${CARGO_TARGET_DIR:-target}")
for package in ifupdown2 busybox prometheus; do
    [ -d "$unpacked/$package" ] || wanted+=("$package")
done
# Built from source it takes a minute.
if [[ $(gobgpd --version 2>/dev/null) != *\ 3.[3-9][0-9].* ]] || ! command -v gobgp >/dev/null; then
    echo "test-tools: no GoBGP 3.37: its test will be skipped, unless what" \
        "go install github.com/osrg/gobgp/v3/cmd/{gobgp,gobgpd}@v3.37.0 makes is in the path" >&2
fi
# iproute2 and FRR of a newer Debian, beside this machine's: twenty seconds.
if [ ! -d "$unpacked/newer" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "test-tools: unpacking iproute2 and FRR of Debian 13" >&2
    timeout 120 "$(dirname "$0")/newer-tools.sh" >/dev/null 2>&1 ||
        echo "test-tools: they could not be had: their tests will be skipped" >&2
fi
[ ${#wanted[@]} = 0 ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "test-tools: no ${wanted[*]}, and this is not root on Debian: their tests will be skipped" >&2
    exit 0
fi
echo "test-tools: installing ${wanted[*]}" >&2
apt-get -qq update >/dev/null 2>&1
# One by one: what cannot be had keeps nothing else away.
for package in "${wanted[@]}"; do
    if [[ $package == @(ifupdown2|busybox|prometheus) ]]; then
        downloads=$(mktemp -d)
        (cd "$downloads" && apt-get -qq download "$package" && dpkg -x "$package"_*.deb "$unpacked/$package") >/dev/null 2>&1 ||
            echo "test-tools: $package could not be downloaded: its test will be skipped" >&2
        rm -rf "$downloads" "$unpacked/prometheus/usr/bin/prometheus"
        continue
    fi
    # The tests start FRR's daemons in namespaces of their own; the machine's routing is none of their business.
    if ! DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -qq install -y --no-install-recommends "$package" >/dev/null 2>&1; then
        echo "test-tools: $package could not be installed: its tests will be skipped" >&2
    elif [ -d /run/systemd/system ]; then
        case $package in
        frr | keepalived) systemctl disable --quiet --now "$package" 2>/dev/null ;;
        bird2) systemctl disable --quiet --now bird 2>/dev/null ;;
        esac
    fi
done
exit 0
