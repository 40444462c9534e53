#!/usr/bin/env python3
"""Prepares the sources of the book for mdbook, and checks the book, for scripts/docs.

  scripts/book.py DIRECTORY          writes book.toml and src/ there
  scripts/book.py --check DIRECTORY  checks the links of the pages that mdbook has written there

The book's pages lie as they lie in the repository, so a link means the same in both. Files that the
pages link to are copied beside them; a linked directory gets a page that lists its files.
"""

import html.parser
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = "docs/SUMMARY.md"
LINK = re.compile(r"\]\(([^()\s]+)\)")


def normal(page, link):
    """Returns the path of a link's file from the top of the repository."""
    parts = []
    for part in (PurePosixPath(page).parent / link).parts:
        if part == "..":
            if not parts:
                sys.exit(f"{page}: {link} leads out of the repository")
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def links(page, text):
    """Returns the files of the repository to which a page links."""
    files = (link.partition("#")[0] for link in LINK.findall(text))
    return [normal(page, f) for f in files if f and not urlsplit(f).scheme]


def tracked(directory):
    command = ["git", "ls-files", "-z", directory]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return [f for f in out.stdout.decode().split("\0") if f]


def listing(directory, pages):
    rows = []
    for file in tracked(directory):
        name = escape(file.removeprefix(directory + "/"))
        link = name.removesuffix(".md") + ".html" if file in pages else name
        rows.append(f'<li><a href="{link}">{name}</a></li>')
    title = escape(directory)
    body = "\n".join(rows)
    head = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>{title}</title>\n'
    return f"{head}<h1>{title}</h1>\n<ul>\n{body}\n</ul>\n"


def copy(file, out):
    target = out / file
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, target)


def prepare(directory):
    out = directory / "src"
    shutil.rmtree(directory, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copyfile(ROOT / "docs/book.toml", directory / "book.toml")
    summary = (ROOT / SUMMARY).read_text()
    pages = links(SUMMARY, summary)
    (out / "SUMMARY.md").write_text(LINK.sub(lambda m: f"]({normal(SUMMARY, m[1])})", summary))
    for page in pages:
        copy(page, out)
        for file in set(links(page, (ROOT / page).read_text())) - set(pages):
            if not (ROOT / file).is_dir():
                copy(file, out)
                continue
            for inner in set(tracked(file)) - set(pages):
                copy(inner, out)
            (out / file).mkdir(parents=True, exist_ok=True)
            (out / file / "index.html").write_text(listing(file, pages))


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, _tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def read(path):
    page = Page()
    page.feed(path.read_text())
    return page


def check(book):
    pages = {path: read(path) for path in sorted(book.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            # The page for wrong addresses is served from anywhere, so its links begin at the top.
            base = book if url.path.startswith("/") or path.name == "404.html" else path.parent
            target = base / unquote(url.path).lstrip("/") if url.path else path
            target = target.resolve()
            if target.is_dir():
                target /= "index.html"
            where = f"{path.relative_to(book)}: {link}"
            if not target.exists():
                faults.append(f"{where}: there is no such file")
            elif (url.fragment and target in pages
                    and unquote(url.fragment) not in pages[target].anchors):
                faults.append(f"{where}: there is no such anchor")
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults or len(pages) < 20:
        sys.exit(f"{len(faults)} links of {len(pages)} pages lead nowhere")
    print(f"{sum(len(p.links) for p in pages.values())} links of {len(pages)} pages are good")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        check(Path(sys.argv[2]).resolve())
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        prepare(Path(sys.argv[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
