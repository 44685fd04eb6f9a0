"""RocksDB's options under Flink's keys, and Flink's presets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from holdfast.common.config_options import ConfigOption, ConfigOptions

__all__ = ["PredefinedOptions", "RocksDBOptions", "predefined_settings"]


class PredefinedOptions(Enum):
    """Presets of RocksDB's options for kinds of disks."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


def _key(name: str) -> ConfigOptions.OptionBuilder:
    return ConfigOptions.key(f"state.backend.rocksdb.{name}")


class RocksDBOptions:
    """RocksDB's options; sizes in bytes. An option set neither directly nor by a preset has Flink's default."""

    LOCAL_DIRECTORIES = _key("localdir").string_type().no_default_value()
    PREDEFINED_OPTIONS = _key("predefined-options").enum_type(PredefinedOptions).default_value(PredefinedOptions.DEFAULT)
    TRANSFER_THREADS = _key("checkpoint.transfer.thread.num").int_type().default_value(4)
    BLOCK_CACHE_SIZE = _key("block.cache-size").memory_type().no_default_value()
    BLOCK_SIZE = _key("block.blocksize").memory_type().no_default_value()
    WRITE_BUFFER_SIZE = _key("writebuffer.size").memory_type().no_default_value()
    MAX_WRITE_BUFFER_NUMBER = _key("writebuffer.count").int_type().no_default_value()
    MIN_WRITE_BUFFER_NUMBER_TO_MERGE = _key("writebuffer.number-to-merge").int_type().no_default_value()
    MAX_BACKGROUND_THREADS = _key("thread.num").int_type().no_default_value()
    MAX_OPEN_FILES = _key("files.open").int_type().no_default_value()
    USE_BLOOM_FILTER = _key("use-bloom-filter").boolean_type().no_default_value()
    BLOOM_FILTER_BITS_PER_KEY = _key("bloom-filter.bits-per-key").double_type().no_default_value()
    COMPACTION_STYLE = _key("compaction.style").string_type().no_default_value()
    MAX_SIZE_LEVEL_BASE = _key("compaction.level.max-size-level-base").memory_type().no_default_value()
    TARGET_FILE_SIZE_BASE = _key("compaction.level.target-file-size-base").memory_type().no_default_value()
    USE_DYNAMIC_LEVEL_SIZE = _key("compaction.level.use-dynamic-size").boolean_type().no_default_value()
    COMPRESSION = _key("compression").string_type().no_default_value()
    LOG_MAX_FILE_SIZE = _key("log.max-file-size").memory_type().no_default_value()
    LOG_FILE_NUM = _key("log.file-num").int_type().no_default_value()


_O = RocksDBOptions
_DISK: dict[ConfigOption[Any], str] = {
    _O.COMPACTION_STYLE: "LEVEL",
    _O.USE_DYNAMIC_LEVEL_SIZE: "true",
    _O.MAX_BACKGROUND_THREADS: "4",
    _O.MAX_OPEN_FILES: "-1",
}
_PRESETS: dict[PredefinedOptions, dict[ConfigOption[Any], str]] = {
    PredefinedOptions.DEFAULT: {},
    PredefinedOptions.SPINNING_DISK_OPTIMIZED: _DISK,
    PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM: {
        **_DISK,
        _O.TARGET_FILE_SIZE_BASE: "256mb",
        _O.MAX_SIZE_LEVEL_BASE: "1gb",
        _O.WRITE_BUFFER_SIZE: "64mb",
        _O.MIN_WRITE_BUFFER_NUMBER_TO_MERGE: "3",
        _O.MAX_WRITE_BUFFER_NUMBER: "4",
        _O.BLOCK_CACHE_SIZE: "256mb",
        _O.BLOCK_SIZE: "128kb",
        _O.USE_BLOOM_FILTER: "true",
    },
    PredefinedOptions.FLASH_SSD_OPTIMIZED: {_O.MAX_BACKGROUND_THREADS: "4", _O.MAX_OPEN_FILES: "-1"},
}


def predefined_settings(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of the configured preset, by full key; options set directly override them.

    Raises:
        ValueError: there is no such preset.
    """
    option = RocksDBOptions.PREDEFINED_OPTIONS
    preset = option.parse(config[option.key]) if option.key in config else option.default
    return {o.key: text for o, text in _PRESETS[preset].items()}
