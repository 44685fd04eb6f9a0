"""Tools for stored state: list, describe, compare, verify and prune checkpoints and savepoints.

>>> from holdfast.state_api import describe, list_snapshots, open_snapshot
>>> list_snapshots("file:///no/such/directory")
[]
"""

from __future__ import annotations

from holdfast.state_api.catalog import Listed, Snapshot, list_snapshots, open_snapshot
from holdfast.state_api.contents import OperatorContent, StateContent, describe
from holdfast.state_api.difference import Difference, diff
from holdfast.state_api.upkeep import Orphan, Pruned, delete_savepoint, find_orphans, prune, sign, verify

__all__ = [
    "Difference",
    "Listed",
    "OperatorContent",
    "Orphan",
    "Pruned",
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
