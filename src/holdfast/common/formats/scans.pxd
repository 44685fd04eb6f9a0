cimport cython

@cython.locals(whole="long long", sign="long long")
cpdef bint are_timestamps(list values) except -1

@cython.locals(found="long long", stamp="long long")
cpdef long long highest(list timestamps) except? -1

cpdef bint has_none(list values) except -1
