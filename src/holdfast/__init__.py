"""Flink's state for Python stream processing, with the data pipeline on Spark.

Programs import what they would import from PyFlink: ``holdfast.datastream`` and ``holdfast.common``.
"""

from holdfast import compiled as compiled  # before any module that it stands in for

__version__ = "0.1.0"
