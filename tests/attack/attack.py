#!/usr/bin/env python3
"""Attacks a router while packets flow, and says what is not as it was before.

    tests/attack/attack.py [--seconds N] target/release/underpass

Two hosts and a router stand in network namespaces of their own, which go with this process. Programs that do not keep
to the protocol, that take all descriptors and that do not read; control messages with too many descriptors, and halves
of messages; garbage for FRR's listener; slow and misdirected HTTP; malformed and hostile datagrams; workers that stop
for a while. Meanwhile no counter goes back. Afterwards descriptors, memory and what the workers have to account for
are what they were, every packet is delivered again, and SIGTERM ends the router in the middle of an attack.

It needs root and nothing but Python.
"""

import argparse
import ctypes
import json
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from network import Network, inside
import datagrams

HTTP = ("127.0.0.1", 9117)
FPM = ("127.0.0.1", 2620)
# Descriptors that the router may have: fewer than the crowd wants.
LIMIT = 1024
CROWD = 1100
# Clients that do not read, in a long run and in a short one: each has 8 MiB in its socket before anything waits for it.
LAZY, LAZY_SHORT, SHORT = 60, 12, 60.0
# How long who asks the router waits for an answer, whoever else is there.
PATIENCE = 15.0
# How long the router may take to be as it was when the attacks end.
REST = 20.0
# How much longer it may take than was asked for until everything has been done once.
LATE = 60.0
# What may come on top of the memory before: the C library keeps some of what was freed.
MEMORY = 16 << 20
# Lines of log that a second of attack may cause.
LINES = 3.0

OPEN, BIND, INDEX_OF = 1, 2, 5
RTM_GETLINK, RTM_GETROUTE = 18, 26
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
SO_SNDBUFFORCE = 32

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def message(kind, a=0, b=0, c=0, name=b""):
    return struct.pack("=IIII16s", kind, a, b, c, name)


def netlink(kind, flags, payload):
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, 1, 0) + payload


