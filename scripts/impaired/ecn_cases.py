"""The cases of interop-ecn: settings of both hosts and of the wire, and checks of the outcome."""

import re
from dataclasses import dataclass
from typing import Callable

from peers.contenders import Failed

# Modes of the kernel's TCP_INFO.
NONE, CLASSIC, ACCURATE = 0, 1, 2
NOT_ECT, ECT_1, ECT_0, CE = range(4)
# The bits AE, CWR and ECE of a SYN that asks, and with which the other end reports a codepoint.
ASKS = 0b111
ASKS_CLASSIC = 0b011
REPORTS = {NOT_ECT: 0b010, ECT_1: 0b011, ECT_0: 0b100, CE: 0b110}
# The bits of TCP_INFO for a field ACE or a codepoint that the path changes.
ACE_FAIL_RECV = 2


@dataclass(frozen=True)
class Case:
    name: str
    check: Callable
    ways: tuple = ("send", "receive", "read")
    ours: str = "accurate"
    cc: str = "newreno"
    tcp_ecn: int = 3
    option: int = 2
    linux_cc: str = "cubic"
    # The impairments of the frames of the client and of the server.
    client: str = ""
    server: str = ""

    def file(self):
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def equal(what, got, want):
    if got != want:
        raise Failed(f"{what}: {got}, not {want}")


def true(what, holds):
    if not holds:
        raise Failed(what)


def clients(found):
    """Returns the frames of the client and of the server."""
    return (found.theirs, found.ours) if found.way == "receive" else (found.ours, found.theirs)


def handshake(found, asks, answer, first_ack):
    """Checks the bits of the SYN, of the SYN-ACK and of the ACK after it."""
    client, server = clients(found)
    equal("bits of the SYN", client.syns[0][0], asks)
    equal("option of the SYN", client.syns[0][1], [])
    equal("bits of the SYN-ACK", server.syns[0][0], answer)
    if first_ack is not None:
        equal("bits of the client's first ACK", client.first_ack, first_ack)


def mode(found, want):
    equal("Linux's mode", found.linux["ecn_mode"], want)


def sound(found):
    """Checks that neither end has found a fault of the path, and that both send ECT."""
    equal("Linux's faults of the path", found.linux["accecn_fail_mode"], 0)
    equal("Heddle's faults of the path", found.heddle["ecn_mangled"], 0)
    true(f"ECT on Heddle's data: {dict(found.ours.data)}", sends_ect(found.ours))
    true(f"ECT on Linux's data: {dict(found.theirs.data)}", sends_ect(found.theirs))


def sends_ect(end):
    return end.data[ECT_0] + end.data[CE] > 0


def negotiated(found, syn=NOT_ECT, syn_ack=NOT_ECT):
    """Checks that both ends count, that the handshake reports these codepoints, and that the path
    passes for sound."""
    handshake(found, ASKS, REPORTS[syn], REPORTS[syn_ack])
    mode(found, ACCURATE)
    sound(found)


def options(found):
    """Checks that both ends report by options, of legal lengths."""
    for who, end in ("Heddle", found.ours), ("Linux", found.theirs):
        all_of = end.data_options + end.bare_options
        true(f"{who}'s options: {dict(all_of)}",
             all_of and all(length in (2, 5, 8, 11) for _, length in all_of))
    equal("Linux has seen counters", found.linux["accecn_opt_seen"], 2)


def received(found):
    """Checks that each receiver has counted the marks of the wire. Returns those that came to Linux
    and to Heddle. Linux's last segment may be a reset with a codepoint, and nobody counts its
    mark."""
    to_linux, to_heddle = found.client, found.server
    if found.way == "receive":
        to_linux, to_heddle = to_heddle, to_linux
    equal("marks that came to Linux", found.linux["received_ce"], to_linux["marked"])
    known = found.heddle["ce_segments"]
    true(f"marks that came to Heddle: {known}, not {to_heddle['marked']}",
         0 <= to_heddle["marked"] - known <= found.theirs.resets)
    return to_linux["marked"], known


def counts(found, **handshake_of):
    """Checks that marks of the wire, of both receivers and of both senders are the same."""
    negotiated(found, **handshake_of)
    options(found)
    to_linux, to_heddle = received(found)
    equal("marks that Linux has reported", found.heddle["ce_reported"], to_linux)
    believed(found, to_heddle)


