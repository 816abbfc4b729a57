cimport cython

ctypedef unsigned long long u64

cdef u64 _SEED
cdef u64 _MASK

# 64-bit words with explicit masks: the arithmetic is the same in C and in Python.
@cython.locals(state=u64, word=u64, position=Py_ssize_t, tail=Py_ssize_t)
cpdef u64 murmur2_range(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end) except? 0

cpdef u64 murmur2(const unsigned char[::1] data) except? 0

cpdef long long partition_for(const unsigned char[::1] key, long long partition_count) except -1
