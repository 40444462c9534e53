#!/usr/bin/env python3
"""bench --peers: Heddle beside Linux's TCP, on the wires that one machine has.

  scripts/bench --peers [--full] [--rounds N] [--seconds T] [--only TEXT] [--report FILE]

Needs root, for network namespaces of its own. All contenders take turns, round by round, so that
other load and the processor's clock meet them alike; a figure is the median of the rounds.

  Gb/s         payload that arrived
  round trip   of 8 bytes, one at a time, the mean in microseconds: Heddle's of a Write and a Write
               back, by memory that the program polls; the kernel's of a read that sleeps
  s/GB         processor seconds for each GB of payload, in the middle of a run: of all processes
               that take part (user and system), and of the whole machine, which has softirqs that
               no process is charged for, and whatever else runs
  x            GB for each processor second of the processes, divided by that of Linux's TCP over a
               veth of MTU 1500

A worker of Heddle spins, so it takes its processor whether there is work or not.
"""

import argparse
import html
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from peers.contenders import Failed, Net, Programs, contenders, output  # noqa: E402

REFERENCE = "Linux TCP, veth 1500"
TICK = os.sysconf("SC_CLK_TCK")
# Processor time counts from this time after the client's start, in which DPDK starts and
# connections open, until a little before the end of a run that started at once.
FROM, BEFORE_END = 1.2, 0.2


def tree(pids):
    """Returns the processes and their descendants: `ip netns exec` becomes the program itself."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    parents[int(name)] = int(f.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found = set(pids)
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def of_processes(pids):
    """Returns user and system time of processes in seconds, by process."""
    times = {}
    for pid in tree(pids):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
            times[pid] = (int(fields[11]) + int(fields[12])) / TICK
        except OSError:
            pass
    return times


def of_machine():
    """Returns the time in seconds in which the processors were not idle."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, f.readline().split()[1:])
    return (user + nice + system + irq + softirq) / TICK


def measure(contender, net, what, size, conns, seconds):
    """Runs once; returns the figure, and the processors that processes and machine used."""
    programs = Programs()
    try:
        child = contender.start(programs, net, what, size, conns, seconds)
        time.sleep(FROM)
        pids, start = programs.pids(), time.monotonic()
        used, busy = of_processes(pids), of_machine()
        time.sleep(seconds - FROM - BEFORE_END)
        later, wall = of_processes(pids), time.monotonic() - start
        busy = (of_machine() - busy) / wall
        used = sum(t - used.get(pid, 0) for pid, t in later.items()) / wall
        return contender.result(output(child, seconds + 60), what), used, busy
    finally:
        programs.end()


class Test:
    def __init__(self, what, size, conns):
        self.what, self.size, self.conns, self.rows = what, size, conns, {}

    def title(self):
        what = "Round trips" if self.what == "round trip" else "Throughput"
        return f"{what}, {name_of(self.size)}, {self.conns} connection" + "s" * (self.conns > 1)

    def add(self, name, figure, used, busy):
        self.rows.setdefault(name, []).append((figure, used, busy))

    def summary(self):
        """Returns a line for each contender: median, least, most, s/GB of both kinds, and x."""
        lines = []
        for name, runs in self.rows.items():
            figures = [figure for figure, _, _ in runs]
            costs = (None, None)
            if self.what != "round trip":
                costs = [statistics.median(8 * run[kind] / run[0] for run in runs)
                         for kind in (1, 2)]
            lines.append([name, statistics.median(figures), min(figures), max(figures), *costs])
        reference = next((line[4] for line in lines if line[0] == REFERENCE), None)
        for line in lines:
            line.append(reference / line[4] if reference and line[4] else None)
        return lines


