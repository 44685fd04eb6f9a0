"""JobSettings: a job's configuration, parsed once in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.changelog import ChangelogSettings
from holdfast.checkpoint.stores.log_settings import LOG, log_in_topic
from holdfast.checkpoint.stores.storage import storage_options
from holdfast.common.config_options import (
    AutoscalerOptions,
    CheckpointingOptions,
    ConfigOption,
    EpochOptions,
    HighAvailabilityOptions,
    LogOptions,
    PipelineOptions,
    StateRecoveryOptions,
    StorageCostOptions,
    TraceOptions,
)
from holdfast.common.configuration import Configuration
from holdfast.common.system.modes import (
    ExternalizedCheckpointRetention,
    HighAvailabilityMode,
    LogFormat,
    RuntimeExecutionMode,
)
from holdfast.errors import ConfigurationError
from holdfast.metrics.requests import MONTH_S, RequestPrices, Requests
from holdfast.runtime.plan.autoscaling import AutoscalerSettings
from holdfast.runtime.plan.pace_settings import PaceSettings
from holdfast.state.backends.backend import HEAP, StateBackendSettings

__all__ = ["HeartbeatSettings", "JobSettings"]

_POLLS_PER_BEAT = 2
_LONGEST_POLL_S = 0.5


@dataclass(frozen=True)
class HeartbeatSettings:
    """When the driver that owns a job counts as dead, in seconds."""

    interval: float
    timeout: float

    @property
    def poll(self) -> float:
        """The time between two observations by a standby driver, in seconds."""
        return min(self.interval / _POLLS_PER_BEAT, _LONGEST_POLL_S)


@dataclass(frozen=True)
class JobSettings:
    """The settings of the runtime, typed and checked. They travel in the plan to every task."""

    state_backend: StateBackendSettings
    changelog: ChangelogSettings | None
    """None: state is stored in the checkpoints only."""
    parallelism: int
    """The parallelism of operators that do not set one."""
    epoch_target_ms: int
    """The target duration of epochs."""
    epoch_max_records: int
    pace: PaceSettings
    prices: RequestPrices
    """The request prices of the checkpoint storage."""
    batch_records: int
    frame_records: int
    object_reuse: bool
    """Whether operators emit the results of functions without copying them."""
    checkpoint_uri: str
    """The checkpoint storage; empty for a job without one."""
    retained_checkpoints: int
    delete_on_cancellation: bool
    restores: bool
    """Whether `execution.state-recovery.path` is for this job; it may be for another job of the same program."""
    restore_path: str
    """The checkpoint or savepoint that the user wants this job to restore; empty for the latest checkpoint."""
    claim_savepoint: bool
    """Whether the job owns the savepoint that it starts from, and so deletes it."""
    savepoint_directory: str
    """The default directory of savepoints; empty if not configured."""
    ignore_unclaimed_state: bool
    batch: bool
    """Whether the job runs in BATCH mode: one epoch with the whole input, sorted by key."""
    aligned_timeout_ms: int | None
    """The minimum time for which subtasks process an epoch's input before the rest becomes channel state; None: no limit."""
    most_channel_state: int
    """Bytes of channel state in a subtask at which the sources stop."""
    autoscaler: AutoscalerSettings | None
    """None: the job keeps its parallelism."""
    watermark_interval_ms: int
    """The minimum time between periodic calls of users' watermark generators without input; 0: they are not called."""
    standby: bool | None
    """Whether the driver stands by while another one owns the job; None: only if it is restarted when it dies."""
    heartbeat: HeartbeatSettings
    temporary_directory: str
    """Parent of local stores and spilled frames; empty for the default."""
    log_as_json: bool = False
    trace_endpoint: str = ""
    """The URL that traces are sent to; empty: none are sent."""
    trace_timeout_ms: int = 10_000
    storage_options: Mapping[str, str] = field(default_factory=dict)
    """The ``s3.*`` keys."""
    job_parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, str]) -> JobSettings:
        """Parse a configuration.

        Raises:
            ConfigurationError: a setting is not of its type or out of its range.
        """
        settings = Configuration.from_dict(config)
        uri = settings.get(CheckpointingOptions.DIR) or ""
        if log_in_topic(config) and not uri:
            raise ConfigurationError(
                f"{LOG} is kafka, but the state's files are in a temporary directory: set execution.checkpointing.dir"
            )
        prices = RequestPrices.of(uri, config)
        pace = _pace(settings, prices)
        availability = settings.get(HighAvailabilityOptions.TYPE)
        restores = settings.get(StateRecoveryOptions.JOB_NAME) in (None, settings.get(PipelineOptions.NAME))
        try:
            state_backend = StateBackendSettings.of(config)
            changelog = ChangelogSettings.of(config)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if changelog is not None and state_backend.kind == HEAP:
            raise ConfigurationError(
                "state.changelog.storage: changelogs need a state backend with a store on disk; set state.backend.type to "
                "rocksdb"
            )
        return cls(
            state_backend=state_backend,
            changelog=changelog,
            parallelism=settings.get(PipelineOptions.PARALLELISM) or 1,
            epoch_target_ms=round(1000 * pace.target(pace.first_cost)),
            epoch_max_records=_positive(settings, EpochOptions.MAX_RECORDS),
            pace=pace,
            prices=prices,
            batch_records=_positive(settings, EpochOptions.BATCH_RECORDS),
            frame_records=_positive(settings, EpochOptions.FRAME_RECORDS),
            object_reuse=settings.get(PipelineOptions.OBJECT_REUSE),
            checkpoint_uri=uri,
            retained_checkpoints=_positive(settings, CheckpointingOptions.NUM_RETAINED),
            delete_on_cancellation=settings.get(CheckpointingOptions.RETENTION)
            is ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
            restores=restores,
            restore_path=(settings.get(StateRecoveryOptions.PATH) or "") if restores else "",
            claim_savepoint=_claims(settings),
            savepoint_directory=settings.get(CheckpointingOptions.SAVEPOINT_DIR) or "",
            ignore_unclaimed_state=settings.get(StateRecoveryOptions.IGNORE_UNCLAIMED_STATE),
            batch=settings.get(PipelineOptions.RUNTIME_MODE) is RuntimeExecutionMode.BATCH,
            aligned_timeout_ms=settings.get(CheckpointingOptions.ALIGNED_TIMEOUT)
            if settings.get(CheckpointingOptions.UNALIGNED)
            else None,
            most_channel_state=_positive(settings, EpochOptions.MAX_CHANNEL_STATE),
            autoscaler=_autoscaler(settings),
            watermark_interval_ms=settings.get(PipelineOptions.AUTO_WATERMARK_INTERVAL),
            standby=None if availability is None else availability is HighAvailabilityMode.STORAGE,
            heartbeat=_heartbeat(settings),
            temporary_directory=config.get("io.tmp.dirs", ""),
            log_as_json=settings.get(LogOptions.FORMAT) is LogFormat.JSON,
            trace_endpoint=_trace_endpoint(settings),
            trace_timeout_ms=_positive(settings, TraceOptions.TIMEOUT),
            storage_options=storage_options(config),
            job_parameters=settings.get(PipelineOptions.GLOBAL_JOB_PARAMETERS),
        )


