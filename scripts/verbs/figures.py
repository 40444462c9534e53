"""The measurements of scripts/interop-verbs --figures: programs on Heddle beside programs of kernel
sockets.
"""

import json
import re
import statistics
import subprocess
import time

from verbs import cases

# Seconds of one measurement.
LONG = 3
SIZE = 65536
# Bytes of a short message.
SHORT = 64
FAR = "198.51.100.2"

# Registers and unregisters memory of its own again and again, by Debian's Python bindings of
# libibverbs.
REGISTER = """
import sys, time
from pyverbs.device import Context, get_device_list
import pyverbs.enums as flags
from pyverbs.pd import PD
from pyverbs.mr import MR
import mmap
size, count = int(sys.argv[1]), int(sys.argv[2])
pd = PD(Context(name=get_device_list()[0].name.decode()))
memory = bytearray(size + 8192)
import ctypes
base = (ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory)) + 4095) & ~4095
times = []
for _ in range(count):
    ctypes.memset(base, 1, size)
    start = time.perf_counter()
    mr = MR(pd, size, flags.IBV_ACCESS_LOCAL_WRITE | flags.IBV_ACCESS_REMOTE_WRITE, base)
    times.append(time.perf_counter() - start)
    mr.close()
print(sorted(times)[count // 2] * 1e6)
"""


class Wrong(Exception):
    """A program did not do its work."""


def pair(room, place, name, server, client, run=True, ready=None, far=()):
    """Runs a server and a client. Returns the client's output. `far` is the prefix that runs a
    command on the server's host."""
    logs = [place / f"{name}-{end}.log" for end in ("server", "client")]
    for log in logs:
        log.unlink(missing_ok=True)
    if far:
        with open(logs[0], "ab") as out:
            at = subprocess.Popen([*far, *server], stdout=out, stderr=out)
    else:
        at = room.start(server, logs[0], run=run)
    try:
        end = time.monotonic() + 20
        while not ready():
            if at.poll() is not None or time.monotonic() > end:
                raise Wrong(f"{' '.join(server)}: {logs[0].read_text()}")
            time.sleep(0.02)
        code = room.start(client, logs[1], run=run).wait(timeout=60)
        text = logs[1].read_text()
        if code:
            raise Wrong(f"{' '.join(client)} ends with {code}: {text}")
        return text
    finally:
        at.terminate()
        at.wait()


def found(pattern, text):
    match = re.search(pattern, text, re.MULTILINE)
    if not match:
        raise Wrong(f"no {pattern!r} in {text[-1500:]}")
    return float(match[1])


def perftest(room, place, port, program, column, *options):
    """Returns a figure of a program of perftest, by the column of its table."""
    def argv(*host):
        return [program, "-R", "-p", str(port), *options, *host]
    text = pair(room, place, program, argv(), argv(cases.HOST), ready=lambda: room.listens(port))
    row = re.findall(r"^ *\d+ +\d+ +.*$", text, re.MULTILINE)
    if not row:
        raise Wrong(f"{program}: {text[-1500:]}")
    return float(row[-1].split()[column])


def listens(port, far=()):
    """Returns true if a kernel socket listens there."""
    out = subprocess.run([*far, "ss", "-ltnH", f"sport = :{port}"], capture_output=True, text=True,
                         check=True)
    return bool(out.stdout.strip())


def iperf(room, place, port, host, far=()):
    """Returns the Gb/s of iperf3 with one connection."""
    text = pair(room, place, "iperf3", ["iperf3", "-s", "-1", "-p", str(port)],
                ["iperf3", "-c", host, "-p", str(port), "-l", str(SIZE), "-t", str(LONG), "-J"],
                run=False,
                ready=lambda: listens(port, far), far=far)
    return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9


