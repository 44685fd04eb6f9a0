"""LinkedFiles: files of a base that a local store shares with the checkpoint storage by hard links, unread so far.

RocksDB verifies the checksum of every block that it reads, and never changes a finished file. So a damaged file is an error
sooner or later, never a wrong value. To make it sooner, a thread verifies the files against the checkpoint's checksums once
the job runs. If the store fails before, the files are verified at once, so that the error names the damaged file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress

from holdfast.checkpoint.files import verify_linked
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.layout import state_of

__all__ = ["LinkedFiles", "naming", "states_in"]


def naming(error: CorruptFile, states: Container[int], where: str, names: Mapping[int, str]) -> CorruptFile:
    """The error of a file of keyed state, which also says what the file holds.

    Args:
        error: The error.
        states: The ids of the states in the file.
        where: The operator.
        names: The names of its states by id.
    """
    found = [repr(name) for number, name in sorted(names.items()) if number in states]
    content = f"state of {where}" + (f": {', '.join(found)}" if found else "")
    return CorruptFile(error.path, f"{error.reason}; it holds {content}")


def states_in(file: RawFile) -> range:
    """The ids of the states in a base's file."""
    return range(state_of(file.first_key), state_of(file.last_key) + 1)


class LinkedFiles:
    """The linked files of one store.

    Args:
        storage: The storage that shares them.
        where: The operator, for errors.
        directory: The store's directory.
        files: The files.
        names: Returns the names of states by id, for errors.
    """

    def __init__(
        self,
        storage: Storage,
        where: str,
        directory: str,
        files: Sequence[RawFile],
        names: Callable[[], dict[int, str]] = dict,
    ) -> None:
        self._storage = storage
        self._where = where
        self._directory = directory
        self._files = files
        self._names = names
        self._found: CorruptFile | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def forget(self) -> None:
        """Watch no files: those of the store are others."""
        self._files = []

    def begin(self) -> None:
        """Begin to verify the files in the background, except those that belong mostly to other subtasks."""
        own = [file for file in self._files if not file.foreign]
        if own and self._thread is None:
            self._thread = threading.Thread(target=self._verify, args=(own,), name="holdfast-verify", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise CorruptFile if a damaged file was found."""
        if self._found is not None:
            raise self._found

    def explain(self) -> None:
        """Raise CorruptFile if a file is damaged; called when the store has failed."""
        self.check()
        self._verify(self._files)
        self.check()

    def _verify(self, files: Sequence[RawFile]) -> None:
        for file in files:
            with suppress(OSError):  # it is gone: a compaction has read all of it, or no checkpoint has it any more
                try:
                    at = os.path.join(self._directory, file.name)
                    verify_linked(self._storage, file, at, self._stopped.is_set)
                except CorruptFile as error:
                    self._found = naming(error, states_in(file), self._where, self._names())
                    return

    def close(self) -> None:
        """Stop."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
