"""The networks over which hosts are compared, and what a run over one of them gave."""

import statistics
from dataclasses import dataclass

# Bytes of a frame of MTU 1500.
FRAME = 1514
# TCP's payload in such a frame, with timestamps.
MSS = 1448
# The shortest queue: a fast sender's burst of 64 frames fits.
LEAST_QUEUE = 64 * FRAME
# The least and the most bytes that a sender of Heddle keeps outstanding.
LEAST_OUT, MOST_OUT = 256 << 10, 16 << 20

RATES = (100, 500)
RTTS = (0.1, 1, 10, 50)
LOSSES = (0, 0.1, 1, 5)


@dataclass(frozen=True)
class Wire:
    """Settings of the bridge from the sender to the receiver, and back."""
    there: str
    back: str

    def arguments(self):
        return ["--a-to-b", self.there, "--b-to-a", self.back]


@dataclass(frozen=True, order=True)
class Cell:
    """A network: rate in Mb/s, round trip in ms, loss of data segments in per cent."""
    rate: float
    rtt: float
    loss: float

    def title(self):
        rate = f"{self.rate / 1000:g} Gb/s" if self.rate >= 1000 else f"{self.rate:g} Mb/s"
        return f"{rate}, {self.rtt:g} ms, {self.loss:g} %"

    def key(self):
        return (self.rate, self.rtt, self.loss)

    def product(self):
        """Returns the product of rate and round trip, in bytes."""
        return int(self.rate * 1e6 / 8 * self.rtt / 1e3)

    def queue(self):
        """Returns the bytes of the bottleneck's queue: the product, as a rule of thumb has it."""
        return max(self.product(), LEAST_QUEUE)

    def outstanding(self):
        """Returns the bytes that a sender of Heddle keeps outstanding: enough to fill wire and
        queue; with loss, far more than Reno's window, and not so much that the end of a run, which
        waits for them, takes minutes."""
        most = 2 * (self.product() + self.queue())
        if self.loss:
            reno = 1.22 * MSS / (self.loss / 100) ** 0.5
            most = min(most, int(16 * reno))
        return max(LEAST_OUT, min(MOST_OUT, most))

    def wire(self, more=""):
        """Returns the settings of the bridge; `more` is added in the direction of the data."""
        delay = f"delay={self.rtt * 500:.0f}us"
        rate = f"rate={self.rate:g}Mbit/s"
        there = f"{rate},queue={self.queue()},{delay}"
        if self.loss:
            there += f",loss={self.loss:g}%"
        return Wire(there + ("," + more if more else ""), f"{rate},{delay}")


def cells(rates=RATES, rtts=RTTS, losses=LOSSES):
    return [Cell(rate, rtt, loss) for rate in rates for rtt in rtts for loss in losses]


def jain(figures):
    """Returns Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    squares = sum(f * f for f in figures)
    return sum(figures) ** 2 / (len(figures) * squares) if squares else 0.0


def rate_between(samples, begin, end):
    """Returns Mb/s between two times, from samples of (time, bytes so far)."""
    return (bytes_at(samples, end) - bytes_at(samples, begin)) * 8 / 1e6 / (end - begin)


def bytes_at(samples, time):
    """Returns the bytes at a time, on the line between the samples around it."""
    if not samples or time <= samples[0][0]:
        return samples[0][1] if samples else 0
    for (t0, b0), (t1, b1) in zip(samples, samples[1:]):
        if t0 <= time <= t1:
            return b0 + (b1 - b0) * (time - t0) / (t1 - t0) if t1 > t0 else b1
    return samples[-1][1]


def begins(samples):
    """Returns the time of the last sample without data before the first with data."""
    before = None
    for time, count in samples:
        if count:
            return before if before is not None else time
        before = time
    return None


def median_ratio(ours, theirs):
    """Returns the median of the ratios within a round; both are figures by round."""
    ratios = [ours[n] / theirs[n] for n in ours.keys() & theirs.keys() if theirs[n]]
    return statistics.median(ratios) if ratios else None
