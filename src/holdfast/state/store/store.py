"""The local store: a RocksDB on the worker's disk, for state larger than memory.

It is a cache of the checkpoint, never the source of truth. Only checkpointed rows enter it, it has no write-ahead log (the
checkpoint's deltas replace it), and a store that does not match the checkpoint is discarded.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from holdfast.common.config_options import ConfigOption
from holdfast.common.config_values import parse_memory_size
from holdfast.common.rocksdb_options import RocksDBOptions, predefined_settings
from holdfast.state.store.blob_file import with_stubs
from holdfast.state.store.blob_files import BlobFiles, ValueSeparation
from holdfast.state.store.ordered import NO_STUBS
from holdfast.state.stored.layout import END, META

__all__ = ["RocksDBStore", "rocksdb_settings", "rows_from"]

T = TypeVar("T")

_PREFIX = "state.backend.rocksdb."
_O = RocksDBOptions
_DEFAULTS: dict[ConfigOption[Any], str] = {
    _O.BLOCK_CACHE_SIZE: "8mb",
    _O.BLOCK_SIZE: "4kb",
    _O.USE_BLOOM_FILTER: "true",
    _O.BLOOM_FILTER_BITS_PER_KEY: "10",
    _O.WRITE_BUFFER_SIZE: "64mb",
    _O.MAX_WRITE_BUFFER_NUMBER: "2",
    _O.MIN_WRITE_BUFFER_NUMBER_TO_MERGE: "1",
    _O.MAX_BACKGROUND_THREADS: "2",
    _O.MAX_OPEN_FILES: "-1",
    _O.MAX_SIZE_LEVEL_BASE: "1gb",
    _O.TARGET_FILE_SIZE_BASE: "64mb",
    _O.USE_DYNAMIC_LEVEL_SIZE: "false",
    _O.COMPACTION_STYLE: "LEVEL",
    _O.COMPRESSION: "LZ4_COMPRESSION",
    _O.LOG_MAX_FILE_SIZE: "25mb",
    _O.LOG_FILE_NUM: "4",
}
"""Flink's defaults, except the bloom filter, which speeds up the first lookup of new keys, and the size of level 1."""

_UNCOUNTED = "uncounted"
"""Subdirectory of a store that marks it as containing parts of files (see `RocksDBStore.expect_parts`)."""
_UNCOUNTED_OPTIONS = """[Version]
  rocksdb_version=10.4.2
  options_file_version=1.1
[DBOptions]
  compaction_verify_record_count=false
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""
_RAW = '{"raw_mode":true,"prefix_extractors":{}}'
_STALLED = ("Write stall", "Writes have been stopped")
"""Texts in the errors of a write or a flush that RocksDB refuses because it would have to wait."""
_STALL_S, _MOST_STALL_S = 0.001, 0.016
"""Pause in seconds before the call is tried again: the first one, and the longest."""
_COMPACTION = "rocksdb:low"
"""The name of RocksDB's compaction threads."""
_NICE = 15
"""Their nice value (0 to 19): if processors are short, they get a thirtieth of a task's share."""
_LITTLE = 8 << 20
"""Bytes of rows that are flushed quickly."""
_LEVEL_0_FILES = 8
"""Level-0 files that start a compaction: half of level 1, so that each of them causes fewer bytes to be rewritten."""
_PART = 16
"""Rows of a scan whose values are read at once, after a smaller start."""
_BUFFER_FILTER_SHARE = 0.1
"""The size of a write buffer's Bloom filter, as a fraction of the buffer."""
_LEVELS = 7
"""Levels of a store (RocksDB's default)."""
_COMPRESSIONS = {"NO": "none", "SNAPPY": "snappy", "ZLIB": "zlib", "LZ4": "lz4", "LZ4HC": "lz4hc", "ZSTD": "zstd"}
_STYLES = {"LEVEL": "level", "UNIVERSAL": "universal"}


def rocksdb_settings(config: Mapping[str, str]) -> dict[str, str]:
    """All ``state.backend.rocksdb.*`` settings for RocksDB: the defaults, overridden by the preset, then by ``config``.

    Raises:
        ValueError: an option is unknown or has an invalid value.
    """
    settings = {option.key: text for option, text in _DEFAULTS.items()}
    settings.update(predefined_settings(config))
    elsewhere = {
        _O.LOCAL_DIRECTORIES.key,
        _O.PREDEFINED_OPTIONS.key,
        _O.TRANSFER_THREADS.key,
        f"{_PREFIX}memory.managed",
    }
    for key, value in config.items():
        if key.startswith(_PREFIX) and key not in elsewhere:
            if key not in settings:
                raise ValueError(f"{key} is not an option of this backend; its options are {', '.join(sorted(settings))}")
            settings[key] = value
    _options(settings)  # reject invalid values before the job starts
    return settings


