"""The daemon from which Spark forks its Python workers: PySpark's, after the imports that every worker needs.

The workers share the memory of these modules, and start without importing them. PySpark's daemon leaves imports to the
workers, because some packages start threads that a fork would lose; those imported here start none.

Each worker adds its files to the Python path, after which Python reads the directories of all archives on the path again:
0.1 s and 15 MB for those of PySpark and of Spark's jar. The daemon forgets these archives; an import finds them again.
"""

from __future__ import annotations

import gc
import sys
import zipimport

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.runtime.spark.level_task  # noqa: F401

__all__ = ["forget_archives"]


def forget_archives() -> None:
    """Let Python not read the directories of archives again before it imports from them."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    gc.collect()
    gc.freeze()  # a collection in a worker would write to the shared pages
    manager()
