"""Tests the networks of scripts/networks, how it reads programs, and its tables.

  python3 scripts/tests/test_networks.py
"""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from impaired import figures, hosts, quick, tables  # noqa: E402
from impaired.cells import (LEAST_OUT, LEAST_QUEUE, MOST_OUT, Cell, begins, bytes_at,  # noqa: E402
                            cells, jain, median_ratio, rate_between)
from impaired.hosts import Run, totals, ways, within  # noqa: E402
from peers.contenders import Failed  # noqa: E402


class Arguments(unittest.TestCase):
    def refused(self, *given):
        with contextlib.redirect_stderr(io.StringIO()) as err, self.assertRaises(SystemExit) as end:
            figures.arguments(given)
        self.assertEqual(end.exception.code, 2)
        return err.getvalue().splitlines()[-1]

    def test_exactly_one_task_is_asked_for(self):
        self.assertIn("required", self.refused())
        self.assertIn("not allowed with", self.refused("--quick", "--cells"))
        self.assertEqual(figures.arguments(["--floods"]).what, "floods")

    def test_ecn_is_classic_unless_accurate_is_named(self):
        asked = [figures.arguments(["--cells", *given]).ecn
                 for given in ([], ["--ecn"], ["--ecn", "accurate"])]
        self.assertEqual(asked, [None, "request", "accurate"])
        self.assertIn("invalid choice", self.refused("--cells", "--ecn", "often"))

    def test_numbers_out_of_range_are_refused(self):
        for given in ["--rate=0", "--rate=nan", "--rtt=-1", "--loss=51", "--loss=x", "--rate=1e9"]:
            self.assertIn("is no number from", self.refused("--cells", given))
        args = figures.arguments(["--cells", "--loss", "0.1", "--rtt", "50", "--rate", "500"])
        self.assertEqual((args.rate, args.rtt, args.loss), ([500], [50], [0.1]))


class Networks(unittest.TestCase):
    def test_wire_has_half_of_the_round_trip_each_way_and_loses_data_alone(self):
        wire = Cell(100, 10, 0.1).wire("mark=30K")
        self.assertEqual(wire.there,
                         "rate=100Mbit/s,queue=125000,delay=5000us,loss=0.1%,mark=30K")
        self.assertEqual(wire.back, "rate=100Mbit/s,delay=5000us")
        self.assertEqual(Cell(1000, 0.1, 0).wire().there,
                         f"rate=1000Mbit/s,queue={LEAST_QUEUE},delay=50us")

    def test_outstanding_bytes_fill_the_wire_and_end_soon(self):
        self.assertEqual(Cell(1000, 50, 0).outstanding(), MOST_OUT)
        self.assertEqual(Cell(100, 50, 0).outstanding(), 4 * 625_000)
        for cell in cells():
            self.assertTrue(LEAST_OUT <= cell.outstanding() <= MOST_OUT)
        # With 5 %, Reno has a window of 8 kB: 16 times that are fewer than the wire holds.
        self.assertEqual(Cell(1000, 50, 5).outstanding(), LEAST_OUT)

    def test_every_network_has_a_title_of_its_own(self):
        every = cells()
        self.assertEqual(len({c.title() for c in every}), len(every))
        self.assertEqual(Cell(1000, 0.1, 5).title(), "1 Gb/s, 0.1 ms, 5 %")

    def test_first_way_is_the_reference_and_the_algorithm_is_in_the_names(self):
        self.assertEqual(ways()[0].name, "Linux cubic to Linux")
        self.assertIn("Heddle dctcp to Linux", [w.name for w in ways("dctcp")])


class Figures(unittest.TestCase):
    def test_jain_is_one_for_equal_flows_and_a_share_for_a_single_one(self):
        self.assertEqual(jain([5, 5, 5]), 1)
        self.assertEqual(jain([9, 0, 0]), 1 / 3)
        self.assertEqual(jain([0, 0]), 0)

    def test_rate_lies_on_the_line_between_samples(self):
        samples = [(10.0, 0), (11.0, 1_000_000), (13.0, 2_000_000)]
        self.assertEqual(bytes_at(samples, 9), 0)
        self.assertEqual(bytes_at(samples, 12), 1_500_000)
        self.assertEqual(bytes_at(samples, 99), 2_000_000)
        self.assertEqual(rate_between(samples, 11, 13), 4)
        self.assertEqual(bytes_at([], 1), 0)

    def test_flow_begins_with_the_last_sample_without_data(self):
        self.assertEqual(begins([(1, 0), (2, 0), (3, 5), (4, 9)]), 2)
        self.assertEqual(begins([(3, 5)]), 3)
        self.assertIsNone(begins([(1, 0)]))

    def test_measured_time_begins_after_the_last_flow(self):
        samples = {"a": [(0, 0), (1, 0), (2, 10**6), (3, 2 * 10**6), (4, 3 * 10**6)],
                   "b": [(0, 0), (2, 0), (3, 10**6), (4, 10**6)]}
        self.assertEqual(within(samples, 1, 1), {"a": 8, "b": 0})
        with self.assertRaisesRegex(Failed, "1 of 2 connections"):
            within({**samples, "b": [(1, 0)]}, 1, 1)
        with self.assertRaises(Failed):
            within({}, 1, 1)

    def test_kernel_reports_acknowledged_bytes_and_retransmissions_of_all_connections(self):
        text = ("ESTAB 0 5 10.77.0.1:35518 10.77.0.2:7471\n\t cubic cwnd:698 bytes_retrans:207 "
                "bytes_acked:1000 bytes_received:44 retrans:0/12 notsent:4\n"
                "ESTAB 0 5 10.77.0.1:35519 10.77.0.2:7471\n\t cubic bytes_acked:24 retrans:1/3\n"
                "ESTAB 0 5 10.77.0.1:35520 10.77.0.2:7471\n\t cubic cwnd:10\n")
        self.assertEqual(totals(text), (1024, 15))

    def test_ratios_are_of_one_round(self):
        self.assertEqual(median_ratio({1: 10, 2: 30}, {1: 5, 2: 10, 3: 1}), 2.5)
        self.assertIsNone(median_ratio({1: 10}, {2: 5}))
        self.assertIsNone(median_ratio({1: 10}, {1: 0}))

    def test_heddle_gets_the_algorithm_only_if_one_is_named(self):
        started = []

        class Programs:
            def start(self, _namespace, *command):
                started.append(command)

        class Lab:
            names, links = ("a", "b"), ("la", "lb")

        for name in (None, "cubic"):
            hosts.Hosts(Lab(), "heddle", "peer", name).bench(Programs(), "x:1", 1, 2, 1 << 20, 2)
        self.assertNotIn("--congestion", started[0])
        self.assertEqual(started[1][-2:], ("--congestion", "cubic"))
        # 1 MiB in Writes of 16 KiB, over two connections.
        self.assertEqual(started[0][started[0].index("--depth") + 1], "32")
        self.assertEqual(started[0][started[0].index("--duration") + 1], "3000ms")


