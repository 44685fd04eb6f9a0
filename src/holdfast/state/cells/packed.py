"""Lists of numbers in a row's cell, packed into bytes, eight for each element.

The numbers of a list are objects scattered in memory: reading the list waits for memory once per element. Packed, the
elements lie side by side, and reading them makes new objects, which are in the processor's cache. Only cells in memory are
packed: the stored form is that of a list.

Compiled modules call C functions of the same names instead, defined in the ``.pxd`` beside this module.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["UNPACKED", "pack_numbers", "unpack_numbers"]

_MOST = 64
"""The most elements of a packed list."""
_FLOATS, _INTEGERS = ([struct.Struct(f"{count}{code}") for count in range(_MOST + 1)] for code in "dq")


def pack_numbers(elements: list[Any], whole: bool) -> bytes | None:
    """Pack 64-bit integers (``whole``) or floats. None: too many, none at all, or one of another class.

    >>> packed = pack_numbers([0.5, 2.0], whole=False)
    >>> len(packed), unpack_numbers(packed, whole=False), pack_numbers([0.5, True], whole=False)
    (16, [0.5, 2.0], None)
    """
    kind = int if whole else float
    if not 0 < len(elements) <= _MOST or any(type(element) is not kind for element in elements):
        return None
    try:
        return (_INTEGERS if whole else _FLOATS)[len(elements)].pack(*elements)
    except struct.error:
        return None


def unpack_numbers(packed: bytes, whole: bool) -> list[Any]:
    """The elements of a packed list."""
    return [*(_INTEGERS if whole else _FLOATS)[len(packed) >> 3].unpack(packed)]


def _unpacked(kind: type) -> Callable[[Any], Sequence[Any]]:
    whole = kind is int
    return lambda elements: unpack_numbers(elements, whole) if type(elements) is bytes else elements


UNPACKED: dict[type | None, Callable[[Any], Sequence[Any]]] = {kind: _unpacked(kind) for kind in (float, int)}
"""By class of the packed elements: returns the elements of a list, whether it is packed or not."""
