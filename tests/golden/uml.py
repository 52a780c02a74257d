"""A real Linux as a program of this machine: its kernel (user-mode Linux) boots, runs a Python script as its first
program, and its network namespaces are routers whose ports are veths to the guest's first namespace, where frames are
injected and captured. `record.py` records the golden packets with it, `../differential` compares what is random.

UNDERPASS_UML names the kernel (`make ARCH=um linux`) with hostfs, veth, network namespaces, VRF, IPv6 policy rules and
SRv6 built in: CONFIG_HOSTFS, VETH, NET_NS, NET_VRF, IPV6_MULTIPLE_TABLES, IPV6_SEG6_LWTUNNEL. It needs no root and no
device of this machine. The guest sees this machine's files, so it runs this machine's `ip` and `tc`.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

# What makes Linux a router that answers at once and alike in every run. Underpass is so by nature.
SYSCTLS = """
net.ipv4.ip_forward=1
net.ipv6.conf.all.forwarding=1
net.ipv6.conf.all.accept_dad=0
net.ipv6.conf.default.accept_dad=0
net.ipv6.conf.default.router_solicitations=0
net.ipv6.conf.default.accept_ra=0
net.ipv6.auto_flowlabels=0
net.ipv6.icmp.ratelimit=0
net.ipv4.icmp_ratelimit=0
net.ipv4.conf.all.rp_filter=0
net.ipv4.conf.default.rp_filter=0
net.ipv4.conf.all.send_redirects=0
net.ipv4.conf.default.send_redirects=0
net.vrf.strict_mode=1
net.ipv6.conf.default.force_mld_version=1
net.ipv6.conf.default.mldv1_unsolicited_report_interval=3600000
""".split()


# ---------------------------------------------------------------------------------------------- pcap


def write_pcap(path, frames):
    """`frames`: (seconds, bytes). The time stamp of a frame is the number of the input that caused it."""
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for seconds, frame in frames:
            f.write(struct.pack("<IIII", seconds, 0, len(frame), len(frame)) + frame)


def read_pcap(path):
    """The inverse of `write_pcap`."""
    data, at, frames = Path(path).read_bytes(), 24, []
    while at < len(data):
        seconds, _, length, _ = struct.unpack_from("<IIII", data, at)
        frames.append((seconds, data[at + 16 : at + 16 + length]))
        at += 16 + length
    return frames


# --------------------------------------------------------------------------------- inside the guest


def frame_socket(name):
    """A packet socket that sees every frame arriving at the veth, with its VLAN tag."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind((name, 3))
    s.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
    s.setsockopt(263, 8, 1)  # PACKET_AUXDATA: where Linux puts the tag
    s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    s.setblocking(False)
    return s


def received(s):
    frames = []
    while True:
        try:
            frame, ancillary, _, _ = s.recvmsg(65536, 256)
        except BlockingIOError:
            return frames
        for level, kind, data in ancillary:
            if (level, kind) == (263, 8):
                status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
                if status & 0x10:
                    frame = (
                        frame[:12] + struct.pack("!HH", tpid if status & 0x40 else 0x8100, tci) + frame[12:]
                    )
        frames.append(frame)


def ip(*arguments, lines=None, tool="ip"):
    """Runs the real `ip` or `tc`; `lines` are the input of its -batch."""
    done = subprocess.run(
        [tool, *arguments],
        input=lines,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # without a terminal, so that the secret of an HMAC is read from `lines`
    )
    if done.returncode:
        raise RuntimeError(done.stdout.strip())
    return done.stdout


def make_ports(macs, number):
    """In a process of its own, which becomes the router: its namespace, and its ports, whose far ends are q0nNUMBER, …
    `macs`: the address of each port by its name."""
    if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
        raise RuntimeError("no network namespaces")
    lines = ["link set lo up"]
    for i, (port, mac) in enumerate(macs.items()):
        lines.append(
            f"link add {port} mtu 1500 address {mac} type veth"
            f" peer name q{i}n{number} mtu 9000 netns 1"
        )
    ip("-batch", "-", lines="\n".join(lines))
    for port in macs:
        finish_checksums(port)
    for setting in SYSCTLS:
        name, value = setting.split("=")
        Path("/proc/sys", name.replace(".", "/")).write_text(value)


