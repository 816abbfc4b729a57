"""Runs the program of a selector over the records of a batch: which of them match.

HOT PATH of views: once per record that a fetch of a view looks at.

Theory of operation. A program is rows of four numbers: an operation and up to three operands. It
works on a stack of values: null, a whole number, a double, a text (a range of the record's bytes or
of the program's own), or a truth. Null as a truth is *unknown*; only true matches (SQL's logic of
three values). For each record the headers that the program names are found first, the last one of
a name counts, and their ranges stand in *slots*.

Nothing here goes back in a text: patterns are automata whose state is one 64-bit number
(`delivery/filter/patterns.py`), so a text costs its bytes times the terms of the selector (S37).
That is still too long for a text as large as a record can be, on the event loop: whether a pattern
or another header fits a text of more than 32 KiB is unknown, and so is any route of a routing key
of more than 1 KiB. `match` ends early once its work is used up; one record costs a few milliseconds
at most. Arithmetic is in doubles; what is not a finite number is null. Comparing two whole numbers
is exact. A program keeps its stack, so it must not run in two threads at once.
"""

from __future__ import annotations

from array import array

from tidemill.hot.record_walk import header_at, index

__all__ = ["CHUNK_RECORDS", "OPERATIONS", "Program", "match"]

Buffer = bytes | bytearray | memoryview

CHUNK_RECORDS = 512
"""The most records of one call: the table of their positions takes 36 KB."""

# Operations: what they take from the instruction, and from the stack.
_PUSH_TEXT = 0  # a range of the pool
_PUSH_LONG = 1
_PUSH_REAL = 2  # a place in `reals`
_PUSH_TRUTH = 3
_LOAD_TEXT = 4  # a slot
_LOAD_NUMBER = 5  # a slot
_LOAD_NUMBER_OR = 6  # a slot, and the number if the record has no such header
_LOAD_TRUTH = 7  # a slot
_LOAD_KEY = 8
_LOAD_TIMESTAMP = 9
_LOAD_PARTITION = 10
_ADD = 11
_SUBTRACT = 12
_MULTIPLY = 13
_DIVIDE = 14
_NEGATE = 15
_COMPARE_TEXTS = 16  # the accepted orders, as `compare` has them
_COMPARE_NUMBERS = 17
_COMPARE_TRUTHS = 18
_LIKE = 19  # a place in `nets`
_TAG_IS = 20  # a slot and a range of the pool
_TAG_LIKE = 21  # a slot and a place in `nets`
_ROUTES = 22  # a slot, a place in `routes` and the number of words there
_IS_NULL = 23
_NOT = 24
_AND = 25
_OR = 26
_JUMP_IF_FALSE = 27  # where the code goes on
_JUMP_IF_TRUE = 28

# By name for the assembler: compiled, the numbers above are no objects.
OPERATIONS = {
    "PUSH_TEXT": _PUSH_TEXT,
    "PUSH_LONG": _PUSH_LONG,
    "PUSH_REAL": _PUSH_REAL,
    "PUSH_TRUTH": _PUSH_TRUTH,
    "LOAD_TEXT": _LOAD_TEXT,
    "LOAD_NUMBER": _LOAD_NUMBER,
    "LOAD_NUMBER_OR": _LOAD_NUMBER_OR,
    "LOAD_TRUTH": _LOAD_TRUTH,
    "LOAD_KEY": _LOAD_KEY,
    "LOAD_TIMESTAMP": _LOAD_TIMESTAMP,
    "LOAD_PARTITION": _LOAD_PARTITION,
    "ADD": _ADD,
    "SUBTRACT": _SUBTRACT,
    "MULTIPLY": _MULTIPLY,
    "DIVIDE": _DIVIDE,
    "NEGATE": _NEGATE,
    "COMPARE_TEXTS": _COMPARE_TEXTS,
    "COMPARE_NUMBERS": _COMPARE_NUMBERS,
    "COMPARE_TRUTHS": _COMPARE_TRUTHS,
    "LIKE": _LIKE,
    "TAG_IS": _TAG_IS,
    "TAG_LIKE": _TAG_LIKE,
    "ROUTES": _ROUTES,
    "IS_NULL": _IS_NULL,
    "NOT": _NOT,
    "AND": _AND,
    "OR": _OR,
    "JUMP_IF_FALSE": _JUMP_IF_FALSE,
    "JUMP_IF_TRUE": _JUMP_IF_TRUE,
}

