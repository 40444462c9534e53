"""The results of runs in a file, and the tables of docs/networks.md."""

import json
import os
import statistics

from impaired.cells import Cell, jain, median_ratio


def load(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return {"cells": [], "fairness": [], "floods": []}


def replace(path, text):
    """Writes a file as a whole: a reader sees the old text or the new one."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(new, path)


def save(path, results):
    replace(path, json.dumps(results, indent=1) + "\n")


def next_round(results, kind, key):
    """Returns the number of the next round of a cell or a scenario."""
    return 1 + max((r["round"] for r in results[kind] if r["key"] == key), default=0)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def head(names):
    return [row(names), "|---" * len(names) + "|"]


def number(value):
    """Writes a figure with three digits that count."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def spread(values):
    """Writes the median of some figures and, if there are several, their range."""
    if not values:
        return "-"
    middle = number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} to {number(max(values))})"


def by_round(runs, way):
    return {r["round"]: r["goodput"] for r in runs if r["way"] == way}


def of_cells(results):
    """Returns the table of goodputs: a line for each network, a column for each way."""
    runs = results["cells"]
    if not runs:
        return []
    names = list(dict.fromkeys(r["way"] for r in runs))
    lines = head(["Rate, RTT, loss", *names, "Heddle's sender to Linux's", "Retransmitted by it",
                  "Timeouts", "Bridge late, µs"])
    for key in sorted({tuple(r["key"]) for r in runs}):
        mine = [r for r in runs if tuple(r["key"]) == key]
        sender = [r for r in mine if r["way"].startswith("Heddle") and r["way"].endswith("Linux")]
        ours = by_round(sender, sender[0]["way"]) if sender else {}
        ratio = median_ratio(ours, by_round(mine, names[0]))
        lines.append(row([
            Cell(*key).title(), *(spread(list(by_round(mine, n).values())) for n in names),
            number(ratio), number(middle(sender, "resent")), number(middle(sender, "timeouts")),
            number(middle(mine, "late"))]))
    return lines


def middle(runs, name):
    values = [r[name] for r in runs if r.get(name) is not None]
    return statistics.median(values) if values else None


def of_fairness(results):
    """Returns the table of flows that share a bottleneck."""
    runs = results["fairness"]
    if not runs:
        return []
    lines = head(["Flows", "Mb/s together", "Jain's index", "Heddle's part",
                  "Queue, mean of its limit", "Marked frames"])
    for key in dict.fromkeys(r["key"] for r in runs):
        mine = [r for r in runs if r["key"] == key]
        lines.append(row([
            key, spread([r["goodput"] for r in mine]),
            spread([jain(list(r["flows"].values())) for r in mine]),
            spread([part(r) for r in mine]),
            spread([r["queue"] for r in mine]), number(middle(mine, "marked"))]))
    return lines


def part(run):
    """Returns the share of Heddle's flows of all bytes."""
    ours = sum(f for peer, f in run["flows"].items() if peer.startswith("10.77.0.11:"))
    return ours / run["goodput"]


OVER_IPV6 = ", over IPv6"


def of_floods(results):
    runs = results["floods"]
    if not runs:
        return []
    lines = head(["Flood", "Frames a second", "Goodput, Mb/s", "Beside no flood",
                  "A new client is served after, ms"])
    for way in dict.fromkeys(r["way"] for r in runs):
        base = by_round(runs, "nothing" + OVER_IPV6 * way.endswith(OVER_IPV6))
        mine = [r for r in runs if r["way"] == way]
        ours = by_round(mine, way)
        lines.append(row([way, spread([r["frames"] for r in mine]), spread(list(ours.values())),
                          number(median_ratio(ours, base)),
                          spread([r["served"] for r in mine if r["served"] is not None])]))
    return lines


SECTIONS = {"cells": of_cells, "fairness": of_fairness, "floods": of_floods}


def renewed(page, results):
    """Returns a page with the tables between its markers replaced."""
    for name, table in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no place for {name}: {begin.strip()} ... {end}")
        before, rest = page.split(begin, 1)
        _, after = rest.split(end, 1)
        page = before + begin + "\n" + "".join(f"{line}\n" for line in table(results)) + "\n"
        page += end + after
    return page
