"""ConfigOption (key, type and default of a setting), and the Flink options that Holdfast reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar, cast

from holdfast.common.config_values import (
    parse_boolean,
    parse_duration,
    parse_float,
    parse_integer,
    parse_map,
    parse_memory_size,
)
from holdfast.common.system.modes import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    HighAvailabilityMode,
    LogFormat,
    RuntimeExecutionMode,
)

__all__ = [
    "CheckpointingOptions",
    "ConfigOption",
    "ConfigOptions",
    "AutoscalerOptions",
    "EpochOptions",
    "HighAvailabilityOptions",
    "LogOptions",
    "PipelineOptions",
    "RestartOptions",
    "StateRecoveryOptions",
    "StorageCostOptions",
    "TraceOptions",
]

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class ConfigOption(Generic[T]):
    """Key, parser and default value of a setting."""

    key: str
    parse: Callable[[str], T]
    default: T


class ConfigOptions:
    """Builder of options.

    Examples:
        >>> option = ConfigOptions.key("parallelism.default").int_type().default_value(1)
        >>> option.parse("4")
        4
    """

    @staticmethod
    def key(key: str) -> ConfigOptions.OptionBuilder:
        """Begin an option with its key."""
        return ConfigOptions.OptionBuilder(key)

    class OptionBuilder:
        """Builder step that sets the option's type."""

        def __init__(self, key: str) -> None:
            self._name = key

        def boolean_type(self) -> ConfigOptions.TypedConfigOptionBuilder[bool]:
            """True or false."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_boolean)

        def int_type(self) -> ConfigOptions.TypedConfigOptionBuilder[int]:
            """A whole number."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_integer)

        def long_type(self) -> ConfigOptions.TypedConfigOptionBuilder[int]:
            """A whole number."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_integer)

        def float_type(self) -> ConfigOptions.TypedConfigOptionBuilder[float]:
            """A number."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_float)

        def double_type(self) -> ConfigOptions.TypedConfigOptionBuilder[float]:
            """A number."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_float)

        def string_type(self) -> ConfigOptions.TypedConfigOptionBuilder[str]:
            """A string."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, str)

        def duration_type(self) -> ConfigOptions.TypedConfigOptionBuilder[int]:
            """A duration with a unit, read as milliseconds."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_duration)

        def memory_type(self) -> ConfigOptions.TypedConfigOptionBuilder[int]:
            """A memory size with a unit, read as bytes."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_memory_size)

        def map_type(self) -> ConfigOptions.TypedConfigOptionBuilder[dict[str, str]]:
            """A dict, written as ``key:value,key:value``."""
            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse_map)

        def enum_type(self, enum: type[E]) -> ConfigOptions.TypedConfigOptionBuilder[E]:
            """The name of an enum member, case-insensitive, with ``-`` for ``_``."""

            def parse(text: str) -> E:
                try:
                    return enum[text.strip().upper().replace("-", "_")]
                except KeyError:
                    raise ValueError(f"expected one of {', '.join(m.name for m in enum)}, got {text!r}") from None

            return ConfigOptions.TypedConfigOptionBuilder(self._name, parse)

    class TypedConfigOptionBuilder(Generic[T]):
        """Builder step that sets the option's default."""

        def __init__(self, key: str, parse: Callable[[str], T]) -> None:
            self._name = key
            self._parse = parse

        def default_value(self, value: T) -> ConfigOption[T]:
            """Build the option with this default."""
            return ConfigOption(self._name, self._parse, value)

        def no_default_value(self) -> ConfigOption[T | None]:
            """Build the option without a default: None when unset."""
            return ConfigOption(self._name, cast("Callable[[str], T | None]", self._parse), None)


def _key(name: str) -> ConfigOptions.OptionBuilder:
    return ConfigOptions.key(name)


class CheckpointingOptions:
    """Options of checkpoints and their storage; durations in ms."""

    INTERVAL = _key("execution.checkpointing.interval").duration_type().no_default_value()
    MODE = _key("execution.checkpointing.mode").enum_type(CheckpointingMode).default_value(CheckpointingMode.EXACTLY_ONCE)
    TIMEOUT = _key("execution.checkpointing.timeout").duration_type().default_value(600_000)
    MIN_PAUSE = _key("execution.checkpointing.min-pause").duration_type().default_value(0)
    MAX_CONCURRENT = _key("execution.checkpointing.max-concurrent-checkpoints").int_type().default_value(1)
    TOLERABLE_FAILURES = _key("execution.checkpointing.tolerable-failed-checkpoints").int_type().default_value(0)
    RETENTION = (
        _key("execution.checkpointing.externalized-checkpoint-retention")
        .enum_type(ExternalizedCheckpointRetention)
        .default_value(ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS)
    )
    NUM_RETAINED = _key("execution.checkpointing.num-retained").int_type().default_value(3)
    STORAGE = _key("execution.checkpointing.storage").string_type().no_default_value()
    DIR = _key("execution.checkpointing.dir").string_type().no_default_value()
    SAVEPOINT_DIR = _key("execution.checkpointing.savepoint-dir").string_type().no_default_value()
    INCREMENTAL = _key("execution.checkpointing.incremental").boolean_type().default_value(False)
    UNALIGNED = _key("execution.checkpointing.unaligned.enabled").boolean_type().default_value(False)
    ALIGNED_TIMEOUT = _key("execution.checkpointing.aligned-checkpoint-timeout").duration_type().default_value(0)


class StorageCostOptions:
    """Holdfast's own options of what the requests to the checkpoint storage may cost, in dollars."""

    WRITES = _key("holdfast.storage.price.writes").double_type().no_default_value()
    READS = _key("holdfast.storage.price.reads").double_type().no_default_value()
    BUDGET = _key("holdfast.storage.monthly-budget").double_type().default_value(20.0)


