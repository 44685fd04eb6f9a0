"""Requests of async functions: the loop in which their coroutines run, its timers, and the queue of their results.

May use `holdfast.runtime.records`. The operator that waits for the results is `holdfast.runtime.operators.async_wait`.

Invariant: only coroutines and callbacks run in the loop's thread; everything else is done by the thread of the task.
"""
