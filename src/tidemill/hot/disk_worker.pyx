"""Threads that sync files and write gathered bytes, and never take the interpreter's lock.

What the module promises is written in `disk_worker.py`, which runs where this could not be built.
Here is how it is kept.

A job is a C structure with everything its threads need; its ticket is a Python object that only
`submit` and `take_outcomes`, which hold the interpreter's lock, touch. Jobs lie in two lists under
one mutex: `first_waiting` has those with parts that no thread has taken, `first_ended` those whose
outcome was not taken. A job that is in neither is with the threads that work on its last parts.

    submit --> waiting --(last part taken)--> running --(last part ended)--> ended --> take_outcomes

A submission wakes one thread. A thread that leaves work behind wakes the next one, so the event
loop pays for one wake-up whatever the number of files. The event descriptor is written when
`first_ended` was empty, and read before it is emptied: no outcome is left without a signal.

The state of a worker outlives the object only where the threads are not ours to join: in a forked
process. There nothing of it is touched, as the mutex may be locked by a thread that is not there.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.types cimport off_t, pid_t
from posix.unistd cimport close, fdatasync, getpid, pread, pwrite, read, write

from os import strerror

__all__ = ["SHORT_READ", "TARGET", "DiskWorker", "Failure", "FileRange", "Outcome", "checksum"]

Failure = tuple[int, int]
FileRange = tuple[int, int, int]
Outcome = tuple[object, list[Failure]]

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_broadcast(pthread_cond_t *)
    int pthread_cond_destroy(pthread_cond_t *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, sigset_t *, sigset_t *)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int, int)

cdef extern from *:
    """
    #include <pthread.h>
    static void name_thread(pthread_t thread, const char *name) {
    #ifdef __linux__
        pthread_setname_np(thread, name);
    #endif
    }
    """
    void name_thread(pthread_t, const char *)

TARGET = -1
SHORT_READ = -1

cdef enum:
    C_SHORT_READ = -1
    CHECKSUM_BYTES = 4
    THREADS_MAX = 16
    NAME_BYTES_MAX = 15  # what Linux keeps of a thread's name


# --- CRC-32, eight bytes at a step -----------------------------------------------------------------

cdef uint32_t crc_tables[8][256]


cdef void fill_crc_tables() noexcept nogil:
    """`crc_tables[n][b]` is the checksum of the byte b with n zero bytes behind it."""
    cdef uint32_t polynomial = 0xEDB88320
    cdef uint32_t crc
    cdef int byte, bit, table
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else <uint32_t>0)
        crc_tables[0][byte] = crc
    for table in range(1, 8):
        for byte in range(256):
            crc = crc_tables[table - 1][byte]
            crc_tables[table][byte] = (crc >> 8) ^ crc_tables[0][crc & 0xFF]


fill_crc_tables()


cdef uint32_t crc_of(const unsigned char *data, size_t size) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFF
    cdef uint32_t low, high
    while size >= 8:
        low = crc ^ (
            data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        )
        high = data[4] | <uint32_t>data[5] << 8 | <uint32_t>data[6] << 16 | <uint32_t>data[7] << 24
        crc = (
            crc_tables[7][low & 0xFF]
            ^ crc_tables[6][low >> 8 & 0xFF]
            ^ crc_tables[5][low >> 16 & 0xFF]
            ^ crc_tables[4][low >> 24]
            ^ crc_tables[3][high & 0xFF]
            ^ crc_tables[2][high >> 8 & 0xFF]
            ^ crc_tables[1][high >> 16 & 0xFF]
            ^ crc_tables[0][high >> 24]
        )
        data += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return ~crc


def checksum(data):
    """CRC-32 as the threads compute it."""
    cdef bytes whole = bytes(data)
    return crc_of(<const unsigned char *>whole, len(whole))


# --- a job, and what threads do with it ------------------------------------------------------------

cdef struct Range:
    int descriptor
    int64_t position
    size_t size


cdef struct Job:
    Job *next
    PyObject *ticket
    Py_ssize_t parts  # files to sync; a gathered write is one part
    Py_ssize_t taken  # parts that a thread has taken
    Py_ssize_t ended
    int *descriptors  # of the files to sync; NULL: a gathered write
    int *codes  # an errno for each of these files
    int target
    int64_t position
    unsigned char *gathered  # room for the checksum, then the head, then room for the ranges
    size_t gathered_bytes
    size_t head_bytes
    Range *ranges
    Py_ssize_t ranges_count
    Py_ssize_t failed_index  # of a gathered write with failed_code
    int failed_code


cdef void free_job(Job *job) noexcept nogil:
    free(job.descriptors)
    free(job.codes)
    free(job.gathered)
    free(job.ranges)
    free(job)


cdef int sync_file(int descriptor) noexcept nogil:
    """An errno, or 0."""
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef int read_whole(Range *wanted, unsigned char *target) noexcept nogil:
    """An errno, C_SHORT_READ, or 0."""
    cdef size_t done = 0
    cdef ssize_t count
    while done < wanted.size:
        count = pread(
            wanted.descriptor, target + done, wanted.size - done, <off_t>(wanted.position + done)
        )
        if count > 0:
            done += count
        elif count == 0:
            return C_SHORT_READ
        elif errno != EINTR:
            return errno
    return 0


cdef int write_whole(int descriptor, unsigned char *data, size_t size, int64_t at) noexcept nogil:
    """An errno, or 0."""
    cdef size_t done = 0
    cdef ssize_t count
    while done < size:
        count = pwrite(descriptor, data + done, size - done, <off_t>(at + done))
        if count >= 0:
            done += count
        elif errno != EINTR:
            return errno
    return 0


cdef void gather(Job *job) noexcept nogil:
    cdef unsigned char *end = job.gathered + CHECKSUM_BYTES + job.head_bytes
    cdef Py_ssize_t index
    cdef uint32_t crc
    for index in range(job.ranges_count):
        job.failed_code = read_whole(&job.ranges[index], end)
        if job.failed_code != 0:
            job.failed_index = index
            return
        end += job.ranges[index].size
    crc = crc_of(job.gathered + CHECKSUM_BYTES, job.gathered_bytes - CHECKSUM_BYTES)
    for index in range(CHECKSUM_BYTES):
        job.gathered[index] = crc >> (24 - 8 * index) & 0xFF
    job.failed_index = -1  # the target
    job.failed_code = write_whole(job.target, job.gathered, job.gathered_bytes, job.position)
    if job.failed_code == 0:
        job.failed_code = sync_file(job.target)


cdef void run_part(Job *job, Py_ssize_t part) noexcept nogil:
    if job.descriptors == NULL:
        gather(job)
    else:
        job.codes[part] = sync_file(job.descriptors[part])


# --- the threads -----------------------------------------------------------------------------------

cdef struct Workshop:
    pthread_mutex_t mutex
    pthread_cond_t work_waits
    Job *first_waiting
    Job *last_waiting
    Job *first_ended
    Job *last_ended
    Py_ssize_t waiting  # jobs of which no part was taken
    Py_ssize_t running  # jobs with a part taken that have not ended
    int idle  # threads that wait for work
    bint closing
    int event


cdef Job *take_part(Workshop *shop, Py_ssize_t *part) noexcept nogil:
    """The next part of the oldest waiting job, which there is. The mutex is held."""
    cdef Job *job = shop.first_waiting
    part[0] = job.taken
    if job.taken == 0:
        shop.waiting -= 1
        shop.running += 1
    job.taken += 1
    if job.taken == job.parts:
        shop.first_waiting = job.next
        job.next = NULL
    return job


cdef bint end_part(Workshop *shop, Job *job) noexcept nogil:
    """Whether to signal that outcomes wait. The mutex is held."""
    cdef bint none_waits = shop.first_ended == NULL
    job.ended += 1
    if job.ended < job.parts:
        return False
    shop.running -= 1
    if none_waits:
        shop.first_ended = job
    else:
        shop.last_ended.next = job
    shop.last_ended = job
    return none_waits


cdef void signal_outcomes(int event) noexcept nogil:
    cdef uint64_t one = 1
    while write(event, &one, sizeof(one)) < 0 and errno == EINTR:
        pass


cdef void *work_off(void *shop_address) noexcept nogil:
    """The life of a thread."""
    cdef Workshop *shop = <Workshop *>shop_address
    cdef Job *job
    cdef Py_ssize_t part = 0
    cdef bint more_waits
    pthread_mutex_lock(&shop.mutex)
    while True:
        while shop.first_waiting == NULL and not shop.closing:
            shop.idle += 1
            pthread_cond_wait(&shop.work_waits, &shop.mutex)
            shop.idle -= 1
        if shop.first_waiting == NULL:
            break
        job = take_part(shop, &part)
        more_waits = shop.first_waiting != NULL and shop.idle > 0
        pthread_mutex_unlock(&shop.mutex)
        if more_waits:
            pthread_cond_signal(&shop.work_waits)
        run_part(job, part)
        pthread_mutex_lock(&shop.mutex)
        if end_part(shop, job):
            # Not under the mutex, which the event loop may want.
            pthread_mutex_unlock(&shop.mutex)
            signal_outcomes(shop.event)
            pthread_mutex_lock(&shop.mutex)
    pthread_mutex_unlock(&shop.mutex)
    return NULL


@cython.final
cdef class DiskWorker:
    """A few threads with one queue. Not for use by two threads at once."""

    cdef Workshop *shop
    cdef pthread_t threads[THREADS_MAX]
    cdef int threads_count
    cdef pid_t process

    def __cinit__(self, int threads, str name):
        if not 0 < threads <= THREADS_MAX:
            raise ValueError(f"a worker with {threads} threads")
        self.process = getpid()
        self.shop = <Workshop *>calloc(1, sizeof(Workshop))
        if self.shop == NULL:
            raise MemoryError
        pthread_mutex_init(&self.shop.mutex, NULL)
        pthread_cond_init(&self.shop.work_waits, NULL)
        self.shop.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.shop.event < 0:
            raise _os_error(errno)
        self._start_threads(threads, name.encode()[:NAME_BYTES_MAX])

    def __dealloc__(self):
        if self.shop == NULL or self.process != getpid():
            return
        self._end_threads()
        self._drop_outcomes()
        if self.shop.event >= 0:
            close(self.shop.event)
        pthread_cond_destroy(&self.shop.work_waits)
        pthread_mutex_destroy(&self.shop.mutex)
        free(self.shop)

    def fileno(self):
        """Readable while outcomes wait; -1 once closed."""
        return self.shop.event

    def submit_sync(self, ticket, descriptors):
        """Sync these files, spread over the threads."""
        self._check_open()
        files = list(descriptors)
        if not files:
            raise ValueError("no file to sync")
        cdef Job *job = _new_job(len(files))
        cdef Py_ssize_t index
        try:
            job.descriptors = <int *>malloc(job.parts * sizeof(int))
            job.codes = <int *>calloc(job.parts, sizeof(int))
            if job.descriptors == NULL or job.codes == NULL:
                raise MemoryError
            for index in range(job.parts):
                job.descriptors[index] = files[index]
        except BaseException:
            free_job(job)
            raise
        self._submit(job, ticket)

    def submit_gathered(self, ticket, int target, int64_t position, head, ranges):
        """Write checksum, head and ranges at `position` of the target, and sync it."""
        self._check_open()
        if position < 0:
            raise ValueError("a position or size below zero")
        cdef Job *job = _new_job(1)
        try:
            job.target = target
            job.position = position
            _take_ranges(job, list(ranges))
            _take_head(job, bytes(head))
        except BaseException:
            free_job(job)
            raise
        self._submit(job, ticket)

    def take_outcomes(self):
        """What has ended since the last call."""
        cdef Workshop *shop = self.shop
        cdef Job *job
        cdef Job *ended
        cdef uint64_t count
        if shop.event >= 0:
            while read(shop.event, &count, sizeof(count)) < 0 and errno == EINTR:
                pass
        pthread_mutex_lock(&shop.mutex)
        ended = shop.first_ended
        shop.first_ended = NULL
        shop.last_ended = NULL
        pthread_mutex_unlock(&shop.mutex)
        outcomes = []
        while ended != NULL:
            job = ended
            ended = job.next
            outcomes.append((<object>job.ticket, _failures(job)))
            Py_DECREF(<object>job.ticket)
            free_job(job)
        return outcomes

    def load(self):
        """Jobs that have begun and not ended, and jobs that wait for a thread."""
        pthread_mutex_lock(&self.shop.mutex)
        running, waiting = self.shop.running, self.shop.waiting
        pthread_mutex_unlock(&self.shop.mutex)
        return running, waiting

    def close(self):
        """Wait for all jobs and end the threads. Outcomes can still be taken."""
        if self.shop.event < 0 or self.process != getpid():
            return
        self._end_threads()
        close(self.shop.event)
        self.shop.event = -1

    cdef _check_open(self):
        if self.shop.event < 0:
            raise ValueError("the worker is closed")

    cdef _start_threads(self, int threads, bytes name):
        cdef sigset_t every, before
        cdef int code = 0
        # Signals are for the thread that runs Python.
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)
        while self.threads_count < threads and code == 0:
            code = pthread_create(&self.threads[self.threads_count], NULL, work_off, self.shop)
            if code == 0:
                name_thread(self.threads[self.threads_count], name)
                self.threads_count += 1
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if code != 0:
            raise _os_error(code)  # and `__dealloc__` ends those that run

    cdef void _end_threads(self) noexcept:
        """They end when nothing waits any more."""
        cdef int index
        pthread_mutex_lock(&self.shop.mutex)
        self.shop.closing = True
        pthread_cond_broadcast(&self.shop.work_waits)
        pthread_mutex_unlock(&self.shop.mutex)
        with nogil:
            for index in range(self.threads_count):
                pthread_join(self.threads[index], NULL)
        self.threads_count = 0

    cdef void _drop_outcomes(self) noexcept:
        cdef Job *job
        while self.shop.first_ended != NULL:
            job = self.shop.first_ended
            self.shop.first_ended = job.next
            Py_DECREF(<object>job.ticket)
            free_job(job)

    cdef void _submit(self, Job *job, object ticket) noexcept:
        cdef Workshop *shop = self.shop
        cdef bint a_thread_waits
        Py_INCREF(ticket)
        job.ticket = <PyObject *>ticket
        pthread_mutex_lock(&shop.mutex)
        if shop.first_waiting == NULL:
            shop.first_waiting = job
        else:
            shop.last_waiting.next = job
        shop.last_waiting = job
        shop.waiting += 1
        a_thread_waits = shop.idle > 0
        pthread_mutex_unlock(&shop.mutex)
        if a_thread_waits:
            pthread_cond_signal(&shop.work_waits)


cdef Job *_new_job(Py_ssize_t parts) except NULL:
    cdef Job *job = <Job *>calloc(1, sizeof(Job))
    if job == NULL:
        raise MemoryError
    job.parts = parts
    return job


cdef int _take_ranges(Job *job, list ranges) except -1:
    cdef Py_ssize_t index
    cdef int64_t position, size
    cdef Range *one
    job.ranges = <Range *>malloc((len(ranges) + 1) * sizeof(Range))
    if job.ranges == NULL:
        raise MemoryError
    for index in range(len(ranges)):
        one = &job.ranges[index]
        one.descriptor, position, size = ranges[index]
        if position < 0 or size < 0:
            raise ValueError("a position or size below zero")
        one.position, one.size = position, size
        job.gathered_bytes += one.size
    job.ranges_count = len(ranges)
    return 0


cdef int _take_head(Job *job, bytes head) except -1:
    """After `_take_ranges`, which counts the bytes that come behind it."""
    job.head_bytes = len(head)
    job.gathered_bytes += CHECKSUM_BYTES + job.head_bytes
    job.gathered = <unsigned char *>malloc(job.gathered_bytes)
    if job.gathered == NULL:
        raise MemoryError
    memcpy(job.gathered + CHECKSUM_BYTES, <const unsigned char *>head, job.head_bytes)
    return 0


cdef list _failures(Job *job):
    cdef Py_ssize_t index
    if job.descriptors == NULL:
        return [(job.failed_index, job.failed_code)] if job.failed_code != 0 else []
    return [(index, job.codes[index]) for index in range(job.parts) if job.codes[index] != 0]


cdef _os_error(int code):
    return OSError(code, strerror(code))
