"""Local stores: ordered, in memory or in RocksDB on this host's disk, with files for large values beside RocksDB.

Invariant: no restore needs the content of a local store; losing it costs time, not data.
"""
