"""Base classes of user functions, and their contexts."""
