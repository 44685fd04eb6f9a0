"""Definitions: what the state of an operator was stored by, compared with the program that goes on with it. Pure.

A checkpoint has the definition of each operator whose state means something else with other parameters: windows, joins,
patterns. An operator with another definition goes on if it can read the state. What it then stores is of the definition that
`continued` gives it, which is compared at the next start.
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
    """What has been stored of an operator."""

    @property
    def definition(self) -> dict[str, Any] | None:
        """By what."""


class Changed(NamedTuple):
    """An operator that cannot go on with its state."""

    uid: str
    name: str
    reason: str


def continued(factory: OperatorFactory, stored: Stored | None) -> OperatorFactory:
    """The factory that goes on with what is stored.

    Raises:
        IncompatibleState: there is none.
    """
    before = None if stored is None else stored.definition
    if before is None or before == (own := factory.definition()):
        return factory
    if own is None or own["of"] != before["of"]:
        now = "another operator" if own is None else own["of"]
        raise IncompatibleState(f"it is the state of {before['of']}, and the program has {now}")
    return factory.continuing(before)


def vertex_on(vertex: Vertex, operators: Mapping[str, Stored]) -> Vertex:
    """The vertex whose operators go on with what is stored of them, by uid."""
    chain = [replace(each, factory=continued(each.factory, operators.get(each.uid))) for each in vertex.chain]
    return replace(vertex, chain=tuple(chain))


def changed_definitions(vertex: Vertex, operators: Mapping[str, OperatorCheckpoint]) -> Iterator[Changed]:
    """The operators that cannot go on with what is stored of them."""
    for chained in vertex.chain:
        try:
            continued(chained.factory, operators.get(chained.uid))
        except IncompatibleState as error:
            yield Changed(chained.uid, chained.name, str(error))