def sockperf(room, place, port):
    """Returns half a round trip in microseconds, by sockperf: the median."""
    at = ["--tcp", "-i", cases.HOST, "-p", str(port)]
    text = pair(room, place, "sockperf", ["sockperf", "server", *at],
                ["sockperf", "ping-pong", *at, "-m", str(SHORT), "-t", str(LONG)], run=False,
                ready=lambda: listens(port))
    return found(r"percentile 50\.000 = +([\d.]+)", text)


def qperf(room, place, port):
    """Returns half a round trip in microseconds, by qperf's TCP test."""
    text = pair(room, place, "qperf", ["qperf", "-lp", str(port)],
                ["qperf", "-lp", str(port), "-v", "-uu", "-m", str(SHORT), "-t", str(LONG),
                 cases.HOST, "tcp_lat"],
                run=False, ready=lambda: listens(port))
    return found(r"latency += +([\d.]+)", text) / 1000


def register(room, place, size, count):
    """Returns the microseconds of ibv_reg_mr: the median."""
    log = place / f"register-{size}.log"
    log.unlink(missing_ok=True)
    code = room.start(["/usr/bin/python3", "-c", REGISTER, str(size), str(count)],
                      log).wait(timeout=60)
    text = log.read_text()
    if code:
        raise Wrong(text)
    return float(text.split()[-1])


def measure(room, rounds, far):
    """Measures in turns, so that a disturbance of the machine disturbs all measurements. Prints a
    table."""
    place = room.logs / "figures"
    place.mkdir()
    place.chmod(0o777)
    taken = {}
    port = 20000
    for _ in range(rounds):
        for name, take in {
            "write_bw": lambda p: perftest(room, place, p, "ib_write_bw", 3, "-s", str(SIZE), "-D",
                                           str(LONG), "--report_gbits"),
            "iperf_lo": lambda p: iperf(room, place, p, cases.HOST),
            "iperf_veth": lambda p: iperf(room, place, p, FAR, far),
            "write_lat": lambda p: perftest(room, place, p, "ib_write_lat", 4, "-s", str(SHORT),
                                            "-n", "50000"),
            "sockperf": lambda p: sockperf(room, place, p),
            "qperf": lambda p: qperf(room, place, p),
            "register_1m": lambda p: register(room, place, 1 << 20, 200),
            "register_4k": lambda p: register(room, place, 4096, 2000),
        }.items():
            port += 1
            taken.setdefault(name, []).append(take(port))
    print(f"{'What':64} {'median':>9} {'least':>9} {'greatest':>9}")
    for name, text in (
        ("write_bw", f"Gb/s of ib_write_bw, {SIZE} bytes, between two programs"),
        ("iperf_lo", "Gb/s of iperf3 over lo"),
        ("iperf_veth", "Gb/s of iperf3 over a veth of MTU 1500"),
        ("write_lat", f"us of ib_write_lat, {SHORT} bytes: half a round trip"),
        ("sockperf", "us of sockperf over lo, TCP: half a round trip"),
        ("qperf", "us of qperf over lo, TCP: half a round trip"),
        ("register_1m", "us of ibv_reg_mr of 1 MiB of a program's own memory"),
        ("register_4k", "us of ibv_reg_mr of 4 KiB"),
    ):
        v = taken[name]
        print(f"{text:64} {statistics.median(v):9.2f} {min(v):9.2f} {max(v):9.2f}")
    for text, over, under, aim in (
        ("ib_write_bw to iperf3 over lo: at least 1.5", "write_bw", "iperf_lo", 1.5),
        ("ib_write_bw to iperf3 over the veth: at least 3", "write_bw", "iperf_veth", 3),
        ("sockperf's to ib_write_lat's: at least 3", "sockperf", "write_lat", 3),
        ("qperf's to ib_write_lat's: at least 3", "qperf", "write_lat", 3),
    ):
        ratios = [a / b for a, b in zip(taken[over], taken[under])]
        middle = statistics.median(ratios)
        print(f"{text:64} {middle:9.2f} {min(ratios):9.2f} {max(ratios):9.2f}"
              f"  {'reached' if middle >= aim else 'NOT reached'}")
