"""Programs that have a device of an appliance: steady ones, which nothing may happen to, and
victims, which the soak kills.
"""

import json
import os
import random
import signal
import subprocess
import time

from .control import Control
from .lab import OURS, PEERS, PEERS2

# Seconds for which a steady program may be without a returned message.
PATIENCE = 20
# Seconds after a reload during which clients may be refused: a listener that is made anew is gone
# for a moment (docs/guide/appliance.md), and longer on a busy machine.
ANEW = 3
# Seconds for which the resources of a killed program may still exist.
GONE = 1.0


class Program:
    """A process whose output goes to files."""

    def __init__(self, course, out, name, command):
        self.course, self.name, self.command = course, name, command
        self.out = os.path.join(out, f"{name}.out")
        self.err = os.path.join(out, f"{name}.err")
        self.child = None
        self.said = 0
        self.totals = {}

    def start(self):
        with open(self.out, "w") as out, open(self.err, "a") as err:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=err)
        return self

    def errors(self):
        with open(self.err, errors="replace") as f:
            return f.read().strip()[-2000:]

    def look(self):
        """Reads the program's new output; keeps the last line of JSON."""
        with open(self.out) as f:
            f.seek(self.said)
            lines = f.read().split("\n")
        for line in lines[:-1]:
            self.totals = json.loads(line)
            self.said += len(line) + 1
        return self.totals

    def end(self, patience=60):
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=patience)


