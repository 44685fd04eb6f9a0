"""Local stores: ordered, in memory or in RocksDB on this host's disk, and files of large values beside it.

Invariant: nothing in a local store is needed for a restore; losing it costs time, not data.
"""
