"""A generator of UPI payments with planted fraud, for demos, tests and benchmarks."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.errors import ConfigurationError, IncompatibleState

__all__ = ["CITIES", "PaymentsSource"]

CITIES: dict[str, tuple[float, float]] = {
    "Ahmedabad": (23.03, 72.58),
    "Bengaluru": (12.97, 77.59),
    "Bhopal": (23.26, 77.41),
    "Chennai": (13.08, 80.27),
    "Delhi": (28.61, 77.21),
    "Guwahati": (26.14, 91.74),
    "Hyderabad": (17.39, 78.49),
    "Jaipur": (26.91, 75.79),
    "Kochi": (9.93, 76.27),
    "Kolkata": (22.57, 88.36),
    "Lucknow": (26.85, 80.95),
    "Mumbai": (19.08, 72.88),
    "Patna": (25.59, 85.14),
    "Pune": (18.52, 73.86),
    "Srinagar": (34.08, 74.80),
    "Surat": (21.17, 72.83),
}
"""Cities with latitude and longitude in degrees. Payments are within about 5 km of the centre."""

SPLITS = 4
"""Number of independent streams of payments. All payments of a customer are in one of them, in order."""
_BLOCK = 1000
"""Number of payments of one split generated from one seed."""
_BURST = 8
"""Number of consecutive payments in a velocity burst."""
_UNPACED_START = 1_735_689_600_000  # 2025-01-01T00:00:00Z
_UNPACED_RATE = 1000.0
_NAMES = tuple(CITIES)


class PaymentsSource:
    """A source of payments, each a dict that depends only on the seed and its number.

    A payment has ``payment_id``, ``customer_id``, ``merchant_id`` (str), ``amount`` (rupees, a multiple of 0.5, so that
    sums are exact), ``ts_ms``, ``place`` (``city``, ``lat``, ``lon``), and the truth: ``is_fraud`` and ``fraud_kind``.
    A customer pays in one home city, up to 5,000 rupees. Three kinds of fraud are planted:

    - ``travel``: a payment far from home right after one at home;
    - ``velocity``: eight payments in a row;
    - ``spending``: one of 40,000 to 100,000 rupees.

    Records have timestamps, rising within each of the four splits. With a rate, timestamps follow the wall clock: records
    appear when they are due, and a job that was down skips the payments of that time. Without a rate, records appear as
    fast as they are read, and their timestamps run from 2025-01-01 at 1,000 payments a second.

    Args:
        seed: Seed of the random payments.
        rate_per_second: Payments per second of wall clock; None: as fast as the job reads.
        count: Total number of payments; None: unbounded.
        merchants: Number of merchants.
        customers: Number of customers; at least 4.
        fraud_share: Approximate share of fraud among the payments, from 0 to 0.2.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        rate_per_second: float | None = None,
        count: int | None = None,
        merchants: int = 200,
        customers: int = 10_000,
        fraud_share: float = 0.01,
    ) -> None:
        if rate_per_second is not None and rate_per_second <= 0:
            raise ConfigurationError(f"PaymentsSource: rate_per_second must be positive, got {rate_per_second}")
        if count is not None and count < 0:
            raise ConfigurationError(f"PaymentsSource: count must not be negative, got {count}")
        if merchants < 1 or customers < SPLITS:
            raise ConfigurationError(f"PaymentsSource: needs at least 1 merchant and {SPLITS} customers")
        if not 0 <= fraud_share <= 0.2:
            raise ConfigurationError(f"PaymentsSource: fraud_share must be from 0 to 0.2, got {fraud_share}")
        self.seed = seed
        self.rate_per_second = rate_per_second
        self.count = count
        self.merchants = merchants
        self.customers = customers
        self.fraud_share = fraud_share

    @property
    def bounded(self) -> bool:
        """Whether the source is bounded, that is, has a count."""
        return self.count is not None

    @property
    def event_rate(self) -> float:
        """Payments per second of event time."""
        return self.rate_per_second or _UNPACED_RATE

    def create_enumerator(self, job: JobInfo, uid: str) -> PaymentsEnumerator:
        """Create the enumerator, which paces the payments."""
        return PaymentsEnumerator(self)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one among the same payments."""
        check_form(state, ("next", "seed", "customers"), "PaymentsSource")
        if (state["seed"], state["customers"]) != (self.seed, self.customers):
            raise IncompatibleState(
                f"it is one among payments of seed {state['seed']} and {state['customers']} customers, and the program asks "
                f"for seed {self.seed} and {self.customers} customers; go on with the same"
            )

    def create_reader(self, context: ReaderContext) -> PaymentsReader:
        """Create a reader, which generates the payments."""
        return PaymentsReader(self)

    def block(self, split: int, number: int) -> list[dict[str, Any]]:
        """Generate the block of a split's payments that starts at ``number * 1000``, without timestamps."""
        rng = Random(f"{self.seed}/{split}/{number}")
        per_split = (self.customers - split + SPLITS - 1) // SPLITS
        customers = [split + SPLITS * int(x * per_split) for x in (rng.random() for _ in range(_BLOCK))]
        fraud = self._plant(rng, customers)
        first = number * _BLOCK * SPLITS + split
        random, merchants = rng.random, self.merchants
        payments = []
        for i, customer in enumerate(customers):
            kind = fraud.get(i)
            home = customer * 2654435761 % 4294967296 % len(_NAMES)
            city = _NAMES[home if kind != "travel" else _far_from(home, random())]
            lat, lon = CITIES[city]
            # A product of two uniform numbers: many small payments, few large ones.
            amount = 10 + int(random() * random() * 9980) * 0.5
            if kind == "spending":
                amount = 40_000 + int(random() * 120_000) * 0.5
            payments.append(
                {
                    "payment_id": f"p{first + i * SPLITS:010d}",
                    "customer_id": f"c{customer:07d}",
                    "merchant_id": f"m{int(random() * merchants):05d}",
                    "amount": amount,
                    "ts_ms": 0,
                    "place": {"city": city, "lat": lat + random() * 0.08 - 0.04, "lon": lon + random() * 0.08 - 0.04},
                    "is_fraud": kind is not None,
                    "fraud_kind": kind,
                }
            )
        return payments

    def _plant(self, rng: Random, customers: list[int]) -> dict[int, str]:
        """Choose the fraudulent payments of a block, and assign each episode to one customer."""
        fraud: dict[int, str] = {}
        # One episode of each kind makes 10 fraudulent payments; chance decides the rest of the share.
        wanted = self.fraud_share * _BLOCK / (2 + _BURST)
        episodes = int(wanted) + (rng.random() < wanted % 1)
        slots = rng.sample(range(_BLOCK // (2 * _BURST)), 3 * min(episodes, _BLOCK // (2 * _BURST) // 3))
        for n, slot in enumerate(slots):
            at = slot * 2 * _BURST  # episodes do not overlap
            customer = customers[at]
            if n % 3 == 0:
                for i in range(at, at + _BURST):
                    customers[i] = customer
                    fraud[i] = "velocity"
            elif n % 3 == 1:
                customers[at + 1] = customer
                fraud[at + 1] = "travel"
            else:
                fraud[at] = "spending"
        return fraud


def _far_from(home: int, chance: float) -> int:
    """Choose a city at least 500 km from another."""
    lat, lon = CITIES[_NAMES[home]]
    far = [
        i
        for i, (other_lat, other_lon) in enumerate(CITIES.values())
        if (lat - other_lat) ** 2 + (lon - other_lon) ** 2 > 25  # 5 degrees are 500 km or more here
    ]
    return far[int(chance * len(far))]


class PaymentsEnumerator:
    """Releases payments at the rate, or as fast as they are read."""

    def __init__(self, source: PaymentsSource, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._clock = clock
        self._next = 0
        """Number of planned payments, over all splits."""
        self._anchor = (0, _UNPACED_START)
        """The number and time (ms) of one payment, which determine the times of all others."""
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Start; with a rate, the next payment is due now."""
        if state is not None:
            self._next = state["next"]
        if self._source.rate_per_second is not None:
            self._anchor = (self._next, int(self._clock() * 1000))

    def plan(self, max_records: int) -> EpochInput:
        """Plan the due payments; counts per split differ by at most one."""
        due = self._due()
        end = due if due is not None else self._next + max(1, max_records)
        end = min(end, self._next + max(1, max_records))
        if self._source.count is not None:
            end = min(end, self._source.count)
        finished = end == self._source.count
        start, self._next = self._next, end
        ranges = [self._range(split, start, end, finished) for split in range(SPLITS)]
        backlog = (due if due is not None else self._source.count or end + max_records) - end
        if self._source.count is not None:
            backlog = min(backlog, self._source.count - end)
        return EpochInput(tuple(r for r in ranges if r.end > r.start), max(0, backlog), finished)

    def snapshot(self) -> Any:
        """Return the number of planned payments."""
        return {"next": self._next, "seed": self._source.seed, "customers": self._source.customers}

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Do nothing: no resources are open."""

    def wait(self, timeout: float) -> None:
        """Return when the next payment is due; at once without a rate."""
        due = self._due()
        if self._next == self._source.count:
            self._closed.wait(timeout)
        elif due is not None and due <= self._next:
            self._closed.wait(min(timeout, 1 / self._source.event_rate))

    def close(self) -> None:
        """End a wait."""
        self._closed.set()

    def _due(self) -> int | None:
        """Return the number of payments due by now; None without a rate."""
        if self._source.rate_per_second is None:
            return None
        number, began = self._anchor
        elapsed = self._clock() * 1000 - began
        return max(self._next, number + int(elapsed * self._source.rate_per_second / 1000))

    def _range(self, split: int, start: int, end: int, last: bool) -> SplitRange:
        first, stop = (-(-(n - split) // SPLITS) if n > split else 0 for n in (start, end))
        return SplitRange(f"payments-{split}", first, stop, stop - first, payload=self._anchor, last=last)


class PaymentsReader:
    """Generates payments."""

    def __init__(self, source: PaymentsSource) -> None:
        self._source = source

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[dict[str, Any]]]:
        """Generate the payments ``[part.start, part.end)`` of a split."""
        split = int(part.split.rpartition("-")[2])
        anchor, began = part.payload
        step = 1000 / self._source.event_rate
        at = part.start
        while at < part.end:
            number, offset = divmod(at, _BLOCK)
            payments = self._source.block(split, number)[offset : offset + part.end - at]
            times = [began + int(((at + i) * SPLITS + split - anchor) * step) for i in range(len(payments))]
            for payment, ts in zip(payments, times, strict=True):
                payment["ts_ms"] = ts
            for i in range(0, len(payments), max_batch):
                values = payments[i : i + max_batch]
                yield Batch(values, times[i : i + max_batch], functools.partial(_place, values))
            at += len(payments)

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _place(payments: list[dict[str, Any]], i: int) -> str:
    return f"payment {payments[i]['payment_id']}"
