"""The program as the user wrote it: a graph of transformations, built call by call by the datastream API.

A *physical* transformation (source, operator, sink) becomes an operator of the job. The others only say how records
get from one operator to the next: a partitioning, one side output of an operator, several streams in one.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.connectors.base import Source
from holdfast.runtime.operators.base import OperatorFactory, StateKind
from holdfast.runtime.plan import Partitioning

__all__ = [
    "OperatorTransformation",
    "Partitioned",
    "Physical",
    "SideOutput",
    "SourceTransformation",
    "Transformation",
    "Union",
]

_ids = itertools.count(1)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _user_line() -> str:
    """Where in the user's program the current call into Holdfast came from, e.g. ``job.py:14``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@dataclass(eq=False, kw_only=True)
class Transformation:
    """A node of the program's graph."""

    inputs: tuple[Transformation, ...] = ()
    output_type: Any = None
    """The declared type of the elements (a TypeInformation), or None."""
    id: int = field(default_factory=lambda: next(_ids))
    """Rises in the order in which the program made them."""


@dataclass(eq=False, kw_only=True)
class Physical(Transformation):
    """A node that becomes an operator; the settings that a user may give it."""

    kind: str
    """What it is, in Flink's words: ``Map``, ``KeyedProcess``, ``Source``."""
    name: str
    parallelism: int
    max_parallelism: int | None = None
    uid: str | None = None
    description: str | None = None
    slot_sharing_group: str | None = None
    starts_chain: bool = False
    """Never chained to the operator before it."""
    ends_chain: bool = False
    """No operator is ever chained to it."""
    defined_at: str = field(default_factory=_user_line)

    def __str__(self) -> str:
        return f"'{self.name}' ({self.kind}, {self.defined_at})"


@dataclass(eq=False, kw_only=True)
class SourceTransformation(Physical):
    """Where records come from."""

    source: Source
    watermark_strategy: Any
    parallel: bool = True
    """Whether it can be read by more than one subtask."""


@dataclass(eq=False, kw_only=True)
class OperatorTransformation(Physical):
    """What is done with records; a sink is one that has no output."""

    factory: OperatorFactory
    functions: tuple[tuple[str, Any], ...]
    """What of the user's is in it, and what it is called in messages: ``("reduce function", f)``."""
    is_sink: bool = False
    side_outputs: bool = False
    """Whether it can emit to side outputs."""
    passes_elements: bool = False
    """Whether it emits only what it was given, so that the elements are of the output type already."""

    @property
    def keyed(self) -> bool:
        """Whether it has state by key, and so needs an input partitioned by key."""
        return StateKind.KEYED in self.factory.state


@dataclass(eq=False, kw_only=True)
class Partitioned(Transformation):
    """How the records of its input are spread over the subtasks of what follows."""

    partitioning: Partitioning
    key_selector: Callable[[Any], Any] | None = None
    key_type: Any = None
    """The declared type of the keys (a TypeInformation), or None."""
    partitioner: Callable[[Any, int], int] | None = None


@dataclass(eq=False, kw_only=True)
class SideOutput(Transformation):
    """The records that an operator emitted with one tag."""

    tag: str


@dataclass(eq=False, kw_only=True)
class Union(Transformation):
    """The records of all its inputs."""
