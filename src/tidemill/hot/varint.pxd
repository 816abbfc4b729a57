cimport cython

ctypedef unsigned long long u64

cdef long long _INT64_MIN
cdef long long _INT64_MAX

@cython.locals(raw=u64, byte=u64, shift=int, position=Py_ssize_t, value=cython.longlong)
cpdef tuple read(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, int bits)

@cython.locals(raw=u64, count=int)
cpdef int size(long long value) except -1

@cython.locals(raw=u64)
cpdef Py_ssize_t write(bytearray out, Py_ssize_t position, long long value) except -1
