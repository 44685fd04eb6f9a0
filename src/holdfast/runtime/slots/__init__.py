"""The processes of task slots: they serve calls, and hold subtasks between epochs.

Owns the process: its main function, its server, its standby copies, and what it tells of a task that stands still. May use
tasks and what lies below them.
"""
