"""The RocksDB backend: the life cycle of a store on this host's disk, and the bases made from its files.

The store is a cache of the checkpoint. It is reused if it continues the checkpoint's bases and has no delta that the
checkpoint lacks; otherwise it is rebuilt from the bases.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing

import msgspec
import xxhash

from holdfast.checkpoint.files import is_link, store_raw
from holdfast.checkpoint.handles import Handle, RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.backends.backend import ROCKSDB, Place, StateBackendSettings, clip, paths_of, size_of
from holdfast.state.changelogs.changelog_copy import COPY
from holdfast.state.changelogs.keyed_changelog import KeyedChangelog
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.snapshots.lazy_files import LazyFiles
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.linked_files import LinkedFiles
from holdfast.state.snapshots.sst import (
    BASE_PREFIX,
    Sliced,
    clip_store,
    copy_base,
    fetch,
    sections_in,
    shared,
    slicing,
    write_contents,
)
from holdfast.state.store.host_lock import HostLock, abandoned, new_path, path_of, renewed
from holdfast.state.store.incomplete_store import IncompleteStore
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored.damage import naming
from holdfast.state.stored.schema import OperatorSchema
from holdfast.state.timers.timers import TIMER_BYTES

__all__ = ["RocksDBFiles", "RocksDBLocalStore"]

log = logging.getLogger(__name__)

_STORE, _PRIVATE = "db", "private"
"""Names of the host's store, and of one that is used while another process has that."""
_COPY = "materialisation-"
_UNSORTED_SHARE = 1 / 24
"""The largest part of a store that may lie in level 0, where each file spans all key groups."""
_SMALL = 4 << 20
"""Stores below this size, in bytes, are not compacted before a base."""
_FILES = 96
"""Target number of files per base: enough that a later base uploads little that has not changed."""
_LEAST_FILE = 1 << 20
_MOST_RESTORED = 2
"""Memory limit of a restore, in cache budgets. The rows it leaves in memory are flushed over the next epochs."""
_PORTION = 4 << 20
"""Bytes of such rows to flush at a time."""
_SORTING_PATIENCE = 120.0
"""Seconds to wait for RocksDB to compact level 0; after that the base is taken uncompacted."""
_POLL = 0.02


