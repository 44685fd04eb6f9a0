"""A row and its handles: cells, their stored form, declared types, and values that are stored outside of their row."""
