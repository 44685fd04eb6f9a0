"""Full snapshots as RocksDB files: fetched in parts, linked, or read while they are still being fetched.

Invariant: a file is complete and verified, or each read first fetches what it lacks from the checkpoint storage.
"""
