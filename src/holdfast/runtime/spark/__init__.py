"""Spark: the context of a job, and an epoch as one Spark job.

Owns everything that imports PySpark in the driver or runs in a Spark task. May use the task slots' client
(`holdfast.runtime.host`), the plan, frames and the start of the JVM.

Invariant: a Spark task holds no state of the job; Spark may run it again, on any host, at any time.
"""
