"""One subtask of a vertex in a task slot: its input, its chain of operators, their state and their times.

Owns the life of a subtask from epoch to epoch. May use operators only through `holdfast.runtime.plan.operator`.

Invariant: a subtask continues with the state in memory only if the assignment names the attempt that produced it; otherwise
it closes everything and restores.
"""
