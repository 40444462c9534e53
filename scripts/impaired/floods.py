"""networks --floods: a connection to Heddle, and new clients, while forged packets come.

The kernel of namespace a is the client and, by raw sockets, also the attacker, who knows the
addresses and ports of the connection and none of its sequence numbers.
"""

import itertools
import json
import time

from impaired import tables
from impaired.cells import Wire
from impaired.hosts import OVERTIME, PAYLOAD, PORT, finish, wait
from peers.contenders import Failed, Programs

# The packets of a flood take a few per cent of the rate, so a loss of goodput is Heddle's.
WIRE = Wire("rate=200Mbit/s,queue=256K,delay=500us", "delay=500us")
FRAMES = 10_000
KINDS = ["nothing", "syn", "stray", "guess", "reset", "inner-syn", "fin", "data", "icmp"]
NAMES = {"nothing": "nothing", "syn": "SYNs from random addresses",
         "stray": "ACKs of no connection, from random addresses",
         "guess": "SYNs and ACKs from random addresses: guesses at cookies",
         "reset": "RSTs of the connection", "inner-syn": "SYNs of the connection",
         "fin": "FINs of the connection", "data": "data of the connection",
         "icmp": "ICMP errors about the connection, MTU 552"}
NAME_OF_ICMPV6 = "ICMPv6 errors about the connection, MTU 1280"
# A new client is served within this time, or not at all.
PATIENCE = 20


def name(kind, version):
    """Returns how the table names a flood. The strangers over IPv6 are of one /64, those over IPv4
    of one /16."""
    if version == 4:
        return NAMES[kind]
    return (NAME_OF_ICMPV6 if kind == "icmp" else NAMES[kind]) + tables.OVER_IPV6


def flooded(hosts, kind, version, seconds):
    """Runs one flood. Returns the goodput of the connection in Mb/s, the packets of the flood in a
    second, and the milliseconds after which a new client was served."""
    lab, programs = hosts.lab, Programs()
    attacker = lab.names[0]
    try:
        with lab.wire(WIRE, version):
            address, server = hosts.sink(programs, "sink", prefix=16, version=version)
            source = hosts.kernel(programs, address, 3 * seconds + OVERTIME, 1, "cubic")
            client = connected(hosts, source)
            time.sleep(1)
            flood = None
            if kind != "nothing":
                flood = programs.start(attacker, hosts.peer, "flood", kind, address, "--from",
                                       client, "--rate", str(FRAMES), "--seconds",
                                       str(seconds + PATIENCE))
                time.sleep(0.5)
            begin, before, _ = hosts.acknowledged(client)
            time.sleep(seconds)
            end, after, _ = hosts.acknowledged(client)
            served = newcomer(hosts, programs, address)
            if not source.runs():
                raise Failed(f"the connection ended: {source.written()[1].strip()}")
            if not server.runs():
                raise Failed(f"heddle serve ended: {server.written()[1].strip()}")
            frames = 0
            if flood:
                frames = sent(flood)
            programs.end()
    finally:
        programs.end()
    return (after - before) * PAYLOAD * 8 / 1e6 / (end - begin), frames, served


def connected(hosts, source):
    """Waits for the connection, and returns the client's address and port."""
    limit = time.monotonic() + OVERTIME
    while time.monotonic() < limit and source.runs():
        text = hosts.lab.within(hosts.lab.names[0], "ss", "-tnH", "state", "established", "dport",
                                f"= :{PORT}")
        if text.strip():
            return text.split()[2]
        time.sleep(0.02)
    raise Failed(f"kernel-peer: no connection: {source.written()}")


def newcomer(hosts, programs, address):
    """Returns the milliseconds until a new client has written and read back; None if none was
    served."""
    begin = time.monotonic()
    while time.monotonic() < begin + PATIENCE:
        client = hosts.kernel(programs, address, 0.01, verify=True)
        if wait(client, begin + PATIENCE - time.monotonic()) and not client.child.returncode:
            return (time.monotonic() - begin) * 1e3
        time.sleep(0.05)
    return None


def sent(flood):
    """Ends the flood, and returns its packets in a second."""
    flood.child.terminate()
    finish(flood, OVERTIME)
    said = json.loads(flood.text())
    return said["packets"] / said["seconds"]


def run(args, hosts, results, say):
    """Returns the number of runs that failed."""
    failures = 0
    for _ in range(args.rounds):
        number = tables.next_round(results, "floods", "nothing")
        for version, kind in itertools.product((4, 6), KINDS):
            key = kind if version == 4 else f"{kind} IPv6"
            if args.way not in key:
                continue
            try:
                goodput, frames, served = flooded(hosts, kind, version, args.seconds)
            except Failed as why:
                failures += 1
                say(f"{key}: FAILED: {why}")
                continue
            if served is None:
                failures += 1
            say(f"{key}: {goodput:.1f} Mb/s, {frames:.0f} frames a second, a new client "
                f"{'not served' if served is None else f'served after {served:.0f} ms'}")
            results["floods"].append({"key": key, "way": name(kind, version), "round": number,
                                      "goodput": goodput, "frames": frames, "served": served})
            tables.save(args.results, results)
    return failures
