"""Configuration, the map of settings by Flink's keys, and the readers of values with units."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.common.config_options import ConfigOption

__all__ = [
    "Configuration",
    "format_duration",
    "format_map",
    "parse_boolean",
    "parse_duration",
    "parse_float",
    "parse_integer",
    "parse_map",
    "parse_memory_size",
]

T = TypeVar("T")

DEPRECATED_KEYS: Mapping[str, str] = {
    "state.backend": "state.backend.type",
    "state.backend.incremental": "execution.checkpointing.incremental",
    "state.checkpoint-storage": "execution.checkpointing.storage",
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.checkpoints.num-retained": "execution.checkpointing.num-retained",
    "state.savepoints.dir": "execution.checkpointing.savepoint-dir",
    "execution.savepoint.path": "execution.state-recovery.path",
    "restart-strategy": "restart-strategy.type",
}
"""Flink 1.x names of keys; they mean the new ones wherever a key is given."""

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
    """The milliseconds in ``'12000'``, ``'30 s'``, ``'1 min'``, ``'500 ms'``, ``'1d'``; rounded down.

    Examples:
        >>> parse_duration("1 min"), parse_duration("12000")
        (60000, 12000)

    Raises:
        ValueError: it is no such text.
    """
    return _quantity(text, _NANOS, "a duration", "12000 (ms), '30 s', '1 min', '2 h'") // 1_000_000


def parse_memory_size(text: str) -> int:
    """The bytes in ``'64mb'``, ``'1 g'``, ``'4096'``; units are powers of 1024.

    Examples:
        >>> parse_memory_size("64mb")
        67108864

    Raises:
        ValueError: it is no such text.
    """
    return _quantity(text, _BYTES, "a memory size", "4096 (bytes), '512kb', '64mb', '1g'")


def _quantity(text: str, units: Mapping[str, int], what: str, examples: str) -> int:
    match = _VALUE.fullmatch(str(text).strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"expected {what} such as {examples}, got {text!r}")
    return int(match[1]) * units[match[2]]


def parse_boolean(text: str) -> bool:
    """The boolean in ``'true'`` or ``'false'``, in any case.

    Raises:
        ValueError: it is neither.
    """
    lowered = str(text).strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"expected true or false, got {text!r}")
    return lowered == "true"


def format_duration(millis: int) -> str:
    """A number of milliseconds as the text that `parse_duration` reads."""
    return f"{millis} ms"


class Configuration:
    """A map of settings from Flink's keys to texts.

    Examples:
        >>> conf = Configuration.from_dict({"execution.checkpointing.interval": "1 min"})
        >>> conf.get_duration_ms("execution.checkpointing.interval", 0)
        60000
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._settings: dict[str, str] = {}
        if other is not None:
            self.add_all(other)

    @classmethod
    def from_dict(cls, map: Mapping[str, Any]) -> Configuration:
        """A configuration with these settings."""
        configuration = cls()
        for key, value in map.items():
            configuration._put(key, _text(value))
        return configuration

    @staticmethod
    def _key(key: str) -> str:
        return DEPRECATED_KEYS.get(key, key)

    def _put(self, key: str, value: str) -> Configuration:
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"a configuration key must be a non-empty string, got {key!r}")
        self._settings[self._key(key)] = value
        return self

    def _read(self, key: str, parse: Callable[[str], T], default_value: T) -> T:
        text = self._settings.get(self._key(key))
        if text is None:
            return default_value
        try:
            return parse(text)
        except ValueError as e:
            raise ConfigurationError(f"{key}: {e}") from e

    def get(self, option: ConfigOption[T]) -> T:
        """The option's value, its default when it is not set.

        Raises:
            ConfigurationError: the setting is not of the option's type.
        """
        return self._read(option.key, option.parse, option.default)

    def set(self, option: ConfigOption[T], value: T | str) -> Configuration:
        """Set an option, checking the value.

        Raises:
            ConfigurationError: the value is not of the option's type.
        """
        text = _text(value)
        try:
            option.parse(text)
        except ValueError as e:
            raise ConfigurationError(f"{option.key}: {e}") from e
        return self._put(option.key, text)

    def get_string(self, key: str, default_value: str) -> str:
        """The text of a setting."""
        return self._settings.get(self._key(key), default_value)

    def set_string(self, key: str, value: str) -> Configuration:
        """Set a text."""
        return self._put(key, _text(value))

    @staticmethod
    def parse_list_value(value: str) -> list[str]:
        """The items of a list written as ``a;b;c`` or as ``[a, b, c]``."""
        text = value.strip()
        if text.startswith("[") and text.endswith("]"):
            items = [item.strip().strip("'\"") for item in text[1:-1].split(",")]
        else:
            items = [item.strip() for item in text.split(";")]
        return [item for item in items if item]

    def get_integer(self, key: str, default_value: int) -> int:
        """A whole number.

        Raises:
            ConfigurationError: the setting is none.
        """
        return self._read(key, parse_integer, default_value)

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set a whole number."""
        return self._put(key, str(value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """True or false.

        Raises:
            ConfigurationError: the setting is neither.
        """
        return self._read(key, parse_boolean, default_value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set true or false."""
        return self._put(key, _text(bool(value)))

    def get_float(self, key: str, default_value: float) -> float:
        """A number.

        Raises:
            ConfigurationError: the setting is none.
        """
        return self._read(key, parse_float, default_value)

    def set_float(self, key: str, value: float) -> Configuration:
        """Set a number."""
        return self._put(key, repr(float(value)))

    def get_bytearray(self, key: str, default_value: bytearray) -> bytearray:
        """Bytes, kept as hexadecimal text.

        Raises:
            ConfigurationError: the setting is no such text.
        """
        return self._read(key, bytearray.fromhex, default_value)

    def set_bytearray(self, key: str, value: bytearray) -> Configuration:
        """Set bytes."""
        return self._put(key, bytes(value).hex())

    def get_duration_ms(self, key: str, default_value: int) -> int:
        """A duration in milliseconds; see `parse_duration`.

        Raises:
            ConfigurationError: the setting is none.
        """
        return self._read(key, parse_duration, default_value)

    def get_memory_bytes(self, key: str, default_value: int) -> int:
        """A memory size in bytes; see `parse_memory_size`.

        Raises:
            ConfigurationError: the setting is none.
        """
        return self._read(key, parse_memory_size, default_value)

    def key_set(self) -> builtins.set[str]:
        """The keys that are set."""
        return set(self._settings)

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Put all settings into the dict."""
        target_dict.update(self._settings)

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Take over all settings of the other, with ``prefix`` before each key."""
        if not isinstance(other, Configuration):
            raise TypeError(
                f"a Configuration is wanted, not a {type(other).__name__}; Configuration.from_dict(...) makes one of a dict"
            )
        for key, value in other._settings.items():
            self._put((prefix or "") + key, value)
        return self

    def contains_key(self, key: str) -> bool:
        """Whether the key is set."""
        return self._key(key) in self._settings

    def to_dict(self) -> dict[str, str]:
        """All settings."""
        return dict(self._settings)

    def remove_config(self, key: str) -> bool:
        """Remove a setting; whether there was one."""
        return self._settings.pop(self._key(key), None) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Configuration):
            return NotImplemented
        return self._settings == other._settings

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Configuration({self._settings!r})"


def parse_integer(text: str) -> int:
    """The whole number in a text.

    Raises:
        ValueError: there is none.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


def parse_float(text: str) -> float:
    """The number in a text.

    Raises:
        ValueError: there is none.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None


_ITEM = re.compile(r"\s*('(?:[^']|'')*'|[^,:']*)\s*:\s*('(?:[^']|'')*'|[^,']*)\s*(,|$)")


def parse_map(text: str) -> dict[str, str]:
    """The entries of ``a:1,b:'x,y'``; what holds a comma, a colon or a quote is put in single quotes.

    Raises:
        ValueError: it is no such text.
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
    """A dict as the text that `parse_map` reads."""

    def quoted(part: Any) -> str:
        text = str(part)
        plain = text == text.strip() and text and not re.search("[,:']", text)
        return text if plain else "'" + text.replace("'", "''") + "'"

    return ",".join(f"{quoted(k)}:{quoted(v)}" for k, v in entries.items())


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return format_map(value)
    raise ConfigurationError(f"a setting is a string, a number or a boolean, got {value!r}")
