"""A program at another parallelism: a copy of its transformations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.graph.transformations import OperatorTransformation, Physical, Transformation

__all__ = ["rescaled"]


def rescaled(roots: Iterable[OperatorTransformation], parallelism: int) -> list[OperatorTransformation]:
    """Copy the program; operators without a parallelism of their own get this one.

    The ids stay the same, and with them the program order and the derived uids.
    """
    copies: dict[int, Transformation] = {}

    def copy(node: Transformation) -> Transformation:
        if node.id not in copies:
            made = replace(node, inputs=tuple(copy(before) for before in node.inputs))
            if isinstance(made, Physical) and not made.parallelism_configured:
                made.parallelism = parallelism
            copies[node.id] = made
        return copies[node.id]

    return [made for root in roots if isinstance(made := copy(root), OperatorTransformation)]
