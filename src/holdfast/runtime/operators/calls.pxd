cimport cython
from holdfast.state.cells.handles cimport CurrentRow as _CurrentRow

# From Python 3.12 on, Cython looks the names of a module up at each use, but not these.
cdef tuple CHANGED

@cython.locals(values=list, stamps=list)
cpdef call_each(object function, object context, object elements, _CurrentRow current, object out, object own, object fail)

cpdef take_each(object function, object elements, _CurrentRow current, object out, object take, object iterable, object fail)

@cython.locals(reduced=list)
cpdef reduce_each(
    object reduce, object elements, _CurrentRow current, Py_ssize_t cell, object fit, object copied, object fail
)
