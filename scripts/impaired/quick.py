"""networks --quick: does everything run, and does the wire do what its settings say?"""

import time
from dataclasses import dataclass

from impaired.cells import Cell, Wire
from impaired.hosts import Way, measure, ways
from peers.contenders import Failed

SECONDS = 0.7
WARMUP = 0.3
# Networks in which all ways have to deliver.
CELLS = [Cell(100, 0.1, 0), Cell(100, 10, 1), Cell(1000, 1, 0.1)]
TO_LINUX = Way("Heddle to Linux", "Heddle", "kernel")
FROM_LINUX = Way("Linux cubic to Heddle", "cubic", "Heddle")
LINUX = Way("Linux cubic to Linux", "cubic", "kernel")
OURS = Way("Heddle to Heddle", "Heddle", "Heddle")


@dataclass(frozen=True)
class Check:
    """An impairment, the counter of the bridge that shows it, and true if senders have to
    retransmit for it."""
    settings: str
    counter: str
    resends: bool
    ways: tuple = (LINUX, TO_LINUX, FROM_LINUX)
    ecn: str = None
    seconds: float = SECONDS


BASE = "rate=100Mbit/s,queue=256K,delay=1ms"
CHECKS = [
    Check(f"{BASE},loss=1%", "lost", True),
    Check(f"{BASE},burst=0.5%:25%", "lost", True, (TO_LINUX,)),
    # Less than an initial window: the first burst overflows it, however the hosts are scheduled.
    Check("rate=100Mbit/s,queue=8K,delay=1ms", "queue_dropped", True, (LINUX, TO_LINUX)),
    Check(f"{BASE},dup=5%", "duplicated", False),
    Check(f"{BASE},corrupt=1%", "corrupted", True, (TO_LINUX, FROM_LINUX)),
    Check(f"{BASE},reorder=2%:2ms", "reordered", False),
    Check(f"{BASE},jitter=1ms,unordered", "delivered", False),
    Check(f"{BASE},mtu=1400", "answered", True, (LINUX, TO_LINUX)),
    # Both suspect a black hole after a few timeouts in a row, of which Linux's take seconds.
    Check(f"{BASE},mtu=1400,silent", "too_big", True, (LINUX,), seconds=9),
    Check(f"{BASE},mtu=1400,silent", "too_big", True, (TO_LINUX, OURS), seconds=3),
    Check(f"{BASE},mark=20K", "marked", False, (LINUX, TO_LINUX, OURS), "request"),
    # Linux answers as RFC 3168 has it.
    Check(f"{BASE},mark=20K", "marked", False, (TO_LINUX, OURS), "accurate"),
]


def run(hosts, say):
    """Returns the number of runs that failed."""
    begin, failures = time.monotonic(), 0
    plan = [(cell.title(), way, cell.wire(), cell.outstanding(), None)
            for cell in CELLS for way in ways(hosts.congestion, ("cubic",))]
    plan += [(check.settings, way, Wire(check.settings, "delay=1ms"), 1 << 20, check)
             for check in CHECKS for way in check.ways]
    for title, way, wire, outstanding, check in plan:
        hosts.ask_for_ecn(check.ecn if check else None)
        try:
            seconds = check.seconds if check else SECONDS
            found = measure(hosts, way, wire, WARMUP, seconds, outstanding, verify=True)
            missing = unseen(check, found) if check else None
            if missing:
                raise Failed(missing)
            say(f"{title}: {way.name}: {found.goodput:.1f} Mb/s, resent {found.resent}")
        except Failed as why:
            failures += 1
            say(f"{title}: {way.name}: FAILED: {why}")
    say(f"{len(plan)} runs, {failures} failed, {time.monotonic() - begin:.0f} s")
    return failures


def unseen(check, found):
    """Returns what an impairment should have shown and did not; None if all is there."""
    if not found.bridge["a_to_b"][check.counter]:
        return f"the bridge has counted none of {check.counter}"
    if check.resends and not found.resent:
        return "the sender has retransmitted nothing"
    return None
