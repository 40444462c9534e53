#!/usr/bin/env python3
"""networks: TCP over networks that lose and delay, Heddle's beside Linux's. Needs root.

  scripts/networks --quick
  scripts/networks --cells [--rate MBPS]... [--rtt MS]... [--loss PERCENT]... [OPTIONS]
  scripts/networks --fairness [OPTIONS]
  scripts/networks --floods [OPTIONS]
  scripts/networks --render docs/networks.md [--results FILE]

A bridge in user space joins two namespaces (impair/). Heddle is in them by net_af_packet. Where
Linux is the peer, a program of ours speaks iWARP over its sockets, so all ways carry the same
RDMA Writes, with CRC.

  --quick     a handful of networks and each impairment by itself: less than two minutes. Fails if
              a run delivers nothing, delivers wrong data or crashes, or if an impairment was not
              seen on the wire.
  --cells     goodput by rate, round trip and loss (all of them, unless some are named): Linux to
              Linux, Heddle to Linux, Linux to Heddle, Heddle to Heddle, in turns, round by round.
  --fairness  two and ten flows over one bottleneck: Jain's index, the part that Heddle's flows
              get beside Linux's, and the length of the queue.
  --floods    goodput of a connection to Heddle, and the time until a new client is served, while
              segments and ICMP errors from forged addresses come.
  --render    writes the tables of all results so far into the page.

Each run adds a round to --results (target/networks.json), so that several runs add up to a table.
Exit status: 0; 1 when a run failed; 2 for wrong usage.
"""

import argparse
import dataclasses
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from impaired import floods, quick, tables  # noqa: E402
from impaired.cells import LOSSES, RATES, RTTS, Cell, Wire, cells  # noqa: E402
from impaired.hosts import Hosts, measure, together, ways  # noqa: E402
from impaired.lab import Lab  # noqa: E402
from peers.contenders import Failed  # noqa: E402
from peers.figures import whole  # noqa: E402

# The network in which flows share a bottleneck.
SHARED = Cell(100, 10, 0)
WARMUP = 1
# Flows that share a queue take longer to find their parts.
WARMUP_SHARED = 3
# Flows of Heddle, flows of Linux, Linux's algorithm.
SHARES = [(2, 0, "cubic"), (10, 0, "cubic"), (0, 2, "cubic"), (0, 10, "cubic"), (1, 1, "cubic"),
          (5, 5, "cubic"), (0, 2, "reno"), (1, 1, "reno"), (5, 5, "reno")]


def numbers(least, most):
    """Returns a parser of numbers in a range."""
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:20]!r} is no number from {least:g} to {most:g}")
        return int(value) if value == int(value) else value
    return parse


def arguments(given=None):
    usage = argparse.ArgumentParser(prog="networks", description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    what = usage.add_mutually_exclusive_group(required=True)
    for name in ("quick", "cells", "fairness", "floods"):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name)
    what.add_argument("--render", metavar="PAGE")
    usage.add_argument("--rate", type=numbers(1, 100_000), action="append", metavar="MBPS")
    usage.add_argument("--rtt", type=numbers(0, 10_000), action="append", metavar="MS")
    usage.add_argument("--loss", type=numbers(0, 50), action="append", metavar="PERCENT")
    usage.add_argument("--way", default="", metavar="TEXT", help="ways or flows with this text")
    usage.add_argument("--rounds", type=whole(1, 100), default=1, metavar="N")
    usage.add_argument("--seconds", type=whole(1, 600), default=3, metavar="T",
                       help="measured time of a run")
    usage.add_argument("--limit", type=whole(1, 100_000), metavar="T",
                       help="begin no run after this many seconds")
    usage.add_argument("--congestion", metavar="NAME",
                       help="algorithm of Heddle's senders, as heddle bench --congestion has it")
    usage.add_argument("--ecn", nargs="?", const="request", choices=("request", "accurate"),
                       help="all senders ask for ECN, Heddle's for accurate ECN if that is named")
    usage.add_argument("--mark", metavar="SIZE",
                       help="the queue marks from so many bytes on, as 30K; implies --ecn")
    usage.add_argument("--results", default="target/networks.json", metavar="FILE")
    return usage.parse_args(given)


class Clock:
    """The time that is left for runs."""

    def __init__(self, limit):
        self.end = time.monotonic() + limit if limit else None

    def over(self):
        return self.end is not None and time.monotonic() > self.end