def believed(found, came):
    """Checks that Linux has added up Heddle's reports. After an option in which two counters have
    changed, Linux does not believe the next, and assumes that an ACK of eight packets and more
    hides a round of the field ACE (docs/differences.md): so it may count eights too many. Two marks
    on its last ACKs may be without a report: only the third draws one."""
    known = found.linux["delivered_ce"]
    unreported = min((came - known) % 8, came) if found.way == "receive" else 0
    more = known + unreported - came
    true(f"marks that Heddle has reported: {known}, not {came}",
         unreported <= 2 and more >= 0 and more % 8 == 0 and (came or not more))


def marked(found):
    counts(found)
    true("too few marks", found.sender()["marked"] > 3)
    bytes_of = "received_ce_bytes" if found.way == "send" else "delivered_ce_bytes"
    true("marked bytes", 0 < found.linux[bytes_of] <= found.sender()["marked"] * 1448)


def unmarked(found):
    counts(found)
    equal("marks", (found.client["marked"], found.server["marked"]), (0, 0))


def lossy(found):
    """Losses and marks: a mark on a segment that comes twice does not count with Heddle."""
    negotiated(found)
    options(found)
    true("too few marks", found.sender()["marked"] > 3)
    true("nothing lost", found.sender()["lost"] > 3)
    linux, heddle = found.linux, found.heddle
    if found.way == "send":
        equal("marks that Linux has reported", heddle["ce_reported"], linux["received_ce"])
        equal("marks that came to Linux", linux["received_ce"], found.sender()["marked"])
    else:
        known = heddle["ce_segments"]
        true(f"marks that came to Heddle: {known}",
             0 <= found.sender()["marked"] - known
             <= heddle["duplicate_segments"] + found.theirs.resets)
        believed(found, known)


def agreed(want, asks, answer):
    """Returns a check that the ends agree on a feedback, which the bits of the handshake show."""
    def check(found):
        handshake(found, asks, answer, None)
        mode(found, want)
        equal("Heddle's faults of the path", found.heddle["ecn_mangled"], 0)
        equal("ECT on Heddle's data", sends_ect(found.ours), want != NONE)
        equal("ECT on Linux's data", sends_ect(found.theirs), want != NONE)
    return check


def syn_changed(codepoint, of_client):
    """Returns a check of a path that gives the SYN, or the SYN-ACK, another codepoint: the other
    end reports it, and the sender of that segment sends its data without ECT. Linux looks at the
    report of its SYN only if the SYN-ACK has CE, so it sends with ECT all the same."""
    def check(found):
        wire = found.client if of_client else found.server
        true("no SYN changed", wire["syns_changed"] >= 1)
        reported = REPORTS[codepoint]
        handshake(found, ASKS, reported if of_client else REPORTS[NOT_ECT],
                  REPORTS[NOT_ECT] if of_client else reported)
        mode(found, ACCURATE)
        of_heddle = of_client == (found.way != "receive")
        of_linux = not of_heddle and not of_client
        equal("Heddle's faults of the path", found.heddle["ecn_mangled"], int(of_heddle))
        equal("ECT on Heddle's data", sends_ect(found.ours), not of_heddle)
        failed = found.linux["accecn_fail_mode"] & ACE_FAIL_RECV
        equal("Linux's faults of the path", bool(failed), of_linux)
        equal("ECT on Linux's data", sends_ect(found.theirs), not of_linux)
    return check


def bleached(found):
    """The path clears the ECN field: no codepoint arrives, and no byte counts."""
    handshake(found, ASKS, REPORTS[NOT_ECT], REPORTS[NOT_ECT])
    mode(found, ACCURATE)
    true("nothing bleached", found.sender()["bleached"] > 100)
    linux = found.linux
    came = sum(linux[f"received_{c}_bytes"] for c in ("e0", "e1", "ce"))
    equal("bytes with a codepoint that came to Linux", came, 0)
    equal("marks", (linux["received_ce"], found.heddle["ce_segments"],
                    found.heddle["ce_reported"]), (0, 0, 0))
    # No option of ours has news, so Linux may assume rounds of the field ACE (docs/differences.md).
    equal("marks that Heddle has reported, modulo 8", linux["delivered_ce"] % 8, 0)


def cleared(found):
    """The path clears the field ACE after the handshake: Heddle notices, and sends without ECT."""
    mode(found, ACCURATE)
    true("nothing cleared", found.server["ace_cleared"] + found.client["ace_cleared"] > 0)
    equal("Heddle's faults of the path", found.heddle["ecn_mangled"], 1)
    # Some segments go before the first report comes.
    true(f"ECT on Heddle's data: {dict(found.ours.data)}",
         found.ours.data[ECT_0] < 100 < found.ours.data[NOT_ECT])


