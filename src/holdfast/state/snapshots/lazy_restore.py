"""LazyRestore: the parts of its checkpoint that a restored store still lacks while the job runs.

Threads fetch all of them in the background. What a lookup needs at once is fetched first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from holdfast.checkpoint.stores.in_parallel import in_parallel

__all__ = ["LazyRestore", "PendingFile"]

_LARGE = 32 << 20
"""Size in bytes from which a base, and the deltas taken together, are restored lazily."""
_AT_ONCE = 32
"""Concurrent range reads of a lookup."""
_THREADS = 4
"""Files fetched concurrently in the background."""
_PATIENCE_S = 0.5
"""Seconds that a background fetch waits at most for a lookup's range reads."""

_T = TypeVar("_T")


class PendingFile(Protocol):
    """A file with missing parts."""

    here: bool
    """Whether everything needed of the file has been fetched and verified."""

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch and verify the missing parts; stop when ``may_go_on`` returns False.

        Raises:
            CorruptFile: the file is missing or altered; names the operator and its states.
            StorageError: the storage refused a read, or the retry budget ran out.
        """


class LazyRestore:
    """The incomplete files of one store, and the threads that fetch them."""

    def __init__(self) -> None:
        self._files: list[PendingFile] = []
        self._then: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        """Guards the fields below."""
        self._begun = False
        self._left = 0
        """The number of incomplete files."""
        self._lookups = 0
        """The number of lookups with range reads in progress."""
        self._failure: Exception | None = None
        self._stopped = False
        self.complete = False
        """Whether all files are complete and verified."""

    @staticmethod
    def pays(size: int) -> bool:
        """Whether a base, or deltas, of this size should be restored lazily."""
        return size >= _LARGE

    @property
    def incomplete(self) -> bool:
        """Whether there are files that have not been fetched and verified."""
        return bool(self._files) and not self.complete

    def expect(self, file: PendingFile) -> None:
        """Add a file; called before `begin`."""
        self._files.append(file)

    def then(self, call: Callable[[], None]) -> None:
        """Call this when all files are complete."""
        self._then.append(call)

    def at_once(self, fetch: Callable[[_T], object], parts: Sequence[_T]) -> None:
        """Fetch concurrently the parts that a lookup waits for. A failure also fails the epoch, see `check`.

        Raises:
            CorruptFile: a part is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        self.check()
        if not parts:
            return
        with self._changed:
            self._lookups += 1
        try:
            for _ in in_parallel(fetch, parts, _AT_ONCE):
                pass
        except Exception as error:  # user code may catch the error, but its epoch must not complete
            self._fail(error)
            raise
        finally:
            with self._changed:
                self._lookups -= 1
                self._changed.notify_all()

    def begin(self) -> None:
        """Begin to fetch all files in the background."""
        with self._changed:
            if self._begun or self._stopped or not self._files:
                return
            self._begun = True
            self._left = len(self._files)
        files = iter(self._files)
        for _ in range(_THREADS):
            threading.Thread(target=self._complete, args=(files,), name="holdfast-lazy-restore", daemon=True).start()

    def _complete(self, files: Iterator[PendingFile]) -> None:
        """Fetch files; several threads share the iterator."""
        while self._may_go_on():
            with self._changed:
                file = next(files, None)
            if file is None:
                return
            try:
                file.complete(self._may_go_on)
            except Exception as error:
                return self._fail(error)
            with self._changed:
                self._left -= file.here
                if not self._left and not self._stopped:
                    for call in self._then:
                        call()
                    self.complete = True
                    self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _may_go_on(self) -> bool:
        """Let the range reads of a lookup go first; returns whether to continue."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lookups or self._stopped, _PATIENCE_S)
            return not self._stopped and self._failure is None

    def wait(self) -> None:
        """Wait until all files are complete.

        Raises:
            CorruptFile: one is missing or altered.
            StorageError: the storage refused a read, or the retry budget ran out.
            OSError: the store was closed.
        """
        self.begin()
        with self._changed:
            self._changed.wait_for(lambda: not self.incomplete or self._stopped or self._failure is not None)
        self.check()
        if self.incomplete:
            raise OSError("the local store was closed before all files of the checkpoint were there")

    def check(self) -> None:
        """Raise the error that ended the background fetch, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop fetching. The next restore fetches what is missing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
