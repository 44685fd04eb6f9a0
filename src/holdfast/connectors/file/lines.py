"""Byte ranges of text files, aligned to lines: the range ``[a, b)`` holds the lines that *start* in it.

For any cut of a file into ranges, each line is in exactly one range.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.connectors.file.files import FileVersion, InputFile, OpenFile
from holdfast.errors import InputLost

__all__ = ["BLOCK_SIZE", "blocks", "first_line", "line_number", "parts", "sample_line_length"]

BLOCK_SIZE = 1 << 20
"""Bytes read at once: large enough to make calls rare."""
_SAMPLE = 1 << 16


def blocks(file: OpenFile, start: int, end: int, size: int, path: str) -> Iterator[tuple[int, bytes]]:
    r"""Read the lines that start in ``[start, end)``, as blocks of whole lines with their offsets in the file.

    A block lacks the line feed of its last line; carriage returns are left in.

    Args:
        file: The open file.
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


def parts(block: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    r"""Cut a block of whole lines into parts of whole lines, with their offsets in the block.

    A part lacks the line feed of its last line, as a block does.

    Args:
        block: The lines, without the last line feed.
        size: The most bytes of a part that has several lines.

    >>> list(parts(b"a\nbb\n\nlong\nc", 4))
    [(0, b'a\nbb'), (5, b''), (6, b'long'), (11, b'c')]
    """
    start = 0
    while len(block) - start > size:
        end = block.rfind(b"\n", start, start + size + 1)
        if end < 0:  # a line longer than a part
            end = block.find(b"\n", start + size + 1)
        if end < 0:
            break
        yield start, block[start:end]
        start = end + 1
    yield start, block[start:]


def line_number(file: InputFile, offset: int) -> int:
    """Return the number (from 1) of the line at an offset by counting the line feeds before it.

    Continues from the last result for the file, so that consecutive calls read the file once.
    """
    counted_for = file.path, file.version
    at, count = _counted.get(counted_for, (0, 1))
    if at > offset:
        at, count = 0, 1
    opened = file.open()
    try:
        while at < offset:
            data = opened.read_at(at, min(offset - at, BLOCK_SIZE))
            if not data:
                break
            count += data.count(b"\n")
            at += len(data)
    finally:
        opened.close()
    _counted.clear()  # one file at a time suffices
    _counted[counted_for] = (at, count)
    return count


_counted: dict[tuple[str, FileVersion], tuple[int, int]] = {}
"""File -> an offset and its line number."""


def sample_line_length(file: InputFile) -> float:
    """Return the mean length in bytes of the file's first lines, line feeds included (at least 1)."""
    opened = file.open()
    try:
        data = opened.read_at(0, _SAMPLE)
    finally:
        opened.close()
    lines = data.count(b"\n")
    if not lines:
        return float(max(1, len(data)))
    return (data.rfind(b"\n") + 1) / lines


def first_line(file: InputFile) -> bytes:
    """Return the file's first line, without its line feed."""
    opened = file.open()
    try:
        return _until_line_feed(opened, 0, file.version.size, file.path)
    finally:
        opened.close()


def _read(file: OpenFile, start: int, end: int, path: str) -> bytes:
    data = file.read_at(start, end - start)
    if len(data) < end - start:
        raise InputLost(
            f"{path}: the file ends at byte {start + len(data)}, but had more when the source found it: it was "
            "truncated or replaced. Put the original file back"
        )
    return data


def _until_line_feed(file: OpenFile, start: int, size: int, path: str) -> bytes:
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


def _after_line_feed(file: OpenFile, start: int, size: int, path: str) -> int:
    return start + len(_until_line_feed(file, start, size, path)) + 1
