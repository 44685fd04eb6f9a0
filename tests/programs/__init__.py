"""Programs drawn at random from all public operations, run in any way, judged by the plain way and by models."""
