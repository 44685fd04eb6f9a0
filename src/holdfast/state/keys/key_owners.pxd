cimport cython

cdef unsigned long long _GOLDEN
cdef unsigned long long _MASK

@cython.locals(owners=list, whole="long long", mixed="unsigned long long")
cpdef integer_owners(list keys, unsigned long long max_parallelism, unsigned long long parallelism)

@cython.locals(owners=list, hashed="unsigned long long")
cpdef string_owners(list keys, object digest, unsigned long long max_parallelism, unsigned long long parallelism)

cpdef bint all_plain_tuples(list keys) except -1

@cython.locals(owners=list, hashed="unsigned long long")
cpdef list owners_of_digests(object digests, unsigned long long max_parallelism, unsigned long long parallelism)
