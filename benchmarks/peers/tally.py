"""What a Python function of a peer counts, written to a file when it is closed; `benchmarks.peers.run` adds them up.

Only the standard library: it runs in the peers' environments.
"""

import json
import os
import time
import uuid

began = None


def begin():
    """The process's first event was seen now, by a function that has no tally of its own."""
    global began
    began = began or time.time()


class Tally:
    """The counters of one instance of a function."""

    def __init__(self, directory):
        self.directory = directory
        self.first = self.last = None
        self.counts = {"n": 0}

    def event(self):
        """An event was seen now."""
        now = time.time()
        if self.first is None:
            self.first = now
        self.last = now
        self.counts["n"] += 1

    def now(self):
        """Work was done now that is no event: a timer, a result."""
        self.last = time.time()
        if self.first is None:
            self.first = self.last

    def add(self, name, amount=1):
        self.counts[name] = self.counts.get(name, 0) + amount

    def write(self):
        """Leave the counters for the reader; nothing if nothing was seen."""
        if self.first is None:
            return
        if began is not None:
            self.first = min(self.first, began)
        path = os.path.join(self.directory, uuid.uuid4().hex)
        with open(path, "w") as file:
            json.dump({"first": self.first, "last": self.last, "counts": self.counts}, file)
        os.rename(path, path + ".json")
