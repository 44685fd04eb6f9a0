"""Full snapshots of RocksDB files: fetched in parts, linked, or read while they are still being fetched.

Invariant: a file is complete and verified, or each read goes to the checkpoint storage for what is missing.
"""
