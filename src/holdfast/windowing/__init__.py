"""Windows: assigners, triggers, and the windows themselves.

Private: programs import these classes from ``holdfast.datastream``.
"""
