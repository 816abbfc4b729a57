cimport cython

ctypedef long long i64
ctypedef unsigned long long u64

cdef bytes _OWN_PREFIX

@cython.locals(position=Py_ssize_t, lowest=i64, highest=i64, null_keys=Py_ssize_t,
               own_headers=Py_ssize_t)
cpdef tuple walk(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count)

cpdef Py_ssize_t index(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first,
    Py_ssize_t count, i64[::1] table
) except -1

# Base and target stay Python integers: their difference may exceed 64 bits.
@cython.locals(table=cython.longlong[::1], position=Py_ssize_t, done=Py_ssize_t, chunk=Py_ssize_t,
               row=Py_ssize_t, target_delta=i64)
cpdef object find_time(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count,
    object base_timestamp, object target_ms
)

@cython.locals(table=cython.longlong[::1], position=Py_ssize_t, done=Py_ssize_t, chunk=Py_ssize_t,
               row=Py_ssize_t, found=list)
cpdef list keyless(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count,
    Py_ssize_t limit
)

@cython.locals(table=cython.longlong[::1], position=Py_ssize_t, done=Py_ssize_t, chunk=Py_ssize_t,
               row=Py_ssize_t, found=list, delta=i64, low_delta=i64, high_delta=i64,
               unset_delta=i64)
cpdef list timestamps_outside(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count,
    object base_timestamp, object low, object high, Py_ssize_t limit
)

@cython.locals(table=cython.longlong[::1], row=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t,
               stop=Py_ssize_t, out=list, headers=list)
cpdef tuple rows(bytes data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first, Py_ssize_t count)

@cython.locals(headers=list, buf="const unsigned char[::1]", position=Py_ssize_t, size=i64,
               name_at=Py_ssize_t, name_bytes=i64, key=bytes, _=Py_ssize_t)
cpdef list read_headers(bytes data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count)

@cython.locals(name_at=Py_ssize_t, name_bytes=i64, value_at=Py_ssize_t, value_bytes=i64)
cpdef (Py_ssize_t, i64, Py_ssize_t, i64) header_at(
    const unsigned char[::1] buf, Py_ssize_t position, Py_ssize_t end
) except *

cdef int _check_range(
    Py_ssize_t length, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count
) except -1

@cython.locals(lowest=i64, highest=i64, null_keys=Py_ssize_t, own_headers=Py_ssize_t,
               previous=i64, row=Py_ssize_t,
               record=Py_ssize_t, stop=Py_ssize_t, size=i64, timestamp_delta=i64,
               offset_delta=i64, key_at=Py_ssize_t, key_bytes=i64, value_at=Py_ssize_t,
               value_bytes=i64, header_count=i64, headers_at=Py_ssize_t, _=i64)
cdef (Py_ssize_t, i64, i64, Py_ssize_t, Py_ssize_t) _scan(
    const unsigned char[::1] buf, Py_ssize_t position, Py_ssize_t end, Py_ssize_t first,
    Py_ssize_t count, bint dense, i64[::1] table
) except *

@cython.locals(place=Py_ssize_t)
cdef Py_ssize_t _is_own_name(const unsigned char[::1] buf, Py_ssize_t at) except -1

cdef (i64, Py_ssize_t) _varint(
    const unsigned char[::1] buf, Py_ssize_t position, Py_ssize_t end, int bits
) noexcept

@cython.locals(raw=u64, byte=u64, shift=int)
cdef (i64, Py_ssize_t) _long_varint(
    const unsigned char[::1] buf, Py_ssize_t position, Py_ssize_t end, int bits
) noexcept
