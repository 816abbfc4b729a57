cimport cython

from tidemill.hot.columns.arrow_cells cimport Cells
from tidemill.hot.murmur2 cimport murmur2_range

ctypedef long long i64
ctypedef unsigned long long u64

@cython.locals(chosen=cython.int[::1], row=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, found=u64)
cpdef object by_key(object partitions, Cells keys, u64 partition_count)

@cython.locals(chosen=cython.int[::1], row=Py_ssize_t, partition=i64)
cpdef tuple spread(
    object partitions, Cells values, i64 partition_count, i64 current, i64 filled_bytes,
    i64 batch_bytes
)

@cython.locals(count=Py_ssize_t, row=Py_ssize_t, partition=i64)
cdef object _sort(
    const int[::1] partitions, i64 partition_count, i64[::1] ends, int[::1] order
)
