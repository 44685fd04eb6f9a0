cimport holdfast.state.packed as packed

cdef class CurrentRow:
    cdef public object row
    cdef public object key

cdef class Handle:
    cdef readonly CurrentRow _space
    cdef readonly Py_ssize_t _i

cdef class ValueHandle(Handle):
    cdef public Py_ssize_t reads

cdef class ListHandle(Handle):
    pass

cdef class PackedListHandle(ListHandle):
    cdef object _fit
    cdef object _kind
    cdef bint _whole

cdef class MapHandle(Handle):
    pass

cdef class ReducingHandle(Handle):
    cdef public object _reduce

cdef class AggregatingHandle(Handle):
    cdef public object _aggregate
