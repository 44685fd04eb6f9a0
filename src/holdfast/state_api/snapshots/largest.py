"""The largest keys of an operator in a checkpoint, the size of each state, and how state is spread over the key groups."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import msgspec

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.state.backends.backend import StateBackendSettings, size_of
from holdfast.state.backends.canonical import opened_part, part_of
from holdfast.state.backends.portions import portions
from holdfast.state.cells.row_pieces import encoded_rows
from holdfast.state.keys.key_codec import decode_key, encode_key
from holdfast.state.keys.key_groups import KeyGroupRange, key_group
from holdfast.state.stored.delta import Change
from holdfast.state.stored.entry_pieces import sizes_by_key
from holdfast.state.stored.schema import ENTRIES, ROWS, VALUES
from holdfast.state_api.snapshots.catalog import Snapshot, explained, open_snapshot
from holdfast.state_api.snapshots.contents import schema_of

__all__ = ["KeySize", "KeySizes", "largest_keys"]

_PART = 8 << 20
"""Approximate stored bytes that are read at a time."""
_PARTS = 16
"""Parts of an operator's state that are read at most."""
_MOST_KEYS = 400_000
_cells = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_EMPTY = msgspec.Raw(msgspec.msgpack.encode(None))


@dataclass(frozen=True)
class KeySize:
    """A key and the stored bytes of its state, before compression."""

    key: str
    bytes: int


@dataclass(frozen=True)
class KeySizes:
    """The keys of an operator with keyed state."""

    uid: str
    name: str
    keys: int
    """Keys in the key groups that were read."""
    bytes: int
    """Their stored bytes, before compression, without timers."""
    groups_read: int
    """The number of key groups that were read: all of them, or of a large state some that are spread evenly."""
    groups: int
    largest: list[KeySize] = field(default_factory=list)
    largest_groups: list[tuple[int, int]] = field(default_factory=list)
    """The key groups with most bytes: number and bytes."""
    states: list[tuple[str, int]] = field(default_factory=list)
    """The operator's states, the largest first: name and bytes, without those of the keys."""


def largest_keys(snapshot: Snapshot, uid: str, limit: int = 20) -> KeySizes:
    """Find the keys of an operator with the most state, and how large each of its states is.

    Reads at most about 128 MB of the state's files: of a larger state, some key groups.

    Args:
        snapshot: A checkpoint or savepoint, from `open_snapshot`.
        uid: The operator.
        limit: The number of keys, and of key groups.

    Raises:
        ConfigurationError: there is no such operator, or it has no keyed state.
        CorruptFile: a file is damaged.
        StorageError: the storage does not answer.
    """
    operator = snapshot.checkpoint.operators.get(uid)
    schema = None if operator is None else schema_of(uid, operator)
    if operator is None or schema is None:
        keyed = ", ".join(each for each, one in sorted(snapshot.checkpoint.operators.items()) if one.schemas)
        raise ConfigurationError(f"no operator with uid {uid!r} has keyed state; there is state of {keyed or 'none'}")
    of_rows = [state for state in schema.states.values() if state.kind in (ROWS, VALUES)]
    rows = {state.id: [column.name for column in state.columns] for state in of_rows}
    entries = {state.id: name.partition("/")[2] for name, state in schema.states.items() if state.kind == ENTRIES}
    sizes = _Sizes(operator.max_parallelism)
    states: Counter[str] = Counter({name: 0 for names in rows.values() for name in names})
    groups_read = 0
    stored = sum(size_of(each) for subtask in operator.subtasks for one in subtask.keyed for each in one.handles())
    for groups in _some_groups(operator.max_parallelism, stored):
        groups_read += groups.last - groups.first + 1
        part = part_of(uid, operator, groups)
        if part is None:
            continue
        with (
            explained(snapshot.path, snapshot.storage),
            tempfile.TemporaryDirectory(prefix="holdfast-keys-") as scratch,
            opened_part(part, snapshot.storage, StateBackendSettings.of({}), scratch) as state,
        ):
            for change in portions(state):
                at = change.section.state
                if at in rows:
                    _count_rows(change, rows[at], sizes, states)
                elif at in entries:
                    _count_entries(change, entries[at], sizes, states)
    largest = [KeySize(repr(decode_key(key))[:300], size) for key, size in sizes.by_key.most_common(limit)]
    sizes.keep(0)
    return KeySizes(
        uid,
        operator.name,
        sizes.keys,
        sum(sizes.by_group.values()),
        groups_read,
        operator.max_parallelism,
        largest,
        sizes.by_group.most_common(limit),
        states.most_common(),
    )


class _Sizes:
    """The sizes of keys. Beyond some hundred thousand, only those of the largest keys are known by key."""

    def __init__(self, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self.by_key: Counter[bytes] = Counter()
        self.keys = 0
        """The keys that are no longer in `by_key`; one with several families of states may count as several."""
        self.by_group: Counter[int] = Counter()
        """Their bytes by key group."""

    def add(self, key: bytes, size: int) -> None:
        """Add the size of one of a key's states."""
        self.by_key[key] += size
        if len(self.by_key) > _MOST_KEYS:
            self.keep(_MOST_KEYS // 4)

    def keep(self, most: int) -> None:
        """Keep the largest keys only."""
        kept = dict(self.by_key.most_common(most)) if most else {}
        self.keys += len(self.by_key) - len(kept)
        for key, size in self.by_key.items():
            if key not in kept:
                self.by_group[key_group(decode_key(key), self._max_parallelism)] += size
        self.by_key = Counter(kept)


def _some_groups(groups: int, stored: int) -> Iterator[KeyGroupRange]:
    """Ranges of key groups of about `_PART` bytes each: all, or of a large state some that are spread evenly."""
    count = min(groups, 1 + stored // _PART)
    for n in sorted({i * count // min(count, _PARTS) for i in range(min(count, _PARTS))}):
        yield KeyGroupRange(n * groups // count, (n + 1) * groups // count - 1)


def _count_rows(change: Change, names: list[str], sizes: _Sizes, states: Counter[str]) -> None:
    for piece in change.pieces:
        held = encoded_rows(piece, None)
        for key, row in zip(held.keys, held.rows):
            sizes.add(encode_key(key), len(bytes(row)))
            for name, cell in zip(names, _cells(row)):
                if cell != _EMPTY:
                    states[name] += len(bytes(cell))


def _count_entries(change: Change, name: str, sizes: _Sizes, states: Counter[str]) -> None:
    for piece in change.pieces:
        for stored, size in sizes_by_key(piece):
            sizes.add(stored, size)
            states[name] += size


def _main() -> None:
    """Answer the request on standard input, ``[path, storage options, uid]`` as JSON, at a low priority."""
    os.setpriority(os.PRIO_PROCESS, 0, 15)
    path, options, uid = json.load(sys.stdin)
    try:
        found = largest_keys(open_snapshot(path, options), uid)
    except HoldfastError as error:
        sys.exit(" ".join(str(error).splitlines()))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    _main()
