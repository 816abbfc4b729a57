cimport cython
from tidemill.hot cimport byte_copy
from tidemill.hot.record_walk cimport header_at

ctypedef long long i64

cdef i64 _TIMESTAMP_MS_MAX

# `buf` is const: what was fetched or mapped is often read-only.
@cython.locals(kept=Py_ssize_t, first=Py_ssize_t, rows=Py_ssize_t, table=cython.longlong[::1])
cdef object _append_chunk(
    object columns, const unsigned char[::1] buf, Py_ssize_t chunk, i64 base_offset, i64 base,
    i64 factor, i64 low, i64 high
)

@cython.locals(rows=Py_ssize_t, found=Py_ssize_t)
cdef object _reserve(
    object columns, const unsigned char[::1] buf, i64[::1] table, Py_ssize_t kept
)

@cython.locals(kept=Py_ssize_t, row=Py_ssize_t, field=Py_ssize_t, offset=i64)
cdef Py_ssize_t _keep(
    i64[::1] table, Py_ssize_t count, i64 base_offset, i64 low, i64 high
) except -1

@cython.locals(row=Py_ssize_t)
cdef int _check_timestamps(i64[::1] table, Py_ssize_t count) except -1

@cython.locals(row=Py_ssize_t, size=i64, total=i64)
cdef i64 _sum_sizes(i64[::1] table, Py_ssize_t count, Py_ssize_t stride, Py_ssize_t field) except -1

@cython.locals(row=Py_ssize_t, cells=cython.longlong[::1])
cdef int _put_sums(
    object column, Py_ssize_t first, i64[::1] table, Py_ssize_t count, Py_ssize_t field, i64 base,
    i64 factor, i64 unit
) except -1

@cython.locals(at=Py_ssize_t, row=Py_ssize_t, size=i64, nulls=Py_ssize_t,
               data=cython.uchar[::1], ends=cython.int[::1], validity=cython.uchar[::1])
cdef int _put_binary(
    object column, Py_ssize_t first, const unsigned char[::1] buf, i64[::1] table,
    Py_ssize_t count, Py_ssize_t stride, Py_ssize_t field
) except -1

@cython.locals(row=Py_ssize_t, total=i64)
cdef Py_ssize_t _count_headers(i64[::1] table, Py_ssize_t count) except -1

@cython.locals(entry=Py_ssize_t, row=Py_ssize_t, position=Py_ssize_t, end=Py_ssize_t,
               name_at=Py_ssize_t, name_bytes=i64, size=i64, _=i64)
cdef int _index_headers(
    const unsigned char[::1] buf, i64[::1] table, Py_ssize_t count, i64[::1] entries
) except -1

cdef object _put_headers(
    object column, Py_ssize_t first, const unsigned char[::1] buf, i64[::1] table, Py_ssize_t count
)

@cython.locals(row=Py_ssize_t, size=i64, nulls=Py_ssize_t, ends=cython.int[::1],
               validity=cython.uchar[::1])
cdef Py_ssize_t _put_lists(
    object offsets, object validity_bits, Py_ssize_t first, i64[::1] table, Py_ssize_t count,
    Py_ssize_t entry
) except -1
