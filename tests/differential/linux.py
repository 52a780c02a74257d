"""The real Linux: cases run in the guest that `../golden/uml.py` boots, each in a network namespace of its own.

The guest's time is its own (CONFIG_UML_TIME_TRAVEL_SUPPORT, `time-travel=inf-cpu`): nothing takes any but sleeping, which
is over at once. So every packet comes at the moment that its case says, in every run, and an hour costs nothing."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import uml

# Beside those of the golden packets. What Linux says of its multicast groups is over before the first packet, and so
# is not counted; the fallback devices of every kind of tunnel are not made in each namespace, nor by the router.
SYSCTLS = """
net.ipv6.conf.*.mldv1_unsolicited_report_interval=10
net.ipv6.conf.*.force_mld_version=1
net.ipv4.ip_local_port_range=32768 60999
""".strip().splitlines()

STATION = b"\x02\x5a"  # what their addresses begin with
QUIET = 10  # seconds in which Linux says of its multicast groups what it has to say
END = 70  # seconds after the last packet: fragments of IPv6 are waited for during 60


def run_one(words, text):
    if words == ["sysctl"]:
        said = {"ok": True, "out": "", "err": ""}
        for setting in text.splitlines():
            name, _, value = setting.partition("=")
            try:
                Path("/proc/sys", name.replace(".", "/")).write_text(value)
            except OSError as error:
                said["ok"] = False
                said["err"] += f"{name}: errno {error.errno}\n"
        return said
    # Programs of End.BPF have names below that directory.
    done = subprocess.run(words, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, errors="replace", cwd=HERE.parent / "golden")
    return {"ok": done.returncode == 0, "out": done.stdout, "err": done.stderr}


def router(number, case, done, go):
    """The process that is the router."""
    uml.make_ports(dict(port.split(",mac=") for port in case["ports"]), number)
    for setting in SYSCTLS:
        name, value = setting.split("=")
        for device in ("all", "default", *(port.split(",")[0] for port in case["ports"])):
            Path("/proc/sys", name.replace("*", device).replace(".", "/")).write_text(value)
    os.write(done, b"+")
    os.read(go, 1)
    answer, quiet = {"config": []}, False
    for words, text in case["config"]:
        if words[0] == "tc" and not quiet:
            time.sleep(QUIET)
            quiet = True
        answer["config"].append(run_one(words, text))
    time.sleep(QUIET)
    answer["before"] = [run_one(words, text) for words, text in case["shows"]]
    os.write(done, b"+")
    os.read(go, 1)
    answer["shows"] = [run_one(words, text) for words, text in case["shows"]]
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(done, data) :]


def run_case(number, case):
    (done_read, done_write), (go_read, go_write) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_read)
        os.close(go_write)
        try:
            router(number, case, done_write, go_read)
        except (RuntimeError, OSError, ValueError) as error:
            os.write(done_write, f"-{error}".encode())
        os._exit(0)
    os.close(done_write)
    os.close(go_read)
    out, noise = [], []
    with open(done_read, "rb", buffering=0) as done:
        try:
            uml.ready(done)
            names = [f"q{i}n{number}" for i in range(len(case["ports"]))]
            uml.ip("-batch", "-", lines="".join(f"link set {q} up\n" for q in names))
            os.write(go_write, b"+")
            uml.ready(done)
            sockets = [uml.frame_socket(q) for q in names]
            for s in sockets:
                uml.received(s)

            def collect(slot):
                for port, s in enumerate(sockets):
                    for frame in uml.received(s):
                        # `compare.py` knows more of what stations of layer 2 say.
                        if uml.is_noise(frame) and STATION not in (frame[:2], frame[6:8]):
                            noise.append((port, len(frame)))
                        else:
                            out.append((slot, port, frame.hex()))

            start, slot, last = time.monotonic_ns(), -1, None
            for at, port, frame in case["packets"]:
                if at != last:
                    time.sleep(max(0, start + at * 1000 - time.monotonic_ns()) / 1e9)
                    collect(slot)
                    slot, last = slot + 1, at
                try:
                    sockets[port].send(bytes.fromhex(frame))
                except OSError as error:
                    if error.errno != 105:  # ENOBUFS: the port is down
                        raise RuntimeError(f"a packet of {len(frame) // 2} bytes: {error}")
                collect(slot)
            time.sleep(END)
            collect(slot)
            for s in sockets:
                s.close()
            os.write(go_write, b"+")
            answer = b"".join(iter(lambda: done.read(65536), b""))
        finally:
            os.close(go_write)
            os.waitpid(child, 0)
    if not answer.startswith(b"{"):
        raise RuntimeError(answer.decode())
    return {"out": out, "noise": noise, **json.loads(answer)}


def guest(work):
    """The first program of the guest."""
    work = uml.enter(work)
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: sleeping ends at its nanosecond
    Path("/proc/sys/net/core/fb_tunnels_only_for_init_net").write_text("2")
    with open(work / "cases") as cases, open(work / "cases.answers", "w") as answers:
        for number, line in enumerate(cases):
            case = json.loads(line)
            try:
                answer = run_case(number, case)
            except (RuntimeError, OSError, ValueError) as error:
                answer = {"error": f"{error}"}
            answer["log"] = uml.kernel_log()
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    uml.leave()


def answers(cases):
    """What Linux answers to each. Where the guest dies of a case, that has the key `error`, and another guest goes on."""
    found = []
    while len(found) < len(cases):
        with tempfile.TemporaryDirectory(prefix="underpass-differential-") as work:
            Path(work, "cases").write_text("".join(json.dumps(case) + "\n" for case in cases[len(found) :]))
            left = len(cases) - len(found)
            said = uml.boot(HERE / "linux.py", work, "time-travel=inf-cpu", timeout=60 + 10 * left)
            path = Path(work, "cases.answers")
            # Of a guest that died the last line may be half a one.
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            found += [json.loads(line) for line in lines if line.endswith("\n")]
            if len(found) < len(cases):
                found.append({"error": "the guest died: " + said[-2000:]})
    return found


if __name__ == "__main__" and sys.argv[1:2] == ["--guest"]:
    guest(sys.argv[2])
