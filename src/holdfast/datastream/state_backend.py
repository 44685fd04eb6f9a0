"""State backends: the local stores of operators' state."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.common.config_options import CheckpointingOptions, ConfigOption, ConfigOptions
from holdfast.common.configuration import Configuration
from holdfast.common.rocksdb_options import PredefinedOptions, RocksDBOptions
from holdfast.common.system.jvm_only import refusing
from holdfast.errors import ConfigurationError

__all__ = [
    "EmbeddedRocksDBStateBackend",
    "HashMapStateBackend",
    "PredefinedOptions",
    "RocksDBOptions",
    "StateBackend",
]

T = TypeVar("T")

STATE_BACKEND = ConfigOptions.key("state.backend.type").string_type().no_default_value()


class StateBackend(ABC):
    """Local store of operators' state; a view on a `Configuration`.

    It writes to its own configuration until an environment takes it, then to the environment's.
    """

    type_name: ClassVar[str]
    """The value of ``state.backend.type``."""

    def __init__(self) -> None:
        self._configuration = Configuration().set(STATE_BACKEND, self.type_name)

    def apply_to(self, configuration: Configuration) -> None:
        """Write the backend and its options to a configuration, and make later changes there."""
        configuration.add_all(self._configuration)
        self._configuration = configuration

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class HashMapStateBackend(StateBackend):
    """State as Python objects in the worker's memory: the fastest backend if state fits in memory."""

    type_name = "hashmap"


class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on the worker's disk, the hot part in memory: for state of any size.

    Args:
        enable_incremental_checkpointing: stored as ``execution.checkpointing.incremental``; checkpoints are always
            incremental.

    Examples:
        >>> backend = EmbeddedRocksDBStateBackend()
        >>> backend.set_option(RocksDBOptions.BLOCK_CACHE_SIZE, "256mb").get_option(RocksDBOptions.BLOCK_CACHE_SIZE)
        268435456
    """

    type_name = "rocksdb"

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__()
        if enable_incremental_checkpointing is not None:
            self._configuration.set(CheckpointingOptions.INCREMENTAL, bool(enable_incremental_checkpointing))

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the local directories of RocksDB's files; without them the worker's temporary directory.

        Raises:
            ConfigurationError: a path is empty, or not local.
        """
        for path in paths:
            if not isinstance(path, str) or not path or ("://" in path and not path.startswith("file://")):
                raise ConfigurationError(f"RocksDB's files need a local directory, got {path!r}")
        if paths:
            self._configuration.set(RocksDBOptions.LOCAL_DIRECTORIES, ";".join(paths))
        else:
            self._configuration.remove_config(RocksDBOptions.LOCAL_DIRECTORIES.key)

    def get_db_storage_paths(self) -> list[str]:
        """The local directories of RocksDB's files."""
        paths = self._configuration.get(RocksDBOptions.LOCAL_DIRECTORIES)
        return [] if paths is None else Configuration.parse_list_value(paths)

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether incremental checkpoints were requested."""
        return self._configuration.get(CheckpointingOptions.INCREMENTAL)

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Set the preset of RocksDB's options; options set directly override it."""
        if not isinstance(options, PredefinedOptions):
            raise ConfigurationError(f"the options are one of PredefinedOptions, got {options!r}")
        self._configuration.set(RocksDBOptions.PREDEFINED_OPTIONS, options)

    def get_predefined_options(self) -> PredefinedOptions:
        """The preset of RocksDB's options."""
        return self._configuration.get(RocksDBOptions.PREDEFINED_OPTIONS)

    def set_options(self, options_factory_class_name: str) -> None:
        """Not available: it takes a Java class. Use `set_option`."""
        raise NotImplementedError(
            "set_options takes a Java class; set options by set_option(RocksDBOptions.BLOCK_CACHE_SIZE, '256mb') or "
            "by state.backend.rocksdb.* in the Configuration"
        )

    def set_option(self, option: ConfigOption[Any], value: Any) -> EmbeddedRocksDBStateBackend:
        """Set one of `RocksDBOptions`; sizes may be strings such as ``'256mb'``.

        Raises:
            ConfigurationError: the value is not of the option's type.
        """
        self._configuration.set(option, value)
        return self

    def get_option(self, option: ConfigOption[T]) -> T:
        """The value of one of `RocksDBOptions`; None if unset."""
        return self._configuration.get(option)

    def get_number_of_transfer_threads(self) -> int:
        """The number of threads that transfer state files to and from the checkpoint storage."""
        return self._configuration.get(RocksDBOptions.TRANSFER_THREADS)

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Set the number of threads that transfer state files to and from the checkpoint storage.

        Raises:
            ConfigurationError: the number is not positive.
        """
        if not isinstance(number_of_transfering_threads, int) or number_of_transfering_threads < 1:
            raise ConfigurationError(f"there must be at least 1 thread, got {number_of_transfering_threads!r}")
        self._configuration.set(RocksDBOptions.TRANSFER_THREADS, number_of_transfering_threads)


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "CustomStateBackend": "it wraps an object of the JVM; use EmbeddedRocksDBStateBackend or HashMapStateBackend",
        },
    )
