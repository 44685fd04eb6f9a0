"""The daemon from which a local Spark forks its Python workers: PySpark's, after the imports that every worker needs.

The workers share the memory of these modules, and start without importing them. PySpark's daemon leaves imports to the
workers, because some packages start threads that a fork would lose; those imported here start none.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.runtime.level_task  # noqa: F401

__all__: list[str] = []

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a collection in a worker would write to the shared pages
    manager()
