"""The local store: RocksDB beside the function, for state larger than memory.

It is a cache of the checkpoint on this host's disk, never the truth: only committed rows enter it, it has no write-ahead
log of its own (the checkpoint's deltas are that), and one that does not fit the checkpoint is thrown away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
from holdfast.state.layout import END, META

__all__ = ["RocksDBStore", "rocksdb_settings"]

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
    _O.MAX_SIZE_LEVEL_BASE: "256mb",
    _O.TARGET_FILE_SIZE_BASE: "64mb",
    _O.USE_DYNAMIC_LEVEL_SIZE: "false",
    _O.COMPACTION_STYLE: "LEVEL",
    _O.COMPRESSION: "LZ4_COMPRESSION",
    _O.LOG_MAX_FILE_SIZE: "25mb",
    _O.LOG_FILE_NUM: "4",
}
"""Flink's defaults, but for the bloom filter, which first sights of a key need."""

_LEVEL_0_FILES = 4
"""Files in level 0 that start a compaction: RocksDB's default."""
_COMPRESSIONS = {"NO": "none", "SNAPPY": "snappy", "ZLIB": "zlib", "LZ4": "lz4", "LZ4HC": "lz4hc", "ZSTD": "zstd"}
_STYLES = {"LEVEL": "level", "UNIVERSAL": "universal"}


def rocksdb_settings(config: Mapping[str, str]) -> dict[str, str]:
    """All ``state.backend.rocksdb.*`` options that reach RocksDB: the defaults, under the preset, under the given ones.

    Raises:
        ValueError: an option does not exist here or has a value that RocksDB does not take.
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
                raise ValueError(f"{key} is not an option of this backend; there are {', '.join(sorted(settings))}")
            settings[key] = value
    _options(settings)  # so that a bad value is refused before the job starts
    return settings


def _options(settings: Mapping[str, str]) -> Options:
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
            raise ValueError(f"{option.key}: {text!r}; there are " + ", ".join(each + suffix for each in choices))
        return name

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(value(_O.BLOCK_CACHE_SIZE, 0)))
    table.set_block_size(value(_O.BLOCK_SIZE, 1))
    if value(_O.USE_BLOOM_FILTER):
        table.set_bloom_filter(value(_O.BLOOM_FILTER_BITS_PER_KEY, 1), False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(value(_O.WRITE_BUFFER_SIZE, 1 << 16))
    options.set_max_write_buffer_number(value(_O.MAX_WRITE_BUFFER_NUMBER, 1))
    options.set_min_write_buffer_number_to_merge(value(_O.MIN_WRITE_BUFFER_NUMBER_TO_MERGE, 1))
    options.set_max_background_jobs(value(_O.MAX_BACKGROUND_THREADS, 1))
    options.set_max_open_files(value(_O.MAX_OPEN_FILES, -1))
    options.set_max_bytes_for_level_base(value(_O.MAX_SIZE_LEVEL_BASE, 1))
    options.set_target_file_size_base(value(_O.TARGET_FILE_SIZE_BASE, 1))
    options.set_level_compaction_dynamic_level_bytes(value(_O.USE_DYNAMIC_LEVEL_SIZE))
    options.set_compression_type(getattr(DBCompressionType, choice(_O.COMPRESSION, _COMPRESSIONS, "_COMPRESSION"))())
    options.set_compaction_style(getattr(DBCompactionStyle, choice(_O.COMPACTION_STYLE, _STYLES))())
    options.set_max_log_file_size(value(_O.LOG_MAX_FILE_SIZE, 0))
    options.set_keep_log_file_num(value(_O.LOG_FILE_NUM, 1))
    return options


class RocksDBStore:
    """One subtask's RocksDB."""

    def __init__(self, path: str, settings: Mapping[str, str]) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        self._db = Rdict(path, _options(settings))
        # What a crash loses is replayed from the checkpoint's deltas: a log of our own would be written for nothing.
        without_log = WriteOptions()
        without_log.disable_wal = True
        self._db.set_write_options(without_log)
        self._unlogged = without_log
        self._file_size = parse_memory_size(settings[_O.TARGET_FILE_SIZE_BASE.key])
        self.damaged = False
        """Whether an access failed: its files cannot be trusted any more, or its disk is full."""

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain exceptions for everything
            self.damaged = True
            raise OSError(f"the local store {self.path} failed: {error}") from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows of these keys (sorted: neighbours share blocks); None where there is none.

        Raises:
            OSError: the store cannot be read; `damaged` is set then.
        """
        with self._watched():
            return self._db[keys]  # type: ignore[no-any-return]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put and delete rows, all or nothing.

        Raises:
            OSError: the store cannot be written; `damaged` is set then.
        """
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        with self._watched():
            self._db.write(batch, write_opt=self._unlogged)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every row from ``start`` on, before ``end``."""
        with self._watched():
            self._db.delete_range(start, end, self._unlogged)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from ``start`` on, before ``end``, in order, as they are at the first step."""
        read = ReadOptions()
        read.set_iterate_upper_bound(end)
        rows = self._db.iter(read)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        with self._watched():
            rows.status()  # an iterator that meets damage just ends

    @property
    def meta(self) -> bytes | None:
        """What `set_meta` kept: which checkpoint the store belongs to."""
        return self._db.get(META)  # type: ignore[no-any-return]

    def set_meta(self, value: bytes) -> None:
        """Keep a note beside the rows; it becomes durable no earlier than what was written before it."""
        self.write([(META, value)])

    def checkpoint(self, directory: str) -> None:
        """A consistent copy of the store by hard links, complete in itself."""
        with self._watched():
            Checkpoint(self._db).create_checkpoint(directory)

    def flush(self) -> None:
        """Move the write buffers to files."""
        with self._watched():
            self._db.flush()

    def file_bytes(self) -> tuple[int, int]:
        """Bytes of all files, and of those in level 0, whose ranges of keys overlap."""
        with self._watched():
            files = self._db.live_files()
        return sum(file["size"] for file in files), sum(file["size"] for file in files if file["level"] == 0)

    def sort_by_itself(self, file_size: int) -> None:
        """Let RocksDB compact level 0 in its own threads, into files of at most this size."""
        size = min(file_size, self._file_size)
        # Files that overlap nothing would be moved as they are. So they get company that reaches over all keys.
        self.write([(META, self.meta or b"")], [END])
        self.flush()
        with self._watched():
            self._db.set_options({"level0_file_num_compaction_trigger": "1", "target_file_size_base": str(size)})

    def sort_when_needed(self) -> None:
        """Take back `sort_by_itself`; the size of files stays."""
        with self._watched():
            self._db.set_options({"level0_file_num_compaction_trigger": str(_LEVEL_0_FILES)})

    @staticmethod
    def files_in(path: str, settings: Mapping[str, str]) -> dict[str, tuple[int, bytes, bytes]]:
        """Level, first and last key of each SST file of a closed store."""
        db = Rdict(path, _options(settings), access_type=AccessType.read_only())
        try:
            return {
                file["name"].lstrip("/"): (file["level"], bytes(file["start_key"]), bytes(file["end_key"]))
                for file in db.live_files()
            }
        finally:
            db.close()

    def close(self) -> None:
        """Close the store; its files stay."""
        self._db.close()

    @staticmethod
    def remove(path: str) -> None:
        """Remove a closed store's files."""
        shutil.rmtree(path, ignore_errors=True)
