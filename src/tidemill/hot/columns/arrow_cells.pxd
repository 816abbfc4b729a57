cimport cython

# Attributes are readable from Python too: a module that runs uncompiled uses this class.
@cython.final
cdef class Cells:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t first
    cdef readonly Py_ssize_t extent
    cdef readonly bint has_validity
    cdef readonly const int[::1] offsets
    cdef readonly const unsigned char[::1] data
    cdef readonly const unsigned char[::1] validity

    cpdef Py_ssize_t start(self, Py_ssize_t row) except? -1

    @cython.locals(at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t size(self, Py_ssize_t row) except -2