class Quick(unittest.TestCase):
    def test_impairment_without_a_trace_is_a_failure(self):
        check = quick.Check("loss=1%", "lost", True)
        self.assertIn("none of lost", quick.unseen(check, self.run_of(0, 5)))
        self.assertIn("retransmitted nothing", quick.unseen(check, self.run_of(5, 0)))
        self.assertIsNone(quick.unseen(check, self.run_of(5, 5)))
        self.assertIsNone(quick.unseen(quick.Check("dup=1%", "lost", False), self.run_of(5, 0)))

    def run_of(self, lost, resent):
        return Run(1.0, resent=resent, bridge={"a_to_b": {"lost": lost}})


RUNS = {
    "cells": [
        {"key": [100, 10, 1], "way": "Linux cubic to Linux", "round": 1, "goodput": 10.0,
         "resent": 3, "timeouts": None, "late": 30.0},
        {"key": [100, 10, 1], "way": "Heddle to Linux", "round": 1, "goodput": 5.0, "resent": 7,
         "timeouts": 1, "late": 50.0},
        {"key": [100, 10, 1], "way": "Linux cubic to Linux", "round": 2, "goodput": 20.0,
         "resent": 3, "timeouts": None, "late": 30.0},
        {"key": [100, 10, 1], "way": "Heddle to Linux", "round": 2, "goodput": 20.0, "resent": 9,
         "timeouts": 0, "late": 50.0}],
    "fairness": [
        {"key": "1 Heddle, 1 Linux cubic", "round": 1, "goodput": 90.0, "queue": 0.5, "marked": 0,
         "flows": {"10.77.0.11:1": 60.0, "10.77.0.1:2": 30.0}}],
    "floods": [
        {"key": "nothing", "way": "nothing", "round": 1, "goodput": 100.0, "frames": 0,
         "served": 5.0},
        {"key": "syn", "way": "SYNs", "round": 1, "goodput": 90.0, "frames": 10_000.0,
         "served": None},
        {"key": "nothing IPv6", "way": "nothing, over IPv6", "round": 1, "goodput": 50.0,
         "frames": 0, "served": 5.0},
        {"key": "syn IPv6", "way": "SYNs, over IPv6", "round": 1, "goodput": 40.0,
         "frames": 10_000.0, "served": 7.0}],
}


class Tables(unittest.TestCase):
    def test_line_of_a_network_has_medians_ranges_and_the_ratio_within_rounds(self):
        line = tables.of_cells(RUNS)[-1]
        self.assertEqual(line, "| 100 Mb/s, 10 ms, 1 % | 15 (10 to 20) | 12.5 (5 to 20) | 0.75 | 8 "
                               "| 0.5 | 40 |")

    def test_lines_of_fairness_and_floods(self):
        self.assertEqual(tables.of_fairness(RUNS)[-1],
                         "| 1 Heddle, 1 Linux cubic | 90 | 0.9 | 0.667 | 0.5 | 0 |")
        floods = tables.of_floods(RUNS)
        self.assertIn("| SYNs | 10000 | 90 | 0.9 | - |", floods)
        self.assertEqual(floods[-1], "| SYNs, over IPv6 | 10000 | 40 | 0.8 | 7 |")

    def test_page_gets_its_tables_and_keeps_the_rest(self):
        page = "".join(f"before\n<!-- {n} -->\nold\n<!-- end of {n} -->\nafter {n}\n"
                       for n in tables.SECTIONS)
        once = tables.renewed(page, RUNS)
        self.assertNotIn("old", once)
        self.assertIn("after cells\n", once)
        self.assertIn("| Rate, RTT, loss |", once)
        self.assertEqual(tables.renewed(once, RUNS), once)
        with self.assertRaisesRegex(ValueError, "no place for cells"):
            tables.renewed("nothing", RUNS)

    def test_rounds_add_up_in_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/results.json"
            self.assertEqual(tables.next_round(tables.load(path), "cells", [100, 10, 1]), 1)
            tables.save(path, RUNS)
            self.assertEqual(tables.load(path), RUNS)
            self.assertEqual(tables.next_round(tables.load(path), "cells", [100, 10, 1]), 3)
            self.assertEqual(tables.next_round(tables.load(path), "floods", "nothing"), 2)


if __name__ == "__main__":
    unittest.main()