class Cast:
    """All programs of a soak."""

    def __init__(self, course, out, exchange, heddle, a, p, seed):
        self.course, self.out, self.a, self.p = course, out, a, p
        self.exchange, self.heddle, self.seed = exchange, heddle, seed
        self.steady, self.victims = [], []

    def program(self, name, side, *args):
        # All programs have one user, and share that user's limits.
        command = (self.exchange, "--socket", side.socket, "--name", name, "--memory", "16",
                   "--queues", "4", *args)
        return Program(self.course, self.out, name, command)

    def start(self):
        """Starts the steady programs, servers first."""
        a, p, seed = self.a, self.p, str(self.seed)
        servers = [
            self.program("server-a", a, "serve", f"{OURS}:9001"),
            self.program("server-p", p, "serve", f"{PEERS}:9002"),
            self.program("server-p2", p, "serve", f"{PEERS2}:9003"),
        ]
        for s in servers:
            s.start()
        self.wait_listening(a, f"{OURS}:9001")
        self.wait_listening(p, f"{PEERS}:9002", f"{PEERS2}:9003")
        stay = ("--rate", "6", "--connections", "2", "--seed", seed)
        come_and_go = ("--rate", "10", "--rounds", "5", "--seed", seed)
        clients = [
            self.program("client-a", a, "connect", f"{PEERS}:9002", *stay),
            self.program("client-p", p, "connect", f"{OURS}:9001", *stay),
            self.program("changing-a", a, "connect", f"{PEERS2}:9003", *come_and_go,
                         "--own-memory"),
            self.program("changing-p", p, "connect", f"{OURS}:9001", *come_and_go),
        ]
        self.steady = servers + [c.start() for c in clients]

    def wait_listening(self, side, *addresses):
        until = time.monotonic() + 20
        with side.control() as c:
            while True:
                there = {l["address"] for l in c.ask("status")["listeners"]
                         if l["state"] == "listening"}
                if there.issuperset(addresses):
                    return
                if time.monotonic() > until:
                    raise RuntimeError(f"nobody listens at {addresses}")
                time.sleep(0.05)

    def watch(self):
        """Checks that each steady program makes progress and reports no error."""
        moved = {s.name: (time.monotonic(), 0) for s in self.steady}
        while self.course.pause(1):
            now = time.monotonic()
            for s in self.steady:
                if s.child.poll() is not None:
                    self.course.fail(f"{s.name} has ended with {s.child.returncode}: {s.errors()}")
                    continue
                messages = s.look().get("messages", 0)
                since, before = moved[s.name]
                if messages > before:
                    moved[s.name] = (now, messages)
                elif now - since > PATIENCE:
                    self.course.fail(f"{s.name}: no message for {PATIENCE} s")

    def kill(self):
        """Kills programs of the appliance under test, and starts them again. Each of them listens
        or has connections, and everything of it must be gone within a second."""
        rng = random.Random(f"kill {self.seed}")
        a, p = self.a, self.p
        expendable = ("--expendable", "--rate", "10", "--seed", str(self.seed))
        server = self.program("victim-server", a, "serve", f"{OURS}:9010")
        client = self.program("victim-client", a, "connect", f"{PEERS}:9002", "--connections", "3",
                              *expendable)
        # The soak does not kill this client, but kills its server again and again.
        left = self.program("left-behind", p, "connect", f"{OURS}:9010", *expendable)
        self.victims = [server, client]
        for v in self.victims:
            v.start()
        self.steady_left = left.start()
        with a.control() as control:
            while self.course.pause(rng.uniform(2, 4)):
                self.kill_one(control, rng.choice(self.victims))
        for v in self.victims:
            v.child.kill()
            v.child.wait()
        if left.child.poll() is not None:
            self.course.fail(f"{left.name} has ended with {left.child.returncode}: {left.errors()}")
        elif left.end() != 0:
            self.course.fail(f"{left.name} ends with {left.child.returncode}: {left.errors()}")

    def kill_one(self, control, victim):
        pid = victim.child.pid
        if victim.child.poll() is not None:
            self.course.fail(
                f"{victim.name} has ended with {victim.child.returncode}: {victim.errors()}")
            return
        had = [c for c in control.ask("status")["clients"] if c["pid"] == pid]
        victim.child.kill()
        since, busy = time.monotonic(), Control.busy
        victim.child.wait()
        numbers = {str(c["application"]) for c in had}
        while True:
            left = self.left_of(control, pid, numbers)
            took = time.monotonic() - since
            if not left:
                break
            if Control.busy != busy:
                # The machine stood still, so the appliance did not have its second.
                since, busy = time.monotonic(), Control.busy
            if took > GONE:
                self.course.fail(
                    f"{victim.name} was killed {took:.2f} s ago, and there is still {left}")
                return
            time.sleep(0.01)
        self.course.took("a killed program's things gone", took)
        self.course.count("programs killed")
        if had:
            self.course.count("of them with a device")
            self.course.count("their connections", sum(c["connections"] for c in had))
        if self.course.pause(0.2):
            victim.start()

    def left_of(self, control, pid, numbers):
        status = control.ask("status")
        left = [c for c in status["clients"] if c["pid"] == pid]
        owner = lambda service: service.rsplit("#", 1)[-1]
        left += [l for l in status["listeners"] if owner(l["service"]) in numbers]
        left += [c for c in control.ask("conns")["conns"] if owner(c["service"]) in numbers]
        return left

    def services(self):
        """Runs clients of the services, one after the other; each must succeed."""
        rng = random.Random(f"services {self.seed}")
        sides = [(self.p, OURS), (self.a, PEERS)]
        ops = ["write", "read", "send", "write-imm", "send-imm", "fetch-add", "cmp-swap"]
        while self.course.pause(rng.uniform(3, 6)):
            side, at = rng.choice(sides)
            if rng.random() < 0.4:
                args = ("rping", "-c", "-V", "-a", at, "-C", "60", "-S",
                        str(rng.randint(16, 60000)))
            else:
                args = ("bench", "--connect", f"{at}:7175", "--inline", "--verify", "--quiet",
                        "--iters", "200", "--qps", "2", "--seed", str(rng.randrange(1 << 30)),
                        "--op", rng.choice(ops))
            done = subprocess.run((self.heddle, *args, "--socket", side.socket),
                                  capture_output=True, text=True, timeout=120)
            # A client that was still in its start-up is reset.
            gone = any(f"{how} by the peer" in done.stderr for how in ("refused", "reset"))
            if (done.returncode and at == OURS and gone
                    and time.monotonic() - self.course.anew < ANEW):
                self.course.count("clients refused while listeners were made anew")
            elif done.returncode:
                self.course.fail(
                    f"{' '.join(args)}: status {done.returncode}: {done.stderr.strip()}")
            self.course.count(f"runs of heddle {args[0]}")

    def end(self):
        """Ends the steady programs, clients first; each ends well, and has accounted for every
        request."""
        for s in reversed(self.steady):
            if s.child.poll() is None and s.end() != 0:
                self.course.fail(f"{s.name} ends with {s.child.returncode}: {s.errors()}")
            s.look()
            if s.totals.get("open"):
                self.course.fail(f"{s.name} ends with connections open: {s.totals}")
