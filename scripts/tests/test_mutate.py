"""Tests the answers of scripts/mutate to mutations that can no longer be made, and to those that it
makes in a small package: each possible answer occurs.

  python3 scripts/tests/test_mutate.py
"""
import fcntl
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "mutate"

MANIFEST = '[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n'
LIB = """\
pub fn limit() -> u32 {
    10
}

pub fn next(n: u32) -> u32 {
    n + 1
}

#[cfg(test)]
mod tests {
    #[test]
    fn test_next() {
        assert_eq!((0..3).map(super::next).sum::<u32>(), 6);
    }

    #[test]
    fn test_weak() {
        assert!(super::limit() > 0);
    }
}
"""
OUTER = "#[test]\nfn test_limit() {\n    assert_eq!(p::limit(), 10);\n}\n"
LEDGER = """\
[[requirement]]
id = "RFC9999-1-1"
says = "The next is one more."
tests = ["p::tests::test_next"]

[[requirement]]
id = "RFC9999-1-2"
says = "The limit is 10."
tests = ["p::tests::test_weak", "p::outer::test_limit"]

[[requirement]]
id = "RFC9999-1-3"
says = "The limit is not 0."
tests = ["p::tests::test_weak"]

[[requirement]]
id = "RFC9999-1-4"
says = "There is a colour."
not_applicable = "There is none."
"""


def mutation(id="RFC9999-1-1", find="n + 1", replace="n + 2", more=""):
    return (f'[[mutation]]\nid = "{id}"\nbreaks = "It is broken."\nfile = "src/lib.rs"\n'
            f'find = "{find}"\nreplace = "{replace}"\n{more}\n')