# Kinds of values on the stack.
_NULL = 0
_LONG = 1
_REAL = 2
_TEXT = 3  # of the record
_POOL_TEXT = 4
_TRUTH = 5

# Accepted orders of a comparison.
_LESS = 1
_EQUAL = 2
_GREATER = 4

_ABSENT = -2
"""The size of a header that the record does not have; -1 is a null value."""
_EXACT_DIGITS_MAX = 18
_NUMBER_BYTES_MAX = 64
"""A longer text is not read as a number."""
_TEXT_BYTES_MAX = 32 * 1024
"""Whether a longer text is like a pattern, has a tag or equals another such header is unknown."""
_ROUTE_BYTES_MAX = 1024
"""A longer routing key is not looked at: each of its words may cost all words of a pattern."""
_REAL_MAX = 1.7976931348623157e308
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
_INT64_MIN = -0x8000_0000_0000_0000
_NET_BYTES = 256
_BUCKETS = 256
_NO_SLOT = -1
_COMMA = 0x2C
_DOT = 0x2E
_SPACE = 0x20


class Program:
    """A compiled selector, and the state of its run over one record."""

    def __init__(
        self,
        code: array[int],
        pool: bytes,
        reals: array[float],
        nets: array[int],
        routes: array[int],
        names: array[int],
        height: int,
    ) -> None:
        """`names` are ranges of the pool, one per slot; `height` is that of the stack."""
        self.code = code
        self.pool = pool
        self.reals = reals
        self.nets = nets
        self.routes = routes
        self.names = names
        self.slots = len(names) // 2
        self.heads = array("q", [_NO_SLOT]) * _BUCKETS
        """The first slot of each bucket of names; the others of it follow in `nexts`."""
        self.nexts = array("q", [_NO_SLOT]) * self.slots
        for slot in range(self.slots):
            bucket = _bucket(pool, names[slot * 2], names[slot * 2 + 1])
            self.nexts[slot] = self.heads[bucket]
            self.heads[bucket] = slot
        self.starts = array("q", bytes(8 * self.slots))
        self.sizes = array("q", bytes(8 * self.slots))
        self.kinds = array("q", bytes(8 * height))
        self.longs = array("q", bytes(8 * height))
        self.lengths = array("q", bytes(8 * height))
        self.values = array("d", bytes(8 * height))
        self.table = array("q", bytes(8 * 9 * CHUNK_RECORDS))
        self.partition = 0
        self.key_at = 0
        self.key_bytes = -1
        self.has_time = False
        self.timestamp = 0
        self.work = 0
        """Bytes that were looked at since `match` began, those of a text once for each term."""


def match(
    program: Program,
    buf: Buffer,
    start: int,
    end: int,
    first: int,
    count: int,
    base_timestamp: int,
    append_time: int,
    partition: int,
    from_delta: int,
    work_max: int,
    verdicts: bytearray,
) -> tuple[int, int, int, int, int]:
    """Look at `count` records from `start` on, the first of which is number `first` of its batch.

    `verdicts[n]` becomes 1 if record n matches, else 0; records with an offset delta below
    `from_delta` never do. `append_time` is the time of all records; -1: each has its own. Fewer are
    looked at if they take more than `work_max`, in bytes. Returns how many were and what they took,
    where they end, how many of them matched, and the offset delta of the last one that did, or -1.
    """
    if not 0 <= count <= CHUNK_RECORDS or not 0 <= first <= len(verdicts) - count:
        raise ValueError("more records than there is room for")
    rows = program.table
    target = memoryview(verdicts)
    index(buf, start, end, first, count, rows)
    program.partition = partition
    program.work = 0
    position = start
    matched = 0
    looked = 0
    last_delta = -1
    while looked < count and program.work < work_max:
        row = looked * 9
        verdict = 0
        if rows[row] >= from_delta:
            program.key_at = rows[row + 2]
            program.key_bytes = rows[row + 3]
            _set_time(program, base_timestamp, rows[row + 1], append_time)
            if program.slots:
                _find_headers(program, buf, rows[row + 6], rows[row + 8], rows[row + 7])
            if _run(program, buf):
                verdict = 1
                matched += 1
                last_delta = rows[row]
        target[first + looked] = verdict
        looked += 1
        program.work += rows[row + 8] - position
        position = rows[row + 8]
    return looked, program.work, position, matched, last_delta


