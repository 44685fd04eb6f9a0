"""Configuration, the map of settings by Flink's keys."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from holdfast.common.config_options import ConfigOption
from holdfast.common.config_values import (
    format_map,
    parse_boolean,
    parse_duration,
    parse_float,
    parse_integer,
    parse_memory_size,
)
from holdfast.errors import ConfigurationError

__all__ = ["DEPRECATED_KEYS", "Configuration"]

T = TypeVar("T")

DEPRECATED_KEYS: Mapping[str, str] = {
    "state.backend": "state.backend.type",
    "state.backend.incremental": "execution.checkpointing.incremental",
    "state.checkpoint-storage": "execution.checkpointing.storage",
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.checkpoints.num-retained": "execution.checkpointing.num-retained",
    "state.savepoints.dir": "execution.checkpointing.savepoint-dir",
    "state.storage.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
    "execution.savepoint.path": "execution.state-recovery.path",
    "restart-strategy": "restart-strategy.type",
}
"""Flink 1.x keys and their current names; a Configuration accepts both."""


class Configuration:
    """A map from Flink's keys to string values.

    Examples:
        >>> conf = Configuration.from_dict({"execution.checkpointing.interval": "1 min"})
        >>> conf.get_duration_ms("execution.checkpointing.interval", 0)
        60000
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._settings: dict[str, str] = {}
        self._typed: dict[str, Any] = {}
        """The settings among them that were given as a number, a boolean or bytes."""
        if other is not None:
            self.add_all(other)

    @classmethod
    def from_dict(cls, map: Mapping[str, Any]) -> Configuration:
        """Create a configuration from a dict."""
        configuration = cls()
        for key, value in map.items():
            configuration._put(key, _text(value))
        return configuration

    @staticmethod
    def _key(key: str) -> str:
        return DEPRECATED_KEYS.get(key, key)

    def _put(self, key: str, value: str, given: Any = None) -> Configuration:
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"a configuration key must be a non-empty string, got {key!r}")
        key = self._key(key)
        self._settings[key] = value
        if given is None:
            self._typed.pop(key, None)
        else:
            self._typed[key] = given
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
        """Return the option's value, or its default when unset.

        Raises:
            ConfigurationError: the value is not of the option's type.
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
        """Return a setting as a string."""
        return self._settings.get(self._key(key), default_value)

    def set_string(self, key: str, value: str) -> Configuration:
        """Set a string."""
        return self._put(key, _text(value))

    @staticmethod
    def parse_list_value(value: str | None) -> list[str]:
        """Parse a list written as ``a;b;c`` or as ``[a, b, c]``; of None or an empty text comes an empty list."""
        text = (value or "").strip()
        if text.startswith("[") and text.endswith("]"):
            items = [item.strip().strip("'\"") for item in text[1:-1].split(",")]
        else:
            items = [item.strip() for item in text.split(";")]
        return [item for item in items if item]

    def get_integer(self, key: str, default_value: int) -> int:
        """Return an integer.

        Raises:
            ConfigurationError: the setting has another form.
        """
        return self._read(key, parse_integer, default_value)

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set an integer."""
        return self._put(key, str(value), value)

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Return a boolean.

        Raises:
            ConfigurationError: the setting is neither ``true`` nor ``false``.
        """
        return self._read(key, parse_boolean, default_value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set a boolean."""
        return self._put(key, _text(bool(value)), bool(value))

    def get_float(self, key: str, default_value: float) -> float:
        """Return a float.

        Raises:
            ConfigurationError: the setting has another form.
        """
        return self._read(key, parse_float, default_value)

    def set_float(self, key: str, value: float) -> Configuration:
        """Set a float."""
        return self._put(key, repr(float(value)), float(value))

    def get_bytearray(self, key: str, default_value: bytearray) -> bytearray:
        """Return bytes, which are kept as hexadecimal text.

        Raises:
            ConfigurationError: the setting is not hexadecimal.
        """
        return self._read(key, bytearray.fromhex, default_value)

    def set_bytearray(self, key: str, value: bytearray) -> Configuration:
        """Set bytes."""
        return self._put(key, bytes(value).hex(), bytearray(value))

    def get_duration_ms(self, key: str, default_value: int) -> int:
        """Return a duration in milliseconds; see `parse_duration`.

        Raises:
            ConfigurationError: the setting has another form.
        """
        return self._read(key, parse_duration, default_value)

    def get_memory_bytes(self, key: str, default_value: int) -> int:
        """Return a memory size in bytes; see `parse_memory_size`.

        Raises:
            ConfigurationError: the setting has another form.
        """
        return self._read(key, parse_memory_size, default_value)

    def key_set(self) -> builtins.set[str]:
        """Return the keys that are set."""
        return set(self._settings)

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Copy all settings into the dict: those set as a number, a boolean or bytes as such, and others as texts."""
        target_dict.update({**self._settings, **self._typed})

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Copy all settings of ``other``, with ``prefix`` before each key."""
        if not isinstance(other, Configuration):
            raise TypeError(
                f"a Configuration is wanted, not a {type(other).__name__}; Configuration.from_dict(...) makes one of a dict"
            )
        for key, value in other._settings.items():
            self._put((prefix or "") + key, value, other._typed.get(key))
        return self

    def contains_key(self, key: str) -> bool:
        """Whether the key is set."""
        return self._key(key) in self._settings

    def to_dict(self) -> dict[str, str]:
        """Return all settings as a dict."""
        return dict(self._settings)

    def remove_config(self, key: str) -> bool:
        """Remove a setting; return whether it was set."""
        self._typed.pop(self._key(key), None)
        return self._settings.pop(self._key(key), None) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Configuration):
            return NotImplemented
        return self._settings == other._settings

    def __hash__(self) -> int:
        """The hash of the settings as they are now: a configuration that is a key must not change any more."""
        return hash(frozenset(self._settings.items()))

    def __repr__(self) -> str:
        return f"Configuration({self._settings!r})"

    def __str__(self) -> str:
        """All settings in Flink's form, ``{key=value, ...}``, in the order of their keys."""
        return f"{{{', '.join(f'{key}={value}' for key, value in sorted(self._settings.items()))}}}"


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
    if isinstance(value, (list, tuple)):
        return ";".join(map(_text, value))
    raise ConfigurationError(f"a setting is a string, a number, a boolean, a list or a map, got {value!r}")
