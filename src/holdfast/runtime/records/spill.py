"""FrameStore: holds the frames of an epoch, in memory up to a limit and beyond it in a temporary file."""

from __future__ import annotations

import os
import tempfile
from typing import IO

__all__ = ["FrameStore"]


class FrameStore:
    """Stores frames until the epoch's input is complete.

    >>> import tempfile
    >>> store = FrameStore(tempfile.gettempdir(), bound=4)
    >>> places = [store.put(b"abc"), store.put(b"defg")]
    >>> store.get(places[1]), store.get(places[0]); store.close()
    (b'defg', b'abc')
    """

    def __init__(self, directory: str, bound: int) -> None:
        self._directory = directory
        self._bound = bound
        self._held = 0
        self._frames: list[bytes | tuple[int, int]] = []
        self._file: IO[bytes] | None = None
        self._end = 0

    def put(self, frame: bytes) -> int:
        """Store a frame; returns its place."""
        if self._held + len(frame) <= self._bound:
            self._held += len(frame)
            self._frames.append(frame)
        else:
            if self._file is None:
                os.makedirs(self._directory, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  (closed by close)
            self._file.seek(self._end)
            self._file.write(frame)
            self._frames.append((self._end, len(frame)))
            self._end += len(frame)
        return len(self._frames) - 1

    def get(self, place: int) -> bytes:
        """Take the frame at a place and free its memory."""
        frame = self.look(place)
        self._frames[place] = b""
        return frame

    def look(self, place: int) -> bytes:
        """Read the frame at a place and keep it."""
        frame = self._frames[place]
        if isinstance(frame, bytes):
            return frame
        assert self._file is not None
        self._file.seek(frame[0])
        return self._file.read(frame[1])

    def size(self, place: int) -> int:
        """The number of bytes of the frame at a place."""
        frame = self._frames[place]
        return len(frame) if isinstance(frame, bytes) else frame[1]

    def put_back(self, place: int, frame: bytes) -> None:
        """Undo a `get`."""
        self._frames[place] = frame

    def close(self) -> None:
        """Drop everything."""
        self._frames.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
