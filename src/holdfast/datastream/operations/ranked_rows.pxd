cimport cython

# From Python 3.12 on, Cython looks the names of a module up at each use, but not these.
cdef object Row
cdef object RowSlots
cdef object _INSERT
cdef object _DELETE
cdef object _BEFORE
cdef object _AFTER
cdef tuple _NONE

cpdef object check_order(object order)

@cython.locals(best=list, rows=list, at=Py_ssize_t)
cpdef object enter(
    object state, object order, object element, Py_ssize_t most, bint descending, bint ranked, object row_of
)

@cython.locals(at=Py_ssize_t)
cpdef Py_ssize_t rank_of(list best, object order, bint descending) except -1

@cython.locals(rows=list, last=Py_ssize_t, i=Py_ssize_t)
cpdef list shifted_rows(list best, Py_ssize_t at, Py_ssize_t most, object row_of)

cdef object _ranked_row(Py_ssize_t i, tuple ranked, object kind, object row_of)

cdef object _row(tuple ranked, object kind, object row_of)

cdef object _made(list values, object kind)
