"""The execution mode of a job: BATCH or STREAMING."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.common.config_options import PipelineOptions, StateRecoveryOptions
from holdfast.common.configuration import Configuration
from holdfast.common.system.modes import RuntimeExecutionMode
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import Physical, SourceTransformation, Transformation

__all__ = ["check_bounded", "in_batch"]


def in_batch(operators: Iterable[Physical], config: Configuration) -> bool:
    """Whether the job runs in BATCH mode: as configured; with AUTOMATIC, if all sources are bounded.

    Raises:
        ConfigurationError: the mode is BATCH, and a source is unbounded or the job starts from a savepoint.
    """
    mode = config.get(PipelineOptions.RUNTIME_MODE)
    key = PipelineOptions.RUNTIME_MODE.key
    if mode is RuntimeExecutionMode.STREAMING:
        return False
    unbounded = [each for each in operators if isinstance(each, SourceTransformation) and not each.source.bounded]
    if mode is RuntimeExecutionMode.AUTOMATIC and unbounded:
        return False
    if unbounded:
        raise ConfigurationError(
            f"{key} is BATCH, but source {unbounded[0]} is unbounded: a job in BATCH mode gives its results at the end of "
            f"its input. Bound the source (set_bounded(...) of a KafkaSource, files without monitor_continuously(...), a "
            f"number of generated records), or set the mode to STREAMING or AUTOMATIC."
        )
    if config.get(StateRecoveryOptions.PATH):
        raise ConfigurationError(
            f"{StateRecoveryOptions.PATH.key} is set, but the job runs in BATCH mode, which starts without state: leave one "
            f"of the two out, or set {key} to STREAMING."
        )
    return True


def check_bounded(operators: Iterable[Transformation], where: str) -> None:
    """Check that a program ends.

    Args:
        operators: Its operators.
        where: The call that needs it.

    Raises:
        ConfigurationError: a source is unbounded.
    """
    waiting, seen = list(operators), set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        waiting += node.inputs
        if isinstance(node, SourceTransformation) and not node.source.bounded:
            raise ConfigurationError(
                f"{where} returns at the end of the job, and source {node} is unbounded: bound it (set_bounded(...) of a "
                "KafkaSource, files without monitor_continuously(...), a number of generated records), or take "
                "foreach_checkpoint()"
            )
