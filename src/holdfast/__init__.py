"""Flink's state for Python stream processing, with the data pipeline on Spark.

Programs import what they would import from PyFlink: ``holdfast.datastream`` and ``holdfast.common``. Public are also
``holdfast.cep``, ``holdfast.table``, ``holdfast.connectors.base``, ``holdfast.state_api``, ``holdfast.testing``,
``holdfast.spark``, ``holdfast.notebook`` and ``holdfast.errors``. All else is private, and may change in any release.
"""

from holdfast import compiled as compiled  # before any module that it stands in for

__version__ = "0.1.0"
