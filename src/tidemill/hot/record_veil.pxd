cimport cython

from tidemill.hot.record_walk cimport index, read_headers

ctypedef long long i64

@cython.locals(rows=cython.longlong[::1], position=Py_ssize_t, seen=i64, last_delta=i64,
               highest=i64, record=i64, at=Py_ssize_t,
               is_seen=bint)
cpdef tuple judge(
    bytes data, Py_ssize_t start, Py_ssize_t end, i64 first, i64 count, i64 delta_min,
    bytearray verdicts
)

@cython.locals(name=bytes)
cdef bint _is_hidden(bytes data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count) except -1