class StateRecoveryOptions:
    """Options that choose the checkpoint a job resumes from."""

    PATH = _key("execution.state-recovery.path").string_type().no_default_value()
    JOB_NAME = _key("execution.state-recovery.job-name").string_type().no_default_value()
    CLAIM_MODE = _key("execution.state-recovery.claim-mode").string_type().default_value("NO_CLAIM")
    IGNORE_UNCLAIMED_STATE = _key("execution.state-recovery.ignore-unclaimed-state").boolean_type().default_value(False)


class HighAvailabilityOptions:
    """Options of standby drivers; durations in ms."""

    TYPE = _key("high-availability.type").enum_type(HighAvailabilityMode).no_default_value()
    HEARTBEAT_INTERVAL = _key("heartbeat.interval").duration_type().default_value(1_000)
    HEARTBEAT_TIMEOUT = _key("heartbeat.timeout").duration_type().default_value(5_000)


class EpochOptions:
    """Holdfast's own options: sizes of epochs, batches and frames, each at least 1."""

    TARGET_DURATION = _key("holdfast.epoch.target-duration").duration_type().default_value(2_000)
    MAX_RECORDS = _key("holdfast.epoch.max-records").int_type().default_value(2_000_000)
    BATCH_RECORDS = _key("holdfast.batch.records").int_type().default_value(2048)
    MAX_CHANNEL_STATE = _key("holdfast.epoch.max-channel-state").memory_type().default_value(64 << 20)
    FRAME_RECORDS = _key("holdfast.frame.records").int_type().default_value(1024)


class LogOptions:
    """Holdfast's own options of the log."""

    FORMAT = _key("holdfast.log.format").enum_type(LogFormat).default_value(LogFormat.TEXT)


class TraceOptions:
    """Options of traces, with Flink's keys; durations in ms."""

    REPORTERS = _key("traces.reporters").string_type().no_default_value()
    ENDPOINT = _key("traces.reporter.otel.exporter.endpoint").string_type().no_default_value()
    TIMEOUT = _key("traces.reporter.otel.exporter.timeout").duration_type().default_value(10_000)


class AutoscalerOptions:
    """Options of the autoscaler, with the keys of Flink's."""

    ENABLED = _key("job.autoscaler.enabled").boolean_type().default_value(False)
    MIN_PARALLELISM = _key("job.autoscaler.vertex.min-parallelism").int_type().default_value(1)
    MAX_PARALLELISM = _key("job.autoscaler.vertex.max-parallelism").int_type().no_default_value()
    UTILIZATION_TARGET = _key("job.autoscaler.utilization.target").double_type().default_value(0.7)
    STABILIZATION_INTERVAL = _key("job.autoscaler.stabilization.interval").duration_type().default_value(60_000)
    METRICS_WINDOW = _key("job.autoscaler.metrics.window").duration_type().default_value(60_000)


class PipelineOptions:
    """Options of the program as a whole."""

    RUNTIME_MODE = (
        _key("execution.runtime-mode").enum_type(RuntimeExecutionMode).default_value(RuntimeExecutionMode.STREAMING)
    )
    NAME = _key("pipeline.name").string_type().no_default_value()
    PARALLELISM = _key("parallelism.default").int_type().no_default_value()
    MAX_PARALLELISM = _key("pipeline.max-parallelism").int_type().default_value(-1)
    AUTO_WATERMARK_INTERVAL = _key("pipeline.auto-watermark-interval").duration_type().default_value(200)
    AUTO_GENERATE_UIDS = _key("pipeline.auto-generate-uids").boolean_type().default_value(True)
    OBJECT_REUSE = _key("pipeline.object-reuse").boolean_type().default_value(False)
    GLOBAL_JOB_PARAMETERS = _key("pipeline.global-job-parameters").map_type().default_value({})
    SNAPSHOT_COMPRESSION = _key("execution.checkpointing.snapshot-compression").boolean_type().default_value(False)


class RestartOptions:
    """Options of restarts after a failure; durations in ms."""

    TYPE = _key("restart-strategy.type").string_type().no_default_value()
    FIXED_DELAY_ATTEMPTS = _key("restart-strategy.fixed-delay.attempts").int_type().default_value(1)
    FIXED_DELAY_DELAY = _key("restart-strategy.fixed-delay.delay").duration_type().default_value(1000)
    FAILURE_RATE_MAX = _key("restart-strategy.failure-rate.max-failures-per-interval").int_type().default_value(1)
    FAILURE_RATE_INTERVAL = _key("restart-strategy.failure-rate.failure-rate-interval").duration_type().default_value(60_000)
    FAILURE_RATE_DELAY = _key("restart-strategy.failure-rate.delay").duration_type().default_value(1000)
    EXPONENTIAL_INITIAL = _key("restart-strategy.exponential-delay.initial-backoff").duration_type().default_value(1000)
    EXPONENTIAL_MAX = _key("restart-strategy.exponential-delay.max-backoff").duration_type().default_value(60_000)
    EXPONENTIAL_MULTIPLIER = _key("restart-strategy.exponential-delay.backoff-multiplier").double_type().default_value(1.5)
    EXPONENTIAL_RESET = (
        _key("restart-strategy.exponential-delay.reset-backoff-threshold").duration_type().default_value(3_600_000)
    )
    EXPONENTIAL_JITTER = _key("restart-strategy.exponential-delay.jitter-factor").double_type().default_value(0.1)
    EXPONENTIAL_ATTEMPTS = (
        _key("restart-strategy.exponential-delay.attempts-before-reset-backoff").int_type().default_value(2**31 - 1)
    )
