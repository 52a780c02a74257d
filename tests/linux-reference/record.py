#!/usr/bin/python3
"""Records NAME.txt: what Linux answers to each line of NAME.commands, for each NAME given (links, newer, answers, refusals, edges, mpls, tunnels, bareudp, tunnel_key, fallback, vlan, vlan_vrf, bridge, stp, neighbours, suppress, vxlan, vxlan_via, groups, geneve, external,
vlan_tunnel).

    UNDERPASS_UML=/path/to/linux tests/linux-reference/record.py links answers

UNDERPASS_UML names a user-mode Linux kernel with hostfs, veth, dummy, VRF, MPLS and network namespaces built in; for `cake`
also NET_SCH_CAKE, for `sample` NET_ACT_SAMPLE.
The guest sees this machine's files, so it runs this machine's `ip`; it needs no root here. `newer` wants that of
iproute2 6.15: in a mount namespace that has what scripts/newer-tools.sh unpacks at /usr, and a python3. The lines run in
a namespace with the links lo, v0 and v1; the last two are veths whose other ends are elsewhere, up. It
forwards, as the router does, detects no duplicate addresses and sends no redirects. There are fallback devices of
tunnels for `fallback` alone; their indices, and those of the other links then, are not the router's.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INIT = """#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
stty -echo -onlcr 2>/dev/null
dmesg -n 1  # the console is for what the lines say
sysctl -qw net.core.fb_tunnels_only_for_init_net=FALLBACK
ip netns add here
sysctl -qw net.ipv6.conf.default.disable_ipv6=1
there() { ip -n here "$@"; }
ip netns exec here sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.vrf.strict_mode=1 \\
    net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \\
    net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0
for n in 0 1; do
    there link add v$n index $((n + FIRST)) address 02:00:00:00:00:0$((n + 1)) type veth peer name p$n netns 1
    ip link set p$n up
done
if [ FALLBACK = 0 ]; then
    # As where IPv6 was there before their modules: here tunl0 and gre0 get it by a change of their MTU.
    for device in tunl0:1480 gre0:1476; do
        there link set ${device%:*} mtu 1400
        there link set ${device%:*} mtu ${device#*:}
    done
fi
there link set lo up
echo __READY
ip netns exec here bash -c 'while IFS= read -r line; do eval "$line" </dev/null 2>&1; echo "__RC $?"; done'
echo o > /proc/sysrq-trigger
sleep 5
"""


def record(name):
    kernel = os.environ.get("UNDERPASS_UML") or sys.exit("UNDERPASS_UML names no kernel")
    lines = (HERE / f"{name}.commands").read_text().splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as init:
        fallback, first = ("0", "30") if name == "fallback" else ("2", "2")
        init.write(INIT.replace("FALLBACK", fallback).replace("FIRST", first))
    os.chmod(init.name, 0o755)
    command = [kernel, "mem=192M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
               f"init={init.name}", "con=null", "con0=fd:0,fd:1", "quiet"]
    guest = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, bufsize=1)
    try:
        while "__READY" not in guest.stdout.readline():
            pass
        with open(HERE / f"{name}.txt", "w") as out:
            out.write(f"# --- {name}\n")
            for number, line in enumerate(lines, 1):
                guest.stdin.write(line + "\n")
                said = []
                while not (text := guest.stdout.readline().rstrip("\r\n")).startswith("__RC "):
                    said.append(re.sub(r"\x1b\[[0-9;]*m|@(p\d|if\d+)| link-netnsid \d", "", text))
                out.write(f"[{number:03} rc={text[5:]}] {line}\n")
                out.writelines(f"    {text}\n" for text in said)
    finally:
        guest.stdin.close()
        try:
            guest.wait(20)
        except subprocess.TimeoutExpired:  # Linux waits for links that routes hold
            guest.kill()
            guest.wait()
        os.unlink(init.name)


for name in sys.argv[1:] or sys.exit(__doc__):
    record(name)
