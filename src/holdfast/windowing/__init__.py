"""Windows: assigners, triggers, and the windows themselves."""
