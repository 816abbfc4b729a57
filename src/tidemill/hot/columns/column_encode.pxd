cimport cython

from tidemill.hot.columns.arrow_cells cimport Cells
# In C too, the functions that the .py imports by these names.
from tidemill.hot.varint cimport size as varint_bytes, write as write_varint

ctypedef long long i64

cdef i64 _TIMESTAMP_MAX
cdef i64 _RECORDS_MAX

@cython.final
cdef class RowColumns:
    cdef readonly const i64[::1] timestamps
    cdef readonly Cells values
    cdef readonly Cells keys
    cdef readonly Cells headers
    cdef readonly Cells header_names
    cdef readonly Cells header_values

@cython.final
cdef class RowBatch:
    cdef readonly bytearray buffer
    cdef public i64 record_count
    cdef public i64 base_timestamp
    cdef public i64 max_timestamp

@cython.locals(base=i64, end=Py_ssize_t)
cpdef Py_ssize_t append(
    RowBatch batch, RowColumns columns, const int[::1] order, Py_ssize_t start, Py_ssize_t stop,
    i64 batch_bytes_max, i64 record_bytes_max
) except -1

@cython.locals(total=i64, at=Py_ssize_t, row=Py_ssize_t, size=i64, whole=i64)
cdef Py_ssize_t _measure(
    RowColumns columns, const int[::1] order, Py_ssize_t start, Py_ssize_t stop, i64 count,
    i64 base, i64 filled_bytes, i64 batch_bytes_max, i64 record_bytes_max, i64[::1] sizes
) except -1

@cython.locals(timestamp=i64)
cdef i64 _timestamp(RowColumns columns, Py_ssize_t row) except? -1

@cython.locals(size=i64, count=Py_ssize_t, first=Py_ssize_t, child=Py_ssize_t)
cdef i64 _record_bytes(
    RowColumns columns, Py_ssize_t row, i64 timestamp_delta, i64 offset_delta
) except? -1

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _field_bytes(Cells cells, Py_ssize_t row) except -1

@cython.locals(position=Py_ssize_t, total=i64, at=Py_ssize_t, row=Py_ssize_t, timestamp=i64,
               out=cython.uchar[::1])
cdef object _write(
    RowBatch batch, RowColumns columns, const int[::1] order, Py_ssize_t start, Py_ssize_t end,
    i64[::1] sizes
)

@cython.locals(count=Py_ssize_t, first=Py_ssize_t, child=Py_ssize_t)
cdef Py_ssize_t _put_headers(
    bytearray buffer, unsigned char[::1] out, Py_ssize_t position, RowColumns columns,
    Py_ssize_t row
) except -1

@cython.locals(size=Py_ssize_t, start=Py_ssize_t)
cdef Py_ssize_t _put_field(
    bytearray buffer, unsigned char[::1] out, Py_ssize_t position, Cells cells, Py_ssize_t row
) except -1
