"""The command line: one module for each group of commands.

Private: it is run, not imported.
"""
