"""Tests the rule by which scripts/soak decides that something has grown, and its reading of
metrics: each possible answer occurs.

  python3 scripts/tests/test_soak.py
"""
import json
import pathlib
import random
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from appliance import flat, hostile, report, tenants  # noqa: E402
from appliance.control import samples  # noqa: E402
from appliance.course import Course  # noqa: E402


class Grown(unittest.TestCase):
    def test_what_stays_is_flat(self):
        self.assertEqual(flat.grown([7] * 100), 0)

    def test_what_grows_all_the_time_has_grown(self):
        # The growth is 80 between the second and the last tenth, of which one tenth lies within
        # them.
        self.assertEqual(flat.grown(range(100)), 90 - 19)
        self.assertEqual(flat.grown(range(100), allowed=71), 0)
        self.assertEqual(flat.grown(range(100), allowed=70), 1)

    def test_what_comes_and_goes_is_flat_however_high(self):
        rng = random.Random(1)
        self.assertEqual(flat.grown([rng.choice((0, 0, 50, 100)) for _ in range(1000)]), 0)

    def test_a_slow_leak_below_what_comes_and_goes_is_found_once_it_is_more_than_that(self):
        rng = random.Random(1)
        leaking = [rng.choice((0, 50, 100)) + n // 4 for n in range(1000)]
        self.assertGreater(flat.grown(leaking), 0)

    def test_what_is_made_at_first_use_is_not_growth(self):
        self.assertEqual(flat.grown([0] * 5 + [1000] * 95), 0)

    def test_what_is_made_later_and_stays_is(self):
        self.assertEqual(flat.grown([0] * 50 + [1000] * 50), 1000)

    def test_what_falls_is_flat(self):
        self.assertEqual(flat.grown(range(100, 0, -1)), 0)

    def test_too_few_samples_say_nothing(self):
        self.assertIsNone(flat.grown(range(9)))
        self.assertEqual(flat.grown([1] * 10), 0)


class Changed(unittest.TestCase):
    def test_every_difference_is_told_also_of_what_is_only_on_one_side(self):
        before, after = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "d": 4}
        self.assertEqual(flat.changed(before, after), [("b", 2, 3), ("c", 3, None), ("d", None, 4)])
        self.assertEqual(flat.changed(before, after, ignore=("b", "c", "d")), [])


class Metrics(unittest.TestCase):
    def test_samples_are_added_up_over_labels(self):
        text = '# HELP x what\n# TYPE x counter\nx{a="1",b="2"} 3\nx{a="2"} 4.5\ny 1e3\n'
        self.assertEqual(samples(text), {"x": 7.5, "y": 1000.0})

    def test_what_is_no_sample_is_an_error(self):
        self.assertRaises(AssertionError, samples, "x {} y z\n")


class Side:
    """An appliance that always shows the same."""

    def __init__(self, clients=(), listeners=(), conns=()):
        self.shown = {"status": {"clients": clients, "listeners": listeners},
                      "conns": {"conns": conns}}

    def ask(self, op):
        return self.shown[op]

    def control(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Tenants(unittest.TestCase):
    def tenants(self, side):
        made = tenants.Tenants.__new__(tenants.Tenants)
        made.course, made.side, made.most, made.waits = Course(), side, None, 0
        made.command = lambda *args: args
        return made

    def gone(self, **shown):
        side = Side(**shown)
        made = self.tenants(side)
        with unittest.mock.patch.object(tenants, "GONE", 0.02):
            made.wait_gone(side, "it")
        return made.course.faults

    def test_what_a_tenant_leaves_behind_is_a_fault(self):
        self.assertEqual(self.gone(), [])
        self.assertEqual(self.gone(clients=[{"uid": 0}], listeners=[{"service": "sink"}],
                                   conns=[{"service": "rping"}]), [])
        tenant = {"uid": tenants.USER, "rate_waits": 1}
        self.assertIn("there is still", self.gone(clients=[tenant])[0])
        self.assertIn("there is still", self.gone(listeners=[{"service": "hostile#7"}])[0])
        self.assertIn("there is still", self.gone(conns=[{"service": "hostile#7"}])[0])

    def test_less_for_a_tenant_than_at_the_start_is_a_fault(self):
        made = self.tenants(Side())
        for most, faults in (({"queue pairs": 96}, 0), ({"queue pairs": 96}, 0),
                             ({"queue pairs": 95}, 1)):
            done = unittest.mock.Mock(returncode=0, stdout=json.dumps(most))
            with unittest.mock.patch.object(tenants.subprocess, "run", return_value=done):
                made.measure()
            self.assertEqual(len(made.course.faults), faults)

    def test_a_tenant_that_finds_a_promise_broken_is_a_fault(self):
        made = self.tenants(Side())
        done = unittest.mock.Mock(returncode=1, stderr="tenant: windows have no bound\n")
        with unittest.mock.patch.object(tenants.subprocess, "run", return_value=done):
            made.measure()
        self.assertIn("windows have no bound", made.course.faults[0])


class Report(unittest.TestCase):
    def test_pauses_are_those_of_clients(self):
        self.assertEqual(report.pauses({"messages": 3}).split(), ["-", "-"])
        self.assertEqual(report.pauses({"pauses": 2, "longest_us": 126_400}).split(),
                         ["2", "126", "ms"])


class Hostile(unittest.TestCase):
    """Checks that the valid parts of hostile frames are valid, so that the frames reach the code
    that they aim at."""

    def test_crc32c_of_what_rfc_3720_gives(self):
        # The values come from appendix B.4.
        self.assertEqual(hostile.crc32c(bytes(32)), 0x8A9136AA)
        self.assertEqual(hostile.crc32c(b"\xff" * 32), 0x62A8AB43)
        self.assertEqual(hostile.crc32c(bytes(range(32))), 0x46DD794E)

    def test_checksums_add_up(self):
        packet = hostile.tcp("10.0.0.1", "10.0.0.2", (1, 2), 3, 4, 2, b"odd")
        self.assertEqual(hostile.checksum(packet[:20]), 0)
        pseudo = packet[12:20] + b"\0\6" + (len(packet) - 20).to_bytes(2, "big")
        self.assertEqual(hostile.checksum(pseudo + packet[20:]), 0)

    def test_fpdu_is_padded_and_its_crc_is_right_or_wrong_as_asked(self):
        good, bad = hostile.fpdu(b"12345"), hostile.fpdu(b"12345", good_crc=False)
        self.assertEqual(len(good) % 4, 0)
        self.assertEqual(good[:2], b"\0\5")
        self.assertEqual(good[-4:], hostile.crc32c(good[:-4]).to_bytes(4, "little"))
        self.assertNotEqual(good, bad)
        self.assertEqual(good[:-4], bad[:-4])


if __name__ == "__main__":
    unittest.main()
