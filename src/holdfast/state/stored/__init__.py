"""Stored forms of state: schemas, the key space, deltas and their pieces. Versioned; old ones stay readable."""
