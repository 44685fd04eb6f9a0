"""Settings of file sinks under PyFlink's names: when a file ends, what becomes of small ones, and how files are called."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigurationError

__all__ = [
    "ConcatFileCompactor",
    "DefaultRollingPolicy",
    "FileCompactStrategy",
    "FileCompactor",
    "IdenticalFileCompactor",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RecordWiseFileCompactor",
    "RollingPolicy",
]


class RollingPolicy:
    """When to close a part file and start the next."""

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Roll with every checkpoint."""
        return OnCheckpointRollingPolicy()

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 << 20, rollover_interval: int = 60_000, inactivity_interval: int = 60_000
    ) -> DefaultRollingPolicy:
        """Roll by size and time, whichever comes first. Checkpoints in between do not end a file.

        Args:
            part_size: The size from which a file is rolled, in bytes.
            rollover_interval: The time after which a file is rolled, in ms.
            inactivity_interval: The time without records after which it is rolled, in ms.

        Raises:
            ConfigurationError: one of them is not positive.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)


@dataclass(frozen=True)
class OnCheckpointRollingPolicy(RollingPolicy):
    """A part file ends with every checkpoint."""


@dataclass(frozen=True)
class DefaultRollingPolicy(RollingPolicy):
    """A part file ends by its size or its age; see `RollingPolicy.default_rolling_policy`."""

    part_size: int
    rollover_interval: int
    inactivity_interval: int

    def __post_init__(self) -> None:
        for name in ("part_size", "rollover_interval", "inactivity_interval"):
            _check_positive("default_rolling_policy()", name, getattr(self, name))


@dataclass(frozen=True)
class FileCompactStrategy:
    """When the files of several checkpoints become one: what comes first of the two.

    Examples:
        >>> FileCompactStrategy.builder().enable_compaction_on_checkpoint(5).set_size_threshold(64 << 20).build()
        FileCompactStrategy(size_threshold=67108864, num_checkpoints=5)
    """

    size_threshold: int | None
    """Bytes; None: no bound."""
    num_checkpoints: int | None
    """Checkpoints since the last compaction; None: any number."""

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        """Return a builder."""
        return FileCompactStrategy.Builder()

    class Builder:
        """Builder of a `FileCompactStrategy`."""

        def __init__(self) -> None:
            self._size: int | None = None
            self._checkpoints: int | None = None

        def enable_compaction_on_checkpoint(self, num_checkpoints_before_compaction: int) -> FileCompactStrategy.Builder:
            """Compact after so many checkpoints."""
            number = num_checkpoints_before_compaction
            self._checkpoints = _check_positive("FileCompactStrategy", "the number of checkpoints", number)
            return self

        def set_size_threshold(self, size_threshold: int) -> FileCompactStrategy.Builder:
            """Compact from so many bytes on."""
            self._size = _check_positive("FileCompactStrategy", "the size threshold", size_threshold)
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> FileCompactStrategy.Builder:
            """Accept a number of threads. It has no effect: each subtask compacts its own files."""
            return self

        def build(self) -> FileCompactStrategy:
            """Build the strategy.

            Raises:
                ConfigurationError: neither a number of checkpoints nor a size is set.
            """
            if self._size is None and self._checkpoints is None:
                raise ConfigurationError(
                    "FileCompactStrategy: set enable_compaction_on_checkpoint(...), set_size_threshold(...) or both"
                )
            return FileCompactStrategy(self._size, self._checkpoints)


class FileCompactor:
    """How the files of several checkpoints become one."""

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> ConcatFileCompactor:
        """Write one file's bytes after another's: for row formats.

        Args:
            file_delimiter: Bytes between them, as far as they are of different checkpoints.
        """
        return ConcatFileCompactor(file_delimiter)

    @staticmethod
    def identical_file_compactor() -> IdenticalFileCompactor:
        """Leave each file as it is: the same as no compaction."""
        return IdenticalFileCompactor()


class ConcatFileCompactor(FileCompactor):
    """One file's bytes after another's; see `FileCompactor.concat_file_compactor`."""

    def __init__(self, file_delimiter: bytes | None = None) -> None:
        self.file_delimiter = file_delimiter or b""


class RecordWiseFileCompactor(FileCompactor):
    """The records of all files, written to one: for any format. It needs no reader."""


class IdenticalFileCompactor(FileCompactor):
    """Each file as it is; see `FileCompactor.identical_file_compactor`."""


def _check_positive(where: str, name: str, value: int) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{where}: {name} must be a positive integer, not {value!r}")
    return value


class OutputFileConfig:
    """Prefix and suffix of the names of finished files.

    Examples:
        >>> OutputFileConfig.builder().with_part_prefix("pay").with_part_suffix(".csv").build().get_part_suffix()
        '.csv'
    """

    def __init__(self, part_prefix: str = "part", part_suffix: str = "") -> None:
        self._prefix = part_prefix
        self._suffix = part_suffix

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Return a builder."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """The prefix of names."""
        return self._prefix

    def get_part_suffix(self) -> str:
        """The suffix of names."""
        return self._suffix

    class OutputFileConfigBuilder:
        """Builder of an `OutputFileConfig`; by default names are ``part-...`` without a suffix."""

        def __init__(self) -> None:
            self._prefix = "part"
            self._suffix = ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the prefix of names."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the suffix of names."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """Build the configuration."""
            return OutputFileConfig(self._prefix, self._suffix)
