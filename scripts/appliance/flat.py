"""The rule that decides whether a figure has stayed where it was.

A series holds a figure's values at equal steps, from the end of the warm-up on. The rule cuts it
into tenths. The figure has grown if the minimum of the last tenth is more than the maximum of the
second tenth plus the allowance. A figure that comes and goes has been as high before, and is low
again at the end; a figure that is never given back is not. The rule skips the first tenth, in which
objects are made at their first use.
"""

TENTHS = 10


def tenth(series, n):
    """Returns the nth of ten parts, from 0."""
    return series[len(series) * n // TENTHS:len(series) * (n + 1) // TENTHS]


def grown(series, allowed=0):
    """Returns the growth beyond the allowance; 0 for a flat series, None for too few values."""
    if len(series) < TENTHS:
        return None
    return max(0, min(tenth(series, TENTHS - 1)) - max(tenth(series, 1)) - allowed)


def changed(before, after, ignore=()):
    """Returns the figures that differ: (name, before, after). Both arguments are dictionaries of
    figures."""
    names = sorted((before.keys() | after.keys()) - set(ignore))
    return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]
