cimport cython

@cython.locals(n=Py_ssize_t, forms=list, held=tuple, elements=list)
cdef bint _has_form(value, form) except -1
