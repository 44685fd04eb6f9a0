"""KeyedChangelog: restores one subtask's keyed state of an operator from its changelog, and writes the changelog."""

from __future__ import annotations

import logging
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from holdfast.checkpoint.changelog import ChangelogLog, Delivered, Marker, MarkerKey, Row
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.errors import HoldfastError
from holdfast.state.changelogs.changelog import difference, matches, name_of, others, partitions_of, valid
from holdfast.state.changelogs.changelog_copy import ChangelogCopy
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored.delta import Change
from holdfast.state.stored.layout import END, FIRST, after, section_of, split_key

__all__ = ["KeyedChangelog"]

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds to wait for the rows of committed transactions: Kafka answers before readers see a transaction's end."""
_POLL = 0.02
_BATCH = 10_000


@dataclass
class _Written:
    """What an epoch has written to the log."""

    epoch: Epoch
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    markers: Mapping[MarkerKey, Marker | None] = field(default_factory=dict)
    delivered: Delivered = field(default_factory=lambda: Delivered({}, {}))

    @cached_property
    def keys(self) -> list[bytes]:
        """The keys of its rows, sorted."""
        return sorted(self.rows)


class KeyedChangelog:
    """The changelog of one operator in one subtask.

    Args:
        changelog: The log.
        where: The operator, for messages.
        groups: The key groups of the subtask.
        max_parallelism: The number of key groups.
        uncommitted: Committables of the restored checkpoint that may still have to be committed.
    """

    def __init__(
        self,
        changelog: ChangelogLog,
        where: str,
        groups: KeyGroupRange,
        max_parallelism: int,
        uncommitted: Sequence[Any] = (),
    ) -> None:
        self._uncommitted = uncommitted
        self._log = changelog
        self._where = where
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._partitions = partitions_of(groups, changelog.partitions, max_parallelism)
        self._copy: ChangelogCopy | None = None
        self._filled = True
        """Whether the log holds the state that the subtask has restored."""
        self._seed = ""
        self._markers: dict[MarkerKey, Marker] = {}
        """The markers in the log, including those of the last complete epoch."""
        self._ends: dict[int, int] = {}
        """The offsets after the records of the last complete epoch, by partition."""
        self._epoch = _Written(Epoch(0))
        self._waiting: list[_Written] = []
        """Rows of completed epochs whose transactions may not be committed yet."""

    @property
    def copy(self) -> ChangelogCopy:
        """The open copy."""
        assert self._copy is not None
        return self._copy

    # restoring

    def restore(self, path: str, settings: Mapping[str, str], handles: Sequence[KeyedHandle]) -> bool:
        """Bring the copy at ``path`` to the log's end; returns whether it holds the state of these handles.

        The driver may be about to commit the checkpoint's transactions. They are committed here as well: since transactions
        of the running epoch may be open, nothing else tells when the log is complete.
        """
        self._log.commit(self._uncommitted)
        self._copy = ChangelogCopy(path, settings, self._log, self._groups, self._max_parallelism)
        self._filled = self._reach(handles) or self._reach_again(handles)
        self._markers = dict(self.copy.markers)
        if self._contested():
            log.warning(
                "the changelog of %s is also written by another job of this name, or a copy of this one, with checkpoints "
                "in another storage. Neither can restore from it: give one of them another name (pipeline.name)",
                self._where,
            )
        elif not self._filled and name_of(handles):
            log.warning(
                "the changelog of %s does not hold the state of the checkpoint: it is restored from the checkpoint's files, "
                "and the first epoch writes the difference",
                self._where,
            )
        return self._filled

    def _reach(self, handles: Sequence[KeyedHandle]) -> bool:
        until = time.monotonic() + PATIENCE
        while True:
            settled = self._log.settled(self._partitions)  # asked first: rows may be committed between the two calls
            self.copy.catch_up()
            if self._holds(handles):
                return True
            if settled or time.monotonic() > until:
                return False
            time.sleep(_POLL)  # the brokers do not tell when a transaction ends

    def _reach_again(self, handles: Sequence[KeyedHandle]) -> bool:
        """Read the log from its beginning if the copy may be wrong."""
        if not self.copy.found:
            return False
        self.copy.clear()
        return self._reach(handles)

    def _holds(self, handles: Sequence[KeyedHandle]) -> bool:
        copy = self.copy
        if not name_of(handles):
            return copy.empty
        return matches(handles, self._groups, copy.markers, self._log.partitions, self._max_parallelism)

    def _contested(self) -> bool:
        """Whether another job has written to the log since this one did."""
        markers = self._markers
        return any(
            key.writer == self._log.writer and marker.others != others(key, markers) for key, marker in markers.items()
        )

    @property
    def found(self) -> bool:
        """Whether the host had a copy that could be continued."""
        return self.copy.found

    def link(self, directory: str) -> None:
        """Make a local store of the restored state."""
        self.copy.link(directory)

    # writing

    def begin(self, state: KeyedState, epoch: Epoch, committed: CheckpointId) -> None:
        """Begin an epoch. If the log does not hold the restored state, write the difference first.

        ``committed``: the last checkpoint whose transactions are committed. Only now does the copy take their rows: had they
        been lost, the copy would hold rows that the log lacks.
        """
        while self._waiting and self._waiting[0].epoch <= committed:
            written = self._waiting.pop(0)
            self.copy.completed(written.rows, written.markers, written.delivered.end)
        if self._filled and not self._waiting:
            self.copy.unchanged()
        self._epoch = _Written(epoch)
        self._log.begin(epoch, committed)
        if not self._filled:
            self._fill(state)

    def _fill(self, state: KeyedState) -> None:
        self._seed = uuid.uuid4().hex
        changes = difference(state.stored_rows(), self.copy.scan(FIRST, END))
        # The copy is scanned as it was at the first step.
        while part := dict(islice(changes, _BATCH)):
            self._log.append(self._placed(part, state))
            self.copy.run_ahead(part)

    def _placed(self, rows: Mapping[bytes, bytes | None], state: KeyedState) -> Iterator[Row]:
        sliced = self._sliced(state)
        for key, value in rows.items():
            yield Row(split_key(key, len(section_of(key, sliced.__contains__).prefix))[0], key, value)

    def _sliced(self, state: KeyedState) -> set[int]:
        """Ids of the states with namespaces: the program's, and others that may still have rows in the log."""
        ids = {stored.id for stored in state.schema.states.values() if stored.slices}
        return ids.union(*(marker.sliced for marker in self._markers.values()))

    def append(self, state: KeyedState, changes: Iterable[Change]) -> None:
        """Write an epoch's changes to the log in the background."""
        rows = self._epoch.rows = state.row_changes(changes, self._keys)
        if rows:
            self._log.append(self._placed(rows, state))

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """The keys with this prefix that may have rows in the log."""
        end = after(prefix)
        for key, _ in self.copy.scan(prefix, end):
            yield key
        for written in self._waiting:
            yield from written.keys[bisect_left(written.keys, prefix) : bisect_left(written.keys, end)]

    def prepare(self, state: KeyedState, handles: Sequence[KeyedHandle]) -> list[Any]:
        """Write the marker of the epoch's state, and flush; returns the committables.

        Raises:
            HoldfastError: the log has lost records, or refused them.
        """
        written, name, markers = self._epoch, name_of(handles), self._markers
        groups, writer = self._groups, self._log.writer
        foreign = {key: marker for key, marker in markers.items() if key.writer != writer}
        own = {
            key: others(key, foreign)
            for partition in self._partitions
            for key in (MarkerKey(partition, groups.first, groups.last, writer),)
        }
        marked = all(key in markers and (markers[key].state, markers[key].others) == (name, own[key]) for key in own)
        if self._filled and not written.rows and (marked or not name):
            return []
        if not self._seed:
            held = (
                marker.seed for key, marker in valid(markers).items() if (key.first, key.last) == (groups.first, groups.last)
            )
            self._seed = next(held, uuid.uuid4().hex)
        sliced = sorted(self._sliced(state))
        earlier = [key for key in markers if key.writer == writer and key.first <= groups.last and groups.first <= key.last]
        written.markers = {
            **dict.fromkeys(earlier),
            **{key: Marker(name, self._seed, sliced, beside) for key, beside in own.items()},
        }
        self._log.mark(written.markers)
        committables, written.delivered = self._log.prepare()
        for partition, offset in written.delivered.first.items():
            before = max(self.copy.offsets.get(partition, 0), self._ends.get(partition, 0))
            if offset < before:
                raise HoldfastError(
                    f"{self._where}: partition {partition} of the changelog has lost records: it goes on at offset "
                    f"{offset}, but had records up to {before}. The job restarts, and fills the changelog again from its "
                    "checkpoint"
                )
        return committables

    def completed(self) -> None:
        """The last prepared epoch is complete: its transaction will be committed, unless it is lost."""
        written, self._epoch = self._epoch, _Written(self._epoch.epoch)
        if not written.markers:
            return
        self._filled = True
        self._waiting.append(written)
        self._ends.update(written.delivered.end)
        for key, marker in written.markers.items():
            if marker is None:
                self._markers.pop(key, None)
            else:
                self._markers[key] = marker

    def close(self, *, keep: bool = True) -> None:
        """Close log and copy; the copy's files stay for this host's next process if ``keep``."""
        copy, self._copy = self._copy, None
        with suppress(OSError):
            if copy is not None:
                copy.close()
        if copy is not None and not keep:
            RocksDBStore.remove(copy.path)
        self._log.close()
