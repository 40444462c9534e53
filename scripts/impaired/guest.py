"""Linux in a guest, with a kernel of its own, and the wire between it and Heddle.

    namespace
    Heddle  10.88.0.1 -- hd0 == impair (user space) == hd1 -- br0 -- tap0 -- QEMU, 10.88.0.2
                                                       ^ capture

Heddle has hd0 by net_af_packet. The guest runs commands of the host through a folder that both see
(scripts/siw-guest/agent.sh), so that one boot serves many cases. QEMU's tap carries no offloads:
each frame is as it would be on a wire.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time

from peers.contenders import Failed, Program, run

HEDDLE, GUEST = "10.88.0.1", "10.88.0.2"
# QEMU interprets the guest, so all of this may take long on a busy machine.
BOOTS = 180
COMMAND = 90
# The bridge, and captures.
STARTS = 30
QUEUE = 20_000


class Command:
    """A command in the guest."""

    def __init__(self, path, text):
        self.path, self.line = path, text

    def runs(self):
        return not os.path.exists(f"{self.path}.rc")

    def written(self):
        try:
            with open(f"{self.path}.out", encoding="utf-8", errors="replace") as out:
                return out.read()
        except FileNotFoundError:
            return ""

    def wait_for(self, word, seconds=COMMAND):
        """Waits until the command has written a word."""
        limit = time.monotonic() + seconds
        while word not in self.written():
            if not self.runs() or time.monotonic() > limit:
                raise Failed(f"guest: {self.line}: no {word!r}: {self.written()}"[:400])
            time.sleep(0.05)

    def text(self, seconds=COMMAND):
        """Waits for the end of the command, and returns what it wrote."""
        limit = time.monotonic() + seconds
        while self.runs():
            if time.monotonic() > limit:
                raise Failed(f"guest: {self.line}: no end")
            time.sleep(0.05)
        with open(f"{self.path}.rc", encoding="utf-8") as status:
            status = status.read().strip()
        if status != "0":
            raise Failed(f"guest: {self.line}: status {status}: {self.written()}"[:400])
        return self.written()


class Lab:
    """The namespace with the guest. Both go with the process that made them."""

    def __init__(self, root, impair, peer, folder):
        self.root, self.impair, self.peer, self.folder = root, impair, peer, folder
        self.name = f"heddle-ecn-{os.getpid()}"
        self.share = os.path.join(folder, "share")
        self.guest, self.number = None, 0

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        shutil.rmtree(self.share, ignore_errors=True)
        os.makedirs(os.path.join(self.share, "q"))
        shutil.copy(self.peer, os.path.join(self.share, "kernel-peer"))
        run("ip", "netns", "add", self.name)
        self.within("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
                    "net.ipv6.conf.default.disable_ipv6=1")
        self.within("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self.within("ip", "tuntap", "add", "dev", "tap0", "mode", "tap")
        self.within("ip", "link", "set", "tap0", "master", "br0", "txqueuelen", str(QUEUE))
        for link in ("lo", "br0", "tap0"):
            self.within("ip", "link", "set", link, "up")
        guest = os.path.join(self.root, "scripts/siw-guest")
        self.console = os.path.join(self.folder, "guest.console.log")
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.console)
        self.guest = Program(["ip", "netns", "exec", self.name, f"{guest}/run", "--tap", "tap0",
                              "--ip", f"{GUEST}/24", "--variant", "tcp", "--with", "tcp",
                              "--share", self.share, "--name", "ecn", "--log", self.console,
                              "--timeout", "3600", f"{guest}/agent.sh"])
        limit = time.monotonic() + BOOTS
        while "@@mark agent@@" not in self.said():
            if not self.guest.runs() or time.monotonic() > limit:
                raise Failed(f"the guest did not boot; its console: {self.console}")
            time.sleep(0.1)

    def __exit__(self, *_):
        if self.guest:
            self.guest.end()
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)

    def said(self):
        try:
            with open(self.console, encoding="utf-8", errors="replace") as console:
                return console.read()
        except FileNotFoundError:
            return ""

    def within(self, *command):
        return run("ip", "netns", "exec", self.name, *command)

    def inside(self, *command):
        """Starts a program of the host in the namespace."""
        return Program(["ip", "netns", "exec", self.name, *command])

    def start(self, text):
        """Starts a command in the guest."""
        self.number += 1
        path = os.path.join(self.share, "q", f"{self.number:04}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(f"exec {text}\n" if " && " not in text else f"{text}\n")
        os.rename(f"{path}.new", f"{path}.cmd")
        return Command(path, text)

    def ask(self, text):
        """Runs a command in the guest, and returns what it wrote."""
        return self.start(text).text()

    @contextlib.contextmanager
    def wire(self, to_guest, to_heddle, capture):
        """Joins the hosts by a bridge with these settings, and captures its side of the guest."""
        wire = Wire(self.inside(self.impair, "--tap-a", "hd0", "--tap-b", "hd1", "--a-to-b",
                                to_guest, "--b-to-a", to_heddle))
        dump = None
        try:
            wire.program.wait_for("ready", STARTS)
            for link in ("hd0", "hd1"):
                self.within("ip", "link", "set", link, "txqueuelen", str(QUEUE), "addrgenmode",
                            "none", "up")
            self.within("ip", "link", "set", "hd1", "master", "br0")
            dump = self.inside("dumpcap", "-q", "-P", "-i", "hd1", "-s", "128", "-w", capture)
            dump.wait_for("File:", STARTS)
            yield wire
            time.sleep(1)  # dumpcap writes its data a block at a time
            dump.end()
            wire.end()
        finally:
            if dump:
                dump.end()
            wire.program.end()


class Wire:
    """The bridge; after its end also its counters."""

    def __init__(self, program):
        self.program, self.counters = program, None

    def end(self):
        self.program.child.terminate()
        limit = time.monotonic() + STARTS
        while self.program.runs():
            if time.monotonic() > limit:
                raise Failed("impair: no end")
            time.sleep(0.01)
        self.counters = json.loads(self.program.text().splitlines()[-1])
