"""The local store: RocksDB beside the function, for state larger than memory.

It is a cache of the checkpoint on this host's disk, never the truth: only committed rows enter it, it has no write-ahead
log of its own (the checkpoint's deltas are that), and one that does not fit the checkpoint is thrown away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from holdfast.common.configuration import parse_memory_size

__all__ = ["RocksDBStore", "rocksdb_settings"]

_META = b"\x00meta"

_PREFIX = "state.backend.rocksdb."
_DEFAULTS = {
    "block.cache-size": "8mb",
    "block.blocksize": "4kb",
    "use-bloom-filter": "true",
    "bloom-filter.bits-per-key": "10",
    "writebuffer.size": "64mb",
    "writebuffer.count": "2",
    "writebuffer.number-to-merge": "1",
    "thread.num": "2",
    "files.open": "-1",
    "compaction.level.max-size-level-base": "256mb",
    "compaction.level.target-file-size-base": "64mb",
    "compaction.level.use-dynamic-size": "false",
    "compaction.style": "LEVEL",
    "compression": "LZ4_COMPRESSION",
    "log.max-file-size": "25mb",
    "log.file-num": "4",
}
"""Flink's defaults, but for the bloom filter, which first sights of a key need."""


def rocksdb_settings(config: Mapping[str, str]) -> dict[str, str]:
    """The ``state.backend.rocksdb.*`` options that reach RocksDB, by the part after that prefix.

    Raises:
        ValueError: an option does not exist here or has a value that RocksDB does not take.
    """
    elsewhere = {"localdir", "memory.managed", "checkpoint.transfer.thread.num", "predefined-options"}
    settings = dict(_DEFAULTS)
    for key, value in config.items():
        if key.startswith(_PREFIX):
            name = key[len(_PREFIX) :]
            if name in elsewhere:
                continue
            if name not in settings:
                raise ValueError(f"{key} is not an option of this backend; there are {', '.join(sorted(settings))}")
            settings[name] = value
    _options(settings)  # so that a bad value is refused before the job starts
    return settings


def _options(settings: Mapping[str, str]) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(parse_memory_size(settings["block.cache-size"])))
    table.set_block_size(parse_memory_size(settings["block.blocksize"]))
    if settings["use-bloom-filter"].lower() == "true":
        table.set_bloom_filter(float(settings["bloom-filter.bits-per-key"]), False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(parse_memory_size(settings["writebuffer.size"]))
    options.set_max_write_buffer_number(int(settings["writebuffer.count"]))
    options.set_min_write_buffer_number_to_merge(int(settings["writebuffer.number-to-merge"]))
    options.set_max_background_jobs(int(settings["thread.num"]))
    options.set_max_open_files(int(settings["files.open"]))
    options.set_max_bytes_for_level_base(parse_memory_size(settings["compaction.level.max-size-level-base"]))
    options.set_target_file_size_base(parse_memory_size(settings["compaction.level.target-file-size-base"]))
    options.set_level_compaction_dynamic_level_bytes(
        settings["compaction.level.use-dynamic-size"].lower() == "true"
    )
    compression = settings["compression"].upper().replace("_COMPRESSION", "")
    factories = {"NO": "none", "SNAPPY": "snappy", "ZLIB": "zlib", "LZ4": "lz4", "LZ4HC": "lz4hc", "ZSTD": "zstd"}
    if compression not in factories:
        raise ValueError(
            f"state.backend.rocksdb.compression: {settings['compression']!r}; there are "
            + ", ".join(f"{name}_COMPRESSION" for name in factories)
        )
    options.set_compression_type(getattr(DBCompressionType, factories[compression])())
    if settings["compaction.style"].upper() == "UNIVERSAL":
        from rocksdict import DBCompactionStyle

        options.set_compaction_style(DBCompactionStyle.universal())
    elif settings["compaction.style"].upper() != "LEVEL":
        raise ValueError("state.backend.rocksdb.compaction.style: LEVEL or UNIVERSAL")
    options.set_max_log_file_size(parse_memory_size(settings["log.max-file-size"]))
    options.set_keep_log_file_num(int(settings["log.file-num"]))
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

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows of these keys (sorted: neighbours share blocks); None where there is none."""
        return self._db[keys]  # type: ignore[no-any-return]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put and delete rows, all or nothing."""
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        self._db.write(batch, write_opt=self._unlogged)

    def delete_prefix(self, prefix: bytes) -> None:
        """Delete every row whose key begins with ``prefix``."""
        self._db.delete_range(prefix, _after(prefix))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys begin with ``prefix``, in order."""
        read = ReadOptions()
        read.set_iterate_upper_bound(_after(prefix))
        rows = self._db.iter(read)
        rows.seek(prefix)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()

    @property
    def meta(self) -> bytes | None:
        """What `set_meta` kept: which checkpoint the store belongs to."""
        return self._db.get(_META)  # type: ignore[no-any-return]

    def set_meta(self, value: bytes) -> None:
        """Keep a note beside the rows; it becomes durable no earlier than what was written before it."""
        self.write([(_META, value)])

    def checkpoint(self, directory: str) -> None:
        """A consistent copy of the store by hard links, complete in itself."""
        Checkpoint(self._db).create_checkpoint(directory)

    def size(self) -> int:
        """About how many bytes the rows take, on disk and in the write buffers."""
        total = 0
        for name in ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables"):
            total += int(self._db.property_int_value(name) or 0)
        return total

    def close(self) -> None:
        """Close the store; its files stay."""
        self._db.close()

    @staticmethod
    def remove(path: str) -> None:
        """Remove a closed store's files."""
        shutil.rmtree(path, ignore_errors=True)


def _after(prefix: bytes) -> bytes:
    """The smallest key behind all keys with this prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])

