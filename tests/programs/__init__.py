"""Programs drawn at random from all public operations, run in any way, judged by the plain way and by models.

What no program can show here is tested elsewhere:

- where splits are (a rescaling deals them anew): the results are the same in any subtask;
- silence that makes a split idle: it takes real time, and what is late then depends on it. Here a split is never silent for
  as long as its idleness says, by the monotonic clock; the wall clock is set further than that;
- how long processing time stands still: what is judged is that timers and windows of processing time give each element once;
- two jobs beside each other, a LiveTable, ``to_pandas``: they are not part of a program's results;
- a pattern that changed: which of its partial matches are refused depends on the cut (``engine/test_changed_operators.py``);
- programs that are refused while they are built.
"""
