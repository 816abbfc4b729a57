cimport cython

from tidemill.hot cimport byte_copy
from tidemill.hot.record_walk cimport header_at, index
from tidemill.hot.varint cimport size as varint_bytes, write as write_varint

ctypedef long long i64

@cython.locals(rows=cython.longlong[::1], position=Py_ssize_t, done=Py_ssize_t, chunk=Py_ssize_t,
               matched=Py_ssize_t, highest=i64, row=Py_ssize_t, column=Py_ssize_t)
cpdef i64 find_records(
    bytes data, Py_ssize_t count, i64[::1] wanted, i64[::1] found
) except? -1

@cython.locals(rows=cython.longlong[::1], row=Py_ssize_t, buf="const unsigned char[::1]",
               target="unsigned char[::1]", key_bytes=i64, value_bytes=i64,
               spans=cython.longlong[::1], count=Py_ssize_t, size=i64, header=Py_ssize_t,
               span=Py_ssize_t)
cpdef Py_ssize_t put_record(
    bytearray out, Py_ssize_t out_at, bytes data, i64[::1] found, Py_ssize_t place,
    i64 offset_delta, bytes added, Py_ssize_t added_count, frozenset dropped
) except -1

@cython.locals(kept=Py_ssize_t, start=Py_ssize_t, size=i64, name_at=Py_ssize_t, name_bytes=i64,
               name_end=Py_ssize_t, _=Py_ssize_t)
cdef Py_ssize_t _keep_headers(
    bytes data, const unsigned char[::1] buf, Py_ssize_t position, Py_ssize_t end,
    Py_ssize_t count, frozenset dropped, i64[::1] spans
) except -1

cdef Py_ssize_t _put_field(
    bytearray out, unsigned char[::1] target, Py_ssize_t out_at, const unsigned char[::1] buf,
    Py_ssize_t at, i64 size
) except -1
