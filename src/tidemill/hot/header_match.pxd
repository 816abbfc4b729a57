cimport cython

from tidemill.hot.record_walk cimport header_at, index

ctypedef long long i64
ctypedef unsigned long long u64

cdef i64 _PUSH_TEXT
cdef i64 _PUSH_LONG
cdef i64 _PUSH_REAL
cdef i64 _PUSH_TRUTH
cdef i64 _LOAD_TEXT
cdef i64 _LOAD_NUMBER
cdef i64 _LOAD_NUMBER_OR
cdef i64 _LOAD_TRUTH
cdef i64 _LOAD_KEY
cdef i64 _LOAD_TIMESTAMP
cdef i64 _LOAD_PARTITION
cdef i64 _ADD
cdef i64 _SUBTRACT
cdef i64 _MULTIPLY
cdef i64 _DIVIDE
cdef i64 _NEGATE
cdef i64 _COMPARE_TEXTS
cdef i64 _COMPARE_NUMBERS
cdef i64 _COMPARE_TRUTHS
cdef i64 _LIKE
cdef i64 _TAG_IS
cdef i64 _TAG_LIKE
cdef i64 _ROUTES
cdef i64 _IS_NULL
cdef i64 _NOT
cdef i64 _AND
cdef i64 _OR
cdef i64 _JUMP_IF_FALSE
cdef i64 _JUMP_IF_TRUE
cdef i64 _NULL
cdef i64 _LONG
cdef i64 _REAL
cdef i64 _TEXT
cdef i64 _POOL_TEXT
cdef i64 _TRUTH
cdef i64 _LESS
cdef i64 _EQUAL
cdef i64 _GREATER
cdef i64 _ABSENT
cdef i64 _EXACT_DIGITS_MAX
cdef i64 _NUMBER_BYTES_MAX
cdef i64 _INT64_MAX
cdef i64 _INT64_MIN
cdef i64 _TEXT_BYTES_MAX
cdef i64 _ROUTE_BYTES_MAX
cdef i64 _NET_BYTES
cdef i64 _BUCKETS
cdef i64 _NO_SLOT
cdef i64 _COMMA
cdef i64 _DOT
cdef i64 _SPACE
cdef double _REAL_MAX

@cython.final
cdef class Program:
    cdef i64[::1] code
    cdef const unsigned char[::1] pool
    cdef double[::1] reals
    cdef u64[::1] nets
    cdef i64[::1] routes
    cdef i64[::1] names
    cdef i64 slots
    cdef i64[::1] heads
    cdef i64[::1] nexts
    cdef i64[::1] starts
    cdef i64[::1] sizes
    cdef i64[::1] kinds
    cdef i64[::1] longs
    cdef i64[::1] lengths
    cdef double[::1] values
    cdef i64[::1] table
    cdef i64 partition
    cdef i64 key_at
    cdef i64 key_bytes
    cdef bint has_time
    cdef i64 timestamp
    cdef i64 work

@cython.locals(rows=cython.longlong[::1], target="unsigned char[::1]", position=i64,
               matched=i64, looked=i64, last_delta=i64, row=i64, verdict=int)
cpdef tuple match(
    Program program, const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end, i64 first,
    i64 count, i64 base_timestamp, i64 append_time, i64 partition, i64 from_delta,
    i64 work_max, bytearray verdicts
)

cdef void _set_time(Program program, i64 base, i64 delta, i64 append_time) except *

@cython.locals(starts=cython.longlong[::1], sizes=cython.longlong[::1],
               names=cython.longlong[::1], pool="const unsigned char[::1]",
               heads=cython.longlong[::1], slot=i64,
               name_bytes=i64, name_at=i64, value_bytes=i64, value_at=i64, _=i64)
cdef void _find_headers(
    Program program, const unsigned char[::1] buf, i64 position, i64 end, i64 count
) except *

cdef i64 _bucket(const unsigned char[::1] text, i64 start, i64 size) except -1

