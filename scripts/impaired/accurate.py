#!/usr/bin/env python3
"""interop-ecn: accurate ECN (RFC 9768) between Heddle and a Linux that speaks it. See
scripts/interop-ecn, which starts this program."""

import argparse
import json
import os
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from impaired import ecn_cases  # noqa: E402
from impaired.guest import GUEST, HEDDLE, Lab  # noqa: E402
from peers.contenders import Failed, run  # noqa: E402

PORT = 7471
# Heddle starts, and a transfer ends, within this time, on a busy machine too.
PATIENCE = 60
# Bytes of a Write or Read, and their number in a transfer.
SIZE, DEPTH, COUNT = 16 << 10, 8, 256
# Time for which Linux sends before it reads the memory back.
SECONDS = 1.5
SYN, RST, ACK = 0x02, 0x04, 0x10
OPTIONS = (172, 174)


@dataclass
class End:
    """The frames of one end: SYNs as they went, the field ACE of its first bare ACK, codepoints of
    its segments with data and of its bare ACKs, options by (kind, length) of either; and its resets
    that routers may mark."""
    syns: list = field(default_factory=list)
    first_ack: int | None = None
    data: Counter = field(default_factory=Counter)
    bare: Counter = field(default_factory=Counter)
    data_options: Counter = field(default_factory=Counter)
    bare_options: Counter = field(default_factory=Counter)
    resets: int = 0


@dataclass
class Found:
    """What became of a transfer: the counters of Heddle's TCP, the kernel's TCP_INFO, the counters
    of the wire for the frames of the client and of the server, and the frames of both hosts on the
    guest's side of the wire."""
    way: str
    heddle: dict
    linux: dict
    client: dict
    server: dict
    ours: End
    theirs: End

    def sender(self):
        """Returns the wire's counters for the frames of the end that sends data."""
        return self.server if self.way == "read" else self.client


def packets(path):
    """Yields source, codepoint, flags (AE the highest), payload and options of each segment."""
    with open(path, "rb") as file:
        file.read(24)
        while len(head := file.read(16)) == 16:
            frame = file.read(struct.unpack("<IIII", head)[2])
            if frame[12:14] != b"\x08\x00" or frame[23] != 6:
                continue
            ip = frame[14:]
            length, header = struct.unpack(">H", ip[2:4])[0], (ip[0] & 15) * 4
            tcp = ip[header:]
            offset = (tcp[12] >> 4) * 4
            flags = struct.unpack(">H", tcp[12:14])[0] & 0x1ff
            yield (".".join(map(str, ip[12:16])), ip[1] & 3, flags, length - header - offset,
                   dict(options(tcp[20:offset])))


def options(field):
    at = 0
    while at < len(field) and field[at] != 0:
        if field[at] == 1:
            at += 1
            continue
        yield field[at], field[at + 1]
        at += max(field[at + 1], 2)


def ace(flags):
    return flags >> 6 & 7


def ends(path):
    """Returns the frames of Heddle and of Linux."""
    found = {HEDDLE: End(), GUEST: End()}
    for source, codepoint, flags, payload, opts in packets(path):
        end = found[source]
        accurate = [(kind, opts[kind]) for kind in OPTIONS if kind in opts]
        if flags & SYN:
            end.syns.append((ace(flags), accurate))
            continue
        if payload:
            end.data[codepoint] += 1
            end.data_options.update(accurate)
            continue
        if flags & RST:
            end.resets += codepoint != 0
            continue
        if end.first_ack is None and flags & 0x3f == ACK:
            end.first_ack = ace(flags)
        end.bare[codepoint] += 1
        end.bare_options.update(accurate)
    return found[HEDDLE], found[GUEST]


