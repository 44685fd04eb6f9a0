"""Kafka Streams' cases of the joins of a stream with a global table.

A case is a list of steps: what comes to the stream or the table, and what the join and the left join emit for it. The second
word of a stream's value is the key of the table; without one, it names none.
"""

from __future__ import annotations

from typing import Any


def stream(count: int, prefix: str, names: bool = True, without_first_key: bool = False) -> tuple[str, list[Any]]:
    keys = [None if without_first_key and n == 0 else n for n in range(count)]
    return "stream", [(key, f"{prefix}{n}" + (f",FKey{n}" if names else "")) for n, key in enumerate(keys)]


def table(count: int, prefix: str | None) -> tuple[str, list[Any]]:
    return "table", [(f"FKey{n}", None if prefix is None else f"{prefix}{n}") for n in range(count)]


def results(text: str) -> list[tuple[Any, str]]:
    """``key=value``, separated by blanks; a dash is no key."""
    found = [each.split("=") for each in text.split()]
    return [(None if key == "-" else int(key), value) for key, value in found]


_STEPS: dict[str, list[tuple[Any, str, str]]] = {
    "an empty table": [(stream(2, "X"), "", "0=X0,FKey0+null 1=X1,FKey1+null")],
    "updates of the table": [
        (stream(2, "X"), "", "0=X0,FKey0+null 1=X1,FKey1+null"),
        (table(2, "Y"), "", ""),
        (stream(4, "X"), "0=X0,FKey0+Y0 1=X1,FKey1+Y1", "0=X0,FKey0+Y0 1=X1,FKey1+Y1 2=X2,FKey2+null 3=X3,FKey3+null"),
        (table(4, "YY"), "", ""),
        (stream(4, "X"), *["0=X0,FKey0+YY0 1=X1,FKey1+YY1 2=X2,FKey2+YY2 3=X3,FKey3+YY3"] * 2),
        (table(4, "YYY"), "", ""),
    ],
    "matches": [
        (table(2, "Y"), "", ""),
        (stream(4, "X"), "0=X0,FKey0+Y0 1=X1,FKey1+Y1", "0=X0,FKey0+Y0 1=X1,FKey1+Y1 2=X2,FKey2+null 3=X3,FKey3+null"),
    ],
    "deleted rows": [
        (table(4, "Y"), "", ""),
        (stream(4, "X"), *["0=X0,FKey0+Y0 1=X1,FKey1+Y1 2=X2,FKey2+Y2 3=X3,FKey3+Y3"] * 2),
        (table(2, None), "", ""),
        (
            stream(4, "XX"),
            "2=XX2,FKey2+Y2 3=XX3,FKey3+Y3",
            "0=XX0,FKey0+null 1=XX1,FKey1+null 2=XX2,FKey2+Y2 3=XX3,FKey3+Y3",
        ),
    ],
    "pairs that name no row": [(table(4, "Y"), "", ""), (stream(4, "XXX", names=False), "", "")],
    "a pair without a key": [
        (table(2, "Y"), "", ""),
        (stream(2, "X", without_first_key=True), *["-=X0,FKey0+Y0 1=X1,FKey1+Y1"] * 2),
    ],
}
CASES = {name: [(step, results(inner), results(left)) for step, inner, left in steps] for name, steps in _STEPS.items()}
