cimport cython

from tidemill.hot.record_walk cimport header_at, index

ctypedef long long i64

cdef i64 _DIGITS_MAX, _ID_BYTES_MAX, _DUE_NEVER
cdef bytes _PREFIX, _DELAY_NAME, _DATE_NAME, _ID_NAME, _TICKET_NAME, _NEXT_NAME, _DUE_NAME
cdef bytes _SENT_NAME, _TAGS_NAME, _PRIORITY_NAME, _ROUTING_NAME

@cython.locals(position=Py_ssize_t, others=Py_ssize_t, record_at=i64, record_end=i64,
               row=Py_ssize_t, kind=i64)
cpdef (Py_ssize_t, Py_ssize_t) scan_requests(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first,
    Py_ssize_t count, i64[::1] table
) except *

@cython.locals(position=Py_ssize_t, record_at=i64, record_end=i64, row=Py_ssize_t)
cpdef Py_ssize_t scan_tickets(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first,
    Py_ssize_t count, i64[::1] table
) except -1

@cython.locals(table=cython.longlong[::1], position=Py_ssize_t, done=Py_ssize_t,
               found=Py_ssize_t, chunk=Py_ssize_t, others=Py_ssize_t)
cpdef Py_ssize_t count_others(
    const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count,
    Py_ssize_t limit
) except -1

@cython.locals(room=Py_ssize_t, kind=i64, taken=Py_ssize_t, size_bytes=i64, previous=i64,
               rising=bint, at=Py_ssize_t, found=i64, due=i64)
cpdef (Py_ssize_t, Py_ssize_t, i64, i64, bint) take_stretch(
    i64[::1] table, Py_ssize_t row, Py_ssize_t count, i64 base_offset, i64 stamp_ms,
    i64[::1] columns
) except *

@cython.locals(position=Py_ssize_t, end=Py_ssize_t, name_bytes=i64, name_at=Py_ssize_t,
               value_bytes=i64, value_at=Py_ssize_t, kind=i64, named=i64, number=i64, _=i64)
cdef i64 _judge_request(
    const unsigned char[::1] buf, i64[::1] table, Py_ssize_t row
) except -1

@cython.locals(position=Py_ssize_t, end=Py_ssize_t, name_bytes=i64, name_at=Py_ssize_t,
               value_bytes=i64, value_at=Py_ssize_t, kind=i64, number=i64, _=i64)
cdef i64 _judge_ticket(const unsigned char[::1] buf, i64[::1] table, Py_ssize_t row) except -1

cdef bint _is_data(const unsigned char[::1] buf, Py_ssize_t at, i64 size) except -1

@cython.locals(number=i64, place=Py_ssize_t, digit=i64)
cdef i64 _digits(const unsigned char[::1] buf, Py_ssize_t at, i64 size) except? -2

@cython.locals(place=Py_ssize_t)
cdef bint _is_text(
    const unsigned char[::1] buf, Py_ssize_t at, bytes text, Py_ssize_t size
) except -1

@cython.locals(highest=i64, at=Py_ssize_t)
cpdef i64 highest_number(i64[::1] table, Py_ssize_t count, i64 kind) except? -1

@cython.locals(place=Py_ssize_t)
cpdef bint is_rising(i64[::1] column) except -1