def _set_time(program: Program, base: int, delta: int, append_time: int) -> None:
    program.has_time = True
    if append_time >= 0:
        program.timestamp = append_time
    elif (delta > 0 and base > _INT64_MAX - delta) or (delta < 0 and base < _INT64_MIN - delta):
        program.has_time = False
    else:
        program.timestamp = base + delta


def _find_headers(program: Program, buf: Buffer, position: int, end: int, count: int) -> None:
    """Fill the slots; `index` has checked that all headers lie within the record."""
    starts = program.starts
    sizes = program.sizes
    names = program.names
    pool = program.pool
    heads = program.heads
    for slot in range(program.slots):
        sizes[slot] = _ABSENT
    for _ in range(count):
        name_at, name_bytes, value_at, value_bytes = header_at(buf, position, end)
        position = value_at + (value_bytes if value_bytes > 0 else 0)
        slot = heads[_bucket(buf, name_at, name_bytes)]
        while slot != _NO_SLOT:
            if names[slot * 2 + 1] == name_bytes and _equal(
                buf, name_at, pool, names[slot * 2], name_bytes
            ):
                starts[slot] = value_at
                sizes[slot] = value_bytes
                break
            slot = program.nexts[slot]


def _bucket(text: Buffer, start: int, size: int) -> int:
    """Of a name: by its length and its ends, so that most headers are compared with no name."""
    if size == 0:
        return 0
    return (size + 31 * text[start] + 101 * text[start + size - 1]) % _BUCKETS


def _equal(left: Buffer, left_at: int, right: Buffer, right_at: int, size: int) -> bool:
    place = 0
    while place < size and left[left_at + place] == right[right_at + place]:
        place += 1
    return place == size


# --- the machine ---------------------------------------------------------------------------------


def _run(program: Program, buf: Buffer) -> bool:
    """Whether the record in `program` matches."""
    code = program.code
    kinds = program.kinds
    longs = program.longs
    stop = len(code)
    at = 0
    top = -1
    while at < stop:
        operation = code[at]
        if operation <= _LOAD_PARTITION:
            top += 1
            _push(program, buf, at, top)
        elif operation <= _DIVIDE:
            top -= 1
            _calculate(program, operation, top)
        elif operation == _NEGATE:
            _negate(program, top)
        elif operation <= _COMPARE_TRUTHS:
            top -= 1
            _compare(program, buf, operation, code[at + 1], top)
        elif operation == _LIKE:
            _like(program, buf, code[at + 1], top)
        elif operation <= _ROUTES:
            top += 1
            _look_up(program, buf, at, top)
        elif operation == _IS_NULL:
            longs[top] = 1 if kinds[top] == _NULL else 0
            kinds[top] = _TRUTH
        elif operation == _NOT:
            longs[top] = 1 if longs[top] == 0 else 0
        elif operation <= _OR:
            top -= 1
            _join(program, operation, top)
        elif kinds[top] == _TRUTH and longs[top] == operation - _JUMP_IF_FALSE:
            at = code[at + 1]
            continue
        at += 4
    return kinds[0] == _TRUTH and longs[0] == 1


