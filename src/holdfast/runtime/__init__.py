"""How a job runs: the plan it executes, epochs, task slots, operators, and the coordinator that drives them.

Private: programs start jobs by ``holdfast.datastream``.
"""
