cimport cython
from holdfast.state.handles cimport CurrentRow as _CurrentRow

@cython.locals(values=list, stamps=list)
cpdef call_each(object function, object context, object elements, _CurrentRow current, object out, object own, object fail)
