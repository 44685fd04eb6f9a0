cimport cython

cdef Py_ssize_t _OF_A_RESULT
cdef Py_ssize_t _OF_A_PART

@cython.locals(mapped=list, position="Py_ssize_t")
cpdef own_each(list mapped, object values, object copied)

cdef bint _alone(object result)