def retried(found):
    """The path drops SYNs that ask: the ends agree on nothing, and the data arrive."""
    client, _ = clients(found)
    true("nothing dropped", found.client["ecn_syns_dropped"] > 0)
    equal("bits of the last SYN", client.syns[-1][0] if client.syns else None, 0)
    equal("marks", (found.heddle["ce_segments"], found.heddle["ce_reported"]), (0, 0))
    mode(found, NONE)


def few_options(found):
    """Linux reports by the field ACE alone. Heddle assumes that an ACK of eight packets and more
    hides a round of the field, as RFC 9768 has it, unless such ACKs are usual."""
    negotiated(found)
    true("an option of Linux's",
         not found.theirs.data_options and not found.theirs.bare_options)
    came, _ = received(found)
    more = found.heddle["ce_reported"] - came
    true(f"marks that Linux has reported: {found.heddle['ce_reported']}, not {came}",
         more >= 0 and more % 8 == 0)


def queue_short(found):
    """DCTCP on both sides: marks from a queue take the place of losses. Linux sends its SYNs and
    SYN-ACKs with ECT(0), and Heddle reports it."""
    counts(found, **({"syn": ECT_0} if found.way == "receive" else {"syn_ack": ECT_0}))
    true("too few marks", found.sender()["marked"] > 3)
    equal("dropped by the queue", found.sender()["queue_dropped"], 0)


MARK = "ce=2%"
BOTH = ("send", "receive")
CLIENT_HEDDLE, CLIENT_LINUX = ("send",), ("receive",)

CASES = [
    Case("no marks", unmarked),
    Case("2 % of data marked", marked, BOTH, client=MARK),
    Case("2 % of data marked", marked, ("read",), server=MARK),
    # Linux ignores reports without progress, which eight marks on its ACKs can need.
    Case("30 % of data marked", marked, CLIENT_HEDDLE, client="ce=30%"),
    Case("both directions marked", counts, client=MARK, server=MARK),
    Case("1 % lost, 2 % marked", lossy, BOTH, client="loss=1%,ce=2%"),
    Case("DCTCP", queue_short, BOTH, cc="dctcp", linux_cc="dctcp", client="mark=30K"),
    Case("no option of Linux's", few_options, BOTH, option=0, client=MARK),
    Case("sparing options of Linux's", counts, BOTH, option=1, client=MARK),
    # The feedback that either end asks for, and that the other grants.
    *(Case(f"tcp_ecn = {n}", agreed(got, ASKS, answer), CLIENT_HEDDLE, tcp_ecn=n)
      for n, got, answer in ((0, NONE, 0), (1, CLASSIC, 1), (2, CLASSIC, 1), (4, ACCURATE, 2),
                             (5, ACCURATE, 2))),
    *(Case(f"tcp_ecn = {n}", agreed(got, asks, answer), CLIENT_LINUX, tcp_ecn=n)
      for n, got, asks, answer in ((0, NONE, 0, 0), (1, CLASSIC, ASKS_CLASSIC, 1), (2, NONE, 0, 0),
                                   (4, CLASSIC, ASKS_CLASSIC, 1), (5, NONE, 0, 0))),
    *(Case(f"ecn = {ours}", agreed(got, asks, answer), (way,), ours=ours)
      for ours, way, got, asks, answer in (
          ("off", "send", NONE, 0, 0), ("accept", "send", NONE, 0, 0),
          ("request", "send", CLASSIC, ASKS_CLASSIC, 1), ("off", "receive", NONE, ASKS, 0),
          ("accept", "receive", ACCURATE, ASKS, 2), ("request", "receive", ACCURATE, ASKS, 2))),
    # Paths that change the bits.
    *(Case(f"SYN arrives with {name}", syn_changed(c, True), BOTH, client=f"syn-ecn={name}")
      for name, c in (("ect0", ECT_0), ("ect1", ECT_1), ("ce", CE))),
    *(Case(f"SYN-ACK arrives with {name}", syn_changed(c, False), BOTH, server=f"syn-ecn={name}")
      for name, c in (("ect0", ECT_0), ("ect1", ECT_1), ("ce", CE))),
    Case("ECN field cleared", bleached, client="ce=2%,bleach", server="ce=2%,bleach"),
    Case("field ACE of Linux cleared", cleared, ("send",), server="clear-ace"),
    Case("SYNs that ask are dropped", retried, BOTH, client="drop-ecn-syn"),
]
