cdef class Counter:
    cdef public object _count
    cdef public object _read

cdef class Meter:
    cdef public object _span
    cdef public object _count
    cdef public object _read
