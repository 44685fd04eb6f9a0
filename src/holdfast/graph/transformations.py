"""The program as a graph of transformations, built call by call through the DataStream API.

A *physical* transformation (source, operator, sink) becomes an operator of the job. The others describe how records
reach the next operator: a partitioning, a side output, a union.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.common.formats.columns import ColumnForm
from holdfast.connectors.base import Source
from holdfast.runtime.plan.operator import OperatorFactory, StateKind
from holdfast.runtime.plan.plan import Partitioning

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
    """Return the line of the user's program that called Holdfast, e.g. ``job.py:14``."""
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
    """Increases in program order."""


@dataclass(eq=False, kw_only=True)
class Physical(Transformation):
    """A node that becomes an operator, with the user's settings."""

    kind: str
    """The kind of operator in Flink's terms: ``Map``, ``KeyedProcess``, ``Source``."""
    name: str
    parallelism: int
    parallelism_configured: bool = False
    """Whether the parallelism is its own, not that of the job (a term of Flink's)."""
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
    """A source of records."""

    source: Source
    watermark_strategy: Any
    parallel: bool = True
    """Whether more than one subtask can read it."""


@dataclass(eq=False, kw_only=True)
class OperatorTransformation(Physical):
    """A processing step; a sink has no output."""

    factory: OperatorFactory
    functions: tuple[tuple[str, Any], ...]
    """The user's objects in it with their names in messages: ``("reduce function", f)``."""
    is_sink: bool = False
    side_outputs: bool = False
    """Whether it can emit to side outputs."""
    passes_elements: bool = False
    """Whether it emits its input elements unchanged, so that they already have the output type."""

    @property
    def keyed(self) -> bool:
        """Whether it has keyed state and needs an input partitioned by key."""
        return StateKind.KEYED in self.factory.state


@dataclass(eq=False, kw_only=True)
class Partitioned(Transformation):
    """The distribution of its input over the subtasks of the next operator."""

    partitioning: Partitioning
    key_selector: Callable[[Any], Any] | None = None
    key_type: Any = None
    """The declared type of the keys (a TypeInformation), or None."""
    partitioner: Callable[[Any, int], int] | None = None
    columns: ColumnForm | None = None
    """The form of the columns that the next operator takes."""


@dataclass(eq=False, kw_only=True)
class SideOutput(Transformation):
    """The records that an operator emits with one tag."""

    tag: str


@dataclass(eq=False, kw_only=True)
class Union(Transformation):
    """The union of its inputs."""
