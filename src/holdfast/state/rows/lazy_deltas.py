"""LazyDeltas: deltas of which a restore reads only the keys; their rows are fetched while the job runs.

Rows of large deltas go to one sparse local file, each delta at its own offset. The file has no name, so it vanishes with the
process. A lookup fetches the pieces it needs, and pieces close to them, by range reads. Meanwhile, threads fetch and verify
every piece that still has the newest row of some key.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from mmap import PROT_READ, mmap
from typing import Any

import msgspec

from holdfast.checkpoint.handles import Handle, IndexedFile
from holdfast.checkpoint.stores.storage import Data, NotFound, Storage
from holdfast.errors import CorruptFile
from holdfast.state.cells.row_pieces import encoded_rows, keys_of_head
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.sparse_file import Present
from holdfast.state.stored.damage import Naming
from holdfast.state.stored.delta import Change, LeftPiece, Piece, in_memory, open_piece, read_delta
from holdfast.state.stored.layout import Section

__all__ = ["LazyDelta", "LazyDeltas", "LazyRows"]

_GAP = 64 << 10
"""Gap in bytes up to which two pieces are fetched by one request."""
_MOST_IN_RUN = 1 << 20
"""Limit of a range read that a lookup waits for, in bytes."""
_MOST_IN_PART = 8 << 20
"""Limit of a range read in the background, in bytes."""
_LEAST = 1 << 20
"""Smallest delta that is fetched lazily, in bytes."""


class LazyRows:
    """A piece's rows, which may not be fetched yet. Once open, like `holdfast.state.cells.row_pieces.EncodedRows`."""

    __slots__ = ("_delta", "_groups", "current", "deleted", "keys", "piece", "rows", "schema", "size", "state")

    def __init__(self, delta: LazyDelta, state: int, piece: LeftPiece, groups: KeyGroupRange) -> None:
        """``state``: the id of the state; ``groups`` restricts the rows."""
        self._delta = delta
        self._groups = groups
        self.state = state
        self.schema, self.keys = keys_of_head(piece, groups, delta.where)
        self.piece = piece._replace(head=b"")
        self.rows: list[msgspec.Raw] | None = None
        """The rows of the keys; None until opened."""
        self.deleted: Sequence[Any] = ()
        self.size = 0
        """The memory of the rows, in bytes."""
        self.current: Mapping[Any, object] | None = None
        """Maps each key whose newest row is here to this object; None: unknown."""

    @staticmethod
    def open(lazy: Sequence[LazyRows]) -> None:
        """Fetch these rows and decode their pieces.

        Raises:
            CorruptFile: a piece is missing or altered; names the operator and the state.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if lazy:
            lazy[0]._delta.lazy_restore.at_once(_fetch, list(_runs(lazy, _MOST_IN_RUN)))
        for each in lazy:
            data = each.verified()
            each.size = in_memory(data)
            where = each._delta.where
            each.rows = encoded_rows(Piece(each.piece.first, each.piece.last, data, where=where), each._groups).rows
            if len(each.rows) != len(each.keys):
                raise CorruptFile(where, f"altered: {len(each.rows)} rows of {len(each.keys)} keys in the index")

    @property
    def needed(self) -> bool:
        """Whether any of the rows is the newest of its key."""
        current = self.current
        return current is None or any(current.get(key) is self for key in self.keys)

    def verified(self) -> Data:
        """The verified content of the piece, which must have been fetched."""
        return self._delta.content(self)


class _LocalFile:
    """The local file that holds the rows of all deltas."""

    def __init__(self, directory: str, size: int) -> None:
        self._file, path = tempfile.mkstemp(dir=directory)
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        os.ftruncate(self._file, size)
        self._map = mmap(self._file, size, prot=PROT_READ)

    def write(self, at: int, data: Data) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, at)  # a write to the memory map would kill the process if the disk is full
            at, view = at + written, view[written:]

    def view(self, at: int, length: int) -> memoryview:
        return memoryview(self._map)[at : at + length]


class LazyDelta:
    """One delta, as a `holdfast.state.snapshots.lazy_restore.PendingFile`."""

    def __init__(
        self,
        storage: Storage,
        file: IndexedFile,
        lazy_restore: LazyRestore,
        local: _LocalFile,
        at: int,
        named: Naming,
    ) -> None:
        self._storage = storage
        self._file = file
        self.lazy_restore = lazy_restore
        self._local = local
        self._at = at
        self._named = named
        self._lazy: list[LazyRows] = []
        self._present = Present(file.size)
        self.here = False

    @property
    def where(self) -> str:
        """The place of the file, for messages."""
        return self._storage.locate(self._file.path)

    def read(self, groups: KeyGroupRange, leaves: Callable[[Section], bool]) -> list[tuple[Change, list[LazyRows]]]:
        """The changes in these key groups, each with the rows to fetch later."""
        found: list[tuple[Change, list[LazyRows]]] = []
        for change in read_delta(self._storage, self._file, groups, leaves=leaves):
            lazy = [LazyRows(self, change.section.state, piece, groups) for piece in change.left]
            self._lazy += lazy
            found.append((change, lazy))
        return found

    def lacks(self, lazy: LazyRows) -> bool:
        """Whether a piece has not been fetched."""
        return not self._present.has(lazy.piece.start, lazy.piece.start + lazy.piece.length)

    def fetch(self, lazy: Sequence[LazyRows]) -> None:
        """Fetch adjacent pieces by one request."""
        start, end = lazy[0].piece.start, lazy[-1].piece.start + lazy[-1].piece.length
        try:
            data = self._storage.get_range(self._file.path, start, end - start)
        except NotFound as error:
            raise self._error(CorruptFile(self.where, "missing"), lazy) from error
        if len(data) != end - start:
            reason = f"truncated or altered: {len(data)} bytes instead of {end - start} at {start}"
            raise self._error(CorruptFile(self.where, reason), lazy)
        self._local.write(self._at + start, data)
        self._present.add(start, end)

    def content(self, lazy: LazyRows) -> Data:
        """The verified content of a piece that has been fetched."""
        body = self._local.view(self._at + lazy.piece.start, lazy.piece.length)
        try:
            return open_piece(lazy.piece, body, self.where)
        except CorruptFile as error:
            raise self._error(error, [lazy]) from error

    def _error(self, error: CorruptFile, lazy: Iterable[LazyRows]) -> CorruptFile:
        return self._named(error, {each.state for each in lazy})

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch and verify the needed pieces; implements `PendingFile`."""
        needed = [each for each in self._lazy if each.needed]
        for run in _runs(needed, _MOST_IN_PART):
            self.fetch(run)
            if not may_go_on():
                return
        for each in needed:
            if each.rows is None:
                each.verified()
        self._lazy.clear()
        self.here = True


