"""The protocol of a job's driver, pure: facts in, instructions out.

Owns every decision about epochs, checkpoints, failures, rescalings and savepoints. May use the plan and the stored forms;
does no I/O, reads no clock and starts no thread.

Invariants: an illegal event raises an error; the simulator (`tests/simulator`) crashes it between any two steps.
"""
