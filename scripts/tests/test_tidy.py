"""Tests the rules of scripts/tidy: each reports a line that breaks it, and none that does not.

  python3 scripts/tests/test_tidy.py
"""
import collections
import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest
import unittest.mock

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tidy"
LOADER = importlib.machinery.SourceFileLoader("tidy", str(SCRIPT))
tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader("tidy", LOADER))
LOADER.exec_module(tidy)


class Rules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        patch = unittest.mock.patch.object(tidy, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)

    def broken(self, name, text):
        """Returns the lines of a file that break a rule, each with the rule."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        with unittest.mock.patch.object(tidy, "included", set):
            counts = collections.Counter()
            found = list(tidy.judge(pathlib.Path(name), counts))
        return [(line, rule) for line, rule, _ in found]

    def test_opening_is_reported_in_comments_of_each_language(self):
        self.assertEqual(self.broken("a.rs", "// Of all the words.\n"), [(1, "opening")])
        self.assertEqual(self.broken("a.py", "x = 1\n# Those are words.\n"), [(2, "opening")])
        self.assertEqual(self.broken("a.md", "Words.\n\nWhat it is.\n"), [(3, "opening")])
        self.assertEqual(self.broken("a.rs", "// One of all the words.\n"), [])

    def test_actor_and_word_are_reported(self):
        self.assertEqual(self.broken("a.rs", "// Nobody reads.\n"), [(1, "actor")])
        self.assertEqual(self.broken("a.rs", "// The peer sends an octet.\n"), [(1, "word")])
        self.assertEqual(self.broken("a.rs", "// The peer sends an `octet`.\n"), [])

    def test_doc_that_repeats_the_name_is_reported(self):
        self.assertEqual(self.broken("a.rs", "/// The open ports.\nfn open_ports() {}\n"),
                         [(1, "repeats")])
        self.assertEqual(self.broken("a.rs", "/// The ports of peers.\nfn open_ports() {}\n"), [])

    def test_module_in_mod_rs_is_reported(self):
        self.assertEqual(self.broken("a/src/b/mod.rs", "fn f() {}\n"), [(1, "module")])
        self.assertEqual(self.broken("a/tests/b/mod.rs", "fn f() {}\n"), [])

    def test_script_line_beyond_100_columns_is_reported(self):
        for name, head in (("a.sh", ""), ("a.py", ""), ("a", "#!/bin/bash\n"), ("a.c", "")):
            lines = head.count("\n")
            self.assertEqual(self.broken(name, head + "x " * 50 + "\n"), [])
            self.assertEqual(self.broken(name, head + "x " * 50 + "x\n"), [(lines + 1, "column")])

    def test_other_line_beyond_120_columns_is_reported(self):
        for name in ("a.rs", "a.md"):
            self.assertEqual(self.broken(name, "x " * 60 + "\n"), [])
            self.assertEqual(self.broken(name, "y\n" + "x " * 60 + "x\n"), [(2, "column")])

    def test_line_of_one_word_may_be_longer(self):
        word = "x" * 130
        for name, line in (("a.sh", f"    {word} \\"), ("a.sh", f"# {word}"),
                           ("a.sh", f"{word} ||"), ("a.py", f"# {word}"),
                           ("a.rs", f"    /// {word}"), ("a.md", f"- {word}")):
            self.assertEqual(self.broken(name, line + "\n"), [], line)
            self.assertEqual(self.broken(name, f"{line[:-2]} y\n"), [(1, "column")], line)

    def test_table_and_code_block_of_markdown_may_be_longer(self):
        self.assertEqual(self.broken("a.md", "| x " * 60 + "|\n"), [])
        self.assertEqual(self.broken("a.md", "```text\n" + "x " * 99 + "\n```\n"), [])
        self.assertEqual(self.broken("a.md", "```\nx\n```\n" + "x " * 99 + "\n"), [(4, "column")])


if __name__ == "__main__":
    unittest.main()
