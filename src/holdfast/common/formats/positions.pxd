cimport cython

@cython.locals(parts=dict, part=list, each=list, to=list, position=Py_ssize_t, place=Py_ssize_t, width=Py_ssize_t)
cpdef dict part_by(list targets, list lists)
