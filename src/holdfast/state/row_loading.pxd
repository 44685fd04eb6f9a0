cimport cython

@cython.locals(loaded=list)
cpdef list rows_of(dict rows, object keys, list fresh)
