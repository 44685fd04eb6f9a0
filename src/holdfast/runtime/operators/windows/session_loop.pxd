cimport cython

# From Python 3.12 on, Cython looks the names of a module up at each use, but not these.
cdef int DIRTY

cdef class OpenSession:
    cdef readonly object key
    cdef readonly list set_row
    cdef readonly list row
    cdef readonly object state
    cdef readonly object span
    cdef readonly bint known
    cdef readonly long long start
    cdef readonly long long end
    cdef readonly long long low
    cdef readonly long long high

@cython.locals(
    at=Py_ssize_t, set_row=list, start="long long", end="long long", low="long long", high="long long", first="long long",
    last="long long", session=OpenSession, windows=dict
)
cpdef Py_ssize_t extend_each(
    Py_ssize_t begin, list keys, list values, list stamps, list ends, list sets, Py_ssize_t cell, long long fired,
    long long over, object load_one, object load_new, dict opened, list rows, list added
)