def _runs(lazy: Iterable[LazyRows], most: int) -> Iterator[list[LazyRows]]:
    """Group missing pieces into range reads of up to ``most`` bytes; a larger piece is read alone."""
    run: list[LazyRows] = []
    for each in sorted(lazy, key=lambda each: (id(each._delta), each.piece.start)):
        delta, start, end = each._delta, each.piece.start, each.piece.start + each.piece.length
        if not delta.lacks(each):
            continue
        if run:
            before = run[-1].piece
            apart = run[-1]._delta is not delta or start - before.start - before.length > _GAP
            if apart or end - run[0].piece.start > most:
                yield run
                run = []
        run.append(each)
    if run:
        yield run


def _fetch(run: Sequence[LazyRows]) -> None:
    run[0]._delta.fetch(run)


class LazyDeltas:
    """Deltas of one subtask whose rows are fetched while the job runs.

    Args:
        storage: The storage with the deltas.
        directory: A local directory.
        deltas: The deltas.
        lazy_restore: Fetches the rows in the background.
        named: Adds to an error the states in the file.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        deltas: Sequence[IndexedFile],
        lazy_restore: LazyRestore,
        named: Naming,
    ) -> None:
        local = _LocalFile(directory, sum(delta.size for delta in deltas))
        self._deltas: dict[str, LazyDelta] = {}
        at = 0
        for delta in deltas:
            self._deltas[delta.path] = LazyDelta(storage, delta, lazy_restore, local, at, named)
            at += delta.size
        for each in reversed(self._deltas.values()):  # the newest rows are the most likely to be needed
            lazy_restore.expect(each)

    @staticmethod
    def of(
        deltas: Sequence[Handle], storage: Storage, directory: str, lazy_restore: LazyRestore, named: Naming
    ) -> LazyDeltas | None:
        """Those of these deltas whose rows should be fetched while the job runs. None: read all of them now."""
        large = [each for each in deltas if isinstance(each, IndexedFile) and each.size >= _LEAST]
        lazily = large and lazy_restore.pays(sum(each.size for each in large)) and storage.local_path(large[0].path) is None
        return LazyDeltas(storage, directory, large, lazy_restore, named) if lazily else None

    def __contains__(self, path: str) -> bool:
        return path in self._deltas

    def read(
        self, path: str, groups: KeyGroupRange, leaves: Callable[[Section], bool]
    ) -> list[tuple[Change, list[LazyRows]]]:
        """The changes of a delta, each with its lazy rows.

        Args:
            path: The delta's path.
            groups: The wanted key groups.
            leaves: Whether the rows of a section may be fetched later.

        Raises:
            CorruptFile: the file is missing, or its index is altered.
            IncompatibleState: the file has another form.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        return self._deltas[path].read(groups, leaves)
