"""Formats the reports of a soak, during the run and at the end."""


def millions(n):
    return f"{n / 1e6:.1f} M"


def progress(seconds, share, course, cast, watch, side):
    messages = sum(s.totals.get("messages", 0) for s in cast.steady)
    figures = side.figures()
    gauges = {n: v[-1] for n, v in watch.series[side.side].items() if v}
    kills, files = course.counts["programs killed"], course.counts["files reloaded"]
    counts = course.counts
    peers = counts["hostile connections"] + counts["hostile connections cut off"]
    return (f"{seconds:5.0f} s, {share:3.0f} % of a processor; {messages} messages, "
            f"{kills} killed, {files} files, {counts['hostile frames']} frames, "
            f"{peers} hostile peers, {counts['hostile tenants']} tenants; "
            f"anon {figures['rssanon']} KiB, fds {figures['fds']}, "
            f"conns {gauges.get('heddle_connections', '-')}, "
            f"STags {gauges.get('heddle_registrations', '-')}")


def pauses(totals):
    """Returns a client's pauses; a server does not know how long its peers wait."""
    if not totals.get("longest_us"):
        return f"{'-':>7} {'-':>9}"
    return f"{totals['pauses']:7} {totals['longest_us'] / 1000:6.0f} ms"


def table(took, share, seed, course, cast, tenants, watch, before, after, counters):
    """Returns the figures of the whole run as text."""
    lines = ["", f"{took:.0f} s, {share:.0f} % of a processor for all of it, seed {seed}", ""]
    lines += ["  programs that nothing may happen to:"]
    lines += [f"    {'':12} {'connections':>12} {'requests':>12} {'messages':>12} {'bytes':>12} "
              f"{'pauses':>7} {'longest':>9}"]
    for s in cast.steady:
        t = s.totals
        lines.append(f"    {s.name:12} {t.get('connections', 0):12} {t.get('requests', 0):12} "
                     f"{t.get('messages', 0):12} {millions(t.get('bytes', 0)):>12} {pauses(t)}")
    lines += ["", "  (pauses: rounds of up to 16 messages that took 100 ms or longer)"]
    lines += ["", "  attacks of hostile tenants:"]
    lines += [f"    {n:>12}  {attack}" for attack, n in sorted(tenants.attacks.items())]
    lines += ["", f"  a tenant waited for its rate {tenants.waits} times, at the most"]
    lines += ["", "  what was done:"]
    lines += [f"    {n:>12}  {what}" for what, n in sorted(course.counts.items())]
    lines += [f"    {1000 * s:>9.0f} ms  {what}, at the longest"
              for what, s in sorted(course.longest.items())]
    for side, series in watch.series.items():
        lines += ["", f"  appliance {side}: before, least and greatest of the second and of the "
                  "last tenth, after"]
        for name, v in series.items():
            if len(v) < 10:
                continue
            second, last = v[len(v) // 10:len(v) // 5], v[len(v) * 9 // 10:]
            lines.append(
                f"    {name:30} {before[side].get(name):>10} {min(second):>10} {max(second):>10} "
                f"{min(last):>10} {max(last):>10} {after[side].get(name):>10}")
    wanted = [n for n in sorted(counters) if n.endswith("_total") and counters[n]]
    lines += ["", "  counters of the appliance under test that are not 0:"]
    lines += [f"    {int(counters[n]):>14}  {n.removeprefix('heddle_').removesuffix('_total')}"
              for n in wanted]
    return "\n".join(lines)
