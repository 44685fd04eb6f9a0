"""Flink's state for Python stream processing, with the data pipeline on Spark.

Programs import what they would import from PyFlink: ``holdfast.datastream`` and ``holdfast.common``.
"""

__version__ = "0.1.0"
