"""Byte ranges of text files, aligned to lines: the range ``[a, b)`` holds the lines that *start* in it.

For any cut of a file into ranges, each line is in exactly one range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.errors import InputLost

__all__ = ["BLOCK_SIZE", "blocks", "line_number", "sample_line_length"]

BLOCK_SIZE = 1 << 20
"""Bytes read and parsed at once: large enough to make calls rare, small enough to stay in the CPU's cache."""
_SAMPLE = 1 << 16


def blocks(file: int, start: int, end: int, size: int, path: str) -> Iterator[tuple[int, bytes]]:
    r"""Read the lines that start in ``[start, end)``, as blocks of whole lines with their offsets in the file.

    A block lacks the line feed of its last line; carriage returns are left in.

    Args:
        file: The open file's descriptor.
        start: First byte of the range.
        end: First byte after it.
        size: End of the file for the source; a last line without a line feed counts.
        path: The file's name, for errors.

    Raises:
        InputLost: the file is shorter than ``size``.
    """
    at = start
    if start > 0:
        # The line at `start` begins here only if the byte before it ends the previous line.
        at = _after_line_feed(file, start - 1, size, path)
    while at < end:
        # Read up to the line feed that ends the last line starting before `stop`.
        stop = min(at + BLOCK_SIZE, end)
        data = _read(file, at, stop, path)
        if data.endswith(b"\n"):
            yield at, data[:-1]
        elif stop == end:
            tail = _until_line_feed(file, stop, size, path)
            yield at, data + tail
            return
        else:
            whole = data.rfind(b"\n")
            if whole < 0:  # a line longer than a block
                data += _until_line_feed(file, stop, size, path)
                yield at, data
                at += len(data) + 1
                continue
            yield at, data[:whole]
            stop = at + whole + 1
        at = stop


def line_number(path: str, offset: int) -> int:
    """Return the number (from 1) of the line at an offset by counting the line feeds before it.

    Continues from the last result for the file, so that consecutive calls read the file once.
    """
    at, count = _counted.get(path, (0, 1))
    if at > offset:
        at, count = 0, 1
    with open(path, "rb") as file:
        file.seek(at)
        while at < offset:
            data = file.read(min(offset - at, BLOCK_SIZE))
            if not data:
                break
            count += data.count(b"\n")
            at += len(data)
    _counted.clear()  # one file at a time suffices
    _counted[path] = (at, count)
    return count


_counted: dict[str, tuple[int, int]] = {}
"""Path -> an offset and its line number."""


def sample_line_length(path: str) -> float:
    """Return the mean length in bytes of the file's first lines, line feeds included (at least 1)."""
    with open(path, "rb") as file:
        data = file.read(_SAMPLE)
    lines = data.count(b"\n")
    if not lines:
        return float(max(1, len(data)))
    return (data.rfind(b"\n") + 1) / lines


def _read(file: int, start: int, end: int, path: str) -> bytes:
    data = os.pread(file, end - start, start)
    while len(data) < end - start:
        more = os.pread(file, end - start - len(data), start + len(data))
        if not more:
            raise InputLost(
                f"{path}: the file ends at byte {start + len(data)}, but had more when the source found it: it was "
                "truncated or replaced. Put the original file back"
            )
        data += more
    return data


def _until_line_feed(file: int, start: int, size: int, path: str) -> bytes:
    pieces = []
    step = 1 << 12
    while start < size:
        piece = _read(file, start, min(start + step, size), path)
        found = piece.find(b"\n")
        if found >= 0:
            pieces.append(piece[:found])
            break
        pieces.append(piece)
        start += len(piece)
        step = BLOCK_SIZE
    return b"".join(pieces)


def _after_line_feed(file: int, start: int, size: int, path: str) -> int:
    return start + len(_until_line_feed(file, start, size, path)) + 1
