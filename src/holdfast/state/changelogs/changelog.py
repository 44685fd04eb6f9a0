"""Changelog: a copy of an operator's keyed state in a compacted log, such as a Kafka topic, kept in step with checkpoints.

The checkpoint in the storage stays the truth. The log holds the same state row by row, in the form of the local store: each
epoch writes its changed rows, and a tombstone for each deleted row, in a transaction that is committed only after the
checkpoint is complete. A host without the state reads the log instead of the checkpoint's files.

Beside the rows, the log holds *markers*. A marker names the last checkpointed state of a range of key groups in its
partition, and is part of the transaction that brings the partition to this state. So the marker tells whether a partition
holds the state of a checkpoint. It does not after a lost transaction, after a start from an older checkpoint or a savepoint,
or if the topic was created anew. Then the state is read from the checkpoint's files, and the next epoch writes its
difference from the log.

Two jobs may write to one log: jobs of the same name, or a job and its copy in another storage. Each has markers of its own
and leaves the other's alone. A marker also names the other jobs' markers whose rows its writer has accounted for. If the
other job has written since, its marker has changed, and neither marker is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import xxhash

from holdfast.checkpoint.changelog import Marker, MarkerKey
from holdfast.checkpoint.handles import LogRange
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.keys.key_groups import KeyGroupRange

__all__ = ["difference", "matches", "name_of", "others", "partition_of", "partitions_of", "valid"]


def name_of(handles: Iterable[KeyedHandle]) -> str:
    """Name the state of these handles; empty for the empty state.

    Paths of deltas and bases are unique, and a delta extends exactly one state: the last path names it.
    """
    stored = [each for handle in handles for each in (*handle.base, *handle.deltas[-1:])]
    paths = [each.path for each in stored if not isinstance(each, LogRange)]
    return xxhash.xxh3_128_hexdigest("\n".join(paths).encode()) if paths else ""


def partition_of(group: int, partitions: int, max_parallelism: int) -> int:
    """The partition of a key group.

    >>> [partition_of(group, 8, 128) for group in (0, 15, 16, 127)]
    [0, 0, 1, 7]
    """
    return group * partitions // max_parallelism


def partitions_of(groups: KeyGroupRange, partitions: int, max_parallelism: int) -> range:
    """The partitions of these key groups: their number is fixed, so that a change of parallelism moves no rows.

    >>> partitions_of(KeyGroupRange(43, 85), 8, 128)
    range(2, 6)
    """
    first, last = (partition_of(group, partitions, max_parallelism) for group in (groups.first, groups.last))
    return range(first, last + 1)


def matches(
    handles: Sequence[KeyedHandle],
    groups: KeyGroupRange,
    markers: Mapping[MarkerKey, Marker],
    partitions: int,
    max_parallelism: int,
) -> bool:
    """Whether a log with these markers holds the state of these handles, which must not be empty.

    A subtask finds its own marker. After a change of parallelism it finds those of its predecessors, if each of them had one
    handle.
    """
    found = valid(markers)
    own = [marker for key, marker in found.items() if (key.first, key.last) == (groups.first, groups.last)]
    if own:
        wanted = len(partitions_of(groups, partitions, max_parallelism))
        name = name_of(handles)
        return len(own) == wanted and all(marker.state == name for marker in own)
    return all(_marked(handle, found, partitions, max_parallelism) for handle in handles)


def valid(markers: Mapping[MarkerKey, Marker]) -> dict[MarkerKey, Marker]:
    """The markers after which no other writer has written."""
    return {key: marker for key, marker in markers.items() if marker.others == others(key, markers)}


def others(key: MarkerKey, markers: Mapping[MarkerKey, Marker]) -> str:
    """Name the markers of other writers in the marker's partition and key groups; empty if there are none."""
    found = sorted(
        (*other, marker.state, marker.seed)
        for other, marker in markers.items()
        if other.writer != key.writer
        and other.partition == key.partition
        and other.first <= key.last
        and key.first <= other.last
    )
    return xxhash.xxh3_64_hexdigest(repr(found).encode()) if found else ""


def _marked(handle: KeyedHandle, markers: Mapping[MarkerKey, Marker], partitions: int, max_parallelism: int) -> bool:
    name = name_of([handle])
    return bool(name) and all(
        any(
            marker.state == name
            for key, marker in markers.items()
            if key.partition == partition and key.first <= handle.first and handle.last <= key.last
        )
        for partition in partitions_of(KeyGroupRange(handle.first, handle.last), partitions, max_parallelism)
    )


def difference(
    wanted: Iterable[tuple[bytes, bytes]], present: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The puts and tombstones that turn ``present`` into ``wanted``; both are sorted by key.

    >>> list(difference([(b"a", b"1"), (b"b", b"2")], [(b"b", b"1"), (b"c", b"3")]))
    [(b'a', b'1'), (b'b', b'2'), (b'c', None)]
    """
    others = iter(present)
    other = next(others, None)
    for key, value in wanted:
        while other is not None and other[0] < key:
            yield other[0], None
            other = next(others, None)
        if other is not None and other[0] == key:
            if other[1] != value:
                yield key, value
            other = next(others, None)
        else:
            yield key, value
    while other is not None:
        yield other[0], None
        other = next(others, None)