def finish_checksums(port):
    """A veth leaves checksums to its peer, from which the frames are captured."""
    value = ctypes.create_string_buffer(struct.pack("II", 0x17, 0))  # ETHTOOL_STXCSUM
    request = struct.pack("16sQ16x", port.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8946, request)  # SIOCETHTOOL


def ready(done):
    """Waits for the router's next step; raises what went wrong there."""
    if done.read(1) != b"+":
        raise RuntimeError(done.read().decode())


def kernel_log():
    """What the kernel has logged since the last call."""
    return subprocess.run(["dmesg", "-c"], stdout=subprocess.PIPE, text=True).stdout


def enter(work):
    """The first program of the guest: what every script needs. `work` is a directory of the machine that can be written
    to; returns where it is."""
    os.environ.update(
        PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root", LANG="C"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for source, target, kind in [
        ("proc", "/proc", "proc"),
        ("sys", "/sys", "sysfs"),
        ("tmpfs", "/run", "tmpfs"),
        ("tmpfs", "/var/tmp", "tmpfs"),
    ]:
        libc.mount(source.encode(), target.encode(), kind.encode(), 0, b"")
    os.mkdir("/var/tmp/work")
    if libc.mount(b"none", b"/var/tmp/work", b"hostfs", 0, work.encode()):
        print("cannot mount the work directory", flush=True)
    for setting in ("default", "all"):  # the first namespace only sends what it is told to
        Path(f"/proc/sys/net/ipv6/conf/{setting}/disable_ipv6").write_text("1")
    # Limits of ICMP errors that are the whole kernel's.
    for name, value in [
        ("icmp_msgs_per_sec", 1000000),
        ("icmp_msgs_burst", 1000000),
        ("route/error_cost", 0),
    ]:
        Path("/proc/sys/net/ipv4", name).write_text(str(value))
    kernel_log()
    return Path("/var/tmp/work")


def leave():
    """Ends the guest."""
    Path("/proc/sysrq-trigger").write_text("o")
    signal.pause()


# ------------------------------------------------------------------------------------ on the machine


def boot(script, work, *options, timeout=900):
    """Boots the kernel with `script --guest work` as its first program; returns what it has said when it has ended.
    `options` are the kernel's."""
    kernel = os.environ.get("UNDERPASS_UML")
    if not kernel:
        sys.exit(f"{Path(script).name}: UNDERPASS_UML does not name a kernel; see --help")
    words = [
        kernel,
        "mem=256M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        "con=null",
        "con0=fd:0,fd:1",
        *options,
        "init=/usr/bin/python3",
        "--",
        str(script),
        "--guest",
        str(work),
    ]
    with tempfile.TemporaryFile("w+") as console:
        try:
            subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            pass
        console.seek(0)
        return console.read()


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


# The head of the hop-by-hop options of MLD: ICMPv6 next, router alert 0, padding.
MULTICAST_LISTENER = bytes([58, 0, 5, 2, 0, 0, 1, 0])


def is_of_neighbours(frame):
    """ARP, neighbour solicitations and advertisements."""
    return frame[12:14] == b"\x08\x06" or frame[12:14] == b"\x86\xdd" and frame[20:21] == b"\x3a" and frame[54:55] in (b"\x87", b"\x88")


def is_noise(frame):
    """ARP, neighbour discovery, MLD: what Linux says on its own account."""
    kind = frame[12:14]
    if kind == b"\x08\x06":
        return True
    inside = frame.find(MULTICAST_LISTENER)  # in a tunnel
    if inside >= 0 and frame[inside + len(MULTICAST_LISTENER)] in (130, 131, 132, 143):
        return True
    if kind != b"\x86\xdd" or len(frame) < 54:  # cut off inside the header
        return False
    at, header = 54, frame[20]
    if header == 0 and len(frame) >= 62:  # MLD carries a router alert
        header, at = frame[54], 54 + 8 * (frame[55] + 1)
    return header == 58 and len(frame) > at and frame[at] in (130, 131, 132, 133, 134, 135, 136, 137, 143)
