"""Hostile senders on the wire: frames of any kind, and peers over the kernel's TCP that break every
rule of the start-up and of what comes after it. All of it follows from the seed and the run's pace.

They never send what no peer could withstand: a frame with the addresses of steady programs and a
right checksum, or ARP in the name of these programs.
"""

import os
import random
import socket
import struct
import time
import zlib

from .lab import CMTIME, GUEST, OURS, STRANGER, TO_INFINIBAND, TO_IWARP
from .room import ROOT

ETH_IP, ETH_ARP, ETH_ALL = 0x0800, 0x0806, 3
SERVICES = (7174, 7175, 7176, 9001, 9010, CMTIME, TO_INFINIBAND)


def crc32c_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ TABLE[(crc ^ b) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checksum(data):
    """Returns the Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(protocol, source, target, payload, ident=0, fragment=0):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), ident, fragment, 64, protocol,
                       0, socket.inet_aton(source), socket.inet_aton(target))
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def tcp(source, target, ports, seq, ack, flags, payload=b"", options=b""):
    head = struct.pack(">HHIIBBHHH", *ports, seq, ack, (5 + len(options) // 4) << 4, flags,
                       65535, 0, 0) + options
    pseudo = (socket.inet_aton(source) + socket.inet_aton(target)
              + struct.pack(">HH", 6, len(head) + len(payload)))
    total = checksum(pseudo + head + payload)
    return ip(6, source, target, head[:16] + struct.pack(">H", total) + head[18:] + payload)


def udp(source, target, ports, payload):
    # A checksum of 0 means none, which every receiver accepts.
    return ip(17, source, target, struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload)


def fpdu(ulpdu, good_crc=True):
    data = struct.pack(">H", len(ulpdu)) + ulpdu
    data += b"\0" * (-len(data) % 4)
    return data + struct.pack("<I", crc32c(data) ^ (0 if good_crc else 1))


def request(flags=0x40, revision=1, private=b"", key=b"MPA ID Req Frame"):
    return key + bytes((flags, revision)) + struct.pack(">H", len(private)) + private


class Frames:
    """Frames from an interface of the bridge."""

    def __init__(self, course, seed, mac):
        self.course, self.rng = course, random.Random(f"frames {seed}")
        self.target = bytes.fromhex(mac.replace(":", ""))
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind(("br0", 0))

    def nobody(self):
        """Returns an address without a host."""
        return f"10.71.0.{self.rng.randrange(100, 255)}"

    def send(self, payload, kind=ETH_IP, target=None):
        source = b"\x02" + self.rng.randbytes(5)
        frame = (target or self.target) + source + struct.pack(">H", kind) + payload
        self.put(frame)

    def put(self, frame):
        try:
            self.socket.send(frame[:1514])
            self.course.count("hostile frames")
        except OSError:
            # The queue is full, or the kernel refuses the frame: count the frame as lost.
            self.course.count("hostile frames the kernel did not take")

    def run(self):
        rng = self.rng
        ways = [self.noise, self.noise_in_ip, self.syns, self.segments, self.arp, self.icmp,
                self.fragments, self.datagrams, self.overheard]
        while self.course.pause(rng.uniform(0.1, 0.5)):
            rng.choice(ways)()

    def noise(self):
        for _ in range(50):
            self.send(self.rng.randbytes(self.rng.randrange(1, 1500)),
                      self.rng.choice((ETH_IP, ETH_ARP, 0x86DD, 0x8100, 0x8906)))

    def noise_in_ip(self):
        for _ in range(50):
            payload = self.rng.randbytes(self.rng.randrange(0, 1400))
            self.send(ip(self.rng.choice((1, 2, 6, 17, 47, 255)), self.nobody(), OURS, payload))

    def syns(self):
        """Sends a flood of SYNs from many addresses."""
        port = self.rng.choice(SERVICES)
        for _ in range(self.rng.randrange(50, 600)):
            options = b"\x02\x04\x05\xb4" if self.rng.random() < 0.9 else self.rng.randbytes(8)
            ports = (self.rng.randrange(1, 65536), port)
            self.send(tcp(self.nobody(), OURS, ports, self.rng.randrange(1 << 32), 0, 2, b"",
                          options))

    def segments(self):
        """Sends segments of absent connections, with any flags."""
        for _ in range(100):
            ports = (self.rng.randrange(65536), self.rng.choice(SERVICES))
            numbers = (self.rng.randrange(1 << 32), self.rng.randrange(1 << 32))
            payload = self.rng.randbytes(self.rng.randrange(0, 100))
            self.send(tcp(self.nobody(), OURS, ports, *numbers, self.rng.randrange(256), payload))

    def arp(self):
        """Sends ARP requests and answers of many absent hosts."""
        for _ in range(100):
            mac, who = self.rng.randbytes(6), socket.inet_aton(self.nobody())
            whom = socket.inet_aton(self.rng.choice((OURS, GUEST, self.nobody())))
            op = self.rng.choice((1, 2))
            target = self.rng.choice((None, b"\xff" * 6))
            self.send(struct.pack(">HHBBH6s4s6s4s", 1, ETH_IP, 6, 4, op, mac, who, bytes(6), whom),
                      ETH_ARP, target)

    def icmp(self):
        for _ in range(100):
            kind = self.rng.choice((8, 8, 3, 5, 11, 13))
            body = struct.pack(">BBHI", kind, self.rng.randrange(16), 0,
                               self.rng.randrange(1 << 32))
            body += self.rng.randbytes(self.rng.randrange(0, 1000))
            if self.rng.random() < 0.8:
                body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
            self.send(ip(1, self.nobody(), OURS, body))

    def fragments(self):
        for _ in range(50):
            fragment = self.rng.choice((0x2000, self.rng.randrange(1, 0x3FFF)))
            self.send(ip(self.rng.choice((1, 6, 17)), self.nobody(), OURS, self.rng.randbytes(200),
                         self.rng.randrange(65536), fragment))

    def datagrams(self):
        """Sends datagrams to RoCEv2's port, with a random ICRC, which is practically never
        right."""
        for _ in range(50):
            port = self.rng.choice((4791, 4791, self.rng.randrange(65536)))
            opcode = self.rng.choice((0x64, self.rng.randrange(256)))
            bth = (bytes((opcode, 0x40)) + b"\xff\xff"
                   + struct.pack(">II", 1, self.rng.randrange(1 << 24)))
            body = bth + self.rng.randbytes(self.rng.choice((8 + 256 + 4, self.rng.randrange(400))))
            self.send(udp(self.nobody(), OURS, (self.rng.randrange(1024, 65536), port), body))

    def overheard(self):
        """Sends overheard frames of other peers again: unchanged, cut short, or with a bit changed
        that a checksum finds."""
        heard = []
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_ALL)) as ears:
            ears.bind(("b.a0", ETH_ALL))
            ears.settimeout(0.2)
            until = time.monotonic() + 0.5
            while len(heard) < 40 and time.monotonic() < until:
                try:
                    frame = ears.recv(2048)
                except TimeoutError:
                    continue
                # Keep other peers' TCP frames but no resets: a late reset could become valid again.
                if len(frame) > 54 and frame[:6] == self.target and frame[12:14] == b"\x08\0" and \
                        frame[23] == 6 and not frame[47] & 6:
                    heard.append(frame)
        for frame in heard:
            what = self.rng.randrange(3)
            if what == 0:
                self.put(frame)
            elif what == 1:
                self.put(frame[:self.rng.randrange(14, len(frame))])
            else:
                changed = bytearray(frame)
                at = self.rng.randrange(14, len(frame))
                changed[at] ^= 1 << self.rng.randrange(8)
                self.put(bytes(changed))
            self.course.count("frames overheard and sent again")


class Peers:
    """Connections of the kernel's TCP to any listener."""

    def __init__(self, course, seed, number):
        self.course, self.rng = course, random.Random(f"peers {seed} {number}")

    def run(self):
        ways = [self.noise, self.half, self.bad_requests, self.bad_fpdus, self.bad_ddp, self.silent,
                self.drip, self.reset, self.at_guest]
        while self.course.pause(self.rng.uniform(0.1, 0.8)):
            way = self.rng.choice(ways)
            host, port = ((GUEST, 7180) if way == self.at_guest
                          else (OURS, self.rng.choice(SERVICES)))
            try:
                with socket.create_connection((host, port), timeout=3,
                                              source_address=(STRANGER, 0)) as s:
                    s.settimeout(2)
                    way(s)
                self.course.count("hostile connections")
            except OSError:
                # A refused, reset or unanswered connection is in order.
                self.course.count("hostile connections cut off")

    def enter(self, s):
        """Makes an orderly start-up."""
        private = self.rng.randbytes(self.rng.choice((0, 8, 56, 512)))
        s.sendall(request(self.rng.choice((0, 0x40)), 1, private))
        return s.recv(2048)

    def noise(self, s):
        s.sendall(self.rng.randbytes(self.rng.randrange(1, 20000)))
        s.recv(100)

    def half(self, s):
        s.sendall(request(private=bytes(100))[:self.rng.randrange(1, 119)])
        if self.rng.random() < 0.5:
            s.shutdown(socket.SHUT_WR)
        time.sleep(self.rng.uniform(0, 2))

    def bad_requests(self, s):
        rng = self.rng
        s.sendall(rng.choice((
            request(rng.randrange(256), rng.randrange(256), rng.randbytes(rng.randrange(64))),
            request(key=b"MPA ID Rep Frame"),
            request(private=bytes(512)) + bytes(600),
            request(0x10, 2, rng.randbytes(4)),
            request(0x10, 2),
            request()[:-2] + b"\xff\xff" + rng.randbytes(3000),
        )))
        s.recv(2048)

    def bad_fpdus(self, s):
        """Sends FPDUs with a wrong CRC or a wrong length."""
        self.enter(s)
        good = self.rng.randrange(4)
        for _ in range(good):
            s.sendall(fpdu(self.send_of(self.rng.randbytes(self.rng.randrange(1000)))))
        s.sendall(self.rng.choice((
            fpdu(self.send_of(b"x" * 100), good_crc=False),
            b"\xff\xff" + self.rng.randbytes(1000),
            fpdu(b""),
            fpdu(self.rng.randbytes(1300))[:-6],
        )))
        s.recv(2048)

    def send_of(self, payload, msn=1):
        """Returns an untagged DDP segment: Send (RFC 5040 section 4)."""
        return struct.pack(">BBIIII", 0x41, 0x43, 0, 0, msn, 0) + payload

    def bad_ddp(self, s):
        """Sends valid FPDUs with nonsense inside: opcodes, queues, message numbers, STags."""
        self.enter(s)
        rng = self.rng
        for _ in range(rng.randrange(1, 4)):
            s.sendall(fpdu(rng.choice((
                rng.randbytes(rng.randrange(1, 200)),
                struct.pack(">BBIQ", 0xC1, 0x40, rng.randrange(1 << 32), rng.randrange(1 << 48))
                + b"y" * 64, self.send_of(b"z" * 50, rng.randrange(1 << 32)),
                struct.pack(">BBIIIIIQIIQ", 0x41, 0x41, 0, 1, 1, 0, rng.randrange(1 << 32), 0,
                            rng.randrange(1 << 31), rng.randrange(1 << 32), rng.randrange(1 << 48)),
            ))))
        s.recv(2048)

    def silent(self, s):
        time.sleep(self.rng.uniform(0, 7))

    def drip(self, s):
        for byte in request(private=bytes(20)):
            s.sendall(bytes((byte,)))
            if not self.course.pause(0.05):
                return

    def reset(self, s):
        if self.rng.random() < 0.5:
            self.enter(s)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def at_guest(self, s):
        """Connects to an address that the next file removes."""
        self.enter(s)
        s.sendall(fpdu(self.send_of(b"hello")))
        time.sleep(self.rng.uniform(0, 3))


def icrc(packet):
    """Returns the invariant CRC of RoCEv2 over IPv4, in which fields that may change on the way
    count as ones."""
    masked = bytearray(b"\xff" * 8 + packet)
    for at in (1, 8, 10, 11, 26, 27, 32):
        if at < len(packet):
            masked[8 + at] = 0xFF
    return struct.pack("<I", zlib.crc32(masked))


class Mads:
    """Datagrams of InfiniBand's connection manager with a right ICRC: a stranger's conversations
    that are in order or break off, and messages that no connection manager would send. Each message
    is one that Linux sent once, with other addresses and numbers."""

    # Offsets in a datagram, from its IPv4 header on; the message of the CM begins at 72.
    (TRANSACTION, ATTRIBUTE, LOCAL, REMOTE, SERVICE_PORT, QPN, RESPONSE) = (
        56, 64, 72, 76, 86, 104, 119)
    # Offsets of the queue pair in a REP, and of the queue pair that a DREQ names.
    REP_QPN, DREQ_QPN = 84, 80
    ADDRESSES = ((12, 16), (140, 156), (228, 244))
    REQ, REJ, REP, RTU, DREQ, DREP = 0x10, 0x12, 0x13, 0x14, 0x15, 0x16

    def __init__(self, course, seed, mac):
        self.course, self.rng = course, random.Random(f"mads {seed}")
        self.frames = Frames(course, f"mads {seed}", mac)
        data = os.path.join(ROOT, "ib", "tests", "data")
        self.messages = {}
        for name, kind in (("01-req", self.REQ), ("11-rep", self.REP), ("12-rtu", self.RTU),
                           ("13-dreq", self.DREQ)):
            with open(os.path.join(data, f"rxe-{name}.hex")) as f:
                self.messages[kind] = bytes.fromhex("".join(f.read().split()))[:-4]
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((STRANGER, 4791))
        self.next = self.rng.randrange(1 << 31)

    def message(self, kind, local, remote=0, source=STRANGER, port=CMTIME, seed=None):
        """Returns a message without its ICRC. `seed` is the number of the transaction."""
        d = bytearray(self.messages.get(kind, self.messages[self.RTU]))
        d[self.ATTRIBUTE:self.ATTRIBUTE + 2] = struct.pack(">H", kind)
        d[self.TRANSACTION:self.TRANSACTION + 8] = struct.pack(
            ">Q", seed or self.rng.randrange(1, 1 << 64))
        d[self.LOCAL:self.LOCAL + 4] = struct.pack(">I", local)
        if kind == self.REQ:
            # Announce an answer within 0.27 s, so that a flood holds its resources for a shorter
            # time.
            d[self.RESPONSE] = 16 << 3 | 7
            d[self.SERVICE_PORT:self.SERVICE_PORT + 2] = struct.pack(">H", port)
            d[self.QPN:self.QPN + 3] = self.rng.randbytes(3)
            pairs = self.ADDRESSES
        else:
            d[self.REMOTE:self.REMOTE + 4] = struct.pack(">I", remote)
            pairs = self.ADDRESSES[:1]
        for ours, theirs in pairs:
            (d[ours:ours + 4], d[theirs:theirs + 4]) = (
                socket.inet_aton(source), socket.inet_aton(OURS))
        return d

    def send(self, datagram):
        d = datagram
        d[2:4] = struct.pack(">H", len(d) + 4)
        d[24:26] = struct.pack(">H", len(d) + 4 - 20)
        d[10:12] = bytes(2)
        d[10:12] = struct.pack(">H", checksum(bytes(d[:20])))
        self.frames.send(bytes(d) + icrc(bytes(d)))

    def number(self):
        self.next += 1
        return self.next & 0xFFFFFFFF

    def run(self):
        ways = [self.converse, self.converse, self.flood, self.changed, self.noise, self.again]
        while self.course.pause(self.rng.uniform(0.1, 0.6)):
            self.rng.choice(ways)()

    def hear(self, local, kinds, patience=1.0):
        """Waits for the next message to us of one of these kinds: (kind, its sender's number, the
        queue pair of a REP)."""
        until = time.monotonic() + patience
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                # The socket delivers the datagram without IPv4 and UDP headers.
                d = self.socket.recv(2048)
            except TimeoutError:
                return None
            at = self.LOCAL - 28
            if len(d) < at + 232:
                continue
            kind = struct.unpack_from(">H", d, self.ATTRIBUTE - 28)[0]
            sender, receiver = struct.unpack_from(">II", d, at)
            if kind in kinds and receiver == local:
                return kind, sender, d[self.REP_QPN - 28:self.REP_QPN - 25]
        return None

    def converse(self):
        """Makes a connection to the service or through the gateway; it may break off anywhere."""
        local, port = self.number(), self.rng.choice((CMTIME, CMTIME, TO_IWARP))
        self.send(self.message(self.REQ, local, port=port))
        if self.rng.random() < 0.1:
            return
        answer = self.hear(local, (self.REP, self.REJ), 3.0)
        if answer is None or answer[0] == self.REJ:
            self.course.count("InfiniBand connections refused or not answered")
            return
        _, remote, qpn = answer
        what = self.rng.random()
        if what < 0.1:
            # The appliance repeats its REP again and again, and then gives up.
            return
        self.send(self.message(self.RTU, local, remote))
        self.course.count("InfiniBand connections")
        if what < 0.2:
            # The peer vanishes, which the appliance has to find out.
            return
        self.course.pause(self.rng.uniform(0, 0.3))
        for _ in range(20):
            dreq = self.message(self.DREQ, local, remote)
            dreq[self.DREQ_QPN:self.DREQ_QPN + 3] = qpn
            self.send(dreq)
            if self.hear(local, (self.DREP, self.DREQ), 0.5):
                self.course.count("InfiniBand connections ended in order")
                return

    def flood(self):
        """Sends requests of many absent peers, and of one present peer that continues."""
        one = self.rng.random() < 0.5
        for _ in range(self.rng.randrange(20, 300)):
            source = STRANGER if one else self.frames.nobody()
            port = self.rng.choice((CMTIME, TO_IWARP, self.rng.randrange(65536)))
            self.send(self.message(self.REQ, self.number(), source=source, port=port))

    def changed(self):
        """Sends messages with some bytes changed, or cut short, or longer."""
        for _ in range(50):
            kind = self.rng.choice((*self.messages, self.REQ, self.rng.randrange(0x20)))
            d = self.message(kind, self.number(), self.rng.randrange(1 << 32),
                             port=self.rng.choice((CMTIME, TO_IWARP)))
            for _ in range(self.rng.randrange(1, 5)):
                d[self.rng.randrange(28, len(d))] = self.rng.randrange(256)
            if self.rng.random() < 0.2:
                del d[self.rng.randrange(28, len(d)):]
            elif self.rng.random() < 0.1:
                d += self.rng.randbytes(self.rng.randrange(1, 600))
            self.send(d)

    def noise(self):
        """Sends messages for absent connections."""
        for _ in range(50):
            kind = self.rng.choice((0x01, 0x11, 0x12, self.REP, self.RTU, self.DREQ, self.DREP,
                                    0x17, 0x18, 0x19, 0x1A))
            self.send(self.message(kind, self.rng.randrange(1 << 32), self.rng.randrange(1 << 32)))

    def again(self):
        """Sends one request many times, as if its answer were lost each time."""
        local, transaction = self.number(), self.rng.randrange(1, 1 << 64)
        for _ in range(20):
            self.send(self.message(self.REQ, local, seed=transaction))
            self.course.pause(0.01)
