"""Timers: at most one per key, namespace and time. The near future is in memory, the rest in the store."""
