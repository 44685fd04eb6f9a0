"""Settings of file sinks under PyFlink's names: when a file ends, and how it is called."""

from __future__ import annotations

import logging

__all__ = ["OnCheckpointRollingPolicy", "OutputFileConfig", "RollingPolicy"]

_log = logging.getLogger(__name__)


class OnCheckpointRollingPolicy:
    """A part file ends with every checkpoint."""


class RollingPolicy:
    """When to close a part file and start the next."""

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Roll with every checkpoint."""
        return OnCheckpointRollingPolicy()

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 << 20, rollover_interval: int = 60_000, inactivity_interval: int = 60_000
    ) -> OnCheckpointRollingPolicy:
        """Also roll with every checkpoint, for compatibility with Flink. The bounds are ignored with a warning.

        Args:
            part_size: Flink's limit of a file's size in bytes.
            rollover_interval: Flink's limit of the time that a file is open, in ms.
            inactivity_interval: Flink's limit of the time without records, in ms.
        """
        if (part_size, rollover_interval, inactivity_interval) != (128 << 20, 60_000, 60_000):
            _log.warning(
                "the bounds of default_rolling_policy(...) have no effect: part files end with every checkpoint; for "
                "larger files raise holdfast.epoch.target-duration"
            )
        return OnCheckpointRollingPolicy()


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
