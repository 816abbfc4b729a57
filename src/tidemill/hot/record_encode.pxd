cimport cython

# In C too, the functions that the .py imports by these names.
from tidemill.hot.varint cimport size as varint_bytes, write as write_varint

ctypedef long long i64

@cython.locals(count=Py_ssize_t, record=Py_ssize_t, size=i64, total=i64, position=Py_ssize_t,
               sizes=cython.longlong[::1], section=bytearray)
cpdef bytearray encode(list rows)

@cython.locals(offset_delta=i64, timestamp_delta=i64, size=i64, headers=list)
cdef i64 _record_bytes(tuple row) except -1

@cython.locals(offset_delta=i64, timestamp_delta=i64, headers=list)
cdef Py_ssize_t _put_record(bytearray out, Py_ssize_t position, tuple row) except -1

@cython.locals(size=i64)
cdef i64 _field_bytes(bytes field) except -1

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _put_field(bytearray out, Py_ssize_t position, bytes field) except -1
