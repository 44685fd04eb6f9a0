"""Tools for stored state: list, describe, compare, verify and prune checkpoints and savepoints; read and write their state.

>>> from holdfast.state_api import describe, list_snapshots, open_snapshot
>>> list_snapshots("file:///no/such/directory")
[]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.state_api.catalog import Listed, Snapshot, list_snapshots, open_snapshot
from holdfast.state_api.contents import OperatorContent, StateContent, describe
from holdfast.state_api.difference import Difference, diff
from holdfast.state_api.upkeep import Orphan, Pruned, delete_savepoint, find_orphans, prune, sign, verify

if TYPE_CHECKING:
    from holdfast.state_api.bootstrap import OperatorTransformation
    from holdfast.state_api.bootstrap_functions import KeyedStateBootstrapFunction
    from holdfast.state_api.reader import SavepointReader
    from holdfast.state_api.writer import SavepointWriter

__all__ = [
    "Difference",
    "KeyedStateBootstrapFunction",
    "Listed",
    "OperatorContent",
    "OperatorTransformation",
    "Orphan",
    "Pruned",
    "SavepointReader",
    "SavepointWriter",
    "Snapshot",
    "StateContent",
    "delete_savepoint",
    "describe",
    "diff",
    "find_orphans",
    "list_snapshots",
    "open_snapshot",
    "prune",
    "sign",
    "verify",
]

_WITH_SPARK = {
    "KeyedStateBootstrapFunction": "bootstrap_functions",
    "OperatorTransformation": "bootstrap",
    "SavepointReader": "reader",
    "SavepointWriter": "writer",
}
"""Names whose modules import Spark, which takes half a second: the tools above do without."""


def __getattr__(name: str) -> Any:
    module = _WITH_SPARK.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