def _options(settings: Mapping[str, str], path: str = "") -> Options:
    def value(option: ConfigOption[Any], least: float | None = None) -> Any:
        text = settings[option.key]
        try:
            parsed = option.parse(text)
        except ValueError as error:
            raise ValueError(f"{option.key}: {error}") from None
        if least is not None and parsed < least:
            raise ValueError(f"{option.key} must be at least {least}, got {text!r}")
        return parsed

    def choice(option: ConfigOption[Any], choices: Mapping[str, str], suffix: str = "") -> str:
        text = settings[option.key]
        name = choices.get(text.strip().upper().removesuffix(suffix))
        if name is None:
            raise ValueError(f"{option.key}: {text!r} is not one of " + ", ".join(each + suffix for each in choices))
        return name

    uncounted = os.path.join(path, _UNCOUNTED)
    options = Options.load_latest(uncounted)[0] if path and os.path.isdir(uncounted) else Options(raw_mode=True)
    options.create_if_missing(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(value(_O.BLOCK_CACHE_SIZE, 0)))
    table.set_block_size(value(_O.BLOCK_SIZE, 1))
    if value(_O.USE_BLOOM_FILTER):
        table.set_bloom_filter(value(_O.BLOOM_FILTER_BITS_PER_KEY, 1), False)
        # Half of a growing state's lookups are for keys that are not in the write buffer.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_BUFFER_FILTER_SHARE)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(value(_O.WRITE_BUFFER_SIZE, 1 << 16))
    options.set_max_write_buffer_number(value(_O.MAX_WRITE_BUFFER_NUMBER, 1))
    options.set_min_write_buffer_number_to_merge(value(_O.MIN_WRITE_BUFFER_NUMBER_TO_MERGE, 1))
    options.set_max_background_jobs(value(_O.MAX_BACKGROUND_THREADS, 1))
    options.set_max_open_files(value(_O.MAX_OPEN_FILES, -1))
    options.set_level_zero_file_num_compaction_trigger(_LEVEL_0_FILES)
    options.set_max_bytes_for_level_base(value(_O.MAX_SIZE_LEVEL_BASE, 1))
    options.set_target_file_size_base(value(_O.TARGET_FILE_SIZE_BASE, 1))
    options.set_level_compaction_dynamic_level_bytes(value(_O.USE_DYNAMIC_LEVEL_SIZE))
    compression = getattr(DBCompressionType, choice(_O.COMPRESSION, _COMPRESSIONS, "_COMPRESSION"))()
    # A base has hardly any files of level 0, and the next compaction compresses their rows.
    options.set_compression_per_level([DBCompressionType.none(), *[compression] * (_LEVELS - 1)])
    options.set_compaction_style(getattr(DBCompactionStyle, choice(_O.COMPACTION_STYLE, _STYLES))())
    options.set_max_log_file_size(value(_O.LOG_MAX_FILE_SIZE, 0))
    options.set_keep_log_file_num(value(_O.LOG_FILE_NUM, 1))
    return options


