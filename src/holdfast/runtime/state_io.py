"""How a subtask's keyed state reaches the checkpoint storage and comes back.

Every epoch writes one delta. From time to time a materialisation starts a new base, so that a restore reads one base and
a bounded number of deltas: for RocksDB the store's files (only those that the storage does not have yet), for the heap
one dump.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO

import msgspec
import xxhash

from holdfast.checkpoint.files import read_file, read_raw, write_raw
from holdfast.checkpoint.handles import ContainedFile, Handle, IndexedFile, LogRange, RawFile
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.storage import Storage
from holdfast.common.config_values import parse_memory_size
from holdfast.errors import IncompatibleState
from holdfast.state.delta import read_delta, write_delta
from holdfast.state.operator_state import OperatorState
from holdfast.state.schema import OperatorSchema
from holdfast.state.store import RocksDBStore, rocksdb_settings
from holdfast.state.timers import TIMER_BYTES

__all__ = ["StateBackendSettings", "StateFiles", "verify_contents"]

log = logging.getLogger(__name__)

HEAP = "heap"
ROCKSDB = "rocksdb"
_MOST_DELTAS = 64
_TOO_MANY_DELTAS = 4 * _MOST_DELTAS
"""When so many have gathered because no base could be stored, the job fails rather than let recovery take ever longer."""
_LOCK_PATIENCE = 3.0
"""How long (seconds) to wait for a slot that is ending."""
_UPLOAD_PATIENCE = 10.0
"""How long (seconds) to let an upload end before its result is given up."""


@dataclass(frozen=True)
class StateBackendSettings:
    """The state backend as configured."""

    kind: str
    rocksdb: Mapping[str, str]
    cache_bytes: int
    """About how much memory the rows of one subtask may take before they move to the store."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> StateBackendSettings:
        """The settings in a configuration.

        Raises:
            ValueError: an unknown backend or a value that it does not take.
        """
        kind = config.get("state.backend.type", ROCKSDB)
        kind = {"hashmap": HEAP, "rocksdb": ROCKSDB, "filesystem": HEAP, "jobmanager": HEAP}.get(kind, kind)
        if kind not in (HEAP, ROCKSDB):
            raise ValueError(f"state.backend.type is {kind!r}; there are hashmap and rocksdb")
        try:
            cache = parse_memory_size(config.get("state.backend.cache.size", "256mb"))
        except ValueError as error:
            raise ValueError(f"state.backend.cache.size: {error}") from None
        return cls(kind, rocksdb_settings(config), cache)


