cimport cython

cdef int _DIRTY
cdef int _PERSISTED
cdef int _TOUCHED
cdef int _UNFLUSHED

@cython.locals(loaded=list, row=list, flags=int, at=Py_ssize_t)
cpdef list rows_of(dict rows, object keys, list fresh, list touched_keys, list touched_rows)

@cython.locals(before=list, row=list, flags=int, at=Py_ssize_t)
cpdef part_rows(
    list keys, list rows, Py_ssize_t first, Py_ssize_t end, bint several, list changed, list kept, list deleted, list idle
)
