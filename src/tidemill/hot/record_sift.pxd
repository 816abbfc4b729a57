cimport cython

from tidemill.hot cimport byte_copy
from tidemill.hot.key_offsets cimport KeyOffsets
from tidemill.hot.record_walk cimport index
# In C too, the functions that the .py imports by these names.
from tidemill.hot.varint cimport size as varint_bytes, write as write_varint

ctypedef long long i64
ctypedef unsigned long long u64

cdef i64 _CODEC
cdef i64 _TRANSACTIONAL
cdef i64 _CONTROL
cdef i64 _MARKS
cdef i64 _HAS_HORIZON
cdef Py_ssize_t _CHUNK_RECORDS
cdef u64 _SIGN_32
cdef u64 _SIGN_64
cdef i64 _INT64_MIN
cdef i64 _INT64_MAX
cdef int _GOES
cdef int _STAYS
cdef int _STAYS_AS_TOMBSTONE

@cython.final
cdef class Sift:
    cdef readonly KeyOffsets keys
    cdef readonly i64 noted_from
    cdef readonly i64 clean_end
    cdef readonly i64 now_ms
    cdef public object kept
    cdef public i64 next_offset
    cdef public i64 records_dropped
    cdef public i64 copied_offset
    cdef public i64 copied_timestamp
    cdef i64[::1] table

@cython.locals(buf="const unsigned char[::1]", position=Py_ssize_t, size=i64, base_offset=i64,
               attributes=i64, full_at=i64)
cpdef tuple note_batches(
    KeyOffsets keys, object view, Py_ssize_t start, Py_ssize_t end, i64 next_offset,
    i64 from_offset, object checksum
)

@cython.locals(rows=cython.longlong[::1], position=Py_ssize_t, done=i64, chunk=i64,
               row=Py_ssize_t, offset=i64)
cpdef i64 note_records(
    KeyOffsets keys, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, i64 count,
    i64 base_offset, i64 from_offset
) except? -1

@cython.locals(buf="const unsigned char[::1]", target="unsigned char[::1]", position=Py_ssize_t,
               size=i64, base_offset=i64, attributes=i64, count=i64, stays=bint,
               has_horizon=bint, is_expired=bint, needs_horizon=bint, stayed=i64, marks=i64,
               timestamp=i64)
cpdef tuple sift_batches(
    Sift sift, object view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t stop, bytearray out,
    Py_ssize_t out_at, object checksum
)

@cython.locals(target="unsigned char[::1]", rows=cython.longlong[::1], stayed=i64, marks=i64,
               highest=i64, out_at=Py_ssize_t, position=Py_ssize_t, done=i64, chunk=i64,
               row=Py_ssize_t, record_at=Py_ssize_t, record_end=Py_ssize_t, fate=int, delta=i64)
cpdef tuple sift_records(
    Sift sift, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, i64 count,
    i64 base_offset, bint is_expired, i64 timestamp_shift, bytearray out
)

@cython.locals(target="unsigned char[::1]", attributes_at=Py_ssize_t, rest_at=Py_ssize_t,
               size=i64)
cdef Py_ssize_t _put_shifted(
    bytearray out, Py_ssize_t out_at, const unsigned char[::1] buf, Py_ssize_t record_at,
    Py_ssize_t record_end, i64 delta
) except -1

cdef i64 _shifted(i64 delta, i64 shift) except? -1

cdef Py_ssize_t _after_varint(const unsigned char[::1] buf, Py_ssize_t position) except -1

@cython.locals(rows=cython.longlong[::1], stayed=i64, marks=i64, position=Py_ssize_t, done=i64,
               chunk=i64, row=Py_ssize_t, fate=int)
cdef (i64, i64) _count(
    Sift sift, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, i64 count,
    i64 base_offset, bint is_expired
) except *

@cython.locals(offset=i64, key_bytes=i64)
cdef int _fate(
    Sift sift, const unsigned char[::1] buf, i64[::1] rows, Py_ssize_t row, i64 base_offset,
    bint is_expired
) except -1

@cython.locals(base_offset=i64)
cdef i64 _check_batch(
    const unsigned char[::1] buf, Py_ssize_t position, i64 size, i64 next_offset
) except -1

@cython.locals(raw=u64)
cdef i64 _int32(const unsigned char[::1] buf, Py_ssize_t position) except? -1

@cython.locals(raw=u64)
cdef i64 _int64(const unsigned char[::1] buf, Py_ssize_t position) except? -1

@cython.locals(raw=u64, byte=u64, at=Py_ssize_t)
cdef u64 _unsigned(const unsigned char[::1] buf, Py_ssize_t position, int size) except? 0
