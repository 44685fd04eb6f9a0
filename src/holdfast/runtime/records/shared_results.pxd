cimport cython

cdef Py_ssize_t _OF_A_RESULT
cdef Py_ssize_t _OF_A_PART
cdef Py_ssize_t _OF_BOTH_LISTS
cdef Py_ssize_t _UNKNOWN

@cython.locals(least="Py_ssize_t", held="Py_ssize_t")
cpdef Py_ssize_t held_before(list values)

@cython.locals(mapped=list, position="Py_ssize_t", most="Py_ssize_t")
cpdef own_each(list mapped, list values, Py_ssize_t held, object copied)

cdef bint _alone(object result)
