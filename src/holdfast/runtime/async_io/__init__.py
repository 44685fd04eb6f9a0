"""Requests of async functions: the event loop that runs their coroutines, its timers, and the queue of their results.

May use `holdfast.runtime.records`. The operator that waits for the results is `holdfast.runtime.operators.async_wait`.

Invariant: only coroutines and callbacks run in the loop's thread; the task's thread does everything else.
"""
