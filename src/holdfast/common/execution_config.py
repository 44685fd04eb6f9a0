"""ExecutionConfig, the program-wide settings."""

from __future__ import annotations

from typing import Any

from holdfast.common.config_options import PipelineOptions
from holdfast.common.config_values import format_duration
from holdfast.common.configuration import Configuration
from holdfast.common.system.jvm_settings import JvmSettings
from holdfast.errors import ConfigurationError

__all__ = ["ExecutionConfig"]


class ExecutionConfig(JvmSettings):
    """Program-wide settings: a view on the program's `Configuration`, which stores them under Flink's keys."""

    PARALLELISM_DEFAULT = -1
    PARALLELISM_UNKNOWN = -2

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration() if configuration is None else configuration

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Set the interval of watermarks, in ms; 0 turns them off.

        Raises:
            ConfigurationError: the interval is negative.
        """
        if interval < 0:
            raise ConfigurationError(f"the watermark interval must not be negative, got {interval} ms")
        self._configuration.set(PipelineOptions.AUTO_WATERMARK_INTERVAL, format_duration(interval))
        return self

    def get_auto_watermark_interval(self) -> int:
        """The interval of watermarks, in ms; 200 by default."""
        return self._configuration.get(PipelineOptions.AUTO_WATERMARK_INTERVAL)

    def get_parallelism(self) -> int:
        """The default parallelism of operators; -1 if unset."""
        parallelism = self._configuration.get(PipelineOptions.PARALLELISM)
        return self.PARALLELISM_DEFAULT if parallelism is None else parallelism

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set the default parallelism of operators; -1 means the machine's number of cores.

        Raises:
            ConfigurationError: the parallelism is neither positive nor -1.
        """
        if parallelism == self.PARALLELISM_DEFAULT:
            self._configuration.remove_config(PipelineOptions.PARALLELISM.key)
            return self
        if not isinstance(parallelism, int) or parallelism < 1:
            raise ConfigurationError(f"the parallelism must be at least 1, got {parallelism!r}")
        self._configuration.set(PipelineOptions.PARALLELISM, parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups, the limit of rescaling; -1 if unset."""
        return self._configuration.get(PipelineOptions.MAX_PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set the number of key groups, the limit of rescaling; it cannot change after the first checkpoint.

        Raises:
            ConfigurationError: the number is not between 1 and 32768.
        """
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= 32768:
            raise ConfigurationError(f"the max parallelism must be between 1 and 32768, got {max_parallelism!r}")
        self._configuration.set(PipelineOptions.MAX_PARALLELISM, max_parallelism)
        return self

    def enable_auto_generated_uids(self) -> ExecutionConfig:
        """Derive a uid from the graph for operators without one (the default)."""
        self._configuration.set(PipelineOptions.AUTO_GENERATE_UIDS, True)
        return self

    def disable_auto_generated_uids(self) -> ExecutionConfig:
        """Require a uid of every operator with state."""
        self._configuration.set(PipelineOptions.AUTO_GENERATE_UIDS, False)
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Whether operators without a uid get a derived one."""
        return self._configuration.get(PipelineOptions.AUTO_GENERATE_UIDS)

    def enable_object_reuse(self) -> ExecutionConfig:
        """Pass elements on without copies. Functions must then not change elements that they emit or share."""
        self._configuration.set(PipelineOptions.OBJECT_REUSE, True)
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Copy mutable elements again (the default)."""
        self._configuration.set(PipelineOptions.OBJECT_REUSE, False)
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Whether `enable_object_reuse` was called."""
        return self._configuration.get(PipelineOptions.OBJECT_REUSE)

    def get_global_job_parameters(self) -> dict[str, str]:
        """The parameters that every function can read with ``RuntimeContext.get_job_parameter``."""
        parameters = self._configuration.get(PipelineOptions.GLOBAL_JOB_PARAMETERS)
        return dict(parameters)

    def set_global_job_parameters(self, global_job_parameters_dict: dict[Any, Any]) -> ExecutionConfig:
        """Set the parameters that every function can read; keys and values become strings."""
        parameters = {str(k): str(v) for k, v in global_job_parameters_dict.items()}
        self._configuration.set(PipelineOptions.GLOBAL_JOB_PARAMETERS, parameters)
        return self

    def is_use_snapshot_compression(self) -> bool:
        """Whether compression was requested; checkpoints are always compressed."""
        return self._configuration.get(PipelineOptions.SNAPSHOT_COMPRESSION)

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        """Record the request; checkpoints are always compressed."""
        self._configuration.set(PipelineOptions.SNAPSHOT_COMPRESSION, use_snapshot_compression)
        return self
