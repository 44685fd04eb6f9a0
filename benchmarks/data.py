"""The events of the workloads, and the checksums that every engine must reach. Generated once, kept in ``.bench/data``.

A data set's name describes it: ``u10k-2m`` has 2,000,000 events of 10,000 equally likely users; ``z1m-2m`` has 1,000,000
users with a Zipf distribution (exponent 1.2). Event ``i`` of ``n`` has the event time ``i / n`` of an hour, moved back by
up to 5 s, so a watermark 5 s behind the latest timestamp never drops an event. Amounts are multiples of a quarter, so
that float sums are exact in any order.

Events of users with even numbers are in ``part-0.csv``, the others in ``part-1.csv``, so every engine sees one user's
events in the same order. A line is ``user,amount,timestamp in ms``.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import BENCH

START_MS = 1_700_000_040_000
"""A full minute, so that windows begin with the data."""
HOUR_MS = 3_600_000
DISORDER_MS = 5_000
PERIOD_MS = 600_000
THRESHOLD = 8
LAST = 10
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class Events:
    """The columns of a data set."""

    def __init__(self, name: str) -> None:
        import numpy as np  # not at the top: task slots import this module with the functions of the jobs

        match = re.fullmatch(r"([uz])(\d+)([km]?)-(\d+)([km]?)", name)
        if match is None:
            raise SystemExit(f"{name!r} is not a data set; names are like u10k-2m or z1m-200k: distribution, users, events")
        law, users, users_unit, n, n_unit = match.groups()
        self.name = name
        self.zipf = law == "z"
        self.users = int(users) * _UNITS[users_unit]
        self.n = int(n) * _UNITS[n_unit]
        random = np.random.default_rng(7)
        if self.zipf:
            share = np.arange(1, self.users + 1, dtype=float) ** -1.2
            reached = np.cumsum(share / share.sum())
            names = random.permutation(self.users)
            rank = np.searchsorted(reached, random.random(self.n))
            self.user = names[np.minimum(rank, self.users - 1)]
        else:
            self.user = random.integers(0, self.users, self.n)
        self.amount = random.integers(1, 4000, self.n) / 4.0
        late = random.integers(0, DISORDER_MS + 1, self.n)
        self.timestamp = START_MS + DISORDER_MS + np.arange(self.n) * HOUR_MS // self.n - late

    @staticmethod
    def size(name: str) -> int:
        """The number of events of a data set."""
        digits, unit = re.fullmatch(r".*-(\d+)([km]?)", name).groups()  # type: ignore[union-attr]
        return int(digits) * _UNITS[unit]

    def rows(self) -> zip[tuple[int, float, int]]:
        """The events as Python values."""
        return zip(self.user.tolist(), self.amount.tolist(), self.timestamp.tolist())

    def expected(self) -> dict[str, Any]:
        """Compute the checksums of the workloads in the simplest way."""
        return {"n": self.n, "fraud": self._fraud(), "window": self._window(), "pass": {}}

    def _fraud(self) -> dict[str, float]:
        counts: dict[int, int] = {}
        until: dict[int, int] = {}
        last: dict[int, list[float]] = {}
        alerts = periods = 0
        alert_sum = 0.0
        for user, amount, timestamp in self.rows():
            if timestamp >= until.get(user, 0):
                counts[user], until[user], last[user] = 0, timestamp + PERIOD_MS, []
                periods += 1
            counts[user] += 1
            amounts = last[user] = [*last[user], amount][-LAST:]
            if counts[user] >= THRESHOLD:
                alerts += 1
                alert_sum += sum(amounts)
        return {"alerts": alerts, "alert_sum": alert_sum, "periods": periods}

    def _window(self) -> dict[str, float]:
        import numpy as np

        minute = (self.timestamp - START_MS) // 60_000
        windows = len(np.unique(self.user.astype(np.int64) * 1_000_000 + minute))
        return {"windows": windows, "total": float(self.amount.sum())}


def data_set(name: str) -> Path:
    """The directory of a data set; generates a missing one."""
    directory = BENCH / "data" / name
    if not (directory / "expected.json").exists():
        events = Events(name)
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        with open(made / "part-0.csv", "w") as even, open(made / "part-1.csv", "w") as odd:
            for user, amount, timestamp in events.rows():
                (odd if user % 2 else even).write(f"{user},{amount},{timestamp}\n")
        (made / "expected.json").write_text(json.dumps(events.expected(), indent=1))
        shutil.rmtree(directory, ignore_errors=True)
        made.rename(directory)
    return directory


def expected(name: str) -> dict[str, Any]:
    """The checksums of a data set."""
    found: dict[str, Any] = json.loads((data_set(name) / "expected.json").read_text())
    return found
