"""StreamExecutionEnvironment: the settings and sources of a program, and the calls that run it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.common.config_options import (
    AutoscalerOptions,
    CheckpointingOptions,
    ConfigOption,
    EpochOptions,
    HighAvailabilityOptions,
    LogOptions,
    PipelineOptions,
    RestartOptions,
    StateRecoveryOptions,
    StorageCostOptions,
)
from holdfast.common.configuration import Configuration
from holdfast.common.execution_config import ExecutionConfig
from holdfast.common.job_client import JobClient
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.restart_strategy import RestartStrategyConfiguration
from holdfast.common.system.modes import CheckpointingMode, RuntimeExecutionMode
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.connectors.base import Source
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.environment_settings import EnvironmentSettings
from holdfast.datastream.operations.environment_sources import EnvironmentSources
from holdfast.datastream.operations.job_names import default_name, started
from holdfast.datastream.operations.operator_settings import check_count
from holdfast.datastream.state_backend import StateBackend
from holdfast.errors import ConfigurationError
from holdfast.graph.execution_plan import execution_plan
from holdfast.graph.job_graph import job_plan
from holdfast.graph.rescaled import rescaled
from holdfast.graph.transformations import OperatorTransformation, SourceTransformation
from holdfast.runtime.driver.launch import launched
from holdfast.runtime.driver.not_started import check_in_place_of, warn_of_another_name
from holdfast.runtime.driver.restore_check import RestoreCheck, check_restore
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.spark.spark_context import begin_spark, refuse_connect
from holdfast.state.keys.key_groups import MAX_KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StreamExecutionEnvironment"]

_log = logging.getLogger(__name__)

_BUFFER_TIMEOUT = "execution.buffer-timeout.interval"
_CHAINING = "pipeline.operator-chaining.enabled"
_OPTIONS = [
    option
    for group in (
        AutoscalerOptions,
        PipelineOptions,
        CheckpointingOptions,
        StateRecoveryOptions,
        StorageCostOptions,
        RestartOptions,
        EpochOptions,
        HighAvailabilityOptions,
    )
    for option in vars(group).values()
    if isinstance(option, ConfigOption)
]


class StreamExecutionEnvironment(EnvironmentSettings, EnvironmentSources):
    """A streaming program: its settings, and the sources, operators and sinks added so far.

    Examples:
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> env.set_parallelism(2).get_parallelism()
        2
    """

    def __init__(self, configuration: Configuration | None = None, spark: SparkSession | None = None) -> None:
        self._configuration = Configuration(configuration)
        self._spark = spark
        self._operators: list[OperatorTransformation] = []
        self._class_aliases = {}

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "the StreamExecutionEnvironment cannot be used inside a function: it exists only where the program is built"
        )

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, spark: SparkSession | None = None
    ) -> StreamExecutionEnvironment:
        """Create an environment.

        Args:
            configuration: The settings, under Flink's keys. They override those given to `holdfast run`.
            spark: The session to run on. Without it the job takes the active one, or starts a local Spark.

        Raises:
            ConfigurationError: the session is one of Spark Connect, or the job must start Spark, and finds no Java to run it
                on.
        """
        if spark is None:
            _require_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))
        else:
            refuse_connect(spark, "get_execution_environment()")
        launch = launched()
        settings = Configuration.from_dict(launch.settings if launch else {})
        if configuration is not None:
            settings.add_all(configuration)
        return StreamExecutionEnvironment(settings, spark)

    # ---- settings ---------------------------------------------------------------------------------------------------

    def get_config(self) -> ExecutionConfig:
        """The program-wide settings."""
        return ExecutionConfig(self._configuration)

    def configure(self, configuration: Configuration) -> None:
        """Merge these settings, under Flink's keys, into the environment's."""
        self._configuration.add_all(configuration)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the default parallelism of operators added from now on."""
        self.get_config().set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        """The default parallelism of operators; the number of cores if unset."""
        parallelism = self.get_config().get_parallelism()
        if parallelism != ExecutionConfig.PARALLELISM_DEFAULT:
            return check_count(parallelism, PipelineOptions.PARALLELISM.key)
        if self._spark is not None:
            return int(self._spark.sparkContext.defaultParallelism)
        return self.get_default_local_parallelism()

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups, the upper bound of keyed operators' parallelism (default 128)."""
        self.get_config().set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups; -1 if unset."""
        return self.get_config().get_max_parallelism()

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Set the execution mode; sets ``execution.runtime-mode``.

        Args:
            execution_mode: STREAMING (the default), BATCH for bounded sources, or AUTOMATIC: BATCH if all are bounded.
        """
        if not isinstance(execution_mode, RuntimeExecutionMode):
            raise TypeError(f"set_runtime_mode() takes a RuntimeExecutionMode, not {execution_mode!r}.")
        self._configuration.set(PipelineOptions.RUNTIME_MODE, execution_mode)
        return self

    def add_python_file(self, file_path: str) -> None:
        """Send a module, a package's parent directory or an archive (.zip, .whl) to the workers for import.

        Appends the path to ``python.files``.

        Raises:
            ConfigurationError: the path has a comma, which separates the entries of ``python.files``.
        """
        if "," in file_path:
            raise ConfigurationError(f"add_python_file({file_path!r}): a path must not have a comma; rename the file")
        given = self._configuration.get_string("python.files", "")
        self._configuration.set_string("python.files", f"{given},{file_path}" if given else file_path)

    def set_python_executable(self, python_exec: str) -> None:
        """Set the Python of the workers when the job starts Spark; sets ``python.executable``."""
        self._configuration.set_string("python.executable", python_exec)

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> StreamExecutionEnvironment:
        """Turn checkpointing on.

        Args:
            interval: The longest time between checkpoints, in ms.
            mode: The checkpointing mode.
        """
        config = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """The longest time between checkpoints, in ms; -1 if checkpointing is off."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The checkpointing mode."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def set_state_backend(self, state_backend: StateBackend) -> StreamExecutionEnvironment:
        """Set the state backend; sets ``state.backend.type`` and its options."""
        if not isinstance(state_backend, StateBackend):
            raise TypeError(
                "set_state_backend() takes an EmbeddedRocksDBStateBackend() or a HashMapStateBackend(), not "
                f"{state_backend!r}."
            )
        state_backend.apply_to(self._configuration)
        return self

    def set_restart_strategy(
        self, restart_strategy_configuration: RestartStrategyConfiguration
    ) -> StreamExecutionEnvironment:
        """Set the restart strategy; sets ``restart-strategy.*``."""
        if not isinstance(restart_strategy_configuration, RestartStrategyConfiguration):
            raise TypeError(
                "set_restart_strategy() takes what RestartStrategies makes, e.g. RestartStrategies.no_restart(), not "
                f"{restart_strategy_configuration!r}."
            )
        restart_strategy_configuration.apply_to(self._configuration)
        return self

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Run every operator in a task of its own."""
        self._configuration.set_boolean(_CHAINING, False)
        return self

    def is_chaining_enabled(self) -> bool:
        """Whether operators may share a task."""
        return self._configuration.get_boolean(_CHAINING, True)

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """Set the timeout of network buffers, in ms. It has no effect: records move in frames."""
        self._configuration.set_string(_BUFFER_TIMEOUT, f"{timeout_millis} ms")
        return self

    def get_buffer_timeout(self) -> int:
        """The timeout set with `set_buffer_timeout`; 100 ms by default."""
        return self._configuration.get_duration_ms(_BUFFER_TIMEOUT, 100)

    # ---- operators --------------------------------------------------------------------------------------------------

    def _add_source(
        self,
        source: Source,
        name: str,
        type_info: TypeInformation | None,
        watermark_strategy: WatermarkStrategy | None = None,
        parallel: bool = True,
    ) -> DataStream[Any]:
        node = SourceTransformation(
            kind="Source",
            name=name,
            parallelism=self.get_parallelism() if parallel else 1,
            parallelism_configured=not parallel,
            output_type=type_info,
            source=source,
            watermark_strategy=watermark_strategy or WatermarkStrategy.no_watermarks(),
            parallel=parallel,
        )
        return DataStream(self, node)

    def _add_operator(self, **settings: Any) -> OperatorTransformation:
        """Add an operator with the environment's parallelism. It runs even if its output is unused."""
        node = OperatorTransformation(parallelism=self.get_parallelism(), **settings)
        self._operators.append(node)
        return node

    # ---- running ----------------------------------------------------------------------------------------------------

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the program and wait for its end. The next program starts empty.

        Ctrl-C cancels the job and waits for its end; a driver with standby drivers leaves the job to one of them. The next
        start resumes from the last checkpoint.

        Args:
            job_name: The job's name; also ``pipeline.name``.

        Raises:
            ConfigurationError: the program, its settings or its environment cannot work; no input was read.
            UserCodeError: a user's function raised, and the restart strategy gave up.
            JobFailed: another failure occurred, and the restart strategy gave up.
        """
        return self.execute_async(job_name)._await_result()

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program and return at once.

        Args:
            job_name: The job's name; also ``pipeline.name``.

        Returns:
            The client of the job: its id, status and result, and cancellation.

        Raises:
            ConfigurationError: the program cannot work.
        """
        plan = self._plan(job_name)
        launch = launched()
        warn_of_another_name(plan)
        if launch is not None and launch.restore_check:
            not_started = check_in_place_of(plan, launch.restore_check)
            self._operators.clear()
            return not_started
        if self._spark is None:
            begin_spark(plan.name, plan.config)
        from holdfast.runtime.driver.submission import submit  # imports Spark, which building a program does not need

        client = submit(plan, self._spark, self._replan(plan))
        started(plan)
        self._operators.clear()
        return client

    def check_restore(self, path: str | None = None, job_name: str | None = None) -> RestoreCheck:
        """Tell whether the program can restore from a checkpoint or savepoint, before it runs.

        Finds all differences at once: missing files, operators that are gone, another max parallelism, states whose kind or
        type does not fit, and positions and output with which sources and sinks cannot go on. A start judges by the same
        code. Reads no input, loads no keyed state and asks no server. The program's stateful functions are copied, opened
        and closed in this process, because `initialize_state` and `open` declare their states.

        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.from_collection([1, 2]).print()
        >>> env.check_restore("file:///no/such/savepoint")
        Traceback (most recent call last):
        holdfast.errors.ConfigurationError: 'file:///no/such/savepoint' is not a savepoint: ...

        Args:
            path: The savepoint or checkpoint, as for ``execution.state-recovery.path``. None: what the program would restore
                if it began now, which is what that setting names, or the newest checkpoint of the job.
            job_name: The job's name; also ``pipeline.name``.

        Returns:
            The obstacles, if there are any, and what becomes of each source, operator, sink and state.

        Raises:
            ConfigurationError: the program cannot work, or there is nothing to restore from.
            HoldfastError: the metadata cannot be read: it is altered, or of a format that this release does not read.
        """
        return check_restore(self._plan(job_name), path)

    def get_execution_plan(self) -> str:
        """Return the execution plan as JSON in Flink's shape: ``{"nodes": [...]}``.

        Raises:
            ConfigurationError: the program cannot work.
        """
        return execution_plan(self._operators)

    def _plan(self, job_name: str | None) -> JobPlan:
        config = Configuration(self._configuration)
        for option in _OPTIONS:
            config.get(option)  # reports a value of the wrong type now
        _check_own_options(config)
        name = job_name or config.get(PipelineOptions.NAME) or default_name(config.get(CheckpointingOptions.DIR))
        if (key_groups := config.get(PipelineOptions.MAX_PARALLELISM)) != -1:  # unless each operator's parallelism tells
            check_count(key_groups, PipelineOptions.MAX_PARALLELISM.key, MAX_KEY_GROUPS)
        config.set(PipelineOptions.NAME, name)
        config.set(PipelineOptions.PARALLELISM, self.get_parallelism())
        config.set(PipelineOptions.AUTO_WATERMARK_INTERVAL, f"{self.get_config().get_auto_watermark_interval()} ms")
        plan = job_plan(self._operators, config.to_dict(), name=name, chaining=self.is_chaining_enabled())
        return replace(plan, class_aliases=dict(self._class_aliases)) if self._class_aliases else plan

    def _replan(self, plan: JobPlan) -> Callable[[int], JobPlan]:
        """Return a function that makes this program's plan at another parallelism, also after the environment is emptied."""
        operators, chaining = tuple(self._operators), self.is_chaining_enabled()

        def at(parallelism: int) -> JobPlan:
            check_count(parallelism, "parallelism")
            config = {**plan.config, PipelineOptions.PARALLELISM.key: str(parallelism)}
            made = job_plan(rescaled(operators, parallelism), config, name=plan.name, chaining=chaining)
            return replace(made, class_aliases=plan.class_aliases)

        return at


def _check_own_options(config: Configuration) -> None:
    """Refuse unknown ``holdfast.`` keys. Flink's other keys are ignored."""
    groups = EpochOptions, LogOptions, StorageCostOptions
    own = [option.key for group in groups for option in vars(group).values() if isinstance(option, ConfigOption)]
    for key in sorted(config.key_set()):
        if key.startswith("holdfast.") and key not in own:
            raise ConfigurationError(f"{key} is not a setting; there are {', '.join(own)}")


@lru_cache
def _require_java(java_home: str | None, path: str | None) -> None:
    """Look for Java once for each environment; the arguments are the inputs of `find_java`."""
    find_java()
