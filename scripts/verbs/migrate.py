#!/usr/bin/env python3
"""Migrates a QEMU guest over RDMA, and compares its memory byte by byte.

  migrate.py PORT [pin] [cancel]

The script starts QEMUs in its own environment, so `heddle run -- migrate.py` makes them all use the
RNIC. The guest counts, and writes the count to 3,840 pages over and over. It migrates to a second
QEMU and from there to a third. Each migration ends with both guests stopped: their memory must be
the same. Then the guest must continue to count.

  pin      both sides register all memory of the guest before they begin (rdma-pin-all)
  cancel   the source cancels a running migration; its destination must end, and the guest must
           continue

Exit status: 0, or 1 with the reason on standard error.
"""

import json
import pathlib
import socket
import struct
import subprocess
import sys
import time

HOST = "127.0.0.1"
# Differences from an ordinary migration: "pin", "shared", "cancel".
OPTIONS = sys.argv[2:]
MEMORY = 32 << 20
# The address at which the guest counts.
COUNTER = 0x1000
# The guest writes the first word of each page in this range. The loop in `firmware` has these
# numbers, too.
PAGES = range(1 << 20, 1 << 24, 4096)
# Seconds after which a migration counts as stuck. A quiet machine takes a hundredth of this.
PATIENCE = 60


def firmware():
    """Returns 64 KiB that replace the BIOS: real mode with a flat data segment, no interrupts, no
    stack."""
    setup = bytes.fromhex(
        "fa"                        # cli
        "662e0f011600ff"            # lgdt cs:[0xff00]
        # Loading a segment reads the table only in protected mode.
        "0f20c0 0c01 0f22c0"        # cr0 |= 1
        "bb0800 8edb"               # ds = 8
        "24fe 0f22c0")              # cr0 &= ~1: the segment keeps its limit of 4 GiB
    # QEMU frees the RDMA resources of a cancelled migration after a grace period of RCU, for which
    # its processor thread has to leave the guest's code once: `pause` makes it do so.
    #
    # QEMU 7.2 loses changes of a page that its TLB knows as dirty if a synchronisation of the dirty
    # bitmap finds no clean page. `invlpg` makes each write look the page up again, so that the
    # memory can be compared.
    count = bytes.fromhex(
        "f390"                      # pause
        "67660f013d00100000"        # invlpg [0x1000]
        "6766ff0500100000"          # inc dword [0x1000]
        "6766a100100000"            # mov eax, [0x1000]
        "66bb00001000")             # mov ebx, 0x100000
    write = bytes.fromhex(
        "67660f013b"                # invlpg [ebx]
        "67668903"                  # mov [ebx], eax
        "6681c300100000"            # add ebx, 0x1000
        "6681fb00000001")           # cmp ebx, 0x1000000
    code = setup + count + write
    code += b"\x72" + struct.pack("b", -len(write) - 2)                   # jb write
    code += b"\xeb" + struct.pack("b", len(setup) - len(code) - 2)        # jmp count
    rom = bytearray(b"\xf4" * (64 << 10))
    rom[:len(code)] = code
    rom[0xff00:0xff06] = struct.pack("<HI", 15, 0xffffff10)
    rom[0xff10:0xff20] = struct.pack("<QQ", 0, 0x00cf92000000ffff)
    # The processor starts here. The jump wraps around to offset 0.
    rom[0xfff0:0xfff3] = b"\xe9\x0d\x00"
    return rom


class Failure(Exception):
    """A QEMU has not behaved as expected."""


