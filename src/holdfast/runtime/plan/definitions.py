"""Definitions: the parameters that an operator's state depends on, compared between checkpoint and program. Pure.

A checkpoint stores the definition of each operator whose state depends on its parameters: windows, joins, patterns. An
operator with another definition continues if it can read the state; from then on, checkpoints store the definition of the
factory that `continued` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.errors import IncompatibleState
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.plan.plan import Vertex

__all__ = ["Changed", "Stored", "changed_definitions", "continued", "vertex_on"]


class Stored(Protocol):
    """The stored definition of an operator."""

    @property
    def definition(self) -> dict[str, Any] | None:
        """The definition as plain data; None: the state does not depend on one."""


class Changed(NamedTuple):
    """An operator whose new definition cannot read its state."""

    uid: str
    name: str
    reason: str


def continued(factory: OperatorFactory, stored: Stored | None) -> OperatorFactory:
    """The operator factory that continues with the stored state.

    Raises:
        IncompatibleState: the operator cannot continue with it.
    """
    before = None if stored is None else stored.definition
    if before is None or before == (own := factory.definition()):
        return factory
    if own is None or own["of"] != before["of"]:
        now = "another operator" if own is None else own["of"]
        raise IncompatibleState(f"it is the state of {before['of']}, and the program has {now}")
    return factory.continuing(before)


def vertex_on(vertex: Vertex, operators: Mapping[str, Stored]) -> Vertex:
    """The vertex whose operators continue with their stored definitions, given by uid."""
    chain = [replace(each, factory=continued(each.factory, operators.get(each.uid))) for each in vertex.chain]
    return replace(vertex, chain=tuple(chain))


def changed_definitions(vertex: Vertex, operators: Mapping[str, OperatorCheckpoint]) -> Iterator[Changed]:
    """The operators whose definitions cannot read their state."""
    for chained in vertex.chain:
        try:
            continued(chained.factory, operators.get(chained.uid))
        except IncompatibleState as error:
            yield Changed(chained.uid, chained.name, str(error))
