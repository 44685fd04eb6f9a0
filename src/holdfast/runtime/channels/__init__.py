"""Channels between subtasks: routing into frames, merging by watermark, and channel state of unaligned checkpoints.

Invariant: what a subtask processes, and in which order, does not depend on when frames arrive.
"""
