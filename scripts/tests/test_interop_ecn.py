"""Tests how scripts/interop-ecn reads captures, and that its checks can fail.

  python3 scripts/tests/test_interop_ecn.py
"""
import dataclasses
import pathlib
import struct
import sys
import tempfile
import unittest
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from impaired import accurate, ecn_cases  # noqa: E402
from impaired.accurate import End, Found  # noqa: E402
from peers.contenders import Failed  # noqa: E402

TS = b"\x01\x01\x08\x0a" + bytes(8)


def segment(source, codepoint, flags, options=b"", payload=0):
    """Returns a frame with an IPv4 packet."""
    tcp = bytes(12) + struct.pack(">HHHH", (5 + len(options) // 4) << 12 | flags, 0, 0, 0) + options
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, codepoint, 20 + len(tcp) + payload, 0, 0, 64, 6, 0,
                     bytes(map(int, source.split("."))), bytes(4))
    return bytes(12) + b"\x08\x00" + ip + tcp + bytes(payload)


def ends(*frames):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.pcap"
        records = b"".join(struct.pack("<IIII", 0, 0, len(f), len(f)) + f for f in frames)
        path.write_bytes(bytes(24) + records)
        return accurate.ends(path)


class Captures(unittest.TestCase):
    def test_frames_are_of_the_end_that_sent_them(self):
        ours, theirs = ends(
            segment(accurate.HEDDLE, 0, 0x1c2),
            segment(accurate.GUEST, 0, 0x092, b"\xae\x0b" + bytes(9) + b"\x01"),
            segment(accurate.HEDDLE, 0, 0x090, TS),
            segment(accurate.HEDDLE, 2, 0x158, TS + b"\x01\x01\x01\xac\x05\x00\x00\x07", 100),
            bytes(60))
        self.assertEqual(ours.syns, [(7, [])])
        self.assertEqual(theirs.syns, [(2, [(174, 11)])])
        self.assertEqual(ours.first_ack, 2)
        self.assertEqual(ours.data, Counter({2: 1}))
        self.assertEqual(ours.data_options, Counter({(172, 5): 1}))
        self.assertEqual(ours.bare_options, Counter())


SYN, SYN_ACK = (7, []), (2, [(174, 11)])


def found(way="send", **linux):
    """Returns what comes of a transfer in which 20 frames of the sender were marked."""
    options, data = Counter({(172, 8): 9}), Counter({2: 100})
    report = {"ecn_mode": 2, "accecn_fail_mode": 0, "accecn_opt_seen": 2, "received_ce": 20,
              "delivered_ce": 0, "received_ce_bytes": 20_000, "delivered_ce_bytes": 0}
    heddle = {"ecn_mangled": 0, "ce_segments": 0, "ce_reported": 20}
    ours = End([SYN], 2, data, Counter(), Counter(), options)
    theirs = End([SYN_ACK], 2, data, Counter(), Counter(), options)
    if way == "receive":
        report |= {"received_ce": 0, "delivered_ce": 20, "delivered_ce_bytes": 20_000}
        heddle |= {"ce_segments": 20, "ce_reported": 0}
        ours.syns, theirs.syns = [SYN_ACK], [SYN]
    return Found(way, heddle, report | linux, {"marked": 20}, {"marked": 0}, ours, theirs)


class Checks(unittest.TestCase):
    def test_equal_counts_pass(self):
        for way in ("send", "receive"):
            ecn_cases.marked(found(way))

    def test_eights_too_many_and_two_unreported_are_linux(self):
        for reported in (28, 36, 19, 18, 26):
            ecn_cases.marked(found("receive", delivered_ce=reported))

    def test_mark_on_the_reset_at_the_end_is_counted_by_nobody(self):
        for resets, marks, counts in ((0, 20, True), (0, 19, False), (1, 20, True), (1, 19, True),
                                      (1, 18, False), (1, 21, False)):
            one = found("receive", delivered_ce=marks)
            one.heddle["ce_segments"], one.theirs.resets = marks, resets
            if counts:
                ecn_cases.marked(one)
            else:
                with self.assertRaises(Failed, msg=(resets, marks)):
                    ecn_cases.marked(one)

    def test_other_counts_fail(self):
        for reported in (12, 17, 21, 25):
            with self.assertRaises(Failed):
                ecn_cases.marked(found("receive", delivered_ce=reported))
        for wrong in ({"received_ce": 19}, {"delivered_ce": 1}, {"ecn_mode": 1},
                      {"accecn_fail_mode": 2}, {"accecn_opt_seen": 1}, {"received_ce_bytes": 0}):
            with self.assertRaises(Failed, msg=wrong):
                ecn_cases.marked(found(**wrong))
        unknown = found()
        unknown.heddle["ce_reported"] = 28
        with self.assertRaises(Failed):
            ecn_cases.marked(unknown)

    def test_data_without_ect_and_options_that_are_too_long_fail(self):
        for change in ({"data": Counter({0: 100})}, {"bare_options": Counter({(172, 12): 1})},
                       {"bare_options": Counter()}, {"first_ack": 5}, {"syns": [(3, [])]}):
            wrong = found()
            wrong.ours = dataclasses.replace(wrong.ours, **change)
            with self.assertRaises(Failed, msg=change):
                ecn_cases.marked(wrong)

    def test_names_of_captures_differ(self):
        names = [(case.file(), way) for case in ecn_cases.CASES for way in case.ways]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
