"""Checks of inputs that are read to their end before the others of their operator (`OperatorFactory.first_input`)."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.plan import JobPlan

__all__ = ["check_read_first"]


def check_read_first(plan: JobPlan) -> None:
    """Refuse a plan whose first inputs do not end, or wait for themselves, or could be overtaken by other inputs.

    Raises:
        ConfigurationError: there is such an operator.
    """
    sources = {each.source.uid: each.source for each in plan.vertices if each.source is not None}
    for vertex in plan.vertices:
        head = vertex.chain[0]
        if (first := head.factory.first_input) is None:
            continue
        where = f"the initial state of {head.name}"
        if plan.settings.batch:
            raise ConfigurationError(
                f"{where} needs execution.runtime-mode STREAMING: in BATCH mode, all input is read at once"
            )
        if plan.settings.aligned_timeout_ms is not None:
            raise ConfigurationError(
                f"{where} needs aligned checkpoints: unaligned ones let other records overtake it. Leave out "
                "execution.checkpointing.unaligned.enabled until a savepoint has the state"
            )
        for uid in plan.sources_of(vertex, first):
            if not sources[uid].source.bounded:
                raise ConfigurationError(f"{where} comes from {sources[uid].name}, which never ends; bound this source")
            if uid in _waited_for(plan, uid):
                raise ConfigurationError(
                    f"{where} comes from {sources[uid].name}, which would wait for its own end, as it feeds the other input "
                    "as well: read it by two sources"
                )


def _waited_for(plan: JobPlan, uid: str) -> set[str]:
    """The sources that must end before this one begins."""
    found: set[str] = set()
    waiting = [uid]
    while waiting:
        for before in plan.read_first.get(waiting.pop(), ()):
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found
