"""Keys of a map that are equal and yet not the same (1, 1.0 and True) are one key, and the first one stays, as in a dict."""

from __future__ import annotations

import functools
from collections import namedtuple
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time, Types
from holdfast.datastream.state import MapStateDescriptor, StateTtlConfig
from holdfast.errors import UserCodeError
from holdfast.state.cells import entries

from .backend import Backend

Pair = namedtuple("Pair", "left right")
HOUR = 3_600_000


class Name(str):
    __slots__ = ()


TWICE = datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"))
"""A time that the zone's clocks show twice: it equals the second one, and no time of another zone."""
NEVER = TWICE.replace(month=3, day=10, hour=2)
EQUAL: list[list[Any]] = [
    [1, 1.0, True, Decimal(1), Decimal("1.00"), Fraction(2, 2)],
    [0, 0.0, -0.0, False],
    [Decimal(7), Decimal("7.00"), 7, 7.0],
    ["a", Name("a")],
    [(1, 2), (1.0, 2), Pair(1, 2)],
    [(0.0, 1), (-0.0, 1), (False, True)],
    [b"a", None, 2, "b"],
    [TWICE, TWICE.replace(fold=1), TWICE.astimezone(timezone.utc), TWICE.replace(fold=1).astimezone(timezone.utc)],
    [
        (1, TWICE),
        (1.0, TWICE.replace(fold=1)),
        Pair(1, TWICE),
        (1, TWICE.astimezone(timezone.utc)),
        NEVER,
        NEVER.replace(fold=1),
    ],
    [TWICE.replace(hour=5), TWICE.replace(hour=5).astimezone(timezone.utc), TWICE.replace(hour=5, tzinfo=None)],
]
"""Keys that are equal, and some that are not."""
TYPES = [
    None,
    None,
    Types.LONG(),
    Types.DOUBLE(),
    Types.BIG_DEC(),
    Types.STRING(),
    Types.TUPLE([Types.DOUBLE(), Types.LONG()]),
]


@st.composite
def programs(draw: Any) -> list[Any]:
    """Steps with a few keys, most of which are equal to others."""
    keys = st.sampled_from([key for each in draw(st.lists(st.sampled_from(EQUAL), min_size=1, max_size=2)) for key in each])
    step = st.one_of(
        *[st.tuples(st.just("put"), keys, st.integers(0, 9))] * 3,
        st.tuples(st.just("put all"), st.lists(st.tuples(keys, st.integers(0, 9)), max_size=3)),
        st.tuples(st.just("get"), keys),
        st.tuples(st.just("remove"), keys),
        st.tuples(st.just("read")),
        st.tuples(st.just("clear")),
        *[st.tuples(st.just("checkpoint"))] * 3,
        st.tuples(st.just("evict")),
        st.tuples(st.just("restart"), st.sampled_from(["rocksdb", "hashmap"])),
    )
    return draw(st.lists(step, min_size=10, max_size=25))


@pytest.mark.parametrize("ttl", [False, True])
@settings(
    deadline=None,
    max_examples=examples(20),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    declared=st.sampled_from(TYPES),
    kind=st.sampled_from(["rocksdb", "hashmap"]),
    most=st.sampled_from([0, 0, 1, 256]),
    taken=programs(),
)
def the_first_of_equal_keys_stays_in_maps_of_any_size(
    ttl: bool, declared: Any, kind: str, most: int, taken: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "MOST_IN_ROW", most)
        backend = Backend(kind, [made(declared, ttl)])
        try:
            drive(backend, declared, taken)
        finally:
            backend.close()


def made(declared: Any, ttl: bool) -> MapStateDescriptor[Any, Any]:
    descriptor = MapStateDescriptor("map", declared, Types.LONG())
    if ttl:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(HOUR)).build())
    return descriptor


def drive(backend: Backend, declared: Any, taken: list[Any]) -> None:
    """Take the steps with the state and with a dict."""
    model: dict[Any, int] = {}
    kept: dict[Any, int] = {}
    for what, *arguments in [*taken, ("read",), ("checkpoint",), ("read",), ("restart", "rocksdb"), ("read",)]:
        backend.use("k")
        handle = backend.handles["map"]
        if what == "put":
            if (key := fitted(declared, arguments[0])) is not None:
                handle.put(arguments[0], arguments[1])
                model[key[0]] = arguments[1]
        elif what == "put all":
            pairs = [(fitted(declared, key), key, value) for key, value in arguments[0]]
            handle.put_all([(key, value) for fit, key, value in pairs if fit is not None])
            # The argument is a mapping in the API; of equal keys in pairs, the first one is the mapping's.
            model.update({fitted(declared, key)[0]: value for key, value in dict_of(pairs).items()})  # type: ignore[index]
        elif what == "get":
            if (key := fitted(declared, arguments[0])) is not None:
                assert handle.get(arguments[0]) == model.get(key[0])
        elif what == "remove":
            if (key := fitted(declared, arguments[0])) is not None:
                handle.remove(arguments[0])
                model.pop(key[0], None)
        elif what == "read":
            expected = sorted(map(repr, model.items()))
            assert sorted(map(repr, handle.items())) == expected
            assert sorted(map(repr, handle.keys())) == sorted(map(repr, model))
        elif what == "clear":
            handle.clear()
            model.clear()
        elif what == "checkpoint":
            kept = dict(model)
            backend.checkpoint()
        elif what == "evict":
            kept = dict(model)
            backend.checkpoint()
            backend.state.evict(1 << 40)
        else:
            model = dict(kept)
            backend.restart(elsewhere=True, kind=arguments[0])


def dict_of(pairs: list[Any]) -> dict[Any, int]:
    return dict([(key, value) for fit, key, value in pairs if fit is not None])


@functools.cache
def _refused_or_held(declared: int, key: Any, shown: str) -> tuple[Any] | None:
    backend = Backend("hashmap", [MapStateDescriptor("map", TYPES[declared], Types.LONG())])
    try:
        backend.use("k")
        backend.handles["map"].put(key, 1)
        backend.state.check("k")
        return (next(iter(backend.handles["map"].keys())),)
    except (TypeError, ValueError, OverflowError, UserCodeError):
        return None
    finally:
        backend.close()


def fitted(declared: Any, key: Any) -> tuple[Any] | None:
    """The key as a state of this type holds it; None if it is refused."""
    return (key,) if declared is None else _refused_or_held(TYPES.index(declared), key, repr(key))


def a_key_after_the_expiry_of_an_equal_one_is_the_first_again() -> None:
    """Whether the clean-up was there before or not."""
    for cleaned in (False, True):
        for most in (0, 256):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(entries, "MOST_IN_ROW", most)
                backend = Backend("rocksdb", [made(None, ttl=True)])
                backend.use("k")
                backend.handles["map"].put_all({1: 1, "a": 1})
                backend.checkpoint()
                backend.clock.processing_time = 2 * HOUR
                if cleaned:
                    backend.space.sweep()
                backend.use("k")
                backend.handles["map"].put(1.0, 2)
                assert list(map(repr, backend.handles["map"].items())) == ["(1.0, 2)"]
                backend.checkpoint()
                backend.restart(elsewhere=True)
                backend.use("k")
                assert list(map(repr, backend.handles["map"].items())) == ["(1.0, 2)"]
                backend.close()
