"""How a job runs: the plan it executes, epochs, task slots, operators, and the coordinator that drives them.

Private: programs start jobs through ``holdfast.datastream``.
"""
