cimport cython

ctypedef long long i64

@cython.locals(kept=Py_ssize_t, row=Py_ssize_t, field=Py_ssize_t, offset=i64, header_count=i64)
cdef Py_ssize_t _keep(
    i64[::1] table, Py_ssize_t count, i64 base_offset, i64 low, i64 high
) except -1

@cython.locals(row=Py_ssize_t, delta=i64, fits=bint)
cdef object _check_timestamps(i64[::1] table, Py_ssize_t count, i64 base_timestamp)

@cython.locals(row=Py_ssize_t, total=i64)
cdef i64 _sum_sizes(i64[::1] table, Py_ssize_t count, Py_ssize_t field) except -1

@cython.locals(first=Py_ssize_t, row=Py_ssize_t, cells=cython.longlong[::1])
cdef object _append_sums(
    object column, i64[::1] table, Py_ssize_t count, Py_ssize_t field, i64 base, i64 factor
)

# `buf` is const: what was fetched or mapped is often read-only.
@cython.locals(at=Py_ssize_t, row=Py_ssize_t, start=Py_ssize_t, size=i64, nulls=Py_ssize_t,
               data=cython.uchar[::1], ends=cython.int[::1],
               validity=cython.uchar[::1])
cdef object _append_binary(
    object column, Py_ssize_t first, const unsigned char[::1] buf, i64[::1] table,
    Py_ssize_t count, Py_ssize_t field
)
