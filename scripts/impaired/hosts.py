"""Who sends to whom, and what became of it.

A way is a sender and a receiver. Senders are in namespace a, receivers in b.

    kernel to kernel    kernel-peer source -> kernel-peer sink
    Heddle to kernel    heddle bench       -> kernel-peer sink
    kernel to Heddle    kernel-peer source -> heddle serve, the sink service
    Heddle to Heddle    heddle bench       -> heddle serve, the perf service

Where the kernel receives, its sink reports the bytes of each connection over time. Where Heddle
receives, the sender reports what was acknowledged.
"""

import json
import re
import time
from dataclasses import dataclass, field

from impaired.cells import begins, rate_between
from impaired.lab import HEDDLE, HEDDLE_V6, KERNEL
from peers.contenders import Failed, Programs

PORT = 7471
# A server listens within this time, on a busy machine too.
SERVES = 60
# A sender connects and ends within this time beside its measurement, or the run ends it.
OVERTIME = 60
# Payload in a byte of the stream: the source fills segments of 1448 bytes with FPDUs.
PAYLOAD = 1428 / 1448
# Bytes of a Write.
SIZE = 16 << 10


@dataclass
class Run:
    """What one run gave: goodput in Mb/s, of all flows and of each; segments that the senders
    retransmitted, timeouts of Heddle's; the bridge's counters."""
    goodput: float
    flows: dict = field(default_factory=dict)
    resent: int | None = None
    timeouts: int | None = None
    bridge: dict = field(default_factory=dict)
    hidden: int = 0


@dataclass(frozen=True)
class Way:
    name: str
    sender: str     # "Heddle", or the kernel's algorithm
    receiver: str   # "Heddle" or "kernel"


def ways(congestion=None, kernel=("cubic", "reno")):
    """Returns the ways that are compared: the first is the reference."""
    ours = f"Heddle {congestion}" if congestion else "Heddle"
    return [*(Way(f"Linux {name} to Linux", name, "kernel") for name in kernel),
            Way(f"{ours} to Linux", "Heddle", "kernel"),
            Way(f"Linux {kernel[0]} to Heddle", kernel[0], "Heddle"),
            Way(f"{ours} to Heddle", "Heddle", "Heddle")]


