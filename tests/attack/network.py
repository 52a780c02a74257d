"""Two hosts and a router in network namespaces without names, which go with the process."""

import ctypes
import os
import socket
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
PORT = 7007
MAGIC = b"underpass"
PROBES = 200
# Datagrams a second, and how long none may arrive.
RATE = 500
STANDSTILL = 5.0

libc = ctypes.CDLL(None, use_errno=True)


def inside(namespace, function):
    """What `function` gives in a network namespace: a thread enters it."""
    result = []

    def run():
        if libc.setns(namespace, CLONE_NEWNET) < 0:
            result.append((None, OSError(ctypes.get_errno(), "setns")))
            return
        try:
            result.append((function(), None))
        except BaseException as error:  # pylint: disable=broad-except
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = result[0]
    if error is not None:
        raise error
    return value


def namespace():
    """A new one."""
    result = []

    def run():
        if libc.unshare(CLONE_NEWNET) == 0:
            result.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not result:
        raise SystemExit("no network namespace can be made")
    return result[0]


class Network:
    """left - router - right"""

    def __init__(self):
        self.left, self.router, self.right = namespace(), namespace(), namespace()
        self.threads = []
        for host, name in ((self.left, "p1"), (self.right, "p2")):
            self.run(self.router, f"ip link add name {name} type veth peer name eth0 netns {self.path(host)}")
        for number, host in ((1, self.left), (2, self.right)):
            self.run(host, f"""
                ip link set lo up
                ip link set eth0 up
                ip addr add 10.{number}.0.2/24 dev eth0
                ip -6 addr add fd0{number}::2/64 dev eth0 nodad
                ip route add default via 10.{number}.0.1
                ip -6 route add default via fd0{number}::1
            """)
        self.run(self.router, """
            ip link set lo up
            ip link set p1 up
            ip link set p2 up
            ip addr add 10.1.0.1/24 dev p1
            ip addr add 10.2.0.1/24 dev p2
            ip -6 addr add fd01::1/64 dev p1 nodad
            ip -6 addr add fd02::1/64 dev p2 nodad
        """)

    @staticmethod
    def path(host):
        return f"/proc/{os.getpid()}/fd/{host}"

    @staticmethod
    def run(where, lines, *before):
        for line in filter(None, map(str.strip, lines.splitlines())):
            command = [*before, "sh", "-c", line] if before else ["sh", "-c", line]
            done = inside(where, lambda: subprocess.run(command, capture_output=True, text=True))
            if done.returncode != 0:
                raise SystemExit(f"{line}: {done.stderr}")

    def configure(self, program):
        """Something of everything, for hostile packets to meet."""
        self.run(self.router, """
            sysctl -qw net.mpls.platform_labels=1000 net.mpls.conf.p1.input=1 net.mpls.conf.lo.input=1
            ip -6 route add fc00:1::e/128 encap seg6local action End count dev p2
            ip -6 route add fc00:1::d6/128 encap seg6local action End.DT6 table main count dev p2
            ip -6 route add fc00:1::d4/128 encap seg6local action End.DX4 nh4 10.2.0.2 count dev p2
            ip -6 route add fc00:1::b6/128 encap seg6local action End.B6.Encaps srh segs fc00:2::1,fc00:2::2 dev p2
            ip -6 route add fc00:2::/32 via fd02::2
            ip -6 route add fd20::/32 encap seg6 mode encap segs fc00:2::1,fc00:2::2 dev p2
            ip route add 10.20.0.0/16 encap mpls 100/200 via inet 10.2.0.2 dev p2
            ip -f mpls route add 100 as 200 via inet 10.2.0.2 dev p2
            ip -f mpls route add 101 dev lo
            ip link add gre1 type gre local 10.1.0.1 remote 10.1.0.2 key 7 ttl 64
            ip link add ipip1 type ipip local 10.1.0.1 remote 10.1.0.2 ttl 64
            ip fou add port 5555 ipproto 4
            ip link set gre1 up
            ip link set ipip1 up
            ip route add 10.30.0.0/16 dev gre1
            ip route add 10.31.0.0/16 dev ipip1
            tc qdisc add dev p1 clsact
            tc filter add dev p1 ingress protocol ip u32 match ip dst 10.40.0.0/16 police rate 1mbit burst 20k drop
            tc qdisc add dev p2 root tbf rate 1gbit burst 100k limit 200k
            ip route add 10.40.0.0/16 via 10.2.0.2
        """, program, "exec", "--")

    def probe(self, problem, when):
        """Every datagram arrives, if the way is free."""
        receiver = inside(self.right, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender = inside(self.left, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with receiver, sender:
            receiver.bind(("0.0.0.0", PORT))
            receiver.settimeout(1.0)
            # The first ones wait for neighbours.
            for wanted in (0, PROBES, PROBES, PROBES):
                for number in range(max(wanted, 1)):
                    sender.sendto(MAGIC + b"%d" % number, ("10.2.0.2", PORT))
                    time.sleep(0.001)
                arrived = 0
                try:
                    while arrived < max(wanted, 1):
                        arrived += receiver.recv(2048).startswith(MAGIC)
                except TimeoutError:
                    pass
                if wanted and arrived == wanted:
                    return
            problem(f"{when}: {arrived} of {wanted} datagrams arrive")

    def flow(self, over, count, problem):
        """Packets that flow until it is over."""
        receiver = inside(self.right, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender = inside(self.left, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiver.bind(("0.0.0.0", PORT))
        receiver.settimeout(0.2)

        def send():
            while not over.is_set():
                for _ in range(RATE // 50):
                    try:
                        sender.sendto(MAGIC, ("10.2.0.2", PORT))
                        count("packets sent")
                    except OSError:
                        pass
                time.sleep(0.02)

        def receive():
            last = time.monotonic()
            while not over.is_set():
                try:
                    if receiver.recv(2048).startswith(MAGIC):
                        count("packets received")
                        last = time.monotonic()
                except TimeoutError:
                    pass
                if time.monotonic() - last > STANDSTILL:
                    problem("no packets arrive any more")
                    last = time.monotonic()
            receiver.close()
            sender.close()

        self.threads = [threading.Thread(target=work) for work in (send, receive)]
        [thread.start() for thread in self.threads]

    def join(self):
        [thread.join() for thread in self.threads]
