"""A hostile tenant: an application with its own user (tests/support/tenant), which attacks the
appliance through its control socket, its queues and its memory. Honest programs must not notice,
and the appliance must take back everything that the tenant had.
"""

import json
import os
import random
import subprocess
import time

from .control import Control
from .lab import CMTIME, OURS, PEERS, run
from .programs import Program

USER = 54321
# The name that the appliance shows for its devices.
NAME = "hostile"
# The first port on which it may listen, and an address without a host.
OWN, NOBODY = 9300, "10.71.0.200:7176"
# Its share: rates that it soon reaches. Reloads give it others.
SHARE = """\
weight = 2
rate = "2MB/s"
connection-rate = "1MB/s"
"""
# Its rule. The limits are small, so that it soon reaches them.
RULE = f"""\
[[client]]
who = "user:{USER}"
sessions = 12
descriptors = 256
memory = 96
queues = 24
regions = 8
connections = 48
listeners = 8
queue-pairs = 96
completion-queues = 64
shared-receive-queues = 32
registrations = 256
{SHARE}listen = ["{OURS}:{OWN}-{OWN + 99}"]
connect = ["10.71.0.0/24:1-65535"]
"""
# Seconds for which the appliance may still hold what a tenant had. The appliance gives it back in
# small pieces, and unmaps gigabytes of files beside its other work.
GONE = 5.0


def share(rng):
    """Returns other terms of the share, for the text of a file."""
    rates = ('"none"', '"1MB/s"', '"20Mbit/s"', '"1Gbit/s"')
    return (f"weight = {rng.choice((1, 7, 1000))}\nrate = {rng.choice(rates)}\n"
            f"connection-rate = {rng.choice(rates)}\n")


class Tenants:
    """Runs one hostile program after the other. Each ends in order, leaves its end of the socket
    behind, or is killed."""

    def __init__(self, course, out, program, side, seed):
        self.course, self.side = course, side
        self.rng = random.Random(f"tenants {seed}")
        self.out = out
        self.attacks = {}
        self.most = None
        # Times that a tenant was seen to have waited for its rate.
        self.waits = 0
        # The tenant's user may not look into the folders of the socket and the program, so mount
        # both here. No other namespace sees these mounts.
        run("mount", "-t", "tmpfs", "-o", "mode=755,size=1M", "tenant", "/mnt")
        os.mkdir("/mnt/out")
        os.close(os.open("/mnt/tenant", os.O_CREAT))
        run("mount", "--bind", out, "/mnt/out")
        run("mount", "--bind", os.path.realpath(program), "/mnt/tenant")

    def command(self, *args):
        socket = os.path.join("/mnt/out", os.path.basename(self.side.socket))
        services = [arg for port in (7174, 7175, 7176, CMTIME)
                    for arg in ("--forbidden", f"{OURS}:{port}")]
        return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "/mnt/tenant",
                "--socket", socket, "--service", f"{PEERS}:7176", "--nobody", NOBODY, "--own",
                f"{OURS}:{OWN}", *services, *args)

    def measure(self):
        """Measures how much a tenant can get. The result is the same every time, unless the
        appliance has kept something of an earlier tenant."""
        done = subprocess.run(self.command("--measure"), capture_output=True, text=True,
                              timeout=120)
        if done.returncode:
            self.course.fail(
                f"the tenant that counts: status {done.returncode}: {done.stderr.strip()}")
            return
        most = json.loads(done.stdout)
        with self.side.control() as control:
            self.wait_gone(control, "the tenant that counts")
        if self.most is None:
            self.most = most
        elif most != self.most:
            self.course.fail(
                f"a tenant could have {self.most} at the start, and {most} when all have left")

    def run(self):
        with self.side.control() as control:
            while self.course.pause(self.rng.uniform(0.2, 2)):
                self.one(control)

    def one(self, control):
        rng = self.rng
        leaves = rng.random() < 0.3
        seconds = rng.uniform(1, 8)
        args = ("--seconds", f"{seconds:.1f}", "--seed", str(rng.randrange(1 << 30)))
        program = Program(self.course, self.out, "tenant",
                          self.command(*args, *(("--leave-behind",) if leaves else ())))
        program.start()
        # An attack that has begun may last longer than the tenant is told to run.
        patience = rng.uniform(0, seconds) if rng.random() < 0.5 else seconds + 60
        until = time.monotonic() + patience
        while ((status := program.child.poll()) is None and time.monotonic() < until
               and self.course.pause(0.02)):
            pass
        if status is None:
            program.child.kill()
            program.child.wait()
            if patience > seconds and not self.course.over.is_set():
                self.course.fail(f"the hostile tenant does not end: {program.errors()}")
            self.course.count("hostile tenants killed")
        for attack, n in program.look().items():
            self.attacks[attack] = self.attacks.get(attack, 0) + n
        self.course.count("hostile tenants")
        if status not in (0, None):
            self.course.fail(f"the hostile tenant: status {status}: {program.errors()}")
        elif leaves and status == 0:
            self.course.count("hostile tenants that left their end of the socket behind")
        self.wait_gone(control, "a hostile tenant")

    def wait_gone(self, control, who):
        """Waits until the appliance has taken back everything that it shows of the tenant."""
        since, busy = time.monotonic(), Control.busy
        while left := self.left(control):
            if Control.busy != busy:
                # The machine stood still.
                since, busy = time.monotonic(), Control.busy
            if time.monotonic() - since > GONE:
                self.course.fail(f"{who} ended {GONE:g} s ago, and there is still {left}")
                return
            time.sleep(0.01)
        self.course.took("a hostile tenant's things gone", time.monotonic() - since)

    def left(self, control):
        status = control.ask("status")
        left = [c for c in status["clients"] if c["uid"] == USER]
        self.waits = max([self.waits, *(c["rate_waits"] for c in left)])
        left += [l for l in status["listeners"] if l["service"].startswith(NAME)]
        left += [c for c in control.ask("conns")["conns"] if c["service"].startswith(NAME)]
        return left
