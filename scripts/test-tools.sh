#!/usr/bin/env bash
# Installs what some tests need and this machine lacks, if this is root on a Debian or Ubuntu: FRR. Never fails:
# the tests that miss it are skipped, and say so.
set -uo pipefail

[ -e /usr/lib/frr/zebra ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "test-tools: FRR is not installed and this is not root on Debian: its tests will be skipped" >&2
    exit 0
fi
echo "test-tools: installing frr" >&2
# The tests start its daemons in namespaces of their own; the machine's routing is none of their business.
if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get -qq install -y --no-install-recommends frr; } >/dev/null 2>&1; then
    echo "test-tools: frr could not be installed: its tests will be skipped" >&2
    exit 0
fi
if [ -d /run/systemd/system ]; then
    systemctl disable --quiet --now frr 2>/dev/null
fi
exit 0
