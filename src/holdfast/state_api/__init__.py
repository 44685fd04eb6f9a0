"""Tools for stored state: list, describe, compare, verify and prune checkpoints and savepoints; read and write their state.

>>> from holdfast.state_api import describe, list_snapshots, open_snapshot
>>> list_snapshots("file:///no/such/directory")
[]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.state_api.bootstrap import OperatorTransformation
    from holdfast.state_api.bootstrap_functions import (
        BroadcastStateBootstrapFunction,
        KeyedStateBootstrapFunction,
        StateBootstrapFunction,
    )
    from holdfast.state_api.reader import SavepointReader
    from holdfast.state_api.reader_functions import KeyedStateReaderFunction, WindowReaderFunction
    from holdfast.state_api.snapshots.catalog import Listed, Snapshot, list_snapshots, open_snapshot
    from holdfast.state_api.snapshots.contents import OperatorContent, StateContent, describe
    from holdfast.state_api.snapshots.difference import Difference, diff
    from holdfast.state_api.snapshots.holding import hold_checkpoint
    from holdfast.state_api.snapshots.largest import KeySize, KeySizes, largest_keys
    from holdfast.state_api.snapshots.upkeep import Orphan, Pruned, delete_savepoint, find_orphans, prune, sign, verify
    from holdfast.state_api.streaming_query import state_of_query
    from holdfast.state_api.writer import SavepointWriter

__all__ = [
    "BroadcastStateBootstrapFunction",
    "Difference",
    "KeySize",
    "KeySizes",
    "KeyedStateBootstrapFunction",
    "KeyedStateReaderFunction",
    "Listed",
    "OperatorContent",
    "OperatorTransformation",
    "Orphan",
    "Pruned",
    "SavepointReader",
    "SavepointWriter",
    "Snapshot",
    "StateBootstrapFunction",
    "StateContent",
    "WindowReaderFunction",
    "delete_savepoint",
    "describe",
    "diff",
    "find_orphans",
    "hold_checkpoint",
    "largest_keys",
    "list_snapshots",
    "open_snapshot",
    "prune",
    "sign",
    "state_of_query",
    "verify",
]

_MODULES = {
    "bootstrap": ("OperatorTransformation",),
    "bootstrap_functions": (
        "BroadcastStateBootstrapFunction",
        "KeyedStateBootstrapFunction",
        "StateBootstrapFunction",
    ),
    "reader": ("SavepointReader",),
    "reader_functions": ("KeyedStateReaderFunction", "WindowReaderFunction"),
    "snapshots.catalog": ("Listed", "Snapshot", "list_snapshots", "open_snapshot"),
    "snapshots.contents": ("OperatorContent", "StateContent", "describe"),
    "snapshots.difference": ("Difference", "diff"),
    "snapshots.holding": ("hold_checkpoint",),
    "snapshots.largest": ("KeySize", "KeySizes", "largest_keys"),
    "snapshots.upkeep": ("Orphan", "Pruned", "delete_savepoint", "find_orphans", "prune", "sign", "verify"),
    "streaming_query": ("state_of_query",),
    "writer": ("SavepointWriter",),
}
"""Imported on first use: some modules import Spark, which takes half a second, and most commands need none of them."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