def say(text):
    print(text, flush=True)


def compare(args, hosts, results):
    """Measures all ways over all networks. Returns the number of runs that failed."""
    clock, failures = Clock(args.limit), 0
    plan = cells(args.rate or RATES, args.rtt or RTTS, args.loss or LOSSES)
    for number in range(args.rounds):
        # The cell with the fewest rounds comes first, so runs with a limit add up to all cells.
        for cell in sorted(plan, key=lambda c: tables.next_round(results, "cells", list(c.key()))):
            key = list(cell.key())
            this = tables.next_round(results, "cells", key)
            turn = ways(args.congestion)
            for way in reversed(turn) if number % 2 else turn:
                if args.way not in way.name:
                    continue
                if clock.over():
                    return failures
                try:
                    run = measure(hosts, way, cell.wire(marks(args)), WARMUP, args.seconds,
                                  cell.outstanding())
                except Failed as why:
                    failures += 1
                    say(f"{cell.title()}: {way.name}: FAILED: {why}")
                    continue
                say(f"{cell.title()}: {way.name}: {run.goodput:.1f} Mb/s, resent {run.resent}, "
                    f"timeouts {run.timeouts}, late {lateness(run)}, hidden {run.hidden}")
                results["cells"].append({
                    "key": key, "way": way.name, "round": this, "goodput": run.goodput,
                    "resent": run.resent, "timeouts": run.timeouts, "late": lateness(run),
                    "hidden": run.hidden, "bridge": run.bridge})
                tables.save(args.results, results)
    return failures


def marks(args):
    return f"mark={args.mark}" if args.mark else ""


def lateness(run):
    """Returns how late the bridge delivered the sender's frames on average, in microseconds."""
    there = run.bridge["a_to_b"]
    return round(there["sum_late_us"] / max(1, there["delivered"]), 1)


def share(args, hosts, results):
    """Measures flows that share a bottleneck. Returns the number of runs that failed."""
    clock, failures = Clock(args.limit), 0
    ours = f"Heddle {args.congestion}" if args.congestion else "Heddle"
    for _ in range(args.rounds):
        for heddle, kernel, algorithm in SHARES:
            parts = [f"{heddle} {ours}"] * bool(heddle) + [f"{kernel} Linux {algorithm}"] * bool(
                kernel)
            key = ", ".join(parts) + (f", mark {args.mark}" if args.mark else "")
            if args.way not in key:
                continue
            if clock.over():
                return failures
            try:
                run = together(hosts, SHARED.wire(marks(args)), (heddle, kernel), algorithm,
                               WARMUP_SHARED, args.seconds, SHARED.outstanding())
            except Failed as why:
                failures += 1
                say(f"{key}: FAILED: {why}")
                continue
            there = run.bridge["a_to_b"]
            found = {"key": key, "round": tables.next_round(results, "fairness", key),
                     "goodput": run.goodput, "flows": run.flows,
                     "queue": there["queue_sum"] / max(1, there["frames"]) / SHARED.queue(),
                     "marked": there["marked"]}
            results["fairness"].append(found)
            tables.save(args.results, results)
            say(f"{key}: {run.goodput:.1f} Mb/s, each "
                f"{' '.join(f'{f:.1f}' for f in run.flows.values())}, Heddle's part "
                f"{tables.part(found):.2f}, queue {found['queue']:.2f}")
    return failures


def main():
    args = arguments()
    if args.render:
        with open(args.render, encoding="utf-8") as f:
            page = f.read()
        try:
            tables.replace(args.render, tables.renewed(page, tables.load(args.results)))
        except ValueError as why:
            sys.exit(f"networks: {args.render}: {why}")
        return
    if os.geteuid():
        sys.exit("networks: needs root, for network namespaces")
    programs = {name: os.environ[name.upper()] for name in ("impair", "heddle", "peer")}
    results = tables.load(args.results)
    with Lab(programs["impair"]) as lab:
        hosts = Hosts(lab, programs["heddle"], programs["peer"], args.congestion)
        if args.ecn or args.mark:
            hosts.ask_for_ecn(args.ecn or "request")
        run = {"quick": lambda: quick.run(hosts, say),
               "cells": lambda: compare(args, hosts, results),
               "fairness": lambda: share(args, hosts, results),
               "floods": lambda: floods.run(args, hosts, results, say)}[args.what]
        failures = run()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
