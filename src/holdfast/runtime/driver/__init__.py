"""The driver of a job: it carries out the protocol's instructions, and is where users find the job.

Owns the driver's threads and I/O: the checkpoint log's writer, the sources' enumerators, the sinks' committers, the job's
records on this machine. May use everything in `holdfast.runtime`; nothing in `holdfast.runtime` uses it.

Invariant: it decides nothing that a restart depends on. Every decision is the machine's (`holdfast.runtime.protocol`), and
each instruction is answered with one event.
"""
