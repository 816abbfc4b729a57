cimport cython

ctypedef long long i64
ctypedef unsigned long long u64

cdef u64 _MASK
cdef u64 _INIT_0
cdef u64 _INIT_1
cdef u64 _INIT_2
cdef u64 _INIT_3

# Attributes are readable from Python too: a module that runs uncompiled uses this class.
@cython.final
cdef class KeyOffsets:
    cdef readonly u64[::1] slots
    cdef readonly Py_ssize_t slot_count
    cdef readonly Py_ssize_t key_count
    cdef readonly Py_ssize_t key_count_max
    cdef readonly u64 secret_low
    cdef readonly u64 secret_high
    cdef readonly u64 low
    cdef readonly u64 high

    @cython.locals(at=Py_ssize_t, newer=u64)
    cpdef bint put(
        self, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t size, i64 offset
    ) except -1

    @cython.locals(at=Py_ssize_t)
    cpdef Py_ssize_t newest(
        self, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t size
    ) except? -1

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _find(
        self, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t size
    ) except -1

    @cython.locals(v0=u64, v1=u64, v2=u64, v3=u64, word=u64, byte=u64, words=Py_ssize_t,
                   step=Py_ssize_t, rounds=int, count=int, at=int, _=int)
    cpdef int digest(
        self, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t size
    ) except -1
