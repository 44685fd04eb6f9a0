"""Checks of the arguments that programs give to Kafka sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigurationError

__all__ = ["client_properties", "is_topic", "refuse_class", "require_topic"]


def client_properties(kind: str, given: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The client's properties: those given as a mapping, and those given by name, which take precedence.

    Raises:
        ConfigurationError: there are no servers.
    """
    properties = {**(given or {}), **{name: value for name, value in named.items() if value is not None}}
    if not properties.get("bootstrap.servers"):
        raise ConfigurationError(f"a {kind} needs set_bootstrap_servers(...), or the argument bootstrap_servers")
    return properties


def is_topic(name: Any) -> bool:
    """Whether a topic may have this name, as far as the client library does not tell by itself: it dies of some names."""
    return isinstance(name, str) and bool(name) and name.isascii() and "\0" not in name


def require_topic(name: Any, what: str) -> None:
    """Refuse anything but a name of a topic."""
    if not is_topic(name):
        raise ConfigurationError(f"{what}, got {name!r}")


def refuse_class(given: Any, wanted: type) -> None:
    """Refuse a class where an object of it belongs."""
    if isinstance(given, type) and issubclass(given, wanted):
        raise ConfigurationError(f"got the class {given.__name__}; give it an object: {given.__name__}(...)")
