cimport cython
from holdfast.state.cells.handles cimport CurrentRow as _CurrentRow

# From Python 3.12 on, Cython looks the names of a module up at each use, but not these.
cdef tuple CHANGED

@cython.locals(
    parts=dict, its_keys=list, its_values=list, its_times=list, number="long long", at="long long"
)
cpdef list cut_each(object keys, object values, object times, long long first, long long size)

@cython.locals(row=list)
cpdef list filled_rows(dict rows, Py_ssize_t cell)

@cython.locals(row=list)
cpdef accumulate_each(object create, object accumulate, Py_ssize_t cell, object fit, list rows, object values)

@cython.locals(row=list)
cpdef reduce_rows(object reduce, Py_ssize_t cell, object fit, list rows, object values)

@cython.locals(values=list, stamps=list, row=list)
cpdef call_windows(
    object function, object second, list rows, Py_ssize_t cell, bint kept, object result, object large, object context,
    _CurrentRow current, object out, object last, object fail
)
