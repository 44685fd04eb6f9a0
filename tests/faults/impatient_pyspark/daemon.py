"""Spark's daemon, whose workers give a task slot that does not answer five seconds instead of twenty."""

from pyspark import daemon

from holdfast.runtime.host import slot

slot._ANSWER_TIMEOUT = 5.0

if __name__ == "__main__":
    daemon.manager()
