"""The programs are read by mypy, not run: some are wrong."""

collect_ignore = ["accepted", "refused"]
