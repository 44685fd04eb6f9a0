"""Programs drawn at random from all public operations, run in any way, judged by the plain way and by models.

``make sensitivity`` shows that they find faults: `reverted` has those that were mended, to put back one at a time. Found
after so many programs, of all operations or of those that show the fault (own):

- event time of operators is not restored: 75;
- one event time for a chain: 39 own; own windows have no deadline: 19 own;
- windows of another form, or of another size, are opened as the program's: 10 and 19 own;
- results of an outer join are late: 4 own; keys of a declared type come back as others: 8 own;
- joins or aggregates of tables share their rows with functions: 4 own; panes are given to functions: 39 own;
- contents of windows with triggers are given to functions: 108 own; a collection of one object: 247 own;
- a session that is over takes a late element: 10 own; later input does not hold event time back: 66 own.

Not found in about a minute: sliding windows swap two elements (100 own), broadcast state shares its values (400 own). The
others have not been tried for long enough to say.

What no program can show here is tested elsewhere:

- where splits are (a rescaling deals them anew): the results are the same in any subtask;
- silence that makes a split idle: it takes real time, and what is late then depends on it. Here a split is never silent for
  as long as its idleness says, by the monotonic clock; the wall clock is set further than that;
- how long processing time stands still: what is judged is that timers and windows of processing time give each element once;
- two jobs beside each other, the second job of a program, a LiveTable, ``to_pandas``, queries of state: they are not part of
  a program's results;
- what a rescaling answers, and when it is done; sockets, which a rescaling must keep: a program here has no client;
- a pattern that changed: which of its partial matches are refused depends on the cut (``engine/test_changed_operators.py``);
- changes that are refused by name, such as another kind of join (``engine/test_changed_operators.py``);
- values that ``==`` takes for the same (``table/test_tables.py``): the drawn ones differ or are the same;
- programs that are refused while they are built, such as those without timestamps or with two columns of one name;
- names and signatures that are to be PyFlink's.
"""
