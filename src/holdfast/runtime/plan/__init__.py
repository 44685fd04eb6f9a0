"""The plan of a job, shared by driver and tasks: vertices, settings, assignments, reports, the contract of operators.

Owns what both sides of the protocol share. `operator` is the runtime's only interface to code that processes records.
"""
