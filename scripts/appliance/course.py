"""State that all threads of a soak share: whether it is over, the faults, the counts."""

import collections
import threading
import time
import traceback


class Course:
    def __init__(self):
        self.over = threading.Event()
        self.faults = []
        self.counts = collections.Counter()
        self.longest = {}
        self.lock = threading.Lock()
        self.threads = []
        # The time of the last reload of a file, by the monotonic clock.
        self.anew = 0

    def fail(self, text):
        """Records a fault, which ends the soak."""
        with self.lock:
            self.faults.append(text)
        self.over.set()

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def took(self, what, seconds):
        with self.lock:
            self.longest[what] = max(self.longest.get(what, 0), seconds)

    def pause(self, seconds):
        """Sleeps. Returns false when the soak is over."""
        return not self.over.wait(seconds)

    def go(self, name, act):
        """Runs a function on a thread of its own; any exception is a fault."""
        def run():
            try:
                act()
            except Exception:  # any exception here is a fault
                self.fail(f"{name}: {traceback.format_exc()}")
        t = threading.Thread(target=run, name=name, daemon=True)
        self.threads.append(t)
        t.start()

    def join(self):
        until = time.monotonic() + 60
        for t in self.threads:
            t.join(max(0, until - time.monotonic()))
            if t.is_alive():
                self.fail(f"{t.name}: it does not end")
