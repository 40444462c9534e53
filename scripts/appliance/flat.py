"""What it means that a figure has stayed where it was.

A series is what was seen of a figure, at equal steps, from the end of the warm-up on. It is cut into
tenths. It has grown when the least of the last tenth is more than the greatest of the second tenth and
what is allowed: what comes and goes has been as high before, and been low again at the end; what is never
given back has not. The first tenth is left for what is made at first use.
"""

TENTHS = 10


def tenth(series, n):
    """The nth of ten parts, from 0."""
    return series[len(series) * n // TENTHS:len(series) * (n + 1) // TENTHS]


def grown(series, allowed=0):
    """By how much it has grown beyond what is allowed; 0 when it is flat. None: too few to say."""
    if len(series) < TENTHS:
        return None
    return max(0, min(tenth(series, TENTHS - 1)) - max(tenth(series, 1)) - allowed)


def changed(before, after, ignore=()):
    """What is not as it was: (name, before, after). Both are dictionaries of figures."""
    names = sorted((before.keys() | after.keys()) - set(ignore))
    return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]
