from libc.string cimport memcpy

cdef inline int copy_bytes(
    unsigned char[::1] target, Py_ssize_t at, const unsigned char[::1] source, Py_ssize_t start,
    Py_ssize_t size
) except -1:
    if not (
        0 <= at <= target.shape[0] - size and 0 <= start <= source.shape[0] - size and size >= 0
    ):
        raise ValueError("copy outside a buffer")
    if size > 0:
        memcpy(&target[at], &source[start], size)
    return 0
