#!/usr/bin/env python3
"""bench --appliance: the costs of an appliance for its users.

  scripts/bench --appliance [--rounds N] [--conns N,N...]

Needs root. Runs two `heddle serve` joined by a veth pair, and programs on their control sockets.
Everything shares the processors of this machine, so use the ratios. Compared measurements take
turns, round by round.

  connects    connections made and ended, 16 at a time: by programs through the socket on both sides
  memory      of both appliances, by the number of idle connections
  killed      from SIGKILL of a program with 32 connections and 64 MiB until everything of it is
              gone
  others      goodput of a program (bench, writes of 64 KiB) while another program is killed each
              100 ms, and while the same other program lives
  asked       goodput while a client asks for `stats` and metrics without a pause, and without it
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from appliance import lab, room  # noqa: E402
from appliance.control import gauges, scrape  # noqa: E402

# Limits that leave room for thousands of connections.
MORE = """\
[[client]]
who = "any"
listen = ["any"]
memory = 512
queues = 256
connections = 4096
queue-pairs = 4096
"""

# Most connections of one program; a larger number is split among several programs.
EACH = 4000


class Harness:
    def __init__(self, out, conns):
        self.heddle, self.exchange = os.environ["HEDDLE"], os.environ["EXCHANGE"]
        lab.wire()
        self.a = lab.Appliance(self.heddle, out, "a", "127.0.0.1:9184")
        self.p = lab.Appliance(self.heddle, out, "p", "127.0.0.1:9185")
        self.children = []
        for side in (self.a, self.p):
            side.limits = f"connections = {conns}\nregistrations = 4096\n"
            side.lcores = side.lcores[:1]
            side.more = MORE
            side.start()

    def run(self, side, *args):
        command = (self.exchange, "--socket", side.socket, *args)
        c = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.children.append(c)
        return c

    def serve(self, what, at):
        """Starts a server, and returns when it answers."""
        c = self.run(self.p, "--memory", "1", "--queues", "128", what, at)
        until = time.monotonic() + 20
        with self.p.control() as control:
            while not any(n["address"] == at and n["state"] == "listening"
                          for n in control.ask("status")["listeners"]):
                if time.monotonic() > until:
                    sys.exit(f"nobody listens at {at}")
                time.sleep(0.05)
        return c

    def end(self, child):
        child.kill()
        child.communicate()
        self.children.remove(child)

    def end_all(self):
        for c in list(self.children):
            self.end(c)

    def quiet(self):
        """Waits until both appliances hold nothing of any program."""
        until = time.monotonic() + 30
        for side in (self.a, self.p):
            while ((g := gauges(scrape(side.metrics))).get("heddle_applications") != 1
                   or g.get("heddle_connections")):
                if time.monotonic() > until:
                    sys.exit(f"not quiet: {g}")
                time.sleep(0.1)

    def goodput(self, seconds):
        """Returns the Gbit/s of a program that writes."""
        with tempfile.NamedTemporaryFile(suffix=".json") as f:
            subprocess.run(
                (self.heddle, "bench", "--connect", f"{lab.PEERS}:7175", "--socket", self.a.socket,
                 "--op", "write", "--size", "64K", "--duration", f"{seconds}s", "--quiet", "--json",
                 f.name),
                check=True, stdout=subprocess.DEVNULL)
            return json.load(f)


def connects(harness, rounds):
    rates = []
    for _ in range(rounds):
        child = harness.run(harness.a, "--queues", "64", "make", f"{lab.PEERS}:9100",
                            "--connections",
                        "1000")
        said, _ = child.communicate()
        harness.children.remove(child)
        done = json.loads(said.splitlines()[-1])
        rates.append(done["connections"] / done["seconds"])
    return rates


def memory(harness, counts):
    """Returns rows of (connections, figures of each side)."""
    harness.quiet()
    rows = []
    for count in (0, *counts):
        children = []
        for n, first in enumerate(range(0, count, EACH)):
            at = f"{lab.PEERS}:{9101 + n}"
            children.append(harness.serve("accept", at))
            some = str(min(EACH, count - first))
            children.append(harness.run(harness.a, "--memory", "1", "--queues", "128", "hold", at,
                                    "--connections", some))
        if count:
            until = time.monotonic() + 120
            while gauges(scrape(harness.a.metrics)).get("heddle_connections", 0) < count:
                if time.monotonic() > until:
                    sys.exit(f"{count} connections do not come about")
                time.sleep(0.5)
            time.sleep(2)
        rows.append((count, harness.a.figures(), harness.p.figures()))
        for c in children:
            harness.end(c)
        harness.quiet()
    return rows


def killed(harness, rounds):
    """Returns the milliseconds until everything of a killed program is gone."""
    took = []
    with harness.a.control() as control:
        for _ in range(rounds):
            c = harness.run(harness.a, "--memory", "64", "hold", f"{lab.PEERS}:9100",
                            "--connections", "32")
            while not any(n["connections"] == 32 for n in control.ask("status")["clients"]):
                time.sleep(0.02)
            time.sleep(0.1)
            memory = harness.a.figures()["rssshmem"]
            c.kill()
            since = time.monotonic()
            while control.ask("status")["clients"] or control.ask("conns")["conns"] or \
                    harness.a.figures()["rssshmem"] > memory - (64 << 10):
                time.sleep(0.001)
            took.append(1000 * (time.monotonic() - since))
            harness.end(c)
    return took


def paired(harness, rounds, disturb, rest=None):
    """Measures goodput with and without a disturbance, in turns; returns also the ratio of each
    pair."""
    rates = ([], [])
    for n in range(rounds):
        for disturbed in ((True, False), (False, True))[n % 2]:
            stop = threading.Event()
            act = disturb if disturbed else rest
            thread = threading.Thread(target=act, args=(stop,)) if act else None
            if thread:
                thread.start()
                time.sleep(0.5)
            report = harness.goodput(2)
            stop.set()
            if thread:
                thread.join()
            rates[disturbed].append(rate_of(report))
    return rates[True], rates[False], [d / q for d, q in zip(rates[True], rates[False])]


def rate_of(report):
    return report["results"][0]["summary"]["gbit_per_s"]["median"]


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--conns", default="1000,10000")
    args = p.parse_args()
    room.enter(__file__)
    counts = [int(n) for n in args.conns.split(",")]
    with tempfile.TemporaryDirectory() as out:
        report(Harness(out, 2 * max(counts)), args.rounds, counts)


def spread(values, form="{:.2f}"):
    """Returns the median, the minimum and the maximum."""
    return " ".join(form.format(v) for v in (statistics.median(values), min(values), max(values)))


def victims(harness):
    """Runs programs with a connection, and kills one each 100 ms."""
    def act(stop):
        while not stop.is_set():
            c = harness.run(harness.a, "--memory", "1", "--queues", "1", "hold",
                            f"{lab.PEERS}:9100",
                        "--connections", "1")
            stop.wait(0.1)
            harness.end(c)
    return act


def alive(harness):
    """Runs the same program without killing it."""
    def act(stop):
        c = harness.run(harness.a, "--memory", "1", "--queues", "1", "hold", f"{lab.PEERS}:9100",
                    "--connections", "1")
        stop.wait()
        harness.end(c)
    return act


def asking(harness, asked):
    def act(stop):
        with harness.a.control() as control:
            while not stop.is_set():
                control.ask("stats")
                control.ask("conns")
                scrape(harness.a.metrics)
                asked.append(1)
    return act


def report(harness, rounds, counts):
    print("median, least and greatest\n")
    harness.serve("accept", f"{lab.PEERS}:9100")
    rates = connects(harness, rounds)
    print(f"connects     {spread(rates, '{:.0f}')} a second, made and ended", flush=True)
    took = killed(harness, rounds)
    print(f"killed       {spread(took, '{:.0f}')} ms until all it had is gone", flush=True)
    there = alive(harness)
    for name, what, (one, other, ratios) in (
            ("others", "one killed each 100 ms to none killed",
             paired(harness, rounds, victims(harness), there)),
            ("asked", "asked without a pause to not asked",
             paired(harness, rounds, asking(harness, asked := [])))):
        print(f"{name:12} {spread(ratios)} of the goodput ({spread(one)} to {spread(other)} "
              f"Gbit/s): {what}", flush=True)
    print(f"             ({len(asked)} times stats, conns and metrics in {2.5 * rounds:.0f} s)")
    harness.end_all()
    rows = memory(harness, counts)
    print("\nKiB of each side: of its own (RssAnon), and of that for a connection; shared with "
          "programs (RssShmem), which \nis what they asked for when they opened their devices, "
          "however many connections they have")
    _, a0, p0 = rows[0]
    for count, a, p in rows:
        for side, now, then in (("active", a, a0), ("passive", p, p0)):
            each = f"{(now['rssanon'] - then['rssanon']) / count:.2f}" if count else "-"
            print(f"memory       {count:6} {side:8} {now['rssanon']:8} {each:>8} "
                  f"{now['rssshmem']:8}", flush=True)


if __name__ == "__main__":
    main()
