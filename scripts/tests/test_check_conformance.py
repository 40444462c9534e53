"""Tests the faults that scripts/check-conformance finds: each kind of check fails on a bad ledger,
and the good ledger beside it passes.

  python3 scripts/tests/test_check_conformance.py
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "check-conformance"

IDS = "RFC9999-1-1\nRFC9999-2.1-1\nRFC9999-2.1-2\nRFC9999-3-1\n"
GOOD = """\
title = "An example"
data_path = ["2"]

[[requirement]]
id = "RFC9999-1-1"
says = "A tool may print it."
tests = ["p::tool::test_print"]

[[requirement]]
id = "RFC9999-2.1-1"
says = "It is received."
tests = ["p::tool::test_print", "p::path::test_receive"]

[[requirement]]
id = "RFC9999-2.1-2"
says = "There is a second port."
not_applicable = "There is one."

[[requirement]]
id = "RFC9999-3-1"
says = "It never ends."
open = "it ends"
"""
EVIDENCE = 'data_path = ["p::path::"]\n'
TESTS = "p::tool::test_print\np::path::test_receive\np::path::test_slow ignored\n"
# An entry of another document, which has no list.
UNLISTED = '[[requirement]]\nid = "RFC8888-1-1"\nsays = "x"\ntests = ["p::tool::test_print"]\n'


class Repository:
    """A repository that holds only ledgers, at first good ones."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.put("docs/conformance/ids/rfc9999.txt", IDS)
        self.put("docs/conformance/rfc9999.toml", GOOD)
        self.put("docs/conformance/evidence.toml", EVIDENCE)
        self.put("tests.txt", TESTS)
        self.check("--write")

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, *flags):
        run = [sys.executable, SCRIPT, "--root", self.root, "--tests", self.root / "tests.txt",
               *flags]
        return subprocess.run(run, capture_output=True, text=True)

    def page(self):
        return (self.root / "docs/conformance.md").read_text()