def name_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def shown(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def table(test):
    unit = "us" if test.what == "round trip" else "Gb/s"
    lines = [test.title(), f"  {'':32}{unit:>8} {'least':>8} {'most':>8} {'s/GB':>7} "
             f"{'machine':>8} {'x':>6}"]
    for name, median, least, most, own, machine, ratio in test.summary():
        lines.append(f"  {name:32}{median:8.2f} {least:8.2f} {most:8.2f} {shown(own, 3):>7} "
                     f"{shown(machine, 3):>8} {shown(ratio, 2):>6}")
    return "\n".join(lines)


def page(tests, command):
    """Returns a page of HTML that fetches nothing: a table and bars for each test."""
    parts = []
    for test in tests:
        unit = "us" if test.what == "round trip" else "Gb/s"
        rows = test.summary()
        top = max((row[1] for row in rows), default=0) or 1
        body = ""
        for name, median, least, most, own, machine, ratio in rows:
            width = 220 * median / top
            color = "#4878a8" if name.startswith("Heddle") else "#b0754a"
            bar = (f'<svg width="230" height="14"><rect width="{width:.1f}" height="14" '
                   f'fill="{color}"/></svg>')
            cells = [f"{median:.2f}", f"{least:.2f}", f"{most:.2f}", shown(own, 3),
                     shown(machine, 3), shown(ratio, 2)]
            body += f"<tr><td>{html.escape(name)}<td>{bar}" + "".join(f"<td>{c}" for c in cells)
        heads = ["", "", unit, "least", "most", "s/GB", "s/GB machine", "x"]
        parts.append(f"<h2>{html.escape(test.title())}</h2><table><tr>"
                     + "".join(f"<th>{head}" for head in heads) + body + "</table>")
    return (
        "<!doctype html><meta charset=utf-8><title>Heddle beside Linux's TCP</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 8px;text-align:right}"
        "td:first-child{text-align:left}pre{white-space:pre-wrap}</style>"
        f"<h1>Heddle beside Linux's TCP</h1><p>{html.escape(command)}</p>"
        f"<pre>{html.escape(__doc__ or '')}</pre>" + "".join(parts)
    )


def plan(full):
    sizes = [64, 4 << 10, 64 << 10, 1 << 20]
    conns = [16]
    if full:
        sizes = [64 << (2 * n) for n in range(9)] + [8 << 20]
        conns = [4, 16, 128, 1024]
    tests = [Test("throughput", size, 1) for size in sizes]
    tests += [Test("throughput", 64 << 10 if n < 1024 else 4 << 10, n) for n in conns]
    return [*tests, Test("round trip", 8, 1)]


def main():
    usage = argparse.ArgumentParser(description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--full", action="store_true",
                       help="64 bytes to 8 MiB, 1 to 1,024 connections")
    usage.add_argument("--rounds", type=int, default=3)
    usage.add_argument("--seconds", type=int, default=3, choices=range(2, 601), metavar="T",
                       help="of each run")
    usage.add_argument("--only", default="", help="tests whose title has this text")
    usage.add_argument("--report", metavar="FILE", help="write a page of HTML as well")
    args = usage.parse_args()
    if os.geteuid():
        sys.exit("bench --peers: needs root, for network namespaces")
    tests = [test for test in plan(args.full) if args.only in test.title()]
    failures = 0
    with Net() as net:
        for test in tests:
            for n in range(args.rounds):
                for contender in contenders(os.environ["HEDDLE"]):
                    if not contender.takes(test.what, test.conns):
                        continue
                    if sys.stderr.isatty():
                        print(f"\r\033[K{test.title()}, round {n + 1}: {contender.name}",
                              end="", file=sys.stderr, flush=True)
                    try:
                        test.add(contender.name, *measure(
                            contender, net, test.what, test.size, test.conns, args.seconds))
                    except Failed as why:
                        failures += 1
                        print(f"\n{test.title()}, {contender.name}: {why}", file=sys.stderr)
            print(f"\n{table(test)}", flush=True)
    if args.report:
        # A reader sees the old file or the new one.
        new = f"{args.report}.new"
        with open(new, "w") as f:
            f.write(page(tests, "scripts/bench --peers " + " ".join(sys.argv[1:])))
        os.replace(new, args.report)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
