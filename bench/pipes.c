/* The inner loop of `pipes.py`, which builds it, opens the connections and hands them over.
 *
 * Each connection sends one request again and again and keeps `in_flight` of them under way. All
 * answers to a request have the same size and the same bytes but for offsets and times: of each
 * one the length and the error code are checked, the rest is not looked at.
 */
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 256,
    LENGTH_BYTES = 4,
    ERROR_BYTES = 2,
    RECEIVE_BYTES = 256 << 10,
};

enum failure { NONE, SYSTEM, CLOSED, SILENT, REFUSED };

struct pipe {
    int fd; /* blocking */
    int in_flight;
    const uint8_t *requests; /* `in_flight` copies of one request */
    size_t request_bytes;    /* of one of them */
    const uint8_t *answer;   /* the first one, which was accepted */
    size_t answer_bytes;
    size_t error_at; /* where the error code begins in an answer */
    uint8_t *part;   /* room for one answer: the beginning of one that has not come whole */
    size_t part_bytes;
    int waiting; /* requests under way */
    long answered;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static enum failure fill(struct pipe *pipe) {
    size_t left = (pipe->in_flight - pipe->waiting) * pipe->request_bytes;
    const uint8_t *next = pipe->requests;
    while (left) {
        ssize_t sent = send(pipe->fd, next, left, MSG_NOSIGNAL);
        if (sent < 0)
            return SYSTEM;
        next += sent;
        left -= sent;
    }
    pipe->waiting = pipe->in_flight;
    return NONE;
}

static enum failure check(struct pipe *pipe, const uint8_t *answer) {
    static const uint8_t no_error[ERROR_BYTES];
    if (memcmp(answer, pipe->answer, LENGTH_BYTES))
        return REFUSED;
    if (memcmp(answer + pipe->error_at, no_error, ERROR_BYTES))
        return REFUSED;
    pipe->answered++;
    pipe->waiting--;
    return NONE;
}

static enum failure take_answers(struct pipe *pipe) {
    static uint8_t received[RECEIVE_BYTES];
    ssize_t size = recv(pipe->fd, received, sizeof received, 0);
    if (size <= 0)
        return size ? SYSTEM : CLOSED;
    const uint8_t *next = received, *end = received + size;
    while (next < end) {
        size_t missing = pipe->answer_bytes - pipe->part_bytes, left = end - next;
        enum failure failure = NONE;
        if (left < missing) {
            memcpy(pipe->part + pipe->part_bytes, next, left);
            pipe->part_bytes += left;
            break;
        }
        if (pipe->part_bytes) {
            memcpy(pipe->part + pipe->part_bytes, next, missing);
            pipe->part_bytes = 0;
            failure = check(pipe, pipe->part);
        } else {
            failure = check(pipe, next);
        }
        if (failure)
            return failure;
        next += missing;
    }
    return NONE;
}

static enum failure run(struct pipe *pipes, int count, int poll, double seconds, int wait_ms) {
    struct epoll_event events[EVENTS_MAX];
    enum failure failure = NONE;
    double deadline = now() + seconds;
    long under_way = 0;
    for (int i = 0; i < count && !failure; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &pipes[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, pipes[i].fd, &event))
            return SYSTEM;
        failure = fill(&pipes[i]);
        under_way += pipes[i].waiting;
    }
    while (under_way && !failure) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, wait_ms);
        if (ready <= 0)
            return ready ? SYSTEM : SILENT;
        int goes_on = now() < deadline;
        for (int i = 0; i < ready && !failure; i++) {
            struct pipe *pipe = events[i].data.ptr;
            under_way -= pipe->waiting;
            failure = take_answers(pipe);
            if (goes_on && !failure)
                failure = fill(pipe);
            under_way += pipe->waiting;
        }
    }
    return failure;
}

/* Keep every connection full for so long, then wait for what is under way. */
int drive(struct pipe *pipes, int count, double seconds, int wait_ms) {
    int poll = epoll_create1(0);
    if (poll < 0)
        return SYSTEM;
    enum failure failure = run(pipes, count, poll, seconds, wait_ms);
    close(poll);
    return failure;
}
