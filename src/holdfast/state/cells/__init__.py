"""A row and its handles: cells, their stored form, declared types, and values stored outside of their row."""
