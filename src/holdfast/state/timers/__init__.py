"""Timers: at most one per key, namespace and time, in memory for the near future and in the store for the rest."""
