"""What a failed query says: the cause out of a long text, and who can do something about it. Pure.

Spark wraps an error once for each layer that it passes: query, batch function, job, task, worker.
The first line names the outermost wrapper; what went wrong comes last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

__all__ = ["QueryFailure", "failure_of"]

_BEHIND_THE_CAUSE: Final = re.compile(
    r"^(=== Streaming Query ===|Driver stacktrace:)", re.MULTILINE
)
_OURS: Final = re.compile(r"^tidemill\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_ANY_ERROR: Final = re.compile(
    r"(?:^|[ :])(?:[\w$]+\.)*([\w$]*(?:Error|Exception)): (?=\S)(.+)$", re.MULTILINE
)
_SQL_STATE: Final = re.compile(r"(\s*SQLSTATE: \w+)+\s*$")
_SENTENCE_CHARS_MAX: Final = 500


@final
@dataclass(frozen=True, slots=True)
class QueryFailure:
    """The cause of a failure in one line."""

    reason: str
    is_ours: bool
    """Our own code has raised it, here or in a worker."""
    is_users: bool
    """Only the user can correct it: a restart would fail in the same way."""


def failure_of(text: str) -> QueryFailure:
    """The innermost error that `text`, an error message or a trace, tells of."""
    told = _BEHIND_THE_CAUSE.split(text)[0]
    ours = _OURS.findall(told)
    kind, sentence = ours[-1] if ours else _innermost(told)
    shown = _SQL_STATE.sub("", sentence).strip()
    if len(shown) > _SENTENCE_CHARS_MAX:
        shown = f"{shown[:_SENTENCE_CHARS_MAX]}..."
    is_users = bool(ours) and kind == "UserError"
    reason = shown if is_users or not kind else f"{kind}: {shown}"
    return QueryFailure(reason, bool(ours), is_users)


def _innermost(text: str) -> tuple[str, str]:
    """Kind and sentence of the last error; one line may nest several."""
    found = _ANY_ERROR.findall(text)
    if not found:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "", lines[0] if lines else "no reason was given"
    kind, sentence = found[-1]
    while nested := _ANY_ERROR.search(sentence):
        kind, sentence = nested.groups()
    return kind, sentence
