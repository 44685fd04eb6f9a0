"""LinkedFiles: files of a base that a local store shares with the checkpoint storage by hard links, not yet read.

RocksDB verifies the checksum of every block that it reads, and never changes a finished file. So a damaged file is an error
sooner or later, never a wrong value. To find it sooner, a thread verifies the files against the checkpoint's checksums once
the job runs. If the store fails before that, the files are verified then, so that the error names the damaged file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from holdfast.checkpoint.files import verify_linked
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.stored.damage import Naming
from holdfast.state.stored.layout import state_of

__all__ = ["LinkedFiles", "states_in"]


def states_in(file: RawFile) -> range:
    """The ids of the states in a base's file."""
    return range(state_of(file.first_key), state_of(file.last_key) + 1)


class LinkedFiles:
    """The linked files of one store.

    Args:
        storage: The storage that shares them.
        directory: The store's directory.
        files: The files.
        named: Adds to an error the states in the file.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        files: Sequence[RawFile],
        named: Naming,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._files = files
        self._named = named
        self._found: CorruptFile | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def forget(self) -> None:
        """Watch no files any more: the store has others now."""
        self._files = []

    def begin(self) -> None:
        """Start to verify the files in the background, except those that belong mostly to other subtasks."""
        own = [file for file in self._files if not file.foreign]
        if own and self._thread is None:
            self._thread = threading.Thread(target=self._verify, args=(own,), name="holdfast-verify", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise CorruptFile if a damaged file was found."""
        if self._found is not None:
            raise self._found

    def explain(self) -> None:
        """Raise CorruptFile if a file is damaged; called after the store has failed."""
        self.check()
        self._verify(self._files)
        self.check()

    def _verify(self, files: Sequence[RawFile]) -> None:
        for file in files:
            with suppress(OSError):  # the file is gone: a compaction has read all of it, or no checkpoint has it any more
                try:
                    at = os.path.join(self._directory, file.name)
                    verify_linked(self._storage, file, at, self._stopped.is_set)
                except CorruptFile as error:
                    self._found = self._named(error, states_in(file))
                    return

    def close(self) -> None:
        """Stop the verification."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
