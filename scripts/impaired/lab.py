"""Two hosts and the impaired wire between them.

    namespace a                                                     namespace b
    the kernel  10.77.0.1  --+                                 +--  the kernel  10.77.0.2
                             +-- tap == impair (user space) == tap
    Heddle     10.77.0.11  --+                                 +--  Heddle     10.77.0.12

Over IPv6 they are fd77::1, ::2, ::11 and ::12. Heddle shares the interface with the kernel by
net_af_packet, so that flows of both meet in the same queue.
"""

import contextlib
import json
import os
import subprocess
import time

from peers.contenders import Failed, Program, run

# The bridge starts within this time, on a busy machine too.
STARTS = 30
KERNEL = ("10.77.0.1", "10.77.0.2")
HEDDLE = ("10.77.0.11", "10.77.0.12")
KERNEL_V6 = ("fd77::1", "fd77::2")
HEDDLE_V6 = ("fd77::11", "fd77::12")
# Frames that wait for the bridge: more than any window of a run, so that only the bridge drops.
QUEUE = 20_000
SYSCTLS = {
    # A run learns nothing from the run before.
    "net.ipv4.tcp_no_metrics_save": "1",
    # Windows for the product of rate and delay, and the queue on top.
    "net.ipv4.tcp_wmem": "4096 16384 67108864",
    "net.ipv4.tcp_rmem": "4096 131072 67108864",
    "net.ipv4.ip_forward": "0",
    # A black hole, as Heddle has it by default.
    "net.ipv4.tcp_mtu_probing": "1",
}


class Lab:
    """The namespaces, which go with the process that made them."""

    def __init__(self, impair):
        self.impair = impair
        self.names = [f"heddle-net-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"hn{os.getpid()}{side}" for side in "ab"]
        self.made = []

    def __enter__(self):
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                self.made.append(name)
                self.within(name, "ip", "link", "set", "lo", "up")
                for key, value in SYSCTLS.items():
                    self.sysctl(name, key, value)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def within(self, name, *command):
        return run("ip", "netns", "exec", name, *command)

    def sysctl(self, name, key, value):
        self.within(name, "sysctl", "-qw", f"{key}={value}")

    def ecn(self, asked):
        """Lets the kernels ask for ECN, or only agree to it."""
        for name in self.names:
            self.sysctl(name, "net.ipv4.tcp_ecn", "1" if asked else "2")

    @contextlib.contextmanager
    def wire(self, wire, version=4):
        """Joins the hosts by a bridge with these settings as long as the context lasts. With
        version 6 they have addresses of IPv6 besides."""
        command = ["nice", "-n", "-20", self.impair, "--tap-a", self.links[0], "--tap-b",
                   self.links[1], *wire.arguments()]
        bridge = Bridge(Program(command))
        try:
            bridge.program.wait_for("ready", STARTS)
            for side, (name, link) in enumerate(zip(self.names, self.links)):
                run("ip", "link", "set", link, "netns", name)
                self.within(name, "ip", "address", "add", f"{KERNEL[side]}/24", "dev", link)
                if version == 6:
                    self.within(name, "ip", "address", "add", f"{KERNEL_V6[side]}/64", "dev",
                                link, "nodad")
                self.within(name, "ip", "link", "set", link, "txqueuelen", str(QUEUE),
                            "addrgenmode", "none", "up")
            yield bridge
            # The settings did not ask for drops of the host's own queue.
            bridge.hidden = sum(self.dropped(name, link)
                                for name, link in zip(self.names, self.links))
            bridge.end()
        finally:
            bridge.program.end()

    def dropped(self, name, link):
        found = json.loads(self.within(name, "ip", "-j", "-s", "link", "show", link))
        stats = found[0]["stats64"]
        return stats["tx"]["dropped"] + stats["tx"]["errors"]


class Bridge:
    """The process between the hosts; after its end also its counters."""

    def __init__(self, program):
        self.program, self.counters, self.hidden = program, None, 0

    def end(self):
        self.program.child.terminate()
        limit = time.monotonic() + STARTS
        while self.program.runs():
            if time.monotonic() > limit:
                raise Failed("impair: no end")
            time.sleep(0.01)
        self.counters = json.loads(self.program.text().splitlines()[-1])