class Repository:
    """A package with two binaries of tests, a ledger, and the mutations that a test gives it."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.put("Cargo.toml", MANIFEST)
        self.put("src/lib.rs", LIB)
        self.put("tests/outer.rs", OUTER)
        self.put("docs/conformance/rfc9999.toml", LEDGER)
        self.put(".gitignore", "/target\n")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mutate(self, *mutations, flags=()):
        self.put("docs/conformance/mutations/rfc9999.toml", "".join(mutations))
        run = [sys.executable, SCRIPT, "--root", self.root, *flags]
        return subprocess.run(run, capture_output=True, text=True)


class Mutate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repo = Repository(folder.name)

    def bad(self, *wrong, mutations=(), flags=("--check",)):
        """Expects exactly these complaints."""
        done = self.repo.mutate(*mutations, flags=flags)
        said = [l.removeprefix("mutate: ") for l in done.stderr.splitlines()]
        self.assertEqual((said, done.returncode), (list(wrong), 1))

    def answers(self, *mutations, flags=()):
        """Returns the first lines of the answers, without the broken rule, and the exit status."""
        done = self.repo.mutate(*mutations, flags=flags)
        said = [l.partition(": It is broken.") for l in done.stdout.splitlines()]
        self.assertEqual((self.repo.root / "src/lib.rs").read_text(), LIB)
        return [head for head, sep, _ in said if sep], done.returncode, done.stdout

    # Checks that need no build.

    def test_good_mutations_are_counted_and_listed(self):
        done = self.repo.mutate(mutation(), mutation(replace="n"), flags=("--check",))
        self.assertEqual((done.returncode, done.stdout), (0, "RFC9999: 2 mutations\n"))
        done = self.repo.mutate(mutation(), flags=("--list",))
        self.assertIn("RFC9999-1-1: It is broken.\n", done.stdout)

    def test_text_that_is_there_no_more_or_twice(self):
        self.bad("rfc9999.toml: RFC9999-1-1: 0 places in src/lib.rs, not one, have: n + 3",
                 mutations=[mutation(find="n + 3")])
        self.bad("rfc9999.toml: RFC9999-1-1: 2 places in src/lib.rs, not one, have: #[test]",
                 mutations=[mutation(find="#[test]")])

    def test_nothing_is_run_when_something_is_wrong(self):
        self.bad("rfc9999.toml: RFC9999-1-1: 0 places in src/lib.rs, not one, have: n + 3",
                 mutations=[mutation(find="n + 3"), mutation()], flags=())

    def test_file_that_is_not_there(self):
        self.bad("rfc9999.toml: RFC9999-1-1: no file src/gone.rs",
                 mutations=[mutation().replace("src/lib.rs", "src/gone.rs")])

    def test_rule_that_is_in_no_ledger_or_has_no_tests(self):
        self.bad("rfc9999.toml: RFC9999-9-9: no ledger has this rule",
                 mutations=[mutation("RFC9999-9-9")])
        self.bad("rfc9999.toml: RFC9999-1-4: the ledger names no tests",
                 mutations=[mutation("RFC9999-1-4")])

    def test_rules_of_our_own_are_in_no_ledger_and_name_their_tests(self):
        own = 'own = "OURS"\n'
        tests = 'tests = ["p::tests::test_next"]'
        done = self.repo.mutate(own, mutation("OURS-adding", more=tests), flags=("--check",))
        self.assertEqual((done.returncode, done.stdout), (0, "OURS: 1 mutations\n"))
        self.bad("rfc9999.toml: OURS-adding: it names no tests",
                 mutations=[own, mutation("OURS-adding")])
        self.bad("rfc9999.toml: RFC9999-1-1: its id does not begin with OURS-",
                 mutations=[own, mutation(more=tests)])

    def test_mutation_that_changes_nothing_or_is_there_twice(self):
        self.bad("rfc9999.toml: RFC9999-1-1: changes nothing",
                 mutations=[mutation(replace="n + 1")])
        self.bad("rfc9999.toml: RFC9999-1-1: the same change twice in src/lib.rs",
                 mutations=[mutation(), mutation()])

    def test_key_that_is_misspelt_or_missing(self):
        self.bad("rfc9999.toml: RFC9999-1-1: unknown key 'survive'",
                 mutations=[mutation(more='survive = "why"')])
        self.bad("rfc9999.toml: RFC9999-1-1: breaks missing",
                 mutations=[mutation().replace('breaks = "It is broken."\n', "")])
        self.bad("rfc9999.toml: unknown key 'mutations'",
                 mutations=[mutation().replace("[[mutation]]", "[[mutations]]")])

    def test_explanation_that_says_nothing(self):
        self.bad("rfc9999.toml: RFC9999-1-1: survives says nothing",
                 mutations=[mutation(more='survives = " "')])

    def test_no_mutations_at_all(self):
        self.bad("no mutations at all")

    def test_rule_asked_for_that_nothing_breaks(self):
        self.bad("no mutation breaks RFC9999-1-2",
                 mutations=[mutation()], flags=("--rule", "RFC9999-1-2"))

    # Checks that need a compiler.

    def test_each_answer(self):
        said, status, out = self.answers(
            mutation(),
            mutation("RFC9999-1-2", "    10", "    11"),
            mutation("RFC9999-1-3", "    10", "    12"),
            mutation("RFC9999-1-3", "    10", "    13", 'survives = "12 will do"'),
            mutation("RFC9999-1-3", "    10", "    0", 'survives = "so they say"'),
            mutation("RFC9999-1-1", "n + 1", "n + None"),
            mutation("RFC9999-1-1", "n + 1", "loop {}"),
            flags=("--limit", "3"),
        )
        self.assertEqual(said, [
            "caught    RFC9999-1-1",
            "caught    RFC9999-1-2",
            "SURVIVED  RFC9999-1-3",
            "explained RFC9999-1-3",
            "caught    RFC9999-1-3",
            "does not build RFC9999-1-1",
            "caught    RFC9999-1-1",
        ])
        self.assertEqual(status, 1)
        self.assertIn("by tests::test_next\n", out)
        self.assertIn("by test_limit\n", out)
        self.assertIn("though its file explains why not: tests::test_weak\n", out)
        self.assertIn("by not over after 3.0 s\n", out)
        self.assertIn("7 mutations: 4 caught, 1 SURVIVED, 1 explained, 1 does not build\n", out)

    def test_status_is_good_only_when_all_are_caught_or_explained(self):
        explained = mutation("RFC9999-1-3", "    10", "    12", 'survives = "12 will do"')
        self.assertEqual(self.answers(mutation(), explained)[1], 0)
        for wrong in (mutation("RFC9999-1-3", "    10", "    12"),
                      mutation("RFC9999-1-3", "    10", "    0", 'survives = "so they say"'),
                      mutation(replace="n + None")):
            self.assertEqual(self.answers(mutation(), wrong)[1], 1)

    def test_tests_of_a_mutation_stand_for_those_of_the_ledger(self):
        other = 'tests = ["p::outer::test_limit"]'
        said, status, _ = self.answers(mutation("RFC9999-1-3", "    10", "    12", other))
        self.assertEqual((said, status), (["caught    RFC9999-1-3"], 0))

    def test_common_binary_is_left_out_of_names(self):
        self.repo.put("tests/it/main.rs", "mod inner;\nmod tests;\n")
        self.repo.put("tests/it/inner.rs", OUTER)
        self.repo.put("tests/it/tests.rs", "")
        for name in ("p::inner::test_limit", "p::tests::test_weak"):
            other = f'tests = ["{name}"]'
            said, status, _ = self.answers(mutation("RFC9999-1-3", "    10", "    0", other))
            self.assertEqual((said, status), (["caught    RFC9999-1-3"], 0), name)

    def test_only_the_rules_asked_for_are_broken(self):
        two = mutation(), mutation("RFC9999-1-2", "    10", "    11")
        said, status, _ = self.answers(*two, flags=("--rule", "RFC9999-1-2", "--jobs", "2"))
        self.assertEqual((said, status), (["caught    RFC9999-1-2"], 0))

    def test_a_document_stands_for_all_of_its_rules(self):
        two = mutation(), mutation("RFC9999-1-2", "    10", "    11")
        said, status, _ = self.answers(*two, flags=("--rule", "RFC9999"))
        self.assertEqual((said, status), (["caught    RFC9999-1-1", "caught    RFC9999-1-2"], 0))

    def test_two_runs_at_once_do_not_share_a_tree(self):
        lock = self.repo.root / "target/mutate/0/lock"
        lock.parent.mkdir(parents=True)
        with open(lock, "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            done = self.repo.mutate(mutation())
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("0/tree is in use by another run\n", done.stderr)

    def test_test_that_is_not_there_or_fails_by_itself_says_nothing_of_a_mutation(self):
        self.repo.put("docs/conformance/rfc9999.toml", LEDGER.replace("test_next", "test_nest"))
        done = self.repo.mutate(mutation())
        self.assertEqual(done.returncode, 1)
        self.assertIn("mutate: 0 tests, not 1, are in ", done.stderr)
        self.repo.put("docs/conformance/rfc9999.toml", LEDGER)
        self.repo.put("src/lib.rs", LIB.replace("sum::<u32>(), 6", "sum::<u32>(), 7"))
        done = self.repo.mutate(mutation())
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "mutate: p: the tests fail with nothing broken: "
                                      "tests::test_next\n")


if __name__ == "__main__":
    unittest.main()
