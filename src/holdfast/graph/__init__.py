"""Translation of a user's program to the job plan: transformations, uids, chains.

Private: programs are built by ``holdfast.datastream``.
"""
