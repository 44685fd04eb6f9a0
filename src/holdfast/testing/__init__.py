"""For tests of programs: harnesses, a test source, a virtual clock; real clusters, brokers and faults.

The names below need no JVM, but for `MiniCluster`. The modules of real infrastructure are imported by their own names:
``holdfast.testing.kafka`` (a broker), ``holdfast.testing.cluster`` (a Spark cluster of several hosts).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.function_harnesses import ProcessFunctionTestHarnesses
    from holdfast.testing.harness import HarnessSnapshot, OneInputTestHarness, TwoInputTestHarness
    from holdfast.testing.in_process import InProcessEnvironment
    from holdfast.testing.mini_cluster import MiniCluster
    from holdfast.testing.source import TestSource

__all__ = [
    "HarnessSnapshot",
    "InProcessEnvironment",
    "MiniCluster",
    "OneInputTestHarness",
    "ProcessFunctionTestHarnesses",
    "TestSource",
    "TwoInputTestHarness",
    "VirtualClock",
]

_MODULES = {
    "HarnessSnapshot": "harness",
    "InProcessEnvironment": "in_process",
    "MiniCluster": "mini_cluster",
    "OneInputTestHarness": "harness",
    "ProcessFunctionTestHarnesses": "function_harnesses",
    "TestSource": "source",
    "TwoInputTestHarness": "harness",
    "VirtualClock": "clock",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: processes that only start a broker need none of it.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
