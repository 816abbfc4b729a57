"""Regular expressions of clients, compiled by RE2 (ADR 0007, S37).

RE2 takes time in proportion to the length of a text, whatever the expression is. The factor is at
worst the size of the compiled program. So the expression has a length limit and few Unicode
classes, which are slow to parse; the program has a size limit, and the engine's memory a limit.

The engine is a native library. It is loaded with the first expression, so that a broker whose
clients send none does not pay for it; without it, every expression is refused.
"""

from __future__ import annotations

import re
from typing import Any

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import KIB, PATTERN_CHARS_MAX, PATTERN_PROGRAM_STEPS_MAX

__all__ = ["compile_expression"]

ENGINE_BYTES_MAX = 256 * KIB
"""Memory of one compiled expression, with the automaton that grows while it is used."""
UNICODE_CLASSES_MAX = 8
"""Each takes the parser up to 0.6 ms, more than all the rest; names have none of them."""
_UNICODE_CLASS = re.compile(r"\\[pP]")


def compile_expression(pattern: str) -> Any:  # noqa: ANN401 - RE2 ships no types
    """A compiled expression. KafkaError: it is invalid or too large, or there is no engine."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise _invalid(f"it has {len(pattern)} characters, at most {PATTERN_CHARS_MAX}")
    classes = len(_UNICODE_CLASS.findall(pattern))
    if classes > UNICODE_CLASSES_MAX:
        raise _invalid(f"it has {classes} Unicode classes, at most {UNICODE_CLASSES_MAX}")
    try:
        import re2
    except ImportError as error:
        detail = "this broker has no engine for it: the package google-re2 is not installed"
        raise _invalid(detail) from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = ENGINE_BYTES_MAX
    options.never_capture = True  # only then is the fast automaton enough
    try:
        expression = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _invalid(text) from error
    if expression.programsize > PATTERN_PROGRAM_STEPS_MAX:
        raise _invalid("it is too large: use fewer or smaller repetitions")
    return expression


def _invalid(reason: str) -> KafkaError:
    detail = f"the regular expression is not valid: {reason}"
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
