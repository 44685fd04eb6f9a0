"""Programs drawn at random from all public operations, run in any way, judged by the plain way and by models.

What no program can show here is tested elsewhere:

- where splits are (a rescaling deals them anew): the results are the same in any subtask;
- silence that makes a split idle: it takes real time, and what is late then depends on it;
- two jobs beside each other, a LiveTable, ``to_pandas``: they are not part of a program's results;
- programs that are refused while they are built.
"""
