"""The uids of operators, which identify their state when the job resumes.

A derived uid is a hash of the operator (its kind, its name, the names of its functions) and of its inputs' uids. A
counter in program order distinguishes equal operators. A derived uid survives another branch, another parallelism and
another order of unrelated lines. It changes when the operator, or one upstream back to the nearest explicit uid, gets
another name or function. Equal operators with state are warned of: when one of them goes, or they change places, they take
each other's state.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from holdfast.checkpoint.metadata import has_output
from holdfast.checkpoint.paths import safe_name
from holdfast.connectors.hybrid_source import HybridSource, member_uid
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import OperatorTransformation, Physical, SourceTransformation

__all__ = ["assign_uids", "records_uid"]

log = logging.getLogger("holdfast")
_told: set[str] = set()
"""The uids of operators that have been warned of: a job plans several times."""


def assign_uids(operators: Sequence[Physical], producers: Mapping[int, Sequence[tuple[int, str | None]]]) -> dict[int, str]:
    """Return the uid of each operator, by operator id.

    Args:
        operators: All operators, producers before consumers.
        producers: Operator id -> the ids of its input operators, in order, with the side output of each.

    Raises:
        ConfigurationError: two operators have the same uid, or uids that give the same name to what is stored of them.
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
            if twins[signature] == 2:
                _warn_of_alike(operator, uid)
        else:
            uid = operator.uid
            if uid in owners:
                raise ConfigurationError(
                    f"The uid '{uid}' is given to two operators, {owners[uid]} and {operator}. State is found by uid, "
                    "so each operator needs its own: change one of them."
                )
        owners[uid] = operator
        uids[operator.id] = uid
    _check_names(owners)
    return uids


def _check_names(owners: Mapping[str, Physical]) -> None:
    """Refuse uids whose operators would share files, or be taken for a part of another operator."""
    named: dict[str, str] = {}
    for uid, operator in owners.items():
        if not has_output(uid):
            raise ConfigurationError(f"The uid '{uid}' of {operator} ends as those of changelogs do: give it another uid.")
        for name, what in [(uid, uid), *_parts(uid, operator)]:
            other = named.setdefault(safe_name(name), what)
            if other != what:
                raise ConfigurationError(
                    f"The uids '{other}' and '{what}' give the same name, {safe_name(name)!r}, to what is stored of two "
                    "operators: change one of them."
                )


def _parts(uid: str, operator: Physical) -> list[tuple[str, str]]:
    """The uids of an operator's parts, with their names in messages."""
    if not isinstance(operator, SourceTransformation):
        return []
    source = operator.source
    members = len(source.sources) if isinstance(source, HybridSource) else 0
    parts = [records_uid(uid), *(member_uid(uid, number) for number in range(members))]
    return [(part, f"{part} (of {uid})") for part in parts]


def records_uid(uid: str) -> str:
    """The uid of the operator that passes on the records of a source with this uid."""
    return f"{uid}-records"


def _warn_of_alike(operator: Physical, uid: str) -> None:
    """Warn of an operator with state that differs from another one in its place in the program only, once."""
    if uid not in _told and isinstance(operator, OperatorTransformation) and operator.factory.state:
        _told.add(uid)
        log.warning(
            "several operators with state are alike, %s, and have no uid: if one of them is removed, or they change places, "
            "a later start gives each the state of another one. Set a uid(...) for each",
            operator,
        )


def _function_names(operator: Physical) -> list[str]:
    if isinstance(operator, SourceTransformation):
        return [type(operator.source).__name__]
    assert isinstance(operator, OperatorTransformation), operator
    return [_name_of(function) for _, function in operator.functions]


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
