"""The fraud rules: what is remembered of each customer, and what a payment must look like to raise an alert."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.common import Types
from holdfast.datastream import KeyedProcessFunction, ListStateDescriptor, RuntimeContext, ValueStateDescriptor

__all__ = ["HISTORY", "RULES", "FraudRules", "distance_km", "spent_since", "travel_speed"]

RULES = ("rate-limit-trip", "impossible-travel", "spending-velocity", "unusual-amount")

HISTORY = 100
"""How many purchases of a customer are remembered."""
RATE_LIMIT = 6
"""More payments than these within `RATE_WINDOW_MS` trip the limit."""
RATE_WINDOW_MS = 60_000
SPENDING_LIMIT = 30_000.0
"""More rupees than these within `SPENDING_WINDOW_MS` are spent too fast."""
SPENDING_WINDOW_MS = 300_000
UNUSUAL_FACTOR = 20.0
"""So many times the mean of the remembered purchases is unusual, once there are `UNUSUAL_MIN` of them."""
UNUSUAL_MIN = 10
MAX_SPEED_KMH = 1_000.0
MIN_DISTANCE_KM = 100.0
"""Nearer places are told apart by chance."""

Purchase = Sequence[Any]
"""(ts_ms, amount)"""
Place = Sequence[Any]
"""(ts_ms, latitude, longitude, city)"""


def distance_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """The distance of two places on the globe, along the surface.

    >>> round(distance_km(19.08, 72.88, 28.61, 77.21))  # Mumbai to Delhi
    1147
    """
    a, b = math.radians(lat1), math.radians(lat2)
    half = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(math.radians(lon2 - lon1) / 2) ** 2
    return 12_742 * math.asin(math.sqrt(half))


def travel_speed(before: Place, now: Place) -> float | None:
    """How fast, in km/h, somebody would have had to travel between two payments; None if that was no journey."""
    distance: float = distance_km(before[1], before[2], now[1], now[2])
    if distance < MIN_DISTANCE_KM:
        return None
    seconds: float = max(abs(now[0] - before[0]) / 1000, 1.0)
    return distance / seconds * 3600


def spent_since(purchases: Sequence[Purchase], since_ms: int) -> float:
    """The sum of the purchases at or after a time."""
    return float(sum(amount for ts, amount in purchases if ts >= since_ms))


class FraudRules(KeyedProcessFunction):
    """Looks at each payment of a customer in the light of the customer's earlier ones; emits alerts, as dicts.

    An alert says which rule, about which payment, why, and (since the generator tells) whether that payment is fraud.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get hold of the state and register the metrics."""
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
        """Judge a payment, then remember it."""
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
        """A minute after the first payment that was counted: count anew."""
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
        else:  # where a payment is in doubt, the customer is not: the next one at home is no journey back
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
