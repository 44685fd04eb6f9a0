"""The counters of a peer's Python function, written to a file on close; `benchmarks.peers.run` adds them up.

Uses only the standard library, because it runs in the peers' environments.
"""

import json
import os
import time
import uuid

began = None


def begin():
    """Record the process's first event, for a function without a tally."""
    global began
    began = began or time.time()


class Tally:
    """The counters of one instance of a function."""

    def __init__(self, directory):
        self.directory = directory
        self.first = self.last = None
        self.counts = {"n": 0}

    def event(self):
        """Count an event."""
        now = time.time()
        if self.first is None:
            self.first = now
        self.last = now
        self.counts["n"] += 1

    def now(self):
        """Record work other than an event: a timer or a result."""
        self.last = time.time()
        if self.first is None:
            self.first = self.last

    def add(self, name, amount=1):
        self.counts[name] = self.counts.get(name, 0) + amount

    def write(self):
        """Write the counters to a file, if there was any event."""
        if self.first is None:
            return
        if began is not None:
            self.first = min(self.first, began)
        path = os.path.join(self.directory, uuid.uuid4().hex)
        with open(path, "w") as file:
            json.dump({"first": self.first, "last": self.last, "counts": self.counts}, file)
        os.rename(path, path + ".json")