class StateFiles:
    """The stored state of one keyed operator's subtask."""

    def __init__(
        self,
        storage: Storage,
        paths: JobPaths,
        uid: str,
        subtask: int,
        settings: StateBackendSettings,
        directory: str,
        uploads: ThreadPoolExecutor,
    ) -> None:
        self._storage = storage
        self._paths = paths
        self._uid = uid
        self._subtask = subtask
        self._settings = settings
        self._directory = directory
        self._uploads = uploads
        self._stored = KeyedHandle(0, 0)
        self._sst: dict[str, RawFile] = {}
        """The store's files that the storage has, by their name here."""
        self._pending: Future[tuple[int, int, str, list[Handle]]] | None = None
        self._closed = False
        self._all_touched = False
        """Whether no more rows can leave memory in this epoch."""
        self._lock_file: IO[str] | None = None
        self._private = False
        """Whether the store is this object's own, because another process has this host's."""
        self.written = 0
        """Bytes of the last delta."""
        self.uploading: int | None = None
        """The epoch whose number the files of the upload under way have."""
        self.reused = False
        """Whether the last restore found this host's store usable."""

    # restoring

    def open(
        self, where: str, stored: KeyedHandle | None, schema: OperatorSchema | None, max_parallelism: int
    ) -> OperatorState:
        """The state as the local store has it; what is not in the local store comes with `replay`.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
            IncompatibleState: it was written by another state backend.
        """
        self._stored = stored or KeyedHandle(0, 0)
        if self._settings.kind == HEAP:
            state = OperatorState(where, schema, None, max_parallelism)
            if self._stored.kind == ROCKSDB:
                raise IncompatibleState(
                    f"the checkpoint's state of {where} was written by the rocksdb backend; "
                    "set state.backend.type to rocksdb to resume from it"
                )
            return state
        try:
            return self._open_rocksdb(where, schema, max_parallelism)
        except BaseException:
            self._unlock()
            raise

    def _open_rocksdb(self, where: str, schema: OperatorSchema | None, max_parallelism: int) -> OperatorState:
        store, self.reused = self._open_store()
        try:
            most_timers = self._settings.cache_bytes // (4 * TIMER_BYTES)
            state = OperatorState(where, schema, store, max_parallelism, most_timers)
            self._mark(store)
        except BaseException:
            store.close()
            raise
        return state

    def replay(self, state: OperatorState) -> None:
        """Bring the opened state to the checkpoint. The operator has declared its states by now.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        dumps = [] if self._stored.kind == ROCKSDB else self._stored.base
        for handle in (*dumps, *self._stored.deltas):
            assert isinstance(handle, IndexedFile), handle
            for change in read_delta(self._storage, handle):
                state.apply(change)
                self.bound(state)

    def _open_store(self) -> tuple[RocksDBStore, bool]:
        """This host's store if it fits the checkpoint, else one made from the checkpoint's files."""
        path = os.path.join(self._directory, "db")
        os.makedirs(self._directory, exist_ok=True)
        if self._lock():
            self._clean()
        else:
            # A slot of an older driver still has it open, and would write into whatever has its name.
            self._private = True
            path = f"{path}-{new_attempt()}"
            log.warning("another process has the local store in %s; this one uses %s", self._directory, path)
        if os.path.exists(os.path.join(path, "CURRENT")):
            try:
                store = RocksDBStore(path, self._settings.rocksdb)
            except Exception as error:  # rocksdict raises plain exceptions for any damage
                log.warning("the local store %s cannot be opened and is made anew: %s", path, error)
            else:
                if self._reusable(store):
                    self._know_files()
                    return store, True
                store.close()
        RocksDBStore.remove(path)
        os.makedirs(path)
        if self._stored.kind == ROCKSDB:
            self._fetch(path)
            self._know_files()
        return RocksDBStore(path, self._settings.rocksdb), False

    def _clean(self) -> None:
        """Remove what processes that died left in this directory."""
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.startswith("materialisation-") or (name.startswith("db-") and _abandoned(path)):
                shutil.rmtree(path, ignore_errors=True)

    def _know_files(self) -> None:
        self._sst = {file.name: file for file in self._files() if file.name.endswith(".sst")}

    def _files(self) -> list[RawFile]:
        """The files of RocksDB that the checkpoint's base consists of."""
        return [handle for handle in self._stored.base if isinstance(handle, RawFile)]

    def _lock(self) -> bool:
        """Take this host's store for this process; False if another one does not let go of it."""
        self._lock_file = open(os.path.join(self._directory, "lock"), "w")  # noqa: SIM115  (held until close)
        until = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)  # a lock's release cannot be awaited with a time-out

    def _unlock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _mark(self, store: RocksDBStore) -> None:
        """Note in the local store which base it continues, and up to which delta it may hold rows."""
        deltas = _paths(self._stored.deltas)
        store.set_meta(msgspec.msgpack.encode((self._base_id(), deltas[-1] if deltas else "")))

    def _base_id(self) -> bytes:
        return xxhash.xxh3_128_digest("\n".join(_paths(self._stored.base)).encode())

    def _reusable(self, store: RocksDBStore) -> bool:
        """Whether the local store continues the checkpoint's base, and holds nothing that the checkpoint does not.

        Rows enter the store when they are committed, so what it has beyond the base is in deltas, which are applied
        again. A delta's path is unique and stays in the list until a base covers it: if the checkpoint has the last
        one that the store has seen, it has all of them.
        """
        meta = store.meta
        if meta is None:
            return False
        base, last = msgspec.msgpack.decode(meta)
        return bool(base == self._base_id() and (not last or last in _paths(self._stored.deltas)))

    def _fetch(self, path: str) -> None:
        for file in self._files():
            data = read_raw(self._storage, file)
            with open(os.path.join(path, file.name), "wb") as target:
                target.write(data)

    # writing

    def snapshot(self, state: OperatorState, generation: int, epoch: int, token: str) -> KeyedHandle:
        """Write the epoch's delta; returns the subtask's state as the checkpoint will refer to it."""
        self._adopt_base()
        stored = self._stored
        delta = state.collect()
        deltas = list(stored.deltas)
        self.written = 0
        if delta:
            path = self._paths.state_file(generation, epoch, self._uid, self._subtask, token, "delta")
            file = write_delta(self._storage, path, delta)
            deltas.append(file)
            self.written = file.size
        return msgspec.structs.replace(stored, deltas=deltas)

    def committed(self, state: OperatorState, stored: KeyedHandle, generation: int, epoch: int) -> None:
        """The epoch whose snapshot was ``stored`` is complete: the store may follow, a new base may begin."""
        self._stored = stored
        self._all_touched = False
        if isinstance(state.store, RocksDBStore):
            self._mark(state.store)
        state.committed()
        self.bound(state)
        if self._pending is None and self._base_due():
            self._materialise(state, generation, epoch)

    def _base_due(self) -> bool:
        deltas = self._stored.deltas
        written = _size(deltas)
        base = _size(self._stored.base)
        return len(deltas) >= _MOST_DELTAS or written > max(64 << 20, 2 * base)

    def _materialise(self, state: OperatorState, generation: int, epoch: int) -> None:
        def name(kind: str) -> str:
            return self._paths.state_file(generation, epoch, self._uid, self._subtask, new_attempt(), kind)

        self.uploading = epoch
        if not isinstance(state.store, RocksDBStore):
            dump = list(state.dump())
            count = len(self._stored.deltas)
            self._pending = self._uploads.submit(
                lambda: (epoch, count, HEAP, [write_delta(self._storage, name("dump"), dump)])
            )
            return
        state.flush()
        copy = os.path.join(self._directory, f"materialisation-{epoch}")
        shutil.rmtree(copy, ignore_errors=True)
        state.store.checkpoint(copy)
        count = len(self._stored.deltas)
        self._pending = self._uploads.submit(self._upload, epoch, copy, count, name)

    def _upload(self, epoch: int, copy: str, count: int, name: Callable[[str], str]) -> tuple[int, int, str, list[Handle]]:
        files: dict[str, RawFile] = {}
        try:
            for file in sorted(os.listdir(copy)):
                if self._closed:
                    raise CancelledError("the subtask has ended")  # and nobody takes the result
                known = self._sst.get(file)
                at = os.path.join(copy, file)
                if known is None or known.size != os.path.getsize(at):
                    with open(at, "rb") as source:
                        stored = write_raw(self._storage, name("sst" if file.endswith(".sst") else "db"), source.read())
                    known = msgspec.structs.replace(stored, name=file)
                files[file] = known
        finally:  # its links would keep the space of files that the store has replaced
            shutil.rmtree(copy, ignore_errors=True)
        self._sst = {file: handle for file, handle in files.items() if file.endswith(".sst")}
        return epoch, count, ROCKSDB, list(files.values())

    def _adopt_base(self) -> None:
        """If a materialisation has been stored meanwhile, let the state refer to it instead of the deltas it covers."""
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending = self._pending, None
        self.uploading = None
        try:
            epoch, count, kind, files = pending.result()
        except Exception as error:
            if len(self._stored.deltas) >= _TOO_MANY_DELTAS:
                raise
            log.warning("no new base of the state of %s could be stored, will try again: %s", self._uid, error)
            return
        self._stored = msgspec.structs.replace(
            self._stored, base_epoch=epoch, base=files, kind=kind, deltas=self._stored.deltas[count:]
        )

    def bound(self, state: OperatorState) -> None:
        """Keep the rows in memory within the bound; what leaves is committed, or would not leave."""
        if not isinstance(state.store, RocksDBStore) or self._all_touched:
            return
        used, bound = state.memory(), self._settings.cache_bytes
        if used > bound:
            wanted = math.ceil(state.rows() * (1 - 0.9 * bound / used))
            self._all_touched = state.evict(wanted) < wanted

    def close(self, state: OperatorState) -> None:
        """Close the local store; its files stay for the next slot on this host."""
        self._closed = True
        if self._pending is not None:
            self._pending.cancel()
            wait([self._pending], _UPLOAD_PATIENCE)
            self._pending = None
        try:
            if isinstance(state.store, RocksDBStore):
                state.store.close()
        finally:  # a store that failed may be one that cannot be closed
            if isinstance(state.store, RocksDBStore) and (self._private or state.store.damaged):
                RocksDBStore.remove(state.store.path)
            self._unlock()


def _paths(handles: Sequence[Handle]) -> list[str]:
    return [handle.path for handle in handles if not isinstance(handle, LogRange)]


def _size(handles: Sequence[Handle]) -> int:
    return sum(handle.size for handle in handles if not isinstance(handle, LogRange))


def _abandoned(path: str) -> bool:
    """Whether no process has the RocksDB in this directory open."""
    try:
        with open(os.path.join(path, "LOCK"), "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def verify_contents(storage: Storage, checkpoint: CheckpointMetadata) -> None:
    """Read every file of a checkpoint.

    Raises:
        CorruptFile: one is missing or altered.
    """
    for handle in {handle.path: handle for handle in checkpoint.files()}.values():
        if isinstance(handle, ContainedFile):
            read_file(storage, handle)
        elif isinstance(handle, RawFile):
            read_raw(storage, handle)
        else:
            for _ in read_delta(storage, handle):
                pass