class Hosts:
    """Runs transfers between Heddle and the guest."""

    def __init__(self, lab, heddle, folder):
        self.lab, self.heddle, self.folder = lab, heddle, folder
        self.socket = os.path.join(folder, "heddle.sock")

    def stats(self):
        """Returns the counters of Heddle's connections."""
        found = json.loads(run(self.heddle, "stats", "--all", "--json", "--socket", self.socket))
        return {c["name"]: c["value"] for c in found["counters"] if c["part"] == "tcp"}

    def settle(self):
        """Waits until Heddle has no connection and its counters rest, and returns these."""
        before = None
        limit = time.monotonic() + PATIENCE
        while (now := self.stats()) != before or self.connections():
            if time.monotonic() > limit:
                raise Failed("Heddle's connection does not end")
            before = now
            time.sleep(0.2)
        return now

    def connections(self):
        return len(json.loads(run(self.heddle, "conns", "--json", "--socket",
                                  self.socket))["conns"])

    def transfer(self, case, way):
        lab, wires = self.lab, (case.client, case.server)
        lab.ask(f"sysctl -qw net.ipv4.tcp_ecn={case.tcp_ecn} "
                f"net.ipv4.tcp_ecn_option={case.option} net.ipv4.tcp_no_metrics_save=1 "
                f"net.ipv4.tcp_congestion_control={case.linux_cc}")
        to_guest, to_heddle = wires[::-1] if way == "receive" else wires
        capture = os.path.join(self.folder, f"{case.file()}-{way}.pcap")
        base = "rate=50Mbit/s,queue=512K,delay=1ms"
        with lab.wire(*(f"{base},{w}" if w else base for w in (to_guest, to_heddle)),
                      capture) as wire:
            heddle = lab.inside(self.heddle, "serve", "--vdev", "net_af_packet0,iface=hd0", "--ip",
                                f"{HEDDLE}/24", "--listen", f"{HEDDLE}:{PORT}=sink", "--memory",
                                "256", "--ecn", case.ours, "--congestion", case.cc, "--socket",
                                self.socket)
            try:
                heddle.wait_for("listening", PATIENCE)
                linux = self.receive() if way == "receive" else self.connect(way)
                counters = self.settle()
            finally:
                heddle.end()
        sides = wire.counters["a_to_b"], wire.counters["b_to_a"]
        client, server = sides[::-1] if way == "receive" else sides
        return Found(way, counters, linux, client, server, *ends(capture))

    def connect(self, op):
        """Heddle writes to the guest, or reads from it. Returns the kernel's report."""
        sink = self.lab.start(f"/host/kernel-peer sink {GUEST}:{PORT}")
        sink.wait_for("listening")
        op = "write" if op == "send" else op
        bench = self.lab.inside(self.heddle, "bench", "--op", op, "--size", str(SIZE), "--depth",
                                str(DEPTH), "--iters", str(COUNT), "--mpa", "1",
                                "--connect", f"{GUEST}:{PORT}", "--socket", self.socket, "--json",
                                "-", "--quiet")
        try:
            limit = time.monotonic() + PATIENCE
            while bench.runs():
                if time.monotonic() > limit:
                    raise Failed("heddle bench: no end")
                time.sleep(0.05)
            bench.text()
            sink.wait_for("has ended")
        finally:
            bench.end()
            self.lab.ask("killall kernel-peer")
        return report(sink)

    def receive(self):
        """The guest writes to Heddle, and reads the memory back. Returns the kernel's report."""
        return report(self.lab.start(f"/host/kernel-peer source {HEDDLE}:{PORT} --verify "
                                     f"--seconds {SECONDS}"))


def report(program):
    lines = [line for line in program.text().splitlines() if line.startswith("{")]
    (connection,) = json.loads(lines[-1])["connections"]
    if connection["error"]:
        raise Failed(f"kernel-peer: {connection['error']}")
    return connection["tcp"]


def summary(found):
    """Returns the counts of a transfer in a few words."""
    data = found.theirs if found.way != "send" else found.ours
    acks = found.ours if found.way != "send" else found.theirs
    return (f"{sum(data.data.values())} segments, {found.sender()['marked']} marked; Heddle: "
            f"{found.heddle['ce_segments']} came, {found.heddle['ce_reported']} reported; Linux: "
            f"{found.linux['received_ce']} came, {found.linux['delivered_ce']} reported; options "
            f"on {sum(data.data_options.values())} segments with data, "
            f"{sum(acks.bare_options.values())} of {sum(acks.bare.values())} ACKs")


def arguments():
    usage = argparse.ArgumentParser(prog="interop-ecn")
    usage.add_argument("--only", default="", metavar="TEXT")
    usage.add_argument("--root", required=True)
    usage.add_argument("--heddle", required=True)
    usage.add_argument("--impair", required=True)
    usage.add_argument("--peer", required=True)
    return usage.parse_args()


def main():
    args, begin, failures, runs = arguments(), time.monotonic(), 0, 0
    folder = os.path.join(args.root, "target/interop-ecn")
    os.makedirs(folder, exist_ok=True)
    with Lab(args.root, args.impair, args.peer, folder) as lab:
        print(f"Linux {lab.ask('uname -r').strip()}, up after {time.monotonic() - begin:.0f} s",
              flush=True)
        hosts = Hosts(lab, args.heddle, folder)
        for case in ecn_cases.CASES:
            for way in case.ways:
                if args.only not in f"{case.name}: {way}":
                    continue
                runs += 1
                found = None
                try:
                    found = hosts.transfer(case, way)
                    case.check(found)
                    print(f"{case.name}: {way}: {summary(found)}", flush=True)
                except Failed as why:
                    failures += 1
                    print(f"{case.name}: {way}: FAILED: {why}", flush=True)
                    if found:
                        print(f"    {found}", flush=True)
    print(f"{runs} transfers, {failures} failed, {time.monotonic() - begin:.0f} s")
    return min(failures, 1) if runs else 2


if __name__ == "__main__":
    sys.exit(main())