class Qemu:
    """A QEMU, with its monitor."""

    def __init__(self, name, *options):
        self.name, self.place = name, pathlib.Path.cwd()
        machine = "pc"
        if "shared" in OPTIONS:
            machine += ",memory-backend=ram"
            options = ["-object", f"memory-backend-memfd,id=ram,size={MEMORY},share=on", *options]
        monitor = self.place / f"{name}.qmp"
        self.log = self.place / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["qemu-system-x86_64", "-machine", machine, "-accel",
                 "tcg,thread=single,tb-size=16", "-m", str(MEMORY >> 20), "-nodefaults", "-display",
                 "none", "-bios", str(self.place / "firmware"), "-qmp",
                 f"unix:{monitor},server=on,wait=off", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        wait(lambda: self.connect(monitor), f"{name} has no monitor")
        # interop-verbs copies the files of a failed run, and cannot copy a socket.
        monitor.unlink()
        self.file = self.socket.makefile("rwb", 0)
        self.file.readline()
        self("qmp_capabilities")

    def connect(self, monitor):
        if self.process.poll() is not None:
            raise self.failure("ended")
        try:
            self.socket.connect(str(monitor))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def failure(self, text):
        return Failure(f"{self.name} {text}:\n{self.log.read_text(errors='replace')[-2000:]}")

    def __call__(self, command, **arguments):
        """Runs a command of the monitor, and returns its answer."""
        self.file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while line := self.file.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise self.failure(f"refuses {command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]
        raise self.failure(f"ended at {command} with {self.process.wait(timeout=PATIENCE)}")

    def memory(self, start, size):
        file = self.place / f"{self.name}.memory"
        self("pmemsave", val=start, size=size, filename=str(file))
        content = file.read_bytes()
        file.unlink()
        return content

    def counter(self):
        return word(self.memory(COUNTER, 4), 0)

    def counts(self):
        """Waits until the guest has gone through all its pages a few times."""
        start = self.counter()
        wait(lambda: self.counter() >= start + 3, f"the guest in {self.name} does not go on")

    def pins(self, yes):
        self("migrate-set-capabilities",
             capabilities=[{"capability": "rdma-pin-all", "state": yes}])

    def pace(self, bandwidth, downtime):
        self("migrate-set-parameters", **{"max-bandwidth": bandwidth, "downtime-limit": downtime})

    def migration(self):
        return self("query-migrate").get("status")

    def quit(self):
        self("quit")
        if code := self.process.wait(timeout=PATIENCE):
            raise self.failure(f"quit with {code}")


def word(content, at):
    return int.from_bytes(content[at:at + 4], "little")


def wait(done, what):
    limit = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > limit:
            raise Failure(what)
        time.sleep(0.01)


def destination(name, port, pin):
    """Starts a QEMU that waits for a guest."""
    qemu = Qemu(name, "-incoming", "defer", "-S")
    qemu.pins(pin)
    qemu("migrate-incoming", uri=f"rdma:{HOST}:{port}")
    return qemu


def begin(source, port):
    """Starts a migration so slow that it cannot end, and waits until the guest has changed all its
    pages."""
    source.pace(1 << 20, 1)
    source("migrate", uri=f"rdma:{HOST}:{port}")

    def transfers():
        status = source("query-migrate")
        if status["status"] == "failed":
            raise source.failure(f"failed to migrate: {status}")
        return status.get("ram", {}).get("transferred", 0) > 0
    wait(transfers, f"{source.name} does not start to migrate")
    source.counts()


def cancel(source, target, port):
    begin(source, port)
    source("migrate_cancel")
    wait(lambda: source.migration() == "cancelled", "the migration is not cancelled")
    # QEMU's destination ends with an error of its own choice. It must not wait for good.
    if target.process.wait(timeout=PATIENCE) != 1:
        raise target.failure(f"ended with {target.process.returncode}")
    source.counts()


def complete(source, target, port):
    begin(source, port)
    source.pace(4 << 30, 2000)
    wait(lambda: source.migration() in ("completed", "failed"),
         f"{source.name} does not complete the migration")
    for qemu, states in ((source, ["postmigrate"]), (target, ["paused"])):
        wait(lambda qemu=qemu: qemu.migration() in ("completed", "failed"),
             f"{qemu.name} does not complete it")
        state = qemu("query-status")["status"]
        if qemu.migration() != "completed" or state not in states:
            raise qemu.failure(f"is {state}, its migration {qemu('query-migrate')}")
    before, after = (qemu.memory(0, MEMORY) for qemu in (source, target))
    if before != after:
        wrong = [at for at in range(0, MEMORY, 4096) if before[at:at + 4096] != after[at:at + 4096]]
        shown = [f"{at:#x} ({word(before, at)}, then {word(after, at)})" for at in wrong[:8]]
        raise Failure(f"{len(wrong)} pages differ in {target.name}: {', '.join(shown)}")
    count = word(after, COUNTER)
    if stale := [at for at in PAGES if word(after, at) not in (count, count - 1)]:
        raise Failure(f"the guest at {count} has {word(after, stale[0])} at {stale[0]:#x}")
    source.quit()
    target("cont")
    target.counts()


def main():
    port, pin = sys.argv[1], "pin" in OPTIONS
    pathlib.Path("firmware").write_bytes(firmware())
    qemus = []

    def start(qemu):
        qemus.append(qemu)
        return qemu
    try:
        source = start(Qemu("first"))
        source.pins(pin)
        source.counts()
        if "cancel" in OPTIONS:
            cancel(source, start(destination("cancelled", port, pin)), port)
        for name in ("second", "third"):
            target = start(destination(name, port, pin))
            complete(source, target, port)
            source = target
        source.quit()
    except Failure as failure:
        print(f"migrate: {failure}", file=sys.stderr)
        return 1
    finally:
        for qemu in qemus:
            if qemu.process.poll() is None:
                qemu.process.kill()
                qemu.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
