"""The programs that are compared, and the wires between them.

    namespace a                      namespace b
    k1500  10.78.1.1 =====veth====== k1500  10.78.1.2    the kernel's, MTU 1500
    k9000  10.78.2.1 =====veth====== k9000  10.78.2.2    the kernel's, MTU 9000
    h1500  (10.79.1.1) ===veth====== h1500  (10.79.1.2)  Heddle's, by net_af_packet
    h9000  (10.79.2.1) ===veth====== h9000  (10.79.2.2)
    i1500 =veth= j1500                                   Heddle's, both ends in one process
    i9000 =veth= j9000
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

MTUS = {1500: 1, 9000: 2}
MICROSECONDS = {"ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6}
# Heddle's server starts within this time, on a busy machine too.
SERVES = 60
# The kernel's programs start within this time, and have measured nothing before.
STARTS = 0.3
# iperf3 has no more streams.
STREAMS = 128
# A client ends within this time after its measurement, or has failed.
OVERTIME = 60


class Failed(Exception):
    pass


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Net:
    """Two network namespaces of this process, which go with it."""

    def __init__(self):
        self.names = [f"heddle-peers-{os.getpid()}-{side}" for side in "ab"]
        self.made = []

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        for name in self.names:
            run("ip", "netns", "add", name)
            self.made.append(name)
            self.within(name, "ip", "link", "set", "lo", "up")
        a, b = self.names
        for mtu, n in MTUS.items():
            for kind in "kh":
                self.pair(mtu, (a, f"{kind}{mtu}"), (b, f"{kind}{mtu}"))
            for name, end in zip(self.names, (1, 2)):
                self.within(name, "ip", "address", "add", f"10.78.{n}.{end}/24", "dev", f"k{mtu}")
            self.pair(mtu, (a, f"i{mtu}"), (a, f"j{mtu}"))

    def pair(self, mtu, *ends):
        """Joins two interfaces, each of a namespace."""
        (a, one), (b, other) = ends
        self.within(a, "ip", "link", "add", one, "mtu", str(mtu), "type", "veth",
                    "peer", "name", other, "mtu", str(mtu), "netns", b)
        for name, link in ends:
            if not link.startswith("k"):
                # Heddle answers ARP itself.
                self.within(name, "ip", "link", "set", link, "arp", "off")
            self.within(name, "ip", "link", "set", link, "addrgenmode", "none", "up")

    def within(self, name, *command):
        return run("ip", "netns", "exec", name, *command)

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Program:
    """A process that writes into files, so that it never waits for a reader."""

    def __init__(self, command):
        self.args = command
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out,
                                      stderr=self.err)

    def runs(self):
        return self.child.poll() is None

    def written(self):
        """Returns what the program has written: its output and its errors."""
        return [os.pread(file.fileno(), 1 << 26, 0).decode(errors="replace")
                for file in (self.out, self.err)]

    def wait_for(self, word, seconds):
        """Waits until the program has written a word."""
        limit = time.monotonic() + seconds
        while not any(word in text for text in self.written()):
            if not self.runs() or time.monotonic() > limit:
                raise Failed(f"{' '.join(self.args)}: {' '.join(self.written())}"[:400])
            time.sleep(0.02)

    def text(self):
        """Returns what a program that has ended wrote."""
        out, err = self.written()
        if self.child.returncode:
            raise Failed(f"{' '.join(self.args)}: {err.strip() or out.strip()}"[:400])
        return out

    def end(self):
        if self.runs():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.out.close()
        self.err.close()


class Programs:
    """The processes of a run; those that still run at the end are ended."""

    def __init__(self):
        self.all = []

    def start(self, namespace, *command):
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        program = Program([*inside, *command])
        self.all.append(program)
        return program

    def pids(self):
        return [program.child.pid for program in self.all if program.runs()]

    def end(self):
        for program in self.all:
            program.end()


def of_bench(run, test):
    """Returns the figure of a run of `heddle bench`."""
    if test.what != "round trip":
        return run["mops_per_s" if test.what == "rate" else "gbit_per_s"]
    if not run["ops"]:
        raise Failed("heddle bench: no round trip came to an end")
    return run["seconds"] / run["ops"] * 1e6


class Heddle:
    """RDMA Writes; the round trip is of a Write and a Write back.

    The wires: ring; ring-tso, whose frames may have many segments, as those of Linux's TCP have on
    loopback and veth; vhost; veth: net_af_packet over a pair of interfaces, with a process for each
    end, or one process on one thread."""

    def __init__(self, heddle, name, wire, processors, mtu=1500):
        self.heddle, self.name, self.wire = heddle, name, wire
        # Workers spin, so these processors are theirs.
        self.processors, self.mtu = processors, mtu

    def takes(self, _what, conns):
        # A server lets one address have a part of its connections, and open few at a time.
        return self.wire != "veth" or self.processors == 1 or conns <= STREAMS

    def start(self, programs, net, test, seconds):
        mode = {"round trip": "lat", "rate": "rate"}.get(test.what, "bw")
        command = [self.heddle, "bench", "--op", "write", "--size", str(test.size), "--json", "-",
                   "--quiet", "--duration", f"{seconds}s", "--mtu", str(self.mtu),
                   "--qps", str(test.conns), "--mode", mode]
        if self.processors == 1:
            command.append("--inline")
        if self.wire != "veth":
            return [programs.start(None, *command, "--wire", self.wire)]
        if self.processors == 1:
            devices = ["--wire", "vdev", "--vdev", f"net_af_packet0,iface=i{self.mtu}",
                       "--server-vdev", f"net_af_packet1,iface=j{self.mtu}"]
            return [programs.start(net.names[0], *command, *devices)]
        # The server's worker and its services are one thread on the first processor, the client's
        # are one on the last. A third thread that spins would keep one of the two waiting.
        n, device = MTUS[self.mtu], ["--vdev", f"net_af_packet0,iface=h{self.mtu}"]
        first = str(min(os.sched_getaffinity(0)))
        server = ["taskset", "-c", first, self.heddle, "serve", *device, "--ip",
                  f"10.79.{n}.1/24", "--mtu", str(self.mtu), "--listen",
                  f"10.79.{n}.1:7471=perf", "--inline", "--memory", "512"]
        serving = programs.start(net.names[0], *server)
        serving.wait_for("listening", SERVES)
        device += ["--ip", f"10.79.{n}.2/24", "--connect", f"10.79.{n}.1:7471"]
        return [programs.start(net.names[1], *command, *device)]

    def result(self, texts, test):
        return of_bench(self.report(texts), test)

    def report(self, texts):
        return json.loads(texts[0])["results"][0]["runs"][0]

    def own(self, texts, _test):
        """Returns the processors that the program itself says that it used while it measured, with
        its warm-up and the opening of connections; None if the server is another program."""
        if self.wire == "veth" and self.processors > 1:
            return None
        of = self.report(texts)
        used = of["processor"]
        wall = of["warmup_seconds"] + of["seconds"]
        return (used["user_seconds"] + used["system_seconds"]) / wall


class Kernel:
    """Linux's TCP: throughput and rate of iperf3, round trips of qperf."""

    processors = None

    def __init__(self, name, mtu=None):
        self.name, self.mtu = name, mtu

    def takes(self, _what, _conns):
        return True

    def start(self, programs, net, test, seconds):
        server, client, address = net.names[0], net.names[1], f"10.78.{MTUS.get(self.mtu)}.1"
        if self.mtu is None:
            client, address = server, "127.0.0.1"
        if test.what == "round trip":
            programs.start(server, "qperf", "-lp", "19765")
            time.sleep(STARTS)
            return [programs.start(client, "qperf", "-lp", "19765", "-m", str(test.size), "-t",
                                   f"{seconds:.0f}", "-uu", address, "tcp_lat")]
        # A pair of processes has only so many streams.
        pairs = [(str(15201 + n), min(STREAMS, test.conns - n * STREAMS))
                 for n in range(-(-test.conns // STREAMS))]
        for port, _ in pairs:
            programs.start(server, "iperf3", "-s", "-1", "-p", port)
        time.sleep(STARTS)
        return [programs.start(client, "iperf3", "-c", address, "-p", port, "-J", "-l",
                               str(min(test.size, 1 << 20)), "-P", str(conns), "-t",
                               f"{seconds:.0f}")
                for port, conns in pairs]

    def result(self, texts, test):
        if test.what == "round trip":
            found = re.search(r"latency\s*=\s*([\d.]+) (ns|us|ms|sec)", texts[0])
            if not found:
                raise Failed(f"qperf: {texts[0]}")
            # qperf reports half of a round trip.
            return 2 * float(found.group(1)) * MICROSECONDS[found.group(2)]
        bits = sum(json.loads(text)["end"]["sum_received"]["bits_per_second"] for text in texts)
        return bits / 8e6 / test.size if test.what == "rate" else bits / 1e9

    def own(self, texts, test):
        """Returns the processors that iperf3 says that both its ends used."""
        if test.what == "round trip":
            return None
        used = [json.loads(text)["end"]["cpu_utilization_percent"] for text in texts]
        return sum(one["host_total"] + one["remote_total"] for one in used) / 100


class Smoltcp:
    """The TCP of smoltcp, both hosts on one thread, with the settings that are fastest here."""

    processors = 1

    def __init__(self, program, name, mtu):
        self.program, self.name, self.mtu = program, name, mtu
        # The fastest settings, by the size of writes.
        self.settings = {}

    def takes(self, _what, conns):
        return conns == 1

    def start(self, programs, _net, test, seconds):
        command = [self.program, "--size", str(test.size), "--mtu", str(self.mtu)]
        if test.what == "round trip":
            command += ["--mode", "lat"]
        else:
            if test.size not in self.settings:
                self.settings[test.size] = json.loads(run(*command))
            for name in ("buffer", "link", "receive"):
                command += [f"--{name}", str(self.settings[test.size][name])]
        return [programs.start(None, *command, "--seconds", str(seconds))]

    def result(self, texts, test):
        of = json.loads(texts[0])
        if test.what == "round trip":
            if of["mean_us"] is None:
                raise Failed("smoltcp: no round trip came to an end")
            return of["mean_us"]
        return of["gbit_per_s"] * (1e3 / 8 / test.size if test.what == "rate" else 1)

    def own(self, _texts, _test):
        return None


def contenders(heddle, smoltcp):
    return [
        Heddle(heddle, "Heddle, ring, one processor", "ring", 1),
        Heddle(heddle, "Heddle, ring, two", "ring", 2),
        Heddle(heddle, "Heddle, ring-tso, one processor", "ring-tso", 1),
        Heddle(heddle, "Heddle, vhost, one processor", "vhost", 1),
        Heddle(heddle, "Heddle, vhost, two", "vhost", 2),
        Heddle(heddle, "Heddle, veth 1500, one processor", "veth", 1),
        Heddle(heddle, "Heddle, veth 1500, two", "veth", 2),
        Heddle(heddle, "Heddle, veth 9000, one processor", "veth", 1, 9000),
        Heddle(heddle, "Heddle, veth 9000, two", "veth", 2, 9000),
        Smoltcp(smoltcp, "smoltcp, memory, one processor", 1500),
        Kernel("Linux TCP, loopback"),
        Kernel("Linux TCP, veth 1500", 1500),
        Kernel("Linux TCP, veth 9000", 9000),
    ]
