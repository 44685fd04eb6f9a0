"""TimersByKey: the timers of a part of a state by key, for readers of keys. The state has them by time."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Any

from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.contents import timers_of
from holdfast.state.keys.key_codec import decode_key, encode_key
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.scratch import scratch_directory
from holdfast.state.store.spilling import SpillingStore
from holdfast.state.stored.layout import after

__all__ = ["TimersByKey", "timers_by_key"]

_MEMORY = 64 << 20
"""Bytes of memory that the timers take; beyond it, they go to disk."""
_AT_ONCE = 10_000
_BLOCK = 512
_TIMER = struct.Struct(">BQ")
"""The number of the service, and the time plus `_SIGN`: behind the key, sorted by time."""
_SIGN = 1 << 63
_FIRST, _END = b"\0", b"\1"
"""The first byte of all stored keys, and the end of their range."""


class TimersByKey:
    """Timers of some services, in a store sorted by key."""

    def __init__(self, services: Sequence[str], store: SpillingStore) -> None:
        """Start without timers."""
        self._services = services
        self._store = store
        self._any = False

    def add(self, state: KeyedState) -> None:
        """Add the timers of a state."""
        for number, service in enumerate(self._services):
            timers = timers_of(state, service)
            while part := list(islice(timers, _AT_ONCE)):
                self._any = True
                self._store.write(
                    [(_FIRST + encode_key(key) + _TIMER.pack(number, time + _SIGN), b"") for time, key in part]
                )

    def of(self, key: Any) -> list[list[int]]:
        """The times of a key's timers, in order, for each service."""
        times: list[list[int]] = [[] for _ in self._services]
        for stored in self._stored(key) if self._any else ():
            number, time = _TIMER.unpack_from(stored, len(stored) - _TIMER.size)
            times[number].append(time - _SIGN)
        return times

    def _stored(self, key: Any) -> Iterator[bytes]:
        prefix = _FIRST + encode_key(key)
        return (stored for stored, _ in self._store.scan(prefix, after(prefix)))

    def drop(self, keys: Sequence[Any]) -> None:
        """Remove the timers of keys that have been read."""
        if self._any:
            self._store.write((), [stored for key in keys for stored in self._stored(key)])

    def blocks(self) -> Iterator[list[Any]]:
        """The keys with timers, some at a time. They may be removed meanwhile."""
        rows = self._store.scan(_FIRST, _END)
        keys = (key for key, _ in groupby(stored[len(_FIRST) : -_TIMER.size] for stored, _ in rows))
        while block := list(islice(keys, _BLOCK)):
            yield list(map(decode_key, block))


@contextmanager
def timers_by_key(state: KeyedState, services: Sequence[str], scratch: str) -> Iterator[TimersByKey]:
    """The timers of these services of a state; a directory in ``scratch`` takes what does not fit into memory."""
    with scratch_directory(scratch) as directory:
        store = SpillingStore(directory, StateBackendSettings.of({}).rocksdb, _MEMORY)
        try:
            timers = TimersByKey(services, store)
            timers.add(state)
            yield timers
        finally:
            store.close()
