"""The fraud rules: the state of each customer, and the conditions that raise an alert."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.common import Types
from holdfast.datastream import KeyedProcessFunction, ListStateDescriptor, RuntimeContext, ValueStateDescriptor

__all__ = ["HISTORY", "RULES", "FraudRules", "distance_km", "spent_since", "travel_speed"]

RULES = ("rate-limit-trip", "impossible-travel", "spending-velocity", "unusual-amount")

HISTORY = 100
"""Number of stored purchases of a customer."""
RATE_LIMIT = 6
"""Number of payments within `RATE_WINDOW_MS` above which the rule alerts."""
RATE_WINDOW_MS = 60_000
SPENDING_LIMIT = 30_000.0
"""Rupees spent within `SPENDING_WINDOW_MS` above which the rule alerts."""
SPENDING_WINDOW_MS = 300_000
UNUSUAL_FACTOR = 20.0
"""Multiple of the mean stored purchase above which a payment is unusual, once `UNUSUAL_MIN` are stored."""
UNUSUAL_MIN = 10
MAX_SPEED_KMH = 1_000.0
MIN_DISTANCE_KM = 100.0
"""Shorter distances are not journeys: places scatter around a city."""

Purchase = Sequence[Any]
"""(ts_ms, amount)"""
Place = Sequence[Any]
"""(ts_ms, latitude, longitude, city)"""


def distance_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Return the distance between two places along the earth's surface.

    >>> round(distance_km(19.08, 72.88, 28.61, 77.21))  # Mumbai to Delhi
    1147
    """
    a, b = math.radians(lat1), math.radians(lat2)
    half = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(math.radians(lon2 - lon1) / 2) ** 2
    return 12_742 * math.asin(math.sqrt(half))


def travel_speed(before: Place, now: Place) -> float | None:
    """Return the travel speed between two payments in km/h; None if the distance is no journey."""
    distance: float = distance_km(before[1], before[2], now[1], now[2])
    if distance < MIN_DISTANCE_KM:
        return None
    seconds: float = max(abs(now[0] - before[0]) / 1000, 1.0)
    return distance / seconds * 3600


def spent_since(purchases: Sequence[Purchase], since_ms: int) -> float:
    """Return the sum of the purchases at or after a time."""
    return float(sum(amount for ts, amount in purchases if ts >= since_ms))


class FraudRules(KeyedProcessFunction):
    """Compares each payment of a customer with earlier ones, and emits alerts as dicts.

    An alert names the rule, the payment and the reason, and whether the generator planted that payment as fraud.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state handles and register the metrics."""
        purchase = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        place = Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.DOUBLE(), Types.STRING()])
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent_purchases", purchase))
        self.last_place = runtime_context.get_state(ValueStateDescriptor("last_place", place))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.first_seen = runtime_context.get_state(ValueStateDescriptor("first_seen_ms", Types.LONG()))
        metrics = runtime_context.get_metrics_group()
        self.planted = metrics.counter("planted")
        self.planted_in_bursts = metrics.counter("plantedInBursts")
        self.caught = metrics.counter("caught")
        self.false_alerts = metrics.counter("falseAlerts")
        self.alerts = {rule: metrics.add_group("alerts").counter(rule) for rule in RULES}

    def process_element(self, value: Mapping[str, Any], ctx: KeyedProcessFunction.Context) -> Iterator[dict[str, Any]]:
        """Check a payment against the rules, then store it."""
        fraud = value["is_fraud"]
        if fraud:
            (self.planted_in_bursts if value["fraud_kind"] == "velocity" else self.planted).inc()
        findings = [*self._rate(ctx), *self._travel(value), *self._spending(value)]
        if not findings:
            return
        if fraud:
            self.caught.inc()
        for rule, detail in findings:
            self.alerts[rule].inc()
            if not fraud:
                self.false_alerts.inc()
            yield {
                "ts_ms": value["ts_ms"],
                "customer": value["customer_id"],
                "payment": value["payment_id"],
                "rule": rule,
                "detail": detail,
                "planted": fraud,
            }

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        """Reset the count, a minute after the first counted payment."""
        self.count.clear()
        self.first_seen.clear()

    def _rate(self, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, str]]:
        count = (self.count.value() or 0) + 1
        if count == 1:
            self.first_seen.update(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + RATE_WINDOW_MS)
        self.count.update(count)
        if count == RATE_LIMIT + 1:
            seconds = (ctx.timestamp() - (self.first_seen.value() or 0)) / 1000
            yield RULES[0], f"{count} payments within {seconds:.0f} s"

    def _travel(self, payment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        where = payment["place"]
        now = (payment["ts_ms"], where["lat"], where["lon"], where["city"])
        before = self.last_place.value()
        speed = None if before is None else travel_speed(before, now)
        if before is not None and speed is not None and speed > MAX_SPEED_KMH:
            minutes = abs(now[0] - before[0]) / 60_000
            yield RULES[1], f"{before[3]} to {now[3]} within {minutes:.1f} min"
        else:  # ignore the place of a suspect payment, or the next one at home would look like a journey
            self.last_place.update(now)

    def _spending(self, payment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        amount, ts = payment["amount"], payment["ts_ms"]
        recent = list(self.recent.get())
        before = spent_since(recent, ts - SPENDING_WINDOW_MS)
        if before <= SPENDING_LIMIT < before + amount:
            yield RULES[2], f"{before + amount:,.2f} within {SPENDING_WINDOW_MS // 60_000} min"
        if len(recent) >= UNUSUAL_MIN:
            mean = sum(bought for _, bought in recent) / len(recent)
            if amount > UNUSUAL_FACTOR * mean:
                yield RULES[3], f"{amount:,.2f}, {amount / mean:.0f} times the mean of the last {len(recent)}"
        if len(recent) < HISTORY:
            self.recent.add((ts, amount))
        else:
            self.recent.update([*recent[1 - HISTORY :], (ts, amount)])