def _join(program: Program, operation: int, top: int) -> None:
    """AND and OR of the truths at `top` and above it, where neither decides alone: SQL's tables."""
    kinds = program.kinds
    longs = program.longs
    deciding = 0 if operation == _AND else 1
    if kinds[top + 1] == _TRUTH and (kinds[top] == _TRUTH or longs[top + 1] == deciding):
        # The left one did not decide, so the right one is the outcome.
        kinds[top] = _TRUTH
        longs[top] = longs[top + 1]
    else:
        kinds[top] = _NULL


def _push(program: Program, buf: Buffer, at: int, top: int) -> None:
    code = program.code
    kinds = program.kinds
    longs = program.longs
    operation = code[at]
    operand = code[at + 1]
    if operation == _PUSH_LONG:
        kinds[top] = _LONG
        longs[top] = operand
    elif operation == _PUSH_TEXT:
        kinds[top] = _POOL_TEXT
        longs[top] = operand
        program.lengths[top] = code[at + 2]
    elif operation == _PUSH_REAL:
        kinds[top] = _REAL
        program.values[top] = program.reals[operand]
    elif operation == _PUSH_TRUTH:
        kinds[top] = _TRUTH
        longs[top] = operand
    elif operation == _LOAD_KEY:
        kinds[top] = _TEXT if program.key_bytes >= 0 else _NULL
        longs[top] = program.key_at
        program.lengths[top] = program.key_bytes
    elif operation == _LOAD_TIMESTAMP:
        kinds[top] = _LONG if program.has_time else _NULL
        longs[top] = program.timestamp
    elif operation == _LOAD_PARTITION:
        kinds[top] = _LONG
        longs[top] = program.partition
    elif operation == _LOAD_NUMBER_OR and program.sizes[operand] == _ABSENT:
        kinds[top] = _LONG
        longs[top] = code[at + 2]
    else:
        _load_header(program, buf, operation, operand, top)


def _load_header(program: Program, buf: Buffer, operation: int, slot: int, top: int) -> None:
    start = program.starts[slot]
    size = program.sizes[slot]
    if size < 0:
        program.kinds[top] = _NULL
    elif operation == _LOAD_TEXT:
        program.kinds[top] = _TEXT
        program.longs[top] = start
        program.lengths[top] = size
    elif operation == _LOAD_TRUTH:
        _read_truth(program, buf, start, size, top)
    else:
        _read_number(program, buf, start, size, top)


def _read_truth(program: Program, buf: Buffer, start: int, size: int, top: int) -> None:
    """`true` or `false` in letters of any case; anything else is null."""
    program.kinds[top] = _TRUTH
    if size == 4 and _spells(buf, start, size, b"true"):
        program.longs[top] = 1
    elif size == 5 and _spells(buf, start, size, b"false"):
        program.longs[top] = 0
    else:
        program.kinds[top] = _NULL


def _spells(buf: Buffer, start: int, size: int, word: bytes) -> bool:
    for place in range(size):
        byte = buf[start + place]
        if (byte | 0x20) != word[place]:
            return False
    return True


def _read_number(program: Program, buf: Buffer, start: int, size: int, top: int) -> None:
    """Decimal text: a sign, digits, a point, an exponent; anything else is null."""
    program.kinds[top] = _NULL
    if not 0 < size <= _NUMBER_BYTES_MAX:
        return
    end = start + size
    position = start
    is_negative = buf[position] == 0x2D
    if is_negative or buf[position] == 0x2B:
        position += 1
    whole_end = _after_digits(buf, position, end)
    digits = whole_end - position
    if whole_end == end and 0 < digits <= _EXACT_DIGITS_MAX:
        value = 0
        while position < end:
            byte = buf[position]
            value = value * 10 + (byte - 0x30)
            position += 1
        program.kinds[top] = _LONG
        program.longs[top] = -value if is_negative else value
        return
    if whole_end < end and buf[whole_end] == _DOT:
        part_end = _after_digits(buf, whole_end + 1, end)
        digits += part_end - whole_end - 1
        whole_end = part_end
    if digits > 0 and _ends_as_number(buf, whole_end, end):
        _set_real(program, top, float(bytes(buf[start:end])))