def _positive(settings: Configuration, option: ConfigOption[int]) -> int:
    value = settings.get(option)
    if value < 1:
        raise ConfigurationError(f"{option.key} must be at least 1, got {value}")
    return value


def _pace(settings: Configuration, prices: RequestPrices) -> PaceSettings:
    budget = settings.get(StorageCostOptions.BUDGET)
    if not 0 < budget < float("inf"):
        raise ConfigurationError(
            f"{StorageCostOptions.BUDGET.key} is {budget:g}: give the dollars that requests may cost in a month, more than 0"
        )
    return PaceSettings(
        interval_ms=settings.get(CheckpointingOptions.INTERVAL) or None,
        min_pause_ms=settings.get(CheckpointingOptions.MIN_PAUSE),
        dollars_per_second=budget / MONTH_S,
        first_cost=0.0
        if log_in_topic(settings.to_dict())
        else prices.cost(Requests(put=1 + (settings.get(PipelineOptions.PARALLELISM) or 1))),
        target_ms=_positive(settings, EpochOptions.TARGET_DURATION),
        target_given=EpochOptions.TARGET_DURATION.key in settings.to_dict(),
    )


def _heartbeat(settings: Configuration) -> HeartbeatSettings:
    interval = _positive(settings, HighAvailabilityOptions.HEARTBEAT_INTERVAL)
    timeout = settings.get(HighAvailabilityOptions.HEARTBEAT_TIMEOUT)
    if timeout < 2 * interval:
        raise ConfigurationError(
            f"{HighAvailabilityOptions.HEARTBEAT_TIMEOUT.key} is {timeout} ms: give at least twice "
            f"{HighAvailabilityOptions.HEARTBEAT_INTERVAL.key}, {interval} ms: one late heartbeat must not end a driver"
        )
    return HeartbeatSettings(interval / 1000, timeout / 1000)


def _autoscaler(settings: Configuration) -> AutoscalerSettings | None:
    if not settings.get(AutoscalerOptions.ENABLED):
        return None
    least, most = _positive(settings, AutoscalerOptions.MIN_PARALLELISM), settings.get(AutoscalerOptions.MAX_PARALLELISM)
    if most is not None and most < least:
        raise ConfigurationError(
            f"{AutoscalerOptions.MAX_PARALLELISM.key} is {most}, less than {AutoscalerOptions.MIN_PARALLELISM.key}, {least}"
        )
    utilization = settings.get(AutoscalerOptions.UTILIZATION_TARGET)
    if not 0 < utilization < 1:
        raise ConfigurationError(f"{AutoscalerOptions.UTILIZATION_TARGET.key} must be between 0 and 1, got {utilization}")
    return AutoscalerSettings(
        least,
        most,
        utilization,
        _positive(settings, AutoscalerOptions.STABILIZATION_INTERVAL) / 1000,
        _positive(settings, AutoscalerOptions.METRICS_WINDOW) / 1000,
    )


def _claims(settings: Configuration) -> bool:
    mode = settings.get(StateRecoveryOptions.CLAIM_MODE).strip().upper()
    if mode not in ("NO_CLAIM", "CLAIM"):
        raise ConfigurationError(
            f"{StateRecoveryOptions.CLAIM_MODE.key} is {mode}: it must be NO_CLAIM (the savepoint stays as it is) or CLAIM "
            "(the job deletes it once it has its own copy)"
        )
    return mode == "CLAIM"


def _trace_endpoint(settings: Configuration) -> str:
    reporters = settings.get(TraceOptions.REPORTERS)
    if not reporters:
        return ""
    if reporters.strip() != "otel":
        raise ConfigurationError(f"{TraceOptions.REPORTERS.key} is {reporters}: the only reporter of traces is otel")
    endpoint = settings.get(TraceOptions.ENDPOINT)
    if not endpoint:
        raise ConfigurationError(
            f"{TraceOptions.ENDPOINT.key} is not set: the URL of the collector of traces, such as http://localhost:4318"
        )
    return endpoint
