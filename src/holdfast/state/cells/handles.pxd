cimport holdfast.state.cells.packed as packed

# From Python 3.12 on, Cython looks the names of a module up at each use, but not these.
cdef tuple CHANGED
cdef object LARGE
cdef object LargeList
cdef object LargeMap
cdef object LargeValue
cdef object content_type
cdef object fit_of
cdef object islice

cdef class CurrentRow:
    cdef public object row
    cdef public object key

cdef class Handle:
    cdef readonly CurrentRow _space
    cdef readonly Py_ssize_t _i
    cdef readonly object _kind
    cdef readonly object _fit
    cdef readonly object _key_kind
    cdef readonly object _key_fit
    cdef readonly object _find

cdef class ValueHandle(Handle):
    cdef public Py_ssize_t added
    cdef public Py_ssize_t reads
    cdef public Py_ssize_t replaced

cdef class ListHandle(Handle):
    pass

cdef class PackedListHandle(ListHandle):
    cdef bint _whole

cdef class MapHandle(Handle):
    pass

cdef class ReducingHandle(Handle):
    cdef public object _reduce

cdef class AggregatingHandle(Handle):
    cdef public object _aggregate
