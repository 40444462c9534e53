#!/usr/bin/env python3
"""Draws docs/pictures/*.dot as SVG, for scripts/docs.

  scripts/pictures.py DIRECTORY

Graphviz places boxes and arrows; this script gives them colours that follow the reader's light or
dark mode, and writes the digest of the source into the picture, by which a test finds a stale one.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

# DejaVu Sans is as wide as any face that a browser may take in its place, so no text leaves its
# box.
FONT = "DejaVu Sans"
DEFAULTS = [
    "-Gbgcolor=transparent", f"-Gfontname={FONT}", "-Gfontsize=11", "-Gpad=0.2",
    "-Nshape=box", "-Nstyle=rounded,filled", f"-Nfontname={FONT}", "-Nfontsize=11",
    "-Nmargin=0.22,0.09", f"-Efontname={FONT}", "-Efontsize=10", "-Earrowsize=0.7",
]

# Fill, line and text of each class of box, then page, lines and text of everything else.
LIGHT = {
    "node": ("#f2f4f7", "#57606a", "#1f2328"), "main": ("#d6e7fb", "#1f6feb", "#0b2e5c"),
    "pure": ("#dcf3e3", "#2f8f4e", "#12391f"), "dpdk": ("#fdeacc", "#b87a14", "#4a2f04"),
    "event": ("none", "#8c959f", "#1f2328"), "page": ("#ffffff", "#8c959f", "#1f2328"),
}
DARK = {
    "node": ("#21262d", "#8b949e", "#e6edf3"), "main": ("#12335c", "#58a6ff", "#dcebff"),
    "pure": ("#12361f", "#3fb950", "#d8f5e0"), "dpdk": ("#4a3208", "#d29922", "#fbeacb"),
    "event": ("none", "#6e7681", "#e6edf3"), "page": ("#0d1117", "#6e7681", "#e6edf3"),
}


def rules(colours):
    page, line, text = colours["page"]
    css = [
        f".page {{ fill: {page}; stroke: none }}",
        f"text {{ fill: {text} }}",
        f".cluster path, .cluster polygon {{ fill: none; stroke: {line} }}",
        f".edge path {{ fill: none; stroke: {line} }}",
        f".edge polygon {{ fill: {line}; stroke: {line} }}",
    ]
    for name, (fill, stroke, words) in colours.items():
        if name != "page":
            css.append(f".{name} > path, .{name} > polygon {{ fill: {fill}; stroke: {stroke} }}")
            css.append(f".{name} > text {{ fill: {words} }}")
    return "\n".join(css)


def style():
    dark = rules(DARK).replace("\n", "\n  ")
    return (
        '<style>\ntext { font-family: "DejaVu Sans", Verdana, sans-serif }\n'
        ".cluster path { stroke-dasharray: 4 3 }\n"
        f"{rules(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n  {dark}\n}}\n</style>"
    )


def draw(source):
    text = source.read_bytes()
    command = ["dot", "-Tsvg", *DEFAULTS, source]
    svg = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The version of Graphviz and the names of boxes are noise: tooltips, and changes without a
    # change.
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.S)
    svg = re.sub(r"<title>.*?</title>\n?", "", svg, flags=re.S)
    svg = re.sub(r' (fill|stroke|font-family)="[^"]*"', "", svg)
    svg = re.sub(r'style="rounded,filled" ', "", svg)
    # A space at the front of a label keeps the label off its line; viewers drop an ordinary space.
    svg = re.sub(r"(<text[^>]*>) ", r"\1&#160;", svg)
    # The first line of a box is its name.
    first = r'(<g id="node\d+" class="node[^"]*">\n<path[^>]*/>\n<text )'
    svg = re.sub(first, r'\1font-weight="bold" ', svg)
    box = re.search(r'viewBox="([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)"', svg)
    page = f'<rect class="page" width="{box[3]}" height="{box[4]}" rx="6"/>'
    mark = f"<!-- sha256 of the source: {hashlib.sha256(text).hexdigest()} -->"
    svg = re.sub(r"(<svg[^>]*>)", lambda m: f"{m[1]}\n{mark}\n{style()}\n{page}", svg, count=1)
    source.with_suffix(".svg").write_text(svg)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sources = sorted(Path(sys.argv[1]).glob("*.dot"))
    if not sources:
        sys.exit(f"no *.dot in {sys.argv[1]}")
    for source in sources:
        draw(source)


if __name__ == "__main__":
    main()
