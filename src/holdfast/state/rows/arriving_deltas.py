"""ArrivingDeltas: deltas of which the keys are here, and the rows are still being fetched.

The rows of a checkpoint's large deltas go to one local file, each delta to its part of it, with holes. The file has no name:
it goes with the process. Rows that are needed are fetched by range reads, those next to them with them. Meanwhile, threads
fetch all pieces of which rows are still the newest ones, and verify them.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from mmap import PROT_READ, mmap
from typing import Any

import msgspec

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.stores.storage import Data, NotFound, Storage
from holdfast.errors import CorruptFile
from holdfast.state.cells.row_pieces import encoded_rows, keys_of_head
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.snapshots.arrival import Arrival
from holdfast.state.snapshots.sparse_file import Present
from holdfast.state.stored.damage import Naming
from holdfast.state.stored.delta import Change, LeftPiece, Piece, in_memory, open_piece, read_delta
from holdfast.state.stored.layout import Section

__all__ = ["ArrivingDelta", "ArrivingDeltas", "LateRows"]

_GAP = 64 << 10
"""Bytes between two pieces that are rather read than requested separately."""
_MOST_IN_RUN = 1 << 20
"""Bytes of a range read that a lookup waits for, at most."""
_MOST_IN_PART = 8 << 20
"""Bytes of a range read in the background, at most."""


class LateRows:
    """The rows of a piece that is not here yet. Once open, it is like `holdfast.state.cells.row_pieces.EncodedRows`."""

    __slots__ = ("_delta", "_groups", "current", "deleted", "keys", "piece", "rows", "schema", "size", "state")

    def __init__(self, delta: ArrivingDelta, state: int, piece: LeftPiece, groups: KeyGroupRange) -> None:
        """``state``: the id of the state; ``groups`` restricts the rows."""
        self._delta = delta
        self._groups = groups
        self.state = state
        self.schema, self.keys = keys_of_head(piece, groups, delta.where)
        self.piece = piece._replace(head=b"")
        self.rows: list[msgspec.Raw] | None = None
        """The rows of the keys; None: it is not open."""
        self.deleted: Sequence[Any] = ()
        self.size = 0
        """Bytes of memory that the rows take."""
        self.current: Mapping[Any, object] | None = None
        """What has this object for each of the keys whose row here is the newest one; None: unknown."""

    @staticmethod
    def open(late: Sequence[LateRows]) -> None:
        """Have these rows.

        Raises:
            CorruptFile: a piece is missing or altered; names the operator and the state.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        if late:
            late[0]._delta.arrival.at_once(_fetch, list(_runs(late, _MOST_IN_RUN)))
        for each in late:
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
        """The content of the piece, which is here."""
        return self._delta.content(self)


class _LocalFile:
    """The local file of all deltas."""

    def __init__(self, directory: str, size: int) -> None:
        self._file, path = tempfile.mkstemp(dir=directory)
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        os.ftruncate(self._file, size)
        self._map = mmap(self._file, size, prot=PROT_READ)

    def write(self, at: int, data: Data) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, at)  # writing to the map would end the process if the disk is full
            at, view = at + written, view[written:]

    def view(self, at: int, length: int) -> memoryview:
        return memoryview(self._map)[at : at + length]


