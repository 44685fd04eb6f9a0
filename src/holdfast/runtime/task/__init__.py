"""One subtask of a vertex in a task slot: its input, its chain of operators, their state and its times.

Owns the life of a subtask from epoch to epoch. May use operators through `holdfast.runtime.plan.operator` only.

Invariant: a subtask continues with the state in memory only if the assignment names the attempt that made this state;
otherwise it closes everything and restores.
"""
