"""Processor time of programs and of the kernel's work for them, from /proc.

A kernel charges the softirqs that carry frames in one of two ways. Without
CONFIG_IRQ_TIME_ACCOUNTING, the process that a softirq interrupts, or whose system call raised it,
pays for it: the time of the process has it, and adding the softirq column of /proc/stat would count
it twice. With it, no process pays, and the column has to be added. In both cases the threads
`ksoftirqd` take over what is left, and pay for themselves.
"""

import gzip
import os
import platform
import time
from dataclasses import dataclass, field

TICK = os.sysconf("SC_CLK_TCK")
# Time between two samples, in seconds.
EVERY = 0.05
# A client ends within this time after its measurement.
TEARDOWN = 0.25
# The part of a run in which processor time counts: the rest is for start and end.
PART = 0.6


def config():
    """Returns the text of the kernel's configuration, or None."""
    try:
        with gzip.open("/proc/config.gz", "rt") as f:
            return f.read()
    except OSError:
        pass
    try:
        with open(f"/boot/config-{platform.release()}", encoding="utf-8") as f:
            return f.read()
    except OSError:
        return None


def softirqs_apart(text):
    """Returns true if a kernel of this configuration charges no process for softirqs, and None if
    the configuration is unknown."""
    if text is None:
        return None
    return "CONFIG_IRQ_TIME_ACCOUNTING=y" in text.splitlines()


def fields(path):
    """Returns the fields of a stat file of a process after its name, or None if it has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(")")[2].split()
    except OSError:
        return None


def seconds(pid):
    """Returns user and system time of a process, or None if it has ended."""
    stat = fields(f"/proc/{pid}/stat")
    return stat and (int(stat[11]) + int(stat[12])) / TICK


def tree(pids):
    """Returns the processes and their descendants."""
    found, todo = set(), list(pids)
    while todo:
        pid = todo.pop()
        if pid in found:
            continue
        found.add(pid)
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as f:
                    todo += map(int, f.read().split())
        except OSError:
            pass
    return found


def softirq_threads():
    """Returns the kernel's threads that carry out softirqs."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as f:
                    if f.read().startswith("ksoftirqd/"):
                        found.append(int(name))
            except OSError:
                pass
    return found


@dataclass
class Sample:
    """What had been used at a time: seconds."""
    at: float
    processes: dict = field(default_factory=dict)
    # softirqs that no process has paid for
    kernel: float = 0.0
    # all time in which a processor was not idle
    busy: float = 0.0


class Meter:
    """Takes samples, and says what was used between two of them."""

    def __init__(self, apart=None):
        self.threads = softirq_threads()
        self.apart = softirqs_apart(config()) if apart is None else apart
        self.idle = None

    def sample(self, pids=()):
        with open("/proc/stat", encoding="ascii") as f:
            user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, f.readline().split()[1:])
        kernel = sum(filter(None, map(seconds, self.threads)))
        if self.apart:
            kernel += (irq + softirq) / TICK
        processes = {pid: used for pid in tree(pids) if (used := seconds(pid)) is not None}
        return Sample(time.monotonic(), processes, kernel,
                      (user + nice + system + irq + softirq) / TICK)

    def rest(self, duration=0.3):
        """Notes what the machine uses without the contender."""
        before = self.sample()
        time.sleep(duration)
        self.idle = between(before, self.sample())


@dataclass
class Used:
    """Processors that were used on average."""
    processes: float
    kernel: float
    busy: float


def between(a, b):
    wall = b.at - a.at
    own = sum(used - a.processes.get(pid, 0) for pid, used in b.processes.items())
    return Used(own / wall, (b.kernel - a.kernel) / wall, (b.busy - a.busy) / wall)


def window(samples, end, duration):
    """Returns the first and last sample of the measured time of a client of `duration` seconds that
    has ended at `end`; None if there are not two."""
    last = end - TEARDOWN
    inside = [s for s in samples if last - PART * duration <= s.at <= last]
    return (inside[0], inside[-1]) if len(inside) > 1 else None


# The machine counts as quiet if all else takes less than this part of it.
QUIET = 0.1


def cost(used, idle, processors):
    """Returns the processors that a contender took: its processes, with the softirqs that no
    process paid for beyond those of the machine without it; and those that the whole machine took
    beyond that, or None on a machine that was busy with other work."""
    kernel = max(0.0, used.kernel - idle.kernel)
    quiet = idle.busy < QUIET * processors
    return used.processes + kernel, max(0.0, used.busy - idle.busy) if quiet else None