class Attack:
    """The router, and all that is done to it."""

    def __init__(self, network, arguments):
        self.network, self.arguments = network, arguments
        self.over, self.problems, self.done = threading.Event(), [], {}
        self.lock = threading.Lock()
        # While the router has no descriptors at all, nobody is answered; and how often that has been.
        self.starving, self.starved = threading.Event(), 0
        self.counters, self.scrapes = {}, 0
        self.log = tempfile.TemporaryFile()
        self.random = random.Random(arguments.seed)
        command = ["prlimit", f"--nofile={LIMIT}:{LIMIT}", arguments.program, "run", "--workers", "2"]
        command += ["--metrics", "%s:%d" % HTTP, "--fpm", "%s:%d" % FPM]
        start = lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        self.router = inside(network.router, start)
        said = self.router.stdout.readline().decode()
        if "ready at" not in said:
            raise SystemExit("the router does not start:\n" + self.said())
        self.path = said.split("ready at ")[1].strip()
        network.configure(arguments.program)

    def said(self):
        return os.pread(self.log.fileno(), 1 << 24, 0).decode(errors="replace")

    def problem(self, text):
        with self.lock:
            if len(self.problems) < 50:
                self.problems.append(text)
                print("  !", text, flush=True)

    def count(self, what, number=1):
        with self.lock:
            self.done[what] = self.done.get(what, 0) + number

    # What the router has.

    def ask(self):
        with socket.socket(socket.AF_UNIX) as stats:
            stats.settimeout(PATIENCE)
            stats.connect(self.path + ".stats")
            stats.send(b"\n")
            return json.loads(b"".join(iter(lambda: stats.recv(1 << 16), b"")))

    def account(self):
        """Descriptors, bytes of memory and free slots for packets, when all is quiet."""
        stats = self.ask()
        for worker in stats["workers"]:
            totals = worker["totals"]
            came = totals["received"] + totals["generated"]
            gone = sum(totals[key] for key in ("sent", "delivered", "dropped", "held"))
            if came != gone:
                self.problem(f"worker {worker['number']}: {came} packets came, {gone} are accounted for")
        status = open(f"/proc/{self.router.pid}/status").read()
        memory = int(re.search(r"RssAnon:\s*(\d+)", status)[1]) << 10
        memory += sum(worker["untouched_buffer_bytes"] for worker in stats["workers"])
        descriptors = len(os.listdir(f"/proc/{self.router.pid}/fd"))
        free = sum(worker["free_buffers"] + worker["free_large_buffers"] for worker in stats["workers"])
        return {"descriptors": descriptors, "memory": memory, "free": free, "held": stats["totals"]["held"]}

    def get(self, target, host="127.0.0.1:9117"):
        def fetch():
            with socket.create_connection(HTTP, PATIENCE) as connection:
                connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

        return inside(self.network.router, fetch)

    def scrape(self):
        """Reads the metrics; no counter may have gone back or vanished. Others may have all the connections."""
        try:
            answer = self.get("/metrics")
        except OSError:
            return False
        if not answer.startswith("HTTP/1.1 200 "):
            return False
        now = dict(re.findall(r"^(\w+_total(?:\{.*\})?) (\d+)$", answer, re.MULTILINE))
        for series, before in self.counters.items():
            if series not in now:
                self.problem(f"{series} has vanished, it was {before}")
            elif int(now[series]) < int(before):
                self.problem(f"{series} went back from {before} to {now[series]}")
        self.counters = now
        self.scrapes += 1
        return True

    # What is done to it.

    def connect(self):
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(5)
        control.connect(self.path)
        return control

    def open(self, answered=True):
        """A netlink socket of the router's: its control and its data socket."""
        control = self.connect()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20)
        with theirs:
            socket.send_fds(control, [message(OPEN, 0, 1)], [theirs.fileno()])
        if answered and not control.recv(64):
            raise OSError("not opened")
        return control, ours

    def crowd(self):
        """More clients than there are descriptors for."""
        clients = []
        try:
            while len(clients) < CROWD:
                clients.append(self.open(answered=False))
        except OSError:
            pass
        self.count("clients at once", len(clients))
        time.sleep(1.0)
        for pair in clients:
            for end in pair:
                end.close()

    def descriptors(self):
        """Control messages and datagrams with more descriptors than anybody takes."""
        null = os.open("/dev/null", os.O_RDONLY)
        for number in (1, 16, 17, 18, 100, 253):
            for text in (b"x", bytes(5000), message(BIND), message(INDEX_OF), message(OPEN, 0, 1)):
                with self.connect() as control:
                    socket.send_fds(control, [text], [null] * number)
                    self.count("descriptors handed over", number)
            control, data = self.open()
            with control, data:
                socket.send_fds(data, [netlink(0xFFF0, NLM_F_REQUEST, bytes(64))], [null] * number)
                control.recv(64)
        os.close(null)

    def lazy(self):
        """Clients that ask and do not read, until they are cut off."""
        many = LAZY if self.arguments.seconds > SHORT else LAZY_SHORT
        clients = [self.open(answered=False) for _ in range(many)]
        for control, _ in clients:
            # They wait together, behind the crowd.
            control.settimeout(PATIENCE)
            control.recv(64)
        # Each message is repeated in the error that answers it.
        request = netlink(0xFFF0, NLM_F_REQUEST, bytes(60000)) * 15
        deadline = time.monotonic() + LATE
        while clients and time.monotonic() < deadline and not self.over.is_set():
            for pair in list(clients):
                control, data = pair
                while self.starving.is_set():
                    time.sleep(0.05)
                try:
                    data.settimeout(5)
                    data.send(request)
                    gone = not control.recv(64)
                except OSError:
                    gone = True
                if gone:
                    clients.remove(pair)
                    control.close()
                    data.close()
                    self.count("lazy clients cut off")
        for control, data in clients:
            control.close()
            data.close()

    def halves(self):
        """Halves of messages, and messages with a few other bits."""
        good = [netlink(kind, NLM_F_REQUEST | NLM_F_DUMP, bytes(16)) for kind in (RTM_GETLINK, RTM_GETROUTE)]
        good.append(netlink(RTM_GETROUTE, NLM_F_REQUEST, bytes([10, 128]) + bytes(10) + self.random.randbytes(20)))
        control, data = self.open()
        for whole in (message(OPEN, 0, 1), message(BIND, 1, 2, 3), message(INDEX_OF, name=b"a")):
            for length in range(1, len(whole)):
                with self.connect() as other:
                    other.send(whole[:length])
        with control, data:
            for _ in range(300):
                text = bytearray(self.random.choice(good))
                for _ in range(self.random.randrange(4)):
                    # Neither the kind nor the flags: nothing is to be changed.
                    text[self.random.choice((0, 1, *range(8, len(text))))] = self.random.randrange(256)
                data.send(text[: self.random.randrange(1, len(text) + 1)])
                if not control.recv(64):
                    return
                while select.select([data], [], [], 0)[0]:
                    data.recv(1 << 17)
                self.count("halves of messages")

    def starve(self):
        """Takes all descriptors away from the router, which does not expect it, and from all who listen."""
        self.starving.set()
        self.starved += 1
        used = len(os.listdir(f"/proc/{self.router.pid}/fd"))
        resource.prlimit(self.router.pid, resource.RLIMIT_NOFILE, (max(used - 4, 8), LIMIT))
        waiting = []
        try:
            waiting += [self.connect() for _ in range(50)]
            connect = lambda: socket.create_connection(FPM, 5)
            waiting += [inside(self.network.router, connect) for _ in range(2)]
            for suffix in (".stats", ".trace"):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].connect(self.path + suffix)
            time.sleep(0.3)
            before = self.busy()
            time.sleep(1.0)
            used = self.busy() - before
        finally:
            resource.prlimit(self.router.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
            [end.close() for end in waiting]
            self.starved += 1
            self.starving.clear()
        self.count("seconds without descriptors")
        # The threads that listen, and the one that controls.
        if used > 0.5:
            self.problem(f"{used:.2f} s of a processor in a second without descriptors")

    def busy(self):
        """Seconds that the threads of the router have run that carry no packets."""
        ticks = 0
        for task in os.listdir(f"/proc/{self.router.pid}/task"):
            try:
                stat = open(f"/proc/{self.router.pid}/task/{task}/stat").read()
            except OSError:
                continue
            if "(worker" not in stat:
                ticks += sum(map(int, stat.rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def frr(self):
        """Garbage for FRR's listener: no frames, wrong lengths, halves, frames full of garbage."""

        def each():
            noise = self.random.randbytes(self.random.randrange(1, 4096))
            frames = [
                noise,
                b"\1\1" + struct.pack(">H", self.random.randrange(65536)) + noise,
                b"\1\1" + struct.pack(">H", 4 + len(noise)) + noise,
                b"\1\1\xff\xff" + noise,
                b"\1\1\0",
            ]
            for frame in frames:
                with socket.create_connection(FPM, 5) as zebra:
                    try:
                        zebra.sendall(frame)
                        zebra.settimeout(0.05)
                        zebra.recv(4096)
                    except OSError:
                        pass
                self.count("connections to FRR's listener")

        inside(self.network.router, each)

    def slow(self):
        """HTTP that comes byte by byte, never ends, is not read, or is for somebody else."""

        def each():
            clients = [socket.create_connection(HTTP, 5) for _ in range(40)]
            for number, client in enumerate(clients):
                try:
                    client.sendall((b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"G", b"\0" * 4096)[number % 3])
                except OSError:
                    pass
            for _ in range(10):
                time.sleep(0.1)
                for client in clients[1::3]:
                    try:
                        client.send(b"x")
                    except OSError:
                        pass
            self.count("slow requests", len(clients))
            for client in clients:
                client.close()

        inside(self.network.router, each)
        time.sleep(0.2)
        for host in ("evil.example:9117", "evil.example"):
            for target in ("/metrics", "/", "/api/state.json"):
                try:
                    answer = self.get(target, host)
                except OSError:
                    continue
                if answer and not answer.startswith("HTTP/1.1 421 "):
                    self.problem(f"{target} is shown to {host}: {answer[:40]!r}")
                self.count("misdirected requests")

    def questions(self):
        """Who says nothing, or garbage, to the sockets of `underpass stats` and `trace`."""
        for suffix in (".stats", ".trace"):
            for text in (b"", b"{", b"\xff" * 3000, b"mpls " + b"9" * 50 + b"\n", b'{"rate":1,"filter":[[1,2'):
                with socket.socket(socket.AF_UNIX) as asking:
                    asking.settimeout(3)
                    try:
                        asking.connect(self.path + suffix)
                        asking.sendall(text)
                        asking.shutdown(socket.SHUT_WR)
                        asking.recv(4096)
                    except OSError:
                        pass
                self.count("questions")

    def stall(self):
        """Stops one worker or all of them for longer than anybody waits for their accounts."""
        seize, interrupt, detach, any_child = 0x4206, 0x4207, 17, 0x40000000
        comm = lambda task: open(f"/proc/{self.router.pid}/task/{task}/comm").read()
        tasks = os.listdir(f"/proc/{self.router.pid}/task")
        workers = [int(task) for task in tasks if comm(task).startswith("worker-")]
        workers = self.random.sample(workers, self.random.choice((1, len(workers))))
        stopped = [worker for worker in workers if libc.ptrace(seize, worker, None, None) == 0]
        for worker in stopped:
            libc.ptrace(interrupt, worker, None, None)
            os.waitpid(worker, any_child)
        # What was seen just before is shown for a moment.
        time.sleep(0.3)
        self.scrape()
        for worker in stopped:
            libc.ptrace(detach, worker, None, None)
        self.count("workers stopped", len(stopped))
        self.scrape()
        self.over.wait(1.0)

    def watch(self):
        """Whether programs are still answered."""
        began, starved = time.monotonic(), self.starved
        command = [self.arguments.program, "exec", "--", "ip", "-o", "link", "show", "p1"]
        try:
            run = lambda: subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
            inside(self.network.router, run)
            self.count("answers to ip")
        except subprocess.SubprocessError as error:
            # It says that there are too many open files when there are.
            if starved == self.starved and not self.starving.is_set():
                self.problem(f"ip is not answered: {error} {getattr(error, 'stderr', b'')}")
        self.count("longest answer to ip (ms)", 0)
        with self.lock:
            key = "longest answer to ip (ms)"
            self.done[key] = max(self.done[key], int(1000 * (time.monotonic() - began)))
        return self.over.wait(0.5)

    def datagrams(self):
        datagrams.send(self.network, self.random.random(), self.over, self.count)

    # All of it.

    def lane(self, attacks, once):
        """Does one after the other until all is over. `once`: each has been done."""
        while True:
            for attack in attacks:
                if self.over.is_set():
                    return
                try:
                    attack()
                except OSError as error:
                    # Who comes too late for a descriptor, or is cut off, tries again.
                    self.count(f"{attack.__name__}: {error}")
                except Exception as error:  # pylint: disable=broad-except
                    self.problem(f"{attack.__name__}: {error!r}")
            once.set()

    def run(self):
        self.network.probe(self.problem, "before")
        self.scrape()
        before = self.account()
        print("before:", before, flush=True)
        self.network.flow(self.over, self.count, self.problem)
        lanes = [
            (self.crowd, self.descriptors, self.halves, self.starve),
            (self.lazy,),
            (self.frr, self.slow, self.questions),
            (self.stall,),
            (self.watch,),
            (self.datagrams,),
        ]
        # The last one goes on and on.
        rounds = [threading.Event() for _ in lanes]
        threads = [threading.Thread(target=self.lane, args=lane) for lane in zip(lanes, rounds)]
        [thread.start() for thread in threads]
        began, told, late = time.monotonic(), 0.0, False
        while self.router.poll() is None:
            passed = time.monotonic() - began
            late = passed > self.arguments.seconds + LATE
            if late or passed >= self.arguments.seconds and all(once.is_set() for once in rounds[:-1]):
                break
            time.sleep(0.2)
            if passed > told + 10:
                told = passed
                print(f"{passed:6.0f} s", self.done, flush=True)
        self.over.set()
        if late:
            self.problem("not all attacks have been done in time")
        [thread.join() for thread in threads]
        self.network.join()
        self.settle(before)
        self.end()
        for line in self.said().splitlines():
            if " ERROR " in line or "panicked" in line:
                self.problem(f"the router said: {line}")
        lines = len(self.said().splitlines())
        if lines > 50 + LINES * self.arguments.seconds:
            self.problem(f"{lines} lines of log")
        print(f"{lines} lines of log, {self.scrapes} scrapes, {self.done}")
        return not self.problems

    def settle(self, before):
        """Waits until the router is as it was."""
        deadline = time.monotonic() + REST
        while True:
            after, wrong = self.account(), []
            if after["descriptors"] != before["descriptors"]:
                wrong.append(f"{before['descriptors']} descriptors before, {after['descriptors']} after")
            if after["memory"] > before["memory"] + MEMORY:
                wrong.append(f"{before['memory'] >> 20} MiB before, {after['memory'] >> 20} MiB after")
            if after["held"] or after["free"] + 128 < before["free"]:
                wrong.append(f"{before['free']} free slots before, {after['free']} after, {after['held']} packets held")
            if not wrong or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        print("after: ", after, flush=True)
        [self.problem(text) for text in wrong]
        if not self.scrape():
            self.problem("no metrics in the end")
        self.network.probe(self.problem, "after")

    def end(self):
        """SIGTERM ends it while all descriptors are taken."""
        clients = [self.connect() for _ in range(CROWD)]
        time.sleep(0.5)
        self.router.send_signal(signal.SIGTERM)
        try:
            status = self.router.wait(10)
            if status != 0:
                self.problem(f"it ended with status {status}")
        except subprocess.TimeoutExpired:
            self.problem("SIGTERM does not end it")
            self.router.kill()
        [client.close() for client in clients]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath, help="the router: target/release/underpass")
    parser.add_argument("--seconds", type=float, default=300, help="how long it is attacked")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack = Attack(Network(), arguments)
    try:
        held = attack.run()
    finally:
        attack.over.set()
        if attack.router.poll() is None:
            attack.router.kill()
            attack.router.wait()
    if not held:
        print("the log of the router ends with:\n" + attack.said()[-3000:])
        sys.exit("did not hold:\n" + "\n".join(attack.problems))
    print("all held")


if __name__ == "__main__":
    main()
