"""Two appliances and the wire between them, in a network namespace that only this process is in.

    appliance under test                                    its peer
    port0  10.71.0.1  a0 ==veth== b.a0 --[br0]-- b.p0 ==veth== p0  10.71.0.2
                                         |
                                    the kernel, 10.71.0.9: strangers
    port1  10.72.0.1  a1 =============veth============ p1  10.72.0.2
"""

import os
import signal
import subprocess
import sys
import time

from .control import Control, process

# Workers of an appliance: two of its first port, one of its second.
WORKERS = 3

OURS, PEERS, STRANGER = "10.71.0.1", "10.71.0.2", "10.71.0.9"
OURS2, PEERS2 = "10.72.0.1", "10.72.0.2"
# Ports of the service that is also offered over InfiniBand, and of the gateways to such a service
# and to the sink of the other appliance.
CMTIME, TO_INFINIBAND, TO_IWARP = 7177, 7185, 7187
# An address that reloads add and remove, and on which a service listens.
GUEST = "10.71.0.50"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def wire():
    """Makes the interfaces. They have no offloads, so that frames leave with their checksums."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge")
    pairs = [("a0", "b.a0"), ("p0", "b.p0"), ("a1", "p1")]
    for one, other in pairs:
        run("ip", "link", "add", one, "type", "veth", "peer", "name", other)
    for name in ("b.a0", "b.p0"):
        run("ip", "link", "set", name, "master", "br0")
    for name in ("a0", "p0", "a1", "p1"):
        # The kernel has addresses of its own, and must not answer for them here.
        run("ip", "link", "set", name, "arp", "off")
    for name in ("br0", *(n for pair in pairs for n in pair)):
        for what in ("tx", "gso", "gro", "tso"):
            subprocess.run(("ethtool", "-K", name, what, "off"), capture_output=True)
        run("ip", "link", "set", name, "addrgenmode", "none", "up")
    run("ip", "address", "add", f"{STRANGER}/24", "dev", "br0")


BASE = """\
[dpdk]
hugepages = "never"
memory = 128
[log]
level = "{level}"
[control]
socket = "{socket}"
mode = "0666"
clients = 128
[metrics]
listen = "{metrics}"
[workers]
lcores = {lcores}
idle = "backoff"
[memory]
registered = 64
[limits]
frames = 4096
{limits}[tcp]
keepalive = "10s"
[infiniband]
cm = true
[[port]]
vdev = "net_af_packet0,iface={side}0,qpairs=2"
workers = 2
addresses = [{addresses}]
[[port]]
vdev = "net_af_packet1,iface={side}1"
addresses = ["{second}/24"]
"""


class Appliance:
    """`heddle serve` of one side."""

    def __init__(self, heddle, out, side, metrics):
        self.heddle, self.side, self.metrics = heddle, side, metrics
        self.ours = {"a": (OURS, OURS2), "p": (PEERS, PEERS2)}[side]
        self.file = os.path.join(out, f"{side}.toml")
        self.socket = os.path.join(out, f"{side}.sock")
        self.log = os.path.join(out, f"{side}.log")
        self.child = None
        processors = sorted(os.sched_getaffinity(0))
        self.lcores = processors[:2] if side == "a" else processors[-1:]
        # Scripts other than the soak add further limits and tables.
        self.limits, self.more = "", ""
        self.environment = {}
        # The file in which heap.c, if it is preloaded, records the allocated bytes.
        self.heap = None

    def config(self, level="info", guest=False, listen=(), more=""):
        """Returns a file's text; `guest` adds the further address, `listen` adds services to the
        constant ones."""
        services = [(7174, "rping"), (7175, "perf"), (7176, "sink"), *listen]
        addresses = [f'"{self.ours[0]}/24"'] + ([f'"{GUEST}/24"'] if guest else [])
        text = self.more + more + BASE.format(
            level=level, limits=self.limits, socket=self.socket, metrics=self.metrics,
            lcores=self.lcores, side=self.side,
            addresses=", ".join(addresses), second=self.ours[1])
        listeners = [(f"{self.ours[0]}:{port}", service) for port, service in services]
        if guest:
            listeners.append((f"{GUEST}:7180", "sink"))
        for address, service in listeners:
            text += f'[[listen]]\naddress = "{address}"\nservice = "{service}"\n'
        ours, other = self.ours[0], PEERS if self.side == "a" else OURS
        text += f'[[listen]]\naddress = "{ours}:{CMTIME}"\nservice = "cmtime"\ninfiniband = true\n'
        for port, to, over in ((TO_INFINIBAND, CMTIME, "infiniband"), (TO_IWARP, 7176, "iwarp")):
            text += f'[[listen]]\naddress = "{ours}:{port}"\n'
            text += f'forward = {{ to = "{other}:{to}", over = "{over}", timeout = "3s" }}\n'
        return text

    def write(self, text):
        with open(self.file, "w") as f:
            f.write(text)

    def start(self):
        self.write(self.config())
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                (self.heddle, "serve", "--config", self.file),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                env={**os.environ, **self.environment})
        until = time.monotonic() + 30
        while True:
            try:
                with Control(self.socket) as c:
                    return c.ask("status")
            except OSError:
                if self.child.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the appliance does not come up; see {self.log}")
                time.sleep(0.05)

    def control(self):
        return Control(self.socket)

    def figures(self):
        figures = process(self.child.pid)
        if self.heap:
            with open(self.heap, "rb") as f:
                figures["heap"] = int.from_bytes(f.read(8), sys.byteorder) // 1024
        return figures

    def end(self):
        """Ends the appliance on request, and returns its exit status."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=30)