@cython.locals(place=i64)
cdef bint _equal(
    const unsigned char[::1] left, i64 left_at, const unsigned char[::1] right, i64 right_at,
    i64 size
) except -1

@cython.locals(code=cython.longlong[::1], kinds=cython.longlong[::1], longs=cython.longlong[::1],
               stop=i64, at=i64, top=i64, operation=i64)
cdef bint _run(Program program, const unsigned char[::1] buf) except -1

@cython.locals(kinds=cython.longlong[::1], longs=cython.longlong[::1], deciding=i64)
cdef void _join(Program program, i64 operation, i64 top) except *

@cython.locals(code=cython.longlong[::1], kinds=cython.longlong[::1], longs=cython.longlong[::1],
               operation=i64, operand=i64)
cdef void _push(Program program, const unsigned char[::1] buf, i64 at, i64 top) except *

@cython.locals(start=i64, size=i64)
cdef void _load_header(
    Program program, const unsigned char[::1] buf, i64 operation, i64 slot, i64 top
) except *

cdef void _read_truth(
    Program program, const unsigned char[::1] buf, i64 start, i64 size, i64 top
) except *

@cython.locals(place=i64, byte=int)
cdef bint _spells(const unsigned char[::1] buf, i64 start, i64 size, bytes word) except -1

@cython.locals(end=i64, position=i64, is_negative=bint, whole_end=i64, digits=i64, value=i64,
               byte=i64, part_end=i64)
cdef void _read_number(
    Program program, const unsigned char[::1] buf, i64 start, i64 size, i64 top
) except *

cdef bint _ends_as_number(const unsigned char[::1] buf, i64 position, i64 end) except -1

cdef i64 _after_digits(const unsigned char[::1] buf, i64 position, i64 end) except -1

cdef void _set_real(Program program, i64 top, double value) except *

cdef double _real_at(Program program, i64 place) except? -1

@cython.locals(left=double, right=double)
cdef void _calculate(Program program, i64 operation, i64 top) except *

cdef void _negate(Program program, i64 top) except *

@cython.locals(kinds=cython.longlong[::1], longs=cython.longlong[::1], order=i64, left=double,
               right=double, shorter=i64)
cdef void _compare(
    Program program, const unsigned char[::1] buf, i64 operation, i64 accepted, i64 top
) except *

@cython.locals(pool="const unsigned char[::1]", left_bytes=i64, right_bytes=i64, left_at=i64,
               right_at=i64, left_in_pool=bint, right_in_pool=bint, place=i64, left=int, right=int)
cdef i64 _order_texts(
    Program program, const unsigned char[::1] buf, i64 top, i64 shorter
) except -1

@cython.locals(start=i64, end=i64)
cdef void _like(Program program, const unsigned char[::1] buf, i64 net, i64 top) except *

@cython.locals(nets="unsigned long long[::1]", stays=u64, goes_on=u64, accepted=u64, state=u64,
               after=u64, position=i64, byte=int)
cdef bint _is_like(
    Program program, const unsigned char[::1] buf, i64 start, i64 end, i64 net
) except -1

@cython.locals(code=cython.longlong[::1], slot=i64, start=i64, size=i64, longest=i64, found=bint)
cdef void _look_up(Program program, const unsigned char[::1] buf, i64 at, i64 top) except *

@cython.locals(code=cython.longlong[::1], position=i64, tag_at=i64, tag_end=i64)
cdef bint _has_tag(
    Program program, const unsigned char[::1] buf, i64 start, i64 end, i64 at
) except -1

@cython.locals(nets="unsigned long long[::1]", stays=u64, state=u64, accepted=u64, position=i64,
               word_end=i64)
cdef bint _is_routed(
    Program program, const unsigned char[::1] buf, i64 start, i64 end, i64 route, i64 count
) except -1

@cython.locals(routes=cython.longlong[::1], accepted=u64, bit=u64, place=i64, size=i64)
cdef u64 _accepting_words(
    Program program, const unsigned char[::1] buf, i64 start, i64 end, i64 route, i64 count,
    u64 state
) except? 0
