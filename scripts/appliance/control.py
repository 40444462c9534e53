"""The control socket, the metrics and the process of an appliance, as seen from outside."""

import json
import os
import re
import socket
import time
import urllib.error
import urllib.request


class Refused(Exception):
    """The appliance has refused a request."""


# Seconds for which an appliance may answer that it is busy: a machine that stands still for a
# second silences its workers that long, which is no fault of theirs.
BUSY = 10


class Control:
    """A connection to the control socket."""

    # Number of such answers on all connections.
    busy = 0

    def __init__(self, path, patience=10):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(patience)
        self.socket.connect(path)
        self.inbox = b""
        self.id = 0

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        while b"\n" not in self.inbox:
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the control socket was closed")
            self.inbox += more
        line, self.inbox = self.inbox.split(b"\n", 1)
        return line

    def ask(self, op, **args):
        """Returns the answer to a request; repeats the request while the appliance is busy."""
        until = time.monotonic() + BUSY
        while True:
            try:
                return self.ask_once(op, **args)
            except Refused as refused:
                if json.loads(str(refused))["error"]["kind"] != "busy" or time.monotonic() > until:
                    raise
                Control.busy += 1

    def ask_once(self, op, **args):
        self.id += 1
        call = {"v": 1, "id": self.id, "op": op}
        if args:
            call["args"] = args
        self.send(json.dumps(call).encode() + b"\n")
        answer = json.loads(self.line())
        if answer.get("id") != self.id:
            raise AssertionError(f"{op}: an answer to something else: {answer}")
        if "ok" in answer:
            return answer["ok"]
        raise Refused(json.dumps(answer))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$")

# Gauges that must return to their first values after all programs and peers have left.
GAUGES = (
    "heddle_connections", "heddle_connections_starting", "heddle_queue_pairs", "heddle_listeners",
    "heddle_applications", "heddle_clients", "heddle_events_waiting", "heddle_deadlines",
    "heddle_registrations", "heddle_registered_bytes", "heddle_regions_draining",
    "heddle_port_buffers_free",
)


def scrape(address):
    """Returns the text that Prometheus would get; repeats the request while the appliance is
    busy."""
    until = time.monotonic() + BUSY
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as e:
            if e.code != 503 or time.monotonic() > until:
                raise
            Control.busy += 1
            time.sleep(0.5)


def samples(text):
    """Returns the sum over all labels, by name."""
    all_of = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        m = SAMPLE.match(line)
        if not m:
            raise AssertionError(f"metrics: not a sample: {line!r}")
        all_of[m[1]] = all_of.get(m[1], 0) + float(m[3])
    return all_of


def gauges(text):
    """Returns the gauges that all workers reported in time: on a busy machine a worker may not have
    answered."""
    found = samples(text)
    return {name: int(found[name]) for name in GAUGES if name in found}


def process(pid):
    """Returns the kernel's figures of a process; memory in KiB."""
    figures = {}
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem", "Threads"):
                figures[name.lower()] = int(value.split()[0])
    figures["fds"] = len(os.listdir(f"/proc/{pid}/fd"))
    with open(f"/proc/{pid}/maps") as f:
        figures["maps"] = sum(1 for _ in f)
    return figures
