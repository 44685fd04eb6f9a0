cimport cython

@cython.locals(value=tuple, fields=list)
cdef list _split(list values, Py_ssize_t width)

@cython.locals(record=dict, field=list, fields=list, position=Py_ssize_t, width=Py_ssize_t)
cdef list _split_named(list values, list names)

@cython.locals(pattern=dict, record=dict, row=tuple, position=Py_ssize_t, values=list)
cdef list _named(list names, list columns)

@cython.locals(text=bytes)
cdef tuple _packed(list column)

@cython.locals(found=Py_ssize_t, byte="unsigned char")
cdef Py_ssize_t _nuls(bytes text)

cdef bint _plain(list column)

cdef bint _uniform(list column, object kind)

@cython.locals(position=Py_ssize_t)
cdef bint _same(list a, list b)
