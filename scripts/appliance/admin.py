"""Clients that query an appliance, change it, and abuse its control socket."""

import array
import json
import os
import random
import socket
import time

from . import tenants
from .control import Control, Refused, gauges, scrape
from .lab import OURS


def ask_everything(course, side):
    """Asks all requests, again and again, and checks that the answers make sense."""
    with side.control() as c:
        while course.pause(0.5):
            status = c.ask("status")
            if not all(w["running"] for w in status["workers"]):
                course.fail(f"a worker has ended: {status['workers']}")
            conns = c.ask("conns", limit=50)["conns"]
            numbers = [n["conn"] for n in conns]
            if numbers != sorted(set(numbers)):
                course.fail(f"connections out of order: {numbers}")
            c.ask("mrs", stags=True)
            c.ask("ports")
            stats = c.ask("stats")
            if stats["silent"]:
                course.count("times a worker was silent for a second")
            gauges(scrape(side.metrics))
            course.count("rounds of questions")


def kill_connections(course, side, seed):
    """Ends connections of programs that can continue without them."""
    rng = random.Random(f"conn kill {seed}")
    with side.control() as c:
        while course.pause(rng.uniform(1, 3)):
            conns = c.ask("conns")["conns"]
            expendable = [n["conn"] for n in conns if n["service"].startswith("victim-")]
            if not expendable:
                continue
            try:
                c.ask("conn-kill", conn=rng.choice(expendable), in_order=rng.random() < 0.5)
                course.count("connections killed")
            except Refused:
                course.count("connections to kill that were gone")


WRONG = [
    ("syntax", lambda text: text + "[[["),
    ("an unknown key", lambda text: "[shutdown]\ndeadlines = \"1s\"\n" + text),
    ("a fixed key", lambda text: text.replace("frames = 4096", "frames = 8192")),
    ("an address that is not ours", lambda text: text.replace(f'"{OURS}:7176"', '"10.9.9.9:7176"')),
    ("a service there is not", lambda text: text.replace('"sink"', '"drain"')),
    ("a service twice",
     lambda text: text + f'[[listen]]\naddress = "{OURS}:7176"\nservice = "sink"\n'),
    ("nothing", lambda _text: ""),
]


# The weight of the services, in the file of an appliance.
SERVICES = "weight = 3 # services\n"


def reload(course, side, seed):
    """Loads other files, which change listeners, an address, the log's level, limits. Every third
    file is wrong and must change nothing."""
    rng = random.Random(f"reload {seed}")
    wrongs = 0
    with side.control() as c:
        while course.pause(rng.uniform(0.5, 2)):
            ports = rng.sample(range(7200, 7220), rng.randrange(6))
            listen = [(port, rng.choice(("sink", "rping", "ucmatose", "rdma_server")))
                      for port in ports]
            level = rng.choice(("error", "warn", "info", "info", "debug"))
            more = rng.choice(("", "[shutdown]\ndeadline = \"2s\"\n", "[mpa]\ncrc = false\n"))
            text = side.config(level, rng.random() < 0.5, listen, more)
            # The shares of the tenant and of the services change while both send.
            text = text.replace(tenants.SHARE, tenants.share(rng))
            text = text.replace(SERVICES, f"weight = {rng.randrange(1, 9)} # services\n")
            if rng.random() < 0.33:
                what, spoil = rng.choice(WRONG)
                before = listeners(c)
                side.write(spoil(text))
                try:
                    done = c.ask("reload")
                    course.fail(f"a file with {what} was taken: {done}")
                except Refused:
                    wrongs += 1
                    course.count("wrong files refused")
                if listeners(c) != before:
                    course.fail(f"a file with {what} has changed something")
                continue
            side.write(text)
            done = c.ask("reload")
            course.anew = time.monotonic()
            if done["failed"]:
                course.fail(f"reload: {done['failed']}")
            want = {f"{OURS}:{port}" for port, _ in listen}
            if not want <= set(listeners(c)):
                course.fail(f"no listener at some of {want}: {listeners(c)}")
            course.count("files reloaded")
        side.write(side.config())
        c.ask("reload")
    return wrongs


def listeners(control):
    """Returns the steady listeners that take connections, or are about to; those of victims come
    and go."""
    there = control.ask("status")["listeners"]
    return sorted(n["address"] for n in there if n["state"] != "ending" and "#" not in n["service"])


def is_dropped(s, patience):
    """Returns true if the other end closes, whatever it sends before."""
    s.settimeout(patience)
    try:
        while s.recv(1 << 16):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def abuse(course, side, seed):
    """Sends garbage, long lines, half lines and unrequested descriptors, and does not read
    answers."""
    rng = random.Random(f"abuse {seed}")

    def connect():
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10)
        s.connect(side.socket)
        return s

    def garbage(s):
        s.sendall(rng.randbytes(rng.randrange(1, 5000)) + b"\n")

    def long_line(s):
        for _ in range(300):
            s.sendall(b"x" * 8192)
        if not is_dropped(s, 10):
            course.fail("a line of 2.4 MB was taken")

    def half_line(s):
        s.sendall(b'{"v":1,"id":1,"op":"sta')

    def nonsense(s):
        for call in ({"v": 9, "id": 1, "op": "status"}, {"v": 1, "id": -1, "op": "status"},
                     {"v": 1, "id": 1},
                     {"v": 1, "id": 1, "op": "conn-kill", "args": {"conn": "all"}},
                     [], {"op": [[[[[]]]]]}):
            s.sendall(json.dumps(call).encode() + b"\n")

    def descriptors(s):
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        try:
            s.sendmsg([b'{"v":1,"id":1,"op":"status"}\n'], rights)
        finally:
            for fd in fds:
                os.close(fd)

    def half_a_device(s):
        s.sendall(b'{"v":1,"id":1,"op":"device-open","args":{}}\n')

    def slow_reader(s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        call = b'{"v":1,"id":1,"op":"stats"}\n'
        since = time.monotonic()
        while time.monotonic() - since < 20:
            try:
                s.sendall(call * 50)
            except TimeoutError:
                continue
            except OSError:
                course.count("slow readers dropped")
                return
        course.fail("a client that reads nothing was not dropped within 20 s")

    ways = [garbage, garbage, long_line, half_line, nonsense, descriptors, half_a_device,
            slow_reader]
    while course.pause(rng.uniform(0.2, 1)):
        s = connect()
        try:
            rng.choice(ways)(s)
            course.count("abuses of the control socket")
        except (BrokenPipeError, ConnectionResetError):
            course.count("abuses of the control socket")
        finally:
            s.close()
    # Another client gets an answer all the while.
    with Control(side.socket) as c:
        c.ask("status")
