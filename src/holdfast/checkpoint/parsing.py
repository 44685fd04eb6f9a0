"""`parsing`: a file with a valid checksum whose content Holdfast did not write counts as damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zstandard

from holdfast.checkpoint.stores.object_store import Data
from holdfast.errors import CorruptFile

__all__ = ["PARSE_ERRORS", "inflated", "parsing"]

PARSE_ERRORS = (
    msgspec.MsgspecError, zstandard.ZstdError, struct.error, ValueError, TypeError, LookupError, ArithmeticError, EOFError,
    RecursionError, MemoryError,
)  # fmt: skip
"""What a parser raises for content that Holdfast did not write."""
_MOST_INFLATED = 1 << 15
"""A zstd frame unpacks to at most this many times its size: a block of 128 KB takes at least four bytes."""


@contextmanager
def parsing(where: str, what: str) -> Iterator[None]:
    """Turn any error of a parser into `CorruptFile`.

    Args:
        where: The file's name.
        what: What it should be, such as "an entry of a checkpoint log".
    """
    try:
        yield
    except PARSE_ERRORS as error:
        # The checksum matches, so the data was not altered on the way: Holdfast did not write it.
        raise CorruptFile(where, f"not {what}: {str(error) or type(error).__name__}") from error


def inflated(decompressor: zstandard.ZstdDecompressor, frame: Data, size: int, where: str) -> bytes:
    """Unpack one zstd frame of known size. Allocates no memory for a frame that claims another size.

    Raises:
        CorruptFile: it does not unpack to this size.
    """
    with parsing(where, "a frame of zstd"):
        claimed = zstandard.frame_content_size(frame)
        if claimed not in (size, -1) or size > _MOST_INFLATED * len(frame):
            raise CorruptFile(where, f"altered: {len(frame)} bytes claim to unpack to {claimed} bytes instead of {size}")
        data = decompressor.decompress(frame, max_output_size=size)
    if len(data) != size:
        raise CorruptFile(where, f"altered: it unpacks to {len(data)} bytes instead of {size}")
    return data
