"""bench --peers --guest: siw and rxe by perftest beside Heddle, in one guest under QEMU (TCG).

The guest is that of scripts/siw-guest. Both ends of each run are in it: siw connects to the guest's
own address by Linux's loopback, rxe hands its packets to itself, and Heddle's programs reach each
other within a private RNIC (`heddle run`), or by `heddle bench`. No FPDU has a CRC, as siw has it
by default. QEMU translates every instruction, and vectors and CRCs at a higher price than others,
so only ratios mean something, and they lean against code that uses vectors.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from peers.contenders import Failed, of_bench
from peers.report import Run, Test, chosen, table, turns
from peers.usage import Sample, between, cost, window

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REFERENCE = "siw, MTU 65536"
# The variant of siw whose client asks for the peer-to-peer model, without which MPA forbids
# ib_write_lat, whose server sends first.
VARIANT = "p2p"
# Long messages that are outstanding, as in `heddle bench`.
DEPTH = "16"
# perftest does not count this time at either end of a run, in seconds.
MARGIN = 1
PROGRAMS = {("throughput", "write"): "ib_write_bw", ("rate", "write"): "ib_write_bw",
            ("round trip", "write"): "ib_write_lat", ("round trip", "send"): "ib_send_lat"}
# Seconds of the guest's start, and of what a run takes beside its own time.
BOOT, EXTRA = 300, 120


@dataclasses.dataclass
class Perftest:
    """A program of perftest at both ends."""
    name: str
    device: str
    # of the loopback interface
    mtu: int = 65536
    processors = None

    def call(self, run, test, seconds):
        size = str(test.size)
        words = ["perftest", run, self.device, str(self.mtu), PROGRAMS[test.what, test.op], "-s",
                 size, "-D", str(seconds + 2 * MARGIN), "-f", str(MARGIN)]
        if test.what == "throughput":
            words += ["-t", DEPTH]
        return words + ([] if test.what == "round trip" else ["--report_gbits"])

    def result(self, text, test):
        rows = re.findall(r"^ *\d+ +\d+ +[\d.]+ +.*$", text, re.MULTILINE)
        if not rows:
            raise Failed(f"{self.name}: no figure in {text.strip()[-300:]!r}")
        cells = [float(cell) for cell in rows[-1].split()]
        if test.what == "round trip":
            if not cells[1]:
                raise Failed(f"{self.name}: no round trip came to an end")
            # perftest reports half of a round trip.
            return 2 * cells[2]
        return cells[4] if test.what == "rate" else cells[3]


@dataclasses.dataclass
class Bench:
    """`heddle bench` in one process."""
    name: str
    wire: str
    processors: int

    def call(self, run, test, seconds):
        mode = {"round trip": "lat", "rate": "rate"}.get(test.what, "bw")
        inline = ["--inline"] if self.processors == 1 else []
        return ["heddle_bench", run, "--op", test.op, "--mode", mode, "--size", str(test.size),
                "--duration", f"{seconds}s", "--wire", self.wire, *inline, "--crc", "off",
                *(["--depth", DEPTH] if test.what == "throughput" else [])]

    def result(self, text, test):
        return of_bench(json.loads(text)["results"][0]["runs"][0], test)


def contenders(processors):
    two = [Bench("Heddle, bench, ring, two", "ring", 2)] if processors > 1 else []
    return [
        Perftest("Heddle, perftest", "heddle"),
        Bench("Heddle, bench, ring, one processor", "ring", 1),
        *two,
        Bench("Heddle, bench, one RNIC", "loop", 1),
        Perftest(REFERENCE, "siw"),
        Perftest("siw, MTU 1500", "siw", 1500),
        Perftest("rxe", "rxe"),
    ]


def plan():
    return [Test("throughput", 64 << 10, 1, REFERENCE), Test("rate", 8, 1, REFERENCE),
            Test("round trip", 8, 1, REFERENCE), Test("round trip", 8, 1, REFERENCE, "send")]


def samples(path):
    """Returns the samples of a file that the guest wrote. A tick is a hundredth of a second."""
    found = []
    for line in path.read_text(encoding="ascii").splitlines():
        at, busy = line.split()
        found.append(Sample(float(at), {}, 0.0, int(busy) / 100))
    return found


def read(share, run, contender, test, seconds, processors):
    """Returns what a run has given. In the guest nothing else runs, so the whole machine's time is
    the contender's."""
    out, err = (share / f"{run}.{kind}" for kind in ("out", "err"))
    if not out.exists():
        raise Failed("the guest has not come to this run")
    texts = [path.read_text(errors="replace") for path in (out, err)]
    if (share / f"{run}.failed").exists():
        raise Failed(" ".join(" ".join(texts).split())[-400:])
    figure = contender.result(texts[0], test)
    idle, taken = samples(share / f"{run}.idle"), samples(share / f"{run}.samples")
    ends = window(taken, taken[-1].at, seconds) if taken else None
    if not ends or len(idle) < 2:
        return Run(figure)
    _, machine = cost(between(*ends), between(idle[0], idle[-1]), processors)
    return Run(figure, machine, machine)


