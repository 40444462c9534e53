"""The programs that are compared, and the wires between them.

    namespace a                      namespace b
    k1500  10.78.1.1 =====veth====== k1500  10.78.1.2    the kernel's, MTU 1500
    k9000  10.78.2.1 =====veth====== k9000  10.78.2.2    the kernel's, MTU 9000
    h1500  (10.79.1.1) ===veth====== h1500  (10.79.1.2)  Heddle's, by net_af_packet
    h9000  (10.79.2.1) ===veth====== h9000  (10.79.2.2)
"""

import json
import os
import re
import signal
import subprocess
import time

MTUS = {1500: 1, 9000: 2}
MICROSECONDS = {"ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6}
# Heddle's server starts within this time.
SERVES = 2
# The kernel's programs start within this time, and have measured nothing before.
STARTS = 0.3


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
                link = f"{kind}{mtu}"
                self.within(a, "ip", "link", "add", link, "mtu", str(mtu), "type", "veth",
                            "peer", "name", link, "mtu", str(mtu), "netns", b)
                for name, end in zip(self.names, (1, 2)):
                    if kind == "k":
                        address = f"10.78.{n}.{end}/24"
                        self.within(name, "ip", "address", "add", address, "dev", link)
                    else:
                        # Heddle answers ARP itself.
                        self.within(name, "ip", "link", "set", link, "arp", "off")
                    self.within(name, "ip", "link", "set", link, "addrgenmode", "none", "up")

    def within(self, name, *command):
        return run("ip", "netns", "exec", name, *command)

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Programs:
    """Processes that run in a namespace; those that still run at the end are ended."""

    def __init__(self):
        self.all = []

    def start(self, namespace, *command):
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        child = subprocess.Popen([*inside, *command], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.all.append(child)
        return child

    def pids(self):
        return [child.pid for child in self.all if child.poll() is None]

    def end(self):
        for child in self.all:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            try:
                child.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()


def output(child, seconds):
    """Waits for the end of a client, and returns what it wrote."""
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {seconds:.0f} s: {' '.join(child.args)}") from None
    if child.returncode:
        raise Failed(f"{' '.join(child.args)}: {err.strip() or out.strip()}"[:400])
    return out


class Heddle:
    """RDMA Writes; the round trip is of a Write and a Write back."""

    def __init__(self, heddle, name, wire, inline, mtu=1500):
        self.heddle, self.name, self.wire = heddle, name, wire
        self.inline, self.mtu = inline, mtu

    def takes(self, _what, _conns):
        return True

    def start(self, programs, net, what, size, conns, seconds):
        command = [self.heddle, "bench", "--op", "write", "--size", str(size), "--json", "-",
                   "--quiet", "--duration", f"{seconds}s", "--mtu", str(self.mtu),
                   "--qps", str(conns), "--mode", "lat" if what == "round trip" else "bw"]
        if self.wire == "af_packet":
            n = MTUS[self.mtu]
            device = ["--vdev", f"net_af_packet0,iface=h{self.mtu}"]
            server = [self.heddle, "serve", *device, "--ip", f"10.79.{n}.1/24", "--mtu",
                      str(self.mtu), "--listen", f"10.79.{n}.1:7471=perf",
                      "--lcores", "0", "--memory", "512"]
            serving = programs.start(net.names[0], *server)
            time.sleep(SERVES)
            if serving.poll() is not None:
                output(serving, 1)
            device += ["--ip", f"10.79.{n}.2/24", "--connect", f"10.79.{n}.1:7471"]
            return programs.start(net.names[1], *command, *device)
        if self.inline:
            command.append("--inline")
        return programs.start(None, *command, "--wire", self.wire)

    def result(self, text, what):
        of = json.loads(text)["results"][0]["runs"][0]
        if what == "round trip":
            return of["seconds"] / of["ops"] * 1e6
        return of["gbit_per_s"]


class Kernel:
    """Linux's TCP: throughput of iperf3, round trips of qperf."""

    def __init__(self, name, mtu=None):
        self.name, self.mtu = name, mtu

    def takes(self, _what, conns):
        # iperf3 has no more streams.
        return conns <= 128

    def start(self, programs, net, what, size, conns, seconds):
        server, client, address = net.names[0], net.names[1], f"10.78.{MTUS.get(self.mtu)}.1"
        if self.mtu is None:
            client, address = server, "127.0.0.1"
        if what == "round trip":
            programs.start(server, "qperf", "-lp", "19765")
            time.sleep(STARTS)
            return programs.start(client, "qperf", "-lp", "19765", "-m", str(size), "-t",
                                  f"{seconds:.0f}", "-uu", address, "tcp_lat")
        programs.start(server, "iperf3", "-s", "-1", "-p", "15201")
        time.sleep(STARTS)
        return programs.start(client, "iperf3", "-c", address, "-p", "15201", "-J", "-l",
                              str(min(size, 1 << 20)), "-P", str(conns), "-t", f"{seconds:.0f}")

    def result(self, text, what):
        if what == "round trip":
            found = re.search(r"latency\s*=\s*([\d.]+) (ns|us|ms|sec)", text)
            if not found:
                raise Failed(f"qperf: {text}")
            # qperf reports half of a round trip.
            return 2 * float(found.group(1)) * MICROSECONDS[found.group(2)]
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9


def contenders(heddle):
    return [
        Heddle(heddle, "Heddle, ring, one processor", "ring", True),
        Heddle(heddle, "Heddle, ring, two", "ring", False),
        Heddle(heddle, "Heddle, vhost, one processor", "vhost", True),
        Heddle(heddle, "Heddle, vhost, two", "vhost", False),
        Heddle(heddle, "Heddle, af_packet, veth 1500", "af_packet", False),
        Heddle(heddle, "Heddle, af_packet, veth 9000", "af_packet", False, 9000),
        Kernel("Linux TCP, loopback"),
        Kernel("Linux TCP, veth 1500", 1500),
        Kernel("Linux TCP, veth 9000", 9000),
    ]
