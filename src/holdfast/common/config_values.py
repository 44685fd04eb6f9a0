"""The text forms of configuration values: durations, memory sizes, numbers, booleans and maps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "format_duration",
    "format_map",
    "parse_boolean",
    "parse_duration",
    "parse_float",
    "parse_integer",
    "parse_map",
    "parse_memory_size",
]

_VALUE = re.compile(r"(\d+)\s*([^\d\s]*)", re.ASCII)
_NANOS = {
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1000),
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
}
_BYTES = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1 << 40),
}


def parse_duration(text: str) -> int:
    """Parse milliseconds from ``'12000'``, ``'30 s'``, ``'1 min'``, ``'500 ms'``, ``'1d'``; rounded down.

    Examples:
        >>> parse_duration("1 min"), parse_duration("12000")
        (60000, 12000)

    Raises:
        ValueError: the text has another form.
    """
    return _quantity(text, _NANOS, "a duration", "12000 (ms), '30 s', '1 min', '2 h'") // 1_000_000


def parse_memory_size(text: str) -> int:
    """Parse bytes from ``'64mb'``, ``'1 g'``, ``'4096'``; units are powers of 1024.

    Examples:
        >>> parse_memory_size("64mb")
        67108864

    Raises:
        ValueError: the text has another form.
    """
    return _quantity(text, _BYTES, "a memory size", "4096 (bytes), '512kb', '64mb', '1g'")


def _quantity(text: str, units: Mapping[str, int], what: str, examples: str) -> int:
    match = _VALUE.fullmatch(str(text).strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"expected {what} such as {examples}, got {text!r}")
    return int(match[1]) * units[match[2]]


def parse_boolean(text: str) -> bool:
    """Parse ``'true'`` or ``'false'``, case-insensitive.

    Raises:
        ValueError: it is neither.
    """
    lowered = str(text).strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"expected true or false, got {text!r}")
    return lowered == "true"


def format_duration(millis: int) -> str:
    """Format milliseconds as text that `parse_duration` reads."""
    return f"{millis} ms"


def parse_integer(text: str) -> int:
    """Parse an integer.

    Raises:
        ValueError: the text is not a number.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


def parse_float(text: str) -> float:
    """Parse a number.

    Raises:
        ValueError: the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None


_ITEM = re.compile(r"\s*('(?:[^']|'')*'|[^,:']*)\s*:\s*('(?:[^']|'')*'|[^,']*)\s*(,|$)")


def parse_map(text: str) -> dict[str, str]:
    """Parse ``a:1,b:'x,y'``; single quotes enclose keys and values that contain a comma, colon or quote.

    Raises:
        ValueError: the text has another form.
    """
    entries: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            raise ValueError(f"expected key:value,key:value, got {text!r}")
        key, value = (part[1:-1].replace("''", "'") if part.startswith("'") else part.strip() for part in match.groups()[:2])
        entries[key] = value
        at = match.end()
    return entries


def format_map(entries: Mapping[Any, Any]) -> str:
    """Format a dict as text that `parse_map` reads."""

    def quoted(part: Any) -> str:
        text = str(part)
        plain = text == text.strip() and text and not re.search("[,:']", text)
        return text if plain else "'" + text.replace("'", "''") + "'"

    return ",".join(f"{quoted(k)}:{quoted(v)}" for k, v in entries.items())
