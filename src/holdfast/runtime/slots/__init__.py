"""The processes of task slots: they serve calls, and hold subtasks between epochs.

Owns the process: its main function, its server, its standby copies, and its reports of stuck tasks. May use tasks and what
lies below them.
"""
