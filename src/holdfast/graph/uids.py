"""The uids of operators: what their state is found by when the job starts again.

A uid that the user did not give is a hash of what the operator is (its kind, its name, the names of the functions in
it) and of the uids of what feeds it. Operators that agree in all of that are told apart by their order. So it does not
change when another branch is added, when the parallelism changes or when the same program is written in another order
of unrelated lines; it does change when the operator, or one before it back to the nearest given uid, is renamed or
gets another function.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import OperatorTransformation, Physical, SourceTransformation

__all__ = ["assign_uids"]


def assign_uids(operators: Sequence[Physical], producers: Mapping[int, Sequence[tuple[int, str | None]]]) -> dict[int, str]:
    """The uid of each operator, by operator id.

    Args:
        operators: All of them, producers before consumers.
        producers: Operator id -> the ids of those that feed it, in order, with the side output taken.

    Raises:
        ConfigurationError: two operators were given the same uid.
    """
    uids: dict[int, str] = {}
    owners: dict[str, Physical] = {}
    twins: Counter[bytes] = Counter()
    for operator in operators:
        if operator.uid is None:
            inputs = [[uids[producer], tag] for producer, tag in producers.get(operator.id, ())]
            signature = orjson.dumps([operator.kind, operator.name, _function_names(operator), inputs])
            uid = hashlib.blake2b(signature + b"#%d" % twins[signature], digest_size=16).hexdigest()
            twins[signature] += 1
        else:
            uid = operator.uid
            if uid in owners:
                raise ConfigurationError(
                    f"The uid '{uid}' is given to two operators, {owners[uid]} and {operator}. State is found by uid, "
                    "so each operator needs its own: change one of them."
                )
        owners[uid] = operator
        uids[operator.id] = uid
    return uids


def _function_names(operator: Physical) -> list[str]:
    if isinstance(operator, SourceTransformation):
        return [type(operator.source).__name__]
    assert isinstance(operator, OperatorTransformation), operator
    return [_name_of(function) for _, function in operator.functions]


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