class CheckConformance(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repo = Repository(folder.name)

    def good(self, *flags):
        done = self.repo.check(*flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def bad(self, *wrong, flags=("--write",)):
        """Expects exactly these complaints. --write, so that the page is not a further
        complaint."""
        done = self.repo.check(*flags)
        said = [l.removeprefix("check-conformance: ") for l in done.stderr.splitlines()]
        self.assertEqual((said, done.returncode), (list(wrong), 1))

    def ledger(self, old, new, count=1):
        """Returns the good ledger with one change."""
        self.assertIn(old, GOOD)
        self.repo.put("docs/conformance/rfc9999.toml", GOOD.replace(old, new, count))

    def test_good_ledger_passes_and_is_counted(self):
        out = self.good()
        self.assertIn("RFC9999: 2 tested, 0 departed from, 1 not applicable, 1 open\n", out)
        self.assertIn("open: RFC9999-3-1: it ends\n", out)
        self.assertIn("conformance: 4 sentences, 1 open\n", out)

    def test_page_has_counts_and_what_is_open(self):
        self.assertIn("| RFC 9999, An example | 4 | 2 | 0 | 1 | 1 |\n", self.repo.page())
        self.assertIn("## Open\n\n- `RFC9999-3-1`: it ends\n", self.repo.page())
        self.assertIn("## Departed from\n\nNone.\n", self.repo.page())

    def test_page_has_a_reason_once(self):
        self.ledger('not_applicable = "There is one."', 'open = "it ends"')
        self.good("--write")
        self.assertIn("\n- `RFC9999-2.1-2`, `RFC9999-3-1`: it ends\n", self.repo.page())

    def test_stale_page(self):
        stale = "docs/conformance.md is stale: run scripts/check-conformance --write"
        self.ledger('open = "it ends"', 'open = "it ends sometimes"')
        self.bad(stale, flags=())
        self.good("--write")
        self.good()
        (self.repo.root / "docs/conformance.md").unlink()
        self.bad(stale, flags=())

    def test_id_in_no_ledger(self):
        self.repo.put("docs/conformance/ids/rfc9999.txt", IDS + "RFC9999-3-2\n")
        self.bad("RFC9999-3-2: is in no ledger")

    def test_id_in_no_list(self):
        self.repo.put("docs/conformance/ids/rfc9999.txt", IDS.replace("RFC9999-1-1\n", ""))
        self.bad("rfc9999.toml: RFC9999-1-1: is not in the list of ids")

    def test_document_without_a_list(self):
        self.repo.put("docs/conformance/rfc8888.toml", UNLISTED)
        self.bad("ids/rfc8888.txt: there is no list of the ids of RFC8888")
        self.repo.put("docs/conformance/ids/rfc8888.txt", "RFC8888-1-1\n")
        self.good("--write")
        self.assertIn("| RFC 8888 | 1 | 1 | 0 | 0 | 0 |\n", self.repo.page())

    def test_list_with_a_strange_or_repeated_line(self):
        self.repo.put("docs/conformance/ids/rfc9999.txt", "# comment\n" + IDS + "RFC9999-1-1\n")
        self.bad("ids/rfc9999.txt: RFC9999-1-1 twice")
        self.repo.put("docs/conformance/ids/rfc9999.txt", IDS + "RFC8888-1-1\n")
        self.bad("ids/rfc9999.txt: 'RFC8888-1-1' is not an id of RFC9999",
                 "RFC8888-1-1: is in no ledger")

    def test_test_that_does_not_exist(self):
        self.ledger("p::tool::test_print", "p::tool::test_prints")
        self.bad("rfc9999.toml: RFC9999-1-1: no test p::tool::test_prints")

    def test_test_that_is_ignored(self):
        self.ledger("p::path::test_receive", "p::path::test_slow")
        self.bad("rfc9999.toml: RFC9999-2.1-1: p::path::test_slow is ignored")

    def test_tests_beside_what_is_open_have_to_exist_too(self):
        self.ledger('open = "it ends"', 'open = "it ends"\ntests = ["p::gone"]')
        self.bad("rfc9999.toml: RFC9999-3-1: no test p::gone")

    def test_id_twice_in_a_file_and_across_files(self):
        again = '\n[[requirement]]\nid = "RFC9999-1-1"\nsays = "x"\nopen = "y"\n'
        self.repo.put("docs/conformance/rfc9999.toml", GOOD + again)
        self.bad("rfc9999.toml: RFC9999-1-1: twice (also in rfc9999.toml)")
        self.repo.put("docs/conformance/rfc9999.toml", GOOD)
        self.repo.put("docs/conformance/rfc9999-wire.toml", again)
        self.bad("rfc9999.toml: RFC9999-1-1: twice (also in rfc9999-wire.toml)")

    def test_data_path_rule_shown_by_a_tool_only(self):
        self.ledger(', "p::path::test_receive"', "")
        self.bad("rfc9999.toml: RFC9999-2.1-1: "
                 "a rule of the data path, but none of its tests runs it")

    def test_data_path_by_id_and_not_by_the_beginning_of_a_number(self):
        self.ledger('data_path = ["2"]', 'data_path = ["1-1"]')
        self.bad(
            "rfc9999.toml: RFC9999-1-1: a rule of the data path, but none of its tests runs it")
        text = GOOD.replace("RFC9999-1-1", "RFC9999-20-1")
        self.repo.put("docs/conformance/rfc9999.toml", text)
        self.repo.put("docs/conformance/ids/rfc9999.txt", IDS.replace("9-1-1", "9-20-1"))
        self.good("--write")

    def test_data_path_that_covers_nothing(self):
        self.ledger('["2"]', '["2", "4"]')
        self.bad("rfc9999.toml: data_path: '4' is no section and no id there is")

    def test_evidence_that_no_test_is_under(self):
        self.repo.put("docs/conformance/evidence.toml", 'data_path = ["p::path::", "p::road::"]')
        self.bad("evidence.toml: no test begins with p::road::")

    def test_entry_without_an_answer_or_with_two(self):
        needs = "rfc9999.toml: RFC9999-3-1: needs tests or one of not_applicable, departs, open"
        self.ledger('open = "it ends"\n', "")
        self.bad(needs)
        self.ledger('open = "it ends"\n', "tests = []\n")
        self.bad(needs)
        self.ledger('open = "it ends"\n', 'open = "x"\nnot_applicable = "y"\n')
        self.bad(needs)
        self.ledger('open = "it ends"\n', 'not_applicable = "y"\ntests = ["p::tool::test_print"]\n')
        self.bad("rfc9999.toml: RFC9999-3-1: what does not apply has no tests")

    def test_tests_that_are_no_list(self):
        self.ledger('open = "it ends"', 'open = "it ends"\ntests = "p::tool::test_print"')
        self.bad("rfc9999.toml: RFC9999-3-1: tests is not a list")

    def test_answer_that_says_nothing(self):
        for state in ("open", "departs", "not_applicable"):
            self.ledger('open = "it ends"', f'{state} = " "')
            self.bad(f"rfc9999.toml: RFC9999-3-1: {state} says nothing")

    def test_departure_may_have_tests_and_is_counted(self):
        self.ledger('open = "it ends"', 'departs = "it must"\ntests = ["p::tool::test_print"]')
        self.assertIn("1 departed from, 1 not applicable, 0 open", self.good("--write"))
        self.assertIn("## Departed from\n\n- `RFC9999-3-1`: it must\n", self.repo.page())

    def test_entry_without_id_or_paraphrase(self):
        self.ledger('says = "It never ends."\n', "")
        self.bad("rfc9999.toml: RFC9999-3-1: id or paraphrase missing",
                 "RFC9999-3-1: is in no ledger")

    def test_key_or_document_that_is_misspelt(self):
        self.ledger('open = "it ends"', 'open = "it ends"\nopens = 1')
        self.bad("rfc9999.toml: RFC9999-3-1: unknown key 'opens'")
        self.ledger("title =", "tittle =")
        self.bad("rfc9999.toml: unknown key 'tittle'")
        self.repo.put("docs/conformance/rfc9999.toml", GOOD)
        self.repo.put("docs/conformance/rfc8888.toml", UNLISTED.replace("RFC8888", "RFC8889"))
        self.bad("rfc8888.toml: RFC8889-1-1: is not an id of RFC8888",
                 "ids/rfc8888.txt: there is no list of the ids of RFC8888")

    def test_statements_of_an_annex_have_names_of_their_own(self):
        self.repo.put("docs/conformance/ids/a99.txt", "A99-CA99-1\nA99-CA99-3.1.2\nA99-oA99-1\n")
        entry = '[[requirement]]\nid = "{}"\nsays = "x"\ntests = ["p::tool::test_print"]\n'
        two = "".join(map(entry.format, ("A99-CA99-1", "A99-oA99-1")))
        self.repo.put("docs/conformance/a99.toml", two)
        self.bad("A99-CA99-3.1.2: is in no ledger")
        self.repo.put("docs/conformance/a99.toml", two + entry.format("A99-CA99-3.1.2"))
        self.repo.check("--write")
        self.good()
        page = (self.repo.root / "docs/conformance.md").read_text()
        self.assertIn("| IBTA Annex A99 | 3 | 3 | 0 | 0 | 0 |", page)

    def test_draft_without_a_number_comes_behind_the_rfcs(self):
        self.repo.put("docs/conformance/ids/rpcrdma9.txt", "RPCRDMA9-B.1-1\n")
        self.repo.put("docs/conformance/rpcrdma9.toml",
                      '[[requirement]]\nid = "RPCRDMA9-B.1-1"\nsays = "x"\n'
                      'tests = ["p::tool::test_print"]\n')
        self.repo.check("--write")
        self.good()
        *_, rfc, draft = [l for l in self.repo.page().splitlines() if l.startswith("| ")]
        self.assertTrue(rfc.startswith("| RFC 9999, "))
        self.assertEqual(draft, "| Draft of RPC-over-RDMA version 9 | 1 | 1 | 0 | 0 | 0 |")

    def test_test_named_twice_in_an_entry(self):
        self.ledger("p::path::test_receive", "p::path::test_receive\", \"p::path::test_receive")
        self.bad("rfc9999.toml: RFC9999-2.1-1: names p::path::test_receive twice")

    def test_strict_takes_what_is_open_for_wrong(self):
        self.good()
        self.bad("RFC9999-3-1: open: it ends", flags=("--strict",))

    def test_no_ledger_at_all(self):
        for path in (self.repo.root / "docs/conformance").glob("**/rfc*"):
            path.unlink()
        self.bad("no entries at all")


class ThisRepository(unittest.TestCase):
    def test_lists_hold_ids_and_no_sentences(self):
        lists = list((SCRIPT.parent.parent / "docs/conformance/ids").glob("*.txt"))
        self.assertTrue(lists)
        for path in lists:
            for line in path.read_text().splitlines():
                rfc = r"(RFC|RPCRDMA)\d+-(Appendix )?[\dA-Z.]+-\d+"
                annex = r"A\d+-o?C?A\d+-\d+(\.\d+)*"
                self.assertTrue(re.fullmatch(f"{rfc}|{annex}", line), line)


if __name__ == "__main__":
    unittest.main()
