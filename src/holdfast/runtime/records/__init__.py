"""Records between operators and on the wire: batches, frames, spilling, and the calls to user functions."""
