cimport cython

@cython.locals(value=tuple, fields=list)
cdef list _split(list values, Py_ssize_t width)

cdef bint _uniform(list column, object kind)

@cython.locals(position=Py_ssize_t)
cdef bint _same(list a, list b)
