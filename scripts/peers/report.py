"""Runs, tests and contenders in turns; tables of their figures and ratios."""

import html
import statistics
from dataclasses import dataclass

UNITS = {"throughput": "Gb/s", "rate": "Mop/s", "round trip": "us"}
TITLES = {"throughput": "Throughput", "rate": "Messages", "round trip": "Round trips"}


@dataclass
class Run:
    """What one run of a contender gave; None where it was not measured."""
    figure: float
    processors: float | None = None
    machine: float | None = None


@dataclass
class Line:
    """The summary of the runs of a contender."""
    name: str
    figure: float
    least: float
    most: float
    ratio: float | None
    processors: float | None
    machine: float | None
    spin: int | None
    efficiency: float | None
    efficiency_ratio: float | None

    def cells(self):
        return [shown(self.figure), shown(self.least), shown(self.most), shown(self.ratio),
                shown(self.processors), shown(self.machine), shown(self.spin),
                shown(self.efficiency), shown(self.efficiency_ratio)]


class Test:
    def __init__(self, what, size, conns, reference, op="write"):
        self.what, self.size, self.conns, self.reference = what, size, conns, reference
        self.op = op
        # By contender and round.
        self.rows, self.spins = {}, {}

    def title(self):
        plural, sends = "s" * (self.conns > 1), " of Sends" * (self.op == "send")
        what = TITLES[self.what] + sends
        return f"{what}, {name_of(self.size)}, {self.conns} connection{plural}"

    def unit(self):
        return UNITS[self.what]

    def add(self, name, number, run, spin=None):
        self.rows.setdefault(name, {})[number] = run
        self.spins[name] = spin

    def gain(self, run):
        """Returns a number that is higher where a run is better."""
        return 1 / run.figure if self.what == "round trip" else run.figure

    def efficiency(self, run):
        """Returns what a run did for each second of a processor: Gb, millions of messages or
        thousands of round trips."""
        if not run.processors:
            return None
        return self.gain(run) * (1e3 if self.what == "round trip" else 1) / run.processors

    def beside(self, name, of):
        """Returns the median of the ratios to the reference's figure in the same round."""
        ratios = []
        for number, run in self.rows[name].items():
            other = self.rows.get(self.reference, {}).get(number)
            pair = (of(run), of(other)) if other else (None, None)
            if pair[0] is not None and pair[1]:
                ratios.append(pair[0] / pair[1])
        return median(ratios)

    def summary(self):
        lines = []
        for name, runs in self.rows.items():
            all_of = list(runs.values())
            figures = [run.figure for run in all_of]
            lines.append(Line(
                name, median(figures), min(figures), max(figures), self.beside(name, self.gain),
                median(run.processors for run in all_of), median(run.machine for run in all_of),
                self.spins[name], median(map(self.efficiency, all_of)),
                self.beside(name, self.efficiency)))
        return lines


def median(values):
    """Returns the median of the values that there are, or None."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def name_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def shown(value):
    if value is None:
        return "-"
    if isinstance(value, int) or value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.1f}"


HEADS = ["least", "most", "x", "cpus", "machine", "spin", "per cpu-s", "x cpu"]


def table(test):
    heads = [test.unit(), *HEADS]
    lines = [test.title(), f"  {'':34}" + "".join(f"{head:>10}" for head in heads)]
    for line in test.summary():
        lines.append(f"  {line.name:34}" + "".join(f"{cell:>10}" for cell in line.cells()))
    return "\n".join(lines)


def page(tests, command, rounds, notes):
    """Returns a page of HTML that fetches nothing: a table and bars for each test."""
    parts = []
    for test in tests:
        lines = test.summary()
        top = max((line.figure for line in lines), default=0) or 1
        body = ""
        for line in lines:
            color = "#4878a8" if line.name.startswith("Heddle") else "#b0754a"
            bar = (f'<svg width="230" height="14"><rect width="{220 * line.figure / top:.1f}" '
                   f'height="14" fill="{color}"/></svg>')
            body += (f"<tr><td>{html.escape(line.name)}<td>{bar}"
                     + "".join(f"<td>{cell}" for cell in line.cells()))
        heads = ["", "", test.unit(), *HEADS]
        parts.append(f"<h2>{html.escape(test.title())}</h2><table><tr>"
                     + "".join(f"<th>{head}" for head in heads) + body + "</table>")
    return (
        "<!doctype html><meta charset=utf-8><title>Heddle beside its peers</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 8px;text-align:right}"
        "td:first-child{text-align:left}pre{white-space:pre-wrap}</style>"
        f"<h1>Heddle beside its peers</h1><p>{html.escape(command)}: {rounds} rounds</p>"
        f"<pre>{html.escape(notes)}</pre>" + "".join(parts)
    )


def chosen(all_of, texts, reference):
    """Returns the contenders whose name has one of the texts, and the reference."""
    return [one for one in all_of if not texts or one.name == reference
            or any(text in one.name for text in texts)]


def turns(contenders, number):
    """Returns the contenders in the order of a round."""
    return contenders if number % 2 == 0 else contenders[::-1]