def _ends_as_number(buf: Buffer, position: int, end: int) -> bool:
    """Whether nothing is left, or a whole exponent."""
    if position == end:
        return True
    if (buf[position] | 0x20) != 0x65:
        return False
    position += 1
    if position < end and (buf[position] == 0x2B or buf[position] == 0x2D):
        position += 1
    return position < end and _after_digits(buf, position, end) == end


def _after_digits(buf: Buffer, position: int, end: int) -> int:
    while position < end and 0x30 <= buf[position] <= 0x39:
        position += 1
    return position


# --- numbers and comparisons ---------------------------------------------------------------------


def _set_real(program: Program, top: int, value: float) -> None:
    """Null instead of what is not a finite number."""
    if -_REAL_MAX <= value <= _REAL_MAX:
        program.kinds[top] = _REAL
        program.values[top] = value
    else:
        program.kinds[top] = _NULL


def _real_at(program: Program, place: int) -> float:
    if program.kinds[place] == _LONG:
        return float(program.longs[place])
    return program.values[place]


def _calculate(program: Program, operation: int, top: int) -> None:
    if program.kinds[top] == _NULL or program.kinds[top + 1] == _NULL:
        program.kinds[top] = _NULL
        return
    left = _real_at(program, top)
    right = _real_at(program, top + 1)
    if operation == _ADD:
        _set_real(program, top, left + right)
    elif operation == _SUBTRACT:
        _set_real(program, top, left - right)
    elif operation == _MULTIPLY:
        _set_real(program, top, left * right)
    elif right == 0.0:
        program.kinds[top] = _NULL
    else:
        _set_real(program, top, left / right)


def _negate(program: Program, top: int) -> None:
    if program.kinds[top] == _LONG:
        if program.longs[top] == _INT64_MIN:
            program.kinds[top] = _NULL
        else:
            program.longs[top] = -program.longs[top]
    elif program.kinds[top] == _REAL:
        program.values[top] = -program.values[top]


def _compare(program: Program, buf: Buffer, operation: int, accepted: int, top: int) -> None:
    kinds = program.kinds
    longs = program.longs
    if kinds[top] == _NULL or kinds[top + 1] == _NULL:
        kinds[top] = _NULL
        return
    if operation == _COMPARE_TEXTS:
        shorter = program.lengths[top]
        if shorter > program.lengths[top + 1]:
            shorter = program.lengths[top + 1]
        if shorter > _TEXT_BYTES_MAX:
            kinds[top] = _NULL
            return
        program.work += shorter
        order = _order_texts(program, buf, top, shorter)
    elif kinds[top] == _REAL or kinds[top + 1] == _REAL:
        left = _real_at(program, top)
        right = _real_at(program, top + 1)
        order = _LESS if left < right else (_GREATER if left > right else _EQUAL)
    elif longs[top] < longs[top + 1]:
        order = _LESS
    else:
        order = _GREATER if longs[top] > longs[top + 1] else _EQUAL
    kinds[top] = _TRUTH
    longs[top] = 1 if order & accepted else 0


def _order_texts(program: Program, buf: Buffer, top: int, shorter: int) -> int:
    """`shorter` is the length of the shorter one."""
    pool = program.pool
    left_bytes = program.lengths[top]
    right_bytes = program.lengths[top + 1]
    left_at = program.longs[top]
    right_at = program.longs[top + 1]
    left_in_pool = program.kinds[top] == _POOL_TEXT
    right_in_pool = program.kinds[top + 1] == _POOL_TEXT
    for place in range(shorter):
        left = pool[left_at + place] if left_in_pool else buf[left_at + place]
        right = pool[right_at + place] if right_in_pool else buf[right_at + place]
        if left != right:
            return _LESS if left < right else _GREATER
    if left_bytes == right_bytes:
        return _EQUAL
    return _LESS if left_bytes < right_bytes else _GREATER


