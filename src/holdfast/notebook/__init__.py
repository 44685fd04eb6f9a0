"""Jobs and streams in notebooks: a job shows its graph and rates while it runs, a stream is a table that updates.

Needs ``pip install 'holdfast[notebook]'``. Jobs and the results of ``execute_and_collect`` show themselves as the last
expression of a cell; `LiveTable` is a sink for the other streams of a program.
"""

from holdfast.notebook.live_table import LiveTable

__all__ = ["LiveTable"]
