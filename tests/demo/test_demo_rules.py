from __future__ import annotations

import pytest

from holdfast.connectors.datagen import CITIES
from holdfast.demo.rules import MAX_SPEED_KMH, distance_km, spent_since, travel_speed

HOUR = 3_600_000


def place(city: str, ts: int = 0) -> tuple[int, float, float, str]:
    return (ts, *CITIES[city], city)


def the_distance_is_along_the_globe() -> None:
    assert distance_km(*CITIES["Mumbai"], *CITIES["Delhi"]) == pytest.approx(1147, abs=1)
    assert distance_km(*CITIES["Pune"], *CITIES["Pune"]) == 0
    assert distance_km(0, 0, 0, 180) == pytest.approx(20_015, abs=1)


def a_flight_is_possible_and_a_second_is_not() -> None:
    slow = travel_speed(place("Mumbai"), place("Delhi", 3 * HOUR))
    assert slow is not None
    assert slow < MAX_SPEED_KMH
    fast = travel_speed(place("Mumbai"), place("Delhi", 1000))
    assert fast is not None
    assert fast > MAX_SPEED_KMH


def the_order_of_two_payments_does_not_matter_for_the_speed() -> None:
    a, b = place("Mumbai"), place("Delhi", HOUR)
    assert travel_speed(a, b) == pytest.approx(travel_speed(b, a))


def test_two_payments_in_one_city_are_no_journey() -> None:
    assert travel_speed(place("Pune"), (1, 18.55, 73.89, "Pune")) is None


def test_only_recent_purchases_count() -> None:
    purchases = [(10, 5.0), (20, 7.0), (30, 1.5)]
    assert spent_since(purchases, 20) == 8.5
    assert spent_since([], 0) == 0
