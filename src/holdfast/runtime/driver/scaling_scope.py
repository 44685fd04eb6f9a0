"""The parts of a plan that a change of the job's parallelism affects. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.autoscaling import Scope
from holdfast.runtime.plan.plan import JobPlan, Vertex
from holdfast.runtime.protocol.statistics import shown_id

__all__ = ["scope_of"]


def scope_of(replan: Callable[[int], JobPlan], parallelism: int) -> Scope:
    """What a rescaling from a parallelism would change.

    Args:
        replan: Makes the job's plan for a parallelism; raises ConfigurationError if the job cannot run at it.
        parallelism: The current parallelism.
    """
    plan = replan(parallelism)
    try:
        elsewhere = {uid: v.parallelism for v in replan(1 if parallelism > 1 else 2).vertices for uid in _uids(v)}
    except ConfigurationError:
        return Scope(frozenset(), parallelism)
    changed = {v.id: frozenset(uid for uid in _uids(v) if elsewhere.get(uid) != v.parallelism) for v in plan.vertices}
    scaled = [v for v in plan.vertices if changed[v.id]]
    return Scope(
        frozenset(shown_id(v.id) for v in scaled),
        min((v.max_parallelism for v in scaled), default=parallelism),
        {shown_id(v.id): changed[v.id] for v in scaled if len(changed[v.id]) < len(_uids(v))},
    )


def _uids(vertex: Vertex) -> list[str]:
    return [*(chained.uid for chained in vertex.chain), *([vertex.source.uid] if vertex.source else [])]