# --- patterns, tags and routes -------------------------------------------------------------------


def _like(program: Program, buf: Buffer, net: int, top: int) -> None:
    if program.kinds[top] == _NULL:
        return
    if program.lengths[top] > _TEXT_BYTES_MAX:
        program.kinds[top] = _NULL
        return
    start = program.longs[top]
    end = start + program.lengths[top]
    program.longs[top] = 1 if _is_like(program, buf, start, end, net) else 0
    program.kinds[top] = _TRUTH


def _is_like(program: Program, buf: Buffer, start: int, end: int, net: int) -> bool:
    nets = program.nets
    stays = nets[net + _NET_BYTES]
    goes_on = nets[net + _NET_BYTES + 1]
    accepted = nets[net + _NET_BYTES + 2]
    program.work += end - start
    state = 1
    for position in range(start, end):
        byte = buf[position]
        after = ((state & nets[net + byte]) << 1) | (state & stays)
        if 0x80 <= byte < 0xC0:
            after |= state & goes_on
        state = after
        if state == 0:
            return False
    return state & accepted != 0


def _look_up(program: Program, buf: Buffer, at: int, top: int) -> None:
    """TAG_IS, TAG_LIKE and ROUTES; null if the record has no such header, or a very long one."""
    code = program.code
    slot = code[at + 1]
    start = program.starts[slot]
    size = program.sizes[slot]
    longest = _ROUTE_BYTES_MAX if code[at] == _ROUTES else _TEXT_BYTES_MAX
    if size < 0 or size > longest:
        program.kinds[top] = _NULL
        return
    if code[at] == _ROUTES:
        found = _is_routed(program, buf, start, start + size, code[at + 2], code[at + 3])
    else:
        found = _has_tag(program, buf, start, start + size, at)
    program.kinds[top] = _TRUTH
    program.longs[top] = 1 if found else 0


def _has_tag(program: Program, buf: Buffer, start: int, end: int, at: int) -> bool:
    """Whether one of the tags between commas, without the spaces around it, is the one wanted."""
    code = program.code
    program.work += end - start
    position = start
    while position <= end:
        tag_end = position
        while tag_end < end and buf[tag_end] != _COMMA:
            tag_end += 1
        tag_at = position
        position = tag_end + 1
        while tag_at < tag_end and buf[tag_at] == _SPACE:
            tag_at += 1
        while tag_at < tag_end and buf[tag_end - 1] == _SPACE:
            tag_end -= 1
        if tag_at == tag_end:
            continue
        if code[at] == _TAG_LIKE:
            if _is_like(program, buf, tag_at, tag_end, code[at + 2]):
                return True
        elif tag_end - tag_at == code[at + 3] and _equal(
            buf, tag_at, program.pool, code[at + 2], tag_end - tag_at
        ):
            return True
    return False


def _is_routed(program: Program, buf: Buffer, start: int, end: int, route: int, count: int) -> bool:
    """Whether the words between dots are those of the pattern."""
    nets = program.nets
    stays = nets[program.routes[route + count * 2]]
    program.work += (end - start) * count
    state = 1
    position = start
    while position <= end:
        word_end = position
        while word_end < end and buf[word_end] != _DOT:
            word_end += 1
        accepted = _accepting_words(program, buf, position, word_end, route, count, state)
        state = ((state & accepted) << 1) | (state & stays)
        if state == 0:
            return False
        position = word_end + 1
    return (state >> count) & 1 != 0


def _accepting_words(
    program: Program, buf: Buffer, start: int, end: int, route: int, count: int, state: int
) -> int:
    """The words of the pattern that this word may be, of those that the state has reached."""
    routes = program.routes
    accepted = 0
    bit = 1
    for place in range(count):
        size = routes[route + place * 2 + 1]
        if state & bit and (
            size < 0
            or (
                size == end - start
                and _equal(buf, start, program.pool, routes[route + place * 2], size)
            )
        ):
            accepted |= bit
        bit <<= 1
    return accepted
