cimport cython

from tidemill.hot cimport byte_copy
from tidemill.hot.record_walk cimport header_at, index

ctypedef long long i64

@cython.locals(rows=cython.longlong[::1], target="unsigned char[::1]",
               chosen="unsigned char[::1]", position=Py_ssize_t, highest=i64, copied=i64,
               record_at=Py_ssize_t, record_end=Py_ssize_t, record=i64, size=Py_ssize_t, delta=i64)
cpdef tuple pick(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, i64 first, i64 count,
    bytearray verdicts, bytearray out, Py_ssize_t out_at
)

@cython.locals(rows=cython.longlong[::1], position=Py_ssize_t, seen=i64, last_delta=i64,
               highest=i64, record=i64, at=Py_ssize_t,
               is_seen=bint)
cpdef tuple judge(
    bytes data, Py_ssize_t start, Py_ssize_t end, i64 first, i64 count, i64 delta_min,
    bytearray verdicts
)

@cython.locals(buf="const unsigned char[::1]", position=Py_ssize_t, name_at=Py_ssize_t,
               name_bytes=i64, name_end=Py_ssize_t, size=i64, _=Py_ssize_t)
cdef bint _is_hidden(bytes data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count) except -1
