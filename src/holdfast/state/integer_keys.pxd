cimport cython

cdef unsigned long long _GOLDEN
cdef unsigned long long _MASK

@cython.locals(owners=list, whole="long long", mixed="unsigned long long")
cpdef integer_owners(list keys, unsigned long long max_parallelism, unsigned long long parallelism)
