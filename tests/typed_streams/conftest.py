"""The programs are read by mypy, not run: some are wrong."""

collect_ignore = ["right_programs.py", "wrong_programs.py"]