class Hosts:
    """Starts the programs of a run."""

    def __init__(self, lab, heddle, peer, congestion=None):
        self.lab, self.heddle, self.peer = lab, heddle, peer
        self.congestion = congestion
        self.ecn = None

    def ask_for_ecn(self, when):
        """Makes senders ask for ECN from now on, Heddle's by this name; without it, none asks."""
        self.ecn = when
        self.lab.ecn(when is not None)

    def device(self, side, prefix=24, version=4):
        ip = f"{HEDDLE_V6[side]}/64" if version == 6 else f"{HEDDLE[side]}/{prefix}"
        return ["--vdev", f"net_af_packet0,iface={self.lab.links[side]}", "--ip", ip, "--inline"]

    def sink(self, programs, service, prefix=24, version=4):
        """Starts a receiver, and returns its address and its process. Over IPv6 it is Heddle."""
        if service == "kernel":
            address = f"{KERNEL[1]}:{PORT}"
            command = [self.peer, "sink", address]
        else:
            address = f"[{HEDDLE_V6[1]}]:{PORT}" if version == 6 else f"{HEDDLE[1]}:{PORT}"
            command = [self.heddle, "serve", *self.device(1, prefix, version), "--listen",
                       f"{address}={service}", "--memory", "256"]
            if self.ecn == "accurate":
                command += ["--ecn", self.ecn]
        program = programs.start(self.lab.names[1], *command)
        program.wait_for("listening", SERVES)
        return address, program

    def kernel(self, programs, address, seconds, flows=1, algorithm=None, verify=False):
        command = [self.peer, "source", address, "--connections", str(flows), "--seconds",
                   str(seconds), *(["--verify"] if verify else []),
                   *(["--congestion", algorithm] if algorithm else [])]
        return programs.start(self.lab.names[0], *command)

    def bench(self, programs, to, warmup, seconds, outstanding, flows=1, revision="2"):
        command = [self.heddle, "bench", "--op", "write", "--size", str(SIZE), "--depth",
                   str(max(4, outstanding // SIZE // flows)), "--qps", str(flows), "--mpa",
                   revision, *self.device(0), "--connect", to, "--duration",
                   f"{1000 * (warmup + seconds):.0f}ms", "--warmup", f"{1000 * warmup:.0f}ms",
                   "--json", "-", "--quiet"]
        if self.congestion:
            command += ["--congestion", self.congestion]
        if self.ecn:
            command += ["--ecn", self.ecn]
        return programs.start(self.lab.names[0], *command)

    def acknowledged(self, client=None):
        """Returns what ss says of the kernel's connections, or of that of a client: the time, bytes
        acknowledged and segments retransmitted."""
        which = ["dport", f"= :{PORT}"] + (["and", "src", f"= {client}"] if client else [])
        text = self.lab.within(self.lab.names[0], "ss", "-tinH", *which)
        # Most of the time passes before ss asks the kernel: two programs start.
        return (time.monotonic(), *totals(text))


    def connected(self):
        """Returns the addresses of Heddle's connections at the kernel's sink."""
        text = self.lab.within(self.lab.names[1], "ss", "-tnH", "sport", f"= :{PORT}")
        return re.findall(re.escape(HEDDLE[0]) + r":\d+", text)


def totals(text):
    """Adds up what ss says of connections."""
    acked = sum(int(n) for n in re.findall(r"bytes_acked:(\d+)", text))
    resent = sum(int(n) for n in re.findall(r" retrans:\d+/(\d+)", text))
    return acked, resent


def wait(program, seconds):
    """Waits for the end of a program. Returns true if it came in time."""
    limit = time.monotonic() + seconds
    while program.runs():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def of_bench(program):
    """Returns the report of `heddle bench`, or None if the run had to end it."""
    return json.loads(program.text())["results"][0]["runs"][0]


def received(sink):
    """Ends the kernel's sink, and returns samples by connection."""
    sink.child.terminate()
    if not wait(sink, OVERTIME):
        raise Failed("kernel-peer sink: no end")
    report = json.loads(sink.text())
    return {c["peer"]: c["samples"] for c in report["connections"]}


def within(samples, warmup, seconds):
    """Returns Mb/s of each connection in the measured time, which begins after the warm-up of the
    connection that was last to send."""
    first = [begins(s) for s in samples.values()]
    if not first or None in first:
        raise Failed(f"{first.count(None)} of {len(first)} connections delivered nothing")
    start = max(first) + warmup
    return {peer: rate_between(s, start, start + seconds) for peer, s in samples.items()}


def measure(hosts, way, wire, warmup, seconds, outstanding, verify=False):
    """Runs a way once, with one flow."""
    programs = Programs()
    try:
        with hosts.lab.wire(wire) as bridge:
            try:
                run = WAYS[way.sender == "Heddle", way.receiver](
                    hosts, programs, way, warmup, seconds, outstanding, verify)
            finally:
                programs.end()
    finally:
        programs.end()
    if not run.goodput > 0:
        raise Failed(f"{way.name}: nothing was delivered")
    run.bridge, run.hidden = bridge.counters, bridge.hidden
    return run


def kernel_to_kernel(hosts, programs, way, warmup, seconds, _outstanding, verify):
    address, sink = hosts.sink(programs, "kernel")
    source = hosts.kernel(programs, address, warmup + seconds + 0.3, 1, way.sender, verify)
    time.sleep(warmup + seconds)
    resent = hosts.acknowledged()[2]
    finish(source, seconds)
    flows = within(received(sink), warmup, seconds)
    return Run(sum(flows.values()), flows, resent)


def heddle_to_kernel(hosts, programs, _way, warmup, seconds, outstanding, _verify):
    address, sink = hosts.sink(programs, "kernel")
    bench = hosts.bench(programs, address, warmup, seconds, outstanding, 1, "1")
    finish(bench, warmup + seconds)
    report = of_bench(bench)
    flows = within(received(sink), warmup, seconds)
    return Run(sum(flows.values()), flows, report["retransmits"], report["timeouts"])


def kernel_to_heddle(hosts, programs, way, warmup, seconds, _outstanding, verify):
    address, _sink = hosts.sink(programs, "sink")
    source = hosts.kernel(programs, address, warmup + seconds + 1, 1, way.sender, verify)
    limit = time.monotonic() + OVERTIME
    while not hosts.acknowledged()[1]:
        if time.monotonic() > limit or not source.runs():
            raise Failed(f"kernel-peer: no connection: {source.written()}")
        time.sleep(0.02)
    time.sleep(warmup)
    begin, before, _ = hosts.acknowledged()
    time.sleep(seconds)
    end, after, resent = hosts.acknowledged()
    finish(source, seconds)
    goodput = (after - before) * PAYLOAD * 8 / 1e6 / (end - begin)
    return Run(goodput, {}, resent)


def heddle_to_heddle(hosts, programs, _way, warmup, seconds, outstanding, _verify):
    address, _server = hosts.sink(programs, "perf")
    bench = hosts.bench(programs, address, warmup, seconds, outstanding)
    finish(bench, warmup + seconds)
    report = of_bench(bench)
    return Run(report["gbit_per_s"] * 1e3, {}, report["retransmits"], report["timeouts"])


def finish(program, seconds):
    """Waits for a sender that sends for some more seconds; it has to succeed."""
    if not wait(program, seconds + OVERTIME):
        raise Failed(f"{' '.join(program.args)}: no end")
    program.text()


WAYS = {(False, "kernel"): kernel_to_kernel, (True, "kernel"): heddle_to_kernel,
        (False, "Heddle"): kernel_to_heddle, (True, "Heddle"): heddle_to_heddle}


def together(hosts, wire, flows, algorithm, warmup, seconds, outstanding):
    """Runs flows of Heddle and flows of the kernel, `flows` of each, into one sink of the
    kernel. The goodput is that of all; `flows` has each, by its peer's address."""
    ours, theirs = flows
    programs = Programs()
    try:
        with hosts.lab.wire(wire) as bridge:
            address, sink = hosts.sink(programs, "kernel")
            senders = []
            if ours:
                # Heddle's start-up takes longer than the kernel's, so both get ample time.
                senders.append(hosts.bench(programs, address, warmup, seconds + 4, outstanding,
                                           ours, "1"))
                limit = time.monotonic() + SERVES
                while len(hosts.connected()) < ours:
                    if time.monotonic() > limit:
                        raise Failed("heddle bench: no connection")
                    time.sleep(0.02)
            if theirs:
                senders.append(hosts.kernel(programs, address, warmup + seconds + 2, theirs,
                                            algorithm))
            time.sleep(warmup + seconds + 1)
            each = within(received(sink), warmup, seconds)
            programs.end()
    finally:
        programs.end()
    return Run(sum(each.values()), each, bridge=bridge.counters, hidden=bridge.hidden)