class RocksDBStore:
    """The RocksDB of one subtask."""

    on_disk = True

    def __init__(
        self,
        path: str,
        settings: Mapping[str, str],
        *,
        compacts: bool = True,
        read_only: bool = False,
        explain: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the store.

        Args:
            path: The store's directory.
            settings: Settings of RocksDB.
            compacts: Whether RocksDB compacts it in the background, as after `compact_from_now_on`.
            read_only: Whether it is never written.
            explain: Called when an access fails; may raise a more precise error.
        """
        self.path = path
        self.damaged = False
        """Whether an access failed: the files may be corrupt, or the disk full."""
        self._ahead = False
        """Whether a flush that `flushed_ahead` started is running."""
        self._explain = explain
        os.makedirs(path, exist_ok=True)
        options = _options(settings, path)
        options.set_disable_auto_compactions(not compacts)
        # Without naming the options twice, an existing store would keep those that it was written with.
        families = None if read_only else {"default": options}
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            self._db = Rdict(path, options, families, access)
        except Exception as error:  # rocksdict raises plain exceptions for everything
            explain()
            raise OSError(f"the local store {path} cannot be opened: {error}") from error
        if not read_only:
            _put_compaction_last()
        # No write-ahead log: rows lost in a crash are replayed from the checkpoint's deltas.
        without_log = WriteOptions()
        without_log.disable_wal = True
        without_log.no_slowdown = True
        self._db.set_write_options(without_log)
        self._unlogged = without_log
        self._separation = ValueSeparation(settings[_O.COMPRESSION.key])
        self._blobs = BlobFiles(path, self._look_up, self._write, writable=not read_only)
        self._file_size = parse_memory_size(settings[_O.TARGET_FILE_SIZE_BASE.key])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain exceptions for everything
            self.damaged = True
            self._explain()
            raise OSError(f"the local store {self.path} failed: {error}") from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows of these keys (sorted keys share blocks); None for a missing key.

        Raises:
            OSError: the store cannot be read; `damaged` becomes True.
        """
        return self._with_values(self._read(lambda: self._look_up(keys)))

    def get_stubs(self, keys: list[bytes], kind: bytes) -> tuple[list[bytes | None], set[int]]:
        """Like `get_many`, but values in blob files that have a stub of this kind are replaced by it; also returns where.

        Raises:
            OSError: the store cannot be read; `damaged` becomes True.
        """
        found = self._read(lambda: self._look_up(keys))
        places = with_stubs(found, kind)
        return self._with_values(found), places

    def _with_values(self, found: list[bytes | None]) -> list[bytes | None]:
        """Replace the blobs among values of RocksDB by their values."""
        with self._watched():
            return self._blobs.resolve(found)

    def _look_up(self, keys: list[bytes]) -> list[bytes | None]:
        return self._db[keys]  # type: ignore[no-any-return]

    def _read(self, read: Callable[[], T]) -> T:
        with self._watched():
            return read()

    def keeps_apart(self, prefix: bytes) -> bool:
        """Whether large values of the state whose keys have this prefix lie in blob files, as far as is known."""
        return self._separation.keeps_apart(prefix[:2])

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), stubs: Mapping[bytes, bytes] = NO_STUBS
    ) -> None:
        """Put and delete rows, atomically, see `OrderedStore`. No value may begin with `MARKER` of `blob_file`.

        Raises:
            OSError: the store cannot be written; `damaged` becomes True.
        """
        rows, large = self._separation.split(puts)
        if large:
            with self._watched():
                rows += self._blobs.append(large, stubs)
        self._write(rows, tuple(deletes))
        if large:
            self._collect(sum([len(value) for _, value in large]))

    def _collect(self, written: int) -> None:
        """Collect garbage of the blob files, in proportion to the bytes of values written."""
        with self._watched():
            flush = self._blobs.collect(written, self._flushed)
        if flush:
            self.flush(wait=False)

    def _write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        def write() -> None:
            batch = WriteBatch(raw_mode=True)  # a batch can be written only once
            for key, value in puts:
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)
            self._db.write(batch, write_opt=self._unlogged)

        self._when_possible(write)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all rows in ``[start, end)``.

        Raises:
            OSError: the store cannot be written; `damaged` becomes True.
        """
        self._when_possible(lambda: self._db.delete_range(start, end, self._unlogged))

    def _when_possible(self, call: Callable[[], None]) -> None:
        """Write or flush; wait while RocksDB takes no rows because its flushes and compactions are behind.

        RocksDB's own wait is not used: it never ends if a flush fails meanwhile, for example on a full disk.
        """
        failed, pause = False, _STALL_S
        with self._watched():
            while True:
                try:
                    return call()
                except Exception as error:
                    if not any(text in str(error) for text in _STALLED):
                        raise
                    if failed:
                        raise OSError(
                            "it takes no rows, because a flush or compaction failed; its file LOG says why"
                        ) from error
                # Retrying too early mostly fails again, and each attempt builds the whole batch.
                while not (failed := self._has("background-errors")) and self._has("is-write-stopped"):
                    time.sleep(_STALL_S)
                time.sleep(pause)
                pause = min(2 * pause, _MOST_STALL_S)

    def _has(self, what: str) -> bool:
        """Whether a property of RocksDB is not zero."""
        return bool(self._db.property_int_value(f"rocksdb.{what}"))

    def _flushed(self) -> bool:
        """Whether no write buffer is left to be flushed, except the one in use."""
        return not self._has("num-immutable-mem-table")

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows in ``[start, end)`` in order, as of the first step."""
        with self._blobs.pinned():
            rows, most = self._rows(start, end), 1
            while part := list(islice(rows, most)):
                held: list[bytes | None] = [data for _, data in part]
                yield from zip([key for key, _ in part], self._with_values(held))
                most = min(2 * most, self._part)

    @property
    def _part(self) -> int:
        return _PART

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The first key in ``[start, end)``."""
        return next((key for key, _ in self._rows(start, end)), None)

    def _rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The content of RocksDB in ``[start, end)``, with blobs."""
        return self._iterate(self._iterator(end), start)

    def _iterate(self, rows: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from rows_from(rows, start)
        with self._watched():
            rows.status()  # raises for corrupt data, at which an iterator ends silently

    def _iterator(self, end: bytes) -> Any:
        """An iterator over the present rows before ``end``."""
        read = ReadOptions()
        read.set_iterate_upper_bound(end)
        return self._db.iter(read)

    @property
    def meta(self) -> bytes | None:
        """The metadata of `set_meta`: the checkpoint that the store belongs to."""
        return self.get_many([META])[0]

    def set_meta(self, value: bytes) -> None:
        """Store metadata beside the rows; it never becomes durable before writes that precede it."""
        self.write([(META, value)])

    def checkpoint(self, directory: str) -> None:
        """Make a consistent, self-contained copy of the store by hard links."""
        with self._watched(), self._blobs.pinned() as known:
            Checkpoint(self._db).create_checkpoint(directory)
            self._blobs.link(directory, known)

    def flush(self, *, wait: bool = True) -> None:
        """Flush the write buffers to files; without ``wait``, RocksDB does so in its own threads."""
        self._blobs.before_flush()
        self._when_possible(lambda: self._db.flush(wait))
        if wait:
            with self._watched():
                self._blobs.delete_flushed()

    def flushed_ahead(self) -> bool:
        """Whether a flush would be quick. If not, one starts in RocksDB's threads; call again to learn when it is over."""
        with self._watched():
            if self._ahead:  # if that flush failed, the next one will fail, too
                self._ahead = not (self._flushed() or self._has("background-errors"))
                return not self._ahead
            if self._db.property_int_value("rocksdb.cur-size-all-mem-tables") <= _LITTLE:
                return True
        self.flush(wait=False)
        self._ahead = True
        return False

    def file_bytes(self) -> tuple[int, int]:
        """Total bytes of all files, and of the level-0 files, whose key ranges overlap."""
        with self._watched():
            files = self._db.live_files()
        return sum(file["size"] for file in files), sum(file["size"] for file in files if file["level"] == 0)

    def compact_from_now_on(self) -> None:
        """Let RocksDB compact the store in its own threads."""
        with self._watched():
            self._db.set_options({"disable_auto_compactions": "false"})

    def sort_by_itself(self, file_size: int) -> None:
        """Let RocksDB compact level 0 in its own threads, into files of at most ``file_size`` bytes."""
        size = min(file_size, self._file_size)
        # RocksDB moves files without overlap unchanged. This additional file spans all keys, so RocksDB must rewrite them.
        self.write([(META, self.meta or b"")], [END])
        self.flush()
        with self._watched():
            self._db.set_options({"level0_file_num_compaction_trigger": "1", "target_file_size_base": str(size)})

    def sort_when_needed(self) -> None:
        """Undo `sort_by_itself`, except for the file size."""
        with self._watched():
            self._db.set_options({"level0_file_num_compaction_trigger": str(_LEVEL_0_FILES)})

    def files(self) -> dict[str, tuple[int, bytes, bytes]]:
        """Level, first key and last key of each SST file and blob file, by file name."""
        with self._watched():
            return {
                file["name"].lstrip("/"): (file["level"], bytes(file["start_key"]), bytes(file["end_key"]))
                for file in self._db.live_files()
            } | {name: (0, first, last) for name, first, last in self._blobs.ranges()}

    @staticmethod
    def expect_parts(path: str) -> None:
        """Prepare a closed store for files with missing parts (`holdfast.state.snapshots.sst_parts`).

        Their properties also count the missing entries, so RocksDB must not verify record counts in compactions. This can be
        set only in a file of options.
        """
        directory = os.path.join(path, _UNCOUNTED)
        os.makedirs(directory, exist_ok=True)
        for name, content in (("OPTIONS-000001", _UNCOUNTED_OPTIONS), ("rocksdict-config.json", _RAW)):
            with open(os.path.join(directory, name), "w") as file:
                file.write(content)

    def close(self) -> None:
        """Close the store; its files stay."""
        self._blobs.close()
        self._db.close()

    @staticmethod
    def remove(path: str) -> None:
        """Delete a closed store's files."""
        shutil.rmtree(path, ignore_errors=True)


def _put_compaction_last() -> None:
    """Give RocksDB's compaction threads a lower priority than tasks, where threads have priorities of their own (Linux)."""
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/comm") as file:
                if file.read().startswith(_COMPACTION):
                    os.setpriority(os.PRIO_PROCESS, int(thread), _NICE)


def rows_from(rows: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a RocksDB iterator from ``start`` on; check its status afterwards."""
    rows.seek(start)
    while rows.valid():
        yield rows.key(), rows.value()
        rows.next()
