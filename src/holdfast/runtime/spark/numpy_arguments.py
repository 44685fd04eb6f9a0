"""Keeps the driver from importing NumPy, Arrow and PySpark's test utilities.

PySpark 4 imports them for each object passed to the JVM, to check whether it is a NumPy array: a fifth of a second at the
start, and 20 MB. An object can be one only if the program has imported NumPy.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["convert_only_if_numpy_is_loaded"]

_CONVERTERS = ("NumpyArrayConverter", "NumpyScalarConverter")


class _IfLoaded:
    """One of PySpark's converters, used only once NumPy is loaded."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter
        self.convert = converter.convert

    def can_convert(self, argument: Any) -> bool:
        """Whether the argument is a NumPy object."""
        return "numpy" in sys.modules and bool(self._converter.can_convert(argument))


def convert_only_if_numpy_is_loaded() -> None:
    """Guard PySpark's converters of arguments, once."""
    import pyspark.sql.types  # noqa: F401 - registers them
    from py4j import protocol

    converters = protocol.INPUT_CONVERTER
    converters[:] = [_IfLoaded(each) if type(each).__name__ in _CONVERTERS else each for each in converters]
