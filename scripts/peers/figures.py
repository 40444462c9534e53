#!/usr/bin/env python3
"""bench --peers: Heddle beside what users would pick instead, on one machine.

  scripts/bench --peers [--full] [--rounds N] [--seconds T] [--only TEXT] [--with TEXT]...
                        [--report FILE]
  scripts/bench --peers --guest [--processors N] [the same options]

Needs root, for network namespaces of its own. Without --guest, beside Linux's TCP (iperf3, qperf)
and smoltcp, on the wires that one machine has; with it, beside siw and rxe by perftest, in one
guest under QEMU. All contenders take turns, round by round and every other round backwards, so that
other load and the processor's clock meet them alike. A figure is the median of the rounds; a ratio
is the median of the ratios within a round.

  Gb/s         payload that arrived
  Mop/s        messages of 8 bytes that arrived, in millions a second; iperf3 and smoltcp write
               them into a stream, which joins them
  us           a round trip of 8 bytes, one at a time, the mean: Heddle's of a Write and a Write
               back, by memory that the program polls; the kernel's of a read that sleeps
  x            that figure beside the reference's, above 1 where the contender is ahead
  cpus         processors that were used on average: by all processes that take part (what Heddle
               and iperf3 report of themselves, and otherwise by /proc in the middle of a run), and
               by the kernel's softirqs for them that no process pays for
               (ksoftirqd, and all softirqs where the kernel accounts for them apart), beyond those
               of the machine without them
  machine      processors that the whole machine used beyond what it used before; only where it was
               quiet then
  spin         processors that workers of Heddle, or smoltcp's loop, occupy whether there is work or
               not. cpus is lower where other programs take them
  per cpu-s    Gb, millions of messages or thousands of round trips for each second of a processor
               (by cpus)
  x cpu        that beside the reference's

The reference is Linux's TCP over a veth of MTU 1500, or siw in the guest.
"""

import argparse
import dataclasses
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from peers.contenders import OVERTIME, Failed, Net, Programs, contenders  # noqa: E402
from peers.report import Run, Test, chosen, page, table, turns  # noqa: E402
from peers.usage import EVERY, Meter, between, cost, window  # noqa: E402

REFERENCE = "Linux TCP, veth 1500"


def measure(contender, net, test, seconds, meter):
    """Runs a contender once."""
    meter.rest()
    programs, samples = Programs(), []
    try:
        clients = contender.start(programs, net, test, seconds)
        limit = time.monotonic() + seconds + OVERTIME
        while any(client.runs() for client in clients):
            samples.append(meter.sample(programs.pids()))
            if samples[-1].at > limit:
                raise Failed(f"no end after {seconds + OVERTIME} s: {' '.join(clients[0].args)}")
            time.sleep(EVERY)
        end = time.monotonic()
        texts = [client.text() for client in clients]
        figure, own = contender.result(texts, test), contender.own(texts, test)
        ends = window(samples, end, seconds)
        if not ends:
            return Run(figure, own)
        used = between(*ends)
        if own is not None:
            used = dataclasses.replace(used, processes=own)
        return Run(figure, *cost(used, meter.idle, os.cpu_count()))
    finally:
        programs.end()


def plan(full):
    def of(what, size, conns=1):
        return Test(what, size, conns, REFERENCE)
    sizes = [64, 4 << 10, 64 << 10, 1 << 20]
    conns = [16]
    if full:
        sizes = [64 << (2 * n) for n in range(9)] + [8 << 20]
        conns = [4, 16, 128, 1024]
    tests = [of("throughput", size) for size in sizes]
    tests += [of("throughput", 64 << 10 if n < 1024 else 4 << 10, n) for n in conns]
    tests += [of("rate", 8, n) for n in [1, *conns]]
    return [*tests, of("round trip", 8)]


def whole(least, most):
    """Returns a parser of whole numbers in a range."""
    def parse(text):
        number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:20]!r} is no whole number from {least} to {most}")
        return int(text)
    return parse


def arguments(given=None):
    usage = argparse.ArgumentParser(prog="bench --peers", description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--full", action="store_true",
                       help="64 bytes to 8 MiB, 1 to 1,024 connections")
    usage.add_argument("--rounds", type=whole(1, 1000), default=3, metavar="N")
    usage.add_argument("--seconds", type=whole(1, 600), default=3, metavar="T",
                       help="of each run")
    usage.add_argument("--only", default="", metavar="TEXT", help="tests whose title has this text")
    usage.add_argument("--with", dest="names", action="append", default=[], metavar="TEXT",
                       help="contenders whose name has this text, and the reference; may be given "
                       "several times")
    usage.add_argument("--report", metavar="FILE", help="write a page of HTML as well")
    usage.add_argument("--guest", action="store_true", help="beside siw and rxe, in a guest")
    usage.add_argument("--processors", type=whole(1, 64), metavar="N", help="of the guest (2)")
    args = usage.parse_args(given)
    if args.guest and args.full:
        usage.error("--full is not for --guest, which has one plan")
    if args.processors and not args.guest:
        usage.error("--processors goes with --guest")
    args.processors = args.processors or 2
    return args


def on_this_machine(args, tests):
    """Measures, prints a table for each test, and returns the number of runs that failed."""
    failures, meter = 0, Meter()
    all_of = chosen(contenders(os.environ["HEDDLE"], os.environ["SMOLTCP"]), args.names, REFERENCE)
    with Net() as net:
        for test in tests:
            for number in range(args.rounds):
                for contender in turns(all_of, number):
                    if not contender.takes(test.what, test.conns):
                        continue
                    if sys.stderr.isatty():
                        print(f"\r\033[K{test.title()}, round {number + 1}: {contender.name}",
                              end="", file=sys.stderr, flush=True)
                    try:
                        run = measure(contender, net, test, args.seconds, meter)
                        test.add(contender.name, number, run, contender.processors)
                    except Failed as why:
                        failures += 1
                        print(f"\n{test.title()}, {contender.name}: {why}", file=sys.stderr)
            print(f"\n{table(test)}", flush=True)
    return failures


def main():
    args = arguments()
    if os.geteuid():
        sys.exit("bench --peers: needs root, for network namespaces")
    if args.guest:
        from peers import guest  # noqa: PLC0415
        tests, measure_all = guest.plan(), guest.measure_all
    else:
        tests, measure_all = plan(args.full), on_this_machine
    tests = [test for test in tests if args.only in test.title()]
    if not tests:
        sys.exit(f"bench --peers: no test has {args.only!r} in its title")
    failures = measure_all(args, tests)
    if args.report:
        # A reader sees the old file or the new one.
        new = f"{args.report}.new"
        with open(new, "w", encoding="utf-8") as f:
            f.write(page(tests, "scripts/bench --peers " + " ".join(sys.argv[1:]), args.rounds,
                         __doc__))
        os.replace(new, args.report)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
