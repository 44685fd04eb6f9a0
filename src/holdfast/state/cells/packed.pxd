# What compiled modules call instead of the functions of these names in packed.py; tests hold them equal.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef inline bytes pack_numbers(list elements, bint whole):
    cdef Py_ssize_t count = len(elements), i
    if not 0 < count <= 64:
        return None
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef double *floats = <double *> PyBytes_AS_STRING(packed)
    cdef long long *integers = <long long *> floats
    cdef int overflow = 0
    for i in range(count):
        element = elements[i]
        if whole:
            if not PyLong_CheckExact(element):
                return None
            integers[i] = PyLong_AsLongLongAndOverflow(element, &overflow)
            if overflow:
                return None
        elif PyFloat_CheckExact(element):
            floats[i] = PyFloat_AS_DOUBLE(element)
        else:
            return None
    return packed

cdef inline list unpack_numbers(bytes packed, bint whole):
    cdef Py_ssize_t count = PyBytes_GET_SIZE(packed) >> 3, i
    cdef double *floats = <double *> PyBytes_AS_STRING(packed)
    cdef long long *integers = <long long *> floats
    if whole:
        return [integers[i] for i in range(count)]
    return [floats[i] for i in range(count)]
