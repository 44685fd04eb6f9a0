"""The RocksDB backend: the life of a store on this host's disk, and materialisations of its files.

The store is a cache of the checkpoint: it is used again if it continues the checkpoint's base and has seen no delta
that the checkpoint lacks; otherwise it is made anew from the base.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

import msgspec
import xxhash

from holdfast.checkpoint.files import write_raw
from holdfast.checkpoint.handles import Handle, RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.storage import Storage
from holdfast.state.backend import ROCKSDB, Place, StateBackendSettings, base_due, clip, paths_of
from holdfast.state.host_lock import HostLock, abandoned
from holdfast.state.keyed_state import KeyedState
from holdfast.state.schema import OperatorSchema
from holdfast.state.sst import Sliced, clip_store, fetch, rows_of, slicing
from holdfast.state.store import RocksDBStore
from holdfast.state.timers import TIMER_BYTES

__all__ = ["RocksDBFiles", "RocksDBLocalStore"]

log = logging.getLogger(__name__)

_COPY = "materialisation-"
_BASE = "base-"
_BATCH = 10_000
_UNSORTED_SHARE = 1 / 24
"""The part of a store that may lie in files of level 0, each of which reaches over all key groups."""
_SMALL = 4 << 20
"""Bytes of a store that is too small to care."""
_FILES = 96
"""About as many files as a materialisation should have, so that a reader of some key groups reads little else."""
_LEAST_FILE = 128 << 10
_SORTING_PATIENCE = 120.0
"""How long (seconds) to wait for RocksDB to sort its level 0, before a base is taken with it as it is."""
_POLL = 0.02


class RocksDBLocalStore:
    """The life of one subtask's RocksDB on this host."""

    def __init__(self, place: Place, settings: StateBackendSettings) -> None:
        self._place = place
        self._settings = settings
        self._lock = HostLock(place.directory)
        self._store: RocksDBStore | None = None
        self._private = False
        """Whether the store is this object's own, because another process has this host's."""
        self._all_touched = False
        """Whether no more rows can leave memory in this epoch."""
        self.reused = False
        self.files: list[RawFile] = []
        """The files in the store that the storage has, too, as far as they were fetched or fit."""

    @property
    def store(self) -> RocksDBStore:
        """The open store."""
        assert self._store is not None
        return self._store

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """The state as this host's store has it, or one made from the bases."""
        try:
            self._store = self._open(handles, slicing(schema))
            self.follow(handles)
            most_timers = self._settings.cache_bytes // (4 * TIMER_BYTES)
            return KeyedState(self._place.where, schema, self._store, self._place.max_parallelism, most_timers)
        except BaseException:
            self.close()
            raise

    def _open(self, handles: Sequence[KeyedHandle], sliced: Sliced) -> RocksDBStore:
        directory = self._place.directory
        path = os.path.join(directory, "db")
        os.makedirs(directory, exist_ok=True)
        if self._lock.acquire():
            self._clean()
        else:
            # A slot of an older driver still has it open, and would write into whatever has its name.
            self._private = True
            path = f"{path}-{new_attempt()}"
            log.warning("another process has the local store in %s; this one uses %s", directory, path)
        if os.path.exists(os.path.join(path, "CURRENT")):
            try:
                store = RocksDBStore(path, self._settings.rocksdb)
            except Exception as error:  # rocksdict raises plain exceptions for any damage
                log.warning("the local store %s cannot be opened and is made anew: %s", path, error)
            else:
                if self._reusable(store, handles):
                    self.reused = True
                    self.files = [each for base in _bases(handles)[:1] for each in base.base if isinstance(each, RawFile)]
                    return store
                store.close()
        return self._build(path, handles, sliced)

    def _clean(self) -> None:
        """Remove what processes that died left in the directory."""
        for name in os.listdir(self._place.directory):
            path = os.path.join(self._place.directory, name)
            if name.startswith((_COPY, _BASE)) or (name.startswith("db-") and abandoned(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _build(self, path: str, handles: Sequence[KeyedHandle], sliced: Sliced) -> RocksDBStore:
        """A store of the bases: the files of the first, the rows of the others."""
        RocksDBStore.remove(path)
        os.makedirs(path)
        place = self._place
        bases = _bases(handles)
        if bases:
            self.files = fetch(place.storage, bases[0], path, clip(bases[0], place.groups), sliced)
        store = RocksDBStore(path, self._settings.rocksdb)
        try:
            if bases:
                clip_store(store, clip(bases[0], place.groups), sliced)
            for base in bases[1:]:
                self._merge(store, base, sliced)
        except BaseException:
            store.close()
            raise
        return store

    def _merge(self, store: RocksDBStore, base: KeyedHandle, sliced: Sliced) -> None:
        place = self._place
        path = os.path.join(place.directory, f"{_BASE}{new_attempt()}")
        os.makedirs(path)
        try:
            groups = clip(base, place.groups)
            fetch(place.storage, base, path, groups, sliced)
            other = RocksDBStore(path, self._settings.rocksdb)
            try:
                batch: list[tuple[bytes, bytes]] = []
                for row in rows_of(other, groups, sliced):
                    batch.append(row)
                    if len(batch) >= _BATCH:
                        store.write(batch)
                        batch = []
                store.write(batch)
            finally:
                other.close()
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Note in the store which bases it continues, and up to which delta it may hold rows."""
        self._all_touched = False
        deltas = _deltas(handles)
        self.store.set_meta(msgspec.msgpack.encode((self._lineage(handles), deltas[-1] if deltas else "")))

    def _lineage(self, handles: Sequence[KeyedHandle]) -> bytes:
        groups = self._place.groups
        bases = [path for handle in handles for path in paths_of(handle.base)]
        return xxhash.xxh3_128_digest("\n".join([f"{groups.first} {groups.last}", *bases]).encode())

    def _reusable(self, store: RocksDBStore, handles: Sequence[KeyedHandle]) -> bool:
        """Whether the store continues the checkpoint's bases, and holds nothing that the checkpoint does not.

        Rows enter the store when they are committed, so what it has beyond the base is in deltas, which are applied
        again. A delta's path is unique and stays in the list until a base covers it: if the checkpoint has the last
        one that the store has seen, it has all of them.
        """
        meta = store.meta
        if meta is None:
            return False
        lineage, last = msgspec.msgpack.decode(meta)
        return bool(lineage == self._lineage(handles) and (not last or last in _deltas(handles)))

    def bound(self, state: KeyedState) -> None:
        """Move rows out to the store if there are more than the bound allows."""
        if self._all_touched:
            return
        used, bound = state.memory(), self._settings.cache_bytes
        if used > bound:
            wanted = math.ceil(state.rows() * (1 - 0.9 * bound / used))
            self._all_touched = state.evict(wanted) < wanted

    def close(self) -> None:
        """Close the store; its files stay for the next process on this host."""
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        finally:  # a store that failed may be one that cannot be closed
            if store is not None and (self._private or store.damaged):
                RocksDBStore.remove(store.path)
            self._lock.release()


class RocksDBFiles:
    """Materialisations of RocksDB: a copy by hard links, of which the files are stored that the storage lacks."""

    kind = ROCKSDB

    def __init__(self, storage: Storage, local: RocksDBLocalStore, place: Place, settings: StateBackendSettings) -> None:
        self._storage = storage
        self._local = local
        self._place = place
        self._settings = settings
        self._known: dict[str, RawFile] | None = None
        """The store's SST files that the storage has, by their name here."""

    def due(self, handles: Sequence[KeyedHandle]) -> bool:
        """Whether the deltas are too many."""
        return base_due(handles)

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Bring the store up to date and copy it; the copy waits for RocksDB if too much lies in level 0.

        A later copy may hold newer rows. They are committed by then, and in deltas that are applied to this base again.
        """
        state.flush()
        store = self._local.store
        store.flush()
        copy = os.path.join(self._place.directory, f"{_COPY}{new_attempt()}")
        total, unsorted = store.file_bytes()
        if total < _SMALL or unsorted <= total * _UNSORTED_SHARE:
            store.checkpoint(copy)
            return lambda: self._upload(copy, new_path, ended)
        store.sort_by_itself(max(total // _FILES, _LEAST_FILE))

        def sort_and_upload() -> list[Handle]:
            until = time.monotonic() + _SORTING_PATIENCE
            while store.file_bytes()[1] and time.monotonic() < until and not ended():
                time.sleep(_POLL)  # RocksDB compacts in threads of its own and tells nobody when it is done
            _refuse_if(ended)
            store.sort_when_needed()
            store.checkpoint(copy)
            return self._upload(copy, new_path, ended)

        return sort_and_upload

    def _upload(self, copy: str, new_path: Callable[[str], str], ended: Callable[[], bool]) -> list[Handle]:
        known = {file.name: file for file in self._local.files} if self._known is None else self._known
        files: list[RawFile] = []
        try:
            names = sorted(os.listdir(copy))
            ranges = RocksDBStore.files_in(copy, self._settings.rocksdb)
            for name in names:
                _refuse_if(ended)
                at = os.path.join(copy, name)
                stored = known.get(name) if name.endswith(".sst") else None
                if stored is None or stored.size != os.path.getsize(at):
                    with open(at, "rb") as source:
                        stored = write_raw(self._storage, new_path("sst" if name.endswith(".sst") else "db"), source.read())
                level, first, last = ranges.get(name, (0, b"", b""))
                files.append(msgspec.structs.replace(stored, name=name, level=level, first_key=first, last_key=last))
        finally:  # its links would keep the space of files that the store has replaced
            shutil.rmtree(copy, ignore_errors=True)
        self._known = {file.name: file for file in files if file.name.endswith(".sst")}
        return list(files)


def _refuse_if(ended: Callable[[], bool]) -> None:
    if ended():
        raise CancelledError("the subtask has ended")  # and nobody takes the result


def _bases(handles: Sequence[KeyedHandle]) -> list[KeyedHandle]:
    return [handle for handle in handles if handle.kind == ROCKSDB]


def _deltas(handles: Sequence[KeyedHandle]) -> list[str]:
    return [path for handle in handles for path in paths_of(handle.deltas)]
