"""The driver of a job: it carries out the instructions of the protocol, and is where people find the job.

Owns the threads and the I/O of the driver: the checkpoint log's writer, the sources' enumerators, the sinks' committers, the
job's records on this machine. May use everything in `holdfast.runtime`; nothing in `holdfast.runtime` uses it.

Invariant: it decides nothing that a restart depends on. Each decision is the machine's (`holdfast.runtime.protocol`), each
instruction is answered with one event.
"""