def script(runs, seconds):
    """Returns what the guest executes."""
    lines = [(ROOT / "scripts/peers/guest.sh").read_text(encoding="utf-8"),
             f"SECONDS_={seconds + 2 * MARGIN}"]
    lines += [" ".join(contender.call(run, test, seconds))
              for run, contender, test, _ in runs]
    return "\n".join([*lines, "quiet", "true"]) + "\n"


def build():
    """Builds what the guest needs, and returns the folder that it shares with the host."""
    subprocess.run([ROOT / "scripts/siw-guest/build", VARIANT, "nic"], check=True)
    heddle = pathlib.Path(os.environ["HEDDLE"])
    library = subprocess.run([ROOT / "scripts/build-ibverbs", "--release"], check=True, cwd=ROOT,
                             stdout=subprocess.PIPE, text=True).stdout.strip()
    folder = ROOT / "target/peers-guest"
    shutil.rmtree(folder, ignore_errors=True)
    share = folder / "share"
    share.mkdir(parents=True)
    # Debug information is most of the program, and the guest has it in memory.
    subprocess.run(["strip", "-o", share / "heddle", heddle], check=True)
    shutil.copy2(ROOT / library, share / "libibverbs.so.1")
    return folder, share


def measure_all(args, tests):
    """Measures in one guest, prints tables, and returns the number of runs that failed."""
    folder, share = build()
    all_of = chosen(contenders(args.processors), args.names, REFERENCE)
    runs = [(f"run{t}-{number}-{n}", contender, test, number)
            for t, test in enumerate(tests) for number in range(args.rounds)
            for n, contender in enumerate(turns(all_of, number))]
    file = folder / "script"
    file.write_text(script(runs, args.seconds), encoding="utf-8")
    limit = BOOT + len(runs) * (args.seconds + EXTRA)
    guest = subprocess.run([
        ROOT / "scripts/siw-guest/run", "--variant", VARIANT, "--with", "nic", "--share", share,
        "--smp", str(args.processors), "--memory", "2048", "--name", "peers",
        "--log", folder / "console.log", "--timeout", str(limit), file], check=False)
    failures = 0
    if guest.returncode:
        failures += 1
        print(f"the guest ended with {guest.returncode}; {folder}/console.log", file=sys.stderr)
    for run, contender, test, number in runs:
        try:
            test.add(contender.name, number,
                     read(share, run, contender, test, args.seconds, args.processors),
                     contender.processors)
        except Failed as why:
            failures += 1
            print(f"{test.title()}, {contender.name}: {why}", file=sys.stderr)
    for test in tests:
        print(f"\n{table(test)}", flush=True)
    return failures
