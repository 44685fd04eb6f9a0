"""Base classes of user functions, and their contexts.

Private: programs import these classes from ``holdfast.datastream``.
"""
