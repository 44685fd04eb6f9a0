"""CheckpointConfig: the settings of checkpoints."""

from __future__ import annotations

from datetime import timedelta

from holdfast.common.config_options import CheckpointingOptions
from holdfast.common.config_values import format_duration
from holdfast.common.configuration import Configuration
from holdfast.common.time import Duration, to_milliseconds
from holdfast.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.datastream.checkpointing_mode import CheckpointingMode
from holdfast.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from holdfast.errors import ConfigurationError

__all__ = ["CheckpointConfig"]


def _at_least(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
    return value


class CheckpointConfig:
    """Settings of checkpoints: interval, storage and retention.

    A view on the program's `Configuration`, which stores the settings under Flink's ``execution.checkpointing.*``.

    Examples:
        >>> conf = Configuration()
        >>> config = CheckpointConfig(conf).set_checkpoint_interval(30_000)
        >>> config.get_checkpoint_interval(), conf.get_string("execution.checkpointing.interval", "")
        (30000, '30000 ms')
    """

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = CheckpointingOptions.TIMEOUT.default
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = CheckpointingOptions.MIN_PAUSE.default
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = CheckpointingOptions.MAX_CONCURRENT.default

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration() if configuration is None else configuration

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpointing is on."""
        return self.get_checkpoint_interval() > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The checkpointing mode; EXACTLY_ONCE by default."""
        return self._configuration.get(CheckpointingOptions.MODE)

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        """Set the checkpointing mode."""
        if not isinstance(checkpointing_mode, CheckpointingMode):
            raise ConfigurationError(f"the checkpointing mode is a CheckpointingMode, got {checkpointing_mode!r}")
        self._configuration.set(CheckpointingOptions.MODE, checkpointing_mode)
        return self

    get_checkpointing_consistency_mode = get_checkpointing_mode
    set_checkpointing_consistency_mode = set_checkpointing_mode

    def get_checkpoint_interval(self) -> int:
        """The longest time between checkpoints, in ms; -1 when checkpointing is off."""
        interval = self._configuration.get(CheckpointingOptions.INTERVAL)
        return -1 if interval is None else interval

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        """Turn checkpointing on, with at most this time between checkpoints (ms)."""
        _at_least("the checkpoint interval (ms)", checkpoint_interval, 1)
        self._configuration.set(CheckpointingOptions.INTERVAL, format_duration(checkpoint_interval))
        return self

    def disable_checkpointing(self) -> None:
        """Turn checkpointing off."""
        self._configuration.remove_config(CheckpointingOptions.INTERVAL.key)

    def get_checkpoint_timeout(self) -> int:
        """The time limit of a checkpoint, in ms; 10 minutes by default."""
        return self._configuration.get(CheckpointingOptions.TIMEOUT)

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        """Set the time limit of a checkpoint, in ms."""
        _at_least("the checkpoint timeout (ms)", checkpoint_timeout, 1)
        self._configuration.set(CheckpointingOptions.TIMEOUT, format_duration(checkpoint_timeout))
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        """The shortest time between the end of a checkpoint and the start of the next, in ms."""
        return self._configuration.get(CheckpointingOptions.MIN_PAUSE)

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> CheckpointConfig:
        """Set the shortest time between the end of a checkpoint and the start of the next, in ms."""
        _at_least("the pause between checkpoints (ms)", min_pause_between_checkpoints, 0)
        self._configuration.set(CheckpointingOptions.MIN_PAUSE, format_duration(min_pause_between_checkpoints))
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        """The largest number of checkpoints in progress at once."""
        return self._configuration.get(CheckpointingOptions.MAX_CONCURRENT)

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Set the largest number of checkpoints in progress at once."""
        _at_least("the number of concurrent checkpoints", max_concurrent_checkpoints, 1)
        self._configuration.set(CheckpointingOptions.MAX_CONCURRENT, max_concurrent_checkpoints)
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Whether the first failed checkpoint fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """Set whether the first failed checkpoint fails the job, or no failed checkpoint does."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else 2**31 - 1)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """The number of consecutive failed checkpoints before the job fails."""
        return self._configuration.get(CheckpointingOptions.TOLERABLE_FAILURES)

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """Set the number of consecutive failed checkpoints before the job fails."""
        _at_least("the number of tolerable checkpoint failures", tolerable_checkpoint_failure_number, 0)
        self._configuration.set(CheckpointingOptions.TOLERABLE_FAILURES, tolerable_checkpoint_failure_number)
        return self

    def set_externalized_checkpoint_retention(self, retention_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """Set whether to keep or delete the checkpoints of a cancelled job."""
        if not isinstance(retention_mode, ExternalizedCheckpointRetention):
            raise ConfigurationError(f"the retention is an ExternalizedCheckpointRetention, got {retention_mode!r}")
        self._configuration.set(CheckpointingOptions.RETENTION, retention_mode)
        return self

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether a retention is set."""
        retention = self.get_externalized_checkpoint_retention()
        return retention not in (None, ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention | None:
        """Whether to keep or delete the checkpoints of a cancelled job; None if unset."""
        return self._configuration.get(CheckpointingOptions.RETENTION)

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        """Set the checkpoint storage."""
        if not isinstance(storage, CheckpointStorage):
            raise ConfigurationError(f"the storage is a CheckpointStorage, got {storage!r}")
        storage.apply_to(self._configuration)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Keep checkpoints in this directory, e.g. ``file:///var/checkpoints`` or ``s3://bucket/checkpoints``."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """The checkpoint storage; None if unset."""
        path = self._configuration.get(CheckpointingOptions.DIR)
        if self._configuration.get(CheckpointingOptions.STORAGE) == "jobmanager":
            return JobManagerCheckpointStorage()
        return None if path is None else FileSystemCheckpointStorage(path)

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether `enable_unaligned_checkpoints` was called."""
        return self._configuration.get(CheckpointingOptions.UNALIGNED)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let a subtask that is behind the others leave the rest of an epoch's input to the next epoch.

        Then a hot key, a slow function or a slow sink delays its own results and no one else's. The rest, as channel state,
        is part of the checkpoint. It is processed first in the next epoch, in the same order.
        """
        self._configuration.set(CheckpointingOptions.UNALIGNED, enabled)
        return self

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration | timedelta) -> CheckpointConfig:
        """Set the least time that a subtask processes an epoch's input before the rest becomes channel state."""
        milliseconds = to_milliseconds(alignment_timeout)
        self._configuration.set_string(CheckpointingOptions.ALIGNED_TIMEOUT.key, f"{milliseconds} ms")
        return self

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """The timeout that was set; 0 by default."""
        return Duration.of_millis(self._configuration.get(CheckpointingOptions.ALIGNED_TIMEOUT))

    set_alignment_timeout = set_aligned_checkpoint_timeout
    get_alignment_timeout = get_aligned_checkpoint_timeout

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> CheckpointConfig:
        """Kept; without effect: channels whose frames cannot be redistributed stay aligned."""
        self._configuration.set_boolean("execution.checkpointing.unaligned.forced", force_unaligned_checkpoints)
        return self

    def is_force_unaligned_checkpoints(self) -> bool:
        """Whether `set_force_unaligned_checkpoints` was called."""
        return self._configuration.get_boolean("execution.checkpointing.unaligned.forced", False)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Revoke `enable_unaligned_checkpoints`."""
        return self.enable_unaligned_checkpoints(False)