class _Meta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a local store contains."""

    lineage: bytes = b""
    """The bases that it continues; empty: unknown."""
    last_delta: str = ""
    """The last delta whose rows it may hold; empty: none."""
    evolved: str = ""
    """The `OperatorSchema.evolved` that its rows were written with."""
    migrated: str = ""
    """The `OperatorSchema.evolved` up to which all of its rows have been rewritten."""
    next_lineage: bytes = b""
    """The bases of a checkpoint that may be complete by now; empty: none."""
    next_delta: str = ""
    """The last delta of that checkpoint."""
    settled: str = ""
    """All rows of this delta and the earlier ones are in the store; empty: unknown."""
    foreign: bool = False
    """Whether the store was not built from the bases it continues, so that equal file names mean nothing."""

    @staticmethod
    def of(store: RocksDBStore) -> _Meta:
        """The meta of a store."""
        return _Meta() if store.meta is None else msgspec.msgpack.decode(store.meta, type=_Meta)


class RocksDBLocalStore:
    """The life cycle of one subtask's RocksDB on this host."""

    def __init__(
        self, place: Place, settings: StateBackendSettings, lazy_restore: LazyRestore, changelog: KeyedChangelog | None
    ) -> None:
        """Prepare; `open` opens the store.

        Args:
            place: The owner of the state and its locations.
            settings: The settings of the backend.
            lazy_restore: Fetches what `open` leaves to be fetched while the job runs.
            changelog: The changelog that the state may be restored from.
        """
        self._place = place
        self._settings = settings
        self._lock = HostLock(place.directory)
        self._store: RocksDBStore | None = None
        self._private = False
        """Whether this object has a store of its own because another process holds the host's store."""
        self._compaction_off = False
        """Whether compaction is still off, to leave the processor to the restart."""
        self._all_touched = False
        """Whether all remaining rows in memory were touched in this epoch, so that none can be evicted."""
        self._linked: LinkedFiles | None = None
        self._lazy_restore = lazy_restore
        self.reused = False
        self.complete = False
        self._changelog = changelog
        self.migrated = ""
        self._schema: Callable[[], OperatorSchema | None] = lambda: None
        """Returns the schema of the state."""
        self._named = naming(place.where, lambda: self._schema())
        self._evolved: Callable[[], str] = lambda: ""
        """Returns the `OperatorSchema.evolved` of the state."""
        self._followed: Sequence[KeyedHandle] = ()
        self._flushed = ""
        """The last delta whose rows are all in the store; see `_Meta.settled`."""
        self._foreign = b""
        """The bases that the store continues, if it was not built from their files."""
        self._built = False
        """Whether the store was built from bases, and its files do not record that yet."""
        self.files: list[RawFile] = []
        """Files of the store that are also in the storage, fetched or reused."""

    @property
    def store(self) -> RocksDBStore:
        """The open store."""
        assert self._store is not None
        return self._store

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open this host's store, or build one from the bases."""
        self._schema = lambda: schema
        try:
            self._store = self._open(handles, slicing(schema), "" if schema is None else schema.evolved)
            most_timers = self._settings.cache_bytes // (4 * TIMER_BYTES)
            state = KeyedState(self._place.where, schema, self._store, self._place.max_parallelism, most_timers)
            self._evolved = lambda: state.schema.evolved
            self._schema = lambda: state.schema
            self.follow(handles)
            state.registry.evolving = lambda: self.follow(self._followed)
            return state
        except BaseException:
            self.close()
            raise

    def _open(self, handles: Sequence[KeyedHandle], sliced: Sliced, evolved: str) -> RocksDBStore:
        directory = self._place.directory
        os.makedirs(directory, exist_ok=True)
        if self._lock.acquire():
            self._clean()
            path, copy = path_of(directory, _STORE), path_of(directory, COPY)
        else:
            self._private = True  # a task slot of an older driver still has the store
            path = new_path(directory, _PRIVATE)
            copy = f"{path}-{COPY}"
            log.warning("another process holds the local store in %s; using %s instead", directory, path)
        if self._changelog is not None and self._changelog.restore(copy, self._settings.rocksdb, handles):
            path = renewed(path)
            self._changelog.link(path)
            self._foreign = self._lineage(handles)
            self.reused, self.complete = self._changelog.found, True
            return RocksDBStore(path, self._settings.rocksdb)
        if os.path.exists(os.path.join(path, "CURRENT")) and not LazyFiles.marked(path):
            try:
                self.files = [each for base in _bases(handles)[:1] for each in base.base if isinstance(each, RawFile)]
                store = RocksDBStore(path, self._settings.rocksdb, compacts=False, explain=self._link(path))
            except Exception as error:  # rocksdict raises plain exceptions for any damage
                log.warning("cannot open the local store %s, rebuilding it from the checkpoint: %s", path, error)
            else:
                if self._reusable(store, handles, evolved):
                    self.reused = self._compaction_off = True
                    meta = _Meta.of(store)
                    self._flushed = meta.settled
                    if meta.foreign and meta.lineage == self._lineage(handles):
                        self._foreign, self.files = meta.lineage, []
                        assert self._linked is not None
                        self._linked.forget()
                    return store
                store.close()
            self.files, self._linked = [], None
        return self._build(renewed(path), handles, sliced)

    def _clean(self) -> None:
        """Remove leftovers of dead processes from the directory."""
        for name in os.listdir(self._place.directory):
            path = os.path.join(self._place.directory, name)
            if name.startswith((_COPY, BASE_PREFIX)) or (name.startswith(_PRIVATE) and abandoned(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _build(self, path: str, handles: Sequence[KeyedHandle], sliced: Sliced) -> RocksDBStore:
        """Build a store from the bases: the files of the first base, the rows of the others."""
        os.makedirs(path)
        place = self._place
        bases = _bases(handles)
        lazy: LazyFiles | None = None
        if bases:
            groups = clip(bases[0], place.groups)
            if self._lazy_restore.pays(sum(map(size_of, bases[0].base))):
                lazy = LazyFiles(place.storage, path, self._named, self._lazy_restore)
            base = fetch(place.storage, bases[0], path, groups, lazy)
            self.files = base.files
            if lazy is not None and not lazy.any():
                lazy = None
        if lazy is None:
            store = RocksDBStore(path, self._settings.rocksdb, explain=self._link(path))
        else:
            store = IncompleteStore(path, self._settings.rocksdb, lazy, explain=self._link(path))
            self._compaction_off = True
        self.migrated = _Meta.of(store).migrated if len(bases) == 1 else ""
        try:
            if bases:
                clip_store(store, base, groups, sliced)
            for other in bases[1:]:
                groups = clip(other, place.groups)
                copy_base(place.storage, other, place.directory, groups, sliced, self._settings.rocksdb, store, place.where)
        except BaseException:
            store.close()
            raise
        self._built = bool(bases)
        return store

    def _link(self, path: str) -> Callable[[], None]:
        """Track the files that the store shares with the storage; returns a function that names a damaged one."""
        files = [file for file in self.files if shared(file.name)]
        self._linked = LinkedFiles(self._place.storage, path, files, self._named)
        return self._linked.explain

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Record in the store the bases it continues, the last delta whose rows it may hold, and the types of its rows."""
        self._all_touched = False
        self._followed = handles
        self.store.set_meta(msgspec.msgpack.encode(self._meta(handles)))

    def missing(self, deltas: Sequence[Handle]) -> Sequence[Handle]:
        """The deltas after the last flushed one."""
        paths = paths_of(deltas)
        return deltas[paths.index(self._flushed) + 1 :] if self._flushed in paths else deltas

    def flushing(self, state: KeyedState, handles: Sequence[KeyedHandle]) -> Iterator[None]:
        """Flush all checkpointed rows in steps; a single step would pause the job for seconds.

        That the rows are in the store becomes durable after the rows themselves.
        """
        last = (_deltas(handles) or [""])[-1]
        yield from state.flushing()
        self._flushed = last
        self.follow(self._followed)
        self.store.flush(wait=False)
        while not self.store.flushed_ahead():  # a base waits for the rest
            yield

    def flushed_ahead(self) -> bool:
        """Whether a flush takes little time; otherwise one begins in the background."""
        return self.store.flushed_ahead()

    def adopt(self, handles: Sequence[KeyedHandle]) -> None:
        """Record, in addition, what the store continues once the checkpoint with this new base or merged delta is complete.

        The record is durable before the checkpoint can complete. Otherwise a killed process could leave a store that names
        the previous base, or a delta that has been merged.
        """
        flushed, left = _deltas(self._followed), set(_deltas(handles))
        del flushed[flushed.index(self._flushed) + 1 if self._flushed in flushed else 0 :]
        self._flushed = next((path for path in reversed(flushed) if path in left), "")
        new = self._meta(handles)
        meta = msgspec.structs.replace(self._meta(self._followed), next_lineage=new.lineage, next_delta=new.last_delta)
        self.store.set_meta(msgspec.msgpack.encode(meta))
        self.store.flush()

    def _meta(self, handles: Sequence[KeyedHandle]) -> _Meta:
        deltas = _deltas(handles)
        last = deltas[-1] if deltas else ""
        lineage = self._lineage(handles)
        foreign = lineage == self._foreign
        return _Meta(lineage, last, self._evolved(), self.migrated, settled=self._flushed, foreign=foreign)

    def _lineage(self, handles: Sequence[KeyedHandle]) -> bytes:
        groups = self._place.groups
        bases = [path for handle in handles for path in paths_of(handle.base)]
        return xxhash.xxh3_128_digest("\n".join([f"{groups.first} {groups.last}", *bases]).encode())

    def _reusable(self, store: RocksDBStore, handles: Sequence[KeyedHandle], evolved: str) -> bool:
        """Whether the store continues the checkpoint's bases and holds only data of the checkpoint.

        The store holds only checkpointed rows, and all of them beyond the base are in deltas, which are applied again. A
        delta's path is unique and stays in the list until a base covers it; before a merge replaces it, the store names a
        later one (`adopt`). So a checkpoint that has the store's last delta has all of them. Rows whose types the
        checkpoint's schema does not know cannot be read with it.
        """
        meta, lineage = _Meta.of(store), self._lineage(handles)
        known = {meta.next_lineage: meta.next_delta, meta.lineage: meta.last_delta}
        if lineage not in known or meta.evolved != evolved:
            return False
        self.migrated = meta.migrated
        return not known[lineage] or known[lineage] in _deltas(handles)

    def completed(self, handles: Sequence[KeyedHandle], *, incomplete: bool) -> None:
        """Follow the handles; start the background work that waits for a complete epoch, or for complete files."""
        self.follow(handles)
        if self._linked is not None:
            self._linked.begin()
        if self._built:
            self._built = False
            self.store.flush(wait=False)
        if self._compaction_off and not incomplete:
            self._compaction_off = False
            self.store.compact_from_now_on()

    def check(self) -> None:
        """Raise an error found in files that `open` left unread or unfetched."""
        self._lazy_restore.check()
        if self._linked is not None:
            self._linked.check()
        if self.store.damaged:  # a function may have caught the error
            raise OSError(f"the local store {self.store.path} failed in this epoch")

    def bound(self, state: KeyedState, *, restoring: bool = False) -> None:
        """Evict rows to the store if memory exceeds the budget; after a restore, over several epochs."""
        if self._all_touched:
            return
        used, bound = state.memory(), self._settings.cache_bytes
        if used > bound and state.restored_memory():
            excess = used - _MOST_RESTORED * bound
            if excess > 0 or not restoring:
                state.store_restored(max(excess, _PORTION))
        elif used > bound:
            excess = used - 0.9 * bound
            self._all_touched = state.evict(excess) < excess

    def close(self) -> None:
        """Close the store; its files stay for this host's next process."""
        store, self._store = self._store, None
        self._lazy_restore.close()
        if self._linked is not None:
            self._linked.close()
        try:
            if self._changelog is not None:
                self._changelog.close(keep=not self._private)
            if store is not None:
                store.close()
        finally:  # closing a store that failed may fail, too
            if store is not None and (self._private or store.damaged):
                RocksDBStore.remove(store.path)
            self._lock.release()


class RocksDBFiles:
    """Writes bases from a hard-linked copy of the store: only files that the storage lacks are uploaded."""

    kind = ROCKSDB

    def __init__(self, storage: Storage, local: RocksDBLocalStore, place: Place, settings: StateBackendSettings) -> None:
        self._storage = storage
        self._local = local
        self._place = place
        self._settings = settings
        self._known: dict[str, RawFile] | None = None
        """The store's SST and blob files that the storage also has, by local name."""
        self._linked: bool | None = None
        """The value of `linked`; None: not checked since the restore."""

    @property
    def linked(self) -> bool:
        """Whether the last base linked its files into the storage; after a restore, whether the restored files were."""
        if self._linked is None:
            directory = self._local.store.path
            restored = (file for file in self._local.files if shared(file.name))
            self._linked = any(self._is_link(file, os.path.join(directory, file.name)) for file in restored)
        return self._linked

    def _is_link(self, stored: RawFile, name: str) -> bool:
        try:
            return is_link(self._storage, stored, name)
        except FileNotFoundError:  # RocksDB has compacted it, or no checkpoint has it any more
            return False

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Copy the flushed store. If level 0 holds too much, wait for a compaction first, unless files are linked.

        A restore of some key groups must read the files of level 0 as a whole, or link them. A copy taken later may hold
        newer rows; by then they are checkpointed, and their deltas are applied to this base again.
        """
        sliced = slicing(state.schema)
        store = self._local.store
        store.flush()
        copy = os.path.join(self._place.directory, f"{_COPY}{new_attempt()}")
        total, unsorted = store.file_bytes()
        if total < _SMALL or self.linked or unsorted <= total * _UNSORTED_SHARE:
            store.checkpoint(copy)
            return lambda: self._upload(copy, sliced, new_path, ended)
        store.sort_by_itself(max(total // _FILES, _LEAST_FILE))

        def sort_and_upload() -> list[Handle]:
            until = time.monotonic() + _SORTING_PATIENCE
            while store.file_bytes()[1] and time.monotonic() < until and not ended():
                time.sleep(_POLL)  # RocksDB compacts in its own threads and does not report completion
            _refuse_if(ended)
            store.sort_when_needed()
            store.checkpoint(copy)
            return self._upload(copy, sliced, new_path, ended)

        return sort_and_upload

    def _upload(self, copy: str, sliced: Sliced, new_path: Callable[[str], str], ended: Callable[[], bool]) -> list[Handle]:
        known = {file.name: file for file in self._local.files} if self._known is None else self._known
        files: list[RawFile] = []
        try:
            names = sorted(os.listdir(copy))
            with closing(RocksDBStore(copy, self._settings.rocksdb, read_only=True)) as store:
                ranges, sections = store.files(), sections_in(store, sliced)
            for name in names:
                _refuse_if(ended)
                at = os.path.join(copy, name)
                stored = known.get(name) if shared(name) else None
                if stored is None or stored.size != os.path.getsize(at):
                    stored = store_raw(self._storage, new_path("sst" if shared(name) else "db"), at)
                    if shared(name):
                        self._linked = self._is_link(stored, at)
                level, first, last = ranges.get(name, (0, b"", b""))
                files.append(msgspec.structs.replace(stored, name=name, level=level, first_key=first, last_key=last))
            files.append(write_contents(self._storage, new_path("db"), self._place.groups, sections))
        finally:  # the links would keep the disk space of files that the store has replaced
            shutil.rmtree(copy, ignore_errors=True)
        self._known = {file.name: file for file in files if shared(file.name)}
        return list(files)


def _refuse_if(ended: Callable[[], bool]) -> None:
    if ended():
        raise CancelledError("the subtask has ended")  # its result is not needed


def _bases(handles: Sequence[KeyedHandle]) -> list[KeyedHandle]:
    return [handle for handle in handles if handle.kind == ROCKSDB]


def _deltas(handles: Sequence[KeyedHandle]) -> list[str]:
    return [path for handle in handles for path in paths_of(handle.deltas)]
