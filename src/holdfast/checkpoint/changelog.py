"""A changelog's log: its records, and the interface between the keyed state that uses it and the connector behind it.

`holdfast.state.changelogs.changelog` explains changelogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import xxhash

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import canonical_uri

__all__ = [
    "ChangelogLog",
    "ChangelogReader",
    "ChangelogSettings",
    "Delivered",
    "LogRecord",
    "LogTruncated",
    "Marker",
    "MarkerKey",
    "Row",
    "writer_of",
]

_ENABLED = "state.changelog.enabled"
_STORAGE = "state.changelog.storage"
_PARTITIONS = "state.changelog.partitions"
_FLINKS = ("memory", "filesystem")
"""Flink's storages; they have no effect, because the delta files of checkpoints already are such a changelog."""
_STANDBYS = "state.changelog.num-standby-replicas"
_KAFKA = "state.changelog.kafka."
"""Prefix of Kafka's client properties."""


@dataclass(frozen=True)
class ChangelogSettings:
    """The changelogs as configured."""

    properties: Mapping[str, str] = field(repr=False)
    """Kafka's client properties, including ``bootstrap.servers``."""
    partitions: int = 8
    """Number of partitions of each topic; at most the operator's max parallelism."""
    standby_replicas: int = 0
    """Number of other hosts that keep a copy of each subtask's state up to date."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> ChangelogSettings | None:
        """Read the settings from a configuration; None: changelogs are not enabled.

        Raises:
            ValueError: a value is missing or invalid.
        """
        storage = config.get(_STORAGE, "").strip().lower()
        if storage not in ("", "kafka", *_FLINKS):
            raise ValueError(f"{_STORAGE} is {storage!r}; it must be kafka")
        if storage != "kafka" or config.get(_ENABLED, "false").strip().lower() != "true":
            return None
        properties = {key.removeprefix(_KAFKA): value for key, value in config.items() if key.startswith(_KAFKA)}
        if not properties.get("bootstrap.servers"):
            raise ValueError(f"{_KAFKA}bootstrap.servers is not set: the brokers that hold the changelogs")
        partitions = _number(config, _PARTITIONS, cls.partitions, 1)
        return cls(properties, partitions, _number(config, _STANDBYS, cls.standby_replicas, 0))


def _number(config: Mapping[str, str], key: str, default: int, least: int) -> int:
    text = config.get(key, str(default)).strip()
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{key} is {text!r}; it must be a number of at least {least}")
    return int(text)


class LogTruncated(Exception):
    """A partition ends before an offset that it once had."""


class Row(NamedTuple):
    """A row of the log with the key group that owns it."""

    group: int
    key: bytes
    """The key in the local store (`holdfast.state.stored.layout`)."""
    value: bytes | None
    """None: a tombstone."""


class MarkerKey(NamedTuple):
    """The place of a marker."""

    partition: int
    first: int
    last: int
    """The last key group of the subtask that wrote it."""
    writer: str = ""
    """The job that wrote it (`writer_of`); empty if an earlier release wrote it."""


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """The last checkpointed state of a range of key groups in a partition."""

    state: str
    """The name of its handles (`holdfast.state.changelogs.changelog.name_of`)."""
    seed: str
    """Names a period in which every change was added to the log's content. Copies from another period are worthless."""
    sliced: list[int]
    """The ids of the states whose keys have namespaces."""
    others: str = ""
    """Names the other writers' markers beside it that its writer found (`state.changelogs.changelog.others`)."""


def writer_of(identity: str, storage: str | None) -> str:
    """Name the writer of a log: a job with its checkpoints. A copy of the job in another storage is another writer."""
    return xxhash.xxh3_64_hexdigest(f"{identity} {canonical_uri(storage or '')}".encode())


class LogRecord(NamedTuple):
    """A committed record of the log: a row or a marker."""

    partition: int
    offset: int
    content: Row | tuple[MarkerKey, Marker | None] | None
    """None: the partition ends after this offset, which belongs to neither a row nor a marker."""


@dataclass(frozen=True)
class Delivered:
    """Where an epoch's records are in the log, by partition."""

    first: Mapping[int, int]
    end: Mapping[int, int]
    """The offsets after the last."""


class ChangelogReader(Protocol):
    """The log of one operator, for a reader that keeps a copy."""

    id: str
    """The log's id; it changes if the log is created anew under the same name."""
    partitions: int
    tombstone_ms: int
    """The minimum time for which the log keeps tombstones, in ms."""

    def ends(self, partitions: Iterable[int]) -> Mapping[int, int]:
        """The offsets at which these partitions end for readers of committed records."""

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        """Read the committed records of these partitions from these offsets up to the current end.

        Raises:
            LogTruncated: a partition ends before its offset.
        """

    def close(self) -> None:
        """Release resources."""


class ChangelogLog(ChangelogReader, Protocol):
    """The log of one operator, for the subtask that writes it; `close` also aborts the open transaction."""

    writer: str
    """The job that writes (`writer_of`)."""

    def begin(self, epoch: Epoch, committed: CheckpointId) -> None:
        """Start an epoch; records of an abandoned attempt stay invisible. ``committed``: the last committed checkpoint."""

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows within the epoch's transaction."""

    def mark(self, markers: Mapping[MarkerKey, Marker | None]) -> None:
        """Write markers, or tombstones for them, within the epoch's transaction."""

    def prepare(self) -> tuple[list[Any], Delivered]:
        """Flush the transaction; returns the committables for the checkpoint, and where the records are."""

    def commit(self, committables: Sequence[Any]) -> None:
        """Commit the transactions of a complete checkpoint, unless they are gone."""

    def settled(self, partitions: Iterable[int]) -> bool:
        """Whether no transaction is open in these partitions, so that all committed records can be read."""
