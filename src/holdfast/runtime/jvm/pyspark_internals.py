"""The private parts of PySpark that Holdfast uses, all in this module because a release may change them.

PySpark is imported inside the functions, because a driver starts Java before.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkConf, SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "active_context",
    "cloudpickled",
    "ensure_initialized",
    "gateway",
    "gateway_client",
    "has_gateway",
    "is_stopped",
    "java_broadcast",
    "java_context",
    "java_rdd",
    "java_session",
    "jvm",
    "launch_gateway",
    "pickled_reference",
    "python_includes",
    "query_execution",
    "raw_connection",
    "raw_pairs",
    "raw_serializer",
]


def launch_gateway(conf: SparkConf | None = None, popen_kwargs: dict[str, Any] | None = None) -> Any:
    """Start a JVM by Spark's scripts, or connect to the JVM that the environment names; returns Py4J's gateway."""
    from pyspark.java_gateway import launch_gateway

    return launch_gateway(conf, popen_kwargs)


def has_gateway() -> bool:
    """Whether PySpark has a JVM, even if the program has stopped the session that started it."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def ensure_initialized(gateway: Any = None) -> None:
    """Give PySpark a gateway, or let it make its own."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def active_context() -> SparkContext | None:
    """The SparkContext of this process."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def is_stopped(context: SparkContext) -> bool:
    """Whether ``stop()`` was called."""
    return context._jsc is None


def jvm(context: SparkContext) -> Any:
    """Py4J's view of the JVM."""
    return context._jvm


def java_context(context: SparkContext) -> Any:
    """The JavaSparkContext."""
    return context._jsc


def gateway(context: SparkContext) -> Any:
    """Py4J's gateway."""
    return context._gateway


def gateway_client(context: SparkContext) -> Any:
    """The client of Py4J's gateway."""
    return gateway(context)._gateway_client


def python_includes(context: SparkContext) -> list[str]:
    """The names of the files that Spark's workers add to their path."""
    return list(context._python_includes)


def java_rdd(rdd: RDD[Any]) -> Any:
    """The JavaRDD."""
    return rdd._jrdd


def java_session(session: SparkSession) -> Any:
    """The SparkSession in the JVM."""
    return session._jsparkSession


def java_broadcast(broadcast: Broadcast[Any]) -> Any:
    """The broadcast in the JVM."""
    return broadcast._jbroadcast


def pickled_reference(context: SparkContext, broadcast: Broadcast[Any]) -> bytes:
    """A pickled reference to the broadcast; PySpark records it for the function that is made next."""
    content = pickle.dumps(broadcast, 5)
    context._pickled_broadcast_vars.clear()
    return content


def raw_serializer() -> Any:
    """The serializer that passes bytes as they are."""
    from pyspark.serializers import NoOpSerializer

    return NoOpSerializer()


def raw_connection(port: Any, secret: Any) -> tuple[Any, Any]:
    """Connect to a port of the JVM; returns the file and the socket."""
    from pyspark.util import local_connect_and_auth

    file, connection = local_connect_and_auth(port, secret)
    return file, connection


def raw_pairs(rdd: RDD[Any]) -> Any:
    """The JavaRDD of pairs, from an RDD of bytes that alternates between keys and values."""
    keyed: Any = rdd
    keyed._bypass_serializer = True
    return keyed._jrdd


def cloudpickled(function: Any) -> bytes:
    """The function, pickled by PySpark's cloudpickle, which all workers have."""
    from pyspark import cloudpickle

    content: bytes = cloudpickle.dumps(function)
    return content


def query_execution(frame: DataFrame) -> Any:
    """Spark's plans of a DataFrame."""
    return frame._jdf.queryExecution()
