"""State backends: they restore, write and bound the keyed state of one subtask of an operator.

Owns when a full snapshot is written and when deltas are merged, and the canonical form of savepoints. May use everything in
`holdfast.state`.

Invariant: after a restore, each row is as it was at the barrier of the checkpoint, from whichever files it comes.
"""
