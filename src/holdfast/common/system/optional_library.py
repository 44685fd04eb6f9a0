"""Libraries that only some programs need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import ConfigurationError

__all__ = ["optional_library"]


def optional_library(module: str, need: str, install: str) -> Any:
    """Import a library on its first use.

    Args:
        module: The module to import.
        need: What needs which library, e.g. "Avro needs fastavro".
        install: The argument of ``pip install``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ConfigurationError(f"{need}: pip install {install}") from None