class ArrivingDelta:
    """One delta, an `holdfast.state.snapshots.arrival.Arriving` file."""

    def __init__(
        self,
        storage: Storage,
        file: IndexedFile,
        arrival: Arrival,
        local: _LocalFile,
        at: int,
        named: Naming,
    ) -> None:
        self._storage = storage
        self._file = file
        self.arrival = arrival
        self._local = local
        self._at = at
        self._named = named
        self._late: list[LateRows] = []
        self._present = Present(file.size)
        self.here = False

    @property
    def where(self) -> str:
        """The place of the file, for messages."""
        return self._storage.locate(self._file.path)

    def read(self, groups: KeyGroupRange, leaves: Callable[[Section], bool]) -> list[tuple[Change, list[LateRows]]]:
        """The changes of these key groups, with rows that are left."""
        found: list[tuple[Change, list[LateRows]]] = []
        for change in read_delta(self._storage, self._file, groups, leaves=leaves):
            late = [LateRows(self, change.section.state, piece, groups) for piece in change.left]
            self._late += late
            found.append((change, late))
        return found

    def lacks(self, late: LateRows) -> bool:
        """Whether a piece is not here."""
        return not self._present.has(late.piece.start, late.piece.start + late.piece.length)

    def fetch(self, late: Sequence[LateRows]) -> None:
        """Fetch pieces, in their order, and what lies between them."""
        start, end = late[0].piece.start, late[-1].piece.start + late[-1].piece.length
        try:
            data = self._storage.get_range(self._file.path, start, end - start)
        except NotFound as error:
            raise self._error(CorruptFile(self.where, "missing"), late) from error
        if len(data) != end - start:
            reason = f"truncated or altered: {len(data)} bytes instead of {end - start} at {start}"
            raise self._error(CorruptFile(self.where, reason), late)
        self._local.write(self._at + start, data)
        self._present.add(start, end)

    def content(self, late: LateRows) -> Data:
        """The content of a piece that is here."""
        body = self._local.view(self._at + late.piece.start, late.piece.length)
        try:
            return open_piece(late.piece, body, self.where)
        except CorruptFile as error:
            raise self._error(error, [late]) from error

    def _error(self, error: CorruptFile, late: Iterable[LateRows]) -> CorruptFile:
        return self._named(error, {each.state for each in late})

    def complete(self, may_go_on: Callable[[], bool]) -> None:
        """Fetch and verify the pieces that are needed; implements `Arriving`."""
        needed = [each for each in self._late if each.needed]
        for run in _runs(needed, _MOST_IN_PART):
            self.fetch(run)
            if not may_go_on():
                return
        for each in needed:
            if each.rows is None:
                each.verified()
        self._late.clear()
        self.here = True


def _runs(late: Iterable[LateRows], most: int) -> Iterator[list[LateRows]]:
    """Join pieces that are lacking to range reads of up to ``most`` bytes, unless a single piece is larger."""
    run: list[LateRows] = []
    for each in sorted(late, key=lambda each: (id(each._delta), each.piece.start)):
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


def _fetch(run: Sequence[LateRows]) -> None:
    run[0]._delta.fetch(run)


class ArrivingDeltas:
    """Deltas of one subtask that arrive while the job runs.

    Args:
        storage: The storage with the deltas.
        directory: A local directory.
        deltas: The deltas.
        arrival: Fetches the rows in the background.
        named: Adds to an error what the file holds.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        deltas: Sequence[IndexedFile],
        arrival: Arrival,
        named: Naming,
    ) -> None:
        local = _LocalFile(directory, sum(delta.size for delta in deltas))
        self._deltas: dict[str, ArrivingDelta] = {}
        at = 0
        for delta in deltas:
            self._deltas[delta.path] = ArrivingDelta(storage, delta, arrival, local, at, named)
            at += delta.size
        for each in reversed(self._deltas.values()):  # the newest rows are the likeliest to be needed
            arrival.expect(each)

    def __contains__(self, path: str) -> bool:
        return path in self._deltas

    def read(
        self, path: str, groups: KeyGroupRange, leaves: Callable[[Section], bool]
    ) -> list[tuple[Change, list[LateRows]]]:
        """The changes of a delta, each with its late rows.

        Args:
            path: The delta's path.
            groups: The wanted key groups.
            leaves: Whether rows of this section may come late.

        Raises:
            CorruptFile: the file is missing, or its index is altered.
            IncompatibleState: the file has another form.
            StorageError: the storage refused a read, or the retry budget ran out.
        """
        return self._deltas[path].read(groups, leaves)
