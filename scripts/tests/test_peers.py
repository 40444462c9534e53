"""Tests how scripts/bench --peers reads programs and counts processor time, and its tables.

  python3 scripts/tests/test_peers.py
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from peers import figures, guest, usage  # noqa: E402
from peers.contenders import (Failed, Heddle, Kernel, Program, Programs, Smoltcp,  # noqa: E402
                              contenders)
from peers.report import Run, Test, chosen, page, shown, table, turns  # noqa: E402
from peers.usage import Meter, Sample, Used, between, cost, softirqs_apart, window  # noqa: E402

REFERENCE = figures.REFERENCE


def of(what, size=8, conns=1):
    return Test(what, size, conns, REFERENCE)


class Arguments(unittest.TestCase):
    def refused(self, *given):
        with contextlib.redirect_stderr(io.StringIO()) as err, self.assertRaises(SystemExit) as end:
            figures.arguments(given)
        self.assertEqual(end.exception.code, 2)
        return err.getvalue().splitlines()[-1]

    def test_numbers_out_of_range_are_refused_in_one_short_line(self):
        for given in ["0", "601", "-1", "1.5", "x", "", "1" * 5000, "²"]:
            line = self.refused(f"--seconds={given}")
            self.assertTrue(line.endswith("is no whole number from 1 to 600"), line)
        self.assertIn("from 1 to 1000", self.refused("--rounds", "0"))

    def test_options_without_effect_are_refused(self):
        self.assertIn("--guest", self.refused("--processors", "1"))
        self.assertIn("--full", self.refused("--guest", "--full"))
        self.assertEqual(figures.arguments(["--guest"]).processors, 2)
        self.assertEqual(figures.arguments(["--guest", "--processors", "1"]).processors, 1)

    def test_numbers_in_range_are_taken(self):
        for given in (1, 600):
            self.assertEqual(figures.arguments([f"--seconds={given}"]).seconds, given)


class Time(unittest.TestCase):
    def test_window_lies_in_the_run_whatever_came_before(self):
        # The client starts at 0, measures from 3.8 to 4.8 and ends at 5.
        samples = [Sample(n / 20) for n in range(100)]
        first, last = window(samples, 5.0, 1)
        self.assertTrue(3.8 <= first.at < last.at <= 4.8, (first.at, last.at))
        self.assertGreater(last.at - first.at, 0.5)

    def test_there_is_no_window_without_two_samples(self):
        self.assertIsNone(window([Sample(0.5)], 1.0, 1))
        self.assertIsNone(window([Sample(9.0), Sample(9.1)], 1.0, 1))

    def test_processors_are_those_of_old_and_new_processes(self):
        a = Sample(10.0, {1: 5.0, 2: 7.0}, 1.0, 50.0)
        b = Sample(12.0, {1: 6.0, 3: 0.5}, 1.5, 53.0)
        self.assertEqual(between(a, b), Used(0.75, 0.25, 1.5))

    def test_cost_leaves_out_what_the_machine_takes_without_the_contender(self):
        used = Used(1.0, 0.5, 1.8)
        self.assertEqual(cost(used, Used(0, 0.125, 0.125), 2), (1.375, 1.675))
        self.assertEqual(cost(used, Used(0, 0.75, 0.125), 2)[0], 1.0)

    def test_machine_is_unknown_where_others_work(self):
        used = Used(1.0, 0, 1.8)
        self.assertIsNotNone(cost(used, Used(0, 0, 0.19), 2)[1])
        self.assertIsNone(cost(used, Used(0, 0, 0.2), 2)[1])

    def test_softirqs_are_apart_where_the_kernel_says_so(self):
        self.assertTrue(softirqs_apart("A=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\n"))
        self.assertFalse(softirqs_apart("# CONFIG_IRQ_TIME_ACCOUNTING is not set\n"))
        self.assertFalse(softirqs_apart("CONFIG_HAVE_IRQ_TIME_ACCOUNTING=y\n"))
        self.assertIsNone(softirqs_apart(None))

    def test_meter_counts_a_process_that_works_and_its_children(self):
        code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
        meter = Meter(apart=False)
        child = subprocess.Popen(["sh", "-c", f'"{sys.executable}" -c "{code}"; sleep 60'])
        try:
            before, limit, used = meter.sample([child.pid]), time.monotonic() + 60, 0
            while used < 0.25 and time.monotonic() < limit:
                time.sleep(0.05)
                after = meter.sample([child.pid])
                used = between(before, after).processes * (after.at - before.at)
            self.assertTrue(0.25 <= used < 10, used)
            self.assertGreaterEqual(len(after.processes), 2)
        finally:
            for pid in usage.tree([child.pid]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            child.wait()

    def test_softirqs_count_beside_processes_only_where_they_are_apart(self):
        together, apart = Meter(apart=False).sample(), Meter(apart=True).sample()
        self.assertGreaterEqual(apart.kernel, together.kernel)
        self.assertGreater(apart.kernel, 0)


class Figures(unittest.TestCase):
    def test_kernel_is_read_from_iperf3_and_qperf(self):
        kernel = Kernel("", 1500)
        text = json.dumps({"end": {"sum_received": {"bits_per_second": 4e9}}})
        self.assertEqual(kernel.result([text, text], of("throughput", 65536, 256)), 8)
        self.assertEqual(kernel.result([text], of("rate")), 62.5)
        self.assertAlmostEqual(kernel.result(["tcp_lat:\n    latency  =  12.5 us\n"],
                                             of("round trip")), 25)
        self.assertAlmostEqual(kernel.result(["latency = 2 ms"], of("round trip")), 4000)
        with self.assertRaises(Failed):
            kernel.result(["no server"], of("round trip"))

    def test_heddle_is_read_from_its_report(self):
        run = {"seconds": 2, "ops": 500_000, "gbit_per_s": 9.5, "mops_per_s": 0.25}
        text, heddle = json.dumps({"results": [{"runs": [run]}]}), Heddle("", "", "ring", 1)
        for what, figure in [("throughput", 9.5), ("rate", 0.25), ("round trip", 4)]:
            self.assertEqual(heddle.result([text], of(what)), figure)

    def test_run_without_a_round_trip_has_failed(self):
        test, bench = of("round trip"), {"seconds": 1, "ops": 0}
        text = json.dumps({"results": [{"runs": [bench]}]})
        row = " #bytes #iterations t_avg[usec] tps average\n 8 0 0.00 0.00\n"
        for result in (lambda: Heddle("", "", "ring", 1).result([text], test),
                       lambda: guest.Bench("", "ring", 1).result(text, test),
                       lambda: guest.Perftest("", "siw").result(row, test),
                       lambda: Smoltcp("", "", 1500).result(['{"mean_us": null}'], test)):
            with self.assertRaisesRegex(Failed, "no round trip"):
                result()

    def test_processors_are_those_that_programs_report_of_themselves(self):
        used = {"host_total": 90, "remote_total": 60}
        text, kernel = json.dumps({"end": {"cpu_utilization_percent": used}}), Kernel("", 1500)
        self.assertEqual(kernel.own([text, text], of("throughput")), 3)
        self.assertIsNone(kernel.own([text], of("round trip")))
        run = {"processor": {"user_seconds": 1.5, "system_seconds": 0.7}, "seconds": 1,
               "warmup_seconds": 0.1}
        text = json.dumps({"results": [{"runs": [run]}]})
        self.assertAlmostEqual(Heddle("", "", "ring", 2).own([text], of("rate")), 2)
        self.assertAlmostEqual(Heddle("", "", "veth", 1).own([text], of("rate")), 2)
        self.assertIsNone(Heddle("", "", "veth", 2).own([text], of("rate")))

    def test_smoltcp_is_read_from_its_line(self):
        smoltcp = Smoltcp("", "", 1500)
        self.assertEqual(smoltcp.result(['{"gbit_per_s": 8}'], of("rate")), 125)
        self.assertEqual(smoltcp.result(['{"gbit_per_s": 8}'], of("throughput")), 8)
        self.assertEqual(smoltcp.result(['{"mean_us": 3}'], of("round trip")), 3)
        self.assertFalse(smoltcp.takes("throughput", 16))

    def test_many_connections_are_spread_over_programs(self):
        started = []

        class Started(Programs):
            def start(self, _namespace, *command):
                started.append(command)

        class Net:
            names = ("a", "b")

        Kernel("", 1500).start(Started(), Net(), of("throughput", 4096, 300), 1)
        clients = [c for c in started if "-c" in c]
        self.assertEqual([c[c.index("-P") + 1] for c in clients], ["128", "128", "44"])
        self.assertEqual(len(started), 6)

    def test_perftest_is_read_by_its_columns(self):
        siw = guest.Perftest("siw", "siw")
        text = (" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
                " 65536      1500             0.00               3.25              0.006190\n")
        self.assertEqual(siw.result(text, of("throughput")), 3.25)
        self.assertEqual(siw.result(text, of("rate")), 0.00619)
        text = (" #bytes        #iterations       t_avg[usec]    tps average\n"
                " 8             9000            100.5          4975.1\n")
        self.assertEqual(siw.result(text, of("round trip")), 201)
        with self.assertRaises(Failed):
            siw.result("Couldn't connect", of("rate"))

    def test_failed_program_says_why_and_long_output_blocks_nothing(self):
        programs = Programs()
        try:
            bad = programs.start(None, "sh", "-c", "echo wrong >&2; exit 3")
            good = programs.start(None, "sh", "-c", "seq 100000")
            limit = time.monotonic() + 60
            while (bad.runs() or good.runs()) and time.monotonic() < limit:
                time.sleep(0.01)
            with self.assertRaisesRegex(Failed, "wrong"):
                bad.text()
            self.assertEqual(len(good.text().splitlines()), 100_000)
        finally:
            programs.end()

    def test_word_of_a_program_is_awaited(self):
        programs = Programs()
        try:
            programs.start(None, "sh", "-c", "sleep 0.1; echo it is listening; sleep 60").wait_for(
                "listening", 60)
            ended = programs.start(None, "sh", "-c", "echo no device >&2; exit 1")
            with self.assertRaisesRegex(Failed, "no device"):
                ended.wait_for("listening", 60)
            with self.assertRaises(Failed):
                programs.start(None, "sleep", "60").wait_for("listening", 0.1)
        finally:
            programs.end()

    def test_program_that_still_runs_is_ended(self):
        program = Program(["sleep", "1000"])
        program.end()
        self.assertFalse(program.runs())


class Tables(unittest.TestCase):
    def test_ratios_are_of_one_round(self):
        test = of("throughput", 65536)
        for number, (ours, theirs) in enumerate([(10, 1), (20, 10), (30, 3)]):
            test.add("Heddle", number, Run(ours, 2.0), 2)
            test.add(REFERENCE, number, Run(theirs, 1.0))
        line, reference = test.summary()
        self.assertEqual((line.figure, line.least, line.most), (20, 10, 30))
        self.assertEqual((line.ratio, line.efficiency, line.efficiency_ratio), (10, 10, 5))
        self.assertEqual((reference.ratio, reference.efficiency_ratio), (1, 1))
        self.assertEqual((line.spin, reference.spin), (2, None))

    def test_shorter_round_trip_is_ahead(self):
        test = of("round trip")
        test.add("Heddle", 0, Run(3.0, 2.0))
        test.add(REFERENCE, 0, Run(30.0, 1.0))
        line = test.summary()[0]
        self.assertEqual(line.ratio, 10)
        # 333,333 round trips a second on two processors, beside 33,333 on one.
        self.assertAlmostEqual(line.efficiency, 500 / 3)
        self.assertAlmostEqual(line.efficiency_ratio, 5)

    def test_missing_runs_and_reference_leave_gaps(self):
        test = of("throughput")
        test.add("Heddle", 0, Run(3.0))
        test.add("Heddle", 1, Run(5.0, 1.0, 1.0))
        test.add(REFERENCE, 2, Run(1.0, 1.0))
        line = test.summary()[0]
        self.assertEqual((line.figure, line.ratio, line.efficiency_ratio), (4, None, None))
        self.assertIn(" - ", table(test))

    def test_report_escapes_and_fetches_nothing(self):
        test = of("rate")
        test.add("<b>", 0, Run(1.0, 1.0))
        text = page([test], "--only '<x>'", 3, "notes & more")
        self.assertNotIn("<b>", text)
        self.assertNotIn("<x>", text)
        self.assertIn("notes &amp; more", text)
        self.assertNotIn("http", text)

    def test_numbers_have_three_digits(self):
        self.assertEqual([shown(v) for v in (None, 2, 0.0123456, 2.345, 123.45, 12345.6)],
                         ["-", "2", "0.0123", "2.35", "123.5", "12346"])

    def test_every_other_round_runs_backwards_and_the_reference_always_runs(self):
        self.assertEqual(turns([1, 2, 3], 0) + turns([1, 2, 3], 1), [1, 2, 3, 3, 2, 1])
        names = [c.name for c in chosen(contenders("", ""), ["ring, t", "smoltcp"], REFERENCE)]
        self.assertEqual(names, ["Heddle, ring, two", "smoltcp, memory, one processor", REFERENCE])
        self.assertEqual(len(chosen(contenders("", ""), [], REFERENCE)), len(contenders("", "")))

    def test_plans_have_each_test_once(self):
        for tests in (figures.plan(False), figures.plan(True), guest.plan()):
            titles = [test.title() for test in tests]
            self.assertEqual(len(titles), len(set(titles)), titles)
            self.assertEqual({test.what for test in tests}, {"throughput", "rate", "round trip"})


class Guest(unittest.TestCase):
    def test_run_is_read_from_the_files_of_the_guest(self):
        with tempfile.TemporaryDirectory() as folder:
            share, siw = pathlib.Path(folder), guest.Perftest("siw", "siw")

            def read():
                return guest.read(share, "r", siw, of("throughput", 65536), 1, 2)

            with self.assertRaisesRegex(Failed, "has not come"):
                read()
            (share / "r.out").write_text(" 65536 1500 0.00 3.25 0.006\n")
            (share / "r.err").write_text("")
            (share / "r.idle").write_text("10.00 500\n11.00 510\n")
            lines = [f"{20 + n / 10:.2f} {600 + 15 * n}" for n in range(40)]
            (share / "r.samples").write_text("\n".join(lines))
            run = read()
            self.assertEqual(run.figure, 3.25)
            self.assertAlmostEqual(run.processors, 1.4, places=2)
            (share / "r.samples").write_text("")
            self.assertEqual(read(), Run(3.25))
            (share / "r.failed").write_text("status 1")
            (share / "r.err").write_text("no device")
            with self.assertRaisesRegex(Failed, "no device"):
                read()

    def test_script_calls_functions_that_it_has(self):
        test, all_of = of("rate"), guest.contenders(2)
        text = guest.script([(f"r{n}", c, test, 0) for n, c in enumerate(all_of)], 2)
        checked = subprocess.run(["sh", "-n"], input=text, text=True, check=False)
        self.assertEqual(checked.returncode, 0)
        for name in ("perftest", "heddle_bench"):
            self.assertIn(f"\n{name}() {{", text)
            self.assertIn(f"\n{name} r", text)
        self.assertLess(len(guest.contenders(1)), len(all_of))


if __name__ == "__main__":
    unittest.main()
