"""CheckpointStorage: the location of checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from holdfast.common.config_options import CheckpointingOptions
from holdfast.common.configuration import Configuration
from holdfast.common.system.jvm_only import refusing
from holdfast.errors import ConfigurationError

__all__ = ["CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"]


class CheckpointStorage(ABC):
    """The location of checkpoints."""

    @abstractmethod
    def apply_to(self, configuration: Configuration) -> None:
        """Write the storage to a configuration under Flink's keys."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """No durable storage: checkpoints serve restarts while the driver lives, and are lost with it.

    Args:
        checkpoint_path: kept, without effect.
        max_state_size: kept, without effect; state of any size is taken.
    """

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        self._path = checkpoint_path
        self._max_state_size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size

    def get_checkpoint_path(self) -> str | None:
        """The path that was given."""
        return self._path

    def get_max_state_size(self) -> int:
        """The size that was given, in bytes."""
        return self._max_state_size

    def get_savepoint_path(self) -> str | None:
        """No path: the configuration has the one for savepoints."""
        return None

    def apply_to(self, configuration: Configuration) -> None:
        """Write the storage to a configuration under Flink's keys."""
        configuration.set(CheckpointingOptions.STORAGE, "jobmanager")
        configuration.remove_config(CheckpointingOptions.DIR.key)


class FileSystemCheckpointStorage(CheckpointStorage):
    """A directory, local or in an object store. The driver and all workers must reach it.

    Args:
        checkpoint_path: the directory's URI, e.g. ``file:///var/checkpoints`` or ``s3://bucket/checkpoints``; a path
            without a scheme is local.
        file_state_size_threshold: stored, without effect; small state is always bundled.
        write_buffer_size: stored, without effect.

    Raises:
        ConfigurationError: the path is empty or not a string.
    """

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self,
        checkpoint_path: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
    ) -> None:
        if not isinstance(checkpoint_path, str) or not checkpoint_path.strip():
            raise ConfigurationError(
                "the checkpoint directory must be a URI like file:///var/checkpoints or s3://bucket/checkpoints, "
                f"got {checkpoint_path!r}"
            )
        self._path = checkpoint_path
        self._threshold = 20 * 1024 if file_state_size_threshold is None else file_state_size_threshold
        self._write_buffer_size = write_buffer_size

    def get_checkpoint_path(self) -> str:
        """The directory's URI."""
        return self._path

    def get_savepoint_path(self) -> str | None:
        """No path: the configuration has the one for savepoints."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """The configured threshold, in bytes."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        """The configured buffer size, in bytes."""
        return self._write_buffer_size

    def apply_to(self, configuration: Configuration) -> None:
        """Write the storage to a configuration under Flink's keys."""
        configuration.set(CheckpointingOptions.STORAGE, "filesystem")
        configuration.set(CheckpointingOptions.DIR, self._path)

    def __repr__(self) -> str:
        return f"FileSystemCheckpointStorage({self._path!r})"


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "CustomCheckpointStorage": "it wraps an object of the JVM; use FileSystemCheckpointStorage",
        },
    )
